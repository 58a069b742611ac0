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
    Address, Capture, CompletionCounter, Cq, Device, Explanation, Fault, Firing, Flow, Gid, Group,
    MAX_REPLY, Mr, Mw, Page, Qp, RateLimit, Recording, Reply, Request, Srq, SubnetLane, SubnetLink,
    SwitchPort, Trace,
};
use crate::capture::Choice;

/// Longer than the daemon waits for its worker.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connection to a daemon.
pub struct Client {
    input: BufReader<UnixStream>,
}

/// Sends a request and returns the content of the expected kind of reply.
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

    /// Sends a request and waits for the reply. Returns an error if the daemon replies with one.
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

    /// Returns all devices.
    pub fn devices(&mut self) -> Result<Vec<Device>> {
        ask!(self, Request::Devices, Reply::Devices)
    }

    /// Returns the GIDs of a device.
    pub fn gids(&mut self, device: &str) -> Result<Vec<Gid>> {
        let device = device.to_owned();
        ask!(self, Request::Gids { device }, Reply::Gids)
    }

    /// Returns all queue pairs of a device.
    pub fn qps(&mut self, device: &str) -> Result<Vec<Qp>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Qps { device, from }, Reply::Qps)
        })
    }

    /// Returns all completion queues of a device.
    pub fn cqs(&mut self, device: &str) -> Result<Vec<Cq>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Cqs { device, from }, Reply::Cqs)
        })
    }

    /// Returns all shared receive queues of a device.
    pub fn srqs(&mut self, device: &str) -> Result<Vec<Srq>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Srqs { device, from }, Reply::Srqs)
        })
    }

    /// Returns all multicast groups of a device.
    pub fn groups(&mut self, device: &str) -> Result<Vec<Group>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Groups { device, from }, Reply::Groups)
        })
    }

    /// Returns all flows of a device.
    pub fn flows(&mut self, device: &str) -> Result<Vec<Flow>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Flows { device, from }, Reply::Flows)
        })
    }

    /// Returns all completion counters of a device.
    pub fn completion_counters(&mut self, device: &str) -> Result<Vec<CompletionCounter>> {
        self.pages(device, |client, device, from| {
            ask!(
                client,
                Request::CompletionCounters { device, from },
                Reply::CompletionCounters
            )
        })
    }

    /// Returns the memory regions of a device, as many as the daemon lists.
    pub fn mrs(&mut self, device: &str) -> Result<Vec<Mr>> {
        self.pages(device, |client, device, from| {
            ask!(client, Request::Mrs { device, from }, Reply::Mrs)
        })
    }

    /// Returns the memory windows of a device, as many as the daemon lists.
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

    /// Changes the rate limit of a device.
    pub fn set_rate_limit(&mut self, device: &str, limit: RateLimit) -> Result<()> {
        let device = device.to_owned();
        self.tell(&Request::SetRateLimit { device, limit })
    }

    /// Sends a request that is answered with [`Reply::Done`].
    fn tell(&mut self, request: &Request) -> Result<()> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => bail!("unexpected reply from vrnicd: {other:?}"),
        }
    }

    /// Returns all ports of the switch.
    pub fn switch(&mut self) -> Result<Vec<SwitchPort>> {
        ask!(self, Request::Switch, Reply::Switch)
    }

    /// Returns the addresses that the switch knows, as many as the daemon lists.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        self.pages("", |client, _, from| {
            ask!(client, Request::Addresses { from }, Reply::Addresses)
        })
    }

    /// Returns the links of the InfiniBand subnet.
    pub fn subnet_links(&mut self) -> Result<Vec<SubnetLink>> {
        self.pages("", |client, _, from| {
            ask!(client, Request::SubnetLinks { from }, Reply::SubnetLinks)
        })
    }

    /// Returns the lanes of a credit loop in the routing of the InfiniBand subnet ([`Request::SubnetCreditLoop`]).
    pub fn subnet_credit_loop(&mut self) -> Result<Vec<SubnetLane>> {
        self.pages("", |client, _, from| {
            ask!(
                client,
                Request::SubnetCreditLoop { from },
                Reply::SubnetLanes
            )
        })
    }

    /// Changes the link of the InfiniBand subnet at `end` ([`Request::SetSubnetLink`]).
    pub fn set_subnet_link(
        &mut self,
        end: &str,
        up: Option<bool>,
        bit_error_rate: Option<f64>,
    ) -> Result<()> {
        let end = end.to_owned();
        self.tell(&Request::SetSubnetLink {
            end,
            up,
            bit_error_rate,
        })
    }

    /// Takes a switch of the InfiniBand subnet down, or up again ([`Request::SetSubnetSwitch`]).
    pub fn set_subnet_switch(&mut self, switch: &str, up: bool) -> Result<()> {
        let switch = switch.to_owned();
        self.tell(&Request::SetSubnetSwitch { switch, up })
    }

    /// Returns what went wrong on a device, starting at number `from`.
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

    /// Arms a fault and returns its number.
    pub fn add_fault(&mut self, device: &str, fault: &str) -> Result<u64> {
        let (device, fault) = (device.to_owned(), fault.to_owned());
        ask!(self, Request::FaultAdd { device, fault }, Reply::FaultAdded)
    }

    /// Disarms one fault or all faults and returns how many were disarmed.
    pub fn clear_faults(&mut self, device: &str, id: Option<u64>) -> Result<usize> {
        let device = device.to_owned();
        ask!(
            self,
            Request::FaultClear { device, id },
            Reply::FaultsCleared
        )
    }

    /// Returns the faults of a device, including those that are no longer armed.
    pub fn faults(&mut self, device: &str) -> Result<Vec<Fault>> {
        let device = device.to_owned();
        ask!(self, Request::Faults { device }, Reply::Faults)
    }

    /// Returns the log of when the faults of a device fired.
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

    /// Starts a capture to an open file; `name` is the file's name in messages.
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

    /// Stops a capture. If it has not ended in the reply, its file is not accepting data.
    pub fn stop_capture(&mut self, id: u64) -> Result<Capture> {
        ask!(self, Request::CaptureStop { id }, Reply::Capture)
    }

    /// Returns all running captures and some that have ended.
    pub fn captures(&mut self) -> Result<Vec<Capture>> {
        ask!(self, Request::Captures, Reply::Captures)
    }

    /// Starts recording a device to an open file; `name` is the file's name in messages. If the device has no driver
    /// yet, the recording starts when it gets one.
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

    /// Stops the recording of a device. If it has not ended in the reply, its file is not accepting data.
    pub fn stop_recording(&mut self, device: &str) -> Result<Recording> {
        let device = device.to_owned();
        ask!(self, Request::RecordStop { device }, Reply::Recording)
    }

    /// Returns the latest recording of each device, whether it waits, runs or has ended.
    pub fn recordings(&mut self) -> Result<Vec<Recording>> {
        ask!(self, Request::Recordings, Reply::Recordings)
    }

    /// Returns the latest calls to a device in words, oldest first: those since its last reset, or, with `failure`,
    /// those that led to its last failure.
    pub fn flight(&mut self, device: &str, failure: bool) -> Result<Vec<String>> {
        let device = device.to_owned();
        ask!(self, Request::Flight { device, failure }, Reply::Flight)
    }

    /// Returns a page of the device's latest steps, starting at step number `from`.
    pub fn trace(&mut self, device: &str, from: u64) -> Result<Trace> {
        let device = device.to_owned();
        ask!(self, Request::Trace { device, from }, Reply::Trace)
    }

    /// Sets the filter of the daemon's log, if one is given, and returns the current filter.
    pub fn log(&mut self, filter: Option<String>) -> Result<String> {
        ask!(self, Request::Log { filter }, Reply::Log)
    }

    /// Requests all pages of a list.
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
