// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What processes send may be any bytes, and what they get contains none that nobody wrote.

#![forbid(unsafe_code)]

use kernel::prelude::*;
use rdma::udata::{
    Request,
    Response, //
};

/// A request with a value that not all bytes are.
#[cfg_attr(refused, derive(FromBytes))] //~ E0277: FromBytes
#[repr(C)]
pub struct Flag {
    /// Neither 0 nor 1, if the process wants that.
    pub flag: bool,
}

#[cfg(refused)]
impl Request for Flag {} //~ E0277: FromBytes

/// A request with a pointer.
#[cfg_attr(refused, derive(FromBytes))] //~ E0277: FromBytes
#[repr(C)]
pub struct Pointer {
    /// An address that the process chooses.
    pub pointer: &'static u8,
}

#[cfg(refused)]
impl Request for Pointer {} //~ E0277: FromBytes

/// A response with a hole of 3 bytes, from the kernel's stack.
#[cfg_attr(refused, derive(zerocopy_derive::IntoBytes))] //~ E0277: padding
#[derive(zerocopy_derive::Immutable)]
#[repr(C)]
pub struct Padded {
    /// At 0.
    pub byte: u8,
    /// At 4.
    pub word: u32,
}

#[cfg(refused)]
impl Response for Padded {} //~ E0277: padding

/// A request without holes.
#[derive(FromBytes)]
#[repr(C)]
pub struct Numbers {
    /// At 0.
    pub byte: u8,
    /// At 4.
    pub word: u32,
}

impl Request for Numbers {}
