// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What faults do to packets.

use super::{
    Faults, Strike,
    field::Field,
    later::Parcel,
    occasion::{Direction, Occasion, Seam, key_of},
    table::Act,
};
use crate::{
    memory::Memory,
    resources::{Io, Resources},
    rnic::Engine,
    segment::{Body, ECN_MARKED, Payload, Segment, Service, Touched},
};
use std::time::Duration;
use vrnic_wire::counter::Counter;

/// What happens to a packet.
pub(super) enum Fate {
    /// It continues, possibly changed.
    Goes,
    /// It is lost.
    Lost,
    /// It is delivered and then repeated this many times.
    Repeated(u32),
    /// A copy of it arrives later.
    Ghost(Duration),
    /// It is delayed until this time.
    Later(crate::time::Instant),
    /// This many others overtake it.
    Overtaken(u32),
    /// A congestion notification accompanies it.
    Notified,
    /// The region with this key loses its rights first.
    Revokes(u32),
}

/// Applies a fault to a packet.
pub(super) fn suffer<M: Memory>(
    strike: &Strike,
    segment: &mut Segment<'static>,
    io: &Io<'_, M>,
) -> Fate {
    let args = &strike.args;
    segment.touched = Touched::by(strike.kind);
    match strike.kind.act {
        Act::Lose => Fate::Lost,
        Act::Hold => Fate::Later(io.now + args.delay),
        Act::Throttle => strike.due.map_or(Fate::Goes, Fate::Later),
        Act::Overtake => Fate::Overtaken(args.by),
        Act::Repeat => Fate::Repeated(args.by),
        Act::Ghost => Fate::Ghost(args.delay),
        Act::Damage(damage) => {
            segment.touched.damage = Some(damage);
            Fate::Goes
        }
        Act::Mark => {
            segment.path.traffic_class |= ECN_MARKED;
            Fate::Goes
        }
        Act::Notify => Fate::Notified,
        Act::Revoke => key_of(&segment.body).map_or(Fate::Goes, Fate::Revokes),
        Act::Shorten | Act::Flip => {
            if segment.detach(io.memory).is_err() {
                return Fate::Lost;
            }
            // They were checked when the packet arrived. In a replay, they could not be checked again.
            segment.checksums_ok = false;
            if let Payload::Bytes(bytes) = &mut segment.payload
                && !bytes.is_empty()
            {
                if strike.kind.act == Act::Shorten {
                    let half = bytes.len() / 2;
                    let left = args.bytes.map_or(half, |left| left as usize);
                    bytes.truncate(left);
                } else {
                    let bit = (strike.chance % (bytes.len() as u64 * 8)) as usize;
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
            Fate::Goes
        }
        Act::Set | Act::Add => {
            let change = |old: u64| match (strike.kind.act, args.value) {
                (Act::Add, value) => old.wrapping_add(value.unwrap_or(1)),
                (_, Some(value)) => value,
                (_, None) => old ^ 1,
            };
            if let Some(field) = args.field {
                if field == Field::Pad {
                    if segment.detach(io.memory).is_err() {
                        return Fate::Lost;
                    }
                    segment.checksums_ok = false;
                }
                field.change(segment, change);
            }
            Fate::Goes
        }
        _ => Fate::Goes,
    }
}

impl Faults {
    /// Delays a packet if there is room; otherwise returns it.
    fn put_packet<M: Memory>(
        &mut self,
        direction: Direction,
        mut segment: Segment<'static>,
        when: &Fate,
        io: &mut Io<'_, M>,
    ) -> Option<Segment<'static>> {
        if !self.later.has_room(segment.payload.len()) {
            return Some(segment);
        }
        if segment.detach(io.memory).is_err() {
            io.outbox.recycle(segment.payload);
            return None;
        }
        match *when {
            Fate::Overtaken(by) => self.later.put_behind(direction, segment, by, io.now),
            Fate::Ghost(delay) => {
                let due = io.now + delay;
                self.later.put(due, Parcel::Packet(direction, segment));
            }
            Fate::Later(due) => self.later.put(due, Parcel::Packet(direction, segment)),
            _ => return Some(segment),
        }
        self.update();
        None
    }

    /// Delays what has to be delayed of a packet, and returns what continues now.
    pub(super) fn settle_packet<M: Memory>(
        &mut self,
        direction: Direction,
        segment: Segment<'static>,
        fate: &Fate,
        io: &mut Io<'_, M>,
    ) -> Vec<Segment<'static>> {
        match fate {
            Fate::Goes | Fate::Revokes(_) => vec![segment],
            Fate::Notified => {
                let notification = notification(&segment);
                vec![segment, notification]
            }
            Fate::Lost => {
                io.outbox.recycle(segment.payload);
                Vec::new()
            }
            Fate::Repeated(by) => vec![segment; 1 + *by as usize],
            Fate::Ghost(_) => {
                if let Some(copy) = self.put_packet(direction, segment.clone(), fate, io) {
                    io.outbox.recycle(copy.payload);
                }
                vec![segment]
            }
            Fate::Later(_) | Fate::Overtaken(_) => {
                Vec::from_iter(self.put_packet(direction, segment, fate, io))
            }
        }
    }
}

/// Creates a congestion notification from the sender of the packet to the queue pair that receives the packet.
fn notification(packet: &Segment<'_>) -> Segment<'static> {
    Segment {
        path: packet.path,
        source_qpn: packet.source_qpn,
        destination_qpn: packet.destination_qpn,
        pkey: vrnic_wire::port::DEFAULT_PKEY,
        psn: packet.psn,
        solicited: false,
        ack_request: false,
        migrated: true,
        checksums_ok: false,
        service: Service::Reliable,
        body: Body::CongestionNotification,
        payload: Payload::Empty,
        touched: packet.touched,
    }
}

impl Resources {
    /// Sends a packet while faults are armed.
    #[cold]
    pub(crate) fn leave<M: Memory>(&mut self, mut segment: Segment<'static>, io: &mut Io<'_, M>) {
        let out = Direction::Out;
        let overtaken = self.faults.later.pass(out, segment.destination_qpn);
        let strike = self.strike(|| Occasion::packet(Seam::Packet, out, &segment));
        let fate = strike.map_or(Fate::Goes, |strike| suffer(&strike, &mut segment, io));
        self.note_sent(&segment, io.memory);
        let is_told = strike.is_some_and(|strike| strike.is_logged);
        // Payload is not read for watchers: nothing that the engine does may depend on them.
        let seen = (io.outbox.watched && is_told).then(|| segment.clone());
        let goes = self.faults.settle_packet(out, segment, &fate, io);
        if goes.is_empty()
            && let Some(seen) = seen
        {
            io.outbox.withhold(seen);
        }
        io.outbox.segments.extend(goes);
        io.outbox.segments.extend(overtaken);
    }
}

impl Engine {
    /// Receives a packet while faults are armed.
    #[cold]
    pub(crate) fn arrive<M: Memory>(&mut self, segment: &mut Segment<'_>, io: &mut Io<'_, M>) {
        if self.resources.faults.conditions.is_stuck() {
            return io.outbox.recycle(segment.take_payload());
        }
        let qpn = segment.destination_qpn;
        let overtaken = self.resources.faults.later.pass(Direction::In, qpn);
        let subject = self.qps.get(qpn).map(crate::qp::Qp::subject);
        self.resources.faults.act_for(subject);
        let strike = self
            .resources
            .strike(|| Occasion::packet(Seam::Packet, Direction::In, segment));
        self.resources.faults.act_for(None);
        match strike {
            None => self.accept(segment, io),
            Some(strike) => self.arrive_struck(&strike, segment, io),
        }
        for mut segment in overtaken {
            self.accept(&mut segment, io);
        }
    }

    fn arrive_struck<M: Memory>(
        &mut self,
        strike: &Strike,
        segment: &Segment<'_>,
        io: &mut Io<'_, M>,
    ) {
        let Ok(mut owned) = segment.to_owned(io.memory) else {
            return;
        };
        let fate = suffer(strike, &mut owned, io);
        let damaged = owned.touched.damage;
        let path = &owned.path;
        let is_ours = path.destination == segment.path.destination
            || path.is_multicast()
            || self.has_gid(&path.destination);
        if let Fate::Revokes(key) = fate {
            self.resources.keys.revoke(key);
        }
        let faults = &mut self.resources.faults;
        let goes = faults.settle_packet(Direction::In, owned, &fate, io);
        for mut segment in goes {
            if let Some(damage) = damaged {
                io.outbox.recycle(segment.payload);
                self.count_bad_packet(damage == crate::segment::Damage::Icrc);
            } else if !is_ours {
                io.outbox.recycle(segment.payload);
                self.resources.counters.count(Counter::Dropped);
            } else {
                self.accept(&mut segment, io);
            }
        }
    }
}
