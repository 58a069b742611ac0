// SPDX-License-Identifier: GPL-2.0

//! Something that is looked at from time to time.

use core::mem::offset_of;

use kernel::{
    prelude::*,
    static_lock_class,
    time::msecs_to_jiffies,
    types::Opaque, //
};

use crate::bindings;

/// What a [`Watchdog`] does.
pub trait Watch: Send + Sync {
    /// Looks, and returns whether to look again. Process context.
    fn look(&self) -> bool;
}

/// Looks at something again and again until there is no need to, and whenever it is asked to.
///
/// # Invariants
///
/// `work` was initialised when `self` was created; its function is [`Self::work_callback`].
#[pin_data(PinnedDrop)]
pub struct Watchdog<W: Watch> {
    #[pin]
    work: Opaque<bindings::delayed_work>,
    interval_ms: u32,
    watch: W,
}

// SAFETY: A `delayed_work` may be queued and cancelled by any thread; `W` is `Send`.
unsafe impl<W: Watch> Send for Watchdog<W> {}

// SAFETY: As above; `W` is `Sync`.
unsafe impl<W: Watch> Sync for Watchdog<W> {}

impl<W: Watch> Watchdog<W> {
    /// Looks each `interval_ms` milliseconds, for the first time after that long.
    pub fn new(interval_ms: u32, watch: W) -> impl PinInit<Self> {
        // One for all types, as are the lock classes: lockdep knows names by address.
        static WORK: &CStr = c"virtio::Watchdog::work";
        static TIMER: &CStr = c"virtio::Watchdog::timer";

        pin_init!(&this in Self {
            // INVARIANT: Initialised here.
            work <- Opaque::ffi_init(|slot: *mut bindings::delayed_work| {
                // SAFETY: `slot` is valid for writes and will not be on a stack. The timer belongs
                // to a `delayed_work`, as its function demands.
                unsafe {
                    bindings::init_work_with_key(
                        &raw mut (*slot).work,
                        Some(Self::work_callback),
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
            _: {
                // SAFETY: All of `self` is initialised, and pinned from now on.
                unsafe { this.as_ref() }.schedule();
            },
        })
    }

    /// Looks as soon as possible: any look that begins after this call has seen what came before
    /// it. May be called in any context.
    pub fn look_now(&self) {
        // SAFETY: The work is initialised, by the type invariant, and cancelled before it is freed.
        unsafe {
            bindings::mod_delayed_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
                0,
            )
        };
    }

    /// Has the work done after the interval.
    fn schedule(&self) {
        // SAFETY: The work is initialised, by the type invariant, and cancelled before it is freed.
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
    /// `work` must be in the `work` of a [`Watchdog`] which lives until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        const OFFSET: usize = offset_of!(bindings::delayed_work, work);

        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe {
            let work = work.byte_sub(OFFSET);
            &*work.byte_sub(offset_of!(Self, work)).cast::<Self>()
        };
        if this.watch.look() {
            this.schedule();
        }
    }
}

#[pinned_drop]
impl<W: Watch> PinnedDrop for Watchdog<W> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: The work is initialised, by the type invariant. When this returns it does not run
        // and is not queued, though its function queues it.
        unsafe { bindings::cancel_delayed_work_sync(self.work.get()) };
    }
}
