// SPDX-License-Identifier: GPL-2.0

//! Structures that a device type adds to those of its transport ([`Device::region`]).
//!
//! Of the transports, PCI has such: a virtio device on PCI describes each of its structures by a
//! vendor-specific capability (virtio standard, section 4.1.4, `struct virtio_pci_cap`).

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    device::Bound,
    error::to_result,
    io::resource::{
        self,
        Flags,
        Resource, //
    },
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

/// Bytes of a page of device memory, as the standard counts them, whatever the CPU's pages are.
pub const REGION_PAGE_SIZE: usize = 4096;

/// A structure of the device in one of its BARs, reserved for the driver.
pub struct Region<'bound> {
    bar: &'bound Resource,
    reserved: Arc<resource::Region>,
    offset: u64,
    len: u64,
}

/// Where the first structure of a kind is.
///
/// `ENOENT` if the device has none, `EOPNOTSUPP` if its transport has no such structures, and
/// `EINVAL` if it lies in nothing that is there, or beside the table of interrupts.
fn structure(dev: &Device<Bound>, kind: u8) -> Result<bindings::virtio_structure> {
    let mut found = bindings::virtio_structure::default();
    // SAFETY: The device is valid, and `found` is writable.
    to_result(unsafe { bindings::virtio_get_structure(dev.as_raw(), &mut found, kind) })?;
    Ok(found)
}

/// Bytes of the configuration space of a device, as far as the transport reads them; `EOPNOTSUPP`
/// if it does not say how long that is.
pub(crate) fn config_length(dev: &Device<Bound>) -> Result<usize> {
    /// The transport maps no more.
    const MOST: u64 = kernel::page::PAGE_SIZE as u64;
    // CAST: A small constant.
    const DEVICE_CFG: u8 = bindings::VIRTIO_PCI_CAP_DEVICE_CFG as u8;

    match structure(dev, DEVICE_CFG) {
        // CAST: No more than `MOST`.
        Ok(found) => Ok(found.len.min(MOST) as usize),
        Err(ENOENT) => Ok(0),
        Err(err) => Err(err),
    }
}

impl<'bound> Region<'bound> {
    /// See [`Device::region`].
    pub(crate) fn find(dev: &'bound Device<Bound>, kind: u8) -> Result<Option<Self>> {
        let found = match structure(dev, kind) {
            Ok(found) => found,
            Err(ENOENT | EOPNOTSUPP) => return Ok(None),
            Err(err) => return Err(err),
        };
        // SAFETY: It is a resource of the device that this one is a function of, which lives as
        // long. That one is bound meanwhile, so nobody changes its resources.
        let bar = unsafe { compat::resource_from_raw(found.res) };
        // Ports of the CPU have addresses, too, at which there is other memory.
        let is_memory = bar.flags().contains(Flags::IORESOURCE_MEM);
        if !is_memory || bar.start() == 0 {
            return Err(EINVAL);
        }

        let start = bar.start() + found.offset;
        let reserved = bar
            .request_region(
                start,
                found.len,
                c"virtio".try_into()?,
                Flags::IORESOURCE_MEM,
            )
            .ok_or(EBUSY)?;
        Ok(Some(Self {
            bar,
            reserved: Arc::new(reserved, GFP_KERNEL)?,
            offset: found.offset,
            len: found.len,
        }))
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

/// Whether `len` bytes at `offset` lie within `size` bytes.
fn fits(size: u64, offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= size)
}
