// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Frames of a hostile network for a device with queue pairs of each kind.
//!
//! The device of node 0 is attacked. Its peer, node 1, and the whole network send anything: frames with almost valid
//! fields, frames with changed bytes and corrected checksums, and plain bytes. Meanwhile, node 0 posts work and time
//! passes. At the end, each request that node 0 posted must have completed exactly once and in order, memory to which
//! no rights were granted must be unchanged and must not have leaked, and a connection of the same device with node 2
//! must still work.

use crate::{
    innocent::{check_connection, check_no_secret, secret},
    input::Input,
    objects::Objects,
};
use std::{num::NonZeroU64, time::Duration};
use vrnic_engine::{
    QpSnapshot, RateLimit, RnicConfig, Segment, Segmentation,
    psn::Psn,
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, Flush, NakCode, Path, Payload, Position, Reth,
        SendTail, Service, Syndrome,
    },
    testing::{
        Completion, Connection, Cq, Faults, GuestView, Mr, Node, Qp, QpOptions, Send, Wire, World,
        gid_of,
    },
};
use vrnic_roce::{MAX_FRAME, encode, parse, testing::seal};
use vrnic_wire::{
    command::{CreatePd, ModifyQp, MwType},
    memory::access,
    port::{Mtu, NO_VLAN},
    qp::{GSI_QPN, QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, SendOpcode, placement},
};

/// Length of the regions of a connection in bytes.
const REGION: usize = 20_000;
/// Number of entries of a queue.
const ENTRIES: u32 = 16;
/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 200;
/// Q_Key of the datagram queue pair.
const QKEY: u32 = 0x1111_1111;

fn frame_of(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    check_no_secret(&frame);
    frame
}

fn segment_of(frame: &[u8]) -> Option<Segment<'_>> {
    parse(frame).ok()
}

/// A queue pair of node 0 and what was posted to it.
struct Posted {
    qp: Qp,
    send_cq: Cq,
    recv_cq: Cq,
    /// `wr_id` of each send, and whether it requested a completion.
    sends: Vec<(u64, bool)>,
    /// `wr_id`s of the receives.
    receives: Vec<u64>,
    sent: Vec<Completion>,
    received: Vec<Completion>,
}

impl Posted {
    fn new(qp: Qp, send_cq: Cq, recv_cq: Cq) -> Self {
        Self {
            qp,
            send_cq,
            recv_cq,
            sends: Vec::new(),
            receives: Vec::new(),
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn poll(&mut self) {
        self.sent.extend(self.send_cq.drain());
        self.received.extend(self.recv_cq.drain());
    }

    /// Checks that each request has completed once and in order, now that the queue pair is in the error state.
    fn check(&self) {
        let mut done = self.sent.iter().peekable();
        for &(wr_id, signaled) in &self.sends {
            let found = done.next_if(|done| done.wr_id == wr_id).is_some();
            assert!(found || !signaled, "send {wr_id} was lost");
        }
        assert!(done.next().is_none(), "a send completes twice");
        let received: Vec<u64> = self.received.iter().map(|done| done.wr_id).collect();
        assert_eq!(received, self.receives, "each receive completes once");
    }
}

/// Everything on which an input acts.
struct Scene {
    world: World,
    /// The queue pairs: RC, UD, GSI, UC.
    posted: [Posted; 4],
    /// Both ends of the reliable connection; only the peer's queues are used.
    c: Connection,
    /// A region without rights for the network, and one in another protection domain.
    private: [Mr; 2],
    /// Keys that a frame may contain, each with the address at which the memory begins.
    keys: Vec<(u32, u64)>,
    innocent: Connection,
    objects: Objects,
    path: Path,
    last_frame: Vec<u8>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new(&mut input);
    input.operations(MAX_OPERATIONS, |input| {
        scene.operate(input);
        scene.posted.iter_mut().for_each(Posted::poll);
    });
    scene.end();
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let settings = input.take::<u8>();
        let config = RnicConfig {
            segmentation: if settings & 1 == 0 {
                Segmentation::PathMtu
            } else {
                Segmentation::Local
            },
            ..RnicConfig::default()
        };
        let mut world = World::new(3, 96, &config, 1);
        // Only frames with the largest MTU fit on a wire.
        if settings & 1 == 0 {
            world.wire = Some(Wire {
                encode: frame_of,
                parse: segment_of,
            });
        }
        let mtu =
            [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu4096][usize::from(settings >> 1 & 3)];
        let limit = settings >> 3 & 3;
        let options = QpOptions {
            entries: ENTRIES,
            ..QpOptions::default()
        };
        let innocent = world.connect([0, 2], &options, 1000, |_, _| {});
        let c = world.connect([0, 1], &options, REGION, |_, attributes| {
            attributes.path_mtu = mtu.raw();
            attributes.rnr_retry = 2;
            attributes.retry_count = 2;
            attributes.max_dest_rd_atomic = 1 + limit;
            attributes.max_rd_atomic = 1 + limit;
        });
        let options = QpOptions {
            qp_type: QpType::UnreliableConnection,
            ..options
        };
        let unreliable = world.connect([0, 1], &options, 4096, |_, attributes| {
            attributes.path_mtu = mtu.raw();
        });
        let mut objects = Objects::of(&world.nodes[0].guest);
        let pd = world.nodes[0].guest.pd;
        objects.add_side(pd, &c, 0);
        objects.add_side(pd, &unreliable, 0);
        objects.add_side(pd, &innocent, 0);
        let datagram = datagram_qp(&mut world, &mut objects, QpType::UnreliableDatagram);
        let services = datagram_qp(&mut world, &mut objects, QpType::Gsi);

        let Node { rnic, guest } = &mut world.nodes[0];
        let local = guest.mr(rnic, 4096, access::LOCAL_WRITE);
        let context = guest.context.into();
        let request = CreatePd {
            context,
            reserved: 0.into(),
        };
        let other_pd = guest.command(rnic, request).expect("pd").pd.get();
        let own_pd = std::mem::replace(&mut guest.pd, other_pd);
        let foreign = guest.full_mr(rnic, 4096);
        guest.pd = own_pd;
        let window = guest.mw(rnic, MwType::Type2);
        objects.pds.push(other_pd);
        objects
            .mrs
            .extend([(pd, local.key), (other_pd, foreign.key)]);
        objects.mws.push((pd, window.key));
        for mr in [&local, &foreign] {
            mr.arena.put(0, &secret(4096));
        }
        let keys = vec![
            (c.mrs[0].key, c.mrs[0].iova),
            (local.key, local.iova),
            (foreign.key, foreign.iova),
            (window.key, 0),
            (c.mrs[0].key ^ 1, c.mrs[0].iova),
            (0, 0),
        ];
        let [connection, unreliable] = [&c, &unreliable].map(|c| {
            let (send_cq, recv_cq) = (c.send_cqs[0].clone(), c.recv_cqs[0].clone());
            Posted::new(c.qps[0].clone(), send_cq, recv_cq)
        });
        let path = Path {
            source: gid_of(1),
            destination: gid_of(0),
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 0],
            vlan: NO_VLAN,
            source_port: 0xc000,
            ..Path::default()
        };
        Self {
            world,
            posted: [connection, datagram, services, unreliable],
            c,
            private: [local, foreign],
            keys,
            innocent,
            objects,
            path,
            last_frame: Vec::new(),
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=6 => {
                let payload = vec![0x5a; MAX_FRAME];
                let segment = self.forge(input, &payload);
                self.arrive(segment);
            }
            7 | 8 => self.change_frame(input),
            9 => {
                let bytes = input.bytes(255);
                self.arrive_bytes(bytes);
            }
            10 => self.post_send(input),
            11 => self.post_datagram(input),
            12 => self.post_receive(input),
            13 => self.peer_acts(input),
            14 => self.control(input),
            _ => {
                self.world.faults = Faults {
                    drop: u32::from(input.take::<u8>()) * 4,
                    ..Faults::default()
                };
                let time = Duration::from_micros(1 << input.below(17));
                self.world.run(time);
            }
        }
        self.world.run(Duration::from_micros(20));
    }

    /// Returns the state of a queue pair of node 0.
    fn snapshot(&self, qpn: u32) -> Option<QpSnapshot> {
        let node = &self.world.nodes[0];
        let mut places = (0..).map_while(|place| node.rnic.qp_page(place, 1, &node.guest.view));
        places.find_map(|page| page.into_iter().find(|qp| qp.number == qpn))
    }

    /// Returns an almost valid segment.
    fn forge<'p>(&self, input: &mut Input<'_>, bytes: &'p [u8]) -> Segment<'p> {
        let body = self.body(input);
        let bits = input.take::<u8>();
        let qpn = match bits & 7 {
            0..=4 if !matches!(body, Body::Datagram { .. }) => self.c.qps[0].qpn,
            0..=3 => self.posted[1].qp.qpn,
            5 if !matches!(body, Body::Datagram { .. }) => self.posted[3].qp.qpn,
            4 | 5 => GSI_QPN,
            6 => self.c.qps[0].qpn,
            _ => input.take(),
        };
        let base = self.snapshot(qpn).map_or(0, |qp| {
            if body.is_response() {
                qp.unacknowledged_psn
            } else {
                qp.receive_psn
            }
        });
        let psn = match bits >> 3 & 3 {
            0 | 1 => base,
            2 => base.wrapping_add_signed(input.take::<i8>().into()),
            _ => input.take(),
        };
        let mtu = self.snapshot(qpn).map_or(1024, |qp| qp.mtu) as usize;
        let length = match input.below(8) {
            0 | 1 => 0,
            2 | 3 => mtu,
            4 => mtu + 1,
            5 | 6 => usize::from(input.take::<u8>()),
            _ => usize::from(input.take::<u16>()),
        };
        let limit = if self.world.wire.is_some() {
            4096
        } else {
            70_000
        };
        let payload = match length.min(limit) {
            0 => Payload::Empty,
            length if length <= bytes.len() => Payload::Frame(&bytes[..length]),
            length => Payload::Bytes(vec![0x5a; length]),
        };
        let mut path = self.path;
        if bits & 0x80 != 0 {
            path.traffic_class = input.take();
            path.service_level = input.take();
            let who = usize::from(input.take::<u8>() & 3);
            path.source = gid_of(who);
        }
        let may_be_unreliable = match body {
            Body::Send { tail, .. } => !matches!(tail, SendTail::Invalidate(_)),
            Body::Write { .. } => true,
            _ => false,
        };
        Segment {
            service: if may_be_unreliable && (qpn == self.posted[3].qp.qpn) != (bits & 0xe0 == 0x60)
            {
                Service::Unreliable
            } else {
                Service::Reliable
            },
            path,
            source_qpn: 0,
            destination_qpn: qpn & 0xff_ffff,
            pkey: if bits & 0xe0 == 0xe0 {
                input.take()
            } else {
                0xffff
            },
            psn: Psn::new(psn),
            solicited: bits & 0x20 != 0,
            ack_request: bits & 0x40 != 0,
            migrated: bits & 0x10 == 0,
            body,
            payload,
            checksums_ok: false,
            touched: vrnic_engine::segment::Touched::NOT,
        }
    }

    fn body(&self, input: &mut Input<'_>) -> Body {
        const POSITIONS: [Position; 4] = [
            Position::Only,
            Position::First,
            Position::Middle,
            Position::Last,
        ];
        let position = input.pick(&POSITIONS);
        let how = input.take::<u8>();
        let immediate = (how & 1 != 0 && position.ends()).then(|| input.take());
        match how >> 1 & 15 {
            0 | 1 => Body::Send {
                position,
                tail: match (position.ends(), immediate, how & 0x20 != 0) {
                    (true, _, true) => SendTail::Invalidate(self.key(input).0),
                    (true, Some(immediate), _) => SendTail::Immediate(immediate),
                    _ => SendTail::Plain,
                },
            },
            2..=4 => Body::Write {
                position,
                reth: position.begins().then(|| self.reth(input)),
                immediate,
            },
            5 => Body::ReadRequest(self.reth(input)),
            7 | 8 => {
                let reth = self.reth(input);
                Body::AtomicRequest(AtomicRequest {
                    kind: if how & 1 == 0 {
                        AtomicKind::CompareSwap
                    } else {
                        AtomicKind::FetchAdd
                    },
                    address: if how & 0x20 == 0 {
                        reth.address & !7
                    } else {
                        reth.address
                    },
                    rkey: reth.rkey,
                    compare_add: input.take(),
                    swap: input.take(),
                })
            }
            9 => Body::ReadResponse {
                position,
                aeth: (position != Position::Middle).then(|| aeth(input)),
            },
            11 | 12 => Body::Acknowledge(aeth(input)),
            13 => Body::AtomicAcknowledge {
                aeth: aeth(input),
                original: input.take(),
            },
            14 => Body::CongestionNotification,
            6 => Body::AtomicWrite(self.reth(input)),
            10 => {
                let kind = input.take::<u8>();
                Body::FlushRequest(Flush {
                    remote: self.reth(input),
                    placement: kind & 0xf,
                    selectivity: kind >> 4 & 3,
                })
            }
            _ => Body::Datagram {
                qkey: match how >> 5 & 3 {
                    0 | 1 => QKEY,
                    2 => 0x8001_0000,
                    _ => input.take(),
                },
                source_qpn: input.take::<u32>() & 0xff_ffff,
                immediate,
            },
        }
    }

    fn key(&self, input: &mut Input<'_>) -> (u32, u64) {
        input.pick(&self.keys)
    }

    fn reth(&self, input: &mut Input<'_>) -> Reth {
        let (rkey, start) = self.key(input);
        let how = input.take::<u8>();
        let address = match how & 7 {
            0..=3 => start,
            4 => start.wrapping_add_signed(input.take::<i16>().into()),
            5 => start + 4096 * u64::from(how >> 5),
            6 => input.take(),
            _ => u64::MAX - u64::from(input.take::<u8>()),
        };
        let length = match how >> 3 & 7 {
            0 => 0,
            1 | 2 => input.take::<u8>().into(),
            3 | 4 => input.take::<u16>().into(),
            5 => REGION as u32,
            6 => {
                self.snapshot(self.c.qps[0].qpn).map_or(256, |qp| qp.mtu)
                    * (1 + u32::from(how >> 6))
            }
            _ => input.take(),
        };
        Reth {
            address,
            rkey,
            length,
        }
    }

    /// Delivers a segment to node 0, as a frame if there is a wire.
    fn arrive(&mut self, segment: Segment<'_>) {
        if self.world.wire.is_some() {
            let mut frame = vec![0; MAX_FRAME];
            let view = &self.world.nodes[1].guest.view;
            if let Ok(length) = encode(&segment, view, &mut frame) {
                frame.truncate(length);
                self.arrive_bytes(&frame);
                self.last_frame = frame;
            }
        } else if segment.destination_qpn != self.innocent.qps[0].qpn {
            self.world.deliver(segment);
        }
    }

    /// Delivers bytes to node 0.
    fn arrive_bytes(&mut self, frame: &[u8]) {
        let Ok(segment) = parse(frame) else {
            return;
        };
        // A connection cannot be protected from a network that knows everything about it.
        let spoofed = segment.destination_qpn == self.innocent.qps[0].qpn;
        if segment.path.destination == gid_of(0) && !spoofed {
            self.world.deliver(segment);
        }
    }

    /// Delivers the last frame again, with changed bytes.
    fn change_frame(&mut self, input: &mut Input<'_>) {
        let mut frame = std::mem::take(&mut self.last_frame);
        for _ in 0..=input.below(4) {
            let at = usize::from(input.take::<u8>());
            let value = input.take();
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        match input.below(4) {
            0 => {}
            1 => {
                let length = usize::from(input.take::<u16>()) % (frame.len() + 5);
                frame.resize(length, 0);
                seal(&mut frame);
            }
            _ => seal(&mut frame),
        }
        self.arrive_bytes(&frame);
        self.last_frame = frame;
    }

    /// Posts a send to one of node 0's connections.
    fn post_send(&mut self, input: &mut Input<'_>) {
        const OPCODES: [SendOpcode; 10] = [
            SendOpcode::Write,
            SendOpcode::Read,
            SendOpcode::Send,
            SendOpcode::CompareSwap,
            SendOpcode::FetchAdd,
            SendOpcode::WriteWithImmediate,
            SendOpcode::SendWithImmediate,
            SendOpcode::SendWithInvalidate,
            SendOpcode::Flush,
            SendOpcode::AtomicWrite,
        ];
        let opcode = input.pick(&OPCODES);
        let flags = input.take::<u8>();
        let remote = self.c.mrs[1].clone();
        let posted = &mut self.posted[if flags & 0x10 == 0 { 0 } else { 3 }];
        let wr_id = posted.sends.len() as u64;
        let length = match opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => 8,
            _ => usize::from(input.take::<u16>()) % REGION,
        };
        let mut send = Send::new(wr_id, opcode).flags(flags & 6);
        if flags & 1 != 0 {
            send = send.unsignaled();
        }
        send = match opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
                send.atomic(remote.iova, remote.key, 1, 2)
            }
            SendOpcode::Send | SendOpcode::SendWithImmediate => send.immediate(5),
            SendOpcode::SendWithInvalidate => send.immediate(remote.key),
            SendOpcode::AtomicWrite => send.atomic(remote.iova, remote.key, 0, 2),
            SendOpcode::Flush => {
                let how_far = if length.is_multiple_of(2) {
                    placement::GLOBAL
                } else {
                    placement::ALL
                };
                send.flush(remote.iova, remote.key, 1, how_far)
            }
            _ => send.rdma(remote.iova, remote.key),
        };
        let bare = matches!(opcode, SendOpcode::Flush | SendOpcode::AtomicWrite);
        send = if bare {
            send
        } else if flags & 8 != 0 && length <= 128 && opcode == SendOpcode::Write {
            send.inline(&[1; 128][..length])
        } else {
            send.element(self.c.mrs[0].sge(0, length))
        };
        let signaled = flags & 1 == 0;
        let Node { rnic, guest } = &mut self.world.nodes[0];
        if guest.post_send(rnic, &mut posted.qp, &send) {
            posted.sends.push((wr_id, signaled));
        }
    }

    /// Posts a datagram on node 0.
    fn post_datagram(&mut self, input: &mut Input<'_>) {
        let which = 1 + input.below(2);
        let address = AddressVector {
            dgid: gid_of(input.below(3)),
            ..AddressVector::default()
        };
        let qpn = if input.take() {
            self.posted[1].qp.qpn
        } else {
            GSI_QPN
        };
        let posted = &mut self.posted[which];
        let wr_id = posted.sends.len() as u64;
        let length = usize::from(input.take::<u16>()) % 5000;
        let send = Send::new(wr_id, SendOpcode::Send)
            .element(self.c.mrs[0].sge(0, length))
            .datagram(address, qpn, input.pick(&[QKEY, 0x8001_0000, 0]));
        let Node { rnic, guest } = &mut self.world.nodes[0];
        if guest.post_send(rnic, &mut posted.qp, &send) {
            posted.sends.push((wr_id, true));
        }
    }

    /// Posts a receive on node 0.
    fn post_receive(&mut self, input: &mut Input<'_>) {
        let which = input.below(4);
        let posted = &mut self.posted[which];
        let wr_id = posted.receives.len() as u64;
        let sges: Vec<_> = (0..input.below(5))
            .map(|_| self.c.mrs[0].sge(input.below(256), input.take::<u16>().into()))
            .collect();
        let Node { rnic, guest } = &mut self.world.nodes[0];
        if guest.post_receive(rnic, &mut posted.qp, wr_id, &sges) {
            posted.receives.push(wr_id);
        }
    }

    /// Lets the peer act according to the protocol.
    fn peer_acts(&mut self, input: &mut Input<'_>) {
        let opcode = input.pick(&[
            SendOpcode::Write,
            SendOpcode::Read,
            SendOpcode::Send,
            SendOpcode::FetchAdd,
            SendOpcode::WriteWithImmediate,
        ]);
        let length = match opcode {
            SendOpcode::FetchAdd => 8,
            _ => usize::from(input.take::<u16>()) % REGION,
        };
        let (key, address) = self.key(input);
        let send = Send::new(1, opcode).element(self.c.mrs[1].sge(0, length));
        let send = match opcode {
            SendOpcode::FetchAdd => send.atomic(address, key, 1, 0),
            SendOpcode::Send => send,
            _ => send.rdma(address, key),
        };
        let Node { rnic, guest } = &mut self.world.nodes[1];
        guest.post_send(rnic, &mut self.c.qps[1], &send);
        if input.take() {
            let sge = self.c.mrs[1].sge(0, 100);
            guest.post_receive(rnic, &mut self.c.qps[1], 1, &[sge]);
        }
        self.c.send_cqs[1].drain();
        self.c.recv_cqs[1].drain();
    }

    /// Lets the driver of node 0 do something.
    fn control(&mut self, input: &mut Input<'_>) {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let which = input.below(4);
        let qpn = self.posted[which].qp.qpn.into();
        let mut modify = |state: QpState| {
            let attributes = QpAttributes {
                state: state.raw(),
                mask: attribute::STATE.into(),
                ..QpAttributes::default()
            };
            let reserved = 0.into();
            let _ = guest.command(
                rnic,
                ModifyQp {
                    qpn,
                    reserved,
                    attributes,
                },
            );
        };
        match input.below(8) {
            0 => modify(QpState::SendQueueDrain),
            1 => rnic.set_rate_limit(RateLimit {
                bytes: NonZeroU64::new(input.below(4) as u64),
                requests: NonZeroU64::new(input.below(4) as u64),
            }),
            2 | 3 => modify(QpState::ReadyToSend),
            4 => modify(QpState::Error),
            5 => rnic.set_link(false),
            6 => rnic.set_link(true),
            _ => while rnic.next_async_event().is_some() {},
        }
    }

    fn end(mut self) {
        self.world.faults = Faults::default();
        self.world.nodes[0].rnic.set_link(true);
        self.world.nodes[0]
            .rnic
            .set_rate_limit(RateLimit::default());
        self.world.run(Duration::from_millis(5));
        for posted in &mut self.posted {
            posted.poll();
        }
        for index in 0..self.posted.len() {
            let qpn = self.posted[index].qp.qpn;
            let attributes = QpAttributes {
                state: QpState::Error.raw(),
                mask: attribute::STATE.into(),
                ..QpAttributes::default()
            };
            self.world.modify(0, qpn, attributes);
            self.world.run(Duration::from_millis(5));
            self.posted[index].poll();
            self.posted[index].check();
        }
        for mr in &self.private {
            assert!(
                mr.arena.get(0, 4096) == secret(4096),
                "private memory changed"
            );
        }
        check_connection(&mut self.world, &mut self.innocent);
        let Node { rnic, guest } = &mut self.world.nodes[0];
        self.objects.destroy(guest, rnic);
    }
}

fn datagram_qp(world: &mut World, objects: &mut Objects, qp_type: QpType) -> Posted {
    let Node { rnic, guest } = &mut world.nodes[0];
    let (send_cq, recv_cq) = (
        guest.cq(rnic, 2 * ENTRIES, 0),
        guest.cq(rnic, 2 * ENTRIES, 1),
    );
    let options = QpOptions {
        qp_type,
        entries: ENTRIES,
        ..QpOptions::default()
    };
    let qp = guest
        .try_qp(rnic, &options, send_cq.cqn, recv_cq.cqn)
        .expect("qp");
    objects.qps.push(qp.qpn);
    objects.cqs.extend([send_cq.cqn, recv_cq.cqn]);
    let attributes = QpAttributes {
        port: 1,
        qkey: QKEY.into(),
        ..QpAttributes::default()
    };
    world.bring_up(0, qp.qpn, attributes, qp_type);
    Posted::new(qp, send_cq, recv_cq)
}

fn aeth(input: &mut Input<'_>) -> Aeth {
    const NAKS: [NakCode; 4] = [
        NakCode::SequenceError,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperation,
    ];
    let how = input.take::<u8>();
    let syndrome = match how & 7 {
        0..=3 => Syndrome::Ack { credits: how >> 3 },
        4 | 5 => Syndrome::RnrNak { timer: how >> 3 },
        _ => Syndrome::Nak(NAKS[usize::from(how >> 3 & 3)]),
    };
    Aeth {
        syndrome,
        msn: input.take::<u16>().into(),
    }
}
