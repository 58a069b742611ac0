// SPDX-License-Identifier: GPL-2.0

//! Capabilities and limits of a device.

use kernel::{
    bits::bit_u64,
    impl_flags,
    prelude::*, //
};

use crate::bindings;

impl_flags!(
    /// Capabilities of a device (`enum ib_device_cap_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct Capabilities(u64);

    /// A capability of a device.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Capability {
        /// Counts bad P_Keys.
        BadPkeyCounter = bit_u64(1),
        /// Counts bad Q_Keys.
        BadQkeyCounter = bit_u64(2),
        /// Connections can have alternate paths and migrate to them.
        AutomaticPathMigration = bit_u64(4),
        /// Checks the state that a modify verb gives as the current one.
        CurrentQpState = bit_u64(7),
        /// Raises an event when a port becomes active.
        PortActiveEvent = bit_u64(10),
        /// Has a system image GUID.
        SystemImageGuid = bit_u64(11),
        /// Sends RNR NAKs for reliable connections.
        RcRnrNak = bit_u64(12),
        /// Can resize shared receive queues.
        SrqResize = bit_u64(13),
        /// Has memory windows of type 1.
        MemoryWindow = bit_u64(17),
        /// Fills in and checks the checksums of IP packets in datagrams of IP over InfiniBand.
        UdIpChecksum = bit_u64(18),
        /// Has extended reliable connections.
        Xrc = bit_u64(20),
        /// Registers memory by work requests, and invalidates local and remote keys.
        MemoryExtensions = bit_u64(21),
        /// Has memory windows of type 2B.
        MemoryWindowType2B = bit_u64(24),
        /// Fills in and checks the checksums of IP packets in raw packets.
        RawIpChecksum = bit_u64(26),
        /// Directs frames to queue pairs by flows.
        ManagedFlowSteering = bit_u64(29),
        /// Receives raw packets with their frame check sequence.
        RawScatterFcs = bit_u64(34),
        /// Flushes data that peers wrote until it is visible to the whole machine.
        FlushGlobal = bit_u64(38),
        /// Flushes data that peers wrote until it survives a loss of power.
        FlushPersistent = bit_u64(39),
        /// Performs atomic 8-byte writes for peers.
        AtomicWrite = bit_u64(40),
    }
);

/// Scope of atomic operations (`enum ib_atomic_cap`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Atomicity {
    /// No atomic operations.
    None,
    /// Atomic with regard to other operations of this device.
    Device,
    /// Atomic with regard to the whole machine.
    Global,
}

impl_flags!(
    /// Operations that work on memory regions with on-demand paging
    /// (`enum ib_odp_transport_cap_bits`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct OnDemandOperations(u32);

    /// An operation that may find pages missing.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum OnDemandOperation {
        /// Sends.
        Send = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND,
        /// Receives.
        Receive = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV,
        /// RDMA writes, at both ends.
        Write = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE,
        /// RDMA reads, at both ends.
        Read = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_READ,
        /// Atomic operations, at both ends.
        Atomic = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC,
        /// Receives from shared receive queues.
        SharedReceive = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SRQ_RECV,
        /// Flushes.
        Flush = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH,
        /// Atomic writes.
        AtomicWrite = bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_ATOMIC_WRITE,
    }
);

impl OnDemandOperations {
    /// Returns the operations in the encoding of the verbs.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Operations that work with on-demand paging (`struct ib_odp_caps`), for each service. The device
/// has on-demand paging if there is any.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct OnDemandPaging {
    /// Reliable connections.
    pub reliable: OnDemandOperations,
    /// Unreliable connections.
    pub unreliable: OnDemandOperations,
    /// Extended reliable connections.
    pub xrc: OnDemandOperations,
    /// Datagrams.
    pub datagram: OnDemandOperations,
    /// Whether a region can span a whole address space (implicit ODP), if there is on-demand
    /// paging.
    pub implicit: bool,
}

/// Receive scaling (`struct ib_rss_caps`) of queue pairs of type
/// [`RawPacket`](crate::qp::Type::RawPacket). A limit of 0 means that there is none.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveScaling {
    /// Maximum number of receive work queues.
    pub max_queues: u32,
    /// Maximum number of indirection tables.
    pub max_tables: u32,
    /// Maximum number of entries of a table.
    pub max_entries: u32,
}

/// Attributes of a device (`struct ib_device_attr`). A limit of 0 means that the device lacks the
/// feature.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceAttr {
    /// Firmware version: major in bits 47 to 32, minor in 31 to 16, patch in 15 to 0.
    pub firmware_version: u64,
    /// GUID of the system; its textual form starts with the most significant byte.
    pub system_image_guid: u64,
    /// Vendor ID.
    pub vendor_id: u32,
    /// Part number that the vendor assigned.
    pub vendor_part_id: u32,
    /// Version of the hardware.
    pub hardware_version: u32,
    /// Capabilities of the device.
    pub capabilities: Capabilities,
    /// Maximum length of a memory region in bytes.
    pub max_mr_size: u64,
    /// Supported page sizes: bit `n` set means 2 to the power of `n` bytes.
    pub page_sizes: u64,
    /// Maximum number of queue pairs.
    pub max_qp: u32,
    /// Maximum number of work requests in a queue of a queue pair.
    pub max_qp_wr: u32,
    /// Maximum scatter/gather elements of a send; not 0 if the kernel uses the device.
    pub max_send_sge: u32,
    /// Maximum scatter/gather elements of a receive.
    pub max_recv_sge: u32,
    /// Maximum scatter/gather elements of an RDMA read; not 0 if the kernel uses the device.
    pub max_sge_rd: u32,
    /// Maximum number of completion queues.
    pub max_cq: u32,
    /// Maximum entries of a completion queue.
    pub max_cqe: u32,
    /// Maximum number of completions by which an event can be delayed; 0 without moderation.
    pub max_cq_moderation_count: u16,
    /// Maximum time in microseconds by which an event can be delayed; 0 without moderation.
    pub max_cq_moderation_period: u16,
    /// Maximum number of shared receive queues.
    pub max_srq: u32,
    /// Maximum number of receives in a shared receive queue.
    pub max_srq_wr: u32,
    /// Maximum scatter/gather elements of a receive in a shared receive queue.
    pub max_srq_sge: u32,
    /// Maximum number of multicast groups.
    pub max_multicast_groups: u32,
    /// Maximum number of queue pairs in a multicast group.
    pub max_multicast_members: u32,
    /// Maximum number of queue pairs in all multicast groups together.
    pub max_multicast_attachments: u32,
    /// Maximum number of memory regions.
    pub max_mr: u32,
    /// Maximum number of pages of a fast registration; not 0 if the device has fast registration.
    pub max_fast_registration_pages: u32,
    /// Maximum number of pieces of data, and of protection information, in a
    /// [region for integrity](crate::integrity). A device with such regions has all types of
    /// protection and both guards.
    pub max_integrity_pieces: u32,
    /// Maximum number of memory windows.
    pub max_mw: u32,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Maximum number of protection domains.
    pub max_pd: u32,
    /// Maximum number of address handles.
    pub max_ah: u32,
    /// Maximum RDMA reads and atomics outstanding at a queue pair as responder.
    pub max_qp_rd_atomic: u32,
    /// Maximum RDMA reads and atomics outstanding at a queue pair as initiator.
    pub max_qp_init_rd_atomic: u32,
    /// Maximum RDMA reads and atomics outstanding at the device as responder.
    pub max_res_rd_atomic: u32,
    /// Scope of atomic operations.
    pub atomicity: Atomicity,
    /// Number of P_Keys.
    pub max_pkeys: u16,
    /// Time within which the device sends an ACK: 4.096 µs times 2 to this power.
    pub ack_delay: u8,
    /// Operations that work with on-demand paging.
    pub on_demand_paging: OnDemandPaging,
    /// Whether the queue pairs of IP over InfiniBand can send in segments of at least 64 KiB in all
    /// ([`Segments`](crate::qp::CreationFlag::Segments)). Users in the kernel also look for
    /// [`UdIpChecksum`](Capability::UdIpChecksum).
    pub ud_segmentation: bool,
    /// Whether queue pairs can do without their own datagrams to groups
    /// ([`BlockOwnMulticast`](crate::qp::CreationFlag::BlockOwnMulticast)), for which users in the
    /// kernel look.
    pub blocks_own_multicast: bool,
    /// Whether queue pairs and receive work queues for raw packets can remove VLAN tags
    /// ([`StripVlan`](crate::qp::CreationFlag::StripVlan)).
    pub strips_vlan: bool,
    /// Receive scaling of queue pairs for raw packets.
    pub receive_scaling: ReceiveScaling,
    /// Mask of the valid bits of a completion timestamp.
    pub timestamp_mask: u64,
    /// Frequency of the timestamp clock in kHz.
    pub clock_khz: u64,
}

/// All types of protection.
// CAST: Small constants, of which C keeps a set in an `int`.
const PROTECTION_TYPES: c_int = (bindings::ib_signature_prot_cap_IB_PROT_T10DIF_TYPE_1
    | bindings::ib_signature_prot_cap_IB_PROT_T10DIF_TYPE_2
    | bindings::ib_signature_prot_cap_IB_PROT_T10DIF_TYPE_3)
    as c_int;

/// All guards.
// CAST: As above.
const GUARDS: c_int = (bindings::ib_signature_guard_cap_IB_GUARD_T10DIF_CRC
    | bindings::ib_signature_guard_cap_IB_GUARD_T10DIF_CSUM) as c_int;

impl DeviceAttr {
    /// Returns whether users in the kernel can rely on the limits, by some of which they divide
    /// (`rdma_rw_ctx_init`).
    pub(crate) fn serves_kernel(&self) -> bool {
        self.max_send_sge != 0 && self.max_sge_rd != 0
    }

    /// Writes the attributes into a zeroed C structure.
    pub(crate) fn write(&self, raw: &mut bindings::ib_device_attr) {
        raw.fw_ver = self.firmware_version;
        raw.sys_image_guid = self.system_image_guid.to_be();
        raw.vendor_id = self.vendor_id;
        raw.vendor_part_id = self.vendor_part_id;
        raw.hw_ver = self.hardware_version;
        raw.device_cap_flags = self.capabilities.0;
        // Users look for these capabilities in either of two places.
        if self.capabilities.contains(Capability::RawIpChecksum) {
            raw.raw_packet_caps |= bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_IP_CSUM;
        }
        if self.capabilities.contains(Capability::RawScatterFcs) {
            raw.raw_packet_caps |= bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_SCATTER_FCS;
        }
        if self.strips_vlan {
            raw.raw_packet_caps |= bindings::ib_raw_packet_caps_IB_RAW_PACKET_CAP_CVLAN_STRIPPING;
        }
        raw.max_mr_size = self.max_mr_size;
        raw.page_size_cap = self.page_sizes;
        raw.max_qp = self.max_qp;
        raw.max_qp_wr = self.max_qp_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_sge_rd = self.max_sge_rd;
        raw.max_cq = self.max_cq;
        raw.max_cqe = self.max_cqe;
        raw.cq_caps.max_cq_moderation_count = self.max_cq_moderation_count;
        raw.cq_caps.max_cq_moderation_period = self.max_cq_moderation_period;
        raw.max_srq = self.max_srq;
        raw.max_srq_wr = self.max_srq_wr;
        raw.max_srq_sge = self.max_srq_sge;
        raw.max_mcast_grp = self.max_multicast_groups;
        raw.max_mcast_qp_attach = self.max_multicast_members;
        raw.max_total_mcast_qp_attach = self.max_multicast_attachments;
        raw.max_mr = self.max_mr;
        raw.max_mw = self.max_mw;
        raw.max_dm_size = self.max_dm_size;
        // Users in the kernel divide by it, even if there is no fast registration
        // (`rdma_rw_mr_factor`).
        raw.max_fast_reg_page_list_len = self.max_fast_registration_pages.max(1);
        raw.max_pi_fast_reg_page_list_len = self.max_integrity_pieces;
        if self.max_integrity_pieces != 0 {
            let handover = bindings::ib_kernel_cap_flags_IBK_INTEGRITY_HANDOVER;
            raw.kernel_cap_flags |= u64::from(handover);
            raw.sig_prot_cap = PROTECTION_TYPES;
            raw.sig_guard_cap = GUARDS;
        }
        raw.max_pd = self.max_pd;
        raw.max_ah = self.max_ah;
        raw.max_qp_rd_atom = self.max_qp_rd_atomic;
        raw.max_qp_init_rd_atom = self.max_qp_init_rd_atomic;
        raw.max_res_rd_atom = self.max_res_rd_atomic;
        raw.atomic_cap = match self.atomicity {
            Atomicity::None => bindings::ib_atomic_cap_IB_ATOMIC_NONE,
            Atomicity::Device => bindings::ib_atomic_cap_IB_ATOMIC_HCA,
            Atomicity::Global => bindings::ib_atomic_cap_IB_ATOMIC_GLOB,
        };
        raw.max_pkeys = self.max_pkeys;
        raw.local_ca_ack_delay = self.ack_delay;
        let paging = &self.on_demand_paging;
        if *paging != OnDemandPaging::default() {
            raw.kernel_cap_flags |= u64::from(bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING);
            let mut general = bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT;
            if paging.implicit {
                general |= bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT_IMPLICIT;
            }
            raw.odp_caps.general_caps = u64::from(general);
            let transports = &mut raw.odp_caps.per_transport_caps;
            transports.rc_odp_caps = paging.reliable.bits();
            transports.uc_odp_caps = paging.unreliable.bits();
            transports.ud_odp_caps = paging.datagram.bits();
            transports.xrc_odp_caps = paging.xrc.bits();
        }
        if self.ud_segmentation {
            raw.kernel_cap_flags |= u64::from(bindings::ib_kernel_cap_flags_IBK_UD_TSO);
        }
        if self.blocks_own_multicast {
            let blocks = bindings::ib_kernel_cap_flags_IBK_BLOCK_MULTICAST_LOOPBACK;
            raw.kernel_cap_flags |= u64::from(blocks);
        }
        let scaling = &self.receive_scaling;
        raw.max_wq_type_rq = scaling.max_queues;
        raw.rss_caps.max_rwq_indirection_tables = scaling.max_tables;
        raw.rss_caps.max_rwq_indirection_table_size = scaling.max_entries;
        if scaling.max_tables != 0 {
            raw.rss_caps.supported_qpts = 1 << bindings::ib_qp_type_IB_QPT_RAW_PACKET;
        }
        raw.timestamp_mask = self.timestamp_mask;
        raw.hca_core_clock = self.clock_khz;
    }
}
