// SPDX-License-Identifier: GPL-2.0

//! Memory that processes map: device memory, and pages of the kernel.

use core::ptr::NonNull;

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    io::PhysAddr,
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    types::Opaque, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    }, //
};

mod pages;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use crate::device_memory::DeviceMemory;
pub use pages::UserPages;

/// Location of a [`DeviceMemory`], without its lifetime: valid as long as the context that has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhysicalRange {
    start: PhysAddr,
    length: usize,
}

impl PhysicalRange {
    /// Returns the location of memory that processes may map.
    ///
    /// Returns `EINVAL` if it does not consist of whole pages, or if it is RAM and not device
    /// memory: processes must not get access to RAM by its physical address.
    pub(crate) fn of(memory: DeviceMemory<'_>) -> Result<Self> {
        let start = memory.start();
        let length = usize::try_from(memory.len())?;
        if start % PAGE_SIZE as PhysAddr != 0 || length % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // SAFETY: The function only reads the resource tree.
        // CAST: A flag and an enum for which bindgen chose other types.
        let found = unsafe {
            bindings::region_intersects(
                start,
                length,
                bindings::IORESOURCE_SYSTEM_RAM as c_ulong,
                bindings::IORES_DESC_NONE as c_ulong,
            )
        };
        // CAST: A small constant.
        if found as u32 != bindings::REGION_DISJOINT {
            return Err(EINVAL);
        }
        Ok(Self { start, length })
    }
}

/// Memory that the process of a context may map.
#[repr(C)]
pub(crate) struct MmapEntry {
    raw: Opaque<bindings::rdma_user_mmap_entry>,
    content: Content,
}

/// The memory of an [`MmapEntry`].
pub(crate) enum Content {
    Device(PhysicalRange),
    Pages(Arc<UserPages>),
}

impl Content {
    /// Returns the length in bytes, a multiple of the page size.
    fn length(&self) -> usize {
        match self {
            Self::Device(range) => range.length,
            Self::Pages(pages) => pages.len(),
        }
    }
}

/// The mappable memory of a context.
///
/// # Invariants
///
/// `context`, if present, is valid. All entries of `list` are in its table, each with the reference
/// that its removal drops.
struct MmapEntries {
    /// Present until the context is about to be freed.
    context: Option<NonNull<bindings::ib_ucontext>>,
    list: KVec<NonNull<MmapEntry>>,
}

// SAFETY: The core locks the table of a context; any thread may insert and remove entries.
unsafe impl Send for MmapEntries {}

/// The table of memory that the process of a context may map.
#[pin_data]
pub(crate) struct MmapTable {
    #[pin]
    entries: Mutex<MmapEntries>,
}

impl MmapTable {
    /// # Safety
    ///
    /// `context` must be valid until the result is [closed](Self::close), and all of its mmap
    /// entries must be created by this table.
    pub(crate) unsafe fn new(context: NonNull<bindings::ib_ucontext>) -> Result<Arc<Self>> {
        // INVARIANT: Valid, as the caller guarantees; there are no entries.
        Arc::pin_init(
            pin_init!(Self {
                entries <- new_mutex!(MmapEntries {
                    context: Some(context),
                    list: KVec::new(),
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Makes something mappable by the process. Returns the entry and its `mmap` offset, or
    /// `ENODEV` if the context is about to be freed.
    fn insert(&self, content: Content) -> Result<(NonNull<MmapEntry>, u64)> {
        let length = content.length();
        let entry = KBox::new(
            MmapEntry {
                raw: Opaque::zeroed(),
                content,
            },
            GFP_KERNEL,
        )?;

        let mut entries = self.entries.lock();
        let context = entries.context.ok_or(ENODEV)?;
        entries.list.reserve(1, GFP_KERNEL)?;
        let entry = NonNull::from(KBox::leak(entry));
        // SAFETY: The context is valid by the type invariant. The entry is a zeroed C structure at
        // the start of an `MmapEntry`, as `mmap` and `mmap_free` expect.
        let ret = unsafe {
            bindings::rdma_user_mmap_entry_insert(context.as_ptr(), entry.cast().as_ptr(), length)
        };
        if let Err(error) = to_result(ret) {
            // SAFETY: Leaked above, and not in the table.
            drop(unsafe { KBox::from_raw(entry.as_ptr()) });
            return Err(error);
        }
        // INVARIANT: Just inserted. There is room, so this does not fail.
        entries.list.push(entry, GFP_KERNEL)?;
        // SAFETY: The entry is in the table, and stays there while the lock is held.
        let offset = unsafe { bindings::rdma_user_mmap_get_offset(entry.cast().as_ptr()) };
        Ok((entry, offset))
    }

    /// Removes an entry, if it is still there.
    fn remove(&self, entry: NonNull<MmapEntry>) {
        let mut entries = self.entries.lock();
        let Some(index) = entries.list.iter().position(|&other| other == entry) else {
            return;
        };
        let _ = entries.list.remove(index);
        // SAFETY: By the type invariant the entry was in the table of a context that is not freed
        // during this. Once the last mapping is gone too, the core calls `mmap_free`.
        unsafe { bindings::rdma_user_mmap_entry_remove(entry.cast().as_ptr()) };
    }

    /// Removes all entries, because the context is about to be freed. Nothing can be inserted
    /// afterwards.
    pub(crate) fn close(&self) {
        let mut entries = self.entries.lock();
        entries.context = None;
        while let Some(entry) = entries.list.pop() {
            // SAFETY: As in `remove`.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.cast().as_ptr()) };
        }
    }
}

/// Memory that a process may map until this is dropped or its context is deallocated
/// ([`Ucontext::map_pages`](crate::Ucontext::map_pages),
/// [`Ucontext::map_device`](crate::Ucontext::map_device)). Keep it in the object that the memory
/// belongs to.
///
/// Mappings that the process already has stay as they are.
pub struct Mapped {
    table: Arc<MmapTable>,
    entry: NonNull<MmapEntry>,
    offset: u64,
}

impl Mapped {
    /// Makes something mappable by the process of the table's context.
    pub(crate) fn new(table: &Arc<MmapTable>, content: Content) -> Result<Self> {
        let (entry, offset) = table.insert(content)?;
        Ok(Self {
            table: table.clone(),
            entry,
            offset,
        })
    }

    /// Returns the offset to pass to `mmap`.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.table.remove(self.entry);
    }
}

// SAFETY: The entry is accessed only with the table locked.
unsafe impl Send for Mapped {}

// SAFETY: A shared reference gives access only to a number.
unsafe impl Sync for Mapped {}

/// The mappable memory of a new context.
pub struct Mappings<'a> {
    table: &'a MmapTable,
}

impl<'a> Mappings<'a> {
    /// Wraps the table of the context.
    pub(crate) fn new(table: &'a MmapTable) -> Self {
        Self { table }
    }

    /// Lets the process map `memory`, uncached, and returns the offset to pass to `mmap`. `EINVAL`
    /// if the memory does not consist of whole pages.
    ///
    /// The process can do so until the context is deallocated or the device goes away, when zero
    /// pages replace its mappings. Both happen during the lifetime of the registration, for which
    /// `memory` must belong to the device; hence it must derive from the [data](Call::data) of the
    /// registration.
    pub fn insert<'bound, T: Operations>(
        &mut self,
        _call: &Call<'bound, T>,
        memory: DeviceMemory<'bound>,
    ) -> Result<u64> {
        self.insert_content(Content::Device(PhysicalRange::of(memory)?))
    }

    /// Lets the process map `pages`, and returns the offset to pass to `mmap`.
    ///
    /// The process can do so until the context is deallocated. Its mappings remain even after that.
    pub fn insert_pages(&mut self, pages: &Arc<UserPages>) -> Result<u64> {
        self.insert_content(Content::Pages(pages.clone()))
    }

    fn insert_content(&mut self, content: Content) -> Result<u64> {
        let (_, offset) = self.table.insert(content)?;
        Ok(offset)
    }
}

/// Maps device memory or pages of the kernel into a process.
///
/// # Safety
///
/// `context` must be a constructed context of a device of `T`, and `vma` the area being mapped.
pub(crate) unsafe extern "C" fn mmap_callback(
    context: *mut bindings::ib_ucontext,
    vma: *mut bindings::vm_area_struct,
) -> c_int {
    // SAFETY: Both pointers are valid.
    let raw = unsafe { bindings::rdma_user_mmap_entry_get(context, vma) };
    if raw.is_null() {
        return EINVAL.to_errno();
    }

    // SAFETY: Only `MmapTable` creates entries in the table of a context. The reference just taken
    // keeps the entry alive until it is put.
    let ret = match unsafe { &(*raw.cast::<MmapEntry>()).content } {
        // SAFETY: The entry is held; this call sets up the area. The core checks that the area is
        // shared and as long as the entry, and unmaps it from the process before the device is
        // unregistered. Until then the memory belongs to the device. The page number of a physical
        // address fits `c_ulong`.
        Content::Device(range) => unsafe {
            bindings::rdma_user_mmap_io(
                context,
                vma,
                // CAST: A page number fits `c_ulong` where a page can be mapped.
                (range.start / PAGE_SIZE as PhysAddr) as c_ulong,
                // CAST: `usize` and `c_ulong` are the same size.
                range.length as c_ulong,
                bindings::pgprot_noncached((*vma).vm_page_prot),
                raw,
            )
        },
        // SAFETY: The core checked that the area, which this call sets up, is shared and as long as
        // the entry.
        Content::Pages(pages) => from_result(|| unsafe { pages.map(vma) }.map(|()| 0)),
    };
    // SAFETY: Puts the reference taken above. A mapping of device memory took its own reference,
    // and a mapping of pages holds references to the pages.
    unsafe { bindings::rdma_user_mmap_entry_put(raw) };
    ret
}

/// # Safety
///
/// `entry` must be an entry made by [`MmapTable::insert`] that has no references any more.
pub(crate) unsafe extern "C" fn mmap_free_callback(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: `MmapTable::insert` leaked the box, and there are no other references to the entry.
    drop(unsafe { KBox::from_raw(entry.cast::<MmapEntry>()) });
}
