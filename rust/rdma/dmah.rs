// SPDX-License-Identifier: GPL-2.0

//! DMA handles (`ibv_alloc_dmah`): how a device should access memory that is registered with them.

use kernel::prelude::*;

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    object::{
        core_object,
        Sole,
        Vacant, //
    },
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

c_enum! {
    /// Type of the memory behind a DMA handle (`enum tph_mem_type`).
    pub enum MemoryType: bindings::tph_mem_type {
        /// Volatile memory.
        Volatile = bindings::tph_mem_type_TPH_MEM_TYPE_VM,
        /// Persistent memory.
        Persistent = bindings::tph_mem_type_TPH_MEM_TYPE_PM,
    }
}

/// Hints of a process about the use of memory, which a PCI device passes on with its transactions
/// (TLP processing hints; PCI Express base specification, section 6.17).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// The processor that uses the memory. The process may run on it.
    pub cpu: Option<u32>,
    /// Type of the memory.
    pub memory_type: Option<MemoryType>,
    /// Processing hint: who uses the memory, and how (2 bits).
    pub processing: Option<u8>,
}

impl Hints {
    /// Converts the hints of a new handle.
    fn from_raw(raw: &bindings::ib_dmah) -> Result<Self> {
        let has = |field: u32| u32::from(raw.valid_fields) & (1 << field) != 0;
        Ok(Self {
            cpu: has(bindings::IB_DMAH_CPU_ID_EXISTS).then_some(raw.cpu_id),
            memory_type: match has(bindings::IB_DMAH_MEM_TYPE_EXISTS) {
                true => Some(MemoryType::try_from(raw.mem_type)?),
                false => None,
            },
            processing: has(bindings::IB_DMAH_PH_EXISTS).then_some(raw.ph),
        })
    }
}

/// A DMA handle (`struct ib_dmah`), with which a process registers memory.
pub trait DmaHandle: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<DmaHandle = Self>;

    /// Whether the driver has DMA handles; `false` only for [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Allocates a handle. `EINVAL` if the device needs other hints.
    fn alloc(call: &Call<'_, Self::Driver>, hints: &Hints) -> Result<impl PinInit<Self>>;

    /// Releases the handle, with which no memory is registered any more; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn dealloc(handle: &Dmah<Self>, call: &Call<'_, Self::Driver>);
}

core_object! {
    /// A DMA handle: `struct ib_dmah` and the driver's part.
    Dmah<DmaHandle>, ib_dmah
}

/// # Safety
///
/// `dmah` must be a new handle of a device of `T`.
pub(crate) unsafe extern "C" fn alloc_callback<T: Operations>(
    dmah: *mut bindings::ib_dmah,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the handle. Only processes have handles.
    let verb = unsafe { Verb::<T>::by_process((*dmah).device) };
    // SAFETY: The core set the hints.
    let hints = Hints::from_raw(unsafe { &*dmah });
    // SAFETY: The handle is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<Dmah<T::DmaHandle>>::new(dmah) };

    verb.run(|call| {
        let hints = hints?;
        let init = T::DmaHandle::alloc(call, &hints)?;
        vacant.construct((), init);
        Ok(())
    })
}

/// # Safety
///
/// `dmah` must be a constructed handle of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn dealloc_callback<T: Operations>(
    dmah: *mut bindings::ib_dmah,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the handle.
    let verb = unsafe { Verb::<T>::new((*dmah).device) };
    // SAFETY: The handle is that of this verb, which succeeds.
    let handle = unsafe { Sole::<Dmah<T::DmaHandle>>::new(dmah) };

    verb.run(|call| {
        T::DmaHandle::dealloc(&handle, call);
        handle.end();
        Ok(())
    })
}
