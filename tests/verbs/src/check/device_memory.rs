// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Device memory: it is copied to and from, and regions of it are used at both ends, which are in this process.

use super::pair::{Pair, same};
use super::{Case, Env};
use crate::ensure;
use crate::memory::PAGE;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_MW_BIND, ACCESS_ZERO_BASED, Dm, Errno, SendOp, Sge,
    WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("device-memory-every-operation", every_operation),
    ("device-memory-bounds-and-rights", bounds_and_rights),
    ("device-memory-at-its-limit", limit),
];

/// Bytes of the buffer.
const LENGTH: usize = 3 * PAGE + 100;
/// Where in it the region begins, and its bytes.
const BEGIN: usize = PAGE - 8;
const SIZE: usize = PAGE + 64;
/// What is in the buffer around the region.
const GUARD: u8 = 0xa5;
/// Rights of a region of device memory, whose addresses count from 0.
const ALL: i32 = ACCESS_ALL | ACCESS_ZERO_BASED;

/// A buffer full of guard bytes, if the device has such memory; other devices need not.
fn buffer(env: &Env) -> Outcome<Option<Dm>> {
    if env
        .context
        .device_attr_ex()
        .during("ibv_query_device_ex")?
        .max_dm_size
        == 0
    {
        ensure!(!env.vrnic, "there is no device memory");
        return Ok(None);
    }
    let dm = Dm::new(&env.context, LENGTH, 6).during("ibv_alloc_dm")?;
    let mut fresh = vec![1; LENGTH];
    dm.read(0, &mut fresh).during("ibv_memcpy_from_dm")?;
    ensure!(
        fresh.iter().all(|&byte| byte == 0),
        "new device memory is not zeroed"
    );
    dm.write(0, &[GUARD; LENGTH]).during("ibv_memcpy_to_dm")?;
    Ok(Some(dm))
}

/// What is in the region, and nothing has changed around it.
fn content(dm: &Dm) -> Outcome<Vec<u8>> {
    let mut all = vec![0; LENGTH];
    dm.read(0, &mut all).during("ibv_memcpy_from_dm")?;
    let around = all[..BEGIN].iter().chain(&all[BEGIN + SIZE..]);
    ensure!(
        around.copied().all(|byte| byte == GUARD),
        "bytes around the region were changed"
    );
    Ok(all[BEGIN..BEGIN + SIZE].to_vec())
}

/// What moves in each direction, at either end, is what the other way of access finds.
fn every_operation(env: &mut Env) -> Outcome<()> {
    let Some(dm) = buffer(env)? else {
        return Ok(());
    };
    let region = dm
        .region(&env.pd, BEGIN, SIZE, ALL)
        .during("ibv_reg_dm_mr")?;
    let plain = env.buffer()?;
    let pair = Pair::new(env)?;
    let here = Sge::raw(0, SIZE as u32, region.lkey());
    let bytes = |key| {
        plain.memory().fill(0, SIZE, key, 0);
        let mut bytes = vec![0; SIZE];
        plain.memory().read(0, &mut bytes);
        bytes
    };

    let written = bytes(1);
    pair.send(SendOp::Write(0, region.rkey()), &plain, 0, SIZE)?;
    pair.done()?;
    ensure!(content(&dm)? == written, "the written data is missing");

    let mut copied = bytes(2);
    dm.write(BEGIN, &copied).during("ibv_memcpy_to_dm")?;
    plain.memory().set(0, SIZE, 0);
    pair.send(SendOp::Read(0, region.rkey()), &plain, 0, SIZE)?;
    pair.done()?;
    same(&plain, 0, SIZE, 2)?;

    plain.memory().set(0, SIZE, 0);
    pair.ends[1].recv(2, &[plain.sge(0, SIZE)])?;
    pair.ends[0].send(1, SendOp::Send, &[here])?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    same(&plain, 0, SIZE, 2)?;

    let sent = bytes(3);
    pair.ends[1].recv(2, &[here])?;
    pair.send(SendOp::Send, &plain, 0, SIZE)?;
    pair.done()?;
    pair.ends[1].expect(2, WC_SUCCESS)?;
    ensure!(content(&dm)? == sent, "the received data is missing");

    copied[..8].copy_from_slice(&41_u64.to_ne_bytes());
    dm.write(BEGIN, &copied).during("ibv_memcpy_to_dm")?;
    pair.send(SendOp::FetchAdd(0, region.rkey(), 1), &plain, 0, 8)?;
    pair.done()?;
    copied[..8].copy_from_slice(&42_u64.to_ne_bytes());
    ensure!(content(&dm)? == copied, "the sum is wrong");
    ensure!(
        plain.memory().load(0) == 41,
        "the returned old value is wrong"
    );
    Ok(())
}

/// A region has the bytes and the rights that it was given, and its buffer stays as long as it.
fn bounds_and_rights(env: &mut Env) -> Outcome<()> {
    let Some(dm) = buffer(env)? else {
        return Ok(());
    };
    let plain = env.buffer()?;
    let region = dm
        .region(&env.pd, BEGIN, SIZE, ALL)
        .during("ibv_reg_dm_mr")?;
    let read_only = dm
        .region(&env.pd, BEGIN, SIZE, ACCESS_LOCAL_WRITE | ACCESS_ZERO_BASED)
        .during("ibv_reg_dm_mr")?;
    for (op, len) in [
        (SendOp::Write(1, region.rkey()), SIZE),
        (SendOp::Read(SIZE as u64, region.rkey()), 1),
        (SendOp::Write(0, read_only.rkey()), 8),
    ] {
        let pair = Pair::new(env)?;
        pair.send(op, &plain, 0, len)?;
        pair.ends[0].expect(1, WC_REM_ACCESS_ERR)?;
    }
    let pair = Pair::new(env)?;
    pair.ends[0].send(1, SendOp::Send, &[Sge::raw(8, SIZE as u32, region.lkey())])?;
    pair.ends[0].expect(1, WC_LOC_PROT_ERR)?;
    content(&dm)?;

    let refused = |offset, len, access| {
        let outcome = dm.region(&env.pd, offset, len, access).map(|_| ());
        match outcome {
            Err(Errno(libc::EINVAL)) => Ok(()),
            other => Err(Failure(format!(
                "{len} bytes at {offset}, {access:#x}: {other:?}"
            ))),
        }
    };
    refused(0, LENGTH + 1, ALL)?;
    refused(LENGTH + 1, 0, ALL)?;
    refused(usize::MAX, 8, ALL)?;
    refused(0, 8, ALL & !ACCESS_ZERO_BASED)?;
    refused(0, 8, ALL | ACCESS_MW_BIND)?;
    for (offset, len) in [(2, 4), (4, 2)] {
        let outcome = dm.write(offset, &vec![0; len]);
        ensure!(outcome == Err(Errno(libc::EINVAL)), "{outcome:?}");
    }
    for (offset, len) in [(LENGTH, 4), (4, LENGTH), (usize::MAX - 3, 4)] {
        let outcome = dm.read(offset, &mut vec![0; len]);
        ensure!(outcome == Err(Errno(libc::EFAULT)), "{outcome:?}");
    }

    let dm = match dm.try_free() {
        Err((dm, Errno(libc::EBUSY))) => dm,
        other => {
            return Err(Failure(format!(
                "freed under its regions: {:?}",
                other.err()
            )));
        }
    };
    drop((region, read_only));
    dm.try_free()
        .map_err(|(_, e)| Failure(format!("ibv_free_dm: {e}")))
}

/// There is as much device memory as the device says, and no more.
fn limit(env: &mut Env) -> Outcome<()> {
    let most = env
        .context
        .device_attr_ex()
        .during("ibv_query_device_ex")?
        .max_dm_size as usize;
    if most == 0 {
        return Ok(());
    }
    let refused = |len, alignment, error| {
        let outcome = Dm::new(&env.context, len, alignment).map(|_| ());
        ensure!(outcome == Err(Errno(error)), "{len} bytes: {outcome:?}");
        Ok(())
    };
    refused(0, 0, libc::EINVAL)?;
    refused(most + 1, 0, libc::EINVAL)?;
    refused(8, 60, libc::EINVAL)?;
    let all = Dm::new(&env.context, most, 0).during("ibv_alloc_dm, all of it")?;
    refused(1, 0, libc::ENOMEM)?;
    all.write(most - 4, &[1, 2, 3, 4])
        .during("ibv_memcpy_to_dm")?;
    drop(all);
    Dm::new(&env.context, most, 0).during("ibv_alloc_dm, all of it again")?;
    Ok(())
}
