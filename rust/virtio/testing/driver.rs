// SPDX-License-Identifier: GPL-2.0

//! A driver for tests, and a device bound to it.

use core::{
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicU32,
        Ordering::SeqCst, //
    }, //
};

use kernel::{
    device::{
        self,
        Bound,
        BoundInternal,
        Core, //
    },
    device_id::IdArray,
    driver,
    error::to_result,
    faux,
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    },
    ThisModule, //
};

use super::transport::{
    is_next,
    Transport,
    DEVICE_ID, //
};
use crate::{
    bindings,
    compat,
    driver::Bond,
    restart::Locked,
    Adapter,
    AnyVirtqueue,
    Chain,
    Deferral,
    Device,
    DeviceId,
    Driver,
    Feature,
    Handler,
    IdTable,
    RestartPolicy,
    Restarter,
    Virtqueue,
    Virtqueues, //
};

/// An action that a test lets a handler perform.
pub(crate) type Deed = Arc<dyn Fn() + Send + Sync>;

/// A handler that counts its calls.
#[pin_data]
pub(crate) struct Counted {
    /// Number of calls.
    pub(crate) calls: AtomicU32,
    /// Action of each call of `deferred`.
    #[pin]
    pub(crate) deferred: Mutex<Option<Deed>>,
    /// Action for each cancelled buffer.
    #[pin]
    pub(crate) cancelled: Mutex<Option<Deed>>,
}

impl Counted {
    /// Creates a handler without actions.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            calls: AtomicU32::new(0),
            deferred <- new_mutex!(None),
            cancelled <- new_mutex!(None),
        })
    }

    fn do_as_told(deed: &Mutex<Option<Deed>>) {
        let deed = deed.lock().clone();
        if let Some(deed) = deed {
            deed();
        }
    }
}

impl Handler for Counted {
    type Context = ();

    const DEFERRAL: Deferral = Deferral::Sleeping;

    fn used(&self, _queue: &Virtqueue<Self>) {
        self.calls.fetch_add(1, SeqCst);
    }

    /// Flushes the deferred handler, that is itself, during its first call.
    fn deferred(&self, queue: &Virtqueue<Self>) {
        if self.calls.fetch_add(1, SeqCst) == 0 {
            queue.flush_deferred();
        }
        Self::do_as_told(&self.deferred);
    }

    fn cancelled(&self, chain: KBox<Chain<()>>) {
        Self::do_as_told(&self.cancelled);
        drop(chain);
    }
}

/// The driver.
pub(crate) struct TestDriver;

/// The driver's data for a device.
#[pin_data]
pub(crate) struct Data<'bound> {
    /// Restarts the device.
    pub(crate) restarter: Restarter,
    /// A queue of the device.
    pub(crate) queue: Arc<Virtqueue<Counted>>,
    /// All queues of the device.
    #[pin]
    pub(crate) queues: Mutex<Option<Virtqueues<'bound>>>,
}

static TABLE: IdArray<DeviceId, (), 1> = IdArray::new_without_index([DeviceId::new(DEVICE_ID)]);

impl Driver for TestDriver {
    type Data<'bound> = Data<'bound>;

    const ID_TABLE: IdTable = IdTable::new(&TABLE);
    const FEATURES: &'static [Feature] = &[];
    const RESTARTS: RestartPolicy = RestartPolicy {
        attempts: 5,
        first_delay_ms: 10,
        settled_ms: 1000,
    };

    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let queue = Virtqueue::new(fmt!("test"), Counted::new())?;
            let mut all: KVec<Arc<dyn AnyVirtqueue>> = KVec::new();
            all.push(queue.clone(), GFP_KERNEL)?;
            let queues = Virtqueues::new(dev, all)?;
            // SAFETY: The driver is only bound to devices of this transport.
            let transport = unsafe { Transport::of(dev.as_raw()) };
            if !transport.leaves_ready.load(SeqCst) {
                queues.ready()?;
                queue
                    .add(Chain::new(KVec::new(), 8, (), GFP_KERNEL)?)
                    .map_err(|(error, _)| error)?;
            }
            if is_next(&transport.changes) {
                // SAFETY: The device is valid.
                unsafe { bindings::virtio_config_changed(dev.as_raw()) };
            }
            if is_next(&transport.asks) {
                restarter.request();
            }
            // SAFETY: Any task may query the work that it executes.
            let work = unsafe { bindings::current_work() };
            transport.probed_by_work.store(!work.is_null(), SeqCst);
            transport.probed.fetch_add(1, SeqCst);
            if is_next(&transport.fails) {
                return Err(EIO);
            }
            Ok(try_pin_init!(Data {
                restarter,
                queue,
                queues <- new_mutex!(Some(queues)),
            }? Error))
        })
    }

    fn config_changed(dev: &Device<Bound>, _this: Pin<&Self::Data<'_>>) {
        // SAFETY: The driver is only bound to devices of this transport.
        let transport = unsafe { Transport::of(dev.as_raw()) };
        transport.told.fetch_add(1, SeqCst);
    }

    fn unbind<'bound>(dev: &'bound Device<Core<'_>>, _this: Pin<&Self::Data<'bound>>) {
        let raw = dev.as_raw();
        // SAFETY: The driver is only bound to devices of this transport, and the device is valid.
        unsafe {
            if Transport::of(raw).changes_at_end.load(SeqCst) {
                // This happens when a reset ends at this time.
                (*raw).config_core_enabled = true;
                (*raw).config_change_pending = true;
            }
        }
    }
}

/// The module of the driver. Code that is built into the kernel has no `struct module`.
struct NoModule(ThisModule);

static MODULE: NoModule = NoModule(
    // SAFETY: A null pointer stands for code that is built in.
    unsafe { ThisModule::from_ptr(ptr::null_mut()) },
);

/// Registers the driver.
pub(crate) fn register() -> Result<Pin<KBox<driver::Registration<Adapter<TestDriver>>>>> {
    KBox::pin_init(
        driver::Registration::new(c"virtio-test", &MODULE.0),
        GFP_KERNEL,
    )
}

/// Calls `test` with a device that is bound to a driver, in a thread that does not hold the device
/// lock. Then unbinds the device and calls `after` to check the results.
pub(crate) fn with_device(
    test: impl FnOnce(&Device<Bound>, &Data<'_>, &Transport) -> Result,
    after: impl FnOnce(&Transport) -> Result,
) -> Result {
    with_bond(
        |bond| {
            // SAFETY: The driver keeps the device unless the test takes it away.
            let data = unsafe { bond.bond.data().ok_or(ENODEV)?.as_ref() };
            test(bond.dev, data, bond.transport)
        },
        after,
    )
}

/// A device that is bound to a driver, from the point of view of its transport.
pub(crate) struct Bonded<'a, 'bound> {
    /// The device.
    pub(crate) dev: &'a Device<Bound>,
    /// Its transport.
    pub(crate) transport: &'a Transport,
    bond: Pin<&'a Bond<'bound, TestDriver>>,
}

impl Bonded<'_, '_> {
    /// Returns the restarter of the device; [`None`] while the driver does not have the device.
    pub(crate) fn restarter(&self) -> Option<Restarter> {
        // The driver's data may go away at any time.
        self.bond.with_data(|data| data.restarter.clone())
    }

    /// Acts as a transport that is about to reset the device.
    pub(crate) fn reset_prepare(&self) -> Result {
        // SAFETY: The device is bound, and its lock not held.
        to_result(unsafe { bindings::virtio_device_reset_prepare(self.dev.as_raw()) })
    }

    /// Acts as a transport that has reset the device.
    pub(crate) fn reset_done(&self) -> Result {
        // SAFETY: As above.
        to_result(unsafe { bindings::virtio_device_reset_done(self.dev.as_raw()) })
    }

    /// Acts as a machine that sleeps and resumes, even in a kernel that cannot.
    pub(crate) fn sleep(&self) -> Result {
        let raw = self.dev.as_raw();
        // SAFETY: The device is bound to a driver of its bus, and its lock not held.
        unsafe {
            let driver = (*raw).dev.driver;
            let driver = kernel::container_of!(driver, bindings::virtio_driver, driver);
            for callback in [(*driver).freeze, (*driver).restore] {
                to_result(callback.ok_or(ENODEV)?(raw))?;
            }
        }
        Ok(())
    }

    /// Acts as a machine that is powered off.
    pub(crate) fn shutdown(&self) {
        let _locked = Locked::new(self.dev);
        // SAFETY: The device is bound, and its lock held.
        unsafe {
            let generic: &device::Device<Bound> = self.dev.as_ref();
            let bus = (*compat::device_as_raw(generic)).bus;
            if let Some(shutdown) = (*bus).shutdown {
                shutdown(compat::device_as_raw(generic));
            }
        }
    }
}

/// Like [`with_device`], for tests that take the device from its driver.
pub(crate) fn with_bond(
    test: impl FnOnce(&Bonded<'_, '_>) -> Result,
    after: impl FnOnce(&Transport) -> Result,
) -> Result {
    let driver = register()?;
    let parent = faux::Registration::new(c"virtio-test", None)?;
    let transport = KBox::new(Transport::new(), GFP_KERNEL)?;
    let transport = NonNull::from(KBox::leak(transport));
    let vdev: *mut bindings::virtio_device = transport.cast().as_ptr();
    let generic: &device::Device<Bound> = parent.as_ref().as_ref();
    // SAFETY: The device is ours and zeroed, and its parent outlives it. The reference taken here
    // is put below, so the device can still be accessed after it is unregistered.
    let registered = unsafe {
        (*vdev).dev.parent = compat::device_as_raw(generic);
        (*vdev).dev.release = Some(Transport::release);
        (*vdev).config = Transport::OPS;
        (*vdev).id.device = DEVICE_ID;
        let registered = to_result(bindings::register_virtio_device(vdev));
        bindings::get_device(&raw mut (*vdev).dev);
        registered
    };
    // SAFETY: As above.
    let transport = unsafe { transport.as_ref() };
    let result = registered.and_then(|()| {
        // SAFETY: The driver is bound, and only this function unbinds it. The bond is that of the
        // driver.
        let result = unsafe {
            let dev = &*vdev.cast::<Device<BoundInternal>>();
            let bond = dev.as_ref().drvdata_borrow::<Bond<'_, TestDriver>>();
            test(&Bonded {
                dev,
                transport,
                bond,
            })
        };
        // SAFETY: Registered above.
        unsafe { bindings::unregister_virtio_device(vdev) };
        result.and_then(|()| after(transport))
    });
    drop(driver);
    // SAFETY: Taken above.
    unsafe { bindings::put_device(&raw mut (*vdev).dev) };
    result
}
