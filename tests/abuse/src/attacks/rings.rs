// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Attacks with rings, their headers, doorbells, and completion notification.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_tests::ensure;
use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::rng::Rng;
use verbs_tests::stress::{During, Outcome};
use verbs_tests::verbs::{ACCESS_ALL, EVENT_CQ_ERR, EVENT_QP_FATAL, Errno};
use vrnic_wire::completion::{Cqe, Status};
use vrnic_wire::notify;
use vrnic_wire::ring::{flags, offset};
use vrnic_wire::work::{RdmaTarget, SendOpcode};
use zerocopy::IntoBytes;

use super::{ATTACKER, Attack, DATA, Field, Range, header};
use crate::provider::{Cq, ENTRIES, Qp, RECEIVE_HEADER, SLOTS, send_entry};

/// All of them.
pub const ATTACKS: &[Attack] = &[
    ("wild-send-producer", wild_send_producer),
    ("wild-receive-producer", wild_receive_producer),
    ("wild-cq-consumer", wild_cq_consumer),
    ("cq-moved-to-garbage", moved_cq),
    ("device-half-of-headers-overwritten", device_half),
    ("foreign-slots-rung", foreign_slots),
    ("garbage-in-doorbell-page", garbage_doorbells),
    ("garbage-in-notify-area", garbage_notify),
    ("garbage-everywhere-at-once", everything_at_once),
    ("rings-unmapped-while-in-use", unmapped),
];

fn wild_send_producer(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    for jump in [ENTRIES + 1, 1 << 20, u32::MAX / 2, u32::MAX - 1] {
        let good = field.write(1);
        field.a.put_send(&good);
        field.a.buffer.store32(offset::DRIVER_INDEX, jump);
        field.context.ring(field.a.slot);
        field
            .fatal(ATTACKER, EVENT_QP_FATAL)
            .during(format!("producer {jump}"))?;
        ensure!(
            field.cq.wait(Duration::from_millis(100)).is_none(),
            "producer {jump}: a completion"
        );
        // The ring stays dead whatever is written to it.
        field.a.buffer.store32(offset::DRIVER_INDEX, 1);
        field.context.ring(field.a.slot);
        ensure!(
            field.cq.wait(Duration::from_millis(100)).is_none(),
            "producer {jump}: the failed ring works again"
        );
        field.renew()?;
        field.transfers(1)?;
    }
    Ok(())
}

fn wild_receive_producer(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    for jump in [ENTRIES + 1, 1 << 20, u32::MAX] {
        field
            .b
            .buffer
            .store32(RECEIVE_HEADER + offset::DRIVER_INDEX, jump);
        let send = send_entry(
            header(SendOpcode::Send, 1),
            RdmaTarget::default(),
            field.sge(0, 16),
        );
        field.a.put_send(&send);
        field.a.publish(&field.context);
        let cqe = field.complete().during(format!("producer {jump}"))?;
        ensure!(
            cqe.status == Status::RemoteOperation.raw() && cqe.wr_id.get() == 1,
            "producer {jump}: {cqe:?}"
        );
        field
            .fatal(ATTACKER + 1, EVENT_QP_FATAL)
            .during(format!("producer {jump}"))?;
        field.renew()?;
        field.transfers(1)?;
    }
    Ok(())
}

fn wild_cq_consumer(range: &Range) -> Outcome<()> {
    const SIZE: u32 = 16;
    for consumer in [1000, u32::MAX / 2, u32::MAX - 1000] {
        let mut field = Field::new(range)?;
        let mut cq = Cq::new(&field.context, 0xdead, SIZE).during("creating a CQ")?;
        let mut one = Qp::new(&field.context, 0xbeef, &cq).during("creating a QP")?;
        let two = Qp::new(&field.context, 0xbeee, &cq).during("creating a QP")?;
        one.connect_with(&field.context, range.port, &two)
            .during("connecting")?;
        // Never polled, and the consumer index is none that the device could accept at any time.
        cq.buffer.store32(offset::DRIVER_INDEX, consumer);
        cq.buffer.store32(offset::ARM, consumer);
        for n in 0..=SIZE {
            let good = field.write(u64::from(n));
            one.put_send(&good);
        }
        one.publish(&field.context);
        field
            .fatal(0xdead, EVENT_CQ_ERR)
            .during(format!("consumer {consumer}"))?;
        ensure!(
            cq.buffer.load32(offset::DEVICE_FLAGS) & flags::OVERRUN != 0,
            "consumer {consumer}: the CQ is not marked"
        );
        // What was written before is right, and nothing was written twice.
        let before: Vec<Cqe> = std::iter::from_fn(|| cq.poll()).collect();
        ensure!(
            before.len() <= SIZE as usize
                && before
                    .iter()
                    .enumerate()
                    .all(|(n, c)| c.wr_id.get() == n as u64 && c.status == 0),
            "consumer {consumer}: {before:?}"
        );
        for qp in [one.handle, two.handle] {
            field
                .context
                .destroy_qp(qp)
                .during("destroying a QP of a dead CQ")?;
        }
        field
            .context
            .destroy_cq(cq.handle)
            .during("destroying a dead CQ")?;
        field.transfers(2)?;
    }
    Ok(())
}

/// A CQ moves, again and again, to memory full of garbage that says all kinds of things about what was polled.
fn moved_cq(range: &Range) -> Outcome<()> {
    const SIZE: u32 = 16;
    let mut rng = Rng::new(&[range.seed, 11]);
    for consumer in [0, 1, 3, SIZE + 1, 1000, u32::MAX] {
        let mut field = Field::new(range)?;
        let cq = Cq::new(&field.context, 0xdead, SIZE).during("creating a CQ")?;
        let mut one = Qp::new(&field.context, 0xbeef, &cq).during("creating a QP")?;
        let two = Qp::new(&field.context, 0xbeee, &cq).during("creating a QP")?;
        one.connect_with(&field.context, range.port, &two)
            .during("connecting")?;
        for round in 0..20 {
            let good = field.write(round);
            one.put_send(&good);
            one.publish(&field.context);
            let buffer = Memory::new(4 * PAGE).during("mmap")?;
            for at in (0..2 * PAGE).step_by(8) {
                buffer.store(at, rng.next_u64());
            }
            buffer.store32(offset::DRIVER_INDEX, consumer);
            let request = Cq::request(&buffer, SIZE << (round % 3));
            let moved = field
                .context
                .resize_cq_raw(cq.handle, SIZE, request.as_bytes());
            ensure!(
                matches!(moved, Ok(()) | Err(Errno(libc::EINVAL))),
                "consumer {consumer}: {moved:?}"
            );
            // The old memory goes, or that which the queue did not move to.
        }
        for qp in [one.handle, two.handle] {
            field
                .context
                .destroy_qp(qp)
                .during("destroying a QP of a moved CQ")?;
        }
        field
            .context
            .destroy_cq(cq.handle)
            .during("destroying a moved CQ")?;
        field.transfers(2)?;
    }
    Ok(())
}

fn device_half(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 3]);
    let mut field = Field::new(range)?;
    for n in 0..200 {
        for at in [
            64,
            68,
            72,
            RECEIVE_HEADER + 64,
            RECEIVE_HEADER + 68,
            RECEIVE_HEADER + 100,
        ] {
            field.a.buffer.store32(at, rng.next_u64() as u32);
        }
        field
            .cq
            .buffer
            .store32(offset::DEVICE_INDEX, rng.next_u64() as u32);
        field
            .cq
            .buffer
            .store32(offset::DEVICE_FLAGS, rng.next_u64() as u32);
        let good = field.write(n);
        field.a.put_send(&good);
        field.a.publish(&field.context);
        let cqe = field.complete()?;
        ensure!(
            cqe.status == Status::Success.raw() && cqe.wr_id.get() == n,
            "the device reads back its own half: {cqe:?}"
        );
    }
    field.transfers(3)
}

fn foreign_slots(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    for slot in (0..SLOTS).chain([SLOTS, SLOTS + 1, 65_535, 65_536, 1 << 20, u32::MAX]) {
        field.context.doorbell.store32(0, slot);
    }
    for slot in 0..SLOTS {
        field.context.ring(slot);
    }
    ensure!(
        field.cq.wait(Duration::from_millis(100)).is_none(),
        "ringing made a completion"
    );
    // The right one, rung many times, is served once.
    let good = field.write(5);
    field.a.put_send(&good);
    field.a.publish(&field.context);
    for _ in 0..100 {
        field.context.ring(field.a.slot);
        field.context.doorbell.store32(0, field.a.slot);
    }
    ensure!(
        field.complete()?.wr_id.get() == 5,
        "another request completed"
    );
    ensure!(
        field.cq.wait(Duration::from_millis(100)).is_none(),
        "one request completed twice"
    );
    field.transfers(3)
}

fn garbage_doorbells(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 4]);
    let mut field = Field::new(range)?;
    let begin = Instant::now();
    let mut writes = 0_u64;
    while begin.elapsed() < range.duration / 2 {
        for _ in 0..50 {
            let value = rng.next_u64();
            match rng.below(3) {
                0 => field
                    .context
                    .doorbell
                    .store8(rng.below(PAGE as u64) as usize, value as u8),
                1 => field
                    .context
                    .doorbell
                    .store32(4 * rng.below(1024) as usize, value as u32),
                _ => field
                    .context
                    .doorbell
                    .store64(8 * rng.below(512) as usize, value),
            }
            writes += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("    {writes} writes");
    ensure!(
        field.cq.poll().is_none(),
        "random doorbells made a completion"
    );
    field.transfers(3)
}

fn garbage_notify(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 5]);
    let mut field = Field::new(range)?;
    let begin = Instant::now();
    while begin.elapsed() < range.duration / 2 {
        for _ in 0..64 {
            let at = 8 * rng.below((notify::area_length(SLOTS) / 8) as u64) as usize;
            field.context.notify.store(at, rng.next_u64());
        }
        field.context.doorbell.store32(0, rng.next_u64() as u32);
        std::thread::sleep(Duration::from_millis(1));
    }
    // Bits without a ring behind them, and summary bits without pending ones.
    field
        .context
        .notify
        .set(64, notify::area_length(SLOTS) - 64, 0xff);
    field.context.doorbell.store32(0, 0);
    ensure!(
        field.cq.wait(Duration::from_millis(200)).is_none(),
        "garbage in the notify area made a completion"
    );
    field.context.notify.set(0, notify::area_length(SLOTS), 0);
    field.context.doorbell.store32(0, field.a.slot);
    field.transfers(3)
}

fn everything_at_once(range: &Range) -> Outcome<()> {
    let field = Field::new(range)?;
    let stop = AtomicBool::new(false);
    let until = Instant::now() + range.duration;
    std::thread::scope(|scope| {
        for t in 0..2_u64 {
            let (field, stop) = (&field, &stop);
            scope.spawn(move || {
                let mut rng = Rng::new(&[range.seed, 6, t]);
                let areas = [
                    &field.a.buffer,
                    &field.b.buffer,
                    &field.cq.buffer,
                    &field.context.notify,
                ];
                while !stop.load(Ordering::Relaxed) && Instant::now() < until {
                    let area = areas[rng.below(4) as usize];
                    for _ in 0..32 {
                        let at = 4 * rng.below(area.len() as u64 / 4) as usize;
                        // Headers most of all.
                        let at = if rng.one_in(2) { at & 255 } else { at };
                        area.store32(
                            at,
                            if rng.one_in(2) {
                                rng.below(64) as u32
                            } else {
                                rng.next_u64() as u32
                            },
                        );
                    }
                    field.context.doorbell.store32(0, rng.below(8) as u32);
                    if rng.one_in(100) {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                }
            });
        }
    });
    stop.store(true, Ordering::Relaxed);
    // Objects of this kind can be dead by now; another context of the process is not.
    for handle in [field.a.handle, field.b.handle] {
        field
            .context
            .destroy_qp(handle)
            .during("destroying a QP full of garbage")?;
    }
    field
        .context
        .destroy_cq(field.cq.handle)
        .during("destroying a CQ full of garbage")?;
    field
        .context
        .deregister(field.region)
        .during("deregistering")?;
    drop(field);
    Field::new(range)?.transfers(3)
}

fn unmapped(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    for n in 0..8 {
        let good = field.write(n);
        field.a.put_send(&good);
    }
    field.a.publish(&field.context);
    // The pages are pinned: the device goes on with them, and the process sees others.
    let gone = Memory::new(PAGE).during("mmap")?;
    drop(std::mem::replace(&mut field.a.buffer, gone));
    for n in 0..8 {
        let cqe = field.complete()?;
        ensure!(
            cqe.status == Status::Success.raw() && cqe.wr_id.get() == n,
            "{cqe:?}"
        );
    }
    let gone = Memory::new(DATA).during("mmap")?;
    drop(std::mem::replace(&mut field.data, gone));
    let (_, key) = field
        .context
        .register(&field.data, ACCESS_ALL)
        .during("registering")?;
    field.key = key;
    field.transfers(3)
}
