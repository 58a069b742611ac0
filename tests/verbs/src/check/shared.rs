// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Shared receive queues, in loopback: who gets which receive, what the owner is told.

use std::sync::Arc;

use super::{Case, Env, SOON, expect};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_srq_attr, ibv_wc};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    Cq, EVENT_QP_LAST_WQE_REACHED, EVENT_SRQ_LIMIT_REACHED, Errno, EventObject, Interface, Mr,
    PostError, QPS_ERR, QPT_RC, QPT_UC, Qp, QpConfig, SRQ_LIMIT, SRQ_MAX_WR, SendOp, SendWr, Srq,
    WC_LOC_LEN_ERR, WC_REM_INV_REQ_ERR, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("srq-serves-several-queue-pairs", serves),
    ("srq-limit-event-comes-once", limit),
    ("srq-resize-keeps-receives", resize),
    ("srq-full-is-refused", full),
    ("srq-last-receive-event", last),
    ("srq-message-too-long", short),
    ("srq-in-use-is-not-destroyed", busy),
];

/// A QP that sends to one that takes its receives from an SRQ.
struct Pair {
    sender: Qp,
    sent: Arc<Cq>,
    receiver: Qp,
    received: Arc<Cq>,
}

impl Pair {
    fn new(env: &Env, srq: &Arc<Srq>, kind: i32, interface: Interface) -> Outcome<Self> {
        let cq = || Cq::new(&env.context, 64).during("ibv_create_cq");
        let (sent, received) = (cq()?, cq()?);
        let config = QpConfig {
            kind,
            interface,
            ..Default::default()
        };
        // What it says of receives has no meaning.
        let shared = QpConfig {
            cap: ibv_qp_cap {
                max_recv_wr: 7,
                ..config.cap
            },
            ..config
        };
        let sender = Qp::new(&env.pd, &sent, &sent, &config).during("ibv_create_qp")?;
        let receiver =
            Qp::with_srq(&received, &received, &shared, srq).during("ibv_create_qp with an SRQ")?;
        env.connect_own(&sender, &receiver)?;
        Ok(Pair {
            sender,
            sent,
            receiver,
            received,
        })
    }

    /// Sends `len` bytes, which arrive in receive `wr_id`.
    fn send(&self, mr: &Mr, len: usize, wr_id: u64) -> Outcome<ibv_wc> {
        self.post(mr, len)?;
        expect(&self.sent, 1, WC_SUCCESS)?;
        let wc = expect(&self.received, wr_id, WC_SUCCESS)?;
        ensure!(
            wc.byte_len as usize == len && wc.qp_num == self.receiver.number(),
            "{wc:?}"
        );
        Ok(wc)
    }

    fn post(&self, mr: &Mr, len: usize) -> Outcome<()> {
        self.sender
            .post_send(&[SendWr::new(1, SendOp::Send, &[mr.sge(0, len)])])
            .map_err(|e| Failure(format!("ibv_post_send: {}", e.error)))
    }
}

fn receive(srq: &Srq, mr: &Mr, wr_id: u64, len: usize) -> Result<(), PostError> {
    srq.post_recv(&[(wr_id, &[mr.sge(wr_id as usize % 64 * 512, len)])])
}

fn post(srq: &Srq, mr: &Mr, wr_ids: std::ops::Range<u64>) -> Outcome<()> {
    for wr_id in wr_ids {
        receive(srq, mr, wr_id, 512)
            .map_err(|e| Failure(format!("receive {wr_id}: {}", e.error)))?;
    }
    Ok(())
}

fn new(env: &Env, max_wr: u32) -> Outcome<(Arc<Srq>, Mr)> {
    let srq = Srq::new(&env.pd, max_wr, 2).during("ibv_create_srq")?;
    Ok((srq, env.buffer()?))
}

fn expect_event(env: &Env, kind: i32, object: EventObject) -> Outcome<()> {
    let came = env
        .context
        .wait_event(SOON, |e| e.kind == kind && e.object == object);
    ensure!(came.is_some(), "no event {kind} of {object:?}");
    Ok(())
}

fn serves(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 16)?;
    let pairs = [
        Pair::new(env, &srq, QPT_RC, Interface::Legacy)?,
        Pair::new(env, &srq, QPT_UC, Interface::Legacy)?,
        Pair::new(env, &srq, QPT_RC, Interface::Extended)?,
    ];
    // More than the queue has room for at once, and than there are places for names.
    for round in 0..40 {
        post(&srq, &mr, round..round + 1)?;
        pairs[round as usize * 7 % 3].send(&mr, round as usize * 3, round)?;
    }
    // Several wait; the oldest goes first, whoever needs it.
    post(&srq, &mr, 100..106)?;
    for (n, which) in [2, 0, 0, 1, 2, 1].into_iter().enumerate() {
        pairs[which].send(&mr, 64, 100 + n as u64)?;
    }
    // Completions that nobody polled before their QP goes are forgotten, and nobody else's are.
    post(&srq, &mr, 200..202)?;
    let [first, _, third] = pairs;
    first.post(&mr, 1)?;
    expect(&first.sent, 1, WC_SUCCESS)?;
    drop(first);
    third.send(&mr, 2, 201)?;
    Ok(())
}

fn limit(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 16)?;
    let pair = Pair::new(env, &srq, QPT_RC, Interface::Legacy)?;
    post(&srq, &mr, 0..6)?;
    let set = |srq_limit| {
        let attr = ibv_srq_attr {
            srq_limit,
            ..Default::default()
        };
        srq.modify(attr, SRQ_LIMIT)
    };
    ensure!(
        set(1 << 20) == Err(Errno(libc::EINVAL)),
        "a limit that is never met"
    );
    set(5).during("ibv_modify_srq")?;
    ensure!(srq.query()?.srq_limit == 5, "{:?}", srq.query()?);
    let object = EventObject::Srq(srq.handle());
    pair.send(&mr, 8, 0)?;
    ensure!(srq.query()?.srq_limit == 5, "five are left");
    pair.send(&mr, 8, 1)?;
    expect_event(env, EVENT_SRQ_LIMIT_REACHED, object)?;
    ensure!(srq.query()?.srq_limit == 0, "{:?}", srq.query()?);
    pair.send(&mr, 8, 2)?;
    // A limit that is reached when it is set.
    set(16).during("ibv_modify_srq")?;
    expect_event(env, EVENT_SRQ_LIMIT_REACHED, object)?;
    set(3).during("ibv_modify_srq")?;
    let early = env.context.wait_event(super::QUIET, |e| e.object == object);
    ensure!(early.is_none(), "{early:?}");
    Ok(())
}

fn resize(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 4)?;
    let pair = Pair::new(env, &srq, QPT_RC, Interface::Legacy)?;
    let set = |max_wr| {
        let attr = ibv_srq_attr {
            max_wr,
            ..Default::default()
        };
        srq.modify(attr, SRQ_MAX_WR)
    };
    let mut next = 0;
    for max_wr in [32, 8, 4, 64, 16] {
        post(&srq, &mr, next..next + 3)?;
        pair.send(&mr, 100, next)?;
        set(max_wr).during(format!("to {max_wr}"))?;
        ensure!(srq.query()?.max_wr >= max_wr, "{:?}", srq.query()?);
        pair.send(&mr, 100, next + 1)?;
        pair.send(&mr, 100, next + 2)?;
        next += 3;
    }
    post(&srq, &mr, next..next + 5)?;
    ensure!(set(4) == Err(Errno(libc::EINVAL)), "too small");
    ensure!(set(1 << 24) == Err(Errno(libc::EINVAL)), "too large");
    for wr_id in next..next + 5 {
        pair.send(&mr, 200, wr_id)?;
    }
    Ok(())
}

fn full(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 4)?;
    let pair = Pair::new(env, &srq, QPT_RC, Interface::Legacy)?;
    let room = u64::from(srq.query()?.max_wr);
    post(&srq, &mr, 0..room)?;
    let refused = receive(&srq, &mr, room, 1);
    ensure!(
        refused.map_err(|e| e.error) == Err(Errno(libc::ENOMEM)),
        "{refused:?}"
    );
    pair.send(&mr, 5, 0)?;
    post(&srq, &mr, room..room + 1)?;
    for wr_id in 1..=room {
        pair.send(&mr, 5, wr_id)?;
    }
    Ok(())
}

fn last(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 4)?;
    let pairs = [
        Pair::new(env, &srq, QPT_RC, Interface::Legacy)?,
        Pair::new(env, &srq, QPT_RC, Interface::Legacy)?,
    ];
    post(&srq, &mr, 0..2)?;
    pairs[0].receiver.to_state(QPS_ERR).during("to ERR")?;
    let object = EventObject::Qp(pairs[0].receiver.number());
    expect_event(env, EVENT_QP_LAST_WQE_REACHED, object)?;
    // The receives are the other's.
    pairs[1].send(&mr, 5, 0)?;
    pairs[1].send(&mr, 5, 1)?;
    ensure!(
        pairs[0].received.wait(super::QUIET)?.is_none(),
        "a receive that was not taken completed"
    );
    Ok(())
}

fn short(env: &mut Env) -> Outcome<()> {
    let (srq, mr) = new(env, 4)?;
    let pairs = [
        Pair::new(env, &srq, QPT_RC, Interface::Legacy)?,
        Pair::new(env, &srq, QPT_RC, Interface::Legacy)?,
    ];
    receive(&srq, &mr, 7, 99).map_err(|e| Failure(e.error.to_string()))?;
    post(&srq, &mr, 8..9)?;
    pairs[0].post(&mr, 100)?;
    expect(&pairs[0].sent, 1, WC_REM_INV_REQ_ERR)?;
    expect(&pairs[0].received, 7, WC_LOC_LEN_ERR)?;
    let object = EventObject::Qp(pairs[0].receiver.number());
    expect_event(env, EVENT_QP_LAST_WQE_REACHED, object)?;
    pairs[1].send(&mr, 100, 8)?;
    Ok(())
}

fn busy(env: &mut Env) -> Outcome<()> {
    let (srq, _mr) = new(env, 4)?;
    let _pair = Pair::new(env, &srq, QPT_RC, Interface::Legacy)?;
    ensure!(
        srq.try_destroy() == Err(Errno(libc::EBUSY)),
        "an SRQ that a QP uses was destroyed"
    );
    Ok(())
}
