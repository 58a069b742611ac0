// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a reliable connection still sends to its peer when it fails.
//!
//! A request is refused in its turn: the queue pair answers all earlier requests, and only then enters the error state
//! (IBTA volume 1, 9.7.5.1.1 and 9.9.3). If the queue pair fails for another reason, it sends no more responses,
//! because its owner may reuse the memory that the peer reads as soon as everything has been flushed. It only
//! acknowledges what it has received.

use vrnic_engine::{
    Budget, Io, Outbox, RnicConfig, Segment, Segmentation,
    segment::{Aeth, Body, NakCode, Payload, Position, Reth, SendTail, Syndrome},
    testing::{Connection, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    completion::Status,
    event::EventType,
    qp::{QpAttributes, QpState, attribute},
    work::SendOpcode,
};

const MR: usize = 1 << 20;

/// PSN of the first packet of every connection.
const FIRST: u32 = 0xff_fff0;

/// Number of packets of a read that takes more than one turn.
const PACKETS: u32 = 64;

const MTU: u32 = 1024;

fn connection() -> (World, Connection) {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 1);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.retry_count = 0;
    });
    (world, c)
}

/// Lets the second device receive a packet, if there is one, and have one turn. Returns what it sends.
fn turn(world: &mut World, segment: Option<Segment>) -> Vec<Segment<'static>> {
    let mut outbox = Outbox::new();
    let Node { rnic, guest } = &mut world.nodes[1];
    let mut io = Io {
        memory: &guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    match segment {
        Some(segment) => rnic.receive(segment, &mut io),
        None => drop(rnic.poll(Budget::units(16), &mut io)),
    }
    outbox.segments
}

fn psn(offset: u32) -> u32 {
    (FIRST + offset) & 0xff_ffff
}

fn long_read(c: &Connection) -> Segment<'static> {
    let body = Body::ReadRequest(Reth {
        address: c.mrs[1].iova,
        rkey: c.mrs[1].key,
        length: PACKETS * MTU,
    });
    c.packet(0, psn(0), body, Payload::Empty)
}

fn bad_write(c: &Connection, immediate: bool) -> Segment<'static> {
    let body = Body::Write {
        position: Position::Only,
        reth: Some(Reth {
            address: c.mrs[1].iova,
            rkey: c.mrs[1].key ^ 0x10,
            length: 4,
        }),
        immediate: immediate.then_some(1),
    };
    c.packet(0, psn(PACKETS), body, Payload::Bytes(vec![0; 4]))
}

fn send(c: &Connection, at: u32, tail: SendTail) -> Segment<'static> {
    let body = Body::Send {
        position: Position::Only,
        tail,
    };
    c.packet(0, psn(at), body, Payload::Bytes(vec![0; 4]))
}

fn state(world: &mut World, c: &Connection) -> QpState {
    world.state(1, c.qps[1].qpn)
}

fn go_to_error(world: &mut World, c: &Connection) {
    let attributes = QpAttributes {
        state: QpState::Error.raw(),
        mask: attribute::STATE.into(),
        ..World::attributes(0, c.qps[0].qpn)
    };
    world.modify(1, c.qps[1].qpn, attributes);
}

fn next_event(world: &mut World) -> Option<EventType> {
    let event = world.nodes[1].rnic.next_async_event()?;
    Some(EventType::try_from(event.event_type.get()).expect("event type"))
}

/// Gives the device turns until it has answered the long read. It must not fail before that; after that, it must have
/// sent `last`.
fn answers_before_it_fails(world: &mut World, c: &mut Connection, last: Syndrome) {
    let mut seen = 0;
    loop {
        let before = state(world, c);
        let sent = turn(world, None);
        assert!(!sent.is_empty(), "{seen} packets of {PACKETS}");
        assert_eq!(
            before,
            QpState::ReadyToSend,
            "failed after {seen} of {PACKETS}"
        );
        for segment in sent {
            match segment.body {
                Body::ReadResponse { .. } => {
                    assert_eq!(segment.psn.raw(), psn(seen));
                    seen += 1;
                }
                Body::Acknowledge(Aeth { syndrome, .. }) => {
                    assert_eq!((seen, segment.psn.raw()), (PACKETS, psn(PACKETS)));
                    let syndrome = match syndrome {
                        Syndrome::Ack { .. } => Syndrome::ACK,
                        other => other,
                    };
                    assert_eq!(syndrome, last);
                    assert_eq!(state(world, c), QpState::Error);
                    assert!(turn(world, None).is_empty(), "it said its last word");
                    return;
                }
                ref other => panic!("{other:?}"),
            }
        }
        if seen < PACKETS {
            assert_eq!(c.recv_cqs[1].drain().len(), 0, "a receive failed early");
            assert_eq!(next_event(world), None, "an event came early");
        }
    }
}

#[test]
fn what_came_before_a_refused_request_is_answered_first() {
    let refused = Syndrome::Nak(NakCode::RemoteAccess);
    for immediate in [false, true] {
        let (mut world, mut c) = connection();
        for wr_id in 0..2 {
            c.receive(&mut world, 1, wr_id, &[]);
        }
        assert!(turn(&mut world, Some(long_read(&c))).is_empty());
        assert!(turn(&mut world, Some(bad_write(&c, immediate))).is_empty());
        // It arrives again before its turn, and so do the requests that follow.
        assert!(turn(&mut world, Some(bad_write(&c, immediate))).is_empty());
        let behind = send(&c, PACKETS + 1, SendTail::Plain);
        assert!(turn(&mut world, Some(behind)).is_empty());
        answers_before_it_fails(&mut world, &mut c, refused);
        world.settle();
        let statuses: Vec<Status> = c.recv_cqs[1].drain().iter().map(|r| r.status).collect();
        let (first, event) = if immediate {
            (Status::LocalAccess, None)
        } else {
            (Status::Flushed, Some(EventType::QpAccessError))
        };
        assert_eq!(statuses, [first, Status::Flushed]);
        assert_eq!(next_event(&mut world), event);
        assert_eq!(next_event(&mut world), None);
    }
}

#[test]
fn a_receive_that_is_not_valid_waits_for_its_turn() {
    let (mut world, mut c) = connection();
    let element = c.mrs[1].sge(0, 64);
    c.receive(&mut world, 1, 1, &[element; 4]);
    // More elements than the queue supports.
    let rq = &c.qps[1].rq;
    let entry = rq.layout.entry_offset(0) as usize;
    rq.arena.put(entry + 8, &9u16.to_le_bytes());
    c.receive(&mut world, 1, 2, &[element]);
    turn(&mut world, Some(long_read(&c)));
    let message = send(&c, PACKETS, SendTail::Plain);
    turn(&mut world, Some(message));
    answers_before_it_fails(&mut world, &mut c, Syndrome::Nak(NakCode::RemoteOperation));
    world.settle();
    let statuses: Vec<Status> = c.recv_cqs[1].drain().iter().map(|r| r.status).collect();
    assert_eq!(statuses, [Status::LocalQueuePairOperation, Status::Flushed]);
    assert_eq!(next_event(&mut world), None);
}

#[test]
fn a_message_that_asks_for_a_key_it_may_not_have_is_acknowledged_in_its_turn() {
    let (mut world, mut c) = connection();
    let element = c.mrs[1].sge(0, 64);
    c.receive(&mut world, 1, 1, &[element]);
    turn(&mut world, Some(long_read(&c)));
    let message = send(&c, PACKETS, SendTail::Invalidate(c.mrs[1].key));
    turn(&mut world, Some(message));
    answers_before_it_fails(&mut world, &mut c, Syndrome::ACK);
    let received = c.recv_cqs[1].drain();
    assert_eq!(received[0].status, Status::RemoteInvalidRequest);
    assert_eq!(next_event(&mut world), None);
}

/// Failures of the owner's requests, and by the owner itself.
#[test]
fn a_queue_pair_that_failed_reads_no_memory_for_its_peer() {
    for by_request in [false, true] {
        let (mut world, mut c) = connection();
        turn(&mut world, Some(long_read(&c)));
        if by_request {
            let bad = Send::new(1, SendOpcode::Send).immediate(1).flags(0x80);
            c.send(&mut world, 1, &bad);
        }
        let sent = turn(&mut world, None);
        assert!(!sent.is_empty() && sent.len() < PACKETS as usize);
        if !by_request {
            go_to_error(&mut world, &c);
        }
        assert_eq!(state(&mut world, &c), QpState::Error);
        let rest: usize = (0..8).map(|_| turn(&mut world, None).len()).sum();
        assert_eq!(rest, 0, "packets of a queue pair in the error state");
    }
}

/// Otherwise, the peer would not know of a message whose receive has completed.
#[test]
fn a_queue_pair_that_failed_acknowledges_what_it_received() {
    let (mut world, mut c) = connection();
    let element = c.mrs[1].sge(0, 64);
    c.receive(&mut world, 1, 1, &[element]);
    turn(&mut world, Some(send(&c, 0, SendTail::Plain)));
    assert_eq!(c.recv_cqs[1].drain()[0].status, Status::Success);
    go_to_error(&mut world, &c);
    let sent = turn(&mut world, None);
    let [Segment { body, .. }] = &sent[..] else {
        panic!("{sent:?}");
    };
    assert!(
        matches!(body, Body::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Ack { .. })),
        "{body:?}"
    );
    // Nothing is received any more.
    turn(&mut world, Some(send(&c, 1, SendTail::Plain)));
    assert!(turn(&mut world, None).is_empty());
}
