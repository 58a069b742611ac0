// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C interface: layouts and functions of libibverbs and of the uverbs commands.
//!
//! The provider interface of libibverbs is private and changes between releases, without a size or
//! version in its structures. [`abi`] has what differs between releases. Every structure has a
//! [`Layout`], and the tests in `check` compare it with what a C compiler made of the headers of
//! the releases. Names are those of the C headers.

#![allow(non_camel_case_types, dead_code)]

use core::ffi::{c_char, c_int};

/// Layout that a C compiler must agree with: size, alignment and member offsets of a structure.
#[derive(Debug)]
pub struct Layout {
    /// The structure as C names it.
    pub name: &'static str,
    /// `sizeof`.
    pub size: usize,
    /// `_Alignof`.
    pub align: usize,
    /// Members that we use and their `offsetof`.
    pub members: &'static [(&'static str, usize)],
}

/// Declares a structure of a C header together with its [`Layout`].
macro_rules! c_struct {
    ($(#[$meta:meta])* $name:ident { $($field:ident: $ty:ty),* $(,)? }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Copy, Clone)]
        pub struct $name {
            $(pub $field: $ty,)*
        }

        impl $name {
            /// For comparison with the C header.
            pub const LAYOUT: crate::ffi::Layout = crate::ffi::Layout {
                name: concat!("struct ", stringify!($name)),
                size: core::mem::size_of::<Self>(),
                align: core::mem::align_of::<Self>(),
                members: &[$((stringify!($field), core::mem::offset_of!(Self, $field)),)*],
            };
        }
    };
}

/// A member of an anonymous structure within a structure, for comparison with the C header.
macro_rules! nested {
    ($outer:ty, $member:ident, $inner:ty, $prefix:literal, $field:ident) => {
        (
            <$outer>::LAYOUT.name,
            concat!($prefix, stringify!($field)),
            core::mem::offset_of!($outer, $member) + core::mem::offset_of!($inner, $field),
        )
    };
}

pub mod abi;
pub mod command;
pub mod driver;
pub mod ioctl;
pub mod verbs;

#[cfg(test)]
mod check;

#[cfg(feature = "pabi34")]
pub mod functions;

/// A C object whose content we do not access.
#[repr(C)]
pub struct Opaque {
    _private: [u8; 0],
}

/// Member of a table of operations that this provider does not implement.
pub type Unused = Option<unsafe extern "C" fn()>;

/// A C string, as in the tables passed to libibverbs.
#[repr(transparent)]
pub struct CString(pub *const c_char);

// SAFETY: Created only from literals, which are never written and live forever.
unsafe impl Sync for CString {}

unsafe extern "C" {
    /// From the C library; crate `libc` does not declare it.
    pub fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
}
