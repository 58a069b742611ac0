// SPDX-License-Identifier: GPL-2.0

//! Something that is looked at from time to time.

use core::mem::{
    offset_of,
    ManuallyDrop, //
};

use kernel::{
    prelude::*,
    static_lock_class,
    sync::Arc,
    time::msecs_to_jiffies,
    types::Opaque, //
};

use crate::bindings;

/// What a [`Watchdog`] does.
pub trait Watch: Send + Sync + 'static {
    /// Looks, and returns whether to look again. Process context.
    fn look(&self) -> bool;
}

/// Looks at something again and again until there is no need to, and whenever it is asked to.
///
/// Dropping it waits for a look that is under way, but for one that drops it.
pub struct Watchdog<W: Watch>(Arc<Work<W>>);

/// The work of a [`Watchdog`]. It is C's and not `workqueue::DelayedWork`, which can be neither
/// cancelled nor waited for, nor brought forward.
///
/// # Invariants
///
/// - `work` was initialised when `self` was created; its function is [`Self::callback`].
/// - It is part of an [`Arc`], and not freed while the work is queued or runs, unless the work
///   itself keeps it.
#[pin_data]
struct Work<W: Watch> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    interval_ms: u32,
    watch: W,
}

// SAFETY: A `delayed_work` may be queued and cancelled by any thread; `W` is `Send`.
unsafe impl<W: Watch> Send for Work<W> {}

// SAFETY: As above; `W` is `Sync`.
unsafe impl<W: Watch> Sync for Work<W> {}

impl<W: Watch> Watchdog<W> {
    /// Looks each `interval_ms` milliseconds, for the first time after that long.
    pub fn new(interval_ms: u32, watch: W) -> Result<Self> {
        // One for all types, as are the lock classes: lockdep knows names by address.
        static WORK: &CStr = c"virtio::Watchdog::work";
        static TIMER: &CStr = c"virtio::Watchdog::timer";

        let work = Arc::pin_init(
            pin_init!(Work {
                work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                    // SAFETY: `slot` is valid for writes and will not be on a stack. The timer
                    // belongs to a `delayed_work`, as its function demands.
                    unsafe {
                        bindings::init_work_with_key(
                            &raw mut (*slot).work,
                            Some(Work::<W>::callback),
                            false,
                            WORK.as_char_ptr(),
                            static_lock_class!().as_ptr(),
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
                interval_ms,
                watch,
            }),
            GFP_KERNEL,
        )?;
        work.schedule();
        Ok(Self(work))
    }

    /// Looks as soon as possible: any look that begins after this call has seen what came before
    /// it. May be called in any context.
    pub fn look_now(&self) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::mod_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.0.work.get(),
                0,
            )
        };
    }
}

impl<W: Watch> Drop for Watchdog<W> {
    fn drop(&mut self) {
        let work = self.0.work.get();
        // SAFETY: The work is initialised, by the type invariant; any task may ask what it runs.
        // From here on it is not queued, though its function does that. If it does not run, or this
        // waits for it, it is not used afterwards; and if it is what runs here, it keeps itself.
        unsafe {
            if bindings::current_work() == &raw mut (*work).work {
                bindings::disable_delayed_work(work);
            } else {
                bindings::disable_delayed_work_sync(work);
            }
        }
    }
}

impl<W: Watch> Work<W> {
    /// Has the work done after the interval.
    fn schedule(&self) {
        // SAFETY: The work is initialised, by the type invariant, and disabled before it is freed.
        unsafe {
            bindings::queue_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
                msecs_to_jiffies(self.interval_ms),
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
        if this.watch.look() {
            this.schedule();
        }
    }
}
