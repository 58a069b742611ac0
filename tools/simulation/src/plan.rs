// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is simulated: everything that chance decides beforehand. A plan follows from its seed, and parts of it can be
//! left out.

use crate::{
    fault::{self, FaultPlan},
    random::Random,
};
use std::{fmt, time::Duration};
use vrnic_engine::{Budget, Recovery};
use vrnic_wire::{completion::Status, port::Mtu, qp::QpType};

/// Most devices of a simulation.
pub const MOST_DEVICES: usize = 30;
/// Completion queues of a device.
pub const CQS: usize = 3;
/// That of receives of extended connections.
pub const XRC_CQ: usize = 0;
/// Longest message to a shared receive queue.
pub const SHARED_SLOT: usize = 2048;

/// A line: what happens to what passes it. Probabilities are in parts of 65536.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePlan {
    /// Its bandwidth in bytes per second.
    pub rate: u64,
    /// Time that each bit takes.
    pub delay: Duration,
    /// Longest time for which a frame waits for the line; it is lost if it had to wait longer.
    pub queue: Duration,
    /// Lost.
    pub loss: u32,
    /// Comes twice.
    pub duplicate: u32,
    /// Comes later than what was sent after it.
    pub late: u32,
    /// By how much, at most.
    pub lateness: Duration,
    /// A bit changes.
    pub damage: u32,
    /// Marked as congested.
    pub mark: u32,
}

impl LinePlan {
    fn new(random: &mut Random) -> Self {
        Self {
            rate: random.pick(&[125_000_000, 1_250_000_000, 12_500_000_000]),
            delay: random.time(Duration::from_micros(200)),
            queue: random.pick(&[Duration::from_millis(1), Duration::from_millis(50)]),
            loss: 0,
            duplicate: 0,
            late: 0,
            lateness: Duration::ZERO,
            damage: 0,
            mark: 0,
        }
    }

    /// Lets everything through. Whether it did not before.
    pub fn make_good(&mut self) -> bool {
        let before = self.clone();
        self.loss = 0;
        self.duplicate = 0;
        self.late = 0;
        self.damage = 0;
        self.mark = 0;
        *self != before
    }

    fn make_bad(&mut self, random: &mut Random) {
        let mut some = |most| {
            if random.one_in(2) {
                random.magnitude(most) as u32
            } else {
                0
            }
        };
        self.loss = some(4000);
        self.duplicate = some(4000);
        self.late = some(8000);
        self.damage = some(2000);
        self.mark = some(30_000);
        self.lateness = random.time(Duration::from_millis(2));
        if random.one_in(4) {
            self.rate = 12_500_000;
        }
    }
}

/// A device.
#[derive(Clone, Debug)]
pub struct DevicePlan {
    /// Its switch.
    pub switch: usize,
    /// The lines from and to the switch.
    pub lines: [LinePlan; 2],
    /// How it makes up for loss.
    pub recovery: Recovery,
    /// Longest time that it waits for a processor.
    pub jitter: Duration,
    /// How much it does in a turn.
    pub budget: Budget,
    /// Which completion queues raise events; the others are polled.
    pub events: [bool; CQS],
}

/// A turn of that many units, which are short or long.
fn turn(units: u32) -> Budget {
    Budget {
        units,
        bytes: u64::from(units) * 1024,
    }
}

/// What a request asks for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    Send,
    /// With immediate data.
    SendImmediate,
    /// Which invalidates the window that the peer gave, once.
    SendInvalidate,
    /// A write to the region of the peer, or to the window that it gave.
    Write,
    /// With immediate data.
    WriteImmediate,
    /// A read.
    Read,
    /// Adds 1 to a word of the peer.
    Add,
    /// Makes it one more by comparing and swapping.
    Swap,
    /// Makes it one more by writing it.
    AtomicWrite,
    /// A flush of what was written.
    Flush,
    /// Binds a window that nobody uses, or frees it again.
    Bind,
    /// A request that has to fail.
    Wrong(Wrong),
}

/// What is wrong with a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A remote key that was never given.
    RemoteKey,
    /// The key of a window that was given, and invalidated since.
    StaleKey,
    /// Remote memory that ends before the request does.
    RemoteBounds,
    /// A local key that was never given.
    LocalKey,
}

impl Wrong {
    /// How the request ends.
    pub fn status(self) -> Status {
        match self {
            Self::LocalKey => Status::LocalProtection,
            Self::RemoteKey | Self::StaleKey | Self::RemoteBounds => Status::RemoteAccess,
        }
    }
}

impl Kind {
    /// Whether it consumes a receive of the peer.
    pub fn takes_receive(self) -> bool {
        matches!(
            self,
            Self::Send | Self::SendImmediate | Self::SendInvalidate | Self::WriteImmediate
        )
    }
}

/// A request.
#[derive(Copy, Clone)]
pub struct Op {
    /// What.
    pub kind: Kind,
    /// Bytes.
    pub length: usize,
    /// Elements of the local memory.
    pub elements: usize,
    /// Whether it completes with a CQE.
    pub signaled: bool,
    /// Whether it waits for reads and atomics before it.
    pub fence: bool,
    /// Whether the peer is to be woken.
    pub solicited: bool,
    /// Whether the bytes are in the request.
    pub inline: bool,
    /// Whether it names the window of the peer.
    pub window: bool,
    /// Time before it is posted.
    pub pause: Duration,
}

impl fmt::Debug for Op {
    /// In one line, as there are many of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.kind, self.length)?;
        for (is, name) in [
            (!self.signaled, "unsignaled"),
            (self.fence, "fence"),
            (self.inline, "inline"),
            (self.window, "window"),
        ] {
            if is {
                write!(f, " {name}")?;
            }
        }
        write!(f, " after {:?}", self.pause)
    }
}

/// What somebody does to one end of a flow before it is over.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Takes the queue pair to the error state.
    Error,
    /// Destroys the queue pair.
    Destroy,
    /// Deregisters the region.
    Deregister,
}

/// How the pages of a region that is paged on demand come and go.
#[derive(Clone, Debug)]
pub struct PagingPlan {
    /// Longest time that the driver takes to answer a page fault.
    pub slowness: Duration,
    /// When it takes some pages back, counted from the start of the flow.
    pub reclaims: Vec<Duration>,
    /// From when on there are no pages from that part of the region on, in parts of 65536.
    pub hole: Option<(Duration, u32)>,
}

/// How an end gives its peer the right to its memory for a while.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// It binds a memory window.
    Window,
    /// It registers a region by a request, as in-kernel programs do.
    FastRegistration,
}

/// Two queue pairs that talk to each other, and what each end asks for.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Names it in requests, also when other flows are left out.
    pub number: usize,
    /// Type of the queue pairs. That of the first end; the second of an extended connection is its target.
    pub qp_type: QpType,
    /// Devices.
    pub ends: [usize; 2],
    /// When it begins.
    pub start: Duration,
    /// Longest message.
    pub slot: usize,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN of each end.
    pub psns: [u32; 2],
    /// Completion queues of sends and of receives, at each end.
    pub cqs: [[usize; 2]; 2],
    /// Whether an end takes receives from the shared receive queue of its device.
    pub shared: [bool; 2],
    /// What an end gives its peer besides the key of its region.
    pub windows: [Option<WindowKind>; 2],
    /// What it binds and frees for itself, if it does.
    pub scratch: WindowKind,
    /// Whether the region of an end is paged on demand.
    pub paging: [Option<PagingPlan>; 2],
    /// Whether all requests complete with a CQE.
    pub signal_all: bool,
    /// Exponent of the timeout, and retries.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retries: u8,
    /// How late half of the receives are posted.
    pub late_receives: Option<Duration>,
    /// Reads and atomics under way.
    pub reads: u8,
    /// Requests of each end.
    pub ops: [Vec<Op>; 2],
    /// What happens to an end, and when.
    pub deed: Option<(Deed, usize, Duration)>,
}

impl FlowPlan {
    /// When nothing of it can be under way any more.
    pub fn stop(&self) -> Duration {
        let posts = self
            .ops
            .iter()
            .map(|ops| ops.iter().map(|op| op.pause).sum::<Duration>());
        let last = posts.max().unwrap_or_default();
        let late = self.late_receives.unwrap_or_default();
        let deed = self.deed.map_or(Duration::ZERO, |(_, _, after)| after);
        self.start + last.max(late).max(deed) + Self::PATIENCE
    }

    /// Far more than all retries and faults together take.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// From the stop to the end, for flushing.
    pub const CLOSING: Duration = Duration::from_secs(1);

    /// Whether requests are acknowledged.
    pub fn is_reliable(&self) -> bool {
        matches!(
            self.qp_type,
            QpType::ReliableConnection | QpType::XrcInitiator
        )
    }

    /// Type of the queue pair of an end.
    pub fn type_of(&self, side: usize) -> QpType {
        match self.qp_type {
            QpType::XrcInitiator if side == 1 => QpType::XrcTarget,
            other => other,
        }
    }

    /// Makes it one of another kind, or not.
    fn vary(&mut self, random: &mut Random) {
        let kind =
            |random: &mut Random| random.pick(&[WindowKind::Window, WindowKind::FastRegistration]);
        self.scratch = kind(random);
        for window in self.windows.iter_mut().flatten() {
            *window = kind(random);
        }
        if self.qp_type == QpType::ReliableConnection
            && self.slot <= SHARED_SLOT
            && random.one_in(5)
        {
            self.qp_type = QpType::XrcInitiator;
            self.windows = [None, None];
            self.shared = [false, true];
            self.late_receives = None;
            self.cqs[1][1] = XRC_CQ;
            self.ops[1].clear();
        }
        if random.one_in(5) {
            for side in 0..2 {
                // Windows and page lists are of pages that stay where they are.
                let stays = self.windows[side].is_some()
                    || self.ops[side].iter().any(|op| op.kind == Kind::Bind);
                if !stays && random.one_in(2) {
                    let most = random.pick(&[
                        Duration::from_micros(200),
                        Duration::from_millis(20),
                        Duration::from_secs(3),
                    ]);
                    let count = random.below(4);
                    self.paging[side] = Some(PagingPlan {
                        slowness: random.time(most),
                        reclaims: (0..count)
                            .map(|_| random.time(Duration::from_millis(20)))
                            .collect(),
                        hole: random.one_in(4).then(|| {
                            let at = random.time(Duration::from_millis(5));
                            (at, random.below(65536) as u32)
                        }),
                    });
                }
            }
        }
    }

    /// Receives that end `side` needs.
    pub fn receives(&self, side: usize) -> usize {
        let takes = |op: &&Op| op.kind.takes_receive();
        self.ops[1 - side].iter().filter(takes).count()
    }
}

/// How a device loses all that it has.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is reset.
    Reset,
    /// It stands still, and is reset after that time.
    Stuck(Duration),
    /// It says that it needs a reset, and has it after that time.
    Failed(Duration),
    /// It panics, and is reset after that time.
    Panicked(Duration),
    /// It is removed by surprise, and does not come back.
    Removed,
}

/// A device loses all that it has.
#[derive(Copy, Clone, Debug)]
pub struct Reset {
    /// Which.
    pub device: usize,
    /// When.
    pub at: Duration,
    /// How.
    pub loss: Loss,
}

/// A port of a switch is down for a while, or all are: then the switch starts anew.
#[derive(Copy, Clone, Debug)]
pub struct Outage {
    /// Which switch.
    pub switch: usize,
    /// Number of the port, if there is one of that number.
    pub port: Option<usize>,
    /// When.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
}

/// Queue pairs that send datagrams to a multicast group in which they all are.
#[derive(Clone, Debug)]
pub struct CirclePlan {
    /// Names it in requests, also when others are left out.
    pub number: usize,
    /// Device of each member.
    pub members: Vec<usize>,
    /// When it begins.
    pub start: Duration,
    /// Who sends how many bytes, after how long.
    pub sends: Vec<(usize, usize, Duration)>,
}

impl CirclePlan {
    /// Most bytes of a message.
    pub const SLOT: usize = 512;
    /// Completion queues of sends and of receives.
    pub const CQS: [usize; 2] = [1, 2];

    /// When nothing of it can be under way any more.
    pub fn stop(&self) -> Duration {
        let sends = self.sends.iter().map(|(_, _, after)| *after);
        self.start + sends.max().unwrap_or_default() + FlowPlan::PATIENCE
    }
}

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where it comes from.
    pub seed: u64,
    /// Switches that frames pass; 0 if segments travel without frames.
    pub switches: usize,
    /// Between switches.
    pub trunk: LinePlan,
    /// Devices.
    pub devices: Vec<DevicePlan>,
    /// Queue pairs, two by two.
    pub flows: Vec<FlowPlan>,
    /// Faults of devices.
    pub faults: Vec<FaultPlan>,
    /// Resets, and worse.
    pub resets: Vec<Reset>,
    /// Faults of switches.
    pub outages: Vec<Outage>,
    /// Multicast groups.
    pub circles: Vec<CirclePlan>,
}

impl Plan {
    /// The plan of a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let (devices, flows) = match random.below(32) {
            0 => (random.between(12, MOST_DEVICES), random.between(60, 200)),
            1..9 => (random.between(4, 12), random.between(6, 30)),
            _ => (random.between(2, 5), random.between(1, 8)),
        };
        let switches = if random.one_in(3) {
            0
        } else {
            random.between(1, 3)
        };
        let mut trunk = LinePlan::new(random);
        // Half of all networks are good. On others one device has a bad line, or all have.
        let bad = match random.below(8) {
            0..4 => None,
            4..6 => Some(Some(random.below(devices))),
            _ => Some(None),
        };
        if bad == Some(None) && random.one_in(2) {
            trunk.make_bad(random);
        }
        let device_plans = (0..devices).map(|index| {
            let mut lines = [LinePlan::new(random), LinePlan::new(random)];
            if bad.is_some_and(|which| which.is_none_or(|which| which == index)) {
                for line in &mut lines {
                    line.make_bad(random);
                }
            }
            DevicePlan {
                switch: random.below(switches.max(1)),
                lines,
                recovery: random.pick(&[Recovery::Selective, Recovery::GoBackN]),
                jitter: random.time(Duration::from_micros(1)),
                budget: turn(random.pick(&[4, 16, 64])),
                events: [random.one_in(2), random.one_in(2), random.one_in(2)],
            }
        });
        let device_plans: Vec<_> = device_plans.collect();
        let span = random.time(Duration::from_secs(1000));
        let hasty = random.one_in(2);
        let mut flows: Vec<_> = (0..flows)
            .map(|number| flow(number, devices, span, hasty, random))
            .collect();
        if flows.len() > 30 {
            // A busy device is slow.
            for flow in &mut flows {
                flow.timeout = 14;
            }
        }
        let faults = match random.below(4) {
            0 => 0,
            1 => 1,
            _ => random.below(devices.min(6) + 1),
        };
        let faults: Vec<_> = (0..faults)
            .map(|_| fault::plan(&flows[random.below(flows.len())], random))
            .collect();
        let resets = if random.one_in(6) {
            random.between(1, 2)
        } else {
            0
        };
        let resets: Vec<_> = (0..resets)
            .map(|_| {
                let flow = &flows[random.below(flows.len())];
                Reset {
                    device: flow.ends[random.below(2)],
                    at: flow.start + random.time(Duration::from_millis(10)),
                    loss: Loss::Reset,
                }
            })
            .collect();
        let mut plan = Self {
            seed,
            switches,
            trunk,
            devices: device_plans,
            flows,
            faults,
            resets,
            outages: Vec::new(),
            circles: Vec::new(),
        };
        // A stream of its own, so that what the other one decides stays as it is.
        plan.vary(span, &mut Random::new(seed ^ 0x7661_7279));
        let resets = &plan.resets;
        plan.flows
            .retain(|flow| starts_in_peace(resets, flow.start, &flow.ends));
        plan.circles
            .retain(|circle| starts_in_peace(resets, circle.start, &circle.members));
        plan
    }

    /// Makes some flows those of other kinds, and adds other things that happen.
    fn vary(&mut self, span: Duration, random: &mut Random) {
        for flow in &mut self.flows {
            flow.vary(random);
        }
        for reset in &mut self.resets {
            let later = random.time(Duration::from_secs(1));
            reset.loss = random.pick(&[
                Loss::Reset,
                Loss::Stuck(later),
                Loss::Failed(later),
                Loss::Panicked(later),
                Loss::Removed,
            ]);
        }
        let some = |often, random: &mut Random| {
            if random.one_in(often) {
                random.between(1, 3)
            } else {
                0
            }
        };
        let near = |random: &mut Random, flows: &[FlowPlan]| {
            let start = flows[random.below(flows.len())].start;
            start + random.time(Duration::from_millis(10))
        };
        if self.switches > 0 {
            for _ in 0..some(4, random) {
                self.outages.push(Outage {
                    switch: random.below(self.switches),
                    port: (!random.one_in(3)).then(|| random.below(self.devices.len())),
                    at: near(random, &self.flows),
                    lasts: random.time(Duration::from_millis(200)),
                });
            }
        }
        for number in 0..some(3, random) {
            let members: Vec<_> = (0..random.between(2, 6))
                .map(|_| random.below(self.devices.len()))
                .collect();
            let sends = (0..random.between(1, 12)).map(|_| {
                (
                    random.below(members.len()),
                    random.below(CirclePlan::SLOT),
                    random.time(Duration::from_millis(5)),
                )
            });
            let sends = sends.collect();
            let start = if random.one_in(2) {
                near(random, &self.flows)
            } else {
                random.time_below(span)
            };
            self.circles.push(CirclePlan {
                number: 1000 + number,
                members,
                start,
                sends,
            });
        }
    }

    /// When everything is over.
    pub fn end(&self) -> Duration {
        let flows = self.flows.iter().map(FlowPlan::stop);
        let resets = self.resets.iter().map(|reset| reset.at);
        let faults = self.faults.iter().map(|fault| fault.at);
        let outages = self.outages.iter().map(|outage| outage.at + outage.lasts);
        let circles = self.circles.iter().map(CirclePlan::stop);
        let last = flows
            .chain(resets)
            .chain(faults)
            .chain(outages)
            .chain(circles)
            .max();
        last.unwrap_or_default() + FlowPlan::CLOSING
    }
}

impl fmt::Display for Plan {
    /// A line for each thing that matters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "switches: {}, between them {:?}",
            self.switches, self.trunk
        )?;
        for (index, device) in self.devices.iter().enumerate() {
            let flows = self.flows.iter().flat_map(|flow| &flow.ends);
            let mut used = flows.chain(self.circles.iter().flat_map(|circle| &circle.members));
            if used.any(|used| *used == index) {
                writeln!(f, "device {index}: {device:?}")?;
            }
        }
        for flow in &self.flows {
            writeln!(f, "{flow:?}")?;
        }
        for fault in &self.faults {
            writeln!(f, "fault of {fault:?}")?;
        }
        for reset in &self.resets {
            writeln!(f, "{reset:?}")?;
        }
        for outage in &self.outages {
            writeln!(f, "{outage:?}")?;
        }
        for circle in &self.circles {
            writeln!(f, "{circle:?}")?;
        }
        Ok(())
    }
}

/// Whether none of the devices is about to lose what it has, or did a short time ago: numbers of queue pairs begin anew
/// then, and some who talked to the old ones have not given up.
pub fn starts_in_peace(resets: &[Reset], start: Duration, devices: &[usize]) -> bool {
    !resets.iter().any(|reset| {
        let since = start.checked_sub(reset.at);
        devices.contains(&reset.device)
            && since
                .is_some_and(|since| since < Duration::from_secs(10) || reset.loss == Loss::Removed)
    })
}

fn flow(
    number: usize,
    devices: usize,
    span: Duration,
    hasty: bool,
    random: &mut Random,
) -> FlowPlan {
    let qp_type = match random.below(8) {
        0 => QpType::UnreliableConnection,
        1 => QpType::UnreliableDatagram,
        _ => QpType::ReliableConnection,
    };
    let reliable = qp_type == QpType::ReliableConnection;
    let slot = match random.below(8) {
        0 => 40_000,
        1 | 2 => 8192,
        3..5 => SHARED_SLOT,
        _ => 256,
    };
    let mtu = random.pick(&[Mtu::Mtu256, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096]);
    let slot = match qp_type {
        QpType::UnreliableDatagram => slot.min(1024),
        // A queue pair has to be able to send its window of packets.
        _ => slot,
    };
    let shared = [0; 2].map(|_| slot <= SHARED_SLOT && random.one_in(4));
    let windows = [0; 2].map(|_| (reliable && random.one_in(3)).then_some(WindowKind::Window));
    let most = if slot > 10_000 { 8 } else { 24 };
    let pause = if hasty {
        Duration::from_micros(300)
    } else {
        random.pick(&[Duration::from_millis(5), Duration::from_secs(10)])
    };
    let wrong = (reliable && random.one_in(8)).then(|| random.below(2));
    let ops = [0, 1].map(|side| {
        let count = random.between(0, most);
        let mut ops: Vec<_> = (0..count)
            .map(|_| op(qp_type, slot, pause, random))
            .collect();
        if wrong == Some(side) && count > 0 {
            let kind = random.pick(&[
                Wrong::RemoteKey,
                Wrong::StaleKey,
                Wrong::RemoteBounds,
                Wrong::LocalKey,
            ]);
            ops[random.below(count)].kind = Kind::Wrong(kind);
        }
        ops
    });
    let deed = random.one_in(10).then(|| {
        let deed = random.pick(&[Deed::Error, Deed::Destroy, Deed::Deregister]);
        (deed, random.below(2), random.time(pause * 8))
    });
    FlowPlan {
        number,
        qp_type,
        ends: [random.below(devices), random.below(devices)],
        start: random.time_below(span),
        slot,
        mtu,
        psns: [0; 2].map(|_| {
            let any = random.number() as u32 & 0xff_ffff;
            // Half of them are about to wrap around.
            if random.one_in(2) {
                any | 0xff_ffe0
            } else {
                any
            }
        }),
        cqs: [0; 2].map(|_| [random.below(CQS), random.below(CQS)]),
        shared,
        windows,
        scratch: WindowKind::Window,
        paging: [None, None],
        signal_all: random.one_in(4),
        timeout: random.pick(&[10, 11, 12, 14]),
        retries: random.pick(&[3, 5, 7]),
        late_receives: (reliable && random.one_in(6))
            .then(|| random.time(Duration::from_millis(20))),
        reads: random.pick(&[1, 4, 16]),
        ops,
        deed,
    }
}

fn op(qp_type: QpType, slot: usize, pause: Duration, random: &mut Random) -> Op {
    let kind = match qp_type {
        // Immediate data names what may be lost.
        QpType::UnreliableDatagram => Kind::SendImmediate,
        QpType::UnreliableConnection => {
            random.pick(&[Kind::SendImmediate, Kind::WriteImmediate, Kind::Write])
        }
        _ => random.pick(&[
            Kind::Send,
            Kind::Send,
            Kind::SendImmediate,
            Kind::SendInvalidate,
            Kind::Write,
            Kind::Write,
            Kind::WriteImmediate,
            Kind::Read,
            Kind::Read,
            Kind::Add,
            Kind::Add,
            Kind::Swap,
            Kind::AtomicWrite,
            Kind::Flush,
            Kind::Bind,
        ]),
    };
    let length = match random.below(8) {
        0 => 0,
        1 => slot,
        2..5 => random.below(200),
        _ => random.below(slot + 1),
    };
    Op {
        kind,
        length: length.min(slot),
        elements: random.pick(&[1, 1, 2, 3]),
        signaled: !random.one_in(4),
        fence: random.one_in(8),
        solicited: random.one_in(4),
        inline: random.one_in(4),
        window: random.one_in(2),
        pause: random.time(pause),
    }
}
