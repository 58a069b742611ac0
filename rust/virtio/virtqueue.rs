// SPDX-License-Identifier: GPL-2.0

//! Virtqueues and the buffers that travel through them.

use core::{
    marker::PhantomData,
    mem::{
        offset_of,
        ManuallyDrop, //
    },
    ptr::{
        self,
        NonNull, //
    },
};

use kernel::{
    device::{
        self,
        Core,
        CoreInternal,
        DeviceContext, //
    },
    error::to_result,
    fmt,
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        new_condvar,
        new_mutex,
        static_lock_class,
        Arc,
        CondVar,
        Mutex,
        SpinLockIrq, //
    },
    task::Task,
    types::Opaque, //
};

use crate::{
    bindings,
    compat,
    Device,
    Dma, //
};

/// A buffer for the device: memory that it reads, memory that it writes, and a context of the
/// driver that accompanies both.
///
/// Both parts are memory of their own from `kmalloc`, as DMA wants it.
///
/// # Invariants
///
/// Each part has at most `c_uint::MAX` bytes, and one of them is not empty.
pub struct Chain<C> {
    readable: KVec<u8>,
    writable: KVec<u8>,
    context: C,
}

impl<C> Chain<C> {
    /// Creates a buffer of which the device reads `readable` and writes at most `writable_len`
    /// bytes. Either may be empty, but not both.
    pub fn new(
        readable: KVec<u8>,
        writable_len: usize,
        context: C,
        flags: kernel::alloc::Flags,
    ) -> Result<KBox<Self>> {
        if readable.is_empty() && writable_len == 0 {
            return Err(EINVAL);
        }
        if readable.len().max(writable_len) > c_uint::MAX as usize {
            return Err(EINVAL);
        }
        let writable = KVec::from_elem(0, writable_len, flags)?;
        // INVARIANT: Checked above.
        Ok(KBox::new(
            Self {
                readable,
                writable,
                context,
            },
            flags,
        )?)
    }

    /// The driver's context.
    pub fn context(&self) -> &C {
        &self.context
    }

    /// The part that the device reads.
    pub fn readable_mut(&mut self) -> &mut [u8] {
        &mut self.readable
    }

    /// The part that the device writes.
    pub fn writable(&self) -> &[u8] {
        &self.writable
    }
}

/// A buffer that a queue did not take, and why.
pub type Refused<C> = (Error, KBox<Chain<C>>);

/// A buffer that the device has used.
pub struct Used<C> {
    chain: KBox<Chain<C>>,
    written: usize,
}

impl<C> Used<C> {
    /// What the device has written.
    ///
    /// A device that claims more than there is room for is not believed.
    pub fn written(&self) -> &[u8] {
        let len = self.written.min(self.chain.writable.len());
        &self.chain.writable[..len]
    }

    /// The driver's context.
    pub fn context(&self) -> &C {
        &self.chain.context
    }

    /// The buffer, to be used once more.
    pub fn into_chain(self) -> KBox<Chain<C>> {
        self.chain
    }
}

/// What a driver does with the buffers of a queue.
///
/// Both methods may be called while `probe` of the driver still runs, once the device is
/// [ready](Virtqueues::ready).
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
/// is set to null. All tokens in it come from `KBox<Chain<C>>::into_raw`, with the `C` of the
/// [`Virtqueue`] this is in.
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
/// It comes to life when it is given to [`Virtqueues::new`], and refuses all buffers after the
/// device has been stopped.
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

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl<H: Handler> Virtqueue<H> {
    /// Lets [`defer`](Self::defer) work, and nothing else, without a device.
    pub(crate) fn open_for_test(&self) {
        self.queue.lock().open = true;
    }

    /// Ends that.
    pub(crate) fn close_for_test(&self) {
        private::Sealed::close(self);
        private::Sealed::join(self);
    }
}

mod private {
    /// What only this crate may call.
    pub trait Sealed {
        /// Name of the interrupt.
        fn name(&self) -> &kernel::str::CStr;

        /// Calls the handler.
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
        self.handler.used(self);
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

/// How far the life of the queues of a device has gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The queues exist; the device does not look at them yet.
    Created,
    /// The device works.
    Ready,
    /// That task resets the device and empties the queues.
    Stopping(usize),
    /// The device is reset, the queues are empty and refuse buffers.
    Stopped,
    /// The queues are gone, or are being deleted.
    Deleted,
}

/// Number of the task that runs.
fn current() -> usize {
    // CAST: Not used as an address.
    Task::current_raw() as usize
}

/// All queues of a device, as its interrupts find them: `priv` of the virtio device points here.
#[pin_data]
struct Queues {
    dev: ARef<Device>,
    queues: KVec<Arc<dyn AnyVirtqueue>>,
    dma: Dma,
    #[pin]
    state: Mutex<State>,
    /// [`State::Stopping`] is over.
    #[pin]
    stopped: CondVar,
}

impl Queues {
    /// Whether the one who stops the device, and so empties the queues, waits for the caller.
    fn is_waited_for(&self, stopping: usize) -> bool {
        stopping == current() || self.queues.iter().any(|queue| queue.is_deferred())
    }

    /// Makes the device forget all buffers and returns them to their owners. Returns `false` if
    /// somebody else is about to, who waits for the caller.
    fn stop(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            match *state {
                State::Stopped | State::Deleted => return true,
                State::Stopping(task) if self.is_waited_for(task) => return false,
                State::Stopping(_) => self.stopped.wait(&mut state),
                State::Created | State::Ready => break,
            }
        }
        // The transport stays: who deletes the queues waits for the end of this. The lock is given
        // back, so that those whom this waits for may ask how the device does.
        *state = State::Stopping(current());
        drop(state);
        for queue in &self.queues {
            queue.close();
        }
        quiesce(&self.dev);
        for queue in &self.queues {
            // SAFETY: The device has been stopped above.
            unsafe { queue.detach() };
        }
        *self.state.lock() = State::Stopped;
        self.stopped.notify_all();
        true
    }

    /// Stops the device and deletes the queues.
    ///
    /// # Safety
    ///
    /// The device must be bound to the driver that created the queues, and its lock must be held.
    unsafe fn delete(&self) {
        self.stop();
        // Nobody else looks at the transport from here on. The lock is given back because freeing
        // interrupts takes locks under which a driver may have to stop its device, as those of
        // memory reclaim.
        if core::mem::replace(&mut *self.state.lock(), State::Deleted) == State::Deleted {
            return;
        }
        for queue in &self.queues {
            // One may have stopped the device from there.
            queue.join();
        }
        self.dma.close();
        let raw = self.dev.as_raw();
        // SAFETY: The device is valid, and by the caller's contract bound, so its transport is
        // there. `Virtqueues::new` has created the queues, which nobody uses any more.
        unsafe { bindings::virtio_del_vqs(raw) };
        for queue in &self.queues {
            queue.release();
        }
        // SAFETY: `Virtqueues::new` has stored a reference there; interrupts, which alone look at
        // it besides us, have been freed with the queues.
        drop(unsafe { Arc::<Self>::from_raw((*raw).priv_.cast()) });
        // SAFETY: The device is valid, and its lock is held.
        unsafe { (*raw).priv_ = ptr::null_mut() };
    }

    /// Entry of the interrupt of a queue.
    ///
    /// # Safety
    ///
    /// `vq` must be a queue created by [`Virtqueues::new`] and not deleted yet.
    unsafe extern "C" fn interrupt_callback(vq: *mut bindings::virtqueue) {
        // SAFETY: By the caller's contract `vq` is valid, as is its device. `priv` was set before
        // the queue was created and is reset after it has been deleted.
        let queues = unsafe { &*(*(*vq).vdev).priv_.cast::<Queues>() };
        // SAFETY: `vq` is valid.
        let index = unsafe { (*vq).index };

        if let Some(queue) = queues.queues.get(index as usize) {
            queue.interrupt();
        }
    }
}

/// Resets the device, unless it is gone: then nobody would answer, and nothing has to be reset.
///
/// On return the device accesses no memory and no interrupt handler of it runs.
fn quiesce<Ctx: DeviceContext>(dev: &Device<Ctx>) {
    let raw = dev.as_raw();
    if dev.raw_status().is_gone() {
        // SAFETY: The device is valid.
        unsafe { bindings::virtio_break_device(raw) };
        // SAFETY: As above. May sleep; all callers may.
        unsafe { bindings::virtio_synchronize_cbs(raw) };
    } else {
        // SAFETY: The device is valid.
        unsafe { bindings::virtio_reset_device(raw) };
    }
}

/// Leaves a device in reset that its driver has let go, whatever the driver left behind.
pub(crate) fn reset_unbound(dev: &Device<CoreInternal<'_>>) {
    // SAFETY: The device is valid, and its lock is held.
    let queues = unsafe { (*dev.as_raw()).priv_ }.cast::<Queues>();

    if let Some(queues) = NonNull::new(queues) {
        // The driver has leaked its `Virtqueues`.
        //
        // SAFETY: Only `Virtqueues::new` sets `priv`, to a reference that lives at least until
        // `delete` drops it. Another one is taken, to live through `delete`.
        let queues = ManuallyDrop::new(unsafe { Arc::<Queues>::from_raw(queues.as_ptr()) });
        let queues = Arc::clone(&queues);
        // SAFETY: The device is still bound to that driver, and its lock is held.
        unsafe { queues.delete() };
    } else if !dev.raw_status().is_reset() {
        quiesce(&**dev);
    }
}

/// Stops a device from anywhere in its driver.
#[derive(Clone)]
pub struct Stopper(Arc<Queues>);

impl Stopper {
    /// Resets the device and returns all buffers to their owners.
    ///
    /// On return the device does not access any memory, whatever it was asked to do before, all
    /// buffers have been [cancelled](Handler::cancelled) and no handler runs. Only the first call
    /// does anything; none does after the [`Virtqueues`] have been dropped. Process context.
    ///
    /// A handler may call this. It does not wait for itself, nor for one who waits for it.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Whether the device has failed or is gone. A register read.
    pub fn device_failed(&self) -> bool {
        let state = self.0.state.lock();
        match *state {
            State::Stopping(_) | State::Stopped | State::Deleted => true,
            State::Created | State::Ready => {
                // The transport is there: `Queues::delete` would have to get the lock first.
                let status = self.0.dev.raw_status();
                // A device that was ready and is not any more was reset behind the driver's back.
                let lost = *state == State::Ready && !status.driver_ok();
                status.is_gone() || status.needs_reset() || lost
            }
        }
    }
}

/// Queues that are nobody else's.
pub(crate) struct Claimed(KVec<Arc<dyn AnyVirtqueue>>);

impl Claimed {
    /// `EBUSY` if one of them belongs to a device, or is there twice.
    pub(crate) fn new(queues: KVec<Arc<dyn AnyVirtqueue>>) -> Result<Self> {
        if let Some(taken) = queues.iter().position(|queue| !queue.claim()) {
            for queue in &queues[..taken] {
                queue.release();
            }
            return Err(EBUSY);
        }
        Ok(Self(queues))
    }

    /// The queues, whom somebody else releases.
    fn keep(mut self) -> KVec<Arc<dyn AnyVirtqueue>> {
        core::mem::take(&mut self.0)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        for queue in &self.0 {
            queue.release();
        }
    }
}

/// The queues of a bound device, and thereby all its DMA and interrupts.
///
/// Dropping it stops the device as [`Stopper::stop`] does.
pub struct Virtqueues<'bound> {
    queues: Arc<Queues>,
    _bound: PhantomData<&'bound Device<kernel::device::Bound>>,
}

impl<'bound> Virtqueues<'bound> {
    /// Creates the queues of a device, from number 0 on.
    ///
    /// Fails with `EBUSY` if the device already has queues, or a queue is in use elsewhere; with
    /// what the transport answers (as `ENOENT`) if the device has fewer queues.
    pub fn new(dev: &'bound Device<Core<'_>>, queues: KVec<Arc<dyn AnyVirtqueue>>) -> Result<Self> {
        let raw = dev.as_raw();
        // SAFETY: The device is valid, and `Core` says that its lock is held.
        if !unsafe { (*raw).priv_ }.is_null() {
            return Err(EBUSY);
        }
        let queues = Claimed::new(queues)?;
        let count = queues.0.len();
        let mut raws = KVec::from_elem(ptr::null_mut::<bindings::virtqueue>(), count, GFP_KERNEL)?;
        let mut infos = KVec::with_capacity(count, GFP_KERNEL)?;
        for queue in &queues.0 {
            infos.push(
                bindings::virtqueue_info {
                    name: queue.name().as_char_ptr(),
                    callback: Some(Queues::interrupt_callback),
                    ctx: false,
                },
                GFP_KERNEL,
            )?;
        }

        let queues = Arc::pin_init(
            try_pin_init!(Queues {
                dma: Dma::new(dev.parent())?,
                dev: dev.into(),
                queues: queues.keep(),
                state <- new_mutex!(State::Created, "virtio::Virtqueues"),
                stopped <- new_condvar!("virtio::Virtqueues"),
            }? Error),
            GFP_KERNEL,
        )?;

        // Interrupts can come as soon as there are queues: they must find them.
        //
        // SAFETY: The device is valid, and its lock is held.
        unsafe { (*raw).priv_ = Arc::into_raw(queues.clone()).cast_mut().cast() };

        // SAFETY: The device is valid and bound to the driver that calls this; both arrays have
        // `count` elements; the names are those of the queues, which outlive those of C.
        let ret = unsafe {
            bindings::virtio_find_vqs(
                raw,
                count.try_into()?,
                raws.as_mut_ptr(),
                infos.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        to_result(ret).inspect_err(|_| {
            // The device may have seen some of the queues, which the transport has freed again.
            quiesce(&***dev);
            for queue in &queues.queues {
                queue.release();
            }
            // SAFETY: The transport has freed the queues and their interrupts, which alone use
            // this reference; it has been stored above.
            drop(unsafe { Arc::<Queues>::from_raw((*raw).priv_.cast()) });
            // SAFETY: The device is valid, and its lock is held.
            unsafe { (*raw).priv_ = ptr::null_mut() };
        })?;

        for (queue, raw) in queues.queues.iter().zip(raws) {
            // SAFETY: `raw` is a new queue, known to nobody else. It is deleted only by
            // `Queues::delete`, after `detach`.
            unsafe { queue.attach(raw) };
        }
        Ok(Self {
            queues,
            _bound: PhantomData,
        })
    }

    /// Tells the device to begin (`DRIVER_OK`).
    ///
    /// Add buffers after that: a kernel that is hardened against its devices refuses them before.
    pub fn ready(&self) -> Result {
        let mut state = self.queues.state.lock();
        let dev = &self.queues.dev;
        if *state != State::Created || dev.raw_status().driver_ok() {
            return Err(EBUSY);
        }
        // SAFETY: The device is valid, bound, and has not been told yet.
        unsafe { bindings::virtio_device_ready(dev.as_raw()) };
        *state = State::Ready;
        Ok(())
    }

    /// Has the interrupts of queue `index` handled by one processor: the `nth`, counted from those
    /// next to the device and round again, unless somebody decides otherwise.
    ///
    /// The transport may have one interrupt for several queues, or no choice; then this is of no
    /// effect.
    pub fn set_affinity(&self, index: usize, nth: u32) {
        let Some(queue) = self.queues.queues.get(index) else {
            return;
        };
        let Some(raw) = queue.raw() else {
            return;
        };
        let dev: &device::Device = (*self.queues.dev).as_ref();
        // SAFETY: The device is valid. The queue is not deleted before `self` is dropped. For any
        // number there is a processor, a possible one.
        unsafe {
            let node = bindings::dev_to_node((*compat::device_as_raw(dev)).parent);
            let cpu = bindings::cpumask_local_spread(nth, node);
            bindings::virtqueue_set_affinity(raw.as_ptr(), bindings::cpumask_of(cpu));
        }
    }

    /// Who does the DMA of the device.
    pub fn dma(&self) -> &Dma {
        &self.queues.dma
    }

    /// A handle that stops the device.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.queues.clone())
    }
}

impl Drop for Virtqueues<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is bound during `'bound`. Its lock is held: the value was created in
        // `probe` and cannot leave the driver's private data but by being leaked; so it is dropped
        // either there or when `probe` fails, or when the driver is unbound.
        unsafe { self.queues.delete() };
    }
}
