// SPDX-License-Identifier: GPL-2.0

//! Periodic checks that run as long as a device has a driver.

use core::mem::offset_of;

use kernel::{
    device,
    new_mutex,
    prelude::*,
    static_lock_class,
    sync::{
        Arc,
        LockClassKey,
        Mutex, //
    },
    time::msecs_to_jiffies,
    types::Opaque, //
};

use crate::{
    bindings,
    workqueue::Workqueue, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// The check of a [`Watchdog`].
pub trait Watch: Send + Sync + 'static {
    /// Runs the check. Returns the delay in milliseconds until the next one, if there must be one.
    /// Process context.
    fn check(&self) -> Option<u32>;
}

/// Runs a check repeatedly until it no longer asks for that, and whenever requested
/// ([`Virtqueues::watch`](super::Virtqueues::watch)).
///
/// No check starts after the watchdog is dropped. Dropping it does not wait for a running check,
/// because that check may wait for the thread that drops it, for example a handler, when it stops
/// the device. All checks have ended when the driver has released the device, even if the watchdog
/// was leaked. So no code of an unloaded driver runs.
pub struct Watchdog<W: Watch> {
    work: Arc<Work<W>>,
}

/// Work that can be ended.
trait End: Send + Sync {
    /// Ends the work: on return it does not run, and will not run again. Sleeps; must not be called
    /// by the work, for which it would wait.
    fn end(&self);
}

/// All watchdogs that a device with queues has had.
#[pin_data(PinnedDrop)]
pub(crate) struct Watchdogs {
    /// Their work, which can run until it is ended. [`None`] once no more can be added.
    #[pin]
    works: Mutex<Option<KVec<Arc<dyn End>>>>,
    /// Runs the checks. They may wait for handlers, so they need another thread than those.
    workqueue: Arc<Workqueue>,
}

impl Watchdogs {
    /// Creates an empty collection for `dev`.
    pub(crate) fn new(dev: &device::Device) -> Result<Arc<Self>> {
        Arc::pin_init(
            try_pin_init!(Self {
                works <- new_mutex!(Some(KVec::new()), "virtio::Watchdogs"),
                workqueue: Arc::new(Workqueue::for_reclaim(dev, c"watch")?, GFP_KERNEL)?,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Adds the work of a watchdog. `ENODEV` if no more can be added.
    fn add(&self, work: Arc<dyn End>) -> Result {
        let mut works = self.works.lock();
        let works: &mut Option<_> = &mut works;
        works.as_mut().ok_or(ENODEV)?.push(work, GFP_KERNEL)?;
        Ok(())
    }

    /// Ends all watchdogs. Sleeps; must not be called by a check.
    pub(crate) fn close(&self) {
        let works = self.works.lock().take();
        for work in works.iter().flatten() {
            work.end();
        }
    }
}

#[pinned_drop]
impl PinnedDrop for Watchdogs {
    fn drop(self: Pin<&mut Self>) {
        self.close();
    }
}

/// The work of a [`Watchdog`]. It uses C's work items instead of `workqueue::DelayedWork`, which
/// can be neither cancelled, waited for, nor brought forward.
///
/// # Invariants
///
/// - `work` was initialised with the function [`Self::callback`] when `self` was created.
/// - It is not freed while the work is queued or running: its [`Owner`] or [`Watchdogs`] end the
///   work, from another task, before they drop their reference. In particular, it does not free the
///   workqueue that it runs on, which would wait for it.
#[pin_data]
pub(crate) struct Work<W: Watch> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    /// The workqueue; [`None`] for the one of the system that waits while the machine suspends,
    /// sleeps and resumes.
    workqueue: Option<Arc<Workqueue>>,
    #[pin]
    pub(crate) watch: W,
}

// SAFETY: A `delayed_work` may be queued and cancelled by any thread; `W` is `Send`.
unsafe impl<W: Watch> Send for Work<W> {}

// SAFETY: Several threads may queue and cancel a `delayed_work` at the same time; `W` is `Sync`.
unsafe impl<W: Watch> Sync for Work<W> {}

/// Owner of a work, which ends the work when it is dropped.
pub(crate) struct Owner<W: Watch>(pub(crate) Arc<Work<W>>);

impl<W: Watch> Owner<W> {
    /// Ends the work: on return it does not run, and will not run again. Sleeps; must not be called
    /// by the work.
    pub(crate) fn end(&self) {
        self.0.end();
    }
}

impl<W: Watch> Drop for Owner<W> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<W: Watch> Work<W> {
    /// Creates a work that is not queued yet, and must be ended before it is dropped. Works that
    /// wait for each other need different lock classes.
    fn new(
        watch: impl PinInit<W>,
        workqueue: Option<Arc<Workqueue>>,
        class: Pin<&'static LockClassKey>,
    ) -> Result<Arc<Self>> {
        // One name for all types, because they share the timer's lock class, which lockdep
        // identifies by the name's address.
        static WORK: &CStr = c"virtio::Watchdog::work";
        static TIMER: &CStr = c"virtio::Watchdog::timer";

        Arc::pin_init(
            pin_init!(Self {
                work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                    // SAFETY: `slot` is valid for writes and not on a stack. The timer belongs to a
                    // `delayed_work`, as its function requires.
                    unsafe {
                        bindings::init_work_with_key(
                            &raw mut (*slot).work,
                            Some(Self::callback),
                            false,
                            WORK.as_char_ptr(),
                            class.as_ptr(),
                        );
                        bindings::timer_init_key(
                            &raw mut (*slot).timer,
                            Some(bindings::delayed_work_timer_fn),
                            bindings::TIMER_IRQSAFE,
                            TIMER.as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        );
                    }
                }),
                workqueue,
                watch <- watch,
            }),
            GFP_KERNEL,
        )
    }

    /// Creates a work that is not queued yet. It may end watchdogs, and add and remove devices: it
    /// does not run while the machine suspends, sleeps or resumes.
    pub(crate) fn owned(watch: impl PinInit<W>) -> Result<Owner<W>> {
        Self::new(watch, None, static_lock_class!()).map(Owner)
    }

    /// Runs the check after `delay_ms` milliseconds, replacing an earlier schedule. The check sees
    /// everything that happened before this call. May be called in any context.
    pub(crate) fn check_after(&self, delay_ms: u32) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::mod_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.queue(),
                self.work.get(),
                msecs_to_jiffies(delay_ms),
            )
        };
    }
}

impl<W: Watch> Watchdog<W> {
    /// Creates a watchdog that runs its check first after `delay_ms` milliseconds, and then
    /// whenever the previous check asked for, until it is dropped or all watchdogs are ended.
    pub(crate) fn new(all: &Arc<Watchdogs>, delay_ms: u32, watch: W) -> Result<Self> {
        let work = Work::new(watch, Some(all.workqueue.clone()), static_lock_class!())?;
        all.add(work.clone())?;
        // From here on `all` ends the work at the latest. If it has been ended already, this has no
        // effect.
        work.schedule(delay_ms);
        Ok(Self { work })
    }

    /// Runs the check as soon as possible: it sees everything that happened before this call. May
    /// be called in any context.
    pub fn check_now(&self) {
        self.work.check_after(0);
    }
}

impl<W: Watch> Drop for Watchdog<W> {
    fn drop(&mut self) {
        // SAFETY: The work is initialised, by the type invariant. It is not queued after this.
        unsafe { bindings::disable_delayed_work(self.work.work.get()) };
    }
}

impl<W: Watch> End for Work<W> {
    fn end(&self) {
        // SAFETY: The work is initialised, by the type invariant. On return it does not run, and is
        // not queued any more, even by its own function.
        unsafe { bindings::disable_delayed_work_sync(self.work.get()) };
    }
}

impl<W: Watch> Work<W> {
    /// Returns the workqueue on which the work runs.
    fn queue(&self) -> *mut bindings::workqueue_struct {
        match &self.workqueue {
            Some(workqueue) => workqueue.as_raw(),
            // SAFETY: The pointer is set once, before there are drivers.
            None => unsafe { bindings::system_freezable_wq },
        }
    }

    /// Queues the work with a delay of `delay_ms` milliseconds, unless it is already queued.
    fn schedule(&self, delay_ms: u32) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                self.queue(),
                self.work.get(),
                msecs_to_jiffies(delay_ms),
            )
        };
    }

    /// Runs the work item.
    ///
    /// # Safety
    ///
    /// `work` must be in the `work` of a [`Work`] which lives until this returns.
    unsafe extern "C" fn callback(work: *mut bindings::work_struct) {
        const OFFSET: usize = offset_of!(bindings::delayed_work, work);

        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe {
            let work = work.byte_sub(OFFSET);
            &*work.byte_sub(offset_of!(Self, work)).cast::<Self>()
        };
        if let Some(delay_ms) = this.watch.check() {
            this.schedule(delay_ms);
        }
    }
}
