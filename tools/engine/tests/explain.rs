// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Both ends explain each thing that goes wrong: the check, the work request, the packet, the key.

use vrnic_engine::{
    Cause, Explanation,
    explain::{Access, Happening},
    segment::{Body, NakCode, Payload, Syndrome},
    testing::{Connection, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{self, DeregisterMr},
    completion::{Opcode, Status},
    event::EventType,
    memory::access,
    qp::{QpState, QpType},
    work::SendOpcode,
};

const MR: usize = 8192;

fn connection(seed: u64) -> (World, Connection) {
    let mut world = World::pair(seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, attributes| {
        attributes.rnr_retry = 2;
        attributes.min_rnr_timer = 1;
    });
    (world, c)
}

/// Takes all explanations of the device of a node.
fn told(world: &mut World, node: usize) -> Vec<Explanation> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_explanation()).collect()
}

/// Returns the only explanation of this kind.
fn only(told: &[Explanation], is_it: impl Fn(&Happening) -> bool) -> &Explanation {
    let mut found = told.iter().filter(|one| is_it(&one.happening));
    let one = found.next().unwrap_or_else(|| panic!("not in {told:#?}"));
    assert!(found.next().is_none(), "twice in {told:#?}");
    one
}

fn is_completion(happening: &Happening, wanted: Status) -> bool {
    matches!(happening, Happening::Completion { status, .. } if *status == wanted)
}

/// Performs a write of side 0 that side 1 refuses with `code` for `cause`, and with the access that it names.
fn refused_write(
    (world, c): &mut (World, Connection),
    (address, rkey): (u64, u32),
    code: NakCode,
    cause: Cause,
) {
    let pd = world.nodes[1].guest.pd;
    let write = Send::new(77, SendOpcode::Write)
        .rdma(address, rkey)
        .element(c.mrs[0].sge(0, 100));
    c.send(world, 0, &write);
    world.settle();
    let psn = {
        let here = told(world, 0);
        let nak = only(&here, |what| {
            *what == Happening::NakReceived(Syndrome::Nak(code))
        });
        assert_eq!(nak.number, c.qps[0].qpn);
        assert_eq!(nak.peer_qpn, c.qps[1].qpn);
        let failed = only(&here, |what| {
            matches!(
                what,
                Happening::Completion {
                    wr_id: 77,
                    opcode: Opcode::Write,
                    ..
                }
            )
        });
        assert_eq!(failed.psn, nak.psn);
        assert_eq!(failed.access, None, "the peer knows which");
        nak.psn
    };
    let there = told(world, 1);
    let nak = only(&there, |what| {
        *what == Happening::NakSent(Syndrome::Nak(code))
    });
    assert_eq!((nak.number, nak.peer_qpn), (c.qps[1].qpn, c.qps[0].qpn));
    assert_eq!((nak.cause, nak.psn), (Some(cause), psn));
    let packet = nak.packet.unwrap();
    assert_eq!((packet.name, Some(packet.psn)), ("RDMA WRITE", psn));
    let access = Access {
        key: rkey,
        pd,
        rights: access::REMOTE_WRITE,
        address,
        length: 100,
    };
    assert_eq!(nak.access, Some(access));
    let event = only(&there, |what| matches!(what, Happening::Event(_)));
    assert_eq!((event.cause, event.access), (Some(cause), Some(access)));
}

#[test]
fn remote_access_errors_name_the_access() {
    let mut pair = connection(1);
    let unknown = (pair.1.mrs[1].iova, pair.1.mrs[1].key ^ 0x5a5a_0000);
    refused_write(&mut pair, unknown, NakCode::RemoteAccess, Cause::RemoteKey);

    let mut pair = connection(2);
    let beyond = (pair.1.mrs[1].iova + MR as u64 - 99, pair.1.mrs[1].key);
    refused_write(
        &mut pair,
        beyond,
        NakCode::RemoteAccess,
        Cause::RemoteBounds,
    );

    let mut world = World::pair(3);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |side, attributes| {
        if side == 1 {
            attributes.access = access::REMOTE_READ.into();
        }
    });
    let mine = (c.mrs[1].iova, c.mrs[1].key);
    let mut pair = (world, c);
    refused_write(
        &mut pair,
        mine,
        NakCode::InvalidRequest,
        Cause::RemoteRights,
    );
}

#[test]
fn a_local_error_behind_others_names_its_own_access() {
    let (mut world, mut c) = connection(4);
    // Another queue pair of the same device fails as well, between the check and the completion.
    let mut other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let good = Send::new(1, SendOpcode::Read)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 4000));
    let bad = |wr_id: u64, key: u32, c: &Connection| {
        let mut sge = c.mrs[0].sge(16, 32);
        sge.lkey = key.into();
        Send::new(wr_id, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(sge)
    };
    c.send(&mut world, 0, &good);
    let request = bad(2, 0x1111, &c);
    c.send(&mut world, 0, &request);
    let request = bad(3, 0x2222, &other);
    other.send(&mut world, 0, &request);
    world.settle();
    let here = told(&mut world, 0);
    for (qpn, wr_id, key, address) in [
        (c.qps[0].qpn, 2, 0x1111, c.mrs[0].iova + 16),
        (other.qps[0].qpn, 3, 0x2222, other.mrs[0].iova + 16),
    ] {
        let failed: Vec<_> = here
            .iter()
            .filter(|one| one.number == qpn)
            .cloned()
            .collect();
        let failed = only(&failed, |what| is_completion(what, Status::LocalProtection));
        assert!(matches!(failed.happening, Happening::Completion { wr_id: id, .. } if id == wr_id));
        assert_eq!(failed.cause, Some(Cause::LocalKey));
        let access = failed.access.unwrap();
        assert_eq!(
            (access.key, access.address, access.length),
            (key, address, 32)
        );
    }
}

#[test]
fn a_missing_receive_is_told_once_with_a_count() {
    let (mut world, mut c) = connection(5);
    let send = Send::new(5, SendOpcode::Send).inline(b"nobody listens");
    c.send(&mut world, 0, &send);
    world.settle();
    let there = told(&mut world, 1);
    let nak = only(&there, |what| {
        matches!(what, Happening::NakSent(Syndrome::RnrNak { timer: 1 }))
    });
    assert_eq!((nak.cause, nak.count), (Some(Cause::NoReceive), 3));
    assert_eq!(nak.packet.unwrap().name, "SEND");
    let here = told(&mut world, 0);
    let nak = only(&here, |what| {
        matches!(what, Happening::NakReceived(Syndrome::RnrNak { timer: 1 }))
    });
    assert_eq!(nak.count, 3);
    let failed = only(&here, |what| is_completion(what, Status::RnrRetryExceeded));
    assert_eq!(failed.cause, Some(Cause::RnrRetries));
}

#[test]
fn a_message_longer_than_its_receive_is_told_at_both_ends() {
    let (mut world, mut c) = connection(6);
    let short = [c.mrs[1].sge(0, 10)];
    c.receive(&mut world, 1, 9, &short);
    let send = Send::new(6, SendOpcode::Send).element(c.mrs[0].sge(0, 11));
    c.send(&mut world, 0, &send);
    world.settle();
    let there = told(&mut world, 1);
    let failed = only(&there, |what| {
        matches!(what, Happening::Completion { wr_id: 9, .. })
    });
    assert_eq!(failed.cause, Some(Cause::ReceiveTooShort));
    let nak = only(&there, |what| matches!(what, Happening::NakSent(_)));
    assert_eq!(nak.cause, Some(Cause::ReceiveTooShort));
    let here = told(&mut world, 0);
    let failed = only(&here, |what| {
        is_completion(what, Status::RemoteInvalidRequest)
    });
    assert_eq!(failed.cause, Some(Cause::PeerInvalidRequest));
}

#[test]
fn silence_flushes_and_commands_are_told() {
    let (mut world, mut c) = connection(7);
    world.filter = Some(|_| false);
    for wr_id in 0..10 {
        let write = Send::new(wr_id, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, 100));
        c.send(&mut world, 0, &write);
        let anywhere = [c.mrs[0].sge(0, 100)];
        c.receive(&mut world, 0, 100 + wr_id, &anywhere);
    }
    world.settle();
    let here = told(&mut world, 0);
    let failed = only(&here, |what| is_completion(what, Status::RetryExceeded));
    assert_eq!(failed.cause, Some(Cause::Retries));
    let flushed: Vec<_> = here
        .iter()
        .filter(|one| is_completion(&one.happening, Status::Flushed))
        .map(|one| (one.cause, one.count))
        .collect();
    let error = Some(Cause::QpInError);
    assert_eq!(flushed, [(error, 9), (error, 10)], "sends, then receives");

    let node = &mut world.nodes[0];
    let (pd, key) = (node.guest.pd.into(), 0x0bad_0bad.into());
    node.guest
        .command(&mut node.rnic, DeregisterMr { pd, key })
        .unwrap_err();
    let here = told(&mut world, 0);
    let refused = only(&here, |what| matches!(what, Happening::Command { .. }));
    assert!(matches!(
        refused.happening,
        Happening::Command {
            status: command::Status::NotFound,
            ..
        }
    ));
    assert_eq!(refused.cause, Some(Cause::UnknownKey));
}

#[test]
fn a_full_completion_queue_is_told_with_its_queue_pairs() {
    let (mut world, mut c) = connection(8);
    let entries = QpOptions::default().entries * 2;
    for wr_id in 0..=u64::from(entries) {
        let write = Send::new(wr_id, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, 8));
        c.send(&mut world, 0, &write);
        world.settle();
    }
    let here = told(&mut world, 0);
    let full = only(&here, |what| *what == Happening::Event(EventType::CqError));
    assert_eq!(
        (full.number, full.cause),
        (c.send_cqs[0].cqn, Some(Cause::CqOverrun))
    );
    let fatal = only(&here, |what| *what == Happening::Event(EventType::QpFatal));
    assert_eq!(
        (fatal.number, fatal.cause),
        (c.qps[0].qpn, Some(Cause::CqFailed))
    );
}

#[test]
fn nothing_is_told_of_what_works() {
    let (mut world, mut c) = connection(9);
    for wr_id in 0..10 {
        let write = Send::new(wr_id, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, 100));
        c.send(&mut world, 0, &write);
    }
    world.settle();
    assert!(told(&mut world, 0).is_empty() && told(&mut world, 1).is_empty());
    let node = &world.nodes[0];
    let seen = node.rnic.qp_page(0, 100, &node.guest.view).unwrap();
    assert_eq!(seen.len(), 1);
    assert_eq!(
        (seen[0].sends_posted, seen[0].sends_in_flight),
        (Some(0), 0)
    );
    assert_eq!(seen[0].send_psn, seen[0].unacknowledged_psn);
    let cqs = node.rnic.cq_page(0, 100, &node.guest.view).unwrap();
    let unread = cqs
        .iter()
        .find(|cq| cq.number == c.send_cqs[0].cqn)
        .unwrap()
        .unread;
    assert_eq!(unread, Some(10));
    let mrs = node.rnic.mr_page(0, 100).unwrap();
    assert_eq!((mrs[0].key, mrs[0].length), (c.mrs[0].key, Some(MR as u64)));
    assert!(
        node.rnic.mr_page(1, 100).is_none() && node.rnic.cq_page(2, 1, &node.guest.view).is_none()
    );
}

/// The receiver explains messages that it drops without an answer.
#[test]
fn dropped_messages_of_unreliable_connections_are_explained() {
    let mut world = World::pair(9);
    let options = QpOptions {
        qp_type: QpType::UnreliableConnection,
        ..QpOptions::default()
    };
    let mut c = world.connect([0, 1], &options, MR, |_, _| {});
    let send = Send::new(1, SendOpcode::Send).inline(b"nobody waits");
    for _ in 0..5 {
        c.send(&mut world, 0, &send);
    }
    let (address, rkey) = (c.mrs[1].iova, c.mrs[1].key ^ 0x5a5a_0000);
    let write = Send::new(2, SendOpcode::Write)
        .rdma(address, rkey)
        .element(c.mrs[0].sge(0, 100));
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(told(&mut world, 0), []);
    let there = told(&mut world, 1);
    assert!(
        there
            .iter()
            .all(|one| one.happening == Happening::Dropped && one.number == c.qps[1].qpn)
    );
    let [unexpected, refused] = &there[..] else {
        panic!("{there:#?}");
    };
    assert_eq!(
        (unexpected.cause, unexpected.count),
        (Some(Cause::NoReceive), 5)
    );
    assert_eq!(refused.cause, Some(Cause::RemoteKey));
    assert_eq!(refused.packet.map(|packet| packet.name), Some("RDMA WRITE"));
    let access = refused.access.expect("access");
    assert_eq!((access.key, access.address), (rkey, address));
}

/// Delivers a packet with opcode 0x1d to the queue pair of side 1, `ahead` of the one that it expects.
fn deliver_unknown(world: &mut World, c: &Connection, ahead: i32) {
    let node = &world.nodes[1];
    let psn = (0..)
        .map_while(|place| node.rnic.qp_page(place, 1, &node.guest.view))
        .flatten()
        .find(|qp| qp.number == c.qps[1].qpn)
        .expect("qp")
        .receive_psn;
    let psn = psn.wrapping_add_signed(ahead);
    let payload = Payload::Bytes(vec![0; 8]);
    world.deliver(c.packet(0, psn, Body::Unknown(0x1d), payload));
}

#[test]
fn a_request_with_an_unknown_opcode_is_refused_where_it_is_expected() {
    let (mut world, mut c) = connection(9);
    let write = Send::new(77, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 100));
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    // A packet whose PSN says that it came before is not answered.
    deliver_unknown(&mut world, &c, -1);
    world.settle();
    assert!(told(&mut world, 1).is_empty() && told(&mut world, 0).is_empty());
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::ReadyToSend);
    // The next request is replaced on its way.
    world.filter = Some(|_| false);
    c.send(&mut world, 0, &write);
    world.run(std::time::Duration::from_micros(10));
    world.filter = None;
    deliver_unknown(&mut world, &c, 0);
    world.settle();
    let there = told(&mut world, 1);
    let nak = only(&there, |what| {
        *what == Happening::NakSent(Syndrome::Nak(NakCode::InvalidRequest))
    });
    assert_eq!(nak.cause, Some(Cause::PacketOpcode));
    assert_eq!(nak.packet.unwrap().name, "unknown request");
    let event = only(&there, |what| matches!(what, Happening::Event(_)));
    assert_eq!(event.happening, Happening::Event(EventType::QpRequestError));
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
    let done = c.send_cqs[0].drain();
    assert_eq!(done[0].status, Status::RemoteInvalidRequest);
}

#[test]
fn a_request_with_an_unknown_opcode_ahead_of_others_waits_for_them() {
    let (mut world, c) = connection(10);
    deliver_unknown(&mut world, &c, 1);
    world.settle();
    let there = told(&mut world, 1);
    only(&there, |what| {
        *what == Happening::NakSent(Syndrome::Nak(NakCode::SequenceError))
    });
    assert_eq!(world.state(1, c.qps[1].qpn), QpState::ReadyToSend);
}
