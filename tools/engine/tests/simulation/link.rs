// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A connection of a simulation: what both ends ask of it, and what has to come of that.
//!
//! Each request has bytes of its own at both ends, so the outcome does not depend on how requests
//! overlap. The additions of one end go to one word of the other.

use crate::faults::Fault;
use proptest::{collection::vec, prelude::*};
use std::fmt;
use vrnic_engine::testing::{Completion, Connection, QpOptions, Send, World};
use vrnic_wire::{
    command::{DeregisterMr, DestroyCq, DestroyQp},
    completion::Status,
    qp::QpState,
    work::SendOpcode,
};

/// Most requests of an end.
pub const MOST: usize = 12;

/// Most bytes of a request.
const SLOT: usize = 8192;
/// Where the sources of an end begin, then what its peer writes, what it receives, what it reads, what its additions
/// fetch, and the word that its peer adds to.
const SOURCES: usize = 0;
const WRITTEN: usize = SOURCES + MOST * SLOT;
const RECEIVED: usize = WRITTEN + MOST * SLOT;
const READ: usize = RECEIVED + MOST * SLOT;
const FETCHED: usize = READ + MOST * SLOT;
const WORD: usize = FETCHED + MOST * 8;
const REGION: usize = WORD + 8;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Kind {
    Send,
    Write,
    Read,
    Add,
}

/// A request.
#[derive(Copy, Clone)]
struct Op {
    kind: Kind,
    length: usize,
}

impl fmt::Debug for Op {
    /// In one line, as there are many of them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {}", self.kind, self.length)
    }
}

/// Two devices, and what each end asks for, a request in each round.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    nodes: [usize; 2],
    ops: [Vec<Op>; 2],
}

fn op() -> impl Strategy<Value = Op> {
    let kind = prop::sample::select(vec![Kind::Send, Kind::Write, Kind::Read, Kind::Add]);
    let length = prop_oneof![3 => 0usize..200, 1 => 200usize..=SLOT];
    (kind, length).prop_map(|(kind, length)| Op { kind, length })
}

/// A connection between two of so many devices.
pub fn link(devices: usize) -> impl Strategy<Value = LinkPlan> {
    let ops = || vec(op(), 0..=MOST);
    (0..devices, 0..devices, ops(), ops()).prop_map(|(a, b, first, second)| LinkPlan {
        nodes: [a, b],
        ops: [first, second],
    })
}

/// A connection.
pub struct Link {
    plan: LinkPlan,
    connection: Connection,
    /// Receives posted at each end.
    receives: [usize; 2],
}

/// Byte `at` of what end `side` sends from its slot `slot`.
fn pattern(side: usize, slot: usize, at: usize) -> u8 {
    // Never 0, which is what memory is before.
    ((side * 89 + slot * 31 + at * 7) % 251) as u8 + 1
}

fn bytes(side: usize, slot: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| pattern(side, slot, at)).collect()
}

impl Link {
    /// Pages that both ends need.
    pub const PAGES: usize = REGION / 4096 + 40;

    pub fn new(plan: &LinkPlan, world: &mut World) -> Self {
        let connection = world.connect(
            plan.nodes,
            &QpOptions::default(),
            REGION,
            |_, attributes| {
                attributes.retry_count = 5;
                attributes.rnr_retry = 5;
                attributes.timeout = 8;
            },
        );
        for side in 0..2 {
            for slot in 0..MOST {
                connection.mrs[side]
                    .arena
                    .put(SOURCES + slot * SLOT, &bytes(side, slot, SLOT));
            }
        }
        let mut link = Self {
            plan: plan.clone(),
            connection,
            receives: [0; 2],
        };
        // A receive for each send, posted first: only faults make a receiver not ready.
        for side in 0..2 {
            let sends = link.plan.ops[1 - side]
                .iter()
                .filter(|op| op.kind == Kind::Send)
                .count();
            for slot in 0..sends {
                let sge = link.connection.mrs[side].sge(RECEIVED + slot * SLOT, SLOT);
                link.connection.receive(world, side, slot as u64, &[sge]);
            }
            link.receives[side] = sends;
        }
        link
    }

    pub fn nodes(&self) -> [usize; 2] {
        self.plan.nodes
    }

    /// Posts the requests of a round.
    pub fn post(&mut self, round: usize, world: &mut World) {
        for side in 0..2 {
            let Some(op) = self.plan.ops[side].get(round).copied() else {
                continue;
            };
            let [own, peer] = [&self.connection.mrs[side], &self.connection.mrs[1 - side]];
            let remote = |offset: usize| (peer.iova + offset as u64, peer.key);
            let name = round as u64;
            let send = match op.kind {
                Kind::Send => Send::new(name, SendOpcode::Send)
                    .element(own.sge(SOURCES + round * SLOT, op.length)),
                Kind::Write => {
                    let (address, key) = remote(WRITTEN + round * SLOT);
                    Send::new(name, SendOpcode::Write)
                        .rdma(address, key)
                        .element(own.sge(SOURCES + round * SLOT, op.length))
                }
                Kind::Read => {
                    let (address, key) = remote(SOURCES + round * SLOT);
                    Send::new(name, SendOpcode::Read)
                        .rdma(address, key)
                        .element(own.sge(READ + round * SLOT, op.length))
                }
                Kind::Add => {
                    let (address, key) = remote(WORD);
                    Send::new(name, SendOpcode::FetchAdd)
                        .atomic(address, key, 1, 0)
                        .element(own.sge(FETCHED + round * 8, 8))
                }
            };
            self.connection.send(world, side, &send);
        }
    }

    /// Checks everything, when nothing happens any more. `sound` says that nothing may have gone wrong; otherwise
    /// `faults` are those of its devices.
    pub fn check(&mut self, world: &mut World, sound: bool, faults: &[&Fault]) {
        let sends = [0, 1].map(|side| self.connection.send_cqs[side].drain());
        let receives = [0, 1].map(|side| self.connection.recv_cqs[side].drain());
        let loses = faults.iter().any(|fault| fault.known().loses);
        let lies = faults.iter().any(|fault| fault.known().lies);
        for side in 0..2 {
            let what = format!(
                "end {side} of {:?}: {:?}, {:?}",
                self.plan.nodes, sends[side], receives[side]
            );
            let posted = self.plan.ops[side].len();
            let state = world.state(self.plan.nodes[side], self.connection.qps[side].qpn);
            for (done, posted, all) in [
                (&sends[side], posted, true),
                (
                    &receives[side],
                    self.receives[side],
                    state == QpState::Error,
                ),
            ] {
                in_order(done, posted, all && !loses, &what);
                fails_once(done, sound, faults, &what);
            }
            let fails = sends[side]
                .iter()
                .any(|done| done.status != Status::Success);
            assert!(!fails || state == QpState::Error, "{what}: state {state:?}");
            self.check_memory(
                side,
                &sends[side],
                &receives[1 - side],
                loses || lies,
                &what,
            );
        }
    }

    /// Checks what the requests of an end did to memory, by their completions and by those of the peer's receives,
    /// which may be `doubtful`.
    fn check_memory(
        &self,
        side: usize,
        sends: &[Completion],
        receives: &[Completion],
        doubtful: bool,
        what: &str,
    ) {
        let [own, peer] = [
            &self.connection.mrs[side].arena,
            &self.connection.mrs[1 - side].arena,
        ];
        let succeeded = |done: &[Completion], name: usize| {
            done.iter()
                .any(|done| done.wr_id == name as u64 && done.status == Status::Success)
        };
        // Each byte is what was sent; or nothing yet, if the request did not end well.
        let moved = |found: Vec<u8>, from: usize, slot: usize, good: bool, of: &str| {
            for (at, byte) in found.into_iter().enumerate() {
                let sent = pattern(from, slot, at);
                assert!(
                    byte == sent || (!good && byte == 0),
                    "{what}: byte {at} of {of} {slot} is {byte}, not {sent}"
                );
            }
        };
        let (mut adds, mut added, mut last) = (0u64, 0u64, None);
        let mut receive = 0;
        for (round, op) in self.plan.ops[side].iter().enumerate() {
            let good = succeeded(sends, round);
            match op.kind {
                Kind::Write => {
                    moved(
                        peer.get(WRITTEN + round * SLOT, op.length),
                        side,
                        round,
                        good,
                        "write",
                    );
                    let rest = peer.get(WRITTEN + round * SLOT + op.length, SLOT - op.length);
                    assert!(
                        rest.iter().all(|byte| *byte == 0),
                        "{what}: write {round} wrote too much"
                    );
                }
                Kind::Read => moved(
                    own.get(READ + round * SLOT, op.length),
                    1 - side,
                    round,
                    good,
                    "read",
                ),
                Kind::Send => {
                    let received = succeeded(receives, receive);
                    assert!(
                        received || !good || doubtful,
                        "{what}: send {round} was not received"
                    );
                    let at = RECEIVED + receive * SLOT;
                    moved(peer.get(at, op.length), side, round, received, "send");
                    if let Some(done) = receives.iter().find(|done| done.wr_id == receive as u64)
                        && done.status == Status::Success
                    {
                        assert_eq!(done.length as usize, op.length, "{what}: receive {receive}");
                    }
                    receive += 1;
                }
                Kind::Add => {
                    adds += 1;
                    if good {
                        added += 1;
                        let fetched = own.get(FETCHED + round * 8, 8).try_into().expect("8 bytes");
                        let fetched = u64::from_le_bytes(fetched);
                        assert!(
                            last.is_none_or(|last| fetched > last),
                            "{what}: addition {round} was done before"
                        );
                        last = Some(fetched);
                    }
                }
            }
        }
        let word = u64::from_le_bytes(peer.get(WORD, 8).try_into().expect("8 bytes"));
        assert!(
            (added..=adds).contains(&word),
            "{what}: {added} to {adds} additions make {word}"
        );
        assert!(
            last.is_none_or(|last| last < word),
            "{what}: an addition fetched {last:?} of {word}"
        );
    }

    /// Destroys all objects.
    pub fn destroy(self, world: &mut World) {
        for side in 0..2 {
            let node = &mut world.nodes[self.plan.nodes[side]];
            let qpn = self.connection.qps[side].qpn.into();
            node.guest
                .command(
                    &mut node.rnic,
                    DestroyQp {
                        qpn,
                        ..Default::default()
                    },
                )
                .expect("qp");
            for cq in [
                &self.connection.send_cqs[side],
                &self.connection.recv_cqs[side],
            ] {
                let request = DestroyCq {
                    cqn: cq.cqn.into(),
                    ..Default::default()
                };
                node.guest.command(&mut node.rnic, request).expect("cq");
            }
            let request = DeregisterMr {
                pd: node.guest.pd.into(),
                key: self.connection.mrs[side].key.into(),
            };
            node.guest.command(&mut node.rnic, request).expect("mr");
        }
    }
}

/// Each request completes once, in order; all of them, if `all`.
fn in_order(done: &[Completion], posted: usize, all: bool, what: &str) {
    let names: Vec<u64> = done.iter().map(|done| done.wr_id).collect();
    assert!(
        names.windows(2).all(|pair| pair[0] < pair[1]),
        "{what}: out of order or twice: {names:?}"
    );
    assert!(
        names.iter().all(|&name| name < posted as u64),
        "{what}: {names:?} of {posted}"
    );
    assert!(
        !all || names.len() == posted,
        "{what}: {} of {posted} completed",
        names.len()
    );
}

/// The first error is one that the faults allow, and what follows it is flushed.
fn fails_once(done: &[Completion], sound: bool, faults: &[&Fault], what: &str) {
    let mut rest = done
        .iter()
        .map(|done| done.status)
        .skip_while(|status| *status == Status::Success);
    let Some(first) = rest.next() else { return };
    assert!(!sound, "{what}: {first:?}, though nothing went wrong");
    let allowed = [Status::RetryExceeded, Status::Flushed].contains(&first)
        || faults
            .iter()
            .any(|fault| fault.known().statuses.contains(&first));
    assert!(allowed, "{what}: {first:?} of {faults:?}");
    let next = rest.find(|status| *status != Status::Flushed);
    assert_eq!(next, None, "{what}: after an error");
}
