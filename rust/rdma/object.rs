// SPDX-License-Identifier: GPL-2.0

//! Objects that the core allocates and whose tail belongs to the driver.

use core::alloc::Layout;

use kernel::prelude::*;

use pin_init::Zeroable;

use crate::udata::{
    Response,
    Udata, //
};

/// Returns an allocation size for `T` that `kmalloc` aligns well enough.
///
/// A size that is a multiple of the alignment is served from a slab with at least that alignment.
pub(crate) const fn kmalloc_aligned_size<T>() -> usize {
    Layout::new::<T>().pad_to_align().size()
}

/// Zeroes a C structure that a verb fills for its caller, and borrows it.
///
/// The core does not: what a verb leaves as it was can reach a process.
///
/// # Safety
///
/// `ptr` must be valid for writes during `'a`, and nobody else use it.
pub(crate) unsafe fn blank<'a, T: Zeroable>(ptr: *mut T) -> &'a mut T {
    // SAFETY: Guaranteed by the caller; all zeroes are a `T`, as it is `Zeroable`.
    unsafe {
        ptr.write_bytes(0, 1);
        &mut *ptr
    }
}

/// Defines the wrapper of an object: the C structure, then the driver's data.
///
/// The core allocates and zeroes the whole (`size_ib_*` in `struct ib_device_ops`), fills the C
/// structure and calls the create verb, which constructs the data. The destroy verb drops the data;
/// the core frees the whole.
macro_rules! core_object {
    ($(#[$meta:meta])* $name:ident<$bound:ident>, $raw:ident) => {
        $(#[$meta])*
        ///
        /// # Invariants
        ///
        /// A reference to this type is only made of an object whose create verb has constructed
        /// `data` and whose destroy verb has not dropped it yet. The object never moves.
        #[repr(C)]
        pub struct $name<T: $bound> {
            raw: kernel::types::Opaque<$crate::bindings::$raw>,
            data: T,
        }

        impl<T: $bound> $name<T> {
            /// Bytes that the core allocates.
            pub(crate) const SIZE: usize = {
                assert!(core::mem::offset_of!(Self, raw) == 0);
                $crate::object::kmalloc_aligned_size::<Self>()
            };

            /// Borrows an object from its C structure.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure at the start of a `Self` whose data is constructed,
            /// and neither may go away during `'a`.
            #[inline]
            pub(crate) unsafe fn from_raw<'a>(ptr: *mut $crate::bindings::$raw) -> &'a Self {
                // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
                unsafe { &*ptr.cast() }
            }

            /// Returns where the data of the object is.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure at the start of an allocation of `SIZE` bytes.
            #[inline]
            pub(crate) unsafe fn data_of(ptr: *mut $crate::bindings::$raw) -> *mut T {
                // SAFETY: The result is inside the allocation, by the definition of `SIZE`.
                unsafe { ptr.byte_add(core::mem::offset_of!(Self, data)).cast() }
            }

            /// Returns the C structure.
            #[inline]
            #[allow(dead_code)]
            pub(crate) fn as_raw(&self) -> *mut $crate::bindings::$raw {
                self.raw.get()
            }
        }

        impl<T: $bound> core::ops::Deref for $name<T> {
            type Target = T;

            #[inline]
            fn deref(&self) -> &T {
                &self.data
            }
        }

        // SAFETY: The core frees the object from any thread; the data is `Send`.
        unsafe impl<T: $bound> Send for $name<T> {}

        // SAFETY: The abstractions access the C structure only where the core's own locking rules
        // permit it from any thread; the data is `Sync`.
        unsafe impl<T: $bound> Sync for $name<T> {}
    };
}

pub(crate) use core_object;

/// Answers the caller, and undoes the object if that fails.
///
/// `destroy` is the driver's destroy step. If even that fails the hardware still owns the object:
/// then its data is leaked, since freeing memory that the hardware uses is worse.
///
/// # Safety
///
/// `data` must point to the constructed data of an object that nobody else can reach, and the
/// caller must not use it after an error.
pub(crate) unsafe fn respond_or_undo<T, R: Response>(
    data: *mut T,
    response: &R,
    udata: Option<&Udata<'_>>,
    destroy: impl FnOnce() -> Result,
) -> Result {
    let Some(udata) = udata else {
        return Ok(());
    };
    udata.respond(response).inspect_err(|_| {
        if destroy().is_ok() {
            // SAFETY: Constructed, as the caller guarantees, and not used any more.
            unsafe { core::ptr::drop_in_place(data) };
        } else {
            pr_warn!("the hardware keeps an object that could not be handed out\n");
        }
    })
}
