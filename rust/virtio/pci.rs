// SPDX-License-Identifier: GPL-2.0

//! Structures that a device type adds to those of its transport ([`Device::region`]).
//!
//! Of the transports, PCI has such: a virtio device on PCI describes each of its structures by a
//! vendor-specific capability (virtio standard, section 4.1.4, `struct virtio_pci_cap`). The virtio
//! core takes those it knows. It has no operation of `struct virtio_config_ops` for others, as it
//! has `get_shm_region` for shared memory, so they are looked for here; all that drivers see would
//! stay as it is with one.

use core::{
    marker::PhantomData,
    mem::offset_of,
    ptr::{
        self,
        NonNull, //
    }, //
};

use kernel::{
    device::Bound,
    error::to_result,
    io::resource::{
        self,
        Flags,
        Resource, //
    },
    pci,
    prelude::*,
    sync::Arc, //
};

use crate::{
    bindings,
    compat,
    Device, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Most capabilities that fit into the 192 bytes which hold them.
const MAX_CAPABILITIES: usize = 48;

/// Bytes of a page of device memory, as the standard counts them, whatever the CPU's pages are.
pub const REGION_PAGE_SIZE: usize = 4096;

/// A structure of the device in one of its BARs, reserved for the driver.
pub struct Region<'bound> {
    bar: &'bound Resource,
    reserved: Arc<resource::Region>,
    offset: u64,
    len: u64,
}

/// Where a device says that one of its structures is (`struct virtio_pci_cap`).
struct Capability {
    bar: u8,
    offset: u32,
    len: u32,
}

impl Capability {
    /// Finds the first capability of a kind, whose BAR has a number that is not reserved.
    fn find(pdev: &pci::Device<Bound>, cfg_type: u8) -> Result<Option<Self>> {
        // SAFETY: `pdev` is a valid PCI device.
        let mut at = unsafe { bindings::pci_find_capability(as_raw(pdev), CAP_ID_VENDOR) };
        for _ in 0..MAX_CAPABILITIES {
            if at == 0 {
                break;
            }
            let bar = read_u8(pdev, at, offset_of!(bindings::virtio_pci_cap, bar))?;
            let found = read_u8(pdev, at, offset_of!(bindings::virtio_pci_cap, cfg_type))?;
            if found == cfg_type && u32::from(bar) < bindings::PCI_STD_NUM_BARS {
                return Ok(Some(Self {
                    bar,
                    offset: read_u32(pdev, at, offset_of!(bindings::virtio_pci_cap, offset))?,
                    len: read_u32(pdev, at, offset_of!(bindings::virtio_pci_cap, length))?,
                }));
            }
            // SAFETY: As above.
            at = unsafe { bindings::pci_find_next_capability(as_raw(pdev), at, CAP_ID_VENDOR) };
        }
        Ok(None)
    }
}

/// Bytes of the configuration space of a device, as far as the transport reads them; [`None`] if
/// the device is not one on PCI.
///
/// What the transport found when it began must be what is found here. A device that says other
/// things at other times is not proof against itself.
pub(crate) fn config_length(dev: &Device<Bound>) -> Result<Option<usize>> {
    /// The transport maps no more.
    const MOST: u32 = kernel::page::PAGE_SIZE as u32;
    // CAST: A small constant.
    const DEVICE_CFG: u8 = bindings::VIRTIO_PCI_CAP_DEVICE_CFG as u8;

    let Ok(pdev) = <&pci::Device<Bound>>::try_from(dev.parent()) else {
        return Ok(None);
    };
    let len = Capability::find(pdev, DEVICE_CFG)?.map_or(0, |found| found.len.min(MOST));
    // CAST: `usize` has at least 32 bits.
    Ok(Some(len as usize))
}

/// The BAR of that number, less than `PCI_STD_NUM_BARS`.
///
/// # Safety
///
/// The number must be so.
unsafe fn bar_of(pdev: &pci::Device<Bound>, bar: u8) -> &Resource {
    // SAFETY: The device has a resource for each BAR, which lives as long. It is bound meanwhile,
    // so nobody changes its resources.
    unsafe {
        let resources: *mut bindings::resource = (&raw mut (*as_raw(pdev)).resource).cast();
        compat::resource_from_raw(resources.add(usize::from(bar)))
    }
}

impl<'bound> Region<'bound> {
    /// See [`Device::region`].
    pub(crate) fn find(dev: &'bound Device<Bound>, cfg_type: u8) -> Result<Option<Self>> {
        let Ok(pdev) = <&pci::Device<Bound>>::try_from(dev.parent()) else {
            return Ok(None);
        };
        match Capability::find(pdev, cfg_type)? {
            Some(found) => Self::new(pdev, &found).map(Some),
            None => Ok(None),
        }
    }

    /// Reserves the structure of a capability.
    fn new(pdev: &'bound pci::Device<Bound>, found: &Capability) -> Result<Self> {
        let (offset, len) = (u64::from(found.offset), u64::from(found.len));
        // SAFETY: Capabilities with other numbers are not found.
        let bar = unsafe { bar_of(pdev, found.bar) };
        // Ports of the CPU have addresses, too, at which there is other memory.
        let is_memory = bar.flags().contains(Flags::IORESOURCE_MEM);
        if !is_memory || bar.start() == 0 || len == 0 || !fits(bar.size(), offset, len) {
            return Err(EINVAL);
        }

        let start = bar.start() + offset;
        let reserved = bar
            .request_region(start, len, c"virtio".try_into()?, Flags::IORESOURCE_MEM)
            .ok_or(EBUSY)?;
        Ok(Self {
            bar,
            reserved: Arc::new(reserved, GFP_KERNEL)?,
            offset,
            len,
        })
    }

    /// The BAR that the structure is in.
    pub fn bar(&self) -> &'bound Resource {
        self.bar
    }

    /// Where in the BAR the structure begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the structure.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where in the BAR page `index` of the structure begins; pages have [`REGION_PAGE_SIZE`]
    /// bytes.
    ///
    /// `EINVAL` if there is no such page, or the structure does not begin at a page.
    pub fn page_offset(&self, index: u32) -> Result<u64> {
        let offset = u64::from(index) * REGION_PAGE_SIZE as u64;
        let start = self.bar().start() + self.offset;
        if !fits(self.len, offset, REGION_PAGE_SIZE as u64) || start % REGION_PAGE_SIZE as u64 != 0
        {
            return Err(EINVAL);
        }
        Ok(self.offset + offset)
    }

    /// Maps page `index` of the structure for the kernel.
    ///
    /// Errors are those of [`page_offset`](Self::page_offset).
    pub fn map_page(&self, index: u32) -> Result<MappedPage<'bound>> {
        let start = self.bar().start() + self.page_offset(index)?;
        // SAFETY: The address is device memory that `self` has reserved.
        let page = unsafe { bindings::ioremap(start, REGION_PAGE_SIZE) };
        Ok(MappedPage {
            page: NonNull::new(page).ok_or(ENOMEM)?,
            _reserved: self.reserved.clone(),
            _bound: PhantomData,
        })
    }
}

/// A page of a [`Region`], mapped for the kernel.
///
/// # Invariants
///
/// `page` is a mapping of [`REGION_PAGE_SIZE`] bytes, which stay reserved meanwhile.
pub struct MappedPage<'bound> {
    page: NonNull<c_void>,
    _reserved: Arc<resource::Region>,
    _bound: PhantomData<&'bound Resource>,
}

// SAFETY: Device memory may be written, unmapped and released by any thread.
unsafe impl Send for MappedPage<'_> {}

// SAFETY: As above, also at the same time.
unsafe impl Sync for MappedPage<'_> {}

impl MappedPage<'_> {
    /// Writes a little-endian word at `OFFSET`, after all earlier writes to memory. Does not wait
    /// for the device. May be called in any context.
    pub fn write32<const OFFSET: usize>(&self, value: u32) {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET < REGION_PAGE_SIZE) };
        // SAFETY: The mapping has `REGION_PAGE_SIZE` bytes, in which `OFFSET` is a word.
        unsafe { bindings::writel(value, self.page.byte_add(OFFSET).as_ptr()) };
    }
}

impl Drop for MappedPage<'_> {
    fn drop(&mut self) {
        // SAFETY: `map_page` has created this mapping.
        unsafe { bindings::iounmap(self.page.as_ptr()) };
    }
}

/// Waits until nobody who resets a function has found a driver that cannot be found any more.
///
/// Whoever resets a function holds the lock of the PCI device from before he looks for the driver
/// of its virtio device until after he has told that. `bus` must be that of virtio devices.
pub(crate) fn wait_for_resets(bus: *const bindings::bus_type) {
    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe extern "C" fn is_of(dev: *mut bindings::device, bus: *mut c_void) -> c_int {
        // SAFETY: Guaranteed by the caller; a device keeps its bus.
        c_int::from(ptr::eq(unsafe { (*dev).bus }, bus.cast()))
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn wait(dev: *mut bindings::device, bus: *mut c_void) -> c_int {
        // SAFETY: Guaranteed by the caller, who holds no lock of a device.
        unsafe {
            if bindings::device_for_each_child(dev, bus, Some(is_of)) != 0 {
                bindings::device_lock(dev);
                bindings::device_unlock(dev);
            }
        }
        0
    }

    // SAFETY: The bus of PCI devices is always there. The other is only compared.
    unsafe {
        bindings::bus_for_each_dev(
            &raw const bindings::pci_bus_type,
            ptr::null_mut(),
            bus.cast_mut().cast(),
            Some(wait),
        )
    };
}

/// `PCI_CAP_ID_VNDR`, as the functions that look for it want it.
const CAP_ID_VENDOR: c_int = bindings::PCI_CAP_ID_VNDR as c_int;

fn as_raw(pdev: &pci::Device<Bound>) -> *mut bindings::pci_dev {
    // CAST: `pci::Device` is a transparent wrapper of `Opaque<bindings::pci_dev>`, which permits
    // mutation through a shared reference.
    core::ptr::from_ref(pdev).cast_mut().cast()
}

/// Whether `len` bytes at `offset` lie within `size` bytes.
pub(crate) fn fits(size: u64, offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= size)
}

/// Reads a byte of configuration space, `offset` bytes into the capability at `at`.
fn read_u8(pdev: &pci::Device<Bound>, at: u8, offset: usize) -> Result<u8> {
    let mut value = 0;
    // SAFETY: `pdev` is a valid PCI device, and `value` is writable. Any offset may be read.
    to_result(unsafe {
        bindings::pci_read_config_byte(as_raw(pdev), c_int::from(at) + offset as c_int, &mut value)
    })?;
    Ok(value)
}

/// Reads a word of configuration space, `offset` bytes into the capability at `at`.
fn read_u32(pdev: &pci::Device<Bound>, at: u8, offset: usize) -> Result<u32> {
    let mut value = 0;
    // SAFETY: As in `read_u8`. A word that is not aligned is an error.
    to_result(unsafe {
        bindings::pci_read_config_dword(as_raw(pdev), c_int::from(at) + offset as c_int, &mut value)
    })?;
    Ok(value)
}
