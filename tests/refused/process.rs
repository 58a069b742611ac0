// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What belongs to a process: only its own verbs can pin its memory, and only they have its
//! context, its buffers and its attributes.

#![forbid(unsafe_code)]

use core::ops::Range;

use driver::{
    Call,
    Driver,
    Object, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    access::AccessFlags,
    mmap::Mappings,
    odp::{
        AddressSpace,
        Memory,
        OnDemand,
        Pager, //
    },
    uapi::{
        AttrBundle,
        AttrDef, //
    },
    udata::{
        Caller,
        ProcessesAndKernel, //
    },
    umem::Buffer,
    Device,
    Mr,
    Ucontext,
    Umem,
    Unsupported,
    User,
    UserPages, //
};

/// Pins memory for a device that may be gone.
pub fn pin_for_device(call: &Call<'_>, device: &Device<Driver>) -> Result {
    let access = AccessFlags::default();
    Umem::get(call, 0, 4096, access)?;
    #[cfg(refused)]
    Umem::get(device, 0, 4096, access)?; //~ E0308
    Umem::get_dma_buf(call, 0, 0, 4096, access)?;
    #[cfg(refused)]
    Umem::get_dma_buf(device, 0, 0, 4096, access)?; //~ E0308
    UserPages::new(call, 4096)?;
    #[cfg(refused)]
    UserPages::new(device, 4096)?; //~ E0308
    AddressSpace::of_caller(call, access)?;
    #[cfg(refused)]
    AddressSpace::of_caller(device, access)?; //~ E0308
    Ok(())
}

/// Watches memory for a device that may be gone.
pub fn watch_for_device(
    call: &Call<'_>,
    device: &Device<Driver>,
    pager: Unsupported<Driver>,
) -> Result {
    let source = call;
    #[cfg(refused)]
    let source = device;
    OnDemand::new(source, 0, 4096, AccessFlags::default(), pager)?; //~ E0308
    Ok(())
}

/// A driver whose users are not only processes.
type Both = Driver<ProcessesAndKernel>;

/// Takes the kernel for a process.
pub fn process_of_kernel<'a>(
    user: Caller<Both, User<'a, Both, ()>>,
) -> Option<&'a Ucontext<Object<ProcessesAndKernel>>> {
    #[cfg(refused)]
    return Some(user.context); //~ E0609
    Some(user?.context)
}

/// Pins a buffer after the verb that names it.
pub fn keep_buffer(call: &Call<'_>, user: User<'_, Driver, (), Buffer<'_>>) -> Result {
    let memory = user.buffer.pin(0, 4096, AccessFlags::default())?;
    call.data().keep(memory);
    #[cfg(refused)]
    call.data().keep(user.buffer); //~ lifetime
    Ok(())
}

/// Keeps the context of a process without keeping it alive.
pub fn keep_context(call: &Call<'_>, user: User<'_, Driver, ()>) {
    #[cfg(refused)]
    call.data().keep(user.context); //~ lifetime
}

/// Adds memory to a context that may be gone.
pub fn keep_mappings(
    call: &Call<'_>,
    mappings: &mut Mappings<'_>,
    pages: &Arc<UserPages>,
) -> Result {
    mappings.insert_pages(pages)?;
    #[cfg(refused)]
    call.data().keep(mappings); //~ lifetime
    Ok(())
}

/// Keeps the object that an attribute names without keeping it alive.
pub fn keep_named(
    call: &Call<'_>,
    attributes: &AttrBundle<'_, Driver>,
    attribute: &AttrDef,
) -> Result {
    let _mr = attributes.named::<Mr<Object>>(attribute)?;
    #[cfg(refused)]
    call.data().keep(attributes.named::<Mr<Object>>(attribute)?); //~ lifetime
    Ok(())
}

/// Takes an object of another driver by its name.
pub fn named_of_other(attributes: &AttrBundle<'_, Driver>, attribute: &AttrDef) -> Result {
    #[cfg(refused)]
    attributes.named::<Mr<Object<ProcessesAndKernel>>>(attribute)?; //~ E0271
    attributes.named::<Mr<Object>>(attribute)?;
    Ok(())
}

/// Reads the attributes of a call that has returned.
pub fn keep_attributes(call: &Call<'_>, attributes: AttrBundle<'_, Driver>) {
    #[cfg(refused)]
    call.data().keep(attributes); //~ lifetime
}

/// Makes two lists of the same memory, for which there is room for one.
pub fn two_lists(mut memory: Umem) -> Result {
    let first = memory.pages(4096, 0)?;
    #[cfg(refused)]
    let _second = memory.pages(4096, 0)?; //~ E0499
    let _first = first.count();
    Ok(())
}

/// Walks through the pages of memory that is not pinned any more.
pub fn pages_after_unpin(mut memory: Umem) -> Result {
    let mut pages = memory.pages(4096, 0)?.iter();
    pages.next();
    #[cfg(refused)]
    drop(memory); //~ E0505
    pages.next();
    Ok(())
}

/// Keeps a word of pages that are mapped only for a moment.
pub fn word_after_unmap(pages: &UserPages) -> Result {
    pages.with_u32(0, |word| word.as_ptr().is_null())?;
    #[cfg(refused)]
    let _word = pages.with_u32(0, |word| word)?; //~ lifetime
    Ok(())
}

/// A pager that keeps what it may only borrow.
pub struct Keeper;

impl Pager for Keeper {
    fn forget(&self, _pages: Range<usize>) {}

    fn serve(&self, memory: &Memory<Self>) {
        driver::keep_forever(memory.pages());
        #[cfg(refused)]
        driver::keep_forever(memory); //~ E0521
    }
}

/// Looks at pages that the kernel may have taken back.
pub fn pages_after_map<P: Pager>(memory: &Memory<P>) -> Result {
    let mut kept = None;
    memory.map(0..1, true, true, |pages| {
        #[cfg(refused)]
        drop(kept.replace(pages)); //~ E0521
        #[cfg(not(refused))]
        drop(kept.replace(pages.next()));
        Ok(())
    })?;
    drop(kept);
    Ok(())
}
