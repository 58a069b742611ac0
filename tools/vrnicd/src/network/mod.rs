// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The network of the frames: a switch in the worker's thread, and a second thread that moves frames between the switch
//! and sockets or TAP devices.
//!
//! ```text
//!           worker's thread                              network thread
//!  RNIC ──▶ Network ─▶ vrnic_switch ─▶ Hub, a bounded ──▶ stream   QEMU's virtio-net
//!  RNIC ◀──                        ◀── queue each way ◀── tap      the host's network
//!                                      for each port      link     another vrnicd
//! ```
//!
//! Neither thread ever waits for the other: a queue that is full costs frames of its port, and the loss is counted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::info;
use vrnic_engine::time::Instant;
use vrnic_switch::{Counters, Endpoint, Member, PortConfig, Switch, Vlan};
use vrnic_wire::port::Mtu;

use crate::capture::Captures;
use crate::config::{self, Config, FabricKind};
use crate::waker::Waker;

mod hub;
mod link;
mod medium;
mod stream;
#[allow(unsafe_code, reason = "an ioctl")]
mod tap;
mod thread;

use hub::Hub;
pub use thread::NetworkThread;

/// The worker's end of the network.
pub struct Network {
    switch: Switch,
    /// The RNIC's endpoint of each device that has one.
    rnics: Vec<Option<Endpoint>>,
    /// Names of the ports.
    names: Vec<String>,
    /// What is behind each port beside an RNIC, in words.
    media: Vec<Option<String>>,
    /// Which device an RNIC's endpoint is of, and which of the hub's ports a network device's is, by port.
    owners: Vec<Owners>,
    /// The endpoint of each port of the hub.
    outside: Vec<Endpoint>,
    hub: Arc<Hub>,
    /// Frames for RNICs, each with the index of the device.
    arrived: VecDeque<(usize, Vec<u8>)>,
}

#[derive(Default, Clone, Copy)]
struct Owners {
    device: Option<usize>,
    outside: Option<usize>,
}

/// What a port is like now.
pub struct PortView<'a> {
    /// Name.
    pub name: &'a str,
    /// Index of the device whose RNIC is behind it.
    pub device: Option<usize>,
    /// Whether the RNIC is up.
    pub rnic_up: bool,
    /// What else is behind it, in words.
    pub medium: Option<&'a str>,
    /// Whether that is there.
    pub medium_up: bool,
    /// Settings.
    pub config: &'a PortConfig,
    /// Counters.
    pub counters: &'a Counters,
    /// Frames from outside that the worker was too slow for.
    pub overruns: u64,
    /// Frames that wait for it in the switch.
    pub waiting: usize,
}

/// An address that the switch knows.
pub struct KnownAddress<'a> {
    /// The address.
    pub mac: vrnic_switch::Mac,
    /// The VLAN that it was learned in; none if it is the port's own.
    pub vlan: Option<Vlan>,
    /// Name of the port that it is behind.
    pub port: &'a str,
    /// Time since the last frame from it; none if it is the port's own.
    pub age: Option<Duration>,
}

impl Network {
    /// The network of a configuration, and the thread's end of it if it has any. `waker` wakes the worker.
    ///
    /// # Errors
    /// A socket or device cannot be opened.
    pub fn new(config: &Config, waker: Arc<Waker>) -> Result<(Self, Option<NetworkThread>)> {
        let defaults = config::Switch::default();
        let settings = config.switch.as_ref().unwrap_or(&defaults);
        let mut media = Vec::new();
        for port in settings.ports.iter().filter(|port| port.has_medium()) {
            let medium =
                medium::open(port).with_context(|| format!("switch port `{}`", port.name))?;
            media.push((port.name.clone(), medium));
        }
        let hub = Arc::new(Hub::new(media.len(), waker)?);
        let mut network = Self {
            switch: Switch::new(Duration::from_secs(settings.address_age_s)),
            rnics: vec![None; config.devices.len()],
            names: Vec::new(),
            media: Vec::new(),
            owners: Vec::new(),
            outside: Vec::new(),
            hub: hub.clone(),
            arrived: VecDeque::new(),
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
            }
        }
        let thread = (!media.is_empty()).then(|| NetworkThread::new(hub, media));
        Ok((network, thread))
    }

    /// Adds a port, all of it down.
    fn add_port(&mut self, name: &str, port: PortConfig, device: Option<usize>) -> Result<()> {
        let (mtu, vlans, netdev) = (port.mtu, port.vlans.clone(), port.netdev);
        let port = self.switch.add_port(port).with_context(|| {
            format!("switch port `{name}`: another port already has its address")
        })?;
        info!(port = name, mtu, %vlans, "switch port");
        let mut owners = Owners::default();
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
        Ok(())
    }

    /// Largest path MTU of a device: what the frames of its port can carry.
    pub fn path_mtu(&self, device: usize) -> Mtu {
        let link = self.rnics[device].map(|endpoint| self.switch.config(endpoint.port).mtu);
        link.map_or(Mtu::Mtu4096, vrnic_roce::path_mtu)
    }

    /// Brings the RNIC of a device up or down.
    pub fn set_rnic_up(&mut self, device: usize, up: bool) {
        if let Some(endpoint) = self.rnics[device] {
            self.switch.set_up(endpoint, up);
        }
    }

    /// An empty buffer for a frame.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.switch.buffer()
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        self.switch.recycle(buffer);
    }

    /// The RNIC of `device` sends a frame.
    pub fn send(&mut self, device: usize, frame: Vec<u8>, now: Instant) {
        match self.rnics[device] {
            Some(endpoint) => self.switch.receive(endpoint, frame, since_start(now)),
            None => self.switch.recycle(frame),
        }
    }

    /// Takes up what came from outside, which it shows to the captures, and what arrived after a delay. True if there
    /// was anything.
    pub fn turn(&mut self, now: Instant, captures: &mut Captures) -> bool {
        let time = since_start(now);
        let late = self.switch.next_deadline().is_some_and(|due| due <= time);
        if late {
            self.switch.advance(time);
        }
        let news = self.hub.take_news();
        if news {
            for (index, &endpoint) in self.outside.iter().enumerate() {
                let port = self.hub.port(index);
                let up = port.is_up();
                if up != self.switch.is_up(endpoint) {
                    self.switch.set_up(endpoint, up);
                }
                let mut frames = port.take_inbound();
                let port = endpoint.port.index();
                while let Some(frame) = frames.pop() {
                    captures.outside(port, &self.names[port], &frame);
                    self.switch.receive(endpoint, frame, time);
                }
            }
        }
        late || news
    }

    /// The next frame for an RNIC, with the index of its device. Frames for the outside leave on the way.
    pub fn next_frame(&mut self) -> Option<(usize, Vec<u8>)> {
        if self.arrived.is_empty() && self.switch.has_output() {
            self.drain();
        }
        self.arrived.pop_front()
    }

    /// Empties the switch.
    fn drain(&mut self) {
        let mut offered = false;
        let (owners, hub, arrived) = (&self.owners, &self.hub, &mut self.arrived);
        self.switch.drain(|to, frame| {
            let owners = owners[to.port.index()];
            match (to.member, owners.device, owners.outside) {
                (Member::Rnic, Some(device), _) => arrived.push_back((device, frame)),
                (Member::Netdev, _, Some(outside)) => {
                    hub.port(outside).offer(frame)?;
                    offered = true;
                }
                // Endpoints are made together with their owners.
                _ => {}
            }
            Ok(())
        });
        if offered {
            self.hub.tell_network();
        }
    }

    /// Whether [`turn`](Self::turn) has something to do that it has not been told of.
    pub fn has_messages(&self) -> bool {
        self.hub.has_news()
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = PortView<'_>> {
        self.switch.ports().map(|port| {
            let Owners { device, outside } = self.owners[port.index()];
            let of = |member| Endpoint { port, member };
            let (rnic, netdev) = (of(Member::Rnic), of(Member::Netdev));
            PortView {
                name: &self.names[port.index()],
                device,
                rnic_up: self.switch.is_up(rnic),
                medium: self.media[port.index()].as_deref(),
                medium_up: self.switch.is_up(netdev),
                config: self.switch.config(port),
                counters: self.switch.counters(port),
                overruns: outside.map_or(0, |outside| self.hub.port(outside).overruns()),
                waiting: self.switch.waiting(rnic) + self.switch.waiting(netdev),
            }
        })
    }

    /// At most `count` addresses that are known, ports' own first, from number `from` on; none if there are not so
    /// many.
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

    /// Writes the counters of all ports to the log.
    pub fn log_counters(&self) {
        for port in self.ports() {
            let counters = port.counters;
            let drops: Vec<String> = counters
                .all_drops()
                .map(|(reason, count)| format!("{}={count}", reason.name()))
                .collect();
            info!(
                port = port.name,
                rx_frames = counters.rx_frames,
                rx_bytes = counters.rx_bytes,
                tx_frames = counters.tx_frames,
                tx_bytes = counters.tx_bytes,
                overruns = port.overruns,
                drops = drops.join(" "),
                "switch port counters"
            );
        }
    }

    /// When [`turn`](Self::turn) has something to do though nothing happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let due = self.switch.next_deadline()?;
        Some(Instant::default() + due)
    }
}

/// Whether a device sends frames.
fn is_on_network(device: &config::Device) -> bool {
    device.fabric == FabricKind::Roce
}

fn since_start(now: Instant) -> Duration {
    now - Instant::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices 0 and 1 on the network, the first with a virtio-net, and device 2 that copies.
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

    fn roce(to: u8, from: u8) -> Vec<u8> {
        vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x89, 0x15, 1]
    }

    #[test]
    fn rnics_on_the_network_reach_each_other_and_themselves() {
        let directory = tempfile::tempdir().unwrap();
        let (mut network, thread) = network(directory.path());
        assert!(thread.is_some());
        let now = Instant::default();
        network.send(0, roce(1, 0), now);
        assert_eq!(network.next_frame(), None, "both are down");
        for device in 0..3 {
            network.set_rnic_up(device, true);
        }
        network.send(0, roce(1, 0), now);
        network.send(1, roce(1, 1), now);
        network.send(0, roce(2, 0), now);
        network.send(2, roce(1, 2), now);
        assert_eq!(network.next_frame(), Some((1, roce(1, 0))));
        assert_eq!(network.next_frame(), Some((1, roce(1, 1))));
        assert_eq!(network.next_frame(), None, "device 2 is elsewhere");
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
        let mut captures = Captures::new(Vec::new());
        let now = Instant::default();
        network.set_rnic_up(1, true);
        let hub = network.hub.clone();
        hub.port(0).set_up(true);
        hub.port(0).deliver(&mut vec![roce(1, 0), roce(1, 9)]);
        assert!(!network.has_messages());
        hub.tell_worker();
        assert!(network.has_messages() && network.turn(now, &mut captures));
        assert!(!network.turn(now, &mut captures));
        assert_eq!(network.next_frame(), Some((1, roce(1, 0))));
        assert_eq!(
            network.next_frame(),
            None,
            "no VM may send from an address of its choice"
        );
        // The driver of RNIC 0 is not up: RoCE is for the VM's other programs.
        network.send(1, roce(0, 1), now);
        assert_eq!(network.next_frame(), None);
        assert!(hub.take_outbound());
        assert_eq!(hub.port(0).take_outbound().0.pop(), Some(roce(0, 1)));
    }
}
