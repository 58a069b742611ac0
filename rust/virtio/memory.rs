// SPDX-License-Identifier: GPL-2.0

//! Memory that a device and its driver access at the same time.

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
    },
    task::might_sleep, //
};

use crate::{
    bindings,
    gate::Gate, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Orders all earlier accesses before all later ones, as observed by a device.
///
/// Neither `smp_mb` nor `core::sync::atomic::fence` suffices. On x86 both are an instruction with a
/// lock prefix. The kernel patches that prefix away on a machine with one CPU, and an emulator of
/// such a machine may ignore it.
#[inline]
pub fn full_fence() {
    // SAFETY: A barrier has no preconditions.
    unsafe { bindings::mb() }
}

/// Handle for DMA by a virtio device, which is usable as long as the device has queues
/// ([`Virtqueues::dma`](super::Virtqueues::dma)).
#[derive(Clone)]
pub struct Dma(Arc<Binding>);

/// The device that does the DMA, and whether it is bound.
#[pin_data]
struct Binding {
    dev: ARef<device::Device>,
    /// Open while the device is bound.
    #[pin]
    bound: Gate,
}

impl Dma {
    /// Creates a handle for DMA by `dev`. It must be [closed](Self::close) before `dev` is unbound.
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

    /// Ends the use of the device, which is about to be unbound. On return, memory of the device is
    /// neither being allocated nor freed, and will not be. Sleeps.
    pub(crate) fn close(&self) {
        self.0.bound.close();
    }

    /// Drops `mapped` while the device is bound; returns it if the device is not bound any more.
    fn release<T>(&self, mapped: T) -> Result<(), T> {
        let Some(_bound) = self.0.bound.enter() else {
            dev_err!(self.0.dev, "memory outlives its device and is leaked\n");
            return Err(mapped);
        };
        drop(mapped);
        Ok(())
    }

    /// Calls `f` with the device, if it is bound, and keeps it bound during the call.
    fn with<R>(&self, f: impl FnOnce(&device::Device<Bound>) -> R) -> Option<R> {
        let _bound = self.0.bound.enter()?;
        // SAFETY: The gate is not closed before `f` returns.
        Some(f(unsafe { self.0.dev.as_bound() }))
    }
}

/// One page of a [`SharedMemory`].
type Page = Coherent<[u8; SharedMemory::PAGE_SIZE]>;

/// Zeroed, coherent memory that is mapped for DMA, for rings and flags that a device reads and
/// writes at any time.
///
/// It consists of pages of [`SharedMemory::PAGE_SIZE`] bytes, which are contiguous neither in
/// memory nor for the device. An access beyond the end or to an unaligned word returns `EINVAL`.
///
/// Words that both sides change are atomics of `core`, not of the kernel. On a machine with one CPU
/// the kernel turns its own into plain instructions, but the device still runs on another CPU. For
/// the same reason, order accesses with [`full_fence`].
///
/// The device must no longer use the memory when this is dropped, as for [`Coherent`]. The type
/// system cannot express that: a device accesses whatever addresses it was given, and safe code may
/// give it any. Memory that is dropped after the device's queues are gone is leaked. Process
/// context only.
///
/// # Invariants
///
/// `pages` were allocated for the device of `dma`, and hold at least `len` bytes.
pub struct SharedMemory {
    dma: Dma,
    pages: KVVec<Page>,
    len: usize,
}

// SAFETY: The memory may be accessed and freed from any thread.
unsafe impl Send for SharedMemory {}

// SAFETY: All accesses are atomic, or volatile and no larger than a word. In the kernel's memory
// model such accesses do not race with each other.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Size of a page in bytes, and its alignment for CPU and device.
    pub const PAGE_SIZE: usize = 4096;

    /// Allocates `len` bytes. `ENODEV` if the device has no queues any more, or if its transport
    /// does not use the DMA API.
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
                // INVARIANT: Just allocated. There is room, so this cannot fail and lose the page.
                memory
                    .pages
                    .push(Coherent::zeroed(dev, GFP_KERNEL)?, GFP_KERNEL)?;
            }
            Ok(())
        })
        .unwrap_or(Err(ENODEV))?;
        Ok(memory)
    }

    /// Returns the length of the memory in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the DMA addresses of the pages.
    #[inline]
    pub fn dma_pages(&self) -> impl ExactSizeIterator<Item = DmaAddress> + '_ {
        self.pages.iter().map(Page::dma_address)
    }

    /// Returns the address of `len` bytes at `offset`, which must lie in one page.
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

    /// Returns the 32-bit word at `offset`.
    pub fn u32(&self, offset: usize) -> Result<&AtomicU32> {
        let word = self.locate(offset, size_of::<u32>())?.cast::<AtomicU32>();
        if !word.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: `word` is aligned and points to four bytes of an allocation that lives as long as
        // `self` and was initialised with zeroes. Apart from atomics, only `read` and `write`
        // access it, by volatile accesses of bytes or aligned words, which the kernel's memory
        // model treats as relaxed atomics.
        Ok(unsafe { word.as_ref() })
    }

    /// Returns the 64-bit word at `offset`.
    pub fn u64(&self, offset: usize) -> Result<&AtomicU64> {
        let word = self.locate(offset, size_of::<u64>())?.cast::<AtomicU64>();
        if !word.is_aligned() {
            return Err(EINVAL);
        }
        // SAFETY: As in `u32`.
        Ok(unsafe { word.as_ref() })
    }

    /// Copies bytes from the memory at `offset` to `to`.
    ///
    /// If the device writes concurrently, each byte is either old or new.
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

    /// Copies `from` to the memory at `offset`.
    ///
    /// If the device reads concurrently, it sees each byte either old or new.
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

    /// Returns the address of the byte at `offset`, and the number of bytes from there to the end
    /// of its page.
    fn chunk(&self, offset: usize) -> Result<(NonNull<u8>, usize)> {
        let at = self.locate(offset, 1)?;
        Ok((at, Self::PAGE_SIZE - offset % Self::PAGE_SIZE))
    }

    /// Returns how many of `len` bytes at `at` to copy at once.
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
        might_sleep();
        let pages = core::mem::take(&mut self.pages);
        if let Err(pages) = self.dma.release(pages) {
            core::mem::forget(pages);
        }
    }
}
