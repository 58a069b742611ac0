// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A guest: a minimal driver and provider.

use super::memory::{BASE, GuestView};
use crate::{cause::Cause, device::Rnic, resources::Io, segment::Outbox, time::Instant};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use vrnic_wire::{
    command::{
        Command, CommandHeader, ContextKind, CreateContext, CreateCq, CreatePd, CreateQp,
        CreateSrq, CreateXrcSrq, CreateXrcd, RegisterMr, ReplyHeader, ResizeCq, ResizeSrq,
        SrqCreated, Status, mr_flags, qp_flags,
    },
    completion::{self, CQE_STRIDE, Cqe, PHASE_OFFSET},
    memory::{CHUNK_PAGES, CHUNK_SIZE, PageList, access},
    notify::{self, SlotBits},
    qp::QpType,
    ring::{self, RingHeader, RingLayout, offset},
    work::{self, ReceiveHeader, SEND_DATA_OFFSET, SendHeader, SendOpcode, Sge},
};
use zerocopy::{FromBytes, IntoBytes};

pub(super) const PAGE: usize = 4096;

/// A buffer of scattered pages.
#[derive(Clone, Debug)]
pub struct Arena {
    pub(super) pages: Vec<u64>,
    view: GuestView,
}

impl Arena {
    /// Returns the length in bytes.
    pub fn length(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Returns a buffer that repeats the same pages.
    #[must_use]
    pub fn repeated(&self, times: usize) -> Self {
        Self {
            pages: self.pages.repeat(times),
            view: self.view.clone(),
        }
    }

    /// Returns the bus address of the byte at `offset`.
    pub fn address(&self, offset: usize) -> u64 {
        self.pages[offset / PAGE] + (offset % PAGE) as u64
    }

    /// Writes bytes at `offset`.
    pub fn put(&self, mut offset: usize, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let length = bytes.len().min(PAGE - offset % PAGE);
            self.view.put(self.address(offset), &bytes[..length]);
            offset += length;
            bytes = &bytes[length..];
        }
    }

    /// Reads `length` bytes at `offset`.
    pub fn get(&self, mut offset: usize, length: usize) -> Vec<u8> {
        let mut result = Vec::with_capacity(length);
        while result.len() < length {
            let part = (length - result.len()).min(PAGE - offset % PAGE);
            let mut bytes = vec![0; part];
            self.view.get(self.address(offset), &mut bytes);
            result.extend(bytes);
            offset += part;
        }
        result
    }

    /// Returns the 32-bit word at `offset`.
    pub fn get_u32(&self, offset: usize) -> u32 {
        let bytes = self.get(offset, 4);
        u32::from_le_bytes(bytes.try_into().expect("4 bytes"))
    }

    fn put_u32(&self, offset: usize, value: u32) {
        self.put(offset, &value.to_le_bytes());
    }

    /// Sets `bits` of the 64-bit word at `offset`.
    pub fn or_u64(&self, offset: usize, bits: u64) {
        let bytes = self.get(offset, 8);
        let old = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        self.put(offset, &(old | bits).to_le_bytes());
    }
}

/// A memory region.
#[derive(Clone, Debug)]
pub struct Mr {
    /// Its memory.
    pub arena: Arena,
    /// Address of its first byte.
    pub iova: u64,
    /// Its key.
    pub key: u32,
}

impl Mr {
    /// Returns an element for `length` bytes at `offset`.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: (self.iova + offset as u64).into(),
            length: (length as u32).into(),
            lkey: self.key.into(),
        }
    }
}

/// A ring in an arena.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Its memory.
    pub arena: Arena,
    /// Its location in the arena.
    pub layout: RingLayout,
    /// The index that the driver side writes.
    pub index: u32,
}

impl Ring {
    fn header(&self, field: usize) -> usize {
        self.layout.header_offset.get() as usize + field
    }

    /// Reads the device's index.
    pub fn device_index(&self) -> u32 {
        self.arena.get_u32(self.header(offset::DEVICE_INDEX))
    }

    /// Reads the device's flags.
    pub fn device_flags(&self) -> u32 {
        self.arena.get_u32(self.header(offset::DEVICE_FLAGS))
    }

    /// Publishes the driver side's index.
    pub fn publish(&self) {
        self.arena
            .put_u32(self.header(offset::DRIVER_INDEX), self.index);
    }

    /// Returns the completion with this index if the device has written it.
    fn completion(&self, index: u32) -> Option<Cqe> {
        let place = self.layout.entry_offset(index) as usize;
        let bytes = self.arena.get(place, CQE_STRIDE as usize);
        let cqe = Cqe::read_from_bytes(&bytes).expect("64 bytes");
        (cqe.phase == ring::phase(index, self.layout.entries.get())).then_some(cqe)
    }

    /// Writes and publishes an entry. Returns false if the ring is full.
    pub fn post(&mut self, entry: &[u8]) -> bool {
        if self.index.wrapping_sub(self.device_index()) >= self.layout.entries.get() {
            return false;
        }
        assert!(entry.len() <= self.layout.stride.get() as usize);
        let place = self.layout.entry_offset(self.index) as usize;
        self.arena.put(place, entry);
        self.index = self.index.wrapping_add(1);
        self.publish();
        true
    }
}

/// A completion queue.
#[derive(Clone, Debug)]
pub struct Cq {
    /// Its number.
    pub cqn: u32,
    /// Its ring.
    pub ring: Ring,
    arm: ring::Arm,
}

/// A completion, without fields that hardly matter.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// `wr_id` of the work request.
    pub wr_id: u64,
    /// Queue pair.
    pub qpn: u32,
    /// Status.
    pub status: completion::Status,
    /// Opcode.
    pub opcode: completion::Opcode,
    /// Bytes.
    pub length: u32,
    /// [`completion::flags`].
    pub flags: u8,
    /// [`completion::packet_flags`].
    pub packet_flags: u8,
    /// Immediate data.
    pub immediate: u32,
    /// VLAN, or the tag that was removed.
    pub vlan: u16,
    /// Tag of the flow that directed a frame.
    pub flow_tag: u32,
    /// Sender of a datagram.
    pub source_qpn: u32,
    /// Index of the P_Key of a datagram.
    pub pkey_index: u16,
    /// On a subnet, source of a datagram.
    pub source: Option<completion::LidSource>,
    /// Why it failed.
    pub cause: Option<Cause>,
}

impl Cq {
    /// Takes the next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        let ring = &mut self.ring;
        let cqe = ring.completion(ring.index)?;
        ring.index = ring.index.wrapping_add(1);
        ring.publish();
        Some(Completion {
            wr_id: cqe.wr_id.get(),
            qpn: cqe.qpn.get(),
            status: completion::Status::try_from(cqe.status).expect("status"),
            opcode: completion::Opcode::try_from(cqe.opcode).expect("opcode"),
            length: cqe.byte_length.get(),
            flags: cqe.flags,
            packet_flags: cqe.packet_flags,
            immediate: cqe.immediate.get(),
            vlan: cqe.vlan.get(),
            flow_tag: cqe.flow_tag.get(),
            source_qpn: cqe.source_qpn.get(),
            pkey_index: cqe.pkey_index.get(),
            source: (cqe.flags & completion::flags::SOURCE_LID != 0)
                .then(|| completion::LidSource::from_bytes(cqe.source_mac)),
            cause: Cause::from_code(cqe.vendor_error.get()),
        })
    }

    /// Returns the number of completions that have not been taken.
    pub fn unread(&self) -> u32 {
        let ring = &self.ring;
        let written = |ahead: &u32| ring.completion(ring.index.wrapping_add(*ahead)).is_some();
        (0..ring.layout.entries.get()).take_while(written).count() as u32
    }

    /// Takes all completions.
    pub fn drain(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.poll()).collect()
    }

    /// Requests an event.
    pub fn arm(&mut self, solicited_only: bool) {
        self.arm = self.arm.again(solicited_only);
        let place = self.ring.header(offset::ARM);
        self.ring.arena.put_u32(place, self.arm.raw());
    }
}

/// Properties of a queue pair.
#[derive(Copy, Clone, Debug)]
pub struct QpOptions {
    /// Type.
    pub qp_type: QpType,
    /// Number of entries of both queues, a power of two.
    pub entries: u32,
    /// Number of elements per entry.
    pub sge: u16,
    /// Number of inline bytes.
    pub inline: u16,
    /// Whether all sends complete with a CQE.
    pub signal_all: bool,
    /// More of [`qp_flags`].
    pub flags: u8,
    /// Shared receive queue to use instead of an own receive queue.
    pub srqn: Option<u32>,
    /// XRC domain of an XRC target.
    pub xrcdn: u32,
}

impl Default for QpOptions {
    fn default() -> Self {
        Self {
            qp_type: QpType::ReliableConnection,
            entries: 64,
            sge: 4,
            inline: 128,
            signal_all: false,
            flags: 0,
            srqn: None,
            xrcdn: 0,
        }
    }
}

/// A shared receive queue.
#[derive(Clone, Debug)]
pub struct Srq {
    /// Its number.
    pub srqn: u32,
    /// Its ring.
    pub ring: Ring,
}

impl Srq {
    /// Posts a receive. Returns false if the queue is full.
    pub fn post(&mut self, wr_id: u64, sges: &[Sge]) -> bool {
        self.ring.post(&receive_entry(wr_id, sges))
    }
}

/// Builds an entry of a receive queue.
fn receive_entry(wr_id: u64, sges: &[Sge]) -> Vec<u8> {
    let header = ReceiveHeader {
        wr_id: wr_id.into(),
        num_sge: (sges.len() as u16).into(),
        reserved: [0; 6],
    };
    let mut entry = header.as_bytes().to_vec();
    entry.extend(sges.iter().flat_map(|sge| sge.as_bytes().to_vec()));
    entry
}

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    /// Its number.
    pub qpn: u32,
    /// Its doorbell slot.
    pub slot: u32,
    /// Its send queue.
    pub sq: Ring,
    /// Its receive queue.
    pub rq: Ring,
}

/// A send work request, to be built step by step.
#[derive(Clone, Debug)]
pub struct Send {
    /// Head of the entry.
    pub header: SendHeader,
    /// Operation-specific part of the entry.
    pub target: [u8; work::TARGET_LENGTH],
    /// Elements or inline bytes.
    pub data: Vec<u8>,
}

impl Send {
    /// Creates a request with this `wr_id`.
    pub fn new(wr_id: u64, opcode: SendOpcode) -> Self {
        Self {
            header: SendHeader {
                opcode: opcode.raw(),
                flags: work::send_flags::SIGNALED,
                wr_id: wr_id.into(),
                ..Default::default()
            },
            target: [0; work::TARGET_LENGTH],
            data: Vec::new(),
        }
    }

    /// Sets the peer's shared receive queue. Must be called after the methods that set another target.
    #[must_use]
    pub fn to_srq(mut self, srqn: u32) -> Self {
        let place = work::XRC_SRQN_OFFSET - work::TARGET_OFFSET;
        self.target[place..].copy_from_slice(&srqn.to_le_bytes());
        self
    }

    /// Sets more flags.
    #[must_use]
    pub fn flags(mut self, flags: u8) -> Self {
        self.header.flags |= flags;
        self
    }

    /// Disables the CQE of a successful request.
    #[must_use]
    pub fn unsignaled(mut self) -> Self {
        self.header.flags &= !work::send_flags::SIGNALED;
        self
    }

    /// Adds an element.
    #[must_use]
    pub fn element(mut self, sge: Sge) -> Self {
        self.header.num_sge = (self.header.num_sge.get() + 1).into();
        self.data.extend(sge.as_bytes());
        self
    }

    /// Sets inline payload.
    #[must_use]
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.header.flags |= work::send_flags::INLINE;
        self.header.inline_length = (bytes.len() as u32).into();
        self.data = bytes.to_vec();
        self
    }

    /// Sets the header and the payload of each segment.
    #[must_use]
    pub fn segments(mut self, header: &[u8], size: u32) -> Self {
        self.header.inline_length = (header.len() as u32).into();
        self.header.immediate = size.into();
        let mut padded = header.to_vec();
        padded.resize(header.len().next_multiple_of(16), 0);
        self.data.splice(..0, padded);
        self
    }

    /// Sets immediate data, or the key to invalidate.
    #[must_use]
    pub fn immediate(mut self, immediate: u32) -> Self {
        self.header.immediate = immediate.into();
        self
    }

    /// Sets the index of the P_Key, for the GSI.
    #[must_use]
    pub fn pkey_index(mut self, index: u16) -> Self {
        self.header.pkey_index = index.into();
        self
    }

    /// Sets the remote memory of a read or a write.
    #[must_use]
    pub fn rdma(mut self, address: u64, rkey: u32) -> Self {
        let target = work::RdmaTarget {
            address: address.into(),
            rkey: rkey.into(),
            ..Default::default()
        };
        self.target.copy_from_slice(target.as_bytes());
        self
    }

    /// Sets remote memory and operands of an atomic.
    #[must_use]
    pub fn atomic(mut self, address: u64, rkey: u32, compare_add: u64, swap: u64) -> Self {
        let target = work::AtomicTarget {
            address: address.into(),
            rkey: rkey.into(),
            compare_add: compare_add.into(),
            swap: swap.into(),
            ..Default::default()
        };
        self.target.copy_from_slice(target.as_bytes());
        self
    }

    /// Sets the memory and placement of a flush.
    #[must_use]
    pub fn flush(self, address: u64, rkey: u32, length: u32, placement: u8) -> Self {
        self.target(&work::FlushTarget {
            address: address.into(),
            rkey: rkey.into(),
            length: length.into(),
            placement,
            ..Default::default()
        })
    }

    /// Sets the destination of a datagram.
    #[must_use]
    pub fn datagram(mut self, address: work::AddressVector, qpn: u32, qkey: u32) -> Self {
        let target = work::DatagramTarget {
            address,
            remote_qpn: qpn.into(),
            qkey: qkey.into(),
        };
        self.target.copy_from_slice(target.as_bytes());
        self
    }

    /// Returns the ring entry.
    pub fn entry(&self) -> Vec<u8> {
        let mut entry = self.header.as_bytes().to_vec();
        entry.extend(self.target);
        assert_eq!(entry.len(), SEND_DATA_OFFSET);
        entry.extend(&self.data);
        entry
    }
}

/// Returns all rights that a region or a queue pair of this device can give to peers.
pub fn full_rights(rnic: &Rnic) -> u32 {
    if rnic.features().memory_placement {
        access::QUEUE_PAIR | access::PLACEMENT
    } else {
        access::QUEUE_PAIR
    }
}

/// A guest with memory, one context and one protection domain.
#[derive(Debug)]
pub struct Guest {
    /// Its memory.
    pub view: GuestView,
    free: Vec<u64>,
    random: ChaCha8Rng,
    next_iova: u64,
    area: Option<Arena>,
    /// Time of its commands.
    pub now: Instant,
    /// Its context.
    pub context: u32,
    /// Its doorbell page.
    pub page: u32,
    /// Its protection domain.
    pub pd: u32,
}

impl Guest {
    /// Creates a guest with `pages` pages of memory, which it allocates in an order that depends on `seed`.
    pub fn new(view: GuestView, pages: usize, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut free: Vec<u64> = (0..pages).map(|page| BASE + (page * PAGE) as u64).collect();
        for index in (1..free.len()).rev() {
            // Some pages stay next to each other, so that some ranges can be merged.
            if random.next_u32() % 4 != 0 {
                free.swap(index, random.next_u32() as usize % (index + 1));
            }
        }
        Self {
            view,
            free,
            random,
            next_iova: 0x7f00_0000_0000,
            area: None,
            now: Instant::default(),
            context: 0,
            page: 0,
            pd: 0,
        }
    }

    /// Returns a random number.
    pub fn random(&mut self) -> u32 {
        self.random.next_u32()
    }

    /// Allocates at least `length` bytes of memory, all 0.
    pub fn arena(&mut self, length: usize) -> Arena {
        let pages = length.div_ceil(PAGE).max(1);
        let left = self.free.len().checked_sub(pages).expect("guest memory");
        let pages = self.free.split_off(left);
        for &page in &pages {
            self.view.put(page, &[0; PAGE]);
        }
        Arena {
            pages,
            view: self.view.clone(),
        }
    }

    /// Frees memory.
    pub fn free(&mut self, arena: Arena) {
        self.free.extend(arena.pages);
    }

    /// Builds a page list for `length` bytes at `offset` in an arena. Also returns the memory of its chunks.
    pub fn page_list(&mut self, arena: &Arena, offset: usize, length: usize) -> (PageList, Arena) {
        let first = offset / PAGE;
        let last = (offset + length).div_ceil(PAGE);
        let pages = &arena.pages[first..last];
        // Chunks are sometimes not full.
        let full = if pages.len() > 1000 || self.random().is_multiple_of(2) {
            CHUNK_PAGES
        } else {
            3
        };
        let count = pages.len().div_ceil(full);
        let chunks = self.arena(count * CHUNK_SIZE);
        for (index, pages) in pages.chunks(full).enumerate() {
            let next = if index + 1 < count {
                chunks.pages[index + 1]
            } else {
                0xdead_beef
            };
            let mut bytes = next.to_le_bytes().to_vec();
            bytes.extend((pages.len() as u64).to_le_bytes());
            bytes.extend(pages.iter().flat_map(|page| page.to_le_bytes()));
            chunks.put(index * CHUNK_SIZE, &bytes);
        }
        let list = PageList {
            first_chunk: chunks.pages[0].into(),
            offset: ((offset % PAGE) as u64).into(),
            length: (length as u64).into(),
            page_count: (pages.len() as u32).into(),
            page_shift: 12,
            reserved: [0; 3],
        };
        (list, chunks)
    }

    /// Executes a command.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn command<C: Command>(
        &self,
        rnic: &mut Rnic,
        request: C,
    ) -> Result<C::Reply, (Status, Cause)> {
        let header = CommandHeader {
            code: C::CODE.raw().into(),
            reserved: 0.into(),
            length: (size_of::<C>() as u32).into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(request.as_bytes());
        let reply = self.raw_command(rnic, &bytes);
        let (header, body) = ReplyHeader::read_from_prefix(&reply).expect("reply header");
        assert_eq!(header.length.get() as usize, body.len());
        match Status::try_from(header.status.get()).expect("status") {
            Status::Ok => Ok(C::Reply::read_from_bytes(body).expect("reply")),
            status => {
                assert!(body.is_empty());
                let cause = Cause::from_code(header.vendor_error.get()).expect("cause");
                Err((status, cause))
            }
        }
    }

    /// Executes any bytes as a command and returns the reply.
    pub fn raw_command(&self, rnic: &mut Rnic, request: &[u8]) -> Vec<u8> {
        let mut reply = Vec::new();
        let mut outbox = Outbox::new();
        let mut io = Io {
            memory: &self.view,
            now: self.now,
            outbox: &mut outbox,
        };
        while !rnic.execute(request, &mut reply, &mut io) {}
        assert!(outbox.segments.is_empty(), "commands send nothing");
        reply
    }

    /// Creates the context and the protection domain.
    pub fn start(&mut self, rnic: &mut Rnic, kind: ContextKind, slots: u32) {
        let length = notify::area_length(slots);
        let area = self.arena(length);
        let (list, chunks) = self.page_list(&area, 0, length);
        let request = CreateContext {
            kind: kind.raw(),
            slots: slots.into(),
            area: list,
            ..Default::default()
        };
        let created = self.command(rnic, request).expect("context");
        self.free(chunks);
        self.area = Some(area);
        self.context = created.context.get();
        self.page = created.doorbell_page.get();
        let request = CreatePd {
            context: self.context.into(),
            ..Default::default()
        };
        self.pd = self.command(rnic, request).expect("pd").pd.get();
    }

    /// Returns the notify area.
    pub fn area(&self) -> &Arena {
        self.area.as_ref().expect("context")
    }

    /// Rings the doorbell of a slot unless the device polls.
    pub fn ring(&self, rnic: &mut Rnic, slot: u32) {
        let area = self.area();
        let bits = SlotBits::new(slot);
        area.or_u64(bits.pending_offset, bits.pending_mask);
        area.or_u64(bits.summary_offset, bits.summary_mask);
        if area.get_u32(notify::FLAGS_OFFSET) & notify::flags::POLLING == 0 {
            rnic.doorbell(self.page, slot);
        }
    }

    /// Registers `length` bytes of new memory, which begin somewhere in a page.
    pub fn mr(&mut self, rnic: &mut Rnic, length: usize, rights: u32) -> Mr {
        let arena = self.arena(length);
        self.register(rnic, arena, length, rights)
    }

    /// Registers the first `length` bytes of an arena.
    pub fn register(&mut self, rnic: &mut Rnic, arena: Arena, length: usize, rights: u32) -> Mr {
        self.try_register(rnic, arena, length, rights).expect("mr")
    }

    /// Registers the first `length` bytes of an arena, unless the device refuses.
    pub fn try_register(
        &mut self,
        rnic: &mut Rnic,
        arena: Arena,
        length: usize,
        rights: u32,
    ) -> Result<Mr, (Status, Cause)> {
        let iova = self.next_iova;
        self.next_iova += (arena.length() + PAGE) as u64;
        let (pages, chunks) = self.page_list(&arena, 0, length);
        let request = RegisterMr {
            pd: self.pd.into(),
            access: rights.into(),
            iova: iova.into(),
            pages,
            ..Default::default()
        };
        let registered = self.command(rnic, request);
        self.free(chunks);
        let key = registered?.key.get();
        Ok(Mr { arena, iova, key })
    }

    /// Registers `length` bytes of new on-demand memory, of which the device has no pages yet. It begins `offset` bytes
    /// into a page.
    pub fn paged_mr(&mut self, rnic: &mut Rnic, offset: usize, length: usize, rights: u32) -> Mr {
        let arena = self.arena(offset + length);
        self.try_register_paged(rnic, arena, offset, length, rights)
            .expect("mr")
    }

    /// Registers `length` bytes of an arena from `offset` on, which must be in its first page, as on-demand memory,
    /// unless the device refuses. The device gets no pages.
    pub fn try_register_paged(
        &mut self,
        rnic: &mut Rnic,
        arena: Arena,
        offset: usize,
        length: usize,
        rights: u32,
    ) -> Result<Mr, (Status, Cause)> {
        let iova = self.next_iova;
        self.next_iova += (arena.length() + PAGE) as u64;
        let pages = PageList {
            offset: (offset as u64).into(),
            length: (length as u64).into(),
            page_count: (arena.pages.len() as u32).into(),
            page_shift: 12,
            ..Default::default()
        };
        let request = RegisterMr {
            pd: self.pd.into(),
            access: rights.into(),
            flags: mr_flags::ON_DEMAND.into(),
            iova: iova.into(),
            pages,
            ..Default::default()
        };
        let key = self.command(rnic, request)?.key.get();
        Ok(Mr { arena, iova, key })
    }

    /// Registers memory with all rights for peers.
    pub fn full_mr(&mut self, rnic: &mut Rnic, length: usize) -> Mr {
        let rights = full_rights(rnic);
        self.mr(rnic, length, rights)
    }

    /// Returns the layout of a completion queue's ring in a buffer of its own.
    fn cq_layout(entries: u32) -> RingLayout {
        RingLayout {
            header_offset: 0.into(),
            entries_offset: (size_of::<RingHeader>() as u32).into(),
            entries: entries.into(),
            stride: CQE_STRIDE.into(),
        }
    }

    /// Creates a completion queue.
    pub fn cq(&mut self, rnic: &mut Rnic, entries: u32, vector: u16) -> Cq {
        self.cq_with(rnic, entries, vector, 0)
    }

    /// Creates a completion queue with these [`cq_flags`](vrnic_wire::command::cq_flags).
    pub fn cq_with(&mut self, rnic: &mut Rnic, entries: u32, vector: u16, flags: u16) -> Cq {
        let layout = Self::cq_layout(entries);
        let length = layout.end() as usize;
        let arena = self.arena(length);
        let (pages, chunks) = self.page_list(&arena, 0, length);
        let request = CreateCq {
            context: self.context.into(),
            vector: vector.into(),
            flags: flags.into(),
            ring: layout,
            pages,
        };
        let cqn = self.command(rnic, request).expect("cq").cqn.get();
        self.free(chunks);
        let ring = Ring {
            arena,
            layout,
            index: 0,
        };
        Cq {
            cqn,
            ring,
            arm: ring::Arm::default(),
        }
    }

    /// Moves a completion queue to a ring with another size. `change` may change the new ring before that.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn resize_cq(
        &mut self,
        rnic: &mut Rnic,
        cq: &mut Cq,
        entries: u32,
        change: impl FnOnce(&mut Ring),
    ) -> Result<(), (Status, Cause)> {
        let layout = Self::cq_layout(entries);
        let length = layout.end() as usize;
        let mut ring = Ring {
            arena: self.arena(length),
            layout,
            index: cq.ring.index,
        };
        ring.publish();
        ring.arena.put_u32(ring.header(offset::ARM), cq.arm.raw());
        for ahead in 0..entries {
            let index = ring.index.wrapping_add(ahead);
            let phase = layout.entry_offset(index) as usize + PHASE_OFFSET;
            ring.arena.put(phase, &[ring::phase(index, entries) ^ 1]);
        }
        change(&mut ring);
        let (pages, chunks) = self.page_list(&ring.arena, 0, length);
        let request = ResizeCq {
            cqn: cq.cqn.into(),
            reserved: 0.into(),
            ring: layout,
            pages,
        };
        let result = self.command(rnic, request);
        self.free(chunks);
        if result.is_err() {
            self.free(ring.arena);
            return result.map(drop);
        }
        let old = std::mem::replace(&mut cq.ring, ring);
        let left = (0..old.layout.entries.get()).map(|ahead| old.index.wrapping_add(ahead));
        for (index, mut cqe) in left.map_while(|index| Some((index, old.completion(index)?))) {
            cqe.phase = ring::phase(index, entries);
            let place = layout.entry_offset(index) as usize;
            cq.ring.arena.put(place, cqe.as_bytes());
        }
        self.free(old.arena);
        Ok(())
    }

    /// Returns the layout of a shared receive queue's ring in a buffer of its own.
    fn srq_layout(entries: u32, sge: u32) -> RingLayout {
        let stride = work::receive_stride(sge);
        RingLayout {
            header_offset: 0.into(),
            entries_offset: (size_of::<RingHeader>() as u32)
                .next_multiple_of(stride)
                .into(),
            entries: entries.into(),
            stride: stride.into(),
        }
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn try_srq(
        &mut self,
        rnic: &mut Rnic,
        entries: u32,
        sge: u32,
        limit: u32,
    ) -> Result<Srq, (Status, Cause)> {
        self.create_srq(entries, sge, |guest, request| {
            let limit = limit.into();
            guest.command(rnic, CreateSrq { limit, ..request })
        })
    }

    /// Allocates the ring of a shared receive queue, and creates the queue with `command`.
    fn create_srq(
        &mut self,
        entries: u32,
        sge: u32,
        command: impl FnOnce(&Self, CreateSrq) -> Result<SrqCreated, (Status, Cause)>,
    ) -> Result<Srq, (Status, Cause)> {
        let layout = Self::srq_layout(entries, sge);
        let length = layout.end() as usize;
        let arena = self.arena(length);
        let (pages, chunks) = self.page_list(&arena, 0, length);
        let request = CreateSrq {
            context: self.context.into(),
            pd: self.pd.into(),
            max_sge: sge.into(),
            limit: 0.into(),
            ring: layout,
            pages,
        };
        let result = command(self, request);
        self.free(chunks);
        let srqn = result?.srqn.get();
        let ring = Ring {
            arena,
            layout,
            index: 0,
        };
        Ok(Srq { srqn, ring })
    }

    /// Creates an XRC domain.
    pub fn xrcd(&self, rnic: &mut Rnic) -> u32 {
        let created = self.command(rnic, CreateXrcd::default()).expect("xrcd");
        created.xrcdn.get()
    }

    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn try_xrc_srq(
        &mut self,
        rnic: &mut Rnic,
        (entries, sge): (u32, u32),
        xrcdn: u32,
        cqn: u32,
    ) -> Result<Srq, (Status, Cause)> {
        self.create_srq(entries, sge, |guest, srq| {
            let request = CreateXrcSrq {
                srq,
                xrcdn: xrcdn.into(),
                cqn: cqn.into(),
            };
            guest.command(rnic, request)
        })
    }

    /// Moves a shared receive queue to a ring with another size. `change` may change the new ring before that.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn resize_srq(
        &mut self,
        rnic: &mut Rnic,
        srq: &mut Srq,
        (entries, sge): (u32, u32),
        change: impl FnOnce(&mut Ring),
    ) -> Result<(), (Status, Cause)> {
        let layout = Self::srq_layout(entries, sge);
        let length = layout.end() as usize;
        let arena = self.arena(length);
        let old = &srq.ring;
        let mut ring = Ring {
            arena,
            layout,
            index: old.index,
        };
        let mut index = old.device_index();
        while index != old.index {
            let from = old.layout.entry_offset(index) as usize;
            let entry = old.arena.get(from, layout.stride.get() as usize);
            ring.arena.put(layout.entry_offset(index) as usize, &entry);
            index = index.wrapping_add(1);
        }
        ring.publish();
        change(&mut ring);
        let (pages, chunks) = self.page_list(&ring.arena, 0, length);
        let request = ResizeSrq {
            srqn: srq.srqn.into(),
            reserved: 0.into(),
            ring: layout,
            pages,
        };
        let result = self.command(rnic, request);
        self.free(chunks);
        result?;
        let old = std::mem::replace(&mut srq.ring, ring);
        self.free(old.arena);
        Ok(())
    }

    /// Creates a queue pair.
    ///
    /// # Errors
    ///
    /// The device refused it.
    pub fn try_qp(
        &mut self,
        rnic: &mut Rnic,
        options: &QpOptions,
        send_cqn: u32,
        recv_cqn: u32,
    ) -> Result<Qp, (Status, Cause)> {
        let send_stride = work::send_stride(options.sge.into(), options.inline.into());
        let recv_stride = work::receive_stride(options.sge.into());
        let header = size_of::<RingHeader>() as u32;
        let send_ring = RingLayout {
            header_offset: 0.into(),
            entries_offset: 1024.into(),
            entries: options.entries.into(),
            stride: send_stride.into(),
        };
        let recv_header = (send_ring.end() as u32).next_multiple_of(PAGE as u32);
        let recv_ring = RingLayout {
            header_offset: recv_header.into(),
            entries_offset: (recv_header + header.next_multiple_of(recv_stride)).into(),
            entries: options.entries.into(),
            stride: recv_stride.into(),
        };
        let length = recv_ring.end() as usize;
        let arena = self.arena(length);
        let (pages, chunks) = self.page_list(&arena, 0, length);
        // Each end of an extended connection lacks what belongs to the other half.
        let exists = options.qp_type != QpType::XrcTarget;
        let sends = exists && options.qp_type != QpType::ReceiveQueue;
        let receives = exists && options.qp_type != QpType::XrcInitiator;
        let only_if = |has: bool, number: u32| if has { number } else { 0 }.into();
        let send_ring = if sends {
            send_ring
        } else {
            RingLayout::default()
        };
        let recv_ring = match options.srqn {
            None if receives => recv_ring,
            _ => RingLayout::default(),
        };
        let queue_alone = options.qp_type == QpType::ReceiveQueue;
        let mut flags = options.flags;
        if options.signal_all && !queue_alone {
            flags |= qp_flags::SIGNAL_ALL;
        }
        if options.srqn.is_some() {
            flags |= qp_flags::SHARED_RECEIVE_QUEUE;
        }
        let request = CreateQp {
            context: only_if(exists, self.context),
            pd: only_if(exists, self.pd),
            qp_type: options.qp_type.raw(),
            flags,
            max_send_sge: if queue_alone { 0 } else { options.sge }.into(),
            max_recv_sge: options.sge.into(),
            max_inline: if queue_alone { 0 } else { options.inline }.into(),
            send_cqn: only_if(sends, send_cqn),
            recv_cqn: only_if(receives, recv_cqn),
            send_ring,
            recv_ring,
            pages,
            srqn: options.srqn.unwrap_or_default().into(),
            xrcdn: options.xrcdn.into(),
        };
        let result = self.command(rnic, request);
        self.free(chunks);
        let created = result?;
        let ring = |layout| Ring {
            arena: arena.clone(),
            layout,
            index: 0,
        };
        Ok(Qp {
            qpn: created.qpn.get(),
            slot: created.slot.get(),
            sq: ring(send_ring),
            rq: ring(recv_ring),
        })
    }

    /// Posts a send and rings the doorbell. Returns false if the queue is full.
    pub fn post_send(&self, rnic: &mut Rnic, qp: &mut Qp, send: &Send) -> bool {
        let posted = qp.sq.post(&send.entry());
        if posted {
            self.ring(rnic, qp.slot);
        }
        posted
    }

    /// Posts a receive. Returns false if the queue is full.
    pub fn post_receive(&self, rnic: &mut Rnic, qp: &mut Qp, wr_id: u64, sges: &[Sge]) -> bool {
        let posted = qp.rq.post(&receive_entry(wr_id, sges));
        if posted && qp.rq.device_flags() & ring::flags::NEED_DOORBELL != 0 {
            self.ring(rnic, qp.slot);
        }
        posted
    }
}
