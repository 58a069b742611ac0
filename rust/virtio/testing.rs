// SPDX-License-Identifier: GPL-2.0

//! Shared parts of the tests: a device of a `transport` without a bus, bound to a `driver`, or
//! only the DMA handle of a device.
//!
//! The tests of a module are in its `tests` submodule.

use kernel::{
    device,
    faux,
    prelude::*, //
};

use crate::{
    bindings,
    compat,
    Dma, //
};

pub(crate) mod driver;
pub(crate) mod transport;

/// Runs a test with the DMA handle of a device that does not exist.
pub fn with_dma(test: impl FnOnce(&Dma) -> Result) -> Result {
    let faux = faux::Registration::new(c"virtio-test", None)?;
    let dev: &device::Device<device::Bound> = faux.as_ref().as_ref();
    let raw = compat::device_as_raw(dev);

    // SAFETY: The device is valid and not shared.
    unsafe { (*raw).coherent_dma_mask = u64::MAX };
    let dma = Dma::new(dev)?;
    let result = test(&dma);
    dma.close();
    result
}

/// Calls `f` as a thread that frees memory for which others wait. Lockdep then reports locks that
/// `f` takes and under which somebody allocates memory.
pub fn reclaiming<R>(f: impl FnOnce() -> R) -> R {
    // SAFETY: Ended below, by the same task.
    unsafe { bindings::test_reclaim_begin() };
    let result = f();
    // SAFETY: Begun above.
    unsafe { bindings::test_reclaim_end() };
    result
}
