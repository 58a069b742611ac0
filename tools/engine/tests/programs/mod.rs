// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random verb programs, and a model of what they do.
//!
//! Both sides of a connection post requests at once. Every region is divided so that the outcome does not depend on how
//! requests and responses overlap, which the standard leaves open: sources are never written, each read has its own
//! target, and peers read only sources, write only to the window, and do atomics only on the words. So each byte, each
//! completion and their order are exactly defined.
//!
//! Each side has two regions for fast registration over all of its memory. It registers the first again from time to
//! time, between requests that use its key for local memory. It gives the second, or a memory window in its place, to
//! its peer, which uses that key for remote memory until it invalidates the key with a send.

pub mod failing;

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use vrnic_engine::{
    Cause, Recovery, RnicConfig, Segmentation,
    testing::{Completion, Connection, FastMr, Faults, Mr, Node, QpOptions, Send, Wire, World},
};
use vrnic_wire::{
    command::MwType,
    completion::{Opcode, Status, flags},
    memory::access,
    qp::QpState,
    work::{SendOpcode, Sge, placement, send_flags},
};

pub const SOURCE: usize = 0;
pub const SOURCE_LENGTH: usize = 40_000;
pub const WINDOW: usize = 40_960;
pub const WINDOW_LENGTH: usize = 40_000;
pub const WORDS: usize = 81_920;
pub const WORD_COUNT: usize = 4;
/// Targets of reads, atomics and receives are allocated from here on.
pub const TARGETS: usize = 86_016;
pub const REGION: usize = 2_000_000;

/// One request.
#[derive(Clone, Debug)]
pub struct Op {
    pub opcode: SendOpcode,
    pub length: usize,
    /// Where remote and local ranges begin, in units of 1/65536 of the available room.
    pub local: u16,
    pub remote: u16,
    /// Where the elements are split, in the same units.
    pub cuts: Vec<u16>,
    pub signaled: bool,
    pub fence: bool,
    pub solicited: bool,
    pub inline: bool,
    pub keys: KeyUse,
    pub value: u32,
}

/// How a request uses keys of regions for fast registration.
#[derive(Copy, Clone, Debug, Default)]
pub struct KeyUse {
    /// Uses the own region's key for local memory.
    pub local: bool,
    /// Registers that region again first.
    pub anew: bool,
    /// Uses the given key for remote memory.
    pub remote: bool,
}

pub fn op() -> impl Strategy<Value = Op> {
    let opcode = prop::sample::select(vec![
        SendOpcode::Write,
        SendOpcode::WriteWithImmediate,
        SendOpcode::Send,
        SendOpcode::SendWithImmediate,
        SendOpcode::Read,
        SendOpcode::CompareSwap,
        SendOpcode::FetchAdd,
        SendOpcode::SendWithInvalidate,
        SendOpcode::Flush,
        SendOpcode::AtomicWrite,
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
                    SendOpcode::Flush | SendOpcode::AtomicWrite => 0,
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

/// Returns `part` / 65536 of `room`.
pub fn scaled(part: u16, room: usize) -> usize {
    (usize::from(part) * room) >> 16
}

impl Op {
    pub fn fetches(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Read
                | SendOpcode::CompareSwap
                | SendOpcode::FetchAdd
                | SendOpcode::Flush
                | SendOpcode::AtomicWrite
        )
    }

    pub fn needs_receive(&self) -> bool {
        !matches!(self.opcode, SendOpcode::Write) && !self.fetches()
    }

    pub fn has_immediate(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::WriteWithImmediate | SendOpcode::SendWithImmediate
        )
    }

    /// Returns elements that cover `length` bytes from `offset` on.
    pub fn elements(&self, offset: usize, length: usize) -> Vec<(usize, usize)> {
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

/// The final state that one side expects.
pub struct Model {
    pub memory: Vec<u8>,
    pub sends: Vec<(u64, Opcode, usize)>,
    pub receives: Vec<(u64, Opcode, usize, Extra)>,
    pub next_target: usize,
    /// Region for fast registration that this side uses, and its address.
    pub own: FastMr,
    pub own_iova: u64,
    /// Whether it has been registered.
    pub is_valid: bool,
    /// Region for fast registration that the peer may use.
    pub given: FastMr,
    /// Key that the peer uses until it invalidates it.
    pub given_key: u32,
    pub given_iova: u64,
    pub is_given: bool,
}

/// What accompanies a received message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Extra {
    None,
    Immediate(u32),
    Invalidated(u32),
}

/// Rights of all regions.
pub const RIGHTS: u32 = access::QUEUE_PAIR;

/// Address of regions that were given to the peer.
pub const GIVEN_IOVA: u64 = 0x1000_0000;

impl Model {
    pub fn new(side: u8, world: &mut World, node: usize) -> Self {
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

    pub fn take_target(&mut self, length: usize) -> usize {
        let target = self.next_target;
        self.next_target += length;
        assert!(self.next_target <= REGION);
        target
    }
}

pub fn sges(c: &Connection, side: usize, ranges: &[(usize, usize)]) -> Vec<Sge> {
    ranges
        .iter()
        .map(|&(offset, length)| c.mrs[side].sge(offset, length))
        .collect()
}

/// Executes `op` in the models, and returns the requests for it and the elements of its receive.
pub fn plan(
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
    // Reads that have not been answered before the key is invalidated would fail, and so would flushes that are
    // repeated. Besides, windows cannot be flushed.
    let stays = !matches!(op.opcode, SendOpcode::Read | SendOpcode::Flush);
    let by_given = op.keys.remote && peer.is_given && stays;
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
        SendOpcode::AtomicWrite => {
            let remote = WORDS + 8 * scaled(op.remote, WORD_COUNT);
            let value = u64::from(op.value % 3);
            peer.memory[remote..remote + 8].copy_from_slice(&value.to_le_bytes());
            send = send.atomic(mr.iova + remote as u64, mr.key, 7, value);
            opcode = Opcode::AtomicWrite;
        }
        SendOpcode::Flush => {
            let remote = WINDOW + scaled(op.remote, WINDOW_LENGTH);
            let length = (WINDOW + WINDOW_LENGTH - remote) as u32;
            let how_far = if op.value.is_multiple_of(2) {
                placement::GLOBAL
            } else {
                placement::ALL
            };
            send = send.flush(mr.iova + remote as u64, mr.key, length, how_far);
            opcode = Opcode::Flush;
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
    if matches!(op.opcode, SendOpcode::Flush | SendOpcode::AtomicWrite) {
        // It uses no local memory.
    } else if inline {
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
pub fn give_keys(world: &mut World, c: &mut Connection, models: &mut [Model; 2], windows: bool) {
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

pub fn check(model: &Model, sends: &[Completion], receives: &[Completion], memory: &[u8]) {
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
pub struct Setting {
    pub seed: u64,
    pub faults: Faults,
    pub segmentation: Segmentation,
    /// Recovery of each device.
    pub recovery: [Recovery; 2],
    pub loopback: bool,
    /// Receives that are posted late, in units of 1/256.
    pub late: u8,
    /// Whether peers are given windows.
    pub windows: bool,
    /// Changes of completion queues while the program runs.
    pub resizes: [Resize; 6],
    /// How segments travel as frames, if they do.
    pub wire: Option<Wire>,
}

/// A completion queue that moves to another ring.
#[derive(Copy, Clone, Debug)]
pub struct Resize {
    pub side: usize,
    pub receives: bool,
    /// Binary logarithm of the number of entries of the new ring.
    pub entries: u32,
    /// Number of completions that are polled first.
    pub polls: usize,
}

/// Number of entries with which a completion queue has room for all completions.
const ENOUGH: u32 = 256;

impl Resize {
    /// Resizes the queue if all future completions have room. Returns the completions that were polled first.
    fn run(self, world: &mut World, c: &mut Connection) -> Vec<Completion> {
        let Node { rnic, guest } = &mut world.nodes[c.nodes[self.side]];
        let cqs = if self.receives {
            &mut c.recv_cqs
        } else {
            &mut c.send_cqs
        };
        let cq = &mut cqs[self.side];
        let polled = (0..self.polls).map_while(|_| cq.poll()).collect();
        let left = cq.unread();
        let resized = (left > self.entries || self.entries >= ENOUGH)
            .then(|| guest.resize_cq(rnic, cq, self.entries, |_| {}));
        match resized {
            Some(Ok(())) => assert!(left <= self.entries),
            Some(Err((_, cause))) => {
                assert_eq!(cause, Cause::CqTooSmall);
                assert!(left > self.entries);
            }
            None => {}
        }
        polled
    }
}

fn resize() -> impl Strategy<Value = Resize> {
    (any::<(bool, bool)>(), 0u32..12, 0usize..40).prop_map(
        |((second, receives), exponent, polls)| Resize {
            side: usize::from(second),
            receives,
            entries: 1 << exponent,
            polls,
        },
    )
}

/// Generates the errors of the fabric, and the recovery of both devices.
fn loss() -> impl Strategy<Value = (Faults, [Recovery; 2])> {
    let recovery = || prop::sample::select(vec![Recovery::Selective, Recovery::GoBackN]);
    let some = (0u32..60, 0u32..60, 0u32..100).prop_map(|(drop, duplicate, delay)| Faults {
        drop,
        duplicate,
        delay,
        ..Faults::default()
    });
    prop_oneof![
        1 => [recovery(), recovery()].prop_map(|recovery| (Faults::default(), recovery)),
        2 => (some, [recovery(), recovery()]),
    ]
}

pub fn setting() -> impl Strategy<Value = Setting> {
    let segmentation = prop_oneof![Just(Segmentation::Local), Just(Segmentation::PathMtu)];
    (
        any::<u64>(),
        loss(),
        segmentation,
        any::<bool>(),
        any::<u8>(),
        any::<bool>(),
        prop::array::uniform6(resize()),
    )
        .prop_map(
            |(seed, (faults, recovery), segmentation, loopback, late, windows, resizes)| Setting {
                seed,
                faults,
                segmentation,
                recovery,
                loopback,
                late,
                windows,
                resizes,
                wire: None,
            },
        )
}

pub fn new_world(setting: &Setting) -> World {
    let configs = setting.recovery.map(|recovery| RnicConfig {
        segmentation: setting.segmentation,
        recovery,
        ..RnicConfig::default()
    });
    let mut world = World::of(&configs, 3000, setting.seed);
    world.wire = setting.wire;
    world
}

/// Returns options for queues with room for the registrations before a request.
pub fn options() -> QpOptions {
    QpOptions {
        entries: 128,
        ..QpOptions::default()
    }
}

pub fn run_program(setting: &Setting, programs: &[Vec<Op>; 2]) {
    let mut world = new_world(setting);
    let nodes = if setting.loopback { [0, 0] } else { [0, 1] };
    let mut c = world.connect(nodes, &options(), REGION, |_, _| {});
    let mut models = [0, 1].map(|side| Model::new(side, &mut world, nodes[usize::from(side)]));
    give_keys(&mut world, &mut c, &mut models, setting.windows);
    world.faults = setting.faults;
    for (mr, model) in c.mrs.iter().zip(&models) {
        mr.arena.put(0, &model.memory);
    }
    let mut completions = [const { [const { Vec::new() }; 2] }; 2];
    let mut late = Vec::new();
    let mut is_late = false;
    for (side, program) in programs.iter().enumerate() {
        for (index, op) in program.iter().enumerate() {
            let (sends, receive) = plan(op, index as u64, side, &c, &mut models);
            if let Some(ranges) = receive {
                // After a late one, all others to the same queue are late too, to keep their order.
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
        for resize in &setting.resizes[3 * usize::from(when)..][..3] {
            for _ in 0..20 {
                world.step();
            }
            let polled = resize.run(&mut world, &mut c);
            completions[resize.side][usize::from(resize.receives)].extend(polled);
        }
        world.run(Duration::from_micros(300));
    }
    world.settle();
    for (side, model) in models.iter().enumerate() {
        let [sends, receives] = &mut completions[side];
        sends.extend(c.send_cqs[side].drain());
        receives.extend(c.recv_cqs[side].drain());
        let memory = c.mrs[side].arena.get(0, model.next_target);
        check(model, sends, receives, &memory);
        assert_eq!(
            world.state(c.nodes[side], c.qps[side].qpn),
            QpState::ReadyToSend
        );
    }
}

/// Configures thousands of programs, unless `PROPTEST_CASES` is set.
pub fn config() -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() {
        return config;
    }
    ProptestConfig {
        cases: 2000,
        ..config
    }
}
