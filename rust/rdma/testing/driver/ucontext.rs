// SPDX-License-Identifier: GPL-2.0

//! Contexts, and memory that processes may map.

use kernel::{
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*,
    sync::Arc, //
};

use super::{
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    bindings,
    cq::Cq,
    device::Call,
    mmap::{
        DeviceMemory,
        Mappings,
        UserPages, //
    },
    uapi::{
        self,
        AttrBundle,
        AttrDef, //
    },
    ucontext::{
        Ucontext,
        UserContext, //
    }, //
};

/// Request of a process that may map memory. The response is [`Offsets`].
pub(crate) const MAPPABLE: u64 = 31;
/// Request of a process that is rejected after memory for it to map was set up.
pub(crate) const MAPPABLE_BUT_REFUSED: u64 = 32;

/// Device memory that a process may map. It is never accessed, and there is no RAM at this address.
pub(crate) const DEVICE_MEMORY: PhysAddr = 1 << 38;
/// Size of the device memory in pages.
pub(crate) const DEVICE_PAGES: usize = 2;
/// Number of kernel pages that a process may map.
pub(crate) const SHARED_PAGES: usize = 3;

/// `mmap` offsets of the device memory and the kernel pages, in whole pages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub(crate) device: u64,
    pub(crate) shared: u64,
}

impl Offsets {
    fn to_response(&self) -> u64 {
        let page = PAGE_SIZE as u64;
        ((self.device / page) << 32) | (self.shared / page)
    }

    pub(crate) fn from_response(response: u64) -> Self {
        let page = PAGE_SIZE as u64;
        Self {
            device: (response >> 32) * page,
            shared: (response & u64::from(u32::MAX)) * page,
        }
    }
}

/// Attribute for a process that imports a context.
pub(crate) const ANSWER: AttrDef = AttrDef::output::<u64>(0);

/// A method of completion queues that is never called.
pub(super) struct Nothing;

impl uapi::Method for Nothing {
    type Driver = TestDriver;

    const OBJECT: uapi::Kind = uapi::Kind::CompletionQueue;
    const NUMBER: u16 = 2;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[&AttrDef::object::<Cq<Object>>(0)];

    fn call(_call: &Call<'_, TestDriver>, _attributes: &AttrBundle<'_, TestDriver>) -> Result {
        Ok(())
    }
}

#[vtable]
impl UserContext for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    const QUERY_ATTRIBUTES: &'static [&'static AttrDef] = &[&ANSWER];

    fn alloc(
        call: &Call<'_, TestDriver>,
        mappings: &mut Mappings<'_>,
        request: u64,
    ) -> Result<(impl PinInit<Self>, u64)> {
        call.data().note(Asked::Context(request));
        if request != MAPPABLE && request != MAPPABLE_BUT_REFUSED {
            return Ok((Object::new(call), !request));
        }
        let pages = UserPages::new(call, SHARED_PAGES * PAGE_SIZE)?;
        let pages = Arc::new(pages, GFP_KERNEL)?;
        *call.data().shared.lock() = Some(pages.clone());
        let length = DEVICE_PAGES * PAGE_SIZE;
        let mut bar = bindings::resource {
            start: DEVICE_MEMORY,
            end: DEVICE_MEMORY + length as PhysAddr - 1,
            flags: bindings::IORESOURCE_MEM as c_ulong,
            ..Default::default()
        };
        // SAFETY: The resource is valid. Nothing accesses its memory, which does not exist.
        let device = unsafe {
            let bar = crate::compat::resource_from_raw(&mut bar);
            DeviceMemory::new(bar, 0, length as u64)?
        };
        let offsets = Offsets {
            device: mappings.insert(call, device)?,
            shared: mappings.insert_pages(&pages)?,
        };
        if request == MAPPABLE_BUT_REFUSED {
            return Err(EBUSY);
        }
        Ok((Object::new(call), offsets.to_response()))
    }

    fn query(
        context: &Ucontext<Self>,
        _call: &Call<'_, TestDriver>,
        attributes: &AttrBundle<'_, TestDriver>,
    ) -> Result {
        attributes.put(&ANSWER, &u64::from(context.number))
    }

    fn dealloc(context: &Ucontext<Self>, _call: &Call<'_, TestDriver>) {
        context.destroy();
    }
}
