// SPDX-License-Identifier: GPL-2.0

//! Work queue entries for requests of the kernel.

use kernel::prelude::*;
use rdma::{
    access::{
        Access,
        AccessFlags, //
    },
    mr::Mapping,
    wr::{
        Operation,
        ReceiveRequest,
        Remote,
        SendFlag,
        SendRequest,
        Sge, //
    }, //
};
use virtio::SharedMemory;
use vrnic_wire::work::{
    self,
    elements_offset,
    send_flags,
    AtomicTarget,
    DatagramTarget,
    RdmaTarget,
    ReceiveHeader,
    RegisterTarget,
    SendHeader,
    SendOpcode,
    RECEIVE_DATA_OFFSET,
    SEND_DATA_OFFSET,
    TARGET_LENGTH,
    TARGET_OFFSET, //
};

use crate::{
    device::Vrnic,
    integrity,
    kernel_qp::Name,
    mr::rights, //
};

/// Longest header of segments: that of IP over InfiniBand, and those of IPv4 and TCP with all
/// possible options.
pub(crate) const MAX_HEADER: u32 = 4 + 60 + 60;

/// What the sends of a queue pair can have.
#[derive(Copy, Clone)]
pub(crate) struct SendLimits {
    /// Number of elements.
    pub(crate) max_sge: u32,
    /// Bytes of a header of segments, for which there is room in front of the elements; 0 without
    /// segments.
    pub(crate) max_header: u32,
    /// Bytes of inline data.
    pub(crate) max_inline: u32,
    /// Whether there are checksums.
    pub(crate) checksums: bool,
}

/// Writes the send entry of request `name` at `at`. `EINVAL` for what exceeds the limits.
pub(crate) fn write_send(
    memory: &SharedMemory,
    at: usize,
    name: Name,
    request: &SendRequest<'_, Vrnic>,
    limits: SendLimits,
) -> Result {
    let given = request.flags();
    let mut flags = 0;
    for (flag, wire) in [
        (SendFlag::Fence, send_flags::FENCE),
        (SendFlag::Signaled, send_flags::SIGNALED),
        (SendFlag::Solicited, send_flags::SOLICITED),
        (SendFlag::Inline, send_flags::INLINE),
        (SendFlag::IpChecksum, send_flags::CHECKSUMS),
    ] {
        if given.contains(flag) {
            flags |= wire;
        }
    }
    if given.contains(SendFlag::IpChecksum) && !limits.checksums {
        return Err(EINVAL);
    }

    let num_sge = count(request.elements(), limits.max_sge)?;
    let encoded = encode(request.operation())?;
    match request.inline_data() {
        Some(pieces) => write_inline(memory, at, (name, flags), &encoded, pieces, limits),
        None => {
            write_header(memory, at, (name, flags), &encoded, num_sge, limits)?;
            let first = elements_offset(u16::try_from(encoded.segment_header.len())?);
            write_elements(memory, at + first, request.elements())
        }
    }
}

/// Writes what precedes the `num_sge` elements of the send entry at `at`.
fn write_header(
    memory: &SharedMemory,
    at: usize,
    named: (Name, u8),
    encoded: &Encoded<'_>,
    num_sge: u16,
    limits: SendLimits,
) -> Result {
    let length = u32::try_from(encoded.segment_header.len())?;
    if length > limits.max_header {
        return Err(EINVAL);
    }
    write_start(memory, at, named, encoded, (num_sge, length))?;
    memory.write(at + SEND_DATA_OFFSET, encoded.segment_header)
}

/// Writes the send entry at `at`, with the payload in these pieces. `EINVAL` if it is too long.
fn write_inline<'a>(
    memory: &SharedMemory,
    at: usize,
    named: (Name, u8),
    encoded: &Encoded<'_>,
    pieces: impl Iterator<Item = &'a [u8]>,
    limits: SendLimits,
) -> Result {
    let mut length = 0;
    for piece in pieces {
        let start = at + SEND_DATA_OFFSET + length;
        length += piece.len();
        if length > limits.max_inline as usize {
            return Err(EINVAL);
        }
        memory.write(start, piece)?;
    }
    write_start(memory, at, named, encoded, (0, u32::try_from(length)?))
}

/// Writes the part of the send entry at `at` that all entries have.
fn write_start(
    memory: &SharedMemory,
    at: usize,
    (name, flags): (Name, u8),
    encoded: &Encoded<'_>,
    (num_sge, inline_length): (u16, u32),
) -> Result {
    let header = SendHeader {
        opcode: encoded.opcode.raw(),
        flags,
        num_sge: num_sge.into(),
        inline_length: inline_length.into(),
        wr_id: name.to_wire().into(),
        immediate: encoded.immediate.into(),
        pkey_index: encoded.pkey_index.into(),
        ..Default::default()
    };
    memory.write(at, header.as_bytes())?;
    memory.write(at + TARGET_OFFSET, &encoded.target)
}

/// Writes the receive entry of request `name` at `at`. Returns the number of bytes that it has room
/// for. `EINVAL` for more than `max_sge` elements.
pub(crate) fn write_receive(
    memory: &SharedMemory,
    at: usize,
    name: Name,
    request: &ReceiveRequest<'_>,
    max_sge: u32,
) -> Result<u64> {
    let header = ReceiveHeader {
        wr_id: name.to_wire().into(),
        num_sge: count(request.elements(), max_sge)?.into(),
        ..Default::default()
    };
    memory.write(at, header.as_bytes())?;
    write_elements(memory, at + RECEIVE_DATA_OFFSET, request.elements())?;
    let lengths = request.elements().iter().map(|sge| u64::from(sge.length()));
    Ok(lengths.sum())
}

/// Returns the number of elements; `EINVAL` if it exceeds `max_sge`.
fn count(elements: &[Sge], max_sge: u32) -> Result<u16> {
    if elements.len() > max_sge as usize {
        return Err(EINVAL);
    }
    Ok(u16::try_from(elements.len())?)
}

/// Writes scatter/gather elements.
fn write_elements(memory: &SharedMemory, at: usize, elements: &[Sge]) -> Result {
    for (i, element) in elements.iter().enumerate() {
        let element = work::Sge {
            address: element.address().into(),
            length: element.length().into(),
            lkey: element.lkey().into(),
        };
        memory.write(at + i * size_of::<work::Sge>(), element.as_bytes())?;
    }
    Ok(())
}

/// Parts of an entry that depend on the operation.
struct Encoded<'a> {
    opcode: SendOpcode,
    immediate: u32,
    pkey_index: u16,
    target: [u8; TARGET_LENGTH],
    segment_header: &'a [u8],
}

/// Translates an operation.
fn encode<'a>(operation: &Operation<'a, Vrnic>) -> Result<Encoded<'a>> {
    let plain = |opcode, immediate| Encoded {
        opcode,
        immediate,
        pkey_index: 0,
        target: [0; TARGET_LENGTH],
        segment_header: &[],
    };
    let rdma = |opcode, remote: &Remote, immediate| Encoded {
        target: zerocopy::transmute!(RdmaTarget {
            address: remote.address.into(),
            rkey: remote.rkey.into(),
            ..Default::default()
        }),
        ..plain(opcode, immediate)
    };
    let atomic = |opcode, remote: &Remote, compare_add: u64, swap: u64| Encoded {
        target: zerocopy::transmute!(AtomicTarget {
            address: remote.address.into(),
            rkey: remote.rkey.into(),
            compare_add: compare_add.into(),
            swap: swap.into(),
            ..Default::default()
        }),
        ..plain(opcode, 0)
    };

    Ok(match operation {
        Operation::Send => plain(SendOpcode::Send, 0),
        Operation::SendWithImmediate(data) => plain(SendOpcode::SendWithImmediate, *data),
        Operation::SendWithInvalidate(key) => plain(SendOpcode::SendWithInvalidate, *key),
        Operation::Write(remote) => rdma(SendOpcode::Write, remote, 0),
        Operation::WriteWithImmediate(remote, data) => {
            rdma(SendOpcode::WriteWithImmediate, remote, *data)
        }
        Operation::Read(remote) => rdma(SendOpcode::Read, remote, 0),
        Operation::CompareSwap {
            remote,
            compare,
            swap,
        } => atomic(SendOpcode::CompareSwap, remote, *compare, *swap),
        Operation::FetchAdd { remote, add } => atomic(SendOpcode::FetchAdd, remote, *add, 0),
        Operation::LocalInvalidate(key) => plain(SendOpcode::LocalInvalidate, *key),
        Operation::Register {
            mapping,
            key,
            access,
            ..
        } => Encoded {
            target: zerocopy::transmute!(register_target(mapping, *key, *access)?),
            ..plain(SendOpcode::RegisterRegion, 0)
        },
        Operation::RegisterIntegrity {
            mr,
            lists,
            attributes,
            key,
            access,
        } => {
            let target = integrity::target(lists, attributes, *key, *access)?;
            mr.integrity()?.registers(*key);
            Encoded {
                target: zerocopy::transmute!(target),
                ..plain(SendOpcode::RegisterIntegrity, 0)
            }
        }
        Operation::Datagram {
            ah,
            remote_qpn,
            remote_qkey,
            pkey_index,
            immediate,
            segments,
        } => Encoded {
            opcode: match (segments, immediate) {
                (Some(_), _) => SendOpcode::SendSegmented,
                (None, Some(_)) => SendOpcode::SendWithImmediate,
                (None, None) => SendOpcode::Send,
            },
            immediate: match segments {
                Some(segments) => segments.size.get(),
                None => immediate.unwrap_or(0),
            },
            segment_header: segments.map_or(&[][..], |segments| segments.header),
            pkey_index: *pkey_index,
            target: zerocopy::transmute!(DatagramTarget {
                address: ah.address(),
                remote_qpn: (*remote_qpn).into(),
                qkey: (*remote_qkey).into(),
            }),
        },
    })
}

/// Translates a registration of a region whose page table has been filled.
fn register_target(mapping: &Mapping, key: u32, access: AccessFlags) -> Result<RegisterTarget> {
    let mut iova = mapping.iova;
    if access.contains(Access::ZeroBased) {
        // The rest is the offset of the memory in its first page.
        iova &= (1 << mapping.page_shift) - 1;
    }
    Ok(RegisterTarget {
        iova: iova.into(),
        length: mapping.length.into(),
        key: key.into(),
        access: rights(access)?.into(),
        page_count: mapping.pages.into(),
        page_shift: u8::try_from(mapping.page_shift)?,
        ..Default::default()
    })
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_wqe)]
mod tests {
    use super::*;

    use rdma::{
        testing::with_send_request,
        wr::SendFlags, //
    };

    use crate::kernel_qp::Side;

    const NAME: Name = Name {
        side: Side::Send,
        index: 41,
    };

    const LIMITS: SendLimits = SendLimits {
        max_sge: 1,
        max_header: 0,
        max_inline: 20,
        checksums: true,
    };

    fn with_memory(test: impl FnOnce(&SharedMemory) -> Result) -> Result {
        virtio::testing::with_dma(|dma| test(&SharedMemory::new(dma, 256)?))
    }

    fn read<T: FromBytes>(memory: &SharedMemory, at: usize) -> Result<T> {
        let mut bytes = [0; 64];
        let bytes = &mut bytes[..size_of::<T>()];
        memory.read(at, bytes)?;
        T::read_from_bytes(bytes).map_err(|_| EINVAL)
    }

    /// Writes an entry with at most one element.
    fn write(
        memory: &SharedMemory,
        at: usize,
        flags: SendFlags,
        operation: Operation<'_, Vrnic>,
    ) -> Result {
        with_send_request(flags, operation, |request| {
            write_send(memory, at, NAME, request, LIMITS)
        })?
    }

    #[test]
    fn an_atomic_is_encoded() -> Result {
        with_memory(|memory| {
            let remote = Remote {
                address: 0x1000,
                rkey: 7,
            };
            let operation = Operation::CompareSwap {
                remote,
                compare: 11,
                swap: 12,
            };
            let flags = SendFlag::Signaled | SendFlag::Solicited;
            write(memory, 128, flags, operation)?;

            let header: SendHeader = read(memory, 128)?;
            assert_eq!(header.opcode, SendOpcode::CompareSwap.raw());
            assert_eq!(header.flags, send_flags::SIGNALED | send_flags::SOLICITED);
            assert_eq!(header.wr_id.get(), NAME.to_wire());
            assert_eq!(header.num_sge.get(), 0);
            let target: AtomicTarget = read(memory, 128 + TARGET_OFFSET)?;
            assert_eq!(target.address.get(), 0x1000);
            assert_eq!(target.rkey.get(), 7);
            assert_eq!(target.compare_add.get(), 11);
            assert_eq!(target.swap.get(), 12);
            Ok(())
        })
    }

    #[test]
    fn only_some_queue_pairs_have_checksums() -> Result {
        with_memory(|memory| {
            for (checksums, expected) in [(true, Ok(())), (false, Err(EINVAL))] {
                let flags = SendFlag::IpChecksum.into();
                let written = with_send_request(flags, Operation::Send, |request| {
                    write_send(
                        memory,
                        0,
                        NAME,
                        request,
                        SendLimits {
                            checksums,
                            ..LIMITS
                        },
                    )
                })?;
                assert_eq!(written, expected);
            }
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.flags, send_flags::CHECKSUMS);
            Ok(())
        })
    }

    #[test]
    fn the_header_of_segments_is_in_the_entry() -> Result {
        with_memory(|memory| {
            let write = |header: &[u8], max_header| {
                let encoded = Encoded {
                    opcode: SendOpcode::SendSegmented,
                    immediate: 1400,
                    pkey_index: 0,
                    target: [0; TARGET_LENGTH],
                    segment_header: header,
                };
                let limits = SendLimits {
                    max_header,
                    ..LIMITS
                };
                write_header(memory, 0, (NAME, 0), &encoded, 0, limits)
            };
            assert_eq!(write(b"header", 5), Err(EINVAL));
            write(b"header", 6)?;
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.opcode, SendOpcode::SendSegmented.raw());
            assert_eq!((header.num_sge.get(), header.inline_length.get()), (0, 6));
            assert_eq!(header.immediate.get(), 1400);
            assert_eq!(read::<[u8; 6]>(memory, SEND_DATA_OFFSET)?, *b"header");
            // The largest entry of a queue pair of IP over InfiniBand has this stride.
            let stride = work::segmented_send_stride(18, 0, MAX_HEADER);
            assert_eq!(stride, 512);
            Ok(())
        })
    }

    #[test]
    fn immediate_data_is_a_number() -> Result {
        with_memory(|memory| {
            let operation = Operation::SendWithImmediate(0x0102_0304);
            write(memory, 0, SendFlags::default(), operation)?;
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.opcode, SendOpcode::SendWithImmediate.raw());
            assert_eq!(header.immediate.get(), 0x0102_0304);
            Ok(())
        })
    }

    #[test]
    fn a_registration_is_encoded() -> Result {
        let mapping = Mapping {
            iova: 0x7000_0123,
            length: 0x2000,
            pages: 3,
            page_shift: 12,
        };
        let access = rdma::access::Access::LocalWrite | rdma::access::Access::RemoteRead;
        let target = register_target(&mapping, 0x1234_5602, access)?;
        assert_eq!(target.iova.get(), 0x7000_0123);
        assert_eq!(target.length.get(), 0x2000);
        assert_eq!(target.key.get(), 0x1234_5602);
        assert_eq!(target.access.get(), 0b101);
        assert_eq!(target.page_count.get(), 3);
        assert_eq!(target.page_shift, 12);
        let from_zero = register_target(&mapping, 1, access | Access::ZeroBased)?;
        assert_eq!(from_zero.iova.get(), 0x123);
        assert_eq!(from_zero.access.get(), 0b10_0101);
        let on_demand = rdma::access::Access::OnDemand.into();
        assert_eq!(
            register_target(&mapping, 1, on_demand).err(),
            Some(EOPNOTSUPP)
        );
        Ok(())
    }

    #[test]
    fn an_invalidation_names_the_key() -> Result {
        with_memory(|memory| {
            let operation = Operation::LocalInvalidate(77);
            write(memory, 0, SendFlags::default(), operation)?;
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.opcode, SendOpcode::LocalInvalidate.raw());
            assert_eq!(header.immediate.get(), 77);
            Ok(())
        })
    }

    #[test]
    fn inline_data_is_in_the_entry() -> Result {
        with_memory(|memory| {
            let named = (NAME, send_flags::INLINE);
            let inline = |pieces: &[&[u8]]| {
                let encoded = encode(&Operation::SendWithImmediate(5))?;
                let pieces = pieces.iter().copied();
                write_inline(memory, 0, named, &encoded, pieces, LIMITS)
            };
            inline(&[b"in", b"", b"line"])?;
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.opcode, SendOpcode::SendWithImmediate.raw());
            assert_eq!(header.flags, send_flags::INLINE);
            assert_eq!(header.immediate.get(), 5);
            assert_eq!((header.num_sge.get(), header.inline_length.get()), (0, 6));
            assert_eq!(read::<[u8; 6]>(memory, SEND_DATA_OFFSET)?, *b"inline");
            inline(&[&[7; 20]])?;
            assert_eq!(read::<[u8; 20]>(memory, SEND_DATA_OFFSET)?, [7; 20]);
            assert_eq!(inline(&[&[7; 20], &[8]]), Err(EINVAL));
            // Without elements there is no payload.
            write(memory, 0, SendFlag::Inline.into(), Operation::Send)?;
            let header: SendHeader = read(memory, 0)?;
            assert_eq!(header.flags, send_flags::INLINE);
            assert_eq!((header.num_sge.get(), header.inline_length.get()), (0, 0));
            Ok(())
        })
    }

    #[test]
    fn an_entry_lies_in_the_memory() -> Result {
        with_memory(|memory| {
            let outside = write(memory, 4096 - 32, SendFlags::default(), Operation::Send);
            assert_eq!(outside, Err(EINVAL));
            Ok(())
        })
    }
}
