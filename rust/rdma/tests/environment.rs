// SPDX-License-Identifier: GPL-2.0

//! What tests need of the rest of the kernel: a device, and memory and calls of a process.

use core::{
    marker::PhantomData,
    ops::Range,
    ptr::{
        self,
        NonNull, //
    },
    slice,
    sync::atomic::{
        AtomicU32,
        Ordering::Relaxed, //
    }, //
};

use kernel::{
    bindings::{
        __alloc_skb,
        device_dma_parameters,
        dma_set_mask,
        file,
        fput,
        kunit_attach_mm,
        sk_buff,
        sk_skb_reason_drop,
        skb_drop_reason_SKB_CONSUMED,
        vm_mmap,
        vm_munmap, //
    },
    device,
    error::{
        from_err_ptr,
        to_result, //
    },
    faux,
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*,
    str::CString,
    sync::Arc,
    time::{
        delay::fsleep,
        Delta, //
    },
    types::Opaque,
    uaccess::{
        UserPtr,
        UserSlice, //
    }, //
};

use crate::{
    bindings,
    dma::Mapper, //
};

/// A device that does DMA to all addresses.
pub struct DmaDevice {
    faux: faux::Registration,
    /// What the device has a pointer to.
    _parameters: KBox<device_dma_parameters>,
}

impl DmaDevice {
    /// Makes a device.
    pub fn new() -> Result<Self> {
        // A test that fails leaves its device behind.
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let name = CString::try_from_fmt(fmt!("rdma-test-{}", NEXT.fetch_add(1, Relaxed)))?;
        let mut parameters = KBox::new(device_dma_parameters::default(), GFP_KERNEL)?;
        let faux = faux::Registration::new(&name, None)?;
        let device: &device::Device<device::Bound> = faux.as_ref().as_ref();
        let device = crate::compat::device_as_raw(device);
        // SAFETY: The device is valid, and nobody else uses it. The parameters live as long.
        unsafe {
            (*device).dma_mask = &raw mut (*device).coherent_dma_mask;
            (*device).dma_parms = &raw mut *parameters;
            to_result(dma_set_mask(device, u64::MAX))?;
        }
        Ok(Self {
            faux,
            _parameters: parameters,
        })
    }

    /// The device.
    pub fn device(&self) -> &device::Device<device::Bound> {
        self.faux.as_ref().as_ref()
    }
}

/// An RDMA device that nobody registers.
///
/// # Invariants
///
/// The pointer is valid and owned; its DMA device lives as long.
pub struct TestDevice {
    raw: NonNull<bindings::ib_device>,
    dma_device: DmaDevice,
}

impl TestDevice {
    /// Makes a device.
    pub fn new() -> Result<Self> {
        let dma_device = DmaDevice::new()?;
        // SAFETY: The size is that of a device without a driver's part.
        unsafe {
            let size = size_of::<bindings::ib_device>();
            let raw = bindings::_ib_alloc_device(size, &raw mut bindings::init_net);
            let raw = NonNull::new(raw).ok_or(ENOMEM)?;
            (*raw.as_ptr()).dma_device = crate::compat::device_as_raw(dma_device.device());
            // INVARIANT: Just allocated; the fields are dropped after it is freed.
            Ok(Self { raw, dma_device })
        }
    }

    /// The C structure.
    pub fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.as_ptr()
    }

    /// What maps memory for it.
    pub(crate) fn mapper(&self) -> Result<Arc<Mapper>> {
        // SAFETY: The device is valid.
        unsafe { Mapper::new(self.as_raw(), self.dma_device()) }
    }

    /// What does the DMA.
    pub fn dma_device(&self) -> &device::Device<device::Bound> {
        self.dma_device.device()
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and never registered.
        unsafe { bindings::ib_dealloc_device(self.raw.as_ptr()) };
    }
}

/// A network device that loses all it is given.
///
/// # Invariants
///
/// The pointer is valid and owned, and the device registered.
pub struct Ethernet(NonNull<bindings::net_device>);

impl Ethernet {
    /// Registers a device with that permanent address.
    pub fn new(mac: &[u8; 6]) -> Result<Self> {
        // INVARIANT: It is registered, unless it is null.
        // SAFETY: The address has its six bytes.
        let raw = unsafe { bindings::test_netdev_add(mac.as_ptr()) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// The C structure.
    pub fn as_raw(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Brings it up, with a carrier.
    pub fn open(&self) -> Result {
        // SAFETY: Valid by the type invariant.
        to_result(unsafe { bindings::test_netdev_open(self.as_raw()) })
    }

    /// Changes the longest frame.
    pub fn set_mtu(&self, mtu: c_int) -> Result {
        // SAFETY: Valid by the type invariant.
        to_result(unsafe { bindings::test_netdev_set_mtu(self.as_raw(), mtu) })
    }

    /// Takes the carrier away.
    pub fn lose_carrier(&self) {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::test_netdev_carrier_off(self.as_raw()) };
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and registered. It waits for who has a reference.
        unsafe { bindings::test_netdev_remove(self.as_raw()) };
    }
}

/// Waits until `condition` holds, for as long as somebody might take who has to do something for
/// that.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> Result {
    for _ in 0..3000 {
        if condition() {
            return Ok(());
        }
        fsleep(Delta::from_millis(10));
    }
    Err(ETIMEDOUT)
}

/// Counts the events of a device's ports as long as it exists.
///
/// # Invariants
///
/// The handler is registered.
#[pin_data(PinnedDrop)]
pub struct PortEvents {
    #[pin]
    handler: Opaque<bindings::ib_event_handler>,
    /// Events `IB_EVENT_PORT_ACTIVE`.
    pub active: AtomicU32,
    /// Events `IB_EVENT_PORT_ERR`.
    pub error: AtomicU32,
}

impl PortEvents {
    /// Counts from now on.
    ///
    /// # Safety
    ///
    /// `device` must be registered as long as the result exists.
    pub unsafe fn new(device: *mut bindings::ib_device) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            handler: Opaque::new(bindings::ib_event_handler {
                device,
                handler: Some(Self::event_callback),
                ..Default::default()
            }),
            active: AtomicU32::new(0),
            error: AtomicU32::new(0),
            // SAFETY: All is initialised, pinned, and unregistered before it is dropped.
            _: { unsafe { bindings::ib_register_event_handler((*this.as_ptr()).handler.get()) } },
        })
    }

    /// # Safety
    ///
    /// `handler` must be that of a `Self`, and `event` valid.
    unsafe extern "C" fn event_callback(
        handler: *mut bindings::ib_event_handler,
        event: *mut bindings::ib_event,
    ) {
        // SAFETY: Guaranteed by the caller.
        let (this, event) = unsafe {
            (
                &*kernel::container_of!(Opaque::cast_from(handler), Self, handler),
                (*event).event,
            )
        };
        match event {
            bindings::ib_event_type_IB_EVENT_PORT_ACTIVE => this.active.fetch_add(1, Relaxed),
            bindings::ib_event_type_IB_EVENT_PORT_ERR => this.error.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// How often the port became active, and how often it ceased to be.
    pub fn count(&self) -> (u32, u32) {
        (self.active.load(Relaxed), self.error.load(Relaxed))
    }
}

#[pinned_drop]
impl PinnedDrop for PortEvents {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::ib_unregister_event_handler(self.handler.get()) };
    }
}

/// Zeroed memory for an object and the driver's part of it, as the core allocates it.
pub struct Memory<R>(KVec<u64>, PhantomData<R>);

impl<R> Memory<R> {
    /// Allocates so many bytes.
    pub fn new(size: usize) -> Result<Self> {
        let words = size.div_ceil(size_of::<u64>());
        Ok(Self(KVec::from_elem(0, words, GFP_KERNEL)?, PhantomData))
    }

    /// Allocates room for an `R`, all bytes of which are `byte`.
    pub fn poisoned(byte: u8) -> Result<Self> {
        let words = size_of::<R>().div_ceil(size_of::<u64>());
        let word = u64::from_ne_bytes([byte; 8]);
        Ok(Self(KVec::from_elem(word, words, GFP_KERNEL)?, PhantomData))
    }

    /// All bytes of the object at the beginning.
    pub fn bytes(&self) -> &[u8] {
        &self.0.as_bytes()[..size_of::<R>()]
    }

    /// The object at the beginning.
    pub fn as_raw(&mut self) -> *mut R {
        self.0.as_mut_ptr().cast()
    }
}

/// A netlink message, without anything in it.
pub struct Message(NonNull<sk_buff>);

impl Message {
    /// Allocates.
    pub fn new() -> Result<Self> {
        let flags = crate::compat::gfp_as_raw(GFP_KERNEL);
        // SAFETY: There is nothing to be valid.
        let raw = unsafe { __alloc_skb(256, flags, 0, -1) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// The C structure.
    pub fn as_raw(&self) -> *mut sk_buff {
        self.0.as_ptr()
    }

    /// What is in it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: What is in the message was written.
        unsafe {
            let raw = self.as_raw();
            slice::from_raw_parts((*raw).data.cast(), (*raw).len as usize)
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: Ours alone.
        unsafe { sk_skb_reason_drop(ptr::null(), self.as_raw(), skb_drop_reason_SKB_CONSUMED) };
    }
}

/// A verb that the process calls which runs a test.
///
/// # Invariants
///
/// The memory begins with a bundle, after which there is room for all attributes.
pub struct UserCall(Memory<bindings::uverbs_attr_bundle>);

impl UserCall {
    /// A call in `context`, which may be null. The driver's part of the request has so many bytes,
    /// at the beginning of `memory`, which those of the response replace.
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

        let mut bundle = Memory::<bindings::uverbs_attr_bundle>::new(
            size_of::<bindings::uverbs_attr_bundle>()
                + ATTRIBUTES * size_of::<bindings::uverbs_attr>(),
        )?;
        // SAFETY: All members of the union are plain data, and zero.
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

    /// Gives the call an attribute: so many bytes at `address` of the process.
    pub fn set_attribute(&mut self, attribute: u32, address: u64, length: u16) {
        // SAFETY: There is room for all attributes, by the type invariant.
        unsafe { bindings::test_uverbs_set_attr(self.0.as_raw(), attribute, address, length) };
    }

    /// Gives the call an attribute: the object of a handle.
    pub fn set_object(&mut self, attribute: u32, handle: &mut bindings::ib_uobject) {
        // SAFETY: There is room for all attributes, by the type invariant.
        unsafe { bindings::test_uverbs_set_object(self.0.as_raw(), attribute, handle) };
    }

    /// There is no memory any more where the response goes.
    pub fn lose_response(&mut self) {
        // SAFETY: All members of the union are plain data.
        let call = unsafe { &mut (*self.0.as_raw()).__bindgen_anon_1.__bindgen_anon_1 };
        call.driver_udata.outbuf = ptr::null_mut();
    }

    /// What a verb gets of the call, or rather of its attributes.
    pub fn attributes(&mut self) -> *mut bindings::uverbs_attr_bundle {
        self.0.as_raw()
    }

    /// What most verbs get of the call.
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

/// Private memory of the process that runs a test: each test has a thread of its own, and with this
/// an address space.
pub struct ProcessMemory(u64);

impl ProcessMemory {
    /// Maps so many pages, all zeros, that may be read and written.
    pub fn new(pages: usize) -> Result<Self> {
        /// `MAP_PRIVATE | MAP_ANONYMOUS`
        const PRIVATE_AND_ANONYMOUS: c_ulong = 0x22;

        // SAFETY: A mapping without a file needs no more.
        unsafe { Self::map(ptr::null_mut(), pages, PRIVATE_AND_ANONYMOUS, 0) }
    }

    /// Maps so many pages that may be read and written.
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

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.0
    }

    /// Writes a word at the beginning.
    pub fn write(&self, word: u64) -> Result {
        self.user(size_of::<u64>()).writer().write(&word)
    }

    /// Reads the word at the beginning.
    pub fn read(&self) -> Result<u64> {
        self.user(size_of::<u64>()).reader().read()
    }

    /// The first `length` bytes.
    pub fn user(&self, length: usize) -> UserSlice {
        UserSlice::new(UserPtr::from_addr(self.0 as usize), length)
    }

    /// The memory from that page on.
    pub fn page(&self, index: usize) -> Self {
        Self(self.0 + (index * PAGE_SIZE) as u64)
    }

    /// The physical address that is mapped here, uncached.
    pub fn uncached(&self) -> Option<PhysAddr> {
        // SAFETY: The thread has an address space, since it has mapped something.
        let address = unsafe { bindings::test_uncached(self.0 as c_ulong) };
        (address != 0).then_some(address)
    }

    /// Pages of the process that devices have pinned.
    pub fn pinned(&self) -> u64 {
        // SAFETY: The thread has an address space, since it has mapped something.
        unsafe { bindings::test_pinned() }
    }

    /// Takes pages away.
    pub fn unmap(&self, pages: Range<usize>) -> Result {
        let start = self.0 as usize + pages.start * PAGE_SIZE;
        // SAFETY: The address space is that of this thread, and nothing of it runs.
        to_result(unsafe { vm_munmap(start as c_ulong, pages.len() * PAGE_SIZE) })
    }
}

/// The file by which a process has a device open.
///
/// # Invariants
///
/// The pointer is valid and a reference is owned.
pub struct UverbsFile(NonNull<file>);

impl UverbsFile {
    /// Opens a device.
    ///
    /// # Safety
    ///
    /// `context` must be about to be constructed, and have its device. While its device memory is
    /// mapped it must not be freed, and nothing may be mapped before it is constructed.
    pub unsafe fn new(context: *mut bindings::ib_ucontext) -> Result<Self> {
        // INVARIANT: A new file, unless it is null.
        // SAFETY: By the requirements of this function.
        let raw = unsafe { bindings::test_uverbs_open(context) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Calls `verb` as ib_uverbs does: the device is not taken away meanwhile.
    pub fn call<R>(&self, verb: impl FnOnce() -> R) -> R {
        // SAFETY: Valid by the type invariant.
        let index = unsafe { bindings::test_uverbs_lock(self.0.as_ptr()) };
        let result = verb();
        // SAFETY: As above; locked above.
        unsafe { bindings::test_uverbs_unlock(self.0.as_ptr(), index) };
        result
    }

    /// Maps so many pages at `offset` of the file as memory that is shared.
    pub fn map(&self, pages: usize, offset: u64) -> Result<ProcessMemory> {
        /// `MAP_SHARED`
        const SHARED: c_ulong = 1;

        // SAFETY: Valid by the type invariant.
        unsafe { ProcessMemory::map(self.0.as_ptr(), pages, SHARED, offset) }
    }

    /// Maps so many pages at `offset` of the file as memory of this process alone.
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
