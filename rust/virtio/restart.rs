// SPDX-License-Identifier: GPL-2.0

//! Restart of a device that has failed.
//!
//! A device that was reset has forgotten everything that its driver told it, and no driver can
//! restore that without its users. So the driver releases the device, as if it were unbound, and
//! probes it again, as if it were bound. The transport triggers this when a function is
//! reset; this module triggers it when the machine has resumed and when the driver asks for it.

use kernel::{
    device::CoreInternal,
    error::to_result,
    new_mutex,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
    time::{
        Delta,
        Instant,
        Monotonic, //
    },
    types::NotThreadSafe, //
};

use crate::{
    bindings,
    watchdog::{
        Owner,
        Watch,
        Work, //
    },
    Device,
    Feature, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// When a device that has failed is restarted ([`Restarter`]).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Maximum number of restarts of a device that fails again and again.
    pub attempts: u32,
    /// Delay in milliseconds between a failure and the first attempt, during which users can notice
    /// the failure. It doubles with each attempt.
    pub first_delay_ms: u32,
    /// Time in milliseconds for which a device must work until earlier failures are forgotten.
    pub settled_ms: u32,
}

impl RestartPolicy {
    /// Returns the delay in milliseconds before an attempt, given the number of earlier ones.
    fn delay_ms(&self, earlier: u32) -> u32 {
        let factor = 1_u32.checked_shl(earlier).unwrap_or(u32::MAX);
        self.first_delay_ms.saturating_mul(factor)
    }
}

/// Interval in milliseconds at which the device lock is tried again.
const BUSY_MS: u32 = 100;

/// The device lock, held.
pub(crate) struct Locked<'a>(&'a Device, NotThreadSafe);

impl<'a> Locked<'a> {
    /// Takes the lock, and waits for it if necessary.
    pub(crate) fn new(dev: &'a Device) -> Self {
        // SAFETY: The device is valid.
        unsafe { bindings::device_lock(&raw mut (*dev.as_raw()).dev) };
        Self(dev, NotThreadSafe)
    }

    /// Tries to take the lock; [`None`] if it is taken.
    fn try_new(dev: &'a Device) -> Option<Self> {
        // SAFETY: The device is valid.
        let locked = unsafe { bindings::device_trylock(&raw mut (*dev.as_raw()).dev) };
        (locked != 0).then_some(())?;
        Some(Self(dev, NotThreadSafe))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is valid, and its lock was taken when this was created. This type is
        // not `Send`, so it is the same task that unlocks it.
        unsafe { bindings::device_unlock(&raw mut (*self.0.as_raw()).dev) };
    }
}

/// What is to happen to the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pending {
    /// Nothing.
    None,
    /// A restart.
    Restart,
    /// The machine sleeps, or the transport resets the device: it will be returned.
    Return,
    /// The machine has resumed, and the driver is to probe the device.
    Probe,
}

/// Progress of restarts.
struct Progress {
    pending: Pending,
    /// Number of attempts since the device last worked for long enough.
    attempts: u32,
    /// When the driver got the device, or the last attempt ended. [`None`] during an attempt.
    since: Option<Instant<Monotonic>>,
}

impl Progress {
    /// Creates the state for a driver that gets the device now.
    fn new() -> Self {
        Self {
            pending: Pending::None,
            attempts: 0,
            since: Some(Instant::now()),
        }
    }
}

/// A function that takes a device from its driver, and lets the driver probe it again.
pub(crate) type Reprobe = unsafe fn(*mut bindings::virtio_device) -> Result;

/// The work that restarts a device.
///
/// # Invariants
///
/// `reprobe` may be called with the lock of `dev` held until the work's [`Owner`] has ended the
/// work.
#[pin_data]
pub(crate) struct Restart {
    dev: ARef<Device>,
    reprobe: Reprobe,
    policy: RestartPolicy,
    #[pin]
    progress: Mutex<Progress>,
}

impl Restart {
    /// Suspends restarts, because the transport has taken the device from the driver.
    pub(crate) fn suspend(&self) {
        self.progress.lock().pending = Pending::Return;
    }

    /// Resumes restarts, because the transport returns the device. Earlier failures are forgotten.
    pub(crate) fn resume(&self) {
        self.resume_with(Pending::None);
    }

    fn resume_with(&self, pending: Pending) {
        *self.progress.lock() = Progress {
            pending,
            ..Progress::new()
        };
    }

    /// Requests a restart. Returns the delay in milliseconds, if an attempt is due.
    fn request(&self) -> Option<u32> {
        let mut progress = self.progress.lock();
        if progress.pending == Pending::Return {
            return None;
        }
        progress.pending = Pending::Restart;
        // A running attempt checks `pending` when it ends.
        if progress.since?.elapsed() > Delta::from_millis(self.policy.settled_ms.into()) {
            progress.attempts = 0;
        }
        self.next(&mut progress)
    }

    /// Returns the delay in milliseconds until the next attempt, if there is one.
    fn next(&self, progress: &mut Progress) -> Option<u32> {
        if progress.attempts < self.policy.attempts {
            return Some(self.policy.delay_ms(progress.attempts));
        }
        progress.pending = Pending::None;
        dev_err!(
            self.dev,
            "giving up after {} restarts; rebind the driver to try again\n",
            progress.attempts
        );
        None
    }
}

impl Watch for Restart {
    fn check(&self) -> Option<u32> {
        // A thread that takes the device from its driver has the lock, and waits for this work.
        let Some(_locked) = Locked::try_new(&self.dev) else {
            return Some(BUSY_MS);
        };
        {
            let mut progress = self.progress.lock();
            let is_restart = match progress.pending {
                Pending::None | Pending::Return => return None,
                Pending::Restart => true,
                Pending::Probe => false,
            };
            progress.pending = Pending::None;
            if self.dev.raw_status().is_gone() {
                return None;
            }
            progress.since = None;
            if is_restart {
                progress.attempts += 1;
                dev_info!(
                    self.dev,
                    "restarting the device, attempt {} of {}\n",
                    progress.attempts,
                    self.policy.attempts
                );
            }
        }
        // SAFETY: By the type invariant; the lock is held.
        let result = unsafe { (self.reprobe)(self.dev.as_raw()) };
        let mut progress = self.progress.lock();
        progress.since = Some(Instant::now());
        if let Err(err) = result {
            dev_warn!(self.dev, "failed to restart the device: {:?}\n", err);
            progress.pending = Pending::Restart;
        }
        // The device may have failed again while the driver probed it.
        match progress.pending {
            Pending::Restart => self.next(&mut progress),
            Pending::None | Pending::Return | Pending::Probe => None,
        }
    }
}

/// A handle to restart a device. A driver gets it when it [probes the
/// device](crate::Driver::probe).
#[derive(Clone)]
pub struct Restarter(Arc<Work<Restart>>);

impl Restarter {
    /// Creates the handle for a device. It has no effect once the returned [`Owner`] is dropped or
    /// ended.
    ///
    /// # Safety
    ///
    /// Until then, `reprobe` may be called at any time with the device lock held.
    pub(crate) unsafe fn new(
        dev: &Device,
        reprobe: Reprobe,
        policy: RestartPolicy,
    ) -> Result<(Self, Owner<Restart>)> {
        // INVARIANT: By the caller's contract.
        let owner = Work::owned(pin_init!(Restart {
            dev: dev.into(),
            reprobe,
            policy,
            progress <- new_mutex!(Progress::new()),
        }))?;
        Ok((Self(owner.0.clone()), owner))
    }

    /// Restarts a device that has failed: takes it from its driver, whose data is dropped, and lets
    /// the driver probe it again. If the transport returns a device and the driver fails to probe
    /// it, this is called, too.
    ///
    /// The restart is delayed, so that users can notice the failure. The delay grows with each
    /// failure soon after the last one, and the number of attempts is limited, as
    /// [the driver chooses](crate::Driver::RESTARTS). There is no restart
    /// if the device is suspended or shut down, if it is gone, or if it is taken from the driver
    /// for another reason first. Process context.
    pub fn request(&self) {
        if let Some(delay_ms) = self.0.watch.request() {
            self.0.check_after(delay_ms);
        }
    }

    /// Lets the driver probe the device once the whole machine has resumed. Until then its parent
    /// still sleeps, and must not get children.
    pub(crate) fn probe_after_sleep(&self) {
        self.0.watch.resume_with(Pending::Probe);
        self.0.check_after(0);
    }
}

/// Resets a device and negotiates the same features again. `ENODEV` if the device is gone, because
/// it would never report the end of the reset.
pub(crate) fn renegotiate(dev: &Device<CoreInternal<'_>>) -> Result {
    let raw = dev.as_raw();
    let status = |bit: c_uint| {
        // SAFETY: The device is valid. May sleep; the caller may.
        unsafe { bindings::virtio_add_status(raw, bit) }
    };
    if dev.raw_status().is_gone() {
        return Err(ENODEV);
    }
    // SAFETY: The device is valid. May sleep; the caller may.
    unsafe { bindings::virtio_reset_device(raw) };
    status(bindings::VIRTIO_CONFIG_S_ACKNOWLEDGE);
    status(bindings::VIRTIO_CONFIG_S_DRIVER);
    // SAFETY: The device is valid, and its features were negotiated when it was bound.
    to_result(unsafe { bindings::virtio_finalize_features(raw) })?;
    // Legacy devices do not have this bit.
    if !dev.features().contains(Feature::VERSION_1) {
        return Ok(());
    }
    status(bindings::VIRTIO_CONFIG_S_FEATURES_OK);
    match dev.raw_status().features_ok() {
        true => Ok(()),
        false => Err(ENODEV),
    }
}
