// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Segments: what queue pairs send to each other.
//!
//! A segment is a packet of the RDMA transport (IBTA volume 1, chapter 9) in the form of values.
//! Fabrics differ only in how much payload a segment may carry and in how it travels. The local fabric passes the value
//! itself to another device, and the payload stays in place until the receiver copies it. A wire fabric writes the
//! headers and the payload to a frame.

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
    port::{DEFAULT_PKEY, is_multicast, is_multicast_lid},
    work::{Selectivity, placement},
};

/// Largest payload of a segment on the local fabric in bytes.
pub const LOCAL_MTU: u32 = 64 * 1024;

/// Largest payload of a datagram on every fabric in bytes: the port's active MTU.
pub const DATAGRAM_MTU: u32 = 4096;

/// A GID, most significant byte first.
pub type Gid = [u8; 16];

/// Contents of the local route header of InfiniBand (IBTA volume 1, 7.7).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LidRoute {
    /// LID of the sender.
    pub source: u16,
    /// LID of the destination, or of a multicast group.
    pub destination: u16,
    /// Whether there is a global route header, which has the GIDs, the hop limit and so on. If not, they are 0.
    pub global: bool,
}

/// Source and destination of a segment: the contents of Ethernet, IP and UDP headers, or of the route headers of
/// InfiniBand.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Path {
    /// GID of the sender.
    pub source: Gid,
    /// GID of the destination, by which the fabric finds the device.
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
    /// UDP source port of the packets of one flow, so that switches spread flows rather than packets.
    pub source_port: u16,
    /// Whether frames are RoCE version 1, which has no UDP.
    pub roce_v1: bool,
    /// LIDs on InfiniBand. MAC addresses, VLAN, source port and RoCE version have no meaning there.
    pub lids: Option<LidRoute>,
}

impl Path {
    /// Returns whether the destination is a multicast group.
    pub fn is_multicast(&self) -> bool {
        match self.lids {
            Some(lids) => is_multicast_lid(lids.destination),
            None => is_multicast(&self.destination),
        }
    }

    /// Returns the multicast group that is the destination: its GID, and on InfiniBand its LID.
    pub fn group(&self) -> Group {
        (
            self.destination,
            self.lids.map_or(0, |lids| lids.destination),
        )
    }

    /// Returns whether a packet with this path is from the peer of a connection that sends with the path `sent`.
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

/// Mask of the ECN field of a traffic class (RFC 3168).
pub const ECN_MASK: u8 = 3;
/// ECN field: the sender reacts to marks.
pub const ECN_CAPABLE: u8 = 2;
/// ECN field: a switch marked the packet because of congestion.
pub const ECN_MARKED: u8 = 3;

/// Position of a packet in its message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// First of several packets.
    First,
    /// Neither the first nor the last.
    Middle,
    /// Last of several packets.
    Last,
    /// Only packet.
    Only,
}

impl Position {
    /// Returns the position of packet `index` of `count`.
    pub const fn of(index: u32, count: u32) -> Self {
        match (index == 0, index + 1 == count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Returns whether a message begins with this packet.
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether a message ends with this packet.
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The transport service of a connection, as given by the opcode of a packet.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection. Opcodes of datagrams and notifications are unambiguous, so these packets have this value
    /// too.
    #[default]
    Reliable,
    /// Unreliable connection. It only has writes, and sends without a key to invalidate.
    Unreliable,
    /// Extended reliable connection (IBTA volume 1, annex A14). It has everything that a reliable connection has.
    Xrc {
        /// Number of the shared receive queue that a request is for, 24 bits (XRCETH); 0 in a response.
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
    /// Length of the whole message in bytes.
    pub length: u32,
}

/// What accompanies the last packet of a send.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SendTail {
    /// Nothing.
    Plain,
    /// Immediate data.
    Immediate(u32),
    /// A key to invalidate.
    Invalidate(u32),
}

/// An atomic operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Stores `swap` if the value is `compare_add`.
    CompareSwap,
    /// Adds `compare_add`.
    FetchAdd,
}

/// Atomic extended transport header, with the operation.
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

/// Flush extended transport header, with the memory to flush (annex A19, 4.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flush {
    /// Remote memory. Address and length have no meaning if the whole region is flushed.
    pub remote: Reth,
    /// [`placement`], 4 bits.
    pub placement: u8,
    /// [`Selectivity`], 2 bits.
    pub selectivity: u8,
}

impl Flush {
    /// Returns whether placement and selectivity are valid.
    pub(crate) fn is_valid(&self) -> bool {
        self.placement != 0
            && self.placement & !placement::ALL == 0
            && Selectivity::try_from(self.selectivity).is_ok()
    }

    /// Returns whether the whole region is flushed.
    pub(crate) fn is_whole(&self) -> bool {
        self.selectivity == Selectivity::Region.raw()
    }

    /// Returns whether the written data has to survive a loss of power.
    pub(crate) fn is_persistent(&self) -> bool {
        self.placement & placement::PERSISTENT != 0
    }

    /// Returns the [`access`] rights that the flush needs.
    pub(crate) fn rights(&self) -> u32 {
        let right = |bit, right| if self.placement & bit != 0 { right } else { 0 };
        right(placement::GLOBAL, access::FLUSH_GLOBAL)
            | right(placement::PERSISTENT, access::FLUSH_PERSISTENT)
    }
}

/// Reason of a negative acknowledgement.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NakCode {
    /// A packet is missing; the PSN is that of the missing packet.
    SequenceError,
    /// The request is not valid.
    InvalidRequest,
    /// The access is not allowed.
    RemoteAccess,
    /// The responder failed to execute the request.
    RemoteOperation,
}

/// AETH syndrome (IBTA volume 1, 9.7.5.1).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Syndrome {
    /// Positive acknowledgement with the 5-bit credit count, which is 31 if there is no credit count.
    Ack {
        /// Credit count.
        credits: u8,
    },
    /// No receive was posted: the requester retries after the time that the 5-bit code gives.
    RnrNak {
        /// Timer code.
        timer: u8,
    },
    /// Negative acknowledgement.
    Nak(NakCode),
}

impl NakCode {
    /// Returns the name of the code in the standard.
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

/// Credit count in an acknowledgement without credits.
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
    /// Number of messages that the responder completed, 24 bits.
    pub msn: u32,
}

/// Kind of segment, with its extended headers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Part of a send.
    Send {
        /// Position in the message.
        position: Position,
        /// What accompanies the last packet; `Plain` for others.
        tail: SendTail,
    },
    /// Part of an RDMA write.
    Write {
        /// Position in the message.
        position: Position,
        /// Remote memory; only in the packet that begins the message.
        reth: Option<Reth>,
        /// Immediate data; only in the packet that ends the message.
        immediate: Option<u32>,
    },
    /// RDMA read request.
    ReadRequest(Reth),
    /// Atomic request.
    AtomicRequest(AtomicRequest),
    /// Flush request.
    FlushRequest(Flush),
    /// Atomic write, whose payload is the 8 bytes to write.
    AtomicWrite(Reth),
    /// Part of the response to a read. Without payload, the response to a flush or an atomic write.
    ReadResponse {
        /// Position in the response.
        position: Position,
        /// Acknowledgement; none in the middle.
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
        /// Number of the queue pair that sent it.
        source_qpn: u32,
        /// Immediate data.
        immediate: Option<u32>,
    },
    /// A packet with this opcode of the reliable connection, which is reserved or whose operation does not exist.
    Unknown(u8),
    /// A whole Ethernet frame, from the destination address on, which is the payload. It belongs to no RDMA transport:
    /// the other parts of the segment have no meaning.
    Frame {
        /// Tag of the flow that directs it to the queue pair; 0 before it is directed to one.
        tag: u32,
    },
    /// Congestion notification packet: packets of the connection were marked (annex A17, 9).
    CongestionNotification,
}

impl Body {
    /// Returns whether this is a request with its own kind of response, which acknowledges it.
    pub const fn has_response(&self) -> bool {
        matches!(
            self,
            Self::ReadRequest(_)
                | Self::AtomicRequest(_)
                | Self::FlushRequest(_)
                | Self::AtomicWrite(_)
        )
    }

    /// Returns whether this is a response, which the requester of the destination handles.
    pub const fn is_response(&self) -> bool {
        matches!(
            self,
            Self::ReadResponse { .. } | Self::Acknowledge(_) | Self::AtomicAcknowledge { .. }
        )
    }

    /// Returns whether this is a negative acknowledgement.
    pub const fn is_negative(&self) -> bool {
        matches!(self, Self::Acknowledge(aeth) if !matches!(aeth.syndrome, Syndrome::Ack { .. }))
    }

    /// Returns the remote memory that a request names.
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

    /// Returns the receiver's key that a request uses to access memory, or invalidates.
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
    /// No payload.
    Empty,
    /// Memory of the sender's guest. No copy has been made.
    Ranges(Vec<HostRange>),
    /// The bytes themselves.
    Bytes(Vec<u8>),
    /// The bytes in the buffer in which they arrived.
    Frame(&'a [u8]),
}

impl Payload<'_> {
    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Ranges(ranges) => ranges.iter().map(|range| range.length).sum(),
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Frame(bytes) => bytes.len() as u64,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, or none if they are in guest memory.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Frame(bytes) => bytes,
            Self::Empty | Self::Ranges(_) => &[],
        }
    }

    /// Returns the payload as a little-endian number if it has 8 bytes that are not in guest memory.
    pub fn word(&self) -> Option<u64> {
        self.bytes().try_into().ok().map(u64::from_le_bytes)
    }

    /// Copies bytes from byte `skip` on to `buffer`, for the device to interpret.
    pub(crate) fn peek<M: Memory>(
        &self,
        mut skip: u64,
        buffer: &mut [u8],
        memory: &M,
    ) -> Result<(), Unmapped> {
        let Self::Ranges(ranges) = self else {
            let start = usize::try_from(skip).map_err(|_| Unmapped)?;
            let rest = self.bytes().get(start..).unwrap_or_default();
            buffer.copy_from_slice(rest.get(..buffer.len()).ok_or(Unmapped)?);
            return memory.interpret(buffer);
        };
        let mut rest = buffer;
        for range in ranges {
            let skipped = skip.min(range.length);
            skip -= skipped;
            let length = (range.length - skipped).min(rest.len() as u64);
            if length > 0 {
                let piece = range.slice(skipped, length).ok_or(Unmapped)?;
                let (head, tail) = rest.split_at_mut(length as usize);
                memory.read(piece, head)?;
                rest = tail;
            }
        }
        rest.is_empty().then_some(()).ok_or(Unmapped)
    }

    /// Copies the payload from byte `skip` on to the ranges `to` in turn, until either ends.
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

/// Copies `bytes`, without the first `skip`, to `to`, until either ends.
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

/// Copies `from`, without its first `skip` bytes, to `to`, until either ends.
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

/// Damage to the frame of a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its ICRC is wrong.
    Icrc,
    /// It is truncated.
    Cut,
    /// It has this version of the transport headers instead of 0. The ICRC is right.
    Version(u8),
    /// It has this pad count, but no payload. The ICRC is right.
    Pad(u8),
}

/// What a fault did to a packet. A fabric that makes frames damages them as described here. One that does not drops the
/// packet, and the receiver counts it.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Touched {
    /// The fault.
    pub kind: Option<&'static Kind>,
    /// Damage to the frame.
    pub damage: Option<Damage>,
    /// Whether the fault withholds the packet: it is only here [to be watched](Outbox::watched).
    pub withheld: bool,
}

impl Touched {
    /// No fault did anything.
    pub const NOT: Self = Self {
        kind: None,
        damage: None,
        withheld: false,
    };

    /// A fault of this kind did something.
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
    /// Source and destination.
    pub path: Path,
    /// Number of the queue pair that sent it, for display; 0 if unknown, because frames do not contain it.
    pub source_qpn: u32,
    /// Number of the queue pair at the destination, 24 bits.
    pub destination_qpn: u32,
    /// P_Key.
    pub pkey: u16,
    /// Sequence number.
    pub psn: Psn,
    /// Whether its completion counts as solicited.
    pub solicited: bool,
    /// Whether the requester requests an acknowledgement.
    pub ack_request: bool,
    /// Whether the connection is in the migrated state, as is any without an alternate path (MigReq). Has no meaning
    /// for datagrams and notifications.
    pub migrated: bool,
    /// Whether it is a frame or datagram with an IP packet whose checksums are right. The device that receives it finds
    /// out ([`Rnic::receive`](crate::Rnic::receive)).
    pub checksums_ok: bool,
    /// The transport service of its opcode.
    pub service: Service,
    /// Kind of segment with its extended headers.
    pub body: Body,
    /// Payload.
    pub payload: Payload<'a>,
    /// What a fault did to it.
    pub touched: Touched,
}

impl<'a> Segment<'a> {
    /// Takes out the payload, and leaves the rest.
    pub fn take_payload(&mut self) -> Payload<'a> {
        std::mem::replace(&mut self.payload, Payload::Empty)
    }

    /// Takes the segment, and leaves one without payload.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self {
            payload: self.take_payload(),
            ..*self
        }
    }

    /// Creates a segment with a whole Ethernet frame, from the destination address on.
    pub fn of_frame(frame: Payload<'a>) -> Self {
        Self {
            path: Path::default(),
            source_qpn: 0,
            destination_qpn: 0,
            pkey: DEFAULT_PKEY,
            psn: Psn::default(),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Frame { tag: 0 },
            payload: frame,
            checksums_ok: false,
            touched: Touched::NOT,
        }
    }
}

impl Segment<'_> {
    /// Replaces ranges of guest memory by a copy of the bytes in them.
    ///
    /// The ranges are only valid until the device that sent the segment executes its next command. After that, the
    /// guest may use the memory for something else. A fabric that keeps segments for longer detaches them.
    ///
    /// # Errors
    ///
    /// The memory is no longer mapped: the segment cannot be delivered.
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
    /// Returns the segment with its own copy of the payload, wherever that is.
    ///
    /// # Errors
    ///
    /// The memory is no longer mapped.
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

/// Largest number of vectors that an outbox keeps for reuse.
const MAX_SPARE: usize = 256;

/// Segments on their way from devices to the fabric, and spare vectors for new ones, so that a
/// message needs no allocation. One outbox may serve all devices of a worker.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Segments in the order in which they were sent; the fabric drains them.
    pub segments: Vec<Segment<'static>>,
    /// Whether the caller watches packets that faults withhold, and will [reveal](Self::reveal) them.
    pub watched: bool,
    /// Withheld packets, each with the number of segments that were sent before it.
    withheld: Vec<(usize, Segment<'static>)>,
    spare_ranges: Vec<Vec<HostRange>>,
    spare_bytes: Vec<Vec<u8>>,
}

impl Outbox {
    /// Creates an empty outbox.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty vector for ranges.
    pub(crate) fn ranges(&mut self) -> Vec<HostRange> {
        self.spare_ranges.pop().unwrap_or_default()
    }

    /// Returns an empty vector for bytes.
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        self.spare_bytes.pop().unwrap_or_default()
    }

    /// Withholds a packet because of a fault.
    pub(crate) fn withhold(&mut self, mut segment: Segment<'static>) {
        segment.touched.withheld = true;
        self.withheld.push((self.segments.len(), segment));
    }

    /// Inserts withheld packets, if they are watched, among the segments. The caller must look at them and drop them.
    pub fn reveal(&mut self) {
        for (index, segment) in self.withheld.drain(..).rev() {
            self.segments
                .insert(index.min(self.segments.len()), segment);
        }
    }

    /// Takes back the vector of a payload for reuse.
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
