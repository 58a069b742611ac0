// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A running daemon, and a driver that talks to one of its devices.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vrnic_wire::command::{CommandHeader, DeviceLimits, ReplyHeader, Status};
use vrnicd::vfio_user::message::command;
use zerocopy::{FromBytes, IntoBytes};

use super::*;

pub const QUERY_DEVICE: u16 = 1;
pub const F_DOORBELL: u64 = 1;

/// A running daemon with devices `a` and `b`.
pub struct Daemon {
    pub process: Child,
    pub directory: TempDir,
}

impl Daemon {
    pub fn start() -> Self {
        Self::configured("")
    }

    /// Starts it with more lines of configuration.
    pub fn configured(lines: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        let config = format!(
            "{}{lines}log = \"debug\"\ncontrol = \"{}\"\ntest_panic_on_sigusr1 = [\"a\"]\n\
             [[device]]\nname = \"a\"\nsocket = \"{}\"\nmac = \"52:54:00:00:00:01\"\n\
             [[device]]\nname = \"b\"\nsocket = \"{}\"\nmac = \"52:54:00:00:00:02\"\n",
            vrnic_native::daemon::workers(),
            path("control"),
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

    pub fn connect(&self, device: &str) -> Client {
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

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops all threads of the daemon, and returns once they have stopped.
    pub fn freeze(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.process.id());
        // The state is the first field after the name, which is in parentheses.
        let stands = |stat: String| {
            stat.rsplit(')')
                .next()
                .is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        while !std::fs::read_dir(&tasks)
            .unwrap()
            .flatten()
            .all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(stands))
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// Returns the log once it has this text. The daemon does not wait until its log is written.
    pub fn log_with(&self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let log = self.log();
            if log.contains(text) {
                return log;
            }
            assert!(Instant::now() < deadline, "no {text:?} in: {log}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A driver that is up.
pub struct Driver {
    pub client: Client,
    pub ram: Ram,
    pub control: Queue,
    pub events: Queue,
    pub vectors: Vec<OwnedFd>,
}

pub const REQUEST: u64 = 0x40000;
pub const REPLY: u64 = 0x41000;
pub const EVENT: u64 = 0x42000;

impl Driver {
    pub fn start(mut client: Client) -> Self {
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

    pub fn bring_up(&mut self) {
        self.client.reset();
        self.control = Queue::new(0x10000, 64);
        self.events = Queue::new(0x20000, 64);
        self.ram.view.write(0x10000, &vec![0; 0x20000]).unwrap();
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

    /// Executes a command with a buffer of `room` bytes for the reply.
    pub fn execute(&mut self, code: u16, body: &[u8], room: u32) -> (u32, Vec<u8>) {
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
        assert_eq!(header.length.get() as usize, body.len());
        (header.status.get(), body.to_vec())
    }

    pub fn works(&mut self) {
        let (status, body) = self.execute(QUERY_DEVICE, &[], 512);
        assert_eq!(status, Status::Ok.raw());
        let limits = DeviceLimits::read_from_bytes(&body).unwrap();
        assert!(limits.max_qp.get() >= 1000);
        wait_signal(&self.vectors[1]);
    }

    /// Checks that the device is gone and that the VMM can continue without it.
    pub fn is_dead(&mut self) {
        assert_eq!(self.client.status(), NEEDS_RESET);
        self.client
            .request(command::DEVICE_RESET, &[], &[])
            .unwrap();
        self.client.map(&self.ram.fd, 0, 1 << 30, 1 << 20).unwrap();
        assert_eq!(self.client.read_number(CONFIG, 0, 4), 0xffff_ffff);
    }

    pub fn wait_needs_reset(&mut self) {
        wait_signal(&self.vectors[0]);
        assert_ne!(self.client.status() & NEEDS_RESET, 0);
    }
}
