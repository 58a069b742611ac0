// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A device with its guest, and the queues that the guest's programs share.

use crate::{
    network::mac_of,
    plan::{CQS, DevicePlan, Loss, MOST_FAULTS, SHARED_SLOT, XRC_CQ},
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

/// Number of receives in the shared receive queue.
pub const SHARED: usize = 64;
/// Length of each of its buffers in bytes.
const SHARED_BUFFER: usize = SHARED_SLOT + GRH_LENGTH;
/// Bit that marks the `wr_id`s of its receives.
pub const SHARED_NAME: u64 = 1 << 63;
/// Bit that marks the `wr_id`s of receives of XRC queue pairs.
const XRC_NAME: u64 = 1 << 62;
/// How many times a program tries a command that faults refuse: more often than all faults of a plan refuse one.
const TRIES: usize = 2 * MOST_FAULTS + 1;

/// A completion queue, and how the program learns of completions.
#[derive(Debug)]
pub struct SharedCq {
    /// The queue.
    pub cq: Cq,
    /// Whether it is armed whenever it is empty, rather than polled.
    pub events: bool,
}

/// A shared receive queue of a device.
#[derive(Debug)]
struct Shared {
    srq: Srq,
    mr: Mr,
    next: u64,
    /// Buffer of each posted receive.
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
    /// Index of the device.
    pub index: usize,
    /// Properties of the device.
    pub plan: DevicePlan,
    /// The device.
    pub rnic: Rnic,
    /// The guest.
    pub guest: Guest,
    /// How many times it has lost all its objects.
    pub incarnation: u32,
    /// How it lost them, until it has started again.
    pub loss: Option<Loss>,
    /// Completion queues.
    pub cqs: Vec<SharedCq>,
    /// Shared receive queues: one for all queue pairs but XRC, and one for XRC.
    shared: Vec<Shared>,
    xrcdn: u32,
    /// When its next turn is, if one is due.
    pub turn: Option<Instant>,
    /// How long it waits while it is awake and has nothing to do.
    pub backoff: Duration,
    /// Its finished recordings.
    pub recordings: Vec<Vec<u8>>,
    segmentation: Segmentation,
    cq_entries: [u32; CQS],
}

impl Device {
    /// Creates a device whose completion queues have that many entries, and a guest with `pages` pages.
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

    /// Creates what the driver and the programs create at startup.
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

    /// Makes the device lose all its objects; nothing refers to them from now on.
    pub fn lose(&mut self, loss: Loss) {
        self.loss = Some(loss);
        self.incarnation += 1;
        for shared in &mut self.cqs {
            shared.cq.drain();
        }
    }

    /// Returns whether the GID is in the table. Without it, no queue pair can be connected.
    pub fn has_gid(&self) -> bool {
        self.rnic.has_gid(&gid_of(self.index))
    }

    /// Returns whether the device still works.
    pub fn runs(&self) -> bool {
        !matches!(
            self.loss,
            Some(Loss::Failed(_) | Loss::Panicked(_) | Loss::Removed)
        )
    }

    /// Ends the recording, if there is one.
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

    /// If the device is being recorded, starts a new recording from its current state.
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

    /// Creates an object, and tries again if a fault refuses that.
    ///
    /// # Panics
    ///
    /// The device refuses without a fault.
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

    /// Executes a command like [`insist`](Self::insist).
    pub fn command<C: Command + Copy>(&mut self, request: C) -> C::Reply {
        self.insist(|guest, rnic| guest.command(rnic, request))
    }

    /// Returns how many commands faults have refused.
    fn refusals(&self) -> u64 {
        let faults = self.rnic.faults().list();
        let of_commands = faults
            .iter()
            .filter(|fault| fault.spec.kind.seam() == Seam::Command);
        of_commands.map(|fault| fault.fired).sum()
    }

    /// Returns the number of the shared receive queue for XRC.
    pub fn xrc_srqn(&self) -> u32 {
        self.shared[1].srq.srqn
    }

    /// Creates a queue pair that uses two of the completion queues.
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

    /// Returns the state of a queue pair.
    pub fn state(&mut self, qpn: u32) -> QpState {
        let attributes = self.command(QueryQp {
            qpn: qpn.into(),
            ..Default::default()
        });
        QpState::try_from(attributes.state).expect("a state")
    }

    /// Returns the message in a receive of a shared receive queue, and posts its buffer again.
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

    /// Polls all completions of a queue and arms it again.
    pub fn drain(&mut self, cq: usize) -> Vec<Completion> {
        let SharedCq { cq, events } = &mut self.cqs[cq];
        let mut done = cq.drain();
        if *events {
            cq.arm(false);
            // Completions that came before it was armed raise no event.
            done.extend(cq.drain());
        }
        done
    }

    /// Destroys all objects.
    ///
    /// # Panics
    ///
    /// An object is left in the device.
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
            "device {} still has objects",
            self.index
        );
    }
}
