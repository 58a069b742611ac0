// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A buffer belongs to the virtqueue from the moment it is added until the queue returns it.

#![forbid(unsafe_code)]

use core::cell::Cell;

use driver::keep_forever;
use kernel::prelude::*;
use virtio::{
    AnyVirtqueue,
    Chain,
    Handler,
    SharedMemory,
    Used,
    Virtqueue, //
};

/// A handler that drops its buffers.
pub struct Plain;

impl Handler for Plain {
    type Context = u32;

    fn used(&self, queue: &Virtqueue<Self>) {
        while queue.pop().is_some() {}
    }
}

type Queue = Virtqueue<Plain>;
type Buffer = KBox<Chain<u32>>;

/// Writes to a buffer that the device reads.
pub fn write_after_add(queue: &Queue, mut buffer: Buffer) {
    buffer.readable_mut().fill(0);
    let _ = queue.add(buffer);
    #[cfg(refused)]
    buffer.readable_mut().fill(1); //~ E0382
}

/// Reads from a buffer that the device writes.
pub fn read_after_add(queue: &Queue, buffer: Buffer) {
    let bytes = buffer.writable();
    let _length = bytes.len();
    let _ = queue.add(buffer); //~ E0505
    #[cfg(refused)]
    let _length = bytes.len();
}

/// Adds a buffer twice.
pub fn add_twice(queue: &Queue, buffer: Buffer) {
    let _ = queue.add(buffer);
    #[cfg(refused)]
    let _ = queue.add(buffer); //~ E0382
}

/// Reads what the device wrote after the buffer has gone back to the device.
pub fn read_after_reuse(queue: &Queue, used: Used<u32>) {
    let bytes = used.written();
    let _length = bytes.len();
    let _ = queue.add(used.into_chain()); //~ E0505
    #[cfg(refused)]
    let _length = bytes.len();
}

/// Reads the context of a buffer that is gone.
pub fn context_after_drop(used: Used<u32>) {
    let context = used.context();
    let _context = *context;
    drop(used); //~ E0505
    #[cfg(refused)]
    let _context = *context;
}

/// Adds a buffer with the context of another queue, which would be taken for its own.
pub fn context_of_other(queue: &Queue, buffer: Buffer, other: KBox<Chain<KBox<u32>>>) {
    #[cfg(refused)]
    let _ = queue.add(other); //~ E0308
    let _ = queue.add(buffer);
}

/// Handlers and contexts refer only to what lives forever: the trait demands that.
pub fn handler<H: Handler>(handler: H, context: H::Context) {
    keep_forever(handler);
    keep_forever(context);
}

/// A handler that only one CPU may use at a time.
pub struct Racy(pub Cell<u32>);

#[cfg(refused)]
impl Handler for Racy {
    //~^ E0277: between threads
    type Context = u32;

    fn used(&self, _queue: &Virtqueue<Self>) {
        self.0.set(1);
    }
}

/// A handler whose buffers may not leave their thread.
pub struct Local;

impl Handler for Local {
    #[cfg(refused)]
    type Context = *mut u32; //~ E0277: between threads
    #[cfg(not(refused))]
    type Context = u32;

    fn used(&self, _queue: &Virtqueue<Self>) {}
}

/// A queue that the abstractions do not know.
#[cfg(refused)]
impl AnyVirtqueue for Plain {
    //~^ E0277: Sealed
    fn flush_deferred(&self) {}
}

/// A word of shared memory that is free.
pub fn word_after_free(memory: SharedMemory) -> Result {
    let word = memory.u32(0)?;
    let _address = word.as_ptr();
    drop(memory); //~ E0505
    #[cfg(refused)]
    let _address = word.as_ptr();
    Ok(())
}
