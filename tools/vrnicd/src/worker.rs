// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The worker: one thread that owns the engines of all devices and moves segments between them.
//!
//! While there is work, the worker makes no system call, takes no lock and allocates nothing per message. When there is
//! none, it polls for a while and then sleeps. Before sleeping, every device clears its POLLING flags and checks its
//! notify areas once more. Then the worker announces that it is about to sleep, and checks the mailboxes once more. A
//! doorbell that rings in between is noticed by one of these two checks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};
use vrnic_engine::segment::Damage;
use vrnic_engine::time::Instant;
use vrnic_engine::{Outbox, Segment};
use vrnic_wire::port::GidEntry;

use crate::capture::{Captures, Direction};
use crate::control::answer::answer;
use crate::control::inspector::Inspector;
use crate::device::{Device, Shared};
use crate::fabric::{Local, Route, SubnetFabric};
use crate::guest_memory::RegionTable;
use crate::network::{Arrived, Network};
use crate::waker::Waker;

/// Time that the recordings' files have to finish when vrnicd stops.
const FINISH: Duration = Duration::from_secs(2);

/// All devices and the networks that connect them.
pub struct Worker {
    devices: Vec<Device>,
    /// For each device, the generation of its GIDs that the fabric knows; `None` if the device has no engine.
    gid_generations: Vec<Option<u64>>,
    shared: Shared,
    /// Connects the devices that are on no network.
    fabric: Local,
    network: Network,
    /// Connects the devices with InfiniBand ports, if there are any.
    subnet: Option<SubnetFabric>,
    /// Segments between devices that are on no network, each with the index of the sending device.
    in_flight: VecDeque<(usize, Segment<'static>)>,
    waker: Arc<Waker>,
    inspector: Arc<Inspector>,
    poll_time: Duration,
    /// Whether more than two devices were busy in the last turn.
    crowded: bool,
    clock: Clock,
    lost: u64,
}

impl Worker {
    /// Creates a worker for `devices` and the `network` or `subnet` that some of them are on. The worker polls for
    /// `poll_time` after the last work. In each turn it answers one question from `inspector`.
    pub fn new(
        devices: Vec<Device>,
        network: Network,
        subnet: Option<SubnetFabric>,
        waker: Arc<Waker>,
        inspector: Arc<Inspector>,
        poll_time: Duration,
        captures: Captures,
    ) -> Self {
        Self {
            gid_generations: vec![None; devices.len()],
            devices,
            shared: Shared {
                regions: RegionTable::new(),
                outbox: Outbox::new(),
                captures,
            },
            fabric: Local::new(),
            network,
            subnet,
            in_flight: VecDeque::new(),
            waker,
            inspector,
            poll_time,
            crowded: false,
            clock: Clock::new(),
            lost: 0,
        }
    }

    /// Works until the waker is told to stop.
    pub fn run(&mut self) {
        let mut idle_since = None;
        while !self.waker.is_stopping() {
            let now = self.clock.tick();
            if self.turn(now) {
                idle_since = None;
                continue;
            }
            if now - *idle_since.get_or_insert(now) < self.poll_time {
                // Spins instead of yielding: a thread that yields waits for as long as a virtual CPU runs, which can be
                // milliseconds. The sleep that follows shortly gives the CPU back.
                std::hint::spin_loop();
                continue;
            }
            self.waker.announce();
            if self.has_work(now) {
                self.waker.cancel();
                continue;
            }
            let devices = self.devices.iter().filter_map(Device::next_deadline);
            let subnet = self.subnet.as_ref().and_then(SubnetFabric::next_deadline);
            let networks = self.network.next_deadline().into_iter().chain(subnet);
            let deadline = devices.chain(networks).min();
            let timeout = deadline.map(|deadline| deadline - now);
            self.waker.sleep(timeout);
            self.clock.slept(timeout);
            idle_since = None;
        }
        for device in &mut self.devices {
            device.end_tape("vrnicd stopped");
        }
        // The threads that write the recordings end with the process.
        let deadline = std::time::Instant::now() + FINISH;
        for device in &self.devices {
            if !device.wait_for_tapes(deadline) {
                warn!(
                    device = device.name(),
                    "the recording is not finished: its file is too slow"
                );
            }
        }
        self.network.log_counters();
    }

    /// Gives every device a turn. Returns true if any of them did something.
    fn turn(&mut self, now: Instant) -> bool {
        self.shared.outbox.watched = !self.shared.captures.is_empty();
        let mut worked = self.network.turn(now, &mut self.shared.captures);
        if let Some(subnet) = &mut self.subnet {
            worked |= subnet.turn(now);
        }
        self.carry(now);
        let (crowded, mut busy) = (self.crowded, 0);
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            // Commands may release memory that segments refer to, so the network is emptied before they run.
            worked |= device
                .contained(&mut self.shared, |device, shared| {
                    device.control(shared, now)
                })
                .unwrap_or(true);
            self.update_gids(index);
            self.deliver(index, now);
            let device = &mut self.devices[index];
            worked |= device
                .contained(&mut self.shared, |device, shared| {
                    device.work(shared, now, crowded)
                })
                .unwrap_or(true);
            busy += usize::from(self.devices[index].is_busy(now));
            worked |= self.deliver(index, now);
        }
        self.crowded = busy > 2;
        if let Some(mut question) = self.inspector.next() {
            let (devices, shared) = (&mut self.devices, &mut self.shared);
            let (network, subnet) = (&mut self.network, self.subnet.as_mut());
            let reply = answer(&mut question.topic, devices, network, subnet, shared, now);
            question.answer(reply);
            worked = true;
        }
        if worked {
            for device in &mut self.devices {
                device.contained(&mut self.shared, |device, shared| {
                    device.publish_events(shared);
                });
                device.pass_recording_on(false);
            }
        }
        worked
    }

    /// Sends the outbox of device `from` and delivers everything in flight. Returns true if there was anything.
    fn deliver(&mut self, from: usize, now: Instant) -> bool {
        let sent = self.send(from, now);
        self.carry(now) || sent
    }

    /// Delivers segments and frames, and the replies to them, until the network is empty. Returns true if there were
    /// any.
    fn carry(&mut self, now: Instant) -> bool {
        let mut worked = false;
        loop {
            if let Some((from, segment)) = self.in_flight.pop_front() {
                self.deliver_segment(from, segment, now);
            } else if let Some(arrived) = self.network.next_frame(now, &mut self.shared.captures) {
                let Arrived { to, raw, frame } = arrived;
                let passes = self.devices[to].contained(&mut self.shared, |device, shared| {
                    if raw {
                        return device.receive_raw(shared, &frame, now);
                    }
                    device.receive_frame(shared, &frame, now);
                    false
                });
                // A device that failed takes nothing away.
                if passes.unwrap_or(raw) {
                    self.network.pass_on(to, frame);
                } else {
                    self.network.recycle(frame);
                }
                self.send(to, now);
            } else if let Some(subnet) = &mut self.subnet
                && let Some((to, packet)) = subnet.next_packet()
            {
                self.devices[to].contained(&mut self.shared, |device, shared| {
                    device.receive_packet(shared, subnet, &packet, now);
                });
                subnet.recycle(packet);
                self.send(to, now);
            } else {
                return worked;
            }
            worked = true;
        }
    }

    /// Puts the outbox of device `from` on the network. Returns true if there was anything.
    fn send(&mut self, from: usize, now: Instant) -> bool {
        self.shared.outbox.reveal();
        if self.shared.outbox.segments.is_empty() {
            return false;
        }
        let device = &mut self.devices[from];
        if let Some(subnet) = self.subnet.as_mut().filter(|subnet| subnet.has(from)) {
            device.contained(&mut self.shared, |device, shared| {
                device.send_packets(shared, subnet);
            });
        } else if device.roce().is_some() {
            let network = &mut self.network;
            device.contained(&mut self.shared, |device, shared| {
                device.send_frames(shared, network, now);
            });
        } else {
            let segments = self.shared.outbox.segments.drain(..);
            self.in_flight
                .extend(segments.map(|segment| (from, segment)));
        }
        true
    }

    /// Delivers a segment to its destination.
    fn deliver_segment(&mut self, from: usize, segment: Segment<'static>, now: Instant) {
        let capturing = !self.shared.captures.is_empty();
        if capturing {
            self.devices[from].capture(&mut self.shared, Direction::Out, &segment, "");
        }
        if segment.touched.withheld {
            return self.shared.outbox.recycle(segment.payload);
        }
        match self.fabric.route(from, &segment) {
            Route::Device(to) if segment.touched.damage.is_some() => {
                let wrong_crc = segment.touched.damage == Some(Damage::Icrc);
                if let Some(rnic) = self.devices[to].rnic() {
                    rnic.count_bad_packet(wrong_crc);
                }
                self.shared.outbox.recycle(segment.payload);
            }
            Route::Device(to) => {
                let device = &mut self.devices[to];
                if capturing {
                    let seen = segment.clone();
                    let note = device.receive_noted(&mut self.shared, segment, now);
                    device.capture(&mut self.shared, Direction::In, &seen, &note);
                } else {
                    device.contained(&mut self.shared, |device, shared| {
                        device.receive(shared, segment, now);
                    });
                }
                self.send(to, now);
            }
            Route::Group => {
                for to in (0..self.devices.len()).filter(|&to| to != from) {
                    self.deliver_copy(to, &segment, now);
                }
                self.shared.outbox.recycle(segment.payload);
            }
            Route::Nowhere => {
                self.lost += 1;
                if self.lost.is_power_of_two() {
                    debug!(lost = self.lost, gid = ?segment.path.destination, "no device has this GID");
                }
                self.shared.outbox.recycle(segment.payload);
            }
        }
    }

    /// Gives a copy of a segment to device `to` if that is on no network and has members of the multicast group.
    fn deliver_copy(&mut self, to: usize, segment: &Segment<'static>, now: Instant) {
        let device = &mut self.devices[to];
        if device.roce().is_some() || !device.has_group(&segment.path.group()) {
            return;
        }
        let note = device.receive_noted(&mut self.shared, segment.clone(), now);
        device.capture(&mut self.shared, Direction::In, segment, &note);
        self.send(to, now);
    }

    /// Prepares every device for sleep and sends what that produced. Returns whether there is work after all.
    fn has_work(&mut self, now: Instant) -> bool {
        let mut work = self.inspector.is_asked() || self.network.has_messages();
        for index in 0..self.devices.len() {
            let device = &mut self.devices[index];
            work |= device.has_messages();
            work |= device
                .contained(&mut self.shared, |device, shared| {
                    let work = device.prepare_sleep(shared, now);
                    device.publish_events(shared);
                    work
                })
                .unwrap_or(true);
            work |= self.deliver(index, now);
            self.devices[index].pass_recording_on(true);
        }
        work
    }

    /// Tells the network when the GIDs of a device change, and whether it has flows. For a device on an InfiniBand
    /// subnet, synchronizes the device and its port instead.
    fn update_gids(&mut self, index: usize) {
        let device = &mut self.devices[index];
        if let Some(subnet) = self.subnet.as_mut().filter(|subnet| subnet.has(index)) {
            let up = device.link();
            device.contained(&mut self.shared, |device, _| {
                subnet.update(index, up, device.rnic());
            });
            return;
        }
        let steers = device.rnic().is_some_and(|rnic| !rnic.flows().is_empty());
        self.network.set_steering(index, steers);
        let generation = device.rnic().map(|rnic| rnic.gid_generation());
        if generation == self.gid_generations[index] {
            return;
        }
        self.gid_generations[index] = generation;
        self.network.set_rnic_up(index, generation.is_some());
        let entries: Vec<GidEntry> = device
            .rnic()
            .map_or_else(Vec::new, |rnic| rnic.gids().copied().collect());
        match device.roce() {
            Some(end) => end.set_gids(entries.iter()),
            None => self
                .fabric
                .set_gids(index, entries.iter().map(|entry| entry.gid)),
        }
    }
}

/// The devices' clock. It advances only while the worker runs or sleeps. Time in which the worker wanted to run but got
/// no CPU does not count: timers would otherwise expire although the replies they wait for have arrived and are merely
/// unread.
struct Clock {
    /// Time that the devices see.
    device: Instant,
    /// Real time at which `device` was last updated.
    real: std::time::Instant,
}

impl Clock {
    /// Longest time that one turn counts for.
    const STEP: Duration = Duration::from_millis(2);

    fn new() -> Self {
        Self {
            device: Instant::default(),
            real: std::time::Instant::now(),
        }
    }

    /// Returns the time of a new turn.
    fn tick(&mut self) -> Instant {
        self.pass(Self::STEP)
    }

    /// Advances the clock after a sleep that would have lasted `timeout` without a wake-up.
    fn slept(&mut self, timeout: Option<Duration>) {
        self.pass(timeout.map_or(Duration::MAX, |timeout| timeout.saturating_add(Self::STEP)));
    }

    fn pass(&mut self, limit: Duration) -> Instant {
        let real = std::time::Instant::now();
        self.device = self.device + (real - self.real).min(limit);
        self.real = real;
        self.device
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_counts_sleep_but_not_starvation() {
        let mut clock = Clock::new();
        let start = clock.tick();
        std::thread::sleep(Duration::from_millis(20));
        let starved = clock.tick();
        assert!(starved - start <= Clock::STEP);
        std::thread::sleep(Duration::from_millis(20));
        clock.slept(Some(Duration::from_millis(10)));
        let slept = clock.tick() - starved;
        assert!(
            slept >= Duration::from_millis(12) && slept <= Duration::from_millis(14),
            "{slept:?}"
        );
        std::thread::sleep(Duration::from_millis(20));
        clock.slept(None);
        assert!(clock.tick() - starved >= Duration::from_millis(32));
    }
}
