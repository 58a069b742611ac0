// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Requests and replies of the control socket: one JSON object a line, a reply for each request, in order.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::capture::Choice;

/// Longest line of a client in bytes.
pub const MAX_REQUEST: usize = 4096;
/// Longest line of the daemon in bytes.
pub const MAX_REPLY: usize = 8 << 20;

/// What comes before the name of a port of the switch, where faults of a port are asked for instead of a device's.
pub const PORT: &str = "port:";

/// What a client asks.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// All devices: [`Reply::Devices`].
    Devices,
    /// The GID table of a device: [`Reply::Gids`].
    Gids {
        /// Name of the device.
        device: String,
    },
    /// Some queue pairs of a device: [`Reply::Qps`].
    Qps {
        /// Name of the device.
        device: String,
        /// Where the page begins: 0, or what the reply before gave.
        #[serde(default)]
        from: usize,
    },
    /// Some completion queues of a device: [`Reply::Cqs`].
    Cqs {
        /// Name of the device.
        device: String,
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Some shared receive queues of a device: [`Reply::Srqs`].
    Srqs {
        /// Name of the device.
        device: String,
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Some multicast groups of a device: [`Reply::Groups`].
    Groups {
        /// Name of the device.
        device: String,
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Some memory regions of a device: [`Reply::Mrs`].
    Mrs {
        /// Name of the device.
        device: String,
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Some memory windows of a device: [`Reply::Mws`].
    Mws {
        /// Name of the device.
        device: String,
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Brings the link of a device up or takes it down: [`Reply::Done`].
    SetLink {
        /// Name of the device.
        device: String,
        /// Whether it is to be up.
        up: bool,
    },
    /// Gives a device another rate limit: [`Reply::Done`].
    SetRateLimit {
        /// Name of the device.
        device: String,
        /// How fast it may send.
        limit: RateLimit,
    },
    /// All ports of the switch: [`Reply::Switch`].
    Switch,
    /// Some addresses that the switch knows: [`Reply::Addresses`].
    Addresses {
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Some of what went wrong lately: [`Reply::Explanations`].
    Explain {
        /// Name of the device.
        device: String,
        /// Only what has this number or a later one.
        #[serde(default)]
        from: u64,
    },
    /// Arms a fault, if the configuration allows that: [`Reply::FaultAdded`].
    FaultAdd {
        /// Name of the device, or of a port behind [`PORT`].
        device: String,
        /// Its description: `NAME [KEY=VALUE]…`, see [`vrnic_engine::fault::spec`].
        fault: String,
    },
    /// Disarms a fault, or all, if the configuration allows that: [`Reply::FaultsCleared`].
    FaultClear {
        /// Name of the device, or of a port behind [`PORT`].
        device: String,
        /// Its number; all if there is none.
        #[serde(default)]
        id: Option<u64>,
    },
    /// The faults of a device that are armed or were: [`Reply::Faults`].
    Faults {
        /// Name of the device, or of a port behind [`PORT`].
        device: String,
    },
    /// Some of the latest times that faults fired: [`Reply::Firings`].
    FaultLog {
        /// Name of the device, or of a port behind [`PORT`].
        device: String,
        /// Only what has this number or a later one.
        #[serde(default)]
        from: u64,
    },
    /// Captures to the file whose descriptor comes with the request, in an `SCM_RIGHTS` message: [`Reply::Capture`].
    CaptureStart {
        /// What the file is to be called.
        name: String,
        /// What to capture.
        #[serde(default)]
        choice: Choice,
    },
    /// Ends a capture: [`Reply::Capture`], when its file is finished or takes long.
    CaptureStop {
        /// Its number.
        id: u64,
    },
    /// All captures that run, and some that ran: [`Reply::Captures`].
    Captures,
    /// Records a device from now on, or from when it has a driver, to the file whose descriptor comes with the request,
    /// in an `SCM_RIGHTS` message: [`Reply::Recording`].
    RecordStart {
        /// Name of the device.
        device: String,
        /// What the file is to be called.
        name: String,
        /// The recording ends when it has about so many bytes.
        #[serde(default)]
        max_bytes: Option<u64>,
    },
    /// Ends the recording of a device: [`Reply::Recording`], when its file is finished or takes long.
    RecordStop {
        /// Name of the device.
        device: String,
    },
    /// The recording of each device that waits or runs, or was the last: [`Reply::Recordings`].
    Recordings,
    /// What a device was called with lately, since its last reset: [`Reply::Flight`].
    Flight {
        /// Name of the device.
        device: String,
        /// What led to its last failure instead, even if its driver has reset it since.
        #[serde(default)]
        failure: bool,
    },
    /// Some of the steps that a device did lately: [`Reply::Trace`]. It traces them while it is asked, and for some
    /// seconds after.
    Trace {
        /// Name of the device.
        device: String,
        /// Only steps with this number or a later one.
        #[serde(default)]
        from: u64,
    },
    /// Reads or sets the filter of the log: [`Reply::Log`].
    Log {
        /// The new filter, as in the configuration.
        #[serde(default)]
        filter: Option<String>,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The request cannot be answered; why.
    Error(String),
    /// There is nothing to tell.
    Done,
    /// All devices.
    Devices(Vec<Device>),
    /// All GIDs.
    Gids(Vec<Gid>),
    /// A page of queue pairs.
    Qps(Page<Qp>),
    /// A page of completion queues.
    Cqs(Page<Cq>),
    /// A page of shared receive queues.
    Srqs(Page<Srq>),
    /// A page of multicast groups.
    Groups(Page<Group>),
    /// A page of memory regions.
    Mrs(Page<Mr>),
    /// A page of memory windows.
    Mws(Page<Mw>),
    /// All ports of the switch.
    Switch(Vec<SwitchPort>),
    /// A page of addresses.
    Addresses(Page<Address>),
    /// What went wrong, oldest first.
    Explanations(Vec<Explanation>),
    /// The number of a fault that was armed.
    FaultAdded(u64),
    /// How many faults were cleared.
    FaultsCleared(usize),
    /// Faults, oldest first.
    Faults(Vec<Fault>),
    /// When faults fired, oldest first.
    Firings(Vec<Firing>),
    /// A capture.
    Capture(Capture),
    /// Captures, oldest first.
    Captures(Vec<Capture>),
    /// A recording.
    Recording(Recording),
    /// Recordings, by device.
    Recordings(Vec<Recording>),
    /// Calls in words, oldest first. Of a device that failed, those that led to it.
    Flight(Vec<String>),
    /// Steps of a device.
    Trace(Trace),
    /// The filter of the log.
    Log(String),
}

/// A part of a list.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Page<T> {
    /// The objects.
    pub items: Vec<T>,
    /// Where the next page begins; none behind the last one.
    pub next: Option<usize>,
}

/// A device.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Device {
    /// Name.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// GUID of the node.
    pub node_guid: String,
    /// `down` without a driver, `up`, `failed` until the driver resets it, or `removed` by a fault.
    pub state: String,
    /// Its link: `up`, or `down` because somebody took it down.
    pub link: String,
    /// How fast it may send.
    #[serde(default)]
    pub rate_limit: RateLimit,
    /// Number of its VM, from 1 on; none without a driver. Devices with the same number use the memory of the same VM.
    pub vm: Option<usize>,
    /// Contexts.
    pub contexts: u32,
    /// Protection domains.
    pub pds: u32,
    /// Memory regions.
    pub mrs: usize,
    /// Completion queues.
    pub cqs: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Host ranges that page lists need.
    pub translations: usize,
    /// Its port; none if it is not up.
    pub port: Option<Port>,
}

/// How fast a device may send.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct RateLimit {
    /// Bytes of payload a second; no limit if absent.
    pub bytes: Option<NonZeroU64>,
    /// Requests a second; no limit if absent.
    pub requests: Option<NonZeroU64>,
}

impl From<vrnic_engine::RateLimit> for RateLimit {
    fn from(limit: vrnic_engine::RateLimit) -> Self {
        let vrnic_engine::RateLimit { bytes, requests } = limit;
        Self { bytes, requests }
    }
}

impl From<RateLimit> for vrnic_engine::RateLimit {
    fn from(limit: RateLimit) -> Self {
        let RateLimit { bytes, requests } = limit;
        Self { bytes, requests }
    }
}

/// A port.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Port {
    /// `active`, or `down` because the device's link is, or because the driver wants it.
    pub state: String,
    /// Bytes.
    pub mtu: u32,
    /// GIDs in use.
    pub gids: usize,
    /// Packets with a wrong P_Key.
    pub bad_pkeys: u32,
    /// Packets with a wrong Q_Key.
    pub bad_qkeys: u32,
    /// Counters by the names that `rdma statistic` has for them, then, of an RNIC on a wire, frames lost by reason:
    /// `frames_icrc`, …
    pub counters: Vec<(String, u64)>,
}

/// An entry of a GID table.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Gid {
    /// The GID.
    pub gid: String,
    /// Network protocol.
    pub kind: String,
    /// MAC address that packets of it have.
    pub mac: String,
    /// VLAN.
    pub vlan: Option<u16>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Qp {
    /// Number.
    pub qpn: u32,
    /// RC, UC, UD, GSI, XRC_INI or XRC_TGT.
    pub kind: String,
    /// State, as the verbs name it.
    pub state: String,
    /// Context.
    pub context: u32,
    /// Name of the process that has the context; empty if it is not known.
    #[serde(default)]
    pub process: String,
    /// Number of the process; 0 if it is not known, or the guest's kernel.
    #[serde(default)]
    pub pid: u32,
    /// Protection domain.
    pub pd: u32,
    /// Number of the peer; 0 if not connected.
    pub peer_qpn: u32,
    /// GID of the peer; none if not connected.
    pub peer_gid: Option<String>,
    /// Most payload bytes of a packet.
    pub mtu: u32,
    /// PSN of the next request.
    pub send_psn: u32,
    /// Oldest PSN that is not acknowledged.
    pub unacknowledged_psn: u32,
    /// Next PSN of the peer.
    pub receive_psn: u32,
    /// Sends posted and not completed; none if the ring is broken.
    pub sends_posted: Option<u32>,
    /// Of these, those the device works on.
    pub sends_in_flight: usize,
    /// Places of the send queue.
    pub send_entries: u32,
    /// Receives posted and not used; none if the ring is broken.
    pub receives_posted: Option<u32>,
    /// Places of the receive queue.
    pub receive_entries: u32,
    /// Reads and atomics of the peer that wait for their answer.
    pub responses_waiting: usize,
    /// Completion queue of sends.
    pub send_cqn: u32,
    /// Completion queue of receives.
    pub receive_cqn: u32,
    /// Shared receive queue, if it uses one.
    pub srqn: Option<u32>,
    /// XRC domain, if it belongs to one.
    #[serde(default)]
    pub xrcdn: Option<u32>,
}

/// A completion queue.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Cq {
    /// Number.
    pub cqn: u32,
    /// Context.
    pub context: u32,
    /// Completion vector.
    pub vector: u16,
    /// Places.
    pub entries: u32,
    /// Events wait for so many completions; with less than 2 they do not wait.
    pub moderation_count: u32,
    /// Microseconds that an event waits at most.
    pub moderation_period_us: u64,
    /// Completions that nobody has polled; none if the consumer index cannot be.
    pub unread: Option<u32>,
    /// Whether they are so many; else at most.
    #[serde(default = "yes")]
    pub exact: bool,
    /// Whether an event is asked for; none if that is not known.
    #[serde(default)]
    pub armed: Option<bool>,
    /// Queue pairs that use it.
    pub queue_pairs: usize,
    /// Whether it overran or lost its memory.
    pub failed: bool,
}

/// A shared receive queue.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Srq {
    /// Number.
    pub srqn: u32,
    /// Context.
    pub context: u32,
    /// Protection domain.
    pub pd: u32,
    /// Places.
    pub entries: u32,
    /// Receives that nobody took; none if the ring is broken.
    pub posted: Option<u32>,
    /// Whether they are so many; else at least.
    #[serde(default = "yes")]
    pub exact: bool,
    /// Fewer raise an event; 0 if none is asked for.
    pub limit: u32,
    /// Queue pairs that use it.
    pub queue_pairs: u32,
    /// XRC domain, if it belongs to one.
    #[serde(default)]
    pub xrcdn: Option<u32>,
    /// Completion queue of its receives, if it belongs to an XRC domain.
    #[serde(default)]
    pub cqn: Option<u32>,
    /// Whether its producer index was wild or it lost its memory.
    pub failed: bool,
}

/// A multicast group.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Group {
    /// Its GID.
    pub gid: String,
    /// Queue pairs that are attached to it.
    pub qpns: Vec<u32>,
}

/// A memory region.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Mr {
    /// Its key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Rights, in words.
    pub access: Vec<String>,
    /// Address of its first byte.
    pub iova: u64,
    /// Bytes; none if it covers all memory.
    pub length: Option<u64>,
    /// Host ranges that it needs.
    pub translations: usize,
    /// Whether it can be used; not if it waits for a fast registration.
    #[serde(default = "yes")]
    pub valid: bool,
}

/// A memory window.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Mw {
    /// Its key.
    pub key: u32,
    /// Protection domain.
    pub pd: u32,
    /// Type, as the verbs number it.
    pub kind: u32,
    /// What it is bound to; none if it is not.
    pub bound: Option<BoundMw>,
}

/// What a memory window is bound to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct BoundMw {
    /// Key of the region.
    pub region: u32,
    /// Address of its first byte.
    pub iova: u64,
    /// Bytes.
    pub length: u64,
    /// Rights, in words.
    pub access: Vec<String>,
    /// Queue pair that bound it; 0 once that is gone.
    pub qpn: u32,
}

/// A port of the switch.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct SwitchPort {
    /// Name.
    pub name: String,
    /// Device whose RNIC is behind it.
    pub device: Option<String>,
    /// Whether the RNIC's driver is up.
    pub rnic_up: bool,
    /// What else is behind it: `stream`, `tap vrnic0`, `link 192.0.2.2:4789`, …
    pub medium: Option<String>,
    /// Whether that is there.
    pub medium_up: bool,
    /// Its own address, which no other port can take.
    pub mac: Option<String>,
    /// Most bytes of a frame behind its Ethernet header and tag.
    pub mtu: usize,
    /// VLANs.
    pub vlans: String,
    /// Frames that wait for it in the switch.
    pub waiting: usize,
    /// Frames and bytes in (`rx`) and out (`tx`), then frames dropped, by reason.
    pub counters: Vec<(String, u64)>,
}

impl SwitchPort {
    /// A counter; 0 if there is none of that name.
    pub fn counter(&self, name: &str) -> u64 {
        let found = self.counters.iter().find(|(known, _)| known == name);
        found.map_or(0, |(_, value)| *value)
    }

    /// Frames dropped, and why; reasons that did not occur are left out.
    pub fn drops(&self) -> impl Iterator<Item = (&str, u64)> {
        let traffic = |name: &str| name.ends_with("_frames") || name.ends_with("_bytes");
        self.counters
            .iter()
            .filter(move |(name, value)| *value > 0 && !traffic(name))
            .map(|(name, value)| (name.as_str(), *value))
    }
}

/// An address that the switch knows.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: String,
    /// The VLAN that it was seen in; none if it is a port's own, which it is in all VLANs of the port.
    pub vlan: Option<u16>,
    /// Name of the port that it is behind.
    pub port: String,
    /// Seconds since the last frame from it; none if it is the port's own.
    pub age_s: Option<u64>,
}

/// A capture.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// The file, as whoever asked for it called it.
    pub file: String,
    /// What is captured.
    pub choice: Choice,
    /// Packets in the file.
    pub packets: u64,
    /// Bytes of the file.
    pub bytes: u64,
    /// Packets that are missing because the file was too slow.
    pub missing: u64,
    /// Why it ended: `stopped`, `full`, or what went wrong; none while it runs.
    pub ended: Option<String>,
}

impl Capture {
    /// What is captured, in words.
    pub fn scope(&self) -> String {
        let choice = &self.choice;
        match (&choice.device, choice.qp, choice.switch) {
            (Some(device), Some(qp), _) => format!("QP {qp} of {device}"),
            (Some(device), None, _) => device.clone(),
            (None, _, true) => "switch".into(),
            (None, ..) => "all RNICs".into(),
        }
    }
}

/// A recording of a device.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Recording {
    /// Name of the device.
    pub device: String,
    /// The file, as whoever asked for it called it.
    pub file: String,
    /// `waiting for the driver` of the device, `recording`, `ending`, or `ended: ` and why.
    pub state: String,
    /// Bytes in the file.
    pub bytes: u64,
}

impl Recording {
    /// Whether the file is finished.
    pub fn has_ended(&self) -> bool {
        self.state.starts_with("ended")
    }
}

/// A fault.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Fault {
    /// Its number.
    pub id: u64,
    /// Its description.
    pub fault: String,
    /// `armed`, `waits for N` (another fault), `active` while what it does lasts, or `done`.
    pub progress: String,
    /// Occasions that matched.
    pub seen: u64,
    /// How often it fired.
    pub fired: u64,
}

/// A time that a fault fired.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Firing {
    /// Counts from 0 for each device.
    pub number: u64,
    /// Nanoseconds of the devices' clock.
    pub nanoseconds: u64,
    /// The fault.
    pub id: u64,
    /// Name of its kind.
    pub name: String,
    /// The occasion's place among those that matched, from 1.
    pub position: u64,
    /// Queue pair; 0 if it was about none.
    pub qpn: u32,
    /// Its peer; 0 if there is none.
    pub peer_qpn: u32,
    /// Completion queue; 0 if it was about none.
    pub cqn: u32,
    /// PSN of the packet.
    pub psn: Option<u32>,
    /// The occasion, in words.
    pub what: String,
}

/// What is meant by programs that knew no other.
fn yes() -> bool {
    true
}

/// Steps of a device.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Trace {
    /// Number of the first. The others follow without a gap; if it is not the one that was asked for, the oldest are
    /// gone.
    pub first: u64,
    /// Oldest first.
    pub steps: Vec<Step>,
    /// Steps behind them that there are already.
    pub waiting: usize,
}

/// Something that a device did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Step {
    /// Nanoseconds of the devices' clock at which the device was called, as failures have it.
    pub nanoseconds: u64,
    /// Nanoseconds of a finer clock, which all devices have in common, at which it was.
    pub at: u64,
    /// The queue pair that it is about; 0 if it is about none.
    pub qpn: u32,
    /// What it was.
    #[serde(flatten)]
    pub act: Act,
    /// The objects that it concerns, as they were then.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Object>,
}

/// An object that a step concerns, as it was then.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "object", rename_all = "snake_case")]
pub enum Object {
    /// The memory region that a key names. Its own key may end with another byte.
    Region {
        /// The key of the step.
        named: u32,
        /// The region.
        #[serde(flatten)]
        mr: Mr,
    },
    /// The memory window that a key names. As above.
    Window {
        /// The key of the step.
        named: u32,
        /// The window.
        #[serde(flatten)]
        mw: Mw,
    },
    /// A key that names nothing.
    NoKey {
        /// The key of the step.
        named: u32,
        /// Whether it named something not long ago.
        removed: bool,
    },
    /// The completion queue of a completion, with it, or of an event.
    Cq(Cq),
    /// The shared receive queue of a receive, without it, or of a message that found none, or of an event.
    Srq(Srq),
}

/// Rights in words. Each region can be read locally.
fn rights(names: &[String]) -> String {
    if names.is_empty() {
        "local read".into()
    } else {
        names.join(", ")
    }
}

impl fmt::Display for Object {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = |f: &mut fmt::Formatter<'_>, named, key| {
            if key == named {
                Ok(())
            } else {
                write!(f, " (its key is {key:#x} now)")
            }
        };
        match self {
            Self::Region { named, mr } => {
                write!(f, "key {named:#x}: region")?;
                other(f, *named, mr.key)?;
                match mr.length {
                    _ if !mr.valid => write!(f, ", not valid")?,
                    Some(length) => write!(f, ", {length} B at {:#x}", mr.iova)?,
                    None => write!(f, ", all memory")?,
                }
                write!(f, ", PD {}, {}", mr.pd, rights(&mr.access))
            }
            Self::Window { named, mw } => {
                write!(f, "key {named:#x}: window")?;
                other(f, *named, mw.key)?;
                write!(f, ", PD {}", mw.pd)?;
                match &mw.bound {
                    Some(bound) => write!(
                        f,
                        ", bound by QP {} to {} B at {:#x} of region {:#x}, {}",
                        bound.qpn,
                        bound.length,
                        bound.iova,
                        bound.region,
                        rights(&bound.access)
                    ),
                    None => f.write_str(", not bound"),
                }
            }
            Self::NoKey { named, removed } => {
                let what = if *removed {
                    "what it named was removed"
                } else {
                    "names nothing"
                };
                write!(f, "key {named:#x}: {what}")
            }
            Self::Cq(cq) => {
                write!(f, "CQ {}: ", cq.cqn)?;
                if !cq.exact {
                    f.write_str("at most ")?;
                }
                match cq.unread {
                    Some(unread) => write!(f, "{unread}")?,
                    None => f.write_str("?")?,
                }
                write!(f, " of {} unread", cq.entries)?;
                f.write_str(match cq.armed {
                    Some(true) => ", armed",
                    Some(false) => ", not armed",
                    None => "",
                })?;
                f.write_str(if cq.failed { ", failed" } else { "" })
            }
            Self::Srq(srq) => {
                write!(f, "SRQ {}: ", srq.srqn)?;
                if !srq.exact {
                    f.write_str("at least ")?;
                }
                match srq.posted {
                    Some(posted) => write!(f, "{posted}")?,
                    None => f.write_str("?")?,
                }
                write!(f, " of {} receives left", srq.entries)?;
                match srq.limit {
                    0 => f.write_str(", no limit")?,
                    limit => write!(f, ", limit {limit}")?,
                }
                f.write_str(if srq.failed { ", failed" } else { "" })
            }
        }
    }
}

/// What a device did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "act", rename_all = "snake_case")]
pub enum Act {
    /// It took a request from the send queue.
    Fetched {
        /// Name of the work request.
        wr_id: u64,
        /// What it is to do.
        opcode: String,
        /// Bytes that it moves.
        length: u64,
    },
    /// It took a receive.
    TookReceive {
        /// Name of the work request.
        wr_id: u64,
        /// The shared receive queue that it came from, if it did.
        srqn: Option<u32>,
    },
    /// A packet left.
    Sent(TracedPacket),
    /// A packet arrived.
    Arrived(TracedPacket),
    /// It wrote a completion.
    Completed {
        /// The completion queue.
        cqn: u32,
        /// Name of the work request.
        wr_id: u64,
        /// What it did.
        opcode: String,
        /// How it ended.
        status: String,
        /// Bytes of a receive or a read.
        length: u64,
        /// `vendor_error` of an error.
        vendor_error: u32,
    },
    /// It raised the event of a completion queue.
    Notified {
        /// The completion queue.
        cqn: u32,
    },
    /// It told the driver of an asynchronous event.
    Raised {
        /// Its name.
        event: String,
        /// What it is about.
        number: u32,
    },
    /// The queue pair went to another state: behind the other steps of the call that it did so in.
    Moved {
        /// The state before, as the verbs name it.
        from: String,
        /// The state after.
        to: String,
    },
}

/// A packet, with the fields of its headers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct TracedPacket {
    /// Name of its opcode.
    pub opcode: String,
    /// Sequence number.
    pub psn: u32,
    /// Queue pair at the other end; 0 if that is not known.
    pub peer_qpn: u32,
    /// Bytes of payload.
    pub length: u64,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Acknowledgement: `ACK`, or the kind of the negative one.
    pub syndrome: Option<String>,
    /// Whether it is a negative acknowledgement.
    pub negative: bool,
    /// Message sequence number of an acknowledgement.
    pub msn: Option<u32>,
    /// Remote key.
    pub rkey: Option<u32>,
    /// Remote address.
    pub address: Option<u64>,
    /// Bytes of the whole message, of a request for remote memory.
    pub message_length: Option<u32>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The fault that did something to it.
    pub fault: Option<String>,
    /// Bytes of its transport headers, from the BTH to the payload, in hexadecimal digits. On the local fabric, which
    /// has no frames, those that a frame would have.
    pub headers: String,
}

/// Something that went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Explanation {
    /// Counts from 0 for each device.
    pub number: u64,
    /// Nanoseconds of the devices' clock.
    pub nanoseconds: u64,
    /// The queue pair, the completion queue of an `IBV_EVENT_CQ_ERR`, or the shared receive queue of an
    /// `IBV_EVENT_SRQ_ERR`; 0 if it is about none.
    pub object: u32,
    /// The queue pair's peer; 0 if there is none.
    pub peer_qpn: u32,
    /// What happened, in words.
    pub what: String,
    /// The check that failed, in words.
    pub why: Option<String>,
    /// The `vendor_error` of the check that failed.
    pub cause: Option<u32>,
    /// Name of the work request.
    pub wr_id: Option<u64>,
    /// PSN of the request or the acknowledgement.
    pub psn: Option<u32>,
    /// Kind and PSN of the packet that was refused.
    pub packet: Option<(String, u32)>,
    /// The access to memory that was refused.
    pub access: Option<Access>,
    /// How often it happened in a row.
    pub count: u64,
}

/// An access that was refused.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Access {
    /// The key.
    pub key: u32,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Rights that it needs, in words.
    pub rights: Vec<String>,
    /// First byte.
    pub address: u64,
    /// Bytes.
    pub length: u64,
}

impl Explanation {
    /// What `object` is a number of: `QP`, `CQ` or `SRQ`.
    pub fn object_kind(&self) -> &'static str {
        match self.what.as_str() {
            "event IBV_EVENT_CQ_ERR" => "CQ",
            "event IBV_EVENT_SRQ_ERR" => "SRQ",
            _ => "QP",
        }
    }
}

impl fmt::Display for Explanation {
    /// One sentence.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.object, self.peer_qpn) {
            (0, _) => {}
            (object, 0) => write!(f, "{} {object}: ", self.object_kind())?,
            (object, peer) => write!(f, "QP {object} (peer {peer}): ")?,
        }
        write!(f, "{}", self.what)?;
        if let Some((packet, psn)) = &self.packet {
            write!(f, ", to {packet} with PSN {psn}")?;
        }
        match (self.wr_id, self.psn) {
            (Some(wr_id), Some(psn)) => write!(f, ", wr_id {wr_id:#x}, PSN {psn}")?,
            (Some(wr_id), None) => write!(f, ", wr_id {wr_id:#x}")?,
            (None, Some(psn)) => match &self.packet {
                Some((_, came)) if *came == psn => {}
                Some(_) => write!(f, ", PSN {psn} was expected")?,
                None => write!(f, ", PSN {psn}")?,
            },
            (None, None) => {}
        }
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(access) = &self.access {
            write!(
                f,
                "; key {:#x}, {} bytes at {:#x}, PD {}",
                access.key, access.length, access.address, access.pd
            )?;
            if !access.rights.is_empty() {
                write!(f, ", needs {}", access.rights.join(", "))?;
            }
        }
        if self.count > 1 {
            write!(f, " [{} times]", self.count)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_what_a_person_would_type() {
        for (text, request) in [
            (r#"{"request":"devices"}"#, Request::Devices),
            (
                r#"{"request":"qps","device":"a"}"#,
                Request::Qps {
                    device: "a".into(),
                    from: 0,
                },
            ),
            (r#"{"request":"log"}"#, Request::Log { filter: None }),
        ] {
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
        }
        assert!(serde_json::from_str::<Request>(r#"{"request":"format"}"#).is_err());
    }
}
