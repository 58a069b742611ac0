// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Completion counters: what they count at both ends, what they refuse, and how many there are.

use std::time::{Duration, Instant};

use super::{Case, Env, LinkConfig, SOON};
use crate::ensure;
use crate::stress::{During, Outcome};
use crate::verbs::{
    COUNT_ALL, COUNT_READ, COUNT_RECV, COUNT_REMOTE_READ, COUNT_REMOTE_WRITE, COUNT_SEND,
    COUNT_WRITE, CompCntr, Cq, Errno, QPS_ERR, Qp, SendOp, SendWr, Value, WC_REM_ACCESS_ERR,
    WC_SUCCESS, WC_WR_FLUSH_ERR, Way,
};

pub(super) const CASES: &[Case] = &[
    ("completion-counters-requests", requests),
    ("completion-counters-of-the-peer", remote),
    ("completion-counters-errors", errors),
    ("completion-counters-are-refused", refused),
    ("completion-counters-to-the-last", limit),
];

/// Calls `work` with each way to use counters that there is here. Other devices need not have any.
fn each_way(env: &mut Env, work: impl Fn(&mut Env, Way) -> Outcome<()>) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    for &way in Way::all() {
        let (max_value, max_counters, operations) =
            CompCntr::caps(&env.context, way).during("ibv_query_comp_cntr_caps")?;
        ensure!(
            (max_value, operations) == (u64::MAX, COUNT_ALL) && max_counters > 0,
            "{way:?}: {max_value:#x}, {max_counters}, {operations:#x}"
        );
        work(env, way)?;
    }
    Ok(())
}

/// A counter, which begins at 0.
fn counter(env: &Env, way: Way) -> Outcome<CompCntr> {
    let counter = CompCntr::new(&env.context, way).during("ibv_create_comp_cntr")?;
    expect(&counter, 0, 0)?;
    Ok(counter)
}

/// The counter gets to these values. The device stores them when it writes the completion, but a peer's operation can
/// end here a little after it ended there.
fn expect(counter: &CompCntr, completions: u64, errors: u64) -> Outcome<()> {
    let start = Instant::now();
    loop {
        let got = (
            counter.read(Value::Completions).during("reading")?,
            counter.read(Value::Errors).during("reading")?,
        );
        if got == (completions, errors) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < SOON,
            "{got:?} operations counted, not {completions} and {errors}"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Unsignalled requests count when they are done, like all others.
fn requests(env: &mut Env) -> Outcome<()> {
    each_way(env, |env, way| {
        let config = LinkConfig::default();
        let cq = Cq::new(&env.context, 128).during("ibv_create_cq")?;
        let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
        let [writes, others] = [counter(env, way)?, counter(env, way)?];
        writes.attach(&qp, COUNT_WRITE).during("attaching")?;
        others
            .attach(&qp, COUNT_SEND | COUNT_READ)
            .during("attaching")?;
        let link = env.connect(qp, cq, &config)?;
        let mr = env.buffer()?;
        let all = env.peer.all;
        let sge = [mr.sge(0, 3000)];
        for wr_id in 0..3 {
            env.peer.recv(link.peer_qpn, wr_id, 0, 4096)?;
        }
        let quiet = |op| SendWr::new(1, op, &sge).flags(0);
        let posted = link.qp.post_send(&[
            quiet(SendOp::Write(all.addr, all.rkey)),
            quiet(SendOp::Send),
            quiet(SendOp::Read(all.addr, all.rkey)),
            quiet(SendOp::SendImm(7)),
            quiet(SendOp::WriteImm(all.addr, all.rkey, 8)),
        ]);
        posted.map_err(Errno::from).during("posting")?;
        link.send(2, SendOp::Write(all.addr, all.rkey), &sge)?;
        link.expect(2, WC_SUCCESS)?;
        expect(&writes, 3, 0)?;
        expect(&others, 3, 0)?;
        for wr_id in 0..3 {
            env.peer.expect(wr_id, WC_SUCCESS)?;
        }

        // The largest value is followed by 0.
        writes.set(Value::Completions, u64::MAX).during("setting")?;
        writes.set(Value::Errors, 5).during("setting")?;
        expect(&writes, u64::MAX, 5)?;
        link.send(3, SendOp::Write(all.addr, all.rkey), &sge)?;
        link.expect(3, WC_SUCCESS)?;
        expect(&writes, 0, 5)?;
        writes.add(Value::Completions, 40).during("adding")?;
        writes.add(Value::Errors, u64::MAX).during("adding")?;
        expect(&writes, 40, 4)?;
        expect(&others, 3, 0)?;
        link.qp.destroy().during("ibv_destroy_qp")
    })
}

/// What a peer does counts at the other end, which is ours, too.
fn remote(env: &mut Env) -> Outcome<()> {
    each_way(env, |env, way| {
        let config = LinkConfig::default();
        let cq = Cq::new(&env.context, 128).during("ibv_create_cq")?;
        let new = || Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp");
        let (one, two) = (new()?, new()?);
        let (reads, writes) = (counter(env, way)?, counter(env, way)?);
        let receives = counter(env, way)?;
        reads.attach(&two, COUNT_REMOTE_READ).during("attaching")?;
        writes
            .attach(&two, COUNT_REMOTE_WRITE)
            .during("attaching")?;
        receives.attach(&two, COUNT_RECV).during("attaching")?;
        // The same one counts the other end's.
        receives.attach(&one, COUNT_RECV).during("attaching")?;
        env.connect_own(&one, &two)?;
        let mr = env.buffer()?;
        let sge = [mr.sge(0, 9000)];
        let to = (mr.addr(20_000), mr.rkey());
        for qp in [&one, &two] {
            for wr_id in [10, 11] {
                qp.post_recv(&[(wr_id, &[mr.sge(40_000, 9000)])])
                    .map_err(Errno::from)
                    .during("posting")?;
            }
        }
        for op in [
            SendOp::Write(to.0, to.1),
            SendOp::Read(to.0, to.1),
            SendOp::Read(to.0, to.1),
            SendOp::WriteImm(to.0, to.1, 1),
            SendOp::Send,
        ] {
            one.post_send(&[SendWr::new(1, op, &sge)])
                .map_err(Errno::from)
                .during("posting")?;
        }
        two.post_send(&[SendWr::new(2, SendOp::Send, &sge)])
            .map_err(Errno::from)
            .during("posting")?;
        // 6 requests and 3 receives.
        for _ in 0..9 {
            let wc = cq.wait(SOON).during("polling")?;
            ensure!(wc.is_some_and(|wc| wc.status == WC_SUCCESS), "{wc:?}");
        }
        expect(&reads, 2, 0)?;
        expect(&writes, 2, 0)?;
        expect(&receives, 3, 0)?;
        for qp in [one, two] {
            qp.destroy().during("ibv_destroy_qp")?;
        }
        Ok(())
    })
}

/// Requests that fail count apart, and so do those that are flushed.
fn errors(env: &mut Env) -> Outcome<()> {
    each_way(env, |env, way| {
        let config = LinkConfig::default();
        let cq = Cq::new(&env.context, 128).during("ibv_create_cq")?;
        let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
        let all_of_it = counter(env, way)?;
        all_of_it.attach(&qp, COUNT_ALL).during("attaching")?;
        let link = env.connect(qp, cq, &config)?;
        let mr = env.buffer()?;
        let all = env.peer.all;
        let sge = [mr.sge(0, 100)];
        link.recv(9, &sge)?;
        link.send(1, SendOp::Write(all.addr, all.rkey), &sge)?;
        link.expect(1, WC_SUCCESS)?;
        link.send(2, SendOp::Write(all.addr, all.rkey ^ 0x5500), &sge)?;
        link.expect(2, WC_REM_ACCESS_ERR)?;
        link.expect(9, WC_WR_FLUSH_ERR)?;
        link.expect_state(QPS_ERR)?;
        for wr_id in [3, 4] {
            link.send(wr_id, SendOp::Send, &sge)?;
            link.expect(wr_id, WC_WR_FLUSH_ERR)?;
        }
        expect(&all_of_it, 1, 4)?;
        link.qp.destroy().during("ibv_destroy_qp")
    })
}

/// A counter that is in use stays, and what makes no sense is refused.
fn refused(env: &mut Env) -> Outcome<()> {
    each_way(env, |env, way| {
        let config = LinkConfig::default();
        let cq = Cq::new(&env.context, 128).during("ibv_create_cq")?;
        let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
        let [one, other] = [counter(env, way)?, counter(env, way)?];
        let [invalid, busy] = [libc::EINVAL, libc::EBUSY].map(|error| Err(Errno(error)));
        ensure!(one.attach(&qp, 0) == invalid, "no operation is counted");
        ensure!(
            one.attach(&qp, COUNT_ALL + 1).is_err(),
            "unknown operations are counted"
        );
        one.attach(&qp, COUNT_WRITE).during("attaching")?;
        for again in [&one, &other] {
            let result = again.attach(&qp, COUNT_SEND | COUNT_WRITE);
            ensure!(result == busy, "an operation is counted twice: {result:?}");
        }
        qp.to_init(0).during("INIT")?;
        other.attach(&qp, COUNT_SEND).during("attaching in INIT")?;
        qp.reset().during("RESET")?;
        let link = env.connect(qp, cq, &config)?;
        let result = other.attach(&link.qp, COUNT_READ);
        ensure!(result == invalid, "attached in RTS: {result:?}");
        let mut kept = Vec::new();
        for counter in [one, other] {
            match counter.try_destroy() {
                Err((counter, Errno(libc::EBUSY))) => kept.push(counter),
                other => ensure!(false, "a counter in use is destroyed: {other:?}"),
            }
        }
        // It still counts, also after RESET.
        let mr = env.buffer()?;
        let all = env.peer.all;
        let sge = [mr.sge(0, 100)];
        link.send(1, SendOp::Write(all.addr, all.rkey), &sge)?;
        link.expect(1, WC_SUCCESS)?;
        expect(&kept[0], 1, 0)?;
        link.qp.destroy().during("ibv_destroy_qp")?;
        for counter in kept {
            let result = counter.try_destroy().map_err(|(_, error)| error);
            ensure!(result == Ok(()), "destroying: {result:?}");
        }
        Ok(())
    })
}

/// There are as many as the device says.
fn limit(env: &mut Env) -> Outcome<()> {
    if !env.slow {
        return Ok(());
    }
    each_way(env, |env, way| {
        let (_, max, _) = CompCntr::caps(&env.context, way).during("capabilities")?;
        let mut all = Vec::new();
        for _ in 0..max {
            all.push(CompCntr::new(&env.context, way).during("ibv_create_comp_cntr")?);
        }
        let more = CompCntr::new(&env.context, way).err();
        ensure!(more == Some(Errno(libc::ENOMEM)), "{more:?}");
        all.pop();
        all.push(CompCntr::new(&env.context, way).during("after one is gone")?);
        Ok(())
    })
}
