// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Split virtqueues (virtio 1.3, section 2.7) for control and events.
//!
//! Wraps crate `virtio-queue` so that an error by the driver results in [`BadQueue`], not in a silently shortened
//! chain. The device then asks for a reset.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT, desc::split::Descriptor};
use vm_memory::{Bytes, GuestAddress};

use super::QueueSetup;
use crate::guest_memory::{GuestMemory, QueueMemory};

/// The driver violated a rule of the virtqueue; the device needs a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadQueue(
    /// What was wrong, for the log.
    pub &'static str,
);

/// A buffer that the driver made available, fully read and bounds-checked.
#[derive(Debug)]
pub struct Chain {
    head: u16,
    /// Contents of all device-readable descriptors.
    pub request: Vec<u8>,
    writable: Vec<(u64, u32)>,
}

impl Chain {
    /// Returns the number of its first descriptor, which identifies it in the used ring.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Returns the number of bytes that the driver lets the device write.
    pub fn reply_capacity(&self) -> usize {
        self.writable.iter().map(|&(_, len)| len as usize).sum()
    }
}

/// A virtqueue in use.
pub struct Virtqueue {
    queue: Queue,
    memory: QueueMemory,
}

impl Virtqueue {
    /// Takes a queue into use. Fails if a ring is misaligned or not entirely in guest memory.
    pub fn new(setup: &QueueSetup, memory: Arc<GuestMemory>) -> Result<Self, BadQueue> {
        let memory = QueueMemory::new(memory);
        let mut queue =
            Queue::new(setup.size).map_err(|_| BadQueue("size is not a power of two"))?;
        queue.set_size(setup.size);
        queue
            .try_set_desc_table_address(GuestAddress(setup.descriptors))
            .map_err(|_| BadQueue("descriptor table is misaligned"))?;
        queue
            .try_set_avail_ring_address(GuestAddress(setup.driver_area))
            .map_err(|_| BadQueue("available ring is misaligned"))?;
        queue
            .try_set_used_ring_address(GuestAddress(setup.device_area))
            .map_err(|_| BadQueue("used ring is misaligned"))?;
        queue.set_ready(true);
        if !queue.is_valid(&memory) {
            return Err(BadQueue("a ring lies outside guest memory"));
        }
        Ok(Self { queue, memory })
    }

    /// Takes the next available chain. The chain may have at most `max_request` readable bytes.
    pub fn pop(&mut self, max_request: usize) -> Result<Option<Chain>, BadQueue> {
        let mut available = self
            .queue
            .iter(&self.memory)
            .map_err(|_| BadQueue("available index is out of range"))?;
        let Some(head) = available.next().map(|chain| chain.head_index()) else {
            return Ok(None);
        };
        let mut chain = Chain {
            head,
            request: Vec::new(),
            writable: Vec::new(),
        };
        let mut next = head;
        // A longer chain has a loop.
        for _ in 0..self.queue.size() {
            let descriptor = self.descriptor(next)?;
            if descriptor.refers_to_indirect_table() {
                return Err(BadQueue("descriptor is indirect"));
            }
            if descriptor.is_write_only() {
                chain.writable.push((descriptor.addr().0, descriptor.len()));
            } else {
                self.read(descriptor, max_request, &mut chain)?;
            }
            if !descriptor.has_next() {
                return Ok(Some(chain));
            }
            next = descriptor.next();
        }
        Err(BadQueue("descriptor chain is too long"))
    }

    /// Reads a descriptor. The iterator of `virtio-queue` would follow an indirect one, although that is not offered.
    fn descriptor(&self, index: u16) -> Result<Descriptor, BadQueue> {
        if index >= self.queue.size() {
            return Err(BadQueue("descriptor is not in the table"));
        }
        let address = self.queue.desc_table() + u64::from(index) * size_of::<Descriptor>() as u64;
        self.memory
            .read_obj(GuestAddress(address))
            .map_err(|_| BadQueue("descriptor table is gone"))
    }

    /// Appends what a readable descriptor points to to the request of a chain.
    fn read(
        &self,
        descriptor: Descriptor,
        max_request: usize,
        chain: &mut Chain,
    ) -> Result<(), BadQueue> {
        if !chain.writable.is_empty() {
            return Err(BadQueue("readable descriptor after a writable one"));
        }
        let (start, len) = (chain.request.len(), descriptor.len() as usize);
        if start + len > max_request {
            return Err(BadQueue("request is too long"));
        }
        chain.request.resize(start + len, 0);
        self.memory
            .read_slice(&mut chain.request[start..], descriptor.addr())
            .map_err(|_| BadQueue("readable descriptor points outside guest memory"))
    }

    /// Returns a chain, which may not exist, to the driver as if `written` bytes had been written to it. An honest
    /// device must not do this. Returns whether the driver wants an interrupt.
    pub fn complete_as(&mut self, head: u32, written: u32) -> Result<bool, BadQueue> {
        /// Layout of the used ring: offsets of its index and entries, and the size of an entry (virtio 1.3, section
        /// 2.7.8).
        const INDEX: u64 = 2;
        const ENTRIES: u64 = 4;
        const ENTRY: u64 = 8;

        let ring = self.queue.used_ring();
        let next = self.queue.next_used();
        let entry = ring + ENTRIES + u64::from(next % self.queue.size()) * ENTRY;
        let gone = |_| BadQueue("used ring is gone");
        let bytes = [head.to_le_bytes(), written.to_le_bytes()].concat();
        self.memory
            .write_slice(&bytes, GuestAddress(entry))
            .map_err(gone)?;
        let next = next.wrapping_add(1);
        self.queue.set_next_used(next);
        self.memory
            .store(next.to_le(), GuestAddress(ring + INDEX), Ordering::Release)
            .map_err(gone)?;
        self.queue
            .needs_notification(&self.memory)
            .map_err(|_| BadQueue("available ring is gone"))
    }

    /// Writes `reply` to a chain and returns the chain to the driver. Returns whether the driver wants an interrupt.
    pub fn complete(&mut self, chain: &Chain, reply: &[u8]) -> Result<bool, BadQueue> {
        let mut rest = reply;
        for &(address, len) in &chain.writable {
            let (now, later) = rest.split_at(rest.len().min(len as usize));
            self.memory
                .write_slice(now, GuestAddress(address))
                .map_err(|_| BadQueue("writable descriptor points outside guest memory"))?;
            rest = later;
        }
        let written = (reply.len() - rest.len()) as u32;
        self.queue
            .add_used(&self.memory, chain.head, written)
            .map_err(|_| BadQueue("used ring is gone"))?;
        self.queue
            .needs_notification(&self.memory)
            .map_err(|_| BadQueue("available ring is gone"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest_memory::tests::memfd;

    /// Flags of descriptors (virtio 1.3, section 2.7.5).
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;

    const TABLE: u64 = 0x1000;
    const INDIRECT_TABLE: u64 = 0x4000;
    const DATA: u64 = 0x5000;

    /// Address, length, flags, and number of the next one.
    type Entry = (u64, u32, u16, u16);

    /// Takes the chain that starts at the first descriptor of this table. There is another table for an indirect
    /// descriptor.
    fn pop(table: &[Entry], indirect: &[Entry]) -> Result<Option<Chain>, BadQueue> {
        let memory = Arc::new(GuestMemory::new());
        let file = memfd(0x5000);
        memory.map(TABLE, 0x5000, &file, 0, true).unwrap();
        let put = |address: u64, bytes: &[u8]| {
            rustix::io::pwrite(&file, bytes, address - TABLE).unwrap();
        };
        for (at, entries) in [(TABLE, table), (INDIRECT_TABLE, indirect)] {
            let bytes = entries.iter().flat_map(|&(address, length, flags, next)| {
                let mut bytes = address.to_le_bytes().to_vec();
                bytes.extend(length.to_le_bytes());
                bytes.extend(flags.to_le_bytes());
                bytes.extend(next.to_le_bytes());
                bytes
            });
            put(at, &bytes.collect::<Vec<u8>>());
        }
        let setup = QueueSetup {
            index: 0,
            size: 4,
            descriptors: TABLE,
            driver_area: 0x2000,
            device_area: 0x3000,
        };
        put(setup.driver_area + 2, &1u16.to_le_bytes());
        Virtqueue::new(&setup, memory).unwrap().pop(16)
    }

    #[test]
    fn a_chain_may_fill_the_table_and_no_more() {
        let mut table = [
            (DATA, 8, NEXT, 3),
            (DATA + 0x20, 7, NEXT | WRITE, 2),
            (DATA + 0x30, 5, WRITE, 0),
            (DATA + 0x10, 8, NEXT, 1),
        ];
        let chain = pop(&table, &[]).unwrap().expect("available");
        assert_eq!((chain.request.len(), chain.reply_capacity()), (16, 12));
        for (flags, next) in [(NEXT | WRITE, 1), (NEXT | WRITE, 2), (NEXT | WRITE, 4)] {
            (table[2].2, table[2].3) = (flags, next);
            assert!(pop(&table, &[]).is_err(), "{next}");
        }
    }

    #[test]
    fn indirect_descriptors_were_not_offered() {
        let good = [(DATA, 8, NEXT, 1), (DATA + 0x20, 8, WRITE, 0)];
        assert!(pop(&good, &[]).is_ok());
        let wrong = Some(BadQueue("descriptor is indirect"));
        let whole = [(INDIRECT_TABLE, 32, INDIRECT, 0)];
        assert_eq!(pop(&whole, &good).err(), wrong);
        let rest = [(DATA, 8, NEXT, 1), (INDIRECT_TABLE, 16, INDIRECT, 0)];
        assert_eq!(pop(&rest, &good[1..]).err(), wrong);
    }
}
