// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Who drives what: the home of each unit is the worker that gives it its turns.
//!
//! One worker is awake as long as one suffices. A worker that is overloaded gives some of its units to another one,
//! which wakes up. A worker without work leaves its units to one that is awake, and rests. Only the last worker that is
//! awake sleeps with units, and it has all of them then, so it knows what to look at before it sleeps, and nobody else
//! has to be woken when there is work.
//!
//! The lock of the roster is for workers without work, and for those that change homes, about once in a millisecond. A
//! worker with units only tries it: if another one has it, homes stay as they are for now. So a worker that loses its
//! CPU in here holds up nobody.
//!
//! So the home of a unit never rests, and finds what others put into its inboxes: in its next turn, or before it
//! sleeps.
//!
//! `tests/model.rs` explores all orders in which the threads can run this.

use std::io;

use crate::sync::{AtomicUsize, Mutex, MutexGuard, Ordering, PoisonError, TryLockError};
use crate::waker::Waker;

/// The workers and the homes of the units.
pub struct Roster {
    /// The home of each unit. Changes only while `awake` is locked.
    homes: Box<[AtomicUsize]>,
    workers: Box<[Seat]>,
    /// Whether each worker is awake. The last one that is counts as awake even while it sleeps.
    awake: Mutex<Box<[bool]>>,
}

/// Whether a worker left its units to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retirement {
    /// It did.
    Done,
    /// No other one is awake.
    Last,
    /// Another one changes the roster just now. A worker with units does not wait for it.
    Later,
}

/// A worker.
struct Seat {
    /// Ends its rest.
    waker: Waker,
    /// Its load, as it last said.
    load: AtomicUsize,
    /// When it began its turn; `usize::MAX` while it rests.
    turn: AtomicUsize,
}

impl Roster {
    /// Creates a roster for numbers of units and workers. The first worker is awake and the home of all units.
    ///
    /// # Errors
    /// A descriptor cannot be created.
    pub fn new(units: usize, workers: usize) -> io::Result<Self> {
        let seat = |_| {
            Ok(Seat {
                waker: Waker::new()?,
                load: AtomicUsize::new(0),
                turn: AtomicUsize::new(usize::MAX),
            })
        };
        Ok(Self {
            homes: (0..units).map(|_| AtomicUsize::new(0)).collect(),
            workers: (0..workers).map(seat).collect::<io::Result<_>>()?,
            awake: Mutex::new((0..workers).map(|worker| worker == 0).collect()),
        })
    }

    /// Returns whether there is one worker only.
    pub fn is_single(&self) -> bool {
        self.workers.len() == 1
    }

    /// Returns whether a worker is the home of a unit.
    pub fn is_home(&self, unit: usize, worker: usize) -> bool {
        self.homes[unit].load(Ordering::Acquire) == worker
    }

    /// Notes the load of a worker.
    pub fn set_load(&self, worker: usize, load: usize) {
        self.workers[worker].load.store(load, Ordering::Relaxed);
    }

    /// Notes that a worker begins a turn at time `now`. Returns when the oldest turn began of those that are under way.
    pub fn begin_turn(&self, worker: usize, now: usize) -> usize {
        self.workers[worker].turn.store(now, Ordering::Relaxed);
        let turns = self.workers.iter();
        let turns = turns.map(|seat| seat.turn.load(Ordering::Relaxed));
        turns.min().unwrap_or(now)
    }

    /// Leaves the units of a worker to another one that is awake, after which the worker must [rest](Self::rest).
    pub fn retire(&self, worker: usize) -> Retirement {
        if self.is_single() {
            return Retirement::Last;
        }
        let Some(mut awake) = self.try_lock() else {
            return Retirement::Later;
        };
        let others = (0..awake.len()).filter(|&other| other != worker && awake[other]);
        let Some(heir) = others.min_by_key(|&other| self.load(other)) else {
            return Retirement::Last;
        };
        for home in &self.homes {
            if home.load(Ordering::Relaxed) == worker {
                home.store(heir, Ordering::Release);
            }
        }
        awake[worker] = false;
        self.set_load(worker, 0);
        self.workers[worker]
            .turn
            .store(usize::MAX, Ordering::Relaxed);
        Retirement::Done
    }

    /// Waits until the worker gets units, or has to stop.
    pub fn rest(&self, worker: usize) {
        let waker = &self.workers[worker].waker;
        loop {
            waker.announce();
            if self.lock()[worker] || waker.is_stopping() {
                return waker.cancel();
            }
            waker.sleep(None);
        }
    }

    /// Gives groups of units of a worker, each with its load, to the worker with the least load, until both have about
    /// the same load. That worker wakes up. A group of which the worker no longer has everything stays. Returns whether
    /// any were given; none are while another worker changes the roster.
    pub fn share(&self, worker: usize, groups: &[(usize, Vec<usize>)]) -> bool {
        let own: usize = groups.iter().map(|(load, _)| load).sum();
        let Some(mut awake) = self.try_lock() else {
            return false;
        };
        let others = (0..awake.len()).filter(|&other| other != worker);
        let Some(heir) = others.min_by_key(|&other| (self.load(other), !awake[other])) else {
            return false;
        };
        let mut room = own.saturating_sub(self.load(heir)) / 2;
        let mut any = false;
        for (load, units) in groups {
            let is_whole = units.iter().all(|&unit| self.is_home(unit, worker));
            if *load == 0 || *load > room || !is_whole {
                continue;
            }
            room -= load;
            any = true;
            for &unit in units {
                self.homes[unit].store(heir, Ordering::Release);
            }
        }
        if any {
            self.wake_up(worker, heir, &mut awake);
            drop(awake);
            self.workers[heir].waker.wake();
        }
        any
    }

    /// Gives each unit of a worker to the worker that `choose` returns for it, for tests.
    pub fn scatter(&self, worker: usize, mut choose: impl FnMut(usize) -> usize) {
        let mut awake = self.lock();
        let mut heirs = Vec::new();
        for (unit, home) in self.homes.iter().enumerate() {
            if home.load(Ordering::Relaxed) == worker {
                let heir = choose(unit) % self.workers.len();
                home.store(heir, Ordering::Release);
                self.wake_up(worker, heir, &mut awake);
                heirs.push(heir);
            }
        }
        drop(awake);
        for heir in heirs {
            self.workers[heir].waker.wake();
        }
    }

    /// Brings units of a worker to the home of another unit, with which they exchange much. Only the worker with the
    /// higher number does so, because the two could exchange the units otherwise. Returns whether it did; it does not
    /// while another worker changes the roster.
    pub fn follow(&self, worker: usize, units: &[usize], unit: usize) -> bool {
        let Some(_awake) = self.try_lock() else {
            return false;
        };
        let home = self.homes[unit].load(Ordering::Relaxed);
        let is_whole = units.iter().all(|&unit| self.is_home(unit, worker));
        if home >= worker || !is_whole {
            return false;
        }
        for &unit in units {
            self.homes[unit].store(home, Ordering::Release);
        }
        true
    }

    /// Ends the rests of all workers for good.
    pub fn stop(&self) {
        for worker in &self.workers {
            worker.waker.stop();
        }
    }

    /// Notes that a worker has woken another one. Until that gets a CPU, its turn is as old as the first one's.
    fn wake_up(&self, worker: usize, other: usize, awake: &mut [bool]) {
        if !std::mem::replace(&mut awake[other], true) {
            let turn = self.workers[worker].turn.load(Ordering::Relaxed);
            self.workers[other].turn.store(turn, Ordering::Relaxed);
        }
    }

    fn load(&self, worker: usize) -> usize {
        self.workers[worker].load.load(Ordering::Relaxed)
    }

    /// Locks the roster. Nothing in here panics while it is locked.
    fn lock(&self) -> MutexGuard<'_, Box<[bool]>> {
        self.awake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the roster unless another worker has locked it.
    fn try_lock(&self) -> Option<MutexGuard<'_, Box<[bool]>>> {
        match self.awake.try_lock() {
            Ok(awake) => Some(awake),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
