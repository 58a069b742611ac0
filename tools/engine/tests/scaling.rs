// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive scaling: which receive queue gets a frame, and how receive queues begin, fail and end. The choice is
//! compared with a model that computes the hash bit by bit, and knows what is in a frame because it made the frame.

use etherparse::PacketBuilder;
use proptest::{collection::vec, prelude::*, sample::select};
use std::time::Duration;
use vrnic_engine::{
    Cause, Features, RnicConfig,
    recording::replay,
    segment::{Payload, Segment},
    testing::{Cq, Mr, Node, Qp, QpOptions, World},
};
use vrnic_wire::{
    command::{
        ContextKind, CreateFlow, CreateQp, CreateScalingQp, DestroyQp, FlowType,
        MAX_SCALING_ENTRIES, ModifyQp, QpCreated, QueryDevice, Status, hash_fields as hash,
        qp_flags,
    },
    completion::{Status as Done, packet_flags},
    counter::Counter,
    event::EventType,
    qp::{QpAttributes, QpState, QpType, attribute},
    ring::RingLayout,
    work::receive_stride,
};

type Refused = (Status, Cause);

/// A receive queue with its own completion queue and memory.
struct Queue {
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

/// A device with receive queues in the state RTR.
struct Scene {
    world: World,
    queues: Vec<Queue>,
}

impl Scene {
    fn new(count: usize, seed: u64) -> Self {
        let mut scene = Self {
            world: World::recorded(&[RnicConfig::default()], 512, seed),
            queues: Vec::new(),
        };
        for _ in 0..count {
            let queue = scene.queue();
            scene
                .modify(queue.qp.qpn, QpState::ReadyToReceive)
                .expect("ready");
            scene.queues.push(queue);
        }
        scene
    }

    /// Creates a receive queue in the state RESET.
    fn queue(&mut self) -> Queue {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let cq = guest.cq(rnic, 64, 0);
        let options = QpOptions {
            qp_type: QpType::ReceiveQueue,
            entries: 16,
            ..QpOptions::default()
        };
        let qp = guest.try_qp(rnic, &options, 0, cq.cqn).expect("queue");
        let mr = guest.full_mr(rnic, 65536);
        Queue { qp, cq, mr }
    }

    fn modify(&mut self, qpn: u32, state: QpState) -> Result<(), Refused> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let request = ModifyQp {
            qpn: qpn.into(),
            reserved: 0.into(),
            attributes: QpAttributes {
                state: state.raw(),
                mask: attribute::STATE.into(),
                ..QpAttributes::default()
            },
        };
        guest.command(rnic, request).map(|_| ())
    }

    fn destroy(&mut self, qpn: u32) -> Result<(), Refused> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let request = DestroyQp {
            qpn: qpn.into(),
            ..DestroyQp::default()
        };
        guest.command(rnic, request).map(|_| ())
    }

    fn numbers(&self) -> Vec<u32> {
        self.queues.iter().map(|queue| queue.qp.qpn).collect()
    }

    /// Returns a request for a queue pair with this table.
    fn request(&self, fields: u32, table: &[u32]) -> CreateScalingQp {
        let guest = &self.world.nodes[0].guest;
        let mut queues = [0.into(); MAX_SCALING_ENTRIES];
        for (place, &queue) in queues.iter_mut().zip(table) {
            *place = queue.into();
        }
        CreateScalingQp {
            context: guest.context.into(),
            pd: guest.pd.into(),
            fields: fields.into(),
            entries: (table.len() as u32).into(),
            key: KEY,
            queues,
        }
    }

    fn create(&mut self, request: &CreateScalingQp) -> Result<QpCreated, Refused> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        guest.command(rnic, *request)
    }

    /// Directs all frames to a new queue pair with this table.
    fn scale(&mut self, fields: u32, table: &[u32]) -> u32 {
        let qpn = self
            .create(&self.request(fields, table))
            .expect("created")
            .qpn;
        self.flow(qpn.get()).expect("flow");
        qpn.get()
    }

    fn flow(&mut self, qpn: u32) -> Result<(), Refused> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let flow = CreateFlow {
            qpn: qpn.into(),
            port: 1,
            flow_type: FlowType::Normal.raw(),
            ..CreateFlow::default()
        };
        guest.command(rnic, flow).map(|_| ())
    }

    fn receive(&mut self, queue: usize, wr_id: u64) -> bool {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let Queue { qp, mr, .. } = &mut self.queues[queue];
        guest.post_receive(rnic, qp, wr_id, &[mr.sge(wr_id as usize * 2048, 2048)])
    }

    fn arrive(&mut self, frame: &[u8]) {
        self.world
            .deliver(Segment::of_frame(Payload::Bytes(frame.to_vec())));
        self.world.settle();
    }

    /// Returns the queue that gets a frame.
    fn chosen(&self, frame: &[u8]) -> Option<u32> {
        let mut get = Vec::new();
        self.world.nodes[0].rnic.flows().steer(frame, &mut get);
        assert!(get.len() <= 1);
        get.pop().map(|end| end.qpn)
    }

    fn dropped(&self) -> u64 {
        self.world.nodes[0].rnic.counters()[Counter::Dropped as usize]
    }

    fn replays(&mut self) {
        for recording in self.world.recordings() {
            replay(&recording).expect("the same again");
        }
    }
}

const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// What is in a frame.
#[derive(Clone, Debug)]
struct Content {
    /// Source and destination.
    addresses: [[u8; 16]; 2],
    is_ipv6: bool,
    is_udp: bool,
    is_fragment: bool,
    tag: bool,
    ports: [u16; 2],
}

impl Content {
    fn four(&self) -> [[u8; 4]; 2] {
        self.addresses.map(|address| {
            let last = address.last_chunk();
            *last.expect("16 bytes")
        })
    }

    fn bytes(&self) -> Vec<u8> {
        let mut packet = Vec::new();
        let [source, destination] = self.ports;
        macro_rules! write {
            ($builder:expr) => {
                if self.is_udp {
                    $builder
                        .udp(source, destination)
                        .write(&mut packet, &[7; 30])
                } else {
                    $builder
                        .tcp(source, destination, 1, 1)
                        .write(&mut packet, &[7; 30])
                }
            };
        }
        let written = if self.is_ipv6 {
            write!(PacketBuilder::ipv6(self.addresses[0], self.addresses[1], 9))
        } else {
            let [from, to] = self.four();
            write!(PacketBuilder::ipv4(from, to, 9))
        };
        written.expect("a packet");
        if !self.is_ipv6 && self.is_fragment {
            packet[6] |= 0x20;
        }
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.tag {
            frame.extend([0x81, 0, 0, 5]);
        }
        frame.extend(if self.is_ipv6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(packet);
        frame
    }

    /// Returns the input of the hash.
    fn input(&self, fields: u32) -> Vec<u8> {
        let has = |bit| fields & bit != 0;
        let mut input = Vec::new();
        let wants_ip = if self.is_ipv6 { hash::IPV6 } else { hash::IPV4 };
        if has(hash::IPV4 | hash::IPV6) && !has(wants_ip) {
            return input;
        }
        let six = [hash::SOURCE_IPV6, hash::DESTINATION_IPV6];
        let four = [hash::SOURCE_IPV4, hash::DESTINATION_IPV4];
        let bits = if self.is_ipv6 { six } else { four };
        for (side, bit) in bits.into_iter().enumerate() {
            match self.is_ipv6 {
                _ if !has(bit) => {}
                true => input.extend(self.addresses[side]),
                false => input.extend(self.four()[side]),
            }
        }
        let tcp = [hash::SOURCE_TCP, hash::DESTINATION_TCP];
        let udp = [hash::SOURCE_UDP, hash::DESTINATION_UDP];
        for (side, bit) in (if self.is_udp { udp } else { tcp })
            .into_iter()
            .enumerate()
        {
            if has(bit) && (self.is_ipv6 || !self.is_fragment) {
                input.extend(self.ports[side].to_be_bytes());
            }
        }
        input
    }
}

/// The definition of the hash, word by word.
fn hash_of(input: &[u8]) -> u32 {
    let bit = |bytes: &[u8], at: usize| bytes[at / 8] >> (7 - at % 8) & 1;
    let mut value = 0;
    for at in 0..input.len() * 8 {
        if bit(input, at) == 1 {
            value ^= (at..at + 32).fold(0, |word, at| word << 1 | u32::from(bit(&KEY, at)));
        }
    }
    value
}

fn content() -> impl Strategy<Value = Content> {
    let address = || any::<[u8; 16]>();
    let flags = any::<[bool; 4]>();
    let ports = any::<[u16; 2]>();
    ([address(), address()], flags, ports).prop_map(|(addresses, flags, ports)| {
        let [is_ipv6, is_udp, is_fragment, tag] = flags;
        Content {
            addresses,
            is_ipv6,
            is_udp,
            is_fragment,
            tag,
            ports,
        }
    })
}

fn fields() -> impl Strategy<Value = u32> {
    let ip = [
        0,
        hash::IPV4,
        hash::SOURCE_IPV4,
        hash::DESTINATION_IPV4,
        hash::IPV6,
        hash::SOURCE_IPV6,
        hash::DESTINATION_IPV6,
    ];
    let ports = [
        0,
        hash::TCP,
        hash::SOURCE_TCP,
        hash::DESTINATION_TCP,
        hash::UDP,
        hash::SOURCE_UDP,
        hash::DESTINATION_UDP,
    ];
    let both = (select(ip.to_vec()), select(ports.to_vec()));
    both.prop_map(|(ip, ports)| ip | ports)
        .prop_filter("fields", |fields| *fields != 0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the fields and the table are, each frame goes to the queue that the standard names.
    #[test]
    fn frames_go_to_the_queue_that_the_standard_names(
        fields in fields(),
        size in 0u32..7,
        picks in vec(0usize..3, 64),
        frames in vec(content(), 1..20),
    ) {
        let mut scene = Scene::new(3, 1);
        let numbers = scene.numbers();
        let table: Vec<u32> = picks.iter().take(1 << size).map(|&pick| numbers[pick]).collect();
        scene.scale(fields, &table);
        for content in &frames {
            let index = hash_of(&content.input(fields)) as usize % table.len();
            prop_assert_eq!(scene.chosen(&content.bytes()), Some(table[index]), "{:?}", content);
        }
    }

    /// A frame that ends anywhere, or is anything, goes to some queue of the table.
    #[test]
    fn any_bytes_go_to_one_queue(fields in fields(), bytes in vec(any::<u8>(), 14..100), content in content(), cut in 14usize..90) {
        let mut scene = Scene::new(2, 2);
        let table = scene.numbers();
        scene.scale(fields, &table);
        let whole = content.bytes();
        for bytes in [&bytes[..], &whole[..cut.min(whole.len())]] {
            prop_assert!(table.contains(&scene.chosen(bytes).expect("a queue")));
        }
    }
}

/// Returns a packet of UDP over IPv4 from this port.
fn packet(port: u16) -> Vec<u8> {
    let content = Content {
        addresses: [[1; 16], [2; 16]],
        is_ipv6: false,
        is_udp: true,
        is_fragment: false,
        tag: false,
        ports: [port, 4791],
    };
    content.bytes()
}

#[test]
fn the_frames_of_each_flow_are_in_one_queue_and_in_order() {
    let mut scene = Scene::new(2, 3);
    let table = scene.numbers();
    scene.scale(hash::IPV4 | hash::UDP, &table);
    let mut counts = [0; 2];
    for port in 0..8 {
        for queue in 0..2 {
            for wr_id in 0..4 {
                assert!(scene.receive(queue, wr_id));
            }
        }
        let frames: Vec<Vec<u8>> = (0..4)
            .map(|index| {
                let mut frame = packet(port);
                frame[50] = index;
                frame
            })
            .collect();
        for frame in &frames {
            scene.arrive(frame);
        }
        let got = scene.queues.iter_mut().map(|queue| {
            let done = queue.cq.drain();
            done.iter()
                .map(|cqe| {
                    assert_eq!((cqe.status, cqe.qpn), (Done::Success, queue.qp.qpn));
                    queue
                        .mr
                        .arena
                        .get(cqe.wr_id as usize * 2048, cqe.length as usize)
                })
                .collect::<Vec<_>>()
        });
        let got: Vec<_> = got.collect();
        let by = got
            .iter()
            .position(|got| !got.is_empty())
            .expect("some queue");
        assert_eq!(got[by], frames);
        assert!(got[1 - by].is_empty(), "port {port} is in both queues");
        counts[by] += 1;
        // What was not used is gone.
        for &qpn in &table {
            scene.modify(qpn, QpState::Reset).expect("reset");
            scene.modify(qpn, QpState::ReadyToReceive).expect("ready");
        }
    }
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
    scene.replays();
}

#[test]
fn the_queues_of_a_table_get_the_tags_of_flows() {
    let mut scene = Scene::new(2, 9);
    let table = scene.numbers();
    let qpn = scene
        .create(&scene.request(hash::SOURCE_IPV4, &table))
        .expect("created")
        .qpn;
    let flow = CreateFlow {
        qpn,
        port: 1,
        tag: 9.into(),
        ..CreateFlow::default()
    };
    let Node { rnic, guest } = &mut scene.world.nodes[0];
    guest.command(rnic, flow).expect("flow");
    for queue in 0..2 {
        assert!(scene.receive(queue, 1));
    }
    scene.arrive(&packet(80));
    let queues = scene.queues.iter_mut();
    let done: Vec<_> = queues.flat_map(|queue| queue.cq.drain()).collect();
    let tags: Vec<_> = done.iter().map(|cqe| cqe.flow_tag).collect();
    assert_eq!(tags, [9]);
    scene.replays();
}

#[test]
fn checksums_are_checked_for_receive_queues_too() {
    let mut scene = Scene::new(1, 4);
    let table = scene.numbers();
    scene.scale(0, &table);
    for (frame, flags) in [(packet(1), packet_flags::CHECKSUMS_OK), (vec![2; 60], 0)] {
        assert!(scene.receive(0, 0));
        scene.arrive(&frame);
        let done = scene.queues[0].cq.poll().expect("completion");
        assert_eq!((done.status, done.packet_flags), (Done::Success, flags));
    }
}

#[test]
fn a_queue_that_is_not_ready_drops_its_frames_and_flushes_in_error() {
    let mut scene = Scene::new(1, 5);
    let table = scene.numbers();
    scene.scale(0, &table);
    let qpn = table[0];
    scene.arrive(&packet(1));
    assert_eq!(scene.dropped(), 1, "no receive");
    for wr_id in 0..3 {
        assert!(scene.receive(0, wr_id));
    }
    scene.modify(qpn, QpState::Error).expect("error");
    scene.world.settle();
    let done = scene.queues[0].cq.drain();
    let done: Vec<_> = done.iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(done, [0, 1, 2].map(|wr_id| (wr_id, Done::Flushed)));
    scene.arrive(&packet(1));
    assert_eq!(scene.dropped(), 2, "in error");
    let transition = Err((Status::BadState, Cause::Transition));
    assert_eq!(scene.modify(qpn, QpState::ReadyToReceive), transition);
    scene.modify(qpn, QpState::Reset).expect("reset");
    scene.arrive(&packet(1));
    assert_eq!(scene.dropped(), 3, "in reset");
    for state in [QpState::Init, QpState::ReadyToSend, QpState::SendQueueDrain] {
        assert_eq!(scene.modify(qpn, state), transition, "{state:?}");
    }
    scene.replays();
}

#[test]
fn a_ring_full_of_garbage_is_an_event_of_its_queue_only() {
    let mut scene = Scene::new(2, 6);
    let table = scene.numbers();
    scene.scale(hash::IPV4 | hash::UDP, &table);
    let ports: Vec<u16> = table
        .iter()
        .map(|&qpn| {
            let mut ports = 0..;
            ports
                .find(|&port| scene.chosen(&packet(port)) == Some(qpn))
                .expect("port")
        })
        .collect();
    let ring = &mut scene.queues[0].qp.rq;
    ring.index = 1000;
    ring.publish();
    assert!(scene.receive(1, 0));
    scene.arrive(&packet(ports[0]));
    scene.arrive(&packet(ports[1]));
    assert_eq!(scene.world.state(0, table[0]), QpState::Error);
    assert_eq!(scene.world.state(0, table[1]), QpState::ReadyToReceive);
    let event = scene.world.nodes[0].rnic.next_async_event().expect("event");
    let what = (event.event_type.get(), event.number.get());
    assert_eq!(what, (EventType::QpFatal.raw(), table[0]));
    let done = scene.queues[1].cq.poll().expect("completion");
    assert_eq!(done.status, Done::Success);
}

#[test]
fn queues_in_a_table_cannot_be_destroyed() {
    let mut scene = Scene::new(2, 7);
    let [one, other] = scene.numbers()[..] else {
        unreachable!()
    };
    // Twice in one table, and in another one.
    let first = scene.scale(hash::IPV4, &[one, one, other, one]);
    let second = scene.scale(0, &[one]);
    let busy = Err((Status::Busy, Cause::InUse));
    assert_eq!(scene.destroy(one), busy);
    assert_eq!(scene.destroy(other), busy);
    assert_eq!(scene.destroy(first), Ok(()));
    assert_eq!(scene.destroy(one), busy);
    assert_eq!(scene.destroy(other), Ok(()));
    assert_eq!(
        scene.world.nodes[0].rnic.flows().len(),
        1,
        "flows of the first are gone"
    );
    assert_eq!(scene.destroy(second), Ok(()));
    assert!(scene.world.nodes[0].rnic.flows().is_empty());
    assert_eq!(scene.destroy(one), Ok(()));
    scene.replays();
}

#[test]
fn each_fault_of_a_command_has_its_status() {
    use Status::{InvalidArgument, Malformed, NotFound, NotPermitted};

    let mut scene = Scene::new(2, 8);
    let queues = scene.numbers();
    let good = scene.request(hash::IPV4 | hash::UDP, &queues);
    let with = |change: &dyn Fn(&mut CreateScalingQp)| {
        let mut request = good;
        change(&mut request);
        request
    };
    let Node { rnic, guest } = &mut scene.world.nodes[0];
    let cq = guest.cq(rnic, 4, 0);
    let raw = QpOptions {
        qp_type: QpType::RawPacket,
        ..QpOptions::default()
    };
    let raw = guest.try_qp(rnic, &raw, cq.cqn, cq.cqn).expect("qp").qpn;
    // Objects of another process.
    let (context, pd) = (guest.context, guest.pd);
    guest.start(rnic, ContextKind::User, 64);
    let (other_context, other_pd) = (guest.context, guest.pd);
    (guest.context, guest.pd) = (context, pd);

    let invalid = [0, 3, 65, 128, u32::MAX].map(|entries| {
        let request = with(&|request| request.entries = entries.into());
        (request, InvalidArgument)
    });
    let fields = [
        0,
        1 << 8,
        1 << 31 | hash::IPV4,
        hash::SOURCE_IPV4 | hash::DESTINATION_IPV6,
        hash::IPV4 | hash::SOURCE_TCP | hash::SOURCE_UDP,
    ]
    .map(|fields| {
        let request = with(&|request| request.fields = fields.into());
        (request, InvalidArgument)
    });
    let others = [
        (with(&|request| request.context = 0xfff.into()), NotFound),
        (with(&|request| request.pd = 0xfff.into()), NotFound),
        (with(&|request| request.queues[1] = 0xffff.into()), NotFound),
        (with(&|request| request.queues[1] = 0.into()), NotFound),
        (
            with(&|request| request.queues[1] = raw.into()),
            InvalidArgument,
        ),
        (with(&|request| request.queues[2] = 1.into()), Malformed),
        (with(&|request| request.queues[63] = 1.into()), Malformed),
        (
            with(&|request| request.context = other_context.into()),
            NotPermitted,
        ),
        (with(&|request| request.pd = other_pd.into()), NotPermitted),
        (
            with(&|request| {
                (request.context, request.pd) = (other_context.into(), other_pd.into());
            }),
            NotPermitted,
        ),
    ];
    for (index, (request, status)) in invalid.into_iter().chain(fields).chain(others).enumerate() {
        let refused = scene.create(&request).map_err(|(status, _)| status).err();
        assert_eq!(refused, Some(status), "{index}");
    }
    // A refused request has taken no reference.
    for queue in &queues {
        assert_eq!(scene.destroy(*queue), Ok(()));
    }
    // Neither a queue nor a queue pair of this type is what the other commands expect.
    let queue = scene.queue().qp.qpn;
    assert_eq!(scene.flow(queue), Err((InvalidArgument, Cause::QpType)));
    let scaling = scene
        .create(&scene.request(0, &[queue]))
        .expect("created")
        .qpn
        .get();
    let nested = scene.create(&scene.request(0, &[scaling])).map(|_| ());
    assert_eq!(nested, Err((InvalidArgument, Cause::QpType)));
    for state in QpState::ALL {
        let refused = scene.modify(scaling, *state);
        assert_eq!(refused, Err((InvalidArgument, Cause::QpType)), "{state:?}");
    }
}

/// What a receive queue does not have must not be in the request that creates it.
#[test]
fn a_receive_queue_is_nothing_but_a_receive_queue() {
    use Status::{InvalidArgument, Malformed, NotFound, NotPermitted};

    type Change = fn(&mut CreateQp);
    let mut scene = Scene::new(1, 10);
    let Node { rnic, guest } = &mut scene.world.nodes[0];
    let cq = guest.cq(rnic, 16, 0);
    let ring = RingLayout {
        header_offset: 0.into(),
        entries_offset: 128.into(),
        entries: 16.into(),
        stride: receive_stride(1).into(),
    };
    let arena = guest.arena(ring.end() as usize);
    let (pages, chunks) = guest.page_list(&arena, 0, ring.end() as usize);
    let good = CreateQp {
        context: guest.context.into(),
        pd: guest.pd.into(),
        qp_type: QpType::ReceiveQueue.raw(),
        max_recv_sge: 1.into(),
        recv_cqn: cq.cqn.into(),
        recv_ring: ring,
        pages,
        ..CreateQp::default()
    };
    // Objects of another process.
    let (context, pd) = (guest.context, guest.pd);
    guest.start(rnic, ContextKind::User, 64);
    let foreign = guest.cq(rnic, 4, 0).cqn;
    (guest.context, guest.pd) = (context, pd);

    let changes: [(&str, Change, Status); 16] = [
        ("send_cqn", |qp| qp.send_cqn = qp.recv_cqn, Malformed),
        ("max_send_sge", |qp| qp.max_send_sge = 1.into(), Malformed),
        ("max_inline", |qp| qp.max_inline = 1.into(), Malformed),
        (
            "SIGNAL_ALL",
            |qp| qp.flags = qp_flags::SIGNAL_ALL,
            Malformed,
        ),
        (
            "SHARED_RECEIVE_QUEUE",
            |qp| qp.flags = qp_flags::SHARED_RECEIVE_QUEUE,
            Malformed,
        ),
        (
            "BLOCK_OWN_MULTICAST",
            |qp| qp.flags = qp_flags::BLOCK_OWN_MULTICAST,
            InvalidArgument,
        ),
        ("srqn", |qp| qp.srqn = 1.into(), Malformed),
        ("xrcdn", |qp| qp.xrcdn = 1.into(), Malformed),
        (
            "send ring",
            |qp| qp.send_ring = qp.recv_ring,
            InvalidArgument,
        ),
        (
            "no ring",
            |qp| qp.recv_ring = RingLayout::default(),
            InvalidArgument,
        ),
        (
            "a ring behind the buffer",
            |qp| qp.recv_ring.entries_offset = 4096.into(),
            InvalidArgument,
        ),
        (
            "entries without room for an element",
            |qp| qp.recv_ring.stride = 16.into(),
            InvalidArgument,
        ),
        (
            "too many elements",
            |qp| qp.max_recv_sge = u16::MAX.into(),
            InvalidArgument,
        ),
        ("no queue", |qp| qp.recv_cqn = 0xfff.into(), NotFound),
        ("no domain", |qp| qp.pd = 0xfff.into(), NotFound),
        ("no context", |qp| qp.context = 0xfff.into(), NotFound),
    ];
    let before = rnic.snapshot().qps;
    for (what, change, status) in changes {
        let mut request = good;
        change(&mut request);
        let refused = guest.command(rnic, request).map(|_| ());
        assert_eq!(refused.map_err(|(status, _)| status), Err(status), "{what}");
    }
    let mut request = good;
    request.recv_cqn = foreign.into();
    let refused = guest.command(rnic, request).map(|_| ());
    assert_eq!(refused, Err((NotPermitted, Cause::ContextMismatch)));
    assert_eq!(rnic.snapshot().qps, before);
    guest.command(rnic, good).expect("nothing is wrong");
    assert_eq!(rnic.snapshot().qps, before + 1);
    guest.free(chunks);
    scene.replays();
}

#[test]
fn a_fault_leaves_a_queue_pair_without_states_alone() {
    let mut scene = Scene::new(1, 8);
    let queue = scene.numbers()[0];
    let scaling = scene.scale(hash::IPV4, &[queue]);
    let strike = |scene: &mut Scene, fault: &str, qpn: u32| {
        let fault = format!("{fault} qp={qpn}").parse().expect("valid");
        let world = &mut scene.world;
        let mut faults = world.nodes[0].rnic.faults_mut();
        faults.arm(fault, world.now).expect("armed");
        world.run(Duration::from_millis(1));
        let rnic = &mut world.nodes[0].rnic;
        let events: Vec<_> = std::iter::from_fn(|| rnic.next_async_event())
            .map(|event| event.number.get())
            .collect();
        (events, world.state(0, qpn))
    };
    for fault in ["event-qp-fatal", "qp-fatal"] {
        let struck = strike(&mut scene, fault, scaling);
        assert_eq!(struck, (vec![], QpState::Reset), "{fault}");
    }
    let struck = strike(&mut scene, "event-qp-fatal", queue);
    assert_eq!(struck, (vec![queue], QpState::ReadyToReceive));
    let struck = strike(&mut scene, "qp-fatal", queue);
    assert_eq!(struck, (vec![queue], QpState::Error));
}

#[test]
fn without_the_feature_there_is_nothing_of_it() {
    for change in [
        |features: &mut Features| features.receive_scaling = false,
        |features: &mut Features| features.raw_packets = false,
    ] {
        let mut config = RnicConfig::default();
        change(&mut config.features);
        let world = World::recorded(&[config], 512, 9);
        let mut scene = Scene {
            world,
            queues: Vec::new(),
        };
        let refused = scene.create(&scene.request(0, &[2])).map(|_| ());
        assert_eq!(refused, Err((Status::Unsupported, Cause::CommandCode)));
        let Node { rnic, guest } = &mut scene.world.nodes[0];
        let limits = guest.command(rnic, QueryDevice {}).expect("limits");
        assert_eq!(limits.max_scaling_entries.get(), 0);
        let cq = guest.cq(rnic, 4, 0);
        let options = QpOptions {
            qp_type: QpType::ReceiveQueue,
            ..QpOptions::default()
        };
        let refused = guest.try_qp(rnic, &options, 0, cq.cqn).err();
        assert_eq!(refused, Some((Status::Unsupported, Cause::QpTypeAbsent)));
    }
}
