// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Which errors each end sees: every operation, with every combination of errors at either end.
//!
//! The expected result has two parts, and neither depends on the engine. [`Case::fault`] finds the decisive fault, in
//! the order in which a requester and a responder check (IBTA volume 1, 9.7.4 and 9.8.2.2): errors in the entry and in
//! the source memory, then the peer's objections to the request, then errors in the memory for the response.
//! [`Fault::row`] is the table of what both ends see of it (9.9.2, 9.9.3, 10.10.2.2 and 11.6.2; "Error handling" of
//! Documentation/virtio-rdma.rst).

use vrnic_engine::{
    Cause, LinkLayer, Recovery, RnicConfig, Segmentation,
    testing::{
        Completion, Connection, Mr, Node, QpOptions, Send, Srq, Wire, World, gid_of, lid_of,
    },
};
use vrnic_wire::{
    completion::Status,
    event::EventType,
    memory::access,
    qp::{
        QpAttributes, QpState,
        QpType::{self, *},
        attribute,
    },
    work::{AddressVector, LidAddress, SendOpcode, Sge, placement, send_flags},
};

const MR: usize = 1 << 16;

/// Q_Key of the datagram queue pairs.
const QKEY: u32 = 0x1234;

/// Q_Key of the GSI.
const GSI_QKEY: u32 = 0x8001_0000;

/// Number of a queue pair that does not exist.
const NOBODY: u32 = 0x777;

/// What is between the two ends.
#[derive(Copy, Clone, Debug)]
pub struct Network {
    /// How long segments are.
    segmentation: Segmentation,
    /// How segments travel as frames, if they do.
    wire: Option<Wire>,
    /// How the ends address each other.
    link_layer: LinkLayer,
}

impl Network {
    /// The guests of one process.
    #[allow(dead_code, reason = "frames have no use for it")]
    pub const LOCAL: Self = Self {
        segmentation: Segmentation::Local,
        wire: None,
        link_layer: LinkLayer::Ethernet,
    };

    /// Packets on Ethernet.
    pub const PACKETS: Self = Self {
        segmentation: Segmentation::PathMtu,
        ..Self::LOCAL
    };

    /// Packets on InfiniBand.
    pub const SUBNET: Self = Self {
        link_layer: LinkLayer::InfiniBand,
        ..Self::PACKETS
    };

    /// Returns the same network, with frames.
    #[allow(dead_code, reason = "the engine has no frames")]
    pub const fn with(self, wire: Wire) -> Self {
        Self {
            wire: Some(wire),
            ..self
        }
    }

    /// Creates two devices.
    fn world(&self, seed: u64) -> World {
        let config = RnicConfig {
            segmentation: self.segmentation,
            link_layer: self.link_layer,
            recovery: Recovery::GoBackN,
            ..RnicConfig::default()
        };
        let mut world = World::new(2, 256, &config, seed);
        world.wire = self.wire;
        // A port on a subnet has changed when it works.
        for node in &mut world.nodes {
            while node.rnic.next_async_event().is_some() {}
        }
        world
    }

    /// Returns the address of a node.
    fn address(&self, node: usize) -> AddressVector {
        match self.link_layer {
            LinkLayer::InfiniBand => AddressVector {
                dmac: LidAddress {
                    dlid: lid_of(node).into(),
                    ..LidAddress::default()
                }
                .to_bytes(),
                ..AddressVector::default()
            },
            LinkLayer::Ethernet => AddressVector {
                dgid: gid_of(node),
                ..AddressVector::default()
            },
        }
    }

    /// Returns the attributes of the queue pair of a node whose peer has this number.
    fn attributes(&self, node: usize, peer: u32) -> QpAttributes {
        QpAttributes {
            qkey: QKEY.into(),
            access: (access::QUEUE_PAIR | access::PLACEMENT).into(),
            address: self.address(1 - node),
            ..World::attributes(1 - node, peer)
        }
    }
}

/// State of the local memory of the request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Local {
    Valid,
    Key,
    Bounds,
}

/// State of what the request names at the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Remote {
    Valid,
    Key,
    Rights,
    Bounds,
    /// The queue pair of the peer allows no access.
    QueuePair,
    /// The address of an atomic is not a multiple of 8.
    Alignment,
    /// The address is aligned, but the key does not exist.
    AlignmentAndKey,
    /// The Q_Key of a datagram.
    Qkey,
}

/// State of the peer's first receive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Receive {
    Valid,
    Absent,
    Short,
    Key,
    /// It has more elements than the queue supports.
    Entry,
}

#[derive(Copy, Clone, Debug)]
struct Case {
    network: Network,
    qp_type: QpType,
    opcode: SendOpcode,
    /// More than one packet, on fabrics with packets.
    long: bool,
    signaled: bool,
    local: Local,
    remote: Remote,
    receive: Receive,
    /// Whether a SEND with invalidate names a key that may be invalidated.
    invalidates: bool,
    /// State of the queue pair when the request is posted. Then it becomes ready to send.
    own: QpState,
    /// State of the queue pair of the peer.
    peer: QpState,
}

/// Two connected ends, and the shared receive queue from which the second one receives, if there is one.
struct Ends {
    c: Connection,
    srq: Option<Srq>,
}

/// A status with its cause.
type Ended = (Status, Option<Cause>);

const SUCCESS: Ended = (Status::Success, None);

const FLUSHED: Ended = (Status::Flushed, Some(Cause::QpInError));

/// What both ends see.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// Completion of the request.
    request: Option<Ended>,
    /// Completion of the following request.
    next: Ended,
    /// Completions of the two receives.
    receives: Vec<Ended>,
    /// Event at the peer.
    event: Option<(EventType, Option<Cause>)>,
    /// States of both ends.
    states: [QpState; 2],
    /// Whether the peer executed the request.
    done: bool,
}

/// The decisive fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The service does not support the operation.
    Operation,
    /// The datagram is too long.
    Length,
    /// The source memory.
    Source(Local),
    /// The peer does not answer.
    Silence,
    /// The peer has no receive.
    NoReceive,
    /// What the request names at the peer, and whether a receive is in use.
    Target(Remote, bool),
    /// The receive of the peer.
    Receive(Receive),
    /// The peer cannot invalidate the key.
    Invalidation,
    /// The memory for the response.
    Sink(Local),
}

/// What the peer sees of a fault.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Peer {
    /// Nothing, and it continues.
    Nothing,
    /// The queue pair fails with an event, and its receives are flushed.
    Event(EventType, Cause),
    /// The queue pair fails with a receive, and the others are flushed.
    Receive(Status, Cause),
}

/// What both ends see of a fault.
struct Row {
    request: Ended,
    next: Ended,
    peer: Peer,
    /// Whether the peer executed the request.
    done: bool,
}

impl Fault {
    /// Returns what is seen of it on a reliable connection.
    fn row(self) -> Row {
        use Cause::*;
        use Status::*;
        let row = |status, why, peer, done| Row {
            request: (status, Some(why)),
            next: FLUSHED,
            peer,
            done,
        };
        let alone = |status, why| row(status, why, Peer::Nothing, false);
        let by_event =
            |status, why, event, cause| row(status, why, Peer::Event(event, cause), false);
        let by_receive =
            |status, why, end, cause| row(status, why, Peer::Receive(end, cause), false);
        match self {
            Self::Operation => alone(LocalQueuePairOperation, WqeOpcode),
            Self::Length => alone(LocalLength, WqeLength),
            Self::Source(local) => alone(LocalProtection, local.cause()),
            Self::Silence => alone(RetryExceeded, Retries),
            Self::NoReceive => alone(RnrRetryExceeded, RnrRetries),
            Self::Target(remote, in_use) => match remote.refusal() {
                (RemoteInvalidRequest, cause) => by_event(
                    RemoteInvalidRequest,
                    PeerInvalidRequest,
                    EventType::QpRequestError,
                    cause,
                ),
                (status, cause) if in_use => by_receive(status, PeerAccess, LocalAccess, cause),
                (status, cause) => by_event(status, PeerAccess, EventType::QpAccessError, cause),
            },
            Self::Receive(Receive::Short) => by_receive(
                RemoteInvalidRequest,
                PeerInvalidRequest,
                LocalLength,
                ReceiveTooShort,
            ),
            Self::Receive(Receive::Key) => {
                by_receive(RemoteOperation, PeerOperation, LocalProtection, LocalKey)
            }
            Self::Receive(_) => by_receive(
                RemoteOperation,
                PeerOperation,
                LocalQueuePairOperation,
                ReceiveEntry,
            ),
            // The message was received and acknowledged. The next one is not answered.
            Self::Invalidation => Row {
                request: SUCCESS,
                next: (RetryExceeded, Some(Retries)),
                peer: Peer::Receive(RemoteInvalidRequest, RemoteInvalidate),
                done: true,
            },
            Self::Sink(local) => row(LocalProtection, local.cause(), Peer::Nothing, true),
        }
    }

    /// Returns what is seen of it on a service without answers. The sender sees its own faults. A receiver drops the
    /// message, unless its own receive is wrong.
    fn unreliable_row(self) -> Row {
        let row = self.row();
        let peer = match (self, row.peer) {
            (Self::Receive(Receive::Key | Receive::Entry), peer) => peer,
            _ => Peer::Nothing,
        };
        match self {
            Self::Operation | Self::Length | Self::Source(_) => row,
            _ => Row {
                request: SUCCESS,
                next: SUCCESS,
                peer,
                done: false,
            },
        }
    }
}

impl Local {
    fn cause(self) -> Cause {
        match self {
            Self::Bounds => Cause::LocalBounds,
            _ => Cause::LocalKey,
        }
    }
}

impl Remote {
    /// Returns the status of the peer's answer, and the cause.
    fn refusal(self) -> (Status, Cause) {
        let invalid = Status::RemoteInvalidRequest;
        match self {
            Self::QueuePair => (invalid, Cause::RemoteRights),
            Self::Alignment | Self::AlignmentAndKey => (invalid, Cause::AtomicAlignment),
            Self::Rights => (Status::RemoteAccess, Cause::RemoteRights),
            Self::Bounds => (Status::RemoteAccess, Cause::RemoteBounds),
            _ => (Status::RemoteAccess, Cause::RemoteKey),
        }
    }

    /// Returns whether it is found before a receive is needed.
    fn comes_first(self) -> bool {
        self == Self::Qkey || self.refusal().0 == Status::RemoteInvalidRequest
    }
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

fn is_datagram(qp_type: QpType) -> bool {
    matches!(qp_type, UnreliableDatagram | Gsi)
}

/// Returns whether queue pairs in this state receive messages (IBTA volume 1, 10.3.1).
fn receives(state: QpState) -> bool {
    !matches!(state, QpState::Reset | QpState::Init | QpState::Error)
}

impl Case {
    fn is_reliable(&self) -> bool {
        matches!(self.qp_type, ReliableConnection | XrcInitiator)
    }

    /// Returns whether the peer receives from a shared queue, which its errors do not flush.
    fn shares(&self) -> bool {
        self.qp_type == XrcInitiator
    }

    /// Returns the type of the queue pair of one side.
    fn type_of(&self, side: usize) -> QpType {
        match self.qp_type {
            XrcInitiator if side == 1 => XrcTarget,
            both => both,
        }
    }

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

    /// Returns whether the response has data.
    fn fetches(&self) -> bool {
        matches!(
            self.opcode,
            SendOpcode::Read | SendOpcode::CompareSwap | SendOpcode::FetchAdd
        )
    }

    /// Returns whether the service supports the operation (IBTA volume 1, table 10).
    fn is_carried(&self) -> bool {
        match self.opcode {
            SendOpcode::Send | SendOpcode::SendWithImmediate => true,
            SendOpcode::Write | SendOpcode::WriteWithImmediate => !is_datagram(self.qp_type),
            _ => self.is_reliable(),
        }
    }

    fn length(&self) -> usize {
        match self.opcode {
            SendOpcode::Flush | SendOpcode::AtomicWrite => 0,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => 8,
            _ if self.long => 5000,
            _ => 64,
        }
    }

    /// Returns whether the request is one packet.
    fn is_one_packet(&self) -> bool {
        !self.long || self.network.segmentation == Segmentation::Local
    }

    /// Returns whether the case is possible.
    fn makes_sense(&self) -> bool {
        let has_memory = self.length() > 0 || self.local == Local::Valid;
        let has_length = !self.long || self.length() == 5000;
        let remote = match self.remote {
            Remote::Valid => true,
            Remote::Alignment | Remote::AlignmentAndKey => self.is_atomic(),
            Remote::Qkey => is_datagram(self.qp_type),
            _ => !self.is_send(),
        };
        let receive = self.takes_receive() || self.receive == Receive::Valid;
        let invalidates = self.invalidates || self.opcode == SendOpcode::SendWithInvalidate;
        // Nothing else is checked.
        let carried = self.is_carried()
            || (self.local == Local::Valid
                && self.remote == Remote::Valid
                && self.receive == Receive::Valid
                && self.invalidates);
        // A send queue fails alone only in unreliable services.
        let peer = self.peer != QpState::SendQueueError || !self.is_reliable();
        // When the request is posted, only the sender knows of it.
        let own = self.own == QpState::ReadyToSend
            || (self.peer == QpState::ReadyToSend
                && self.receive == Receive::Valid
                && self.invalidates);
        // A target has no send queue that could register a region or be drained.
        let target = !self.shares()
            || (self.peer != QpState::SendQueueDrain
                && (self.opcode != SendOpcode::SendWithInvalidate || !self.invalidates));
        let own = own && target;
        has_memory && has_length && remote && receive && invalidates && carried && peer && own
    }

    /// Returns the decisive fault, if there is one.
    fn fault(&self) -> Option<Fault> {
        let in_use = self.is_send() || (self.takes_receive() && self.is_one_packet());
        let lacks_receive = self.takes_receive() && self.receive == Receive::Absent;
        if !self.is_carried() {
            Some(Fault::Operation)
        } else if is_datagram(self.qp_type) && self.long {
            Some(Fault::Length)
        } else if self.local != Local::Valid && !self.fetches() {
            Some(Fault::Source(self.local))
        } else if !receives(self.peer) {
            Some(Fault::Silence)
        } else if self.remote.comes_first() {
            Some(Fault::Target(self.remote, false))
        } else if in_use && lacks_receive {
            Some(Fault::NoReceive)
        } else if in_use && self.receive == Receive::Entry {
            Some(Fault::Receive(Receive::Entry))
        } else if self.remote != Remote::Valid {
            Some(Fault::Target(self.remote, in_use))
        } else if lacks_receive {
            Some(Fault::NoReceive)
        } else if self.takes_receive() && self.receive == Receive::Entry {
            Some(Fault::Receive(Receive::Entry))
        } else if self.is_send() && matches!(self.receive, Receive::Short | Receive::Key) {
            Some(Fault::Receive(self.receive))
        } else if !self.invalidates {
            Some(Fault::Invalidation)
        } else if self.local != Local::Valid {
            Some(Fault::Sink(self.local))
        } else {
            None
        }
    }

    /// Returns what both ends must see.
    fn expected(&self) -> Seen {
        let row = match self.fault() {
            Some(fault) if self.is_reliable() => fault.row(),
            Some(fault) => fault.unreliable_row(),
            None => Row {
                request: SUCCESS,
                next: SUCCESS,
                peer: Peer::Nothing,
                done: true,
            },
        };
        // What is not flushed stays in the shared queue.
        let (posted, used) = match self.receive {
            Receive::Absent => (0, 0),
            _ if self.shares() => (0, 1),
            _ => (2, 2),
        };
        let (mut receives, event, peer) = match row.peer {
            Peer::Nothing if self.peer == QpState::Error => {
                (vec![FLUSHED; posted], None, self.peer)
            }
            Peer::Nothing if row.done && self.takes_receive() => (vec![SUCCESS], None, self.peer),
            Peer::Nothing => (vec![], None, self.peer),
            Peer::Event(event, cause) => {
                let told = Some((event, Some(cause)));
                (vec![FLUSHED; posted], told, QpState::Error)
            }
            Peer::Receive(..) => (vec![FLUSHED; used], None, QpState::Error),
        };
        if let Peer::Receive(status, cause) = row.peer {
            receives[0] = (status, Some(cause));
        }
        let failed = [row.request.0, row.next.0]
            .iter()
            .any(|&status| status != Status::Success);
        let state = match failed {
            false => QpState::ReadyToSend,
            true if self.is_reliable() => QpState::Error,
            true => QpState::SendQueueError,
        };
        let quiet = row.request == SUCCESS && !self.signaled;
        Seen {
            request: (!quiet).then_some(row.request),
            next: row.next,
            receives,
            event,
            states: [state, peer],
            done: row.done,
        }
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

    fn request(&self, Ends { c, srq }: &Ends, read_only: &Mr, key: u32) -> Send {
        let region = &c.mrs[1];
        let (address, rkey) = match self.remote {
            Remote::Key => (region.iova, region.key ^ 0x10),
            Remote::Rights => (read_only.iova, read_only.key),
            // Aligned, but outside.
            Remote::Bounds if self.is_atomic() => (region.iova + MR as u64, region.key),
            Remote::Bounds => (region.iova + MR as u64 - 1, region.key),
            Remote::Alignment => (region.iova + 4, region.key),
            Remote::AlignmentAndKey => (region.iova + 4, region.key ^ 0x10),
            Remote::Valid | Remote::QueuePair | Remote::Qkey => (region.iova, region.key),
        };
        let send = Send::new(1, self.opcode);
        let mut send = match self.opcode {
            SendOpcode::Send => send,
            SendOpcode::SendWithImmediate => send.immediate(7),
            SendOpcode::SendWithInvalidate => send.immediate(key),
            SendOpcode::CompareSwap | SendOpcode::AtomicWrite => send.atomic(address, rkey, 0, 1),
            SendOpcode::FetchAdd => send.atomic(address, rkey, 1, 0),
            SendOpcode::Flush => send.flush(address, rkey, 64, placement::GLOBAL),
            _ => send.rdma(address, rkey),
        };
        if is_datagram(self.qp_type) {
            send = self.to(send, c.qps[1].qpn);
        }
        if let Some(srq) = srq {
            send = send.to_srq(srq.srqn);
        }
        if let Some(element) = self.element(&c.mrs[0], &c.mrs[1]) {
            send = send.element(element);
        }
        if self.signaled {
            send
        } else {
            send.unsignaled()
        }
    }

    /// Adds the destination of a datagram.
    fn to(&self, send: Send, qpn: u32) -> Send {
        let qkey = match self.remote {
            Remote::Qkey => QKEY + 1,
            _ => qkey(self.qp_type),
        };
        send.datagram(self.network.address(1), qpn, qkey)
    }

    /// Builds a request that needs nothing of the peer but an answer.
    fn next(&self, Ends { c, srq }: &Ends) -> Send {
        let write = Send::new(2, SendOpcode::Write).rdma(c.mrs[1].iova, c.mrs[1].key);
        match srq {
            _ if is_datagram(self.qp_type) => self.to(Send::new(2, SendOpcode::Send), NOBODY),
            Some(srq) => write.to_srq(srq.srqn),
            None => write,
        }
    }

    /// Connects an initiator of node 0 with a target of node 1.
    fn connect_xrc(
        world: &mut World,
        options: &QpOptions,
        change: impl Fn(usize, &mut QpAttributes),
    ) -> Ends {
        let end = |node: &mut Node, options: &QpOptions| {
            let Node { rnic, guest } = node;
            let send_cq = guest.cq(rnic, options.entries * 2, 0);
            let recv_cq = guest.cq(rnic, options.entries * 2, 1);
            let qp = guest
                .try_qp(rnic, options, send_cq.cqn, recv_cq.cqn)
                .expect("qp");
            (qp, send_cq, recv_cq, guest.full_mr(rnic, MR))
        };
        let a = end(&mut world.nodes[0], options);
        let Node { rnic, guest } = &mut world.nodes[1];
        let xrcdn = guest.xrcd(rnic);
        let target = QpOptions {
            qp_type: XrcTarget,
            xrcdn,
            ..*options
        };
        let b = end(&mut world.nodes[1], &target);
        let Node { rnic, guest } = &mut world.nodes[1];
        let srq = guest.try_xrc_srq(rnic, (4, options.sge.into()), xrcdn, b.2.cqn);
        for (node, qpn, peer, qp_type) in [
            (0, a.0.qpn, b.0.qpn, XrcInitiator),
            (1, b.0.qpn, a.0.qpn, XrcTarget),
        ] {
            let mut attributes = World::attributes(1 - node, peer);
            change(node, &mut attributes);
            world.bring_up(node, qpn, attributes, qp_type);
        }
        Ends {
            c: Connection {
                nodes: [0, 1],
                qps: [a.0, b.0],
                send_cqs: [a.1, b.1],
                recv_cqs: [a.2, b.2],
                mrs: [a.3, b.3],
            },
            srq: Some(srq.expect("srq")),
        }
    }

    /// Runs the case and returns what both ends see.
    fn perform(&self) -> Seen {
        let mut world = self.network.world(1);
        let options = QpOptions {
            qp_type: self.qp_type,
            entries: 4,
            ..QpOptions::default()
        };
        let attributes = |side, peer| {
            let mut attributes = self.network.attributes(side, peer);
            attributes.rnr_retry = 0;
            attributes.retry_count = 1;
            if side == 1 && self.remote == Remote::QueuePair {
                attributes.access = 0.into();
            }
            attributes
        };
        let change = |side, given: &mut QpAttributes| {
            *given = attributes(side, given.dest_qpn.get());
        };
        let mut ends = if self.shares() {
            Self::connect_xrc(&mut world, &options, change)
        } else {
            let c = world.connect([0, 1], &options, MR, change);
            Ends { c, srq: None }
        };
        let node = &mut world.nodes[1];
        let read_only = node.guest.mr(&mut node.rnic, MR, access::LOCAL_WRITE);
        let mut fast = node.guest.fast_mr(&mut node.rnic, 16);
        let c = &mut ends.c;
        c.mrs[0].arena.put(0, &[0x5a; 5000]);
        if self.is_reliable() && self.opcode == SendOpcode::SendWithInvalidate && self.invalidates {
            let register = fast.register(50, &c.mrs[1], access::LOCAL_WRITE, 0);
            c.send(&mut world, 1, &register.unsignaled());
            world.settle();
        }
        let key = if self.invalidates {
            fast.key
        } else {
            c.mrs[1].key
        };
        let [own, peer] = [0, 1].map(|side| attributes(side, c.qps[1 - side].qpn));
        // A reset on the way to this state would remove the receives.
        let receives_later = self.peer == QpState::ReadyToReceive;
        if !receives_later {
            self.post_receives(&mut world, &mut ends);
        }
        let kind = self.type_of(1);
        put(&mut world, 1, &mut ends.c, kind, self.peer, peer);
        if receives_later {
            self.post_receives(&mut world, &mut ends);
        }
        let request = self.request(&ends, &read_only, key);
        let next = self.next(&ends);
        let c = &mut ends.c;
        put(&mut world, 0, c, self.qp_type, self.own, own);
        c.send(&mut world, 0, &request);
        c.send(&mut world, 0, &next);
        if self.own != QpState::ReadyToSend {
            world.settle();
            assert!(c.send_cqs[0].poll().is_none(), "{self:?} is early");
            make_ready(&mut world, 0, c, self.qp_type, self.own, own);
        }
        world.settle();
        self.look(&mut world, c)
    }

    fn post_receives(&self, world: &mut World, Ends { c, srq }: &mut Ends) {
        let at = MR / 2;
        let valid = c.mrs[1].sge(at, 8192);
        let first = match self.receive {
            Receive::Absent => return,
            Receive::Valid | Receive::Entry => valid,
            Receive::Short => c.mrs[1].sge(at, 63),
            Receive::Key => Sge {
                lkey: (c.mrs[1].key ^ 0x10).into(),
                ..valid
            },
        };
        let mut receive = |wr_id, sge| match srq {
            Some(srq) => assert!(srq.post(wr_id, &[sge]), "the queue is full"),
            None => c.receive(world, 1, wr_id, &[sge]),
        };
        receive(0, first);
        receive(1, valid);
        if self.receive == Receive::Entry {
            let ring = srq.as_ref().map_or(&c.qps[1].rq, |srq| &srq.ring);
            let count = ring.layout.entry_offset(0) as usize + 8;
            ring.arena.put(count, &9u16.to_le_bytes());
        }
    }

    fn look(&self, world: &mut World, c: &mut Connection) -> Seen {
        let sent = c.send_cqs[0].drain();
        let of = |wr_id| {
            let mut found = sent.iter().filter(|done| done.wr_id == wr_id);
            let first = found.next().map(ended);
            assert!(found.next().is_none(), "{sent:?}");
            first
        };
        let (request, next) = (of(1), of(2).expect("completion of the next request"));
        assert!(sent.iter().is_sorted_by_key(|done| done.wr_id), "{sent:?}");
        let received = c.recv_cqs[1].drain();
        for (number, done) in received.iter().enumerate() {
            assert_eq!(done.wr_id, number as u64, "receives complete in order");
        }
        let events: Vec<_> = std::iter::from_fn(|| world.nodes[1].rnic.next_async_event())
            .map(|event| {
                let cause = Cause::from_code(event.vendor_error.get());
                let event = EventType::try_from(event.event_type.get());
                (event.expect("event type"), cause)
            })
            .collect();
        // A peer that does not send yet is told that the connection works. The device tells it once, with the first
        // request that it executes, and may do so with one that it refuses.
        let established = |event: &(EventType, _)| event.0 == EventType::CommunicationEstablished;
        let (told, events): (Vec<_>, Vec<_>) = events.into_iter().partition(established);
        let may_be_told = self.peer == QpState::ReadyToReceive && !is_datagram(self.qp_type);
        assert!(told.len() <= usize::from(may_be_told), "{told:?}");
        assert!(
            told.len() == 1 || !may_be_told || !self.expected().done,
            "no event"
        );
        assert!(events.len() <= 1, "{events:?}");
        assert!(world.nodes[0].rnic.next_async_event().is_none());
        let states = [0, 1].map(|side| world.state(side, c.qps[side].qpn));
        let seen = Seen {
            request,
            next,
            receives: received.iter().map(ended).collect(),
            event: events.first().copied(),
            states,
            done: self.is_done(c),
        };
        // Later requests are flushed if the queue has failed, whether or not they are signaled.
        if matches!(states[0], QpState::Error | QpState::SendQueueError) {
            let later = Send::new(3, SendOpcode::Send).unsignaled();
            c.send(world, 0, &later);
            world.settle();
            let flushed = c.send_cqs[0].drain();
            assert_eq!(flushed.len(), 1);
            assert_eq!((flushed[0].wr_id, ended(&flushed[0])), (3, FLUSHED));
        }
        seen
    }

    /// Returns whether the peer executed the request, as far as its memory shows, or if nothing can show it.
    fn is_done(&self, c: &Connection) -> bool {
        let region = &c.mrs[1].arena;
        let header = if is_datagram(self.qp_type) { 40 } else { 0 };
        let place = match self.opcode {
            SendOpcode::Send | SendOpcode::SendWithImmediate | SendOpcode::SendWithInvalidate => {
                MR / 2 + header
            }
            SendOpcode::Write | SendOpcode::WriteWithImmediate => 0,
            SendOpcode::CompareSwap | SendOpcode::FetchAdd | SendOpcode::AtomicWrite => {
                return region.get(0, 8) == 1u64.to_le_bytes();
            }
            _ => return self.expected().done,
        };
        region.get(place, self.length()) == vec![0x5a; self.length()]
    }
}

fn ended(done: &Completion) -> Ended {
    (done.status, done.cause)
}

/// Returns the Q_Key of queue pairs of this type.
fn qkey(qp_type: QpType) -> u32 {
    match qp_type {
        Gsi => GSI_QKEY,
        _ => QKEY,
    }
}

/// Changes only the state of a queue pair.
fn go(world: &mut World, node: usize, qpn: u32, state: QpState) {
    let attributes = QpAttributes {
        state: state.raw(),
        mask: attribute::STATE.into(),
        ..QpAttributes::default()
    };
    world.modify(node, qpn, attributes);
}

/// Moves the queue pair of a node, which is ready to send and has these attributes, to another state.
fn put(
    world: &mut World,
    node: usize,
    c: &mut Connection,
    qp_type: QpType,
    state: QpState,
    attributes: QpAttributes,
) {
    let qpn = c.qps[node].qpn;
    match state {
        QpState::ReadyToSend => {}
        QpState::Init | QpState::ReadyToReceive => {
            go(world, node, qpn, QpState::Reset);
            let way = [QpState::Init, QpState::ReadyToReceive];
            let steps = 1 + usize::from(state == QpState::ReadyToReceive);
            world.climb(node, qpn, attributes, qp_type, &way[..steps]);
        }
        QpState::SendQueueError => {
            // Unreliable services do not have this operation.
            c.send(world, node, &Send::new(9, SendOpcode::Read));
            world.settle();
            assert_eq!(c.send_cqs[node].drain().len(), 1);
        }
        _ => go(world, node, qpn, state),
    }
    assert_eq!(world.state(node, qpn), state);
}

/// Makes the queue pair of a node ready to send, which is in a state from which that is possible.
fn make_ready(
    world: &mut World,
    node: usize,
    c: &Connection,
    qp_type: QpType,
    from: QpState,
    attributes: QpAttributes,
) {
    let qpn = c.qps[node].qpn;
    let way = match from {
        QpState::Init => &[QpState::ReadyToReceive, QpState::ReadyToSend][..],
        QpState::ReadyToReceive => &[QpState::ReadyToSend],
        _ => return go(world, node, qpn, QpState::ReadyToSend),
    };
    world.climb(node, qpn, attributes, qp_type, way);
}

fn all_of(qp_type: QpType, network: Network) -> impl Iterator<Item = Case> {
    let bools = [false, true];
    let owns = [
        QpState::ReadyToSend,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::SendQueueDrain,
    ];
    let peers = [
        QpState::ReadyToSend,
        QpState::Reset,
        QpState::Init,
        QpState::ReadyToReceive,
        QpState::SendQueueDrain,
        QpState::SendQueueError,
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
        Remote::AlignmentAndKey,
        Remote::Qkey,
    ];
    let receives = [
        Receive::Valid,
        Receive::Absent,
        Receive::Short,
        Receive::Key,
        Receive::Entry,
    ];
    let product = move |number: usize| {
        let mut rest = number;
        let mut next = |count: usize| {
            let index = rest % count;
            rest /= count;
            index
        };
        Case {
            network,
            qp_type,
            opcode: OPCODES[next(OPCODES.len())],
            long: bools[next(2)],
            signaled: bools[next(2)],
            invalidates: bools[next(2)],
            local: locals[next(locals.len())],
            remote: remotes[next(remotes.len())],
            receive: receives[next(receives.len())],
            own: owns[next(owns.len())],
            peer: peers[next(peers.len())],
        }
    };
    let memory = locals.len() * remotes.len() * receives.len();
    let count = OPCODES.len() * 8 * memory * owns.len() * peers.len();
    (0..count).map(product).filter(Case::makes_sense)
}

/// Tries every case for a type of queue pair. There must be at least this many.
pub fn check(qp_type: QpType, network: Network, at_least: usize) {
    let mut count = 0;
    let mut wrong = Vec::new();
    for case in all_of(qp_type, network) {
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

/// Returns how a request that is posted in this state ends: at once, and when the queue pair is ready to send (IBTA
/// volume 1, 10.3.1 and 11.4.1). Returns [`None`] if nothing may be posted, or if the state does not exist.
fn posted_in(qp_type: QpType, state: QpState) -> Option<(Option<Ended>, Ended)> {
    match state {
        QpState::Reset => None,
        QpState::Init | QpState::ReadyToReceive | QpState::SendQueueDrain => Some((None, SUCCESS)),
        QpState::ReadyToSend => Some((Some(SUCCESS), SUCCESS)),
        QpState::SendQueueError if qp_type == ReliableConnection => None,
        QpState::SendQueueError | QpState::Error => Some((Some(FLUSHED), FLUSHED)),
    }
}

/// Builds a message of 64 bytes from one end to the other.
fn message(network: &Network, c: &Connection, from: usize, qp_type: QpType) -> Send {
    let send = Send::new(1, SendOpcode::Send).element(c.mrs[from].sge(0, 64));
    if is_datagram(qp_type) {
        let address = network.address(1 - from);
        send.datagram(address, c.qps[1 - from].qpn, qkey(qp_type))
    } else {
        send
    }
}

/// Types of queue pairs that both send and receive.
pub const BOTH_HALVES: [QpType; 4] = [
    ReliableConnection,
    UnreliableConnection,
    UnreliableDatagram,
    Gsi,
];

/// Tries posting and receiving in every state.
pub fn check_states(qp_type: QpType, network: Network) {
    for &state in QpState::ALL {
        let Some((at_once, at_last)) = posted_in(qp_type, state) else {
            continue;
        };
        for arrives in [false, true] {
            let what = format!("{qp_type:?} in {state:?}");
            let mut world = network.world(1);
            let options = QpOptions {
                qp_type,
                ..QpOptions::default()
            };
            let mut c = world.connect([0, 1], &options, MR, |side, given| {
                *given = network.attributes(side, given.dest_qpn.get());
            });
            let attributes = network.attributes(0, c.qps[1].qpn);
            put(&mut world, 0, &mut c, qp_type, state, attributes);
            for side in 0..2 {
                let element = c.mrs[side].sge(MR / 2, 256);
                c.receive(&mut world, side, 7, &[element]);
            }
            if arrives {
                let message = message(&network, &c, 1, qp_type);
                c.send(&mut world, 1, &message);
                world.settle();
                let received = c.recv_cqs[0].poll().as_ref().map(ended);
                let expected = match state {
                    QpState::Error => Some(FLUSHED),
                    _ => receives(state).then_some(SUCCESS),
                };
                assert_eq!(received, expected, "{what}");
                let sent = match qp_type {
                    ReliableConnection if !receives(state) => {
                        (Status::RetryExceeded, Some(Cause::Retries))
                    }
                    _ => SUCCESS,
                };
                let told = c.send_cqs[1].poll().as_ref().map(ended);
                assert_eq!(told, Some(sent), "{what}");
                continue;
            }
            let message = message(&network, &c, 0, qp_type);
            c.send(&mut world, 0, &message);
            world.settle();
            let told = c.send_cqs[0].poll().as_ref().map(ended);
            assert_eq!(told, at_once, "{what}");
            if at_once.is_none() {
                assert!(c.recv_cqs[1].poll().is_none(), "{what}");
                make_ready(&mut world, 0, &c, qp_type, state, attributes);
                world.settle();
                let told = c.send_cqs[0].poll().as_ref().map(ended);
                assert_eq!(told, Some(at_last), "{what}");
            }
            let done = at_last == SUCCESS;
            assert_eq!(c.recv_cqs[1].poll().is_some(), done, "{what}");
        }
    }
}

/// The flags of a request do not affect its errors.
pub fn check_flags(network: Network) {
    for flags in [send_flags::SOLICITED, send_flags::FENCE] {
        let mut world = network.world(3);
        let mut c = world.connect([0, 1], &QpOptions::default(), MR, |side, given| {
            *given = network.attributes(side, given.dest_qpn.get());
        });
        let write = Send::new(1, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key ^ 0x10)
            .element(c.mrs[0].sge(0, 64))
            .flags(flags | send_flags::SIGNALED);
        c.send(&mut world, 0, &write);
        world.settle();
        assert_eq!(c.send_cqs[0].drain()[0].status, Status::RemoteAccess);
    }
}
