// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Shared receive queues, in loopback: which queue pair gets which receive, what the receive contains, and which events
//! the owner gets.

use std::sync::Arc;

use super::{Case, Env, SOON, expect};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_srq_attr, ibv_wc};
use crate::memory::PAGE;
use crate::pattern::POISON;
use crate::stress::datagrams::{GRH, check_grh};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    Ah, Cq, EVENT_QP_LAST_WQE_REACHED, EVENT_SRQ_LIMIT_REACHED, Errno, EventObject, Interface, Mr,
    PostError, QPS_ERR, QPT_RC, QPT_UC, QPT_UD, Qp, QpConfig, SRQ_LIMIT, SRQ_MAX_WR, SendOp,
    SendWr, Srq, WC_GRH, WC_LOC_LEN_ERR, WC_RECV, WC_REM_INV_REQ_ERR, WC_SUCCESS, WC_WITH_IMM,
    mtu_bytes,
};

pub(super) const CASES: &[Case] = &[
    ("srq-serves-several-queue-pairs", serves),
    ("srq-limit-event-comes-once", limit),
    ("srq-resize-keeps-receives", resize),
    ("srq-full-is-refused", full),
    ("srq-last-receive-event", last),
    ("srq-message-too-long", short),
    ("srq-in-use-is-not-destroyed", busy),
    ("srq-receives-datagrams", datagrams),
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

/// Datagrams to several queue pairs arrive in the receives of one queue, whole and behind the header of their route.
fn datagrams(env: &mut Env) -> Outcome<()> {
    const QKEY: u32 = 0x0102_0304;
    /// Room of a receive.
    const ROOM: usize = 2 * PAGE;
    const RECEIVES: u64 = 8;
    let mtu = mtu_bytes(env.context.port_attr()?.active_mtu);
    let srq = Srq::new(&env.pd, RECEIVES as u32, 2).during("ibv_create_srq")?;
    let (from, mr) = (env.buffer()?, env.buffer()?);
    let ah = Ah::new(&env.pd, env.gid.index, env.gid.gid, env.gid.lid).during("ibv_create_ah")?;
    let config = |interface| QpConfig {
        kind: QPT_UD,
        interface,
        ..Default::default()
    };
    let cq = |interface| Cq::with(&env.context, 64, 0, None, 0, interface).during("ibv_create_cq");
    let sent = cq(Interface::Legacy)?;
    let senders = [Interface::Legacy, Interface::Extended]
        .into_iter()
        .map(|interface| Qp::new(&env.pd, &sent, &sent, &config(interface)))
        .collect::<Result<Vec<_>, _>>()
        .during("ibv_create_qp")?;
    let receivers = [Interface::Legacy, Interface::Extended, Interface::Legacy]
        .into_iter()
        .map(|interface| {
            let received = cq(interface)?;
            Qp::with_srq(&received, &received, &config(interface), &srq)
                .during("ibv_create_qp with an SRQ")
        })
        .collect::<Outcome<Vec<_>>>()?;
    for (n, qp) in (1..).zip(senders.iter().chain(&receivers)) {
        qp.start_datagrams(QKEY, n).during("starting a UD QP")?;
    }
    let place = |wr_id: u64| (wr_id % RECEIVES) as usize * ROOM;
    // Each receive is in two pieces, cut inside the header, at its end or in the payload.
    let post = |wr_id: u64| {
        mr.memory().set(place(wr_id), ROOM, POISON);
        let cut = [17, GRH, GRH + 5][wr_id as usize % 3];
        let (at, rest) = (place(wr_id), GRH + mtu - cut);
        srq.post_recv(&[(wr_id, &[mr.sge(at, cut), mr.sge(at + cut, rest)])])
            .map_err(|e| Failure(format!("receive {wr_id}: {}", e.error)))
    };
    (0..RECEIVES).try_for_each(post)?;
    let lengths = [mtu, 0, 1, 5, 6, 1000, mtu - 1, 64];
    // More than the queue has room for, so that its places are used again.
    for wr_id in 0..5 * RECEIVES {
        let len = lengths[wr_id as usize * 3 % lengths.len()].min(mtu);
        let (sender, receiver) = (&senders[wr_id as usize % 2], &receivers[wr_id as usize % 3]);
        from.memory().fill(0, len, wr_id, 0);
        let number = receiver.number();
        let immediate = wr_id.is_multiple_of(5).then_some(wr_id as u32 + 1);
        let op = match immediate {
            Some(value) => SendOp::DatagramImm(&ah, number, QKEY, value),
            None => SendOp::Datagram(&ah, number, QKEY),
        };
        sender
            .post_send(&[SendWr::new(wr_id, op, &[from.sge(0, len)])])
            .map_err(|e| Failure(format!("datagram {wr_id}: {}", e.error)))?;
        expect(&sent, wr_id, WC_SUCCESS)?;
        let wc = expect(&receiver.recv_cq, wr_id, WC_SUCCESS)?;
        ensure!(
            wc.opcode == WC_RECV
                && wc.byte_len as usize == GRH + len
                && wc.qp_num == number
                && wc.src_qp == sender.number()
                && wc.wc_flags & WC_GRH != 0,
            "datagram {wr_id} of {len} bytes: {wc:?}"
        );
        let got = (wc.wc_flags & WC_WITH_IMM != 0).then(|| u32::from_be(wc.imm_data));
        ensure!(
            got == immediate,
            "datagram {wr_id}: {got:?}, not {immediate:?}"
        );
        let (at, mut grh) = (place(wr_id), [0; GRH]);
        mr.memory().read(at, &mut grh);
        check_grh(&grh, env.gid.gid, env.gid.gid).map_err(Failure)?;
        let payload = mr.memory().check(at + GRH, len, wr_id, 0);
        payload.map_err(|byte| Failure(format!("datagram {wr_id}: byte {byte} is wrong")))?;
        let behind = mr
            .memory()
            .check_set(at + GRH + len, ROOM - GRH - len, POISON);
        behind
            .map_err(|byte| Failure(format!("datagram {wr_id}: {byte} behind its end changed")))?;
        post(wr_id + RECEIVES)?;
    }
    // What is for another queue pair or has another key takes no receive.
    let first = &receivers[0];
    for (number, qkey) in [(first.number(), QKEY + 1), (0x00ff_fffe, QKEY)] {
        let wr = SendWr::new(1, SendOp::Datagram(&ah, number, qkey), &[]);
        senders[0]
            .post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
        expect(&sent, 1, WC_SUCCESS)?;
    }
    let wr = SendWr::new(2, SendOp::Datagram(&ah, first.number(), QKEY), &[]);
    senders[0]
        .post_send(&[wr])
        .map_err(|e| Failure(e.error.to_string()))?;
    expect(&first.recv_cq, 5 * RECEIVES, WC_SUCCESS)?;
    Ok(())
}
