// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What matters on fabrics with packets: flow control, windows, congestion.

use std::time::Duration;
use vrnic_engine::{
    Cause, RnicConfig, Segment, Segmentation,
    segment::{Body, ECN_CAPABLE, ECN_MASK},
    testing::{Connection, Faults, QpOptions, Send, World},
};
use vrnic_wire::{
    command::ModifyQp,
    completion::Status,
    counter::Counter,
    port::Mtu,
    qp::{QpAttributes, QpState, attribute},
    work::SendOpcode,
};

const MR: usize = 8 << 20;

fn world() -> World {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    World::new(2, 8192, &config, 5)
}

fn connected(world: &mut World) -> Connection {
    world.connect([0, 1], &QpOptions::default(), MR, |_, _| {})
}

fn counter(world: &World, node: usize, counter: Counter) -> u64 {
    world.nodes[node].rnic.counters()[counter as usize]
}

fn write(c: &Connection, wr_id: u64, length: usize) -> Send {
    Send::new(wr_id, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, length))
}

fn fill(c: &Connection, length: usize) -> Vec<u8> {
    let data: Vec<u8> = (0..length).map(|at| (at * 7 + at / 256) as u8).collect();
    c.mrs[0].arena.put(0, &data);
    data
}

#[test]
fn no_more_than_a_window_is_on_its_way() {
    let mut world = world();
    let mut c = connected(&mut world);
    world.filter = Some(|segment| !segment.body.is_response());
    let write = write(&c, 1, 4 << 20);
    c.send(&mut world, 0, &write);
    // Shorter than the time after which missing answers are noticed.
    world.run(Duration::from_micros(200));
    assert_eq!(counter(&world, 1, Counter::ReceivePackets), 256);
    world.filter = None;
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
}

/// A requester that knows of no receive sends one packet and waits, instead of sending everything.
#[test]
fn credits_spare_rnr_naks() {
    let mut world = world();
    let mut c = connected(&mut world);
    c.receive(&mut world, 1, 0, &[c.mrs[1].sge(0, 100_000)]);
    let send = |wr_id| Send::new(wr_id, SendOpcode::Send).element(c.mrs[0].sge(0, 50_000));
    let sends: Vec<Send> = (0..8).map(send).collect();
    c.send(&mut world, 0, &sends[0]);
    world.run(Duration::from_micros(200));
    let before = counter(&world, 1, Counter::ReceivePackets);
    for send in &sends[1..] {
        c.send(&mut world, 0, send);
    }
    world.run(Duration::from_micros(5));
    assert_eq!(counter(&world, 1, Counter::RnrNaksSent), 1);
    assert_eq!(counter(&world, 1, Counter::ReceivePackets), before + 1);
    for wr_id in 1..8 {
        c.receive(&mut world, 1, wr_id, &[c.mrs[1].sge(0, 100_000)]);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 8);
    assert!(done.iter().all(|done| done.status == Status::Success));
    assert_eq!(c.recv_cqs[1].drain().len(), 8);
}

/// Returns the time that a message takes, and the data that arrived.
fn transfer(mark: u32, read: bool) -> (Duration, World, Connection) {
    let length = 4 << 20;
    let mut world = world();
    let mut c = connected(&mut world);
    let data = fill(&c, length);
    world.faults = Faults {
        mark,
        ..Faults::default()
    };
    let start = world.now;
    let mut to = 1;
    let request = if read {
        c.mrs[1].arena.put(0, &data);
        c.mrs[0].arena.put(0, &vec![0; length]);
        to = 0;
        Send::new(1, SendOpcode::Read)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, length))
    } else {
        write(&c, 1, length)
    };
    c.send(&mut world, 0, &request);
    let mut done = None;
    while done.is_none() {
        world.run(Duration::from_micros(50));
        done = c.send_cqs[0].poll();
        if world.now - start > Duration::from_secs(10) {
            break;
        }
        world.now = world.now + Duration::from_micros(1);
    }
    assert_eq!(done.expect("completion").status, Status::Success);
    assert!(c.mrs[to].arena.get(0, length) == data);
    (world.now - start, world, c)
}

#[test]
fn marks_slow_the_sender_down() {
    for read in [false, true] {
        let (fast, world, _) = transfer(0, read);
        assert_eq!(counter(&world, 0, Counter::NotificationsSent), 0);
        assert_eq!(counter(&world, 1, Counter::NotificationsSent), 0);
        let (slow, world, _) = transfer(1024, read);
        // The receiver of the data notifies the sender.
        let (from, to) = if read { (1, 0) } else { (0, 1) };
        assert!(counter(&world, to, Counter::MarkedPackets) > 1000);
        let sent = counter(&world, to, Counter::NotificationsSent);
        assert!(sent > 2, "{sent}");
        assert!(
            u128::from(sent) <= slow.as_micros() / 50 + 1,
            "at most one in 50 us"
        );
        assert!(counter(&world, from, Counter::NotificationsHandled) > 2);
        assert!(slow > 4 * fast, "{slow:?} against {fast:?}");
    }
}

#[test]
fn only_connections_take_part_in_congestion_control() {
    fn capable(segment: &Segment<'_>) -> bool {
        let ecn = segment.path.traffic_class & ECN_MASK;
        assert_eq!(
            ecn,
            match segment.body {
                Body::Datagram { .. } => 0,
                _ => ECN_CAPABLE,
            }
        );
        true
    }
    let mut world = world();
    let mut c = connected(&mut world);
    world.filter = Some(capable);
    let write = write(&c, 1, 5000);
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    assert!(world.delivered > 0);
}

#[test]
fn the_active_mtu_bounds_paths_and_datagrams() {
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        max_mtu: Mtu::Mtu1024,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 8192, &config, 6);
    // The path MTU is 1024 bytes.
    let mut c = connected(&mut world);
    let write = write(&c, 1, 5000);
    c.send(&mut world, 0, &write);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::Success);
    let mut attributes = World::attributes(1, 5);
    attributes.path_mtu = Mtu::Mtu2048.raw();
    attributes.mask = (attribute::STATE
        | attribute::ADDRESS_VECTOR
        | attribute::PATH_MTU
        | attribute::DEST_QPN
        | attribute::RQ_PSN
        | attribute::MAX_DEST_RD_ATOMIC
        | attribute::MIN_RNR_TIMER)
        .into();
    attributes.state = QpState::ReadyToReceive.raw();
    let node = &mut world.nodes[0];
    let cq = node.guest.cq(&mut node.rnic, 16, 0);
    let qp = node
        .guest
        .try_qp(&mut node.rnic, &QpOptions::default(), cq.cqn, cq.cqn)
        .expect("qp");
    world.modify(
        0,
        qp.qpn,
        QpAttributes {
            state: QpState::Init.raw(),
            mask: (attribute::STATE
                | attribute::PKEY_INDEX
                | attribute::PORT
                | attribute::ACCESS_FLAGS)
                .into(),
            port: 1,
            ..QpAttributes::default()
        },
    );
    let node = &mut world.nodes[0];
    let mut try_path = |path_mtu: Mtu| {
        attributes.path_mtu = path_mtu.raw();
        let request = ModifyQp {
            qpn: qp.qpn.into(),
            reserved: 0.into(),
            attributes,
        };
        node.guest
            .command(&mut node.rnic, request)
            .map(|_| ())
            .map_err(|(_, cause)| cause)
    };
    assert_eq!(try_path(Mtu::Mtu2048), Err(Cause::AttributeValue));
    assert_eq!(try_path(Mtu::Mtu1024), Ok(()));
}

#[test]
fn one_acknowledgement_stands_for_many_requests() {
    let mut world = world();
    let mut c = connected(&mut world);
    for wr_id in 0..16 {
        let write = write(&c, wr_id, 100);
        c.send(&mut world, 0, &write);
    }
    world.settle();
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 16);
    assert!(done.iter().all(|one| one.status == Status::Success));
    let acknowledgements = counter(&world, 0, Counter::ReceivePackets);
    assert!((1..=4).contains(&acknowledgements), "{acknowledgements}");
}

/// Runs reads and atomics of side 0, which may have `asked` outstanding while side 1 has room for `granted`.
fn fetch(asked: u8, granted: u8) -> (World, Vec<Status>) {
    let mut world = world();
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |side, attributes| {
        if side == 0 {
            attributes.max_rd_atomic = asked;
        } else {
            attributes.max_dest_rd_atomic = granted;
        }
    });
    for wr_id in 0..12 {
        let kind = if wr_id % 3 == 2 {
            Send::new(wr_id, SendOpcode::FetchAdd)
                .atomic(c.mrs[1].iova, c.mrs[1].key, 1, 0)
                .element(c.mrs[0].sge(0, 8))
        } else {
            Send::new(wr_id, SendOpcode::Read)
                .rdma(c.mrs[1].iova, c.mrs[1].key)
                .element(c.mrs[0].sge(4096, 100_000))
        };
        c.send(&mut world, 0, &kind);
    }
    world.settle();
    let statuses = c.send_cqs[0].drain().iter().map(|one| one.status).collect();
    (world, statuses)
}

#[test]
fn no_more_reads_and_atomics_are_outstanding_than_agreed() {
    for depth in [1, 2, 4] {
        let (_, statuses) = fetch(depth, depth);
        assert_eq!(statuses, [Status::Success; 12], "{depth}");
    }
    // A peer with more outstanding requests than there is room for breaks the agreement.
    let (mut world, statuses) = fetch(4, 1);
    assert!(
        statuses.contains(&Status::RemoteInvalidRequest),
        "{statuses:?}"
    );
    assert_eq!(statuses.len(), 12);
    let rnic = &mut world.nodes[1].rnic;
    let mut told = std::iter::from_fn(|| rnic.next_explanation());
    assert!(told.any(|one| one.cause == Some(Cause::TooManyReads)));
}
