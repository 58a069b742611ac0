// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for queue pairs.

use super::Empty;
use crate::{
    memory::PageList,
    qp::{AlternatePath, QpAttributes},
    ring::RingLayout,
    U16, U32,
};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`CreateQp::flags`].
pub mod qp_flags {
    /// Every send generates a completion.
    pub const SIGNAL_ALL: u8 = 1 << 0;
    /// Receives come from a shared receive queue.
    pub const SHARED_RECEIVE_QUEUE: u8 = 1 << 1;
    /// Frames are received without their VLAN tag, which the completion contains.
    pub const STRIP_VLAN: u8 = 1 << 2;
    /// Frames are received with their frame check sequence.
    pub const APPEND_FCS: u8 = 1 << 3;
    /// The queue pair gets no copy of a datagram to a group that it sent itself.
    pub const BLOCK_OWN_MULTICAST: u8 = 1 << 4;
}

/// Creates a queue pair, in the reset state.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    /// Context that owns the queue pair and through which its doorbells are rung. For an
    /// [`XrcTarget`](crate::qp::QpType::XrcTarget) it is 0, like `pd`, `send_cqn`, `recv_cqn` and
    /// both rings.
    pub context: U32,
    /// Protection domain.
    pub pd: U32,
    /// A [`QpType`](crate::qp::QpType).
    pub qp_type: u8,
    /// [`qp_flags`].
    pub flags: u8,
    /// Maximum scatter/gather elements of a send entry.
    pub max_send_sge: U16,
    /// Maximum scatter/gather elements of a receive entry.
    pub max_recv_sge: U16,
    /// Maximum inline bytes of a send entry.
    pub max_inline: U16,
    /// Completion queue of the sends; 0 for a
    /// [`ReceiveQueue`](crate::qp::QpType::ReceiveQueue).
    pub send_cqn: U32,
    /// Completion queue of the receives; 0 for an
    /// [`XrcInitiator`](crate::qp::QpType::XrcInitiator).
    pub recv_cqn: U32,
    /// The send queue; absent if there will be no sends.
    pub send_ring: RingLayout,
    /// The receive queue; absent if there will be no receives.
    pub recv_ring: RingLayout,
    /// Buffer of both rings, zeroed by the driver; offset 0.
    pub pages: PageList,
    /// The shared receive queue, with [`qp_flags::SHARED_RECEIVE_QUEUE`]; otherwise 0.
    pub srqn: U32,
    /// The XRC domain of an [`XrcTarget`](crate::qp::QpType::XrcTarget); otherwise 0.
    pub xrcdn: U32,
}
command!(CreateQp => QpCreated, CreateQp, 96);

/// Reply to [`CreateQp`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpCreated {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Doorbell slot of the queue pair in its context; 0 if it has none.
    pub slot: U32,
}
assert_layout!(QpCreated, 8, qpn @ 0, slot @ 4);

/// Length of a [`CreateScalingQp::key`] in bytes.
pub const HASH_KEY_LENGTH: usize = 40;

/// Maximum number of entries of a [`CreateScalingQp::queues`].
pub const MAX_SCALING_ENTRIES: usize = 64;

/// Bits of [`CreateScalingQp::fields`]; numerically those of the verbs.
pub mod hash_fields {
    /// Source address of IPv4.
    pub const SOURCE_IPV4: u32 = 1 << 0;
    /// Destination address of IPv4.
    pub const DESTINATION_IPV4: u32 = 1 << 1;
    /// Source address of IPv6.
    pub const SOURCE_IPV6: u32 = 1 << 2;
    /// Destination address of IPv6.
    pub const DESTINATION_IPV6: u32 = 1 << 3;
    /// Source port of TCP.
    pub const SOURCE_TCP: u32 = 1 << 4;
    /// Destination port of TCP.
    pub const DESTINATION_TCP: u32 = 1 << 5;
    /// Source port of UDP.
    pub const SOURCE_UDP: u32 = 1 << 6;
    /// Destination port of UDP.
    pub const DESTINATION_UDP: u32 = 1 << 7;
    /// The addresses of IPv4.
    pub const IPV4: u32 = SOURCE_IPV4 | DESTINATION_IPV4;
    /// The addresses of IPv6.
    pub const IPV6: u32 = SOURCE_IPV6 | DESTINATION_IPV6;
    /// The ports of TCP.
    pub const TCP: u32 = SOURCE_TCP | DESTINATION_TCP;
    /// The ports of UDP.
    pub const UDP: u32 = SOURCE_UDP | DESTINATION_UDP;
    /// All bits with a meaning.
    pub const ALL: u32 = IPV4 | IPV6 | TCP | UDP;
}

/// Creates a queue pair of the type [`ReceiveScaling`](crate::qp::QpType::ReceiveScaling). A hash
/// of the selected fields chooses the queue for each frame.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateScalingQp {
    /// Context that owns the queue pair and the queues.
    pub context: U32,
    /// Protection domain of the queue pair. Those of the queues may be others.
    pub pd: U32,
    /// [`hash_fields`].
    pub fields: U32,
    /// Number of entries, a power of two.
    pub entries: U32,
    /// Key of the Toeplitz hash.
    pub key: [u8; HASH_KEY_LENGTH],
    /// Queues of the type [`ReceiveQueue`](crate::qp::QpType::ReceiveQueue), not necessarily
    /// different ones. Those from `entries` on are reserved; 0.
    pub queues: [U32; MAX_SCALING_ENTRIES],
}
command!(CreateScalingQp => QpCreated, CreateScalingQp, 312);

/// Changes attributes of a queue pair, in particular its state.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The attributes.
    pub attributes: QpAttributes,
}
command!(ModifyQp => Empty, ModifyQp, 104);

/// Queries the attributes of a queue pair.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryQp => QpAttributes, QueryQp, 8);

/// [`ModifyQp`] with an alternate path. Needs
/// [`F_PATH_MIGRATION`](crate::config::F_PATH_MIGRATION).
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQpPaths {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The attributes.
    pub attributes: QpAttributes,
    /// The alternate path, with [`ALTERNATE_PATH`](crate::qp::attribute::ALTERNATE_PATH) in the
    /// mask of the attributes; ignored otherwise.
    pub alternate: AlternatePath,
}
command!(ModifyQpPaths => Empty, ModifyQpPaths, 144);

/// [`QueryQp`] with the alternate path. Needs
/// [`F_PATH_MIGRATION`](crate::config::F_PATH_MIGRATION).
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryQpPaths {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryQpPaths => QpPaths, QueryQpPaths, 8);

/// Reply to [`QueryQpPaths`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpPaths {
    /// The attributes.
    pub attributes: QpAttributes,
    /// The alternate path; all 0 if none was loaded since the queue pair was reset.
    pub alternate: AlternatePath,
}
assert_layout!(QpPaths, 136, attributes @ 0, alternate @ 96);

/// Destroys a queue pair; `Busy` if frames of another one go to it. No event and no completion of
/// the queue pair follows the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyQp => Empty, DestroyQp, 8);
