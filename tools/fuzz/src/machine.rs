// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Devices of the daemon and the machines connected to them, all in one thread.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};
use vrnic_engine::{Cause, Outbox, time::Instant};
use vrnic_wire::{
    command::{
        CommandCode, CommandHeader, ContextKind, CreateContext, CreateCq, CreatePd, CreateQp,
        RegisterMr, ReplyHeader, SetGid, Status,
    },
    memory::{PageList, access},
    notify,
    port::{GidEntry, GidType, NO_VLAN},
    qp::QpType,
    ring::RingLayout,
};
use vrnicd::{
    capture::Captures,
    config::Config,
    control::{
        answer::{Timed, answer},
        inspector::Question,
    },
    device::{Crowd, Device, Shared},
    fabric::{Local, Route, SubnetFabric},
    guest_memory::{GuestMemory, Mapping},
    network::Network,
    pci::Function,
    vfio_user::{
        Device as _,
        message::{DmaMap, dma_flags},
        pci_device::PciDevice,
    },
    virtio::Backend,
    waker::Waker,
};
use zerocopy::IntoBytes;

/// Names of the devices.
pub const NAMES: [&str; 2] = ["a", "b"];
/// Size of a machine's memory in bytes.
pub const RAM: u64 = 64 << 12;
/// Addresses of the control queue and of the queue of asynchronous events.
pub const QUEUES: [u64; 2] = [0, 0x4000];
/// Number of entries of these queues.
pub const QUEUE_SIZE: u16 = 16;
/// Address of requests.
pub const REQUEST: u64 = 0x8000;
/// Address of replies.
pub const REPLY: u64 = 0x9000;
/// Address of the first page for chunks of page lists.
pub const CHUNKS: u64 = 0xa000;
/// Address of the first page to which page lists refer.
pub const HEAP: u64 = 0x10000;
/// The region with the virtio structures.
pub const BAR0: u32 = 0;
/// Offset of the queue notifications in [`BAR0`].
pub const NOTIFY: u64 = 0x4000;

/// Does the work of the daemon's worker.
pub struct Worker {
    /// The devices, none of which is on a wire.
    pub devices: Vec<Device>,
    shared: Shared,
    fabric: Local,
    /// An empty network.
    network: Network,
    /// A subnet that no device is on.
    subnet: Option<SubnetFabric>,
    now: Instant,
}

impl Worker {
    /// Creates devices `a` and `b`, which are down.
    pub fn new() -> Self {
        let text = |name: &str, last: u8| {
            format!(
                "[[device]]\nname = \"{name}\"\nsocket = \"/nowhere/{name}\"\nmac = \"02:00:00:00:00:0{last}\"\n\
                 limits = {{ contexts = 16, qp = 64, cq = 64, mr = 64, mw = 64, pd = 16 }}\n"
            )
        };
        let config =
            Config::parse(&(text(NAMES[0], 1) + &text(NAMES[1], 2))).expect("configuration");
        let waker = Arc::new(Waker::new().expect("waker"));
        let (network, _) = Network::new(&config, waker.clone()).expect("network");
        let elsewhere = Config::parse(&format!("{}fabric = \"infiniband\"\n", text("c", 3)));
        let subnet = SubnetFabric::new(&elsewhere.expect("configuration")).expect("subnet");
        let devices = config.devices.iter().enumerate();
        Self {
            devices: devices
                .map(|(index, settings)| {
                    let (mtu, frame_mtu) = (network.path_mtu(index), network.frame_mtu(index));
                    Device::new(index, settings, 1, mtu, frame_mtu, waker.clone())
                })
                .collect(),
            shared: Shared {
                outbox: Outbox::new(),
                captures: Arc::new(Captures::new(NAMES.map(str::to_owned).to_vec())),
            },
            fabric: Local::new(),
            network,
            subnet,
            now: Instant::default(),
        }
    }

    /// Lets time pass and gives every device a turn.
    pub fn turn(&mut self, time: Duration) {
        self.now = self.now + time;
        let now = self.now;
        for index in 0..self.devices.len() {
            let (device, shared) = (&mut self.devices[index], &mut self.shared);
            device.contained(shared, |device, shared| {
                device.control(shared, now, &mut |_| false)
            });
            let gids: Vec<_> = device.rnic().map_or_else(Vec::new, |rnic| {
                rnic.gids().map(|entry| entry.gid).collect()
            });
            self.fabric.set_gids(index, gids.into_iter());
            self.deliver(index);
            let (device, shared) = (&mut self.devices[index], &mut self.shared);
            device.contained(shared, |device, shared| {
                device.work(shared, now, Crowd::Many)
            });
            self.deliver(index);
        }
        for device in &mut self.devices {
            device.contained(&mut self.shared, |device, shared| {
                device.prepare_sleep(shared, now);
                device.publish_events();
            });
        }
    }

    fn deliver(&mut self, from: usize) {
        let now = self.now;
        // Responses to responses are delivered in the next turn.
        let mut routes = self.fabric.routes();
        for mut segment in std::mem::take(&mut self.shared.outbox.segments) {
            if let Route::Device(to) = routes.route(from, &segment) {
                let sender = self.devices[from].regions().clone();
                let device = &mut self.devices[to];
                device.contained(&mut self.shared, |device, shared| {
                    device.receive(shared, &mut segment, Some(&sender), now);
                });
            }
        }
    }

    /// Answers a question from a client of the control socket.
    pub fn answer(&mut self, mut question: Question) {
        let now = self.now;
        let devices = self.devices.iter_mut().map(|it| Timed { it, now });
        let mut devices: Vec<_> = devices.collect();
        let it = &mut self.network;
        let network = &mut Timed { it, now };
        let mut subnet = self.subnet.as_mut().map(|it| Timed { it, now });
        let (topic, shared) = (&mut question.topic, &mut self.shared);
        let reply = answer(topic, &mut devices, network, subnet.as_mut(), shared);
        question.answer(reply);
    }

    /// Panics if an engine has panicked.
    pub fn check(&self) {
        for device in &self.devices {
            let mut record = device.record();
            let panicked = record.any(|(_, what)| what.cause == Some(Cause::InternalFault));
            assert!(!panicked, "the engine of {} panicked", device.name());
        }
    }
}

impl Default for Worker {
    fn default() -> Self {
        Self::new()
    }
}

/// RAM of a machine.
pub struct Ram {
    /// Descriptor that a VMM gives to the daemon.
    pub fd: OwnedFd,
    view: Mapping,
    /// Number of entries made available in the control queue.
    offered: u16,
}

impl Default for Ram {
    fn default() -> Self {
        Self::new()
    }
}

impl Ram {
    /// Creates memory filled with zeros.
    pub fn new() -> Self {
        let fd = memfd_create("ram", MemfdFlags::CLOEXEC).expect("memfd");
        ftruncate(&fd, RAM).expect("memory");
        let view = Mapping::new(&fd).expect("mapping");
        Self {
            fd,
            view,
            offered: 0,
        }
    }

    /// Writes as much as fits.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        let _ = self.view.write(at, bytes);
    }

    /// Reads `N` bytes.
    pub fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        let _ = self.view.read(at, &mut bytes);
        bytes
    }

    /// Returns a page list of the first pages from [`HEAP`] on.
    pub fn page_list(&self, count: u32, length: u64) -> PageList {
        let mut chunk = [[0; 8], u64::from(count).to_le_bytes()].concat();
        for page in 0..u64::from(count) {
            chunk.extend((HEAP + (page << 12)).to_le_bytes());
        }
        self.put(CHUNKS, &chunk);
        PageList {
            first_chunk: CHUNKS.into(),
            length: length.into(),
            page_count: count.into(),
            page_shift: 12,
            ..PageList::default()
        }
    }

    /// Writes a descriptor of the control queue.
    pub fn describe(&self, index: u16, address: u64, length: u32, flags: u16, next: u16) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(length.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.put(QUEUES[0] + 16 * u64::from(index), &bytes);
    }

    /// Makes the chain that begins with descriptor `head` available in the control queue.
    pub fn offer(&mut self, head: u16) {
        let available = available(0);
        let slot = u64::from(self.offered % QUEUE_SIZE);
        self.put(available + 4 + 2 * slot, &head.to_le_bytes());
        self.offered = self.offered.wrapping_add(1);
        self.put(available + 2, &self.offered.to_le_bytes());
    }

    /// Clears the queues, as a driver does that starts over.
    pub fn restart(&mut self) {
        self.put(0, &vec![0; 0x8000]);
        self.offered = 0;
    }

    /// Offers a command with this body.
    pub fn command(&mut self, code: u16, body: &[u8]) {
        let header = CommandHeader {
            code: code.into(),
            reserved: 0.into(),
            length: (body.len() as u32).into(),
        };
        let request = [header.as_bytes(), body].concat();
        self.put(REQUEST, &request);
        self.describe(0, REQUEST, request.len() as u32, 1, 1);
        self.describe(1, REPLY, 512, 2, 0);
        self.offer(0);
    }
}

/// Returns the address of a queue's available ring.
fn available(queue: usize) -> u64 {
    QUEUES[queue] + 16 * u64::from(QUEUE_SIZE)
}

/// Returns the address of a queue's used ring.
fn used(queue: usize) -> u64 {
    QUEUES[queue] + 0x1000
}

/// Returns the register writes with which a driver brings the device up, starting with a reset.
pub fn bring_up() -> Vec<(u64, Vec<u8>)> {
    let mut writes: Vec<(u64, Vec<u8>)> = vec![(0x14, vec![0]), (0x14, vec![3])];
    for half in 0..2u32 {
        let features = [0xfu32, 3][half as usize];
        writes.push((0x08, half.to_le_bytes().to_vec()));
        writes.push((0x0c, features.to_le_bytes().to_vec()));
    }
    writes.push((0x14, vec![3 | 8]));
    for (queue, descriptors) in QUEUES.into_iter().enumerate() {
        writes.push((0x16, (queue as u16).to_le_bytes().to_vec()));
        writes.push((0x18, QUEUE_SIZE.to_le_bytes().to_vec()));
        writes.push((0x1a, (queue as u16 + 1).to_le_bytes().to_vec()));
        for (at, address) in [
            (0x20, descriptors),
            (0x28, available(queue)),
            (0x30, used(queue)),
        ] {
            writes.push((at, address.to_le_bytes().to_vec()));
        }
        writes.push((0x1c, vec![1, 0]));
    }
    writes.push((0x14, vec![3 | 8 | 4]));
    writes
}

/// Returns a PCI function for device `index`, as a new VMM finds it.
pub fn plug_in(worker: &Worker, index: usize) -> PciDevice {
    let device = &worker.devices[index];
    let backend: Arc<dyn Backend> = device.mailbox().clone();
    let memory = Arc::new(GuestMemory::new());
    let function = Function::new(device.spec(), backend, memory.clone());
    PciDevice::new(function, memory, None)
}

/// A machine with a correct driver.
pub struct Innocent {
    ram: Ram,
    pci: PciDevice,
}

impl Innocent {
    /// Creates a machine for device `index`, with its driver up.
    pub fn new(worker: &mut Worker, index: usize) -> Self {
        let mut pci = plug_in(worker, index);
        let ram = Ram::new();
        let map = DmaMap {
            argsz: 32,
            flags: dma_flags::READ | dma_flags::WRITE,
            offset: 0,
            address: 0,
            size: RAM,
        };
        let fd = ram.fd.as_fd().try_clone_to_owned().expect("descriptor");
        pci.dma_map(&map, Some(fd)).expect("map");
        for (at, data) in bring_up() {
            pci.write(BAR0, at, &data).expect("register");
            worker.turn(Duration::from_micros(1));
        }
        Self { ram, pci }
    }

    /// Executes a command; returns the status and the rest of the reply.
    pub fn execute(
        &mut self,
        worker: &mut Worker,
        code: CommandCode,
        body: &[u8],
    ) -> (u32, [u8; 64]) {
        let before: [u8; 2] = self.ram.get(used(0) + 2);
        self.ram.put(REPLY, &[0xff; 16]);
        self.ram.command(code.raw(), body);
        self.pci.write(BAR0, NOTIFY, &[0, 0]).expect("notify");
        for _ in 0..20 {
            worker.turn(Duration::from_micros(10));
        }
        let after: [u8; 2] = self.ram.get(used(0) + 2);
        let done = u16::from_le_bytes(after).wrapping_sub(u16::from_le_bytes(before));
        assert_eq!(
            done, 1,
            "a command of an uninvolved device was not executed"
        );
        let status = u32::from_le_bytes(self.ram.get(REPLY));
        (
            status,
            self.ram.get(REPLY + size_of::<ReplyHeader>() as u64),
        )
    }

    /// Checks that a command gets its reply.
    pub fn check(&mut self, worker: &mut Worker) {
        let (status, _) = self.execute(worker, CommandCode::QueryDevice, &[]);
        assert_eq!(status, Status::Ok.raw());
    }

    /// Creates some objects of each kind, and fails to create another one.
    pub fn create_objects(&mut self, worker: &mut Worker) {
        let gid = SetGid {
            entry: GidEntry {
                gid: [0xfe; 16],
                mac: [2, 0, 0, 0, 0, 1],
                vlan: NO_VLAN.into(),
                gid_type: GidType::RoceV2.raw(),
                ..GidEntry::default()
            },
            ..SetGid::default()
        };
        self.create(worker, CommandCode::SetGid, gid.as_bytes());
        let context = CreateContext {
            kind: ContextKind::Kernel.raw(),
            slots: 64.into(),
            area: self.ram.page_list(1, notify::area_length(64) as u64),
            ..CreateContext::default()
        };
        let context = self.create(worker, CommandCode::CreateContext, context.as_bytes());
        let pd = CreatePd {
            context: context.into(),
            reserved: 0.into(),
        };
        let pd = self.create(worker, CommandCode::CreatePd, pd.as_bytes());
        let pages = self.ram.page_list(2, 8192);
        let ring = RingLayout {
            header_offset: 0.into(),
            entries_offset: 4096.into(),
            entries: 64.into(),
            stride: 64.into(),
        };
        for _ in 0..3 {
            let region = RegisterMr {
                pd: pd.into(),
                access: access::LOCAL_WRITE.into(),
                pages,
                ..RegisterMr::default()
            };
            self.create(worker, CommandCode::RegisterMr, region.as_bytes());
            let cq = CreateCq {
                context: context.into(),
                vector: 0.into(),
                flags: 0.into(),
                ring,
                pages,
            };
            let cqn = self.create(worker, CommandCode::CreateCq, cq.as_bytes());
            let qp = CreateQp {
                context: context.into(),
                pd: pd.into(),
                qp_type: QpType::ReliableConnection.raw(),
                send_cqn: cqn.into(),
                recv_cqn: cqn.into(),
                send_ring: ring,
                pages,
                ..CreateQp::default()
            };
            self.create(worker, CommandCode::CreateQp, qp.as_bytes());
        }
        let (status, _) = self.execute(worker, CommandCode::DestroyPd, &[9; 8]);
        assert_ne!(status, Status::Ok.raw());
    }

    /// Creates an object and returns its number.
    fn create(&mut self, worker: &mut Worker, code: CommandCode, body: &[u8]) -> u32 {
        let (status, reply) = self.execute(worker, code, body);
        assert_eq!(status, Status::Ok.raw(), "{code:?}");
        u32::from_le_bytes([reply[0], reply[1], reply[2], reply[3]])
    }
}
