// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults on demand: make the device, its wire or its commands fail on request.
//!
//! A fault is an input of the device, like the time. [`Faults`] is empty unless faults are armed. The rest of the
//! engine consults it only at a few seams ([`Seam`]): when a packet leaves or arrives, when the responder decides,
//! before a completion is written, a command answered or an event raised, when a doorbell rings, when a timer is set,
//! and as time passes. Each such moment is an occasion. The occasions that match a fault's description are numbered
//! from 1. Whether the fault fires on one depends only on its seed and that number, so the same faults and the same
//! traffic always give the same firings.
//!
//! [`table`] lists and describes all faults. [`spec`] parses descriptions such as `drop opcode=ack nth=3`. `wire`
//! implements what faults do to packets, `field` the packet fields that they change, and `seam` and `timed` what they
//! do to everything else. `later` holds what faults delay. [`mod@line`] has the faults of a switch port, through which
//! other devices' packets pass.

mod field;
pub(crate) mod later;
pub mod line;
mod occasion;
mod seam;
pub mod spec;
pub mod table;
mod timed;
mod wire;

pub use crate::device::Armory;
use crate::time::Instant;
use later::Later;
pub use line::Line;
pub use occasion::{Direction, PacketKind, Seam};
pub(crate) use occasion::{Occasion, Subject};
use serde::{Deserialize, Serialize};
use spec::Moment;
pub use spec::{BadSpec, Spec};
use std::{collections::VecDeque, time::Duration};
pub use table::Kind;
pub use timed::Conditions;
use vrnic_wire::event::EventType;

/// Largest number of armed faults of a device.
pub const MAX_ARMED: usize = 64;

/// Message of the panic that a fault causes in the engine.
pub const PROVOKED_PANIC: &str = "an injected fault makes the engine panic";

/// Number of finished faults that are still listed.
const MAX_DONE: usize = 64;

/// Number of firings that are remembered.
const MAX_LOG: usize = 4096;

/// How a reply of the device's control queue is delivered.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Delivery {
    /// It goes out immediately.
    #[default]
    Now,
    /// It goes out after this time.
    Late(Duration),
    /// It goes out twice.
    Twice,
    /// It never goes out.
    Never,
}

/// One firing of a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Firing {
    /// Number of the firing, counted from 0 for each device.
    pub number: u64,
    /// Time of the firing.
    pub time: Instant,
    /// Number of the fault.
    pub id: u64,
    /// Name of the fault's kind.
    pub name: &'static str,
    /// Number of the occasion among those that matched the fault, from 1.
    pub position: u64,
    /// Number of the queue pair; 0 if none was affected.
    pub qpn: u32,
    /// Number of its peer; 0 if there is none.
    pub peer_qpn: u32,
    /// Number of the completion queue; 0 if none was affected.
    pub cqn: u32,
    /// PSN of the packet.
    pub psn: Option<u32>,
    /// Direction of the packet.
    pub direction: Option<Direction>,
    /// The occasion, in words.
    pub what: String,
}

/// Progress of a fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Progress {
    /// It waits for what its description names: another fault that must fire, or an event that must be raised.
    Waiting,
    /// It may fire.
    Armed,
    /// It has fired, and its effect lasts.
    Active,
    /// It will not fire any more.
    Done,
}

/// A fault in a list.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listed {
    /// Its number, from 1.
    pub id: u64,
    /// Its description.
    pub spec: Spec,
    /// Its progress.
    pub progress: Progress,
    /// Number of occasions that matched.
    pub seen: u64,
    /// Number of firings.
    pub fired: u64,
}

/// An armed fault.
#[derive(Debug, Serialize, Deserialize)]
struct Armed {
    id: u64,
    spec: Spec,
    /// When it was armed, or when what it waits for happened. None while it waits.
    since: Option<Instant>,
    seen: u64,
    fired: u64,
    /// Occasions left in a burst.
    burst: u64,
    /// When it fires next on its own.
    next: Option<Instant>,
    /// When the line that it slows down becomes free.
    free: Instant,
}

/// A firing of a fault: what to do.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Strike {
    pub(crate) id: u64,
    pub(crate) kind: &'static Kind,
    pub(crate) args: spec::Args,
    /// Random value drawn for this firing.
    pub(crate) chance: u64,
    /// How long its effect lasts; `None` means until it is cleared.
    pub(crate) lasts: Option<Duration>,
    /// When the packet arrives if the fault slows the line down.
    pub(crate) due: Option<Instant>,
    /// Whether it is in the log, and so in captures.
    pub(crate) is_logged: bool,
    /// Numbers of the queue pair and of its peer; 0 if none was affected.
    pub(crate) qpn: u32,
    pub(crate) peer_qpn: u32,
    /// PSN of the packet.
    pub(crate) psn: Option<u32>,
}

/// The faults of a device. Empty by default.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Whether any fault is armed or in effect: the only field that is tested while there are none.
    busy: bool,
    armed: Vec<Armed>,
    done: VecDeque<Listed>,
    /// Youngest firings. They influence no decision.
    #[serde(skip)]
    log: VecDeque<Firing>,
    /// Number of firings so far.
    fired: u64,
    /// Number of the last fault.
    last_id: u64,
    /// The queue pair for which the engine acts; none between calls.
    #[serde(skip)]
    acting: Option<Subject>,
    /// Delayed actions.
    pub(crate) later: Later,
    /// Lasting effects.
    pub(crate) conditions: Conditions,
    /// Queue pairs whose completion was turned into an error and that must enter the error state, with whether it was a
    /// send completion.
    victims: Vec<(u32, bool)>,
    /// What happens to the command that is being executed.
    command: Option<seam::CommandFate>,
    delivery: Delivery,
}

impl Faults {
    /// Returns whether any fault is armed, lasting or delayed.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns whether no fault is armed, lasting or delayed, so that the device behaves normally.
    pub fn is_idle(&self) -> bool {
        !self.busy
    }

    fn update(&mut self) {
        self.busy = !self.armed.is_empty()
            || !self.later.is_empty()
            || !self.conditions.is_empty()
            || !self.victims.is_empty()
            || self.command.is_some();
    }

    /// Prepares a description to be armed now. If the fault that it waits for has fired, it waits no longer, and its
    /// text does not name that fault any more: what is done is not part of a recording.
    ///
    /// # Errors
    ///
    /// It waits for a fault that will never fire.
    pub fn ready(&self, spec: Spec) -> Result<Spec, BadSpec> {
        let Some(id) = spec.moment.after_fault else {
            return Ok(spec);
        };
        let armed = self.armed.iter().find(|fault| fault.id == id);
        let armed = armed.map(|fault| (fault.fired, true));
        let done = || self.done.iter().find(|fault| fault.id == id);
        match armed.or_else(|| done().map(|fault| (fault.fired, false))) {
            Some((0, true)) => Ok(spec),
            Some((0, false)) => Err(BadSpec::new(format!(
                "`after-fault={id}`: fault {id} is done and has never fired"
            ))),
            Some(_) => Ok(spec.without_wait()),
            None if (1..=self.last_id).contains(&id) => Err(BadSpec::new(format!(
                "`after-fault={id}`: fault {id} was cleared, or was done too long ago"
            ))),
            None => Err(BadSpec::new(format!(
                "`after-fault={id}`: no fault has the number {id}"
            ))),
        }
    }

    /// Arms a fault and returns its number. The fault takes effect with the next call of the device.
    ///
    /// # Errors
    ///
    /// Too many faults are armed, or it waits for a fault that will never fire.
    pub fn arm(&mut self, spec: Spec, now: Instant) -> Result<u64, BadSpec> {
        if self.armed.len() >= MAX_ARMED {
            return Err(BadSpec::new(format!(
                "{MAX_ARMED} faults are armed already; clear some"
            )));
        }
        let spec = self.ready(spec)?;
        self.last_id += 1;
        self.armed.push(Armed {
            id: self.last_id,
            since: (!spec.moment.waits()).then_some(now),
            spec,
            seen: 0,
            fired: 0,
            burst: 0,
            next: None,
            free: Instant::default(),
        });
        self.update();
        Ok(self.last_id)
    }

    /// Disarms one fault, or all, and returns how many there were. Lasting effects end with the next call of the
    /// device.
    pub fn clear(&mut self, id: Option<u64>) -> usize {
        let before = self.armed.len() + self.done.len();
        let keeps = |other: u64| id.is_some_and(|id| id != other);
        let mut ended: Vec<u64> = Vec::new();
        self.armed.retain(|fault| {
            let keep = keeps(fault.id);
            if !keep {
                ended.push(fault.id);
            }
            keep
        });
        self.done.retain(|fault| {
            let keep = keeps(fault.id);
            if !keep {
                ended.push(fault.id);
            }
            keep
        });
        let count = before - self.armed.len() - self.done.len();
        for id in &ended {
            self.conditions.end(*id);
            self.abandon(*id);
        }
        self.update();
        count
    }

    /// Returns all faults that are or were armed, oldest first.
    pub fn list(&self) -> Vec<Listed> {
        let armed = self.armed.iter().map(|fault| Listed {
            id: fault.id,
            spec: fault.spec.clone(),
            progress: match fault.since {
                None => Progress::Waiting,
                Some(_) if self.conditions.has(fault.id) => Progress::Active,
                Some(_) => Progress::Armed,
            },
            seen: fault.seen,
            fired: fault.fired,
        });
        let done = self.done.iter().cloned().map(|done| Listed {
            progress: if self.conditions.has(done.id) {
                Progress::Active
            } else {
                Progress::Done
            },
            ..done
        });
        let mut all: Vec<Listed> = done.chain(armed).collect();
        all.sort_by_key(|fault| fault.id);
        all
    }

    /// Returns the number of firings so far.
    pub fn fired(&self) -> u64 {
        self.fired
    }

    /// Returns the youngest firings, oldest first. Of a kind that fires on each packet or timer, it has only a fault's
    /// first, second, fourth, eighth firing and so on.
    pub fn log(&self) -> impl DoubleEndedIterator<Item = &Firing> {
        self.log.iter()
    }

    /// Brings the faults into their state after a reset of the device: they stay armed, but delayed actions and lasting
    /// effects end, except the removal of the device.
    pub fn rest(&mut self) {
        self.later = Later::default();
        self.conditions.rest();
        self.victims.clear();
        self.acting = None;
        self.command = None;
        self.delivery = Delivery::Now;
        for fault in &mut self.armed {
            fault.burst = 0;
        }
        self.update();
    }

    /// Sets the queue pair for which the engine acts from now on.
    pub(crate) fn act_for(&mut self, acting: Option<Subject>) {
        self.acting = acting;
    }

    /// Returns whether a send completion of the queue pair was turned into an error of which the queue pair does not
    /// know yet. The send completions that follow are flushed, signaled or not.
    #[inline]
    pub(crate) fn flushes_sends(&self, qpn: u32) -> bool {
        self.busy && self.victims.contains(&(qpn, true))
    }

    /// Forgets what is delayed for a queue pair that is reset or destroyed. Its packets stay in flight.
    pub(crate) fn forget_qp(&mut self, qpn: u32) {
        self.victims.retain(|(victim, _)| *victim != qpn);
        self.later.forget_qp(qpn);
    }

    /// Takes a queue pair that has to enter the error state, with whether a send is the reason.
    pub(crate) fn next_victim(&mut self) -> Option<(u32, bool)> {
        let victim = self.victims.pop();
        self.update();
        victim
    }

    /// Returns when something is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if !self.busy {
            return None;
        }
        let timed = self.armed.iter().filter_map(|fault| {
            let timed = fault.spec.kind.seam() == Seam::Time;
            fault.due().filter(|_| timed)
        });
        // Delayed actions wait while the device is stuck.
        let later = self.later.next().filter(|_| !self.conditions.is_stuck());
        timed.chain(later).chain(self.conditions.next()).min()
    }

    /// Finds the fault that fires on an occasion: the first that matches takes the occasion.
    pub(crate) fn strike(&mut self, now: Instant, mut occasion: Occasion) -> Option<Strike> {
        occasion.qp = occasion.qp.or(self.acting);
        let mut index = 0;
        while let Some(fault) = self.armed.get_mut(index) {
            if fault.spec.kind.seam() != occasion.seam || !fault.fires(now, &occasion) {
                if fault.is_over(now) {
                    self.finish(index);
                } else {
                    index += 1;
                }
                continue;
            }
            return Some(self.fire(index, now, &occasion));
        }
        None
    }

    /// Fires the fault at `index`.
    fn fire(&mut self, index: usize, now: Instant, occasion: &Occasion) -> Strike {
        let fault = &mut self.armed[index];
        fault.fired += 1;
        let (spec, position) = (&fault.spec, fault.seen);
        let mut strike = Strike {
            id: fault.id,
            kind: spec.kind,
            args: spec.args,
            chance: spec.moment.draw(position, 1),
            lasts: spec.moment.lasts,
            due: None,
            is_logged: !spec.kind.is_frequent() || fault.fired.is_power_of_two(),
            qpn: occasion.qp.map_or(0, |qp| qp.qpn),
            peer_qpn: occasion.qp.map_or(0, |qp| qp.peer),
            psn: occasion.psn,
        };
        if let Some(rate) = spec.args.rate {
            let bytes = occasion.size.unwrap_or(0) + HEADERS;
            let time = Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / rate);
            fault.free = fault.free.max(now) + time;
            strike.due = Some(fault.free);
        }
        let (id, spent) = (fault.id, fault.fired >= fault.spec.moment.count);
        if strike.is_logged {
            self.remember(now, &strike, position, occasion);
        }
        self.fired += 1;
        if spent {
            self.finish(index);
        }
        self.wake(now, |moment| moment.after_fault == Some(id));
        strike
    }

    /// Starts the faults that wait for this event, which the driver has been given.
    pub fn event_given(&mut self, event_type: EventType, now: Instant) {
        self.wake(now, |moment| moment.after_event == Some(event_type));
    }

    /// Lets the faults that wait, and that `is_awaited` selects, wait no longer.
    fn wake(&mut self, now: Instant, is_awaited: impl Fn(&Moment) -> bool) {
        for fault in &mut self.armed {
            if fault.since.is_none() && is_awaited(&fault.spec.moment) {
                fault.since = Some(now);
            }
        }
    }

    /// Retires the faults that wait for a fault that will never fire.
    fn abandon(&mut self, id: u64) {
        let waits =
            |fault: &Armed| fault.since.is_none() && fault.spec.moment.after_fault == Some(id);
        while let Some(index) = self.armed.iter().position(waits) {
            self.finish(index);
        }
    }

    /// Adds a firing to the log.
    fn remember(&mut self, time: Instant, strike: &Strike, position: u64, on: &Occasion) {
        if self.log.len() == MAX_LOG {
            self.log.pop_front();
        }
        self.log.push_back(Firing {
            number: self.fired,
            time,
            id: strike.id,
            name: strike.kind.name,
            position,
            qpn: strike.qpn,
            peer_qpn: strike.peer_qpn,
            cqn: on.cqn.unwrap_or(0),
            psn: strike.psn,
            direction: on.direction,
            what: on.to_string(),
        });
    }

    /// Retires the fault at `index`, which will not fire any more, and those that wait for it if it never has.
    fn finish(&mut self, index: usize) {
        let fault = self.armed.remove(index);
        if fault.fired == 0 {
            self.abandon(fault.id);
        }
        if self.done.len() == MAX_DONE {
            self.done.pop_front();
        }
        self.done.push_back(Listed {
            id: fault.id,
            spec: fault.spec,
            progress: Progress::Done,
            seen: fault.seen,
            fired: fault.fired,
        });
        self.update();
    }
}

/// State of faults at rest as a recording needs it to continue from there.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    /// Number of the last fault.
    pub last_id: u64,
    /// Number of firings so far.
    pub fired: u64,
    /// Armed faults.
    pub armed: Vec<SavedFault>,
}

/// An armed fault and its progress.
#[derive(Clone, Debug)]
pub struct SavedFault {
    /// Its description.
    pub text: String,
    /// Its number.
    pub id: u64,
    /// When it was armed, or when what it waits for happened. None while it waits.
    pub since: Option<Instant>,
    /// Number of occasions that matched.
    pub seen: u64,
    /// Number of firings.
    pub fired: u64,
    /// When it fires next on its own.
    pub next: Option<Instant>,
    /// When the line that it slows down becomes free.
    pub free: Instant,
}

impl Faults {
    /// Returns the armed faults. For faults that are not [at rest](Self::rest), delayed and lasting effects are
    /// missing.
    pub fn saved(&self) -> Saved {
        let armed = self.armed.iter().map(|fault| SavedFault {
            text: fault.spec.to_string(),
            id: fault.id,
            since: fault.since,
            seen: fault.seen,
            fired: fault.fired,
            next: fault.next,
            free: fault.free,
        });
        Saved {
            last_id: self.last_id,
            fired: self.fired,
            armed: armed.collect(),
        }
    }

    /// Restores faults; `None` if a description is not valid or there are too many.
    pub fn from_saved(saved: &Saved) -> Option<Self> {
        if saved.armed.len() > MAX_ARMED {
            return None;
        }
        let armed = saved.armed.iter().map(|fault| {
            Some(Armed {
                id: fault.id,
                spec: fault.text.parse().ok()?,
                since: fault.since,
                seen: fault.seen,
                fired: fault.fired,
                burst: 0,
                next: fault.next,
                free: fault.free,
            })
        });
        let mut faults = Self {
            armed: armed.collect::<Option<_>>()?,
            fired: saved.fired,
            last_id: saved.last_id,
            ..Self::default()
        };
        faults.update();
        Some(faults)
    }
}

/// Bytes of a packet besides its payload, on a slow line: Ethernet, IPv6, UDP, BTH, ICRC and gap.
const HEADERS: u64 = 14 + 40 + 8 + 12 + 4 + 24;

impl Armed {
    /// Returns whether it fires on an occasion of its seam. An occasion that matches is counted.
    fn fires(&mut self, now: Instant, occasion: &Occasion) -> bool {
        if self.since.is_none() || !self.spec.place.has(occasion) {
            return false;
        }
        let after = self.spec.moment.after;
        let early = !after.is_zero() && self.since.is_none_or(|since| now < since + after);
        if early || self.is_over(now) {
            return false;
        }
        if self
            .spec
            .args
            .limit
            .is_some_and(|limit| occasion.objects.is_none_or(|objects| objects < limit))
        {
            return false;
        }
        // A packet without the field cannot be changed.
        let field = self.spec.args.field;
        let has =
            |(body, service, lids)| field.is_none_or(|field| field.is_in(&body, service, lids));
        if !occasion.headers.is_none_or(has) {
            return false;
        }
        self.seen += 1;
        if self.burst > 0 {
            self.burst -= 1;
            return true;
        }
        let hit = self.spec.moment.hits(self.seen);
        if hit {
            self.burst = self.spec.moment.burst - 1;
        }
        hit
    }

    /// Returns whether its time is over.
    fn is_over(&self, now: Instant) -> bool {
        let moment = &self.spec.moment;
        self.spec.kind.seam() != Seam::Time
            && self
                .since
                .zip(moment.lasts)
                .is_some_and(|(since, lasts)| now >= since + moment.after + lasts)
    }
}
