// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Segments: what queue pairs send to each other.
//!
//! A segment is a packet of the RDMA transport (IBTA volume 1, chapter 9) in the form of values.
//! Fabrics differ only in how much payload a segment may carry and in how it travels: the local
//! fabric hands the value itself to another device and its payload stays where it is until the
//! receiver copies it; a wire fabric writes the headers and the payload into a frame.

use crate::{
    fault::Kind,
    memory::{HostRange, Memory, Unmapped},
    psn::Psn,
    timer::rnr_timeout,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use vrnic_wire::{
    memory::access,
    port::{is_multicast, is_multicast_lid},
    work::{Selectivity, placement},
};

/// Most payload of a segment on the local fabric, in bytes.
pub const LOCAL_MTU: u32 = 64 * 1024;

/// Most payload of a datagram, in bytes, on every fabric: the port's active MTU.
pub const DATAGRAM_MTU: u32 = 4096;

/// A GID, most significant byte first.
pub type Gid = [u8; 16];

/// What the local route header of InfiniBand says (IBTA volume 1, 7.7).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LidRoute {
    /// LID of the sender.
    pub source: u16,
    /// LID of the destination, or of a multicast group.
    pub destination: u16,
    /// Whether there is a global route header, which has the GIDs, the hop limit and so on. Otherwise they are 0.
    pub global: bool,
}

/// Where a segment comes from and where it goes: what Ethernet, IP and UDP headers say, or the route headers of
/// InfiniBand.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// GID of the sender.
    pub source: Gid,
    /// GID of the destination: what the fabric finds the device by.
    pub destination: Gid,
    /// MAC address of the sender.
    pub source_mac: [u8; 6],
    /// MAC address of the destination or of the next hop.
    pub destination_mac: [u8; 6],
    /// VLAN or [`NO_VLAN`](vrnic_wire::port::NO_VLAN).
    pub vlan: u16,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// UDP port that the packets of one flow come from, so that switches spread flows, not packets.
    pub source_port: u16,
    /// Whether frames are of RoCE version 1, which has no UDP.
    pub roce_v1: bool,
    /// On InfiniBand, LIDs. MAC addresses, VLAN, port and RoCE mean nothing then.
    pub lids: Option<LidRoute>,
}

impl Path {
    /// Whether the destination is a multicast group.
    pub fn is_multicast(&self) -> bool {
        match self.lids {
            Some(lids) => is_multicast_lid(lids.destination),
            None => is_multicast(&self.destination),
        }
    }

    /// The multicast group that is the destination, if one is: its GID, and on InfiniBand its LID.
    pub fn group(&self) -> Group {
        (
            self.destination,
            self.lids.map_or(0, |lids| lids.destination),
        )
    }

    /// Whether a packet that came by this path is from the peer of a connection that sends by the path `sent`.
    pub(crate) fn answers(&self, sent: &Self) -> bool {
        let gids = self.source == sent.destination && self.destination == sent.source;
        match (self.lids, sent.lids) {
            (None, None) => gids,
            // Without a global route header there are no GIDs to compare.
            (Some(came), Some(sent)) => {
                gids && (came.source, came.destination) == (sent.destination, sent.source)
                    && came.global == sent.global
            }
            _ => false,
        }
    }
}

/// A multicast group: its GID, and on InfiniBand its LID, which is 0 otherwise.
pub type Group = (Gid, u16);

/// ECN field of a traffic class (RFC 3168).
pub const ECN_MASK: u8 = 3;
/// ECN field: the sender reacts to marks.
pub const ECN_CAPABLE: u8 = 2;
/// ECN field: a switch marked the packet because of congestion.
pub const ECN_MARKED: u8 = 3;

/// Where a packet stands in its message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The only one.
    Only,
}

impl Position {
    /// Where packet `index` of `count` stands.
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 == count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Whether a message begins with this packet.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The transport service of a connection, as the opcode of a packet names it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection. Opcodes of datagrams and of notifications say all themselves, so these are here too.
    #[default]
    Reliable,
    /// Unreliable connection. Only sends without a key to invalidate and writes belong to it.
    Unreliable,
    /// Extended reliable connection (IBTA volume 1, annex A14). All that a reliable connection has belongs to it.
    Xrc {
        /// The shared receive queue that a request is for, 24 bits (XRCETH); 0 in a response.
        srqn: u32,
    },
}

/// RDMA extended transport header: remote memory.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reth {
    /// Virtual address.
    pub address: u64,
    /// Key.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub length: u32,
}

/// What comes with the last packet of a send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Immediate(u32),
    /// A key to invalidate.
    Invalidate(u32),
}

/// Which atomic operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Stores `swap` if the value is `compare_add`.
    CompareSwap,
    /// Adds `compare_add`.
    FetchAdd,
}

/// Atomic extended transport header, and which operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Operation.
    pub kind: AtomicKind,
    /// Virtual address.
    pub address: u64,
    /// Key.
    pub rkey: u32,
    /// Value to compare with or to add.
    pub compare_add: u64,
    /// Value to store.
    pub swap: u64,
}

/// Flush extended transport header, and the memory that it is about (annex A19, 4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flush {
    /// Remote memory; address and length mean nothing if all of the region is meant.
    pub remote: Reth,
    /// [`placement`], 4 bits.
    pub placement: u8,
    /// [`Selectivity`], 2 bits.
    pub selectivity: u8,
}

impl Flush {
    /// Whether it says how far and how much.
    pub(crate) fn is_valid(&self) -> bool {
        self.placement != 0
            && self.placement & !placement::ALL == 0
            && Selectivity::try_from(self.selectivity).is_ok()
    }

    /// Whether it is about all of the region.
    pub(crate) fn is_whole(&self) -> bool {
        self.selectivity == Selectivity::Region.raw()
    }

    /// Whether what was written has to survive a loss of power.
    pub(crate) fn is_persistent(&self) -> bool {
        self.placement & placement::PERSISTENT != 0
    }

    /// The [`access`] rights that it needs.
    pub(crate) fn rights(&self) -> u32 {
        let right = |bit, right| if self.placement & bit != 0 { right } else { 0 };
        right(placement::GLOBAL, access::FLUSH_GLOBAL)
            | right(placement::PERSISTENT, access::FLUSH_PERSISTENT)
    }
}

/// Reason of a negative acknowledgement.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NakCode {
    /// A packet is missing; the PSN is that of the missing one.
    SequenceError,
    /// The request is not valid.
    InvalidRequest,
    /// The access is not allowed.
    RemoteAccess,
    /// The responder could not do it.
    RemoteOperation,
}

/// AETH syndrome (IBTA volume 1, 9.7.5.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Syndrome {
    /// Positive acknowledgement with the 5-bit credit count; 31 if credits are not counted.
    Ack {
        /// Credit count.
        credits: u8,
    },
    /// No receive was posted: try again after the time that the 5-bit code says.
    RnrNak {
        /// Timer code.
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
}

impl NakCode {
    /// What the standard calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SequenceError => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperation => "remote operational error",
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { .. } => f.write_str("ACK"),
            Self::RnrNak { timer } => {
                // A multiple of 10.
                let microseconds = rnr_timeout(*timer).as_micros();
                let (whole, part) = (microseconds / 1000, microseconds % 1000 / 10);
                write!(f, "RNR NAK, try again in {whole}.{part:02} ms")
            }
            Self::Nak(code) => write!(f, "NAK: {}", code.name()),
        }
    }
}

/// Credit count that says that credits are not counted.
pub const NO_CREDITS: u8 = 31;

impl Syndrome {
    /// A positive acknowledgement without a credit count.
    pub const ACK: Self = Self::Ack {
        credits: NO_CREDITS,
    };
}

/// ACK extended transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// Syndrome.
    pub syndrome: Syndrome,
    /// Messages that the responder completed, 24 bits.
    pub msn: u32,
}

/// What a segment is, with the extended headers that belong to it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Part of a send.
    Send {
        /// Place in the message.
        position: Position,
        /// What comes with the last packet; `Plain` before it.
        tail: SendTail,
    },
    /// Part of an RDMA write.
    Write {
        /// Place in the message.
        position: Position,
        /// Remote memory; with the packet that begins the message.
        reth: Option<Reth>,
        /// Immediate data; with the packet that ends the message.
        immediate: Option<u32>,
    },
    /// RDMA read request.
    ReadRequest(Reth),
    /// Atomic request.
    AtomicRequest(AtomicRequest),
    /// Flush request.
    FlushRequest(Flush),
    /// Atomic write, whose payload is the 8 bytes.
    AtomicWrite(Reth),
    /// Part of the response to a read; or, without payload, that to a flush or an atomic write.
    ReadResponse {
        /// Place in the response.
        position: Position,
        /// Acknowledgement; not in the middle.
        aeth: Option<Aeth>,
    },
    /// Acknowledgement.
    Acknowledge(Aeth),
    /// Acknowledgement of an atomic.
    AtomicAcknowledge {
        /// Acknowledgement.
        aeth: Aeth,
        /// Value before the operation.
        original: u64,
    },
    /// Datagram.
    Datagram {
        /// Q_Key.
        qkey: u32,
        /// Queue pair that sent it.
        source_qpn: u32,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// A packet with this opcode of the reliable connection, which is reserved or of an operation that there is not.
    Unknown(u8),
    /// Congestion notification packet: packets of the connection were marked (annex A17, 9).
    CongestionNotification,
}

impl Body {
    /// Whether this is a request that has a response of its own, which acknowledges it.
    pub const fn has_response(&self) -> bool {
        matches!(
            self,
            Self::ReadRequest(_)
                | Self::AtomicRequest(_)
                | Self::FlushRequest(_)
                | Self::AtomicWrite(_)
        )
    }

    /// Whether this is a response, which the requester half of the destination takes.
    pub const fn is_response(&self) -> bool {
        matches!(
            self,
            Self::ReadResponse { .. } | Self::Acknowledge(_) | Self::AtomicAcknowledge { .. }
        )
    }

    /// Whether this is a negative acknowledgement.
    pub const fn is_negative(&self) -> bool {
        matches!(self, Self::Acknowledge(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }))
    }

    /// The remote memory that a request names.
    pub fn reth(&self) -> Option<Reth> {
        match *self {
            Self::Write { reth, .. } => reth,
            Self::ReadRequest(reth) | Self::AtomicWrite(reth) => Some(reth),
            Self::FlushRequest(flush) => Some(flush.remote),
            Self::AtomicRequest(atomic) => Some(Reth {
                address: atomic.address,
                rkey: atomic.rkey,
                length: 8,
            }),
            _ => None,
        }
    }

    /// The key of the receiver that a request names: to access memory, or to invalidate it.
    pub fn key(&self) -> Option<u32> {
        match *self {
            Self::Send {
                tail: SendTail::Invalidate(key),
                ..
            } => Some(key),
            _ => self.reth().map(|reth| reth.rkey),
        }
    }
}

/// Payload of a segment.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Nothing.
    Empty,
    /// Memory of the sender's guest.
    Ranges(Vec<HostRange>),
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// The bytes where they arrived.
    Frame(&'a [u8]),
}

impl Payload<'_> {
    /// Bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Ranges(ranges) => ranges.iter().map(|range| range.length).sum(),
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Frame(bytes) => bytes.len() as u64,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The 8 bytes as a little-endian number, if there are 8 and they are not in guest memory.
    pub fn word(&self) -> Option<u64> {
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Frame(bytes) => *bytes,
            Self::Empty | Self::Ranges(_) => return None,
        };
        bytes.try_into().ok().map(u64::from_le_bytes)
    }

    /// Copies the payload from byte `skip` on into `to`, range after range, until one of both ends.
    pub fn copy_to<M: Memory>(
        &self,
        skip: u64,
        to: &[HostRange],
        memory: &M,
    ) -> Result<(), Unmapped> {
        match self {
            Self::Empty => Ok(()),
            Self::Ranges(from) => copy_ranges(from, skip, to, memory),
            Self::Bytes(bytes) => copy_bytes(bytes, skip, to, memory),
            Self::Frame(bytes) => copy_bytes(bytes, skip, to, memory),
        }
    }
}

/// Copies `bytes`, without the first `skip`, to `to`, until one of both ends.
fn copy_bytes<M: Memory>(
    bytes: &[u8],
    skip: u64,
    to: &[HostRange],
    memory: &M,
) -> Result<(), Unmapped> {
    let skip = usize::try_from(skip).map_err(|_| Unmapped)?;
    let mut rest = bytes.get(skip..).unwrap_or_default();
    for range in to {
        let length = rest
            .len()
            .min(usize::try_from(range.length).unwrap_or(usize::MAX));
        let (head, tail) = rest.split_at(length);
        memory.write_payload(*range, head)?;
        rest = tail;
    }
    Ok(())
}

/// Copies `from`, without its first `skip` bytes, to `to`, until one of both ends.
fn copy_ranges<M: Memory>(
    from: &[HostRange],
    mut skip: u64,
    to: &[HostRange],
    memory: &M,
) -> Result<(), Unmapped> {
    let mut targets = to.iter().copied();
    let mut target = HostRange {
        length: 0,
        ..match to.first() {
            Some(first) => *first,
            None => return Ok(()),
        }
    };
    for source in from {
        let skipped = skip.min(source.length);
        skip -= skipped;
        let mut source = source
            .slice(skipped, source.length - skipped)
            .ok_or(Unmapped)?;
        while source.length > 0 {
            if target.length == 0 {
                match targets.next() {
                    Some(next) => target = next,
                    None => return Ok(()),
                }
            }
            let length = source.length.min(target.length);
            if length > 0 {
                let piece = HostRange { length, ..source };
                memory.copy(piece, HostRange { length, ..target })?;
            }
            source.offset += length;
            source.length -= length;
            target.offset += length;
            target.length -= length;
        }
    }
    Ok(())
}

/// What is wrong with the frame of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its ICRC.
    Icrc,
    /// It ends early.
    Cut,
}

/// What a fault did to a packet. A fabric that makes frames makes them as damaged as this says; one
/// that does not lets the packet fall, and its receiver count it.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Touched {
    /// The fault.
    pub kind: Option<&'static Kind>,
    /// What is wrong with the frame.
    pub damage: Option<Damage>,
    /// Whether the fault keeps it back: it is only there [to be seen](Outbox::watched).
    pub withheld: bool,
}

impl Touched {
    /// Nothing was done.
    pub const NOT: Self = Self {
        kind: None,
        damage: None,
        withheld: false,
    };

    /// A fault of that kind did something.
    pub(crate) fn by(kind: &'static Kind) -> Self {
        Self {
            kind: Some(kind),
            ..Self::NOT
        }
    }
}

/// A packet.
#[derive(Clone, Debug)]
pub struct Segment<'a> {
    /// Where it comes from and where it goes.
    pub path: Path,
    /// Queue pair that sent it, for people; 0 if that is not known, for frames do not tell.
    pub source_qpn: u32,
    /// Queue pair at the destination, 24 bits.
    pub destination_qpn: u32,
    /// P_Key.
    pub pkey: u16,
    /// Sequence number.
    pub psn: Psn,
    /// Whether a completion of it counts as solicited.
    pub solicited: bool,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Whether the connection is in the migrated state, as any is that has no alternate path (MigReq). Of datagrams and
    /// of notifications it says nothing.
    pub migrated: bool,
    /// The transport service that its opcode names.
    pub service: Service,
    /// What it is.
    pub body: Body,
    /// Payload.
    pub payload: Payload<'a>,
    /// What a fault did to it.
    pub touched: Touched,
}

impl Segment<'_> {
    /// Replaces ranges of guest memory by a copy of the bytes in them.
    ///
    /// Ranges hold only until the device that sent the segment executes its next command, after
    /// which the guest may use the memory for something else. A fabric that keeps segments for
    /// longer detaches them.
    ///
    /// # Errors
    ///
    /// The memory is not mapped any more: the segment cannot be delivered.
    pub fn detach<M: Memory>(&mut self, memory: &M) -> Result<(), Unmapped> {
        if let Payload::Ranges(ranges) = &self.payload {
            let mut bytes = Vec::new();
            for range in ranges {
                let start = bytes.len();
                let length = usize::try_from(range.length).map_err(|_| Unmapped)?;
                bytes.resize(start + length, 0);
                memory.read_payload(*range, &mut bytes[start..])?;
            }
            self.payload = Payload::Bytes(bytes);
        }
        Ok(())
    }
}

impl Segment<'_> {
    /// The segment with a copy of its payload, wherever that is.
    ///
    /// # Errors
    ///
    /// The memory is not mapped any more.
    pub(crate) fn to_owned<M: Memory>(&self, memory: &M) -> Result<Segment<'static>, Unmapped> {
        let payload = match &self.payload {
            Payload::Empty => Payload::Empty,
            Payload::Ranges(ranges) => Payload::Ranges(ranges.clone()),
            Payload::Bytes(bytes) => Payload::Bytes(bytes.clone()),
            Payload::Frame(bytes) => Payload::Bytes(bytes.to_vec()),
        };
        let mut owned = Segment {
            payload,
            body: self.body,
            path: self.path,
            ..*self
        };
        owned.detach(memory)?;
        Ok(owned)
    }
}

/// Most vectors that an outbox keeps for reuse.
const MAX_SPARE: usize = 256;

/// Segments on their way from devices to the fabric, and vectors to make new ones of, so that a
/// message needs no allocation. One outbox may serve all devices of a worker.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Segments in the order in which they were sent; the fabric drains them.
    pub segments: Vec<Segment<'static>>,
    /// Whether somebody wants to see packets that faults keep back, and will [reveal](Self::reveal) them.
    pub watched: bool,
    /// Those, each with how many segments were sent before it.
    withheld: Vec<(usize, Segment<'static>)>,
    spare_ranges: Vec<Vec<HostRange>>,
    spare_bytes: Vec<Vec<u8>>,
}

impl Outbox {
    /// An empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty vector for ranges.
    pub(crate) fn ranges(&mut self) -> Vec<HostRange> {
        self.spare_ranges.pop().unwrap_or_default()
    }

    /// An empty vector for bytes.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        self.spare_bytes.pop().unwrap_or_default()
    }

    /// A fault keeps that packet back.
    pub(crate) fn withhold(&mut self, mut segment: Segment<'static>) {
        segment.touched.withheld = true;
        self.withheld.push((self.segments.len(), segment));
    }

    /// Puts what faults keep back, if that is watched, among the segments, for somebody to see and to drop.
    pub fn reveal(&mut self) {
        for (index, segment) in self.withheld.drain(..).rev() {
            self.segments
                .insert(index.min(self.segments.len()), segment);
        }
    }

    /// Takes back what a payload was made of.
    pub fn recycle(&mut self, payload: Payload) {
        match payload {
            Payload::Empty | Payload::Frame(_) => {}
            Payload::Ranges(mut ranges) => {
                if self.spare_ranges.len() < MAX_SPARE {
                    ranges.clear();
                    self.spare_ranges.push(ranges);
                }
            }
            Payload::Bytes(mut bytes) => {
                if self.spare_bytes.len() < MAX_SPARE {
                    bytes.clear();
                    self.spare_bytes.push(bytes);
                }
            }
        }
    }
}
