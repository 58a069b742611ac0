// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Limits of a device.

use crate::{rate::MAX_QP_RATE, tcp_segments::MAX_PAYLOAD};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    command::{DeviceLimits, MAX_SCALING_ENTRIES},
    config, memory, notify, ring,
};

/// Limits of a device. The device enforces exactly these values. A configuration that omits one gets the default.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Longest memory region in bytes.
    pub mr_size: u64,
    /// Number of queue pairs, including the GSI queue pair; at most 65536.
    pub qp: u32,
    /// Number of entries of a send or receive queue.
    pub qp_entries: u32,
    /// Number of scatter/gather elements of a send entry; at most 60.
    pub send_sge: u32,
    /// Number of scatter/gather elements of a receive entry; at most 63.
    pub recv_sge: u32,
    /// Number of inline bytes of a send entry; at most 960.
    pub inline: u32,
    /// Number of completion queues; at most 65536.
    pub cq: u32,
    /// Number of entries of a completion queue.
    pub cq_entries: u32,
    /// Number of memory regions; at most 4194304.
    pub mr: u32,
    /// Number of pages of a fast registration, and of elements of data and of metadata of an integrity region; at most
    /// 4096.
    pub fast_registration_pages: u32,
    /// Number of memory windows; at most 4194304.
    pub mw: u32,
    /// Number of shared receive queues; at most 65536.
    pub srq: u32,
    /// Number of protection domains; at most 65536.
    pub pd: u32,
    /// Number of contexts, including the driver's own; at most 65536.
    pub contexts: u32,
    /// Largest `max_dest_rd_atomic` of a queue pair.
    pub dest_rd_atomic: u32,
    /// Largest `max_rd_atomic` of a queue pair.
    pub rd_atomic: u32,
    /// Number of entries of the GID table; at most 256.
    pub gid_table: u32,
    /// Number of multicast groups with members.
    pub multicast_groups: u32,
    /// Number of queue pairs of a multicast group; at most 1024.
    pub multicast_members: u32,
    /// Number of queue pairs of all multicast groups together; at most 4194304.
    pub multicast_attachments: u32,
    /// Number of counter sets; at most 65536.
    pub counter_sets: u32,
    /// Number of host ranges that all page lists together may need. This limits the memory of the device.
    pub translations: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            mr_size: 1 << 35,
            qp: 65536,
            qp_entries: 32768,
            send_sge: 32,
            recv_sge: 32,
            inline: 960,
            cq: 65536,
            cq_entries: 1 << 20,
            mr: 1 << 20,
            fast_registration_pages: 512,
            mw: 1 << 20,
            srq: 65536,
            pd: 65536,
            contexts: 4096,
            dest_rd_atomic: 128,
            rd_atomic: 128,
            gid_table: 256,
            multicast_groups: 2048,
            multicast_members: 64,
            multicast_attachments: 8192,
            counter_sets: 4096,
            translations: 1 << 23,
        }
    }
}

/// Negotiated optional features.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Features {
    /// [`config::F_MEMORY_EXTENSIONS`].
    pub memory_extensions: bool,
    /// [`config::F_MEMORY_WINDOWS`].
    pub memory_windows: bool,
    /// [`config::F_REREGISTRATION`].
    pub reregistration: bool,
    /// [`config::F_SHARED_RECEIVE_QUEUES`].
    pub shared_receive_queues: bool,
    /// [`config::F_MEMORY_PLACEMENT`].
    pub memory_placement: bool,
    /// [`config::F_COMPLETION_QUEUE_CHANGES`].
    pub completion_queue_changes: bool,
    /// [`config::F_MULTICAST`].
    pub multicast: bool,
    /// [`config::F_PORT_STATE`].
    pub port_state: bool,
    /// [`config::F_ON_DEMAND_PAGING`].
    pub on_demand_paging: bool,
    /// [`config::F_NULL_KEY`].
    pub null_key: bool,
    /// [`config::F_COUNTER_SETS`].
    pub counter_sets: bool,
    /// [`config::F_UNRELIABLE_CONNECTIONS`].
    pub unreliable_connections: bool,
    /// [`config::F_XRC`].
    pub xrc: bool,
    /// [`config::F_CLOCK`].
    pub clock: bool,
    /// [`config::F_IGNORED_OVERRUN`].
    pub ignored_overrun: bool,
    /// [`config::F_CONTEXT_NAMES`].
    pub context_names: bool,
    /// [`config::F_NESTED_PAGING`].
    pub nested_paging: bool,
    /// [`config::F_PATH_MIGRATION`].
    pub path_migration: bool,
    /// [`config::F_RATE_LIMITS`].
    pub rate_limits: bool,
    /// [`config::F_RAW_PACKETS`].
    pub raw_packets: bool,
    /// [`config::F_CHECKSUMS`].
    pub checksums: bool,
    /// [`config::F_SEGMENTATION`].
    pub segmentation: bool,
    /// [`config::F_RECEIVE_SCALING`].
    pub receive_scaling: bool,
    /// [`config::F_RECEIVE_OPTIONS`].
    pub receive_options: bool,
    /// [`config::F_FLOW_COUNTERS`].
    pub flow_counters: bool,
    /// [`config::F_COMPLETION_COUNTERS`].
    pub completion_counters: bool,
    /// [`config::F_TUNNEL_FLOWS`].
    pub tunnel_flows: bool,
    /// [`config::F_INTEGRITY`].
    pub integrity: bool,
}

impl Features {
    /// All features.
    pub const ALL: Self = Self {
        memory_extensions: true,
        memory_windows: true,
        reregistration: true,
        shared_receive_queues: true,
        memory_placement: true,
        completion_queue_changes: true,
        multicast: true,
        port_state: true,
        on_demand_paging: true,
        null_key: true,
        counter_sets: true,
        unreliable_connections: true,
        xrc: true,
        clock: true,
        ignored_overrun: true,
        context_names: true,
        nested_paging: true,
        path_migration: true,
        rate_limits: true,
        raw_packets: true,
        checksums: true,
        segmentation: true,
        receive_scaling: true,
        receive_options: true,
        flow_counters: true,
        completion_counters: true,
        tunnel_flows: true,
        integrity: true,
    };

    /// Decodes feature bits as negotiated by the transport. Others have no meaning here.
    pub const fn from_bits(bits: u64) -> Self {
        Self {
            memory_extensions: bits & 1 << config::F_MEMORY_EXTENSIONS != 0,
            memory_windows: bits & 1 << config::F_MEMORY_WINDOWS != 0,
            reregistration: bits & 1 << config::F_REREGISTRATION != 0,
            shared_receive_queues: bits & 1 << config::F_SHARED_RECEIVE_QUEUES != 0,
            memory_placement: bits & 1 << config::F_MEMORY_PLACEMENT != 0,
            completion_queue_changes: bits & 1 << config::F_COMPLETION_QUEUE_CHANGES != 0,
            multicast: bits & 1 << config::F_MULTICAST != 0,
            port_state: bits & 1 << config::F_PORT_STATE != 0,
            on_demand_paging: bits & 1 << config::F_ON_DEMAND_PAGING != 0,
            null_key: bits & 1 << config::F_NULL_KEY != 0,
            counter_sets: bits & 1 << config::F_COUNTER_SETS != 0,
            unreliable_connections: bits & 1 << config::F_UNRELIABLE_CONNECTIONS != 0,
            xrc: bits & 1 << config::F_XRC != 0,
            clock: bits & 1 << config::F_CLOCK != 0,
            ignored_overrun: bits & 1 << config::F_IGNORED_OVERRUN != 0,
            context_names: bits & 1 << config::F_CONTEXT_NAMES != 0,
            nested_paging: bits & 1 << config::F_NESTED_PAGING != 0,
            path_migration: bits & 1 << config::F_PATH_MIGRATION != 0,
            rate_limits: bits & 1 << config::F_RATE_LIMITS != 0,
            raw_packets: bits & 1 << config::F_RAW_PACKETS != 0,
            checksums: bits & 1 << config::F_CHECKSUMS != 0,
            segmentation: bits & 1 << config::F_SEGMENTATION != 0,
            receive_scaling: bits & 1 << config::F_RECEIVE_SCALING != 0,
            receive_options: bits & 1 << config::F_RECEIVE_OPTIONS != 0,
            flow_counters: bits & 1 << config::F_FLOW_COUNTERS != 0,
            completion_counters: bits & 1 << config::F_COMPLETION_COUNTERS != 0,
            tunnel_flows: bits & 1 << config::F_TUNNEL_FLOWS != 0,
            integrity: bits & 1 << config::F_INTEGRITY != 0,
        }
    }

    /// Returns the feature bits.
    pub const fn bits(self) -> u64 {
        (self.memory_extensions as u64) << config::F_MEMORY_EXTENSIONS
            | (self.memory_windows as u64) << config::F_MEMORY_WINDOWS
            | (self.reregistration as u64) << config::F_REREGISTRATION
            | (self.shared_receive_queues as u64) << config::F_SHARED_RECEIVE_QUEUES
            | (self.memory_placement as u64) << config::F_MEMORY_PLACEMENT
            | (self.completion_queue_changes as u64) << config::F_COMPLETION_QUEUE_CHANGES
            | (self.multicast as u64) << config::F_MULTICAST
            | (self.port_state as u64) << config::F_PORT_STATE
            | (self.on_demand_paging as u64) << config::F_ON_DEMAND_PAGING
            | (self.null_key as u64) << config::F_NULL_KEY
            | (self.counter_sets as u64) << config::F_COUNTER_SETS
            | (self.unreliable_connections as u64) << config::F_UNRELIABLE_CONNECTIONS
            | (self.xrc as u64) << config::F_XRC
            | (self.clock as u64) << config::F_CLOCK
            | (self.ignored_overrun as u64) << config::F_IGNORED_OVERRUN
            | (self.context_names as u64) << config::F_CONTEXT_NAMES
            | (self.nested_paging as u64) << config::F_NESTED_PAGING
            | (self.path_migration as u64) << config::F_PATH_MIGRATION
            | (self.rate_limits as u64) << config::F_RATE_LIMITS
            | (self.raw_packets as u64) << config::F_RAW_PACKETS
            | (self.checksums as u64) << config::F_CHECKSUMS
            | (self.segmentation as u64) << config::F_SEGMENTATION
            | (self.receive_scaling as u64) << config::F_RECEIVE_SCALING
            | (self.receive_options as u64) << config::F_RECEIVE_OPTIONS
            | (self.flow_counters as u64) << config::F_FLOW_COUNTERS
            | (self.completion_counters as u64) << config::F_COMPLETION_COUNTERS
            | (self.tunnel_flows as u64) << config::F_TUNNEL_FLOWS
            | (self.integrity as u64) << config::F_INTEGRITY
    }

    /// Returns whether there are extended reliable connections, which need shared receive queues.
    pub(crate) const fn has_xrc(self) -> bool {
        self.xrc && self.shared_receive_queues
    }

    /// Returns whether the device divides TCP packets, which needs checksums.
    pub(crate) const fn has_segmentation(self) -> bool {
        self.segmentation && self.checksums
    }

    /// Returns whether there are integrity regions, which need the memory extensions.
    pub(crate) const fn has_integrity(self) -> bool {
        self.integrity && self.memory_extensions
    }

    /// Returns whether the frames of a flow can be distributed, which needs raw packets.
    pub(crate) const fn has_receive_scaling(self) -> bool {
        self.receive_scaling && self.raw_packets
    }
}

/// Longest message in bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// Largest number of XRC domains of a device.
pub const MAX_XRCDS: u32 = 65536;

/// Largest number of completion counters of a device.
pub const MAX_COMPLETION_COUNTERS: u32 = 4096;

/// Frequency of the clock for completion timestamps: they are in nanoseconds.
pub const CLOCK_KHZ: u32 = 1_000_000;

impl Limits {
    /// Returns these limits, restricted to what the formats and the engine support.
    #[must_use]
    pub fn clamped(self) -> Self {
        let max_sge = |header: usize| (ring::MAX_STRIDE - header as u32) / 16;
        Self {
            qp: self.qp.clamp(2, notify::MAX_SLOTS),
            qp_entries: self.qp_entries.clamp(1, ring::MAX_ENTRIES),
            send_sge: self
                .send_sge
                .clamp(1, max_sge(vrnic_wire::work::SEND_DATA_OFFSET)),
            recv_sge: self
                .recv_sge
                .clamp(1, max_sge(vrnic_wire::work::RECEIVE_DATA_OFFSET)),
            inline: self
                .inline
                .min(ring::MAX_STRIDE - vrnic_wire::work::SEND_DATA_OFFSET as u32),
            cq: self.cq.clamp(1, 65536),
            cq_entries: self.cq_entries.clamp(1, ring::MAX_ENTRIES),
            // Regions are identified by 24 bits of the key, most of whose values must be free.
            mr: self.mr.clamp(1, 1 << 22),
            fast_registration_pages: self.fast_registration_pages.clamp(1, 4096),
            mw: self.mw.clamp(1, 1 << 22),
            srq: self.srq.clamp(1, 65536),
            pd: self.pd.clamp(1, 65536),
            contexts: self.contexts.clamp(1, 65536),
            dest_rd_atomic: self.dest_rd_atomic.min(255),
            rd_atomic: self.rd_atomic.min(255),
            gid_table: self.gid_table.clamp(1, 256),
            // Each datagram is copied this many times.
            multicast_members: self.multicast_members.clamp(1, 1024),
            multicast_attachments: self.multicast_attachments.clamp(1, 1 << 22),
            multicast_groups: self.multicast_groups.clamp(1, 1 << 22),
            counter_sets: self.counter_sets.clamp(1, 65536),
            ..self
        }
    }

    /// Returns the limits as the device reports them.
    pub(crate) fn report(&self, features: Features) -> DeviceLimits {
        let page_sizes = (u64::MAX << memory::MIN_PAGE_SHIFT)
            & (u64::MAX >> (63 - u32::from(memory::MAX_PAGE_SHIFT)));
        let multicast = |limit| if features.multicast { limit } else { 0 };
        DeviceLimits {
            max_mr_size: self.mr_size.into(),
            page_sizes: page_sizes.into(),
            max_qp: self.qp.into(),
            max_qp_entries: self.qp_entries.into(),
            max_send_sge: self.send_sge.into(),
            max_recv_sge: self.recv_sge.into(),
            max_inline: self.inline.into(),
            max_cq: self.cq.into(),
            max_cq_entries: self.cq_entries.into(),
            max_mr: self.mr.into(),
            max_pd: self.pd.into(),
            max_contexts: self.contexts.into(),
            max_dest_rd_atomic: self.dest_rd_atomic.into(),
            max_rd_atomic: self.rd_atomic.into(),
            max_message_size: MAX_MESSAGE.into(),
            gid_table_length: self.gid_table.into(),
            firmware_version: firmware_version().into(),
            clock_khz: CLOCK_KHZ.into(),
            max_fast_registration_pages: if features.memory_extensions {
                self.fast_registration_pages.into()
            } else {
                0.into()
            },
            max_mw: if features.memory_windows {
                self.mw.into()
            } else {
                0.into()
            },
            max_srq: if features.shared_receive_queues {
                self.srq.into()
            } else {
                0.into()
            },
            max_multicast_groups: multicast(self.multicast_groups).into(),
            max_multicast_members: multicast(self.multicast_members).into(),
            max_multicast_attachments: multicast(self.multicast_attachments).into(),
            max_counter_sets: if features.counter_sets {
                self.counter_sets.into()
            } else {
                0.into()
            },
            max_xrcd: if features.has_xrc() { MAX_XRCDS } else { 0 }.into(),
            max_rate_limit: if features.rate_limits { MAX_QP_RATE } else { 0 }.into(),
            max_segmented_length: if features.has_segmentation() {
                MAX_PAYLOAD.into()
            } else {
                0.into()
            },
            max_scaling_entries: if features.has_receive_scaling() {
                MAX_SCALING_ENTRIES as u32
            } else {
                0
            }
            .into(),
            max_completion_counters: if features.completion_counters {
                MAX_COMPLETION_COUNTERS.into()
            } else {
                0.into()
            },
        }
    }
}

/// Returns the version of this crate in the device's format.
fn firmware_version() -> u64 {
    let number = |text: &str| text.parse::<u16>().map_or(0, u64::from);
    number(env!("CARGO_PKG_VERSION_MAJOR")) << 32
        | number(env!("CARGO_PKG_VERSION_MINOR")) << 16
        | number(env!("CARGO_PKG_VERSION_PATCH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_need_no_clamping() {
        assert_eq!(Limits::default().clamped(), Limits::default());
    }

    #[test]
    fn features_survive_the_transport() {
        assert_eq!(Features::from_bits(Features::ALL.bits()), Features::ALL);
        assert_eq!(Features::from_bits(0).bits(), 0);
    }

    #[test]
    fn largest_entries_fit_their_stride() {
        let limits = Limits::default();
        let send = vrnic_wire::work::send_stride(limits.send_sge, limits.inline);
        let receive = vrnic_wire::work::receive_stride(limits.recv_sge);
        assert!(send <= ring::MAX_STRIDE && receive <= ring::MAX_STRIDE);
    }
}
