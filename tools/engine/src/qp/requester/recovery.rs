// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which packets are sent again.
//!
//! The standard has one way: from the missing packet on, all (go-back-N). It does not say that a responder has
//! to forget what came behind the missing packet, and no requester can tell if it did, until the answer to that
//! packet comes. This is how this requester finds out. It sends the missing packet alone. If the next
//! acknowledgement jumps over packets that were sent before, the peer has kept them. If it ends right behind
//! the packet, the peer has not, and all of them are sent at once. What was found out is remembered: a peer
//! that does not keep is tried again only now and then, and one that does is believed through a few packets
//! that were lost in a row, which looks the same.
//!
//! A peer tells of one gap at a time, so each gap costs a round trip. If more gaps are to be expected in what
//! is on its way, and the window is full or there is nothing else to send, the packets behind the gap are sent
//! again, too, each once. That takes nothing from anybody, and fills most gaps before the peer tells of them.
//!
//! Nobody tells that a packet sent last, a negative acknowledgement or a packet sent again was lost. So after
//! the time that an answer usually takes, the oldest packet is sent as a probe. These attempts are in addition
//! to those of the local ACK timeout, and do not count as retries: a connection dies as late as it would
//! without them.

use super::{Request, Requester, Sent, Timer};
use crate::{
    memory::Memory,
    pages::Half,
    psn::Psn,
    qp::Qp,
    resources::{Io, Resources},
    time::Instant,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use vrnic_wire::work::SendOpcode;

/// Most that a peer is trusted to keep packets: so often may it seem that it does not.
const MAX_TRUST: u8 = 4;

/// Gaps of a peer that does not keep after which it is tried again, at first and at most.
const PAUSES: (u32, u32) = (4, 1024);

/// If the peer says nothing, least time after which more than one packet is sent again: the peer may just be slow. As
/// long as no answer was measured, a single packet waits as long. A quarter of the local ACK timeout, if that is less.
/// Reads and atomics wait for all of that quarter, however long it is: Soft-RoCE fails when a read comes again that it
/// is still busy with.
const PATIENCE: Duration = Duration::from_millis(20);

/// Least value of that quarter.
const SHORTEST: Duration = Duration::from_micros(50);

/// Why packets are sent again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reason {
    /// The peer says that the oldest is missing, and that it has others.
    Gap,
    /// A response is missing.
    Response,
    /// Nothing came for the local ACK timeout.
    Timeout,
    /// Nothing came for as long as an answer usually takes.
    Probe,
}

/// The oldest packet, sent again alone.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Attempt {
    psn: Psn,
    /// First PSN that had not been sent then.
    end: Psn,
    /// Whether the peer has packets behind it.
    has_more: bool,
    at: Instant,
}

/// Packets behind the oldest one that are sent again, if there is time for it.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Pass {
    next: Psn,
    end: Psn,
}

/// What is known of a peer, and what is being tried.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recovery {
    /// Whether anything but go-back-N is tried at all.
    selective: bool,
    /// Whether packets travel on a wire.
    is_wire: bool,
    /// How much the peer is trusted to keep packets.
    trust: u8,
    /// Gaps until it is tried again, and the next time.
    pause: u32,
    next_pause: u32,
    /// Why the oldest packet is to be sent again, alone and before any other.
    due: Option<Reason>,
    attempt: Option<Attempt>,
    /// First PSN behind everything that was sent again and is not acknowledged. Progress beyond it is due to packets
    /// that were sent once.
    repeated: Option<Psn>,
    /// Where the cursor went back to because of a gap, and when.
    went_back: Option<(Psn, Instant)>,
    /// What is sent again behind the oldest packet.
    pass: Option<Pass>,
    /// When the last of those was sent.
    passed_at: Option<Instant>,
    /// How often packets are lost, in parts of 2^16.
    losses: u32,
    /// When the oldest packet is sent as a probe.
    probe: Option<Instant>,
    /// Probes since the last progress.
    probes: u32,
    /// All before, if no answer could be timed yet.
    backoff: u32,
    /// Whether a probe was all that was answered. If nothing else comes, the rest is missing, too.
    doubts_rest: bool,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            selective: false,
            is_wire: false,
            trust: 1,
            pause: 0,
            next_pause: PAUSES.0,
            due: None,
            attempt: None,
            repeated: None,
            went_back: None,
            pass: None,
            passed_at: None,
            losses: 0,
            probe: None,
            probes: 0,
            backoff: 0,
            doubts_rest: false,
        }
    }
}

impl Recovery {
    /// Recovery of a connection, by go-back-N alone unless it is `selective`.
    pub(super) fn new(selective: bool, is_wire: bool) -> Self {
        Self {
            selective,
            is_wire,
            trust: u8::from(selective),
            ..Self::default()
        }
    }

    /// When a probe is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probe
    }

    /// Whether the oldest packet is to be sent alone.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether it is found out what the peer keeps.
    pub(super) fn is_selective(&self) -> bool {
        self.selective
    }

    /// Everything is sent again from the oldest packet on, or nothing any more.
    pub(super) fn forget(&mut self) {
        self.due = None;
        self.attempt = None;
        self.pass = None;
        self.probe = None;
        self.doubts_rest = false;
    }

    /// A packet that was sent before is sent again, before `next`.
    pub(super) fn note_repeated(&mut self, next: Psn) {
        let repeated = self.repeated.get_or_insert(next);
        if next.distance_from(*repeated) > 0 {
            *repeated = next;
        }
    }

    /// So many packets were acknowledged, or one was lost.
    fn note_losses(&mut self, acknowledged: u32, lost: bool) {
        /// What one packet moves the average by: 1 part of so many.
        const GAIN: u32 = 512;
        self.losses -= self.losses / GAIN * acknowledged.min(GAIN);
        if lost {
            self.losses += (u32::from(u16::MAX) - self.losses) / GAIN;
        }
    }

    /// The peer made progress: another packet is the oldest.
    ///
    /// As long as no answer could be timed, probes stay as rare as they have become: perhaps each came before the
    /// answer, which nobody could time then. (Karn's algorithm backs off like this.)
    pub(super) fn note_progress(&mut self, is_timed: bool) {
        self.due = None;
        self.backoff = if is_timed {
            0
        } else {
            self.backoff.saturating_add(self.probes)
        };
        self.probes = 0;
        self.doubts_rest = false;
    }

    /// The local ACK timeout is over: in the next one it is probed as often.
    pub(super) fn note_timeout(&mut self) {
        self.probes = 0;
    }

    /// The peer has kept packets.
    fn trust_more(&mut self) {
        self.trust = (self.trust.max(1) + 1).min(MAX_TRUST);
        self.next_pause = PAUSES.0;
    }

    /// The peer has not kept packets.
    fn distrust(&mut self) {
        self.trust = 0;
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(PAUSES.1);
    }

    /// Whether to send the missing packet alone.
    fn tries_gap(&mut self) -> bool {
        if self.selective && self.trust == 0 {
            self.pause = self.pause.saturating_sub(1);
            return self.pause == 0;
        }
        self.selective
    }
}

impl Requester {
    /// Whether the oldest packet is to be sent again, alone.
    pub(super) fn has_oldest_due(&self) -> bool {
        self.recovery.is_due() && self.unsent != self.unacked && !self.queue.is_empty()
    }

    /// Whether the oldest packet was sent again so recently that its answer cannot be here yet.
    ///
    /// That is so if it was not the last that was sent again: a peer that keeps packets tells of the next gap
    /// as soon as it has filled one, and what was sent since comes after that.
    pub(super) fn is_on_its_way_again(&self, now: Instant) -> bool {
        let recovery = &self.recovery;
        let attempt = recovery.attempt.map(|attempt| (attempt.psn, attempt.at));
        let recently = [attempt, recovery.went_back]
            .into_iter()
            .flatten()
            .any(|(psn, at)| psn == self.unacked && self.rtt.is_too_soon(now - at));
        let in_pass = attempt.is_none()
            && !self.oldest_fetches()
            && (recovery.pass).is_some_and(|pass| pass.next.distance_from(self.unacked) > 0);
        recovery.due.is_some() || recently || in_pass
    }

    /// Whether the oldest request is one that the peer answers with more than an acknowledgement.
    fn oldest_fetches(&self) -> bool {
        self.queue.front().is_some_and(Request::fetches)
    }

    /// Whether any request that was begun and is not answered does.
    fn any_fetches(&self) -> bool {
        let mut begun = self.queue.iter().take(self.sending + 1);
        begun.any(Request::fetches)
    }

    /// Puts the cursor, which is at the oldest packet, to a later one of a message.
    fn seek(&mut self, psn: Psn) {
        while let Some(request) = self.queue.get(self.sending)
            && psn.distance_from(request.end_psn()) >= 0
        {
            self.fetching += u32::from(request.fetches());
            self.sending += 1;
            self.packet = 0;
        }
        if let Some(request) = self.queue.get(self.sending)
            && !request.fetches()
        {
            self.packet = psn.packets_since(request.first_psn);
        }
    }

    /// The first PSN from `psn` on that belongs to a message that was sent, not to a read or an atomic. The
    /// peer would take those for the beginning of all that comes again.
    fn skip_fetches(&self, mut psn: Psn) -> Option<Psn> {
        for request in self.queue.iter().take(self.sending + 1) {
            if psn.distance_from(request.end_psn()) >= 0 {
                continue;
            }
            if !request.fetches() {
                return Some(psn);
            }
            psn = request.end_psn();
        }
        None
    }

    /// Has the oldest packet sent again, and what is behind it as far as the peer does not keep it.
    pub(super) fn send_again(&mut self, reason: Reason, now: Instant) {
        let alone = match reason {
            Reason::Gap => self.recovery.tries_gap(),
            // The peer takes a read that comes again for the first of all that come again.
            Reason::Response => false,
            Reason::Timeout => self.recovery.trust > 0 && !self.oldest_fetches(),
            Reason::Probe => !self.oldest_fetches(),
        };
        if alone {
            self.rtt.abort();
            self.recovery.attempt = None;
            self.recovery.due = Some(reason);
        } else {
            self.go_back();
            if reason == Reason::Gap {
                self.recovery.went_back = Some((self.unacked, now));
                self.window.collapse();
            }
        }
    }

    /// Learns from an answer by which the oldest packet, which was `before`, became another one.
    pub(super) fn learn(&mut self, before: Psn, tells_gap: bool, now: Instant) {
        let gained = self.unacked.packets_since(before);
        if gained == 0 || !self.recovery.selective {
            return;
        }
        let recovery = &mut self.recovery;
        recovery.note_losses(gained, tells_gap);
        // Negative while packets that were sent again explain all progress.
        let beyond = (recovery.repeated).map_or(0, |repeated| self.unacked.distance_from(repeated));
        recovery.repeated.take_if(|_| beyond >= 0);
        let is_over = |pass: &mut Pass| self.unacked.distance_from(pass.end) >= 0;
        recovery.pass.take_if(is_over);
        let told_gap = recovery.went_back.take().is_some()
            || (recovery.attempt).is_some_and(|attempt| attempt.has_more);
        if beyond > 0 && told_gap {
            recovery.trust_more();
        }
        let attempt = recovery.attempt.take();
        let Some(attempt) = attempt.filter(|attempt| attempt.psn == before) else {
            return;
        };
        if attempt.has_more {
            let time = now - attempt.at;
            self.rtt.measured(time, now);
            self.window.measured(time, self.rtt.shortest());
        }
        let rest = attempt.end.distance_from(self.unacked) > 0;
        if gained > 1 {
            if rest && !tells_gap && beyond > 0 {
                // Had it more, it would have told of a gap: what was sent last is missing.
                self.probe_at_once();
            }
        } else if !rest || beyond < 0 {
            // It may have kept packets or not, for there were none.
        } else if attempt.has_more && self.recovery.trust >= 2 {
            // Perhaps two in a row were lost.
            self.recovery.trust -= 1;
            if !tells_gap {
                self.probe_at_once();
            }
        } else if attempt.has_more || self.recovery.trust >= 2 {
            if attempt.has_more {
                self.recovery.distrust();
            }
            if !tells_gap {
                self.send_rest_again(now);
            }
        } else {
            // It may just be slow, and this the answer to the packet that was sent first.
            self.recovery.doubts_rest = !tells_gap;
            self.restart_probe(now);
        }
    }

    /// Has the oldest packet sent as a probe now; one that fetches when that was due anyway, as the peer may be busy
    /// with it.
    fn probe_at_once(&mut self) {
        if !self.oldest_fetches() {
            self.recovery.due = Some(Reason::Probe);
        }
    }

    /// Has the oldest packet sent as a probe when no answer comes for the time that it usually takes, unless
    /// the local ACK timeout is earlier.
    pub(super) fn restart_probe(&mut self, now: Instant) {
        self.recovery.probe = self.probe_at(now);
    }

    fn probe_at(&self, now: Instant) -> Option<Instant> {
        let recovery = &self.recovery;
        let Timer::Ack(end) = self.timer else {
            return None;
        };
        let opcode = self.queue.front()?.request.opcode;
        // A flush may have to wait for a disk, and would be put off.
        if !recovery.selective || opcode == SendOpcode::Flush {
            return None;
        }
        let quarter = ((end - now) / 4).max(SHORTEST);
        let patience = quarter.min(PATIENCE);
        let usual = self.rtt.patience(recovery.is_wire);
        let mut wait = usual.unwrap_or(patience);
        if self.oldest_fetches() {
            wait = (4 * wait).max(quarter);
        } else if recovery.doubts_rest {
            wait = wait.max(if self.any_fetches() {
                quarter
            } else {
                patience
            });
        }
        let after = |probes: u32| wait * (1 << probes.min(16));
        let mut delay = after(recovery.probes);
        if !recovery.doubts_rest {
            // Still before the local ACK timeout.
            let rare = after(recovery.probes.saturating_add(recovery.backoff)).min((end - now) / 2);
            delay = delay.max(rare);
        }
        let at = now + delay;
        (at < end).then_some(at)
    }

    /// Sends everything again behind a packet that was answered.
    fn send_rest_again(&mut self, now: Instant) {
        self.go_back();
        self.recovery.went_back = Some((self.unacked, now));
    }
}

impl Qp {
    /// Sends the oldest packet again, without moving the cursor.
    pub(super) fn send_oldest<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Sent {
        let (unacked, unsent) = (self.requester.unacked, self.requester.unsent);
        let sent = self.send_apart(unacked, resources, io);
        let recovery = &mut self.requester.recovery;
        if matches!(sent, Sent::Packet(_))
            && let Some(reason) = recovery.due.take()
        {
            recovery.attempt = Some(Attempt {
                psn: unacked,
                end: unsent,
                has_more: reason == Reason::Gap,
                at: io.now,
            });
            // Else what was sent again before may still be on its way.
            let rtt = &self.requester.rtt;
            let is_new = recovery.passed_at.is_none_or(|at| rtt.is_long(io.now - at));
            if reason == Reason::Gap || is_new {
                recovery.pass = Some(Pass {
                    next: unacked.add(1),
                    end: unsent,
                });
            }
            self.requester.restart_probe(io.now);
        }
        sent
    }

    /// Sends another packet behind the oldest one again, if the peer is likely to miss more than that one.
    pub(super) fn send_more_again<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Sent {
        let requester = &mut self.requester;
        let recovery = &requester.recovery;
        let Some(pass) = recovery.pass.filter(|_| recovery.trust >= 2) else {
            return Sent::Blocked;
        };
        let rest = pass.end.packets_since(requester.unacked);
        let expected = u64::from(recovery.losses) * u64::from(rest);
        if expected < 1 << 16 || requester.rtt.is_queueing() {
            return Sent::Blocked;
        }
        // The oldest packet may be one of them by now, and was sent apart then.
        let first = if pass.next.distance_from(requester.unacked) > 0 {
            pass.next
        } else {
            requester.unacked.add(1)
        };
        let next = requester.skip_fetches(first);
        let Some(psn) = next.filter(|psn| pass.end.distance_from(*psn) > 0) else {
            return Sent::Blocked;
        };
        let sent = self.send_apart(psn, resources, io);
        let recovery = &mut self.requester.recovery;
        match sent {
            Sent::Packet(_) => {
                recovery.passed_at = Some(io.now);
                recovery.pass = Some(Pass {
                    next: psn.add(1),
                    ..pass
                });
                sent
            }
            Sent::Blocked => sent,
            Sent::Failed(..) => {
                // Nobody may miss it. If somebody does, its turn will come.
                recovery.pass = None;
                Sent::Blocked
            }
        }
    }

    /// Sends a packet that was sent before again, without moving the cursor.
    fn send_apart<M: Memory>(
        &mut self,
        psn: Psn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Sent {
        let requester = &mut self.requester;
        let cursor = (requester.sending, requester.packet, requester.fetching);
        requester.rewind();
        requester.seek(psn);
        let sent = self.send_next(resources, io);
        let requester = &mut self.requester;
        (requester.sending, requester.packet, requester.fetching) = cursor;
        sent
    }

    /// Sends a probe if it is due.
    pub(super) fn look_at_probe(&mut self, now: Instant) {
        if self.requester.recovery.probe.is_none_or(|at| at > now) {
            return;
        }
        self.requester.recovery.probes += 1;
        // Nothing is missing if nothing could be sent, or taken.
        if !self.requester.starved && !self.waits(Half::Requester) {
            if self.requester.recovery.doubts_rest {
                self.requester.send_rest_again(now);
            } else {
                self.requester.send_again(Reason::Probe, now);
            }
        }
        self.requester.restart_probe(now);
    }
}
