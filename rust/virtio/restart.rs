// SPDX-License-Identifier: GPL-2.0

//! Beginning anew with a device that has failed.
//!
//! A device that was reset has forgotten all that its driver told it, and no driver can bring that
//! back without its users. So the driver lets go of the device, as if it were unbound, and takes it
//! over again, as if it were bound. The transport has that done when a machine sleeps or a function
//! is reset; here it is done when the driver asks for it.

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

/// How often a driver begins anew with a device that fails again and again.
const MOST_ATTEMPTS: u32 = 5;

/// Milliseconds from a failure to the first attempt, in which users see for themselves that the
/// device has failed. It doubles with each attempt.
const FIRST_DELAY_MS: u32 = if cfg!(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST) {
    10
} else {
    1000
};

/// Milliseconds after which one who has the device is asked again whether he has done.
const BUSY_MS: u32 = 100;

/// For how long a device has to work until its failures are forgotten.
const SETTLED: Delta = Delta::from_secs(if cfg!(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST) {
    1
} else {
    60
});

/// The lock of a device, held.
pub(crate) struct Locked<'a>(&'a Device, NotThreadSafe);

impl<'a> Locked<'a> {
    /// Waits for the lock.
    pub(crate) fn new(dev: &'a Device) -> Self {
        // SAFETY: The device is valid.
        unsafe { bindings::device_lock(&raw mut (*dev.as_raw()).dev) };
        Self(dev, NotThreadSafe)
    }

    /// [`None`] if somebody else has it.
    fn try_new(dev: &'a Device) -> Option<Self> {
        // SAFETY: The device is valid.
        let locked = unsafe { bindings::device_trylock(&raw mut (*dev.as_raw()).dev) };
        (locked != 0).then_some(())?;
        Some(Self(dev, NotThreadSafe))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is valid, and its lock was taken when this was created. This is not
        // `Send`, so the task is the same.
        unsafe { bindings::device_unlock(&raw mut (*self.0.as_raw()).dev) };
    }
}

/// Whether a driver is to begin anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Nobody wants it.
    None,
    /// Somebody wants it.
    Restart,
    /// The transport has the device, and will have the driver begin anew.
    Resume,
}

/// How far a driver has come in beginning anew.
struct Progress {
    wish: Wish,
    /// How often it was tried since the device last worked for long.
    attempts: u32,
    /// When the driver got the device, or the last attempt ended. [`None`] during an attempt.
    since: Option<Instant<Monotonic>>,
}

impl Progress {
    /// The driver gets the device now.
    fn new() -> Self {
        Self {
            wish: Wish::None,
            attempts: 0,
            since: Some(Instant::now()),
        }
    }
}

/// Takes a device from its driver and gives it back.
pub(crate) type Again = unsafe fn(*mut bindings::virtio_device) -> Result;

/// Has the driver of a device begin anew.
///
/// # Invariants
///
/// `again` may be called with the lock of `dev` held, unless the [`Owner`] of the work has ended
/// it.
#[pin_data]
pub(crate) struct Restart {
    dev: ARef<Device>,
    again: Again,
    #[pin]
    progress: Mutex<Progress>,
}

impl Restart {
    /// The transport has taken the device from the driver: nobody begins anew with it.
    pub(crate) fn suspend(&self) {
        self.progress.lock().wish = Wish::Resume;
    }

    /// The transport gives the device back. What failed before does not count any more.
    pub(crate) fn resume(&self) {
        *self.progress.lock() = Progress::new();
    }

    /// After how many milliseconds an attempt is made, if any.
    fn request(&self) -> Option<u32> {
        let mut progress = self.progress.lock();
        if progress.wish == Wish::Resume {
            return None;
        }
        progress.wish = Wish::Restart;
        // Whoever makes an attempt looks at the wish when it has ended.
        if progress.since?.elapsed() > SETTLED {
            progress.attempts = 0;
        }
        self.next(&mut progress)
    }

    /// After how many milliseconds the next attempt is made, if there is one.
    fn next(&self, progress: &mut Progress) -> Option<u32> {
        if progress.attempts < MOST_ATTEMPTS {
            return Some(FIRST_DELAY_MS << progress.attempts);
        }
        progress.wish = Wish::None;
        dev_err!(
            self.dev,
            "given up after {} attempts; bind its driver anew to try again\n",
            progress.attempts
        );
        None
    }
}

impl Watch for Restart {
    const SLEEPS_WITH_MACHINE: bool = true;

    fn look(&self) -> Option<u32> {
        // Whoever takes the device from its driver has the lock, and waits for this.
        let Some(_locked) = Locked::try_new(&self.dev) else {
            return Some(BUSY_MS);
        };
        {
            let mut progress = self.progress.lock();
            if progress.wish != Wish::Restart {
                return None;
            }
            progress.wish = Wish::None;
            if self.dev.raw_status().is_gone() {
                return None;
            }
            progress.since = None;
            progress.attempts += 1;
            dev_info!(
                self.dev,
                "begins anew, attempt {} of {}\n",
                progress.attempts,
                MOST_ATTEMPTS
            );
        }
        // SAFETY: By the type invariant; the lock is held.
        let result = unsafe { (self.again)(self.dev.as_raw()) };
        let mut progress = self.progress.lock();
        progress.since = Some(Instant::now());
        if let Err(err) = result {
            dev_warn!(self.dev, "cannot begin anew: {:?}\n", err);
            progress.wish = Wish::Restart;
        }
        // It may also have failed while the driver took it over.
        match progress.wish {
            Wish::Restart => self.next(&mut progress),
            Wish::None | Wish::Resume => None,
        }
    }
}

/// Has the driver of a device begin anew. A driver gets it when it
/// [takes over the device](crate::Driver::probe).
#[derive(Clone)]
pub struct Restarter(Arc<Work<Restart>>);

impl Restarter {
    /// That of a device, of no effect once the result is dropped or ended.
    ///
    /// # Safety
    ///
    /// Until then, it must be allowed to call `again` with the lock of the device held.
    pub(crate) unsafe fn new(dev: &Device, again: Again) -> Result<(Self, Owner<Restart>)> {
        // INVARIANT: By the caller's contract.
        let owner = Work::owned(pin_init!(Restart {
            dev: dev.into(),
            again,
            progress <- new_mutex!(Progress::new()),
        }))?;
        Ok((Self(owner.0.clone()), owner))
    }

    /// The device has failed: takes it from its driver, whose data is dropped, and has the driver
    /// probe it once more.
    ///
    /// Not at once, so that users may see what happened; later each time that it fails again soon
    /// afterwards, and not for ever. Of no effect if the device sleeps or is shut down, is gone, or
    /// is taken from the driver for other reasons before. Process context.
    pub fn request(&self) {
        if let Some(delay_ms) = self.0.watch.request() {
            self.0.look_after(delay_ms);
        }
    }
}

/// Resets a device and negotiates once more what its driver has negotiated before. `ENODEV` if the
/// device is gone: it would never say that it has been reset.
pub(crate) fn renegotiate(dev: &Device<CoreInternal<'_>>) -> Result {
    let raw = dev.as_raw();
    let status = |bit: c_uint| {
        // SAFETY: The device is valid. May sleep; the caller may.
        unsafe { bindings::virtio_add_status(raw, bit) }
    };
    if dev.raw_status().is_gone() {
        return Err(ENODEV);
    }
    // SAFETY: As above.
    unsafe { bindings::virtio_reset_device(raw) };
    status(bindings::VIRTIO_CONFIG_S_ACKNOWLEDGE);
    status(bindings::VIRTIO_CONFIG_S_DRIVER);
    // SAFETY: The device is valid, and its features were negotiated when it was bound.
    to_result(unsafe { bindings::virtio_finalize_features(raw) })?;
    // Devices from before the standard have no such bit.
    if !dev.has_feature(Feature::VERSION_1) {
        return Ok(());
    }
    status(bindings::VIRTIO_CONFIG_S_FEATURES_OK);
    match dev.raw_status().features_ok() {
        true => Ok(()),
        false => Err(ENODEV),
    }
}
