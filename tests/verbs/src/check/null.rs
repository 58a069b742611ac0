// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Null regions: they read as zeros at every address and discard writes. Both ends are in this process.

use super::pair::{Pair, same};
use super::{BUFFER, Case, Env};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{Mr, SendOp, Sge, WC_REM_ACCESS_ERR, WC_SUCCESS};

pub(super) const CASES: &[Case] = &[
    ("null-region-gives-zeros", gives_zeros),
    ("null-region-keeps-nothing", keeps_nothing),
    ("null-region-is-unknown-to-peers", unknown_to_peers),
];

/// Bytes of the regions that are not null.
const LENGTH: usize = BUFFER;
/// Addresses that no memory of this process has.
const SOMEWHERE: u64 = 0x1234_5678;
const AT_THE_END: u64 = u64::MAX - 10;

/// A null region, if the device has any; other devices need not.
fn null(env: &Env) -> Outcome<Option<Mr>> {
    match Mr::null(&env.pd) {
        Ok(region) => Ok(Some(region)),
        Err(_) if !env.vrnic => Ok(None),
        Err(e) => Err(Failure(format!("ibv_alloc_null_mr: {e}"))),
    }
}

fn zeros(mr: &Mr, offset: usize, len: usize) -> Outcome<()> {
    let zeros = mr.memory().check_set(offset, len, 0);
    zeros.map_err(|at| Failure(format!("byte {} is not zero", offset + at)))
}

/// Messages of zeros, and of zeros around other bytes, by every operation that carries some.
fn gives_zeros(env: &mut Env) -> Outcome<()> {
    let Some(null) = null(env)? else {
        return Ok(());
    };
    let pair = Pair::new(env)?;
    let (from, to) = (env.buffer()?, env.buffer()?);
    from.memory().fill(0, LENGTH, 7, 0);
    let element = |address, len| Sge::raw(address, len, null.lkey());

    to.memory().set(0, LENGTH, 0xff);
    let write = SendOp::Write(to.addr(0), to.rkey());
    pair.ends[0].send(1, write, &[element(AT_THE_END, LENGTH as u32)])?;
    pair.done()?;
    zeros(&to, 0, LENGTH)?;

    to.memory().set(0, LENGTH, 0xff);
    pair.ends[1].recv(2, &[to.sge(0, LENGTH)])?;
    let elements = [element(SOMEWHERE, 1), from.sge(0, 3000), element(0, 9000)];
    pair.ends[0].send(1, SendOp::Send, &elements)?;
    pair.done()?;
    let received = pair.ends[1].expect(2, WC_SUCCESS)?;
    ensure!(received.byte_len == 12_001, "{received:?}");
    zeros(&to, 0, 1)?;
    same(&to, 1, 3000, 7)?;
    zeros(&to, 3001, 9000)?;
    let rest = to.memory().check_set(12_001, LENGTH - 12_001, 0xff);
    rest.map_err(|at| Failure(format!("byte {} was changed", 12_001 + at)))
}

/// What is received, read, or was there before an atomic, goes nowhere, and all else where it belongs.
fn keeps_nothing(env: &mut Env) -> Outcome<()> {
    let Some(null) = null(env)? else {
        return Ok(());
    };
    let pair = Pair::new(env)?;
    let (here, there) = (env.buffer()?, env.buffer()?);
    let element = |address, len| Sge::raw(address, len, null.lkey());

    here.memory().fill(0, 5000, 3, 0);
    there.memory().set(0, LENGTH, 0xff);
    pair.ends[1].recv(2, &[element(SOMEWHERE, 2000), there.sge(2000, 3000)])?;
    pair.send(SendOp::Send, &here, 0, 5000)?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    let before = there.memory().check_set(0, 2000, 0xff);
    before.map_err(|at| Failure(format!("byte {at} was changed")))?;
    let received = there.memory().check(2000, 3000, 3, 2000);
    received.map_err(|at| Failure(format!("byte {at} behind the hole is not what was sent")))?;

    let read = SendOp::Read(there.addr(0), there.rkey());
    pair.ends[0].send(1, read, &[element(AT_THE_END, LENGTH as u32)])?;
    pair.done()?;

    there.memory().store(0, 0);
    let add = SendOp::FetchAdd(there.addr(0), there.rkey(), 5);
    for _ in 0..2 {
        pair.ends[0].send(1, add, &[element(SOMEWHERE, 8)])?;
        pair.done()?;
    }
    let sum = there.memory().load(0);
    ensure!(sum == 10, "the sum is {sum}");
    Ok(())
}

/// Its key is none for the other end of a connection.
fn unknown_to_peers(env: &mut Env) -> Outcome<()> {
    let Some(null) = null(env)? else {
        return Ok(());
    };
    let here = env.buffer()?;
    let key = null.lkey();
    for op in [SendOp::Write(0, key), SendOp::Read(0, key)] {
        let pair = Pair::new(env)?;
        pair.send(op, &here, 0, 64)?;
        pair.ends[0].expect(1, WC_REM_ACCESS_ERR)?;
    }
    null.deregister().during("ibv_dereg_mr")?;
    Ok(())
}
