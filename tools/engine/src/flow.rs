// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows: which frames that arrive at the port go to which raw packet queue pairs.

mod headers;

use crate::{
    cause::Cause,
    inspect::{FlowSnapshot, TunnelSnapshot},
    scaling::Scaling,
    state::wire,
};
use headers::{Headers, Tunnel, TunnelWords, Words};
use serde::{Deserialize, Serialize};
use vrnic_wire::command::{
    CreateTunnelFlow, FlowCounters, FlowFields, FlowType, MAX_FLOW_TAG, MAX_LABELS, TunnelFields,
    flow_flags,
};
use zerocopy::transmute;

pub(crate) use headers::{is_tagged, network_of};

/// Largest number of flows of a device. Each frame is compared with all of them.
pub const MAX_FLOWS: usize = 512;

/// Largest number of flows that leave frames to others, and of flows with the same priority and fields. Each of them
/// may cost a copy of a frame.
pub const MAX_SHARED_FLOWS: usize = 64;

/// Length of the header of an Ethernet frame without a tag.
pub const FRAME_HEADER: usize = 14;

/// Length of a VLAN tag.
pub const FRAME_TAG: usize = 4;

/// Number of bytes at the start of a frame that determine which flows match it: an Ethernet header with a tag, the
/// longest headers of IPv4, GRE and MPLS, and another header of IPv4 with ports. The headers of an Ethernet frame in a
/// tunnel end before.
pub(crate) const FRAME_HEADERS: usize =
    FRAME_HEADER + FRAME_TAG + 60 + 16 + 4 * MAX_LABELS + 60 + 4;

/// A flow.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Flow {
    number: u32,
    qpn: u32,
    /// How the queue pair distributes frames, if it does not receive them itself.
    scaling: Option<Box<Scaling>>,
    #[serde(with = "wire")]
    flow_type: FlowType,
    priority: u16,
    /// Whether others get the frame, too.
    shares: bool,
    value: Words,
    mask: Words,
    /// The fields of the tunnel and of the packet in it, if any count.
    tunnel: Option<Box<TunnelMatch>>,
    /// The tag of its frames; 0 without one.
    tag: u32,
    /// Whether it drops its frames.
    drops: bool,
    /// Number of frames that it got.
    packets: u64,
    /// Number of bytes in them.
    bytes: u64,
}

/// The fields of a tunnel and of the packet in it that a frame must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TunnelMatch {
    value: TunnelWords,
    mask: TunnelWords,
    inner_value: Words,
    inner_mask: Words,
}

impl TunnelMatch {
    fn snapshot(&self) -> TunnelSnapshot {
        TunnelSnapshot {
            value: tunnel_fields_of(self.value),
            mask: tunnel_fields_of(self.mask),
            inner_value: fields_of(self.inner_value),
            inner_mask: fields_of(self.inner_mask),
        }
    }

    fn fits(&self, tunnel: &Tunnel<'_>) -> bool {
        let inner = &tunnel.inner;
        fit(&tunnel.value, &tunnel.present, &self.value, &self.mask)
            && fit(
                &inner.value,
                &inner.present,
                &self.inner_value,
                &self.inner_mask,
            )
    }
}

/// Returns whether the fields that are there include those that count, with the wanted values.
fn fit<const N: usize>(
    have: &[u64; N],
    present: &[u64; N],
    want: &[u64; N],
    mask: &[u64; N],
) -> bool {
    let words = have.iter().zip(present);
    words
        .zip(want.iter().zip(mask))
        .all(|((have, present), (want, mask))| (have ^ want) & mask == 0 && mask & !present == 0)
}

/// Returns whether a value has bits that do not count.
fn is_stray(value: &[u64], mask: &[u64]) -> bool {
    value
        .iter()
        .zip(mask)
        .any(|(value, mask)| value & !mask != 0)
}

impl Flow {
    /// Returns the position among flows that are not of the same age.
    fn rank(&self) -> (u8, u16) {
        (self.flow_type.raw(), self.priority)
    }

    /// Returns the queue pair that receives a frame with these fields.
    fn receiver(&self, headers: &Headers<'_>) -> Option<u32> {
        match &self.scaling {
            _ if self.drops => None,
            Some(scaling) => {
                scaling.queue_of(&fields_of(headers.value), &fields_of(headers.present))
            }
            None => Some(self.qpn),
        }
    }

    /// Returns whether this flow gets the same frames, at the same time.
    fn is_like(&self, other: &Self) -> bool {
        self.rank() == other.rank()
            && self.mask == other.mask
            && self.value == other.value
            && self.tunnel == other.tunnel
    }

    /// Returns whether an `other` flow for the same frames does something else with them.
    fn excludes(&self, other: &Self) -> bool {
        let tagged = other.tag != 0 && other.tag != self.tag;
        self.is_like(other) && self.shares == other.shares && (self.drops != other.drops || tagged)
    }
}

/// Returns the fields as words, which can be compared faster.
fn words_of(fields: FlowFields) -> Words {
    transmute!(fields)
}

/// Returns words as fields.
fn fields_of(words: Words) -> FlowFields {
    transmute!(words)
}

/// Returns the fields of a tunnel as words.
fn tunnel_words_of(fields: TunnelFields) -> TunnelWords {
    transmute!(fields)
}

/// Returns words as the fields of a tunnel.
fn tunnel_fields_of(words: TunnelWords) -> TunnelFields {
    transmute!(words)
}

/// Who gets a frame that arrived at the port for its network device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// Whether flows get it, which direct it to queue pairs or drop it.
    pub taken: bool,
    /// Whether the network device gets it.
    pub passes: bool,
}

/// A queue pair that gets a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowEnd {
    /// Number of the queue pair.
    pub qpn: u32,
    /// The tag of the frame.
    pub tag: u32,
}

/// Where a frame goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// The queue pairs that get it, each once.
    pub(crate) ends: Vec<FlowEnd>,
    /// Whether a flow drops it.
    pub(crate) is_dropped: bool,
    /// The places of the flows that get it.
    flows: Vec<usize>,
}

impl Route {
    /// Forgets the last frame.
    pub(crate) fn clear(&mut self) {
        self.ends.clear();
        self.is_dropped = false;
        self.flows.clear();
    }

    /// Returns whether flows get the frame.
    pub(crate) fn is_taken(&self) -> bool {
        !self.ends.is_empty() || self.is_dropped
    }

    fn add(&mut self, place: usize, flow: &Flow, headers: &Headers<'_>) {
        self.flows.push(place);
        self.is_dropped |= flow.drops;
        if let Some(qpn) = flow.receiver(headers)
            && self.ends.iter().all(|end| end.qpn != qpn)
        {
            self.ends.push(FlowEnd { qpn, tag: flow.tag });
        }
    }
}

/// The flows of a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct FlowTable {
    /// In the order in which they are tried.
    flows: Vec<Flow>,
    /// Number of the last new flow.
    last: u32,
}

impl FlowTable {
    /// Adds the flow of a request, whose queue pair and port are valid, and returns its number. `scaling` is that of
    /// the queue pair.
    ///
    /// # Errors
    ///
    /// The request is not valid, excluded by another flow, or there is no room for another flow.
    pub(crate) fn add(
        &mut self,
        request: &CreateTunnelFlow,
        scaling: Option<Box<Scaling>>,
    ) -> Result<u32, Cause> {
        let CreateTunnelFlow {
            flow: plain,
            tunnel_value,
            tunnel_mask,
            inner_value,
            inner_mask,
        } = request;
        for fields in [&plain.value, &plain.mask, inner_value, inner_mask] {
            if fields.reserved != 0 || fields.reserved_tail != [0; 4] {
                return Err(Cause::ReservedField);
            }
        }
        if tunnel_value.reserved != [0; 6] || tunnel_mask.reserved != [0; 6] {
            return Err(Cause::ReservedField);
        }
        let flow_type = FlowType::try_from(plain.flow_type).map_err(|_| Cause::FlowFields)?;
        let flags = plain.flags.get();
        if flags & !flow_flags::ALL != 0 {
            return Err(Cause::Flags);
        }
        let tag = plain.tag.get();
        let drops = flags & flow_flags::DROP != 0;
        let copies = flags & flow_flags::DONT_TRAP != 0 && !drops;
        let tunnel = TunnelMatch {
            value: tunnel_words_of(*tunnel_value),
            mask: tunnel_words_of(*tunnel_mask),
            inner_value: words_of(*inner_value),
            inner_mask: words_of(*inner_mask),
        };
        let stray = is_stray(&tunnel.value, &tunnel.mask)
            || is_stray(&tunnel.inner_value, &tunnel.inner_mask);
        let looks_inside =
            tunnel.mask != TunnelWords::default() || tunnel.inner_mask != Words::default();
        let mut flow = Flow {
            number: 0,
            qpn: plain.qpn.get(),
            scaling,
            flow_type,
            priority: plain.priority.get(),
            shares: flow_type != FlowType::Normal || copies,
            value: words_of(plain.value),
            mask: words_of(plain.mask),
            tunnel: looks_inside.then(|| Box::new(tunnel)),
            tag,
            drops,
            packets: 0,
            bytes: 0,
        };
        let has_fields = flow.mask != Words::default() || looks_inside;
        let is_plain = !has_fields && flow.priority == 0 && flags == 0 && tag == 0;
        if flow_type != FlowType::Normal && !is_plain
            || stray
            || is_stray(&flow.value, &flow.mask)
            || tag > MAX_FLOW_TAG
        {
            return Err(Cause::FlowFields);
        }
        if self.flows.iter().any(|it| it.excludes(&flow)) {
            return Err(Cause::FlowExists);
        }
        let count =
            |which: &dyn Fn(&Flow) -> bool| self.flows.iter().filter(|it| which(it)).count();
        if self.flows.len() >= MAX_FLOWS
            || flow.shares && count(&|it| it.shares) >= MAX_SHARED_FLOWS
            || count(&|it| it.is_like(&flow)) >= MAX_SHARED_FLOWS
        {
            return Err(Cause::LimitReached);
        }
        loop {
            self.last = self.last.wrapping_add(1);
            if self.last != 0 && count(&|it| it.number == self.last) == 0 {
                break;
            }
        }
        flow.number = self.last;
        let place = self.flows.partition_point(|it| it.rank() <= flow.rank());
        self.flows.insert(place, flow);
        Ok(self.last)
    }

    /// Removes the flow with this number. Returns whether there was one.
    pub(crate) fn remove(&mut self, number: u32) -> bool {
        let before = self.flows.len();
        self.flows.retain(|flow| flow.number != number);
        self.flows.len() != before
    }

    /// Removes all flows of a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        self.flows.retain(|flow| flow.qpn != qpn);
    }

    /// Returns the flows in the order in which they are tried.
    pub(crate) fn iter(&self) -> impl Iterator<Item = FlowSnapshot> {
        self.flows.iter().map(|flow| FlowSnapshot {
            number: flow.number,
            qpn: flow.qpn,
            flow_type: flow.flow_type,
            priority: flow.priority,
            dont_trap: flow.shares && flow.flow_type == FlowType::Normal,
            value: fields_of(flow.value),
            mask: fields_of(flow.mask),
            tunnel: flow.tunnel.as_ref().map(|tunnel| tunnel.snapshot()),
            tag: flow.tag,
            drops: flow.drops,
            packets: flow.packets,
            bytes: flow.bytes,
        })
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Returns whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Returns what a flow has got.
    pub(crate) fn counters(&self, number: u32) -> Option<FlowCounters> {
        let flow = self.flows.iter().find(|flow| flow.number == number)?;
        Some(FlowCounters {
            packets: flow.packets.into(),
            bytes: flow.bytes.into(),
        })
    }

    /// Counts a frame of this length for the flows that get it, which are the same as when it was
    /// [steered](Self::find).
    pub(crate) fn count(&mut self, route: &Route, length: u64) {
        for &place in &route.flows {
            if let Some(flow) = self.flows.get_mut(place) {
                flow.packets += 1;
                flow.bytes += length;
            }
        }
    }

    /// Appends the queue pairs that get a frame to `ends`. Returns whether the port's network device gets it, too.
    pub fn steer(&self, frame: &[u8], ends: &mut Vec<FlowEnd>) -> bool {
        let mut route = Route::default();
        let passes = self.find(frame, &mut route);
        ends.append(&mut route.ends);
        passes
    }

    /// Adds who gets a frame to `route`. Returns whether the port's network device gets it, too.
    pub(crate) fn find(&self, frame: &[u8], route: &mut Route) -> bool {
        let Some(headers) = Headers::of(frame) else {
            return true;
        };
        // It is read for the first flow that needs it.
        let mut tunnel = None;
        let mut fits = |flow: &Flow| {
            fit(&headers.value, &headers.present, &flow.value, &flow.mask)
                && flow.tunnel.as_ref().is_none_or(|wanted| {
                    wanted.fits(tunnel.get_or_insert_with(|| Tunnel::of(&headers)))
                })
        };
        let mut taken: Option<&Flow> = None;
        for (place, flow) in self.flows.iter().enumerate() {
            let gets = match (flow.flow_type, taken) {
                (FlowType::Normal, None) => fits(flow),
                (FlowType::Normal, Some(by)) if by.rank() == flow.rank() => flow.is_like(by),
                (_, Some(_)) => break,
                (FlowType::AllDefault, None) => true,
                (FlowType::MulticastDefault, None) => headers.multicast,
            };
            if !gets {
                continue;
            }
            route.add(place, flow, &headers);
            if !flow.shares && taken.is_none() {
                taken = Some(flow);
            }
        }
        taken.is_none_or(|flow| headers.multicast && !flow.drops)
    }
}
