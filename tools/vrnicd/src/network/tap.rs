// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A TAP device: connects to the host's network, or to whatever is bridged to it.
//!
//! Using a device that was created for this user beforehand (`ip tuntap add vrnic0 mode tap user …`) needs no
//! privilege.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::{Context, Result, ensure};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::medium::{FRAMES_PER_TURN, MAX_FRAME, Medium, not_now};
use crate::inherited;

/// Flags that determine the format of what is read and written.
const MODE: libc::c_int = libc::IFF_TUN | libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// Plain Ethernet frames with nothing in front.
const BARE_FRAMES: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI;

/// An open TAP device.
pub struct Tap {
    file: Option<File>,
    scratch: Vec<u8>,
}

impl Tap {
    /// Opens the device `name`; creates it if it does not exist and the process is allowed to.
    ///
    /// # Errors
    /// The device does not exist and may not be created, belongs to another user, or is in use.
    pub fn open(name: &str) -> Result<Self> {
        let file = File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")
            .context("cannot open /dev/net/tun")?;
        interface(&file, libc::TUNSETIFF, name, BARE_FRAMES).with_context(|| {
            format!("cannot use the TAP device {name}; `ip tuntap add {name} mode tap user …` creates it for a user")
        })?;
        Self::new(file)
    }

    /// Uses a descriptor inherited from the parent process.
    ///
    /// # Errors
    /// The number is not an open descriptor, or is not a TAP device that carries plain frames.
    pub fn inherited(fd: i32) -> Result<Self> {
        let file = File::from(
            inherited::duplicate(fd).with_context(|| format!("tap_fd = {fd} is not open"))?,
        );
        let flags = interface(&file, libc::TUNGETIFF, "", 0)
            .with_context(|| format!("tap_fd = {fd} is not a TAP device"))?;
        ensure!(
            flags & MODE == BARE_FRAMES,
            "tap_fd = {fd}: the device must be a TAP without packet information and without virtio headers"
        );
        Self::new(file)
    }

    fn new(file: File) -> Result<Self> {
        let flags = fcntl_getfl(&file)?;
        fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
        Ok(Self {
            file: Some(file),
            scratch: vec![0; MAX_FRAME],
        })
    }
}

/// Queries (TUNGETIFF) or sets (TUNSETIFF) the device of an open `/dev/net/tun`. Returns its flags.
fn interface(
    file: &File,
    operation: libc::Ioctl,
    name: &str,
    flags: libc::c_int,
) -> io::Result<libc::c_int> {
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero; the configuration does not allow longer names.
    for (to, from) in request.ifr_name.iter_mut().take(15).zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: both operations read and write a single ifreq, which `request` is.
    if unsafe { libc::ioctl(file.as_raw_fd(), operation, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has set the flags, and any bit pattern is a valid integer.
    Ok(libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags }))
}

impl Medium for Tap {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        for _ in 0..FRAMES_PER_TURN {
            match file.read(&mut self.scratch) {
                Ok(length) => take(&self.scratch[..length]),
                Err(error) if not_now(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Drops a frame that the device does not accept, for example because the device is down.
    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool> {
        while let (Some(file), Some(frame)) = (&mut self.file, frames.front()) {
            match file.write(frame) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Ok(_) | Err(_) => {}
            }
            frames.pop_front().map(&mut *spent);
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.file = None;
    }
}
