// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two ends of an InfiniBand connection that migrates between two paths. If the ports have several LIDs, the first path
//! is between their first LIDs and the second between their second ones. Otherwise the second path has a global route
//! header. All data are verified, and so is what each end is told of the migrations.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_tests::args::Args;
use verbs_tests::control::{Control, Words};
use verbs_tests::ensure;
use verbs_tests::ffi::{ibv_ah_attr, ibv_qp_attr};
use verbs_tests::stress::{During, Failure, Outcome};
use verbs_tests::verbs::{
    ACCESS_ALL, Context, Cq, EVENT_PATH_MIG, EVENT_PATH_MIG_ERR, EventObject, GidEntry, Mr, Pd,
    QP_ALT_PATH, QP_AV, QP_DEST_QPN, QP_MAX_DEST_RD_ATOMIC, QP_MAX_QP_RD_ATOMIC, QP_MIN_RNR_TIMER,
    QP_PATH_MIG_STATE, QP_PATH_MTU, QP_RETRY_CNT, QP_RNR_RETRY, QP_RQ_PSN, QP_SQ_PSN, QP_STATE,
    QP_TIMEOUT, QPS_RTR, QPS_RTS, Qp, QpConfig, SendOp, SendWr, WC_RETRY_EXC_ERR, WC_SUCCESS,
    address, failed_destroys,
};

const USAGE: &str = "\
vrnic-migrate [options] [HOST]

One end of a connection that migrates between two paths of an InfiniBand port. With HOST, connects to the other end.

  --device NAME     RDMA device (default: the first)
  --port N          TCP port of the other end (default: 18900)

If the port has several LIDs, the paths are between the first and between the second LIDs of the ports. Otherwise, the
second path has a global route header.

When the client prints `armed`, packets have to be lost on the first path: as many as its retries, and one more.
";

/// Bytes of a message.
const MESSAGE: usize = 1000;
/// Where data that were read back arrive, and the other end's own data.
const BACK: usize = 4096;
/// How long anything that must happen may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to watch that nothing happens.
const QUIET: Duration = Duration::from_millis(300);
/// Retries of a request.
const RETRIES: u8 = 2;

/// States of path migration (`enum ibv_mig_state`).
const MIGRATED: i32 = 0;
const REARM: i32 = 1;
const ARMED: i32 = 2;

/// One end of the connection.
struct End {
    context: Arc<Context>,
    qp: Qp,
    cq: Arc<Cq>,
    mr: Mr,
    gid: GidEntry,
    /// Whether the ports have several LIDs.
    several: bool,
    control: Control,
    /// What the other end told of itself.
    peer: Words,
    client: bool,
    /// Number of messages so far, which is the key of the next one's payload.
    messages: u64,
}

impl End {
    fn open(args: &Args) -> Outcome<Self> {
        let device: Option<String> = args.get("device");
        let context = Context::open(device.as_deref()).during("opening the device")?;
        let gid = context.gid(Some(0)).during("looking for GID 0")?;
        let port = context.port_attr().during("ibv_query_port")?;
        ensure!(port.lid != 0, "the port has no LID");
        let pd = Pd::new(&context).during("ibv_alloc_pd")?;
        let cq = Cq::new(&context, 16).during("ibv_create_cq")?;
        let config = QpConfig {
            signal_all: true,
            ..QpConfig::default()
        };
        let qp = Qp::new(&pd, &cq, &cq, &config).during("ibv_create_qp")?;
        let mr = Mr::new(&pd, 2 * BACK, ACCESS_ALL).during("ibv_reg_mr")?;

        let number = args.get("port").unwrap_or(18900);
        let host = args.words().first();
        let mut control = if let Some(host) = host {
            Control::connect(host, number, PATIENCE).during("connecting")?
        } else {
            let mut listener = Control::listener(number).during("listening")?;
            listener.accept().during("accepting")?
        };
        let own = Words::default()
            .with("lid", port.lid)
            .with("gid", gid.gid)
            .with("qpn", qp.number())
            .with("addr", mr.addr(0))
            .with("rkey", mr.rkey());
        let peer = control.swap_words(&own).during("greeting")?;
        Ok(Self {
            context,
            qp,
            cq,
            mr,
            gid,
            several: port.lmc > 0,
            control,
            peer,
            client: host.is_some(),
            messages: 0,
        })
    }

    /// Returns the first path or the second.
    fn path(&self, second: bool) -> Outcome<ibv_ah_attr> {
        let to = self.peer.text("gid")?.parse().during("the GID")?;
        let first = self.peer.number("lid")? as u16;
        let lid = u8::from(second && self.several);
        Ok(ibv_ah_attr {
            src_path_bits: lid,
            is_global: (second && !self.several).into(),
            ..address(self.gid.index, to, first + u16::from(lid))
        })
    }

    fn connect(&mut self) -> Outcome<()> {
        self.qp.to_init(ACCESS_ALL).during("to INIT")?;
        let attr = ibv_qp_attr {
            qp_state: QPS_RTR,
            ah_attr: self.path(false)?,
            path_mtu: 3,
            dest_qp_num: self.peer.number("qpn")? as u32,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..Default::default()
        };
        let mask = QP_AV | QP_PATH_MTU | QP_DEST_QPN | QP_RQ_PSN;
        let mask = QP_STATE | mask | QP_MAX_DEST_RD_ATOMIC | QP_MIN_RNR_TIMER;
        self.qp.modify(&attr, mask).during("to RTR")?;
        let attr = ibv_qp_attr {
            qp_state: QPS_RTS,
            timeout: 14,
            retry_cnt: RETRIES,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let mask = QP_TIMEOUT | QP_RETRY_CNT | QP_RNR_RETRY | QP_SQ_PSN | QP_MAX_QP_RD_ATOMIC;
        self.qp.modify(&attr, QP_STATE | mask).during("to RTS")?;
        self.meet("connected")
    }

    /// Waits until the other end is at the same place.
    fn meet(&mut self, place: &str) -> Outcome<()> {
        let theirs = self.control.swap(place.as_bytes()).during(place)?;
        ensure!(
            theirs == place.as_bytes(),
            "{place}: the other end is at {:?}",
            String::from_utf8_lossy(&theirs)
        );
        Ok(())
    }

    /// Posts a request of the client and returns the status with which it completes.
    fn request(&self, op: SendOp<'_>, offset: usize) -> Outcome<i32> {
        let sges = [self.mr.sge(offset, MESSAGE)];
        self.qp
            .post_send(&[SendWr::new(self.messages, op, &sges)])
            .map_err(|e| Failure(format!("posting: {}", e.error)))?;
        let wc = self.cq.wait(PATIENCE).during("polling")?;
        let wc = wc.ok_or_else(|| Failure("no completion".into()))?;
        ensure!(wc.wr_id == self.messages, "completion {}", wc.wr_id);
        Ok(wc.status)
    }

    /// Writes a message to the other end and reads it back.
    fn exchange(&mut self) -> Outcome<()> {
        self.messages += 1;
        let (addr, rkey) = (self.peer.number("addr")?, self.peer.number("rkey")? as u32);
        self.mr.memory().fill(0, MESSAGE, self.messages, 0);
        let there = addr + BACK as u64;
        for (op, offset) in [
            (SendOp::Write(there, rkey), 0),
            (SendOp::Read(there, rkey), BACK),
        ] {
            let status = self.request(op, offset)?;
            ensure!(
                status == WC_SUCCESS,
                "message {}: status {status}",
                self.messages
            );
        }
        let same = self.mr.memory().check(BACK, MESSAGE, self.messages, 0);
        same.map_err(|at| Failure(format!("byte {at} of message {} is wrong", self.messages)))
    }

    /// The client exchanges some messages.
    fn traffic(&mut self, place: &str) -> Outcome<()> {
        for _ in 0..if self.client { 20 } else { 0 } {
            self.exchange().during(place)?;
        }
        self.meet(place)
    }

    /// Loads the second or first path as the alternate path and asks for REARM.
    fn rearm(&self, second: bool) -> Outcome<()> {
        self.rearm_by(self.path(second)?)
    }

    /// Loads an alternate path and asks for REARM.
    fn rearm_by(&self, path: ibv_ah_attr) -> Outcome<()> {
        let attr = ibv_qp_attr {
            alt_ah_attr: path,
            alt_port_num: 1,
            alt_timeout: 14,
            path_mig_state: REARM,
            ..Default::default()
        };
        self.qp
            .modify(&attr, QP_ALT_PATH | QP_PATH_MIG_STATE)
            .during("rearming")
    }

    /// Checks the state of migration, and which path is in use.
    fn expect_path(&self, state: i32, second: bool) -> Outcome<()> {
        let attr = self.qp.query().during("ibv_query_qp")?;
        let properties = |path: &ibv_ah_attr| (path.dlid, path.src_path_bits, path.is_global != 0);
        let got = (attr.path_mig_state, properties(&attr.ah_attr));
        let wanted = (state, properties(&self.path(second)?));
        ensure!(got == wanted, "state and path are {got:?}, not {wanted:?}");
        Ok(())
    }

    /// Makes both ends ready for migration to the second or first path. Traffic tells each of the other.
    fn arm(&mut self, to_second: bool) -> Outcome<()> {
        self.rearm(to_second)?;
        self.expect_path(REARM, !to_second)?;
        self.meet("rearmed")?;
        self.traffic("arming")?;
        self.expect_path(ARMED, !to_second)
    }

    /// The client's owner asks for the migration.
    fn migrate(&self) -> Outcome<()> {
        let attr = ibv_qp_attr {
            path_mig_state: MIGRATED,
            ..Default::default()
        };
        self.qp.modify(&attr, QP_PATH_MIG_STATE).during("migrating")
    }

    /// Returns the kind of the next event about migration, if one comes in this time.
    fn event(&self, time: Duration) -> Option<i32> {
        let own = EventObject::Qp(self.qp.number());
        let event = self.context.wait_event(time, |event| {
            event.object == own && matches!(event.kind, EVENT_PATH_MIG | EVENT_PATH_MIG_ERR)
        });
        event.map(|event| event.kind)
    }

    fn expect_event(&self, wanted: i32) -> Outcome<()> {
        let got = self.event(PATIENCE);
        ensure!(got == Some(wanted), "event {got:?}, not {wanted}");
        Ok(())
    }

    fn expect_no_event(&self) -> Outcome<()> {
        let got = self.event(QUIET);
        ensure!(got.is_none(), "event {got:?}");
        Ok(())
    }

    /// The client migrates at the request of its owner, and the server follows it.
    fn by_command(&mut self, to_second: bool) -> Outcome<()> {
        self.arm(to_second)?;
        self.meet("armed")?;
        if self.client {
            self.migrate()?;
        }
        self.traffic("after the command")?;
        self.expect_path(MIGRATED, to_second)?;
        if self.client {
            // Who asked for it knows.
            self.expect_no_event()
        } else {
            self.expect_event(EVENT_PATH_MIG)
        }
    }

    /// The path in use fails, so the client migrates when its retries are used up, and the server follows it.
    fn by_loss(&mut self, to_second: bool) -> Outcome<()> {
        self.arm(to_second)?;
        self.meet("armed")?;
        if self.client {
            println!("armed");
            let end = Instant::now() + PATIENCE;
            while self.event(Duration::ZERO) != Some(EVENT_PATH_MIG) {
                ensure!(Instant::now() < end, "the client does not migrate");
                self.exchange()?;
            }
        }
        self.traffic("after the loss")?;
        self.expect_path(MIGRATED, to_second)?;
        if !self.client {
            self.expect_event(EVENT_PATH_MIG)?;
        }
        self.expect_no_event()
    }

    /// The client migrates to a path that the server does not have. The server
    /// tells its owner, once, and takes nothing.
    fn by_mistake(&mut self) -> Outcome<()> {
        // Both use the first path. The server has an alternate path to a LID that nobody has.
        let mut path = self.path(true)?;
        if !self.client {
            path.dlid += 100;
        }
        self.rearm_by(path)?;
        self.meet("rearmed for the mistake")?;
        self.traffic("arming for the mistake")?;
        self.expect_path(ARMED, false)?;
        self.meet("armed for the mistake")?;
        if self.client {
            self.migrate()?;
            let there = self.peer.number("addr")? + BACK as u64;
            let rkey = self.peer.number("rkey")? as u32;
            self.messages += 1;
            let status = self.request(SendOp::Write(there, rkey), 0)?;
            ensure!(status == WC_RETRY_EXC_ERR, "status {status}");
        }
        self.meet("after the mistake")?;
        if !self.client {
            self.expect_event(EVENT_PATH_MIG_ERR)?;
            self.expect_path(ARMED, false)?;
        }
        self.expect_no_event()
    }
}

fn run(args: &Args) -> Outcome<()> {
    let mut end = End::open(args)?;
    end.connect()?;
    let (first, second) = (end.path(false)?.dlid, end.path(true)?.dlid);
    println!("the paths lead to the LIDs {first} and {second}");
    end.traffic("on the first path")?;
    end.expect_path(MIGRATED, false)?;
    end.by_command(true).during("by command")?;
    end.by_command(false).during("back by command")?;
    end.by_loss(true).during("by loss")?;
    end.by_command(false).during("back again")?;
    end.by_mistake().during("by mistake")?;
    drop(end);
    ensure!(failed_destroys() == 0, "an object could not be destroyed");
    println!("all migrations were as they have to be");
    Ok(())
}

fn main() -> ExitCode {
    let args = Args::parse(USAGE, &["device", "port"], &[]);
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            println!("FAIL  {e}");
            ExitCode::FAILURE
        }
    }
}
