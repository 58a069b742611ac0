// SPDX-License-Identifier: GPL-2.0

//! Device memory, which is memory of the guest: processes map it, and the device accesses it like
//! all guest memory. Memory in a BAR would have to be mapped into QEMU, and then each doorbell
//! write would wait for the device (`Documentation/driver.rst`).

use kernel::{
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use rdma::{
    dm::DmRange,
    mmap::Mapped,
    uapi::{
        AttrBundle,
        AttrDef,
        Kind,
        Method, //
    },
    DmBuffer,
    Ucontext,
    UserPages, //
};
use vrnic_wire::abi::{
    self,
    ioctl, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    page_list::PageListBuffer,
    ucontext::UserContext,
    udata::QueryDmResponse, //
};

/// Bytes of device memory of a device, which all its processes share.
pub(crate) const DEVICE_MEMORY: usize = 1 << 20;

/// Number of free pages of the device memory.
pub(crate) struct Pool(Atomic<usize>);

impl Pool {
    /// Creates the pool, with all pages free.
    pub(crate) fn new() -> Result<Arc<Self>> {
        let pages = Atomic::new(DEVICE_MEMORY / PAGE_SIZE);
        Ok(Arc::new(Self(pages), GFP_KERNEL)?)
    }

    /// Takes the pages for `length` bytes. `EINVAL` if `length` is 0 or exceeds the size of the
    /// device memory, `ENOMEM` if there are not enough free pages.
    fn take(self: &Arc<Self>, length: u64) -> Result<Share> {
        let length = usize::try_from(length).map_err(|_| EINVAL)?;
        if length == 0 || length > DEVICE_MEMORY {
            return Err(EINVAL);
        }
        let pages = length.div_ceil(PAGE_SIZE);
        let mut free = self.0.load(Relaxed);
        loop {
            let left = free.checked_sub(pages).ok_or(ENOMEM)?;
            match self.0.cmpxchg(free, left, Relaxed) {
                Ok(_) => break,
                Err(now) => free = now,
            }
        }
        Ok(Share {
            pool: self.clone(),
            pages,
        })
    }
}

/// Pages taken from a [`Pool`], which are returned when this is dropped.
struct Share {
    pool: Arc<Pool>,
    pages: usize,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.pool.0.fetch_add(self.pages, Relaxed);
    }
}

/// A buffer in device memory.
pub(crate) struct Dm {
    pages: Arc<UserPages>,
    length: u64,
    mapped: Mapped,
    _share: Share,
}

impl Dm {
    /// Returns the memory, to which regions hold references.
    pub(crate) fn pages(&self) -> &Arc<UserPages> {
        &self.pages
    }

    /// Creates the page list of a part of the buffer, within its bounds.
    pub(crate) fn list(&self, call: &Call<'_>, range: &DmRange) -> Result<PageListBuffer> {
        if range.length == 0 {
            return Ok(PageListBuffer::empty());
        }
        let (first, offset) = split(range.offset)?;
        let (last, _) = split(range.offset + range.length - 1)?;
        let mut listed = KVec::with_capacity(last - first + 1, GFP_KERNEL)?;
        for page in self.pages.dma_pages().skip(first).take(last - first + 1) {
            listed.push(page, GFP_KERNEL)?;
        }
        let shift = u8::try_from(PAGE_SHIFT)?;
        let pages = listed.iter().copied();
        PageListBuffer::new(call.data().dma(), pages, shift, offset, range.length)
    }
}

/// Returns the page of a byte, and its offset in the page.
fn split(offset: u64) -> Result<(usize, u64)> {
    let size = PAGE_SIZE as u64;
    Ok((usize::try_from(offset / size)?, offset % size))
}

impl DmBuffer for Dm {
    type Driver = Vrnic;

    fn alloc(
        call: &Call<'_>,
        context: &Ucontext<UserContext>,
        length: u64,
        alignment: u32,
    ) -> Result<impl PinInit<Self>> {
        // Buffers start at page boundaries.
        if alignment as usize > PAGE_SHIFT {
            return Err(EINVAL);
        }
        let share = call.data().device_memory.take(length)?;
        let pages = UserPages::new(call, usize::try_from(length)?)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        Ok(Self {
            mapped: context.map_pages(&pages)?,
            pages,
            length,
            _share: share,
        })
    }
}

/// Handle of a buffer in device memory.
const DM_HANDLE: AttrDef = AttrDef::object::<rdma::Dm<Dm>>(ioctl::QUERY_DM_ATTR_HANDLE);

/// Response with the buffer's location.
const DM: AttrDef = AttrDef::output::<QueryDmResponse>(ioctl::QUERY_DM_ATTR_RESP);

/// A method on device memory buffers that returns the `mmap` offset of the buffer.
pub(crate) struct QueryDm;

impl Method for QueryDm {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::DeviceMemory;
    const NUMBER: u16 = ioctl::METHOD_QUERY_DM;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[&DM_HANDLE, &DM];

    fn call(_call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        let dm = attributes
            .named::<rdma::Dm<Dm>>(&DM_HANDLE)?
            .ok_or(EINVAL)?;
        let response = abi::QueryDmResponse {
            map_offset: dm.mapped.offset(),
            map_length: dm.pages.len() as u64,
            length: dm.length,
            ..Default::default()
        };
        attributes.put(&DM, &QueryDmResponse(response))
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_dm)]
mod tests {
    use super::*;

    #[test]
    fn device_memory_is_shared_by_pages() -> Result {
        let pool = Pool::new()?;
        for length in [0, DEVICE_MEMORY as u64 + 1, u64::MAX] {
            assert_eq!(pool.take(length).err(), Some(EINVAL));
        }
        let most = pool.take((DEVICE_MEMORY - PAGE_SIZE) as u64)?;
        let byte = pool.take(1)?;
        assert_eq!(pool.take(1).err(), Some(ENOMEM));
        drop(byte);
        assert!(pool.take(PAGE_SIZE as u64).is_ok());
        drop(most);
        assert!(pool.take(DEVICE_MEMORY as u64).is_ok());
        Ok(())
    }

    #[test]
    fn bytes_are_in_pages() {
        let page = PAGE_SIZE as u64;
        assert_eq!(split(page - 1), Ok((0, page - 1)));
        assert_eq!(split(3 * page + 5), Ok((3, 5)));
    }
}
