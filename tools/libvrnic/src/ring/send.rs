// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The send queue: turns work requests into send entries.

use super::{Refused, WorkRing};
use crate::memory::Shared;
use vrnic_wire::work::{
    AddressVector, AtomicTarget, BindTarget, DatagramTarget, FlushTarget, RdmaTarget,
    SEND_DATA_OFFSET, SendHeader, SendOpcode, Sge, TARGET_LENGTH, TARGET_OFFSET, XRC_SRQN_OFFSET,
    elements_offset, send_flags,
};

/// The target of a request.
#[derive(Copy, Clone, Debug)]
pub enum Target<'a> {
    /// The peer of the connection.
    Peer,
    /// Memory of the peer.
    Memory {
        /// Address in the peer's region.
        address: u64,
        /// Key of the region.
        rkey: u32,
    },
    /// Eight bytes of the peer's memory, for an atomic operation.
    Atomic {
        /// Address in the peer's region.
        address: u64,
        /// Key of the region.
        rkey: u32,
        /// Value to compare with or to add.
        compare_add: u64,
        /// Value to store.
        swap: u64,
    },
    /// Memory of the peer, to be flushed.
    Flush {
        /// Address in the peer's region.
        address: u64,
        /// Key of the region.
        rkey: u32,
        /// Length in bytes.
        length: u32,
        /// Bits of [`placement`](vrnic_wire::work::placement), at least one.
        placement: u8,
        /// A [`Selectivity`](vrnic_wire::work::Selectivity).
        selectivity: u8,
    },
    /// A local memory window.
    Window {
        /// Address of its first byte in the region.
        address: u64,
        /// Length in bytes.
        length: u64,
        /// The new key of the window.
        window: u32,
        /// Key of the region.
        region: u32,
        /// Access rights of peers.
        access: u32,
    },
    /// Another queue pair, by datagram.
    Datagram {
        /// Path to it.
        address: &'a AddressVector,
        /// Number of the queue pair.
        remote_qpn: u32,
        /// `Q_Key` of the queue pair.
        qkey: u32,
    },
}

/// A send work request without its data.
#[derive(Copy, Clone, Debug)]
pub struct Request<'a> {
    /// Operation.
    pub opcode: SendOpcode,
    /// [`send_flags`]; `INLINE` is ignored.
    pub flags: u8,
    /// Identifier that the completion returns.
    pub wr_id: u64,
    /// Immediate data in host byte order, the key to invalidate, or the payload of each segment.
    pub immediate: u32,
    /// Target.
    pub target: Target<'a>,
    /// Number of the peer's shared receive queue, for an XRC queue pair.
    pub srqn: u32,
    /// Header of a send in segments; empty for other operations.
    pub header: &'a [u8],
}

/// What a queue pair allows.
#[derive(Copy, Clone, Debug)]
pub struct Limits {
    /// Valid operations for this type of queue pair: bit `n` is operation `n` of [`SendOpcode`].
    pub opcodes: u32,
    /// Whether requests are datagrams, which contain their destination.
    pub datagrams: bool,
    /// Whether requests contain the number of a shared receive queue of the peer, as those of XRC
    /// queue pairs do.
    pub xrc: bool,
    /// Whether requests may ask for the checksums of IP packets.
    pub checksums: bool,
    /// Largest number of scatter/gather elements in a request.
    pub max_sge: u32,
    /// Largest amount of inline data in a request, in bytes.
    pub max_inline: u32,
    /// Longest header of a send in segments, in bytes.
    pub max_header: u32,
}

/// The entry of a request, to which data can be added.
#[derive(Copy, Clone, Debug)]
struct Entry {
    memory: Shared,
    opcode: SendOpcode,
    /// Offset of its scatter/gather elements.
    first: usize,
    /// Number of elements that it may have.
    max_sge: usize,
}

/// A group of requests that is posted in full or not at all.
#[derive(Copy, Clone, Debug)]
enum Group {
    /// It has no request yet.
    Empty,
    /// The entry of its latest request.
    Latest(Entry),
    /// Its first error.
    Failed(Refused),
}

/// The send queue of a queue pair.
#[derive(Debug)]
pub struct SendQueue {
    ring: WorkRing,
    limits: Limits,
    /// Operations that the state of the queue pair allows too, as in [`Limits::opcodes`].
    accepted: u32,
    group: Group,
}

impl SendQueue {
    /// Creates a queue in the reset state.
    pub fn new(ring: WorkRing, limits: Limits) -> Self {
        let mut queue = Self {
            ring,
            limits,
            accepted: 0,
            group: Group::Empty,
        };
        queue.set_limits(limits.max_sge, limits.max_inline);
        queue
    }

    /// Returns the ring of the queue.
    pub fn ring(&self) -> &WorkRing {
        &self.ring
    }

    /// Returns the limits of the queue.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the limits of a request's data, as far as the entries have room.
    pub fn set_limits(&mut self, max_sge: u32, max_inline: u32) {
        let room = self.ring.stride().saturating_sub(SEND_DATA_OFFSET as u32);
        self.limits.max_sge = max_sge.min(room / size_of::<Sge>() as u32);
        self.limits.max_inline = max_inline.min(room);
    }

    /// Sets whether requests may be posted.
    pub fn set_accepts(&mut self, accepts: bool) {
        self.accepted = if accepts { self.limits.opcodes } else { 0 };
    }

    /// Returns the operation with this number, if it may be posted now.
    #[inline]
    pub fn operation(&self, number: u32) -> Option<SendOpcode> {
        // Operations reserved for the kernel have no bit.
        let bit = 1_u32.checked_shl(number)?;
        if self.accepted & bit == 0 {
            return None;
        }
        SendOpcode::try_from(number as u8).ok()
    }

    /// Resets the queue, as the device does when its queue pair is reset.
    pub fn reset(&mut self) {
        self.accepted = 0;
        self.group = Group::Empty;
        self.ring.reset();
    }

    /// Checks what most requests do not have: checksums, and a header.
    #[cold]
    fn check_options(&self, request: &Request<'_>) -> Result<(), Refused> {
        let checksums = request.flags & send_flags::CHECKSUMS != 0;
        let segmented = request.opcode == SendOpcode::SendSegmented;
        if (checksums && !self.limits.checksums)
            || request.header.len() > self.limits.max_header as usize
            || request.header.is_empty() == segmented
        {
            return Err(Refused::Invalid);
        }
        Ok(())
    }

    /// Takes an entry for a request. The caller adds its data: `count` elements, or inline data.
    // In its caller, most of the branches are known.
    #[inline(always)]
    fn begin(&mut self, request: &Request<'_>, count: u16) -> Result<Entry, Refused> {
        let opcode = request.opcode;
        if self.operation(opcode.raw().into()).is_none() {
            return Err(Refused::Invalid);
        }
        let has_options = request.flags & send_flags::CHECKSUMS != 0
            || opcode == SendOpcode::SendSegmented
            || !request.header.is_empty();
        if has_options {
            self.check_options(request)?;
        }
        // The limit is less than the stride.
        let header_length = request.header.len() as u16;
        let (memory, name) = self.ring.take(request.wr_id)?;
        let front = memory.part(0, SEND_DATA_OFFSET);
        let header = SendHeader {
            opcode: opcode.raw(),
            flags: request.flags & !send_flags::INLINE,
            num_sge: count.into(),
            inline_length: u32::from(header_length).into(),
            wr_id: name.to_wire().into(),
            immediate: request.immediate.into(),
            ..SendHeader::default()
        };
        front.write(0, &header);
        write_target(&front, &request.target);
        if self.limits.xrc {
            front.write_bytes(XRC_SRQN_OFFSET, &request.srqn.to_le_bytes());
        }
        if has_options {
            memory.write_bytes(SEND_DATA_OFFSET, request.header);
        }
        Ok(Entry {
            memory,
            opcode,
            first: elements_offset(header_length),
            max_sge: self.max_sge(request),
        })
    }

    /// Returns how many elements a request may have.
    #[inline(always)]
    fn max_sge(&self, request: &Request<'_>) -> usize {
        if !request.opcode.has_elements() {
            return 0;
        }
        let max_sge = self.limits.max_sge as usize;
        if request.header.is_empty() {
            return max_sge;
        }
        // All elements have room beside the longest header that was asked for, but not all that the
        // entry has room for otherwise.
        let first = elements_offset(request.header.len() as u16);
        max_sge.min((self.ring.stride() as usize).saturating_sub(first) / size_of::<Sge>())
    }

    /// Copies inline data into an entry.
    #[inline]
    fn inline<'a>(
        &self,
        entry: &Entry,
        flags: u8,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Refused> {
        if matches!(
            entry.opcode,
            SendOpcode::Read
                | SendOpcode::CompareSwap
                | SendOpcode::FetchAdd
                | SendOpcode::SendSegmented
        ) || !entry.opcode.has_elements()
        {
            return Err(Refused::Invalid);
        }
        let entry = &entry.memory;
        let mut length = 0_usize;
        for piece in pieces {
            // A piece may be of any size, so compare before adding.
            if piece.len() > self.limits.max_inline as usize - length {
                return Err(Refused::Invalid);
            }
            entry.write_bytes(SEND_DATA_OFFSET + length, piece);
            length += piece.len();
        }
        entry.write_bytes(FLAGS_OFFSET, &[flags | send_flags::INLINE]);
        entry.write_bytes(INLINE_LENGTH_OFFSET, &(length as u32).to_le_bytes());
        Ok(())
    }

    /// Queues a request with data in memory regions. [`SendQueue::publish`] passes it to the
    /// device.
    #[inline(always)]
    pub fn push(
        &mut self,
        request: &Request<'_>,
        elements: impl ExactSizeIterator<Item = Sge>,
    ) -> Result<(), Refused> {
        let count = elements.len();
        if count > self.max_sge(request) {
            return Err(Refused::Invalid);
        }
        let entry = self.begin(request, count as u16)?;
        entry.memory.write_all(entry.first, elements);
        Ok(())
    }

    /// Queues a request with inline data. [`SendQueue::publish`] passes it to the device.
    #[inline(always)]
    pub fn push_inline<'a>(
        &mut self,
        request: &Request<'_>,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), Refused> {
        let entry = self.begin(request, 0)?;
        self.inline(&entry, request.flags, pieces)
            .inspect_err(|_| self.ring.give_back_one())
    }

    /// Publishes the queued requests to the device. Returns whether there are any.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.ring.publish()
    }

    /// Begins a group of requests that is posted in full or not at all.
    #[inline]
    pub fn start(&mut self) {
        self.group = Group::Empty;
    }

    /// Begins a request of the group.
    #[inline(always)]
    pub fn add(&mut self, request: &Request<'_>) {
        if matches!(self.group, Group::Failed(_)) {
            return;
        }
        match self.begin(request, 0) {
            Ok(entry) => self.group = Group::Latest(entry),
            Err(error) => self.fail(error),
        }
    }

    /// Makes the group fail because a request could not even be begun.
    pub fn refuse(&mut self) {
        self.fail(Refused::Invalid);
    }

    /// Makes the group fail, unless it has already.
    #[cold]
    fn fail(&mut self, error: Refused) {
        if !matches!(self.group, Group::Failed(_)) {
            self.group = Group::Failed(error);
        }
    }

    /// Applies `what` to the latest request. If there is none, the group fails.
    #[inline]
    fn with_entry(&mut self, what: impl FnOnce(&Self, &Entry) -> Result<(), Refused>) {
        let done = match self.group {
            Group::Latest(entry) => what(self, &entry),
            _ => Err(Refused::Invalid),
        };
        if let Err(error) = done {
            self.fail(error);
        }
    }

    /// Sets the scatter/gather list of the latest request.
    #[inline]
    pub fn set_elements(&mut self, elements: impl ExactSizeIterator<Item = Sge>) {
        self.with_entry(|_, entry| {
            let count = elements.len();
            if count > entry.max_sge {
                return Err(Refused::Invalid);
            }
            (entry.memory).write_bytes(NUM_SGE_OFFSET, &(count as u16).to_le_bytes());
            entry.memory.write_all(entry.first, elements);
            Ok(())
        });
    }

    /// Copies inline data into the latest request and marks it as inline.
    #[inline]
    pub fn set_inline<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) {
        self.with_entry(|queue, entry| {
            let flags = (entry.memory)
                .byte(FLAGS_OFFSET)
                .load(core::sync::atomic::Ordering::Relaxed);
            queue.inline(entry, flags, pieces)
        });
    }

    /// Sets the destination queue pair of the latest request.
    #[inline]
    pub fn set_datagram(&mut self, address: &AddressVector, remote_qpn: u32, qkey: u32) {
        self.with_entry(|_, entry| {
            write_target(
                &entry.memory,
                &Target::Datagram {
                    address,
                    remote_qpn,
                    qkey,
                },
            );
            Ok(())
        });
    }

    /// Sets the peer's shared receive queue for the latest request.
    #[inline]
    pub fn set_xrc_srqn(&mut self, srqn: u32) {
        self.with_entry(|queue, entry| {
            if !queue.limits.xrc {
                return Err(Refused::Invalid);
            }
            entry
                .memory
                .write_bytes(XRC_SRQN_OFFSET, &srqn.to_le_bytes());
            Ok(())
        });
    }

    /// Queues the group, or drops it and returns the first error. Returns whether the doorbell must
    /// be rung.
    #[inline]
    pub fn complete(&mut self) -> Result<bool, Refused> {
        match core::mem::replace(&mut self.group, Group::Empty) {
            Group::Failed(error) => {
                self.ring.give_back();
                Err(error)
            }
            _ => Ok(self.ring.publish()),
        }
    }

    /// Drops the group.
    pub fn abort(&mut self) {
        self.group = Group::Empty;
        self.ring.give_back();
    }
}

const FLAGS_OFFSET: usize = core::mem::offset_of!(SendHeader, flags);
const NUM_SGE_OFFSET: usize = core::mem::offset_of!(SendHeader, num_sge);
const INLINE_LENGTH_OFFSET: usize = core::mem::offset_of!(SendHeader, inline_length);

#[inline(always)]
fn write_target(entry: &Shared, target: &Target<'_>) {
    match *target {
        Target::Peer => entry.write(TARGET_OFFSET, &[0_u8; TARGET_LENGTH]),
        Target::Memory { address, rkey } => entry.write(
            TARGET_OFFSET,
            &RdmaTarget {
                address: address.into(),
                rkey: rkey.into(),
                ..RdmaTarget::default()
            },
        ),
        Target::Atomic {
            address,
            rkey,
            compare_add,
            swap,
        } => entry.write(
            TARGET_OFFSET,
            &AtomicTarget {
                address: address.into(),
                rkey: rkey.into(),
                compare_add: compare_add.into(),
                swap: swap.into(),
                ..AtomicTarget::default()
            },
        ),
        Target::Flush {
            address,
            rkey,
            length,
            placement,
            selectivity,
        } => entry.write(
            TARGET_OFFSET,
            &FlushTarget {
                address: address.into(),
                rkey: rkey.into(),
                length: length.into(),
                placement,
                selectivity,
                ..FlushTarget::default()
            },
        ),
        Target::Window {
            address,
            length,
            window,
            region,
            access,
        } => entry.write(
            TARGET_OFFSET,
            &BindTarget {
                address: address.into(),
                length: length.into(),
                window: window.into(),
                region: region.into(),
                access: access.into(),
                ..BindTarget::default()
            },
        ),
        Target::Datagram {
            address,
            remote_qpn,
            qkey,
        } => entry.write(
            TARGET_OFFSET,
            &DatagramTarget {
                address: *address,
                remote_qpn: remote_qpn.into(),
                qkey: qkey.into(),
            },
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::outstanding::Name;
    use super::super::tests::{ring, work_ring};
    use super::*;
    use crate::memory::Buffer;
    use core::sync::atomic::Ordering;
    use vrnic_wire::ring::offset;

    const SEND: Request<'_> = Request {
        opcode: SendOpcode::Send,
        flags: send_flags::SIGNALED,
        wr_id: 0x1122_3344_5566_7788,
        immediate: 0,
        target: Target::Peer,
        srqn: 0,
        header: &[],
    };

    fn queue() -> (Buffer, Shared, SendQueue) {
        let (buffer, memory, layout) = ring(4, 128);
        let limits = Limits {
            opcodes: !(1 << SendOpcode::SendWithInvalidate.raw()),
            datagrams: false,
            xrc: false,
            checksums: false,
            max_sge: 2,
            max_inline: 64,
            max_header: 20,
        };
        let mut queue = SendQueue::new(work_ring(memory, layout), limits);
        queue.set_accepts(true);
        (buffer, memory, queue)
    }

    fn sge(n: u32) -> Sge {
        Sge {
            address: u64::from(n).into(),
            length: n.into(),
            lkey: n.into(),
        }
    }

    fn header(memory: &Shared, index: usize) -> SendHeader {
        memory.read(1024 + index * 128)
    }

    #[test]
    fn requests_are_encoded() {
        let (_buffer, memory, mut queue) = queue();
        let write = Request {
            opcode: SendOpcode::WriteWithImmediate,
            flags: send_flags::FENCE | send_flags::INLINE,
            immediate: 5,
            target: Target::Memory {
                address: 6,
                rkey: 7,
            },
            ..SEND
        };
        queue.push(&write, [sge(1), sge(2)].into_iter()).unwrap();
        queue
            .push_inline(&SEND, [&b"ab"[..], b"", b"cde"].into_iter())
            .unwrap();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 0);
        assert!(queue.publish());
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 2);

        let first = header(&memory, 0);
        assert_eq!(first.opcode, SendOpcode::WriteWithImmediate.raw());
        assert_eq!(first.flags, send_flags::FENCE, "not inline");
        assert_eq!((first.num_sge.get(), first.immediate.get()), (2, 5));
        let name = Name { queue: 3, index: 0 };
        assert_eq!(first.wr_id.get(), name.to_wire());
        let target: RdmaTarget = memory.read(1024 + TARGET_OFFSET);
        assert_eq!((target.address.get(), target.rkey.get()), (6, 7));
        assert_eq!(memory.read::<Sge>(1024 + SEND_DATA_OFFSET + 16), sge(2));

        let second = header(&memory, 1);
        assert_eq!(second.flags, send_flags::SIGNALED | send_flags::INLINE);
        assert_eq!((second.num_sge.get(), second.inline_length.get()), (0, 5));
        let data: [u8; 8] = memory.read(1024 + 128 + SEND_DATA_OFFSET);
        assert_eq!(&data[..5], b"abcde");
    }

    #[test]
    fn a_bind_is_encoded_and_has_no_data() {
        let (_buffer, memory, mut queue) = queue();
        let bind = Request {
            opcode: SendOpcode::BindWindow,
            target: Target::Window {
                address: 1,
                length: 2,
                window: 3,
                region: 4,
                access: 5,
            },
            ..SEND
        };
        queue.push(&bind, core::iter::empty()).unwrap();
        assert_eq!(
            queue.push(&bind, [sge(0)].into_iter()),
            Err(Refused::Invalid)
        );
        assert_eq!(
            queue.push_inline(&bind, core::iter::empty()),
            Err(Refused::Invalid)
        );
        assert_eq!(header(&memory, 0).opcode, SendOpcode::BindWindow.raw());
        let target: BindTarget = memory.read(1024 + TARGET_OFFSET);
        assert_eq!((target.address.get(), target.length.get()), (1, 2));
        assert_eq!((target.window.get(), target.region.get()), (3, 4));
        assert_eq!(target.access.get(), 5);

        // Operations reserved for the kernel have no bit.
        let register = Request {
            opcode: SendOpcode::RegisterRegion,
            ..SEND
        };
        assert_eq!(
            queue.push(&register, core::iter::empty()),
            Err(Refused::Invalid)
        );
    }

    #[test]
    fn an_entry_keeps_nothing_of_its_last_use() {
        let (_buffer, memory, mut queue) = queue();
        for _ in 0..4 {
            queue.push_inline(&SEND, [&b"x"[..]].into_iter()).unwrap();
        }
        queue.publish();
        queue.ring().outstanding().complete(3).unwrap();
        queue.push(&SEND, core::iter::empty()).unwrap();
        let again = header(&memory, 0);
        assert_eq!(
            (again.flags, again.inline_length.get()),
            (send_flags::SIGNALED, 0)
        );
    }

    #[test]
    fn what_does_not_fit_is_refused_and_leaves_no_trace() {
        let (_buffer, _memory, mut queue) = queue();
        let many = [sge(1), sge(2), sge(3)];
        assert_eq!(queue.push(&SEND, many.into_iter()), Err(Refused::Invalid));
        let long = [0_u8; 65];
        assert_eq!(
            queue.push_inline(&SEND, [&long[..]].into_iter()),
            Err(Refused::Invalid)
        );
        let halves = [&long[..33], &long[..33]];
        assert_eq!(
            queue.push_inline(&SEND, halves.into_iter()),
            Err(Refused::Invalid)
        );
        let checked = Request {
            flags: send_flags::CHECKSUMS,
            ..SEND
        };
        assert_eq!(
            queue.push(&checked, core::iter::empty()),
            Err(Refused::Invalid)
        );
        let read = Request {
            opcode: SendOpcode::Read,
            ..SEND
        };
        assert_eq!(
            queue.push_inline(&read, core::iter::empty()),
            Err(Refused::Invalid)
        );
        let invalidate = Request {
            opcode: SendOpcode::SendWithInvalidate,
            ..SEND
        };
        assert_eq!(
            queue.push(&invalidate, core::iter::empty()),
            Err(Refused::Invalid)
        );
        assert!(!queue.publish());
        queue.set_accepts(false);
        assert_eq!(
            queue.push(&SEND, core::iter::empty()),
            Err(Refused::Invalid)
        );
    }

    #[test]
    fn segments_have_a_header_in_front_of_their_elements() {
        let (_buffer, memory, mut queue) = queue();
        let segmented = |header| Request {
            opcode: SendOpcode::SendSegmented,
            immediate: 1400,
            header,
            ..SEND
        };
        let long = [7_u8; 21];
        let request = segmented(&long[..20]);
        queue.push(&request, [sge(1), sge(2)].into_iter()).unwrap();
        let first = header(&memory, 0);
        assert_eq!(first.opcode, SendOpcode::SendSegmented.raw());
        assert_eq!((first.num_sge.get(), first.inline_length.get()), (2, 20));
        assert_eq!(first.immediate.get(), 1400);
        let data = 1024 + SEND_DATA_OFFSET;
        assert_eq!(memory.read::<[u8; 24]>(data)[..20], long[..20]);
        assert_eq!(memory.read::<Sge>(data + 48), sge(2));
        // With a builder, the elements come later.
        queue.start();
        queue.add(&segmented(&b"x"[..]));
        queue.set_elements([sge(3)].into_iter());
        assert_eq!(queue.complete(), Ok(true));
        assert_eq!(memory.read::<Sge>(data + 128 + 16), sge(3));

        let refused = |queue: &mut SendQueue, request: &Request<'_>, elements| {
            let sges = core::iter::repeat_n(sge(1), elements);
            assert_eq!(queue.push(request, sges), Err(Refused::Invalid));
        };
        refused(&mut queue, &segmented(&long), 1);
        refused(&mut queue, &segmented(&[]), 1);
        let other = Request {
            header: b"x",
            ..SEND
        };
        refused(&mut queue, &other, 1);
        let inline = queue.push_inline(&request, core::iter::empty());
        assert_eq!(inline, Err(Refused::Invalid));
        // The entry has room for four elements without a header, and for two with this one.
        queue.set_limits(4, 64);
        refused(&mut queue, &request, 3);
        queue.limits.max_header = 0;
        refused(&mut queue, &request, 1);
    }

    #[test]
    fn limits_end_with_the_entry() {
        let (_buffer, _memory, mut queue) = queue();
        queue.set_limits(u32::MAX, u32::MAX);
        assert_eq!((queue.limits().max_sge, queue.limits().max_inline), (4, 64));
        queue.push(&SEND, [sge(1); 4].into_iter()).unwrap();
        assert_eq!(
            queue.push(&SEND, [sge(1); 5].into_iter()),
            Err(Refused::Invalid)
        );
        queue
            .push_inline(&SEND, [&[0_u8; 64][..]].into_iter())
            .unwrap();
    }

    #[test]
    fn a_group_is_posted_whole_or_not_at_all() {
        let (_buffer, memory, mut queue) = queue();
        queue.start();
        queue.add(&SEND);
        queue.set_elements([sge(1)].into_iter());
        queue.add(&SEND);
        queue.set_inline([&b"abc"[..]].into_iter());
        assert_eq!(queue.complete(), Ok(true));
        assert_eq!(header(&memory, 0).num_sge.get(), 1);
        assert_eq!(header(&memory, 1).inline_length.get(), 3);

        queue.start();
        queue.add(&SEND);
        queue.add(&SEND);
        queue.add(&SEND);
        queue.set_elements([sge(1)].into_iter());
        assert_eq!(queue.complete(), Err(Refused::Full));
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 2);

        queue.start();
        queue.set_elements([sge(1)].into_iter());
        assert_eq!(
            queue.complete(),
            Err(Refused::Invalid),
            "no request to set them for"
        );

        queue.start();
        queue.add(&SEND);
        queue.abort();
        queue.start();
        assert_eq!(queue.complete(), Ok(false));
    }

    #[test]
    fn datagrams_carry_their_address() {
        let (_buffer, memory, mut queue) = queue();
        let address = AddressVector {
            dgid: [7; 16],
            hop_limit: 9,
            ..AddressVector::default()
        };
        queue.start();
        queue.add(&SEND);
        queue.set_datagram(&address, 11, 12);
        assert_eq!(queue.complete(), Ok(true));
        let target: DatagramTarget = memory.read(1024 + TARGET_OFFSET);
        assert_eq!(target.address, address);
        assert_eq!((target.remote_qpn.get(), target.qkey.get()), (11, 12));
    }

    #[test]
    fn requests_of_extended_connections_name_a_queue() {
        let (_buffer, memory, mut queue) = queue();
        let srqn = |index: usize| {
            let word = memory.word(1024 + index * 128 + XRC_SRQN_OFFSET);
            u32::from_le(word.load(Ordering::Relaxed))
        };
        queue.start();
        queue.add(&SEND);
        queue.set_xrc_srqn(7);
        assert_eq!(queue.complete(), Err(Refused::Invalid), "not of this type");

        queue.limits.xrc = true;
        let read = Request {
            opcode: SendOpcode::Read,
            target: Target::Memory {
                address: 6,
                rkey: 7,
            },
            srqn: 0x12_3456,
            ..SEND
        };
        queue.push(&read, core::iter::empty()).unwrap();
        assert_eq!(srqn(0), 0x12_3456);
        let target: RdmaTarget = memory.read(1024 + TARGET_OFFSET);
        assert_eq!((target.address.get(), target.rkey.get()), (6, 7));
        queue.start();
        queue.add(&SEND);
        queue.set_xrc_srqn(8);
        assert_eq!(queue.complete(), Ok(true));
        assert_eq!(srqn(1), 8);
    }

    #[test]
    fn a_reset_queue_starts_over() {
        let (_buffer, memory, mut queue) = queue();
        queue.push(&SEND, core::iter::empty()).unwrap();
        queue.publish();
        queue.reset();
        assert_eq!(memory.word(offset::DRIVER_INDEX).load(Ordering::Relaxed), 0);
        assert_eq!(
            queue.push(&SEND, core::iter::empty()),
            Err(Refused::Invalid)
        );
    }
}
