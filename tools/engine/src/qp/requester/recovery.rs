// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which packets are sent again.
//!
//! The standard defines one way, go-back-N: all packets from the missing one on are sent again. It does not require a
//! responder to drop the packets after the missing one, and a requester cannot tell whether it did until the answer to
//! the missing packet arrives. This is how this requester finds out: it sends the missing packet alone. If the next
//! acknowledgement skips packets that were sent before, the peer has kept them. If the acknowledgement ends right after
//! the missing packet, the peer has not kept them, and all of them are sent at once. The result is remembered. A peer
//! that does not keep packets is tested again only now and then. A peer that does is still trusted after a few losses
//! in a row, which look the same.
//!
//! A peer reports one gap at a time, so each gap costs a round trip. If more gaps are to be expected among the packets
//! in flight, and the window is full or there is nothing else to send, the packets after the gap are sent again as
//! well, each once. This only uses idle time, and fills most gaps before the peer reports them.
//!
//! The loss of the last packet, of a NAK, or of a packet that was sent again is never reported. So after the time that
//! an answer usually takes, the oldest packet is sent as a probe. Probes come in addition to the attempts of the local
//! ACK timeout and do not count as retries: a connection fails no sooner than it would without them.

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

/// Maximum trust in a peer to keep packets. This is how many times it may seem not to keep them.
const MAX_TRUST: u8 = 4;

/// Number of gaps after which a peer that does not keep packets is tested again: the initial value and the maximum.
const PAUSES: (u32, u32) = (4, 1024);

/// Minimum time without an answer before more than one packet is sent again, because the peer may just be slow. Until
/// an answer has been timed, a single packet waits this long as well. At most a quarter of the local ACK timeout. Reads
/// and atomics always wait for that whole quarter, because Soft-RoCE fails on a repeated read that it is still
/// executing.
const PATIENCE: Duration = Duration::from_millis(20);

/// Minimum value of that quarter.
const SHORTEST: Duration = Duration::from_micros(50);

/// Why packets are sent again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Reason {
    /// The peer reports the oldest packet as missing, and has others.
    Gap,
    /// A response is missing.
    Response,
    /// No answer arrived within the local ACK timeout.
    Timeout,
    /// No answer arrived within the usual time.
    Probe,
}

/// The oldest packet, sent again by itself.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Attempt {
    psn: Psn,
    /// First PSN that had not been sent at that time.
    end: Psn,
    /// Whether the peer has packets after this one.
    has_more: bool,
    at: Instant,
}

/// Packets after the oldest one that are sent again in idle time.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Pass {
    next: Psn,
    end: Psn,
}

/// What is known about the peer, and attempts under way.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(super) struct Recovery {
    /// Whether anything but go-back-N is tried.
    selective: bool,
    /// Whether packets travel on a wire.
    is_wire: bool,
    /// How much the peer is trusted to keep packets.
    trust: u8,
    /// Number of gaps until the peer is tested again, now and the next time.
    pause: u32,
    next_pause: u32,
    /// Why the oldest packet is to be sent again, by itself and before any other.
    due: Option<Reason>,
    attempt: Option<Attempt>,
    /// First PSN after all packets that were sent again and are unacknowledged. Progress beyond it is due to packets
    /// that were sent once.
    repeated: Option<Psn>,
    /// PSN to which the cursor went back because of a gap, and when.
    went_back: Option<(Psn, Instant)>,
    /// Packets that are being sent again after the oldest one.
    pass: Option<Pass>,
    /// When the last of those packets was sent.
    passed_at: Option<Instant>,
    /// Packet loss rate, in units of 2^-16.
    losses: u32,
    /// When the oldest packet is sent as a probe.
    probe: Option<Instant>,
    /// Number of probes since the last progress.
    probes: u32,
    /// Number of probes before that, if no answer could be timed yet.
    backoff: u32,
    /// Whether only a probe was answered. If no other answer arrives, the other packets are missing as well.
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
    /// Creates the recovery state of a connection. Only go-back-N is used unless it is `selective`.
    pub(super) fn new(selective: bool, is_wire: bool) -> Self {
        Self {
            selective,
            is_wire,
            trust: u8::from(selective),
            ..Self::default()
        }
    }

    /// Returns when a probe is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.probe
    }

    /// Returns whether the oldest packet is to be sent by itself.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Returns whether the requester tests what the peer keeps.
    pub(super) fn is_selective(&self) -> bool {
        self.selective
    }

    /// Forgets all attempts, because everything from the oldest packet on is sent again, or nothing is sent any more.
    pub(super) fn forget(&mut self) {
        self.due = None;
        self.attempt = None;
        self.pass = None;
        self.probe = None;
        self.doubts_rest = false;
    }

    /// Notes that a packet is sent again. `next` is the PSN after it.
    pub(super) fn note_repeated(&mut self, next: Psn) {
        let repeated = self.repeated.get_or_insert(next);
        if next.distance_from(*repeated) > 0 {
            *repeated = next;
        }
    }

    /// Notes how many packets were acknowledged, and whether one was lost.
    fn note_losses(&mut self, acknowledged: u32, lost: bool) {
        /// Inverse of the fraction by which one packet changes the average.
        const GAIN: u32 = 512;
        self.losses -= self.losses / GAIN * acknowledged.min(GAIN);
        if lost {
            self.losses += (u32::from(u16::MAX) - self.losses) / GAIN;
        }
    }

    /// Notes that the peer made progress, so that another packet is the oldest.
    ///
    /// While no answer could be timed, probes stay as rare as they have become. Each of them may have been sent before
    /// the answer arrived, which made the answer impossible to time. (Karn's algorithm backs off in the same way.)
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

    /// Notes that the local ACK timeout expired. The next one has as many probes.
    pub(super) fn note_timeout(&mut self) {
        self.probes = 0;
    }

    /// Notes that the peer has kept packets.
    fn trust_more(&mut self) {
        self.trust = (self.trust.max(1) + 1).min(MAX_TRUST);
        self.next_pause = PAUSES.0;
    }

    /// Notes that the peer has not kept packets.
    fn distrust(&mut self) {
        self.trust = 0;
        self.pause = self.next_pause;
        self.next_pause = (2 * self.next_pause).min(PAUSES.1);
    }

    /// Returns whether to send the missing packet by itself.
    fn tries_gap(&mut self) -> bool {
        if self.selective && self.trust == 0 {
            self.pause = self.pause.saturating_sub(1);
            return self.pause == 0;
        }
        self.selective
    }
}

impl Requester {
    /// Returns whether the oldest packet is to be sent again by itself.
    pub(super) fn has_oldest_due(&self) -> bool {
        self.recovery.is_due() && self.unsent != self.unacked && !self.queue.is_empty()
    }

    /// Returns whether the oldest packet was sent again so recently that its answer cannot have arrived yet.
    ///
    /// That is also the case if packets after it have been sent again: a peer that keeps packets reports the next gap
    /// as soon as it has filled one, and packets sent since then arrive after that.
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

    /// Returns whether the peer answers the oldest request with more than an acknowledgement.
    fn oldest_fetches(&self) -> bool {
        self.queue.front().is_some_and(Request::fetches)
    }

    /// Returns whether that is true of any request that was begun and is not answered.
    fn any_fetches(&self) -> bool {
        let mut begun = self.queue.iter().take(self.sending + 1);
        begun.any(Request::fetches)
    }

    /// Moves the cursor from the oldest packet to a later packet of a message.
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

    /// Returns the first PSN from `psn` on that belongs to a message that was sent, and not to a read or an atomic. The
    /// peer would take a repeated read or atomic as the first of all packets to be sent again.
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

    /// Sends the oldest packet again, and the packets after it that the peer does not keep.
    pub(super) fn send_again(&mut self, reason: Reason, now: Instant) {
        let alone = match reason {
            Reason::Gap => self.recovery.tries_gap(),
            // The peer takes a repeated read as the first of all packets to be sent again.
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

    /// Learns from an answer that made another packet than `before` the oldest one.
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
                // If the peer had more packets, it would have reported a gap. So the packets sent last are missing.
                self.probe_at_once();
            }
        } else if !rest || beyond < 0 {
            // This does not tell whether the peer keeps packets, because there were none.
        } else if attempt.has_more && self.recovery.trust >= 2 {
            // Two packets in a row may have been lost.
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
            // The peer may just be slow, and may have answered the first transmission of the packet.
            self.recovery.doubts_rest = !tells_gap;
            self.restart_probe(now);
        }
    }

    /// Sends the oldest packet as a probe now. A request with a response waits until its probe is due anyway, because
    /// the peer may still be executing it.
    fn probe_at_once(&mut self) {
        if !self.oldest_fetches() {
            self.recovery.due = Some(Reason::Probe);
        }
    }

    /// Schedules the oldest packet as a probe for when the usual time of an answer is over, unless the local ACK
    /// timeout is earlier.
    pub(super) fn restart_probe(&mut self, now: Instant) {
        self.recovery.probe = self.probe_at(now);
    }

    fn probe_at(&self, now: Instant) -> Option<Instant> {
        let recovery = &self.recovery;
        let Timer::Ack(end) = self.timer else {
            return None;
        };
        let opcode = self.queue.front()?.request.opcode;
        // A flush may have to wait for a disk, and the peer would answer a probe with an RNR NAK.
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

    /// Sends everything after an answered packet again.
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
            // Otherwise, packets that were sent again before may still be in flight.
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

    /// Sends another packet after the oldest one again, if the peer probably misses more than that one.
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
        // The oldest packet may be one of these by now, but was sent by itself.
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
                // The peer may not need this packet. If it does, the packet is sent again in its turn.
                recovery.pass = None;
                Sent::Blocked
            }
        }
    }

    /// Sends a packet again without moving the cursor.
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
        // If the requester could not send a request or store a response, the lack of an answer does not mean a loss.
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
