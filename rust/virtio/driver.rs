// SPDX-License-Identifier: GPL-2.0

//! Drivers of virtio devices.

use core::mem::offset_of;

use kernel::{
    device::{
        Bound,
        BoundInternal,
        Core,
        CoreInternal, //
    },
    driver,
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    types::Opaque, //
};

use crate::{
    bindings,
    compat,
    queues,
    Device,
    Feature,
    IdTable, //
};

/// A driver of virtio devices.
///
/// # Examples
///
/// ```ignore
/// struct MyDriver;
///
/// virtio::virtio_device_table!(VIRTIO_TABLE, [virtio::DeviceId::new(42)]);
///
/// impl virtio::Driver for MyDriver {
///     type Data<'bound> = MyData<'bound>;
///     const ID_TABLE: virtio::IdTable = &VIRTIO_TABLE;
///     const FEATURES: &'static [virtio::Feature] = &[];
///
///     fn probe<'bound>(
///         dev: &'bound virtio::Device<Core<'_>>,
///     ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
///         MyData::new(dev)
///     }
/// }
/// ```
pub trait Driver {
    /// What the driver keeps for a device while it is bound to it.
    ///
    /// The value is dropped while the device still works; its [`Virtqueues`](crate::Virtqueues), if
    /// it has any, should be the last to go. Whatever becomes of them, the device has been reset
    /// and its queues are deleted when its driver has let it go.
    type Data<'bound>: Send + 'bound;

    /// The devices this driver is for.
    const ID_TABLE: IdTable;

    /// Features of the device type that the driver understands.
    const FEATURES: &'static [Feature];

    /// Takes over a device.
    ///
    /// Features have been negotiated. If this fails, the device is left reset.
    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// The device changed its configuration or its status.
    ///
    /// Called in interrupt context, at any time between the end of `probe` and the begin of
    /// `unbind`.
    fn config_changed(dev: &Device<Bound>, this: Pin<&Self::Data<'_>>) {
        let _ = (dev, this);
    }

    /// The device is about to be taken from the driver, whose private data is dropped next.
    fn unbind<'bound>(dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }
}

/// Connects a [`Driver`] with the virtio core.
pub struct Adapter<T: Driver>(T);

// SAFETY:
// - `bindings::virtio_driver` is a C type declared as `repr(C)`.
// - `T::Data` is the type of the driver's device private data.
// - `struct virtio_driver` embeds a `struct device_driver` at this offset.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::virtio_driver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = offset_of!(Self::DriverType, driver);
}

// SAFETY: A call to `unregister` for an instance of `DriverType` is valid after a call to
// `register` has been successful.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        reg: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        let drv = reg.get();

        // SAFETY: It is safe to set the fields of `struct virtio_driver` before it is registered.
        // `Feature` is a transparent wrapper of the `unsigned int` of the feature table.
        unsafe {
            (*drv).driver.name = name.as_char_ptr();
            (*drv).id_table = T::ID_TABLE.as_ptr();
            (*drv).feature_table = T::FEATURES.as_ptr().cast();
            (*drv).feature_table_size = T::FEATURES.len().try_into()?;
            (*drv).probe = Some(Self::probe_callback);
            (*drv).remove = Some(Self::remove_callback);
            (*drv).config_changed = Some(Self::config_changed_callback);
            (*drv).freeze = Some(freeze_callback);
        }

        // SAFETY: `drv` has been filled in above and by the caller's contract stays valid until it
        // is unregistered.
        to_result(unsafe { bindings::__register_virtio_driver(drv, module.as_ptr()) })
    }

    unsafe fn unregister(reg: &Opaque<Self::DriverType>) {
        // SAFETY: By the caller's contract, `reg` has been registered.
        unsafe { bindings::unregister_virtio_driver(reg.get()) }
    }
}

/// Refuses to let the machine sleep: the device would be reset, and forget what its driver has told
/// it, which no driver can bring back without help by its users.
///
/// # Safety
///
/// There are no requirements; the type of the function pointer is unsafe.
unsafe extern "C" fn freeze_callback(_vdev: *mut bindings::virtio_device) -> c_int {
    EOPNOTSUPP.to_errno()
}

impl<T: Driver> Adapter<T> {
    /// Entry of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is about to be bound to this driver, and its lock held.
    unsafe extern "C" fn probe_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        from_result(|| {
            vdev.as_ref()
                .set_drvdata(T::probe(vdev))
                .inspect_err(|_| queues::delete_unbound(vdev))?;
            Ok(0)
        })
    }

    /// Entry of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that `probe_callback` succeeded for and that has not been
    /// removed since, and its lock held.
    unsafe extern "C" fn remove_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        // SAFETY: `probe_callback` has succeeded, hence stored a `Pin<KBox<T::Data<'_>>>`.
        T::unbind(vdev, unsafe {
            vdev.as_ref().drvdata_borrow::<T::Data<'_>>()
        });

        // The driver core would drop the data after this function has returned. That is too late:
        // dropping it may need the device, and the virtio core wants the device reset on return.
        //
        // SAFETY: As above; nobody else borrows the data: `config_changed` is disabled before
        // `remove` is called.
        drop(unsafe { compat::drvdata_obtain::<T::Data<'_>>(vdev.as_ref()) });
        queues::delete_unbound(vdev);
    }

    /// Entry of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that `probe_callback` succeeded for, and `remove_callback`
    /// must not be called until this returns.
    unsafe extern "C" fn config_changed_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<BoundInternal>>() };

        // SAFETY: `probe_callback` has stored a `Pin<KBox<T::Data<'_>>>`, and `remove_callback`
        // does not take it meanwhile.
        T::config_changed(vdev, unsafe {
            vdev.as_ref().drvdata_borrow::<T::Data<'_>>()
        });
    }
}

/// Declares a kernel module that is a single virtio driver.
///
/// # Examples
///
/// ```ignore
/// virtio::module_virtio_driver! {
///     type: MyDriver,
///     name: "my_driver",
///     authors: ["Author name"],
///     description: "Description",
///     license: "GPL",
/// }
/// ```
#[macro_export]
macro_rules! module_virtio_driver {
    ($($f:tt)*) => {
        ::kernel::module_driver!(<T>, $crate::Adapter<T>, { $($f)* });
    };
}
