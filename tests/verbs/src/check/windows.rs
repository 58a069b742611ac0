// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Memory windows (IBTA volume 1, 10.6): which part of a region a peer can reach through a window, who may bind it, and
//! how its key becomes invalid. This side has the windows, and the peer uses them.

use super::access::Access;
use super::peer::{BLANK, Region};
use super::{BUFFER, Case, Env, Link, LinkConfig, SOON};
use crate::ensure;
use crate::memory::PAGE;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, ACCESS_MW_BIND, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    ACCESS_REMOTE_WRITE, ACCESS_ZERO_BASED, AsyncEvent, Bind, Change, EVENT_QP_ACCESS_ERR, Errno,
    EventObject, Interface, MW_TYPE_1, MW_TYPE_2, Mr, Mw, Pd, QP_EX_WITH_BIND_MW,
    QP_EX_WITH_LOCAL_INV, QP_EX_WITH_SEND_WITH_INV, QPS_ERR, QpConfig, SendOp, WC_BIND_MW,
    WC_LOC_ACCESS_ERR, WC_LOCAL_INV, WC_MW_BIND_ERR, WC_RECV_RDMA_WITH_IMM, WC_REM_ACCESS_ERR,
    WC_REM_INV_REQ_ERR, WC_SUCCESS, WC_WITH_INV, WC_WR_FLUSH_ERR,
};

pub(super) const CASES: &[Case] = &[
    ("window-lets-through-what-it-says", lets_through),
    ("window-keeps-out-the-rest", keeps_out),
    ("window-of-type-1-is-bound-again", bound_again),
    ("window-of-type-2-is-invalidated", invalidated),
    ("window-of-type-2-is-of-its-queue-pair", of_queue_pair),
    ("window-bind-refused", bind_refused),
    ("window-invalidation-refused", invalidation_refused),
    ("window-holds-its-region", holds_region),
];

/// Where in the region the window begins and ends: nowhere special but for atomics.
const BEGIN: usize = 2 * PAGE + 104;
const SIZE: usize = 3 * PAGE + 48;
const END: usize = BEGIN + SIZE;
/// All that a window can permit.
const REMOTE: i32 = ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ | ACCESS_REMOTE_ATOMIC;
/// Rights of a region to which any window can be bound, but by whose own key no peer does anything.
const BINDABLE: i32 = ACCESS_LOCAL_WRITE | ACCESS_MW_BIND;
/// Names of requests.
const BINDING: u64 = 100;
const INVALIDATING: u64 = 101;
const RECEIVING: u64 = 102;

/// A type of window, and how it is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// By `ibv_bind_mw`
    One,
    /// By a work request
    Two(Interface),
}

const KINDS: [Kind; 3] = [
    Kind::One,
    Kind::Two(Interface::Legacy),
    Kind::Two(Interface::Extended),
];

impl Kind {
    fn window(self, pd: &std::sync::Arc<Pd>) -> Result<Mw, Errno> {
        let number = if self == Kind::One {
            MW_TYPE_1
        } else {
            MW_TYPE_2
        };
        Mw::new(pd, number)
    }

    /// A connection through whose queue pair it is bound.
    fn link(self, env: &mut Env) -> Outcome<Link> {
        let default = LinkConfig::default();
        let interface = match self {
            Kind::One => Interface::Legacy,
            Kind::Two(interface) => interface,
        };
        env.link(&LinkConfig {
            qp: QpConfig {
                interface,
                more_ops: QP_EX_WITH_LOCAL_INV | QP_EX_WITH_BIND_MW | QP_EX_WITH_SEND_WITH_INV,
                ..default.qp
            },
            ..default
        })
    }

    /// Posts the request to bind.
    fn post(self, link: &Link, mw: &Mw, bind: Bind<'_>) -> Outcome<()> {
        match self {
            Kind::One => link.qp.bind(BINDING, mw, bind).during("ibv_bind_mw"),
            Kind::Two(_) => {
                let (before, key) = (mw.rkey(), next(mw.rkey()));
                link.send(BINDING, SendOp::Bind(mw, key, bind), &[])?;
                ensure!(mw.rkey() == before, "the application chooses the key");
                mw.set_rkey(key);
                Ok(())
            }
        }
    }

    /// Binds, and gives the key.
    fn bind(self, link: &Link, mw: &Mw, bind: Bind<'_>) -> Outcome<u32> {
        let before = mw.rkey();
        self.post(link, mw, bind)?;
        let wc = link.expect(BINDING, WC_SUCCESS)?;
        ensure!(wc.opcode == WC_BIND_MW, "{wc:?}");
        ensure!(mw.rkey() != before, "the key is {before:#x} still");
        Ok(mw.rkey())
    }
}

/// The key that follows, of the same window.
fn next(key: u32) -> u32 {
    key & !0xff | key.wrapping_add(1) & 0xff
}

/// `len` bytes at `offset` of a region, by the window of that key.
fn at(mr: &Mr, offset: usize, rkey: u32) -> Region {
    let addr = mr.addr(offset);
    Region { addr, rkey }
}

/// A bind to a range of a region.
fn range(mr: &Mr, offset: usize, len: usize, access: i32) -> Bind<'_> {
    Bind {
        mr: Some(mr),
        addr: mr.addr(offset),
        len: len as u64,
        access,
    }
}

/// Whether the device has windows; other devices need not.
fn has_windows(env: &Env) -> Outcome<bool> {
    match Kind::One.window(&env.pd) {
        Ok(_) => Ok(true),
        Err(_) if !env.vrnic => Ok(false),
        Err(e) => Err(Failure(format!("ibv_alloc_mw: {e}"))),
    }
}

fn window(env: &Env, kind: Kind) -> Outcome<Mw> {
    kind.window(&env.pd).during("ibv_alloc_mw")
}

fn region(env: &Env) -> Outcome<Mr> {
    let mr = Mr::new(&env.pd, BUFFER, BINDABLE).during("ibv_reg_mr")?;
    mr.memory().set(0, BUFFER, BLANK);
    Ok(mr)
}

/// Nothing has changed but `len` bytes at `offset`.
fn unchanged_around(mr: &Mr, offset: usize, len: usize) -> Outcome<()> {
    let end = offset + len;
    for (begin, len) in [(0, offset), (end, BUFFER - end)] {
        let same = mr.memory().check_set(begin, len, BLANK);
        same.map_err(|at| Failure(format!("byte {} was changed", begin + at)))?;
    }
    Ok(())
}

/// The region cannot be deregistered, for windows are bound to it.
fn held(env: &Env, mr: Mr) -> Outcome<Mr> {
    if !env.vrnic {
        return Ok(mr);
    }
    match mr.try_deregister() {
        Err((mr, Errno(libc::EBUSY))) => Ok(mr),
        Err((_, e)) => Err(Failure(format!("ibv_dereg_mr: {e}"))),
        Ok(()) => Err(Failure("a region with a window was deregistered".into())),
    }
}

/// The peer does that, and nobody stops it.
fn open(env: &mut Env, link: &Link, access: Access, target: Region, len: usize) -> Outcome<()> {
    env.peer.access(link.peer_qpn, access, target, len)?;
    let what = |e: Failure| Failure(format!("{access:?} by key {:#x}: {e}", target.rkey));
    env.peer.expect(1, WC_SUCCESS).map_err(what)?;
    Ok(())
}

/// The peer cannot do that: it is told so, and so are we; the connection is at its end.
fn shut(env: &mut Env, link: &Link, access: Access, target: Region, len: usize) -> Outcome<()> {
    let what = |e: Failure| Failure(format!("{access:?} by key {:#x}: {e}", target.rkey));
    // A message that needs a receive is not to be refused for the lack of one.
    link.recv(RECEIVING, &[])?;
    env.peer.access(link.peer_qpn, access, target, len)?;
    let (told, status) = match access {
        // The message arrives; what it asks for is between us and our keys.
        Access::Invalidate => (WC_SUCCESS, WC_REM_INV_REQ_ERR),
        Access::WriteImm => (WC_REM_ACCESS_ERR, WC_LOC_ACCESS_ERR),
        _ => (WC_REM_ACCESS_ERR, WC_WR_FLUSH_ERR),
    };
    env.peer.expect(1, told).map_err(what)?;
    if env.vrnic {
        link.expect(RECEIVING, status).map_err(what)?;
        let object = EventObject::Qp(link.qp.number());
        let told = |e: &AsyncEvent| e.kind == EVENT_QP_ACCESS_ERR && e.object == object;
        ensure!(
            access.tells_in_receive() || env.context.wait_event(SOON, told).is_some(),
            "{access:?}: no event"
        );
    }
    link.expect_state(QPS_ERR).map_err(what)?;
    env.peer.destroy(link.peer_qpn)
}

fn lets_through(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    for kind in KINDS {
        let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
        let key = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
        let first = at(&mr, BEGIN, key);

        env.peer.fill(0, SIZE, 1)?;
        open(env, &link, Access::Write, first, SIZE)?;
        super::pair::same(&mr, BEGIN, SIZE, 1)?;
        unchanged_around(&mr, BEGIN, SIZE)?;

        mr.memory().fill(BEGIN, SIZE, 2, 0);
        open(env, &link, Access::Read, first, SIZE)?;
        env.peer.expect_payload(0, SIZE, 2)?;

        env.peer.fill(0, 16, 3)?;
        link.recv(RECEIVING, &[])?;
        open(env, &link, Access::WriteImm, at(&mr, END - 16, key), 16)?;
        let wc = link.expect(RECEIVING, WC_SUCCESS)?;
        ensure!(wc.opcode == WC_RECV_RDMA_WITH_IMM, "{wc:?}");
        super::pair::same(&mr, END - 16, 16, 3)?;

        if env.attr.atomic_cap != 0 {
            let last = at(&mr, END - 8, key);
            mr.memory().fill(END - 8, 8, 4, 0);
            let before = mr.memory().load(END - 8);
            open(env, &link, Access::Add, last, 8)?;
            let after = mr.memory().load(END - 8);
            ensure!(after == before.wrapping_add(1), "{before} and 1: {after}");
            env.peer.expect_payload(0, 8, 4)?;
            mr.memory().set(END - 8, 8, BLANK);
            open(env, &link, Access::Cas, last, 8)?;
            let after = mr.memory().load(END - 8);
            ensure!(after == 1, "compared and swapped: {after:#x}");
        }
        unchanged_around(&mr, BEGIN, SIZE)?;

        if kind == Kind::One {
            // Any queue pair of the protection domain will do.
            let other = kind.link(env)?;
            mr.memory().fill(BEGIN, SIZE, 5, 0);
            open(env, &other, Access::Read, first, SIZE)?;
            env.peer.expect_payload(0, SIZE, 5)?;
        } else {
            link.send(INVALIDATING, SendOp::LocalInv(key), &[])?;
            link.expect(INVALIDATING, WC_SUCCESS)?;
            let zero_based = range(&mr, BEGIN, SIZE, REMOTE | ACCESS_ZERO_BASED);
            let rkey = kind.bind(&link, &mw, zero_based)?;
            let addr = SIZE as u64 - 24;
            env.peer.fill(0, 24, 6)?;
            open(env, &link, Access::Write, Region { addr, rkey }, 24)?;
            super::pair::same(&mr, END - 24, 24, 6)?;
            unchanged_around(&mr, BEGIN, SIZE)?;
            shut(env, &link, Access::Write, at(&mr, BEGIN, rkey), 24)?;
        }
    }
    Ok(())
}

fn keeps_out(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    let without = |right: i32| REMOTE & !right;
    for kind in [Kind::One, Kind::Two(Interface::Legacy)] {
        for (what, access, rights, offset, len) in [
            ("before it", Access::Write, REMOTE, BEGIN - 1, 16),
            ("before it", Access::Read, REMOTE, BEGIN - 1, 16),
            ("beyond it", Access::Write, REMOTE, END - 15, 16),
            ("beyond it", Access::Read, REMOTE, END - 15, 16),
            ("beyond it", Access::Add, REMOTE, END, 8),
            ("all of it and more", Access::Write, REMOTE, BEGIN, SIZE + 1),
            ("far away", Access::Read, REMOTE, 0, 16),
            (
                "no writes",
                Access::Write,
                without(ACCESS_REMOTE_WRITE),
                BEGIN,
                16,
            ),
            (
                "no writes",
                Access::WriteImm,
                without(ACCESS_REMOTE_WRITE),
                BEGIN,
                16,
            ),
            (
                "no reads",
                Access::Read,
                without(ACCESS_REMOTE_READ),
                BEGIN,
                16,
            ),
            (
                "no atomics",
                Access::Cas,
                without(ACCESS_REMOTE_ATOMIC),
                BEGIN,
                8,
            ),
            (
                "no atomics",
                Access::Add,
                without(ACCESS_REMOTE_ATOMIC),
                BEGIN,
                8,
            ),
            // The owner's right is none of a peer.
            (
                "for the owner",
                Access::Write,
                ACCESS_LOCAL_WRITE,
                BEGIN,
                16,
            ),
        ] {
            let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
            let key = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, rights))?;
            let outcome = shut(env, &link, access, at(&mr, offset, key), len)
                .and_then(|()| unchanged_around(&mr, 0, 0))
                .and_then(|()| env.peer.expect_blank());
            outcome.map_err(|e| Failure(format!("{kind:?}, {what}: {e}")))?;
        }
        // Other keys: not bound yet, of the same window, of the region.
        for which in 0..3 {
            let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
            let unbound = mw.rkey();
            let key = match which {
                0 => unbound,
                _ => kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?,
            };
            let key = [key, next(key), mr.rkey()][which];
            let outcome = shut(env, &link, Access::Write, at(&mr, BEGIN, key), 16)
                .and_then(|()| unchanged_around(&mr, 0, 0));
            outcome.map_err(|e| Failure(format!("{kind:?}, key {which}: {e}")))?;
        }
    }
    Ok(())
}

fn bound_again(env: &mut Env) -> Outcome<()> {
    const ELSEWHERE: usize = 8 * PAGE;
    if !has_windows(env)? {
        return Ok(());
    }
    let kind = Kind::One;
    let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
    let first = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
    open(env, &link, Access::Read, at(&mr, BEGIN, first), SIZE)?;
    let second = kind.bind(&link, &mw, range(&mr, ELSEWHERE, 100, REMOTE))?;
    ensure!(first != second, "both keys are {first:#x}");
    env.peer.fill(0, 100, 1)?;
    open(env, &link, Access::Write, at(&mr, ELSEWHERE, second), 100)?;
    super::pair::same(&mr, ELSEWHERE, 100, 1)?;
    for (offset, key) in [(BEGIN, first), (ELSEWHERE, first), (BEGIN, second)] {
        let other = kind.link(env)?;
        shut(env, &other, Access::Write, at(&mr, offset, key), 16)?;
    }
    // A window of nothing.
    let third = kind.bind(&link, &mw, Bind::default())?;
    for key in [second, third] {
        let other = kind.link(env)?;
        shut(env, &other, Access::Write, at(&mr, ELSEWHERE, key), 16)?;
    }
    super::pair::same(&mr, ELSEWHERE, 100, 1)?;
    unchanged_around(&mr, ELSEWHERE, 100)?;
    mr.deregister().during("ibv_dereg_mr").map(|_| ())
}

fn invalidated(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    for interface in [Interface::Legacy, Interface::Extended] {
        let kind = Kind::Two(interface);
        for (by_peer, again) in [(false, false), (false, true), (true, false), (true, true)] {
            let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
            let key = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
            let target = at(&mr, BEGIN, key);
            open(env, &link, Access::Write, target, 16)?;
            if by_peer {
                link.recv(RECEIVING, &[])?;
                open(env, &link, Access::Invalidate, target, 0)?;
                let wc = link.expect(RECEIVING, WC_SUCCESS)?;
                let told = wc.wc_flags & WC_WITH_INV != 0 && wc.imm_data == key;
                ensure!(told, "key {key:#x}: {wc:?}");
            } else {
                link.send(INVALIDATING, SendOp::LocalInv(key), &[])?;
                let wc = link.expect(INVALIDATING, WC_SUCCESS)?;
                ensure!(wc.opcode == WC_LOCAL_INV, "{wc:?}");
            }
            if again {
                // Neither does the next key bring the first one back.
                let next = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
                open(env, &link, Access::Write, at(&mr, BEGIN, next), 16)?;
            }
            mr.memory().set(0, BUFFER, BLANK);
            env.peer.fill(0, 16, 1)?;
            shut(env, &link, Access::Write, target, 16)
                .and_then(|()| unchanged_around(&mr, 0, 0))
                .map_err(|e| Failure(format!("by the peer: {by_peer}, again: {again}: {e}")))?;
        }
    }
    Ok(())
}

fn of_queue_pair(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    let kind = Kind::Two(Interface::Legacy);
    let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
    let key = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
    let target = at(&mr, BEGIN, key);
    // Another queue pair, or its peer, neither uses it nor takes it away.
    for access in [Access::Write, Access::Read, Access::Invalidate] {
        let other = kind.link(env)?;
        shut(
            env,
            &other,
            access,
            target,
            if matches!(access, Access::Invalidate) {
                0
            } else {
                16
            },
        )?;
    }
    let other = kind.link(env)?;
    other.send(INVALIDATING, SendOp::LocalInv(key), &[])?;
    other.expect(INVALIDATING, WC_MW_BIND_ERR)?;
    other.expect_state(QPS_ERR)?;
    unchanged_around(&mr, 0, 0)?;
    env.peer.expect_blank()?;
    env.peer.fill(0, 16, 1)?;
    open(env, &link, Access::Write, target, 16)?;
    super::pair::same(&mr, BEGIN, 16, 1)?;
    // Without the queue pair it is nobody's, but still bound, until it is no more.
    drop(link);
    let other = kind.link(env)?;
    shut(env, &other, Access::Read, target, 16)?;
    let mr = held(env, mr)?;
    drop(mw);
    mr.deregister().during("ibv_dereg_mr").map(|_| ())
}

/// Binds in a wrong way: that fails and has no effect.
fn refuse(env: &mut Env, kind: Kind, mw: &Mw, bind: Bind<'_>) -> Outcome<()> {
    let link = kind.link(env)?;
    kind.post(&link, mw, bind)?;
    link.send(2, SendOp::Send, &[])?;
    link.expect(BINDING, WC_MW_BIND_ERR)?;
    link.expect(2, WC_WR_FLUSH_ERR)?;
    link.expect_state(QPS_ERR)?;
    if kind == Kind::One {
        // That of the other type could be used with this queue pair alone.
        let other = kind.link(env)?;
        let target = Region {
            addr: bind.addr,
            rkey: mw.rkey(),
        };
        shut(env, &other, Access::Read, target, 16)?;
    }
    Ok(())
}

fn bind_refused(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    let (all, some) = (BUFFER as u64, SIZE as u64);
    for kind in KINDS {
        for (what, has, offset, len, access) in [
            (
                "no right to bind",
                ACCESS_LOCAL_WRITE | REMOTE,
                0,
                some,
                ACCESS_REMOTE_READ,
            ),
            (
                "writes without local ones",
                ACCESS_MW_BIND,
                0,
                some,
                ACCESS_REMOTE_WRITE,
            ),
            (
                "atomics without local writes",
                ACCESS_MW_BIND,
                0,
                some,
                ACCESS_REMOTE_ATOMIC,
            ),
            ("before the region", BINDABLE, u64::MAX, some, REMOTE),
            ("beyond the region", BINDABLE, all - some + 1, some, REMOTE),
            ("longer than the region", BINDABLE, 0, all + 1, REMOTE),
            ("somewhere else", BINDABLE, 1 << 40, some, REMOTE),
            ("without end", BINDABLE, 64, u64::MAX - 63, REMOTE),
            (
                "a right that windows lack",
                BINDABLE,
                0,
                some,
                REMOTE | ACCESS_MW_BIND,
            ),
            match kind {
                Kind::One => ("zero-based", BINDABLE, 0, some, REMOTE | ACCESS_ZERO_BASED),
                Kind::Two(_) => ("empty", BINDABLE, 0, 0, REMOTE),
            },
        ] {
            let mr = Mr::new(&env.pd, BUFFER, has).during("ibv_reg_mr")?;
            let mw = window(env, kind)?;
            let bind = Bind {
                mr: Some(&mr),
                addr: mr.addr(0).wrapping_add(offset),
                len,
                access,
            };
            let outcome = refuse(env, kind, &mw, bind).and_then(|()| {
                // Nothing is bound to it.
                mr.deregister().during("ibv_dereg_mr")?;
                Ok(())
            });
            outcome.map_err(|e| Failure(format!("{kind:?}, {what}: {e}")))?;
        }
        let elsewhere = Pd::new(&env.context).during("ibv_alloc_pd")?;
        let foreign = Mr::new(&elsewhere, BUFFER, BINDABLE | REMOTE).during("ibv_reg_mr")?;
        let (mr, mw) = (region(env)?, window(env, kind)?);
        refuse(env, kind, &mw, range(&foreign, BEGIN, SIZE, REMOTE))
            .map_err(|e| Failure(format!("{kind:?}, region of another PD: {e}")))?;
        foreign.deregister().during("ibv_dereg_mr")?;
        let foreign = kind.window(&elsewhere).during("ibv_alloc_mw")?;
        refuse(env, kind, &foreign, range(&mr, BEGIN, SIZE, REMOTE))
            .map_err(|e| Failure(format!("{kind:?}, window of another PD: {e}")))?;

        // To the owner's eyes alone a region can be read without a right, and peers get that by a window.
        let readable = Mr::new(&env.pd, BUFFER, ACCESS_MW_BIND).during("ibv_reg_mr")?;
        readable.memory().fill(0, BUFFER, 1, 0);
        let (link, mw) = (kind.link(env)?, window(env, kind)?);
        let key = kind.bind(&link, &mw, range(&readable, 0, BUFFER, ACCESS_REMOTE_READ))?;
        open(env, &link, Access::Read, at(&readable, 0, key), BUFFER)?;
        env.peer.expect_payload(0, BUFFER, 1)?;
        if kind != Kind::One {
            // What is bound cannot be bound again, even to the same.
            kind.post(&link, &mw, range(&readable, 0, BUFFER, ACCESS_REMOTE_READ))?;
            link.expect(BINDING, WC_MW_BIND_ERR)?;
            link.expect_state(QPS_ERR)?;
        }
    }
    Ok(())
}

fn invalidation_refused(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? {
        return Ok(());
    }
    for kind in KINDS {
        // A window of type 1 is not invalidated, and another only by its very key.
        let wrong = |key| match kind {
            Kind::One => key,
            Kind::Two(_) => next(key),
        };
        for by_peer in [false, true] {
            let (link, mr, mw) = (kind.link(env)?, region(env)?, window(env, kind)?);
            let key = kind.bind(&link, &mw, range(&mr, BEGIN, SIZE, REMOTE))?;
            if by_peer {
                let target = at(&mr, BEGIN, wrong(key));
                shut(env, &link, Access::Invalidate, target, 0)?;
            } else {
                link.send(INVALIDATING, SendOp::LocalInv(wrong(key)), &[])?;
                link.expect(INVALIDATING, WC_MW_BIND_ERR)?;
                link.expect_state(QPS_ERR)?;
            }
            if kind == Kind::One {
                let other = kind.link(env)?;
                open(env, &other, Access::Read, at(&mr, BEGIN, key), SIZE)?;
            }
            // It is bound still.
            let mr = held(env, mr)?;
            drop((mw, mr));
        }
        // Nor is one that is bound to nothing.
        let (link, mw) = (kind.link(env)?, window(env, kind)?);
        link.send(INVALIDATING, SendOp::LocalInv(mw.rkey()), &[])?;
        link.expect(INVALIDATING, WC_MW_BIND_ERR)?;
    }
    Ok(())
}

/// A region with a window is neither deregistered nor changed (IBTA volume 1, 10.6.6 and 11.2.8), until the last one is
/// unbound or gone.
fn holds_region(env: &mut Env) -> Outcome<()> {
    if !has_windows(env)? || !env.vrnic {
        return Ok(());
    }
    for kind in KINDS {
        let (link, mut mr) = (kind.link(env)?, region(env)?);
        let windows = [window(env, kind)?, window(env, kind)?];
        for mw in &windows {
            kind.bind(&link, mw, range(&mr, BEGIN, SIZE, REMOTE))?;
        }
        let [one, two] = windows;
        let other = Pd::new(&env.context).during("ibv_alloc_pd")?;
        let memory = std::sync::Arc::new(crate::memory::Memory::new(BUFFER).during("mmap")?);
        let nothing = Change::default();
        let changes = [
            Change {
                memory: Some((&memory, 0, BUFFER)),
                ..nothing
            },
            Change {
                pd: Some(&other),
                ..nothing
            },
            Change {
                access: Some(ACCESS_LOCAL_WRITE),
                ..nothing
            },
        ];
        let busy = Err(Errno(libc::EBUSY));
        for held_by in [2, 1] {
            mr = held(env, mr)
                .map_err(|e| Failure(format!("{kind:?}, by {held_by} windows: {e}")))?;
            for change in &changes {
                let outcome = mr.change(change);
                ensure!(outcome == busy, "{kind:?}, {change:?}: {outcome:?}");
            }
            env.peer.fill(0, 16, held_by)?;
            open(env, &link, Access::Write, at(&mr, BEGIN, two.rkey()), 16)?;
            super::pair::same(&mr, BEGIN, 16, held_by)?;
            if held_by == 2 {
                match kind {
                    Kind::One => {
                        kind.bind(&link, &one, Bind::default())?;
                    }
                    Kind::Two(_) => {
                        link.send(INVALIDATING, SendOp::LocalInv(one.rkey()), &[])?;
                        link.expect(INVALIDATING, WC_SUCCESS)?;
                    }
                }
            }
        }
        drop(two);
        mr.change(&changes[0]).during("ibv_rereg_mr")?;
        mr.deregister().during("ibv_dereg_mr")?;
    }
    Ok(())
}
