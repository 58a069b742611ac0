// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks of the expected results of a flow.

use super::{End, Flow, Message, Posted, RECEIVE, SETUP, pattern};
use crate::{
    device::{Device, SHARED_NAME},
    fault::Known,
    plan::{Deed, Kind},
};
use vrnic_engine::testing::Completion;
use vrnic_wire::{
    completion::{Opcode, Status, flags},
    qp::{QpState, QpType},
    work::GRH_LENGTH,
};

/// What may have affected a flow.
#[derive(Clone, Debug)]
pub struct Circumstances {
    /// Whether the network carried its packets without incident.
    pub is_sound: bool,
    /// Faults that affected it.
    pub faults: Vec<&'static Known>,
}

/// Largest number of packets for a queue pair that wait for pages.
const PACKETS_KEPT: usize = 64;

/// Excuse for a flow that fails: its program makes an invalid request.
const WRONG: &str = "a wrong request";

impl Flow {
    /// Handles a completion of this flow, or of one of its messages in a shared receive queue; then `shared` is the
    /// received message.
    ///
    /// # Panics
    ///
    /// The completion must not happen, or memory does not match it.
    pub fn complete(
        &mut self,
        side: usize,
        done: Completion,
        shared: Option<&[u8]>,
        devices: &[Device],
        loses: bool,
    ) {
        let end = &self.ends[side];
        if done.wr_id & SHARED_NAME != 0 || done.wr_id & RECEIVE != 0 {
            let is_own = done.wr_id & !(RECEIVE - 1) == self.owner(side) | RECEIVE;
            assert!(is_own || shared.is_some(), "{done:?} was never posted");
            if done.status == Status::Success {
                self.receive(side, done, shared, loses);
            }
            self.ends[side].receives.push(done);
            return;
        }
        let last = end.sends.last().map(|last| last.wr_id);
        let place = |name| end.posted.iter().position(|posted| posted.name == name);
        let at = place(done.wr_id);
        assert!(
            at.is_some() && at > last.and_then(place),
            "{done:?} after {last:?}: twice, or out of order, or never posted"
        );
        let posted = end.posted[at.unwrap_or_default()];
        if done.status == Status::Success {
            assert!(posted.signaled, "{posted:?} completes with {done:?}");
            let found = (done.opcode, done.length as usize);
            assert_eq!(
                found,
                (posted.opcode, posted.length),
                "{posted:?}: {done:?}"
            );
            assert!(
                !matches!(posted.kind, Kind::Wrong(_)),
                "{posted:?} succeeds"
            );
            if self.is_reliable() {
                self.check_effect(side, &posted, true);
            }
        }
        let is_here = devices[self.ends[side].device].incarnation == self.ends[side].incarnation;
        let end = &mut self.ends[side];
        if posted.slot == SETUP
            && done.status == Status::Success
            && is_here
            && let Some(window) = &mut end.window
        {
            window.is_given = true;
        }
        end.sends.push(done);
    }

    /// Returns whether more packets may wait for pages of an end than its device keeps. Nothing sends them again.
    fn may_overflow(&self, side: usize) -> bool {
        let packets = self.plan.ops[1 - side].iter().map(|op| {
            let mtu = self.plan.mtu.bytes() as usize;
            op.length.div_ceil(mtu).max(1)
        });
        !self.is_reliable()
            && self.plan.paging[side].is_some()
            && packets.sum::<usize>() > PACKETS_KEPT
    }

    /// Returns whether some memory will never get pages.
    fn lacks_pages(&self) -> bool {
        self.ends.iter().any(|end| end.lacks_pages)
    }

    fn is_reliable(&self) -> bool {
        self.plan.is_reliable()
    }

    /// Handles a received message.
    fn receive(&mut self, side: usize, done: Completion, shared: Option<&[u8]>, loses: bool) {
        let messages = &self.ends[1 - side].messages;
        let index = if self.is_reliable() {
            let next = self.ends[side].came.last().map_or(0, |last| last + 1);
            let mut index = next;
            // Completions of earlier messages may be lost.
            while loses
                && index + 1 < messages.len()
                && self.wrong_message(side, index, &done, shared).is_some()
            {
                index += 1;
            }
            index
        } else {
            let immediate = Some(done.immediate).filter(|_| done.flags & flags::IMMEDIATE != 0);
            let is_it = |message: &Message| Some(message.immediate) == immediate;
            messages.iter().position(is_it).unwrap_or(usize::MAX)
        };
        if let Some(why) = self.wrong_message(side, index, &done, shared) {
            panic!(
                "end {side} receives {done:?}, which is not message {index} of {messages:?}: {why}"
            );
        }
        self.ends[side].came.push(index);
    }

    /// Returns in what way a received message differs from the one sent.
    fn wrong_message(
        &self,
        side: usize,
        index: usize,
        done: &Completion,
        shared: Option<&[u8]>,
    ) -> Option<String> {
        let Some(message) = self.ends[1 - side].messages.get(index) else {
            return Some("it was not sent".into());
        };
        let datagram = self.plan.qp_type == QpType::UnreliableDatagram;
        let before = if datagram { GRH_LENGTH } else { 0 };
        if done.length as usize != message.length + before {
            return Some(format!("length {}", message.length + before));
        }
        let (immediate, flag) = match message.kind {
            Kind::SendInvalidate => (message.immediate, flags::INVALIDATED),
            Kind::Send => (0, 0),
            _ => (message.immediate, flags::IMMEDIATE),
        };
        let found = done.flags & (flags::INVALIDATED | flags::IMMEDIATE);
        if found != flag || (flag != 0 && done.immediate != immediate) {
            return Some(format!("immediate {immediate:#x}, flags {flag:#x}"));
        }
        let opcode = match message.kind {
            Kind::WriteImmediate => Opcode::ReceiveWriteWithImmediate,
            _ => Opcode::Receive,
        };
        if done.opcode != opcode {
            return Some(format!("{opcode:?}"));
        }
        let layout = self.layout;
        let arena = &self.ends[side].mr.arena;
        let bytes = match (message.kind, shared) {
            (Kind::WriteImmediate, _) => arena.get(layout.written(message.slot), message.length),
            (_, Some(bytes)) => bytes[before..][..message.length].to_vec(),
            (_, None) => {
                let receive = (done.wr_id & (RECEIVE - 1)) as usize;
                arena.get(layout.received(receive) + before, message.length)
            }
        };
        let sent = |at| pattern(self.plan.number, 1 - side, message.slot, at);
        let wrong = (0..message.length).find(|&at| bytes[at] != sent(at))?;
        Some(format!(
            "byte {wrong} is {}, not {}",
            bytes[wrong],
            sent(wrong)
        ))
    }

    /// Checks the effect of a request on memory. The effect must be complete if `good`.
    fn check_effect(&self, side: usize, posted: &Posted, good: bool) {
        let layout = self.layout;
        let (own, peer) = (&self.ends[side].mr.arena, &self.ends[1 - side].mr.arena);
        let flow = self.plan.number;
        let moved = |found: Vec<u8>, from: usize| {
            for (at, byte) in found.into_iter().enumerate() {
                let sent = pattern(flow, from, posted.slot, at);
                let fits = at < posted.length && (byte == sent || (!good && byte == 0))
                    || at >= posted.length && byte == 0;
                assert!(
                    fits,
                    "byte {at} of {posted:?} of end {side} is {byte}; {sent} was sent"
                );
            }
        };
        match posted.kind {
            Kind::Write | Kind::WriteImmediate => {
                moved(peer.get(layout.written(posted.slot), layout.slot), side);
            }
            Kind::Read => moved(own.get(layout.read(posted.slot), layout.slot), 1 - side),
            Kind::Add | Kind::Swap if good => {
                let bytes = own.get(layout.fetched(posted.slot), 8);
                let fetched = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
                assert_eq!(
                    fetched, posted.fetches,
                    "{posted:?} of end {side} fetches another value: done before, or not in order"
                );
            }
            Kind::Wrong(_) => {
                let found = peer.get(layout.written(posted.slot), layout.slot);
                assert!(
                    found.iter().all(|byte| *byte == 0),
                    "{posted:?} of end {side} changed memory"
                );
            }
            _ => {}
        }
    }

    /// Checks everything and destroys all objects.
    ///
    /// # Panics
    ///
    /// An expected result is missing, or an unexpected one occurred.
    pub fn close(self, devices: &mut [Device], circumstances: &Circumstances) {
        for side in 0..2 {
            self.check(side, devices, circumstances);
        }
        self.destroy(devices);
    }

    /// Returns why the flow may fail, in words; `None` if it must not.
    fn excuse(&self, devices: &[Device], circumstances: &Circumstances) -> Option<&'static str> {
        let wrong = |posted: &Posted| matches!(posted.kind, Kind::Wrong(_));
        let reset = |end: &End| devices[end.device].incarnation != end.incarnation;
        let faults = &circumstances.faults;
        if !circumstances.is_sound {
            Some("the network")
        } else if faults.iter().any(|fault| fault.is_harmful()) {
            Some("a fault")
        } else if self.lacks_pages() {
            Some("missing pages")
        } else if (0..2).any(|side| self.may_overflow(side)) {
            Some("pages that come late")
        } else if self.ends.iter().any(|end| end.posted.iter().any(wrong)) {
            Some(WRONG)
        } else if self.plan.deed.is_some() {
            Some("an action")
        } else if self.ends.iter().any(reset) {
            Some("a reset")
        } else {
            None
        }
    }

    fn check(&self, side: usize, devices: &[Device], circumstances: &Circumstances) {
        let end = &self.ends[side];
        let what = format!(
            "flow {}, end {side} (QP {} of device {}): {:?}; sends {:?}; receives {:?}; posted {:?}",
            self.plan.number,
            end.qp.qpn,
            end.device,
            circumstances,
            brief(&end.sends),
            brief(&end.receives),
            end.posted
        );
        let excuse = self.excuse(devices, circumstances);
        let loses = circumstances.faults.iter().any(|fault| fault.loses);
        let lies = circumstances.faults.iter().any(|fault| fault.lies);
        let lives = self.lives(side, devices);
        // Up to the first failure, only sends with a CQE; from then on, all sends.
        let failed = end
            .sends
            .iter()
            .position(|done| done.status != Status::Success);
        let failing = failed.map(|at| end.sends[at]);
        let mut expected: Vec<u64> = Vec::new();
        let mut is_over = false;
        for posted in &end.posted {
            is_over |= failing.is_some_and(|failing| failing.wr_id == posted.name);
            if posted.signaled || is_over {
                expected.push(posted.name);
            }
        }
        let names: Vec<u64> = end.sends.iter().map(|done| done.wr_id).collect();
        if lives && !loses {
            assert_eq!(names, expected, "{what}: completions of sends are missing");
        }
        // The first error is an allowed one, and everything after it is flushed.
        let rest = |done: &[Completion]| {
            let mut statuses = done.iter().map(|done| done.status);
            let first = statuses.by_ref().find(|status| *status != Status::Success);
            let next = statuses.find(|status| *status != Status::Flushed);
            assert_eq!(next, None, "{what}: after {first:?}");
            first
        };
        if let Some(first) = rest(&end.sends) {
            let allowed = self.allowed(end, failing, circumstances);
            assert!(
                excuse.is_some() && allowed.contains(&first),
                "{what}: a send ends with {first:?} because of {excuse:?}, which allows {allowed:?}"
            );
        }
        if let Some(expected) = self.has_to_fail(side, devices, circumstances) {
            let found = failing.map(|done| (done.wr_id, done.status));
            assert_eq!(
                found,
                Some(expected),
                "{what}: the request that has to fail"
            );
        }
        if let Some(first) = rest(&end.receives) {
            let mut allowed = vec![Status::Flushed];
            allowed.extend(circumstances.faults.iter().flat_map(|fault| fault.statuses));
            if self.lacks_pages() || matches!(self.plan.deed, Some((Deed::Deregister, ..))) {
                allowed.extend([Status::LocalProtection, Status::LocalAccess]);
            }
            assert!(
                allowed.contains(&first),
                "{what}: a receive ends with {first:?} because of {excuse:?}, which allows {allowed:?}"
            );
        }
        self.check_receives(side, loses || lies, lives, excuse, &what);
        if lives && !loses {
            end.check_counts(&what);
        }
        if excuse.is_none() {
            let state = end.stopped;
            assert_eq!(state, Some(QpState::ReadyToSend), "{what}: the state");
            assert_eq!(
                end.next,
                self.plan.ops[side].len(),
                "{what}: not all is posted"
            );
        }
        if failing.is_some() && self.is_reliable() && excuse.is_some() && !lies {
            let state = end.stopped;
            // A request that is only flushed now was lost, if nothing flushed it before.
            assert!(
                state.is_none_or(|state| state == QpState::Error) || loses,
                "{what}: state {state:?}, and requests that never completed"
            );
        }
        self.check_memory(side, failing, excuse, &what);
    }

    /// Returns the request of this end that must fail, and its status, provided that nothing else can make a request
    /// fail.
    fn has_to_fail(
        &self,
        side: usize,
        devices: &[Device],
        circumstances: &Circumstances,
    ) -> Option<(u64, Status)> {
        let wrong = |side: usize| {
            let posted = &self.ends[side].posted;
            posted.iter().find_map(|posted| match posted.kind {
                Kind::Wrong(wrong) => Some((posted.name, wrong.status())),
                _ => None,
            })
        };
        let only = self.excuse(devices, circumstances) == Some(WRONG);
        let clean = self.plan.deed.is_none()
            && (0..2).all(|side| self.lives(side, devices))
            // A response that finds no pages is requested again, and a peer in the error state does not answer that.
            && self.plan.paging[side].is_none();
        wrong(side).filter(|_| only && clean && wrong(1 - side).is_none())
    }

    /// Returns the statuses with which the first failing send may complete.
    fn allowed(
        &self,
        end: &End,
        failing: Option<Completion>,
        circumstances: &Circumstances,
    ) -> Vec<Status> {
        let mut allowed = vec![Status::RetryExceeded, Status::Flushed];
        allowed.extend(circumstances.faults.iter().flat_map(|fault| fault.statuses));
        let is_it = |posted: &&Posted| failing.is_some_and(|done| done.wr_id == posted.name);
        if let Some(Posted {
            kind: Kind::Wrong(wrong),
            ..
        }) = end.posted.iter().find(is_it)
        {
            allowed.push(wrong.status());
        }
        match self.plan.deed {
            Some((Deed::Deregister, ..)) => allowed.extend([
                Status::LocalProtection,
                Status::RemoteAccess,
                Status::RemoteOperation,
            ]),
            // Receives that the peer would have posted later are missing.
            Some((Deed::Destroy, ..)) => allowed.push(Status::RnrRetryExceeded),
            _ => {}
        }
        if self.lacks_pages() {
            allowed.extend([
                Status::LocalProtection,
                Status::RemoteAccess,
                Status::RemoteOperation,
            ]);
        }
        allowed
    }

    fn check_receives(
        &self,
        side: usize,
        doubtful: bool,
        lives: bool,
        excuse: Option<&str>,
        what: &str,
    ) {
        let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
        if !self.plan.shared[side] {
            let names = end.receives.iter().map(|done| done.wr_id & (RECEIVE - 1));
            let names: Vec<u64> = names.collect();
            let expected: Vec<u64> = (0..end.receives_posted as u64).collect();
            if lives && !doubtful {
                assert_eq!(names, expected, "{what}: receives");
            } else {
                let in_order = names.windows(2).all(|pair| pair[0] < pair[1]);
                let known = names.iter().all(|name| expected.contains(name));
                assert!(in_order && known, "{what}: receives {names:?}");
            }
        }
        let in_order = end.came.windows(2).all(|pair| pair[0] < pair[1]);
        // Without acknowledgements, a duplicated message cannot be told from one sent twice.
        if self.is_reliable() || excuse.is_none() {
            assert!(in_order, "{what}: messages {:?} arrived", end.came);
        }
        let all: Vec<usize> = (0..peer.messages.len()).collect();
        // Unreliable messages find no receive if others took those in the shared queue.
        if excuse.is_none() && (self.is_reliable() || !self.plan.shared[side]) {
            assert_eq!(end.came, all, "{what}: messages");
        }
        if self.is_reliable() && !doubtful && lives {
            for (index, message) in peer.messages.iter().enumerate() {
                let name = self.name(1 - side, message.slot);
                let acknowledged = peer
                    .sends
                    .iter()
                    .any(|done| done.wr_id >= name && done.status == Status::Success);
                assert!(
                    !acknowledged || end.came.contains(&index),
                    "{what}: message {index} of {:?} was acknowledged, but did not arrive: {:?}",
                    peer.messages,
                    end.came
                );
            }
        }
    }

    fn check_memory(
        &self,
        side: usize,
        failing: Option<Completion>,
        excuse: Option<&str>,
        what: &str,
    ) {
        let (end, peer) = (&self.ends[side], &self.ends[1 - side]);
        if let Some(before) = &end.deregistered {
            let now = end.mr.arena.get(0, self.layout.length());
            assert!(
                *before == now,
                "{what}: memory changed after it was deregistered"
            );
        }
        let successes = end
            .sends
            .iter()
            .filter(|done| done.status == Status::Success);
        let last = successes
            .map(|done| done.wr_id)
            .filter(|name| *name != self.name(side, SETUP));
        let last = last.max();
        let mut words = [0, 0];
        for posted in end.posted.iter().filter(|posted| posted.slot != SETUP) {
            let good = self.is_reliable()
                && (last.is_some_and(|last| last >= posted.name)
                    || (excuse.is_none() && failing.is_none()))
                || (!self.is_reliable() && excuse.is_none());
            self.check_effect(side, posted, good);
            if matches!(posted.kind, Kind::Add | Kind::Swap | Kind::AtomicWrite) {
                words[0] += u64::from(good);
                words[1] += 1;
            }
        }
        let word = peer.mr.arena.get(self.layout.word(), 8);
        let word = u64::from_le_bytes(word.try_into().expect("8 bytes"));
        assert!(
            (words[0]..=words[1]).contains(&word),
            "{what}: {words:?} atomics make {word}"
        );
        // Memory that is only sent from must not change.
        for slot in 0..self.plan.ops[1 - side].len().max(self.plan.ops[side].len()) {
            let bytes = end.mr.arena.get(self.layout.source(slot), self.layout.slot);
            let changed =
                (0..bytes.len()).find(|&at| bytes[at] != pattern(self.plan.number, side, slot, at));
            assert_eq!(changed, None, "{what}: source {slot} changed");
        }
    }
}

/// Returns `wr_id`s and statuses, for messages.
fn brief(done: &[Completion]) -> Vec<String> {
    let one = |done: &Completion| format!("{:#x} {:?}", done.wr_id & 0xffff, done.status);
    done.iter().map(one).collect()
}
