// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Buffers that a device may read and write at any time. They are accessed only by copying, never by reference.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "alignment is asserted where words are accessed"
)]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::pattern;
use crate::verbs::{Errno, Result};

/// Bytes in a page of the machines under test.
pub const PAGE: usize = 4096;

/// A file of `len` bytes in memory, which cannot shrink.
pub fn memory_file(len: usize) -> Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string; the call has no other precondition.
    let fd = unsafe { libc::memfd_create(c"vrnic-tests".as_ptr(), flags) };
    if fd < 0 {
        return Err(Errno::last());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain system calls on an owned descriptor.
    let done = unsafe {
        libc::ftruncate(fd.as_raw_fd(), len as i64) == 0
            && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0
    };
    if done { Ok(fd) } else { Err(Errno::last()) }
}

/// Lets this process have at least `count` open files.
pub fn open_files(count: u64) -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count.max(1 << 16),
    };
    // SAFETY: `limit` is readable.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
        0 => Ok(()),
        _ => Err(Errno::last()),
    }
}

/// A page-aligned mapping, anonymous and zeroed unless it is said otherwise.
#[derive(Debug)]
pub struct Memory {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is owned and every access is a raw copy; concurrent writers (threads, the device) can only
// change which bytes a copy sees.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` bytes of zeroed memory, rounded up to whole pages.
    pub fn new(len: usize) -> Result<Self> {
        Self::map(0, len, 0)
    }

    /// As [`new`](Self::new), from the page at that address on, where nothing may be.
    pub fn at(addr: usize, len: usize) -> Result<Self> {
        Self::map(addr, len, libc::MAP_FIXED_NOREPLACE)
    }

    /// As [`new`](Self::new), in huge pages. `ENOMEM` if the machine has too few of them.
    pub fn huge(len: usize) -> Result<Self> {
        Self::map(0, len, libc::MAP_HUGETLB)
    }

    fn map(addr: usize, len: usize, flags: i32) -> Result<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        // SAFETY: an anonymous mapping at an address the kernel chooses, or that replaces none, touches nothing that
        // exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::without_provenance_mut(addr),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Memory {
            base: base.cast(),
            len,
        })
    }

    /// `len` bytes of address space in which the same `chunk` bytes of memory repeat: a message far larger than RAM
    /// allows. Both are multiples of the page size.
    pub fn repeated(len: usize, chunk: usize) -> Result<Self> {
        assert!(len.is_multiple_of(chunk) && chunk.is_multiple_of(PAGE));
        let fd = memory_file(chunk)?;
        // SAFETY: plain system calls on an owned descriptor; the first mapping reserves the range that the fixed
        // mappings then replace piece by piece, so they overwrite nothing else.
        unsafe {
            let base = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if base == libc::MAP_FAILED {
                return Err(Errno::last());
            }
            let memory = Memory {
                base: base.cast(),
                len,
            };
            for at in (0..len).step_by(chunk) {
                let here = libc::mmap(
                    base.byte_add(at),
                    chunk,
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_SHARED | libc::MAP_FIXED,
                    fd.as_raw_fd(),
                    0,
                );
                if here == libc::MAP_FAILED {
                    return Err(Errno::last());
                }
            }
            Ok(memory)
        }
    }

    /// `len` bytes at `offset` of what is open as `fd`, shared with whoever else maps them.
    pub fn shared(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self> {
        // SAFETY: a mapping at an address the kernel chooses touches nothing that exists.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as i64,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Errno::last());
        }
        Ok(Memory {
            base: base.cast(),
            len,
        })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true: a mapping has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Address of byte `offset`, for use in work requests.
    #[must_use]
    pub fn addr(&self, offset: usize) -> u64 {
        self.base.addr() as u64 + offset as u64
    }

    fn checked(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset,
            "{offset}+{len} of {}",
            self.len
        );
        self.base.wrapping_add(offset)
    }

    /// Gives whole pages back to the kernel; they read as zeros from then on.
    pub fn forget(&self, offset: usize, len: usize) {
        let at = self.checked(offset, len);
        // SAFETY: whole pages of the mapping, to which no reference exists.
        let done = unsafe { libc::madvise(at.cast(), len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "madvise: {}", Errno::last());
    }

    /// Has the contents of whole pages stand in other memory.
    pub fn relocate(&self, offset: usize, len: usize) {
        let at = self.checked(offset, len);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: the copy is a mapping of its own, which then takes the place of whole pages of this one at once.
        unsafe {
            let copy = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
            assert_ne!(copy, libc::MAP_FAILED, "mmap: {}", Errno::last());
            std::ptr::copy_nonoverlapping(at, copy.cast::<u8>(), len);
            let fixed = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            let moved = libc::mremap(copy, len, len, fixed, at.cast::<libc::c_void>());
            assert_eq!(moved, at.cast(), "mremap: {}", Errno::last());
        }
    }

    /// Makes whole pages such that nobody can access them, until they are opened.
    pub fn close(&self, offset: usize, len: usize) -> Result<()> {
        self.protect(offset, len, libc::PROT_NONE)
    }

    /// Makes whole pages accessible again.
    pub fn open(&self, offset: usize, len: usize) -> Result<()> {
        self.protect(offset, len, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn protect(&self, offset: usize, len: usize, protection: i32) -> Result<()> {
        let at = self.checked(offset, len);
        // SAFETY: whole pages of the mapping; who accesses what is closed is killed, and nothing else happens.
        match unsafe { libc::mprotect(at.cast(), len, protection) } {
            0 => Ok(()),
            _ => Err(Errno::last()),
        }
    }

    /// Copies `data` to `offset`.
    pub fn write(&self, offset: usize, data: &[u8]) {
        let to = self.checked(offset, data.len());
        // SAFETY: `checked` proved the range to lie in the mapping; `data` cannot overlap it since no reference to
        // the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
    }

    /// Copies from `offset` to `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.checked(offset, out.len());
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    /// Sets `len` bytes at `offset` to `value`.
    pub fn set(&self, offset: usize, len: usize, value: u8) {
        let to = self.checked(offset, len);
        // SAFETY: `checked` proved the range to lie in the mapping.
        unsafe { std::ptr::write_bytes(to, value, len) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        let at = self.checked(offset, 8);
        // SAFETY: in the mapping, aligned, and an atomic may be shared with any other writer.
        unsafe { &*at.cast::<AtomicU64>() }
    }

    /// The 64-bit word at `offset` (a multiple of 8), host byte order.
    #[must_use]
    pub fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores the 64-bit word at `offset` (a multiple of 8), host byte order.
    pub fn store(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Sets bits of the 64-bit word at `offset` (a multiple of 8).
    pub fn set_bits(&self, offset: usize, bits: u64) {
        self.word(offset).fetch_or(bits, Ordering::SeqCst);
    }

    fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        let at = self.checked(offset, 4);
        // SAFETY: in the mapping, aligned, and an atomic may be shared with any other writer.
        unsafe { &*at.cast::<AtomicU32>() }
    }

    /// The 32-bit word at `offset` (a multiple of 4), host byte order.
    #[must_use]
    pub fn load32(&self, offset: usize) -> u32 {
        self.half_word(offset).load(Ordering::Acquire)
    }

    /// Stores the 32-bit word at `offset` (a multiple of 4), host byte order.
    pub fn store32(&self, offset: usize, value: u32) {
        self.half_word(offset).store(value, Ordering::Release);
    }

    /// Fills `len` bytes at `offset` with the payload `key` from its byte `from` on.
    pub fn fill(&self, offset: usize, len: usize, key: u64, from: usize) {
        let mut chunk = [0; 4096];
        let mut at = 0;
        while at < len {
            let n = chunk.len().min(len - at);
            pattern::fill(key, from + at, &mut chunk[..n]);
            self.write(offset + at, &chunk[..n]);
            at += n;
        }
    }

    /// Compares `len` bytes at `offset` with the payload `key` from its byte `from` on; the index of the first
    /// difference is the error.
    pub fn check(
        &self,
        offset: usize,
        len: usize,
        key: u64,
        from: usize,
    ) -> std::result::Result<(), usize> {
        let mut chunk = [0; 4096];
        let mut at = 0;
        while at < len {
            let n = chunk.len().min(len - at);
            self.read(offset + at, &mut chunk[..n]);
            if let Some(i) = pattern::mismatch(key, from + at, &chunk[..n]) {
                return Err(at + i);
            }
            at += n;
        }
        Ok(())
    }

    /// Has a child set `len` bytes at `offset` of its copy to `value`, and waits until it has ended.
    pub fn set_in_child(&self, offset: usize, len: usize, value: u8) -> Result<()> {
        // SAFETY: the child calls nothing but what is safe after a fork of a process with threads.
        match unsafe { libc::fork() } {
            0 => {
                self.set(offset, len, value);
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            -1 => Err(Errno::last()),
            pid => {
                let mut status = 0;
                // SAFETY: the child was not waited for; `status` is writable.
                if unsafe { libc::waitpid(pid, &raw mut status, 0) } != pid {
                    return Err(Errno::last());
                }
                if libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0 {
                    Ok(())
                } else {
                    Err(Errno(libc::ECHILD))
                }
            }
        }
    }

    /// Checks that `len` bytes at `offset` still have `value`; the index of the first difference is the error.
    pub fn check_set(
        &self,
        offset: usize,
        len: usize,
        value: u8,
    ) -> std::result::Result<(), usize> {
        let mut chunk = [0; 4096];
        let mut at = 0;
        while at < len {
            let n = chunk.len().min(len - at);
            self.read(offset + at, &mut chunk[..n]);
            if let Some(i) = chunk[..n].iter().position(|b| *b != value) {
                return Err(at + i);
            }
            at += n;
        }
        Ok(())
    }
}

/// A child that shares all memory as it is and does nothing, until it is dropped or this process ends, however that
/// comes: it has all open files, and so the objects behind them.
#[derive(Debug)]
pub struct Child(libc::pid_t);

/// Makes a child.
pub fn sleeping_child() -> Result<Child> {
    // SAFETY: has no preconditions.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the child calls nothing but what is safe after a fork of a process with threads.
    match unsafe { libc::fork() } {
        // SAFETY: as above.
        0 => unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            while libc::getppid() == parent {
                libc::pause();
            }
            libc::_exit(0)
        },
        -1 => Err(Errno::last()),
        pid => Ok(Child(pid)),
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the child was not waited for, so the number is its own.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned, and no reference into it outlives a method call.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_ends_with_its_parent() {
        let (reader, writer) = std::io::pipe().unwrap();
        // SAFETY: the child calls nothing but what is safe after a fork of a process with threads.
        match unsafe { libc::fork() } {
            0 => {
                std::mem::forget(sleeping_child());
                // SAFETY: as above.
                unsafe { libc::_exit(0) }
            }
            // SAFETY: the child was not waited for.
            pid => unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) },
        };
        drop(writer);
        // Only the child's child can hold the other end.
        let mut end = libc::pollfd {
            fd: reader.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure, which lives across the call.
        assert_eq!(unsafe { libc::poll(&raw mut end, 1, 20_000) }, 1);
        assert_eq!(end.revents, libc::POLLHUP);
    }

    #[test]
    fn repeated_memory_is_one_chunk_seen_many_times() {
        let m = Memory::repeated(8 * PAGE, 2 * PAGE).unwrap();
        m.write(5, b"hello");
        let mut out = [0; 5];
        m.read(6 * PAGE + 5, &mut out);
        assert_eq!(&out, b"hello");
    }

    #[test]
    fn patterns_and_guards_are_checked() {
        let m = Memory::new(10_000).unwrap();
        m.fill(3, 9_000, 1, 17);
        assert_eq!(m.check(3, 9_000, 1, 17), Ok(()));
        m.write(5_003, &[0, 0]);
        assert!(matches!(m.check(3, 9_000, 1, 17), Err(5_000 | 5_001)));
        m.set(0, 100, 7);
        assert_eq!(m.check_set(0, 100, 7), Ok(()));
        m.write(50, &[8]);
        assert_eq!(m.check_set(0, 100, 7), Err(50));
    }
}
