// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Tells the device which rings have work, without a system call and mostly without a doorbell.
//!
//! [`vrnic_wire::notify`] describes the protocol and why no request is lost.

use crate::memory::{DoorbellPage, Field, Shared, full_fence};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use vrnic_wire::notify::{self, SlotBits, driver_flags, flags};

/// What the caller has left to do after ringing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Rung {
    /// Nothing: the device knows about the work, or will look for it.
    Done,
    /// The device has no doorbells, so the kernel must ring.
    AskKernel,
}

/// A slot, and where the device is told that its rings have work.
#[derive(Copy, Clone, Debug)]
pub struct Slot {
    number: u32,
    bits: SlotBits,
    pending: Field<AtomicU64>,
    summary: Field<AtomicU64>,
}

impl Slot {
    /// Returns the number of the slot.
    pub fn number(&self) -> u32 {
        self.number
    }
}

/// The notify area of a context and its doorbell page, if the device has doorbells.
#[derive(Debug)]
pub struct Doorbell {
    area: Shared,
    flags: Field<AtomicU32>,
    driver_flags: Field<AtomicU32>,
    page: Option<DoorbellPage>,
}

impl Doorbell {
    /// Creates a doorbell from `area`, which holds a complete notify area, and `page`.
    pub fn new(area: Shared, page: Option<DoorbellPage>) -> Self {
        Self {
            area,
            flags: area.word(notify::FLAGS_OFFSET),
            driver_flags: area.word(notify::DRIVER_FLAGS_OFFSET),
            page,
        }
    }

    /// Returns the slot with this number, which the device has assigned.
    pub fn slot(&self, number: u32) -> Slot {
        let bits = SlotBits::new(number);
        Slot {
            number,
            bits,
            pending: self.area.long(bits.pending_offset),
            summary: self.area.long(bits.summary_offset),
        }
    }

    /// Returns whether the device has failed or is gone, so that no more completions will come.
    #[inline]
    pub fn device_failed(&self) -> bool {
        // Acquire: completions written before the flag was set are visible.
        u32::from_le(self.driver_flags.load(Ordering::Acquire)) & driver_flags::FAILED != 0
    }

    /// Tells the device about work that has been published in a ring of `slot`.
    #[inline]
    pub fn ring(&self, slot: &Slot) -> Rung {
        // Release: the device that takes the bit sees the ring's new producer index. The code must
        // not depend on whether the bit was set before: for a guest with one CPU, QEMU's TCG turns
        // this into a load and a store. If the device takes the bit between the two, the bit seems
        // to have been set, and the store sets it again.
        slot.pending
            .fetch_or(slot.bits.pending_mask.to_le(), Ordering::AcqRel);
        slot.summary
            .fetch_or(slot.bits.summary_mask.to_le(), Ordering::AcqRel);
        full_fence();

        if u32::from_le(self.flags.load(Ordering::Relaxed)) & flags::POLLING != 0 {
            return Rung::Done;
        }
        match &self.page {
            Some(page) => {
                page.ring(slot.number);
                Rung::Done
            }
            None => Rung::AskKernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Buffer;
    use std::sync::atomic::{AtomicBool, fence};
    use std::sync::mpsc;
    use std::time::Duration;

    const SLOTS: u32 = 256;

    fn area() -> (Buffer, Shared) {
        let buffer = Buffer::new(notify::area_length(SLOTS)).unwrap();
        // SAFETY: The callers keep the buffer as long as they use the area.
        let shared = unsafe { buffer.shared() };
        (buffer, shared)
    }

    #[test]
    fn a_sleeping_device_is_woken_each_time() {
        let (_buffer, area) = area();
        let doorbell = Doorbell::new(area, None);
        let bits = SlotBits::new(70);
        assert_eq!(doorbell.ring(&doorbell.slot(70)), Rung::AskKernel);
        // As if a non-atomic OR had set a bit again that the device had taken.
        area.long(bits.summary_offset).store(0, Ordering::Relaxed);
        assert_eq!(
            doorbell.ring(&doorbell.slot(70)),
            Rung::AskKernel,
            "a pending bit alone is not heard"
        );
        assert_eq!(
            area.long(bits.pending_offset).swap(0, Ordering::Relaxed),
            1 << 6
        );
        assert_eq!(
            area.long(bits.summary_offset).swap(0, Ordering::Relaxed),
            1 << 1
        );
        assert_eq!(doorbell.ring(&doorbell.slot(70)), Rung::AskKernel);
    }

    #[test]
    fn a_polling_device_is_not_disturbed() {
        let (_buffer, area) = area();
        let doorbell = Doorbell::new(area, None);
        area.word(notify::FLAGS_OFFSET)
            .store(flags::POLLING, Ordering::Relaxed);
        assert_eq!(doorbell.ring(&doorbell.slot(3)), Rung::Done);
        assert_eq!(
            area.long(notify::PENDING_OFFSET).load(Ordering::Relaxed),
            1 << 3
        );
        assert_eq!(area.long(notify::SUMMARY_OFFSET).load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_driver_says_that_the_device_failed() {
        let (_buffer, area) = area();
        let doorbell = Doorbell::new(area, None);
        assert!(!doorbell.device_failed());
        area.word(notify::DRIVER_FLAGS_OFFSET)
            .store(driver_flags::FAILED, Ordering::Release);
        assert!(doorbell.device_failed());
    }

    /// Plays the device's side of the protocol: takes all available work and returns how much it
    /// was.
    fn take(area: &Shared, produced: &[AtomicU64], consumed: &mut [u64]) -> u64 {
        let mut taken = 0;
        for w in 0..notify::SUMMARY_WORDS {
            let mut summary = area
                .long(notify::SUMMARY_OFFSET + w * 8)
                .swap(0, Ordering::AcqRel);
            while summary != 0 {
                let p = w * 64 + summary.trailing_zeros() as usize;
                summary &= summary - 1;
                let mut pending = area
                    .long(notify::PENDING_OFFSET + p * 8)
                    .swap(0, Ordering::AcqRel);
                while pending != 0 {
                    let slot = p * 64 + pending.trailing_zeros() as usize;
                    pending &= pending - 1;
                    let now = produced[slot].load(Ordering::Acquire);
                    taken += now - consumed[slot];
                    consumed[slot] = now;
                }
            }
        }
        taken
    }

    /// Several threads ring while a device falls asleep as often as it can. If a single request
    /// were lost, the device would sleep forever with work left to do.
    #[test]
    fn no_request_is_lost_between_ringing_and_sleeping() {
        const THREADS: usize = 3;
        const REQUESTS: u64 = 40_000;

        let (_buffer, area) = area();
        let doorbell = Doorbell::new(area, None);
        let produced: Vec<AtomicU64> = (0..SLOTS).map(|_| AtomicU64::new(0)).collect();
        let (wake, woken) = mpsc::channel::<u32>();
        let failed = AtomicBool::new(false);

        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (doorbell, produced, wake) = (&doorbell, &produced, wake.clone());
                scope.spawn(move || {
                    for i in 0..REQUESTS {
                        // Slots in one word and in several, some of them shared by the threads.
                        let slot = ((i * 37 + thread as u64 * (i % 2)) % u64::from(SLOTS)) as u32;
                        produced[slot as usize].fetch_add(1, Ordering::Release);
                        if doorbell.ring(&doorbell.slot(slot)) == Rung::AskKernel {
                            wake.send(slot).unwrap();
                        }
                    }
                });
            }
            drop(wake);

            let (produced, failed) = (&produced, &failed);
            scope.spawn(move || {
                let mut consumed = vec![0; SLOTS as usize];
                let mut total = 0;
                let state = area.word(notify::FLAGS_OFFSET);
                while total < REQUESTS * THREADS as u64 {
                    state.store(flags::POLLING, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    for _ in 0..total % 4 {
                        total += take(&area, produced, &mut consumed);
                    }
                    state.store(0, Ordering::Relaxed);
                    fence(Ordering::SeqCst);
                    let late = take(&area, produced, &mut consumed);
                    total += late;
                    if late == 0 && total < REQUESTS * THREADS as u64 {
                        // Asleep: only a doorbell may wake us. While there is work, neither a
                        // timeout nor the end of all threads may come.
                        if woken.recv_timeout(Duration::from_secs(20)).is_err() {
                            failed.store(true, Ordering::Relaxed);
                            return;
                        }
                        while woken.try_recv().is_ok() {}
                    }
                }
            });
        });
        assert!(
            !failed.load(Ordering::Relaxed),
            "the device slept with work undone"
        );
    }
}
