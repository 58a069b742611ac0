// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! On-demand regions, whose pages are not pinned: RDMA while the process and the kernel move pages and take them back,
//! and accesses where no memory is mapped. Both ends are in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::pair::{Pair, same};
use super::{Case, Env, expect};
use crate::ensure;
use crate::memory::{Memory, PAGE};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_ON_DEMAND, Mr, QPS_ERR, SendOp, Sge, WC_LOC_PROT_ERR,
    WC_REM_ACCESS_ERR, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("paging-every-operation", every_operation),
    ("paging-while-pages-go", while_pages_go),
    ("paging-after-fork", after_fork),
    ("paging-without-memory", without_memory),
    ("paging-never-touched", never_touched),
    ("paging-of-everything", everything),
];

/// Pages of a region.
const PAGES: usize = 64;
/// Bytes of a region.
const LENGTH: usize = PAGES * PAGE;
/// An address where a piece of a region of all memory ends and another begins.
const BORDER: usize = 1 << 40;
/// Rounds of traffic.
const ROUNDS: u64 = 60;

/// Whether the device has such regions; other devices need not.
fn has_paging(env: &Env) -> Outcome<bool> {
    match Mr::new(&env.pd, PAGE, ACCESS_ALL | ACCESS_ON_DEMAND) {
        Ok(_) => Ok(true),
        Err(_) if !env.vrnic => Ok(false),
        Err(e) => Err(Failure(format!("ibv_reg_mr on demand: {e}"))),
    }
}

fn region(env: &Env) -> Outcome<Mr> {
    Mr::new(&env.pd, LENGTH, ACCESS_ALL | ACCESS_ON_DEMAND).during("ibv_reg_mr on demand")
}

/// Every operation, from and to pages that are not there.
fn every_operation(env: &mut Env) -> Outcome<()> {
    if !has_paging(env)? {
        return Ok(());
    }
    let pair = Pair::new(env)?;
    let (ours, theirs) = (region(env)?, region(env)?);
    let len = 10 * PAGE + 123;

    ours.memory().fill(7, len, 1, 0);
    pair.send(
        SendOp::Write(theirs.addr(100), theirs.rkey()),
        &ours,
        7,
        len,
    )?;
    pair.done()?;
    same(&theirs, 100, len, 1)?;

    theirs.memory().fill(20 * PAGE, len, 2, 0);
    ours.memory().forget(0, LENGTH);
    let read = SendOp::Read(theirs.addr(20 * PAGE), theirs.rkey());
    pair.send(read, &ours, 30 * PAGE + 9, len)?;
    pair.done()?;
    same(&ours, 30 * PAGE + 9, len, 2)?;

    theirs.memory().forget(0, LENGTH);
    pair.ends[1].recv(2, &[theirs.sge(40 * PAGE + 1, len)])?;
    pair.send(SendOp::Send, &ours, 30 * PAGE + 9, len)?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    same(&theirs, 40 * PAGE + 1, len, 2)?;

    ours.memory().forget(0, LENGTH);
    theirs.memory().forget(0, LENGTH);
    for round in 0..5 {
        let add = SendOp::FetchAdd(theirs.addr(50 * PAGE), theirs.rkey(), 3);
        pair.send(add, &ours, 51 * PAGE, 8)?;
        pair.done()?;
        ensure!(
            ours.memory().load(51 * PAGE) == 3 * round,
            "fetched in round {round}"
        );
        ours.memory().forget(51 * PAGE, PAGE);
    }
    ensure!(theirs.memory().load(50 * PAGE) == 15, "added up");
    Ok(())
}

/// Traffic while other pages of the same regions go away all the time, and those of the traffic between its rounds.
fn while_pages_go(env: &mut Env) -> Outcome<()> {
    if !has_paging(env)? {
        return Ok(());
    }
    let pair = Pair::new(env)?;
    let (ours, theirs) = (Arc::new(region(env)?), Arc::new(region(env)?));
    let enough = Arc::new(AtomicBool::new(false));
    let churn = {
        let (ours, theirs, enough) = (ours.clone(), theirs.clone(), enough.clone());
        std::thread::spawn(move || {
            while !enough.load(Ordering::Relaxed) {
                for mr in [&ours, &theirs] {
                    mr.memory().set(0, 8 * PAGE, 5);
                    mr.memory().forget(0, 8 * PAGE);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        })
    };
    let traffic = || -> Outcome<()> {
        let len = 30 * PAGE;
        let begin = 9 * PAGE;
        for round in 0..ROUNDS {
            ours.memory().fill(begin, len, round, 0);
            theirs.memory().forget(begin, len);
            if round % 3 == 0 {
                pair.ends[1].recv(2, &[theirs.sge(begin, len)])?;
                pair.send(SendOp::Send, &ours, begin, len)?;
                pair.done()?;
                pair.ends[1].expect(2, WC_SUCCESS)?;
            } else {
                let write = SendOp::Write(theirs.addr(begin), theirs.rkey());
                pair.send(write, &ours, begin, len)?;
                pair.done()?;
            }
            same(&theirs, begin, len, round)?;
            ours.memory().forget(begin, len);
            let read = SendOp::Read(theirs.addr(begin), theirs.rkey());
            pair.send(read, &ours, begin, len)?;
            // Pages that the device is about to read move meanwhile, contents and all.
            theirs.memory().relocate(begin, len);
            pair.done()?;
            same(&ours, begin, len, round)?;
        }
        Ok(())
    };
    let outcome = traffic();
    enough.store(true, Ordering::Relaxed);
    churn.join().map_err(|_| Failure("churn".into()))?;
    outcome
}

/// A page that a child shares is copied when one of the two writes: the device follows the parent.
fn after_fork(env: &mut Env) -> Outcome<()> {
    if !has_paging(env)? {
        return Ok(());
    }
    let pair = Pair::new(env)?;
    let (ours, theirs) = (region(env)?, region(env)?);
    for round in 0..5 {
        ours.memory().fill(0, LENGTH, round, 0);
        let write = |op| pair.send(op, &ours, 0, LENGTH).and_then(|()| pair.done());
        write(SendOp::Write(theirs.addr(0), theirs.rkey()))?;
        let child = crate::memory::sleeping_child().during("fork")?;
        ours.memory().fill(0, LENGTH, round + 100, 0);
        write(SendOp::Write(theirs.addr(0), theirs.rkey()))?;
        same(&theirs, 0, LENGTH, round + 100)?;
        drop(child);
    }
    Ok(())
}

/// Where the process has no memory, or none that it may access, requests fail and nothing hangs.
fn without_memory(env: &mut Env) -> Outcome<()> {
    if !has_paging(env)? {
        return Ok(());
    }
    let (ours, theirs) = (region(env)?, region(env)?);
    for (local, warm) in [(true, false), (false, false), (true, true), (false, true)] {
        let pair = Pair::new(env)?;
        let write = SendOp::Write(theirs.addr(0), theirs.rkey());
        if warm {
            pair.send(write, &ours, 0, LENGTH)?;
            pair.done()?;
        }
        let hole = if local { &ours } else { &theirs };
        hole.memory().close(10 * PAGE, PAGE).during("mprotect")?;
        pair.send(write, &ours, 0, LENGTH)?;
        let status = if local {
            WC_LOC_PROT_ERR
        } else {
            WC_REM_ACCESS_ERR
        };
        expect(&pair.ends[0].cq, 1, status)?;
        pair.ends[0].expect_state(QPS_ERR)?;
        hole.memory().open(10 * PAGE, PAGE).during("mprotect")?;
        // What was refused once is asked for again.
        let pair = Pair::new(env)?;
        pair.send(write, &ours, 0, LENGTH)?;
        pair.done()?;
    }
    Ok(())
}

/// Memory that nobody ever touched reads as zeros, also by the device.
fn never_touched(env: &mut Env) -> Outcome<()> {
    if !has_paging(env)? {
        return Ok(());
    }
    let pair = Pair::new(env)?;
    let (ours, theirs) = (region(env)?, region(env)?);
    ours.memory().fill(0, LENGTH, 1, 0);
    pair.send(
        SendOp::Read(theirs.addr(0), theirs.rkey()),
        &ours,
        0,
        LENGTH,
    )?;
    pair.done()?;
    let zeros = ours.memory().check_set(0, LENGTH, 0);
    zeros.map_err(|at| Failure(format!("byte {at} is not 0")))?;
    // It may be written after it was read.
    ours.memory().fill(0, LENGTH, 2, 0);
    pair.send(
        SendOp::Write(theirs.addr(0), theirs.rkey()),
        &ours,
        0,
        LENGTH,
    )?;
    pair.done()?;
    same(&theirs, 0, LENGTH, 2)
}

/// A region of all of the address space: operations on memory anywhere, also on the border of two of the pieces that it
/// is made of, and on memory that is not there.
fn everything(env: &mut Env) -> Outcome<()> {
    if !env.vrnic || !has_paging(env)? {
        return Ok(());
    }
    let pair = Pair::new(env)?;
    let all = Mr::of_everything(&env.pd, ACCESS_ALL | ACCESS_ON_DEMAND)
        .during("ibv_reg_mr of all memory")?;
    let element =
        |memory: &Memory, offset, len| Sge::raw(memory.addr(offset), len as u32, all.lkey());
    // The border is in the middle of what moves.
    let (len, at) = (10 * PAGE + 123, LENGTH / 2 - 5 * PAGE);
    let border = Memory::at(BORDER - LENGTH / 2, LENGTH).during("mmap")?;
    let other = Memory::new(LENGTH).during("mmap")?;

    border.fill(at, len, 1, 0);
    let write = SendOp::Write(other.addr(7), all.rkey());
    pair.ends[0].send(1, write, &[element(&border, at, len)])?;
    pair.done()?;
    holds(&other, 7, len, 1)?;

    other.forget(0, LENGTH);
    other.fill(7, len, 2, 0);
    let read = SendOp::Read(other.addr(7), all.rkey());
    pair.ends[0].send(1, read, &[element(&border, at, len)])?;
    pair.done()?;
    holds(&border, at, len, 2)?;

    border.forget(at / PAGE * PAGE, 12 * PAGE);
    pair.ends[1].recv(2, &[element(&border, at, len)])?;
    pair.ends[0].send(1, SendOp::Send, &[element(&other, 7, len)])?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    holds(&border, at, len, 2)?;

    for address in [8, 1 << 47, u64::MAX - 64] {
        let pair = Pair::new(env)?;
        let write = SendOp::Write(address, all.rkey());
        pair.ends[0].send(1, write, &[element(&other, 0, 8)])?;
        pair.ends[0].expect(1, WC_REM_ACCESS_ERR)?;
        let pair = Pair::new(env)?;
        pair.ends[0].send(1, SendOp::Send, &[Sge::raw(address, 8, all.lkey())])?;
        pair.ends[0].expect(1, WC_LOC_PROT_ERR)?;
    }
    // It goes, with all of its pieces; what is not on demand cannot be everything.
    all.deregister().during("ibv_dereg_mr")?;
    let pinned = Mr::of_everything(&env.pd, ACCESS_LOCAL_WRITE).map(|_| ());
    ensure!(pinned.is_err(), "all memory was pinned");
    Ok(())
}

fn holds(memory: &Memory, offset: usize, len: usize, key: u64) -> Outcome<()> {
    let right = memory.check(offset, len, key, 0);
    right.map_err(|at| Failure(format!("byte {at:?} at {offset} is not what was sent")))
}
