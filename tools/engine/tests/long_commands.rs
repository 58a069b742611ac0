// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands that take long are executed in parts, between which everything else continues.

use std::time::Duration;
use vrnic_engine::{
    Cause, Io, Outbox,
    testing::{Completion, Connection, Cq, Qp, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AttachRegion, Command, CommandHeader, DeregisterMr, MapPages, ModifyQp, MrRegistered,
        RegisterMr, ReplyHeader, Status, UnmapPages, mr_flags,
    },
    completion,
    counter::Counter,
    memory::{CHUNK_PAGES, PageList, TABLE_PAGES, access, page_flags},
    qp::{QpAttributes, QpState, QpType, attribute},
    ring::offset,
    work::{AddressVector, SendOpcode},
};
use zerocopy::{FromBytes, IntoBytes};

/// Size of a registration that takes long.
const CHUNKS: usize = 2000;
const PAGES: usize = CHUNKS * CHUNK_PAGES;

/// Builds a registration of this number of pages, no two of which are adjacent, from one chunk that is its own
/// successor.
fn long_registration(world: &mut World) -> Vec<u8> {
    let guest = &mut world.nodes[0].guest;
    let memory = guest.arena(20 * 4096);
    let mut pages: Vec<u64> = (0..20).map(|page| memory.address(page * 4096)).collect();
    // In reverse order, so that no page follows its neighbour.
    pages.sort_unstable_by(|a, b| b.cmp(a));
    let chunk = guest.arena(4096);
    let mut bytes = chunk.address(0).to_le_bytes().to_vec();
    bytes.extend((CHUNK_PAGES as u64).to_le_bytes());
    let cycle = pages.iter().cycle().take(CHUNK_PAGES);
    bytes.extend(cycle.flat_map(|page| page.to_le_bytes()));
    chunk.put(0, &bytes);
    let request = RegisterMr {
        pd: guest.pd.into(),
        access: access::LOCAL_WRITE.into(),
        iova: 0x10_0000_0000.into(),
        pages: PageList {
            first_chunk: chunk.address(0).into(),
            offset: 0.into(),
            length: (PAGES as u64 * 4096).into(),
            page_count: (PAGES as u32).into(),
            page_shift: 12,
            reserved: [0; 3],
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

/// Executes a part of a command. Returns the reply after the last part.
fn part(world: &mut World, request: &[u8]) -> Option<Vec<u8>> {
    let node = &mut world.nodes[0];
    let (mut reply, mut outbox) = (Vec::new(), Outbox::new());
    let mut io = Io {
        memory: &node.guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    let done = node.rnic.execute(request, &mut reply, &mut io);
    assert_eq!(done, !reply.is_empty(), "a reply when it is done");
    done.then_some(reply)
}

/// Executes a command in parts, with `between` after each but the last. Returns the number of parts.
fn in_parts<C: Command>(
    world: &mut World,
    request: &C,
    mut between: impl FnMut(&mut World),
) -> usize {
    let header = CommandHeader {
        code: C::CODE.raw().into(),
        reserved: 0.into(),
        length: (size_of::<C>() as u32).into(),
    };
    let request = [header.as_bytes(), request.as_bytes()].concat();
    let mut parts = 1;
    let reply = loop {
        if let Some(reply) = part(world, &request) {
            break reply;
        }
        parts += 1;
        between(world);
    };
    let (header, _) = ReplyHeader::read_from_prefix(&reply).unwrap();
    assert_eq!(header.status.get(), Status::Ok.raw());
    parts
}

/// Checks that a write of a queue pair completes.
fn others_go_on(world: &mut World, c: &mut Connection) {
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 10));
    c.send(world, 0, &write);
    world.run(Duration::from_millis(1));
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, completion::Status::Success);
}

#[test]
fn other_queue_pairs_have_their_turn_during_a_registration_of_a_million_pages() {
    let mut world = World::pair(1);
    let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
    let request = long_registration(&mut world);
    let before = world.nodes[0].rnic.snapshot();
    let mut parts = 0;
    let reply = loop {
        if let Some(reply) = part(&mut world, &request) {
            break reply;
        }
        parts += 1;
        others_go_on(&mut world, &mut c);
        let now = world.nodes[0].rnic.snapshot();
        assert_eq!(
            (now.mrs, now.translations),
            (before.mrs, before.translations)
        );
    };
    assert!(parts > PAGES / 4096, "only {parts} parts");
    let (header, body) = ReplyHeader::read_from_prefix(&reply).unwrap();
    assert_eq!(header.status.get(), Status::Ok.raw());
    assert_eq!(
        world.nodes[0].rnic.snapshot().translations,
        before.translations + PAGES
    );
    let key = MrRegistered::read_from_bytes(body).unwrap().key;
    let node = &mut world.nodes[0];
    let pd = node.guest.pd.into();
    node.guest
        .command(&mut node.rnic, DeregisterMr { pd, key })
        .unwrap();
    assert_eq!(node.rnic.snapshot().translations, before.translations);
}

#[test]
fn another_command_in_between_is_not_mistaken_for_the_rest() {
    let mut world = World::pair(2);
    let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
    let request = long_registration(&mut world);
    assert!(part(&mut world, &request).is_none());
    let node = &mut world.nodes[0];
    let mr = node.guest.full_mr(&mut node.rnic, 10_000);
    // The part that was done is forgotten, and the command starts again.
    let mut parts = 1;
    while part(&mut world, &request).is_none() {
        parts += 1;
    }
    assert!(parts > PAGES / 4096);
    drop(mr);
    others_go_on(&mut world, &mut c);
}

#[test]
fn a_list_that_is_refused_at_its_end_leaves_nothing() {
    let mut world = World::pair(3);
    let mut request = long_registration(&mut world);
    // A protection domain that does not exist is reported before errors in the list.
    let wrong_pd = {
        let mut request = request.clone();
        let at = size_of::<CommandHeader>();
        let (mut body, _) = RegisterMr::read_from_prefix(&request[at..]).unwrap();
        body.pd = 4711.into();
        request[at..].copy_from_slice(body.as_bytes());
        request
    };
    let at = size_of::<CommandHeader>();
    let (mut body, _) = RegisterMr::read_from_prefix(&request[at..]).unwrap();
    // The last chunk has more pages than are left.
    body.pages.page_count = (PAGES as u32 - 1).into();
    body.pages.length = ((PAGES as u64 - 1) * 4096).into();
    request[at..].copy_from_slice(body.as_bytes());
    for (request, cause) in [
        (wrong_pd, Cause::UnknownPd),
        (request, Cause::PageListChunk),
    ] {
        let before = world.nodes[0].rnic.snapshot();
        let reply = loop {
            if let Some(reply) = part(&mut world, &request) {
                break reply;
            }
        };
        let (header, _) = ReplyHeader::read_from_prefix(&reply).unwrap();
        assert_eq!(header.vendor_error.get(), cause.code());
        let after = world.nodes[0].rnic.snapshot();
        assert_eq!(
            (after.mrs, after.translations),
            (before.mrs, before.translations)
        );
    }
}

/// A thread of the guest posts as fast as the device flushes.
#[test]
fn a_send_queue_leaves_the_error_state_however_fast_it_is_filled() {
    const ENTRIES: u32 = 1024;
    let mut world = World::pair(4);
    let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
    let node = &mut world.nodes[0];
    let (guest, rnic) = (&mut node.guest, &mut node.rnic);
    let mut cq = guest.cq(rnic, 8 * ENTRIES, 0);
    let options = QpOptions {
        qp_type: QpType::UnreliableDatagram,
        entries: ENTRIES,
        ..QpOptions::default()
    };
    let mut qp = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
    let attributes = QpAttributes {
        port: 1,
        ..QpAttributes::default()
    };
    world.bring_up(0, qp.qpn, attributes, options.qp_type);
    let post = |world: &mut World, qp: &mut Qp, wr_id: u64| {
        let node = &mut world.nodes[0];
        // There is no such source.
        let address = AddressVector {
            sgid_index: 9,
            ..AddressVector::default()
        };
        let send = Send::new(wr_id, SendOpcode::Send).datagram(address, 7, 0);
        node.guest.post_send(&mut node.rnic, qp, &send)
    };
    assert!(post(&mut world, &mut qp, 0));
    world.settle();
    assert_eq!(cq.drain().len(), 1);
    assert_eq!(world.state(0, qp.qpn), QpState::SendQueueError);

    let first = 1..=u64::from(ENTRIES);
    for wr_id in first.clone() {
        assert!(post(&mut world, &mut qp, wr_id));
    }
    let header = qp.sq.layout.header_offset.get() as usize;
    let word = |field| qp.sq.arena.address(header + field);
    let (watched, answer) = (word(offset::DEVICE_INDEX), word(offset::DRIVER_INDEX));
    let view = &world.nodes[0].guest.view;
    view.react(watched, answer, ENTRIES, 3 * ENTRIES);
    let resume = ModifyQp {
        qpn: qp.qpn.into(),
        attributes: QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::ReadyToSend.raw(),
            ..QpAttributes::default()
        },
        ..ModifyQp::default()
    };
    let mut flushed = Vec::new();
    let mut take = |cq: &mut Cq| {
        let done = cq.drain();
        assert!(done.len() <= 256, "{} at once", done.len());
        let is_flushed = |cqe: &Completion| cqe.status == completion::Status::Flushed;
        assert!(done.iter().all(is_flushed));
        flushed.extend(done.iter().map(|cqe| cqe.wr_id));
    };
    let parts = in_parts(&mut world, &resume, |_| take(&mut cq));
    take(&mut cq);
    assert_eq!(parts, 4);
    assert!(flushed.into_iter().eq(first), "what was posted before it");
    assert_eq!(world.state(0, qp.qpn), QpState::ReadyToSend);
    others_go_on(&mut world, &mut c);
}

/// Registers an on-demand region of this number of pages, and returns its key.
fn on_demand(world: &mut World, pages: u32, flags: u32) -> u32 {
    let node = &mut world.nodes[0];
    let request = RegisterMr {
        pd: node.guest.pd.into(),
        access: access::LOCAL_WRITE.into(),
        flags: (mr_flags::ON_DEMAND | flags).into(),
        pages: PageList {
            length: (u64::from(pages) << 12).into(),
            page_count: pages.into(),
            page_shift: 12,
            ..PageList::default()
        },
        ..RegisterMr::default()
    };
    let reply = node.guest.command(&mut node.rnic, request).expect("room");
    reply.key.get()
}

/// Maps the first pages of a region, all to the same memory.
fn map_first(world: &mut World, key: u32, pages: u32) {
    let node = &mut world.nodes[0];
    let (page, table) = (node.guest.arena(4096), node.guest.arena(4096));
    let entry = page.address(0) | page_flags::PRESENT | page_flags::WRITABLE;
    table.put(0, &entry.to_le_bytes().repeat(TABLE_PAGES));
    for first in (0..pages).step_by(TABLE_PAGES) {
        let request = MapPages {
            pd: node.guest.pd.into(),
            key: key.into(),
            first_page: first.into(),
            page_count: (TABLE_PAGES as u32).min(pages - first).into(),
            table: table.address(0).into(),
        };
        node.guest.command(&mut node.rnic, request).expect("mapped");
    }
}

/// Attaches as many regions, each with one page, to the nested region `nested`.
fn attach_first(world: &mut World, nested: u32, pages: u32) -> Vec<u32> {
    let attach = |page: u32| {
        let region = on_demand(world, 1, 0);
        let node = &mut world.nodes[0];
        let request = AttachRegion {
            pd: node.guest.pd.into(),
            key: nested.into(),
            page: page.into(),
            region: region.into(),
        };
        node.guest
            .command(&mut node.rnic, request)
            .expect("attached");
        region
    };
    (0..pages).map(attach).collect()
}

fn invalidated(world: &World) -> u64 {
    world.nodes[0].rnic.counters()[Counter::PageInvalidations as usize]
}

#[test]
fn many_pages_do_not_go_at_once() {
    /// Far more than are mapped.
    const ALL: u32 = 1 << 23;
    const MAPPED: u32 = 10_000;
    for nested in [false, true] {
        let mut world = World::pair(5);
        let mut c = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
        let flags = if nested { mr_flags::NESTED } else { 0 };
        let empty = world.nodes[0].rnic.snapshot().translations;
        let key = on_demand(&mut world, ALL, flags);
        let before = world.nodes[0].rnic.snapshot().translations;
        let regions = if nested {
            attach_first(&mut world, key, MAPPED)
        } else {
            map_first(&mut world, key, MAPPED);
            Vec::new()
        };
        let pd = world.nodes[0].guest.pd.into();
        let unmap = UnmapPages {
            pd,
            key: key.into(),
            first_page: 0.into(),
            page_count: ALL.into(),
        };
        let mut last = 0;
        let parts = in_parts(&mut world, &unmap, |world| {
            let now = invalidated(world);
            assert!(now - last <= 2048, "{} at once", now - last);
            last = now;
            others_go_on(world, &mut c);
        });
        assert!(parts > MAPPED as usize / 2048, "{parts}");
        assert!(invalidated(&world) - last <= 2048);
        assert_eq!(invalidated(&world), u64::from(MAPPED));

        // Its end takes as long.
        if nested {
            let node = &mut world.nodes[0];
            for (page, region) in (0..).zip(&regions) {
                let request = AttachRegion {
                    pd,
                    key: key.into(),
                    page: (page * 7).into(),
                    region: (*region).into(),
                };
                node.guest.command(&mut node.rnic, request).expect("free");
            }
        } else {
            assert_eq!(world.nodes[0].rnic.snapshot().translations, before);
            map_first(&mut world, key, MAPPED);
        }
        let deregister = DeregisterMr {
            pd,
            key: key.into(),
        };
        let parts = in_parts(&mut world, &deregister, |world| others_go_on(world, &mut c));
        assert!(parts > MAPPED as usize / 2048, "{parts}");
        assert_eq!(invalidated(&world), u64::from(MAPPED), "no more");
        if nested {
            let again = on_demand(&mut world, 5, flags);
            let node = &mut world.nodes[0];
            let request = AttachRegion {
                pd,
                key: again.into(),
                page: 1.into(),
                region: regions[0].into(),
            };
            node.guest.command(&mut node.rnic, request).expect("free");
        } else {
            assert_eq!(world.nodes[0].rnic.snapshot().translations, empty);
        }
    }
}
