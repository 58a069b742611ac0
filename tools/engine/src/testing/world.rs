// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Guests, their devices, and the fabric between them.

use super::{
    guest::{Cq, Guest, Mr, Qp, QpOptions, full_rights},
    memory::{GuestView, Memories},
};
use crate::{
    cause::Cause,
    device::Rnic,
    psn::Psn,
    recording::Player,
    resources::Io,
    rnic::RnicConfig,
    segment::{
        Body, Damage, ECN_CAPABLE, ECN_MARKED, ECN_MASK, Outbox, Path, Payload, Segment, Service,
        Touched,
    },
    subnet::HcaPort,
    time::Instant,
    turn::Budget,
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::{collections::BTreeMap, time::Duration};
use vrnic_wire::{
    command::{
        ContextKind, ModifyQp, ModifyQpPaths, QpPaths, QueryQp, QueryQpPaths, SetGid, Status,
    },
    memory::access,
    port::{GidEntry, GidType, Mtu, NO_VLAN, PortState, SubnetPort},
    qp::{AlternatePath, QpAttributes, QpState, QpType, attribute},
    work::AddressVector,
};

/// Returns the GID of the device of guest `index`: an IPv4 address.
pub fn gid_of(index: usize) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xff);
    gid[12..].copy_from_slice(&[10, 0, 0, index as u8 + 1]);
    gid
}

/// Returns the base LID of the device of guest `index` on a subnet. The device has 4 LIDs.
pub const fn lid_of(index: usize) -> u16 {
    4 * (index as u16 + 1)
}

/// Returns the port of the device of guest `index` on a working subnet. It is a full member of the default partition
/// and of partition 1, and a limited member of partition 2.
pub fn hca_port_of(index: usize) -> HcaPort {
    HcaPort {
        state: PortState::Active,
        speed: 32,
        subnet: SubnetPort {
            gid_prefix: (0xfe80 << 48).into(),
            lid: lid_of(index).into(),
            lmc: 2,
            sm_lid: lid_of(0).into(),
            physical_state: 5,
            ..SubnetPort::default()
        },
        pkeys: vec![0xffff, 0x8001, 2, 0],
        guids: vec![
            0x0200_0000_0000_0001 + ((index as u64) << 8),
            0,
            77 + ((index as u64) << 8),
        ],
        ..HcaPort::default()
    }
}

/// Error rates of the fabric, each in units of 1/1024.
#[derive(Copy, Clone, Debug, Default)]
pub struct Faults {
    /// Segments that are lost.
    pub drop: u32,
    /// Segments that arrive twice.
    pub duplicate: u32,
    /// Segments that are delayed, so that others overtake them.
    pub delay: u32,
    /// Segments that a switch marks because of congestion, if they are ECN-capable.
    pub mark: u32,
    /// Frames in which a bit is changed. Segments that do not travel as frames are not affected.
    pub damage: u32,
}

impl Faults {
    /// Returns whether there are no errors.
    fn are_none(self) -> bool {
        self.drop + self.duplicate + self.delay + self.mark + self.damage == 0
    }
}

/// Conversion between segments and frames.
#[derive(Copy, Clone, Debug)]
pub struct Wire {
    /// Makes the frame of a segment.
    pub encode: fn(&Segment<'_>, &GuestView) -> Vec<u8>,
    /// Parses a frame; `None` if it is damaged.
    pub parse: for<'a> fn(&'a [u8]) -> Option<Segment<'a>>,
}

/// A line that delays everything that goes to a node.
#[derive(Copy, Clone, Debug)]
pub struct Line {
    /// Its bandwidth.
    pub bytes_per_s: u64,
    /// Latency that is added to the transmission time.
    pub delay: Duration,
    /// Largest number of bytes that wait for the line; more are lost.
    pub queue: u64,
}

/// Something that travels.
#[derive(Clone, Debug)]
enum Parcel {
    Segment(Segment<'static>),
    Frame(Vec<u8>),
}

/// A guest and its device.
#[derive(Debug)]
pub struct Node {
    /// The device.
    pub rnic: Rnic,
    /// The guest.
    pub guest: Guest,
}

/// The world: guests, devices and fabric.
#[derive(Debug)]
pub struct World {
    /// Guests and devices.
    pub nodes: Vec<Node>,
    /// Current time.
    pub now: Instant,
    /// Error rates of the fabric.
    pub faults: Faults,
    /// Memory of all guests.
    pub memories: Memories,
    /// Number of delivered segments.
    pub delivered: u64,
    /// If set, the only segments that are not lost are those that this accepts.
    pub filter: Option<fn(&Segment) -> bool>,
    /// How segments travel as frames, if they do.
    pub wire: Option<Wire>,
    /// The line to each node; `None` if there is no delay.
    pub line: Option<Line>,
    /// Largest delay of delayed segments.
    pub lateness: Duration,
    /// When the line to each node becomes free.
    busy: Vec<Instant>,
    /// Longest time to make memory persistent; `None` if that never happens.
    pub sync_time: Option<Duration>,
    /// When the devices are told that it has happened.
    synced: Vec<Option<Instant>>,
    random: ChaCha8Rng,
    outbox: Outbox,
    /// Parcels by arrival time and the order in which they were sent.
    travelling: BTreeMap<(Instant, u64), Parcel>,
    sent: u64,
    /// Number of steps so far.
    steps: u64,
    /// Number of steps at which the next device is recorded anew.
    next_cut: u64,
    /// Number of packets that faults withheld since [`watch`](Self::watch) was called.
    pub withheld: u64,
    /// Whether recordings are cut into many, each of which begins with a state.
    cuts: bool,
}

/// A connected queue pair of each of two nodes, with completion queues and a region.
#[derive(Debug)]
pub struct Connection {
    /// Nodes.
    pub nodes: [usize; 2],
    /// Queue pairs.
    pub qps: [Qp; 2],
    /// Completion queues of sends.
    pub send_cqs: [Cq; 2],
    /// Completion queues of receives.
    pub recv_cqs: [Cq; 2],
    /// Regions with all rights.
    pub mrs: [Mr; 2],
}

/// Environment variable with which every world is recorded and replayed.
const REPLAY: &str = "VRNIC_REPLAY";

/// Number of steps until a device is recorded anew. After that, the interval grows by an eighth of all steps.
const STEPS: u64 = 13;

impl Drop for World {
    /// Replays what was recorded, unless the test is failing.
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        (0..self.nodes.len()).for_each(|node| self.end_recording(node));
    }
}

impl World {
    /// Creates `count` guests with `pages` pages each. All devices have the configuration `config`, except for their
    /// seeds.
    pub fn new(count: usize, pages: usize, config: &RnicConfig, seed: u64) -> Self {
        Self::of(&vec![config.clone(); count], pages, seed)
    }

    /// Creates a guest with `pages` pages for each configuration, which its device gets with another seed.
    pub fn of(configs: &[RnicConfig], pages: usize, seed: u64) -> Self {
        if std::env::var_os(REPLAY).is_some() {
            let mut world = Self::recorded(configs, pages, seed);
            world.cuts = true;
            return world;
        }
        Self::build(configs, pages, seed, |config, _| Rnic::new(config))
    }

    /// Does the same as [`of`](Self::of), with devices that are recorded from the beginning. The name of each is its
    /// index. When the world ends, every recording has to replay.
    pub fn recorded(configs: &[RnicConfig], pages: usize, seed: u64) -> Self {
        Self::build(configs, pages, seed, |config, index| {
            Rnic::recorded(config, &index.to_string(), u64::MAX)
        })
    }

    /// Makes packets that faults withhold visible from now on, as captures do.
    pub fn watch(&mut self) {
        self.outbox.watched = true;
    }

    /// Ends and returns the recordings of all devices.
    pub fn recordings(&mut self) -> Vec<Vec<u8>> {
        let recorders = self
            .nodes
            .iter_mut()
            .filter_map(|node| node.rnic.take_recorder());
        recorders
            .map(|mut recorder| {
                recorder.end("stopped");
                recorder.take()
            })
            .collect()
    }

    /// Ends the recording of a device, if it has one. The replay must end in the same state.
    fn end_recording(&mut self, node: usize) {
        let rnic = &mut self.nodes[node].rnic;
        let Some(mut recorder) = rnic.take_recorder() else {
            return;
        };
        recorder.end("stopped");
        let recording = recorder.take();
        let mut player = Player::new(&recording).expect("recording");
        while let Some(step) = player.next() {
            if let Err(why) = step {
                panic!("device {node}: {why}");
            }
        }
        let replayed = player.rnic().state(usize::MAX);
        assert_eq!(replayed, rnic.state(usize::MAX), "device {node}");
    }

    /// From time to time, starts a new recording of one of the devices, which begins with its state.
    fn cut_recordings(&mut self) {
        self.steps += 1;
        if self.steps < self.next_cut {
            return;
        }
        self.next_cut = self.steps + STEPS + self.steps / 8;
        let node = self.steps as usize % self.nodes.len();
        if self.nodes[node].rnic.recorder().is_some() {
            self.end_recording(node);
            self.nodes[node].rnic.record(&node.to_string(), u64::MAX);
        }
    }

    fn build(
        configs: &[RnicConfig],
        pages: usize,
        seed: u64,
        make: impl Fn(RnicConfig, usize) -> Rnic,
    ) -> Self {
        let memories = Memories::new();
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let count = configs.len();
        let nodes = (0..count)
            .map(|index| {
                let mut config = configs[index].clone();
                random.fill_bytes(&mut config.seed);
                let mut rnic = make(config, index);
                let view = memories.add(pages * 4096);
                let mut guest = Guest::new(view, pages, random.next_u64());
                guest.start(&mut rnic, ContextKind::Kernel, 1024);
                if rnic.is_on_subnet() {
                    rnic.set_hca_port(hca_port_of(index), false);
                    return Node { rnic, guest };
                }
                let request = SetGid {
                    index: 0.into(),
                    reserved: 0.into(),
                    entry: GidEntry {
                        gid: gid_of(index),
                        mac: [2, 0, 0, 0, 0, index as u8],
                        vlan: NO_VLAN.into(),
                        gid_type: GidType::RoceV2.raw(),
                        reserved: [0; 7],
                    },
                };
                guest.command(&mut rnic, request).expect("gid");
                Node { rnic, guest }
            })
            .collect();
        Self {
            nodes,
            now: Instant::from_nanos(1),
            faults: Faults::default(),
            memories,
            delivered: 0,
            filter: None,
            sync_time: Some(Duration::from_micros(100)),
            synced: vec![None; count],
            wire: None,
            line: None,
            lateness: Duration::from_micros(20),
            busy: vec![Instant::default(); count],
            random,
            outbox: Outbox::new(),
            travelling: BTreeMap::new(),
            sent: 0,
            steps: 0,
            next_cut: STEPS,
            withheld: 0,
            cuts: false,
        }
    }

    /// Creates two guests with default devices.
    pub fn pair(seed: u64) -> Self {
        Self::new(2, 2048, &RnicConfig::default(), seed)
    }

    /// Modifies a queue pair.
    pub fn modify(&mut self, node: usize, qpn: u32, attributes: QpAttributes) {
        let node = &mut self.nodes[node];
        let request = ModifyQp {
            qpn: qpn.into(),
            reserved: 0.into(),
            attributes,
        };
        node.guest.command(&mut node.rnic, request).expect("modify");
    }

    /// Modifies a queue pair with an alternate path.
    pub fn modify_paths(
        &mut self,
        node: usize,
        qpn: u32,
        attributes: QpAttributes,
        alternate: AlternatePath,
    ) -> Result<(), (Status, Cause)> {
        let node = &mut self.nodes[node];
        let request = ModifyQpPaths {
            qpn: qpn.into(),
            reserved: 0.into(),
            attributes,
            alternate,
        };
        node.guest.command(&mut node.rnic, request).map(|_| ())
    }

    /// Returns attributes and alternate path of a queue pair.
    pub fn paths(&mut self, node: usize, qpn: u32) -> QpPaths {
        let node = &mut self.nodes[node];
        let request = QueryQpPaths {
            qpn: qpn.into(),
            ..Default::default()
        };
        node.guest.command(&mut node.rnic, request).expect("query")
    }

    /// Returns the state of a queue pair.
    pub fn state(&mut self, node: usize, qpn: u32) -> QpState {
        let node = &mut self.nodes[node];
        let request = QueryQp {
            qpn: qpn.into(),
            ..Default::default()
        };
        let attributes = node.guest.command(&mut node.rnic, request).expect("query");
        QpState::try_from(attributes.state).expect("state")
    }

    /// Returns the attributes of reliable connections in tests.
    pub fn attributes(peer: usize, dest_qpn: u32) -> QpAttributes {
        QpAttributes {
            path_mtu: Mtu::Mtu1024.raw(),
            rq_psn: 0xff_fff0.into(),
            sq_psn: 0xff_fff0.into(),
            dest_qpn: dest_qpn.into(),
            access: access::QUEUE_PAIR.into(),
            port: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 8,
            retry_count: 7,
            rnr_retry: 7,
            address: AddressVector {
                dgid: gid_of(peer),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    /// Takes a queue pair from reset to ready to send with these attributes.
    pub fn bring_up(&mut self, node: usize, qpn: u32, attributes: QpAttributes, qp_type: QpType) {
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        self.climb(node, qpn, attributes, qp_type, &states);
    }

    /// Returns the attributes, other than the state, that queue pairs of a type need to become INIT, ready to receive
    /// and ready to send.
    pub fn masks(qp_type: QpType) -> [u32; 3] {
        use attribute::{
            ACCESS_FLAGS, ADDRESS_VECTOR, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_RD_ATOMIC,
            MIN_RNR_TIMER, PATH_MTU, PKEY_INDEX, PORT, QKEY, RETRY_COUNT, RNR_RETRY, RQ_PSN,
            SQ_PSN, TIMEOUT,
        };
        match qp_type {
            QpType::ReliableConnection => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ],
            QpType::UnreliableConnection => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN,
                SQ_PSN,
            ],
            QpType::XrcInitiator => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN,
                TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ],
            QpType::XrcTarget => [
                PKEY_INDEX | PORT | ACCESS_FLAGS,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
                TIMEOUT | SQ_PSN,
            ],
            QpType::Smi | QpType::Gsi => [PKEY_INDEX | QKEY, 0, SQ_PSN],
            QpType::UnreliableDatagram => [PKEY_INDEX | PORT | QKEY, 0, SQ_PSN],
            QpType::RawPacket => [PORT, 0, 0],
            QpType::ReceiveQueue | QpType::ReceiveScaling => [0, 0, 0],
        }
    }

    /// Moves a queue pair through some of the states from reset to ready to send.
    pub fn climb(
        &mut self,
        node: usize,
        qpn: u32,
        attributes: QpAttributes,
        qp_type: QpType,
        states: &[QpState],
    ) {
        let masks = Self::masks(qp_type);
        for &state in states {
            let mask = match state {
                QpState::Init => masks[0],
                QpState::ReadyToReceive => masks[1],
                _ => masks[2],
            };
            let wanted = QpAttributes {
                state: state.raw(),
                mask: (mask | attribute::STATE).into(),
                ..attributes
            };
            self.modify(node, qpn, wanted);
        }
    }

    /// Connects a new queue pair of one node with one of another or the same node. `change` may change the attributes
    /// of both.
    pub fn connect(
        &mut self,
        nodes: [usize; 2],
        options: &QpOptions,
        mr_length: usize,
        change: impl Fn(usize, &mut QpAttributes),
    ) -> Connection {
        let sides = nodes.map(|index| {
            let Node { rnic, guest } = &mut self.nodes[index];
            let send_cq = guest.cq(rnic, options.entries * 2, 0);
            let recv_cq = guest.cq(rnic, options.entries * 2, 1);
            let qp = guest
                .try_qp(rnic, options, send_cq.cqn, recv_cq.cqn)
                .expect("qp");
            let mr = guest.full_mr(rnic, mr_length);
            (qp, send_cq, recv_cq, mr)
        });
        for side in 0..2 {
            let peer = &sides[1 - side].0;
            let mut attributes = Self::attributes(nodes[1 - side], peer.qpn);
            attributes.access = full_rights(&self.nodes[nodes[side]].rnic).into();
            change(side, &mut attributes);
            let qpn = sides[side].0.qpn;
            self.bring_up(nodes[side], qpn, attributes, options.qp_type);
        }
        let [a, b] = sides;
        Connection {
            nodes,
            qps: [a.0, b.0],
            send_cqs: [a.1, b.1],
            recv_cqs: [a.2, b.2],
            mrs: [a.3, b.3],
        }
    }

    /// Gives every device one turn, and delivers what arrives now. Returns whether anything happened.
    pub fn step(&mut self) -> bool {
        let mut worked = false;
        if self.cuts {
            self.cut_recordings();
        }
        self.sync();
        for node in &mut self.nodes {
            let mut io = Io {
                memory: &node.guest.view,
                now: self.now,
                outbox: &mut self.outbox,
            };
            if node.rnic.next_deadline().is_some_and(|at| at <= self.now) {
                node.rnic.advance(&mut io);
            }
            worked |= node.rnic.poll(Budget::units(16), &mut io);
        }
        self.outbox.reveal();
        let mut sent = std::mem::take(&mut self.outbox.segments);
        for segment in sent.drain(..) {
            worked = true;
            if segment.touched.withheld {
                self.withheld += 1;
                self.outbox.recycle(segment.payload);
                continue;
            }
            if self.filter.is_none_or(|accepts| accepts(&segment)) {
                self.send(segment);
            }
        }
        // Segments that were sent in response go next.
        sent.append(&mut self.outbox.segments);
        self.outbox.segments = sent;
        while let Some(first) = self.travelling.first_entry()
            && first.key().0 <= self.now
        {
            let parcel = first.remove();
            self.arrive(parcel);
            worked = true;
        }
        worked
    }

    /// Makes memory persistent after the time that it takes.
    fn sync(&mut self) {
        let Some(limit) = self.sync_time else {
            return;
        };
        for index in 0..self.nodes.len() {
            if self.synced[index].is_some_and(|at| at <= self.now) {
                self.synced[index] = None;
                self.nodes[index].rnic.synced(true);
            }
            if self.nodes[index].rnic.next_sync().is_some() {
                let delay = self.delay(limit.as_nanos() as u32 + 1);
                self.synced[index] = Some(self.now + delay);
            }
        }
    }

    /// Sends a segment, subject to the error rates.
    fn send(&mut self, mut segment: Segment<'static>) {
        if segment.touched.damage.is_some() {
            return self.damage(&segment);
        }
        let faults = self.faults;
        let view = self.nodes[0].guest.view.clone();
        let timed = self.wire.is_some() || self.line.is_some();
        if !timed && faults.are_none() && self.travelling.is_empty() {
            return self.deliver(segment);
        }
        let mut hit = |parts| self.random.next_u32() % 1024 < parts;
        let (lost, twice, late) = (hit(faults.drop), hit(faults.duplicate), hit(faults.delay));
        let class = &mut segment.path.traffic_class;
        if hit(faults.mark) && *class & ECN_MASK == ECN_CAPABLE {
            *class |= ECN_MARKED;
        }
        let damaged = hit(faults.damage);
        let Some(passage) = self.pass_line(&segment) else {
            return self.outbox.recycle(segment.payload);
        };
        let parcel = match self.wire {
            Some(wire) => {
                let mut frame = (wire.encode)(&segment, &view);
                if damaged {
                    let bit = self.random.next_u32() as usize % (frame.len() * 8);
                    frame[bit / 8] ^= 1 << (bit % 8);
                }
                self.outbox.recycle(segment.payload);
                Parcel::Frame(frame)
            }
            None if segment.detach(&view).is_err() => return,
            None => Parcel::Segment(segment),
        };
        if lost {
            return;
        }
        if twice {
            let delay = passage + self.delay(200_000);
            self.travel(delay, parcel.clone());
        }
        let late = if late {
            self.delay(self.lateness.as_nanos() as u32)
        } else {
            Duration::ZERO
        };
        self.travel(passage + late, parcel);
    }

    /// Makes a parcel arrive after this time.
    fn travel(&mut self, time: Duration, parcel: Parcel) {
        self.sent += 1;
        self.travelling.insert((self.now + time, self.sent), parcel);
    }

    /// Returns how long a segment takes on the line; `None` if the queue is full.
    fn pass_line(&mut self, segment: &Segment<'_>) -> Option<Duration> {
        /// Bytes of headers.
        const OVERHEAD: u64 = 78;
        let Some(line) = self.line else {
            return Some(Duration::ZERO);
        };
        let destination = &segment.path.destination;
        let mut nodes = self.nodes.iter();
        let node = nodes.position(|node| node.rnic.has_gid(destination))?;
        let time = |bytes| Duration::from_nanos(bytes * 1_000_000_000 / line.bytes_per_s);
        let waits = self.busy[node] - self.now;
        if waits > time(line.queue) {
            return None;
        }
        let passed = waits + time(segment.payload.len() + OVERHEAD);
        self.busy[node] = self.now + passed;
        Some(passed + line.delay)
    }

    /// Handles a frame that arrives damaged: its receiver counts it.
    fn damage(&mut self, segment: &Segment<'static>) {
        let destination = segment.path.destination;
        let mut nodes = self.nodes.iter_mut();
        if let Some(node) = nodes.find(|node| node.rnic.has_gid(&destination)) {
            let wrong_crc = segment.touched.damage == Some(Damage::Icrc);
            node.rnic.count_bad_packet(wrong_crc);
        }
    }

    /// Returns a random time of less than this number of nanoseconds.
    fn delay(&mut self, limit: u32) -> Duration {
        Duration::from_nanos(u64::from(self.random.next_u32() % limit))
    }

    /// Handles a parcel that arrives.
    fn arrive(&mut self, parcel: Parcel) {
        match (parcel, self.wire) {
            (Parcel::Segment(segment), _) => self.deliver(segment),
            (Parcel::Frame(frame), Some(wire)) => {
                if let Some(segment) = (wire.parse)(&frame) {
                    self.deliver(segment);
                }
            }
            (Parcel::Frame(_), None) => {}
        }
    }

    /// Delivers a segment to the device that has its GID, or to all. A frame passes all ports.
    pub fn deliver(&mut self, segment: Segment) {
        if let (Body::Frame { .. }, Payload::Bytes(frame)) = (segment.body, &segment.payload) {
            for node in &mut self.nodes {
                let mut io = Io {
                    memory: &node.guest.view,
                    now: self.now,
                    outbox: &mut self.outbox,
                };
                node.rnic.receive_frame(frame, &mut io);
            }
            self.delivered += 1;
            return self.outbox.recycle(segment.payload);
        }
        let destination = segment.path.destination;
        if segment.path.is_multicast() {
            for node in &mut self.nodes {
                let mut io = Io {
                    memory: &node.guest.view,
                    now: self.now,
                    outbox: &mut self.outbox,
                };
                node.rnic.receive(segment.clone(), &mut io);
            }
            self.delivered += 1;
            return self.outbox.recycle(segment.payload);
        }
        let lids = segment.path.lids;
        let found = self.nodes.iter_mut().find(|node| match lids {
            Some(lids) => node.rnic.has_lid(lids.destination),
            None => node.rnic.has_gid(&destination),
        });
        if let Some(node) = found {
            let mut io = Io {
                memory: &node.guest.view,
                now: self.now,
                outbox: &mut self.outbox,
            };
            node.rnic.receive(segment, &mut io);
            self.delivered += 1;
        }
    }

    /// Runs until nothing happens any more, or for this time.
    pub fn run(&mut self, limit: Duration) {
        let end = self.now + limit;
        // A device that still works at that time will never stop.
        let never = end + Duration::from_secs(1);
        loop {
            while self.step() {
                self.now = self.now + Duration::from_nanos(200);
                if self.now > never {
                    return;
                }
            }
            let mut awake = false;
            for node in &mut self.nodes {
                let mut io = Io {
                    memory: &node.guest.view,
                    now: self.now,
                    outbox: &mut self.outbox,
                };
                awake |= node.rnic.prepare_sleep(&mut io);
            }
            if awake {
                // A device that a fault keeps from working stays awake, and time passes.
                self.now = self.now + Duration::from_nanos(200);
                if self.now > never {
                    return;
                }
                continue;
            }
            let timers = self
                .nodes
                .iter()
                .filter_map(|node| node.rnic.next_deadline());
            let arrivals = self.travelling.keys().next().map(|(at, _)| *at);
            let syncs = self.synced.iter().flatten().copied();
            match timers.chain(arrivals).chain(syncs).min() {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => return,
            }
        }
    }

    /// Returns whether nothing is travelling and no device waits for a time.
    pub fn is_idle(&self) -> bool {
        let waits = |node: &Node| node.rnic.next_deadline().is_some();
        let syncs = self.synced.iter().any(Option::is_some);
        self.travelling.is_empty() && !syncs && !self.nodes.iter().any(waits)
    }

    /// Runs until nothing happens any more, or for a virtual minute.
    pub fn settle(&mut self) {
        self.run(Duration::from_secs(60));
    }
}

impl Connection {
    /// Posts a send at one side.
    pub fn send(&mut self, world: &mut World, side: usize, send: &super::Send) {
        let node = &mut world.nodes[self.nodes[side]];
        let posted = node
            .guest
            .post_send(&mut node.rnic, &mut self.qps[side], send);
        assert!(posted, "send queue is full");
    }

    /// Posts a receive at one side.
    pub fn receive(
        &mut self,
        world: &mut World,
        side: usize,
        wr_id: u64,
        sges: &[vrnic_wire::work::Sge],
    ) {
        let node = &mut world.nodes[self.nodes[side]];
        let posted = node
            .guest
            .post_receive(&mut node.rnic, &mut self.qps[side], wr_id, sges);
        assert!(posted, "receive queue is full");
    }

    /// Returns a packet that the queue pair of one side could send to that of the other.
    pub fn packet(
        &self,
        side: usize,
        psn: u32,
        body: Body,
        payload: Payload<'static>,
    ) -> Segment<'static> {
        Segment {
            path: Path {
                source: gid_of(self.nodes[side]),
                destination: gid_of(self.nodes[1 - side]),
                ..Path::default()
            },
            source_qpn: self.qps[side].qpn,
            destination_qpn: self.qps[1 - side].qpn,
            pkey: 0xffff,
            psn: Psn::new(psn),
            solicited: false,
            ack_request: true,
            migrated: true,
            service: Service::Reliable,
            body,
            payload,
            checksums_ok: false,
            touched: Touched::NOT,
        }
    }
}
