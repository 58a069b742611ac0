// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What the lab's two programs share: the protocol between `vrnic-lab` on the host and `vrnic-agent` in a guest.

#![forbid(unsafe_code)]

pub mod protocol;
