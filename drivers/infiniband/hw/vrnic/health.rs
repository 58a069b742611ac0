// SPDX-License-Identifier: GPL-2.0

//! Health of the device, and the handling of its failure.
//!
//! When a device fails, it gets no more commands, and its users are notified. Then a work item
//! stops it. From that point it writes no completions, so posted requests can be flushed: processes
//! find a flag in their notify areas, and every armed completion queue gets an event. Finally the
//! driver unbinds from the device and binds to it again: users close what they have open, and open
//! the new RDMA device.

use kernel::{
    device::Device,
    new_mutex,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    sync::{
        aref::ARef,
        atomic::{
            Acquire,
            Atomic,
            Full,
            Relaxed, //
        },
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

/// Shared values, by their addresses.
///
/// A thread that frees memory may wait for completions of the device, and those for whoever holds
/// the lock. So nothing is allocated under it.
type Set<T> = Mutex<RBTree<usize, Arc<T>>>;

/// Returns the key of a value in a [`Set`].
fn address<T>(value: &Arc<T>) -> usize {
    // CAST: The address identifies a value for as long as it exists.
    Arc::as_ptr(value) as usize
}

/// Adds a value to a set.
fn add<T>(set: &Set<T>, value: &Arc<T>) -> Result {
    let node = RBTreeNode::new(address(value), value.clone(), GFP_KERNEL)?;
    let before = set.lock().insert(node);
    // No other value has that address.
    drop(before);
    Ok(())
}

/// Removes a value from a set.
fn remove<T>(set: &Set<T>, value: &Arc<T>) {
    let node = set.lock().remove_node(&address(value));
    // Freed without holding the lock.
    drop(node);
}

/// Records whether the device has failed, and notifies its users.
#[pin_data]
pub(crate) struct Health {
    dev: ARef<Device>,
    dispatcher: Arc<Dispatcher>,
    restarter: Restarter,
    failed: Atomic<bool>,
    stopped: Atomic<bool>,
    /// Notify areas of all processes. Held while processes are notified.
    #[pin]
    processes: Set<NotifyArea>,
    /// All queues that the kernel polls.
    #[pin]
    queues: Set<KernelQueue>,
    /// Stops the device. [`None`] before [`supervise`] and after [`Supervised`] is dropped.
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
                failed: Atomic::new(false),
                stopped: Atomic::new(false),
                processes <- new_mutex!(RBTree::new()),
                queues <- new_mutex!(RBTree::new()),
                watchdog <- new_spinlock_irq!(None),
            }),
            GFP_KERNEL,
        )
    }

    /// Returns the virtio device, for log messages.
    pub(crate) fn dev(&self) -> &Device {
        &self.dev
    }

    /// Marks the device as failed. Only the first call has an effect. May be called in any context.
    pub(crate) fn fail(&self, reason: &str) {
        if self.end() {
            dev_err!(self.dev, "device failed: {}\n", reason);
        }
    }

    /// Prepares for power-off or kexec. For users of the device it looks like a failure.
    pub(crate) fn shutdown(&self) {
        self.end();
    }

    /// Notifies users that the device can no longer be used. Returns whether this was the first
    /// call.
    fn end(&self) -> bool {
        let new = !self.failed.xchg(true, Relaxed);
        if new {
            self.dispatcher.device_fatal();
            self.check_now();
        }
        new
    }

    /// Returns whether the device has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Relaxed)
    }

    /// Returns whether the device has failed and was stopped: it writes no more completions, and
    /// missing ones will not arrive.
    pub(crate) fn has_stopped(&self) -> bool {
        self.stopped.load(Acquire)
    }

    /// Handles requests that the kernel has just posted: if they can only be flushed, notifies the
    /// kernel to poll. May be called in any context.
    ///
    /// A user that polls before the requests are in the ring has seen that the device is stopped,
    /// and took the lock of the ring before the poster did. So the poster sees that as well.
    pub(crate) fn posted(&self) {
        if self.has_failed() {
            self.check_now();
        }
    }

    fn check_now(&self) {
        if let Some(watchdog) = &*self.watchdog.lock() {
            watchdog.check_now();
        }
    }

    /// Flushes everything that was posted, after the device has failed and was stopped.
    fn flush_all(&self) {
        let before = self.stopped.xchg(true, Full);
        // Pairs with the fence after arming a queue: either its user sees that the device is
        // stopped, or this sees that the queue is armed.
        full_fence();
        if before {
            // Only the kernel posts through the driver. Processes have been notified.
            self.dispatcher.complete_kernel();
            return;
        }
        for area in self.processes.lock().values() {
            self.tell(area);
        }
        self.dispatcher.complete_all();
        // Users that drain a queue pair wait for this event, which is raised only once.
        self.dispatcher.last_receive_all();
        self.restarter.request();
    }

    /// Adds a process to notify when the device fails.
    pub(crate) fn add_process(&self, area: &Arc<NotifyArea>) -> Result {
        add(&self.processes, area)?;
        // A device that stops after this finds the process.
        if self.has_stopped() {
            self.tell(area);
        }
        Ok(())
    }

    /// Notifies a process that its context is gone from the device, and removes the process.
    pub(crate) fn remove_process(&self, area: &Arc<NotifyArea>) {
        self.tell(area);
        remove(&self.processes, area);
    }

    /// Starts to check whether requests on queue pairs in error are flushed to `queue`.
    pub(crate) fn add_queue(&self, queue: &Arc<KernelQueue>) -> Result {
        add(&self.queues, queue)
    }

    /// Stops checking `queue`.
    pub(crate) fn remove_queue(&self, queue: &Arc<KernelQueue>) {
        remove(&self.queues, queue);
    }

    /// Returns whether the device owes users in the kernel flush completions, for which they wait.
    /// Must be called every [`INTERVAL_MS`].
    fn owes_flushes(&self) -> bool {
        let owes = |queue: &Arc<KernelQueue>| queue.polled.lock().owes_flushes() != Ok(false);
        self.queues.lock().values().any(owes)
    }

    fn tell(&self, area: &NotifyArea) {
        if let Err(err) = area.set_failed() {
            dev_err!(
                self.dev,
                "cannot notify a process of the failure: {:?}\n",
                err
            );
        }
    }
}

/// Interval in milliseconds at which the device's status is checked. A register read is cheap
/// enough, and it detects that a device is gone while no command waits for it.
pub(crate) const INTERVAL_MS: u32 = 1000;

/// Detects that an idle device has failed, and stops a failed device.
struct Supervision(Arc<Control>);

impl Watch for Supervision {
    fn check(&self) -> Option<u32> {
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

/// Supervision of a device, which ends when this is dropped.
pub(crate) struct Supervised(Arc<Health>);

impl Drop for Supervised {
    fn drop(&mut self) {
        let watchdog = self.0.watchdog.lock().take();
        // Not done under the lock, because it frees memory.
        drop(watchdog);
    }
}

/// Supervises the device of `queues` and `control`.
pub(crate) fn supervise(queues: &Virtqueues<'_>, control: Arc<Control>) -> Result<Supervised> {
    let health = control.health().clone();
    let watchdog = queues.watch(INTERVAL_MS, Supervision(control))?;
    *health.watchdog.lock() = Some(watchdog);
    Ok(Supervised(health))
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_health)]
mod tests {
    use super::*;

    use virtio::testing::reclaiming;

    #[test]
    fn threads_that_free_memory_may_wait_for_the_locks() -> Result {
        let set: Arc<Set<u32>> = Arc::pin_init(new_mutex!(RBTree::new()), GFP_KERNEL)?;
        let (first, second) = (Arc::new(1, GFP_KERNEL)?, Arc::new(2, GFP_KERNEL)?);
        // With this, lockdep reports whatever else happens under the lock and waits for memory.
        reclaiming(|| remove(&set, &first));
        add(&set, &first)?;
        add(&set, &second)?;
        remove(&set, &first);
        assert!(set.lock().values().map(|value| **value).eq([2]));
        remove(&set, &second);
        assert!(set.lock().is_empty());
        Ok(())
    }
}
