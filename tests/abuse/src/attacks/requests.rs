// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Attacks with requests to the kernel, and by leaving objects behind without destroying them.

use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::rng::Rng;
use verbs_tests::stress::{During, Outcome};
use verbs_tests::verbs::Errno;
use vrnic_wire::abi;
use zerocopy::IntoBytes;

use super::{Attack, Field, Range, Spoil, refused};
use crate::provider::{Context, Cq, Qp, SLOTS};
use crate::uverbs::Command;

/// All of them.
pub const ATTACKS: &[Attack] = &[
    ("bad-ring-requests", bad_requests),
    ("bad-context-requests", bad_contexts),
    ("bad-mappings", bad_mappings),
    ("multicast-groups-left-behind", groups_left_behind),
];

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
