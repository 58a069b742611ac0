// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Replays recordings.
//!
//! A replay records again: it calls an engine in the same way as the recorded one, lets it find in memory what that one
//! found, and records it. The two recordings must be equal, byte by byte.

use super::format::{Access, BadRecording, Call, Input, KEPT_PAYLOAD, Outcome, Recording};
use crate::{
    device::Rnic,
    explain::Explanation,
    memory::{GuestAddress, HostRange, Memory, RegionId, Unmapped},
    resources::Io,
    segment::{Outbox, Segment},
    subnet::HcaPort,
    time::Instant,
    trace::TracePage,
};
use std::{
    cell::{Cell, RefCell},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};
use vrnic_wire::event::{AsyncEvent, CompletionEvent};

/// An access of the engine to guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touch {
    /// Resolve an address to a host range of this length.
    Resolve(GuestAddress, u64),
    /// Ask whether a block is persistent.
    PersistentLength(RegionId),
    /// Read bytes.
    Read(HostRange),
    /// Read bytes that the engine does not interpret.
    ReadPayload(HostRange),
    /// Store bytes.
    Write(HostRange, Vec<u8>),
    /// Store bytes that the engine does not interpret.
    WritePayload(HostRange),
    /// Interpret this number of bytes of a payload that arrived.
    Interpret(usize),
    /// Copy the first range to the second.
    Copy(HostRange, HostRange),
    /// Store zeros.
    Clear(HostRange),
    /// Load a word.
    Load(HostRange),
    /// Store a word.
    Store(HostRange, u64),
    /// Exchange a word, and return the old one.
    Swap(HostRange, u64),
    /// Add to a word, and return the old one.
    Add(HostRange, u64),
    /// Exchange a word for the second value if it is the first, and return the old one.
    Compare(HostRange, u64, u64),
}

/// Result of a call.
#[derive(Clone, Debug)]
pub enum Output {
    /// Nothing of interest.
    Nothing,
    /// Whether there was work.
    Worked(bool),
    /// The reply to a command, if it is finished.
    Reply(Option<Vec<u8>>),
    /// An asynchronous event.
    AsyncEvent(Option<AsyncEvent>),
    /// A completion event.
    CompletionEvent(Option<CompletionEvent>),
    /// An explanation of something that went wrong.
    Explanation(Option<Explanation>),
    /// The engine panicked with this message.
    Panicked(String),
}

/// What happened in a call.
#[derive(Debug)]
pub struct Step {
    /// Its result.
    pub output: Output,
    /// Segments that it sent.
    pub segments: Vec<Segment<'static>>,
    /// Its accesses to guest memory, and what they found.
    pub touches: Vec<(Touch, Access)>,
}

/// A difference between a replay and its recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Number of the call.
    pub call: u64,
    /// Time of the call.
    pub now: Instant,
    /// The difference, in words.
    pub what: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { call, now, what } = self;
        write!(
            f,
            "call {call} at {} ns differs from the recording: {what}",
            now.as_nanos()
        )
    }
}

impl std::error::Error for Divergence {}

/// Why a replay ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The recording is broken.
    Bad(BadRecording),
    /// The engine did something different.
    Divergence(Divergence),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bad(bad) => bad.fmt(f),
            Self::Divergence(divergence) => divergence.fmt(f),
        }
    }
}

impl std::error::Error for Failed {}

impl From<BadRecording> for Failed {
    fn from(bad: BadRecording) -> Self {
        Self::Bad(bad)
    }
}

/// Memory in which the engine finds what the recording has.
#[derive(Debug)]
struct Script<'a> {
    accesses: &'a [Access],
    next: Cell<usize>,
    wrong: RefCell<Option<String>>,
    touches: RefCell<Vec<(Touch, Access)>>,
}

impl Script<'_> {
    /// Returns the next access if it is what the engine wants.
    fn find(&self, touch: impl FnOnce() -> Touch, fits: impl FnOnce(&Access) -> bool) -> Access {
        let next = self.next.get();
        self.next.set(next + 1);
        let found = self.accesses.get(next);
        if let Some(access) = found
            && (fits(access) || *access == Access::Unmapped)
        {
            self.touches.borrow_mut().push((touch(), access.clone()));
            return access.clone();
        }
        let mut wrong = self.wrong.borrow_mut();
        if wrong.is_none() {
            let there = match found {
                Some(access) => format!("the recording has {access:?}"),
                None => "the recording has none".into(),
            };
            *wrong = Some(format!("access {next} is {:?}; {there}", touch()));
        }
        Access::Unmapped
    }

    fn done(&self, touch: impl FnOnce() -> Touch) -> Result<(), Unmapped> {
        match self.find(touch, |access| *access == Access::Done) {
            Access::Done => Ok(()),
            _ => Err(Unmapped),
        }
    }

    fn word(&self, touch: impl FnOnce() -> Touch) -> Result<u64, Unmapped> {
        match self.find(touch, |access| matches!(access, Access::Word(_))) {
            Access::Word(word) => Ok(word),
            _ => Err(Unmapped),
        }
    }
}

/// Returns the word at `offset` of a range, which may be outside of the range.
fn word(range: HostRange, offset: u64, length: u64) -> HostRange {
    HostRange {
        offset: range.offset.wrapping_add(offset),
        length,
        ..range
    }
}

/// Returns the first bytes of a range.
fn first(range: HostRange, length: usize) -> HostRange {
    HostRange {
        length: length as u64,
        ..range
    }
}

impl Memory for Script<'_> {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let fits = |access: &Access| matches!(access, Access::Resolved(..) | Access::Nothing);
        match self.find(|| Touch::Resolve(address, length), fits) {
            Access::Resolved(region, offset) => Some(HostRange {
                region,
                offset,
                length,
            }),
            _ => None,
        }
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        let fits = |access: &Access| matches!(access, Access::Length(_) | Access::Nothing);
        match self.find(|| Touch::PersistentLength(region), fits) {
            Access::Length(length) => Some(length),
            _ => None,
        }
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        let touch = || Touch::Read(first(from, buffer.len()));
        let fits =
            |access: &Access| matches!(access, Access::Read(bytes) if bytes.len() == buffer.len());
        match self.find(touch, fits) {
            Access::Read(bytes) => {
                buffer.copy_from_slice(&bytes);
                Ok(())
            }
            _ => Err(Unmapped),
        }
    }

    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        let touch = || Touch::ReadPayload(first(from, buffer.len()));
        let short = buffer.len() <= KEPT_PAYLOAD;
        let fits = |access: &Access| match access {
            Access::Read(bytes) => short && bytes.len() == buffer.len(),
            access => !short && *access == Access::Skipped,
        };
        match self.find(touch, fits) {
            Access::Read(bytes) => buffer.copy_from_slice(&bytes),
            Access::Skipped => buffer.fill(0),
            _ => return Err(Unmapped),
        }
        Ok(())
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        self.done(|| Touch::Write(first(to, bytes.len()), bytes.to_vec()))
    }

    fn write_payload(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        self.done(|| Touch::WritePayload(first(to, bytes.len())))
    }

    fn interpret(&self, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let touch = || Touch::Interpret(bytes.len());
        let fits =
            |access: &Access| matches!(access, Access::Read(kept) if kept.len() == bytes.len());
        match self.find(touch, fits) {
            Access::Read(kept) => {
                bytes.copy_from_slice(&kept);
                Ok(())
            }
            _ => Err(Unmapped),
        }
    }

    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
        self.done(|| Touch::Copy(from, to))
    }

    fn clear(&self, to: HostRange) -> Result<(), Unmapped> {
        self.done(|| Touch::Clear(to))
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        let value = self.word(|| Touch::Load(word(range, offset, 4)))?;
        Ok(value as u32)
    }

    fn glance(&self, _: HostRange, _: u64) -> Result<Option<u32>, Unmapped> {
        Ok(None)
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        self.done(|| Touch::Store(word(range, offset, 4), value.into()))
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        self.done(|| Touch::Store(word(range, offset, 1), value.into()))
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        self.word(|| Touch::Load(word(range, offset, 8)))
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.word(|| Touch::Swap(word(range, offset, 8), value))
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        self.word(|| Touch::Add(word(range, offset, 8), value))
    }

    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        self.word(|| Touch::Compare(word(range, offset, 8), current, new))
    }

    fn fence(&self) {}
}

/// Makes the call to `rnic` that `input` describes. Segments that it sends stay in the outbox.
pub fn perform<M: Memory>(rnic: &mut Rnic, input: &Input, io: &mut Io<'_, M>) -> Output {
    match input {
        Input::Execute(request) => {
            let mut reply = Vec::new();
            let done = rnic.execute(request, &mut reply, io);
            return Output::Reply(done.then_some(reply));
        }
        Input::Doorbell(page, value) => rnic.doorbell(*page, *value),
        Input::Poll(budget) => return Output::Worked(rnic.poll(*budget, io)),
        Input::PrepareSleep => return Output::Worked(rnic.prepare_sleep(io)),
        Input::Receive(segment) => rnic.receive_checked(&mut Segment::clone(segment), io),
        Input::BadPacket(wrong_crc) => rnic.count_bad_packet(*wrong_crc),
        Input::Advance => rnic.advance(io),
        Input::AsyncEvent => return Output::AsyncEvent(rnic.next_async_event()),
        Input::CompletionEvent(vector) => {
            return Output::CompletionEvent(rnic.next_completion_event(*vector));
        }
        Input::SetLink(up) => rnic.set_link(*up),
        Input::SetRateLimit(limit) => rnic.set_rate_limit(*limit),
        Input::Pause(receiver) => rnic.pause(*receiver),
        Input::Resume(receiver) => rnic.resume(receiver),
        Input::Arm(text) => {
            if let Ok(spec) = text.parse() {
                let _ = rnic.faults_mut().arm(spec, io.now);
            }
        }
        Input::Clear(id) => {
            rnic.faults_mut().clear(*id);
        }
        Input::SetFaults(saved) => {
            let faults = crate::Faults::from_saved(saved);
            rnic.set_faults(faults.unwrap_or_default());
        }
        Input::NextSync => {
            rnic.next_sync();
        }
        Input::Synced(done) => rnic.synced(*done),
        Input::TakeDelivery => {
            rnic.take_delivery();
        }
        Input::Explanation => return Output::Explanation(rnic.next_explanation()),
        Input::SetHcaPort(port, reregister) => {
            rnic.set_hca_port(HcaPort::clone(port), *reregister);
        }
        Input::PortRequest => {
            rnic.next_port_request();
        }
        Input::PortAnswer(answer) => rnic.answer_port_request(answer.clone()),
        Input::Violation => {
            rnic.next_violation();
        }
        Input::Mark => rnic.mark(),
    }
    Output::Nothing
}

/// A replay.
#[derive(Debug)]
pub struct Player<'a> {
    recording: Recording<'a>,
    rnic: Rnic,
    outbox: Outbox,
    over: bool,
}

impl<'a> Player<'a> {
    /// Starts a replay of the recording in `bytes`.
    ///
    /// # Errors
    ///
    /// The bytes are not a valid recording.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BadRecording> {
        let recording = Recording::new(bytes)?;
        let at = recording.position();
        let what = "the state comes from another version of the engine";
        let mut rnic = Rnic::resumed(recording.header()).ok_or(BadRecording { at, what })?;
        if let Some(recorder) = rnic.recorder() {
            // The header is not part of any call.
            recorder.take();
        }
        Ok(Self {
            rnic,
            recording,
            outbox: Outbox::new(),
            over: false,
        })
    }

    /// Returns the recording, as far as it has been read.
    pub fn recording(&self) -> &Recording<'a> {
        &self.recording
    }

    /// Returns the device in its state after the last call.
    pub fn rnic(&self) -> &Rnic {
        &self.rnic
    }

    /// Returns steps of the device from number `from` on; see [`Rnic::trace`]. The first call starts the trace.
    pub fn trace(&mut self, clock: fn() -> u64, from: u64, limit: usize) -> TracePage {
        self.rnic.trace(clock, from, limit)
    }

    /// Returns the explanations that were still unread when the recording ended. Nothing can be replayed after this.
    pub fn leftovers(&mut self) -> Vec<Explanation> {
        self.over = true;
        std::iter::from_fn(|| self.rnic.next_explanation()).collect()
    }

    /// Returns the time of the next call; `None` after the last one.
    pub fn next_time(&self) -> Option<Instant> {
        self.recording.next_time().filter(|_| !self.over)
    }

    /// Makes the next call. Returns `None` after the last one.
    ///
    /// # Errors
    ///
    /// The recording is broken, or the engine did something different. Then the replay has ended.
    #[allow(
        clippy::should_implement_trait,
        reason = "the device is looked at between steps"
    )]
    pub fn next(&mut self) -> Option<Result<(Call, Step), Failed>> {
        if self.over {
            return None;
        }
        let start = self.recording.position();
        let call = match self.recording.next()? {
            Ok(call) => call,
            Err(bad) => {
                self.over = true;
                return Some(Err(bad.into()));
            }
        };
        let step = self.step(&call, start);
        self.over = step.is_err();
        Some(match step {
            Ok(step) => Ok((call, step)),
            Err(what) => Err(Failed::Divergence(Divergence {
                call: call.index,
                now: call.now,
                what,
            })),
        })
    }

    fn step(&mut self, call: &Call, start: usize) -> Result<Step, String> {
        let script = Script {
            accesses: &call.accesses,
            next: Cell::new(0),
            wrong: RefCell::default(),
            touches: RefCell::default(),
        };
        let (rnic, outbox) = (&mut self.rnic, &mut self.outbox);
        let mut io = Io {
            memory: &script,
            now: call.now,
            outbox,
        };
        let output = catch_unwind(AssertUnwindSafe(|| perform(rnic, &call.input, &mut io)));
        let output = output.unwrap_or_else(|payload| Output::Panicked(panic_message(&*payload)));
        let panicked = matches!(output, Output::Panicked(_));
        let segments = std::mem::take(&mut outbox.segments);
        if let Some(what) = script.wrong.take() {
            return Err(what);
        }
        match (&output, call.outcome) {
            (Output::Panicked(message), Outcome::Returned(_)) => {
                return Err(format!("the engine panics: {message}"));
            }
            (_, Outcome::Panicked) if !panicked => {
                return Err("the engine panicked in the recording".into());
            }
            _ => {}
        }
        let unused = call.accesses.len().saturating_sub(script.next.get());
        if unused > 0 {
            return Err(format!("{unused} recorded accesses to memory are missing"));
        }
        let again = self.rnic.recorder().map(|recorder| {
            if panicked {
                recorder.end("panic");
            }
            recorder.take()
        });
        let before = self.recording.bytes_from(start);
        if !again.is_some_and(|again| again.starts_with(before)) {
            return Err("the call returned, stored or sent something else".into());
        }
        Ok(Step {
            output,
            segments,
            touches: script.touches.into_inner(),
        })
    }
}

/// Returns the message of a panic.
pub fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".into())
}

/// Replays a whole recording and returns the number of calls.
///
/// # Errors
///
/// The recording is broken, or the engine did something different.
pub fn replay(bytes: &[u8]) -> Result<u64, Failed> {
    let mut player = Player::new(bytes)?;
    let mut calls = 0;
    while let Some(step) = player.next() {
        step?;
        calls += 1;
    }
    Ok(calls)
}
