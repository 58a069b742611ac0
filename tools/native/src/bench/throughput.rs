// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The largest number of messages that the device can handle.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vrnic_wire::work::send_flags;

use super::Operation;
use crate::pair::End;
use crate::queues::{Patience, request};

/// Largest number of requests posted per queue pair.
const DEPTH: u32 = 64;
/// Number of bytes in flight beyond which more requests bring nothing.
const ENOUGH: usize = 4 << 20;
/// Number of requests posted together to keep the device busy for a while.
const BACKLOG: u32 = 4096;
/// Shortest duration of a window.
const WINDOW: Duration = Duration::from_millis(4);
/// Smallest number of messages in a window, absolute and as a multiple of those that can be in flight. In a smaller
/// window, completions that arrive in bursts would look better than the sustained rate.
const LEAST: u32 = 64;
const TIMES: u32 = 4;

/// A continuous load from the first to the second guest, on all of their queue pairs.
pub struct Load {
    operation: Operation,
    bytes: usize,
    /// Number of requests posted together; the last of them has a completion.
    batch: u32,
    /// Largest number of requests posted per queue pair.
    depth: u32,
    /// For each queue pair, the requests posted and not completed.
    posted: Vec<u32>,
    /// For each queue pair, the receives that have been consumed.
    used: Vec<u32>,
}

impl Load {
    /// Creates a load of messages of one kind; each queue pair posts `batch` of them together.
    pub fn new(
        ends: &mut [End; 2],
        operation: Operation,
        bytes: usize,
        batch: u32,
    ) -> Result<Self> {
        let depth = u32::try_from(ENOUGH / bytes.max(1))
            .unwrap_or(DEPTH)
            .clamp(2, DEPTH);
        let qps = ends[0].qps.len();
        let mut load = Self {
            operation,
            bytes,
            batch: batch.min(depth),
            depth,
            posted: vec![0; qps],
            used: vec![DEPTH; qps],
        };
        for qp in 0..qps {
            load.offer(&mut ends[1], qp)?;
        }
        Ok(load)
    }

    /// Runs the load for `time`. Returns the messages completed per second, window by window, without the first window,
    /// which warms up.
    pub fn windows(&mut self, ends: &mut [End; 2], time: Duration) -> Result<Vec<f64>> {
        let mut rates = Vec::new();
        self.window(ends)?;
        let end = Instant::now() + time;
        while Instant::now() < end || rates.is_empty() {
            rates.push(self.window(ends)?);
        }
        Ok(rates)
    }

    fn window(&mut self, ends: &mut [End; 2]) -> Result<f64> {
        let start = Instant::now();
        let mut messages = 0;
        let mut patience = Patience::new();
        let under_way = self.depth * u32::try_from(self.posted.len())?;
        let least = LEAST.max(TIMES * under_way);
        loop {
            // Reads the clock only once in a while.
            for _ in 0..16 {
                let done = self.turn(ends)?;
                messages += done;
                if done == 0 {
                    patience.look()?;
                }
            }
            let elapsed = start.elapsed();
            if elapsed >= WINDOW && messages >= least {
                return Ok(f64::from(messages) / elapsed.as_secs_f64());
            }
        }
    }

    /// Runs the load until `ended`, for a program that counts something meanwhile. Returns the number of messages.
    pub fn until(&mut self, ends: &mut [End; 2], mut ended: impl FnMut() -> bool) -> Result<u64> {
        let mut messages = 0;
        let mut patience = Patience::new();
        loop {
            for _ in 0..4096 {
                let done = self.turn(ends)?;
                messages += u64::from(done);
                if done == 0 {
                    patience.look()?;
                }
            }
            if ended() {
                return Ok(messages);
            }
        }
    }

    /// Fills all queues that have room, and polls completions. Returns the number of completed messages.
    #[inline]
    pub(super) fn turn(&mut self, ends: &mut [End; 2]) -> Result<u32> {
        let [a, b] = ends;
        for qp in 0..a.qps.len() {
            if self.posted[qp] + self.batch <= self.depth {
                self.post(a, b, qp)?;
            }
        }
        let done = self.take(a)?;
        if self.operation == Operation::Send {
            self.refill(b)?;
        }
        Ok(done)
    }

    /// Posts enough requests to keep the device busy, polling completions in between.
    pub fn fill(&mut self, ends: &mut [End; 2]) -> Result<()> {
        let each = BACKLOG / u32::try_from(self.posted.len())?;
        for _ in 0..each.clamp(self.batch, self.depth) / self.batch {
            self.turn(ends)?;
        }
        Ok(())
    }

    fn post(&mut self, a: &mut End, b: &End, qp: usize) -> Result<()> {
        let mut wanted = request(self.operation.opcode(), qp as u64, self.operation.target(b));
        let element = a.mr.sge(0, self.bytes);
        for n in 1..=self.batch {
            wanted.flags = if n == self.batch {
                send_flags::SIGNALED
            } else {
                0
            };
            ensure!(a.qps[qp].push(&wanted, element)?, "the ring is full");
        }
        self.posted[qp] += self.batch;
        a.qps[qp].ring(&mut a.vm)
    }

    /// Polls completions, each of which stands for a batch.
    fn take(&mut self, a: &mut End) -> Result<u32> {
        let mut done = 0;
        a.sends.drain(64, |cqe| {
            self.posted[cqe.wr_id.get() as usize] -= self.batch;
            done += self.batch;
        })?;
        Ok(done)
    }

    /// Posts receives again.
    fn refill(&mut self, b: &mut End) -> Result<()> {
        let used = &mut self.used;
        let mut full = None;
        b.receives.drain(256, |cqe| {
            let qp = cqe.wr_id.get() as usize;
            used[qp] += 1;
            if used[qp] >= DEPTH / 4 {
                full = Some(qp);
            }
        })?;
        if full.is_some() {
            for qp in 0..self.used.len() {
                if self.used[qp] >= DEPTH / 4 {
                    self.offer(b, qp)?;
                }
            }
        }
        Ok(())
    }

    fn offer(&mut self, b: &mut End, qp: usize) -> Result<()> {
        if self.operation != Operation::Send {
            return Ok(());
        }
        let element = b.mr.sge(0, self.bytes);
        for _ in 0..std::mem::take(&mut self.used[qp]) {
            b.qps[qp].push_receive(qp as u64, element)?;
        }
        b.qps[qp].offer(&mut b.vm)
    }

    /// Waits until nothing is in flight and ends the load.
    pub fn finish(mut self, ends: &mut [End; 2]) -> Result<()> {
        self.settle(ends)?;
        // Everything that was sent has been received.
        ends[1].receives.drain(u32::MAX, |_| {})
    }

    /// Waits until nothing is in flight.
    pub fn settle(&mut self, ends: &mut [End; 2]) -> Result<()> {
        let [a, b] = ends;
        let mut patience = Patience::new();
        while self.posted.iter().any(|&posted| posted > 0) {
            if self.take(a)? == 0 {
                patience.look()?;
            }
            if self.operation == Operation::Send {
                self.refill(b)?;
            }
        }
        Ok(())
    }
}
