// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The port: its link, and the driver's control of it.

use std::time::Duration;
use vrnic_engine::testing::{Connection, QpOptions, Send, World};
use vrnic_wire::{
    command::{AttachMulticast, QueryPort, SetPortState},
    completion::Status,
    event::EventType,
    port::PortState,
    qp::{MULTICAST_QPN, QpState},
    work::{AddressVector, SendOpcode},
};

fn set(world: &mut World, node: usize, state: PortState) {
    let node = &mut world.nodes[node];
    let request = SetPortState {
        port: 1.into(),
        state: state.raw(),
        ..SetPortState::default()
    };
    node.guest.command(&mut node.rnic, request).expect("set");
}

fn states(world: &mut World, node: usize) -> [PortState; 2] {
    let node = &mut world.nodes[node];
    let request = QueryPort {
        port: 1.into(),
        ..QueryPort::default()
    };
    let found = node.guest.command(&mut node.rnic, request).expect("query");
    [found.state, found.administrative_state].map(|raw| PortState::try_from(raw).expect("state"))
}

fn events(world: &mut World, node: usize) -> Vec<EventType> {
    std::iter::from_fn(|| world.nodes[node].rnic.next_async_event())
        .map(|event| EventType::try_from(event.event_type.get()).expect("event type"))
        .collect()
}

fn write(c: &mut Connection, world: &mut World, side: usize, wr_id: u64) {
    let (address, key) = (c.mrs[1 - side].iova, c.mrs[1 - side].key);
    let send = Send::new(wr_id, SendOpcode::Write)
        .element(c.mrs[side].sge(0, 100))
        .rdma(address, key);
    c.send(world, side, &send);
}

fn connected(world: &mut World, nodes: [usize; 2]) -> Connection {
    world.connect(nodes, &QpOptions::default(), 4096, |_, attributes| {
        // 1.05 ms, three times.
        (attributes.timeout, attributes.retry_count) = (8, 3);
    })
}

#[test]
fn a_port_is_active_if_its_link_is_up_and_the_driver_wants_it() {
    use PortState::{Active, Down};
    let mut world = World::pair(1);
    assert_eq!(states(&mut world, 0), [Active, Active]);
    set(&mut world, 0, Down);
    assert_eq!(states(&mut world, 0), [Down, Down]);
    world.nodes[0].rnic.set_link(false);
    assert_eq!(states(&mut world, 0), [Down, Down]);
    set(&mut world, 0, Active);
    assert_eq!(states(&mut world, 0), [Down, Active]);
    assert_eq!(events(&mut world, 0), [], "the driver knows");
    world.nodes[0].rnic.set_link(true);
    assert_eq!(states(&mut world, 0), [Active, Active]);
    assert_eq!(events(&mut world, 0), [EventType::PortActive]);
}

#[test]
fn the_event_that_waits_is_the_last_one() {
    let mut world = World::pair(2);
    for up in [false, true, false] {
        world.nodes[0].rnic.set_link(up);
    }
    assert_eq!(events(&mut world, 0), [EventType::PortError]);
    for up in [true, false, true] {
        world.nodes[0].rnic.set_link(up);
    }
    assert_eq!(events(&mut world, 0), [EventType::PortActive]);
}

#[test]
fn nothing_passes_a_port_that_is_down_and_retries_run_out_at_both_ends() {
    for node in [0, 1] {
        let mut world = World::pair(3);
        let mut c = connected(&mut world, [0, 1]);
        set(&mut world, node, PortState::Down);
        for side in 0..2 {
            write(&mut c, &mut world, side, 1);
        }
        world.settle();
        for side in 0..2 {
            assert_eq!(c.send_cqs[side].drain()[0].status, Status::RetryExceeded);
            assert_eq!(world.state(side, c.qps[side].qpn), QpState::Error);
        }
    }
}

#[test]
fn what_is_retried_arrives_when_the_port_is_up_again() {
    let mut world = World::pair(4);
    let mut c = connected(&mut world, [0, 1]);
    c.mrs[0].arena.put(0, b"in the end");
    set(&mut world, 0, PortState::Down);
    write(&mut c, &mut world, 0, 1);
    write(&mut c, &mut world, 1, 2);
    // Twice the timeout.
    world.run(Duration::from_micros(2500));
    assert!(c.send_cqs[0].drain().is_empty() && c.send_cqs[1].drain().is_empty());
    assert_eq!(c.mrs[1].arena.get(0, 10), [0; 10]);
    set(&mut world, 0, PortState::Active);
    world.settle();
    for side in 0..2 {
        assert_eq!(c.send_cqs[side].drain()[0].status, Status::Success);
    }
}

#[test]
fn loopback_stops_too() {
    let mut world = World::pair(5);
    let mut c = connected(&mut world, [0, 0]);
    set(&mut world, 0, PortState::Down);
    write(&mut c, &mut world, 0, 1);
    world.settle();
    assert_eq!(c.send_cqs[0].drain()[0].status, Status::RetryExceeded);

    // Datagrams to a group are not looped back either.
    let node = &mut world.nodes[0];
    let (guest, rnic) = (&mut node.guest, &mut node.rnic);
    let cq = guest.cq(rnic, 16, 0);
    let qp_type = vrnic_wire::qp::QpType::UnreliableDatagram;
    let options = QpOptions {
        qp_type,
        ..QpOptions::default()
    };
    let mut qp = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
    let gid = [0xff; 16];
    let attach = AttachMulticast {
        qpn: qp.qpn.into(),
        gid,
        ..AttachMulticast::default()
    };
    guest.command(rnic, attach).expect("attached");
    let attributes = vrnic_wire::qp::QpAttributes {
        port: 1,
        ..Default::default()
    };
    let qpn = qp.qpn;
    world.bring_up(0, qpn, attributes, qp_type);
    let node = &mut world.nodes[0];
    let (guest, rnic) = (&mut node.guest, &mut node.rnic);
    let sge = c.mrs[0].sge(0, 200);
    assert!(guest.post_receive(rnic, &mut qp, 7, &[sge]));
    let to = AddressVector {
        dgid: gid,
        ..AddressVector::default()
    };
    let send = Send::new(1, SendOpcode::Send).datagram(to, MULTICAST_QPN, 0);
    assert!(guest.post_send(rnic, &mut qp, &send));
    world.settle();
    let mut cq = cq;
    let done: Vec<u64> = cq.drain().iter().map(|cqe| cqe.wr_id).collect();
    assert_eq!(done, [1], "a datagram is lost and its sender does not know");
}
