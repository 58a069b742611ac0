// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Checks that `Documentation/virtio-rdma.rst` and this crate agree.
//!
//! Every structure and every constant of the specification is compared with the crate, and every
//! one in the crate must be in the specification. The clauses of the specification must be numbered
//! without gaps and be separate from the explanatory text.

use std::{
    any::type_name_of_val,
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    mem::{offset_of, size_of},
};
use vrnic_wire::{
    command, command::counted_operations, command::cq_flags, command::fault_flags,
    command::flow_flags, command::hash_fields, command::mad_flags, command::modify_port_flags,
    command::mr_flags, command::qp_flags, command::reregister_flags, completion,
    completion::flags as cqe_flags, completion::packet_flags, config, counter, event, integrity,
    integrity::check, integrity::domain_flags, memory, memory::access, memory::page_flags, notify,
    notify::driver_flags as notify_driver_flags, notify::flags as notify_flags, port,
    port::capability, qp, qp::attribute, ring, ring::flags as ring_flags, work, work::lid_flags,
    work::placement, work::send_flags,
};

const STANDARD: &str = include_str!("../../../Documentation/virtio-rdma.rst");

/// Sources of the crate that the specification covers; `abi.rs` is between driver and provider.
const SOURCES: [&str; 27] = [
    include_str!("../command.rs"),
    include_str!("../command/context.rs"),
    include_str!("../command/counter.rs"),
    include_str!("../command/cq.rs"),
    include_str!("../command/device.rs"),
    include_str!("../command/flow.rs"),
    include_str!("../command/mr.rs"),
    include_str!("../command/multicast.rs"),
    include_str!("../command/mw.rs"),
    include_str!("../command/odp.rs"),
    include_str!("../command/pd.rs"),
    include_str!("../command/port.rs"),
    include_str!("../command/qp.rs"),
    include_str!("../command/srq.rs"),
    include_str!("../command/subnet.rs"),
    include_str!("../command/xrc.rs"),
    include_str!("../completion.rs"),
    include_str!("../config.rs"),
    include_str!("../counter.rs"),
    include_str!("../event.rs"),
    include_str!("../integrity.rs"),
    include_str!("../memory.rs"),
    include_str!("../notify.rs"),
    include_str!("../port.rs"),
    include_str!("../qp.rs"),
    include_str!("../ring.rs"),
    include_str!("../work.rs"),
];

/// Converts `CamelCase` to `camel_case`; a digit does not start a word.
fn snake(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// A member of a structure: its name, its type in the notation of the specification, its offset.
type Member = (String, String, usize);

/// Members and size of a structure. The last member may be open-ended.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    members: Vec<Member>,
    size: usize,
}

/// Returns the size in bytes of a type in the specification, including arrays.
fn size_in_standard(ty: &str, structures: &BTreeMap<String, Layout>) -> usize {
    if let Some((element, count)) = ty.split_once('[') {
        let count = count.trim_end_matches(']');
        let count = if count.is_empty() {
            0
        } else {
            count.parse().unwrap()
        };
        return size_in_standard(element, structures) * count;
    }
    match ty {
        "u8" => 1,
        "le16" => 2,
        "le32" => 4,
        "le64" => 8,
        _ => {
            let name = ty.strip_prefix("struct ").expect("a type of the standard");
            structures
                .get(name)
                .unwrap_or_else(|| panic!("{name} is not defined"))
                .size
        }
    }
}

/// Returns all structures of the specification. Some are used before they are defined, hence the
/// loop.
fn structures() -> BTreeMap<String, Layout> {
    let mut open = Vec::new();
    for text in STANDARD.split("\n  struct ").skip(1) {
        let (name, body) = text.split_once(" {\n").expect("a structure has a body");
        let (body, _) = body.split_once("\n  };").expect("a structure ends");
        let members: Vec<(String, String)> = body
            .lines()
            .map(|line| {
                let line = line.trim().strip_suffix(';').expect("one member a line");
                let (ty, member) = line.rsplit_once(' ').expect("type and name");
                match member.split_once('[') {
                    Some((member, count)) => (member.into(), format!("{ty}[{count}")),
                    None => (member.into(), ty.into()),
                }
            })
            .collect();
        open.push((name.to_string(), members));
    }

    let mut done = BTreeMap::new();
    while !open.is_empty() {
        let before = open.len();
        open.retain(|(name, members)| {
            let is_known = |ty: &str| {
                let element = ty.split('[').next().unwrap();
                element
                    .strip_prefix("struct ")
                    .is_none_or(|name| done.contains_key(name))
            };
            if !members.iter().all(|(_, ty)| is_known(ty)) {
                return true;
            }
            let mut size = 0;
            let members = members
                .iter()
                .map(|(member, ty)| {
                    let offset = size;
                    size += size_in_standard(ty, &done);
                    (member.clone(), ty.clone(), offset)
                })
                .collect();
            let old = done.insert(name.clone(), Layout { members, size });
            assert!(old.is_none(), "{name} is defined twice");
            false
        });
        assert!(open.len() < before, "undefined types in {open:?}");
    }
    done
}

/// Converts a type of this crate to the notation of the specification.
fn type_in_standard(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(array) = rust.strip_prefix('[') {
        let (element, count) = array.trim_end_matches(']').rsplit_once(';').unwrap();
        return format!("{}[{}]", type_in_standard(element), count.trim());
    }
    let last = rust.split('<').next().unwrap().rsplit("::").next().unwrap();
    match last {
        "u8" => "u8".into(),
        "U16" => "le16".into(),
        "U32" => "le32".into(),
        "U64" => "le64".into(),
        _ => format!("struct virtio_rdma_{}", snake(last)),
    }
}

/// Creates the layouts of this crate, by their names in the specification.
macro_rules! layouts {
    ($($module:ident::$ty:ident { $($member:ident),* $(,)? })*) => {{
        let mut layouts = BTreeMap::new();
        $(
            let value: $module::$ty = zerocopy::FromZeros::new_zeroed();
            let members: Vec<Member> = vec![$((
                stringify!($member).into(),
                type_in_standard(type_name_of_val(&value.$member)),
                offset_of!($module::$ty, $member),
            )),*];
            let _ = value;
            layouts.insert(
                format!("virtio_rdma_{}", snake(stringify!($ty))),
                Layout { members, size: size_of::<$module::$ty>() },
            );
        )*
        layouts
    }};
}

/// Returns the structures of this crate. `Empty`, `QueryDevice` and `QueryClock` have no members,
/// for which the specification has no structures.
fn layouts() -> BTreeMap<String, Layout> {
    let mut layouts = layouts! {
        config::Config { mac, completion_vectors, node_guid, doorbell_pages, ports, reserved }
        command::CommandHeader { code, reserved, length }
        command::ReplyHeader { status, length, vendor_error, reserved }
        command::DeviceLimits {
            max_mr_size, page_sizes, max_qp, max_qp_entries, max_send_sge, max_recv_sge,
            max_inline, max_cq, max_cq_entries, max_mr, max_pd, max_contexts, max_dest_rd_atomic,
            max_rd_atomic, max_message_size, gid_table_length, firmware_version, clock_khz,
            max_fast_registration_pages, max_mw, max_srq, max_multicast_groups,
            max_multicast_members, max_multicast_attachments, max_counter_sets, max_xrcd,
            max_rate_limit, max_segmented_length, max_scaling_entries,
            max_completion_counters,
        }
        command::Clock { time }
        command::QueryPort { port, reserved }
        command::SetGid { index, reserved, entry }
        command::ClearGid { index, reserved }
        command::QueryCounters { port, reserved }
        command::SetMtu { port, mtu, reserved }
        command::SetPortState { port, state, reserved }
        command::Counters { values }
        command::CreateContext { kind, reserved, slots, area }
        command::ContextCreated { context, doorbell_page }
        command::DestroyContext { context, reserved }
        command::RingDoorbell { context, slot }
        command::NameContext { context, pid, name }
        command::CreatePd { context, reserved }
        command::PdCreated { pd, reserved }
        command::DestroyPd { pd, reserved }
        command::RegisterMr { pd, access, flags, reserved, iova, pages }
        command::MrRegistered { key, reserved }
        command::DeregisterMr { pd, key }
        command::AllocateMr { pd, max_pages, table }
        command::AllocateIntegrityMr {
            pd, max_elements, max_metadata_elements, reserved, table,
        }
        command::ReregisterMr { pd, key, flags, new_pd, access, reserved, iova, pages }
        command::AllocateMw { pd, mw_type }
        command::MwAllocated { key, reserved }
        command::DeallocateMw { pd, key }
        command::CreateCq { context, vector, flags, ring, pages }
        command::CqCreated { cqn, reserved }
        command::DestroyCq { cqn, reserved }
        command::ResizeCq { cqn, reserved, ring, pages }
        command::ModifyCq { cqn, count, period }
        command::CreateQp {
            context, pd, qp_type, flags, max_send_sge, max_recv_sge, max_inline, send_cqn,
            recv_cqn, send_ring, recv_ring, pages, srqn, xrcdn,
        }
        command::CreateScalingQp { context, pd, fields, entries, key, queues }
        command::TakePageFault { pd, key }
        command::PageFault { first_page, page_count, flags, reserved }
        command::MapPages { pd, key, first_page, page_count, table }
        command::UnmapPages { pd, key, first_page, page_count }
        command::RefusePages { pd, key, first_page, page_count }
        command::AttachRegion { pd, key, page, region }
        command::QpCreated { qpn, slot }
        command::ModifyQp { qpn, reserved, attributes }
        command::QueryQp { qpn, reserved }
        command::ModifyQpPaths { qpn, reserved, attributes, alternate }
        command::QueryQpPaths { qpn, reserved }
        command::QpPaths { attributes, alternate }
        command::DestroyQp { qpn, reserved }
        command::CreateSrq { context, pd, max_sge, limit, ring, pages }
        command::SrqCreated { srqn, reserved }
        command::ModifySrq { srqn, limit }
        command::ResizeSrq { srqn, reserved, ring, pages }
        command::QuerySrq { srqn, reserved }
        command::SrqAttributes { limit, entries, max_sge, reserved }
        command::DestroySrq { srqn, reserved }
        command::AttachMulticast { qpn, lid, reserved, gid }
        command::DetachMulticast { qpn, lid, reserved, gid }
        command::QuerySubnetPort { port, reserved }
        command::QueryPkeys { port, first }
        command::Pkeys { pkeys }
        command::QueryGids { port, first }
        command::Gids { gids }
        command::ModifyPort { port, flags, set_capabilities, clear_capabilities }
        command::ProcessMad { port, flags, slid, service_level, reserved, mad }
        command::MadProcessed { result, reserved, mad }
        port::SubnetPort {
            gid_prefix, capability_mask, lid, sm_lid, lmc, sm_service_level, physical_state,
            max_lanes, lanes, subnet_timeout, init_type_reply, reserved,
        }
        work::LidAddress { dlid, path_bits, static_rate, flags, reserved }
        completion::LidSource { slid, path_bits, reserved }
        command::CreateCounterSet { port, reserved }
        command::CounterSetCreated { counter_set, reserved }
        command::BindCounterSet { qpn, counter_set }
        command::QueryCounterSet { counter_set, reserved }
        command::DestroyCounterSet { counter_set, reserved }
        command::CompletionCounts { completions, errors }
        command::CreateCompletionCounter { context, reserved, pages }
        command::CompletionCounterCreated { counter, reserved }
        command::AttachCompletionCounter { qpn, counter, operations, reserved }
        command::ModifyCompletionCounter { counter, count, change, value }
        command::QueryCompletionCounter { counter, reserved }
        command::DestroyCompletionCounter { counter, reserved }
        command::CreateXrcd { reserved }
        command::XrcdCreated { xrcdn, reserved }
        command::DestroyXrcd { xrcdn, reserved }
        command::CreateXrcSrq { srq, xrcdn, cqn }
        command::FlowFields {
            destination_mac, source_mac, ether_type, vlan_tag, source, destination, flow_label,
            protocol, traffic_class, hop_limit, reserved, source_port, destination_port,
            reserved_tail,
        }
        command::CreateFlow {
            qpn, flow_type, port, priority, flags, tag, value, mask,
        }
        command::TunnelFields {
            vni, gre_key, gre_protocol, reserved, mpls_over_ethernet, mpls_over_gre,
            mpls_over_udp, mpls_inner,
        }
        command::CreateTunnelFlow { flow, tunnel_value, tunnel_mask, inner_value, inner_mask }
        command::FlowCreated { flow, reserved }
        command::DestroyFlow { flow, reserved }
        command::QueryFlow { flow, reserved }
        command::FlowCounters { packets, bytes }
        memory::PageList { first_chunk, offset, length, page_count, page_shift, reserved }
        memory::PageListChunk { next, count, reserved, pages }
        port::GidEntry { gid, mac, vlan, gid_type, reserved }
        port::PortAttributes {
            state, max_mtu, active_mtu, active_width, active_speed, pkey_table_length,
            gid_table_length, max_message_size, bad_pkey_count, qkey_violation_count,
            administrative_state, reserved,
        }
        qp::QpAttributes {
            mask, state, current_state, path_mtu, sqd_async_notify, qkey, rq_psn, sq_psn,
            dest_qpn, access, pkey_index, port, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            timeout, retry_count, rnr_retry, sq_draining, path_migration_state, reserved_39,
            rate_limit, max_burst, typical_packet, reserved, address,
        }
        qp::AlternatePath { address, pkey_index, port, timeout, reserved }
        ring::RingLayout { header_offset, entries_offset, entries, stride }
        ring::RingHeader {
            driver_index, arm, driver_reserved, device_index, device_flags, device_reserved,
        }
        work::SendHeader {
            opcode, flags, num_sge, inline_length, wr_id, immediate, pkey_index, reserved,
        }
        work::RdmaTarget { address, rkey, reserved }
        work::AtomicTarget { address, rkey, reserved, compare_add, swap, reserved_tail }
        work::FlushTarget { address, rkey, length, placement, selectivity, reserved }
        work::BindTarget { address, length, window, region, access, reserved }
        work::RegisterTarget { iova, length, key, access, page_count, page_shift, reserved }
        integrity::IntegrityDomain { ref_tag, app_tag, app_mask, guard_seed, guard, flags }
        integrity::IntegrityTarget {
            key, access, elements, metadata_elements, interval, check_mask, reserved, memory, wire,
        }
        integrity::IntegrityElement { address, length, reserved }
        integrity::IntegrityStatus { error, key, offset, expected, actual, reserved }
        work::DatagramTarget { address, remote_qpn, qkey }
        work::AddressVector {
            dgid, dmac, sgid_index, hop_limit, traffic_class, service_level, reserved, flow_label,
        }
        work::Sge { address, length, lkey }
        work::ReceiveHeader { wr_id, num_sge, reserved }
        completion::Cqe {
            wr_id, qpn, opcode, status, flags, service_level, byte_length, immediate, source_qpn,
            pkey_index, vlan, vendor_error, source_mac, packet_flags, reserved, timestamp,
            flow_tag, reserved_tail, phase,
        }
        event::AsyncEvent { event_type, reserved, number, vendor_error, reserved_tail }
        event::CompletionEvent { cqn, reserved }
    };

    // The notify area has no fixed size, so the crate has offsets instead of members.
    let member = |name: &str, ty: String, offset| (name.into(), ty, offset);
    layouts.insert(
        "virtio_rdma_notify_area".into(),
        Layout {
            members: vec![
                member("flags", "le32".into(), notify::FLAGS_OFFSET),
                member("reserved_flags", "u8[60]".into(), notify::FLAGS_OFFSET + 4),
                member(
                    "summary",
                    format!("le64[{}]", notify::SUMMARY_WORDS),
                    notify::SUMMARY_OFFSET,
                ),
                member("driver_flags", "le32".into(), notify::DRIVER_FLAGS_OFFSET),
                member(
                    "reserved_driver",
                    "u8[60]".into(),
                    notify::DRIVER_FLAGS_OFFSET + 4,
                ),
                member("pending", "le64[]".into(), notify::PENDING_OFFSET),
            ],
            size: notify::area_length(0),
        },
    );
    layouts
}

#[test]
fn structures_agree() {
    let (standard, ours) = (structures(), layouts());
    for (name, layout) in &ours {
        assert_eq!(standard.get(name), Some(layout), "{name}");
    }
    for name in standard.keys() {
        assert!(ours.contains_key(name), "{name} is in the standard only");
    }
}

#[test]
fn every_structure_of_the_crate_is_compared() {
    let ours = layouts();
    for source in SOURCES {
        for text in source.split("#[repr(C)]\npub struct ").skip(1) {
            let name = text.split_once(' ').unwrap().0;
            let is_empty = text.split_once(' ').unwrap().1.starts_with("{}");
            let known = ours.contains_key(&format!("virtio_rdma_{}", snake(name)));
            assert_ne!(known, is_empty, "{name}");
        }
    }
}

/// Returns the constants of the specification.
fn defines() -> BTreeMap<String, u64> {
    let mut defines = BTreeMap::new();
    for line in STANDARD.lines() {
        let Some(define) = line.trim().strip_prefix("#define ") else {
            continue;
        };
        let (name, value) = define.split_once(' ').expect("name and value");
        let value = value.trim();
        let number = if let Some(bit) = value.strip_prefix("(1 << ") {
            1 << bit.trim_end_matches(')').parse::<u32>().unwrap()
        } else if let Some(hex) = value.strip_prefix("0x") {
            u64::from_str_radix(hex, 16).unwrap()
        } else {
            value
                .parse()
                .unwrap_or_else(|_| panic!("{name} is not a number"))
        };
        let old = defines.insert(name.to_string(), number);
        assert!(old.is_none(), "{name} is defined twice");
    }
    defines
}

/// Adds the values of an enumeration.
fn add_enum<T: Copy + Debug>(
    constants: &mut BTreeMap<String, u64>,
    prefix: &str,
    values: &[T],
    raw: impl Fn(T) -> u64,
) {
    for &value in values {
        let name = snake(&format!("{value:?}")).to_uppercase();
        constants.insert(format!("VIRTIO_RDMA_{prefix}_{name}"), raw(value));
    }
}

/// Returns the constants of this crate by their names in the specification, and the source names of
/// those that were listed individually.
fn constants() -> (BTreeMap<String, u64>, BTreeSet<&'static str>) {
    let mut constants = BTreeMap::new();
    let mut names = BTreeSet::new();

    macro_rules! enums {
        ($($prefix:literal: $module:ident::$ty:ident;)*) => {
            $(add_enum(&mut constants, $prefix, $module::$ty::ALL, |v| u64::from(v.raw()));)*
        };
    }
    enums! {
        "CMD": command::CommandCode;
        "STATUS": command::Status;
        "CONTEXT": command::ContextKind;
        "MW": command::MwType;
        "PORT_STATE": port::PortState;
        "MAD_RESULT": command::MadResult;
        "GID_TYPE": port::GidType;
        "SEND_OP": work::SendOpcode;
        "FLUSH": work::Selectivity;
        "INTEGRITY_GUARD": integrity::Guard;
        "INTEGRITY_ERROR": integrity::IntegrityError;
        "CQE_STATUS": completion::Status;
        "CQE_OP": completion::Opcode;
        "QP_TYPE": qp::QpType;
        "QP_STATE": qp::QpState;
        "MIGRATION": qp::Migration;
        "FLOW": command::FlowType;
        "COMPLETION_COUNT": command::CompletionCount;
        "COUNT": command::CountChange;
        "EVENT": event::EventType;
    }
    for &mtu in port::Mtu::ALL {
        let name = format!("VIRTIO_RDMA_MTU_{}", mtu.bytes());
        constants.insert(name, u64::from(mtu.raw()));
    }

    macro_rules! each {
        ($($prefix:literal: $module:ident { $($name:ident),* $(,)? })*) => {
            $($(
                let value = u64::try_from($module::$name).unwrap();
                constants.insert(concat!($prefix, stringify!($name)).to_string(), value);
                names.insert(stringify!($name));
            )*)*
        };
    }
    each! {
        "": config { VIRTIO_ID_RDMA }
        "VIRTIO_": config { PCI_CAP_DOORBELL_CFG }
        "VIRTIO_RDMA_": config {
            PCI_VENDOR_ID, PCI_DEVICE_ID, DOORBELL_PAGE_SIZE, F_DOORBELL, F_MEMORY_EXTENSIONS,
            F_MEMORY_WINDOWS, F_REREGISTRATION, F_SHARED_RECEIVE_QUEUES, F_MEMORY_PLACEMENT,
            F_COMPLETION_QUEUE_CHANGES, F_MULTICAST, F_PORT_STATE, F_ON_DEMAND_PAGING,
            F_NULL_KEY, F_COUNTER_SETS, F_UNRELIABLE_CONNECTIONS, F_XRC, F_CLOCK,
            F_IGNORED_OVERRUN, F_CONTEXT_NAMES, F_NESTED_PAGING, F_INFINIBAND,
            F_PATH_MIGRATION, F_RATE_LIMITS, F_RAW_PACKETS, F_CHECKSUMS,
            F_SEGMENTATION, F_RECEIVE_SCALING, F_RECEIVE_OPTIONS,
            F_FLOW_COUNTERS, F_COMPLETION_COUNTERS, F_TUNNEL_FLOWS, F_INTEGRITY,
            CONTROL_QUEUE, ASYNC_EVENT_QUEUE, FIRST_COMPLETION_QUEUE,
        }
        "VIRTIO_RDMA_": command { MAX_REQUEST, MAX_REPLY, MAX_COUNTERS }
        "VIRTIO_RDMA_MR_FLAG_": mr_flags { ALL_MEMORY, ON_DEMAND, NESTED }
        "VIRTIO_RDMA_FLOW_FLAG_": flow_flags { DONT_TRAP, DROP }
        "VIRTIO_RDMA_COUNTED_": counted_operations {
            SEND, RECEIVE, READ, REMOTE_READ, WRITE, REMOTE_WRITE,
        }
        "VIRTIO_RDMA_": command { HASH_KEY_LENGTH, MAX_SCALING_ENTRIES }
        "VIRTIO_RDMA_": command { MAX_FLOW_TAG, VXLAN_PORT, MPLS_PORT, MAX_LABELS }
        "VIRTIO_RDMA_HASH_": hash_fields {
            SOURCE_IPV4, DESTINATION_IPV4, SOURCE_IPV6, DESTINATION_IPV6, SOURCE_TCP,
            DESTINATION_TCP, SOURCE_UDP, DESTINATION_UDP,
        }
        "VIRTIO_RDMA_FAULT_FLAG_": fault_flags { WRITE }
        "VIRTIO_RDMA_CQ_FLAG_": cq_flags { IGNORE_OVERRUN }
        "VIRTIO_RDMA_REREGISTER_FLAG_": reregister_flags { TRANSLATION, PD, ACCESS }
        "VIRTIO_RDMA_QP_FLAG_": qp_flags {
            SIGNAL_ALL, SHARED_RECEIVE_QUEUE, STRIP_VLAN, APPEND_FCS, BLOCK_OWN_MULTICAST,
        }
        "VIRTIO_RDMA_": memory {
            CHUNK_SIZE, CHUNK_PAGES, MIN_PAGE_SHIFT, MAX_PAGE_SHIFT, KEY_INDEX_MASK, LOCAL_DMA_KEY, NULL_KEY,
            TABLE_ENTRY_LENGTH, TABLE_PAGES,
        }
        "VIRTIO_RDMA_PAGE_": page_flags { PRESENT, WRITABLE }
        "VIRTIO_RDMA_ACCESS_": access {
            LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, MW_BIND, ZERO_BASED,
            FLUSH_GLOBAL, FLUSH_PERSISTENT, RELAXED_ORDERING,
        }
        "VIRTIO_RDMA_": port {
            NO_VLAN, MULTICAST_LID, PERMISSIVE_LID, DEFAULT_PKEY, FULL_MEMBERSHIP,
        }
        "VIRTIO_RDMA_CAPABILITY_": capability {
            SUBNET_MANAGER, COMMUNICATION_MANAGEMENT, SNMP_TUNNELING, DEVICE_MANAGEMENT, VENDOR_CLASS,
        }
        "VIRTIO_RDMA_": command { PKEY_BLOCK, GID_BLOCK, MAD_LENGTH }
        "VIRTIO_RDMA_MODIFY_PORT_FLAG_": modify_port_flags { RESET_QKEY_VIOLATIONS }
        "VIRTIO_RDMA_MAD_FLAG_": mad_flags { IGNORE_M_KEY }
        "VIRTIO_RDMA_LID_FLAG_": lid_flags { GRH }
        "VIRTIO_RDMA_NOTIFY_": notify {
            FLAGS_OFFSET, SUMMARY_OFFSET, SUMMARY_WORDS, DRIVER_FLAGS_OFFSET, PENDING_OFFSET,
            MIN_SLOTS, MAX_SLOTS,
        }
        "VIRTIO_RDMA_NOTIFY_FLAG_": notify_flags { POLLING }
        "VIRTIO_RDMA_NOTIFY_DRIVER_FLAG_": notify_driver_flags { FAILED }
        "VIRTIO_RDMA_RING_": ring { MAX_ENTRIES, MIN_STRIDE, MAX_STRIDE, HEADER_ALIGN }
        "VIRTIO_RDMA_RING_FLAG_": ring_flags { NEED_DOORBELL, OVERRUN }
        "VIRTIO_RDMA_SEND_FLAG_": send_flags { SIGNALED, SOLICITED, FENCE, INLINE, CHECKSUMS }
        "VIRTIO_RDMA_INTEGRITY_": integrity {
            PI_LENGTH, MIN_INTERVAL, MAX_INTERVAL, ELEMENTS_OFFSET, ELEMENT_LENGTH,
        }
        "VIRTIO_RDMA_INTEGRITY_": domain_flags { REF_INCREMENT, APP_ESCAPE, REF_ESCAPE }
        "VIRTIO_RDMA_INTEGRITY_CHECK_": check { GUARD, APP_TAG, REF_TAG }
        "VIRTIO_RDMA_PLACEMENT_": placement { GLOBAL, PERSISTENT }
        "VIRTIO_RDMA_": work {
            TARGET_OFFSET, TARGET_LENGTH, XRC_SRQN_OFFSET, SEND_DATA_OFFSET, RECEIVE_DATA_OFFSET,
            GRH_LENGTH,
        }
        "VIRTIO_RDMA_CQE_FLAG_": cqe_flags {
            GRH, IMMEDIATE, INVALIDATED, SOURCE_MAC, VLAN, IPV4, SOLICITED, SOURCE_LID,
        }
        "VIRTIO_RDMA_CQE_PACKET_": packet_flags { CHECKSUMS_OK }
        "VIRTIO_RDMA_CQE_": completion { PHASE_OFFSET }
        "VIRTIO_RDMA_": completion { CQE_STRIDE }
        "VIRTIO_RDMA_": qp { SMI_QPN, GSI_QPN, MAX_QPN, MULTICAST_QPN, MAX_PSN }
        "VIRTIO_RDMA_QP_ATTR_": attribute {
            STATE, CURRENT_STATE, EN_SQD_ASYNC_NOTIFY, ACCESS_FLAGS, PKEY_INDEX, PORT, QKEY,
            ADDRESS_VECTOR, PATH_MTU, TIMEOUT, RETRY_COUNT, RNR_RETRY, RQ_PSN, MAX_RD_ATOMIC,
            ALTERNATE_PATH, MIN_RNR_TIMER, SQ_PSN, MAX_DEST_RD_ATOMIC, PATH_MIGRATION_STATE,
            CAPACITIES, DEST_QPN, RATE_LIMIT,
        }
    }

    let arm = |solicited| u64::from(ring::Arm::default().again(solicited).raw() & 3);
    constants.insert("VIRTIO_RDMA_ARM_NEXT".into(), arm(false));
    constants.insert("VIRTIO_RDMA_ARM_SOLICITED".into(), arm(true));
    (constants, names)
}

#[test]
fn constants_agree() {
    let (standard, (ours, _)) = (defines(), constants());
    for (name, value) in &ours {
        assert_eq!(standard.get(name), Some(value), "{name}");
    }
    for name in standard.keys() {
        assert!(ours.contains_key(name), "{name} is in the standard only");
    }
}

#[test]
fn features_have_bits_of_device_types() {
    let (constants, _) = constants();
    let mut bits: Vec<_> = constants
        .iter()
        .filter(|(name, _)| name.starts_with("VIRTIO_RDMA_F_"))
        .map(|(_, bit)| *bit)
        .collect();
    assert!(
        bits.iter().all(|bit| matches!(bit, 0..=23 | 50..=63)),
        "{bits:?}"
    );
    let features = bits.len();
    bits.sort_unstable();
    bits.dedup();
    assert_eq!(bits.len(), features);
}

#[test]
fn every_constant_of_the_crate_is_compared() {
    // Sums, and names of things that are members in the specification.
    const DERIVED: [&str; 17] = [
        "ALL",
        "NAMES",
        "REGION",
        "WINDOWS",
        "WINDOW",
        "QUEUE_PAIR",
        "REMOTE_CHANGES",
        "PLACEMENT",
        "DRIVER_INDEX",
        "ARM",
        "DEVICE_INDEX",
        "DEVICE_FLAGS",
        "IPV4_MAPPED",
        "IPV4",
        "IPV6",
        "TCP",
        "UDP",
    ];
    let (_, names) = constants();
    for source in SOURCES {
        for text in source.split("pub const ").skip(1) {
            let name: &str = text.split([':', ' ']).next().unwrap();
            if name != "fn" {
                assert!(names.contains(name) || DERIVED.contains(&name), "{name}");
            }
        }
        // Enumerations have a table of their values, which `constants` uses.
        for text in source.split("pub enum ").skip(1) {
            let name = text.split([':', ' ']).next().unwrap();
            let used = include_str!("standard.rs").contains(&format!("::{name}"));
            assert!(used, "{name}");
        }
    }
}

#[test]
fn offsets_of_header_words_agree() {
    assert_eq!(
        ring::offset::DRIVER_INDEX,
        offset_of!(ring::RingHeader, driver_index)
    );
    assert_eq!(ring::offset::ARM, offset_of!(ring::RingHeader, arm));
    assert_eq!(
        ring::offset::DEVICE_INDEX,
        offset_of!(ring::RingHeader, device_index)
    );
    assert_eq!(
        ring::offset::DEVICE_FLAGS,
        offset_of!(ring::RingHeader, device_flags)
    );
}

/// Returns the rows of the list table that follows a heading or a text, cell by cell.
fn table_after(text: &str) -> Vec<Vec<String>> {
    let (_, rest) = STANDARD
        .split_once(text)
        .unwrap_or_else(|| panic!("no text {text:?}"));
    let (_, rest) = rest.split_once(".. list-table::").expect("a table follows");
    let mut rows: Vec<Vec<String>> = Vec::new();
    for line in rest.lines().skip(1) {
        if let Some(cell) = line.strip_prefix("   * - ") {
            rows.push(vec![cell.trim().into()]);
        } else if let Some(cell) = line.strip_prefix("     - ") {
            rows.last_mut()
                .expect("a row has begun")
                .push(cell.trim().into());
        } else if let Some(more) = line.strip_prefix("       ") {
            let cell = rows
                .last_mut()
                .and_then(|row| row.last_mut())
                .expect("a cell has begun");
            cell.push(' ');
            cell.push_str(more.trim());
        } else if !line.is_empty() && !line.starts_with("   :") {
            break;
        }
    }
    rows.split_off(1)
}

#[test]
fn counters_agree() {
    let rows = table_after("\nCounters; the names are those that people see:");
    assert_eq!(rows.len(), counter::Counter::ALL.len());
    for (&ours, row) in counter::Counter::ALL.iter().zip(rows) {
        let name = snake(&format!("{ours:?}")).to_uppercase();
        let text = format!("``{}``", ours.name().to_str().unwrap());
        assert_eq!(row, [(ours as usize).to_string(), name, text]);
    }
}

#[test]
fn commands_agree() {
    let expected: Vec<[String; 3]> = {
        fn row<C: command::Command>() -> [String; 3] {
            let name = |ty: &str, size| match size {
                0 => "none".into(),
                _ => format!("``virtio_rdma_{}``", snake(ty.rsplit("::").next().unwrap())),
            };
            [
                snake(&format!("{:?}", C::CODE)).to_uppercase(),
                name(std::any::type_name::<C>(), size_of::<C>()),
                name(std::any::type_name::<C::Reply>(), size_of::<C::Reply>()),
            ]
        }
        vec![
            row::<command::QueryDevice>(),
            row::<command::QueryPort>(),
            row::<command::SetGid>(),
            row::<command::ClearGid>(),
            row::<command::QueryCounters>(),
            row::<command::SetMtu>(),
            row::<command::SetPortState>(),
            row::<command::QueryClock>(),
            row::<command::QuerySubnetPort>(),
            row::<command::QueryPkeys>(),
            row::<command::QueryGids>(),
            row::<command::ModifyPort>(),
            row::<command::ProcessMad>(),
            row::<command::CreateContext>(),
            row::<command::DestroyContext>(),
            row::<command::RingDoorbell>(),
            row::<command::NameContext>(),
            row::<command::CreatePd>(),
            row::<command::DestroyPd>(),
            row::<command::RegisterMr>(),
            row::<command::DeregisterMr>(),
            row::<command::AllocateMr>(),
            row::<command::ReregisterMr>(),
            row::<command::AllocateMw>(),
            row::<command::DeallocateMw>(),
            row::<command::AllocateIntegrityMr>(),
            row::<command::TakePageFault>(),
            row::<command::MapPages>(),
            row::<command::UnmapPages>(),
            row::<command::RefusePages>(),
            row::<command::AttachRegion>(),
            row::<command::CreateCq>(),
            row::<command::DestroyCq>(),
            row::<command::ResizeCq>(),
            row::<command::ModifyCq>(),
            row::<command::CreateQp>(),
            row::<command::ModifyQp>(),
            row::<command::QueryQp>(),
            row::<command::ModifyQpPaths>(),
            row::<command::QueryQpPaths>(),
            row::<command::CreateScalingQp>(),
            row::<command::DestroyQp>(),
            row::<command::CreateSrq>(),
            row::<command::ModifySrq>(),
            row::<command::ResizeSrq>(),
            row::<command::QuerySrq>(),
            row::<command::DestroySrq>(),
            row::<command::AttachMulticast>(),
            row::<command::DetachMulticast>(),
            row::<command::CreateCounterSet>(),
            row::<command::BindCounterSet>(),
            row::<command::QueryCounterSet>(),
            row::<command::DestroyCounterSet>(),
            row::<command::CreateCompletionCounter>(),
            row::<command::AttachCompletionCounter>(),
            row::<command::ModifyCompletionCounter>(),
            row::<command::QueryCompletionCounter>(),
            row::<command::DestroyCompletionCounter>(),
            row::<command::CreateXrcd>(),
            row::<command::DestroyXrcd>(),
            row::<command::CreateXrcSrq>(),
            row::<command::CreateFlow>(),
            row::<command::DestroyFlow>(),
            row::<command::QueryFlow>(),
            row::<command::CreateTunnelFlow>(),
        ]
    };
    assert_eq!(expected.len(), command::CommandCode::ALL.len());
    assert_eq!(table_after("\nCommands\n-----"), expected);
}

#[test]
fn every_status_and_event_is_explained() {
    fn names<T: Debug>(all: &[T]) -> BTreeSet<String> {
        all.iter()
            .map(|v| snake(&format!("{v:?}")).to_uppercase())
            .collect()
    }
    let first = |rows: Vec<Vec<String>>| -> BTreeSet<String> {
        let names = rows.into_iter().map(|mut row| row.swap_remove(0));
        names
            .flat_map(|cell| cell.split(", ").map(String::from).collect::<Vec<_>>())
            .collect()
    };
    assert_eq!(
        first(table_after("No program decides")),
        names(command::Status::ALL)
    );
    assert_eq!(
        first(table_after("time that is fixed until")),
        names(completion::Status::ALL)
    );
    assert_eq!(
        first(table_after("and on a completionq")),
        names(event::EventType::ALL)
    );
    assert_eq!(
        first(table_after("Bytes after these, up to")),
        names(work::SendOpcode::ALL)
    );
}

/// Returns the clauses by family, in the order of the text, and the text without them.
fn clauses() -> (BTreeMap<String, Vec<(usize, String)>>, String) {
    let mut families: BTreeMap<String, Vec<(usize, String)>> = BTreeMap::new();
    let mut rest = String::new();
    let mut current: Option<String> = None;
    for line in STANDARD.lines() {
        let label = line.strip_prefix(':').and_then(|l| l.split_once(": "));
        match (label, &current) {
            (Some((name, text)), _) if name.starts_with("DEV-") || name.starts_with("DRV-") => {
                let (family, number) = name.rsplit_once('-').unwrap();
                let number = number.parse().expect("a clause has a number");
                families
                    .entry(family.into())
                    .or_default()
                    .push((number, text.into()));
                current = Some(family.into());
            }
            (None, Some(family)) if line.starts_with("   ") => {
                let (_, text) = families.get_mut(family).unwrap().last_mut().unwrap();
                text.push(' ');
                text.push_str(line.trim());
            }
            _ => {
                current = None;
                rest.push_str(line);
                rest.push('\n');
            }
        }
    }
    (families, rest)
}

#[test]
fn clauses_are_numbered_and_stand_apart() {
    let (families, rest) = clauses();
    assert!(families.len() >= 20);
    for (family, clauses) in &families {
        for (index, (number, text)) in clauses.iter().enumerate() {
            assert_eq!(*number, index + 1, "{family}");
            let word = |w| {
                text.split(|c: char| !c.is_alphabetic())
                    .any(|part| part == w)
            };
            assert!(
                word("MUST") || word("SHOULD") || word("MAY"),
                "{family}-{number}"
            );
        }
        if !family.ends_with("-CONF") {
            assert!(rest.contains("Conformance\n"));
            let (_, conformance) = STANDARD.split_once("\nConformance\n").unwrap();
            assert!(
                conformance.contains(&format!("``{family}``")),
                "{family} binds nobody"
            );
        }
    }
    // The words occur once more in the conventions, which define them.
    for word in ["MUST", "SHOULD", "MAY", "SHALL", "REQUIRED"] {
        let count = rest
            .split(|c: char| !c.is_alphabetic())
            .filter(|w| *w == word)
            .count();
        let defined = match word {
            "MUST" | "SHOULD" => 2,
            "MAY" => 1,
            _ => 0,
        };
        assert_eq!(count, defined, "{word} outside of a clause");
    }
}

#[test]
fn clauses_that_the_text_refers_to_exist() {
    let (families, _) = clauses();
    for text in STANDARD
        .split("DEV-")
        .skip(1)
        .map(|t| format!("DEV-{t}"))
        .chain(STANDARD.split("DRV-").skip(1).map(|t| format!("DRV-{t}")))
    {
        let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let name = &text[..end.unwrap_or(text.len())];
        let Some((family, number)) = name.rsplit_once('-') else {
            continue;
        };
        let Ok(number) = number.parse::<usize>() else {
            continue;
        };
        let count = families.get(family).map_or(0, Vec::len);
        assert!(number >= 1 && number <= count, "{name}");
    }
}
