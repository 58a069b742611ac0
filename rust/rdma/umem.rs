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
    dma::Mapper,
    odp, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A range of a process's memory or of a dma-buf, pinned and mapped for the device
/// (`struct ib_umem`).
///
/// Keep it in an RDMA object, which goes away before the device does. A `Umem` that is dropped
/// later, or that is part of a dma-buf and dropped in a closure or pager callback that runs under
/// the lock of [on-demand memory](odp), stays pinned and mapped forever.
///
/// # Invariants
///
/// The pointer is valid and owned, and the memory is mapped by `mapper`.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    mapper: Arc<Mapper>,
}

impl Umem {
    /// Pins `length` bytes at `address` of the calling process.
    ///
    /// The device may write to the memory if `access` allows it. Errors: `ESRCH` if no process
    /// called the verb, `ENOMEM` if the process exceeds its limit of locked memory, `EFAULT` if it
    /// has no memory at this address, `EINVAL` for invalid ranges.
    pub fn get<T: Operations>(
        call: &Call<'_, T>,
        address: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        call.check_process()?;
        // SAFETY: The call proves that the device is registered, and the mapper is the device's
        // own. The task is in a call from a process.
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

    /// Like [`get`](Self::get).
    ///
    /// # Safety
    ///
    /// `device` must be valid and have a DMA device, and `mapper` must be that of the device. The
    /// current task must have the memory of a process.
    unsafe fn pin(
        device: *mut bindings::ib_device,
        mapper: &Arc<Mapper>,
        address: u64,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        // SAFETY: Guaranteed by the caller.
        // CAST: Access flags are bits that C keeps in an `int`.
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

    /// Pins `length` bytes at `offset` of the dma-buf that is open as `fd` in the calling process.
    /// It may be memory of any device, or of the kernel. It stays pinned even if the descriptor is
    /// closed.
    ///
    /// The device may write to the memory if `access` allows it. Errors: `ESRCH` if no process
    /// called the verb, `EBADF` if there is no such file, `EINVAL` if the file is not a dma-buf or
    /// is too short, `EDEADLK` in a closure or pager callback that runs under the lock of
    /// [on-demand memory](odp). Other errors come from the exporter of the dma-buf, for example if
    /// it cannot pin the memory or the device cannot reach it.
    pub fn get_dma_buf<T: Operations>(
        call: &Call<'_, T>,
        fd: c_int,
        offset: usize,
        length: usize,
        access: AccessFlags,
    ) -> Result<Self> {
        call.check_process()?;
        // This locks the dma-buf.
        if odp::has_memory() {
            return Err(EDEADLK);
        }
        // SAFETY: The call proves that the device is registered.
        // CAST: `c_ulong` has the bits of a `size_t`; access flags are bits that C keeps in an
        // `int`.
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
        // SAFETY: The structure is ours. It begins with the umem, through which it is released.
        unsafe { Self::from_raw(&raw mut (*raw).umem, call.mapper()) }
    }

    /// Takes ownership of the result of a C function.
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

    /// Returns the number of pinned bytes, as requested.
    #[inline]
    pub fn len(&self) -> usize {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).length }
    }

    /// Returns the address of the first byte in the process, or its offset in the dma-buf.
    #[inline]
    pub fn address(&self) -> u64 {
        // SAFETY: Valid by the type invariant.
        // CAST: `c_ulong` has at most 64 bits.
        unsafe { (*self.raw.as_ptr()).address as u64 }
    }

    /// Returns whether the memory is empty. It never is: the core does not pin empty ranges.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the memory belongs to a dma-buf.
    #[inline]
    pub fn is_dma_buf(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe { (*self.raw.as_ptr()).is_dmabuf() != 0 }
    }

    /// Returns the memory as a list of pages of equal size. The size is the largest one in `sizes`
    /// (bit `n` set: 2 to the power of `n` bytes) that suits a region whose first byte has the
    /// address `iova`.
    ///
    /// The core stores this address in the umem for the list, so there can be only one list at a
    /// time.
    pub fn pages(&mut self, sizes: u64, iova: u64) -> Result<Pages<'_>> {
        // SAFETY: Valid by the type invariant. `&mut self` gives exclusive access to the structure,
        // to which this writes.
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
        if self.is_dma_buf() && odp::has_memory() {
            // The same dma-buf may be locked, and releasing locks it again.
            dev_err!(
                self.mapper.dma(),
                "a dma-buf is dropped under the lock of on-demand memory and leaked\n"
            );
            return;
        }
        if let Some(_registered) = self.mapper.enter_to_unmap() {
            // SAFETY: Owned by the type invariant. The guard keeps the device registered.
            unsafe { bindings::ib_umem_release(self.raw.as_ptr()) };
        }
    }
}

// SAFETY: A umem may be released by any thread.
unsafe impl Send for Umem {}

// SAFETY: Through a shared reference the structure is only read. Only `pages` changes it (the
// address in it), and `pages` has exclusive access.
unsafe impl Sync for Umem {}

/// The kind of queue that a [`Buffer`] is for.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(crate) enum BufferOf {
    CompletionQueue,
    QueuePair,
    SharedReceiveQueue,
}

/// Source of a process's buffer for a new queue: the call's attributes, which describe an address
/// or a dma-buf, or else the address in the driver's request.
pub struct Buffer<'a> {
    device: NonNull<bindings::ib_device>,
    mapper: &'a Arc<Mapper>,
    attrs: NonNull<bindings::uverbs_attr_bundle>,
    of: BufferOf,
}

impl<'a> Buffer<'a> {
    /// Creates the buffer source of a call. `EOPNOTSUPP` if the attributes describe a buffer for
    /// only the send queue or the receive queue of a queue pair.
    ///
    /// # Safety
    ///
    /// `attrs` must be the attributes of the call, which must create the kind of queue given by
    /// `of`.
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

    /// Pins the buffer. If the call's attributes describe one, it must have at least `length`
    /// bytes; otherwise this pins `length` bytes at `address`.
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
        // SAFETY: Device and attributes are valid during the call, which has this attribute.
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
/// `size` is a non-zero page size that C code found for the memory, and the umem still has the
/// address for which it was found.
pub struct Pages<'a> {
    umem: &'a Umem,
    size: c_ulong,
    offset: usize,
}

impl<'a> Pages<'a> {
    /// Returns the binary logarithm of the page size.
    #[inline]
    pub fn shift(&self) -> u32 {
        self.size.trailing_zeros()
    }

    /// Returns the offset of the memory in its first page.
    #[inline]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of pages.
    #[inline]
    pub fn count(&self) -> usize {
        // SAFETY: The umem is valid, the page size is not 0.
        unsafe { bindings::ib_umem_num_dma_blocks(self.umem.raw.as_ptr(), self.size) }
    }

    /// Returns the DMA addresses of the pages, each a multiple of the page size.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = DmaAddress> + 'a {
        let mut iter = bindings::ib_block_iter::default();
        // SAFETY: The umem is valid during `'a`, and the page size was found for it.
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
        // The C iterator starts again if it is asked for more than there is.
        self.left = self.left.checked_sub(1)?;
        // SAFETY: By the type invariant the iterator was started and the umem is valid.
        unsafe {
            bindings::rdma_umem_block_iter_next(&mut self.iter)
                .then(|| bindings::rdma_block_iter_dma_address(&mut self.iter))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for PageIter<'_> {}
