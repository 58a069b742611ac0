// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Unreliable connections: what arrives, and what is lost without an error.

use super::{BUFFER, Case, Env, LinkConfig};
use crate::ensure;
use crate::stress::{During, Outcome};
use crate::verbs::{
    ACCESS_REMOTE_READ, Interface, QPS_ERR, QPS_RTS, QPS_SQE, QPT_UC, QpConfig, SendOp, SendWr,
    Sge, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR, WC_RECV_RDMA_WITH_IMM, WC_SUCCESS, WC_WR_FLUSH_ERR,
};

pub(super) const CASES: &[Case] = &[
    ("uc-messages-arrive", arrive),
    ("uc-what-cannot-be-received-is-dropped", dropped),
    ("uc-receive-memory-bad", receive_bad),
    ("uc-failed-request-stops-the-send-queue", failed),
];

fn config(interface: Interface) -> LinkConfig {
    let mut config = LinkConfig::default();
    config.qp = QpConfig {
        kind: QPT_UC,
        interface,
        ..config.qp
    };
    config
}

fn arrive(env: &mut Env) -> Outcome<()> {
    for interface in [Interface::Legacy, Interface::Extended] {
        let link = env.link(&config(interface))?;
        let mr = env.buffer()?;
        let all = env.peer.all;
        mr.memory().fill(0, 9000, 31, 0);
        env.peer.recv(link.peer_qpn, 5, 0, 9001)?;
        link.send(1, SendOp::SendImm(0x0102_0304), &[mr.sge(0, 9000)])?;
        link.expect(1, WC_SUCCESS)?;
        let wc = env.peer.expect(5, WC_SUCCESS)?;
        ensure!(
            wc.byte_len == 9000 && wc.imm_data == 0x0102_0304_u32.to_be(),
            "{wc:?}"
        );
        env.peer.expect_payload(0, 9000, 31)?;
        mr.memory().fill(0, 20_000, 32, 0);
        env.peer.recv(link.peer_qpn, 6, 0, 0)?;
        let write = SendOp::WriteImm(all.addr + 10_000, all.rkey, 7);
        link.send(2, write, &[mr.sge(0, 20_000)])?;
        link.expect(2, WC_SUCCESS)?;
        let wc = env.peer.expect(6, WC_SUCCESS)?;
        ensure!(
            wc.opcode == WC_RECV_RDMA_WITH_IMM && wc.byte_len == 20_000,
            "{wc:?}"
        );
        env.peer.expect_payload(10_000, 20_000, 32)?;
        env.peer.recv(link.peer_qpn, 8, 0, 64)?;
        link.send(3, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, 100)])?;
        link.send(4, SendOp::Send, &[])?;
        link.expect(3, WC_SUCCESS)?;
        link.expect(4, WC_SUCCESS)?;
        // What was written before is there when the send is.
        let wc = env.peer.expect(8, WC_SUCCESS)?;
        ensure!(wc.byte_len == 0, "{wc:?}");
        env.peer.expect_payload(0, 100, 32)?;
        env.peer.expect_no_event()?;
    }
    Ok(())
}

fn dropped(env: &mut Env) -> Outcome<()> {
    let link = env.link(&LinkConfig {
        peer_access: ACCESS_REMOTE_READ,
        ..config(Interface::Legacy)
    })?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    // No receive; memory that must not be written to; a receive that is too short, and waits.
    link.send(1, SendOp::Send, &[mr.sge(0, 9000)])?;
    link.send(2, SendOp::Write(all.addr, all.rkey), &[mr.sge(0, 9000)])?;
    link.expect(1, WC_SUCCESS)?;
    link.expect(2, WC_SUCCESS)?;
    env.peer.expect_quiet()?;
    env.peer.recv(link.peer_qpn, 5, 0, 8999)?;
    link.send(3, SendOp::Send, &[mr.sge(0, 9000)])?;
    link.expect(3, WC_SUCCESS)?;
    env.peer.expect_quiet()?;
    mr.memory().fill(0, 8999, 33, 0);
    link.send(4, SendOp::Send, &[mr.sge(0, 8999)])?;
    link.expect(4, WC_SUCCESS)?;
    let wc = env.peer.expect(5, WC_SUCCESS)?;
    ensure!(wc.byte_len == 8999, "{wc:?}");
    env.peer.expect_payload(0, 8999, 33)?;
    env.peer.expect_no_event()?;
    env.peer.expect_state(link.peer_qpn, QPS_RTS)?;
    link.expect_state(QPS_RTS)
}

fn receive_bad(env: &mut Env) -> Outcome<()> {
    let other = env.peer.other_pd;
    let link = env.link(&config(Interface::Legacy))?;
    let mr = env.buffer()?;
    env.peer
        .recv_raw(link.peer_qpn, 5, other.addr, 64, u64::from(other.rkey))?;
    env.peer.recv(link.peer_qpn, 6, 0, 64)?;
    link.send(1, SendOp::Send, &[mr.sge(0, 64)])?;
    link.expect(1, WC_SUCCESS)?;
    env.peer.expect(5, WC_LOC_PROT_ERR)?;
    env.peer.expect(6, WC_WR_FLUSH_ERR)?;
    env.peer.expect_state(link.peer_qpn, QPS_ERR)?;
    env.peer.expect_blank()?;
    link.expect_state(QPS_RTS)
}

fn failed(env: &mut Env) -> Outcome<()> {
    let link = env.link(&config(Interface::Legacy))?;
    let mr = env.buffer()?;
    let all = env.peer.all;
    let write = SendOp::Write(all.addr, all.rkey);
    let beyond = Sge::raw(mr.addr(BUFFER - 10), 11, mr.lkey());
    link.send(1, write, &[beyond])?;
    link.send(2, write, &[mr.sge(0, 10)])?;
    link.expect(1, WC_LOC_PROT_ERR)?;
    link.expect(2, WC_WR_FLUSH_ERR)?;
    link.expect_state(QPS_SQE)?;
    // It receives still, and sends again when it is told to.
    env.peer.expect_blank()?;
    link.qp.to_state(QPS_RTS).during("SQE to RTS")?;
    mr.memory().fill(0, 10, 34, 0);
    env.peer.recv(link.peer_qpn, 5, 100, 0)?;
    link.send(3, write, &[mr.sge(0, 10)])?;
    link.send(4, SendOp::Send, &[])?;
    link.expect(3, WC_SUCCESS)?;
    link.expect(4, WC_SUCCESS)?;
    env.peer.expect(5, WC_SUCCESS)?;
    env.peer.expect_payload(0, 10, 34)?;
    // An operation that the service does not have is refused, or fails.
    match link
        .qp
        .post_send(&[SendWr::new(9, SendOp::Read(all.addr, all.rkey), &[])])
    {
        Err(e) => ensure!(e.error.0 == libc::EINVAL, "{}", e.error),
        Ok(()) => {
            link.expect(9, WC_LOC_QP_OP_ERR)?;
        }
    }
    env.peer.expect_no_event()
}
