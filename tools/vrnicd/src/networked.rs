// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A network or a subnet and the devices that it connects, which one worker at a time drives together.
//!
//! These devices exchange frames or packets, never segments that refer to the memory of another one, so they have
//! nothing to do with other units.

use std::time::{Duration, Instant as RealInstant};

use vrnic_engine::time::Instant;
use vrnic_wire::port::GidEntry;

use crate::clock::Clock;
use crate::control::answer::Timed;
use crate::device::{Busy, Crowd, Device, Shared};
use crate::fabric::SubnetFabric;
use crate::network::{Arrived, Network};

/// What connects the devices.
#[expect(
    clippy::large_enum_variant,
    reason = "a process has one of each at most"
)]
pub enum Medium {
    /// A switch, for RoCE frames.
    Switch(Network),
    /// An InfiniBand subnet.
    Subnet(SubnetFabric),
}

/// A network or a subnet and its devices.
pub struct Networked {
    /// Devices by their index; none for those that are elsewhere.
    devices: Vec<Option<Device>>,
    /// For each device, the generation of its GIDs that the network knows; `None` if the device has no engine.
    gid_generations: Vec<Option<u64>>,
    medium: Medium,
    clock: Clock,
}

impl Networked {
    /// Creates the network of these devices, which have places by their index.
    pub fn new(devices: Vec<Option<Device>>, medium: Medium) -> Self {
        Self {
            gid_generations: vec![None; devices.len()],
            devices,
            medium,
            clock: Clock::new(),
        }
    }

    /// Returns the devices.
    pub fn devices(&mut self) -> impl Iterator<Item = &mut Device> {
        self.devices.iter_mut().flatten()
    }

    /// Returns what connects the devices.
    pub fn medium(&self) -> &Medium {
        &self.medium
    }

    /// Returns everything at the time `real`, with the indices of the devices.
    pub fn parts(
        &mut self,
        real: RealInstant,
    ) -> (
        impl Iterator<Item = (usize, Timed<'_, Device>)>,
        Timed<'_, Medium>,
    ) {
        let now = self.clock.tick(real);
        let devices = self.devices.iter_mut().enumerate();
        let devices = devices.filter_map(move |(index, device)| {
            let it = device.as_mut()?;
            Some((index, Timed { it, now }))
        });
        let it = &mut self.medium;
        (devices, Timed { it, now })
    }

    /// Gives the network and every device a turn that begins at `real`. Returns whether any of them did something, and
    /// the devices that are busy.
    pub fn turn(&mut self, shared: &mut Shared, real: RealInstant, crowd: Crowd) -> (bool, Busy) {
        let now = self.clock.tick(real);
        let mut worked = match &mut self.medium {
            Medium::Switch(network) => network.turn(now, &shared.captures),
            Medium::Subnet(subnet) => subnet.turn(now),
        };
        self.carry(shared, now);
        let mut busy = Busy::default();
        for index in 0..self.devices.len() {
            let Some(device) = &mut self.devices[index] else {
                continue;
            };
            // Commands may release memory that segments refer to, so the network is emptied before they run.
            worked |= device
                .contained(shared, |device, shared| {
                    device.control(shared, now, &mut |_| false)
                })
                .unwrap_or(true);
            self.update(shared, index);
            self.deliver(shared, index, now);
            if let Some(device) = &mut self.devices[index] {
                worked |= device
                    .contained(shared, |device, shared| device.work(shared, now, crowd))
                    .unwrap_or(true);
                // What arrives for a device is not limited by its turn.
                busy.count(device, now, false);
            }
            worked |= self.deliver(shared, index, now);
        }
        (worked, busy)
    }

    /// Prepares every device for sleep and sends what that produced. Returns whether there is work after all.
    pub fn prepare_sleep(&mut self, shared: &mut Shared, real: RealInstant) -> bool {
        let now = self.clock.tick(real);
        let mut work = match &self.medium {
            Medium::Switch(network) => network.has_messages(),
            Medium::Subnet(_) => false,
        };
        for index in 0..self.devices.len() {
            if let Some(device) = &mut self.devices[index] {
                work |= device.has_messages();
                work |= device
                    .contained(shared, |device, shared| {
                        let work = device.prepare_sleep(shared, now);
                        device.publish_events();
                        work
                    })
                    .unwrap_or(true);
            }
            work |= self.deliver(shared, index, now);
            if let Some(device) = &mut self.devices[index] {
                device.pass_recording_on(true);
            }
        }
        work
    }

    /// Returns the time until something has to be done.
    pub fn next_timeout(&self) -> Option<Duration> {
        let medium = match &self.medium {
            Medium::Switch(network) => network.next_deadline(),
            Medium::Subnet(subnet) => subnet.next_deadline(),
        };
        let devices = self.devices.iter().flatten();
        let deadlines = devices.filter_map(Device::next_deadline).chain(medium);
        Some(self.clock.until(deadlines.min()?))
    }

    /// Notes a sleep that ended at `real` and would have lasted `timeout`.
    pub fn slept(&mut self, real: RealInstant, timeout: Option<Duration>) {
        self.clock.slept(real, timeout);
    }

    /// Sends the outbox of device `from` and delivers everything on its way. Returns true if there was anything.
    fn deliver(&mut self, shared: &mut Shared, from: usize, now: Instant) -> bool {
        let sent = self.send(shared, from, now);
        self.carry(shared, now) || sent
    }

    /// Delivers frames or packets, and the replies to them, until the network is empty. Returns true if there were any.
    fn carry(&mut self, shared: &mut Shared, now: Instant) -> bool {
        let mut worked = false;
        loop {
            let to = match &mut self.medium {
                Medium::Switch(network) => {
                    let Some(arrived) = network.next_frame(now, &shared.captures) else {
                        return worked;
                    };
                    let Arrived { to, raw, frame } = arrived;
                    let passes = self.devices[to].as_mut().and_then(|device| {
                        device.contained(shared, |device, shared| {
                            if raw {
                                return device.receive_raw(shared, &frame, now);
                            }
                            device.receive_frame(shared, &frame, now);
                            false
                        })
                    });
                    // A device that failed takes nothing away.
                    if passes.unwrap_or(raw) {
                        network.pass_on(to, frame);
                    } else {
                        network.recycle(frame);
                    }
                    to
                }
                Medium::Subnet(subnet) => {
                    let Some((to, packet)) = subnet.next_packet() else {
                        return worked;
                    };
                    if let Some(device) = &mut self.devices[to] {
                        device.contained(shared, |device, shared| {
                            device.receive_packet(shared, subnet, &packet, now);
                        });
                    }
                    subnet.recycle(packet);
                    to
                }
            };
            self.send(shared, to, now);
            worked = true;
        }
    }

    /// Puts the outbox of device `from` on the network. Returns true if there was anything.
    fn send(&mut self, shared: &mut Shared, from: usize, now: Instant) -> bool {
        shared.outbox.reveal();
        if shared.outbox.segments.is_empty() {
            return false;
        }
        if let Some(device) = &mut self.devices[from] {
            let medium = &mut self.medium;
            device.contained(shared, |device, shared| match medium {
                Medium::Switch(network) => device.send_frames(shared, network, now),
                Medium::Subnet(subnet) => device.send_packets(shared, subnet),
            });
        }
        true
    }

    /// Tells the switch when the GIDs of a device change, and whether it has flows. Synchronizes a device on a subnet
    /// and its port.
    fn update(&mut self, shared: &mut Shared, index: usize) {
        let Some(device) = &mut self.devices[index] else {
            return;
        };
        let network = match &mut self.medium {
            Medium::Switch(network) => network,
            Medium::Subnet(subnet) => {
                let up = device.link();
                device.contained(shared, |device, _| subnet.update(index, up, device.rnic()));
                return;
            }
        };
        let steers = device.rnic().is_some_and(|rnic| !rnic.flows().is_empty());
        network.set_steering(index, steers);
        let generation = device.rnic().map(|rnic| rnic.gid_generation());
        if generation == self.gid_generations[index] {
            return;
        }
        self.gid_generations[index] = generation;
        network.set_rnic_up(index, generation.is_some());
        let entries: Vec<GidEntry> = device
            .rnic()
            .map_or_else(Vec::new, |rnic| rnic.gids().copied().collect());
        if let Some(end) = device.roce() {
            end.set_gids(entries.iter());
        }
    }
}
