// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A guest: its VMM, its driver, and the context and protection domain that its programs share.

use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use vrnic::doorbell::{Doorbell, Rung, Slot};
use vrnic_wire::command::{
    Command, CommandHeader, ContextKind, CreateContext, CreatePd, MAX_REPLY, MAX_REQUEST, MapPages,
    PageFault, ReplyHeader, SetGid, Status, TakePageFault, UnmapPages,
};
use vrnic_wire::config::{
    ASYNC_EVENT_QUEUE, CONTROL_QUEUE, Config, DOORBELL_PAGE_SIZE, F_INFINIBAND,
    FIRST_COMPLETION_QUEUE,
};
use vrnic_wire::event::{AsyncEvent, CompletionEvent};
use vrnic_wire::memory::{CHUNK_PAGES, CHUNK_SIZE, PageList, TABLE_PAGES, page_flags};
use vrnic_wire::notify;
use vrnic_wire::port::{GidEntry, GidType, IPV4_MAPPED, NO_VLAN};
use vrnicd::pci::{DOORBELL_BAR, VIRTIO_BAR, layout};
use vrnicd::vfio_user::client::Client;
use zerocopy::{FromBytes, IntoBytes};

use crate::daemon;
use crate::ram::{Area, PAGE, Ram};
use crate::virtqueue::{NEXT, SIZE, Virtqueue, WRITE};

/// Registers of the common configuration (virtio 1.3, 4.1.4.3).
mod register {
    pub const DEVICE_FEATURE_SELECT: u64 = 0x00;
    pub const DEVICE_FEATURE: u64 = 0x04;
    pub const DRIVER_FEATURE_SELECT: u64 = 0x08;
    pub const DRIVER_FEATURE: u64 = 0x0c;
    pub const CONFIG_VECTOR: u64 = 0x10;
    pub const QUEUE_SELECT: u64 = 0x16;
    pub const QUEUE_SIZE: u64 = 0x18;
    pub const QUEUE_VECTOR: u64 = 0x1a;
    pub const QUEUE_ENABLE: u64 = 0x1c;
    pub const QUEUE_ADDRESSES: u64 = 0x20;
}

const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
const FEATURES_OK: u8 = 8;

/// Slots of the context, which limit the number of queue pairs.
const SLOTS: u32 = 8192;
/// Number of chunks for the page lists of a command, enough for 255 MiB. They are free again when the command
/// completes.
const CHUNKS: usize = 128;
/// Size of the buffer for an event in bytes.
const EVENT: u32 = 16;
/// How long the device may take to answer.
const PATIENCE: Duration = Duration::from_secs(120);

/// What connects a guest with its device.
pub trait Bus: Send {
    /// Gives the device the RAM, from bus address 0 on.
    ///
    /// # Errors
    /// The device refuses it.
    fn share(&mut self, ram: &OwnedFd, length: u64) -> Result<()>;

    /// Connects `count` interrupt vectors, starting at 0, and returns their eventfds.
    ///
    /// # Errors
    /// The device refuses them.
    fn connect_vectors(&mut self, count: u32) -> Result<Vec<OwnedFd>, Errno>;

    /// Reads `length` bytes of a region.
    ///
    /// # Errors
    /// The device refuses it.
    fn read(&mut self, region: u32, offset: u64, length: u32) -> Result<Vec<u8>, Errno>;

    /// Writes to a region.
    ///
    /// # Errors
    /// The device refuses it.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Writes to a region without waiting for the device.
    ///
    /// # Errors
    /// The device is gone.
    fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Called again and again while the guest waits for the device.
    fn wait(&mut self) {
        std::hint::spin_loop();
    }
}

impl Bus for Client {
    fn share(&mut self, ram: &OwnedFd, length: u64) -> Result<()> {
        self.negotiate(r#"{"capabilities":{"max_msg_fds":16}}"#)?;
        Ok(self.map(ram, 0, 0, length)?)
    }

    fn connect_vectors(&mut self, count: u32) -> Result<Vec<OwnedFd>, Errno> {
        Self::connect_vectors(self, count)
    }

    fn read(&mut self, region: u32, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        Self::read(self, region, offset, length)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        Self::write(self, region, offset, data)
    }

    fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        Self::post(self, region, offset, data)
    }
}

/// Access to the device.
struct Device {
    client: Box<dyn Bus>,
    control: Virtqueue,
    request: Area,
    reply: Area,
}

/// A guest.
pub struct Vm {
    device: Device,
    ram: Ram,
    /// The queue of each kind of events, asynchronous events first, and its buffers.
    events: Vec<(Virtqueue, Area)>,
    vectors: Vec<OwnedFd>,
    chunks: Area,
    gid: GidEntry,
    context: u32,
    pd: u32,
    doorbell: Doorbell,
    doorbell_page: u64,
    rung: u64,
}

impl Device {
    fn write<const N: usize>(&mut self, offset: u64, bytes: [u8; N]) -> Result<(), Errno> {
        self.client.write(VIRTIO_BAR.into(), offset, &bytes)
    }

    fn notify(&mut self, queue: u16) -> Result<(), Errno> {
        let offset = layout::NOTIFY + u64::from(queue) * u64::from(layout::NOTIFY_MULTIPLIER);
        self.client
            .post(VIRTIO_BAR.into(), offset, &queue.to_le_bytes())
    }

    fn set_status(&mut self, status: u8) -> Result<(), Errno> {
        self.write(layout::STATUS, [status])
    }

    fn status(&mut self) -> Result<u8, Errno> {
        Ok(self.client.read(VIRTIO_BAR.into(), layout::STATUS, 1)?[0])
    }

    /// Accepts all features that the device offers, and returns them.
    fn negotiate(&mut self) -> Result<u64> {
        let mut features = 0;
        self.set_status(ACKNOWLEDGE | DRIVER)?;
        for half in 0..2_u32 {
            self.write(register::DEVICE_FEATURE_SELECT, half.to_le_bytes())?;
            let offered = self
                .client
                .read(VIRTIO_BAR.into(), register::DEVICE_FEATURE, 4)?;
            let bits = offered
                .first_chunk()
                .map_or(0, |bits| u32::from_le_bytes(*bits));
            features |= u64::from(bits) << (32 * half);
            self.write(register::DRIVER_FEATURE_SELECT, half.to_le_bytes())?;
            self.client
                .write(VIRTIO_BAR.into(), register::DRIVER_FEATURE, &offered)?;
        }
        self.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK)?;
        ensure!(
            self.status()? & FEATURES_OK != 0,
            "the device rejected features that it had offered"
        );
        Ok(features)
    }

    /// Sets up a queue at these addresses. Its interrupt vector is `index + 1`, after that of configuration changes.
    fn enable(&mut self, index: u16, addresses: [u64; 3]) -> Result<(), Errno> {
        self.write(register::QUEUE_SELECT, index.to_le_bytes())?;
        self.write(register::QUEUE_SIZE, SIZE.to_le_bytes())?;
        self.write(register::QUEUE_VECTOR, (index + 1).to_le_bytes())?;
        for (place, address) in (register::QUEUE_ADDRESSES..).step_by(8).zip(addresses) {
            self.write(place, (address as u32).to_le_bytes())?;
            self.write(place + 4, ((address >> 32) as u32).to_le_bytes())?;
        }
        self.write(register::QUEUE_ENABLE, 1_u16.to_le_bytes())
    }

    /// Executes a command.
    fn execute<C: Command>(&mut self, command: &C) -> Result<C::Reply> {
        self.begin(command)?;
        let started = Instant::now();
        let mut looks = 0_u32;
        loop {
            if let Some(reply) = self.reply::<C>() {
                return reply;
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                ensure!(started.elapsed() < PATIENCE, "{:?} has no reply", C::CODE);
                std::thread::yield_now();
            }
            self.client.wait();
        }
    }

    /// Passes a command to the device.
    fn begin<C: Command>(&mut self, command: &C) -> Result<()> {
        let header = CommandHeader {
            code: C::CODE.raw().into(),
            reserved: 0.into(),
            length: (size_of::<C>() as u32).into(),
        };
        self.request.memory.write_bytes(0, header.as_bytes());
        self.request
            .memory
            .write_bytes(size_of::<CommandHeader>(), command.as_bytes());
        let length = size_of::<CommandHeader>() + size_of::<C>();
        self.control
            .describe(0, self.request.address, length as u32, NEXT, 1);
        self.control
            .describe(1, self.reply.address, MAX_REPLY as u32, WRITE, 0);
        if self.control.offer(0) {
            self.notify(CONTROL_QUEUE)?;
        }
        Ok(())
    }

    /// Returns the reply to the command if it is there.
    fn reply<C: Command>(&mut self) -> Option<Result<C::Reply>> {
        let (_, written) = self.control.take()?;
        Some(self.read_reply::<C>(written as usize))
    }

    fn read_reply<C: Command>(&self, written: usize) -> Result<C::Reply> {
        let mut bytes = [0; MAX_REPLY];
        for (at, byte) in bytes.iter_mut().enumerate().take(written) {
            *byte = self.reply.byte(at);
        }
        let (header, body) = ReplyHeader::read_from_prefix(&bytes[..written])
            .map_err(|_| anyhow::anyhow!("a reply of {written} bytes"))?;
        match Status::try_from(header.status.get()) {
            Ok(Status::Ok) => C::Reply::read_from_bytes(body)
                .map_err(|_| anyhow::anyhow!("{:?}: a reply of {written} bytes", C::CODE)),
            status => bail!(
                "{:?} ended with {status:?}, vendor error {}",
                C::CODE,
                header.vendor_error
            ),
        }
    }
}

impl Vm {
    /// Starts a guest with `ram` bytes of RAM on a device; its addresses are derived from `number`.
    pub fn start(stream: UnixStream, number: usize, ram: usize) -> Result<Self> {
        Self::start_as(stream, gid(number), ram)
    }

    /// Like [`start`](Self::start), with the address `gid`.
    pub fn start_as(stream: UnixStream, gid: GidEntry, ram: usize) -> Result<Self> {
        Self::start_on(Box::new(Client::new(stream)), gid, ram)
    }

    /// Like [`start_as`](Self::start_as), on any bus.
    ///
    /// # Errors
    /// The device does not do what its driver expects.
    pub fn start_on(bus: Box<dyn Bus>, gid: GidEntry, ram: usize) -> Result<Self> {
        let mut ram = Ram::new(ram)?;
        let mut device = Device {
            client: bus,
            control: Virtqueue::new(&mut ram, true)?,
            request: ram.allocate(MAX_REQUEST)?,
            reply: ram.allocate(MAX_REPLY)?,
        };
        device.client.share(ram.file(), ram.length() as u64)?;
        device.set_status(0)?;
        let started = Instant::now();
        while device.status()? != 0 {
            ensure!(
                started.elapsed() < PATIENCE,
                "the reset did not finish in time"
            );
            device.client.wait();
        }
        let infiniband = device.negotiate()? >> F_INFINIBAND & 1 != 0;
        let config = device.client.read(
            VIRTIO_BAR.into(),
            layout::DEVICE,
            size_of::<Config>() as u32,
        )?;
        let config = Config::read_from_bytes(&config)
            .map_err(|_| anyhow::anyhow!("not a configuration space"))?;
        let queues = FIRST_COMPLETION_QUEUE + config.completion_vectors.get();
        let vectors = device.client.connect_vectors(u32::from(queues) + 1)?;
        device.write(register::CONFIG_VECTOR, 0_u16.to_le_bytes())?;
        let mut events = Vec::new();
        for _ in 1..queues {
            let mut queue = Virtqueue::new(&mut ram, false)?;
            let buffers = ram.allocate(usize::from(SIZE) * EVENT as usize)?;
            for index in 0..SIZE {
                let address = buffers.address + u64::from(index) * u64::from(EVENT);
                queue.describe(index, address, EVENT, WRITE, 0);
                queue.offer(index);
            }
            events.push((queue, buffers));
        }
        device.enable(CONTROL_QUEUE, device.control.addresses())?;
        for (index, (queue, _)) in (1..).zip(&events) {
            device.enable(index, queue.addresses())?;
        }
        device.set_status(ACKNOWLEDGE | DRIVER | FEATURES_OK | DRIVER_OK)?;

        if !infiniband {
            device.execute(&SetGid {
                entry: gid,
                ..SetGid::default()
            })?;
        }
        let chunks = ram.allocate(CHUNKS * CHUNK_SIZE)?;
        let area = ram.allocate(notify::area_length(SLOTS))?;
        let created = device.execute(&CreateContext {
            // The guest of an HCA acts as its kernel as well, because only the kernel has queue pair 0.
            kind: if infiniband {
                ContextKind::Kernel
            } else {
                ContextKind::User
            }
            .raw(),
            slots: SLOTS.into(),
            area: list_pages(&chunks, &area)?,
            ..CreateContext::default()
        })?;
        let pd = device.execute(&CreatePd {
            context: created.context,
            ..CreatePd::default()
        })?;
        Ok(Self {
            device,
            ram,
            events,
            vectors,
            chunks,
            gid,
            context: created.context.get(),
            pd: pd.pd.get(),
            doorbell: Doorbell::new(area.memory, None),
            doorbell_page: u64::from(created.doorbell_page.get()) * u64::from(DOORBELL_PAGE_SIZE),
            rung: 0,
        })
    }

    /// Executes a command.
    pub fn execute<C: Command>(&mut self, command: &C) -> Result<C::Reply> {
        self.device.execute(command)
    }

    /// Passes a command to the device without waiting for the reply. The next command must come after
    /// [it](Self::reply).
    ///
    /// # Errors
    /// The device is gone.
    pub fn begin<C: Command>(&mut self, command: &C) -> Result<()> {
        self.device.begin(command)
    }

    /// Returns the reply to the command that was [begun](Self::begin) if it is there.
    pub fn reply<C: Command>(&mut self) -> Option<Result<C::Reply>> {
        self.device.reply::<C>()
    }

    /// Allocates unused RAM.
    pub fn allocate(&mut self, length: usize) -> Result<Area> {
        self.ram.allocate(length)
    }

    /// Returns a page list for the next command.
    pub fn pages(&mut self, area: &Area) -> Result<PageList> {
        list_pages(&self.chunks, area)
    }

    /// Returns the GID and its MAC address.
    pub fn gid(&self) -> GidEntry {
        self.gid
    }

    /// Returns the number of the context.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Returns the number of the protection domain.
    pub fn pd(&self) -> u32 {
        self.pd
    }

    /// Returns a slot that the device has assigned.
    pub fn slot(&self, number: u32) -> Slot {
        self.doorbell.slot(number)
    }

    /// Tells the device that there is work, as libvrnic does. If the device wants a doorbell, sends it as QEMU would.
    #[inline]
    pub fn ring(&mut self, slot: &Slot) -> Result<()> {
        if self.doorbell.ring(slot) == Rung::AskKernel {
            self.write_doorbell(slot.number())?;
        }
        Ok(())
    }

    /// Writes to the doorbell page, whether or not the device wants that.
    #[cold]
    pub fn write_doorbell(&mut self, slot: u32) -> Result<()> {
        self.rung += 1;
        let bytes = slot.to_le_bytes();
        Ok(self
            .device
            .client
            .post(DOORBELL_BAR.into(), self.doorbell_page, &bytes)?)
    }

    /// Returns the number of writes to the doorbell page so far.
    pub fn rung(&self) -> u64 {
        self.rung
    }

    /// Waits for the next event of a completion vector; returns the number of the completion queue.
    pub fn completion_event(&mut self, vector: u16) -> Result<u32> {
        let index = FIRST_COMPLETION_QUEUE + vector;
        let interrupt = &self.vectors[usize::from(index) + 1];
        let (queue, buffers) = &mut self.events[usize::from(index) - 1];
        let deadline = Instant::now() + PATIENCE;
        let (head, written) = loop {
            if let Some(taken) = queue.take() {
                break taken;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            ensure!(!left.is_zero(), "no event on vector {vector}");
            let timeout = Timespec {
                tv_sec: left.as_secs().cast_signed(),
                tv_nsec: left.subsec_nanos().into(),
            };
            poll(&mut [PollFd::new(interrupt, PollFlags::IN)], Some(&timeout))?;
            let _ = rustix::io::read(interrupt, &mut [0; 8]);
        };
        ensure!(
            written as usize == size_of::<CompletionEvent>(),
            "an event of {written} bytes"
        );
        let event: CompletionEvent = buffers.memory.read(usize::from(head) * EVENT as usize);
        if queue.offer(head) {
            self.device.notify(index)?;
        }
        Ok(event.cqn.get())
    }
}

impl Vm {
    /// Returns the next asynchronous event, if one arrives within `patience`.
    pub fn async_event(&mut self, patience: Duration) -> Result<Option<AsyncEvent>> {
        let deadline = Instant::now() + patience;
        let (queue, buffers) = &mut self.events[0];
        let (head, written) = loop {
            if let Some(taken) = queue.take() {
                break taken;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            std::thread::sleep(left.min(Duration::from_millis(1)));
        };
        ensure!(
            written as usize == size_of::<AsyncEvent>(),
            "an event of {written} bytes"
        );
        let event = buffers.memory.read(usize::from(head) * EVENT as usize);
        if queue.offer(head) {
            self.device.notify(ASYNC_EVENT_QUEUE)?;
        }
        Ok(Some(event))
    }

    /// Takes a page fault of a region [on demand](crate::queues::Mr::on_demand), as the driver does when it gets the
    /// event. The result contains no pages if the device is waiting for none.
    pub fn take_page_fault(&mut self, key: u32) -> Result<PageFault> {
        let pd = self.pd.into();
        self.execute(&TakePageFault {
            pd,
            key: key.into(),
        })
    }

    /// Gives the device pages of a region on demand, which consists of all of `area`.
    pub fn map_pages(&mut self, area: &Area, key: u32, pages: Range<u32>) -> Result<()> {
        ensure!(pages.len() <= TABLE_PAGES, "too many pages");
        let table = self.chunks;
        for (place, page) in pages.clone().enumerate() {
            let address = area.address + u64::from(page) * PAGE as u64;
            let entry = address | page_flags::PRESENT | page_flags::WRITABLE;
            table.memory.write(8 * place, &entry.to_le());
        }
        let pd = self.pd.into();
        self.execute(&MapPages {
            pd,
            key: key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
            table: table.address.into(),
        })?;
        Ok(())
    }

    /// Takes pages back. When this returns, the device no longer accesses them.
    pub fn unmap_pages(&mut self, key: u32, pages: Range<u32>) -> Result<()> {
        let pd = self.pd.into();
        self.execute(&UnmapPages {
            pd,
            key: key.into(),
            first_page: pages.start.into(),
            page_count: (pages.len() as u32).into(),
        })?;
        Ok(())
    }
}

/// Returns the GID of the guest with that number.
pub fn gid(number: usize) -> GidEntry {
    let address = [10, 77, (number >> 8) as u8, number as u8 + 1];
    gid_of(address.into(), daemon::mac(number))
}

/// Returns the GID of an IP address, with the MAC address that belongs to it.
pub fn gid_of(address: IpAddr, mac: [u8; 6]) -> GidEntry {
    let mut gid = [0; 16];
    match address {
        IpAddr::V4(address) => {
            gid[..12].copy_from_slice(&IPV4_MAPPED);
            gid[12..].copy_from_slice(&address.octets());
        }
        IpAddr::V6(address) => gid = address.octets(),
    }
    GidEntry {
        gid,
        mac,
        vlan: NO_VLAN.into(),
        gid_type: GidType::RoceV2.raw(),
        reserved: [0; 7],
    }
}

/// Writes the page list of `area` to `chunks`.
fn list_pages(chunks: &Area, area: &Area) -> Result<PageList> {
    let count = area.length.max(1).div_ceil(PAGE);
    let needed = count.div_ceil(CHUNK_PAGES);
    ensure!(needed <= chunks.length / CHUNK_SIZE, "too many pages");
    for chunk in 0..needed {
        let first = chunk * CHUNK_PAGES;
        let here = CHUNK_PAGES.min(count - first);
        let at = chunk * CHUNK_SIZE;
        let next = chunks.address + (at + CHUNK_SIZE) as u64;
        chunks
            .memory
            .write(at, &[next.to_le(), (here as u64).to_le()]);
        for page in 0..here {
            let address = area.address + ((first + page) * PAGE) as u64;
            chunks.memory.write(at + 16 + 8 * page, &address.to_le());
        }
    }
    Ok(PageList {
        first_chunk: chunks.address.into(),
        offset: 0.into(),
        length: (area.length as u64).into(),
        page_count: u32::try_from(count).context("too many pages")?.into(),
        page_shift: PAGE.trailing_zeros() as u8,
        reserved: [0; 3],
    })
}
