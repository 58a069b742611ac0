// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Raw packets: what queue pairs send and receive, and to which of them flows direct a frame. The flows are compared
//! with a model that knows what is in a frame because it made the frame.

use etherparse::PacketBuilder;
use proptest::{collection::vec, option, prelude::*, sample::select};
use vrnic_engine::{
    Cause, Features, Io, Outbox, RnicConfig,
    flow::{FlowEnd, MAX_FLOWS, MAX_SHARED_FLOWS, Steered},
    recording::replay,
    testing::{DatagramEnd, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        CreateFlow, DestroyFlow, DestroyQp, FlowFields, FlowType, QueryFlow, Status, flow_flags,
        qp_flags,
    },
    completion::{Opcode, Status as Done, flags, packet_flags},
    counter::Counter,
    qp::{QpState, QpType, attribute},
    work::{SendOpcode, send_flags},
};

pub const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const B: [u8; 6] = [2, 0, 0, 0, 0, 2];

pub fn end(world: &mut World, node: usize) -> DatagramEnd {
    DatagramEnd::new(world, node, QpType::RawPacket, 0, 65536)
}

/// Returns a flow for frames to this address.
pub fn to(end: &DatagramEnd, mac: [u8; 6]) -> CreateFlow {
    CreateFlow {
        qpn: end.qp.qpn.into(),
        port: 1,
        value: FlowFields {
            destination_mac: mac,
            ..FlowFields::default()
        },
        mask: FlowFields {
            destination_mac: [0xff; 6],
            ..FlowFields::default()
        },
        ..CreateFlow::default()
    }
}

fn try_add(world: &mut World, node: usize, flow: CreateFlow) -> Result<u32, (Status, Cause)> {
    let node = &mut world.nodes[node];
    let created = node.guest.command(&mut node.rnic, flow)?;
    Ok(created.flow.get())
}

pub fn add(world: &mut World, node: usize, flow: CreateFlow) -> u32 {
    try_add(world, node, flow).expect("flow")
}

pub fn remove(world: &mut World, node: usize, flow: u32) -> Result<(), (Status, Cause)> {
    let node = &mut world.nodes[node];
    let request = DestroyFlow {
        flow: flow.into(),
        ..DestroyFlow::default()
    };
    node.guest.command(&mut node.rnic, request).map(|_| ())
}

/// Returns the frames and bytes that a flow has got.
pub fn counted(world: &mut World, node: usize, flow: u32) -> Result<(u64, u64), (Status, Cause)> {
    let node = &mut world.nodes[node];
    let request = QueryFlow {
        flow: flow.into(),
        ..QueryFlow::default()
    };
    let counters = node.guest.command(&mut node.rnic, request)?;
    Ok((counters.packets.get(), counters.bytes.get()))
}

pub fn frame(to: [u8; 6], length: usize) -> Vec<u8> {
    let mut frame = [&to[..], &A, &[0x88, 0xb5]].concat();
    frame.extend((14..length).map(|index| index as u8));
    frame
}

/// Sends a frame from memory, in two parts, and returns the status.
fn send(world: &mut World, end: &mut DatagramEnd, frame: &[u8]) -> (Done, Option<Cause>) {
    end.mr.arena.put(0, frame);
    let middle = frame.len() / 2;
    let request = Send::new(1, SendOpcode::Send)
        .element(end.mr.sge(0, middle))
        .element(end.mr.sge(middle, frame.len() - middle));
    end.send(world, &request);
    world.settle();
    let done = end.send_cq.poll().expect("completion");
    assert_eq!((done.wr_id, done.opcode), (1, Opcode::Send));
    (done.status, done.cause)
}

/// Returns the frames that came to receives at 32 KiB and up, whose `wr_id` is their offset.
fn got(end: &mut DatagramEnd) -> Vec<Vec<u8>> {
    let done = end.recv_cq.drain();
    done.iter()
        .map(|cqe| {
            assert_eq!((cqe.status, cqe.opcode), (Done::Success, Opcode::Receive));
            assert_eq!((cqe.flags, cqe.source_qpn), (0, 0));
            end.mr.arena.get(cqe.wr_id as usize, cqe.length as usize)
        })
        .collect()
}

pub fn receive(world: &mut World, end: &mut DatagramEnd, length: usize) {
    end.receive(world, 32768, 32768, length);
}

pub fn dropped(world: &World, node: usize) -> u64 {
    world.nodes[node].rnic.counters()[Counter::Dropped as usize]
}

#[test]
fn frames_arrive_as_they_were_sent() {
    let mut world = World::pair(1);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    add(&mut world, 1, to(&b, B));
    for length in [14, 60, 64, 82, 83, 1514, 9014] {
        receive(&mut world, &mut b, 9100);
        let frame = frame(B, length);
        assert_eq!(send(&mut world, &mut a, &frame).0, Done::Success);
        assert_eq!(got(&mut b), [frame]);
    }
    receive(&mut world, &mut b, 9100);
    let inline = frame(B, 100);
    a.send(&mut world, &Send::new(2, SendOpcode::Send).inline(&inline));
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Done::Success);
    assert_eq!(got(&mut b), [inline]);
    assert_eq!(dropped(&world, 1), 0);
}

#[test]
fn a_frame_has_a_header_and_fits_the_network() {
    let config = RnicConfig {
        frame_mtu: 1500,
        ..RnicConfig::default()
    };
    let tagged = |length| {
        let mut frame = frame(B, length);
        frame[12..14].copy_from_slice(&[0x81, 0]);
        frame
    };
    let cases = [
        (frame(B, 14)[..13].to_vec(), Some(Cause::FrameLength)),
        (Vec::new(), Some(Cause::FrameLength)),
        (frame(B, 14), None),
        (frame(B, 1514), None),
        (frame(B, 1515), Some(Cause::WqeLength)),
        (tagged(1518), None),
        (tagged(1519), Some(Cause::WqeLength)),
    ];
    for (frame, cause) in cases {
        let mut world = World::new(2, 512, &config, 2);
        let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
        add(&mut world, 1, to(&b, B));
        receive(&mut world, &mut b, 9100);
        let length = frame.len();
        let (status, why) = send(&mut world, &mut a, &frame);
        assert_eq!(why, cause, "{length}");
        let qpn = a.qp.qpn;
        if cause.is_none() {
            assert_eq!(status, Done::Success, "{length}");
            assert_eq!(got(&mut b), [frame]);
            assert_eq!(world.state(0, qpn), QpState::ReadyToSend);
        } else {
            assert_eq!(status, Done::LocalLength, "{length}");
            assert_eq!(got(&mut b), [b""; 0]);
            assert_eq!(world.state(0, qpn), QpState::SendQueueError);
        }
    }
}

#[test]
fn nothing_but_sends_is_an_operation() {
    for &opcode in SendOpcode::ALL {
        let mut world = World::pair(3);
        let mut a = end(&mut world, 0);
        a.mr.arena.put(0, &frame(B, 60));
        let mut request = Send::new(1, opcode);
        if opcode.has_elements() {
            request = request.element(a.mr.sge(0, 60));
        }
        a.send(&mut world, &request);
        world.settle();
        let expected = match opcode {
            SendOpcode::Send => Done::Success,
            _ => Done::LocalQueuePairOperation,
        };
        assert_eq!(a.send_cq.drain()[0].status, expected, "{opcode:?}");
    }
}

#[test]
fn what_cannot_be_received_is_dropped_and_counted() {
    let mut world = World::pair(4);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    let flow = add(&mut world, 1, to(&b, B));
    send(&mut world, &mut a, &frame(B, 60));
    assert_eq!(dropped(&world, 1), 1, "no receive");
    receive(&mut world, &mut b, 99);
    send(&mut world, &mut a, &frame(B, 100));
    assert_eq!(dropped(&world, 1), 2, "too long");
    send(&mut world, &mut a, &frame(B, 99));
    assert_eq!(got(&mut b), [frame(B, 99)], "the receive stayed");
    send(&mut world, &mut a, &frame(A, 60));
    assert_eq!(dropped(&world, 1), 2, "not for this device at all");

    receive(&mut world, &mut b, 99);
    let error = vrnic_wire::qp::QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::Error.raw(),
        ..World::attributes(0, 0)
    };
    world.modify(1, b.qp.qpn, error);
    send(&mut world, &mut a, &frame(B, 60));
    assert_eq!(dropped(&world, 1), 3, "in the error state");
    assert_eq!(b.recv_cq.drain()[0].status, Done::Flushed);
    remove(&mut world, 1, flow).expect("it is there");
    assert_eq!(
        remove(&mut world, 1, flow),
        Err((Status::NotFound, Cause::UnknownFlow))
    );
    send(&mut world, &mut a, &frame(B, 60));
    assert_eq!(dropped(&world, 1), 3, "no flow");
}

#[test]
fn frames_take_shared_receives() {
    use vrnic_wire::qp::QpAttributes;

    let mut world = World::pair(13);
    let mut a = end(&mut world, 0);
    let Node { rnic, guest } = &mut world.nodes[1];
    let mut srq = guest.try_srq(rnic, 4, 1, 0).expect("queue");
    let mr = guest.full_mr(rnic, 4096);
    let mut cq = guest.cq(rnic, 4, 0);
    let options = QpOptions {
        qp_type: QpType::RawPacket,
        srqn: Some(srq.srqn),
        ..QpOptions::default()
    };
    let qpn = guest
        .try_qp(rnic, &options, cq.cqn, cq.cqn)
        .expect("qp")
        .qpn;
    let attributes = QpAttributes {
        port: 1,
        ..QpAttributes::default()
    };
    world.bring_up(1, qpn, attributes, QpType::RawPacket);
    let flow = CreateFlow {
        qpn: qpn.into(),
        ..to(&a, B)
    };
    add(&mut world, 1, flow);
    assert!(srq.post(7, &[mr.sge(0, 1000)]));
    send(&mut world, &mut a, &frame(B, 60));
    let done = cq.drain();
    let done: Vec<_> = done
        .iter()
        .map(|cqe| (cqe.wr_id, cqe.status, cqe.length))
        .collect();
    assert_eq!(done, [(7, Done::Success, 60)]);
    assert_eq!(mr.arena.get(0, 60), frame(B, 60));
    send(&mut world, &mut a, &frame(B, 60));
    assert_eq!(dropped(&world, 1), 1, "no receive");
}

/// Returns what a queue pair with these flags receives of a frame, and the tag that the completion shows.
fn as_received(frame: &[u8], flags: u8) -> (Vec<u8>, Option<u16>) {
    let mut bytes = frame.to_vec();
    let mut tag = None;
    if flags & qp_flags::STRIP_VLAN != 0 && frame[12..14] == [0x81, 0] {
        tag = Some(u16::from_be_bytes([frame[14], frame[15]]));
        bytes.drain(12..16);
    }
    if flags & qp_flags::APPEND_FCS != 0 {
        // Bit by bit, the lowest of each byte first.
        let check = frame.iter().fold(u32::MAX, |check, byte| {
            (0..8).fold(check ^ u32::from(*byte), |check, _| match check & 1 {
                0 => check >> 1,
                _ => check >> 1 ^ 0xedb8_8320,
            })
        });
        bytes.extend((!check).to_le_bytes());
    }
    (bytes, tag)
}

/// Returns a frame with these two words behind the addresses.
fn with_words(words: [u16; 2]) -> Vec<u8> {
    let mut frame = frame(B, 64);
    frame[12..14].copy_from_slice(&words[0].to_be_bytes());
    frame[14..16].copy_from_slice(&words[1].to_be_bytes());
    frame
}

#[test]
fn a_queue_pair_can_have_frames_without_tags_and_with_check_sequences() {
    let mut twice = with_words([0x8100, 0x0007]);
    twice[16..18].copy_from_slice(&[0x81, 0]);
    let frames = [
        with_words([0x8100, 0xa123]),
        with_words([0x8100, 0]),
        twice,
        // Only an Ethertype 0x8100 is that of a tag.
        with_words([0x88a8, 0x0005]),
        with_words([0x88b5, 0x8100]),
    ];
    let short = frame(B, 14);
    for options in [
        0,
        qp_flags::STRIP_VLAN,
        qp_flags::APPEND_FCS,
        qp_flags::STRIP_VLAN | qp_flags::APPEND_FCS,
    ] {
        let mut world = World::recorded(&[RnicConfig::default(), RnicConfig::default()], 512, 15);
        let mut a = end(&mut world, 0);
        let with = QpOptions {
            qp_type: QpType::RawPacket,
            flags: options,
            ..QpOptions::default()
        };
        let mut b = DatagramEnd::with_options(&mut world, 1, &with, 0, 65536);
        add(&mut world, 1, to(&b, B));
        for frame in &frames {
            let (expected, tag) = as_received(frame, options);
            // One byte less than it takes does not do.
            receive(&mut world, &mut b, expected.len() - 1);
            let before = dropped(&world, 1);
            send(&mut world, &mut a, frame);
            assert_eq!(dropped(&world, 1), before + 1);
            send(&mut world, &mut a, &short);
            b.recv_cq.drain();
            let Node { rnic, guest } = &mut world.nodes[1];
            // The parts of the frame do not end where the elements do.
            let lengths = [5, 8, 1, expected.len() - 14];
            let mut place = 32768;
            let elements: Vec<_> = lengths
                .iter()
                .map(|&length| {
                    place += length;
                    b.mr.sge(place - length, length)
                })
                .collect();
            assert!(guest.post_receive(rnic, &mut b.qp, 32768, &elements));
            send(&mut world, &mut a, frame);
            let done = b.recv_cq.drain();
            let [cqe] = done[..] else { panic!("{done:?}") };
            assert_eq!((cqe.status, cqe.opcode), (Done::Success, Opcode::Receive));
            let shown = (cqe.flags & flags::VLAN != 0).then_some(cqe.vlan);
            assert_eq!((shown, cqe.flags & !flags::VLAN), (tag, 0), "{frame:x?}");
            assert_eq!(cqe.length as usize, expected.len());
            assert_eq!(b.mr.arena.get(32768, expected.len()), expected, "{options}");
        }
        for recording in world.recordings() {
            replay(&recording).expect("the same again");
        }
    }
}

#[test]
fn receive_options_are_for_some_types_and_a_feature() {
    use QpType::{RawPacket, ReceiveQueue, ReliableConnection, UnreliableDatagram};

    let frames = qp_flags::STRIP_VLAN | qp_flags::APPEND_FCS;
    let invalid = Err((Status::InvalidArgument, Cause::Flags));
    for (feature, qp_type, flags, expected) in [
        (true, RawPacket, frames, Ok(())),
        (true, ReceiveQueue, frames, Ok(())),
        (
            true,
            UnreliableDatagram,
            qp_flags::BLOCK_OWN_MULTICAST,
            Ok(()),
        ),
        (true, RawPacket, qp_flags::BLOCK_OWN_MULTICAST, invalid),
        (true, ReceiveQueue, qp_flags::BLOCK_OWN_MULTICAST, invalid),
        (true, UnreliableDatagram, qp_flags::STRIP_VLAN, invalid),
        (true, UnreliableDatagram, qp_flags::APPEND_FCS, invalid),
        (true, ReliableConnection, qp_flags::STRIP_VLAN, invalid),
        (
            true,
            ReliableConnection,
            qp_flags::BLOCK_OWN_MULTICAST,
            invalid,
        ),
        (true, RawPacket, 1 << 5, invalid),
        (false, RawPacket, qp_flags::STRIP_VLAN, invalid),
        (false, ReceiveQueue, qp_flags::APPEND_FCS, invalid),
        (
            false,
            UnreliableDatagram,
            qp_flags::BLOCK_OWN_MULTICAST,
            invalid,
        ),
    ] {
        let mut config = RnicConfig::default();
        config.features.receive_options = feature;
        let mut world = World::new(1, 512, &config, 16);
        let Node { rnic, guest } = &mut world.nodes[0];
        let cq = guest.cq(rnic, 4, 0).cqn;
        let options = QpOptions {
            qp_type,
            flags,
            ..QpOptions::default()
        };
        let created = guest.try_qp(rnic, &options, cq, cq).map(|_| ());
        assert_eq!(created, expected, "{qp_type:?} {flags}");
    }
}

#[test]
fn a_dropped_frame_is_explained() {
    use vrnic_engine::explain::Happening;

    let mut world = World::pair(11);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    add(&mut world, 1, to(&b, B));
    for _ in 0..3 {
        send(&mut world, &mut a, &frame(B, 60));
    }
    receive(&mut world, &mut b, 99);
    send(&mut world, &mut a, &frame(B, 100));
    let told = std::iter::from_fn(|| world.nodes[1].rnic.next_explanation());
    let told: Vec<_> = told
        .map(|told| (told.number, told.happening, told.cause, told.count))
        .collect();
    let dropped = |cause, count| (b.qp.qpn, Happening::FrameDropped, Some(cause), count);
    assert_eq!(
        told,
        [
            dropped(Cause::NoReceive, 3),
            dropped(Cause::ReceiveTooShort, 1)
        ]
    );
    assert!(world.nodes[0].rnic.next_explanation().is_none());
}

#[test]
fn flows_are_shown_in_the_order_in_which_they_are_tried() {
    use vrnic_engine::FlowSnapshot;

    let mut world = World::pair(12);
    let (b, other) = (end(&mut world, 1), end(&mut world, 1));
    let later = CreateFlow {
        priority: 7.into(),
        ..to(&b, B)
    };
    let copies = CreateFlow {
        flags: flow_flags::DONT_TRAP.into(),
        ..to(&other, A)
    };
    let rest = CreateFlow {
        flow_type: FlowType::MulticastDefault.raw(),
        value: FlowFields::default(),
        mask: FlowFields::default(),
        ..to(&other, B)
    };
    let requests = [rest, later, copies];
    let [rest, later, copies] = requests.map(|flow| add(&mut world, 1, flow));
    let rnic = &world.nodes[1].rnic;
    let shown = rnic.flow_page(0, 10).expect("flows");
    let numbers: Vec<u32> = shown.iter().map(|flow| flow.number).collect();
    assert_eq!(numbers, [copies, later, rest]);
    let of = |flow: &FlowSnapshot| (flow.qpn, flow.flow_type, flow.priority, flow.dont_trap);
    let shown: Vec<_> = shown
        .iter()
        .map(|flow| (of(flow), flow.value, flow.mask))
        .collect();
    let expected = [
        (other.qp.qpn, FlowType::Normal, 0, true),
        (b.qp.qpn, FlowType::Normal, 7, false),
        (other.qp.qpn, FlowType::MulticastDefault, 0, false),
    ];
    let [rest, later, copies] = requests;
    let fields = [copies, later, rest].map(|flow| (flow.value, flow.mask));
    let expected: Vec<_> = expected
        .into_iter()
        .zip(fields)
        .map(|(of, (value, mask))| (of, value, mask))
        .collect();
    assert_eq!(shown, expected);
    assert_eq!(rnic.flow_page(2, 10).map(|page| page.len()), Some(1));
    assert!(rnic.flow_page(3, 10).is_none());
    assert!(world.nodes[0].rnic.flow_page(0, 10).is_none());
}

#[test]
fn a_datagram_does_not_reach_a_raw_queue_pair() {
    let mut world = World::pair(5);
    let mut b = end(&mut world, 1);
    let mut a = DatagramEnd::new(&mut world, 0, QpType::UnreliableDatagram, 0, 8192);
    receive(&mut world, &mut b, 9100);
    let address = vrnic_wire::work::AddressVector {
        dgid: vrnic_engine::testing::gid_of(1),
        ..Default::default()
    };
    let request = Send::new(1, SendOpcode::Send)
        .inline(b"text")
        .datagram(address, b.qp.qpn, 0);
    a.send(&mut world, &request);
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Done::Success);
    assert_eq!(dropped(&world, 1), 1);
    assert!(b.recv_cq.drain().is_empty());
}

#[test]
fn flows_end_with_their_queue_pair() {
    let mut world = World::pair(6);
    let (b, other) = (end(&mut world, 1), end(&mut world, 1));
    for _ in 0..3 {
        add(&mut world, 1, to(&b, B));
    }
    let kept = add(&mut world, 1, to(&other, B));
    let node = &mut world.nodes[1];
    let request = DestroyQp {
        qpn: b.qp.qpn.into(),
        ..DestroyQp::default()
    };
    node.guest
        .command(&mut node.rnic, request)
        .expect("destroyed");
    assert_eq!(node.rnic.snapshot().flows, 1);
    let mut ends = Vec::new();
    assert!(!node.rnic.flows().steer(&frame(B, 60), &mut ends));
    let qpn = other.qp.qpn;
    assert_eq!(ends, [FlowEnd { qpn, tag: 0 }]);
    remove(&mut world, 1, kept).expect("it is there");
}

#[test]
fn each_fault_of_a_command_about_flows_has_its_status() {
    use Status::{InvalidArgument, Malformed, NotFound};

    let mut world = World::pair(7);
    let b = end(&mut world, 1);
    let datagram = DatagramEnd::new(&mut world, 1, QpType::UnreliableDatagram, 0, 4096);
    let good = to(&b, B);
    let with = |change: &dyn Fn(&mut CreateFlow)| {
        let mut flow = good;
        change(&mut flow);
        flow
    };
    let default = CreateFlow {
        flow_type: FlowType::AllDefault.raw(),
        value: FlowFields::default(),
        mask: FlowFields::default(),
        ..good
    };
    let cases: Vec<(CreateFlow, Status)> = vec![
        (with(&|flow| flow.qpn = 0xfff.into()), NotFound),
        (with(&|flow| flow.port = 2), NotFound),
        (with(&|flow| flow.port = 0), NotFound),
        (with(&|flow| flow.value.reserved = 1), Malformed),
        (with(&|flow| flow.mask.reserved_tail[3] = 1), Malformed),
        (
            with(&|flow| flow.qpn = datagram.qp.qpn.into()),
            InvalidArgument,
        ),
        (with(&|flow| flow.flow_type = 3), InvalidArgument),
        (with(&|flow| flow.flags = 4.into()), InvalidArgument),
        (with(&|flow| flow.value.protocol = 1), InvalidArgument),
        (with(&|flow| flow.flow_type = 1), InvalidArgument),
        (
            CreateFlow {
                priority: 1.into(),
                ..default
            },
            InvalidArgument,
        ),
        (
            CreateFlow {
                flags: flow_flags::DONT_TRAP.into(),
                ..default
            },
            InvalidArgument,
        ),
    ];
    for (index, (flow, status)) in cases.into_iter().enumerate() {
        let refused = try_add(&mut world, 1, flow).map_err(|(status, _)| status);
        assert_eq!(refused, Err(status), "{index}");
    }
    assert!(world.nodes[1].rnic.flows().is_empty());
    add(&mut world, 1, good);
    add(&mut world, 1, default);

    let features = Features {
        raw_packets: false,
        ..Features::ALL
    };
    let config = RnicConfig {
        features,
        ..RnicConfig::default()
    };
    let mut world = World::new(1, 512, &config, 8);
    let refused = try_add(&mut world, 0, good);
    assert_eq!(refused, Err((Status::Unsupported, Cause::CommandCode)));
    let refused = remove(&mut world, 0, 1);
    assert_eq!(refused, Err((Status::Unsupported, Cause::CommandCode)));
    let node = &mut world.nodes[0];
    let cqn = node.guest.cq(&mut node.rnic, 4, 0).cqn;
    let options = vrnic_engine::testing::QpOptions {
        qp_type: QpType::RawPacket,
        ..Default::default()
    };
    let refused = node.guest.try_qp(&mut node.rnic, &options, cqn, cqn);
    assert_eq!(
        refused.err(),
        Some((Status::Unsupported, Cause::QpTypeAbsent))
    );
}

#[test]
fn there_is_room_for_many_flows_and_few_copies() {
    let mut world = World::pair(9);
    let b = end(&mut world, 1);
    let full = Err((Status::NoResources, Cause::LimitReached));
    let distinct = |number: usize| {
        let mut flow = to(&b, B);
        flow.value.destination_mac[3..5].copy_from_slice(&(number as u16).to_be_bytes());
        flow
    };
    for _ in 0..MAX_SHARED_FLOWS {
        add(&mut world, 1, to(&b, A));
    }
    assert_eq!(try_add(&mut world, 1, to(&b, A)), full, "copies of one");
    let copying = |number| CreateFlow {
        flags: flow_flags::DONT_TRAP.into(),
        ..distinct(number)
    };
    for number in 0..MAX_SHARED_FLOWS {
        add(&mut world, 1, copying(number));
    }
    let last = try_add(&mut world, 1, copying(MAX_SHARED_FLOWS));
    assert_eq!(last, full, "copies for others");
    for number in 2 * MAX_SHARED_FLOWS..MAX_FLOWS {
        add(&mut world, 1, distinct(number));
    }
    assert_eq!(try_add(&mut world, 1, distinct(MAX_FLOWS)), full);
    assert_eq!(world.nodes[1].rnic.flows().len(), MAX_FLOWS);
}

/// Receives a frame at a device as its network does.
pub fn arrive(world: &mut World, node: usize, frame: &[u8]) -> Steered {
    let node = &mut world.nodes[node];
    let mut io = Io {
        memory: &node.guest.view,
        now: world.now,
        outbox: &mut Outbox::new(),
    };
    node.rnic.receive_frame(frame, &mut io)
}

#[test]
fn the_network_learns_who_gets_a_frame() {
    let mut world = World::recorded(&[RnicConfig::default()], 512, 11);
    let mut a = end(&mut world, 0);
    let nobody = Steered {
        taken: false,
        passes: true,
    };
    let only_flows = Steered {
        taken: true,
        passes: false,
    };
    let both = Steered {
        taken: true,
        passes: true,
    };
    let group = [0xff; 6];
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)), nobody);
    let flow = add(&mut world, 0, to(&a, A));
    add(&mut world, 0, to(&a, group));
    // What is not for flows is not a packet that this device dropped, and does not fill its recordings.
    let before = world.nodes[0].rnic.recorder().expect("recorder").length();
    assert_eq!(arrive(&mut world, 0, &frame(B, 60)), nobody);
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)[..13]), nobody);
    let after = world.nodes[0].rnic.recorder().expect("recorder").length();
    assert_eq!((after, dropped(&world, 0)), (before, 0));
    for (destination, steered) in [(A, only_flows), (group, both)] {
        receive(&mut world, &mut a, 100);
        assert_eq!(arrive(&mut world, 0, &frame(destination, 60)), steered);
        assert_eq!(got(&mut a), [frame(destination, 60)]);
    }
    // A frame that a flow takes is not for the network device, even if the queue pair has no room.
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)), only_flows);
    assert_eq!(dropped(&world, 0), 1);
    // While the port is down, flows take nothing away.
    world.nodes[0].rnic.set_link(false);
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)), nobody);
    world.nodes[0].rnic.set_link(true);
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)), only_flows);
    remove(&mut world, 0, flow).expect("it is there");
    assert_eq!(arrive(&mut world, 0, &frame(A, 60)), nobody);
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

#[test]
fn each_flow_counts_what_it_gets() {
    let mut world = World::recorded(&[RnicConfig::default()], 512, 17);
    let mut a = end(&mut world, 0);
    let flows = [A, A, B].map(|mac| add(&mut world, 0, to(&a, mac)));
    let all = |world: &mut World| flows.map(|flow| counted(world, 0, flow).expect("counters"));
    assert_eq!(all(&mut world), [(0, 0); 3]);
    receive(&mut world, &mut a, 100);
    for length in [60, 100, 1000] {
        // The second and third are not received.
        arrive(&mut world, 0, &frame(A, length));
    }
    arrive(&mut world, 0, &frame([0xff; 6], 60));
    assert_eq!(got(&mut a).len(), 1);
    assert_eq!(all(&mut world), [(3, 1160), (3, 1160), (0, 0)]);
    // Of a frame that a fault strikes, what is left counts.
    for (fault, expected) in [("duplicate dir=in", (5, 1280)), ("drop dir=in", (5, 1280))] {
        let fault = fault.parse().expect("fault");
        let now = world.now;
        let mut faults = world.nodes[0].rnic.faults_mut();
        faults.arm(fault, now).expect("armed");
        arrive(&mut world, 0, &frame(A, 60));
        world.settle();
        assert_eq!(all(&mut world), [expected, expected, (0, 0)]);
    }
    let pages = world.nodes[0].rnic.flow_page(0, 3).expect("flows");
    let shown: Vec<_> = pages
        .iter()
        .map(|flow| (flow.packets, flow.bytes))
        .collect();
    assert_eq!(shown, all(&mut world));
    let unknown = counted(&mut world, 0, 0xfff);
    assert_eq!(unknown, Err((Status::NotFound, Cause::UnknownFlow)));
    remove(&mut world, 0, flows[0]).expect("it is there");
    let gone = counted(&mut world, 0, flows[0]);
    assert_eq!(gone, Err((Status::NotFound, Cause::UnknownFlow)));
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
    for (raw_packets, flow_counters) in [(false, true), (true, false)] {
        let mut config = RnicConfig::default();
        config.features.raw_packets = raw_packets;
        config.features.flow_counters = flow_counters;
        let mut world = World::new(1, 512, &config, 18);
        let refused = counted(&mut world, 0, 1);
        assert_eq!(refused, Err((Status::Unsupported, Cause::CommandCode)));
    }
}

#[test]
fn a_device_pays_for_additional_copies() {
    let mut world = World::new(1, 512, &RnicConfig::default(), 13);
    let ends = [(); 3].map(|()| end(&mut world, 0));
    for end in &ends {
        add(&mut world, 0, to(end, A));
    }
    let received = |world: &World| {
        let counters = world.nodes[0].rnic.counters();
        counters[Counter::ReceivePackets as usize]
    };
    let frame = frame(A, 9014);
    // Frames arrive faster than the device has turns.
    let count = 1000;
    for _ in 0..count {
        arrive(&mut world, 0, &frame);
    }
    let copies = (8 << 20) / (1024 + 9014) + 1;
    assert_eq!(received(&world), count + copies, "one of each, and more");
    world.settle();
    arrive(&mut world, 0, &frame);
    assert_eq!(received(&world), count + copies + 3, "all copies again");
}

#[test]
fn what_a_fault_does_to_a_frame_is_only_seen_by_queue_pairs() {
    let mut world = World::recorded(&[RnicConfig::default()], 512, 12);
    let mut a = end(&mut world, 0);
    add(&mut world, 0, to(&a, A));
    for (fault, copies) in [("duplicate dir=in", 2), ("drop dir=in", 0)] {
        let fault = fault.parse().expect("fault");
        let now = world.now;
        let mut faults = world.nodes[0].rnic.faults_mut();
        faults.arm(fault, now).expect("armed");
        receive(&mut world, &mut a, 100);
        receive(&mut world, &mut a, 100);
        let steered = arrive(&mut world, 0, &frame(A, 60));
        assert!(steered.taken && !steered.passes);
        world.settle();
        assert_eq!(got(&mut a).len(), copies);
    }
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

#[test]
fn frames_can_be_replayed() {
    let mut world = World::recorded(&[RnicConfig::default(), RnicConfig::default()], 512, 10);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    // The port is behind the longest header, and what is behind the headers is not recorded.
    let mut flow = to(&b, B);
    (flow.value.destination_port, flow.mask.destination_port) = ([0x12, 0xb7], [0xff; 2]);
    add(&mut world, 1, flow);
    let mut frame = [&B[..], &A, &[0x81, 0, 0, 5, 8, 0, 0x4f, 0]].concat();
    frame.extend([0; 7]);
    frame.push(17);
    frame.extend([0; 50]);
    frame.extend([0, 1, 0x12, 0xb7]);
    frame.extend([7; 500]);
    receive(&mut world, &mut b, 1000);
    send(&mut world, &mut a, &frame);
    assert_eq!(got(&mut b), [frame]);
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

/// Returns a frame with UDP over IPv4, whose checksums are right or 0, with this many bytes of payload.
fn checked_frame(right: bool, payload: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(A, B)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1, 2)
        .write(&mut frame, &vec![7; payload])
        .expect("a frame");
    if !right {
        frame[24..26].fill(0);
        frame[40..42].fill(0);
    }
    frame
}

/// Sends a frame with or without the flag for checksums, and returns what arrives and the flags of the packet.
fn exchange(
    world: &mut World,
    (a, b): (&mut DatagramEnd, &mut DatagramEnd),
    frame: &[u8],
    flags: u8,
) -> (Vec<u8>, u8) {
    receive(world, b, 9100);
    a.mr.arena.put(0, frame);
    let request = Send::new(1, SendOpcode::Send)
        .flags(flags)
        .element(a.mr.sge(0, frame.len()));
    a.send(world, &request);
    world.settle();
    assert_eq!(a.send_cq.drain()[0].status, Done::Success);
    assert_eq!(a.mr.arena.get(0, frame.len()), frame, "the sender's memory");
    let done = b.recv_cq.drain()[0];
    assert_eq!((done.status, done.flags), (Done::Success, 0));
    let got = b.mr.arena.get(done.wr_id as usize, done.length as usize);
    (got, done.packet_flags)
}

#[test]
fn checksums_are_filled_in_on_request_and_checked() {
    let mut world = World::pair(11);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    add(&mut world, 1, to(&b, B));
    for payload in [0, 1, 1000, 8972] {
        let (right, wrong) = (checked_frame(true, payload), checked_frame(false, payload));
        let mut exchange =
            |frame: &[u8], flags| exchange(&mut world, (&mut a, &mut b), frame, flags);
        let ok = packet_flags::CHECKSUMS_OK;
        assert_eq!(exchange(&wrong, send_flags::CHECKSUMS), (right.clone(), ok));
        assert_eq!(exchange(&right, send_flags::CHECKSUMS), (right.clone(), ok));
        assert_eq!(exchange(&right, 0), (right, ok));
        assert_eq!(exchange(&wrong, 0), (wrong, 0), "as it is");
    }
    // A frame of another kind.
    let other = frame(B, 60);
    let (got, flags) = exchange(&mut world, (&mut a, &mut b), &other, send_flags::CHECKSUMS);
    assert_eq!((got, flags), (other, 0));
    // Inline data.
    receive(&mut world, &mut b, 9100);
    let inline = Send::new(2, SendOpcode::Send)
        .inline(&checked_frame(false, 20))
        .flags(send_flags::CHECKSUMS);
    a.send(&mut world, &inline);
    world.settle();
    assert_eq!(got_one(&mut b), checked_frame(true, 20));
}

/// Returns the only frame that came.
fn got_one(end: &mut DatagramEnd) -> Vec<u8> {
    let mut frames = got(end);
    assert_eq!(frames.len(), 1);
    frames.remove(0)
}

#[test]
fn checksums_are_a_feature_of_some_queue_pairs() {
    let with = |checksums| RnicConfig {
        features: Features {
            checksums,
            ..Features::ALL
        },
        ..RnicConfig::default()
    };
    for (feature, qp_type, works) in [
        (true, QpType::RawPacket, true),
        (false, QpType::RawPacket, false),
        // There are datagrams with checksums on InfiniBand only.
        (true, QpType::UnreliableDatagram, false),
    ] {
        let mut world = World::new(2, 512, &with(feature), 12);
        let mut a = DatagramEnd::new(&mut world, 0, qp_type, 0, 4096);
        a.mr.arena.put(0, &checked_frame(true, 9));
        let request = Send::new(1, SendOpcode::Send)
            .flags(send_flags::CHECKSUMS)
            .element(a.mr.sge(0, 51));
        a.send(&mut world, &request);
        world.settle();
        let done = a.send_cq.drain()[0];
        let expected = if works {
            (Done::Success, None)
        } else {
            (Done::LocalQueuePairOperation, Some(Cause::WqeFlags))
        };
        assert_eq!((done.status, done.cause), expected, "{feature} {qp_type:?}");
    }
    let mut world = World::new(2, 512, &with(false), 13);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    add(&mut world, 1, to(&b, B));
    let right = checked_frame(true, 9);
    let got = exchange(&mut world, (&mut a, &mut b), &right, 0);
    assert_eq!(got, (right, 0), "unchecked");
}

#[test]
fn a_replay_knows_which_checksums_were_right() {
    let mut world = World::recorded(&[RnicConfig::default(), RnicConfig::default()], 512, 14);
    let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
    add(&mut world, 1, to(&b, B));
    for (right, flags) in [(true, 0), (false, 0), (false, send_flags::CHECKSUMS)] {
        let sent = checked_frame(right, 1000);
        exchange(&mut world, (&mut a, &mut b), &sent, flags);
    }
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}

#[test]
fn checksums_of_a_damaged_packet_are_wrong() {
    for fault in ["corrupt-payload", "truncate"] {
        let mut world = World::pair(15);
        let (mut a, mut b) = (end(&mut world, 0), end(&mut world, 1));
        add(&mut world, 1, to(&b, B));
        let spec = format!("{fault} dir=in").parse().expect("a fault");
        let mut faults = world.nodes[1].rnic.faults_mut();
        faults.arm(spec, world.now).expect("room");
        let right = checked_frame(true, 1000);
        let (got, flags) = exchange(&mut world, (&mut a, &mut b), &right, 0);
        assert_ne!(got, right, "{fault}");
        assert_eq!(flags, 0, "{fault}");
        let undamaged = exchange(&mut world, (&mut a, &mut b), &right, 0);
        assert_eq!(undamaged, (right, packet_flags::CHECKSUMS_OK), "{fault}");
    }
}

/// What is in a frame.
#[derive(Clone, Debug)]
struct Content {
    destination: [u8; 6],
    source: [u8; 6],
    vlan: Option<u16>,
    network: Network,
}

#[derive(Clone, Debug)]
enum Network {
    Other(u16),
    Cut(u16),
    Four {
        addresses: [[u8; 4]; 2],
        service: u8,
        ttl: u8,
        options: usize,
        fragment: bool,
        inner: Inner,
    },
    Six {
        addresses: [[u8; 16]; 2],
        class: u8,
        label: u32,
        limit: u8,
        inner: Inner,
    },
}

/// Protocol and, if there is room for them, ports.
#[derive(Clone, Debug)]
struct Inner {
    protocol: u8,
    ports: Option<[u16; 2]>,
}

impl Content {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [self.destination, self.source].concat();
        if let Some(vlan) = self.vlan {
            out.extend([0x81, 0]);
            out.extend(vlan.to_be_bytes());
        }
        let put_inner = |out: &mut Vec<u8>, inner: &Inner| match inner.ports {
            Some([source, destination]) => {
                out.extend(source.to_be_bytes());
                out.extend(destination.to_be_bytes());
                out.extend([0; 20]);
            }
            None => out.extend([9; 3]),
        };
        match &self.network {
            Network::Other(ether_type) => out.extend(ether_type.to_be_bytes()),
            Network::Cut(ether_type) => {
                out.extend(ether_type.to_be_bytes());
                out.extend([0x45; 19]);
            }
            Network::Four {
                addresses: [source, destination],
                service,
                ttl,
                options,
                fragment,
                inner,
            } => {
                out.extend([8, 0, 0x45 + *options as u8, *service, 0, 200, 0, 0]);
                out.extend([
                    if *fragment { 0x20 } else { 0 },
                    0,
                    *ttl,
                    inner.protocol,
                    0,
                    0,
                ]);
                out.extend([*source, *destination].concat());
                out.extend(vec![1; 4 * options]);
                put_inner(&mut out, inner);
            }
            Network::Six {
                addresses: [source, destination],
                class,
                label,
                limit,
                inner,
            } => {
                out.extend([0x86, 0xdd]);
                out.extend((6 << 28 | u32::from(*class) << 20 | label).to_be_bytes());
                out.extend([0, 200, inner.protocol, *limit]);
                out.extend([*source, *destination].concat());
                put_inner(&mut out, inner);
            }
        }
        out
    }

    /// Returns the byte of the frame that a byte of the fields stands for, and its bits that exist.
    fn field(&self, at: usize) -> (u8, u8) {
        let whole = |byte| (byte, 0xff);
        let none = (0, 0);
        let (kind, addresses, label, service, limit, inner, ports) = match &self.network {
            Network::Other(kind) | Network::Cut(kind) => (*kind, None, None, 0, 0, None, None),
            Network::Four {
                addresses: [a, b],
                service,
                ttl,
                fragment,
                inner,
                ..
            } => {
                let wide = |short: &[u8; 4]| {
                    let mut wide = [0; 16];
                    wide[12..].copy_from_slice(short);
                    wide
                };
                let ports = inner.ports.filter(|_| !fragment);
                let addresses = Some([wide(a), wide(b)]);
                (
                    0x800,
                    addresses,
                    None,
                    *service,
                    *ttl,
                    Some(inner.protocol),
                    ports,
                )
            }
            Network::Six {
                addresses,
                class,
                label,
                limit,
                inner,
            } => {
                let (addresses, label) = (Some(*addresses), Some(*label));
                let protocol = Some(inner.protocol);
                (
                    0x86dd,
                    addresses,
                    label,
                    *class,
                    *limit,
                    protocol,
                    inner.ports,
                )
            }
        };
        let ports = ports.filter(|_| matches!(inner, Some(6 | 17)));
        match at {
            0..6 => whole(self.destination[at]),
            6..12 => whole(self.source[at - 6]),
            12..14 => whole(kind.to_be_bytes()[at - 12]),
            14..16 => self
                .vlan
                .map_or(none, |tag| whole(tag.to_be_bytes()[at - 14])),
            16..32 => addresses.map_or(none, |both| whole(both[0][at - 16])),
            32..48 => addresses.map_or(none, |both| whole(both[1][at - 32])),
            49..52 => label.map_or(none, |label| {
                let bits = if at == 49 { 0x0f } else { 0xff };
                (label.to_be_bytes()[at - 48], bits)
            }),
            52 => inner.map_or(none, whole),
            53 => inner.map_or(none, |_| whole(service)),
            54 => inner.map_or(none, |_| whole(limit)),
            56..58 => ports.map_or(none, |ports| whole(ports[0].to_be_bytes()[at - 56])),
            58..60 => ports.map_or(none, |ports| whole(ports[1].to_be_bytes()[at - 58])),
            48 | 55 | 60.. => none,
        }
    }
}

fn content() -> impl Strategy<Value = Content> {
    let mac = select(vec![A, B, [0xff; 6], [1, 0, 0x5e, 0, 0, 1]]);
    let byte = || select(vec![0u8, 1, 0xff]);
    let port = || select(vec![0u16, 80, 0x1280]);
    let inner = (select(vec![6u8, 17, 1, 44]), option::of([port(), port()]))
        .prop_map(|(protocol, ports)| Inner { protocol, ports });
    let four = select(vec![[0u8; 4], [10, 0, 0, 1], [10, 0, 1, 1]]);
    let mut addresses = vec![[0u8; 16], [0xfe; 16]];
    addresses[1][15] = 1;
    let six = select(addresses);
    let network = prop_oneof![
        select(vec![0x806u16, 0x88b5, 0x8915]).prop_map(Network::Other),
        select(vec![0x800u16, 0x86dd]).prop_map(Network::Cut),
        (
            [four.clone(), four],
            byte(),
            byte(),
            0usize..=10,
            any::<bool>(),
            inner.clone()
        )
            .prop_map(|(addresses, service, ttl, options, fragment, inner)| {
                Network::Four {
                    addresses,
                    service,
                    ttl,
                    options,
                    fragment,
                    inner,
                }
            }),
        (
            [six.clone(), six],
            byte(),
            select(vec![0u32, 1, 0xf_ffff]),
            byte(),
            inner
        )
            .prop_map(|(addresses, class, label, limit, inner)| Network::Six {
                addresses,
                class,
                label,
                limit,
                inner,
            }),
    ];
    let vlan = option::of(select(vec![0u16, 5, 0xe005]));
    (mac.clone(), mac, vlan, network).prop_map(|(destination, source, vlan, network)| Content {
        destination,
        source,
        vlan,
        network,
    })
}

/// A flow: queue pair, type, priority, whether it takes nothing away, and the fields: from which frame the values are,
/// and which bytes count with which bits.
type Rule = (usize, u8, u16, bool, Content, Vec<(usize, u8)>);

fn rule() -> impl Strategy<Value = Rule> {
    (
        0usize..3,
        select(vec![0u8, 0, 0, 0, 1, 2]),
        0u16..3,
        proptest::bool::weighted(0.2),
        content(),
        vec((0usize..60, select(vec![0xffu8, 0x0f, 0x80])), 0..4),
    )
}

/// Returns the request for a rule: values are those of the frame, also where it lacks the field.
fn request(rule: &Rule, qpns: &[u32]) -> CreateFlow {
    use zerocopy::IntoBytes;
    let (qp, kind, priority, copies, content, fields) = rule;
    let normal = *kind == FlowType::Normal.raw();
    let mut flow = CreateFlow {
        qpn: qpns[*qp].into(),
        port: 1,
        flow_type: *kind,
        ..CreateFlow::default()
    };
    if normal {
        flow.priority = (*priority).into();
        flow.flags = if *copies { flow_flags::DONT_TRAP } else { 0 }.into();
        for &(at, bits) in fields.iter().filter(|(at, _)| *at != 55) {
            flow.mask.as_mut_bytes()[at] = bits;
            flow.value.as_mut_bytes()[at] = content.field(at).0 & bits;
        }
    }
    flow
}

/// What the standard says, word by word: the queue pairs that get a frame, and whether the network device does.
fn expected(flows: &[CreateFlow], content: &Content) -> (Vec<u32>, bool) {
    use zerocopy::IntoBytes;
    let group = content.destination[0] & 1 == 1;
    let matches = |flow: &CreateFlow| {
        (0..64).all(|at| {
            let (byte, exists) = content.field(at);
            let (value, mask) = (flow.value.as_bytes()[at], flow.mask.as_bytes()[at]);
            mask & !exists == 0 && byte & mask == value
        })
    };
    let normal: Vec<&CreateFlow> = flows.iter().filter(|flow| flow.flow_type == 0).collect();
    let mut get = Vec::new();
    let mut taken = false;
    for priority in 0..3 {
        let same = |flow: &&&CreateFlow| flow.priority.get() == priority;
        for (index, flow) in normal.iter().filter(same).enumerate() {
            if taken || !matches(flow) {
                continue;
            }
            get.push(flow.qpn.get());
            if flow.flags.get() == 0 {
                taken = true;
                for other in normal.iter().filter(same).skip(index) {
                    if other.value == flow.value && other.mask == flow.mask {
                        get.push(other.qpn.get());
                    }
                }
            }
        }
    }
    for flow in flows.iter().filter(|_| !taken) {
        if flow.flow_type == 1 || flow.flow_type == 2 && group {
            get.push(flow.qpn.get());
        }
    }
    get.sort_unstable();
    get.dedup();
    (get, group || !taken)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever flows there are, and whichever of them are removed again, each frame goes where the standard says.
    #[test]
    fn flows_direct_frames_as_the_standard_says(
        rules in vec(rule(), 0..12),
        gone in vec(0usize..12, 0..4),
        frames in vec(content(), 1..8),
    ) {
        let mut world = World::new(1, 512, &RnicConfig::default(), 1);
        let qpns: Vec<u32> = (0..3).map(|_| end(&mut world, 0).qp.qpn).collect();
        let mut flows = Vec::new();
        for rule in &rules {
            let flow = request(rule, &qpns);
            flows.push((add(&mut world, 0, flow), flow));
        }
        for index in gone {
            if index < flows.len() {
                let (number, _) = flows.remove(index);
                prop_assert!(remove(&mut world, 0, number).is_ok());
            }
        }
        let flows: Vec<CreateFlow> = flows.into_iter().map(|(_, flow)| flow).collect();
        // Frames from which values of flows are taken match more often.
        let known = rules.iter().map(|rule| &rule.4);
        for content in frames.iter().chain(known) {
            let mut get = Vec::new();
            let passes = world.nodes[0].rnic.flows().steer(&content.bytes(), &mut get);
            let mut get: Vec<u32> = get.into_iter().map(|end| end.qpn).collect();
            let count = get.len();
            get.sort_unstable();
            get.dedup();
            prop_assert_eq!(count, get.len(), "one copy each");
            prop_assert_eq!((get, passes), expected(&flows, content), "{:?}", content);
        }
    }

    /// Each flow counts the frames that it gets, of which its own queue pair tells.
    #[test]
    fn flows_count_as_the_standard_says(
        rules in vec(rule(), 1..8),
        frames in vec(content(), 1..8),
    ) {
        let mut world = World::new(1, 512, &RnicConfig::default(), 1);
        let mut flows = Vec::new();
        for rule in &rules {
            let flow = request(rule, &[end(&mut world, 0).qp.qpn; 3]);
            flows.push((add(&mut world, 0, flow), flow));
        }
        let requests: Vec<CreateFlow> = flows.iter().map(|(_, flow)| *flow).collect();
        let mut model = vec![(0, 0); flows.len()];
        let known = rules.iter().map(|rule| &rule.4);
        for content in frames.iter().chain(known) {
            let bytes = content.bytes();
            arrive(&mut world, 0, &bytes);
            let (get, _) = expected(&requests, content);
            for (count, flow) in model.iter_mut().zip(&requests) {
                if get.contains(&flow.qpn.get()) {
                    *count = (count.0 + 1, count.1 + bytes.len() as u64);
                }
            }
        }
        for ((number, _), expected) in flows.iter().zip(model) {
            prop_assert_eq!(counted(&mut world, 0, *number), Ok(expected));
        }
    }

    /// A frame that ends anywhere, or is anything, goes to flows or not, and nothing breaks.
    #[test]
    fn any_bytes_can_arrive(bytes in vec(any::<u8>(), 0..100), content in content(), cut in 0usize..120) {
        let mut world = World::new(1, 512, &RnicConfig::default(), 1);
        let b = end(&mut world, 0);
        let every = CreateFlow { value: FlowFields::default(), mask: FlowFields::default(), ..to(&b, B) };
        add(&mut world, 0, every);
        let whole = content.bytes();
        for bytes in [&bytes[..], &whole[..cut.min(whole.len())]] {
            let mut get = Vec::new();
            world.nodes[0].rnic.flows().steer(bytes, &mut get);
            prop_assert_eq!(get.len(), usize::from(bytes.len() >= 14));
        }
    }
}
