// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The thread that moves frames between the switch and the outside.
//!
//! It waits for all descriptors at once. If one of them accepts no data, only frames for its own port wait: in a batch
//! here, and then in a queue in the [`Hub`]. Both are bounded, and frames for which the queue has no room are lost.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::warn;

use super::hub::Hub;
use super::lane::FrameBlanks;
use super::medium::Medium;
use crate::quota::{Quota, limited};
use crate::stop::Stop;

/// Number of buffers kept for reuse.
const BUFFERS: usize = 512;

/// How long a port stops accepting connections after an attempt has failed.
const REST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// State of the network thread.
pub struct NetworkThread {
    hub: Arc<Hub>,
    ports: Vec<Port>,
    /// Empty buffers.
    buffers: Vec<Vec<u8>>,
    /// Frames that have been read; kept for its allocation.
    received: Vec<Vec<u8>>,
    /// Memory for frames for the worker.
    blanks: FrameBlanks,
}

struct Port {
    name: String,
    medium: Box<dyn Medium>,
    /// Frames to be sent.
    sending: VecDeque<Vec<u8>>,
    /// Whether the medium accepts no data at the moment.
    blocked: bool,
    /// Whether the port accepts no connections for a moment.
    resting: bool,
    /// How much the peer may still add to the log.
    quota: Quota,
}

/// What a descriptor belongs to.
#[derive(Clone, Copy)]
enum Source {
    Stop,
    Wake,
    Listener(usize),
    Frames(usize),
}

impl NetworkThread {
    /// Creates the thread's state. The media become the ports of the hub.
    pub fn new(hub: Arc<Hub>, media: Vec<(String, Box<dyn Medium>)>) -> Self {
        let port = |(name, medium)| Port {
            name,
            medium,
            sending: VecDeque::new(),
            blocked: false,
            resting: false,
            quota: Quota::default(),
        };
        Self {
            hub,
            ports: media.into_iter().map(port).collect(),
            buffers: Vec::new(),
            received: Vec::new(),
            blanks: FrameBlanks::new(),
        }
    }

    /// Moves frames until `stop` is signalled.
    pub fn run(&mut self, stop: &Stop) {
        for index in 0..self.ports.len() {
            let up = self.ports[index].medium.descriptor().is_some();
            self.hub.port(index).set_up(up);
        }
        self.hub.tell_worker();
        let mut ready = Vec::new();
        loop {
            self.wait(stop, &mut ready);
            // Handles closed connections before accepting new ones in their place.
            for &(source, flags) in &ready {
                match source {
                    Source::Stop => return,
                    Source::Frames(port) => self.frames(port, flags),
                    Source::Wake | Source::Listener(_) => {}
                }
            }
            for &(source, _) in &ready {
                if let Source::Listener(port) = source {
                    self.accept(port);
                }
            }
            if self.hub.take_outbound() {
                for port in 0..self.ports.len() {
                    self.send(port);
                }
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&mut self, stop: &Stop, ready: &mut Vec<(Source, PollFlags)>) {
        let waker = &self.hub.network;
        let resting = self.ports.iter().any(|port| port.resting);
        let mut sources = vec![Source::Stop, Source::Wake];
        let mut fds = vec![
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(waker.descriptor(), PollFlags::IN),
        ];
        for (index, port) in self.ports.iter().enumerate() {
            if let Some(listener) = port.medium.listener()
                && !port.resting
            {
                sources.push(Source::Listener(index));
                fds.push(PollFd::from_borrowed_fd(listener, PollFlags::IN));
            }
            if let Some(descriptor) = port.medium.descriptor() {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, port.blocked);
                sources.push(Source::Frames(index));
                fds.push(PollFd::from_borrowed_fd(descriptor, flags));
            }
        }
        waker.announce();
        let timeout = if self.hub.has_outbound() {
            Some(Timespec::default())
        } else {
            resting.then_some(REST)
        };
        // If a signal ends the wait early, no descriptor is ready, which does no harm.
        let result = poll(&mut fds, timeout.as_ref());
        waker.slept();
        ready.clear();
        match result {
            Ok(0) => self.ports.iter_mut().for_each(|port| port.resting = false),
            Ok(_) => {
                let events = fds.iter().map(PollFd::revents);
                let happened = sources.into_iter().zip(events);
                ready.extend(happened.filter(|(_, flags)| !flags.is_empty()));
            }
            Err(_) => {}
        }
    }

    /// Handles an event on the descriptor through which a port's frames pass.
    fn frames(&mut self, index: usize, flags: PollFlags) {
        if flags.intersects(PollFlags::OUT) {
            self.ports[index].blocked = false;
            self.send(index);
        }
        if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL) {
            self.receive(index);
        }
    }

    /// Passes frames that arrived at a port to the worker.
    fn receive(&mut self, index: usize) {
        let (buffers, received) = (&mut self.buffers, &mut self.received);
        let port = &mut self.ports[index];
        let outcome = port.medium.read(&mut |frame| {
            let mut buffer = buffers.pop().unwrap_or_default();
            buffer.extend_from_slice(frame);
            received.push(buffer);
        });
        if !received.is_empty() {
            self.hub.port(index).deliver(received, &mut self.blanks);
            self.hub.tell_worker();
        }
        if let Err(error) = outcome
            && !super::medium::not_now(&error)
        {
            self.close(index, &error);
        }
    }

    fn accept(&mut self, index: usize) {
        let port = &mut self.ports[index];
        match port.medium.accept() {
            Ok(replaced) => {
                if replaced {
                    limited!(
                        port.quota,
                        warn,
                        port = port.name,
                        "a new connection replaces the old one"
                    );
                } else {
                    limited!(port.quota, info, port = port.name, "connected");
                }
                port.blocked = false;
                port.sending.clear();
                self.hub.port(index).set_up(true);
                self.hub.tell_worker();
            }
            Err(error) if super::medium::not_now(&error) => {}
            Err(error) => {
                // The process may have run out of descriptors. That does not change at once, so wait before the next
                // attempt.
                warn!(port = port.name, %error, "cannot accept a connection");
                port.resting = true;
            }
        }
    }

    /// Sends the frames that wait for a port: the rest of the last batch, then the next batch.
    fn send(&mut self, index: usize) {
        let buffers = &mut self.buffers;
        let hub_port = self.hub.port(index);
        for _ in 0..2 {
            let port = &mut self.ports[index];
            if port.blocked || port.medium.descriptor().is_none() {
                break;
            }
            if port.sending.is_empty() {
                port.sending.extend(hub_port.take_outbound());
            }
            let outcome = port.medium.write(&mut port.sending, &mut |mut buffer| {
                if buffers.len() < BUFFERS {
                    buffer.clear();
                    buffers.push(buffer);
                }
            });
            match outcome {
                Ok(blocked) => port.blocked = blocked,
                Err(error) => return self.close(index, &error),
            }
        }
        if self.ports[index].medium.has_answers() {
            self.receive(index);
        }
    }

    /// Closes the connection of a port after its peer has disconnected or failed.
    fn close(&mut self, index: usize, error: &std::io::Error) {
        let port = &mut self.ports[index];
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            limited!(port.quota, info, port = port.name, "disconnected");
        } else {
            limited!(port.quota, warn, port = port.name, %error, "disconnected");
        }
        port.medium.close();
        port.sending.clear();
        port.blocked = false;
        self.hub.port(index).set_up(false);
        self.hub.tell_worker();
    }
}
