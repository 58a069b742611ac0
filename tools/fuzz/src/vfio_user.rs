// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A hostile VMM and the driver in its VM: vfio-user messages, and memory that both change.
//!
//! An input is a sequence of messages, most of them with the layout that their command needs and with descriptors of
//! all kinds, and of changes to the machine's memory: virtqueues, commands, page lists. Messages go to the daemon's own
//! session over a real socket; after each message, the worker has its turns. The device of another VM must continue to
//! work, no engine may panic, and every descriptor that was sent must be closed at the end.

use crate::{
    input::Input,
    machine::{
        BAR0, CHUNKS, HEAP, Innocent, NOTIFY, QUEUE_SIZE, RAM, REPLY, Ram, Worker, bring_up,
        plug_in,
    },
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::ftruncate,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
};
use std::{
    io::Read,
    net::Shutdown,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
    time::Duration,
};
use vrnic_wire::{
    command::{CommandCode, ContextKind, CreateContext, CreateCq, CreatePd, RegisterMr},
    notify,
    ring::RingLayout,
};
use vrnicd::{
    stop::Stop,
    vfio_user::{
        self, Device,
        journal::Journal,
        message::{
            DeviceInfo, DmaMap, DmaUnmap, Header, IrqInfo, IrqSet, MAX_FDS, RegionAccess,
            RegionInfo, SmallWrite, Version, command,
        },
        pci_device::PciDevice,
        stream::{MessageStream, send},
    },
};
use zerocopy::IntoBytes;

/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 120;
/// Number of messages sent before the daemon reads. Their replies must fit the socket.
const BATCH: usize = 40;

/// The attacked device, and a worker that has its turns after each operation.
struct Turning {
    pci: PciDevice,
    worker: Worker,
    client: UnixStream,
}

impl Turning {
    /// Reads replies from the socket.
    fn take_replies(&self) {
        let mut client = &self.client;
        let mut buffer = [0; 4096];
        while client.read(&mut buffer).is_ok_and(|length| length > 0) {}
    }

    fn after<T>(&mut self, result: T) -> T {
        self.worker.turn(Duration::from_micros(5));
        self.take_replies();
        result
    }
}

impl Device for Turning {
    fn info(&self) -> (u32, u32, u32) {
        self.take_replies();
        self.pci.info()
    }

    fn region(&self, index: u32) -> Result<(u32, u64), Errno> {
        self.take_replies();
        self.pci.region(index)
    }

    fn irq(&self, index: u32) -> Result<(u32, u32), Errno> {
        self.take_replies();
        self.pci.irq(index)
    }

    fn set_irqs(&mut self, set: &IrqSet, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno> {
        let result = self.pci.set_irqs(set, data, fds);
        self.after(result)
    }

    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        let result = self.pci.read(region, offset, data);
        self.after(result)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let result = self.pci.write(region, offset, data);
        self.after(result)
    }

    fn dma_map(&mut self, map: &DmaMap, fd: Option<OwnedFd>) -> Result<(), Errno> {
        let result = self.pci.dma_map(map, fd);
        self.after(result)
    }

    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno> {
        let result = self.pci.dma_unmap(unmap);
        self.after(result)
    }

    fn reset(&mut self) -> Result<(), Errno> {
        let result = self.pci.reset();
        self.after(result)
    }
}

/// Kinds of descriptors that a client may send.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Kind {
    Ram,
    OtherRam,
    ReadOnlyRam,
    EventFd,
    /// A descriptor of no use.
    Junk,
}

/// The bytes of a message and its descriptors.
struct Message {
    bytes: Vec<u8>,
    fds: Vec<Kind>,
}

/// Everything on which an input acts.
struct Scene {
    device: Turning,
    stop: Arc<Stop>,
    negotiated: bool,
    batch: Vec<Message>,
    next_id: u16,
    ram: Ram,
    other: Ram,
    read_only: OwnedFd,
    eventfd: OwnedFd,
    /// A pipe. One end is sent as junk; the other end shows when that has been closed.
    junk: (OwnedFd, OwnedFd),
    innocent: Innocent,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new();
    input.operations(MAX_OPERATIONS, |input| scene.operate(input));
    scene.end();
}

impl Scene {
    fn new() -> Self {
        let mut worker = Worker::new();
        let innocent = Innocent::new(&mut worker, 1);
        let ram = Ram::new();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&ram.fd));
        let read_only = std::fs::File::open(path).expect("memory to read");
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("pipe");
        let (client, _) = UnixStream::pair().expect("socket");
        Self {
            device: Turning {
                pci: plug_in(&worker, 0),
                worker,
                client,
            },
            stop: Arc::new(Stop::new().expect("stop")),
            negotiated: false,
            batch: Vec::new(),
            next_id: 0,
            ram,
            other: Ram::new(),
            read_only: read_only.into(),
            eventfd: eventfd(0, flags).expect("eventfd"),
            junk: (reader, writer),
            innocent,
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.below(32) {
            0..=13 => self.message(input),
            14..=16 => {
                self.flush();
                let at = input.take::<u32>();
                self.ram.put(u64::from(at) % RAM, input.bytes(64));
            }
            17 => self.come_up(),
            18..=23 => self.command(input),
            24 => self.chain(input),
            25 => self.page_list(input),
            26 => {
                self.flush();
                let time = Duration::from_micros(1 << input.below(16));
                self.device.worker.turn(time);
            }
            27 => {
                self.flush();
                // The memory of a VM that is killed, or that attacks.
                let _ = ftruncate(&self.ram.fd, u64::from(input.take::<u8>()) << 12);
            }
            28 => {
                let bytes = input.bytes(255).to_vec();
                self.batch.push(Message {
                    bytes,
                    fds: vec![Kind::Junk; input.below(3)],
                });
            }
            29 => {
                // The VMM disconnects and another one connects.
                self.flush();
                self.device.pci = plug_in(&self.device.worker, 0);
                self.negotiated = false;
                self.device.worker.turn(Duration::from_micros(1));
            }
            _ => self.flush(),
        }
        if self.batch.len() >= BATCH {
            self.flush();
        }
    }

    /// Sends the prepared messages and lets the daemon read them to the end.
    fn flush(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let (client, server) = UnixStream::pair().expect("socket");
        client.set_nonblocking(true).expect("socket");
        for message in self.batch.drain(..) {
            let fds: Vec<BorrowedFd<'_>> = message
                .fds
                .iter()
                .map(|kind| match kind {
                    Kind::Ram => self.ram.fd.as_fd(),
                    Kind::OtherRam => self.other.fd.as_fd(),
                    Kind::ReadOnlyRam => self.read_only.as_fd(),
                    Kind::EventFd => self.eventfd.as_fd(),
                    Kind::Junk => self.junk.1.as_fd(),
                })
                .collect();
            // Messages that do not fit the socket are lost, and the session loses synchronization.
            let _ = send(client.as_fd(), &message.bytes, &fds);
        }
        client.shutdown(Shutdown::Write).expect("socket");
        self.device.client = client;
        let (journal, _fd) = Journal::new().expect("journal");
        let stream = MessageStream::new(server, self.stop.clone(), journal);
        if self.negotiated {
            vfio_user::take_over(stream, &mut self.device);
        } else {
            vfio_user::serve(stream, &mut self.device);
        }
        self.negotiated = true;
        self.device.take_replies();
        self.device.worker.turn(Duration::from_micros(5));
    }

    fn prepare(&mut self, command: u16, body: &[u8], fds: Vec<Kind>) {
        self.next_id = self.next_id.wrapping_add(1);
        let header = Header::request(self.next_id, command, body.len(), false);
        let bytes = [header.as_bytes(), body].concat();
        self.batch.push(Message { bytes, fds });
    }

    /// Prepares a message that is valid or almost valid.
    fn message(&mut self, input: &mut Input<'_>) {
        let (command, body, fds) = self.body(input);
        self.prepare(command, &body, fds);
        let how = input.take::<u8>();
        let Some(message) = self.batch.last_mut() else {
            return;
        };
        if how.is_multiple_of(8) {
            let at = usize::from(input.take::<u8>()) % message.bytes.len();
            message.bytes[at] = input.take();
        }
        if how & 0x78 == 0x78 {
            message.bytes.truncate(input.below(64));
        }
        if how & 0x80 != 0
            && let Some(flags) = message.bytes.get_mut(8)
        {
            // Requests no reply.
            *flags |= 1 << 4;
        }
    }

    fn body(&mut self, input: &mut Input<'_>) -> (u16, Vec<u8>, Vec<Kind>) {
        let no_fds = Vec::new();
        match input.below(16) {
            0 => {
                let version = Version {
                    major: u16::from(input.take::<u8>() & 1),
                    minor: 1,
                };
                let mut body = version.as_bytes().to_vec();
                let json: [&[u8]; 4] = [b"{}\0", b"{\"capabilities\":{}}\0", b"[[[[", b""];
                body.extend(input.pick(&json));
                body.extend(input.bytes(64));
                self.negotiated &= input.take::<bool>();
                (command::VERSION, body, no_fds)
            }
            1 | 2 => {
                let (page, count) = (input.take::<u8>(), input.take::<u8>());
                let map = DmaMap {
                    argsz: 32,
                    flags: u32::from(input.take::<u8>() & 7) ^ 3,
                    offset: number(input) & !0xfff,
                    address: u64::from(page) << 12 | odd(input),
                    size: u64::from(count) << 12 | odd(input),
                };
                let kinds = [
                    Kind::Ram,
                    Kind::OtherRam,
                    Kind::ReadOnlyRam,
                    Kind::Ram,
                    Kind::Junk,
                ];
                let kind = input.pick(&kinds);
                let fds = vec![kind; input.pick(&[1, 1, 1, 0, 2, MAX_FDS])];
                (command::DMA_MAP, map.as_bytes().to_vec(), fds)
            }
            3 => {
                let unmap = DmaUnmap {
                    argsz: 24,
                    flags: u32::from(input.take::<u8>() & 3),
                    address: u64::from(input.take::<u8>()) << 12 | odd(input),
                    size: number(input),
                };
                (command::DMA_UNMAP, unmap.as_bytes().to_vec(), no_fds)
            }
            4 => {
                let index = input.take::<u8>().into();
                match input.below(3) {
                    0 => (
                        command::DEVICE_GET_INFO,
                        DeviceInfo::default().as_bytes().to_vec(),
                        no_fds,
                    ),
                    1 => {
                        let info = RegionInfo {
                            argsz: 32,
                            index,
                            ..RegionInfo::default()
                        };
                        (
                            command::DEVICE_GET_REGION_INFO,
                            info.as_bytes().to_vec(),
                            no_fds,
                        )
                    }
                    _ => {
                        let info = IrqInfo {
                            argsz: 16,
                            index,
                            ..IrqInfo::default()
                        };
                        (
                            command::DEVICE_GET_IRQ_INFO,
                            info.as_bytes().to_vec(),
                            no_fds,
                        )
                    }
                }
            }
            5 | 6 => {
                let count = input.pick(&[1, 2, 7, 0, 3, 16]);
                let set = IrqSet {
                    argsz: 20,
                    flags: input.pick(&[0x24, 0x22, 0x21, 0x0c, 0x3f, 0]),
                    index: input.pick(&[2, 2, 2, 3, 0, 255]),
                    start: u32::from(input.take::<u8>()) / 16,
                    count: if input.below(16) == 0 {
                        input.take()
                    } else {
                        count as u32
                    },
                };
                let mut body = set.as_bytes().to_vec();
                body.extend(input.bytes(16));
                let kind = input.pick(&[Kind::EventFd, Kind::EventFd, Kind::Junk, Kind::Ram]);
                let fds = vec![kind; if input.take() { count } else { 0 }];
                (command::DEVICE_SET_IRQS, body, fds)
            }
            7 | 8 => {
                let access = access(input);
                (command::REGION_READ, access.as_bytes().to_vec(), no_fds)
            }
            9 => {
                let count = input.below(5);
                let mut body = (count as u64).to_ne_bytes().to_vec();
                for _ in 0..count {
                    let write = SmallWrite {
                        access: access(input),
                        data: input.take(),
                    };
                    body.extend(write.as_bytes());
                }
                (command::REGION_WRITE_MULTI, body, no_fds)
            }
            10 if input.below(4) == 0 => (command::DEVICE_RESET, Vec::new(), no_fds),
            11 if input.below(4) == 0 => (input.take(), input.bytes(64).to_vec(), no_fds),
            _ => {
                let access = access(input);
                let value = number(input).to_le_bytes();
                let mut body = access.as_bytes().to_vec();
                let data = value.iter().copied().cycle();
                body.extend(data.take((access.count as usize).min(64)));
                (command::REGION_WRITE, body, no_fds)
            }
        }
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let access = RegionAccess {
            offset,
            region,
            count: data.len() as u32,
        };
        let body = [access.as_bytes(), data].concat();
        self.prepare(command::REGION_WRITE, &body, Vec::new());
    }

    /// Brings the device up as a correct driver does.
    fn come_up(&mut self) {
        self.flush();
        if !self.negotiated {
            let version = Version { major: 0, minor: 1 };
            self.prepare(command::VERSION, version.as_bytes(), Vec::new());
        }
        self.ram.restart();
        let map = DmaMap {
            argsz: 32,
            flags: 3,
            offset: 0,
            address: 0,
            size: RAM,
        };
        self.prepare(command::DMA_MAP, map.as_bytes(), vec![Kind::Ram]);
        for (at, data) in bring_up() {
            self.write(BAR0, at, &data);
        }
        self.flush();
    }

    /// Sends a command that is valid or almost valid.
    fn command(&mut self, input: &mut Input<'_>) {
        self.flush();
        let number = input.below(8) as u32;
        let list = self.ram.page_list(2, 8192);
        let (code, mut body) = match input.below(6) {
            0 => {
                let request = CreateContext {
                    kind: ContextKind::Kernel.raw(),
                    slots: 64.into(),
                    area: self.ram.page_list(1, notify::area_length(64) as u64),
                    ..CreateContext::default()
                };
                (CommandCode::CreateContext, request.as_bytes().to_vec())
            }
            1 => {
                let request = CreatePd {
                    context: number.into(),
                    reserved: 0.into(),
                };
                (CommandCode::CreatePd, request.as_bytes().to_vec())
            }
            2 => {
                let request = RegisterMr {
                    pd: number.into(),
                    access: 1.into(),
                    pages: list,
                    ..RegisterMr::default()
                };
                (CommandCode::RegisterMr, request.as_bytes().to_vec())
            }
            3 => {
                let request = CreateCq {
                    context: number.into(),
                    vector: 0.into(),
                    flags: 0.into(),
                    ring: RingLayout {
                        header_offset: 0.into(),
                        entries_offset: 4096.into(),
                        entries: 64.into(),
                        stride: 64.into(),
                    },
                    pages: list,
                };
                (CommandCode::CreateCq, request.as_bytes().to_vec())
            }
            4 => (
                input.pick(CommandCode::ALL),
                [number.to_le_bytes(), [0; 4]].concat(),
            ),
            _ => (input.pick(CommandCode::ALL), input.bytes(255).to_vec()),
        };
        for _ in 0..input.below(3) {
            let at = input.below(256);
            if let Some(byte) = body.get_mut(at) {
                *byte = input.take();
            }
        }
        if input.below(8) == 0 {
            self.page_list(input);
        }
        self.ram.command(code.raw(), &body);
        self.write(BAR0, NOTIFY, &[0, 0]);
        self.flush();
    }

    /// Writes arbitrary descriptors and may make them available.
    fn chain(&mut self, input: &mut Input<'_>) {
        self.flush();
        for _ in 0..input.below(4) {
            let address = input.pick(&[REPLY, HEAP, RAM - 1, 0, u64::MAX]);
            let length = input.pick(&[8, 512, 0, 4096, u32::MAX]);
            let (index, flags) = (input.take::<u8>() & 15, input.take::<u8>() & 7);
            let next = u16::from(input.take::<u8>()) % (QUEUE_SIZE + 1);
            self.ram
                .describe(index.into(), address, length, flags.into(), next);
        }
        self.ram
            .offer(u16::from(input.take::<u8>()) % (QUEUE_SIZE + 1));
        let queue = u64::from(input.take::<u8>() & 1);
        self.write(BAR0, NOTIFY + 4 * queue, &[queue as u8, 0]);
    }

    /// Writes a chunk of a page list.
    fn page_list(&mut self, input: &mut Input<'_>) {
        self.flush();
        let next = CHUNKS + 4096 * u64::from(input.take::<u8>() & 3);
        let mut bytes = next.to_le_bytes().to_vec();
        let count = input.below(8);
        bytes.extend((count as u64).to_le_bytes());
        for _ in 0..count {
            bytes.extend((u64::from(input.take::<u8>()) << 12).to_le_bytes());
        }
        self.ram.put(CHUNKS, &bytes);
    }

    fn end(mut self) {
        self.flush();
        let Self {
            device,
            mut innocent,
            junk: (reader, writer),
            ..
        } = self;
        let Turning {
            pci, mut worker, ..
        } = device;
        innocent.check(&mut worker);
        drop(pci);
        worker.turn(Duration::from_micros(5));
        assert_eq!(worker.devices[0].state(), "down");
        innocent.check(&mut worker);
        worker.check();
        drop((innocent, worker, writer));
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll");
        assert!(
            fds[0].revents().contains(PollFlags::HUP),
            "a descriptor leaks"
        );
    }
}

/// Returns 0 in most cases, otherwise an offset that makes a page address unaligned.
fn odd(input: &mut Input<'_>) -> u64 {
    match input.below(16) {
        0 => input.take(),
        1 => 1,
        _ => 0,
    }
}

fn number(input: &mut Input<'_>) -> u64 {
    match input.below(8) {
        0 => input.take(),
        1 => u64::MAX,
        2 => input.take::<u32>().into(),
        3 => u64::from(input.take::<u8>()) << 12,
        4 => input.take::<u16>().into(),
        _ => input.take::<u8>().into(),
    }
}

/// Returns an access to a region.
fn access(input: &mut Input<'_>) -> RegionAccess {
    const REGISTERS: [(u64, u32); 24] = [
        (0x14, 1),
        (0x14, 1),
        (0x00, 4),
        (0x04, 4),
        (0x08, 4),
        (0x0c, 4),
        (0x10, 2),
        (0x12, 2),
        (0x16, 2),
        (0x18, 2),
        (0x1a, 2),
        (0x1c, 2),
        (0x1e, 2),
        (0x20, 8),
        (0x28, 8),
        (0x30, 8),
        (0x24, 4),
        (0x34, 4),
        (0x1000, 1),
        (0x2000, 32),
        (0x4000, 2),
        (0x4004, 2),
        (0x4008, 4),
        (0x3f, 8),
    ];
    match input.below(8) {
        0..=3 => {
            let (offset, count) = input.pick(&REGISTERS);
            RegionAccess {
                offset,
                region: BAR0,
                count,
            }
        }
        // Doorbells.
        4 => RegionAccess {
            offset: u64::from(input.take::<u8>()) << 12 | odd(input),
            region: 4,
            count: 4,
        },
        // Configuration space, which has a window to the BARs.
        5 | 6 => RegionAccess {
            offset: input.take::<u8>().into(),
            region: 7,
            count: input.pick(&[1, 2, 4, 8, 256]),
        },
        _ => RegionAccess {
            offset: number(input),
            region: input.take::<u8>().into(),
            count: input.pick(&[0, 1, 4, 4096, 32 << 10, u32::MAX]),
        },
    }
}
