// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Rate limits of queue pairs. How fast a limit is, no check asks: it would depend on the machine. What they compare is
//! which of several queue pairs completes what first.

use super::{Case, Env, LinkConfig};
use crate::ensure;
use crate::ffi::{ibv_qp_attr, ibv_qp_rate_limit_attr, ibv_wc};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    Cq, Errno, QP_RATE_LIMIT, QP_STATE, QPS_ERR, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, QPT_RC,
    QPT_UC, QPT_UD, Qp, QpConfig, SendOp, WC_SUCCESS, state_name,
};

pub(super) const CASES: &[Case] = &[
    ("rate-limit-holds-one-back", one_of_two),
    ("rate-limit-values", values),
    ("rate-limit-states", states),
];

/// Number of bytes of each message.
const LENGTH: usize = 4096;
/// Number of messages of each queue pair.
const MESSAGES: u64 = 20;

/// The largest rate limit of the device, if it has any. Only our device must have them.
fn largest(env: &Env) -> Outcome<Option<u32>> {
    let attr = env.context.device_attr_ex().during("ibv_query_device_ex")?;
    let caps = attr.packet_pacing_caps;
    if caps.qp_rate_limit_max == 0 {
        ensure!(!env.vrnic, "the device has no rate limits");
        return Ok(None);
    }
    for kind in [QPT_RC, QPT_UC, QPT_UD] {
        ensure!(
            !env.vrnic || caps.supported_qpts & 1 << kind != 0,
            "{caps:?}"
        );
    }
    ensure!(caps.qp_rate_limit_min <= caps.qp_rate_limit_max, "{caps:?}");
    Ok(Some(caps.qp_rate_limit_max))
}

fn rate(kbits: u32) -> ibv_qp_rate_limit_attr {
    ibv_qp_rate_limit_attr {
        rate_limit: kbits,
        ..Default::default()
    }
}

/// At 1 kbit/s, a message takes half a minute, so the other queue pair has long completed all of its own. Without a
/// limit, the rest follows.
fn one_of_two(env: &mut Env) -> Outcome<()> {
    if largest(env)?.is_none() {
        return Ok(());
    }
    // The timeout of the slow one is far shorter than its pauses.
    let config = LinkConfig {
        timeout: 12,
        ..LinkConfig::default()
    };
    let (slow, fast) = (env.link(&config)?, env.link(&LinkConfig::default())?);
    let mr = env.buffer()?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    slow.qp.limit(&rate(1)).during("ibv_modify_qp_rate_limit")?;
    let message = [mr.sge(0, LENGTH)];
    for id in 0..MESSAGES {
        slow.send(id, write, &message)?;
    }
    for round in 0..3 {
        for id in 0..MESSAGES {
            fast.send(round * 100 + id, write, &message)?;
        }
        for id in 0..MESSAGES {
            fast.expect(round * 100 + id, WC_SUCCESS)?;
        }
    }
    let mut early = [ibv_wc::default(); MESSAGES as usize];
    let early = slow.cq.poll(&mut early).during("polling")? as u64;
    ensure!(
        early <= 2,
        "the limit held back only {} messages",
        MESSAGES - early
    );
    slow.qp.limit(&rate(0)).during("removing the limit")?;
    for id in early..MESSAGES {
        slow.expect(id, WC_SUCCESS)?;
    }
    Ok(())
}

fn refused(qp: &Qp, limit: ibv_qp_rate_limit_attr) -> Outcome<()> {
    match qp.limit(&limit) {
        Err(Errno(libc::EINVAL)) => Ok(()),
        other => Err(Failure(format!("{limit:?}: {other:?}, not EINVAL"))),
    }
}

fn values(env: &mut Env) -> Outcome<()> {
    let Some(largest) = largest(env)? else {
        return Ok(());
    };
    let link = env.link(&LinkConfig::default())?;
    let burst = |rate_limit, max_burst_sz, typical_pkt_sz| ibv_qp_rate_limit_attr {
        rate_limit,
        max_burst_sz,
        typical_pkt_sz,
        comp_mask: 0,
    };
    for good in [
        rate(1),
        rate(largest),
        burst(largest, 1 << 20, 0),
        burst(1000, 64, 64),
        burst(1000, 0, 4096),
        rate(0),
    ] {
        link.qp.limit(&good).during("a good limit")?;
    }
    refused(&link.qp, rate(largest + 1))?;
    refused(&link.qp, rate(u32::MAX))?;
    // A burst without a limit, and one that is shorter than a packet.
    refused(&link.qp, burst(0, 4096, 0))?;
    refused(&link.qp, burst(0, 0, 64))?;
    refused(&link.qp, burst(1000, 63, 64))?;
    refused(&link.qp, burst(1000, 255, 0))?;
    refused(
        &link.qp,
        ibv_qp_rate_limit_attr {
            comp_mask: 1,
            ..rate(1000)
        },
    )?;
    // None of that was taken.
    let mr = env.buffer()?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    for id in 0..MESSAGES {
        link.send(id, write, &[mr.sge(0, LENGTH)])?;
        link.expect(id, WC_SUCCESS)?;
    }
    Ok(())
}

/// A limit can be set alone in all states but RESET and ERR, and together with a change to RTS.
fn states(env: &mut Env) -> Outcome<()> {
    if largest(env)?.is_none() {
        return Ok(());
    }
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let qp = Qp::new(&env.pd, &cq, &cq, &QpConfig::default()).during("ibv_create_qp")?;
    let path = env.path_to_self(qp.number())?;
    let set = |state| -> Outcome<()> {
        let done = qp.limit(&rate(1000));
        ensure!(done.is_ok(), "in {}: {done:?}", state_name(state));
        Ok(())
    };
    refused(&qp, rate(1000))?;
    qp.to_init(0).during("to INIT")?;
    set(QPS_INIT)?;
    qp.to_rtr(&path).during("to RTR")?;
    set(QPS_RTR)?;
    qp.to_rts(&path).during("to RTS")?;
    set(QPS_RTS)?;
    let both = ibv_qp_attr {
        qp_state: QPS_RTS,
        rate_limit: 2000,
        ..Default::default()
    };
    qp.modify(&both, QP_STATE | QP_RATE_LIMIT)
        .during("both at once")?;
    qp.to_state(QPS_ERR).during("to ERR")?;
    refused(&qp, rate(1000))?;
    let both = ibv_qp_attr {
        qp_state: QPS_RESET,
        ..both
    };
    let done = qp.modify(&both, QP_STATE | QP_RATE_LIMIT);
    ensure!(done == Err(Errno(libc::EINVAL)), "{done:?}");
    qp.reset().during("to RESET")?;
    // What the limit was is forgotten.
    qp.connect(&path).during("connecting")?;
    let mr = env.buffer()?;
    let write = SendOp::Write(mr.addr(1000), mr.rkey());
    for id in 0..MESSAGES {
        let sges = [mr.sge(0, LENGTH)];
        let wr = crate::verbs::SendWr::new(id, write, &sges);
        qp.post_send(&[wr])
            .map_err(|e| Failure(format!("posting: {}", e.error)))?;
        super::expect(&cq, id, WC_SUCCESS)?;
    }
    Ok(())
}
