// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The other end of a check: a service that obeys orders, with objects of its own, and the service's client.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::{BUFFER, SOON, is_vrnic};
use crate::control::{Control, Words};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_wc};
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE, AsyncEvent, Context,
    Cq, EventObject, GidEntry, Mr, Path, Pd, QPT_UD, Qp, QpConfig, SendWr, Sge, event_name,
    opcode_name, state_name, status_name,
};

/// `Q_Key` of the peer's UD QPs.
pub const QKEY: u32 = 0x0bad_cafe;
/// First byte of every region at the peer, before a test writes.
pub const BLANK: u8 = 0x5c;

/// A region of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First byte
    pub addr: u64,
    /// Remote key
    pub rkey: u32,
}

/// The client of a peer service.
pub struct Peer {
    control: Control,
    /// The peer's device is ours: it promises more than the standard
    pub vrnic: bool,
    /// The peer's GID
    pub gid: Ipv6Addr,
    /// The peer's LID, 0 on Ethernet
    pub lid: u16,
    /// The peer's MTU enumerator
    pub mtu: i32,
    /// Region with all rights, of [`BUFFER`] bytes
    pub all: Region,
    /// Region that may only be read
    pub read_only: Region,
    /// Region that may only be written
    pub write_only: Region,
    /// Region without remote rights
    pub local: Region,
    /// Region of another protection domain
    pub other_pd: Region,
}

impl Peer {
    /// A client over `control`.
    #[must_use]
    pub fn new(control: Control) -> Self {
        let none = Region { addr: 0, rkey: 0 };
        Peer {
            control,
            vrnic: false,
            gid: Ipv6Addr::UNSPECIFIED,
            lid: 0,
            mtu: 1,
            all: none,
            read_only: none,
            write_only: none,
            local: none,
            other_pd: none,
        }
    }

    /// Orders the service to do `what`.
    pub fn order(&mut self, what: &str, words: Words) -> Outcome<Words> {
        self.control
            .send(words.with("do", what).text_line().as_bytes())
            .during("sending a request to the peer")?;
        let reply = Words::parse(
            &self
                .control
                .receive()
                .during("waiting for a reply of the peer")?,
        );
        match reply.text("error") {
            Ok(error) => Err(Failure(format!(
                "peer, {what}: {}",
                error.replace('_', " ")
            ))),
            Err(_) => Ok(reply),
        }
    }

    /// Throws away all objects of the service and makes new ones.
    pub fn refresh(&mut self) -> Outcome<()> {
        let r = self.order("refresh", Words::default())?;
        let region = |name: &str| -> Outcome<Region> {
            Ok(Region {
                addr: r.number(&format!("{name}_addr"))?,
                rkey: r.number(&format!("{name}_key"))? as u32,
            })
        };
        self.vrnic = is_vrnic(r.text("device")?);
        self.gid = r.text("gid")?.parse()?;
        self.lid = r.number("lid")? as u16;
        self.mtu = r.number("mtu")? as i32;
        self.all = region("all")?;
        self.read_only = region("ro")?;
        self.write_only = region("wo")?;
        self.local = region("local")?;
        self.other_pd = region("other")?;
        Ok(())
    }

    /// Posts a receive of `len` bytes at `offset` of the region with all rights.
    pub fn recv(&mut self, qpn: u32, wr_id: u64, offset: usize, len: usize) -> Outcome<()> {
        let sge = (
            self.all.addr + offset as u64,
            len as u64,
            u64::from(self.all.rkey),
        );
        self.recv_raw(qpn, wr_id, sge.0, sge.1, sge.2)
    }

    /// Posts a receive of any one scatter/gather entry.
    pub fn recv_raw(&mut self, qpn: u32, wr_id: u64, addr: u64, len: u64, key: u64) -> Outcome<()> {
        let words = Words::default()
            .with("qpn", qpn)
            .with("wr_id", wr_id)
            .with("addr", addr)
            .with("len", len);
        self.order("recv", words.with("key", key)).map(|_| ())
    }

    /// The peer's next completion.
    pub fn wait(&mut self, patience: Duration) -> Outcome<Option<ibv_wc>> {
        let r = self.order("wait", Words::default().with("ms", patience.as_millis()))?;
        if r.number("none").is_ok() {
            return Ok(None);
        }
        Ok(Some(ibv_wc {
            wr_id: r.number("wr_id")?,
            status: r.number("status")? as i32,
            opcode: r.number("opcode")? as i32,
            byte_len: r.number("byte_len")? as u32,
            imm_data: r.number("imm")? as u32,
            qp_num: r.number("qpn")? as u32,
            src_qp: r.number("src")? as u32,
            wc_flags: r.number("flags")? as u32,
            ..Default::default()
        }))
    }

    /// The peer's next completion, which must be that of `wr_id` with `status`.
    pub fn expect(&mut self, wr_id: u64, status: i32) -> Outcome<ibv_wc> {
        let wc = self.wait(SOON)?.ok_or_else(|| {
            Failure(format!(
                "no completion of {wr_id:#x} at the peer, {} expected",
                status_name(status)
            ))
        })?;
        ensure!(
            wc.wr_id == wr_id && wc.status == status,
            "completion {:#x} {} ({}) at the peer, expected {wr_id:#x} {}",
            wc.wr_id,
            status_name(wc.status),
            opcode_name(wc.opcode),
            status_name(status)
        );
        Ok(wc)
    }

    /// Nothing completes at the peer for a while.
    pub fn expect_quiet(&mut self) -> Outcome<()> {
        match self.wait(super::QUIET)? {
            None => Ok(()),
            Some(wc) => Err(Failure(format!(
                "an unexpected completion at the peer: {:#x} {}",
                wc.wr_id,
                status_name(wc.status)
            ))),
        }
    }

    /// The peer's QP `qpn` is in `state`, or gets there soon.
    pub fn expect_state(&mut self, qpn: u32, state: i32) -> Outcome<()> {
        let mut got = -1;
        for _ in 0..100 {
            got = self
                .order("state", Words::default().with("qpn", qpn))?
                .number("state")? as i32;
            if got == state {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Failure(format!(
            "the peer's QP is in {}, not {}",
            state_name(got),
            state_name(state)
        )))
    }

    /// The peer gets the event `kind` for its QP `qpn`.
    pub fn expect_event(&mut self, qpn: u32, kind: i32) -> Outcome<()> {
        let r = self.order(
            "event",
            Words::default()
                .with("ms", 5000)
                .with("kind", kind)
                .with("qpn", qpn),
        )?;
        ensure!(
            r.number("came")? == 1,
            "no event {} for the peer's QP",
            event_name(kind)
        );
        Ok(())
    }

    /// The peer got no event of a QP or CQ but `COMM_EST`.
    pub fn expect_no_event(&mut self) -> Outcome<()> {
        let r = self.order("no_event", Words::default())?;
        match r.number("kind") {
            Ok(kind) => Err(Failure(format!(
                "event {} at the peer",
                event_name(kind as i32)
            ))),
            Err(_) => Ok(()),
        }
    }

    /// Moves the peer's QP to `state`.
    pub fn to_state(&mut self, qpn: u32, state: i32) -> Outcome<()> {
        self.order(
            "to_state",
            Words::default().with("qpn", qpn).with("state", state),
        )
        .map(|_| ())
    }

    /// Destroys the peer's QP.
    pub fn destroy(&mut self, qpn: u32) -> Outcome<()> {
        self.order("destroy", Words::default().with("qpn", qpn))
            .map(|_| ())
    }

    /// Fills `len` bytes at `offset` of the peer's region with all rights with the payload `key`.
    pub fn fill(&mut self, offset: usize, len: usize, key: u64) -> Outcome<()> {
        let words = Words::default()
            .with("offset", offset)
            .with("len", len)
            .with("key", key);
        self.order("fill", words).map(|_| ())
    }

    /// Those bytes hold the payload `key`.
    pub fn expect_payload(&mut self, offset: usize, len: usize, key: u64) -> Outcome<()> {
        let words = Words::default()
            .with("offset", offset)
            .with("len", len)
            .with("key", key);
        let r = self.order("check", words)?;
        match r.number("wrong") {
            Ok(at) => Err(Failure(format!("byte {at} of {len} at the peer is wrong"))),
            Err(_) => Ok(()),
        }
    }

    /// No region of the peer was changed.
    pub fn expect_blank(&mut self) -> Outcome<()> {
        let r = self.order("blank", Words::default())?;
        match r.text("changed") {
            Ok(which) => Err(Failure(format!("memory of the peer changed: {which}"))),
            Err(_) => Ok(()),
        }
    }

    /// Has the peer's QP access memory of ours: `len` bytes from or to the beginning of its region with all rights.
    /// Its request has the id 1.
    pub(super) fn access(
        &mut self,
        qpn: u32,
        access: Access,
        target: Region,
        len: usize,
    ) -> Outcome<()> {
        let words = Words::default()
            .with("qpn", qpn)
            .with("opcode", access.op(0, 0).opcode())
            .with("addr", target.addr)
            .with("key", target.rkey)
            .with("len", len);
        self.order("access", words).map(|_| ())
    }

    /// Registers the peer's region with all rights anew; the old key is stale then.
    pub fn register_again(&mut self) -> Outcome<Region> {
        let r = self.order("register_again", Words::default())?;
        let old = self.all;
        self.all = Region {
            addr: r.number("addr")?,
            rkey: r.number("key")? as u32,
        };
        Ok(old)
    }

    /// A UD QP of the peer with one receive of `len` bytes; its number.
    pub fn datagram_qp(&mut self, len: usize) -> Outcome<u32> {
        Ok(self
            .order("datagram_qp", Words::default().with("len", len))?
            .number("qpn")? as u32)
    }
}

struct Objects {
    context: Arc<Context>,
    gid: GidEntry,
    pd: Arc<Pd>,
    _other: Arc<Pd>,
    cq: Arc<Cq>,
    regions: BTreeMap<&'static str, Mr>,
    qps: BTreeMap<u32, Qp>,
}

impl Objects {
    fn new(device: Option<&str>, gid: Option<u8>) -> Outcome<Self> {
        let context = Context::open(device).during("opening")?;
        let gid = context.gid(gid).during("gid")?;
        let pd = Pd::new(&context).during("pd")?;
        let other = Pd::new(&context).during("pd")?;
        let cq = Cq::new(&context, 256).during("cq")?;
        let mut regions = BTreeMap::new();
        for (name, pd, access) in [
            ("all", &pd, ACCESS_ALL),
            ("ro", &pd, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ),
            ("wo", &pd, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE),
            ("local", &pd, ACCESS_LOCAL_WRITE),
            ("other", &other, ACCESS_ALL),
        ] {
            let mr = Mr::new(pd, BUFFER, access).during("mr")?;
            mr.memory().set(0, BUFFER, BLANK);
            regions.insert(name, mr);
        }
        Ok(Objects {
            context,
            gid,
            pd,
            _other: other,
            cq,
            regions,
            qps: BTreeMap::new(),
        })
    }

    fn all(&self) -> Outcome<&Mr> {
        self.regions
            .get("all")
            .ok_or_else(|| Failure("no region".into()))
    }

    fn qp(&self, order: &Words) -> Outcome<&Qp> {
        self.qps
            .get(&(order.number("qpn")? as u32))
            .ok_or_else(|| Failure("no such QP".into()))
    }

    fn execute(&mut self, order: &Words) -> Outcome<Words> {
        let reply = Words::default();
        let ms = || -> Outcome<Duration> { Ok(Duration::from_millis(order.number("ms")?)) };
        match order.text("do")? {
            "connect" => {
                let config = QpConfig {
                    kind: order.number("kind")? as i32,
                    cap: ibv_qp_cap {
                        max_send_wr: 16,
                        max_recv_wr: 64,
                        max_send_sge: 4,
                        max_recv_sge: 4,
                        max_inline_data: 0,
                    },
                    ..Default::default()
                };
                let qp = Qp::new(&self.pd, &self.cq, &self.cq, &config).during("create")?;
                let psn = 0x7f_fff0;
                let path = Path {
                    from: self.gid.index,
                    to: order.text("gid")?.parse()?,
                    lid: order.number("lid")? as u16,
                    qpn: order.number("qpn")? as u32,
                    sq_psn: psn,
                    rq_psn: order.number("psn")? as u32,
                    mtu: self.context.port_attr()?.active_mtu,
                    timeout: order.number("timeout")? as u8,
                    retries: 7,
                    rnr_retries: 7,
                    rnr_timer: order.number("rnr_timer")? as u8,
                    rd_atomic: order.number("rd_atomic")? as u8,
                    access: order.number("access")? as i32,
                };
                qp.connect(&path).during("connect")?;
                let number = qp.number();
                self.qps.insert(number, qp);
                Ok(reply.with("qpn", number).with("psn", psn))
            }
            "datagram_qp" => {
                let len = order.number("len")? as usize;
                let config = QpConfig {
                    kind: QPT_UD,
                    ..Default::default()
                };
                let qp = Qp::new(&self.pd, &self.cq, &self.cq, &config).during("create")?;
                qp.start_datagrams(QKEY, 0).during("start")?;
                qp.post_recv(&[(77, &[self.all()?.sge(0, len)])])
                    .map_err(|e| Failure(e.error.to_string()))?;
                let number = qp.number();
                self.qps.insert(number, qp);
                Ok(reply.with("qpn", number))
            }
            "recv" => {
                let sge = Sge::raw(
                    order.number("addr")?,
                    order.number("len")? as u32,
                    order.number("key")? as u32,
                );
                let posted = self
                    .qp(order)?
                    .post_recv(&[(order.number("wr_id")?, &[sge])]);
                posted.map_err(|e| Failure(e.error.to_string()))?;
                Ok(reply)
            }
            "access" => {
                let access = Access::of(order.number("opcode")? as i32)
                    .ok_or_else(|| Failure("no such access".into()))?;
                let op = access.op(order.number("addr")?, order.number("key")? as u32);
                let sges = [self.all()?.sge(0, order.number("len")? as usize)];
                let posted = self.qp(order)?.post_send(&[SendWr::new(1, op, &sges)]);
                posted.map_err(|e| Failure(e.error.to_string()))?;
                Ok(reply)
            }
            "wait" => Ok(match self.cq.wait(ms()?).during("poll")? {
                None => reply.with("none", 1),
                Some(wc) => reply
                    .with("wr_id", wc.wr_id)
                    .with("status", wc.status)
                    .with("opcode", wc.opcode)
                    .with("byte_len", wc.byte_len)
                    .with("imm", wc.imm_data)
                    .with("qpn", wc.qp_num)
                    .with("src", wc.src_qp)
                    .with("flags", wc.wc_flags),
            }),
            "state" => Ok(reply.with("state", self.qp(order)?.query().during("query")?.qp_state)),
            "event" => {
                let (kind, qpn) = (order.number("kind")? as i32, order.number("qpn")? as u32);
                let wanted = AsyncEvent {
                    kind,
                    object: EventObject::Qp(qpn),
                };
                let came = self.context.wait_event(ms()?, |e| *e == wanted).is_some();
                Ok(reply.with("came", u32::from(came)))
            }
            "no_event" => {
                let counts = |e: &AsyncEvent| {
                    e.object != EventObject::Device && e.kind != crate::verbs::EVENT_COMM_EST
                };
                Ok(
                    match self.context.wait_event(Duration::from_millis(100), counts) {
                        Some(event) => reply.with("kind", event.kind),
                        None => reply,
                    },
                )
            }
            "to_state" => {
                self.qp(order)?
                    .to_state(order.number("state")? as i32)
                    .during("modify")?;
                Ok(reply)
            }
            "destroy" => {
                let qp = self.qps.remove(&(order.number("qpn")? as u32));
                qp.ok_or_else(|| Failure("no such QP".into()))?
                    .destroy()
                    .during("destroy")?;
                Ok(reply)
            }
            "fill" => {
                let (offset, len) = (
                    order.number("offset")? as usize,
                    order.number("len")? as usize,
                );
                self.all()?
                    .memory()
                    .fill(offset, len, order.number("key")?, 0);
                Ok(reply)
            }
            "check" => {
                let (offset, len) = (
                    order.number("offset")? as usize,
                    order.number("len")? as usize,
                );
                Ok(
                    match self
                        .all()?
                        .memory()
                        .check(offset, len, order.number("key")?, 0)
                    {
                        Ok(()) => reply,
                        Err(at) => reply.with("wrong", at),
                    },
                )
            }
            "blank" => {
                let changed = self
                    .regions
                    .iter()
                    .find(|(_, mr)| mr.memory().check_set(0, BUFFER, BLANK).is_err());
                Ok(match changed {
                    Some((name, _)) => reply.with("changed", name),
                    None => reply,
                })
            }
            "register_again" => {
                let old = self
                    .regions
                    .remove("all")
                    .ok_or_else(|| Failure("no region".into()))?;
                let memory = old.deregister().during("dereg")?;
                let mr = Mr::of(&self.pd, &memory, 0, BUFFER, ACCESS_ALL).during("reg")?;
                let reply = reply.with("addr", mr.addr(0)).with("key", mr.rkey());
                self.regions.insert("all", mr);
                Ok(reply)
            }
            other => Err(Failure(format!("unknown request {other}"))),
        }
    }
}

/// Serves orders on `control` until the client goes away.
pub fn serve(device: Option<&str>, gid: Option<u8>, mut control: Control) -> Outcome<()> {
    let mut objects: Option<Objects> = None;
    while let Ok(frame) = control.receive() {
        let order = Words::parse(&frame);
        let reply = if order.text("do").is_ok_and(|w| w == "refresh") {
            drop(objects.take());
            Objects::new(device, gid).and_then(|fresh| {
                let port = fresh.context.port_attr().during("ibv_query_port")?;
                let mut reply = Words::default()
                    .with("device", fresh.context.name())
                    .with("gid", fresh.gid.gid)
                    .with("lid", fresh.gid.lid)
                    .with("mtu", port.active_mtu);
                for (name, mr) in &fresh.regions {
                    reply = reply
                        .with(&format!("{name}_addr"), mr.addr(0))
                        .with(&format!("{name}_key"), mr.rkey());
                }
                objects = Some(fresh);
                Ok(reply)
            })
        } else {
            objects
                .as_mut()
                .ok_or_else(|| Failure("not set up".into()))
                .and_then(|o| o.execute(&order))
        };
        let reply = reply.unwrap_or_else(|e| Words::default().with("error", e.0.replace(' ', "_")));
        if control.send(reply.text_line().as_bytes()).is_err() {
            break;
        }
    }
    Ok(())
}
