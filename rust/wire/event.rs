// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Events: what the device writes into the buffers of the event virtqueues.

use crate::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Kind of an asynchronous event; numerically the verbs event type (IBTA volume 1, 11.6.3).
    pub enum EventType: u16 {
        /// A completion queue overran or its memory failed; with the number of the CQ.
        CqError = 0,
        /// A queue pair failed; with the number of the QP.
        QpFatal = 1,
        /// The peer sent an invalid request; with the number of the QP.
        QpRequestError = 2,
        /// The peer violated an access right; with the number of the QP.
        QpAccessError = 3,
        /// A packet arrived before the queue pair was ready to send; with the number of the QP.
        CommunicationEstablished = 4,
        /// The send queue drained; with the number of the QP.
        SendQueueDrained = 5,
        /// The connection migrated to its alternate path; with the number of the QP.
        PathMigrated = 6,
        /// The connection failed to migrate to its alternate path; with the number of the QP.
        PathMigrationError = 7,
        /// The device failed and must be reset; without a number.
        DeviceFatal = 8,
        /// The port became active; with the number of the port.
        PortActive = 9,
        /// The port went down; with the number of the port.
        PortError = 10,
        /// The LID changed; with the number of the port.
        LidChange = 11,
        /// The P_Key table changed; with the number of the port.
        PkeyChange = 12,
        /// The subnet manager changed; with the number of the port.
        SmChange = 13,
        /// A shared receive queue failed; with the number of the SRQ.
        SrqError = 14,
        /// A shared receive queue has fewer receives than its limit; with the number of the SRQ.
        SrqLimitReached = 15,
        /// A queue pair in the error state took its last receive from its shared receive queue;
        /// with the number of the QP.
        LastWqeReached = 16,
        /// The subnet manager lost the registrations of its clients; with the number of the port.
        ClientReregister = 17,
        /// A GID changed; with the number of the port.
        GidChange = 18,
        /// The device needs pages of a memory region; with the key of the region. Not an event of
        /// the verbs.
        PageFault = 256,
    }
}

impl EventType {
    /// Returns the name of the event in the verbs.
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
    /// Number of the object that the event is for; 0 if there is none.
    pub number: U32,
    /// Vendor-specific reason, for diagnostics; 0 if there is none.
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
    /// Number of the completion queue that was armed.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CompletionEvent, 8, cqn @ 0);
