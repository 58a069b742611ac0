// SPDX-License-Identifier: GPL-2.0

//! Device memory that processes allocate (`ibv_alloc_dm`).

use kernel::{
    prelude::*,
    types::Opaque, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    ucontext::Ucontext,
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A buffer in the memory of a device (`struct ib_dm`).
///
/// Its process copies data to and from it, and registers it
/// ([`MemoryRegion::register_dm`](crate::MemoryRegion::register_dm)). It is dropped after all its
/// regions are gone.
pub trait DmBuffer: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<DmBuffer = Self>;

    /// Whether the driver has device memory; `false` only for [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Allocates `length` bytes for a process, aligned to 2 to the power of `alignment`. Both
    /// values come from the process and are unchecked. May sleep.
    fn alloc(
        call: &Call<'_, Self::Driver>,
        context: &Ucontext<<Self::Driver as Operations>::UserContext>,
        length: u64,
        alignment: u32,
    ) -> Result<impl PinInit<Self>>;
}

/// A part of a device memory buffer, within its bounds.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct DmRange {
    /// Offset of the first byte in the buffer.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

/// A buffer in device memory: `struct ib_dm` and the driver's part.
///
/// Unlike most other objects it is allocated by this crate and not by the core.
///
/// # Invariants
///
/// A reference to this type always refers to a constructed buffer, which never moves.
#[pin_data]
#[repr(C)]
pub struct Dm<T: DmBuffer> {
    raw: Opaque<bindings::ib_dm>,
    #[pin]
    data: T,
}

impl<T: DmBuffer> Dm<T> {
    /// Borrows a buffer from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must have been returned by [`alloc_callback`], and must not go away during `'a`.
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_dm) -> &'a Self {
        const { assert!(core::mem::offset_of!(Self, raw) == 0) };
        // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
        unsafe { &*ptr.cast() }
    }
}

impl<T: DmBuffer> core::ops::Deref for Dm<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

// SAFETY: Nothing in the C structure is bound to a thread; the data is `Send`.
unsafe impl<T: DmBuffer> Send for Dm<T> {}

// SAFETY: The C structure is not accessed through shared references; the data is `Sync`.
unsafe impl<T: DmBuffer> Sync for Dm<T> {}

/// # Safety
///
/// `device` must be a device of `T`, `context` a constructed context of it, and `attributes` valid.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    device: *mut bindings::ib_device,
    context: *mut bindings::ib_ucontext,
    attributes: *mut bindings::ib_dm_alloc_attr,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> *mut bindings::ib_dm {
    // SAFETY: Guaranteed by the caller. Only processes call this verb.
    let verb = unsafe { Verb::<T>::by_process(device) };
    // SAFETY: The attributes are valid during the call.
    let (length, alignment) = unsafe { ((*attributes).length, (*attributes).alignment) };
    // SAFETY: The context is constructed, and not deallocated during the call.
    let context = unsafe { Ucontext::from_raw(context) };

    verb.pointer(|call| {
        let data = T::DmBuffer::alloc(call, context, length, alignment)?;
        let dm = KBox::pin_init(
            pin_init!(Dm {
                raw: Opaque::new(bindings::ib_dm {
                    device,
                    ..pin_init::zeroed()
                }),
                data <- data,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: Nothing moves out of the result; it is pinned again when the core returns it.
        Ok(KBox::into_raw(unsafe { Pin::into_inner_unchecked(dm) }).cast())
    })
}

/// # Safety
///
/// `dm` must be a buffer of a device of `T` that has no regions any more.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    dm: *mut bindings::ib_dm,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The device was set when the buffer was allocated.
    let verb = unsafe { Verb::<T>::new((*dm).device) };

    verb.run(|_call| {
        // SAFETY: `alloc_callback` allocated the buffer, which is not used any more.
        drop(unsafe { KBox::from_raw(dm.cast::<Dm<T::DmBuffer>>()) });
        Ok(())
    })
}
