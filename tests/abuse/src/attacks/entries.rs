// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Attacks with the contents of send and receive entries.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use verbs_tests::ensure;
use verbs_tests::rng::Rng;
use verbs_tests::stress::{During, Outcome};
use vrnic_wire::completion::Status;
use vrnic_wire::ring::offset;
use vrnic_wire::work::{RdmaTarget, SendOpcode, Sge, send_flags};

use super::{Attack, DATA, Field, Range, header};
use crate::provider::{ENTRIES, SEND_STRIDE, receive_entry, send_entry};

/// Makes one thing of a send entry wrong.
type SpoilEntry = fn(&mut [u8], &Field);

/// All of them.
pub const ATTACKS: &[Attack] = &[
    ("bad-send-entries", bad_send_entries),
    ("garbage-send-entries", garbage_send_entries),
    ("garbage-receive-entries", garbage_receive_entries),
    ("foreign-keys", foreign_keys),
];

/// One thing wrong in an otherwise good send entry: the status that the standard names.
fn bad_send_entries(range: &Range) -> Outcome<()> {
    let mut field = Field::new(range)?;
    let operation = Status::LocalQueuePairOperation;
    let entries: &[(&str, Status, SpoilEntry)] = &[
        ("opcode 7", operation, |e, _| e[0] = 7),
        ("opcode 255", operation, |e, _| e[0] = 255),
        ("unknown flag", operation, |e, _| e[1] |= 0x20),
        ("checksums of a connection", operation, |e, _| {
            e[1] |= send_flags::CHECKSUMS;
        }),
        ("segments of a connection", operation, |e, _| {
            e[0] = SendOpcode::SendSegmented.raw();
        }),
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
pub(super) fn random_entry(rng: &mut Rng, good: &[u8]) -> Vec<u8> {
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
                    "round {round}: completion of a request that was not posted: {cqe:?}"
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
