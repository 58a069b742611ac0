// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Semantic checks of verbs: each case does one thing right or wrong and compares completions, states, events and
//! memory at both ends with what the standard says. The other end is a [`peer`] that takes orders, in this process
//! (loopback) or on another machine.

pub mod access;
pub mod completion_counters;
pub mod completions;
pub mod conduct;
pub mod device_memory;
pub mod dma_buf;
pub mod errors;
pub mod failure;
pub mod flows;
pub mod fork;
pub mod import;
pub mod limits;
pub mod moving;
pub mod multicast;
pub mod null;
pub mod pacing;
pub mod paging;
pub mod pair;
pub mod peer;
pub mod queues;
pub mod regions;
pub mod shared;
pub mod states;
pub mod system_calls;
pub mod unreliable;
pub mod windows;

use std::sync::Arc;
use std::time::Duration;

use crate::control::Words;
use crate::ensure;
use crate::ffi::{ibv_device_attr, ibv_qp_cap, ibv_wc};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, Context, Cq, GidEntry, Mr, Path, Pd, Qp, QpConfig, SendOp, SendWr, Sge,
    opcode_name, state_name, status_name,
};
use peer::Peer;

/// Bytes of the buffers at both ends.
pub const BUFFER: usize = 64 * 1024;
/// How long a completion or event that must come may take.
pub const SOON: Duration = Duration::from_secs(20);
/// How long to watch that nothing comes.
pub const QUIET: Duration = Duration::from_millis(300);

/// What a case has to work with.
pub struct Env {
    /// The device under test
    pub context: Arc<Context>,
    /// Our GID
    pub gid: GidEntry,
    /// Its attributes
    pub attr: ibv_device_attr,
    /// Protection domain of the case's objects
    pub pd: Arc<Pd>,
    /// The other end
    pub peer: Peer,
    /// The device is ours: it promises more than the standard
    pub vrnic: bool,
    /// Also do what takes long or much memory
    pub slow: bool,
}

/// A case: its name and what it does.
pub type Case = (&'static str, fn(&mut Env) -> Outcome<()>);

/// All cases.
#[must_use]
pub fn cases() -> Vec<Case> {
    [
        access::CASES,
        completions::CASES,
        completion_counters::CASES,
        errors::CASES,
        conduct::CASES,
        queues::CASES,
        pacing::CASES,
        paging::CASES,
        dma_buf::CASES,
        moving::CASES,
        device_memory::CASES,
        null::CASES,
        regions::CASES,
        windows::CASES,
        shared::CASES,
        states::CASES,
        system_calls::CASES,
        unreliable::CASES,
        multicast::CASES,
        import::CASES,
        fork::CASES,
        flows::CASES,
        limits::CASES,
    ]
    .concat()
}

/// Whether a device of that name is ours.
fn is_vrnic(name: &str) -> bool {
    name.starts_with("vrnic")
}

/// A connected pair of QPs: ours and, by its number, the peer's.
pub struct Link {
    /// Our QP
    pub qp: Qp,
    /// The CQ of both its queues
    pub cq: Arc<Cq>,
    /// Number of the peer's QP
    pub peer_qpn: u32,
}

/// How a [`Link`] is connected.
#[derive(Clone, Copy, Debug)]
pub struct LinkConfig {
    /// Our QP's sizes and interface
    pub qp: QpConfig,
    /// RNR retries of ours
    pub rnr_retries: u8,
    /// Transport retries of ours
    pub retries: u8,
    /// ACK timeout exponent of ours
    pub timeout: u8,
    /// RNR timer code of the peer
    pub rnr_timer: u8,
    /// What the peer's QP permits
    pub peer_access: i32,
    /// Outstanding READs and atomics
    pub rd_atomic: u8,
}

impl Default for LinkConfig {
    fn default() -> Self {
        LinkConfig {
            qp: QpConfig {
                cap: ibv_qp_cap {
                    max_send_wr: 32,
                    max_recv_wr: 32,
                    max_send_sge: 4,
                    max_recv_sge: 4,
                    max_inline_data: 64,
                },
                ..Default::default()
            },
            rnr_retries: 7,
            retries: 7,
            timeout: 16,
            rnr_timer: 12,
            peer_access: ACCESS_ALL,
            rd_atomic: 4,
        }
    }
}

impl Env {
    /// Opens the device for one case.
    pub fn new(device: Option<&str>, gid: Option<u8>, slow: bool, mut peer: Peer) -> Outcome<Self> {
        let context = Context::open(device).during("opening the device")?;
        let gid = context.gid(gid).during("looking for a GID")?;
        let attr = context.device_attr().during("ibv_query_device")?;
        let pd = Pd::new(&context).during("ibv_alloc_pd")?;
        peer.refresh()?;
        let vrnic = is_vrnic(context.name());
        Ok(Env {
            context,
            gid,
            attr,
            pd,
            peer,
            vrnic,
            slow,
        })
    }

    /// Ends the case: everything must close.
    pub fn finish(self) -> Outcome<Peer> {
        drop(self.pd);
        self.context.close().during("closing the device")?;
        Ok(self.peer)
    }

    /// Connects a fresh QP with a fresh one of the peer.
    pub fn link(&mut self, config: &LinkConfig) -> Outcome<Link> {
        let cq = Cq::new(&self.context, 128).during("ibv_create_cq")?;
        let qp = Qp::new(&self.pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
        self.connect(qp, cq, config)
    }

    /// Connects `qp`, in RESET, with a fresh QP of the peer.
    pub fn connect(&mut self, qp: Qp, cq: Arc<Cq>, config: &LinkConfig) -> Outcome<Link> {
        let rd_atomic = i32::from(config.rd_atomic)
            .min(self.attr.max_qp_rd_atom)
            .max(1) as u8;
        let words = Words::default()
            .with("qpn", qp.number())
            .with("kind", config.qp.kind)
            .with("gid", self.gid.gid)
            .with("lid", self.gid.lid)
            .with("psn", 0x00ff_fff0)
            .with("access", config.peer_access)
            .with("rnr_timer", config.rnr_timer)
            .with("rd_atomic", rd_atomic)
            .with("timeout", config.timeout);
        let reply = self.peer.order("connect", words)?;
        let path = Path {
            from: self.gid.index,
            to: self.peer.gid,
            lid: self.peer.lid,
            qpn: reply.number("qpn")? as u32,
            sq_psn: 0x00ff_fff0,
            rq_psn: reply.number("psn")? as u32,
            mtu: self.peer.mtu.min(self.context.port_attr()?.active_mtu),
            timeout: config.timeout,
            retries: config.retries,
            rnr_retries: config.rnr_retries,
            rnr_timer: 12,
            rd_atomic,
            access: ACCESS_ALL,
        };
        qp.connect(&path).during("connecting")?;
        Ok(Link {
            qp,
            cq,
            peer_qpn: path.qpn,
        })
    }

    /// The path of a connection to `qpn` of our own device.
    pub fn path_to_self(&self, qpn: u32) -> Outcome<Path> {
        let mtu = self.context.port_attr()?.active_mtu;
        Ok(Path::to_self(self.gid, mtu, qpn))
    }

    /// Connects two QPs of ours with each other.
    pub fn connect_own(&self, one: &Qp, two: &Qp) -> Outcome<()> {
        for (qp, peer) in [(one, two), (two, one)] {
            qp.connect(&self.path_to_self(peer.number())?)
                .during("connecting")?;
        }
        Ok(())
    }

    /// A buffer of [`BUFFER`] bytes with all rights.
    pub fn buffer(&self) -> Outcome<Mr> {
        Mr::new(&self.pd, BUFFER, ACCESS_ALL).during("ibv_reg_mr")
    }
}

impl Link {
    /// Posts one signalled request.
    pub fn send(&self, wr_id: u64, op: SendOp<'_>, sges: &[Sge<'_>]) -> Outcome<()> {
        self.qp
            .post_send(&[SendWr::new(wr_id, op, sges)])
            .map_err(|e| Failure(format!("posting {op:?}: {}", e.error)))
    }

    /// Posts one receive.
    pub fn recv(&self, wr_id: u64, sges: &[Sge<'_>]) -> Outcome<()> {
        self.qp
            .post_recv(&[(wr_id, sges)])
            .map_err(|e| Failure(format!("posting a receive: {}", e.error)))
    }

    /// The next completion, which must be that of `wr_id` with `status`.
    pub fn expect(&self, wr_id: u64, status: i32) -> Outcome<ibv_wc> {
        expect(&self.cq, wr_id, status)
    }

    /// Nothing completes for a while.
    pub fn expect_quiet(&self) -> Outcome<()> {
        match self.cq.wait(QUIET)? {
            None => Ok(()),
            Some(wc) => Err(Failure(format!(
                "an unexpected completion: {:#x} {}",
                wc.wr_id,
                status_name(wc.status)
            ))),
        }
    }

    /// Our QP is in `state`, or gets there soon.
    pub fn expect_state(&self, state: i32) -> Outcome<()> {
        let mut got = -1;
        for _ in 0..200 {
            got = self.qp.query().during("ibv_query_qp")?.qp_state;
            if got == state {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Failure(format!(
            "our QP is in {}, not {}",
            state_name(got),
            state_name(state)
        )))
    }
}

/// The next completion of `cq`, which must be that of `wr_id` with `status`.
pub fn expect(cq: &Cq, wr_id: u64, status: i32) -> Outcome<ibv_wc> {
    let wc = cq.wait(SOON).during("polling")?.ok_or_else(|| {
        Failure(format!(
            "no completion of {wr_id:#x}, {} expected",
            status_name(status)
        ))
    })?;
    ensure!(
        wc.wr_id == wr_id && wc.status == status,
        "completion {:#x} {} (opcode {}, vendor {:#x}), expected {wr_id:#x} {}",
        wc.wr_id,
        status_name(wc.status),
        opcode_name(wc.opcode),
        wc.vendor_err,
        status_name(status)
    );
    Ok(wc)
}
