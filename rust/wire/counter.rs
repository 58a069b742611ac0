// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Counters of a port.

/// Defines the counters, their indices in the reply and their names.
macro_rules! counters {
    ($($(#[$meta:meta])* $variant:ident => $name:literal,)*) => {
        /// A counter. Its value is its index in [`Counters`](crate::command::Counters).
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[$meta])* $variant,)*
        }

        impl Counter {
            /// All counters, in the order of their indices.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Names of all counters in the order of their indices, as shown by `rdma statistic`.
            pub const NAMES: &'static [&'static core::ffi::CStr] = &[$($name,)*];

            /// Returns the name of the counter.
            pub const fn name(self) -> &'static core::ffi::CStr {
                Self::NAMES[self as usize]
            }
        }

        const _: () = assert!(Counter::ALL.len() <= crate::command::MAX_COUNTERS);
    };
}

counters! {
    /// Packets (local fabric: segments) sent.
    TransmitPackets => c"tx_pkts",
    /// Payload bytes sent.
    TransmitBytes => c"tx_bytes",
    /// Packets (local fabric: segments) received.
    ReceivePackets => c"rx_pkts",
    /// Payload bytes received.
    ReceiveBytes => c"rx_bytes",
    /// Send requests executed, signaled or not.
    SendRequests => c"send_requests",
    /// RDMA write requests and atomic writes executed.
    WriteRequests => c"rdma_write_requests",
    /// RDMA read requests executed.
    ReadRequests => c"rdma_read_requests",
    /// Atomic requests executed.
    AtomicRequests => c"rdma_atomic_requests",
    /// Receive requests consumed.
    ReceiveRequests => c"recv_requests",
    /// Completions written.
    Completions => c"completions",
    /// Completions with an error status other than flush.
    CompletionErrors => c"completion_errors",
    /// Completions with flush status.
    Flushes => c"completion_flushes",
    /// Completion events raised.
    CompletionEvents => c"completion_events",
    /// Asynchronous events raised.
    AsyncEvents => c"async_events",
    /// Local ACK timeouts.
    Timeouts => c"local_ack_timeout_err",
    /// Packets retransmitted.
    Retransmits => c"retransmitted_pkts",
    /// Requests that failed after all retries.
    RetryExceeded => c"retry_exceeded_err",
    /// Requests that failed after all RNR retries.
    RnrRetryExceeded => c"rnr_retry_exceeded_err",
    /// RNR NAKs sent.
    RnrNaksSent => c"rnr_nak_sent",
    /// RNR NAKs received.
    RnrNaksReceived => c"rnr_nak_retry_err",
    /// Sequence error NAKs sent.
    SequenceNaksSent => c"out_of_sequence",
    /// Sequence error NAKs received.
    SequenceNaksReceived => c"packet_seq_err",
    /// Requests received more than once.
    DuplicateRequests => c"duplicate_request",
    /// Remote access errors detected as responder.
    RemoteAccessErrors => c"resp_remote_access_errors",
    /// Invalid requests detected as responder.
    RemoteInvalidRequests => c"resp_remote_invalid_requests",
    /// Local protection errors of work requests.
    LocalProtectionErrors => c"local_protection_errors",
    /// Packets dropped: no such queue pair, wrong state, wrong peer, bad Q_Key or no receive.
    Dropped => c"rx_dropped",
    /// Doorbell writes received.
    Doorbells => c"doorbells",
    /// Doorbell writes and pending bits for a slot that does not exist in the context.
    InvalidDoorbells => c"invalid_doorbells",
    /// Control commands executed.
    Commands => c"commands",
    /// Control commands rejected.
    CommandErrors => c"command_errors",
    /// Local operations executed: invalidations, fast registrations and binds.
    LocalRequests => c"local_requests",
    /// Packets dropped for a wrong invariant CRC.
    IcrcErrors => c"rx_icrc_encapsulated",
    /// Packets dropped for invalid headers, or because they were for none of the GIDs.
    MalformedPackets => c"rx_malformed",
    /// Packets received that a switch had marked for congestion.
    MarkedPackets => c"np_ecn_marked_roce_packets",
    /// Congestion notifications sent.
    NotificationsSent => c"np_cnp_sent",
    /// Congestion notifications received and obeyed.
    NotificationsHandled => c"rp_cnp_handled",
    /// Flush requests executed.
    FlushRequests => c"flush_requests",
    /// Page faults passed to the driver.
    PageFaults => c"page_faults",
    /// Pages that the driver took back.
    PageInvalidations => c"page_invalidations",
}
