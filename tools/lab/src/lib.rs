// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Code that both programs of the lab share: the protocol between `vrnic-lab` on the host and `vrnic-agent` in a guest.

#![forbid(unsafe_code)]

pub mod protocol;
