// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands for the device.

use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Queries the limits of the device.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDevice {}
command!(QueryDevice => DeviceLimits, QueryDevice, 0, shortest_reply = 112);

/// Limits of the device. The device supports each limit at the given value.
///
/// Later features add limits at the end. Each limit after the first 112 bytes belongs to a feature
/// and may be missing at the other side.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceLimits {
    /// Maximum length of a memory region in bytes.
    pub max_mr_size: U64,
    /// Page sizes for page lists: bit `n` set means 2 to the power of `n` bytes.
    pub page_sizes: U64,
    /// Maximum number of queue pairs, including the GSI queue pair.
    pub max_qp: U32,
    /// Maximum number of entries of a send or a receive queue.
    pub max_qp_entries: U32,
    /// Maximum scatter/gather elements of a send entry.
    pub max_send_sge: U32,
    /// Maximum scatter/gather elements of a receive entry.
    pub max_recv_sge: U32,
    /// Maximum inline bytes of a send entry.
    pub max_inline: U32,
    /// Maximum number of completion queues.
    pub max_cq: U32,
    /// Maximum number of entries of a completion queue.
    pub max_cq_entries: U32,
    /// Maximum number of memory regions.
    pub max_mr: U32,
    /// Maximum number of protection domains.
    pub max_pd: U32,
    /// Maximum number of contexts, including the driver's own.
    pub max_contexts: U32,
    /// Maximum `max_dest_rd_atomic` of a queue pair.
    pub max_dest_rd_atomic: U32,
    /// Maximum `max_rd_atomic` of a queue pair.
    pub max_rd_atomic: U32,
    /// Maximum message length in bytes.
    pub max_message_size: U32,
    /// Length of the GID table.
    pub gid_table_length: U32,
    /// Firmware version: major in bits 47 to 32, minor in 31 to 16, patch in 15 to 0.
    pub firmware_version: U64,
    /// Frequency of the clock of completion timestamps in kHz.
    pub clock_khz: U32,
    /// Maximum number of pages of a fast registration; 0 without the feature.
    pub max_fast_registration_pages: U32,
    /// Maximum number of memory windows; 0 without the feature.
    pub max_mw: U32,
    /// Maximum number of shared receive queues; 0 without the feature.
    pub max_srq: U32,
    /// Maximum number of multicast groups with members; 0 without the feature.
    pub max_multicast_groups: U32,
    /// Maximum number of queue pairs in a multicast group; 0 without the feature.
    pub max_multicast_members: U32,
    /// Maximum number of queue pairs in all multicast groups together; 0 without the feature.
    pub max_multicast_attachments: U32,
    /// Maximum number of counter sets; 0 without the feature.
    pub max_counter_sets: U32,
    /// Maximum number of XRC domains; 0 without the feature.
    pub max_xrcd: U32,
    /// Maximum rate limit of a queue pair in kbit/s; 0 without the feature.
    pub max_rate_limit: U32,
    /// Maximum payload of a send in segments in bytes; 0 without the feature.
    pub max_segmented_length: U32,
    /// Maximum number of entries of a [`CreateScalingQp`](super::CreateScalingQp); 0 without the
    /// feature.
    pub max_scaling_entries: U32,
    /// Maximum number of completion counters; 0 without the feature.
    pub max_completion_counters: U32,
}
assert_layout!(DeviceLimits, 132, max_mr_size @ 0, page_sizes @ 8, max_qp @ 16,
    max_contexts @ 52, gid_table_length @ 68, firmware_version @ 72, clock_khz @ 80,
    max_fast_registration_pages @ 84, max_mw @ 88, max_srq @ 92, max_multicast_groups @ 96,
    max_rate_limit @ 116, max_segmented_length @ 120,
    max_scaling_entries @ 124, max_completion_counters @ 128);

/// Queries the time of the device's clock.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryClock {}
command!(QueryClock => Clock, QueryClock, 0);

/// Reply to [`QueryClock`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Clock {
    /// Time in the unit and on the clock of completion timestamps.
    pub time: U64,
}
assert_layout!(Clock, 8, time @ 0);
