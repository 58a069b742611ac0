// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Commands about the device.

use crate::{U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Asks for the limits of the device.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDevice {}
command!(QueryDevice => DeviceLimits, QueryDevice, 0);

/// Limits of the device. Each is one that the device holds at that value.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceLimits {
    /// Longest memory region in bytes.
    pub max_mr_size: U64,
    /// Bit `n` set: pages of 2 to the `n` bytes may make up a page list.
    pub page_sizes: U64,
    /// Queue pairs, the GSI queue pair included.
    pub max_qp: U32,
    /// Entries of a send or a receive queue.
    pub max_qp_entries: U32,
    /// Scatter/gather elements of a send entry.
    pub max_send_sge: U32,
    /// Scatter/gather elements of a receive entry.
    pub max_recv_sge: U32,
    /// Inline bytes of a send entry.
    pub max_inline: U32,
    /// Completion queues.
    pub max_cq: U32,
    /// Entries of a completion queue.
    pub max_cq_entries: U32,
    /// Memory regions.
    pub max_mr: U32,
    /// Protection domains.
    pub max_pd: U32,
    /// Contexts, the driver's own included.
    pub max_contexts: U32,
    /// Largest `max_dest_rd_atomic` of a queue pair.
    pub max_dest_rd_atomic: U32,
    /// Largest `max_rd_atomic` of a queue pair.
    pub max_rd_atomic: U32,
    /// Longest message in bytes.
    pub max_message_size: U32,
    /// Entries of the GID table.
    pub gid_table_length: U32,
    /// Firmware version: major in bits 47 to 32, minor in 31 to 16, patch in 15 to 0.
    pub firmware_version: U64,
    /// Frequency of the clock that completions are stamped with, in kilohertz.
    pub clock_khz: U32,
    /// Pages of a fast registration; 0 without the feature.
    pub max_fast_registration_pages: U32,
    /// Memory windows; 0 without the feature.
    pub max_mw: U32,
    /// Shared receive queues; 0 without the feature.
    pub max_srq: U32,
    /// Multicast groups that have a queue pair; 0 without the feature.
    pub max_multicast_groups: U32,
    /// Queue pairs of a multicast group; 0 without the feature.
    pub max_multicast_members: U32,
    /// Sum of the queue pairs of all multicast groups; 0 without the feature.
    pub max_multicast_attachments: U32,
    /// Counter sets; 0 without the feature.
    pub max_counter_sets: U32,
    /// XRC domains; 0 without the feature.
    pub max_xrcd: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(DeviceLimits, 120, max_mr_size @ 0, page_sizes @ 8, max_qp @ 16,
    max_contexts @ 52, gid_table_length @ 68, firmware_version @ 72, clock_khz @ 80,
    max_fast_registration_pages @ 84, max_mw @ 88, max_srq @ 92, max_multicast_groups @ 96);

/// Asks for the time on the device's clock.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryClock {}
command!(QueryClock => Clock, QueryClock, 0);

/// Reply to [`QueryClock`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Clock {
    /// Time by which a completion would be stamped now.
    pub time: U64,
}
assert_layout!(Clock, 8, time @ 0);
