// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices on an InfiniBand subnet, which have the same queue pairs but are addressed by LID. There is no routing here:
//! each device gets the packets to its LIDs.

use vrnic_engine::{
    Cause, Io, LinkLayer, Outbox, RnicConfig,
    segment::{Body, LidRoute, Path, Payload, Position, Segment, SendTail},
    subnet::{HcaPort, PortAnswer, PortRequest},
    testing::{Connection, DatagramEnd, Faults, QpOptions, Send, World, hca_port_of, lid_of},
    time::Instant,
};
use vrnic_wire::{
    command::{
        AttachMulticast, ClearGid, Command, CommandHeader, MAD_LENGTH, MadProcessed, MadResult,
        ModifyPort, ProcessMad, QueryGids, QueryPkeys, QueryPort, QuerySubnetPort, ReplyHeader,
        SetGid, SetMtu, SetPortState, Status as CommandStatus,
    },
    completion::{Opcode, Status, flags, packet_flags},
    counter::Counter,
    event::EventType,
    port::{Mtu, PortState},
    qp::{GSI_QPN, MULTICAST_QPN, QpState, QpType, SMI_QPN},
    work::{AddressVector, LidAddress, SendOpcode, lid_flags, send_flags},
};
use zerocopy::{FromBytes, IntoBytes};

const QKEY: u32 = 0x1111_1111;
const MR: usize = 64 * 1024;
/// Offset of the received data. The data to send are before it.
const TARGETS: usize = MR / 2;
/// GID of a multicast group.
const GROUP: [u8; 16] = [
    0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1,
];
const GROUP_LID: u16 = 0xc003;

fn config() -> RnicConfig {
    RnicConfig {
        link_layer: LinkLayer::InfiniBand,
        ..RnicConfig::default()
    }
}

fn world(count: usize, seed: u64) -> World {
    World::new(count, 1024, &config(), seed)
}

/// Returns the address of a node at its second LID, as seen from the third LID of the sender.
fn to(node: usize, global: bool) -> AddressVector {
    AddressVector {
        dgid: hca_port_of(node).gid(2).expect("a GID"),
        dmac: LidAddress {
            dlid: (lid_of(node) + 1).into(),
            path_bits: 2,
            flags: if global { lid_flags::GRH } else { 0 },
            ..LidAddress::default()
        }
        .to_bytes(),
        sgid_index: 2,
        hop_limit: 9,
        traffic_class: 0x5a,
        flow_label: 0x1_2345.into(),
        service_level: 3,
        ..AddressVector::default()
    }
}

/// Returns the address of the group.
fn to_group() -> AddressVector {
    AddressVector {
        dgid: GROUP,
        dmac: LidAddress {
            dlid: GROUP_LID.into(),
            flags: lid_flags::GRH,
            ..LidAddress::default()
        }
        .to_bytes(),
        ..AddressVector::default()
    }
}

/// Returns the address of a peer for a connection. Each side sends from the LID to which the other one sends.
fn to_peer(node: usize, global: bool) -> AddressVector {
    AddressVector {
        dmac: LidAddress {
            dlid: (lid_of(node) + 1).into(),
            path_bits: 1,
            flags: if global { lid_flags::GRH } else { 0 },
            ..LidAddress::default()
        }
        .to_bytes(),
        ..to(node, global)
    }
}

/// Connects nodes 0 and 1.
fn connect(world: &mut World, qp_type: QpType, global: bool, mtu: Mtu) -> Connection {
    connect_by(world, qp_type, mtu, |peer| to_peer(peer, global))
}

/// Connects nodes 0 and 1, whose addresses are given by `address`.
fn connect_by(
    world: &mut World,
    qp_type: QpType,
    mtu: Mtu,
    address: impl Fn(usize) -> AddressVector,
) -> Connection {
    let options = QpOptions {
        qp_type,
        ..QpOptions::default()
    };
    let c = world.connect([0, 1], &options, MR, |side, attributes| {
        attributes.path_mtu = mtu.raw();
        attributes.address = address(1 - side);
    });
    for mr in &c.mrs {
        let bytes: Vec<u8> = (0..TARGETS).map(|at| (at * 7 + at / 256) as u8).collect();
        mr.arena.put(0, &bytes);
    }
    c
}

const MTUS: [Mtu; 5] = [
    Mtu::Mtu256,
    Mtu::Mtu512,
    Mtu::Mtu1024,
    Mtu::Mtu2048,
    Mtu::Mtu4096,
];

#[test]
fn each_operation_of_a_reliable_connection_works_over_lids() {
    for (seed, mtu) in (0..).zip(MTUS) {
        for global in [false, true] {
            let mut world = world(2, seed);
            let mut c = connect(&mut world, QpType::ReliableConnection, global, mtu);
            world.faults = Faults {
                drop: 30,
                duplicate: 30,
                delay: 100,
                ..Faults::default()
            };
            // All packets have the expected LIDs, and GIDs only if they should.
            world.filter = Some(|segment| {
                let lids = segment.path.lids.expect("LIDs");
                let pair = (lids.source, lids.destination);
                let (one, other) = (lid_of(0) + 1, lid_of(1) + 1);
                assert!(pair == (one, other) || pair == (other, one), "{pair:?}");
                assert_eq!(lids.global, segment.path.source != [0; 16]);
                assert_eq!(segment.path.service_level, 3);
                assert_eq!(
                    segment.path.traffic_class,
                    if lids.global { 0x5a } else { 0 }
                );
                assert!(segment.payload.len() <= 4096);
                true
            });
            let (remote, key) = (c.mrs[1].iova, c.mrs[1].key);
            c.receive(&mut world, 1, 1, &[c.mrs[1].sge(TARGETS, 10_000)]);
            c.receive(&mut world, 1, 2, &[c.mrs[1].sge(TARGETS, 0)]);
            let send = |wr_id, opcode| Send::new(wr_id, opcode);
            let requests = [
                send(1, SendOpcode::Send).element(c.mrs[0].sge(0, 10_000)),
                send(2, SendOpcode::WriteWithImmediate)
                    .immediate(5)
                    .rdma(remote + TARGETS as u64 + 10_000, key)
                    .element(c.mrs[0].sge(100, 5000)),
                send(3, SendOpcode::Read)
                    .rdma(remote + 50, key)
                    .element(c.mrs[0].sge(TARGETS, 7000)),
                send(4, SendOpcode::FetchAdd)
                    .atomic(remote, key, 1, 0)
                    .element(c.mrs[0].sge(TARGETS + 8000, 8)),
                send(5, SendOpcode::CompareSwap)
                    .atomic(remote + 8, key, 0, 1)
                    .element(c.mrs[0].sge(TARGETS + 8008, 8)),
            ];
            for request in &requests {
                c.send(&mut world, 0, request);
            }
            let before = c.mrs[1].arena.get(0, 16);
            world.settle();
            let done = c.send_cqs[0].drain();
            assert!(
                done.iter().all(|cqe| cqe.status == Status::Success),
                "{done:?}"
            );
            assert_eq!(done.len(), requests.len());
            assert_eq!(c.recv_cqs[1].drain().len(), 2);
            let there = |offset, length| c.mrs[1].arena.get(TARGETS + offset, length);
            assert_eq!(there(0, 10_000), c.mrs[0].arena.get(0, 10_000));
            assert_eq!(there(10_000, 5000), c.mrs[0].arena.get(100, 5000));
            let here = |offset, length| c.mrs[0].arena.get(TARGETS + offset, length);
            assert_eq!(here(0, 7000), c.mrs[1].arena.get(50, 7000));
            assert_eq!(here(8000, 16), before, "what was there before the atomics");
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            let after = word(&c.mrs[1].arena.get(0, 8));
            assert_eq!(after, word(&before[..8]).wrapping_add(1));
        }
    }
}

#[test]
fn unreliable_connections_work_over_lids() {
    for global in [false, true] {
        let mut world = world(2, 3);
        let mut c = connect(
            &mut world,
            QpType::UnreliableConnection,
            global,
            Mtu::Mtu512,
        );
        c.receive(&mut world, 1, 1, &[c.mrs[1].sge(TARGETS, 3000)]);
        let send = Send::new(1, SendOpcode::Send).element(c.mrs[0].sge(0, 3000));
        let write = Send::new(2, SendOpcode::Write)
            .rdma(c.mrs[1].iova + TARGETS as u64 + 3000, c.mrs[1].key)
            .element(c.mrs[0].sge(0, 3000));
        c.send(&mut world, 0, &send);
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(c.recv_cqs[1].drain()[0].status, Status::Success);
        let sent = c.mrs[0].arena.get(0, 3000);
        assert_eq!(
            c.mrs[1].arena.get(TARGETS, 6000),
            [&sent[..], &sent].concat()
        );
    }
}

fn end(world: &mut World, node: usize, qp_type: QpType) -> DatagramEnd {
    DatagramEnd::new(world, node, qp_type, QKEY, 20_000)
}

fn datagram(end: &DatagramEnd, address: AddressVector, qpn: u32, qkey: u32) -> Send {
    Send::new(3, SendOpcode::SendWithImmediate)
        .immediate(99)
        .element(end.mr.sge(100, 10))
        .datagram(address, qpn, qkey)
}

#[test]
fn datagrams_have_a_global_header_only_if_they_want() {
    let mut world = world(2, 1);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    a.mr.arena.put(100, b"some bytes");
    for global in [true, false] {
        b.mr.arena.put(1000, &[0xee; 50]);
        b.receive(&mut world, 7, 1000, 50);
        let send = datagram(&a, to(1, global), b.qp.qpn, QKEY);
        a.send(&mut world, &send);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, Status::Success);
        let got = b.recv_cq.drain();
        assert_eq!((got[0].status, got[0].length), (Status::Success, 50));
        let source = got[0].source.expect("a LID");
        assert_eq!((source.slid.get(), source.path_bits), (lid_of(0) + 2, 1));
        let grh = if global { flags::GRH } else { 0 };
        assert_eq!(got[0].flags, flags::SOURCE_LID | flags::IMMEDIATE | grh);
        let bytes = b.mr.arena.get(1000, 50);
        assert_eq!(&bytes[40..], b"some bytes");
        if global {
            assert_eq!(bytes[..4], [0x65, 0xa1, 0x23, 0x45]);
            // BTH, DETH, immediate, 10 bytes with their pad, and ICRC.
            assert_eq!(bytes[4..8], [0, 12 + 8 + 4 + 12 + 4, 0x1b, 9]);
            assert_eq!(
                Some(bytes[8..24].try_into().unwrap()),
                hca_port_of(0).gid(2)
            );
            assert_eq!(
                Some(bytes[24..40].try_into().unwrap()),
                hca_port_of(1).gid(2)
            );
        } else {
            assert_eq!(bytes[..40], [0; 40]);
        }
    }
}

#[test]
fn datagrams_of_ip_over_infiniband_have_checksums() {
    let mut packet = Vec::new();
    etherparse::PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1, 2, 3, 4)
        .write(&mut packet, &[7; 301])
        .expect("a packet");
    let right = [&[8, 0, 0, 0], &packet[..]].concat();
    let mut wrong = right.clone();
    wrong[4 + 10..4 + 12].fill(0);
    // The sum of the pseudo-header, as the kernel leaves it there, is as wrong as anything.
    wrong[24 + 16..24 + 18].fill(0x55);

    let mut world = world(2, 5);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    let length = right.len();
    for (sent, flag, arrived, ok) in [
        (&right, 0, &right, true),
        (&wrong, 0, &wrong, false),
        (&wrong, send_flags::CHECKSUMS, &right, true),
    ] {
        a.mr.arena.put(100, sent);
        b.receive(&mut world, 7, 1000, 2000);
        let send = Send::new(3, SendOpcode::Send)
            .flags(flag)
            .element(a.mr.sge(100, length))
            .datagram(to(1, true), b.qp.qpn, QKEY);
        a.send(&mut world, &send);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, Status::Success);
        let got = b.recv_cq.drain();
        let wanted = if ok { packet_flags::CHECKSUMS_OK } else { 0 };
        assert_eq!(got[0].packet_flags, wanted);
        assert_eq!(&b.mr.arena.get(1040, length), arrived);
    }
}

#[test]
fn long_packets_of_ip_over_infiniband_are_divided() {
    let payload: Vec<u8> = (0..5000_u32).map(|index| (index >> 3) as u8).collect();
    // What the sender describes, and each packet that is to arrive.
    let packet = |sequence, identification, payload: &[u8]| {
        let mut ip = etherparse::Ipv4Header {
            identification,
            ..Default::default()
        };
        (ip.source, ip.destination, ip.time_to_live) = ([10, 0, 0, 1], [10, 0, 0, 2], 64);
        let mut bytes = vec![8, 0, 0, 0];
        let extensions = etherparse::Ipv4Extensions::default();
        etherparse::PacketBuilder::ip(etherparse::IpHeaders::Ipv4(ip, extensions))
            .tcp(1, 2, sequence, 4)
            .write(&mut bytes, payload)
            .expect("a packet");
        bytes
    };
    let header = packet(100, 0xffff, &[]);
    let expected = [
        packet(100, 0xffff, &payload[..2000]),
        packet(2100, 0, &payload[2000..4000]),
        packet(4100, 1, &payload[4000..]),
    ];

    let mut world = world(2, 5);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    a.mr.arena.put(100, &payload);
    for place in 0..3 {
        b.receive(&mut world, place, 10_000 + 3000 * place as usize, 3000);
    }
    let segments = |a: &DatagramEnd, size| {
        Send::new(3, SendOpcode::SendSegmented)
            .element(a.mr.sge(100, payload.len()))
            .segments(&header, size)
            .datagram(to(1, true), b.qp.qpn, QKEY)
    };
    let send = segments(&a, 2000);
    a.send(&mut world, &send);
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!(done.len(), 1);
    assert_eq!(
        (done[0].status, done[0].opcode),
        (Status::Success, Opcode::SendSegmented)
    );
    let got = b.recv_cq.drain();
    assert_eq!(got.len(), 3);
    for (place, (done, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(done.packet_flags, packet_flags::CHECKSUMS_OK);
        assert_eq!(done.length as usize, 40 + expected.len());
        let bytes = b.mr.arena.get(10_040 + 3000 * place, expected.len());
        assert_eq!(&bytes, expected);
    }
    // Datagrams of 4096 bytes are the longest.
    for (size, status) in [
        (4096 - 44, Status::Success),
        (4096 - 43, Status::LocalLength),
    ] {
        let send = segments(&a, size);
        a.send(&mut world, &send);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, status, "{size}");
    }
}

#[test]
fn a_device_reaches_itself_at_its_own_lid() {
    let mut world = world(2, 2);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 0, QpType::UnreliableDatagram);
    b.receive(&mut world, 7, 1000, 50);
    let send = datagram(&a, to(0, false), b.qp.qpn, QKEY);
    a.send(&mut world, &send);
    world.settle();
    assert_eq!(b.recv_cq.drain().len(), 1);
}

#[test]
fn addresses_that_cannot_be_end_with_an_error() {
    let mut world = world(2, 4);
    let change = |change: fn(&mut LidAddress, &mut AddressVector)| {
        let mut address = to(1, true);
        let mut lids = LidAddress::from_bytes(address.dmac);
        change(&mut lids, &mut address);
        address.dmac = lids.to_bytes();
        address
    };
    let bad = [
        change(|lids, _| lids.dlid = 0.into()),
        change(|lids, _| lids.dlid = 0xffff.into()),
        change(|lids, _| lids.path_bits = 4),
        change(|lids, _| lids.flags |= 2),
        change(|lids, _| lids.reserved = 1),
        change(|_, address| address.sgid_index = 1),
        change(|lids, _| (lids.dlid, lids.flags) = (GROUP_LID.into(), 0)),
    ];
    for address in bad {
        let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
        let send = datagram(&a, address, 5, QKEY);
        a.send(&mut world, &send);
        world.settle();
        let done = a.send_cq.drain();
        assert_eq!(
            done[0].status,
            Status::LocalQueuePairOperation,
            "{address:?}"
        );
    }
    // Only queue pair 0 may send to queue pair 0.
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let send = datagram(&a, to(1, false), SMI_QPN, QKEY);
    a.send(&mut world, &send);
    world.settle();
    let done = a.send_cq.drain();
    assert_eq!(done[0].status, Status::LocalQueuePairOperation);
    assert_eq!(done[0].cause, Some(Cause::ManagementQp));
}

#[test]
fn packets_of_others_do_not_reach_a_connection() {
    for global in [false, true] {
        let mut world = world(3, 5);
        let mut c = connect(&mut world, QpType::ReliableConnection, global, Mtu::Mtu1024);
        c.receive(&mut world, 1, 1, &[c.mrs[1].sge(TARGETS, 100)]);
        let gids = |node: usize| hca_port_of(node).gid(2).expect("a GID");
        let good = Path {
            source: if global { gids(0) } else { [0; 16] },
            destination: if global { gids(1) } else { [0; 16] },
            lids: Some(LidRoute {
                source: lid_of(0) + 1,
                destination: lid_of(1) + 1,
                global,
            }),
            ..Path::default()
        };
        let with = |change: fn(&mut LidRoute)| {
            let mut path = good;
            path.lids.as_mut().map(change);
            path
        };
        let bad = [
            with(|lids| lids.source = lid_of(2) + 1),
            with(|lids| lids.source = lid_of(0)),
            with(|lids| lids.destination = lid_of(1)),
            with(|lids| lids.global = !lids.global),
            Path { lids: None, ..good },
            Path {
                source: gids(2),
                ..good
            },
        ];
        let body = Body::Send {
            position: Position::Only,
            tail: SendTail::Plain,
        };
        let payload = || Payload::Bytes(b"forged".to_vec());
        for path in bad {
            let mut segment = c.packet(0, 0xff_fff0, body, payload());
            segment.path = path;
            arrive(&mut world, 1, segment);
            world.settle();
            assert!(c.recv_cqs[1].drain().is_empty(), "{path:?}");
        }
        let mut segment = c.packet(0, 0xff_fff0, body, payload());
        segment.path = good;
        world.deliver(segment);
        world.settle();
        assert_eq!(c.recv_cqs[1].drain().len(), 1);
    }
}

/// Changes the port of a node.
fn set_port(world: &mut World, node: usize, change: impl FnOnce(&mut HcaPort)) {
    let mut port = hca_port_of(node);
    change(&mut port);
    world.nodes[node].rnic.set_hca_port(port, false);
}

fn counter(world: &World, node: usize, counter: Counter) -> u64 {
    world.nodes[node].rnic.counters()[counter as usize]
}

fn events(world: &mut World, node: usize) -> Vec<EventType> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_async_event())
        .map(|event| {
            assert_eq!(event.number.get(), 1);
            EventType::try_from(event.event_type.get()).expect("an event")
        })
        .collect()
}

#[test]
fn two_limited_members_do_not_hear_each_other() {
    for (one, other, hears) in [
        (0x8005, 0x8005, true),
        (0x8005, 5, true),
        (5, 0x8005, true),
        (5, 5, false),
        (0x8005, 0x8006, false),
        (0, 0x8005, false),
    ] {
        let mut world = world(2, 6);
        set_port(&mut world, 0, |port| port.pkeys[0] = one);
        set_port(&mut world, 1, |port| port.pkeys[0] = other);
        let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
        let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
        b.receive(&mut world, 7, 1000, 50);
        let send = datagram(&a, to(1, false), b.qp.qpn, QKEY);
        a.send(&mut world, &send);
        let mut c = connect(&mut world, QpType::ReliableConnection, false, Mtu::Mtu1024);
        c.receive(&mut world, 1, 1, &[c.mrs[1].sge(TARGETS, 100)]);
        let send = Send::new(1, SendOpcode::Send).element(c.mrs[0].sge(0, 100));
        c.send(&mut world, 0, &send);
        world.settle();
        let got = b.recv_cq.drain();
        assert_eq!(got.len(), usize::from(hears), "{one:#x} {other:#x}");
        let status = c.send_cqs[0].drain()[0].status;
        let expected = if hears {
            Status::Success
        } else {
            Status::RetryExceeded
        };
        assert_eq!(status, expected, "{one:#x} {other:#x}");
        let violation = world.nodes[1].rnic.next_violation();
        assert_eq!(violation.is_none(), hears || one == 0);
        if let Some(violation) = violation {
            assert!(!violation.qkey);
            assert_eq!(violation.key, u32::from(one));
            assert_eq!(violation.destination_qpn, b.qp.qpn);
            // A flood of violations is reported only a few times.
            let count = std::iter::from_fn(|| world.nodes[1].rnic.next_violation()).count();
            assert!(count < 16);
        }
    }
}

#[test]
fn nothing_leaves_with_an_empty_pkey() {
    const KEY: u32 = 0x8001_0000;
    for empty in [0, 0x8000] {
        let mut world = world(2, 17);
        set_port(&mut world, 0, |port| port.pkeys[0] = empty);
        let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
        let group = AttachMulticast {
            qpn: a.qp.qpn.into(),
            lid: GROUP_LID.into(),
            gid: GROUP,
            ..AttachMulticast::default()
        };
        let node = &mut world.nodes[0];
        node.guest.command(&mut node.rnic, group).expect("room");
        a.receive(&mut world, 7, 1000, 50);
        for (address, qpn) in [(to(1, false), 5), (to_group(), MULTICAST_QPN)] {
            let send = datagram(&a, address, qpn, QKEY);
            a.send(&mut world, &send);
        }
        let mut gsi = end(&mut world, 0, QpType::Gsi);
        // Entry 0, an entry that is always empty, and entries beyond the table.
        for index in [0, 3, 32, 0xffff] {
            let send = datagram(&gsi, to(1, false), GSI_QPN, KEY).pkey_index(index);
            gsi.send(&mut world, &send);
        }
        let mut c = connect(&mut world, QpType::ReliableConnection, false, Mtu::Mtu1024);
        let write = Send::new(1, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, 100));
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(counter(&world, 0, Counter::TransmitPackets), 0);
        assert_eq!(counter(&world, 1, Counter::ReceivePackets), 0);
        assert_eq!(world.nodes[1].rnic.next_violation(), None);
        // The packets seem lost on the way.
        assert_eq!((a.send_cq.drain().len(), a.recv_cq.drain().len()), (2, 0));
        let done = gsi.send_cq.drain();
        assert_eq!(done.len(), 4);
        assert!(done.iter().all(|cqe| cqe.status == Status::Success));
        assert_eq!(c.send_cqs[0].drain()[0].status, Status::RetryExceeded);
    }
}

/// Lets a segment arrive at a node, regardless of its destination.
fn arrive(world: &mut World, node: usize, segment: Segment<'_>) {
    let node = &mut world.nodes[node];
    let mut outbox = Outbox::new();
    let mut io = Io {
        memory: &node.guest.view,
        now: Instant::from_nanos(5),
        outbox: &mut outbox,
    };
    node.rnic.receive(segment, &mut io);
}

#[test]
fn a_datagram_for_another_gid_is_dropped() {
    const PREFIX: u64 = 0x1234;
    let with_prefix = |prefix: u64| {
        let mut gid = hca_port_of(1).gid(2).expect("a GID");
        gid[..8].copy_from_slice(&prefix.to_be_bytes());
        gid
    };
    let mut world = world(2, 18);
    set_port(&mut world, 1, |port| port.subnet.gid_prefix = PREFIX.into());
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    let mut broadcast = [0xff; 16];
    broadcast[1] = 0x12;
    for (dgid, global, taken) in [
        (with_prefix(PREFIX), true, true),
        // The default prefix is always valid.
        (with_prefix(0xfe80 << 48), true, true),
        (with_prefix(0xfe80 << 48 | 1), true, false),
        (hca_port_of(0).gid(2).expect("a GID"), true, false),
        (GROUP, true, false),
        (broadcast, true, false),
        ([0xff; 16], true, false),
        ([0; 16], true, false),
        (broadcast, false, true),
    ] {
        b.receive(&mut world, 7, 1000, 50);
        let address = AddressVector {
            dgid,
            ..to(1, global)
        };
        let before = counter(&world, 1, Counter::Dropped);
        let send = datagram(&a, address, b.qp.qpn, QKEY);
        a.send(&mut world, &send);
        world.settle();
        assert_eq!(b.recv_cq.drain().len(), usize::from(taken), "{dgid:x?}");
        let dropped = counter(&world, 1, Counter::Dropped) - before;
        assert_eq!(dropped, u64::from(!taken), "{dgid:x?}");
    }
}

#[test]
fn there_are_no_congestion_notifications_of_roce() {
    let mut world = world(2, 19);
    // On Ethernet, this is the mark that a switch sets.
    let marked = |peer| AddressVector {
        traffic_class: 3,
        ..to_peer(peer, true)
    };
    let mtu = Mtu::Mtu1024;
    let mut c = connect_by(&mut world, QpType::ReliableConnection, mtu, marked);
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 30_000));
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    let mut notification = c.packet(1, 0, Body::CongestionNotification, Payload::Empty);
    notification.path = Path {
        source: hca_port_of(1).gid(2).expect("a GID"),
        destination: hca_port_of(0).gid(2).expect("a GID"),
        lids: Some(LidRoute {
            source: lid_of(1) + 1,
            destination: lid_of(0) + 1,
            global: true,
        }),
        ..Path::default()
    };
    arrive(&mut world, 0, notification);
    for node in 0..2 {
        for nothing in [
            Counter::MarkedPackets,
            Counter::NotificationsSent,
            Counter::NotificationsHandled,
        ] {
            assert_eq!(counter(&world, node, nothing), 0, "{nothing:?}");
        }
    }
    assert_eq!(counter(&world, 0, Counter::Dropped), 1);
}

#[test]
fn a_wrong_qkey_is_a_violation() {
    let mut world = world(2, 7);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let mut b = end(&mut world, 1, QpType::UnreliableDatagram);
    b.receive(&mut world, 7, 1000, 50);
    let send = datagram(&a, to(1, false), b.qp.qpn, QKEY ^ 1);
    a.send(&mut world, &send);
    world.settle();
    assert!(b.recv_cq.drain().is_empty());
    let violation = world.nodes[1].rnic.next_violation().expect("a violation");
    assert_eq!((violation.qkey, violation.key), (true, QKEY ^ 1));
    assert_eq!(violation.source_qpn, a.qp.qpn);
    assert_eq!(violation.path.lids.expect("LIDs").source, lid_of(0) + 2);
    assert_eq!(world.nodes[1].rnic.next_violation(), None);
}

#[test]
fn violations_count_however_many_there_are() {
    let mut world = world(2, 20);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let b = end(&mut world, 1, QpType::UnreliableDatagram);
    for number in 0..100 {
        // Twenty different keys are more than can be reported individually.
        let send = datagram(&a, to(1, false), b.qp.qpn, QKEY + 1 + number % 20);
        a.send(&mut world, &send);
        world.settle();
        a.send_cq.drain();
    }
    let told: Vec<_> = std::iter::from_fn(|| world.nodes[1].rnic.next_violation()).collect();
    assert!(told.len() <= 16, "{}", told.len());
    let count = told.iter().map(|violation| violation.count).sum::<u32>();
    assert_eq!(count, 100);
    assert!(told.iter().all(|violation| violation.qkey));
}

#[test]
fn the_gsi_takes_any_pkey_and_tells_which() {
    const KEY: u32 = 0x8001_0000;
    let mut world = world(2, 8);
    let mut a = end(&mut world, 0, QpType::Gsi);
    let mut b = end(&mut world, 1, QpType::Gsi);
    // Entry 2 makes both ends limited members, and entry 3 is empty.
    for (index, heard) in [(0, true), (1, true), (2, false), (3, false)] {
        b.receive(&mut world, 7, 1000, 300);
        let send = datagram(&a, to(1, false), GSI_QPN, KEY).pkey_index(index);
        a.send(&mut world, &send);
        world.settle();
        assert_eq!(a.send_cq.drain()[0].status, Status::Success);
        let got = b.recv_cq.drain();
        assert_eq!(got.len(), usize::from(heard));
        assert!(got.iter().all(|cqe| cqe.pkey_index == index));
    }
}

#[test]
fn groups_have_a_lid_and_a_gid() {
    let mut world = world(3, 9);
    let mut ends: Vec<DatagramEnd> = [0, 0, 1, 2]
        .iter()
        .map(|&node| end(&mut world, node, QpType::UnreliableDatagram))
        .collect();
    let attach = |world: &mut World, end: &DatagramEnd, gid, lid: u16| {
        let node = &mut world.nodes[end.node];
        let request = AttachMulticast {
            qpn: end.qp.qpn.into(),
            lid: lid.into(),
            gid,
            ..AttachMulticast::default()
        };
        node.guest.command(&mut node.rnic, request).map(|_| ())
    };
    let refused = Err((CommandStatus::InvalidArgument, Cause::MulticastLid));
    for lid in [0, 5, 0xffff] {
        assert_eq!(attach(&mut world, &ends[0], GROUP, lid), refused);
    }
    for (place, lid) in [
        (0, GROUP_LID),
        (1, GROUP_LID),
        (2, GROUP_LID),
        (3, GROUP_LID + 1),
    ] {
        attach(&mut world, &ends[place], GROUP, lid).expect("room");
        ends[place].receive(&mut world, 1, 1000, 50);
        ends[place].receive(&mut world, 2, 1000, 50);
    }
    let lids: Vec<u16> = world.nodes[0].rnic.group_lids().collect();
    assert_eq!(lids, [GROUP_LID]);
    let send = datagram(&ends[0], to_group(), MULTICAST_QPN, QKEY);
    ends[0].send(&mut world, &send);
    world.settle();
    let got: Vec<usize> = ends
        .iter_mut()
        .map(|end| end.recv_cq.drain().len())
        .collect();
    assert_eq!(
        got,
        [1, 1, 1, 0],
        "also who sent it, and whoever has the LID"
    );
}

/// A change by a subnet manager, and the event that reports it.
type Change = (fn(&mut HcaPort), EventType);

#[test]
fn events_tell_what_the_subnet_manager_changed() {
    let mut world = world(1, 10);
    assert_eq!(
        events(&mut world, 0),
        [
            EventType::LidChange,
            EventType::SmChange,
            EventType::PkeyChange,
            EventType::GidChange,
            EventType::PortActive
        ]
    );
    let changes: [Change; 7] = [
        (|port| port.subnet.lid = 100.into(), EventType::LidChange),
        (|port| port.subnet.lmc = 1, EventType::LidChange),
        (|port| port.subnet.sm_lid = 100.into(), EventType::SmChange),
        (|port| port.subnet.sm_service_level = 1, EventType::SmChange),
        (|port| port.pkeys[1] = 0x8003, EventType::PkeyChange),
        (|port| port.guids[3 - 1] = 9, EventType::GidChange),
        (
            |port| port.subnet.gid_prefix = 5.into(),
            EventType::GidChange,
        ),
    ];
    for (change, event) in changes {
        set_port(&mut world, 0, |_| ());
        events(&mut world, 0);
        set_port(&mut world, 0, change);
        assert_eq!(events(&mut world, 0), [event]);
    }
    set_port(&mut world, 0, |_| ());
    events(&mut world, 0);
    set_port(&mut world, 0, |port| port.state = PortState::Initialize);
    assert_eq!(events(&mut world, 0), [EventType::PortError]);
    set_port(&mut world, 0, |port| port.state = PortState::Armed);
    assert_eq!(events(&mut world, 0), []);
    world.nodes[0].rnic.set_hca_port(hca_port_of(0), true);
    assert_eq!(
        events(&mut world, 0),
        [EventType::ClientReregister, EventType::PortActive]
    );
}

#[test]
fn queue_pair_0_works_before_the_port_is_active() {
    let mut world = world(2, 11);
    let mut smis = [0, 1].map(|node| end(&mut world, node, QpType::Smi));
    assert_eq!(smis[0].qp.qpn, SMI_QPN);
    let mut users = [0, 1].map(|node| end(&mut world, node, QpType::UnreliableDatagram));
    for node in 0..2 {
        set_port(&mut world, node, |port| port.state = PortState::Initialize);
    }
    let mad = |end: &DatagramEnd, length| {
        Send::new(1, SendOpcode::Send)
            .element(end.mr.sge(0, length))
            .datagram(to(1, false), SMI_QPN, 0)
    };
    smis[0].mr.arena.put(0, &[7; MAD_LENGTH]);
    smis[1].receive(&mut world, 1, 1000, 296);
    users[1].receive(&mut world, 1, 1000, 296);
    let send = mad(&smis[0], MAD_LENGTH);
    smis[0].send(&mut world, &send);
    let send = datagram(&users[0], to(1, false), users[1].qp.qpn, QKEY);
    users[0].send(&mut world, &send);
    world.settle();
    let got = smis[1].recv_cq.drain();
    assert_eq!((got.len(), got[0].length), (1, 296));
    assert_eq!(smis[1].mr.arena.get(1040, MAD_LENGTH), [7; MAD_LENGTH]);
    assert!(users[1].recv_cq.drain().is_empty());
    // No packets leave a port that is down.
    set_port(&mut world, 0, |port| port.state = PortState::Down);
    smis[1].receive(&mut world, 1, 1000, 296);
    let send = mad(&smis[0], MAD_LENGTH);
    smis[0].send(&mut world, &send);
    world.settle();
    assert!(smis[1].recv_cq.drain().is_empty());
    // A datagram of another length or to another queue pair is not a management packet.
    assert_eq!(smis[0].send_cq.drain().len(), 2, "nobody knows");
    let send = mad(&smis[0], MAD_LENGTH - 1);
    smis[0].send(&mut world, &send);
    world.settle();
    assert_eq!(smis[0].send_cq.drain()[0].status, Status::LocalLength);
    assert_eq!(world.state(0, SMI_QPN), QpState::SendQueueError);
    let send = Send::new(1, SendOpcode::Send)
        .element(smis[1].mr.sge(0, MAD_LENGTH))
        .datagram(to(0, false), GSI_QPN, 0);
    smis[1].send(&mut world, &send);
    world.settle();
    let done = smis[1].send_cq.drain();
    assert_eq!(done[0].status, Status::LocalQueuePairOperation);
}

#[test]
fn there_is_one_queue_pair_0_and_none_on_ethernet() {
    let mut world = world(1, 12);
    end(&mut world, 0, QpType::Smi);
    let node = &mut world.nodes[0];
    let cq = node.guest.cq(&mut node.rnic, 64, 0);
    let options = QpOptions {
        qp_type: QpType::Smi,
        entries: 16,
        ..QpOptions::default()
    };
    let again = node.guest.try_qp(&mut node.rnic, &options, cq.cqn, cq.cqn);
    assert_eq!(again.err(), Some((CommandStatus::Busy, Cause::GsiExists)));
    let mut world = World::pair(1);
    let node = &mut world.nodes[0];
    let cq = node.guest.cq(&mut node.rnic, 64, 0);
    let none = node.guest.try_qp(&mut node.rnic, &options, cq.cqn, cq.cqn);
    assert_eq!(
        none.err(),
        Some((CommandStatus::Unsupported, Cause::QpTypeAbsent))
    );
}

#[test]
fn commands_tell_what_the_port_is() {
    let mut world = world(1, 13);
    let node = &mut world.nodes[0];
    let expected = hca_port_of(0);
    macro_rules! ask {
        ($request:expr) => {
            node.guest.command(&mut node.rnic, $request)
        };
    }
    let port = 1.into();
    let reply = ask!(QuerySubnetPort {
        port,
        ..Default::default()
    })
    .expect("a port");
    assert_eq!(reply, expected.subnet);
    let reply = ask!(QueryPort {
        port,
        ..Default::default()
    })
    .expect("a port");
    assert_eq!(reply.pkey_table_length.get(), 4);
    assert_eq!(reply.gid_table_length.get(), 8);
    assert_eq!(
        (reply.state, reply.active_speed.get()),
        (PortState::Active.raw(), 32)
    );
    let reply = ask!(QueryPkeys {
        port,
        first: 1.into()
    })
    .expect("keys");
    let keys: Vec<u16> = reply.pkeys.iter().map(|key| key.get()).collect();
    assert_eq!((keys.len(), &keys[..4]), (32, &[0x8001, 2, 0, 0][..]));
    let reply = ask!(QueryGids {
        port,
        first: 1.into()
    })
    .expect("GIDs");
    assert_eq!(reply.gids[..16], [0; 16]);
    assert_eq!(
        Some(reply.gids[16..32].try_into().unwrap()),
        expected.gid(2)
    );
    let invalid = |cause| Some((CommandStatus::InvalidArgument, cause));
    let error = ask!(QueryPkeys {
        port,
        first: 4.into()
    })
    .err();
    assert_eq!(error, invalid(Cause::PkeyIndex));
    let error = ask!(QueryGids {
        port,
        first: 8.into()
    })
    .err();
    assert_eq!(error, invalid(Cause::GidIndex));
    let error = ask!(QueryGids {
        port: 2.into(),
        first: 0.into()
    })
    .err();
    assert_eq!(error, Some((CommandStatus::NotFound, Cause::UnknownPort)));
    // The driver may not change what the subnet manager controls.
    let unsupported = Some((CommandStatus::Unsupported, Cause::CommandCode));
    assert_eq!(ask!(SetGid::default()).err(), unsupported);
    assert_eq!(ask!(ClearGid::default()).err(), unsupported);
    let mtu = Mtu::Mtu256.raw();
    assert_eq!(
        ask!(SetMtu {
            port,
            mtu,
            ..Default::default()
        })
        .err(),
        unsupported
    );
    let state = PortState::Down.raw();
    assert_eq!(
        ask!(SetPortState {
            port,
            state,
            ..Default::default()
        })
        .err(),
        unsupported
    );

    let mut world = World::pair(1);
    let node = &mut world.nodes[0];
    let error = node.guest.command(
        &mut node.rnic,
        QueryGids {
            port,
            ..Default::default()
        },
    );
    assert_eq!(error.err(), unsupported, "on Ethernet");
    let modify = ModifyPort {
        port,
        ..Default::default()
    };
    let error = node.guest.command(&mut node.rnic, modify);
    assert_eq!(error.err(), unsupported);
    for state in [PortState::Initialize, PortState::Armed] {
        let state = SetPortState {
            port,
            state: state.raw(),
            ..Default::default()
        };
        let error = node.guest.command(&mut node.rnic, state);
        assert_eq!(error.err(), invalid(Cause::PortState));
    }
}

/// Returns the bytes of a command.
fn bytes_of<C: Command>(request: &C) -> Vec<u8> {
    let header = CommandHeader {
        code: C::CODE.raw().into(),
        reserved: 0.into(),
        length: (size_of::<C>() as u32).into(),
    };
    [header.as_bytes(), request.as_bytes()].concat()
}

/// Executes a command with an agent that gives `answer`. Returns the request to the agent, and the status and the body
/// of the reply.
fn with_agent(
    world: &mut World,
    request: &[u8],
    answer: PortAnswer,
) -> (Option<PortRequest>, CommandStatus, Vec<u8>) {
    let node = &mut world.nodes[0];
    let mut outbox = Outbox::new();
    let mut asked = None;
    loop {
        let mut io = Io {
            memory: &node.guest.view,
            now: Instant::from_nanos(5),
            outbox: &mut outbox,
        };
        let mut reply = Vec::new();
        let done = node.rnic.execute(request, &mut reply, &mut io);
        if done {
            let (header, body) = ReplyHeader::read_from_prefix(&reply).expect("a reply");
            let status = CommandStatus::try_from(header.status.get()).expect("a status");
            return (asked, status, body.to_vec());
        }
        assert!(reply.is_empty() && asked.is_none());
        asked = node.rnic.next_port_request();
        assert!(asked.is_some() && node.rnic.next_port_request().is_none());
        node.rnic.answer_port_request(answer.clone());
    }
}

#[test]
fn an_agent_processes_management_datagrams() {
    let mut world = world(1, 14);
    let command = ProcessMad {
        port: 1.into(),
        flags: 1.into(),
        slid: 77.into(),
        service_level: 5,
        reserved: [0; 5],
        mad: [3; MAD_LENGTH],
    };
    let answers = [
        (
            PortAnswer::Answered(vec![9; MAD_LENGTH]),
            MadResult::Answered,
            [9; MAD_LENGTH],
        ),
        (PortAnswer::Done, MadResult::Consumed, [0; MAD_LENGTH]),
        (PortAnswer::Passed, MadResult::Passed, [0; MAD_LENGTH]),
    ];
    for (answer, result, mad) in answers {
        let (asked, status, body) = with_agent(&mut world, &bytes_of(&command), answer);
        let expected = PortRequest::Mad {
            slid: 77,
            service_level: 5,
            mad: vec![3; MAD_LENGTH],
        };
        assert_eq!((asked, status), (Some(expected), CommandStatus::Ok));
        let reply = MadProcessed::read_from_bytes(&body).expect("a reply");
        assert_eq!((reply.result.get(), reply.mad), (result.raw(), mad));
    }
    // The agent is not asked about invalid commands.
    let bad = [
        (
            ProcessMad {
                port: 2.into(),
                ..command
            },
            CommandStatus::NotFound,
        ),
        (
            ProcessMad {
                flags: 2.into(),
                ..command
            },
            CommandStatus::InvalidArgument,
        ),
        (
            ProcessMad {
                reserved: [1; 5],
                ..command
            },
            CommandStatus::Malformed,
        ),
    ];
    for (command, expected) in bad {
        let (asked, status, _) = with_agent(&mut world, &bytes_of(&command), PortAnswer::Passed);
        assert_eq!((asked, status), (None, expected));
    }
    let short = &bytes_of(&command)[..200];
    let (asked, status, _) = with_agent(&mut world, short, PortAnswer::Passed);
    assert_eq!((asked, status), (None, CommandStatus::Malformed));
}

#[test]
fn an_agent_modifies_the_port() {
    let mut world = world(1, 15);
    let command = ModifyPort {
        port: 1.into(),
        flags: 1.into(),
        set_capabilities: 2.into(),
        clear_capabilities: (1 << 20).into(),
    };
    let (asked, status, _) = with_agent(&mut world, &bytes_of(&command), PortAnswer::Done);
    let expected = PortRequest::Modify {
        set: 2,
        clear: 1 << 20,
        reset_bad_qkeys: true,
    };
    assert_eq!((asked, status), (Some(expected), CommandStatus::Ok));
    let bad = [
        ModifyPort {
            flags: 2.into(),
            ..command
        },
        ModifyPort {
            set_capabilities: 1.into(),
            ..command
        },
        ModifyPort {
            set_capabilities: (1 << 20).into(),
            ..command
        },
    ];
    for command in bad {
        let (asked, status, _) = with_agent(&mut world, &bytes_of(&command), PortAnswer::Done);
        assert_eq!((asked, status), (None, CommandStatus::InvalidArgument));
    }
}

#[test]
fn recordings_of_devices_on_a_subnet_replay() {
    let mut world = World::recorded(&[config(), config()], 1024, 16);
    let mut c = connect(&mut world, QpType::ReliableConnection, true, Mtu::Mtu1024);
    let mut a = end(&mut world, 0, QpType::UnreliableDatagram);
    let wrong = datagram(&a, to(1, true), c.qps[1].qpn, QKEY);
    a.send(&mut world, &wrong);
    let write = Send::new(2, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 3000));
    c.send(&mut world, 0, &write);
    set_port(&mut world, 1, |port| port.pkeys[0] = 0x8007);
    world.run(std::time::Duration::from_micros(50));
    assert!(world.nodes[1].rnic.next_violation().is_some());
    world.nodes[1].rnic.set_hca_port(hca_port_of(1), true);
    let command = ModifyPort {
        port: 1.into(),
        ..ModifyPort::default()
    };
    with_agent(&mut world, &bytes_of(&command), PortAnswer::Done);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    // At its end, the world checks that the recordings replay to the same state.
}

#[test]
fn a_packet_with_a_wrong_lid_is_lost_and_comes_again() {
    for global in [false, true] {
        for (side, field) in [
            (0, "field=source-lid"),
            (0, "field=destination-lid"),
            (1, "field=source-lid dir=in"),
            (1, "field=destination-lid dir=in value=0xbeef"),
            (0, "field=source-gid"),
            (1, "field=destination-gid dir=in"),
        ] {
            let mut world = world(2, 5);
            let mut c = connect(&mut world, QpType::ReliableConnection, global, Mtu::Mtu1024);
            let fault = format!("wrong-field qp={} {field}", c.qps[side].qpn);
            let now = world.now;
            let mut faults = world.nodes[side].rnic.faults_mut();
            faults
                .arm(fault.parse().expect("a fault"), now)
                .expect("room");
            let (remote, key) = (c.mrs[1].iova + TARGETS as u64, c.mrs[1].key);
            let write = Send::new(1, SendOpcode::Write)
                .rdma(remote, key)
                .element(c.mrs[0].sge(0, 5000));
            c.send(&mut world, 0, &write);
            world.settle();
            let done = c.send_cqs[0].drain();
            assert_eq!(
                (done.len(), done[0].status),
                (1, Status::Success),
                "{fault}"
            );
            assert_eq!(
                c.mrs[1].arena.get(TARGETS, 5000),
                c.mrs[0].arena.get(0, 5000)
            );
            // A packet without a global route header has no GIDs.
            let fired = global || !field.contains("gid");
            let rnic = &world.nodes[side].rnic;
            assert_eq!(rnic.faults().fired(), u64::from(fired), "{fault}");
            let again = world.nodes[0].rnic.counters()[Counter::Retransmits as usize];
            assert_eq!(again > 0, fired, "{fault}");
        }
    }
}
