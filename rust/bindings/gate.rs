// SPDX-License-Identifier: GPL-2.0

//! Whether something is still there that others hold on to for longer.

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

/// Open until it is closed for good, which waits for all who are inside.
///
/// What is mapped for a device may only be unmapped while the device is bound. Safe code can keep
/// it for longer, in a static, say: so whoever unmaps enters the gate of the binding, and leaves
/// alone, for ever, what he comes too late for.
///
/// Unlike [`kernel::revocable::Revocable`], who is inside may sleep.
#[pin_data]
pub struct Gate {
    #[pin]
    inside: Srcu,
    open: Atomic<bool>,
}

impl Gate {
    /// An open gate.
    pub fn new() -> impl PinInit<Self, Error> {
        // One for all crates, as is the lock class: lockdep knows names by address.
        static INSIDE: &CStr = c"Gate::inside";

        try_pin_init!(Self {
            inside <- Srcu::new(INSIDE, static_lock_class!()),
            open: Atomic::new(true),
        })
    }

    /// Enters: the gate is not closed before the result is dropped. [`None`] if it has been.
    pub fn enter(&self) -> Option<srcu::Guard<'_>> {
        let inside = self.inside.read_lock();
        self.open.load(Relaxed).then_some(inside)
    }

    /// Closes the gate. On return nobody is inside, nor will be. Sleeps.
    pub fn close(&self) {
        self.open.store(false, Relaxed);
        // Whoever began to enter before this has been seen by it; whoever begins later sees that
        // the gate is closed.
        self.inside.synchronize();
    }
}
