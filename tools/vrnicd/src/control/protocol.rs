// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Requests and replies of the control socket: one JSON object per line. Each request gets one reply, in order.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::capture::Choice;

/// Longest line from a client in bytes.
pub const MAX_REQUEST: usize = 4096;
/// Longest line from the daemon in bytes.
pub const MAX_REPLY: usize = 8 << 20;

/// Prefix of a switch port's name in requests about faults, where a port can stand in for a device.
pub const PORT: &str = "port:";

/// A client's request.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
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
        /// Start of the page: 0, or `next` of the previous page.
        #[serde(default)]
        from: usize,
    },
    /// Some completion queues of a device: [`Reply::Cqs`].
    Cqs {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some shared receive queues of a device: [`Reply::Srqs`].
    Srqs {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some multicast groups of a device: [`Reply::Groups`].
    Groups {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some flows of a device: [`Reply::Flows`].
    Flows {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some completion counters of a device: [`Reply::CompletionCounters`].
    CompletionCounters {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some memory regions of a device: [`Reply::Mrs`].
    Mrs {
        /// Name of the device.
        device: String,
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Some memory windows of a device: [`Reply::Mws`].
    Mws {
        /// Name of the device.
        device: String,
        /// Start of the page.
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
    /// Changes the rate limit of a device: [`Reply::Done`].
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
        /// Start of the page.
        #[serde(default)]
        from: usize,
    },
    /// Part of the list of links of the InfiniBand subnet, in the order of its topology: [`Reply::SubnetLinks`].
    SubnetLinks {
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Part of a credit loop in the routing of the InfiniBand subnet, if it has one: [`Reply::SubnetLanes`].
    SubnetCreditLoop {
        /// Where the page begins.
        #[serde(default)]
        from: usize,
    },
    /// Changes a link of the InfiniBand subnet: [`Reply::Done`].
    SetSubnetLink {
        /// One of its ends, as a topology names it: an HCA, or a switch and its port after a slash.
        end: String,
        /// Whether the cable is plugged in; unchanged if absent.
        #[serde(default)]
        up: Option<bool>,
        /// Probability that a bit arrives wrong, 0 to 1; unchanged if absent.
        #[serde(default)]
        bit_error_rate: Option<f64>,
    },
    /// Takes a switch of the InfiniBand subnet down, with all its links, or up again: [`Reply::Done`]. Links that are
    /// cut stay so.
    SetSubnetSwitch {
        /// Name of the switch.
        switch: String,
        /// Whether its ports work.
        up: bool,
    },
    /// Part of the list of what went wrong lately: [`Reply::Explanations`].
    Explain {
        /// Name of the device.
        device: String,
        /// Lowest number to return.
        #[serde(default)]
        from: u64,
    },
    /// Arms a fault, if the configuration allows it: [`Reply::FaultAdded`].
    FaultAdd {
        /// Name of the device, or [`PORT`] and the name of a port.
        device: String,
        /// Description of the fault: `NAME [KEY=VALUE]…`, see [`vrnic_engine::fault::spec`].
        fault: String,
    },
    /// Disarms one fault or all, if the configuration allows it: [`Reply::FaultsCleared`].
    FaultClear {
        /// Name of the device, or [`PORT`] and the name of a port.
        device: String,
        /// Number of the fault; all faults if absent.
        #[serde(default)]
        id: Option<u64>,
    },
    /// The faults of a device, including those that are no longer armed: [`Reply::Faults`].
    Faults {
        /// Name of the device, or [`PORT`] and the name of a port.
        device: String,
    },
    /// Part of the log of when faults fired: [`Reply::Firings`].
    FaultLog {
        /// Name of the device, or [`PORT`] and the name of a port.
        device: String,
        /// Lowest number to return.
        #[serde(default)]
        from: u64,
    },
    /// Starts a capture to the file whose descriptor comes with the request in an `SCM_RIGHTS` message:
    /// [`Reply::Capture`].
    CaptureStart {
        /// Name of the file in messages.
        name: String,
        /// What to capture.
        #[serde(default)]
        choice: Choice,
    },
    /// Stops a capture: [`Reply::Capture`], once its file is finished or takes too long.
    CaptureStop {
        /// Number of the capture.
        id: u64,
    },
    /// All running captures and some that have ended: [`Reply::Captures`].
    Captures,
    /// Starts a recording of a device to the file whose descriptor comes with the request in an `SCM_RIGHTS` message:
    /// [`Reply::Recording`]. If the device has no driver yet, the recording starts when it gets one.
    RecordStart {
        /// Name of the device.
        device: String,
        /// Name of the file in messages.
        name: String,
        /// Size in bytes at which the recording ends, approximately.
        #[serde(default)]
        max_bytes: Option<u64>,
    },
    /// Stops the recording of a device: [`Reply::Recording`], once its file is finished or takes too long.
    RecordStop {
        /// Name of the device.
        device: String,
    },
    /// The latest recording of each device, whether it waits, runs or has ended: [`Reply::Recordings`].
    Recordings,
    /// The latest calls to a device, since its last reset: [`Reply::Flight`].
    Flight {
        /// Name of the device.
        device: String,
        /// Whether to return the calls that led to its last failure instead, even if its driver has reset it since.
        #[serde(default)]
        failure: bool,
    },
    /// Some of the latest steps of a device: [`Reply::Trace`]. The device traces its steps while clients ask for them
    /// and for some seconds after.
    Trace {
        /// Name of the device.
        device: String,
        /// Lowest step number to return.
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

/// A reply of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// Why the request cannot be answered.
    Error(String),
    /// The request has been carried out; there is nothing to report.
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
    /// A page of flows.
    Flows(Page<Flow>),
    /// A page of completion counters.
    CompletionCounters(Page<CompletionCounter>),
    /// A page of memory regions.
    Mrs(Page<Mr>),
    /// A page of memory windows.
    Mws(Page<Mw>),
    /// All ports of the switch.
    Switch(Vec<SwitchPort>),
    /// A page of addresses.
    Addresses(Page<Address>),
    /// A page of links.
    SubnetLinks(Page<SubnetLink>),
    /// A page of lanes, each of which can wait for the next, and the last one for the first.
    SubnetLanes(Page<SubnetLane>),
    /// What went wrong, oldest first.
    Explanations(Vec<Explanation>),
    /// The number of the fault that was armed.
    FaultAdded(u64),
    /// How many faults were disarmed.
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
    /// Calls in words, oldest first; for a device that failed, those that led to the failure.
    Flight(Vec<String>),
    /// Steps of a device.
    Trace(Trace),
    /// The filter of the log.
    Log(String),
}

/// A part of a list.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Page<T> {
    /// Entries of this page.
    pub items: Vec<T>,
    /// Start of the next page; none if this is the last one.
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
    /// State of the link: `up`, or `down` if it was taken down by a client or a fault.
    pub link: String,
    /// Rate limit.
    #[serde(default)]
    pub rate_limit: RateLimit,
    /// Number of its VM, counted from 1; none without a driver. Devices with the same number use the memory of the same
    /// VM.
    pub vm: Option<usize>,
    /// Number of contexts.
    pub contexts: u32,
    /// Number of protection domains.
    pub pds: u32,
    /// Number of memory regions.
    pub mrs: usize,
    /// Number of completion queues.
    pub cqs: u32,
    /// Number of shared receive queues.
    pub srqs: u32,
    /// Number of queue pairs.
    pub qps: u32,
    /// Number of host memory ranges that its page lists take up.
    pub translations: usize,
    /// Its port; none if the device is not up.
    pub port: Option<Port>,
}

/// The rate limit of a device.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
pub struct RateLimit {
    /// Payload in bytes per second; no limit if absent.
    pub bytes: Option<NonZeroU64>,
    /// Requests per second; no limit if absent.
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
    /// `active`, or `down` because the device's link is down or because the driver wants it down.
    pub state: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Number of GIDs in use.
    pub gids: usize,
    /// Number of packets with a wrong P_Key.
    pub bad_pkeys: u32,
    /// Number of packets with a wrong Q_Key.
    pub bad_qkeys: u32,
    /// Counters, with the names that `rdma statistic` uses. For an RNIC on a wire, lost frames by reason follow:
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
    /// MAC address that packets with this GID use.
    pub mac: String,
    /// VLAN.
    pub vlan: Option<u16>,
}

/// A queue pair.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Qp {
    /// Number.
    pub qpn: u32,
    /// Type: RC, UC, UD, GSI, SMI, XRC_INI, XRC_TGT or RAW.
    pub kind: String,
    /// State, as the verbs name it.
    pub state: String,
    /// Number of the context.
    pub context: u32,
    /// Name of the process that owns the context; empty if unknown.
    #[serde(default)]
    pub process: String,
    /// PID of this process; 0 if unknown or if the guest's kernel owns the context.
    #[serde(default)]
    pub pid: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Number of the peer; 0 if not connected.
    pub peer_qpn: u32,
    /// GID of the peer; none if not connected.
    pub peer_gid: Option<String>,
    /// Path MTU: largest payload of a packet in bytes.
    pub mtu: u32,
    /// PSN of the next request.
    pub send_psn: u32,
    /// Oldest unacknowledged PSN.
    pub unacknowledged_psn: u32,
    /// PSN expected from the peer next.
    pub receive_psn: u32,
    /// Sends posted and not completed; none if the ring is broken.
    pub sends_posted: Option<u32>,
    /// Those of them that the device is working on.
    pub sends_in_flight: usize,
    /// Size of the send queue in entries.
    pub send_entries: u32,
    /// Receives posted and not used; none if the ring is broken.
    pub receives_posted: Option<u32>,
    /// Size of the receive queue in entries.
    pub receive_entries: u32,
    /// Reads and atomics of the peer that have not been answered.
    pub responses_waiting: usize,
    /// Number of the completion queue for sends.
    pub send_cqn: u32,
    /// Number of the completion queue for receives.
    pub receive_cqn: u32,
    /// Number of the shared receive queue, if the queue pair uses one.
    pub srqn: Option<u32>,
    /// Number of the XRC domain, if the queue pair belongs to one.
    #[serde(default)]
    pub xrcdn: Option<u32>,
    /// How fast it may send in kbit/s: its rate limit or the static rate of its path, whichever is lower; none if it
    /// has neither.
    #[serde(default)]
    pub rate_limit_kbps: Option<u32>,
    /// Bytes that it may send without a pause, as its program set them with the rate limit; 0 if the device chooses.
    #[serde(default)]
    pub max_burst: u32,
}

/// A completion queue.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Cq {
    /// Number.
    pub cqn: u32,
    /// Number of the context.
    pub context: u32,
    /// Completion vector.
    pub vector: u16,
    /// Size in entries.
    pub entries: u32,
    /// Number of completions that an event waits for; with less than 2, events do not wait.
    pub moderation_count: u32,
    /// Longest time that an event waits, in microseconds.
    pub moderation_period_us: u64,
    /// Number of completions that have not been polled; none if the consumer index is invalid.
    pub unread: Option<u32>,
    /// Whether `unread` is exact; otherwise it is an upper bound.
    #[serde(default = "yes")]
    pub exact: bool,
    /// Whether an event is requested; none if unknown.
    #[serde(default)]
    pub armed: Option<bool>,
    /// Number of queue pairs that use it.
    pub queue_pairs: usize,
    /// Whether it overran or lost its memory.
    pub failed: bool,
}

/// A shared receive queue.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Srq {
    /// Number.
    pub srqn: u32,
    /// Number of the context.
    pub context: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Size in entries.
    pub entries: u32,
    /// Number of receives that have not been taken; none if the ring is broken.
    pub posted: Option<u32>,
    /// Whether `posted` is exact; otherwise it is a lower bound.
    #[serde(default = "yes")]
    pub exact: bool,
    /// Limit: an event is raised when fewer receives are posted; 0 if none is requested.
    pub limit: u32,
    /// Number of queue pairs that use it.
    pub queue_pairs: u32,
    /// Number of the XRC domain, if it belongs to one.
    #[serde(default)]
    pub xrcdn: Option<u32>,
    /// Number of the completion queue for its receives, if it belongs to an XRC domain.
    #[serde(default)]
    pub cqn: Option<u32>,
    /// Whether it failed because of an invalid producer index or because it lost its memory.
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

/// A flow: which frames go to a raw packet queue pair.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Flow {
    /// Number.
    pub flow: u32,
    /// Queue pair that gets the frames, unless the flow drops them.
    pub qpn: u32,
    /// Type: `normal`, `all default` or `multicast default`.
    pub kind: String,
    /// Priority of a normal flow: the lowest number goes first.
    pub priority: u16,
    /// Whether a normal flow gets copies and leaves the frames to others.
    pub dont_trap: bool,
    /// Tag of its frames; 0 if it has none.
    #[serde(default)]
    pub tag: u32,
    /// Whether it drops its frames.
    #[serde(default)]
    pub drops: bool,
    /// Number of frames that it got.
    pub packets: u64,
    /// Number of bytes in them.
    pub bytes: u64,
    /// Names and values of the fields that a frame must have. A slash follows a value of which only some bits count:
    /// `10.77.0.0/16`, `0x0005/0xfff`. Every frame fits if there are none.
    pub fields: Vec<(String, String)>,
}

/// A completion counter.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct CompletionCounter {
    /// Number.
    pub counter: u32,
    /// Context that owns it.
    pub context: u32,
    /// Number of queue pairs that have it.
    pub qps: u32,
    /// Number of operations that succeeded.
    pub completions: u64,
    /// Number of operations that failed or were flushed.
    pub errors: u64,
}

/// A memory region.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Mr {
    /// Its key.
    pub key: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Access rights, in words.
    pub access: Vec<String>,
    /// Address of its first byte.
    pub iova: u64,
    /// Length in bytes; none if it covers all memory.
    pub length: Option<u64>,
    /// Number of host memory ranges that it takes up.
    pub translations: usize,
    /// Whether it can be used; false while it waits for a fast registration.
    #[serde(default = "yes")]
    pub valid: bool,
}

/// A memory window.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Mw {
    /// Its key.
    pub key: u32,
    /// Number of the protection domain.
    pub pd: u32,
    /// Type, as the verbs number it.
    pub kind: u32,
    /// What it is bound to; none if it is not bound.
    pub bound: Option<BoundMw>,
}

/// What a memory window is bound to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct BoundMw {
    /// Key of the region.
    pub region: u32,
    /// Address of its first byte.
    pub iova: u64,
    /// Length in bytes.
    pub length: u64,
    /// Access rights, in words.
    pub access: Vec<String>,
    /// Queue pair that bound it; 0 if that no longer exists.
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
    /// What else is attached: `stream`, `tap vrnic0`, `link 192.0.2.2:4789`, …
    pub medium: Option<String>,
    /// Whether `medium` is connected.
    pub medium_up: bool,
    /// Its own address, which no other port can claim.
    pub mac: Option<String>,
    /// MTU: largest size of a frame in bytes, without its Ethernet header and VLAN tag.
    pub mtu: usize,
    /// VLANs.
    pub vlans: String,
    /// Number of frames in the switch that wait for the port.
    pub waiting: usize,
    /// Frames and bytes in (`rx`) and out (`tx`), followed by dropped frames by reason.
    pub counters: Vec<(String, u64)>,
}

impl SwitchPort {
    /// Returns the value of a counter; 0 if there is none with that name.
    pub fn counter(&self, name: &str) -> u64 {
        let found = self.counters.iter().find(|(known, _)| known == name);
        found.map_or(0, |(_, value)| *value)
    }

    /// Returns the numbers of dropped frames by reason, without the reasons that did not occur.
    pub fn drops(&self) -> impl Iterator<Item = (&str, u64)> {
        let traffic = |name: &str| name.ends_with("_frames") || name.ends_with("_bytes");
        self.counters
            .iter()
            .filter(move |(name, value)| *value > 0 && !traffic(name))
            .map(|(name, value)| (name.as_str(), *value))
    }
}

/// A link of the InfiniBand subnet.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct SubnetLink {
    /// Its ends, as a topology names them: an HCA, or a switch and its port behind a slash.
    pub ends: [String; 2],
    /// `up`; `down` if its ports do not agree, or not yet; `off` if the switch at an end is down; or `cut`.
    pub state: String,
    /// Probability that a bit arrives wrong.
    pub bit_error_rate: f64,
}

/// A lane of a link of the InfiniBand subnet, in one direction.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct SubnetLane {
    /// The end by which packets enter the link, as a topology names it.
    pub from: String,
    /// The end by which they leave it.
    pub to: String,
    /// Number of the lane.
    pub lane: u8,
}

/// An address that the switch knows.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub mac: String,
    /// VLAN in which it was seen; none if it is a port's own address, which is valid in all VLANs of the port.
    pub vlan: Option<u16>,
    /// Name of the port at which it is.
    pub port: String,
    /// Seconds since the last frame from it; none if it is a port's own address.
    pub age_s: Option<u64>,
}

/// A capture.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Capture {
    /// Its number.
    pub id: u64,
    /// The file, under the name that the client gave it.
    pub file: String,
    /// What is captured.
    pub choice: Choice,
    /// Number of packets in the file.
    pub packets: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of packets that were not captured because the file was too slow.
    pub missing: u64,
    /// Why it ended: `stopped`, `full`, or what went wrong; none while it runs.
    pub ended: Option<String>,
}

impl Capture {
    /// Describes in words what is captured.
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
    /// The file, under the name that the client gave it.
    pub file: String,
    /// `waiting for the driver` of the device, `recording`, `ending`, or `ended: ` followed by the reason.
    pub state: String,
    /// Size of the file in bytes.
    pub bytes: u64,
}

impl Recording {
    /// Returns whether the file is finished.
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
    /// `armed`, `waits for N` (a fault) or `waits for NAME` (an event), `active` while its effect lasts, or `done`.
    pub progress: String,
    /// Number of occasions that matched.
    pub seen: u64,
    /// How often it fired.
    pub fired: u64,
}

/// One firing of a fault.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Firing {
    /// Number of the firing, counted from 0 for each device.
    pub number: u64,
    /// Time in nanoseconds of the devices' clock.
    pub nanoseconds: u64,
    /// Number of the fault.
    pub id: u64,
    /// Name of the fault's kind.
    pub name: String,
    /// Position of the occasion among those that matched, counted from 1.
    pub position: u64,
    /// Number of the queue pair; 0 if none was involved.
    pub qpn: u32,
    /// Number of its peer; 0 if there is none.
    pub peer_qpn: u32,
    /// Number of the completion queue; 0 if none was involved.
    pub cqn: u32,
    /// PSN of the packet.
    pub psn: Option<u32>,
    /// The occasion, in words.
    pub what: String,
}

/// Returns the default for messages from programs that do not know the field.
fn yes() -> bool {
    true
}

/// Some steps of a device.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Trace {
    /// Number of the first step. The others follow without a gap. If this is not the number that was requested, the
    /// steps before it are no longer available.
    pub first: u64,
    /// The steps, oldest first.
    pub steps: Vec<Step>,
    /// Number of later steps that are already available.
    pub waiting: usize,
}

/// Something that a device did.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Step {
    /// Time of the call to the device, in nanoseconds of the devices' clock, as in failures.
    pub nanoseconds: u64,
    /// Time of the step, in nanoseconds of a finer clock that all devices share.
    pub at: u64,
    /// Queue pair involved; 0 if none.
    pub qpn: u32,
    /// What the device did.
    #[serde(flatten)]
    pub act: Act,
    /// The objects involved, as they were at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<Object>,
}

/// An object involved in a step, as it was at that time.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(tag = "object", rename_all = "snake_case")]
pub enum Object {
    /// The memory region that a key names. The region's current key may end with another byte.
    Region {
        /// The key of the step.
        named: u32,
        /// The region.
        #[serde(flatten)]
        mr: Mr,
    },
    /// The memory window that a key names, likewise.
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
        /// Whether it named something until recently.
        removed: bool,
    },
    /// The completion queue of a completion or of an event. It includes that completion.
    Cq(Cq),
    /// The shared receive queue of a receive, of a message that found no receive, or of an event. It no longer includes
    /// that receive.
    Srq(Srq),
}

/// Returns access rights in words. Every region can be read locally.
fn rights(names: &[String]) -> String {
    if names.is_empty() {
        "local read".into()
    } else {
        names.join(", ")
    }
}

impl fmt::Display for Object {
    /// Writes one line.
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
                    "its region or window was removed"
                } else {
                    "no region or window has this key"
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
        /// `wr_id` of the work request.
        wr_id: u64,
        /// Operation.
        opcode: String,
        /// Number of bytes that it transfers.
        length: u64,
    },
    /// It took a receive.
    TookReceive {
        /// `wr_id` of the work request.
        wr_id: u64,
        /// The shared receive queue, if the receive came from one.
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
        /// `wr_id` of the work request.
        wr_id: u64,
        /// Operation.
        opcode: String,
        /// Completion status.
        status: String,
        /// Number of bytes received or read.
        length: u64,
        /// `vendor_error` of a completion with an error.
        vendor_error: u32,
    },
    /// It raised the event of a completion queue.
    Notified {
        /// The completion queue.
        cqn: u32,
    },
    /// It reported an asynchronous event to the driver.
    Raised {
        /// Name of the event.
        event: String,
        /// Number of the object.
        number: u32,
    },
    /// The queue pair changed its state. This follows the other steps of the call in which it happened.
    Moved {
        /// Previous state, as the verbs name it.
        from: String,
        /// New state.
        to: String,
    },
}

/// A packet, with the fields of its headers.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct TracedPacket {
    /// Name of the opcode.
    pub opcode: String,
    /// PSN.
    pub psn: u32,
    /// Queue pair at the other end; 0 if unknown.
    pub peer_qpn: u32,
    /// Length of the payload in bytes.
    pub length: u64,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Syndrome of an acknowledgement: `ACK`, or the kind of NAK.
    pub syndrome: Option<String>,
    /// Whether it is a NAK.
    pub negative: bool,
    /// Message sequence number of an acknowledgement.
    pub msn: Option<u32>,
    /// Remote key.
    pub rkey: Option<u32>,
    /// Remote address.
    pub address: Option<u64>,
    /// Length of the whole message in bytes, for a request that accesses remote memory.
    pub message_length: Option<u32>,
    /// Immediate data.
    pub immediate: Option<u32>,
    /// The fault that affected it.
    pub fault: Option<String>,
    /// Its transport headers, from the BTH to the payload, in hexadecimal digits. The local fabric has no frames;
    /// there, these are the headers that a frame would have.
    pub headers: String,
}

/// Something that went wrong.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Explanation {
    /// Number of the explanation, counted from 0 for each device.
    pub number: u64,
    /// Time in nanoseconds of the devices' clock.
    pub nanoseconds: u64,
    /// Number of the queue pair, of the completion queue for an `IBV_EVENT_CQ_ERR`, or of the shared receive queue for
    /// an `IBV_EVENT_SRQ_ERR`; 0 if none is involved.
    pub object: u32,
    /// Number of the queue pair's peer; 0 if there is none.
    pub peer_qpn: u32,
    /// What happened, in words.
    pub what: String,
    /// The check that failed, in words.
    pub why: Option<String>,
    /// The `vendor_error` of the check that failed.
    pub cause: Option<u32>,
    /// `wr_id` of the work request.
    pub wr_id: Option<u64>,
    /// PSN of the request or acknowledgement.
    pub psn: Option<u32>,
    /// Kind and PSN of the packet that was refused.
    pub packet: Option<(String, u32)>,
    /// The memory access that was refused.
    pub access: Option<Access>,
    /// How many times in a row it happened.
    pub count: u64,
}

/// A memory access that was refused.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Access {
    /// The key.
    pub key: u32,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Access rights that it needs, in words.
    pub rights: Vec<String>,
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
}

impl Explanation {
    /// Returns the kind of object that `object` refers to: `QP`, `CQ` or `SRQ`.
    pub fn object_kind(&self) -> &'static str {
        match self.what.as_str() {
            "event IBV_EVENT_CQ_ERR" => "CQ",
            "event IBV_EVENT_SRQ_ERR" => "SRQ",
            _ => "QP",
        }
    }
}

impl fmt::Display for Explanation {
    /// Writes one sentence.
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
