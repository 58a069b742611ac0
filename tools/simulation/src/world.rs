// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Carries out a plan in virtual time: takes one event after the other from a queue and sets the time to that of the
//! event.

use crate::{
    circle::Circle,
    device::{Device, SHARED, SHARED_NAME},
    fault::Known,
    flow::{Circumstances, Flow},
    network::{Network, Parcel, Place, Travelling},
    plan::{CQS, CirclePlan, FlowPlan, Loss, Plan, Reset, starts_in_peace},
    random::Random,
};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    ops::{Add, AddAssign},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};
use vrnic_engine::{
    Io, Outbox, Segment, Segmentation,
    segment::Damage,
    testing::{Completion, Memories, PagedRegion},
    time::Instant,
};
use vrnic_roce::{FrameError, parse};
use vrnic_wire::{completion::Opcode, event::EventType, qp::QpType};

/// Largest number of events in a simulation.
const MOST_EVENTS: u64 = 100_000_000;
/// Latest end of a simulation after its last flow.
const CALM: Duration = Duration::from_secs(120);
/// Start of a simulation.
const BEGINNING: Instant = Instant::from_nanos(1);
/// Time after which a program that could not connect its queue pairs tries again.
const AGAIN: Duration = Duration::from_millis(1);
/// Average number of turns of a device until a new recording starts.
const TURNS: usize = 200;

/// An event.
#[derive(Debug)]
enum Event {
    /// A device gets a CPU.
    Turn(usize),
    /// A parcel arrives.
    Arrive(Place, Parcel),
    /// A program polls a completion queue.
    Drain(usize, usize),
    /// Memory of a device has become persistent.
    Synced(usize),
    Start(usize),
    /// An end of a flow posts.
    Post(usize, usize),
    Late(usize),
    Deed(usize),
    Stop(usize),
    Close(usize),
    Fault(usize),
    /// A device loses its objects.
    Loss(usize),
    /// The device starts again.
    Return(usize),
    /// Ports of a switch go down or come up.
    Outage(usize, bool),
    /// The driver answers page faults of an end of a flow.
    Page(usize, usize),
    /// The driver takes pages back.
    Reclaim(usize, usize),
    /// The driver no longer has some pages.
    Punch(usize, usize),
    Gather(usize),
    /// A member of a multicast group sends.
    Call(usize, usize),
    Hush(usize),
    Part(usize),
}

/// An event and its time. Events at the same time happen in the order in which they were queued.
#[derive(Debug)]
struct Entry {
    at: Instant,
    number: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Totals of what was simulated.
#[derive(Copy, Clone, Debug, Default)]
pub struct Tally {
    /// Number of simulations.
    pub simulations: u64,
    /// Virtual time.
    pub time: Duration,
    /// Number of queue pairs.
    pub queue_pairs: u64,
    /// Number of work requests.
    pub requests: u64,
    /// Number of completions.
    pub completions: u64,
    /// Number of packets sent.
    pub packets: u64,
    /// Number of times that faults fired.
    pub faults: u64,
    /// Number of page faults.
    pub page_faults: u64,
    /// Number of messages received by members of multicast groups.
    pub group_messages: u64,
    /// Number of requests of XRC queue pairs.
    pub extended: u64,
    /// Number of fast registrations.
    pub registrations: u64,
    /// Number of devices that lost all their objects.
    pub losses: u64,
    /// Number of devices whose engine panicked.
    pub panics: u64,
    /// Number of outages of switches.
    pub outages: u64,
    /// Number of events.
    pub events: u64,
}

impl Add for Tally {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.simulations += other.simulations;
        self.time += other.time;
        self.queue_pairs += other.queue_pairs;
        self.requests += other.requests;
        self.completions += other.completions;
        self.packets += other.packets;
        self.faults += other.faults;
        self.page_faults += other.page_faults;
        self.group_messages += other.group_messages;
        self.extended += other.extended;
        self.registrations += other.registrations;
        self.losses += other.losses;
        self.panics += other.panics;
        self.outages += other.outages;
        self.events += other.events;
    }
}

/// A simulation.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    now: Instant,
    devices: Vec<Device>,
    network: Network,
    flows: Vec<Option<Flow>>,
    circles: Vec<Option<Circle>>,
    /// For each planned fault, its number once it is armed.
    faults: Vec<Option<u64>>,
    queue: BinaryHeap<Reverse<Entry>>,
    number: u64,
    outbox: Outbox,
    random: Random,
    /// Decides when recordings are cut, if they are. A random stream of its own, so that cutting has no other effect.
    cuts: Option<Random>,
    tally: Tally,
    /// Devices and queue pairs of the flow being checked.
    subjects: Vec<(usize, u32)>,
}

impl World {
    /// Creates the devices in their initial state. `recorded` tells whether they are recorded.
    pub fn new(plan: &Plan, recorded: bool) -> Self {
        let mut random = Random::new(plan.seed ^ 0x776f_726c_6400);
        let memories = Memories::new();
        let segmentation = if plan.switches == 0 {
            Segmentation::Local
        } else {
            Segmentation::PathMtu
        };
        let devices = plan.devices.iter().enumerate().map(|(index, device)| {
            let flows = plan.flows.iter();
            let ends = flows.flat_map(|flow| flow.ends.map(|end| (flow, end)));
            let here = ends.filter(|(_, end)| *end == index);
            let resets = plan.resets.iter().filter(|reset| reset.device == index);
            let pages = 300 * (1 + resets.count()) + 200 * plan.faults.len();
            let pages = pages + here.map(|(flow, _)| Flow::pages(flow)).sum::<usize>();
            let members = plan.circles.iter().flat_map(|circle| &circle.members);
            let pages = pages + 30 * members.filter(|member| **member == index).count();
            let view = memories.add(pages * 4096);
            Device::new(
                index,
                device,
                (view, pages),
                segmentation,
                cq_entries(plan, index),
                recorded,
                &mut random,
            )
        });
        let devices: Vec<_> = devices.collect();
        let mut world = Self {
            plan: plan.clone(),
            now: Instant::from_nanos(1),
            devices,
            network: Network::new(plan),
            flows: plan.flows.iter().map(|_| None).collect(),
            circles: plan.circles.iter().map(|_| None).collect(),
            faults: vec![None; plan.faults.len()],
            queue: BinaryHeap::new(),
            number: 0,
            outbox: Outbox::new(),
            random,
            cuts: None,
            tally: Tally::default(),
            subjects: Vec::new(),
        };
        let at = |time: Duration| Instant::from_nanos(1) + time;
        for (index, flow) in plan.flows.iter().enumerate() {
            world.happens(at(flow.start), Event::Start(index));
        }
        for (index, fault) in plan.faults.iter().enumerate() {
            world.happens(at(fault.at), Event::Fault(index));
        }
        for (index, reset) in plan.resets.iter().enumerate() {
            world.happens(at(reset.at), Event::Loss(index));
        }
        for (index, outage) in plan.outages.iter().enumerate() {
            world.happens(at(outage.at), Event::Outage(index, false));
            world.happens(at(outage.at + outage.lasts), Event::Outage(index, true));
        }
        for (index, circle) in plan.circles.iter().enumerate() {
            world.happens(at(circle.start), Event::Gather(index));
            for (number, (_, _, after)) in circle.sends.iter().enumerate() {
                world.happens(at(circle.start + *after), Event::Call(index, number));
            }
            world.happens(at(circle.stop()), Event::Hush(index));
            let over = circle.stop() + FlowPlan::CLOSING;
            world.happens(at(over), Event::Part(index));
        }
        world
    }

    fn happens(&mut self, at: Instant, event: Event) {
        self.number += 1;
        self.queue.push(Reverse(Entry {
            at: at.max(self.now),
            number: self.number,
            event,
        }));
    }

    /// Gives a device a turn, no later than `at`.
    fn wake(&mut self, device: usize, at: Instant) {
        let turn = &mut self.devices[device].turn;
        if turn.is_none_or(|turn| turn > at) {
            *turn = Some(at.max(self.now));
            self.happens(at, Event::Turn(device));
        }
    }

    /// Gives a device a turn as soon as it gets a CPU.
    fn wake_soon(&mut self, device: usize) {
        let jitter = self.devices[device].plan.jitter;
        let at = self.now + Duration::from_nanos(100) + self.random.time_below(jitter);
        self.wake(device, at);
    }

    /// Splits recordings into many, each of which begins with the state of its device.
    pub fn cut_recordings(&mut self) {
        self.cuts = Some(Random::new(self.plan.seed ^ 0x6375_7473));
    }

    /// Runs to the end and checks everything.
    ///
    /// # Panics
    ///
    /// A check fails.
    pub fn run(&mut self) -> Tally {
        self.go_on();
        let open = self.flows.iter().position(Option::is_some);
        assert_eq!(open, None, "a flow is not over");
        let open = self.circles.iter().position(Option::is_some);
        assert_eq!(open, None, "a circle is not over");
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            self.tally.faults += device
                .rnic
                .faults()
                .list()
                .iter()
                .map(|fault| fault.fired)
                .sum::<u64>();
            device.rnic.faults_mut().clear(None);
            self.wake(index, self.now);
        }
        self.go_on();
        for device in self.devices.iter_mut().filter(|device| device.runs()) {
            let deadline = device.rnic.next_deadline();
            assert_eq!(deadline, None, "device {} still waits", device.index);
            device.destroy();
        }
        self.tally.simulations = 1;
        self.tally.time = self.now - Instant::default();
        self.tally.packets = self.network.sent;
        self.tally
    }

    /// Returns devices and queue pairs of what was checked last.
    pub fn subjects(&self) -> &[(usize, u32)] {
        &self.subjects
    }

    /// Ends the recordings of all devices and returns them, each with the index of its device.
    pub fn recordings(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut all = Vec::new();
        for device in &mut self.devices {
            device.end_recording("stopped");
            let recordings = std::mem::take(&mut device.recordings);
            all.extend(recordings.into_iter().map(|one| (device.index, one)));
        }
        all
    }

    fn go_on(&mut self) {
        let end = self.plan.end() + CALM;
        while let Some(Reverse(entry)) = self.queue.pop() {
            self.now = entry.at;
            self.tally.events += 1;
            assert!(
                self.tally.events < MOST_EVENTS && self.now - Instant::default() < end,
                "the simulation does not end"
            );
            self.happen(entry.event);
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Turn(device) => self.turn(device),
            Event::Arrive(Place::Device(device), parcel) => self.arrive(device, parcel),
            Event::Arrive(Place::Port(switch, from), Parcel::Frame(frame)) => {
                let leaving = self.network.receive(switch, from, frame, self.now);
                self.travel(leaving);
            }
            Event::Arrive(Place::Port(..), Parcel::Segment(_)) => {}
            Event::Drain(device, cq) => self.drain(device, cq),
            Event::Synced(device) => {
                self.devices[device].rnic.synced(true);
                self.wake_soon(device);
            }
            Event::Start(flow) => {
                let ends = self.plan.flows[flow].ends;
                // The flow starts as planned or later. By then, a device may have lost all its objects.
                if starts_in_peace(&self.plan.resets, self.now - BEGINNING, &ends) {
                    let ready = ends.iter().all(|&end| self.devices[end].has_gid());
                    if ready {
                        self.start(flow);
                    } else {
                        self.happens(self.now + AGAIN, Event::Start(flow));
                    }
                }
            }
            Event::Post(flow, side) => self.post(flow, side),
            Event::Late(flow) => self.with(flow, Flow::post_late),
            Event::Deed(flow) => self.with(flow, |flow, devices| {
                if let Some((deed, side, _)) = flow.plan().deed {
                    flow.suffer(deed, side, devices);
                }
            }),
            Event::Stop(flow) => {
                self.look(flow);
                self.with(flow, Flow::stop);
            }
            Event::Close(flow) => self.close(flow),
            Event::Fault(index) => {
                let plan = self.plan.faults[index];
                let mut faults = self.devices[plan.device].rnic.faults_mut();
                let armed = faults.arm(plan.spec(), self.now).expect("room for a fault");
                self.faults[index] = Some(armed);
                self.wake(plan.device, self.now);
            }
            Event::Loss(index) => self.lose(index),
            Event::Return(device) => {
                self.devices[device].guest.now = self.now;
                self.devices[device].reset(&mut self.random);
                self.wake_soon(device);
            }
            Event::Outage(index, up) => {
                self.tally.outages += u64::from(!up);
                self.network.set_up(&self.plan.outages[index], up);
            }
            Event::Page(flow, side) => {
                let mut faults = 0;
                self.with(flow, |flow, devices| {
                    flow.page(side, devices, |paged, guest, rnic| {
                        faults = paged.serve(guest, rnic);
                    });
                });
                self.tally.page_faults += faults;
            }
            Event::Reclaim(flow, side) => self.with(flow, |flow, devices| {
                flow.page(side, devices, PagedRegion::forget_some);
            }),
            Event::Punch(flow, side) => self.with(flow, |flow, devices| {
                let paging = flow.plan().paging[side].as_ref();
                if let Some((_, part)) = paging.and_then(|paging| paging.hole) {
                    flow.punch(side, part, devices);
                }
            }),
            Event::Gather(index) => {
                let plan = &self.plan.circles[index];
                for device in &plan.members {
                    self.devices[*device].guest.now = self.now;
                }
                let harm = |ends| self.network.harm(ends);
                let circle = Circle::start(plan, &mut self.devices, self.now, harm);
                self.tally.queue_pairs += plan.members.len() as u64;
                self.circles[index] = Some(circle);
            }
            Event::Call(index, number) => {
                let (member, length, _) = self.plan.circles[index].sends[number];
                let device = self.plan.circles[index].members[member];
                if let Some(circle) = &mut self.circles[index] {
                    circle.send(number, member, length, &mut self.devices);
                    self.tally.requests += 1;
                }
                // A program without events polls.
                let at = self.now + self.random.time(Duration::from_millis(5));
                self.happens(at, Event::Drain(device, CirclePlan::CQS[0]));
                self.wake_soon(device);
            }
            Event::Hush(index) => {
                self.look_around(index);
                for device in self.plan.circles[index].members.clone() {
                    self.devices[device].guest.now = self.now;
                    self.wake_soon(device);
                }
                if let Some(circle) = &mut self.circles[index] {
                    circle.stop(&mut self.devices);
                }
            }
            Event::Part(index) => {
                self.look_around(index);
                let Some(circle) = self.circles[index].take() else {
                    return;
                };
                let faults = self.concerning(circle.began, |device| circle.qpns(device));
                let harm = |ends| self.network.harm(ends);
                circle.check(&self.devices, harm, &faults);
                for device in self.plan.circles[index].members.clone() {
                    self.devices[device].guest.now = self.now;
                    self.wake_soon(device);
                }
                circle.destroy(&mut self.devices);
            }
        }
    }

    /// Makes a device lose its objects.
    fn lose(&mut self, index: usize) {
        let Reset { device, loss, .. } = self.plan.resets[index];
        if self.devices[device].loss.is_some() {
            return;
        }
        for cq in 0..CQS {
            self.drain(device, cq);
        }
        self.devices[device].guest.now = self.now;
        let ails = |world: &mut Self, fault: &str| {
            let spec = fault.parse().expect("a fault");
            let rnic = &mut world.devices[device].rnic;
            rnic.faults_mut().arm(spec, world.now).expect("room for it");
            world.call(device, |device, now, outbox| {
                let mut io = Io {
                    memory: &device.guest.view,
                    now,
                    outbox,
                };
                device.rnic.advance(&mut io);
            });
        };
        let after = match loss {
            Loss::Reset => Some(Duration::ZERO),
            Loss::Removed => None,
            Loss::Stuck(after) => {
                ails(self, "stuck");
                Some(after)
            }
            Loss::Failed(after) => {
                ails(self, "needs-reset");
                assert!(self.devices[device].rnic.is_failing());
                Some(after)
            }
            Loss::Panicked(after) => {
                let panics = AssertUnwindSafe(|| ails(self, "engine-panic"));
                assert!(catch_unwind(panics).is_err(), "the engine goes on");
                self.outbox.segments.clear();
                self.tally.panics += 1;
                Some(after)
            }
        };
        self.tally.losses += 1;
        self.devices[device].lose(loss);
        match after {
            Some(Duration::ZERO) => self.happen(Event::Return(device)),
            Some(after) => self.happens(self.now + after, Event::Return(device)),
            None => {}
        }
    }

    /// Returns the faults that have affected queue pairs since `from`; `qpns` returns these for each device.
    fn concerning(&self, from: Instant, qpns: impl Fn(usize) -> Vec<u32>) -> Vec<&'static Known> {
        let pairs = self.plan.faults.iter().zip(&self.faults);
        let concerning = pairs.filter(|(fault, armed)| {
            let rnic = &self.devices[fault.device].rnic;
            let qpns = qpns(fault.device);
            let concerns = |id| crate::fault::concerns(rnic, id, &qpns, from, self.now);
            !qpns.is_empty() && armed.is_some_and(concerns)
        });
        concerning.map(|(fault, _)| fault.known()).collect()
    }

    /// Makes a call to a device and sends the resulting segments.
    fn call<R>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut Device, Instant, &mut Outbox) -> R,
    ) -> R {
        let device = &mut self.devices[index];
        let result = work(device, self.now, &mut self.outbox);
        let mut sent = std::mem::take(&mut self.outbox.segments);
        for segment in sent.drain(..) {
            self.send(index, segment);
        }
        self.outbox.segments = sent;
        result
    }

    fn send(&mut self, from: usize, segment: Segment<'static>) {
        if let Some(damage) = segment.touched.damage {
            // A fault damaged it on the way; the receiver only counts it.
            let to = crate::network::device_of(&segment.path.destination);
            if let Some(device) = to.and_then(|to| self.devices.get_mut(to)) {
                device.rnic.count_bad_packet(damage == Damage::Icrc);
            }
            return self.outbox.recycle(segment.payload);
        }
        let view = self.devices[from].guest.view.clone();
        let leaving = self.network.send(from, segment, &view, self.now);
        self.travel(leaving);
    }

    fn travel(&mut self, all: Vec<Travelling>) {
        for Travelling { at, place, parcel } in all {
            self.happens(at, Event::Arrive(place, parcel));
        }
    }

    fn arrive(&mut self, index: usize, parcel: Parcel) {
        if !self.devices[index].runs() {
            return;
        }
        self.call(index, |device, now, outbox| {
            let frame;
            let parsed = match parcel {
                Parcel::Segment(segment) => Ok(*segment),
                Parcel::Frame(bytes) => {
                    frame = bytes;
                    parse(&frame)
                }
            };
            match parsed {
                Ok(segment)
                    if device.rnic.has_gid(&segment.path.destination)
                        || device.rnic.has_group(&segment.path.group()) =>
                {
                    let mut io = Io {
                        memory: &device.guest.view,
                        now,
                        outbox,
                    };
                    device.rnic.receive(segment, &mut io);
                }
                Ok(_) | Err(FrameError::NotRoce) => {}
                Err(error) => device.rnic.count_bad_packet(error == FrameError::Icrc),
            }
        });
        self.wake_soon(index);
    }

    fn turn(&mut self, index: usize) {
        if self.devices[index].turn != Some(self.now) {
            // Stale: the device has had, or will have, its turn at another time.
            return;
        }
        self.devices[index].turn = None;
        if !self.devices[index].runs() {
            return;
        }
        if self.cuts.as_mut().is_some_and(|cuts| cuts.one_in(TURNS)) {
            self.devices[index].cut_recording();
        }
        let (worked, awake) = self.call(index, |device, now, outbox| {
            let mut io = Io {
                memory: &device.guest.view,
                now,
                outbox,
            };
            if device.rnic.next_deadline().is_some_and(|at| at <= now) {
                device.rnic.advance(&mut io);
            }
            let worked = device.rnic.poll(device.plan.budget, &mut io);
            let awake = worked || device.rnic.prepare_sleep(&mut io);
            (worked, awake)
        });
        while let Some(event) = self.devices[index].rnic.next_async_event() {
            if event.event_type.get() == EventType::PageFault.raw() {
                self.page_fault(index, event.number.get());
            }
        }
        for vector in 0..CQS {
            while let Some(event) = self.devices[index]
                .rnic
                .next_completion_event(vector as u16)
            {
                let cqs = &self.devices[index].cqs;
                let cqn = event.cqn.get();
                let cq = cqs.iter().position(|shared| shared.cq.cqn == cqn);
                let at = self.now + self.random.time(Duration::from_millis(1));
                self.happens(at, Event::Drain(index, cq.expect("the event of a CQ")));
            }
        }
        if self.devices[index].rnic.next_sync().is_some() {
            let at = self.now + self.random.time(Duration::from_micros(100));
            self.happens(at, Event::Synced(index));
        }
        let device = &mut self.devices[index];
        if worked {
            device.backoff = Duration::from_nanos(100);
            self.wake_soon(index);
        } else if awake {
            // A device that a fault keeps from its work stays awake, and time passes.
            device.backoff =
                (device.backoff * 2).clamp(Duration::from_nanos(100), Duration::from_micros(20));
            let at = self.now + device.backoff;
            self.wake(index, at);
        } else if let Some(deadline) = device.rnic.next_deadline() {
            self.wake(index, deadline);
        }
    }

    /// Does something with a flow, after which its devices have work.
    fn with(&mut self, index: usize, work: impl FnOnce(&mut Flow, &mut [Device])) {
        let Some(flow) = &mut self.flows[index] else {
            return;
        };
        for end in &flow.ends {
            self.devices[end.device].guest.now = self.now;
        }
        work(flow, &mut self.devices);
        for device in self.plan.flows[index].ends {
            self.wake_soon(device);
        }
    }

    /// Handles a page fault of a device: its driver answers after a while.
    fn page_fault(&mut self, index: usize, key: u32) {
        let device = &self.devices[index];
        let ends = self.flows.iter().enumerate().find_map(|(number, flow)| {
            let flow = flow.as_ref()?;
            let side = flow.paged_end(device, key)?;
            Some((number, side, flow.plan().paging[side].as_ref()?.slowness))
        });
        if let Some((flow, side, slowness)) = ends {
            let at = self.now + self.random.time(slowness);
            self.happens(at, Event::Page(flow, side));
        }
    }

    fn start(&mut self, index: usize) {
        let plan = &self.plan.flows[index];
        for device in plan.ends {
            self.devices[device].guest.now = self.now;
        }
        let harm = self.network.harm(plan.ends);
        let flow = Flow::start(plan, &mut self.devices, self.now, harm);
        self.tally.queue_pairs += 2;
        let (start, stop) = (Instant::from_nanos(1) + plan.start, plan.stop());
        let late = plan.late_receives;
        let deed = plan.deed;
        let first = [0, 1].map(|side| plan.ops[side].first().map(|op| op.pause));
        let ends = plan.ends;
        let paging = plan.paging.clone();
        self.flows[index] = Some(flow);
        for (side, paging) in paging.into_iter().enumerate() {
            let Some(paging) = paging else { continue };
            for after in paging.reclaims {
                self.happens(start + after, Event::Reclaim(index, side));
            }
            if let Some((after, _)) = paging.hole {
                self.happens(start + after, Event::Punch(index, side));
            }
        }
        for (side, pause) in first.into_iter().enumerate() {
            if let Some(pause) = pause {
                self.happens(start + pause, Event::Post(index, side));
            }
        }
        if let Some(late) = late {
            self.happens(start + late, Event::Late(index));
        }
        if let Some((_, _, after)) = deed {
            self.happens(start + after, Event::Deed(index));
        }
        let stop = Instant::from_nanos(1) + stop;
        self.happens(stop, Event::Stop(index));
        self.happens(stop + FlowPlan::CLOSING, Event::Close(index));
        for device in ends {
            self.wake_soon(device);
        }
    }

    fn post(&mut self, index: usize, side: usize) {
        let mut next = None;
        self.with(index, |flow, devices| next = flow.post(side, devices));
        if let Some(pause) = next {
            self.happens(self.now + pause, Event::Post(index, side));
        }
        // A program without events polls from time to time.
        let FlowPlan { ends, cqs, .. } = self.plan.flows[index];
        for (device, cqs) in ends.into_iter().zip(cqs) {
            for cq in cqs {
                if !self.devices[device].plan.events[cq] {
                    let at = self.now + self.random.time(Duration::from_millis(5));
                    self.happens(at, Event::Drain(device, cq));
                }
            }
        }
    }

    /// Polls all completion queues of a flow.
    fn look(&mut self, index: usize) {
        let FlowPlan { ends, cqs, .. } = self.plan.flows[index];
        for (device, cqs) in ends.into_iter().zip(cqs) {
            for cq in cqs {
                self.drain(device, cq);
            }
        }
    }

    /// Polls all completion queues of a multicast group.
    fn look_around(&mut self, index: usize) {
        for device in self.plan.circles[index].members.clone() {
            for cq in CirclePlan::CQS {
                self.drain(device, cq);
            }
        }
    }

    fn drain(&mut self, index: usize, cq: usize) {
        if self.devices[index].loss.is_some() {
            return;
        }
        self.devices[index].guest.now = self.now;
        for done in self.devices[index].drain(cq) {
            self.completed(index, done);
        }
        self.wake_soon(index);
    }

    /// Handles a completion that a program polled.
    fn completed(&mut self, index: usize, done: Completion) {
        self.tally.completions += 1;
        let shared = done.wr_id & SHARED_NAME != 0;
        let bytes = shared.then(|| self.devices[index].take_shared(&done));
        let device = &self.devices[index];
        let mut circles = self.circles.iter_mut().flatten();
        if let Some(circle) = circles.find(|circle| circle.has(device, done.qpn)) {
            self.tally.group_messages += u64::from(done.opcode == Opcode::Receive);
            return circle.complete(device, done);
        }
        let mut flows = self.flows.iter_mut().flatten();
        let found = flows.find_map(|flow| Some((flow.end_of(device, done.qpn)?, flow)));
        let Some((side, flow)) = found else {
            panic!("device {index}: {done:?} of a queue pair that is not there");
        };
        self.subjects = flow.subjects();
        let ends = flow.plan().ends;
        let mut faults = self.plan.faults.iter();
        let loses = faults.any(|fault| ends.contains(&fault.device) && fault.known().loses);
        flow.complete(side, done, bytes.as_deref(), &self.devices, loses);
    }

    fn close(&mut self, index: usize) {
        self.look(index);
        let Some(flow) = self.flows[index].take() else {
            return;
        };
        self.subjects = flow.subjects();
        let plan = flow.plan();
        let sound = self.network.harm(plan.ends) == flow.harm;
        if plan.qp_type == QpType::XrcInitiator {
            self.tally.extended += flow.requests() as u64;
        }
        self.tally.registrations += flow.registrations() as u64;
        let circumstances = Circumstances {
            is_sound: sound,
            faults: self.concerning(flow.began, |device| flow.qpns(device)),
        };
        self.tally.requests += flow.requests() as u64;
        let ends = plan.ends;
        for device in ends {
            self.devices[device].guest.now = self.now;
        }
        flow.close(&mut self.devices, &circumstances);
        for device in ends {
            self.wake_soon(device);
        }
    }
}

/// Returns the sizes of a device's completion queues, which are enough for all flows that exist at a time.
fn cq_entries(plan: &Plan, device: usize) -> [u32; CQS] {
    // For each start or end of a flow: the time, whether it is an end, and the number of completions. A flow that
    // starts at the same time as another ends comes first.
    let mut changes: [Vec<(Duration, bool, u32)>; CQS] = Default::default();
    for flow in &plan.flows {
        let over = flow.stop() + FlowPlan::CLOSING;
        for side in 0..2 {
            if flow.ends[side] == device {
                let [send, receive] = flow.cqs[side];
                let mut needs = |cq: usize, count: usize| {
                    let count = count as u32 + 1;
                    changes[cq].extend([(flow.start, false, count), (over, true, count)]);
                };
                needs(send, flow.ops[side].len());
                // Of unreliable messages, a shared receive queue gets each that the network repeats.
                let repeats = flow.shared[side] && !flow.is_reliable();
                let most = if repeats { SHARED } else { flow.receives(side) };
                needs(receive, most);
            }
        }
    }
    for circle in &plan.circles {
        let over = circle.stop() + FlowPlan::CLOSING;
        let members = circle.members.iter().filter(|member| **member == device);
        for _ in members {
            let count = Circle::receives(circle) as u32;
            for cq in CirclePlan::CQS {
                changes[cq].extend([(circle.start, false, count), (over, true, count)]);
            }
        }
    }
    changes.map(|mut changes| {
        changes.sort_unstable();
        let (mut now, mut most) = (0, 1);
        for (_, is_over, count) in changes {
            if is_over {
                now -= count;
            } else {
                now += count;
            }
            most = most.max(now);
        }
        most.next_power_of_two()
    })
}
