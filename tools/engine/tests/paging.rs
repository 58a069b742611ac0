// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Regions whose pages come and go: users notice nothing, and a user that never gets a page affects no others.

use crate::programs::{
    KeyUse, Model, Op, REGION, Setting, check, config, new_world, op, options, plan, setting, sges,
};
use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use vrnic_engine::{
    Cause, RnicConfig, Segmentation,
    segment::Body,
    testing::{Connection, Mr, Node, Pager, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    command::{
        AttachRegion, CreateFlow, DeregisterMr, DestroyQp, MapPages, RefusePages, RegisterMr,
        ReregisterMr, Status as CommandStatus, TakePageFault, UnmapPages, mr_flags,
        reregister_flags,
    },
    completion::{Opcode, Status},
    counter::Counter,
    event::EventType,
    memory::{PageList, access},
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, SendOpcode, placement},
};

/// Offset of the regions in their first pages.
const OFFSET: usize = 104;

const LENGTH: usize = 40_960;
const RIGHTS: u32 = access::QUEUE_PAIR | access::PLACEMENT;

/// A connection whose regions have no pages yet.
struct Setup {
    world: World,
    c: Connection,
    pager: Pager,
}

impl Setup {
    fn new(segmentation: Segmentation, qp_type: QpType) -> Self {
        let config = RnicConfig {
            segmentation,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 2048, &config, 11);
        let options = QpOptions {
            qp_type,
            ..QpOptions::default()
        };
        let mut c = world.connect([0, 1], &options, 4096, |_, _| {});
        let mut pager = Pager::new(5);
        for side in 0..2 {
            let Node { rnic, guest } = &mut world.nodes[side];
            c.mrs[side] = guest.paged_mr(rnic, OFFSET, LENGTH, RIGHTS);
            pager.add(side, &c.mrs[side]);
            let bytes: Vec<u8> = (0..LENGTH)
                .map(|at| (at * 7 + side * 3 + at / 256) as u8)
                .collect();
            pager.arena(side).put(OFFSET, &bytes);
        }
        Self { world, c, pager }
    }

    /// Runs and answers page faults until nothing happens any more.
    fn settle(&mut self) {
        loop {
            self.world.run(Duration::from_secs(1));
            if !self.pager.serve(&mut self.world) {
                return;
            }
        }
    }

    fn bytes(&self, side: usize, offset: usize, length: usize) -> Vec<u8> {
        self.pager.arena(side).get(OFFSET + offset, length)
    }

    fn counter(&self, side: usize, counter: Counter) -> u64 {
        self.world.nodes[side].rnic.counters()[counter as usize]
    }

    fn state(&mut self, side: usize) -> QpState {
        let (node, qpn) = (self.c.nodes[side], self.c.qps[side].qpn);
        self.world.state(node, qpn)
    }

    fn command<C: vrnic_wire::command::Command>(
        &mut self,
        side: usize,
        command: C,
    ) -> Result<C::Reply, CommandStatus> {
        let Node { rnic, guest } = &mut self.world.nodes[side];
        guest.command(rnic, command).map_err(|(status, _)| status)
    }

    fn send(&mut self, send: &Send) {
        self.c.send(&mut self.world, 0, send);
    }

    fn sge(&self, side: usize, offset: usize, length: usize) -> vrnic_wire::work::Sge {
        self.c.mrs[side].sge(offset, length)
    }

    fn remote(&self, offset: usize) -> (u64, u32) {
        (self.c.mrs[1].iova + offset as u64, self.c.mrs[1].key)
    }
}

const SEGMENTATIONS: [Segmentation; 2] = [Segmentation::Local, Segmentation::PathMtu];

fn setups() -> impl Iterator<Item = Setup> {
    SEGMENTATIONS
        .into_iter()
        .map(|segmentation| Setup::new(segmentation, QpType::ReliableConnection))
}

/// Builds one request of each kind. The peer's memory starts at 20000.
fn requests(s: &Setup) -> Vec<(Send, Opcode)> {
    let (address, key) = s.remote(20_000);
    let element = s.sge(0, 100, 9_000);
    let small = s.sge(0, 15_000, 8);
    vec![
        (
            Send::new(1, SendOpcode::Send).element(element),
            Opcode::Send,
        ),
        (
            Send::new(1, SendOpcode::Write)
                .rdma(address, key)
                .element(element),
            Opcode::Write,
        ),
        (
            Send::new(1, SendOpcode::Read)
                .rdma(address, key)
                .element(element),
            Opcode::Read,
        ),
        (
            Send::new(1, SendOpcode::FetchAdd)
                .atomic(address, key, 5, 0)
                .element(small),
            Opcode::FetchAdd,
        ),
        (
            Send::new(1, SendOpcode::AtomicWrite).atomic(address, key, 0, 9),
            Opcode::AtomicWrite,
        ),
    ]
}

#[test]
fn every_operation_waits_and_is_done() {
    for index in 0..5 {
        for mut s in setups() {
            let (send, opcode) = requests(&s).swap_remove(index);
            let expected = s.bytes(0, 100, 9_000);
            let remote = s.bytes(1, 20_000, 9_000);
            let sge = s.sge(1, 20_000, 12_000);
            s.c.receive(&mut s.world, 1, 2, &[sge]);
            s.send(&send);
            s.world.run(Duration::from_millis(50));
            assert!(s.c.send_cqs[0].drain().is_empty(), "{opcode:?} waits");
            s.settle();
            let done = s.c.send_cqs[0].drain();
            assert_eq!(done.len(), 1, "{opcode:?}");
            assert_eq!((done[0].opcode, done[0].status), (opcode, Status::Success));
            match opcode {
                Opcode::Send | Opcode::Write => assert_eq!(s.bytes(1, 20_000, 9_000), expected),
                Opcode::Read => assert_eq!(s.bytes(0, 100, 9_000), remote),
                _ => {}
            }
            let faults = s.counter(0, Counter::PageFaults) + s.counter(1, Counter::PageFaults);
            assert_eq!(faults, s.pager.faults);
            assert!(faults > 0 && faults < 12, "{opcode:?}: {faults} faults");
        }
    }
}

/// Binary logarithm of the page size of a nested region, and its number of pages.
const NESTED_SHIFT: u8 = 14;
const NESTED_PAGES: u32 = 5;

/// A nested region of the peer, with its address and the regions that became its pages.
struct NestedRegion {
    key: u32,
    pages: Vec<Option<(Mr, usize)>>,
    refuses: bool,
}

impl NestedRegion {
    const SIZE: usize = 1 << NESTED_SHIFT;

    fn request(s: &Setup) -> RegisterMr {
        RegisterMr {
            pd: s.world.nodes[1].guest.pd.into(),
            access: RIGHTS_NESTED.into(),
            flags: (mr_flags::ON_DEMAND | mr_flags::NESTED).into(),
            pages: PageList {
                length: (u64::from(NESTED_PAGES) << NESTED_SHIFT).into(),
                page_count: NESTED_PAGES.into(),
                page_shift: NESTED_SHIFT,
                ..PageList::default()
            },
            ..RegisterMr::default()
        }
    }

    fn new(s: &mut Setup) -> Self {
        let request = Self::request(s);
        Self {
            key: s.command(1, request).unwrap().key.get(),
            pages: (0..NESTED_PAGES).map(|_| None).collect(),
            refuses: false,
        }
    }

    fn attach(&self, s: &mut Setup, page: u32, region: u32) -> Result<(), CommandStatus> {
        let request = AttachRegion {
            pd: s.world.nodes[1].guest.pd.into(),
            key: self.key.into(),
            page: page.into(),
            region: region.into(),
        };
        s.command(1, request).map(|_| ())
    }

    /// Creates a region that can be a page.
    fn page(s: &mut Setup) -> (Mr, usize) {
        let Node { rnic, guest } = &mut s.world.nodes[1];
        let mr = guest.paged_mr(rnic, 0, Self::SIZE, RIGHTS_NESTED);
        let number = s.pager.add(1, &mr);
        (mr, number)
    }

    /// Supplies or refuses pages until nothing happens any more. Returns how often pages were requested.
    fn settle(&mut self, s: &mut Setup) -> u32 {
        let mut asked = 0;
        loop {
            s.settle();
            let pd = s.world.nodes[1].guest.pd.into();
            let key = self.key.into();
            let fault = s.command(1, TakePageFault { pd, key }).unwrap();
            if fault.page_count.get() == 0 {
                return asked;
            }
            asked += 1;
            let (first_page, page_count) = (fault.first_page, fault.page_count);
            if self.refuses {
                let refuse = RefusePages {
                    pd,
                    key,
                    first_page,
                    page_count,
                };
                s.command(1, refuse).unwrap();
                continue;
            }
            for page in first_page.get()..first_page.get() + page_count.get() {
                let region = Self::page(s);
                self.attach(s, page, region.0.key).unwrap();
                self.pages[page as usize] = Some(region);
            }
        }
    }

    /// Returns the contents.
    fn bytes(&self, s: &Setup, offset: usize, length: usize) -> Vec<u8> {
        let byte = |at: usize| {
            let (_, number) = self.pages[at / Self::SIZE].as_ref().expect("was asked for");
            s.pager.arena(*number).get(at % Self::SIZE, 1)[0]
        };
        (offset..offset + length).map(byte).collect()
    }

    fn write(&self, s: &mut Setup, offset: u64, length: usize) {
        let element = s.sge(0, 100, length);
        let write = Send::new(1, SendOpcode::Write).rdma(offset, self.key);
        s.send(&write.element(element));
    }
}

const RIGHTS_NESTED: u32 = access::QUEUE_PAIR | access::FLUSH_GLOBAL;

#[test]
fn pages_of_a_nested_region_are_regions() {
    for mut s in setups() {
        let mut nested = NestedRegion::new(&mut s);
        // Across two page boundaries. None of the pages is present.
        let (offset, length) = (NestedRegion::SIZE - 8, NestedRegion::SIZE + 16);
        nested.write(&mut s, offset as u64, length);
        s.world.run(Duration::from_millis(50));
        assert!(s.c.send_cqs[0].drain().is_empty(), "it waits");
        let asked = nested.settle(&mut s);
        assert!((1..=3).contains(&asked), "asked {asked} times");
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
        assert_eq!(nested.bytes(&s, offset, length), s.bytes(0, 100, length));
        assert!(nested.pages[3].is_none() && nested.pages[4].is_none());

        // Reads it back while its pages come and go.
        let key = nested.pages[1].as_ref().unwrap().1;
        s.pager.forget(&mut s.world, key, 1..3);
        let element = s.sge(0, 20_000, length);
        let read = Send::new(2, SendOpcode::Read).rdma(offset as u64, nested.key);
        s.send(&read.element(element));
        assert_eq!(nested.settle(&mut s), 0, "all regions are there");
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
        assert_eq!(nested.bytes(&s, offset, length), s.bytes(0, 20_000, length));

        // A region that is gone or was detached is requested again.
        let pd = s.world.nodes[1].guest.pd;
        let gone = nested.pages[0].take().unwrap().0.key;
        s.command(
            1,
            DeregisterMr {
                pd: pd.into(),
                key: gone.into(),
            },
        )
        .unwrap();
        let unmap = UnmapPages {
            pd: pd.into(),
            key: nested.key.into(),
            first_page: 1.into(),
            page_count: 4.into(),
        };
        s.command(1, unmap).unwrap();
        nested.write(&mut s, offset as u64, length);
        assert!(nested.settle(&mut s) > 0);
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
        assert_eq!(nested.bytes(&s, offset, length), s.bytes(0, 100, length));

        // A page that cannot be present is an access error. An access beyond the end fails immediately.
        nested.refuses = true;
        nested.write(&mut s, (4 * NestedRegion::SIZE) as u64, 8);
        assert_eq!(nested.settle(&mut s), 1);
        let status = s.c.send_cqs[0].drain()[0].status;
        assert_eq!(status, Status::RemoteAccess);
        assert_eq!(s.state(0), QpState::Error);
    }
}

/// Memory is only needed for the regions that are its pages.
#[test]
fn nested_regions_cost_nothing_however_long_they_are() {
    const PAGES: u32 = 1 << 31;
    let mut s = Setup::new(Segmentation::Local, QpType::ReliableConnection);
    let before = s.world.nodes[1].rnic.snapshot().translations;
    let mut request = NestedRegion::request(&s);
    request.pages.page_count = PAGES.into();
    request.pages.length = (u64::from(PAGES) << NESTED_SHIFT).into();
    for _ in 0..3 {
        let key = s.command(1, request).unwrap().key.get();
        let nested = NestedRegion {
            key,
            pages: Vec::new(),
            refuses: false,
        };
        let (mr, _) = NestedRegion::page(&mut s);
        assert_eq!(nested.attach(&mut s, PAGES - 1, mr.key), Ok(()));
        assert_eq!(
            nested.attach(&mut s, PAGES, mr.key),
            Err(CommandStatus::InvalidArgument)
        );
    }
    // Of the three regions.
    let snapshot = s.world.nodes[1].rnic.snapshot();
    assert_eq!(snapshot.translations, before + 3);
}

#[test]
fn pages_of_nested_regions_are_checked() {
    let mut s = Setup::new(Segmentation::Local, QpType::ReliableConnection);
    let nested = NestedRegion::new(&mut s);
    let (mr, number) = NestedRegion::page(&mut s);
    let short = {
        let Node { rnic, guest } = &mut s.world.nodes[1];
        guest
            .paged_mr(rnic, 0, NestedRegion::SIZE - 4096, RIGHTS_NESTED)
            .key
    };
    let invalid = Err(CommandStatus::InvalidArgument);
    assert_eq!(nested.attach(&mut s, NESTED_PAGES, mr.key), invalid);
    assert_eq!(nested.attach(&mut s, 0, short), invalid);
    assert_eq!(nested.attach(&mut s, 0, nested.key), invalid);
    assert_eq!(
        nested.attach(&mut s, 0, mr.key ^ 1),
        Err(CommandStatus::NotFound)
    );
    assert_eq!(nested.attach(&mut s, 0, mr.key), Ok(()));
    assert_eq!(nested.attach(&mut s, 1, mr.key), Err(CommandStatus::Busy));
    // Another region takes its place, so it is free again.
    let (other, _) = NestedRegion::page(&mut s);
    assert_eq!(nested.attach(&mut s, 0, other.key), Ok(()));
    assert_eq!(nested.attach(&mut s, 1, mr.key), Ok(()));
    let plain = NestedRegion {
        key: mr.key,
        pages: Vec::new(),
        refuses: false,
    };
    assert_eq!(plain.attach(&mut s, 0, other.key), invalid);

    let pd = s.world.nodes[1].guest.pd.into();
    let map = MapPages {
        pd,
        key: nested.key.into(),
        page_count: 1.into(),
        ..MapPages::default()
    };
    assert_eq!(s.command(1, map).map(|_| ()), invalid);
    for change in [
        |request: &mut RegisterMr| request.flags = mr_flags::NESTED.into(),
        |request: &mut RegisterMr| request.access = access::FLUSH_PERSISTENT.into(),
        |request: &mut RegisterMr| {
            request.flags = (request.flags.get() | mr_flags::ALL_MEMORY).into();
        },
    ] {
        let mut request = NestedRegion::request(&s);
        change(&mut request);
        assert_eq!(s.command(1, request).map(|_| ()), invalid);
    }

    // Without the nested region, its pages are ordinary regions.
    s.command(
        1,
        DeregisterMr {
            pd,
            key: nested.key.into(),
        },
    )
    .unwrap();
    let again = NestedRegion::new(&mut s);
    assert_eq!(again.attach(&mut s, 2, mr.key), Ok(()));
    s.pager.map(&mut s.world, number, 0..4, true);
    again.write(&mut s, (2 * NestedRegion::SIZE + 40) as u64, 100);
    s.settle();
    assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
    assert_eq!(s.pager.arena(number).get(40, 100), s.bytes(0, 100, 100));
}

#[test]
fn an_atomic_is_executed_once_though_its_result_has_no_place() {
    for mut s in setups() {
        let (send, _) = requests(&s).swap_remove(3);
        // The memory for the result goes away after the request was sent.
        s.pager.map(&mut s.world, 0, 0..11, true);
        s.send(&send);
        s.world.step();
        s.pager.forget(&mut s.world, 0, 0..11);
        let before = s.bytes(1, 20_000, 8);
        s.settle();
        let done = s.c.send_cqs[0].drain();
        assert_eq!(done.len(), 1);
        assert_eq!(done[0].status, Status::Success);
        assert_eq!(s.bytes(0, 15_000, 8), before);
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        assert_eq!(word(&s.bytes(1, 20_000, 8)), word(&before).wrapping_add(5));
    }
}

#[test]
fn a_read_that_is_asked_for_again_is_put_off_before_what_follows_it() {
    for mut s in setups() {
        let (read, _) = requests(&s).swap_remove(2);
        let (address, key) = s.remote(36_000);
        let write = Send::new(2, SendOpcode::AtomicWrite).atomic(address, key, 0, 9);
        let expected = s.bytes(1, 20_000, 9_000);
        s.pager.map(&mut s.world, 0, 0..11, true);
        s.pager.map(&mut s.world, 1, 4..8, false);
        s.world.filter = Some(|segment| !matches!(segment.body, Body::ReadResponse { .. }));
        s.send(&read);
        s.send(&write);
        s.world.run(Duration::from_micros(100));
        // The source and the target are missing for longer than the peer is prepared to wait.
        s.pager.forget(&mut s.world, 1, 0..11);
        s.world.filter = None;
        s.world.run(Duration::from_secs(1));
        assert!(s.c.send_cqs[0].drain().is_empty());
        s.settle();
        let done = s.c.send_cqs[0].drain();
        let statuses: Vec<Status> = done.iter().map(|done| done.status).collect();
        assert_eq!(statuses, [Status::Success; 2]);
        assert_eq!(s.bytes(0, 100, 9_000), expected);
    }
}

#[test]
fn a_page_that_there_is_not_fails_the_work_that_needs_it() {
    for index in 0..5 {
        for side in 0..2 {
            for mut s in setups() {
                let (send, opcode) = requests(&s).swap_remove(index);
                if side == 0 && opcode == Opcode::AtomicWrite {
                    continue;
                }
                s.pager.punch(&mut s.world, side, 0..11);
                let sge = s.sge(1, 20_000, 12_000);
                s.c.receive(&mut s.world, 1, 2, &[sge]);
                s.send(&send);
                s.settle();
                let done = s.c.send_cqs[0].drain();
                let expected = match (side, opcode) {
                    (0, _) => Status::LocalProtection,
                    (_, Opcode::Send) => Status::RemoteOperation,
                    _ => Status::RemoteAccess,
                };
                assert_eq!(done.len(), 1, "{opcode:?} {side}");
                assert_eq!(done[0].status, expected, "{opcode:?} {side}");
                if side == 0 {
                    assert_eq!(done[0].cause, Some(Cause::LocalPage));
                }
                assert_eq!(s.state(0), QpState::Error);
                if (side, opcode) == (1, Opcode::Send) {
                    let received = s.c.recv_cqs[1].drain();
                    assert_eq!(received[0].status, Status::LocalProtection);
                    assert_eq!(received[0].cause, Some(Cause::LocalPage));
                }
            }
        }
    }
}

#[test]
fn who_waits_keeps_nobody_else_waiting() {
    for mut s in setups() {
        let (send, _) = requests(&s).swap_remove(1);
        s.send(&send);
        s.world.run(Duration::from_secs(5));
        let mut other = s.world.connect([0, 1], &options(), 10_000, |_, _| {});
        let element = other.mrs[0].sge(0, 5000);
        let write = Send::new(7, SendOpcode::Write)
            .rdma(other.mrs[1].iova, other.mrs[1].key)
            .element(element);
        other.send(&mut s.world, 0, &write);
        s.world.run(Duration::from_secs(5));
        assert_eq!(other.send_cqs[0].drain().len(), 1);
        // The waiting queue pair has neither failed nor used up retries.
        assert!(s.c.send_cqs[0].drain().is_empty());
        s.settle();
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
    }
}

#[test]
fn a_driver_that_never_answers_can_take_everything_back() {
    for mut s in setups() {
        let (send, _) = requests(&s).swap_remove(1);
        s.pager.map(&mut s.world, 0, 0..11, false);
        s.send(&send);
        s.world.run(Duration::from_secs(1));
        assert!(s.counter(1, Counter::RnrNaksSent) > 0);
        let pages = UnmapPages {
            pd: s.world.nodes[1].guest.pd.into(),
            key: s.c.mrs[1].key.into(),
            first_page: 0.into(),
            page_count: 11.into(),
        };
        assert!(s.command(1, pages).is_ok());
        let key = s.c.mrs[1].key;
        let pd = s.world.nodes[1].guest.pd;
        let gone = DeregisterMr {
            pd: pd.into(),
            key: key.into(),
        };
        assert!(s.command(1, gone).is_ok());
        assert!(
            s.world.nodes[1]
                .rnic
                .next_async_event()
                .is_none_or(|event| { event.event_type.get() != EventType::PageFault.raw() }),
            "events of a region go with it"
        );
        s.world.run(Duration::from_secs(1));
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::RemoteAccess);
        assert_eq!(s.world.nodes[1].rnic.snapshot().mrs, 1);
    }
}

#[test]
fn waiting_ends_with_the_queue_pair() {
    for reset in [false, true] {
        for mut s in setups() {
            let (send, _) = requests(&s).swap_remove(1);
            s.send(&send);
            s.world.run(Duration::from_millis(10));
            let qpn = s.c.qps[0].qpn;
            if reset {
                let attributes = QpAttributes {
                    mask: attribute::STATE.into(),
                    state: QpState::Reset.raw(),
                    ..QpAttributes::default()
                };
                s.world.modify(0, qpn, attributes);
            } else {
                let destroy = DestroyQp {
                    qpn: qpn.into(),
                    ..Default::default()
                };
                assert!(s.command(0, destroy).is_ok());
            }
            s.settle();
            assert!(s.c.send_cqs[0].drain().is_empty());
            assert!(s.counter(0, Counter::PageFaults) > 0);
        }
    }
}

#[test]
fn work_that_waits_is_flushed() {
    for mut s in setups() {
        let (send, _) = requests(&s).swap_remove(1);
        s.send(&send);
        s.world.run(Duration::from_millis(10));
        let attributes = QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::Error.raw(),
            ..QpAttributes::default()
        };
        let qpn = s.c.qps[0].qpn;
        s.world.modify(0, qpn, attributes);
        s.settle();
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Flushed);
    }
}

#[test]
fn flushes_need_no_pages() {
    for mut s in setups() {
        let (address, key) = s.remote(0);
        s.send(&Send::new(1, SendOpcode::Flush).flush(address, key, 20_000, placement::GLOBAL));
        s.settle();
        assert_eq!(s.c.send_cqs[0].drain()[0].status, Status::Success);
        assert_eq!(s.pager.faults, 0);
    }
}

#[test]
fn messages_of_unreliable_connections_are_kept() {
    for segmentation in SEGMENTATIONS {
        let mut s = Setup::new(segmentation, QpType::UnreliableConnection);
        let expected: Vec<Vec<u8>> = (0..3).map(|n| s.bytes(0, n * 5_000, 3_000)).collect();
        s.pager.map(&mut s.world, 0, 0..11, false);
        for n in 0..3 {
            let receive = s.sge(1, 20_000 + n * 5_000, 3_000);
            s.c.receive(&mut s.world, 1, n as u64, &[receive]);
            let element = s.sge(0, n * 5_000, 3_000);
            s.send(&Send::new(n as u64, SendOpcode::Send).element(element));
        }
        s.world.run(Duration::from_millis(10));
        assert_eq!(s.c.send_cqs[0].drain().len(), 3, "sent");
        assert!(s.c.recv_cqs[1].drain().is_empty(), "not received");
        s.settle();
        let received = s.c.recv_cqs[1].drain();
        assert_eq!(received.len(), 3);
        for (n, expected) in expected.iter().enumerate() {
            assert_eq!(received[n].status, Status::Success);
            assert_eq!(s.bytes(1, 20_000 + n * 5_000, 3_000), *expected);
        }
        assert_eq!(s.counter(1, Counter::Dropped), 0);
        // What exceeds the limit is dropped; the queue pair keeps its state.
        s.pager.forget(&mut s.world, 1, 0..11);
        for n in 0..60 {
            let element = s.sge(0, 0, 3_000);
            s.send(&Send::new(n, SendOpcode::Send).element(element));
        }
        s.settle();
        assert_eq!(s.state(1), QpState::ReadyToSend);
    }
}

/// Creates a datagram queue pair on each node, with regions without pages.
fn datagrams(s: &mut Setup) {
    without_connection(s, QpType::UnreliableDatagram);
}

/// Creates a queue pair of a type without connections on each node, with regions without pages.
fn without_connection(s: &mut Setup, qp_type: QpType) {
    for side in 0..2 {
        let options = QpOptions {
            qp_type,
            ..QpOptions::default()
        };
        let Node { rnic, guest } = &mut s.world.nodes[side];
        let (send, recv) = (s.c.send_cqs[side].cqn, s.c.recv_cqs[side].cqn);
        s.c.qps[side] = guest.try_qp(rnic, &options, send, recv).expect("qp");
        let attributes = QpAttributes {
            port: 1,
            qkey: 17.into(),
            ..QpAttributes::default()
        };
        let qpn = s.c.qps[side].qpn;
        s.world.bring_up(side, qpn, attributes, qp_type);
    }
}

fn datagram(s: &Setup, wr_id: u64, offset: usize) -> Send {
    let address = AddressVector {
        dgid: gid_of(1),
        hop_limit: 64,
        ..AddressVector::default()
    };
    Send::new(wr_id, SendOpcode::Send)
        .datagram(address, s.c.qps[1].qpn, 17)
        .element(s.sge(0, offset, 2_000))
        .element(s.sge(0, offset + 9_000, 100))
}

#[test]
fn datagrams_wait_at_both_ends() {
    for mut s in setups() {
        datagrams(&mut s);
        let mut expected = Vec::new();
        for n in 0..3 {
            let receive = s.sge(1, n * 9_000, 4_000);
            s.c.receive(&mut s.world, 1, n as u64, &[receive]);
            let mut bytes = s.bytes(0, n * 4_000, 2_000);
            bytes.extend(s.bytes(0, n * 4_000 + 9_000, 100));
            expected.push(bytes);
            let send = datagram(&s, n as u64, n * 4_000);
            s.send(&send);
        }
        s.world.run(Duration::from_millis(10));
        assert!(s.c.send_cqs[0].drain().is_empty());
        s.settle();
        let sent: Vec<u64> = s.c.send_cqs[0]
            .drain()
            .iter()
            .map(|done| done.wr_id)
            .collect();
        assert_eq!(sent, [0, 1, 2]);
        let received = s.c.recv_cqs[1].drain();
        assert_eq!(received.len(), 3);
        for (n, expected) in expected.iter().enumerate() {
            assert_eq!(
                (received[n].status, received[n].length),
                (Status::Success, 2_140)
            );
            assert_eq!(s.bytes(1, n * 9_000 + 40, 2_100), *expected);
        }
    }
}

#[test]
fn segments_wait_for_the_pages_of_their_payload() {
    const COUNT: usize = 10;
    const SIZE: usize = 2_000;
    let mut header = Vec::new();
    etherparse::PacketBuilder::ethernet2([2; 6], [0xff; 6])
        .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .tcp(1, 2, 3, 4)
        .write(&mut header, &[])
        .expect("a header");
    for mut s in setups() {
        without_connection(&mut s, QpType::RawPacket);
        // All frames for the port.
        let flow = CreateFlow {
            qpn: s.c.qps[1].qpn.into(),
            port: 1,
            ..CreateFlow::default()
        };
        let Node { rnic, guest } = &mut s.world.nodes[1];
        guest.command(rnic, flow).expect("flow");
        let expected = s.bytes(0, 0, COUNT * SIZE);
        for n in 0..COUNT {
            let receive = s.sge(1, n * 4_000, 4_000);
            s.c.receive(&mut s.world, 1, n as u64, &[receive]);
        }
        let send = Send::new(7, SendOpcode::SendSegmented)
            .element(s.sge(0, 0, 7_000))
            .element(s.sge(0, 7_000, COUNT * SIZE - 7_000))
            .segments(&header, SIZE as u32);
        s.send(&send);
        s.world.run(Duration::from_millis(10));
        assert!(s.c.send_cqs[0].drain().is_empty());
        s.settle();
        let sent = s.c.send_cqs[0].drain();
        assert_eq!(sent.len(), 1);
        assert_eq!((sent[0].wr_id, sent[0].status), (7, Status::Success));
        let received = s.c.recv_cqs[1].drain();
        assert_eq!(received.len(), COUNT);
        for n in 0..COUNT {
            let payload = s.bytes(1, n * 4_000 + header.len(), SIZE);
            assert_eq!(payload, expected[n * SIZE..][..SIZE]);
        }
    }
}

#[test]
fn datagrams_without_pages_fail() {
    for side in 0..2 {
        for mut s in setups() {
            datagrams(&mut s);
            s.pager.punch(&mut s.world, side, 0..11);
            let receive = s.sge(1, 0, 4_000);
            s.c.receive(&mut s.world, 1, 1, &[receive]);
            for n in 0..3 {
                let send = datagram(&s, n, 0);
                s.send(&send);
            }
            s.settle();
            if side == 0 {
                let done = s.c.send_cqs[0].drain();
                let statuses: Vec<Status> = done.iter().map(|done| done.status).collect();
                let expected = [Status::LocalProtection, Status::Flushed, Status::Flushed];
                assert_eq!(statuses, expected);
                assert_eq!(s.state(0), QpState::SendQueueError);
            } else {
                let done = s.c.recv_cqs[1].drain();
                assert_eq!(done[0].status, Status::LocalProtection);
                assert_eq!(s.state(1), QpState::Error);
            }
        }
    }
}

#[test]
fn a_datagram_that_waits_belongs_to_what_drains() {
    for mut s in setups() {
        datagrams(&mut s);
        let send = datagram(&s, 1, 0);
        s.send(&send);
        s.world.run(Duration::from_millis(1));
        let qpn = s.c.qps[0].qpn;
        let attributes = QpAttributes {
            mask: (attribute::STATE | attribute::EN_SQD_ASYNC_NOTIFY).into(),
            state: QpState::SendQueueDrain.raw(),
            sqd_async_notify: 1,
            ..QpAttributes::default()
        };
        s.world.modify(0, qpn, attributes);
        assert!(s.c.send_cqs[0].drain().is_empty());
        while let Some(event) = s.world.nodes[0].rnic.next_async_event() {
            assert_eq!(event.event_type.get(), EventType::PageFault.raw());
        }
        s.pager.map(&mut s.world, 0, 0..11, false);
        s.world.run(Duration::from_millis(1));
        assert_eq!(s.c.send_cqs[0].drain().len(), 1);
        let event = s.world.nodes[0].rnic.next_async_event().expect("drained");
        assert_eq!(event.event_type.get(), EventType::SendQueueDrained.raw());
    }
}

#[test]
fn commands_about_pages_are_checked() {
    let mut s = setups().next().expect("one");
    let place = &mut s.world.nodes[0];
    let (pd, key) = (place.guest.pd, s.c.mrs[0].key);
    let pinned = place.guest.full_mr(&mut place.rnic, 4096).key;
    let table = place.guest.arena(4096);
    table.put(0, &(table.address(0) | 3).to_le_bytes());
    let good = MapPages {
        pd: pd.into(),
        key: key.into(),
        first_page: 0.into(),
        page_count: 1.into(),
        table: table.address(0).into(),
    };
    assert!(s.command(0, good).is_ok());
    let mut bad = |change: &dyn Fn(&mut MapPages), status| {
        let mut request = good;
        change(&mut request);
        assert_eq!(s.command(0, request).err(), Some(status), "{request:?}");
    };
    bad(&|r| r.key = pinned.into(), CommandStatus::NotFound);
    bad(&|r| r.key = (key ^ 1).into(), CommandStatus::NotFound);
    bad(&|r| r.pd = (pd + 1).into(), CommandStatus::NotPermitted);
    bad(&|r| r.page_count = 0.into(), CommandStatus::InvalidArgument);
    bad(
        &|r| r.page_count = 513.into(),
        CommandStatus::InvalidArgument,
    );
    bad(
        &|r| r.first_page = 11.into(),
        CommandStatus::InvalidArgument,
    );
    bad(
        &|r| r.first_page = u32::MAX.into(),
        CommandStatus::InvalidArgument,
    );
    bad(
        &|r| r.table = (r.table.get() + 8).into(),
        CommandStatus::BadAddress,
    );
    bad(&|r| r.table = (1 << 50).into(), CommandStatus::BadAddress);
    for entry in [table.address(0) | 5, (1 << 50) | 1] {
        table.put(0, &entry.to_le_bytes());
        assert_eq!(s.command(0, good).err(), Some(CommandStatus::BadAddress));
    }
    // The contents of absent entries do not matter.
    table.put(0, &(1u64 << 50).to_le_bytes());
    assert!(s.command(0, good).is_ok());
    let (first_page, page_count) = (10.into(), 2.into());
    let unmap = UnmapPages {
        pd: pd.into(),
        key: key.into(),
        first_page,
        page_count,
    };
    assert_eq!(
        s.command(0, unmap).err(),
        Some(CommandStatus::InvalidArgument)
    );
    let refuse = RefusePages {
        pd: pd.into(),
        key: key.into(),
        first_page,
        page_count,
    };
    assert_eq!(
        s.command(0, refuse).err(),
        Some(CommandStatus::InvalidArgument)
    );
    let take = TakePageFault {
        pd: pd.into(),
        key: pinned.into(),
    };
    assert_eq!(s.command(0, take).err(), Some(CommandStatus::NotFound));
    let take = TakePageFault {
        pd: pd.into(),
        key: key.into(),
    };
    assert_eq!(
        s.command(0, take).map(|fault| fault.page_count.get()),
        Ok(0)
    );
    let change = ReregisterMr {
        pd: pd.into(),
        key: key.into(),
        flags: reregister_flags::ACCESS.into(),
        ..Default::default()
    };
    assert_eq!(
        s.command(0, change).err(),
        Some(CommandStatus::NotPermitted)
    );
}

/// Describes what devices and queue pairs are doing, to help find the cause of a failure.
fn explain(world: &mut World, c: &Connection) -> String {
    let of_side = |(side, &node): (usize, &usize)| {
        let Node { rnic, guest } = &mut world.nodes[node];
        let deadline = rnic.next_deadline();
        let counters: Vec<(&Counter, u64)> = Counter::ALL
            .iter()
            .zip(rnic.counters().iter().copied())
            .filter(|(_, value)| *value > 0)
            .collect();
        let qps = rnic.qp_page(0, 64, &guest.view);
        let last = std::iter::from_fn(|| rnic.next_explanation()).last();
        format!("\nside {side}: {deadline:?} {counters:?}\n{qps:?}\n{last:?}")
    };
    c.nodes.iter().enumerate().map(of_side).collect()
}

/// Runs a program in regions whose pages come and go.
fn run_paged(setting: &Setting, programs: &[Vec<Op>; 2], seed: u64) {
    let mut world = new_world(setting);
    let nodes = if setting.loopback { [0, 0] } else { [0, 1] };
    let mut c = world.connect(nodes, &options(), 4096, |_, _| {});
    let mut pager = Pager::new(seed);
    for (side, node) in nodes.into_iter().enumerate() {
        let Node { rnic, guest } = &mut world.nodes[node];
        c.mrs[side] = guest.paged_mr(rnic, 0, REGION, RIGHTS);
        pager.add(node, &c.mrs[side]);
    }
    let mut models = [0, 1].map(|side| Model::new(side, &mut world, nodes[usize::from(side)]));
    world.faults = setting.faults;
    for (side, model) in models.iter_mut().enumerate() {
        pager.arena(side).put(0, &model.memory);
        model.is_given = false;
    }
    for (side, program) in programs.iter().enumerate() {
        for (index, op) in program.iter().enumerate() {
            let op = Op {
                keys: KeyUse::default(),
                ..op.clone()
            };
            let (sends, receive) = plan(&op, index as u64, side, &c, &mut models);
            if let Some(ranges) = receive {
                let sges = sges(&c, 1 - side, &ranges);
                c.receive(&mut world, 1 - side, index as u64, &sges);
            }
            for send in &sends {
                c.send(&mut world, side, send);
            }
        }
    }
    for _ in 0..200 {
        for _ in 0..pager.random() % 8 {
            world.step();
        }
        match pager.random() % 4 {
            0 => pager.forget_some(&mut world),
            1 => world.run(Duration::from_micros(100)),
            _ => {
                pager.serve(&mut world);
            }
        }
    }
    // For no longer than a peer on a bad fabric is prepared to wait.
    let mut rounds = 0;
    while pager.serve(&mut world) || !world.is_idle() {
        // Longer than any timer; otherwise, time would stand still.
        world.run(Duration::from_millis(20));
        rounds += 1;
        assert!(
            rounds < 30_000,
            "something goes round in circles: {}",
            explain(&mut world, &c)
        );
    }
    for (side, model) in models.iter().enumerate() {
        let sends = c.send_cqs[side].drain();
        let receives = c.recv_cqs[side].drain();
        let memory = pager.arena(side).get(0, model.next_target);
        check(model, &sends, &receives, &memory);
        assert_eq!(
            world.state(c.nodes[side], c.qps[side].qpn),
            QpState::ReadyToSend
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases / 4, ..config() })]

    #[test]
    fn programs_notice_nothing(
        setting in setting(),
        first in vec(op(), 0..30),
        second in vec(op(), 0..20),
        seed in any::<u64>(),
    ) {
        run_paged(&setting, &[first, second], seed);
    }
}
