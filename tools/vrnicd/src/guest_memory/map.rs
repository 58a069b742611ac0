// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The bus address space of one VM.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use imbl::OrdMap;
use vrnic_vfio_user::mapping::FileId;
use vrnic_vfio_user::session::MAX_DMA_MAPS;

use super::{Mapping, sigbus};
use crate::quota::{Quota, limited};

/// Largest number of translations of one VM; reported to the VMM.
pub const MAX_TRANSLATIONS: usize = MAX_DMA_MAPS;

/// Largest number of files of one VM.
const MAX_MAPPINGS: usize = 512;

/// Largest total size of the files of one VM: a process has 128 TiB of address space for all VMs.
const MAX_BYTES: u64 = 8 << 40;

/// Why a DMA_MAP or DMA_UNMAP was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapError {
    /// The range is empty, wraps around, overlaps a mapped one, or extends beyond the file.
    Invalid,
    /// Too many ranges or files.
    NoSpace,
    /// The range splits a mapped one, or nothing is mapped there.
    NotFound,
}

/// The target of a range of bus addresses.
#[derive(Clone, Debug)]
struct Translation {
    length: u64,
    mapping: Arc<Mapping>,
    offset: u64,
    writable: bool,
}

/// A contiguous piece of a mapping.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The file that contains it.
    pub mapping: Arc<Mapping>,
    /// Byte offset in the file.
    pub offset: u64,
    /// Length in bytes, from the requested address to the end of the contiguous piece.
    pub length: u64,
    /// Whether the device may write.
    pub writable: bool,
}

/// Translations by the first address of each. Copies share what is equal, so a change is cheap.
type Translations = OrdMap<u64, Translation>;

#[derive(Default)]
struct Inner {
    translations: Translations,
    /// Every file seen so far, mapped once. Unused files are kept because a VMM removes memory and adds it again at
    /// each reset.
    mappings: Vec<Arc<Mapping>>,
}

/// Guest memory of one VM. The front end's thread changes it. A worker looks up addresses when memory is registered,
/// and in the control and event queues, but not for requests and their data. It never waits for the front end, except
/// after a reset, to release files. What may take time, or block on a file of a hostile VMM, happens without the lock.
#[derive(Default)]
pub struct GuestMemory {
    inner: Mutex<Inner>,
    /// The translations as they were after the last change. Whoever looks up an address needs no lock.
    published: ArcSwap<Translations>,
    /// How much the VMM may still add to the log.
    quota: Quota,
}

impl GuestMemory {
    /// Creates a map without memory.
    pub fn new() -> Self {
        Self::with_log(Quota::default())
    }

    /// Creates a map without memory, whose VMM may add so much to the log.
    pub fn with_log(quota: Quota) -> Self {
        // Fails only if the handler is already installed.
        let _ = sigbus::install();
        Self {
            quota,
            ..Self::default()
        }
    }

    /// Maps `length` bytes at bus address `address` to `offset` in the file behind `fd`.
    pub fn map(
        &self,
        address: u64,
        length: u64,
        fd: &OwnedFd,
        offset: u64,
        writable: bool,
    ) -> Result<(), MapError> {
        let end = address
            .checked_add(length)
            .filter(|_| length > 0)
            .ok_or(MapError::Invalid)?;
        let file_end = offset.checked_add(length).ok_or(MapError::Invalid)?;
        let file = File::of(fd)?;
        let known = {
            let inner = self.lock();
            inner.check(address, end)?;
            inner.mapping_of(&file, file_end)
        };
        let mapping = if let Some(mapping) = known {
            mapping
        } else {
            self.release_unused();
            self.lock().check_limits(0)?;
            let mapping = Mapping::new(fd).map_err(|error| {
                limited!(self.quota, warn, %error, "memory of the VM is refused");
                MapError::Invalid
            })?;
            if mapping.len() < file_end {
                return Err(MapError::Invalid);
            }
            Arc::new(mapping)
        };
        let mut inner = self.lock();
        inner.check(address, end)?;
        if !inner.mappings.iter().any(|it| Arc::ptr_eq(it, &mapping)) {
            inner.check_limits(mapping.len())?;
            inner.mappings.push(mapping.clone());
        }
        let writable = writable && mapping.is_writable();
        inner.translations.insert(
            address,
            Translation {
                length,
                mapping,
                offset,
                writable,
            },
        );
        self.publish(inner);
        Ok(())
    }

    /// Removes all translations in a range. The range may include memory that was never mapped because DMA_MAP came
    /// without a descriptor. Fails without changing anything if the range splits a mapped one.
    pub fn unmap(&self, address: u64, length: u64) -> Result<(), MapError> {
        let end = address.checked_add(length).ok_or(MapError::Invalid)?;
        let mut inner = self.lock();
        let cut = |(start, there): (&u64, &Translation)| {
            let there_end = start + there.length;
            (*start < address && there_end > address) || (*start < end && there_end > end)
        };
        let before = inner
            .translations
            .range(..address)
            .next_back()
            .is_some_and(cut);
        if before
            || inner
                .translations
                .range(address..end)
                .next_back()
                .is_some_and(cut)
        {
            return Err(MapError::NotFound);
        }
        let gone: Vec<u64> = inner
            .translations
            .range(address..end)
            .map(|(start, _)| *start)
            .collect();
        for start in gone {
            inner.translations.remove(&start);
        }
        self.publish(inner);
        Ok(())
    }

    /// Removes all translations.
    pub fn unmap_all(&self) {
        let mut inner = self.lock();
        inner.translations = Translations::new();
        self.publish(inner);
    }

    /// Unmaps files that are used neither by a translation nor by registered memory. Called after a reset of the
    /// device.
    pub fn release_unused(&self) {
        let unused = self.lock().take_unused();
        // Unmapped here, after the lock is free again.
        drop(unused);
    }

    /// Returns the contiguous piece of a file that begins at `address`, at most `length` bytes of it.
    pub fn piece(&self, address: u64, length: u64) -> Option<Piece> {
        let translations = self.published.load();
        let (start, first) = translations.get_prev(&address)?;
        let inside = address - start;
        if inside >= first.length {
            return None;
        }
        let mut piece = Piece {
            mapping: first.mapping.clone(),
            offset: first.offset + inside,
            length: first.length - inside,
            writable: first.writable,
        };
        // Firmware splits RAM into several ranges that are adjacent in the file as well, so join them.
        let mut next_address = start + first.length;
        while piece.length < length {
            match translations.get(&next_address) {
                Some(next)
                    if Arc::ptr_eq(&next.mapping, &piece.mapping)
                        && next.offset == piece.offset + piece.length
                        && next.writable == piece.writable =>
                {
                    piece.length += next.length;
                    next_address += next.length;
                }
                _ => break,
            }
        }
        piece.length = piece.length.min(length);
        Some(piece)
    }

    /// Returns the file that holds most of the memory. It is the same for all devices of a VM and differs between VMs.
    pub fn largest_file(&self) -> Option<FileId> {
        let inner = self.lock();
        let largest = inner.mappings.iter().max_by_key(|mapping| mapping.len());
        largest.map(|mapping| mapping.file())
    }

    /// Returns the number of translations and their total size in bytes, for the log.
    pub fn summary(&self) -> (usize, u64) {
        let inner = self.lock();
        (
            inner.translations.len(),
            inner.translations.values().map(|there| there.length).sum(),
        )
    }

    /// Shows changed translations to those who look up addresses, and unlocks. From then on, nobody begins to look at
    /// the old ones.
    fn publish(&self, inner: MutexGuard<'_, Inner>) {
        let old = self.published.swap(Arc::new(inner.translations.clone()));
        drop(inner);
        // Freed after the lock.
        drop(old);
    }

    // A panic cannot leave `Inner` in an inconsistent state: each change is a single insertion or removal.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Checks that there is room for a translation of the addresses from `address` to `end`.
    fn check(&self, address: u64, end: u64) -> Result<(), MapError> {
        if self.translations.len() >= MAX_TRANSLATIONS {
            return Err(MapError::NoSpace);
        }
        let last = self.translations.range(..end).next_back();
        if last.is_some_and(|(start, there)| start + there.length > address) {
            return Err(MapError::Invalid);
        }
        Ok(())
    }

    /// Checks that there is room for another mapping of `bytes` bytes.
    fn check_limits(&self, bytes: u64) -> Result<(), MapError> {
        let others: u64 = self.mappings.iter().map(|other| other.len()).sum();
        if self.mappings.len() >= MAX_MAPPINGS || others + bytes > MAX_BYTES {
            return Err(MapError::NoSpace);
        }
        Ok(())
    }

    /// Returns the mapping of a file that extends to `end`, if there is one.
    fn mapping_of(&self, file: &File, end: u64) -> Option<Arc<Mapping>> {
        let mut known = self.mappings.iter().filter(|m| !m.is_lost());
        let is_it = |m: &&Arc<Mapping>| {
            m.file() == file.id && m.is_writable() == file.writable && m.len() >= end
        };
        known.find(is_it).cloned()
    }

    /// Takes out the mappings that are not used.
    fn take_unused(&mut self) -> Vec<Arc<Mapping>> {
        let used = |mapping: &Arc<Mapping>| Arc::strong_count(mapping) > 1;
        let (used, unused) = std::mem::take(&mut self.mappings)
            .into_iter()
            .partition(used);
        self.mappings = used;
        unused
    }
}

/// What distinguishes a file of the VMM.
struct File {
    id: FileId,
    writable: bool,
}

impl File {
    /// Asks for the file behind `fd`, which may block for as long as the VMM likes.
    fn of(fd: &OwnedFd) -> Result<Self, MapError> {
        let flags = rustix::fs::fcntl_getfl(fd).map_err(|_| MapError::Invalid)?;
        Ok(Self {
            id: FileId::of(fd).map_err(|_| MapError::Invalid)?,
            writable: flags & rustix::fs::OFlags::RWMODE == rustix::fs::OFlags::RDWR,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::memfd;
    use super::*;

    #[test]
    fn neighbours_join_and_strangers_do_not() {
        let memory = GuestMemory::new();
        let (a, b) = (memfd(0x4000), memfd(0x4000));
        memory.map(0x1000, 0x1000, &a, 0x1000, true).unwrap();
        memory.map(0x2000, 0x1000, &a, 0x2000, true).unwrap();
        memory.map(0x3000, 0x1000, &b, 0, true).unwrap();
        let piece = memory.piece(0x1800, 0x10000).unwrap();
        assert_eq!((piece.offset, piece.length), (0x1800, 0x1800));
        assert!(memory.piece(0x0fff, 1).is_none());
        assert!(memory.piece(0x4000, 1).is_none());
        assert_eq!(memory.piece(0x3fff, 1).unwrap().offset, 0xfff);
    }

    #[test]
    fn bad_ranges_are_refused() {
        let memory = GuestMemory::new();
        let fd = memfd(0x4000);
        memory.map(0x1000, 0x2000, &fd, 0, true).unwrap();
        for (address, length, offset) in [
            (0x1000, 0x2000, 0),
            (0x2000, 1, 0),
            (0, 0x1001, 0),
            (0, 0x8000, 0),
            (0x9000, 0, 0),
            (0x9000, 0x4001, 0),
        ] {
            let result = memory.map(address, length, &fd, offset, true);
            assert_eq!(result, Err(MapError::Invalid), "{address:#x}+{length:#x}");
        }
        assert_eq!(
            memory.map(u64::MAX, 2, &fd, 0, true),
            Err(MapError::Invalid)
        );
        assert_eq!(
            memory.map(0x9000, 2, &fd, u64::MAX, true),
            Err(MapError::Invalid)
        );
        assert_eq!(memory.unmap(0x1000, 0x1000), Err(MapError::NotFound));
        assert_eq!(memory.unmap(0x2000, 0x1000), Err(MapError::NotFound));
        assert_eq!(memory.unmap(0x8000, 0x1000), Ok(()));
        assert_eq!(memory.unmap(0, 0x10000), Ok(()));
        assert_eq!(memory.summary(), (0, 0));
    }

    #[test]
    fn devices_of_a_vm_share_the_largest_file() {
        let vm = [GuestMemory::new(), GuestMemory::new()];
        let other = GuestMemory::new();
        assert!(other.largest_file().is_none());
        let ram = memfd(0x40000);
        for device in &vm {
            device
                .map(0xf_0000, 0x1000, &memfd(0x1000), 0, false)
                .unwrap();
            device.map(0, 0x4000, &ram, 0, true).unwrap();
        }
        other.map(0, 0x4000, &memfd(0x40000), 0, true).unwrap();
        assert!(vm[0].largest_file().is_some());
        assert_eq!(vm[0].largest_file(), vm[1].largest_file());
        assert_ne!(vm[0].largest_file(), other.largest_file());
        // The answer is the same while the VMM has removed the memory.
        let before = vm[0].largest_file();
        vm[0].unmap_all();
        assert_eq!(vm[0].largest_file(), before);
    }

    #[test]
    fn addresses_are_left_for_others() {
        let memory = GuestMemory::new();
        let map = |at: u64, fd: &OwnedFd| memory.map(at << 12, 0x1000, fd, 0, true);
        assert_eq!(map(0, &memfd(MAX_BYTES + 0x1000)), Err(MapError::NoSpace));
        assert_eq!(map(1, &memfd(MAX_BYTES - 0x1000)), Ok(()));
        assert_eq!(map(2, &memfd(0x2000)), Err(MapError::NoSpace));
        assert_eq!(map(3, &memfd(0x1000)), Ok(()));
    }

    #[test]
    fn an_address_is_looked_up_while_the_front_end_is_stuck() {
        let memory = GuestMemory::new();
        memory.map(0, 0x1000, &memfd(0x1000), 0, true).unwrap();
        // The front end, in the midst of a change.
        let mut stuck = memory.lock();
        stuck.translations.remove(&0);
        std::thread::scope(|scope| {
            let looks = scope.spawn(|| memory.piece(0x10, 1).is_some());
            assert!(looks.join().unwrap());
        });
        memory.publish(stuck);
        assert!(memory.piece(0x10, 1).is_none());
    }

    #[test]
    fn a_file_is_mapped_once_and_goes_when_unused() {
        let memory = GuestMemory::new();
        let fd = memfd(0x10000);
        for page in 0..16 {
            memory
                .map(page * 0x2000, 0x1000, &fd, page * 0x1000, true)
                .unwrap();
        }
        assert_eq!(memory.lock().mappings.len(), 1);
        let held = memory.piece(0, 1).unwrap();
        memory.unmap_all();
        memory.release_unused();
        assert_eq!(memory.lock().mappings.len(), 1, "a piece still uses it");
        drop(held);
        memory.release_unused();
        assert_eq!(memory.lock().mappings.len(), 0);
    }
}
