// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The sending half of one QP: posts planned batches, checks each completion and what came back.

use std::collections::VecDeque;

use super::plan::{Batch, Kind, Limits, Op, Planner};
use super::{During, Failure, Outcome};
use crate::ensure;
use crate::ffi::ibv_wc;
use crate::memory::Memory;
use crate::pattern::{self, POISON};
use crate::rng::Rng;
use crate::verbs::{
    ACCESS_LOCAL_WRITE, Mr, Pd, Qp, SEND_FENCE, SEND_INLINE, SEND_SIGNALED, SEND_SOLICITED, SendOp,
    SendWr, Sge, WC_SUCCESS, opcode_name, status_name,
};
use std::sync::Arc;

/// Batches under way at a time; the arenas have one slot for each.
pub const SLOTS: usize = 2;

/// Where the peer's memory is.
#[derive(Clone, Copy, Debug)]
pub struct Remote {
    /// Address and key of its remote arenas for this QP
    pub arena: (u64, u32),
    /// Address and key of its static source
    pub source: (u64, u32),
    /// Address and key of this QP's private words
    pub words: (u64, u32),
    /// Address and key of the word that all QPs share
    pub shared: (u64, u32),
}

struct Running {
    batch: Batch,
    slot: usize,
    posted: usize,
    completed: usize,
}

/// The sending half of one QP.
pub struct Initiator {
    index: usize,
    limits: Limits,
    planner: Planner,
    rng: Rng,
    arena: Mr,
    remote: Remote,
    running: VecDeque<Running>,
    outstanding: usize,
    acked: u64,
    started: u64,
    source_key_bytes: u64,
    /// Operations completed
    pub ops: u64,
    /// Flushes and atomic writes among them
    pub placed: u64,
}

fn wr_id(index: usize, batch: u64, op: usize) -> u64 {
    (index as u64) << 40 | (batch & 0xff_ffff) << 16 | op as u64
}

/// Index of the QP that a send work request id names.
#[must_use]
pub fn qp_of(wr_id: u64) -> usize {
    (wr_id >> 40) as usize
}

impl Initiator {
    /// The half for QP `index` of `side`.
    pub fn new(
        pd: &Arc<Pd>,
        limits: Limits,
        side: u64,
        index: usize,
        remote: Remote,
    ) -> Outcome<Self> {
        let arena = Mr::new(pd, SLOTS * limits.arena(), ACCESS_LOCAL_WRITE)
            .during("registering a local arena")?;
        Ok(Initiator {
            index,
            limits,
            planner: Planner::new(limits, side, index),
            rng: Rng::new(&[limits.seed, 0x1417, side, index as u64]),
            arena,
            remote,
            running: VecDeque::new(),
            outstanding: 0,
            acked: 0,
            started: 0,
            source_key_bytes: 0,
            ops: 0,
            placed: 0,
        })
    }

    /// Payload bytes completed.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.source_key_bytes
    }

    /// Batches started so far.
    #[must_use]
    pub fn started(&self) -> u64 {
        self.started
    }

    /// Nothing is under way and the peer has checked everything.
    #[must_use]
    pub fn idle(&self) -> bool {
        self.running.is_empty() && self.acked == self.started
    }

    /// The peer has checked all batches below `count`.
    pub fn acknowledge(&mut self, count: u64) -> Outcome<()> {
        ensure!(
            count > self.acked && count <= self.started,
            "QP {}: acknowledged {count} of {}",
            self.index,
            self.started
        );
        self.acked = count;
        Ok(())
    }

    /// For a watchdog's report.
    #[must_use]
    pub fn state(&self) -> String {
        let running: Vec<String> = self
            .running
            .iter()
            .map(|r| {
                format!(
                    "batch {} posted {} completed {} of {}",
                    r.batch.number,
                    r.posted,
                    r.completed,
                    r.batch.ops.len()
                )
            })
            .collect();
        format!(
            "QP {}: started {} acked {} outstanding {} [{}]",
            self.index,
            self.started,
            self.acked,
            self.outstanding,
            running.join(", ")
        )
    }

    /// What the send request `wr_id` under way is.
    #[must_use]
    pub fn describe(&self, wr_id: u64) -> Option<&Op> {
        let running = self
            .running
            .iter()
            .find(|r| r.batch.number & 0xff_ffff == wr_id >> 16 & 0xff_ffff)?;
        running.batch.ops.get(wr_id as usize & 0xffff)
    }

    fn memory(&self) -> &Memory {
        self.arena.memory()
    }

    fn base(&self, slot: usize) -> usize {
        slot * self.limits.arena()
    }

    fn start(&mut self) {
        let batch = self.planner.next_batch();
        let slot = batch.number as usize % SLOTS;
        let base = self.base(slot);
        self.memory()
            .set(base, batch.used[0] + super::plan::GAP as usize, POISON);
        for op in batch.ops.iter().filter(|o| !o.kind.fetches() && !o.fenced) {
            let mut at = op.payload.from;
            for piece in &op.local {
                self.memory()
                    .fill(base + piece.offset, piece.len, op.payload.key, at);
                at += piece.len;
            }
        }
        self.started += 1;
        self.running.push_back(Running {
            batch,
            slot,
            posted: 0,
            completed: 0,
        });
    }

    /// Posts what fits; true if anything was posted. New batches start only while `more` is set.
    pub fn post(&mut self, qp: &Qp, more: bool) -> Outcome<bool> {
        if more && self.running.len() < SLOTS && self.started < self.acked + SLOTS as u64 {
            self.start();
        }
        let mut any = false;
        for at in 0..self.running.len() {
            loop {
                let running = &self.running[at];
                let left = running.batch.ops.len() - running.posted;
                let room = self.limits.sq_depth - self.outstanding;
                let chain = (self.rng.range(1, 8) as usize).min(left).min(room);
                if chain == 0 {
                    break;
                }
                self.post_chain(qp, &self.running[at], chain)?;
                self.running[at].posted += chain;
                self.outstanding += chain;
                any = true;
            }
        }
        Ok(any)
    }

    fn post_chain(&self, qp: &Qp, running: &Running, chain: usize) -> Outcome<()> {
        let base = self.base(running.slot);
        let remote_base = self.remote.arena.0 + base as u64;
        let ops = &running.batch.ops[running.posted..running.posted + chain];
        let sges: Vec<Vec<Sge<'_>>> = ops
            .iter()
            .map(|op| {
                op.local
                    .iter()
                    .map(|p| self.arena.sge(base + p.offset, p.len))
                    .collect()
            })
            .collect();
        let wrs: Vec<SendWr<'_>> = ops
            .iter()
            .zip(&sges)
            .enumerate()
            .map(|(i, (op, sges))| {
                let (source, words, shared) =
                    (self.remote.source, self.remote.words, self.remote.shared);
                let send = match op.kind {
                    Kind::Send(None) => SendOp::Send,
                    Kind::Send(Some(imm)) => SendOp::SendImm(imm),
                    Kind::Write { at, imm: None } => {
                        SendOp::Write(remote_base + at as u64, self.remote.arena.1)
                    }
                    Kind::Write { at, imm: Some(imm) } => {
                        SendOp::WriteImm(remote_base + at as u64, self.remote.arena.1, imm)
                    }
                    Kind::AtomicWrite { at } => {
                        let mut value = [0; 8];
                        pattern::fill(op.payload.key, op.payload.from, &mut value);
                        SendOp::AtomicWrite(remote_base + at as u64, self.remote.arena.1, value)
                    }
                    Kind::Flush {
                        range: Some((at, len)),
                    } => SendOp::Flush(remote_base + at as u64, self.remote.arena.1, len),
                    Kind::Flush { range: None } => SendOp::FlushAll(self.remote.arena.1),
                    Kind::ReadSource { at } => SendOp::Read(source.0 + at as u64, source.1),
                    Kind::ReadBack { at } => {
                        SendOp::Read(remote_base + at as u64, self.remote.arena.1)
                    }
                    Kind::Cas {
                        word,
                        compare,
                        swap,
                        ..
                    } => SendOp::Cas(words.0 + 8 * word as u64, words.1, compare, swap),
                    Kind::FetchAdd { word, add, .. } => {
                        SendOp::FetchAdd(words.0 + 8 * word as u64, words.1, add)
                    }
                    Kind::SharedAdd { add } => SendOp::FetchAdd(shared.0, shared.1, add),
                };
                let mut flags = 0;
                for (on, flag) in [
                    (op.signalled, SEND_SIGNALED),
                    (op.solicited && op.kind.receives(), SEND_SOLICITED),
                    (op.inline, SEND_INLINE),
                    (op.fenced || op.closes, SEND_FENCE),
                ] {
                    flags |= if on { flag } else { 0 };
                }
                let id = wr_id(self.index, running.batch.number, running.posted + i);
                SendWr {
                    wr_id: id,
                    op: send,
                    sges,
                    flags,
                }
            })
            .collect();
        qp.post_send(&wrs).map_err(|e| {
            Failure(format!(
                "QP {}: posting {chain} send requests, {} were taken: {}",
                self.index, e.taken, e.error
            ))
        })
    }

    /// Checks one completion of this half.
    pub fn complete(&mut self, wc: &ibv_wc, qp: &Qp) -> Outcome<()> {
        let running = self.running.front().ok_or_else(|| {
            Failure(format!(
                "QP {}: a completion {:#x} that nothing waits for",
                self.index, wc.wr_id
            ))
        })?;
        // Completions come in order, so this is for the first signalled request not yet completed.
        let number = running.batch.number;
        let op_index = (running.completed..running.batch.ops.len())
            .find(|i| running.batch.ops[*i].signalled)
            .ok_or_else(|| Failure("a batch has no signalled end".into()))?;
        let want = wr_id(self.index, number, op_index);
        let op = &running.batch.ops[op_index];
        ensure!(
            wc.status == WC_SUCCESS,
            "QP {}: wr_id {:#x} (expected {want:#x}, {:?}) failed: {} vendor {:#x}",
            self.index,
            wc.wr_id,
            op,
            status_name(wc.status),
            wc.vendor_err
        );
        ensure!(
            wc.wr_id == want,
            "QP {}: completion of wr_id {:#x} where {want:#x} was next",
            self.index,
            wc.wr_id
        );
        ensure!(
            op_index < running.posted,
            "QP {}: completion of {want:#x} before it was posted",
            self.index
        );
        ensure!(
            wc.qp_num == qp.number(),
            "completion of {want:#x} names QP {:#x}, not {:#x}",
            wc.qp_num,
            qp.number()
        );
        let opcode = match op.kind {
            Kind::Send(_) => crate::verbs::WC_SEND,
            Kind::Write { .. } => crate::verbs::WC_RDMA_WRITE,
            Kind::AtomicWrite { .. } => crate::verbs::WC_ATOMIC_WRITE,
            Kind::Flush { .. } => crate::verbs::WC_FLUSH,
            Kind::ReadSource { .. } | Kind::ReadBack { .. } => crate::verbs::WC_RDMA_READ,
            Kind::Cas { .. } => crate::verbs::WC_COMP_SWAP,
            Kind::FetchAdd { .. } | Kind::SharedAdd { .. } => crate::verbs::WC_FETCH_ADD,
        };
        ensure!(
            wc.opcode == opcode,
            "QP {}: completion of {:?} says {}",
            self.index,
            op.kind,
            opcode_name(wc.opcode)
        );
        if op.kind.fetches() {
            ensure!(
                wc.byte_len as usize == op.len,
                "QP {}: {:?} of {} bytes completed with byte_len {}",
                self.index,
                op.kind,
                op.len,
                wc.byte_len
            );
        }
        let (slot, first) = (running.slot, running.completed);
        for op in &running.batch.ops[first..=op_index] {
            self.check_local(op, slot, number)?;
        }
        let done = op_index + 1 - first;
        self.ops += done as u64;
        let places = |o: &&Op| matches!(o.kind, Kind::AtomicWrite { .. } | Kind::Flush { .. });
        let completed = running.batch.ops[first..=op_index].iter();
        self.placed += completed.filter(places).count() as u64;
        self.source_key_bytes += running.batch.ops[first..=op_index]
            .iter()
            .map(|o| o.len as u64)
            .sum::<u64>();
        self.outstanding -= done;
        self.running[0].completed = op_index + 1;
        if op_index + 1 == self.running[0].batch.ops.len() {
            let finished = self
                .running
                .pop_front()
                .ok_or_else(|| Failure("no batch".into()))?;
            self.check_gaps(&finished)?;
        }
        Ok(())
    }

    /// What a READ or atomic fetched is right, and a source was not changed.
    fn check_local(&self, op: &Op, slot: usize, batch: u64) -> Outcome<()> {
        let base = self.base(slot);
        let got = || self.memory().load(base + op.local[0].offset);
        let before = match op.kind {
            Kind::Cas { before, .. } | Kind::FetchAdd { before, .. } => before,
            Kind::SharedAdd { .. } => return Ok(()),
            _ => {
                let mut from = op.payload.from;
                for piece in &op.local {
                    if let Err(i) =
                        self.memory()
                            .check(base + piece.offset, piece.len, op.payload.key, from)
                    {
                        return Err(Failure(format!(
                            "QP {} batch {batch}: local byte {} of {} is wrong after {:?}, pieces {:?}",
                            self.index,
                            from - op.payload.from + i,
                            op.len,
                            op.kind,
                            op.local
                        )));
                    }
                    from += piece.len;
                }
                return Ok(());
            }
        };
        ensure!(
            got() == before,
            "QP {} batch {batch}: {:?} returned {:#x}, not {before:#x}",
            self.index,
            op.kind,
            got()
        );
        Ok(())
    }

    fn check_gaps(&self, finished: &Running) -> Outcome<()> {
        let pieces = finished
            .batch
            .ops
            .iter()
            .flat_map(|o| o.local.iter().map(|p| (p.offset, p.len)));
        gaps_are_poison(
            self.memory(),
            self.base(finished.slot),
            finished.batch.used[0],
            pieces.collect(),
        )
        .map_err(|at| {
            Failure(format!(
                "QP {} batch {}: local arena changed at {at} outside of any request",
                self.index, finished.batch.number
            ))
        })
    }
}

/// Checks that everything outside `ranges` in the first `used` bytes at `base`, and the guard behind them, is still
/// poison; the offset of the first changed byte is the error.
pub fn gaps_are_poison(
    memory: &Memory,
    base: usize,
    used: usize,
    mut ranges: Vec<(usize, usize)>,
) -> Result<(), usize> {
    ranges.sort_unstable();
    ranges.push((used + super::plan::GAP as usize, 0));
    let mut at = 0;
    for (start, len) in ranges {
        if start > at {
            memory
                .check_set(base + at, start - at, POISON)
                .map_err(|i| at + i)?;
        }
        at = at.max(start + len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_gap_is_found() {
        let m = Memory::new(4096).unwrap();
        m.set(0, 4096, POISON);
        m.set(110, 10, 0);
        m.set(130, 5, 0);
        assert_eq!(
            gaps_are_poison(&m, 100, 40, vec![(30, 5), (10, 10)]),
            Ok(())
        );
        m.set(125, 1, 0);
        assert_eq!(
            gaps_are_poison(&m, 100, 40, vec![(30, 5), (10, 10)]),
            Err(25)
        );
        m.set(125, 1, POISON);
        m.set(140, 1, 1);
        assert_eq!(
            gaps_are_poison(&m, 100, 40, vec![(10, 10), (30, 5)]),
            Err(40)
        );
    }
}
