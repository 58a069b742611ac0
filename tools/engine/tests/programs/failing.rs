// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs in which one request fails.

use super::*;

/// The error of the request that fails.
#[derive(Copy, Clone, Debug)]
pub enum Wrong {
    LocalKey,
    RemoteKey,
    RemoteBounds,
    Opcode,
    LocalBounds,
    ReceiveTooShort,
    StaleKey,
    Invalidate,
    Register,
    InvalidateAtPeer,
}

impl Wrong {
    fn status(self) -> Status {
        match self {
            Self::LocalKey | Self::LocalBounds => Status::LocalProtection,
            Self::RemoteKey | Self::RemoteBounds | Self::StaleKey => Status::RemoteAccess,
            // The message arrived; the peer fails nevertheless.
            Self::InvalidateAtPeer => Status::Success,
            Self::Invalidate | Self::Register => Status::MemoryManagement,
            Self::Opcode => Status::LocalQueuePairOperation,
            Self::ReceiveTooShort => Status::RemoteInvalidRequest,
        }
    }

    fn request(self, wr_id: u64, c: &Connection, models: &[Model; 2]) -> Send {
        let (own, peer) = (&c.mrs[0], &c.mrs[1]);
        let good = own.sge(TARGETS, 16);
        let write = Send::new(wr_id, SendOpcode::Write);
        match self {
            Self::LocalKey => {
                let mut sge = good;
                sge.lkey = (own.key ^ 0x10).into();
                write.rdma(peer.iova + WINDOW as u64, peer.key).element(sge)
            }
            Self::LocalBounds => {
                let sge = own.sge(REGION - 5, 6);
                write.rdma(peer.iova + WINDOW as u64, peer.key).element(sge)
            }
            Self::RemoteKey => write
                .rdma(peer.iova + WINDOW as u64, peer.key ^ 0x10)
                .element(good),
            Self::RemoteBounds => write.rdma(peer.iova - 1, peer.key).element(good),
            Self::Opcode => {
                let mut send = write;
                send.header.opcode = 77;
                send
            }
            Self::ReceiveTooShort => Send::new(wr_id, SendOpcode::Send).element(good),
            Self::StaleKey => {
                let given = models[1].given_key;
                let stale = given & !0xff | given.wrapping_sub(1) & 0xff;
                write
                    .rdma(models[1].given_iova + WINDOW as u64, stale)
                    .element(good)
            }
            // The region is not one for fast registration.
            Self::Invalidate => Send::new(wr_id, SendOpcode::LocalInvalidate).immediate(own.key),
            Self::InvalidateAtPeer => {
                Send::new(wr_id, SendOpcode::SendWithInvalidate).immediate(peer.key)
            }
            // The region is valid.
            Self::Register => models[0].given.clone().register(wr_id, own, RIGHTS, 0),
        }
    }
}

pub fn wrong() -> impl Strategy<Value = Wrong> {
    prop::sample::select(vec![
        Wrong::LocalKey,
        Wrong::RemoteKey,
        Wrong::RemoteBounds,
        Wrong::Opcode,
        Wrong::LocalBounds,
        Wrong::ReceiveTooShort,
        Wrong::StaleKey,
        Wrong::Invalidate,
        Wrong::Register,
        Wrong::InvalidateAtPeer,
    ])
}

/// Everything before the wrong request is executed, everything after it is flushed, each exactly once and in order; the
/// same holds for receives. The error answer of the peer may be lost, in which case the requester runs out of retries.
pub fn run_failing(setting: &Setting, before: &[Op], wrong: Wrong, after: &[Op]) {
    let mut world = new_world(setting);
    let mut c = world.connect([0, 1], &options(), REGION, |_, _| {});
    let mut models = [0, 1].map(|side| Model::new(side, &mut world, usize::from(side)));
    give_keys(&mut world, &mut c, &mut models, setting.windows);
    world.faults = setting.faults;
    for (mr, model) in c.mrs.iter().zip(&models) {
        mr.arena.put(0, &model.memory);
    }
    let mut sends = Vec::new();
    for (index, op) in before.iter().enumerate() {
        let (requests, receive) = plan(op, index as u64, 0, &c, &mut models);
        if let Some(ranges) = receive {
            let sges = sges(&c, 1, &ranges);
            c.receive(&mut world, 1, index as u64, &sges);
        }
        sends.extend(requests);
    }
    let successes = models[0].sends.clone();
    let received = models[1].receives.len();
    let bad = before.len() as u64;
    let wrong_at = sends.len();
    sends.push(wrong.request(bad, &c, &models));
    for (index, op) in after.iter().enumerate() {
        sends.extend(plan(op, bad + 1 + index as u64, 0, &c, &mut models).0);
    }
    let names: Vec<u64> = sends.iter().map(|send| send.header.wr_id.get()).collect();
    // One that is too short for the wrong send, and some spare ones.
    for wr_id in 1000..1003 {
        let sge = c.mrs[1].sge(TARGETS, 15);
        c.receive(&mut world, 1, wr_id, &[sge]);
    }
    for send in &sends {
        c.send(&mut world, 0, send);
    }
    world.settle();

    let done = c.send_cqs[0].drain();
    let (ok, failed) = done.split_at(successes.len().min(done.len()));
    let ok: Vec<_> = ok.iter().map(|done| (done.wr_id, done.status)).collect();
    let expected: Vec<_> = successes
        .iter()
        .map(|&(wr_id, ..)| (wr_id, Status::Success))
        .collect();
    let from_peer = !matches!(
        wrong,
        Wrong::LocalKey | Wrong::LocalBounds | Wrong::Opcode | Wrong::Invalidate | Wrong::Register
    );
    // A peer in the error state does not answer again, so an answer that is lost or overtaken is not replaced.
    let lossless =
        setting.faults.drop == 0 && setting.faults.delay == 0 && setting.faults.damage == 0;
    let last = done.last().map(|last| last.status);
    if wrong.status() == Status::Success && last == Some(Status::Success) {
        // Nothing was sent after the wrong request.
        assert!(done.iter().any(|done| done.wr_id == bad), "{done:?}");
        assert_eq!(world.state(0, c.qps[0].qpn), QpState::ReadyToSend);
    } else if wrong.status() != Status::Success
        && ok == expected
        && failed.first().is_some_and(|first| first.wr_id == bad)
    {
        let status = failed[0].status;
        let gave_up = from_peer && !lossless && status == Status::RetryExceeded;
        assert!(status == wrong.status() || gave_up, "{:?}", failed[0]);
        let rest: Vec<_> = failed[1..]
            .iter()
            .map(|done| (done.wr_id, done.status))
            .collect();
        let flushed: Vec<_> = names[wrong_at + 1..]
            .iter()
            .map(|&name| (name, Status::Flushed))
            .collect();
        assert_eq!(rest, flushed);
    } else {
        // The peer failed on the wrong request and does not answer the following ones, or acknowledgements of earlier
        // ones were lost.
        let silent = wrong.status() == Status::Success;
        assert!(from_peer && (silent || !lossless), "{done:?}");
        let first = done
            .iter()
            .position(|done| done.status != Status::Success)
            .expect("failure");
        assert_eq!(done[first].status, Status::RetryExceeded, "{done:?}");
        let found: Vec<u64> = done[first..].iter().map(|done| done.wr_id).collect();
        assert!(names.ends_with(&found), "{found:?}");
        let behind = names.len() - wrong_at - 1;
        assert!(!lossless || found.len() <= behind, "{found:?}");
        for later in &done[first + 1..] {
            assert_eq!(later.status, Status::Flushed);
        }
    }
    if last != Some(Status::Success) {
        assert_eq!(world.state(0, c.qps[0].qpn), QpState::Error);
    }
    let receives = c.recv_cqs[1].drain();
    if from_peer {
        assert_eq!(world.state(1, c.qps[1].qpn), QpState::Error);
        assert_eq!(receives.len(), received + 3, "each receive completes once");
        assert!(
            receives[..received]
                .iter()
                .all(|done| done.status == Status::Success)
        );
        let status = match wrong {
            Wrong::ReceiveTooShort => Status::LocalLength,
            Wrong::InvalidateAtPeer => Status::RemoteInvalidRequest,
            _ => Status::Flushed,
        };
        assert_eq!(receives[received].status, status);
        assert_eq!(receives[received + 2].status, Status::Flushed);
    } else {
        assert_eq!(receives.len(), received);
    }
}
