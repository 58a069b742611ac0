// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Completion queues: resizing, moderated events, and timestamps of completions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::queues::own_pair;
use super::{Case, Env, LinkConfig, QUIET, SOON, expect};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, Channel, Cq, Errno, Interface, Qp, QpConfig, SEND_SIGNALED, SEND_SOLICITED, SendOp,
    SendWr, Sge, Srq, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("cq-resize-keeps-completions", resize),
    ("cq-resize-keeps-the-request-for-an-event", armed),
    ("cq-resize-under-traffic", traffic),
    ("cq-moderation", moderation),
    ("cq-moderation-by-count", moderation_by_count),
    ("cq-timestamps", timestamps),
    ("cq-wall-clock", wall_clock),
    ("cq-used-while-it-is-polled", used_while_polled),
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
        let wr_ids = self.next..self.next + count;
        self.next += count;
        let receives: Vec<_> = wr_ids.clone().map(|id| (id, &[] as &[Sge<'_>])).collect();
        let posted = self.receiver.post_recv(&receives);
        posted.map_err(|e| Failure(format!("posting receives: {}", e.error)))?;
        let send = |id| SendWr::new(id, SendOp::Send, &[]).flags(flags | SEND_SIGNALED);
        let sends: Vec<_> = wr_ids.clone().map(send).collect();
        let posted = self.sender.post_send(&sends);
        posted.map_err(|e| Failure(format!("posting sends: {}", e.error)))?;
        for wr_id in wr_ids {
            expect(&self.send_cq, wr_id, WC_SUCCESS)?;
        }
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

/// Between `ibv_start_poll` and `ibv_end_poll`, who polls may do with the queue what he likes.
fn used_while_polled(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let mut messages = Messages::new(env, 8, Interface::Extended)?;
    let cq = messages.cq.clone();
    messages.complete(3, 0)?;
    let work = || -> Outcome<()> {
        let config = QpConfig::default();
        let qp = Qp::new(&env.pd, &cq, &cq, &config).during("ibv_create_qp")?;
        qp.to_init(ACCESS_ALL).during("RESET to INIT")?;
        qp.reset().during("INIT to RESET")?;
        drop(qp);
        let srq = Srq::new(&env.pd, 4, 1).during("ibv_create_srq")?;
        Qp::with_srq(&cq, &cq, &config, &srq).during("ibv_create_qp with an SRQ")?;
        cq.arm(false).during("arming")?;
        cq.resize(100).during("resizing")
    };
    let polled = cq.while_polling(work).during("polling")?;
    let Some((0, Ok(()))) = polled else {
        return Err(Failure(format!("polled {polled:?}")));
    };
    ensure!(cq.capacity() >= 100, "{} entries", cq.capacity());
    messages.expect(1..3)?;
    messages.complete(1, 0)?;
    ensure!(messages.channel.event(SOON) == Some(7), "no event");
    messages.expect(3..4)
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

/// The count alone brings the event: two completions wait for a third, and not for the time.
///
/// The longest period is short, and machines under test are slow. So what is said of an event is what no delay makes
/// wrong: none comes, as seen from before the first completion, earlier than the period unless there were three. That
/// three bring one is shown by the first round in which all of it took less than the period. Other rounds tell nothing,
/// and another follows.
fn moderation_by_count(env: &mut Env) -> Outcome<()> {
    const PERIOD: Duration = Duration::from_micros(u16::MAX as u64);
    /// How long two completions are watched alone; with everything else it has to stay below the period.
    const ALONE: Duration = Duration::from_millis(5);
    let mut messages = Messages::new(env, 64, Interface::Legacy)?;
    let cq = messages.cq.clone();
    let supported = cq.moderate(3, u16::MAX);
    if !env.vrnic && supported == Err(Errno(libc::EOPNOTSUPP)) {
        return Ok(());
    }
    supported.during("ibv_modify_cq")?;
    let mut fastest = Duration::MAX;
    let end = Instant::now() + SOON;
    while fastest >= PERIOD {
        ensure!(
            Instant::now() < end,
            "three completions brought no event before the period was over, the first after {fastest:?}"
        );
        cq.arm(false).during("arming")?;
        let first = messages.next;
        let begin = Instant::now();
        messages.complete(2, 0)?;
        let early = messages.channel.event(ALONE);
        let passed = begin.elapsed();
        ensure!(
            early.is_none() || passed >= PERIOD,
            "an event of two completions after {passed:?}"
        );
        messages.complete(1, 0)?;
        if early.is_none() {
            ensure!(messages.channel.event(SOON) == Some(7), "no event");
            fastest = fastest.min(begin.elapsed());
        }
        messages.expect(first..first + 3)?;
    }
    Ok(())
}

/// The times of completions follow each other, at the rate that the device says.
fn timestamps(env: &mut Env) -> Outcome<()> {
    const PAUSE: Duration = Duration::from_millis(50);
    const ROUNDS: u64 = 5;
    const WRITES: u64 = 20;
    let cq = match Cq::stamped(&env.context, 128, false) {
        Err(_) if !env.vrnic => return Ok(()),
        cq => cq.during("ibv_create_cq_ex")?,
    };
    let attr = env.context.device_attr_ex().during("ibv_query_device_ex")?;
    let (mask, khz) = (attr.completion_timestamp_mask, attr.hca_core_clock);
    ensure!(khz > 0 && mask > 0, "a clock of {khz} kHz, mask {mask:#x}");
    // From one time to another; what goes backwards is further than half of the way round.
    let since = |from: u64, to: u64| {
        let ticks = to.wrapping_sub(from) & mask;
        ensure!(ticks <= mask / 2, "{to} comes after {from}");
        Ok(ticks)
    };
    let config = LinkConfig::default();
    let links = (0..2)
        .map(|_| {
            let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
            env.connect(qp, cq.clone(), &config)
        })
        .collect::<Outcome<Vec<_>>>()?;
    let (mr, all) = (env.buffer()?, env.peer.all);
    // Writes by both queue pairs; the times of the first and of the last completion.
    let stamps = || -> Outcome<(u64, u64)> {
        for wr_id in 0..WRITES {
            let write = SendOp::Write(all.addr, all.rkey);
            let len = wr_id as usize * 1000;
            links[wr_id as usize % 2].send(wr_id, write, &[mr.sge(0, len)])?;
        }
        let (mut first, mut last, mut polled) = (None, 0, 0);
        let end = Instant::now() + SOON;
        while polled < WRITES {
            ensure!(Instant::now() < end, "{polled} of {WRITES} completions");
            let Some((wc, time)) = cq.poll_stamped().during("polling")? else {
                std::thread::sleep(Duration::from_micros(50));
                continue;
            };
            ensure!(wc.status == WC_SUCCESS, "{wc:?}");
            if first.is_some() {
                since(last, time)?;
            }
            first.get_or_insert(time);
            last = time;
            polled += 1;
        }
        Ok((first.unwrap_or(last), last))
    };
    let ticks = |time: Duration| time.as_nanos() as u64 / 1000 * khz / 1000;
    let mut before = stamps()?.1;
    // The pause lies between the two, whatever comes on top of it. Half of it allows for clocks that disagree.
    for _ in 0..ROUNDS {
        std::thread::sleep(PAUSE);
        let (first, last) = stamps()?;
        let passed = since(before, first)?;
        ensure!(
            passed >= ticks(PAUSE) / 2,
            "{passed} ticks of a clock of {khz} kHz in {PAUSE:?}"
        );
        before = last;
    }
    Ok(())
}

/// The time of day in nanoseconds.
fn today() -> Outcome<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_err(|_| Failure("a clock before 1970".into()))?;
    Ok(now.as_nanos() as u64)
}

/// Completions are stamped between two looks at the device's clock, one before their request is posted and one after
/// they are polled; and between two looks at the time of day.
fn wall_clock(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let began = today()?;
    let cq = Cq::stamped(&env.context, 16, true).during("ibv_create_cq_ex")?;
    // The device was asked in between, so that is how much the times may be early.
    let early = today()? - began;
    let config = LinkConfig::default();
    let qp = Qp::new(&env.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
    let link = env.connect(qp, cq.clone(), &config)?;
    let write = SendOp::Write(env.peer.all.addr, env.peer.all.rkey);
    for wr_id in 0..20 {
        let raw_before = env.context.raw_clock().during("ibv_query_rt_values_ex")?;
        let before = today()?;
        link.send(wr_id, write, &[])?;
        let end = Instant::now() + SOON;
        let (polled, [raw, wall]) = loop {
            if let Some(polled) = cq.poll_times().during("polling")? {
                break polled;
            }
            ensure!(Instant::now() < end, "no completion");
            std::thread::sleep(Duration::from_micros(50));
        };
        let after = today()?;
        let raw_after = env.context.raw_clock().during("ibv_query_rt_values_ex")?;
        ensure!(polled == wr_id, "{polled} instead of {wr_id}");
        ensure!(
            raw_before <= raw && raw <= raw_after,
            "{raw} is not between {raw_before} and {raw_after}"
        );
        // One clock may run faster than the other.
        let apart = (after - began) / 100;
        ensure!(
            before <= wall + early + apart && wall <= after + apart,
            "{wall} is not between {before} and {after}, or {early} before"
        );
    }
    Ok(())
}
