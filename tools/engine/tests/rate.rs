// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Rate limits: a device with a limit is slowed down, and no other is.

use std::{num::NonZeroU64, time::Duration};
use vrnic_engine::{
    RateLimit, RnicConfig, Segmentation,
    testing::{Connection, QpOptions, Send, World},
};
use vrnic_wire::{completion::Status, counter::Counter, work::SendOpcode};

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
