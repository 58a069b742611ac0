// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab`: boots two virtual machines with one RNIC each and runs programs in them.

fn main() {}
