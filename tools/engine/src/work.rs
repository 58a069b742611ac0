// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Work requests, decoded from private copies of their ring entries.

use crate::{
    cause::Cause,
    limits::{Features, MAX_MESSAGE},
    memory::{HostRange, Memory, Unmapped},
    segment::{Flush, Reth},
    state::wire,
    tcp_segments::MAX_PAYLOAD,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use vrnic_wire::{
    completion::{self, Status},
    integrity::IntegrityTarget,
    qp::{MAX_QPN, QpType},
    ring,
    work::{
        self, AtomicTarget, BindTarget, DatagramTarget, FlushTarget, RdmaTarget, ReceiveHeader,
        RegisterTarget, SendHeader, SendOpcode, Sge, send_flags,
    },
};
use zerocopy::{FromBytes, IntoBytes};

/// Number of bytes of an entry that are read first: the head and some elements.
const PREFIX: usize = 128;

/// A private copy of the beginning of a ring entry. Every byte of the entry is read at most once.
#[derive(Debug)]
struct EntryCopy {
    bytes: [u8; PREFIX],
}

impl EntryCopy {
    /// Reads the beginning of an entry.
    fn read<M: Memory>(entry: HostRange, memory: &M) -> Result<Self, Unmapped> {
        let mut bytes = [0; PREFIX];
        let length = PREFIX.min(entry.length as usize);
        memory.read(entry, &mut bytes[..length])?;
        Ok(Self { bytes })
    }

    /// Returns the little-endian word at byte `offset` of the part that is read first.
    fn word(&self, offset: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.bytes[offset..offset + 4]);
        u32::from_le_bytes(word)
    }

    /// Passes the elements in the bytes `part` of the entry, which must be that long, to `push`. Returns their total
    /// length.
    fn elements<M: Memory>(
        &self,
        entry: HostRange,
        part: Range<usize>,
        memory: &M,
        push: impl FnMut(Sge),
    ) -> Result<u64, Unmapped> {
        if part.end <= PREFIX {
            return Ok(elements_in(&self.bytes[part], push));
        }
        // Few entries are that long, and clearing so much memory takes time.
        let mut bytes = [0; ring::MAX_STRIDE as usize];
        let (first, rest) = bytes[..part.end].split_at_mut(PREFIX);
        first.copy_from_slice(&self.bytes);
        let place = entry.slice(PREFIX as u64, rest.len() as u64);
        memory.read(place.ok_or(Unmapped)?, rest)?;
        Ok(elements_in(&bytes[part], push))
    }
}

/// Passes the elements in `bytes` to `push`, and returns their total length.
fn elements_in(bytes: &[u8], mut push: impl FnMut(Sge)) -> u64 {
    let mut total = 0;
    for bytes in bytes.chunks_exact(size_of::<Sge>()) {
        let Ok(sge) = Sge::read_from_bytes(bytes) else {
            continue;
        };
        total += u64::from(sge.length.get());
        push(sge);
    }
    total
}

/// Capacities of a queue pair's queues.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Capacities {
    /// Number of elements of a send.
    pub(crate) send_sge: u32,
    /// Number of elements of a receive.
    pub(crate) recv_sge: u32,
    /// Number of inline bytes of a send.
    pub(crate) inline: u32,
    /// Whether the queue pair belongs to a kernel context.
    pub(crate) kernel: bool,
    /// Whether requests may ask for checksums, and for segmentation if it is among the features.
    pub(crate) checksums: bool,
    /// Negotiated features.
    pub(crate) features: Features,
}

impl Capacities {
    /// Returns whether requests may ask for segmentation.
    fn has_segmentation(&self) -> bool {
        self.checksums && self.features.segmentation
    }
}

/// Location of the payload of a send work request.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Source {
    /// In memory regions, described by this number of elements.
    Elements(u16),
    /// In the ring entry itself.
    Inline,
}

/// What a send work request operates on, besides its local buffers.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Target {
    /// Nothing: a send.
    None,
    /// Reads or writes remote memory.
    Rdma {
        /// Virtual address.
        address: u64,
        /// Key.
        rkey: u32,
    },
    /// Changes a word of remote memory.
    Atomic {
        /// Virtual address.
        address: u64,
        /// Key.
        rkey: u32,
        /// Value to compare with or to add.
        compare_add: u64,
        /// Value to store.
        swap: u64,
    },
    /// Writes a word of remote memory atomically.
    Store {
        /// Virtual address.
        address: u64,
        /// Key.
        rkey: u32,
        /// Value to store.
        value: u64,
    },
    /// Flushes remote memory that was written earlier.
    Flush(Flush),
    /// Registers a local region.
    Register(#[serde(with = "wire")] RegisterTarget),
    /// Registers a local integrity region.
    RegisterIntegrity(#[serde(with = "wire")] IntegrityTarget),
    /// Binds a local window.
    Bind(#[serde(with = "wire")] BindTarget),
    /// Sends a datagram to this destination.
    Datagram(#[serde(with = "wire")] DatagramTarget),
}

/// A send work request.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SendRequest {
    pub(crate) wr_id: u64,
    #[serde(with = "wire")]
    pub(crate) opcode: SendOpcode,
    /// Flags ([`send_flags`]).
    pub(crate) flags: u8,
    pub(crate) immediate: u32,
    /// Index of the P_Key, on the GSI queue pair.
    pub(crate) pkey_index: u16,
    pub(crate) source: Source,
    /// Length in bytes of the header of a send in segments, in front of the elements; otherwise 0.
    pub(crate) header: u16,
    /// Length of the message in bytes, without that header.
    pub(crate) length: u32,
    pub(crate) target: Target,
    /// The peer's shared receive queue on an extended reliable connection; otherwise 0.
    pub(crate) srqn: u32,
}

/// A work request that cannot be executed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct BadRequest {
    pub(crate) wr_id: u64,
    /// Its opcode, as far as it is known.
    pub(crate) opcode: SendOpcode,
    pub(crate) status: Status,
    pub(crate) cause: Cause,
}

/// Returns the opcode of the completion of a send work request.
pub(crate) fn completion_opcode(opcode: SendOpcode) -> completion::Opcode {
    match opcode {
        SendOpcode::Write | SendOpcode::WriteWithImmediate => completion::Opcode::Write,
        SendOpcode::Send | SendOpcode::SendWithImmediate | SendOpcode::SendWithInvalidate => {
            completion::Opcode::Send
        }
        SendOpcode::SendSegmented => completion::Opcode::SendSegmented,
        SendOpcode::Read => completion::Opcode::Read,
        SendOpcode::CompareSwap => completion::Opcode::CompareSwap,
        SendOpcode::FetchAdd => completion::Opcode::FetchAdd,
        SendOpcode::LocalInvalidate => completion::Opcode::LocalInvalidate,
        SendOpcode::BindWindow => completion::Opcode::BindWindow,
        SendOpcode::RegisterRegion | SendOpcode::RegisterIntegrity => {
            completion::Opcode::RegisterRegion
        }
        SendOpcode::Flush => completion::Opcode::Flush,
        SendOpcode::AtomicWrite => completion::Opcode::AtomicWrite,
    }
}

/// Returns whether requests with this opcode send nothing.
pub(crate) fn is_local(opcode: SendOpcode) -> bool {
    matches!(
        opcode,
        SendOpcode::LocalInvalidate
            | SendOpcode::BindWindow
            | SendOpcode::RegisterRegion
            | SendOpcode::RegisterIntegrity
    )
}

/// Returns whether requests with this opcode return more than an acknowledgement: data, or a response of their own.
pub(crate) fn is_fetching(opcode: SendOpcode) -> bool {
    matches!(
        opcode,
        SendOpcode::Read
            | SendOpcode::CompareSwap
            | SendOpcode::FetchAdd
            | SendOpcode::Flush
            | SendOpcode::AtomicWrite
    )
}

/// Returns whether queue pairs of this type support the operation.
fn is_supported(opcode: SendOpcode, qp_type: QpType, capacities: &Capacities) -> bool {
    match qp_type {
        QpType::ReliableConnection | QpType::XrcInitiator => match opcode {
            SendOpcode::LocalInvalidate => {
                let features = capacities.features;
                features.memory_extensions || features.memory_windows
            }
            SendOpcode::BindWindow => capacities.features.memory_windows,
            SendOpcode::RegisterRegion => {
                capacities.features.memory_extensions && capacities.kernel
            }
            SendOpcode::Flush | SendOpcode::AtomicWrite => capacities.features.memory_placement,
            SendOpcode::RegisterIntegrity => {
                capacities.features.has_integrity()
                    && capacities.kernel
                    && qp_type == QpType::ReliableConnection
            }
            SendOpcode::SendSegmented => false,
            _ => true,
        },
        QpType::UnreliableDatagram | QpType::Gsi | QpType::Smi => match opcode {
            SendOpcode::SendSegmented => capacities.has_segmentation(),
            _ => matches!(opcode, SendOpcode::Send | SendOpcode::SendWithImmediate),
        },
        QpType::RawPacket => match opcode {
            SendOpcode::SendSegmented => capacities.has_segmentation(),
            _ => opcode == SendOpcode::Send,
        },
        QpType::XrcTarget | QpType::ReceiveQueue | QpType::ReceiveScaling => false,
        QpType::UnreliableConnection => matches!(
            opcode,
            SendOpcode::Send
                | SendOpcode::SendWithImmediate
                | SendOpcode::Write
                | SendOpcode::WriteWithImmediate
        ),
    }
}

/// Reads and validates a send entry. Passes its elements to `push`, even if the request turns out not to be valid.
pub(crate) fn read_send<M: Memory>(
    entry: HostRange,
    qp_type: QpType,
    capacities: &Capacities,
    memory: &M,
    push: impl FnMut(Sge),
) -> Result<Result<SendRequest, BadRequest>, Unmapped> {
    let copy = EntryCopy::read(entry, memory)?;
    let Ok((header, _)) = SendHeader::read_from_prefix(&copy.bytes) else {
        return Err(Unmapped);
    };
    let wr_id = header.wr_id.get();
    let opcode = SendOpcode::try_from(header.opcode);
    let bad = |status, cause| {
        Ok(Err(BadRequest {
            wr_id,
            opcode: opcode.unwrap_or(SendOpcode::Send),
            status,
            cause,
        }))
    };
    let invalid = |cause| bad(Status::LocalQueuePairOperation, cause);

    let Some(opcode) = opcode
        .ok()
        .filter(|&opcode| is_supported(opcode, qp_type, capacities))
    else {
        return invalid(Cause::WqeOpcode);
    };
    let inline = header.flags & send_flags::INLINE != 0;
    let segmented = opcode == SendOpcode::SendSegmented;
    let sends = !is_fetching(opcode) && !is_local(opcode) && !segmented;
    let mut allowed = send_flags::ALL;
    if !capacities.checksums {
        allowed &= !send_flags::CHECKSUMS;
    }
    if header.flags & !allowed != 0 || (inline && !sends) {
        return invalid(Cause::WqeFlags);
    }
    if header.reserved.get() != 0 {
        return invalid(Cause::WqeReserved);
    }
    let count = header.num_sge.get();
    let inline_length = header.inline_length.get();
    let inline_length = match u16::try_from(inline_length) {
        Ok(length) if u32::from(length) <= capacities.inline => length,
        _ => return invalid(Cause::WqeCapacity),
    };
    let (source, data) = if inline {
        if count != 0 {
            return invalid(Cause::WqeCapacity);
        }
        (Source::Inline, 0)
    } else {
        let max_sge = if opcode.has_elements() {
            capacities.send_sge
        } else {
            0
        };
        if (inline_length != 0 && !segmented) || u32::from(count) > max_sge {
            return invalid(Cause::WqeCapacity);
        }
        (
            Source::Elements(count),
            usize::from(count) * size_of::<Sge>(),
        )
    };
    let segment_header = if segmented { inline_length } else { 0 };
    let first = work::elements_offset(segment_header);
    let end = first + data;
    if end > entry.length as usize {
        return invalid(Cause::WqeCapacity);
    }
    let Some(target) = read_target(&copy, opcode, qp_type) else {
        return Err(Unmapped);
    };
    if matches!(target, Target::Flush(flush) if !flush.is_valid()) {
        return invalid(Cause::FlushKind);
    }
    let mut length = copy.elements(entry, first..end, memory, push)?;
    if inline {
        length = inline_length.into();
    }
    let lengths = if segmented {
        1..=MAX_PAYLOAD
    } else {
        0..=MAX_MESSAGE
    };
    let Some(length) = u32::try_from(length)
        .ok()
        .filter(|length| lengths.contains(length))
    else {
        return bad(Status::LocalLength, Cause::WqeLength);
    };
    let atomic = matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd);
    if atomic && length != 8 {
        return bad(Status::LocalLength, Cause::WqeAtomicLength);
    }
    Ok(Ok(SendRequest {
        wr_id,
        opcode,
        flags: header.flags,
        immediate: header.immediate.get(),
        pkey_index: header.pkey_index.get(),
        source,
        header: segment_header,
        length,
        target,
        srqn: match qp_type {
            QpType::XrcInitiator => copy.word(work::XRC_SRQN_OFFSET) & MAX_QPN,
            _ => 0,
        },
    }))
}

/// Parses the part of a send entry that depends on the operation. Ignores reserved members.
fn read_target(copy: &EntryCopy, opcode: SendOpcode, qp_type: QpType) -> Option<Target> {
    let bytes = &copy.bytes[work::TARGET_OFFSET..work::SEND_DATA_OFFSET];
    if matches!(
        qp_type,
        QpType::UnreliableDatagram | QpType::Gsi | QpType::Smi
    ) {
        let target = DatagramTarget::read_from_bytes(bytes).ok()?;
        return Some(Target::Datagram(target));
    }
    Some(match opcode {
        SendOpcode::Write | SendOpcode::WriteWithImmediate | SendOpcode::Read => {
            let target = RdmaTarget::read_from_bytes(bytes).ok()?;
            Target::Rdma {
                address: target.address.get(),
                rkey: target.rkey.get(),
            }
        }
        SendOpcode::AtomicWrite => {
            let target = AtomicTarget::read_from_bytes(bytes).ok()?;
            Target::Store {
                address: target.address.get(),
                rkey: target.rkey.get(),
                value: target.swap.get(),
            }
        }
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
            let target = AtomicTarget::read_from_bytes(bytes).ok()?;
            Target::Atomic {
                address: target.address.get(),
                rkey: target.rkey.get(),
                compare_add: target.compare_add.get(),
                swap: target.swap.get(),
            }
        }
        SendOpcode::Flush => {
            let target = FlushTarget::read_from_bytes(bytes).ok()?;
            Target::Flush(Flush {
                remote: Reth {
                    address: target.address.get(),
                    rkey: target.rkey.get(),
                    length: target.length.get(),
                },
                placement: target.placement,
                selectivity: target.selectivity,
            })
        }
        SendOpcode::RegisterIntegrity => {
            Target::RegisterIntegrity(IntegrityTarget::read_from_bytes(bytes).ok()?)
        }
        SendOpcode::BindWindow => Target::Bind(BindTarget::read_from_bytes(bytes).ok()?),
        SendOpcode::RegisterRegion => {
            Target::Register(RegisterTarget::read_from_bytes(bytes).ok()?)
        }
        SendOpcode::Send
        | SendOpcode::SendWithImmediate
        | SendOpcode::SendWithInvalidate
        | SendOpcode::SendSegmented
        | SendOpcode::LocalInvalidate => Target::None,
    })
}

/// Reads the `wr_id` of a flushed entry of a send queue and the opcode of its completion.
pub(crate) fn read_send_name<M: Memory>(
    entry: HostRange,
    memory: &M,
) -> Result<(u64, completion::Opcode), Unmapped> {
    let mut header = SendHeader::default();
    memory.read(entry, header.as_mut_bytes())?;
    let opcode = SendOpcode::try_from(header.opcode).unwrap_or(SendOpcode::Send);
    Ok((header.wr_id.get(), completion_opcode(opcode)))
}

/// Reads and validates a receive entry. Appends its elements to `elements`. Returns its `wr_id` and its size in bytes.
pub(crate) fn read_receive<M: Memory>(
    entry: HostRange,
    max_sge: u32,
    memory: &M,
    elements: &mut Vec<Sge>,
) -> Result<(u64, Result<u64, Cause>), Unmapped> {
    let copy = EntryCopy::read(entry, memory)?;
    let Ok((header, _)) = ReceiveHeader::read_from_prefix(&copy.bytes) else {
        return Err(Unmapped);
    };
    let wr_id = header.wr_id.get();
    let count = usize::from(header.num_sge.get());
    let end = work::RECEIVE_DATA_OFFSET + count * size_of::<Sge>();
    if count > max_sge as usize || end > entry.length as usize || header.reserved != [0; 6] {
        return Ok((wr_id, Err(Cause::ReceiveEntry)));
    }
    let part = work::RECEIVE_DATA_OFFSET..end;
    let capacity = copy.elements(entry, part, memory, |sge| elements.push(sge))?;
    Ok((wr_id, Ok(capacity)))
}

/// Reads the `wr_id` of a receive entry.
pub(crate) fn read_receive_name<M: Memory>(entry: HostRange, memory: &M) -> Result<u64, Unmapped> {
    let mut header = ReceiveHeader::default();
    memory.read(entry, header.as_mut_bytes())?;
    Ok(header.wr_id.get())
}
