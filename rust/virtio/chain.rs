// SPDX-License-Identifier: GPL-2.0

//! Buffers that travel through virtqueues.

use kernel::prelude::*;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A buffer for the device: memory that it reads, memory that it writes, and a context of the
/// driver that accompanies both.
///
/// Both parts are memory of their own from `kmalloc`, as DMA wants it.
///
/// # Invariants
///
/// Each part has at most `c_uint::MAX` bytes, and one of them is not empty.
pub struct Chain<C> {
    pub(crate) readable: KVec<u8>,
    pub(crate) writable: KVec<u8>,
    context: C,
}

impl<C> Chain<C> {
    /// Creates a buffer of which the device reads `readable` and writes at most `writable_len`
    /// bytes. Either may be empty, but not both.
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

    /// The driver's context.
    pub fn context(&self) -> &C {
        &self.context
    }

    /// The part that the device reads.
    pub fn readable_mut(&mut self) -> &mut [u8] {
        &mut self.readable
    }

    /// The part that the device writes.
    pub fn writable(&self) -> &[u8] {
        &self.writable
    }
}

/// A buffer that a queue did not take, and why.
pub type Refused<C> = (Error, KBox<Chain<C>>);

/// A buffer that the device has used.
pub struct Used<C> {
    pub(crate) chain: KBox<Chain<C>>,
    pub(crate) written: usize,
}

impl<C> Used<C> {
    /// What the device has written.
    ///
    /// A device that claims more than there is room for is not believed.
    pub fn written(&self) -> &[u8] {
        let len = self.written.min(self.chain.writable.len());
        &self.chain.writable[..len]
    }

    /// The driver's context.
    pub fn context(&self) -> &C {
        &self.chain.context
    }

    /// The buffer, to be used once more.
    pub fn into_chain(self) -> KBox<Chain<C>> {
        self.chain
    }
}
