// SPDX-License-Identifier: GPL-2.0

//! Whether the device still works, and what is to be done when it does not.
//!
//! A device that fails is given no commands any more, and its users are told. Then a work item
//! stops it. From there on it writes no completions, so what was posted can be flushed: processes
//! find a flag in their notify areas, and every completion queue that is armed gets an event. At
//! last the driver lets the device go and begins anew with it: users close what they have, and open
//! the new RDMA device.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};

use kernel::{
    device::Device,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        new_spinlock_irq,
        Arc,
        Mutex,
        SpinLockIrq, //
    }, //
};
use rdma::event::Dispatcher;
use virtio::{
    full_fence,
    Restarter,
    Virtqueues,
    Watch,
    Watchdog, //
};

use crate::{
    control::Control,
    cq::KernelQueue,
    ucontext::NotifyArea, //
};

/// Remembers that the device has failed, and tells its users.
#[pin_data]
pub(crate) struct Health {
    dev: ARef<Device>,
    dispatcher: Arc<Dispatcher>,
    restarter: Restarter,
    failed: AtomicBool,
    stopped: AtomicBool,
    /// Notify areas of all processes. Held while processes are told.
    #[pin]
    processes: Mutex<KVec<Arc<NotifyArea>>>,
    /// All queues that the kernel polls.
    #[pin]
    queues: Mutex<KVec<Arc<KernelQueue>>>,
    /// Stops the device. There is none before [`supervise`] and after [`Supervised`].
    #[pin]
    watchdog: SpinLockIrq<Option<Watchdog<Supervision>>>,
}

impl Health {
    pub(crate) fn new(
        dev: &Device,
        dispatcher: Arc<Dispatcher>,
        restarter: Restarter,
    ) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                dev: dev.into(),
                dispatcher,
                restarter,
                failed: AtomicBool::new(false),
                stopped: AtomicBool::new(false),
                processes <- new_mutex!(KVec::new()),
                queues <- new_mutex!(KVec::new()),
                watchdog <- new_spinlock_irq!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// The device, for messages about it.
    pub(crate) fn dev(&self) -> &Device {
        &self.dev
    }

    /// The device has failed. Only the first call does anything. May be called in any context.
    pub(crate) fn fail(&self, reason: &str) {
        if self.end() {
            dev_err!(self.dev, "device failed: {}\n", reason);
        }
    }

    /// The machine is about to be switched off, or to begin another kernel: for the users of the
    /// device it is as if it had failed.
    pub(crate) fn shutdown(&self) {
        self.end();
    }

    /// Tells users that the device is of no use any more. Returns whether this is new to them.
    fn end(&self) -> bool {
        let new = !self.failed.swap(true, Ordering::Relaxed);
        if new {
            self.dispatcher.device_fatal();
            self.look_now();
        }
        new
    }

    /// Whether the device has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Whether the device has failed and writes no completions any more: those that are not there
    /// will not come.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The kernel has posted requests. If they can only be flushed, it is told to poll. May be
    /// called in any context.
    ///
    /// Whoever polls before the requests are there had seen that the device has stopped, and took
    /// the lock of the ring before the poster did; so the poster sees it too.
    pub(crate) fn posted(&self) {
        if self.has_failed() {
            self.look_now();
        }
    }

    fn look_now(&self) {
        if let Some(watchdog) = &*self.watchdog.lock() {
            watchdog.look_now();
        }
    }

    /// The device has failed and has stopped: has everybody flush what was posted.
    fn flush_all(&self) {
        let before = self.stopped.swap(true, Ordering::AcqRel);
        // Pairs with the fence after arming a queue: either its user sees that the device has
        // stopped, or this that the queue is armed.
        full_fence();
        for area in &*self.processes.lock() {
            self.tell(area);
        }
        self.dispatcher.complete_all();
        // Who drains a queue pair waits for that. It is told once, not whenever somebody posts.
        if !before {
            self.dispatcher.last_receive_all();
            self.restarter.request();
        }
    }

    /// Remembers a process that is to be told when the device fails.
    pub(crate) fn add_process(&self, area: &Arc<NotifyArea>) -> Result {
        let mut processes = self.processes.lock();
        processes.push(area.clone(), GFP_KERNEL)?;
        if self.has_stopped() {
            self.tell(area);
        }
        Ok(())
    }

    /// Tells a process that its context is gone from the device, and forgets it.
    pub(crate) fn remove_process(&self, area: &Arc<NotifyArea>) {
        self.tell(area);
        let is_other = |other: &mut Arc<NotifyArea>| !Arc::ptr_eq(other, area);
        self.processes.lock().retain(is_other);
    }

    /// Looks from now on whether what was posted to queue pairs in error is flushed to `queue`.
    pub(crate) fn add_queue(&self, queue: &Arc<KernelQueue>) -> Result {
        Ok(self.queues.lock().push(queue.clone(), GFP_KERNEL)?)
    }

    /// Looks at `queue` no more.
    pub(crate) fn remove_queue(&self, queue: &Arc<KernelQueue>) {
        let is_other = |other: &mut Arc<KernelQueue>| !Arc::ptr_eq(other, queue);
        self.queues.lock().retain(is_other);
    }

    /// Whether the device owes flushes to users in the kernel, who wait for them. To be called
    /// every [`INTERVAL_MS`].
    fn owes_flushes(&self) -> bool {
        let owes = |queue: &Arc<KernelQueue>| queue.polled.lock().owes_flushes();
        let queues = self.queues.lock();
        queues.iter().any(|queue| owes(queue) != Ok(false))
    }

    fn tell(&self, area: &NotifyArea) {
        if let Err(err) = area.set_failed() {
            dev_err!(self.dev, "cannot tell a process of the end: {:?}\n", err);
        }
    }
}

/// Milliseconds after which the device's status is looked at again. A register read is cheap
/// enough, and it is how one learns that a device is gone while no command waits for it.
pub(crate) const INTERVAL_MS: u32 = 1000;

/// Notices that the device failed though nobody gives it commands, and stops a device that failed.
struct Supervision(Arc<Control>);

impl Watch for Supervision {
    fn look(&self) -> Option<u32> {
        let health = self.0.health();
        if health.owes_flushes() {
            health.fail("it does not flush a queue pair");
        }
        if !self.0.check() {
            return Some(INTERVAL_MS);
        }
        health.flush_all();
        None
    }
}

/// Supervision of a device, until this is dropped.
pub(crate) struct Supervised(Arc<Health>);

impl Drop for Supervised {
    fn drop(&mut self) {
        let watchdog = self.0.watchdog.lock().take();
        // Frees memory, so not under the lock.
        drop(watchdog);
    }
}

/// Supervises the device that has the `queues`, and that `control` gives commands.
pub(crate) fn supervise(queues: &Virtqueues<'_>, control: Arc<Control>) -> Result<Supervised> {
    let health = control.health().clone();
    let watchdog = queues.watch(INTERVAL_MS, Supervision(control))?;
    *health.watchdog.lock() = Some(watchdog);
    Ok(Supervised(health))
}
