// SPDX-License-Identifier: GPL-2.0

//! A process for tests: its memory, its open device, and its calls.

use core::{
    ops::Range,
    ptr::{
        self,
        NonNull, //
    }, //
};

use kernel::{
    bindings::{
        file,
        fput,
        kunit_attach_mm,
        vm_mmap,
        vm_munmap, //
    },
    error::{
        from_err_ptr,
        to_result, //
    },
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

use super::{
    driver::{
        Object,
        TestDriver, //
    },
    objects::{
        verb,
        CoreMemory, //
    }, //
};
use crate::{
    bindings,
    Device,
    Ucontext, //
};

/// A process that has the device open.
pub(crate) struct Process {
    pub(crate) memory: ProcessMemory,
    pub(crate) context: CoreMemory<bindings::ib_ucontext>,
    pub(crate) file: UverbsFile,
}

impl Process {
    /// Opens the device with the request 7.
    pub(crate) fn new(device: &Device<TestDriver>) -> Result<Self> {
        Self::open(device, 7, true)
    }

    /// Opens the device. The response can be written only if the last argument is `true`.
    pub(crate) fn open(
        device: &Device<TestDriver>,
        request: u64,
        can_be_answered: bool,
    ) -> Result<Self> {
        let memory = ProcessMemory::new(2)?;
        memory.write(request)?;
        let mut context = CoreMemory::<bindings::ib_ucontext>::new(Ucontext::<Object>::SIZE)?;
        let raw = context.as_raw();
        // SAFETY: The memory is not shared, and is constructed next. Tests unmap device memory
        // before they end.
        let file = unsafe {
            (*raw).device = device.as_raw();
            UverbsFile::new(raw)?
        };
        let mut call = UserCall::new(&memory, 8, raw)?;
        if !can_be_answered {
            call.lose_response();
        }
        file.call(|| to_result(verb!(device, alloc_ucontext(raw, call.udata()))))?;
        Ok(Self {
            memory,
            context,
            file,
        })
    }

    /// Creates a call of this process with a request. The response replaces the request.
    pub(crate) fn call(&mut self, request: u64) -> Result<UserCall> {
        self.memory.write(request)?;
        UserCall::new(&self.memory, 8, self.context.as_raw())
    }

    /// Creates a call without request or response.
    pub(crate) fn bare_call(&mut self) -> Result<UserCall> {
        UserCall::new(&self.memory, 0, self.context.as_raw())
    }

    pub(crate) fn end(mut self, device: &Device<TestDriver>) -> Result {
        let raw = self.context.as_raw();
        verb!(device, dealloc_ucontext(raw));
        // SAFETY: The memory is not shared.
        if unsafe { !(*raw).mmap_xa.xa_head.is_null() } {
            pr_err!("there is something left to map\n");
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// A call of a verb from the process that runs a test.
///
/// # Invariants
///
/// The memory starts with a bundle, which is followed by room for all attributes.
pub struct UserCall(CoreMemory<bindings::uverbs_attr_bundle>);

impl UserCall {
    /// Creates a call in `context`, which may be null. The driver's part of the request has
    /// `length` bytes at the start of `memory`. The response overwrites it.
    #[expect(
        clippy::not_unsafe_ptr_arg_deref,
        reason = "contexts of tests are there, and all calls of verbs are unsafe anyway"
    )]
    pub fn new(
        memory: &ProcessMemory,
        length: usize,
        context: *mut bindings::ib_ucontext,
    ) -> Result<Self> {
        // CAST: A small constant.
        const ATTRIBUTES: usize = bindings::uapi_radix_data_UVERBS_API_ATTR_BKEY_LEN as usize;

        let mut bundle = CoreMemory::<bindings::uverbs_attr_bundle>::new(
            size_of::<bindings::uverbs_attr_bundle>()
                + ATTRIBUTES * size_of::<bindings::uverbs_attr>(),
        )?;
        // SAFETY: All members of the union are plain data, initialised with zeroes.
        let call = unsafe { &mut (*bundle.as_raw()).__bindgen_anon_1.__bindgen_anon_1 };
        call.context = context;
        // SAFETY: A process has its device open (`UverbsFile`).
        call.ufile = unsafe { context.as_ref() }.map_or(ptr::null_mut(), |context| context.ufile);
        call.driver_udata.inbuf = memory.address() as *const c_void;
        call.driver_udata.outbuf = memory.address() as *mut c_void;
        call.driver_udata.inlen = length;
        call.driver_udata.outlen = length;
        // INVARIANT: Allocated above.
        Ok(Self(bundle))
    }

    /// Adds an attribute with `length` bytes at `address` of the process.
    pub fn set_attribute(&mut self, attribute: u32, address: u64, length: u16) {
        // SAFETY: There is room for all attributes, by the type invariant.
        unsafe { bindings::test_uverbs_set_attr(self.0.as_raw(), attribute, address, length) };
    }

    /// Adds an attribute with the object of a handle.
    pub fn set_object(&mut self, attribute: u32, handle: &mut bindings::ib_uobject) {
        // SAFETY: There is room for all attributes, by the type invariant.
        unsafe { bindings::test_uverbs_set_object(self.0.as_raw(), attribute, handle) };
    }

    /// Makes writing the response fail.
    pub fn lose_response(&mut self) {
        // SAFETY: All members of the union are plain data.
        let call = unsafe { &mut (*self.0.as_raw()).__bindgen_anon_1.__bindgen_anon_1 };
        call.driver_udata.outbuf = ptr::null_mut();
    }

    /// Returns the argument of verbs that take the call's attributes.
    pub fn attributes(&mut self) -> *mut bindings::uverbs_attr_bundle {
        self.0.as_raw()
    }

    /// Returns the argument of verbs that take the udata, as most do.
    pub fn udata(&mut self) -> *mut bindings::ib_udata {
        // SAFETY: All members of the union are plain data.
        unsafe {
            &raw mut (*self.0.as_raw())
                .__bindgen_anon_1
                .__bindgen_anon_1
                .driver_udata
        }
    }
}

/// Private memory of the process that runs a test. Each test has a thread and an address space of
/// its own.
pub struct ProcessMemory(u64);

impl ProcessMemory {
    /// Maps that many zeroed pages, readable and writable.
    pub fn new(pages: usize) -> Result<Self> {
        /// `MAP_PRIVATE | MAP_ANONYMOUS`
        const PRIVATE_AND_ANONYMOUS: c_ulong = 0x22;

        // SAFETY: There are no requirements for a mapping without a file.
        unsafe { Self::map(ptr::null_mut(), pages, PRIVATE_AND_ANONYMOUS, 0) }
    }

    /// Maps that many pages, readable and writable.
    ///
    /// # Safety
    ///
    /// `file` must be null for anonymous memory, or else valid.
    unsafe fn map(file: *mut file, pages: usize, flags: c_ulong, offset: u64) -> Result<Self> {
        /// `PROT_READ | PROT_WRITE`
        const READ_AND_WRITE: c_ulong = 3;

        // SAFETY: Called by the thread of a test.
        to_result(unsafe { kunit_attach_mm() })?;
        let length = pages * PAGE_SIZE;
        // SAFETY: The thread has an address space; the file is valid or null.
        let address = unsafe { vm_mmap(file, 0, length, READ_AND_WRITE, flags, offset as c_ulong) };
        Ok(Self(from_err_ptr(address as *mut c_void)? as u64))
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> u64 {
        self.0
    }

    /// Writes the word at the start of the memory.
    pub fn write(&self, word: u64) -> Result {
        self.user(size_of::<u64>()).writer().write(&word)
    }

    /// Reads the word at the start of the memory.
    pub fn read(&self) -> Result<u64> {
        self.user(size_of::<u64>()).reader().read()
    }

    /// Returns the first `length` bytes.
    pub fn user(&self, length: usize) -> UserSlice {
        UserSlice::new(UserPtr::from_addr(self.0 as usize), length)
    }

    /// Returns the memory from page `index` on.
    pub fn page(&self, index: usize) -> Self {
        Self(self.0 + (index * PAGE_SIZE) as u64)
    }

    /// Returns the physical address that is mapped here if the mapping is uncached.
    pub fn uncached(&self) -> Option<PhysAddr> {
        // SAFETY: The thread has an address space, since it has mapped something.
        let address = unsafe { bindings::test_uncached(self.0 as c_ulong) };
        (address != 0).then_some(address)
    }

    /// Returns the number of pages of the process that are pinned for devices.
    pub fn pinned(&self) -> u64 {
        // SAFETY: The thread has an address space, since it has mapped something.
        unsafe { bindings::test_pinned() }
    }

    /// Unmaps pages.
    pub fn unmap(&self, pages: Range<usize>) -> Result {
        let start = self.0 as usize + pages.start * PAGE_SIZE;
        // SAFETY: The address space belongs to this thread, and none of the process's code is
        // running.
        to_result(unsafe { vm_munmap(start as c_ulong, pages.len() * PAGE_SIZE) })
    }
}

/// The file through which a process has a device open.
///
/// # Invariants
///
/// The pointer is valid, and a reference is owned.
pub struct UverbsFile(NonNull<file>);

impl UverbsFile {
    /// Opens a device.
    ///
    /// # Safety
    ///
    /// `context` must be about to be constructed, with its device set. It must not be freed while
    /// its device memory is mapped, and nothing may be mapped before it is constructed.
    pub unsafe fn new(context: *mut bindings::ib_ucontext) -> Result<Self> {
        // INVARIANT: A new file, unless the pointer is null.
        // SAFETY: Guaranteed by the caller.
        let raw = unsafe { bindings::test_uverbs_open(context) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Calls `verb` like ib_uverbs: the device cannot be disassociated during the call.
    pub fn call<R>(&self, verb: impl FnOnce() -> R) -> R {
        // SAFETY: Valid by the type invariant.
        let index = unsafe { bindings::test_uverbs_lock(self.0.as_ptr()) };
        let result = verb();
        // SAFETY: As above; locked above.
        unsafe { bindings::test_uverbs_unlock(self.0.as_ptr(), index) };
        result
    }

    /// Maps that many pages at `offset` of the file as shared memory.
    pub fn map(&self, pages: usize, offset: u64) -> Result<ProcessMemory> {
        /// `MAP_SHARED`
        const SHARED: c_ulong = 1;

        // SAFETY: Valid by the type invariant.
        unsafe { ProcessMemory::map(self.0.as_ptr(), pages, SHARED, offset) }
    }

    /// Maps that many pages at `offset` of the file as private memory.
    pub fn map_private(&self, pages: usize, offset: u64) -> Result<ProcessMemory> {
        /// `MAP_PRIVATE`
        const PRIVATE: c_ulong = 2;

        // SAFETY: Valid by the type invariant.
        unsafe { ProcessMemory::map(self.0.as_ptr(), pages, PRIVATE, offset) }
    }
}

impl Drop for UverbsFile {
    fn drop(&mut self) {
        // SAFETY: Ours by the type invariant.
        unsafe { fput(self.0.as_ptr()) };
    }
}
