// SPDX-License-Identifier: GPL-2.0

//! Buffers for virtqueues.

use kernel::prelude::*;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A buffer for the device: memory that the device reads, memory that it writes, and a driver's
/// context that accompanies both.
///
/// Each part is a separate `kmalloc` allocation, as DMA requires.
///
/// # Invariants
///
/// Each part has at most `c_uint::MAX` bytes, and at least one of them is not empty.
pub struct Chain<C> {
    pub(crate) readable: KVec<u8>,
    pub(crate) writable: KVec<u8>,
    context: C,
}

impl<C> Chain<C> {
    /// Creates a buffer from which the device reads `readable` and to which it writes at most
    /// `writable_len` bytes. One of the parts may be empty, but not both.
    pub fn new(
        readable: KVec<u8>,
        writable_len: usize,
        context: C,
        flags: kernel::alloc::Flags,
    ) -> Result<KBox<Self>> {
        if readable.is_empty() && writable_len == 0 {
            return Err(EINVAL);
        }
        if readable.len().max(writable_len) > c_uint::MAX as usize {
            return Err(EINVAL);
        }
        let writable = KVec::from_elem(0, writable_len, flags)?;
        // INVARIANT: Checked above.
        Ok(KBox::new(
            Self {
                readable,
                writable,
                context,
            },
            flags,
        )?)
    }

    /// Returns the driver's context.
    #[inline]
    pub fn context(&self) -> &C {
        &self.context
    }

    /// Returns the part that the device reads.
    #[inline]
    pub fn readable_mut(&mut self) -> &mut [u8] {
        &mut self.readable
    }

    /// Returns the part that the device writes.
    #[inline]
    pub fn writable(&self) -> &[u8] {
        &self.writable
    }
}

/// The reason why a queue rejected a buffer, and the buffer.
pub type Refused<C> = (Error, KBox<Chain<C>>);

/// A buffer that the device has used.
pub struct Used<C> {
    pub(crate) chain: KBox<Chain<C>>,
    pub(crate) written: usize,
}

impl<C> Used<C> {
    /// Returns the bytes that the device has written.
    ///
    /// The length that the device reports is capped at the size of the buffer.
    pub fn written(&self) -> &[u8] {
        let len = self.written.min(self.chain.writable.len());
        &self.chain.writable[..len]
    }

    /// Returns the driver's context.
    #[inline]
    pub fn context(&self) -> &C {
        &self.chain.context
    }

    /// Returns the buffer for reuse.
    #[inline]
    pub fn into_chain(self) -> KBox<Chain<C>> {
        self.chain
    }
}
