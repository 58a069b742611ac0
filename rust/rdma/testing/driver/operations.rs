// SPDX-License-Identifier: GPL-2.0

//! The device and its ports.

use core::{
    fmt,
    sync::atomic::Ordering::SeqCst, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::{
    ucontext::Nothing,
    Asked,
    Log,
    Object,
    TestDriver, //
};
use crate::{
    ah,
    counter::Counter,
    device::{
        Atomicity,
        Call,
        Capability,
        DeviceAttr,
        NodeType,
        OnDemandOperation,
        OnDemandPaging,
        Operations,
        Properties,
        ReceiveScaling, //
    },
    gid::{
        GidAttr, //
    },
    mad,
    netdev::Netdev,
    port::{
        self,
        LinkLayer,
        Mtu,
        Port,
        PortAttr,
        PortChange, //
    },
    qp::Qp,
    uapi,
    udata::ProcessesAndKernel, //
};

/// Returns the attributes of the device. All numbers differ.
pub(crate) fn attributes() -> DeviceAttr {
    DeviceAttr {
        firmware_version: 0x1_0002_0003,
        system_image_guid: 0x0102_0304_0506_0708,
        vendor_id: 101,
        vendor_part_id: 102,
        hardware_version: 103,
        capabilities: Capability::RcRnrNak | Capability::AtomicWrite,
        max_mr_size: 104,
        page_sizes: 105,
        max_qp: 106,
        max_qp_wr: 107,
        max_send_sge: 108,
        max_recv_sge: 109,
        max_sge_rd: 110,
        max_cq: 111,
        max_cqe: 112,
        max_cq_moderation_count: 113,
        max_cq_moderation_period: 114,
        max_srq: 115,
        max_srq_wr: 116,
        max_srq_sge: 117,
        max_multicast_groups: 118,
        max_multicast_members: 119,
        max_multicast_attachments: 120,
        max_mr: 121,
        max_fast_registration_pages: 122,
        max_integrity_pieces: 134,
        max_mw: 123,
        max_dm_size: 133,
        max_pd: 124,
        max_ah: 125,
        max_qp_rd_atomic: 126,
        max_qp_init_rd_atomic: 127,
        max_res_rd_atomic: 128,
        atomicity: Atomicity::Global,
        max_pkeys: 129,
        ack_delay: 30,
        on_demand_paging: OnDemandPaging {
            reliable: OnDemandOperation::Send | OnDemandOperation::Flush,
            unreliable: OnDemandOperation::Write.into(),
            xrc: OnDemandOperation::Read.into(),
            datagram: OnDemandOperation::Receive.into(),
            implicit: true,
        },
        ud_segmentation: true,
        blocks_own_multicast: true,
        strips_vlan: true,
        receive_scaling: ReceiveScaling {
            max_queues: 31,
            max_tables: 32,
            max_entries: 33,
        },
        timestamp_mask: 131,
        clock_khz: 132,
    }
}

/// Returns the attributes of a port. All numbers differ, also between ports.
pub(crate) fn port_attributes(port: Port) -> PortAttr {
    let port = port.number();
    PortAttr {
        state: port::State::Active,
        max_mtu: Mtu::Mtu4096,
        active_mtu: Mtu::Mtu1024,
        // CAST: There are two ports.
        // 4 lanes of EDR, or 8 of HDR.
        active_width: 2 * port as u8,
        active_speed: 32 * port as u16,
        max_message_size: 14 * port,
        bad_pkey_count: 15 * port,
        qkey_violation_count: 16 * port,
        has_ip_gids: true,
        subnet: None,
    }
}

/// Returns the link layer of a port, which differs between ports.
pub(crate) fn port_link_layer(port: Port) -> LinkLayer {
    if port == Port::FIRST {
        LinkLayer::Ethernet
    } else {
        LinkLayer::Unspecified
    }
}

/// Length of the P_Key table.
const PKEYS: u16 = 3;

/// Lengths of the GID tables of the ports.
pub(crate) const GIDS: [u32; PORTS as usize] = [13, 17];

/// Number of ports.
pub(crate) const PORTS: u32 = 2;

/// Number of completion vectors.
pub(crate) const VECTORS: u32 = 3;

/// The firmware version, which is too long.
pub(crate) const FIRMWARE: &str = "0123456789-0123456789-0123456789-0123456789";

#[vtable]
impl Operations for TestDriver {
    type RegistrationData<'a> = Arc<Log>;
    type Users = ProcessesAndKernel;
    type Path = ah::Roce;
    type DeviceResponse = ();
    type UserContext = Object;
    type ProtectionDomain = Object;
    type CompletionQueue = Object;
    type QueuePair = Object;
    type SharedReceiveQueue = Object;
    type XrcDomain = Object;
    type ReceiveWorkQueue = Object;
    type IndirectionTable = Object;
    type MemoryRegion = Object;
    type MemoryWindow = Object;
    type DmBuffer = Object;
    type DmaHandle = Object;
    type FlowRule = Object;
    type FlowCounters = Object;
    type CompletionCounter = Object;
    type AddressHandle = Object;
    type Pager = Object;

    const DRIVER_ID: u32 = 201;
    const ABI_VERSION: u32 = 202;
    const USER_METHODS: &'static [uapi::Addition<Self>] = &[uapi::Addition::method::<Nothing>()];
    const PORT_COUNTERS: &'static [Counter] = &[
        Counter::new(c"first"),
        Counter::new(c"second"),
        Counter::new(c"third"),
    ];

    fn query_device(_call: &Call<'_, Self>) -> Result<DeviceAttr> {
        Ok(attributes())
    }

    fn firmware_version(_call: &Call<'_, Self>, text: &mut dyn fmt::Write) {
        // Text that does not fit is truncated.
        let (first, rest) = FIRMWARE.split_at(10);
        let _ = text.write_str(first);
        let _ = text.write_str(rest);
    }

    fn link_layer(_call: &Call<'_, Self>, port: Port) -> LinkLayer {
        port_link_layer(port)
    }

    fn port_immutable(_call: &Call<'_, Self>, port: Port) -> Result<port::Immutable> {
        let protocol = port::Protocol::RoceV2;
        Ok(port::Immutable {
            protocol,
            pkey_table_length: PKEYS,
            // CAST: There are two ports.
            gid_table_length: GIDS[port.number() as usize - 1],
            raw_packets: false,
        })
    }

    fn query_port(call: &Call<'_, Self>, port: Port) -> Result<PortAttr> {
        if call.data().fails.swap(false, SeqCst) {
            call.data().dispatcher.device_fatal();
        }
        let mut attributes = port_attributes(port);
        if call.data().is_down.load(SeqCst) {
            attributes.state = port::State::Down;
        }
        Ok(attributes)
    }

    fn is_netdev_of(_call: &Call<'_, Self>, netdev: &Netdev, port: Port) -> bool {
        netdev.ethernet_address() == MACS.get(port.number() as usize - 1).copied()
    }

    fn follow_netdev(call: &Call<'_, Self>, port: Port) {
        let netdev = call.with_netdev(port, |netdev| (netdev.is_active(), netdev.mtu()));
        if port != Port::FIRST {
            *call.data().second_followed.lock() = netdev;
            return;
        }
        let before = call.data().followed.lock().replace((port, netdev));
        // A port that never had a network device is up.
        let is_down = match netdev {
            Some((is_active, _)) => !is_active,
            None => before.is_some_and(|(_, netdev)| netdev.is_some()),
        };
        call.data().is_down.store(is_down, SeqCst);
    }

    fn query_pkey(_call: &Call<'_, Self>, port: Port, index: u16) -> Result<u16> {
        // CAST: There are two ports.
        Ok(0x8000 | (port.number() as u16) << 8 | index)
    }

    fn modify_port(call: &Call<'_, Self>, port: Port, change: &PortChange) -> Result {
        call.data().note(Asked::ModifyPort(port, *change));
        Ok(())
    }

    /// Handles a datagram, whose first byte determines the outcome.
    fn process_mad(
        call: &Call<'_, Self>,
        port: Port,
        incoming: &mad::Incoming<'_>,
        answer: &mut mad::Mad,
    ) -> Result<mad::Outcome> {
        let mad::Incoming {
            source,
            ignores_m_key,
            ..
        } = *incoming;
        call.data().note(Asked::Mad(port, source, ignores_m_key));
        match incoming.mad {
            [0, ..] => Ok(mad::Outcome::Passed),
            [1, ..] => Ok(mad::Outcome::Consumed),
            [2, .., last] => {
                answer[mad::LENGTH - 1] = *last;
                Ok(mad::Outcome::Answered)
            }
            _ => Err(EIO),
        }
    }

    fn add_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        Ok(())
    }

    fn del_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        Ok(())
    }

    fn port_counters(call: &Call<'_, Self>, port: Port, values: &mut [u64]) -> Result {
        call.data().note(Asked::PortCounters(port));
        count_from(100 * u64::from(port.number()), values);
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        Ok(())
    }

    fn create_qp_counter(call: &Call<'_, Self>, port: Port) -> Result<u32> {
        call.data().note(Asked::CreateCounter(port));
        Ok(call.data().next.fetch_add(1, SeqCst))
    }

    fn bind_qp_counter(call: &Call<'_, Self>, qp: &Qp<Object>, number: u32) -> Result {
        call.data().note(Asked::BindCounter(qp.number(), number));
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        Ok(())
    }

    fn unbind_qp_counter(call: &Call<'_, Self>, qp: &Qp<Object>) {
        call.data().note(Asked::UnbindCounter(qp.number()));
    }

    fn read_qp_counter(call: &Call<'_, Self>, number: u32, values: &mut [u64]) -> Result {
        call.data().note(Asked::ReadCounter(number));
        count_from(1000 * u64::from(number), values);
        Ok(())
    }

    fn destroy_qp_counter(call: &Call<'_, Self>, number: u32) {
        call.data().note(Asked::DestroyCounter(number));
    }
}

fn count_from(first: u64, values: &mut [u64]) {
    for (value, number) in values.iter_mut().zip(first..) {
        *value = number;
    }
}

/// Permanent MAC address of the network device of the first port. Most tests have no such device.
pub(crate) const MAC: [u8; 6] = MACS[0];

/// Permanent MAC addresses for all ports, like [`MAC`].
pub(crate) const MACS: [[u8; 6]; PORTS as usize] =
    [[2, 0, 0, 0x7e, 0x57, 1], [2, 0, 0, 0x7e, 0x57, 8]];

/// Properties of the device.
pub(crate) const PROPERTIES: Properties = Properties {
    ports: PORTS,
    node_type: NodeType::ChannelAdapter,
    node_guid: 0x1112_1314_1516_1718,
    node_description: c"a driver without hardware",
    user_posts_by_verb: true,
    counters_of_queue_pairs: true,
    answers_management: true,
    local_dma_key: Some(0x2122_2324),
};
