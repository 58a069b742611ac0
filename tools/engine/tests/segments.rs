// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Sends in segments of raw packet queue pairs: what arrives, which requests are refused, and who else gets a turn
//! meanwhile. The packets are compared with those of another implementation beside the code. Those of IP over
//! InfiniBand are tested with the other datagrams there.

use etherparse::{SlicedPacket, TcpSlice, TransportSlice};
use std::time::Duration;
use vrnic_engine::{
    Budget, Cause, Features, Io, Outbox, RnicConfig,
    recording::replay,
    testing::{DatagramEnd, Node, Send, World},
};
use vrnic_wire::{
    command::{CreateFlow, FlowFields, QueryDevice},
    completion::{Opcode, Status, packet_flags},
    counter::Counter,
    qp::{QpAttributes, QpState, QpType, attribute},
    ring::offset,
    work::{SendOpcode, send_flags},
};

const A: [u8; 6] = [2, 0, 0, 0, 0, 1];
const B: [u8; 6] = [2, 0, 0, 0, 0, 2];
/// Longest payload of a request.
const MOST: usize = 256 * 1024;
/// Number of bytes of each region.
const MR: usize = MOST + 65536;

fn end(world: &mut World, node: usize) -> DatagramEnd {
    DatagramEnd::new(world, node, QpType::RawPacket, 0, MR)
}

/// Creates two devices with a queue pair each. The second one gets the frames to `B`.
fn pair(config: &RnicConfig) -> (World, DatagramEnd, DatagramEnd) {
    let mut world = World::new(2, 1024, config, 3);
    let (a, b) = (end(&mut world, 0), end(&mut world, 1));
    let fields = |destination_mac| FlowFields {
        destination_mac,
        ..FlowFields::default()
    };
    let flow = CreateFlow {
        qpn: b.qp.qpn.into(),
        port: 1,
        value: fields(B),
        mask: fields([0xff; 6]),
        ..CreateFlow::default()
    };
    let Node { rnic, guest } = &mut world.nodes[1];
    guest.command(rnic, flow).expect("flow");
    (world, a, b)
}

/// Returns the header of a TCP packet with the flags FIN, PSH and CWR.
fn header() -> Vec<u8> {
    let mut tcp = etherparse::TcpHeader::new(1, 2, 1000, 4);
    (tcp.fin, tcp.psh, tcp.cwr) = (true, true, true);
    let mut header = Vec::new();
    etherparse::PacketBuilder::ethernet2(A, B)
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp_header(tcp)
        .write(&mut header, &[])
        .expect("a header");
    header
}

/// Returns a send of `length` bytes from the beginning of the region, in three elements.
fn segmented(end: &DatagramEnd, header: &[u8], size: u32, length: usize) -> Send {
    let third = length / 3;
    Send::new(9, SendOpcode::SendSegmented)
        .element(end.mr.sge(0, third))
        .element(end.mr.sge(third, third))
        .element(end.mr.sge(2 * third, length - 2 * third))
        .segments(header, size)
}

fn payload(length: usize) -> Vec<u8> {
    (0..length).map(|index| ((index * 7) >> 3) as u8).collect()
}

/// Posts `count` receives of frames.
fn receives(world: &mut World, end: &mut DatagramEnd, count: usize) {
    for index in 0..count {
        let offset = index * 4096;
        end.receive(world, offset as u64, offset, 4096);
    }
}

/// Returns the frames that came.
fn got(end: &mut DatagramEnd) -> Vec<Vec<u8>> {
    (end.recv_cq.drain().iter())
        .map(|done| {
            assert_eq!(done.status, Status::Success);
            assert_eq!(done.packet_flags, packet_flags::CHECKSUMS_OK);
            end.mr.arena.get(done.wr_id as usize, done.length as usize)
        })
        .collect()
}

/// Returns the TCP segment in a frame.
fn tcp_of(frame: &[u8]) -> TcpSlice<'_> {
    let packet = SlicedPacket::from_ethernet(frame).expect("a packet");
    match packet.transport {
        Some(TransportSlice::Tcp(tcp)) => tcp,
        other => panic!("not TCP: {other:?}"),
    }
}

fn counter(world: &World, node: usize, counter: Counter) -> u64 {
    world.nodes[node].rnic.counters()[counter as usize]
}

/// Gives the first device a turn. What it sends is lost. Returns the frames.
fn turn(world: &mut World, units: u32) -> Vec<Vec<u8>> {
    let mut outbox = Outbox::new();
    let now = world.now;
    let Node { rnic, guest } = &mut world.nodes[0];
    let mut io = Io {
        memory: &guest.view,
        now,
        outbox: &mut outbox,
    };
    rnic.poll(Budget::units(units), &mut io);
    let frames = outbox.segments.iter();
    frames.map(|one| one.payload.bytes().to_vec()).collect()
}

#[test]
fn a_request_becomes_packets() {
    let (mut world, mut a, mut b) = pair(&RnicConfig::default());
    let sent = payload(3001);
    a.mr.arena.put(0, &sent);
    for flags in [0, send_flags::CHECKSUMS] {
        let before = counter(&world, 0, Counter::TransmitPackets);
        let requests = counter(&world, 0, Counter::SendRequests);
        receives(&mut world, &mut b, 4);
        let request = segmented(&a, &header(), 1000, sent.len()).flags(flags);
        a.send(&mut world, &request);
        world.settle();
        let done = a.send_cq.drain();
        assert_eq!(done.len(), 1);
        let first = (done[0].wr_id, done[0].status, done[0].opcode);
        assert_eq!(first, (9, Status::Success, Opcode::SendSegmented));
        let frames = got(&mut b);
        assert_eq!(frames.len(), 4);
        let mut arrived = Vec::new();
        for (index, frame) in frames.iter().enumerate() {
            let tcp = tcp_of(frame);
            assert_eq!(tcp.sequence_number(), 1000 + 1000 * index as u32);
            assert_eq!((tcp.cwr(), tcp.fin()), (index == 0, index == 3));
            arrived.extend_from_slice(tcp.payload());
        }
        assert_eq!(arrived, sent);
        assert_eq!(a.mr.arena.get(0, sent.len()), sent, "the sender's memory");
        assert_eq!(counter(&world, 0, Counter::TransmitPackets) - before, 4);
        assert_eq!(counter(&world, 0, Counter::SendRequests) - requests, 1);
    }
}

#[test]
fn requests_follow_each_other_in_order() {
    let (mut world, mut a, _) = pair(&RnicConfig::default());
    a.mr.arena.put(0, &payload(10_000));
    let mut expected = Vec::new();
    for (size, length) in [(100, 10_000), (8960, 10_000), (77, 7700), (1, 100)] {
        let request = segmented(&a, &header(), size, length);
        a.send(&mut world, &request);
        let rest = length as u32 % size;
        expected.extend(vec![size; length / size as usize]);
        expected.extend((rest > 0).then_some(rest));
    }
    let mut sent = Vec::new();
    loop {
        let frames = turn(&mut world, 7);
        assert!(frames.len() <= 7);
        if frames.is_empty() {
            break;
        }
        let header = header().len();
        sent.extend(frames.iter().map(|frame| (frame.len() - header) as u32));
    }
    assert_eq!(sent, expected);
    let done = a.send_cq.drain();
    assert_eq!(done.len(), 4);
}

#[test]
fn many_tiny_packets_keep_nobody_waiting() {
    let (mut world, mut a, _) = pair(&RnicConfig::default());
    let mut other = end(&mut world, 0);
    let request = segmented(&a, &header(), 1, MOST);
    a.send(&mut world, &request);
    turn(&mut world, 64);
    for _ in 0..10 {
        let long = Send::new(1, SendOpcode::Send).element(other.mr.sge(0, 60));
        other.send(&mut world, &long);
        let mut frames = turn(&mut world, 64);
        assert!(frames.len() <= 64, "{}", frames.len());
        frames.extend(turn(&mut world, 64));
        let passed = frames.iter().filter(|frame| frame.len() == 60);
        assert_eq!(passed.count(), 1);
    }
    assert!(a.send_cq.drain().is_empty());
    let mut packets = 0;
    loop {
        let frames = turn(&mut world, 4096).len();
        packets += frames;
        if frames == 0 {
            break;
        }
    }
    assert!(packets > MOST - 64 * 32, "{packets}");
    assert_eq!(a.send_cq.drain().len(), 1);
}

/// Makes a request of an end.
type Make = Box<dyn Fn(&DatagramEnd) -> Send>;

/// Everything that a request can have wrong, with what it has otherwise.
#[test]
fn bad_requests_end_with_an_error() {
    let config = RnicConfig {
        frame_mtu: 1500,
        ..RnicConfig::default()
    };
    let operation = Status::LocalQueuePairOperation;
    let changed = |at: usize, byte: u8| {
        let mut header = header();
        header[at] = byte;
        header
    };
    let with = |header: Vec<u8>, size: u32, length: usize| -> Make {
        Box::new(move |a| segmented(a, &header, size, length))
    };
    let cases: Vec<(&str, Make, Status, Cause)> = vec![
        (
            "UDP",
            with(changed(23, 17), 100, 1000),
            operation,
            Cause::SegmentHeader,
        ),
        (
            "options that are missing",
            with(changed(46, 0xf0), 100, 1000),
            operation,
            Cause::SegmentHeader,
        ),
        (
            "no header",
            with(Vec::new(), 100, 1000),
            operation,
            Cause::SegmentHeader,
        ),
        (
            "a header that ends early",
            with(header()[..40].to_vec(), 100, 1000),
            operation,
            Cause::SegmentHeader,
        ),
        (
            "more than the queue pair has room for",
            with([header(), vec![0; 75]].concat(), 100, 1000),
            operation,
            Cause::WqeCapacity,
        ),
        (
            "no segment size",
            with(header(), 0, 1000),
            operation,
            Cause::SegmentSize,
        ),
        (
            "packets that are too long",
            with(header(), 1461, 1000),
            Status::LocalLength,
            Cause::WqeLength,
        ),
        (
            "packets of four gigabytes",
            with(header(), u32::MAX, 1000),
            Status::LocalLength,
            Cause::WqeLength,
        ),
        (
            "no payload",
            with(header(), 100, 0),
            Status::LocalLength,
            Cause::WqeLength,
        ),
        (
            "too much payload",
            with(header(), 100, MOST + 1),
            Status::LocalLength,
            Cause::WqeLength,
        ),
        (
            "inline",
            Box::new(|a| segmented(a, &header(), 100, 1000).flags(send_flags::INLINE)),
            operation,
            Cause::WqeFlags,
        ),
        (
            "an entry that is full of other things",
            Box::new(|a| {
                let request = Send::new(9, SendOpcode::SendSegmented);
                let request = (0..4).fold(request, |to, _| to.element(a.mr.sge(0, 9)));
                request.segments(&[header(), vec![0; 74]].concat(), 100)
            }),
            operation,
            Cause::SegmentHeader,
        ),
        (
            "memory of somebody else",
            Box::new(|a| {
                let mut sge = a.mr.sge(0, 1000);
                sge.lkey = (sge.lkey.get() ^ 1).into();
                Send::new(9, SendOpcode::SendSegmented)
                    .element(sge)
                    .segments(&header(), 100)
            }),
            Status::LocalProtection,
            Cause::LocalKey,
        ),
    ];
    for (what, make, status, cause) in cases {
        let (mut world, mut a, mut b) = pair(&config);
        receives(&mut world, &mut b, 1);
        let request = make(&a);
        a.send(&mut world, &request);
        let good = segmented(&a, &header(), 100, 100);
        a.send(&mut world, &good);
        world.settle();
        let done = a.send_cq.drain();
        assert_eq!(
            (done[0].status, done[0].cause),
            (status, Some(cause)),
            "{what}"
        );
        assert_eq!(done[1].status, Status::Flushed, "{what}");
        assert_eq!(counter(&world, 0, Counter::TransmitPackets), 0, "{what}");
        assert_eq!(world.state(0, a.qp.qpn), QpState::SendQueueError);
        // It works again afterwards.
        world.modify(0, a.qp.qpn, to_rts());
        let good = segmented(&a, &header(), 100, 100);
        a.send(&mut world, &good);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, Status::Success, "{what}");
        assert_eq!(got(&mut b).len(), 1, "{what}");
    }
}

/// Returns the change from SEND_QUEUE_ERROR to RTS.
fn to_rts() -> QpAttributes {
    QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::ReadyToSend.raw(),
        ..QpAttributes::default()
    }
}

#[test]
fn a_protection_error_comes_after_the_packets_before_it() {
    let (mut world, mut a, mut b) = pair(&RnicConfig::default());
    receives(&mut world, &mut b, 5);
    let mut second = a.mr.sge(0, 1000);
    second.lkey = (second.lkey.get() ^ 1).into();
    let request = Send::new(9, SendOpcode::SendSegmented)
        .element(a.mr.sge(0, 1000))
        .element(second)
        .segments(&header(), 400);
    a.send(&mut world, &request);
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, Status::LocalProtection);
    assert_eq!(got(&mut b).len(), 2);
}

#[test]
fn the_header_is_taken_once() {
    let (mut world, mut a, _) = pair(&RnicConfig::default());
    let request = segmented(&a, &header(), 10, 1000);
    a.send(&mut world, &request);
    let before = turn(&mut world, 5);
    assert_eq!(before.len(), 5);
    // The poster overwrites its entry.
    let entry = a.qp.sq.layout.entry_offset(0) as usize;
    a.qp.sq.arena.put(entry, &[0xff; 256]);
    let mut after = Vec::new();
    loop {
        let frames = turn(&mut world, 64);
        if frames.is_empty() {
            break;
        }
        after.extend(frames);
    }
    assert_eq!(after.len(), 95);
    for (index, frame) in before.iter().chain(&after).enumerate() {
        assert_eq!(frame.len(), header().len() + 10);
        assert_eq!(frame[..14], header()[..14]);
        assert_eq!(tcp_of(frame).sequence_number(), 1000 + 10 * index as u32);
    }
    assert_eq!(a.send_cq.drain()[0].status, Status::Success);
}

#[test]
fn a_request_under_way_is_flushed_once() {
    for state in [QpState::Error, QpState::Reset] {
        let (mut world, mut a, mut b) = pair(&RnicConfig::default());
        for _ in 0..2 {
            let request = segmented(&a, &header(), 10, 1000);
            a.send(&mut world, &request);
        }
        assert_eq!(turn(&mut world, 5).len(), 5);
        world.modify(
            0,
            a.qp.qpn,
            QpAttributes {
                mask: attribute::STATE.into(),
                state: state.raw(),
                ..QpAttributes::default()
            },
        );
        world.settle();
        let done = a.send_cq.drain();
        let expected = if state == QpState::Error { 2 } else { 0 };
        assert_eq!(done.len(), expected);
        assert!(done.iter().all(|one| one.status == Status::Flushed));
        assert_eq!(counter(&world, 0, Counter::TransmitPackets), 5);
        // After a reset, nothing is left of it.
        let reset = QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::Reset.raw(),
            ..QpAttributes::default()
        };
        world.modify(0, a.qp.qpn, reset);
        a.qp.sq.index = 0;
        let indices = a.qp.sq.layout.header_offset.get() as usize;
        for index in [offset::DRIVER_INDEX, offset::DEVICE_INDEX] {
            a.qp.sq.arena.put(indices + index, &[0; 4]);
        }
        let again = QpAttributes {
            port: 1,
            ..QpAttributes::default()
        };
        world.bring_up(0, a.qp.qpn, again, QpType::RawPacket);
        receives(&mut world, &mut b, 2);
        let two = segmented(&a, &header(), 1000, 2000);
        a.send(&mut world, &two);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, Status::Success);
        assert_eq!(got(&mut b).len(), 2);
    }
}

#[test]
fn draining_waits_for_the_last_packet() {
    let (mut world, mut a, _) = pair(&RnicConfig::default());
    for _ in 0..2 {
        let request = segmented(&a, &header(), 10, 1000);
        a.send(&mut world, &request);
    }
    assert_eq!(turn(&mut world, 5).len(), 5);
    world.modify(
        0,
        a.qp.qpn,
        QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::SendQueueDrain.raw(),
            ..QpAttributes::default()
        },
    );
    let mut packets = 5;
    loop {
        let frames = turn(&mut world, 64).len();
        packets += frames;
        if frames == 0 {
            break;
        }
    }
    assert_eq!(packets, 100);
    let done = a.send_cq.drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, Status::Success);
}

#[test]
fn each_packet_counts_for_the_rate_limit() {
    let (mut world, mut a, _) = pair(&RnicConfig::default());
    world.modify(
        0,
        a.qp.qpn,
        QpAttributes {
            mask: (attribute::STATE | attribute::RATE_LIMIT).into(),
            state: QpState::ReadyToSend.raw(),
            // A packet of 1054 bytes takes a millisecond.
            rate_limit: 8432.into(),
            max_burst: 2000.into(),
            typical_packet: 1054.into(),
            ..QpAttributes::default()
        },
    );
    let request = segmented(&a, &header(), 1000, 100_000);
    a.send(&mut world, &request);
    world.run(Duration::from_micros(50_500));
    let sent = counter(&world, 0, Counter::TransmitPackets);
    assert!((49..=53).contains(&sent), "{sent}");
    assert!(a.send_cq.drain().is_empty());
    world.run(Duration::from_millis(60));
    assert_eq!(counter(&world, 0, Counter::TransmitPackets), 100);
    assert_eq!(a.send_cq.drain().len(), 1);
}

#[test]
fn segmentation_is_a_feature() {
    for (checksums, segmentation, qp_type, works) in [
        (true, true, QpType::RawPacket, true),
        (true, false, QpType::RawPacket, false),
        (false, true, QpType::RawPacket, false),
        // There are datagrams with segments on InfiniBand only.
        (true, true, QpType::UnreliableDatagram, false),
    ] {
        let config = RnicConfig {
            features: Features {
                checksums,
                segmentation,
                ..Features::ALL
            },
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 512, &config, 12);
        let Node { rnic, guest } = &mut world.nodes[0];
        let limits = guest.command(rnic, QueryDevice {}).expect("limits");
        let expected = if checksums && segmentation { MOST } else { 0 };
        assert_eq!(limits.max_segmented_length.get() as usize, expected);
        let mut a = DatagramEnd::new(&mut world, 0, qp_type, 0, 65536);
        let request = segmented(&a, &header(), 100, 1000);
        a.send(&mut world, &request);
        world.settle();
        let done = a.send_cq.drain()[0];
        let expected = if works {
            (Status::Success, None)
        } else {
            (Status::LocalQueuePairOperation, Some(Cause::WqeOpcode))
        };
        assert_eq!((done.status, done.cause), expected, "{qp_type:?}");
    }
}

#[test]
fn a_replay_sends_the_same_packets() {
    let mut world = World::recorded(&[RnicConfig::default(), RnicConfig::default()], 1024, 14);
    let mut a = end(&mut world, 0);
    for (size, length) in [(1000, 3001), (10, 1000), (0, 10)] {
        let request = segmented(&a, &header(), size, length);
        a.send(&mut world, &request);
        world.settle();
    }
    assert_eq!(a.send_cq.drain().len(), 3);
    for recording in world.recordings() {
        replay(&recording).expect("the same again");
    }
}
