// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Regions that are changed in place (`ibv_rereg_mr`): other memory, another protection domain, other rights. Both ends
//! are in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::pair::{Pair, same};
use super::{BUFFER, Case, Env, expect};
use crate::dma_buf::DmaBuf;
use crate::ensure;
use crate::memory::{Memory, PAGE};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_ON_DEMAND, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
    ACCESS_ZERO_BASED, Change, Errno, Mr, Pd, SendOp, Sge, WC_LOC_PROT_ERR, WC_REM_ACCESS_ERR,
    WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("region-changes-under-traffic-of-another", changes),
    ("region-changes-on-demand", changes_on_demand),
    ("region-changes-of-a-dma-buf", changes_of_dma_buf),
    ("region-change-refused", refused),
    ("region-that-counts-from-zero", zero_based),
];

/// Where the second memory of a region begins in its pages.
const INSIDE: usize = 104;
/// Bytes of it.
const LENGTH: usize = 5 * PAGE + 8;
/// What is in memory that nobody may change.
const GUARD: u8 = 0xa5;

/// Whether regions can be changed; other devices need not.
fn has_changes(env: &Env) -> Outcome<bool> {
    let mut mr = env.buffer()?;
    let change = Change {
        access: Some(ACCESS_LOCAL_WRITE),
        ..Default::default()
    };
    match mr.change(&change) {
        Ok(()) => Ok(true),
        Err(_) if !env.vrnic => Ok(false),
        Err(e) => Err(Failure(format!("ibv_rereg_mr: {e}"))),
    }
}

/// A fresh connection whose second end is of `pd` does that to the region.
fn attempt(env: &Env, pd: &Arc<Pd>, op: SendOp<'_>, local: &Mr, status: i32) -> Outcome<()> {
    let pair = Pair::of(env, [&env.pd, pd])?;
    pair.send(op, local, 0, LENGTH)?;
    expect(&pair.ends[0].cq, 1, status)
        .map(|_| ())
        .map_err(|e| Failure(format!("{op:?}: {e}")))
}

/// What a region is that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Memory of the process that stays in place
    Pinned,
    /// Memory of the process that does not
    OnDemand,
    /// Memory that stays in place, and does not once its rights change
    Loosened,
    /// A piece of a dma-buf, of whose changes the library knows nothing
    DmaBuf,
}

impl Kind {
    /// Registers `old`, or as much of a dma-buf.
    fn register(self, env: &Env, old: &Arc<Memory>) -> Outcome<Mr> {
        match self {
            Kind::Pinned | Kind::Loosened => Mr::of(&env.pd, old, 0, LENGTH, ACCESS_ALL),
            Kind::OnDemand => Mr::of(&env.pd, old, 0, LENGTH, ACCESS_ALL | ACCESS_ON_DEMAND),
            Kind::DmaBuf => {
                let buf = DmaBuf::new(6 * PAGE).during("UDMABUF_CREATE")?;
                buf.memory().set(0, LENGTH, GUARD);
                Mr::of_dma_buf(&env.pd, &buf.piece(0, LENGTH), ACCESS_ALL)
            }
        }
        .during(format!("registering, {self:?}"))
    }

    /// Those of its rights, `access`, that it changes to.
    fn rights(self, access: i32) -> i32 {
        match self {
            Kind::Pinned | Kind::DmaBuf => access,
            Kind::OnDemand | Kind::Loosened => access | ACCESS_ON_DEMAND,
        }
    }

    fn change(self, mr: &mut Mr, change: &Change<'_>) -> Outcome<()> {
        match self {
            Kind::DmaBuf => mr.change_past_library(change),
            _ => mr.change(change),
        }
        .during(format!("ibv_rereg_mr, {self:?}"))
    }
}

/// Changes a region in each way and in all of them at once, and looks what its keys open then.
fn change_each(env: &Env, kind: Kind) -> Outcome<()> {
    let elsewhere = Pd::new(&env.context).during("ibv_alloc_pd")?;
    let local = env.buffer()?;
    for ways in 1..8 {
        let old = Arc::new(Memory::new(LENGTH).during("mmap")?);
        let new = Arc::new(Memory::new(INSIDE + LENGTH).during("mmap")?);
        old.set(0, LENGTH, GUARD);
        new.set(0, INSIDE + LENGTH, GUARD);
        let mut mr = kind.register(env, &old)?;
        let before = (mr.addr(0), mr.rkey());
        let (moves, leaves, narrows) = (ways & 1 != 0, ways & 2 != 0, ways & 4 != 0);
        let change = Change {
            memory: moves.then_some((&new, INSIDE, LENGTH)),
            pd: leaves.then_some(&elsewhere),
            access: narrows.then_some(kind.rights(ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ)),
        };
        let in_ways = |e| Failure(format!("in the ways {ways}: {e}"));
        kind.change(&mut mr, &change).map_err(in_ways)?;
        // Pages that come and go are nothing that another region could keep.
        let rekeyed = moves
            || matches!(kind, Kind::OnDemand | Kind::DmaBuf)
            || kind == Kind::Loosened && narrows;

        let begin = if moves { INSIDE } else { 0 };
        let (now, not) = if leaves {
            (&elsewhere, &env.pd)
        } else {
            (&env.pd, &elsewhere)
        };
        let (addr, rkey) = (mr.addr(begin), mr.rkey());
        let look = || -> Outcome<()> {
            // Whoever has the key of the old memory must not reach the new.
            ensure!(
                (rkey != before.1) == rekeyed,
                "{:#x} became {rkey:#x}",
                before.1
            );
            mr.memory().fill(begin, LENGTH, ways, 0);
            local.memory().set(0, BUFFER, 0);
            attempt(env, now, SendOp::Read(addr, rkey), &local, WC_SUCCESS)?;
            same(&local, 0, LENGTH, ways)?;
            attempt(
                env,
                not,
                SendOp::Read(addr, rkey),
                &local,
                WC_REM_ACCESS_ERR,
            )?;
            if moves {
                for pd in [now, not] {
                    let stale = SendOp::Write(before.0, before.1);
                    attempt(env, pd, stale, &local, WC_REM_ACCESS_ERR)?;
                }
                let stale = SendOp::Read(before.0, rkey);
                attempt(env, now, stale, &local, WC_REM_ACCESS_ERR)?;
            }
            local.memory().fill(0, LENGTH, ways + 100, 0);
            let (status, found) = if narrows {
                (WC_REM_ACCESS_ERR, ways)
            } else {
                (WC_SUCCESS, ways + 100)
            };
            attempt(env, now, SendOp::Write(addr, rkey), &local, status)?;
            same(&mr, begin, LENGTH, found)?;
            // The other memory, and what is around the new one, is as it was.
            let intact = if moves {
                old.check_set(0, LENGTH, GUARD)
                    .and_then(|()| new.check_set(0, INSIDE, GUARD))
            } else {
                new.check_set(0, INSIDE + LENGTH, GUARD)
            };
            intact.map_err(|at| Failure(format!("byte {at} of other memory was changed")))
        };
        look().map_err(|e| Failure(format!("changed in the ways {ways}: {e}")))?;
        if narrows {
            // And back again, all at once, to another piece of memory.
            let change = Change {
                memory: Some((&old, 8, LENGTH - 8)),
                pd: Some(&env.pd),
                access: Some(ACCESS_ALL),
            };
            kind.change(&mut mr, &change).map_err(in_ways)?;
            let pair = Pair::new(env)?;
            pair.send(SendOp::Write(mr.addr(8), mr.rkey()), &local, 0, LENGTH - 8)?;
            pair.done()?;
            same(&mr, 8, LENGTH - 8, ways + 100)?;
        }
        mr.deregister().during("ibv_dereg_mr")?;
    }
    Ok(())
}

/// A region changes while a connection is busy with others, all of whose bytes arrive.
fn changes(env: &mut Env) -> Outcome<()> {
    if !has_changes(env)? {
        return Ok(());
    }
    let env = &*env;
    let (from, to, back) = (env.buffer()?, env.buffer()?, env.buffer()?);
    let pair = Pair::new(env)?;
    let (over, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let traffic = || {
        for round in 0.. {
            if over.load(Ordering::Relaxed) {
                break;
            }
            from.memory().fill(0, BUFFER, round, 0);
            pair.send(SendOp::Write(to.addr(0), to.rkey()), &from, 0, BUFFER)?;
            pair.done()?;
            same(&to, 0, BUFFER, round)?;
            pair.send(SendOp::Read(to.addr(0), to.rkey()), &back, 0, BUFFER)?;
            pair.done()?;
            same(&back, 0, BUFFER, round)?;
            rounds.store(round + 1, Ordering::Relaxed);
        }
        Outcome::Ok(())
    };
    let (changed, traffic) = std::thread::scope(|scope| {
        let traffic = scope.spawn(traffic);
        // Neither before the traffic is there nor after it ended.
        while rounds.load(Ordering::Relaxed) == 0 && !traffic.is_finished() {
            std::thread::yield_now();
        }
        let changed = change_each(env, Kind::Pinned);
        let during = rounds.load(Ordering::Relaxed);
        over.store(true, Ordering::Relaxed);
        (changed.map(|()| during), traffic.join())
    });
    traffic.map_err(|_| Failure("the traffic thread panicked".into()))??;
    let during = changed?;
    ensure!(during > 1, "{during} rounds of traffic meanwhile");
    Ok(())
}

/// Regions on demand, and those that become so; where there are some.
fn changes_on_demand(env: &mut Env) -> Outcome<()> {
    if !env.vrnic || !has_changes(env)? {
        return Ok(());
    }
    change_each(env, Kind::OnDemand)?;
    change_each(env, Kind::Loosened)
}

fn changes_of_dma_buf(env: &mut Env) -> Outcome<()> {
    if !env.vrnic || !has_changes(env)? {
        return Ok(());
    }
    change_each(env, Kind::DmaBuf)
}

/// A change that is refused, and as what.
struct Refusal<'a> {
    what: &'a str,
    change: Change<'a>,
    error: i32,
}

/// The region takes none of these changes, as they are asked for, keeps its keys, and serves as before.
fn stays(
    env: &Env,
    kind: &str,
    mr: &mut Mr,
    begin: usize,
    ask: impl Fn(&mut Mr, &Change<'_>) -> Result<(), Errno>,
    refusals: &[Refusal<'_>],
) -> Outcome<()> {
    let local = env.buffer()?;
    let keys = (mr.lkey(), mr.rkey());
    for (round, refusal) in (1..).zip(refusals) {
        let Refusal {
            what,
            change,
            error,
        } = refusal;
        let outcome = ask(mr, change);
        ensure!(outcome == Err(Errno(*error)), "{kind}, {what}: {outcome:?}");
        let serves = || {
            ensure!(
                (mr.lkey(), mr.rkey()) == keys,
                "a refused change replaced its keys"
            );
            local.memory().fill(0, LENGTH, round, 0);
            let write = SendOp::Write(mr.addr(begin), mr.rkey());
            attempt(env, &env.pd, write, &local, WC_SUCCESS)?;
            same(mr, begin, LENGTH, round)?;
            // Its own memory is what it sends, too.
            let pair = Pair::new(env)?;
            let write = SendOp::Write(local.addr(LENGTH), local.rkey());
            pair.send(write, mr, begin, LENGTH)?;
            pair.done()?;
            same(&local, LENGTH, LENGTH, round)
        };
        serves().map_err(|e| Failure(format!("{kind}, after {what}: {e}")))?;
    }
    Ok(())
}

fn refused(env: &mut Env) -> Outcome<()> {
    if !env.vrnic || !has_changes(env)? {
        return Ok(());
    }
    let elsewhere = Pd::new(&env.context).during("ibv_alloc_pd")?;
    let memory = Arc::new(Memory::new(LENGTH).during("mmap")?);
    let nothing = Change::default();
    let whole = Change {
        memory: Some((&memory, 0, LENGTH)),
        ..nothing
    };
    // Any change, of regions that take none.
    let any = [
        ("other memory", whole),
        (
            "another PD",
            Change {
                pd: Some(&elsewhere),
                ..nothing
            },
        ),
        (
            "other rights",
            Change {
                access: Some(ACCESS_LOCAL_WRITE),
                ..nothing
            },
        ),
        (
            "everything",
            Change {
                pd: Some(&elsewhere),
                access: Some(ACCESS_ALL),
                ..whole
            },
        ),
    ];
    let buf = DmaBuf::new(8 * PAGE).during("UDMABUF_CREATE")?;
    let piece = buf.piece(INSIDE, LENGTH);
    let mut mr = Mr::of_dma_buf(&env.pd, &piece, ACCESS_ALL).during("ibv_reg_dmabuf_mr")?;
    // The library does not even ask the kernel.
    let refusals = any.map(|(what, change)| Refusal {
        what,
        change,
        error: libc::EINVAL,
    });
    stays(env, "of a dma-buf", &mut mr, INSIDE, Mr::change, &refusals)?;
    // Its memory stays in place.
    let loosened = [Refusal {
        what: "on demand",
        change: Change {
            access: Some(ACCESS_ALL | ACCESS_ON_DEMAND),
            ..nothing
        },
        error: libc::EOPNOTSUPP,
    }];
    let past = Mr::change_past_library;
    stays(env, "of a dma-buf", &mut mr, INSIDE, past, &loosened)?;

    // What no region can become.
    let closed = Arc::new(Memory::new(LENGTH).during("mmap")?);
    closed.close(0, 2 * PAGE).during("mprotect")?;
    let wrong = [
        (
            "memory that nobody may access",
            Change {
                memory: Some((&closed, 0, LENGTH)),
                ..nothing
            },
            libc::EFAULT,
        ),
        (
            "no memory",
            Change {
                memory: Some((&memory, 0, 0)),
                ..nothing
            },
            libc::EINVAL,
        ),
        (
            "remote writes without local ones",
            Change {
                access: Some(ACCESS_REMOTE_WRITE),
                ..nothing
            },
            libc::EINVAL,
        ),
        (
            "everything, and rights that cannot be",
            Change {
                pd: Some(&elsewhere),
                access: Some(ACCESS_REMOTE_WRITE),
                ..whole
            },
            libc::EINVAL,
        ),
        ("nothing", nothing, libc::EINVAL),
    ]
    .map(|(what, change, error)| Refusal {
        what,
        change,
        error,
    });
    let mut mr = env.buffer()?;
    stays(env, "plain", &mut mr, 0, Mr::change, &wrong)
}

/// The `LENGTH` bytes of a region have addresses from `first` on, and no others: for their owner, and for a peer.
fn has_addresses(env: &Env, mr: &Mr, first: u64, round: u64) -> Outcome<()> {
    let local = env.buffer()?;
    let (end, last) = (first + LENGTH as u64, first + LENGTH as u64 - 8);
    let element = |addr, len| Sge::raw(addr, len, mr.lkey());
    let pair = Pair::new(env)?;
    let ends = &pair.ends;
    local.memory().fill(0, LENGTH, round, 0);
    pair.send(SendOp::Write(first, mr.rkey()), &local, 0, LENGTH)?;
    pair.done()?;
    same(mr, INSIDE, LENGTH, round)?;
    mr.memory().store(INSIDE, round);
    let add = SendOp::FetchAdd(first, mr.rkey(), 2);
    ends[0].send(1, add, &[element(last, 8)])?;
    pair.done()?;
    let (sum, before) = (
        mr.memory().load(INSIDE),
        mr.memory().load(INSIDE + LENGTH - 8),
    );
    ensure!((sum, before) == (round + 2, round), "{before} and 2: {sum}");

    mr.memory().fill(INSIDE, LENGTH, round + 1, 0);
    ends[1].recv(2, &[local.sge(0, LENGTH)])?;
    ends[0].send(
        1,
        SendOp::Send,
        &[element(first, 5), element(first + 5, LENGTH as u32 - 5)],
    )?;
    pair.done()?;
    ends[1].expect(2, WC_SUCCESS)?;
    same(&local, 0, LENGTH, round + 1)?;

    let elsewhere = if first == 0 { mr.addr(INSIDE) } else { 0 };
    for addr in [end - 15, end, first.wrapping_sub(1), elsewhere] {
        attempt_at(env, mr, addr)?;
    }
    Ok(())
}

/// Neither the owner nor a peer gets at 16 bytes there.
fn attempt_at(env: &Env, mr: &Mr, addr: u64) -> Outcome<()> {
    let local = env.buffer()?;
    let pair = Pair::new(env)?;
    pair.send(SendOp::Read(addr, mr.rkey()), &local, 0, 16)?;
    expect(&pair.ends[0].cq, 1, WC_REM_ACCESS_ERR)?;
    let pair = Pair::new(env)?;
    let write = SendOp::Write(local.addr(0), local.rkey());
    pair.ends[0].send(1, write, &[Sge::raw(addr, 16, mr.lkey())])?;
    expect(&pair.ends[0].cq, 1, WC_LOC_PROT_ERR).map(|_| ())
}

/// Regions whose addresses are offsets, wherever they begin in a page: pinned ones, those on demand, and those that
/// become so.
fn zero_based(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let access = ACCESS_ALL | ACCESS_ZERO_BASED;
    for (what, access) in [("pinned", access), ("on demand", access | ACCESS_ON_DEMAND)] {
        let memory = Arc::new(Memory::new(INSIDE + LENGTH).during("mmap")?);
        let mr = Mr::of(&env.pd, &memory, INSIDE, LENGTH, access)
            .during(format!("ibv_reg_mr, {what}"))?;
        has_addresses(env, &mr, 0, 1).map_err(|e| Failure(format!("{what}: {e}")))?;
    }
    let memory = Arc::new(Memory::new(INSIDE + LENGTH).during("mmap")?);
    let mut mr = Mr::of(&env.pd, &memory, INSIDE, LENGTH, ACCESS_ALL).during("ibv_reg_mr")?;
    let place = mr.addr(INSIDE);
    for (round, access, first) in [(1, access, 0), (3, ACCESS_ALL, place), (5, access, 0)] {
        let change = Change {
            access: Some(access),
            ..Default::default()
        };
        mr.change(&change).during("ibv_rereg_mr")?;
        has_addresses(env, &mr, first, round)
            .map_err(|e| Failure(format!("changed so that it begins at {first:#x}: {e}")))?;
    }
    let change = Change {
        memory: Some((&memory, INSIDE, LENGTH)),
        ..Default::default()
    };
    mr.change(&change).during("ibv_rereg_mr, memory")?;
    has_addresses(env, &mr, 0, 7).map_err(|e| Failure(format!("of the memory once more: {e}")))
}
