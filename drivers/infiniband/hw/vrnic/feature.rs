// SPDX-License-Identifier: GPL-2.0

//! The optional features of a device.
//!
//! [`Resources::features`](crate::driver::Resources::features) says which of them a device has.

use kernel::page::PAGE_SIZE;
use rdma::qp::Type;
use virtio::{
    Feature,
    Features, //
};
use vrnic_wire::config::{
    DOORBELL_PAGE_SIZE,
    F_CHECKSUMS,
    F_CLOCK,
    F_COMPLETION_COUNTERS,
    F_COMPLETION_QUEUE_CHANGES,
    F_CONTEXT_NAMES,
    F_COUNTER_SETS,
    F_DOORBELL,
    F_FLOW_COUNTERS,
    F_IGNORED_OVERRUN,
    F_INFINIBAND,
    F_INTEGRITY,
    F_MEMORY_EXTENSIONS,
    F_MEMORY_PLACEMENT,
    F_MEMORY_WINDOWS,
    F_MULTICAST,
    F_NESTED_PAGING,
    F_NULL_KEY,
    F_ON_DEMAND_PAGING,
    F_PATH_MIGRATION,
    F_PORT_STATE,
    F_RATE_LIMITS,
    F_RAW_PACKETS,
    F_RECEIVE_OPTIONS,
    F_RECEIVE_SCALING,
    F_REREGISTRATION,
    F_SEGMENTATION,
    F_SHARED_RECEIVE_QUEUES,
    F_TUNNEL_FLOWS,
    F_UNRELIABLE_CONNECTIONS,
    F_XRC, //
};

use crate::port::Link;

/// The device has a doorbell region.
pub(crate) const DOORBELL: Feature = Feature::device(F_DOORBELL);

/// The device supports fast registration of memory by work requests.
pub(crate) const MEMORY_EXTENSIONS: Feature = Feature::device(F_MEMORY_EXTENSIONS);

/// The device has memory windows.
pub(crate) const MEMORY_WINDOWS: Feature = Feature::device(F_MEMORY_WINDOWS);

/// The device can change memory regions in place.
pub(crate) const REREGISTRATION: Feature = Feature::device(F_REREGISTRATION);

/// The device has shared receive queues.
pub(crate) const SHARED_RECEIVE_QUEUES: Feature = Feature::device(F_SHARED_RECEIVE_QUEUES);

/// The device has RDMA flushes and atomic writes.
pub(crate) const MEMORY_PLACEMENT: Feature = Feature::device(F_MEMORY_PLACEMENT);

/// The device can resize completion queues and moderate their events.
pub(crate) const COMPLETION_QUEUE_CHANGES: Feature = Feature::device(F_COMPLETION_QUEUE_CHANGES);

/// The device has multicast groups.
pub(crate) const MULTICAST: Feature = Feature::device(F_MULTICAST);

/// The driver can set the state of the port, which follows that of the network device.
pub(crate) const PORT_STATE: Feature = Feature::device(F_PORT_STATE);

/// The device supports on-demand paging: it asks for pages when it needs them.
pub(crate) const ON_DEMAND_PAGING: Feature = Feature::device(F_ON_DEMAND_PAGING);

/// The device has a null key: memory that reads as zeros and drops writes.
pub(crate) const NULL_KEY: Feature = Feature::device(F_NULL_KEY);

/// The device has counter sets for single queue pairs.
pub(crate) const COUNTER_SETS: Feature = Feature::device(F_COUNTER_SETS);

/// The device has unreliable connections. Without them the device rejects their creation, and
/// nothing else in the driver depends on the feature.
pub(crate) const UNRELIABLE_CONNECTIONS: Feature = Feature::device(F_UNRELIABLE_CONNECTIONS);

/// The device has extended reliable connections. Without them the device's limit for XRC domains is
/// 0.
pub(crate) const XRC: Feature = Feature::device(F_XRC);

/// The device's clock can be queried. Without the feature the device rejects the command.
pub(crate) const CLOCK: Feature = Feature::device(F_CLOCK);

/// Completion queues may ignore overruns.
pub(crate) const IGNORED_OVERRUN: Feature = Feature::device(F_IGNORED_OVERRUN);

/// The device takes the name of the process that a context is for.
pub(crate) const CONTEXT_NAMES: Feature = Feature::device(F_CONTEXT_NAMES);

/// On-demand regions can be made of other regions.
pub(crate) const NESTED_PAGING: Feature = Feature::device(F_NESTED_PAGING);

/// Connections can have alternate paths.
pub(crate) const PATH_MIGRATION: Feature = Feature::device(F_PATH_MIGRATION);

/// Queue pairs can have a rate limit.
pub(crate) const RATE_LIMITS: Feature = Feature::device(F_RATE_LIMITS);

/// There are queue pairs for raw packets, and flows.
pub(crate) const RAW_PACKETS: Feature = Feature::device(F_RAW_PACKETS);

/// Queue pairs whose messages are IP packets can fill in and check their checksums.
pub(crate) const CHECKSUMS: Feature = Feature::device(F_CHECKSUMS);

/// Queue pairs with checksums can send in segments.
pub(crate) const SEGMENTATION: Feature = Feature::device(F_SEGMENTATION);

/// There are receive queues without queue pairs, among which frames are distributed. Without them
/// the device's limit for the size of a table is 0.
pub(crate) const RECEIVE_SCALING: Feature = Feature::device(F_RECEIVE_SCALING);

/// Queue pairs can receive frames without their VLAN tag or with their frame check sequence, and
/// need not get their own datagrams to groups.
pub(crate) const RECEIVE_OPTIONS: Feature = Feature::device(F_RECEIVE_OPTIONS);

/// The device counts the frames of each flow.
pub(crate) const FLOW_COUNTERS: Feature = Feature::device(F_FLOW_COUNTERS);

/// The device has completion counters. Without them its limit for them is 0.
pub(crate) const COMPLETION_COUNTERS: Feature = Feature::device(F_COMPLETION_COUNTERS);

/// The device has memory regions for integrity. It then also has the memory extensions.
pub(crate) const INTEGRITY: Feature = Feature::device(F_INTEGRITY);

/// Flows can look into tunnels, drop frames and tag their completions.
pub(crate) const TUNNEL_FLOWS: Feature = Feature::device(F_TUNNEL_FLOWS);

/// The port is an InfiniBand port.
pub(crate) const INFINIBAND: Feature = Feature::device(F_INFINIBAND);

/// The features that the driver accepts.
pub(crate) const ACCEPTED: &[Feature] = {
    const ALL: &[Feature] = &[
        DOORBELL,
        MEMORY_EXTENSIONS,
        MEMORY_WINDOWS,
        REREGISTRATION,
        SHARED_RECEIVE_QUEUES,
        MEMORY_PLACEMENT,
        COMPLETION_QUEUE_CHANGES,
        MULTICAST,
        PORT_STATE,
        ON_DEMAND_PAGING,
        NULL_KEY,
        COUNTER_SETS,
        UNRELIABLE_CONNECTIONS,
        XRC,
        CLOCK,
        IGNORED_OVERRUN,
        CONTEXT_NAMES,
        NESTED_PAGING,
        PATH_MIGRATION,
        RATE_LIMITS,
        RAW_PACKETS,
        CHECKSUMS,
        SEGMENTATION,
        RECEIVE_SCALING,
        RECEIVE_OPTIONS,
        FLOW_COUNTERS,
        COMPLETION_COUNTERS,
        INTEGRITY,
        TUNNEL_FLOWS,
        INFINIBAND,
    ];
    assert!(ALL[0].bit() == F_DOORBELL);
    match ALL {
        // A process must not get access to more than its own doorbell page.
        [_doorbell, others @ ..] if PAGE_SIZE != DOORBELL_PAGE_SIZE as usize => others,
        all => all,
    }
};

/// Returns whether queue pairs of a type fill in and check the checksums of IP packets, on a device
/// with these features.
pub(crate) fn has_checksums(features: Features, ty: Type) -> bool {
    features.contains(CHECKSUMS)
        && match Link::of(features) {
            Link::Ethernet => features.contains(RAW_PACKETS) && ty == Type::RawPacket,
            Link::InfiniBand => ty == Type::UnreliableDatagram,
        }
}

/// Returns whether frames can be received without their VLAN tag or with their frame check
/// sequence, on a device with these features.
pub(crate) fn has_frame_options(features: Features) -> bool {
    features.contains(RAW_PACKETS) && features.contains(RECEIVE_OPTIONS)
}

/// Returns whether queue pairs of a type send in segments, on a device with these features.
pub(crate) fn has_segmentation(features: Features, ty: Type) -> bool {
    features.contains(SEGMENTATION) && has_checksums(features, ty)
}
