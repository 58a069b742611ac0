// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The matrix of errors: each operation of a reliable connection with each combination of errors at the two ends, and
//! what both ends see of it. Where Soft-RoCE is one of the ends, its differences are part of the table, so that a
//! further one fails. `tools/engine/tests/matrix` has the matrix of the engine, with all services, states and causes.

use std::collections::{BTreeMap, BTreeSet};

use super::peer::{BLANK, Region};
use super::{ACCESS_ALL, BUFFER, Case, Env, LinkConfig};
use crate::ensure;
use crate::stress::{Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, EVENT_QP_ACCESS_ERR, EVENT_QP_REQ_ERR, Mr, QPS_ERR, QPS_RTS, SendOp,
    SendWr, Sge, WC_LOC_ACCESS_ERR, WC_LOC_LEN_ERR, WC_LOC_PROT_ERR, WC_LOC_QP_OP_ERR,
    WC_REM_ACCESS_ERR, WC_REM_INV_REQ_ERR, WC_REM_OP_ERR, WC_RNR_RETRY_EXC_ERR, WC_SUCCESS,
    WC_WR_FLUSH_ERR,
};

pub(super) const CASES: &[Case] = &[("matrix-of-errors", matrix)];

/// What the request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Op {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    Cas,
    Add,
}

/// Its local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Local {
    Valid,
    Key,
    Bounds,
}

/// What it names at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Remote {
    Valid,
    Key,
    Rights,
    Bounds,
    /// The peer's QP permits no access.
    Qp,
    /// The address of an atomic is not a multiple of 8.
    Alignment,
}

/// The peer's first receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Receive {
    Valid,
    Absent,
    Short,
    Key,
}

/// One row of the product.
#[derive(Clone, Copy, Debug)]
struct Request {
    op: Op,
    local: Local,
    remote: Remote,
    receive: Receive,
    /// More than one packet
    long: bool,
    signalled: bool,
}

/// The error that decides, of those in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    None,
    /// The memory that is to be sent
    Source(Local),
    /// What the peer's QP does not permit, and unaligned atomics
    Invalid,
    NoReceive,
    /// Of the memory at the peer, and whether the request has taken a receive by then
    Access {
        in_receive: bool,
    },
    Receive(Receive),
    /// The memory for the response
    Sink(Local),
}

/// What both ends see.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Status of the request
    request: i32,
    /// What the first of the peer's receives completes with, if something is wrong at the peer
    receive: Option<i32>,
    /// Event at the peer
    event: Option<i32>,
    /// The peer executes the request
    done: bool,
}

impl Op {
    fn is_send(self) -> bool {
        matches!(self, Op::Send | Op::SendImm)
    }

    fn takes_receive(self) -> bool {
        self.is_send() || self == Op::WriteImm
    }

    fn is_atomic(self) -> bool {
        matches!(self, Op::Cas | Op::Add)
    }

    /// Whether the response has data.
    fn fetches(self) -> bool {
        self == Op::Read || self.is_atomic()
    }
}

impl Request {
    /// Every possible one. `whole` is for those that differ only in their length or in that they are signalled.
    fn all(whole: bool, unaligned: bool) -> Vec<Self> {
        let mut all = Vec::new();
        for op in [
            Op::Send,
            Op::SendImm,
            Op::Write,
            Op::WriteImm,
            Op::Read,
            Op::Cas,
            Op::Add,
        ] {
            for local in [Local::Valid, Local::Key, Local::Bounds] {
                for remote in [
                    Remote::Valid,
                    Remote::Key,
                    Remote::Rights,
                    Remote::Bounds,
                    Remote::Qp,
                    Remote::Alignment,
                ] {
                    for receive in [
                        Receive::Valid,
                        Receive::Absent,
                        Receive::Short,
                        Receive::Key,
                    ] {
                        for (long, signalled) in
                            [(false, true), (true, false), (false, false), (true, true)]
                        {
                            let request = Request {
                                op,
                                local,
                                remote,
                                receive,
                                long,
                                signalled,
                            };
                            let wanted = whole || (long != signalled);
                            if wanted && request.makes_sense(unaligned) {
                                all.push(request);
                            }
                        }
                    }
                }
            }
        }
        all
    }

    fn makes_sense(self, unaligned: bool) -> bool {
        let remote = match self.remote {
            Remote::Valid => true,
            Remote::Alignment => unaligned && self.op.is_atomic(),
            _ => !self.op.is_send(),
        };
        let receive = match self.receive {
            Receive::Valid => true,
            Receive::Absent => self.op.takes_receive(),
            _ => self.op.is_send(),
        };
        // On the fabric `local`, a WRITE with immediate takes its receive with the first of its bytes, in packets with
        // the last of them.
        let taken = self.op != Op::WriteImm || self.remote == Remote::Valid;
        remote && receive && (!self.long || (taken && !self.op.is_atomic()))
    }

    fn fault(self) -> Fault {
        let absent = self.receive == Receive::Absent;
        if self.local != Local::Valid && !self.op.fetches() {
            Fault::Source(self.local)
        } else if matches!(self.remote, Remote::Qp | Remote::Alignment) {
            Fault::Invalid
        } else if absent {
            Fault::NoReceive
        } else if self.remote != Remote::Valid {
            Fault::Access {
                in_receive: self.op.takes_receive(),
            }
        } else if self.receive != Receive::Valid {
            Fault::Receive(self.receive)
        } else if self.local != Local::Valid {
            Fault::Sink(self.local)
        } else {
            Fault::None
        }
    }

    fn length(self) -> usize {
        match self.op {
            Op::Cas | Op::Add => 8,
            _ if self.long => 9000,
            _ => 64,
        }
    }

    /// The operation. Where it is executed, it changes no memory of the peer.
    fn operation(self, env: &Env, done: bool) -> SendOp<'static> {
        let peer = &env.peer;
        let Region { addr, rkey } = match (self.remote, self.op) {
            (Remote::Rights, Op::Read) => peer.write_only,
            (Remote::Rights, _) => peer.read_only,
            _ => peer.all,
        };
        let rkey = match self.remote {
            Remote::Key => rkey ^ 1,
            _ => rkey,
        };
        let addr = match self.remote {
            Remote::Bounds => addr + BUFFER as u64,
            Remote::Alignment => addr + 4,
            _ => addr,
        };
        let blank = u64::from_ne_bytes([BLANK; 8]);
        match self.op {
            Op::Send => SendOp::Send,
            Op::SendImm => SendOp::SendImm(7),
            Op::Write => SendOp::Write(addr, rkey),
            Op::WriteImm => SendOp::WriteImm(addr, rkey, 7),
            Op::Read => SendOp::Read(addr, rkey),
            Op::Cas => SendOp::Cas(addr, rkey, blank, if done { blank } else { 1 }),
            Op::Add => SendOp::FetchAdd(addr, rkey, u64::from(!done)),
        }
    }

    fn memory(self, mr: &Mr) -> Sge<'static> {
        let (at, lkey) = match self.local {
            Local::Valid => (0, mr.lkey()),
            Local::Key => (0, mr.lkey() ^ 1),
            Local::Bounds => (BUFFER as u64 - 1, mr.lkey()),
        };
        Sge::raw(mr.addr(0) + at, self.length() as u32, lkey)
    }
}

impl Fault {
    /// What the standard says.
    fn standard(self) -> Seen {
        let seen = |request, receive, event, done| Seen {
            request,
            receive,
            event,
            done,
        };
        let flushed = Some(WC_WR_FLUSH_ERR);
        match self {
            Fault::None => seen(WC_SUCCESS, None, None, true),
            Fault::Source(_) => seen(WC_LOC_PROT_ERR, None, None, false),
            Fault::Invalid => seen(WC_REM_INV_REQ_ERR, flushed, Some(EVENT_QP_REQ_ERR), false),
            Fault::NoReceive => seen(WC_RNR_RETRY_EXC_ERR, None, None, false),
            Fault::Access { in_receive: true } => {
                seen(WC_REM_ACCESS_ERR, Some(WC_LOC_ACCESS_ERR), None, false)
            }
            Fault::Access { in_receive: false } => {
                seen(WC_REM_ACCESS_ERR, flushed, Some(EVENT_QP_ACCESS_ERR), false)
            }
            Fault::Receive(Receive::Short) => {
                seen(WC_REM_INV_REQ_ERR, Some(WC_LOC_LEN_ERR), None, false)
            }
            Fault::Receive(_) => seen(WC_REM_OP_ERR, Some(WC_LOC_PROT_ERR), None, false),
            Fault::Sink(_) => seen(WC_LOC_PROT_ERR, None, None, true),
        }
    }

    /// What is seen if one end may not be ours. The differences of Soft-RoCE are those of "Where Soft-RoCE differs" in
    /// Documentation/interoperability.rst.
    fn expected(self, env: &Env) -> Seen {
        let mut seen = self.standard();
        if !env.vrnic && matches!(self, Fault::Source(_)) {
            seen.request = WC_WR_FLUSH_ERR;
        }
        if !env.peer.vrnic {
            // Its events are not those of the standard.
            seen.event = None;
            match self {
                Fault::Access { in_receive: true } => seen.receive = Some(WC_REM_ACCESS_ERR),
                Fault::Receive(_) => {
                    seen.request = WC_REM_OP_ERR;
                    seen.receive = Some(WC_LOC_QP_OP_ERR);
                }
                _ => {}
            }
        }
        seen
    }
}

/// Tries one request on a fresh connection. The numbers of its work requests begin with `first`.
fn attempt(env: &mut Env, request: Request, mr: &Mr, first: u64) -> Outcome<()> {
    let fault = request.fault();
    let expected = fault.expected(env);
    let link = env.link(&LinkConfig {
        rnr_retries: 0,
        peer_access: match request.remote {
            Remote::Qp => ACCESS_LOCAL_WRITE,
            _ => ACCESS_ALL,
        },
        ..Default::default()
    })?;
    let qpn = link.peer_qpn;
    let receives = if request.receive == Receive::Absent {
        0
    } else {
        let all = env.peer.all;
        let (len, key) = match request.receive {
            Receive::Short => (request.length() as u64 - 1, all.rkey),
            Receive::Key => (9000, all.rkey ^ 1),
            _ => (9000, all.rkey),
        };
        env.peer
            .recv_raw(qpn, first, all.addr, len, u64::from(key))?;
        env.peer.recv(qpn, first + 1, 0, 9000)?;
        2
    };

    // What is executed leaves the peer's memory as it is. So do messages, and a long WRITE with immediate, whose first
    // packets need no receive.
    let quiet =
        expected.done || request.op.is_send() || (request.long && request.op == Op::WriteImm);
    mr.memory().set(0, BUFFER, if quiet { BLANK } else { 0x77 });
    if expected.done && request.op == Op::Read {
        mr.memory().set(0, BUFFER, 0x77);
    }
    let memory = [request.memory(mr)];
    let wr = SendWr::new(first, request.operation(env, expected.done), &memory);
    let wr = if request.signalled { wr } else { wr.flags(0) };
    let nothing = SendWr::new(
        first + 1,
        SendOp::Write(env.peer.all.addr, env.peer.all.rkey),
        &[],
    );
    link.qp
        .post_send(&[wr, nothing])
        .map_err(|e| Failure(format!("posting: {}", e.error)))?;

    let failed = expected.request != WC_SUCCESS;
    if failed || request.signalled {
        link.expect(first, expected.request)?;
    }
    let next = if failed { WC_WR_FLUSH_ERR } else { WC_SUCCESS };
    link.expect(first + 1, next)?;
    link.expect_state(if failed { QPS_ERR } else { QPS_RTS })?;
    if let Some(status) = expected.receive {
        env.peer.expect_state(qpn, QPS_ERR)?;
        for (number, status) in [status, WC_WR_FLUSH_ERR]
            .into_iter()
            .take(receives)
            .enumerate()
        {
            env.peer.expect(first + number as u64, status)?;
        }
    } else {
        if expected.done && request.op.takes_receive() {
            env.peer.expect(first, WC_SUCCESS)?;
        }
        env.peer.expect_state(qpn, QPS_RTS)?;
    }
    if let Some(event) = expected.event {
        env.peer.expect_event(qpn, event)?;
    }
    if request.op == Op::Read {
        let (changed, at) = (fault == Fault::None, request.length());
        let value = if changed { BLANK } else { 0x77 };
        ensure!(
            mr.memory().check_set(0, at, value).is_ok(),
            "the memory of the READ"
        );
    }
    env.peer.expect_blank()?;
    env.peer.destroy(qpn)
}

fn matrix(env: &mut Env) -> Outcome<()> {
    let mr = env.buffer()?;
    // Soft-RoCE refuses unaligned atomics when they are posted.
    let mut requests = Request::all(env.slow, env.vrnic);
    ensure!(requests.len() > 120, "only {} requests", requests.len());
    if !env.slow {
        // One of those that differ only in errors that do not decide.
        let mut seen = BTreeSet::new();
        requests.retain(|one| seen.insert((one.fault(), one.op, one.remote, one.long)));
    }
    let mut wrong: BTreeMap<Fault, (usize, Failure)> = BTreeMap::new();
    for (number, request) in requests.iter().enumerate() {
        if let Err(failure) = attempt(env, *request, &mr, number as u64 * 4) {
            let (count, _) = wrong
                .entry(request.fault())
                .or_insert_with(|| (0, Failure(format!("{request:?}: {failure}"))));
            *count += 1;
            // What this one left would disturb the next.
            env.peer.refresh()?;
        }
    }
    ensure!(
        wrong.is_empty(),
        "of {} requests: {}",
        requests.len(),
        wrong
            .iter()
            .map(|(fault, (count, first))| format!("{count} with {fault:?}, first {first}"))
            .collect::<Vec<_>>()
            .join("; ")
    );
    if env.peer.vrnic {
        env.peer.expect_no_event()?;
    }
    env.peer.expect_quiet()
}
