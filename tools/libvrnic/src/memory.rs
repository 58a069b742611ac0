// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory that the device reads and writes concurrently with this process.
//!
//! Only this module accesses such memory through pointers. Other modules use a [`Shared`]: each of
//! its accesses is checked against its bounds, and is atomic, volatile, or ordered by an atomic
//! access.

use alloc::boxed::Box;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Orders all accesses before the fence against all accesses after it, as the device sees them.
///
/// On x86 this is MFENCE. Rust's own fence is an instruction with a lock prefix on the stack. On a
/// CPU that orders just as much, but QEMU's TCG, when it emulates a machine with one CPU, turns it
/// into a load and a store.
#[inline]
pub fn full_fence() {
    compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: Every x86-64 CPU has the instruction.
    unsafe {
        core::arch::x86_64::_mm_mfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    core::sync::atomic::fence(Ordering::SeqCst);
    compiler_fence(Ordering::SeqCst);
}

/// A range of memory shared with the device.
#[derive(Copy, Clone, Debug)]
pub struct Shared {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: The memory is not tied to a thread. All accesses are atomic, or exclusive by the contract
// of the rings.
unsafe impl Send for Shared {}
// SAFETY: As above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Describes the `length` bytes at `base`.
    ///
    /// # Safety
    ///
    /// `base` is a multiple of 64. The bytes stay mapped for reading and writing as long as the
    /// value, a copy of it or a part of it is used. No Rust references to them exist elsewhere.
    pub const unsafe fn new(base: NonNull<u8>, length: usize) -> Self {
        Self { base, length }
    }

    /// Returns whether the `length` bytes at `offset` are within the range.
    #[inline]
    fn contains(&self, offset: usize, length: usize) -> bool {
        // With a constant offset, this is one comparison.
        offset
            .checked_add(length)
            .is_some_and(|end| end <= self.length)
    }

    /// Returns the address of a `T` at `offset`. Panics, and so aborts, if that is not within the
    /// range.
    #[inline]
    fn at<T>(&self, offset: usize, align: usize) -> NonNull<T> {
        assert!(offset.is_multiple_of(align) && self.contains(offset, size_of::<T>()));
        // SAFETY: Within the range, as was just checked.
        unsafe { self.base.add(offset).cast() }
    }

    /// Returns the `length` bytes at `offset`, which is a multiple of 16.
    #[inline]
    #[must_use]
    pub fn part(&self, offset: usize, length: usize) -> Self {
        assert!(offset.is_multiple_of(16) && self.contains(offset, length));
        // SAFETY: Within the range, as was just checked.
        let base = unsafe { self.base.add(offset) };
        Self { base, length }
    }

    /// Returns the `count` entries of `stride` bytes at `offset`. `count` is a power of two; the
    /// others are multiples of 16.
    #[must_use]
    pub fn entries(&self, offset: usize, count: u32, stride: u32) -> Entries {
        let length = (count as usize).saturating_mul(stride as usize);
        assert!(count.is_power_of_two() && stride.is_multiple_of(16));
        Entries {
            base: self.part(offset, length).base,
            mask: count - 1,
            stride,
        }
    }

    /// Returns the le32 at `offset`.
    #[inline]
    pub fn word(&self, offset: usize) -> Field<AtomicU32> {
        Field(self.at(offset, align_of::<AtomicU32>()))
    }

    /// Returns the le64 at `offset`.
    #[inline]
    pub fn long(&self, offset: usize) -> Field<AtomicU64> {
        Field(self.at(offset, align_of::<AtomicU64>()))
    }

    /// Returns the byte at `offset`.
    #[inline]
    pub fn byte(&self, offset: usize) -> Field<AtomicU8> {
        Field(self.at(offset, 1))
    }

    /// Copies the structure at `offset`, which is a multiple of 8. Reads each byte once.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> T {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let from = self.at::<T>(offset, 8).cast::<u64>().as_ptr();
        let mut value = MaybeUninit::<T>::uninit();

        for i in 0..size_of::<T>() / 8 {
            // SAFETY: Both pointers are within a `T`, and the source is aligned. The read is
            // volatile because the device may write at any time.
            unsafe {
                let word = from.add(i).read_volatile();
                value
                    .as_mut_ptr()
                    .cast::<u64>()
                    .add(i)
                    .write_unaligned(word);
            }
        }
        // SAFETY: Every byte has been written, and any bytes are a valid `T: FromBytes`.
        unsafe { value.assume_init() }
    }

    /// Stores a structure at `offset`, which is a multiple of 8. The next store with release order
    /// makes it visible.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: &T) {
        let to = self.at::<T>(offset, 8).cast::<u8>().as_ptr();
        // SAFETY: The destination is within the range; the source is a reference, so it is outside
        // of it.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast(), to, size_of::<T>()) }
    }

    /// Stores structures one after the other from `offset`, which is a multiple of 8.
    #[inline]
    pub fn write_all<T: IntoBytes + Immutable>(
        &self,
        offset: usize,
        values: impl ExactSizeIterator<Item = T>,
    ) {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let count = values.len();
        let length = count.saturating_mul(size_of::<T>());
        assert!(offset.is_multiple_of(8) && self.contains(offset, length));
        for (i, value) in (0..count).zip(values) {
            // SAFETY: All of the `count` structures are within the range, as was just checked.
            unsafe {
                let to = self.base.add(offset).cast::<T>().add(i);
                to.write_unaligned(value);
            }
        }
    }

    /// Stores bytes at `offset`.
    #[inline]
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        assert!(self.contains(offset, bytes.len()));
        // SAFETY: The destination is within the range; the source is a reference, so it is outside
        // of it.
        unsafe {
            let to = self.base.as_ptr().add(offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

/// An integer in shared memory, which may change at any time. Like a part of the memory, it may be
/// used as long as the memory is mapped.
#[derive(Debug)]
pub struct Field<T>(NonNull<T>);

impl<T> Copy for Field<T> {}

impl<T> Clone for Field<T> {
    fn clone(&self) -> Self {
        *self
    }
}

// SAFETY: As for `Shared`.
unsafe impl<T: Sync> Send for Field<T> {}
// SAFETY: As above.
unsafe impl<T: Sync> Sync for Field<T> {}

impl<T> Deref for Field<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: Only `Shared` makes fields, and only atomics: within the range, aligned, because
        // the base is and the offset was checked, and mapped, by the contract of `Shared::new`.
        unsafe { self.0.as_ref() }
    }
}

/// The entries of a ring, of which there is always one.
#[derive(Copy, Clone, Debug)]
pub struct Entries {
    base: NonNull<u8>,
    mask: u32,
    stride: u32,
}

// SAFETY: As for `Shared`.
unsafe impl Send for Entries {}
// SAFETY: As above.
unsafe impl Sync for Entries {}

impl Entries {
    /// Returns the entry with the free-running index `index`.
    #[inline]
    #[must_use]
    pub fn at(&self, index: u32) -> Shared {
        let length = self.stride as usize;
        let offset = (index & self.mask) as usize * length;
        // SAFETY: `Shared::entries` has checked that the entries up to `mask` are within the range.
        let base = unsafe { self.base.add(offset) };
        Shared { base, length }
    }
}

/// Memory of a uverbs device, mapped into this process.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: The mapping belongs to the value alone and is not tied to a thread.
unsafe impl Send for Mapping {}
// SAFETY: As above; access goes through `Shared`, or is a single store.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `offset` of the uverbs device that is open as `fd`, with
    /// `protection`. On failure, returns `None` and sets `errno`.
    fn new(fd: i32, offset: u64, length: usize, protection: i32) -> Option<Self> {
        // SAFETY: This creates a new mapping and replaces none.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd,
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(base.cast()).map(|base| Self { base, length })
    }

    /// Maps `length` bytes at `offset` of the file that is open as `fd`, for reading and writing.
    /// On failure, returns `None` and sets `errno`.
    pub fn memory(fd: i32, offset: u64, length: usize) -> Option<Self> {
        Self::new(fd, offset, length, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Returns the memory, to be shared with the device.
    ///
    /// # Safety
    ///
    /// The mapping came from [`memory`](Self::memory). The result and everything made from it are
    /// used only as long as the mapping lives.
    pub unsafe fn shared(&self) -> Shared {
        // SAFETY: Page aligned, mapped as long as the mapping lives, and accessible only through
        // it.
        unsafe { Shared::new(self.base, self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and it is no longer used.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

/// A page of the doorbell region, mapped into this process.
#[derive(Debug)]
pub struct DoorbellPage(Mapping);

impl DoorbellPage {
    /// Maps `length` bytes at `offset` of the uverbs device that is open as `fd`. On failure,
    /// returns `None` and sets `errno`.
    pub fn map(fd: i32, offset: u64, length: usize) -> Option<Self> {
        Mapping::new(fd, offset, length, libc::PROT_WRITE).map(Self)
    }

    /// Tells the device that `slot` has work.
    #[inline]
    pub fn ring(&self, slot: u32) {
        let word = self.0.base.cast::<u32>();
        // SAFETY: The first word of a mapping of at least a page, which lives as long as `self`.
        unsafe { word.as_ptr().write_volatile(slot.to_le()) }
    }
}

/// The lender of a buffer's memory.
pub trait Lender: core::fmt::Debug + Send + Sync {
    /// Takes back the memory, which is no longer used.
    fn take_back(&self, memory: NonNull<u8>);
}

/// Zeroed pages of this process. Child processes do not get them if the application asked for that.
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    length: usize,
    /// Gets the pages back. Without a lender, they are a mapping of the buffer's own.
    lender: Option<Box<dyn Lender>>,
    /// Whether child processes are kept from the pages.
    is_protected: bool,
}

// SAFETY: The pages belong to the value alone and are not tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: As above; access goes through `Shared`.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates whole pages with at least `length` bytes. On failure, returns `None` and sets
    /// `errno`.
    pub fn new(length: usize) -> Option<Self> {
        let length = whole_pages(length)?;
        // SAFETY: This creates a new mapping and replaces none.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        let buffer = Self {
            base: NonNull::new(base.cast())?,
            length,
            lender: None,
            is_protected: false,
        };
        buffer.protected()
    }

    /// Creates a buffer from the `length` bytes at `base`, which this function zeroes. `lender`
    /// gets them back when the buffer is dropped. On failure, returns `None` and sets `errno`.
    ///
    /// # Safety
    ///
    /// The bytes are whole pages, mapped for reading and writing, and not used otherwise until the
    /// lender gets them back.
    pub unsafe fn lent(base: NonNull<u8>, length: usize, lender: Box<dyn Lender>) -> Option<Self> {
        // SAFETY: By contract.
        unsafe { base.as_ptr().write_bytes(0, length) };
        let buffer = Self {
            base,
            length,
            lender: Some(lender),
            is_protected: false,
        };
        buffer.protected()
    }

    /// Keeps child processes from the pages, if the application asked for that. On failure, drops
    /// the buffer.
    fn protected(mut self) -> Option<Self> {
        fork::protect(&self)?;
        self.is_protected = true;
        Some(self)
    }

    /// Returns the address of the first byte, for the kernel.
    pub fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the length of the buffer in bytes, a multiple of the page size.
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the buffer, to be shared with the device.
    ///
    /// # Safety
    ///
    /// The result and everything made from it are used only as long as the buffer lives.
    pub unsafe fn shared(&self) -> Shared {
        // SAFETY: Page aligned, mapped as long as the buffer lives, and accessible only through it.
        unsafe { Shared::new(self.base, self.length) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_protected {
            fork::unprotect(self);
        }
        match &self.lender {
            Some(lender) => lender.take_back(self.base),
            // SAFETY: `new` made this mapping, and it is no longer used.
            None => unsafe {
                libc::munmap(self.base.as_ptr().cast(), self.length);
            },
        }
    }
}

/// Rounds `length` up to a multiple of the page size.
pub fn whole_pages(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(page_size())
}

/// Returns the page size in bytes.
pub fn page_size() -> usize {
    // SAFETY: The call has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Fork protection for `ibv_fork_init`: a child process must not get pages that the device
/// accesses.
#[cfg(feature = "pabi34")]
mod fork {
    use super::Buffer;
    use crate::ffi::functions::{ibv_dofork_range, ibv_dontfork_range};

    pub(super) fn protect(buffer: &Buffer) -> Option<()> {
        // SAFETY: The pages of the buffer.
        let failed = unsafe { ibv_dontfork_range(buffer.base.as_ptr().cast(), buffer.length) };
        (failed == 0).then_some(())
    }

    pub(super) fn unprotect(buffer: &Buffer) {
        // SAFETY: The pages of the buffer, protected before. The call fails only for lack of
        // memory. Then the protection of an unmapped range remains, which does no harm.
        unsafe { ibv_dofork_range(buffer.base.as_ptr().cast(), buffer.length) };
    }
}

/// Without libibverbs, no application can have called `ibv_fork_init`.
#[cfg(not(feature = "pabi34"))]
mod fork {
    use super::Buffer;

    #[allow(clippy::unnecessary_wraps)]
    pub(super) fn protect(_: &Buffer) -> Option<()> {
        Some(())
    }

    pub(super) fn unprotect(_: &Buffer) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_wire::work::Sge;

    #[test]
    fn buffers_are_zeroed_pages() {
        let buffer = Buffer::new(1).unwrap();
        assert_eq!(buffer.length() % page_size(), 0);
        assert_eq!(buffer.address() % page_size() as u64, 0);
        // SAFETY: Used only within this function, during which the buffer lives.
        let memory = unsafe { buffer.shared() };
        assert_eq!(memory.read::<[u64; 8]>(64), [0; 8]);
    }

    #[test]
    fn lent_pages_are_zeroed_and_given_back() {
        #[derive(Debug)]
        struct Shelf(std::sync::mpsc::SyncSender<usize>);

        impl Lender for Shelf {
            fn take_back(&self, memory: NonNull<u8>) {
                self.0.send(memory.as_ptr() as usize).unwrap();
            }
        }

        let pages = Buffer::new(4096).unwrap();
        let (sender, returned) = std::sync::mpsc::sync_channel(2);
        // SAFETY: Pages of `pages`, which outlives everything made here.
        unsafe { pages.base.as_ptr().write_bytes(7, pages.length) };
        // SAFETY: As above; the pages are not used otherwise in the meantime.
        let lent = unsafe { Buffer::lent(pages.base, pages.length, Box::new(Shelf(sender))) };
        let lent = lent.unwrap();
        assert_eq!(lent.address(), pages.address());
        // SAFETY: Used only as long as `lent` lives.
        assert_eq!(unsafe { lent.shared() }.read::<[u64; 512]>(0), [0; 512]);
        assert!(returned.try_recv().is_err());
        drop(lent);
        assert_eq!(returned.try_recv(), Ok(pages.address() as usize));
    }

    #[test]
    fn what_is_written_is_read() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        let part = unsafe { buffer.shared() }.part(1024, 128);
        let sge = Sge {
            address: 7.into(),
            length: 8.into(),
            lkey: 9.into(),
        };
        part.write(16, &sge);
        part.write_bytes(35, b"abc");
        assert_eq!(part.read::<Sge>(16), sge);
        assert_eq!(
            part.word(32)
                .load(core::sync::atomic::Ordering::Relaxed)
                .to_be_bytes()[0],
            b'a'
        );
    }

    #[test]
    #[should_panic(expected = "self.contains(offset, bytes.len())")]
    fn a_part_ends_where_it_says() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        let part = unsafe { buffer.shared() }.part(0, 64);
        part.write_bytes(60, b"abcde");
    }

    #[test]
    fn entries_follow_each_other_and_start_over() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        let memory = unsafe { buffer.shared() };
        let entries = memory.entries(1024, 4, 48);
        let sges = [3, 4].map(|lkey| Sge {
            address: 7.into(),
            length: 8.into(),
            lkey: u32::into(lkey),
        });
        entries.at(u32::MAX).write_all(16, sges.into_iter());
        let last = 1024 + 3 * 48;
        assert_eq!(memory.read::<[Sge; 2]>(last + 16), sges);
        assert_eq!(entries.at(7).read::<Sge>(32), sges[1]);
        assert_eq!(entries.at(4).read::<[u64; 6]>(0), [0; 6]);
    }

    #[test]
    #[should_panic(expected = "self.contains(offset, length)")]
    fn entries_are_within_the_memory() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        let _ = unsafe { buffer.shared() }.entries(1024, 64, 64);
    }

    #[test]
    #[should_panic(expected = "self.contains(offset, length)")]
    fn what_is_written_is_within_its_entry() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        let entry = unsafe { buffer.shared() }.entries(0, 4, 64).at(0);
        entry.write_all(16, [[0_u64; 2]; 4].into_iter());
    }

    #[test]
    #[should_panic(expected = "self.contains(offset, size_of::<T>())")]
    fn offsets_do_not_overflow() {
        let buffer = Buffer::new(4096).unwrap();
        // SAFETY: Used only within this function, during which the buffer lives.
        unsafe { buffer.shared() }.long(usize::MAX - 7);
    }
}
