// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Media through which frames enter and leave: a stream, a TAP device, a link, or the host's own RoCE.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};

use super::link::Link;
use super::losses::Losses;
use super::stream::Stream;
use super::tap::Tap;
use super::udp::Udp;
use crate::config::Device;
use crate::config::switch::Port;

/// Longest frame that is read. It exceeds every frame that a port's MTU allows, including header and tag.
pub const MAX_FRAME: usize = 65536;
/// Number of frames that are read before other ports get their turn.
pub const FRAMES_PER_TURN: usize = 128;

/// A connection to the outside. None of its methods block.
pub trait Medium: Send {
    /// Returns the descriptor through which frames pass; `None` while no peer is connected.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Returns the descriptor on which new connections arrive, if there is one.
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Accepts a connection. Returns true if it replaces an earlier one.
    ///
    /// # Errors
    /// The connection could not be accepted; the state is unchanged.
    fn accept(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Reads available frames, up to about [`FRAMES_PER_TURN`], and calls `take` with each.
    ///
    /// # Errors
    /// The peer has disconnected or must be disconnected: the caller has to call [`close`](Self::close).
    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;

    /// Writes frames, and passes those that were written to `spent`. Returns true if some frames are left because there
    /// is no room.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool>;

    /// Returns whether the medium itself has replied to frames that were written. [`read`](Self::read) then returns
    /// these replies, although nothing arrived from outside.
    fn has_answers(&self) -> bool {
        false
    }

    /// Disconnects the peer.
    fn close(&mut self);
}

/// Opens the medium of a port as configured; its losses are counted in `losses`.
///
/// # Errors
/// The medium cannot be opened, or the port has none.
pub fn open(port: &Port, devices: &[Device], losses: Arc<Losses>) -> Result<Box<dyn Medium>> {
    Ok(if let Some(path) = &port.stream {
        Box::new(Stream::listen(path)?)
    } else if let Some(name) = &port.tap {
        Box::new(Tap::open(name)?)
    } else if let Some(fd) = port.tap_fd {
        Box::new(Tap::inherited(fd)?)
    } else if let Some(link) = &port.link {
        Box::new(Link::open(link, losses)?)
    } else if let Some(udp) = &port.udp {
        let device = devices.iter().find(|device| device.name == udp.device);
        let device = device.context("its device does not exist")?;
        Box::new(Udp::open(udp, device.mac.0, udp.mac(port).0, losses)?)
    } else {
        bail!("nothing is connected to it")
    })
}

/// Returns whether an operation has not been carried out but may be possible later.
pub fn not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
