// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The state table of queue pairs (IBTA volume 1, 10.3 and table 86 ff.) and their attributes.

use std::time::Duration;

use super::{ACCESS_ALL, Case, Env, Link, LinkConfig, expect};
use crate::ensure;
use crate::ffi::ibv_qp_attr;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AsyncEvent, Cq, EVENT_COMM_EST,
    EVENT_SQ_DRAINED, Errno, EventObject, Path, QP_ACCESS_FLAGS, QP_ALT_PATH, QP_AV, QP_CAP,
    QP_CUR_STATE, QP_DEST_QPN, QP_EN_SQD_ASYNC_NOTIFY, QP_MAX_DEST_RD_ATOMIC, QP_MAX_QP_RD_ATOMIC,
    QP_MIN_RNR_TIMER, QP_PATH_MIG_STATE, QP_PATH_MTU, QP_PKEY_INDEX, QP_PORT, QP_QKEY,
    QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN, QP_SQ_PSN, QP_STATE, QP_TIMEOUT, QPS_ERR, QPS_INIT,
    QPS_RESET, QPS_RTR, QPS_RTS, QPS_SQD, QPT_RC, QPT_UC, QPT_UD, Qp, QpConfig, RELIABLE_MASK,
    SendOp, SendWr, WC_SUCCESS, address, state_name,
};

pub(super) const CASES: &[Case] = &[
    ("state-table-rc", table_rc),
    ("state-table-uc", table_uc),
    ("state-table-ud", table_ud),
    ("query-returns-what-was-set", query),
    ("query-tells-nothing-else", query_tells_nothing_else),
    ("attribute-values-are-checked", values),
    ("send-queue-drain", drain),
    ("first-message-establishes", established),
];

/// Every attribute bit that a program can set.
const BITS: [i32; 20] = [
    QP_CUR_STATE,
    QP_EN_SQD_ASYNC_NOTIFY,
    QP_ACCESS_FLAGS,
    QP_PKEY_INDEX,
    QP_PORT,
    QP_QKEY,
    QP_AV,
    QP_PATH_MTU,
    QP_TIMEOUT,
    QP_RETRY_CNT,
    QP_RNR_RETRY,
    QP_RQ_PSN,
    QP_MAX_QP_RD_ATOMIC,
    QP_ALT_PATH,
    QP_MIN_RNR_TIMER,
    QP_SQ_PSN,
    QP_MAX_DEST_RD_ATOMIC,
    QP_PATH_MIG_STATE,
    QP_CAP,
    QP_DEST_QPN,
];

const RTR_NEEDS: i32 =
    QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
const RTS_NEEDS: i32 = QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;

/// Required and optional attributes of a transition, or `None` if there is no such transition. Attributes of path
/// migration are never tried, so they are left out.
fn transition(kind: i32, from: i32, to: i32) -> Option<(i32, i32)> {
    let (needs, may) = any_transition(kind, from, to)?;
    if kind == QPT_UC {
        // In SQD it has no port to change. And whenever a program gives a path there, Linux adds the port.
        let path = match (from, to) {
            (QPS_SQD, QPS_SQD) => QP_PORT | QP_AV,
            _ => 0,
        };
        return Some((needs & !RELIABLE_MASK, may & !(RELIABLE_MASK | path)));
    }
    Some((needs, may))
}

fn any_transition(kind: i32, from: i32, to: i32) -> Option<(i32, i32)> {
    let ud = kind == QPT_UD;
    let init = if ud {
        QP_PKEY_INDEX | QP_PORT | QP_QKEY
    } else {
        QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS
    };
    let running = if ud {
        QP_CUR_STATE | QP_QKEY
    } else {
        QP_CUR_STATE | QP_ACCESS_FLAGS | QP_MIN_RNR_TIMER
    };
    match (from, to) {
        // Linux has no way from RESET to ERR, where the standard allows it.
        (QPS_RESET, QPS_ERR) => None,
        (_, QPS_RESET | QPS_ERR) => Some((0, 0)),
        (QPS_RESET, QPS_INIT) => Some((init, 0)),
        (QPS_INIT, QPS_INIT) => Some((0, init)),
        (QPS_INIT, QPS_RTR) | (QPS_SQD, QPS_SQD) if ud => Some((0, QP_PKEY_INDEX | QP_QKEY)),
        (QPS_INIT, QPS_RTR) => Some((RTR_NEEDS, QP_ACCESS_FLAGS | QP_PKEY_INDEX)),
        (QPS_RTR, QPS_RTS) if ud => Some((QP_SQ_PSN, running)),
        (QPS_RTR, QPS_RTS) => Some((RTS_NEEDS, running)),
        (QPS_RTS | QPS_SQD, QPS_RTS) => Some((0, running)),
        (QPS_RTS, QPS_SQD) => Some((0, QP_EN_SQD_ASYNC_NOTIFY)),
        (QPS_SQD, QPS_SQD) => {
            let path = QP_PORT | QP_AV | QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY;
            let rest =
                QP_MAX_QP_RD_ATOMIC | QP_MAX_DEST_RD_ATOMIC | QP_ACCESS_FLAGS | QP_PKEY_INDEX;
            Some((0, path | rest | QP_MIN_RNR_TIMER))
        }
        _ => None,
    }
}

/// Good values of all attributes, for a QP that is in `from` and goes to `to`.
fn attributes(env: &Env, from: i32, to: i32) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: to,
        cur_qp_state: from,
        path_mtu: 3,
        qkey: 17,
        rq_psn: 1,
        sq_psn: 2,
        dest_qp_num: 5,
        qp_access_flags: ACCESS_ALL as u32,
        ah_attr: address(env.gid.index, env.gid.gid, env.gid.lid),
        max_rd_atomic: 1,
        max_dest_rd_atomic: 1,
        min_rnr_timer: 12,
        port_num: 1,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        ..Default::default()
    }
}

/// A fresh QP in `state`.
fn reach(env: &Env, kind: i32, state: i32) -> Outcome<Qp> {
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let config = QpConfig {
        kind,
        ..Default::default()
    };
    let qp = Qp::new(&env.pd, &cq, &cq, &config).during("ibv_create_qp")?;
    let path: &[i32] = match state {
        QPS_RESET => &[],
        QPS_INIT => &[QPS_INIT],
        QPS_RTR => &[QPS_INIT, QPS_RTR],
        QPS_RTS => &[QPS_INIT, QPS_RTR, QPS_RTS],
        QPS_SQD => &[QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD],
        _ => &[QPS_INIT, QPS_ERR],
    };
    let mut from = QPS_RESET;
    for to in path {
        let (needs, _) = transition(kind, from, *to)
            .ok_or_else(|| Failure("this state cannot be reached".into()))?;
        qp.modify(&attributes(env, from, *to), QP_STATE | needs)
            .during(format!("{} to {}", state_name(from), state_name(*to)))?;
        from = *to;
    }
    Ok(qp)
}

fn table(env: &Env, kind: i32) -> Outcome<()> {
    let states = [QPS_RESET, QPS_INIT, QPS_RTR, QPS_RTS, QPS_SQD, QPS_ERR];
    for from in states {
        for to in states {
            let what = format!("{} to {}", state_name(from), state_name(to));
            let attr = attributes(env, from, to);
            let mut qp = reach(env, kind, from).during(&what)?;
            let Some((needs, may)) = transition(kind, from, to) else {
                // With whatever attributes: it does not exist.
                for mask in [
                    0,
                    RTR_NEEDS,
                    RTS_NEEDS,
                    QP_PKEY_INDEX | QP_PORT | QP_ACCESS_FLAGS,
                ] {
                    let refused = qp.modify(&attr, QP_STATE | mask);
                    ensure!(
                        refused == Err(Errno(libc::EINVAL)),
                        "{what} with mask {mask:#x}: {refused:?}"
                    );
                }
                ensure!(
                    qp.query()?.qp_state == from,
                    "{what} was refused, but the state changed"
                );
                continue;
            };
            for bit in BITS {
                if needs & bit != 0 {
                    let refused = qp.modify(&attr, QP_STATE | (needs & !bit));
                    ensure!(
                        refused == Err(Errno(libc::EINVAL)),
                        "{what} without attribute {bit:#x}: {refused:?}"
                    );
                } else if (needs | may) & bit == 0 && bit != QP_ALT_PATH && bit != QP_PATH_MIG_STATE
                {
                    let refused = qp.modify(&attr, QP_STATE | needs | bit);
                    ensure!(
                        refused.is_err(),
                        "{what} with attribute {bit:#x} was accepted"
                    );
                    if env.vrnic {
                        ensure!(
                            refused == Err(Errno(libc::EINVAL)),
                            "{what} with attribute {bit:#x}: {refused:?}"
                        );
                    }
                }
            }
            ensure!(
                qp.query()?.qp_state == from,
                "{what}: a refused change changed the state"
            );
            qp.modify(&attr, QP_STATE | needs).during(&what)?;
            ensure!(
                qp.query()?.qp_state == to,
                "{what}: the QP did not change its state"
            );
            for bit in BITS.into_iter().filter(|b| may & b != 0) {
                qp = reach(env, kind, from).during(&what)?;
                let mut attr = attr;
                if bit == QP_EN_SQD_ASYNC_NOTIFY {
                    attr.en_sqd_async_notify = 1;
                }
                qp.modify(&attr, QP_STATE | needs | bit)
                    .during(format!("{what} with attribute {bit:#x}"))?;
                ensure!(
                    qp.query()?.qp_state == to,
                    "{what} with attribute {bit:#x}: the QP did not change its state"
                );
            }
        }
    }
    Ok(())
}

fn table_rc(env: &mut Env) -> Outcome<()> {
    table(env, QPT_RC)
}

fn table_uc(env: &mut Env) -> Outcome<()> {
    table(env, QPT_UC)
}

fn table_ud(env: &mut Env) -> Outcome<()> {
    table(env, QPT_UD)
}

fn query(env: &mut Env) -> Outcome<()> {
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let qp = Qp::new(&env.pd, &cq, &cq, &QpConfig::default()).during("ibv_create_qp")?;
    let depth = env.attr.max_qp_rd_atom.clamp(1, 3) as u8;
    let path = Path {
        from: env.gid.index,
        to: env.peer.gid,
        lid: env.peer.lid,
        qpn: 0x12_3456,
        sq_psn: 0xab_cdef,
        rq_psn: 0xfe_dcba,
        mtu: 2,
        timeout: 11,
        retries: 5,
        rnr_retries: 4,
        rnr_timer: 21,
        rd_atomic: depth,
        access: ACCESS_REMOTE_READ | ACCESS_REMOTE_WRITE,
    };
    qp.connect(&path).during("connecting")?;
    let got = qp.query().during("ibv_query_qp")?;
    let want_gid = path.to.octets();
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&got.ah_attr.grh.dgid[0].to_ne_bytes());
    gid[8..].copy_from_slice(&got.ah_attr.grh.dgid[1].to_ne_bytes());
    for (name, got, want) in [
        ("qp_state", got.qp_state as u32, QPS_RTS as u32),
        ("path_mtu", got.path_mtu as u32, 2),
        ("dest_qp_num", got.dest_qp_num, path.qpn),
        ("sq_psn", got.sq_psn, path.sq_psn),
        ("rq_psn", got.rq_psn, path.rq_psn),
        (
            "qp_access_flags",
            got.qp_access_flags & !(ACCESS_LOCAL_WRITE as u32),
            path.access as u32,
        ),
        ("max_rd_atomic", got.max_rd_atomic.into(), depth.into()),
        (
            "max_dest_rd_atomic",
            got.max_dest_rd_atomic.into(),
            depth.into(),
        ),
        ("min_rnr_timer", got.min_rnr_timer.into(), 21),
        ("timeout", got.timeout.into(), 11),
        ("retry_cnt", got.retry_cnt.into(), 5),
        ("rnr_retry", got.rnr_retry.into(), 4),
        ("port_num", got.port_num.into(), 1),
        ("pkey_index", got.pkey_index.into(), 0),
        ("is_global", got.ah_attr.is_global.into(), 1),
        ("dlid", got.ah_attr.dlid.into(), path.lid.into()),
        (
            "sgid_index",
            got.ah_attr.grh.sgid_index.into(),
            env.gid.index.into(),
        ),
        ("hop_limit", got.ah_attr.grh.hop_limit.into(), 64),
        ("max_send_wr", u32::from(got.cap.max_send_wr >= 16), 1),
        ("max_recv_sge", u32::from(got.cap.max_recv_sge >= 1), 1),
    ] {
        // Some devices round the number of READs up.
        let enough = !env.vrnic && name.ends_with("rd_atomic") && got > want;
        ensure!(got == want || enough, "{name} is {got:#x}, not {want:#x}");
    }
    ensure!(gid == want_gid, "dgid is {gid:02x?}");
    Ok(())
}

/// What a queue pair does not have is 0, whatever the kernel had in the memory of the answer before, and what it was
/// made with is told. An attempt to give it an alternate path, with a P_Key that there is not, leaves one in such
/// memory.
fn query_tells_nothing_else(env: &mut Env) -> Outcome<()> {
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    for round in 0..100 {
        let config = QpConfig {
            signal_all: round % 2 == 0,
            ..Default::default()
        };
        let qp = Qp::new(&env.pd, &cq, &cq, &config).during("ibv_create_qp")?;
        qp.to_init(ACCESS_REMOTE_READ).during("going to INIT")?;
        let alternate = ibv_qp_attr {
            alt_ah_attr: address(env.gid.index, env.gid.gid, env.gid.lid),
            alt_pkey_index: 0x5678,
            alt_port_num: 1,
            alt_timeout: 21,
            ..attributes(env, QPS_INIT, QPS_RTR)
        };
        let refused = qp.modify(&alternate, QP_STATE | RTR_NEEDS | QP_ALT_PATH);
        ensure!(refused.is_err(), "an alternate path was accepted");
        let (got, signal_all) = qp.describe().during("ibv_query_qp")?;
        for (name, got) in [
            (
                "alt_ah_attr.grh.dgid",
                got.alt_ah_attr.grh.dgid[0] | got.alt_ah_attr.grh.dgid[1],
            ),
            (
                "alt_ah_attr.grh.flow_label",
                got.alt_ah_attr.grh.flow_label.into(),
            ),
            (
                "alt_ah_attr.grh.sgid_index",
                got.alt_ah_attr.grh.sgid_index.into(),
            ),
            (
                "alt_ah_attr.grh.hop_limit",
                got.alt_ah_attr.grh.hop_limit.into(),
            ),
            (
                "alt_ah_attr.grh.traffic_class",
                got.alt_ah_attr.grh.traffic_class.into(),
            ),
            ("alt_ah_attr.dlid", got.alt_ah_attr.dlid.into()),
            ("alt_ah_attr.sl", got.alt_ah_attr.sl.into()),
            (
                "alt_ah_attr.src_path_bits",
                got.alt_ah_attr.src_path_bits.into(),
            ),
            (
                "alt_ah_attr.static_rate",
                got.alt_ah_attr.static_rate.into(),
            ),
            ("alt_ah_attr.is_global", got.alt_ah_attr.is_global.into()),
            ("alt_ah_attr.port_num", got.alt_ah_attr.port_num.into()),
            ("ah_attr.dlid", got.ah_attr.dlid.into()),
            ("ah_attr.src_path_bits", got.ah_attr.src_path_bits.into()),
            ("ah_attr.static_rate", got.ah_attr.static_rate.into()),
            ("alt_pkey_index", got.alt_pkey_index.into()),
            ("alt_port_num", got.alt_port_num.into()),
            ("alt_timeout", got.alt_timeout.into()),
        ] {
            ensure!(got == 0, "round {round}: {name} is {got:#x}");
        }
        ensure!(
            signal_all == config.signal_all,
            "round {round}: sq_sig_all is {signal_all}"
        );
    }
    Ok(())
}

/// Makes one attribute wrong.
type Spoil = fn(&mut ibv_qp_attr);

fn values(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let bad: &[(&str, i32, Spoil)] = &[
        ("port 0", QPS_INIT, |a| a.port_num = 0),
        ("port 2", QPS_INIT, |a| a.port_num = 2),
        ("pkey_index 999", QPS_INIT, |a| a.pkey_index = 999),
        ("unknown access flags", QPS_INIT, |a| {
            a.qp_access_flags = 1 << 12;
        }),
        ("path_mtu 0", QPS_RTR, |a| a.path_mtu = 0),
        ("path_mtu 6", QPS_RTR, |a| a.path_mtu = 6),
        ("sgid_index 250", QPS_RTR, |a| {
            a.ah_attr.grh.sgid_index = 250;
        }),
        ("no GRH", QPS_RTR, |a| a.ah_attr.is_global = 0),
        ("max_dest_rd_atomic 255", QPS_RTR, |a| {
            a.max_dest_rd_atomic = 255;
        }),
        ("max_rd_atomic 255", QPS_RTS, |a| a.max_rd_atomic = 255),
        ("min_rnr_timer 32", QPS_RTR, |a| a.min_rnr_timer = 32),
        ("timeout 32", QPS_RTS, |a| a.timeout = 32),
        ("retry_cnt 8", QPS_RTS, |a| a.retry_cnt = 8),
        ("rnr_retry 8", QPS_RTS, |a| a.rnr_retry = 8),
        ("state 7", 7, |_| {}),
    ];
    for (name, to, spoil) in bad {
        // On InfiniBand, connections need no global route header.
        if env.gid.lid != 0 && *name == "no GRH" {
            continue;
        }
        let from = match *to {
            QPS_INIT => QPS_RESET,
            QPS_RTR => QPS_INIT,
            _ => QPS_RTR,
        };
        let qp = reach(env, QPT_RC, from)?;
        let mut attr = attributes(env, from, *to);
        spoil(&mut attr);
        let needs = transition(QPT_RC, from, *to).map_or(0, |t| t.0);
        let refused = qp.modify(&attr, QP_STATE | needs);
        // ib_core itself refuses some of them, with errors of its own.
        ensure!(refused.is_err(), "{name} was accepted");
        ensure!(
            qp.query()?.qp_state == from,
            "{name} was refused, but the state changed"
        );
    }
    Ok(())
}

fn drain(env: &mut Env) -> Outcome<()> {
    let link: Link = env.link(&LinkConfig::default())?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    for n in 0..8 {
        link.send(n, write, &[mr.sge(0, 1000)])?;
    }
    let attr = ibv_qp_attr {
        qp_state: QPS_SQD,
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    link.qp
        .modify(&attr, QP_STATE | QP_EN_SQD_ASYNC_NOTIFY)
        .during("to SQD")?;
    let number = link.qp.number();
    if env.vrnic {
        let wanted =
            |e: &AsyncEvent| e.kind == EVENT_SQ_DRAINED && e.object == EventObject::Qp(number);
        ensure!(
            env.context
                .wait_event(Duration::from_secs(10), wanted)
                .is_some(),
            "no SQ_DRAINED event"
        );
        link.send(100, write, &[])?;
        // Requests begun before may be done; the one posted in SQD waits.
        let mut done = 0;
        while let Some(wc) = link.cq.wait(super::QUIET)? {
            ensure!(wc.wr_id == done && wc.status == WC_SUCCESS, "{wc:?} in SQD");
            done += 1;
        }
        ensure!(done <= 8, "a request posted in SQD was executed");
        ensure!(link.qp.query()?.sq_draining == 0, "still draining");
        link.qp.to_state(QPS_RTS).during("SQD to RTS")?;
        for n in done..8 {
            link.expect(n, WC_SUCCESS)?;
        }
        link.expect(100, WC_SUCCESS)?;
    }
    Ok(())
}

fn established(env: &mut Env) -> Outcome<()> {
    let mut ends = Vec::new();
    for _ in 0..2 {
        let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
        let qp = Qp::new(&env.pd, &cq, &cq, &QpConfig::default()).during("ibv_create_qp")?;
        ends.push((qp, cq));
    }
    let [(passive, passive_cq), (active, active_cq)] = &ends[..] else {
        return Err(Failure("there are two".into()));
    };
    let to_active = env.path_to_self(active.number())?;
    passive.to_init(ACCESS_ALL).during("RESET to INIT")?;
    passive.to_rtr(&to_active).during("INIT to RTR")?;
    active
        .connect(&env.path_to_self(passive.number())?)
        .during("connecting")?;
    for (qp, wr_id) in [(passive, 1), (active, 2)] {
        qp.post_recv(&[(wr_id, &[])])
            .map_err(|e| Failure(format!("posting a receive: {}", e.error)))?;
    }
    let send = |qp: &Qp, wr_id| {
        qp.post_send(&[SendWr::new(wr_id, SendOp::Send, &[])])
            .map_err(|e| Failure(format!("posting a send: {}", e.error)))
    };
    send(active, 3)?;
    expect(active_cq, 3, WC_SUCCESS)?;
    expect(passive_cq, 1, WC_SUCCESS)?;
    if env.vrnic {
        let object = EventObject::Qp(passive.number());
        let wanted = |e: &AsyncEvent| e.kind == EVENT_COMM_EST && e.object == object;
        let told = env.context.wait_event(super::SOON, wanted);
        ensure!(told.is_some(), "no COMM_EST event");
    }
    passive.to_rts(&to_active).during("RTR to RTS")?;
    send(passive, 4)?;
    expect(passive_cq, 4, WC_SUCCESS)?;
    expect(active_cq, 2, WC_SUCCESS)?;
    Ok(())
}
