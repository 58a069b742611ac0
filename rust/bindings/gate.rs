// SPDX-License-Identifier: GPL-2.0

//! Protection against late use of a resource that others may keep for too long.

use kernel::{
    prelude::*,
    static_lock_class,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        srcu,
        Srcu, //
    }, //
};

/// A gate that is open until it is closed for good. Closing waits for all threads that are inside.
///
/// Memory that is mapped for a device may be unmapped only while the device is bound. Safe code can
/// keep it for longer, for example in a static. So a thread that unmaps memory enters the gate of
/// the binding. If the gate is closed, it leaks the memory instead.
///
/// Unlike with [`kernel::revocable::Revocable`], threads inside may sleep.
#[pin_data]
pub struct Gate {
    #[pin]
    inside: Srcu,
    open: Atomic<bool>,
}

impl Gate {
    /// Creates an open gate.
    pub fn new() -> impl PinInit<Self, Error> {
        // One name for all crates, because they share a lock class, which lockdep identifies by the
        // name's address.
        static INSIDE: &CStr = c"Gate::inside";

        try_pin_init!(Self {
            inside <- Srcu::new(INSIDE, static_lock_class!()),
            open: Atomic::new(true),
        })
    }

    /// Enters the gate, which cannot be closed before the result is dropped. [`None`] if it is
    /// closed.
    pub fn enter(&self) -> Option<srcu::Guard<'_>> {
        let inside = self.inside.read_lock();
        self.open.load(Relaxed).then_some(inside)
    }

    /// Closes the gate. On return no thread is inside, and none can enter. Sleeps.
    pub fn close(&self) {
        self.open.store(false, Relaxed);
        // This waits for threads that entered before the store; later ones see that the gate is
        // closed.
        self.inside.synchronize();
    }
}
