// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks that parties not involved in an attack are not affected.

use std::time::Duration;
use vrnic_engine::testing::{Connection, Faults, Send, World};
use vrnic_wire::{completion::Status, work::SendOpcode};

/// Checks that an uninvolved connection still carries a message in both directions.
pub fn check_connection(world: &mut World, c: &mut Connection) {
    world.faults = Faults::default();
    for (side, text) in [(0, *b"still here"), (1, *b"here, too!")] {
        c.mrs[side].arena.put(0, &text);
        let write = Send::new(7, SendOpcode::Write)
            .rdma(c.mrs[1 - side].iova + 100, c.mrs[1 - side].key)
            .element(c.mrs[side].sge(0, text.len()));
        c.send(world, side, &write);
        world.run(Duration::from_millis(50));
        let done = c.send_cqs[side].drain();
        assert_eq!(
            done.len(),
            1,
            "an uninvolved queue pair got other completions"
        );
        assert_eq!((done[0].wr_id, done[0].status), (7, Status::Success));
        assert_eq!(c.mrs[1 - side].arena.get(100, text.len()), text);
    }
}

/// Contents of memory that only its owner may read or write. Nothing else contains these bytes.
const SECRET: [u8; 24] = *b"\xd7\x19\x85\xf1\x3c\xe2\x68\xab\x90\x4e\x27\xb6\x02\xdd\x71\x5f\xa8\x14\xc3\x36\xef\x8a\x59\x6d";

/// Number of bytes compared at a time.
const BLOCK: usize = 256;

/// Returns `length` bytes of the secret.
pub fn secret(length: usize) -> Vec<u8> {
    SECRET.iter().copied().cycle().take(length).collect()
}

/// Panics if something visible to others contains a part of the secret.
pub fn check_no_secret(bytes: &[u8]) {
    // Any 12 bytes of the secret contain 8 that begin at a multiple of 4.
    let told = |window: &[u8]| (0..=16).step_by(4).any(|at| window == &SECRET[at..at + 8]);
    for start in (0..bytes.len()).step_by(BLOCK) {
        let end = bytes.len().min(start + BLOCK + 7);
        let block = &bytes[start..end];
        // Most memory has never been written, and comparing a block as a whole is much faster.
        if block != &[block[0]; BLOCK + 7][..block.len()] {
            assert!(!block.windows(8).any(told), "a secret leaks");
        }
    }
}
