// SPDX-License-Identifier: GPL-2.0

//! Memory of processes and of other devices, pinned and mapped for DMA.

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    dma::DmaAddress,
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

use crate::{
    access::AccessFlags,
    bindings,
    device::{
        Call,
        Operations, //
    },
    dma::Mapper, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A piece of the memory of a process or of a dma-buf, pinned and mapped for the device (`struct
/// ib_umem`).
///
/// It belongs inside an RDMA object, which is gone before the device is: what is dropped later
/// stays pinned and mapped for ever.
///
/// # Invariants
///
/// The pointer is valid and owned, and the memory mapped by `mapper`.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    mapper: Arc<Mapper>,
}

impl Umem {
    /// Pins `length` bytes at `address` of the calling process.
    ///
    /// The device may write to it if `access` says so. Errors: `ESRCH` if no process called the
    /// verb, `ENOMEM` if it may not lock so much memory, `EFAULT` if it has no memory there,
    /// `EINVAL` for bad ranges.
    pub fn get<T: Operations>(
        call: &Call<'_, T>,
        address: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The device is registered, since there is a call, and the mapper its own. The task
        // is in a call of a process.
        unsafe {
            Self::pin(
                call.device().as_raw(),
                call.mapper(),
                address,
                length,
                access,
            )
        }
    }

    /// As [`get`](Self::get).
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` be that of the device. The task
    /// that runs must have the memory of a process.
    unsafe fn pin(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        address: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        // SAFETY: By contract.
        // CAST: Rights are bits that C keeps in an `int`.
        unsafe {
            let raw = bindings::ib_umem_get_attr_or_va(
                device,
                core::ptr::null(),
                0,
                address,
                length,
                access.bits() as c_int,
            );
            Self::from_raw(raw, mapper)
        }
    }

    /// Pins `length` bytes at `offset` of the dma-buf that the calling process knows by `fd`:
    /// memory of any device, or of the kernel. It stays in place, whoever closes the descriptor.
    ///
    /// The device may write to it if `access` says so. Errors: `ESRCH` if no process called the
    /// verb, `EBADF` if there is no such file, `EINVAL` if it is no dma-buf or not as long, others
    /// of the one who exports the dma-buf, as when it cannot keep the memory in place or the device
    /// cannot reach it.
    pub fn get_dma_buf<T: Operations>(
        call: &Call<'_, T>,
        fd: c_int,
        offset: usize,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The device is registered, since there is a call.
        // CAST: `c_ulong` has the bits of a `size_t`; rights are bits that C keeps in an `int`.
        let raw = unsafe {
            bindings::ib_umem_dmabuf_get_pinned(
                call.device().as_raw(),
                offset as c_ulong,
                length,
                fd,
                access.bits() as c_int,
            )
        };
        let raw = from_err_ptr(raw)?;
        // SAFETY: The structure is ours, and begins with the umem by which it is released.
        unsafe { Self::from_raw(&raw mut (*raw).umem, call.mapper()) }
    }

    /// Takes over what a C function returned.
    ///
    /// # Safety
    ///
    /// `ptr` must be an `ERR_PTR` or a umem that the caller owns, of the device of `mapper`.
    unsafe fn from_raw(ptr: *mut bindings::ib_umem, mapper: &Arc<Mapper>) -> Result<Self> {
        let raw = NonNull::new(from_err_ptr(ptr)?).ok_or(EINVAL)?;
        // INVARIANT: Ownership was passed by the caller.
        Ok(Self {
            raw,
            mapper: mapper.clone(),
        })
    }

    /// Bytes pinned, as asked for.
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// Address of the first byte in the process, or offset in the dma-buf.
    pub fn address(&self) -> u64 {
        // SAFETY: Valid by the type invariant.
        // CAST: `c_ulong` has at most 64 bits.
        unsafe { (*self.raw.as_ptr()).address as u64 }
    }

    /// Whether there are no bytes; the core refuses to pin nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is that of a dma-buf.
    pub fn is_dma_buf(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).is_dmabuf() != 0 }
    }

    /// Returns the memory as a list of equal pages, of the largest size out of `sizes` (bit `n`
    /// set: 2 to the `n` bytes) that fits a region whose first byte has the address `iova`.
    ///
    /// The core notes the address in the memory itself, for the list: so there is one list at a
    /// time.
    pub fn pages(&mut self, sizes: u64, iova: u64) -> Result<Pages<'_>> {
        // SAFETY: Valid by the type invariant, and nobody else has the structure, which this
        // writes.
        // CAST: `c_ulong` has 64 bits where there are pages that large.
        let size =
            unsafe { bindings::ib_umem_find_best_pgsz(self.raw.as_ptr(), sizes as c_ulong, iova) };
        if size == 0 {
            return Err(EINVAL);
        }
        Ok(Pages {
            umem: self,
            size,
            // CAST: Less than the page size.
            offset: (iova & (size as u64 - 1)) as usize,
        })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        if let Some(_registered) = self.mapper.enter_to_unmap() {
            // SAFETY: Owned by the type invariant, and the device is registered meanwhile.
            unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
        }
    }
}

// SAFETY: A umem may be released by any thread.
unsafe impl Send for Umem {}

// SAFETY: Through a shared reference the structure is only read: the address in it, which is all
// that changes, is written by `pages`, which has it alone.
unsafe impl Sync for Umem {}

/// What a [`Buffer`] is for.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum BufferOf {
    CompletionQueue,
    QueuePair,
    SharedReceiveQueue,
}

/// Where a process's buffer for a new queue comes from: the call's attributes, which describe an
/// address or a dma-buf, or the address in the driver's request.
pub struct Buffer<'a> {
    device: NonNull<bindings::ib_device>,
    mapper: &'a Arc<Mapper>,
    attrs: NonNull<bindings::uverbs_attr_bundle>,
    of: BufferOf,
}

impl<'a> Buffer<'a> {
    /// The buffer of a call. `EOPNOTSUPP` if its attributes have one for a single queue of a queue
    /// pair.
    ///
    /// # Safety
    ///
    /// `attrs` must be the attributes of the call, which makes what `of` says.
    pub(crate) unsafe fn new<T: Operations>(
        call: &'a Call<'_, T>,
        attrs: *mut bindings::uverbs_attr_bundle,
        of: BufferOf,
    ) -> Result<Self> {
        // CAST: The values of an enum that C keeps in 16 bits; here and below.
        let has = |attribute| {
            // SAFETY: Guaranteed by the caller.
            unsafe { bindings::uverbs_attr_is_valid(attrs, attribute) }
        };
        if of == BufferOf::QueuePair
            && (has(
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM,
            ) || has(
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM,
            ))
        {
            return Err(EOPNOTSUPP);
        }
        Ok(Self {
            device: NonNull::new(call.device().as_raw()).ok_or(EINVAL)?,
            mapper: call.mapper(),
            attrs: NonNull::new(attrs).ok_or(EINVAL)?,
            of,
        })
    }

    /// Pins the buffer: the one that the call's attributes describe if there is any, which must
    /// have `length` bytes at least, or else `length` bytes at `address`.
    pub fn pin(&self, address: u64, length: usize, access: AccessFlags) -> Result<Umem> {
        let (device, attrs) = (self.device.as_ptr(), self.attrs.as_ptr());
        let access = access.bits() as c_int;
        let attribute = match self.of {
            // SAFETY: Device and attributes are valid during the call.
            BufferOf::CompletionQueue => unsafe {
                let umem =
                    bindings::ib_umem_get_cq_buf_or_va(device, attrs, address, length, access);
                return Umem::from_raw(umem, self.mapper);
            },
            BufferOf::QueuePair => {
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_BUF_UMEM
            }
            BufferOf::SharedReceiveQueue => {
                bindings::uverbs_attrs_create_srq_cmd_attr_ids_UVERBS_ATTR_CREATE_SRQ_BUF_UMEM
            }
        };
        // SAFETY: As above, and the attribute is one of such a call.
        unsafe {
            let umem = bindings::ib_umem_get_attr_or_va(
                device,
                attrs,
                attribute as u16,
                address,
                length,
                access,
            );
            Umem::from_raw(umem, self.mapper)
        }
    }
}

/// A [`Umem`] as a list of pages of one size.
///
/// # Invariants
///
/// `size` is a page size that the C side found for the memory, and not 0; the memory has the
/// address that it was found with.
pub struct Pages<'a> {
    umem: &'a Umem,
    size: c_ulong,
    offset: usize,
}

impl<'a> Pages<'a> {
    /// Binary logarithm of the size of a page.
    pub fn shift(&self) -> u32 {
        self.size.trailing_zeros()
    }

    /// Where in the first page the memory begins.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of pages.
    pub fn count(&self) -> usize {
        // SAFETY: The umem is valid, the page size is not 0.
        unsafe { bindings::ib_umem_num_dma_blocks(self.umem.raw.as_ptr(), self.size) }
    }

    /// DMA addresses of the pages, each a multiple of the page size.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DmaAddress> + 'a {
        let mut iter = bindings::ib_block_iter::default();
        // SAFETY: The umem is valid during `'a`; the page size was found for it.
        unsafe {
            bindings::rdma_umem_block_iter_start(&mut iter, self.umem.raw.as_ptr(), self.size);
        }
        PageIter {
            iter,
            left: self.count(),
            _umem: PhantomData::<&'a Umem>,
        }
    }
}

/// Iterator over the pages of a [`Umem`].
///
/// # Invariants
///
/// The C iterator was started on a umem that is valid during `'a`.
struct PageIter<'a> {
    iter: bindings::ib_block_iter,
    left: usize,
    _umem: PhantomData<&'a Umem>,
}

impl Iterator for PageIter<'_> {
    type Item = DmaAddress;

    fn next(&mut self) -> Option<DmaAddress> {
        // SAFETY: Started, and the umem is valid, by the type invariant.
        let address = unsafe {
            bindings::rdma_umem_block_iter_next(&mut self.iter)
                .then(|| bindings::rdma_block_iter_dma_address(&mut self.iter))
        };
        self.left = self.left.saturating_sub(1);
        address
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for PageIter<'_> {}
