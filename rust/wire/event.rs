// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Events: what the device writes into the buffers of the event virtqueues.

use crate::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Kind of an asynchronous event; numerically the verbs event type (IBTA volume 1, 11.6.3).
    pub enum EventType: u16 {
        /// A completion queue overran or its memory failed; names the CQ.
        CqError = 0,
        /// A queue pair failed; names the QP.
        QpFatal = 1,
        /// The peer sent an invalid request; names the QP.
        QpRequestError = 2,
        /// The peer violated an access right; names the QP.
        QpAccessError = 3,
        /// The first message came before the queue pair was ready to send; names the QP.
        CommunicationEstablished = 4,
        /// The send queue drained; names the QP.
        SendQueueDrained = 5,
        /// The connection went over to its alternate path; names the QP.
        PathMigrated = 6,
        /// The connection could not go over to its alternate path; names the QP.
        PathMigrationError = 7,
        /// The device failed and must be reset; names nothing.
        DeviceFatal = 8,
        /// The port became active; names the port.
        PortActive = 9,
        /// The port went down; names the port.
        PortError = 10,
        /// The LID changed; names the port.
        LidChange = 11,
        /// The P_Key table changed; names the port.
        PkeyChange = 12,
        /// The subnet manager changed; names the port.
        SmChange = 13,
        /// A shared receive queue failed; names the SRQ.
        SrqError = 14,
        /// A shared receive queue has fewer receives than its limit; names the SRQ.
        SrqLimitReached = 15,
        /// The last receive of a queue pair in error that uses a shared queue; names the QP.
        LastWqeReached = 16,
        /// The subnet manager forgot what clients had registered; names the port.
        ClientReregister = 17,
        /// A GID changed; names the port.
        GidChange = 18,
        /// The device needs pages of a memory region; names its key. Not an event of the verbs.
        PageFault = 256,
    }
}

impl EventType {
    /// Its name in the verbs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CqError => "IBV_EVENT_CQ_ERR",
            Self::QpFatal => "IBV_EVENT_QP_FATAL",
            Self::QpRequestError => "IBV_EVENT_QP_REQ_ERR",
            Self::QpAccessError => "IBV_EVENT_QP_ACCESS_ERR",
            Self::CommunicationEstablished => "IBV_EVENT_COMM_EST",
            Self::SendQueueDrained => "IBV_EVENT_SQ_DRAINED",
            Self::PathMigrated => "IBV_EVENT_PATH_MIG",
            Self::PathMigrationError => "IBV_EVENT_PATH_MIG_ERR",
            Self::DeviceFatal => "IBV_EVENT_DEVICE_FATAL",
            Self::PortActive => "IBV_EVENT_PORT_ACTIVE",
            Self::PortError => "IBV_EVENT_PORT_ERR",
            Self::LidChange => "IBV_EVENT_LID_CHANGE",
            Self::PkeyChange => "IBV_EVENT_PKEY_CHANGE",
            Self::SmChange => "IBV_EVENT_SM_CHANGE",
            Self::SrqError => "IBV_EVENT_SRQ_ERR",
            Self::SrqLimitReached => "IBV_EVENT_SRQ_LIMIT_REACHED",
            Self::LastWqeReached => "IBV_EVENT_QP_LAST_WQE_REACHED",
            Self::ClientReregister => "IBV_EVENT_CLIENT_REREGISTER",
            Self::GidChange => "IBV_EVENT_GID_CHANGE",
            Self::PageFault => "page fault",
        }
    }
}

/// An asynchronous event, as the device writes it to a buffer of the async event queue.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AsyncEvent {
    /// An [`EventType`].
    pub event_type: U16,
    /// Reserved; 0.
    pub reserved: U16,
    /// Number of the object that the event type names; 0 if it names nothing.
    pub number: U32,
    /// Device's reason, for people; 0 if none.
    pub vendor_error: U32,
    /// Reserved; 0.
    pub reserved_tail: U32,
}
assert_layout!(AsyncEvent, 16, event_type @ 0, number @ 4, vendor_error @ 8);

/// A completion event, as the device writes it to a buffer of a completion event queue.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct CompletionEvent {
    /// Completion queue that was armed.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CompletionEvent, 8, cqn @ 0);
