// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The receiving half of one QP: provides memory for planned batches, checks each receive and, when a batch has
//! closed, every byte it may and may not have changed.

use std::collections::VecDeque;
use std::sync::Arc;

use super::initiator::{SLOTS, gaps_are_poison};
use super::plan::{Batch, GAP, Kind, Limits, Planner};
use super::pool::Pool;
use super::{During, Failure, Outcome};
use crate::ensure;
use crate::ffi::ibv_wc;
use crate::pattern::POISON;
use crate::rng::Rng;
use crate::verbs::{
    ACCESS_FLUSH_GLOBAL, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, Mr, Pd, Qp,
    Sge, WC_RECV, WC_RECV_RDMA_WITH_IMM, WC_SUCCESS, WC_WITH_IMM, opcode_name, status_name,
};

/// Marks the work request id of a receive.
pub const RECEIVE: u64 = 1 << 63;

struct Expected {
    batch: Batch,
    /// Receive requests posted
    posted: usize,
    /// Operations of the batch passed by receives
    passed: usize,
    /// Receives that came
    received: usize,
}

/// The receiving half of one QP.
pub struct Responder {
    index: usize,
    limits: Limits,
    planner: Planner,
    rng: Rng,
    recv: Mr,
    remote: Mr,
    expected: VecDeque<Expected>,
    /// Batches checked, with what the private words must then be
    pub words: [u64; super::plan::WORDS],
    /// Sum that must have been added to the shared word by the batches checked
    pub shared: u64,
    /// Batches checked
    pub checked: u64,
    /// Times that a sender was let run into an empty receive queue
    pub starved: u64,
}

impl Responder {
    /// The half for QP `index` for what `side` initiates; posts the first receives.
    pub fn new(pd: &Arc<Pd>, limits: Limits, side: u64, index: usize) -> Outcome<Self> {
        let size = SLOTS * limits.arena();
        let recv = Mr::new(pd, size, ACCESS_LOCAL_WRITE).during("registering a receive arena")?;
        let mut rights = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ;
        if limits.flush {
            rights |= ACCESS_FLUSH_GLOBAL;
        }
        let remote = Mr::new(pd, size, rights).during("registering a remote arena")?;
        let mut this = Responder {
            index,
            limits,
            planner: Planner::new(limits, side, index),
            rng: Rng::new(&[limits.seed, 0x4e5b, side, index as u64]),
            recv,
            remote,
            expected: VecDeque::new(),
            words: [0; super::plan::WORDS],
            shared: 0,
            checked: 0,
            starved: 0,
        };
        for _ in 0..SLOTS {
            this.expect_next();
        }
        Ok(this)
    }

    /// Address and key of the arena that the peer writes.
    #[must_use]
    pub fn arena(&self) -> (u64, u32) {
        (self.remote.addr(0), self.remote.rkey())
    }

    fn base(&self, number: u64) -> usize {
        (number as usize % SLOTS) * self.limits.arena()
    }

    fn expect_next(&mut self) {
        let batch = self.planner.next_batch();
        let base = self.base(batch.number);
        self.recv
            .memory()
            .set(base, batch.used[1] + GAP as usize, POISON);
        self.remote
            .memory()
            .set(base, batch.used[2] + GAP as usize, POISON);
        self.expected.push_back(Expected {
            batch,
            posted: 0,
            passed: 0,
            received: 0,
        });
    }

    /// Posts the receives not yet posted; with `hesitate` it sometimes posts only a few of them, so that senders meet
    /// an empty queue. True if anything was posted.
    pub fn post(&mut self, qp: &Qp, hesitate: bool) -> Outcome<bool> {
        let mut any = false;
        for at in 0..self.expected.len() {
            let expected = &self.expected[at];
            let base = self.base(expected.batch.number);
            let receives: Vec<Vec<Sge<'_>>> = expected
                .batch
                .ops
                .iter()
                .filter(|o| o.kind.receives())
                .skip(expected.posted)
                .map(|o| {
                    o.recv
                        .iter()
                        .map(|p| self.recv.sge(base + p.offset, p.len))
                        .collect()
                })
                .collect();
            let mut count = receives.len();
            if count == 0 {
                continue;
            }
            if hesitate && self.rng.one_in(2) {
                self.starved += 1;
                count = self.rng.below(count as u64) as usize;
            }
            let first = expected.posted;
            let wrs: Vec<(u64, &[Sge<'_>])> = receives[..count]
                .iter()
                .enumerate()
                .map(|(i, sges)| {
                    (
                        self.wr_id(expected.batch.number, first + i),
                        sges.as_slice(),
                    )
                })
                .collect();
            if !wrs.is_empty() {
                qp.post_recv(&wrs).map_err(|e| {
                    Failure(format!(
                        "QP {}: posting {count} receives, {} were taken: {}",
                        self.index, e.taken, e.error
                    ))
                })?;
            }
            let all = count == receives.len();
            self.expected[at].posted += count;
            any |= count > 0;
            // Receives of the next batch stand behind those of this one.
            if !all {
                break;
            }
        }
        Ok(any)
    }

    fn wr_id(&self, batch: u64, receive: usize) -> u64 {
        RECEIVE | (self.index as u64) << 40 | (batch & 0xff_ffff) << 16 | receive as u64
    }

    /// Checks one receive completion; true when it closed a batch and all of that was right. The receive is one of
    /// `pool` if there is one.
    pub fn complete(&mut self, wc: &ibv_wc, qp: &Qp, pool: Option<&mut Pool>) -> Outcome<bool> {
        let index = self.index;
        let expected = self
            .expected
            .front()
            .ok_or_else(|| Failure(format!("QP {index}: unexpected receive")))?;
        let number = expected.batch.number;
        let base = self.base(number);
        let (op_index, op) = expected
            .batch
            .ops
            .iter()
            .enumerate()
            .skip(expected.passed)
            .find(|(_, o)| o.kind.receives())
            .ok_or_else(|| Failure("a batch has no closing SEND".into()))?;
        let want = self.wr_id(number, expected.received);
        ensure!(
            wc.status == WC_SUCCESS,
            "QP {index}: receive {:#x} (expected {want:#x}) failed: {} vendor {:#x}",
            wc.wr_id,
            status_name(wc.status),
            wc.vendor_err
        );
        ensure!(
            wc.wr_id == want || pool.is_some(),
            "QP {index}: receive {:#x} completed where {want:#x} was next",
            wc.wr_id
        );
        ensure!(
            wc.qp_num == qp.number(),
            "receive {want:#x} names QP {:#x}, not {:#x}",
            wc.qp_num,
            qp.number()
        );
        let send = matches!(op.kind, Kind::Send(_));
        let opcode = if send { WC_RECV } else { WC_RECV_RDMA_WITH_IMM };
        ensure!(
            wc.opcode == opcode,
            "QP {index}: receive of {:?} says {}",
            op.kind,
            opcode_name(wc.opcode)
        );
        ensure!(
            wc.byte_len as usize == op.len,
            "QP {index} batch {number} op {op_index}: {:?} of {} bytes received with byte_len {}",
            op.kind,
            op.len,
            wc.byte_len
        );
        let shared = pool.is_some();
        match op.kind.imm() {
            Some(imm) => ensure!(
                wc.wc_flags & WC_WITH_IMM != 0 && wc.imm_data == imm.to_be(),
                "QP {index}: immediate {:#x} expected, flags {:#x} data {:#x}",
                imm.to_be(),
                wc.wc_flags,
                wc.imm_data
            ),
            None => ensure!(
                wc.wc_flags & WC_WITH_IMM == 0,
                "QP {index}: unexpected immediate data"
            ),
        }
        if let Some(pool) = pool {
            pool.complete(wc.wr_id, op.len, send.then_some(op.payload))
                .map_err(|e| Failure(format!("QP {index} batch {number} op {op_index}: {e}")))?;
        } else if send {
            let mut from = op.payload.from;
            let end = from + op.len;
            for piece in &op.recv {
                let len = piece.len.min(end - from);
                if let Err(i) =
                    self.recv
                        .memory()
                        .check(base + piece.offset, len, op.payload.key, from)
                {
                    return Err(Failure(format!(
                        "QP {index} batch {number} op {op_index}: received byte {} of {} is wrong, {:?}, from {:?} into {:?}",
                        from - op.payload.from + i,
                        op.len,
                        op.kind,
                        op.local,
                        op.recv
                    )));
                }
                from += len;
            }
        }
        let closes = op_index + 1 == expected.batch.ops.len();
        self.expected[0].passed = op_index + 1;
        self.expected[0].received += 1;
        if closes {
            self.check_batch(shared)?;
        }
        Ok(closes)
    }

    /// Checks all memory that the first expected batch could have touched, and makes room for the next one.
    /// Messages went elsewhere if the receives were `shared`.
    fn check_batch(&mut self, shared: bool) -> Outcome<()> {
        let done = self
            .expected
            .pop_front()
            .ok_or_else(|| Failure("no batch".into()))?;
        let (index, number, base) = (self.index, done.batch.number, self.base(done.batch.number));
        let mut received = Vec::new();
        let mut written = Vec::new();
        for (i, op) in done.batch.ops.iter().enumerate() {
            match op.kind {
                Kind::Send(_) if !shared => {
                    let mut left = op.len;
                    for piece in &op.recv {
                        let len = piece.len.min(left);
                        received.push((piece.offset, len));
                        left -= len;
                    }
                }
                Kind::Write { at, .. } | Kind::AtomicWrite { at } => {
                    written.push((at, op.len));
                    if let Err(b) = self.remote.memory().check(
                        base + at,
                        op.len,
                        op.payload.key,
                        op.payload.from,
                    ) {
                        return Err(Failure(format!(
                            "QP {index} batch {number} op {i}: written byte {b} of {} is wrong, from {:?}",
                            op.len, op.local
                        )));
                    }
                }
                _ => {}
            }
        }
        let wrong = |what: &str, at: usize| {
            Failure(format!(
                "QP {index} batch {number}: {what} arena changed at {at} outside of any message"
            ))
        };
        gaps_are_poison(self.recv.memory(), base, done.batch.used[1], received)
            .map_err(|at| wrong("receive", at))?;
        gaps_are_poison(self.remote.memory(), base, done.batch.used[2], written)
            .map_err(|at| wrong("remote", at))?;
        self.words = done.batch.words;
        self.shared = self.shared.wrapping_add(done.batch.shared);
        self.checked += 1;
        self.expect_next();
        Ok(())
    }
}
