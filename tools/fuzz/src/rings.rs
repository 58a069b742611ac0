// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A hostile process: garbage in rings, in the notify area and in doorbells.
//!
//! The process has its own context: connections of all kinds to itself, one of them with a shared receive queue, one
//! connection to another guest, and queue pairs for datagrams and for raw packets; also regions, windows, and keys of
//! others that it must not use. It writes almost valid work requests, plain garbage and invalid indices, and rings
//! everyone's doorbells. A connection of the same guest's driver must not be affected. Memory of another protection
//! domain must not change or appear in memory that the process can read.

use crate::{
    commands::integrity_target,
    innocent::{check_connection, check_no_secret, secret},
    input::Input,
    objects::Objects,
};
use etherparse::PacketBuilder;
use std::time::Duration;
use vrnic_engine::{
    RnicConfig, Segmentation,
    testing::{Arena, Connection, Faults, Mr, Node, Qp, QpOptions, Ring, Send, World, gid_of},
};
use vrnic_wire::{
    command::{
        AttachMulticast, ContextKind, CreateContext, CreateFlow, CreatePd, CreateScalingQp,
        FlowType, HASH_KEY_LENGTH, MAX_SCALING_ENTRIES, ModifyQp, ModifySrq, MwType, hash_fields,
        qp_flags,
    },
    memory::{LOCAL_DMA_KEY, NULL_KEY, access},
    notify::{self, SlotBits},
    port::Mtu,
    qp::{MULTICAST_QPN, QpAttributes, QpState, QpType, attribute},
    ring::offset,
    work::{AddressVector, BindTarget, ReceiveHeader, RegisterTarget, SendOpcode, Sge},
};
use zerocopy::IntoBytes;

/// Length of a region of the process in bytes.
const REGION: usize = 20_000;
/// Length of a region that does not belong to the process, in bytes.
const PRIVATE: usize = 4096;
/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 200;
/// Number of doorbell slots of the context.
const SLOTS: u32 = 64;

/// A queue pair of the process.
struct OwnQp {
    qp: Qp,
    qp_type: QpType,
    attributes: QpAttributes,
    /// Number of entries written to its send and its receive queue.
    written: [u32; 2],
}

/// Everything on which an input acts.
struct Scene {
    world: World,
    area: Arena,
    /// Doorbell pages: that of the process and that of the driver.
    pages: [u32; 2],
    qps: Vec<OwnQp>,
    /// Shared receive queues: an ordinary one, and one of extended connections.
    srqns: [u32; 2],
    /// Rings of the process's completion queues.
    cqs: Vec<Ring>,
    /// Keys that work requests may contain, each with the address at which the memory begins.
    keys: Vec<(u32, u64)>,
    own: Vec<Mr>,
    private: Vec<Mr>,
    /// The connection to the other guest.
    peer: Connection,
    innocent: Connection,
    objects: Objects,
}

/// The multicast group of the process's datagram queue pair.
const GROUP: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 1, 1];

/// Returns the header of a send in segments, which may have a few wrong bytes or end early.
fn segment_header(input: &mut Input<'_>) -> Vec<u8> {
    let mut header = Vec::new();
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
    let builder = if input.take() {
        builder.ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
    } else {
        builder.ipv6([1; 16], [2; 16], 64)
    };
    let tcp = builder.tcp(1, 2, input.take(), 4);
    tcp.write(&mut header, &[]).expect("a header");
    for _ in 0..input.below(4) {
        let at = input.below(header.len());
        header[at] = input.take();
    }
    let length = match input.below(8) {
        0 => input.below(header.len()),
        _ => header.len(),
    };
    header.truncate(length);
    header
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new(&mut input);
    input.operations(MAX_OPERATIONS, |input| {
        scene.operate(input);
        scene.world.run(Duration::from_micros(20));
    });
    scene.end();
}

/// Moves a queue pair from RESET to the last state that its type has without an error.
fn ready(world: &mut World, qpn: u32, attributes: QpAttributes, qp_type: QpType) {
    match qp_type {
        QpType::ReceiveQueue => {
            world.climb(0, qpn, attributes, qp_type, &[QpState::ReadyToReceive]);
        }
        _ => world.bring_up(0, qpn, attributes, qp_type),
    }
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let config = RnicConfig {
            segmentation: if input.take() {
                Segmentation::PathMtu
            } else {
                Segmentation::Local
            },
            ..RnicConfig::default()
        };
        let mut world = World::new(3, 288, &config, 3);
        let options = QpOptions {
            entries: 16,
            ..QpOptions::default()
        };
        // The driver's own connection, and memory in its protection domain.
        let innocent = world.connect([0, 2], &options, 1000, |_, _| {});
        let Node { rnic, guest } = &mut world.nodes[0];
        let mut objects = Objects::of(guest);
        let driver = (guest.context, guest.pd, guest.page);
        objects.add_side(driver.1, &innocent, 0);
        let drivers = guest.full_mr(rnic, PRIVATE);
        objects.mrs.push((driver.1, drivers.key));
        let fast = guest.fast_mr(rnic, 4);
        objects.mrs.push((driver.1, fast.key));

        // The process.
        let area = guest.arena(notify::area_length(SLOTS));
        let (list, chunks) = guest.page_list(&area, 0, notify::area_length(SLOTS));
        let request = CreateContext {
            kind: ContextKind::User.raw(),
            slots: SLOTS.into(),
            area: list,
            ..CreateContext::default()
        };
        let made = guest.command(rnic, request).expect("context");
        guest.free(chunks);
        let context = made.context;
        objects.contexts.push(context.get());
        let request = CreatePd {
            context,
            reserved: 0.into(),
        };
        let [pd, other] = [(); 2].map(|()| guest.command(rnic, request).expect("pd").pd.get());
        objects.pds.extend([pd, other]);
        guest.context = context.get();
        guest.pd = other;
        // Two processes may share a context, as threads of libraries do; their protection domains isolate them.
        let others = guest.full_mr(rnic, PRIVATE);
        guest.pd = pd;
        objects.mrs.push((other, others.key));
        let local = guest.mr(rnic, REGION, access::LOCAL_WRITE | access::MW_BIND);
        let bindable = guest.mr(rnic, REGION, access::QUEUE_PAIR | access::MW_BIND);
        objects.mrs.extend([(pd, local.key), (pd, bindable.key)]);
        let windows = [MwType::Type1, MwType::Type2].map(|mw_type| guest.mw(rnic, mw_type));
        objects
            .mws
            .extend(windows.iter().map(|window| (pd, window.key)));
        let change = |_: usize, attributes: &mut QpAttributes| {
            attributes.path_mtu = Mtu::Mtu512.raw();
            attributes.rnr_retry = 1;
            attributes.retry_count = 1;
        };
        let loopback = world.connect([0, 0], &options, REGION, change);
        objects.add_side(pd, &loopback, 0);
        objects.add_side(pd, &loopback, 1);
        let unreliable = QpOptions {
            qp_type: QpType::UnreliableConnection,
            ..options
        };
        let unreliable = world.connect([0, 0], &unreliable, REGION, change);
        objects.add_side(pd, &unreliable, 0);
        objects.add_side(pd, &unreliable, 1);
        let Node { rnic, guest } = &mut world.nodes[0];
        let srq = guest.try_srq(rnic, 16, 4, 2).expect("srq");
        objects.srqs.push(srq.srqn);
        let sharing = QpOptions {
            srqn: Some(srq.srqn),
            ..options
        };
        let sharing = world.connect([0, 0], &sharing, REGION, change);
        objects.add_side(pd, &sharing, 0);
        objects.add_side(pd, &sharing, 1);
        let peer = world.connect([0, 1], &options, REGION, change);
        objects.add_side(pd, &peer, 0);
        let (reliable, datagrams) = (options.qp_type, QpType::UnreliableDatagram);
        let connected = [
            (&loopback, 0, reliable),
            (&loopback, 1, reliable),
            (&peer, 0, reliable),
            (&unreliable, 0, QpType::UnreliableConnection),
            (&unreliable, 1, QpType::UnreliableConnection),
        ];
        let own_qp = |(c, side, qp_type): (&Connection, usize, QpType)| {
            let mut attributes = World::attributes(c.nodes[1 - side], c.qps[1 - side].qpn);
            change(side, &mut attributes);
            OwnQp {
                qp: c.qps[side].clone(),
                qp_type,
                attributes,
                written: [0; 2],
            }
        };
        let mut qps: Vec<OwnQp> = connected.into_iter().map(own_qp).collect();
        let Node { rnic, guest } = &mut world.nodes[0];
        let cq = guest.cq(rnic, 32, 2);
        let options = QpOptions {
            qp_type: datagrams,
            ..options
        };
        let qp = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
        let options = QpOptions {
            qp_type: QpType::RawPacket,
            flags: qp_flags::STRIP_VLAN | qp_flags::APPEND_FCS,
            ..options
        };
        let raw = guest.try_qp(rnic, &options, cq.cqn, cq.cqn).expect("qp");
        let options = QpOptions {
            qp_type: QpType::ReceiveQueue,
            ..options
        };
        let queue = guest.try_qp(rnic, &options, 0, cq.cqn).expect("queue");
        let mut queues = [0.into(); MAX_SCALING_ENTRIES];
        queues[..2].fill(queue.qpn.into());
        let scaling = CreateScalingQp {
            context,
            pd: pd.into(),
            fields: (hash_fields::IPV4 | hash_fields::TCP).into(),
            entries: 2.into(),
            key: [0x5a; HASH_KEY_LENGTH],
            queues,
        };
        let scaling = guest.command(rnic, scaling).expect("qp").qpn;
        let xrcdn = guest.xrcd(rnic);
        let xrc_srq = guest
            .try_xrc_srq(rnic, (16, 4), xrcdn, cq.cqn)
            .expect("srq");
        let extended = [QpType::XrcInitiator, QpType::XrcTarget].map(|qp_type| {
            let options = QpOptions {
                qp_type,
                xrcdn: if qp_type == QpType::XrcTarget {
                    xrcdn
                } else {
                    0
                },
                flags: 0,
                ..options
            };
            let mut qp = guest.try_qp(rnic, &options, cq.cqn, 0).expect("qp");
            qp.rq = xrc_srq.ring.clone();
            (qp, qp_type)
        });
        objects.cqs.push(cq.cqn);
        objects
            .qps
            .extend([qp.qpn, raw.qpn, queue.qpn, scaling.get()]);
        objects.qps.extend(extended.iter().map(|(qp, _)| qp.qpn));
        objects.srqs.push(xrc_srq.srqn);
        objects.xrcds.push(xrcdn);
        (guest.context, guest.pd, _) = driver;
        let attributes = QpAttributes {
            port: 1,
            qkey: 1.into(),
            ..QpAttributes::default()
        };
        world.bring_up(0, qp.qpn, attributes, datagrams);
        world.bring_up(0, raw.qpn, attributes, QpType::RawPacket);
        ready(&mut world, queue.qpn, attributes, QpType::ReceiveQueue);
        let numbers = extended.each_ref().map(|(qp, _)| qp.qpn);
        let extended = [0, 1].map(|side| {
            let (qp, qp_type) = extended[side].clone();
            let mut attributes = World::attributes(0, numbers[1 - side]);
            change(side, &mut attributes);
            world.bring_up(0, qp.qpn, attributes, qp_type);
            OwnQp {
                qp,
                qp_type,
                attributes,
                written: [0; 2],
            }
        });
        let Node { rnic, guest } = &mut world.nodes[0];
        let attach = AttachMulticast {
            qpn: qp.qpn.into(),
            gid: GROUP,
            ..AttachMulticast::default()
        };
        guest.command(rnic, attach).expect("attached");
        for qpn in [raw.qpn.into(), scaling] {
            let flow = CreateFlow {
                qpn,
                flow_type: FlowType::AllDefault.raw(),
                port: 1,
                ..CreateFlow::default()
            };
            guest.command(rnic, flow).expect("flow");
        }
        for (qp, qp_type) in [
            (qp, datagrams),
            (raw, QpType::RawPacket),
            (queue, QpType::ReceiveQueue),
        ] {
            qps.push(OwnQp {
                qp,
                qp_type,
                attributes,
                written: [0; 2],
            });
        }
        qps.extend(extended);
        for side in 0..2 {
            let mut own = own_qp((&sharing, side, reliable));
            own.qp.rq = srq.ring.clone();
            qps.push(own);
        }

        let private = vec![drivers, others];
        for mr in &private {
            mr.arena.put(0, &secret(PRIVATE));
        }
        let own = vec![
            local,
            bindable,
            loopback.mrs[0].clone(),
            loopback.mrs[1].clone(),
            unreliable.mrs[0].clone(),
            sharing.mrs[0].clone(),
            peer.mrs[0].clone(),
        ];
        let mut keys: Vec<_> = own
            .iter()
            .chain(&private)
            .chain([&peer.mrs[1]])
            .map(|mr| (mr.key, mr.iova))
            .collect();
        keys.extend(windows.iter().map(|window| (window.key, own[1].iova)));
        keys.extend([
            (fast.key, 0),
            (LOCAL_DMA_KEY, private[0].arena.address(0)),
            (NULL_KEY, 0),
        ]);
        let cqs = [&loopback, &unreliable, &sharing, &peer]
            .into_iter()
            .flat_map(|c| [&c.send_cqs[0], &c.recv_cqs[0]])
            .chain([&cq])
            .map(|cq| cq.ring.clone())
            .collect();
        Self {
            world,
            area,
            pages: [made.doorbell_page.get(), driver.2],
            qps,
            srqns: [srq.srqn, xrc_srq.srqn],
            cqs,
            keys,
            own,
            private,
            peer,
            innocent,
            objects,
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0..=6 => self.post_send(input),
            7 | 8 => self.post_receive(input),
            9 => self.write_rings(input),
            10 => self.touch_cq(input),
            11 => self.touch_area(input),
            12 => self.ring(input),
            13 => self.drive(input),
            14 => self.peer_acts(input),
            _ => {
                self.world.faults = Faults {
                    drop: u32::from(input.take::<u8>()),
                    ..Faults::default()
                };
                self.world.run(Duration::from_micros(1 << input.below(16)));
            }
        }
    }

    fn element(&self, input: &mut Input<'_>) -> Sge {
        let (key, start) = input.pick(&self.keys);
        let how = input.take::<u8>();
        let address = match how & 7 {
            0..=4 => start + 8 * u64::from(how >> 5),
            5 => start.wrapping_add_signed(input.take::<i16>().into()),
            6 => input.take(),
            _ => u64::MAX,
        };
        let length = match how >> 3 & 3 {
            0 => 8,
            1 => input.take::<u8>().into(),
            2 => input.take::<u16>().into(),
            // The null region has no end, and two million packets to it would take too long.
            _ if key == NULL_KEY => input.take::<u32>() & 0xf_ffff,
            _ => input.take(),
        };
        Sge {
            address: address.into(),
            length: length.into(),
            lkey: (key ^ u32::from(how == 0xff)).into(),
        }
    }

    /// Returns a work request that is valid or almost valid.
    fn request(&self, input: &mut Input<'_>, qp_type: QpType) -> Send {
        const OPCODES: [SendOpcode; 15] = [
            SendOpcode::Write,
            SendOpcode::WriteWithImmediate,
            SendOpcode::Send,
            SendOpcode::SendWithImmediate,
            SendOpcode::Read,
            SendOpcode::CompareSwap,
            SendOpcode::FetchAdd,
            SendOpcode::LocalInvalidate,
            SendOpcode::BindWindow,
            SendOpcode::SendWithInvalidate,
            SendOpcode::RegisterRegion,
            SendOpcode::RegisterIntegrity,
            SendOpcode::Flush,
            SendOpcode::AtomicWrite,
            SendOpcode::SendSegmented,
        ];
        let opcode = input.pick(&OPCODES);
        let mut send = Send::new(input.take::<u8>().into(), opcode);
        let local = matches!(
            opcode,
            SendOpcode::LocalInvalidate
                | SendOpcode::BindWindow
                | SendOpcode::RegisterRegion
                | SendOpcode::RegisterIntegrity
                | SendOpcode::Flush
                | SendOpcode::AtomicWrite
        );
        match input.below(8) {
            0..=4 if !local => {
                for _ in 0..=input.below(4) {
                    send = send.element(self.element(input));
                }
            }
            5 | 6 if !local => send = send.inline(input.bytes(128)),
            _ => {}
        }
        let remote = self.element(input);
        let (address, key) = (remote.address.get(), remote.lkey.get());
        send = send.immediate(key).flags(input.take::<u8>() & 6);
        if opcode == SendOpcode::SendSegmented {
            // Hundreds of thousands of packets would take too long.
            let size = match input.take::<u16>() {
                0 => 0,
                size => u32::from(size) | 64,
            };
            send = send.segments(&segment_header(input), size);
        }
        if qp_type == QpType::UnreliableDatagram {
            let vector = AddressVector {
                dgid: match input.below(5) {
                    4 => GROUP,
                    node => gid_of(node),
                },
                ..AddressVector::default()
            };
            let qpn = input.pick(&[
                MULTICAST_QPN,
                self.qps[5].qp.qpn,
                self.qps[0].qp.qpn,
                self.innocent.qps[0].qpn,
                1,
            ]);
            return send.datagram(vector, qpn, 1);
        }
        let send = match opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd | SendOpcode::AtomicWrite => {
                send.atomic(address, key, 0, input.take())
            }
            SendOpcode::Flush => {
                send.flush(address, key, remote.length.get(), input.take::<u8>() & 7)
            }
            SendOpcode::BindWindow => send.target(&BindTarget {
                address: address.into(),
                length: u64::from(remote.length.get()).into(),
                window: (input
                    .pick(&self.keys)
                    .0
                    .wrapping_add(u32::from(input.take::<u8>() & 3)))
                .into(),
                region: key.into(),
                access: u32::from(input.take::<u8>()).into(),
                ..BindTarget::default()
            }),
            SendOpcode::RegisterRegion => send.target(&RegisterTarget {
                iova: address.into(),
                length: u64::from(remote.length.get()).into(),
                key: key.into(),
                access: u32::from(input.take::<u8>()).into(),
                page_count: 1.into(),
                page_shift: 12,
                ..RegisterTarget::default()
            }),
            SendOpcode::RegisterIntegrity => send.target(&integrity_target(key, input)),
            _ => send.rdma(address, key),
        };
        match qp_type {
            QpType::XrcInitiator => send.to_srq(input.pick(&self.srqns)),
            _ => send,
        }
    }

    fn post_send(&mut self, input: &mut Input<'_>) {
        let which = input.below(self.qps.len());
        let send = self.request(input, self.qps[which].qp_type);
        self.post(which, 0, send.entry(), input);
    }

    fn post_receive(&mut self, input: &mut Input<'_>) {
        let which = input.below(self.qps.len());
        let sges: Vec<Sge> = (0..input.below(5)).map(|_| self.element(input)).collect();
        let header = ReceiveHeader {
            wr_id: 3.into(),
            num_sge: (sges.len() as u16).into(),
            reserved: [0; 6],
        };
        let entry = [header.as_bytes(), sges.as_bytes()].concat();
        self.post(which, 1, entry, input);
    }

    /// Writes an entry, which may be changed, advances the producer index, maybe too far, and rings.
    fn post(&mut self, which: usize, queue: usize, mut entry: Vec<u8>, input: &mut Input<'_>) {
        let how = input.take::<u8>();
        for _ in 0..how & 3 {
            let at = input.below(entry.len().min(256));
            entry[at] = input.take();
        }
        let own = &mut self.qps[which];
        let ring = if queue == 0 { &own.qp.sq } else { &own.qp.rq };
        if !ring.layout.is_present() {
            return;
        }
        let stride = ring.layout.stride.get() as usize;
        entry.truncate(stride);
        let written = &mut own.written[queue];
        ring.arena
            .put(ring.layout.entry_offset(*written) as usize, &entry);
        *written = match how >> 2 & 31 {
            0 => input.take(),
            1 => written.wrapping_sub(1),
            2 => written.wrapping_add(16),
            3 => *written,
            _ => written.wrapping_add(1),
        };
        let at = ring.layout.header_offset.get() as usize + offset::DRIVER_INDEX;
        ring.arena.put(at, &written.to_le_bytes());
        let slot = own.qp.slot;
        if how & 0x80 == 0 {
            let bits = SlotBits::new(slot);
            self.or(bits.pending_offset, bits.pending_mask);
            self.or(bits.summary_offset, bits.summary_mask);
        }
        self.world.nodes[0].rnic.doorbell(self.pages[0], slot);
    }

    fn or(&self, at: usize, mask: u64) {
        let old = self.area.get(at, 8).try_into().expect("8 bytes");
        let new = u64::from_le_bytes(old) | mask;
        self.area.put(at, &new.to_le_bytes());
    }

    /// Writes bytes anywhere in the memory of a queue pair.
    fn write_rings(&self, input: &mut Input<'_>) {
        let arena = &self.qps[input.below(self.qps.len())].qp.sq.arena;
        let bytes = input.bytes(64);
        let at = usize::from(input.take::<u16>()) % (arena.length() - 64);
        arena.put(at, bytes);
    }

    fn touch_cq(&self, input: &mut Input<'_>) {
        let ring = &self.cqs[input.below(self.cqs.len())];
        let header = ring.layout.header_offset.get() as usize;
        match input.below(4) {
            0 => {
                let value: u32 = input.take();
                ring.arena
                    .put(header + offset::DRIVER_INDEX, &value.to_le_bytes());
            }
            1 => {
                let value: u32 = input.take();
                ring.arena.put(header + offset::ARM, &value.to_le_bytes());
            }
            // A polling process: all available completions are taken.
            _ => {
                let produced = ring.arena.get(header + offset::DEVICE_INDEX, 4);
                ring.arena.put(header + offset::DRIVER_INDEX, &produced);
            }
        }
    }

    fn touch_area(&self, input: &mut Input<'_>) {
        let bytes = input.bytes(32);
        let at = usize::from(input.take::<u16>()) % (self.area.length() - 32);
        self.area.put(at, bytes);
    }

    fn ring(&mut self, input: &mut Input<'_>) {
        let page = match input.below(4) {
            0 | 1 => self.pages[0],
            2 => self.pages[1],
            _ => input.take(),
        };
        let slot = if input.take() {
            input.take()
        } else {
            input.below(16) as u32
        };
        self.world.nodes[0].rnic.doorbell(page, slot);
    }

    /// Lets the driver do something that the process requests.
    fn drive(&mut self, input: &mut Input<'_>) {
        let which = input.below(self.qps.len());
        let own = &mut self.qps[which];
        let (qpn, qp_type, attributes) = (own.qp.qpn, own.qp_type, own.attributes);
        let Node { rnic, guest } = &mut self.world.nodes[0];
        let mut modify = |state: QpState| {
            let attributes = QpAttributes {
                state: state.raw(),
                mask: attribute::STATE.into(),
                ..QpAttributes::default()
            };
            let request = ModifyQp {
                qpn: qpn.into(),
                reserved: 0.into(),
                attributes,
            };
            let _ = guest.command(rnic, request);
        };
        match input.below(9) {
            0 => modify(QpState::Error),
            1 => modify(QpState::SendQueueDrain),
            2 => modify(QpState::ReadyToSend),
            3..=6 => {
                modify(QpState::Reset);
                ready(&mut self.world, qpn, attributes, qp_type);
            }
            7 => {
                let limit = (input.below(20) as u32).into();
                let srqn = input.pick(&self.srqns).into();
                let _ = guest.command(rnic, ModifySrq { srqn, limit });
            }
            _ => {
                while rnic.next_async_event().is_some() {}
                (0..4).for_each(|vector| while rnic.next_completion_event(vector).is_some() {});
            }
        }
    }

    /// Lets the other guest post something as well.
    fn peer_acts(&mut self, input: &mut Input<'_>) {
        let (key, address) = input.pick(&self.keys);
        let length = usize::from(input.take::<u8>());
        let opcode = input.pick(&[SendOpcode::Write, SendOpcode::Read, SendOpcode::Send]);
        let send = Send::new(1, opcode)
            .rdma(address, key)
            .element(self.peer.mrs[1].sge(0, length));
        let Node { rnic, guest } = &mut self.world.nodes[1];
        guest.post_send(rnic, &mut self.peer.qps[1], &send);
        let sge = self.peer.mrs[1].sge(0, length);
        guest.post_receive(rnic, &mut self.peer.qps[1], 1, &[sge]);
        self.peer.send_cqs[1].drain();
        self.peer.recv_cqs[1].drain();
    }

    fn end(mut self) {
        self.world.faults = Faults::default();
        self.world.run(Duration::from_millis(10));
        for mr in &self.private {
            assert!(
                mr.arena.get(0, PRIVATE) == secret(PRIVATE),
                "private memory changed"
            );
        }
        for mr in self.own.iter().chain([&self.peer.mrs[1]]) {
            check_no_secret(&mr.arena.get(0, REGION));
        }
        check_connection(&mut self.world, &mut self.innocent);
        let Node { rnic, guest } = &mut self.world.nodes[0];
        self.objects.destroy(guest, rnic);
    }
}
