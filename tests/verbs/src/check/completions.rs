// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Completion queues that get another size, and events that wait for company.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::queues::own_pair;
use super::{Case, Env, LinkConfig, QUIET, SOON, expect};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    Channel, Cq, Errno, Interface, Qp, QpConfig, SEND_SIGNALED, SEND_SOLICITED, SendOp, SendWr,
    WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("cq-resize-keeps-completions", resize),
    ("cq-resize-keeps-the-request-for-an-event", armed),
    ("cq-resize-under-traffic", traffic),
    ("cq-moderation", moderation),
];

/// Two queue pairs of ours: empty messages of the one complete at `cq` of the other.
struct Messages {
    sender: Qp,
    receiver: Qp,
    send_cq: Arc<Cq>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    next: u64,
}

impl Messages {
    fn new(env: &Env, entries: u32, interface: Interface) -> Outcome<Self> {
        let channel = Channel::new(&env.context).during("ibv_create_comp_channel")?;
        let cq = Cq::with(&env.context, entries, 7, Some(&channel), 0, interface)
            .during("ibv_create_cq")?;
        let send_cq = Cq::new(&env.context, 64).during("ibv_create_cq")?;
        let (sender, receiver) = own_pair(env, &send_cq, &cq)?;
        Ok(Messages {
            sender,
            receiver,
            send_cq,
            cq,
            channel,
            next: 0,
        })
    }

    /// Has `count` messages complete at the receiver. That of the sender comes later, with the ACK.
    fn complete(&mut self, count: u64, flags: u32) -> Outcome<()> {
        for wr_id in self.next..self.next + count {
            let posted = self.receiver.post_recv(&[(wr_id, &[])]);
            posted.map_err(|e| Failure(format!("posting a receive: {}", e.error)))?;
            let wr = SendWr::new(wr_id, SendOp::Send, &[]).flags(flags | SEND_SIGNALED);
            let posted = self.sender.post_send(&[wr]);
            posted.map_err(|e| Failure(format!("posting a send: {}", e.error)))?;
            expect(&self.send_cq, wr_id, WC_SUCCESS)?;
        }
        self.next += count;
        Ok(())
    }

    /// The completions of the receives `wr_ids`.
    fn expect(&self, wr_ids: std::ops::Range<u64>) -> Outcome<()> {
        wr_ids
            .into_iter()
            .try_for_each(|wr_id| expect(&self.cq, wr_id, WC_SUCCESS).map(|_| ()))
    }
}

fn resize(env: &mut Env) -> Outcome<()> {
    for interface in [Interface::Legacy, Interface::Extended] {
        let mut messages = Messages::new(env, 8, interface)?;
        let cq = messages.cq.clone();
        let mut polled = 0;
        for entries in [32, 7, 100, 5, 4, 1000] {
            messages.complete(3, 0)?;
            messages.expect(polled..polled + 1)?;
            cq.resize(entries).during(format!("to {entries}"))?;
            ensure!(cq.capacity() >= entries, "{} entries", cq.capacity());
            messages.expect(polled + 1..polled + 3)?;
            polled += 3;
        }
        messages.complete(9, 0)?;
        for bad in [0, 1, 8, 1 << 24] {
            let refused = cq.resize(bad);
            ensure!(
                refused == Err(Errno(libc::EINVAL)),
                "to {bad} with 9 completions: {refused:?}"
            );
        }
        messages.expect(polled..polled + 9)?;
        // A queue that is full takes as much again.
        cq.resize(4).during("to 4")?;
        messages.complete(4, 0)?;
        messages.expect(polled + 9..polled + 13)?;
        messages.complete(4, 0)?;
        messages.expect(polled + 13..polled + 17)?;
    }
    Ok(())
}

fn armed(env: &mut Env) -> Outcome<()> {
    let mut messages = Messages::new(env, 8, Interface::Legacy)?;
    let cq = messages.cq.clone();
    cq.arm(true).during("arming")?;
    cq.resize(64).during("resizing")?;
    messages.complete(1, 0)?;
    ensure!(
        messages.channel.event(QUIET).is_none(),
        "an event for an unsolicited message"
    );
    messages.complete(1, SEND_SOLICITED)?;
    ensure!(messages.channel.event(SOON) == Some(7), "no event");
    cq.resize(16).during("resizing")?;
    messages.complete(1, SEND_SOLICITED)?;
    ensure!(
        messages.channel.event(QUIET).is_none(),
        "an event without arming"
    );
    messages.expect(0..3)
}

/// Writes to the peer, whose completions one thread polls while another resizes their queue.
fn traffic(env: &mut Env) -> Outcome<()> {
    const WRITES: u64 = 2000;
    const RESIZES: u32 = 60;
    const DEPTH: u64 = 32;
    for interface in [Interface::Legacy, Interface::Extended] {
        let cq = Cq::with(&env.context, 64, 0, None, 0, interface).during("ibv_create_cq")?;
        let mut config = LinkConfig::default();
        config.qp = QpConfig {
            interface,
            ..config.qp
        };
        let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
        let link = env.connect(qp, cq.clone(), &config)?;
        let (mr, all) = (env.buffer()?, env.peer.all);
        let (resized, over) = (AtomicU32::new(0), AtomicBool::new(false));
        let (traffic, resizes) = std::thread::scope(|scope| {
            let resizes = scope.spawn(|| {
                // Never less than what is under way.
                for entries in [64, 4096, 33, 1000, 128, 40].into_iter().cycle() {
                    if over.load(Ordering::Relaxed) {
                        break;
                    }
                    cq.resize(entries).during(format!("to {entries}"))?;
                    resized.fetch_add(1, Ordering::Relaxed);
                }
                Outcome::Ok(())
            });
            let write = || {
                let (mut posted, mut done) = (0, 0);
                while done < WRITES || resized.load(Ordering::Relaxed) < RESIZES {
                    while posted < done + DEPTH {
                        mr.memory().store((posted % DEPTH * 8) as usize, posted);
                        let place = posted % DEPTH * 8;
                        let sges = [mr.sge(place as usize, 8)];
                        link.send(posted, SendOp::Write(all.addr + place, all.rkey), &sges)?;
                        posted += 1;
                    }
                    link.expect(done, WC_SUCCESS)?;
                    done += 1;
                    ensure!(!resizes.is_finished(), "resizing ended");
                }
                (done..posted).try_for_each(|wr_id| link.expect(wr_id, WC_SUCCESS).map(|_| ()))?;
                // What was written last is there.
                let target = mr.sge(4096, 8 * DEPTH as usize);
                link.send(posted, SendOp::Read(all.addr, all.rkey), &[target])?;
                link.expect(posted, WC_SUCCESS)?;
                for number in posted - DEPTH..posted {
                    let found = mr.memory().load(4096 + (number % DEPTH * 8) as usize);
                    ensure!(found == number, "write {number}: {found} is there");
                }
                Outcome::Ok(())
            };
            let traffic = write();
            over.store(true, Ordering::Relaxed);
            (traffic, resizes.join())
        });
        traffic?;
        resizes.map_err(|_| Failure("the thread that resizes panicked".into()))??;
        link.expect_quiet()?;
    }
    Ok(())
}

fn moderation(env: &mut Env) -> Outcome<()> {
    const PERIOD: Duration = Duration::from_millis(60);
    let mut messages = Messages::new(env, 64, Interface::Legacy)?;
    let cq = messages.cq.clone();
    let period = PERIOD.as_micros() as u16;
    let supported = cq.moderate(100, period);
    if !env.vrnic && supported == Err(Errno(libc::EOPNOTSUPP)) {
        return Ok(());
    }
    supported.during("ibv_modify_cq")?;
    // One completion waits for the time, which nothing cuts short.
    for _ in 0..3 {
        cq.arm(false).during("arming")?;
        let begin = Instant::now();
        messages.complete(1, 0)?;
        ensure!(messages.channel.event(SOON) == Some(7), "no event");
        ensure!(
            begin.elapsed() >= PERIOD,
            "an event after {:?}",
            begin.elapsed()
        );
    }
    // Enough of them do not, or nothing is held back. How long an event takes is nobody's promise.
    for (count, period) in [(3, period), (0, period), (1, period), (100, 0), (0, 0)] {
        cq.moderate(count, period).during("ibv_modify_cq")?;
        cq.arm(false).during("arming")?;
        messages.complete(3, 0)?;
        ensure!(
            messages.channel.event(SOON) == Some(7),
            "no event with {count} and {period}"
        );
        ensure!(
            messages.channel.event(QUIET).is_none(),
            "more events than armings"
        );
    }
    messages.expect(0..18)
}
