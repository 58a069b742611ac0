// SPDX-License-Identifier: GPL-2.0

//! A virtio device: its features, status and configuration space.

use core::{
    marker::PhantomData,
    mem::{
        offset_of,
        MaybeUninit, //
    },
    ptr::NonNull, //
};

use kernel::{
    device::{
        self,
        Bound,
        DeviceContext,
        Normal, //
    },
    prelude::*,
    sync::aref::AlwaysRefCounted,
    types::Opaque, //
};

use crate::{
    bindings,
    compat,
    feature::Features,
    region::{
        self,
        Region, //
    }, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Device status field (virtio standard, section 2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(u8);

impl Status {
    /// Value of the register if the device is no longer present.
    const ALL_ONES: u8 = !0;

    /// Returns whether the device waits for a reset after an error from which it cannot recover.
    #[inline]
    pub fn needs_reset(self) -> bool {
        !self.is_gone() && u32::from(self.0) & bindings::VIRTIO_CONFIG_S_NEEDS_RESET != 0
    }

    /// Returns whether the driver has told the device that it is ready.
    #[inline]
    pub fn driver_ok(self) -> bool {
        u32::from(self.0) & bindings::VIRTIO_CONFIG_S_DRIVER_OK != 0
    }

    /// Returns whether the device accepted the features that the driver chose.
    pub(crate) fn features_ok(self) -> bool {
        !self.is_gone() && u32::from(self.0) & bindings::VIRTIO_CONFIG_S_FEATURES_OK != 0
    }

    /// Returns whether the device is reset.
    #[inline]
    pub fn is_reset(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the device has been removed, in which case all its registers read as ones.
    #[inline]
    pub fn is_gone(self) -> bool {
        self.0 == Self::ALL_ONES
    }

    /// Creates a status from the value of the field, for tests.
    #[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
    pub(crate) fn from_raw(raw: u8) -> Self {
        Self(raw)
    }
}

/// A virtio device (`struct virtio_device`).
///
/// # Invariants
///
/// A [`Device`] is a valid `struct virtio_device` created by the C portion of the kernel.
#[repr(transparent)]
pub struct Device<Ctx: DeviceContext = Normal>(Opaque<bindings::virtio_device>, PhantomData<Ctx>);

impl<Ctx: DeviceContext> Device<Ctx> {
    pub(crate) fn as_raw(&self) -> *mut bindings::virtio_device {
        self.0.get()
    }

    /// Reads the device status field.
    ///
    /// This is a register read, tens of microseconds in a virtual machine: not for hot paths.
    pub(crate) fn raw_status(&self) -> Status {
        // SAFETY: By the type invariant, `as_raw` is a valid device; its transport set `config`.
        Status(unsafe { bindings::virtio_get_status(self.as_raw()) })
    }
}

impl Device<Bound> {
    /// Returns the features that were negotiated, that is, offered by the device and accepted by
    /// the driver.
    #[inline]
    pub fn features(&self) -> Features {
        // SAFETY: The device is valid. The core set its features before it called the driver.
        Features::from_raw(unsafe { bindings::virtio_features(self.as_raw()) })
    }

    /// Reads the device status field.
    ///
    /// This is a register read, tens of microseconds in a virtual machine: not for hot paths.
    pub fn status(&self) -> Status {
        self.raw_status()
    }

    /// Finds the first structure of a kind that the device type adds to those of the transport
    /// (`cfg_type` of its capability on PCI), and reserves its memory.
    ///
    /// Returns [`None`] if the device has no such structure or the transport does not have this
    /// concept, `EINVAL` if the device describes memory that does not exist, and `EBUSY` if the
    /// memory is already reserved.
    pub fn region(&self, kind: u8) -> Result<Option<Region<'_>>> {
        Region::find(self, kind)
    }

    /// Reads the configuration space of the device from its start.
    ///
    /// The read is repeated if the device changes the configuration during it, so the result is
    /// consistent. May sleep. Returns `EINVAL` if the configuration is shorter, `EIO` if the device
    /// no longer responds, and `EOPNOTSUPP` if the transport does not report the length; only PCI
    /// does.
    pub fn read_config<T: FromBytes>(&self) -> Result<T> {
        // Transports trust their callers: a read beyond the end is a BUG or returns what happens to
        // be there, and without a configuration the transport calls a null pointer.
        if size_of::<T>() > region::config_length(self)? {
            return Err(EINVAL);
        }
        // SAFETY: The device is valid; its transport set `config`, which does not change.
        if unsafe { (*(*self.as_raw()).config).get }.is_none() {
            return Err(EINVAL);
        }
        let mut config = MaybeUninit::<T>::zeroed();

        // SAFETY: The device is valid, and its configuration is long enough; `config` is writable
        // for the size of `T`.
        unsafe {
            bindings::virtio_cread_bytes(
                self.as_raw(),
                0,
                config.as_mut_ptr().cast(),
                size_of::<T>(),
            )
        };
        if self.status().is_gone() {
            return Err(EIO);
        }
        // SAFETY: All bytes are initialised, and `T: FromBytes` is valid for any bytes.
        Ok(unsafe { config.assume_init() })
    }

    /// Returns the device of which this one is a function. It does the DMA, unless the transport
    /// maps memory in a way of its own (`struct virtio_map_ops`).
    #[inline]
    pub fn parent(&self) -> &device::Device<Bound> {
        // SAFETY: The device is valid. A transport creates a virtio device as the child of the
        // device it is bound to, keeps it so, and unregisters the child before it is unbound; so
        // the parent is bound for as long as the child is.
        unsafe { device::Device::from_raw((*self.as_raw()).dev.parent) }
    }
}

// SAFETY: `Device` is a transparent wrapper of `struct virtio_device`, in which `dev` is at this
// offset.
unsafe impl<Ctx: DeviceContext> device::AsBusDevice<Ctx> for Device<Ctx> {
    const OFFSET: usize = offset_of!(bindings::virtio_device, dev);
}

// SAFETY: `Device` is a transparent wrapper of a type that doesn't depend on `Device`'s generic
// argument.
kernel::impl_device_context_deref!(unsafe { Device });
kernel::impl_device_context_into_aref!(Device);

impl<Ctx: DeviceContext> AsRef<device::Device<Ctx>> for Device<Ctx> {
    fn as_ref(&self) -> &device::Device<Ctx> {
        // SAFETY: By the type invariant, `as_raw` is a valid device; the embedded device lives as
        // long.
        unsafe { device::Device::from_raw(&raw mut (*self.as_raw()).dev) }
    }
}

// SAFETY: Instances of `Device` are always reference-counted.
unsafe impl AlwaysRefCounted for Device {
    fn inc_ref(&self) {
        let dev: &device::Device = self.as_ref();
        // SAFETY: The existence of a shared reference guarantees that the refcount is non-zero.
        unsafe { bindings::get_device(compat::device_as_raw(dev)) };
    }

    unsafe fn dec_ref(obj: NonNull<Self>) {
        // SAFETY: The safety requirements guarantee that the refcount is non-zero.
        unsafe {
            bindings::put_device(&raw mut (*obj.cast::<bindings::virtio_device>().as_ptr()).dev)
        }
    }
}

// SAFETY: A `Device` is always reference-counted and can be released from any thread.
unsafe impl Send for Device {}

// SAFETY: `Device` can be shared among threads because all its methods are thread-safe.
unsafe impl Sync for Device {}

// SAFETY: Same as `Device<Normal>`: the underlying `struct virtio_device` is the same, and `Bound`
// is a zero-sized marker. Status, features and configuration may be read from any thread.
unsafe impl Sync for Device<Bound> {}
