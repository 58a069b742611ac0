// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A driver that does everything wrong: malformed commands, page lists that point anywhere, garbage in queues and
//! registers. Each mistake gets its error, the device of another VM is unaffected, and after a reset the same device
//! works.

#![allow(
    clippy::cast_possible_truncation,
    clippy::large_stack_arrays,
    reason = "test values are small, test stacks large"
)]

mod common;

use common::daemon::{Daemon, Driver, EVENT, F_DOORBELL, REPLY, REQUEST};
use common::*;
use vrnic_wire::command::{
    Command, CommandCode, CommandHeader, ContextCreated, ContextKind, CreateContext, CreateCq,
    CreatePd, CreateQp, PdCreated, RegisterMr, Status,
};
use vrnic_wire::memory::{CHUNK_PAGES, PageList, access};
use vrnic_wire::notify;
use vrnic_wire::ring::RingLayout;
use zerocopy::{FromBytes, IntoBytes};

/// Address of the chunks of page lists.
const CHUNKS: u64 = 0x60000;
/// Address of the pages that lists refer to.
const PAGES: u64 = 0x80000;
/// Size of the guest's memory in bytes.
const RAM: u64 = 1 << 20;

/// Returns a generator of numbers below a given bound, the same in each run (splitmix64).
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}

/// Writes a chunk of a page list at `at`.
fn chunk(driver: &Driver, at: u64, next: u64, count: u32, pages: &[u64]) {
    let mut bytes = next.to_le_bytes().to_vec();
    bytes.extend(count.to_le_bytes());
    bytes.extend([0; 4]);
    for page in pages {
        bytes.extend(page.to_le_bytes());
    }
    driver.ram.view.write(at, &bytes).unwrap();
}

/// Returns a page list of `count` valid pages, in one chunk.
fn good_list(driver: &Driver, count: u32, length: u64) -> PageList {
    let pages: Vec<u64> = (0..u64::from(count)).map(|n| PAGES + 4096 * n).collect();
    chunk(driver, CHUNKS, 0, count, &pages);
    PageList {
        first_chunk: CHUNKS.into(),
        length: length.into(),
        page_count: count.into(),
        page_shift: 12,
        ..Default::default()
    }
}

fn command<C: Command>(driver: &mut Driver, request: &C) -> Result<Vec<u8>, u32> {
    let (status, body) = driver.execute(C::CODE.raw(), request.as_bytes(), 512);
    if status == Status::Ok.raw() {
        Ok(body)
    } else {
        Err(status)
    }
}

/// Creates a context and a protection domain.
fn context(driver: &mut Driver) -> (u32, u32) {
    let area = good_list(driver, 1, notify::area_length(64) as u64);
    let request = CreateContext {
        kind: ContextKind::User.raw(),
        slots: 64.into(),
        area,
        ..Default::default()
    };
    let reply = command(driver, &request).expect("a context");
    let context = ContextCreated::read_from_bytes(&reply).unwrap().context;
    let reply = command(
        driver,
        &CreatePd {
            context,
            ..Default::default()
        },
    )
    .expect("a PD");
    (
        context.get(),
        PdCreated::read_from_bytes(&reply).unwrap().pd.get(),
    )
}

/// Makes a valid page list invalid.
type Spoil = fn(&Driver, &mut PageList);

#[test]
fn page_lists_that_lead_anywhere_are_refused() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    let (_, pd) = context(&mut a);
    let (malformed, argument, address) = (
        Status::Malformed,
        Status::InvalidArgument,
        Status::BadAddress,
    );
    let lists: &[(&str, &[Status], Spoil)] = &[
        ("chunk outside RAM", &[address], |_, l| {
            l.first_chunk = (1 << 40).into();
        }),
        (
            "chunk at the end of the address space",
            &[address],
            |_, l| l.first_chunk = (!4095_u64).into(),
        ),
        ("chunk misaligned", &[address, argument], |_, l| {
            l.first_chunk = (CHUNKS + 8).into();
        }),
        ("page outside RAM", &[address], |d, _| {
            chunk(d, CHUNKS, 0, 2, &[PAGES, RAM]);
        }),
        ("page that wraps", &[address], |d, _| {
            chunk(d, CHUNKS, 0, 2, &[PAGES, !4095_u64]);
        }),
        ("page misaligned", &[address, argument], |d, _| {
            chunk(d, CHUNKS, 0, 2, &[PAGES, PAGES + 1]);
        }),
        ("empty chunk", &[address, argument], |d, _| {
            chunk(d, CHUNKS, CHUNKS, 0, &[]);
        }),
        ("chunk too full", &[address, argument], |d, _| {
            chunk(d, CHUNKS, 0, CHUNK_PAGES as u32 + 1, &[PAGES, PAGES]);
        }),
        ("chunk with 2^32 - 1 pages", &[address, argument], |d, _| {
            chunk(d, CHUNKS, 0, u32::MAX, &[PAGES, PAGES]);
        }),
        ("list that ends early", &[address], |d, _| {
            chunk(d, CHUNKS, 1 << 50, 1, &[PAGES]);
        }),
        ("fewer pages than bytes", &[argument, address], |_, l| {
            l.length = 8193.into();
        }),
        ("more pages than bytes", &[argument, address], |_, l| {
            l.length = 4096.into();
        }),
        ("no bytes", &[argument, address], |_, l| l.length = 0.into()),
        ("2^64 - 1 bytes", &[argument, address], |_, l| {
            l.length = u64::MAX.into();
        }),
        ("offset beyond the page", &[argument, address], |_, l| {
            l.offset = 4096.into();
        }),
        ("offset that overflows", &[argument, address], |_, l| {
            l.offset = u64::MAX.into();
        }),
        ("pages of 2 KiB", &[argument, address], |_, l| {
            l.page_shift = 11;
        }),
        ("pages of 2^49 bytes", &[argument, address], |_, l| {
            l.page_shift = 49;
        }),
        ("pages of 2^255 bytes", &[argument, address], |_, l| {
            l.page_shift = 255;
        }),
        ("reserved", &[malformed, argument], |_, l| {
            l.reserved = [0, 0, 1];
        }),
        (
            "an endless list",
            &[address, argument, Status::NoResources],
            |d, l| {
                chunk(d, CHUNKS, CHUNKS, 1, &[PAGES]);
                l.page_count = u32::MAX.into();
                l.length = (u64::from(u32::MAX) * 4096).into();
            },
        ),
    ];
    for (name, wanted, spoil) in lists {
        let mut pages = good_list(&a, 2, 8192);
        spoil(&a, &mut pages);
        let request = RegisterMr {
            pd: pd.into(),
            access: access::LOCAL_WRITE.into(),
            pages,
            ..Default::default()
        };
        let status = command(&mut a, &request).expect_err(name);
        assert!(
            wanted.iter().any(|w| w.raw() == status),
            "{name}: status {status}"
        );
        b.works();
    }
    let request = RegisterMr {
        pd: pd.into(),
        access: access::LOCAL_WRITE.into(),
        pages: good_list(&a, 2, 8192),
        ..Default::default()
    };
    command(&mut a, &request).expect("a good region after all");
    a.works();
}

/// Returns a registration of a million pages, in two chunks that link to each other forever.
fn long_registration(driver: &Driver, pd: u32) -> Vec<u8> {
    const COUNT: u64 = 2000 * CHUNK_PAGES as u64;
    let pages: Vec<u64> = (0..CHUNK_PAGES as u64)
        .map(|n| PAGES + 4096 * (63 - n % 64))
        .collect();
    for (at, next) in [(CHUNKS, CHUNKS + 4096), (CHUNKS + 4096, CHUNKS)] {
        chunk(driver, at, next, CHUNK_PAGES as u32, &pages);
    }
    let request = RegisterMr {
        pd: pd.into(),
        access: access::LOCAL_WRITE.into(),
        iova: (1 << 40).into(),
        pages: PageList {
            first_chunk: CHUNKS.into(),
            length: (COUNT * 4096).into(),
            page_count: (COUNT as u32).into(),
            page_shift: 12,
            ..Default::default()
        },
        ..Default::default()
    };
    let header = CommandHeader {
        code: RegisterMr::CODE.raw().into(),
        reserved: 0.into(),
        length: (size_of::<RegisterMr>() as u32).into(),
    };
    [header.as_bytes(), request.as_bytes()].concat()
}

#[test]
fn a_long_command_keeps_its_place_and_a_reset_ends_it() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    let (_, pd) = context(&mut a);
    let long = long_registration(&a, pd);
    let query = CommandHeader {
        code: CommandCode::QueryDevice.raw().into(),
        reserved: 0.into(),
        length: 0.into(),
    };
    for (head, request, bytes) in [
        (0, REQUEST, &long[..]),
        (2, REQUEST + 0x800, query.as_bytes()),
    ] {
        a.ram.view.write(request, bytes).unwrap();
        let (length, reply) = (bytes.len() as u32, REPLY + 0x400 * u64::from(head));
        a.control
            .put_descriptor(&a.ram, head, request, length, 1, head + 1);
        a.control.put_descriptor(&a.ram, head + 1, reply, 512, 2, 0);
        a.control.offer(&a.ram, head);
    }
    a.client.notify(0);
    b.works();
    a.control.wait_used(&a.ram);
    a.control.wait_used(&a.ram);
    let end = a.ram.u16(a.control.used() + 2);
    for (back, head) in [(2, 0), (1, 2)] {
        let slot = u64::from(end.wrapping_sub(back) % 64);
        assert_eq!(a.ram.u16(a.control.used() + 4 + 8 * slot), head, "in order");
        let status = a.ram.bytes(REPLY + 0x400 * u64::from(head), 4);
        assert_eq!(status, Status::Ok.raw().to_le_bytes());
    }

    a.ram.view.write(REQUEST, &long).unwrap();
    a.control.offer(&a.ram, 0);
    a.client.notify(0);
    a.bring_up();
    a.works();
    b.works();
}

#[test]
fn rings_outside_their_buffer_are_refused() {
    let daemon = Daemon::start();
    let mut a = Driver::start(daemon.connect("a"));
    let (context, pd) = context(&mut a);
    let layout = |header: u32, first: u32, entries: u32, stride: u32| RingLayout {
        header_offset: header.into(),
        entries_offset: first.into(),
        entries: entries.into(),
        stride: stride.into(),
    };
    let good = layout(0, 4096, 64, 64);
    let bad = [
        layout(0, 4096, 128, 64),
        layout(0, 4096, 63, 64),
        layout(0, 4096, 1 << 31, 64),
        layout(0, 4096, 64, 0),
        layout(0, 4096, 64, 4096),
        layout(0, !63, 64, 64),
        layout(64, 4096, 64, 64),
        layout(8192, 4096, 64, 64),
        layout(0, 64, 64, 64),
        layout(4096, 4096, 64, 64),
        layout(!127, 0, 64, 64),
    ];
    let cq = |ring: RingLayout, pages: PageList| CreateCq {
        context: context.into(),
        ring,
        pages,
        ..Default::default()
    };
    for ring in bad {
        let pages = good_list(&a, 2, 8192);
        let status = command(&mut a, &cq(ring, pages)).expect_err("a bad ring");
        assert_eq!(status, Status::InvalidArgument.raw(), "{ring:?}");
    }
    let pages = good_list(&a, 2, 8192);
    let mut request = cq(good, pages);
    request.vector = 99.into();
    assert_eq!(
        command(&mut a, &request),
        Err(Status::InvalidArgument.raw())
    );
    request.vector = 0.into();
    request.context = 77.into();
    assert_eq!(command(&mut a, &request), Err(Status::NotFound.raw()));
    let reply = command(&mut a, &cq(good, pages)).expect("a good CQ");
    let cqn = u32::from_le_bytes(reply[..4].try_into().unwrap());
    for rings in bad {
        let pages = good_list(&a, 2, 8192);
        let request = CreateQp {
            context: context.into(),
            pd: pd.into(),
            qp_type: 2,
            send_cqn: cqn.into(),
            recv_cqn: cqn.into(),
            send_ring: rings,
            pages,
            ..Default::default()
        };
        assert!(command(&mut a, &request).is_err(), "{rings:?}");
    }
    a.works();
}

#[test]
fn random_commands_get_an_answer_each() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    let mut random = random(1);
    for round in 0..6000u64 {
        let code = match random(8) {
            0 => random(0x10000) as u16,
            _ => CommandCode::ALL[random(CommandCode::ALL.len() as u64) as usize].raw(),
        };
        // Small numbers hit existing objects; page lists begin where a chunk may be.
        let mut body: Vec<u8> = (0..random(248) / 4 * 4)
            .map(|_| random(256) as u8)
            .collect();
        for word in body.chunks_exact_mut(4) {
            match random(4) {
                0 => word.copy_from_slice(&(random(8) as u32).to_le_bytes()),
                1 => word.copy_from_slice(&(CHUNKS as u32 + 4096 * random(4) as u32).to_le_bytes()),
                2 => word.fill(0),
                _ => {}
            }
        }
        // Half of them have a valid length; the list contains the lengths that commands expect.
        if random(2) == 0 {
            body.resize(
                [0, 8, 8, 16, 32, 40, 40, 56, 56, 96, 104, 112][random(12) as usize],
                0,
            );
        }
        let pages: Vec<u64> = (0..8)
            .map(|_| {
                if random(4) == 0 {
                    random(u64::MAX)
                } else {
                    PAGES + 4096 * random(64)
                }
            })
            .collect();
        chunk(
            &a,
            CHUNKS,
            if random(2) == 0 { CHUNKS } else { random(RAM) },
            random(10) as u32,
            &pages,
        );
        let room = if random(16) == 0 {
            random(512) as u32
        } else {
            512
        };
        if room >= 16 {
            let (status, _) = a.execute(code, &body, room);
            assert!(
                Status::try_from(status).is_ok_and(|s| s != Status::DeviceFailed),
                "round {round}: {status}"
            );
        }
        if round % 500 == 0 {
            b.works();
        }
    }
    a.works();
    b.works();
    a.bring_up();
    a.works();
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn commands_cut_into_any_pieces_are_answered() {
    let daemon = Daemon::start();
    let mut a = Driver::start(daemon.connect("a"));
    let mut random = random(2);
    for _ in 0..200 {
        let header = CommandHeader {
            code: CommandCode::QueryDevice.raw().into(),
            reserved: 0.into(),
            length: 0.into(),
        };
        a.ram.view.write(REQUEST, header.as_bytes()).unwrap();
        // The request is split into up to 8 descriptors, the buffer for the reply into up to 20.
        let mut descriptors = Vec::new();
        for (base, total, flags) in [(REQUEST, 8u64, 0u16), (REPLY, 512, 2)] {
            let mut at = 0;
            while at < total {
                let len = (1 + random(total.div_ceil(8))).min(total - at);
                descriptors.push((base + at, len as u32, flags));
                at += len;
            }
        }
        let count = descriptors.len() as u16;
        assert!(count <= 64);
        for (n, (address, len, flags)) in descriptors.into_iter().enumerate() {
            let n = n as u16;
            let more = u16::from(n + 1 < count);
            a.control
                .put_descriptor(&a.ram, n, address, len, flags | more, n + 1);
        }
        a.control.offer(&a.ram, 0);
        a.client.notify(0);
        let written = a.control.wait_used(&a.ram);
        assert!(written > 16, "{written} bytes written");
        let status = u32::from_le_bytes(a.ram.bytes(REPLY, 4).try_into().unwrap());
        assert_eq!(status, Status::Ok.raw());
    }
}

#[test]
fn an_indirect_descriptor_ends_with_a_reset() {
    const TABLE: u64 = 0x50000;
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    // What it points to would be a chain with a command.
    let query = CommandHeader {
        code: CommandCode::QueryDevice.raw().into(),
        reserved: 0.into(),
        length: 0.into(),
    };
    a.ram.view.write(REQUEST, query.as_bytes()).unwrap();
    let table = Queue::new(TABLE, 64);
    table.put_descriptor(&a.ram, 0, REQUEST, 8, 1, 1);
    table.put_descriptor(&a.ram, 1, REPLY, 512, 2, 0);
    a.control.put_descriptor(&a.ram, 0, TABLE, 32, 4, 0);
    a.control.offer(&a.ram, 0);
    a.client.notify(0);
    a.wait_needs_reset();
    b.works();
    a.bring_up();
    a.works();
}

#[test]
fn garbage_in_queues_and_registers_ends_with_a_reset() {
    let daemon = Daemon::start();
    let (mut a, mut b) = (
        Driver::start(daemon.connect("a")),
        Driver::start(daemon.connect("b")),
    );
    let mut random = random(3);
    for round in 0..40 {
        // Descriptors, available ring and used ring of both queues; then registers, but no reset.
        for _ in 0..200 {
            let at = 0x10000 + random(0x11_800 / 8) * 8;
            let value = match random(3) {
                0 => random(u64::MAX),
                1 => random(RAM),
                _ => random(64),
            };
            a.ram.view.write(at, &value.to_le_bytes()).unwrap();
        }
        for queue in 0..8 {
            a.client.notify(queue);
        }
        for _ in 0..50 {
            let width = [1, 2, 4][random(3) as usize];
            let offset = random(0x40) / width * width;
            if offset == 0x14 && width <= 4 {
                continue;
            }
            let value = random(u64::MAX).to_le_bytes();
            a.client.post(BAR0, offset, &value[..width as usize]);
        }
        a.client.post(BAR0, NOTIFY + random(64) * 2, &[0xff, 0xff]);
        a.client.post(
            BAR4,
            random(1 << 20) * 4,
            &(random(u64::MAX) as u32).to_le_bytes(),
        );
        b.works();
        a.bring_up();
        a.works();
        assert!(
            a.client.offered_features() & F_DOORBELL != 0,
            "round {round}"
        );
    }
    let _ = a.ram.bytes(EVENT, 16);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn memory_that_vanishes_ends_its_device_alone() {
    let daemon = Daemon::start();
    let mut b = Driver::start(daemon.connect("b"));
    // Repeats, because a process may have lost its signal handler after the first time.
    for _ in 0..3 {
        let mut a = Driver::start(daemon.connect("a"));
        a.works();
        rustix::fs::ftruncate(&a.ram.fd, 0).unwrap();
        a.client.notify(0);
        a.wait_needs_reset();
        b.works();
    }
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
