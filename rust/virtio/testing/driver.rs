// SPDX-License-Identifier: GPL-2.0

//! A driver for tests, and a device that is bound to it.

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
    Device,
    DeviceId,
    Driver,
    Feature,
    Handler,
    IdTable,
    Restarter,
    Virtqueue,
    Virtqueues, //
};

/// What a test has a handler do.
pub(crate) type Deed = Arc<dyn Fn() + Send + Sync>;

/// A handler that counts how often it is called.
#[pin_data]
pub(crate) struct Counted {
    /// How often.
    pub(crate) calls: AtomicU32,
    /// What is done in all that is deferred.
    #[pin]
    pub(crate) deferred: Mutex<Option<Deed>>,
    /// What is done for all buffers that are cancelled.
    #[pin]
    pub(crate) cancelled: Mutex<Option<Deed>>,
}

impl Counted {
    /// One that does nothing else.
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

    const DEFERS: bool = true;

    fn used(&self, _queue: &Virtqueue<Self>) {
        self.calls.fetch_add(1, SeqCst);
    }

    /// Comes back here at once, for the first time.
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

/// A driver.
pub(crate) struct TestDriver;

/// What it keeps for a device.
#[pin_data]
pub(crate) struct Data<'bound> {
    /// What begins anew with it.
    pub(crate) restarter: Restarter,
    /// A queue of the device.
    pub(crate) queue: Arc<Virtqueue<Counted>>,
    /// Its queues.
    #[pin]
    pub(crate) queues: Mutex<Option<Virtqueues<'bound>>>,
}

static TABLE: IdArray<DeviceId, (), 1> = IdArray::new_without_index([DeviceId::new(DEVICE_ID)]);

impl Driver for TestDriver {
    type Data<'bound> = Data<'bound>;

    const ID_TABLE: IdTable = &TABLE;
    const FEATURES: &'static [Feature] = &[];

    fn probe<'bound>(
        dev: &'bound Device<Core<'_>>,
        restarter: Restarter,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let queue = Virtqueue::new(fmt!("test"), Counted::new())?;
            let mut all: KVec<Arc<dyn AnyVirtqueue>> = KVec::new();
            all.push(queue.clone(), GFP_KERNEL)?;
            let queues = Virtqueues::new(dev, all)?;
            // SAFETY: The driver is bound to no other device.
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
        // SAFETY: The driver is bound to no other device.
        let transport = unsafe { Transport::of(dev.as_raw()) };
        transport.told.fetch_add(1, SeqCst);
    }

    fn unbind<'bound>(dev: &'bound Device<Core<'_>>, _this: Pin<&Self::Data<'bound>>) {
        let raw = dev.as_raw();
        // SAFETY: The driver is bound to no other device, which is valid.
        unsafe {
            if Transport::of(raw).changes_at_end.load(SeqCst) {
                // As when a reset ends at this time.
                (*raw).config_core_enabled = true;
                (*raw).config_change_pending = true;
            }
        }
    }
}

/// The module of the driver: that of what is in the kernel itself.
struct NoModule(ThisModule);

static MODULE: NoModule = NoModule(
    // SAFETY: There is none.
    unsafe { ThisModule::from_ptr(ptr::null_mut()) },
);

/// Registers the driver.
pub(crate) fn register() -> Result<Pin<KBox<driver::Registration<Adapter<TestDriver>>>>> {
    KBox::pin_init(
        driver::Registration::new(c"virtio-test", &MODULE.0),
        GFP_KERNEL,
    )
}

/// Calls `test` with a device that is bound to a driver, from a thread that does not have the
/// device's lock. On return it is unbound; `after` looks at what happened then.
pub(crate) fn with_device(
    test: impl FnOnce(&Device<Bound>, &Data<'_>, &Transport) -> Result,
    after: impl FnOnce(&Transport) -> Result,
) -> Result {
    with_bond(
        |bond| {
            // SAFETY: Nobody takes the device from the driver, as long as the test does not have
            // it done.
            let data = unsafe { bond.bond.data().ok_or(ENODEV)?.as_ref() };
            test(bond.dev, data, bond.transport)
        },
        after,
    )
}

/// A device that is bound to a driver, as its transport sees both.
pub(crate) struct Bonded<'a, 'bound> {
    /// The device.
    pub(crate) dev: &'a Device<Bound>,
    /// Its transport.
    pub(crate) transport: &'a Transport,
    bond: Pin<&'a Bond<'bound, TestDriver>>,
}

impl Bonded<'_, '_> {
    /// What begins anew with the device. [`None`] if the driver does not have it.
    pub(crate) fn restarter(&self) -> Option<Restarter> {
        // The driver's data may go at any time.
        self.bond.with_data(|data| data.restarter.clone())
    }

    /// The transport is about to reset the device.
    pub(crate) fn reset_prepare(&self) -> Result {
        // SAFETY: The device is bound, and its lock not held.
        to_result(unsafe { bindings::virtio_device_reset_prepare(self.dev.as_raw()) })
    }

    /// The transport has reset the device.
    pub(crate) fn reset_done(&self) -> Result {
        // SAFETY: As above.
        to_result(unsafe { bindings::virtio_device_reset_done(self.dev.as_raw()) })
    }

    /// The machine is switched off.
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

/// As [`with_device`], for tests that take the device from its driver.
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
    // SAFETY: The device is ours, and zeroed; its parent lives longer. What is taken here is given
    // back below, so that it can be looked at when it is gone for everybody else.
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
        // SAFETY: The driver is bound, and nobody unbinds it but this function. The bond is that of
        // the driver.
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
