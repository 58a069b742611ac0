// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The network that carries frames: a switch in the worker's thread, and a second thread that moves frames between the
//! switch and sockets or TAP devices.
//!
//! ```text
//!           worker's thread                              network thread
//!  RNIC ──▶ Network ─▶ vrnic_switch ─▶ Hub, a bounded ──▶ stream   QEMU's virtio-net
//!  RNIC ◀──                        ◀── queue each way ◀── tap      the host's network
//!                                      for each port      link     another vrnicd
//! ```
//!
//! Neither thread ever waits for the other. If a queue is full, frames of its port are dropped and counted, and no
//! others.
//!
//! A frame for the network device of a port with an RNIC that has flows goes to the RNIC first, which says whether the
//! network device gets it, too. So flows do not depend on how fast the network device is, or whether there is one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::info;
use vrnic_engine::fault::{Armory, Direction, Kind};
use vrnic_engine::time::Instant;
use vrnic_switch::{Counters, Drop, Endpoint, Member, PortConfig, PortId, Switch, Vlan};
use vrnic_wire::port::Mtu;

use crate::capture::{Captures, Direction as Way};
use crate::config::{self, Config, FabricKind};
use crate::waker::Waker;

#[allow(unsafe_code, reason = "system calls that no safe crate has")]
mod datagrams;
mod fault;
mod hub;
mod lane;
mod link;
mod losses;
mod medium;
mod neighbor;
mod stream;
#[allow(unsafe_code, reason = "an ioctl")]
mod tap;
mod thread;
mod udp;

use fault::{Made, PortFaults};
use hub::Hub;
use lane::FrameBlanks;
use losses::Losses;
pub use thread::NetworkThread;

/// The worker's end of the network.
pub struct Network {
    switch: Switch,
    /// For each device, the endpoint of its RNIC, if it has one.
    rnics: Vec<Option<Endpoint>>,
    /// Names of the ports.
    names: Vec<String>,
    /// For each port, a description of what is attached apart from an RNIC.
    media: Vec<Option<String>>,
    /// For each port, the losses between it and the host's network.
    losses: Vec<Arc<Losses>>,
    /// For each port, the device that the RNIC's endpoint belongs to, and the hub port of the network device's
    /// endpoint.
    owners: Vec<Owners>,
    /// For each hub port, its endpoint.
    outside: Vec<Endpoint>,
    /// For each port, its faults.
    faults: Vec<PortFaults>,
    hub: Arc<Hub>,
    /// Frames that have left the switch and passed the faults of their port, each with its endpoint.
    passed: VecDeque<(Endpoint, Vec<u8>)>,
    /// Whether the network thread has not been told of the last frames for the outside.
    offered: bool,
    /// Memory for frames for the outside.
    blanks: FrameBlanks,
}

/// A frame for an RNIC.
pub struct Arrived {
    /// Index of the device.
    pub to: usize,
    /// Whether the frame is for the port's network device, so that the RNIC's flows decide who gets it. If it is not
    /// taken away from the network device, it has to be [passed on](Network::pass_on). If not raw, it is RoCE.
    pub raw: bool,
    /// The frame.
    pub frame: Vec<u8>,
}

#[derive(Default, Clone, Copy)]
struct Owners {
    device: Option<usize>,
    outside: Option<usize>,
    /// Whether the RNIC is up.
    rnic_up: bool,
    /// Whether the RNIC has flows.
    steers: bool,
    /// Whether something is connected to the hub port.
    connected: bool,
    /// MAC address of the port.
    mac: Option<vrnic_switch::Mac>,
}

impl Owners {
    /// Returns the member of the port that receives RoCE.
    fn roce_member(self) -> Member {
        if self.rnic_up {
            Member::Rnic
        } else {
            Member::Netdev
        }
    }
}

/// State of a port.
pub struct PortView<'a> {
    /// Name.
    pub name: &'a str,
    /// Index of the device whose RNIC is attached.
    pub device: Option<usize>,
    /// Whether the RNIC is up.
    pub rnic_up: bool,
    /// Description of what else is attached.
    pub medium: Option<&'a str>,
    /// Whether `medium` is connected.
    pub medium_up: bool,
    /// Settings.
    pub config: &'a PortConfig,
    /// Counters.
    pub counters: &'a Counters,
    /// Number of frames from outside that were dropped because the worker was too slow.
    overruns: u64,
    /// Losses between the port and the host's network.
    losses: &'a Losses,
    /// Number of frames that wait for the port in the switch, or to be sent by the network thread.
    pub waiting: usize,
    /// How often faults of the port fired.
    pub faults: u64,
}

impl PortView<'_> {
    /// Returns the numbers of frames lost in the switch or on either side of it, by reason.
    pub fn drops(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counters = self.counters;
        let of_switch = Drop::ALL.map(|reason| (reason.name(), counters.drops(reason)));
        let outside = self.losses.all().map(|(loss, count)| (loss.name(), count));
        let overruns = ("rx_overruns", self.overruns);
        [overruns].into_iter().chain(of_switch).chain(outside)
    }
}

/// An address that the switch knows.
pub struct KnownAddress<'a> {
    /// The address.
    pub mac: vrnic_switch::Mac,
    /// The VLAN in which it was learned; none if it is the port's own address.
    pub vlan: Option<Vlan>,
    /// Name of the port at which it is.
    pub port: &'a str,
    /// Time since the last frame from it; none if it is the port's own address.
    pub age: Option<Duration>,
}

impl Network {
    /// Creates the network of a configuration, and the network thread's end of it if there are ports to the outside.
    /// `waker` wakes the worker.
    ///
    /// # Errors
    /// A socket or device cannot be opened.
    pub fn new(config: &Config, waker: Arc<Waker>) -> Result<(Self, Option<NetworkThread>)> {
        let defaults = config::Switch::default();
        let settings = config.switch.as_ref().unwrap_or(&defaults);
        let (mut media, mut limits) = (Vec::new(), Vec::new());
        let losses: Vec<Arc<Losses>> = settings.ports.iter().map(|_| Arc::default()).collect();
        for (port, losses) in settings.ports.iter().zip(&losses) {
            if port.has_medium() {
                let medium = medium::open(port, &config.devices, losses.clone())
                    .with_context(|| format!("switch port `{}`", port.name))?;
                media.push((port.name.clone(), medium));
                limits.push(port.queue());
            }
        }
        let hub = Arc::new(Hub::new(&limits, waker)?);
        let mut network = Self {
            switch: Switch::new(Duration::from_secs(settings.address_age_s)),
            rnics: vec![None; config.devices.len()],
            names: Vec::new(),
            media: Vec::new(),
            losses,
            owners: Vec::new(),
            outside: Vec::new(),
            faults: Vec::new(),
            hub: hub.clone(),
            passed: VecDeque::new(),
            offered: false,
            blanks: FrameBlanks::new(),
        };
        for port in &settings.ports {
            let named = |device: &config::Device| Some(&device.name) == port.device.as_ref();
            let device = config.devices.iter().position(named);
            let mac = device.map(|index| config.devices[index].mac);
            let rnic = device.filter(|&index| is_on_network(&config.devices[index]));
            network.add_port(&port.name, port.settings(mac, rnic.is_some())?, rnic)?;
            network.media.push(port.medium());
        }
        for (index, device) in config.devices.iter().enumerate() {
            if is_on_network(device) && network.rnics[index].is_none() {
                let port = PortConfig {
                    netdev: false,
                    ..PortConfig::nic(vrnic_switch::Mac(device.mac.0))
                };
                network.add_port(&device.name, port, Some(index))?;
                network.media.push(None);
                network.losses.push(Arc::default());
            }
        }
        let thread = (!media.is_empty()).then(|| NetworkThread::new(hub, media));
        Ok((network, thread))
    }

    /// Adds a port whose endpoints are all down.
    fn add_port(&mut self, name: &str, port: PortConfig, device: Option<usize>) -> Result<()> {
        let (mtu, vlans, netdev) = (port.mtu, port.vlans.clone(), port.netdev);
        let mut owners = Owners {
            mac: port.mac,
            ..Owners::default()
        };
        let port = self.switch.add_port(port).with_context(|| {
            format!("switch port `{name}`: another port already has its address")
        })?;
        info!(port = name, mtu, %vlans, "switch port");
        if let Some(device) = device {
            let member = Member::Rnic;
            self.switch.set_up(Endpoint { port, member }, false);
            self.rnics[device] = Some(Endpoint { port, member });
            owners.device = Some(device);
        }
        if netdev {
            let member = Member::Netdev;
            self.switch.set_up(Endpoint { port, member }, false);
            owners.outside = Some(self.outside.len());
            self.outside.push(Endpoint { port, member });
        }
        self.names.push(name.to_owned());
        self.owners.push(owners);
        self.faults.push(PortFaults::default());
        Ok(())
    }

    /// Returns the largest path MTU of a device, as limited by the frames of its port.
    pub fn path_mtu(&self, device: usize) -> Mtu {
        let link = self.rnics[device].map(|endpoint| self.switch.config(endpoint.port).mtu);
        link.map_or(Mtu::Mtu4096, vrnic_roce::path_mtu)
    }

    /// Returns the largest number of bytes after the header and the tag of a frame, for a device whose port has a
    /// network device, too.
    pub fn frame_mtu(&self, device: usize) -> Option<u16> {
        let config = self.switch.config(self.rnics[device]?.port);
        config
            .netdev
            .then(|| u16::try_from(config.mtu).unwrap_or(u16::MAX))
    }

    /// Sets whether a device has flows.
    pub fn set_steering(&mut self, device: usize, steers: bool) {
        if let Some(Endpoint { port, .. }) = self.rnics[device]
            && std::mem::replace(&mut self.owners[port.index()].steers, steers) != steers
        {
            self.renew_netdev(port);
        }
    }

    /// Notes whether something is connected to the hub port of a port.
    fn set_connected(&mut self, port: PortId, connected: bool) {
        let was = std::mem::replace(&mut self.owners[port.index()].connected, connected);
        if was && !connected {
            let member = Member::Netdev;
            self.switch.set_up(Endpoint { port, member }, false);
        }
        self.renew_netdev(port);
    }

    /// Lets the switch send frames for the network device of a port if it is connected, or flows may direct them
    /// elsewhere.
    fn renew_netdev(&mut self, port: PortId) {
        let (owners, member) = (self.owners[port.index()], Member::Netdev);
        let (endpoint, up) = (Endpoint { port, member }, owners.connected || owners.steers);
        if up != self.switch.is_up(endpoint) {
            self.switch.set_up(endpoint, up);
        }
    }

    /// Brings the RNIC of a device up or down.
    pub fn set_rnic_up(&mut self, device: usize, up: bool) {
        if let Some(endpoint) = self.rnics[device] {
            self.switch.set_up(endpoint, up);
            self.owners[endpoint.port.index()].rnic_up = up;
        }
    }

    /// Returns an empty buffer for a frame.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.switch.buffer()
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.switch.recycle(buffer);
    }

    /// Sends a frame from the RNIC of `device`.
    pub fn send(&mut self, device: usize, frame: Vec<u8>, now: Instant, captures: &Captures) {
        match self.rnics[device] {
            Some(endpoint) => self.enter(endpoint, frame, now, captures),
            None => self.switch.recycle(frame),
        }
    }

    /// Shows a frame from an endpoint to the faults of its port and gives it to the switch.
    fn enter(&mut self, from: Endpoint, frame: Vec<u8>, now: Instant, captures: &Captures) {
        let (port, time) = (from.port.index(), since_start(now));
        let out = Direction::Out;
        let mut made = Vec::new();
        let mut struck = None;
        // Faults do not affect frames that stay within a port.
        let own = self.owners[port].mac;
        let stays = || own.is_some_and(|own| frame.starts_with(&own.0));
        if !self.faults[port].is_idle() && !stays() {
            struck = self.faults[port].pass(out, &frame, now, &mut made);
        }
        // Frames sent by an RNIC are shown to the captures elsewhere.
        if from.member == Member::Netdev || struck.is_some() {
            captures.outside(port, &self.names[port], Way::In, &frame, &note(struck));
        }
        if struck.is_some() {
            self.switch.recycle(frame);
        } else {
            self.switch.receive(from, frame, time);
        }
        for Made { frame, by } in made {
            captures.outside(port, &self.names[port], Way::In, &frame, &made_by(by));
            self.switch.receive(from, frame, time);
        }
    }

    /// Processes frames that came from outside, which are also shown to the captures, and frames whose delay has ended.
    /// Returns true if there were any.
    pub fn turn(&mut self, now: Instant, captures: &Captures) -> bool {
        let time = since_start(now);
        let mut late = self.switch.next_deadline().is_some_and(|due| due <= time);
        if late {
            self.switch.advance(time);
        }
        late |= self.release(now, captures);
        let news = self.hub.take_news();
        if news {
            for index in 0..self.outside.len() {
                let (endpoint, hub) = (self.outside[index], self.hub.clone());
                let port = hub.port(index);
                self.set_connected(endpoint.port, port.is_up());
                let mut frames = port.take_inbound();
                while let Some(frame) = frames.pop() {
                    self.enter(endpoint, frame, now, captures);
                }
            }
        }
        late || news
    }

    /// Releases the frames whose delay by a fault has ended. Returns true if there were any.
    fn release(&mut self, now: Instant, captures: &Captures) -> bool {
        let mut any = false;
        for port in self.switch.ports() {
            let index = port.index();
            if self.faults[index].is_idle() {
                continue;
            }
            let member = self.owners[index].roce_member();
            while let Some((direction, made)) = self.faults[index].pop_due(now) {
                any = true;
                let Made { frame, by } = made;
                let name = &self.names[index];
                captures.outside(index, name, way(direction), &frame, &made_by(by));
                match direction {
                    // Both members of a port have its address.
                    Direction::Out => {
                        let from = Endpoint { port, member };
                        self.switch.receive(from, frame, since_start(now));
                    }
                    Direction::In => self.passed.push_back((Endpoint { port, member }, frame)),
                }
            }
        }
        any
    }

    /// Returns the next frame for an RNIC. Also forwards frames for the outside.
    pub fn next_frame(&mut self, now: Instant, captures: &Captures) -> Option<Arrived> {
        while let Some((endpoint, frame)) = self.next_leaving(now, captures) {
            let owners = self.owners[endpoint.port.index()];
            let raw = endpoint.member == Member::Netdev;
            match owners.device {
                Some(to) if !raw || owners.steers => return Some(Arrived { to, raw, frame }),
                _ => self.forward(endpoint.port, frame),
            }
        }
        if std::mem::take(&mut self.offered) {
            self.hub.tell_network();
        }
        None
    }

    /// Passes a [raw](Arrived::raw) frame on to the network device beside the RNIC of a device.
    pub fn pass_on(&mut self, device: usize, frame: Vec<u8>) {
        match self.rnics[device] {
            Some(rnic) => self.forward(rnic.port, frame),
            None => self.switch.recycle(frame),
        }
    }

    /// Forwards a frame to what is attached to a port apart from an RNIC. If there is no room, the frame is lost, as in
    /// a device without free buffers.
    fn forward(&mut self, port: PortId, frame: Vec<u8>) {
        let owners = self.owners[port.index()];
        let (reason, frame) = match owners.outside.filter(|_| owners.connected) {
            None => (Drop::DownLeaving, frame),
            Some(outside) => match self.hub.port(outside).offer(frame, &mut self.blanks) {
                Ok(()) => {
                    self.offered = true;
                    return;
                }
                Err(frame) => (Drop::QueueFull, frame),
            },
        };
        self.switch.lose(port, reason, frame);
    }

    /// Returns the next frame that leaves the switch and passes the faults of its port, and its endpoint.
    fn next_leaving(&mut self, now: Instant, captures: &Captures) -> Option<(Endpoint, Vec<u8>)> {
        loop {
            if let Some(passed) = self.passed.pop_front() {
                return Some(passed);
            }
            let (to, frame) = self.switch.pop()?;
            let port = to.port.index();
            let owners = self.owners[port];
            let stays = || {
                owners
                    .mac
                    .is_some_and(|own| frame.get(6..12) == Some(&own.0[..]))
            };
            let faults = &mut self.faults[port];
            if faults.is_idle() || to.member != owners.roce_member() || stays() {
                return Some((to, frame));
            }
            let mut made = Vec::new();
            let struck = faults.pass(Direction::In, &frame, now, &mut made);
            let show = |frame: &[u8], note: &str| {
                captures.outside(port, &self.names[port], Way::Out, frame, note);
            };
            if struck.is_some() {
                show(&frame, &note(struck));
                self.switch.recycle(frame);
            } else {
                self.passed.push_back((to, frame));
            }
            for Made { frame, by } in made {
                show(&frame, &made_by(by));
                self.passed.push_back((to, frame));
            }
        }
    }

    /// Returns whether [`turn`](Self::turn) has new messages to process.
    pub fn has_messages(&self) -> bool {
        self.hub.has_news()
    }

    /// Returns all ports.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_>> {
        self.switch.ports().map(|port| {
            let Owners {
                device, outside, ..
            } = self.owners[port.index()];
            let of = |member| Endpoint { port, member };
            let (rnic, netdev) = (of(Member::Rnic), of(Member::Netdev));
            PortView {
                name: &self.names[port.index()],
                device,
                rnic_up: self.switch.is_up(rnic),
                medium: self.media[port.index()].as_deref(),
                medium_up: self.owners[port.index()].connected,
                config: self.switch.config(port),
                counters: self.switch.counters(port),
                overruns: outside.map_or(0, |outside| self.hub.port(outside).overruns()),
                losses: &self.losses[port.index()],
                waiting: self.switch.waiting(rnic)
                    + self.switch.waiting(netdev)
                    + outside.map_or(0, |outside| self.hub.port(outside).waiting()),
                faults: self.faults[port.index()].faults().fired(),
            }
        })
    }

    /// Returns at most `count` known addresses, starting at number `from`; the ports' own addresses come first. Returns
    /// none if `from` is beyond the last address.
    pub fn addresses(
        &self,
        now: Instant,
        from: usize,
        count: usize,
    ) -> Option<Vec<KnownAddress<'_>>> {
        let own = self.ports().filter_map(|port| {
            Some(KnownAddress {
                mac: port.config.mac?,
                vlan: None,
                port: port.name,
                age: None,
            })
        });
        let learned = self.switch.learned(since_start(now));
        let learned = learned.map(|learned| KnownAddress {
            mac: learned.mac,
            vlan: Some(learned.vlan),
            port: &self.names[learned.port.index()],
            age: Some(learned.age),
        });
        let page: Vec<_> = own.chain(learned).skip(from).take(count).collect();
        (!page.is_empty()).then_some(page)
    }

    /// Logs the counters of all ports.
    pub fn log_counters(&self) {
        for port in self.ports() {
            let counters = port.counters;
            let drops = port.drops().filter(|&(_, count)| count > 0);
            let drops: Vec<String> = drops
                .map(|(name, count)| format!("{name}={count}"))
                .collect();
            info!(
                port = port.name,
                rx_frames = counters.rx_frames,
                rx_bytes = counters.rx_bytes,
                tx_frames = counters.tx_frames,
                tx_bytes = counters.tx_bytes,
                drops = drops.join(" "),
                "switch port counters"
            );
        }
    }

    /// Returns when [`turn`](Self::turn) has something to do even if no message arrives.
    pub fn next_deadline(&self) -> Option<Instant> {
        let switch = self.switch.next_deadline();
        let switch = switch.map(|due| Instant::default() + due);
        let faults = self.faults.iter().filter_map(PortFaults::next_deadline);
        faults.chain(switch).min()
    }

    /// Returns the faults of the port with that name, if there is one.
    pub fn faults(&mut self, port: &str) -> Option<Armory<'_>> {
        let index = self.names.iter().position(|name| name == port)?;
        Some(self.faults[index].armory())
    }
}

/// Converts a direction as seen from what is attached to the port to one as seen from the switch, which captures use.
fn way(direction: Direction) -> Way {
    match direction {
        Direction::Out => Way::In,
        Direction::In => Way::Out,
    }
}

/// Returns the comment that captures add to a frame that a fault struck; empty if none did.
fn note(struck: Option<&Kind>) -> String {
    struck.map_or_else(String::new, |kind| format!(", fault {}", kind.name))
}

/// Returns the comment that captures add to a frame made by a fault.
fn made_by(kind: Option<&Kind>) -> String {
    let name = kind.map_or("", |kind| kind.name);
    format!(", made by fault {name}")
}

/// Returns whether a device sends frames.
fn is_on_network(device: &config::Device) -> bool {
    device.fabric == FabricKind::Roce
}

fn since_start(now: Instant) -> Duration {
    now - Instant::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::memory::Nowhere;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{
        Body, Path, Payload, Position, Segment, SendTail, Service, Touched,
    };
    use vrnic_roce::FrameError;
    use vrnic_wire::port::NO_VLAN;

    /// Creates a network with devices 0 and 1, of which the first also has a virtio-net, and a device 2 on the local
    /// fabric.
    fn network(directory: &std::path::Path) -> (Network, Option<NetworkThread>) {
        let device = |number: usize, fabric: &str| {
            format!(
                "[[device]]\nname = \"{number}\"\nsocket = \"{number}.sock\"\nmac = \"02:00:00:00:00:0{number}\"\n\
                 fabric = \"{fabric}\"\n"
            )
        };
        let config = format!(
            "{}{}{}[[switch.port]]\nname = \"vm\"\ndevice = \"0\"\nstream = \"{}\"\nmtu = 1500\n",
            device(0, "roce"),
            device(1, "roce"),
            device(2, "local"),
            directory.join("net").display()
        );
        let config = Config::parse(&config).unwrap();
        Network::new(&config, Arc::new(Waker::new().unwrap())).unwrap()
    }

    fn send(network: &mut Network, device: usize, frame: Vec<u8>) {
        let captures = Captures::new(Vec::new());
        network.send(device, frame, Instant::default(), &captures);
    }

    fn next(network: &mut Network) -> Option<(usize, Vec<u8>)> {
        next_of_any(network).map(|arrived| {
            assert!(!arrived.raw);
            (arrived.to, arrived.frame)
        })
    }

    fn next_of_any(network: &mut Network) -> Option<Arrived> {
        network.next_frame(Instant::default(), &Captures::new(Vec::new()))
    }

    /// Returns how many frames were lost at the first port for this reason.
    fn lost(network: &Network, reason: &str) -> u64 {
        let port = network.ports().next().unwrap();
        let mut drops = port.drops();
        drops.find(|(name, _)| *name == reason).unwrap().1
    }

    fn turn(network: &mut Network) {
        network.turn(Instant::default(), &Captures::new(Vec::new()));
    }

    #[test]
    fn flows_see_what_is_for_the_network_device_first() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        hub.tell_worker();
        turn(&mut network);
        network.set_rnic_up(0, true);
        network.set_rnic_up(1, true);
        let plain =
            |to: [u8; 6], from: u8| [&to[..], &[2, 0, 0, 0, 0, from, 0x88, 0xb5, 1]].concat();
        let (unicast, broadcast) = ([2, 0, 0, 0, 0, 0], [0xff; 6]);
        // What the RNIC gets of a frame of the other RNIC.
        let raw = |network: &mut Network, frame: &[u8]| {
            send(network, 1, frame.to_vec());
            let raw = next_of_any(network).map(|arrived| {
                assert!(arrived.raw && arrived.to == 0);
                arrived.frame
            });
            assert!(next_of_any(network).is_none());
            raw
        };
        for to in [unicast, broadcast] {
            let frame = plain(to, 1);
            assert_eq!(raw(&mut network, &frame), None, "no flows");
            assert!(hub.take_outbound());
            assert_eq!(hub.port(0).take_outbound().pop(), Some(frame.clone()));
            network.set_steering(0, true);
            assert_eq!(raw(&mut network, &frame), Some(frame.clone()));
            assert!(!hub.has_outbound() && hub.port(0).take_outbound().is_empty());
            network.pass_on(0, frame.clone());
            assert!(next_of_any(&mut network).is_none() && hub.take_outbound());
            assert_eq!(hub.port(0).take_outbound().pop(), Some(frame));
            network.set_steering(0, false);
        }
        network.set_steering(0, true);
        let forged = plain(unicast, 9);
        assert_eq!(raw(&mut network, &forged), None);
        // RoCE is not for flows.
        send(&mut network, 1, roce(0, 1));
        assert_eq!(next(&mut network), Some((0, roce(0, 1))));
        assert!(hub.port(0).take_outbound().is_empty());
    }

    #[test]
    fn a_slow_network_device_keeps_nothing_from_flows() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        hub.tell_worker();
        turn(&mut network);
        network.set_rnic_up(0, true);
        network.set_rnic_up(1, true);
        network.set_steering(0, true);
        while hub
            .port(0)
            .offer(vec![0; 60], &mut FrameBlanks::new())
            .is_ok()
        {}
        let full = hub.port(0).waiting();
        let frame = |number: u8| [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1, 0x88, 0xb5, number]].concat();
        for number in 0..10 {
            send(&mut network, 1, frame(number));
            let arrived = next_of_any(&mut network).unwrap();
            assert!(arrived.raw && arrived.frame == frame(number));
            network.pass_on(0, arrived.frame);
            assert!(next_of_any(&mut network).is_none(), "once");
        }
        assert_eq!(hub.port(0).waiting(), full);
        assert_eq!(lost(&network, "tx_queue_full"), 10);
        assert_eq!(network.ports().next().unwrap().waiting, full);
        hub.port(0).take_outbound();
        network.pass_on(0, frame(10));
        assert_eq!(hub.port(0).take_outbound().pop(), Some(frame(10)));
    }

    #[test]
    fn flows_need_no_network_device_that_is_connected() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let hub = network.hub.clone();
        network.set_rnic_up(0, true);
        network.set_rnic_up(1, true);
        let frame = [2, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0x88, 0xb5, 1].to_vec();
        send(&mut network, 1, frame.clone());
        assert!(next_of_any(&mut network).is_none());
        assert_eq!(lost(&network, "tx_down"), 1);
        network.set_steering(0, true);
        for connected in [false, true, false] {
            hub.port(0).set_up(connected);
            hub.tell_worker();
            turn(&mut network);
            assert_eq!(network.ports().next().unwrap().medium_up, connected);
            let before = lost(&network, "tx_down");
            send(&mut network, 1, frame.clone());
            let arrived = next_of_any(&mut network).unwrap();
            assert!(arrived.raw && arrived.frame == frame);
            network.pass_on(0, arrived.frame);
            assert_eq!(hub.port(0).waiting(), usize::from(connected));
            let lost = lost(&network, "tx_down") - before;
            assert_eq!(lost, u64::from(!connected));
        }
        network.set_steering(0, false);
        send(&mut network, 1, frame);
        assert!(next_of_any(&mut network).is_none());
    }

    #[test]
    fn only_a_port_with_a_network_device_has_raw_packets() {
        let directory = tempfile::tempdir().unwrap();
        let (network, _thread) = network(directory.path());
        assert_eq!(network.frame_mtu(0), Some(1500));
        assert_eq!(network.frame_mtu(1), None, "no network device");
        assert_eq!(network.frame_mtu(2), None, "no port");
    }

    fn roce(to: u8, from: u8) -> Vec<u8> {
        vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x89, 0x15, 1]
    }

    #[test]
    fn rnics_on_the_network_reach_each_other_and_themselves() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, thread) = network(directory.path());
        assert!(thread.is_some());
        send(&mut network, 0, roce(1, 0));
        assert_eq!(next(&mut network), None, "both are down");
        for device in 0..3 {
            network.set_rnic_up(device, true);
        }
        send(&mut network, 0, roce(1, 0));
        send(&mut network, 1, roce(1, 1));
        send(&mut network, 0, roce(2, 0));
        send(&mut network, 2, roce(1, 2));
        assert_eq!(next(&mut network), Some((1, roce(1, 0))));
        assert_eq!(next(&mut network), Some((1, roce(1, 1))));
        assert_eq!(next(&mut network), None, "device 2 is elsewhere");
        assert_eq!(network.next_deadline(), None);
    }

    #[test]
    fn a_ports_mtu_bounds_the_path_mtu_of_its_rnic() {
        let directory = tempfile::tempdir().unwrap();
        let (network, _thread) = network(directory.path());
        assert_eq!(network.path_mtu(0), Mtu::Mtu1024);
        assert_eq!(network.path_mtu(1), Mtu::Mtu4096, "the default");
        assert_eq!(network.path_mtu(2), Mtu::Mtu4096, "no port");
    }

    #[test]
    fn what_comes_from_outside_finds_the_rnic_and_answers_leave() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let captures = Captures::new(Vec::new());
        let now = Instant::default();
        network.set_rnic_up(1, true);
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        hub.port(0)
            .deliver(&mut vec![roce(1, 0), roce(1, 9)], &mut FrameBlanks::new());
        assert!(!network.has_messages());
        hub.tell_worker();
        assert!(network.has_messages() && network.turn(now, &captures));
        assert!(!network.turn(now, &captures));
        assert_eq!(next(&mut network), Some((1, roce(1, 0))));
        assert_eq!(
            next(&mut network),
            None,
            "no VM may send from an address of its choice"
        );
        // The driver of RNIC 0 is not up, so RoCE goes to the VM's network device.
        send(&mut network, 1, roce(0, 1));
        assert_eq!(next(&mut network), None);
        assert!(hub.take_outbound());
        assert_eq!(hub.port(0).take_outbound().pop(), Some(roce(0, 1)));
    }

    /// Returns a RoCE version 2 request in a frame.
    fn packet(to: u8, from: u8, psn: u32) -> Vec<u8> {
        let gid = |number| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, number];
        let segment = Segment {
            path: Path {
                source: gid(from),
                destination: gid(to),
                source_mac: [2, 0, 0, 0, 0, from],
                destination_mac: [2, 0, 0, 0, 0, to],
                vlan: NO_VLAN,
                hop_limit: 64,
                ..Path::default()
            },
            source_qpn: 0,
            destination_qpn: 5,
            pkey: 0xffff,
            psn: Psn::new(psn),
            solicited: false,
            ack_request: true,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Only,
                tail: SendTail::Plain,
            },
            payload: Payload::Bytes(b"payload".to_vec()),
            checksums_ok: false,
            touched: Touched::NOT,
        };
        let mut frame = vec![0; 200];
        let length = vrnic_roce::encode(&segment, &Nowhere, &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    fn arm(network: &mut Network, port: &str, fault: &str) -> u64 {
        let mut faults = network.faults(port).unwrap();
        faults
            .arm(fault.parse().unwrap(), Instant::default())
            .unwrap()
    }

    /// Returns the PSNs of the frames that RNIC 1 receives, or what is wrong with them.
    fn arrive(network: &mut Network) -> Vec<Result<u32, FrameError>> {
        let frames = std::iter::from_fn(|| next(network));
        frames
            .map(|(device, frame)| {
                assert_eq!(device, 1);
                vrnic_roce::parse(&frame).map(|segment| segment.psn.raw())
            })
            .collect()
    }

    #[test]
    fn faults_of_a_port_strike_what_enters_by_it_and_what_leaves_by_it() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        network.set_rnic_up(1, true);
        let from_vm = |network: &mut Network, frames: Vec<Vec<u8>>| {
            let mut frames = frames;
            hub.port(0).deliver(&mut frames, &mut FrameBlanks::new());
            hub.tell_worker();
            network.turn(Instant::default(), &Captures::new(Vec::new()));
            arrive(network)
        };
        // Port `vm` has the VM's network device, as Soft-RoCE uses it; port `1` has an RNIC.
        arm(&mut network, "vm", "drop nth=2");
        arm(&mut network, "1", "wrong-psn dir=in value=100");
        arm(&mut network, "1", "corrupt-icrc dir=in after-fault=1");
        let frames = (1..=4).map(|psn| packet(1, 0, psn)).collect();
        let got = from_vm(&mut network, frames);
        assert_eq!(got, [Ok(101), Err(FrameError::Icrc), Ok(4)]);
        // Frames that are not RoCE pass, and so do frames that only a fault of the other port would strike.
        arm(&mut network, "vm", "partition");
        let mut other = packet(1, 0, 5);
        other[36..38].copy_from_slice(&53u16.to_be_bytes());
        assert!(from_vm(&mut network, vec![other]).is_empty());
        assert!(from_vm(&mut network, vec![packet(1, 0, 6)]).is_empty());
        // The VM's RNIC is down, so RoCE to the VM goes to its network device.
        send(&mut network, 1, packet(0, 1, 7));
        assert!(next(&mut network).is_none());
        assert!(
            hub.port(0).take_outbound().is_empty(),
            "partition is both ways"
        );
        assert_eq!(network.faults("vm").unwrap().clear(None), 2);
        send(&mut network, 1, packet(0, 1, 8));
        assert!(next(&mut network).is_none());
        assert_eq!(hub.port(0).take_outbound().pop(), Some(packet(0, 1, 8)));
        let fired: Vec<u64> = network.ports().map(|port| port.faults).collect();
        assert_eq!(fired, [3, 2]);
        assert!(network.faults("2").is_none());
    }

    #[test]
    fn what_a_fault_puts_off_comes_in_time() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let captures = Captures::new(Vec::new());
        network.set_rnic_up(0, true);
        network.set_rnic_up(1, true);
        arm(&mut network, "1", "delay dir=in delay=3ms");
        arm(&mut network, "vm", "ghost delay=5ms nth=2");
        send(&mut network, 0, packet(1, 0, 1));
        assert!(arrive(&mut network).is_empty());
        send(&mut network, 0, packet(1, 0, 2));
        assert_eq!(arrive(&mut network), [Ok(2)]);
        let after = |millis| Instant::default() + Duration::from_millis(millis);
        for (due, psn) in [(3, 1), (5, 2)] {
            assert_eq!(network.next_deadline(), Some(after(due)));
            assert!(!network.turn(after(due - 1), &captures));
            assert!(network.turn(after(due), &captures));
            assert_eq!(arrive(&mut network), [Ok(psn)]);
        }
        assert_eq!(network.next_deadline(), None);
    }

    #[test]
    fn what_stays_within_a_port_passes_no_line() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        network.set_rnic_up(1, true);
        arm(&mut network, "1", "partition");
        send(&mut network, 1, packet(1, 1, 1));
        assert_eq!(arrive(&mut network), [Ok(1)]);
        send(&mut network, 1, packet(0, 1, 2));
        assert_eq!(network.faults("1").unwrap().fired(), 1);
    }

    #[test]
    fn a_frame_for_which_there_is_no_room_meets_the_faults_once() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, _thread) = network(directory.path());
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        network.set_rnic_up(1, true);
        hub.tell_worker();
        turn(&mut network);
        arm(&mut network, "vm", "drop dir=in nth=2");
        while hub
            .port(0)
            .offer(vec![0; 60], &mut FrameBlanks::new())
            .is_ok()
        {}
        send(&mut network, 1, packet(0, 1, 1));
        for _ in 0..3 {
            assert!(next(&mut network).is_none());
        }
        assert_eq!(network.faults("vm").unwrap().list()[0].seen, 1);
        assert_eq!(lost(&network, "tx_queue_full"), 1);
        hub.port(0).take_outbound();
        send(&mut network, 1, packet(0, 1, 2));
        send(&mut network, 1, packet(0, 1, 3));
        assert!(next(&mut network).is_none());
        let mut left = hub.port(0).take_outbound();
        assert_eq!((left.pop(), left.pop()), (Some(packet(0, 1, 3)), None));
    }

    #[test]
    fn long_packets_of_others_are_written_whole() {
        // Longer than any frame of vrnic.
        let mut faults = fault::PortFaults::default();
        let spec = "ecn-mark".parse().unwrap();
        faults.armory().arm(spec, Instant::default()).unwrap();
        let mut frame = vec![0; 9000];
        let long = {
            let short = packet(1, 0, 1);
            let parsed = vrnic_roce::parse(&short).unwrap();
            let whole = Segment {
                payload: Payload::Bytes(vec![7; 8000]),
                ..parsed
            };
            let length = vrnic_roce::encode(&whole, &Nowhere, &mut frame).unwrap();
            &frame[..length]
        };
        let mut made = Vec::new();
        let struck = faults.pass(Direction::Out, long, Instant::default(), &mut made);
        assert_eq!(struck.unwrap().name, "ecn-mark");
        let marked = vrnic_roce::parse(&made[0].frame).unwrap();
        assert_eq!((marked.payload.len(), marked.path.traffic_class), (8000, 3));
    }
}
