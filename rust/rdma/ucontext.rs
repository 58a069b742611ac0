// SPDX-License-Identifier: GPL-2.0

//! User contexts, and memory of devices and the kernel mapped into processes.

use core::{
    marker::PhantomData,
    mem::offset_of,
    ops::Deref,
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
        Device,
        Operations, //
    },
    object::kmalloc_aligned_size,
    pages::UserPages,
    uapi::{
        Attribute,
        Attributes, //
    },
    udata::{
        Request,
        Response,
        Udata, //
    },
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A process that opened the device (`struct ib_ucontext`).
///
/// The implementing type is the context: one is constructed for each open and dropped when the
/// process closes the device, dies, or the device goes away.
#[vtable]
pub trait UserContext: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<UserContext = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// What the driver adds to the attributes of `QUERY_CONTEXT`, for [`query`](Self::query).
    const QUERY_ATTRIBUTES: &'static [&'static Attribute] = &[];

    /// Creates a context.
    ///
    /// `mappings` takes the memory that the process may map, and those that share the context.
    fn alloc(
        call: &Call<'_, Self::Driver>,
        mappings: &mut Mappings<'_>,
        request: Self::Request,
    ) -> Result<(impl PinInit<Self>, Self::Response)>;

    /// Answers a process that got the context from another one (`ibv_import_device`), by
    /// [attributes](Self::QUERY_ATTRIBUTES) of the driver's own. Without this method contexts
    /// cannot be imported.
    fn query(
        _context: &Ucontext<Self>,
        _call: &Call<'_, Self::Driver>,
        _attributes: &Attributes<'_, Self::Driver>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Makes the hardware forget the context; afterwards it is dropped.
    ///
    /// No object of the context is left, and no process maps its device memory any more. This
    /// cannot fail: the core frees the memory in any case. Hardware that refuses is to be stopped.
    fn dealloc(context: &Ucontext<Self>, call: &Call<'_, Self::Driver>);
}

/// A piece of a device's memory, page aligned, that may be mapped into processes.
///
/// `'bound` is a time during which the device is bound to its driver, and so the memory its own:
/// later it may be another device's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory<'bound> {
    range: PhysicalRange,
    _bound: PhantomData<&'bound Resource>,
}

/// Where a [`DeviceMemory`] is, for as long as a context that has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct PhysicalRange {
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

const PAGE_SIZE: usize = kernel::page::PAGE_SIZE;

/// What the process of a context may map.
#[repr(C)]
struct Entry {
    raw: Opaque<bindings::rdma_user_mmap_entry>,
    content: Content,
}

/// The memory of an [`Entry`].
enum Content {
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
struct Table {
    #[pin]
    named: Mutex<Named>,
}

impl Table {
    /// # Safety
    ///
    /// `context` must be valid until the result is [closed](Self::close), and its entries made by
    /// this.
    unsafe fn new(context: NonNull<bindings::ib_ucontext>) -> Result<Arc<Self>> {
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
    fn close(&self) {
        let mut named = self.named.lock();
        named.context = None;
        while let Some(entry) = named.entries.pop() {
            // SAFETY: As in `remove`.
            unsafe { bindings::rdma_user_mmap_entry_remove(entry.cast().as_ptr()) };
        }
    }
}

/// Memory that a process may map until this is dropped, or its context is deallocated
/// ([`Ucontext::map_pages`], [`Ucontext::map_device`]). It belongs inside the object whose memory
/// it is.
///
/// A mapping that the process has by then stays as it is.
pub struct Mapped {
    table: Arc<Table>,
    entry: NonNull<Entry>,
    offset: u64,
}

impl Mapped {
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

impl Mappings<'_> {
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

/// A user context: `struct ib_ucontext` and the driver's part.
///
/// # Invariants
///
/// A reference to this type is only made of a context that is constructed. It never moves.
#[repr(C)]
pub struct Ucontext<T: UserContext> {
    raw: Opaque<bindings::ib_ucontext>,
    table: Arc<Table>,
    data: T,
}

impl<T: UserContext> Ucontext<T> {
    /// Bytes that the core allocates.
    pub(crate) const SIZE: usize = {
        assert!(offset_of!(Self, raw) == 0);
        kmalloc_aligned_size::<Self>()
    };

    /// Borrows a context from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must be a constructed context of `T` that does not go away during `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_ucontext) -> &'a Self {
        // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
        unsafe { &*ptr.cast() }
    }

    /// Lets the process of the context map device memory, uncached, that belongs to a new object.
    /// What memory that can be is as for [`Mappings::insert`].
    pub fn map_device<'bound>(
        &self,
        _call: &Call<'bound, T::Driver>,
        memory: DeviceMemory<'bound>,
    ) -> Result<Mapped> {
        self.map(Content::Device(memory.range))
    }

    /// Lets the process of the context map pages that belong to a new object.
    pub fn map_pages(&self, pages: &Arc<UserPages>) -> Result<Mapped> {
        self.map(Content::Pages(pages.clone()))
    }

    fn map(&self, content: Content) -> Result<Mapped> {
        let (entry, offset) = self.table.insert(content)?;
        Ok(Mapped {
            table: self.table.clone(),
            entry,
            offset,
        })
    }
}

impl<T: UserContext> Deref for Ucontext<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

// SAFETY: The core frees the context from any thread; the other members are `Send`.
unsafe impl<T: UserContext> Send for Ucontext<T> {}

// SAFETY: The C structure is not accessed through shared references; the data is `Sync`.
unsafe impl<T: UserContext> Sync for Ucontext<T> {}

/// # Safety
///
/// `context` must be a new context of a device of `T`, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    context: *mut bindings::ib_ucontext,
    udata: *mut bindings::ib_udata,
) -> c_int {
    // SAFETY: The core set the device of the context.
    let device = unsafe { Device::<T>::from_raw((*context).device) };
    // SAFETY: The call is not over before this function returns.
    let udata = unsafe { Udata::from_raw(udata) };

    from_result(|| {
        let udata = udata.ok_or(EINVAL)?;
        // SAFETY: Verbs run only while the device is registered. Processes call this one.
        unsafe {
            device.with_caller(true, |call| {
                let request = udata.request()?;
                let table = Table::new(NonNull::new_unchecked(context))?;
                let mut mappings = Mappings { table: &table };
                let (init, response) = T::UserContext::alloc(call, &mut mappings, request)
                    .inspect_err(|_| table.close())?;

                let this = context.cast::<Ucontext<T::UserContext>>();
                let kept = &raw mut (*this).table;
                let data = &raw mut (*this).data;

                pin_init::raw_init(data, init);
                kept.write(table);
                udata
                    .respond(&response)
                    .inspect_err(|_| end(context, call))?;
                Ok(0)
            })
        }
    })
}

/// # Safety
///
/// `context` must be a constructed context of a device of `T` that nobody uses any more.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    context: *mut bindings::ib_ucontext,
) {
    // SAFETY: Verbs run only while the device, which the core set, is registered; the context is
    // constructed, and the core frees it.
    unsafe { Device::<T>::from_raw((*context).device).with(|call| end(context, call)) };
}

/// # Safety
///
/// `context` must be a constructed context of a device of `T` that nobody uses any more.
unsafe fn end<T: Operations>(context: *mut bindings::ib_ucontext, call: &Call<'_, T>) {
    let this = context.cast::<Ucontext<T::UserContext>>();

    // SAFETY: Table and data were constructed by `alloc_callback` and are dropped once. The table
    // is closed first, so that nothing can be mapped that the driver is about to give back.
    unsafe {
        (*this).table.close();
        T::UserContext::dealloc(Ucontext::from_raw(context), call);
        core::ptr::drop_in_place(&raw mut (*this).data);
        core::ptr::drop_in_place(&raw mut (*this).table);
    }
}

/// # Safety
///
/// `context` must be a constructed context of a device of `T`, and `bundle` that of the call.
pub(crate) unsafe extern "C" fn query_callback<T: Operations>(
    context: *mut bindings::ib_ucontext,
    bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: Verbs run only while the device, which the core set, is registered. Processes call
    // this one; the core keeps the context during the call, whose attributes are those that the
    // driver added.
    from_result(|| unsafe {
        Device::<T>::from_raw((*context).device).with_caller(true, |call| {
            let attributes = Attributes::new(bundle, T::UserContext::QUERY_ATTRIBUTES);
            T::UserContext::query(Ucontext::from_raw(context), call, &attributes)?;
            Ok(0)
        })
    })
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

/// Lets the device go away while processes have it open: the core then destroys their objects and
/// replaces their mappings. There is nothing left for a driver to do.
///
/// # Safety
///
/// None; the type is that of the operation.
pub(crate) unsafe extern "C" fn disassociate_callback(_context: *mut bindings::ib_ucontext) {}
