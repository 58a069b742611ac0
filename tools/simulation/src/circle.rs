// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A multicast group: its members send datagrams to the group, and each member receives every datagram, including its
//! own.

use crate::{device::Device, fault::Known, plan::CirclePlan};
use std::collections::HashMap;
use vrnic_engine::{
    testing::{Completion, Mr, Qp, QpOptions, Send, gid_of},
    time::Instant,
};
use vrnic_wire::{
    command::{AttachMulticast, DeregisterMr, DestroyQp},
    completion::{Opcode, Status, flags},
    memory::access,
    qp::{MULTICAST_QPN, QpAttributes, QpState, QpType, attribute},
    work::{AddressVector, GRH_LENGTH, SendOpcode},
};

/// Q_Key of all members.
const QKEY: u32 = 0x2222_2222;
/// Bit that marks the `wr_id`s of receives.
const RECEIVE: u64 = 1 << 32;
/// Length of a receive in bytes.
const BUFFER: usize = CirclePlan::SLOT + GRH_LENGTH;

/// A queue pair in the group.
#[derive(Debug)]
struct Member {
    device: usize,
    incarnation: u32,
    qp: Qp,
    mr: Mr,
    /// Numbers of the messages that it posted, and how many of them have completed.
    sent: Vec<usize>,
    complete: usize,
    /// How many times each message arrived.
    came: HashMap<usize, usize>,
}

/// A multicast group.
#[derive(Debug)]
pub struct Circle {
    plan: CirclePlan,
    members: Vec<Member>,
    /// When the traffic began.
    pub began: Instant,
    /// Harm between members before the start.
    harm: Vec<u64>,
}

/// Returns the GID of a group.
fn group(number: usize) -> [u8; 16] {
    let mut gid = gid_of(0);
    gid[12..].copy_from_slice(&[239, 1, 2, number as u8]);
    gid
}

impl Circle {
    /// Returns the number of receives of a member: every message may arrive twice.
    pub fn receives(plan: &CirclePlan) -> usize {
        2 * plan.sends.len()
    }

    /// Returns the harm between all pairs of members.
    fn harms(plan: &CirclePlan, harm: impl Fn([usize; 2]) -> u64) -> Vec<u64> {
        let pairs = plan.members.iter().flat_map(|from| {
            let to = plan.members.iter();
            to.map(move |to| [*from, *to])
        });
        pairs.map(harm).collect()
    }

    /// Creates and attaches all members.
    pub fn start(
        plan: &CirclePlan,
        devices: &mut [Device],
        now: Instant,
        harm: impl Fn([usize; 2]) -> u64,
    ) -> Self {
        use attribute::{PKEY_INDEX, PORT, QKEY as QKEY_BIT, SQ_PSN};
        let receives = Self::receives(plan);
        let members = plan.members.iter().map(|index| {
            let device = &mut devices[*index];
            let options = QpOptions {
                qp_type: QpType::UnreliableDatagram,
                entries: (receives as u32).next_power_of_two(),
                ..QpOptions::default()
            };
            let mut qp = device.qp(options, false, CirclePlan::CQS);
            let length = (receives + plan.sends.len()) * BUFFER;
            let arena = device.guest.arena(length);
            let mr = device.insist(|guest, rnic| {
                guest.try_register(rnic, arena.clone(), length, access::LOCAL_WRITE)
            });
            let attributes = QpAttributes {
                port: 1,
                qkey: QKEY.into(),
                ..QpAttributes::default()
            };
            for (state, mask) in [
                (QpState::Init, PKEY_INDEX | PORT | QKEY_BIT),
                (QpState::ReadyToReceive, 0),
                (QpState::ReadyToSend, SQ_PSN),
            ] {
                device.modify(qp.qpn, state, mask, attributes);
            }
            device.command(AttachMulticast {
                qpn: qp.qpn.into(),
                gid: group(plan.number),
                ..AttachMulticast::default()
            });
            for receive in 0..receives {
                let sge = mr.sge(receive * BUFFER, BUFFER);
                let name = RECEIVE | receive as u64;
                let Device { guest, rnic, .. } = device;
                assert!(guest.post_receive(rnic, &mut qp, name, &[sge]));
            }
            Member {
                device: *index,
                incarnation: device.incarnation,
                qp,
                mr,
                sent: Vec::new(),
                complete: 0,
                came: HashMap::new(),
            }
        });
        Self {
            members: members.collect(),
            began: now,
            harm: Self::harms(plan, harm),
            plan: plan.clone(),
        }
    }

    /// Returns byte `at` of a message.
    fn pattern(&self, number: usize, at: usize) -> u8 {
        ((self.plan.number * 17 + number * 41 + at * 5) % 251) as u8 + 1
    }

    /// Returns whether a member still has its queue pair.
    fn lives(&self, member: usize, devices: &[Device]) -> bool {
        let member = &self.members[member];
        devices[member.device].incarnation == member.incarnation
    }

    /// Sends message `number` from a member.
    pub fn send(&mut self, number: usize, member: usize, length: usize, devices: &mut [Device]) {
        if !self.lives(member, devices) {
            return;
        }
        let bytes: Vec<u8> = (0..length).map(|at| self.pattern(number, at)).collect();
        let place = (Self::receives(&self.plan) + number) * BUFFER;
        let gid = group(self.plan.number);
        let Member {
            device,
            qp,
            mr,
            sent,
            ..
        } = &mut self.members[member];
        mr.arena.put(place, &bytes);
        let address = AddressVector {
            dgid: gid,
            dmac: [1, 0, 0x5e, gid[13] & 0x7f, gid[14], gid[15]],
            hop_limit: 64,
            ..Default::default()
        };
        let send = Send::new(number as u64, SendOpcode::SendWithImmediate)
            .immediate(number as u32)
            .element(mr.sge(place, length))
            .datagram(address, MULTICAST_QPN, QKEY);
        let Device { guest, rnic, .. } = &mut devices[*device];
        assert!(guest.post_send(rnic, qp, &send), "the send queue is full");
        sent.push(number);
    }

    fn member_of(&self, device: &Device, qpn: u32) -> Option<usize> {
        self.members.iter().position(|member| {
            member.device == device.index
                && member.incarnation == device.incarnation
                && member.qp.qpn == qpn
        })
    }

    /// Returns whether a queue pair of a device belongs to the group.
    pub fn has(&self, device: &Device, qpn: u32) -> bool {
        self.member_of(device, qpn).is_some()
    }

    /// Returns the queue pairs of the group on a device.
    pub fn qpns(&self, device: usize) -> Vec<u32> {
        let here = self.members.iter().filter(|member| member.device == device);
        here.map(|member| member.qp.qpn).collect()
    }

    /// Handles a completion of one of the group's queue pairs.
    ///
    /// # Panics
    ///
    /// The completion must not happen, or memory does not match it.
    pub fn complete(&mut self, device: &Device, done: Completion) {
        let member = self.member_of(device, done.qpn).expect("a member");
        if done.wr_id & RECEIVE == 0 {
            let Member { sent, complete, .. } = &mut self.members[member];
            let next = sent.get(*complete).map(|number| *number as u64);
            assert_eq!(next, Some(done.wr_id), "{done:?} of {sent:?}");
            *complete += 1;
            // Without a GID, no datagram can be sent.
            let faults = device.rnic.faults().list();
            let mut gone = faults
                .iter()
                .filter(|fault| fault.spec.kind.name == "gid-vanishes" && fault.fired > 0);
            let failed = matches!(
                done.status,
                Status::LocalQueuePairOperation | Status::Flushed
            );
            assert!(
                done.status == Status::Success || failed && gone.next().is_some(),
                "{done:?}"
            );
            assert_eq!(done.opcode, Opcode::Send);
            return;
        }
        if done.status == Status::Flushed {
            return;
        }
        let number = done.immediate as usize;
        let Some((from, length, _)) = self.plan.sends.get(number).copied() else {
            panic!("{done:?} is not a message of {:?}", self.plan);
        };
        assert!(
            self.members[from].sent.contains(&number),
            "{done:?} was not sent"
        );
        assert_eq!(done.flags & flags::IMMEDIATE, flags::IMMEDIATE);
        assert_eq!(done.source_qpn, self.members[from].qp.qpn, "{done:?}");
        assert_eq!(done.length as usize, length + GRH_LENGTH, "{done:?}");
        let place = (done.wr_id & (RECEIVE - 1)) as usize * BUFFER + GRH_LENGTH;
        let bytes = self.members[member].mr.arena.get(place, length);
        let is_it = (0..length).all(|at| bytes[at] == self.pattern(number, at));
        assert!(is_it, "{done:?}: {bytes:?} is not message {number}");
        *self.members[member].came.entry(number).or_default() += 1;
    }

    /// Flushes the remaining requests.
    pub fn stop(&mut self, devices: &mut [Device]) {
        for member in 0..self.members.len() {
            if self.lives(member, devices) {
                let Member { device, qp, .. } = &self.members[member];
                let attributes = QpAttributes::default();
                devices[*device].modify(qp.qpn, QpState::Error, 0, attributes);
            }
        }
    }

    /// Checks that every member received every message exactly once, unless something prevented that.
    ///
    /// # Panics
    ///
    /// A member did not.
    pub fn check(
        &self,
        devices: &[Device],
        harm: impl Fn([usize; 2]) -> u64,
        faults: &[&'static Known],
    ) {
        let harm = Self::harms(&self.plan, harm);
        let is_harmed = faults.iter().any(|fault| fault.is_harmful());
        let loses = faults.iter().any(|fault| fault.loses);
        for (from, sender) in self.members.iter().enumerate() {
            let lives = self.lives(from, devices);
            assert!(
                !lives || loses || sender.complete == sender.sent.len(),
                "member {from} of {:?}: {} of {:?} complete",
                self.plan,
                sender.complete,
                sender.sent
            );
            for (to, receiver) in self.members.iter().enumerate() {
                let pair = from * self.members.len() + to;
                let is_sound =
                    lives && self.lives(to, devices) && self.harm[pair] == harm[pair] && !is_harmed;
                for number in &sender.sent {
                    let came = receiver.came.get(number).copied().unwrap_or(0);
                    assert!(
                        came == 1 || !is_sound,
                        "message {number} of member {from} arrived {came} times at member {to}: {:?}",
                        self.plan
                    );
                }
            }
        }
    }

    /// Destroys all queue pairs.
    pub fn destroy(self, devices: &mut [Device]) {
        for member in 0..self.members.len() {
            if !self.lives(member, devices) {
                continue;
            }
            let Member { device, qp, mr, .. } = &self.members[member];
            let device = &mut devices[*device];
            device.command(DestroyQp {
                qpn: qp.qpn.into(),
                ..Default::default()
            });
            device.command(DeregisterMr {
                pd: device.guest.pd.into(),
                key: mr.key.into(),
            });
            device.guest.free(mr.arena.clone());
            device.guest.free(qp.sq.arena.clone());
        }
    }
}
