// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Holds the hand-written declarations of `ffi.rs` to the installed `<infiniband/verbs.h>`: a C compiler states every
//! size and offset, and each must equal ours.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::{Command, Stdio};

use verbs_tests::ffi::*;

/// Sizes and offsets.
macro_rules! layout {
    ($c:ident, $rust:expr, $($type:ident { $($field:ident $(= $cfield:literal)?),* $(,)? }),* $(,)?) => {
        $(
            writeln!($c, "printf(\"%zu\\n\", sizeof(struct {}));", stringify!($type)).unwrap();
            $rust.push((format!("sizeof {}", stringify!($type)), size_of::<$type>()));
            offsets!($c, $rust, $type { $($field $(= $cfield)?),* });
        )*
    };
}

/// Offsets alone, of structures that grow at their end from release to release.
macro_rules! offsets {
    ($c:ident, $rust:expr, $($type:ident { $($field:ident $(= $cfield:literal)?),* $(,)? }),* $(,)?) => {
        $(
            $(
                #[allow(unused_mut, unused_assignments)]
                let mut cfield = stringify!($field);
                $(cfield = $cfield;)?
                writeln!($c, "printf(\"%zu\\n\", offsetof(struct {}, {cfield}));", stringify!($type)).unwrap();
                $rust.push((format!("{}.{cfield}", stringify!($type)), std::mem::offset_of!($type, $field)));
            )*
        )*
    };
}

#[test]
fn declarations_equal_the_c_header() {
    let mut c = String::new();
    let mut ours: Vec<(String, usize)> = Vec::new();
    layout!(c, ours,
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path },
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, abi_compat },
        ibv_context_ops { alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv },
        ibv_alloc_dm_attr { length, log_align_req, comp_mask },
        verbs_context { alloc_null_mr, reg_dm_mr, alloc_dm, free_dm, modify_qp_rate_limit, modify_cq, query_rt_values, create_cq_ex, query_device_ex, create_qp_ex, sz, context },
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex },
        ibv_device_attr { fw_ver, node_guid, max_mr_size, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap,
            max_ah, max_pkeys, phys_port_cnt },
        ibv_pd { handle },
        ibv_mr { addr, length, handle, lkey, rkey },
        ibv_mw { context, pd, rkey, handle, r#type = "type" },
        ibv_mw_bind_info { mr, addr, length, mw_access_flags },
        ibv_mw_bind { wr_id, send_flags, bind_info },
        ibv_comp_channel { context, fd, refcnt },
        ibv_cq { channel, cq_context, handle, cqe, comp_events_completed },
        ibv_cq_init_attr_ex { cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain },
        ibv_modify_cq_attr { attr_mask, cq_count = "moderate.cq_count", cq_period = "moderate.cq_period" },
        ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed },
        ibv_srq_attr { max_wr, max_sge, srq_limit },
        ibv_srq_init_attr { srq_context, attr },
        ibv_qp { handle, qp_num, state, qp_type, events_completed },
        ibv_data_buf { addr, length },
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data },
        ibv_qp_init_attr { send_cq, recv_cq, srq, cap, qp_type, sq_sig_all },
        ibv_qp_init_attr_ex { comp_mask, pd, xrcd, create_flags, max_tso_header, rwq_ind_tbl, source_qpn, send_ops_flags },
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class },
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num },
        ibv_qp_attr { qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, en_sqd_async_notify, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_timeout, rate_limit },
        ibv_sge { addr, length, lkey },
        ibv_send_wr { wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn = "qp_type", bind_mw },
        ibv_recv_wr { wr_id, next, sg_list, num_sge },
        ibv_wc { wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits },
        ibv_async_event { element, event_type },
        ibv_ece { vendor_id, options, comp_mask },
        ibv_values_ex { comp_mask, raw_clock },
        ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts },
        ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask },
    );
    // The library makes those of queues, and fills of the others what it is asked for or always filled.
    offsets!(
        c,
        ours,
        ibv_cq_ex {
            comp_mask,
            status,
            wr_id,
            start_poll,
            read_opcode,
            read_wc_flags,
            read_completion_ts,
            read_completion_wallclock_ns
        },
        ibv_device_attr_ex {
            comp_mask,
            completion_timestamp_mask,
            hca_core_clock,
            device_cap_flags_ex,
            packet_pacing_caps,
            max_dm_size
        },
        ibv_qp_ex {
            wr_id,
            wr_bind_mw,
            wr_set_sge,
            wr_atomic_write
        },
        ibv_port_attr {
            state,
            max_mtu,
            active_mtu,
            gid_tbl_len,
            max_msg_sz,
            pkey_tbl_len,
            lid,
            phys_state,
            link_layer,
            flags
        },
    );

    let dir = std::env::temp_dir().join(format!("vrnic-verbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let exe = dir.join("layout");
    let mut cc = Command::new("cc")
        .args(["-x", "c", "-", "-o"])
        .arg(&exe)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    write!(
        cc.stdin.take().unwrap(),
        "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{\n{c}return 0; }}\n"
    )
    .unwrap();
    assert!(cc.wait().unwrap().success(), "libibverbs-dev is needed");
    let theirs = Command::new(&exe).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let theirs: Vec<usize> = String::from_utf8(theirs.stdout)
        .unwrap()
        .lines()
        .map(|l| l.parse().unwrap())
        .collect();
    assert_eq!(theirs.len(), ours.len());
    for ((name, ours), theirs) in ours.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
