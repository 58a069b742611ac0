// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults that fire at a time rather than on an occasion, and faults with lasting effects.

use super::{
    Armed, Faults, PROVOKED_PANIC, Seam, Strike,
    later::Parcel,
    occasion::{Direction, Occasion},
    spec::{Args, Place},
    table::{Act, Kind},
};
use crate::{
    cause::Cause,
    event::{names_cq, names_port, names_qp, names_srq},
    memory::Memory,
    resources::Io,
    rnic::Engine,
    state::wire,
    time::Instant,
    turn::Budget,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vrnic_wire::{command::ContextKind, event::EventType, port::Mtu, qp::QpType};

/// Shortest time between two firings.
const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// A lasting effect.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Condition {
    id: u64,
    kind: &'static Kind,
    args: Args,
    until: Option<Instant>,
}

/// All lasting effects.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Conditions {
    all: Vec<Condition>,
    /// Whether they have changed since the device applied them.
    changed: bool,
    /// When a slow device does the next thing.
    pace: Instant,
    /// The MTU that the port has without faults.
    #[serde(with = "wire")]
    mtu: Option<Mtu>,
}

impl Conditions {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty() && !self.changed
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.all.iter().any(|condition| condition.id == id)
    }

    pub(super) fn end(&mut self, id: u64) {
        let before = self.all.len();
        self.all.retain(|condition| condition.id != id);
        self.changed |= self.all.len() != before;
    }

    fn begin(&mut self, condition: Condition) {
        self.all.retain(|old| old.id != condition.id);
        self.all.push(condition);
        self.changed = true;
    }

    fn expire(&mut self, now: Instant) {
        let before = self.all.len();
        self.all
            .retain(|condition| condition.until.is_none_or(|until| now < until));
        self.changed |= self.all.len() != before;
    }

    pub(super) fn next(&self) -> Option<Instant> {
        if self.changed {
            return Some(Instant::default());
        }
        self.all
            .iter()
            .filter_map(|condition| condition.until)
            .min()
    }

    /// Ends all effects because the device is reset, except its removal.
    pub(super) fn rest(&mut self) {
        let mut all = std::mem::take(&mut self.all);
        all.retain(|condition| condition.kind.act == Act::Remove);
        *self = Self {
            all,
            ..Self::default()
        };
    }

    fn find(&self, act: Act) -> Option<&Condition> {
        self.all.iter().find(|condition| condition.kind.act == act)
    }

    /// Returns whether a fault makes the link report a low speed.
    pub(crate) fn is_slow_link(&self) -> bool {
        self.find(Act::Speed).is_some()
    }

    /// Returns whether the device is stuck.
    pub(crate) fn is_stuck(&self) -> bool {
        self.find(Act::Stuck).is_some()
    }
}

impl Faults {
    /// Returns whether the device, which has no engine now, is still removed at this time.
    pub fn is_removed(&mut self, now: Instant) -> bool {
        self.conditions.expire(now);
        self.update();
        self.conditions.find(Act::Remove).is_some()
    }

    /// Returns until when the device is removed, if that is known.
    pub fn removed_until(&self) -> Option<Instant> {
        self.conditions.find(Act::Remove)?.until
    }

    /// Returns how much of `budget` the device may spend now: nothing while it is held back.
    #[inline]
    pub(crate) fn budget(&mut self, budget: Budget, now: Instant) -> Budget {
        if !self.busy {
            return budget;
        }
        if self.holds_back(now) {
            return Budget::default();
        }
        match self.conditions.find(Act::Slow) {
            None => budget,
            Some(slow) => {
                self.conditions.pace = now + slow.args.delay;
                Budget::units(1)
            }
        }
    }

    /// Returns whether the device must do nothing now.
    pub(crate) fn holds_back(&self, now: Instant) -> bool {
        let conditions = &self.conditions;
        self.busy
            && (conditions.is_stuck()
                || conditions.find(Act::Slow).is_some() && now < conditions.pace)
    }

    /// Returns when a slow device that has work continues.
    pub(crate) fn pace(&self) -> Option<Instant> {
        let slow = self.busy && self.conditions.find(Act::Slow).is_some();
        slow.then_some(self.conditions.pace)
    }

    /// Returns the time on the clock that programs see.
    #[inline]
    pub(crate) fn clock(&self, now: Instant) -> Instant {
        if !self.busy {
            return now;
        }
        let ahead = self.conditions.find(Act::Clock);
        ahead.map_or(now, |clock| now + clock.args.delay)
    }

    /// Takes a fault that is due, with its place.
    fn next_due(&mut self, now: Instant) -> Option<(Strike, Place)> {
        let is_due = |fault: &Armed| {
            fault.spec.kind.seam() == Seam::Time && fault.due().is_some_and(|due| due <= now)
        };
        let index = self.armed.iter().position(is_due)?;
        let fault = &mut self.armed[index];
        let moment = &fault.spec.moment;
        let interval = moment.interval.max(MIN_INTERVAL);
        fault.next = Some(now + interval);
        fault.seen += 1;
        let place = fault.spec.place.clone();
        Some((self.fire(index, now, &Occasion::new(Seam::Time)), place))
    }
}

impl Armed {
    /// Returns when it fires on its own, unless it waits for something.
    pub(super) fn due(&self) -> Option<Instant> {
        let since = self.since?;
        Some(self.next.unwrap_or(since + self.spec.moment.after))
    }
}

impl Engine {
    /// Executes actions of faults that were delayed until now, and faults that fire on their own.
    #[cold]
    pub(crate) fn advance_faults<M: Memory>(&mut self, io: &mut Io<'_, M>) {
        self.resources.faults.conditions.expire(io.now);
        while let Some((strike, place)) = self.resources.faults.next_due(io.now) {
            self.resources.explain_strike(&strike);
            if strike.kind.is_condition() {
                let condition = Condition {
                    id: strike.id,
                    kind: strike.kind,
                    args: strike.args,
                    until: strike.lasts.map(|lasts| io.now + lasts),
                };
                self.resources.faults.conditions.begin(condition);
            } else {
                self.happen(strike.kind.act, &place, io);
            }
        }
        self.heed_conditions();
        while !self.resources.faults.conditions.is_stuck()
            && let Some(parcel) = self.resources.faults.later.pop_due(io.now)
        {
            self.release(parcel, io);
        }
        self.resources.faults.update();
    }

    /// Applies the lasting effects to the port.
    fn heed_conditions(&mut self) {
        let conditions = &mut self.resources.faults.conditions;
        if !std::mem::replace(&mut conditions.changed, false) {
            return;
        }
        let down = conditions.find(Act::LinkDown).is_some();
        let hidden = conditions.find(Act::HideGid).map_or(0..0, |found| {
            let one = found.args.value;
            let one = one.map(|index| u32::try_from(index).unwrap_or(u32::MAX));
            one.map_or(0..u32::MAX, |index| index..index.saturating_add(1))
        });
        let less = conditions.find(Act::Mtu).and_then(|found| found.args.mtu);
        let usual = conditions.mtu.take();
        if let Some(usual) = usual {
            self.resources.mtu = usual;
        }
        if let Some(less) = less {
            let usual = self.resources.mtu;
            self.resources.faults.conditions.mtu = Some(usual);
            if less.bytes() < usual.bytes() {
                self.resources.mtu = less;
            }
        }
        self.resources.gids.hide(hidden);
        self.change_port(|port| port.broken = down);
    }

    /// Executes a delayed action.
    fn release<M: Memory>(&mut self, parcel: Parcel, io: &mut Io<'_, M>) {
        match parcel {
            Parcel::Packet(Direction::Out, segment) => {
                if self.resources.port.is_active() {
                    io.outbox.segments.push(segment);
                } else {
                    io.outbox.recycle(segment.payload);
                }
            }
            Parcel::Packet(Direction::In, mut segment) => self.accept(&mut segment, io),
            Parcel::Completion(cqn, cqe, solicited) => {
                self.resources.write_completion(cqn, cqe, solicited, io);
            }
            Parcel::Notice(cqn) => self.resources.raise_notice(cqn),
            Parcel::Doorbell(context, slot) => {
                self.ring_now(context, slot);
            }
        }
    }

    /// Returns the queue pairs that a fault applies to: if it names none, all those of programs. One with an
    /// indirection table has no state that could change.
    fn chosen_qps(&self, place: &Place) -> Vec<u32> {
        let all = self.qps.table.page(0, usize::MAX).into_iter().flatten();
        let special = [&self.qps.smi, &self.qps.gsi];
        let gsi = special.into_iter().filter_map(|qp| qp.as_deref());
        let subjects = gsi
            .chain(all.map(|(_, qp)| qp.as_ref()))
            .map(crate::qp::Qp::subject)
            .filter(|qp| qp.qp_type != QpType::ReceiveScaling);
        subjects
            .filter(|qp| !(qp.kernel && place.names_nobody()))
            .filter(|qp| place.has(&Occasion::of_qp(Seam::Time, *qp)))
            .map(|qp| qp.qpn)
            .collect()
    }

    /// Returns whether a fault that names the object `wanted`, if any, applies to this object, which is not a queue
    /// pair.
    fn is_chosen(&self, wanted: Option<u32>, number: u32, context: u32, place: &Place) -> bool {
        self.contexts.get(context).is_some_and(|context| {
            let spared = context.kind == ContextKind::Kernel && place.names_nobody();
            !spared && wanted.is_none_or(|wanted| wanted == number) && place.is_of(&context.owner)
        })
    }

    fn chosen_cqs(&self, place: &Place) -> Vec<u32> {
        let all = self.resources.cqs.page(0, usize::MAX).into_iter().flatten();
        all.filter(|(number, cq)| self.is_chosen(place.cq, *number, cq.context, place))
            .map(|(number, _)| number)
            .collect()
    }

    fn chosen_srqs(&self, place: &Place) -> Vec<u32> {
        let srqs = &self.resources.srqs;
        let all = srqs.page(0, usize::MAX).into_iter().flatten();
        all.filter(|(number, srq)| self.is_chosen(place.srq, *number, srq.context, place))
            .map(|(number, _)| number)
            .collect()
    }

    /// Executes a fault that fires on its own.
    fn happen<M: Memory>(&mut self, act: Act, place: &Place, io: &mut Io<'_, M>) {
        match act {
            Act::Raise(event) => {
                let numbers = if names_qp(event) {
                    self.chosen_qps(place)
                } else if names_cq(event) {
                    self.chosen_cqs(place)
                } else if names_srq(event) {
                    self.chosen_srqs(place)
                } else if names_port(event) || event != EventType::DeviceFatal {
                    vec![1]
                } else {
                    vec![0]
                };
                for number in numbers {
                    let resources = &mut self.resources;
                    let cause = Some(Cause::Provoked);
                    resources
                        .async_events
                        .raise(event, number, cause, &mut resources.counters);
                }
            }
            Act::Break(EventType::CqError) => {
                for cqn in self.chosen_cqs(place) {
                    self.resources.fail_cq(cqn, Cause::Provoked, io.memory);
                }
            }
            Act::Break(EventType::SrqError) => {
                for srqn in self.chosen_srqs(place) {
                    self.resources.fail_srq(srqn, Cause::Provoked);
                }
            }
            Act::Break(_) => {
                for qpn in self.chosen_qps(place) {
                    self.act(qpn, |qp, resources| qp.fail(Cause::Provoked, resources, io));
                    self.qps.schedule(qpn);
                }
            }
            Act::BreakQp => {
                for qpn in self.chosen_qps(place) {
                    self.act(qpn, |qp, _| qp.enter_error(io));
                    self.qps.schedule(qpn);
                }
            }
            Act::Fail => self.failing = true,
            Act::Kill => self.killing = true,
            // The device's process contains the panic, which is what this fault tests.
            Act::Panic => panic!("{PROVOKED_PANIC}"),
            _ => {}
        }
    }
}

impl Engine {
    /// Returns the faults of the device.
    pub fn faults(&self) -> &Faults {
        &self.resources.faults
    }

    /// Returns the faults of the device, to arm or clear some. The caller must call [`advance`](Self::advance)
    /// afterwards.
    pub fn faults_mut(&mut self) -> &mut Faults {
        &mut self.resources.faults
    }

    /// Replaces the faults of the device with `faults`: those of the device before a reset.
    pub fn set_faults(&mut self, faults: Faults) {
        self.resources.faults = faults;
    }

    /// Takes the faults of the device, which is left without any.
    pub fn take_faults(&mut self) -> Faults {
        std::mem::take(&mut self.resources.faults)
    }

    /// Returns whether a fault wants the process of the device to end.
    pub fn is_killing(&self) -> bool {
        self.killing
    }

    /// Returns whether a fault removed the device from its slot: nothing is executed or answered any more.
    pub fn is_removed(&self) -> bool {
        self.resources.faults.conditions.find(Act::Remove).is_some()
    }

    /// Returns whether a fault made the device fail. It must then report that it needs a reset.
    pub fn is_failing(&self) -> bool {
        self.failing
    }
}
