// SPDX-License-Identifier: GPL-2.0

//! A transport without a bus: a device that has queues, never uses a buffer, and forgets all when
//! it is reset.

use core::{
    ptr::{
        self,
        NonNull, //
    },
    sync::atomic::{
        AtomicBool,
        AtomicU32,
        AtomicU8,
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
    types::Opaque,
    ThisModule, //
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

/// Type of the device: no standard has so many.
const DEVICE_ID: u32 = 0x7e57;

/// Entries of a queue.
const ENTRIES: c_uint = 8;

/// What is read of a device that is gone.
const GONE: u8 = 0xff;

/// Whether this is one of the next so many.
fn is_next(left: &AtomicU32) -> bool {
    left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1))
        .is_ok()
}

/// The device, and what its transport was asked for.
///
/// # Invariants
///
/// `vdev` is at offset 0.
#[repr(C)]
pub(super) struct Transport {
    vdev: Opaque<bindings::virtio_device>,
    status: AtomicU8,
    /// How often it will refuse the features that it offers.
    pub(super) refuses: AtomicU32,
    /// How many of the next probes fail at their end.
    pub(super) fails: AtomicU32,
    /// In how many of the next probes the driver asks for a new beginning.
    pub(super) asks: AtomicU32,
    /// How often it was probed.
    pub(super) probed: AtomicU32,
    /// Whether the driver leaves it to the virtio core to make the device ready.
    pub(super) leaves_ready: AtomicBool,
    /// In how many of the next probes the device changes its configuration.
    pub(super) changes: AtomicU32,
    /// Whether it does so when it is taken from its driver, and the virtio core tells that.
    pub(super) changes_at_end: AtomicBool,
    /// How often the driver was told of such changes.
    pub(super) told: AtomicU32,
    /// Whether the device goes away when its queues are deleted.
    pub(super) goes: AtomicBool,
    /// Whether it was reset though it had gone.
    pub(super) was_reset_in_vain: AtomicBool,
    /// How often queues were deleted.
    pub(super) deleted: AtomicU32,
    /// Whether the lock of the device was held then.
    pub(super) was_locked: AtomicBool,
}

impl Transport {
    const OPS: &'static bindings::virtio_config_ops = &bindings::virtio_config_ops {
        get_status: Some(Self::get_status),
        set_status: Some(Self::set_status),
        reset: Some(Self::reset),
        find_vqs: Some(Self::find_vqs),
        del_vqs: Some(Self::del_vqs),
        get_features: Some(Self::get_features),
        finalize_features: Some(Self::finalize_features),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// `vdev` must be that of a transport, which does not go away during `'a`.
    unsafe fn of<'a>(vdev: *mut bindings::virtio_device) -> &'a Self {
        // SAFETY: Guaranteed by the caller, and by the type invariant.
        unsafe { &*vdev.cast() }
    }

    /// The status of the device.
    pub(super) fn status(&self) -> u8 {
        self.status.load(SeqCst)
    }

    /// # Safety
    ///
    /// As for [`of`](Self::of), here and below.
    unsafe extern "C" fn get_status(vdev: *mut bindings::virtio_device) -> u8 {
        // SAFETY: Guaranteed by the caller.
        unsafe { Self::of(vdev) }.status()
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn set_status(vdev: *mut bindings::virtio_device, status: u8) {
        const FEATURES_OK: u8 = bindings::VIRTIO_CONFIG_S_FEATURES_OK as u8;

        // SAFETY: Guaranteed by the caller.
        let this = unsafe { Self::of(vdev) };
        if this.status() == GONE {
            return;
        }
        let accepts = status & FEATURES_OK == 0 || !is_next(&this.refuses);
        let refused = if accepts { 0 } else { FEATURES_OK };
        this.status.store(status & !refused, SeqCst);
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn reset(vdev: *mut bindings::virtio_device) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = Self::of(vdev);
            // That of PCI would wait for ever.
            this.was_reset_in_vain
                .fetch_or(this.status() == GONE, SeqCst);
            Self::set_status(vdev, 0);
        }
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn get_features(_vdev: *mut bindings::virtio_device) -> u64 {
        1 << Feature::VERSION_1.bit()
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn finalize_features(vdev: *mut bindings::virtio_device) -> c_int {
        // SAFETY: Guaranteed by the caller.
        unsafe { bindings::vring_transport_features(vdev) };
        0
    }

    /// # Safety
    ///
    /// As above, and both arrays must have `count` elements.
    unsafe extern "C" fn find_vqs(
        vdev: *mut bindings::virtio_device,
        count: c_uint,
        queues: *mut *mut bindings::virtqueue,
        infos: *mut bindings::virtqueue_info,
        _affinity: *mut bindings::irq_affinity,
    ) -> c_int {
        for index in 0..count {
            // SAFETY: Guaranteed by the caller.
            let queue = unsafe {
                let info = &*infos.add(index as usize);
                bindings::vring_create_virtqueue(
                    index,
                    ENTRIES,
                    4096,
                    vdev,
                    true,
                    true,
                    false,
                    Some(Self::notify),
                    info.callback,
                    info.name,
                )
            };
            if queue.is_null() {
                // SAFETY: As above.
                unsafe { Self::delete_all(vdev) };
                return ENOMEM.to_errno();
            }
            // SAFETY: As above.
            unsafe { *queues.add(index as usize) = queue };
        }
        0
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn notify(_queue: *mut bindings::virtqueue) -> bool {
        true
    }

    /// # Safety
    ///
    /// As above.
    unsafe extern "C" fn del_vqs(vdev: *mut bindings::virtio_device) {
        // SAFETY: Guaranteed by the caller; the device is valid.
        unsafe {
            let this = Self::of(vdev);
            this.deleted.fetch_add(1, SeqCst);
            let lock = &raw mut (*vdev).dev.mutex;
            this.was_locked
                .store(bindings::mutex_is_locked(lock), SeqCst);
            Self::delete_all(vdev);
            if this.goes.load(SeqCst) {
                this.status.store(GONE, SeqCst);
            }
        }
    }

    /// # Safety
    ///
    /// As above, and nobody may use the queues.
    unsafe fn delete_all(vdev: *mut bindings::virtio_device) {
        // SAFETY: The list is one of queues, each of which takes itself out.
        unsafe {
            let list = &raw mut (*vdev).vqs;
            loop {
                let next = (*list).next;
                if next == list {
                    break;
                }
                let queue = kernel::container_of!(next, bindings::virtqueue, list);
                bindings::vring_del_virtqueue(queue);
            }
        }
    }

    /// The device fails.
    pub(super) fn fail(&self) {
        const NEEDS_RESET: u8 = bindings::VIRTIO_CONFIG_S_NEEDS_RESET as u8;

        self.status.fetch_or(NEEDS_RESET, SeqCst);
    }

    /// The device is there again, and in reset: the virtio core warns of one that is not when its
    /// driver has let it go.
    pub(super) fn come_back(&self) {
        self.status.store(0, SeqCst);
    }

    /// The device interrupts for its first queue, though nobody asked for that.
    pub(super) fn interrupt(&self) {
        // SAFETY: The list is one of queues, whose callback takes its queue. No queue is deleted
        // meanwhile: it is the caller who does that.
        unsafe {
            let list = &raw mut (*self.vdev.get()).vqs;
            let queue = kernel::container_of!((*list).next, bindings::virtqueue, list);
            if let Some(callback) = (*queue).callback {
                callback(queue);
            }
        }
    }

    /// # Safety
    ///
    /// `dev` must be in a transport to which there are no references any more.
    unsafe extern "C" fn release(dev: *mut bindings::device) {
        // SAFETY: Guaranteed by the caller; `with_device` leaked the box.
        unsafe {
            let vdev = kernel::container_of!(dev, bindings::virtio_device, dev);
            drop(KBox::from_raw(vdev.cast::<Self>()));
        }
    }
}

/// A handler that counts how often it is called.
pub(super) struct Counted(pub(super) AtomicU32);

impl Handler for Counted {
    type Context = ();

    const DEFERS: bool = true;

    fn used(&self, _queue: &Virtqueue<Self>) {
        self.0.fetch_add(1, SeqCst);
    }

    /// Comes back here at once, for the first time.
    fn deferred(&self, queue: &Virtqueue<Self>) {
        if self.0.fetch_add(1, SeqCst) == 0 {
            queue.flush_deferred();
        }
    }
}

/// A driver.
pub(super) struct TestDriver;

/// What it keeps for a device.
#[pin_data]
pub(super) struct Data<'bound> {
    /// What begins anew with it.
    pub(super) restarter: Restarter,
    /// A queue of the device.
    pub(super) queue: Arc<Virtqueue<Counted>>,
    /// Its queues.
    #[pin]
    pub(super) queues: Mutex<Option<Virtqueues<'bound>>>,
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
            let handler = Counted(AtomicU32::new(0));
            let queue = Virtqueue::new(fmt!("test"), Ok::<_, Error>(handler))?;
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
pub(super) fn register() -> Result<Pin<KBox<driver::Registration<Adapter<TestDriver>>>>> {
    KBox::pin_init(
        driver::Registration::new(c"virtio-test", &MODULE.0),
        GFP_KERNEL,
    )
}

/// Calls `test` with a device that is bound to a driver, from a thread that does not have the
/// device's lock. On return it is unbound; `after` looks at what happened then.
pub(super) fn with_device(
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
pub(super) struct Bonded<'a, 'bound> {
    /// The device.
    pub(super) dev: &'a Device<Bound>,
    /// Its transport.
    pub(super) transport: &'a Transport,
    bond: Pin<&'a Bond<'bound, TestDriver>>,
}

impl Bonded<'_, '_> {
    /// What begins anew with the device. [`None`] if the driver does not have it.
    pub(super) fn restarter(&self) -> Option<Restarter> {
        // The driver's data may go at any time.
        self.bond.with_data(|data| data.restarter.clone())
    }

    /// The transport is about to reset the device.
    pub(super) fn reset_prepare(&self) -> Result {
        // SAFETY: The device is bound, and its lock not held.
        to_result(unsafe { bindings::virtio_device_reset_prepare(self.dev.as_raw()) })
    }

    /// The transport has reset the device.
    pub(super) fn reset_done(&self) -> Result {
        // SAFETY: As above.
        to_result(unsafe { bindings::virtio_device_reset_done(self.dev.as_raw()) })
    }

    /// The machine is switched off.
    pub(super) fn shutdown(&self) {
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
pub(super) fn with_bond(
    test: impl FnOnce(&Bonded<'_, '_>) -> Result,
    after: impl FnOnce(&Transport) -> Result,
) -> Result {
    let driver = register()?;
    let parent = faux::Registration::new(c"virtio-test", None)?;
    let transport = KBox::new(
        Transport {
            vdev: Opaque::zeroed(),
            status: AtomicU8::new(0),
            refuses: AtomicU32::new(0),
            fails: AtomicU32::new(0),
            asks: AtomicU32::new(0),
            probed: AtomicU32::new(0),
            leaves_ready: AtomicBool::new(false),
            changes: AtomicU32::new(0),
            changes_at_end: AtomicBool::new(false),
            told: AtomicU32::new(0),
            goes: AtomicBool::new(false),
            was_reset_in_vain: AtomicBool::new(false),
            deleted: AtomicU32::new(0),
            was_locked: AtomicBool::new(false),
        },
        GFP_KERNEL,
    )?;
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
