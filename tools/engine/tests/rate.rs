// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate limits: a device or queue pair with a limit is slowed down, and no other is.

use std::{cell::Cell, num::NonZeroU64, time::Duration};
use vrnic_engine::{
    Cause, Features, LinkLayer, RateLimit, RnicConfig, Segmentation,
    segment::Body,
    testing::{Connection, DatagramEnd, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    command::{ModifyQp, QueryDevice, Status as CommandStatus},
    completion::Status,
    counter::Counter,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, LidAddress, SendOpcode},
};

const LENGTH: usize = 64 * 1024;
const MEGABYTE: u64 = 1_000_000;

/// Creates two devices with this number of connections from the first to the second.
fn connected(segmentation: Segmentation, connections: usize) -> (World, Vec<Connection>) {
    let config = RnicConfig {
        segmentation,
        ..Default::default()
    };
    let mut world = World::new(2, 4096, &config, 1);
    let connect = |_| world.connect([0, 1], &QpOptions::default(), LENGTH, |_, _| {});
    let all = (0..connections).map(connect).collect();
    (world, all)
}

fn limit(world: &mut World, node: usize, bytes: u64, requests: u64) {
    world.nodes[node].rnic.set_rate_limit(RateLimit {
        bytes: NonZeroU64::new(bytes),
        requests: NonZeroU64::new(requests),
    });
}

fn post(world: &mut World, c: &mut Connection, opcode: SendOpcode, length: usize) {
    let peer = &c.mrs[1];
    let send = Send::new(0, opcode)
        .rdma(peer.iova, peer.key)
        .element(c.mrs[0].sge(0, length));
    c.send(world, 0, &send);
}

/// Lets time pass.
fn pass(world: &mut World, time: Duration) {
    let end = world.now + time;
    world.run(time);
    world.now = world.now.max(end);
}

/// Returns how long it takes until a connection has this many more completions, all of them successful.
fn time(world: &mut World, c: &mut Connection, completions: u32) -> Duration {
    let start = world.now;
    while c.send_cqs[0].unread() < completions {
        assert!(
            world.now - start < Duration::from_secs(50),
            "it takes too long"
        );
        pass(world, Duration::from_micros(100));
    }
    let done = c.send_cqs[0].drain();
    assert!(done.iter().all(|one| one.status == Status::Success));
    world.now - start
}

/// Checks that the time was `expected`, less what a device may catch up, or a little more.
fn check(took: Duration, expected: Duration) {
    let least = expected.saturating_sub(Duration::from_millis(2));
    let most = expected + expected / 20 + Duration::from_millis(1);
    assert!((least..=most).contains(&took), "{took:?}, not {expected:?}");
}

#[test]
fn a_limit_of_bytes_holds_for_what_the_device_sends() {
    for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
        let (mut world, mut all) = connected(segmentation, 1);
        let c = &mut all[0];
        limit(&mut world, 0, 10 * MEGABYTE, 0);
        // The pause after the last packet, which is a whole message on the local fabric, need not be waited for.
        for _ in 0..11 {
            post(&mut world, c, SendOpcode::Write, LENGTH);
        }
        let paced = if segmentation == Segmentation::Local {
            10
        } else {
            11
        };
        let expected = Duration::from_nanos(paced * LENGTH as u64 * 100);
        check(time(&mut world, c, 11), expected);
        // The peer sends the data that it reads.
        pass(&mut world, Duration::from_millis(20));
        for _ in 0..11 {
            post(&mut world, c, SendOpcode::Read, LENGTH);
        }
        assert!(time(&mut world, c, 11) < Duration::from_millis(5));
        limit(&mut world, 0, 0, 0);
        limit(&mut world, 1, 10 * MEGABYTE, 0);
        for _ in 0..11 {
            post(&mut world, c, SendOpcode::Read, LENGTH);
        }
        check(time(&mut world, c, 11), expected);
    }
}

#[test]
fn a_limit_of_requests_holds_for_those_that_the_device_begins() {
    let (mut world, mut all) = connected(Segmentation::Local, 1);
    let c = &mut all[0];
    limit(&mut world, 0, 0, 1000);
    for _ in 0..51 {
        post(&mut world, c, SendOpcode::Write, 8);
    }
    check(time(&mut world, c, 51), Duration::from_millis(50));
    // Its peer has no limit.
    limit(&mut world, 0, 0, 0);
    limit(&mut world, 1, 0, 1);
    for _ in 0..51 {
        post(&mut world, c, SendOpcode::Read, 8);
    }
    assert!(time(&mut world, c, 51) < Duration::from_millis(5));
}

#[test]
fn a_device_that_is_held_back_acknowledges_all_the_same() {
    let (mut world, mut all) = connected(Segmentation::PathMtu, 2);
    let [a, b] = &mut all[..] else { unreachable!() };
    limit(&mut world, 1, 1000, 1);
    // The second device has to send for a minute.
    let peer = &b.mrs[0];
    let write = Send::new(0, SendOpcode::Write)
        .rdma(peer.iova, peer.key)
        .element(b.mrs[1].sge(0, LENGTH));
    b.send(&mut world, 1, &write);
    pass(&mut world, Duration::from_millis(10));
    for _ in 0..20 {
        post(&mut world, a, SendOpcode::Write, LENGTH);
    }
    assert!(time(&mut world, a, 20) < Duration::from_millis(20));
    assert_eq!(b.send_cqs[1].unread(), 0);
    // It does not mistake the time between its packets for silence of its peer.
    pass(&mut world, Duration::from_secs(70));
    let done = b.send_cqs[1].drain();
    assert!(
        matches!(&done[..], [one] if one.status == Status::Success),
        "{done:?}"
    );
    let counters = world.nodes[1].rnic.counters();
    assert_eq!(counters[Counter::Timeouts as usize], 0);
}

#[test]
fn queue_pairs_share_what_a_device_may_send() {
    const EACH: u32 = 20;
    let (mut world, mut all) = connected(Segmentation::Local, 4);
    limit(&mut world, 0, 100 * MEGABYTE, 0);
    for c in &mut all {
        for _ in 0..EACH {
            post(&mut world, c, SendOpcode::Write, LENGTH);
        }
    }
    let start = world.now;
    while all.iter().all(|c| c.send_cqs[0].unread() < EACH) {
        pass(&mut world, Duration::from_micros(100));
    }
    for c in &all {
        assert!(
            c.send_cqs[0].unread() + 4 >= EACH,
            "{}",
            c.send_cqs[0].unread()
        );
    }
    let bytes = u64::from(4 * EACH) * LENGTH as u64;
    let expected = Duration::from_nanos(bytes * 10);
    assert!(world.now - start + Duration::from_millis(10) > expected);
    world.settle();
    assert!(all.iter().all(|c| c.send_cqs[0].unread() == EACH));
}

#[test]
fn a_limit_that_is_lifted_holds_nobody_back() {
    let (mut world, mut all) = connected(Segmentation::Local, 1);
    let c = &mut all[0];
    limit(&mut world, 0, 1000, 0);
    for _ in 0..10 {
        post(&mut world, c, SendOpcode::Write, LENGTH);
    }
    pass(&mut world, Duration::from_millis(10));
    assert_eq!(c.send_cqs[0].unread(), 1);
    limit(&mut world, 0, 0, 0);
    assert!(time(&mut world, c, 10) < Duration::from_millis(5));
}

/// Attempts to set the rate limit of a queue pair.
fn try_limit_qp(
    world: &mut World,
    node: usize,
    qpn: u32,
    (rate, max_burst, typical_packet): (u32, u32, u16),
) -> Result<(), (CommandStatus, Cause)> {
    let request = ModifyQp {
        qpn: qpn.into(),
        reserved: 0.into(),
        attributes: QpAttributes {
            mask: attribute::RATE_LIMIT.into(),
            rate_limit: rate.into(),
            max_burst: max_burst.into(),
            typical_packet: typical_packet.into(),
            ..QpAttributes::default()
        },
    };
    let now = world.now;
    let node = &mut world.nodes[node];
    node.guest.now = now;
    node.guest.command(&mut node.rnic, request).map(drop)
}

/// Sets the rate limit of the first queue pair of a connection, in kbit/s, and its longest burst.
fn limit_qp(world: &mut World, c: &Connection, rate: u32, max_burst: u32) {
    let done = try_limit_qp(world, 0, c.qps[0].qpn, (rate, max_burst, 0));
    assert_eq!(done, Ok(()));
}

/// Returns how many bytes the first device has sent.
fn sent(world: &World) -> u64 {
    world.nodes[0].rnic.counters()[Counter::TransmitBytes as usize]
}

const FABRICS: [(Segmentation, u64); 2] = [
    (Segmentation::Local, LENGTH as u64),
    (Segmentation::PathMtu, 1024),
];

/// Bytes that a limit of 10 MB/s allows while a device looks at the time: the steps of the simulation.
const LATE: u64 = 20;

/// At any time, a queue pair has sent what its limit allows, and at most one packet more.
#[test]
fn a_queue_pair_is_as_fast_as_its_limit() {
    for (segmentation, packet) in FABRICS {
        for qp_type in [QpType::ReliableConnection, QpType::UnreliableConnection] {
            let config = RnicConfig {
                segmentation,
                ..Default::default()
            };
            let mut world = World::new(2, 4096, &config, 1);
            let options = QpOptions {
                qp_type,
                ..QpOptions::default()
            };
            let mut c = world.connect([0, 1], &options, LENGTH, |_, _| {});
            // 10 MB/s.
            limit_qp(&mut world, &c, 80_000, 0);
            let start = world.now;
            for _ in 0..50 {
                post(&mut world, &mut c, SendOpcode::Write, LENGTH);
            }
            let total = 50 * LENGTH as u64;
            while sent(&world) < total {
                pass(&mut world, Duration::from_micros(777));
                let allowed = (world.now - start).as_nanos() as u64 / 100;
                let bytes = sent(&world);
                assert!(
                    bytes <= allowed + packet,
                    "{segmentation:?} {qp_type:?}: {bytes} of {allowed}"
                );
                let least = allowed.min(total) - LATE;
                assert!(
                    bytes >= least,
                    "{segmentation:?} {qp_type:?}: {bytes} of {allowed}"
                );
            }
            world.settle();
            let done = c.send_cqs[0].drain();
            assert_eq!(done.len(), 50);
            assert!(done.iter().all(|one| one.status == Status::Success));
            let counters = world.nodes[0].rnic.counters();
            assert_eq!(counters[Counter::Retransmits as usize], 0);
            assert_eq!(counters[Counter::Timeouts as usize], 0);
        }
    }
}

#[test]
fn the_limit_of_a_queue_pair_slows_down_no_other() {
    for (segmentation, packet) in FABRICS {
        let (mut world, mut all) = connected(segmentation, 2);
        let [slow, fast] = &mut all[..] else {
            unreachable!()
        };
        limit_qp(&mut world, slow, 8000, 0);
        for _ in 0..50 {
            post(&mut world, slow, SendOpcode::Write, LENGTH);
            post(&mut world, fast, SendOpcode::Write, LENGTH);
        }
        let start = world.now;
        let took = time(&mut world, fast, 50);
        assert!(took < Duration::from_millis(20), "{took:?}");
        let allowed = (world.now - start).as_micros() as u64 + packet;
        assert!(sent(&world) <= 50 * LENGTH as u64 + allowed);
        // The peer of the slow one has no limit, and its own requests are answered.
        let reads = Send::new(0, SendOpcode::Read)
            .rdma(slow.mrs[0].iova, slow.mrs[0].key)
            .element(slow.mrs[1].sge(0, LENGTH));
        slow.send(&mut world, 1, &reads);
        pass(&mut world, Duration::from_millis(1));
        assert_eq!(slow.send_cqs[1].drain().len(), 1);
    }
}

#[test]
fn a_burst_is_as_long_as_its_owner_permits() {
    for (segmentation, packet) in FABRICS {
        for (max_burst, burst) in [(300_000, 300_000), (4096, 4096), (0, 1000)] {
            let (mut world, mut all) = connected(segmentation, 1);
            let c = &mut all[0];
            // 1 byte per microsecond.
            limit_qp(&mut world, c, 8000, max_burst);
            pass(&mut world, Duration::from_secs(2));
            for _ in 0..10 {
                post(&mut world, c, SendOpcode::Write, LENGTH);
            }
            pass(&mut world, Duration::from_micros(500));
            let bytes = sent(&world);
            assert!(bytes >= burst, "{segmentation:?}: {bytes}");
            assert!(bytes <= burst + packet + 500, "{segmentation:?}: {bytes}");
        }
    }
}

#[test]
fn a_limit_can_change_while_the_queue_pair_sends() {
    for (segmentation, packet) in FABRICS {
        let (mut world, mut all) = connected(segmentation, 1);
        let c = &mut all[0];
        limit_qp(&mut world, c, 8, 0);
        for _ in 0..50 {
            post(&mut world, c, SendOpcode::Write, LENGTH);
        }
        pass(&mut world, Duration::from_millis(100));
        // The pause after the first packet would be longer than a second.
        assert_eq!(sent(&world), packet);
        limit_qp(&mut world, c, 80_000, 0);
        pass(&mut world, Duration::from_millis(100));
        let bytes = sent(&world);
        let expected = packet + 1_000_000;
        assert!(
            (expected - LATE..=expected + packet).contains(&bytes),
            "{bytes}"
        );
        // Without a limit, the rest is sent at once.
        limit_qp(&mut world, c, 0, 0);
        assert!(time(&mut world, c, 50) < Duration::from_millis(5));
    }
}

#[test]
fn datagrams_have_a_limit_as_well() {
    const PAYLOAD: usize = 1000;
    let mut world = World::pair(1);
    let mut ends = [0, 1]
        .map(|node| DatagramEnd::new(&mut world, node, QpType::UnreliableDatagram, 5, 20_000));
    let done = try_limit_qp(&mut world, 0, ends[0].qp.qpn, (80_000, 0, 0));
    assert_eq!(done, Ok(()));
    let address = AddressVector {
        dgid: gid_of(1),
        ..AddressVector::default()
    };
    let target = ends[1].qp.qpn;
    for index in 0..15 {
        let send = Send::new(index, SendOpcode::Send)
            .datagram(address, target, 5)
            .element(ends[0].mr.sge(0, PAYLOAD));
        ends[0].send(&mut world, &send);
    }
    for done in 1..=15 {
        // One every 100 microseconds.
        pass(
            &mut world,
            Duration::from_micros(if done == 1 { 50 } else { 100 }),
        );
        assert_eq!(ends[0].send_cq.drain().len(), 1, "{done}");
        assert_eq!(sent(&world), done * PAYLOAD as u64);
    }
}

thread_local! {
    /// Number of packets with data that are still to be lost.
    static LOSSES: Cell<u32> = const { Cell::new(0) };
}

fn lose(segment: &vrnic_engine::segment::Segment<'_>) -> bool {
    let lost = matches!(segment.body, Body::Write { .. }) && LOSSES.get() > 0;
    LOSSES.set(LOSSES.get() - u32::from(lost));
    !lost
}

/// The pauses of a slow queue pair are longer than all its timeouts together.
#[test]
fn waiting_for_the_limit_costs_no_retries() {
    for (segmentation, _) in FABRICS {
        let (mut world, mut all) = connected(segmentation, 1);
        let c = &mut all[0];
        // 1000 bytes take a second, and a timeout is a millisecond.
        limit_qp(&mut world, c, 8, 0);
        world.filter = Some(lose);
        LOSSES.set(7);
        for _ in 0..3 {
            post(&mut world, c, SendOpcode::Write, 1000);
        }
        pass(&mut world, Duration::from_secs(30));
        let done = c.send_cqs[0].drain();
        assert_eq!(done.len(), 3, "{done:?}");
        assert!(done.iter().all(|one| one.status == Status::Success));
        let counters = world.nodes[0].rnic.counters();
        assert_eq!(counters[Counter::Retransmits as usize], 7);

        // A peer that is gone is noticed all the same.
        LOSSES.set(u32::MAX);
        post(&mut world, c, SendOpcode::Write, 1000);
        pass(&mut world, Duration::from_secs(30));
        let done = c.send_cqs[0].drain();
        assert!(
            matches!(&done[..], [one] if one.status == Status::RetryExceeded),
            "{done:?}"
        );
    }
}

#[test]
fn the_static_rate_of_a_path_is_a_limit() {
    let config = RnicConfig {
        link_layer: LinkLayer::InfiniBand,
        ..RnicConfig::default()
    };
    // 2.5 Gbit/s, 10 Gbit/s, a lower limit of 80 Mbit/s, and the rate of the port, which is no limit here.
    for (rate, limit, expected) in [
        (2, 0, Some(312_500_000)),
        (3, 0, Some(1_250_000_000)),
        (3, 80_000, Some(10_000_000)),
        (16, 0, None),
        (0, 0, None),
    ] {
        let mut world = World::new(2, 4096, &config, 1);
        world.add_second_paths();
        let addresses = [0, 1].map(|side| {
            let mut address = world.address_of(1 - side, false);
            let lid = LidAddress {
                static_rate: rate,
                ..LidAddress::from_bytes(address.dmac)
            };
            address.dmac = lid.to_bytes();
            address
        });
        let mut c = world.connect([0, 1], &QpOptions::default(), LENGTH, |side, attributes| {
            attributes.address = addresses[side];
        });
        if limit != 0 {
            limit_qp(&mut world, &c, limit, 0);
        }
        for _ in 0..50 {
            post(&mut world, &mut c, SendOpcode::Write, LENGTH);
        }
        let start = world.now;
        pass(&mut world, Duration::from_millis(2));
        let bytes = sent(&world);
        match expected {
            Some(rate) => {
                let allowed = (world.now - start).as_micros() as u64 * rate / 1_000_000;
                assert!(bytes <= allowed + 1024, "{bytes} of {allowed}");
                assert!(bytes >= allowed - 1024, "{bytes} of {allowed}");
            }
            None => {
                // The rest follows as soon as the wire takes it.
                assert!(time(&mut world, &mut c, 50) < Duration::from_millis(18));
            }
        }
    }
}

#[test]
fn limits_are_checked_told_and_forgotten() {
    let (mut world, all) = connected(Segmentation::Local, 1);
    let qpn = all[0].qps[0].qpn;
    let refused = Err((CommandStatus::InvalidArgument, Cause::AttributeValue));
    let limits = {
        let node = &mut world.nodes[0];
        node.guest
            .command(&mut node.rnic, QueryDevice {})
            .expect("limits")
    };
    let most = limits.max_rate_limit.get();
    for (wanted, expected) in [
        ((most, 0, 0), Ok(())),
        ((most + 1, 0, 0), refused),
        ((u32::MAX, 0, 0), refused),
        ((1, 0, 0), Ok(())),
        ((0, 8192, 0), refused),
        ((0, 0, 64), refused),
        ((1000, 4095, 0), refused),
        ((1000, 4096, 0), Ok(())),
        ((1000, 63, 64), refused),
        ((1000, 64, 64), Ok(())),
    ] {
        let before = world.paths(0, qpn).attributes;
        assert_eq!(
            try_limit_qp(&mut world, 0, qpn, wanted),
            expected,
            "{wanted:?}"
        );
        let told = world.paths(0, qpn).attributes;
        let told = (
            told.rate_limit.get(),
            told.max_burst.get(),
            told.typical_packet.get(),
        );
        let node = &world.nodes[0];
        let shown = node.rnic.qp(qpn, &node.guest.view).expect("queue pair");
        let rate = shown.rate_limit.unwrap_or(0);
        assert_eq!((rate, shown.max_burst), (told.0, told.1), "{wanted:?}");
        let kept = (
            before.rate_limit.get(),
            before.max_burst.get(),
            before.typical_packet.get(),
        );
        assert_eq!(told, if expected.is_ok() { wanted } else { kept });
    }
    let wanted = QpAttributes {
        mask: attribute::STATE.into(),
        state: QpState::Reset.raw(),
        ..QpAttributes::default()
    };
    world.modify(0, qpn, wanted);
    let told = world.paths(0, qpn).attributes;
    assert_eq!((told.rate_limit.get(), told.max_burst.get()), (0, 0));
}

#[test]
fn without_the_feature_there_are_no_limits() {
    let config = RnicConfig {
        features: Features {
            rate_limits: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 4096, &config, 1);
    let c = world.connect([0, 1], &QpOptions::default(), LENGTH, |_, _| {});
    let qpn = c.qps[0].qpn;
    let forbidden = Err((CommandStatus::InvalidArgument, Cause::AttributeForbidden));
    assert_eq!(try_limit_qp(&mut world, 0, qpn, (0, 0, 0)), forbidden);
    let reserved = Err((CommandStatus::Malformed, Cause::ReservedField));
    assert_eq!(try_limit_qp(&mut world, 0, qpn, (1, 0, 0)), reserved);
    let node = &mut world.nodes[0];
    let limits = node
        .guest
        .command(&mut node.rnic, QueryDevice {})
        .expect("limits");
    assert_eq!(limits.max_rate_limit.get(), 0);
}
