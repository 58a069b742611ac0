// SPDX-License-Identifier: GPL-2.0

//! DMA handles. The device writes to memory with a processor of the host, which takes no hints, so
//! the driver only checks them as drivers of PCI devices with hints do.

use kernel::prelude::*;
use rdma::{
    dmah::Hints,
    DmaHandle, //
};

use crate::device::{
    Call,
    Vrnic, //
};

/// A DMA handle.
#[pin_data]
pub(crate) struct Dmah {}

/// Checks hints: a processing hint is needed, and a steering tag is for a processor and a type of
/// memory.
fn check(hints: &Hints) -> Result {
    match hints.processing.is_some() && hints.cpu.is_some() == hints.memory_type.is_some() {
        true => Ok(()),
        false => Err(EINVAL),
    }
}

impl DmaHandle for Dmah {
    type Driver = Vrnic;

    fn alloc(_call: &Call<'_>, hints: &Hints) -> Result<impl PinInit<Self>> {
        check(hints)?;
        Ok(pin_init!(Self {}))
    }

    fn dealloc(_handle: &rdma::Dmah<Self>, _call: &Call<'_>) {}
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_dmah)]
mod tests {
    use rdma::dmah::MemoryType;

    use super::*;

    #[test]
    fn hints_are_complete() {
        for cpu in [None, Some(0)] {
            for memory_type in [None, Some(MemoryType::Volatile)] {
                for processing in [None, Some(0)] {
                    let hints = Hints {
                        cpu,
                        memory_type,
                        processing,
                    };
                    let complete = processing.is_some() && (cpu.is_some() == memory_type.is_some());
                    assert_eq!(check(&hints).is_ok(), complete);
                }
            }
        }
    }
}
