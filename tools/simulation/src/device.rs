// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device with its guest, and the queues that programs of the guest share.

use crate::{
    network::mac_of,
    plan::{CQS, DevicePlan, Loss, SHARED_SLOT, XRC_CQ},
    random::Random,
};
use std::{collections::HashMap, time::Duration};
use vrnic_engine::{
    Cause, Faults, Limits, Rnic, RnicConfig, Segmentation, Snapshot,
    fault::Seam,
    testing::{Completion, Cq, Guest, GuestView, Mr, Qp, QpOptions, Srq, gid_of},
    time::Instant,
};
use vrnic_wire::{
    command::{
        ClearGid, Command, ContextKind, DeregisterMr, DestroyContext, DestroyCq, DestroyPd,
        DestroySrq, DestroyXrcd, ModifyQp, QueryQp, SetGid, Status,
    },
    memory::access,
    port::{GidEntry, GidType, NO_VLAN},
    qp::{QpAttributes, QpState, QpType, attribute},
    work::GRH_LENGTH,
};

/// Receives of the shared receive queue.
const SHARED: usize = 64;
/// Bytes of one of its buffers.
const SHARED_BUFFER: usize = SHARED_SLOT + GRH_LENGTH;
/// Bit of names of its receives.
pub const SHARED_NAME: u64 = 1 << 63;
/// Bit of names of receives of extended connections.
const XRC_NAME: u64 = 1 << 62;
/// How often a program tries a command that a fault refuses.
const TRIES: usize = 5;

/// A completion queue, and how the program gets to know of completions.
#[derive(Debug)]
pub struct SharedCq {
    /// The queue.
    pub cq: Cq,
    /// Whether it is armed whenever it is empty.
    pub events: bool,
}

/// A shared receive queue of a device.
#[derive(Debug)]
struct Shared {
    srq: Srq,
    mr: Mr,
    next: u64,
    /// Buffer of each receive that is posted.
    buffers: HashMap<u64, usize>,
}

impl Shared {
    fn post(&mut self, buffer: usize) {
        let sge = self.mr.sge(buffer * SHARED_BUFFER, SHARED_BUFFER);
        self.buffers.insert(self.next, buffer);
        assert!(self.srq.post(self.next, &[sge]), "the SRQ is full");
        self.next += 1;
    }
}

/// A device with its guest.
#[derive(Debug)]
pub struct Device {
    /// Which.
    pub index: usize,
    /// What it is like.
    pub plan: DevicePlan,
    /// The device.
    pub rnic: Rnic,
    /// The guest.
    pub guest: Guest,
    /// How often it lost what it had.
    pub incarnation: u32,
    /// How it lost that, until it has begun anew.
    pub loss: Option<Loss>,
    /// Its completion queues.
    pub cqs: Vec<SharedCq>,
    /// For all, and for extended connections.
    shared: Vec<Shared>,
    xrcdn: u32,
    /// When its next turn is, if it has one.
    pub turn: Option<Instant>,
    /// How long it waits if it is awake and has nothing to do.
    pub backoff: Duration,
    /// Recordings of it that have ended.
    pub recordings: Vec<Vec<u8>>,
    segmentation: Segmentation,
    cq_entries: [u32; CQS],
}

impl Device {
    /// A device whose completion queues have that many entries, and a guest with `pages` pages.
    pub fn new(
        index: usize,
        plan: &DevicePlan,
        (view, pages): (GuestView, usize),
        segmentation: Segmentation,
        cq_entries: [u32; CQS],
        recorded: bool,
        random: &mut Random,
    ) -> Self {
        let guest = Guest::new(view, pages, random.number());
        let rnic = Self::rnic(index, plan, segmentation, recorded, random);
        let mut device = Self {
            index,
            plan: plan.clone(),
            rnic,
            guest,
            incarnation: 0,
            cqs: Vec::new(),
            loss: None,
            shared: Vec::new(),
            xrcdn: 0,
            turn: None,
            backoff: Duration::ZERO,
            recordings: Vec::new(),
            segmentation,
            cq_entries,
        };
        device.start();
        device
    }

    fn rnic(
        index: usize,
        plan: &DevicePlan,
        segmentation: Segmentation,
        recorded: bool,
        random: &mut Random,
    ) -> Rnic {
        let config = RnicConfig {
            mac: mac_of(index),
            segmentation,
            recovery: plan.recovery,
            seed: random.seed(),
            limits: Limits::default(),
            ..RnicConfig::default()
        };
        if recorded {
            Rnic::recorded(config, &index.to_string(), u64::MAX)
        } else {
            Rnic::new(config)
        }
    }

    /// What the driver and the programs create at first.
    fn start(&mut self) {
        let (guest, rnic) = (&mut self.guest, &mut self.rnic);
        guest.start(rnic, ContextKind::Kernel, 1024);
        let request = SetGid {
            index: 0.into(),
            reserved: 0.into(),
            entry: GidEntry {
                gid: gid_of(self.index),
                mac: mac_of(self.index),
                vlan: NO_VLAN.into(),
                gid_type: GidType::RoceV2.raw(),
                reserved: [0; 7],
            },
        };
        guest.command(rnic, request).expect("a GID");
        self.cqs = (0..CQS)
            .map(|index| SharedCq {
                cq: guest.cq(rnic, self.cq_entries[index], index as u16),
                events: self.plan.events[index],
            })
            .collect();
        for shared in &mut self.cqs {
            if shared.events {
                shared.cq.arm(false);
            }
        }
        self.xrcdn = guest.xrcd(rnic);
        let entries = SHARED as u32;
        let plain = guest.try_srq(rnic, entries, 1, 0);
        let extended = guest.try_xrc_srq(rnic, (entries, 1), self.xrcdn, self.cqs[XRC_CQ].cq.cqn);
        self.shared = [(plain, SHARED_NAME), (extended, SHARED_NAME | XRC_NAME)]
            .into_iter()
            .map(|(srq, next)| Shared {
                srq: srq.expect("an SRQ"),
                mr: guest.mr(rnic, SHARED * SHARED_BUFFER, access::LOCAL_WRITE),
                next,
                buffers: HashMap::new(),
            })
            .collect();
        for shared in &mut self.shared {
            for buffer in 0..SHARED {
                shared.post(buffer);
            }
        }
    }

    /// The device loses what it has. Nobody has anything of it from here on.
    pub fn lose(&mut self, loss: Loss) {
        self.loss = Some(loss);
        self.incarnation += 1;
        for shared in &mut self.cqs {
            shared.cq.drain();
        }
    }

    /// Whether its GID is there. While it is not, no queue pair can be connected.
    pub fn has_gid(&self) -> bool {
        self.rnic.has_gid(&gid_of(self.index))
    }

    /// Whether it still does something.
    pub fn runs(&self) -> bool {
        !matches!(
            self.loss,
            Some(Loss::Failed(_) | Loss::Panicked(_) | Loss::Removed)
        )
    }

    /// Ends its recording, if it has one.
    pub fn end_recording(&mut self, why: &str) -> bool {
        let recorder = self.rnic.take_recorder();
        let recording = recorder.map(|mut recorder| {
            recorder.end(why);
            recorder.take()
        });
        let before = self.recordings.len();
        self.recordings.extend(recording);
        self.recordings.len() > before
    }

    /// Records it anew if it is recorded, from its state on.
    pub fn cut_recording(&mut self) {
        if self.end_recording("cut") {
            self.rnic.record(&self.index.to_string(), u64::MAX);
        }
    }

    /// Resets the device. Its faults stay armed.
    pub fn reset(&mut self, random: &mut Random) {
        let recorded = self.end_recording("reset");
        let mut faults: Faults = self.rnic.take_faults();
        faults.rest();
        self.rnic = Self::rnic(self.index, &self.plan, self.segmentation, recorded, random);
        self.incarnation += 1;
        self.loss = None;
        self.start();
        self.rnic.set_faults(faults);
    }

    /// Creates something, and tries again if a fault refuses.
    ///
    /// # Panics
    ///
    /// The device refuses, and no fault did.
    pub fn insist<T>(
        &mut self,
        mut work: impl FnMut(&mut Guest, &mut Rnic) -> Result<T, (Status, Cause)>,
    ) -> T {
        for _ in 0..TRIES {
            let before = self.refusals();
            match work(&mut self.guest, &mut self.rnic) {
                Ok(done) => return done,
                Err(why) => assert!(self.refusals() > before, "refused without a fault: {why:?}"),
            }
        }
        panic!("refused {TRIES} times");
    }

    /// As [`insist`](Self::insist), a command.
    pub fn command<C: Command + Copy>(&mut self, request: C) -> C::Reply {
        self.insist(|guest, rnic| guest.command(rnic, request))
    }

    /// How often faults refused commands.
    fn refusals(&self) -> u64 {
        let faults = self.rnic.faults().list();
        let of_commands = faults
            .iter()
            .filter(|fault| fault.spec.kind.seam() == Seam::Command);
        of_commands.map(|fault| fault.fired).sum()
    }

    /// Number of the shared receive queue of extended connections.
    pub fn xrc_srqn(&self) -> u32 {
        self.shared[1].srq.srqn
    }

    /// Creates a queue pair on two of the completion queues.
    pub fn qp(&mut self, options: QpOptions, shared: bool, cqs: [usize; 2]) -> Qp {
        let [send, receive] = cqs.map(|index| self.cqs[index].cq.cqn);
        let is_target = options.qp_type == QpType::XrcTarget;
        let options = QpOptions {
            srqn: (shared && !is_target).then(|| self.shared[0].srq.srqn),
            xrcdn: if is_target { self.xrcdn } else { 0 },
            ..options
        };
        self.insist(|guest, rnic| guest.try_qp(rnic, &options, send, receive))
    }

    /// Modifies a queue pair.
    pub fn modify(&mut self, qpn: u32, state: QpState, mask: u32, attributes: QpAttributes) {
        self.command(ModifyQp {
            qpn: qpn.into(),
            reserved: 0.into(),
            attributes: QpAttributes {
                state: state.raw(),
                mask: (mask | attribute::STATE).into(),
                ..attributes
            },
        });
    }

    /// State of a queue pair.
    pub fn state(&mut self, qpn: u32) -> QpState {
        let attributes = self.command(QueryQp {
            qpn: qpn.into(),
            ..Default::default()
        });
        QpState::try_from(attributes.state).expect("a state")
    }

    /// What a receive of a shared receive queue received; its buffer is posted again.
    ///
    /// # Panics
    ///
    /// No such receive is posted.
    pub fn take_shared(&mut self, done: &Completion) -> Vec<u8> {
        let shared = &mut self.shared[usize::from(done.wr_id & XRC_NAME != 0)];
        let buffer = shared.buffers.remove(&done.wr_id);
        let buffer = buffer.unwrap_or_else(|| panic!("no such receive is posted: {done:?}"));
        let bytes = shared.mr.arena.get(buffer * SHARED_BUFFER, SHARED_BUFFER);
        shared
            .mr
            .arena
            .put(buffer * SHARED_BUFFER, &[0; SHARED_BUFFER]);
        shared.post(buffer);
        bytes
    }

    /// Takes all completions of a queue, and arms it anew.
    pub fn drain(&mut self, cq: usize) -> Vec<Completion> {
        let SharedCq { cq, events } = &mut self.cqs[cq];
        let mut done = cq.drain();
        if *events {
            cq.arm(false);
            // Those that came before it was armed raise no event.
            done.extend(cq.drain());
        }
        done
    }

    /// Destroys everything.
    ///
    /// # Panics
    ///
    /// Something is left.
    pub fn destroy(&mut self) {
        let pd = self.guest.pd;
        let context = self.guest.context;
        for shared in std::mem::take(&mut self.shared) {
            self.command(DestroySrq {
                srqn: shared.srq.srqn.into(),
                ..Default::default()
            });
            self.command(DeregisterMr {
                pd: pd.into(),
                key: shared.mr.key.into(),
            });
        }
        self.command(DestroyXrcd {
            xrcdn: self.xrcdn.into(),
            ..Default::default()
        });
        for cq in std::mem::take(&mut self.cqs) {
            self.command(DestroyCq {
                cqn: cq.cq.cqn.into(),
                ..Default::default()
            });
        }
        self.command(DestroyPd {
            pd: pd.into(),
            ..Default::default()
        });
        self.command(DestroyContext {
            context: context.into(),
            ..Default::default()
        });
        self.command(ClearGid {
            index: 0.into(),
            ..Default::default()
        });
        let (left, nothing) = (self.rnic.snapshot(), Snapshot::default());
        assert_eq!(
            format!("{left:?}"),
            format!("{nothing:?}"),
            "objects of device {} are left",
            self.index
        );
    }
}
