// SPDX-License-Identifier: GPL-2.0

//! Memory that a device and the driver access at the same time.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU32,
        AtomicU64, //
    },
};

use kernel::{
    device::{
        self,
        Bound, //
    },
    dma::{
        Coherent,
        DmaAddress, //
    },
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};

use crate::{
    bindings,
    gate::Gate, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Orders all accesses before it against all after it, as a device sees them.
///
/// Neither `smp_mb` nor `core::sync::atomic::fence` will do: on x86 both are an instruction with a
/// lock prefix, which the kernel takes away on a machine with one processor, and which an emulator
/// of such a machine need not heed.
#[inline]
pub fn full_fence() {
    // SAFETY: A barrier has no preconditions.
    unsafe { bindings::mb() }
}

/// Who does the DMA of a virtio device, as long as that has queues
/// ([`Virtqueues::dma`](super::Virtqueues::dma)).
#[derive(Clone)]
pub struct Dma(Arc<Binding>);

/// The device that does the DMA, and its being bound.
#[pin_data]
struct Binding {
    dev: ARef<device::Device>,
    /// Open while the device is bound.
    #[pin]
    bound: Gate,
}

impl Dma {
    /// That of `dev`, to be [closed](Self::close) before it is unbound.
    pub(crate) fn new(dev: &device::Device<Bound>) -> Result<Self> {
        let binding = Arc::pin_init(
            try_pin_init!(Binding {
                dev: (&**dev).into(),
                bound <- Gate::new(),
            }? Error),
            GFP_KERNEL,
        )?;
        Ok(Self(binding))
    }

    /// The device is about to be unbound. On return nobody allocates or frees memory of it, nor
    /// will. Sleeps.
    pub(crate) fn close(&self) {
        self.0.bound.close();
    }

    /// Drops what belongs to the device while that is bound; gives it back if it is not.
    fn release<T>(&self, mapped: T) -> Result<(), T> {
        let Some(_bound) = self.0.bound.enter() else {
            dev_err!(
                self.0.dev,
                "memory is kept for longer than its device, and leaks\n"
            );
            return Err(mapped);
        };
        drop(mapped);
        Ok(())
    }

    /// Calls `f` with the device while it is bound.
    fn with<R>(&self, f: impl FnOnce(&device::Device<Bound>) -> R) -> Option<R> {
        let _bound = self.0.bound.enter()?;
        // SAFETY: Nobody closes the gate before `f` returns.
        Some(f(unsafe { self.0.dev.as_bound() }))
    }
}

/// One page of a [`SharedMemory`].
type Page = Coherent<[u8; SharedMemory::PAGE_SIZE]>;

/// Zeroed memory, coherent and mapped for DMA, for rings and flags that a device reads and writes
/// whenever it likes.
///
/// It consists of pages of [`SharedMemory::PAGE_SIZE`] bytes, contiguous neither in memory nor for
/// the device. An access that goes beyond its end, or a word that is not aligned, is `EINVAL`.
///
/// Words that both sides change are the atomics of `core`, not those of the kernel: on a machine
/// with one processor the kernel turns the latter into plain instructions, but the device still
/// runs on a processor of its own. For the same reason, order accesses with [`full_fence`].
///
/// The device must have let go of the memory before this is dropped, as for [`Coherent`]. No type
/// can say that: what a device accesses follows from numbers that it was given, and safe code may
/// give it any. What is dropped when the device has no queues any more stays for ever. Process
/// context only.
///
/// # Invariants
///
/// `pages` were allocated for the device of `dma`, and are enough for `len`.
pub struct SharedMemory {
    dma: Dma,
    pages: KVVec<Page>,
    len: usize,
}

// SAFETY: The memory may be accessed and freed from any thread.
unsafe impl Send for SharedMemory {}

// SAFETY: All accesses are atomic, or volatile and no larger than a word, which in the kernel's
// memory model is no race with others of that kind.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Bytes of a page, and its alignment for CPU and device.
    pub const PAGE_SIZE: usize = 4096;

    /// Allocates `len` bytes. `ENODEV` if the device has no queues any more.
    pub fn new(dma: &Dma, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(EINVAL);
        }
        let count = len.div_ceil(Self::PAGE_SIZE);
        let mut memory = Self {
            dma: dma.clone(),
            pages: KVVec::with_capacity(count, GFP_KERNEL)?,
            len,
        };
        dma.with(|dev| {
            for _ in 0..count {
                // INVARIANT: Just allocated. There is room for it, so it is not lost.
                memory
                    .pages
                    .push(Coherent::zeroed(dev, GFP_KERNEL)?, GFP_KERNEL)?;
            }
            Ok(())
        })
        .unwrap_or(Err(ENODEV))?;
        Ok(memory)
    }

    /// Bytes of the memory.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The pages, as the device addresses them.
    pub fn dma_pages(&self) -> impl ExactSizeIterator<Item = DmaAddress> + '_ {
        self.pages.iter().map(Page::dma_address)
    }

    /// Where `len` bytes at `offset` are; they must lie in one page.
    fn locate(&self, offset: usize, len: usize) -> Result<NonNull<u8>> {
        let end = offset.checked_add(len).ok_or(EINVAL)?;
        let in_page = offset % Self::PAGE_SIZE;
        if end > self.len || in_page + len > Self::PAGE_SIZE {
            return Err(EINVAL);
        }
        let page = self.pages.get(offset / Self::PAGE_SIZE).ok_or(EINVAL)?;
        let page = NonNull::new(page.as_mut_ptr()).ok_or(EINVAL)?.cast::<u8>();
        // SAFETY: `in_page` is at most `PAGE_SIZE`, the size of the allocation.
        Ok(unsafe { page.add(in_page) })
    }

    /// The 32-bit word at `offset`.
    pub fn u32(&self, offset: usize) -> Result<&AtomicU32> {
        let word = self.locate(offset, size_of::<u32>())?.cast::<AtomicU32>();
        if !word.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: `word` is aligned and points to four bytes of an allocation that lives as long as
        // `self` and was initialised with zeroes. Apart from atomics, only `read` and `write`
        // access it: by volatile accesses of bytes, or of words that are aligned, which the
        // kernel's memory model takes for relaxed atomics.
        Ok(unsafe { word.as_ref() })
    }

    /// The 64-bit word at `offset`.
    pub fn u64(&self, offset: usize) -> Result<&AtomicU64> {
        let word = self.locate(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !word.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: As in `u32`.
        Ok(unsafe { word.as_ref() })
    }

    /// Copies from `offset` on to `to`.
    ///
    /// If the device writes there at the same time, each byte is either old or new.
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Result {
        self.check(offset, to.len())?;
        let mut done = 0;
        while done < to.len() {
            let (at, room) = self.chunk(offset + done)?;
            let step = Self::step(at, room.min(to.len() - done));
            if step == size_of::<u64>() {
                // SAFETY: `at` is aligned, as `step` says, and valid for eight bytes.
                let word = unsafe { at.cast::<u64>().read_volatile() };
                to[done..done + step].copy_from_slice(&word.to_ne_bytes());
            } else {
                // SAFETY: `at` is valid for a byte.
                to[done] = unsafe { at.read_volatile() };
            }
            done += step;
        }
        Ok(())
    }

    /// Copies `from` to the memory from `offset` on.
    ///
    /// If the device reads there at the same time, it sees each byte either old or new.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result {
        self.check(offset, from.len())?;
        let mut done = 0;
        while done < from.len() {
            let (at, room) = self.chunk(offset + done)?;
            let step = Self::step(at, room.min(from.len() - done));
            if let (true, Some(word)) = (
                step == size_of::<u64>(),
                from[done..].first_chunk::<{ size_of::<u64>() }>(),
            ) {
                let word = u64::from_ne_bytes(*word);
                // SAFETY: `at` is aligned, as `step` says, and valid for eight bytes.
                unsafe { at.cast::<u64>().write_volatile(word) };
            } else {
                // SAFETY: `at` is valid for a byte.
                unsafe { at.write_volatile(from[done]) };
            }
            done += step;
        }
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(EINVAL),
        }
    }

    /// The byte at `offset`, and how many follow in its page, itself included.
    fn chunk(&self, offset: usize) -> Result<(NonNull<u8>, usize)> {
        let at = self.locate(offset, 1)?;
        Ok((at, Self::PAGE_SIZE - offset % Self::PAGE_SIZE))
    }

    /// How many bytes to copy at once to or from `at` if there are `len`.
    fn step(at: NonNull<u8>, len: usize) -> usize {
        if len >= size_of::<u64>() && at.cast::<u64>().is_aligned() {
            size_of::<u64>()
        } else {
            1
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        let pages = core::mem::take(&mut self.pages);
        if let Err(pages) = self.dma.release(pages) {
            core::mem::forget(pages);
        }
    }
}
