// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The GID table.

use crate::{cause::Cause, state::wire};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use vrnic_wire::port::{GidEntry, GidType};

/// GIDs of the port by index.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct GidTable {
    #[serde(with = "wire")]
    entries: Vec<Option<GidEntry>>,
    generation: u64,
    /// Indices of entries that a fault hides.
    hidden: Range<u32>,
}

impl GidTable {
    /// Creates an empty table of `length` entries.
    pub(crate) fn new(length: u32) -> Self {
        Self {
            entries: vec![None; length as usize],
            generation: 0,
            hidden: 0..0,
        }
    }

    /// Returns the generation, which increases by one with each change.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the entry with this index if it is in use.
    pub(crate) fn get(&self, index: u8) -> Option<&GidEntry> {
        self.entries
            .get(usize::from(index))?
            .as_ref()
            .filter(|_| !self.hides(index.into()))
    }

    /// Fills an entry.
    pub(crate) fn set(&mut self, index: u32, entry: GidEntry) -> Result<(), Cause> {
        if GidType::try_from(entry.gid_type).is_err() {
            return Err(Cause::GidType);
        }
        *self.place(index)? = Some(entry);
        self.generation += 1;
        Ok(())
    }

    /// Empties an entry.
    pub(crate) fn clear(&mut self, index: u32) -> Result<(), Cause> {
        *self.place(index)? = None;
        self.generation += 1;
        Ok(())
    }

    /// Returns whether frames with this VLAN and RoCE version can be for this port at all.
    pub(crate) fn has_link(&self, vlan: u16, roce_v1: bool) -> bool {
        self.iter().any(|entry| {
            entry.vlan.get() == vlan && (entry.gid_type == GidType::RoceV1.raw()) == roce_v1
        })
    }

    /// Returns all GIDs in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &GidEntry> {
        let entries = self.entries.iter().zip(0..);
        let seen = entries.filter(|(_, index)| !self.hides(*index));
        seen.filter_map(|(entry, _)| entry.as_ref())
    }

    /// Hides the entries with these indices and shows all others.
    pub(crate) fn hide(&mut self, hidden: Range<u32>) {
        if self.hidden != hidden {
            self.hidden = hidden;
            self.generation += 1;
        }
    }

    fn hides(&self, index: u32) -> bool {
        self.hidden.contains(&index)
    }

    fn place(&mut self, index: u32) -> Result<&mut Option<GidEntry>, Cause> {
        self.entries.get_mut(index as usize).ok_or(Cause::GidIndex)
    }
}
