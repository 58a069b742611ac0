// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Measures what a request and a completion cost the program, with a device that polls.
//!
//! `cargo test --release -p libvrnic -- --ignored --nocapture cost` prints it.

extern crate std;

use crate::doorbell::{Doorbell, Rung};
use crate::memory::Buffer;
use crate::ring::WorkRing;
use crate::ring::completion::CompletionQueue;
use crate::ring::outstanding::{Name, Outstanding};
use crate::ring::send::{Limits, Request, SendQueue, Target};
use crate::ring::tests::ring;
use crate::spinlock::SpinLock;
use core::hint::black_box;
use core::sync::atomic::Ordering;
use std::time::Instant;
use vrnic_wire::completion::{Cqe, Opcode, PHASE_OFFSET};
use vrnic_wire::notify::{self, SlotBits, flags};
use vrnic_wire::ring::phase;
use vrnic_wire::work::{SendOpcode, Sge, send_flags};

const ENTRIES: u32 = 64;
const ROUNDS: u32 = 40_000;

#[test]
#[ignore = "a measurement, for release builds on an idle machine"]
fn cost_of_a_request_and_a_completion() {
    let (_work, memory, layout) = ring(ENTRIES, 128);
    let (_completions, cq_memory, cq_layout) = ring(ENTRIES, 64);
    let area = Buffer::new(notify::area_length(64)).unwrap();
    // SAFETY: Used only within this function, during which the buffer lives.
    let area = unsafe { area.shared() };
    area.word(notify::FLAGS_OFFSET)
        .store(flags::POLLING, Ordering::Relaxed);
    let doorbell = Doorbell::new(area, None);
    let slot = doorbell.slot(5);
    let pending = area.long(SlotBits::new(slot.number()).pending_offset);
    let limits = Limits {
        opcodes: u32::MAX,
        datagrams: false,
        xrc: false,
        checksums: false,
        max_sge: 1,
        max_inline: 64,
        max_header: 0,
    };
    let outstanding = Outstanding::new(ENTRIES, Opcode::Send).unwrap();
    let mut completions = CompletionQueue::new(cq_memory, cq_layout);
    let number = completions.attach(outstanding.clone()).unwrap();
    let completions = SpinLock::new(completions);
    let ring = WorkRing::new(memory, layout, outstanding, number);
    let mut queue = SendQueue::new(ring, limits);
    queue.set_accepts(true);
    let queue = SpinLock::new(queue);
    let (mut posting, mut polling) = (0, 0);
    let mut index = 0_u32;

    for _ in 0..ROUNDS {
        let start = Instant::now();
        for i in 0..ENTRIES {
            let request = Request {
                opcode: SendOpcode::Write,
                flags: send_flags::SIGNALED,
                wr_id: i.into(),
                immediate: 0,
                target: Target::Memory {
                    address: i.into(),
                    rkey: i,
                },
                srqn: 0,
                header: &[],
            };
            let element = Sge {
                address: 4096.into(),
                length: 64.into(),
                lkey: 7.into(),
            };
            let mut queue = queue.lock();
            queue
                .push(black_box(&request), [element].into_iter())
                .unwrap();
            queue.publish();
            drop(queue);
            assert_eq!(doorbell.ring(&slot), Rung::Done);
            // A polling device does this at once.
            pending.store(0, Ordering::Relaxed);
        }
        posting += start.elapsed().as_nanos();

        for _ in 0..ENTRIES {
            let at = 1024 + (index & (ENTRIES - 1)) as usize * 64;
            let name = Name {
                queue: number,
                index,
            };
            cq_memory.write(
                at,
                &Cqe {
                    wr_id: name.to_wire().into(),
                    ..Cqe::default()
                },
            );
            cq_memory
                .byte(at + PHASE_OFFSET)
                .store(phase(index, ENTRIES), Ordering::Release);
            index += 1;
        }

        let start = Instant::now();
        for _ in 0..ENTRIES {
            let mut completions = completions.lock();
            black_box(completions.pop().unwrap());
            completions.publish();
        }
        polling += start.elapsed().as_nanos();
    }
    let count = u128::from(ROUNDS * ENTRIES);
    std::println!(
        "a request {} ns, a completion {} ns",
        posting / count,
        polling / count
    );
}
