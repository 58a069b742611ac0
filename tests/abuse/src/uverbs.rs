// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The kernel's uverbs commands, given by hand: whatever bytes a test wants, with no library in between.
//!
//! Layouts are those of `<rdma/ib_user_verbs.h>`; the `write()` form of the commands is used.

#![allow(
    clippy::cast_ptr_alignment,
    reason = "alignment is asserted where words are accessed"
)]

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use verbs_tests::memory::Memory;
use verbs_tests::verbs::{Errno, Result, poll_fds};

/// Commands, `enum ib_uverbs_write_cmds`.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Command {
    /// `GET_CONTEXT`
    GetContext = 0,
    /// `ALLOC_PD`
    AllocPd = 3,
    /// `REG_MR`
    RegMr = 9,
    /// `DEREG_MR`
    DeregMr = 13,
    /// `CREATE_CQ`
    CreateCq = 18,
    /// `RESIZE_CQ`
    ResizeCq = 19,
    /// `DESTROY_CQ`
    DestroyCq = 20,
    /// `CREATE_QP`
    CreateQp = 24,
    /// `MODIFY_QP`
    ModifyQp = 26,
    /// `DESTROY_QP`
    DestroyQp = 27,
    /// `ATTACH_MCAST`
    AttachMcast = 30,
    /// `DETACH_MCAST`
    DetachMcast = 31,
    /// `CREATE_SRQ`
    CreateSrq = 32,
    /// `MODIFY_SRQ`
    ModifySrq = 33,
    /// `DESTROY_SRQ`
    DestroySrq = 35,
}

/// Bytes of a command under construction, native byte order.
#[derive(Default)]
pub struct Bytes(Vec<u8>);

impl Bytes {
    /// Appends a byte.
    #[must_use]
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    /// Appends 16 bits.
    #[must_use]
    pub fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends 32 bits.
    #[must_use]
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends 64 bits.
    #[must_use]
    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    /// Appends bytes.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }
}

/// The 32-bit word number `n` of a response.
#[must_use]
pub fn word(response: &[u8], n: usize) -> u32 {
    response
        .get(4 * n..4 * n + 4)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u32::from_ne_bytes)
}

/// An open uverbs device.
pub struct Uverbs {
    file: File,
}

impl Uverbs {
    /// Opens the uverbs device of the RDMA device `name`.
    pub fn open(name: &str) -> std::io::Result<Self> {
        for entry in std::fs::read_dir("/sys/class/infiniband_verbs")? {
            let path = entry?.path();
            if std::fs::read_to_string(path.join("ibdev")).is_ok_and(|d| d.trim() == name) {
                let node = path.file_name().ok_or(std::io::ErrorKind::NotFound)?;
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(std::path::Path::new("/dev/infiniband").join(node))?;
                return Ok(Uverbs { file });
            }
        }
        Err(std::io::ErrorKind::NotFound.into())
    }

    /// Executes `command`: `core` is its struct behind the `response` pointer, `driver` the driver's part, and
    /// `response_len` the bytes of the response, core and driver.
    pub fn execute(
        &self,
        command: Command,
        core: &Bytes,
        driver: &[u8],
        response_len: usize,
    ) -> Result<Vec<u8>> {
        let mut response = vec![0_u8; response_len.next_multiple_of(8)];
        let has_response = !matches!(
            command,
            Command::DeregMr
                | Command::ModifyQp
                | Command::AttachMcast
                | Command::DetachMcast
                | Command::ModifySrq
        );
        let mut body = Bytes::default();
        if has_response {
            body = body.u64(response.as_mut_ptr().expose_provenance() as u64);
        }
        let body = body.raw(&core.0).raw(driver);
        let in_words = (8 + body.0.len()) / 4;
        let frame = Bytes::default()
            .u32(command as u32)
            .u16(in_words as u16)
            .u16((response_len / 4) as u16)
            .raw(&body.0);
        self.write_raw(&frame.0)?;
        // The kernel wrote the response through the pointer meanwhile.
        Ok(std::hint::black_box(response))
    }

    /// Writes arbitrary bytes as a command.
    pub fn write_raw(&self, bytes: &[u8]) -> Result<usize> {
        (&self.file)
            .write(bytes)
            .map_err(|e| Errno(e.raw_os_error().unwrap_or(0)))
    }

    /// Maps memory that the device or the kernel shares with its processes.
    pub fn map_memory(&self, offset: u64, len: usize) -> Result<Memory> {
        Memory::shared(self.file.as_fd(), offset, len)
    }

    /// Maps `len` bytes at `offset` of the device for writing.
    pub fn map(&self, offset: u64, len: usize, protection: i32, flags: i32) -> Result<Page> {
        // SAFETY: a new mapping at an address the kernel chooses.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                flags,
                self.file.as_raw_fd(),
                offset as i64,
            )
        };
        if base == libc::MAP_FAILED {
            Err(Errno::last())
        } else {
            Ok(Page {
                base: base.cast(),
                len,
            })
        }
    }
}

/// A mapped doorbell page.
pub struct Page {
    base: *mut u8,
    len: usize,
}

// SAFETY: the mapping is owned; it is only written, with volatile stores.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// Stores 32 bits at `offset`, a multiple of 4.
    pub fn store32(&self, offset: usize, value: u32) {
        assert!(offset.is_multiple_of(4) && offset + 4 <= self.len);
        // SAFETY: in the mapping and aligned.
        unsafe { self.base.add(offset).cast::<u32>().write_volatile(value) }
    }

    /// Stores one byte at `offset`.
    pub fn store8(&self, offset: usize, value: u8) {
        assert!(offset < self.len);
        // SAFETY: in the mapping.
        unsafe { self.base.add(offset).write_volatile(value) }
    }

    /// Stores 64 bits at `offset`, a multiple of 8.
    pub fn store64(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: in the mapping and aligned.
        unsafe { self.base.add(offset).cast::<u64>().write_volatile(value) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is owned and used no more.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// The descriptor of async events that `GET_CONTEXT` returned.
pub struct AsyncEvents {
    file: File,
}

impl AsyncEvents {
    /// Takes over `fd`.
    #[must_use]
    pub fn new(fd: RawFd) -> Self {
        // SAFETY: the kernel just installed the descriptor for us; nobody else closes it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        AsyncEvents {
            file: File::from(fd),
        }
    }

    /// The next event: user handle of its object and type; `None` after `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Option<(u64, i32)> {
        if !poll_fds(&[self.file.as_raw_fd()], timeout).ok()? {
            return None;
        }
        let mut event = [0; 16];
        self.file.read_exact(&mut event).ok()?;
        let element = u64::from_ne_bytes(event[..8].try_into().ok()?);
        Some((element, word(&event, 2) as i32))
    }
}

impl Bytes {
    /// The bytes.
    #[must_use]
    pub fn into_vec(self) -> Vec<u8> {
        self.0
    }
}
