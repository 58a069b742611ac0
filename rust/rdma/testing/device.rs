// SPDX-License-Identifier: GPL-2.0

//! Devices for tests: an unregistered RDMA device, the device that does its DMA, and a network
//! device.

use core::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU32,
        Ordering::Relaxed, //
    }, //
};

use kernel::{
    bindings::{
        device_dma_parameters,
        dma_set_mask, //
    },
    device,
    error::to_result,
    faux,
    prelude::*,
    str::CString,
    sync::Arc,
    types::Opaque, //
};

use crate::{
    bindings,
    dma::{
        Mapper,
        Watched, //
    }, //
};

/// A device that can do DMA to all addresses.
pub struct DmaDevice {
    faux: faux::Registration,
    /// DMA parameters, to which the device points.
    _parameters: KBox<device_dma_parameters>,
}

impl DmaDevice {
    /// Creates a device.
    pub fn new() -> Result<Self> {
        // A failed test leaves its device behind, so names are not reused.
        static NEXT: AtomicU32 = AtomicU32::new(0);

        let name = CString::try_from_fmt(fmt!("rdma-test-{}", NEXT.fetch_add(1, Relaxed)))?;
        let mut parameters = KBox::new(device_dma_parameters::default(), GFP_KERNEL)?;
        let faux = faux::Registration::new(&name, None)?;
        let device: &device::Device<device::Bound> = faux.as_ref().as_ref();
        let device = crate::compat::device_as_raw(device);
        // SAFETY: The device is valid and not shared, and the parameters live as long as the
        // device.
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

    /// Returns the device.
    pub fn device(&self) -> &device::Device<device::Bound> {
        self.faux.as_ref().as_ref()
    }
}

/// An RDMA device that is never registered.
///
/// # Invariants
///
/// The pointer is valid and owned; the DMA device lives at least as long.
pub struct TestDevice {
    raw: NonNull<bindings::ib_device>,
    dma_device: DmaDevice,
}

impl TestDevice {
    /// Creates a device.
    pub fn new() -> Result<Self> {
        let dma_device = DmaDevice::new()?;
        // SAFETY: The size is that of a device without driver data.
        unsafe {
            let size = size_of::<bindings::ib_device>();
            let raw = bindings::_ib_alloc_device(size, &raw mut bindings::init_net);
            let raw = NonNull::new(raw).ok_or(ENOMEM)?;
            (*raw.as_ptr()).dma_device = crate::compat::device_as_raw(dma_device.device());
            // INVARIANT: Just allocated; the fields are dropped after it is freed.
            Ok(Self { raw, dma_device })
        }
    }

    /// Returns the C structure.
    pub fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.as_ptr()
    }

    /// Returns a new mapper for the device.
    pub(crate) fn mapper(&self) -> Result<Arc<Mapper>> {
        self.mapper_with(Watched::new())
    }

    /// Returns a new mapper for the device, with a limit of its on-demand memory.
    pub(crate) fn mapper_with(&self, watched: Watched) -> Result<Arc<Mapper>> {
        // SAFETY: The device is valid.
        unsafe { Mapper::new(self.as_raw(), self.dma_device(), watched) }
    }

    /// Returns the device that does the DMA.
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

/// A network device that drops all packets.
///
/// # Invariants
///
/// The pointer is valid and owned, and the device is registered.
pub struct Ethernet(NonNull<bindings::net_device>);

impl Ethernet {
    /// Registers a device with this permanent MAC address.
    pub fn new(mac: &[u8; 6]) -> Result<Self> {
        Self::add(mac, false)
    }

    /// Like [`new`](Self::new), for a device on top of another.
    pub fn stacked(mac: &[u8; 6]) -> Result<Self> {
        Self::add(mac, true)
    }

    fn add(mac: &[u8; 6], stacked: bool) -> Result<Self> {
        // INVARIANT: The device is registered, unless the pointer is null.
        // SAFETY: The address has six bytes.
        let raw = unsafe { bindings::test_netdev_add(mac.as_ptr(), stacked) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Returns the C structure.
    pub fn as_raw(&self) -> *mut bindings::net_device {
        self.0.as_ptr()
    }

    /// Brings the device up, with a carrier.
    pub fn open(&self) -> Result {
        // SAFETY: Valid by the type invariant.
        to_result(unsafe { bindings::test_netdev_open(self.as_raw()) })
    }

    /// Changes the MTU.
    pub fn set_mtu(&self, mtu: c_int) -> Result {
        // SAFETY: Valid by the type invariant.
        to_result(unsafe { bindings::test_netdev_set_mtu(self.as_raw(), mtu) })
    }

    /// Turns the carrier off.
    pub fn lose_carrier(&self) {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::test_netdev_carrier_off(self.as_raw()) };
    }
}

impl Drop for Ethernet {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant, and registered. This waits for all references to be
        // dropped.
        unsafe { bindings::test_netdev_remove(self.as_raw()) };
    }
}

/// Counter of the events of a device and its ports, which counts as long as it exists.
///
/// # Invariants
///
/// The handler is registered.
#[pin_data(PinnedDrop)]
pub struct DeviceEvents {
    #[pin]
    handler: Opaque<bindings::ib_event_handler>,
    /// Number of `IB_EVENT_PORT_ACTIVE` events.
    pub active: AtomicU32,
    /// Number of `IB_EVENT_PORT_ERR` events.
    pub error: AtomicU32,
    /// Number of `IB_EVENT_DEVICE_FATAL` events.
    pub fatal: AtomicU32,
}

impl DeviceEvents {
    /// Starts counting.
    ///
    /// # Safety
    ///
    /// `device` must be valid as long as the result exists.
    pub unsafe fn new(device: *mut bindings::ib_device) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            handler: Opaque::new(bindings::ib_event_handler {
                device,
                handler: Some(Self::event_callback),
                ..Default::default()
            }),
            active: AtomicU32::new(0),
            error: AtomicU32::new(0),
            fatal: AtomicU32::new(0),
            // SAFETY: The handler is initialised and pinned, and is unregistered before it is
            // dropped.
            _: { unsafe { bindings::ib_register_event_handler((*this.as_ptr()).handler.get()) } },
        })
    }

    /// # Safety
    ///
    /// `handler` must be the handler of a `Self`, and `event` valid.
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
            bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => this.fatal.fetch_add(1, Relaxed),
            _ => 0,
        };
    }

    /// Returns how often the port became active, and how often it became inactive.
    pub fn count(&self) -> (u32, u32) {
        (self.active.load(Relaxed), self.error.load(Relaxed))
    }
}

#[pinned_drop]
impl PinnedDrop for DeviceEvents {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant.
        unsafe { bindings::ib_unregister_event_handler(self.handler.get()) };
    }
}
