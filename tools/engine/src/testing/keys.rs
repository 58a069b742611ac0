// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Keys that work requests change, as handled by the driver of a guest.

use super::guest::{Arena, Guest, Mr, Send};
use crate::device::Rnic;
use vrnic_wire::{
    command::{AllocateIntegrityMr, AllocateMr, AllocateMw, MwType},
    integrity::{
        ELEMENT_LENGTH, ELEMENTS_OFFSET, IntegrityElement, IntegrityStatus, IntegrityTarget,
        table_length,
    },
    memory::TABLE_ENTRY_LENGTH,
    work::{BindTarget, RegisterTarget, SendOpcode, Sge},
};
use zerocopy::{FromBytes, IntoBytes};

/// A memory region for fast registration.
#[derive(Clone, Debug)]
pub struct FastMr {
    /// Its table.
    pub table: Arena,
    /// Key of the last registration.
    pub key: u32,
}

impl Guest {
    /// Allocates a region for fast registration.
    pub fn fast_mr(&mut self, rnic: &mut Rnic, max_pages: u32) -> FastMr {
        let length = max_pages as usize * TABLE_ENTRY_LENGTH;
        let table = self.arena(length);
        let (list, chunks) = self.page_list(&table, 0, length);
        let request = AllocateMr {
            pd: self.pd.into(),
            max_pages: max_pages.into(),
            table: list,
        };
        let key = self.command(rnic, request).expect("fast mr").key.get();
        self.free(chunks);
        FastMr { table, key }
    }
}

/// A memory window.
#[derive(Clone, Debug)]
pub struct Mw {
    /// Key of the last binding.
    pub key: u32,
}

impl Guest {
    /// Allocates a memory window.
    pub fn mw(&mut self, rnic: &mut Rnic, mw_type: MwType) -> Mw {
        let request = AllocateMw {
            pd: self.pd.into(),
            mw_type: mw_type.raw().into(),
        };
        let key = self.command(rnic, request).expect("mw").key.get();
        Mw { key }
    }
}

impl Mw {
    /// Creates a request to bind the window to `length` bytes of `mr` from `offset` on. The window counts as having the
    /// next key from now on.
    pub fn bind(&mut self, wr_id: u64, mr: &Mr, offset: usize, length: usize, rights: u32) -> Send {
        self.key = next_key(self.key);
        Send::new(wr_id, SendOpcode::BindWindow).target(&BindTarget {
            address: (mr.iova + offset as u64).into(),
            length: (length as u64).into(),
            window: self.key.into(),
            region: mr.key.into(),
            access: rights.into(),
            ..Default::default()
        })
    }

    /// Creates a request to make the window free.
    pub fn invalidate(&self, wr_id: u64) -> Send {
        Send::new(wr_id, SendOpcode::LocalInvalidate).immediate(self.key)
    }
}

/// Returns the key with the next lowest byte.
pub fn next_key(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

impl FastMr {
    /// Lists the pages of `arena` in the table, and describes the registration of `length` bytes from `offset` on at
    /// `iova`, whose last 12 bits must be those of `offset`. The key is the next one.
    pub fn target(&self, arena: &Arena, offset: usize, length: usize, iova: u64) -> RegisterTarget {
        assert_eq!(iova % 4096, offset as u64 % 4096);
        let pages: Vec<usize> = (offset / 4096..(offset + length).div_ceil(4096)).collect();
        for (index, page) in pages.iter().enumerate() {
            let address = arena.address(page * 4096).to_le_bytes();
            self.table.put(index * TABLE_ENTRY_LENGTH, &address);
        }
        RegisterTarget {
            iova: iova.into(),
            length: (length as u64).into(),
            key: next_key(self.key).into(),
            page_count: (pages.len() as u32).into(),
            page_shift: 12,
            ..Default::default()
        }
    }

    /// Creates a request to register all of `mr` again, with `rights`, at `iova`, a multiple of the page size. The
    /// region counts as having the new key from now on.
    pub fn register(&mut self, wr_id: u64, mr: &Mr, rights: u32, iova: u64) -> Send {
        let mut target = self.target(&mr.arena, 0, mr.arena.length(), iova);
        target.access = rights.into();
        self.key = target.key.get();
        Send::new(wr_id, SendOpcode::RegisterRegion).target(&target)
    }

    /// Creates a request to make the region free.
    pub fn invalidate(&self, wr_id: u64) -> Send {
        Send::new(wr_id, SendOpcode::LocalInvalidate).immediate(self.key)
    }
}

/// An integrity region.
#[derive(Clone, Debug)]
pub struct IntegrityMr {
    /// Its table.
    pub table: Arena,
    /// Key of the last registration.
    pub key: u32,
    max_elements: usize,
}

impl Guest {
    /// Allocates an integrity region.
    pub fn integrity_mr(
        &mut self,
        rnic: &mut Rnic,
        max_elements: u32,
        max_metadata_elements: u32,
    ) -> IntegrityMr {
        let length = table_length(max_elements, max_metadata_elements) as usize;
        let table = self.arena(length);
        let (list, chunks) = self.page_list(&table, 0, length);
        let request = AllocateIntegrityMr {
            pd: self.pd.into(),
            max_elements: max_elements.into(),
            max_metadata_elements: max_metadata_elements.into(),
            table: list,
            ..Default::default()
        };
        let key = self.command(rnic, request).expect("integrity mr").key.get();
        self.free(chunks);
        IntegrityMr {
            table,
            key,
            max_elements: max_elements as usize,
        }
    }
}

impl IntegrityMr {
    /// Lists the elements, each an address and a length, in the table, and completes the description of a registration.
    /// The key is the next one.
    pub fn target(
        &self,
        data: &[(u64, u32)],
        metadata: &[(u64, u32)],
        wanted: IntegrityTarget,
    ) -> IntegrityTarget {
        for (first, elements) in [(0, data), (self.max_elements, metadata)] {
            for (index, &(address, length)) in elements.iter().enumerate() {
                let element = IntegrityElement {
                    address: address.into(),
                    length: length.into(),
                    ..Default::default()
                };
                let place = ELEMENTS_OFFSET + (first + index) * ELEMENT_LENGTH;
                self.table.put(place, element.as_bytes());
            }
        }
        IntegrityTarget {
            key: next_key(self.key).into(),
            elements: (data.len() as u16).into(),
            metadata_elements: (metadata.len() as u16).into(),
            ..wanted
        }
    }

    /// Creates a request to register these elements. The region counts as having the new key from now on.
    pub fn register(
        &mut self,
        wr_id: u64,
        data: &[(u64, u32)],
        metadata: &[(u64, u32)],
        wanted: IntegrityTarget,
    ) -> Send {
        let target = self.target(data, metadata, wanted);
        self.key = target.key.get();
        Send::new(wr_id, SendOpcode::RegisterIntegrity).target(&target)
    }

    /// Creates a request to make the region free.
    pub fn invalidate(&self, wr_id: u64) -> Send {
        Send::new(wr_id, SendOpcode::LocalInvalidate).immediate(self.key)
    }

    /// Returns an element for `length` bytes at `offset`.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: (offset as u64).into(),
            length: (length as u32).into(),
            lkey: self.key.into(),
        }
    }

    /// Reads the status.
    pub fn status(&self) -> IntegrityStatus {
        let bytes = self.table.get(0, size_of::<IntegrityStatus>());
        IntegrityStatus::read_from_bytes(&bytes).expect("its length")
    }
}

impl Send {
    /// Sets the operation-specific part of the entry.
    #[must_use]
    pub fn target(mut self, target: &(impl IntoBytes + zerocopy::Immutable)) -> Self {
        self.target.copy_from_slice(target.as_bytes());
        self
    }
}
