// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion counters of an end.

use super::{End, Posted};
use crate::device::Device;
use vrnic_engine::testing::{Arena, Completion};
use vrnic_wire::{
    command::{
        AttachCompletionCounter, CreateCompletionCounter, DestroyCompletionCounter,
        counted_operations as counted,
    },
    completion::{Opcode, Status},
};

/// Length of the counts of a counter in bytes.
const LENGTH: usize = 16;

/// What each counter counts: requests, and receives.
const OPERATIONS: [u32; 2] = [
    counted::SEND | counted::READ | counted::WRITE,
    counted::RECEIVE,
];

/// Completion counters of a queue pair.
#[derive(Debug)]
pub struct Counters {
    numbers: [u32; OPERATIONS.len()],
    arena: Arena,
}

impl Counters {
    /// Creates counters and attaches them to a new queue pair.
    pub fn new(qpn: u32, device: &mut Device) -> Self {
        let arena = device.guest.arena(4096);
        let mut offset = 0;
        let numbers = OPERATIONS.map(|operations| {
            let (pages, chunks) = device.guest.page_list(&arena, offset, LENGTH);
            offset += LENGTH;
            let counter = device.command(CreateCompletionCounter {
                context: device.guest.context.into(),
                pages,
                ..Default::default()
            });
            device.guest.free(chunks);
            device.command(AttachCompletionCounter {
                qpn: qpn.into(),
                counter: counter.counter,
                operations: operations.into(),
                ..Default::default()
            });
            counter.counter.get()
        });
        Self { numbers, arena }
    }

    /// Destroys the counters, after their queue pair.
    pub fn free(self, device: &mut Device) {
        for number in self.numbers {
            device.command(DestroyCompletionCounter {
                counter: number.into(),
                ..Default::default()
            });
        }
        device.guest.free(self.arena);
    }

    /// Returns how many operations of each counter succeeded and failed.
    fn counts(&self) -> [[u64; 2]; OPERATIONS.len()] {
        let bytes = self.arena.get(0, OPERATIONS.len() * LENGTH);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        [0, 1].map(|counter| [word(counter * LENGTH), word(counter * LENGTH + 8)])
    }
}

impl End {
    /// Checks that the counters agree with all that completed, with and without a completion.
    ///
    /// # Panics
    ///
    /// They do not.
    pub(super) fn check_counts(&self, what: &str) {
        let Some(counters) = &self.counters else {
            return;
        };
        let is_counted =
            |posted: &&Posted| matches!(posted.opcode, Opcode::Send | Opcode::Write | Opcode::Read);
        let failed = |done: &&Completion| done.status != Status::Success;
        let posted = self.posted.iter().filter(is_counted);
        let names: Vec<u64> = posted.map(|posted| posted.name).collect();
        let sends = self.sends.iter().filter(failed);
        let errors = sends.filter(|done| names.contains(&done.wr_id)).count();
        let lost = self.receives.iter().filter(failed).count();
        let pair = |all: usize, errors: usize| [(all - errors) as u64, errors as u64];
        assert_eq!(
            counters.counts(),
            [pair(names.len(), errors), pair(self.receives.len(), lost)],
            "{what}: counted requests and receives"
        );
    }
}
