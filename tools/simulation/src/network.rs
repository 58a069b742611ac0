// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The network between devices: lines and switches of `vrnic-switch`, or no frames at all, as on the local fabric. It
//! records between which devices something went wrong.
//!
//! ```text
//! device ── line ──▶ switch ── line ──▶ device
//!                      │ ▲
//!                    trunks, each from switch to switch
//! ```

use crate::{
    plan::{LinePlan, Outage, Plan},
    random::Random,
};
use std::{ops::AddAssign, time::Duration};
use vrnic_engine::{
    Segment,
    segment::{ECN_CAPABLE, ECN_MARKED, ECN_MASK},
    testing::{GuestView, gid_of},
    time::Instant,
};
use vrnic_roce::{MAX_FRAME, encode};
use vrnic_switch::{Endpoint, Mac, Member, PortConfig, PortId, Switch};

/// A wait for a line that is longer than this counts as harm: a requester may take it for loss.
const LONG: Duration = Duration::from_micros(300);

/// What travels.
#[derive(Clone, Debug)]
pub enum Parcel {
    /// A segment without a frame.
    Segment(Box<Segment<'static>>),
    /// A frame.
    Frame(Vec<u8>),
}

/// Destination of a parcel.
#[derive(Copy, Clone, Debug)]
pub enum Place {
    /// At a device.
    Device(usize),
    /// At a port of a switch.
    Port(usize, Endpoint),
}

/// A parcel in transit.
#[derive(Debug)]
pub struct Travelling {
    /// When it arrives.
    pub at: Instant,
    /// Where it arrives.
    pub place: Place,
    /// Contents.
    pub parcel: Parcel,
}

/// Returns the MAC address of a device.
pub fn mac_of(device: usize) -> [u8; 6] {
    [2, 0, 0, 0, 0, device as u8 + 1]
}

/// Returns the device that has a GID.
pub fn device_of(gid: &[u8; 16]) -> Option<usize> {
    let device = usize::from(gid[15]).checked_sub(1)?;
    (gid_of(device) == *gid).then_some(device)
}

/// A line.
#[derive(Debug)]
struct Line {
    plan: LinePlan,
    free: Instant,
}

/// What happens to a frame on a line.
#[derive(Default)]
struct Passage {
    /// Delay of each copy.
    copies: Vec<Duration>,
    is_damaged: bool,
    is_marked: bool,
    /// Whether anything other than a short delay happens.
    is_harm: bool,
}

impl Line {
    fn new(plan: &LinePlan) -> Self {
        Self {
            plan: plan.clone(),
            free: Instant::default(),
        }
    }

    fn pass(&mut self, bytes: usize, now: Instant, random: &mut Random) -> Passage {
        let plan = &self.plan;
        let waits = self.free - now;
        let (lost, twice, late) = (
            random.hits(plan.loss),
            random.hits(plan.duplicate),
            random.hits(plan.late),
        );
        let mut passage = Passage {
            is_damaged: random.hits(plan.damage),
            is_marked: random.hits(plan.mark),
            ..Passage::default()
        };
        passage.is_harm = lost || twice || late || passage.is_damaged || waits > LONG;
        if waits > plan.queue {
            return passage;
        }
        let time = Duration::from_nanos(bytes as u64 * 1_000_000_000 / plan.rate);
        self.free = now + waits + time;
        let takes = waits + time + plan.delay;
        if !lost {
            let extra = if late {
                random.time_below(plan.lateness)
            } else {
                Duration::ZERO
            };
            passage.copies.push(takes + extra);
            if twice {
                passage
                    .copies
                    .push(takes + random.time_below(plan.lateness));
            }
        }
        passage
    }
}

/// The source device, and the destination device unless it is a multicast group.
type Ends = (usize, Option<usize>);

/// Counts of what went wrong between pairs of devices.
#[derive(Debug)]
struct Harm {
    devices: usize,
    counts: Vec<u64>,
}

impl Harm {
    fn place(&self, a: usize, b: usize) -> usize {
        a.min(b) * self.devices + a.max(b)
    }

    /// Records that something went wrong on the way from a device to another, or to all others.
    fn add(&mut self, (from, to): Ends) {
        let all = to.map_or(0..self.devices, |to| to..to + 1);
        for to in all {
            let place = self.place(from, to);
            self.counts[place].add_assign(1);
        }
    }
}

/// What a port of a switch is connected to.
#[derive(Copy, Clone, Debug)]
enum Behind {
    Device(usize),
    /// That port of another switch.
    Trunk(usize, PortId),
}

#[derive(Debug)]
struct Hub {
    switch: Switch,
    ports: Vec<Behind>,
    /// Outgoing line of each port.
    lines: Vec<Line>,
    /// Number of current outages, each of one port or of all ports.
    outages: u32,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    hubs: Vec<Hub>,
    /// Switch and port of each device.
    places: Vec<(usize, PortId)>,
    /// Lines from the devices.
    lines: Vec<Line>,
    harm: Harm,
    random: Random,
    /// Number of frames and segments sent.
    pub sent: u64,
}

impl Network {
    /// Creates the network of a plan.
    ///
    /// # Panics
    ///
    /// Two devices have the same address.
    pub fn new(plan: &Plan) -> Self {
        let devices = plan.devices.len();
        let mut hubs: Vec<Hub> = (0..plan.switches)
            .map(|_| Hub {
                switch: Switch::new(Duration::from_secs(300)),
                ports: Vec::new(),
                lines: Vec::new(),
                outages: 0,
            })
            .collect();
        let mut places = Vec::new();
        let on_switches = if hubs.is_empty() { 0 } else { devices };
        for (index, device) in plan.devices.iter().enumerate().take(on_switches) {
            let hub = &mut hubs[device.switch];
            let port = hub.switch.add_port(PortConfig::nic(Mac(mac_of(index))));
            places.push((device.switch, port.expect("an address of its own")));
            hub.ports.push(Behind::Device(index));
            hub.lines.push(Line::new(&device.lines[1]));
        }
        // Each switch is connected to every other; frames from one trunk do not go to another.
        for a in 0..hubs.len() {
            for b in 0..a {
                let ports = [a, b].map(|hub| {
                    let config = PortConfig {
                        group: Some(1),
                        ..PortConfig::default()
                    };
                    hubs[hub].switch.add_port(config).expect("a port")
                });
                for (hub, other, port) in [(a, b, ports[1]), (b, a, ports[0])] {
                    hubs[hub].ports.push(Behind::Trunk(other, port));
                    hubs[hub].lines.push(Line::new(&plan.trunk));
                }
            }
        }
        Self {
            hubs,
            places,
            lines: plan
                .devices
                .iter()
                .map(|device| Line::new(&device.lines[0]))
                .collect(),
            harm: Harm {
                devices,
                counts: vec![0; devices * devices],
            },
            random: Random::new(plan.seed ^ 0x6e65_7477_6f72_6b00),
            sent: 0,
        }
    }

    /// Returns a number that changes whenever something goes wrong between two devices.
    pub fn harm(&self, devices: [usize; 2]) -> u64 {
        let full = self.hubs.iter().flat_map(|hub| {
            let ports = hub.switch.ports();
            ports.flat_map(|port| {
                hub.switch
                    .counters(port)
                    .all_drops()
                    .map(|(_, count)| count)
            })
        });
        self.harm.counts[self.harm.place(devices[0], devices[1])] + full.sum::<u64>()
    }

    /// Takes ports of a switch down, or brings them up again.
    pub fn set_up(&mut self, outage: &Outage, up: bool) {
        let hub = &mut self.hubs[outage.switch];
        hub.outages = hub.outages.wrapping_add_signed(if up { -1 } else { 1 });
        for port in hub.switch.ports() {
            if outage.port.is_none_or(|which| which == port.index()) {
                for member in [Member::Rnic, Member::Netdev] {
                    hub.switch.set_up(Endpoint { port, member }, up);
                }
            }
        }
    }

    /// Sends a segment from a device. Returns the parcels that are then in transit.
    ///
    /// # Panics
    ///
    /// The segment cannot be encoded as a frame.
    pub fn send(
        &mut self,
        from: usize,
        mut segment: Segment<'static>,
        view: &GuestView,
        now: Instant,
    ) -> Vec<Travelling> {
        self.sent += 1;
        let to = device_of(&segment.path.destination);
        let ends = (from, to);
        if self.hubs.is_empty() {
            let line = &mut self.lines[from];
            let passage = line.pass(0, now, &mut self.random);
            if passage.is_harm {
                self.harm.add(ends);
            }
            let class = &mut segment.path.traffic_class;
            if passage.is_marked && *class & ECN_MASK == ECN_CAPABLE {
                *class |= ECN_MARKED;
            }
            // The segment arrives at once unless something goes wrong. Then the memory to which it refers may have
            // changed by its arrival, so the payload is copied.
            let at_once = !passage.is_harm;
            if !at_once && segment.detach(view).is_err() {
                return Vec::new();
            }
            let parcel = Parcel::Segment(Box::new(segment));
            // Members of the group on the sending device have already received it.
            let others = (0..self.lines.len()).filter(|other| *other != from);
            let receivers: Vec<_> = to.map_or_else(|| others.collect(), |to| vec![to]);
            let copies = passage
                .copies
                .into_iter()
                .flat_map(|takes| receivers.iter().map(move |to| (*to, takes)));
            let copies = copies.map(|(to, takes)| Travelling {
                at: if at_once { now } else { now + takes },
                place: Place::Device(to),
                parcel: parcel.clone(),
            });
            return copies.collect();
        }
        let mut frame = vec![0; MAX_FRAME];
        let length = encode(&segment, view, &mut frame).expect("a frame");
        frame.truncate(length);
        let (switch, port) = self.places[from];
        let place = Place::Port(
            switch,
            Endpoint {
                port,
                member: Member::Rnic,
            },
        );
        let passage = self.lines[from].pass(frame.len(), now, &mut self.random);
        self.pass(passage, ends, frame, place, now)
    }

    fn pass(
        &mut self,
        passage: Passage,
        ends: Ends,
        mut frame: Vec<u8>,
        place: Place,
        now: Instant,
    ) -> Vec<Travelling> {
        if passage.is_harm {
            self.harm.add(ends);
        }
        if passage.is_marked {
            mark(&mut frame);
        }
        if passage.is_damaged {
            let bit = self.random.below(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let copies = passage.copies.into_iter().map(|takes| Travelling {
            at: now + takes,
            place,
            parcel: Parcel::Frame(frame.clone()),
        });
        copies.collect()
    }

    /// Receives a frame at a port of a switch. Returns the parcels that leave the switch.
    pub fn receive(
        &mut self,
        switch: usize,
        from: Endpoint,
        frame: Vec<u8>,
        now: Instant,
    ) -> Vec<Travelling> {
        let hub = &mut self.hubs[switch];
        if hub.outages > 0 {
            // Copies for ports that are down do not count as lost.
            let ends = ends_of(&frame, self.harm.devices).unwrap_or((0, None));
            self.harm.add(ends);
        }
        let time = Duration::from_nanos(now.as_nanos());
        hub.switch.receive(from, frame, time);
        let leaving: Vec<_> = std::iter::from_fn(|| hub.switch.pop()).collect();
        let mut all = Vec::new();
        for (to, frame) in leaving {
            let hub = &mut self.hubs[switch];
            let index = to.port.index();
            let place = match hub.ports[index] {
                // Frames other than RoCE go to a network device, which does not exist here.
                Behind::Device(_) if to.member == Member::Netdev => continue,
                Behind::Device(device) => Place::Device(device),
                Behind::Trunk(other, port) => Place::Port(
                    other,
                    Endpoint {
                        port,
                        member: Member::Netdev,
                    },
                ),
            };
            let passage = hub.lines[index].pass(frame.len(), now, &mut self.random);
            let ends = ends_of(&frame, self.harm.devices).unwrap_or((0, None));
            all.extend(self.pass(passage, ends, frame, place, now));
        }
        all
    }
}

/// Returns the source and destination devices of a frame, by the last bytes of its IPv4 addresses.
fn ends_of(frame: &[u8], devices: usize) -> Option<Ends> {
    let device = |at: usize| {
        let last = usize::from(*frame.get(at)?).checked_sub(1)?;
        (last < devices).then_some(last)
    };
    let is_group = frame.get(30)? & 0xf0 == 0xe0;
    Some((device(29)?, device(33).filter(|_| !is_group)))
}

/// Marks an IPv4 packet as congested, if it is ECN capable.
fn mark(frame: &mut [u8]) {
    let Some(class) = frame.get(15).copied() else {
        return;
    };
    if class & ECN_MASK == ECN_CAPABLE {
        frame[15] = class | ECN_MARKED;
        // Updates the header checksum accordingly (RFC 1624).
        let sum = u16::from_be_bytes([frame[24], frame[25]]);
        let (old, new) = (u16::from(class), u16::from(class | ECN_MARKED));
        let changed = u32::from(!sum) + u32::from(!old) + u32::from(new);
        let folded = (changed & 0xffff) + (changed >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        frame[24..26].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    }
}
