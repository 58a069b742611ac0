// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Device identity, feature bits, virtqueue numbers and configuration space.

use crate::{U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Virtio device id of an RDMA device, reserved by the virtio standard.
pub const VIRTIO_ID_RDMA: u16 = 42;

/// PCI vendor id of virtio devices.
pub const PCI_VENDOR_ID: u16 = 0x1af4;

/// PCI device id: 0x1040 plus the virtio device id.
pub const PCI_DEVICE_ID: u16 = 0x1040 + VIRTIO_ID_RDMA;

/// `cfg_type` of the virtio PCI capability that describes the doorbell region.
///
/// Provisional: the value has to be assigned by the virtio technical committee.
pub const PCI_CAP_DOORBELL_CFG: u8 = 10;

/// Size of a doorbell page in bytes.
pub const DOORBELL_PAGE_SIZE: u32 = 4096;

/// Feature bit: the device has a doorbell region.
///
/// Without it the driver rings doorbells with
/// [`command::RingDoorbell`](crate::command::RingDoorbell).
pub const F_DOORBELL: u32 = 0;

/// Feature bit: the device has the base memory management extensions of IBTA: fast registration,
/// local and remote invalidation, and the local DMA key.
pub const F_MEMORY_EXTENSIONS: u32 = 1;

/// Feature bit: the device has memory windows of type 1 and of type 2B.
pub const F_MEMORY_WINDOWS: u32 = 2;

/// Feature bit: the device can change memory regions in place.
pub const F_REREGISTRATION: u32 = 3;

/// Feature bit: the device has shared receive queues.
pub const F_SHARED_RECEIVE_QUEUES: u32 = 4;

/// Feature bit: the device has the memory placement extensions of IBTA annex A19: flushes with
/// global visibility, and atomic writes.
pub const F_MEMORY_PLACEMENT: u32 = 5;

/// Feature bit: the device can move completion queues to other rings, and moderate their events.
pub const F_COMPLETION_QUEUE_CHANGES: u32 = 6;

/// Feature bit: the device has multicast groups.
pub const F_MULTICAST: u32 = 7;

/// Feature bit: the device supports on-demand paging, that is, memory regions for which it asks for
/// pages when it needs them.
pub const F_ON_DEMAND_PAGING: u32 = 8;

/// Feature bit: the driver can set the administrative state of the port.
pub const F_PORT_STATE: u32 = 9;

/// Feature bit: the device has a [`NULL_KEY`](crate::memory::NULL_KEY), by which elements refer to
/// memory that reads as zeros and drops writes.
pub const F_NULL_KEY: u32 = 10;

/// Feature bit: the device has counter sets for selected queue pairs.
pub const F_COUNTER_SETS: u32 = 11;

/// Feature bit: the device has unreliable connections.
pub const F_UNRELIABLE_CONNECTIONS: u32 = 12;

/// Feature bit: the device has extended reliable connections. Offered only together with
/// [`F_SHARED_RECEIVE_QUEUES`].
pub const F_XRC: u32 = 13;

/// Feature bit: the driver can read the device's clock.
pub const F_CLOCK: u32 = 14;

/// Feature bit: completion queues may ignore overruns.
pub const F_IGNORED_OVERRUN: u32 = 15;

/// Feature bit: the driver can tell the device which process a context is for.
pub const F_CONTEXT_NAMES: u32 = 16;

/// Feature bit: on-demand regions can be made of other regions. Requires [`F_ON_DEMAND_PAGING`].
pub const F_NESTED_PAGING: u32 = 17;

/// Feature bit: the link layer of the port is InfiniBand, not Ethernet. A device that offers this
/// feature does not work without it.
pub const F_INFINIBAND: u32 = 18;

/// Feature bit: connections can have an alternate path, and go over to it.
pub const F_PATH_MIGRATION: u32 = 19;

/// Feature bit: queue pairs can have a rate limit.
pub const F_RATE_LIMITS: u32 = 20;

/// Feature bit: the device has queue pairs for whole Ethernet frames, and flows that direct frames
/// to them.
pub const F_RAW_PACKETS: u32 = 21;

/// Feature bit: the device fills in and checks the checksums of IP packets.
pub const F_CHECKSUMS: u32 = 22;

/// Feature bit: the device divides long TCP packets into short ones. Needs [`F_CHECKSUMS`].
pub const F_SEGMENTATION: u32 = 23;

/// Feature bit: the device has receive queues without queue pairs, and distributes the frames of a
/// flow among them. Needs [`F_RAW_PACKETS`].
pub const F_RECEIVE_SCALING: u32 = 50;

/// Feature bit: queue pairs can receive frames without their VLAN tag or with their frame check
/// sequence, and need not get their own datagrams to groups.
pub const F_RECEIVE_OPTIONS: u32 = 51;

/// Feature bit: the device counts the frames of each flow. Needs [`F_RAW_PACKETS`].
pub const F_FLOW_COUNTERS: u32 = 52;

/// Feature bit: the device has completion counters.
pub const F_COMPLETION_COUNTERS: u32 = 53;

/// Feature bit: the device has integrity regions, which add, check and remove the protection
/// information of blocks. Needs [`F_MEMORY_EXTENSIONS`].
pub const F_INTEGRITY: u32 = 55;

/// Feature bit: flows can look into tunnels, drop frames, and tag their completions. Needs
/// [`F_RAW_PACKETS`].
pub const F_TUNNEL_FLOWS: u32 = 54;

/// Virtqueue that carries control commands.
pub const CONTROL_QUEUE: u16 = 0;

/// Virtqueue that carries asynchronous events.
pub const ASYNC_EVENT_QUEUE: u16 = 1;

/// First of the virtqueues that carry completion events, one per completion vector.
pub const FIRST_COMPLETION_QUEUE: u16 = 2;

/// Device configuration space; read-only for the driver.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Config {
    /// MAC address of the network device with which this RNIC shares its port.
    pub mac: [u8; 6],
    /// Number of completion vectors, and thus of completion event virtqueues; at least 1.
    pub completion_vectors: U16,
    /// GUID of the node (EUI-64) as a number; its textual form starts with the most significant
    /// byte.
    pub node_guid: U64,
    /// Number of doorbell pages in the doorbell region; 0 without [`F_DOORBELL`].
    pub doorbell_pages: U32,
    /// Number of ports of the device; 1.
    pub ports: U32,
    /// Reserved; 0.
    pub reserved: [u8; 8],
}
assert_layout!(Config, 32, mac @ 0, completion_vectors @ 6, node_guid @ 8, doorbell_pages @ 16,
    ports @ 20);
