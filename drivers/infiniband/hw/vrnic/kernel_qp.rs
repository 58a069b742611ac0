// SPDX-License-Identifier: GPL-2.0

//! Work rings of the kernel, and the requests posted to them.
//!
//! The driver keeps each request until its completion was polled, and gives the device only a
//! [`Name`] for it. So the device cannot forge what a completion reports to the poster, and the
//! driver knows which requests to flush when the device fails.

use core::sync::atomic::Ordering;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};
use rdma::{
    qp::State,
    wr::Continuation, //
};
use virtio::{
    full_fence,
    SharedMemory, //
};
use vrnic_wire::ring::{
    flags,
    offset,
    RingLayout, //
};

use crate::{
    kernel_srq::SharedReceives,
    ring::header_word, //
};

/// One of the two queues of a queue pair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The send queue.
    Send,
    /// The receive queue.
    Receive,
}

/// Identifies a request towards the device, which returns it in the completion. It consists of the
/// index of the request's entry, or of the place of a receive in a shared queue, and of bit 32,
/// which is set for receives.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    /// Queue that the request was posted to.
    pub(crate) side: Side,
    /// Index of the entry or place.
    pub(crate) index: u32,
}

impl Name {
    const RECEIVE: u64 = 1 << 32;

    /// Returns the name in the format of `wr_id` in an entry.
    pub(crate) fn to_wire(self) -> u64 {
        let side = match self.side {
            Side::Send => 0,
            Side::Receive => Self::RECEIVE,
        };
        side | u64::from(self.index)
    }

    /// Parses the name in `wr_id` of a completion; `EIO` if it is invalid.
    pub(crate) fn from_wire(wr_id: u64) -> Result<Self> {
        let side = match wr_id & !u64::from(u32::MAX) {
            0 => Side::Send,
            Self::RECEIVE => Side::Receive,
            _ => return Err(EIO),
        };
        Ok(Self {
            side,
            // CAST: The lower half.
            index: wr_id as u32,
        })
    }
}

/// A request that was posted and has not completed.
struct Posted {
    request: Continuation,
    /// Bytes of room, if it is a receive.
    room: u64,
    /// Whether it generates a completion even on success.
    signaled: bool,
}

/// A send or receive ring for which the driver is the producer.
pub(crate) struct WorkRing {
    side: Side,
    layout: RingLayout,
    /// Requests by index modulo the number of entries. Those from `done` to `producer` are valid.
    posted: KVVec<Option<Posted>>,
    done: u32,
    producer: u32,
    /// Whether requests may be posted.
    open: bool,
    /// Whether the queue pair is in error, so that all requests are flushed.
    flushes: bool,
    /// Index after the last request that generates a completion in any case.
    owed: u32,
    /// Number of checks since a request completed, while the device owed a flush.
    idle: u32,
}

impl WorkRing {
    /// Creates a ring in zeroed memory.
    pub(crate) fn new(side: Side, layout: RingLayout) -> Result<Self> {
        let entries = layout.entries.get() as usize;
        let mut posted = KVVec::with_capacity(entries, GFP_KERNEL)?;
        for _ in 0..entries {
            posted.push(None, GFP_KERNEL)?;
        }
        Ok(Self {
            side,
            layout,
            posted,
            done: 0,
            producer: 0,
            open: false,
            flushes: false,
            owed: 0,
            idle: 0,
        })
    }

    /// Returns the index of the next entry.
    pub(crate) fn producer(&self) -> u32 {
        self.producer
    }

    /// Returns the number of requests that were posted and have not completed.
    pub(crate) fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.done)
    }

    /// Returns the memory offset of the next entry to post, and the name of its request. `ENOMEM`
    /// if the ring is full, `EINVAL` if nothing may be posted in this state.
    pub(crate) fn next_entry(&self) -> Result<(usize, Name)> {
        if !self.open {
            return Err(EINVAL);
        }
        if self.outstanding() >= self.layout.entries.get() {
            return Err(ENOMEM);
        }
        let name = Name {
            side: self.side,
            index: self.producer,
        };
        Ok((
            usize::try_from(self.layout.entry_offset(self.producer))?,
            name,
        ))
    }

    /// Marks the entry at [`next_entry`](Self::next_entry) as written. A receive has `room` bytes
    /// of room.
    pub(crate) fn advance(&mut self, request: Continuation, room: u64, signaled: bool) {
        let slot = self.slot(self.producer);
        // Flushed requests always complete.
        let signaled = signaled || self.flushes;
        if let Some(posted) = self.posted.get_mut(slot) {
            *posted = Some(Posted {
                request,
                room,
                signaled,
            });
            self.producer = self.producer.wrapping_add(1);
            if signaled {
                self.owed = self.producer;
            }
        }
    }

    /// Returns the position of request `index` in `posted`.
    fn slot(&self, index: u32) -> usize {
        (index & self.layout.entries.get().wrapping_sub(1)) as usize
    }

    /// Makes all written entries visible to the device.
    pub(crate) fn publish(&self, memory: &SharedMemory) -> Result {
        memory
            .u32(header_word(&self.layout, offset::DRIVER_INDEX))?
            .store(self.producer.to_le(), Ordering::Release);
        Ok(())
    }

    /// Returns whether the device needs a doorbell for receives that were just published.
    pub(crate) fn needs_doorbell(&self, memory: &SharedMemory) -> Result<bool> {
        let word = memory.u32(header_word(&self.layout, offset::DEVICE_FLAGS))?;
        // Pairs with the fence of the device between setting the flag and reading the index.
        full_fence();
        Ok(u32::from_le(word.load(Ordering::Relaxed)) & flags::NEED_DOORBELL != 0)
    }

    /// Completes request `index`, which received `bytes` bytes. All earlier requests complete as
    /// well; they must be unsignaled.
    ///
    /// `EIO` if there is no such request, if it has too little room, or if an earlier request is
    /// signaled; then no request completes.
    pub(crate) fn complete(&mut self, index: u32, bytes: u32) -> Result<Continuation> {
        let ahead = index.wrapping_sub(self.done);
        if ahead >= self.outstanding() {
            return Err(EIO);
        }
        for before in 0..ahead {
            let slot = self.slot(self.done.wrapping_add(before));
            let before = self.posted.get(slot).and_then(Option::as_ref);
            if before.ok_or(EIO)?.signaled {
                return Err(EIO);
            }
        }
        let slot = self.slot(index);
        let posted = self.posted.get(slot).and_then(Option::as_ref);
        if posted.ok_or(EIO)?.room < u64::from(bytes) {
            return Err(EIO);
        }
        let request = self.take(index).ok_or(EIO)?;
        self.done = index.wrapping_add(1);
        self.idle = 0;
        Ok(request)
    }

    /// Checks whether the device flushes. Returns the number of consecutive checks at which it owed
    /// a flush and had completed nothing. It owes nothing for requests that may have succeeded
    /// unsignaled.
    pub(crate) fn look(&mut self) -> u32 {
        let owed = self.owed.wrapping_sub(self.done);
        let owes = self.flushes && owed != 0 && owed <= self.outstanding();
        self.idle = if owes { self.idle.saturating_add(1) } else { 0 };
        self.idle
    }

    /// Flushes the oldest request that has not completed, and returns it.
    pub(crate) fn flush(&mut self) -> Option<Continuation> {
        if self.outstanding() == 0 {
            return None;
        }
        let request = self.take(self.done)?;
        self.done = self.done.wrapping_add(1);
        Some(request)
    }

    fn take(&mut self, index: u32) -> Option<Continuation> {
        let slot = self.slot(index);
        let posted = self.posted.get_mut(slot)?.take()?;
        Some(posted.request)
    }
}

/// The work rings of a queue pair of the kernel.
#[pin_data]
pub(crate) struct KernelRings {
    /// [`None`] if there are no rings.
    memory: Option<SharedMemory>,
    /// May be locked in any context. No other lock is taken while it is held.
    #[pin]
    send: SpinLockIrq<WorkRing>,
    /// Like [`send`](Self::send). The two are never held together.
    #[pin]
    recv: SpinLockIrq<WorkRing>,
    /// The shared receives that are used instead of a receive ring, if any.
    shared: Option<Arc<SharedReceives>>,
    /// Whether the device was told, or is about to be told, to destroy the queue pair.
    ending: Atomic<bool>,
}

impl KernelRings {
    /// Creates rings in zeroed `memory`. Receives come from `shared`, if there is such a queue.
    pub(crate) fn new(
        memory: Option<SharedMemory>,
        send: RingLayout,
        recv: RingLayout,
        shared: Option<Arc<SharedReceives>>,
    ) -> Result<impl PinInit<Self>> {
        let send = WorkRing::new(Side::Send, send)?;
        let recv = WorkRing::new(Side::Receive, recv)?;
        Ok(pin_init!(Self {
            memory,
            send <- new_spinlock_irq!(send),
            recv <- new_spinlock_irq!(recv),
            shared,
            ending: Atomic::new(false),
        }))
    }

    /// Returns the memory of the rings; `EINVAL` if there is none.
    pub(crate) fn memory(&self) -> Result<&SharedMemory> {
        self.memory.as_ref().ok_or(EINVAL)
    }

    /// Returns one of the rings.
    pub(crate) fn ring(&self, side: Side) -> &SpinLockIrq<WorkRing> {
        match side {
            Side::Send => &self.send,
            Side::Receive => &self.recv,
        }
    }

    /// Completes the request `name`, which received `bytes` bytes. `EIO` if there is no such
    /// request or it has too little room.
    pub(crate) fn complete(&self, name: Name, bytes: u32) -> Result<Continuation> {
        match (&self.shared, name.side) {
            (Some(shared), Side::Receive) => shared.ring.lock().complete(name.index, bytes),
            _ => self.ring(name.side).lock().complete(name.index, bytes),
        }
    }

    /// Handles a completion that will not be polled any more, because the queue pair is gone or was
    /// reset. This frees the place of a shared receive.
    pub(crate) fn drop_completion(&self, name: Name) {
        if let (Some(shared), Side::Receive) = (&self.shared, name.side) {
            // The device may have forged the name.
            let _ = shared.ring.lock().complete(name.index, 0);
        }
    }

    /// Permits what may be posted in a state (IBTA volume 1, 10.3.1): no sends before the queue
    /// pair is ready to send, and no receives before it is initialised.
    pub(crate) fn set_state(&self, state: State) {
        let sends = !matches!(state, State::Reset | State::Init | State::ReadyToReceive);
        for (ring, open) in [(&self.send, sends), (&self.recv, state != State::Reset)] {
            let mut ring = ring.lock();
            ring.open = open;
            ring.flushes = state == State::Error;
        }
    }

    /// Records that the device is about to be told to destroy the queue pair, whose number may then
    /// be reused.
    pub(crate) fn begin_end(&self) {
        self.ending.store(true, Relaxed);
    }

    /// Returns whether another queue pair may have the number of this one.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Relaxed)
    }

    /// Forgets all requests, because the queue pair was reset and the device forgot them as well.
    pub(crate) fn forget(&self) {
        for side in [Side::Send, Side::Receive] {
            let mut ring = self.ring(side).lock();
            ring.done = ring.producer;
        }
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_kernel_qp)]
mod tests {
    use super::*;

    use crate::ring::Layout;
    use rdma::testing::{
        continuation,
        wr_id, //
    };
    use virtio::testing::with_dma;

    fn ring(side: Side, entries: u32) -> Result<(WorkRing, Layout)> {
        let mut buffer = Layout::new();
        let layout = buffer.place(entries, 64)?;
        let mut ring = WorkRing::new(side, layout)?;
        ring.open = true;
        Ok((ring, buffer))
    }

    fn post(ring: &mut WorkRing, wr_id: u64, signaled: bool) -> Result<u32> {
        let (_, name) = ring.next_entry()?;
        ring.advance(continuation(wr_id), 0, signaled);
        Ok(name.index)
    }

    fn complete(ring: &mut WorkRing, index: u32) -> Result<u64> {
        ring.complete(index, 0).map(|request| wr_id(&request))
    }

    fn flush(ring: &mut WorkRing) -> Option<u64> {
        ring.flush().map(|request| wr_id(&request))
    }

    #[test]
    fn names_survive_the_wire() {
        for side in [Side::Send, Side::Receive] {
            for index in [0, 7, u32::MAX] {
                let name = Name { side, index };
                assert_eq!(Name::from_wire(name.to_wire()), Ok(name));
            }
        }
        assert_eq!(Name::from_wire(1 << 33), Err(EIO));
    }

    #[test]
    fn a_ring_fills_and_empties() -> Result {
        with_dma(|dma| {
            let (mut ring, buffer) = ring(Side::Send, 2)?;
            let memory = SharedMemory::new(dma, usize::try_from(buffer.length())?)?;
            let word = |offset| memory.u32(header_word(&ring.layout, offset));
            let (produced, flags_word) = (word(offset::DRIVER_INDEX)?, word(offset::DEVICE_FLAGS)?);

            let (first, _) = ring.next_entry()?;
            ring.advance(continuation(1), 0, true);
            let (second, _) = ring.next_entry()?;
            assert_eq!(second - first, 64);
            ring.advance(continuation(2), 0, true);
            assert_eq!(ring.next_entry(), Err(ENOMEM));

            assert_eq!(produced.load(Ordering::Relaxed), 0);
            ring.publish(&memory)?;
            assert_eq!(u32::from_le(produced.load(Ordering::Relaxed)), 2);

            assert_eq!(complete(&mut ring, 0), Ok(1));
            assert_eq!(ring.next_entry()?.0, first);

            assert!(!ring.needs_doorbell(&memory)?);
            flags_word.store(flags::NEED_DOORBELL.to_le(), Ordering::Relaxed);
            assert!(ring.needs_doorbell(&memory)?);

            ring.open = false;
            assert_eq!(ring.next_entry(), Err(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn requests_complete_once_and_in_order() -> Result {
        let (mut ring, _) = ring(Side::Receive, 4)?;

        // The indices wrap around the ring several times.
        for round in 0..5_u64 {
            let first = post(&mut ring, 10 * round, true)?;
            let second = post(&mut ring, 10 * round + 1, true)?;
            let third = post(&mut ring, 10 * round + 2, true)?;
            assert_eq!(complete(&mut ring, second), Err(EIO));
            assert_eq!(complete(&mut ring, third.wrapping_add(1)), Err(EIO));
            assert_eq!(complete(&mut ring, first), Ok(10 * round));
            assert_eq!(complete(&mut ring, first), Err(EIO));
            assert_eq!(complete(&mut ring, second), Ok(10 * round + 1));
            assert_eq!(complete(&mut ring, third), Ok(10 * round + 2));
            assert_eq!(ring.outstanding(), 0);
        }
        Ok(())
    }

    #[test]
    fn no_more_is_received_than_there_is_room_for() -> Result {
        let (mut ring, _) = ring(Side::Receive, 4)?;

        let (_, name) = ring.next_entry()?;
        ring.advance(continuation(1), 64, true);
        assert!(ring.complete(name.index, 65).is_err());
        assert_eq!(ring.outstanding(), 1);
        assert!(ring.complete(name.index, 64).is_ok());
        Ok(())
    }

    #[test]
    fn silent_requests_complete_with_a_later_one() -> Result {
        let (mut ring, _) = ring(Side::Send, 4)?;

        let silent = post(&mut ring, 1, false)?;
        post(&mut ring, 2, false)?;
        let loud = post(&mut ring, 3, true)?;
        assert_eq!(complete(&mut ring, loud), Ok(3));
        assert_eq!(complete(&mut ring, silent), Err(EIO));

        // A request that fails generates a completion even if it is unsignaled.
        let failing = post(&mut ring, 4, false)?;
        assert_eq!(complete(&mut ring, failing), Ok(4));
        Ok(())
    }

    #[test]
    fn what_has_not_completed_is_flushed_once() -> Result {
        let (mut ring, _) = ring(Side::Send, 4)?;

        for wr_id in 1..=4 {
            post(&mut ring, wr_id, wr_id % 2 == 0)?;
        }
        assert_eq!(complete(&mut ring, 1), Ok(2));
        assert_eq!(flush(&mut ring), Some(3));
        post(&mut ring, 5, false)?;
        assert_eq!(flush(&mut ring), Some(4));
        assert_eq!(flush(&mut ring), Some(5));
        assert_eq!(flush(&mut ring), None);
        assert_eq!(complete(&mut ring, 3), Err(EIO));
        Ok(())
    }

    #[test]
    fn a_device_that_owes_a_flush_is_found_idle() -> Result {
        let mut buffer = Layout::new();
        let (send, recv) = (buffer.place(8, 64)?, buffer.place(8, 64)?);
        let rings = KBox::pin_init(KernelRings::new(None, send, recv, None)?, GFP_KERNEL)?;
        let looks = || {
            let look = |side| rings.ring(side).lock().look();
            (look(Side::Send), look(Side::Receive))
        };

        // A working queue pair owes nothing, however long it takes.
        rings.set_state(State::ReadyToSend);
        let first = post(&mut rings.ring(Side::Receive).lock(), 1, true)?;
        post(&mut rings.ring(Side::Receive).lock(), 2, true)?;
        post(&mut rings.ring(Side::Send).lock(), 3, false)?;
        assert_eq!(looks(), (0, 0));

        // In error, the send may have succeeded without completion, but the receives must be
        // flushed.
        rings.set_state(State::Error);
        assert_eq!((looks(), looks()), ((0, 1), (0, 2)));
        complete(&mut rings.ring(Side::Receive).lock(), first)?;
        assert_eq!((looks(), looks()), ((0, 1), (0, 2)));

        // A user that drains the send queue posts another request.
        let drain = post(&mut rings.ring(Side::Send).lock(), 4, false)?;
        assert_eq!(looks(), (1, 3));
        complete(&mut rings.ring(Side::Send).lock(), drain)?;
        assert_eq!(looks(), (0, 4));

        rings.set_state(State::Reset);
        rings.forget();
        rings.set_state(State::Error);
        assert_eq!(looks(), (0, 0));
        Ok(())
    }

    #[test]
    fn what_may_be_posted_depends_on_the_state() -> Result {
        let mut buffer = Layout::new();
        let (send, recv) = (buffer.place(2, 64)?, buffer.place(2, 64)?);
        let rings = KBox::pin_init(KernelRings::new(None, send, recv, None)?, GFP_KERNEL)?;

        for (state, sends, receives) in [
            (State::Reset, false, false),
            (State::Init, false, true),
            (State::ReadyToReceive, false, true),
            (State::ReadyToSend, true, true),
            (State::SendQueueDrain, true, true),
            (State::SendQueueError, true, true),
            (State::Error, true, true),
            (State::Reset, false, false),
        ] {
            rings.set_state(state);
            for (side, open) in [(Side::Send, sends), (Side::Receive, receives)] {
                let next = rings.ring(side).lock().next_entry().map(drop);
                assert_eq!(next, if open { Ok(()) } else { Err(EINVAL) });
            }
        }
        Ok(())
    }

    #[test]
    fn a_reset_queue_pair_has_no_requests() -> Result {
        let mut buffer = Layout::new();
        let (send, recv) = (buffer.place(2, 64)?, buffer.place(2, 64)?);
        let rings = KBox::pin_init(KernelRings::new(None, send, recv, None)?, GFP_KERNEL)?;

        rings.set_state(State::ReadyToSend);
        for side in [Side::Send, Side::Receive] {
            post(&mut rings.ring(side).lock(), 1, true)?;
        }
        rings.forget();
        for side in [Side::Send, Side::Receive] {
            let mut ring = rings.ring(side).lock();
            assert_eq!(flush(&mut ring), None);
            assert_eq!(post(&mut ring, 2, true), Ok(1));
            assert_eq!(complete(&mut ring, 1), Ok(2));
        }
        Ok(())
    }
}
