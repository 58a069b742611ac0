// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Work queue entries.
//!
//! A send entry consists of a [`SendHeader`], the operation's 40 bytes ([`RdmaTarget`],
//! [`AtomicTarget`], [`FlushTarget`], [`RegisterTarget`],
//! [`IntegrityTarget`](crate::integrity::IntegrityTarget), [`BindTarget`] or [`DatagramTarget`],
//! otherwise zero), and either `num_sge` [`Sge`]s or `inline_length` bytes of payload. An entry
//! with [`SendOpcode::SendSegmented`] has both, and the bytes are its header. A receive entry
//! consists of a [`ReceiveHeader`] and its [`Sge`]s. The ring's stride limits both.

use crate::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Operation of a send work request.
    pub enum SendOpcode: u8 {
        /// RDMA write.
        Write = 0,
        /// RDMA write with immediate data; consumes a receive at the peer.
        WriteWithImmediate = 1,
        /// Send.
        Send = 2,
        /// Send with immediate data.
        SendWithImmediate = 3,
        /// RDMA read.
        Read = 4,
        /// Atomic compare and swap on 8 bytes.
        CompareSwap = 5,
        /// Atomic fetch and add on 8 bytes.
        FetchAdd = 6,
        /// Invalidates a local key.
        LocalInvalidate = 7,
        /// Binds a memory window to a part of a region.
        BindWindow = 8,
        /// Send that invalidates a key of the peer.
        SendWithInvalidate = 9,
        /// Send of a TCP packet in segments, each with a copy of the header in the entry.
        SendSegmented = 10,
        /// Flush, which completes when the peer has placed all earlier writes (IBTA annex A19).
        Flush = 14,
        /// Atomic write of 8 bytes (IBTA annex A19).
        AtomicWrite = 15,
        /// Fast registration of a region; for the driver's own queue pairs.
        RegisterRegion = 32,
        /// Registration of an integrity region; for the driver's own queue pairs.
        RegisterIntegrity = 33,
    }
}

impl SendOpcode {
    /// Returns the name of the opcode for display.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "RDMA WRITE",
            Self::WriteWithImmediate => "RDMA WRITE with IMM",
            Self::Send => "SEND",
            Self::SendWithImmediate => "SEND with IMM",
            Self::Read => "RDMA READ",
            Self::CompareSwap => "CMP & SWAP",
            Self::FetchAdd => "FETCH & ADD",
            Self::LocalInvalidate => "LOCAL INV",
            Self::BindWindow => "BIND MW",
            Self::SendWithInvalidate => "SEND with INV",
            Self::SendSegmented => "SEND segmented",
            Self::Flush => "FLUSH",
            Self::AtomicWrite => "ATOMIC WRITE",
            Self::RegisterRegion => "REG MR",
            Self::RegisterIntegrity => "REG MR integrity",
        }
    }

    /// Returns whether requests with this opcode have scatter/gather elements.
    pub const fn has_elements(self) -> bool {
        !matches!(
            self,
            Self::LocalInvalidate
                | Self::BindWindow
                | Self::RegisterRegion
                | Self::RegisterIntegrity
                | Self::Flush
                | Self::AtomicWrite
        )
    }
}

/// Bits of [`SendHeader::flags`].
pub mod send_flags {
    /// Generate a completion also on success.
    pub const SIGNALED: u8 = 1 << 0;
    /// Request a solicited event at the peer.
    pub const SOLICITED: u8 = 1 << 1;
    /// Start only after all earlier reads, atomics, flushes and atomic writes of this queue have
    /// completed.
    pub const FENCE: u8 = 1 << 2;
    /// The payload is in the entry itself.
    pub const INLINE: u8 = 1 << 3;
    /// Fill in the checksums of the IP packet that the message contains.
    pub const CHECKSUMS: u8 = 1 << 4;
    /// All bits with a meaning.
    pub const ALL: u8 = SIGNALED | SOLICITED | FENCE | INLINE | CHECKSUMS;
}

/// First 24 bytes of a send entry.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SendHeader {
    /// A [`SendOpcode`].
    pub opcode: u8,
    /// [`send_flags`].
    pub flags: u8,
    /// Number of scatter/gather elements that follow; 0 with `INLINE`.
    pub num_sge: U16,
    /// Number of bytes of inline payload that follow; 0 without `INLINE`. Length of the header in
    /// front of the elements of a [`SendOpcode::SendSegmented`].
    pub inline_length: U32,
    /// The poster's ID of the request, which is returned in the completion.
    pub wr_id: U64,
    /// Immediate data as a number (most significant byte first on the network), the local or
    /// remote key to invalidate, or the payload of each segment of a
    /// [`SendOpcode::SendSegmented`].
    pub immediate: U32,
    /// P_Key index of a GSI send; otherwise 0.
    pub pkey_index: U16,
    /// Reserved; 0.
    pub reserved: U16,
}
assert_layout!(SendHeader, 24, opcode @ 0, flags @ 1, num_sge @ 2, inline_length @ 4, wr_id @ 8,
    immediate @ 16, pkey_index @ 20);

/// Byte offset of the operation's part of a send entry.
pub const TARGET_OFFSET: usize = 24;

/// Length of the operation's part in bytes.
pub const TARGET_LENGTH: usize = 40;

/// Byte offset of the scatter/gather elements or of the inline payload in a send entry.
pub const SEND_DATA_OFFSET: usize = 64;

/// Byte offset of the number of the peer's shared receive queue in a send entry of an extended
/// reliable connection, for every operation: 24 bits, the upper 8 are ignored. No target of such an
/// entry uses this offset for anything else.
pub const XRC_SRQN_OFFSET: usize = 60;

/// Remote memory of an RDMA read or write.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RdmaTarget {
    /// Virtual address in the peer's region.
    pub address: U64,
    /// Key of the peer's region.
    pub rkey: U32,
    /// Reserved; 0.
    pub reserved: [u8; 28],
}
assert_layout!(RdmaTarget, TARGET_LENGTH, address @ 0, rkey @ 8);

/// Remote memory and operands of an atomic operation or an atomic write.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtomicTarget {
    /// Virtual address in the peer's region; a multiple of 8.
    pub address: U64,
    /// Key of the peer's region.
    pub rkey: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Value to compare with (compare and swap) or to add (fetch and add); ignored by atomic
    /// writes.
    pub compare_add: U64,
    /// Value to store; compare and swap stores it if the comparison succeeds, fetch and add ignores
    /// it.
    pub swap: U64,
    /// Reserved; 0.
    pub reserved_tail: U64,
}
assert_layout!(AtomicTarget, TARGET_LENGTH, address @ 0, rkey @ 8, compare_add @ 16, swap @ 24);

/// Placement that a flush requests: bits of [`FlushTarget::placement`], numerically those of the
/// verbs and of the network.
pub mod placement {
    /// The data is visible to the peer's whole machine.
    pub const GLOBAL: u8 = 1 << 0;
    /// The data survives a loss of power.
    pub const PERSISTENT: u8 = 1 << 1;
    /// All bits with a meaning.
    pub const ALL: u8 = GLOBAL | PERSISTENT;
}

wire_enum! {
    /// Part of a region that a flush covers; numerically that of the verbs and of the network.
    pub enum Selectivity: u8 {
        /// The given range of bytes.
        Range = 0,
        /// The whole region; address and length of the flush are meaningless.
        Region = 1,
    }
}

/// Remote memory of a flush.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FlushTarget {
    /// Virtual address in the peer's region.
    pub address: U64,
    /// Key of the peer's region.
    pub rkey: U32,
    /// Length in bytes.
    pub length: U32,
    /// [`placement`], at least one bit.
    pub placement: u8,
    /// A [`Selectivity`].
    pub selectivity: u8,
    /// Reserved; 0.
    pub reserved: [u8; 22],
}
assert_layout!(FlushTarget, TARGET_LENGTH, address @ 0, rkey @ 8, length @ 12, placement @ 16,
    selectivity @ 17);

/// Parameters of a fast registration. The page addresses are in the table of the region.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterTarget {
    /// Address by which work requests refer to the first byte, with the same offset in a page as
    /// the memory. In a zero-based region only the offset in the page.
    pub iova: U64,
    /// Length in bytes; at least 1.
    pub length: U64,
    /// New key of the region: that of the region, with any lowest byte.
    pub key: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// Number of pages, from the start of the table.
    pub page_count: U32,
    /// Binary logarithm of the page size.
    pub page_shift: u8,
    /// Reserved; 0.
    pub reserved: [u8; 11],
}
assert_layout!(RegisterTarget, TARGET_LENGTH, iova @ 0, length @ 8, key @ 16, access @ 20,
    page_count @ 24, page_shift @ 28);

/// Parameters of a bind of a memory window.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindTarget {
    /// Address of the first byte in the region.
    pub address: U64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub length: U64,
    /// New key of the window: that of the window, with any lowest byte.
    pub window: U32,
    /// Key of the region.
    pub region: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// Reserved; 0.
    pub reserved: [u8; 12],
}
assert_layout!(BindTarget, TARGET_LENGTH, address @ 0, length @ 8, window @ 16, region @ 20,
    access @ 24);

/// Destination of datagrams, or the path of a connection.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AddressVector {
    /// GID of the destination, most significant byte first.
    pub dgid: [u8; 16],
    /// MAC address of the destination or of the next hop; on InfiniBand, a [`LidAddress`].
    pub dmac: [u8; 6],
    /// Index of the local GID to send from.
    pub sgid_index: u8,
    /// Hop limit of the IP header.
    pub hop_limit: u8,
    /// Traffic class of the IP header.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Reserved; 0.
    pub reserved: U16,
    /// Flow label of the IP header, 20 bits.
    pub flow_label: U32,
}
assert_layout!(AddressVector, 32, dgid @ 0, dmac @ 16, sgid_index @ 22, hop_limit @ 23,
    traffic_class @ 24, service_level @ 25, flow_label @ 28);

/// Bits of [`LidAddress::flags`].
pub mod lid_flags {
    /// Packets have a global route header, for which the other members of the address vector are
    /// used.
    pub const GRH: u8 = 1 << 0;
    /// All bits with a meaning.
    pub const ALL: u8 = GRH;
}

/// Destination on an InfiniBand subnet, the contents of [`AddressVector::dmac`] there.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct LidAddress {
    /// LID of the destination, of a router, or of a multicast group.
    pub dlid: U16,
    /// Low bits of the source LID, as many as the port's LMC.
    pub path_bits: u8,
    /// Static rate, in the encoding of the verbs; 0 for the rate of the port.
    pub static_rate: u8,
    /// [`lid_flags`].
    pub flags: u8,
    /// Reserved; 0.
    pub reserved: u8,
}
assert_layout!(LidAddress, 6, dlid @ 0, path_bits @ 2, static_rate @ 3, flags @ 4);

impl LidAddress {
    /// Returns the contents of [`AddressVector::dmac`].
    pub const fn to_bytes(self) -> [u8; 6] {
        let [low, high] = self.dlid.to_bytes();
        [
            low,
            high,
            self.path_bits,
            self.static_rate,
            self.flags,
            self.reserved,
        ]
    }

    /// Parses the contents of [`AddressVector::dmac`].
    pub const fn from_bytes(bytes: [u8; 6]) -> Self {
        let [low, high, path_bits, static_rate, flags, reserved] = bytes;
        Self {
            dlid: U16::from_bytes([low, high]),
            path_bits,
            static_rate,
            flags,
            reserved,
        }
    }
}

/// Destination of a datagram.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DatagramTarget {
    /// Path to the destination.
    pub address: AddressVector,
    /// Queue pair at the destination, 24 bits.
    pub remote_qpn: U32,
    /// Q_Key; if its most significant bit is set, the sender's own Q_Key is used instead.
    pub qkey: U32,
}
assert_layout!(DatagramTarget, TARGET_LENGTH, address @ 0, remote_qpn @ 32, qkey @ 36);

/// Scatter/gather element: a range of a memory region.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Sge {
    /// Virtual address.
    pub address: U64,
    /// Length in bytes; with 0, address and key are ignored.
    pub length: U32,
    /// Key of the region.
    pub lkey: U32,
}
assert_layout!(Sge, 16, address @ 0, length @ 8, lkey @ 12);

/// First 16 bytes of a receive entry.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveHeader {
    /// The poster's ID of the request, which is returned in the completion.
    pub wr_id: U64,
    /// Number of scatter/gather elements that follow.
    pub num_sge: U16,
    /// Reserved; 0.
    pub reserved: [u8; 6],
}
assert_layout!(ReceiveHeader, 16, wr_id @ 0, num_sge @ 8);

/// Byte offset of the scatter/gather elements in a receive entry.
pub const RECEIVE_DATA_OFFSET: usize = 16;

/// Number of bytes that precede the payload of a received datagram: the global route header, or an
/// IPv4 header in the last 20 bytes.
pub const GRH_LENGTH: usize = 40;

/// Returns the stride of a queue with entries of this length; an invalid stride if they are too
/// long.
const fn stride(header: u32, data: u32) -> u32 {
    match header.saturating_add(data).checked_next_power_of_two() {
        Some(stride) => stride,
        None => 1 << 31,
    }
}

/// Returns the stride of a send queue whose entries hold `max_sge` elements and `max_inline` inline
/// bytes.
pub const fn send_stride(max_sge: u32, max_inline: u32) -> u32 {
    const HEADER: u32 = 64;
    const { assert!(HEADER as usize == SEND_DATA_OFFSET) };

    let elements = max_sge.saturating_mul(16);
    let data = if elements > max_inline {
        elements
    } else {
        max_inline
    };
    stride(HEADER, data)
}

/// Returns the stride of a send queue whose entries also hold `max_sge` elements together with
/// `max_header` bytes of the header of a [`SendOpcode::SendSegmented`].
pub const fn segmented_send_stride(max_sge: u32, max_inline: u32, max_header: u32) -> u32 {
    // The sum is exact for every length that fits an entry.
    let header = (max_header / 16).saturating_add((max_header % 16 != 0) as u32);
    let both = max_sge.saturating_add(header).saturating_mul(16);
    send_stride(max_sge, if both > max_inline { both } else { max_inline })
}

/// Returns the byte offset of the scatter/gather elements in a send entry with `header_length`
/// bytes of the header of a [`SendOpcode::SendSegmented`], or without one.
pub const fn elements_offset(header_length: u16) -> usize {
    SEND_DATA_OFFSET + (header_length as usize).next_multiple_of(16)
}

/// Returns the stride of a receive queue whose entries hold `max_sge` elements.
pub const fn receive_stride(max_sge: u32) -> u32 {
    const HEADER: u32 = 16;
    const { assert!(HEADER as usize == RECEIVE_DATA_OFFSET) };
    stride(HEADER, max_sge.saturating_mul(16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::MAX_STRIDE;

    #[test]
    fn no_ring_has_entries_that_are_too_long() {
        assert_eq!(
            (send_stride(60, 0), receive_stride(63)),
            (MAX_STRIDE, MAX_STRIDE)
        );
        assert_eq!(send_stride(0, 960), MAX_STRIDE);
        for many in [64, 1 << 28, u32::MAX] {
            assert!(send_stride(many, 0) > MAX_STRIDE && receive_stride(many) > MAX_STRIDE);
        }
        assert!(send_stride(0, u32::MAX) > MAX_STRIDE);
        assert!(segmented_send_stride(1, 0, u32::MAX) > MAX_STRIDE);
    }

    #[test]
    fn elements_and_a_header_are_together_in_an_entry() {
        assert_eq!(segmented_send_stride(4, 0, 64), 256);
        assert_eq!(segmented_send_stride(4, 0, 128), 256);
        assert_eq!(segmented_send_stride(4, 0, 129), 512);
        assert_eq!(elements_offset(0), SEND_DATA_OFFSET);
        assert_eq!((elements_offset(1), elements_offset(16)), (80, 80));
        assert_eq!(elements_offset(u16::MAX), 64 + 65536);
        assert_eq!(segmented_send_stride(4, 200, 0), send_stride(4, 200));
    }
}
