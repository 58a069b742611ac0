// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Puts the receives of all QPs of an endpoint into one shared receive queue. Nobody knows beforehand which message a
//! receive will get. So each has room for the longest message, and its content is checked when it completes.

use std::sync::Arc;

use super::initiator::gaps_are_poison;
use super::plan::{Arena, GAP, Limits, Payload, Piece};
use super::responder::RECEIVE;
use super::{During, Failure, Outcome};
use crate::ensure;
use crate::ffi::ibv_srq_attr;
use crate::pattern::POISON;
use crate::rng::Rng;
use crate::verbs::{ACCESS_LOCAL_WRITE, Mr, Pd, SRQ_LIMIT, SRQ_MAX_WR, Sge, Srq};

/// One receive and its memory.
struct Receive {
    pieces: Vec<Piece>,
    /// Bytes of its memory that are looked at
    used: usize,
    posted: bool,
}

/// A shared receive queue and its receives.
pub struct Pool {
    srq: Arc<Srq>,
    memory: Mr,
    limits: Limits,
    receives: Vec<Receive>,
    rng: Rng,
    /// Receives that came
    pub received: u64,
    /// Times the queue was resized with receives in it
    pub resized: u64,
}

impl Pool {
    /// A queue with `count` receives, none of which is posted.
    pub fn new(pd: &Arc<Pd>, limits: Limits, side: u64, count: usize) -> Outcome<Self> {
        let srq =
            Srq::new(pd, count as u32, limits.recv_sge as u32).during("creating a shared queue")?;
        let memory = Mr::new(pd, count * Self::room(&limits), ACCESS_LOCAL_WRITE)
            .during("registering the memory of a shared queue")?;
        memory.memory().set(0, count * Self::room(&limits), POISON);
        let receives = (0..count).map(|_| Receive {
            pieces: Vec::new(),
            used: 0,
            posted: false,
        });
        Ok(Pool {
            srq,
            memory,
            limits,
            receives: receives.collect(),
            rng: Rng::new(&[limits.seed, 0x5129, side]),
            received: 0,
            resized: 0,
        })
    }

    /// Bytes of memory for one receive.
    fn room(limits: &Limits) -> usize {
        limits.max_size + (limits.recv_sge + 2) * GAP as usize
    }

    /// The queue.
    #[must_use]
    pub fn srq(&self) -> &Arc<Srq> {
        &self.srq
    }

    /// Posts the receives that are free; with `hesitate` only some of them. True if anything was posted.
    pub fn post(&mut self, hesitate: bool) -> Outcome<bool> {
        let mut free: Vec<usize> = (0..self.receives.len())
            .filter(|&n| !self.receives[n].posted)
            .collect();
        if hesitate {
            free.truncate(self.rng.below(free.len() as u64 + 1) as usize);
        }
        for &n in &free {
            let mut arena = Arena::new(self.limits.max_size);
            let pieces = arena.pieces(&mut self.rng, self.limits.max_size, self.limits.recv_sge);
            self.receives[n] = Receive {
                pieces,
                used: arena.used(),
                posted: true,
            };
        }
        let sges: Vec<Vec<Sge<'_>>> = free
            .iter()
            .map(|&n| {
                let base = n * Self::room(&self.limits);
                let pieces = self.receives[n].pieces.iter();
                pieces
                    .map(|p| self.memory.sge(base + p.offset, p.len))
                    .collect()
            })
            .collect();
        let wrs: Vec<(u64, &[Sge<'_>])> = free
            .iter()
            .zip(&sges)
            .map(|(&n, sges)| (RECEIVE | n as u64, sges.as_slice()))
            .collect();
        if !wrs.is_empty() {
            self.srq.post_recv(&wrs).map_err(|e| {
                Failure(format!(
                    "posting {} shared receives, {} were taken: {}",
                    wrs.len(),
                    e.taken,
                    e.error
                ))
            })?;
        }
        self.change()?;
        Ok(!free.is_empty())
    }

    /// Now and then the queue moves to another ring, or gets a limit.
    fn change(&mut self) -> Outcome<()> {
        let count = self.receives.len() as u32;
        if self.rng.one_in(500) {
            let max_wr = count << self.rng.below(3);
            let attr = ibv_srq_attr {
                max_wr,
                ..Default::default()
            };
            (self.srq.modify(attr, SRQ_MAX_WR))
                .during(format!("resizing a shared queue to {max_wr}"))?;
            self.resized += 1;
        }
        if self.rng.one_in(500) {
            let srq_limit = self.rng.range(1, u64::from(count)) as u32;
            let attr = ibv_srq_attr {
                srq_limit,
                ..Default::default()
            };
            (self.srq.modify(attr, SRQ_LIMIT))
                .during(format!("setting the limit {srq_limit} of a shared queue"))?;
            let now = self.srq.query().during("ibv_query_srq")?;
            ensure!(
                [0, srq_limit].contains(&now.srq_limit) && now.max_wr >= count,
                "limit {srq_limit} was set, and the shared queue says {now:?}"
            );
        }
        Ok(())
    }

    /// Receive `wr_id` completed with `len` bytes of a message, which is `payload` unless it went elsewhere: checks all
    /// of its memory. It is free then.
    pub fn complete(&mut self, wr_id: u64, len: usize, payload: Option<Payload>) -> Outcome<()> {
        let number = (wr_id & !RECEIVE) as usize;
        ensure!(
            self.receives.get(number).is_some_and(|r| r.posted),
            "shared receive {wr_id:#x} completed and was not posted"
        );
        let base = number * Self::room(&self.limits);
        let memory = self.memory.memory();
        let receive = &mut self.receives[number];
        receive.posted = false;
        let mut written = Vec::new();
        if let Some(payload) = payload {
            let mut done = 0;
            for piece in &receive.pieces {
                let part = piece.len.min(len - done);
                memory
                    .check(base + piece.offset, part, payload.key, payload.from + done)
                    .map_err(|i| {
                        Failure(format!(
                            "byte {} of {len} in shared receive {number} is wrong, into {:?}",
                            done + i,
                            receive.pieces
                        ))
                    })?;
                written.push((piece.offset, part));
                done += part;
            }
        }
        gaps_are_poison(memory, base, receive.used, written.clone()).map_err(|at| {
            Failure(format!(
                "memory of shared receive {number} changed at {at} outside of any message"
            ))
        })?;
        for (at, len) in written {
            memory.set(base + at, len, POISON);
        }
        self.received += 1;
        Ok(())
    }
}
