// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The attacks. Each leaves a defined outcome for the attacked object, and afterwards a well-formed transfer of the
//! same process must still work.

mod shared;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use verbs_tests::ensure;
use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::rng::Rng;
use verbs_tests::stress::{During, Failure, Outcome};
use verbs_tests::verbs::{ACCESS_ALL, EVENT_CQ_ERR, EVENT_QP_FATAL, Errno};
use vrnic_wire::abi;
use vrnic_wire::completion::{Cqe, Status};
use vrnic_wire::notify;
use vrnic_wire::ring::{flags, offset};
use vrnic_wire::work::{RdmaTarget, SendHeader, SendOpcode, Sge, send_flags};
use zerocopy::IntoBytes;

use crate::provider::{
    Context, Cq, ENTRIES, Port, Qp, RECEIVE_HEADER, SEND_STRIDE, SLOTS, receive_entry, send_entry,
};
use crate::uverbs::Command;

/// How long something that must happen may take.
const SOON: Duration = Duration::from_secs(20);
/// How long to wait for what must not come.
const QUIET: Duration = Duration::from_millis(200);
/// Bytes of the data region.
const DATA: usize = 64 * 1024;
/// User handle of the attacked QP.
const ATTACKER: u64 = 0xa77ac;
/// User handle of the attacked CQ.
const ATTACKED_CQ: u64 = 0xc0;

/// What the attacks run on.
pub struct Range {
    /// The RDMA device
    pub device: String,
    /// Its port
    pub port: Port,
    /// Seed of all random bytes
    pub seed: u64,
    /// How long the random attacks go on
    pub duration: Duration,
}

/// Makes one thing of a request wrong.
type Spoil<T> = fn(&mut T);

/// Makes one thing of a send entry wrong.
type SpoilEntry = fn(&mut [u8], &Field);

/// An attack: its name and what it does.
pub type Attack = (&'static str, fn(&Range) -> Outcome<()>);

/// All attacks.
pub fn attacks() -> impl Iterator<Item = &'static Attack> {
    ATTACKS.iter().chain(shared::ATTACKS)
}

const ATTACKS: &[Attack] = &[
    ("well-behaved", |range| Field::new(range)?.transfers(3)),
    ("bad-send-entries", bad_send_entries),
    ("garbage-send-entries", garbage_send_entries),
    ("garbage-receive-entries", garbage_receive_entries),
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
    ("foreign-keys", foreign_keys),
    ("bad-ring-requests", bad_requests),
    ("bad-context-requests", bad_contexts),
    ("bad-mappings", bad_mappings),
    ("multicast-groups-left-behind", groups_left_behind),
];

/// A connected pair of QPs of one context: requests are posted to `a`, `b` answers.
struct Field {
    context: Context,
    port: Port,
    cq: Cq,
    a: Qp,
    b: Qp,
    data: Memory,
    key: u32,
    region: u32,
}

impl Field {
    fn new(range: &Range) -> Outcome<Self> {
        let context = Context::new(&range.device).during("opening a context")?;
        let cq = Cq::new(&context, ATTACKED_CQ, 4 * ENTRIES).during("creating a CQ")?;
        let a = Qp::new(&context, ATTACKER, &cq).during("creating a QP")?;
        let b = Qp::new(&context, ATTACKER + 1, &cq).during("creating a QP")?;
        a.connect(&context, range.port, b.number)
            .during("connecting")?;
        b.connect(&context, range.port, a.number)
            .during("connecting")?;
        let data = Memory::new(DATA).during("mmap")?;
        let (region, key) = context
            .register(&data, ACCESS_ALL)
            .during("registering memory")?;
        Ok(Field {
            context,
            port: range.port,
            cq,
            a,
            b,
            data,
            key,
            region,
        })
    }

    fn sge(&self, at: usize, length: u32) -> Sge {
        Sge {
            address: self.data.addr(at).into(),
            length: length.into(),
            lkey: self.key.into(),
        }
    }

    fn target(&self, at: usize) -> RdmaTarget {
        RdmaTarget {
            address: self.data.addr(at).into(),
            rkey: self.key.into(),
            reserved: [0; 28],
        }
    }

    /// A WRITE of 64 bytes from offset 0 to offset 4096, signalled.
    fn write(&self, wr_id: u64) -> Vec<u8> {
        send_entry(
            header(SendOpcode::Write, wr_id),
            self.target(4096),
            self.sge(0, 64),
        )
    }

    /// Replaces the attacked pair.
    fn renew(&mut self) -> Outcome<()> {
        let a = Qp::new(&self.context, ATTACKER, &self.cq).during("creating a QP")?;
        let b = Qp::new(&self.context, ATTACKER + 1, &self.cq).during("creating a QP")?;
        a.connect(&self.context, self.port, b.number)
            .during("connecting")?;
        b.connect(&self.context, self.port, a.number)
            .during("connecting")?;
        for old in [
            std::mem::replace(&mut self.a, a),
            std::mem::replace(&mut self.b, b),
        ] {
            self.context
                .destroy_qp(old.handle)
                .during("destroying an attacked QP")?;
        }
        while self.cq.poll().is_some() {}
        Ok(())
    }

    /// A fresh pair in the same context does `count` transfers right.
    fn transfers(&mut self, count: u64) -> Outcome<()> {
        let mut cq =
            Cq::new(&self.context, 0xf00d, ENTRIES).during("creating a CQ after an attack")?;
        let mut one = Qp::new(&self.context, 1, &cq).during("creating a QP after an attack")?;
        let two = Qp::new(&self.context, 2, &cq).during("creating a QP after an attack")?;
        one.connect(&self.context, self.port, two.number)
            .during("connecting after an attack")?;
        two.connect(&self.context, self.port, one.number)
            .during("connecting after an attack")?;
        for n in 0..count {
            self.data.fill(0, 64, n, 0);
            self.data.set(4096, 64, 0);
            one.put_send(&self.write(n));
            one.publish(&self.context);
            let cqe = cq
                .wait(SOON)
                .ok_or_else(|| Failure("a good request after an attack did not complete".into()))?;
            ensure!(
                cqe.status == Status::Success.raw()
                    && cqe.wr_id.get() == n
                    && cqe.qpn.get() == one.number,
                "a good request after an attack: {cqe:?}"
            );
            ensure!(
                self.data.check(4096, 64, n, 0).is_ok(),
                "wrong data after an attack"
            );
        }
        for qp in [&one, &two] {
            self.context
                .destroy_qp(qp.handle)
                .during("destroying a good QP")?;
        }
        self.context
            .destroy_cq(cq.handle)
            .during("destroying a good CQ")
    }

    /// The next completion of the attacked queue.
    fn complete(&mut self) -> Outcome<Cqe> {
        self.cq
            .wait(SOON)
            .ok_or_else(|| Failure("no completion".into()))
    }

    fn fatal(&mut self, handle: u64, kind: i32) -> Outcome<()> {
        ensure!(
            self.context.wait_event(handle, kind, SOON),
            "no event {kind} for the object {handle:#x}"
        );
        Ok(())
    }
}

fn header(opcode: SendOpcode, wr_id: u64) -> SendHeader {
    SendHeader {
        opcode: opcode.raw(),
        flags: send_flags::SIGNALED,
        num_sge: 1.into(),
        wr_id: wr_id.into(),
        ..Default::default()
    }
}

/// One thing wrong in an otherwise good send entry: the status that the standard names.
fn bad_send_entries(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let operation = Status::LocalQueuePairOperation;
    let entries: &[(&str, Status, SpoilEntry)] = &[
        ("opcode 7", operation, |e, _| e[0] = 7),
        ("opcode 255", operation, |e, _| e[0] = 255),
        ("unknown flag", operation, |e, _| e[1] |= 0x10),
        ("INLINE with elements", operation, |e, _| {
            e[1] |= send_flags::INLINE;
        }),
        ("INLINE read", operation, |e, _| {
            e[0] = SendOpcode::Read.raw();
            e[1] |= send_flags::INLINE;
            e[2] = 0;
        }),
        ("elements beyond the stride", operation, |e, _| {
            e[2..4].copy_from_slice(&13_u16.to_le_bytes());
        }),
        ("65535 elements", operation, |e, _| {
            e[2..4].copy_from_slice(&[255, 255]);
        }),
        ("inline length without INLINE", operation, |e, _| e[4] = 1),
        ("inline beyond the stride", operation, |e, _| {
            e[1] |= send_flags::INLINE;
            e[2] = 0;
            e[4..8].copy_from_slice(&(SEND_STRIDE - 63).to_le_bytes());
        }),
        ("4 GiB inline", operation, |e, _| {
            e[1] |= send_flags::INLINE;
            e[2] = 0;
            e[4..8].copy_from_slice(&[255; 4]);
        }),
        ("reserved in the header", operation, |e, _| e[22] = 1),
        ("unknown local key", Status::LocalProtection, |e, f| {
            e[76..80].copy_from_slice(&(f.key ^ 0x10).to_le_bytes());
        }),
        (
            "local range out of bounds",
            Status::LocalProtection,
            |e, f| {
                e[64..72].copy_from_slice(&f.data.addr(DATA - 63).to_le_bytes());
            },
        ),
        ("local range overflows", Status::LocalProtection, |e, _| {
            e[64..72].copy_from_slice(&(u64::MAX - 3).to_le_bytes());
        }),
        ("message too long", Status::LocalLength, |e, _| {
            e[72..76].copy_from_slice(&u32::MAX.to_le_bytes());
        }),
        ("unknown remote key", Status::RemoteAccess, |e, f| {
            e[32..36].copy_from_slice(&(f.key ^ 0x10).to_le_bytes());
        }),
        (
            "remote range out of bounds",
            Status::RemoteAccess,
            |e, f| {
                e[24..32].copy_from_slice(&f.data.addr(DATA - 63).to_le_bytes());
            },
        ),
        ("remote range overflows", Status::RemoteAccess, |e, _| {
            e[24..32].copy_from_slice(&(u64::MAX - 3).to_le_bytes());
        }),
        ("atomic of 64 bytes", Status::LocalLength, |e, _| {
            e[0] = SendOpcode::FetchAdd.raw();
        }),
    ];
    for (name, status, spoil) in entries {
        let mut entry = field.write(1);
        spoil(&mut entry, &field);
        field.a.put_send(&entry);
        let good = field.write(2);
        field.a.put_send(&good);
        field.a.publish(&field.context);
        let cqe = field.complete().during(name)?;
        // An entry whose wr_id can be read is named by its completion.
        ensure!(
            cqe.status == status.raw() && cqe.wr_id.get() == 1 && cqe.qpn.get() == field.a.number,
            "{name}: {cqe:?}, expected {status:?}"
        );
        let cqe = field.complete().during(name)?;
        ensure!(
            cqe.status == Status::Flushed.raw() && cqe.wr_id.get() == 2,
            "{name}: then {cqe:?}"
        );
        field.renew()?;
        field.transfers(1).during(name)?;
    }
    // What an operation has no use for is not looked at (DEV-WQE-5).
    let mut entry = field.write(1);
    entry[63] = 1;
    field.a.put_send(&entry);
    field.a.publish(&field.context);
    let cqe = field.complete().during("reserved in the target")?;
    ensure!(
        cqe.status == Status::Success.raw() && cqe.wr_id.get() == 1,
        "reserved in the target: {cqe:?}"
    );
    Ok(())
}

/// A random entry: bytes without any sense, or a good one with some bytes changed.
fn random_entry(rng: &mut Rng, good: &[u8]) -> Vec<u8> {
    let mut entry = good.to_vec();
    let changes = match rng.below(4) {
        0 => {
            verbs_tests::pattern::fill(rng.next_u64(), 0, &mut entry);
            return entry;
        }
        1 => 1,
        2 => 4,
        _ => 16,
    };
    for _ in 0..changes {
        let at = rng.below(96.min(entry.len() as u64)) as usize;
        entry[at] = if rng.one_in(2) {
            rng.next_u64() as u8
        } else {
            entry[at] ^ (1 << rng.below(8))
        };
    }
    entry
}

fn garbage_send_entries(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 1]);
    let mut field = Field::new(range)?;
    let begin = Instant::now();
    let mut round = 0_u64;
    while begin.elapsed() < range.duration {
        round += 1;
        let count = rng.range(1, u64::from(ENTRIES));
        let mut names = Vec::new();
        for n in 0..count {
            let mut good = field.write(n);
            // Every operation there is.
            good[0] = rng.pick(&[0, 1, 2, 3, 4, 5, 6, 9]);
            let entry = random_entry(&mut rng, &good);
            names.push(u64::from_le_bytes(entry[8..16].try_into()?));
            field.a.put_send(&entry);
            if rng.one_in(3) {
                let receive = receive_entry(n, field.sge(8192, 4096));
                field.b.put_receive(&field.context, &receive);
            }
        }
        let marker = round << 32 | 0xffff;
        field.a.publish(&field.context);
        // All of them end: with a completion each unless they succeed unsignalled. Once the pair is in error even a
        // good request is flushed, so a last one that is signalled must come back.
        let names: HashSet<u64> = names.into_iter().collect();
        std::thread::sleep(Duration::from_millis(rng.below(20)));
        if field
            .a
            .buffer
            .load32(offset::DRIVER_INDEX)
            .wrapping_sub(field.a.buffer.load32(offset::DEVICE_INDEX))
            < ENTRIES
        {
            let last = field.write(marker);
            field.a.put_send(&last);
            field.a.publish(&field.context);
        }
        let mut sends = 0;
        let until = Instant::now() + Duration::from_millis(200);
        while let Some(cqe) = field
            .cq
            .wait(until.saturating_duration_since(Instant::now()))
        {
            let number = cqe.qpn.get();
            ensure!(
                number == field.a.number || number == field.b.number,
                "round {round}: completion of a foreign QP: {cqe:?}"
            );
            ensure!(
                Status::try_from(cqe.status).is_ok(),
                "round {round}: unknown status {cqe:?}"
            );
            if number == field.a.number {
                sends += 1;
                ensure!(
                    names.contains(&cqe.wr_id.get()) || cqe.wr_id.get() == marker,
                    "round {round}: completion of a request that never was: {cqe:?}"
                );
                if cqe.wr_id.get() == marker {
                    break;
                }
            }
        }
        ensure!(
            sends <= count + 1,
            "round {round}: {sends} completions of {} sends",
            count + 1
        );
        field.renew()?;
        if round.is_multiple_of(16) {
            field.transfers(1).during(format!("round {round}"))?;
        }
    }
    println!("    {round} rounds");
    field.transfers(3)
}

fn garbage_receive_entries(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 2]);
    let mut field = Field::new(range)?;
    let begin = Instant::now();
    let mut round = 0_u64;
    while begin.elapsed() < range.duration {
        round += 1;
        for n in 0..8 {
            let good = receive_entry(n, field.sge(8192, 4096));
            let mut entry = good.clone();
            entry.resize(64, 0);
            let entry = random_entry(&mut rng, &entry);
            field.b.put_receive(&field.context, &entry);
            let send = send_entry(
                header(SendOpcode::Send, n),
                RdmaTarget::default(),
                field.sge(0, 256),
            );
            field.a.put_send(&send);
        }
        field.a.publish(&field.context);
        let mut sends = 0;
        while sends < 8 {
            let cqe = field.complete().during(format!("round {round}"))?;
            ensure!(
                Status::try_from(cqe.status).is_ok(),
                "round {round}: unknown status {cqe:?}"
            );
            if cqe.qpn.get() == field.a.number {
                ensure!(
                    cqe.wr_id.get() == sends,
                    "round {round}: send {sends} completed as {cqe:?}"
                );
                sends += 1;
            } else {
                ensure!(cqe.qpn.get() == field.b.number, "round {round}: {cqe:?}");
            }
        }
        field.renew()?;
        if round.is_multiple_of(16) {
            field.transfers(1).during(format!("round {round}"))?;
        }
    }
    println!("    {round} rounds");
    field.transfers(3)
}

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
            "producer {jump}: the ring came back to life"
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
        one.connect(&field.context, range.port, two.number)
            .during("connecting")?;
        two.connect(&field.context, range.port, one.number)
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
        one.connect(&field.context, range.port, two.number)
            .during("connecting")?;
        two.connect(&field.context, range.port, one.number)
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

fn foreign_keys(range: &Range) -> Outcome<()> {
    let mut rng = Rng::new(&[range.seed, 7]);
    let victim = Field::new(range)?;
    victim.data.fill(0, DATA, 99, 0);
    let mut field = Field::new(range)?;
    let mut keys = vec![victim.key];
    keys.extend((0..16).map(|_| rng.next_u64() as u32));
    for key in keys {
        for (opcode, remote) in [
            (SendOpcode::Write, true),
            (SendOpcode::Read, true),
            (SendOpcode::Write, false),
        ] {
            let mut target = field.target(4096);
            let mut sge = field.sge(0, 64);
            if remote {
                target.address = victim.data.addr(0).into();
                target.rkey = key.into();
            } else {
                sge = Sge {
                    address: victim.data.addr(0).into(),
                    length: 64.into(),
                    lkey: key.into(),
                };
            }
            field
                .a
                .put_send(&send_entry(header(opcode, 3), target, sge));
            field.a.publish(&field.context);
            let cqe = field.complete()?;
            let want = if remote {
                Status::RemoteAccess
            } else {
                Status::LocalProtection
            };
            ensure!(
                cqe.status == want.raw(),
                "{opcode:?} with the key of another process: {cqe:?}"
            );
            field.renew()?;
        }
    }
    ensure!(
        victim.data.check(0, DATA, 99, 0).is_ok(),
        "another process's memory was changed"
    );
    field.transfers(1)
}

fn refused<T>(what: &str, errno: &[i32], result: &Result<T, Errno>) -> Outcome<()> {
    match result {
        Ok(_) => Err(Failure(format!("{what} was accepted"))),
        Err(e) => {
            ensure!(errno.contains(&e.0), "{what}: {e}");
            Ok(())
        }
    }
}

fn bad_requests(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let context = &field.context;
    let bad = &[libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP, libc::ENOMEM];
    let buffer = Memory::new(PAGE * 4).during("mmap")?;
    let cq: &[(&str, Spoil<abi::CreateCqRequest>)] = &[
        ("comp_mask", |r| r.comp_mask = 1),
        ("reserved", |r| r.reserved_20 = [1, 0, 0, 0]),
        ("no entries", |r| r.ring.entries = 0),
        ("48 entries", |r| r.ring.entries = 48),
        ("2^31 entries", |r| r.ring.entries = 1 << 31),
        ("entries behind the buffer", |r| {
            r.ring.entries_offset = 4 * PAGE as u32;
        }),
        ("entries wrap", |r| r.ring.entries_offset = !63),
        ("misaligned entries", |r| r.ring.entries_offset += 32),
        ("entries over the header", |r| r.ring.entries_offset = 64),
        ("stride 32", |r| r.ring.stride = 32),
        ("stride 0", |r| r.ring.stride = 0),
        ("misaligned header", |r| r.ring.header_offset = 64),
        ("header behind the buffer", |r| {
            r.ring.header_offset = 4 * PAGE as u32;
        }),
        ("misaligned buffer", |r| r.buf_addr += 8),
        ("buffer nowhere", |r| r.buf_addr = 1 << 46),
        ("buffer at null", |r| r.buf_addr = 0),
        ("buffer in the kernel", |r| {
            r.buf_addr = 0xffff_8880_0000_0000;
        }),
        ("endless buffer", |r| r.buf_length = u64::MAX),
        ("no buffer", |r| r.buf_length = 0),
        ("fewer entries than asked", |r| r.ring.entries = 1),
    ];
    for (what, spoil) in cq {
        let mut request = Cq::request(&buffer, 64);
        spoil(&mut request);
        refused(
            &format!("CQ: {what}"),
            bad,
            &context.create_cq_raw(1, 64, request.as_bytes()),
        )?;
        refused(
            &format!("moved CQ: {what}"),
            bad,
            &context.resize_cq_raw(field.cq.handle, 64, request.as_bytes()),
        )?;
    }
    let good = Cq::request(&buffer, 64);
    for len in [0, 8, good.as_bytes().len() - 8] {
        refused(
            &format!("CQ request of {len} bytes"),
            bad,
            &context.create_cq_raw(1, 64, &good.as_bytes()[..len]),
        )?;
    }
    let longer = [good.as_bytes(), &[1; 8]].concat();
    refused(
        "CQ request with something behind it",
        bad,
        &context.create_cq_raw(1, 64, &longer),
    )?;

    let rings = Qp::rings().during("mmap")?;
    let qp: &[(&str, Spoil<abi::CreateQpRequest>)] = &[
        ("comp_mask", |r| r.comp_mask = 1),
        ("no send ring", |r| r.sq.entries = 0),
        ("63 entries", |r| r.sq.entries = 63),
        ("2^31 entries", |r| r.rq.entries = 1 << 31),
        ("stride 8", |r| r.rq.stride = 8),
        ("stride 4096", |r| r.sq.stride = 4096),
        ("stride too small for the elements", |r| r.sq.stride = 64),
        ("rings over each other", |r| {
            r.rq.entries_offset = r.sq.entries_offset;
        }),
        ("header in the other ring", |r| {
            r.rq.header_offset = r.sq.entries_offset;
        }),
        ("same header", |r| r.rq.header_offset = 0),
        ("receive ring behind the buffer", |r| {
            r.rq.entries_offset = 1 << 30;
        }),
        ("buffer too short", |r| r.buf_length -= 1),
        ("buffer nowhere", |r| r.buf_addr = 1 << 46),
    ];
    let handle = field.cq.handle;
    for (what, spoil) in qp {
        let mut request = Qp::request(&rings);
        spoil(&mut request);
        let result = context.create_qp_raw(1, handle, handle, None, request.as_bytes());
        if what.starts_with("rings over") || what.contains("header") {
            // Harmless to others: only a ring of one's own is spoilt. Either answer will do.
            if let Ok((handle, ..)) = result {
                context.destroy_qp(handle).during(what)?;
            }
            continue;
        }
        refused(&format!("QP: {what}"), bad, &result)?;
    }
    refused(
        "QP with unknown CQs",
        &[libc::EINVAL, libc::ENOENT],
        &context.create_qp_raw(1, 999, 999, None, Qp::request(&rings).as_bytes()),
    )?;
    field.transfers(2)
}

fn bad_contexts(range: &Range) -> Outcome<()> {
    let good = abi::AllocContextRequest {
        comp_mask: 0,
        slots: SLOTS,
    };
    let bad: &[(&str, Spoil<abi::AllocContextRequest>)] = &[
        ("comp_mask", |r| r.comp_mask = 8),
        ("0 slots", |r| r.slots = 0),
        ("63 slots", |r| r.slots = 63),
        ("1000 slots", |r| r.slots = 1000),
        ("131072 slots", |r| r.slots = 131_072),
        ("2^31 slots", |r| r.slots = 1 << 31),
    ];
    let open = |driver: &[u8]| {
        let uverbs = crate::uverbs::Uverbs::open(&range.device)
            .map_err(|e| Errno(e.raw_os_error().unwrap_or(0)))?;
        uverbs.execute(
            crate::uverbs::Command::GetContext,
            &crate::uverbs::Bytes::default(),
            driver,
            32,
        )
    };
    for (what, spoil) in bad {
        let mut request = good;
        spoil(&mut request);
        let errno = [libc::EINVAL, libc::EFAULT, libc::EOPNOTSUPP, libc::ENOMEM];
        refused(
            &format!("context: {what}"),
            &errno,
            &open(request.as_bytes()),
        )?;
    }
    // Random bytes as commands: refused by the kernel, harmless to everybody.
    let mut rng = Rng::new(&[range.seed, 8]);
    let uverbs = crate::uverbs::Uverbs::open(&range.device)?;
    for _ in 0..2000 {
        let mut bytes = vec![0; 8 + 4 * rng.below(40) as usize];
        verbs_tests::pattern::fill(rng.next_u64(), 0, &mut bytes);
        if rng.one_in(2) {
            let words = bytes.len() as u16 / 4;
            bytes[..4].copy_from_slice(&(rng.below(50) as u32).to_le_bytes());
            bytes[4..6].copy_from_slice(&words.to_le_bytes());
        }
        let _ = uverbs.write_raw(&bytes);
    }
    drop(uverbs);
    Field::new(range)?.transfers(2)
}

fn bad_mappings(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let uverbs = &field.context.uverbs;
    let granted = field.context.granted;
    let (offset, area) = (granted.doorbell_offset, granted.notify_offset);
    let page = PAGE as u64;
    let errno = [
        libc::EINVAL,
        libc::EPERM,
        libc::EACCES,
        libc::ENXIO,
        libc::ENOMEM,
        libc::EOPNOTSUPP,
    ];
    let (write, shared) = (libc::PROT_WRITE, libc::MAP_SHARED);
    let end = offset.max(area) + page;
    for other in [end, end + page, end + 1000 * page, 1 << 40] {
        refused(
            &format!("a mapping at {other:#x}"),
            &errno,
            &uverbs.map(other, PAGE, write, shared),
        )?;
    }
    refused(
        "a mapping of two pages",
        &errno,
        &uverbs.map(offset, 2 * PAGE, write, shared),
    )?;
    refused(
        "a private mapping",
        &errno,
        &uverbs.map(offset, PAGE, write, libc::MAP_PRIVATE),
    )?;
    refused(
        "a notify area of two pages",
        &errno,
        &uverbs.map(area, 2 * PAGE, write, shared),
    )?;
    refused(
        "a private notify area",
        &errno,
        &uverbs.map(area, PAGE, write, libc::MAP_PRIVATE),
    )?;
    // One's own page may be mapped twice.
    let again = uverbs
        .map(offset, PAGE, write, shared)
        .during("mapping the own page again")?;
    again.store32(0, field.a.slot);
    drop(again);
    field.transfers(2)
}

/// A process that ends without leaving its groups takes nothing with it: else the group would be full soon.
fn groups_left_behind(range: &Range) -> Outcome<()> {
    /// More than a group has members.
    const PROCESSES: usize = 80;
    const UD: u8 = 4;
    const RC: u8 = 2;
    const GROUP: [u8; 16] = [0xff; 16];
    let (attach, detach) = (Command::AttachMcast, Command::DetachMcast);
    let mut field = Field::new(range)?;
    for _ in 0..PROCESSES {
        let context = Context::new(&range.device).during("opening a context")?;
        let cq = Cq::new(&context, 1, 16).during("creating a CQ")?.handle;
        let connection = context.create_bare_qp(RC, cq).during("an RC QP")?;
        let qp = context.create_bare_qp(UD, cq).during("a UD QP")?;
        let join = |qp, gid, lid| context.multicast(attach, qp, gid, lid);
        let wrong = &[libc::EINVAL];
        refused("a connection", wrong, &join(connection, GROUP, 0))?;
        refused(
            "an unknown QP",
            &[libc::ENOENT, libc::EINVAL],
            &join(999, GROUP, 0),
        )?;
        refused("no group", wrong, &join(qp, [0; 16], 0))?;
        join(qp, GROUP, 0).during("attaching")?;
        // The core takes this for another group. It would count the QP twice, and never let it go.
        refused("once more", &[libc::EBUSY], &join(qp, GROUP, 1))?;
        let leave = |gid, lid| context.multicast(detach, qp, gid, lid);
        refused("leaving twice", wrong, &leave(GROUP, 1))?;
        refused("leaving another", wrong, &leave([0xfe; 16], 0))?;
        let busy = context.destroy_qp(qp);
        refused("destroying a member", &[libc::EBUSY], &busy)?;
    }
    field.transfers(1)
}
