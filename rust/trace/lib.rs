// SPDX-License-Identifier: GPL-2.0

//! Tracepoints of the driver (`include/trace/events/vrnic.h`), as functions that are safe to call.
//!
//! A tracepoint that is disabled costs a branch, or two for a command. In a kernel without
//! tracepoints the functions are empty.

use kernel::{
    device::Device,
    prelude::*,
    time::{
        Instant,
        Monotonic, //
    }, //
};

use vrnic_bindings as bindings;
use vrnic_bindings::compat;

/// Like `kernel::tracepoint::declare_trace`, which refers to the kernel's own bindings.
macro_rules! declare_trace {
    ($($(#[$attr:meta])* unsafe fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {$(
        $(#[$attr])*
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) {
            #[cfg(CONFIG_TRACEPOINTS)]
            {
                // SAFETY: This is the static key of a tracepoint.
                let should_trace = unsafe {
                    ::kernel::macros::paste! {
                        ::kernel::jump_label::static_branch_unlikely!(
                            bindings::[< __tracepoint_ $name >],
                            bindings::tracepoint,
                            key
                        )
                    }
                };
                if should_trace {
                    ::kernel::macros::paste! {
                        // SAFETY: Guaranteed by the caller.
                        unsafe { bindings::[< rust_do_trace_ $name >]($($arg),*) };
                    }
                }
            }
            #[cfg(not(CONFIG_TRACEPOINTS))]
            {
                $(let _ = $arg;)*
            }
        }
    )*};
}

declare_trace! {
    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe fn vrnic_command(dev: *mut bindings::device, code: u16, error: c_int, ns: u64);

    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe fn vrnic_event(dev: *mut bindings::device, event_type: u16, number: u32);

    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe fn vrnic_completion_event(dev: *mut bindings::device, vector: u32, cqn: u32);

    /// # Safety
    ///
    /// `dev` must be a valid device.
    unsafe fn vrnic_doorbell(dev: *mut bindings::device, slot: u32, wakes: bool);
}

/// Returns the time at which a command begins. The clock is read only if commands are traced.
#[inline]
pub fn command_begins() -> Option<Instant<Monotonic>> {
    #[cfg(CONFIG_TRACEPOINTS)]
    {
        // SAFETY: This is the static key of a tracepoint.
        let is_traced = unsafe {
            ::kernel::jump_label::static_branch_unlikely!(
                bindings::__tracepoint_vrnic_command,
                bindings::tracepoint,
                key
            )
        };
        is_traced.then(Instant::now)
    }
    #[cfg(not(CONFIG_TRACEPOINTS))]
    {
        None
    }
}

/// Traces the end of a command, with the error that its caller gets. `begin` is the result of
/// [`command_begins`].
#[inline]
pub fn command(dev: &Device, code: u16, error: Option<Error>, begin: Option<Instant<Monotonic>>) {
    let Some(begin) = begin else {
        return;
    };
    // CAST: Time does not go backwards.
    let ns = begin.elapsed().as_nanos() as u64;
    let error = error.map_or(0, Error::to_errno);
    // SAFETY: The device is valid.
    unsafe { vrnic_command(compat::device_as_raw(dev), code, error, ns) }
}

/// Traces an asynchronous event.
#[inline]
pub fn event(dev: &Device, event_type: u16, number: u32) {
    // SAFETY: The device is valid.
    unsafe { vrnic_event(compat::device_as_raw(dev), event_type, number) }
}

/// Traces a completion event of completion queue `cqn`.
#[inline]
pub fn completion_event(dev: &Device, vector: u32, cqn: u32) {
    // SAFETY: The device is valid.
    unsafe { vrnic_completion_event(compat::device_as_raw(dev), vector, cqn) }
}

/// Traces a doorbell of the kernel for a slot. `wakes` says whether the device has to be woken.
#[inline]
pub fn doorbell(dev: &Device, slot: u32, wakes: bool) {
    // SAFETY: The device is valid.
    unsafe { vrnic_doorbell(compat::device_as_raw(dev), slot, wakes) }
}
