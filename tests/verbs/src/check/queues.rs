// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Work queues and completion queues: depth, signalling, inline data, events, overrun, threads, and the largest
//! message.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{ACCESS_ALL, Case, Env, Link, LinkConfig, QUIET, SOON, expect};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_wc};
use crate::memory::Memory;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, Channel, Cq, EVENT_CQ_ERR, EVENT_QP_FATAL, EventObject, Interface, Mr,
    QPS_ERR, Qp, QpConfig, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, SendOp, SendWr, Sge,
    WC_LOC_LEN_ERR, WC_SUCCESS, WC_WITH_IMM, WC_WR_FLUSH_ERR,
};

pub(super) const CASES: &[Case] = &[
    ("send-queue-holds-exactly-its-depth", sq_depth),
    ("receive-queue-holds-exactly-its-depth", rq_depth),
    ("post-list-stops-at-the-bad-one", bad_wr),
    ("post-beyond-granted-limits", post_limits),
    ("zero-length-messages", zero_length),
    ("inline-data-is-taken-at-the-post", inline_snapshot),
    ("unsignalled-requests-free-their-slots", unsignalled),
    ("signal-all", signal_all),
    ("event-for-each-arming-only", events_once),
    ("solicited-events", solicited),
    ("cq-overrun-is-contained", overrun),
    ("cq-overrun-is-ignored", ignored_overrun),
    ("many-threads-on-one-qp", threads),
    ("extended-interface-abort", abort),
    ("extended-interface-all-operations", extended),
    ("message-of-2-gib", two_gib),
];

/// A connection that stalls: the peer has no receive and asks for a long wait.
fn stalled(env: &mut Env, cap: ibv_qp_cap) -> Outcome<Link> {
    env.link(&LinkConfig {
        rnr_timer: 26,
        qp: QpConfig {
            cap,
            ..Default::default()
        },
        ..Default::default()
    })
}

fn cap(send: u32, recv: u32) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: send,
        max_recv_wr: recv,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 32,
    }
}

fn sq_depth(env: &mut Env) -> Outcome<()> {
    for depth in [1, 7, 16, 33] {
        let link = stalled(env, cap(depth, 1))?;
        let granted = link.qp.cap.max_send_wr;
        ensure!(granted >= depth, "{granted} granted, {depth} asked");
        for n in 0..granted {
            link.send(u64::from(n), SendOp::Send, &[])
                .map_err(|e| Failure(format!("request {n} of {granted}: {e}")))?;
        }
        let more = link.qp.post_send(&[SendWr::new(99, SendOp::Send, &[])]);
        ensure!(
            matches!(more, Err(e) if e.error.0 == libc::ENOMEM),
            "one more than {granted}: {more:?}"
        );
        link.qp.to_state(QPS_ERR).during("to ERR")?;
        for n in 0..granted {
            link.expect(u64::from(n), WC_WR_FLUSH_ERR)?;
        }
        link.expect_quiet()?;
    }
    Ok(())
}

fn rq_depth(env: &mut Env) -> Outcome<()> {
    for depth in [1, 7, 16, 33] {
        let link = stalled(env, cap(1, depth))?;
        let granted = link.qp.cap.max_recv_wr;
        ensure!(granted >= depth, "{granted} granted, {depth} asked");
        for n in 0..granted {
            link.recv(u64::from(n), &[])
                .map_err(|e| Failure(format!("receive {n} of {granted}: {e}")))?;
        }
        let more = link.qp.post_recv(&[(99, &[])]);
        ensure!(
            matches!(more, Err(e) if e.error.0 == libc::ENOMEM),
            "one more than {granted}: {more:?}"
        );
        link.qp.to_state(QPS_ERR).during("to ERR")?;
        for n in 0..granted {
            link.expect(u64::from(n), WC_WR_FLUSH_ERR)?;
        }
    }
    Ok(())
}

fn bad_wr(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    let many = vec![Sge::raw(0, 0, 0); link.qp.cap.max_send_sge as usize + 1];
    let result = link.qp.post_send(&[
        SendWr::new(1, write, &[]),
        SendWr::new(2, write, &[]),
        SendWr::new(3, write, &many),
        SendWr::new(4, write, &[]),
    ]);
    ensure!(
        matches!(result, Err(e) if e.taken == 2),
        "two valid requests before an invalid one: {result:?}"
    );
    link.expect(1, WC_SUCCESS)?;
    link.expect(2, WC_SUCCESS)?;
    link.expect_quiet()?;
    let many = vec![Sge::raw(0, 0, 0); link.qp.cap.max_recv_sge as usize + 1];
    let result = link.qp.post_recv(&[(1, &[]), (2, &many), (3, &[])]);
    ensure!(
        matches!(result, Err(e) if e.taken == 1),
        "one valid receive before an invalid one: {result:?}"
    );
    Ok(())
}

fn post_limits(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let granted = link.qp.cap;
    let write = SendOp::Write(all.addr, all.rkey);
    let sges = vec![mr.sge(0, 1); granted.max_send_sge as usize];
    link.send(1, write, &sges)?;
    link.expect(1, WC_SUCCESS)?;
    let sges = [mr.sge(0, granted.max_inline_data as usize)];
    let wr = SendWr::new(2, write, &sges).flags(SEND_SIGNALED | SEND_INLINE);
    link.qp.post_send(&[wr]).map_err(|e| {
        Failure(format!(
            "{} inline bytes: {}",
            granted.max_inline_data, e.error
        ))
    })?;
    link.expect(2, WC_SUCCESS)?;
    let sges = [mr.sge(0, granted.max_inline_data as usize + 1)];
    let wr = SendWr::new(3, write, &sges).flags(SEND_SIGNALED | SEND_INLINE);
    ensure!(
        link.qp.post_send(&[wr]).is_err(),
        "{} inline bytes were accepted",
        granted.max_inline_data + 1
    );
    if env.vrnic {
        for opcode in [8, 10, 11, 64, 1000, -1] {
            let result = link
                .qp
                .post_send(&[SendWr::new(4, SendOp::Opcode(opcode), &[])]);
            ensure!(result.is_err(), "opcode {opcode} was accepted");
        }
    }
    link.expect_quiet()
}

fn zero_length(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let empty = [Sge::raw(0xdead_0000, 0, 0xbad)];
    for (n, sges) in [&[] as &[Sge<'_>], &empty].into_iter().enumerate() {
        let all = env.peer.all;
        let base = 10 * n as u64;
        for (i, op) in [
            SendOp::Send,
            SendOp::SendImm(7),
            SendOp::WriteImm(all.addr, all.rkey, 8),
        ]
        .into_iter()
        .enumerate()
        {
            let id = base + i as u64;
            env.peer.recv_raw(link.peer_qpn, id, 0, 0, 0)?;
            link.send(id, op, sges)?;
            link.expect(id, WC_SUCCESS)?;
            let wc = env.peer.expect(id, WC_SUCCESS)?;
            ensure!(
                wc.byte_len == 0,
                "{op:?} of nothing received as {} bytes",
                wc.byte_len
            );
            ensure!(
                (wc.wc_flags & WC_WITH_IMM != 0) == (i > 0),
                "{op:?}: flags {:#x}",
                wc.wc_flags
            );
        }
    }
    env.peer.expect_blank()
}

fn inline_snapshot(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let mr = env.buffer()?;
    let len = link.qp.cap.max_inline_data.min(60) as usize;
    for n in 0..50 {
        mr.memory().fill(0, len, n, 0);
        env.peer.recv(link.peer_qpn, n, 0, len)?;
        let sges = [
            mr.sge(0, len / 2).with_key(0xbad),
            mr.sge(len / 2, len - len / 2).with_key(0xbad),
        ];
        let wr = SendWr::new(n, SendOp::Send, &sges).flags(SEND_INLINE | SEND_SIGNALED);
        link.qp
            .post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
        mr.memory().set(0, len, 0);
        link.expect(n, WC_SUCCESS)?;
        env.peer.expect(n, WC_SUCCESS)?;
        env.peer.expect_payload(0, len, n)?;
    }
    Ok(())
}

fn unsignalled(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let depth = u64::from(link.qp.cap.max_send_wr);
    for round in 0..20 {
        for n in 0..depth {
            let sges = [mr.sge(0, 8)];
            let flags = if n + 1 == depth { SEND_SIGNALED } else { 0 };
            let wr = SendWr::new(round * 1000 + n, SendOp::Write(all.addr, all.rkey), &sges)
                .flags(flags);
            link.qp
                .post_send(&[wr])
                .map_err(|e| Failure(format!("round {round}, request {n}: {}", e.error)))?;
        }
        link.expect(round * 1000 + depth - 1, WC_SUCCESS)?;
    }
    link.expect_quiet()
}

fn signal_all(env: &mut Env) -> Outcome<()> {
    let mut config = LinkConfig::default();
    config.qp.signal_all = true;
    let link = env.link(&config)?;
    let all = env.peer.all;
    for n in 0..20 {
        let wr = SendWr::new(n, SendOp::Write(all.addr, all.rkey), &[]).flags(0);
        link.qp
            .post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
    }
    (0..20).try_for_each(|n| link.expect(n, WC_SUCCESS).map(|_| ()))?;
    link.expect_quiet()
}

/// A connection whose completions raise events on completion vector `vector`.
fn with_events(env: &mut Env, vector: u32) -> Outcome<(Link, Arc<Channel>)> {
    let channel = Channel::new(&env.context).during("ibv_create_comp_channel")?;
    let cq = Cq::with(
        &env.context,
        64,
        5,
        Some(&channel),
        vector,
        Interface::Legacy,
    )
    .during("ibv_create_cq")?;
    let config = LinkConfig::default();
    let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
    Ok((env.connect(qp, cq, &config)?, channel))
}

fn events_once(env: &mut Env) -> Outcome<()> {
    for vector in 0..env.context.completion_vectors() {
        let (link, channel) = with_events(env, vector)?;
        let all = env.peer.all;
        let write = SendOp::Write(all.addr, all.rkey);
        link.send(1, write, &[])?;
        link.expect(1, WC_SUCCESS)?;
        ensure!(
            channel.event(super::QUIET).is_none(),
            "vector {vector}: an event without arming"
        );
        let mut slowest = Duration::ZERO;
        for round in 0..30 {
            link.cq.arm(false).during("ibv_req_notify_cq")?;
            for n in 0..3 {
                link.send(n, write, &[])?;
            }
            let begin = std::time::Instant::now();
            let event = channel.event(SOON);
            slowest = slowest.max(begin.elapsed());
            ensure!(
                event == Some(5),
                "vector {vector} round {round}: event {event:?}"
            );
            (0..3).try_for_each(|n| link.expect(n, WC_SUCCESS).map(|_| ()))?;
        }
        println!("    vector {vector}: slowest event after {slowest:?}");
        ensure!(
            channel.event(super::QUIET).is_none(),
            "vector {vector}: more events than armings"
        );
    }
    Ok(())
}

fn solicited(env: &mut Env) -> Outcome<()> {
    // Our own receive side must see them: both QPs are ours.
    let channel = Channel::new(&env.context).during("ibv_create_comp_channel")?;
    let recv_cq = Cq::with(&env.context, 64, 6, Some(&channel), 0, Interface::Legacy)
        .during("ibv_create_cq")?;
    let send_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let (sender, receiver) = own_pair(env, &send_cq, &recv_cq)?;
    for n in 0..12 {
        receiver
            .post_recv(&[(n, &[])])
            .map_err(|e| Failure(e.error.to_string()))?;
    }
    let send = |n: u64, flags: u32| -> Outcome<()> {
        let wr = SendWr::new(n, SendOp::Send, &[]).flags(flags | SEND_SIGNALED);
        sender
            .post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
        expect(&send_cq, n, WC_SUCCESS)?;
        expect(&recv_cq, n, WC_SUCCESS).map(|_| ())
    };
    recv_cq.arm(true).during("arming")?;
    send(0, 0)?;
    ensure!(
        channel.event(super::QUIET).is_none(),
        "an event for an unsolicited message"
    );
    send(1, SEND_SOLICITED)?;
    ensure!(
        channel.event(SOON) == Some(6),
        "no event for a solicited message"
    );
    send(2, SEND_SOLICITED)?;
    ensure!(
        channel.event(super::QUIET).is_none(),
        "an event without arming"
    );
    // Armed for solicited ones, then widened to any.
    recv_cq.arm(true).during("arming")?;
    recv_cq.arm(false).during("arming")?;
    send(3, 0)?;
    ensure!(channel.event(SOON) == Some(6), "no event for any message");
    // A request for any completion is not narrowed by one for solicited ones.
    recv_cq.arm(false).during("arming")?;
    recv_cq.arm(true).during("arming")?;
    send(4, 0)?;
    ensure!(
        channel.event(SOON) == Some(6),
        "an armed event for any completion was lost"
    );
    // An error counts as solicited.
    recv_cq.arm(true).during("arming")?;
    receiver.to_state(QPS_ERR).during("to ERR")?;
    ensure!(
        !env.vrnic || channel.event(SOON) == Some(6),
        "no event for flushed receives"
    );
    Ok(())
}

/// Two QPs of ours, connected with each other.
pub(super) fn own_pair(env: &Env, send_cq: &Arc<Cq>, recv_cq: &Arc<Cq>) -> Outcome<(Qp, Qp)> {
    let config = LinkConfig::default().qp;
    let one = Qp::new(&env.pd, send_cq, send_cq, &config).during("ibv_create_qp")?;
    let two = Qp::new(&env.pd, recv_cq, recv_cq, &config).during("ibv_create_qp")?;
    env.connect_own(&one, &two)?;
    Ok((one, two))
}

fn overrun(env: &mut Env) -> Outcome<()> {
    let config = LinkConfig::default();
    let victim = env.link(&config)?;
    let cq = Cq::with(&env.context, 4, 4711, None, 0, Interface::Legacy).during("ibv_create_cq")?;
    let capacity = cq.capacity();
    let wide = QpConfig {
        cap: cap(2 * capacity + 8, 1),
        ..Default::default()
    };
    let qp = Qp::new(&env.pd, &cq, &cq, &wide).during("ibv_create_qp")?;
    let link = env.connect(qp, cq, &config)?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    for n in 0..=capacity {
        link.send(u64::from(n), write, &[])?;
    }
    if env.vrnic {
        let wanted = |e: &crate::verbs::AsyncEvent| {
            e.kind == EVENT_CQ_ERR && e.object == EventObject::Cq(4711)
        };
        ensure!(
            env.context.wait_event(SOON, wanted).is_some(),
            "no CQ_ERR event"
        );
        let number = link.qp.number();
        let wanted = |e: &crate::verbs::AsyncEvent| {
            e.kind == EVENT_QP_FATAL && e.object == EventObject::Qp(number)
        };
        ensure!(
            env.context.wait_event(SOON, wanted).is_some(),
            "no QP_FATAL event"
        );
        link.expect_state(QPS_ERR)?;
    } else {
        std::thread::sleep(Duration::from_millis(500));
    }
    // What fitted is there and right; polling and destroying a dead queue is no problem.
    let mut wcs = vec![ibv_wc::default(); 2 * capacity as usize];
    if let Ok(n) = link.cq.poll(&mut wcs) {
        ensure!(
            n <= capacity as usize,
            "{n} completions from a queue of {capacity}"
        );
        for (i, wc) in wcs[..n].iter().enumerate() {
            ensure!(wc.wr_id == i as u64 && wc.status == WC_SUCCESS, "{wc:?}");
        }
    }
    drop(link);
    victim.send(1, write, &[])?;
    victim.expect(1, WC_SUCCESS).map(|_| ())
}

/// A queue that nobody polls while several times as much completes as it holds. The last completions are there then,
/// and what is posted later completes, too.
fn ignored_overrun(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let cq = Cq::that_ignores_overrun(&env.context, 4).during("ibv_create_cq_ex")?;
    let capacity = u64::from(cq.capacity());
    let send_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let (sender, receiver) = own_pair(env, &send_cq, &cq)?;
    let message = |wr_id: u64| -> Outcome<()> {
        let posted = receiver.post_recv(&[(wr_id, &[])]);
        posted.map_err(|e| Failure(format!("posting receive {wr_id}: {}", e.error)))?;
        let posted = sender.post_send(&[SendWr::new(wr_id, SendOp::Send, &[])]);
        posted.map_err(|e| Failure(format!("posting send {wr_id}: {}", e.error)))?;
        // The receive has completed by then.
        expect(&send_cq, wr_id, WC_SUCCESS).map(|_| ())
    };
    let count = 3 * capacity + 1;
    for wr_id in 0..count {
        message(wr_id)?;
    }
    let mut wcs = vec![ibv_wc::default(); 2 * count as usize];
    let n = cq.poll(&mut wcs).during("polling")?;
    let ids: Vec<u64> = wcs[..n].iter().map(|wc| wc.wr_id).collect();
    let last = count - capacity..count;
    ensure!(
        ids.iter().copied().eq(last),
        "receives {ids:?} of {count} in a queue of {capacity}"
    );
    ensure!(wcs[..n].iter().all(|wc| wc.status == WC_SUCCESS), "{wcs:?}");
    for wr_id in count..2 * count {
        message(wr_id)?;
        expect(&cq, wr_id, WC_SUCCESS)?;
    }
    let about_it = |e: &crate::verbs::AsyncEvent| e.kind == EVENT_CQ_ERR;
    ensure!(
        env.context.wait_event(QUIET, about_it).is_none(),
        "a CQ_ERR event"
    );
    Ok(())
}

fn threads(env: &mut Env) -> Outcome<()> {
    const EACH: u64 = 1000;
    const DEPTH: u64 = 64;
    let mut config = LinkConfig::default();
    config.qp.cap.max_send_wr = DEPTH as u32;
    let link = env.link(&config)?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let posted = AtomicU64::new(0);
    let done = AtomicU64::new(0);
    let sum = AtomicU64::new(0);
    let failed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for t in 0..4_u64 {
            let (link, mr, done, posted, failed) = (&link, &mr, &done, &posted, &failed);
            scope.spawn(move || {
                for n in 0..EACH {
                    let sges = [mr.sge(64 * t as usize, 8)];
                    let op = SendOp::Write(all.addr + 64 * t, all.rkey);
                    // The queue of completions must have room for all that is under way.
                    while posted
                        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |p| {
                            (p < done.load(Ordering::Relaxed) + DEPTH).then_some(p + 1)
                        })
                        .is_err()
                    {
                        if failed.load(Ordering::Relaxed) != 0 {
                            return;
                        }
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    if link
                        .qp
                        .post_send(&[SendWr::new(t * EACH + n, op, &sges)])
                        .is_err()
                    {
                        failed.fetch_add(1, Ordering::Relaxed);
                        return;
                    }
                }
            });
        }
        for _ in 0..2 {
            let (link, done, sum, failed) = (&link, &done, &sum, &failed);
            scope.spawn(move || {
                let mut wcs = [ibv_wc::default(); 7];
                let mut last = (std::time::Instant::now(), 0);
                while done.load(Ordering::Relaxed) < 4 * EACH && failed.load(Ordering::Relaxed) == 0
                {
                    let n = link.cq.poll(&mut wcs).unwrap_or(0);
                    let seen = done.load(Ordering::Relaxed);
                    if seen != last.1 {
                        last = (std::time::Instant::now(), seen);
                    } else if last.0.elapsed() > SOON {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    for wc in &wcs[..n] {
                        if wc.status != WC_SUCCESS {
                            failed.fetch_add(1, Ordering::Relaxed);
                        }
                        sum.fetch_add(wc.wr_id, Ordering::Relaxed);
                    }
                    done.fetch_add(n as u64, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
        }
    });
    let total = 4 * EACH;
    ensure!(
        failed.load(Ordering::Relaxed) == 0,
        "a thread failed or got no completion; {done:?} of 4000 completions arrived"
    );
    ensure!(
        done.load(Ordering::Relaxed) == total,
        "{done:?} of {total} completions"
    );
    ensure!(
        sum.load(Ordering::Relaxed) == total * (total - 1) / 2,
        "some request completed twice"
    );
    link.expect_quiet()
}

fn extended_link(env: &mut Env) -> Outcome<Option<Link>> {
    let mut config = LinkConfig::default();
    config.qp.interface = Interface::Extended;
    let cq = match Cq::with(&env.context, 64, 0, None, 0, Interface::Extended) {
        Err(e) if e.0 == libc::EOPNOTSUPP && !env.vrnic => return Ok(None),
        cq => cq.during("ibv_create_cq_ex")?,
    };
    let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp_ex")?;
    env.connect(qp, cq, &config).map(Some)
}

fn abort(env: &mut Env) -> Outcome<()> {
    let Some(link) = extended_link(env)? else {
        return Ok(());
    };
    for n in 0..100 {
        link.qp.build_and_abort(1000 + n).during("building")?;
        if n.is_multiple_of(10) {
            env.peer.recv(link.peer_qpn, n, 0, 64)?;
            link.send(n, SendOp::Send, &[])?;
            link.expect(n, WC_SUCCESS)?;
            env.peer.expect(n, WC_SUCCESS)?;
        }
    }
    link.expect_quiet()
}

fn extended(env: &mut Env) -> Outcome<()> {
    let Some(link) = extended_link(env)? else {
        return Ok(());
    };
    let mr = env.buffer()?;
    mr.memory().fill(0, 1000, 3, 0);
    let all = env.peer.all;
    link.send(
        1,
        SendOp::Write(all.addr, all.rkey),
        &[mr.sge(0, 500), mr.sge(500, 500)],
    )?;
    link.expect(1, WC_SUCCESS)?;
    env.peer.expect_payload(0, 1000, 3)?;
    link.send(2, SendOp::Read(all.addr, all.rkey), &[mr.sge(2000, 1000)])?;
    let wc = link.expect(2, WC_SUCCESS)?;
    ensure!(
        wc.byte_len == 1000 && mr.memory().check(2000, 1000, 3, 0).is_ok(),
        "READ: {wc:?}"
    );
    for (id, op) in [
        (3, SendOp::Send),
        (4, SendOp::SendImm(0x0102_0304)),
        (5, SendOp::WriteImm(all.addr, all.rkey, 9)),
    ] {
        env.peer.recv(link.peer_qpn, id, 4000, 1000)?;
        link.send(id, op, &[mr.sge(0, 10)])?;
        link.expect(id, WC_SUCCESS)?;
        let wc = env.peer.expect(id, WC_SUCCESS)?;
        let imm = [0, 0x0102_0304_u32.to_be(), 9_u32.to_be()][id as usize - 3];
        ensure!(wc.byte_len == 10 && wc.imm_data == imm, "{op:?}: {wc:?}");
    }
    if env.attr.atomic_cap != 0 {
        env.peer.fill(8000, 8, 77)?;
        link.send(
            6,
            SendOp::FetchAdd(all.addr + 8000, all.rkey, 0),
            &[mr.sge(0, 8)],
        )?;
        link.expect(6, WC_SUCCESS)?;
        ensure!(
            mr.memory().check(0, 8, 77, 0).is_ok(),
            "FETCH_ADD returned a wrong value"
        );
        let before = mr.memory().load(0);
        link.send(
            7,
            SendOp::Cas(all.addr + 8000, all.rkey, before, 1),
            &[mr.sge(0, 8)],
        )?;
        link.expect(7, WC_SUCCESS)?;
        link.send(
            8,
            SendOp::FetchAdd(all.addr + 8000, all.rkey, 5),
            &[mr.sge(0, 8)],
        )?;
        link.expect(8, WC_SUCCESS)?;
        ensure!(
            mr.memory().load(0) == 1,
            "CAS stored {:#x}",
            mr.memory().load(0)
        );
    }
    Ok(())
}

fn two_gib(env: &mut Env) -> Outcome<()> {
    const MESSAGE: usize = 1 << 31;
    const CHUNK: usize = 8 << 20;

    if !env.vrnic && !env.slow {
        return Ok(());
    }
    let longest = env.context.port_attr()?.max_msg_sz as usize;
    ensure!(
        longest >= MESSAGE || !env.vrnic,
        "the port says {longest} bytes at most"
    );
    let memory = |key: u64| -> Outcome<Arc<Memory>> {
        let memory = Memory::repeated(MESSAGE + CHUNK, CHUNK).during("mapping 2 GiB")?;
        memory.fill(0, CHUNK, key, 0);
        Ok(Arc::new(memory))
    };
    let (from, to) = (memory(31)?, memory(32)?);
    let source = Mr::of(&env.pd, &from, 0, MESSAGE + CHUNK, 0).during("registering 2 GiB")?;
    let target = Mr::of(
        &env.pd,
        &to,
        0,
        MESSAGE + CHUNK,
        ACCESS_ALL | ACCESS_LOCAL_WRITE,
    )
    .during("registering 2 GiB")?;
    let cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let peer_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let (one, two) = own_pair(env, &cq, &peer_cq)?;
    let patience = Duration::from_secs(100);
    let done = |cq: &Cq, id: u64| -> Outcome<ibv_wc> {
        let wc = cq
            .wait(patience)?
            .ok_or_else(|| Failure(format!("2 GiB request {id} did not complete")))?;
        ensure!(wc.wr_id == id && wc.status == WC_SUCCESS, "{wc:?}");
        Ok(wc)
    };
    let post = |wr: SendWr<'_>| {
        one.post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))
    };
    post(SendWr::new(
        1,
        SendOp::Write(target.addr(0), target.rkey()),
        &[source.sge(0, MESSAGE)],
    ))?;
    done(&cq, 1)?;
    ensure!(to.check(0, CHUNK, 31, 0).is_ok(), "2 GiB WRITE: wrong data");
    to.fill(0, CHUNK, 33, 0);
    two.post_recv(&[(
        2,
        &[
            target.sge(0, MESSAGE - 4096),
            target.sge(MESSAGE - 4096, 4096),
        ],
    )])
    .map_err(|e| Failure(e.error.to_string()))?;
    post(SendWr::new(2, SendOp::Send, &[source.sge(0, MESSAGE)]))?;
    done(&cq, 2)?;
    let wc = done(&peer_cq, 2)?;
    ensure!(
        wc.byte_len as usize == MESSAGE,
        "2 GiB SEND says {} bytes",
        wc.byte_len
    );
    ensure!(to.check(0, CHUNK, 31, 0).is_ok(), "2 GiB SEND: wrong data");
    from.fill(0, CHUNK, 34, 0);
    post(SendWr::new(
        3,
        SendOp::Write(target.addr(CHUNK), target.rkey()),
        &[source.sge(0, 1 << 30)],
    ))?;
    done(&cq, 3)?;
    if env.vrnic {
        let sges = [source.sge(0, MESSAGE), source.sge(0, longest + 1 - MESSAGE)];
        post(SendWr::new(
            4,
            SendOp::Write(target.addr(0), target.rkey()),
            &sges,
        ))?;
        let wc = cq
            .wait(SOON)?
            .ok_or_else(|| Failure("no completion of a message too long".into()))?;
        ensure!(wc.wr_id == 4 && wc.status == WC_LOC_LEN_ERR, "{wc:?}");
    }
    Ok(())
}
