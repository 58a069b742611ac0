// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Transport headers (IBTA volume 1, chapter 9) as they appear in a frame. Headers of Ethernet, IP and UDP come from
//! the `etherparse` crate.

use crate::error::{EncodeError, FrameError};
use vrnic_engine::segment::{self, AtomicKind, AtomicRequest, Flush, NakCode, Syndrome};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    byteorder::big_endian::{U16, U32, U64},
};

/// Length of a base transport header.
pub(crate) const BTH_LENGTH: usize = size_of::<Bth>();
/// Length of the invariant CRC at the end of a packet.
pub(crate) const ICRC_LENGTH: usize = 4;

/// Low 24 bits of a word.
pub(crate) const LOW_24: u32 = 0xff_ffff;

/// Base transport header.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Bth {
    /// Transport and operation.
    pub(crate) opcode: u8,
    /// [`SOLICITED`](Bth::SOLICITED), [`MIGRATED`](Bth::MIGRATED), pad count, header version.
    pub(crate) flags: u8,
    /// P_Key.
    pub(crate) pkey: U16,
    /// FECN, BECN and 6 reserved bits, which the invariant CRC does not cover; then the queue pair number.
    pub(crate) destination: U32,
    /// [`ACK_REQUEST`](Bth::ACK_REQUEST), 7 reserved bits, packet sequence number.
    pub(crate) psn: U32,
}

impl Bth {
    /// Solicited event.
    pub(crate) const SOLICITED: u8 = 0x80;
    /// The connection is in the migrated state, which is always the case without an alternate path (MigReq).
    pub(crate) const MIGRATED: u8 = 0x40;
    /// Position of the pad count.
    pub(crate) const PAD_SHIFT: u32 = 4;
    /// Transport header version.
    pub(crate) const VERSION_MASK: u8 = 0x0f;
    /// Backward explicit congestion notification.
    pub(crate) const BECN: u32 = 1 << 30;
    /// Acknowledgement requested.
    pub(crate) const ACK_REQUEST: u32 = 1 << 31;

    /// Returns the number of pad bytes after the payload.
    pub(crate) fn pad(&self) -> usize {
        usize::from(self.flags >> Self::PAD_SHIFT & 3)
    }
}

/// Datagram extended transport header.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Deth {
    pub(crate) qkey: U32,
    /// 8 reserved bits, queue pair.
    pub(crate) source: U32,
}

/// RDMA extended transport header.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Reth {
    pub(crate) address: U64,
    pub(crate) rkey: U32,
    pub(crate) length: U32,
}

impl From<segment::Reth> for Reth {
    fn from(reth: segment::Reth) -> Self {
        Self {
            address: reth.address.into(),
            rkey: reth.rkey.into(),
            length: reth.length.into(),
        }
    }
}

impl From<Reth> for segment::Reth {
    fn from(reth: Reth) -> Self {
        Self {
            address: reth.address.get(),
            rkey: reth.rkey.get(),
            length: reth.length.get(),
        }
    }
}

/// Atomic extended transport header.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AtomicEth {
    pub(crate) address: U64,
    pub(crate) rkey: U32,
    /// Value to store or to add.
    pub(crate) swap_add: U64,
    /// Value to compare with.
    pub(crate) compare: U64,
}

impl From<AtomicRequest> for AtomicEth {
    fn from(request: AtomicRequest) -> Self {
        let (swap_add, compare) = match request.kind {
            AtomicKind::CompareSwap => (request.swap, request.compare_add),
            AtomicKind::FetchAdd => (request.compare_add, 0),
        };
        Self {
            address: request.address.into(),
            rkey: request.rkey.into(),
            swap_add: swap_add.into(),
            compare: compare.into(),
        }
    }
}

impl AtomicEth {
    /// Returns the request as one of kind `kind`.
    pub(crate) fn request(&self, kind: AtomicKind) -> AtomicRequest {
        let (compare_add, swap) = match kind {
            AtomicKind::CompareSwap => (self.compare.get(), self.swap_add.get()),
            AtomicKind::FetchAdd => (self.swap_add.get(), 0),
        };
        AtomicRequest {
            kind,
            address: self.address.get(),
            rkey: self.rkey.get(),
            compare_add,
            swap,
        }
    }
}

/// Flush extended transport header (IBTA volume 1, annex A19, 4.1).
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct FlushEth {
    /// 26 reserved bits, selectivity in 2, placement in 4.
    pub(crate) kind: U32,
}

/// Position of the selectivity in a [`FlushEth`].
const SELECTIVITY_SHIFT: u32 = 4;

impl From<Flush> for FlushEth {
    fn from(flush: Flush) -> Self {
        let selectivity = u32::from(flush.selectivity & 3) << SELECTIVITY_SHIFT;
        Self {
            kind: (selectivity | u32::from(flush.placement & 0xf)).into(),
        }
    }
}

impl FlushEth {
    /// Returns the flush request for the memory `remote`.
    pub(crate) fn flush(self, remote: segment::Reth) -> Flush {
        let kind = self.kind.get() as u8;
        Flush {
            remote,
            placement: kind & 0xf,
            selectivity: kind >> SELECTIVITY_SHIFT & 3,
        }
    }
}

/// ACK extended transport header.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Aeth {
    /// Syndrome in the high 8 bits, message sequence number.
    pub(crate) syndrome_msn: U32,
}

/// Kinds of syndromes: bits 5 and 6.
const KIND_ACK: u8 = 0;
const KIND_RNR_NAK: u8 = 1;
const KIND_NAK: u8 = 3;

/// NAK codes: bits 0 to 4 (IBTA volume 1, table 45).
const NAK_CODES: [NakCode; 4] = [
    NakCode::SequenceError,
    NakCode::InvalidRequest,
    NakCode::RemoteAccess,
    NakCode::RemoteOperation,
];

impl From<segment::Aeth> for Aeth {
    fn from(aeth: segment::Aeth) -> Self {
        let (kind, value) = match aeth.syndrome {
            Syndrome::Ack { credits } => (KIND_ACK, credits),
            Syndrome::RnrNak { timer } => (KIND_RNR_NAK, timer),
            Syndrome::Nak(code) => {
                let place = NAK_CODES.iter().position(|&known| known == code);
                (KIND_NAK, place.unwrap_or(NAK_CODES.len()) as u8)
            }
        };
        let syndrome = kind << 5 | value & 0x1f;
        Self {
            syndrome_msn: (u32::from(syndrome) << 24 | aeth.msn & LOW_24).into(),
        }
    }
}

impl TryFrom<Aeth> for segment::Aeth {
    type Error = FrameError;

    fn try_from(aeth: Aeth) -> Result<Self, FrameError> {
        let word = aeth.syndrome_msn.get();
        let syndrome = (word >> 24) as u8;
        let value = syndrome & 0x1f;
        let syndrome = match syndrome >> 5 {
            KIND_ACK => Syndrome::Ack { credits: value },
            KIND_RNR_NAK => Syndrome::RnrNak { timer: value },
            KIND_NAK => {
                let code = NAK_CODES.get(usize::from(value));
                Syndrome::Nak(*code.ok_or(FrameError::Syndrome)?)
            }
            _ => return Err(FrameError::Syndrome),
        };
        Ok(Self {
            syndrome,
            msn: word & LOW_24,
        })
    }
}

/// Reads headers from the front of a packet.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl Reader<'_> {
    /// Reads the next header.
    pub(crate) fn take<H: FromBytes + Copy>(&mut self) -> Result<H, FrameError> {
        let (header, rest) = H::read_from_prefix(self.rest).map_err(|_| FrameError::Truncated)?;
        self.rest = rest;
        Ok(header)
    }
}

/// Writes headers one after the other.
#[derive(Debug)]
pub(crate) struct Writer<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> Writer<'a> {
    /// Creates a writer that starts at the beginning of `buffer`.
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Returns the next `length` bytes, to be written by the caller.
    pub(crate) fn room(&mut self, length: usize) -> Result<&mut [u8], EncodeError> {
        let start = self.length;
        let room = self.buffer.get_mut(start..start + length);
        let room = room.ok_or(EncodeError::TooLong)?;
        self.length += length;
        Ok(room)
    }

    /// Writes bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        Ok(())
    }

    /// Writes a header.
    pub(crate) fn header<H: IntoBytes + Immutable>(
        &mut self,
        header: H,
    ) -> Result<(), EncodeError> {
        self.put(header.as_bytes())
    }

    /// Returns the number of bytes written so far.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns what has been written from byte `start` on.
    pub(crate) fn written(&self, start: usize) -> &[u8] {
        self.buffer.get(start..self.length).unwrap_or_default()
    }
}
