// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A device fails or goes away while a program only polls. Each request that the program posted completes once, in the
//! order of its queue: with the completion that the device had written, or flushed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::moving::{BEGIN, Restless};
use super::peer::Peer;
use super::{Env, Link, LinkConfig, SOON, expect};
use crate::ensure;
use crate::ffi::ibv_wc;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    Channel, Context, Cq, EVENT_DEVICE_FATAL, Interface, Pd, Qp, SEND_SIGNALED, SendOp, SendWr,
    WC_SUCCESS, WC_WR_FLUSH_ERR, status_name,
};

/// How long the test takes to kill the device.
const KILLED: Duration = Duration::from_secs(600);
/// Requests of each kind.
const REQUESTS: u64 = 8;
/// Identifiers of receives begin here.
const RECEIVES: u64 = 1000;

/// A connection whose completions go to `cq`, and whose peer has no receives and asks for a long wait.
fn stalled(env: &mut Env, cq: Arc<Cq>, interface: Interface) -> Outcome<Link> {
    let mut config = LinkConfig {
        rnr_timer: 26,
        ..Default::default()
    };
    config.qp.interface = interface;
    let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
    env.connect(qp, cq, &config)
}

/// Posts receives, and sends of which every other one asks for no completion.
fn post(link: &Link, base: u64) -> Outcome<()> {
    for n in 0..REQUESTS {
        let flags = if n % 2 == 0 { SEND_SIGNALED } else { 0 };
        link.qp
            .post_send(&[SendWr::new(base + n, SendOp::Send, &[]).flags(flags)])
            .map_err(|e| Failure(format!("send {n}: {}", e.error)))?;
        link.recv(base + RECEIVES + n, &[])?;
    }
    Ok(())
}

/// What was posted is flushed: sends and receives each in their order.
fn expect_flushed(cq: &Cq, base: u64, patience: Duration) -> Outcome<()> {
    let mut next = [base, base + RECEIVES];
    for n in 0..2 * REQUESTS {
        let patience = if n == 0 { patience } else { SOON };
        let wc: ibv_wc = cq
            .wait(patience)
            .during("polling")?
            .ok_or_else(|| Failure(format!("nothing after {n} of {} requests", 2 * REQUESTS)))?;
        let queue = usize::from(wc.wr_id >= base + RECEIVES);
        ensure!(
            wc.wr_id == next[queue] && wc.status == WC_WR_FLUSH_ERR,
            "completion {} {}, expected {} flushed",
            wc.wr_id,
            status_name(wc.status),
            next[queue]
        );
        next[queue] += 1;
    }
    ensure!(
        cq.wait(super::QUIET)?.is_none(),
        "a request completed twice"
    );
    Ok(())
}

/// Waits for the device to fail, which it is told to by what this prints. If `moving`, the process also has a dma-buf
/// whose exporter moves it all the time, and goes on with it.
pub fn outlive(env: &mut Env, moving: bool) -> Outcome<()> {
    // Polled by either interface, and one with an event.
    let channel = Channel::new(&env.context).during("ibv_create_comp_channel")?;
    let mut links = Vec::new();
    for interface in [Interface::Legacy, Interface::Extended] {
        let cq = Cq::with(&env.context, 64, 0, None, 0, interface).during("a CQ")?;
        links.push(stalled(env, cq, interface)?);
    }
    let cq = Cq::with(&env.context, 64, 7, Some(&channel), 1, Interface::Legacy).during("a CQ")?;
    cq.arm(false).during("ibv_req_notify_cq")?;
    links.push(stalled(env, cq, Interface::Legacy)?);

    // One whose requests are done when the device fails. Nobody polled the last of them.
    let done = env.link(&LinkConfig::default())?;
    let write = SendOp::Write(env.peer.all.addr, env.peer.all.rkey);
    let mut moved = None;
    if moving {
        let buf = Restless::new()?;
        let region = buf.region(env)?;
        done.send(100, write, &[region.sge(BEGIN, 64)])?;
        done.expect(100, WC_SUCCESS)?;
        moved = Some((buf, region));
    }
    for round in 0..3 {
        for n in 0..3 {
            let flags = if n == 2 { SEND_SIGNALED } else { 0 };
            let wr = SendWr::new(10 * round + n, write, &[]).flags(flags);
            done.qp
                .post_send(&[wr])
                .map_err(|e| Failure(format!("a write: {}", e.error)))?;
        }
        if round == 0 {
            done.expect(2, WC_SUCCESS)?;
        }
    }
    for link in &links {
        post(link, 0)?;
    }
    std::thread::sleep(Duration::from_secs(1));
    println!("kill the device now");

    for link in &links {
        expect_flushed(&link.cq, 0, KILLED)?;
    }
    done.expect(12, WC_SUCCESS)?;
    done.expect(22, WC_SUCCESS)?;
    // A device that went away takes the channel along, too.
    let is_gone = env.context.device_attr().is_err();
    let event = channel.event(SOON);
    ensure!(
        event == Some(7) || is_gone,
        "event {event:?} of a queue that was armed"
    );

    // As on any queue pair in error, more may be posted, in all entries.
    for round in 1..=8 {
        for link in &links {
            post(link, 10_000 * round)?;
            expect_flushed(&link.cq, 10_000 * round, SOON)?;
        }
    }
    done.recv(5, &[])?;
    expect(&done.cq, 5, WC_WR_FLUSH_ERR)?;
    done.expect_quiet()?;
    if let Some((buf, region)) = moved {
        buf.moves_on()?;
        drop(region);
        buf.rest()?;
    }
    Ok(())
}

/// A device that failed has told its users so. They let go of all that they have, and soon open it anew.
pub fn recover(env: Env, device: Option<&str>) -> Outcome<Peer> {
    /// `IBV_PORT_ACTIVE`.
    const ACTIVE: i32 = 4;
    /// How long the device may take to come back.
    const BACK: Duration = Duration::from_secs(120);

    let told = env.context.async_event(SOON);
    ensure!(
        told.is_some_and(|event| event.kind == EVENT_DEVICE_FATAL),
        "no device-fatal event but {told:?}"
    );
    let peer = env.finish()?;
    let end = Instant::now() + BACK;
    loop {
        // One that is about to go may still be opened, and may even still look as it did.
        let is_back = Context::open(device).is_ok_and(|context| {
            context.port_attr().is_ok_and(|port| port.state == ACTIVE) && Pd::new(&context).is_ok()
        });
        if is_back {
            return Ok(peer);
        }
        ensure!(Instant::now() < end, "the device does not come back");
        std::thread::sleep(Duration::from_millis(100));
    }
}
