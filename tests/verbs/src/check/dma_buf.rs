// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Regions of dma-bufs: RDMA from and to memory that is named by a file descriptor, not by an address. Both ends are in
//! this process.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::pair::{Pair, same};
use super::{Case, Env, expect};
use crate::dma_buf::{DmaBuf, Piece};
use crate::ensure;
use crate::memory::{Memory, PAGE, memory_file};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_ON_DEMAND, ACCESS_REMOTE_READ, Errno, Mr, QPS_ERR,
    SendOp, WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("dma-buf-every-operation", every_operation),
    ("dma-buf-bounds-and-rights", bounds_and_rights),
    ("dma-buf-stays-while-registered", stays),
    ("dma-buf-is-refused-where-it-cannot-be", refused),
];

/// Bytes of the dma-buf.
const LENGTH: usize = 16 * PAGE;
/// Where in it the region begins and ends.
const BEGIN: usize = 3 * PAGE + 104;
const END: usize = 12 * PAGE + 1000;
const SIZE: usize = END - BEGIN;
/// What is in the dma-buf around the region.
const GUARD: u8 = 0xa5;

/// A dma-buf, if the device takes any; other devices need not.
fn dma_buf(env: &Env) -> Outcome<Option<DmaBuf>> {
    let buf = DmaBuf::new(LENGTH).during("UDMABUF_CREATE")?;
    match Mr::of_dma_buf(&env.pd, &buf.piece(0, PAGE), ACCESS_ALL) {
        Ok(_) => Ok(Some(buf)),
        Err(_) if !env.vrnic => Ok(None),
        Err(e) => Err(Failure(format!("ibv_reg_dmabuf_mr: {e}"))),
    }
}

fn register(env: &Env, piece: &Piece, access: i32) -> Outcome<Mr> {
    Mr::of_dma_buf(&env.pd, piece, access).during("ibv_reg_dmabuf_mr")
}

/// Nothing has changed around the region.
fn guarded(buf: &DmaBuf) -> Outcome<()> {
    for (offset, len) in [(0, BEGIN), (END, LENGTH - END)] {
        let intact = buf.memory().check_set(offset, len, GUARD);
        intact.map_err(|at| Failure(format!("byte {} was changed", offset + at)))?;
    }
    Ok(())
}

/// Every operation, with the dma-buf at either end, and what it does is seen by the process.
fn every_operation(env: &mut Env) -> Outcome<()> {
    let Some(buf) = dma_buf(env)? else {
        return Ok(());
    };
    buf.memory().set(0, LENGTH, GUARD);
    let region = register(env, &buf.piece(BEGIN, SIZE), ACCESS_ALL)?;
    let plain = env.buffer()?;
    let pair = Pair::new(env)?;

    plain.memory().fill(0, SIZE, 1, 0);
    let write = SendOp::Write(region.addr(BEGIN), region.rkey());
    pair.send(write, &plain, 0, SIZE)?;
    pair.done()?;
    same(&region, BEGIN, SIZE, 1)?;

    region.memory().fill(BEGIN, SIZE, 2, 0);
    let read = SendOp::Read(region.addr(BEGIN), region.rkey());
    pair.send(read, &plain, 0, SIZE)?;
    pair.done()?;
    same(&plain, 0, SIZE, 2)?;

    pair.ends[1].recv(2, &[plain.sge(0, SIZE)])?;
    region.memory().fill(BEGIN, SIZE, 3, 0);
    pair.send(SendOp::Send, &region, BEGIN, SIZE)?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    same(&plain, 0, SIZE, 3)?;

    pair.ends[1].recv(2, &[region.sge(BEGIN, SIZE)])?;
    plain.memory().fill(0, SIZE, 4, 0);
    pair.send(SendOp::Send, &plain, 0, SIZE)?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    same(&region, BEGIN, SIZE, 4)?;

    let word = 5 * PAGE;
    region.memory().store(word, 40);
    let add = SendOp::FetchAdd(region.addr(word), region.rkey(), 2);
    pair.send(add, &region, word + 8, 8)?;
    pair.done()?;
    let values = [region.memory().load(word), region.memory().load(word + 8)];
    ensure!(values == [42, 40], "fetched and added: {values:?}");

    // The same memory under other addresses, at the same time.
    let elsewhere = Piece {
        iova: (7 << 32) + BEGIN as u64 % PAGE as u64,
        ..buf.piece(BEGIN, SIZE)
    };
    let other = register(env, &elsewhere, ACCESS_ALL)?;
    plain.memory().fill(0, SIZE, 5, 0);
    let write = SendOp::Write(elsewhere.iova, other.rkey());
    pair.send(write, &plain, 0, SIZE)?;
    pair.done()?;
    same(&region, BEGIN, SIZE, 5)?;
    guarded(&buf)
}

/// What lies outside the region or is not permitted fails, and changes nothing.
fn bounds_and_rights(env: &mut Env) -> Outcome<()> {
    let Some(buf) = dma_buf(env)? else {
        return Ok(());
    };
    let plain = env.buffer()?;
    buf.memory().set(0, LENGTH, GUARD);
    let all = register(env, &buf.piece(BEGIN, SIZE), ACCESS_ALL)?;
    let readable = register(env, &buf.piece(BEGIN, SIZE), ACCESS_REMOTE_READ)?;
    let write = |mr: &Mr, offset| SendOp::Write(mr.addr(offset), mr.rkey());
    let last = END - 16;
    for (what, op, status) in [
        ("before it", write(&all, BEGIN - 1), WC_REM_ACCESS_ERR),
        ("beyond it", write(&all, last + 1), WC_REM_ACCESS_ERR),
        ("not writable", write(&readable, BEGIN), WC_REM_ACCESS_ERR),
        ("its end", write(&all, last), WC_SUCCESS),
    ] {
        let pair = Pair::new(env)?;
        pair.send(op, &plain, 0, 16)?;
        expect(&pair.ends[0].cq, 1, status).map_err(|e| Failure(format!("{what}: {e}")))?;
        if status != WC_SUCCESS {
            pair.ends[0].expect_state(QPS_ERR)?;
            let intact = buf.memory().check_set(0, LENGTH, GUARD);
            intact.map_err(|at| Failure(format!("{what}: byte {at} was changed")))?;
        }
    }
    // Locally it is written only if the owner said so.
    let pair = Pair::new(env)?;
    let read = SendOp::Read(all.addr(BEGIN), all.rkey());
    pair.send(read, &readable, BEGIN, 16)?;
    expect(&pair.ends[0].cq, 1, WC_LOC_PROT_ERR)?;

    // Nobody has a key that is gone.
    let (address, rkey) = (all.addr(BEGIN), all.rkey());
    all.deregister().during("ibv_dereg_mr")?;
    let pair = Pair::new(env)?;
    pair.send(SendOp::Write(address, rkey), &plain, 0, 16)?;
    expect(&pair.ends[0].cq, 1, WC_REM_ACCESS_ERR)?;
    guarded(&buf)
}

/// The region has its memory when the process has neither mapping nor descriptor any more.
fn stays(env: &mut Env) -> Outcome<()> {
    let Some(buf) = dma_buf(env)? else {
        return Ok(());
    };
    let plain = env.buffer()?;
    buf.memory().fill(BEGIN, SIZE, 1, 0);
    let piece = Piece {
        memory: Arc::new(Memory::new(1).during("mmap")?),
        ..buf.piece(BEGIN, SIZE)
    };
    let region = register(env, &piece, ACCESS_ALL)?;
    drop(buf);
    let others: Vec<_> = (0..64).map(|_| env.buffer()).collect::<Outcome<_>>()?;

    let pair = Pair::new(env)?;
    let read = SendOp::Read(piece.iova, region.rkey());
    pair.send(read, &plain, 0, SIZE)?;
    pair.done()?;
    same(&plain, 0, SIZE, 1)?;
    plain.memory().fill(0, SIZE, 2, 0);
    let write = SendOp::Write(piece.iova, region.rkey());
    pair.send(write, &plain, 0, SIZE)?;
    pair.done()?;
    plain.memory().set(0, SIZE, 0);
    pair.send(read, &plain, 0, SIZE)?;
    pair.done()?;
    same(&plain, 0, SIZE, 2)?;
    // What was written is in nobody else's memory.
    for other in &others {
        let blank = other.memory().check_set(0, super::BUFFER, 0);
        blank.map_err(|at| Failure(format!("byte {at} of other memory was changed")))?;
    }
    Ok(())
}

/// What is no dma-buf, or not as long, is not registered.
fn refused(env: &mut Env) -> Outcome<()> {
    let Some(buf) = dma_buf(env)? else {
        return Ok(());
    };
    let good = buf.piece(BEGIN, SIZE);
    let file = memory_file(LENGTH).during("memfd_create")?;
    let piece = |fd, offset, len, iova| Piece {
        fd,
        offset,
        len,
        iova,
        ..good.clone()
    };
    let (fd, iova) = (good.fd, good.iova);
    for (what, bad, error) in [
        ("no file", piece(-1, BEGIN, SIZE, iova), libc::EBADF),
        (
            "another file",
            piece(file.as_raw_fd(), BEGIN, SIZE, iova),
            libc::EINVAL,
        ),
        ("no length", piece(fd, BEGIN, 0, iova), libc::EINVAL),
        ("too long", piece(fd, BEGIN, LENGTH, iova), libc::EINVAL),
        (
            "far beyond it",
            piece(fd, LENGTH + BEGIN, SIZE, iova),
            libc::EINVAL,
        ),
        (
            "wraps around",
            piece(fd, usize::MAX - PAGE + 1 + BEGIN % PAGE, SIZE, iova),
            libc::EINVAL,
        ),
        (
            "another place in the page",
            piece(fd, BEGIN, SIZE, iova + 8),
            libc::EINVAL,
        ),
        (
            "addresses that wrap around",
            piece(
                fd,
                BEGIN,
                SIZE,
                u64::MAX - PAGE as u64 + 1 + iova % PAGE as u64,
            ),
            libc::EINVAL,
        ),
    ] {
        let outcome = Mr::of_dma_buf(&env.pd, &bad, ACCESS_ALL).map(|_| ());
        ensure!(outcome == Err(Errno(error)), "{what}: {outcome:?}");
    }
    let on_demand = ACCESS_LOCAL_WRITE | ACCESS_ON_DEMAND;
    let outcome = Mr::of_dma_buf(&env.pd, &good, on_demand).map(|_| ());
    ensure!(
        outcome == Err(Errno(libc::EINVAL)),
        "on demand: {outcome:?}"
    );
    register(env, &good, ACCESS_ALL).map(|_| ())
}
