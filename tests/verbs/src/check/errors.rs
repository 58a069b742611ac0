// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Errors: missing receives, missing peers, bad local memory, and flushing.

use std::time::{Duration, Instant};

use super::peer::QKEY;
use super::{ACCESS_ALL, BUFFER, Case, Env, Link, LinkConfig};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_REMOTE_READ, Ah, Cq, Mr, Pd, QPS_ERR, QPS_INIT, QPS_RESET, QPS_RTS, QPT_UD, Qp,
    QpConfig, SendOp, SendWr, Sge, WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR,
    WC_REM_INV_REQ_ERR, WC_REM_OP_ERR, WC_RETRY_EXC_ERR, WC_RNR_RETRY_EXC_ERR, WC_SUCCESS,
    WC_WR_FLUSH_ERR, mtu_bytes,
};

pub(super) const CASES: &[Case] = &[
    ("rnr-retries-run-out", rnr_exhausted),
    ("rnr-without-limit-recovers", rnr_recovers),
    ("rnr-timer-is-kept", rnr_timer),
    ("peer-qp-destroyed", peer_destroyed),
    ("peer-qp-in-error", peer_in_error),
    ("peer-qp-in-reset", peer_in_reset),
    ("local-key-bad", local_key),
    ("local-range-out-of-bounds", local_bounds),
    ("local-read-destination-not-writable", read_destination),
    ("local-key-stale-after-deregister", local_stale),
    ("receive-too-short", receive_short),
    ("receive-memory-bad", receive_bad),
    ("flush-both-queues-in-order", flush),
    ("posts-in-error-state-are-flushed", post_in_error),
    ("posts-before-their-state-are-refused", post_too_early),
    ("reset-forgets-everything", reset_forgets),
    ("destroy-with-work-outstanding", destroy_busy),
    ("datagram-wrong-qkey-or-qpn-is-dropped", datagram_dropped),
    ("datagram-longer-than-mtu", datagram_too_long),
];

impl Link {
    /// Number and status of the next completion, whatever it is.
    pub(super) fn expect_any(&self) -> Outcome<(u64, i32)> {
        let wc = self
            .cq
            .wait(super::SOON)?
            .ok_or_else(|| Failure("no completion".into()))?;
        Ok((wc.wr_id, wc.status))
    }
}

/// An RNR timer code of 81.92 ms.
const RNR_82_MS: u8 = 26;

fn rnr_exhausted(env: &mut Env) -> Outcome<()> {
    for retries in [0_u8, 1, 3] {
        let config = LinkConfig {
            rnr_retries: retries,
            rnr_timer: RNR_82_MS,
            ..Default::default()
        };
        let link = env.link(&config)?;
        let begin = Instant::now();
        link.send(1, SendOp::Send, &[])?;
        link.send(2, SendOp::Send, &[])?;
        link.expect(1, WC_RNR_RETRY_EXC_ERR)?;
        let (took, least) = (
            begin.elapsed(),
            Duration::from_micros(81_920) * u32::from(retries),
        );
        ensure!(
            took >= least,
            "{retries} retries took only {took:?}, the peer asked for {least:?}"
        );
        link.expect(2, WC_WR_FLUSH_ERR)?;
        link.expect_state(QPS_ERR)?;
        env.peer.expect_state(link.peer_qpn, QPS_RTS)?;
        env.peer.expect_no_event()?;
    }
    Ok(())
}

fn rnr_recovers(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig {
        rnr_timer: 14,
        ..Default::default()
    })?;
    let mr = env.buffer()?;
    mr.memory().fill(0, 9000, 5, 0);
    link.send(1, SendOp::SendImm(0xabcd_ef01), &[mr.sge(0, 9000)])?;
    link.send(2, SendOp::Send, &[mr.sge(0, 1)])?;
    link.expect_quiet()?;
    env.peer.recv(link.peer_qpn, 11, 0, 10_000)?;
    link.expect(1, WC_SUCCESS)?;
    let wc = env.peer.expect(11, WC_SUCCESS)?;
    ensure!(
        wc.byte_len == 9000 && wc.imm_data == 0xabcd_ef01_u32.to_be(),
        "{wc:?}"
    );
    env.peer.expect_payload(0, 9000, 5)?;
    link.expect_quiet()?;
    env.peer.recv(link.peer_qpn, 12, 20_000, 1)?;
    link.expect(2, WC_SUCCESS)?;
    env.peer.expect(12, WC_SUCCESS)?;
    env.peer.expect_quiet()
}

fn rnr_timer(env: &mut Env) -> Outcome<()> {
    // 0 is the longest wait, not the shortest: 655 ms.
    let link = env.link(&LinkConfig {
        rnr_timer: 0,
        ..Default::default()
    })?;
    let begin = Instant::now();
    link.send(1, SendOp::Send, &[])?;
    std::thread::sleep(Duration::from_millis(100));
    env.peer.recv(link.peer_qpn, 1, 0, 64)?;
    link.expect(1, WC_SUCCESS)?;
    let took = begin.elapsed();
    ensure!(
        took >= Duration::from_millis(600),
        "the peer asked for 655 ms, the sender waited {took:?}"
    );
    Ok(())
}

fn no_answer(env: &mut Env, prepare: fn(&mut Env, &Link) -> Outcome<()>) -> Outcome<()> {
    // 4.096 µs · 2^13 = 34 ms, three times again.
    let link = env.link(&LinkConfig {
        timeout: 13,
        retries: 3,
        ..Default::default()
    })?;
    prepare(env, &link)?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    link.recv(9, &[])?;
    link.send(1, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, 100)])?;
    link.send(2, SendOp::Read(all.addr, all.rkey), &[mr.sge(0, 100)])?;
    link.expect(1, WC_RETRY_EXC_ERR)?;
    let mut rest = [link.expect_any()?, link.expect_any()?];
    rest.sort_unstable();
    ensure!(
        rest == [(2, WC_WR_FLUSH_ERR), (9, WC_WR_FLUSH_ERR)],
        "flushed {rest:?}"
    );
    link.expect_state(QPS_ERR)?;
    env.peer.expect_blank()
}

fn peer_destroyed(env: &mut Env) -> Outcome<()> {
    no_answer(env, |env, link| env.peer.destroy(link.peer_qpn))
}

fn peer_in_error(env: &mut Env) -> Outcome<()> {
    no_answer(env, |env, link| env.peer.to_state(link.peer_qpn, QPS_ERR))
}

fn peer_in_reset(env: &mut Env) -> Outcome<()> {
    no_answer(env, |env, link| env.peer.to_state(link.peer_qpn, QPS_RESET))
}

/// Sends and writes from, and reads to, `sge`: each must fail locally and the peer must not notice.
fn local_error(env: &mut Env, sge: Sge<'_>) -> Outcome<()> {
    let all = env.peer.all;
    let ops = [
        SendOp::Send,
        SendOp::Write(all.addr, all.rkey),
        SendOp::Read(all.addr, all.rkey),
    ];
    for op in ops {
        // A read is sent all the same: only its response needs the memory. What is posted behind it may be sent before
        // that response comes, so nothing is posted until the read has failed.
        let is_sent = matches!(op, SendOp::Read(..));
        if is_sent && sge.length() as usize > BUFFER {
            // The peer has no region of that size either, and what it says comes first.
            continue;
        }
        let link = env.link(&LinkConfig::default())?;
        env.peer.recv(link.peer_qpn, 9, 0, 64)?;
        link.send(1, op, &[sge])?;
        if !is_sent {
            link.send(2, SendOp::Send, &[])?;
        }
        link.expect(1, WC_LOC_PROT_ERR)
            .map_err(|e| Failure(format!("{op:?}: {e}")))?;
        if is_sent {
            link.send(2, SendOp::Send, &[])?;
        }
        link.expect(2, WC_WR_FLUSH_ERR)?;
        link.expect_state(QPS_ERR)?;
        env.peer.expect_state(link.peer_qpn, QPS_RTS)?;
        env.peer.expect_quiet()?;
        env.peer.expect_blank()?;
        env.peer.expect_no_event()?;
        // Its receive would be flushed otherwise, in the next round.
        env.peer.to_state(link.peer_qpn, QPS_RESET)?;
    }
    Ok(())
}

fn local_key(env: &mut Env) -> Outcome<()> {
    let mr = env.buffer()?;
    let other_pd = Pd::new(&env.context).during("ibv_alloc_pd")?;
    let other = Mr::new(&other_pd, BUFFER, ACCESS_ALL).during("ibv_reg_mr")?;
    local_error(env, mr.sge(0, 64).with_key(mr.lkey() ^ 1))?;
    local_error(env, mr.sge(0, 64).with_key(0))?;
    local_error(env, other.sge(0, 64))
}

fn local_bounds(env: &mut Env) -> Outcome<()> {
    let mr = env.buffer()?;
    let (base, key) = (mr.addr(0), mr.lkey());
    for (addr, len) in [
        (base - 1, 64),
        (base + BUFFER as u64 - 63, 64),
        (base + BUFFER as u64, 1),
        (base, BUFFER as u32 + 1),
        (u64::MAX - 10, 64),
        (0, 1),
        (base, u32::MAX >> 1),
    ] {
        local_error(env, Sge::raw(addr, len, key))
            .map_err(|e| Failure(format!("{addr:#x} + {len}: {e}")))?;
    }
    Ok(())
}

fn read_destination(env: &mut Env) -> Outcome<()> {
    let constant = Mr::new(&env.pd, BUFFER, ACCESS_REMOTE_READ).during("ibv_reg_mr")?;
    let link = env.link(&LinkConfig::default())?;
    let all = env.peer.all;
    link.send(1, SendOp::Read(all.addr, all.rkey), &[constant.sge(0, 64)])?;
    link.expect(1, WC_LOC_PROT_ERR)?;
    ensure!(
        constant.memory().check_set(0, BUFFER, 0).is_ok(),
        "a READ wrote without the right to"
    );
    link.expect_state(QPS_ERR)?;
    // To send from it is no problem.
    let link = env.link(&LinkConfig::default())?;
    link.send(1, SendOp::Write(all.addr, all.rkey), &[constant.sge(0, 64)])?;
    link.expect(1, WC_SUCCESS).map(|_| ())
}

fn local_stale(env: &mut Env) -> Outcome<()> {
    let mr = env.buffer()?;
    let (addr, key) = (mr.addr(0), mr.lkey());
    let memory = mr.deregister().during("ibv_dereg_mr")?;
    let again = Mr::of(&env.pd, &memory, 0, BUFFER, ACCESS_ALL).during("ibv_reg_mr")?;
    ensure!(again.lkey() != key, "a key was used again at once");
    local_error(env, Sge::raw(addr, 64, key))
}

fn receive_short(env: &mut Env) -> Outcome<()> {
    for (sent, room) in [(65, 64), (1, 0), (9000, 8999)] {
        let link = env.link(&LinkConfig::default())?;
        let mr = env.buffer()?;
        env.peer.recv(link.peer_qpn, 5, 0, room)?;
        env.peer.recv(link.peer_qpn, 6, 0, 64)?;
        link.send(1, SendOp::Send, &[mr.sge(0, sent)])?;
        if env.peer.vrnic {
            link.expect(1, WC_REM_INV_REQ_ERR)?;
            env.peer.expect(5, WC_LOC_LEN_ERR)?;
        } else {
            // Soft-RoCE says only that something at its end was wrong.
            link.expect(1, WC_REM_OP_ERR)?;
            env.peer.expect(5, WC_LOC_QP_OP_ERR)?;
        }
        env.peer.expect(6, WC_WR_FLUSH_ERR)?;
        link.expect_state(QPS_ERR)?;
        env.peer.expect_state(link.peer_qpn, QPS_ERR)?;
    }
    Ok(())
}

fn receive_bad(env: &mut Env) -> Outcome<()> {
    let (all, other) = (env.peer.all, env.peer.other_pd);
    for (addr, len, key) in [
        (all.addr, 64, u64::from(all.rkey ^ 1)),
        (all.addr + BUFFER as u64 - 63, 64, u64::from(all.rkey)),
        (other.addr, 64, u64::from(other.rkey)),
        (u64::MAX - 5, 64, u64::from(all.rkey)),
    ] {
        let link = env.link(&LinkConfig::default())?;
        let mr = env.buffer()?;
        env.peer.recv_raw(link.peer_qpn, 5, addr, len, key)?;
        link.send(1, SendOp::Send, &[mr.sge(0, 64)])?;
        link.expect(1, WC_REM_OP_ERR)?;
        env.peer.expect(5, WC_LOC_PROT_ERR)?;
        link.expect_state(QPS_ERR)?;
        env.peer.expect_state(link.peer_qpn, QPS_ERR)?;
        env.peer.expect_blank()?;
    }
    Ok(())
}

fn flush(env: &mut Env) -> Outcome<()> {
    let send_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let recv_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
    let config = LinkConfig {
        rnr_timer: RNR_82_MS,
        ..Default::default()
    };
    let qp = Qp::new(&env.pd, &send_cq, &recv_cq, &config.qp).during("ibv_create_qp")?;
    let link = env.connect(qp, send_cq, &config)?;
    // No receive at the peer: everything waits behind the first send, signalled or not.
    for n in 0..10 {
        let wr = SendWr::new(n, SendOp::Send, &[]).flags(0);
        link.qp
            .post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
        link.recv(100 + n, &[])?;
    }
    link.expect_quiet()?;
    link.qp.to_state(QPS_ERR).during("to ERR")?;
    for n in 0..10 {
        super::expect(&link.cq, n, WC_WR_FLUSH_ERR)?;
        super::expect(&recv_cq, 100 + n, WC_WR_FLUSH_ERR)?;
    }
    link.expect_quiet()
}

fn post_in_error(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    link.qp.to_state(QPS_ERR).during("to ERR")?;
    // More than the queues hold, one at a time: each must come back.
    for n in 0..100 {
        link.send(n, SendOp::Send, &[])?;
        link.expect(n, WC_WR_FLUSH_ERR)?;
        link.recv(n, &[])?;
        link.expect(n, WC_WR_FLUSH_ERR)?;
    }
    link.qp.to_state(QPS_ERR).during("ERR to ERR")?;
    link.qp.reset().during("ERR to RESET")
}

fn post_too_early(env: &mut Env) -> Outcome<()> {
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let qp = Qp::new(&env.pd, &cq, &cq, &QpConfig::default()).during("ibv_create_qp")?;
    let send = |qp: &Qp| qp.post_send(&[SendWr::new(1, SendOp::Send, &[])]);
    ensure!(send(&qp).is_err(), "a send was accepted in RESET");
    if env.vrnic {
        ensure!(
            qp.post_recv(&[(1, &[])]).is_err(),
            "a receive was accepted in RESET"
        );
    }
    qp.to_init(ACCESS_ALL).during("to INIT")?;
    ensure!(send(&qp).is_err(), "a send was accepted in INIT");
    qp.post_recv(&[(7, &[])])
        .map_err(|e| Failure(format!("a receive in INIT: {}", e.error)))?;
    ensure!(qp.query()?.qp_state == QPS_INIT, "state changed");
    ensure!(
        cq.wait(super::QUIET)?.is_none(),
        "a completion from a queue that is not running"
    );
    qp.to_state(QPS_ERR).during("INIT to ERR")?;
    super::expect(&cq, 7, WC_WR_FLUSH_ERR).map(|_| ())
}

fn reset_forgets(env: &mut Env) -> Outcome<()> {
    let config = LinkConfig {
        rnr_timer: RNR_82_MS,
        ..Default::default()
    };
    let link = env.link(&config)?;
    for n in 0..5 {
        link.send(n, SendOp::Send, &[])?;
        link.recv(100 + n, &[])?;
    }
    link.qp.reset().during("to RESET")?;
    while let Some(wc) = link.cq.wait(super::QUIET)? {
        ensure!(
            !env.vrnic,
            "{:#x} completed although its queue was reset",
            wc.wr_id
        );
    }
    ensure!(link.qp.query()?.qp_state == QPS_RESET, "not in RESET");
    let Link { qp, cq, peer_qpn } = link;
    env.peer.destroy(peer_qpn)?;
    // It can be used again, from slot 0 on, with the whole depth.
    let link = env.connect(qp, cq, &config)?;
    let mr = env.buffer()?;
    mr.memory().fill(0, 64, 3, 0);
    for n in 0..40 {
        env.peer.recv(link.peer_qpn, n, 0, 64)?;
        link.send(n, SendOp::Send, &[mr.sge(0, 64)])?;
        link.expect(n, WC_SUCCESS)?;
        env.peer.expect(n, WC_SUCCESS)?;
    }
    env.peer.expect_payload(0, 64, 3)
}

fn destroy_busy(env: &mut Env) -> Outcome<()> {
    for _ in 0..8 {
        let link = env.link(&LinkConfig::default())?;
        let mr = env.buffer()?;
        let all = env.peer.all;
        for n in 0..16 {
            link.send(n, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, BUFFER)])?;
            link.recv(n, &[mr.sge(0, 64)])?;
        }
        link.qp.destroy().during("ibv_destroy_qp")?;
        drop(mr);
    }
    Ok(())
}

/// A UD QP of ours and a handle for the peer.
fn datagrams(env: &mut Env) -> Outcome<(Qp, Ah)> {
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let config = QpConfig {
        kind: QPT_UD,
        ..Default::default()
    };
    let qp = Qp::new(&env.pd, &cq, &cq, &config).during("creating a UD QP")?;
    qp.start_datagrams(1, 0).during("starting a UD QP")?;
    let ah = Ah::new(&env.pd, env.gid.index, env.peer.gid, env.peer.lid).during("ibv_create_ah")?;
    Ok((qp, ah))
}

fn datagram_dropped(env: &mut Env) -> Outcome<()> {
    let (qp, ah) = datagrams(env)?;
    let mr = env.buffer()?;
    mr.memory().fill(0, 64, 21, 0);
    let peer = env.peer.datagram_qp(4096)?;
    for (n, (qpn, qkey)) in [
        (peer, QKEY ^ 1),
        (peer, 0),
        (0x00ff_fffe, QKEY),
        (peer, 0x8000_0000),
    ]
    .into_iter()
    .enumerate()
    {
        let sges = [mr.sge(0, 64)];
        let wr = SendWr::new(n as u64, SendOp::Datagram(&ah, qpn, qkey), &sges);
        qp.post_send(&[wr])
            .map_err(|e| Failure(e.error.to_string()))?;
        super::expect(&qp.send_cq, n as u64, WC_SUCCESS)?;
        env.peer.expect_quiet()?;
    }
    env.peer.expect_blank()?;
    let sges = [mr.sge(0, 64)];
    qp.post_send(&[SendWr::new(9, SendOp::Datagram(&ah, peer, QKEY), &sges)])
        .map_err(|e| Failure(e.error.to_string()))?;
    super::expect(&qp.send_cq, 9, WC_SUCCESS)?;
    let wc = env.peer.expect(77, WC_SUCCESS)?;
    ensure!(wc.byte_len == 104 && wc.src_qp == qp.number(), "{wc:?}");
    env.peer.expect_payload(40, 64, 21)
}

fn datagram_too_long(env: &mut Env) -> Outcome<()> {
    let (qp, ah) = datagrams(env)?;
    let mr = env.buffer()?;
    let port = env.context.port_attr()?;
    let mtu = mtu_bytes(port.active_mtu);
    // Others may let more pass, as far as the port can ever do.
    let most = if env.vrnic {
        mtu
    } else {
        mtu_bytes(port.max_mtu)
    };
    let peer = env.peer.datagram_qp(40 + mtu)?;
    let sges = [mr.sge(0, mtu)];
    qp.post_send(&[SendWr::new(1, SendOp::Datagram(&ah, peer, QKEY), &sges)])
        .map_err(|e| Failure(e.error.to_string()))?;
    super::expect(&qp.send_cq, 1, WC_SUCCESS)?;
    env.peer.expect(77, WC_SUCCESS)?;
    let sges = [mr.sge(0, most + 1)];
    // Either the post is refused, or the request fails.
    match qp.post_send(&[SendWr::new(2, SendOp::Datagram(&ah, peer, QKEY), &sges)]) {
        Err(e) => ensure!(
            e.error.0 == libc::EINVAL || e.error.0 == libc::EMSGSIZE,
            "{}",
            e.error
        ),
        Ok(()) => {
            super::expect(&qp.send_cq, 2, WC_LOC_LEN_ERR)?;
        }
    }
    env.peer.expect_quiet()
}

/// Keeps writing to a peer that will vanish: the request under way must end with `RETRY_EXC`, all behind it flushed.
pub fn survive(env: &mut Env) -> Outcome<()> {
    let links = (0..4)
        .map(|_| {
            env.link(&LinkConfig {
                timeout: 15,
                ..Default::default()
            })
        })
        .collect::<Outcome<Vec<_>>>()?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let mut next = vec![0_u64; links.len()];
    println!("kill the peer now");
    let end = Instant::now() + Duration::from_secs(90);
    let mut failed = 0;
    let mut dead = vec![false; links.len()];
    while failed < links.len() {
        ensure!(
            Instant::now() < end,
            "requests to a vanished peer still wait"
        );
        for (n, link) in links
            .iter()
            .enumerate()
            .filter(|(n, _)| !dead[*n])
            .collect::<Vec<_>>()
        {
            // Two under way; they complete in order until the peer is gone.
            for i in 0..2 {
                link.send(
                    next[n] + i,
                    SendOp::Write(all.addr, all.rkey),
                    &[mr.sge(0, 4096)],
                )?;
            }
            let first = link
                .cq
                .wait(Duration::from_mins(1))?
                .ok_or_else(|| Failure("no completion".into()))?;
            let second = link
                .cq
                .wait(Duration::from_mins(1))?
                .ok_or_else(|| Failure("no completion".into()))?;
            ensure!(
                first.wr_id == next[n] && second.wr_id == next[n] + 1,
                "completions out of order"
            );
            match (first.status, second.status) {
                (WC_SUCCESS, WC_SUCCESS) => next[n] += 2,
                (WC_SUCCESS, WC_RETRY_EXC_ERR) | (WC_RETRY_EXC_ERR, WC_WR_FLUSH_ERR) => {
                    link.expect_state(QPS_ERR)?;
                    dead[n] = true;
                    failed += 1;
                }
                other => return Err(Failure(format!("completions with {other:?}"))),
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}
