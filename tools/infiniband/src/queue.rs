// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that wait for a link: flow control (IBTA volume 1, 7.9) and arbitration between lanes (7.6.9).
//!
//! Each port has a receive buffer for each lane, in blocks of 64 bytes. It tells the other end the limit, which is the
//! block up to which that may send. A packet that leaves a switch by another port occupies the buffer until it has
//! left. Management packets occupy no buffer.

use crate::packet::{Frame, MANAGEMENT_LANE};
use std::{collections::VecDeque, time::Duration};

/// Bytes in a block.
pub(crate) const BLOCK: usize = 64;
/// Number of lanes, including the one of management.
const LANES: usize = MANAGEMENT_LANE as usize + 1;
/// Blocks in a unit of the high-priority limit: 4 KiB.
const LIMIT_UNIT: u32 = 64;
/// High-priority limit that stands for no limit.
const NO_LIMIT: u8 = 255;

/// Returns the number of blocks of a frame.
pub(crate) fn blocks(frame: &Frame) -> u32 {
    frame.length().div_ceil(BLOCK) as u32
}

/// Buffer that a packet occupies at the port by which it arrived.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    /// The port.
    pub port: u8,
    /// The lane in which the packet arrived.
    pub lane: u8,
    /// Number of blocks.
    pub blocks: u32,
}

/// A packet that waits.
#[derive(Clone, Debug)]
struct Waiting {
    frame: Frame,
    room: Option<Room>,
    /// When the packet is discarded.
    end: Duration,
}

/// Packets that wait in one lane, and the lane's flow control in both directions.
#[derive(Clone, Debug, Default)]
struct Lane {
    waiting: VecDeque<Waiting>,
    /// When the current first packet became the first.
    first: Duration,
    /// Number of blocks sent, and how many may be sent in total.
    sent: u64,
    limit: u64,
    /// Number of blocks that the other end sent, and how many of them are still in the buffer.
    received: u64,
    held: u64,
    /// Last limit that the other end was told.
    told: Option<u64>,
}

impl Lane {
    /// Returns the number of blocks of the first packet.
    fn next(&self) -> Option<u32> {
        self.waiting.front().map(|it| blocks(&it.frame))
    }
}

/// Packets that wait at a port.
#[derive(Clone, Debug)]
pub(crate) struct Queues {
    /// Number of blocks that the buffer of each lane has.
    buffer: u64,
    lanes: [Lane; LANES],
    arbiter: Arbiter,
    /// Since when packets have waited for credits on an idle link.
    stalled: Option<Duration>,
    /// Buffers of packets that have left or were discarded.
    freed: Vec<Room>,
}

impl Queues {
    /// Creates the queues of a port with this many bytes of buffer for each lane.
    pub fn new(buffer: u32) -> Self {
        Self {
            buffer: u64::from(buffer) / BLOCK as u64,
            lanes: Default::default(),
            arbiter: Arbiter::default(),
            stalled: None,
            freed: Vec::new(),
        }
    }

    /// Discards the waiting packets because the link goes up or down. Returns their number.
    pub fn reset(&mut self) -> usize {
        let mut gone = 0;
        for lane in &mut self.lanes {
            let held = lane.held;
            gone += lane.waiting.len();
            let rooms = lane.waiting.drain(..).filter_map(|it| it.room);
            self.freed.extend(rooms);
            *lane = Lane {
                held,
                ..Lane::default()
            };
        }
        self.stalled = None;
        gone
    }

    /// Returns the number of waiting packets.
    pub fn len(&self) -> usize {
        self.lanes.iter().map(|lane| lane.waiting.len()).sum()
    }

    /// Adds a packet that waits at most until `end`.
    pub fn push(&mut self, frame: Frame, room: Option<Room>, end: Duration, now: Duration) {
        let lane = &mut self.lanes[usize::from(frame.lane()) % LANES];
        if lane.waiting.is_empty() {
            lane.first = now;
        }
        lane.waiting.push_back(Waiting { frame, room, end });
    }

    /// Returns when the first packet of a lane is discarded, if a packet may be the first one for `head` at most.
    fn end(lane: &Lane, head: Duration) -> Option<Duration> {
        let first = lane.waiting.front()?;
        Some(first.end.min(lane.first + head))
    }

    /// Discards the packets that waited too long. Returns the number of those that were too old, and of those that were
    /// the first of their lane for too long.
    pub fn expire(&mut self, head: Duration, now: Duration) -> [usize; 2] {
        let mut late = [0; 2];
        for lane in &mut self.lanes {
            while Self::end(lane, head).is_some_and(|end| end <= now)
                && let Some(gone) = lane.waiting.pop_front()
            {
                self.freed.extend(gone.room);
                lane.first = now;
                late[usize::from(gone.end > now)] += 1;
            }
        }
        late
    }

    /// Returns since when packets have waited for credits on an idle link, if they do.
    pub fn stalled_mut(&mut self) -> Option<&mut Duration> {
        self.stalled.as_mut()
    }

    /// Returns when [`expire`](Self::expire) has something to do if no packet can leave before, or `None` if one might.
    pub fn stalled_until(&self, head: Duration) -> Option<Duration> {
        self.stalled?;
        let ends = self.lanes.iter();
        ends.filter_map(|lane| Self::end(lane, head)).min()
    }

    /// Takes the packet that leaves now by the tables of low and high priority and the limit of the latter.
    pub fn take(&mut self, tables: [&[u16]; 2], limit: u8, now: Duration) -> Option<Frame> {
        let lanes = &self.lanes;
        let management = lanes[LANES - 1].next().map(|_| MANAGEMENT_LANE);
        let ready = |lane: u8| {
            let lane = &lanes[usize::from(lane % MANAGEMENT_LANE)];
            lane.next()
                .filter(|blocks| lane.sent + u64::from(*blocks) <= lane.limit)
        };
        let chosen = management.or_else(|| self.arbiter.choose(tables, limit, ready));
        let Some(number) = chosen else {
            self.stalled = (self.len() > 0).then(|| self.stalled.unwrap_or(now));
            return None;
        };
        let lane = &mut self.lanes[usize::from(number)];
        let packet = lane.waiting.pop_front()?;
        lane.first = now;
        if number != MANAGEMENT_LANE {
            lane.sent += u64::from(blocks(&packet.frame));
        }
        self.freed.extend(packet.room);
        self.stalled = None;
        Some(packet.frame)
    }

    /// Returns the number of blocks that a lane has sent.
    pub fn sent(&self, lane: u8) -> u64 {
        self.lanes.get(usize::from(lane)).map_or(0, |it| it.sent)
    }

    /// Notes that the other end has sent this number of blocks in total, whether the last packet arrived intact or not.
    pub fn received(&mut self, lane: u8, sent: u64) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
            lane.received = sent;
        }
    }

    /// Occupies the buffer for a packet that arrived.
    pub fn hold(&mut self, room: Room) {
        self.lanes[usize::from(room.lane) % LANES].held += u64::from(room.blocks);
    }

    /// Releases the buffer of a packet.
    pub fn release(&mut self, room: Room) {
        let held = &mut self.lanes[usize::from(room.lane) % LANES].held;
        *held = held.saturating_sub(room.blocks.into());
    }

    /// Adds the buffer of a packet that did not wait here to those to release.
    pub fn free(&mut self, room: Room) {
        self.freed.push(room);
    }

    /// Returns the buffers to release at the ports by which packets arrived.
    pub fn take_freed(&mut self) -> Vec<Room> {
        std::mem::take(&mut self.freed)
    }

    /// Sets the block up to which the other end allows a lane to send.
    pub fn set_limit(&mut self, lane: u8, limit: u64) {
        if let Some(lane) = self.lanes.get_mut(usize::from(lane)) {
            lane.limit = limit;
        }
    }

    /// Returns the limits that the other end does not know yet, by lane.
    pub fn take_limits(&mut self) -> Vec<(u8, u64)> {
        let mut limits = Vec::new();
        for (number, lane) in (0..MANAGEMENT_LANE).zip(&mut self.lanes) {
            let limit = lane.received + self.buffer.saturating_sub(lane.held);
            if lane.told.replace(limit) != Some(limit) {
                limits.push((number, limit));
            }
        }
        limits
    }
}

/// Chooses between lanes: weighted round-robin within a table, and high before low priority within limits.
#[derive(Clone, Debug, Default)]
struct Arbiter {
    /// Turns of low and of high priority.
    turns: [Turn; 2],
    /// Blocks of high priority since the last packet of low priority.
    high: u32,
}

/// Position in a table.
#[derive(Copy, Clone, Debug, Default)]
struct Turn {
    place: usize,
    /// Number of blocks that the lane at this place may still send.
    left: u32,
}

/// Returns the lane and the weight of an entry.
fn entry(entry: u16) -> (u8, u32) {
    ((entry >> 8) as u8 & 0xf, u32::from(entry & 0xff))
}

impl Arbiter {
    /// Returns the lane that sends next. `ready` returns the number of blocks that a lane would send.
    fn choose(
        &mut self,
        tables: [&[u16]; 2],
        limit: u8,
        ready: impl Fn(u8) -> Option<u32>,
    ) -> Option<u8> {
        let [low, high] = [0, 1].map(|table| self.turns[table].next(tables[table], &ready));
        let exhausted = limit != NO_LIMIT
            && self.high != 0
            && self.high >= u32::from(limit) * LIMIT_UNIT
            && low.is_some();
        let (table, place) = match (low, high) {
            (_, Some(place)) if !exhausted => (1, place),
            (low, _) => (0, low?),
        };
        let (lane, weight) = entry(tables[table][place]);
        let blocks = ready(lane)?;
        self.turns[table].take(place, weight, blocks);
        self.high = if table == 1 {
            self.high.saturating_add(blocks)
        } else {
            0
        };
        Some(lane)
    }
}

impl Turn {
    /// Returns the place in the table whose turn it is.
    fn next(&self, table: &[u16], ready: impl Fn(u8) -> Option<u32>) -> Option<usize> {
        let length = table.len();
        (usize::from(self.left == 0)..=length)
            .map(|step| (self.place + step) % length)
            .find(|place| {
                let (lane, weight) = entry(table[*place]);
                weight > 0 && lane != MANAGEMENT_LANE && ready(lane).is_some()
            })
    }

    /// Counts a packet that the lane at a place sends.
    fn take(&mut self, place: usize, weight: u32, blocks: u32) {
        if place != self.place || self.left == 0 {
            *self = Self {
                place,
                left: weight,
            };
        }
        self.left = self.left.saturating_sub(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(1);

    /// Creates a frame of this number of blocks.
    fn frame(lane: u8, blocks: usize) -> Frame {
        let mut frame = vec![0; blocks * BLOCK];
        frame[0] = lane << 4;
        Frame::from(frame)
    }

    /// Creates a table from lanes and weights.
    fn table(entries: &[(u16, u16)]) -> Vec<u16> {
        let mut table: Vec<u16> = entries
            .iter()
            .map(|(lane, weight)| lane << 8 | weight)
            .collect();
        table.resize(64, 0);
        table
    }

    /// Creates queues with packets of one block in these lanes, and enough credits.
    fn queues(lanes: &[u8], count: usize) -> Queues {
        let mut queues = Queues::new(1 << 20);
        for lane in lanes {
            queues.set_limit(*lane, 1 << 20);
            for _ in 0..count {
                queues.push(frame(*lane, 1), None, LONG, NOW);
            }
        }
        queues
    }

    /// Returns the lanes in the order in which they send.
    fn order(queues: &mut Queues, low: &[u16], high: &[u16], limit: u8) -> Vec<u8> {
        std::iter::from_fn(|| queues.take([low, high], limit, NOW))
            .map(|frame| frame.lane())
            .collect()
    }

    #[test]
    fn lanes_send_by_their_weights() {
        let low = table(&[(0, 3), (1, 1), (2, 2)]);
        let none = table(&[]);
        let mut waiting = queues(&[0, 1, 2], 60);
        let order = order(&mut waiting, &low, &none, 0);
        assert_eq!(order[..12], [1, 2, 2, 0, 0, 0, 1, 2, 2, 0, 0, 0]);
        // A lane that has nothing to send is skipped, and no packet is lost.
        assert_eq!(order.len(), 180);
        assert!(order[150..].iter().all(|lane| *lane == 1));
        // A lane without weight never sends. Management needs no weight and comes first.
        let mut waiting = queues(&[3, 0], 2);
        waiting.push(frame(15, 4), None, LONG, NOW);
        assert_eq!(
            super::tests::order(&mut waiting, &low, &none, 0),
            [15, 0, 0]
        );
        assert_eq!(waiting.len(), 2);
    }

    #[test]
    fn high_priority_has_a_limit() {
        let (low, high) = (table(&[(0, 1)]), table(&[(1, 200)]));
        // One packet of high priority for each of low priority.
        let mut waiting = queues(&[0, 1], 4);
        assert_eq!(
            order(&mut waiting, &low, &high, 0),
            [1, 0, 1, 0, 1, 0, 1, 0]
        );
        // A limit of 64 blocks.
        let mut waiting = queues(&[0, 1], 130);
        let lanes = order(&mut waiting, &low, &high, 1);
        let first: Vec<_> = (0..lanes.len())
            .filter(|place| lanes[*place] == 0)
            .take(3)
            .collect();
        assert_eq!(first, [64, 129, 132]);
        // No limit: high priority sends as long as it has packets.
        let mut waiting = queues(&[0, 1], 500);
        let lanes = order(&mut waiting, &low, &high, NO_LIMIT);
        assert!(lanes[..500].iter().all(|lane| *lane == 1));
        assert_eq!(lanes.len(), 1000);
    }

    #[test]
    fn a_lane_without_credits_waits_and_holds_up_no_other() {
        let low = table(&[(0, 10), (1, 10)]);
        let tables = [&low[..], &low[..]];
        let mut waiting = Queues::new(10 * BLOCK as u32);
        assert_eq!(waiting.take_limits().len(), 15);
        assert_eq!(waiting.take_limits(), []);
        waiting.set_limit(0, 3);
        waiting.set_limit(1, 9);
        for lane in [0, 0, 1] {
            waiting.push(frame(lane, 2), None, LONG, NOW);
        }
        let mut sent = [0; 2].map(|_| waiting.take(tables, 0, NOW).map(|frame| frame.lane()));
        sent.sort();
        assert_eq!(sent, [Some(0), Some(1)]);
        let later = Duration::from_micros(3);
        assert_eq!(waiting.take(tables, 0, NOW), None);
        assert_eq!(waiting.stalled_until(LONG), Some(LONG));
        waiting.set_limit(0, 4);
        assert_eq!(waiting.stalled_mut(), Some(&mut { NOW }));
        assert!(waiting.take(tables, 0, later).is_some());
        assert_eq!((waiting.sent(0), waiting.sent(1)), (4, 2));
        assert_eq!(waiting.stalled_mut(), None);
        // Incoming packets.
        let room = Room {
            port: 1,
            lane: 2,
            blocks: 4,
        };
        waiting.received(2, 4);
        waiting.hold(room);
        assert_eq!(
            waiting.take_limits(),
            [],
            "the room is taken, and the limit the same"
        );
        waiting.release(room);
        assert_eq!(waiting.take_limits(), [(2, 14)]);
    }

    #[test]
    fn what_waits_too_long_is_gone() {
        let mut waiting = Queues::new(BLOCK as u32);
        let room = Room {
            port: 7,
            lane: 0,
            blocks: 1,
        };
        waiting.push(frame(0, 1), Some(room), LONG, NOW);
        waiting.push(frame(0, 1), None, 2 * LONG, NOW);
        assert_eq!(waiting.expire(5 * LONG, LONG / 2), [0, 0]);
        assert_eq!(waiting.expire(5 * LONG, LONG), [1, 0]);
        assert_eq!(waiting.take_freed(), [room]);
        // The time at the head of a queue is limited too.
        assert_eq!(waiting.expire(LONG / 4, LONG + LONG / 8), [0, 0]);
        assert_eq!(waiting.expire(LONG / 4, LONG + LONG / 4), [0, 1]);
        // Nobody waits for credits any more.
        let low = table(&[(0, 1)]);
        assert_eq!(waiting.take([&low, &low], 0, 2 * LONG), None);
        assert_eq!(waiting.stalled_mut(), None);
        waiting.push(frame(0, 1), Some(room), LONG, NOW);
        assert_eq!((waiting.reset(), waiting.len()), (1, 0));
        assert_eq!(waiting.take_freed(), [room]);
    }
}
