// SPDX-License-Identifier: GPL-2.0

//! Rings of shared receive queues of the kernel, and the receives posted to them.
//!
//! Receives complete in any order. So each receive has a place of its own until its completion was
//! polled, and its [`Name`] is the number of that place. There are as many places as entries: an
//! entry is rewritten only after one of the earlier receives has completed, whatever the device
//! claims to have taken.
//!
//! A queue pair that is destroyed while a message is in flight can take its receive with it (IBTA
//! volume 1, 10.3.1). The receive's place is then lost until the queue is destroyed.

use core::sync::atomic::Ordering;

use kernel::{
    prelude::*,
    sync::{
        new_spinlock_irq,
        SpinLockIrq, //
    }, //
};
use rdma::wr::Continuation;
use virtio::SharedMemory;
use vrnic_wire::ring::{
    offset,
    RingLayout, //
};

use crate::{
    kernel_qp::{
        Name,
        Side, //
    },
    ring::header_word, //
};

/// The place of a receive.
enum Place {
    /// A receive, with its room in bytes.
    Posted(Continuation, u64),
    /// Free, with the next free place, if there is one.
    Free(Option<u32>),
}

/// A receive ring whose receives complete in any order.
pub(crate) struct SharedRing {
    layout: RingLayout,
    places: KVVec<Place>,
    /// The first free place.
    free: Option<u32>,
    producer: u32,
}

impl SharedRing {
    /// Creates a ring in zeroed memory.
    pub(crate) fn new(layout: RingLayout) -> Result<Self> {
        let entries = layout.entries.get();
        let mut places = KVVec::with_capacity(entries as usize, GFP_KERNEL)?;
        for place in 1..=entries {
            let next = (place != entries).then_some(place);
            places.push(Place::Free(next), GFP_KERNEL)?;
        }
        Ok(Self {
            layout,
            places,
            free: (entries != 0).then_some(0),
            producer: 0,
        })
    }

    /// Returns the index of the next entry.
    pub(crate) fn producer(&self) -> u32 {
        self.producer
    }

    /// Returns the memory offset of the next entry to post, and the name of its receive. `ENOMEM`
    /// if the ring is full.
    pub(crate) fn next_entry(&self) -> Result<(usize, Name)> {
        let name = Name {
            side: Side::Receive,
            index: self.free.ok_or(ENOMEM)?,
        };
        Ok((
            usize::try_from(self.layout.entry_offset(self.producer))?,
            name,
        ))
    }

    /// Marks the entry at [`next_entry`](Self::next_entry) as written. The receive has `room` bytes
    /// of room.
    pub(crate) fn advance(&mut self, request: Continuation, room: u64) {
        let place = self
            .free
            .and_then(|free| self.places.get_mut(free as usize));
        if let Some(place) = place {
            if let Place::Free(next) = *place {
                *place = Place::Posted(request, room);
                self.free = next;
                self.producer = self.producer.wrapping_add(1);
            }
        }
    }

    /// Makes all written entries visible to the device.
    pub(crate) fn publish(&self, memory: &SharedMemory) -> Result {
        memory
            .u32(header_word(&self.layout, offset::DRIVER_INDEX))?
            .store(self.producer.to_le(), Ordering::Release);
        Ok(())
    }

    /// Completes receive `index`, into which `bytes` bytes were received. `EIO` if there is no such
    /// receive or it has too little room; then nothing completes.
    pub(crate) fn complete(&mut self, index: u32, bytes: u32) -> Result<Continuation> {
        let place = self.places.get_mut(index as usize).ok_or(EIO)?;
        match place {
            Place::Posted(_, room) if *room >= u64::from(bytes) => {}
            _ => return Err(EIO),
        }
        let before = core::mem::replace(place, Place::Free(self.free.replace(index)));
        match before {
            Place::Posted(request, _) => Ok(request),
            Place::Free(_) => Err(EIO),
        }
    }
}

/// The ring of a shared receive queue of the kernel, with its memory.
#[pin_data]
pub(crate) struct SharedReceives {
    /// The memory of the ring.
    pub(crate) memory: SharedMemory,
    /// May be locked in any context. No other lock is taken while it is held.
    #[pin]
    pub(crate) ring: SpinLockIrq<SharedRing>,
}

impl SharedReceives {
    /// Creates a ring in zeroed `memory`.
    pub(crate) fn new(memory: SharedMemory, layout: RingLayout) -> Result<impl PinInit<Self>> {
        let ring = SharedRing::new(layout)?;
        Ok(pin_init!(Self {
            memory,
            ring <- new_spinlock_irq!(ring),
        }))
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_kernel_srq)]
mod tests {
    use super::*;

    use crate::ring::Layout;
    use rdma::testing::{
        continuation,
        wr_id, //
    };

    fn ring(entries: u32) -> Result<SharedRing> {
        SharedRing::new(Layout::new().place(entries, 64)?)
    }

    fn complete(ring: &mut SharedRing, index: u32) -> Result<u64> {
        ring.complete(index, 0).map(|request| wr_id(&request))
    }

    fn post(ring: &mut SharedRing, wr_id: u64) -> Result<(usize, u32)> {
        let (entry, name) = ring.next_entry()?;
        ring.advance(continuation(wr_id), 0);
        Ok((entry, name.index))
    }

    #[test]
    fn receives_complete_once_and_in_any_order() -> Result {
        let mut ring = ring(4)?;
        let mut names = [0; 4];

        for round in 0..3_u64 {
            for (n, name) in names.iter_mut().enumerate() {
                *name = post(&mut ring, 10 * round + n as u64)?.1;
            }
            assert_eq!(ring.next_entry(), Err(ENOMEM));
            for n in [2, 0, 3, 1] {
                assert_eq!(complete(&mut ring, names[n]), Ok(10 * round + n as u64));
                assert_eq!(complete(&mut ring, names[n]), Err(EIO));
            }
        }
        assert_eq!(complete(&mut ring, 4), Err(EIO));
        assert_eq!(complete(&mut ring, u32::MAX), Err(EIO));
        assert_eq!(ring.producer(), 12);
        Ok(())
    }

    #[test]
    fn no_more_is_received_than_there_is_room_for() -> Result {
        let mut ring = ring(2)?;

        let (_, name) = ring.next_entry()?;
        ring.advance(continuation(1), 64);
        assert!(ring.complete(name.index, 65).is_err());
        assert!(ring.complete(name.index, 64).is_ok());
        Ok(())
    }

    #[test]
    fn entries_go_round_whatever_the_names_are() -> Result {
        let mut ring = ring(2)?;

        let (first, one) = post(&mut ring, 1)?;
        let (second, two) = post(&mut ring, 2)?;
        assert_ne!(first, second);
        assert_eq!(complete(&mut ring, two), Ok(2));
        // The place is that of the second receive, and the entry that of the first.
        assert_eq!(post(&mut ring, 3)?, (first, two));
        assert_eq!(complete(&mut ring, two), Ok(3));
        assert_eq!(complete(&mut ring, one), Ok(1));
        Ok(())
    }
}
