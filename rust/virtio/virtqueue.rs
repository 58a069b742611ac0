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

/// What a driver does with the buffers of a queue.
///
/// Both methods may be called while `probe` of the driver still runs, once the device is
/// [ready](super::Virtqueues::ready).
pub trait Handler: Send + Sync + Sized + 'static {
    /// What accompanies a buffer through the queue.
    type Context: Send + 'static;

    /// Whether [`deferred`](Self::deferred) is of use: without, [`Virtqueue::defer`] does nothing.
    const DEFERS: bool = false;

    /// The device has used buffers: [`Virtqueue::pop`] gets them.
    ///
    /// Called in interrupt context, and for one queue by one processor at a time.
    fn used(&self, queue: &Virtqueue<Self>);

    /// Continues in process context what [`used`](Self::used) has [deferred](Virtqueue::defer).
    ///
    /// Called by one processor at a time.
    fn deferred(&self, queue: &Virtqueue<Self>) {
        let _ = queue;
    }

    /// The device will not use `chain` any more.
    ///
    /// Called in process context, without locks held, for each buffer that is still in the queue
    /// when the device is stopped.
    fn cancelled(&self, chain: KBox<Chain<Self::Context>>) {
        drop(chain);
    }
}

/// Where work of a queue runs.
///
/// Who frees memory may wait for that work, as storage stacks do when they destroy queue pairs of a
/// device to set up a connection anew: hence `WQ_MEM_RECLAIM`.
///
/// # Invariants
///
/// The pointer is valid and owned.
struct Workqueue(NonNull<bindings::workqueue_struct>);

impl Workqueue {
    fn new(name: &CStr) -> Result<Self> {
        // SAFETY: The format takes a string, which is copied.
        let raw = unsafe {
            bindings::alloc_workqueue_noprof(
                c"%s".as_char_ptr(),
                bindings::wq_flags_WQ_MEM_RECLAIM | bindings::wq_flags_WQ_UNBOUND,
                1,
                name.as_char_ptr(),
            )
        };
        // INVARIANT: Just allocated.
        NonNull::new(raw).map(Self).ok_or(ENOMEM)
    }
}

impl Drop for Workqueue {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariant.
        unsafe { bindings::destroy_workqueue(self.0.as_ptr()) };
    }
}

// SAFETY: A workqueue may be used and destroyed by any thread.
unsafe impl Send for Workqueue {}

// SAFETY: Work may be queued by any thread.
unsafe impl Sync for Workqueue {}

/// The C side of a queue.
///
/// # Invariants
///
/// `raw` is null or a queue of which this is the only user, and which is not deleted before `raw`
/// is set to null; it is not null if `open`. All tokens in it come from `KBox<Chain<C>>::into_raw`,
/// with the `C` of the [`Virtqueue`] this is in.
struct RawQueue {
    raw: *mut bindings::virtqueue,
    /// Whether it belongs to a device, or is about to.
    claimed: bool,
    /// Whether buffers may be added.
    open: bool,
}

// SAFETY: The functions on a `struct virtqueue` may be called from any thread, one at a time.
unsafe impl Send for RawQueue {}

/// A virtqueue.
///
/// It comes to life when it is given to [`Virtqueues::new`](super::Virtqueues::new), and refuses
/// all buffers after the device has been stopped.
#[pin_data]
pub struct Virtqueue<H: Handler> {
    name: CString,
    #[pin]
    queue: SpinLockIrq<RawQueue>,
    /// Runs [`Handler::deferred`]; only queued while the queue is open, and under its lock.
    #[pin]
    work: Opaque<bindings::work_struct>,
    /// Where it runs; dropped when it does not any more.
    workqueue: Option<Workqueue>,
    #[pin]
    handler: H,
}

// SAFETY: The lock protects the queue; a `work_struct` may be queued and cancelled by any thread;
// the handler is `Send`.
unsafe impl<H: Handler> Send for Virtqueue<H> {}

// SAFETY: As above; the handler is `Sync`.
unsafe impl<H: Handler> Sync for Virtqueue<H> {}

impl<H: Handler> Virtqueue<H> {
    /// Creates a queue. `name` is that of its interrupt, after the name of the device.
    pub fn new<E>(name: fmt::Arguments<'_>, handler: impl PinInit<H, E>) -> Result<Arc<Self>>
    where
        Error: From<E>,
    {
        // All types of handlers share the lock classes, whose names lockdep knows by address: there
        // must be one of each, not one for each type.
        static QUEUE: &CStr = c"virtio::Virtqueue";
        static WORK: &CStr = c"virtio::Virtqueue::work";

        let name = CString::try_from_fmt(name)?;
        let workqueue = if H::DEFERS {
            Some(Workqueue::new(&name)?)
        } else {
            None
        };
        Arc::pin_init::<Error>(
            // INVARIANT: `raw` is null.
            try_pin_init!(Self {
                name,
                queue <- SpinLockIrq::new(
                    RawQueue { raw: ptr::null_mut(), claimed: false, open: false },
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
                            WORK.as_char_ptr(),
                            static_lock_class!().as_ptr(),
                        )
                    }
                }),
                workqueue,
                handler <- handler,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// What the driver does with the buffers of this queue.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Entries of the queue; 0 while it is not alive.
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

    /// Makes a buffer available to the device; it takes notice after [`kick`](Self::kick).
    ///
    /// The buffer is returned if the queue is full (`ENOSPC`), stopped (`ENODEV`) or broken
    /// (`EIO`). May be called in any context.
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
        // `lists` holds `out` lists for the device to read and then the rest for it to write, each
        // of one entry. The memory of both lives as long as the chain, which nobody can access
        // until the queue returns `token`; `writable` may be written, because the chain was owned.
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
            // use. A queue that cannot be notified becomes broken, which `is_broken` tells.
            unsafe { bindings::virtqueue_kick(queue.raw) };
        }
    }

    /// Gets the next buffer that the device has used, if any. May be called in any context.
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

    /// Has [`Handler::deferred`] called, soon and at least once. May be called in any context.
    pub fn defer(&self) {
        let Some(workqueue) = &self.workqueue else {
            return;
        };
        let queue = self.queue.lock();
        if queue.open {
            // SAFETY: `work` was initialised by `new`. `detach` waits for it, which comes before
            // the reference of `Queues` to `self` is dropped: it finds the queue closed, so the
            // work is not queued later, or waits for the lock.
            unsafe {
                bindings::queue_work_on(
                    bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                    workqueue.0.as_ptr(),
                    self.work.get(),
                )
            };
        }
    }

    /// Function of the work.
    ///
    /// # Safety
    ///
    /// `work` must be the `work` of a [`Virtqueue`] which lives until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: By the caller's contract, `work` is in a `Self`; `Opaque` is transparent.
        let this = unsafe { &*work.byte_sub(offset_of!(Self, work)).cast::<Self>() };
        this.handler.deferred(this);
    }

    /// Whether the queue is of no use any more: stopped, corrupted by the device, or gone with it.
    pub fn is_broken(&self) -> bool {
        let queue = self.queue.lock();
        // SAFETY: By the type invariant `raw` is null or a valid queue.
        !queue.open || unsafe { bindings::virtqueue_is_broken(queue.raw) }
    }
}

mod private {
    /// What only this crate may call.
    pub trait Sealed {
        /// Name of the interrupt.
        fn name(&self) -> &kernel::str::CStr;

        /// Calls the handler, unless the queue is closed.
        fn interrupt(&self);

        /// Makes the queue that of a device. Returns whether it was nobody's.
        fn claim(&self) -> bool;

        /// Makes it nobody's again.
        fn release(&self);

        /// Begins to use `raw`.
        ///
        /// # Safety
        ///
        /// `raw` must be an empty queue that nobody else uses and that is not deleted before
        /// [`detach`](Self::detach) has returned.
        unsafe fn attach(&self, raw: *mut crate::bindings::virtqueue);

        /// Cancels all buffers and stops to use the queue; called in process context.
        ///
        /// # Safety
        ///
        /// The device must be stopped: it accesses no memory, and interrupts no more.
        unsafe fn detach(&self);

        /// Whether the caller is [`Handler::deferred`](super::Handler::deferred) of the queue.
        fn is_deferred(&self) -> bool;

        /// Waits until that does not run any more. The queue must be closed.
        fn join(&self);

        /// Refuses buffers from now on.
        fn close(&self);

        /// The queue in use.
        fn raw(&self) -> Option<core::ptr::NonNull<crate::bindings::virtqueue>>;
    }
}

/// A [`Virtqueue`] of any kind.
pub trait AnyVirtqueue: private::Sealed + Send + Sync {
    /// Has [`Handler::deferred`] called and waits until it has returned, so that it has seen all
    /// buffers which the device had used before. Process context. Does not wait if that calls this.
    fn flush_deferred(&self);
}

impl<H: Handler> AnyVirtqueue for Virtqueue<H> {
    fn flush_deferred(&self) {
        self.defer();
        if !private::Sealed::is_deferred(self) {
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
        // Who closes the queue waits for all handlers that have begun. A device that interrupts
        // though it is stopped is not heard.
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

    unsafe fn attach(&self, raw: *mut bindings::virtqueue) {
        let mut queue = self.queue.lock();
        // INVARIANT: By the caller's contract, this is the only user of `raw`, which lives until
        // `detach`, and there are no tokens in it.
        queue.raw = raw;
        queue.open = true;
    }

    fn is_deferred(&self) -> bool {
        // SAFETY: May be called by any task.
        unsafe { bindings::current_work() == self.work.get() }
    }

    fn join(&self) {
        // SAFETY: `work` was initialised by `new`. The queue is closed, so it is not queued again.
        unsafe { bindings::cancel_work_sync(self.work.get()) };
    }

    unsafe fn detach(&self) {
        self.close();
        // Who stops the device from there does not wait for himself.
        if !private::Sealed::is_deferred(self) {
            private::Sealed::join(self);
        }

        loop {
            let token = {
                let mut queue = self.queue.lock();
                if queue.raw.is_null() {
                    return;
                }
                // SAFETY: By the type invariant `raw` is a valid queue; the lock serialises its
                // use, and by the caller's contract the device does not use it any more.
                let token = unsafe { bindings::virtqueue_detach_unused_buf(queue.raw) };
                if token.is_null() {
                    // INVARIANT: `raw` is null.
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
