// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! State of a function that the device's worker accesses: interrupts, ISR, DEVICE_NEEDS_RESET, reset progress.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};

use rustix::io::Errno;
use tracing::warn;

use super::NO_VECTOR;
use crate::atomic_set::AtomicSet;
use crate::attended::Attended;
use crate::virtio::Notifier;
use crate::watchdog;

/// ISR bit: device configuration change (virtio 1.3, 4.1.4.5).
const ISR_CONFIG: u8 = 2;
/// ISR bit: queue interrupt.
const ISR_QUEUE: u8 = 1;

/// An eventfd received from the VMM.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// Checks that `fd` is an eventfd and makes it non-blocking.
    pub fn new(fd: OwnedFd) -> std::io::Result<Self> {
        let target = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
        if target.as_os_str() != "anon_inode:[eventfd]" {
            return Err(std::io::ErrorKind::InvalidInput.into());
        }
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(fd.into()))
    }

    /// Adds one to the counter. A full counter counts as success, because the signal is still pending. Returns false if
    /// the write blocked, because the VMM cleared the non-blocking flag, and a timer had to interrupt it.
    pub fn signal(&self) -> bool {
        watchdog::limit_wait();
        rustix::io::write(&self.0, &1u64.to_ne_bytes()) != Err(Errno::INTR)
    }
}

/// The vectors by their number.
type Vectors = Box<[Option<EventFd>]>;

/// State shared by the front end's thread and the worker.
///
/// The front end locks `vectors` to change them. The worker never waits for that: if the front end is at it, the front
/// end raises the interrupt itself when it is done. The worker writes to eventfds under the lock. So when the front end
/// has told the VMM that a vector has another eventfd, the old one gets no more interrupts, which nobody would read. A
/// VMM that makes such a write block holds up its own front end, and that only once, for as long as a write is limited.
pub struct Signals {
    vectors: Attended<Vectors>,
    vector_count: u32,
    /// Vectors to be raised.
    due: AtomicSet,
    /// Whether the VMM made the worker block, and therefore gets no more interrupts.
    silenced: AtomicBool,
    queue_vector: Box<[AtomicU16]>,
    config_vector: AtomicU16,
    isr: AtomicU8,
    needs_reset: AtomicBool,
    reset_done: AtomicU64,
}

impl Signals {
    /// Creates the state of a function with `queues` virtqueues and `vectors` MSI-X vectors.
    pub fn new(queues: u16, vectors: u16) -> Self {
        Self {
            vectors: Attended::new((0..vectors).map(|_| None).collect()),
            vector_count: u32::from(vectors),
            due: AtomicSet::new(usize::from(vectors)),
            silenced: AtomicBool::new(false),
            queue_vector: (0..queues).map(|_| AtomicU16::new(NO_VECTOR)).collect(),
            config_vector: AtomicU16::new(NO_VECTOR),
            isr: AtomicU8::new(0),
            needs_reset: AtomicBool::new(false),
            reset_done: AtomicU64::new(0),
        }
    }

    /// Returns the number of MSI-X vectors.
    pub fn vector_count(&self) -> u32 {
        self.vector_count
    }

    /// Connects vectors `start..` to eventfds, or disconnects them where the entry is `None`. Returns false if out of
    /// range.
    pub fn connect(
        &self,
        start: u32,
        eventfds: impl ExactSizeIterator<Item = Option<EventFd>>,
    ) -> bool {
        let start = start as usize;
        let Some(end) = start.checked_add(eventfds.len()) else {
            return false;
        };
        let mut new: Vec<_> = eventfds.collect();
        let connected = self.vectors.change(|vectors| {
            let slots = vectors.get_mut(start..end)?;
            slots.swap_with_slice(&mut new);
            Some(())
        });
        self.raise_due();
        // The old descriptors are closed after the lock is free.
        drop(new);
        connected.is_some()
    }

    /// Disconnects all vectors.
    pub fn disconnect_all(&self) {
        self.connect(0, (0..self.vector_count).map(|_| None));
    }

    /// Raises vector `vector`. Returns false if there is no such vector.
    pub fn trigger(&self, vector: u32) -> bool {
        if vector >= self.vector_count {
            return false;
        }
        self.due.insert(vector as usize);
        self.raise_due();
        true
    }

    /// Raises the vectors that are due, unless another thread has the vectors, which does it then.
    fn raise_due(&self) {
        self.vectors.attend(
            || !self.due.is_empty(),
            |vectors| {
                self.due.drain(|vector| {
                    if let Some(eventfd) = &vectors[vector] {
                        self.signal(vector, eventfd);
                    }
                });
            },
        );
    }

    fn signal(&self, vector: usize, eventfd: &EventFd) {
        if !self.is_silenced() && !eventfd.signal() && !self.silenced.swap(true, Ordering::Relaxed)
        {
            warn!(
                vector,
                "the VMM does not take its interrupts: it gets no more"
            );
        }
    }

    /// Returns whether the VMM gets no more interrupts because one of them made the worker block.
    pub fn is_silenced(&self) -> bool {
        self.silenced.load(Ordering::Relaxed)
    }

    /// Reads and clears the ISR.
    pub fn take_isr(&self) -> u8 {
        self.isr.swap(0, Ordering::AcqRel)
    }

    /// Returns whether the device has asked for a reset.
    pub fn is_reset_needed(&self) -> bool {
        self.needs_reset.load(Ordering::Acquire)
    }

    /// Returns the generation of the last reset that the device completed.
    pub fn completed_reset(&self) -> u64 {
        self.reset_done.load(Ordering::Acquire)
    }

    /// Returns the vector of the configuration-change interrupt.
    pub fn config_vector(&self) -> u16 {
        self.config_vector.load(Ordering::Relaxed)
    }

    /// Sets the vector of the configuration-change interrupt.
    pub fn set_config_vector(&self, vector: u16) {
        self.config_vector.store(vector, Ordering::Relaxed);
    }

    /// Returns the vector of `queue`.
    pub fn queue_vector(&self, queue: u16) -> u16 {
        self.queue_vector
            .get(usize::from(queue))
            .map_or(NO_VECTOR, |vector| vector.load(Ordering::Relaxed))
    }

    /// Sets the vector of `queue`.
    pub fn set_queue_vector(&self, queue: u16, vector: u16) {
        if let Some(slot) = self.queue_vector.get(usize::from(queue)) {
            slot.store(vector, Ordering::Relaxed);
        }
    }

    /// Restores the power-on state, except for the connected eventfds and the reset generation.
    pub fn clear(&self) {
        self.queue_vector
            .iter()
            .for_each(|slot| slot.store(NO_VECTOR, Ordering::Relaxed));
        self.set_config_vector(NO_VECTOR);
        self.isr.store(0, Ordering::Relaxed);
        self.needs_reset.store(false, Ordering::Release);
    }

    fn raise(&self, vector: u16, isr: u8) {
        if vector == NO_VECTOR {
            self.isr.fetch_or(isr, Ordering::AcqRel);
        } else {
            self.trigger(u32::from(vector));
        }
    }
}

impl Notifier for Signals {
    fn queue_used(&self, queue: u16) {
        self.raise(self.queue_vector(queue), ISR_QUEUE);
    }

    fn needs_reset(&self) {
        if !self.needs_reset.swap(true, Ordering::AcqRel) {
            self.raise(self.config_vector(), ISR_CONFIG);
        }
    }

    fn reset_done(&self, generation: u64) {
        self.reset_done.fetch_max(generation, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::fs::{OFlags, fcntl_setfl};

    fn connected() -> (Signals, File) {
        let signals = Signals::new(1, 1);
        let theirs = eventfd(0, EventfdFlags::empty()).unwrap();
        let ours = EventFd::new(theirs.try_clone().unwrap()).unwrap();
        assert!(signals.connect(0, [Some(ours)].into_iter()));
        signals.set_queue_vector(0, 0);
        (signals, theirs.into())
    }

    fn raised(counter: &File) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(counter, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(errno) => {
                assert_eq!(errno, Errno::AGAIN);
                0
            }
        }
    }

    #[test]
    fn the_worker_does_not_wait_for_a_front_end_that_got_stuck() {
        let (signals, counter) = connected();
        let theirs = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        signals.vectors.change(|vectors| {
            // The worker, in the midst of a change.
            signals.queue_used(0);
            assert_eq!(raised(&counter), 0);
            let ours = EventFd::new(theirs.try_clone().unwrap()).unwrap();
            vectors[0] = Some(ours);
        });
        signals.raise_due();
        assert_eq!((raised(&counter), raised(&theirs.into())), (0, 1));
        assert!(signals.connect(0, [None].into_iter()) && !signals.connect(1, [None].into_iter()));
        assert!(signals.trigger(0) && !signals.trigger(1));
    }

    #[test]
    fn no_interrupt_is_lost_while_vectors_change() {
        const ROUNDS: u64 = 2000;
        let (signals, counter) = connected();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (signals, counter, over) = (&signals, &counter, &over);
            scope.spawn(move || {
                let ours: OwnedFd = counter.try_clone().unwrap().into();
                let started = std::time::Instant::now();
                while !over.load(Ordering::Relaxed) && started.elapsed().as_secs() < 60 {
                    let ours = EventFd::new(ours.try_clone().unwrap()).unwrap();
                    assert!(signals.connect(0, [Some(ours)].into_iter()));
                }
            });
            for round in 0..ROUNDS {
                signals.queue_used(0);
                let started = std::time::Instant::now();
                while raised(counter) == 0 {
                    let waits = started.elapsed().as_secs();
                    assert!(waits < 30, "round {round}: lost");
                }
            }
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn a_replaced_eventfd_gets_nothing_more() {
        let (signals, old) = connected();
        // The worker's write lasts until it is interrupted, or somebody reads.
        rustix::io::write(&old, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&old, OFlags::empty()).unwrap();
        let begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                watchdog::start().unwrap();
                begun.store(true, Ordering::Release);
                signals.queue_used(0);
                watchdog::rest();
            });
            while !begun.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(3));
            let new = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
            let new = EventFd::new(new).unwrap();
            assert!(signals.connect(0, [Some(new)].into_iter()));
            fcntl_setfl(&old, OFlags::NONBLOCK).unwrap();
            assert_eq!(raised(&old), u64::MAX - 1);
        });
        assert_eq!(raised(&old), 0, "a signal came after the change");
    }

    #[test]
    fn a_vmm_that_holds_up_its_interrupts_gets_no_more() {
        watchdog::start().unwrap();
        let (honest, counter) = connected();
        let (hostile, full) = connected();
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        hostile.queue_used(0);
        assert!(!hostile.is_silenced(), "a full counter is no offence");
        fcntl_setfl(&full, OFlags::empty()).unwrap();
        hostile.queue_used(0);
        assert!(hostile.is_silenced());
        hostile.queue_used(0);
        honest.queue_used(0);
        assert!(!honest.is_silenced());
        let mut count = [0; 8];
        rustix::io::read(&counter, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        watchdog::rest();
    }
}
