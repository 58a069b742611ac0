// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Attributes of management (IBTA volume 1, 13.4.8, 14.2.5 and 16.1.3), in the layout that they have in a MAD.
//!
//! Any bytes can be read as an attribute. Written back, they are the same except for reserved bits.
//!
//! ```
//! use vrnic_infiniband::attributes::{NodeInfo, NodeType};
//!
//! let mut data = [0; 64];
//! NodeInfo { kind: NodeType::SWITCH, ports: 36, ..NodeInfo::default() }.write(&mut data);
//! assert_eq!(data[2..4], [2, 36]);
//! assert_eq!(NodeInfo::read(&data).ports, 36);
//! ```

use crate::{
    Lid,
    field::{layout, named},
};

/// Bytes of data in a subnet management packet. All attributes of subnet management fit in them.
pub const DATA_LENGTH: usize = 64;

/// Numbers of attributes (13.4.8, 14.2.5, 16.1.3).
pub mod id {
    /// [`ClassPortInfo`](super::ClassPortInfo).
    pub const CLASS_PORT_INFO: u16 = 0x01;
    /// [`Notice`](super::Notice).
    pub const NOTICE: u16 = 0x02;
    /// [`NodeDescription`](super::NodeDescription).
    pub const NODE_DESCRIPTION: u16 = 0x10;
    /// [`NodeInfo`](super::NodeInfo).
    pub const NODE_INFO: u16 = 0x11;
    /// [`SwitchInfo`](super::SwitchInfo).
    pub const SWITCH_INFO: u16 = 0x12;
    /// [`GuidInfo`](super::GuidInfo).
    pub const GUID_INFO: u16 = 0x14;
    /// [`PortInfo`](super::PortInfo).
    pub const PORT_INFO: u16 = 0x15;
    /// [`PKeyTable`](super::PKeyTable).
    pub const PKEY_TABLE: u16 = 0x16;
    /// [`SlToVl`](super::SlToVl).
    pub const SL_TO_VL: u16 = 0x17;
    /// [`VlArbitration`](super::VlArbitration).
    pub const VL_ARBITRATION: u16 = 0x18;
    /// [`LinearForwarding`](super::LinearForwarding).
    pub const LINEAR_FORWARDING: u16 = 0x19;
    /// [`MulticastForwarding`](super::MulticastForwarding).
    pub const MULTICAST_FORWARDING: u16 = 0x1b;
    /// [`SmInfo`](super::SmInfo).
    pub const SM_INFO: u16 = 0x20;
    /// [`PortSamplesControl`](super::PortSamplesControl), of performance management.
    pub const PORT_SAMPLES_CONTROL: u16 = 0x10;
    /// [`PortSamplesResult`](super::PortSamplesResult), of performance management.
    pub const PORT_SAMPLES_RESULT: u16 = 0x11;
    /// [`PortCounters`](super::PortCounters), of performance management.
    pub const PORT_COUNTERS: u16 = 0x12;
    /// [`PortReceiveErrorDetails`](super::PortReceiveErrorDetails), of performance management.
    pub const PORT_RECEIVE_ERROR_DETAILS: u16 = 0x15;
    /// [`PortTransmitDiscardDetails`](super::PortTransmitDiscardDetails), of performance management.
    pub const PORT_TRANSMIT_DISCARD_DETAILS: u16 = 0x16;
    /// [`PortCountersExtended`](super::PortCountersExtended), of performance management.
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
    /// [`PortDataSl`](super::PortDataSl) of sent data, of performance management.
    pub const PORT_TRANSMIT_DATA_SL: u16 = 0x36;
    /// [`PortDataSl`](super::PortDataSl) of received data, of performance management.
    pub const PORT_RECEIVE_DATA_SL: u16 = 0x37;
}

named! {
    /// Kind of a node.
    NodeType(u8) {
        /// A channel adapter.
        CA = 1,
        /// A switch.
        SWITCH = 2,
        /// A router.
        ROUTER = 3,
    }
}

named! {
    /// State of a port's link layer (7.2.7).
    PortState(u8) {
        /// In a request: leave the state alone.
        NO_CHANGE = 0,
        /// No packets pass.
        DOWN = 1,
        /// Management packets pass.
        INIT = 2,
        /// Management packets pass. Other packets are received, and the first one makes the port active.
        ARMED = 3,
        /// All packets pass.
        ACTIVE = 4,
    }
}

named! {
    /// State of a port's physical layer (volume 2, 5.7).
    PhysicalState(u8) {
        /// In a request: leave the state alone.
        NO_CHANGE = 0,
        /// Waits for a signal.
        SLEEP = 1,
        /// Looks for a peer.
        POLLING = 2,
        /// Switched off.
        DISABLED = 3,
        /// Agrees with its peer.
        TRAINING = 4,
        /// Up.
        LINK_UP = 5,
        /// Recovers from errors.
        RECOVERY = 6,
    }
}

layout! {
    /// Attributes of a node (14.2.5.3).
    NodeInfo {
        /// Version of the MAD format.
        base_version: u8 = 0, 8;
        /// Version of the subnet management class.
        class_version: u8 = 8, 8;
        /// Kind of node.
        kind: NodeType = 16, 8;
        /// Number of physical ports.
        ports: u8 = 24, 8;
        /// GUID of the system that the node is a part of.
        system_guid: u64 = 32, 64;
        /// GUID of the node.
        node_guid: u64 = 96, 64;
        /// GUID of the port by which the request arrived. For a switch, that of port 0.
        port_guid: u64 = 160, 64;
        /// Entries of the partition table of the channel adapter or of port 0.
        partition_cap: u16 = 224, 16;
        /// Device number of the vendor.
        device_id: u16 = 240, 16;
        /// Revision.
        revision: u32 = 256, 32;
        /// Number of the port by which the request arrived.
        local_port: u8 = 288, 8;
        /// OUI of the vendor.
        vendor_id: u32 = 296, 24;
    }
}

layout! {
    /// A node's human-readable name (14.2.5.2) in UTF-8, padded with zeros.
    NodeDescription {
        /// The bytes.
        text: [u8; 64] = 0, 512;
    }
}

impl NodeDescription {
    /// Creates a description from the first 64 bytes of a text.
    pub fn new(text: &str) -> Self {
        let mut description = Self::default();
        for (to, from) in description.text.iter_mut().zip(text.bytes()) {
            *to = from;
        }
        description
    }

    /// Returns the text without its padding.
    pub fn text(&self) -> &[u8] {
        let end = self.text.iter().position(|byte| *byte == 0);
        &self.text[..end.unwrap_or(self.text.len())]
    }
}

layout! {
    /// Attributes of a switch (14.2.5.4).
    SwitchInfo {
        /// Number of LIDs in the linear forwarding table.
        linear_cap: u16 = 0, 16;
        /// Number of LIDs in the random forwarding table, 0 if there is none.
        random_cap: u16 = 16, 16;
        /// Number of LIDs in the multicast forwarding table.
        multicast_cap: u16 = 32, 16;
        /// Highest LID in use in the linear forwarding table.
        linear_top: u16 = 48, 16;
        /// Port for LIDs that are not in a random forwarding table.
        default_port: u8 = 64, 8;
        /// Port for multicast packets that no table covers.
        default_multicast_primary: u8 = 72, 8;
        /// Port for multicast packets that no table covers and that arrived by the primary port.
        default_multicast_not_primary: u8 = 80, 8;
        /// How long a packet may stay in the switch, in the encoding of [`time_of`]. Above 19, there is no limit.
        life_time: u8 = 88, 5;
        /// The state of a port has changed. Writing 1 clears it.
        state_change: bool = 93, 1;
        /// Optimized programming of SL to VL tables.
        optimized_sl_to_vl: u8 = 94, 2;
        /// Number of LIDs for each port of a random forwarding table.
        lids_per_port: u16 = 96, 16;
        /// Number of entries in the partition table of each external port.
        partition_enforcement_cap: u16 = 112, 16;
        /// Ports can check partitions of incoming packets.
        inbound_enforcement: bool = 128, 1;
        /// Ports can check partitions of outgoing packets.
        outbound_enforcement: bool = 129, 1;
        /// Ports can discard incoming raw packets.
        filter_raw_inbound: bool = 130, 1;
        /// Ports can discard outgoing raw packets.
        filter_raw_outbound: bool = 131, 1;
        /// Port 0 works like a port of a channel adapter.
        enhanced_port_0: bool = 132, 1;
        /// Highest LID in use in the multicast forwarding table, if the capability mask says that the field exists.
        multicast_top: u16 = 144, 16;
    }
}

layout! {
    /// Eight GUIDs of a port (14.2.5.5).
    GuidInfo {
        /// The GUIDs. The first one of the first block is the one that the port was built with.
        guids: [u64; 8] = 0, 512;
    }
}

layout! {
    /// Attributes of a port (14.2.5.6).
    PortInfo {
        /// Management key.
        m_key: u64 = 0, 64;
        /// Upper half of the port's GIDs.
        gid_prefix: u64 = 64, 64;
        /// Base LID.
        lid: Lid = 128, 16;
        /// Base LID of the master subnet manager.
        sm_lid: Lid = 144, 16;
        /// [Capabilities](crate::attributes::capability).
        capability_mask: u32 = 160, 32;
        /// Diagnostic code.
        diagnostic: u16 = 192, 16;
        /// Seconds from a wrong management key to the end of the protection, 0 for no end.
        m_key_lease: u16 = 208, 16;
        /// Number of the port by which the request arrived.
        local_port: u8 = 224, 8;
        /// [Widths](crate::attributes::width) that are enabled.
        width_enabled: u8 = 232, 8;
        /// Widths that are supported.
        width_supported: u8 = 240, 8;
        /// Width in use.
        width_active: u8 = 248, 8;
        /// [Speeds](crate::attributes::speed) that are supported.
        speed_supported: u8 = 256, 4;
        /// State of the link layer.
        state: PortState = 260, 4;
        /// State of the physical layer.
        physical_state: PhysicalState = 264, 4;
        /// State that the physical layer goes to when the link goes down: sleep or polling.
        down_default: PhysicalState = 268, 4;
        /// How the management key protects the port.
        m_key_protection: u8 = 272, 2;
        /// LID mask count: the base-2 logarithm of the port's number of LIDs.
        lmc: u8 = 277, 3;
        /// Speed in use.
        speed_active: u8 = 280, 4;
        /// Speeds that are enabled.
        speed_enabled: u8 = 284, 4;
        /// Maximum MTU in use on the link, in the encoding of [`mtu_of`].
        neighbor_mtu: u8 = 288, 4;
        /// Service level to the master subnet manager.
        sm_sl: u8 = 292, 4;
        /// Lanes that are supported, in the encoding of [`lanes_of`].
        vl_cap: u8 = 296, 4;
        /// What the manager wants to be kept when the port is initialized.
        init_type: u8 = 300, 4;
        /// Limit on high-priority packets.
        vl_high_limit: u8 = 304, 8;
        /// Entries of the high-priority arbitration table.
        vl_arbitration_high_cap: u8 = 312, 8;
        /// Entries of the low-priority arbitration table.
        vl_arbitration_low_cap: u8 = 320, 8;
        /// What was kept when the port was initialized.
        init_type_reply: u8 = 328, 4;
        /// Maximum MTU that the port supports.
        mtu_cap: u8 = 332, 4;
        /// Number of packets discarded in a row after which a lane stalls.
        vl_stall_count: u8 = 336, 3;
        /// How long a packet may stay at the head of a queue, in the encoding of [`time_of`]. Above 19, there is no
        /// limit.
        head_of_queue_life: u8 = 339, 5;
        /// Lanes in use.
        operational_vls: u8 = 344, 4;
        /// The port checks the partitions of incoming packets.
        enforce_inbound: bool = 348, 1;
        /// The port checks the partitions of outgoing packets.
        enforce_outbound: bool = 349, 1;
        /// The port discards incoming raw packets.
        filter_raw_inbound: bool = 350, 1;
        /// The port discards outgoing raw packets.
        filter_raw_outbound: bool = 351, 1;
        /// Number of packets with a wrong management key.
        m_key_violations: u16 = 352, 16;
        /// Number of packets with a wrong partition key.
        p_key_violations: u16 = 368, 16;
        /// Number of packets with a wrong Q_Key.
        q_key_violations: u16 = 384, 16;
        /// Number of GUIDs that the port can have.
        guid_cap: u8 = 400, 8;
        /// In a request: clients must repeat their registrations and subscriptions with the manager.
        client_reregister: bool = 408, 1;
        /// Suppresses traps about partition keys of multicast packets.
        multicast_trap_suppression: u8 = 409, 2;
        /// Maximum delay of a packet through the subnet, in the encoding of [`time_of`]. It is also the minimum time
        /// between traps.
        subnet_timeout: u8 = 411, 5;
        /// Time that the port takes to respond, in the encoding of [`time_of`].
        response_time: u8 = 419, 5;
        /// Number of physical layer errors above which the integrity of the link is in doubt.
        local_physical_errors: u8 = 424, 4;
        /// Number of consecutive overruns above which they are excessive.
        overrun_errors: u8 = 428, 4;
        /// Hint for flow control.
        max_credit_hint: u16 = 432, 16;
        /// Round-trip latency of the link, in units of 4 ns.
        round_trip: u32 = 456, 24;
        /// More capabilities, valid if [`CAPABILITY_MASK_2`](crate::attributes::capability::CAPABILITY_MASK_2) is set.
        capability_mask_2: u16 = 480, 16;
        /// Extended speed in use, 0 for none.
        extended_speed_active: u8 = 496, 4;
        /// Extended speeds that are supported.
        extended_speed_supported: u8 = 500, 4;
        /// Extended speeds that are enabled.
        extended_speed_enabled: u8 = 507, 5;
    }
}

/// Bits of [`PortInfo::capability_mask`].
pub mod capability {
    /// The port has a subnet manager.
    pub const SM: u32 = 1 << 1;
    /// The port supports notices.
    pub const NOTICE: u32 = 1 << 2;
    /// The port supports traps.
    pub const TRAP: u32 = 1 << 3;
    /// Automatic path migration.
    pub const AUTOMATIC_MIGRATION: u32 = 1 << 5;
    /// SL to VL tables.
    pub const SL_TO_VL: u32 = 1 << 6;
    /// System image GUID.
    pub const SYSTEM_GUID: u32 = 1 << 11;
    /// External ports of the switch send traps about partition keys.
    pub const SWITCH_PKEY_TRAP: u32 = 1 << 12;
    /// Speeds above 10 Gb/s per lane.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// [`PortInfo::capability_mask_2`](super::PortInfo::capability_mask_2) is valid.
    pub const CAPABILITY_MASK_2: u32 = 1 << 15;
    /// Communication management.
    pub const COMMUNICATION_MANAGEMENT: u32 = 1 << 16;
    /// Traps about changes of this mask.
    pub const CAPABILITY_NOTICE: u32 = 1 << 22;
    /// [`PortInfo::client_reregister`](super::PortInfo::client_reregister).
    pub const CLIENT_REREGISTRATION: u32 = 1 << 25;
    /// [`SwitchInfo::multicast_top`](super::SwitchInfo::multicast_top).
    pub const MULTICAST_TOP: u32 = 1 << 30;
}

/// Bits of link widths.
pub mod width {
    /// One lane.
    pub const X1: u8 = 1;
    /// Four lanes.
    pub const X4: u8 = 2;
    /// Eight lanes.
    pub const X8: u8 = 4;
    /// Twelve lanes.
    pub const X12: u8 = 8;
}

/// Bits of link speeds. Those of extended speeds are in [`PortInfo::extended_speed_active`] and its neighbors.
pub mod speed {
    /// 2.5 Gb/s per lane.
    pub const SDR: u8 = 1;
    /// 5 Gb/s per lane.
    pub const DDR: u8 = 2;
    /// 10 Gb/s per lane.
    pub const QDR: u8 = 4;
    /// 14.0625 Gb/s per lane, extended.
    pub const FDR: u8 = 1;
    /// 25.78125 Gb/s per lane, extended.
    pub const EDR: u8 = 2;
    /// 53.125 Gb/s per lane, extended.
    pub const HDR: u8 = 4;
}

layout! {
    /// 32 entries of a partition table (14.2.5.7).
    PKeyTable {
        /// Partition keys. An empty entry is 0.
        keys: [u16; 32] = 0, 512;
    }
}

layout! {
    /// Lanes of the service levels (14.2.5.8).
    SlToVl {
        /// Lanes. Packets to lane 15 are discarded.
        lanes: [u8; 16] = 0, 64;
    }
}

layout! {
    /// 32 entries of an arbitration table (14.2.5.9).
    VlArbitration {
        /// Lane in the upper byte, and weight in units of 64 bytes in the lower one.
        entries: [u16; 32] = 0, 512;
    }
}

layout! {
    /// 64 entries of a linear forwarding table (14.2.5.10).
    LinearForwarding {
        /// Port of each LID. Packets to port 255 are discarded.
        ports: [u8; 64] = 0, 512;
    }
}

layout! {
    /// 32 entries of a multicast forwarding table (14.2.5.12), for 16 ports.
    MulticastForwarding {
        /// A bit mask of ports for each LID.
        ports: [u16; 32] = 0, 512;
    }
}

named! {
    /// State of a subnet manager (14.4.1).
    SmState(u8) {
        /// It is not active.
        NOT_ACTIVE = 0,
        /// It searches the subnet for other managers.
        DISCOVERING = 1,
        /// It waits for the master to fail.
        STANDBY = 2,
        /// It manages the subnet.
        MASTER = 3,
    }
}

layout! {
    /// Attributes of a subnet manager (14.2.5.13).
    SmInfo {
        /// GUID of the manager's port.
        guid: u64 = 0, 64;
        /// Key by which managers trust each other.
        sm_key: u64 = 64, 64;
        /// Counter that increases as long as the manager works.
        activity: u32 = 128, 32;
        /// Priority. 15 is the highest.
        priority: u8 = 160, 4;
        /// State.
        state: SmState = 164, 4;
    }
}

named! {
    /// Kind of a notice (13.4.8.2).
    NoticeType(u8) {
        /// Something is broken.
        FATAL = 0,
        /// Something needs attention now.
        URGENT = 1,
        /// A packet violated a protection, such as that by a key.
        SECURITY = 2,
        /// Something that a subnet manager has to act on.
        SUBNET_MANAGEMENT = 3,
        /// Something has changed.
        INFORMATION = 4,
    }
}

layout! {
    /// A notice of an event (13.4.8.2). [`Trap`](crate::trap::Trap) has the details.
    Notice {
        /// The notice is one that the standard defines.
        generic: bool = 0, 1;
        /// Kind.
        kind: NoticeType = 1, 7;
        /// Type of the node that sent the notice.
        producer: u32 = 8, 24;
        /// Number of the trap.
        number: u16 = 32, 16;
        /// LID of the sender.
        issuer: Lid = 48, 16;
        /// Alternates with each notice that is fetched.
        toggle: bool = 64, 1;
        /// Number of notices that wait to be fetched.
        count: u16 = 65, 15;
        /// Details, in a layout that depends on the number.
        details: [u8; 54] = 80, 432;
    }
}

layout! {
    /// What a port supports in a class of management (13.4.8.1).
    ClassPortInfo {
        /// Version of the MAD format.
        base_version: u8 = 0, 8;
        /// Version of the class.
        class_version: u8 = 8, 8;
        /// Capabilities: bit 0 for traps, bit 1 for notices, and from bit 8 on those of the class.
        capability_mask: u16 = 16, 16;
        /// More capabilities of the class.
        capability_mask_2: u32 = 32, 27;
        /// Time that a response takes, in the encoding of [`time_of`].
        response_time: u8 = 59, 5;
        /// GID to which requests should go instead.
        redirect_gid: [u8; 16] = 64, 128;
        /// Traffic class to that GID.
        redirect_traffic_class: u8 = 192, 8;
        /// Service level to that GID.
        redirect_sl: u8 = 200, 4;
        /// Flow label to that GID.
        redirect_flow_label: u32 = 204, 20;
        /// LID to which requests should go instead.
        redirect_lid: Lid = 224, 16;
        /// Partition key of redirected requests.
        redirect_pkey: u16 = 240, 16;
        /// QP to which requests should go instead.
        redirect_qp: u32 = 264, 24;
        /// Q_Key of that QP.
        redirect_qkey: u32 = 288, 32;
        /// GID to which traps go.
        trap_gid: [u8; 16] = 320, 128;
        /// Traffic class of traps.
        trap_traffic_class: u8 = 448, 8;
        /// Service level of traps.
        trap_sl: u8 = 456, 4;
        /// Flow label of traps.
        trap_flow_label: u32 = 460, 20;
        /// LID to which traps go.
        trap_lid: Lid = 480, 16;
        /// Partition key of traps.
        trap_pkey: u16 = 496, 16;
        /// Hop limit of traps.
        trap_hop_limit: u8 = 512, 8;
        /// QP to which traps go.
        trap_qp: u32 = 520, 24;
        /// Q_Key of that QP.
        trap_qkey: u32 = 544, 32;
    }
}

layout! {
    /// Counters of a port (16.1.3.5). They do not wrap, but stop at their maximum.
    PortCounters {
        /// Port number.
        port_select: u8 = 8, 8;
        /// In a request to set: the counters to set, in the order of the following fields.
        select: u16 = 16, 16;
        /// Number of symbol errors.
        symbol_errors: u16 = 32, 16;
        /// Number of times that the link recovered from errors.
        link_error_recovery: u8 = 48, 8;
        /// Number of times that the link failed to recover or was taken down.
        link_downed: u8 = 56, 8;
        /// Number of packets received with errors.
        receive_errors: u16 = 64, 16;
        /// Number of packets received that an earlier node had marked as bad.
        receive_remote_physical_errors: u16 = 80, 16;
        /// Number of packets that a switch could not forward.
        receive_switch_relay_errors: u16 = 96, 16;
        /// Number of packets that could not be sent.
        transmit_discards: u16 = 112, 16;
        /// Number of packets that the port may not send.
        transmit_constraint_errors: u8 = 128, 8;
        /// Number of packets that the port may not receive.
        receive_constraint_errors: u8 = 136, 8;
        /// More bits of `select`.
        select_2: u8 = 144, 8;
        /// Number of times that there were too many errors of the physical layer.
        local_link_integrity_errors: u8 = 152, 4;
        /// Number of times that there were too many overruns.
        excessive_buffer_overruns: u8 = 156, 4;
        /// Number of packets to QP 1 that were dropped.
        qp1_dropped: u16 = 160, 16;
        /// Number of management packets dropped for lack of room.
        vl15_dropped: u16 = 176, 16;
        /// Words of 4 bytes sent, from the local route header to the invariant CRC.
        transmit_data: u32 = 192, 32;
        /// Words of 4 bytes received.
        receive_data: u32 = 224, 32;
        /// Packets sent.
        transmit_packets: u32 = 256, 32;
        /// Packets received.
        receive_packets: u32 = 288, 32;
        /// Ticks in which nothing could be sent.
        transmit_wait: u32 = 320, 32;
    }
}

named! {
    /// What a port does about a sample (16.1.3.2).
    SampleStatus(u8) {
        /// The sample is complete, or there has been none.
        DONE = 0,
        /// The time before the sample has not passed.
        WAITING = 1,
        /// The port counts.
        RUNNING = 2,
    }
}

/// Number of counters of a sample.
pub const SAMPLE_COUNTERS: usize = 15;

layout! {
    /// How a port samples its counters: counts for a while, from a moment on (16.1.3.2).
    PortSamplesControl {
        /// Opcode of the packets that some optional counters count.
        op_code: u8 = 0, 8;
        /// Port number.
        port_select: u8 = 8, 8;
        /// Length of a tick, less 1, in the time that a lane takes for 10 bits.
        tick: u8 = 16, 8;
        /// Number of bits of a counter: 16 plus 4 times this.
        counter_width: u8 = 29, 3;
        /// What each of the first 10 counters can count: 0 for nothing, 1 for what is mandatory.
        counter_masks_0_to_9: [u8; 10] = 34, 30;
        /// What each of the other counters can count.
        counter_masks_10_to_14: [u8; 5] = 65, 15;
        /// Number of further mechanisms, which the modifier selects.
        sample_mechanisms: u8 = 80, 8;
        /// State of the sample.
        sample_status: SampleStatus = 94, 2;
        /// Optional counters that the port has.
        option_mask: u64 = 96, 64;
        /// Counters of the vendor that the port has.
        vendor_mask: u64 = 160, 64;
        /// Ticks before the sample.
        sample_start: u32 = 224, 32;
        /// Ticks of the sample.
        sample_interval: u32 = 256, 32;
        /// Number by which the requester recognizes the sample.
        tag: u16 = 288, 16;
        /// What each counter counts.
        counter_select: [u16; 15] = 304, 240;
        /// Optional counters that the port has for samples only.
        samples_only_option_mask: u64 = 576, 64;
    }
}

layout! {
    /// The result of a sample (16.1.3.4).
    PortSamplesResult {
        /// Number by which the requester recognizes the sample.
        tag: u16 = 0, 16;
        /// State of the sample.
        sample_status: SampleStatus = 30, 2;
        /// Counters.
        counters: [u32; 15] = 32, 480;
    }
}

layout! {
    /// Why packets that arrived were dropped (16.1.4.1). The first three counters are parts of
    /// [`receive_errors`](PortCounters::receive_errors), the others of
    /// [`receive_switch_relay_errors`](PortCounters::receive_switch_relay_errors).
    PortReceiveErrorDetails {
        /// Port number.
        port_select: u8 = 8, 8;
        /// In a request to set: the counters to set, in the order of the following fields.
        select: u16 = 16, 16;
        /// Packets with a wrong CRC or length.
        local_physical_errors: u16 = 32, 16;
        /// Packets with an invalid header or lane.
        malformed_packet_errors: u16 = 48, 16;
        /// Packets for which there was no buffer.
        buffer_overrun_errors: u16 = 64, 16;
        /// Packets to a LID without a port.
        dlid_mapping_errors: u16 = 80, 16;
        /// Packets whose service level has no lane at the port that they would leave by.
        vl_mapping_errors: u16 = 96, 16;
        /// Packets that would leave by the port by which they arrived.
        looping_errors: u16 = 112, 16;
    }
}

layout! {
    /// Why packets were not sent (16.1.4.2), as parts of [`transmit_discards`](PortCounters::transmit_discards).
    PortTransmitDiscardDetails {
        /// Port number.
        port_select: u8 = 8, 8;
        /// In a request to set: the counters to set, in the order of the following fields.
        select: u16 = 16, 16;
        /// The port was not active.
        inactive: u16 = 32, 16;
        /// The packet was longer than the MTU.
        neighbor_mtu: u16 = 48, 16;
        /// The packet was too long in the switch.
        switch_lifetime: u16 = 64, 16;
        /// The packet was the first of its lane for too long.
        head_of_queue_lifetime: u16 = 80, 16;
    }
}

layout! {
    /// Data that a port sent or received, by service level (16.1.4).
    PortDataSl {
        /// Port number.
        port_select: u8 = 8, 8;
        /// In a request to set: the counters to set.
        select: u16 = 16, 16;
        /// Words of 4 bytes.
        data: [u32; 16] = 32, 512;
    }
}

layout! {
    /// 64-bit counters of a port (16.1.4.11).
    PortCountersExtended {
        /// Port number.
        port_select: u8 = 8, 8;
        /// In a request to set: the counters to set, in the order of the following fields.
        select: u16 = 16, 16;
        /// In a request to set: the further counters to set.
        select_2: u32 = 32, 32;
        /// Words of 4 bytes sent.
        transmit_data: u64 = 64, 64;
        /// Words of 4 bytes received.
        receive_data: u64 = 128, 64;
        /// Packets sent.
        transmit_packets: u64 = 192, 64;
        /// Packets received.
        receive_packets: u64 = 256, 64;
        /// Unicast packets sent.
        unicast_transmit_packets: u64 = 320, 64;
        /// Unicast packets received.
        unicast_receive_packets: u64 = 384, 64;
        /// Multicast packets sent.
        multicast_transmit_packets: u64 = 448, 64;
        /// Multicast packets received.
        multicast_receive_packets: u64 = 512, 64;
        /// Number of symbol errors. This and the following counters are those of [`PortCounters`], in the order of
        /// `select_2`.
        symbol_errors: u64 = 576, 64;
        /// Number of times that the link recovered from errors.
        link_error_recovery: u64 = 640, 64;
        /// Number of times that the link failed to recover or was taken down.
        link_downed: u64 = 704, 64;
        /// Number of packets received with errors.
        receive_errors: u64 = 768, 64;
        /// Number of packets received that an earlier node had marked as bad.
        receive_remote_physical_errors: u64 = 832, 64;
        /// Number of packets that a switch could not forward.
        receive_switch_relay_errors: u64 = 896, 64;
        /// Number of packets that could not be sent.
        transmit_discards: u64 = 960, 64;
        /// Number of packets that the port may not send.
        transmit_constraint_errors: u64 = 1024, 64;
        /// Number of packets that the port may not receive.
        receive_constraint_errors: u64 = 1088, 64;
        /// Number of times that there were too many errors of the physical layer.
        local_link_integrity_errors: u64 = 1152, 64;
        /// Number of times that there were too many overruns.
        excessive_buffer_overruns: u64 = 1216, 64;
        /// Number of management packets dropped for lack of room.
        vl15_dropped: u64 = 1280, 64;
        /// Ticks in which nothing could be sent.
        transmit_wait: u64 = 1344, 64;
        /// Number of packets to QP 1 that were dropped.
        qp1_dropped: u64 = 1408, 64;
    }
}

/// Returns the nanoseconds of an encoded time: 4.096 µs times 2 to the power of `exponent`, which is at most 31.
pub const fn time_of(exponent: u8) -> u64 {
    let exponent = if exponent > 31 { 31 } else { exponent };
    4096 << exponent
}

/// Returns the bytes of an encoded MTU, or `None` if the code is not valid.
pub const fn mtu_of(code: u8) -> Option<usize> {
    match code {
        1..=5 => Some(128 << code),
        _ => None,
    }
}

/// Returns the number of data lanes of an encoded lane count, or `None` if the code is not valid.
pub const fn lanes_of(code: u8) -> Option<u8> {
    match code {
        1 => Some(1),
        2 => Some(2),
        3 => Some(4),
        4 => Some(8),
        5 => Some(15),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No field overlaps the one before it, all are within their attribute, and each is read from its place.
    #[test]
    fn fields_are_in_order_and_apart() {
        macro_rules! check {
            ($($name:ident: $length:literal),*) => {$({
                let mut end = 0;
                for &(field, at, bits) in $name::FIELDS {
                    assert!(at >= end, "{}.{field}", stringify!($name));
                    end = at + bits;
                    assert!(end <= $length * 8, "{}.{field}", stringify!($name));
                }
                let ones = $name::read(&[0xff; $length]);
                let mut bytes = [0; $length];
                ones.write(&mut bytes);
                for bit in 0..$length * 8 {
                    let known = $name::FIELDS.iter().any(|&(_, at, bits)| (at..at + bits).contains(&bit));
                    assert_eq!(bytes[bit / 8] >> (7 - bit % 8) & 1 == 1, known, "{} {bit}", stringify!($name));
                }
            })*};
        }
        check!(
            NodeInfo: 40, NodeDescription: 64, SwitchInfo: 20, GuidInfo: 64, PortInfo: 64, PKeyTable: 64, SlToVl: 8,
            VlArbitration: 64, LinearForwarding: 64, MulticastForwarding: 64, SmInfo: 24, Notice: 64, ClassPortInfo: 72,
            PortCounters: 44, PortCountersExtended: 184, PortSamplesControl: 80, PortSamplesResult: 64,
            PortReceiveErrorDetails: 16, PortTransmitDiscardDetails: 12, PortDataSl: 68
        );
    }

    /// Bytes that libibmad of rdma-core made from these values.
    #[test]
    fn others_have_the_same_layout() {
        let bytes = [
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0xfe, 0x80, 0, 0, 0, 0, 0, 1, 0x12,
            0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x13, 0x57, 0x24, 0x68, 0x09, 0x03, 0x0b,
            0x02, 0x74, 0x52, 0x45, 0x46, 0x53, 0x49, 0x21, 0x43, 0x65, 0x64, 0xb3, 0x3b, 1, 2, 3,
            4, 5, 6, 0x20, 0x92, 0x11, 0x87, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        let info = PortInfo {
            m_key: 0x1122_3344_5566_7788,
            gid_prefix: 0xfe80_0000_0000_0001,
            lid: 0x1234,
            sm_lid: 0x5678,
            capability_mask: 0x9abc_def0,
            diagnostic: 0x1357,
            m_key_lease: 0x2468,
            local_port: 9,
            width_enabled: 3,
            width_supported: 11,
            width_active: 2,
            speed_supported: 7,
            state: PortState::ACTIVE,
            physical_state: PhysicalState::LINK_UP,
            down_default: PhysicalState::POLLING,
            m_key_protection: 1,
            lmc: 5,
            speed_active: 4,
            speed_enabled: 6,
            neighbor_mtu: 5,
            sm_sl: 3,
            vl_cap: 4,
            init_type: 9,
            vl_high_limit: 0x21,
            vl_arbitration_high_cap: 0x43,
            vl_arbitration_low_cap: 0x65,
            init_type_reply: 6,
            mtu_cap: 4,
            vl_stall_count: 5,
            head_of_queue_life: 0x13,
            operational_vls: 3,
            enforce_inbound: true,
            filter_raw_inbound: true,
            filter_raw_outbound: true,
            m_key_violations: 0x0102,
            p_key_violations: 0x0304,
            q_key_violations: 0x0506,
            guid_cap: 0x20,
            client_reregister: true,
            subnet_timeout: 0x12,
            response_time: 0x11,
            local_physical_errors: 8,
            overrun_errors: 7,
            ..PortInfo::default()
        };
        assert_eq!((info.to_data(), PortInfo::read(&bytes)), (bytes, info));
        let switch = SwitchInfo {
            linear_cap: 0xc000,
            multicast_cap: 0x400,
            linear_top: 0x77,
            default_port: 0xff,
            default_multicast_primary: 1,
            default_multicast_not_primary: 2,
            life_time: 0x12,
            state_change: true,
            partition_enforcement_cap: 32,
            inbound_enforcement: true,
            filter_raw_outbound: true,
            multicast_top: 0xc005,
            ..SwitchInfo::default()
        };
        let bytes = [
            0xc0, 0, 0, 0, 4, 0, 0, 0x77, 0xff, 1, 2, 0x94, 0, 0, 0, 0x20, 0x90, 0, 0xc0, 5,
        ];
        assert_eq!(
            (&switch.to_data()[..20], SwitchInfo::read(&bytes)),
            (&bytes[..], switch)
        );
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        assert_eq!(
            (mtu_of(0), mtu_of(1), mtu_of(5), mtu_of(6)),
            (None, Some(256), Some(4096), None)
        );
        assert_eq!(
            (lanes_of(0), lanes_of(4), lanes_of(5), lanes_of(6)),
            (None, Some(8), Some(15), None)
        );
        assert_eq!(time_of(18), 1_073_741_824);
        assert_eq!(time_of(255), time_of(31));
    }
}
