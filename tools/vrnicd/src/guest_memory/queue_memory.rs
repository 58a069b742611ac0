// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Guest memory in the form that crate `virtio-queue` needs.

use std::cell::RefCell;
use std::iter::FusedIterator;
use std::sync::Arc;

use vm_memory::guest_memory::{Error, GuestMemorySliceIterator, Result};
use vm_memory::{GuestAddress, GuestMemoryMmap, Permissions, VolatileSlice};

use super::{GuestMemory, Mapping};

/// View of guest memory for virtqueues. It keeps every mapping of which it has handed out slices until it is dropped
/// itself, so that a concurrent DMA_UNMAP cannot remove the memory under a slice.
pub struct QueueMemory {
    memory: Arc<GuestMemory>,
    held: RefCell<Vec<Arc<Mapping>>>,
}

impl QueueMemory {
    /// Creates a view of `memory`.
    pub fn new(memory: Arc<GuestMemory>) -> Self {
        Self {
            memory,
            held: RefCell::new(Vec::new()),
        }
    }

    fn slice(
        &self,
        address: GuestAddress,
        length: usize,
        access: Permissions,
    ) -> Result<VolatileSlice<'_>> {
        let outside = Error::InvalidGuestAddress(address);
        let Some(piece) = self.memory.piece(address.0, length as u64) else {
            return Err(outside);
        };
        if access.has_write() && !piece.writable {
            return Err(outside);
        }
        let Some(pointer) = piece.mapping.pointer(piece.offset, piece.length) else {
            return Err(outside);
        };
        let mut held = self.held.borrow_mut();
        if !held
            .iter()
            .any(|mapping| Arc::ptr_eq(mapping, &piece.mapping))
        {
            held.push(piece.mapping);
        }
        // SAFETY: `pointer` is valid for `piece.length` bytes while the mapping lives. `held` keeps the mapping at
        // least as long as `self`, because entries are never removed, and the slice borrows `self`.
        Ok(unsafe { VolatileSlice::new(pointer, piece.length as usize) })
    }
}

/// Slices that together make up a range of guest memory.
pub struct Slices<'a> {
    memory: &'a QueueMemory,
    address: GuestAddress,
    left: usize,
    access: Permissions,
}

impl<'a> Iterator for Slices<'a> {
    type Item = Result<VolatileSlice<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let slice = self.memory.slice(self.address, self.left, self.access);
        match &slice {
            Ok(slice) => {
                self.left -= slice.len();
                // The last slice may end at the top of the address space; then nothing is left.
                self.address = GuestAddress(self.address.0.wrapping_add(slice.len() as u64));
            }
            Err(_) => self.left = 0,
        }
        Some(slice)
    }
}

impl FusedIterator for Slices<'_> {}
impl<'a> GuestMemorySliceIterator<'a, ()> for Slices<'a> {}

impl vm_memory::GuestMemory for QueueMemory {
    /// Unused: bus addresses are translated here, piece by piece.
    type PhysicalMemory = GuestMemoryMmap<()>;
    type Bitmap = ();

    fn check_range(&self, address: GuestAddress, count: usize, access: Permissions) -> bool {
        Slices {
            memory: self,
            address,
            left: count,
            access,
        }
        .all(|slice| slice.is_ok())
    }

    fn get_slices(
        &self,
        address: GuestAddress,
        count: usize,
        access: Permissions,
    ) -> Result<impl GuestMemorySliceIterator<'_, ()>> {
        Ok(Slices {
            memory: self,
            address,
            left: count,
            access,
        })
    }
}
