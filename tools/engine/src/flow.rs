// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Flows: which frames that arrive at the port go to which raw packet queue pairs.

use crate::{cause::Cause, inspect::FlowSnapshot, scaling::Scaling, state::wire};
use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice,
    SingleVlanHeaderSlice, ether_type,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::command::{CreateFlow, FlowCounters, FlowFields, FlowType, flow_flags};
use zerocopy::transmute;

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
/// longest header of IPv4, and the ports.
pub(crate) const FRAME_HEADERS: usize = FRAME_HEADER + FRAME_TAG + 60 + 4;

/// Fields as words, which can be compared quickly.
type Words = [u64; size_of::<FlowFields>() / 8];

/// Returns whether a frame with this header, which must be complete, has a VLAN tag.
pub(crate) fn is_tagged(frame: &[u8]) -> bool {
    let header = Ethernet2HeaderSlice::from_slice(frame);
    header.is_ok_and(|header| header.ether_type() == ether_type::VLAN_TAGGED_FRAME)
}

/// Returns the Ethertype of a frame, behind its tag if it has one, and where its payload begins. `None` if the header
/// or the tag is not complete.
pub(crate) fn network_of(frame: &[u8]) -> Option<(EtherType, usize)> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    if ethernet.ether_type() != ether_type::VLAN_TAGGED_FRAME {
        return Some((ethernet.ether_type(), FRAME_HEADER));
    }
    let tag = SingleVlanHeaderSlice::from_slice(&frame[FRAME_HEADER..]).ok()?;
    Some((tag.ether_type(), FRAME_HEADER + FRAME_TAG))
}

/// The fields of a frame that flows can look at.
#[derive(Copy, Clone, Debug)]
struct Headers {
    /// Values of the fields; 0 if the frame does not have them.
    value: Words,
    /// The fields that the frame has.
    present: Words,
    /// Whether the destination is a group address.
    multicast: bool,
}

impl Headers {
    /// Reads the fields of a frame. Returns `None` if it has no complete Ethernet header.
    fn of(frame: &[u8]) -> Option<Self> {
        let (mut value, mut present) = (FlowFields::default(), FlowFields::default());
        let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        value.destination_mac = ethernet.destination();
        value.source_mac = ethernet.source();
        (present.destination_mac, present.source_mac) = ([0xff; 6], [0xff; 6]);
        let multicast = value.destination_mac[0] & 1 != 0;
        if let Some((ether_type, start)) = network_of(frame) {
            if start > FRAME_HEADER {
                value.vlan_tag = [frame[FRAME_HEADER], frame[FRAME_HEADER + 1]];
                present.vlan_tag = [0xff; 2];
            }
            value.ether_type = ether_type.0.to_be_bytes();
            present.ether_type = [0xff; 2];
            read_network(ether_type, &frame[start..], &mut value, &mut present);
        }
        Some(Self {
            value: transmute!(value),
            present: transmute!(present),
            multicast,
        })
    }

    /// Returns whether the frame has the fields of a flow.
    fn fit(&self, flow: &Flow) -> bool {
        let words = self.value.iter().zip(&self.present);
        words
            .zip(flow.value.iter().zip(&flow.mask))
            .all(|((have, present), (want, mask))| {
                (have ^ want) & mask == 0 && mask & !present == 0
            })
    }
}

/// Reads the fields of IP and of what is in it.
fn read_network(
    ether_type: EtherType,
    packet: &[u8],
    value: &mut FlowFields,
    present: &mut FlowFields,
) {
    let (length, fragment) = match ether_type {
        ether_type::IPV4 => {
            let Ok(ip) = Ipv4HeaderSlice::from_slice(packet) else {
                return;
            };
            value.source[12..].copy_from_slice(&ip.source());
            value.destination[12..].copy_from_slice(&ip.destination());
            value.protocol = ip.protocol().0;
            value.traffic_class = packet[1];
            value.hop_limit = ip.ttl();
            (ip.slice().len(), ip.is_fragmenting_payload())
        }
        ether_type::IPV6 => {
            let Ok(ip) = Ipv6HeaderSlice::from_slice(packet) else {
                return;
            };
            value.source = ip.source();
            value.destination = ip.destination();
            value.flow_label = ip.flow_label().value().to_be_bytes();
            present.flow_label = [0, 0x0f, 0xff, 0xff];
            value.protocol = ip.next_header().0;
            value.traffic_class = ip.traffic_class();
            value.hop_limit = ip.hop_limit();
            (ip.slice().len(), false)
        }
        _ => return,
    };
    (present.source, present.destination) = ([0xff; 16], [0xff; 16]);
    (present.protocol, present.traffic_class, present.hop_limit) = (0xff, 0xff, 0xff);
    let has_ports = [IpNumber::TCP.0, IpNumber::UDP.0].contains(&value.protocol) && !fragment;
    if has_ports && let Some([a, b, c, d]) = packet[length..].first_chunk::<4>() {
        (value.source_port, value.destination_port) = ([*a, *b], [*c, *d]);
        (present.source_port, present.destination_port) = ([0xff; 2], [0xff; 2]);
    }
}

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
    /// Number of frames that it got.
    packets: u64,
    /// Number of bytes in them.
    bytes: u64,
}

impl Flow {
    /// Returns the position among flows that are not of the same age.
    fn rank(&self) -> (u8, u16) {
        (self.flow_type.raw(), self.priority)
    }

    /// Returns the queue pair that receives a frame with these fields.
    fn receiver(&self, headers: &Headers) -> Option<u32> {
        match &self.scaling {
            Some(scaling) => {
                scaling.queue_of(&fields_of(headers.value), &fields_of(headers.present))
            }
            None => Some(self.qpn),
        }
    }

    /// Returns whether this flow gets the same frames, at the same time.
    fn is_like(&self, other: &Self) -> bool {
        self.rank() == other.rank() && self.mask == other.mask && self.value == other.value
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

/// Who gets a frame that arrived at the port for its network device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Steered {
    /// Whether flows direct it to queue pairs.
    pub taken: bool,
    /// Whether the network device gets it.
    pub passes: bool,
}

/// Where a frame goes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Route {
    /// The queue pairs that get it, each once.
    pub(crate) qpns: Vec<u32>,
    /// The places of the flows that get it.
    flows: Vec<usize>,
}

impl Route {
    /// Forgets the last frame.
    pub(crate) fn clear(&mut self) {
        self.qpns.clear();
        self.flows.clear();
    }

    fn add(&mut self, flow: usize, receiver: Option<u32>) {
        self.flows.push(flow);
        if let Some(qpn) = receiver
            && !self.qpns.contains(&qpn)
        {
            self.qpns.push(qpn);
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
    /// The request is not valid, or there is no room for another flow.
    pub(crate) fn add(
        &mut self,
        request: &CreateFlow,
        scaling: Option<Box<Scaling>>,
    ) -> Result<u32, Cause> {
        for fields in [&request.value, &request.mask] {
            if fields.reserved != 0 || fields.reserved_tail != [0; 4] {
                return Err(Cause::ReservedField);
            }
        }
        let flow_type = FlowType::try_from(request.flow_type).map_err(|_| Cause::FlowFields)?;
        let flags = request.flags.get();
        if flags & !flow_flags::ALL != 0 {
            return Err(Cause::Flags);
        }
        let mut flow = Flow {
            number: 0,
            qpn: request.qpn.get(),
            scaling,
            flow_type,
            priority: request.priority.get(),
            shares: flow_type != FlowType::Normal || flags & flow_flags::DONT_TRAP != 0,
            value: words_of(request.value),
            mask: words_of(request.mask),
            packets: 0,
            bytes: 0,
        };
        let normal = flow_type == FlowType::Normal;
        let plain = flow.mask == Words::default() && flow.priority == 0 && flags == 0;
        let stray = flow.value.iter().zip(&flow.mask);
        if !normal && !plain || stray.into_iter().any(|(value, mask)| value & !mask != 0) {
            return Err(Cause::FlowFields);
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

    /// Appends the queue pairs that get a frame to `qpns`. Returns whether the port's network device gets it, too.
    pub fn steer(&self, frame: &[u8], qpns: &mut Vec<u32>) -> bool {
        let mut route = Route::default();
        let passes = self.find(frame, &mut route);
        qpns.append(&mut route.qpns);
        passes
    }

    /// Adds who gets a frame to `route`. Returns whether the port's network device gets it, too.
    pub(crate) fn find(&self, frame: &[u8], route: &mut Route) -> bool {
        let Some(headers) = Headers::of(frame) else {
            return true;
        };
        let mut taken: Option<&Flow> = None;
        for (place, flow) in self.flows.iter().enumerate() {
            let gets = match (flow.flow_type, taken) {
                (FlowType::Normal, None) => headers.fit(flow),
                (FlowType::Normal, Some(by)) if by.rank() == flow.rank() => flow.is_like(by),
                (_, Some(_)) => break,
                (FlowType::AllDefault, None) => true,
                (FlowType::MulticastDefault, None) => headers.multicast,
            };
            if !gets {
                continue;
            }
            route.add(place, flow.receiver(&headers));
            if !flow.shares && taken.is_none() {
                taken = Some(flow);
            }
        }
        taken.is_none() || headers.multicast
    }
}
