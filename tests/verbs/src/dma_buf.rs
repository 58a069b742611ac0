// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! dma-bufs that udmabuf makes of a process's own memory. They stand in for dma-bufs of other devices' memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::memory::{Memory, memory_file};
use crate::verbs::{Errno, Result};

/// `struct udmabuf_create` of `<linux/udmabuf.h>`.
#[repr(C)]
struct UdmabufCreate {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// `UDMABUF_CREATE`: `_IOW('u', 0x42, struct udmabuf_create)`.
const UDMABUF_CREATE: libc::Ioctl =
    ((1 << 30) | (size_of::<UdmabufCreate>() << 16) | ((b'u' as usize) << 8) | 0x42) as libc::Ioctl;
/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// A dma-buf, and the same memory as the process sees it.
#[derive(Debug)]
pub struct DmaBuf {
    fd: OwnedFd,
    memory: Arc<Memory>,
}

/// What of a dma-buf is registered.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The dma-buf
    pub fd: RawFd,
    /// The first byte
    pub offset: usize,
    /// Bytes
    pub len: usize,
    /// Address by which work requests name the first byte
    pub iova: u64,
    /// What the region says is its memory
    pub memory: Arc<Memory>,
}

impl DmaBuf {
    /// A dma-buf of `len` zeroed bytes, which is whole pages.
    pub fn new(len: usize) -> Result<Self> {
        let file = memory_file(len)?;
        let memory = Arc::new(Memory::shared(file.as_fd(), 0, len)?);
        let device = File::options()
            .read(true)
            .write(true)
            .open("/dev/udmabuf")
            .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
        let request = UdmabufCreate {
            memfd: file.as_raw_fd() as u32,
            flags: CLOEXEC,
            offset: 0,
            size: len as u64,
        };
        // SAFETY: the request is the structure that the ioctl reads.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const request) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(DmaBuf { fd, memory })
    }

    /// Its memory.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// `len` bytes at `offset`, under the addresses that they have in this process.
    #[must_use]
    pub fn piece(&self, offset: usize, len: usize) -> Piece {
        Piece {
            fd: self.fd.as_raw_fd(),
            offset,
            len,
            iova: self.memory.addr(offset),
            memory: self.memory.clone(),
        }
    }
}
