// SPDX-License-Identifier: GPL-2.0

//! Drivers of virtio devices.

use core::{
    mem::offset_of,
    ptr::fn_addr_eq, //
};

use kernel::{
    device::{
        self,
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
    sync::{
        static_lock_class,
        SpinLockIrq, //
    },
    types::Opaque, //
};

use crate::{
    bindings,
    compat,
    pci,
    queues,
    restart::{
        renegotiate,
        Locked,
        Restart,
        RestartPolicy,
        Restarter, //
    },
    watchdog::Owner,
    Device,
    Feature,
    IdTable, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A driver of virtio devices.
///
/// # Examples
///
// Text, because the compiler puts examples into a function, where a table of devices cannot be.
/// ```text
/// struct MyDriver;
///
/// virtio::virtio_device_table!(VIRTIO_TABLE, [virtio::DeviceId::new(42)]);
///
/// impl virtio::Driver for MyDriver {
///     type Data<'bound> = MyData<'bound>;
///     const ID_TABLE: virtio::IdTable = virtio::IdTable::new(&VIRTIO_TABLE);
///     const FEATURES: &'static [virtio::Feature] = &[];
///     const RESTARTS: virtio::RestartPolicy = virtio::RestartPolicy {
///         attempts: 3,
///         first_delay_ms: 1000,
///         settled_ms: 60_000,
///     };
///
///     fn probe<'bound>(
///         dev: &'bound virtio::Device<Core<'_>>,
///         restarter: virtio::Restarter,
///     ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
///         MyData::new(dev)
///     }
/// }
/// ```
pub trait Driver {
    /// The driver's data for a device.
    ///
    /// It exists while the device is bound to the driver, except when the device is taken from the
    /// driver for a while: when the machine suspends, when the transport resets the device, or when
    /// the driver [restarts](Restarter) the device. Afterwards the device is probed again.
    ///
    /// The value is dropped while the device still works. Its [`Virtqueues`](super::Virtqueues), if
    /// it has any, should be dropped last. Even if they are leaked, the device is reset and its
    /// queues are deleted by the time the driver has released the device.
    type Data<'bound>: Send + 'bound;

    /// The devices that the driver supports.
    const ID_TABLE: IdTable;

    /// The features of the device type that the driver understands.
    const FEATURES: &'static [Feature];

    /// When devices that failed are restarted.
    const RESTARTS: RestartPolicy;

    /// Binds to a device.
    ///
    /// Features have been negotiated. If this fails, the device is reset. `restarter` restarts the
    /// device if it fails later.
    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// Handles a change of the device's configuration or status.
    ///
    /// Called in interrupt context and with a spinlock held, at any time between the end of `probe`
    /// and the start of `unbind`.
    fn config_changed(dev: &Device<Bound>, this: Pin<&Self::Data<'_>>) {
        let _ = (dev, this);
    }

    /// Prepares for the removal of the device. The driver's private data is dropped next.
    fn unbind<'bound>(dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }

    /// Prepares for power-off or kexec. After this returns, the device is stopped for good, but the
    /// private data stays.
    fn shutdown<'bound>(dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }
}

/// The adapter's data for a device that is bound to a driver.
#[pin_data]
pub struct Bond<'bound, T: Driver> {
    /// The driver's data, while the driver has the device. Put in and taken out with the device
    /// lock held.
    #[pin]
    data: SpinLockIrq<Option<Pin<KBox<T::Data<'bound>>>>>,
    restarter: Restarter,
    restart: Owner<Restart>,
}

impl<'bound, T: Driver> Bond<'bound, T> {
    /// Probes the device.
    fn begin(&self, dev: &'bound Device<CoreInternal<'_>>) -> Result {
        let data = T::probe(dev, self.restarter.clone());
        let data = KBox::pin_init(data, GFP_KERNEL).inspect_err(|_| queues::delete_unbound(dev))?;
        *self.data.lock() = Some(data);
        Ok(())
    }

    /// Takes the device from the driver, if the driver has it.
    ///
    /// The driver core drops the data after `remove`. That is too late: dropping the data may need
    /// the device, and the virtio core requires that the device is reset when `remove` returns.
    fn end(&self, dev: &'bound Device<CoreInternal<'_>>) {
        let data = self.data.lock().take();
        if let Some(data) = data {
            T::unbind(dev, data.as_ref());
        }
        queues::delete_unbound(dev);
    }

    /// Returns the location of the data, for tests, which make sure that the data stays there.
    #[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
    pub(crate) fn data(&self) -> Option<core::ptr::NonNull<T::Data<'bound>>> {
        self.with_data(|data| data.into())
    }

    /// Calls `f` with the data, for tests, with a spinlock held.
    #[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
    pub(crate) fn with_data<R>(&self, f: impl FnOnce(&T::Data<'bound>) -> R) -> Option<R> {
        self.data.lock().as_ref().map(|data| f(data))
    }
}

/// A callback that the virtio core calls for a device.
type Callback = unsafe extern "C" fn(*mut bindings::virtio_device) -> c_int;

/// Connects a [`Driver`] to the virtio core.
pub struct Adapter<T: Driver>(T);

// SAFETY:
// - `bindings::virtio_driver` is a C type declared as `repr(C)`.
// - `Bond` is the type of the driver's device private data.
// - `struct virtio_driver` embeds a `struct device_driver` at this offset.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::virtio_driver;
    type DriverData<'bound> = Bond<'bound, T>;
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
            (*drv).freeze = Some(Self::suspend_callback);
            (*drv).restore = Some(Self::restore_callback);
            (*drv).reset_prepare = Some(Self::suspend_callback);
            (*drv).reset_done = Some(Self::reset_done_callback);
            (*drv).shutdown = Some(Self::shutdown_callback);
        }

        // SAFETY: `drv` has been filled in above and by the caller's contract stays valid until it
        // is unregistered.
        to_result(unsafe { bindings::__register_virtio_driver(drv, module.as_ptr()) })
    }

    unsafe fn unregister(reg: &Opaque<Self::DriverType>) {
        let drv = reg.get();

        // SAFETY: By the caller's contract, `reg` has been registered. From here on the driver
        // cannot be found.
        unsafe { bindings::unregister_virtio_driver(drv) };
        // SAFETY: This is the bus of all virtio devices, which the core set during registration.
        pci::wait_for_resets(unsafe { (*drv).driver.bus });
    }
}

impl<T: Driver> Adapter<T> {
    /// Returns whether a device is bound to a driver with the callback `this`, where `of` reads the
    /// callback of a driver. The device lock must be held.
    ///
    /// The transport looks up the driver of a device without the lock. By the time that the
    /// callback has the lock, the device may be bound to another driver, or to none. Two drivers
    /// with the same callback address have the same code, and thus the same type of data.
    fn is_bound(
        vdev: &Device<CoreInternal<'_>>,
        of: impl FnOnce(*mut bindings::virtio_driver) -> Option<Callback>,
        this: Callback,
    ) -> bool {
        // SAFETY: The device is valid, and the lock keeps its binding unchanged. Devices of this
        // bus are bound only to drivers of this bus.
        let driver = unsafe {
            let driver = (*vdev.as_raw()).dev.driver;
            if driver.is_null() {
                return false;
            }
            kernel::container_of!(driver, bindings::virtio_driver, driver)
        };
        of(driver).is_some_and(|callback| fn_addr_eq(callback, this))
    }

    /// Calls `f` while notifications of configuration changes to the driver are disabled. Changes
    /// in the meantime are reported afterwards.
    ///
    /// The virtio core disables them for `probe` and `remove`. But a reset by the transport that
    /// ends during one of these enables them again.
    fn undisturbed<R>(vdev: &Device<CoreInternal<'_>>, f: impl FnOnce() -> R) -> R {
        // SAFETY: The device is valid, and this is its driver.
        unsafe { bindings::virtio_config_driver_disable(vdev.as_raw()) };
        let result = f();
        // SAFETY: The device is valid, and notifications were disabled above.
        unsafe { bindings::virtio_config_driver_enable(vdev.as_raw()) };
        result
    }

    /// Drops the adapter's data for a device.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver or about to be, with its lock held. Only
    /// `config_changed_callback` may borrow the adapter's data.
    unsafe fn forget(vdev: &Device<CoreInternal<'_>>) {
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`, which is not borrowed.
        let take = || unsafe { compat::drvdata_obtain::<Bond<'_, T>>(vdev.as_ref()) };
        drop(Self::undisturbed(vdev, take));
    }

    /// Returns the adapter's data for a device; [`None`] if the device is not bound.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver, be about to be, or be unbound, and stay so during
    /// `'a`: its lock must be held.
    unsafe fn bond<'a, 'bound>(
        vdev: &'a Device<CoreInternal<'_>>,
    ) -> Option<Pin<&'a Bond<'bound, T>>> {
        let generic: &device::Device<CoreInternal<'_>> = vdev.as_ref();
        // SAFETY: The device is valid.
        let data = unsafe { bindings::dev_get_drvdata(compat::device_as_raw(generic)) };
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`, and `remove_callback`
        // cannot take it in the meantime, because it needs the lock.
        (!data.is_null()).then(|| unsafe { generic.drvdata_borrow::<Bond<'bound, T>>() })
    }

    /// Handles `probe` of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is about to be bound to this driver, and its lock held.
    unsafe extern "C" fn probe_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // One name for all drivers, because they share a lock class, which lockdep identifies by
        // the name's address.
        static DATA: &CStr = c"virtio::Bond::data";

        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        from_result(|| {
            // SAFETY: Dropping the bond ends the restarter: in `remove_callback`, or below.
            let (restarter, restart) = unsafe { Restarter::new(vdev, Self::reprobe, T::RESTARTS) }?;
            let bond = try_pin_init!(Bond::<'_, T> {
                data <- SpinLockIrq::new(None, DATA, static_lock_class!()),
                restarter,
                restart,
            }? Error);
            Self::undisturbed(vdev, || vdev.as_ref().set_drvdata(bond))?;
            // SAFETY: The lock is held.
            let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
            bond.begin(vdev).inspect_err(|_| {
                // SAFETY: Stored above, and no longer borrowed.
                unsafe { Self::forget(vdev) };
            })?;
            Ok(0)
        })
    }

    /// Handles `remove` of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that `probe_callback` succeeded for and that has not been
    /// removed since, and its lock held.
    unsafe extern "C" fn remove_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        // SAFETY: The lock is held.
        if let Some(bond) = unsafe { Self::bond(vdev) } {
            bond.restart.end();
            bond.end(vdev);
        }
        // SAFETY: The lock is held, which all other users of the data need.
        unsafe { Self::forget(vdev) };
    }

    /// Handles `freeze` and `reset_prepare` of the virtio core: the machine is about to suspend, or
    /// the transport is about to reset the device. The negotiated features stay the same.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device whose lock the caller does not hold. This code must not go
    /// away during the call, even though the device may meanwhile be bound to another driver or to
    /// none:
    ///
    /// - During suspend and resume of the machine, no process can remove a module.
    /// - Resetting a function holds the lock of the transport's device all the time, and
    ///   [`unregister`](driver::RegistrationOps::unregister) waits for that lock.
    unsafe extern "C" fn suspend_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };
        let _locked = Locked::new(vdev);

        // SAFETY: `of` is called with a valid driver.
        let of = |driver: *mut bindings::virtio_driver| unsafe { (*driver).reset_prepare };
        if !Self::is_bound(vdev, of, Self::suspend_callback) {
            return 0;
        }
        // SAFETY: The lock is held, and the device is bound to this driver.
        if let Some(bond) = unsafe { Self::bond(vdev) } {
            bond.restart.0.watch.suspend();
            bond.end(vdev);
        }
        0
    }

    /// Handles `restore` of the virtio core: the machine resumes.
    ///
    /// # Safety
    ///
    /// As for `suspend_callback`.
    unsafe extern "C" fn restore_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };
        let _locked = Locked::new(vdev);

        from_result(|| {
            // SAFETY: `of` is called with a valid driver.
            let of = |driver: *mut bindings::virtio_driver| unsafe { (*driver).restore };
            if !Self::is_bound(vdev, of, Self::restore_callback) {
                return Err(ENODEV);
            }
            // SAFETY: The lock is held, and the device is bound to this driver.
            let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
            // The core now sets DRIVER_OK, although the device has no queues. The probe resets it.
            bond.restarter.probe_after_sleep();
            Ok(0)
        })
    }

    /// Handles `reset_done` of the virtio core: the transport has reset the device.
    ///
    /// # Safety
    ///
    /// As for `suspend_callback`.
    unsafe extern "C" fn reset_done_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };
        let _locked = Locked::new(vdev);

        from_result(|| {
            // SAFETY: `of` is called with a valid driver.
            let of = |driver: *mut bindings::virtio_driver| unsafe { (*driver).reset_done };
            if !Self::is_bound(vdev, of, Self::reset_done_callback) {
                return Err(ENODEV);
            }
            // SAFETY: The lock is held, and the device is bound to this driver.
            let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
            bond.restart.0.watch.resume();
            let is_rebound = bond.data.lock().is_some();
            let result = if is_rebound {
                // The device was bound while the transport was resetting it, so it has forgotten
                // the driver.
                // SAFETY: The device is bound to this driver, and the lock is held.
                unsafe { Self::reprobe(vdev.as_raw()) }
            } else {
                bond.begin(vdev)
            };
            // Nobody else would try again.
            result.inspect_err(|_| bond.restarter.request())?;
            Ok(0)
        })
    }

    /// Handles `shutdown` of the virtio core: the machine is about to be powered off or to kexec.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is bound to this driver, and its lock held.
    unsafe extern "C" fn shutdown_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        // SAFETY: The lock is held.
        if let Some(bond) = unsafe { Self::bond(vdev) } {
            bond.restart.end();
            let data = bond.data.lock().take();
            if let Some(data) = data {
                T::shutdown(vdev, data.as_ref());
                *bond.data.lock() = Some(data);
            }
        }
        queues::stop_for_good(vdev);
    }

    /// Takes the device from the driver, and lets the driver probe it again.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver, and its lock held.
    unsafe fn reprobe(vdev: *mut bindings::virtio_device) -> Result {
        // SAFETY: Valid by the caller's contract. The device is bound for longer than the driver's
        // data exists.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        // SAFETY: The lock is held.
        let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
        // The virtio core does the same when it probes a device: configuration changes are reported
        // once the driver has the device, and the device is ready by then.
        Self::undisturbed(vdev, || {
            bond.end(vdev);
            renegotiate(vdev)?;
            bond.begin(vdev)?;
            if !vdev.raw_status().driver_ok() {
                // SAFETY: The device is valid, bound, and has not been told yet.
                unsafe { bindings::virtio_device_ready(vdev.as_raw()) };
            }
            Ok(())
        })
    }

    /// Handles `config_changed` of the virtio core, which found the driver under the lock of the
    /// device's configuration and still holds that lock.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is bound to this driver, was bound to it until now, or is
    /// about to be. The configuration lock must be held.
    unsafe extern "C" fn config_changed_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<BoundInternal>>() };
        let generic: &device::Device<BoundInternal> = vdev.as_ref();

        // SAFETY: The device is valid.
        if unsafe { bindings::dev_get_drvdata(compat::device_as_raw(generic)) }.is_null() {
            return;
        }
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`. It is taken only while
        // these notifications are disabled, and disabling them needs the configuration lock.
        let bond = unsafe { generic.drvdata_borrow::<Bond<'_, T>>() };
        // The data cannot be taken while the lock is held.
        let data = bond.data.lock();
        if let Some(data) = &*data {
            T::config_changed(vdev, data.as_ref());
        }
    }
}

/// Declares a kernel module that consists of a single virtio driver.
///
/// # Examples
///
// Text, because the compiler puts examples into a function, and a module is a crate.
/// ```text
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
