// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Plays a VMM and a driver against the complete daemon: sockets, worker, engine.

#![allow(
    clippy::cast_possible_truncation,
    clippy::large_stack_arrays,
    reason = "test values are small, test stacks large"
)]

mod common;

use common::daemon::{Daemon, Driver, EVENT, QUERY_DEVICE, REQUEST};
use common::*;
use rustix::process::Signal;
use vrnic_wire::command::{DeviceLimits, Status};
use vrnic_wire::event::{AsyncEvent, EventType};
use vrnicd::vfio_user::message::{RegionAccess, command};
use zerocopy::{FromBytes, IntoBytes};

#[test]
fn commands_are_answered() {
    let daemon = Daemon::start();
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    assert_eq!(
        driver.execute(0xffff, &[], 512).0,
        Status::Unsupported.raw()
    );
    assert_eq!(
        driver.execute(QUERY_DEVICE, &[0; 4], 512).0,
        Status::Malformed.raw()
    );
    assert_eq!(
        driver.execute(QUERY_DEVICE, &[], 100).0,
        Status::Malformed.raw(),
        "no room for the reply"
    );
    driver.works();
}

#[test]
fn a_driver_that_knows_fewer_limits_gets_those() {
    let daemon = Daemon::start();
    let mut driver = Driver::start(daemon.connect("a"));
    let (_, all) = driver.execute(QUERY_DEVICE, &[], 512);
    assert_eq!(all.len(), size_of::<DeviceLimits>());
    for known in [112, 116, all.len()] {
        let (status, limits) = driver.execute(QUERY_DEVICE, &[], 16 + known as u32);
        assert_eq!(status, Status::Ok.raw());
        assert_eq!(limits, all[..known]);
    }
    let (status, _) = driver.execute(QUERY_DEVICE, &[], 16 + 111);
    assert_eq!(status, Status::Malformed.raw());
}

#[test]
fn a_vm_follows_another_on_the_same_socket() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        Driver::start(daemon.connect("a")).works();
    }
}

#[test]
fn a_vm_that_shares_no_memory_is_told() {
    let daemon = Daemon::start();
    Driver::start(daemon.connect("a")).works();
    assert!(!daemon.log().contains("memory-backend-memfd"));
    let mut client = daemon.connect("b");
    assert!(client.accept_features(F_VERSION_1 | F_ACCESS_PLATFORM));
    client.set_status(ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK);
    daemon.log_with("memory-backend-memfd");
}

#[test]
fn a_panic_in_the_engine_fails_one_device_until_its_reset() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    a.works();
    b.works();
    daemon.signal(Signal::USR1);
    a.wait_needs_reset();
    a.events.wait_used(&a.ram);
    let event = AsyncEvent::read_from_bytes(&a.ram.bytes(EVENT, 16)).unwrap();
    assert_eq!(event.event_type.get(), EventType::DeviceFatal.raw());
    assert_eq!(
        a.execute(QUERY_DEVICE, &[], 512).0,
        Status::DeviceFailed.raw()
    );
    b.works();
    a.bring_up();
    a.works();
    assert_eq!(a.client.status() & NEEDS_RESET, 0);
    daemon.log_with("panic");
}

#[test]
fn a_broken_queue_fails_its_device_until_its_reset() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    // Attacks on the control queue by a hostile driver.
    let attacks: [fn(&mut Driver); 6] = [
        |driver| {
            driver
                .ram
                .view
                .write(driver.control.avail() + 2, &5000u16.to_le_bytes())
                .unwrap();
        },
        |driver| {
            driver
                .control
                .put_descriptor(&driver.ram, 0, REQUEST, 8, 1, 0);
            driver.control.offer(&driver.ram, 0);
        },
        |driver| {
            driver
                .control
                .put_descriptor(&driver.ram, 0, 1 << 40, 8, 0, 0);
            driver.control.offer(&driver.ram, 0);
        },
        |driver| {
            driver
                .control
                .put_descriptor(&driver.ram, 0, REQUEST, 8, 1, 1);
            driver
                .control
                .put_descriptor(&driver.ram, 1, u64::MAX - 3, 512, 2, 0);
            driver.control.offer(&driver.ram, 0);
        },
        |driver| {
            driver
                .control
                .put_descriptor(&driver.ram, 0, REQUEST, u32::MAX, 0, 0);
            driver.control.offer(&driver.ram, 0);
        },
        |driver| driver.control.offer(&driver.ram, 64),
    ];
    for attack in attacks {
        a.works();
        attack(&mut a);
        a.client.notify(0);
        a.wait_needs_reset();
        b.works();
        a.bring_up();
    }
    a.works();
    // Rings outside guest memory.
    a.client.reset();
    assert!(a.client.accept_features(F_VERSION_1 | F_ACCESS_PLATFORM));
    a.client.write(BAR0, 0x10, &0u16.to_le_bytes()).unwrap();
    a.client.enable_queue(0, &Queue::new(1 << 40, 64));
    a.client
        .set_status(ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK);
    a.wait_needs_reset();
    a.bring_up();
    a.works();
    // No recording is written of what a guest can do as often as it likes.
    assert!(!daemon.directory.path().join("a-crash.vrnic").exists());
}

#[test]
fn a_flood_of_doorbells_delays_nobody() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    for ring in 0..50_000u32 {
        a.client
            .post(BAR4, u64::from(ring % 4096) * 4096, &ring.to_le_bytes());
    }
    b.works();
    a.works();
}

#[test]
fn sigterm_ends_it_cleanly_and_the_vmm_goes_on() {
    let mut daemon = Daemon::start();
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    daemon.signal(Signal::TERM);
    assert!(daemon.process.wait().unwrap().success(), "{}", daemon.log());
    assert!(!daemon.directory.path().join("a.sock").exists());
    assert!(!daemon.directory.path().join("b.sock").exists());
    driver.is_dead();
}

#[test]
fn kill_under_load_leaves_a_dead_device() {
    let mut daemon = Daemon::start();
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    daemon.freeze();
    // As many as certainly fit the socket's buffer.
    for _ in 0..100 {
        driver.client.post(BAR4, 0, &[0; 4]);
    }
    // A virtual CPU waits for this reply.
    let access = RegionAccess {
        offset: 0x14,
        region: BAR0,
        count: 1,
    };
    driver
        .client
        .send(command::REGION_READ, access.as_bytes(), &[], false)
        .unwrap();
    daemon.process.kill().unwrap();
    daemon.process.wait().unwrap();
    // Without the holder this would be ECONNRESET, on which QEMU aborts.
    assert_eq!(driver.client.reply().unwrap()[16..], [NEEDS_RESET]);
    wait_signal(&driver.vectors[0]);
    for _ in 0..10_000 {
        driver.client.post(BAR4, 0, &[0; 4]);
    }
    driver.is_dead();
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
