// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Features of a device, which it offers unless the configuration disables them.

use serde::Deserialize;
use vrnic_engine::Features;
use vrnic_wire::config;

/// An optional feature of the device (Documentation/virtio-rdma.rst, "Feature bits").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// Fast registration and invalidation of memory regions.
    MemoryExtensions,
    /// Memory windows.
    MemoryWindows,
    /// Changes to the memory, rights or protection domain of regions.
    Reregistration,
    /// Shared receive queues.
    SharedReceiveQueues,
    /// FLUSH and ATOMIC WRITE.
    MemoryPlacement,
    /// Changes to the size or moderation of completion queues.
    CompletionQueueChanges,
    /// Multicast groups.
    Multicast,
    /// Control of the port state by the driver.
    PortState,
    /// On-demand paging.
    OnDemandPaging,
    /// The null key.
    NullKey,
    /// Counters for individual queue pairs.
    CounterSets,
    /// UC queue pairs.
    UnreliableConnections,
    /// Extended reliable connections.
    Xrc,
    /// Timestamps in completions.
    Clock,
    /// Completion queues that ignore overruns.
    IgnoredOverrun,
    /// Names of the processes to which contexts belong.
    ContextNames,
    /// Regions that cover a whole address space.
    NestedPaging,
    /// Alternate paths of connections.
    PathMigration,
    /// Rate limits of queue pairs.
    RateLimits,
    /// Queue pairs for whole Ethernet frames, and flows.
    RawPackets,
    /// Checksums of IP packets.
    Checksums,
    /// Division of TCP packets, which needs checksums.
    Segmentation,
    /// Receive queues among which frames are distributed, which need raw packets.
    ReceiveScaling,
    /// Removal of VLAN tags, frame check sequences, and no own datagrams to groups.
    ReceiveOptions,
    /// Counters of flows, which need raw packets.
    FlowCounters,
    /// Completion counters.
    CompletionCounters,
    /// Tunnels, drops and tags of flows, which need raw packets.
    TunnelFlows,
    /// Integrity regions, which need the memory extensions.
    Integrity,
}

impl Feature {
    /// Number of the feature bit.
    const fn bit(self) -> u32 {
        match self {
            Self::MemoryExtensions => config::F_MEMORY_EXTENSIONS,
            Self::MemoryWindows => config::F_MEMORY_WINDOWS,
            Self::Reregistration => config::F_REREGISTRATION,
            Self::SharedReceiveQueues => config::F_SHARED_RECEIVE_QUEUES,
            Self::MemoryPlacement => config::F_MEMORY_PLACEMENT,
            Self::CompletionQueueChanges => config::F_COMPLETION_QUEUE_CHANGES,
            Self::Multicast => config::F_MULTICAST,
            Self::PortState => config::F_PORT_STATE,
            Self::OnDemandPaging => config::F_ON_DEMAND_PAGING,
            Self::NullKey => config::F_NULL_KEY,
            Self::CounterSets => config::F_COUNTER_SETS,
            Self::UnreliableConnections => config::F_UNRELIABLE_CONNECTIONS,
            Self::Xrc => config::F_XRC,
            Self::Clock => config::F_CLOCK,
            Self::IgnoredOverrun => config::F_IGNORED_OVERRUN,
            Self::ContextNames => config::F_CONTEXT_NAMES,
            Self::NestedPaging => config::F_NESTED_PAGING,
            Self::PathMigration => config::F_PATH_MIGRATION,
            Self::RateLimits => config::F_RATE_LIMITS,
            Self::RawPackets => config::F_RAW_PACKETS,
            Self::Checksums => config::F_CHECKSUMS,
            Self::Segmentation => config::F_SEGMENTATION,
            Self::ReceiveScaling => config::F_RECEIVE_SCALING,
            Self::ReceiveOptions => config::F_RECEIVE_OPTIONS,
            Self::FlowCounters => config::F_FLOW_COUNTERS,
            Self::CompletionCounters => config::F_COMPLETION_COUNTERS,
            Self::TunnelFlows => config::F_TUNNEL_FLOWS,
            Self::Integrity => config::F_INTEGRITY,
        }
    }
}

/// Returns all features except those in `without`, and those that need one of them.
pub fn all_without(without: &[Feature]) -> Features {
    let bits = without.iter().fold(Features::ALL.bits(), |bits, feature| {
        bits & !(1 << feature.bit())
    });
    complete(Features::from_bits(bits))
}

/// Returns these features, except those that need a missing one.
pub fn complete(mut features: Features) -> Features {
    features.xrc &= features.shared_receive_queues;
    features.nested_paging &= features.on_demand_paging;
    features.segmentation &= features.checksums;
    features.receive_scaling &= features.raw_packets;
    features.flow_counters &= features.raw_packets;
    features.tunnel_flows &= features.raw_packets;
    features.integrity &= features.memory_extensions;
    features
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_a_name() {
        #[derive(Deserialize)]
        struct Setting {
            without: Vec<Feature>,
        }
        let names = "without = ['memory-extensions', 'memory-windows', 'reregistration', 'shared-receive-queues', \
                     'memory-placement', 'completion-queue-changes', 'multicast', 'port-state', 'on-demand-paging', \
                     'null-key', 'counter-sets', 'unreliable-connections', 'xrc', 'clock', 'ignored-overrun', \
                     'context-names', 'nested-paging', 'path-migration', 'rate-limits', 'raw-packets', 'checksums', \
                     'segmentation', 'receive-scaling', 'receive-options', 'flow-counters', \
                     'completion-counters', 'tunnel-flows', 'integrity']";
        let all: Setting = toml::from_str(names).unwrap();
        assert_eq!(all_without(&all.without).bits(), 0);
        assert_eq!(all_without(&[]), Features::ALL);
        let clock = all_without(&[Feature::Clock]);
        assert!(!clock.clock && clock.xrc);
        assert!(!all_without(&[Feature::SharedReceiveQueues]).xrc);
        assert!(!all_without(&[Feature::OnDemandPaging]).nested_paging);
        assert!(!all_without(&[Feature::Checksums]).segmentation);
        assert!(!all_without(&[Feature::MemoryExtensions]).integrity);
        let frameless = all_without(&[Feature::RawPackets]);
        assert!(!frameless.receive_scaling && !frameless.flow_counters && frameless.checksums);
        assert!(!frameless.tunnel_flows);
        assert!(toml::from_str::<Setting>("without = ['rdma']").is_err());
    }
}
