// SPDX-License-Identifier: GPL-2.0

//! All queues of a device, and with them its DMA and interrupts.

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
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
    prelude::*,
    sync::{
        aref::ARef,
        new_condvar,
        new_mutex,
        Arc,
        CondVar,
        Mutex, //
    },
    task::Task, //
};

use crate::{
    bindings,
    compat,
    virtqueue::AnyVirtqueue,
    watchdog::Watchdogs,
    Device,
    Dma,
    Watch,
    Watchdog, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// How far the life of the queues of a device has gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The queues exist; the device does not look at them yet.
    Created,
    /// The device works.
    Ready,
    /// That task resets the device.
    Stopping(usize),
    /// The device is reset; that task empties the queues.
    Quiesced(usize),
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
    watchdogs: Arc<Watchdogs>,
    #[pin]
    state: Mutex<State>,
    /// [`State::Stopping`] or [`State::Quiesced`] is over.
    #[pin]
    stopped: CondVar,
}

impl Queues {
    /// Whether the one who empties the queues waits for the caller.
    fn is_waited_for(&self, emptying: usize) -> bool {
        emptying == current() || self.queues.iter().any(|queue| queue.is_deferred())
    }

    /// Makes the device forget all buffers and returns them to their owners. If somebody else is
    /// about to, who waits for the caller, the device has been reset when this returns.
    fn stop(&self) {
        let mut state = self.state.lock();
        loop {
            match *state {
                State::Stopped | State::Deleted => return,
                State::Quiesced(task) if self.is_waited_for(task) => return,
                // Who resets the device waits for no task, and calls none of the driver.
                State::Stopping(_) | State::Quiesced(_) => self.stopped.wait(&mut state),
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
        self.set_state(State::Quiesced(current()));
        for queue in &self.queues {
            // SAFETY: The device has been stopped above.
            unsafe { queue.detach() };
        }
        self.set_state(State::Stopped);
    }

    /// Tells those who wait for the state.
    fn set_state(&self, state: State) {
        *self.state.lock() = state;
        self.stopped.notify_all();
    }

    /// Stops the device and deletes the queues.
    ///
    /// # Safety
    ///
    /// The device must be bound to the driver that created the queues, whose data is gone, and its
    /// lock must be held.
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
        self.watchdogs.close();
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
    } else {
        // SAFETY: The device is valid.
        unsafe { bindings::virtio_reset_device(raw) };
    }
    // Not all transports do that when they reset a device.
    //
    // SAFETY: As above. May sleep; all callers may.
    unsafe { bindings::virtio_synchronize_cbs(raw) };
}

/// Leaves a device in reset, and without queues, whose driver has let it go.
///
/// Here and not where [`Virtqueues`] are dropped: that may be anywhere, with any locks.
pub(crate) fn delete_unbound(dev: &Device<CoreInternal<'_>>) {
    // SAFETY: The device is valid, and its lock is held.
    let queues = unsafe { (*dev.as_raw()).priv_ }.cast::<Queues>();

    if let Some(queues) = NonNull::new(queues) {
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

/// Stops a device whose driver keeps its data: whoever uses it is told that it has been stopped.
pub(crate) fn stop_for_good(dev: &Device<CoreInternal<'_>>) {
    // SAFETY: The device is valid, and its lock is held.
    let queues = unsafe { (*dev.as_raw()).priv_ }.cast::<Queues>();

    if let Some(queues) = NonNull::new(queues) {
        // SAFETY: Only `Virtqueues::new` sets `priv`, to a reference that `delete` drops, for which
        // the lock of the device is needed.
        unsafe { queues.as_ref() }.stop();
    }
    if !dev.raw_status().is_reset() {
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
    /// buffers have been [cancelled](super::Handler::cancelled) and no handler runs. Only the first
    /// call does anything; none does after the [`Virtqueues`] have been dropped. Process context.
    ///
    /// A handler may call this. It does not wait for itself, nor for one who waits for it: then
    /// buffers may be cancelled later, and handlers still run.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Whether the device has failed or is gone. A register read.
    pub fn device_failed(&self) -> bool {
        let state = self.0.state.lock();
        match *state {
            State::Stopping(_) | State::Quiesced(_) | State::Stopped | State::Deleted => true,
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
/// Dropping it stops the device as [`Stopper::stop`] does. The queues, empty then, go when the
/// driver has let the device go.
pub struct Virtqueues<'bound> {
    queues: Arc<Queues>,
    _bound: PhantomData<&'bound Device<kernel::device::Bound>>,
}

impl<'bound> Virtqueues<'bound> {
    /// Creates the queues of a device, from number 0 on.
    ///
    /// Fails with `EBUSY` if the device already has queues, or has had some since it was bound, or
    /// a queue is in use elsewhere; with what the transport answers (as `ENOENT`) if the device has
    /// fewer queues.
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
                watchdogs: Watchdogs::new()?,
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
        // The queue is not deleted meanwhile: `Queues::delete` would have to get the lock first.
        let state = self.queues.state.lock();
        let raw = match *state {
            State::Created | State::Ready => queue.raw(),
            State::Stopping(_) | State::Quiesced(_) | State::Stopped | State::Deleted => None,
        };
        let Some(raw) = raw else {
            return;
        };
        let dev: &device::Device = (*self.queues.dev).as_ref();
        // SAFETY: The device is valid, as is the queue while the lock is held. For any number there
        // is a processor, a possible one.
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

    /// Looks at something for the first time after `delay_ms` milliseconds, and then when the look
    /// before it said.
    pub fn watch<W: Watch>(&self, delay_ms: u32, watch: W) -> Result<Watchdog<W>> {
        Watchdog::new(&self.queues.watchdogs, delay_ms, watch)
    }

    /// A handle that stops the device.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.queues.clone())
    }
}

impl Drop for Virtqueues<'_> {
    fn drop(&mut self) {
        self.queues.stop();
    }
}
