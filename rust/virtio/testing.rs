// SPDX-License-Identifier: GPL-2.0

//! What tests share: a device of a [`transport`] without a bus, bound to a [`driver`], or only what
//! does the DMA of one.
//!
//! The tests of a module are its `tests`.

use kernel::{
    device,
    faux,
    prelude::*, //
};

use crate::{
    compat,
    Dma, //
};

pub(crate) mod driver;
pub(crate) mod transport;

/// Runs a test with what does the DMA of a device that does not exist.
pub fn with_dma(test: impl FnOnce(&Dma) -> Result) -> Result {
    let faux = faux::Registration::new(c"virtio-test", None)?;
    let dev: &device::Device<device::Bound> = faux.as_ref().as_ref();
    let raw = compat::device_as_raw(dev);

    // SAFETY: The device is valid, and nobody else uses this one.
    unsafe { (*raw).coherent_dma_mask = u64::MAX };
    let dma = Dma::new(dev)?;
    let result = test(&dma);
    dma.close();
    result
}
