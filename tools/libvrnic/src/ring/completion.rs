// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The completion queue.

use crate::memory::{Shared, full_fence};
use core::sync::atomic::Ordering;
use vrnic_wire::abi::Ring;
use vrnic_wire::completion::{CQE_STRIDE, Cqe, PHASE_OFFSET};
use vrnic_wire::ring::{Arm, offset, phase};

const QPN_OFFSET: usize = core::mem::offset_of!(Cqe, qpn);

/// Number of no queue pair: stands in completions that were taken out.
const FORGOTTEN: u32 = u32::MAX;

/// The completion queue as its owner polls it.
#[derive(Debug)]
pub struct CompletionQueue {
    memory: Shared,
    layout: Ring,
    /// Index of the next entry to look at.
    next: u32,
    /// `next` as the device knows it.
    published: u32,
    /// The last request for an event.
    arm: Arm,
    /// An event for any completion was asked for and did not come yet.
    any_wanted: bool,
}

impl CompletionQueue {
    /// The queue described by `layout` in `memory`, which is zeroed.
    pub fn new(memory: Shared, layout: Ring) -> Self {
        assert!(layout.stride == CQE_STRIDE && layout.entries.is_power_of_two());
        Self {
            memory,
            layout,
            next: 0,
            published: 0,
            arm: Arm::default(),
            any_wanted: false,
        }
    }

    /// Byte offset of the entry with that index, if the device wrote it.
    #[inline]
    fn written(&self, index: u32) -> Option<usize> {
        let entries = self.layout.entries;
        let slot = (index & (entries - 1)) as usize;
        let entry = self.layout.entries_offset as usize + slot * CQE_STRIDE as usize;

        // Acquire: the rest of the entry was written before its phase.
        let seen = self
            .memory
            .byte(entry + PHASE_OFFSET)
            .load(Ordering::Acquire);
        (seen == phase(index, entries)).then_some(entry)
    }

    /// The next completion, if there is one.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        loop {
            let cqe: Cqe = self.memory.read(self.written(self.next)?);
            self.next = self.next.wrapping_add(1);
            if cqe.qpn.get() != FORGOTTEN {
                return Some(cqe);
            }
        }
    }

    /// Takes out the completions of a queue pair.
    pub fn forget(&mut self, qpn: u32) {
        for ahead in 0..self.layout.entries {
            let Some(entry) = self.written(self.next.wrapping_add(ahead)) else {
                break;
            };
            // Until it is given back an entry is ours to write.
            let number = self.memory.word(entry + QPN_OFFSET);
            if u32::from_le(number.load(Ordering::Relaxed)) == qpn {
                number.store(FORGOTTEN.to_le(), Ordering::Relaxed);
            }
        }
    }

    /// Gives the entries of the completions taken back to the device.
    #[inline]
    pub fn publish(&mut self) {
        if self.next != self.published {
            self.published = self.next;
            // Release: the entries were read before the device may write them again.
            self.memory
                .word(self.layout.header_offset as usize + offset::DRIVER_INDEX)
                .store(self.next.to_le(), Ordering::Release);
        }
    }

    /// Asks for one event: for any completion, or for a solicited one or an error.
    pub fn request_event(&mut self, solicited_only: bool) {
        self.arm = self.arm.again(solicited_only);
        if !solicited_only {
            self.any_wanted = true;
        } else if self.any_wanted {
            // A request for less does not take back one for more (IBTA volume 1, 11.4.2.2).
            self.arm = self.arm.widen();
        }
        self.memory
            .word(self.layout.header_offset as usize + offset::ARM)
            .store(self.arm.raw().to_le(), Ordering::Relaxed);
        // Either the device sees the request, or who polls again sees the completion.
        full_fence();
    }

    /// The event that was asked for came.
    pub fn event_came(&mut self) {
        self.any_wanted = false;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ring;
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn put(memory: &Shared, index: u32, entries: u32, wr_id: u64) {
        let at = 1024 + (index & (entries - 1)) as usize * 64;
        let cqe = Cqe {
            wr_id: wr_id.into(),
            byte_length: index.into(),
            phase: 1 - phase(index, entries),
            ..Cqe::default()
        };
        memory.write(at, &cqe);
        memory
            .byte(at + PHASE_OFFSET)
            .store(phase(index, entries), Ordering::Release);
    }

    #[test]
    fn completions_are_seen_once_in_each_pass() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        for index in 0..13 {
            assert!(queue.pop().is_none());
            put(&memory, index, 4, u64::from(index) * 3);
            let cqe = queue.pop().unwrap();
            assert_eq!(
                (cqe.wr_id.get(), cqe.byte_length.get()),
                (u64::from(index) * 3, index)
            );
            queue.publish();
            assert_eq!(
                memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed),
                index + 1
            );
        }
    }

    #[test]
    fn a_full_queue_is_read_whole() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        (0..4).for_each(|index| put(&memory, index, 4, 1));
        assert_eq!(core::iter::from_fn(|| queue.pop()).count(), 4);
    }

    #[test]
    fn completions_of_a_queue_pair_that_is_gone_are_skipped() {
        let (_buffer, memory, layout) = ring(4, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        for index in 0..4 {
            put(&memory, index, 4, index.into());
            memory
                .word(1024 + index as usize * 64 + QPN_OFFSET)
                .store(index % 2, Ordering::Relaxed);
        }
        queue.pop().unwrap();
        queue.forget(1);
        assert_eq!(queue.pop().unwrap().wr_id.get(), 2);
        assert!(queue.pop().is_none());
        queue.publish();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 4);
        put(&memory, 4, 4, 9);
        assert_eq!(queue.pop().unwrap().wr_id.get(), 9);
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
    fn a_concurrent_device_is_read_whole() {
        const COUNT: u32 = 30_000;
        let (_buffer, memory, layout) = ring(8, CQE_STRIDE);
        let mut queue = CompletionQueue::new(memory, layout);
        let torn = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for index in 0..COUNT {
                    let consumer = memory.word(offset::DRIVER_INDEX);
                    while index.wrapping_sub(consumer.load(Ordering::Acquire)) >= 8 {
                        std::thread::yield_now();
                    }
                    put(&memory, index, 8, u64::from(index) << 32 | u64::from(index));
                }
            });
            for index in 0..COUNT {
                let cqe = loop {
                    match queue.pop() {
                        Some(cqe) => break cqe,
                        None => std::thread::yield_now(),
                    }
                };
                let expected = u64::from(index) << 32 | u64::from(index);
                if cqe.wr_id.get() != expected || cqe.byte_length.get() != index {
                    torn.store(true, Ordering::Relaxed);
                }
                queue.publish();
            }
        });
        assert!(!torn.load(Ordering::Relaxed));
    }
}
