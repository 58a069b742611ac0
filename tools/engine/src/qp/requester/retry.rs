// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Timers and retries.

use super::{Rtt, Timer, Window, recovery::Reason};
use crate::{
    cause::Cause,
    memory::Memory,
    pages::Half,
    qp::Qp,
    resources::{Io, Resources},
    time::Instant,
    timer,
};
use vrnic_wire::{completion::Status, counter::Counter};

impl Qp {
    /// Notes that the peer made progress, which makes all retries available again.
    pub(super) fn note_progress(&mut self, now: Instant) {
        self.refresh_retries();
        let requester = &mut self.requester;
        requester.gap = None;
        requester.refused = None;
        if let Some(time) = requester.rtt.answered(requester.unacked, now) {
            requester.window.measured(time, requester.rtt.shortest());
        }
        let is_timed = requester.rtt.is_known();
        requester.recovery.note_progress(is_timed);
        if !self.waits_for_receiver() {
            self.restart_ack_timer(now);
        }
    }

    /// Makes all retries available.
    pub(in crate::qp) fn refresh_retries(&mut self) {
        self.requester.retries = self.attributes.retry_count;
        self.requester.rnr_retries = self.attributes.rnr_retry;
    }

    /// Sends all unacknowledged packets again by a new path, whose round-trip time and capacity are not known.
    pub(in crate::qp) fn resend_by_new_path(&mut self, now: Instant) {
        let requester = &mut self.requester;
        requester.retries = self.attributes.retry_count;
        requester.gap = None;
        requester.rtt = Rtt::default();
        requester.window = Window::default();
        // Otherwise, they are sent when the RNR timer expires, by the path that is current then.
        if !self.waits_for_receiver() {
            self.requester.go_back();
            self.restart_ack_timer(now);
        }
    }

    /// Restarts the local ACK timer, or stops it if no packets are in flight. The time in which the rate limit of the
    /// queue pair keeps packets from being sent again does not count.
    pub(super) fn restart_ack_timer(&mut self, now: Instant) {
        let now = self.pacer.earliest(now);
        let waiting = self.requester.unsent != self.requester.unacked;
        let timeout = timer::ack_timeout(self.attributes.timeout).filter(|_| waiting);
        self.requester.timer = timeout.map_or(Timer::Idle, |timeout| Timer::Ack(now + timeout));
        self.requester.restart_probe(now);
    }

    /// Gives the peer its whole time to answer from `now` on, because nothing is sent to it until then.
    pub(crate) fn excuse_peer(&mut self, now: Instant) {
        if matches!(self.requester.timer, Timer::Ack(_)) {
            self.restart_ack_timer(now);
        }
    }

    /// Sends the oldest unacknowledged packet again, because the peer reports a gap.
    ///
    /// Does nothing if the packet has just been sent again, or if the peer had no receive for it. In the latter case,
    /// the peer knows the packet, and it is sent again when the RNR timer expires. When packets after it arrive,
    /// Soft-RoCE reports it as missing.
    pub(super) fn fill_gap<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        let requester = &self.requester;
        if requester.refused != Some(requester.unacked) && !requester.is_on_its_way_again(io.now) {
            self.retry(Reason::Gap, resources, io);
        }
    }

    /// Requests a missing response again, but only once until there is progress.
    pub(super) fn ask_again<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        let unacked = self.requester.unacked;
        let waits = self.waits_for_receiver() || self.requester.starved;
        if self.requester.gap != Some(unacked) && !waits {
            self.retry(Reason::Response, resources, io);
            self.requester.gap = Some(unacked);
        }
    }

    /// Returns whether all unacknowledged packets will be sent again when the RNR timer expires.
    pub(super) fn waits_for_receiver(&self) -> bool {
        matches!(self.requester.timer, Timer::Rnr(_))
    }

    /// Sends again what the peer misses, or fails if there are no retries left.
    pub(super) fn retry<M: Memory>(
        &mut self,
        reason: Reason,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if self.waits_for_receiver() {
            return;
        }
        // The lack of progress is not the peer's fault.
        if self.requester.starved || self.waits(Half::Requester) {
            self.requester.go_back();
            return self.restart_ack_timer(io.now);
        }
        if self.requester.retries == 0 && self.migrate_or_fail(resources, io) {
            return;
        }
        if self.requester.retries == 0 {
            resources.counters.count(Counter::RetryExceeded);
            self.fail_front(Status::RetryExceeded, Cause::Retries, resources, io);
            return;
        }
        self.requester.retries -= 1;
        self.requester.send_again(reason, io.now);
        self.restart_ack_timer(io.now);
    }

    /// Waits for the peer to post a receive, or fails if there are no RNR retries left.
    pub(super) fn wait_for_receiver<M: Memory>(
        &mut self,
        timer: u8,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        if self.waits_for_receiver() {
            return;
        }
        if self.attributes.rnr_retry != 7 {
            if self.requester.rnr_retries == 0 {
                resources.counters.count(Counter::RnrRetryExceeded);
                self.fail_front(Status::RnrRetryExceeded, Cause::RnrRetries, resources, io);
                return;
            }
            self.requester.rnr_retries -= 1;
        }
        // The peer is alive. It may have to wait for pages, on a fabric that loses some of its replies.
        self.requester.retries = self.attributes.retry_count;
        self.requester.go_back();
        self.requester.refused = Some(self.requester.unacked);
        self.requester.timer = Timer::Rnr(io.now + timer::rnr_timeout(timer));
    }

    /// Acts on the timer if it has expired.
    pub(in crate::qp) fn requester_timer<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        match self.requester.timer {
            Timer::Ack(at) if at <= io.now => {
                resources.counters.count(Counter::Timeouts);
                self.requester.gap = None;
                self.requester.recovery.note_timeout();
                self.requester.window.collapse();
                self.retry(Reason::Timeout, resources, io);
            }
            Timer::Rnr(at) if at <= io.now => self.requester.timer = Timer::Idle,
            _ => self.look_at_probe(io.now),
        }
    }
}
