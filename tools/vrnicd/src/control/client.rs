// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A client of the control socket.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::protocol::{
    Address, Capture, Cq, Device, Explanation, Fault, Firing, Gid, Group, MAX_REPLY, Mr, Mw, Page,
    Qp, RateLimit, Recording, Reply, Request, Srq, SwitchPort, Trace,
};
use crate::capture::Choice;

/// Longer than the daemon waits for its worker.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a daemon.
pub struct Client {
    input: BufReader<UnixStream>,
}

/// Asks, and takes the one kind of reply that fits.
macro_rules! ask {
    ($client:expr, $request:expr, $reply:path) => {
        match $client.ask(&$request)? {
            $reply(content) => anyhow::Ok(content),
            other => bail!("unexpected reply from vrnicd: {other:?}"),
        }
    };
}

impl Client {
    /// Connects to the socket at `path`.
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = UnixStream::connect(path).with_context(|| {
            format!(
                "cannot connect to the control socket of vrnicd at {}",
                path.display()
            )
        })?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Self {
            input: BufReader::new(socket),
        })
    }

    /// Sends a request and waits for the reply. An error of the daemon is an error here.
    pub fn ask(&mut self, request: &Request) -> Result<Reply> {
        self.ask_with(request, None)
    }

    fn ask_with(&mut self, request: &Request, descriptor: Option<BorrowedFd<'_>>) -> Result<Reply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let mut sent = 0;
        if let Some(descriptor) = descriptor {
            let descriptors = [descriptor];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
            let bytes = [IoSlice::new(&line)];
            sent = sendmsg(
                self.input.get_ref(),
                &bytes,
                &mut control,
                SendFlags::NOSIGNAL,
            )?;
        }
        self.input.get_mut().write_all(&line[sent..])?;
        line.clear();
        (&mut self.input)
            .take(MAX_REPLY as u64)
            .read_until(b'\n', &mut line)
            .context("vrnicd does not answer")?;
        if line.is_empty() {
            bail!("vrnicd closed the connection");
        }
        match serde_json::from_slice(&line).context("cannot parse the reply of vrnicd")? {
            Reply::Error(error) => bail!("{error}"),
            reply => Ok(reply),
        }
    }

    /// All devices.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        ask!(self, Request::Devices, Reply::Devices)
    }

    /// The GIDs of a device.
    pub fn gids(&mut self, device: &str) -> Result<Vec<Gid>> {
        let device = device.to_owned();
        ask!(self, Request::Gids { device }, Reply::Gids)
    }

    /// All queue pairs of a device.
    pub fn qps(&mut self, device: &str) -> Result<Vec<Qp>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Qps { device, from }, Reply::Qps)
        })
    }

    /// All completion queues of a device.
    pub fn cqs(&mut self, device: &str) -> Result<Vec<Cq>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Cqs { device, from }, Reply::Cqs)
        })
    }

    /// All shared receive queues of a device.
    pub fn srqs(&mut self, device: &str) -> Result<Vec<Srq>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Srqs { device, from }, Reply::Srqs)
        })
    }

    /// All multicast groups of a device.
    pub fn groups(&mut self, device: &str) -> Result<Vec<Group>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Groups { device, from }, Reply::Groups)
        })
    }

    /// The memory regions of a device, as many as the daemon lists.
    pub fn mrs(&mut self, device: &str) -> Result<Vec<Mr>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Mrs { device, from }, Reply::Mrs)
        })
    }

    /// The memory windows of a device, as many as the daemon lists.
    pub fn mws(&mut self, device: &str) -> Result<Vec<Mw>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Mws { device, from }, Reply::Mws)
        })
    }

    /// Brings the link of a device up or takes it down.
    pub fn set_link(&mut self, device: &str, up: bool) -> Result<()> {
        let device = device.to_owned();
        self.tell(&Request::SetLink { device, up })
    }

    /// Gives a device another rate limit.
    pub fn set_rate_limit(&mut self, device: &str, limit: RateLimit) -> Result<()> {
        let device = device.to_owned();
        self.tell(&Request::SetRateLimit { device, limit })
    }

    /// Sends a request that nothing is to be answered to.
    fn tell(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply from vrnicd: {other:?}"),
        }
    }

    /// All ports of the switch.
    pub fn switch(&mut self) -> Result<Vec<SwitchPort>> {
        ask!(self, Request::Switch, Reply::Switch)
    }

    /// The addresses that the switch knows, as many as the daemon lists.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.pages("", |client, _, from| {
            ask!(client, Request::Addresses { from }, Reply::Addresses)
        })
    }

    /// What went wrong on a device from number `from` on.
    pub fn explanations(&mut self, device: &str, mut from: u64) -> Result<Vec<Explanation>> {
        let mut all: Vec<Explanation> = Vec::new();
        loop {
            let device = device.to_owned();
            let page = ask!(self, Request::Explain { device, from }, Reply::Explanations)?;
            let Some(last) = page.last() else {
                return Ok(all);
            };
            from = last.number + 1;
            all.extend(page);
        }
    }

    /// Arms a fault and gives its number.
    pub fn add_fault(&mut self, device: &str, fault: &str) -> Result<u64> {
        let (device, fault) = (device.to_owned(), fault.to_owned());
        ask!(self, Request::FaultAdd { device, fault }, Reply::FaultAdded)
    }

    /// Disarms a fault, or all, and gives how many there were.
    pub fn clear_faults(&mut self, device: &str, id: Option<u64>) -> Result<usize> {
        let device = device.to_owned();
        ask!(
            self,
            Request::FaultClear { device, id },
            Reply::FaultsCleared
        )
    }

    /// The faults of a device that are armed or were.
    pub fn faults(&mut self, device: &str) -> Result<Vec<Fault>> {
        let device = device.to_owned();
        ask!(self, Request::Faults { device }, Reply::Faults)
    }

    /// When faults of a device fired.
    pub fn fault_log(&mut self, device: &str) -> Result<Vec<Firing>> {
        let (mut all, mut from) = (Vec::new(), 0);
        loop {
            let device = device.to_owned();
            let page = ask!(self, Request::FaultLog { device, from }, Reply::Firings)?;
            let Some(last) = page.last() else {
                return Ok(all);
            };
            from = last.number + 1;
            all.extend(page);
        }
    }

    /// Captures to an open file, which is called `name` from now on.
    pub fn start_capture(
        &mut self,
        choice: Choice,
        name: &str,
        file: BorrowedFd<'_>,
    ) -> Result<Capture> {
        let name = name.to_owned();
        match self.ask_with(&Request::CaptureStart { name, choice }, Some(file))? {
            Reply::Capture(capture) => Ok(capture),
            other => bail!("unexpected reply from vrnicd: {other:?}"),
        }
    }

    /// Ends a capture. If it is not at its end then, its file takes nothing.
    pub fn stop_capture(&mut self, id: u64) -> Result<Capture> {
        ask!(self, Request::CaptureStop { id }, Reply::Capture)
    }

    /// All captures that run, and some that ran.
    pub fn captures(&mut self) -> Result<Vec<Capture>> {
        ask!(self, Request::Captures, Reply::Captures)
    }

    /// Records a device from now on, or from when it has a driver, to an open file, which is called `name` from now on.
    pub fn start_recording(
        &mut self,
        device: &str,
        name: &str,
        max_bytes: Option<u64>,
        file: BorrowedFd<'_>,
    ) -> Result<Recording> {
        let (device, name) = (device.to_owned(), name.to_owned());
        let request = Request::RecordStart {
            device,
            name,
            max_bytes,
        };
        match self.ask_with(&request, Some(file))? {
            Reply::Recording(recording) => Ok(recording),
            other => bail!("unexpected reply from vrnicd: {other:?}"),
        }
    }

    /// Ends the recording of a device. If it is not at its end then, its file takes nothing.
    pub fn stop_recording(&mut self, device: &str) -> Result<Recording> {
        let device = device.to_owned();
        ask!(self, Request::RecordStop { device }, Reply::Recording)
    }

    /// The recording of each device that waits or runs, or was the last.
    pub fn recordings(&mut self) -> Result<Vec<Recording>> {
        ask!(self, Request::Recordings, Reply::Recordings)
    }

    /// What a device was called with lately, oldest first, in words: since its last reset, or what led to its last
    /// failure.
    pub fn flight(&mut self, device: &str, failure: bool) -> Result<Vec<String>> {
        let device = device.to_owned();
        ask!(self, Request::Flight { device, failure }, Reply::Flight)
    }

    /// What a device did lately, from step number `from` on; a page of it.
    pub fn trace(&mut self, device: &str, from: u64) -> Result<Trace> {
        let device = device.to_owned();
        ask!(self, Request::Trace { device, from }, Reply::Trace)
    }

    /// The filter of the daemon's log, after it was set to `filter` if one is given.
    pub fn log(&mut self, filter: Option<String>) -> Result<String> {
        ask!(self, Request::Log { filter }, Reply::Log)
    }

    /// Asks for page after page.
    fn pages<T>(
        &mut self,
        device: &str,
        mut ask: impl FnMut(&mut Self, String, usize) -> Result<Page<T>>,
    ) -> Result<Vec<T>> {
        let (mut all, mut next) = (Vec::new(), Some(0));
        while let Some(from) = next {
            let page = ask(self, device.to_owned(), from)?;
            all.extend(page.items);
            next = page.next.filter(|&next| next > from);
        }
        Ok(all)
    }
}
