// SPDX-License-Identifier: GPL-2.0

//! Memory that processes map: of devices, and pages of the kernel.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
    io::{
        resource::{
            Flags,
            Resource, //
        },
        PhysAddr, //
    },
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

pub use pages::UserPages;

/// A piece of a device's memory, page aligned, that may be mapped into processes.
///
/// `'bound` is a time during which the device is bound to its driver, and so the memory its own:
/// later it may be another device's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory<'bound> {
    pub(crate) range: PhysicalRange,
    _bound: PhantomData<&'bound Resource>,
}

/// Where a [`DeviceMemory`] is, for as long as a context that has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct PhysicalRange {
    start: PhysAddr,
    length: usize,
}

impl<'bound> DeviceMemory<'bound> {
    /// Names `length` bytes at `offset` of a resource of the driver's device. They begin at a page,
    /// and are whole pages.
    ///
    /// `EINVAL` if they are not, if the resource is not memory or not as long, or if it is not
    /// memory of a device but RAM: no process may be given that by its address.
    pub fn new(resource: &'bound Resource, offset: u64, length: usize) -> Result<Self> {
        let end = offset.checked_add(length as u64).ok_or(EINVAL)?;
        if end > resource.size() || !resource.flags().contains(Flags::IORESOURCE_MEM) {
            return Err(EINVAL);
        }
        let start = resource.start() + offset;
        if length == 0 || start % PAGE_SIZE as PhysAddr != 0 || length % PAGE_SIZE != 0 {
            return Err(EINVAL);
        }
        // SAFETY: The function only looks at the tree of resources.
        // CAST: A flag and an enum that bindgen types otherwise.
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
        Ok(Self {
            range: PhysicalRange { start, length },
            _bound: PhantomData,
        })
    }
}

/// What the process of a context may map.
#[repr(C)]
pub(crate) struct Entry {
    raw: Opaque<bindings::rdma_user_mmap_entry>,
    content: Content,
}

/// The memory of an [`Entry`].
pub(crate) enum Content {
    Device(PhysicalRange),
    Pages(Arc<UserPages>),
}

impl Content {
    /// Bytes, whole pages.
    fn length(&self) -> usize {
        match self {
            Self::Device(range) => range.length,
            Self::Pages(pages) => pages.len(),
        }
    }
}

/// What a process can name of a context's memory.
///
/// # Invariants
///
/// `context` is valid while it is there, and has all `entries` in its table, with the references
/// that they are removed with.
struct Named {
    /// As long as the context is not about to be freed.
    context: Option<NonNull<bindings::ib_ucontext>>,
    entries: KVec<NonNull<Entry>>,
}

// SAFETY: The core locks the table of a context; any thread may insert and remove entries.
unsafe impl Send for Named {}

/// The table of what the process of a context may map.
#[pin_data]
pub(crate) struct Table {
    #[pin]
    named: Mutex<Named>,
}

impl Table {
    /// # Safety
    ///
    /// `context` must be valid until the result is [closed](Self::close), and its entries made by
    /// this.
    pub(crate) unsafe fn new(context: NonNull<bindings::ib_ucontext>) -> Result<Arc<Self>> {
        // INVARIANT: Valid, as the caller guarantees; there are no entries.
        Arc::pin_init(
            pin_init!(Self {
                named <- new_mutex!(Named {
                    context: Some(context),
                    entries: KVec::new(),
                }),
            }),
            GFP_KERNEL,
        )
    }

    /// Lets the process map something, and returns the entry and the offset to give to `mmap`.
    /// `ENODEV` if the context is about to be freed.
    fn insert(&self, content: Content) -> Result<(NonNull<Entry>, u64)> {
        let length = content.length();
        let entry = KBox::new(
            Entry {
                raw: Opaque::zeroed(),
                content,
            },
            GFP_KERNEL,
        )?;

        let mut named = self.named.lock();
        let context = named.context.ok_or(ENODEV)?;
        named.entries.reserve(1, GFP_KERNEL)?;
        let entry = NonNull::from(KBox::leak(entry));
        // SAFETY: The context is valid by the type invariant, and the entry a zeroed C structure at
        // the start of an `Entry`, as `mmap` and `mmap_free` expect.
        let ret = unsafe {
            bindings::rdma_user_mmap_entry_insert(context.as_ptr(), entry.cast().as_ptr(), length)
        };
        if let Err(error) = to_result(ret) {
            // SAFETY: Leaked above, and not in the table.
            drop(unsafe { KBox::from_raw(entry.as_ptr()) });
            return Err(error);
        }
        // INVARIANT: Just inserted. There is room.
        named.entries.push(entry, GFP_KERNEL)?;
        // SAFETY: It is in the table, and stays there as long as that is locked.
        let offset = unsafe { bindings::rdma_user_mmap_get_offset(entry.cast().as_ptr()) };
        Ok((entry, offset))
    }

    /// Takes an entry out, if it is still there.
    fn remove(&self, entry: NonNull<Entry>) {
        let mut named = self.named.lock();
        let Some(index) = named.entries.iter().position(|&other| other == entry) else {
            return;
        };
        let _ = named.entries.remove(index);
        // SAFETY: It was in the table of a context that is not freed meanwhile, by the type
        // invariant. When the last mapping is gone too, the core calls `mmap_free`.
        unsafe { bindings::rdma_user_mmap_entry_remove(entry.cast().as_ptr()) };
    }

    /// The context is about to be freed: nothing of it can be named from here on.
    pub(crate) fn close(&self) {
        let mut named = self.named.lock();
        named.context = None;
        while let Some(entry) = named.entries.pop() {
            // SAFETY: As in `remove`.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.cast().as_ptr()) };
        }
    }
}

/// Memory that a process may map until this is dropped, or its context is deallocated
/// ([`Ucontext::map_pages`](crate::Ucontext::map_pages),
/// [`Ucontext::map_device`](crate::Ucontext::map_device)). It belongs inside the object whose
/// memory it is.
///
/// A mapping that the process has by then stays as it is.
pub struct Mapped {
    table: Arc<Table>,
    entry: NonNull<Entry>,
    offset: u64,
}

impl Mapped {
    /// Lets the process of the table's context map something.
    pub(crate) fn new(table: &Arc<Table>, content: Content) -> Result<Self> {
        let (entry, offset) = table.insert(content)?;
        Ok(Self {
            table: table.clone(),
            entry,
            offset,
        })
    }

    /// The offset to give to `mmap`.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.table.remove(self.entry);
    }
}

// SAFETY: The entry is only accessed with the lock of the table.
unsafe impl Send for Mapped {}

// SAFETY: A shared reference gives access to a number.
unsafe impl Sync for Mapped {}

/// The table of what the process of a new context may map.
pub struct Mappings<'a> {
    table: &'a Table,
}

impl<'a> Mappings<'a> {
    /// Those of the table's context.
    pub(crate) fn new(table: &'a Table) -> Self {
        Self { table }
    }

    /// Lets the process map `memory`, uncached, and returns the offset to give to `mmap`.
    ///
    /// It can do so until the context is deallocated or the device goes away: then its mappings are
    /// replaced by zeroes. That is in the lifetime of the registration, in which the memory must be
    /// the device's: it is named by something that the [data](Call::data) of the registration has.
    pub fn insert<'bound, T: Operations>(
        &mut self,
        _call: &Call<'bound, T>,
        memory: DeviceMemory<'bound>,
    ) -> Result<u64> {
        self.insert_content(Content::Device(memory.range))
    }

    /// Lets the process map `pages`, and returns the offset to give to `mmap`.
    ///
    /// It can do so until the context is deallocated; its mappings stay as they are even then.
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

    // SAFETY: All entries in the table of a context are made by `Table`; the reference just
    // taken keeps the entry until it is given back.
    let ret = match unsafe { &(*raw.cast::<Entry>()).content } {
        // SAFETY: As above; the area is being set up by this call. The core checks that it is
        // shared and as long as the entry, and takes it from the process before the device is not
        // registered any more. Until then the memory is the device's. The offset of a page in
        // physical memory fits `c_ulong`.
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
    // SAFETY: Gives back the reference taken above; a mapping of device memory took its own, and
    // one of pages has those.
    unsafe { bindings::rdma_user_mmap_entry_put(raw) };
    ret
}

/// # Safety
///
/// `entry` must be an entry without references, made by [`Table::insert`].
pub(crate) unsafe extern "C" fn mmap_free_callback(entry: *mut bindings::rdma_user_mmap_entry) {
    // SAFETY: `Table::insert` leaked the box; nobody refers to the entry any more.
    drop(unsafe { KBox::from_raw(entry.cast::<Entry>()) });
}
