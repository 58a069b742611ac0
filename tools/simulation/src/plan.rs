// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What is simulated: everything that is decided at random in advance. A plan is derived from its seed, and parts of it
//! can be left out.

use crate::{
    fault::{self, FaultPlan},
    random::Random,
};
use std::{fmt, time::Duration};
use vrnic_engine::{Budget, Recovery};
use vrnic_wire::{completion::Status, port::Mtu, qp::QpType};

/// Largest number of devices in a simulation.
pub const MOST_DEVICES: usize = 30;
/// Largest number of faults in a simulation.
pub const MOST_FAULTS: usize = 6;
/// Number of completion queues of a device.
pub const CQS: usize = 3;
/// Index of the completion queue for receives of XRC queue pairs.
pub const XRC_CQ: usize = 0;
/// Longest message to a shared receive queue.
pub const SHARED_SLOT: usize = 2048;

/// A line, and what happens to frames on it. Probabilities are in units of 1/65536.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePlan {
    /// Its bandwidth in bytes per second.
    pub rate: u64,
    /// Propagation delay.
    pub delay: Duration,
    /// Longest time for which a frame waits for the line. A frame that would have to wait longer is lost.
    pub queue: Duration,
    /// Probability of loss.
    pub loss: u32,
    /// Probability of duplication.
    pub duplicate: u32,
    /// Probability of being overtaken by later frames.
    pub late: u32,
    /// Longest additional delay in that case.
    pub lateness: Duration,
    /// Probability of a bit error.
    pub damage: u32,
    /// Probability of being marked as congested.
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

    /// Removes all impairments. Returns whether there were any.
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
    /// Lines from and to the switch.
    pub lines: [LinePlan; 2],
    /// How it recovers from loss.
    pub recovery: Recovery,
    /// Longest time that it waits for a CPU.
    pub jitter: Duration,
    /// Budget of its turns.
    pub budget: Budget,
    /// Which completion queues raise events; the others are polled.
    pub events: [bool; CQS],
}

/// Returns the budget of a turn with that many units.
fn turn(units: u32) -> Budget {
    Budget {
        units,
        bytes: u64::from(units) * 1024,
    }
}

/// Kind of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    Send,
    /// A send with immediate data.
    SendImmediate,
    /// A send that invalidates the window granted by the peer; used once.
    SendInvalidate,
    /// A write to the region of the peer, or to the window granted by it.
    Write,
    /// A write with immediate data.
    WriteImmediate,
    /// A read.
    Read,
    /// An atomic that adds 1 to a word of the peer.
    Add,
    /// A compare-and-swap that increases the word by one.
    Swap,
    /// An atomic write that increases the word by one.
    AtomicWrite,
    /// A flush of earlier writes.
    Flush,
    /// Binds a window that is not used otherwise, or invalidates it again.
    Bind,
    /// A request that must fail.
    Wrong(Wrong),
}

/// What is wrong with a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A remote key that never existed.
    RemoteKey,
    /// The key of a window that was granted and has since been invalidated.
    StaleKey,
    /// Remote memory that is shorter than the request.
    RemoteBounds,
    /// A local key that never existed.
    LocalKey,
}

impl Wrong {
    /// Returns the status with which the request must complete.
    pub fn status(self) -> Status {
        match self {
            Self::LocalKey => Status::LocalProtection,
            Self::RemoteKey | Self::StaleKey | Self::RemoteBounds => Status::RemoteAccess,
        }
    }
}

impl Kind {
    /// Returns whether it consumes a receive of the peer.
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
    /// Kind.
    pub kind: Kind,
    /// Length in bytes.
    pub length: usize,
    /// Number of local scatter/gather elements.
    pub elements: usize,
    /// Whether it completes with a CQE.
    pub signaled: bool,
    /// Whether it waits for earlier reads and atomics.
    pub fence: bool,
    /// Whether it raises a solicited event at the peer.
    pub solicited: bool,
    /// Whether the data is inline.
    pub inline: bool,
    /// Whether it uses the peer's window.
    pub window: bool,
    /// Time before it is posted.
    pub pause: Duration,
}

impl fmt::Debug for Op {
    /// Writes it in one line, because there are many of them.
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

/// Something that is done to one end of a flow while it is running.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Moves the queue pair to the error state.
    Error,
    /// Destroys the queue pair.
    Destroy,
    /// Deregisters the region.
    Deregister,
}

/// How the pages of an on-demand region come and go.
#[derive(Clone, Debug)]
pub struct PagingPlan {
    /// Longest time that the driver takes to answer a page fault.
    pub slowness: Duration,
    /// When it takes some pages back, relative to the start of the flow.
    pub reclaims: Vec<Duration>,
    /// From when on, and from which part of the region on (in units of 1/65536), there are no pages.
    pub hole: Option<(Duration, u32)>,
}

/// How an end grants its peer access to its memory for a while.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// It binds a memory window.
    Window,
    /// It registers a region with a work request, as in-kernel programs do.
    FastRegistration,
}

/// Two queue pairs that communicate, and the requests of each end.
#[derive(Clone, Debug)]
pub struct FlowPlan {
    /// Identifies the flow in requests, even when other flows are left out.
    pub number: usize,
    /// Type of the first end's queue pair. The second end of an XRC flow is its target.
    pub qp_type: QpType,
    /// Indices of the devices.
    pub ends: [usize; 2],
    /// When it begins.
    pub start: Duration,
    /// Longest message.
    pub slot: usize,
    /// Path MTU.
    pub mtu: Mtu,
    /// First PSN of each end.
    pub psns: [u32; 2],
    /// Completion queues for sends and for receives, at each end.
    pub cqs: [[usize; 2]; 2],
    /// Whether each end takes receives from the shared receive queue of its device.
    pub shared: [bool; 2],
    /// What each end grants its peer in addition to the key of its region.
    pub windows: [Option<WindowKind>; 2],
    /// The kind of window that an end binds and invalidates for itself, if it does.
    pub scratch: WindowKind,
    /// How the region of each end is paged on demand, if it is.
    pub paging: [Option<PagingPlan>; 2],
    /// Whether all requests complete with a CQE.
    pub signal_all: bool,
    /// Exponent of the timeout.
    pub timeout: u8,
    /// Retries after timeouts.
    pub retries: u8,
    /// Delay of the second half of the receives, if they are late.
    pub late_receives: Option<Duration>,
    /// Number of outstanding reads and atomics.
    pub reads: u8,
    /// Requests of each end.
    pub ops: [Vec<Op>; 2],
    /// What is done to an end, to which one, and when.
    pub deed: Option<(Deed, usize, Duration)>,
}

impl FlowPlan {
    /// Returns when none of its requests can be in flight any more.
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

    /// Far longer than all retries and faults take together.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Time from the stop to the end, for flushing.
    pub const CLOSING: Duration = Duration::from_secs(1);

    /// Returns whether requests are acknowledged.
    pub fn is_reliable(&self) -> bool {
        matches!(
            self.qp_type,
            QpType::ReliableConnection | QpType::XrcInitiator
        )
    }

    /// Returns the type of an end's queue pair.
    pub fn type_of(&self, side: usize) -> QpType {
        match self.qp_type {
            QpType::XrcInitiator if side == 1 => QpType::XrcTarget,
            other => other,
        }
    }

    /// May turn the flow into one of another kind.
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
                // Windows and page lists refer to pages that must stay in place.
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

    /// Returns the number of receives that end `side` needs.
    pub fn receives(&self, side: usize) -> usize {
        let takes = |op: &&Op| op.kind.takes_receive();
        self.ops[1 - side].iter().filter(takes).count()
    }
}

/// How a device loses all its objects.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It is reset.
    Reset,
    /// It hangs, and is reset after that time.
    Stuck(Duration),
    /// It reports that it needs a reset, and gets that after that time.
    Failed(Duration),
    /// It panics, and is reset after that time.
    Panicked(Duration),
    /// It is removed by surprise and does not come back.
    Removed,
}

/// The event that a device loses all its objects.
#[derive(Copy, Clone, Debug)]
pub struct Reset {
    /// Index of the device.
    pub device: usize,
    /// Time.
    pub at: Duration,
    /// Kind of loss.
    pub loss: Loss,
}

/// A time during which a port of a switch is down, or all ports; in the latter case, the switch restarts.
#[derive(Copy, Clone, Debug)]
pub struct Outage {
    /// Index of the switch.
    pub switch: usize,
    /// Index of the port; all ports if none. There may be no port with that index.
    pub port: Option<usize>,
    /// Start.
    pub at: Duration,
    /// Duration.
    pub lasts: Duration,
}

/// Members of a multicast group that send datagrams to it.
#[derive(Clone, Debug)]
pub struct CirclePlan {
    /// Identifies the group in requests, even when others are left out.
    pub number: usize,
    /// Index of each member's device.
    pub members: Vec<usize>,
    /// When it begins.
    pub start: Duration,
    /// Messages: the sending member, the length in bytes, and the time after the start.
    pub sends: Vec<(usize, usize, Duration)>,
}

impl CirclePlan {
    /// Largest length of a message in bytes.
    pub const SLOT: usize = 512;
    /// Indices of the completion queues for sends and for receives.
    pub const CQS: [usize; 2] = [1, 2];

    /// Returns when none of its messages can be in flight any more.
    pub fn stop(&self) -> Duration {
        let sends = self.sends.iter().map(|(_, _, after)| *after);
        self.start + sends.max().unwrap_or_default() + FlowPlan::PATIENCE
    }
}

/// A plan for a simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed from which it was derived.
    pub seed: u64,
    /// Number of switches that frames pass through; 0 if segments travel without frames.
    pub switches: usize,
    /// Lines between switches.
    pub trunk: LinePlan,
    /// Devices.
    pub devices: Vec<DevicePlan>,
    /// Flows, each between two queue pairs.
    pub flows: Vec<FlowPlan>,
    /// Faults of devices.
    pub faults: Vec<FaultPlan>,
    /// Resets and worse.
    pub resets: Vec<Reset>,
    /// Outages of switches.
    pub outages: Vec<Outage>,
    /// Multicast groups.
    pub circles: Vec<CirclePlan>,
}

impl Plan {
    /// Creates the plan of a seed.
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
        // Half of all networks are good. In the others, one device has a bad line, or all devices have.
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
            _ => random.below(devices.min(MOST_FAULTS) + 1),
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
        // A random stream of its own, so that the results of the first one stay the same.
        plan.vary(span, &mut Random::new(seed ^ 0x7661_7279));
        let resets = &plan.resets;
        plan.flows
            .retain(|flow| starts_in_peace(resets, flow.start, &flow.ends));
        plan.circles
            .retain(|circle| starts_in_peace(resets, circle.start, &circle.members));
        plan
    }

    /// Turns some flows into other kinds, and adds other events.
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

    /// Returns when everything is over.
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
    /// Writes one line for each item of interest.
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

/// Returns whether none of the devices loses its objects around `start`. After that, numbers of queue pairs are reused,
/// and peers of the old ones may not have given up yet.
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
        // A queue pair must be able to send its window of packets.
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
        // The immediate data identifies messages, because some may be lost.
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
