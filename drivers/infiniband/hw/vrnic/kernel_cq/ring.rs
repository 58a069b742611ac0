// SPDX-License-Identifier: GPL-2.0

//! Completion rings of the kernel, for which the driver is the consumer.
//!
//! The device is not trusted: everything that it writes is read only once.

use core::sync::atomic::Ordering;

use kernel::prelude::*;
use virtio::{
    full_fence,
    SharedMemory, //
};
use vrnic_wire::{
    completion::{
        Cqe,
        CQE_STRIDE,
        PHASE_OFFSET, //
    },
    ring::{
        offset,
        phase,
        Arm,
        RingLayout, //
    }, //
};

use crate::ring::header_word;

/// Queue pair number in dropped completions; no queue pair has this number.
const NOBODY: u32 = u32::MAX;

/// A completion ring for which the driver is the consumer.
pub(crate) struct CompletionRing {
    memory: SharedMemory,
    layout: RingLayout,
    /// Whether to ignore everything that the device writes.
    closed: bool,
    consumer: u32,
    /// The `consumer` value last given to the device, which bounds what it may write.
    released: u32,
    arm: Arm,
}

impl CompletionRing {
    /// Creates a ring in zeroed memory of the length that `layout` requires.
    pub(crate) fn new(memory: SharedMemory, layout: RingLayout) -> Self {
        Self {
            memory,
            layout,
            closed: false,
            consumer: 0,
            released: 0,
            arm: Arm::default(),
        }
    }

    /// Returns the number of entries.
    pub(crate) fn entries(&self) -> u32 {
        self.layout.entries.get()
    }

    /// Returns the index of the next completion.
    pub(crate) fn consumer(&self) -> u32 {
        self.consumer
    }

    /// Drops all completions in the ring, present and future.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Returns the offset of entry `index`, if it contains a completion.
    fn valid_entry(&self, index: u32) -> Result<Option<usize>> {
        // The phase is the most significant byte of the little-endian word at the entry's end.
        const WORD: usize = PHASE_OFFSET - 3;

        if self.closed {
            return Ok(None);
        }
        let entry = usize::try_from(self.layout.entry_offset(index))?;
        let word = self.memory.u32(entry + WORD)?.load(Ordering::Acquire);
        let [.., found] = word.to_ne_bytes();
        Ok((found == phase(index, self.entries())).then_some(entry))
    }

    /// Returns whether there is no completion left to take.
    pub(crate) fn is_empty(&self) -> Result<bool> {
        Ok(self.valid_entry(self.consumer)?.is_none())
    }

    /// Takes the next completion, if there is one. Its entry stays in use until
    /// [`release`](Self::release). `EIO` if the device writes more entries than the ring has free,
    /// which could go on forever.
    pub(crate) fn take(&mut self) -> Result<Option<Cqe>> {
        while let Some(entry) = self.valid_entry(self.consumer)? {
            if self.consumer.wrapping_sub(self.released) >= self.entries() {
                return Err(EIO);
            }
            let mut bytes = [0; CQE_STRIDE as usize];
            self.memory.read(entry, &mut bytes)?;
            self.consumer = self.consumer.wrapping_add(1);

            let cqe: Cqe = zerocopy::transmute!(bytes);
            if cqe.qpn.get() != NOBODY {
                return Ok(Some(cqe));
            }
        }
        Ok(None)
    }

    /// Returns the entries of all completions that were taken to the device.
    pub(crate) fn release(&mut self) -> Result {
        self.memory
            .u32(header_word(&self.layout, offset::DRIVER_INDEX))?
            .store(self.consumer.to_le(), Ordering::Release);
        self.released = self.consumer;
        Ok(())
    }

    /// Asks for an event. Returns whether a completion had already arrived.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<bool> {
        // A request for any completion may still be pending, and a request for solicited ones must
        // not replace it.
        let any_before = self.arm.wants(false);
        self.arm = self.arm.again(solicited_only);
        if any_before {
            self.arm = self.arm.widen();
        }
        self.memory
            .u32(header_word(&self.layout, offset::ARM))?
            .store(self.arm.raw().to_le(), Ordering::Release);
        // Pairs with the fence of the device between writing completions and reading the word.
        full_fence();
        Ok(!self.is_empty()?)
    }

    /// Drops the completions of queue pair `qpn` that are in the ring, because the queue pair is
    /// gone or was reset. Calls `dropped` with the `wr_id` of each.
    pub(crate) fn forget(&self, qpn: u32, mut dropped: impl FnMut(u64)) -> Result {
        const QPN: usize = core::mem::offset_of!(Cqe, qpn);
        const WR_ID: usize = core::mem::offset_of!(Cqe, wr_id);

        for i in 0..self.entries() {
            let Some(entry) = self.valid_entry(self.consumer.wrapping_add(i))? else {
                break;
            };
            let word = self.memory.u32(entry + QPN)?;
            if u32::from_le(word.load(Ordering::Relaxed)) == qpn {
                word.store(NOBODY.to_le(), Ordering::Relaxed);
                let mut bytes = [0; size_of::<u64>()];
                self.memory.read(entry + WR_ID, &mut bytes)?;
                dropped(u64::from_le_bytes(bytes));
            }
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl CompletionRing {
    /// Acts as the device: writes a completion with its phase.
    pub(super) fn complete(&self, index: u32, wr_id: u64, qpn: u32) -> Result {
        let cqe = Cqe {
            wr_id: wr_id.into(),
            qpn: qpn.into(),
            phase: phase(index, self.entries()),
            ..Default::default()
        };
        let entry = usize::try_from(self.layout.entry_offset(index))?;
        self.memory.write(entry, cqe.as_bytes())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_kernel_cq_ring)]
mod tests {
    use super::*;

    use crate::ring::Layout;
    use virtio::{
        testing::with_dma,
        Dma, //
    };

    fn load(memory: &SharedMemory, layout: &RingLayout, word: usize) -> Result<u32> {
        let word = memory.u32(header_word(layout, word))?;
        Ok(u32::from_le(word.load(Ordering::Relaxed)))
    }

    fn completion_ring(dma: &Dma, entries: u32) -> Result<CompletionRing> {
        let mut buffer = Layout::new();
        let layout = buffer.place(entries, CQE_STRIDE)?;
        let memory = SharedMemory::new(dma, usize::try_from(buffer.length())?)?;
        Ok(CompletionRing::new(memory, layout))
    }

    #[test]
    fn completions_are_found_by_their_phase() -> Result {
        with_dma(|dma| {
            let mut ring = completion_ring(dma, 2)?;

            assert!(ring.take()?.is_none());
            for index in 0..7 {
                ring.complete(index, 100 + u64::from(index), 5)?;
                let cqe = ring.take()?.ok_or(ENOENT)?;
                assert_eq!(cqe.wr_id.get(), 100 + u64::from(index));
                assert!(ring.take()?.is_none());
                ring.release()?;
                assert_eq!(
                    load(&ring.memory, &ring.layout, offset::DRIVER_INDEX)?,
                    index + 1
                );
            }
            Ok(())
        })
    }

    #[test]
    fn a_device_that_writes_without_end_is_found_out() -> Result {
        with_dma(|dma| {
            let mut ring = completion_ring(dma, 4)?;
            // All four completions are of a queue pair that is gone; the device may write these.
            for index in 0..4 {
                ring.complete(index, 1, NOBODY)?;
            }
            assert!(ring.take()?.is_none());
            // But there is no room for more yet.
            for index in 4..8 {
                ring.complete(index, 1, NOBODY)?;
            }
            assert_eq!(ring.take().err(), Some(EIO));
            ring.release()?;
            assert!(ring.take()?.is_none());
            Ok(())
        })
    }

    #[test]
    fn what_comes_after_an_error_does_not_count() -> Result {
        with_dma(|dma| {
            let mut ring = completion_ring(dma, 4)?;
            ring.complete(0, 1, 7)?;
            ring.complete(1, 2, 7)?;
            assert!(ring.take()?.is_some());
            ring.close();
            assert!(ring.take()?.is_none() && ring.is_empty()? && !ring.arm(false)?);
            Ok(())
        })
    }

    #[test]
    fn arming_tells_of_completions_before() -> Result {
        with_dma(|dma| {
            let mut ring = completion_ring(dma, 4)?;

            assert!(!ring.arm(true)?);
            let first = Arm::from_raw(load(&ring.memory, &ring.layout, offset::ARM)?);
            assert!(first.wants(true) && !first.wants(false));
            assert_eq!(first.sequence(), 1);

            ring.complete(0, 1, 1)?;
            assert!(ring.arm(false)?);
            let second = Arm::from_raw(load(&ring.memory, &ring.layout, offset::ARM)?);
            assert!(second.wants(false));
            assert_eq!(second.sequence(), 2);

            // The request for any completion may still be pending.
            ring.arm(true)?;
            let third = Arm::from_raw(load(&ring.memory, &ring.layout, offset::ARM)?);
            assert!(third.wants(false) && third.wants(true));
            Ok(())
        })
    }

    #[test]
    fn a_queue_pair_that_is_gone_is_forgotten() -> Result {
        with_dma(|dma| {
            let mut ring = completion_ring(dma, 4)?;

            ring.complete(0, 1, 7)?;
            ring.complete(1, 2, 8)?;
            ring.complete(2, 3, 7)?;
            let mut dropped = 0;
            ring.forget(7, |wr_id| dropped = 10 * dropped + wr_id)?;
            assert_eq!(dropped, 13);
            assert_eq!(ring.take()?.ok_or(ENOENT)?.qpn.get(), 8);
            assert!(ring.take()?.is_none());
            Ok(())
        })
    }
}
