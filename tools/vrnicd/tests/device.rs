// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Plays a VMM and a driver against the whole daemon: sockets, worker, engine.

mod common;

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use tempfile::TempDir;
use vrnic_wire::command::{CommandHeader, DeviceLimits, ReplyHeader, Status};
use vrnic_wire::event::{AsyncEvent, EventType};
use vrnicd::vfio_user::message::{RegionAccess, command};
use zerocopy::{FromBytes, IntoBytes};

const QUERY_DEVICE: u16 = 1;
const F_DOORBELL: u64 = 1;

/// A running daemon with devices `a` and `b`.
struct Daemon {
    process: Child,
    directory: TempDir,
}

impl Daemon {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let config = format!(
            "log = \"debug\"\ntest_panic_on_sigusr1 = [\"a\"]\n\
             [[device]]\nname = \"a\"\nsocket = \"{}\"\nmac = \"52:54:00:00:00:01\"\n\
             [[device]]\nname = \"b\"\nsocket = \"{}\"\nmac = \"52:54:00:00:00:02\"\n",
            path("a.sock"),
            path("b.sock"),
        );
        std::fs::write(path("config"), config).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_vrnicd"))
            .args(["--config", &path("config")])
            .stderr(Stdio::from(std::fs::File::create(path("log")).unwrap()))
            .spawn()
            .unwrap();
        Self { process, directory }
    }

    fn connect(&self, device: &str) -> Client {
        let path = self.directory.path().join(format!("{device}.sock"));
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Client::negotiated(stream),
                Err(error) => assert!(Instant::now() < deadline, "{error}: {}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A driver that is up.
struct Driver {
    client: Client,
    ram: Ram,
    control: Queue,
    events: Queue,
    vectors: Vec<OwnedFd>,
}

const REQUEST: u64 = 0x40000;
const REPLY: u64 = 0x41000;
const EVENT: u64 = 0x42000;

impl Driver {
    fn start(mut client: Client) -> Self {
        let ram = Ram::new(1 << 20);
        client.map(&ram.fd, 0, 0, 1 << 20).unwrap();
        let vectors = client.connect_vectors(7);
        let mut driver = Self {
            client,
            ram,
            control: Queue::new(0, 64),
            events: Queue::new(0, 64),
            vectors,
        };
        driver.bring_up();
        driver
    }

    fn bring_up(&mut self) {
        self.client.reset();
        self.control = Queue::new(0x10000, 64);
        self.events = Queue::new(0x20000, 64);
        self.ram.view.write(0x10000, &[0; 0x20000]).unwrap();
        assert!(
            self.client
                .accept_features(F_VERSION_1 | F_ACCESS_PLATFORM | F_DOORBELL)
        );
        self.client.write(BAR0, 0x10, &0u16.to_le_bytes()).unwrap();
        self.client.enable_queue(0, &self.control);
        self.client.enable_queue(1, &self.events);
        self.client
            .set_status(ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK);
        self.events.put_descriptor(&self.ram, 0, EVENT, 16, 2, 0);
        self.events.offer(&self.ram, 0);
        self.client.notify(1);
    }

    /// Executes a command with room for `room` bytes of reply.
    fn execute(&mut self, code: u16, body: &[u8], room: u32) -> (u32, Vec<u8>) {
        let header = CommandHeader {
            code: code.into(),
            reserved: 0.into(),
            length: (body.len() as u32).into(),
        };
        let mut request = header.as_bytes().to_vec();
        request.extend(body);
        self.ram.view.write(REQUEST, &request).unwrap();
        self.control
            .put_descriptor(&self.ram, 0, REQUEST, request.len() as u32, 1, 1);
        self.control.put_descriptor(&self.ram, 1, REPLY, room, 2, 0);
        self.control.offer(&self.ram, 0);
        self.client.notify(0);
        let written = self.control.wait_used(&self.ram);
        let reply = self.ram.bytes(REPLY, written as usize);
        let (header, body) = ReplyHeader::read_from_prefix(&reply).unwrap();
        (header.status.get(), body.to_vec())
    }

    fn works(&mut self) {
        let (status, body) = self.execute(QUERY_DEVICE, &[], 512);
        assert_eq!(status, Status::Ok.raw());
        let limits = DeviceLimits::read_from_bytes(&body).unwrap();
        assert!(limits.max_qp.get() >= 1000);
        wait_signal(&self.vectors[1]);
    }

    /// The device is gone, and the VMM can go on without it.
    fn is_dead(&mut self) {
        assert_eq!(self.client.status(), 0xff);
        self.client
            .request(command::DEVICE_RESET, &[], &[])
            .unwrap();
        self.client.map(&self.ram.fd, 0, 1 << 30, 1 << 20).unwrap();
        assert_eq!(self.client.read_number(CONFIG, 0, 4), 0xffff_ffff);
    }

    fn wait_needs_reset(&mut self) {
        wait_signal(&self.vectors[0]);
        assert_ne!(self.client.status() & NEEDS_RESET, 0);
    }
}

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
fn a_vm_follows_another_on_the_same_socket() {
    let daemon = Daemon::start();
    for _ in 0..3 {
        Driver::start(daemon.connect("a")).works();
    }
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
    daemon.signal(rustix::process::Signal::USR1);
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
    assert!(daemon.log().contains("panic"));
}

#[test]
fn a_broken_queue_fails_its_device_until_its_reset() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    // What a hostile driver might do to the control queue.
    let attacks: [fn(&mut Driver); 6] = [
        |driver| {
            driver
                .ram
                .view
                .write(driver.control.avail() + 2, &5000u16.to_le_bytes())
                .unwrap()
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
    daemon.signal(rustix::process::Signal::TERM);
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
    // Let it note that the last reply was sent: a client may get that twice if the daemon ends in between.
    std::thread::sleep(Duration::from_millis(100));
    daemon.signal(rustix::process::Signal::STOP);
    // As many as surely fit the socket's buffer.
    for _ in 0..100 {
        driver.client.post(BAR4, 0, &[0; 4]);
    }
    // A virtual CPU is waiting for this reply.
    let access = RegionAccess {
        offset: 0x14,
        region: BAR0,
        count: 1,
    };
    driver
        .client
        .send(command::REGION_READ, access.as_bytes(), &[], false);
    daemon.process.kill().unwrap();
    daemon.process.wait().unwrap();
    // Without the holder this would be ECONNRESET, upon which QEMU aborts.
    assert_eq!(driver.client.reply().unwrap()[16..], [0xff]);
    wait_signal(&driver.vectors[0]);
    for _ in 0..10_000 {
        driver.client.post(BAR4, 0, &[0; 4]);
    }
    driver.is_dead();
}
