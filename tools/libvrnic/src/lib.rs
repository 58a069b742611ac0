// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Provider of the vrnic RDMA device for libibverbs.

#![cfg_attr(not(test), no_std)]

mod ffi;
