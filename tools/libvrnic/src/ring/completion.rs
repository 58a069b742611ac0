// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The completion queue.

use super::outstanding::{Name, Outstanding};
use super::shared::SharedReceives;
use crate::memory::{Entries, Shared, full_fence};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use vrnic_wire::abi::Ring;
use vrnic_wire::completion::{CQE_STRIDE, Cqe, PHASE_OFFSET};
use vrnic_wire::ring::{Arm, RingHeader, offset, phase};

const QPN_OFFSET: usize = core::mem::offset_of!(Cqe, qpn);

/// Not the number of a queue pair: marks completions that were taken out.
const FORGOTTEN: u32 = u32::MAX;

/// The memory of a completion queue.
#[derive(Debug)]
struct CompletionRing {
    header: Shared,
    entries: Entries,
    count: u32,
}

impl CompletionRing {
    fn new(memory: &Shared, layout: &Ring) -> Self {
        assert_eq!(layout.stride, CQE_STRIDE);
        let first = layout.entries_offset as usize;
        Self {
            header: memory.part(layout.header_offset as usize, size_of::<RingHeader>()),
            entries: memory.entries(first, layout.entries, CQE_STRIDE),
            count: layout.entries,
        }
    }

    /// Returns the entry with index `index`.
    #[inline]
    fn entry(&self, index: u32) -> Shared {
        self.entries.at(index).part(0, CQE_STRIDE as usize)
    }

    /// Returns the entry with index `index`, if the device has written it.
    #[inline]
    fn written(&self, index: u32) -> Option<Shared> {
        let entry = self.entry(index);
        // Acquire: the device wrote the rest of the entry before its phase.
        let seen = entry.byte(PHASE_OFFSET).load(Ordering::Acquire);
        (seen == phase(index, self.count)).then_some(entry)
    }
}

/// A completion queue, as polled by the application.
#[derive(Debug)]
pub struct CompletionQueue {
    ring: CompletionRing,
    /// Index of the next entry to poll.
    next: u32,
    /// `next` as last published to the device.
    published: u32,
    /// Whether the device overwrites unpolled completions if the queue is full.
    ignores_overrun: bool,
    /// The latest request for an event.
    arm: Arm,
    /// Number of requests for an event for any completion, less the events that came. An event does
    /// not say which request it answers, so this is how many may still be waiting.
    any_wanted: u32,
    /// The queues whose completions arrive here, by their numbers.
    queues: Vec<Option<Arc<Outstanding>>>,
    /// Unused numbers of queues.
    free: Vec<u32>,
    /// The shared receive queues whose receives complete here, sorted by number, each with the
    /// number of queue pairs that use it with this completion queue.
    shared: Vec<(SharedReceives, usize)>,
}

impl CompletionQueue {
    /// Creates the queue described by `layout` in `memory`, which is zeroed.
    pub fn new(memory: Shared, layout: Ring) -> Self {
        Self {
            ring: CompletionRing::new(&memory, &layout),
            next: 0,
            published: 0,
            ignores_overrun: false,
            arm: Arm::default(),
            any_wanted: 0,
            queues: Vec::new(),
            free: Vec::new(),
            shared: Vec::new(),
        }
    }

    /// Prepares for lost completions. Must be called before there are any completions.
    pub fn ignore_overrun(&mut self) {
        self.ignores_overrun = true;
    }

    /// Adds a queue whose completions will arrive here and returns its number, or `None` if memory
    /// runs out.
    pub fn attach(&mut self, queue: Arc<Outstanding>) -> Option<u32> {
        if let Some(number) = self.free.pop() {
            self.queues[number as usize] = Some(queue);
            return Some(number);
        }
        let number = u32::try_from(self.queues.len()).ok()?;
        self.queues.try_reserve(1).ok()?;
        // Reserves the room that `detach` needs.
        self.free.try_reserve(self.queues.len() + 1).ok()?;
        self.queues.push(Some(queue));
        Some(number)
    }

    /// Removes a queue, which no longer exists on the device.
    pub fn detach(&mut self, number: u32) {
        if self.queues[number as usize].take().is_some() {
            self.free.push(number);
        }
    }

    /// Returns the position of a shared receive queue in the table, or that for inserting it as the
    /// error.
    #[inline]
    fn find_shared(&self, number: u32) -> Result<usize, usize> {
        self.shared
            .binary_search_by_key(&number, |(receives, _)| receives.number)
    }

    /// Records that one more queue pair, whose receives complete here, uses a shared receive queue.
    /// Returns false if memory runs out.
    pub fn attach_shared(&mut self, receives: &SharedReceives) -> bool {
        match self.find_shared(receives.number) {
            Ok(at) => self.shared[at].1 += 1,
            Err(_) if self.shared.try_reserve(1).is_err() => return false,
            Err(at) => self.shared.insert(at, (receives.clone(), 1)),
        }
        true
    }

    /// Records that a queue pair no longer uses a shared receive queue.
    pub fn detach_shared(&mut self, receives: &SharedReceives) {
        if let Ok(at) = self.find_shared(receives.number) {
            self.shared[at].1 -= 1;
            if self.shared[at].1 == 0 {
                self.shared.remove(at);
            }
        }
    }

    /// Completes the request that a completion refers to and returns its `wr_id`, or `None` if the
    /// request is not outstanding.
    #[inline]
    fn complete(&self, name: Name) -> Option<u64> {
        if SharedReceives::has(name) {
            return self.complete_shared(name);
        }
        let queue = self.queues.get(name.queue as usize)?;
        queue.as_ref()?.complete(name.index)
    }

    #[inline(never)]
    fn complete_shared(&self, name: Name) -> Option<u64> {
        let (receives, _) = &self.shared[self.find_shared(name.queue).ok()?];
        receives.places.lock().take(name.index)
    }

    /// Skips lost completions, if the queue ignores overruns.
    #[inline]
    fn skip_lost(&mut self) {
        if self.ignores_overrun {
            self.skip_to_oldest();
        }
    }

    #[cold]
    fn skip_to_oldest(&mut self) {
        let written = self.ring.header.word(offset::DEVICE_INDEX);
        let written = u32::from_le(written.load(Ordering::Acquire));
        let oldest = written.wrapping_sub(self.ring.count);
        // The device's index may be out of date, and may even be invalid.
        if oldest.wrapping_sub(self.next) < 1 << 31 {
            self.next = oldest;
        }
    }

    /// Returns the next completion, if there is one.
    // In its caller, the entry stays in registers.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<Cqe> {
        loop {
            self.skip_lost();
            let mut cqe: Cqe = self.ring.written(self.next)?.read(0);
            self.next = self.next.wrapping_add(1);
            if cqe.qpn.get() == FORGOTTEN {
                continue;
            }
            // A completion of a request that was never posted is ignored.
            if let Some(wr_id) = self.complete(Name::from_wire(cqe.wr_id.get())) {
                cqe.wr_id = wr_id.into();
                return Some(cqe);
            }
        }
    }

    /// Returns the next completion of a device that no longer writes any: once the ring is empty,
    /// outstanding requests are flushed.
    pub fn flush(&mut self) -> Option<Cqe> {
        // More completions may have been written since the ring was last found empty.
        self.pop()
            .or_else(|| self.queues.iter().flatten().find_map(|queue| queue.flush()))
    }

    /// Takes out the completions of a queue pair, which no longer has any on their way.
    pub fn forget(&mut self, qpn: u32) {
        self.skip_lost();
        for ahead in 0..self.ring.count {
            let index = self.next.wrapping_add(ahead);
            let written = self.ring.written(index).is_some();
            // If the device overwrites completions, those before this one may be of its next pass.
            if !written && !self.ignores_overrun {
                break;
            }
            let entry = self.ring.entry(index);
            // The driver may write to an entry until it returns the entry to the device. Nobody
            // reads one again that was polled.
            let number = entry.word(QPN_OFFSET);
            if u32::from_le(number.load(Ordering::Relaxed)) == qpn {
                number.store(FORGOTTEN.to_le(), Ordering::Relaxed);
                let name = Name::from_wire(entry.read::<Cqe>(0).wr_id.get());
                if written && SharedReceives::has(name) {
                    // The name may since have been reused for another receive.
                    self.complete(name);
                }
            }
        }
    }

    /// Returns the entries of polled completions to the device.
    #[inline]
    pub fn publish(&mut self) {
        if self.next != self.published {
            self.published = self.next;
            // Release: the entries have been read before the device may write to them again.
            self.ring
                .header
                .word(offset::DRIVER_INDEX)
                .store(self.next.to_le(), Ordering::Release);
        }
    }

    /// Prepares another ring, in zeroed memory, before the device is told about it: writes the
    /// consumer's state, and marks all entries as invalid. The queue itself changes only in
    /// [`CompletionQueue::move_to`].
    pub fn prepare(&mut self, memory: &Shared, layout: &Ring) {
        self.skip_lost();
        let ring = CompletionRing::new(memory, layout);
        ring.header
            .word(offset::DRIVER_INDEX)
            .store(self.next.to_le(), Ordering::Relaxed);
        ring.header
            .word(offset::ARM)
            .store(self.arm.raw().to_le(), Ordering::Relaxed);
        for ahead in 0..ring.count {
            let index = self.next.wrapping_add(ahead);
            ring.entries
                .at(index)
                .byte(PHASE_OFFSET)
                .store(phase(index, ring.count) ^ 1, Ordering::Relaxed);
        }
    }

    /// Switches to a prepared ring, to which the device is already writing. Copies the completions
    /// of the old ring, to which the device no longer writes.
    pub fn move_to(&mut self, memory: Shared, layout: Ring) {
        let ring = CompletionRing::new(&memory, &layout);
        for ahead in 0..self.ring.count {
            let index = self.next.wrapping_add(ahead);
            let Some(entry) = self.ring.written(index) else {
                break;
            };
            let mut cqe: Cqe = entry.read(0);
            cqe.phase = phase(index, ring.count);
            ring.entries.at(index).write(0, &cqe);
        }
        self.ring = ring;
        self.published = self.next;
    }

    /// Requests one event: for any completion, or for a solicited completion or an error.
    pub fn request_event(&mut self, solicited_only: bool) {
        self.arm = self.arm.again(solicited_only);
        if !solicited_only {
            self.any_wanted = self.any_wanted.saturating_add(1);
        } else if self.any_wanted > 0 {
            // A narrower request does not cancel a wider one (IBTA volume 1, 11.4.2.2).
            self.arm = self.arm.widen();
        }
        self.ring
            .header
            .word(offset::ARM)
            .store(self.arm.raw().to_le(), Ordering::Relaxed);
        // Either the device sees the request, or a poll after this call sees the completion.
        full_fence();
    }

    /// Records that the requested event came.
    pub fn event_came(&mut self) {
        self.any_wanted = self.any_wanted.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::shared::SharedQueue;
    use super::super::tests::ring;
    use super::*;
    use std::sync::atomic::AtomicBool;
    use vrnic_wire::completion::{Opcode, Status};

    fn put(memory: &Shared, index: u32, entries: u32, name: Name, qpn: u32) {
        let at = 1024 + (index & (entries - 1)) as usize * 64;
        let cqe = Cqe {
            wr_id: name.to_wire().into(),
            qpn: qpn.into(),
            byte_length: index.into(),
            phase: 1 - phase(index, entries),
            ..Cqe::default()
        };
        memory.write(at, &cqe);
        memory
            .byte(at + PHASE_OFFSET)
            .store(phase(index, entries), Ordering::Release);
    }

    /// Returns a queue with `count` requests, of which request `n` has the `wr_id` `base + n`, and
    /// its number.
    fn requests(queue: &mut CompletionQueue, base: u64, count: u32) -> (Arc<Outstanding>, u32) {
        let requests = Outstanding::new(count.next_power_of_two(), Opcode::Send).unwrap();
        for index in 0..count {
            requests.remember(index, base + u64::from(index)).unwrap();
        }
        requests.set_posted(count);
        let number = queue.attach(requests.clone()).unwrap();
        (requests, number)
    }

    #[test]
    fn completions_are_seen_once_in_each_pass() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_requests, queue) = requests(&mut polled, 100, 13);
        for index in 0..13 {
            assert!(polled.pop().is_none());
            put(&memory, index, 4, Name { queue, index }, 1);
            let cqe = polled.pop().unwrap();
            assert_eq!(
                (cqe.wr_id.get(), cqe.byte_length.get()),
                (100 + u64::from(index), index)
            );
            polled.publish();
            assert_eq!(
                memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed),
                index + 1
            );
        }
    }

    #[test]
    fn a_full_queue_is_read_whole() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_requests, queue) = requests(&mut polled, 0, 4);
        (0..4).for_each(|index| put(&memory, index, 4, Name { queue, index }, 1));
        assert_eq!(core::iter::from_fn(|| polled.pop()).count(), 4);
    }

    #[test]
    fn completions_of_a_queue_pair_that_is_gone_are_skipped() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_gone, gone) = requests(&mut polled, 100, 4);
        let (_staying, staying) = requests(&mut polled, 200, 4);
        put(
            &memory,
            0,
            4,
            Name {
                queue: staying,
                index: 0,
            },
            2,
        );
        put(
            &memory,
            1,
            4,
            Name {
                queue: gone,
                index: 0,
            },
            1,
        );
        put(
            &memory,
            2,
            4,
            Name {
                queue: staying,
                index: 1,
            },
            2,
        );
        put(
            &memory,
            3,
            4,
            Name {
                queue: gone,
                index: 1,
            },
            1,
        );
        assert_eq!(polled.pop().unwrap().wr_id.get(), 200);
        polled.forget(1);
        polled.detach(gone);
        let (_new, new) = requests(&mut polled, 300, 4);
        assert_eq!(new, gone, "numbers come back");
        assert_eq!(polled.pop().unwrap().wr_id.get(), 201);
        assert!(polled.pop().is_none());
        polled.publish();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 4);
        put(
            &memory,
            4,
            4,
            Name {
                queue: new,
                index: 0,
            },
            1,
        );
        assert_eq!(polled.pop().unwrap().wr_id.get(), 300);
    }

    #[test]
    fn a_queue_that_ignores_overrun_goes_on_at_the_oldest_completion() {
        for lapped in 1..20 {
            let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
            let mut polled = CompletionQueue::new(memory, layout);
            polled.ignore_overrun();
            let (_requests, queue) = requests(&mut polled, 100, 32);
            let write = |indices: core::ops::Range<u32>| {
                let end = indices.end;
                for index in indices {
                    put(&memory, index, 4, Name { queue, index }, 1);
                }
                memory
                    .word(offset::DEVICE_INDEX)
                    .store(end, Ordering::Release);
            };
            write(0..2);
            assert_eq!(polled.pop().unwrap().wr_id.get(), 100);
            let end = 5 + lapped;
            write(2..end);
            let seen = core::iter::from_fn(|| polled.pop()).map(|cqe| cqe.wr_id.get());
            assert!(seen.eq(u64::from(96 + end)..u64::from(100 + end)), "{end}");
            write(end..end + 1);
            assert_eq!(polled.pop().unwrap().wr_id.get(), u64::from(100 + end));
            assert!(polled.pop().is_none());
        }
    }

    #[test]
    fn completions_of_a_queue_pair_are_forgotten_while_others_are_overwritten() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        polled.ignore_overrun();
        let (_gone, gone) = requests(&mut polled, 100, 6);
        for index in 0..6 {
            put(&memory, index, 4, Name { queue: gone, index }, 7);
        }
        // The device has announced only those before.
        let announce = |index| {
            memory
                .word(offset::DEVICE_INDEX)
                .store(index, Ordering::Release);
        };
        announce(4);
        polled.forget(7);
        polled.detach(gone);
        let (_new, new) = requests(&mut polled, 200, 5);
        assert_eq!(new, gone, "numbers come back");
        announce(6);
        assert!(
            polled.pop().is_none(),
            "a request of the new queue completed"
        );
        let name = Name {
            queue: new,
            index: 0,
        };
        put(&memory, 6, 4, name, 7);
        assert_eq!(polled.pop().unwrap().wr_id.get(), 200);
    }

    #[test]
    fn what_nobody_posted_does_not_complete() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_requests, queue) = requests(&mut polled, 100, 1);
        put(&memory, 0, 4, Name { queue, index: 1 }, 1);
        let other = queue + 1;
        put(
            &memory,
            1,
            4,
            Name {
                queue: other,
                index: 0,
            },
            1,
        );
        put(&memory, 2, 4, Name { queue, index: 0 }, 1);
        put(&memory, 3, 4, Name { queue, index: 0 }, 1);
        assert_eq!(polled.pop().unwrap().wr_id.get(), 100);
        assert!(polled.pop().is_none());
    }

    #[test]
    fn what_is_outstanding_is_flushed_after_what_completed() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (first, number) = requests(&mut polled, 100, 3);
        let (second, _) = requests(&mut polled, 200, 2);
        let name = Name {
            queue: number,
            index: 1,
        };
        put(&memory, 0, 4, name, 1);
        let taken: Vec<_> = core::iter::from_fn(|| polled.flush())
            .map(|cqe| (cqe.wr_id.get(), cqe.status))
            .collect();
        let flushed = Status::Flushed.raw();
        let expected = [(101, 0), (102, flushed), (200, flushed), (201, flushed)];
        assert_eq!(taken, expected);
        assert_eq!((first.done(), second.done()), (3, 2));
    }

    #[test]
    fn receives_of_a_shared_queue_complete_where_their_queue_pairs_do() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_srq, srq_memory, srq_layout) = ring(4, 64);
        let mut srq = SharedQueue::new(srq_memory, srq_layout, 0);
        for wr_id in 50..53 {
            srq.push(wr_id, core::iter::empty()).unwrap();
        }
        let name = |index| Name {
            queue: srq.receives().number,
            index,
        };
        put(&memory, 0, 4, name(2), 1);
        assert!(polled.pop().is_none(), "nobody takes receives there");
        for _ in 0..2 {
            assert!(polled.attach_shared(srq.receives()));
        }
        put(&memory, 1, 4, name(1), 1);
        assert_eq!(polled.pop().unwrap().wr_id.get(), 51);
        polled.detach_shared(srq.receives());
        put(&memory, 2, 4, name(0), 2);
        polled.forget(2);
        assert!(polled.pop().is_none());
        assert_eq!(srq.receives().places.lock().take(0), None, "forgotten");
        put(&memory, 3, 4, name(2), 1);
        assert_eq!(polled.pop().unwrap().wr_id.get(), 52);
        polled.detach_shared(srq.receives());
        assert!(polled.shared.is_empty());
    }

    #[test]
    fn what_was_not_polled_moves_to_another_ring() {
        // Old and new number of entries; completions polled before, and completions written but not
        // polled.
        let cases = [
            (4, 16, 3, 4),
            (16, 4, 13, 4),
            (8, 8, 21, 8),
            (16, 2, 30, 0),
            (2, 64, 7, 2),
            (64, 1, 100, 1),
        ];
        for (old, new, before, left) in cases {
            let (_buffer, memory, layout) = ring(old, CQE_STRIDE);
            let mut polled = CompletionQueue::new(memory, layout);
            let (_requests, queue) = requests(&mut polled, 0, 400);
            let write = |memory: &Shared, entries, indices: core::ops::Range<u32>| {
                for index in indices {
                    put(memory, index, entries, Name { queue, index }, 1);
                }
            };
            for index in 0..before {
                write(&memory, old, index..index + 1);
                assert!(polled.pop().is_some());
            }
            polled.publish();
            polled.request_event(true);
            write(&memory, old, before..before + left);

            let (_other, fresh, other) = ring(new, CQE_STRIDE);
            polled.prepare(&fresh, &other);
            let word = |at| fresh.word(at).load(Ordering::Relaxed);
            assert_eq!(word(offset::DRIVER_INDEX), before);
            assert_eq!(word(offset::ARM), polled.arm.raw());
            // The device continues before the consumer does.
            write(&fresh, new, before + left..before + new);
            polled.move_to(fresh, other);
            let taken: Vec<_> = core::iter::from_fn(|| polled.pop())
                .map(|cqe| cqe.wr_id.get())
                .collect();
            let expected: Vec<_> = (before..before + new.max(left)).map(u64::from).collect();
            assert_eq!(taken, expected, "from {old} to {new}");
            polled.publish();
            assert_eq!(word(offset::DRIVER_INDEX), before + new);
            write(&fresh, new, before + new..before + new + 1);
            assert!(polled.pop().is_some() && polled.pop().is_none());
        }
    }

    #[test]
    fn what_was_forgotten_stays_so_in_another_ring() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut polled = CompletionQueue::new(memory, layout);
        let (_requests, queue) = requests(&mut polled, 100, 4);
        put(&memory, 0, 4, Name { queue, index: 0 }, 7);
        put(&memory, 1, 4, Name { queue, index: 1 }, 8);
        polled.forget(7);
        let (_other, fresh, other) = ring(2, CQE_STRIDE);
        polled.prepare(&fresh, &other);
        polled.move_to(fresh, other);
        assert_eq!(polled.pop().unwrap().wr_id.get(), 101);
        assert!(polled.pop().is_none());
    }

    #[test]
    fn a_request_for_less_does_not_take_back_one_for_more() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        let armed = || Arm::from_raw(memory.word(offset::ARM).load(Ordering::Relaxed));
        queue.request_event(true);
        assert!(!armed().wants(false) && armed().wants(true));
        queue.request_event(false);
        queue.request_event(true);
        assert!(armed().wants(false));
        assert_eq!(armed().sequence(), 3, "each request is a new one");
        queue.event_came();
        queue.request_event(true);
        assert!(!armed().wants(false));
    }

    #[test]
    fn an_event_does_not_answer_a_request_that_came_after_it() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        let armed = || Arm::from_raw(memory.word(offset::ARM).load(Ordering::Relaxed));
        queue.request_event(false);
        // The event is raised here, and fetched after the next request.
        queue.request_event(false);
        queue.event_came();
        queue.request_event(true);
        assert!(armed().wants(false), "the second request waits still");
        queue.event_came();
        queue.request_event(true);
        assert!(!armed().wants(false));
    }

    #[test]
    fn a_concurrent_device_is_read_whole() {
        const COUNT: u32 = 30_000;
        let (_buffer, memory, layout) = ring(8, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        let (_requests, number) = requests(&mut queue, 0, COUNT);
        let torn = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..COUNT {
                    let consumer = memory.word(offset::DRIVER_INDEX);
                    while index.wrapping_sub(consumer.load(Ordering::Acquire)) >= 8 {
                        std::thread::yield_now();
                    }
                    put(
                        &memory,
                        index,
                        8,
                        Name {
                            queue: number,
                            index,
                        },
                        index,
                    );
                }
            });
            for index in 0..COUNT {
                let cqe = loop {
                    match queue.pop() {
                        Some(cqe) => break cqe,
                        None => std::thread::yield_now(),
                    }
                };
                if cqe.wr_id.get() != u64::from(index)
                    || cqe.qpn.get() != index
                    || cqe.byte_length.get() != index
                {
                    torn.store(true, Ordering::Relaxed);
                }
                queue.publish();
            }
        });
        assert!(!torn.load(Ordering::Relaxed));
    }
}
