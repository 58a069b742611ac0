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
///         restarter: virtio::Restarter,
///     ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
///         MyData::new(dev)
///     }
/// }
/// ```
pub trait Driver {
    /// What the driver keeps for a device.
    ///
    /// It is there for as long as the device is bound to the driver, but for the times in which the
    /// device is not the driver's: the machine sleeps, the transport resets the device, or the
    /// driver [begins anew](Restarter). Afterwards the device is probed once more.
    ///
    /// The value is dropped while the device still works; its [`Virtqueues`](super::Virtqueues), if
    /// it has any, should be the last to go. Whatever becomes of them, the device has been reset
    /// and its queues are deleted when its driver has let it go.
    type Data<'bound>: Send + 'bound;

    /// The devices this driver is for.
    const ID_TABLE: IdTable;

    /// Features of the device type that the driver understands.
    const FEATURES: &'static [Feature];

    /// Takes over a device.
    ///
    /// Features have been negotiated. If this fails, the device is left reset. `restarter` is for
    /// the case that the device fails later.
    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// The device changed its configuration or its status.
    ///
    /// Called in interrupt context and with a spinlock held, at any time between the end of `probe`
    /// and the begin of `unbind`.
    fn config_changed(dev: &Device<Bound>, this: Pin<&Self::Data<'_>>) {
        let _ = (dev, this);
    }

    /// The device is about to be taken from the driver, whose private data is dropped next.
    fn unbind<'bound>(dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }

    /// The machine is about to be switched off, or to begin another kernel. When this returns the
    /// device is stopped for good; the private data stays.
    fn shutdown<'bound>(dev: &'bound Device<Core<'_>>, this: Pin<&Self::Data<'bound>>) {
        let _ = (dev, this);
    }
}

/// What the adapter keeps for a device that is bound to a driver.
#[pin_data]
pub struct Bond<'bound, T: Driver> {
    /// What the driver keeps, while the device is the driver's. Taken out and put in with the lock
    /// of the device held.
    #[pin]
    data: SpinLockIrq<Option<Pin<KBox<T::Data<'bound>>>>>,
    restarter: Restarter,
    restart: Owner<Restart>,
}

impl<'bound, T: Driver> Bond<'bound, T> {
    /// Has the driver take over the device.
    fn begin(&self, dev: &'bound Device<CoreInternal<'_>>) -> Result {
        let data = T::probe(dev, self.restarter.clone());
        let data = KBox::pin_init(data, GFP_KERNEL).inspect_err(|_| queues::delete_unbound(dev))?;
        *self.data.lock() = Some(data);
        Ok(())
    }

    /// Takes the device from the driver, if it is the driver's.
    ///
    /// The driver core would drop the data when it is unbound. That is too late: dropping it may
    /// need the device, and the virtio core wants the device reset on return.
    fn end(&self, dev: &'bound Device<CoreInternal<'_>>) {
        let data = self.data.lock().take();
        if let Some(data) = data {
            T::unbind(dev, data.as_ref());
        }
        queues::delete_unbound(dev);
    }

    /// Where the data is, for tests, which see to it that it stays there.
    #[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
    pub(crate) fn data(&self) -> Option<core::ptr::NonNull<T::Data<'bound>>> {
        self.with_data(|data| data.into())
    }

    /// Looks at the data, for tests, with a spinlock held.
    #[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
    pub(crate) fn with_data<R>(&self, f: impl FnOnce(&T::Data<'bound>) -> R) -> Option<R> {
        self.data.lock().as_ref().map(|data| f(data))
    }
}

/// What the virtio core calls for a device.
type Callback = unsafe extern "C" fn(*mut bindings::virtio_device) -> c_int;

/// Connects a [`Driver`] with the virtio core.
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
            (*drv).restore = Some(Self::resume_callback);
            (*drv).reset_prepare = Some(Self::suspend_callback);
            (*drv).reset_done = Some(Self::resume_callback);
            (*drv).shutdown = Some(Self::shutdown_callback);
        }

        // SAFETY: `drv` has been filled in above and by the caller's contract stays valid until it
        // is unregistered.
        to_result(unsafe { bindings::__register_virtio_driver(drv, module.as_ptr()) })
    }

    unsafe fn unregister(reg: &Opaque<Self::DriverType>) {
        let drv = reg.get();

        // SAFETY: By the caller's contract, `reg` has been registered. From here on nobody finds
        // the driver.
        unsafe { bindings::unregister_virtio_driver(drv) };
        // SAFETY: The bus is that of all virtio devices, which set it when the driver was
        // registered.
        pci::wait_for_resets(unsafe { (*drv).driver.bus });
    }
}

impl<T: Driver> Adapter<T> {
    /// Whether a device, whose lock must be held, is bound to a driver whose callback, as `of`
    /// finds it, is `this`.
    ///
    /// The transport looks for the driver of a device without the lock. When the callback that it
    /// has found gets the lock, the device may be bound to another driver, or to none. Two drivers
    /// with the same callback, by its address, have the same code, hence the same type of data.
    fn is_bound(
        vdev: &Device<CoreInternal<'_>>,
        of: impl FnOnce(*mut bindings::virtio_driver) -> Option<Callback>,
        this: Callback,
    ) -> bool {
        // SAFETY: The device is valid, and the lock keeps it bound, or not. Devices of this bus are
        // bound to drivers of this bus only.
        let driver = unsafe {
            let driver = (*vdev.as_raw()).dev.driver;
            if driver.is_null() {
                return false;
            }
            kernel::container_of!(driver, bindings::virtio_driver, driver)
        };
        of(driver).is_some_and(|callback| fn_addr_eq(callback, this))
    }

    /// Calls `f` at a time in which the driver is told of no change of the configuration; what
    /// changes meanwhile is told afterwards.
    ///
    /// The virtio core does so for `probe` and `remove`. But if these meet a reset by the
    /// transport, which allows it at its end, they are not undisturbed.
    fn undisturbed<R>(vdev: &Device<CoreInternal<'_>>, f: impl FnOnce() -> R) -> R {
        // SAFETY: The device is valid, and this is its driver.
        unsafe { bindings::virtio_config_driver_disable(vdev.as_raw()) };
        let result = f();
        // SAFETY: As above.
        unsafe { bindings::virtio_config_driver_enable(vdev.as_raw()) };
        result
    }

    /// Drops what is kept for a device.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver, or be about to be, and its lock held. Nobody may
    /// borrow what is kept but `config_changed_callback`.
    unsafe fn forget(vdev: &Device<CoreInternal<'_>>) {
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`, and nobody borrows it.
        let take = || unsafe { compat::drvdata_obtain::<Bond<'_, T>>(vdev.as_ref()) };
        drop(Self::undisturbed(vdev, take));
    }

    /// What is kept for a device. [`None`] if it is not bound.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver or to none, or be about to be, and stay so during
    /// `'a`: its lock must be held.
    unsafe fn bond<'a, 'bound>(
        vdev: &'a Device<CoreInternal<'_>>,
    ) -> Option<Pin<&'a Bond<'bound, T>>> {
        let generic: &device::Device<CoreInternal<'_>> = vdev.as_ref();
        // SAFETY: The device is valid.
        let data = unsafe { bindings::dev_get_drvdata(compat::device_as_raw(generic)) };
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`, and `remove_callback`
        // does not take it meanwhile: it would need the lock.
        (!data.is_null()).then(|| unsafe { generic.drvdata_borrow::<Bond<'bound, T>>() })
    }

    /// Entry of the virtio core.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is about to be bound to this driver, and its lock held.
    unsafe extern "C" fn probe_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // One for all drivers, as is the lock class: lockdep knows names by address.
        static DATA: &CStr = c"virtio::Bond::data";

        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        from_result(|| {
            // SAFETY: It is ended when the bond is dropped: by `remove_callback`, or below.
            let (restarter, restart) = unsafe { Restarter::new(vdev, Self::again) }?;
            let bond = try_pin_init!(Bond::<'_, T> {
                data <- SpinLockIrq::new(None, DATA, static_lock_class!()),
                restarter,
                restart,
            }? Error);
            Self::undisturbed(vdev, || vdev.as_ref().set_drvdata(bond))?;
            // SAFETY: The lock is held.
            let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
            bond.begin(vdev).inspect_err(|_| {
                // SAFETY: Stored above, and not borrowed any more.
                unsafe { Self::forget(vdev) };
            })?;
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

        // SAFETY: The lock is held.
        if let Some(bond) = unsafe { Self::bond(vdev) } {
            bond.restart.end();
            bond.end(vdev);
        }
        // SAFETY: The lock is held, which all others need.
        unsafe { Self::forget(vdev) };
    }

    /// Entry of the virtio core: the machine is about to sleep, or the transport to reset the
    /// device. The features that were negotiated stay the same.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device, whose lock is not held by the caller. This code must not go
    /// away meanwhile, though the device may be bound to another driver by now, or to none:
    ///
    /// - While a machine falls asleep, or wakes up, there is no process that could remove a module.
    /// - Whoever resets a function holds the lock of the transport's device all the time, for which
    ///   [`unregister`](driver::RegistrationOps::unregister) waits.
    unsafe extern "C" fn suspend_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };
        let _locked = Locked::new(vdev);

        // SAFETY: It is given a driver.
        let of = |driver: *mut bindings::virtio_driver| unsafe { (*driver).reset_prepare };
        if !Self::is_bound(vdev, of, Self::suspend_callback) {
            return 0;
        }
        // SAFETY: The lock is held, and the device bound to this driver.
        if let Some(bond) = unsafe { Self::bond(vdev) } {
            bond.restart.0.watch.suspend();
            bond.end(vdev);
        }
        0
    }

    /// Entry of the virtio core: the machine sleeps no more, or the transport has reset the device.
    ///
    /// # Safety
    ///
    /// As for `suspend_callback`.
    unsafe extern "C" fn resume_callback(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };
        let _locked = Locked::new(vdev);

        from_result(|| {
            // SAFETY: It is given a driver.
            let of = |driver: *mut bindings::virtio_driver| unsafe { (*driver).reset_done };
            if !Self::is_bound(vdev, of, Self::resume_callback) {
                return Err(ENODEV);
            }
            // SAFETY: The lock is held, and the device bound to this driver.
            let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
            bond.restart.0.watch.resume();
            let is_bound_anew = bond.data.lock().is_some();
            if is_bound_anew {
                // It was while the transport had the device, which has forgotten that.
                // SAFETY: As above.
                unsafe { Self::again(vdev.as_raw()) }?;
            } else {
                bond.begin(vdev)?;
            }
            Ok(0)
        })
    }

    /// Entry of the virtio core: the machine is about to be switched off, or to begin another
    /// kernel.
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

    /// Takes the device from the driver and gives it back.
    ///
    /// # Safety
    ///
    /// The device must be bound to this driver, and its lock held.
    unsafe fn again(vdev: *mut bindings::virtio_device) -> Result {
        // SAFETY: Valid by the caller's contract. It is bound for longer than the driver's data is
        // there.
        let vdev = unsafe { &*vdev.cast::<Device<CoreInternal<'_>>>() };

        // SAFETY: The lock is held.
        let bond = unsafe { Self::bond(vdev) }.ok_or(ENODEV)?;
        // What the virtio core does when it probes a device, too: changes of the configuration are
        // told when the driver has the device, which is ready then.
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

    /// Entry of the virtio core, which has found the driver, and calls it, with the lock of the
    /// device's configuration held.
    ///
    /// # Safety
    ///
    /// `vdev` must be a valid device that is bound to this driver, was so until now, or is about to
    /// be; that lock must be held.
    unsafe extern "C" fn config_changed_callback(vdev: *mut bindings::virtio_device) {
        // SAFETY: Valid by the caller's contract, and the device outlives the call.
        let vdev = unsafe { &*vdev.cast::<Device<BoundInternal>>() };
        let generic: &device::Device<BoundInternal> = vdev.as_ref();

        // SAFETY: The device is valid.
        if unsafe { bindings::dev_get_drvdata(compat::device_as_raw(generic)) }.is_null() {
            return;
        }
        // SAFETY: `probe_callback` has stored a `Pin<KBox<Bond<'_, T>>>`. It is taken with this
        // undisturbed, for which the lock of the configuration is needed.
        let bond = unsafe { generic.drvdata_borrow::<Bond<'_, T>>() };
        // Nobody takes the data while the lock is held.
        let data = bond.data.lock();
        if let Some(data) = &*data {
            T::config_changed(vdev, data.as_ref());
        }
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
