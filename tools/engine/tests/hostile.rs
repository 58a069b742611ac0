// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Whatever bytes guests and peers write, there is no panic, no endless work, no leak, and no effect on others.

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use vrnic_engine::{
    Cause, Limits, RnicConfig, Segment,
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, Flush, NakCode, Path, Payload, Position, Reth,
        SendTail, Service, Syndrome,
    },
    testing::{Connection, Faults, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        CommandCode, CommandHeader, ContextKind, CreateContext, CreatePd, DeregisterMr,
        DestroyContext, DestroyCq, DestroyPd, DestroyQp, RegisterMr, ReplyHeader, Status,
    },
    completion,
    memory::{PageList, access},
    notify,
    qp::{QpState, QpType},
    work::SendOpcode,
};
use zerocopy::{FromBytes, IntoBytes};

const MR: usize = 100_000;

/// Checks that a connection of two other guests still works.
fn check_bystander(world: &mut World, c: &mut Connection) {
    c.mrs[0].arena.put(0, b"still here");
    let write = Send::new(1, SendOpcode::Write)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, 10));
    c.send(world, 0, &write);
    world.run(Duration::from_millis(50));
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].status, completion::Status::Success);
    assert_eq!(c.mrs[1].arena.get(0, 10), b"still here");
    c.mrs[1].arena.put(0, &[0; 10]);
}

/// Checks that everything of a connection can be destroyed and that nothing is left.
fn destroy(world: &mut World, c: &Connection) {
    for side in 0..2 {
        let node = &mut world.nodes[c.nodes[side]];
        let (guest, rnic) = (&node.guest, &mut node.rnic);
        let qpn = c.qps[side].qpn.into();
        let reserved = 0.into();
        guest
            .command(rnic, DestroyQp { qpn, reserved })
            .expect("qp");
        for cq in [&c.send_cqs[side], &c.recv_cqs[side]] {
            let cqn = cq.cqn.into();
            guest
                .command(rnic, DestroyCq { cqn, reserved })
                .expect("cq");
        }
        let (pd, key) = (guest.pd.into(), c.mrs[side].key.into());
        guest.command(rnic, DeregisterMr { pd, key }).expect("mr");
        guest.command(rnic, DestroyPd { pd, reserved }).expect("pd");
        let context = guest.context.into();
        guest
            .command(rnic, DestroyContext { context, reserved })
            .expect("context");
        let left = rnic.snapshot();
        assert_eq!(
            (left.contexts, left.pds, left.mrs, left.cqs, left.qps),
            (0, 0, 0, 0, 0)
        );
        assert_eq!(left.translations, 0);
    }
}

/// Creates four guests with a connection between the first two, and one between the others, which must not be affected.
fn crowd(seed: u64) -> (World, Connection, Connection) {
    crowd_of(seed, QpType::ReliableConnection)
}

/// Does the same with another type of connection.
fn crowd_of(seed: u64, qp_type: QpType) -> (World, Connection, Connection) {
    let mut world = World::new(4, 256, &RnicConfig::default(), seed);
    let options = QpOptions {
        qp_type,
        entries: 16,
        ..QpOptions::default()
    };
    let victim = world.connect([0, 1], &options, MR, |_, attributes| {
        attributes.rnr_retry = 2;
    });
    let bystander = world.connect([2, 3], &options, MR, |_, _| {});
    (world, victim, bystander)
}

/// Generates types of connections.
fn connection() -> impl Strategy<Value = QpType> {
    prop::sample::select(vec![
        QpType::ReliableConnection,
        QpType::UnreliableConnection,
    ])
}

fn reth() -> impl Strategy<Value = (u64, u32, u32)> {
    let length = prop_oneof![0u32..200_000, any::<u32>()];
    (any::<u64>(), any::<u32>(), length)
}

/// Generates bodies, with the address and key of the victim's region if the number is even.
fn body() -> impl Strategy<Value = Body> {
    let position = prop::sample::select(vec![
        Position::First,
        Position::Middle,
        Position::Last,
        Position::Only,
    ]);
    let syndrome = prop::sample::select(vec![
        Syndrome::ACK,
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Nak(NakCode::SequenceError),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperation),
    ]);
    (
        0u8..12,
        position,
        syndrome,
        reth(),
        any::<[u64; 3]>(),
        any::<[bool; 3]>(),
    )
        .prop_map(
            |(kind, position, syndrome, (address, rkey, length), numbers, bits)| {
                let reth = Reth {
                    address,
                    rkey,
                    length,
                };
                let aeth = Aeth {
                    syndrome,
                    msn: numbers[2] as u32,
                };
                let immediate = bits[1].then_some(rkey);
                match kind {
                    0 => Body::Send {
                        position,
                        tail: match numbers[0] % 3 {
                            0 => SendTail::Plain,
                            1 => SendTail::Immediate(rkey),
                            _ => SendTail::Invalidate(rkey),
                        },
                    },
                    1 => Body::Write {
                        position,
                        reth: bits[0].then_some(reth),
                        immediate,
                    },
                    2 => Body::ReadRequest(reth),
                    3 => Body::AtomicRequest(AtomicRequest {
                        kind: if bits[0] {
                            AtomicKind::CompareSwap
                        } else {
                            AtomicKind::FetchAdd
                        },
                        address,
                        rkey,
                        compare_add: numbers[0],
                        swap: numbers[1],
                    }),
                    4 => Body::ReadResponse {
                        position,
                        aeth: bits[0].then_some(aeth),
                    },
                    5 => Body::Acknowledge(aeth),
                    6 => Body::AtomicAcknowledge {
                        aeth,
                        original: numbers[0],
                    },
                    7 => Body::CongestionNotification,
                    9 => Body::AtomicWrite(reth),
                    10 => Body::FlushRequest(Flush {
                        remote: reth,
                        placement: numbers[0] as u8 & 0xf,
                        selectivity: numbers[1] as u8 & 3,
                    }),
                    8 => Body::Unknown(numbers[0] as u8 & 0x1f),
                    _ => Body::Datagram {
                        qkey: rkey,
                        source_qpn: length,
                        immediate,
                    },
                }
            },
        )
}

/// Makes a body name the victim's region, so that it gets past more of the first checks.
fn aim(body: &mut Body, c: &Connection, offset: u64) {
    let (iova, key) = (c.mrs[1].iova, c.mrs[1].key);
    match body {
        Body::Write {
            reth: Some(reth), ..
        }
        | Body::ReadRequest(reth)
        | Body::AtomicWrite(reth)
        | Body::FlushRequest(Flush { remote: reth, .. }) => {
            reth.address = iova + offset;
            reth.rkey = key;
        }
        Body::AtomicRequest(request) => {
            request.address = iova + offset / 8 * 8;
            request.rkey = key;
        }
        _ => {}
    }
}

#[derive(Clone, Debug)]
struct Forged {
    body: Body,
    psn: i32,
    payload: usize,
    to_requester: bool,
    service: Service,
    aimed: Option<u16>,
    bits: [bool; 2],
}

fn service() -> impl Strategy<Value = Service> {
    prop_oneof![
        Just(Service::Reliable),
        Just(Service::Unreliable),
        (0u32..4).prop_map(|srqn| Service::Xrc { srqn }),
    ]
}

fn forged() -> impl Strategy<Value = Forged> {
    let psn = prop_oneof![4 => -2i32..4, 1 => any::<i32>()];
    let payload = prop_oneof![Just(0usize), 0usize..300, Just(65536), 0usize..70_000];
    let aimed = prop::option::weighted(0.7, any::<u16>());
    (
        body(),
        psn,
        payload,
        any::<bool>(),
        service(),
        aimed,
        any::<[bool; 2]>(),
    )
        .prop_map(
            |(body, psn, payload, to_requester, service, aimed, bits)| Forged {
                body,
                psn,
                payload,
                to_requester,
                service,
                aimed,
                bits,
            },
        )
}

proptest! {
    /// A peer that uses the protocol, but with arbitrary contents.
    #[test]
    fn forged_segments(seed in any::<u64>(), kind in connection(), forged in vec(forged(), 1..60)) {
        let (mut world, mut c, mut bystander) = crowd_of(seed, kind);
        for wr_id in 0..4 {
            let sge = c.mrs[1].sge(0, 300);
            c.receive(&mut world, 1, wr_id, &[sge]);
        }
        let read = Send::new(1, SendOpcode::Read)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, MR));
        for wr_id in 0..4 {
            let _ = wr_id;
            c.send(&mut world, 0, &read);
        }
        // Real answers are lost sometimes, so that forged ones can take their place.
        world.faults = Faults { drop: 500, ..Faults::default() };
        for mut forged in forged {
            if let Some(offset) = forged.aimed {
                aim(&mut forged.body, &c, offset.into());
            }
            let to = usize::from(!forged.to_requester);
            let node = &world.nodes[to];
            let psn = (0..)
                .map_while(|place| node.rnic.qp_page(place, 1, &node.guest.view))
                .flatten()
                .find(|qp| qp.number == c.qps[to].qpn)
                .map(|qp| if to == 0 { qp.unacknowledged_psn } else { qp.receive_psn })
                .expect("qp");
            let psn = psn.wrapping_add_signed(forged.psn);
            let payload = match forged.payload {
                0 => Payload::Empty,
                length => Payload::Bytes(vec![7; length]),
            };
            let packet = c.packet(1 - to, psn, forged.body, payload);
            world.deliver(Segment {
                path: Path {
                    // Marked by a switch or not.
                    traffic_class: if forged.bits[0] { 3 } else { 0 },
                    ..packet.path
                },
                solicited: forged.bits[0],
                ack_request: forged.bits[1],
                service: forged.service,
                ..packet
            });
            world.run(Duration::from_micros(20));
        }
        world.faults = Faults::default();
        world.run(Duration::from_millis(100));
        // Each request completed at most once, and everything is finished once the end is in the error state.
        let done = c.send_cqs[0].drain();
        prop_assert!(done.len() <= 4);
        if world.state(0, c.qps[0].qpn) == QpState::Error {
            prop_assert_eq!(done.len(), 4);
        }
        prop_assert!(c.recv_cqs[1].drain().len() <= 4);
        check_bystander(&mut world, &mut bystander);
        destroy(&mut world, &c);
    }

    /// A process that writes garbage to its rings and its notify area.
    #[test]
    fn garbage_in_rings(
        seed in any::<u64>(),
        kind in connection(),
        garbage in vec((any::<u16>(), vec(any::<u8>(), 1..100), any::<u8>()), 1..40),
        bits in vec(any::<(u16, u64)>(), 0..10),
    ) {
        let (mut world, mut c, mut bystander) = crowd_of(seed, kind);
        for wr_id in 0..8 {
            let sge = c.mrs[0].sge(0, 50);
            c.receive(&mut world, 0, wr_id, &[sge]);
            c.send(&mut world, 0, &Send::new(wr_id, SendOpcode::Write));
        }
        for (place, bytes, what) in &garbage {
            let arena = match what % 4 {
                0 => world.nodes[0].guest.area().clone(),
                1 => c.send_cqs[0].ring.arena.clone(),
                _ => c.qps[0].sq.arena.clone(),
            };
            let room = arena.length() - bytes.len();
            arena.put(usize::from(*place) * room / 65536, bytes);
            // A plausible driver index makes the device read the garbage.
            if what % 3 == 0 {
                c.qps[0].sq.index = c.qps[0].sq.device_index().wrapping_add(u32::from(*what) / 16);
                c.qps[0].sq.publish();
            }
            let node = &mut world.nodes[0];
            node.rnic.doorbell(node.guest.page, u32::from(*what) % 20);
            node.rnic.doorbell(u32::from(*place), u32::from(*what));
            world.run(Duration::from_micros(50));
        }
        for &(word, value) in &bits {
            let area = world.nodes[0].guest.area();
            let place = usize::from(word) % (notify::area_length(1024) / 8) * 8;
            area.put(place, &value.to_le_bytes());
            world.run(Duration::from_micros(50));
        }
        world.run(Duration::from_millis(100));
        check_bystander(&mut world, &mut bystander);
        destroy(&mut world, &c);
    }

    /// A driver that sends garbage as commands.
    #[test]
    fn garbage_commands(
        seed in any::<u64>(),
        commands in vec((any::<prop::sample::Index>(), vec(any::<u8>(), 0..260), any::<u8>()), 1..60),
    ) {
        let (mut world, c, mut bystander) = crowd(seed);
        for (code, mut bytes, how) in commands {
            // Small numbers are more likely to identify an object.
            if how & 1 != 0 {
                for byte in &mut bytes {
                    if *byte & 1 != 0 {
                        *byte = if *byte & 2 != 0 { 0 } else { *byte >> 5 };
                    }
                }
            }
            let mut request = CommandHeader {
                code: code.get(CommandCode::ALL).raw().into(),
                reserved: 0.into(),
                length: (bytes.len() as u32).into(),
            }
            .as_bytes()
            .to_vec();
            if how & 6 == 0 {
                request = bytes;
            } else {
                let body = if how & 8 != 0 { right_length(*code.get(CommandCode::ALL)) } else { bytes.len() };
                bytes.resize(body, 0);
                request[4..8].copy_from_slice(&(body as u32).to_le_bytes());
                request.extend(bytes);
            }
            let node = &mut world.nodes[0];
            let reply = node.guest.raw_command(&mut node.rnic, &request);
            let (header, body) = ReplyHeader::read_from_prefix(&reply).expect("header");
            prop_assert!(Status::try_from(header.status.get()).is_ok());
            prop_assert_eq!(header.length.get() as usize, body.len());
            if header.status.get() != 0 {
                prop_assert!(body.is_empty());
                prop_assert!(Cause::from_code(header.vendor_error.get()).is_some());
            }
        }
        let _ = c;
        world.run(Duration::from_millis(10));
        check_bystander(&mut world, &mut bystander);
    }

    /// Page lists with wrong contents.
    #[test]
    fn garbage_page_lists(
        seed in any::<u64>(),
        chunk in vec(any::<u64>(), 0..20),
        count in any::<u32>(),
        offset in prop_oneof![0u64..5000, any::<u64>()],
        length in prop_oneof![0u64..100_000, any::<u64>()],
        page_count in prop_oneof![0u32..30, any::<u32>()],
        page_shift in prop_oneof![Just(12u8), any::<u8>()],
        consistent in any::<bool>(),
    ) {
        let mut world = World::new(1, 64, &RnicConfig::default(), seed);
        let node = &mut world.nodes[0];
        let memory = node.guest.arena(4096);
        // A chunk that is its own successor.
        let mut bytes = memory.address(0).to_le_bytes().to_vec();
        let count = if consistent { 1 + count % 20 } else { count };
        bytes.extend(u64::from(count).to_le_bytes());
        for page in chunk {
            let page = if consistent { memory.address(0) } else { page };
            bytes.extend(page.to_le_bytes());
        }
        memory.put(0, &bytes);
        let page_count = if consistent {
            (offset.wrapping_add(length)).div_ceil(4096) as u32
        } else {
            page_count
        };
        let request = RegisterMr {
            pd: node.guest.pd.into(),
            access: access::LOCAL_WRITE.into(),
            iova: 0.into(),
            pages: PageList {
                first_chunk: memory.address(0).into(),
                offset: offset.into(),
                length: length.into(),
                page_count: page_count.into(),
                page_shift,
                reserved: [0; 3],
            },
            ..Default::default()
        };
        let before = node.rnic.snapshot().translations;
        if node.guest.command(&mut node.rnic, request).is_err() {
            prop_assert_eq!(node.rnic.snapshot().translations, before);
            prop_assert_eq!(node.rnic.snapshot().mrs, 0);
        }
    }
}

/// Returns the length of the request of a command.
fn right_length(code: CommandCode) -> usize {
    match code {
        CommandCode::QueryDevice | CommandCode::QueryClock => 0,
        CommandCode::NameContext => 24,
        CommandCode::SetGid | CommandCode::CreateContext => 40,
        CommandCode::RegisterMr | CommandCode::CreateCq => 56,
        CommandCode::CreateQp => 88,
        CommandCode::ModifyQp => 104,
        _ => 8,
    }
}

#[test]
fn long_page_lists_stop_at_the_limit_of_translations() {
    let config = RnicConfig {
        limits: Limits {
            mr_size: 1 << 36,
            translations: 1000,
            ..Limits::default()
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(1, 64, &config, 1);
    let node = &mut world.nodes[0];
    let memory = node.guest.arena(4096);
    let mut bytes = memory.address(0).to_le_bytes().to_vec();
    bytes.extend(510u64.to_le_bytes());
    bytes.extend((0..510).flat_map(|_| memory.address(0).to_le_bytes()));
    memory.put(0, &bytes);
    let request = RegisterMr {
        pd: node.guest.pd.into(),
        pages: PageList {
            first_chunk: memory.address(0).into(),
            offset: 0.into(),
            length: (1u64 << 36).into(),
            page_count: (1 << 24).into(),
            page_shift: 12,
            reserved: [0; 3],
        },
        ..Default::default()
    };
    let refused = node
        .guest
        .command(&mut node.rnic, request)
        .expect_err("too many");
    assert_eq!(refused, (Status::NoResources, Cause::TranslationsExhausted));
}

#[test]
fn foreign_and_stale_numbers_are_refused() {
    let (mut world, c, _) = crowd(5);
    let node = &mut world.nodes[0];
    // A second context of the same guest.
    let slots = 64;
    let area = node.guest.arena(notify::area_length(slots));
    let (list, _chunks) = node.guest.page_list(&area, 0, notify::area_length(slots));
    let request = CreateContext {
        kind: ContextKind::User.raw(),
        slots: slots.into(),
        area: list,
        ..Default::default()
    };
    let other = node
        .guest
        .command(&mut node.rnic, request)
        .expect("context");
    let request = CreatePd {
        context: other.context,
        ..Default::default()
    };
    let pd = node.guest.command(&mut node.rnic, request).expect("pd").pd;
    let all_memory = RegisterMr {
        pd,
        flags: vrnic_wire::command::mr_flags::ALL_MEMORY.into(),
        ..Default::default()
    };
    let refused = node
        .guest
        .command(&mut node.rnic, all_memory)
        .expect_err("user");
    assert_eq!(refused, (Status::NotPermitted, Cause::KernelOnly));
    let own_pd = std::mem::replace(&mut node.guest.pd, pd.get());
    let cqn = c.send_cqs[0].cqn;
    let refused = node
        .guest
        .try_qp(&mut node.rnic, &QpOptions::default(), cqn, cqn)
        .expect_err("foreign pd");
    assert_eq!(refused, (Status::NotPermitted, Cause::ContextMismatch));
    let key = c.mrs[0].key.into();
    let refused = node
        .guest
        .command(&mut node.rnic, DeregisterMr { pd, key })
        .expect_err("foreign key");
    assert_eq!(refused, (Status::NotPermitted, Cause::PdMismatch));
    node.guest.pd = own_pd;
    // The doorbell of another context's queue pair cannot be rung.
    let before = node.rnic.counters()[vrnic_wire::counter::Counter::InvalidDoorbells as usize];
    node.rnic.doorbell(other.doorbell_page.get(), c.qps[0].slot);
    let after = node.rnic.counters()[vrnic_wire::counter::Counter::InvalidDoorbells as usize];
    assert_eq!(after - before, 1);
}

#[test]
fn memory_that_goes_away_harms_nobody_else() {
    let (mut world, mut c, mut bystander) = crowd(6);
    let read = Send::new(1, SendOpcode::Read)
        .rdma(c.mrs[1].iova, c.mrs[1].key)
        .element(c.mrs[0].sge(0, MR));
    c.send(&mut world, 0, &read);
    c.send(&mut world, 0, &read);
    world.step();
    world.nodes[1].guest.view.unmap();
    world.run(Duration::from_millis(200));
    let done = c.send_cqs[0].drain();
    assert_eq!(done.len(), 2);
    assert!(done[1].status == completion::Status::Flushed || done[1].status == done[0].status);
    check_bystander(&mut world, &mut bystander);
}

#[test]
fn limits_hold_exactly() {
    let config = RnicConfig {
        limits: Limits {
            qp: 5,
            cq: 3,
            mr: 4,
            pd: 2,
            contexts: 2,
            qp_entries: 16,
            cq_entries: 32,
            send_sge: 3,
            recv_sge: 3,
            inline: 64,
            ..Limits::default()
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(1, 512, &config, 1);
    let node = &mut world.nodes[0];
    let (guest, rnic) = (&mut node.guest, &mut node.rnic);
    let cq = guest.cq(rnic, 32, 0);
    guest.cq(rnic, 32, 3);
    guest.cq(rnic, 1, 3);
    let options = QpOptions {
        entries: 16,
        sge: 3,
        inline: 64,
        ..QpOptions::default()
    };
    for wrong in [
        QpOptions {
            entries: 32,
            ..options
        },
        QpOptions { sge: 4, ..options },
        QpOptions {
            inline: 65,
            ..options
        },
    ] {
        let refused = guest
            .try_qp(rnic, &wrong, cq.cqn, cq.cqn)
            .expect_err("over");
        assert_eq!(refused, (Status::InvalidArgument, Cause::QueueCapacity));
    }
    for _ in 0..5 {
        guest
            .try_qp(rnic, &options, cq.cqn, cq.cqn)
            .expect("within");
    }
    let refused = guest
        .try_qp(rnic, &options, cq.cqn, cq.cqn)
        .expect_err("over");
    assert_eq!(refused, (Status::NoResources, Cause::LimitReached));
    for _ in 0..4 {
        guest.full_mr(rnic, 100);
    }
    let request = RegisterMr {
        pd: guest.pd.into(),
        flags: vrnic_wire::command::mr_flags::ALL_MEMORY.into(),
        ..Default::default()
    };
    let refused = guest.command(rnic, request).expect_err("over");
    assert_eq!(refused, (Status::NoResources, Cause::LimitReached));
    let request = CreatePd {
        context: guest.context.into(),
        ..Default::default()
    };
    guest.command(rnic, request).expect("within");
    assert!(guest.command(rnic, request).is_err());
}
