// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets of the link layer (IBTA volume 1, chapters 7 and 8), with the transport headers that a fabric reads (chapter
//! 9).
//!
//! ```text
//! LRH  [GRH]  BTH  extended headers  payload  pad  ICRC   VCRC
//! LRH  anything of a raw packet                           VCRC
//! ```

use crate::Lid;
use std::{error::Error, fmt};

/// Link type of packets in pcap and pcapng files, `LINKTYPE_INFINIBAND`. The packets begin with the local route header
/// and end with the variant CRC, like those of [`Packet::to_bytes`].
pub const LINKTYPE_INFINIBAND: u16 = 247;

/// Bytes of a local route header.
pub const LRH_LENGTH: usize = 8;
/// Bytes of a global route header.
pub const GRH_LENGTH: usize = 40;
/// Bytes of a base transport header.
pub const BTH_LENGTH: usize = 12;
/// Bytes of a datagram extended transport header.
pub const DETH_LENGTH: usize = 8;
/// Bytes of the invariant CRC.
pub const ICRC_LENGTH: usize = 4;
/// Bytes of the variant CRC.
pub const VCRC_LENGTH: usize = 2;
/// Maximum number of bytes of a packet that a link allows beyond the MTU (7.7.8).
pub const MAX_OVERHEAD: usize = 126;
/// Maximum MTU.
pub const MAX_MTU: usize = 4096;

/// Virtual lane of subnet management packets, which is not flow-controlled (7.6.1).
pub const MANAGEMENT_LANE: u8 = 15;

/// Next header of a GRH before a base transport header (8.3.4).
pub const GRH_NEXT_HEADER: u8 = 0x1b;

/// Opcode of an unreliable datagram (9.2.1), "send only".
pub const UD_SEND_ONLY: u8 = 0x64;

/// Bits of a lane, of a service level, and of the version of a header.
const LOW_4: u8 = 0xf;
/// Bits of a flow label.
const LOW_20: u32 = 0xf_ffff;
/// Bits of the number of a queue pair and of a packet sequence number.
const LOW_24: u32 = 0xff_ffff;
/// Bits of the length in a local route header.
const LOW_11: u16 = 0x7ff;

/// What follows the local route header (7.7.5).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum NextHeader {
    /// A raw packet with an EtherType.
    RawEtherType = 0,
    /// A raw IPv6 packet.
    RawIpv6 = 1,
    /// A base transport header.
    Local = 2,
    /// A global route header, and then a base transport header.
    Global = 3,
}

/// Local route header (7.7).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Lrh {
    /// Virtual lane.
    pub lane: u8,
    /// Link version, 0.
    pub version: u8,
    /// Service level.
    pub service_level: u8,
    /// What follows the header.
    pub next: NextHeader,
    /// Destination LID.
    pub destination: Lid,
    /// Length in words of 4 bytes, from the start of this header to the end of the packet without the variant CRC.
    pub length: u16,
    /// Source LID.
    pub source: Lid,
}

impl Lrh {
    /// Reads the header at the beginning of `frame`. Returns `None` if `frame` is too short.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let &[first, second, d0, d1, l0, l1, s0, s1] = frame.first_chunk()?;
        Some(Self {
            lane: first >> 4,
            version: first & 0xf,
            service_level: second >> 4,
            next: match second & 3 {
                0 => NextHeader::RawEtherType,
                1 => NextHeader::RawIpv6,
                2 => NextHeader::Local,
                _ => NextHeader::Global,
            },
            destination: u16::from_be_bytes([d0, d1]),
            length: u16::from_be_bytes([l0, l1]) & LOW_11,
            source: u16::from_be_bytes([s0, s1]),
        })
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(self) -> [u8; LRH_LENGTH] {
        let [d0, d1] = self.destination.to_be_bytes();
        let [l0, l1] = (self.length & LOW_11).to_be_bytes();
        let [s0, s1] = self.source.to_be_bytes();
        let first = self.lane << 4 | self.version & LOW_4;
        let second = self.service_level << 4 | self.next as u8;
        [first, second, d0, d1, l0, l1, s0, s1]
    }

    /// Returns whether the packet is in the lane of subnet management.
    pub const fn is_management(&self) -> bool {
        self.lane == MANAGEMENT_LANE
    }
}

/// Global route header (8.3).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// What follows: [`GRH_NEXT_HEADER`].
    pub next_header: u8,
    /// Hop limit, which only routers between subnets decrement.
    pub hop_limit: u8,
    /// GID of the source.
    pub source: [u8; 16],
    /// GID of the destination.
    pub destination: [u8; 16],
}

impl Grh {
    fn parse(bytes: &[u8; GRH_LENGTH]) -> Option<Self> {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let (mut source, mut destination) = ([0; 16], [0; 16]);
        source.copy_from_slice(&bytes[8..24]);
        destination.copy_from_slice(&bytes[24..]);
        let next = bytes[6];
        (word >> 28 == 6 && next == GRH_NEXT_HEADER).then_some(Self {
            traffic_class: (word >> 20) as u8,
            flow_label: word & LOW_20,
            next_header: next,
            hop_limit: bytes[7],
            source,
            destination,
        })
    }

    fn put(&self, length: usize, to: &mut Vec<u8>) {
        let word = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & LOW_20;
        to.extend(word.to_be_bytes());
        to.extend((length as u16).to_be_bytes());
        to.extend([self.next_header, self.hop_limit]);
        to.extend(self.source);
        to.extend(self.destination);
    }
}

/// Base transport header (9.2).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Bth {
    /// Transport and operation.
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// MigReq bit, which is set on connections without an alternate path.
    pub migrated: bool,
    /// Number of pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Version of the header, 0.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Congestion notifications and reserved bits. The invariant CRC does not cover them.
    pub congestion: u8,
    /// Destination QP, 24 bits.
    pub destination_qp: u32,
    /// Acknowledgement requested.
    pub ack_request: bool,
    /// Packet sequence number, 24 bits.
    pub psn: u32,
}

impl Bth {
    /// Reads the header.
    pub fn parse(bytes: &[u8; BTH_LENGTH]) -> Self {
        let word = |at: usize| u32::from_be_bytes([0, bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            opcode: bytes[0],
            solicited: bytes[1] & 0x80 != 0,
            migrated: bytes[1] & 0x40 != 0,
            pad: bytes[1] >> 4 & 3,
            version: bytes[1] & 0xf,
            pkey: u16::from_be_bytes([bytes[2], bytes[3]]),
            congestion: bytes[4],
            destination_qp: word(4),
            ack_request: bytes[8] & 0x80 != 0,
            psn: word(8),
        }
    }

    /// Returns the bytes of the header.
    pub fn to_bytes(self) -> [u8; BTH_LENGTH] {
        let flags = u8::from(self.solicited) << 7
            | u8::from(self.migrated) << 6
            | (self.pad & 3) << 4
            | self.version & LOW_4;
        let [p0, p1] = self.pkey.to_be_bytes();
        let queue = u32::from(self.congestion) << 24 | self.destination_qp & LOW_24;
        let [q0, q1, q2, q3] = queue.to_be_bytes();
        let sequence = u32::from(self.ack_request) << 31 | self.psn & LOW_24;
        let [s0, s1, s2, s3] = sequence.to_be_bytes();
        [self.opcode, flags, p0, p1, q0, q1, q2, q3, s0, s1, s2, s3]
    }
}

/// Datagram extended transport header (9.3.2).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub struct Deth {
    /// Q_Key.
    pub qkey: u32,
    /// QP of the sender, 24 bits.
    pub source_qp: u32,
}

/// Contents of a packet after its local route header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A packet with transport headers.
    Transport {
        /// Global route header, if there is one.
        grh: Option<Grh>,
        /// Base transport header.
        bth: Bth,
        /// Extended headers, payload and pad.
        rest: Vec<u8>,
    },
    /// A raw packet.
    Raw(Vec<u8>),
}

/// A packet without its lengths and CRCs, which are computed from the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Virtual lane.
    pub lane: u8,
    /// Service level.
    pub service_level: u8,
    /// Source LID.
    pub source: Lid,
    /// Destination LID.
    pub destination: Lid,
    /// Contents after the local route header.
    pub body: Body,
}

/// Why bytes are not a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum PacketError {
    /// The bytes end within a header.
    Truncated,
    /// The length in the local route header is not that of the bytes.
    Length,
    /// The variant CRC is wrong.
    Vcrc,
    /// The link version is not 0.
    LinkVersion,
    /// The version, the length or the next header of the global route header is wrong.
    Grh,
    /// The invariant CRC is wrong.
    Icrc,
    /// The pad is longer than the contents before it.
    Pad,
}

impl fmt::Display for PacketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "packet ends within a header",
            Self::Length => "length in the local route header is wrong",
            Self::Vcrc => "variant CRC is wrong",
            Self::LinkVersion => "link version is not 0",
            Self::Grh => "global route header is not valid",
            Self::Icrc => "invariant CRC is wrong",
            Self::Pad => "pad count exceeds the payload",
        })
    }
}

impl Error for PacketError {}

/// Checks a frame as every receiver and switch does (7.3): its length, link version and variant CRC.
///
/// # Errors
///
/// The first check that fails.
pub fn check(frame: &[u8]) -> Result<Lrh, PacketError> {
    let lrh = Lrh::parse(frame).ok_or(PacketError::Truncated)?;
    if frame.len() != usize::from(lrh.length) * 4 + VCRC_LENGTH {
        return Err(PacketError::Length);
    }
    let (covered, crc) = frame.split_at(frame.len() - VCRC_LENGTH);
    if vcrc(covered) != crc {
        return Err(PacketError::Vcrc);
    }
    if lrh.version != 0 {
        return Err(PacketError::LinkVersion);
    }
    Ok(lrh)
}

/// Moves the packet to another virtual lane and updates the variant CRC. `frame` must pass [`check`].
pub fn set_lane(frame: &mut [u8], lane: u8) {
    let Some(end) = frame.len().checked_sub(VCRC_LENGTH) else {
        return;
    };
    let (covered, crc) = frame.split_at_mut(end);
    if let Some(first) = covered.first_mut() {
        *first = *first & 0xf | lane << 4;
        crc.copy_from_slice(&vcrc(covered));
    }
}

/// Returns the base transport header of a frame that passes [`check`], if it has one. No CRC is checked.
pub fn transport(frame: &[u8]) -> Option<Bth> {
    let start = match Lrh::parse(frame)?.next {
        NextHeader::Local => LRH_LENGTH,
        NextHeader::Global => LRH_LENGTH + GRH_LENGTH,
        NextHeader::RawEtherType | NextHeader::RawIpv6 => return None,
    };
    frame.get(start..)?.first_chunk().map(Bth::parse)
}

impl Packet {
    /// Creates an unreliable datagram. It is in the lane of management if its destination QP is 0. Otherwise it is in
    /// lane 0, which the port that sends it replaces.
    pub fn datagram(
        addresses: (Lid, Lid),
        service_level: u8,
        bth: Bth,
        deth: Deth,
        payload: &[u8],
    ) -> Self {
        let pad = payload.len().next_multiple_of(4) - payload.len();
        let mut rest = Vec::with_capacity(DETH_LENGTH + payload.len() + pad);
        rest.extend(deth.qkey.to_be_bytes());
        rest.extend((deth.source_qp & LOW_24).to_be_bytes());
        rest.extend(payload);
        rest.resize(rest.len() + pad, 0);
        let bth = Bth {
            opcode: UD_SEND_ONLY,
            pad: pad as u8,
            ..bth
        };
        Self::of_transport(addresses, service_level, None, bth, rest)
    }

    /// Creates a packet from its headers and `rest`, which follows the base transport header and includes the pad. Its
    /// lane is chosen as in [`datagram`](Self::datagram).
    pub fn of_transport(
        addresses: (Lid, Lid),
        service_level: u8,
        grh: Option<Grh>,
        bth: Bth,
        rest: Vec<u8>,
    ) -> Self {
        Self {
            lane: if bth.destination_qp == 0 {
                MANAGEMENT_LANE
            } else {
                0
            },
            service_level,
            source: addresses.0,
            destination: addresses.1,
            body: Body::Transport { grh, bth, rest },
        }
    }

    /// Returns the headers and the payload of an unreliable datagram, or `None` for other packets.
    pub fn as_datagram(&self) -> Option<(&Bth, Deth, &[u8])> {
        let Body::Transport { bth, rest, .. } = &self.body else {
            return None;
        };
        let (deth, payload) = rest.split_first_chunk::<DETH_LENGTH>()?;
        let length = payload.len().checked_sub(bth.pad.into())?;
        let &[q0, q1, q2, q3, _, s1, s2, s3] = deth;
        let deth = Deth {
            qkey: u32::from_be_bytes([q0, q1, q2, q3]),
            source_qp: u32::from_be_bytes([0, s1, s2, s3]),
        };
        (bth.opcode == UD_SEND_ONLY).then_some((bth, deth, &payload[..length]))
    }

    /// Reads a frame from the local route header to the variant CRC.
    ///
    /// # Errors
    ///
    /// The first check that fails.
    pub fn parse(frame: &[u8]) -> Result<Self, PacketError> {
        let lrh = check(frame)?;
        let inner = &frame[LRH_LENGTH..frame.len() - VCRC_LENGTH];
        let packet = |body| Self {
            lane: lrh.lane,
            service_level: lrh.service_level,
            source: lrh.source,
            destination: lrh.destination,
            body,
        };
        let (grh, inner) = match lrh.next {
            NextHeader::RawEtherType | NextHeader::RawIpv6 => {
                return Ok(packet(Body::Raw(inner.to_vec())));
            }
            NextHeader::Local => (None, inner),
            NextHeader::Global => {
                let (grh, rest) = inner.split_first_chunk().ok_or(PacketError::Truncated)?;
                let payload = usize::from(u16::from_be_bytes([grh[4], grh[5]]));
                let grh = Grh::parse(grh).filter(|_| payload == rest.len());
                (Some(grh.ok_or(PacketError::Grh)?), rest)
            }
        };
        let (bth, rest) = inner.split_first_chunk().ok_or(PacketError::Truncated)?;
        let (rest, crc) = rest.split_last_chunk().ok_or(PacketError::Truncated)?;
        if icrc(&frame[..frame.len() - VCRC_LENGTH - ICRC_LENGTH]) != *crc {
            return Err(PacketError::Icrc);
        }
        let bth = Bth::parse(bth);
        if usize::from(bth.pad) > rest.len() {
            return Err(PacketError::Pad);
        }
        let rest = rest.to_vec();
        Ok(packet(Body::Transport { grh, bth, rest }))
    }

    /// Returns the number of bytes before the CRCs, and whether there is an invariant CRC.
    fn covered(&self) -> (usize, bool) {
        let (length, icrc) = match &self.body {
            Body::Raw(bytes) => (bytes.len(), false),
            Body::Transport { grh, rest, .. } => {
                let grh = grh.as_ref().map_or(0, |_| GRH_LENGTH);
                (grh + BTH_LENGTH + rest.len(), true)
            }
        };
        (LRH_LENGTH + length.next_multiple_of(4), icrc)
    }

    /// Returns the length of [`to_bytes`](Self::to_bytes).
    fn length(&self) -> usize {
        let (covered, icrc) = self.covered();
        covered + if icrc { ICRC_LENGTH } else { 0 } + VCRC_LENGTH
    }

    /// Returns the local route header.
    fn lrh(&self) -> Lrh {
        Lrh {
            lane: self.lane,
            version: 0,
            service_level: self.service_level,
            next: match &self.body {
                Body::Raw(_) => NextHeader::RawEtherType,
                Body::Transport { grh: None, .. } => NextHeader::Local,
                Body::Transport { grh: Some(_), .. } => NextHeader::Global,
            },
            destination: self.destination,
            length: (self.length() / 4) as u16 & LOW_11,
            source: self.source,
        }
    }

    /// Returns the bytes of the packet with its CRCs, and with zeros up to a whole number of words.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (covered, _) = self.covered();
        let mut frame = Vec::with_capacity(self.length());
        frame.extend(self.lrh().to_bytes());
        match &self.body {
            Body::Raw(bytes) => {
                frame.extend(bytes);
                frame.resize(covered, 0);
            }
            Body::Transport { grh, bth, rest } => {
                if let Some(grh) = grh {
                    grh.put(covered + ICRC_LENGTH - LRH_LENGTH - GRH_LENGTH, &mut frame);
                }
                frame.extend(bth.to_bytes());
                frame.extend(rest);
                frame.resize(covered, 0);
                frame.extend(icrc(&frame));
            }
        }
        frame.extend(vcrc(&frame));
        frame
    }
}

/// A packet on a link.
///
/// Until it is damaged, a packet from a node has the right lengths and CRCs, and ports need not compute and check them.
/// Both kinds of content behave the same, but a whole packet is faster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    content: Content,
    /// Number of switches that the frame has passed.
    hops: u8,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// A packet that stands for the bytes of [`Packet::to_bytes`]. [`From`] makes sure that reading them would give the
    /// same packet.
    Whole(Packet),
    /// Any bytes.
    Bytes(Vec<u8>),
}

impl From<Packet> for Frame {
    /// Reduces the fields to the bits that headers have room for, and pads the contents to whole words.
    fn from(mut packet: Packet) -> Self {
        packet.lane &= LOW_4;
        packet.service_level &= LOW_4;
        let bytes = match &mut packet.body {
            Body::Raw(bytes) => bytes,
            Body::Transport { grh, bth, rest } => {
                if let Some(grh) = grh {
                    grh.flow_label &= LOW_20;
                }
                bth.pad &= 3;
                bth.version &= LOW_4;
                bth.destination_qp &= LOW_24;
                bth.psn &= LOW_24;
                rest
            }
        };
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Content::Whole(packet).into()
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Content::Bytes(bytes).into()
    }
}

impl From<Content> for Frame {
    fn from(content: Content) -> Self {
        Self { content, hops: 0 }
    }
}

impl Frame {
    /// Returns the number of bytes from the local route header to the variant CRC.
    pub fn length(&self) -> usize {
        match &self.content {
            Content::Whole(packet) => packet.length(),
            Content::Bytes(bytes) => bytes.len(),
        }
    }

    /// Returns the bytes from the local route header to the variant CRC.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.content {
            Content::Whole(packet) => packet.to_bytes(),
            Content::Bytes(bytes) => bytes,
        }
    }

    /// Returns the packet.
    ///
    /// # Errors
    ///
    /// Those of [`Packet::parse`].
    pub fn into_packet(self) -> Result<Packet, PacketError> {
        match self.content {
            Content::Bytes(bytes) => Packet::parse(&bytes),
            Content::Whole(packet) => {
                if packet.length() / 4 > LOW_11.into() {
                    return Err(PacketError::Length);
                }
                match &packet.body {
                    Body::Transport { grh: Some(grh), .. }
                        if grh.next_header != GRH_NEXT_HEADER =>
                    {
                        Err(PacketError::Grh)
                    }
                    Body::Transport { bth, rest, .. } if usize::from(bth.pad) > rest.len() => {
                        Err(PacketError::Pad)
                    }
                    _ => Ok(packet),
                }
            }
        }
    }

    /// Checks the frame as [`check`] does.
    ///
    /// # Errors
    ///
    /// Those of [`check`].
    pub fn check(&self) -> Result<Lrh, PacketError> {
        match &self.content {
            Content::Bytes(bytes) => check(bytes),
            Content::Whole(packet) if packet.length() / 4 > LOW_11.into() => {
                Err(PacketError::Length)
            }
            Content::Whole(packet) => Ok(packet.lrh()),
        }
    }

    /// Returns the local route header without checking it, or `None` if the frame is shorter than the header.
    pub fn lrh(&self) -> Option<Lrh> {
        match &self.content {
            Content::Whole(packet) => Some(packet.lrh()),
            Content::Bytes(bytes) => Lrh::parse(bytes),
        }
    }

    /// Returns the base transport header as [`transport`] does.
    pub fn transport(&self) -> Option<Bth> {
        match &self.content {
            Content::Bytes(bytes) => transport(bytes),
            Content::Whole(packet) => match packet.body {
                Body::Transport { bth, .. } => Some(bth),
                Body::Raw(_) => None,
            },
        }
    }

    /// Returns the number of switches that the frame has passed.
    pub(crate) fn hops(&self) -> u8 {
        self.hops
    }

    /// Returns the frame with this number of passed switches.
    pub(crate) fn after(self, hops: u8) -> Self {
        Self { hops, ..self }
    }

    /// Returns the virtual lane, or 0 if there are no bytes.
    pub fn lane(&self) -> u8 {
        match &self.content {
            Content::Whole(packet) => packet.lane,
            Content::Bytes(bytes) => bytes.first().map_or(0, |byte| byte >> 4),
        }
    }

    /// Moves the frame to another lane as [`set_lane`] does.
    pub fn set_lane(&mut self, lane: u8) {
        match &mut self.content {
            Content::Whole(packet) => packet.lane = lane & LOW_4,
            Content::Bytes(bytes) => set_lane(bytes, lane),
        }
    }
}

/// Returns the invariant CRC (7.8.1), in transmission byte order, of a packet with a base transport header. `covered`
/// ends where the CRC begins. Fields that may change on the way count as ones: the congestion byte, without a global
/// route header the lane, and with one the whole local route header, the traffic class, the flow label and the hop
/// limit.
pub fn icrc(covered: &[u8]) -> [u8; ICRC_LENGTH] {
    let global = covered.get(1).is_some_and(|byte| byte & 3 == 3);
    let mut headers = [0; LRH_LENGTH + GRH_LENGTH + BTH_LENGTH];
    let length = covered.len().min(if global {
        headers.len()
    } else {
        LRH_LENGTH + BTH_LENGTH
    });
    let headers = &mut headers[..length];
    headers.copy_from_slice(&covered[..length]);
    let ones: &[(usize, u8)] = if global {
        for byte in headers.iter_mut().take(LRH_LENGTH) {
            *byte = 0xff;
        }
        &[
            (8, 0x0f),
            (9, 0xff),
            (10, 0xff),
            (11, 0xff),
            (15, 0xff),
            (52, 0xff),
        ]
    } else {
        &[(0, 0xf0), (12, 0xff)]
    };
    for &(place, mask) in ones {
        if let Some(byte) = headers.get_mut(place) {
            *byte |= mask;
        }
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(headers);
    crc.update(&covered[length..]);
    crc.finalize().to_le_bytes()
}

/// Polynomial of the variant CRC, x^16 + x^12 + x^3 + x + 1, with its bits reversed.
const VCRC_POLYNOMIAL: u16 = 0xd008;

/// Change of the variant CRC by each byte.
const VCRC_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 0 { 0 } else { VCRC_POLYNOMIAL };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns the variant CRC (7.8.2), in transmission byte order, of everything before it.
pub fn vcrc(covered: &[u8]) -> [u8; VCRC_LENGTH] {
    let step = |crc: u16, &byte: &u8| crc >> 8 ^ VCRC_TABLE[usize::from(crc as u8 ^ byte)];
    (!covered.iter().fold(0xffff, step)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    /// The sample packet of the standard (7.8.3): an RDMA write of 14 bytes without a GRH.
    const SAMPLE: [u8; 52] = [
        0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];
    const SAMPLE_ICRC: [u8; 4] = [0x96, 0x25, 0xb7, 0x5a];

    #[test]
    fn the_sample_of_the_standard_has_its_crc() {
        assert_eq!(icrc(&SAMPLE), SAMPLE_ICRC);
        let mut frame = [&SAMPLE[..], &SAMPLE_ICRC].concat();
        frame.extend(vcrc(&frame));
        let packet = Packet::parse(&frame).unwrap();
        assert_eq!(
            (
                packet.lane,
                packet.service_level,
                packet.destination,
                packet.source
            ),
            (7, 1, 0x375c, 0x17d2)
        );
        let Body::Transport {
            grh: None,
            bth,
            rest,
        } = &packet.body
        else {
            panic!("{packet:?}");
        };
        let expected = Bth {
            opcode: 0x0a,
            pad: 2,
            pkey: 0x2487,
            destination_qp: 0x87_b1b3,
            psn: 0x0d_ec2a,
            ..Bth::default()
        };
        assert_eq!((bth, rest.len()), (&expected, 32));
        assert_eq!(packet.to_bytes(), frame);
    }

    /// Tests the variant CRC by division: a frame followed by its CRC leaves the same remainder for any frame.
    #[test]
    fn the_variant_crc_leaves_a_constant_remainder() {
        let residue = |bytes: &[u8]| vcrc(&[bytes, &vcrc(bytes)].concat());
        assert_eq!(residue(&[]), residue(&SAMPLE));
        assert_eq!(residue(b"123456789"), residue(&SAMPLE));
        // Compute the CRC bit by bit, as it is defined.
        let slow = |bytes: &[u8]| {
            let mut crc = 0xffff_u16;
            for bit in bytes
                .iter()
                .flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1))
            {
                let out = crc & 1 ^ u16::from(bit);
                crc = (crc >> 1) ^ (out * 0b1101_0000_0000_1000);
            }
            (!crc).to_le_bytes()
        };
        assert_eq!(vcrc(&SAMPLE), slow(&SAMPLE));
    }

    #[test]
    fn a_switch_may_change_the_lane_and_nothing_else() {
        let mut frame =
            Packet::datagram((1, 2), 3, Bth::default(), Deth::default(), b"x").to_bytes();
        set_lane(&mut frame, 4);
        assert_eq!(Packet::parse(&frame).unwrap().lane, 4);
        for bit in 0..frame.len() * 8 {
            let mut damaged = frame.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Packet::parse(&damaged).is_err(), "bit {bit}");
            // A damaged frame with a repaired variant CRC fails the invariant CRC, except for bits that it does not
            // cover.
            let end = damaged.len() - VCRC_LENGTH;
            let crc = vcrc(&damaged[..end]);
            damaged[end..].copy_from_slice(&crc);
            // The bit that makes the packet a raw one is free too, because raw packets have no invariant CRC.
            let free = (4..8).contains(&bit) || bit == 9 || bit / 8 == 12 || bit / 8 >= end;
            assert_eq!(Packet::parse(&damaged).is_ok(), free, "bit {bit}");
        }
        for end in 0..frame.len() {
            assert!(Packet::parse(&frame[..end]).is_err());
        }
    }

    #[test]
    fn the_headers_of_the_transport_are_those_of_the_frame() {
        let transport = &SAMPLE[LRH_LENGTH..];
        let (header, rest) = transport.split_first_chunk().unwrap();
        let bth = Bth::parse(header);
        assert_eq!(bth.to_bytes(), *header);
        let packet = Packet::of_transport((0x17d2, 0x375c), 1, None, bth, rest.to_vec());
        let packet = Packet { lane: 7, ..packet };
        assert_eq!(packet.to_bytes()[..SAMPLE.len()], SAMPLE);
    }

    /// Any packet, including packets that cannot be sent.
    fn packets() -> impl Strategy<Value = Packet> {
        let grh = (any::<(u8, u32, u8, u8)>(), any::<[[u8; 16]; 2]>()).prop_map(
            |((traffic_class, flow_label, next_header, hop_limit), [source, destination])| Grh {
                traffic_class,
                flow_label,
                next_header,
                hop_limit,
                source,
                destination,
            },
        );
        let bth = any::<(u8, [bool; 3], u8, u8, u16, u8, u32, u32)>().prop_map(
            |(opcode, flags, pad, version, pkey, congestion, destination_qp, psn)| Bth {
                opcode,
                solicited: flags[0],
                migrated: flags[1],
                ack_request: flags[2],
                pad,
                version,
                pkey,
                congestion,
                destination_qp,
                psn,
            },
        );
        let length = prop_oneof![9 => 0_usize..40, 1 => 8100..8300_usize];
        let rest = length.prop_flat_map(|length| vec(any::<u8>(), length));
        let transport = (proptest::option::of(grh), bth, rest.clone())
            .prop_map(|(grh, bth, rest)| Body::Transport { grh, bth, rest });
        let body = prop_oneof![4 => transport, 1 => rest.prop_map(Body::Raw)];
        (any::<(u8, u8, Lid, Lid)>(), body).prop_map(
            |((lane, service_level, source, destination), body)| Packet {
                lane,
                service_level,
                source,
                destination,
                body,
            },
        )
    }

    proptest! {
        #[test]
        fn a_frame_is_the_same_with_and_without_bytes(packet in packets(), lane: u8) {
            let frames = [Frame::from(packet.clone()), Frame::from(packet.to_bytes())];
            let seen = frames.map(|mut frame| {
                let first = (frame.lane(), frame.lrh(), frame.check());
                frame.set_lane(lane & LOW_4);
                let bytes = frame.clone().into_bytes();
                let length = frame.length();
                (first, frame.lane(), frame.transport(), length, bytes, frame.into_packet())
            });
            prop_assert_eq!(&seen[0], &seen[1]);
        }
    }

    #[test]
    fn packets_with_a_grh_and_raw_ones_come_back() {
        let mut packet = Packet::datagram(
            (0x10, 0xc001),
            2,
            Bth {
                pkey: 0xffff,
                destination_qp: 0xff_ffff,
                ..Bth::default()
            },
            Deth {
                qkey: 0x0b1b,
                source_qp: 72,
            },
            b"hello",
        );
        let Body::Transport { grh, .. } = &mut packet.body else {
            unreachable!()
        };
        *grh = Some(Grh {
            traffic_class: 0x5a,
            flow_label: 0x1_2345,
            next_header: GRH_NEXT_HEADER,
            hop_limit: 1,
            source: [1; 16],
            destination: [0xff; 16],
        });
        let mut frame = packet.to_bytes();
        assert_eq!(Packet::parse(&frame), Ok(packet.clone()));
        let (bth, deth, payload) = packet.as_datagram().unwrap();
        assert_eq!((bth.pad, deth.source_qp, payload), (3, 72, &b"hello"[..]));
        assert_eq!(transport(&frame), Some(*bth));
        let mut other = packet.clone();
        if let Body::Transport { grh: Some(grh), .. } = &mut other.body {
            grh.next_header = 17;
        }
        assert_eq!(Packet::parse(&other.to_bytes()), Err(PacketError::Grh));
        // A router changes only the hop limit and the variant CRC.
        frame[15] = 0;
        set_lane(&mut frame, 0);
        assert!(Packet::parse(&frame).is_ok());

        let raw = Packet {
            body: Body::Raw(vec![8, 0, 1, 2]),
            ..packet
        };
        assert_eq!(Packet::parse(&raw.to_bytes()), Ok(raw.clone()));
        assert_eq!(transport(&raw.to_bytes()), None);
    }
}
