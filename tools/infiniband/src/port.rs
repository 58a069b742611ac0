// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A port: its attributes, its state and the packets that it lets through (IBTA volume 1, 7.2.7).

use crate::{
    attributes::{
        PhysicalState, PortInfo, PortState, SlToVl, VlArbitration, lanes_of, mtu_of, speed,
        time_of, width,
    },
    mad::PERMISSIVE,
    packet::{Frame, GRH_NEXT_HEADER, Grh, Lrh, MAX_MTU, MAX_OVERHEAD, VCRC_LENGTH},
    performance::{Discard, ReceiveError, Statistics, Tick, count_both},
    queue::{self, Queues, Room},
};
use serde::{Deserialize, Serialize};
use std::{ops::Range, time::Duration};

/// Number of entries in the partition table of a port.
pub const PARTITIONS: usize = 32;
/// First partition key of every table (10.9.2): full membership in the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// GID prefix of a subnet without a configured one.
const DEFAULT_GID_PREFIX: u64 = 0xfe80 << 48;
/// Bit of a partition key that marks a full member.
pub const FULL_MEMBER: u16 = 0x8000;

/// Maximum time that a packet waits for a link, even if its lifetime is longer.
pub const MAX_WAIT: Duration = Duration::from_secs(1);

/// Number of packets at a port with flow control above which packets that occupy no buffer are discarded.
const MAX_WITHOUT_ROOM: usize = 4096;

/// Speed of one lane.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speed {
    /// 2.5 Gb/s, 2 Gb/s of data.
    Sdr,
    /// 5 Gb/s, 4 Gb/s of data.
    Ddr,
    /// 10 Gb/s, 8 Gb/s of data.
    Qdr,
    /// 14.0625 Gb/s, 13.64 Gb/s of data.
    Fdr,
    /// 25.78125 Gb/s, 25 Gb/s of data.
    Edr,
    /// 53.125 Gb/s, 50 Gb/s of data.
    Hdr,
}

impl Speed {
    /// All speeds.
    pub const ALL: [Self; 6] = [
        Self::Sdr,
        Self::Ddr,
        Self::Qdr,
        Self::Fdr,
        Self::Edr,
        Self::Hdr,
    ];

    /// Returns the bits of data per second and lane.
    pub const fn lane_rate(self) -> u64 {
        match self {
            Self::Sdr => 2_000_000_000,
            Self::Ddr => 4_000_000_000,
            Self::Qdr => 8_000_000_000,
            Self::Fdr => 13_636_363_636,
            Self::Edr => 25_000_000_000,
            Self::Hdr => 50_000_000_000,
        }
    }

    /// Returns the bits per second and lane, with those that encode the data.
    pub const fn signal_rate(self) -> u64 {
        match self {
            Self::Sdr => 2_500_000_000,
            Self::Ddr => 5_000_000_000,
            Self::Qdr => 10_000_000_000,
            Self::Fdr => 14_062_500_000,
            Self::Edr => 25_781_250_000,
            Self::Hdr => 53_125_000_000,
        }
    }

    /// Returns the bits of the speed in the basic and the extended attribute.
    const fn bits(self) -> (u8, u8) {
        match self {
            Self::Sdr => (speed::SDR, 0),
            Self::Ddr => (speed::DDR, 0),
            Self::Qdr => (speed::QDR, 0),
            Self::Fdr => (speed::QDR, speed::FDR),
            Self::Edr => (speed::QDR, speed::EDR),
            Self::Hdr => (speed::QDR, speed::HDR),
        }
    }
}

/// Number of lanes of a link.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Width {
    /// One.
    #[serde(rename = "1x")]
    X1,
    /// Four.
    #[serde(rename = "4x")]
    X4,
    /// Eight.
    #[serde(rename = "8x")]
    X8,
    /// Twelve.
    #[serde(rename = "12x")]
    X12,
}

impl Width {
    /// All widths.
    pub const ALL: [Self; 4] = [Self::X1, Self::X4, Self::X8, Self::X12];

    /// Returns the number of lanes.
    pub const fn lanes(self) -> u64 {
        match self {
            Self::X1 => 1,
            Self::X4 => 4,
            Self::X8 => 8,
            Self::X12 => 12,
        }
    }

    /// Returns the bit of the width in the attribute.
    const fn bit(self) -> u8 {
        match self {
            Self::X1 => width::X1,
            Self::X4 => width::X4,
            Self::X8 => width::X8,
            Self::X12 => width::X12,
        }
    }
}

/// Capabilities of the hardware of a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Maximum width. All smaller ones are supported as well.
    pub width: Width,
    /// Maximum speed. All slower ones are supported as well.
    pub speed: Speed,
    /// Maximum MTU, in the encoding of [`mtu_of`].
    pub mtu: u8,
    /// Number of data lanes, in the encoding of [`lanes_of`].
    pub lanes: u8,
    /// Bytes of receive buffer for each lane, at least [`MIN_BUFFER`], on links with flow control and arbitration. If
    /// this is `None`, packets leave in the order in which they arrived.
    pub buffer: Option<u32>,
}

impl Default for PortConfig {
    /// Returns a port with 4 lanes of 25 Gb/s, an MTU of 4096 bytes, 8 data lanes and no flow control.
    fn default() -> Self {
        Self {
            width: Width::X4,
            speed: Speed::Edr,
            mtu: 5,
            lanes: 4,
            buffer: None,
        }
    }
}

/// Returns whether a member with the key `pkey` may communicate with a member that has `keys` (10.9.3): one of these is
/// of the same partition, and one of the two is a full member.
pub fn admits(keys: &[u16], pkey: u16) -> bool {
    admitting(keys, pkey).is_some()
}

/// Returns the one of `keys` that admits a member with the key `pkey`.
pub(crate) fn admitting(keys: &[u16], pkey: u16) -> Option<u16> {
    let partition = pkey & !FULL_MEMBER;
    let admits = |key: &u16| key & !FULL_MEMBER == partition && (key | pkey) & FULL_MEMBER != 0;
    keys.iter().copied().find(admits).filter(|_| partition != 0)
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Attributes as a manager sees them, except for those that depend on the requester.
    pub(crate) info: PortInfo,
    /// Partition table.
    pub(crate) pkeys: [u16; PARTITIONS],
    /// GUIDs. Only those of the end port are used.
    pub(crate) guids: [u64; 8],
    /// Lanes of outgoing packets, by the port by which they arrived.
    pub(crate) lanes: Vec<SlToVl>,
    /// Arbitration tables: two blocks for low priority and two for high priority. Without flow control, they can be
    /// read and written but have no effect.
    pub(crate) arbitration: [VlArbitration; 4],
    /// Counters.
    pub(crate) statistics: Statistics,
    /// When the link finishes the packets that have left.
    busy: Duration,
    /// Packets that wait for the link, and its credits.
    pub(crate) queues: Option<Queues>,
    /// Errors of the physical layer, less the good packets since.
    errors: u8,
}

/// A frame that leaves, and the time when its last byte has left.
pub(crate) type Departure = (Frame, Duration);

/// A frame was discarded instead of sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Discarded;

/// Result of receiving a frame from the link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The frame is accepted.
    Good(Lrh),
    /// The frame is dropped.
    Dropped,
    /// The frame is dropped, and there have been too many errors.
    TooManyErrors,
}

impl Port {
    /// Creates a port without a link. `inputs` is the number of ports whose packets can leave by it.
    pub(crate) fn new(config: PortConfig, guid: u64, inputs: usize) -> Self {
        let widths = Width::ALL.into_iter().filter(|it| *it <= config.width);
        let widths = widths.fold(0, |bits, width| bits | width.bit());
        let speeds = Speed::ALL.into_iter().filter(|it| *it <= config.speed);
        let (basic, extended) = speeds.fold((0, 0), |(basic, extended), speed| {
            (basic | speed.bits().0, extended | speed.bits().1)
        });
        let mut pkeys = [0; PARTITIONS];
        pkeys[0] = DEFAULT_PKEY;
        let mut guids = [0; 8];
        guids[0] = guid;
        let lanes = lanes_of(config.lanes).unwrap_or(1);
        let map = SlToVl {
            lanes: std::array::from_fn(|level| level as u8 % lanes),
        };
        let weights = VlArbitration {
            entries: std::array::from_fn(|place| {
                if place < usize::from(lanes) {
                    (place as u16) << 8 | 4
                } else {
                    0
                }
            }),
        };
        let none = VlArbitration::default();
        Self {
            info: PortInfo {
                gid_prefix: DEFAULT_GID_PREFIX,
                width_enabled: widths,
                width_supported: widths,
                width_active: width::X4.min(widths),
                speed_supported: basic,
                speed_enabled: basic,
                speed_active: speed::SDR,
                extended_speed_supported: extended,
                extended_speed_enabled: extended,
                state: PortState::DOWN,
                physical_state: PhysicalState::POLLING,
                down_default: PhysicalState::POLLING,
                neighbor_mtu: config.mtu,
                mtu_cap: config.mtu,
                vl_cap: config.lanes,
                operational_vls: config.lanes,
                vl_arbitration_low_cap: 32,
                vl_arbitration_high_cap: 32,
                head_of_queue_life: 16,
                subnet_timeout: 18,
                local_physical_errors: 8,
                overrun_errors: 8,
                guid_cap: 8,
                ..PortInfo::default()
            },
            pkeys,
            guids,
            lanes: vec![map; inputs],
            arbitration: [weights, none, weights, none],
            statistics: Statistics::default(),
            busy: Duration::ZERO,
            queues: config
                .buffer
                .map(|buffer| Queues::new(buffer.max(MIN_BUFFER))),
            errors: 0,
        }
    }

    /// Returns the attributes.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns the counters.
    pub fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    /// Returns the partition table.
    pub fn pkeys(&self) -> &[u16] {
        &self.pkeys
    }

    /// Returns the GUIDs.
    pub fn guids(&self) -> &[u64] {
        &self.guids
    }

    /// Returns whether the port has this GID, with the prefix of the subnet or the default one (4.1.1).
    fn has_gid(&self, gid: &[u8; 16]) -> bool {
        let gid = u128::from_be_bytes(*gid);
        let (prefix, guid) = ((gid >> 64) as u64, gid as u64);
        [self.info.gid_prefix, DEFAULT_GID_PREFIX].contains(&prefix)
            && guid != 0
            && self.guids.contains(&guid)
    }

    /// Returns the global route header of the response to a packet with the header `request` (13.5.4).
    pub(crate) fn answering(&self, request: &Grh) -> Grh {
        let first = u128::from(self.info.gid_prefix) << 64 | u128::from(self.guids[0]);
        Grh {
            hop_limit: u8::MAX,
            next_header: GRH_NEXT_HEADER,
            source: if self.has_gid(&request.destination) {
                request.destination
            } else {
                first.to_be_bytes()
            },
            destination: request.source,
            ..*request
        }
    }

    /// Returns whether the physical link is up.
    pub fn has_link(&self) -> bool {
        self.info.physical_state == PhysicalState::LINK_UP
    }

    /// Returns the unicast LIDs of the port (4.1.3). Empty until a subnet manager has set them.
    pub fn lids(&self) -> Range<u16> {
        let PortInfo { lid, lmc, .. } = self.info;
        if lid == 0 {
            return 0..0;
        }
        let count = 1 << lmc;
        let first = lid & !(count - 1);
        first..first + count
    }

    /// Returns whether the port has this unicast LID.
    pub fn has_lid(&self, lid: u16) -> bool {
        self.lids().contains(&lid)
    }

    /// Returns the bits of data per second.
    pub fn rate(&self) -> u64 {
        let info = &self.info;
        let width = Width::ALL
            .into_iter()
            .find(|it| it.bit() == info.width_active);
        width.map_or(1, Width::lanes) * self.speed().lane_rate()
    }

    /// Returns the active speed.
    fn speed(&self) -> Speed {
        let active = (self.info.speed_active, self.info.extended_speed_active);
        let speed = Speed::ALL.into_iter().rev().find(|it| it.bits() == active);
        speed.unwrap_or(Speed::Sdr)
    }

    /// Returns the length of the ticks of counters and samples.
    pub(crate) fn tick(&self) -> Tick {
        Tick {
            signal_rate: self.speed().signal_rate(),
        }
    }

    /// Counts the time that packets have waited for credits until now.
    pub(crate) fn count_wait(&mut self, now: Duration) {
        let tick = self.tick();
        if let Some(since) = self.queues.as_mut().and_then(Queues::stalled_mut) {
            *since = self.statistics.waited(*since, now, tick);
        }
    }

    /// Returns the best width and speed that both ports support and have enabled, or `None` if there is none.
    pub fn negotiate(&self, peer: &Self) -> Option<(Width, Speed)> {
        let widths = self.info.width_enabled & peer.info.width_enabled;
        let width = Width::ALL
            .into_iter()
            .rev()
            .find(|it| widths & it.bit() != 0)?;
        let basic = self.info.speed_enabled & peer.info.speed_enabled;
        let extended = self.info.extended_speed_enabled & peer.info.extended_speed_enabled;
        let speed = Speed::ALL.into_iter().rev().find(|it| match it.bits() {
            (bit, 0) => basic & bit != 0,
            (_, bit) => extended & bit != 0,
        })?;
        Some((width, speed))
    }

    /// Notes that the link came up.
    pub(crate) fn link_up(&mut self, width: Width, speed: Speed) {
        let info = &mut self.info;
        info.width_active = width.bit();
        (info.speed_active, info.extended_speed_active) = speed.bits();
        info.physical_state = PhysicalState::LINK_UP;
        info.state = PortState::INIT;
        self.errors = 0;
        self.discard_waiting();
    }

    /// Notes that the link went down, and sets the state of the physical layer. Returns whether the link was up before.
    pub(crate) fn link_down(&mut self, physical_state: PhysicalState) -> bool {
        self.info.physical_state = physical_state;
        self.busy = Duration::ZERO;
        self.discard_waiting();
        let was = std::mem::replace(&mut self.info.state, PortState::DOWN) != PortState::DOWN;
        if was {
            count_both!(self.statistics, link_downed);
        }
        was
    }

    /// Discards the waiting packets because the link went up or down.
    fn discard_waiting(&mut self) {
        let gone = self.queues.as_mut().map_or(0, Queues::reset);
        self.statistics.discard(Discard::Inactive, gone);
    }

    /// Receives a frame from the link.
    pub(crate) fn receive(&mut self, frame: &Frame, now: Duration) -> Received {
        if !self.has_link() {
            return Received::Dropped;
        }
        let lrh = match frame.check() {
            Ok(lrh) => lrh,
            Err(error) => {
                count_both!(self.statistics, symbol_errors);
                self.statistics.receive_error(error.into());
                self.errors += 1;
                if self.errors <= self.info.local_physical_errors {
                    return Received::Dropped;
                }
                self.errors = 0;
                self.statistics.link_integrity_error();
                return Received::TooManyErrors;
            }
        };
        self.errors = self.errors.saturating_sub(1);
        self.statistics.received(&lrh, now);
        if lrh.is_management() {
            return Received::Good(lrh);
        }
        let lanes = lanes_of(self.info.operational_vls).unwrap_or(1);
        let mtu = mtu_of(self.info.mtu_cap).unwrap_or(MAX_MTU);
        if self.info.state < PortState::ARMED {
            return Received::Dropped;
        }
        if lrh.lane >= lanes || frame.length() > mtu + MAX_OVERHEAD {
            self.statistics.receive_error(ReceiveError::Malformed);
            return Received::Dropped;
        }
        self.info.state = PortState::ACTIVE;
        Received::Good(lrh)
    }

    /// Sends a frame that passes [`check`](Frame::check) by the link, now or later. Returns the frame that leaves now,
    /// and when its last byte has left. Until the frame has left, it occupies `room` of the port by which it arrived.
    pub(crate) fn transmit(
        &mut self,
        frame: Frame,
        life: Duration,
        room: Option<Room>,
        now: Duration,
    ) -> Result<Option<Departure>, Discarded> {
        let head = life_of(self.info.head_of_queue_life);
        let waits = self.busy.saturating_sub(now);
        // The buffers limit how many packets wait, except for copies for several ports and management packets, which
        // occupy no buffer.
        let full = room.is_none()
            && (self.queues.as_ref()).is_some_and(|queues| queues.len() >= MAX_WITHOUT_ROOM);
        let discard = match self.lets_out(&frame) {
            Err(discard) => Some(discard),
            Ok(()) if full => Some(Discard::Other),
            Ok(()) if self.queues.is_some() => None,
            Ok(()) if waits > life => Some(Discard::Lifetime),
            Ok(()) => (waits > head).then_some(Discard::HeadOfQueue),
        };
        if let Some(discard) = discard {
            self.statistics.discard(discard, 1);
            if let (Some(queues), Some(room)) = (&mut self.queues, room) {
                queues.free(room);
            }
            return Err(Discarded);
        }
        if let Some(queues) = &mut self.queues {
            queues.push(frame, room, now + life, now);
            return Ok(self.start(now));
        }
        Ok(Some(self.leave(frame, self.busy.max(now))))
    }

    /// Checks whether the state, the lanes and the MTU of the port allow a frame to leave.
    fn lets_out(&self, frame: &Frame) -> Result<(), Discard> {
        let info = &self.info;
        let lrh = frame.lrh().ok_or(Discard::Other)?;
        let least = if lrh.is_management() {
            PortState::INIT
        } else {
            PortState::ACTIVE
        };
        if !self.has_link() || info.state < least {
            return Err(Discard::Inactive);
        }
        if lrh.is_management() {
            return Ok(());
        }
        if frame.length() > mtu_of(info.neighbor_mtu).unwrap_or(MAX_MTU) + MAX_OVERHEAD {
            return Err(Discard::Mtu);
        }
        let lanes = lanes_of(info.operational_vls).unwrap_or(1);
        (lrh.lane < lanes).then_some(()).ok_or(Discard::Other)
    }

    /// Lets a frame leave from `start` on.
    fn leave(&mut self, frame: Frame, start: Duration) -> Departure {
        let bits = frame.length() as u64 * 8;
        self.busy = start + Duration::from_nanos((bits * 1_000_000_000).div_ceil(self.rate()));
        if let Some(lrh) = frame.lrh() {
            self.statistics.transmitted(&lrh, start);
        }
        (frame, self.busy)
    }

    /// Lets the next packet that has credits leave now, if the link is idle.
    pub(crate) fn start(&mut self, now: Duration) -> Option<Departure> {
        self.count_wait(now);
        let head = life_of(self.info.head_of_queue_life);
        let [old, first] = self.queues.as_mut()?.expire(head, now);
        self.statistics.discard(Discard::Lifetime, old);
        self.statistics.discard(Discard::HeadOfQueue, first);
        if self.busy > now {
            return None;
        }
        let [low, high] = [0, 2].map(|block| {
            let blocks = &self.arbitration[block..block + 2];
            [blocks[0].entries, blocks[1].entries].concat()
        });
        let limit = self.info.vl_high_limit;
        let frame = self.queues.as_mut()?.take([&low, &high], limit, now)?;
        Some(self.leave(frame, now))
    }

    /// Returns when [`start`](Self::start) has something to do if no credits arrive.
    pub(crate) fn next_start(&self) -> Option<Duration> {
        let queues = self.queues.as_ref().filter(|queues| queues.len() > 0)?;
        let head = life_of(self.info.head_of_queue_life);
        Some(queues.stalled_until(head).unwrap_or(self.busy))
    }

    /// Returns how long a packet that is sent now would wait.
    pub(crate) fn backlog(&self, now: Duration) -> Duration {
        self.busy.saturating_sub(now)
    }

    /// Returns whether a node with the port's partition table may send a frame that passes [`check`](Frame::check). The
    /// table of a switch port describes the node behind it, so a limited member may send with its own key.
    pub(crate) fn is_of_member(&self, frame: &Frame, lrh: &Lrh) -> bool {
        let is_own = |key: u16| key & !FULL_MEMBER != 0 && self.pkeys.contains(&key);
        lrh.is_management() || frame.transport().is_none_or(|bth| is_own(bth.pkey))
    }

    /// Returns whether the port's partition table admits a frame that passes [`check`](Frame::check). Raw packets and
    /// subnet management packets have no partition key.
    pub(crate) fn admits(&self, frame: &Frame, lrh: &Lrh) -> bool {
        lrh.is_management() || (frame.transport()).is_none_or(|bth| admits(&self.pkeys, bth.pkey))
    }
}

/// Returns how long a packet may wait for an encoded lifetime (18.2.5.4).
pub(crate) fn life_of(exponent: u8) -> Duration {
    if exponent > 19 {
        MAX_WAIT
    } else {
        Duration::from_nanos(time_of(exponent)).min(MAX_WAIT)
    }
}

/// Lowest multicast LID (4.1.3).
pub const MULTICAST_LID: u16 = 0xc000;

/// Returns whether a LID is a multicast LID.
pub const fn is_multicast(lid: u16) -> bool {
    lid >= MULTICAST_LID && lid != PERMISSIVE
}

/// Destination QP of all packets to multicast LIDs, and of no others (9.6.1).
pub const MULTICAST_QP: u32 = 0xff_ffff;

/// Minimum buffer for the packets of a lane, which is that of the longest frame.
pub const MIN_BUFFER: u32 = MAX_FRAME.next_multiple_of(queue::BLOCK) as u32;

/// Bytes of the longest frame.
pub const MAX_FRAME: usize = MAX_MTU + MAX_OVERHEAD + VCRC_LENGTH;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Bth, Deth, Packet};

    fn frame(lane: u8, payload: usize) -> Frame {
        let bth = Bth {
            destination_qp: 5,
            pkey: DEFAULT_PKEY,
            ..Bth::default()
        };
        let mut packet = Packet::datagram((1, 2), 0, bth, Deth::default(), &vec![0; payload]);
        packet.lane = lane;
        packet.into()
    }

    fn port(state: PortState) -> Port {
        let mut port = Port::new(PortConfig::default(), 1, 1);
        port.link_up(Width::X4, Speed::Edr);
        port.info.state = state;
        port
    }

    #[test]
    fn the_state_says_what_passes() {
        let states = [
            PortState::DOWN,
            PortState::INIT,
            PortState::ARMED,
            PortState::ACTIVE,
        ];
        for (state, [management_in, data_in, management_out, data_out]) in states.into_iter().zip([
            [false; 4],
            [true, false, true, false],
            [true, true, true, false],
            [true; 4],
        ]) {
            let port = || {
                let mut port = port(state);
                if state == PortState::DOWN {
                    port.link_down(PhysicalState::POLLING);
                }
                port
            };
            for (lane, receives, transmits) in
                [(15, management_in, management_out), (0, data_in, data_out)]
            {
                let frame = frame(lane, 256);
                let mut receiver = port();
                let received =
                    matches!(receiver.receive(&frame, Duration::ZERO), Received::Good(_));
                assert_eq!(received, receives, "{state:?} {lane}");
                let activated = receiver.info.state == PortState::ACTIVE;
                assert_eq!(activated, data_out || receives && lane == 0);
                let mut sender = port();
                let left = sender
                    .transmit(frame.clone(), MAX_WAIT, None, Duration::ZERO)
                    .is_ok();
                assert_eq!(left, transmits, "{state:?} {lane}");
                assert_eq!(
                    sender.statistics.counters.transmit_discards,
                    u16::from(!transmits)
                );
            }
        }
    }

    #[test]
    fn a_link_takes_its_time() {
        let mut port = port(PortState::ACTIVE);
        let frame = frame(0, 4096);
        let nanoseconds = frame.length() as u64 * 8 / 100 + 1;
        let leave = |port: &mut Port, frame: &Frame, life, now| {
            let left = port.transmit(frame.clone(), life, None, now);
            left.map(|left| left.expect("at once").1)
        };
        for count in 1..4 {
            let left = leave(&mut port, &frame, MAX_WAIT, Duration::ZERO).expect("in time");
            assert!(
                left.as_nanos().abs_diff((count * nanoseconds).into()) < 4,
                "{left:?}"
            );
        }
        let life = Duration::from_nanos(900);
        let late = leave(&mut port, &frame, life, Duration::ZERO);
        assert_eq!(late, Err(Discarded), "too late");
        assert_eq!(port.statistics.discards.switch_lifetime, 1);
        assert!(leave(&mut port, &frame, life, Duration::from_micros(1)).is_ok());
        port.info.neighbor_mtu = 4;
        let now = Duration::from_secs(1);
        let long = leave(&mut port, &frame, MAX_WAIT, now);
        assert_eq!(long, Err(Discarded), "too long");
        assert_eq!(port.statistics.discards.neighbor_mtu, 1);
        port.info.neighbor_mtu = 5;
        port.info.operational_vls = 1;
        assert!(leave(&mut port, &self::frame(1, 4), MAX_WAIT, now).is_err());
    }

    #[test]
    fn copies_do_not_wait_without_bounds() {
        let config = PortConfig {
            buffer: Some(MIN_BUFFER),
            ..PortConfig::default()
        };
        let mut port = Port::new(config, 1, 1);
        port.link_up(Width::X4, Speed::Edr);
        port.info.state = PortState::ACTIVE;
        // The other end never has room.
        let mut send = |room| port.transmit(frame(0, 4), MAX_WAIT, room, Duration::ZERO);
        for _ in 0..MAX_WITHOUT_ROOM {
            assert_eq!(send(None), Ok(None));
        }
        assert_eq!(send(None), Err(Discarded));
        let room = queue::Room {
            port: 2,
            lane: 0,
            blocks: 1,
        };
        assert_eq!(send(Some(room)), Ok(None));
        assert_eq!(port.statistics.counters.transmit_discards, 1);
        // The wait is counted while it lasts.
        port.count_wait(Duration::from_micros(4));
        assert_eq!(port.statistics.counters.transmit_wait, 1031);
        port.count_wait(Duration::from_micros(8));
        assert_eq!(port.statistics.extended.transmit_wait, 2062);
        // All are too old, or the link goes down.
        port.start(MAX_WAIT);
        let discards = &port.statistics.discards;
        assert_eq!(discards.switch_lifetime, MAX_WITHOUT_ROOM as u16 + 1);
        assert_eq!(discards.head_of_queue_lifetime, 0);
        assert_eq!(
            port.transmit(frame(0, 4), MAX_WAIT, None, MAX_WAIT),
            Ok(None)
        );
        port.link_down(PhysicalState::POLLING);
        assert_eq!(port.statistics.discards.inactive, 1);
    }

    #[test]
    fn errors_are_counted_until_they_are_too_many() {
        let mut port = port(PortState::ACTIVE);
        let good = frame(0, 4);
        let mut bad = good.clone().into_bytes();
        bad[20] ^= 1;
        let bad = Frame::from(bad);
        for _ in 0..100 {
            assert_eq!(port.receive(&bad, Duration::ZERO), Received::Dropped);
            assert!(matches!(
                port.receive(&good, Duration::ZERO),
                Received::Good(_)
            ));
        }
        let outcomes: Vec<_> = (0..9).map(|_| port.receive(&bad, Duration::ZERO)).collect();
        assert_eq!(outcomes[8], Received::TooManyErrors);
        assert!(outcomes[..8].iter().all(|it| *it == Received::Dropped));
        let counters = &port.statistics.counters;
        assert_eq!(
            (counters.symbol_errors, counters.local_link_integrity_errors),
            (109, 1)
        );
        // Any bytes can be received.
        for length in 0..40 {
            port.receive(&vec![0xa5; length].into(), Duration::ZERO);
        }
    }

    #[test]
    fn the_best_of_both_is_used() {
        let slow = PortConfig {
            width: Width::X1,
            speed: Speed::Qdr,
            ..PortConfig::default()
        };
        let (mut fast, slow) = (
            Port::new(PortConfig::default(), 1, 1),
            Port::new(slow, 2, 1),
        );
        assert_eq!(fast.negotiate(&fast), Some((Width::X4, Speed::Edr)));
        assert_eq!(fast.negotiate(&slow), Some((Width::X1, Speed::Qdr)));
        assert_eq!(slow.negotiate(&fast), fast.negotiate(&slow));
        for width in Width::ALL {
            for speed in Speed::ALL {
                fast.link_up(width, speed);
                assert_eq!(fast.rate(), width.lanes() * speed.lane_rate());
            }
        }
        fast.info.width_enabled = width::X4;
        assert_eq!(fast.negotiate(&slow), None);
    }

    #[test]
    fn one_of_two_is_a_full_member() {
        let keys = [0x8001, 0x0002, 0];
        for (pkey, admitted) in [
            (0x8001, true),
            (1, true),
            (0x8002, true),
            (2, false),
            (3, false),
            (0, false),
            (0x8000, false),
        ] {
            assert_eq!(admits(&keys, pkey), admitted, "{pkey:#x}");
        }
    }
}
