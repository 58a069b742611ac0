// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Regions of dma-bufs that their exporter moves and takes away, while and after they are used. Both ends are in this
//! process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::pair::{Pair, same};
use super::{Case, Env, expect};
use crate::dma_buf::{DmaBuf, Exporter};
use crate::ensure;
use crate::memory::PAGE;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_ON_DEMAND, ACCESS_REMOTE_READ, Change, Errno, Mr, Pd,
    QPS_ERR, SendOp, WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR, WC_REM_OP_ERR, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("dma-buf-moves-under-traffic", moves),
    ("dma-buf-is-revoked", revoked),
    ("dma-buf-changes-while-it-moves", changes),
    ("dma-buf-is-deregistered-while-it-moves", deregistered),
];

/// Bytes of a dma-buf.
const LENGTH: usize = 32 * PAGE;
/// Where in it the region begins, and its bytes.
pub(super) const BEGIN: usize = 3 * PAGE + 104;
const SIZE: usize = 20 * PAGE + 1000;
/// Rounds of traffic.
const ROUNDS: u64 = 36;
/// Time between two moves: enough to bring the pages of a message back and use them, on a busy machine too.
const PAUSE: Duration = Duration::from_millis(4);

/// A dma-buf that a thread moves all the time.
pub(super) struct Restless {
    buf: DmaBuf,
    exporter: Arc<Exporter>,
    moves: Arc<AtomicU64>,
    enough: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Errno>>>,
}

impl Restless {
    pub(super) fn new() -> Outcome<Self> {
        let (buf, exporter) = DmaBuf::moving(LENGTH).during("EXPORTER_EXPORT")?;
        let exporter = Arc::new(exporter);
        let moves = Arc::new(AtomicU64::new(0));
        let enough = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (exporter, moves, enough) = (exporter.clone(), moves.clone(), enough.clone());
            move || {
                while !enough.load(Ordering::Relaxed) {
                    exporter.relocate()?;
                    moves.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
                Ok(())
            }
        });
        Ok(Restless {
            buf,
            exporter,
            moves,
            enough,
            thread: Some(thread),
        })
    }

    /// Registers its middle.
    pub(super) fn region(&self, env: &Env) -> Outcome<Mr> {
        region(env, &self.buf)
    }

    /// Waits until it has moved once more, which must work.
    pub(super) fn moves_on(&self) -> Outcome<()> {
        let before = self.moves.load(Ordering::Relaxed);
        for _ in 0..2000 {
            // One move may have begun before.
            if self.moves.load(Ordering::Relaxed) > before + 1 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Failure("the dma-buf does not move".into()))
    }

    /// Ends the moves. All of them worked, and nobody wrote to what the dma-buf had left.
    pub(super) fn rest(mut self) -> Outcome<()> {
        self.enough.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let moved = thread.join().map_err(|_| Failure("mover".into()))?;
            moved.during("EXPORTER_MOVE")?;
        }
        not_stale(&self.exporter)
    }
}

impl Drop for Restless {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
    }
}

/// Whether the device can follow a dma-buf that moves: if it has on-demand paging.
fn follows(env: &Env) -> bool {
    env.vrnic && Mr::new(&env.pd, PAGE, ACCESS_ALL | ACCESS_ON_DEMAND).is_ok()
}

fn region(env: &Env, buf: &DmaBuf) -> Outcome<Mr> {
    Mr::of_dma_buf(&env.pd, &buf.piece(BEGIN, SIZE), ACCESS_ALL).during("ibv_reg_dmabuf_mr")
}

fn not_stale(exporter: &Exporter) -> Outcome<()> {
    let stale = exporter.stale().during("EXPORTER_STALE")?;
    ensure!(
        stale == 0,
        "{stale} pages were written to after they had been left"
    );
    Ok(())
}

/// A dma-buf of a device that cannot follow moves does not move while it is registered.
fn stays(env: &Env) -> Outcome<()> {
    let (buf, exporter) = DmaBuf::moving(LENGTH).during("EXPORTER_EXPORT")?;
    let region = region(env, &buf)?;
    for refused in [exporter.relocate(), exporter.revoke()] {
        ensure!(refused == Err(Errno(libc::EBUSY)), "pinned: {refused:?}");
    }
    let pair = Pair::new(env)?;
    let plain = env.buffer()?;
    plain.memory().fill(0, 8 * PAGE, 1, 0);
    let write = SendOp::Write(region.addr(BEGIN), region.rkey());
    pair.send(write, &plain, 0, 8 * PAGE)?;
    pair.done()?;
    region.deregister().during("ibv_dereg_mr")?;
    exporter.relocate().during("EXPORTER_MOVE")?;
    let right = buf.memory().check(BEGIN, 8 * PAGE, 1, 0);
    right.map_err(|at| Failure(format!("byte {at} is not what was sent")))
}

/// Every operation, from one dma-buf that moves to another.
fn moves(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    if !follows(env) {
        return stays(env);
    }
    let (near, far) = (Restless::new()?, Restless::new()?);
    let (ours, theirs) = (near.region(env)?, far.region(env)?);
    let pair = Pair::new(env)?;
    // Not all of the region: an offset of its own at either end.
    let (from, to, len) = (BEGIN + 77, BEGIN + PAGE + 5, SIZE - 2 * PAGE);
    for round in 0..ROUNDS {
        ours.memory().fill(from, len, round, 0);
        if round % 3 == 0 {
            pair.ends[1].recv(2, &[theirs.sge(to, len)])?;
            pair.send(SendOp::Send, &ours, from, len)?;
            pair.done()?;
            pair.ends[1].expect(2, WC_SUCCESS)?;
        } else {
            let write = SendOp::Write(theirs.addr(to), theirs.rkey());
            pair.send(write, &ours, from, len)?;
            pair.done()?;
        }
        same(&theirs, to, len, round)?;

        theirs.memory().fill(to, len, round + 1000, 0);
        let read = SendOp::Read(theirs.addr(to), theirs.rkey());
        pair.send(read, &ours, from, len)?;
        pair.done()?;
        same(&ours, from, len, round + 1000)?;

        let word = BEGIN.next_multiple_of(PAGE);
        theirs.memory().store(word, round);
        let add = SendOp::FetchAdd(theirs.addr(word), theirs.rkey(), 7);
        pair.send(add, &ours, word + 8, 8)?;
        pair.done()?;
        let values = [theirs.memory().load(word), ours.memory().load(word + 8)];
        ensure!(
            values == [round + 7, round],
            "fetched and added: {values:?}"
        );
    }
    for buf in [&near, &far] {
        let moves = buf.moves.load(Ordering::Relaxed);
        ensure!(moves >= 10, "only {moves} moves");
    }
    near.rest()?;
    far.rest()
}

/// Once it is taken away, every access fails, at either end and in either role, and nobody else is harmed.
fn revoked(env: &mut Env) -> Outcome<()> {
    if !follows(env) {
        return Ok(());
    }
    let (buf, exporter) = DmaBuf::moving(LENGTH).during("EXPORTER_EXPORT")?;
    let region = region(env, &buf)?;
    let plain = env.buffer()?;
    let bystander = Pair::new(env)?;
    let harmless = || -> Outcome<()> {
        let write = SendOp::Write(plain.addr(8 * PAGE), plain.rkey());
        bystander.send(write, &plain, 0, PAGE)?;
        bystander.done()
    };
    let write = SendOp::Write(region.addr(BEGIN), region.rkey());
    let read = SendOp::Read(region.addr(BEGIN), region.rkey());
    let add = SendOp::FetchAdd(region.addr(BEGIN.next_multiple_of(8)), region.rkey(), 1);
    // It works before, so the device knows all pages.
    let pair = Pair::new(env)?;
    plain.memory().fill(0, 8 * PAGE, 1, 0);
    pair.send(write, &plain, 0, 8 * PAGE)?;
    pair.done()?;
    same(&region, BEGIN, 8 * PAGE, 1)?;

    exporter.revoke().during("EXPORTER_REVOKE")?;
    for (op, status) in [
        (write, WC_REM_ACCESS_ERR),
        (read, WC_REM_ACCESS_ERR),
        (add, WC_REM_ACCESS_ERR),
    ] {
        let pair = Pair::new(env)?;
        let len = if matches!(op, SendOp::FetchAdd(..)) {
            8
        } else {
            PAGE
        };
        pair.send(op, &plain, 0, len)?;
        let done = expect(&pair.ends[0].cq, 1, status);
        done.map_err(|e| Failure(format!("{op:?}: {e}")))?;
        for end in &pair.ends {
            end.expect_state(QPS_ERR)?;
        }
        harmless()?;
    }
    // As what is sent, and as where a read puts what it fetches.
    let fetch = SendOp::Read(plain.addr(0), plain.rkey());
    for op in [SendOp::Write(plain.addr(0), plain.rkey()), fetch] {
        let pair = Pair::new(env)?;
        pair.send(op, &region, BEGIN, PAGE)?;
        let done = expect(&pair.ends[0].cq, 1, WC_LOC_PROT_ERR);
        done.map_err(|e| Failure(format!("locally, {op:?}: {e}")))?;
        pair.ends[0].expect_state(QPS_ERR)?;
        harmless()?;
    }
    let pair = Pair::new(env)?;
    pair.ends[1].recv(2, &[region.sge(BEGIN, PAGE)])?;
    pair.send(SendOp::Send, &plain, 0, PAGE)?;
    expect(&pair.ends[0].cq, 1, WC_REM_OP_ERR)?;
    pair.ends[1].expect(2, WC_LOC_PROT_ERR)?;
    harmless()?;

    let again = Mr::of_dma_buf(&env.pd, &buf.piece(BEGIN, SIZE), ACCESS_ALL).map(|_| ());
    ensure!(
        again == Err(Errno(libc::ENODEV)),
        "registered anew: {again:?}"
    );
    region.deregister().during("ibv_dereg_mr")?;
    not_stale(&exporter)
}

/// Its region gets other rights and another protection domain meanwhile.
fn changes(env: &mut Env) -> Outcome<()> {
    if !follows(env) {
        return Ok(());
    }
    let buf = Restless::new()?;
    let elsewhere = Pd::new(&env.context).during("ibv_alloc_pd")?;
    let plain = env.buffer()?;
    let mut region = buf.region(env)?;
    for round in 0..8 {
        let (pd, other) = if round % 2 == 0 {
            (&elsewhere, &env.pd)
        } else {
            (&env.pd, &elsewhere)
        };
        let writable = round % 4 < 2;
        let access = if writable {
            ACCESS_ALL
        } else {
            ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ
        };
        let change = Change {
            pd: Some(pd),
            access: Some(access),
            ..Default::default()
        };
        region.change_past_library(&change).during("ibv_rereg_mr")?;

        let pair = Pair::of(env, [&env.pd, pd])?;
        region.memory().fill(BEGIN, 8 * PAGE, round, 0);
        let read = SendOp::Read(region.addr(BEGIN), region.rkey());
        pair.send(read, &plain, 0, 8 * PAGE)?;
        pair.done()?;
        same(&plain, 0, 8 * PAGE, round)?;
        let write = SendOp::Write(region.addr(BEGIN), region.rkey());
        pair.send(write, &plain, 0, PAGE)?;
        let status = if writable {
            WC_SUCCESS
        } else {
            WC_REM_ACCESS_ERR
        };
        pair.ends[0].expect(1, status)?;
        // The protection domain that it left.
        let pair = Pair::of(env, [&env.pd, other])?;
        pair.send(read, &plain, 0, PAGE)?;
        pair.ends[0].expect(1, WC_REM_ACCESS_ERR)?;
    }
    region.deregister().during("ibv_dereg_mr")?;
    buf.rest()
}

/// Regions come and go meanwhile, several at the same time.
fn deregistered(env: &mut Env) -> Outcome<()> {
    if !follows(env) {
        return Ok(());
    }
    let buf = Restless::new()?;
    let plain = env.buffer()?;
    let mut last = None;
    for round in 0..24 {
        let region = buf.region(env)?;
        let pair = Pair::new(env)?;
        plain.memory().fill(0, 8 * PAGE, round, 0);
        let write = SendOp::Write(region.addr(BEGIN), region.rkey());
        pair.send(write, &plain, 0, 8 * PAGE)?;
        // Every other region goes while the device is writing to it.
        if round % 2 == 0 {
            pair.done()?;
            same(&region, BEGIN, 8 * PAGE, round)?;
            last = Some(region);
        } else {
            region.deregister().during("ibv_dereg_mr")?;
            let wc = pair.ends[0].cq.wait(super::SOON).during("polling")?;
            let status = wc.ok_or_else(|| Failure("no completion".into()))?.status;
            ensure!(
                [WC_SUCCESS, WC_REM_ACCESS_ERR].contains(&status),
                "status {status} of a write to a region that goes"
            );
        }
    }
    drop(last);
    buf.moves_on()?;
    buf.rest()
}
