// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The format of a recording, as described in the documentation of the [module](super).

use super::digest::Digest;
use crate::{
    fault::{self, Faults, Kind},
    flow::FRAME_HEADERS,
    limits::{Features, Limits},
    memory::{HostRange, RegionId},
    psn::Psn,
    rate::RateLimit,
    rnic::{LinkLayer, Recovery, RnicConfig, Segmentation},
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, Damage, Flush, Gid, LOCAL_MTU, LidRoute, NakCode,
        Path, Payload, Position, Reth, Segment, SendTail, Service, Syndrome, Touched,
    },
    subnet::{HcaPort, PortAnswer},
    time::Instant,
    turn::Budget,
};
use postcard::ser_flavors::Flavor;
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt, num::NonZeroU64};
use vrnic_wire::port::Mtu;

/// First bytes of a recording.
pub const MAGIC: [u8; 8] = *b"VRNICREC";

/// Version of the format. Older versions can be read too: the first had no states, the first two had each path in full
/// and bytewise digests, and the first three had no frames. A new kind of call needs no new version, because a reader
/// that does not know it says so.
pub const VERSION: u8 = 4;

/// Last version with each path in full and bytewise digests.
pub(crate) const BYTEWISE: u8 = 2;

/// Last version without frames.
const WITHOUT_FRAMES: u8 = 3;

/// Longest payload in bytes that is recorded. Only the length of longer ones is recorded, and they are zeros in a
/// replay, except for the headers of frames. What the engine interprets of other long payload is
/// [recorded](crate::memory::Memory::interpret) when it does.
pub const KEPT_PAYLOAD: usize = 64;

/// Largest payload in bytes that a recording may have.
const MAX_PAYLOAD: u64 = LOCAL_MTU as u64;

/// Latest time of a call in nanoseconds: near the end of the clock, everything that is delayed would be due again at
/// once.
const MAX_TIME: u64 = 1 << 62;

/// Largest count of a fault.
const MAX_COUNT: u64 = 1 << 56;

/// Length of the longest call, without its time, that may be written as a repetition of the previous one.
pub(crate) const MAX_REPEATED: usize = 256;

/// Returns the bytes that end a recording whose last call returned, with the reason.
pub fn ending(why: &str) -> Vec<u8> {
    let mut out = Vec::new();
    put_ending(&mut out, why);
    out
}

pub(crate) fn put_ending(out: &mut Vec<u8>, why: &str) {
    out.number(0);
    out.byte(tag::OVER);
    out.string(why.as_bytes());
}

/// Why bytes are not a valid or complete recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecording {
    /// Position in the file.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl fmt::Display for BadRecording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at byte {})", self.what, self.at)
    }
}

impl std::error::Error for BadRecording {}

/// First bytes of accesses, of ends of calls, and of calls.
pub(crate) mod tag {
    pub(crate) const END: u8 = 0;
    pub(crate) const DONE: u8 = 1;
    pub(crate) const UNMAPPED: u8 = 2;
    pub(crate) const READ: u8 = 3;
    pub(crate) const SKIPPED: u8 = 4;
    pub(crate) const WORD: u8 = 5;
    pub(crate) const RESOLVED: u8 = 6;
    pub(crate) const NOTHING: u8 = 7;
    pub(crate) const LENGTH: u8 = 8;
    pub(crate) const PANIC: u8 = 15;
    pub(crate) const EXECUTE: u8 = 16;
    pub(crate) const DOORBELL: u8 = 17;
    pub(crate) const POLL: u8 = 18;
    pub(crate) const PREPARE_SLEEP: u8 = 19;
    pub(crate) const RECEIVE: u8 = 20;
    pub(crate) const BAD_PACKET: u8 = 21;
    pub(crate) const ADVANCE: u8 = 22;
    pub(crate) const ASYNC_EVENT: u8 = 23;
    pub(crate) const COMPLETION_EVENT: u8 = 24;
    pub(crate) const SET_LINK: u8 = 25;
    pub(crate) const ARM: u8 = 26;
    pub(crate) const CLEAR: u8 = 27;
    pub(crate) const SET_FAULTS: u8 = 28;
    pub(crate) const NEXT_SYNC: u8 = 29;
    pub(crate) const SYNCED: u8 = 30;
    pub(crate) const TAKE_DELIVERY: u8 = 31;
    pub(crate) const EXPLANATION: u8 = 32;
    pub(crate) const SET_RATE_LIMIT: u8 = 33;
    pub(crate) const BOUNDED_POLL: u8 = 34;
    pub(crate) const MARK: u8 = 35;
    pub(crate) const SET_HCA_PORT: u8 = 36;
    pub(crate) const PORT_REQUEST: u8 = 37;
    pub(crate) const PORT_ANSWER: u8 = 38;
    pub(crate) const VIOLATION: u8 = 39;
    pub(crate) const PAUSE: u8 = 40;
    pub(crate) const RESUME: u8 = 41;
    pub(crate) const REPEAT: u8 = 64;
    pub(crate) const OVER: u8 = 65;
}

/// Appends values to a recording.
pub(crate) trait Put {
    fn byte(&mut self, value: u8);
    fn bytes(&mut self, bytes: &[u8]);

    /// Appends a number in groups of 7 bits, lowest first; all bytes but the last have bit 7 set.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80);
            value >>= 7;
        }
        self.byte(value as u8);
    }

    /// Appends bytes after their length.
    fn string(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.bytes(bytes);
    }

    /// Appends whether there is a number, and the number.
    fn option(&mut self, value: Option<u64>) {
        self.byte(value.is_some().into());
        if let Some(value) = value {
            self.number(value);
        }
    }
}

impl Put for Vec<u8> {
    fn byte(&mut self, value: u8) {
        self.push(value);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Largest number of bytes of a number.
const MAX_NUMBER: usize = 10;

/// Encodes a signed difference as an unsigned number that is small if the difference is.
pub(crate) const fn fold_sign(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

const fn unfold_sign(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Takes values from a recording.
#[derive(Clone, Debug)]
pub(crate) struct Take<'a> {
    all: &'a [u8],
    pub(crate) at: usize,
}

type Taken<T> = Result<T, BadRecording>;

impl<'a> Take<'a> {
    pub(crate) fn new(all: &'a [u8]) -> Self {
        Self { all, at: 0 }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.all.len()
    }

    pub(crate) fn bad<T>(&self, what: &'static str) -> Taken<T> {
        Err(BadRecording { at: self.at, what })
    }

    /// Returns the bytes from `start` to the current position.
    pub(crate) fn since(&self, start: usize) -> &'a [u8] {
        &self.all[start..self.at]
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Taken<&'a [u8]> {
        let end = self.at.checked_add(count);
        match end.and_then(|end| self.all.get(self.at..end)) {
            Some(bytes) => {
                self.at += count;
                Ok(bytes)
            }
            None => self.bad("the recording is cut off in the middle of an item"),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Taken<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.bytes(N)?);
        Ok(array)
    }

    pub(crate) fn byte(&mut self) -> Taken<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn number(&mut self) -> Taken<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        self.bad("a number has too many bits")
    }

    /// Takes a number, which must fit the type.
    pub(crate) fn small<T: TryFrom<u64>>(&mut self) -> Taken<T> {
        let value = self.number()?;
        T::try_from(value).or_else(|_| self.bad("a number is too large"))
    }

    pub(crate) fn flag(&mut self) -> Taken<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.bad("a boolean is neither 0 nor 1"),
        }
    }

    pub(crate) fn string(&mut self) -> Taken<&'a [u8]> {
        let length = self.small()?;
        self.bytes(length)
    }

    pub(crate) fn text(&mut self) -> Taken<&'a str> {
        let bytes = self.string()?;
        std::str::from_utf8(bytes).or_else(|_| self.bad("a text is not UTF-8"))
    }

    fn option<T: TryFrom<u64>>(&mut self) -> Taken<Option<T>> {
        self.flag()?.then(|| self.small()).transpose()
    }

    /// Takes a count, which must be too small to overflow later.
    fn count(&mut self) -> Taken<u64> {
        match self.number()? {
            count @ 0..=MAX_COUNT => Ok(count),
            _ => self.bad("a count is too large"),
        }
    }

    /// Takes a time, given the previous one.
    pub(crate) fn time(&mut self, last: u64) -> Taken<u64> {
        let passed = unfold_sign(self.number()?);
        match last.wrapping_add_signed(passed) {
            time @ 0..=MAX_TIME => Ok(time),
            _ => self.bad("a time is too late"),
        }
    }
}

/// The part of a recording before the first call.
#[derive(Clone, Debug)]
pub struct Header {
    /// Name of the device.
    pub device: String,
    /// Program that made the recording.
    pub program: String,
    /// Version of the format.
    pub version: u8,
    /// Configuration. It includes the seed, from which all keys can be computed. The seed is 0 if the state contains
    /// the generator instead.
    pub config: RnicConfig,
    /// State of the device; none if the recording begins with a reset.
    pub state: Option<Vec<u8>>,
    /// When the recording begins; the time of the first call is relative to this.
    pub start: Instant,
}

impl Header {
    /// Creates the header of a recording by this program.
    pub(crate) fn new(device: &str, config: RnicConfig) -> Self {
        Self {
            device: device.to_owned(),
            program: concat!("vrnic ", env!("CARGO_PKG_VERSION")).to_owned(),
            version: VERSION,
            config,
            state: None,
            start: Instant::default(),
        }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.bytes(&MAGIC);
        out.byte(self.version);
        out.string(self.program.as_bytes());
        out.string(self.device.as_bytes());
        let RnicConfig {
            mac,
            node_guid,
            completion_vectors,
            doorbell_pages,
            max_mtu,
            frame_mtu,
            segmentation,
            link_layer,
            recovery,
            features,
            limits,
            seed,
        } = &self.config;
        out.bytes(mac);
        out.bytes(&node_guid.to_le_bytes());
        out.number((*completion_vectors).into());
        out.number((*doorbell_pages).into());
        out.byte(max_mtu.raw());
        if self.version > WITHOUT_FRAMES {
            out.number((*frame_mtu).into());
        }
        out.byte(match (link_layer, segmentation) {
            (LinkLayer::Ethernet, Segmentation::Local) => 0,
            (LinkLayer::Ethernet, Segmentation::PathMtu) => 1,
            (LinkLayer::InfiniBand, _) => 2,
        });
        out.byte(match recovery {
            Recovery::Selective => 0,
            Recovery::GoBackN => 1,
        });
        out.number(features.bits());
        out.bytes(seed);
        for limit in limit_values(limits) {
            out.number(limit);
        }
        if self.version == 1 {
            return;
        }
        out.byte(self.state.is_some().into());
        if let Some(state) = &self.state {
            out.number(self.start.as_nanos());
            out.string(state);
        }
    }

    pub(crate) fn take(from: &mut Take<'_>) -> Taken<Self> {
        if from.bytes(MAGIC.len()).ok() != Some(&MAGIC) {
            from.at = 0;
            return from.bad("this is not a vrnic recording");
        }
        let version = from.byte()?;
        if !(1..=VERSION).contains(&version) {
            return from.bad("this version of the recording format is not supported");
        }
        let program = from.text()?.to_owned();
        let device = from.text()?.to_owned();
        let mut config = RnicConfig {
            mac: from.array()?,
            node_guid: u64::from_le_bytes(from.array()?),
            completion_vectors: from.small()?,
            doorbell_pages: from.small()?,
            max_mtu: Mtu::try_from(from.byte()?).or_else(|_| from.bad("unknown MTU"))?,
            frame_mtu: match version {
                0..=WITHOUT_FRAMES => 0,
                _ => from.small()?,
            },
            segmentation: Segmentation::Local,
            link_layer: LinkLayer::Ethernet,
            recovery: Recovery::default(),
            features: Features::default(),
            seed: [0; 32],
            limits: Limits::default(),
        };
        (config.link_layer, config.segmentation) = match from.byte()? {
            0 => (LinkLayer::Ethernet, Segmentation::Local),
            1 => (LinkLayer::Ethernet, Segmentation::PathMtu),
            2 => (LinkLayer::InfiniBand, Segmentation::PathMtu),
            _ => return from.bad("unknown segmentation"),
        };
        let config = RnicConfig {
            recovery: match from.byte()? {
                0 => Recovery::Selective,
                1 => Recovery::GoBackN,
                _ => return from.bad("unknown recovery"),
            },
            features: Features::from_bits(from.number()?),
            seed: from.array()?,
            limits: take_limits(from)?,
            ..config
        };
        let has_state = version > 1 && from.flag()?;
        let start = if has_state { from.number()? } else { 0 };
        if start > MAX_TIME {
            return from.bad("a time is too late");
        }
        let state = if has_state {
            Some(from.string()?.to_vec())
        } else {
            None
        };
        Ok(Self {
            device,
            program,
            version,
            config,
            state,
            start: Instant::from_nanos(start),
        })
    }
}

/// Returns all limits in the order of their declaration.
fn limit_values(limits: &Limits) -> [u64; 22] {
    let Limits {
        mr_size,
        qp,
        qp_entries,
        send_sge,
        recv_sge,
        inline,
        cq,
        cq_entries,
        mr,
        fast_registration_pages,
        mw,
        srq,
        pd,
        contexts,
        dest_rd_atomic,
        rd_atomic,
        gid_table,
        multicast_groups,
        multicast_members,
        multicast_attachments,
        counter_sets,
        translations,
    } = *limits;
    let small = [
        qp,
        qp_entries,
        send_sge,
        recv_sge,
        inline,
        cq,
        cq_entries,
        mr,
        fast_registration_pages,
        mw,
        srq,
        pd,
        contexts,
        dest_rd_atomic,
        rd_atomic,
        gid_table,
        multicast_groups,
        multicast_members,
        multicast_attachments,
        counter_sets,
    ];
    let mut all = [0; 22];
    all[0] = mr_size;
    for (to, from) in all[1..21].iter_mut().zip(small) {
        *to = from.into();
    }
    all[21] = translations as u64;
    all
}

fn take_limits(from: &mut Take<'_>) -> Taken<Limits> {
    Ok(Limits {
        mr_size: from.number()?,
        qp: from.small()?,
        qp_entries: from.small()?,
        send_sge: from.small()?,
        recv_sge: from.small()?,
        inline: from.small()?,
        cq: from.small()?,
        cq_entries: from.small()?,
        mr: from.small()?,
        fast_registration_pages: from.small()?,
        mw: from.small()?,
        srq: from.small()?,
        pd: from.small()?,
        contexts: from.small()?,
        dest_rd_atomic: from.small()?,
        rd_atomic: from.small()?,
        gid_table: from.small()?,
        multicast_groups: from.small()?,
        multicast_members: from.small()?,
        multicast_attachments: from.small()?,
        counter_sets: from.small()?,
        translations: from.small()?,
    })
}

/// Appends a segment without long payload. Equal segments always result in equal bytes.
pub(crate) fn put_segment(out: &mut impl Put, segment: &Segment<'_>) {
    put_path(out, &segment.path);
    put_headers(out, segment);
}

fn put_path(out: &mut impl Put, path: &Path) {
    let Path {
        source,
        destination,
        source_mac,
        destination_mac,
        vlan,
        hop_limit,
        traffic_class,
        service_level,
        flow_label,
        source_port,
        roce_v1,
        lids,
    } = path;
    out.bytes(source);
    out.bytes(destination);
    out.bytes(source_mac);
    out.bytes(destination_mac);
    out.number((*vlan).into());
    out.byte(*hop_limit);
    out.byte(*traffic_class);
    out.byte(*service_level);
    out.number((*flow_label).into());
    out.number((*source_port).into());
    // 2 instead of a flag means that LIDs follow.
    match lids {
        None => out.byte((*roce_v1).into()),
        Some(lids) => {
            out.byte(2);
            out.number(lids.source.into());
            out.number(lids.destination.into());
            out.byte(lids.global.into());
        }
    }
}

/// Appends a segment that arrived. Its path is only written if it differs from `last`, the previous one. Common fields
/// have fixed positions, which is faster than numbers of variable length.
pub(crate) fn put_received(out: &mut Vec<u8>, segment: &Segment<'_>, last: &mut Option<Path>) {
    let path = &segment.path;
    let new = last.as_ref() != Some(path);
    let mut head = [0; HEAD];
    head[0] = new.into();
    head[1] = flags(segment);
    head[2..4].copy_from_slice(&segment.pkey.to_le_bytes());
    head[4..8].copy_from_slice(&segment.source_qpn.to_le_bytes());
    head[8..12].copy_from_slice(&segment.destination_qpn.to_le_bytes());
    head[12..].copy_from_slice(&segment.psn.raw().to_le_bytes());
    out.bytes(&head);
    if new {
        put_path(out, path);
        *last = Some(*path);
    }
    put_rest(out, segment);
}

/// Number of bytes at fixed positions.
const HEAD: usize = 16;

/// Appends a segment without its path and long payload.
fn put_headers(out: &mut impl Put, segment: &Segment<'_>) {
    out.number(segment.source_qpn.into());
    out.number(segment.destination_qpn.into());
    out.number(segment.pkey.into());
    out.number(segment.psn.raw().into());
    out.byte(flags(segment));
    put_rest(out, segment);
}

/// Returns the flags and the service of a segment.
fn flags(segment: &Segment<'_>) -> u8 {
    let service = match segment.service {
        Service::Reliable => 0,
        Service::Unreliable => 1 << 2,
        Service::Xrc { .. } => 1 << 3,
    };
    // The usual values are 0.
    u8::from(segment.solicited)
        | u8::from(segment.ack_request) << 1
        | service
        | u8::from(!segment.migrated) << 4
        | u8::from(segment.checksums_ok) << 5
}

/// Appends the fields of a segment that have no fixed position.
fn put_rest(out: &mut impl Put, segment: &Segment<'_>) {
    // All fields are listed, so that a new one cannot be forgotten.
    let Segment {
        path: _,
        source_qpn: _,
        destination_qpn: _,
        pkey: _,
        psn: _,
        solicited: _,
        ack_request: _,
        migrated: _,
        checksums_ok: _,
        service,
        body,
        payload,
        touched,
    } = segment;
    if let Service::Xrc { srqn } = service {
        out.number((*srqn).into());
    }
    put_body(out, body);
    match payload {
        Payload::Empty => out.byte(0),
        Payload::Ranges(ranges) => {
            out.byte(1);
            out.number(ranges.len() as u64);
            for range in ranges {
                put_range(out, range);
            }
        }
        Payload::Bytes(bytes) if matches!(body, Body::Frame { .. }) => put_frame(out, bytes),
        Payload::Frame(bytes) if matches!(body, Body::Frame { .. }) => put_frame(out, bytes),
        Payload::Bytes(bytes) => put_payload(out, bytes),
        Payload::Frame(bytes) => put_payload(out, bytes),
    }
    put_touched(out, touched);
}

/// Upper halves of the bytes for a wrong version and a wrong pad count, whose lower halves are these.
const VERSION_DAMAGE: u8 = 0x10;
const PAD_DAMAGE: u8 = 0x20;

fn put_touched(out: &mut impl Put, touched: &Touched) {
    // This is nearly always the case. These are the bytes that the code below would write.
    if *touched == Touched::NOT {
        out.byte(0);
        return out.byte(0);
    }
    out.string(touched.kind.map_or("", |kind| kind.name).as_bytes());
    out.byte(match touched.damage {
        None => 0,
        Some(Damage::Icrc) => 1,
        Some(Damage::Cut) => 2,
        Some(Damage::Version(version)) => VERSION_DAMAGE | version,
        Some(Damage::Pad(pad)) => PAD_DAMAGE | pad,
    });
}

fn put_payload(out: &mut impl Put, bytes: &[u8]) {
    if bytes.len() <= KEPT_PAYLOAD {
        out.byte(2);
        out.string(bytes);
    } else {
        out.byte(3);
        out.number(bytes.len() as u64);
    }
}

/// Appends a frame, whose headers decide where it goes.
fn put_frame(out: &mut impl Put, bytes: &[u8]) {
    let Some((headers, rest)) = bytes.split_at_checked(FRAME_HEADERS) else {
        out.byte(4);
        out.string(bytes);
        return out.number(0);
    };
    out.byte(4);
    out.string(headers);
    out.number(rest.len() as u64);
}

pub(crate) fn take_segment(from: &mut Take<'_>) -> Taken<Segment<'static>> {
    let path = take_path(from)?;
    take_headers(from, path)
}

fn take_received(from: &mut Take<'_>, last: &mut Option<Path>) -> Taken<Segment<'static>> {
    let new = from.flag()?;
    let flags = from.byte()?;
    let pkey = u16::from_le_bytes(from.array()?);
    let source_qpn = u32::from_le_bytes(from.array()?);
    let destination_qpn = u32::from_le_bytes(from.array()?);
    let psn = Psn::new(u32::from_le_bytes(from.array()?));
    if new {
        *last = Some(take_path(from)?);
    }
    match *last {
        Some(path) => take_rest(
            from,
            path,
            Head {
                source_qpn,
                destination_qpn,
                pkey,
                psn,
                flags,
            },
        ),
        None => from.bad("the first packet has no path"),
    }
}

fn take_path(from: &mut Take<'_>) -> Taken<Path> {
    let mut path = Path {
        source: from.array()?,
        destination: from.array()?,
        source_mac: from.array()?,
        destination_mac: from.array()?,
        vlan: from.small()?,
        hop_limit: from.byte()?,
        traffic_class: from.byte()?,
        service_level: from.byte()?,
        flow_label: from.small()?,
        source_port: from.small()?,
        roce_v1: false,
        lids: None,
    };
    match from.byte()? {
        0 => {}
        1 => path.roce_v1 = true,
        2 => {
            path.lids = Some(LidRoute {
                source: from.small()?,
                destination: from.small()?,
                global: from.flag()?,
            });
        }
        _ => return from.bad("unknown path"),
    }
    Ok(path)
}

/// Fields that each packet has.
struct Head {
    source_qpn: u32,
    destination_qpn: u32,
    pkey: u16,
    psn: Psn,
    flags: u8,
}

fn take_headers(from: &mut Take<'_>, path: Path) -> Taken<Segment<'static>> {
    let head = Head {
        source_qpn: from.small()?,
        destination_qpn: from.small()?,
        pkey: from.small()?,
        psn: Psn::new(from.small()?),
        flags: from.byte()?,
    };
    take_rest(from, path, head)
}

fn take_rest(from: &mut Take<'_>, path: Path, head: Head) -> Taken<Segment<'static>> {
    let Head {
        source_qpn,
        destination_qpn,
        pkey,
        psn,
        flags,
    } = head;
    let service = match flags >> 2 & !(4 | 8) {
        0 => Service::Reliable,
        1 => Service::Unreliable,
        2 => Service::Xrc {
            srqn: from.small()?,
        },
        _ => return from.bad("unknown service"),
    };
    let body = take_body(from)?;
    let payload = match from.byte()? {
        0 => Payload::Empty,
        1 => {
            let (mut ranges, mut length) = (Vec::new(), 0);
            for _ in 0..from.number()? {
                let range = take_range(from)?;
                length += range.length;
                ranges.push(range);
            }
            if length > MAX_PAYLOAD {
                return from.bad("a payload is too long");
            }
            Payload::Ranges(ranges)
        }
        2 => match from.string()? {
            bytes if bytes.len() <= KEPT_PAYLOAD => Payload::Bytes(bytes.to_vec()),
            _ => return from.bad("a payload is too long"),
        },
        3 => match from.number()? {
            length @ 0..=MAX_PAYLOAD => Payload::Bytes(vec![0; length as usize]),
            _ => return from.bad("a payload is too long"),
        },
        4 => {
            let mut bytes = match from.string()? {
                bytes if bytes.len() <= FRAME_HEADERS => bytes.to_vec(),
                _ => return from.bad("a payload is too long"),
            };
            match from.number()? {
                rest @ 0..=MAX_PAYLOAD => bytes.resize(bytes.len() + rest as usize, 0),
                _ => return from.bad("a payload is too long"),
            }
            Payload::Bytes(bytes)
        }
        _ => return from.bad("unknown kind of payload"),
    };
    let kind = match from.text()? {
        "" => None,
        name => Some(Kind::find(name).map_or_else(|| from.bad("unknown fault"), Ok)?),
    };
    let damage = match from.byte()? {
        0 => None,
        1 => Some(Damage::Icrc),
        2 => Some(Damage::Cut),
        byte if byte & 0xf0 == VERSION_DAMAGE => Some(Damage::Version(byte & 0xf)),
        byte if byte & 0xf0 == PAD_DAMAGE => Some(Damage::Pad(byte & 0xf)),
        _ => return from.bad("unknown damage"),
    };
    Ok(Segment {
        path,
        source_qpn,
        destination_qpn,
        pkey,
        psn,
        solicited: flags & 1 != 0,
        ack_request: flags & 2 != 0,
        migrated: flags & 16 == 0,
        checksums_ok: flags & 32 != 0,
        service,
        body,
        payload,
        touched: Touched {
            kind,
            damage,
            ..Touched::NOT
        },
    })
}

/// Digests a segment without long payload: the fields that [`put_segment`] writes, two words at a time.
pub(crate) fn digest_segment(digest: &mut Digest, segment: &Segment<'_>) {
    let Segment {
        path,
        source_qpn,
        destination_qpn,
        pkey,
        psn,
        solicited,
        ack_request,
        migrated,
        checksums_ok,
        service,
        body,
        payload,
        touched,
    } = segment;
    let Path {
        source,
        destination,
        source_mac: [s0, s1, s2, s3, s4, s5],
        destination_mac: [d0, d1, d2, d3, d4, d5],
        vlan,
        hop_limit,
        traffic_class,
        service_level,
        flow_label,
        source_port,
        roce_v1,
        lids,
    } = path;
    for gid in [source, destination] {
        let gid = u128::from_le_bytes(*gid);
        digest.pair(gid as u64, (gid >> 64) as u64);
    }
    let [v0, v1] = vlan.to_le_bytes();
    digest.pair(
        u64::from_le_bytes([*s0, *s1, *s2, *s3, *s4, *s5, v0, v1]),
        u64::from_le_bytes([*d0, *d1, *d2, *d3, *d4, *d5, *hop_limit, *traffic_class]),
    );
    let (service, srqn) = match service {
        Service::Reliable => (0, 0),
        Service::Unreliable => (1, 0),
        Service::Xrc { srqn } => (2, *srqn),
    };
    let flags = u8::from(*solicited)
        | u8::from(*ack_request) << 1
        | u8::from(*roce_v1) << 2
        | service << 3
        | u8::from(lids.is_some()) << 5
        | u8::from(!*migrated) << 6
        | u8::from(*checksums_ok) << 7;
    let [p0, p1] = pkey.to_le_bytes();
    let [u0, u1] = source_port.to_le_bytes();
    digest.pair(
        u64::from(*flow_label) | u64::from(psn.raw()) << 32,
        u64::from_le_bytes([p0, p1, u0, u1, flags, *service_level, 0, 0]),
    );
    digest.pair(
        u64::from(*source_qpn) | u64::from(*destination_qpn) << 32,
        srqn.into(),
    );
    if let Some(lids) = lids {
        digest.pair(
            u64::from(lids.source) | u64::from(lids.destination) << 16,
            lids.global.into(),
        );
    }
    put_body(digest, body);
    match payload {
        Payload::Empty => digest.byte(0),
        Payload::Ranges(ranges) => {
            digest.pair(1, ranges.len() as u64);
            for range in ranges {
                digest.range(1, range);
            }
        }
        Payload::Bytes(bytes) => put_payload(digest, bytes),
        Payload::Frame(bytes) => put_payload(digest, bytes),
    }
    put_touched(digest, touched);
}

pub(crate) fn put_range(out: &mut impl Put, range: &HostRange) {
    out.number(range.region.0.into());
    out.number(range.offset);
    out.number(range.length);
}

fn take_range(from: &mut Take<'_>) -> Taken<HostRange> {
    Ok(HostRange {
        region: RegionId(from.small()?),
        offset: take_offset(from)?,
        length: from.small::<u32>()?.into(),
    })
}

/// Takes an offset in a block of memory, which must be too small to overflow later.
fn take_offset(from: &mut Take<'_>) -> Taken<u64> {
    const MAX_OFFSET: u64 = 1 << 56;
    match from.number()? {
        offset @ 0..=MAX_OFFSET => Ok(offset),
        _ => from.bad("an offset is too large"),
    }
}

fn put_position(out: &mut impl Put, position: Position) {
    out.byte(match position {
        Position::First => 0,
        Position::Middle => 1,
        Position::Last => 2,
        Position::Only => 3,
    });
}

fn take_position(from: &mut Take<'_>) -> Taken<Position> {
    Ok(match from.byte()? {
        0 => Position::First,
        1 => Position::Middle,
        2 => Position::Last,
        3 => Position::Only,
        _ => return from.bad("unknown position"),
    })
}

fn put_reth(out: &mut impl Put, reth: &Reth) {
    out.number(reth.address);
    out.number(reth.rkey.into());
    out.number(reth.length.into());
}

fn take_reth(from: &mut Take<'_>) -> Taken<Reth> {
    Ok(Reth {
        address: from.number()?,
        rkey: from.small()?,
        length: from.small()?,
    })
}

fn put_aeth(out: &mut impl Put, aeth: Aeth) {
    let (kind, value) = match aeth.syndrome {
        Syndrome::Ack { credits } => (0, credits),
        Syndrome::RnrNak { timer } => (1, timer),
        Syndrome::Nak(NakCode::SequenceError) => (2, 0),
        Syndrome::Nak(NakCode::InvalidRequest) => (2, 1),
        Syndrome::Nak(NakCode::RemoteAccess) => (2, 2),
        Syndrome::Nak(NakCode::RemoteOperation) => (2, 3),
    };
    out.byte(kind);
    out.byte(value);
    out.number(aeth.msn.into());
}

fn take_aeth(from: &mut Take<'_>) -> Taken<Aeth> {
    let syndrome = match (from.byte()?, from.byte()?) {
        (0, credits) => Syndrome::Ack { credits },
        (1, timer) => Syndrome::RnrNak { timer },
        (2, 0) => Syndrome::Nak(NakCode::SequenceError),
        (2, 1) => Syndrome::Nak(NakCode::InvalidRequest),
        (2, 2) => Syndrome::Nak(NakCode::RemoteAccess),
        (2, 3) => Syndrome::Nak(NakCode::RemoteOperation),
        _ => return from.bad("unknown syndrome"),
    };
    Ok(Aeth {
        syndrome,
        msn: from.small()?,
    })
}

fn put_body(out: &mut impl Put, body: &Body) {
    match body {
        Body::Send { position, tail } => {
            out.byte(0);
            put_position(out, *position);
            match tail {
                SendTail::Plain => out.byte(0),
                SendTail::Immediate(value) => {
                    out.byte(1);
                    out.number((*value).into());
                }
                SendTail::Invalidate(key) => {
                    out.byte(2);
                    out.number((*key).into());
                }
            }
        }
        Body::Write {
            position,
            reth,
            immediate,
        } => {
            out.byte(1);
            put_position(out, *position);
            out.byte(reth.is_some().into());
            if let Some(reth) = reth {
                put_reth(out, reth);
            }
            out.option(immediate.map(u64::from));
        }
        Body::ReadRequest(reth) => {
            out.byte(2);
            put_reth(out, reth);
        }
        Body::AtomicRequest(atomic) => {
            out.byte(3);
            out.byte(match atomic.kind {
                AtomicKind::CompareSwap => 0,
                AtomicKind::FetchAdd => 1,
            });
            out.number(atomic.address);
            out.number(atomic.rkey.into());
            out.number(atomic.compare_add);
            out.number(atomic.swap);
        }
        Body::FlushRequest(flush) => {
            out.byte(4);
            put_reth(out, &flush.remote);
            out.byte(flush.placement);
            out.byte(flush.selectivity);
        }
        Body::AtomicWrite(reth) => {
            out.byte(5);
            put_reth(out, reth);
        }
        Body::ReadResponse { position, aeth } => {
            out.byte(6);
            put_position(out, *position);
            out.byte(aeth.is_some().into());
            if let Some(aeth) = aeth {
                put_aeth(out, *aeth);
            }
        }
        Body::Acknowledge(aeth) => {
            out.byte(7);
            put_aeth(out, *aeth);
        }
        Body::AtomicAcknowledge { aeth, original } => {
            out.byte(8);
            put_aeth(out, *aeth);
            out.number(*original);
        }
        Body::Datagram {
            qkey,
            source_qpn,
            immediate,
        } => {
            out.byte(9);
            out.number((*qkey).into());
            out.number((*source_qpn).into());
            out.option(immediate.map(u64::from));
        }
        Body::Unknown(opcode) => {
            out.byte(10);
            out.byte(*opcode);
        }
        Body::CongestionNotification => out.byte(11),
        Body::Frame { tag: 0 } => out.byte(12),
        Body::Frame { tag } => {
            out.byte(13);
            out.number((*tag).into());
        }
    }
}

fn take_body(from: &mut Take<'_>) -> Taken<Body> {
    Ok(match from.byte()? {
        0 => Body::Send {
            position: take_position(from)?,
            tail: match from.byte()? {
                0 => SendTail::Plain,
                1 => SendTail::Immediate(from.small()?),
                2 => SendTail::Invalidate(from.small()?),
                _ => return from.bad("unknown end of a send"),
            },
        },
        1 => Body::Write {
            position: take_position(from)?,
            reth: from.flag()?.then(|| take_reth(from)).transpose()?,
            immediate: from.option()?,
        },
        2 => Body::ReadRequest(take_reth(from)?),
        3 => Body::AtomicRequest(AtomicRequest {
            kind: match from.byte()? {
                0 => AtomicKind::CompareSwap,
                1 => AtomicKind::FetchAdd,
                _ => return from.bad("unknown atomic operation"),
            },
            address: from.number()?,
            rkey: from.small()?,
            compare_add: from.number()?,
            swap: from.number()?,
        }),
        4 => Body::FlushRequest(Flush {
            remote: take_reth(from)?,
            placement: from.byte()?,
            selectivity: from.byte()?,
        }),
        5 => Body::AtomicWrite(take_reth(from)?),
        6 => Body::ReadResponse {
            position: take_position(from)?,
            aeth: from.flag()?.then(|| take_aeth(from)).transpose()?,
        },
        7 => Body::Acknowledge(take_aeth(from)?),
        8 => Body::AtomicAcknowledge {
            aeth: take_aeth(from)?,
            original: from.number()?,
        },
        9 => Body::Datagram {
            qkey: from.small()?,
            source_qpn: from.small()?,
            immediate: from.option()?,
        },
        10 => Body::Unknown(from.byte()?),
        11 => Body::CongestionNotification,
        12 => Body::Frame { tag: 0 },
        13 => Body::Frame { tag: from.small()? },
        _ => return from.bad("unknown packet"),
    })
}

/// The result of an access to guest memory, in the order in which the engine made them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// Something was stored or copied.
    Done,
    /// The memory is not mapped.
    Unmapped,
    /// Bytes that were read.
    Read(Vec<u8>),
    /// Payload that was read but is not in the recording.
    Skipped,
    /// A word, with its old value.
    Word(u64),
    /// An address is at this offset of this block of memory.
    Resolved(RegionId, u64),
    /// An address or a block does not exist, or a block is not persistent.
    Nothing,
    /// Length of a persistent block in bytes.
    Length(u64),
}

/// How a call ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It returned, with this digest of all its output.
    Returned(u64),
    /// The engine panicked.
    Panicked,
}

/// A call to the engine with its arguments.
#[derive(Clone, Debug)]
pub enum Input {
    /// [`execute`](crate::Rnic::execute) this request.
    Execute(Vec<u8>),
    /// [`doorbell`](crate::Rnic::doorbell) of this page, with this value.
    Doorbell(u32, u32),
    /// [`poll`](crate::Rnic::poll) with this budget.
    Poll(Budget),
    /// [`prepare_sleep`](crate::Rnic::prepare_sleep).
    PrepareSleep,
    /// [`receive`](crate::Rnic::receive) this segment.
    Receive(Box<Segment<'static>>),
    /// [`count_bad_packet`](crate::Rnic::count_bad_packet).
    BadPacket(bool),
    /// [`advance`](crate::Rnic::advance).
    Advance,
    /// [`next_async_event`](crate::Rnic::next_async_event).
    AsyncEvent,
    /// [`next_completion_event`](crate::Rnic::next_completion_event) of this vector.
    CompletionEvent(u16),
    /// [`set_link`](crate::Rnic::set_link).
    SetLink(bool),
    /// [`set_rate_limit`](crate::Rnic::set_rate_limit).
    SetRateLimit(RateLimit),
    /// [`arm`](crate::fault::Armory::arm) this fault.
    Arm(String),
    /// [`clear`](crate::fault::Armory::clear) one fault or all.
    Clear(Option<u64>),
    /// [`set_faults`](crate::Rnic::set_faults).
    SetFaults(fault::Saved),
    /// [`next_sync`](crate::Rnic::next_sync).
    NextSync,
    /// [`synced`](crate::Rnic::synced).
    Synced(bool),
    /// [`take_delivery`](crate::Rnic::take_delivery).
    TakeDelivery,
    /// [`next_explanation`](crate::Rnic::next_explanation).
    Explanation,
    /// [`set_hca_port`](crate::Rnic::set_hca_port).
    SetHcaPort(Box<HcaPort>, bool),
    /// [`next_port_request`](crate::Rnic::next_port_request).
    PortRequest,
    /// [`answer_port_request`](crate::Rnic::answer_port_request).
    PortAnswer(PortAnswer),
    /// [`next_violation`](crate::Rnic::next_violation).
    Violation,
    /// [`pause`](crate::Rnic::pause) this receiver.
    Pause(Gid),
    /// [`resume`](crate::Rnic::resume) this receiver.
    Resume(Gid),
    /// No call: a half of a flight recorder ends.
    Mark,
}

/// A recorded call of the engine.
#[derive(Clone, Debug)]
pub struct Call {
    /// Number of the call, from 0.
    pub index: u64,
    /// Position in the recording where it begins.
    pub at: usize,
    /// Time of the call.
    pub now: Instant,
    /// The call to the engine.
    pub input: Input,
    /// What it found in guest memory.
    pub accesses: Vec<Access>,
    /// How it ended.
    pub outcome: Outcome,
}

fn put_faults(out: &mut Vec<u8>, saved: &fault::Saved) {
    out.number(saved.last_id);
    out.number(saved.fired);
    out.number(saved.armed.len() as u64);
    for fault in &saved.armed {
        out.string(fault.text.as_bytes());
        out.number(fault.id);
        out.option(fault.since.map(Instant::as_nanos));
        out.number(fault.seen);
        out.number(fault.fired);
        out.option(fault.next.map(Instant::as_nanos));
        out.number(fault.free.as_nanos());
        // There is room for the number of the fault that it waits for, which its text has, too.
        out.option(None);
    }
}

fn take_faults(from: &mut Take<'_>) -> Taken<fault::Saved> {
    let (last_id, fired) = (from.count()?, from.count()?);
    let mut armed = Vec::new();
    for _ in 0..from.number()? {
        armed.push(fault::SavedFault {
            text: from.text()?.to_owned(),
            id: from.count()?,
            since: from.option()?.map(Instant::from_nanos),
            seen: from.count()?,
            fired: from.count()?,
            next: from.option()?.map(Instant::from_nanos),
            free: Instant::from_nanos(from.number()?),
        });
        let _: Option<u64> = from.option()?;
    }
    let saved = fault::Saved {
        last_id,
        fired,
        armed,
    };
    if Faults::from_saved(&saved).is_none() {
        return from.bad("unknown fault");
    }
    Ok(saved)
}

/// Appends a value in the format of a state.
fn put_value(value: &impl Serialize, out: &mut Vec<u8>) {
    // This cannot fail: there are no unknown lengths, and there is always room.
    out.string(&postcard::serialize_with_flavor(value, Room(Vec::new())).unwrap_or_default());
}

fn take_value<T: DeserializeOwned>(from: &mut Take<'_>) -> Taken<T> {
    let bytes = from.string()?;
    postcard::from_bytes(bytes).or_else(|_| from.bad("unknown value"))
}

/// A buffer without a limit.
struct Room(Vec<u8>);

impl Flavor for Room {
    type Output = Vec<u8>;

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

impl Input {
    /// Appends the execution of a request.
    pub(crate) fn put_request(request: &[u8], out: &mut Vec<u8>) {
        out.byte(tag::EXECUTE);
        out.string(request);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Execute(request) => Self::put_request(request, out),
            Self::Doorbell(page, value) => {
                out.byte(tag::DOORBELL);
                out.number((*page).into());
                out.number((*value).into());
            }
            Self::Poll(budget) if *budget == Budget::units(budget.units) => {
                out.byte(tag::POLL);
                out.number(budget.units.into());
            }
            Self::Poll(budget) => {
                out.byte(tag::BOUNDED_POLL);
                out.number(budget.units.into());
                out.number(budget.bytes);
            }
            Self::PrepareSleep => out.byte(tag::PREPARE_SLEEP),
            Self::Receive(segment) => {
                out.byte(tag::RECEIVE);
                put_received(out, segment, &mut None);
            }
            Self::BadPacket(wrong_crc) => {
                out.byte(tag::BAD_PACKET);
                out.byte((*wrong_crc).into());
            }
            Self::Advance => out.byte(tag::ADVANCE),
            Self::AsyncEvent => out.byte(tag::ASYNC_EVENT),
            Self::CompletionEvent(vector) => {
                out.byte(tag::COMPLETION_EVENT);
                out.number((*vector).into());
            }
            Self::SetLink(up) => {
                out.byte(tag::SET_LINK);
                out.byte((*up).into());
            }
            Self::SetRateLimit(limit) => {
                out.byte(tag::SET_RATE_LIMIT);
                out.option(limit.bytes.map(NonZeroU64::get));
                out.option(limit.requests.map(NonZeroU64::get));
            }
            Self::Arm(text) => {
                out.byte(tag::ARM);
                out.string(text.as_bytes());
            }
            Self::Clear(id) => {
                out.byte(tag::CLEAR);
                out.option(*id);
            }
            Self::SetFaults(saved) => {
                out.byte(tag::SET_FAULTS);
                put_faults(out, saved);
            }
            Self::NextSync => out.byte(tag::NEXT_SYNC),
            Self::Synced(done) => {
                out.byte(tag::SYNCED);
                out.byte((*done).into());
            }
            Self::TakeDelivery => out.byte(tag::TAKE_DELIVERY),
            Self::Explanation => out.byte(tag::EXPLANATION),
            Self::SetHcaPort(port, reregister) => {
                out.byte(tag::SET_HCA_PORT);
                put_value(&**port, out);
                out.byte((*reregister).into());
            }
            Self::PortRequest => out.byte(tag::PORT_REQUEST),
            Self::PortAnswer(answer) => {
                out.byte(tag::PORT_ANSWER);
                put_value(answer, out);
            }
            Self::Violation => out.byte(tag::VIOLATION),
            Self::Pause(receiver) => {
                out.byte(tag::PAUSE);
                out.bytes(receiver);
            }
            Self::Resume(receiver) => {
                out.byte(tag::RESUME);
                out.bytes(receiver);
            }
            Self::Mark => out.byte(tag::MARK),
        }
    }

    /// Takes the arguments of a call. `last` is the path of the previous packet, if repeated paths are left out.
    fn take(tag: u8, from: &mut Take<'_>, last: Option<&mut Option<Path>>) -> Taken<Self> {
        Ok(match tag {
            tag::EXECUTE => Self::Execute(from.string()?.to_vec()),
            tag::DOORBELL => Self::Doorbell(from.small()?, from.small()?),
            tag::POLL => Self::Poll(Budget::units(from.small()?)),
            tag::BOUNDED_POLL => Self::Poll(Budget {
                units: from.small()?,
                bytes: from.number()?,
            }),
            tag::PREPARE_SLEEP => Self::PrepareSleep,
            tag::RECEIVE => Self::Receive(Box::new(match last {
                Some(last) => take_received(from, last)?,
                None => take_segment(from)?,
            })),
            tag::BAD_PACKET => Self::BadPacket(from.flag()?),
            tag::ADVANCE => Self::Advance,
            tag::ASYNC_EVENT => Self::AsyncEvent,
            tag::COMPLETION_EVENT => Self::CompletionEvent(from.small()?),
            tag::SET_LINK => Self::SetLink(from.flag()?),
            tag::SET_RATE_LIMIT => Self::SetRateLimit(RateLimit {
                bytes: from.option()?.and_then(NonZeroU64::new),
                requests: from.option()?.and_then(NonZeroU64::new),
            }),
            tag::ARM => Self::Arm(from.text()?.to_owned()),
            tag::CLEAR => Self::Clear(from.option()?),
            tag::SET_FAULTS => Self::SetFaults(take_faults(from)?),
            tag::NEXT_SYNC => Self::NextSync,
            tag::SYNCED => Self::Synced(from.flag()?),
            tag::TAKE_DELIVERY => Self::TakeDelivery,
            tag::EXPLANATION => Self::Explanation,
            tag::SET_HCA_PORT => Self::SetHcaPort(Box::new(take_value(from)?), from.flag()?),
            tag::PORT_REQUEST => Self::PortRequest,
            tag::PORT_ANSWER => Self::PortAnswer(take_value(from)?),
            tag::VIOLATION => Self::Violation,
            tag::PAUSE => Self::Pause(from.array()?),
            tag::RESUME => Self::Resume(from.array()?),
            tag::MARK => Self::Mark,
            _ => return from.bad("unknown call"),
        })
    }
}

/// A reader for the calls of a recording.
#[derive(Clone, Debug)]
pub struct Recording<'a> {
    header: Header,
    from: Take<'a>,
    now: u64,
    index: u64,
    /// The last call, for repetitions.
    last: Option<Call>,
    /// Path of the last packet that arrived since the start or the last mark.
    path: Option<Path>,
    ended: Option<String>,
    broken: bool,
    panicked: bool,
}

impl<'a> Recording<'a> {
    /// Reads the part before the first call.
    ///
    /// # Errors
    ///
    /// The bytes are not a recording.
    pub fn new(bytes: &'a [u8]) -> Result<Self, BadRecording> {
        let mut from = Take::new(bytes);
        let header = Header::take(&mut from)?;
        Ok(Self {
            now: header.start.as_nanos(),
            header,
            from,
            index: 0,
            last: None,
            path: None,
            ended: None,
            broken: false,
            panicked: false,
        })
    }

    /// Returns the part before the first call.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns why the recording ends, after the last call has been read; none if it was not ended.
    pub fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Returns the time of the next call; none if there is none.
    pub fn next_time(&self) -> Option<Instant> {
        if self.ended.is_some() || self.broken {
            return None;
        }
        let mut from = self.from.clone();
        let time = from.time(self.now).ok()?;
        let is_call = from.byte().is_ok_and(|tag| tag != tag::OVER);
        is_call.then(|| Instant::from_nanos(time))
    }

    /// Returns the position of the next call.
    pub fn position(&self) -> usize {
        self.from.at
    }

    /// Returns what was read since the position was `start`.
    pub(crate) fn bytes_from(&self, start: usize) -> &'a [u8] {
        self.from.since(start)
    }

    fn take(&mut self) -> Taken<Option<Call>> {
        if self.from.is_at_end() || self.ended.is_some() {
            return Ok(None);
        }
        let at = self.from.at;
        let from = &mut self.from;
        self.now = from.time(self.now)?;
        let tag = from.byte()?;
        if self.panicked && tag != tag::OVER {
            return from.bad("a call follows one that panicked");
        }
        let call = match tag {
            tag::OVER => {
                self.ended = Some(from.text()?.to_owned());
                return Ok(None);
            }
            tag::REPEAT => match &self.last {
                Some(last) => Call {
                    index: self.index,
                    at,
                    now: Instant::from_nanos(self.now),
                    ..last.clone()
                },
                None => return from.bad("the first call cannot be a repetition"),
            },
            tag => Call {
                index: self.index,
                at,
                now: Instant::from_nanos(self.now),
                input: Input::take(
                    tag,
                    from,
                    (self.header.version > BYTEWISE).then_some(&mut self.path),
                )?,
                accesses: Vec::new(),
                outcome: Outcome::Panicked,
            }
            .take_rest(from)?,
        };
        if matches!(call.input, Input::Mark) {
            self.path = None;
        }
        self.index += 1;
        self.panicked = call.outcome == Outcome::Panicked;
        if tag != tag::REPEAT {
            let short = self.from.at - at <= MAX_REPEATED + MAX_NUMBER;
            self.last = short.then(|| call.clone());
        }
        Ok(Some(call))
    }
}

impl Call {
    fn take_rest(mut self, from: &mut Take<'_>) -> Taken<Self> {
        loop {
            self.accesses.push(match from.byte()? {
                tag::END => {
                    self.outcome = Outcome::Returned(u64::from_le_bytes(from.array()?));
                    return Ok(self);
                }
                tag::PANIC => return Ok(self),
                tag::DONE => Access::Done,
                tag::UNMAPPED => Access::Unmapped,
                tag::READ => Access::Read(from.string()?.to_vec()),
                tag::SKIPPED => Access::Skipped,
                tag::WORD => Access::Word(from.number()?),
                tag::RESOLVED => Access::Resolved(RegionId(from.small()?), take_offset(from)?),
                tag::NOTHING => Access::Nothing,
                tag::LENGTH => Access::Length(from.number()?),
                _ => return from.bad("unknown access"),
            });
        }
    }
}

impl Iterator for Recording<'_> {
    type Item = Result<Call, BadRecording>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.broken {
            return None;
        }
        let call = self.take();
        // Nothing after an invalid part can be trusted.
        self.broken = call.is_err();
        call.transpose()
    }
}
