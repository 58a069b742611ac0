// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Multicast: which queue pairs of one device get a datagram, and how many can be in groups.

use std::net::Ipv6Addr;

use super::{Case, Env, QUIET, expect};
use crate::ensure;
use crate::ffi::ibv_qp_cap;
use crate::stress::datagrams::{GRH, check_grh};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, Ah, Cq, Errno, Interface, Mr, QP_CREATE_BLOCK_SELF_MCAST_LB, QPT_RC,
    QPT_UC, QPT_UD, Qp, QpConfig, SendOp, SendWr, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("multicast-reaches-members", reaches),
    ("multicast-without-its-own", without_own),
    ("multicast-groups-are-checked", checked),
    ("multicast-count-at-its-limit", count),
];

const QKEY: u32 = 0x1234_5678;
/// Queue pair that a datagram to a group is for.
const EVERYBODY: u32 = 0xff_ffff;
/// Bytes of a datagram.
const LENGTH: usize = 100;
/// Bytes of a receive, with the route header.
const ROOM: usize = GRH + LENGTH;

/// A queue pair with a buffer for one receive.
struct End {
    qp: Qp,
    cq: std::sync::Arc<Cq>,
    mr: Mr,
}

impl End {
    fn new(env: &Env, qkey: u32) -> Outcome<Self> {
        let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
        let qp = datagrams(env, &cq, QPT_UD).during("creating a UD QP")?;
        Self::start(env, cq, qp, qkey)
    }

    /// One that does not get its own datagrams.
    fn without_own(env: &Env) -> Outcome<Self> {
        let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
        let config = QpConfig {
            interface: Interface::Extended,
            create_flags: QP_CREATE_BLOCK_SELF_MCAST_LB,
            ..config(QPT_UD)
        };
        let qp = Qp::new(&env.pd, &cq, &cq, &config).during("creating a UD QP with a flag")?;
        Self::start(env, cq, qp, QKEY)
    }

    fn start(env: &Env, cq: std::sync::Arc<Cq>, qp: Qp, qkey: u32) -> Outcome<Self> {
        qp.start_datagrams(qkey, 0).during("starting a UD QP")?;
        let mr = Mr::new(&env.pd, 4096, ACCESS_LOCAL_WRITE).during("ibv_reg_mr")?;
        Ok(End { qp, cq, mr })
    }

    fn receive(&self) -> Outcome<()> {
        self.qp
            .post_recv(&[(7, &[self.mr.sge(0, ROOM)])])
            .map_err(|e| Failure(format!("posting a receive: {}", e.error)))
    }

    fn send(&self, group: &Ah, key: u64) -> Outcome<()> {
        self.mr.memory().fill(2048, LENGTH, key, 0);
        let sges = [self.mr.sge(2048, LENGTH)];
        let wr = SendWr::new(9, SendOp::Datagram(group, EVERYBODY, QKEY), &sges);
        self.qp
            .post_send(&[wr])
            .map_err(|e| Failure(format!("posting a datagram: {}", e.error)))
    }

    /// The datagram `key` came, from the queue pair `from` of this device to `group`.
    fn got(&self, env: &Env, from: u32, group: Ipv6Addr, key: u64) -> Outcome<()> {
        let wc = expect(&self.cq, 7, WC_SUCCESS)?;
        ensure!(wc.byte_len as usize == ROOM && wc.src_qp == from, "{wc:?}");
        let mut grh = [0; GRH];
        self.mr.memory().read(0, &mut grh);
        check_grh(&grh, env.gid.gid, group).map_err(Failure)?;
        ensure!(
            self.mr.memory().check(GRH, LENGTH, key, 0).is_ok(),
            "the payload is wrong"
        );
        Ok(())
    }
}

fn datagrams(env: &Env, cq: &std::sync::Arc<Cq>, kind: i32) -> Result<Qp, Errno> {
    Qp::new(&env.pd, cq, cq, &config(kind))
}

fn config(kind: i32) -> QpConfig {
    QpConfig {
        kind,
        cap: ibv_qp_cap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        },
        ..Default::default()
    }
}

/// The group `number` of a family that our GID can send to.
fn group(env: &Env, number: u32) -> Ipv6Addr {
    let [.., c, d] = number.to_be_bytes();
    if env.gid.gid.to_ipv4_mapped().is_some() {
        std::net::Ipv4Addr::new(239, 200, c, d).to_ipv6_mapped()
    } else {
        Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0x7672, number as u16)
    }
}

fn reaches(env: &mut Env) -> Outcome<()> {
    let group = group(env, 1);
    let ah = Ah::new(&env.pd, env.gid.index, group, 0).during("ibv_create_ah")?;
    let sender = End::new(env, QKEY)?;
    let member = End::new(env, QKEY)?;
    let other_key = End::new(env, QKEY + 1)?;
    let stranger = End::new(env, QKEY)?;
    for end in [&sender, &member, &other_key] {
        end.qp.attach(group, 0).during("ibv_attach_mcast")?;
    }
    for end in [&sender, &member, &other_key, &stranger] {
        end.receive()?;
    }
    sender.send(&ah, 1)?;
    // Its own copy may come before the completion of the send, or after it.
    let mut own = Vec::new();
    for _ in 0..2 {
        let wc = sender.cq.wait(super::SOON).during("polling")?;
        own.push(wc.ok_or_else(|| Failure("the sender's completions do not come".into()))?);
    }
    own.sort_by_key(|wc| wc.wr_id);
    ensure!(
        own.iter().all(|wc| wc.status == WC_SUCCESS) && own[0].wr_id == 7 && own[1].wr_id == 9,
        "{own:?}"
    );
    member.got(env, sender.qp.number(), group, 1)?;

    // Who left, who has another Q_Key and who was never there get nothing, and nobody is told.
    member.qp.detach(group, 0).during("ibv_detach_mcast")?;
    sender.qp.detach(group, 0).during("ibv_detach_mcast")?;
    member.receive()?;
    sender.send(&ah, 2)?;
    expect(&sender.cq, 9, WC_SUCCESS)?;
    for end in [&member, &other_key, &stranger] {
        let came = end.cq.wait(QUIET).during("polling")?;
        ensure!(came.is_none(), "{came:?}");
    }
    other_key.qp.detach(group, 0).during("ibv_detach_mcast")?;
    member.qp.attach(group, 0).during("attaching again")?;
    sender.send(&ah, 3)?;
    member.got(env, sender.qp.number(), group, 3)?;
    member.qp.detach(group, 0).during("ibv_detach_mcast")?;
    Ok(())
}

/// A QP that does not get its own datagrams gets those of others, and others get its own.
fn without_own(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        ensure!(End::without_own(env).is_err(), "the flag is accepted");
        return Ok(());
    }
    let group = group(env, 2);
    let ah = Ah::new(&env.pd, env.gid.index, group, 0).during("ibv_create_ah")?;
    let ends = [End::without_own(env)?, End::without_own(env)?];
    for end in &ends {
        end.qp.attach(group, 0).during("ibv_attach_mcast")?;
        end.receive()?;
    }
    for (key, [from, to]) in [(1, [0, 1]), (2, [1, 0])] {
        ends[from].send(&ah, key)?;
        expect(&ends[from].cq, 9, WC_SUCCESS)?;
        ends[to].got(env, ends[from].qp.number(), group, key)?;
    }
    for end in &ends {
        let came = end.cq.wait(QUIET).during("polling")?;
        ensure!(came.is_none(), "{came:?}");
        end.qp.detach(group, 0).during("ibv_detach_mcast")?;
    }
    let config = QpConfig {
        interface: Interface::Extended,
        create_flags: QP_CREATE_BLOCK_SELF_MCAST_LB,
        ..config(QPT_RC)
    };
    let refused = Qp::new(&env.pd, &ends[0].cq, &ends[0].cq, &config).err();
    ensure!(refused == Some(Errno(libc::EINVAL)), "{refused:?}");
    Ok(())
}

fn checked(env: &mut Env) -> Outcome<()> {
    let refused = |result: Result<(), Errno>, errno: i32, what: &str| {
        ensure!(result == Err(Errno(errno)), "{what}: {result:?}");
        Ok(())
    };
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let group = group(env, 2);
    for kind in [QPT_RC, QPT_UC] {
        let Ok(qp) = datagrams(env, &cq, kind) else {
            ensure!(!env.vrnic && kind == QPT_UC, "there is no UC");
            continue;
        };
        refused(qp.attach(group, 0), libc::EINVAL, "a connection")?;
    }
    // In any state.
    let qp = datagrams(env, &cq, QPT_UD).during("creating a UD QP")?;
    refused(qp.attach(env.gid.gid, 0), libc::EINVAL, "no group")?;
    refused(qp.detach(group, 0), libc::EINVAL, "not attached")?;
    qp.attach(group, 0).during("ibv_attach_mcast")?;
    qp.attach(group, 0).during("what is so already")?;
    if env.vrnic {
        // The local identifier has no meaning here, so this is the same group.
        refused(qp.attach(group, 1), libc::EBUSY, "attached already")?;
    }
    qp.detach(group, 0).during("ibv_detach_mcast")?;
    refused(qp.detach(group, 0), libc::EINVAL, "not attached")
}

fn count(env: &mut Env) -> Outcome<()> {
    let (groups, members, all) = (
        env.attr.max_mcast_grp as u32,
        env.attr.max_mcast_qp_attach as u32,
        env.attr.max_total_mcast_qp_attach as u32,
    );
    ensure!(
        groups > 0 && members > 0 && all >= groups.max(members),
        "{groups} groups of {members}, {all} together"
    );
    if !env.slow || !env.vrnic {
        return Ok(());
    }
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let qps = (0..=members.max(all.div_ceil(groups)))
        .map(|_| datagrams(env, &cq, QPT_UD))
        .collect::<Result<Vec<_>, Errno>>()
        .during("creating UD QPs")?;
    let full = |result: Result<(), Errno>, what: &str| {
        ensure!(result == Err(Errno(libc::ENOMEM)), "{what}: {result:?}");
        Ok(())
    };
    let mut held = Vec::new();
    let mut attach = |qp: u32, number: u32| {
        qps[qp as usize].attach(group(env, number), 0)?;
        held.push((qp, number));
        Ok::<_, Errno>(held.len() as u32)
    };
    for number in 0..groups {
        attach(0, number).during(format!("group {number}"))?;
    }
    full(attach(0, groups).map(drop), "one more group")?;
    let mut there = groups;
    for qp in 1..members.min(all - groups + 1) {
        there = attach(qp, 0).during(format!("member {qp}"))?;
    }
    full(attach(members, 0).map(drop), "one more member")?;
    'all: for qp in 1.. {
        for number in 1..groups {
            if there == all {
                full(attach(qp, number).map(drop), "one more of all")?;
                break 'all;
            }
            there = attach(qp, number).during(format!("attachment {there}"))?;
        }
    }
    println!("    {groups} groups, {members} members of one, {all} of all");
    for (qp, number) in held {
        let detached = qps[qp as usize].detach(group(env, number), 0);
        detached.during("ibv_detach_mcast")?;
    }
    Ok(())
}
