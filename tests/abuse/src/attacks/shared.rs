// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Attacks on shared receive queues. A QP that shares the queue with the attacked ones suffers if it takes receives
//! from it. Nobody else does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use verbs_tests::ensure;
use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::rng::Rng;
use verbs_tests::stress::{During, Outcome};
use verbs_tests::verbs::{
    EVENT_QP_FATAL, EVENT_QP_LAST_WQE_REACHED, EVENT_SRQ_ERR, EVENT_SRQ_LIMIT_REACHED, SRQ_LIMIT,
    SRQ_MAX_WR,
};
use vrnic_wire::abi;
use vrnic_wire::completion::{Cqe, Status};
use vrnic_wire::ring::offset;
use vrnic_wire::work::{RdmaTarget, SendOpcode};
use zerocopy::IntoBytes;

use super::entries::random_entry;
use super::{Attack, Field, Range, SOON, Spoil, header, refused};
use crate::provider::{Context, Cq, ENTRIES, Qp, Srq, receive_entry, send_entry};

/// User handle of the attacked queue.
const SHARED: u64 = 0x5123;
/// User handle of the first QP that takes receives; its peer has the next one.
const TAKER: u64 = 0x7a4e;

pub const ATTACKS: &[Attack] = &[
    ("garbage-shared-entries", garbage_entries),
    ("wild-shared-producer", wild_producer),
    ("shared-events", events),
    ("garbage-around-shared-rings", around),
    ("bad-shared-ring-requests", bad_requests),
    ("foreign-shared-queues", foreign),
];

/// A QP that sends to one that takes its receives from a shared queue.
struct Pair {
    sender: Qp,
    taker: Qp,
}

impl Pair {
    fn new(field: &Field, srq: &Srq, id: u64) -> Outcome<Self> {
        let sender = Qp::new(&field.context, id + 1, &field.cq).during("creating a QP")?;
        let taker = Qp::with_srq(&field.context, id, &field.cq, srq.handle)
            .during("creating a QP with an SRQ")?;
        for (qp, peer) in [(&sender, &taker), (&taker, &sender)] {
            qp.connect(&field.context, field.port, peer.number)
                .during("connecting")?;
        }
        Ok(Pair { sender, taker })
    }

    fn send(&mut self, field: &Field, count: u64) {
        for n in 0..count {
            let sge = field.sge(0, 256);
            let send = send_entry(header(SendOpcode::Send, n), RdmaTarget::default(), sge);
            self.sender.put_send(&send);
        }
        self.sender.publish(&field.context);
    }

    fn destroy(self, field: &mut Field) -> Outcome<()> {
        for qp in [self.sender, self.taker] {
            (field.context.destroy_qp(qp.handle)).during("destroying an attacked QP")?;
        }
        while field.cq.poll().is_some() {}
        Ok(())
    }

    /// Completions until `count` sends ended; those of receives.
    fn sent(&self, field: &mut Field, count: u64, round: u64) -> Outcome<Vec<Cqe>> {
        let mut received = Vec::new();
        let mut sends = 0;
        while sends < count {
            let cqe = field.complete().during(format!("round {round}"))?;
            ensure!(
                Status::try_from(cqe.status).is_ok(),
                "round {round}: unknown status {cqe:?}"
            );
            if cqe.qpn.get() == self.sender.number {
                ensure!(
                    cqe.wr_id.get() == sends,
                    "round {round}: send {sends} completed as {cqe:?}"
                );
                sends += 1;
            } else {
                ensure!(cqe.qpn.get() == self.taker.number, "round {round}: {cqe:?}");
                received.push(cqe);
            }
        }
        Ok(received)
    }
}

/// A good receive of any message of [`Pair::send`].
fn good(field: &Field, wr_id: u64) -> Vec<u8> {
    receive_entry(wr_id, field.sge(8192, 4096))
}

fn new_srq(field: &Field) -> Outcome<Srq> {
    Srq::new(&field.context, SHARED).during("creating an SRQ")
}

/// A bad entry fails the QP that takes it. The queue goes on.
fn garbage_entries(range: &Range) -> Outcome<()> {
    const SENDS: u64 = 8;
    let mut rng = Rng::new(&[range.seed, 9]);
    let mut field = Field::new(range)?;
    let mut srq = new_srq(&field)?;
    let begin = Instant::now();
    let mut round = 0;
    while begin.elapsed() < range.duration {
        round += 1;
        while srq.posted() < ENTRIES {
            let mut entry = good(&field, round);
            entry.resize(64, 0);
            srq.put(&random_entry(&mut rng, &entry));
        }
        let mut pair = Pair::new(&field, &srq, TAKER)?;
        pair.send(&field, SENDS);
        pair.sent(&mut field, SENDS, round)?;
        pair.destroy(&mut field)?;
    }
    println!("    {round} rounds");
    while srq.posted() > 0 {
        let mut pair = Pair::new(&field, &srq, TAKER)?;
        pair.send(&field, 1);
        pair.sent(&mut field, 1, round)?;
        pair.destroy(&mut field)?;
    }
    for n in 0..SENDS {
        let entry = good(&field, n);
        srq.put(&entry);
    }
    let mut pair = Pair::new(&field, &srq, TAKER)?;
    pair.send(&field, SENDS);
    let mut received = pair.sent(&mut field, SENDS, round)?;
    while received.len() < SENDS as usize {
        received.push(field.complete()?);
    }
    ensure!(
        (received.iter().zip(0..)).all(|(c, n)| c.wr_id.get() == n && c.status == 0),
        "good receives after garbage: {received:?}"
    );
    pair.destroy(&mut field)?;
    field
        .context
        .destroy_srq(srq.handle)
        .during("destroying an SRQ")?;
    field.transfers(3)
}

/// A producer index that cannot be fails the queue, and who needs a receive with it.
fn wild_producer(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    for jump in [ENTRIES + 1, 1 << 20, u32::MAX] {
        let mut srq = new_srq(&field)?;
        let entry = good(&field, 1);
        srq.put(&entry);
        let mut first = Pair::new(&field, &srq, TAKER)?;
        let mut second = Pair::new(&field, &srq, TAKER + 2)?;
        srq.buffer.store32(offset::DRIVER_INDEX, jump);
        first.send(&field, 1);
        let cqe = field.complete().during(format!("producer {jump}"))?;
        ensure!(
            cqe.status == Status::RemoteOperation.raw() && cqe.qpn.get() == first.sender.number,
            "producer {jump}: {cqe:?}"
        );
        let wanted = [(SHARED, EVENT_SRQ_ERR), (TAKER, EVENT_QP_FATAL)];
        ensure!(
            field.context.wait_events(&wanted, SOON),
            "producer {jump}: not all of {wanted:?} arrived"
        );
        // Once failed the queue stays so, and who needs no receive works.
        srq.buffer.store32(offset::DRIVER_INDEX, 1);
        let write = field.write(7);
        second.sender.put_send(&write);
        second.sender.publish(&field.context);
        let cqe = field.complete().during("a WRITE")?;
        ensure!(cqe.status == 0 && cqe.wr_id.get() == 7, "a WRITE: {cqe:?}");
        second.send(&field, 1);
        let cqe = field.complete().during("a SEND to a failed queue")?;
        ensure!(
            cqe.status == Status::RemoteOperation.raw() && cqe.qpn.get() == second.sender.number,
            "a SEND to a failed queue: {cqe:?}"
        );
        let buffer = Srq::ring().during("mmap")?;
        let request = Srq::request(&buffer, ENTRIES);
        refused(
            "resizing a failed queue",
            &[libc::EINVAL],
            &(field.context).modify_srq(srq.handle, SRQ_MAX_WR, ENTRIES, 0, request.as_bytes()),
        )?;
        first.destroy(&mut field)?;
        second.destroy(&mut field)?;
        (field.context.destroy_srq(srq.handle)).during("destroying a failed SRQ")?;
        field.transfers(1)?;
    }
    Ok(())
}

/// What the owner of a queue is told, and what the kernel refuses while it is in use.
fn events(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let mut srq = new_srq(&field)?;
    for n in 0..4 {
        let entry = good(&field, n);
        srq.put(&entry);
    }
    let mut pair = Pair::new(&field, &srq, TAKER)?;
    let set =
        |field: &Field, limit| (field.context).modify_srq(srq.handle, SRQ_LIMIT, 0, limit, &[]);
    set(&field, 4).during("setting a limit")?;
    pair.send(&field, 1);
    ensure!(
        (field.context).wait_events(&[(SHARED, EVENT_SRQ_LIMIT_REACHED)], SOON),
        "no event of the limit"
    );
    // A limit above what is posted is reached at once, and whatever the index does, once.
    set(&field, 8).during("setting a limit")?;
    ensure!(
        (field.context).wait_events(&[(SHARED, EVENT_SRQ_LIMIT_REACHED)], SOON),
        "no event of a limit that is reached when it is set"
    );
    refused(
        "a limit beyond the queue",
        &[libc::EINVAL],
        &set(&field, ENTRIES + 1),
    )?;
    pair.send(&field, 2);
    for index in [5, 3, 6, 4] {
        srq.buffer.store32(offset::DRIVER_INDEX, index);
    }
    refused(
        "destroying a queue that a QP uses",
        &[libc::EBUSY],
        &field.context.destroy_srq(srq.handle),
    )?;
    pair.taker.to_error(&field.context).during("to ERR")?;
    let last = [(TAKER, EVENT_QP_LAST_WQE_REACHED)];
    ensure!(
        field.context.wait_events(&last, SOON),
        "no event of the last receive"
    );
    ensure!(
        !(field.context).wait_events(&[(SHARED, EVENT_SRQ_LIMIT_REACHED)], super::QUIET),
        "one limit, two events"
    );
    pair.destroy(&mut field)?;
    (field.context.destroy_srq(srq.handle)).during("destroying an SRQ")?;
    field.transfers(1)
}

/// Everything changes while messages come: indices, entries, the limit, the ring itself.
fn around(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 10]);
    let begin = Instant::now();
    let mut round = 0_u64;
    while begin.elapsed() < range.duration {
        round += 1;
        let mut field = Field::new(range)?;
        let srq = new_srq(&field)?;
        let mut pairs = Vec::new();
        for n in 0..3 {
            pairs.push(Pair::new(&field, &srq, TAKER + 2 * n)?);
        }
        let others = [Srq::ring(), Srq::ring()].map(|ring| ring.during("mmap"));
        let [one, two] = others;
        let rings = [one?, two?];
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (rings, srq, stop) = (&rings, &srq, &stop);
            let seed = [range.seed, 11, round];
            scope.spawn(move || {
                let mut rng = Rng::new(&seed);
                while !stop.load(Ordering::Relaxed) {
                    let ring = rng.pick(&[&srq.buffer, &rings[0], &rings[1]]);
                    let at = 4 * rng.below(ring.len() as u64 / 4) as usize;
                    ring.store32(at, rng.next_u64() as u32);
                    let index = offset::DRIVER_INDEX;
                    ring.store32(index, ring.load32(index).wrapping_add(rng.below(3) as u32));
                    if rng.one_in(10_000) {
                        ring.store32(index, rng.next_u64() as u32);
                    }
                }
            });
            for _ in 0..50 {
                for pair in &mut pairs {
                    pair.send(&field, rng.below(3));
                }
                let limit = rng.below(u64::from(ENTRIES) + 2) as u32;
                // Whether these succeed is chance.
                let _ = (field.context).modify_srq(srq.handle, SRQ_LIMIT, 0, limit, &[]);
                let request = Srq::request(rng.pick(&[&rings[0], &rings[1]]), ENTRIES);
                let _ = (field.context).modify_srq(
                    srq.handle,
                    SRQ_MAX_WR,
                    ENTRIES,
                    0,
                    request.as_bytes(),
                );
                while field.cq.poll().is_some() {}
            }
            stop.store(true, Ordering::Relaxed);
        });
        for pair in pairs {
            pair.destroy(&mut field)?;
        }
        (field.context.destroy_srq(srq.handle)).during("destroying an SRQ full of garbage")?;
        field.transfers(1)?;
    }
    println!("    {round} rounds");
    Ok(())
}

fn bad_requests(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let bad = &[libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP, libc::ENOMEM];
    let buffer = Srq::ring().during("mmap")?;
    let srq = new_srq(&field)?;
    let requests: &[(&str, Spoil<abi::CreateSrqRequest>)] = &[
        ("comp_mask", |r| r.comp_mask = 1),
        ("reserved", |r| r.reserved_20 = [0, 0, 0, 1]),
        ("no entries", |r| r.ring.entries = 0),
        ("48 entries", |r| r.ring.entries = 48),
        ("2^31 entries", |r| r.ring.entries = 1 << 31),
        ("fewer entries than asked", |r| r.ring.entries = 1),
        ("stride 0", |r| r.ring.stride = 0),
        ("stride of no element", |r| r.ring.stride = 16),
        ("stride 4096", |r| r.ring.stride = 4096),
        ("entries behind the buffer", |r| {
            r.ring.entries_offset = 4 * PAGE as u32;
        }),
        ("entries wrap", |r| r.ring.entries_offset = !63),
        ("misaligned header", |r| r.ring.header_offset = 64),
        ("header behind the buffer", |r| {
            r.ring.header_offset = 4 * PAGE as u32;
        }),
        ("misaligned buffer", |r| r.buf_addr += 8),
        ("buffer nowhere", |r| r.buf_addr = 1 << 46),
        ("buffer in the kernel", |r| {
            r.buf_addr = 0xffff_8880_0000_0000;
        }),
        ("endless buffer", |r| r.buf_length = u64::MAX),
        ("no buffer", |r| r.buf_length = 0),
    ];
    let context = &field.context;
    for (what, spoil) in requests {
        let mut request = Srq::request(&buffer, ENTRIES);
        spoil(&mut request);
        let request = request.as_bytes();
        refused(
            &format!("SRQ: {what}"),
            bad,
            &context.create_srq_raw(1, ENTRIES, request),
        )?;
        refused(
            &format!("resizing: {what}"),
            bad,
            &context.modify_srq(srq.handle, SRQ_MAX_WR, ENTRIES, 0, request),
        )?;
    }
    let request = Srq::request(&buffer, ENTRIES);
    for len in [0, 8, request.as_bytes().len() - 8] {
        refused(
            &format!("SRQ request of {len} bytes"),
            bad,
            &context.create_srq_raw(1, ENTRIES, &request.as_bytes()[..len]),
        )?;
    }
    for mask in [4, 1 << 31] {
        refused(
            &format!("mask {mask:#x}"),
            bad,
            &context.modify_srq(srq.handle, mask, ENTRIES, 1, &[]),
        )?;
    }
    // A ring whose index cannot be is not moved to.
    buffer.store32(offset::DRIVER_INDEX, ENTRIES + 1);
    refused(
        "resizing to a wild index",
        bad,
        &context.modify_srq(srq.handle, SRQ_MAX_WR, ENTRIES, 0, request.as_bytes()),
    )?;
    let rings = Qp::rings().during("mmap")?;
    let both = Qp::request(&rings);
    let cq = field.cq.handle;
    refused(
        "a QP with an SRQ and a receive ring",
        bad,
        &context.create_qp_raw(1, cq, cq, Some(srq.handle), both.as_bytes()),
    )?;
    (context.destroy_srq(srq.handle)).during("destroying an SRQ")?;
    field.transfers(2)
}

/// The queue of another process of the same user is out of reach.
fn foreign(range: &Range) -> Outcome<()> {
    let victim = Field::new(range)?;
    let mut queues = Vec::new();
    for _ in 0..4 {
        queues.push(new_srq(&victim)?);
    }
    let mut field = Field::new(range)?;
    let unknown = &[libc::EINVAL, libc::ENOENT];
    let context = Context::new(&range.device).during("opening a context")?;
    let cq = Cq::new(&context, 1, ENTRIES).during("creating a CQ")?;
    let buffer = Memory::new(4 * PAGE).during("mmap")?;
    for srq in queues.iter().map(|srq| srq.handle).chain([999, u32::MAX]) {
        refused(
            &format!("a QP with SRQ {srq} of another process"),
            unknown,
            &Qp::with_srq(&context, 1, &cq, srq).map(|_| ()),
        )?;
        let request = Srq::request(&buffer, ENTRIES);
        for (what, result) in [
            ("a limit", context.modify_srq(srq, SRQ_LIMIT, 0, 1, &[])),
            (
                "resizing",
                context.modify_srq(srq, SRQ_MAX_WR, ENTRIES, 0, request.as_bytes()),
            ),
            ("destroying", context.destroy_srq(srq)),
        ] {
            refused(&format!("{what}, SRQ {srq}"), unknown, &result)?;
        }
    }
    field.transfers(1)
}
