// SPDX-License-Identifier: GPL-2.0

//! The RDMA device: its attributes and those of its port.

use kernel::prelude::*;
use rdma::{
    counter::Counter,
    device::{
        Atomicity,
        Capabilities,
        Capability,
        DeviceAttr,
        OnDemandOperation,
        OnDemandOperations,
        OnDemandPaging,
        ReceiveScaling, //
    },
    gid::{
        Gid,
        GidAttr, //
    },
    mad,
    port::{
        self,
        LinkLayer,
        Port,
        PortAttr,
        PortChange, //
    },
    qp::Type,
    uapi::Addition,
    udata::ProcessesAndKernel,
    Netdev,
    Operations, //
};
use virtio::Features;
use vrnic_wire::{
    abi,
    command::{
        hash_fields,
        DeviceLimits,
        MAX_SCALING_ENTRIES, //
    },
    config::{
        PCI_DEVICE_ID,
        PCI_VENDOR_ID, //
    }, //
};

use crate::{
    ah::Ah,
    comp_cntr::{
        CompCntr,
        QueryCompCntr, //
    },
    counter,
    cq::Cq,
    dm::{
        Dm,
        QueryDm,
        DEVICE_MEMORY, //
    },
    dmah::Dmah,
    driver::Resources,
    feature,
    flow::{
        self,
        Flow, //
    },
    integrity,
    mr::Mr,
    mw::Mw,
    odp::BoxedPager,
    pd::Pd,
    port::Link,
    qp::Qp,
    srq::Srq,
    uapi::{
        FindPd,
        QueryClock, //
    },
    ucontext::UserContext,
    udata::QueryDeviceResponse,
    wq::{
        Table,
        Wq, //
    },
    wqe::MAX_HEADER,
    xrc::Xrcd, //
};

/// A virtio RDMA device.
pub(crate) struct Vrnic;

/// The context of every verb.
pub(crate) type Call<'a> = rdma::Call<'a, Vrnic>;

/// ACK delay of the device, which the CM adds to timeouts: 4.096 µs times 2 to this power, that is
/// 134 ms, because the device's CPU may be busy with other work.
const ACK_DELAY: u8 = 15;

/// Returns the number of objects left for users if the device has `all` of a kind.
///
/// `ib_core` creates one of each of these kinds for the management datagrams of the port: their
/// completion queue, their protection domain, and, without a local DMA key, that domain's memory
/// region.
fn left_for_users(all: u32) -> u32 {
    all.saturating_sub(1)
}

/// Returns how many queue pairs users can have of a device with `all`: `ib_core` creates queue pair
/// 1, and on InfiniBand queue pair 0.
fn queue_pairs_for_users(all: u32, link: Link) -> u32 {
    all.saturating_sub(match link {
        Link::Ethernet => 1,
        Link::InfiniBand => 2,
    })
}

/// Returns the capabilities of a device with these limits and features.
fn capabilities(limits: &DeviceLimits, features: Features) -> Capabilities {
    let mut capabilities = Capability::BadPkeyCounter
        | Capability::BadQkeyCounter
        | Capability::CurrentQpState
        | Capability::PortActiveEvent
        | Capability::SystemImageGuid
        | Capability::RcRnrNak;
    if limits.max_fast_registration_pages.get() != 0 {
        capabilities |= Capability::MemoryExtensions;
    }
    if limits.max_srq.get() != 0 {
        capabilities |= Capability::SrqResize;
    }
    if limits.max_xrcd.get() != 0 {
        capabilities |= Capability::Xrc;
    }
    if limits.max_mw.get() != 0 {
        capabilities |= Capability::MemoryWindow | Capability::MemoryWindowType2B;
    }
    if features.contains(feature::MEMORY_PLACEMENT) {
        capabilities |=
            Capability::FlushGlobal | Capability::FlushPersistent | Capability::AtomicWrite;
    }
    // The core does not let connections on Ethernet have alternate paths.
    if features.contains(feature::PATH_MIGRATION) && Link::of(features) == Link::InfiniBand {
        capabilities |= Capability::AutomaticPathMigration;
    }
    if features.contains(feature::RAW_PACKETS) {
        capabilities |= Capability::ManagedFlowSteering;
    }
    if feature::has_checksums(features, Type::RawPacket) {
        capabilities |= Capability::RawIpChecksum;
    }
    if feature::has_frame_options(features) {
        capabilities |= Capability::RawScatterFcs;
    }
    if feature::has_checksums(features, Type::UnreliableDatagram) {
        capabilities |= Capability::UdIpChecksum;
    }
    capabilities
}

/// Returns the operations that work with on-demand paging, on a device that has it: all operations
/// that the device has.
fn on_demand_paging(limits: &DeviceLimits, features: Features) -> OnDemandPaging {
    let mut datagram = OnDemandOperation::Send | OnDemandOperation::Receive;
    if limits.max_srq.get() != 0 {
        datagram |= OnDemandOperation::SharedReceive;
    }
    let unreliable = datagram | OnDemandOperation::Write;
    let mut reliable = unreliable | OnDemandOperation::Read | OnDemandOperation::Atomic;
    if features.contains(feature::MEMORY_PLACEMENT) {
        reliable |= OnDemandOperation::Flush | OnDemandOperation::AtomicWrite;
    }
    OnDemandPaging {
        reliable,
        unreliable,
        xrc: match limits.max_xrcd.get() {
            0 => OnDemandOperations::default(),
            _ => reliable,
        },
        datagram,
        implicit: features.contains(feature::NESTED_PAGING),
    }
}

/// Returns whether queue pairs of IP over InfiniBand can send in segments, on a device with these
/// limits and features.
pub(crate) fn has_ud_segmentation(limits: &DeviceLimits, features: Features) -> bool {
    /// What the kernel puts into a request at most, without its header.
    const LONGEST: u32 = 65536;

    feature::has_segmentation(features, Type::UnreliableDatagram)
        && limits.max_segmented_length.get() >= LONGEST
        && limits.max_inline.get() >= MAX_HEADER
}

/// Returns the limits of receive scaling. To the device, each queue is a queue pair. It does not
/// know tables, and each queue pair can have its own.
fn receive_scaling(limits: &DeviceLimits) -> ReceiveScaling {
    match limits.max_scaling_entries.get() {
        0 => ReceiveScaling::default(),
        max_entries => {
            let all = queue_pairs_for_users(limits.max_qp.get(), Link::Ethernet);
            ReceiveScaling {
                max_queues: all,
                max_tables: all,
                max_entries: max_entries.min(MAX_SCALING_ENTRIES as u32),
            }
        }
    }
}

/// Returns what queue pairs can have on a device with these limits and features, of what the core
/// does not know: rate limits, segments and fields of hashes.
fn device_response(limits: &DeviceLimits, features: Features) -> abi::QueryDeviceResponse {
    let mut response = rate_limits(limits, features);
    if limits.max_scaling_entries.get() != 0 {
        response.hash_fields = hash_fields::ALL;
    }
    for ty in [Type::RawPacket, Type::UnreliableDatagram] {
        if feature::has_segmentation(features, ty) {
            response.segmentation_types |= 1 << ty.raw();
            response.max_segmented_length = limits.max_segmented_length.get();
        }
    }
    response
}

/// Returns which rate limits queue pairs can have on a device with these limits and features.
fn rate_limits(limits: &DeviceLimits, features: Features) -> abi::QueryDeviceResponse {
    let types = |all: &[Type]| all.iter().fold(0, |set, ty| set | 1 << ty.raw());
    let raw = features
        .contains(feature::RAW_PACKETS)
        .then_some(Type::RawPacket);
    match limits.max_rate_limit.get() {
        0 => abi::QueryDeviceResponse::default(),
        max => abi::QueryDeviceResponse {
            min_rate_limit: 1,
            max_rate_limit: max,
            rate_limit_types: types(&[
                Type::ReliableConnection,
                Type::UnreliableConnection,
                Type::UnreliableDatagram,
                Type::XrcInitiator,
            ]) | types(raw.as_slice()),
            ..Default::default()
        },
    }
}

#[vtable]
impl Operations for Vrnic {
    type RegistrationData<'a> = Resources<'a>;
    type Users = ProcessesAndKernel;
    type Path = rdma::ah::Any;
    type DeviceResponse = QueryDeviceResponse;
    type UserContext = UserContext;
    type ProtectionDomain = Pd;
    type CompletionQueue = Cq;
    type QueuePair = Qp;
    type SharedReceiveQueue = Srq;
    type XrcDomain = Xrcd;
    type ReceiveWorkQueue = Wq;
    type IndirectionTable = Table;
    type MemoryRegion = Mr;
    type MemoryWindow = Mw;
    type DmBuffer = Dm;
    type DmaHandle = Dmah;
    type FlowRule = Flow;
    type FlowCounters = flow::Counters;
    type CompletionCounter = CompCntr;
    type AddressHandle = Ah;
    type Pager = BoxedPager;

    // Provisional: `enum rdma_driver_id` has no value for this driver yet.
    const DRIVER_ID: u32 = abi::DRIVER_ID;
    const ABI_VERSION: u32 = abi::ABI_VERSION;
    const USER_METHODS: &'static [Addition<Self>] = &[
        Addition::method::<FindPd>(),
        Addition::method::<QueryClock>(),
        Addition::method::<QueryDm>(),
        Addition::method::<QueryCompCntr>(),
    ];
    const PORT_COUNTERS: &'static [Counter] = &counter::COUNTERS;

    fn query_device(call: &Call<'_>) -> Result<DeviceAttr> {
        let limits = &call.data().limits;
        let features = call.data().features;
        // The commands have no limits other than the width of their fields.
        let moderation = match features.contains(feature::COMPLETION_QUEUE_CHANGES) {
            true => u16::MAX,
            false => 0,
        };

        Ok(DeviceAttr {
            firmware_version: limits.firmware_version.get(),
            system_image_guid: call.data().config.node_guid.get(),
            vendor_id: PCI_VENDOR_ID.into(),
            vendor_part_id: PCI_DEVICE_ID.into(),
            hardware_version: 1,
            capabilities: capabilities(limits, features),
            max_mr_size: limits.max_mr_size.get(),
            page_sizes: limits.page_sizes.get(),
            max_qp: queue_pairs_for_users(limits.max_qp.get(), call.data().link()),
            max_qp_wr: limits.max_qp_entries.get(),
            max_send_sge: limits.max_send_sge.get(),
            max_recv_sge: limits.max_recv_sge.get(),
            max_sge_rd: limits.max_send_sge.get(),
            max_cq: left_for_users(limits.max_cq.get()),
            max_cqe: limits.max_cq_entries.get(),
            max_cq_moderation_count: moderation,
            max_cq_moderation_period: moderation,
            max_srq: limits.max_srq.get(),
            max_srq_wr: match limits.max_srq.get() {
                0 => 0,
                _ => limits.max_qp_entries.get(),
            },
            max_srq_sge: match limits.max_srq.get() {
                0 => 0,
                _ => limits.max_recv_sge.get(),
            },
            max_multicast_groups: limits.max_multicast_groups.get(),
            max_multicast_members: limits.max_multicast_members.get(),
            max_multicast_attachments: limits.max_multicast_attachments.get(),
            // With fast registration there is a local DMA key.
            max_mr: if limits.max_fast_registration_pages.get() != 0 {
                limits.max_mr.get()
            } else {
                left_for_users(limits.max_mr.get())
            },
            max_integrity_pieces: match features.contains(feature::INTEGRITY) {
                true => integrity::max_pieces(limits),
                false => 0,
            },
            max_mw: limits.max_mw.get(),
            max_dm_size: DEVICE_MEMORY as u64,
            max_fast_registration_pages: limits.max_fast_registration_pages.get(),
            max_pd: left_for_users(limits.max_pd.get()),
            // The device does not know address handles; only memory limits their number.
            max_ah: i32::MAX.unsigned_abs(),
            max_qp_rd_atomic: limits.max_dest_rd_atomic.get(),
            max_qp_init_rd_atomic: limits.max_rd_atomic.get(),
            max_res_rd_atomic: limits
                .max_dest_rd_atomic
                .get()
                .saturating_mul(limits.max_qp.get())
                .min(i32::MAX.unsigned_abs()),
            atomicity: Atomicity::Device,
            max_pkeys: crate::port::immutable(call, Port::FIRST)?.pkey_table_length,
            ack_delay: ACK_DELAY,
            on_demand_paging: match &call.data().paging {
                Some(_) => on_demand_paging(limits, features),
                None => OnDemandPaging::default(),
            },
            ud_segmentation: has_ud_segmentation(limits, features),
            blocks_own_multicast: features.contains(feature::RECEIVE_OPTIONS),
            strips_vlan: feature::has_frame_options(features),
            receive_scaling: receive_scaling(limits),
            timestamp_mask: u64::MAX,
            clock_khz: limits.clock_khz.get().into(),
        })
    }

    fn device_response(call: &Call<'_>) -> Result<QueryDeviceResponse> {
        Ok(QueryDeviceResponse(device_response(
            &call.data().limits,
            call.data().features,
        )))
    }

    fn firmware_version(call: &Call<'_>, text: &mut dyn core::fmt::Write) {
        let version = call.data().limits.firmware_version.get();
        // Text that does not fit is truncated.
        let _ = write!(
            text,
            "{}.{}.{}",
            (version >> 32) & 0xffff,
            (version >> 16) & 0xffff,
            version & 0xffff
        );
    }

    fn link_layer(call: &Call<'_>, _port: Port) -> LinkLayer {
        call.data().link().layer()
    }

    fn port_immutable(call: &Call<'_>, port: Port) -> Result<port::Immutable> {
        crate::port::immutable(call, port)
    }

    fn query_port(call: &Call<'_>, port: Port) -> Result<PortAttr> {
        crate::port::query(call, port)
    }

    fn is_netdev_of(call: &Call<'_>, netdev: &Netdev, port: Port) -> bool {
        crate::port::is_netdev_of(call, netdev, port)
    }

    fn follow_netdev(call: &Call<'_>, port: Port) {
        crate::port::follow_netdev(call, port);
    }

    fn query_pkey(call: &Call<'_>, port: Port, index: u16) -> Result<u16> {
        crate::port::pkey(call, port, index)
    }

    fn query_gid(call: &Call<'_>, port: Port, index: u32) -> Result<Gid> {
        crate::gid::query(call, port, index)
    }

    fn modify_port(call: &Call<'_>, port: Port, change: &PortChange) -> Result {
        crate::port::modify(call, port, change)
    }

    fn process_mad(
        call: &Call<'_>,
        port: Port,
        incoming: &mad::Incoming<'_>,
        answer: &mut mad::Mad,
    ) -> Result<mad::Outcome> {
        crate::mad::process(call, port, incoming, answer)
    }

    fn add_gid(call: &Call<'_>, gid: &GidAttr<'_>) -> Result {
        crate::gid::add(call, gid)
    }

    fn del_gid(call: &Call<'_>, gid: &GidAttr<'_>) -> Result {
        crate::gid::remove(call, gid)
    }

    fn port_counters(call: &Call<'_>, port: Port, values: &mut [u64]) -> Result {
        counter::read(call, port, values)
    }

    fn create_qp_counter(call: &Call<'_>, port: Port) -> Result<u32> {
        counter::create_set(call, port)
    }

    fn bind_qp_counter(call: &Call<'_>, qp: &rdma::Qp<Qp>, number: u32) -> Result {
        counter::bind_set(call, qp.number(), number)
    }

    fn unbind_qp_counter(call: &Call<'_>, qp: &rdma::Qp<Qp>) {
        counter::unbind_set(call, qp.number());
    }

    fn read_qp_counter(call: &Call<'_>, number: u32, values: &mut [u64]) -> Result {
        counter::read_set(call, number, values)
    }

    fn destroy_qp_counter(call: &Call<'_>, number: u32) {
        counter::destroy_set(call, number);
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_device)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_those_of_the_features() {
        let limits = DeviceLimits::default();
        let without = capabilities(&limits, Features::default());
        let with = |features| capabilities(&limits, features) & !without;

        assert_eq!(
            with(feature::MEMORY_PLACEMENT.into()),
            Capability::FlushGlobal | Capability::FlushPersistent | Capability::AtomicWrite
        );
        assert_eq!(
            with(feature::RAW_PACKETS.into()),
            Capability::ManagedFlowSteering.into()
        );
        assert_eq!(
            with(feature::RAW_PACKETS | feature::RECEIVE_OPTIONS),
            Capability::ManagedFlowSteering | Capability::RawScatterFcs
        );
        assert_eq!(
            with(feature::RECEIVE_OPTIONS.into()),
            Capabilities::default()
        );
        assert_eq!(
            with(feature::PATH_MIGRATION.into()),
            Capabilities::default()
        );
        assert_eq!(
            with(feature::PATH_MIGRATION | feature::INFINIBAND),
            Capability::AutomaticPathMigration.into()
        );
    }

    #[test]
    fn segments_need_checksums_and_room_for_a_header() {
        let limits = DeviceLimits {
            max_inline: MAX_HEADER.into(),
            max_segmented_length: 65536.into(),
            ..Default::default()
        };
        let all = feature::CHECKSUMS | feature::SEGMENTATION;
        let raw = all | feature::RAW_PACKETS;
        let ib = all | feature::INFINIBAND;
        let types = |features| device_response(&limits, features).segmentation_types;
        assert_eq!(types(raw), 1 << Type::RawPacket.raw());
        assert_eq!(types(ib), 1 << Type::UnreliableDatagram.raw());
        assert_eq!(device_response(&limits, ib).max_segmented_length, 65536);
        for features in [
            all,
            feature::CHECKSUMS | feature::INFINIBAND,
            feature::SEGMENTATION | feature::INFINIBAND,
        ] {
            let response = device_response(&limits, features);
            let segments = (response.segmentation_types, response.max_segmented_length);
            assert_eq!(segments, (0, 0));
            assert!(!has_ud_segmentation(&limits, features));
        }

        assert!(has_ud_segmentation(&limits, ib));
        assert!(!has_ud_segmentation(&limits, raw));
        let mut short = limits;
        short.max_inline = (MAX_HEADER - 1).into();
        assert!(!has_ud_segmentation(&short, ib));
        let mut short = limits;
        short.max_segmented_length = 65535.into();
        assert!(!has_ud_segmentation(&short, ib));
    }

    #[test]
    fn raw_packets_have_rate_limits_if_the_device_has_both() {
        let limited = DeviceLimits {
            max_rate_limit: 7.into(),
            ..Default::default()
        };
        let types =
            |limits: &DeviceLimits, features| rate_limits(limits, features).rate_limit_types;
        let raw = Features::from(feature::RAW_PACKETS);
        let bit = 1 << Type::RawPacket.raw();

        assert_eq!(types(&DeviceLimits::default(), raw), 0);
        assert_eq!(types(&limited, Features::default()) & bit, 0);
        assert_eq!(types(&limited, raw) & bit, bit);
    }
}
