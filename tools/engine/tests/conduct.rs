// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Who sees which error: every operation, with every combination of what can be wrong with it at either end.
//!
//! What is expected is written down once, in the order of the checks (IBTA volume 1, 9.7.4, 9.9 and 10.10.2, and
//! "Error handling" of Documentation/virtio-rdma.rst): what is wrong with the memory that is sent from comes first,
//! then what the peer has against the request, and then what is wrong with the memory of the response.

use vrnic_engine::{
    Recovery, RnicConfig, Segmentation,
    testing::{Connection, Mr, QpOptions, Send, World},
};
use vrnic_wire::{
    completion::Status,
    event::EventType,
    memory::access,
    qp::{QpAttributes, QpState, QpType, attribute},
    work::{SendOpcode, Sge, placement, send_flags},
};

const MR: usize = 1 << 16;

/// What is wrong with the memory of the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Local {
    Valid,
    Key,
    Bounds,
}

/// What is wrong with the memory that the request names at the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Remote {
    Valid,
    Key,
    Rights,
    Bounds,
    /// The queue pair of the peer allows nothing.
    QueuePair,
    Alignment,
}

/// What is wrong with the first receive of the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Receive {
    Valid,
    Absent,
    Short,
    Key,
}

#[derive(Copy, Clone, Debug)]
struct Case {
    segmentation: Segmentation,
    qp_type: QpType,
    opcode: SendOpcode,
    /// More than one packet, where there are packets.
    long: bool,
    signaled: bool,
    local: Local,
    remote: Remote,
    receive: Receive,
    /// Whether a SEND with invalidate names a key that may be invalidated.
    invalidates: bool,
    /// State of the queue pair of the peer.
    peer: QpState,
}

/// What both ends see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Completion of the request.
    request: Option<Status>,
    /// Completions of the two receives.
    receives: Vec<Status>,
    /// Event at the peer.
    event: Option<EventType>,
    /// States of both ends.
    states: [QpState; 2],
    /// Whether the peer did what it was asked to.
    done: bool,
}

const OPCODES: [SendOpcode; 10] = [
    SendOpcode::Send,
    SendOpcode::SendWithImmediate,
    SendOpcode::SendWithInvalidate,
    SendOpcode::Write,
    SendOpcode::WriteWithImmediate,
    SendOpcode::Read,
    SendOpcode::CompareSwap,
    SendOpcode::FetchAdd,
    SendOpcode::AtomicWrite,
    SendOpcode::Flush,
];

impl Case {
    fn is_send(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Send | SendOpcode::SendWithImmediate | SendOpcode::SendWithInvalidate
        )
    }

    fn is_atomic(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd | SendOpcode::AtomicWrite
        )
    }

    fn takes_receive(&self) -> bool {
        self.is_send() || self.opcode == SendOpcode::WriteWithImmediate
    }

    fn fetches(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd
        )
    }

    fn length(&self) -> usize {
        match self.opcode {
            SendOpcode::Flush | SendOpcode::AtomicWrite => 0,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => 8,
            _ if self.long => 3000,
            _ => 64,
        }
    }

    /// Whether the request is one packet.
    fn is_one_packet(&self) -> bool {
        !self.long || self.segmentation == Segmentation::Local
    }

    /// Whether there is such a case.
    fn makes_sense(&self) -> bool {
        let reliable = self.qp_type == QpType::ReliableConnection;
        let carried = reliable
            || matches!(
                self.opcode,
                SendOpcode::Send
                    | SendOpcode::SendWithImmediate
                    | SendOpcode::Write
                    | SendOpcode::WriteWithImmediate
            );
        let has_memory = self.length() > 0 || self.local == Local::Valid;
        let has_length = !self.long || self.length() == 3000;
        let aligned = self.remote != Remote::Alignment || self.is_atomic();
        let remote = !self.is_send() || self.remote == Remote::Valid;
        let receive = self.takes_receive() || self.receive == Receive::Valid;
        let invalidates = self.invalidates || self.opcode == SendOpcode::SendWithInvalidate;
        carried && has_memory && has_length && aligned && remote && receive && invalidates
    }

    /// The receives of the peer, flushed.
    fn flushed(&self) -> Vec<Status> {
        let count = if self.receive == Receive::Absent {
            0
        } else {
            2
        };
        vec![Status::Flushed; count]
    }

    /// What of them is before the request is sent.
    fn flushed_before(&self) -> Vec<Status> {
        match self.peer {
            QpState::Error => self.flushed(),
            _ => vec![],
        }
    }

    /// What both ends are to see.
    fn expected(&self) -> Seen {
        if self.qp_type == QpType::UnreliableConnection {
            return self.expected_unreliable();
        }
        let flushed = self.flushed();
        let fails = |request: Status, first: Status, event: Option<EventType>| {
            let mut receives = flushed.clone();
            if let Some(receive) = receives.first_mut() {
                *receive = first;
            }
            Seen {
                request: Some(request),
                receives,
                event,
                states: [QpState::Error; 2],
                done: false,
            }
        };
        // Only this end fails.
        let alone = |request: Status, done: bool| Seen {
            request: Some(request),
            receives: self.flushed_before(),
            event: None,
            states: [QpState::Error, self.peer],
            done,
        };
        if self.local != Local::Valid && !self.fetches() {
            return alone(Status::LocalProtection, false);
        }
        if self.peer != QpState::ReadyToSend {
            return alone(Status::RetryExceeded, false);
        }
        if self.remote == Remote::QueuePair {
            let event = Some(EventType::QpRequestError);
            return fails(Status::RemoteInvalidRequest, Status::Flushed, event);
        }
        if self.remote == Remote::Alignment {
            let event = Some(EventType::QpRequestError);
            return fails(Status::RemoteInvalidRequest, Status::Flushed, event);
        }
        let in_use = self.is_send() || (self.takes_receive() && self.is_one_packet());
        if in_use && self.receive == Receive::Absent {
            return alone(Status::RnrRetryExceeded, false);
        }
        if self.remote != Remote::Valid {
            return if in_use {
                fails(Status::RemoteAccess, Status::LocalAccess, None)
            } else {
                let event = Some(EventType::QpAccessError);
                fails(Status::RemoteAccess, Status::Flushed, event)
            };
        }
        if self.takes_receive() && self.receive == Receive::Absent {
            // All but the last packet was written.
            return alone(Status::RnrRetryExceeded, false);
        }
        if self.is_send() && self.receive == Receive::Short {
            return fails(Status::RemoteInvalidRequest, Status::LocalLength, None);
        }
        if self.is_send() && self.receive == Receive::Key {
            return fails(Status::RemoteOperation, Status::LocalProtection, None);
        }
        if !self.invalidates {
            return Seen {
                request: self.signaled.then_some(Status::Success),
                states: [QpState::ReadyToSend, QpState::Error],
                done: true,
                ..fails(Status::Success, Status::RemoteInvalidRequest, None)
            };
        }
        if self.local != Local::Valid {
            return alone(Status::LocalProtection, true);
        }
        self.succeeds()
    }

    fn succeeds(&self) -> Seen {
        Seen {
            request: self.signaled.then_some(Status::Success),
            receives: vec![Status::Success; usize::from(self.takes_receive())],
            event: None,
            states: [QpState::ReadyToSend; 2],
            done: true,
        }
    }

    /// The same where nobody answers.
    fn expected_unreliable(&self) -> Seen {
        let dropped = Seen {
            receives: self.flushed_before(),
            done: false,
            ..self.succeeds()
        };
        if self.local != Local::Valid {
            return Seen {
                request: Some(Status::LocalProtection),
                states: [QpState::SendQueueError, self.peer],
                ..dropped
            };
        }
        if self.peer != QpState::ReadyToSend {
            return Seen {
                states: [QpState::ReadyToSend, self.peer],
                ..dropped
            };
        }
        if self.remote != Remote::Valid {
            return dropped;
        }
        if self.takes_receive() && self.receive == Receive::Absent {
            return dropped;
        }
        if self.is_send() && self.receive == Receive::Short {
            return dropped;
        }
        if self.is_send() && self.receive == Receive::Key {
            return Seen {
                receives: vec![Status::LocalProtection, Status::Flushed],
                states: [QpState::ReadyToSend, QpState::Error],
                ..dropped
            };
        }
        self.succeeds()
    }

    fn element(&self, mr: &Mr, other: &Mr) -> Option<Sge> {
        let length = self.length();
        let valid = mr.sge(0, length);
        (length > 0).then(|| match self.local {
            Local::Valid => valid,
            Local::Key => Sge {
                lkey: (other.key ^ 0x10).into(),
                ..valid
            },
            Local::Bounds => mr.sge(MR - 1, length),
        })
    }

    fn request(&self, c: &Connection, read_only: &Mr, key: u32) -> Send {
        let region = &c.mrs[1];
        let (address, rkey) = match self.remote {
            Remote::Key => (region.iova, region.key ^ 0x10),
            Remote::Rights => (read_only.iova, read_only.key),
            Remote::Bounds => (region.iova + MR as u64 - 1, region.key),
            Remote::Alignment => (region.iova + 4, region.key),
            Remote::Valid | Remote::QueuePair => (region.iova, region.key),
        };
        // Aligned, and still outside.
        let address = match self.remote {
            Remote::Bounds if self.is_atomic() => region.iova + MR as u64,
            _ => address,
        };
        let send = Send::new(1, self.opcode);
        let send = match self.opcode {
            SendOpcode::Send => send,
            SendOpcode::SendWithImmediate => send.immediate(7),
            SendOpcode::SendWithInvalidate => send.immediate(key),
            SendOpcode::CompareSwap | SendOpcode::AtomicWrite => send.atomic(address, rkey, 0, 1),
            SendOpcode::FetchAdd => send.atomic(address, rkey, 1, 0),
            SendOpcode::Flush => send.flush(address, rkey, 64, placement::GLOBAL),
            _ => send.rdma(address, rkey),
        };
        let send = match self.element(&c.mrs[0], &c.mrs[1]) {
            Some(element) => send.element(element),
            None => send,
        };
        if self.signaled {
            send
        } else {
            send.unsignaled()
        }
    }

    /// Does it, and looks.
    fn perform(&self) -> Seen {
        let config = RnicConfig {
            segmentation: self.segmentation,
            recovery: Recovery::GoBackN,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 256, &config, 1);
        let options = QpOptions {
            qp_type: self.qp_type,
            entries: 4,
            ..QpOptions::default()
        };
        let forbids = self.remote == Remote::QueuePair;
        let mut c = world.connect([0, 1], &options, MR, |side, attributes| {
            attributes.rnr_retry = 0;
            attributes.retry_count = 1;
            if side == 1 && forbids {
                attributes.access = 0.into();
            }
        });
        let node = &mut world.nodes[1];
        let read_only = node.guest.mr(&mut node.rnic, MR, access::LOCAL_WRITE);
        let mut fast = node.guest.fast_mr(&mut node.rnic, 16);
        c.mrs[0].arena.put(0, &[0x5a; 3000]);
        if self.opcode == SendOpcode::SendWithInvalidate && self.invalidates {
            let register = fast.register(50, &c.mrs[1], access::LOCAL_WRITE, 0);
            c.send(&mut world, 1, &register.unsignaled());
            world.settle();
        }
        let key = if self.invalidates {
            fast.key
        } else {
            c.mrs[1].key
        };
        self.post_receives(&mut world, &mut c);
        self.move_peer(&mut world, &c);
        let request = self.request(&c, &read_only, key);
        c.send(&mut world, 0, &request);
        world.settle();
        self.look(&mut world, &mut c)
    }

    fn post_receives(&self, world: &mut World, c: &mut Connection) {
        let at = MR / 2;
        let first = match self.receive {
            Receive::Absent => return,
            Receive::Valid => c.mrs[1].sge(at, 4096),
            Receive::Short => c.mrs[1].sge(at, 63),
            Receive::Key => Sge {
                lkey: (c.mrs[1].key ^ 0x10).into(),
                ..c.mrs[1].sge(at, 4096)
            },
        };
        let second = c.mrs[1].sge(at, 4096);
        c.receive(world, 1, 0, &[first]);
        c.receive(world, 1, 1, &[second]);
    }

    fn move_peer(&self, world: &mut World, c: &Connection) {
        let qpn = c.qps[1].qpn;
        let states: &[QpState] = match self.peer {
            QpState::Init => &[QpState::Reset, QpState::Init],
            QpState::ReadyToSend => &[],
            ref other => std::slice::from_ref(other),
        };
        for &state in states {
            let mask = match state {
                QpState::Init => attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS,
                _ => 0,
            };
            let attributes = QpAttributes {
                state: state.raw(),
                mask: (attribute::STATE | mask).into(),
                ..World::attributes(0, c.qps[0].qpn)
            };
            world.modify(1, qpn, attributes);
        }
    }

    fn look(&self, world: &mut World, c: &mut Connection) -> Seen {
        let sent = c.send_cqs[0].drain();
        assert!(sent.len() <= 1, "{sent:?}");
        assert!(sent.iter().all(|done| done.wr_id == 1));
        let received = c.recv_cqs[1].drain();
        for (number, done) in received.iter().enumerate() {
            assert_eq!(done.wr_id, number as u64, "receives complete in order");
        }
        let events: Vec<EventType> = std::iter::from_fn(|| world.nodes[1].rnic.next_async_event())
            .map(|event| EventType::try_from(event.event_type.get()).expect("event type"))
            .collect();
        assert!(events.len() <= 1, "{events:?}");
        assert!(world.nodes[0].rnic.next_async_event().is_none());
        // Each error tells its cause.
        for failed in sent.iter().chain(&received) {
            assert_eq!(failed.cause.is_some(), failed.status != Status::Success);
        }
        let states = [0, 1].map(|side| world.state(side, c.qps[side].qpn));
        let seen = Seen {
            request: sent.first().map(|done| done.status),
            receives: received.iter().map(|done| done.status).collect(),
            event: events.first().copied(),
            states,
            done: self.is_done(c),
        };
        // What is posted later is flushed, if the queue has failed, whether it asks for a completion or not.
        if matches!(states[0], QpState::Error | QpState::SendQueueError) {
            let later = Send::new(2, SendOpcode::Send).unsignaled();
            c.send(world, 0, &later);
            world.settle();
            let flushed = c.send_cqs[0].drain();
            assert_eq!(flushed.len(), 1);
            assert_eq!((flushed[0].wr_id, flushed[0].status), (2, Status::Flushed));
        }
        seen
    }

    /// Whether the peer did what it was asked to, as far as its memory tells, or nobody could tell.
    fn is_done(&self, c: &Connection) -> bool {
        let region = &c.mrs[1].arena;
        match self.opcode {
            SendOpcode::Send | SendOpcode::SendWithImmediate | SendOpcode::SendWithInvalidate => {
                region.get(MR / 2, self.length()) == vec![0x5a; self.length()]
            }
            SendOpcode::Write | SendOpcode::WriteWithImmediate => {
                region.get(0, self.length()) == vec![0x5a; self.length()]
            }
            SendOpcode::CompareSwap | SendOpcode::FetchAdd | SendOpcode::AtomicWrite => {
                region.get(0, 8) == 1u64.to_le_bytes()
            }
            _ => self.expected().done,
        }
    }
}

fn all_of(qp_type: QpType, segmentation: Segmentation) -> impl Iterator<Item = Case> {
    let bools = [false, true];
    let peers = [
        QpState::ReadyToSend,
        QpState::Reset,
        QpState::Init,
        QpState::Error,
    ];
    let locals = [Local::Valid, Local::Key, Local::Bounds];
    let remotes = [
        Remote::Valid,
        Remote::Key,
        Remote::Rights,
        Remote::Bounds,
        Remote::QueuePair,
        Remote::Alignment,
    ];
    let receives = [
        Receive::Valid,
        Receive::Absent,
        Receive::Short,
        Receive::Key,
    ];
    let product = move |number: usize| {
        let mut rest = number;
        let mut next = |count: usize| {
            let index = rest % count;
            rest /= count;
            index
        };
        Case {
            segmentation,
            qp_type,
            opcode: OPCODES[next(OPCODES.len())],
            long: bools[next(2)],
            signaled: bools[next(2)],
            invalidates: bools[next(2)],
            local: locals[next(locals.len())],
            remote: remotes[next(remotes.len())],
            receive: receives[next(receives.len())],
            peer: peers[next(peers.len())],
        }
    };
    let count = OPCODES.len() * 8 * locals.len() * remotes.len() * receives.len() * peers.len();
    (0..count).map(product).filter(Case::makes_sense)
}

fn check(qp_type: QpType, segmentation: Segmentation, at_least: usize) {
    let mut count = 0;
    let mut wrong = Vec::new();
    for case in all_of(qp_type, segmentation) {
        count += 1;
        let (seen, expected) = (case.perform(), case.expected());
        if seen != expected && wrong.len() < 20 {
            wrong.push(format!(
                "{case:?}\n  seen     {seen:?}\n  expected {expected:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "wrong:\n{}", wrong.join("\n"));
    assert!(count >= at_least, "{count} cases");
}

#[test]
fn of_reliable_connections_between_guests() {
    check(QpType::ReliableConnection, Segmentation::Local, 2000);
}

#[test]
fn of_reliable_connections_in_packets() {
    check(QpType::ReliableConnection, Segmentation::PathMtu, 2000);
}

#[test]
fn of_unreliable_connections_between_guests() {
    check(QpType::UnreliableConnection, Segmentation::Local, 500);
}

#[test]
fn of_unreliable_connections_in_packets() {
    check(QpType::UnreliableConnection, Segmentation::PathMtu, 500);
}

/// The flags of a request have nothing to do with its errors.
#[test]
fn solicited_and_fenced_requests_fail_alike() {
    for flags in [send_flags::SOLICITED, send_flags::FENCE] {
        let mut world = World::pair(3);
        let mut c = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
        let write = Send::new(1, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key ^ 0x10)
            .element(c.mrs[0].sge(0, 64))
            .flags(flags | send_flags::SIGNALED);
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(c.send_cqs[0].drain()[0].status, Status::RemoteAccess);
    }
}
