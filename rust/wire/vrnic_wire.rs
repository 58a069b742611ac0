// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Wire formats of the virtio RDMA device.
//!
//! Everything that two of the kernel driver, the device and the user-space provider exchange is
//! defined once, here: configuration space, control commands, events, rings, work queue entries,
//! completion queue entries and doorbells. These layouts implement the specification in
//! `Documentation/virtio-rdma.rst`.
//!
//! All integers are little-endian and every structure is free of padding, so a layout is the same
//! on both sides of the wire and safe to copy out of hostile memory: copy the bytes once, then
//! validate and use the copy. Raw values that have not been validated are plain integers. Validated
//! values are enums, which `TryFrom` converts to.
//!
//! # Example
//!
//! The driver writes a request for a protection domain, and the device reads it:
//!
//! ```
//! use vrnic_wire::command::{Command, CommandCode, CommandHeader, CreatePd};
//! use zerocopy::{FromBytes, IntoBytes};
//!
//! let body = CreatePd { context: 3.into(), ..CreatePd::default() };
//! let header = CommandHeader {
//!     code: CreatePd::CODE.raw().into(),
//!     reserved: 0.into(),
//!     length: (size_of::<CreatePd>() as u32).into(),
//! };
//! let request = [header.as_bytes(), body.as_bytes()].concat();
//!
//! let (header, body) = CommandHeader::read_from_prefix(&request).unwrap();
//! assert_eq!(CommandCode::try_from(header.code.get()), Ok(CommandCode::CreatePd));
//! assert_eq!(CreatePd::read_from_bytes(body).unwrap().context, 3);
//! ```

#![cfg_attr(not(CONFIG_RUST), no_std)]
// `P_Key`, `Q_Key` and `RoCE` are RDMA terms, not code.
#![allow(clippy::doc_markdown)]

/// Defines a wire enumeration: the enum, its raw values and a checked conversion from them.
macro_rules! wire_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $raw:ty {
            $($(#[$variant_meta:meta])* $variant:ident = $value:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        #[repr($raw)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $value,)*
        }

        impl $name {
            /// All values, in the order of the standard.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the wire value.
            pub const fn raw(self) -> $raw {
                self as $raw
            }
        }

        impl TryFrom<$raw> for $name {
            type Error = $crate::UnknownValue;

            fn try_from(raw: $raw) -> Result<Self, $crate::UnknownValue> {
                match raw {
                    $(v if v == Self::$variant as $raw => Ok(Self::$variant),)*
                    _ => Err($crate::UnknownValue),
                }
            }
        }
    };
}

/// A raw value without a meaning in the specification.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct UnknownValue;

/// Asserts the size of a wire structure and the offsets of the named fields at compile time.
macro_rules! assert_layout {
    ($ty:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$ty>() == $size);
            assert!(core::mem::align_of::<$ty>() == 1);
            $(assert!(core::mem::offset_of!($ty, $field) == $offset);)*
        };
    };
}

pub mod abi;
pub mod command;
pub mod completion;
pub mod config;
pub mod counter;
pub mod event;
pub mod integrity;
pub mod memory;
pub mod notify;
pub mod port;
pub mod qp;
pub mod ring;
pub mod work;

pub use zerocopy::little_endian::{U16, U32, U64};
