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

/// Defines the wrapper of an object: the C structure, what this crate keeps for it, then the
/// driver's data.
///
/// The core allocates and zeroes the whole (`size_ib_*` in `struct ib_device_ops`), fills the C
/// structure and calls the create verb, which constructs the rest. The destroy verb drops that;
/// the core frees the whole.
///
/// An object that events name keeps its place in the table of the dispatcher.
macro_rules! core_object {
    ($(#[$meta:meta])* $name:ident<$bound:ident>, $raw:ident) => {
        core_object! {
            $(#[$meta])* $name<$bound>, $raw, ()
        }
    };
    ($(#[$meta:meta])* $name:ident<$bound:ident>, $raw:ident, $place:ty) => {
        $(#[$meta])*
        ///
        /// # Invariants
        ///
        /// A reference to this type is only made of an object whose create verb has constructed
        /// `place` and `data` and whose destroy verb has not dropped them yet. The object never
        /// moves.
        #[repr(C)]
        pub struct $name<T: $bound> {
            raw: kernel::types::Opaque<$crate::bindings::$raw>,
            place: $place,
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
            /// `ptr` must be the C structure at the start of a `Self` which is constructed, and
            /// must not go away during `'a`.
            #[inline]
            pub(crate) unsafe fn from_raw<'a>(ptr: *mut $crate::bindings::$raw) -> &'a Self {
                // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
                unsafe { &*ptr.cast() }
            }

            /// Constructs what follows the C structure.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure at the start of an allocation of `SIZE` bytes, of
            /// which nobody else uses the rest.
            pub(crate) unsafe fn construct(
                ptr: *mut $crate::bindings::$raw,
                place: $place,
                init: impl pin_init::PinInit<T>,
            ) {
                let this = ptr.cast::<Self>();
                // SAFETY: Both are inside the allocation, by the definition of `SIZE`, and do not
                // move.
                unsafe {
                    (&raw mut (*this).place).write(place);
                    pin_init::raw_init(&raw mut (*this).data, init);
                }
            }

            /// Drops what [`construct`](Self::construct) constructed: no event finds the object any
            /// more, and then its data is gone.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure of a constructed object that nobody uses any more but
            /// handlers of its events.
            pub(crate) unsafe fn destruct(ptr: *mut $crate::bindings::$raw) {
                let this = ptr.cast::<Self>();
                // SAFETY: Constructed, as the caller guarantees, and dropped once.
                unsafe {
                    core::ptr::drop_in_place(&raw mut (*this).place);
                    core::ptr::drop_in_place(&raw mut (*this).data);
                }
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

        // SAFETY: The core frees the object from any thread; place and data are `Send`.
        unsafe impl<T: $bound> Send for $name<T> {}

        // SAFETY: The abstractions access the C structure only where the core's own locking rules
        // permit it from any thread; place and data are `Sync`.
        unsafe impl<T: $bound> Sync for $name<T> {}
    };
}

pub(crate) use core_object;

/// Answers the caller of a verb, if that is a process.
pub(crate) fn respond<R: Response>(udata: Option<&Udata<'_>>, response: &R) -> Result {
    match udata {
        Some(udata) => udata.respond(response),
        None => Ok(()),
    }
}
