// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The workers: threads that drive the engines of all devices and move segments between them.
//!
//! What one worker at a time drives is a *unit*: a device on the local fabric, or a network with all devices on it
//! (`Networked`). Each unit has a home (`Roster`), the worker that gives it its turns. While there is work, a
//! worker makes no system call, allocates nothing per message, and takes only locks of its own units, which nobody else
//! wants.
//!
//! A segment goes to another device in one of two ways:
//! * If the receiver has the same home as the sender, the worker delivers it at once, and the replies to it, until
//!   nothing is on its way. The worker keeps the sender and all receivers locked for so long, so nothing overtakes.
//! * Otherwise the worker puts it, as a `Letter`, into the receiver's inbox (`Actor`), whose home looks there in
//!   each turn. A worker never waits for a unit.
//!
//! A receiver with many unread letters from one device is sent no more by that device for now (`outgoing`). What is for
//! others goes on.
//!
//! A letter may refer to memory of the sender. It holds the table with the names of that memory, and a device executes
//! commands, which may release memory, only while nobody else holds its table ([`Device::is_quiet`]). A device with a
//! command waits by sending nothing on its own, and by leaving its inbox alone, since answers to reads refer to its
//! memory, too. The letters that it waits for are in inboxes of other devices. If one of these waits in the same way,
//! the first of them whose `PATIENCE` ends reads its inbox, which lets the other go on.
//!
//! When there is no work, a worker polls for a while. If it is not the last one that is awake, it then leaves its
//! units to another one. The last one sleeps with all units. Before that, every device clears its POLLING flags and
//! checks its notify areas once more. Then the worker announces that it is about to sleep, and checks the mailboxes and
//! inboxes once more. A doorbell that rings in between is noticed by one of these two checks.
//!
//! While a worker carries segments, it waits for no lock that another thread may hold:
//! * An inbox has none (`inbox`), nor has the network thread (`network::hub`).
//! * It only tries the locks of units, mailboxes and questions, and the lock of the roster while it has work. If one is
//!   taken, it goes on, and tries again in its next turn. An interrupt whose vector is being changed is left to the
//!   thread that changes it (`attended`).
//! * The tables of GIDs come to it (`inbox::Latest`). Captures are locked for writing only while no turn is under way.
//! * It reads the map of a guest's memory while the front end changes it (`guest_memory::map`).
//!
//! What is left is not on this path. A command that changes GIDs or groups locks their tables. A reset and a question
//! wait for the map of the guest's memory, if its front end is changing it. The end of a recording has a lock of its
//! own. The channels to the threads that write captures, recordings and persistent memory are those of the standard
//! library, which locks them for an instant to wake a thread that sleeps there. A worker without units waits for the
//! roster. A worker that answers a question waits for all units, and keeps the others from beginning turns.
//!
//! The order of locks is: the gate, units by their index, and last the GIDs, the captures or the roster.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant as RealInstant};

use anyhow::{Context, Result};
use tracing::{debug, warn};
use vrnic_engine::segment::Damage;
use vrnic_engine::time::Instant;
use vrnic_engine::{Budget, Outbox, Rnic, Segment};

use crate::actor::{Actor, Held};
use crate::capture::{Captures, Direction};
use crate::clock::Clock;
use crate::control::answer::{Timed, answer};
use crate::control::inspector::Inspector;
use crate::device::{Busy, Crowd, Device, Shared};
use crate::fabric::{Local, Route, Routes, SubnetFabric};
use crate::guest_memory::RegionTable;
use crate::inbox::Blanks;
use crate::network::Network;
use crate::networked::{Medium, Networked};
use crate::outgoing::{Outgoing, Stamp};
use crate::roster::{Retirement, Roster};
use crate::waker::Waker;

/// Time that the recordings' files have to finish when vrnicd stops.
const FINISH: Duration = Duration::from_secs(2);
/// Time after which a worker looks whether it was overloaded. While another one is awake, it polls for at most as long.
const PERIOD: Duration = Duration::from_millis(1);
/// A worker is overloaded if it finds nothing to do in less than one turn of this many.
const IDLE_TURNS: u32 = 8;
/// Number of turns after which a worker at least looks.
const LEAST_TURNS: u32 = 8;
/// Number of turns after which a restless worker gives its units away.
const RESTLESS_TURNS: u32 = 32;
/// Largest number of empty vectors for segments that a worker keeps.
const MAX_SPARE: usize = 64;
/// Number of turns for which a device with a command leaves its inbox alone.
const PATIENCE: u32 = 64;

/// Everything that the workers share.
pub struct Workshop {
    /// For each device on the local fabric, its unit, which has the number of the device.
    locals: Vec<Option<Actor<LocalDevice, Letter>>>,
    /// The other units.
    networks: Vec<Actor<Networked, Infallible>>,
    fabric: Local,
    captures: Arc<Captures>,
    roster: Roster,
    /// Wakes the last worker that is awake.
    waker: Arc<Waker>,
    inspector: Arc<Inspector>,
    poll_time: Duration,
    /// Whether workers keep giving units to each other, for tests.
    restless: bool,
    /// Locked by the worker that answers a question. No device is driven meanwhile: the others wait here before their
    /// next turns. A question comes from the control socket, there is one per turn, and its answer has a limited size.
    gate: Mutex<()>,
    /// Whether `gate` is locked, so that others do not have to look.
    asked: AtomicBool,
    /// When the workers began.
    began: RealInstant,
    /// Number of questions that were answered. An answer may have changed any device.
    answers: AtomicU64,
}

/// A segment for a device with another home.
struct Letter {
    stamp: Arc<Stamp>,
    segment: Segment<'static>,
}

/// A device on the local fabric.
struct LocalDevice {
    device: Device,
    clock: Clock,
    /// Time of the turn in which it was last locked.
    now: Instant,
    /// The generations of its GIDs and multicast groups that the fabric knows; `None` if the device has no engine.
    generations: Option<(u64, u64)>,
    /// Number of turns in which it has waited until nothing that it sent is under way; 0 if it does not wait.
    waits: u32,
    /// What it has sent to devices with other homes.
    outgoing: Outgoing,
}

impl LocalDevice {
    /// Returns whether it leaves its inbox alone.
    fn is_waiting(&self) -> bool {
        !self.waits.is_multiple_of(PATIENCE)
    }

    /// Returns whether nothing that it has sent refers to its memory any more.
    fn is_quiet(&mut self) -> bool {
        self.outgoing.is_empty() && self.device.is_quiet()
    }

    /// Sends again to receivers that have read what was sent to them.
    fn resume_receivers(&mut self) {
        let rnic = &mut self.device.rnic();
        self.outgoing.resume(|gid| {
            if let Some(rnic) = rnic {
                rnic.resume(gid);
            }
        });
    }

    /// Puts a segment into the inbox of device `to`. Returns whether it did; if not, the segment is lost.
    fn post(
        &mut self,
        to: usize,
        inbox: &Actor<LocalDevice, Letter>,
        segment: &mut Segment<'static>,
        blanks: &mut Blanks<Letter>,
    ) -> bool {
        let Self {
            device, outgoing, ..
        } = self;
        let receiver = outgoing.receiver(to, device.regions());
        let multicast = segment.path.is_multicast();
        if multicast && receiver.is_busy() {
            return false;
        }
        let gid = segment.path.destination;
        let (stamp, segment) = (receiver.stamp(), segment.take());
        inbox.put(Letter { stamp, segment }, blanks);
        if !multicast && receiver.is_busy() && receiver.pause(gid) {
            outgoing.note_paused(to);
            if let Some(rnic) = device.rnic() {
                rnic.pause(gid);
            }
        }
        true
    }

    /// Receives a segment from a device; its table is `sender` if that is not this device.
    fn receive(
        &mut self,
        shared: &mut Shared,
        segment: &mut Segment<'static>,
        sender: Option<&RegionTable>,
    ) {
        let (device, now) = (&mut self.device, self.now);
        if segment.path.is_multicast() && !device.has_group(&segment.path.group()) {
            shared.outbox.recycle(segment.take_payload());
        } else if let Some(damage) = segment.touched.damage {
            if let Some(rnic) = device.rnic() {
                rnic.count_bad_packet(damage == Damage::Icrc);
            }
            shared.outbox.recycle(segment.take_payload());
        } else if shared.captures.is_empty() {
            device.contained(shared, |device, shared| {
                device.receive(shared, segment, sender, now);
            });
        } else {
            let seen = segment.clone();
            let note = device.receive_noted(shared, segment, sender, now);
            device.capture(shared, Direction::In, &seen, sender, &note);
        }
    }

    /// Executes requests and commands. Before the driver learns that one is done that changes GIDs or multicast groups,
    /// or resets the device, the fabric knows these. Returns true if there was anything to do.
    fn control(&mut self, index: usize, shared: &mut Shared, fabric: &Local) -> bool {
        let (device, known, now) = (&mut self.device, &mut self.generations, self.now);
        let worked = device.contained(shared, |device, shared| {
            let executed = &mut |rnic: Option<&Rnic>| announce(index, rnic, known, fabric);
            device.control(shared, now, executed)
        });
        worked.unwrap_or(true)
    }

    /// Tells the fabric what has changed without a command: a fault hides GIDs, or the device has lost its engine.
    fn announce(&mut self, index: usize, fabric: &Local) {
        let rnic = self.device.rnic().map(|rnic| &*rnic);
        let _ = announce(index, rnic, &mut self.generations, fabric);
    }
}

/// Tells the fabric when the GIDs or the multicast groups of a device change. It knows those of the generations
/// `known`. Returns whether they have changed.
fn announce(
    index: usize,
    rnic: Option<&Rnic>,
    known: &mut Option<(u64, u64)>,
    fabric: &Local,
) -> bool {
    let now = rnic.map(|rnic| (rnic.gid_generation(), rnic.group_generation()));
    let before = std::mem::replace(known, now);
    if now.map(|(gids, _)| gids) != before.map(|(gids, _)| gids) {
        let gids = rnic.map(|rnic| rnic.gids());
        fabric.set_gids(index, gids.into_iter().flatten().map(|entry| entry.gid));
    }
    if now.map(|(_, groups)| groups) != before.map(|(_, groups)| groups) {
        let groups = rnic.map(|rnic| rnic.groups());
        fabric.set_groups(index, groups.into_iter().flatten().copied());
    }
    now != before
}

impl Workshop {
    /// Creates the units of `devices` and of the `network` or `subnet` that some of them are on, for a number of
    /// workers. A worker polls for `poll_time` after the last work. In each turn it answers one question from
    /// `inspector`. If the workers are `restless`, they keep giving units to each other.
    ///
    /// # Errors
    /// A descriptor cannot be created.
    #[expect(clippy::too_many_arguments, reason = "the parts of a daemon")]
    pub fn new(
        devices: Vec<Device>,
        network: Network,
        subnet: Option<SubnetFabric>,
        waker: Arc<Waker>,
        inspector: Arc<Inspector>,
        poll_time: Duration,
        captures: Captures,
        workers: usize,
        restless: bool,
    ) -> Result<Self> {
        let count = devices.len();
        let places = || -> Vec<Option<Device>> { (0..count).map(|_| None).collect() };
        let (mut on_switch, mut on_subnet) = (places(), places());
        let mut locals = Vec::new();
        for (index, mut device) in devices.into_iter().enumerate() {
            if subnet.as_ref().is_some_and(|subnet| subnet.has(index)) {
                on_subnet[index] = Some(device);
                locals.push(None);
            } else if device.roce().is_some() {
                on_switch[index] = Some(device);
                locals.push(None);
            } else {
                locals.push(Some(Actor::new(LocalDevice {
                    device,
                    clock: Clock::new(),
                    now: Instant::default(),
                    generations: None,
                    waits: 0,
                    outgoing: Outgoing::default(),
                })));
            }
        }
        let switch = Networked::new(on_switch, Medium::Switch(network));
        let subnet = subnet.map(|subnet| Networked::new(on_subnet, Medium::Subnet(subnet)));
        let networks: Vec<_> = [switch].into_iter().chain(subnet).map(Actor::new).collect();
        let roster = Roster::new(count + networks.len(), workers);
        Ok(Self {
            locals,
            networks,
            fabric: Local::new(),
            captures: Arc::new(captures),
            roster: roster.context("cannot create workers")?,
            waker,
            inspector,
            poll_time,
            restless,
            gate: Mutex::new(()),
            asked: AtomicBool::new(false),
            began: RealInstant::now(),
            answers: AtomicU64::new(0),
        })
    }

    /// Works as the worker with that number, until told to stop.
    pub fn work(&self, number: usize) {
        Worker::new(self, number, RealInstant::now()).run();
    }

    /// Tells all workers to stop.
    pub fn stop(&self) {
        self.waker.stop();
        self.roster.stop();
    }

    /// Finishes what is left when all workers have stopped.
    pub fn finish(&self) {
        self.each_device(|device| device.end_tape("vrnicd stopped"));
        // The threads that write the recordings end with the process.
        let deadline = RealInstant::now() + FINISH;
        self.each_device(|device| {
            if !device.wait_for_tapes(deadline) {
                warn!(
                    device = device.name(),
                    "the recording is not finished: its file is too slow"
                );
            }
        });
        for network in &self.networks {
            if let Medium::Switch(network) = network.take().medium() {
                network.log_counters();
            }
        }
    }

    fn each_device(&self, mut visit: impl FnMut(&mut Device)) {
        for local in self.locals.iter().flatten() {
            visit(&mut local.take().device);
        }
        for network in &self.networks {
            network.take().devices().for_each(&mut visit);
        }
    }

    /// Lets a worker that answers a question have all units.
    fn let_answer(&self) {
        if self.asked.load(Ordering::Relaxed) {
            drop(self.close_gate());
        }
    }

    fn close_gate(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One worker.
struct Worker<'a> {
    shop: &'a Workshop,
    number: usize,
    shared: Shared,
    /// The devices that the worker has locked, by their index.
    held: Vec<Option<Held<'a, LocalDevice, Letter>>>,
    /// Their indices.
    holds: Vec<usize>,
    /// Memory for letters.
    blanks: Blanks<Letter>,
    /// Segments of these devices that are under way, with the indices of their senders.
    in_flight: VecDeque<(usize, Vec<Segment<'static>>)>,
    /// Empty vectors for segments.
    spare: Vec<Vec<Segment<'static>>>,
    routes: Routes,
    /// Pairs of devices that exchanged something in the period before this one.
    pairs: HashSet<(usize, usize)>,
    /// Real time at which the turn began.
    real: RealInstant,
    /// Real time for the clocks of units: no turn of another worker has been under way for much longer. A worker that
    /// gets no CPU does not answer, and a peer must not count that time either.
    time: RealInstant,
    /// For each unit, its devices that were busy in the last turn.
    busy: Vec<Busy>,
    /// How all of them crowd each other.
    crowd: Crowd,
    /// Whether drivers may not have been told yet what happened, because another worker had a unit.
    unpublished: bool,
    /// Number of answers after which drivers were told.
    answers: u64,
    /// When the period of the following numbers of turns began: of all turns, and of those without work.
    period: RealInstant,
    turns: u32,
    idle_turns: u32,
    lost: u64,
}

impl<'a> Worker<'a> {
    /// Creates a worker at the time `real`.
    fn new(shop: &'a Workshop, number: usize, real: RealInstant) -> Self {
        Self {
            shop,
            number,
            shared: Shared {
                outbox: Outbox::new(),
                captures: shop.captures.clone(),
            },
            held: shop.locals.iter().map(|_| None).collect(),
            holds: Vec::new(),
            blanks: Blanks::new(),
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            routes: shop.fabric.routes(),
            pairs: HashSet::new(),
            real,
            time: real,
            busy: vec![Busy::default(); shop.locals.len() + shop.networks.len()],
            crowd: Crowd::default(),
            unpublished: false,
            answers: 0,
            period: real,
            turns: 0,
            idle_turns: 0,
            lost: 0,
        }
    }

    fn run(&mut self) {
        let shop = self.shop;
        if self.number > 0 {
            shop.roster.rest(self.number);
        }
        let mut idle_since = None;
        while !shop.waker.is_stopping() {
            let worked = self.step(RealInstant::now());
            if worked {
                idle_since = None;
                continue;
            }
            let idle = self.real - *idle_since.get_or_insert(self.real);
            if idle < shop.poll_time && (idle < PERIOD || shop.roster.is_single()) {
                // Spins instead of yielding: a thread that yields waits for as long as a virtual CPU runs, which can be
                // milliseconds. The sleep that follows shortly gives the CPU back.
                std::hint::spin_loop();
                continue;
            }
            match shop.roster.retire(self.number) {
                Retirement::Done => shop.roster.rest(self.number),
                Retirement::Last if idle >= shop.poll_time && self.sleep() => {}
                Retirement::Last | Retirement::Later => continue,
            }
            idle_since = None;
            self.begin_period(RealInstant::now());
        }
    }

    /// Has the turn that begins at `real`. Returns true if there was anything to do.
    fn step(&mut self, real: RealInstant) -> bool {
        self.begin_turn(real);
        let worked = self.turn();
        self.balance(worked);
        worked
    }

    /// Notes the time at which a turn begins.
    fn begin_turn(&mut self, real: RealInstant) {
        self.real = real;
        self.time = self.real;
        if !self.shop.roster.is_single() {
            let began = self.shop.began;
            let now = self.real.duration_since(began).as_nanos() as usize;
            let oldest = self.shop.roster.begin_turn(self.number, now);
            let latest = began + Duration::from_nanos(oldest as u64) + Clock::STEP;
            self.time = self.real.min(latest);
        }
    }

    /// Sleeps with all units, unless there is work. Returns whether it slept.
    fn sleep(&mut self) -> bool {
        let shop = self.shop;
        shop.waker.announce();
        if self.has_work() {
            shop.waker.cancel();
            return false;
        }
        let locals = shop.locals.iter().flatten().filter_map(|local| {
            let local = local.take();
            Some(local.clock.until(local.device.next_deadline()?))
        });
        let networks = shop.networks.iter();
        let networks = networks.filter_map(|network| network.take().next_timeout());
        let timeout = locals.chain(networks).min();
        shop.waker.sleep(timeout);
        let real = RealInstant::now();
        for local in shop.locals.iter().flatten() {
            local.take().clock.slept(real, timeout);
        }
        for network in &shop.networks {
            network.take().slept(real, timeout);
        }
        true
    }

    /// Returns whether the worker gives a unit its turns.
    fn is_home(&self, unit: usize) -> bool {
        self.shop.roster.is_home(unit, self.number)
    }

    /// Returns the number of a network's unit.
    fn unit_of(&self, network: usize) -> usize {
        self.shop.locals.len() + network
    }

    /// Gives every unit at home a turn. Returns true if any of them did something.
    fn turn(&mut self) -> bool {
        let shop = self.shop;
        shop.let_answer();
        self.shared.outbox.watched = !shop.captures.is_empty();
        let mut worked = false;
        for index in 0..shop.locals.len() {
            if shop.locals[index].is_some() && self.is_home(index) {
                worked |= self.local_turn(index);
            } else {
                self.busy[index] = Busy::default();
            }
        }
        for (index, network) in shop.networks.iter().enumerate() {
            let unit = self.unit_of(index);
            self.busy[unit] = Busy::default();
            if self.is_home(unit) {
                // The worker that drove it before may not have noticed yet.
                let Some(mut network) = network.try_take() else {
                    worked = true;
                    continue;
                };
                let (did, busy) = network.turn(&mut self.shared, self.time, self.crowd);
                worked |= did;
                self.busy[unit] = busy;
            }
        }
        let mut busy = Busy::default();
        self.busy.iter().for_each(|other| busy.add(*other));
        self.crowd = busy.crowd();
        worked |= self.answer_question();
        let answers = shop.answers.load(Ordering::Acquire);
        if worked || self.unpublished || self.answers != answers {
            self.answers = answers;
            self.publish();
        }
        worked
    }

    /// Gives a device a turn. Returns true if it did something or has to wait.
    fn local_turn(&mut self, index: usize) -> bool {
        let (shop, crowd) = (self.shop, self.crowd);
        self.busy[index] = Busy::default();
        if !self.hold(index) {
            return true;
        }
        let mut worked = false;
        let mut may_send = false;
        self.with(index, |local, shared| {
            local.resume_receivers();
            // Commands may release memory, to which nothing may refer any more.
            let quiet = local.is_quiet();
            if quiet {
                worked |= local.control(index, shared, &shop.fabric);
            }
            local.announce(index, &shop.fabric);
            let waits = !quiet && local.device.has_orders();
            local.waits = if waits {
                local.waits.wrapping_add(1).max(1)
            } else {
                0
            };
            may_send = !waits && !local.outgoing.is_full();
            worked |= !may_send || local.outgoing.is_paused();
        });
        self.deliver(index);
        let mut more = false;
        if !self.is_waiting(index) {
            let any;
            (any, more) = self.read_letters(index);
            worked |= any;
        }
        if may_send {
            let mut busy = Busy::default();
            self.with(index, |local, shared| {
                let now = local.now;
                worked |= local
                    .device
                    .contained(shared, |device, shared| device.work(shared, now, crowd))
                    .unwrap_or(true);
                busy.count(&local.device, now, more);
            });
            self.busy[index] = busy;
        }
        worked |= self.deliver(index);
        self.release();
        worked
    }

    /// Locks a device at home until [`release`](Self::release). Returns false if the device has another home, or the
    /// worker that drove it before has not noticed yet that it has not.
    fn hold(&mut self, index: usize) -> bool {
        if self.held[index].is_some() {
            return true;
        }
        let local = self.shop.locals[index].as_ref();
        let local = local.filter(|_| self.is_home(index));
        let Some(mut local) = local.and_then(Actor::try_take) else {
            return false;
        };
        local.now = local.clock.tick(self.time);
        self.held[index] = Some(local);
        self.holds.push(index);
        true
    }

    /// Unlocks all devices. Nothing may be under way.
    fn release(&mut self) {
        for index in self.holds.drain(..) {
            self.held[index] = None;
        }
    }

    /// Calls `work` with a device, if the worker holds it.
    fn with(&mut self, index: usize, work: impl FnOnce(&mut LocalDevice, &mut Shared)) {
        if let Some(local) = &mut self.held[index] {
            work(local, &mut self.shared);
        }
    }

    /// Returns whether a device that the worker holds leaves its inbox alone.
    fn is_waiting(&self, index: usize) -> bool {
        self.held[index]
            .as_ref()
            .is_some_and(|local| local.is_waiting())
    }

    /// Sends the outbox of device `from` and delivers everything under way. Returns true if there was anything.
    fn deliver(&mut self, from: usize) -> bool {
        self.send(from);
        self.carry()
    }

    /// Sends the outbox of device `from`.
    fn send(&mut self, from: usize) {
        let outbox = &mut self.shared.outbox;
        outbox.reveal();
        if outbox.segments.is_empty() {
            return;
        }
        let empty = self.spare.pop().unwrap_or_default();
        let segments = std::mem::replace(&mut outbox.segments, empty);
        self.in_flight.push_back((from, segments));
    }

    /// Delivers segments, and the replies to them, until nothing is under way. Returns true if there were any.
    fn carry(&mut self) -> bool {
        let mut worked = false;
        while let Some((from, mut segments)) = self.in_flight.pop_front() {
            for segment in &mut segments {
                self.deliver_segment(from, segment);
            }
            segments.clear();
            if self.spare.len() < MAX_SPARE {
                self.spare.push(segments);
            }
            worked = true;
        }
        worked
    }

    /// Delivers a segment to its destination, which takes its payload: a segment is long to move.
    fn deliver_segment(&mut self, from: usize, segment: &mut Segment<'static>) {
        if !self.shared.captures.is_empty() {
            self.with(from, |local, shared| {
                local
                    .device
                    .capture(shared, Direction::Out, segment, None, "");
            });
        }
        if segment.touched.withheld {
            return self.shared.outbox.recycle(segment.take_payload());
        }
        match self.routes.route(from, segment) {
            Route::Device(to) => self.pass(from, to, segment),
            Route::Group => {
                let members = self.routes.members();
                let members = members.get(&segment.path.group());
                for &to in members.into_iter().flatten().filter(|&&to| to != from) {
                    self.pass(from, to, &mut segment.clone());
                }
                self.shared.outbox.recycle(segment.take_payload());
            }
            Route::Nowhere => {
                self.lost += 1;
                if self.lost.is_power_of_two() {
                    debug!(lost = self.lost, gid = ?segment.path.destination, "no device has this GID");
                }
                self.shared.outbox.recycle(segment.take_payload());
            }
        }
    }

    /// Passes a segment to a device, directly if the worker may drive it, and it has read its letters and does not
    /// wait.
    fn pass(&mut self, from: usize, to: usize, segment: &mut Segment<'static>) {
        let Some(actor) = &self.shop.locals[to] else {
            return;
        };
        if self.hold(to) {
            let (receiver, sender) = match self.held.get_disjoint_mut([to, from]) {
                Ok([receiver, sender]) => (receiver, sender.as_deref()),
                Err(_) => (&mut self.held[to], None),
            };
            if let Some(receiver) = receiver
                && !receiver.has_letters()
                && (from == to || !receiver.is_waiting())
            {
                let sender = sender.map(|sender| &**sender.device.regions());
                receiver.receive(&mut self.shared, segment, sender);
                return self.send(to);
            }
        }
        if let Some(sender) = &mut self.held[from]
            && !sender.post(to, actor, segment, &mut self.blanks)
        {
            self.shared.outbox.recycle(segment.take_payload());
        }
    }

    /// Gives a device that the worker holds its oldest letters, as many as it may read in a turn: the receiver copies
    /// the payload. Returns whether there were any, and whether they were as many as that.
    fn read_letters(&mut self, to: usize) -> (bool, bool) {
        let Some(mut local) = self.held[to].take() else {
            return (false, false);
        };
        let any = local.has_letters();
        let Budget {
            mut units,
            mut bytes,
        } = local.device.budget(self.crowd);
        while units > 0
            && bytes > 0
            && let Some(Letter { stamp, mut segment }) = local.take_letter()
        {
            units -= 1;
            bytes = bytes.saturating_sub(segment.payload.len());
            local.receive(&mut self.shared, &mut segment, Some(&*stamp.sender));
            self.send(to);
        }
        self.held[to] = Some(local);
        (any, units == 0 || bytes == 0)
    }

    /// Tells drivers what happened, and passes recordings on.
    fn publish(&mut self) {
        let shop = self.shop;
        self.unpublished = false;
        for index in 0..shop.locals.len() {
            if self.hold(index) {
                self.with(index, |local, shared| publish(&mut local.device, shared));
                self.release();
            } else {
                self.unpublished |= shop.locals[index].is_some() && self.is_home(index);
            }
        }
        for (index, network) in shop.networks.iter().enumerate() {
            if !self.is_home(self.unit_of(index)) {
                continue;
            }
            match network.try_take() {
                Some(mut network) => {
                    let shared = &mut self.shared;
                    network.devices().for_each(|device| publish(device, shared));
                }
                None => self.unpublished = true,
            }
        }
    }

    /// Prepares every device for sleep and sends what that produced. Returns whether there is work after all.
    fn has_work(&mut self) -> bool {
        let shop = self.shop;
        let mut work = shop.inspector.is_asked();
        for (index, local) in shop.locals.iter().enumerate() {
            work |= local.is_some() && !self.hold(index);
            self.with(index, |local, shared| {
                let now = local.now;
                work |= local.device.has_messages() || local.outgoing.is_paused();
                work |= local
                    .device
                    .contained(shared, |device, shared| {
                        let work = device.prepare_sleep(shared, now);
                        device.publish_events();
                        work
                    })
                    .unwrap_or(true);
            });
            work |= self.deliver(index);
            self.with(index, |local, _| local.device.pass_recording_on(true));
            self.release();
        }
        for network in &shop.networks {
            work |= network.take().prepare_sleep(&mut self.shared, self.real);
        }
        let mut locals = shop.locals.iter().flatten();
        work || locals.any(|local| local.take().has_letters())
    }

    /// Answers a question if one waits. Returns whether one did.
    fn answer_question(&mut self) -> bool {
        let shop = self.shop;
        if !shop.inspector.is_asked() {
            return false;
        }
        let _gate = shop.close_gate();
        shop.asked.store(true, Ordering::Relaxed);
        let question = shop.inspector.next();
        let asked = question.is_some();
        if let Some(mut question) = question {
            let mut locals: Vec<_> = shop.locals.iter().flatten().map(Actor::take).collect();
            let mut networks: Vec<_> = shop.networks.iter().map(Actor::take).collect();
            let real = self.time;
            let mut devices: BTreeMap<usize, Timed<'_, Device>> = BTreeMap::new();
            let of_locals = (0..).zip(&shop.locals).filter(|(_, local)| local.is_some());
            for ((index, _), local) in of_locals.zip(&mut locals) {
                let local = &mut **local;
                let now = local.clock.tick(real);
                let it = &mut local.device;
                devices.insert(index, Timed { it, now });
            }
            let (mut switch, mut subnet) = (None, None);
            for network in &mut networks {
                let (on_it, Timed { it, now }) = network.parts(real);
                devices.extend(on_it);
                match it {
                    Medium::Switch(it) => switch = Some(Timed { it, now }),
                    Medium::Subnet(it) => subnet = Some(Timed { it, now }),
                }
            }
            let mut devices: Vec<_> = devices.into_values().collect();
            if let Some(mut switch) = switch {
                let (topic, subnet) = (&mut question.topic, subnet.as_mut());
                let reply = answer(topic, &mut devices, &mut switch, subnet, &mut self.shared);
                question.answer(reply);
            }
        }
        shop.answers.fetch_add(u64::from(asked), Ordering::Release);
        shop.asked.store(false, Ordering::Relaxed);
        asked
    }

    /// Gives units away if the worker has been overloaded for a while.
    fn balance(&mut self, worked: bool) {
        let roster = &self.shop.roster;
        if roster.is_single() {
            return;
        }
        self.turns += 1;
        self.idle_turns += u32::from(!worked);
        if self.shop.restless && worked && self.turns >= RESTLESS_TURNS {
            self.turns = 0;
            self.idle_turns = 0;
            let time = self.real.duration_since(self.period).as_nanos() as usize / 64;
            return roster.scatter(self.number, |unit| time.wrapping_mul(unit + 1) >> 2);
        }
        if self.shop.restless || self.real - self.period < PERIOD || self.turns < LEAST_TURNS {
            return;
        }
        let overloaded = self.idle_turns * IDLE_TURNS < self.turns;
        self.begin_period(self.real);
        roster.set_load(self.number, self.busy.iter().map(|busy| busy.count).sum());
        if !overloaded && (0..self.busy.len()).all(|unit| self.is_home(unit)) {
            return;
        }
        let groups = self.groups();
        if overloaded && groups.len() > 1 {
            roster.share(self.number, &groups);
        }
    }

    fn begin_period(&mut self, real: RealInstant) {
        self.period = real;
        (self.turns, self.idle_turns) = (0, 0);
    }

    /// Returns the units at home, each group of units that exchange much with each other together, with its number of
    /// busy devices. Brings a group that has much for a unit of another worker there.
    fn groups(&mut self) -> Vec<(usize, Vec<usize>)> {
        let now = self.routes.take_pairs();
        let at_home = (0..self.busy.len()).filter(|&unit| self.is_home(unit));
        let group_of = grouped(at_home, &now);
        let pairs = &now & &self.pairs;
        self.pairs = now;
        let mut groups: BTreeMap<usize, (usize, Vec<usize>)> = BTreeMap::new();
        for (&unit, &group) in &group_of {
            let (load, units) = groups.entry(group).or_default();
            *load += self.busy[unit].count;
            units.push(unit);
        }
        for (from, to) in pairs {
            if let Some(group) = group_of.get(&from)
                && !group_of.contains_key(&to)
                && let Some((_, units)) = groups.get(group)
                && self.shop.roster.follow(self.number, units, to)
            {
                groups.remove(group);
            }
        }
        groups.into_values().collect()
    }
}

/// Returns the group of each of `units`: those that exchange much with each other are in one. What a worker drives in
/// one period only is not known for longer, so that period alone decides.
fn grouped(
    units: impl Iterator<Item = usize>,
    pairs: &HashSet<(usize, usize)>,
) -> BTreeMap<usize, usize> {
    let mut group_of: BTreeMap<usize, usize> = units.map(|unit| (unit, unit)).collect();
    for (from, to) in pairs {
        if let (Some(&one), Some(&other)) = (group_of.get(from), group_of.get(to))
            && pairs.contains(&(*to, *from))
        {
            for group in group_of.values_mut().filter(|group| **group == one) {
                *group = other;
            }
        }
    }
    group_of
}

/// Tells the driver of a device what happened, and passes on what was recorded.
fn publish(device: &mut Device, shared: &mut Shared) {
    device.contained(shared, |device, _| device.publish_events());
    device.pass_recording_on(false);
}

#[cfg(test)]
mod tests;
