// SPDX-License-Identifier: GPL-2.0

//! Structures that a device type adds to those of its transport ([`Device::region`]).
//!
//! Among the transports, only PCI supports this: a virtio PCI device describes each of its
//! structures by a vendor-specific capability (virtio standard, section 4.1.4,
//! `struct virtio_pci_cap`).

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

/// Size in bytes of a page of device memory in the standard, regardless of the CPU's page size.
pub const REGION_PAGE_SIZE: usize = 4096;

/// A structure of the device in one of its BARs, reserved for the driver.
pub struct Region<'bound> {
    bar: &'bound Resource,
    reserved: Arc<resource::Region>,
    offset: u64,
    len: u64,
}

/// Finds the first structure of a kind.
///
/// `ENOENT` if the device has none, `EOPNOTSUPP` if its transport has no such structures, and
/// `EINVAL` if the structure is not in an existing BAR or overlaps the interrupt table.
fn structure(dev: &Device<Bound>, kind: u8) -> Result<bindings::virtio_structure> {
    let mut found = bindings::virtio_structure::default();
    // SAFETY: The device is valid, and `found` is writable.
    to_result(unsafe { bindings::virtio_get_structure(dev.as_raw(), &mut found, kind) })?;
    Ok(found)
}

/// Returns the length in bytes of a device's configuration space, as far as the transport can read
/// it; `EOPNOTSUPP` if the transport does not report the length.
pub(crate) fn config_length(dev: &Device<Bound>) -> Result<usize> {
    /// The transport does not map more than this.
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
    /// Implements [`Device::region`].
    pub(crate) fn find(dev: &'bound Device<Bound>, kind: u8) -> Result<Option<Self>> {
        let found = match structure(dev, kind) {
            Ok(found) => found,
            Err(ENOENT | EOPNOTSUPP) => return Ok(None),
            Err(err) => return Err(err),
        };
        // SAFETY: This is a resource of the device that `dev` is a function of, which lives at
        // least as long. That device stays bound, so its resources do not change.
        let bar = unsafe { compat::resource_from_raw(found.res) };
        // Port addresses look like memory addresses, but there is other memory at those.
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

    /// Returns the BAR that contains the structure.
    #[inline]
    pub fn bar(&self) -> &'bound Resource {
        self.bar
    }

    /// Returns the offset of the structure in the BAR.
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the structure in bytes.
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns the offset in the BAR of page `index` of the structure; pages have
    /// [`REGION_PAGE_SIZE`] bytes.
    ///
    /// Returns `EINVAL` if there is no such page, or if the structure does not start at a page
    /// boundary.
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
/// `page` is a mapping of [`REGION_PAGE_SIZE`] bytes, which stay reserved as long as `self` exists.
pub struct MappedPage<'bound> {
    page: NonNull<c_void>,
    _reserved: Arc<resource::Region>,
    _bound: PhantomData<&'bound Resource>,
}

// SAFETY: Device memory may be written, unmapped and released by any thread.
unsafe impl Send for MappedPage<'_> {}

// SAFETY: As above, even concurrently.
unsafe impl Sync for MappedPage<'_> {}

impl MappedPage<'_> {
    /// Writes a little-endian word at `OFFSET`, after all earlier writes to memory. Does not wait
    /// for the device. May be called in any context.
    pub fn write32<const OFFSET: usize>(&self, value: u32) {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET < REGION_PAGE_SIZE) };
        // SAFETY: The mapping has `REGION_PAGE_SIZE` bytes, and `OFFSET` is that of an aligned word
        // in it.
        unsafe { bindings::writel(value, self.page.byte_add(OFFSET).as_ptr()) };
    }
}

impl Drop for MappedPage<'_> {
    fn drop(&mut self) {
        // SAFETY: `map_page` created this mapping.
        unsafe { bindings::iounmap(self.page.as_ptr()) };
    }
}

/// Returns whether `len` bytes at `offset` lie within `size` bytes.
fn fits(size: u64, offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= size)
}
