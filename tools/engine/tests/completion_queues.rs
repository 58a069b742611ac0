// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues that move to other rings, and events that are held back.

use proptest::{collection::vec, prelude::*};
use std::{collections::VecDeque, time::Duration};
use vrnic_engine::{
    Cause,
    testing::{Connection, Node, QpOptions, Ring, Send, World},
    time::Instant,
};
use vrnic_wire::{
    command::{DestroyCq, DestroyQp, ModifyCq, QueryClock, Status as CommandStatus, cq_flags},
    completion::{Cqe, Status},
    event::EventType,
    qp::QpType,
    work::{SendOpcode, send_flags},
};
use zerocopy::FromBytes;

/// Completion vector of the queue under test.
const VECTOR: u16 = 1;

/// A connection of a device with itself, one side of which receives empty messages.
struct Receiver {
    world: World,
    c: Connection,
    sent: u64,
    received: u64,
}

impl Receiver {
    fn new(seed: u64) -> Self {
        let mut world = World::pair(seed);
        let options = QpOptions {
            entries: 256,
            ..QpOptions::default()
        };
        let c = world.connect([0, 0], &options, 4096, |_, _| {});
        Self {
            world,
            c,
            sent: 0,
            received: 0,
        }
    }

    /// Sends `count` messages, which complete at once.
    fn complete(&mut self, count: u32, solicited: bool) {
        for _ in 0..count {
            self.c.receive(&mut self.world, 1, self.sent, &[]);
            let mut send = Send::new(self.sent, SendOpcode::Send);
            if solicited {
                send = send.flags(send_flags::SOLICITED);
            }
            self.c.send(&mut self.world, 0, &send);
            self.sent += 1;
        }
        self.world.run(Duration::ZERO);
        self.c.send_cqs[0].drain();
    }

    /// Takes up to `count` completions, which must be the next ones. Returns how many there were.
    fn poll(&mut self, count: usize) -> usize {
        let polled = (0..count).map_while(|_| self.c.recv_cqs[1].poll());
        let mut found = 0;
        for done in polled {
            assert_eq!((done.wr_id, done.status), (self.received, Status::Success));
            self.received += 1;
            found += 1;
        }
        found
    }

    fn arm(&mut self, solicited: bool) {
        self.c.recv_cqs[1].arm(solicited);
    }

    fn resize(
        &mut self,
        entries: u32,
        change: fn(&mut Ring),
    ) -> Result<(), (CommandStatus, Cause)> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        guest.resize_cq(rnic, &mut self.c.recv_cqs[1], entries, change)
    }

    fn moderate(&mut self, count: u16, period: u16) {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let request = ModifyCq {
            cqn: self.c.recv_cqs[1].cqn.into(),
            count: count.into(),
            period: period.into(),
        };
        guest.command(rnic, request).expect("modify");
    }

    /// Returns the number of completion events since the last call.
    fn events(&mut self) -> usize {
        let rnic = &mut self.world.nodes[0].rnic;
        let cqn = self.c.recv_cqs[1].cqn;
        std::iter::from_fn(|| rnic.next_completion_event(VECTOR))
            .inspect(|event| assert_eq!(event.cqn.get(), cqn))
            .count()
    }

    /// Returns the device's clock.
    fn clock(&mut self) -> u64 {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        guest.now = self.world.now;
        guest.command(rnic, QueryClock {}).expect("time").time.get()
    }

    /// Lets time pass.
    fn wait(&mut self, time: Duration) {
        let end = self.world.now + time;
        self.world.run(time);
        self.world.now = self.world.now.max(end);
        self.world.run(Duration::ZERO);
    }
}

fn us(microseconds: u64) -> Duration {
    Duration::from_micros(microseconds)
}

#[test]
fn nothing_is_lost_on_the_way_to_another_ring() {
    let mut r = Receiver::new(1);
    // Entries of the next ring, completions before it, and how many of those are polled before.
    for (entries, before, polled) in [
        (16, 10, 3),
        (8, 1, 0),
        (1024, 0, 0),
        (128, 100, 60),
        (64, 20, 7),
    ] {
        r.complete(before, false);
        assert_eq!(r.poll(polled), polled);
        assert_eq!(r.resize(entries, |_| {}), Ok(()));
    }
    assert_eq!(u64::from(r.c.recv_cqs[1].ring.device_index()), r.sent);
    // The new ring is full when it holds as many completions as it has entries.
    let left = (r.sent - r.received) as usize;
    r.complete(64 - left as u32, false);
    assert_eq!(r.poll(100), 64);
    r.complete(64, false);
    assert_eq!(r.poll(100), 64);
}

#[test]
fn what_does_not_fit_stays_where_it_is() {
    let mut r = Receiver::new(2);
    r.complete(9, false);
    let too_small = Err((CommandStatus::InvalidArgument, Cause::CqTooSmall));
    assert_eq!(r.resize(8, |_| {}), too_small);
    assert_eq!(r.poll(1), 1);
    // The consumer index is beyond the completions that exist, or behind those that were polled.
    let wild = Err((CommandStatus::InvalidArgument, Cause::CqConsumer));
    let ahead: fn(&mut Ring) = |ring| {
        ring.index += 9;
        ring.publish();
        ring.index -= 9;
    };
    let behind: fn(&mut Ring) = |ring| {
        ring.index = ring.index.wrapping_sub(513);
        ring.publish();
        ring.index = ring.index.wrapping_add(513);
    };
    assert_eq!(r.resize(1024, ahead), wild);
    assert_eq!(r.resize(1024, behind), wild);
    r.complete(3, true);
    assert_eq!(r.resize(16, |_| {}), Ok(()));
    assert_eq!(r.poll(100), 11);
}

#[test]
fn a_queue_that_overran_stays_so() {
    let mut r = Receiver::new(3);
    assert_eq!(r.resize(4, |_| {}), Ok(()));
    r.complete(5, false);
    let refused = Err((CommandStatus::InvalidArgument, Cause::CqFailed));
    assert_eq!(r.resize(64, |_| {}), refused);
    let event = r.world.nodes[0].rnic.next_async_event().expect("event");
    assert_eq!(event.event_type.get(), EventType::CqError.raw());
    assert_eq!(r.poll(100), 4);
}

#[test]
fn a_request_for_an_event_moves_along() {
    let mut r = Receiver::new(4);
    r.arm(false);
    r.complete(1, false);
    assert_eq!(r.events(), 1);
    assert_eq!(r.resize(64, |_| {}), Ok(()));
    r.complete(1, false);
    assert_eq!(r.events(), 0, "it was answered");
    r.arm(true);
    assert_eq!(r.resize(256, |_| {}), Ok(()));
    r.complete(1, false);
    assert_eq!(r.events(), 0, "not solicited");
    r.complete(1, true);
    assert_eq!(r.events(), 1);
}

/// The last completions are present in the order of their indices, and nothing fails.
#[test]
fn a_queue_that_ignores_overrun_keeps_the_last_completions() {
    const ENTRIES: u32 = 8;
    for count in [ENTRIES, ENTRIES + 1, 2 * ENTRIES, 5 * ENTRIES + 3] {
        let mut receiver = Receiver::new(9);
        let Node { rnic, guest } = &mut receiver.world.nodes[0];
        let cq = guest.cq_with(rnic, ENTRIES, VECTOR, cq_flags::IGNORE_OVERRUN);
        let options = QpOptions {
            entries: 256,
            ..QpOptions::default()
        };
        let sender = receiver.c.send_cqs[0].cqn;
        let qps =
            [sender, cq.cqn].map(|cqn| guest.try_qp(rnic, &options, sender, cqn).expect("qp"));
        let qpns = [qps[0].qpn, qps[1].qpn];
        for (side, &qpn) in qpns.iter().enumerate() {
            let attributes = World::attributes(0, qpns[1 - side]);
            let kind = QpType::ReliableConnection;
            receiver.world.bring_up(0, qpn, attributes, kind);
        }
        receiver.c.qps = qps;
        receiver.c.recv_cqs[1] = cq;
        receiver.complete(count, false);
        let ring = &mut receiver.c.recv_cqs[1].ring;
        assert_eq!(ring.device_index(), count);
        assert_eq!(ring.device_flags(), 0);
        ring.index = count - ENTRIES;
        receiver.received = u64::from(count - ENTRIES);
        assert_eq!(receiver.poll(100), ENTRIES as usize);
        receiver.complete(1, false);
        assert_eq!(receiver.poll(100), 1);
        assert!(receiver.world.nodes[0].rnic.next_async_event().is_none());
    }
}

#[test]
fn the_clock_is_that_of_time_stamps() {
    let mut receiver = Receiver::new(8);
    let before = receiver.clock();
    receiver.wait(us(7));
    receiver.complete(1, false);
    let ring = &receiver.c.recv_cqs[1].ring;
    let entry = ring
        .arena
        .get(ring.layout.entry_offset(0) as usize, size_of::<Cqe>());
    let stamp = Cqe::read_from_bytes(&entry).expect("an entry").timestamp;
    receiver.wait(us(9));
    let after = receiver.clock();
    assert!(before + 7000 <= stamp.get() && stamp.get() + 9000 <= after);
}

#[test]
fn events_wait_for_company() {
    let mut r = Receiver::new(5);
    r.moderate(4, 100);
    r.arm(false);
    r.complete(3, false);
    assert_eq!(r.events(), 0);
    r.complete(1, false);
    assert_eq!(r.events(), 1, "four");
    r.arm(false);
    r.complete(1, false);
    r.wait(us(90));
    assert_eq!(r.events(), 0);
    r.wait(us(20));
    assert_eq!(r.events(), 1, "it is time");
    r.complete(10, false);
    r.wait(us(1000));
    assert_eq!(r.events(), 0, "nobody asked");
    // Without a request, completions start no waiting time, but they count once one has started.
    r.arm(true);
    r.complete(10, false);
    r.wait(us(1000));
    assert_eq!(r.events(), 0);
    r.complete(1, true);
    assert_eq!(r.events(), 0);
    r.complete(3, false);
    assert_eq!(r.events(), 1);
    for (count, period) in [(0, 100), (1, 100), (100, 0)] {
        r.moderate(count, period);
        r.arm(false);
        r.complete(1, false);
        assert_eq!(r.events(), 1, "{count} {period}");
    }
}

#[test]
fn what_is_held_back_survives_every_change() {
    let mut r = Receiver::new(6);
    r.moderate(100, 50);
    r.arm(false);
    r.complete(1, false);
    assert_eq!(r.resize(16, |_| {}), Ok(()));
    assert_eq!(r.events(), 0);
    r.wait(us(60));
    assert_eq!(r.events(), 1);
    r.arm(false);
    r.complete(1, false);
    r.arm(true);
    r.wait(us(60));
    assert_eq!(r.events(), 1, "one for both requests");
    r.arm(false);
    r.complete(1, false);
    r.moderate(100, 60000);
    assert_eq!(r.events(), 1, "at once");
    r.wait(us(100_000));
    assert_eq!(r.events(), 0);
    // Events of a destroyed queue do not arrive, and hold up no others.
    r.arm(false);
    r.complete(1, false);
    for side in 0..2 {
        let Node { rnic, guest } = &mut r.world.nodes[0];
        let request = DestroyQp {
            qpn: r.c.qps[side].qpn.into(),
            ..Default::default()
        };
        guest.command(rnic, request).expect("destroy");
    }
    let Node { rnic, guest } = &mut r.world.nodes[0];
    let request = DestroyCq {
        cqn: r.c.recv_cqs[1].cqn.into(),
        ..Default::default()
    };
    guest.command(rnic, request).expect("destroy");
    assert_eq!(rnic.next_deadline(), None);
    assert_eq!(r.events(), 0);
}

/// An operation on a completion queue.
#[derive(Copy, Clone, Debug)]
enum Op {
    Complete(u32, bool),
    Poll(usize),
    Arm(bool),
    Resize(u32),
    Moderate(u16, u16),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1u32..12, any::<bool>()).prop_map(|(count, solicited)| Op::Complete(count, solicited)),
        3 => (0usize..20).prop_map(Op::Poll),
        3 => any::<bool>().prop_map(Op::Arm),
        2 => (0u32..8).prop_map(|exponent| Op::Resize(1 << exponent)),
        1 => (0u16..20, prop::sample::select(vec![0, 1000, 5000])).prop_map(|(c, p)| Op::Moderate(c, p)),
        2 => prop::sample::select(vec![500, 2000, 10_000]).prop_map(Op::Wait),
    ]
}

/// A request for an event that has not been answered.
#[derive(Clone, Debug)]
struct Request {
    solicited: bool,
    /// Number of completions since one that the request covers, and the earliest and latest time of that one.
    held: Option<(u32, Instant, Instant)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// Every completion arrives once and in order, and every request for an event is answered once, at the right time.
    #[test]
    fn completions_and_events_are_those_of_the_model(seed: u64, ops in vec(op(), 1..60)) {
        let mut r = Receiver::new(seed);
        let mut entries = 512;
        let mut unread = VecDeque::new();
        let mut request: Option<Request> = None;
        let (mut count, mut period) = (0u32, Duration::ZERO);
        for op in ops {
            let before = r.world.now;
            let mut at_once = false;
            match op {
                Op::Complete(number, solicited) => {
                    let number = number.min(entries - unread.len() as u32);
                    unread.extend((0..number).map(|ahead| r.sent + u64::from(ahead)));
                    r.complete(number, solicited);
                    if let Some(request) = request.as_mut().filter(|_| number > 0) {
                        match &mut request.held {
                            Some((since, ..)) => *since += number,
                            None if solicited || !request.solicited => {
                                request.held = Some((number, before, r.world.now));
                            }
                            None => {}
                        }
                    }
                }
                Op::Poll(number) => {
                    let number = number.min(unread.len());
                    unread.drain(..number);
                    prop_assert_eq!(r.poll(number), number);
                }
                Op::Arm(solicited) => {
                    r.arm(solicited);
                    let held = request.and_then(|request| request.held);
                    request = Some(Request { solicited, held });
                }
                Op::Resize(new) => {
                    if unread.len() as u32 > new {
                        let refused = Err((CommandStatus::InvalidArgument, Cause::CqTooSmall));
                        prop_assert_eq!(r.resize(new, |_| {}), refused);
                    } else {
                        prop_assert_eq!(r.resize(new, |_| {}), Ok(()));
                        entries = new;
                    }
                }
                Op::Moderate(new_count, new_period) => {
                    r.moderate(new_count, new_period);
                    (count, period) = (new_count.into(), us(new_period.into()));
                    at_once = true;
                }
                Op::Wait(time) => r.wait(us(time)),
            }
            let held = request.as_ref().and_then(|request| request.held);
            let expected = held.is_some_and(|(since, _, latest)| {
                at_once || since >= count || r.world.now >= latest + period
            });
            let possible = held.is_some_and(|(_, earliest, _)| {
                expected || r.world.now >= earliest + period
            });
            let events = r.events();
            prop_assert!(events <= usize::from(possible) && events >= usize::from(expected));
            if events > 0 {
                request = None;
            }
        }
        prop_assert_eq!(r.poll(unread.len() + 1), unread.len());
        r.wait(us(10_000));
        let held = request.and_then(|request| request.held);
        prop_assert_eq!(r.events(), usize::from(held.is_some()), "the last is not lost");
    }
}
