// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A provider of our own that lets a test reach every ring, index and bit.

use std::net::Ipv6Addr;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::verbs::{Errno, Result};
use vrnic_wire::abi;
use vrnic_wire::completion::{CQE_STRIDE, Cqe, PHASE_OFFSET};
use vrnic_wire::config::DOORBELL_PAGE_SIZE;
use vrnic_wire::notify::{self, SlotBits};
use vrnic_wire::ring::{self, offset};
use vrnic_wire::work::{
    RdmaTarget, ReceiveHeader, SEND_DATA_OFFSET, SendHeader, Sge, TARGET_OFFSET,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::uverbs::{AsyncEvents, Bytes, Command, Page, Uverbs, word};

/// Doorbell slots of a context.
pub const SLOTS: u32 = 1024;
/// Entries of the work rings.
pub const ENTRIES: u32 = 64;
/// Bytes from one send entry to the next.
pub const SEND_STRIDE: u32 = 256;
/// Bytes from one receive entry to the next.
pub const RECEIVE_STRIDE: u32 = 64;

/// GID index and GID to talk to ourselves.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Index in the table
    pub index: u8,
    /// The GID
    pub gid: Ipv6Addr,
}

impl Port {
    /// The first usable GID of port 1 of the device `name`.
    pub fn of(name: &str) -> Option<Self> {
        (0..=255_u8).find_map(|index| {
            let path = format!("/sys/class/infiniband/{name}/ports/1/gids/{index}");
            let gid: Ipv6Addr = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
            (!gid.is_unspecified()).then_some(Port { index, gid })
        })
    }
}

/// A context with a protection domain.
pub struct Context {
    /// The kernel's side of it
    pub uverbs: Uverbs,
    /// The notify area
    pub notify: Memory,
    /// The doorbell page
    pub doorbell: Page,
    /// What `ALLOC_CONTEXT` said
    pub granted: abi::AllocContextResponse,
    /// Async events
    pub events: AsyncEvents,
    /// Handle of the protection domain
    pub pd: u32,
}

impl Context {
    /// A context on the device `name`.
    pub fn new(name: &str) -> Result<Self> {
        let uverbs =
            Uverbs::open(name).map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::ENODEV)))?;
        let request = abi::AllocContextRequest {
            comp_mask: 0,
            slots: SLOTS,
        };
        let reply = uverbs.execute(
            Command::GetContext,
            &Bytes::default(),
            request.as_bytes(),
            8 + size_of::<abi::AllocContextResponse>(),
        )?;
        let (granted, _) = abi::AllocContextResponse::read_from_prefix(&reply[8..])
            .map_err(|_| Errno(libc::EPROTO))?;
        let doorbell = uverbs.map(
            granted.doorbell_offset,
            DOORBELL_PAGE_SIZE as usize,
            libc::PROT_WRITE,
            libc::MAP_SHARED,
        )?;
        let notify = uverbs.map_memory(granted.notify_offset, granted.notify_length as usize)?;
        let pd = word(
            &uverbs.execute(Command::AllocPd, &Bytes::default(), &[], 4)?,
            0,
        );
        Ok(Context {
            notify,
            doorbell,
            granted,
            events: AsyncEvents::new(word(&reply, 0) as i32),
            pd,
            uverbs,
        })
    }

    /// Rings `slot` as the standard says.
    pub fn ring(&self, slot: u32) {
        let bits = SlotBits::new(slot);
        self.notify.set_bits(bits.pending_offset, bits.pending_mask);
        self.notify.set_bits(bits.summary_offset, bits.summary_mask);
        fence(Ordering::SeqCst);
        if self.notify.load32(notify::FLAGS_OFFSET) & notify::flags::POLLING == 0 {
            self.doorbell.store32(0, slot);
        }
    }

    /// Waits for the event `kind` of the object with user handle `handle`.
    pub fn wait_event(&mut self, handle: u64, kind: i32, patience: Duration) -> bool {
        let end = Instant::now() + patience;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.next(left) {
                Some(event) if event == (handle, kind) => return true,
                None if left.is_zero() => return false,
                _ => {}
            }
        }
    }

    /// Waits for several events, each of the object with a user handle and of a kind, in any order.
    pub fn wait_events(&mut self, wanted: &[(u64, i32)], patience: Duration) -> bool {
        let mut missing = wanted.to_vec();
        let end = Instant::now() + patience;
        while !missing.is_empty() {
            let left = end.saturating_duration_since(Instant::now());
            match self.events.next(left) {
                Some(event) => missing.retain(|&other| other != event),
                None if left.is_zero() => return false,
                None => {}
            }
        }
        true
    }

    /// Registers memory; its keys are equal.
    pub fn register(&self, memory: &Memory, access: i32) -> Result<(u32, u32)> {
        let core = Bytes::default()
            .u64(memory.addr(0))
            .u64(memory.len() as u64)
            .u64(memory.addr(0))
            .u32(self.pd)
            .u32(access as u32);
        let reply = self.uverbs.execute(Command::RegMr, &core, &[], 12)?;
        Ok((word(&reply, 0), word(&reply, 1)))
    }

    /// Deregisters the region `handle`.
    pub fn deregister(&self, handle: u32) -> Result<()> {
        self.uverbs
            .execute(Command::DeregMr, &Bytes::default().u32(handle), &[], 0)
            .map(|_| ())
    }

    /// `CREATE_CQ` with any driver request.
    pub fn create_cq_raw(&self, id: u64, cqe: u32, driver: &[u8]) -> Result<u32> {
        let core = Bytes::default()
            .u64(id)
            .u32(cqe)
            .u32(0)
            .u32(u32::MAX)
            .u32(0);
        let reply = self.uverbs.execute(
            Command::CreateCq,
            &core,
            driver,
            8 + size_of::<abi::CreateCqResponse>(),
        )?;
        Ok(word(&reply, 0))
    }

    /// `RESIZE_CQ` with any driver request.
    pub fn resize_cq_raw(&self, handle: u32, cqe: u32, driver: &[u8]) -> Result<()> {
        let core = Bytes::default().u32(handle).u32(cqe);
        self.uverbs
            .execute(Command::ResizeCq, &core, driver, 8)
            .map(|_| ())
    }

    /// `CREATE_SRQ` with any driver request.
    pub fn create_srq_raw(&self, id: u64, max_wr: u32, driver: &[u8]) -> Result<u32> {
        let core = Bytes::default()
            .u64(id)
            .u32(self.pd)
            .u32(max_wr)
            .u32(2)
            .u32(0);
        let reply = self.uverbs.execute(
            Command::CreateSrq,
            &core,
            driver,
            16 + size_of::<abi::CreateSrqResponse>(),
        )?;
        Ok(word(&reply, 0))
    }

    /// `MODIFY_SRQ` with any driver request.
    pub fn modify_srq(
        &self,
        handle: u32,
        mask: i32,
        max_wr: u32,
        limit: u32,
        driver: &[u8],
    ) -> Result<()> {
        let core = Bytes::default()
            .u32(handle)
            .u32(mask as u32)
            .u32(max_wr)
            .u32(limit);
        self.uverbs
            .execute(Command::ModifySrq, &core, driver, 0)
            .map(|_| ())
    }

    /// Destroys an object that is answered with so many bytes.
    fn destroy(&self, command: Command, handle: u32, reply: usize) -> Result<()> {
        let core = Bytes::default().u32(handle).u32(0);
        self.uverbs.execute(command, &core, &[], reply).map(|_| ())
    }

    /// Destroys the SRQ `handle`.
    pub fn destroy_srq(&self, handle: u32) -> Result<()> {
        self.destroy(Command::DestroySrq, handle, 4)
    }

    /// `CREATE_QP` with any driver request: handle, number and slot.
    pub fn create_qp_raw(
        &self,
        id: u64,
        send_cq: u32,
        recv_cq: u32,
        srq: Option<u32>,
        driver: &[u8],
    ) -> Result<(u32, u32, u32)> {
        let core = Bytes::default()
            .u64(id)
            .u32(self.pd)
            .u32(send_cq)
            .u32(recv_cq)
            .u32(srq.unwrap_or(0))
            .u32(ENTRIES)
            .u32(ENTRIES)
            .u32(4)
            .u32(2)
            .u32(0)
            .u8(0)
            .u8(2)
            .u8(u8::from(srq.is_some()))
            .u8(0);
        let reply = self.uverbs.execute(
            Command::CreateQp,
            &core,
            driver,
            32 + size_of::<abi::CreateQpResponse>(),
        )?;
        Ok((word(&reply, 0), word(&reply, 1), word(&reply, 9)))
    }

    /// A QP of the type `kind` without queues.
    pub fn create_bare_qp(&self, kind: u8, cq: u32) -> Result<u32> {
        let core = Bytes::default()
            .u64(0)
            .u32(self.pd)
            .u32(cq)
            .u32(cq)
            .raw(&[0; 6 * 4 + 1])
            .u8(kind)
            .raw(&[0; 2]);
        let request = abi::CreateQpRequest::default();
        let length = 32 + size_of::<abi::CreateQpResponse>();
        let reply = self
            .uverbs
            .execute(Command::CreateQp, &core, request.as_bytes(), length)?;
        Ok(word(&reply, 0))
    }

    /// Attaches the QP `handle` to a multicast group, or detaches it.
    pub fn multicast(&self, command: Command, handle: u32, gid: [u8; 16], lid: u16) -> Result<()> {
        let core = Bytes::default().raw(&gid).u32(handle).u16(lid).u16(0);
        self.uverbs.execute(command, &core, &[], 0).map(drop)
    }

    /// Destroys the CQ `handle`.
    pub fn destroy_cq(&self, handle: u32) -> Result<()> {
        self.destroy(Command::DestroyCq, handle, 8)
    }

    /// Destroys the QP `handle`.
    pub fn destroy_qp(&self, handle: u32) -> Result<()> {
        self.destroy(Command::DestroyQp, handle, 4)
    }

    fn modify(&self, handle: u32, change: &Change) -> Result<()> {
        let dest = |gid: [u8; 16], index: u8| {
            Bytes::default()
                .raw(&gid)
                .u32(0)
                .u16(0)
                .u16(0)
                .u8(index)
                .u8(64)
                .u8(0)
                .u8(0)
                .u8(0)
                .u8(0)
                .u8(1)
                .u8(1)
        };
        let alt = dest([0; 16], 0);
        let core = dest(change.port.gid.octets(), change.port.index)
            .raw(&alt.into_vec())
            .u32(handle)
            .u32(change.mask)
            .u32(0)
            .u32(change.psn)
            .u32(change.psn)
            .u32(change.peer)
            .u32(15)
            .u16(0)
            .u16(0)
            .raw(&[change.state, 0, 3, 0, 0, 4, 4, 12, 1, 17, 7, 7, 0, 0, 0, 0]);
        self.uverbs
            .execute(Command::ModifyQp, &core, &[], 0)
            .map(|_| ())
    }
}

struct Change {
    port: Port,
    mask: u32,
    state: u8,
    peer: u32,
    psn: u32,
}

/// A completion queue.
pub struct Cq {
    /// Handle of the kernel
    pub handle: u32,
    /// Its buffer: header, then entries at [`PAGE`]
    pub buffer: Memory,
    /// Entries
    pub entries: u32,
    /// Consumer index
    pub next: u32,
}

impl Cq {
    /// The driver's request for a ring of `entries` in `buffer`.
    #[must_use]
    pub fn request(buffer: &Memory, entries: u32) -> abi::CreateCqRequest {
        abi::CreateCqRequest {
            buf_addr: buffer.addr(0),
            buf_length: buffer.len() as u64,
            ring: abi::Ring {
                header_offset: 0,
                entries_offset: PAGE as u32,
                entries,
                stride: CQE_STRIDE,
            },
            ..Default::default()
        }
    }

    /// A queue of `entries`, a power of two, with user handle `id`.
    pub fn new(context: &Context, id: u64, entries: u32) -> Result<Self> {
        let buffer = Memory::new(PAGE + (entries * CQE_STRIDE) as usize)?;
        let handle =
            context.create_cq_raw(id, entries, Self::request(&buffer, entries).as_bytes())?;
        Ok(Cq {
            handle,
            buffer,
            entries,
            next: 0,
        })
    }

    /// The next completion if there is one, consumed.
    pub fn poll(&mut self) -> Option<Cqe> {
        let at = PAGE + ((self.next & (self.entries - 1)) * CQE_STRIDE) as usize;
        let mut bytes = [0; CQE_STRIDE as usize];
        let last = self.buffer.load(at + 56);
        if (last >> 56) as u8 != ring::phase(self.next, self.entries) {
            return None;
        }
        self.buffer.read(at, &mut bytes);
        debug_assert_eq!(PHASE_OFFSET, 63);
        self.next = self.next.wrapping_add(1);
        self.buffer.store32(offset::DRIVER_INDEX, self.next);
        Cqe::read_from_bytes(&bytes).ok()
    }

    /// The next completion; `None` after `patience`.
    pub fn wait(&mut self, patience: Duration) -> Option<Cqe> {
        let end = Instant::now() + patience;
        loop {
            if let Some(cqe) = self.poll() {
                return Some(cqe);
            }
            if Instant::now() > end {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// A queue pair with its rings.
pub struct Qp {
    /// Handle of the kernel
    pub handle: u32,
    /// QP number
    pub number: u32,
    /// Doorbell slot
    pub slot: u32,
    /// Send ring header at 0, receive ring header at 128, entries from [`PAGE`] on
    pub buffer: Memory,
    /// Producer of sends
    pub sent: u32,
    /// Producer of receives
    pub received: u32,
}

/// Offset of the receive ring's header.
pub const RECEIVE_HEADER: usize = 128;

fn receive_entries() -> usize {
    PAGE + (ENTRIES * SEND_STRIDE) as usize
}

impl Qp {
    /// The driver's request for rings in `buffer`.
    #[must_use]
    pub fn request(buffer: &Memory) -> abi::CreateQpRequest {
        abi::CreateQpRequest {
            buf_addr: buffer.addr(0),
            buf_length: buffer.len() as u64,
            sq: abi::Ring {
                header_offset: 0,
                entries_offset: PAGE as u32,
                entries: ENTRIES,
                stride: SEND_STRIDE,
            },
            rq: abi::Ring {
                header_offset: RECEIVE_HEADER as u32,
                entries_offset: receive_entries() as u32,
                entries: ENTRIES,
                stride: RECEIVE_STRIDE,
            },
            ..Default::default()
        }
    }

    /// A buffer as [`Qp::request`] describes.
    pub fn rings() -> Result<Memory> {
        Memory::new(receive_entries() + (ENTRIES * RECEIVE_STRIDE) as usize)
    }

    /// An RC QP in RESET with user handle `id`.
    pub fn new(context: &Context, id: u64, cq: &Cq) -> Result<Self> {
        Self::with(context, id, cq, None)
    }

    /// An RC QP in RESET with user handle `id` that takes its receives from the SRQ `srq`.
    pub fn with_srq(context: &Context, id: u64, cq: &Cq, srq: u32) -> Result<Self> {
        Self::with(context, id, cq, Some(srq))
    }

    fn with(context: &Context, id: u64, cq: &Cq, srq: Option<u32>) -> Result<Self> {
        let buffer = Self::rings()?;
        let mut request = Self::request(&buffer);
        if srq.is_some() {
            request.rq = abi::Ring::default();
        }
        let (handle, number, slot) =
            context.create_qp_raw(id, cq.handle, cq.handle, srq, request.as_bytes())?;
        Ok(Qp {
            handle,
            number,
            slot,
            buffer,
            sent: 0,
            received: 0,
        })
    }

    /// RESET to RTS, connected with QP `peer` of this host.
    pub fn connect(&self, context: &Context, port: Port, peer: u32) -> Result<()> {
        for (state, mask) in [
            (1, 1 | 1 << 4 | 1 << 5 | 1 << 3),
            (
                2,
                1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15,
            ),
            (3, 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13),
        ] {
            context.modify(
                self.handle,
                &Change {
                    port,
                    mask,
                    state,
                    peer,
                    psn: 100,
                },
            )?;
        }
        Ok(())
    }

    /// Connects this QP and another one of the context with each other.
    pub fn connect_with(&self, context: &Context, port: Port, peer: &Qp) -> Result<()> {
        self.connect(context, port, peer.number)?;
        peer.connect(context, port, self.number)
    }

    /// To ERR.
    pub fn to_error(&self, context: &Context) -> Result<()> {
        context.modify(
            self.handle,
            &Change {
                port: Port {
                    index: 0,
                    gid: Ipv6Addr::UNSPECIFIED,
                },
                mask: 1,
                state: 6,
                peer: 0,
                psn: 0,
            },
        )
    }

    /// Places one send entry of any bytes; [`Qp::publish`] makes it seen.
    pub fn put_send(&mut self, bytes: &[u8]) {
        let at = PAGE + ((self.sent & (ENTRIES - 1)) * SEND_STRIDE) as usize;
        self.buffer
            .write(at, &bytes[..bytes.len().min(SEND_STRIDE as usize)]);
        self.sent = self.sent.wrapping_add(1);
    }

    /// Places one receive entry of any bytes and makes it seen.
    pub fn put_receive(&mut self, context: &Context, bytes: &[u8]) {
        let at = receive_entries() + ((self.received & (ENTRIES - 1)) * RECEIVE_STRIDE) as usize;
        self.buffer
            .write(at, &bytes[..bytes.len().min(RECEIVE_STRIDE as usize)]);
        self.received = self.received.wrapping_add(1);
        self.buffer
            .store32(RECEIVE_HEADER + offset::DRIVER_INDEX, self.received);
        fence(Ordering::SeqCst);
        if self.buffer.load32(RECEIVE_HEADER + offset::DEVICE_FLAGS) & ring::flags::NEED_DOORBELL
            != 0
        {
            context.ring(self.slot);
        }
    }

    /// Shows the sends placed so far to the device.
    pub fn publish(&self, context: &Context) {
        self.buffer.store32(offset::DRIVER_INDEX, self.sent);
        context.ring(self.slot);
    }
}

/// A shared receive queue with its ring.
pub struct Srq {
    /// Handle of the kernel
    pub handle: u32,
    /// Ring header at 0, entries from [`PAGE`] on
    pub buffer: Memory,
    /// Producer
    received: u32,
}

impl Srq {
    /// The driver's request for a ring of `entries` in `buffer`.
    #[must_use]
    pub fn request(buffer: &Memory, entries: u32) -> abi::CreateSrqRequest {
        abi::CreateSrqRequest {
            buf_addr: buffer.addr(0),
            buf_length: buffer.len() as u64,
            ring: abi::Ring {
                header_offset: 0,
                entries_offset: PAGE as u32,
                entries,
                stride: RECEIVE_STRIDE,
            },
            ..Default::default()
        }
    }

    /// A buffer as [`Srq::request`] describes, for [`ENTRIES`].
    pub fn ring() -> Result<Memory> {
        Memory::new(PAGE + (ENTRIES * RECEIVE_STRIDE) as usize)
    }

    /// An SRQ of [`ENTRIES`] with user handle `id`.
    pub fn new(context: &Context, id: u64) -> Result<Self> {
        let buffer = Self::ring()?;
        let request = Self::request(&buffer, ENTRIES);
        let handle = context.create_srq_raw(id, ENTRIES, request.as_bytes())?;
        Ok(Srq {
            handle,
            buffer,
            received: 0,
        })
    }

    /// Entries that nobody took.
    #[must_use]
    pub fn posted(&self) -> u32 {
        self.received
            .wrapping_sub(self.buffer.load32(offset::DEVICE_INDEX))
    }

    /// Places one entry of any bytes and makes it seen.
    pub fn put(&mut self, bytes: &[u8]) {
        let at = PAGE + ((self.received & (ENTRIES - 1)) * RECEIVE_STRIDE) as usize;
        self.buffer
            .write(at, &bytes[..bytes.len().min(RECEIVE_STRIDE as usize)]);
        self.received = self.received.wrapping_add(1);
        fence(Ordering::SeqCst);
        self.buffer.store32(offset::DRIVER_INDEX, self.received);
    }
}

/// A well-formed send entry with one element.
#[must_use]
pub fn send_entry(header: SendHeader, target: RdmaTarget, sge: Sge) -> Vec<u8> {
    let mut entry = vec![0; SEND_STRIDE as usize];
    entry[..TARGET_OFFSET].copy_from_slice(header.as_bytes());
    entry[TARGET_OFFSET..SEND_DATA_OFFSET].copy_from_slice(target.as_bytes());
    entry[SEND_DATA_OFFSET..SEND_DATA_OFFSET + 16].copy_from_slice(sge.as_bytes());
    entry
}

/// A well-formed receive entry with one element.
#[must_use]
pub fn receive_entry(wr_id: u64, sge: Sge) -> Vec<u8> {
    let header = ReceiveHeader {
        wr_id: wr_id.into(),
        num_sge: 1.into(),
        reserved: [0; 6],
    };
    [header.as_bytes(), sge.as_bytes()].concat()
}
