// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Remote access: what a key, a right, a bound and an alignment permit (IBTA volume 1, 9.7.4 and 10.6).

use super::peer::Region;
use super::{BUFFER, Case, Env, LinkConfig};
use crate::ensure;
use crate::stress::{Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
    EVENT_QP_ACCESS_ERR, EVENT_QP_REQ_ERR, QPS_ERR, QPS_RTS, SendOp, WC_LOC_ACCESS_ERR,
    WC_REM_ACCESS_ERR, WC_REM_INV_REQ_ERR, WC_SUCCESS, WC_WR_FLUSH_ERR,
};

pub(super) const CASES: &[Case] = &[
    ("write-read-atomic-within-rights", within_rights),
    ("remote-key-unknown", unknown_key),
    ("remote-key-of-other-pd", other_pd),
    ("remote-key-without-permission", no_permission),
    ("remote-range-out-of-bounds", out_of_bounds),
    ("remote-range-overflows", overflow),
    ("remote-key-stale-after-deregister", stale_key),
    ("remote-zero-length-is-not-checked", zero_length),
    ("qp-without-permission", qp_rights),
    ("atomic-unaligned", unaligned),
    ("send-with-invalidate-of-plain-region", invalidate),
];

/// What is done to the peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Access {
    Write,
    WriteImm,
    Read,
    Cas,
    Add,
    /// Takes away the key.
    Invalidate,
}

/// Every access to bytes.
const EVERY: [Access; 5] = [
    Access::Write,
    Access::WriteImm,
    Access::Read,
    Access::Cas,
    Access::Add,
];

impl Access {
    /// What has a request of this opcode.
    pub(super) fn of(opcode: i32) -> Option<Self> {
        let mut known = EVERY.into_iter().chain([Access::Invalidate]);
        known.find(|access| access.op(0, 0).opcode() == opcode)
    }

    pub(super) fn op(self, addr: u64, rkey: u32) -> SendOp<'static> {
        match self {
            Access::Write => SendOp::Write(addr, rkey),
            Access::WriteImm => SendOp::WriteImm(addr, rkey, 0x1234_5678),
            Access::Read => SendOp::Read(addr, rkey),
            Access::Cas => SendOp::Cas(addr, rkey, 0x5c5c_5c5c_5c5c_5c5c, 1),
            Access::Add => SendOp::FetchAdd(addr, rkey, 1),
            Access::Invalidate => SendOp::SendInv(rkey),
        }
    }

    /// Whether the receive of the responder tells what was wrong with the key, so that no event has to.
    pub(super) fn tells_in_receive(self) -> bool {
        matches!(self, Access::WriteImm | Access::Invalidate)
    }

    fn is_atomic(self) -> bool {
        matches!(self, Access::Cas | Access::Add)
    }
}

/// Tries one access of `len` bytes on a fresh connection: it must fail with a status at our side and an event at the
/// peer's, both QPs must be in error, what stood behind it flushed, and no memory changed at either end.
fn refused(
    env: &mut Env,
    access: Access,
    region: Region,
    len: usize,
    peer_access: i32,
    (status, event): (i32, i32),
) -> Outcome<()> {
    let what = |e: Failure| Failure(format!("{access:?} of {len} bytes: {e}"));
    let link = env.link(&LinkConfig {
        peer_access,
        ..Default::default()
    })?;
    let mr = env.buffer()?;
    let len = if access.is_atomic() { 8 } else { len };
    env.peer.recv(link.peer_qpn, 9, 0, 64)?;
    link.recv(8, &[])?;
    link.send(1, access.op(region.addr, region.rkey), &[mr.sge(0, len)])?;
    link.send(2, SendOp::Send, &[])?;
    link.expect(1, status).map_err(what)?;
    let mut flushed = [link.expect_any()?, link.expect_any()?];
    flushed.sort_unstable();
    ensure!(
        flushed == [(2, WC_WR_FLUSH_ERR), (8, WC_WR_FLUSH_ERR)],
        "{access:?}: flushed {flushed:?}"
    );
    link.expect_state(QPS_ERR).map_err(what)?;
    env.peer
        .expect_state(link.peer_qpn, QPS_ERR)
        .map_err(what)?;
    let receive = env.peer.wait(super::SOON)?.map(|w| (w.wr_id, w.status));
    let in_receive = access.tells_in_receive() && status == WC_REM_ACCESS_ERR;
    let expected = if in_receive {
        WC_LOC_ACCESS_ERR
    } else {
        WC_WR_FLUSH_ERR
    };
    ensure!(
        receive == Some((9, expected)) || (!env.peer.vrnic && receive.is_some_and(|r| r.0 == 9)),
        "{access:?} of {len} bytes: the receive at the peer completed as {receive:?}"
    );
    if env.peer.vrnic && !in_receive {
        env.peer.expect_event(link.peer_qpn, event).map_err(what)?;
    }
    ensure!(
        mr.memory().check_set(0, BUFFER, 0).is_ok(),
        "{access:?}: local memory changed"
    );
    env.peer.expect_blank().map_err(what)?;
    env.peer.destroy(link.peer_qpn)
}

fn access_denied(
    env: &mut Env,
    access: Access,
    region: Region,
    offset: u64,
    len: usize,
) -> Outcome<()> {
    let addr = region.addr.wrapping_add(offset);
    refused(
        env,
        access,
        Region {
            addr,
            rkey: region.rkey,
        },
        len,
        super::ACCESS_ALL,
        (WC_REM_ACCESS_ERR, EVENT_QP_ACCESS_ERR),
    )
}

fn within_rights(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let mr = env.buffer()?;
    mr.memory().fill(0, BUFFER, 11, 0);
    let all = env.peer.all;
    // The last byte that a region has can be written and read.
    link.send(1, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, BUFFER)])?;
    link.expect(1, WC_SUCCESS)?;
    env.peer.expect_payload(0, BUFFER, 11)?;
    env.peer.fill(0, BUFFER, 12)?;
    link.send(2, SendOp::Read(all.addr, all.rkey), &[mr.sge(0, BUFFER)])?;
    let wc = link.expect(2, WC_SUCCESS)?;
    ensure!(
        wc.byte_len as usize == BUFFER,
        "READ says {} bytes",
        wc.byte_len
    );
    ensure!(
        mr.memory().check(0, BUFFER, 12, 0).is_ok(),
        "READ returned wrong data"
    );
    let (ro, wo) = (env.peer.read_only, env.peer.write_only);
    link.send(3, SendOp::Read(ro.addr + 5, ro.rkey), &[mr.sge(0, 100)])?;
    link.expect(3, WC_SUCCESS)?;
    ensure!(
        mr.memory().check_set(0, 100, super::peer::BLANK).is_ok(),
        "READ of a read-only region"
    );
    link.send(4, SendOp::Write(wo.addr + 5, wo.rkey), &[mr.sge(0, 100)])?;
    link.expect(4, WC_SUCCESS)?;
    if env.attr.atomic_cap != 0 {
        let last = all.addr + BUFFER as u64 - 8;
        link.send(5, SendOp::Cas(last, all.rkey, 0, 7), &[mr.sge(0, 8)])?;
        link.expect(5, WC_SUCCESS)?;
        let before = mr.memory().load(0);
        link.send(6, SendOp::Cas(last, all.rkey, before, 7), &[mr.sge(0, 8)])?;
        link.expect(6, WC_SUCCESS)?;
        ensure!(
            mr.memory().load(0) == before,
            "CAS without a match must change nothing"
        );
        link.send(
            7,
            SendOp::FetchAdd(last, all.rkey, u64::MAX),
            &[mr.sge(0, 8)],
        )?;
        link.expect(7, WC_SUCCESS)?;
        ensure!(
            mr.memory().load(0) == 7,
            "FETCH_ADD returned {:#x}",
            mr.memory().load(0)
        );
        link.send(8, SendOp::FetchAdd(last, all.rkey, 0), &[mr.sge(0, 8)])?;
        let wc = link.expect(8, WC_SUCCESS)?;
        ensure!(
            wc.byte_len == 8 && mr.memory().load(0) == 6,
            "FETCH_ADD does not wrap"
        );
    }
    link.expect_state(QPS_RTS)?;
    env.peer.expect_no_event()
}

fn unknown_key(env: &mut Env) -> Outcome<()> {
    for access in EVERY {
        for key in [
            env.peer.all.rkey ^ 1,
            env.peer.all.rkey.rotate_left(16) ^ 0x5555,
            0,
        ] {
            let region = Region {
                addr: env.peer.all.addr,
                rkey: key,
            };
            access_denied(env, access, region, 0, 64)?;
        }
    }
    Ok(())
}

fn other_pd(env: &mut Env) -> Outcome<()> {
    EVERY
        .into_iter()
        .try_for_each(|access| access_denied(env, access, env.peer.other_pd, 0, 64))
}

fn no_permission(env: &mut Env) -> Outcome<()> {
    for access in EVERY {
        access_denied(env, access, env.peer.local, 0, 64)?;
        let region = if matches!(access, Access::Read) {
            env.peer.write_only
        } else {
            env.peer.read_only
        };
        access_denied(env, access, region, 0, 64)?;
    }
    // A right to write is none to do atomics.
    access_denied(env, Access::Cas, env.peer.write_only, 0, 8)
}

fn out_of_bounds(env: &mut Env) -> Outcome<()> {
    let end = BUFFER as u64;
    for access in EVERY {
        access_denied(env, access, env.peer.all, end, 64)?;
        access_denied(env, access, env.peer.all, 0_u64.wrapping_sub(8), 64)?;
        access_denied(env, access, env.peer.all, 0x1_0000_0000, 64)?;
    }
    for access in [Access::Write, Access::Read] {
        access_denied(env, access, env.peer.all, end - 63, 64)?;
        access_denied(env, access, env.peer.all, 1, BUFFER)?;
    }
    Ok(())
}

fn overflow(env: &mut Env) -> Outcome<()> {
    for access in EVERY {
        for addr in [!7, 0, u64::MAX / 2 + 1] {
            let region = Region {
                addr,
                rkey: env.peer.all.rkey,
            };
            access_denied(env, access, region, 0, 64)?;
        }
    }
    Ok(())
}

fn stale_key(env: &mut Env) -> Outcome<()> {
    let mut old = Vec::new();
    for _ in 0..8 {
        old.push(env.peer.register_again()?);
    }
    for (access, region) in EVERY.into_iter().cycle().zip(&old) {
        ensure!(
            region.rkey != env.peer.all.rkey,
            "a key was used again at once"
        );
        access_denied(env, access, *region, 0, 64)?;
    }
    if env.peer.vrnic {
        // Keys are not counted up: their distances differ.
        let steps: std::collections::BTreeSet<u32> = old
            .windows(2)
            .map(|w| w[1].rkey.wrapping_sub(w[0].rkey))
            .collect();
        ensure!(steps.len() > 5, "keys follow a pattern: {old:x?}");
    }
    Ok(())
}

fn zero_length(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig::default())?;
    let mut wr_id = 0;
    for (addr, key) in [
        (0, 0),
        (u64::MAX, 0xdead_beef),
        (env.peer.local.addr, env.peer.local.rkey),
    ] {
        link.send(wr_id, SendOp::Write(addr, key), &[])?;
        link.expect(wr_id, WC_SUCCESS)?;
        link.send(wr_id + 1, SendOp::Read(addr, key), &[])?;
        let wc = link.expect(wr_id + 1, WC_SUCCESS)?;
        ensure!(
            wc.byte_len == 0,
            "a READ of nothing says {} bytes",
            wc.byte_len
        );
        wr_id += 2;
    }
    link.expect_state(QPS_RTS)?;
    env.peer.expect_blank()
}

fn qp_rights(env: &mut Env) -> Outcome<()> {
    for access in EVERY {
        let right = match access {
            Access::Write | Access::WriteImm => ACCESS_REMOTE_WRITE,
            Access::Read => ACCESS_REMOTE_READ,
            Access::Cas | Access::Add => ACCESS_REMOTE_ATOMIC,
            Access::Invalidate => continue,
        };
        let others = super::ACCESS_ALL & !right & !ACCESS_LOCAL_WRITE;
        let all = env.peer.all;
        refused(
            env,
            access,
            all,
            64,
            others,
            (WC_REM_INV_REQ_ERR, EVENT_QP_REQ_ERR),
        )?;
    }
    Ok(())
}

fn unaligned(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        // Others refuse it already at the post.
        return Ok(());
    }
    for access in [Access::Cas, Access::Add] {
        for offset in [1, 4, 7] {
            let addr = env.peer.all.addr + offset;
            let (key, all) = (env.peer.all.rkey, super::ACCESS_ALL);
            refused(
                env,
                access,
                Region { addr, rkey: key },
                8,
                all,
                (WC_REM_INV_REQ_ERR, EVENT_QP_REQ_ERR),
            )?;
        }
    }
    Ok(())
}

fn invalidate(env: &mut Env) -> Outcome<()> {
    if !env.peer.vrnic {
        return Ok(());
    }
    for key in [env.peer.all.rkey, env.peer.other_pd.rkey, 0x1357_9bdf] {
        let link = env.link(&LinkConfig::default())?;
        env.peer.recv(link.peer_qpn, 3, 0, 64)?;
        link.send(1, SendOp::SendInv(key), &[])?;
        // The message arrived; what it asked for is between the receiver and its keys.
        link.expect(1, WC_SUCCESS)?;
        env.peer.expect(3, WC_REM_INV_REQ_ERR)?;
        link.expect_state(QPS_RTS)?;
        env.peer.expect_state(link.peer_qpn, QPS_ERR)?;
    }
    // The region is still there.
    let link = env.link(&LinkConfig::default())?;
    let all = env.peer.all;
    let mr = env.buffer()?;
    link.send(1, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, 64)])?;
    link.expect(1, WC_SUCCESS).map(|_| ())
}
