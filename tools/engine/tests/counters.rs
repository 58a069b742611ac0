// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counter sets: separate counts of selected queue pairs.

use vrnic_engine::{
    Cause, Features, Limits, RnicConfig,
    testing::{Connection, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        BindCounterSet, Command, Counters, CreateCounterSet, DestroyCounterSet, DestroyQp,
        QueryCounterSet, QueryCounters, Status,
    },
    counter::Counter,
    work::SendOpcode,
};

fn command<C: Command>(world: &mut World, request: C) -> Result<C::Reply, (Status, Cause)> {
    let node = &mut world.nodes[0];
    node.guest.command(&mut node.rnic, request)
}

fn create(world: &mut World) -> u32 {
    let request = CreateCounterSet {
        port: 1.into(),
        ..CreateCounterSet::default()
    };
    command(world, request).expect("room").counter_set.get()
}

fn bind(world: &mut World, qpn: u32, set: u32) -> Result<(), Status> {
    let request = BindCounterSet {
        qpn: qpn.into(),
        counter_set: set.into(),
    };
    let result = command(world, request);
    result.map(|_| ()).map_err(|(status, _)| status)
}

fn of_set(world: &mut World, set: u32) -> Result<Counters, Status> {
    let request = QueryCounterSet {
        counter_set: set.into(),
        ..QueryCounterSet::default()
    };
    command(world, request).map_err(|(status, _)| status)
}

fn of_port(world: &mut World) -> Counters {
    let request = QueryCounters {
        port: 1.into(),
        ..QueryCounters::default()
    };
    command(world, request).expect("counters")
}

fn destroy(world: &mut World, set: u32) -> Result<(), Status> {
    let request = DestroyCounterSet {
        counter_set: set.into(),
        ..DestroyCounterSet::default()
    };
    let result = command(world, request);
    result.map(|_| ()).map_err(|(status, _)| status)
}

fn value(counters: &Counters, counter: Counter) -> u64 {
    counters.values[counter as usize].get()
}

/// Writes 100 bytes from node 0, and reads 50 bytes of node 0 from the other side.
fn transfer(c: &mut Connection, world: &mut World) {
    for (side, opcode, length) in [(0, SendOpcode::Write, 100), (1, SendOpcode::Read, 50)] {
        let (address, key) = (c.mrs[1 - side].iova, c.mrs[1 - side].key);
        let send = Send::new(1, opcode)
            .element(c.mrs[side].sge(0, length))
            .rdma(address, key);
        c.send(world, side, &send);
    }
    world.settle();
}

#[test]
fn a_queue_pair_counts_in_its_set_and_not_for_the_port() {
    let mut world = World::pair(1);
    let options = QpOptions::default();
    let mut chosen = world.connect([0, 1], &options, 4096, |_, _| {});
    let mut other = world.connect([0, 1], &options, 4096, |_, _| {});
    let set = create(&mut world);
    assert_eq!(bind(&mut world, chosen.qps[0].qpn, set), Ok(()));
    transfer(&mut chosen, &mut world);
    let port = of_port(&mut world);
    let of_it = of_set(&mut world, set).expect("set");
    for (counter, amount) in [
        (Counter::WriteRequests, 1),
        (Counter::TransmitBytes, 150),
        (Counter::Completions, 1),
    ] {
        assert_eq!(value(&of_it, counter), amount, "{counter:?}");
        assert_eq!(value(&port, counter), 0, "{counter:?}");
    }
    assert!(value(&of_it, Counter::ReceivePackets) >= 2);
    assert_eq!(value(&port, Counter::ReceivePackets), 0);
    assert!(value(&port, Counter::Commands) > 0);
    assert_eq!(value(&of_it, Counter::Commands), 0);

    // The other queue pair has no counter set. The device itself counts everything.
    transfer(&mut other, &mut world);
    let sent = Counter::TransmitBytes;
    assert_eq!(value(&of_port(&mut world), sent), 150);
    assert_eq!(value(&of_set(&mut world, set).expect("set"), sent), 150);
    assert_eq!(world.nodes[0].rnic.counters()[sent as usize], 300);

    // Both queue pairs share the set; then the first one leaves it.
    assert_eq!(bind(&mut world, other.qps[0].qpn, set), Ok(()));
    transfer(&mut other, &mut world);
    assert_eq!(bind(&mut world, chosen.qps[0].qpn, 0), Ok(()));
    transfer(&mut chosen, &mut world);
    assert_eq!(value(&of_set(&mut world, set).expect("set"), sent), 300);
    assert_eq!(value(&of_port(&mut world), sent), 300);
}

#[test]
fn a_set_stays_as_long_as_a_queue_pair_has_it() {
    let mut world = World::pair(2);
    let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
    let qpn = c.qps[0].qpn;
    let [set, next] = [create(&mut world), create(&mut world)];
    assert!(set != 0 && next != set);
    bind(&mut world, qpn, set).expect("bound");
    transfer(&mut c, &mut world);
    assert_eq!(destroy(&mut world, set), Err(Status::Busy));
    bind(&mut world, qpn, next).expect("bound");
    assert_eq!(destroy(&mut world, set), Ok(()));
    assert_eq!(destroy(&mut world, set), Err(Status::NotFound));
    assert_eq!(of_set(&mut world, set).err(), Some(Status::NotFound));
    assert_eq!(bind(&mut world, qpn, set), Err(Status::NotFound));
    assert_eq!(bind(&mut world, 0xdead, next), Err(Status::NotFound));
    // Its counts do not come back.
    assert_eq!(value(&of_port(&mut world), Counter::TransmitBytes), 0);
    let request = DestroyQp {
        qpn: qpn.into(),
        ..DestroyQp::default()
    };
    command(&mut world, request).expect("destroyed");
    assert_eq!(destroy(&mut world, next), Ok(()));
    assert_eq!(world.nodes[0].rnic.snapshot().counter_sets, 0);
}

#[test]
fn there_are_as_many_as_the_device_says_and_none_without_the_feature() {
    let mut config = RnicConfig {
        limits: Limits {
            counter_sets: 3,
            ..Limits::default()
        },
        ..RnicConfig::default()
    };
    let good = CreateCounterSet {
        port: 1.into(),
        ..CreateCounterSet::default()
    };
    let mut world = World::new(1, 64, &config, 3);
    let limits = command(&mut world, vrnic_wire::command::QueryDevice {}).expect("limits");
    let sets: Vec<u32> = (0..limits.max_counter_sets.get())
        .map(|_| create(&mut world))
        .collect();
    let refused = |world: &mut World, request| command(world, request).err();
    assert_eq!(
        refused(&mut world, good),
        Some((Status::NoResources, Cause::LimitReached))
    );
    destroy(&mut world, sets[1]).expect("unused");
    create(&mut world);
    let wrong_port = CreateCounterSet {
        port: 2.into(),
        ..good
    };
    assert_eq!(
        refused(&mut world, wrong_port),
        Some((Status::NotFound, Cause::UnknownPort))
    );
    let reserved = CreateCounterSet {
        reserved: 1.into(),
        ..good
    };
    assert_eq!(
        refused(&mut world, reserved),
        Some((Status::Malformed, Cause::ReservedField))
    );

    config.features = Features {
        counter_sets: false,
        ..Features::ALL
    };
    let mut world = World::new(1, 64, &config, 4);
    let limits = command(&mut world, vrnic_wire::command::QueryDevice {}).expect("limits");
    assert_eq!(limits.max_counter_sets.get(), 0);
    assert_eq!(
        refused(&mut world, good),
        Some((Status::Unsupported, Cause::CommandCode))
    );
    assert_eq!(bind(&mut world, 1, 0), Err(Status::Unsupported));
    assert_eq!(of_set(&mut world, 1).err(), Some(Status::Unsupported));
    assert_eq!(destroy(&mut world, 1), Err(Status::Unsupported));
}
