// SPDX-License-Identifier: GPL-2.0

//! Something that is looked at from time to time, as long as its device has a driver.

use core::mem::{
    offset_of,
    ManuallyDrop, //
};

use kernel::{
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

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// What a [`Watchdog`] does.
pub trait Watch: Send + Sync + 'static {
    /// Whether looks wait while the machine is asleep, or on its way there or back. A look that
    /// adds or removes devices must.
    const SLEEPS_WITH_MACHINE: bool = false;

    /// Looks, and returns after how many milliseconds to look again, if at all. Process context.
    fn look(&self) -> Option<u32>;
}

/// Looks at something again and again until there is no need to, and whenever it is asked to
/// ([`Virtqueues::watch`](super::Virtqueues::watch)).
///
/// Once it is dropped, no look begins. One that is under way is not waited for, since it may wait
/// for whoever drops this, as for a handler when it stops the device. All looks have ended when the
/// driver has let the device go, also of one that is forgotten: so no code of a driver that is gone
/// runs.
pub struct Watchdog<W: Watch> {
    work: Arc<Work<W>>,
}

/// What is not to run any more at the end.
trait End: Send + Sync {
    /// On return it does not run, and will not. Sleeps.
    fn end(&self);
}

/// All watchdogs that a device with queues has had.
#[pin_data(PinnedDrop)]
pub(crate) struct Watchdogs {
    /// Their works, which run until they are ended. [`None`] when there can be no more.
    #[pin]
    works: Mutex<Option<KVec<Arc<dyn End>>>>,
}

impl Watchdogs {
    /// None yet.
    pub(crate) fn new() -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                works <- new_mutex!(Some(KVec::new()), "virtio::Watchdogs"),
            }),
            GFP_KERNEL,
        )
    }

    /// `ENODEV` if there can be no more.
    fn add(&self, work: Arc<dyn End>) -> Result {
        let mut works = self.works.lock();
        let works: &mut Option<_> = &mut works;
        works.as_mut().ok_or(ENODEV)?.push(work, GFP_KERNEL)?;
        Ok(())
    }

    /// Ends all. Sleeps; must not be called by a look.
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

/// The work of a [`Watchdog`]. It is C's and not `workqueue::DelayedWork`, which can be neither
/// cancelled nor waited for, nor brought forward.
///
/// # Invariants
///
/// - `work` was initialised when `self` was created; its function is [`Self::callback`].
/// - It is part of an [`Arc`], and not freed while the work is queued or runs, unless the work
///   itself keeps it: its [`Owner`] or [`Watchdogs`] end the work before they forget it.
#[pin_data]
pub(crate) struct Work<W: Watch> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    #[pin]
    pub(crate) watch: W,
}

// SAFETY: A `delayed_work` may be queued and cancelled by any thread; `W` is `Send`.
unsafe impl<W: Watch> Send for Work<W> {}

// SAFETY: As above; `W` is `Sync`.
unsafe impl<W: Watch> Sync for Work<W> {}

/// Who has a work done, until this is dropped.
pub(crate) struct Owner<W: Watch>(pub(crate) Arc<Work<W>>);

impl<W: Watch> Owner<W> {
    /// On return the work is not done any more, nor will be. Sleeps; must not be called by it.
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
    /// A work that nobody has asked for yet, to be ended before it is dropped. Works that wait for
    /// one another are of different classes.
    fn new(watch: impl PinInit<W>, class: Pin<&'static LockClassKey>) -> Result<Arc<Self>> {
        // One for all types, as is the timer's lock class: lockdep knows names by address.
        static WORK: &CStr = c"virtio::Watchdog::work";
        static TIMER: &CStr = c"virtio::Watchdog::timer";

        Arc::pin_init(
            pin_init!(Self {
                work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                    // SAFETY: `slot` is valid for writes and will not be on a stack. The timer
                    // belongs to a `delayed_work`, as its function demands.
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
                watch <- watch,
            }),
            GFP_KERNEL,
        )
    }

    /// A work that nobody has asked for yet. It may end watchdogs.
    pub(crate) fn owned(watch: impl PinInit<W>) -> Result<Owner<W>> {
        Self::new(watch, static_lock_class!()).map(Owner)
    }

    /// Looks after so many milliseconds, and not when it would have been otherwise: any look that
    /// begins then has seen what came before this call. May be called in any context.
    pub(crate) fn look_after(&self, delay_ms: u32) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::mod_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                Self::queue(),
                self.work.get(),
                msecs_to_jiffies(delay_ms),
            )
        };
    }
}

impl<W: Watch> Watchdog<W> {
    /// Looks for the first time after `delay_ms` milliseconds, and then when the look before it
    /// said, until this is dropped or all have ended.
    pub(crate) fn new(all: &Arc<Watchdogs>, delay_ms: u32, watch: W) -> Result<Self> {
        let work = Work::new(watch, static_lock_class!())?;
        all.add(work.clone())?;
        // From here on it ends with all others, if not before; if it has by now, this is of no
        // effect.
        work.schedule(delay_ms);
        Ok(Self { work })
    }

    /// Looks as soon as possible: any look that begins after this call has seen what came before
    /// it. May be called in any context.
    pub fn look_now(&self) {
        self.work.look_after(0);
    }
}

impl<W: Watch> Drop for Watchdog<W> {
    fn drop(&mut self) {
        // SAFETY: The work is initialised, by the type invariant. From here on it is not queued.
        unsafe { bindings::disable_delayed_work(self.work.work.get()) };
    }
}

impl<W: Watch> End for Work<W> {
    fn end(&self) {
        let work = self.work.get();
        // SAFETY: The work is initialised, by the type invariant. From here on it is not queued,
        // though its function does that. If it does not run, or this waits for it, it is not used
        // afterwards; and if it is what runs here, it keeps itself.
        unsafe {
            if self.is_looking_here() {
                bindings::disable_delayed_work(work);
            } else {
                bindings::disable_delayed_work_sync(work);
            }
        }
    }
}

impl<W: Watch> Work<W> {
    /// Whether the caller is a look.
    fn is_looking_here(&self) -> bool {
        // SAFETY: The work is initialised, by the type invariant; any task may ask what it runs.
        unsafe { bindings::current_work() == &raw mut (*self.work.get()).work }
    }

    /// Returns the workqueue of the work.
    fn queue() -> *mut bindings::workqueue_struct {
        // SAFETY: Both are set once, before there are drivers.
        unsafe {
            match W::SLEEPS_WITH_MACHINE {
                true => bindings::system_freezable_wq,
                false => bindings::system_dfl_wq,
            }
        }
    }

    /// Has the work done after so many milliseconds, or earlier if somebody else asked for that.
    fn schedule(&self, delay_ms: u32) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                Self::queue(),
                self.work.get(),
                msecs_to_jiffies(delay_ms),
            )
        };
    }

    /// Function of the work.
    ///
    /// # Safety
    ///
    /// `work` must be in the `work` of a [`Work`] that is there when this is called.
    unsafe extern "C" fn callback(work: *mut bindings::work_struct) {
        const OFFSET: usize = offset_of!(bindings::delayed_work, work);

        // SAFETY: By the caller's contract, `work` is in a `Self`, which is part of an `Arc`;
        // `Opaque` is transparent. Only references that are counted are dropped.
        let this = unsafe {
            let work = work.byte_sub(OFFSET);
            let this = work.byte_sub(offset_of!(Self, work)).cast::<Self>();
            Arc::clone(&ManuallyDrop::new(Arc::from_raw(this)))
        };
        if let Some(delay_ms) = this.watch.look() {
            this.schedule(delay_ms);
        }
    }
}
