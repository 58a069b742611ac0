// SPDX-License-Identifier: GPL-2.0

//! User contexts.

use core::{
    mem::offset_of,
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    mmap::{
        Content,
        DeviceMemory,
        Mapped,
        Mappings,
        MmapTable,
        PhysicalRange,
        UserPages, //
    },
    object::kmalloc_aligned_size,
    uapi::{
        AttrBundle,
        AttrDef, //
    },
    udata::{
        Request,
        Response,
        Udata, //
    },
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A process's open instance of the device (`struct ib_ucontext`).
///
/// The implementing type is the context: one is constructed for each open, and dropped when the
/// process closes the device or dies, or when the device goes away.
#[vtable]
pub trait UserContext: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<UserContext = Self>;
    /// The driver's part of the request.
    type Request: Request;
    /// The driver's part of the response.
    type Response: Response;

    /// The driver's own attributes of `QUERY_CONTEXT`, for [`query`](Self::query).
    const QUERY_ATTRIBUTES: &'static [&'static AttrDef] = &[];

    /// Creates a context.
    ///
    /// Memory in `mappings` can be mapped by the process and by those that share the context.
    fn alloc(
        call: &Call<'_, Self::Driver>,
        mappings: &mut Mappings<'_>,
        request: Self::Request,
    ) -> Result<(impl PinInit<Self>, Self::Response)>;

    /// Answers a process that imports the context from another process (`ibv_import_device`),
    /// through the [driver's own attributes](Self::QUERY_ATTRIBUTES). Without this method contexts
    /// cannot be imported.
    fn query(
        _context: &Ucontext<Self>,
        _call: &Call<'_, Self::Driver>,
        _attributes: &AttrBundle<'_, Self::Driver>,
    ) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Removes the context from the hardware; afterwards it is dropped.
    ///
    /// No object of the context is left, and no process maps its device memory any more. This
    /// cannot fail: the core frees the memory in any case. If the hardware refuses, the driver must
    /// stop it.
    fn dealloc(context: &Ucontext<Self>, call: &Call<'_, Self::Driver>);
}

/// A user context: `struct ib_ucontext` and the driver's part.
///
/// # Invariants
///
/// A reference to this type always refers to a constructed context, which never moves.
#[repr(C)]
pub struct Ucontext<T: UserContext> {
    raw: Opaque<bindings::ib_ucontext>,
    table: Arc<MmapTable>,
    data: T,
}

impl<T: UserContext> Ucontext<T> {
    /// Number of bytes that the core allocates.
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
    /// The rules for the memory are those of [`Mappings::insert`].
    pub fn map_device<'bound>(
        &self,
        _call: &Call<'bound, T::Driver>,
        memory: DeviceMemory<'bound>,
    ) -> Result<Mapped> {
        Mapped::new(&self.table, Content::Device(PhysicalRange::of(memory)?))
    }

    /// Lets the process of the context map pages that belong to a new object.
    pub fn map_pages(&self, pages: &Arc<UserPages>) -> Result<Mapped> {
        Mapped::new(&self.table, Content::Pages(pages.clone()))
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
    // SAFETY: The core set the device of the context. Only processes call this verb.
    let verb = unsafe { Verb::<T>::by_process((*context).device) };
    // SAFETY: The call does not end before this function returns.
    let udata = unsafe { Udata::from_raw(udata) };

    verb.run(|call| {
        let udata = udata.as_ref().ok_or(EINVAL)?;
        let raw = NonNull::new(context).ok_or(EINVAL)?;
        // SAFETY: The table is closed before the context is freed: below, or by `end`.
        let table = unsafe { MmapTable::new(raw) }?;
        let request = udata.request().inspect_err(|_| table.close())?;
        let mut mappings = Mappings::new(&table);
        let (init, response) =
            T::UserContext::alloc(call, &mut mappings, request).inspect_err(|_| table.close())?;

        let this = context.cast::<Ucontext<T::UserContext>>();
        // SAFETY: The core allocated room for these members, which do not move. Nobody else can
        // reach them before the call returns.
        unsafe {
            pin_init::raw_init(&raw mut (*this).data, init);
            (&raw mut (*this).table).write(table);
        }
        udata.respond(&response).inspect_err(|_| {
            // SAFETY: Constructed above, and not in use yet.
            unsafe { end(context, call) }
        })
    })
}

/// # Safety
///
/// `context` must be a constructed context of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    context: *mut bindings::ib_ucontext,
) {
    // SAFETY: The core set the device of the context.
    let verb = unsafe { Verb::<T>::new((*context).device) };
    // SAFETY: The context is constructed and not in use; the core frees it.
    verb.enter(|call| unsafe { end(context, call) });
}

/// # Safety
///
/// `context` must be a constructed context of a device of `T` that is no longer in use.
unsafe fn end<T: Operations>(context: *mut bindings::ib_ucontext, call: &Call<'_, T>) {
    let this = context.cast::<Ucontext<T::UserContext>>();
    // SAFETY: Constructed, as the caller guarantees.
    let borrowed = unsafe { Ucontext::<T::UserContext>::from_raw(context) };

    // Closed first, so that the process can no longer map what the driver is about to release.
    borrowed.table.close();
    T::UserContext::dealloc(borrowed, call);
    // SAFETY: Table and data were constructed by `alloc_callback`, are not borrowed any more, and
    // are dropped once.
    unsafe {
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
    // SAFETY: The core set the device of the context. Only processes call this verb.
    let verb = unsafe { Verb::<T>::by_process((*context).device) };
    // SAFETY: The attributes of the call are those that the driver added.
    let attributes = unsafe { AttrBundle::new(bundle, T::UserContext::QUERY_ATTRIBUTES) };
    // SAFETY: The core keeps the context during the call.
    let context = unsafe { Ucontext::<T::UserContext>::from_raw(context) };

    verb.run(|call| T::UserContext::query(context, call, &attributes))
}

/// Lets the device go away while processes have it open: the core then destroys their objects and
/// replaces their mappings. There is nothing left for a driver to do.
///
/// # Safety
///
/// None; the type is that of the operation.
pub(crate) unsafe extern "C" fn disassociate_callback(_context: *mut bindings::ib_ucontext) {}
