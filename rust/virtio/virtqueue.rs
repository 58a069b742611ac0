// SPDX-License-Identifier: GPL-2.0

//! Virtqueues.

use core::{
    mem::offset_of,
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    error::to_result,
    fmt,
    prelude::*,
    str::CString,
    sync::{
        static_lock_class,
        Arc,
        SpinLockIrq, //
    },
    types::Opaque, //
};

use crate::{
    bindings,
    chain::{
        Chain,
        Refused,
        Used, //
    },
    compat, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Where [`Handler::deferred`] runs.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Deferral {
    /// Nowhere: [`Virtqueue::defer`] does nothing.
    Never,
    /// In a soft interrupt, which needs no thread. It must not sleep, nor stop the device: stopping
    /// waits for all handlers but its caller, and only a caller that runs in a thread is known.
    Atomic,
    /// In process context, on a workqueue that the queues of the device share.
    Sleeping,
}

/// A driver's handler for the buffers of a queue.
///
/// The methods may be called while the driver's `probe` is still running, once the device is
/// [ready](super::Virtqueues::ready).
pub trait Handler: Send + Sync + Sized + 'static {
    /// The driver's context that accompanies a buffer through the queue.
    type Context: Send + 'static;

    /// Where [`deferred`](Self::deferred) runs.
    const DEFERRAL: Deferral = Deferral::Never;

    /// Handles buffers that the device has used; [`Virtqueue::pop`] returns them.
    ///
    /// Called in interrupt context, by one CPU at a time for each queue.
    fn used(&self, queue: &Virtqueue<Self>);

    /// Continues what [`used`](Self::used) has [deferred](Virtqueue::defer).
    ///
    /// Called by one CPU at a time.
    fn deferred(&self, queue: &Virtqueue<Self>) {
        let _ = queue;
    }

    /// Takes back a buffer that the device will not use any more.
    ///
    /// Called in process context without locks held, for each buffer that is still in the queue
    /// when the device is stopped.
    fn cancelled(&self, chain: KBox<Chain<Self::Context>>) {
        drop(chain);
    }
}

/// The C side of a queue.
///
/// # Invariants
///
/// `raw` is null, or a queue of which this is the only user and which is not deleted before `raw`
/// is set to null. It is not null if `open`. All tokens in it come from `KBox<Chain<C>>::into_raw`,
/// with the `C` of the enclosing [`Virtqueue`].
///
/// `workqueue` is valid if `open`.
struct RawQueue {
    raw: *mut bindings::virtqueue,
    /// Runs [`Handler::deferred`].
    workqueue: *mut bindings::workqueue_struct,
    /// Whether the queue belongs to a device, or is about to.
    claimed: bool,
    /// Whether buffers may be added.
    open: bool,
}

// SAFETY: The functions on a `struct virtqueue` may be called from any thread, one at a time.
unsafe impl Send for RawQueue {}

/// A virtqueue.
///
/// It becomes usable when it is passed to [`Virtqueues::new`](super::Virtqueues::new), and rejects
/// all buffers after the device has been stopped.
#[pin_data]
pub struct Virtqueue<H: Handler> {
    name: CString,
    #[pin]
    queue: SpinLockIrq<RawQueue>,
    /// Runs [`Handler::deferred`]; only queued while the queue is open, and under its lock.
    #[pin]
    work: Opaque<bindings::work_struct>,
    #[pin]
    handler: H,
}

// SAFETY: The lock protects the queue; a `work_struct` may be queued and cancelled by any thread;
// the handler is `Send`.
unsafe impl<H: Handler> Send for Virtqueue<H> {}

// SAFETY: The lock protects the queue; several threads may queue and cancel a `work_struct` at the
// same time; the handler is `Sync`.
unsafe impl<H: Handler> Sync for Virtqueue<H> {}

impl<H: Handler> Virtqueue<H> {
    /// Creates a queue. The name of its interrupt is the name of the device followed by `name`.
    pub fn new<E>(name: fmt::Arguments<'_>, handler: impl PinInit<H, E>) -> Result<Arc<Self>>
    where
        Error: From<E>,
    {
        // All handler types share the lock classes, which lockdep identifies by the address of the
        // name. So there must be one name for all types.
        static QUEUE: &CStr = c"virtio::Virtqueue";
        static WORK: &CStr = c"virtio::Virtqueue::work";
        static ATOMIC: &CStr = c"virtio::Virtqueue::work, atomic";

        // The lock class of work that runs in soft interrupts is not one of work in threads.
        let (label, class) = match H::DEFERRAL {
            Deferral::Atomic => (ATOMIC, static_lock_class!()),
            Deferral::Sleeping | Deferral::Never => (WORK, static_lock_class!()),
        };
        let name = CString::try_from_fmt(name)?;
        Arc::pin_init::<Error>(
            // INVARIANT: `raw` is null, and the queue not open.
            try_pin_init!(Self {
                name,
                queue <- SpinLockIrq::new(
                    RawQueue {
                        raw: ptr::null_mut(),
                        workqueue: ptr::null_mut(),
                        claimed: false,
                        open: false,
                    },
                    QUEUE,
                    static_lock_class!(),
                ),
                work <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes; it will be in an `Arc`, not on a stack.
                    unsafe {
                        bindings::init_work_with_key(
                            slot,
                            Some(Self::work_callback),
                            false,
                            label.as_char_ptr(),
                            class.as_ptr(),
                        )
                    }
                }),
                handler <- handler,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the handler of the queue.
    #[inline]
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Returns the number of entries of the queue; 0 before it is attached to a device and after it
    /// is detached.
    ///
    /// A buffer takes one entry for each part that is not empty.
    pub fn capacity(&self) -> usize {
        let queue = self.queue.lock();
        if queue.raw.is_null() {
            return 0;
        }
        // SAFETY: By the type invariant, `raw` is a valid queue.
        unsafe { bindings::virtqueue_get_vring_size(queue.raw) as usize }
    }

    /// Makes a buffer available to the device, which notices it after [`kick`](Self::kick).
    ///
    /// If the queue is full (`ENOSPC`), stopped (`ENODEV`) or broken (`EIO`), the buffer is
    /// returned. May be called in any context.
    pub fn add(&self, chain: KBox<Chain<H::Context>>) -> Result<(), Refused<H::Context>> {
        let queue = self.queue.lock();
        if !queue.open {
            return Err((ENODEV, chain));
        }

        let mut entries = [const { pin_init::zeroed::<bindings::scatterlist>() }; 2];
        let mut lists = [ptr::null_mut(); 2];
        let mut count = 0;
        for part in [&chain.readable, &chain.writable] {
            if part.is_empty() {
                continue;
            }
            // CAST: By the type invariant, the length fits.
            let len = part.len() as c_uint;
            let entry = &raw mut entries[count];
            // SAFETY: `entry` is writable, and `part` is an allocation of `kmalloc` of `len` bytes.
            unsafe { bindings::sg_init_one(entry, part.as_ptr().cast(), len) };
            lists[count] = entry;
            count += 1;
        }
        let out = u32::from(!chain.readable.is_empty());
        let token = KBox::into_raw(chain);

        // SAFETY: `raw` is a valid queue by the type invariant, and the lock serialises its use.
        // `lists` holds `out` lists for the device to read, followed by lists for it to write, each
        // with one entry. The memory of both lives as long as the chain, which is inaccessible
        // until the queue returns `token`. `writable` may be written, because the chain was owned.
        let ret = unsafe {
            bindings::virtqueue_add_sgs(
                queue.raw,
                lists.as_mut_ptr(),
                out,
                count as u32 - out,
                token.cast(),
                compat::gfp_as_raw(GFP_ATOMIC),
            )
        };
        to_result(ret).map_err(|err| {
            // SAFETY: The queue has not taken `token`, which comes from `into_raw` above.
            (err, unsafe { KBox::from_raw(token) })
        })
    }

    /// Tells the device that buffers have been added. May be called in any context.
    pub fn kick(&self) {
        let queue = self.queue.lock();
        if queue.open {
            // SAFETY: By the type invariant `raw` is a valid queue, and the lock serialises its
            // use. If the notification fails, the queue becomes broken, which `is_broken` reports.
            unsafe { bindings::virtqueue_kick(queue.raw) };
        }
    }

    /// Returns the next buffer that the device has used, if any. May be called in any context.
    pub fn pop(&self) -> Option<Used<H::Context>> {
        let mut written = 0;
        let token = {
            let queue = self.queue.lock();
            if queue.raw.is_null() {
                return None;
            }
            // SAFETY: By the type invariant `raw` is a valid queue; the lock serialises its use.
            unsafe { bindings::virtqueue_get_buf(queue.raw, &mut written) }
        };
        let token = NonNull::new(token)?;

        Some(Used {
            // SAFETY: By the type invariant of `RawQueue` the token comes from `into_raw` of such a
            // box, and the queue returns each token once.
            chain: unsafe { KBox::from_raw(token.cast().as_ptr()) },
            written: written as usize,
        })
    }

    /// Schedules a call of [`Handler::deferred`]. May be called in any context.
    pub fn defer(&self) {
        let queue = self.queue.lock();
        if queue.open && H::DEFERRAL != Deferral::Never {
            // SAFETY: `work` was initialised by `new`. `Queues` closes the queue and then waits for
            // the work before it drops its reference to `self`. The queue is open under the lock
            // here, so that comes later, and no work is queued after it. The workqueue is valid by
            // the type invariant.
            unsafe {
                bindings::queue_work_on(
                    bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                    queue.workqueue,
                    self.work.get(),
                )
            };
        }
    }

    /// Runs the work item.
    ///
    /// # Safety
    ///
    /// `work` must be the `work` of a [`Virtqueue`] which lives until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe { &*work.byte_sub(offset_of!(Self, work)).cast::<Self>() };
        this.handler.deferred(this);
    }

    /// Returns whether the queue is unusable because it is stopped, corrupted by the device, or
    /// gone with the device.
    pub fn is_broken(&self) -> bool {
        let queue = self.queue.lock();
        // SAFETY: By the type invariant `raw` is null or a valid queue.
        !queue.open || unsafe { bindings::virtqueue_is_broken(queue.raw) }
    }
}

mod private {
    /// Methods that only this crate may call.
    pub trait Sealed {
        /// Returns the name of the interrupt.
        fn name(&self) -> &kernel::str::CStr;

        /// Calls the handler, unless the queue is closed.
        fn interrupt(&self);

        /// Claims the queue for a device. Returns whether it was free.
        fn claim(&self) -> bool;

        /// Releases the claim.
        fn release(&self);

        /// Starts to use `raw`, and `workqueue` for what may sleep.
        ///
        /// # Safety
        ///
        /// `raw` must be an empty queue that is not in use elsewhere. Neither it nor the workqueue
        /// may be deleted before [`detach`](Self::detach) and then [`join`](Self::join) have
        /// returned.
        unsafe fn attach(
            &self,
            raw: *mut crate::bindings::virtqueue,
            workqueue: *mut crate::bindings::workqueue_struct,
        );

        /// Cancels all buffers and stops using the queue. Process context.
        ///
        /// # Safety
        ///
        /// The device must be stopped: it accesses no memory, and raises no interrupts.
        unsafe fn detach(&self);

        /// Returns whether the caller is [`Handler::deferred`](super::Handler::deferred) of the
        /// queue.
        fn is_deferred(&self) -> bool;

        /// Waits until [`Handler::deferred`](super::Handler::deferred) no longer runs. The queue
        /// must be closed.
        fn join(&self);

        /// Rejects all buffers from now on.
        fn close(&self);

        /// Returns the queue in use.
        fn raw(&self) -> Option<core::ptr::NonNull<crate::bindings::virtqueue>>;
    }
}

/// A [`Virtqueue`] with any type of handler.
pub trait AnyVirtqueue: private::Sealed + Send + Sync {
    /// Schedules a call of [`Handler::deferred`] and waits until it has returned, so that it has
    /// seen all buffers which the device used before. Process context. Does not wait if called by
    /// [`Handler::deferred`] itself, nor if that runs in a soft interrupt.
    fn flush_deferred(&self);
}

impl<H: Handler> AnyVirtqueue for Virtqueue<H> {
    fn flush_deferred(&self) {
        self.defer();
        // The workqueue of soft interrupts is not one for memory reclaim, so the kernel warns if a
        // thread that frees memory flushes its work (`check_flush_dependency`).
        if H::DEFERRAL == Deferral::Sleeping && !private::Sealed::is_deferred(self) {
            // SAFETY: `work` was initialised by `new`.
            unsafe { bindings::flush_work(self.work.get()) };
        }
    }
}

impl<H: Handler> private::Sealed for Virtqueue<H> {
    fn name(&self) -> &CStr {
        &self.name
    }

    fn interrupt(&self) {
        // Closing the queue is followed by waiting for all handlers that have begun. Interrupts of
        // a device that should be stopped are ignored.
        let open = self.queue.lock().open;
        if open {
            self.handler.used(self);
        }
    }

    fn claim(&self) -> bool {
        !core::mem::replace(&mut self.queue.lock().claimed, true)
    }

    fn release(&self) {
        self.queue.lock().claimed = false;
    }

    unsafe fn attach(
        &self,
        raw: *mut bindings::virtqueue,
        workqueue: *mut bindings::workqueue_struct,
    ) {
        let workqueue = match H::DEFERRAL {
            // SAFETY: The pointer is set once, before there are drivers.
            Deferral::Atomic => unsafe { bindings::system_bh_wq },
            Deferral::Sleeping | Deferral::Never => workqueue,
        };
        let mut queue = self.queue.lock();
        // INVARIANT: By the caller's contract this is the only user of `raw`, which lives until
        // `detach` and contains no tokens. `detach` also closes the queue, so the workqueue is
        // valid as long as the queue is open, and `join` waits for the work that was queued then.
        queue.raw = raw;
        queue.workqueue = workqueue;
        queue.open = true;
    }

    fn is_deferred(&self) -> bool {
        // SAFETY: May be called by any task.
        unsafe { bindings::current_work() == self.work.get() }
    }

    fn join(&self) {
        // SAFETY: `work` was initialised by `new`. The queue is closed, so the work is not queued
        // again.
        unsafe { bindings::cancel_work_sync(self.work.get()) };
    }

    unsafe fn detach(&self) {
        self.close();
        // A deferred handler that stops the device must not wait for itself.
        if !private::Sealed::is_deferred(self) {
            private::Sealed::join(self);
        }

        loop {
            let token = {
                let mut queue = self.queue.lock();
                if queue.raw.is_null() {
                    return;
                }
                // SAFETY: By the type invariant `raw` is a valid queue. The lock serialises its
                // use, and by the caller's contract the device no longer uses it.
                let token = unsafe { bindings::virtqueue_detach_unused_buf(queue.raw) };
                if token.is_null() {
                    // INVARIANT: `raw` is null, and the queue not open.
                    queue.raw = ptr::null_mut();
                    return;
                }
                token
            };
            // SAFETY: By the type invariant of `RawQueue` the token comes from `into_raw` of such a
            // box, and the queue returns each token once.
            let chain = unsafe { KBox::<Chain<H::Context>>::from_raw(token.cast()) };
            self.handler.cancelled(chain);
        }
    }

    fn close(&self) {
        self.queue.lock().open = false;
    }

    fn raw(&self) -> Option<NonNull<bindings::virtqueue>> {
        NonNull::new(self.queue.lock().raw)
    }
}
