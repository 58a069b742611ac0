// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The C interface: layouts and functions of libibverbs and of the uverbs commands.
//!
//! The provider interface of libibverbs is private and changes between releases, without a size or
//! version in its structures. So what we need of it is declared here once per private ABI and
//! checked against the headers of that release: every structure has a [`Layout`], and the tests in
//! `check` compare it with what a C compiler made of the headers. Names are those of the C headers.

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

pub mod abi34;
pub mod abi65;
pub mod command;
pub mod driver;
pub mod ioctl;
pub mod verbs;

#[cfg(test)]
mod check;

#[cfg(any(feature = "pabi34", feature = "pabi65"))]
pub mod functions;

#[cfg(all(feature = "pabi34", feature = "pabi65"))]
compile_error!("one private ABI of libibverbs per build: pabi34 or pabi65");

#[cfg(not(feature = "pabi65"))]
pub use abi34 as abi;
#[cfg(feature = "pabi65")]
pub use abi65 as abi;

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
