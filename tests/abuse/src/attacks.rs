// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The attacks. Each leaves a defined outcome for the attacked object, and afterwards a well-formed transfer of the
//! same process must still work.

mod entries;
mod requests;
mod rings;
mod shared;

use std::time::Duration;

use verbs_tests::ensure;
use verbs_tests::memory::Memory;
use verbs_tests::stress::{During, Failure, Outcome};
use verbs_tests::verbs::{ACCESS_ALL, Errno};
use vrnic_wire::completion::{Cqe, Status};
use vrnic_wire::work::{RdmaTarget, SendHeader, SendOpcode, Sge, send_flags};

use crate::provider::{Context, Cq, ENTRIES, Port, Qp, send_entry};

/// How long something that must happen may take.
const SOON: Duration = Duration::from_secs(20);
/// How long to wait for what must not come.
const QUIET: Duration = Duration::from_millis(200);
/// Bytes of the data region.
const DATA: usize = 64 * 1024;
/// User handle of the attacked QP.
const ATTACKER: u64 = 0xa77ac;
/// User handle of the attacked CQ.
const ATTACKED_CQ: u64 = 0xc0;

/// What the attacks run on.
pub struct Range {
    /// The RDMA device
    pub device: String,
    /// Its port
    pub port: Port,
    /// Seed of all random bytes
    pub seed: u64,
    /// How long the random attacks go on
    pub duration: Duration,
}

/// Makes one thing of a request wrong.
type Spoil<T> = fn(&mut T);

/// An attack: its name and what it does.
pub type Attack = (&'static str, fn(&Range) -> Outcome<()>);

/// All attacks.
pub fn attacks() -> impl Iterator<Item = &'static Attack> {
    let lists = [
        ATTACKS,
        entries::ATTACKS,
        rings::ATTACKS,
        requests::ATTACKS,
        shared::ATTACKS,
    ];
    lists.into_iter().flatten()
}

const ATTACKS: &[Attack] = &[("well-behaved", |range| Field::new(range)?.transfers(3))];

/// A connected pair of QPs of one context: requests are posted to `a`, `b` answers.
struct Field {
    context: Context,
    port: Port,
    cq: Cq,
    a: Qp,
    b: Qp,
    data: Memory,
    key: u32,
    region: u32,
}

impl Field {
    fn new(range: &Range) -> Outcome<Self> {
        let context = Context::new(&range.device).during("opening a context")?;
        let cq = Cq::new(&context, ATTACKED_CQ, 4 * ENTRIES).during("creating a CQ")?;
        let a = Qp::new(&context, ATTACKER, &cq).during("creating a QP")?;
        let b = Qp::new(&context, ATTACKER + 1, &cq).during("creating a QP")?;
        a.connect_with(&context, range.port, &b)
            .during("connecting")?;
        let data = Memory::new(DATA).during("mmap")?;
        let (region, key) = context
            .register(&data, ACCESS_ALL)
            .during("registering memory")?;
        Ok(Field {
            context,
            port: range.port,
            cq,
            a,
            b,
            data,
            key,
            region,
        })
    }

    fn sge(&self, at: usize, length: u32) -> Sge {
        Sge {
            address: self.data.addr(at).into(),
            length: length.into(),
            lkey: self.key.into(),
        }
    }

    fn target(&self, at: usize) -> RdmaTarget {
        RdmaTarget {
            address: self.data.addr(at).into(),
            rkey: self.key.into(),
            reserved: [0; 28],
        }
    }

    /// A WRITE of 64 bytes from offset 0 to offset 4096, signalled.
    fn write(&self, wr_id: u64) -> Vec<u8> {
        send_entry(
            header(SendOpcode::Write, wr_id),
            self.target(4096),
            self.sge(0, 64),
        )
    }

    /// Replaces the attacked pair.
    fn renew(&mut self) -> Outcome<()> {
        let a = Qp::new(&self.context, ATTACKER, &self.cq).during("creating a QP")?;
        let b = Qp::new(&self.context, ATTACKER + 1, &self.cq).during("creating a QP")?;
        a.connect_with(&self.context, self.port, &b)
            .during("connecting")?;
        for old in [
            std::mem::replace(&mut self.a, a),
            std::mem::replace(&mut self.b, b),
        ] {
            self.context
                .destroy_qp(old.handle)
                .during("destroying an attacked QP")?;
        }
        while self.cq.poll().is_some() {}
        Ok(())
    }

    /// A fresh pair in the same context does `count` transfers right.
    fn transfers(&mut self, count: u64) -> Outcome<()> {
        let mut cq =
            Cq::new(&self.context, 0xf00d, ENTRIES).during("creating a CQ after an attack")?;
        let mut one = Qp::new(&self.context, 1, &cq).during("creating a QP after an attack")?;
        let two = Qp::new(&self.context, 2, &cq).during("creating a QP after an attack")?;
        one.connect_with(&self.context, self.port, &two)
            .during("connecting after an attack")?;
        for n in 0..count {
            self.data.fill(0, 64, n, 0);
            self.data.set(4096, 64, 0);
            one.put_send(&self.write(n));
            one.publish(&self.context);
            let cqe = cq
                .wait(SOON)
                .ok_or_else(|| Failure("a good request after an attack did not complete".into()))?;
            ensure!(
                cqe.status == Status::Success.raw()
                    && cqe.wr_id.get() == n
                    && cqe.qpn.get() == one.number,
                "a good request after an attack: {cqe:?}"
            );
            ensure!(
                self.data.check(4096, 64, n, 0).is_ok(),
                "wrong data after an attack"
            );
        }
        for qp in [&one, &two] {
            self.context
                .destroy_qp(qp.handle)
                .during("destroying a good QP")?;
        }
        self.context
            .destroy_cq(cq.handle)
            .during("destroying a good CQ")
    }

    /// The next completion of the attacked queue.
    fn complete(&mut self) -> Outcome<Cqe> {
        self.cq
            .wait(SOON)
            .ok_or_else(|| Failure("no completion".into()))
    }

    fn fatal(&mut self, handle: u64, kind: i32) -> Outcome<()> {
        ensure!(
            self.context.wait_event(handle, kind, SOON),
            "no event {kind} for the object {handle:#x}"
        );
        Ok(())
    }
}

fn header(opcode: SendOpcode, wr_id: u64) -> SendHeader {
    SendHeader {
        opcode: opcode.raw(),
        flags: send_flags::SIGNALED,
        num_sge: 1.into(),
        wr_id: wr_id.into(),
        ..Default::default()
    }
}

fn refused<T>(what: &str, errno: &[i32], result: &Result<T, Errno>) -> Outcome<()> {
    match result {
        Ok(_) => Err(Failure(format!("{what} was accepted"))),
        Err(e) => {
            ensure!(errno.contains(&e.0), "{what}: {e}");
            Ok(())
        }
    }
}
