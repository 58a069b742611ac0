// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A thread that frees what takes long to free.
//!
//! When a driver resets its device, or a VM ends, there may be millions of objects to free, and gigabytes to unmap. A
//! worker that did this would hold up all other devices.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type Work = Box<dyn FnOnce() + Send>;

/// Has `work` done by the thread. Never waits. If there can be no thread, the caller does it.
pub fn run(work: impl FnOnce() + Send + 'static) {
    static THREAD: OnceLock<Option<Sender<Work>>> = OnceLock::new();
    let work: Work = Box::new(work);
    let sender = THREAD.get_or_init(|| {
        let (sender, receiver) = channel::<Work>();
        let thread = thread::Builder::new().name("reaper".to_owned());
        let started = thread.spawn(move || receiver.into_iter().for_each(|work| work()));
        started.is_ok().then_some(sender)
    });
    match sender {
        // Nobody receives any more if earlier work panicked. What is refused comes back.
        Some(sender) => sender.send(work).unwrap_or_else(|refused| (refused.0)()),
        None => work(),
    }
}
