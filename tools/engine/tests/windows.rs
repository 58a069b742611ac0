// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory windows, and regions that are reregistered.

use vrnic_engine::{
    Cause, Features, Limits, RnicConfig,
    testing::{Completion, Connection, Mr, Mw, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AllocateMw, CreatePd, DeallocateMw, DeregisterMr, DestroyPd, DestroyQp, MwType,
        ReregisterMr, Status as CommandStatus, reregister_flags,
    },
    completion::{Opcode, Status, flags},
    memory::access,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{BindTarget, SendOpcode},
};

const MR: usize = 1 << 16;
const RW: u32 = access::REMOTE_WRITE | access::REMOTE_READ;

fn statuses(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions
        .iter()
        .map(|completion| (completion.wr_id, completion.status))
        .collect()
}

/// Creates a connection, and at side 1 a region without rights for peers to which windows can be bound.
fn connected(seed: u64) -> (World, Connection, Mr) {
    let mut world = World::pair(seed);
    let c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let Node { rnic, guest } = &mut world.nodes[1];
    let mr = guest.mr(rnic, MR, access::LOCAL_WRITE | access::MW_BIND);
    (world, c, mr)
}

fn window(world: &mut World, mw_type: MwType) -> Mw {
    let Node { rnic, guest } = &mut world.nodes[1];
    guest.mw(rnic, mw_type)
}

/// Posts at side 1 and waits. Returns the status.
fn do_locally(world: &mut World, c: &mut Connection, send: &Send) -> (Status, Option<Cause>) {
    c.send(world, 1, send);
    world.settle();
    let done = c.send_cqs[1].drain();
    assert_eq!(done.len(), 1);
    (done[0].status, done[0].cause)
}

/// Writes 8 bytes from side 0. Returns the status.
fn write(world: &mut World, c: &mut Connection, address: u64, key: u32) -> Status {
    c.mrs[0].arena.put(0, b"written!");
    let write = Send::new(1, SendOpcode::Write)
        .rdma(address, key)
        .element(c.mrs[0].sge(0, 8));
    c.send(world, 0, &write);
    world.settle();
    c.send_cqs[0].drain()[0].status
}

/// Returns why the device refused the last access of side 0.
fn refusal(world: &mut World) -> Option<Cause> {
    let event = world.nodes[1].rnic.next_async_event().expect("event");
    Cause::from_code(event.vendor_error.get())
}

#[test]
fn a_window_gives_rights_that_its_region_does_not() {
    for mw_type in [MwType::Type1, MwType::Type2] {
        let (mut world, mut c, mr) = connected(1);
        let mut mw = window(&mut world, mw_type);
        let bind = mw.bind(7, &mr, 5000, 100, RW);
        c.send(&mut world, 1, &bind);
        world.settle();
        let done = c.send_cqs[1].drain();
        assert_eq!(statuses(&done), [(7, Status::Success)]);
        assert_eq!((done[0].opcode, done[0].length), (Opcode::BindWindow, 0));
        let seen = world.nodes[1].rnic.mw_page(0, 100).unwrap();
        let [seen] = &seen[..] else {
            panic!("{seen:?}")
        };
        let bound = seen.bound.as_ref().expect("it is bound");
        assert_eq!((seen.key, bound.region), (mw.key, mr.key));
        assert_eq!(
            (bound.first, bound.length, bound.access),
            (mr.iova + 5000, 100, RW)
        );
        let last = mr.iova + 5092;
        assert_eq!(write(&mut world, &mut c, last, mw.key), Status::Success);
        assert_eq!(mr.arena.get(5092, 8), b"written!");
        let read = Send::new(2, SendOpcode::Read)
            .rdma(last, mw.key)
            .element(c.mrs[0].sge(100, 8));
        c.send(&mut world, 0, &read);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(2, Status::Success)]);
        assert_eq!(c.mrs[0].arena.get(100, 8), b"written!");
        assert_eq!(
            write(&mut world, &mut c, last + 1, mw.key),
            Status::RemoteAccess
        );
        assert_eq!(refusal(&mut world), Some(Cause::RemoteBounds));
    }
}

#[test]
fn each_access_that_a_window_does_not_give_is_refused() {
    type Change = fn(&mut u64, &mut u32);
    let faults: [(u32, Change, Cause); 5] = [
        (RW, |address, _| *address -= 1, Cause::RemoteBounds),
        (
            RW,
            |address, _| *address = u64::MAX - 3,
            Cause::RemoteBounds,
        ),
        (RW, |_, key| *key ^= 1, Cause::RemoteKey),
        (RW, |_, key| *key ^= 0x100, Cause::RemoteKey),
        (access::REMOTE_READ, |_, _| {}, Cause::RemoteRights),
    ];
    for (rights, change, cause) in faults {
        let (mut world, mut c, mr) = connected(2);
        let mut mw = window(&mut world, MwType::Type2);
        let bind = mw.bind(1, &mr, 64, 64, rights);
        assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
        let (mut address, mut key) = (mr.iova + 64, mw.key);
        change(&mut address, &mut key);
        assert_eq!(
            write(&mut world, &mut c, address, key),
            Status::RemoteAccess
        );
        assert_eq!(refusal(&mut world), Some(cause));
    }
}

#[test]
fn a_zero_based_window_counts_from_its_beginning() {
    let (mut world, mut c, mr) = connected(3);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 4000, 200, RW | access::ZERO_BASED);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    assert_eq!(write(&mut world, &mut c, 192, mw.key), Status::Success);
    assert_eq!(mr.arena.get(4192, 8), b"written!");
    assert_eq!(write(&mut world, &mut c, 193, mw.key), Status::RemoteAccess);
}

#[test]
fn a_window_of_type_1_is_bound_anew_and_unbound_by_a_bind_of_nothing() {
    let (mut world, mut c, mr) = connected(4);
    let mut mw = window(&mut world, MwType::Type1);
    let first = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &first).0, Status::Success);
    let second = mw.bind(2, &mr, 64, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &second).0, Status::Success);
    let address = mr.iova + 64;
    assert_eq!(write(&mut world, &mut c, address, mw.key), Status::Success);
    let mut unbind = mw.bind(3, &mr, 0, 0, 0);
    // The region is ignored.
    unbind.target[20..24].fill(0xee);
    assert_eq!(do_locally(&mut world, &mut c, &unbind).0, Status::Success);
    assert_eq!(
        write(&mut world, &mut c, address, mw.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteFree));
    deregister(&mut world, &mr).expect("no window is bound");
}

#[test]
fn a_window_of_type_2_belongs_to_its_queue_pair() {
    let (mut world, mut c, mr) = connected(5);
    let mut other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let result = do_locally(&mut world, &mut other, &mw.invalidate(2));
    assert_eq!(result, (Status::MemoryManagement, Some(Cause::LocalKeyQp)));

    let mut other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    assert_eq!(
        write(&mut world, &mut other, mr.iova, mw.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteKeyQp));
    assert_eq!(write(&mut world, &mut c, mr.iova, mw.key), Status::Success);

    // A type 1 window can be used by all queue pairs of the protection domain.
    let mut shared = window(&mut world, MwType::Type1);
    let bind = shared.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let mut other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    assert_eq!(
        write(&mut world, &mut other, mr.iova, shared.key),
        Status::Success
    );
}

/// As with Soft-RoCE: the reset only discards the state of the queue pair, to which the window does not belong.
#[test]
fn a_window_of_type_2_stays_bound_to_a_queue_pair_that_is_reset() {
    let (mut world, mut c, mr) = connected(7);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let qpns = [c.qps[0].qpn, c.qps[1].qpn];
    for (side, &qpn) in qpns.iter().enumerate() {
        let reset = QpAttributes {
            mask: attribute::STATE.into(),
            state: QpState::Reset.raw(),
            ..QpAttributes::default()
        };
        world.modify(side, qpn, reset);
    }
    assert_eq!(
        deregister(&mut world, &mr),
        Err((CommandStatus::Busy, Cause::RegionBound))
    );
    for (side, &qpn) in qpns.iter().enumerate() {
        let attributes = World::attributes(1 - side, qpns[1 - side]);
        world.bring_up(side, qpn, attributes, QpType::ReliableConnection);
    }
    assert_eq!(write(&mut world, &mut c, mr.iova, mw.key), Status::Success);
    // The owner can still invalidate it.
    let result = do_locally(&mut world, &mut c, &mw.invalidate(2));
    assert_eq!(result.0, Status::Success);
    assert_eq!(deregister(&mut world, &mr), Ok(()));
}

#[test]
fn a_window_of_type_2_is_invalidated_by_either_side() {
    let (mut world, mut c, mr) = connected(6);
    let mut mw = window(&mut world, MwType::Type2);
    for round in 0..4 {
        let bind = mw.bind(1, &mr, 0, 64, RW);
        assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
        assert_eq!(write(&mut world, &mut c, mr.iova, mw.key), Status::Success);
        if round % 2 == 0 {
            let result = do_locally(&mut world, &mut c, &mw.invalidate(2));
            assert_eq!(result.0, Status::Success);
            continue;
        }
        c.receive(&mut world, 1, 9, &[]);
        let send = Send::new(3, SendOpcode::SendWithInvalidate).immediate(mw.key);
        c.send(&mut world, 0, &send);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [(3, Status::Success)]);
        let received = c.recv_cqs[1].drain();
        assert_eq!(received[0].flags, flags::INVALIDATED);
        assert_eq!(received[0].immediate, mw.key);
    }
    assert_eq!(
        write(&mut world, &mut c, mr.iova, mw.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteFree));
}

#[test]
fn each_fault_of_a_bind_is_found() {
    type Change = fn(&mut BindTarget);
    let faults: [(MwType, Change, Cause); 14] = [
        (
            MwType::Type1,
            |bind| bind.window = (bind.window.get() ^ 0x100).into(),
            Cause::WindowKey,
        ),
        (
            MwType::Type1,
            |bind| bind.window = bind.region,
            Cause::WindowKey,
        ),
        (
            MwType::Type1,
            |bind| bind.region = (bind.region.get() ^ 1).into(),
            Cause::LocalKey,
        ),
        (
            MwType::Type1,
            |bind| bind.region = bind.window,
            Cause::LocalKey,
        ),
        (
            MwType::Type1,
            |bind| bind.region = 1.into(),
            Cause::LocalKey,
        ),
        (
            MwType::Type2,
            |bind| bind.length = 0.into(),
            Cause::RegionLength,
        ),
        (
            MwType::Type1,
            |bind| bind.access = access::ZERO_BASED.into(),
            Cause::AccessRights,
        ),
        (
            MwType::Type2,
            |bind| bind.access = access::MW_BIND.into(),
            Cause::AccessRights,
        ),
        (
            MwType::Type2,
            |bind| bind.access = (1 << 31).into(),
            Cause::AccessRights,
        ),
        (
            MwType::Type2,
            |bind| bind.address = (bind.address.get() - 1).into(),
            Cause::LocalBounds,
        ),
        (
            MwType::Type2,
            |bind| bind.length = (MR as u64 + 1).into(),
            Cause::LocalBounds,
        ),
        (
            MwType::Type2,
            |bind| bind.length = u64::MAX.into(),
            Cause::LocalBounds,
        ),
        (
            MwType::Type2,
            |bind| bind.address = u64::MAX.into(),
            Cause::LocalBounds,
        ),
        (
            MwType::Type2,
            |bind| bind.region = 0.into(),
            Cause::LocalKey,
        ),
    ];
    for (index, (mw_type, change, cause)) in faults.into_iter().enumerate() {
        let (mut world, mut c, mr) = connected(7);
        let mw = window(&mut world, mw_type);
        let mut target = BindTarget {
            address: mr.iova.into(),
            length: 64.into(),
            window: mw.key.into(),
            region: mr.key.into(),
            access: RW.into(),
            ..Default::default()
        };
        change(&mut target);
        let send = Send::new(1, SendOpcode::BindWindow).target(&target);
        let result = do_locally(&mut world, &mut c, &send);
        assert_eq!(result.0, Status::MemoryManagement, "fault {index}");
        assert_eq!(result.1, Some(cause), "fault {index}");
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
        deregister(&mut world, &mr).expect("nothing was bound");
    }
}

#[test]
fn regions_that_do_not_permit_it_are_not_bound() {
    for (rights, wanted) in [
        (access::LOCAL_WRITE, RW),
        (access::MW_BIND, access::REMOTE_WRITE),
        (access::MW_BIND, access::REMOTE_ATOMIC),
    ] {
        let (mut world, mut c, _) = connected(8);
        let Node { rnic, guest } = &mut world.nodes[1];
        let mr = guest.mr(rnic, MR, rights);
        let mut mw = window(&mut world, MwType::Type2);
        let bind = mw.bind(1, &mr, 0, 64, wanted);
        let result = do_locally(&mut world, &mut c, &bind);
        assert_eq!(result, (Status::MemoryManagement, Some(Cause::LocalRights)));
    }
    // For reading, the right to bind is sufficient.
    let (mut world, mut c, _) = connected(9);
    let Node { rnic, guest } = &mut world.nodes[1];
    let mr = guest.mr(rnic, MR, access::MW_BIND);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, access::REMOTE_READ);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    // A bound window cannot be bound again.
    let again = mw.bind(2, &mr, 0, 64, access::REMOTE_READ);
    let result = do_locally(&mut world, &mut c, &again);
    assert_eq!(result, (Status::MemoryManagement, Some(Cause::WindowBound)));
}

#[test]
fn protection_domains_are_kept_apart() {
    for foreign_region in [false, true] {
        let (mut world, mut c, own) = connected(10);
        let Node { rnic, guest } = &mut world.nodes[1];
        let create = CreatePd {
            context: guest.context.into(),
            ..Default::default()
        };
        let pd = guest.pd;
        guest.pd = guest.command(rnic, create).expect("pd").pd.get();
        let region = guest.mr(rnic, MR, access::LOCAL_WRITE | access::MW_BIND);
        let foreign = guest.mw(rnic, MwType::Type2);
        guest.pd = pd;
        let (mut mw, mr) = if foreign_region {
            (window(&mut world, MwType::Type2), region)
        } else {
            (foreign, own)
        };
        let bind = mw.bind(1, &mr, 0, 64, RW);
        let result = do_locally(&mut world, &mut c, &bind);
        assert_eq!(result, (Status::MemoryManagement, Some(Cause::LocalKeyPd)));
    }
}

#[test]
fn windows_have_no_local_key() {
    let (mut world, mut c, mr) = connected(11);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let mut sge = mr.sge(0, 8);
    sge.lkey = mw.key.into();
    let send = Send::new(2, SendOpcode::Send).element(sge);
    let result = do_locally(&mut world, &mut c, &send);
    assert_eq!(result, (Status::LocalProtection, Some(Cause::LocalKey)));
}

fn deregister(world: &mut World, mr: &Mr) -> Result<(), (CommandStatus, Cause)> {
    let Node { rnic, guest } = &mut world.nodes[1];
    let request = DeregisterMr {
        pd: guest.pd.into(),
        key: mr.key.into(),
    };
    guest.command(rnic, request).map(|_| ())
}

#[test]
fn a_region_with_windows_stays_as_it_is() {
    let (mut world, mut c, mr) = connected(12);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let busy = Err((CommandStatus::Busy, Cause::RegionBound));
    assert_eq!(deregister(&mut world, &mr), busy);
    let change = |r: &mut ReregisterMr| {
        r.flags = reregister_flags::ACCESS.into();
        r.access = access::LOCAL_WRITE.into();
    };
    assert_eq!(
        reregister(&mut world, &mr, change).map(|_| ()),
        Err((CommandStatus::Busy, Cause::RegionBound))
    );
    // When the queue pair goes, the window cannot be used any more, but it stays bound.
    let Node { rnic, guest } = &mut world.nodes[1];
    let destroy = DestroyQp {
        qpn: c.qps[1].qpn.into(),
        ..Default::default()
    };
    guest.command(rnic, destroy).expect("destroy");
    assert_eq!(deregister(&mut world, &mr), busy);
    let mut other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    assert_eq!(
        write(&mut world, &mut other, mr.iova, mw.key),
        Status::RemoteAccess
    );
    let Node { rnic, guest } = &mut world.nodes[1];
    let deallocate = DeallocateMw {
        pd: guest.pd.into(),
        key: (mw.key ^ 3).into(),
    };
    guest.command(rnic, deallocate).expect("deallocate");
    assert_eq!(deregister(&mut world, &mr), Ok(()));
    let snapshot = world.nodes[1].rnic.snapshot();
    assert_eq!(snapshot.mws, 0);
}

#[test]
fn a_number_that_returns_opens_no_window() {
    let config = RnicConfig {
        limits: Limits {
            qp: 2,
            ..Limits::default()
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 19);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let Node { rnic, guest } = &mut world.nodes[1];
    let mr = guest.mr(rnic, MR, access::LOCAL_WRITE | access::MW_BIND);
    let mut mw = window(&mut world, MwType::Type2);
    let bind = mw.bind(1, &mr, 0, 64, RW);
    assert_eq!(do_locally(&mut world, &mut c, &bind).0, Status::Success);
    let number = c.qps[1].qpn;
    let destroy = |world: &mut World, node: usize, qpn: u32| {
        let Node { rnic, guest } = &mut world.nodes[node];
        let request = DestroyQp {
            qpn: qpn.into(),
            ..Default::default()
        };
        guest.command(rnic, request).expect("destroy");
    };
    destroy(&mut world, 0, c.qps[0].qpn);
    destroy(&mut world, 1, number);
    loop {
        let Node { rnic, guest } = &mut world.nodes[1];
        let cqns = (c.send_cqs[1].cqn, c.recv_cqs[1].cqn);
        let qp = guest.try_qp(rnic, &QpOptions::default(), cqns.0, cqns.1);
        let qp = qp.expect("qp");
        destroy(&mut world, 1, qp.qpn);
        let arena = qp.sq.arena;
        world.nodes[1].guest.free(arena);
        // There are two slots, which alternate; the last generation of the other one was seen.
        if qp.qpn >> 17 == 0x7f && qp.qpn & 0x1_ffff != number {
            break;
        }
    }
    let mut again = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    assert_eq!(again.qps[1].qpn, number, "the number returned");
    assert_eq!(
        write(&mut world, &mut again, mr.iova, mw.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteKeyQp));
}

#[test]
fn window_commands_are_checked() {
    let mut world = World::pair(13);
    let mw = window(&mut world, MwType::Type1);
    let Node { rnic, guest } = &mut world.nodes[1];
    let allocate = |pd: u32, mw_type: u32| AllocateMw {
        pd: pd.into(),
        mw_type: mw_type.into(),
    };
    let mut refused = |pd, mw_type| guest.command(rnic, allocate(pd, mw_type)).unwrap_err().0;
    let pd = 1;
    assert_eq!(refused(0xdead, 1), CommandStatus::NotFound);
    assert_eq!(refused(pd, 0), CommandStatus::InvalidArgument);
    assert_eq!(refused(pd, 3), CommandStatus::InvalidArgument);
    let Node { rnic, guest } = &mut world.nodes[1];
    let destroy = DestroyPd {
        pd: guest.pd.into(),
        ..Default::default()
    };
    assert_eq!(
        guest.command(rnic, destroy).unwrap_err(),
        (CommandStatus::Busy, Cause::InUse)
    );
    let deallocate = |pd: u32, key: u32| DeallocateMw {
        pd: pd.into(),
        key: key.into(),
    };
    let wrong_pd = guest.command(rnic, deallocate(guest.pd + 1, mw.key));
    assert_eq!(wrong_pd.unwrap_err().0, CommandStatus::NotPermitted);
    let wrong_key = guest.command(rnic, deallocate(guest.pd, mw.key ^ 0x100));
    assert_eq!(wrong_key.unwrap_err().0, CommandStatus::NotFound);
    let mr = guest.mr(rnic, MR, 0);
    let region = guest.command(rnic, deallocate(guest.pd, mr.key));
    assert_eq!(region.unwrap_err().0, CommandStatus::NotFound);
    let request = DeregisterMr {
        pd: guest.pd.into(),
        key: mw.key.into(),
    };
    let window = guest.command(rnic, request);
    assert_eq!(window.unwrap_err().0, CommandStatus::NotFound);
}

/// Reregisters a region of side 1, and returns its key afterwards.
fn reregister(
    world: &mut World,
    mr: &Mr,
    change: impl FnOnce(&mut ReregisterMr),
) -> Result<u32, (CommandStatus, Cause)> {
    let Node { rnic, guest } = &mut world.nodes[1];
    let mut request = ReregisterMr {
        pd: guest.pd.into(),
        key: mr.key.into(),
        ..Default::default()
    };
    change(&mut request);
    guest.command(rnic, request).map(|reply| reply.key.get())
}

#[test]
fn a_region_gets_other_rights_and_keeps_its_key() {
    let (mut world, mut c, mr) = connected(14);
    let with = |rights: u32| {
        move |r: &mut ReregisterMr| {
            r.flags = reregister_flags::ACCESS.into();
            r.access = rights.into();
            // Fields that do not change are ignored.
            r.new_pd = 0xdead.into();
            r.pages.page_shift = 99;
        }
    };
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    assert_eq!(reregister(&mut world, &mr, with(rights)), Ok(mr.key));
    assert_eq!(write(&mut world, &mut c, mr.iova, mr.key), Status::Success);
    let rights = access::LOCAL_WRITE;
    assert_eq!(reregister(&mut world, &mr, with(rights)), Ok(mr.key));
    assert_eq!(
        write(&mut world, &mut c, mr.iova, mr.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteRights));
}

#[test]
fn a_region_moves_between_protection_domains() {
    let (mut world, mut c, _) = connected(15);
    let mr = c.mrs[1].clone();
    let Node { rnic, guest } = &mut world.nodes[1];
    let create = CreatePd {
        context: guest.context.into(),
        ..Default::default()
    };
    let new_pd = guest.command(rnic, create).expect("pd").pd.get();
    let to = |pd: u32| {
        move |r: &mut ReregisterMr| {
            r.flags = reregister_flags::PD.into();
            r.new_pd = pd.into();
        }
    };
    assert_eq!(reregister(&mut world, &mr, to(new_pd)), Ok(mr.key));
    let Node { rnic, guest } = &mut world.nodes[1];
    let destroy = DestroyPd {
        pd: new_pd.into(),
        ..Default::default()
    };
    let busy = guest.command(rnic, destroy).unwrap_err();
    assert_eq!(busy.0, CommandStatus::Busy);
    assert_eq!(
        write(&mut world, &mut c, mr.iova, mr.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteKeyPd));
    let Node { guest, .. } = &mut world.nodes[1];
    let pd = std::mem::replace(&mut guest.pd, new_pd);
    assert_eq!(reregister(&mut world, &mr, to(pd)), Ok(mr.key));
    let Node { rnic, guest } = &mut world.nodes[1];
    guest.pd = pd;
    guest.command(rnic, destroy).expect("nothing is left in it");
}

#[test]
fn a_region_gets_other_memory_and_another_key() {
    let (mut world, mut c, _) = connected(16);
    let mr = c.mrs[1].clone();
    let before = world.nodes[1].rnic.snapshot();
    let Node { guest, .. } = &mut world.nodes[1];
    let arena = guest.arena(MR);
    let (pages, _chunks) = guest.page_list(&arena, 0, MR);
    let iova = 0x9_0000_0000;
    let key = reregister(&mut world, &mr, |r| {
        r.flags = reregister_flags::TRANSLATION.into();
        r.iova = iova.into();
        r.pages = pages;
    });
    let key = key.expect("reregister");
    assert_ne!(key, mr.key);
    assert_eq!(write(&mut world, &mut c, iova + 10, key), Status::Success);
    assert_eq!(arena.get(10, 8), b"written!");
    assert_eq!(
        write(&mut world, &mut c, mr.iova, mr.key),
        Status::RemoteAccess
    );
    assert_eq!(refusal(&mut world), Some(Cause::RemoteKey));
    let changed = Mr { key, iova, arena };
    deregister(&mut world, &changed).expect("deregister");
    let after = world.nodes[1].rnic.snapshot();
    assert_eq!(after.mrs, before.mrs - 1);
    assert!(after.translations < before.translations);
}

#[test]
fn each_fault_of_a_change_leaves_the_region_as_it_was() {
    type Change = fn(&mut ReregisterMr);
    let (mut world, mut c, _) = connected(17);
    let mr = c.mrs[1].clone();
    let faults: [(Change, CommandStatus); 11] = [
        (|r| r.flags = 0.into(), CommandStatus::InvalidArgument),
        (|r| r.flags = 8.into(), CommandStatus::InvalidArgument),
        (|r| r.reserved = 1.into(), CommandStatus::Malformed),
        (|r| r.pd = 0xdead.into(), CommandStatus::NotPermitted),
        (
            |r| r.key = (r.key.get() ^ 1).into(),
            CommandStatus::NotFound,
        ),
        (
            |r| r.access = access::REMOTE_WRITE.into(),
            CommandStatus::InvalidArgument,
        ),
        (
            |r| {
                r.flags = reregister_flags::PD.into();
                r.new_pd = 0xdead.into();
            },
            CommandStatus::NotFound,
        ),
        (
            |r| {
                r.flags = reregister_flags::TRANSLATION.into();
                r.iova = u64::MAX.into();
                r.pages.length = 2.into();
            },
            CommandStatus::InvalidArgument,
        ),
        (
            |r| r.flags = reregister_flags::TRANSLATION.into(),
            CommandStatus::BadAddress,
        ),
        (
            |r| {
                r.flags = reregister_flags::TRANSLATION.into();
                r.pages.length = 4096.into();
            },
            CommandStatus::BadAddress,
        ),
        (
            |r| r.access = access::ZERO_BASED.into(),
            CommandStatus::InvalidArgument,
        ),
    ];
    for (index, (change, status)) in faults.into_iter().enumerate() {
        let refused = reregister(&mut world, &mr, |r| {
            r.flags = reregister_flags::ACCESS.into();
            change(r);
        });
        assert_eq!(refused.unwrap_err().0, status, "fault {index}");
    }
    assert_eq!(write(&mut world, &mut c, mr.iova, mr.key), Status::Success);
    // Regions for fast registration are changed in other ways.
    let Node { rnic, guest } = &mut world.nodes[1];
    let fast = guest.fast_mr(rnic, 1);
    let fixed = Mr {
        key: fast.key,
        ..mr
    };
    let refused = reregister(&mut world, &fixed, |r| {
        r.flags = reregister_flags::ACCESS.into();
    });
    let expected = (CommandStatus::NotPermitted, Cause::RegionFixed);
    assert_eq!(refused.unwrap_err(), expected);
}

#[test]
fn without_the_features_there_is_nothing_of_them() {
    let config = RnicConfig {
        features: Features::default(),
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 18);
    let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
    let Node { rnic, guest } = &mut world.nodes[1];
    let refused = guest.command(rnic, AllocateMw::default()).unwrap_err();
    assert_eq!(refused.0, CommandStatus::Unsupported);
    let refused = guest.command(rnic, DeallocateMw::default()).unwrap_err();
    assert_eq!(refused.0, CommandStatus::Unsupported);
    let refused = guest.command(rnic, ReregisterMr::default()).unwrap_err();
    assert_eq!(refused.0, CommandStatus::Unsupported);
    let bind = Send::new(1, SendOpcode::BindWindow);
    let result = do_locally(&mut world, &mut c, &bind);
    assert_eq!(result.0, Status::LocalQueuePairOperation);
}
