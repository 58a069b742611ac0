// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A vfio-user client and a tiny virtio driver for tests.
#![allow(dead_code, reason = "each test program uses a part")]

pub mod daemon;

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vrnicd::guest_memory::Mapping;
use vrnicd::vfio_user;

use vrnicd::vfio_user::message::Version;
use zerocopy::FromBytes;

/// Region numbers of vfio.
pub const BAR0: u32 = 0;
pub const BAR4: u32 = 4;
pub const CONFIG: u32 = 7;

/// Status bits of a virtio device.
pub const ACKNOWLEDGE_DRIVER: u8 = 3;
pub const DRIVER_OK: u8 = 4;
pub const FEATURES_OK: u8 = 8;
pub const NEEDS_RESET: u8 = 64;

pub const F_VERSION_1: u64 = 1 << 32;
pub const F_ACCESS_PLATFORM: u64 = 1 << 33;

/// Offset of the queue notifications in BAR 0.
pub const NOTIFY: u64 = 0x4000;

/// Acts as a VMM and the driver in it.
pub struct Client(vfio_user::client::Client);

impl Deref for Client {
    type Target = vfio_user::client::Client;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Client {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Client {
    /// Takes a connected socket, without negotiating.
    pub fn new(stream: UnixStream) -> Self {
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        Self(vfio_user::client::Client::new(stream))
    }

    /// Takes a connected socket and negotiates.
    pub fn negotiated(stream: UnixStream) -> Self {
        let mut client = Self::new(stream);
        let reply = client
            .negotiate(r#"{"capabilities":{"max_msg_fds":16}}"#)
            .unwrap();
        let (version, json) = Version::read_from_prefix(&reply).unwrap();
        assert_eq!((version.major, version.minor), (0, 1));
        let json: serde_json::Value = serde_json::from_slice(&json[..json.len() - 1]).unwrap();
        assert_eq!(json["capabilities"]["max_msg_fds"], 16);
        client
    }

    pub fn into_stream(self) -> UnixStream {
        self.0.into_stream()
    }

    pub fn read_number(&mut self, region: u32, offset: u64, width: u32) -> u64 {
        let mut bytes = self.read(region, offset, width).unwrap();
        bytes.resize(8, 0);
        u64::from_le_bytes(bytes.try_into().unwrap())
    }

    /// Sends a write that gets no reply, as QEMU does.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) {
        self.0.post(region, offset, data).unwrap();
    }

    /// Connects `count` MSI-X vectors, starting at 0.
    pub fn connect_vectors(&mut self, count: u32) -> Vec<OwnedFd> {
        self.0.connect_vectors(count).unwrap()
    }

    pub fn status(&mut self) -> u8 {
        self.read_number(BAR0, 0x14, 1) as u8
    }

    pub fn set_status(&mut self, status: u8) {
        self.write(BAR0, 0x14, &[status]).unwrap();
    }

    /// Resets the device and waits until the reset is complete, as drivers do.
    pub fn reset(&mut self) {
        self.set_status(0);
        let deadline = Instant::now() + Duration::from_secs(10);
        while self.status() != 0 {
            assert!(Instant::now() < deadline, "the reset does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn accept_features(&mut self, features: u64) -> bool {
        self.set_status(ACKNOWLEDGE_DRIVER);
        for half in 0..2u32 {
            self.write(BAR0, 0x08, &half.to_le_bytes()).unwrap();
            self.write(
                BAR0,
                0x0c,
                &((features >> (32 * half)) as u32).to_le_bytes(),
            )
            .unwrap();
        }
        self.set_status(ACKNOWLEDGE_DRIVER | FEATURES_OK);
        self.status() & FEATURES_OK != 0
    }

    pub fn offered_features(&mut self) -> u64 {
        (0..2u32).fold(0, |features, half| {
            self.write(BAR0, 0x00, &half.to_le_bytes()).unwrap();
            features | self.read_number(BAR0, 0x04, 4) << (32 * half)
        })
    }

    /// Sets up a queue at `queue` with vector `index + 1`.
    pub fn enable_queue(&mut self, index: u16, queue: &Queue) {
        self.write(BAR0, 0x16, &index.to_le_bytes()).unwrap();
        self.write(BAR0, 0x18, &queue.size.to_le_bytes()).unwrap();
        self.write(BAR0, 0x1a, &(index + 1).to_le_bytes()).unwrap();
        for (offset, address) in [
            (0x20, queue.base),
            (0x28, queue.avail()),
            (0x30, queue.used()),
        ] {
            self.write(BAR0, offset, &(address as u32).to_le_bytes())
                .unwrap();
            self.write(BAR0, offset + 4, &((address >> 32) as u32).to_le_bytes())
                .unwrap();
        }
        self.write(BAR0, 0x1c, &1u16.to_le_bytes()).unwrap();
    }

    pub fn notify(&mut self, queue: u16) {
        self.post(BAR0, NOTIFY + 4 * u64::from(queue), &queue.to_le_bytes());
    }
}

/// RAM of a guest, all of it starting at address 0.
pub struct Ram {
    pub fd: OwnedFd,
    pub view: Mapping,
}

impl Ram {
    pub fn new(len: u64) -> Self {
        let fd = memfd_create("ram", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&fd, len).unwrap();
        let view = Mapping::new(&fd).unwrap();
        Self { fd, view }
    }

    pub fn u16(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.view.read(at, &mut bytes).unwrap();
        u16::from_le_bytes(bytes)
    }

    pub fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.read(at, &mut bytes).unwrap();
        bytes
    }
}

/// A split virtqueue laid out from `base` (16-byte aligned).
pub struct Queue {
    pub base: u64,
    pub size: u16,
    next: u16,
    seen: u16,
}

impl Queue {
    pub fn new(base: u64, size: u16) -> Self {
        Self {
            base,
            size,
            next: 0,
            seen: 0,
        }
    }

    pub fn avail(&self) -> u64 {
        self.base + 16 * u64::from(self.size)
    }

    pub fn used(&self) -> u64 {
        self.base + 0x1000
    }

    pub fn put_descriptor(
        &self,
        ram: &Ram,
        index: u16,
        address: u64,
        len: u32,
        flags: u16,
        next: u16,
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        ram.view
            .write(self.base + 16 * u64::from(index), &bytes)
            .unwrap();
    }

    /// Makes the chain that starts at descriptor `head` available.
    pub fn offer(&mut self, ram: &Ram, head: u16) {
        let slot = u64::from(self.next % self.size);
        ram.view
            .write(self.avail() + 4 + 2 * slot, &head.to_le_bytes())
            .unwrap();
        self.next = self.next.wrapping_add(1);
        ram.view
            .write(self.avail() + 2, &self.next.to_le_bytes())
            .unwrap();
    }

    /// Waits for a used chain and returns the number of bytes written.
    pub fn wait_used(&mut self, ram: &Ram) -> u32 {
        let deadline = Instant::now() + Duration::from_secs(10);
        while ram.u16(self.used() + 2) == self.seen {
            assert!(Instant::now() < deadline, "nothing is used");
            std::thread::sleep(Duration::from_micros(200));
        }
        let slot = u64::from(self.seen % self.size);
        self.seen = self.seen.wrapping_add(1);
        u32::from_le_bytes(
            ram.bytes(self.used() + 4 + 8 * slot + 4, 4)
                .try_into()
                .unwrap(),
        )
    }
}

/// Waits until an eventfd was signalled.
pub fn wait_signal(eventfd: &OwnedFd) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while rustix::io::read(eventfd, &mut [0; 8]).is_err() {
        assert!(Instant::now() < deadline, "no interrupt");
        std::thread::sleep(Duration::from_micros(200));
    }
}
