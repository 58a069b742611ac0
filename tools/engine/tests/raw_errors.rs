// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which errors each end of raw packets sees. `matrix` has the other types of queue pairs.

use crate::raw::{A, B, add, dropped, end, frame, to};
use vrnic_engine::{
    Cause,
    testing::{DatagramEnd, Node, Send, World},
};
use vrnic_wire::{
    completion::Status as Done,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{SendOpcode, Sge},
};

/// The queue pair of an end, which is ready to send, enters another state.
fn put(world: &mut World, end: &mut DatagramEnd, state: QpState) {
    let (node, qpn) = (end.node, end.qp.qpn);
    match state {
        QpState::ReadyToSend => {}
        QpState::Init => {
            go(world, end, QpState::Reset);
            climb(world, end, &[QpState::Init]);
        }
        QpState::ReadyToReceive => {
            go(world, end, QpState::Reset);
            climb(world, end, &[QpState::Init, QpState::ReadyToReceive]);
        }
        QpState::SendQueueError => {
            end.send(world, &Send::new(9, SendOpcode::Read));
            world.settle();
            assert_eq!(end.send_cq.drain().len(), 1);
        }
        _ => go(world, end, state),
    }
    assert_eq!(world.state(node, qpn), state);
}

/// Changes only the state of a queue pair.
fn go(world: &mut World, end: &DatagramEnd, state: QpState) {
    let attributes = QpAttributes {
        state: state.raw(),
        mask: attribute::STATE.into(),
        ..QpAttributes::default()
    };
    world.modify(end.node, end.qp.qpn, attributes);
}

fn climb(world: &mut World, end: &DatagramEnd, way: &[QpState]) {
    let attributes = QpAttributes {
        port: 1,
        ..QpAttributes::default()
    };
    world.climb(end.node, end.qp.qpn, attributes, QpType::RawPacket, way);
}

/// What is wrong with the memory of a request or of a receive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Memory {
    Valid,
    Key,
    Bounds,
    /// A receive that is shorter than the frame.
    Short,
    /// A receive with more elements than the queue supports.
    Entry,
    /// No receive.
    Absent,
}

/// An operation, with an error at each end.
#[derive(Copy, Clone, Debug)]
struct Faults {
    opcode: SendOpcode,
    signaled: bool,
    local: Memory,
    receive: Memory,
    /// State of the sender when it posts. Then it becomes ready to send.
    own: QpState,
    peer: QpState,
}

type Ended = (Done, Option<Cause>);

const SUCCESS: Ended = (Done::Success, None);
const FLUSHED: Ended = (Done::Flushed, Some(Cause::QpInError));

/// What both ends see.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    request: Option<Ended>,
    next: Ended,
    receives: Vec<Ended>,
    states: [QpState; 2],
    dropped: u64,
}

impl Faults {
    fn expected(self) -> Seen {
        let failure = match (self.opcode, self.local) {
            (SendOpcode::Send, Memory::Valid) => None,
            (SendOpcode::Send, Memory::Bounds) => {
                Some((Done::LocalProtection, Some(Cause::LocalBounds)))
            }
            (SendOpcode::Send, _) => Some((Done::LocalProtection, Some(Cause::LocalKey))),
            // It has no header to put before each segment.
            (SendOpcode::SendSegmented, _) => {
                Some((Done::LocalQueuePairOperation, Some(Cause::SegmentHeader)))
            }
            _ => Some((Done::LocalQueuePairOperation, Some(Cause::WqeOpcode))),
        };
        let is_receiving = !matches!(self.peer, QpState::Reset | QpState::Init | QpState::Error);
        let arrives = failure.is_none() && is_receiving;
        let bad = |status, cause| (vec![(status, Some(cause)), FLUSHED], QpState::Error, 0);
        let (receives, peer, dropped) = match self.receive {
            Memory::Absent if arrives => (vec![], self.peer, 1),
            Memory::Absent => (vec![], self.peer, 0),
            _ if self.peer == QpState::Error => (vec![FLUSHED; 2], self.peer, 0),
            _ if !arrives => (vec![], self.peer, 0),
            Memory::Short => (vec![], self.peer, 1),
            Memory::Key => bad(Done::LocalProtection, Cause::LocalKey),
            Memory::Bounds => bad(Done::LocalProtection, Cause::LocalBounds),
            Memory::Entry => bad(Done::LocalQueuePairOperation, Cause::ReceiveEntry),
            Memory::Valid => (vec![SUCCESS], self.peer, 0),
        };
        Seen {
            request: failure.or(self.signaled.then_some(SUCCESS)),
            next: failure.map_or(SUCCESS, |_| FLUSHED),
            receives,
            states: [
                failure.map_or(QpState::ReadyToSend, |_| QpState::SendQueueError),
                peer,
            ],
            dropped: if is_receiving { dropped } else { 0 },
        }
    }

    fn perform(self) -> Seen {
        let mut world = World::pair(20);
        let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
        put(&mut world, &mut a, self.own);
        put(&mut world, &mut b, self.peer);
        add(&mut world, 1, to(&b, B));
        if self.receive != Memory::Absent && self.peer != QpState::Reset {
            self.post_receives(&mut world, &mut b);
        }
        world.settle();
        let before = dropped(&world, 1);

        a.mr.arena.put(0, &frame(B, 100));
        a.mr.arena.put(1000, &frame(A, 100));
        let valid = a.mr.sge(0, 100);
        let element = match self.local {
            Memory::Key => Sge {
                lkey: (a.mr.key ^ 0x10).into(),
                ..valid
            },
            Memory::Bounds => a.mr.sge(65535, 100),
            _ => valid,
        };
        let mut request = Send::new(1, self.opcode);
        if self.opcode.has_elements() {
            request = request.element(element);
        }
        if !self.signaled {
            request = request.unsignaled();
        }
        a.send(&mut world, &request);
        // It is for nobody.
        let next = Send::new(2, SendOpcode::Send).element(a.mr.sge(1000, 100));
        a.send(&mut world, &next);
        if self.own != QpState::ReadyToSend {
            world.settle();
            assert!(a.send_cq.poll().is_none(), "{self:?} is early");
            match self.own {
                QpState::Init => {
                    let way = [QpState::ReadyToReceive, QpState::ReadyToSend];
                    climb(&mut world, &a, &way);
                }
                QpState::ReadyToReceive => climb(&mut world, &a, &[QpState::ReadyToSend]),
                _ => go(&mut world, &a, QpState::ReadyToSend),
            }
        }
        world.settle();

        let sent = a.send_cq.drain();
        let of = |wr_id| {
            let mut found = sent.iter().filter(|done| done.wr_id == wr_id);
            let first = found.next().map(|done| (done.status, done.cause));
            assert!(found.next().is_none(), "{sent:?}");
            first
        };
        let received = b.recv_cq.drain();
        for (number, done) in received.iter().enumerate() {
            assert_eq!(done.wr_id, number as u64, "receives complete in order");
            let is_frame = done.status == Done::Success;
            assert!(!is_frame || b.mr.arena.get(32768, 100) == frame(B, 100));
        }
        for node in &mut world.nodes {
            assert!(node.rnic.next_async_event().is_none(), "{self:?}");
        }
        let lost = dropped(&world, 1) - before;
        Seen {
            request: of(1),
            next: of(2).expect("completion of the next request"),
            receives: received
                .iter()
                .map(|done| (done.status, done.cause))
                .collect(),
            states: [world.state(0, a.qp.qpn), world.state(1, b.qp.qpn)],
            dropped: match self.peer {
                // What is dropped in these states has tests of its own.
                QpState::Reset | QpState::Init | QpState::Error => 0,
                _ => lost,
            },
        }
    }

    /// Posts a receive with this fault, and another one.
    fn post_receives(self, world: &mut World, b: &mut DatagramEnd) {
        let valid = b.mr.sge(32768, 9100);
        let first = match self.receive {
            Memory::Short => b.mr.sge(32768, 99),
            Memory::Bounds => b.mr.sge(65535, 9100),
            Memory::Key => Sge {
                lkey: (b.mr.key ^ 0x10).into(),
                ..valid
            },
            _ => valid,
        };
        for (wr_id, element) in [(0, first), (1, valid)] {
            let node = &mut world.nodes[1];
            let Node { rnic, guest } = node;
            assert!(guest.post_receive(rnic, &mut b.qp, wr_id, &[element]));
        }
        if self.receive == Memory::Entry {
            let ring = &b.qp.rq;
            let count = ring.layout.entry_offset(0) as usize + 8;
            ring.arena.put(count, &9u16.to_le_bytes());
        }
    }
}

/// Each error at one end, with each at the other, in each state of both.
#[test]
fn each_end_sees_its_own_errors() {
    let owns = [
        QpState::ReadyToSend,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::SendQueueDrain,
    ];
    let receives = [
        Memory::Valid,
        Memory::Absent,
        Memory::Short,
        Memory::Key,
        Memory::Bounds,
        Memory::Entry,
    ];
    let mut count = 0;
    let mut wrong = Vec::new();
    for &opcode in SendOpcode::ALL {
        for signaled in [true, false] {
            for local in [Memory::Valid, Memory::Key, Memory::Bounds] {
                for receive in receives {
                    for own in owns {
                        for &peer in QpState::ALL {
                            let faults = Faults {
                                opcode,
                                signaled,
                                local,
                                receive,
                                own,
                                peer,
                            };
                            // Of what is no operation, nothing else is checked.
                            let plain = local == Memory::Valid && receive == Memory::Valid;
                            if opcode != SendOpcode::Send && !plain {
                                continue;
                            }
                            count += 1;
                            let (seen, expected) = (faults.perform(), faults.expected());
                            if seen != expected && wrong.len() < 20 {
                                wrong.push(format!("{faults:?}\n  {seen:?}\n  {expected:?}"));
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "wrong:\n{}", wrong.join("\n"));
    assert!(count >= 1500, "{count} cases");
}
