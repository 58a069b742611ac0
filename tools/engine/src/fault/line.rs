// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of a line that belongs to no device, such as a switch port, through which other devices' packets pass.
//!
//! They are the same faults as those of a device's packets, and they match and fire in the same way. A line only knows
//! what packets tell about a queue pair. Faults of anything that only a device has cannot be armed.

use super::{
    Armory, Faults, Kind,
    later::Parcel,
    occasion::{Direction, Occasion, Seam, Subject},
    wire::suffer,
};
use crate::{
    context::Owner,
    memory::Nowhere,
    resources::Io,
    segment::{Body, Outbox, Segment, Service},
    time::Instant,
};
use vrnic_wire::qp::{GSI_QPN, QpState, QpType};

/// The faults of a line. Empty by default. [`Direction::Out`] is the direction of packets that the device behind the
/// line sends.
#[derive(Debug, Default)]
pub struct Line {
    faults: Faults,
    outbox: Outbox,
}

impl Line {
    /// Returns whether nothing is armed or delayed, so that packets need not be passed to it.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.faults.is_idle()
    }

    /// Returns the faults for inspection.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the faults, to arm or clear some.
    pub fn armory(&mut self) -> Armory<'_> {
        Armory::of_line(&mut self.faults)
    }

    /// Handles a packet that passes. Returns the fault that struck it; if there is none, the packet continues
    /// unchanged. Appends to `goes` the packets that replace a struck packet, and any others that continue now.
    pub fn pass(
        &mut self,
        direction: Direction,
        segment: &Segment<'_>,
        now: Instant,
        goes: &mut Vec<Segment<'static>>,
    ) -> Option<&'static Kind> {
        let faults = &mut self.faults;
        let overtaken = faults.later.pass(direction, segment.destination_qpn);
        let occasion = Occasion {
            qp: Some(subject(direction, segment)),
            ..Occasion::packet(Seam::Packet, direction, segment)
        };
        let strike = faults.strike(now, occasion);
        if let Some(strike) = &strike
            && let Ok(mut owned) = segment.to_owned(&Nowhere)
        {
            let mut io = Io {
                memory: &Nowhere,
                now,
                outbox: &mut self.outbox,
            };
            let fate = suffer(strike, &mut owned, &io);
            goes.extend(faults.settle_packet(direction, owned, &fate, &mut io));
        }
        goes.extend(overtaken);
        faults.update();
        strike.map(|strike| strike.kind)
    }

    /// Takes the next packet that is due, with its direction.
    pub fn pop_due(&mut self, now: Instant) -> Option<(Direction, Segment<'static>)> {
        let due = self.faults.later.pop_due(now);
        self.faults.update();
        match due? {
            Parcel::Packet(direction, segment) => Some((direction, segment)),
            // Nothing else is delayed on a line.
            Parcel::Completion(..) | Parcel::Notice(_) | Parcel::Doorbell(..) => None,
        }
    }

    /// Returns when [`pop_due`](Self::pop_due) has something.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.faults.next_deadline()
    }
}

/// Describes the queue pair behind the line that sends or receives a packet. Numbers that the packet does not contain
/// are 0.
fn subject(direction: Direction, segment: &Segment<'_>) -> Subject {
    let (qpn, peer) = match direction {
        Direction::Out => (segment.source_qpn, segment.destination_qpn),
        Direction::In => (segment.destination_qpn, segment.source_qpn),
    };
    let sends = direction == Direction::Out;
    let qp_type = match (segment.body, segment.service) {
        (Body::Datagram { .. }, _) if qpn == GSI_QPN => QpType::Gsi,
        (Body::Datagram { .. }, _) => QpType::UnreliableDatagram,
        (Body::Frame { .. }, _) => QpType::RawPacket,
        (_, Service::Reliable) => QpType::ReliableConnection,
        (_, Service::Unreliable) => QpType::UnreliableConnection,
        // An initiator sends requests and receives responses.
        (body, Service::Xrc { .. }) if body.is_response() != sends => QpType::XrcInitiator,
        (_, Service::Xrc { .. }) => QpType::XrcTarget,
    };
    Subject {
        qpn,
        peer,
        qp_type,
        // Descriptions that use any of these are refused.
        state: QpState::ReadyToSend,
        context: 0,
        owner: Owner::default(),
        kernel: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        psn::Psn,
        segment::{
            Aeth, ECN_MARKED, ECN_MASK, Path, Payload, Position, Reth, SendTail, Syndrome, Touched,
        },
    };
    use std::time::Duration;

    fn packet(psn: u32, body: Body) -> Segment<'static> {
        Segment {
            path: Path::default(),
            source_qpn: match body {
                Body::Datagram { source_qpn, .. } => source_qpn,
                _ => 0,
            },
            destination_qpn: 17,
            pkey: 0xffff,
            psn: Psn::new(psn),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body,
            payload: Payload::Frame(b"0123456789abcdef"),
            checksums_ok: false,
            touched: Touched::NOT,
        }
    }

    fn send(psn: u32) -> Segment<'static> {
        let (position, tail) = (Position::Only, SendTail::Plain);
        packet(psn, Body::Send { position, tail })
    }

    fn ack(psn: u32, syndrome: Syndrome) -> Segment<'static> {
        let aeth = Aeth { syndrome, msn: 5 };
        packet(psn, Body::Acknowledge(aeth))
    }

    fn at(millis: u64) -> Instant {
        Instant::default() + Duration::from_millis(millis)
    }

    fn line(faults: &[&str]) -> Line {
        let mut line = Line::default();
        for fault in faults {
            let spec = fault.parse().unwrap();
            line.armory().arm(spec, at(0)).unwrap();
        }
        line
    }

    /// Returns the PSNs that come out when a packet goes in.
    fn out(line: &mut Line, direction: Direction, segment: &Segment<'_>, now: Instant) -> Vec<u32> {
        let mut goes = Vec::new();
        let mut psns = Vec::new();
        if line.pass(direction, segment, now, &mut goes).is_none() {
            psns.push(segment.psn.raw());
        }
        psns.extend(goes.iter().map(|segment| segment.psn.raw()));
        psns
    }

    /// Returns what a fault makes of the first of some packets.
    fn made(fault: &str, segment: &Segment<'_>) -> Segment<'static> {
        let mut goes = Vec::new();
        let kind = line(&[fault]).pass(Direction::Out, segment, at(0), &mut goes);
        assert_eq!(kind.unwrap().name, fault.split(' ').next().unwrap());
        assert_eq!(goes[0].touched.kind, kind);
        goes.remove(0)
    }

    fn bytes<'a>(segment: &'a Segment<'_>) -> &'a [u8] {
        match &segment.payload {
            Payload::Bytes(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_packets_that_match_are_struck() {
        use Direction::{In, Out};
        let (nak, good) = (
            Syndrome::Nak(crate::segment::NakCode::SequenceError),
            Syndrome::ACK,
        );
        let mut lines = line(&[
            "lost-ack nth=2",
            "lost-nak",
            "drop qp=17 dir=in psn=7..8 size=16",
        ]);
        assert_eq!(out(&mut lines, Out, &ack(1, good), at(0)), [1]);
        assert_eq!(
            out(&mut lines, In, &ack(2, good), at(0)),
            [2],
            "the other way"
        );
        assert_eq!(out(&mut lines, Out, &send(2), at(0)), [2]);
        assert_eq!(out(&mut lines, Out, &ack(3, good), at(0)), [0; 0]);
        assert_eq!(out(&mut lines, Out, &ack(4, nak), at(0)), [0; 0]);
        assert_eq!(out(&mut lines, Out, &ack(5, nak), at(0)), [5], "once");
        assert_eq!(out(&mut lines, In, &send(6), at(0)), [6]);
        assert_eq!(out(&mut lines, In, &send(8), at(0)), [0; 0]);
        assert!(lines.is_idle());
        let told: Vec<_> = lines
            .faults()
            .log()
            .map(|firing| (firing.name, firing.position, firing.psn))
            .collect();
        assert_eq!(
            told,
            [
                ("lost-ack", 2, Some(3)),
                ("lost-nak", 1, Some(4)),
                ("drop", 1, Some(8))
            ]
        );
        assert_eq!(lines.faults().fired(), 3);
    }

    #[test]
    fn packets_tell_the_type_of_a_queue_pair() {
        let datagram = |source_qpn| {
            let (qkey, immediate) = (1, None);
            packet(
                1,
                Body::Datagram {
                    qkey,
                    source_qpn,
                    immediate,
                },
            )
        };
        let uc = Segment {
            service: Service::Unreliable,
            ..send(1)
        };
        let xrc = Segment {
            service: Service::Xrc { srqn: 3 },
            ..send(1)
        };
        let answer = Segment {
            service: Service::Xrc { srqn: 0 },
            ..ack(1, Syndrome::ACK)
        };
        for (name, segment) in [
            ("rc", &send(1)),
            ("uc", &uc),
            ("ud", &datagram(9)),
            ("gsi", &datagram(1)),
            ("xrc-ini", &xrc),
            ("xrc-tgt", &answer),
        ] {
            for other in ["rc", "uc", "ud", "gsi", "xrc-ini", "xrc-tgt"] {
                let mut line = line(&[&format!("drop type={other}")]);
                let goes = out(&mut line, Direction::Out, segment, at(0));
                assert_eq!(goes.is_empty(), name == other, "{name} by {other}");
            }
        }
        // Packets of the connection manager are spared unless they are selected.
        assert_eq!(
            out(&mut line(&["drop"]), Direction::Out, &datagram(1), at(0)),
            [1]
        );
        let mut line = line(&["drop qp=9 peer=17"]);
        assert_eq!(out(&mut line, Direction::Out, &datagram(9), at(0)), [0; 0]);
    }

    #[test]
    fn faults_change_what_they_say_and_nothing_else() {
        let good = send(7);
        assert_eq!(made("wrong-psn value=3", &good).psn.raw(), 10);
        assert_eq!(made("wrong-qp", &good).destination_qpn, 16);
        assert_eq!(made("wrong-pkey", &good).pkey, 0x7fff);
        let class = made("ecn-mark", &good).path.traffic_class;
        assert_eq!(class & ECN_MASK, ECN_MARKED);
        assert_eq!(bytes(&made("truncate bytes=3", &good)), b"012");
        let flipped = made("corrupt-payload", &good);
        let bits = bytes(&flipped).iter().zip(b"0123456789abcdef");
        assert_eq!(
            bits.map(|(is, was)| (is ^ was).count_ones()).sum::<u32>(),
            1
        );
        for fault in ["corrupt-icrc", "truncated-frame"] {
            let damaged = made(fault, &good);
            assert!(damaged.touched.damage.is_some());
            assert_eq!(bytes(&damaged), b"0123456789abcdef");
        }
        let reth = Reth {
            address: 4096,
            rkey: 5,
            length: 16,
        };
        let read = packet(8, Body::ReadRequest(reth));
        let Body::ReadRequest(changed) = made("wrong-rkey value=6", &read).body else {
            panic!("no read request any more");
        };
        assert_eq!(changed, Reth { rkey: 6, ..reth });
        let Body::Acknowledge(aeth) = made("wrong-msn", &ack(1, Syndrome::ACK)).body else {
            panic!("no acknowledgement any more");
        };
        assert_eq!(aeth.msn, 6);
    }

    #[test]
    fn packets_are_repeated_overtaken_and_late() {
        use Direction::Out;
        assert_eq!(
            out(&mut line(&["duplicate by=2"]), Out, &send(1), at(0)),
            [1, 1, 1]
        );
        let mut reorder = line(&["reorder by=2"]);
        assert_eq!(out(&mut reorder, Out, &send(1), at(0)), [0; 0]);
        assert_eq!(out(&mut reorder, Out, &send(2), at(0)), [2]);
        assert_eq!(out(&mut reorder, Out, &send(3), at(0)), [3, 1]);
        assert!(reorder.is_idle());
        let mut late = line(&["delay delay=3ms", "ghost delay=1ms"]);
        assert_eq!(out(&mut late, Out, &send(1), at(0)), [0; 0]);
        assert_eq!(late.next_deadline(), Some(at(3)));
        assert_eq!(
            out(&mut late, Out, &send(2), at(1)),
            [2],
            "its ghost comes later"
        );
        assert!(late.pop_due(at(1)).is_none());
        let mut popped = || late.pop_due(at(3)).map(|(_, segment)| segment.psn.raw());
        assert_eq!([popped(), popped(), popped()], [Some(2), Some(1), None]);
        assert!(late.is_idle());
        // 16 bytes with their headers, at 118 bytes per millisecond.
        let mut slow = line(&["slow-link rate=118000"]);
        for psn in 0..3 {
            assert_eq!(out(&mut slow, Out, &send(psn), at(0)), [0; 0]);
        }
        for psn in 0..3 {
            assert_eq!(slow.next_deadline(), Some(at(u64::from(psn) + 1)));
            let (direction, segment) = slow.pop_due(at(u64::from(psn) + 1)).unwrap();
            assert_eq!((direction, segment.psn.raw()), (Out, psn));
        }
    }

    #[test]
    fn a_notification_comes_with_an_answer() {
        let mut goes = Vec::new();
        let mut line = line(&["cnp-storm"]);
        let answer = ack(3, Syndrome::ACK);
        assert!(
            line.pass(Direction::In, &answer, at(0), &mut goes)
                .is_some()
        );
        let [first, second] = &goes[..] else {
            panic!("{goes:?}");
        };
        assert_eq!(first.body, answer.body);
        assert_eq!(second.body, Body::CongestionNotification);
        assert_eq!(second.destination_qpn, answer.destination_qpn);
    }

    #[test]
    fn the_same_seed_strikes_the_same_packets() {
        let struck = |seed: u64| -> Vec<u32> {
            let mut line = line(&[&format!("drop chance=20% seed={seed} count=all")]);
            let is_lost = |psn: &u32| out(&mut line, Direction::Out, &send(*psn), at(0)).is_empty();
            (0..500).filter(is_lost).collect()
        };
        assert_eq!(struck(3), struck(3));
        assert_ne!(struck(3), struck(4));
        assert!((60..140).contains(&struck(3).len()), "{}", struck(3).len());
    }

    #[test]
    fn a_port_has_no_faults_of_devices() {
        let mut line = Line::default();
        for (fault, why) in [
            ("cqe-lost", "a fault of a device"),
            ("link-down", "a fault of a device"),
            ("nak-sequence", "a fault of a device"),
            ("key-revoked", "a fault of a device"),
            ("drop state=rts", "`state`"),
            ("drop process=x", "`process`"),
            ("drop pid=7", "`pid`"),
            ("drop context=1", "`context`"),
        ] {
            let error = line
                .armory()
                .arm(fault.parse().unwrap(), at(0))
                .unwrap_err();
            assert!(error.to_string().contains(why), "{fault}: {error}");
        }
        assert!(line.is_idle());
        let fitting = Kind::all().filter(|kind| kind.fits_ports()).count();
        assert!(fitting >= 35, "{fitting}");
    }
}
