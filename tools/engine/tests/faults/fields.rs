// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Header fields with wrong values, and how the peer reacts to each.

use super::{OK, Op, Stage, statuses};
use vrnic_engine::{
    Cause, Segmentation,
    testing::{Completion, Send},
};
use vrnic_wire::{
    completion::Status,
    counter::Counter,
    event::EventType,
    qp::QpType,
    work::{AddressVector, SendOpcode},
};

const FABRICS: [Segmentation; 2] = [Segmentation::Local, Segmentation::PathMtu];

/// Creates a stage on which the requester's packets have a wrong field.
fn stage(fabric: Segmentation, fault: &str) -> Stage {
    let mut stage = Stage::new(fabric);
    stage.arm(0, &format!("wrong-field qp={{qp}} {fault}"));
    stage
}

/// Returns what the requester is told when everything is over.
fn told(stage: &mut Stage) -> Vec<Status> {
    stage.post_other();
    stage.world.settle();
    stage.check_other();
    assert!(!stage.log(0).is_empty() || !stage.log(1).is_empty());
    statuses(&stage.victim.send_cqs[0].drain())
}

#[test]
fn a_packet_in_the_middle_of_a_message_has_no_reth_and_does_not_count() {
    for fabric in FABRICS {
        for fault in ["wrong-rkey", "wrong-address", "wrong-field field=rkey"] {
            let mut stage = Stage::new(fabric);
            stage.arm(0, &format!("{fault} qp={{qp}} nth=2"));
            stage.post(Op::LongWrite);
            stage.world.settle();
            assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK, "{fault}");
            assert_eq!(stage.log(0), []);
            // The second message has the second RETH.
            stage.post(Op::LongWrite);
            assert_eq!(told(&mut stage), [Status::RemoteAccess], "{fault}");
            assert_eq!(stage.events(1), [EventType::QpAccessError]);
        }
        // Likewise, the rights of a region are revoked with the second message, not with the second packet.
        let mut stage = Stage::new(fabric);
        stage.arm(1, "key-revoked qp={qp} nth=2");
        stage.post(Op::LongWrite);
        stage.world.settle();
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
        stage.post(Op::LongWrite);
        assert_eq!(told(&mut stage), [Status::RemoteAccess]);
    }
}

#[test]
fn a_send_that_is_solicited_by_mistake_wakes_its_receiver() {
    for (value, flags, wakes) in [(1, 0, 1), (0, vrnic_wire::work::send_flags::SOLICITED, 0)] {
        let mut stage = stage(
            Segmentation::PathMtu,
            &format!("field=solicited value={value}"),
        );
        stage.victim.recv_cqs[1].arm(true);
        let Stage { world, victim, .. } = &mut stage;
        victim.receive(world, 1, 1, &[victim.mrs[1].sge(0, 100)]);
        let send = Send::new(1, SendOpcode::Send).element(victim.mrs[0].sge(0, 100));
        victim.send(world, 0, &send.flags(flags));
        assert_eq!(told(&mut stage), OK);
        let rnic = &mut stage.world.nodes[1].rnic;
        let events = std::iter::from_fn(|| rnic.next_completion_event(1));
        assert_eq!(events.count(), wakes);
        assert_eq!(statuses(&stage.victim.recv_cqs[1].drain()), OK);
    }
}

#[test]
fn a_request_that_asks_for_no_acknowledgement_gets_it_when_it_comes_again() {
    for fabric in FABRICS {
        let mut stage = stage(fabric, "field=ack-request value=0");
        stage.post(Op::Writes(1));
        assert_eq!(told(&mut stage), OK);
        assert!(stage.is_intact(Op::Writes(1)));
        let counter = |node: usize, counter: Counter| {
            stage.world.nodes[node].rnic.counters()[counter as usize]
        };
        assert!(counter(0, Counter::Retransmits) > 0);
        assert!(counter(1, Counter::DuplicateRequests) > 0);
    }
}

/// Performs an atomic on 8 bytes with the value `before`. Returns their value after it, and the original value that the
/// requester receives.
fn atomic(stage: &mut Stage, before: u64, opcode: SendOpcode, operands: [u64; 2]) -> [u64; 2] {
    let Stage { world, victim, .. } = stage;
    victim.mrs[1].arena.put(0, &before.to_le_bytes());
    let (address, rkey) = (victim.mrs[1].iova, victim.mrs[1].key);
    let [compare_add, swap] = operands;
    let atomic = Send::new(1, opcode)
        .atomic(address, rkey, compare_add, swap)
        .element(victim.mrs[0].sge(8, 8));
    victim.send(world, 0, &atomic);
    assert_eq!(told(stage), OK);
    let number = |bytes: Vec<u8>| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
    let mrs = &stage.victim.mrs;
    [mrs[1].arena.get(0, 8), mrs[0].arena.get(8, 8)].map(number)
}

#[test]
fn operands_of_atomics_are_believed() {
    use SendOpcode::{CompareSwap, FetchAdd};
    let big = 1 << 40;
    for fabric in FABRICS {
        let run =
            |fault: &str, opcode, operands| atomic(&mut stage(fabric, fault), 3, opcode, operands);
        let value = |field: &str| format!("field={field} value={big}");
        assert_eq!(run(&value("compare-add"), FetchAdd, [1, 0]), [3 + big, 3]);
        assert_eq!(run(&value("swap"), CompareSwap, [3, 9]), [big, 3]);
        // The compared value does not match, so nothing is stored.
        assert_eq!(run(&value("compare-add"), CompareSwap, [3, 9]), [3, 3]);
        // The responder returns a wrong original value.
        let mut stage = Stage::new(fabric);
        stage.arm(1, &format!("wrong-field qp={{qp}} {}", value("original")));
        assert_eq!(atomic(&mut stage, 3, FetchAdd, [1, 0]), [4, big]);
    }
}

#[test]
fn a_wrong_key_is_not_invalidated_and_the_receiver_fails() {
    for fabric in FABRICS {
        let mut stage = stage(fabric, "field=invalidate-key");
        let Stage { world, victim, .. } = &mut stage;
        let node = &mut world.nodes[1];
        let window = node.guest.fast_mr(&mut node.rnic, 16);
        victim.receive(world, 1, 7, &[]);
        let send = Send::new(2, SendOpcode::SendWithInvalidate).immediate(window.key);
        victim.send(world, 0, &send);
        // The message arrived; the invalidation only concerns the receiver and its keys.
        assert_eq!(told(&mut stage), OK);
        let received: Vec<Completion> = stage.victim.recv_cqs[1].drain();
        assert_eq!(statuses(&received), [Status::RemoteInvalidRequest]);
        assert_eq!(received[0].cause, Some(Cause::RemoteKey));
    }
}

#[test]
fn datagrams_tell_a_wrong_sender_and_a_wrong_way() {
    let run = |fault: &str| {
        let mut stage = Stage::of_type(Segmentation::Local, QpType::UnreliableDatagram);
        stage.arm(0, &format!("wrong-field qp={{qp}} {fault}"));
        let Stage { world, victim, .. } = &mut stage;
        victim.receive(world, 1, 1, &[victim.mrs[1].sge(0, 1040)]);
        let address = AddressVector {
            dgid: vrnic_engine::testing::gid_of(1),
            ..AddressVector::default()
        };
        let send = Send::new(1, SendOpcode::Send)
            .datagram(address, victim.qps[1].qpn, 0)
            .element(victim.mrs[0].sge(0, 1000));
        victim.send(world, 0, &send);
        world.settle();
        assert_eq!(stage.log(0).len(), 1);
        let received = stage.victim.recv_cqs[1].drain();
        let header = stage.victim.mrs[1].arena.get(0, 40);
        received.first().map(|one| (one.source_qpn, header))
    };
    let (sender, _) = run("field=source-qp value=77").expect("a datagram");
    assert_eq!(sender, 77);
    // The IPv4 header is in the second half of the 40 bytes before the payload.
    let (_, header) = run("field=hop-limit value=3").expect("a datagram");
    assert_eq!(header[28], 3);
    let (_, header) = run("field=traffic-class value=0x28").expect("a datagram");
    assert_eq!(header[21], 0x28);
    // The IPv4 address is that of nobody.
    let (_, header) = run("field=source-gid value=0x0a090807").expect("a datagram");
    assert_eq!(header[32..36], [10, 9, 8, 7]);
    assert_eq!(run("field=destination-gid value=0x0a090807"), None);
    // No queue pair has this Q_Key.
    assert_eq!(run("field=qkey value=99"), None);
}

#[test]
fn a_message_has_the_length_that_its_pad_count_says() {
    for fabric in FABRICS {
        for (pad, length) in [(0, 1004), (1, 1003), (2, 1002), (3, 1001)] {
            let mut stage = stage(fabric, &format!("field=pad value={pad}"));
            let Stage { world, victim, .. } = &mut stage;
            victim.receive(world, 1, 1, &[victim.mrs[1].sge(0, 2000)]);
            victim.mrs[0].arena.put(0, &[7; 1001]);
            let send = Send::new(1, SendOpcode::Send).element(victim.mrs[0].sge(0, 1001));
            victim.send(world, 0, &send);
            assert_eq!(told(&mut stage), OK);
            let received = stage.victim.recv_cqs[1].drain();
            assert_eq!(
                (received[0].status, received[0].length),
                (Status::Success, length)
            );
            assert_eq!(stage.victim.mrs[1].arena.get(0, 1001), [7; 1001]);
        }
    }
}

#[test]
fn a_device_takes_no_datagram_that_is_for_another() {
    let run = |fault: Option<&str>| {
        let mut stage = Stage::of_type(Segmentation::Local, QpType::UnreliableDatagram);
        if let Some(fault) = fault {
            stage.arm(1, fault);
        }
        let Stage { world, victim, .. } = &mut stage;
        victim.receive(world, 1, 1, &[victim.mrs[1].sge(0, 1040)]);
        let address = AddressVector {
            dgid: vrnic_engine::testing::gid_of(1),
            ..AddressVector::default()
        };
        let send = Send::new(1, SendOpcode::Send)
            .datagram(address, victim.qps[1].qpn, 0)
            .element(victim.mrs[0].sge(0, 1000));
        victim.send(world, 0, &send);
        world.settle();
        let received = stage.victim.recv_cqs[1].drain().len();
        let dropped = stage.world.nodes[1].rnic.counters()[Counter::Dropped as usize];
        (received, dropped)
    };
    assert_eq!(run(None), (1, 0));
    assert_eq!(run(Some("wrong-destination qp={qp} dir=in")), (0, 1));
}

#[test]
fn a_wrong_timer_of_an_rnr_nak_is_waited_for() {
    for fabric in FABRICS {
        let mut stage = Stage::new(fabric);
        stage.arm(1, "rnr-nak qp={qp}");
        // Code 0 is 655.36 ms.
        stage.arm(1, "wrong-field qp={qp} field=rnr-timer value=0");
        stage.post(Op::Sends(1));
        stage.run(600);
        assert_eq!(stage.victim.send_cqs[0].unread(), 0);
        assert_eq!(stage.log(1).len(), 2);
        stage.run(100);
        assert_eq!(told(&mut stage), OK);
    }
}
