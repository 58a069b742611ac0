// SPDX-License-Identifier: GPL-2.0

//! All queues of a device, which stand for all its DMA and interrupts.

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
        Bound,
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
    workqueue::Workqueue,
    Device,
    Dma,
    Watch,
    Watchdog, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Life cycle of a device's queues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The queues exist, but the device does not use them yet.
    Created,
    /// The device is running.
    Ready,
    /// The given task is resetting the device.
    Stopping(usize),
    /// The device is reset, and the given task is emptying the queues.
    Quiesced(usize),
    /// The device is reset. The queues are empty and reject buffers.
    Stopped,
    /// The queues are deleted, or are being deleted.
    Deleted,
}

/// Returns a number that identifies the current task.
fn current() -> usize {
    // CAST: Not used as an address.
    Task::current_raw() as usize
}

/// All queues of a device. `priv` of the virtio device points here, so interrupts can find them.
#[pin_data]
struct Queues {
    dev: ARef<Device>,
    queues: KVec<Arc<dyn AnyVirtqueue>>,
    dma: Dma,
    watchdogs: Arc<Watchdogs>,
    /// Runs what the queues defer. It does not run once the queues are deleted, so it is not the
    /// one that drops `self`.
    workqueue: Workqueue,
    #[pin]
    state: Mutex<State>,
    /// Signals the end of [`State::Stopping`] and [`State::Quiesced`].
    #[pin]
    stopped: CondVar,
}

impl Queues {
    /// Returns whether the task that empties the queues waits for the caller.
    fn is_waited_for(&self, emptying: usize) -> bool {
        emptying == current() || self.queues.iter().any(|queue| queue.is_deferred())
    }

    /// Resets the device and returns all buffers to their owners. If another task is already doing
    /// this and waits for the caller, the device has been reset when this returns, but buffers may
    /// still be in the queues.
    fn stop(&self) {
        let mut state = self.state.lock();
        loop {
            match *state {
                State::Stopped | State::Deleted => return,
                State::Quiesced(task) if self.is_waited_for(task) => return,
                // The task that resets the device waits for no other task, and calls no driver
                // code.
                State::Stopping(_) | State::Quiesced(_) => self.stopped.wait(&mut state),
                State::Created | State::Ready => break,
            }
        }
        // The transport stays valid, because deleting the queues waits for the end of this. The
        // lock is dropped so that threads for which this waits can query the state of the device.
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

    /// Changes the state, and wakes all waiters.
    fn set_state(&self, state: State) {
        *self.state.lock() = state;
        self.stopped.notify_all();
    }

    /// Stops the device and deletes the queues.
    ///
    /// # Safety
    ///
    /// The device must be bound to the driver that created the queues, the driver's data must have
    /// been dropped, and the device lock must be held.
    unsafe fn delete(&self) {
        self.stop();
        // From here on nothing else uses the transport. The lock is dropped because freeing
        // interrupts takes locks under which a driver may have to stop its device, such as those of
        // memory reclaim.
        if core::mem::replace(&mut *self.state.lock(), State::Deleted) == State::Deleted {
            return;
        }
        for queue in &self.queues {
            // A deferred handler may have stopped the device, without waiting for itself.
            queue.join();
        }
        self.watchdogs.close();
        self.dma.close();
        let raw = self.dev.as_raw();
        // SAFETY: The device is valid, and by the caller's contract it is bound, so its transport
        // is valid. `Virtqueues::new` has created the queues, which are no longer in use.
        unsafe { bindings::virtio_del_vqs(raw) };
        for queue in &self.queues {
            queue.release();
        }
        // SAFETY: `Virtqueues::new` has stored a reference there. Its only other users, interrupts,
        // were freed together with the queues.
        drop(unsafe { Arc::<Self>::from_raw((*raw).priv_.cast()) });
        // SAFETY: The device is valid, and its lock is held.
        unsafe { (*raw).priv_ = ptr::null_mut() };
    }

    /// Handles an interrupt of a queue.
    ///
    /// # Safety
    ///
    /// `vq` must be a queue that [`Virtqueues::new`] created and that is not deleted yet.
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

/// Creates the DMA handle of a device. It is closed from the start if the transport maps memory in
/// a way of its own: there is then no device that does DMA.
fn dma_of(dev: &Device<Bound>) -> Result<Dma> {
    let dma = Dma::new(dev.parent())?;
    // SAFETY: The device is valid. The transport set `map` before it registered the device.
    if !unsafe { (*dev.as_raw()).map }.is_null() {
        dma.close();
    }
    Ok(dma)
}

/// Resets the device, unless it is gone: then it does not respond, and needs no reset.
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
    // Not all transports synchronise with handlers when they reset a device.
    //
    // SAFETY: The device is valid. This may sleep, as all callers may.
    unsafe { bindings::virtio_synchronize_cbs(raw) };
}

/// Resets a device that its driver has released, and deletes its queues.
///
/// This does not happen when [`Virtqueues`] are dropped, because a driver may hold locks then.
pub(crate) fn delete_unbound(dev: &Device<CoreInternal<'_>>) {
    // SAFETY: The device is valid, and its lock is held.
    let queues = unsafe { (*dev.as_raw()).priv_ }.cast::<Queues>();

    if let Some(queues) = NonNull::new(queues) {
        // SAFETY: Only `Virtqueues::new` sets `priv`, to a reference that lives at least until
        // `delete` drops it. The clone keeps the queues alive during `delete`.
        let queues = ManuallyDrop::new(unsafe { Arc::<Queues>::from_raw(queues.as_ptr()) });
        let queues = Arc::clone(&queues);
        // SAFETY: The device is still bound to that driver, and its lock is held.
        unsafe { queues.delete() };
    } else if !dev.raw_status().is_reset() {
        quiesce(&**dev);
    }
}

/// Stops a device whose driver keeps its data. Users of the device find that it has been stopped.
pub(crate) fn stop_for_good(dev: &Device<CoreInternal<'_>>) {
    // SAFETY: The device is valid, and its lock is held.
    let queues = unsafe { (*dev.as_raw()).priv_ }.cast::<Queues>();

    if let Some(queues) = NonNull::new(queues) {
        // SAFETY: Only `Virtqueues::new` sets `priv`, to a reference that `delete` drops, and
        // `delete` needs the device lock.
        unsafe { queues.as_ref() }.stop();
    }
    if !dev.raw_status().is_reset() {
        quiesce(&**dev);
    }
}

/// A handle to stop a device from anywhere in its driver.
#[derive(Clone)]
pub struct Stopper(Arc<Queues>);

impl Stopper {
    /// Resets the device and returns all buffers to their owners.
    ///
    /// On return the device does not access any memory, whatever it was asked to do before, all
    /// buffers have been [cancelled](super::Handler::cancelled) and no handler runs. Only the first
    /// call has an effect, and none does after the [`Virtqueues`] have been dropped. Process
    /// context.
    ///
    /// A handler may call this. The call then does not wait for that handler, nor for a task that
    /// waits for it, so buffers may be cancelled later, and handlers may still run on return.
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Returns whether the device has failed or is gone. This reads a register.
    pub fn device_failed(&self) -> bool {
        let state = self.0.state.lock();
        match *state {
            State::Stopping(_) | State::Quiesced(_) | State::Stopped | State::Deleted => true,
            State::Created | State::Ready => {
                // The transport is valid, because `Queues::delete` needs the lock.
                let status = self.0.dev.raw_status();
                // A device that was ready and no longer is was reset behind the driver's back.
                let lost = *state == State::Ready && !status.driver_ok();
                status.is_gone() || status.needs_reset() || lost
            }
        }
    }
}

/// Queues that were claimed for a device, and that are released when this is dropped.
pub(crate) struct Claimed(KVec<Arc<dyn AnyVirtqueue>>);

impl Claimed {
    /// Claims queues. `EBUSY` if one of them already belongs to a device, or is listed twice.
    pub(crate) fn new(queues: KVec<Arc<dyn AnyVirtqueue>>) -> Result<Self> {
        if let Some(taken) = queues.iter().position(|queue| !queue.claim()) {
            for queue in &queues[..taken] {
                queue.release();
            }
            return Err(EBUSY);
        }
        Ok(Self(queues))
    }

    /// Returns the queues without releasing them; the caller must do that.
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

/// The queues of a bound device, which stand for all its DMA and interrupts.
///
/// Dropping this stops the device like [`Stopper::stop`]. The queues are empty then, and are
/// deleted once the driver has released the device.
pub struct Virtqueues<'bound> {
    queues: Arc<Queues>,
    _bound: PhantomData<&'bound Device<Bound>>,
}

impl<'bound> Virtqueues<'bound> {
    /// Creates the queues of a device, numbered from 0.
    ///
    /// Fails with `EBUSY` if the device has had queues since it was bound, or if a queue is in use
    /// elsewhere. Fails with an error of the transport, such as `ENOENT`, if the device has fewer
    /// queues.
    pub fn new(dev: &'bound Device<Core<'_>>, queues: KVec<Arc<dyn AnyVirtqueue>>) -> Result<Self> {
        let raw = dev.as_raw();
        // SAFETY: The device is valid, and `Core` guarantees that its lock is held.
        if !unsafe { (*raw).priv_ }.is_null() {
            return Err(EBUSY);
        }
        let queues = Claimed::new(queues)?;
        let count = queues.0.len();
        let number: c_uint = count.try_into()?;
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

        let generic: &device::Device = (***dev).as_ref();
        let queues = Arc::pin_init(
            try_pin_init!(Queues {
                dma: dma_of(dev)?,
                watchdogs: Watchdogs::new(generic)?,
                workqueue: Workqueue::for_reclaim(generic, c"events")?,
                dev: dev.into(),
                queues: queues.keep(),
                state <- new_mutex!(State::Created, "virtio::Virtqueues"),
                stopped <- new_condvar!("virtio::Virtqueues"),
            }? Error),
            GFP_KERNEL,
        )?;

        // Interrupts may arrive as soon as the queues exist, and must find them.
        //
        // SAFETY: The device is valid, and its lock is held.
        unsafe { (*raw).priv_ = Arc::into_raw(queues.clone()).cast_mut().cast() };

        // SAFETY: The device is valid and bound to the calling driver. Both arrays have `number`
        // elements. The names belong to the queues, which outlive the C queues.
        let ret = unsafe {
            bindings::virtio_find_vqs(
                raw,
                number,
                raws.as_mut_ptr(),
                infos.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        to_result(ret).inspect_err(|_| {
            // The device may already have used some of the queues that the transport has freed
            // again.
            quiesce(&***dev);
            for queue in &queues.queues {
                queue.release();
            }
            // SAFETY: The transport has freed the queues and their interrupts, the only users of
            // this reference, which was stored above.
            drop(unsafe { Arc::<Queues>::from_raw((*raw).priv_.cast()) });
            // SAFETY: The device is valid, and its lock is held.
            unsafe { (*raw).priv_ = ptr::null_mut() };
        })?;

        for (queue, raw) in queues.queues.iter().zip(raws) {
            // SAFETY: `raw` is a new queue that is not in use elsewhere. Only `Queues::delete`
            // deletes it, after `detach` and then `join`; until then `priv` keeps the workqueue.
            unsafe { queue.attach(raw, queues.workqueue.as_raw()) };
        }
        Ok(Self {
            queues,
            _bound: PhantomData,
        })
    }

    /// Tells the device to start (`DRIVER_OK`).
    ///
    /// Buffers must be added after this: a kernel that is hardened against its devices rejects them
    /// before.
    pub fn ready(&self) -> Result {
        let mut state = self.queues.state.lock();
        let dev = &self.queues.dev;
        if *state != State::Created || dev.raw_status().driver_ok() {
            return Err(EBUSY);
        }
        // SAFETY: The device is valid, bound, and has not been started yet.
        unsafe { bindings::virtio_device_ready(dev.as_raw()) };
        *state = State::Ready;
        Ok(())
    }

    /// Makes one CPU handle the interrupts of queue `index`, unless the administrator overrides
    /// that. It is the `nth` CPU, counted in order of distance to the device, modulo the number of
    /// CPUs.
    ///
    /// This has no effect if the transport has one interrupt for several queues, or does not
    /// support it.
    pub fn set_affinity(&self, index: usize, nth: u32) {
        let Some(queue) = self.queues.queues.get(index) else {
            return;
        };
        // The queue cannot be deleted concurrently, because `Queues::delete` needs the lock.
        let state = self.queues.state.lock();
        let raw = match *state {
            State::Created | State::Ready => queue.raw(),
            State::Stopping(_) | State::Quiesced(_) | State::Stopped | State::Deleted => None,
        };
        let Some(raw) = raw else {
            return;
        };
        let dev: &device::Device = (*self.queues.dev).as_ref();
        // SAFETY: The device is valid, and so is the queue while the lock is held.
        // `cpumask_local_spread` returns a possible CPU for any number.
        unsafe {
            let node = bindings::dev_to_node((*compat::device_as_raw(dev)).parent);
            let cpu = bindings::cpumask_local_spread(nth, node);
            bindings::virtqueue_set_affinity(raw.as_ptr(), bindings::cpumask_of(cpu));
        }
    }

    /// Returns the DMA handle of the device.
    #[inline]
    pub fn dma(&self) -> &Dma {
        &self.queues.dma
    }

    /// Creates a watchdog that runs first after `delay_ms` milliseconds, and then whenever the
    /// previous run asked for.
    pub fn watch<W: Watch>(&self, delay_ms: u32, watch: W) -> Result<Watchdog<W>> {
        Watchdog::new(&self.queues.watchdogs, delay_ms, watch)
    }

    /// Returns a handle that stops the device.
    #[inline]
    pub fn stopper(&self) -> Stopper {
        Stopper(self.queues.clone())
    }
}

impl Drop for Virtqueues<'_> {
    fn drop(&mut self) {
        self.queues.stop();
    }
}
