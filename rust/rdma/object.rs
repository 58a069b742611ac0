// SPDX-License-Identifier: GPL-2.0

//! Objects that consist of a C structure, usually allocated by the core, and the driver's data.

use core::{
    alloc::Layout,
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::prelude::*;

use pin_init::Zeroable;

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
            #[allow(dead_code)]
            pub(crate) unsafe fn from_raw<'a>(ptr: *mut $crate::bindings::$raw) -> &'a Self {
                // SAFETY: `raw` is at offset 0; validity is guaranteed by the caller.
                unsafe { &*ptr.cast() }
            }

            /// Returns the C structure.
            #[inline]
            #[allow(dead_code)]
            pub(crate) fn as_raw(&self) -> *mut $crate::bindings::$raw {
                self.raw.get()
            }
        }

        impl<T: $bound> $crate::object::CoreObject for $name<T> {
            type Raw = $crate::bindings::$raw;
            type Place = $place;
            type Data = T;

            unsafe fn construct(
                this: *mut Self,
                place: $place,
                init: impl pin_init::PinInit<T>,
            ) {
                const { assert!(Self::SIZE >= size_of::<Self>()) };
                // SAFETY: Both members are inside the allocation, as the caller guarantees, and do
                // not move.
                unsafe {
                    (&raw mut (*this).place).write(place);
                    pin_init::raw_init(&raw mut (*this).data, init);
                }
            }

            unsafe fn destruct(this: *mut Self) {
                // SAFETY: Constructed, as the caller guarantees, and dropped once.
                unsafe {
                    core::ptr::drop_in_place(&raw mut (*this).place);
                    core::ptr::drop_in_place(&raw mut (*this).data);
                }
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

/// An object that the core allocates; see [`core_object`].
pub(crate) trait CoreObject: Sized {
    /// The C structure at the start.
    type Raw;
    /// This crate's data.
    type Place;
    /// The driver's data.
    type Data;

    /// Constructs what follows the C structure.
    ///
    /// # Safety
    ///
    /// `this` must be an allocation for a `Self` that starts with a C structure, and the rest of
    /// which nothing else accesses.
    unsafe fn construct(this: *mut Self, place: Self::Place, init: impl PinInit<Self::Data>);

    /// Drops what [`construct`](Self::construct) constructed. First the object leaves the event
    /// table, so no event finds it any more; then its data is dropped.
    ///
    /// # Safety
    ///
    /// `this` must be constructed and no longer in use, except by handlers of its events.
    unsafe fn destruct(this: *mut Self);
}

/// Borrows an object, unless the pointer is null.
///
/// # Safety
///
/// `ptr` must be null, or the C structure at the start of a constructed `O` that does not go away
/// during `'a`.
pub(crate) unsafe fn optional<'a, O: CoreObject>(ptr: *mut O::Raw) -> Option<&'a O> {
    // SAFETY: Guaranteed by the caller.
    unsafe { ptr.cast::<O>().as_ref() }
}

/// An object that the core has allocated, and whose create verb has not constructed it yet.
///
/// # Invariants
///
/// The allocation is large enough for an `O` and starts with the C structure. During `'a` nothing
/// else accesses the rest.
pub(crate) struct Vacant<'a, O: CoreObject>(NonNull<O>, PhantomData<&'a mut O>);

impl<'a, O: CoreObject> Vacant<'a, O> {
    /// Takes the object of a create verb.
    ///
    /// # Safety
    ///
    /// `ptr` must be the object that a create verb gets, which does not return before `'a` ends,
    /// and this must be called once in it.
    pub(crate) unsafe fn new(ptr: *mut O::Raw) -> Self {
        // INVARIANT: The core allocates as many bytes as the driver's operations say. Before the
        // verb returns nobody else has the object.
        // SAFETY: The core allocated the object, so the pointer is not null.
        Self(unsafe { NonNull::new_unchecked(ptr.cast()) }, PhantomData)
    }

    /// Returns the C structure.
    pub(crate) fn as_raw(&self) -> NonNull<O::Raw> {
        self.0.cast()
    }

    /// Constructs the object.
    pub(crate) fn construct(self, place: O::Place, init: impl PinInit<O::Data>) -> Sole<'a, O> {
        // SAFETY: By the type invariant.
        unsafe { O::construct(self.0.as_ptr(), place, init) };
        // INVARIANT: Just constructed, and nobody else has it.
        Sole(self.0, PhantomData)
    }
}

/// A constructed object that nobody else uses, except handlers of its events: its create verb has
/// not returned yet, or its destroy verb has been called. If this is dropped, the object stays as
/// it is, and belongs to the core.
///
/// # Invariants
///
/// The object is constructed, and nobody else uses it during `'a` except handlers of its events.
pub(crate) struct Sole<'a, O: CoreObject>(NonNull<O>, PhantomData<&'a mut O>);

impl<O: CoreObject> Sole<'_, O> {
    /// Takes the object of a destroy verb.
    ///
    /// # Safety
    ///
    /// `ptr` must be the constructed object that a destroy verb gets, which does not return before
    /// `'a` ends, and this must be called once in it. If the object is [ended](Self::end), the verb
    /// must succeed.
    pub(crate) unsafe fn new(ptr: *mut O::Raw) -> Self {
        // INVARIANT: The core destroys only what is not in use.
        // SAFETY: The object is constructed, so the pointer is not null.
        Self(unsafe { NonNull::new_unchecked(ptr.cast()) }, PhantomData)
    }

    /// Drops the driver's part of the object. The core frees the allocation.
    pub(crate) fn end(self) {
        // SAFETY: By the type invariant. This consumes `self`, so it happens once.
        unsafe { O::destruct(self.0.as_ptr()) };
    }
}

impl<O: CoreObject> core::ops::Deref for Sole<'_, O> {
    type Target = O;

    fn deref(&self) -> &O {
        // SAFETY: Constructed by the type invariant.
        unsafe { self.0.as_ref() }
    }
}
