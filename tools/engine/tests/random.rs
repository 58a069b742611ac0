// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random verb programs against a model, on perfect and on bad fabrics.
//!
//! Both sides of a connection post requests at once. Every region is divided so that the outcome does
//! not depend on how requests and responses overlap, which the standard leaves open: sources are
//! never written, each read has its own target, peers read only sources, write only the window,
//! and do atomics only on the words. What remains is exact: each byte, each completion, their order.
//!
//! Each side has two regions for fast registration over all of its memory. One it registers anew now
//! and then, between requests that name their local memory by it. The other, or a memory window in its
//! place, it gives to its peer, which names remote memory by it until it invalidates the key with a
//! send.

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use vrnic_engine::{
    RnicConfig, Segmentation,
    testing::{Completion, Connection, FastMr, Faults, Mr, Node, QpOptions, Send, World},
};
use vrnic_wire::{
    command::MwType,
    completion::{Opcode, Status, flags},
    memory::access,
    qp::QpState,
    work::{SendOpcode, Sge, send_flags},
};

const SOURCE: usize = 0;
const SOURCE_LENGTH: usize = 40_000;
const WINDOW: usize = 40_960;
const WINDOW_LENGTH: usize = 40_000;
const WORDS: usize = 81_920;
const WORD_COUNT: usize = 4;
/// Targets of reads, atomics and receives are taken from here on.
const TARGETS: usize = 86_016;
const REGION: usize = 2_000_000;

/// One request.
#[derive(Clone, Debug)]
struct Op {
    opcode: SendOpcode,
    length: usize,
    /// Where remote and local ranges begin, in parts of 65536 of the room there is.
    local: u16,
    remote: u16,
    /// Where the elements are cut, likewise.
    cuts: Vec<u16>,
    signaled: bool,
    fence: bool,
    solicited: bool,
    inline: bool,
    keys: KeyUse,
    value: u32,
}

/// What a request does with keys of regions for fast registration.
#[derive(Copy, Clone, Debug, Default)]
struct KeyUse {
    /// Names local memory by the own one.
    local: bool,
    /// Registers that anew before.
    anew: bool,
    /// Names remote memory by the given one.
    remote: bool,
}

fn op() -> impl Strategy<Value = Op> {
    let opcode = prop::sample::select(vec![
        SendOpcode::Write,
        SendOpcode::WriteWithImmediate,
        SendOpcode::Send,
        SendOpcode::SendWithImmediate,
        SendOpcode::Read,
        SendOpcode::CompareSwap,
        SendOpcode::FetchAdd,
        SendOpcode::SendWithInvalidate,
    ]);
    let length = prop_oneof![
        3 => 0usize..100,
        2 => 100usize..5000,
        1 => 5000usize..WINDOW_LENGTH,
        1 => prop::sample::select(vec![256, 1024, 2048, 4096, 8192]),
    ];
    (
        opcode,
        length,
        any::<(u16, u16)>(),
        vec(any::<u16>(), 0..3),
        any::<(bool, bool, bool, bool)>(),
        any::<(bool, bool, bool)>(),
        any::<u32>(),
    )
        .prop_map(
            |(opcode, length, (local, remote), cuts, bits, keys, value)| Op {
                opcode,
                length: match opcode {
                    SendOpcode::CompareSwap | SendOpcode::FetchAdd => 8,
                    _ => length,
                },
                local,
                remote,
                cuts,
                signaled: bits.0,
                fence: bits.1,
                solicited: bits.2,
                inline: bits.3,
                keys: KeyUse {
                    local: keys.0,
                    anew: keys.1,
                    remote: keys.2,
                },
                value,
            },
        )
}

/// `part` of 65536 parts of `room`.
fn scaled(part: u16, room: usize) -> usize {
    (usize::from(part) * room) >> 16
}

impl Op {
    fn fetches(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd
        )
    }

    fn needs_receive(&self) -> bool {
        !matches!(self.opcode, SendOpcode::Write) && !self.fetches()
    }

    fn has_immediate(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::WriteWithImmediate | SendOpcode::SendWithImmediate
        )
    }

    /// Elements that cover `length` bytes from `offset` on.
    fn elements(&self, offset: usize, length: usize) -> Vec<(usize, usize)> {
        let mut cuts: Vec<usize> = self
            .cuts
            .iter()
            .map(|&cut| scaled(cut, length + 1))
            .collect();
        cuts.extend([0, length]);
        cuts.sort_unstable();
        cuts.windows(2)
            .map(|pair| (offset + pair[0], pair[1] - pair[0]))
            .collect()
    }
}

/// What one side expects to find in the end.
struct Model {
    memory: Vec<u8>,
    sends: Vec<(u64, Opcode, usize)>,
    receives: Vec<(u64, Opcode, usize, Extra)>,
    next_target: usize,
    /// Region for fast registration that this side changes, and where it begins.
    own: FastMr,
    own_iova: u64,
    /// Whether it was registered.
    is_valid: bool,
    /// Region for fast registration that the peer may use.
    given: FastMr,
    /// What the peer uses, until it invalidates the key.
    given_key: u32,
    given_iova: u64,
    is_given: bool,
}

/// What comes with a received message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Extra {
    None,
    Immediate(u32),
    Invalidated(u32),
}

/// Rights of all regions.
const RIGHTS: u32 = access::QUEUE_PAIR;

/// Where regions begin that were given to the peer.
const GIVEN_IOVA: u64 = 0x1000_0000;

impl Model {
    fn new(side: u8, world: &mut World, node: usize) -> Self {
        let Node { rnic, guest } = &mut world.nodes[node];
        let mut fast = || guest.fast_mr(rnic, REGION.div_ceil(4096) as u32);
        let (own, given) = (fast(), fast());
        let mut memory = vec![0; REGION];
        for (index, byte) in memory[..SOURCE_LENGTH].iter_mut().enumerate() {
            *byte = (index as u8).wrapping_mul(37) ^ (index >> 8) as u8 ^ side.wrapping_mul(0x5a);
        }
        for index in 0..WORD_COUNT {
            let word = WORDS + index * 8;
            memory[word..word + 8].copy_from_slice(&(index as u64 % 2).to_le_bytes());
        }
        Self {
            memory,
            sends: Vec::new(),
            receives: Vec::new(),
            next_target: TARGETS,
            own,
            own_iova: 0,
            is_valid: false,
            given_key: given.key,
            given_iova: GIVEN_IOVA,
            given,
            is_given: true,
        }
    }

    fn take_target(&mut self, length: usize) -> usize {
        let target = self.next_target;
        self.next_target += length;
        assert!(self.next_target <= REGION);
        target
    }
}

fn sges(c: &Connection, side: usize, ranges: &[(usize, usize)]) -> Vec<Sge> {
    ranges
        .iter()
        .map(|&(offset, length)| c.mrs[side].sge(offset, length))
        .collect()
}

/// Does `op` in the models, and gives the requests for it and the elements of its receive.
fn plan(
    op: &Op,
    wr_id: u64,
    side: usize,
    c: &Connection,
    models: &mut [Model; 2],
) -> (Vec<Send>, Option<Vec<(usize, usize)>>) {
    let [a, b] = models;
    let (own, peer) = if side == 0 { (a, b) } else { (b, a) };
    let mut requests = Vec::new();
    if op.keys.local && (op.keys.anew || !own.is_valid) {
        let name = (wr_id << 8) + 1;
        if own.is_valid {
            requests.push(own.own.invalidate(name));
            own.sends.push((name, Opcode::LocalInvalidate, 0));
        }
        own.own_iova = u64::from(op.value) << 16;
        let register = own
            .own
            .register(name + 1, &c.mrs[side], RIGHTS, own.own_iova);
        own.sends.push((name + 1, Opcode::RegisterRegion, 0));
        requests.push(register);
        own.is_valid = true;
    }
    // A read that was not answered before the key is invalidated would fail.
    let by_given = op.keys.remote && peer.is_given && op.opcode != SendOpcode::Read;
    let mr = if by_given {
        Mr {
            arena: c.mrs[1 - side].arena.clone(),
            iova: peer.given_iova,
            key: peer.given_key,
        }
    } else {
        c.mrs[1 - side].clone()
    };
    let mut send = Send::new(wr_id, op.opcode);
    let mut receive = None;
    let inline = op.inline && !op.fetches() && op.length <= 128;
    let local = if op.fetches() {
        own.take_target(op.length)
    } else {
        SOURCE + scaled(op.local, SOURCE_LENGTH - op.length)
    };
    let payload = own.memory[local..local + op.length].to_vec();
    let opcode;
    match op.opcode {
        SendOpcode::Write | SendOpcode::WriteWithImmediate => {
            let remote = WINDOW + scaled(op.remote, WINDOW_LENGTH - op.length);
            peer.memory[remote..remote + op.length].copy_from_slice(&payload);
            send = send.rdma(mr.iova + remote as u64, mr.key);
            opcode = Opcode::Write;
        }
        SendOpcode::Read => {
            let remote = SOURCE + scaled(op.remote, SOURCE_LENGTH - op.length);
            let data = &peer.memory[remote..remote + op.length];
            own.memory[local..local + op.length].copy_from_slice(data);
            send = send.rdma(mr.iova + remote as u64, mr.key);
            opcode = Opcode::Read;
        }
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
            let remote = WORDS + 8 * scaled(op.remote, WORD_COUNT);
            let word: [u8; 8] = peer.memory[remote..remote + 8].try_into().expect("word");
            own.memory[local..local + 8].copy_from_slice(&word);
            let old = u64::from_le_bytes(word);
            let compare = u64::from(op.value % 3);
            let new = match op.opcode {
                SendOpcode::FetchAdd => old.wrapping_add(compare),
                _ if old == compare => 1,
                _ => old,
            };
            peer.memory[remote..remote + 8].copy_from_slice(&new.to_le_bytes());
            send = send.atomic(mr.iova + remote as u64, mr.key, compare, 1);
            opcode = match op.opcode {
                SendOpcode::FetchAdd => Opcode::FetchAdd,
                _ => Opcode::CompareSwap,
            };
        }
        _ => opcode = Opcode::Send,
    }
    if op.needs_receive() {
        let target = peer.take_target(op.length + 7);
        let kind = if opcode == Opcode::Send {
            peer.memory[target..target + op.length].copy_from_slice(&payload);
            Opcode::Receive
        } else {
            Opcode::ReceiveWriteWithImmediate
        };
        let extra = if op.has_immediate() {
            Extra::Immediate(op.value)
        } else if op.opcode == SendOpcode::SendWithInvalidate && peer.is_given {
            Extra::Invalidated(peer.given_key)
        } else {
            Extra::None
        };
        peer.receives.push((wr_id, kind, op.length, extra));
        receive = Some(op.elements(target, op.length + 7));
    }
    send = send.immediate(op.value);
    if op.opcode == SendOpcode::SendWithInvalidate {
        if std::mem::take(&mut peer.is_given) {
            send = send.immediate(peer.given_key);
        } else {
            send.header.opcode = SendOpcode::Send.raw();
        }
    }
    if inline {
        send = send.inline(&payload);
    } else {
        let local_mr = if op.keys.local {
            Mr {
                arena: c.mrs[side].arena.clone(),
                iova: own.own_iova,
                key: own.own.key,
            }
        } else {
            c.mrs[side].clone()
        };
        for (offset, length) in op.elements(local, op.length) {
            send = send.element(local_mr.sge(offset, length));
        }
    }
    if op.signaled {
        own.sends.push((wr_id, opcode, op.length));
    } else {
        send = send.unsignaled();
    }
    if op.fence {
        send = send.flags(send_flags::FENCE);
    }
    if op.solicited {
        send = send.flags(send_flags::SOLICITED);
    }
    requests.push(send);
    (requests, receive)
}

/// Registers what each side gives to its peer.
fn give_keys(world: &mut World, c: &mut Connection, models: &mut [Model; 2], windows: bool) {
    for (side, model) in models.iter_mut().enumerate() {
        let register = model.given.register(0, &c.mrs[side], RIGHTS, GIVEN_IOVA);
        c.send(world, side, &register);
        model.given_key = model.given.key;
        if windows {
            let Node { rnic, guest } = &mut world.nodes[c.nodes[side]];
            let arena = c.mrs[side].arena.clone();
            let rights = access::LOCAL_WRITE | access::MW_BIND;
            let mr = guest.register(rnic, arena, REGION, rights);
            let mut mw = guest.mw(rnic, MwType::Type2);
            let bind = mw.bind(1, &mr, 0, REGION, RIGHTS);
            c.send(world, side, &bind);
            (model.given_key, model.given_iova) = (mw.key, mr.iova);
        }
    }
    world.settle();
    for cq in &mut c.send_cqs {
        let done = cq.drain();
        assert!(done.iter().all(|done| done.status == Status::Success));
    }
}

fn check(model: &Model, sends: &[Completion], receives: &[Completion], memory: &[u8]) {
    let sends: Vec<_> = sends
        .iter()
        .map(|done| {
            assert_eq!(done.status, Status::Success, "{done:?}");
            (done.wr_id, done.opcode, done.length as usize)
        })
        .collect();
    assert_eq!(sends, model.sends);
    let receives: Vec<_> = receives
        .iter()
        .map(|done| {
            assert_eq!(done.status, Status::Success, "{done:?}");
            let extra = if done.flags & flags::IMMEDIATE != 0 {
                Extra::Immediate(done.immediate)
            } else if done.flags & flags::INVALIDATED != 0 {
                Extra::Invalidated(done.immediate)
            } else {
                Extra::None
            };
            (done.wr_id, done.opcode, done.length as usize, extra)
        })
        .collect();
    assert_eq!(receives, model.receives);
    let used = model.next_target;
    if memory[..used] != model.memory[..used] {
        let place = (0..used).find(|&index| memory[index] != model.memory[index]);
        panic!("memory differs at {place:?}");
    }
}

#[derive(Copy, Clone, Debug)]
struct Setting {
    seed: u64,
    faults: Faults,
    segmentation: Segmentation,
    loopback: bool,
    /// Receives that are posted late, in parts of 256.
    late: u8,
    /// Whether peers are given windows.
    windows: bool,
}

fn setting() -> impl Strategy<Value = Setting> {
    let faults = prop_oneof![
        Just(Faults::default()),
        (0u32..60, 0u32..60, 0u32..100).prop_map(|(drop, duplicate, delay)| Faults {
            drop,
            duplicate,
            delay
        }),
    ];
    let segmentation = prop_oneof![Just(Segmentation::Local), Just(Segmentation::PathMtu)];
    (
        any::<u64>(),
        faults,
        segmentation,
        any::<bool>(),
        any::<u8>(),
        any::<bool>(),
    )
        .prop_map(
            |(seed, faults, segmentation, loopback, late, windows)| Setting {
                seed,
                faults,
                segmentation,
                loopback,
                late,
                windows,
            },
        )
}

fn new_world(setting: &Setting) -> World {
    let config = RnicConfig {
        segmentation: setting.segmentation,
        ..RnicConfig::default()
    };
    World::new(2, 3000, &config, setting.seed)
}

/// Queues with room for what a request registers before.
fn options() -> QpOptions {
    QpOptions {
        entries: 128,
        ..QpOptions::default()
    }
}

fn run_program(setting: &Setting, programs: &[Vec<Op>; 2]) {
    let mut world = new_world(setting);
    let nodes = if setting.loopback { [0, 0] } else { [0, 1] };
    let mut c = world.connect(nodes, &options(), REGION, |_, _| {});
    let mut models = [0, 1].map(|side| Model::new(side, &mut world, nodes[usize::from(side)]));
    give_keys(&mut world, &mut c, &mut models, setting.windows);
    world.faults = setting.faults;
    for (mr, model) in c.mrs.iter().zip(&models) {
        mr.arena.put(0, &model.memory);
    }
    let mut late = Vec::new();
    let mut is_late = false;
    for (side, program) in programs.iter().enumerate() {
        for (index, op) in program.iter().enumerate() {
            let (sends, receive) = plan(op, index as u64, side, &c, &mut models);
            if let Some(ranges) = receive {
                // Once one is late, all others to the same queue are, to keep their order.
                is_late |= op.value as u8 >= 255 - setting.late / 8;
                late.push((1 - side, index as u64, ranges, is_late));
            }
            for send in &sends {
                c.send(&mut world, side, send);
            }
        }
        is_late = false;
    }
    for when in [false, true] {
        for (side, wr_id, ranges, is_late) in &late {
            if *is_late == when {
                let sges = sges(&c, *side, ranges);
                c.receive(&mut world, *side, *wr_id, &sges);
            }
        }
        world.run(Duration::from_micros(300));
    }
    world.settle();
    for (side, model) in models.iter().enumerate() {
        let sends = c.send_cqs[side].drain();
        let receives = c.recv_cqs[side].drain();
        let memory = c.mrs[side].arena.get(0, model.next_target);
        check(model, &sends, &receives, &memory);
        assert_eq!(
            world.state(c.nodes[side], c.qps[side].qpn),
            QpState::ReadyToSend
        );
    }
}

/// What is wrong with the request that fails.
#[derive(Copy, Clone, Debug)]
enum Wrong {
    LocalKey,
    RemoteKey,
    RemoteBounds,
    Opcode,
    LocalBounds,
    ReceiveTooShort,
    StaleKey,
    Invalidate,
    Register,
    InvalidateAtPeer,
}

impl Wrong {
    fn status(self) -> Status {
        match self {
            Self::LocalKey | Self::LocalBounds => Status::LocalProtection,
            Self::RemoteKey | Self::RemoteBounds | Self::StaleKey | Self::InvalidateAtPeer => {
                Status::RemoteAccess
            }
            Self::Invalidate | Self::Register => Status::MemoryManagement,
            Self::Opcode => Status::LocalQueuePairOperation,
            Self::ReceiveTooShort => Status::RemoteInvalidRequest,
        }
    }

    fn request(self, wr_id: u64, c: &Connection, models: &[Model; 2]) -> Send {
        let (own, peer) = (&c.mrs[0], &c.mrs[1]);
        let good = own.sge(TARGETS, 16);
        let write = Send::new(wr_id, SendOpcode::Write);
        match self {
            Self::LocalKey => {
                let mut sge = good;
                sge.lkey = (own.key ^ 0x10).into();
                write.rdma(peer.iova + WINDOW as u64, peer.key).element(sge)
            }
            Self::LocalBounds => {
                let sge = own.sge(REGION - 5, 6);
                write.rdma(peer.iova + WINDOW as u64, peer.key).element(sge)
            }
            Self::RemoteKey => write
                .rdma(peer.iova + WINDOW as u64, peer.key ^ 0x10)
                .element(good),
            Self::RemoteBounds => write.rdma(peer.iova - 1, peer.key).element(good),
            Self::Opcode => {
                let mut send = write;
                send.header.opcode = 77;
                send
            }
            Self::ReceiveTooShort => Send::new(wr_id, SendOpcode::Send).element(good),
            Self::StaleKey => {
                let given = models[1].given_key;
                let stale = given & !0xff | given.wrapping_sub(1) & 0xff;
                write
                    .rdma(models[1].given_iova + WINDOW as u64, stale)
                    .element(good)
            }
            // The region is not one for fast registration.
            Self::Invalidate => Send::new(wr_id, SendOpcode::LocalInvalidate).immediate(own.key),
            Self::InvalidateAtPeer => {
                Send::new(wr_id, SendOpcode::SendWithInvalidate).immediate(peer.key)
            }
            // The region is valid.
            Self::Register => models[0].given.clone().register(wr_id, own, RIGHTS, 0),
        }
    }
}

fn wrong() -> impl Strategy<Value = Wrong> {
    prop::sample::select(vec![
        Wrong::LocalKey,
        Wrong::RemoteKey,
        Wrong::RemoteBounds,
        Wrong::Opcode,
        Wrong::LocalBounds,
        Wrong::ReceiveTooShort,
        Wrong::StaleKey,
        Wrong::Invalidate,
        Wrong::Register,
        Wrong::InvalidateAtPeer,
    ])
}

/// Everything before the wrong request is done, everything after it is flushed, each exactly once
/// and in order; and so are receives. The peer that answers with an error may lose that answer, in
/// which case the requester runs out of retries.
fn run_failing(setting: &Setting, before: &[Op], wrong: Wrong, after: &[Op]) {
    let mut world = new_world(setting);
    let mut c = world.connect([0, 1], &options(), REGION, |_, _| {});
    let mut models = [0, 1].map(|side| Model::new(side, &mut world, usize::from(side)));
    give_keys(&mut world, &mut c, &mut models, setting.windows);
    world.faults = setting.faults;
    for (mr, model) in c.mrs.iter().zip(&models) {
        mr.arena.put(0, &model.memory);
    }
    let mut sends = Vec::new();
    for (index, op) in before.iter().enumerate() {
        let (requests, receive) = plan(op, index as u64, 0, &c, &mut models);
        if let Some(ranges) = receive {
            let sges = sges(&c, 1, &ranges);
            c.receive(&mut world, 1, index as u64, &sges);
        }
        sends.extend(requests);
    }
    let successes = models[0].sends.clone();
    let received = models[1].receives.len();
    let bad = before.len() as u64;
    let wrong_at = sends.len();
    sends.push(wrong.request(bad, &c, &models));
    for (index, op) in after.iter().enumerate() {
        sends.extend(plan(op, bad + 1 + index as u64, 0, &c, &mut models).0);
    }
    let names: Vec<u64> = sends.iter().map(|send| send.header.wr_id.get()).collect();
    // One too short for the wrong send, and some that are left over.
    for wr_id in 1000..1003 {
        let sge = c.mrs[1].sge(TARGETS, 15);
        c.receive(&mut world, 1, wr_id, &[sge]);
    }
    for send in &sends {
        c.send(&mut world, 0, send);
    }
    world.settle();

    let done = c.send_cqs[0].drain();
    let (ok, failed) = done.split_at(successes.len().min(done.len()));
    let ok: Vec<_> = ok.iter().map(|done| (done.wr_id, done.status)).collect();
    let expected: Vec<_> = successes
        .iter()
        .map(|&(wr_id, ..)| (wr_id, Status::Success))
        .collect();
    let from_peer = !matches!(
        wrong,
        Wrong::LocalKey | Wrong::LocalBounds | Wrong::Opcode | Wrong::Invalidate | Wrong::Register
    );
    // A peer in error does not answer again, so an answer that is lost or overtaken is not replaced.
    let lossless = setting.faults.drop == 0 && setting.faults.delay == 0;
    if ok == expected && failed.first().is_some_and(|first| first.wr_id == bad) {
        let status = failed[0].status;
        let gave_up = from_peer && !lossless && status == Status::RetryExceeded;
        assert!(status == wrong.status() || gave_up, "{:?}", failed[0]);
        let rest: Vec<_> = failed[1..]
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        let flushed: Vec<_> = names[wrong_at + 1..]
            .iter()
            .map(|&name| (name, Status::Flushed))
            .collect();
        assert_eq!(rest, flushed);
    } else {
        // The peer failed on the wrong request, and acknowledgements of earlier ones were lost.
        assert!(from_peer && !lossless, "{done:?}");
        let first = done
            .iter()
            .position(|done| done.status != Status::Success)
            .expect("failure");
        assert_eq!(done[first].status, Status::RetryExceeded, "{done:?}");
        let found: Vec<u64> = done[first..].iter().map(|done| done.wr_id).collect();
        assert!(names.ends_with(&found), "{found:?}");
        for later in &done[first + 1..] {
            assert_eq!(later.status, Status::Flushed);
        }
    }
    assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    let receives = c.recv_cqs[1].drain();
    if from_peer {
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
        assert_eq!(receives.len(), received + 3, "each receive completes once");
        assert!(
            receives[..received]
                .iter()
                .all(|done| done.status == Status::Success)
        );
        let status = match wrong {
            Wrong::ReceiveTooShort => Status::LocalLength,
            Wrong::InvalidateAtPeer => Status::RemoteInvalidRequest,
            _ => Status::Flushed,
        };
        assert_eq!(receives[received].status, status);
        assert_eq!(receives[received + 2].status, Status::Flushed);
    } else {
        assert_eq!(receives.len(), received);
    }
}

/// Thousands of programs, unless `PROPTEST_CASES` says otherwise.
fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return config;
    }
    ProptestConfig {
        cases: 2000,
        ..config
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_do_what_the_model_does(
        setting in setting(),
        first in vec(op(), 0..40),
        second in vec(op(), 0..20),
    ) {
        run_program(&setting, &[first, second]);
    }

    #[test]
    fn failures_end_a_connection_in_order(
        setting in setting(),
        before in vec(op(), 0..15),
        wrong in wrong(),
        after in vec(op(), 0..10),
    ) {
        run_failing(&setting, &before, wrong, &after);
    }
}
