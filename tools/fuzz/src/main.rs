// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs a target under libFuzzer. The environment variable `VRNIC_FUZZ` names the target; the arguments are those of
//! libFuzzer.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TARGET: LazyLock<vrnic_fuzz::Target> = LazyLock::new(|| {
    let wanted = std::env::var("VRNIC_FUZZ").expect("set VRNIC_FUZZ to a target");
    let mut targets = vrnic_fuzz::TARGETS.iter();
    let found = targets.find(|(name, _)| *name == wanted);
    found.expect("VRNIC_FUZZ does not name a target").1
});

fuzz_target!(|data: &[u8]| (*TARGET)(data));
