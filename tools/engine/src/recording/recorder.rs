// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Makes recordings.

use super::{
    digest::Digest,
    format::{
        BYTEWISE, Header, KEPT_PAYLOAD, MAX_REPEATED, Put, fold_sign, put_ending, put_received,
        put_segment, tag,
    },
};
use crate::{
    memory::{GuestAddress, HostRange, Memory, RegionId, Unmapped},
    resources::Io,
    segment::{Path, Segment},
    time::Instant,
};
use std::cell::RefCell;

/// Bytes of a recording that have not been taken yet, and the state on which the next bytes depend.
#[derive(Debug)]
struct Log {
    buffer: Vec<u8>,
    /// Number of bytes that were taken.
    taken: u64,
    limit: u64,
    /// Time of the last call.
    now: u64,
    /// Where the current call begins in the buffer, and where the part after its time begins, which may be a
    /// repetition.
    call: Option<(usize, usize)>,
    /// The last call without its time, if it may be repeated.
    last: Vec<u8>,
    /// Path of the last packet that arrived since the start or the last mark.
    path: Option<Path>,
    /// Version of the format.
    version: u8,
    digest: Digest,
    over: bool,
}

/// Records the calls of one engine. Bytes are kept here until they are [taken](Self::take).
#[derive(Debug)]
pub struct Recorder {
    log: RefCell<Log>,
}

impl Recorder {
    /// Starts a recording of a device in the state that the header gives. It ends by itself with the call after which
    /// it has `limit` bytes or more.
    pub fn new(header: &Header, limit: u64) -> Self {
        let mut buffer = Vec::new();
        header.put(&mut buffer);
        Self {
            log: RefCell::new(Log {
                buffer,
                taken: 0,
                limit,
                now: header.start.as_nanos(),
                call: None,
                last: Vec::new(),
                path: None,
                version: header.version,
                digest: Digest::new(header.version),
                over: false,
            }),
        }
    }

    /// Takes what was recorded since the last call of this.
    pub fn take(&mut self) -> Vec<u8> {
        let log = self.log.get_mut();
        if log.call.is_some() {
            return Vec::new();
        }
        log.taken += log.buffer.len() as u64;
        std::mem::take(&mut log.buffer)
    }

    /// Swaps the bytes that have not been taken for an empty vector, whose allocation is used from now on.
    pub(crate) fn swap(&mut self, other: &mut Vec<u8>) {
        other.clear();
        std::mem::swap(&mut self.log.get_mut().buffer, other);
    }

    /// Returns the time of the last call.
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.log.borrow().now)
    }

    /// Returns whether the last call did not return.
    pub(crate) fn has_panicked(&self) -> bool {
        self.log.borrow().call.is_some()
    }

    /// Returns the number of bytes that have not been taken yet.
    pub fn waiting(&self) -> usize {
        self.log.borrow().buffer.len()
    }

    /// Returns the total number of bytes so far.
    pub fn length(&self) -> u64 {
        let log = self.log.borrow();
        log.taken + log.buffer.len() as u64
    }

    /// Returns whether it has ended, so that nothing more is recorded.
    pub fn is_over(&self) -> bool {
        self.log.borrow().over
    }

    /// Returns whether it will record the next call. If the previous one did not return, the recording ends.
    pub(crate) fn goes_on(&self) -> bool {
        let mut log = self.log.borrow_mut();
        if log.call.is_some() {
            log.end("panic");
        }
        !log.over
    }

    /// Ends the recording, and gives the reason. If a call did not return, it panicked.
    pub fn end(&mut self, why: &str) {
        self.log.get_mut().end(why);
    }

    /// Begins to record a call that `put` writes.
    pub(crate) fn begin(&mut self, now: Instant, put: impl FnOnce(&mut Vec<u8>)) {
        self.log.get_mut().begin(now.as_nanos(), put);
    }

    /// Does the same as [`begin`](Self::begin) for a call that has no time.
    pub(crate) fn begin_untimed(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        let log = self.log.get_mut();
        log.begin(log.now, put);
    }

    /// Begins to record a segment that arrives.
    pub(crate) fn begin_received(&mut self, now: Instant, segment: &Segment<'_>) {
        let log = self.log.get_mut();
        let (version, mut path) = (log.version, log.path.take());
        log.begin(now.as_nanos(), |out| {
            out.byte(tag::RECEIVE);
            if version <= BYTEWISE {
                put_segment(out, segment);
            } else {
                put_received(out, segment, &mut path);
            }
        });
        log.path = path;
    }

    /// Marks the end of a half of a flight recorder. What follows does not depend on earlier calls, except for its
    /// time.
    pub(crate) fn mark(&mut self) {
        self.begin_untimed(|out| out.byte(tag::MARK));
        self.finish(|_| {});
        self.log.get_mut().path = None;
    }

    /// Makes the call that has begun, and records what it reads from guest memory, does there, and sends.
    pub(crate) fn during<M: Memory, R>(
        &mut self,
        io: &mut Io<'_, M>,
        work: impl FnOnce(&mut Io<'_, Tap<'_, M>>) -> R,
    ) -> R {
        let before = io.outbox.segments.len();
        let tap = Tap {
            inner: io.memory,
            log: &self.log,
        };
        let result = work(&mut Io {
            memory: &tap,
            now: io.now,
            outbox: io.outbox,
        });
        let log = self.log.get_mut();
        for segment in &io.outbox.segments[before..] {
            log.digest.segment(segment);
        }
        result
    }

    /// Finishes a call that returned; `outcome` adds its result to the digest.
    pub(crate) fn finish(&mut self, outcome: impl FnOnce(&mut Digest)) {
        let log = self.log.get_mut();
        outcome(&mut log.digest);
        log.finish();
    }

    /// Removes the call that has begun, because it did nothing that matters. It must be one without a time.
    pub(crate) fn forget(&mut self) {
        let log = self.log.get_mut();
        if let Some((start, _)) = log.call.take() {
            log.buffer.truncate(start);
        }
    }
}

impl Log {
    fn begin(&mut self, now: u64, put: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        // A device's time never goes backwards, but that of tests does.
        let passed = now.wrapping_sub(self.now).cast_signed();
        self.buffer.number(fold_sign(passed));
        self.now = now;
        self.call = Some((start, self.buffer.len()));
        put(&mut self.buffer);
        self.digest.restart();
    }

    fn finish(&mut self) {
        let Some((_, body)) = self.call.take() else {
            return;
        };
        let mut end = [tag::END; 9];
        end[1..].copy_from_slice(&self.digest.value().to_le_bytes());
        self.buffer.bytes(&end);
        let written = &self.buffer[body..];
        if written == self.last {
            self.buffer.truncate(body);
            self.buffer.byte(tag::REPEAT);
        } else {
            self.last.clear();
            if written.len() <= MAX_REPEATED {
                self.last.extend_from_slice(written);
            }
        }
        if self.taken + self.buffer.len() as u64 >= self.limit {
            self.end("full");
        }
    }

    fn end(&mut self, why: &str) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        if self.call.take().is_some() {
            self.buffer.byte(tag::PANIC);
        }
        put_ending(&mut self.buffer, why);
    }

    /// Records the result of an access to guest memory.
    fn done(&mut self, result: Result<(), Unmapped>) {
        self.buffer.byte(match result {
            Ok(()) => tag::DONE,
            Err(Unmapped) => tag::UNMAPPED,
        });
    }

    fn word(&mut self, result: Result<u64, Unmapped>) {
        match result {
            Ok(word) => {
                self.buffer.byte(tag::WORD);
                self.buffer.number(word);
            }
            Err(Unmapped) => self.buffer.byte(tag::UNMAPPED),
        }
    }
}

/// Guest memory whose accesses are recorded.
#[derive(Debug)]
pub(crate) struct Tap<'a, M> {
    inner: &'a M,
    log: &'a RefCell<Log>,
}

impl<M: Memory> Memory for Tap<'_, M> {
    fn resolve(&self, address: GuestAddress, length: u64) -> Option<HostRange> {
        let result = self.inner.resolve(address, length);
        let log = &mut *self.log.borrow_mut();
        log.digest.add(0);
        log.digest.pair(address.0, length);
        match &result {
            Some(range) => {
                log.buffer.byte(tag::RESOLVED);
                log.buffer.number(range.region.0.into());
                log.buffer.number(range.offset);
            }
            None => log.buffer.byte(tag::NOTHING),
        }
        result
    }

    fn persistent_length(&self, region: RegionId) -> Option<u64> {
        let result = self.inner.persistent_length(region);
        let log = &mut *self.log.borrow_mut();
        log.digest.pair(1, region.0.into());
        match result {
            Some(length) => {
                log.buffer.byte(tag::LENGTH);
                log.buffer.number(length);
            }
            None => log.buffer.byte(tag::NOTHING),
        }
        result
    }

    fn read(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        let result = self.inner.read(from, buffer);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(2, &from);
        match result {
            Ok(()) => {
                log.buffer.byte(tag::READ);
                log.buffer.string(buffer);
            }
            Err(Unmapped) => log.buffer.byte(tag::UNMAPPED),
        }
        result
    }

    fn read_payload(&self, from: HostRange, buffer: &mut [u8]) -> Result<(), Unmapped> {
        let result = self.inner.read_payload(from, buffer);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(3, &from);
        log.digest.add(buffer.len() as u64);
        match result {
            Ok(()) if buffer.len() <= KEPT_PAYLOAD => {
                log.buffer.byte(tag::READ);
                log.buffer.string(buffer);
            }
            Ok(()) => log.buffer.byte(tag::SKIPPED),
            Err(Unmapped) => log.buffer.byte(tag::UNMAPPED),
        }
        result
    }

    fn write(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        let result = self.inner.write(to, bytes);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(4, &to);
        log.digest.string(bytes);
        log.done(result);
        result
    }

    fn write_payload(&self, to: HostRange, bytes: &[u8]) -> Result<(), Unmapped> {
        let result = self.inner.write_payload(to, bytes);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(5, &to);
        log.digest.add(bytes.len() as u64);
        log.done(result);
        result
    }

    fn interpret(&self, bytes: &mut [u8]) -> Result<(), Unmapped> {
        let result = self.inner.interpret(bytes);
        let log = &mut *self.log.borrow_mut();
        log.digest.pair(15, bytes.len() as u64);
        match result {
            Ok(()) => {
                log.buffer.byte(tag::READ);
                log.buffer.string(bytes);
            }
            Err(Unmapped) => log.buffer.byte(tag::UNMAPPED),
        }
        result
    }

    fn copy(&self, from: HostRange, to: HostRange) -> Result<(), Unmapped> {
        let result = self.inner.copy(from, to);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(6, &from);
        log.digest.range(6, &to);
        log.done(result);
        result
    }

    fn clear(&self, to: HostRange) -> Result<(), Unmapped> {
        let result = self.inner.clear(to);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(7, &to);
        log.done(result);
        result
    }

    fn load_u32(&self, range: HostRange, offset: u64) -> Result<u32, Unmapped> {
        let result = self.inner.load_u32(range, offset);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(8, &range);
        log.digest.add(offset);
        log.word(result.map(u64::from));
        result
    }

    fn glance(&self, range: HostRange, offset: u64) -> Result<Option<u32>, Unmapped> {
        self.inner.glance(range, offset)
    }

    fn store_u32(&self, range: HostRange, offset: u64, value: u32) -> Result<(), Unmapped> {
        let result = self.inner.store_u32(range, offset, value);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(9, &range);
        log.digest.pair(offset, value.into());
        log.done(result);
        result
    }

    fn store_u8(&self, range: HostRange, offset: u64, value: u8) -> Result<(), Unmapped> {
        let result = self.inner.store_u8(range, offset, value);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(10, &range);
        log.digest.pair(offset, value.into());
        log.done(result);
        result
    }

    fn load_u64(&self, range: HostRange, offset: u64) -> Result<u64, Unmapped> {
        let result = self.inner.load_u64(range, offset);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(11, &range);
        log.digest.add(offset);
        log.word(result);
        result
    }

    fn swap_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        let result = self.inner.swap_u64(range, offset, value);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(12, &range);
        log.digest.pair(offset, value);
        log.word(result);
        result
    }

    fn fetch_add_u64(&self, range: HostRange, offset: u64, value: u64) -> Result<u64, Unmapped> {
        let result = self.inner.fetch_add_u64(range, offset, value);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(13, &range);
        log.digest.pair(offset, value);
        log.word(result);
        result
    }

    fn compare_exchange_u64(
        &self,
        range: HostRange,
        offset: u64,
        current: u64,
        new: u64,
    ) -> Result<u64, Unmapped> {
        let result = self.inner.compare_exchange_u64(range, offset, current, new);
        let log = &mut *self.log.borrow_mut();
        log.digest.range(14, &range);
        log.digest.add(offset);
        log.digest.add(current);
        log.digest.add(new);
        log.word(result);
        result
    }

    fn fence(&self) {
        self.inner.fence();
    }
}
