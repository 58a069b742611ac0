// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One end of a stress run over RC: many QPs, each initiating its own stream and answering the peer's.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::initiator::{Initiator, Remote, SLOTS, qp_of};
use super::plan::{Limits, WORDS, source_key};
use super::pool::Pool;
use super::responder::{RECEIVE, Responder};
use super::{During, Failure, Outcome};
use crate::control::{Control, Words, wait_readable};
use crate::ensure;
use crate::ffi::{ibv_qp_cap, ibv_wc};
use crate::rng::Rng;
use crate::verbs::{
    ACCESS_ALL, ACCESS_FLUSH_GLOBAL, ACCESS_LOCAL_WRITE, ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ,
    Channel, Context, Cq, DEVICE_ATOMIC_WRITE, DEVICE_FLUSH_GLOBAL, GidEntry, Interface, Mr, Path,
    Pd, QP_EX_WITH_ATOMIC_WRITE, QP_EX_WITH_FLUSH, Qp, QpConfig, WC_SUCCESS, WC_WR_FLUSH_ERR,
    status_name,
};

/// How one end is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Seed of the run
    pub seed: u64,
    /// QPs
    pub qps: usize,
    /// Longest message in bytes
    pub max_size: usize,
    /// Most operations in a batch
    pub batch_ops: usize,
    /// Most scatter/gather entries wished for
    pub sges: usize,
    /// Depth of the send queues
    pub sq_depth: usize,
    /// Completion queues
    pub cqs: usize,
    /// Sleep on completion events instead of polling
    pub events: bool,
    /// Let senders run into empty receive queues
    pub rnr: bool,
    /// Take receives from a shared receive queue
    pub srq: bool,
    /// Leave out atomics, also those that write only, and flushes
    pub no_atomics: bool,
    /// Interface for QP or CQ number n: `None` alternates
    pub interface: Option<Interface>,
    /// How long to start new batches
    pub duration: Option<Duration>,
    /// Batches per QP
    pub batches: Option<u64>,
    /// MTU enumerator
    pub mtu: i32,
    /// Exponent of the time that an acknowledgement may take
    pub ack_timeout: u8,
    /// Longest time without any progress
    pub patience: Duration,
}

/// What a finished run did, seen from one end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Operations this end initiated
    pub ops: u64,
    /// Payload bytes of them
    pub bytes: u64,
    /// Flushes and atomic writes among them
    pub placed: u64,
    /// Batches checked as responder
    pub batches: u64,
    /// Completion events received
    pub events: u64,
    /// Times a receive queue was left short on purpose
    pub starved: u64,
}

/// Bytes of the atomic area: private words of each QP, then the shared word.
fn atomic_area(qps: usize) -> usize {
    8 * (WORDS * qps + 1)
}

/// What of FLUSH and ATOMIC_WRITE, which need the extended interface, a device and its library have.
struct Placement {
    /// Flushes of what kind: an ICRC that not all compute in the same way makes them useless between two kinds
    flush: &'static str,
    atomic_write: bool,
}

impl Placement {
    const NONE: Self = Placement {
        flush: "none",
        atomic_write: false,
    };

    fn of(context: &Arc<Context>, pd: &Arc<Pd>, no_atomics: bool) -> Outcome<Self> {
        let vrnic = context.name().starts_with("vrnic");
        if no_atomics {
            return Ok(Self::NONE);
        }
        let Ok(attr) = context.device_attr_ex() else {
            return Ok(Self::NONE);
        };
        let cq = Cq::new(context, 16).during("ibv_create_cq")?;
        // What a device has its library need not know; ours does.
        let takes = |more_ops| {
            let config = QpConfig {
                interface: Interface::Extended,
                more_ops,
                ..QpConfig::smallest()
            };
            vrnic || Qp::new(pd, &cq, &cq, &config).is_ok()
        };
        let has = |flag, op| attr.device_cap_flags_ex & flag != 0 && takes(op);
        Ok(Placement {
            flush: match (has(DEVICE_FLUSH_GLOBAL, QP_EX_WITH_FLUSH), vrnic) {
                (false, _) => "none",
                (true, true) => "vrnic",
                (true, false) => "other",
            },
            atomic_write: has(DEVICE_ATOMIC_WRITE, QP_EX_WITH_ATOMIC_WRITE),
        })
    }
}

/// The interface through which one end uses QP or CQ number n.
fn interface(wanted: Option<Interface>, n: usize) -> Interface {
    wanted.unwrap_or(if n.is_multiple_of(2) {
        Interface::Legacy
    } else {
        Interface::Extended
    })
}

struct Endpoint {
    options: Options,
    limits: Limits,
    control: Control,
    channel: Option<Arc<Channel>>,
    cqs: Vec<Arc<Cq>>,
    qps: Vec<Qp>,
    initiators: Vec<Initiator>,
    responders: Vec<Responder>,
    pool: Option<Pool>,
    atomics: Mr,
    _source: Mr,
    hesitation: Rng,
    totals: Totals,
    peer_done: bool,
    /// Events seen since the last arming, per CQ
    armed: Vec<bool>,
}

/// Runs one end (`side` 0 or 1) until both ends have finished and checked everything.
pub fn run(
    context: &Arc<Context>,
    gid: GidEntry,
    options: Options,
    side: u64,
    control: Control,
) -> Outcome<Totals> {
    let mut endpoint = Endpoint::connect(context, gid, options, side, control)?;
    if let Err(failure) = endpoint.traffic() {
        return Err(endpoint.explain(failure));
    }
    endpoint.finish()
}

impl Endpoint {
    fn connect(
        context: &Arc<Context>,
        gid: GidEntry,
        options: Options,
        side: u64,
        mut control: Control,
    ) -> Outcome<Self> {
        let device = context.device_attr().during("ibv_query_device")?;
        let pd = Pd::new(context).during("ibv_alloc_pd")?;
        let rd_atomic = device
            .max_qp_rd_atom
            .min(device.max_qp_init_rd_atom)
            .clamp(1, 16) as u8;
        let placement = Placement::of(context, &pd, options.no_atomics)?;
        let mine = Words::default()
            .with("seed", options.seed)
            .with("qps", options.qps)
            .with("max_size", options.max_size)
            .with("batch_ops", options.batch_ops)
            .with("sq_depth", options.sq_depth)
            .with(
                "sge",
                options
                    .sges
                    .min(device.max_sge as usize)
                    .min(device.max_sge_rd.max(1) as usize),
            )
            .with(
                "atomics",
                u64::from(device.atomic_cap != 0 && !options.no_atomics),
            )
            .with("flush", placement.flush)
            .with("atomic_write", u64::from(placement.atomic_write))
            .with(
                "interface",
                match options.interface {
                    None => "mixed",
                    Some(Interface::Legacy) => "legacy",
                    Some(Interface::Extended) => "extended",
                },
            )
            .with("srq", u64::from(options.srq))
            .with("mtu", options.mtu)
            .with("rd_atomic", rd_atomic)
            .with("gid", gid.gid)
            .with("lid", gid.lid);
        let theirs = control.swap_words(&mine).during("exchanging limits")?;
        // Side 0 decides what is to be done; what a device can do is the smaller of the two.
        let leader = if side == 0 { &mine } else { &theirs };
        let decided = |key: &str| leader.number(key).map(|n| n as usize);
        let smaller = |key: &str| {
            Ok::<usize, std::io::Error>(mine.number(key)?.min(theirs.number(key)?) as usize)
        };
        let mtu = smaller("mtu")? as i32;
        let mut limits = Limits {
            seed: leader.number("seed")?,
            max_size: decided("max_size")?,
            batch_ops: decided("batch_ops")?,
            send_sge: smaller("sge")?,
            recv_sge: smaller("sge")?,
            inline: 0,
            sq_depth: decided("sq_depth")?,
            mtu: crate::verbs::mtu_bytes(mtu),
            atomics: smaller("atomics")? == 1,
            flush: false,
            atomic_write: false,
        };
        let flush = placement.flush != "none" && theirs.text("flush")? == placement.flush;
        let atomic_write = smaller("atomic_write")? == 1;
        let more_ops = if flush { QP_EX_WITH_FLUSH } else { 0 }
            | if atomic_write {
                QP_EX_WITH_ATOMIC_WRITE
            } else {
                0
            };
        // What the QPs number n can do that are of an end with that interface.
        let limits_of = |limits: Limits, wanted, n: usize| {
            let extended = interface(wanted, n / 2) == Interface::Extended;
            Limits {
                flush: flush && extended,
                atomic_write: atomic_write && extended,
                ..limits
            }
        };
        let their_interface = match theirs.text("interface")? {
            "legacy" => Some(Interface::Legacy),
            "extended" => Some(Interface::Extended),
            _ => None,
        };
        let count = decided("qps")?;
        let peer_gid = theirs
            .text("gid")?
            .parse()
            .map_err(|_| Failure("peer's GID is malformed".into()))?;
        let peer_lid = theirs.number("lid")? as u16;

        let channel = options
            .events
            .then(|| Channel::new(context))
            .transpose()
            .during("ibv_create_comp_channel")?;
        // Fewer receives than the senders could use, so that they meet an empty queue too.
        let shared = (decided("srq")? == 1).then(|| (2 * count).clamp(8, 64));
        let pool = shared
            .map(|receives| Pool::new(&pd, limits, side, receives))
            .transpose()?;
        let per_qp = limits.sq_depth + (SLOTS * limits.receives()).max(shared.unwrap_or(0));
        let cq_count = options.cqs.clamp(1, 2 * count);
        // Queue n serves sends of QPs = n and receives of QPs = 3n+1, modulo the number of queues.
        let cqe = (count.div_ceil(cq_count) * per_qp + per_qp) as u32;
        let cqs = (0..cq_count)
            .map(|n| {
                let vector = n as u32 % context.completion_vectors().max(1);
                let interface = interface(options.interface, n);
                Cq::with(context, cqe, n, channel.as_ref(), vector, interface)
            })
            .collect::<Result<Vec<_>, _>>()
            .during(format!("creating {cq_count} CQs of {cqe} entries"))?;
        let mut qps = Vec::new();
        for n in 0..count {
            let config = QpConfig {
                cap: ibv_qp_cap {
                    max_send_wr: limits.sq_depth as u32,
                    max_recv_wr: (SLOTS * limits.receives()) as u32,
                    max_send_sge: limits.send_sge as u32,
                    max_recv_sge: limits.recv_sge as u32,
                    max_inline_data: 64,
                },
                interface: interface(options.interface, n / 2),
                more_ops,
                ..Default::default()
            };
            let (send_cq, recv_cq) = (&cqs[n % cq_count], &cqs[(n + 1) % cq_count]);
            let qp = match &pool {
                Some(pool) => Qp::with_srq(send_cq, recv_cq, &config, pool.srq()),
                None => Qp::new(&pd, send_cq, recv_cq, &config),
            };
            qps.push(qp.during(format!("creating QP {n}"))?);
        }
        let inline = qps
            .iter()
            .map(|q| q.cap.max_inline_data as usize)
            .min()
            .unwrap_or(0)
            .min(256);

        let rights = ACCESS_LOCAL_WRITE | ACCESS_REMOTE_ATOMIC;
        let atomics =
            Mr::new(&pd, atomic_area(count), rights).during("registering atomic words")?;
        let source = Mr::new(
            &pd,
            limits.source(),
            ACCESS_LOCAL_WRITE | ACCESS_REMOTE_READ,
        )
        .during("registering the source")?;
        source
            .memory()
            .fill(0, limits.source(), source_key(limits.seed, side), 0);

        let words = Words::default()
            .with("inline", inline)
            .with("source", source.addr(0))
            .with("source_key", source.rkey())
            .with("atomics", atomics.addr(0))
            .with("atomics_key", atomics.rkey());
        let their_words = control.swap_words(&words).during("exchanging regions")?;
        limits.inline = inline.min(their_words.number("inline")? as usize);

        let mut psn = Rng::new(&[limits.seed, 0x95, side]);
        let (mut responders, mut initiators) = (Vec::new(), Vec::new());
        for (n, qp) in qps.iter().enumerate() {
            let (ours, others) = (
                limits_of(limits, options.interface, n),
                limits_of(limits, their_interface, n),
            );
            let mut responder = Responder::new(&pd, others, 1 - side, n)?;
            let sq_psn = psn.below(1 << 24) as u32;
            let (arena, key) = responder.arena();
            let mine = Words::default()
                .with("qpn", qp.number())
                .with("psn", sq_psn)
                .with("arena", arena)
                .with("key", key);
            let theirs = control.swap_words(&mine).during("exchanging QP numbers")?;
            let path = Path {
                from: gid.index,
                to: peer_gid,
                lid: peer_lid,
                qpn: theirs.number("qpn")? as u32,
                sq_psn,
                rq_psn: theirs.number("psn")? as u32,
                mtu,
                timeout: options.ack_timeout,
                retries: 7,
                rnr_retries: 7,
                rnr_timer: 2,
                rd_atomic,
                access: ACCESS_ALL | if flush { ACCESS_FLUSH_GLOBAL } else { 0 },
            };
            qp.to_init(path.access).during(format!("QP {n} to INIT"))?;
            if pool.is_none() {
                responder.post(qp, false)?;
            }
            qp.to_rtr(&path).during(format!("QP {n} to RTR"))?;
            qp.to_rts(&path).during(format!("QP {n} to RTS"))?;
            let (words, words_key) = (
                their_words.number("atomics")?,
                their_words.number("atomics_key")? as u32,
            );
            let remote = Remote {
                arena: (theirs.number("arena")?, theirs.number("key")? as u32),
                source: (
                    their_words.number("source")?,
                    their_words.number("source_key")? as u32,
                ),
                words: (words + (8 * WORDS * n) as u64, words_key),
                shared: (words + (8 * WORDS * count) as u64, words_key),
            };
            initiators.push(Initiator::new(&pd, ours, side, n, remote)?);
            responders.push(responder);
        }
        control.swap(b"ready").during("getting ready")?;
        Ok(Endpoint {
            hesitation: Rng::new(&[limits.seed, 0x4e52, side]),
            armed: vec![false; cqs.len()],
            options,
            limits,
            control,
            channel,
            cqs,
            qps,
            initiators,
            responders,
            pool,
            atomics,
            _source: source,
            totals: Totals::default(),
            peer_done: false,
        })
    }

    fn traffic(&mut self) -> Outcome<()> {
        let begin = Instant::now();
        let mut last_progress = begin;
        let mut said_done = false;
        while !said_done || !self.peer_done {
            let more = self.options.duration.is_none_or(|d| begin.elapsed() < d);
            // Arming all the time makes every completion race with it.
            if let Some(channel) = self.channel.clone() {
                self.totals.events += self.take_events(&channel)?;
                self.arm_all()?;
            }
            let mut progress = self.poll_all()?;
            progress |= self.read_control()?;
            for (n, qp) in self.qps.iter().enumerate() {
                let wanted = more
                    && self
                        .options
                        .batches
                        .is_none_or(|b| self.initiators[n].started() < b);
                progress |= self.initiators[n].post(qp, wanted)?;
                if self.pool.is_none() {
                    let hesitate = self.options.rnr && self.hesitation.one_in(4);
                    progress |= self.responders[n].post(qp, hesitate)?;
                }
            }
            if let Some(pool) = &mut self.pool {
                progress |= pool.post(self.options.rnr && self.hesitation.one_in(4))?;
            }
            let over = !more
                || self
                    .options
                    .batches
                    .is_some_and(|b| self.initiators.iter().all(|i| i.started() >= b));
            if over && !said_done && self.initiators.iter().all(Initiator::idle) {
                self.control.send(&[]).during("saying that all is done")?;
                said_done = true;
                progress = true;
            }
            if progress {
                last_progress = Instant::now();
            } else if last_progress.elapsed() > self.options.patience {
                let state: Vec<String> = self
                    .initiators
                    .iter()
                    .filter(|i| !i.idle())
                    .map(Initiator::state)
                    .collect();
                return Err(Failure(format!(
                    "no progress for {:?}: {}",
                    self.options.patience,
                    state.join("; ")
                )));
            } else if !self.options.rnr {
                self.wait()?;
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Adds to a failure what else the queues say: a flushed request or a lost peer is a consequence, the cause stands
    /// in some other completion.
    fn explain(&mut self, failure: Failure) -> Failure {
        let mut text = failure.0;
        let mut wcs = [ibv_wc::default(); 32];
        let end = Instant::now() + Duration::from_millis(500);
        while Instant::now() < end {
            for cq in &self.cqs {
                let got = cq.poll(&mut wcs).unwrap_or(0);
                for wc in wcs[..got]
                    .iter()
                    .filter(|w| ![WC_SUCCESS, WC_WR_FLUSH_ERR].contains(&w.status))
                {
                    let kind = self
                        .initiators
                        .get(qp_of(wc.wr_id & !RECEIVE))
                        .and_then(|i| i.describe(wc.wr_id));
                    let _ = write!(
                        text,
                        "; also wr_id {:#x} {kind:?} failed with {} vendor {:#x}",
                        wc.wr_id,
                        status_name(wc.status),
                        wc.vendor_err
                    );
                }
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Failure(text)
    }

    fn poll_all(&mut self) -> Outcome<bool> {
        let mut any = false;
        let mut wcs = [ibv_wc::default(); 32];
        for n in 0..self.cqs.len() {
            let most = self.hesitation.range(1, wcs.len() as u64) as usize;
            let got = self.cqs[n].poll(&mut wcs[..most]).during("polling a CQ")?;
            for wc in &wcs[..got] {
                any = true;
                self.handle(wc)?;
            }
        }
        Ok(any)
    }

    /// Hands a completion to whom it concerns.
    fn handle(&mut self, wc: &ibv_wc) -> Outcome<()> {
        if wc.wr_id & RECEIVE == 0 {
            let index = qp_of(wc.wr_id);
            ensure!(
                index < self.qps.len(),
                "completion of an unknown request {:#x}: {wc:?}",
                wc.wr_id
            );
            return self.initiators[index].complete(wc, &self.qps[index]);
        }
        let index = match &self.pool {
            Some(_) => self.qps.iter().position(|qp| qp.number() == wc.qp_num),
            None => Some(qp_of(wc.wr_id & !RECEIVE)).filter(|&index| index < self.qps.len()),
        };
        let index = index.ok_or_else(|| {
            Failure(format!(
                "completion of an unknown receive {:#x}: {wc:?}",
                wc.wr_id
            ))
        })?;
        let pool = self.pool.as_mut();
        if self.responders[index].complete(wc, &self.qps[index], pool)? {
            // In the RNR mode the sender may go on before there are receives for it.
            if !self.options.rnr && self.pool.is_none() {
                self.responders[index].post(&self.qps[index], false)?;
            }
            let mut ack = (index as u32).to_le_bytes().to_vec();
            ack.extend_from_slice(&self.responders[index].checked.to_le_bytes());
            self.control.send(&ack).during("acknowledging a batch")?;
        }
        Ok(())
    }

    fn read_control(&mut self) -> Outcome<bool> {
        let mut any = false;
        // A peer that is done still acknowledges what we have under way.
        while !self.peer_done || !self.initiators.iter().all(Initiator::idle) {
            let Some(frame) = self.control.try_receive().during("reading from the peer")? else {
                break;
            };
            any = true;
            if frame.is_empty() {
                self.peer_done = true;
                continue;
            }
            let (Some(index), Some(count)) = (frame.first_chunk::<4>(), frame.last_chunk::<8>())
            else {
                return Err(Failure("malformed acknowledgement".into()));
            };
            let index = u32::from_le_bytes(*index) as usize;
            ensure!(
                frame.len() == 12 && index < self.initiators.len(),
                "malformed acknowledgement"
            );
            self.initiators[index].acknowledge(u64::from_le_bytes(*count))?;
        }
        Ok(any)
    }

    /// Nothing to do: sleep until there is, on events or for a moment.
    fn wait(&mut self) -> Outcome<()> {
        let Some(channel) = self.channel.clone() else {
            wait_readable(&[self.control.fd()], Duration::ZERO)?;
            std::thread::yield_now();
            return Ok(());
        };
        self.arm_all()?;
        // What completed before the arming has no event.
        if self.poll_all()? {
            return Ok(());
        }
        let mut fds = vec![channel.fd()];
        if !self.peer_done || !self.initiators.iter().all(Initiator::idle) {
            fds.push(self.control.fd());
        }
        let woken = wait_readable(&fds, Duration::from_secs(5))?;
        let mut events = self.take_events(&channel)?;
        if !woken && events == 0 {
            // A completion that is there although its CQ was armed and stayed silent is a lost event, unless the
            // event is just on its way.
            let mut wc = [ibv_wc::default()];
            for n in 0..self.cqs.len() {
                if self.armed[n] && self.peek(n, &mut wc)? {
                    std::thread::sleep(Duration::from_secs(2));
                    events += self.take_events(&channel)?;
                    ensure!(
                        !self.armed[n],
                        "CQ {n} was armed and has a completion, but there was no event"
                    );
                }
            }
        }
        self.totals.events += events;
        Ok(())
    }

    fn arm_all(&mut self) -> Outcome<()> {
        for (n, cq) in self.cqs.iter().enumerate() {
            if !self.armed[n] {
                cq.arm(false).during("arming a CQ")?;
                self.armed[n] = true;
            }
        }
        Ok(())
    }

    /// Whether CQ `n` has a completion; if so it is handled.
    fn peek(&mut self, n: usize, wc: &mut [ibv_wc; 1]) -> Outcome<bool> {
        if self.cqs[n].poll(wc).during("polling a CQ")? == 0 {
            return Ok(false);
        }
        let [wc] = *wc;
        self.handle(&wc)?;
        Ok(true)
    }

    fn take_events(&mut self, channel: &Channel) -> Outcome<u64> {
        let mut events = 0;
        while let Some(id) = channel.event(Duration::ZERO) {
            ensure!(id < self.cqs.len(), "an event for an unknown CQ {id}");
            ensure!(self.armed[id], "an event for CQ {id}, which was not armed");
            self.armed[id] = false;
            events += 1;
        }
        Ok(events)
    }

    fn finish(mut self) -> Outcome<Totals> {
        self.control.swap(b"finished").during("finishing")?;
        let mut shared = 0_u64;
        let count = self.responders.len();
        for (n, responder) in self.responders.iter().enumerate() {
            shared = shared.wrapping_add(responder.shared);
            for (w, want) in responder.words.iter().enumerate() {
                let got = self.atomics.memory().load(8 * (WORDS * n + w));
                ensure!(
                    !self.limits.atomics || got == *want,
                    "QP {n}: atomic word {w} is {got:#x}, not {want:#x}"
                );
            }
            self.totals.batches += responder.checked;
            self.totals.starved += responder.starved;
        }
        let got = self.atomics.memory().load(8 * WORDS * count);
        ensure!(
            got == shared,
            "the shared atomic word is {got:#x}, not {shared:#x}"
        );
        self.totals.ops = self.initiators.iter().map(|i| i.ops).sum();
        self.totals.placed = self.initiators.iter().map(|i| i.placed).sum();
        self.totals.bytes = self.initiators.iter().map(Initiator::bytes).sum();
        let mut wc = [ibv_wc::default()];
        for (n, cq) in self.cqs.iter().enumerate() {
            ensure!(
                cq.poll(&mut wc)? == 0,
                "CQ {n} has a completion too many: {:?}",
                wc[0]
            );
        }
        // Nobody goes away while the other still looks at its memory.
        self.control.swap(b"bye").during("parting")?;
        Ok(self.totals)
    }
}
