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
    /// Completion queue of the sends.
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

/// Destroys a queue pair. No event and no completion of the queue pair follows the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyQp => Empty, DestroyQp, 8);
