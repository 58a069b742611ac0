// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Children of a process with queue pairs: Linux copies the memory that the device uses for them, and whatever a child
//! does with its copy, the device and the parent still share theirs.

use super::pair::{Pair, same};
use super::{ACCESS_ALL, Case, Env};
use crate::memory::{Memory, sleeping_child};
use crate::stress::{During, Outcome};
use crate::verbs::{Mr, SendOp};
use std::process::Command;
use std::sync::Arc;

pub(super) const CASES: &[Case] = &[
    ("fork-and-a-child-that-writes", writing),
    ("fork-and-children-that-stay", staying),
    ("fork-and-exec", executing),
];

/// Bytes of a message, and where it begins: neither is a multiple of anything.
const LENGTH: usize = 10_007;
const OFFSET: usize = 4_001;
/// More requests than a queue has entries, so that all of its pages are used again.
const REQUESTS: u64 = 300;
/// Bytes of the regions, and of a huge page.
const SIZE: usize = 2 << 20;

/// Two regions: of small pages, and of a huge one if there is any.
fn regions(env: &Env) -> Outcome<[Mr; 2]> {
    let memory = [
        Memory::new(SIZE),
        Memory::huge(SIZE).or_else(|_| Memory::new(SIZE)),
    ];
    let [one, other] = memory.map(|memory| -> Outcome<Mr> {
        let memory = Arc::new(memory.during("mmap")?);
        Mr::of(&env.pd, &memory, 0, SIZE, ACCESS_ALL).during("ibv_reg_mr")
    });
    Ok([one?, other?])
}

/// Moves a message to the second region and another one back, and looks at both.
fn round_trip(pair: &Pair, [ours, theirs]: &[Mr; 2], key: u64) -> Outcome<()> {
    ours.memory().fill(OFFSET, LENGTH, key, 0);
    let target = SendOp::Write(theirs.addr(OFFSET), theirs.rkey());
    pair.send(target, ours, OFFSET, LENGTH)?;
    pair.done()?;
    same(theirs, OFFSET, LENGTH, key)?;
    theirs.memory().fill(OFFSET, LENGTH, key + 1, 0);
    let source = SendOp::Read(theirs.addr(OFFSET), theirs.rkey());
    pair.send(source, ours, OFFSET, LENGTH)?;
    pair.done()?;
    same(ours, OFFSET, LENGTH, key + 1)
}

/// A child writes where the device reads and writes, while requests are outstanding.
fn writing(env: &mut Env) -> Outcome<()> {
    let pair = Pair::new(env)?;
    let regions = regions(env)?;
    let [ours, theirs] = &regions;
    for round in 0..8 {
        let key = 10 * round;
        round_trip(&pair, &regions, key)?;
        ours.memory().fill(OFFSET, LENGTH, key + 2, 0);
        let target = SendOp::Write(theirs.addr(OFFSET), theirs.rkey());
        pair.send(target, ours, OFFSET, LENGTH)?;
        let all = [(ours.memory(), 0x11), (theirs.memory(), 0x22)];
        for (memory, value) in all {
            memory
                .set_in_child(0, SIZE, value)
                .during("a child that writes")?;
        }
        pair.done()?;
        same(ours, OFFSET, LENGTH, key + 2)?;
        same(theirs, OFFSET, LENGTH, key + 2)?;
    }
    Ok(())
}

/// Children that have all of the process's memory, rings included, exist while the process goes on.
fn staying(env: &mut Env) -> Outcome<()> {
    let pair = Pair::new(env)?;
    let regions = regions(env)?;
    round_trip(&pair, &regions, 1)?;
    let mut children = Vec::new();
    for key in 2..REQUESTS {
        if key % 100 == 2 {
            children.push(sleeping_child().during("fork")?);
        }
        round_trip(&pair, &regions, 2 * key)?;
    }
    // Objects that are made when a child exists are not the child's.
    round_trip(&Pair::new(env)?, &self::regions(env)?, 1)?;
    drop(children);
    round_trip(&pair, &regions, 1)
}

/// A child becomes another program.
fn executing(env: &mut Env) -> Outcome<()> {
    let pair = Pair::new(env)?;
    let regions = regions(env)?;
    for key in 0..5 {
        let mut child = Command::new("true").spawn().during("starting `true`")?;
        round_trip(&pair, &regions, 2 * key)?;
        crate::ensure!(child.wait()?.success(), "`true` failed");
    }
    Ok(())
}
