// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device as its users see it: an engine, behind an interface at which every input can be recorded.

use crate::{
    explain::Explanation,
    fault::{BadSpec, Delivery, Faults, Spec},
    flow::Steered,
    memory::{HostRange, Memory},
    rate::RateLimit,
    recording::{Digest, Flight, Halves, Header, Input, Kind, Put, Recorder, put_range},
    resources::Io,
    rnic::{Engine, RnicConfig},
    segment::{Gid, Payload, Segment},
    subnet::{HcaPort, PortAnswer, PortRequest, Violation},
    time::Instant,
    trace::TracePage,
    turn::Budget,
};
use std::ops::Deref;
use vrnic_wire::event::{AsyncEvent, CompletionEvent};
use zerocopy::IntoBytes;

/// An RDMA device. See the [crate documentation](crate) for how to drive it, and [`recording`](crate::recording) for
/// how to record what it does.
///
/// Calls that change nothing go to [`Engine`]. All others have a method here that records the call if a recording is
/// running; if none is, this costs one check.
#[derive(Debug)]
pub struct Rnic {
    engine: Engine,
    recorder: Option<Box<Recorder>>,
    flight: Flight,
    /// Bookkeeping of the flight recorder, if its recordings can be replayed.
    halves: Option<Box<Halves>>,
    /// Whether `recorder` belongs to the flight recorder.
    flies: bool,
}

impl Deref for Rnic {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

/// Makes a call that takes guest memory. If there is a recorder, also records the call; `begin` starts its entry.
macro_rules! call {
    (
        $self:ident,
        $io:ident,
        |$recorder:ident| $begin:expr,
        |$engine:ident, $inner:ident| $work:expr,
        $outcome:expr
    ) => {{
        $self.turn();
        let $engine = &mut $self.engine;
        match $self.recorder.as_deref_mut() {
            Some($recorder) if $recorder.goes_on() => {
                $begin;
                let result = $recorder.during($io, |$inner| $work);
                $recorder.finish(|digest| $outcome(digest, &result));
                result
            }
            _ => {
                let $inner = &mut *$io;
                $work
            }
        }
    }};
}

/// Digests the result of a call that returns whether it worked.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "answers are lent")]
fn answer(digest: &mut Digest, answer: &bool) {
    digest.byte((*answer).into());
}

/// Digests the result of a call that returns nothing.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "answers are lent")]
fn nothing(_: &mut Digest, (): &()) {}

impl Rnic {
    /// Creates a device in the state after a reset. To reset a device, create a new one with a fresh seed.
    pub fn new(config: RnicConfig) -> Self {
        Self {
            engine: Engine::new(config),
            recorder: None,
            flight: Flight::default(),
            halves: None,
            flies: false,
        }
    }

    /// Creates a device named `device` in the state after a reset, and records it until the recording has `limit`
    /// bytes.
    pub fn recorded(config: RnicConfig, device: &str, limit: u64) -> Self {
        let header = Header::new(device, config.clone());
        Self {
            recorder: Some(Box::new(Recorder::new(&header, limit))),
            ..Self::new(config)
        }
    }

    /// Restores a device to the state at the beginning of the recording with this header, and records it again. Returns
    /// `None` if the header's state is not valid.
    pub fn resumed(header: &Header) -> Option<Self> {
        let config = header.config.clone();
        let engine = match &header.state {
            Some(state) => Engine::from_state(config, state)?,
            None => Engine::new(config),
        };
        Some(Self {
            engine,
            recorder: Some(Box::new(Recorder::new(header, u64::MAX))),
            flight: Flight::default(),
            halves: None,
            flies: false,
        })
    }

    /// Records the device, named `device`, from now on until the recording has `limit` bytes. Replaces a recording that
    /// is already running.
    pub fn record(&mut self, device: &str, limit: u64) {
        let header = Header {
            state: Some(self.engine.state(usize::MAX).unwrap_or_default()),
            start: self.engine.resources.now,
            ..Header::new(device, self.engine.config.clone())
        };
        self.recorder = Some(Box::new(Recorder::new(&header, limit)));
        self.flies = false;
    }

    /// Keeps the last calls for [`take_flight`](Self::take_flight) whenever no other recording of the device, named
    /// `device`, is running.
    pub fn keep_flight(&mut self, device: &str) {
        self.halves = Some(Box::new(Halves::new(device)));
    }

    /// Returns the recording of the last calls. It ends now because of `why`, or with the panic of the last call.
    /// Returns `None` if [`keep_flight`](Self::keep_flight) was not called, if another recording has the calls, or if
    /// the state was too large.
    pub fn take_flight(&mut self, why: &str) -> Option<Vec<u8>> {
        let halves = self.halves.take()?;
        let mut recorder = self.recorder.take_if(|_| self.flies)?;
        Some(halves.finish(&mut recorder, why))
    }

    /// Switches to the other half of the flight recorder if that is due.
    #[inline]
    fn turn(&mut self) {
        let recorder = self.recorder.as_deref();
        if self.halves.is_some() && (self.flies || recorder.is_none()) && Halves::is_due(recorder) {
            self.turn_over();
        }
    }

    #[cold]
    fn turn_over(&mut self) {
        let Some(halves) = &mut self.halves else {
            return;
        };
        match &mut self.recorder {
            None => self.recorder = halves.begin(&self.engine),
            Some(recorder) => {
                if !halves.turn(recorder, &self.engine) {
                    self.recorder = None;
                }
            }
        }
        self.flies = self.recorder.is_some();
    }

    /// Does nothing, but leaves an entry in the recording.
    pub(crate) fn mark(&mut self) {
        if let Some(recorder) = self.recorder.as_deref_mut()
            && recorder.goes_on()
        {
            recorder.mark();
        }
    }

    /// Returns the last calls to the device in words, oldest first. This also works after a panic.
    pub fn flight(&self) -> impl Iterator<Item = String> {
        self.flight.lines()
    }

    /// Returns the recorder, unless it is the flight recorder's.
    pub fn recorder(&mut self) -> Option<&mut Recorder> {
        self.recorder.as_deref_mut().filter(|_| !self.flies)
    }

    /// Stops recording and returns the recorder, unless it is the flight recorder's.
    pub fn take_recorder(&mut self) -> Option<Box<Recorder>> {
        self.recorder.take_if(|_| !self.flies)
    }

    /// Makes a call without guest memory. If there is a recorder and `matters` returns true for the result, also
    /// records it.
    fn plain<R>(
        &mut self,
        input: impl FnOnce() -> Input,
        work: impl FnOnce(&mut Engine) -> R,
        matters: impl FnOnce(&R) -> bool,
        outcome: impl FnOnce(&mut Digest, &R),
    ) -> R {
        self.turn();
        let recorder = self.recorder.as_deref_mut();
        let Some(recorder) = recorder.filter(|recorder| recorder.goes_on()) else {
            return work(&mut self.engine);
        };
        recorder.begin_untimed(|out| input().put(out));
        let result = work(&mut self.engine);
        if matters(&result) {
            recorder.finish(|digest| outcome(digest, &result));
        } else {
            recorder.forget();
        }
        result
    }

    /// Executes a control command. `request` is the readable part of the command; the writable part is appended to
    /// `reply`. Any bytes get an answer. Returns false if the command takes long: there is no reply yet, and the caller
    /// must call again with the same request after it has given others their turn.
    #[must_use]
    pub fn execute<M: Memory>(
        &mut self,
        request: &[u8],
        reply: &mut Vec<u8>,
        io: &mut Io<'_, M>,
    ) -> bool {
        self.flight.at(io.now).command(request);
        let before = reply.len();
        call!(
            self,
            io,
            |recorder| recorder.begin(io.now, |out| Input::put_request(request, out)),
            |engine, io| engine.execute(request, reply, io),
            |digest: &mut Digest, done| {
                answer(digest, done);
                digest.string(&reply[before..]);
            }
        )
    }

    /// Handles a write of `value` to doorbell page `page` by the driver side.
    pub fn doorbell(&mut self, page: u32, value: u32) {
        self.flight.note(Kind::Doorbell, page, value);
        self.plain(
            || Input::Doorbell(page, value),
            |engine| engine.doorbell(page, value),
            |()| true,
            nothing,
        );
    }

    /// Looks at the notify areas of polled contexts, and does as much work as `budget` allows. If the last segment
    /// exceeds the budget, later turns get less. Returns whether there was or still is work, or there are new events.
    pub fn poll<M: Memory>(&mut self, budget: Budget, io: &mut Io<'_, M>) -> bool {
        self.flight.at(io.now);
        let before = io.outbox.segments.len();
        let worked = call!(
            self,
            io,
            |recorder| recorder.begin(io.now, |out| Input::Poll(budget).put(out)),
            |engine, io| engine.poll(budget, io),
            answer
        );
        if worked {
            let sent = io.outbox.segments.len() - before;
            self.flight.note(Kind::Poll, sent as u32, 0);
        }
        worked
    }

    /// Prepares for the worker to sleep: announces the sleep to all polled contexts and looks once more for work. If
    /// this returns true, there is work after all, and the worker must not sleep.
    pub fn prepare_sleep<M: Memory>(&mut self, io: &mut Io<'_, M>) -> bool {
        self.flight.at(io.now);
        let work = call!(
            self,
            io,
            |recorder| recorder.begin(io.now, |out| Input::PrepareSleep.put(out)),
            |engine, io| engine.prepare_sleep(io),
            answer
        );
        if !work {
            self.flight.note(Kind::Sleep, 0, 0);
        }
        work
    }

    /// Takes a segment that arrived for a GID of this device. `io.outbox` takes the payload's memory back. The caller
    /// must call [`poll`](Self::poll) afterwards.
    pub fn receive<M: Memory>(&mut self, mut segment: Segment<'_>, io: &mut Io<'_, M>) {
        self.receive_from(&mut segment, io);
    }

    /// Does the same as [`receive`](Self::receive), but takes only the payload, because a segment is long to move.
    pub fn receive_from<M: Memory>(&mut self, segment: &mut Segment<'_>, io: &mut Io<'_, M>) {
        self.engine.check_checksums(segment);
        self.receive_checked(segment, io);
    }

    /// Does the same with a segment whose checksums have been checked. They cannot be checked again in a replay, whose
    /// segments have lost most of their payload.
    pub(crate) fn receive_checked<M: Memory>(
        &mut self,
        segment: &mut Segment<'_>,
        io: &mut Io<'_, M>,
    ) {
        self.flight.at(io.now).packet(segment);
        call!(
            self,
            io,
            |recorder| recorder.begin_received(io.now, segment),
            |engine, io| engine.receive(segment, io),
            nothing
        );
    }

    /// Receives a frame that arrived at the port for its network device. `io.outbox` is used as by
    /// [`receive`](Self::receive), and the caller must call [`poll`](Self::poll) afterwards, too.
    pub fn receive_frame<M: Memory>(&mut self, frame: &[u8], io: &mut Io<'_, M>) -> Steered {
        let steered = self.engine.steer(frame);
        if steered.taken {
            let mut segment = Segment::of_frame(Payload::Frame(frame));
            self.engine.check_checksums(&mut segment);
            self.flight.at(io.now).packet(&segment);
            call!(
                self,
                io,
                |recorder| recorder.begin_received(io.now, &segment),
                |engine, io| engine.receive_steered(&mut segment, io),
                nothing
            );
        }
        steered
    }

    /// Counts a packet that is not a segment or not for a GID of this device.
    pub fn count_bad_packet(&mut self, wrong_crc: bool) {
        self.flight.note(Kind::BadPacket, 0, 0);
        self.plain(
            || Input::BadPacket(wrong_crc),
            |engine| engine.count_bad_packet(wrong_crc),
            |()| true,
            nothing,
        );
    }

    /// Acts on the timers that are due.
    pub fn advance<M: Memory>(&mut self, io: &mut Io<'_, M>) {
        self.flight.at(io.now).note(Kind::Timer, 0, 0);
        call!(
            self,
            io,
            |recorder| recorder.begin(io.now, |out| Input::Advance.put(out)),
            |engine, io| engine.advance(io),
            nothing
        );
    }

    /// Returns the next asynchronous event. Call it when the driver has a buffer for one.
    pub fn next_async_event(&mut self) -> Option<AsyncEvent> {
        let faulty = !self.faults().is_idle();
        if !faulty && self.engine.resources.async_events.is_empty() {
            return None;
        }
        self.plain(
            || Input::AsyncEvent,
            Engine::next_async_event,
            |event| event.is_some() || faulty,
            |digest, event| digest.string(event.as_ref().map_or(&[], |event| event.as_bytes())),
        )
    }

    /// Returns the next completion event of a vector. Call it when the driver has a buffer for one.
    pub fn next_completion_event(&mut self, vector: u16) -> Option<CompletionEvent> {
        if self.engine.resources.completion_events.is_empty(vector) {
            return None;
        }
        self.plain(
            || Input::CompletionEvent(vector),
            |engine| engine.next_completion_event(vector),
            Option::is_some,
            |digest, event| digest.string(event.as_ref().map_or(&[], |event| event.as_bytes())),
        )
    }

    /// Brings the link of the port up or down. While the port is down, everything that is sent or received is lost.
    pub fn set_link(&mut self, up: bool) {
        self.flight.note(Kind::Link, up.into(), 0);
        self.plain(
            || Input::SetLink(up),
            |engine| engine.set_link(up),
            |()| true,
            nothing,
        );
    }

    /// Sets the state of the port of a device on a subnet after a subnet manager or the link changed it. With
    /// `reregister`, also asks clients to register again. Raises the events for the changes.
    pub fn set_hca_port(&mut self, port: HcaPort, reregister: bool) {
        self.flight.note(Kind::Link, 2, 0);
        let saved = self.recorder.is_some().then(|| port.clone());
        self.plain(
            || Input::SetHcaPort(Box::new(saved.unwrap_or_default()), reregister),
            |engine| engine.set_hca_port(port, reregister),
            |()| true,
            nothing,
        );
    }

    /// Takes the next request of a command to an agent of the port.
    pub fn next_port_request(&mut self) -> Option<PortRequest> {
        self.plain(
            || Input::PortRequest,
            Engine::next_port_request,
            Option::is_some,
            |digest, request| digest.string(format!("{request:?}").as_bytes()),
        )
    }

    /// Passes on the agent's answer to a command's request. The command has to be executed again.
    pub fn answer_port_request(&mut self, answer: PortAnswer) {
        let saved = self.recorder.is_some().then(|| answer.clone());
        self.plain(
            || Input::PortAnswer(saved.unwrap_or(PortAnswer::Passed)),
            |engine| engine.answer_port_request(answer),
            |()| true,
            nothing,
        );
    }

    /// Takes the next report of a packet with a wrong key, for the agent to count and report.
    pub fn next_violation(&mut self) -> Option<Violation> {
        self.plain(
            || Input::Violation,
            Engine::next_violation,
            Option::is_some,
            |digest, violation| digest.string(format!("{violation:?}").as_bytes()),
        )
    }

    /// Sets the rate limit of the device from now on.
    pub fn set_rate_limit(&mut self, limit: RateLimit) {
        self.flight.note(Kind::RateLimit, 0, 0);
        self.plain(
            || Input::SetRateLimit(limit),
            |engine| engine.set_rate_limit(limit),
            |()| true,
            nothing,
        );
    }

    /// Lets everything wait that is for `receiver`, answers of connections as well, until [`resume`](Self::resume) is
    /// called. Only congestion notifications are still sent, and the last acknowledgement of a queue pair that fails.
    /// What goes to others is sent as before.
    pub fn pause(&mut self, receiver: Gid) {
        self.flight.note(Kind::Pause, 1, 0);
        self.plain(
            || Input::Pause(receiver),
            |engine| engine.pause(receiver),
            |()| true,
            nothing,
        );
    }

    /// Sends to `receiver` again.
    pub fn resume(&mut self, receiver: &Gid) {
        self.flight.note(Kind::Pause, 0, 0);
        self.plain(
            || Input::Resume(*receiver),
            |engine| engine.resume(receiver),
            |()| true,
            nothing,
        );
    }

    /// Returns the faults of the device, to arm or clear some. The caller must call [`advance`](Self::advance)
    /// afterwards.
    pub fn faults_mut(&mut self) -> Armory<'_> {
        self.flight.note(Kind::Fault, 0, 0);
        self.turn();
        Armory {
            faults: self.engine.faults_mut(),
            recorder: self
                .recorder
                .as_deref_mut()
                .filter(|recorder| recorder.goes_on()),
            of_line: false,
        }
    }

    /// Replaces the faults of the device with `faults`: those of the device before a reset, which are at rest.
    pub fn set_faults(&mut self, faults: Faults) {
        let saved = self.recorder.is_some().then(|| faults.saved());
        self.plain(
            || Input::SetFaults(saved.unwrap_or_default()),
            |engine| engine.set_faults(faults),
            |()| true,
            nothing,
        );
    }

    /// Takes the faults of the device, which is left without any.
    pub fn take_faults(&mut self) -> Faults {
        self.plain(
            || Input::SetFaults(crate::fault::Saved::default()),
            Engine::take_faults,
            |_| true,
            |_, _| {},
        )
    }

    /// Returns how the reply to the last command is to be delivered, and resets this.
    pub fn take_delivery(&mut self) -> Delivery {
        self.plain(
            || Input::TakeDelivery,
            Engine::take_delivery,
            |delivery| *delivery != Delivery::Now,
            |digest, delivery| match delivery {
                Delivery::Now => digest.byte(0),
                Delivery::Late(delay) => digest.number(delay.as_nanos() as u64),
                Delivery::Twice => digest.byte(2),
                Delivery::Never => digest.byte(3),
            },
        )
    }

    /// Returns what to make persistent next, one range in each block of memory. Returns `None` if there is nothing, or
    /// if [`synced`](Self::synced) has not been called since the last request.
    pub fn next_sync(&mut self) -> Option<Vec<HostRange>> {
        if !self.wants_sync() {
            return None;
        }
        self.plain(
            || Input::NextSync,
            Engine::next_sync,
            |_| true,
            |digest, ranges| {
                for range in ranges.iter().flatten() {
                    put_range(digest, range);
                }
            },
        )
    }

    /// Reports whether the ranges from the last [`next_sync`](Self::next_sync) were made persistent. The caller must
    /// call [`poll`](Self::poll) afterwards.
    pub fn synced(&mut self, done: bool) {
        self.flight.note(Kind::Synced, 0, 0);
        self.plain(
            || Input::Synced(done),
            |engine| engine.synced(done),
            |()| true,
            nothing,
        );
    }

    /// Returns up to `limit` recent steps of the device, from number `from` on. The device traces its steps as long as
    /// this is called, and for a while after, with timestamps in nanoseconds from `clock`. Tracing does not change what
    /// the device does.
    pub fn trace(&mut self, clock: fn() -> u64, from: u64, limit: usize) -> TracePage {
        self.engine.resources.trace.look(clock, from, limit)
    }

    /// Takes the oldest explanation of something that went wrong. The device keeps a few hundred.
    pub fn next_explanation(&mut self) -> Option<Explanation> {
        if self.engine.resources.record.is_empty() {
            return None;
        }
        self.plain(
            || Input::Explanation,
            Engine::next_explanation,
            Option::is_some,
            |digest, explanation| digest.string(format!("{explanation:?}").as_bytes()),
        )
    }
}

/// The faults of a device or of a [`Line`](crate::fault::Line), to arm or clear some.
#[derive(Debug)]
pub struct Armory<'a> {
    faults: &'a mut Faults,
    recorder: Option<&'a mut Recorder>,
    /// Whether the faults are those of a line, which does not support all faults.
    of_line: bool,
}

impl<'a> Armory<'a> {
    /// Wraps the faults of a device that is not recorded.
    pub fn new(faults: &'a mut Faults) -> Self {
        Self {
            faults,
            recorder: None,
            of_line: false,
        }
    }

    /// Wraps the faults of a line.
    pub(crate) fn of_line(faults: &'a mut Faults) -> Self {
        Self {
            of_line: true,
            ..Self::new(faults)
        }
    }

    /// Arms a fault and returns its number. The fault takes effect with the next call of the device.
    ///
    /// # Errors
    ///
    /// Too many faults are armed, a line does not support the fault, or it waits for a fault that will never fire.
    pub fn arm(&mut self, spec: Spec, now: Instant) -> Result<u64, BadSpec> {
        if self.of_line {
            spec.check_for_port()?;
        }
        // A recording does not know faults that are done.
        let spec = self.faults.ready(spec)?;
        if let Some(recorder) = &mut self.recorder {
            recorder.begin(now, |out| Input::Arm(spec.to_string()).put(out));
        }
        let armed = self.faults.arm(spec, now);
        if let Some(recorder) = &mut self.recorder {
            recorder.finish(|digest| digest.number(armed.as_ref().map_or(0, |id| *id)));
        }
        armed
    }

    /// Disarms one fault, or all, and returns how many there were. Lasting effects end with the next call of the
    /// device.
    pub fn clear(&mut self, id: Option<u64>) -> usize {
        if let Some(recorder) = &mut self.recorder {
            recorder.begin_untimed(|out| Input::Clear(id).put(out));
        }
        let count = self.faults.clear(id);
        if let Some(recorder) = &mut self.recorder {
            // The count includes faults that are done, which concern neither the engine nor a recording.
            recorder.finish(|_| {});
        }
        count
    }
}

impl Deref for Armory<'_> {
    type Target = Faults;

    fn deref(&self) -> &Faults {
        self.faults
    }
}
