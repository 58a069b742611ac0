// SPDX-License-Identifier: GPL-2.0

//! Tests of structures in BARs. Their device consists only of a configuration space and BARs. These
//! tests are not meant for the kernel tree, where they would need a transport.

use kernel::{
    device::Bound,
    error::to_result,
    prelude::*,
    types::Opaque, //
};

use super::*;

/// First byte of vendor-specific capabilities.
const VENDOR: u8 = bindings::PCI_CAP_ID_VNDR as u8;

/// Offset of the first capability.
const FIRST: usize = 0x40;

/// A capability that describes a structure: kind, BAR, offset in the BAR, and length.
type Said = (u8, u8, u32, u32);

/// A BAR: number, address, length and flags.
type Bar = (usize, u64, u64, u32);

/// A usable BAR, where no machine of the tests has memory.
const MEMORY: Bar = (2, 0x40_0000_0000, 0x4000, bindings::IORESOURCE_MEM);

/// Returns a configuration space with these capabilities.
fn config(capabilities: &[Said]) -> [u8; 256] {
    let mut config = [0; 256];
    let mut at = FIRST;

    config[bindings::PCI_STATUS as usize] = bindings::PCI_STATUS_CAP_LIST as u8;
    config[bindings::PCI_CAPABILITY_LIST as usize] = FIRST as u8;
    for (kind, bar, offset, len) in capabilities {
        let next = at + size_of::<bindings::virtio_pci_cap>();
        config[at..at + 5].copy_from_slice(&[VENDOR, next as u8, 16, *kind, *bar]);
        config[at + 8..at + 12].copy_from_slice(&offset.to_le_bytes());
        config[at + 12..at + 16].copy_from_slice(&len.to_le_bytes());
        at = next;
    }
    config
}

/// Reads configuration space, for the PCI core.
///
/// # Safety
///
/// `bus` must be the bus of [`with_device`], and `value` must be writable.
unsafe extern "C" fn read(
    bus: *mut bindings::pci_bus,
    _devfn: c_uint,
    at: c_int,
    size: c_int,
    value: *mut u32,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let config = unsafe { &*(*bus).sysdata.cast::<[u8; 256]>() };
    let mut word = [0; 4];
    for (to, from) in (at..at + size).enumerate() {
        word[to] = config[from as usize];
    }
    // SAFETY: Guaranteed by the caller.
    unsafe { *value = u32::from_le_bytes(word) };
    0
}

/// A BAR with a place in the machine's memory, where parts of it can be reserved and given back.
struct Placed(*mut bindings::resource);

impl Placed {
    /// # Safety
    ///
    /// `bar` must be valid, and in no place, until this is dropped.
    unsafe fn new(bar: *mut bindings::resource) -> Result<Self> {
        // SAFETY: Guaranteed by the caller.
        to_result(unsafe { bindings::request_resource(&raw mut bindings::iomem_resource, bar) })?;
        Ok(Self(bar))
    }

    /// Returns whether no part of the BAR is reserved.
    fn is_free(&self) -> bool {
        // SAFETY: The BAR is valid. Nobody else reserves parts of it.
        unsafe { (*self.0).child }.is_null()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // SAFETY: The BAR is valid, and in its place.
        unsafe { bindings::release_resource(self.0) };
    }
}

/// Calls `test` with a device that has this configuration space and these BARs. What the test
/// reserves must be free again.
fn with_device(
    mut config: [u8; 256],
    bars: &[Bar],
    test: impl FnOnce(&Device<Bound>) -> Result,
) -> Result {
    let mut ops = bindings::pci_ops {
        read: Some(read),
        ..pin_init::zeroed()
    };
    let bus = KBox::<Opaque<bindings::pci_bus>>::init(pin_init::init_zeroed(), GFP_KERNEL)?;
    let pdev = KBox::<Opaque<bindings::pci_dev>>::init(pin_init::init_zeroed(), GFP_KERNEL)?;
    let vdev = KBox::<Opaque<bindings::virtio_device>>::init(pin_init::init_zeroed(), GFP_KERNEL)?;
    let mut placed = KVec::new();
    // SAFETY: The structures are ours, and do not move until this returns.
    let dev = unsafe {
        (*bus.get()).ops = &raw mut ops;
        (*bus.get()).sysdata = (&raw mut config).cast();
        (*pdev.get()).bus = bus.get();
        (*pdev.get()).dev.bus = &raw const bindings::pci_bus_type;
        for (number, start, len, flags) in bars {
            let bar = &mut (*pdev.get()).resource[*number];
            bar.start = *start;
            bar.end = *start + *len - 1;
            bar.flags = *flags as usize;
            if *flags & bindings::IORESOURCE_MEM != 0 {
                placed.push(Placed::new(bar)?, GFP_KERNEL)?;
            }
        }
        (*vdev.get()).dev.parent = &raw mut (*pdev.get()).dev;
        &*vdev.get().cast::<Device<Bound>>()
    };
    test(dev)?;
    assert!(placed.iter().all(Placed::is_free));
    Ok(())
}

#[kunit_tests(virtio_region)]
mod cases {
    use super::*;

    /// Finds the first structure of a kind, and returns its address and its length.
    fn found(dev: &Device<Bound>, kind: u8) -> Result<Option<(u64, u64)>> {
        let memory = dev.region(kind)?.map(|region| region.memory());
        Ok(memory.map(|memory| (memory.start(), memory.len())))
    }

    #[test]
    fn no_memory_beyond_a_structure_is_reached() -> Result {
        with_device(config(&[(9, 2, 0x1000, 0x2000)]), &[MEMORY], |dev| {
            let memory = dev.region(9)?.ok_or(ENOENT)?.memory();
            for (offset, length) in [(0, 0x2001), (0x1000, 0x1001), (0x2000, 1), (u64::MAX, 2)] {
                assert_eq!(memory.part(offset, length), Err(EINVAL));
            }
            assert_eq!(memory.part(0, 0), Err(EINVAL));
            assert_eq!(memory.part(0, 0x2000), Ok(memory));
            let last = memory.part(0x1000, 0x1000)?;
            assert_eq!((last.start(), last.len()), (0x40_0000_2000, 0x1000));
            assert_eq!(last.part(0x800, 0x1000), Err(EINVAL));
            Ok(())
        })
    }

    /// The transport reserves the BARs with its own structures as a whole.
    #[test]
    fn a_structure_in_a_reserved_bar_is_not_given_out() -> Result {
        let config = config(&[(1, 2, 0, 0x4000), (9, 2, 0x1000, 0x2000)]);
        with_device(config, &[MEMORY], |dev| {
            // Stands for the reservation of the transport.
            let _all = dev.region(1)?;
            assert_eq!(found(dev, 9), Err(EBUSY));
            Ok(())
        })
    }

    #[test]
    fn the_first_structure_of_a_kind_is_found() -> Result {
        let said = [(4, 2, 0, 64), (9, 2, 0x1000, 0x2000), (9, 2, 0, 16)];
        with_device(config(&said), &[MEMORY], |dev| {
            assert_eq!(found(dev, 9)?, Some((0x40_0000_1000, 0x2000)));
            assert_eq!(found(dev, 10)?, None);
            assert_eq!(config_length(dev), Ok(64));
            Ok(())
        })
    }

    #[test]
    fn a_device_without_capabilities_has_no_structure() -> Result {
        with_device([0; 256], &[MEMORY], |dev| {
            assert_eq!(found(dev, 9)?, None);
            assert_eq!(config_length(dev), Ok(0));
            Ok(())
        })
    }

    /// The virtio core uses the first structure in memory or in ports, so that one counts.
    #[test]
    fn a_bar_that_is_not_there_holds_no_structure() -> Result {
        let said = [(9, 6, 0, 16), (9, 5, 0, 16), (9, 2, 16, 16)];
        with_device(config(&said), &[MEMORY], |dev| {
            assert_eq!(found(dev, 9)?, Some((0x40_0000_0010, 16)));
            Ok(())
        })?;
        let said = [(4, 5, 0, 4096), (4, 2, 0, 4)];
        with_device(config(&said), &[MEMORY], |dev| {
            assert_eq!(config_length(dev), Ok(4));
            Ok(())
        })
    }

    #[test]
    fn a_structure_beyond_its_bar_is_an_error() -> Result {
        for (offset, len) in [(0, 0x4001), (0x3fff, 2), (u32::MAX, u32::MAX), (0, 0)] {
            let said = [(9, 2, offset, len), (4, 2, offset, len)];
            with_device(config(&said), &[MEMORY], |dev| {
                assert_eq!(found(dev, 9), Err(EINVAL));
                assert_eq!(config_length(dev), Err(EINVAL));
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn a_structure_does_not_lie_beside_the_table_of_interrupts() -> Result {
        const MSIX: u8 = bindings::PCI_CAP_ID_MSIX as u8;

        for (bar, expected) in [(2, Err(EINVAL)), (1, Ok(Some((0x40_0000_0000, 16))))] {
            let mut config = config(&[(9, 2, 0, 16), (4, 2, 0, 16), (0, 0, 0, 0)]);
            // The last capability is not vendor-specific.
            let last = FIRST + 2 * size_of::<bindings::virtio_pci_cap>();
            config[last..last + 8].copy_from_slice(&[MSIX, 0, 0, 0, bar, 0x10, 0, 0]);
            with_device(config, &[MEMORY], |dev| {
                assert_eq!(found(dev, 9), expected);
                assert_eq!(config_length(dev), Ok(16));
                Ok(())
            })?;
        }
        Ok(())
    }

    #[test]
    fn ports_of_the_processor_are_not_memory() -> Result {
        let ports = (2, 0xf000, 0x100, bindings::IORESOURCE_IO);
        with_device(config(&[(9, 2, 0, 16), (4, 2, 0, 16)]), &[ports], |dev| {
            assert_eq!(found(dev, 9), Err(EINVAL));
            assert_eq!(config_length(dev), Ok(16));
            Ok(())
        })
    }

    #[test]
    fn a_ring_of_capabilities_has_an_end() -> Result {
        let mut config = config(&[(9, 2, 0, 16), (8, 2, 0, 16)]);
        config[FIRST + 17] = FIRST as u8;
        with_device(config, &[MEMORY], |dev| {
            assert_eq!(found(dev, 10)?, None);
            Ok(())
        })
    }
}
