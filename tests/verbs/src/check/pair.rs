// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two queue pairs in this process, for checks of memory that need no second machine.

use std::sync::Arc;

use super::{BUFFER, Env, Link, LinkConfig};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, Cq, GidEntry, Interface, Mr, Path, Pd, Qp, QpConfig, SendOp, WC_SUCCESS,
};

/// Two queue pairs of this process, connected.
pub struct Pair {
    /// Both ends
    pub ends: [Link; 2],
}

impl Pair {
    /// Connects two fresh ones.
    pub fn new(env: &Env) -> Outcome<Self> {
        Self::of(env, [&env.pd, &env.pd])
    }

    /// Connects fresh ones of these protection domains.
    pub fn of(env: &Env, pds: [&Arc<Pd>; 2]) -> Outcome<Self> {
        let config = LinkConfig::default();
        let end = |pd| -> Outcome<_> {
            let cq = Cq::new(&env.context, 128).during("ibv_create_cq")?;
            let qp = Qp::new(pd, &cq, &cq, &config.qp).during("ibv_create_qp")?;
            Ok((qp, cq))
        };
        let (one, two) = (end(pds[0])?, end(pds[1])?);
        env.connect_own(&one.0, &two.0)?;
        let numbers = [one.0.number(), two.0.number()];
        let link = |(qp, cq), peer_qpn| Link { qp, cq, peer_qpn };
        Ok(Pair {
            ends: [link(one, numbers[1]), link(two, numbers[0])],
        })
    }

    /// Has the first end send, or access what the second gave it: `len` bytes at `offset` of `mr`.
    pub fn send(&self, op: SendOp<'_>, mr: &Mr, offset: usize, len: usize) -> Outcome<()> {
        self.ends[0].send(1, op, &[mr.sge(offset, len)])
    }

    /// What was sent has succeeded.
    pub fn done(&self) -> Outcome<()> {
        self.ends[0].expect(1, WC_SUCCESS).map(|_| ())
    }
}

/// Two queue pairs that are connected with each other, of a process that has no other end to command.
pub(super) struct Loop {
    /// Both ends
    pub qps: [Qp; 2],
    /// The CQ of all their queues
    pub cq: Arc<Cq>,
    /// Region of two buffers, with all rights
    pub mr: Mr,
}

impl Loop {
    /// Connects two fresh ones.
    pub fn new(pd: &Arc<Pd>, gid: GidEntry, interface: Interface) -> Outcome<Self> {
        let context = pd.context();
        let cq = Cq::with(context, 64, 0, None, 0, interface).during("ibv_create_cq")?;
        let config = QpConfig {
            interface,
            ..Default::default()
        };
        let qp = || Qp::new(pd, &cq, &cq, &config).during("ibv_create_qp");
        let qps = [qp()?, qp()?];
        for (one, other) in [(0, 1), (1, 0)] {
            let path = Path::to_self(gid, context.port_attr()?.active_mtu, qps[other].number());
            qps[one].connect(&path).during("connecting")?;
        }
        let mr = Mr::new(pd, 2 * BUFFER, ACCESS_ALL).during("ibv_reg_mr")?;
        Ok(Loop { qps, cq, mr })
    }
}

/// `len` bytes at `offset` are those of the payload `key`.
pub fn same(mr: &Mr, offset: usize, len: usize, key: u64) -> Outcome<()> {
    mr.memory().check(offset, len, key, 0).map_err(|at| {
        Failure(format!(
            "byte {at} of {len} at {offset} is not what was sent"
        ))
    })
}
