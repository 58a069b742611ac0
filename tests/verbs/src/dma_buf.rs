// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! dma-bufs: those that udmabuf makes of a process's own memory, and those that a module of `tests/kernel` moves and
//! takes away. They stand in for dma-bufs of other devices' memory.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::process::Command;
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
        let device = open("/dev/udmabuf")?;
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

    /// A dma-buf of `len` zeroed bytes, which is whole pages, and what moves it.
    pub fn moving(len: usize) -> Result<(Self, Exporter)> {
        let exporter = Exporter::open()?;
        let fd = exporter.ask(EXPORTER_EXPORT, len)?;
        // SAFETY: `fd` was just opened and belongs to nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let memory = Arc::new(Memory::shared(fd.as_fd(), 0, len)?);
        Ok((DmaBuf { fd, memory }, exporter))
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

/// `EXPORTER_*` of `tests/kernel/vrnic-exporter.c`: `_IO('V', …)`.
const EXPORTER_EXPORT: libc::Ioctl = exporter_request(1);
const EXPORTER_MOVE: libc::Ioctl = exporter_request(2);
const EXPORTER_REVOKE: libc::Ioctl = exporter_request(3);
const EXPORTER_STALE: libc::Ioctl = exporter_request(4);

const fn exporter_request(number: u8) -> libc::Ioctl {
    ((b'V' as libc::Ioctl) << 8) | number as libc::Ioctl
}

/// Who moves a dma-buf.
#[derive(Debug)]
pub struct Exporter(File);

impl Exporter {
    /// Opens the module's device, and loads the module if necessary.
    fn open() -> Result<Self> {
        let device = "/dev/vrnic-exporter";
        if !Path::new(device).exists() {
            let loaded = Command::new("modprobe").arg("vrnic-exporter").status();
            loaded.map_err(|_| Errno(libc::ENODEV))?;
        }
        open(device).map(Exporter)
    }

    /// Has the dma-buf go elsewhere, with what it contains.
    pub fn relocate(&self) -> Result<()> {
        self.ask(EXPORTER_MOVE, 0).map(|_| ())
    }

    /// Takes the dma-buf away. Whoever touches its memory after that gets a signal.
    pub fn revoke(&self) -> Result<()> {
        self.ask(EXPORTER_REVOKE, 0).map(|_| ())
    }

    /// Pages that were written to after the dma-buf had left them.
    pub fn stale(&self) -> Result<i32> {
        self.ask(EXPORTER_STALE, 0)
    }

    fn ask(&self, request: libc::Ioctl, argument: usize) -> Result<i32> {
        // SAFETY: the requests take a number or nothing, and touch no memory of the process.
        let answer = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if answer < 0 {
            return Err(Errno::last());
        }
        Ok(answer)
    }
}

/// Opens a device.
fn open(path: &str) -> Result<File> {
    let file = File::options().read(true).write(true).open(path);
    file.map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
}
