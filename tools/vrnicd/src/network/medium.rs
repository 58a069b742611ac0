// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What frames arrive and leave through: a stream, a TAP device, a link or the host's own RoCE.

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

/// Longest frame that is read: any that a port's MTU allows, with its header and tag, and more.
pub const MAX_FRAME: usize = 65536;
/// Frames that are read before others get their turn.
pub const FRAMES_PER_TURN: usize = 128;

/// A way to the outside. Nothing in it blocks.
pub trait Medium: Send {
    /// What frames come and go by; `None` while nobody is there.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Where somebody asks to be let in.
    fn listener(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Lets somebody in. True if whoever was there before is not any more.
    ///
    /// # Errors
    /// It did not work; the state is as before.
    fn accept(&mut self) -> io::Result<bool> {
        Ok(false)
    }

    /// Reads frames that are there, at most about [`FRAMES_PER_TURN`], and gives each to `take`.
    ///
    /// # Errors
    /// Whoever is behind it is gone or to be given up: [`close`](Self::close) follows.
    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()>;

    /// Writes frames and takes those away that were written. True if it has to go on when there is room.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool>;

    /// Whether something that was written is answered at once: then [`read`](Self::read) has something to give though
    /// nothing came.
    fn has_answers(&self) -> bool {
        false
    }

    /// Gives up whoever is there.
    fn close(&mut self);
}

/// Opens what the configuration says; what it loses is counted in `losses`.
///
/// # Errors
/// It cannot be opened; the message says what and why.
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

/// Whether an operation did not happen, but may later.
pub fn not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
