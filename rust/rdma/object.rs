// SPDX-License-Identifier: GPL-2.0

//! Objects that consist of a C structure, usually allocated by the core, and the driver's data.

use core::alloc::Layout;

use kernel::prelude::*;

use pin_init::Zeroable;

use crate::udata::{
    Response,
    Udata, //
};

/// Returns an allocation size for `T` for which `kmalloc` guarantees sufficient alignment.
///
/// `kmalloc` serves a size that is a multiple of the alignment from a slab with at least that
/// alignment.
pub(crate) const fn kmalloc_aligned_size<T>() -> usize {
    Layout::new::<T>().pad_to_align().size()
}

/// Zeroes a C structure that a verb fills for its caller, and borrows it.
///
/// The core does not zero it, and members that a verb leaves untouched could leak to a process.
///
/// # Safety
///
/// `ptr` must be valid for exclusive writes during `'a`.
pub(crate) unsafe fn blank<'a, T: Zeroable>(ptr: *mut T) -> &'a mut T {
    // SAFETY: Guaranteed by the caller; the all-zero pattern is a valid `T`, which is `Zeroable`.
    unsafe {
        ptr.write_bytes(0, 1);
        &mut *ptr
    }
}

/// Defines the wrapper of an object: the C structure, this crate's data for it, then the driver's
/// data.
///
/// The core allocates and zeroes the whole object (`size_ib_*` in `struct ib_device_ops`), fills
/// the C structure and calls the create verb, which constructs the rest. The destroy verb drops
/// that rest, and the core frees the whole object.
///
/// An object for which there are events holds its place in the event table of the dispatcher.
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
        /// A reference to this type always refers to an object whose create verb has constructed
        /// `place` and `data`, and whose destroy verb has not dropped them yet. The object never
        /// moves.
        #[repr(C)]
        pub struct $name<T: $bound> {
            raw: kernel::types::Opaque<$crate::bindings::$raw>,
            place: $place,
            data: T,
        }

        impl<T: $bound> $name<T> {
            /// Number of bytes that the core allocates.
            pub(crate) const SIZE: usize = {
                assert!(core::mem::offset_of!(Self, raw) == 0);
                $crate::object::kmalloc_aligned_size::<Self>()
            };

            /// Borrows an object from its C structure.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure at the start of a constructed `Self` that does not go
            /// away during `'a`.
            #[inline]
            pub(crate) unsafe fn from_raw<'a>(ptr: *mut $crate::bindings::$raw) -> &'a Self {
                // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
                unsafe { &*ptr.cast() }
            }

            /// Constructs what follows the C structure.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure at the start of an allocation of `SIZE` bytes, the
            /// rest of which nothing else accesses.
            pub(crate) unsafe fn construct(
                ptr: *mut $crate::bindings::$raw,
                place: $place,
                init: impl pin_init::PinInit<T>,
            ) {
                let this = ptr.cast::<Self>();
                // SAFETY: Both members are inside the allocation, by the definition of `SIZE`, and
                // do not move.
                unsafe {
                    (&raw mut (*this).place).write(place);
                    pin_init::raw_init(&raw mut (*this).data, init);
                }
            }

            /// Drops what [`construct`](Self::construct) constructed. First the object leaves the
            /// event table, so no event finds it any more; then its data is dropped.
            ///
            /// # Safety
            ///
            /// `ptr` must be the C structure of a constructed object that is no longer in use,
            /// except by handlers of its events.
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
        // permit this from any thread; place and data are `Sync`.
        unsafe impl<T: $bound> Sync for $name<T> {}
    };
}

pub(crate) use core_object;

/// Writes the response of a verb if the caller is a process.
pub(crate) fn respond<R: Response>(udata: Option<&Udata<'_>>, response: &R) -> Result {
    match udata {
        Some(udata) => udata.respond(response),
        None => Ok(()),
    }
}
