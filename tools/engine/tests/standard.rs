// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks the device against `Documentation/virtio-rdma.rst`.
//!
//! The table of state transitions is read from the document. For every type of queue pair, the tests try every pair of
//! states with all required attributes, without each of them, and with each other attribute added. They also try each
//! command error that the document names.

use vrnic_engine::{
    Cause, Features, Limits, RnicConfig,
    testing::{Cq, Node, Qp, QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        AllocateMw, AttachMulticast, ClearGid, Command, ContextKind, CreateContext, CreateCq,
        CreatePd, CreateQp, CreateSrq, DeregisterMr, DestroyContext, DestroyCq, DestroyPd,
        DestroyQp, DestroySrq, DetachMulticast, ModifyCq, ModifyQp, ModifySrq, MwType, NameContext,
        QueryClock, QueryCounters, QueryDevice, QueryPort, QueryQp, QuerySrq, RegisterMr, ResizeCq,
        ResizeSrq, RingDoorbell, SetGid, SetMtu, SetPortState, Status, cq_flags, mr_flags,
    },
    memory::{PageList, access},
    notify,
    qp::{
        QpAttributes,
        QpState::{self, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain},
        QpType::{self, Gsi, ReliableConnection, UnreliableDatagram},
        attribute,
    },
    ring::RingLayout,
    work::SendOpcode,
};

const STANDARD: &str = include_str!("../../../Documentation/virtio-rdma.rst");

const TYPES: &[QpType] = &[
    Gsi,
    ReliableConnection,
    QpType::UnreliableConnection,
    UnreliableDatagram,
    QpType::XrcInitiator,
    QpType::XrcTarget,
    QpType::RawPacket,
];

/// Attributes that a transition requires and those that it also allows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Rule {
    required: u32,
    optional: u32,
}

/// The rows of the table.
struct Table {
    rows: Vec<[String; 3]>,
}

impl Table {
    fn read() -> Self {
        let (_, text) = STANDARD
            .split_once(".. list-table:: Transitions\n")
            .expect("table");
        let mut rows: Vec<Vec<String>> = Vec::new();
        for line in text.lines() {
            if let Some(cell) = line.strip_prefix("   * - ") {
                rows.push(vec![cell.into()]);
            } else if let Some(cell) = line.strip_prefix("     - ") {
                rows.last_mut().expect("row").push(cell.into());
            } else if let Some(more) = line.strip_prefix("       ") {
                let cell = rows.last_mut().and_then(|row| row.last_mut());
                let cell = cell.expect("cell");
                cell.push(' ');
                cell.push_str(more);
            } else if !line.is_empty() && !line.starts_with("   :") {
                break;
            }
        }
        let rows = rows.into_iter().skip(1);
        Self {
            rows: rows
                .map(|row| row.try_into().expect("three columns"))
                .collect(),
        }
    }

    /// Returns the rule of a transition.
    fn rule(&self, qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
        let [_, required, optional] = self.rows.iter().find(|[name, ..]| {
            let (row_from, row_to) = name.split_once(", ").expect("two states");
            row_to == state_name(to) && (row_from == "any" || row_from == state_name(from))
        })?;
        let not_for = |name: &&str| optional.contains(&format!("Not for {name}."));
        if type_names(qp_type).iter().any(not_for) {
            return None;
        }
        Some(Rule {
            required: attributes(required, qp_type),
            optional: attributes(optional, qp_type),
        })
    }
}

fn state_name(state: QpState) -> &'static str {
    match state {
        Reset => "RESET",
        Init => "INIT",
        ReadyToReceive => "RTR",
        ReadyToSend => "RTS",
        SendQueueDrain => "SQD",
        QpState::SendQueueError => "SQE",
        Error => "ERROR",
    }
}

/// Returns the names that stand for a type, alone or with others.
fn type_names(qp_type: QpType) -> &'static [&'static str] {
    match qp_type {
        ReliableConnection => &["RC"],
        QpType::UnreliableConnection => &["UC"],
        UnreliableDatagram => &["UD"],
        Gsi | QpType::Smi => &["GSI"],
        QpType::XrcInitiator => &["INI", "XRC"],
        QpType::XrcTarget => &["TGT", "XRC"],
        QpType::RawPacket => &["RAW"],
        // The text below the table is about them.
        QpType::ReceiveQueue | QpType::ReceiveScaling => &[],
    }
}

/// Returns the attributes that a cell names for a type. A cell has sentences of the form `TYPES: NAMES.` or `NAMES`.
fn attributes(cell: &str, qp_type: QpType) -> u32 {
    let is_named = |name| type_names(qp_type).contains(&name);
    let mut mask = 0;
    for sentence in cell.split('.').map(str::trim) {
        let names = match sentence.split_once(": ") {
            Some((types, names)) if types.split(", ").any(is_named) => names,
            Some(_) => continue,
            None if sentence.starts_with("Not for") => continue,
            None => sentence,
        };
        for name in names
            .split(", ")
            .filter(|&name| name != "none" && !name.is_empty())
        {
            mask |= attribute_bit(name);
        }
    }
    mask
}

fn attribute_bit(name: &str) -> u32 {
    match name {
        "CUR" => attribute::CURRENT_STATE,
        "EN_SQD_ASYNC_NOTIFY" => attribute::EN_SQD_ASYNC_NOTIFY,
        "ACCESS" => attribute::ACCESS_FLAGS,
        "PKEY_INDEX" => attribute::PKEY_INDEX,
        "PORT" => attribute::PORT,
        "QKEY" => attribute::QKEY,
        "ADDRESS_VECTOR" => attribute::ADDRESS_VECTOR,
        "PATH_MTU" => attribute::PATH_MTU,
        "TIMEOUT" => attribute::TIMEOUT,
        "RETRY_COUNT" => attribute::RETRY_COUNT,
        "RNR_RETRY" => attribute::RNR_RETRY,
        "RQ_PSN" => attribute::RQ_PSN,
        "MAX_RD_ATOMIC" => attribute::MAX_RD_ATOMIC,
        "MIN_RNR_TIMER" => attribute::MIN_RNR_TIMER,
        "SQ_PSN" => attribute::SQ_PSN,
        "MAX_DEST_RD_ATOMIC" => attribute::MAX_DEST_RD_ATOMIC,
        "DEST_QPN" => attribute::DEST_QPN,
        "ALT" => attribute::ALTERNATE_PATH,
        "MIG" => attribute::PATH_MIGRATION_STATE,
        _ => panic!("the table names {name}"),
    }
}

/// A device, a table that shows how to reach a state, and a completion queue.
struct Bench {
    world: World,
    table: Table,
    cq: Cq,
    xrcdn: u32,
}

impl Bench {
    fn new() -> Self {
        let mut world = World::pair(1);
        let node = &mut world.nodes[0];
        let cq = node.guest.cq(&mut node.rnic, 4096, 0);
        let xrcdn = node.guest.xrcd(&mut node.rnic);
        Self {
            world,
            table: Table::read(),
            cq,
            xrcdn,
        }
    }

    fn modify(&mut self, qp: &Qp, to: QpState, mask: u32, current: QpState) -> Result<(), Status> {
        let request = ModifyQp {
            qpn: qp.qpn.into(),
            reserved: 0.into(),
            attributes: QpAttributes {
                mask: mask.into(),
                state: to.raw(),
                current_state: current.raw(),
                sqd_async_notify: 1,
                qkey: 7.into(),
                access: access::QUEUE_PAIR.into(),
                ..World::attributes(1, 5)
            },
        };
        let node = &mut self.world.nodes[0];
        match node.guest.command(&mut node.rnic, request) {
            Ok(_) => Ok(()),
            Err((status, _)) => Err(status),
        }
    }

    /// Creates a queue pair and moves it to this state. Returns `None` if its type cannot have the state.
    fn qp_in(&mut self, qp_type: QpType, state: QpState) -> Option<Qp> {
        let node = &mut self.world.nodes[0];
        let options = QpOptions {
            qp_type,
            entries: 2,
            sge: 1,
            inline: 0,
            xrcdn: match qp_type {
                QpType::XrcTarget => self.xrcdn,
                _ => 0,
            },
            ..QpOptions::default()
        };
        let cqn = self.cq.cqn;
        let mut qp = node
            .guest
            .try_qp(&mut node.rnic, &options, cqn, cqn)
            .expect("qp");
        let path: &[QpState] = match state {
            Reset => &[],
            Init => &[Init],
            ReadyToReceive => &[Init, ReadyToReceive],
            ReadyToSend | QpState::SendQueueError => &[Init, ReadyToReceive, ReadyToSend],
            SendQueueDrain => &[Init, ReadyToReceive, ReadyToSend, SendQueueDrain],
            Error => &[Error],
        };
        let mut from = Reset;
        for &to in path {
            let rule = self.table.rule(qp_type, from, to).expect("rule");
            let mask = rule.required | attribute::STATE;
            assert_eq!(
                self.modify(&qp, to, mask, from),
                Ok(()),
                "{qp_type:?} {to:?}"
            );
            from = to;
        }
        if state == QpState::SendQueueError {
            let resumed = self.table.rule(qp_type, state, ReadyToSend);
            if resumed.is_none() {
                self.destroy(qp);
                return None;
            }
            // Unreliable services do not have this operation.
            let node = &mut self.world.nodes[0];
            let send = Send::new(1, SendOpcode::Read);
            assert!(node.guest.post_send(&mut node.rnic, &mut qp, &send));
            self.world.settle();
            self.cq.drain();
        }
        assert_eq!(self.world.state(0, qp.qpn), state);
        Some(qp)
    }

    fn destroy(&mut self, qp: Qp) {
        let node = &mut self.world.nodes[0];
        let request = DestroyQp {
            qpn: qp.qpn.into(),
            reserved: 0.into(),
        };
        node.guest
            .command(&mut node.rnic, request)
            .expect("destroy");
        // Both rings are in this arena.
        node.guest.free(qp.sq.arena);
    }

    /// Returns the result of a transition with `mask`.
    fn attempt(
        &mut self,
        qp_type: QpType,
        from: QpState,
        to: QpState,
        mask: u32,
    ) -> Result<(), Status> {
        let qp = self.qp_in(qp_type, from).expect("state can be reached");
        let result = self.modify(&qp, to, mask | attribute::STATE, from);
        let expected = if result.is_ok() { to } else { from };
        assert_eq!(self.world.state(0, qp.qpn), expected, "{from:?} {to:?}");
        self.destroy(qp);
        result
    }
}

/// The values of `vendor_error` are documented and never change.
#[test]
fn every_cause_is_in_the_manual() {
    let manual = include_str!("../../../Documentation/vendor-errors.rst");
    let (_, table) = manual.split_once("     - meaning\n").expect("table");
    let mut causes = Cause::ALL.to_vec();
    causes.sort_by_key(|cause| cause.code());
    let rows = causes
        .iter()
        .map(|cause| format!("   * - {}\n     - {}\n", cause.code(), cause.text()));
    assert_eq!(table, rows.collect::<String>());
}

#[test]
fn the_table_is_read() {
    let table = Table::read();
    assert_eq!(table.rows.len(), 11);
    let init = table.rule(ReliableConnection, Reset, Init).expect("rule");
    let wanted = attribute::PKEY_INDEX | attribute::PORT | attribute::ACCESS_FLAGS;
    assert_eq!((init.required, init.optional), (wanted, 0));
    let resume = |qp_type| table.rule(qp_type, QpState::SendQueueError, ReadyToSend);
    assert_eq!(resume(ReliableConnection), None);
    assert_eq!(
        resume(UnreliableDatagram),
        Some(Rule {
            required: 0,
            optional: attribute::CURRENT_STATE | attribute::QKEY,
        })
    );
    assert_eq!(table.rule(Gsi, Init, ReadyToSend), None);
    assert!(table.rule(Gsi, SendQueueDrain, Error).is_some());
}

/// Returns whether RATE_LIMIT goes with transitions to `to`, which the standard says of all of them together.
fn may_be_limited(qp_type: QpType, to: QpState) -> bool {
    let sends = matches!(
        qp_type,
        ReliableConnection
            | UnreliableDatagram
            | QpType::UnreliableConnection
            | QpType::XrcInitiator
            | QpType::RawPacket
    );
    sends && !matches!(to, Reset | Error)
}

#[test]
fn every_transition_is_as_the_standard_says() {
    let mut bench = Bench::new();
    for &qp_type in TYPES {
        for &from in QpState::ALL {
            match bench.qp_in(qp_type, from) {
                Some(qp) => bench.destroy(qp),
                None => continue,
            }
            for &to in QpState::ALL {
                let what = format!("{qp_type:?}, {from:?} to {to:?}");
                let Some(rule) = bench.table.rule(qp_type, from, to) else {
                    let refused = bench.attempt(qp_type, from, to, 0);
                    assert_eq!(refused, Err(Status::BadState), "{what}");
                    continue;
                };
                let done = bench.attempt(qp_type, from, to, rule.required);
                assert_eq!(done, Ok(()), "{what}");
                for bit in (0..32).map(|bit| 1 << bit) {
                    let (mask, expected) = if bit == attribute::STATE {
                        continue;
                    } else if rule.required & bit != 0 {
                        (rule.required & !bit, Err(Status::InvalidArgument))
                    } else if rule.optional & bit != 0 && bit != attribute::ALTERNATE_PATH
                        || bit == attribute::RATE_LIMIT && may_be_limited(qp_type, to)
                    {
                        (rule.required | bit, Ok(()))
                    } else {
                        (rule.required | bit, Err(Status::InvalidArgument))
                    };
                    // MODIFY_QP has no room for an alternate path.
                    let result = bench.attempt(qp_type, from, to, mask);
                    assert_eq!(result, expected, "{what}, attribute {bit:#x}");
                }
            }
        }
    }
}

#[test]
fn a_wrong_current_state_is_refused() {
    let mut bench = Bench::new();
    let qp = bench.qp_in(UnreliableDatagram, ReadyToSend).expect("state");
    let mask = attribute::STATE | attribute::CURRENT_STATE;
    let refused = bench.modify(&qp, ReadyToSend, mask, QpState::SendQueueError);
    assert_eq!(refused, Err(Status::BadState));
    assert_eq!(bench.modify(&qp, ReadyToSend, mask, ReadyToSend), Ok(()));
}

/// A device with one object of each kind, and valid requests for more.
struct Commands {
    world: World,
    cq: Cq,
    context: CreateContext,
    mr: RegisterMr,
    new_cq: CreateCq,
    qp: CreateQp,
}

impl Commands {
    fn new(config: &RnicConfig) -> Self {
        let mut world = World::new(1, 256, config, 3);
        let Node { rnic, guest } = &mut world.nodes[0];
        let cq = guest.cq(rnic, 16, 0);
        let memory = guest.arena(3 * 4096);
        let mut list = |length| guest.page_list(&memory, 0, length).0;
        let ring = |header: u32, entries: u32, stride: u32| RingLayout {
            header_offset: header.into(),
            entries_offset: (header + 1024).into(),
            entries: entries.into(),
            stride: stride.into(),
        };
        let context = CreateContext {
            kind: ContextKind::User.raw(),
            slots: 64.into(),
            area: list(notify::area_length(64)),
            ..Default::default()
        };
        let mr = RegisterMr {
            access: (access::REGION & !access::ZERO_BASED).into(),
            iova: 0x1000.into(),
            pages: list(8192),
            ..Default::default()
        };
        let new_cq = CreateCq {
            ring: ring(0, 16, 64),
            pages: list(4096),
            ..Default::default()
        };
        let mut qp = CreateQp {
            qp_type: ReliableConnection.raw(),
            max_send_sge: 4.into(),
            max_recv_sge: 4.into(),
            max_inline: 64.into(),
            send_cqn: cq.cqn.into(),
            recv_cqn: cq.cqn.into(),
            send_ring: ring(0, 16, 128),
            recv_ring: ring(4096, 16, 128),
            pages: list(3 * 4096),
            ..Default::default()
        };
        let (owner, pd) = (guest.context, guest.pd);
        qp.context = owner.into();
        qp.pd = pd.into();
        Self {
            world,
            cq,
            context,
            mr: RegisterMr {
                pd: pd.into(),
                ..mr
            },
            new_cq: CreateCq {
                context: owner.into(),
                ..new_cq
            },
            qp,
        }
    }

    fn run<C: Command>(&mut self, request: C) -> Result<C::Reply, Status> {
        let Node { rnic, guest } = &mut self.world.nodes[0];
        guest.command(rnic, request).map_err(|(status, _)| status)
    }

    /// Returns the numbers of objects and of the host ranges of their page lists.
    fn objects(&self) -> [usize; 7] {
        let all = self.world.nodes[0].rnic.snapshot();
        let counts = [all.contexts, all.pds, all.cqs, all.qps, all.srqs];
        let [contexts, pds, cqs, qps, srqs] = counts.map(|count| count as usize);
        [contexts, pds, cqs, qps, srqs, all.mrs, all.translations]
    }

    /// Checks that the device refuses a command with this status, and that nothing has changed.
    fn refuses<C: Command>(&mut self, request: C, status: Status, why: &str) {
        let before = self.objects();
        assert_eq!(self.run(request).err(), Some(status), "{why}");
        assert_eq!(before, self.objects(), "{why}");
    }
}

impl Commands {
    /// Builds a request for a shared receive queue.
    fn new_srq(&self) -> CreateSrq {
        CreateSrq {
            context: self.qp.context,
            pd: self.qp.pd,
            max_sge: 4.into(),
            ring: self.qp.recv_ring,
            pages: self.qp.pages,
            ..Default::default()
        }
    }
}

/// Tries wrong commands about shared receive queues. Returns a queue that is used by a queue pair.
fn refused_srqs(c: &mut Commands) -> u32 {
    let good = c.new_srq();
    let changes: [Fault<CreateSrq>; 9] = [
        (|r| r.context = 0xdead.into(), Status::NotFound),
        (|r| r.pd = 0xdead.into(), Status::NotFound),
        (|r| r.max_sge = 33.into(), Status::InvalidArgument),
        (|r| r.max_sge = 8.into(), Status::InvalidArgument),
        (|r| r.limit = 17.into(), Status::InvalidArgument),
        (|r| r.ring = RingLayout::default(), Status::InvalidArgument),
        (|r| r.ring.entries = 1024.into(), Status::InvalidArgument),
        (|r| r.pages.offset = 64.into(), Status::BadAddress),
        (|r| r.pages.page_count = 2.into(), Status::BadAddress),
    ];
    for (index, (change, status)) in changes.into_iter().enumerate() {
        let why = format!("shared receive queue {index}");
        c.refuses(with(good, change), status, &why);
    }
    let srqn = c.run(good).expect("shared receive queue").srqn;
    let modify = |srqn, limit: u32| ModifySrq {
        srqn,
        limit: limit.into(),
    };
    c.refuses(modify(0xdead.into(), 0), Status::NotFound, "modify");
    c.refuses(modify(srqn, 17), Status::InvalidArgument, "limit");
    assert!(c.run(modify(srqn, 16)).is_ok());
    let query = |srqn| QuerySrq {
        srqn,
        ..Default::default()
    };
    c.refuses(query(0xdead.into()), Status::NotFound, "query");
    c.refuses(
        with(query(srqn), |r| r.reserved = 1.into()),
        Status::Malformed,
        "query",
    );
    let resize = ResizeSrq {
        srqn,
        ring: good.ring,
        pages: good.pages,
        ..Default::default()
    };
    let changes: [Fault<ResizeSrq>; 4] = [
        (|r| r.srqn = 0xdead.into(), Status::NotFound),
        (|r| r.reserved = 1.into(), Status::Malformed),
        (|r| r.ring.stride = 64.into(), Status::InvalidArgument),
        (|r| r.ring = RingLayout::default(), Status::InvalidArgument),
    ];
    for (index, (change, status)) in changes.into_iter().enumerate() {
        c.refuses(with(resize, change), status, &format!("resize {index}"));
    }
    let user = with(c.qp, |r| {
        (r.flags, r.recv_ring, r.srqn) = (2, RingLayout::default(), srqn);
    });
    let qpn = c.run(user).expect("queue pair").qpn;
    let destroy = |srqn| DestroySrq {
        srqn,
        ..Default::default()
    };
    c.refuses(destroy(0xdead.into()), Status::NotFound, "destroy");
    c.refuses(destroy(srqn), Status::Busy, "a queue pair uses it");
    let destroy_qp = DestroyQp {
        qpn,
        ..Default::default()
    };
    assert!(c.run(destroy_qp).is_ok());
    assert!(c.run(destroy(srqn)).is_ok());
    let pd = DestroyPd {
        pd: good.pd,
        ..Default::default()
    };
    let srqn = c.run(good).expect("another").srqn.get();
    c.refuses(pd, Status::Busy, "a shared receive queue belongs to it");
    srqn
}

/// Tries wrong commands that change the completion queue `cqn`.
fn refused_cq_changes(c: &mut Commands, cqn: u32) {
    let resize = ResizeCq {
        cqn: cqn.into(),
        ring: c.new_cq.ring,
        pages: c.new_cq.pages,
        ..Default::default()
    };
    let changes: [Fault<ResizeCq>; 8] = [
        (|r| r.cqn = 0xdead.into(), Status::NotFound),
        (|r| r.reserved = 1.into(), Status::Malformed),
        (|r| r.ring = RingLayout::default(), Status::InvalidArgument),
        (|r| r.ring.stride = 128.into(), Status::InvalidArgument),
        (|r| r.ring.entries = 3.into(), Status::InvalidArgument),
        (|r| r.ring.entries = 1024.into(), Status::InvalidArgument),
        (|r| r.pages.offset = 64.into(), Status::BadAddress),
        (|r| r.pages.page_count = 0.into(), Status::BadAddress),
    ];
    for (index, (change, status)) in changes.into_iter().enumerate() {
        c.refuses(with(resize, change), status, &format!("resize {index}"));
    }
    let modify = ModifyCq {
        cqn: 0xdead.into(),
        ..Default::default()
    };
    c.refuses(modify, Status::NotFound, "modify");
}

#[test]
fn without_the_feature_completion_queues_do_not_change() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            completion_queue_changes: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    commands.refuses(ResizeCq::default(), Status::Unsupported, "resize");
    commands.refuses(ModifyCq::default(), Status::Unsupported, "modify");
}

#[test]
fn without_the_feature_there_are_no_shared_receive_queues() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            shared_receive_queues: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    let c = &mut commands;
    assert_eq!(c.run(QueryDevice {}).unwrap().max_srq.get(), 0);
    let create = c.new_srq();
    c.refuses(create, Status::Unsupported, "create");
    c.refuses(ModifySrq::default(), Status::Unsupported, "modify");
    c.refuses(ResizeSrq::default(), Status::Unsupported, "resize");
    c.refuses(QuerySrq::default(), Status::Unsupported, "query");
    c.refuses(DestroySrq::default(), Status::Unsupported, "destroy");
    let flag = with(c.qp, |r| r.flags = 2);
    c.refuses(flag, Status::InvalidArgument, "unknown flag");
}

#[test]
fn without_the_feature_there_are_no_unreliable_connections() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            unreliable_connections: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    let c = &mut commands;
    let create = with(c.qp, |r| r.qp_type = QpType::UnreliableConnection.raw());
    c.refuses(create, Status::Unsupported, "UC");
    c.run(c.qp).unwrap();
}

#[test]
fn without_the_feature_the_port_has_no_state_to_set() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            port_state: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    let set = SetPortState {
        port: 1.into(),
        state: 1,
        ..Default::default()
    };
    commands.refuses(set, Status::Unsupported, "set");
}

#[test]
fn without_the_feature_no_overrun_is_ignored() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            ignored_overrun: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    let create = with(commands.new_cq, |r| {
        r.flags = cq_flags::IGNORE_OVERRUN.into();
    });
    commands.refuses(create, Status::InvalidArgument, "unknown flag");
}

#[test]
fn without_the_feature_the_clock_is_not_told() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            clock: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    commands.refuses(QueryClock {}, Status::Unsupported, "query");
}

#[test]
fn without_the_feature_contexts_have_no_names() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            context_names: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    commands.refuses(NameContext::default(), Status::Unsupported, "name");
    let mut commands = Commands::new(&RnicConfig::default());
    let known = NameContext {
        context: commands.qp.context,
        ..Default::default()
    };
    assert!(commands.run(known).is_ok());
    let unknown = NameContext {
        context: u32::MAX.into(),
        ..Default::default()
    };
    commands.refuses(unknown, Status::NotFound, "name");
}

#[test]
fn without_the_feature_there_is_no_multicast() {
    let mut commands = Commands::new(&RnicConfig {
        features: Features {
            multicast: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    });
    let c = &mut commands;
    let limits = c.run(QueryDevice {}).unwrap();
    assert_eq!(limits.max_multicast_groups.get(), 0);
    assert_eq!(limits.max_multicast_members.get(), 0);
    assert_eq!(limits.max_multicast_attachments.get(), 0);
    c.refuses(AttachMulticast::default(), Status::Unsupported, "attach");
    c.refuses(DetachMulticast::default(), Status::Unsupported, "detach");
}

#[test]
fn each_fault_of_a_command_about_multicast_has_its_status() {
    let mut commands = Commands::new(&RnicConfig::default());
    let c = &mut commands;
    let group = [0xff; 16];
    let of_type = |c: &mut Commands, qp_type: QpType| {
        let request = with(c.qp, |r| r.qp_type = qp_type.raw());
        c.run(request).expect("queue pair").qpn
    };
    let qpn = of_type(c, UnreliableDatagram);
    let attach = AttachMulticast {
        qpn,
        gid: group,
        ..Default::default()
    };
    let detach = DetachMulticast {
        qpn,
        gid: group,
        ..Default::default()
    };
    c.refuses(detach, Status::NotFound, "not attached");
    let bad = with(attach, |r| r.reserved = 1.into());
    c.refuses(bad, Status::Malformed, "reserved");
    let bad = with(attach, |r| r.qpn = 0xdead.into());
    c.refuses(bad, Status::NotFound, "queue pair");
    for gid in [[0; 16], [0xfe; 16]] {
        let bad = with(attach, |r| r.gid = gid);
        c.refuses(bad, Status::InvalidArgument, "GID");
    }
    for other in [ReliableConnection, QpType::UnreliableConnection, Gsi] {
        let other = of_type(c, other);
        let bad = with(attach, |r| r.qpn = other);
        c.refuses(bad, Status::InvalidArgument, "type");
    }
    assert!(c.run(attach).is_ok());
    c.refuses(attach, Status::Busy, "attached already");
    let bad = with(detach, |r| r.reserved = 1.into());
    c.refuses(bad, Status::Malformed, "reserved");
    let bad = with(detach, |r| r.qpn = 0xdead.into());
    c.refuses(bad, Status::NotFound, "queue pair");
    let bad = with(detach, |r| r.gid[15] = 0);
    c.refuses(bad, Status::NotFound, "another group");
    assert!(c.run(detach).is_ok());
    assert!(c.run(attach).is_ok());
    let destroy = DestroyQp {
        qpn,
        ..Default::default()
    };
    assert!(c.run(destroy).is_ok());
    assert_eq!(c.world.nodes[0].rnic.snapshot().attachments, 0);
}

/// A change that makes a request wrong, and the resulting status.
type Fault<T> = (fn(&mut T), Status);

/// Changes a copy of a request.
fn with<C: Copy>(request: C, change: impl FnOnce(&mut C)) -> C {
    let mut changed = request;
    change(&mut changed);
    changed
}

#[test]
fn headers_are_checked_as_the_standard_says() {
    let mut commands = Commands::new(&RnicConfig::default());
    let Node { rnic, guest } = &mut commands.world.nodes[0];
    let mut status = |bytes: &[u8]| {
        let reply = guest.raw_command(rnic, bytes);
        assert_eq!(reply.len(), 16, "no reply follows a refusal");
        Status::try_from(u32::from_le_bytes(reply[..4].try_into().unwrap())).unwrap()
    };
    assert_eq!(status(&[]), Status::Malformed);
    assert_eq!(status(&[0x20, 0, 0, 0, 8, 0, 0]), Status::Malformed);
    assert_eq!(status(&[0xff, 0xff, 0, 0, 0, 0, 0, 0]), Status::Unsupported);
    let pd = |header: [u8; 8], body: &[u8]| [&header, body].concat();
    let request = [1, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        status(&pd([0x20, 0, 1, 0, 8, 0, 0, 0], &request)),
        Status::Malformed
    );
    assert_eq!(
        status(&pd([0x20, 0, 0, 0, 7, 0, 0, 0], &request)),
        Status::Malformed
    );
    assert_eq!(
        status(&pd([0x20, 0, 0, 0, 8, 0, 0, 0], &request[..7])),
        Status::Malformed
    );
    assert_eq!(
        status(&pd([0x20, 0, 0, 0, 9, 0, 0, 0], &[0; 9])),
        Status::Malformed
    );
    let reserved = [1, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(
        status(&pd([0x20, 0, 0, 0, 8, 0, 0, 0], &reserved)),
        Status::Malformed
    );
}

#[test]
fn each_fault_of_a_command_has_its_status() {
    use Status::{BadAddress, Busy, InvalidArgument, Malformed, NotFound, NotPermitted};
    let mut commands = Commands::new(&RnicConfig::default());
    let Commands {
        context,
        mr,
        new_cq,
        qp,
        ..
    } = commands;
    let Node { guest, .. } = &commands.world.nodes[0];
    let (owner, pd) = (guest.context, guest.pd);
    let cqn = commands.cq.cqn;
    let limits = commands.run(QueryDevice {}).unwrap();
    let c = &mut commands;

    let port = |port: u32| QueryPort {
        port: port.into(),
        ..Default::default()
    };
    c.refuses(port(0), NotFound, "port 0");
    c.refuses(port(2), NotFound, "port 2");
    let counters = QueryCounters {
        port: 2.into(),
        ..Default::default()
    };
    c.refuses(counters, NotFound, "port 2");

    let mtu = |port: u32, mtu: u8| SetMtu {
        port: port.into(),
        mtu,
        ..Default::default()
    };
    c.refuses(mtu(2, 1), NotFound, "port 2");
    for unknown in [0, 6, 255] {
        c.refuses(mtu(1, unknown), InvalidArgument, "MTU");
    }
    for known in 1..=5 {
        c.run(mtu(1, known)).expect("an MTU of the port");
        let found = c.run(port(1)).unwrap();
        assert_eq!((found.active_mtu, found.max_mtu), (known, 5));
    }

    let state = |port: u32, state: u8| SetPortState {
        port: port.into(),
        state,
        ..Default::default()
    };
    c.refuses(state(2, 1), NotFound, "port 2");
    for unknown in [0, 2, 3, 5, 255] {
        c.refuses(state(1, unknown), InvalidArgument, "state");
    }
    let bad = with(state(1, 1), |r| r.reserved[2] = 1);
    c.refuses(bad, Malformed, "reserved");
    for known in [1, 4] {
        c.run(state(1, known)).expect("a state");
        let found = c.run(port(1)).unwrap();
        assert_eq!((found.state, found.administrative_state), (known, known));
    }

    let gids = limits.gid_table_length;
    let clear = |index: u32| ClearGid {
        index: index.into(),
        ..Default::default()
    };
    assert!(
        c.run(clear(gids.get() - 1)).is_ok(),
        "an empty entry can be emptied"
    );
    c.refuses(clear(gids.get()), InvalidArgument, "beyond the table");
    let gid = SetGid::default();
    let beyond = with(gid, |gid| gid.index = gids);
    c.refuses(beyond, InvalidArgument, "beyond the table");
    let unknown = with(gid, |gid| gid.entry.gid_type = 2);
    c.refuses(unknown, InvalidArgument, "GID type");

    let bad = with(context, |r| r.kind = 2);
    c.refuses(bad, InvalidArgument, "kind");
    for slots in [0, 32, 96, 131_072] {
        let bad = with(context, |r| r.slots = slots.into());
        c.refuses(bad, InvalidArgument, "slots");
    }
    let bad = with(context, |r| r.slots = 128.into());
    c.refuses(bad, BadAddress, "length of the area");
    let bad = with(context, |r| r.area.offset = 8.into());
    c.refuses(bad, BadAddress, "offset of the area");
    let destroy = |context: u32| DestroyContext {
        context: context.into(),
        ..Default::default()
    };
    c.refuses(destroy(0xdead), NotFound, "no such context");
    c.refuses(destroy(owner), Busy, "a completion queue belongs to it");
    let ring = |context: u32, slot: u32| RingDoorbell {
        context: context.into(),
        slot: slot.into(),
    };
    c.refuses(ring(0xdead, 0), NotFound, "no such context");
    c.refuses(ring(owner, 0), NotFound, "no such slot");

    let create = CreatePd {
        context: 0xdead.into(),
        ..Default::default()
    };
    c.refuses(create, NotFound, "no such context");
    let destroy = |pd: u32| DestroyPd {
        pd: pd.into(),
        ..Default::default()
    };
    c.refuses(destroy(0xdead), NotFound, "no such protection domain");

    let bad = with(mr, |r| r.pd = 0xdead.into());
    c.refuses(bad, NotFound, "no such protection domain");
    for rights in [
        access::REMOTE_WRITE,
        access::REMOTE_ATOMIC,
        access::ZERO_BASED,
        1 << 10,
    ] {
        let bad = with(mr, |r| r.access = rights.into());
        c.refuses(bad, InvalidArgument, "rights");
    }
    c.world.memories.set_volatile(true);
    let bad = with(mr, |r| r.access = access::FLUSH_PERSISTENT.into());
    c.refuses(bad, InvalidArgument, "pages that cannot survive");
    c.world.memories.set_volatile(false);
    for flags in [4, mr_flags::ALL_MEMORY | mr_flags::ON_DEMAND] {
        let bad = with(mr, |r| r.flags = flags.into());
        c.refuses(bad, InvalidArgument, "flags");
    }
    let bad = with(mr, |r| r.pages.length = 0.into());
    c.refuses(bad, BadAddress, "pages for no bytes");
    let empty = with(mr, |r| {
        r.pages = PageList {
            page_shift: 12,
            ..PageList::default()
        };
    });
    let bad = with(empty, |r| {
        r.flags = mr_flags::ON_DEMAND.into();
    });
    c.refuses(bad, InvalidArgument, "no bytes on demand");
    let key = c.run(empty).expect("no bytes").key;
    let deregister = DeregisterMr { pd: pd.into(), key };
    assert!(c.run(deregister).is_ok());
    let bad = with(mr, |r| r.iova = (u64::MAX - 8190).into());
    c.refuses(bad, InvalidArgument, "wraps around");
    let last = with(mr, |r| r.iova = (u64::MAX - 8191).into());
    let key = c.run(last).expect("ends with the last address").key;
    c.refuses(destroy(pd), Busy, "a region belongs to it");
    let all = with(mr, |r| r.flags = mr_flags::ALL_MEMORY.into());
    c.refuses(all, Malformed, "all memory and an address");
    let deregister = |pd: u32, key: u32| DeregisterMr {
        pd: pd.into(),
        key: key.into(),
    };
    c.refuses(deregister(pd, key.get() ^ 1), NotFound, "no such key");
    let create = CreatePd {
        context: owner.into(),
        ..Default::default()
    };
    let other = c.run(create).unwrap().pd.get();
    c.refuses(
        deregister(other, key.get()),
        NotPermitted,
        "another protection domain",
    );
    assert!(c.run(deregister(pd, key.get())).is_ok());
    c.refuses(deregister(pd, key.get()), NotFound, "gone");

    let pages: [Fault<PageList>; 8] = [
        (|list| list.reserved[1] = 1, Malformed),
        (|list| list.page_shift = 11, BadAddress),
        (|list| list.page_shift = 49, BadAddress),
        (|list| list.offset = 4096.into(), BadAddress),
        (|list| list.page_count = 1.into(), BadAddress),
        (|list| list.page_count = 3.into(), BadAddress),
        (
            |list| list.first_chunk = (list.first_chunk.get() + 8).into(),
            BadAddress,
        ),
        (|list| list.first_chunk = 0.into(), BadAddress),
    ];
    for (index, (change, status)) in pages.into_iter().enumerate() {
        let bad = with(mr, |r| change(&mut r.pages));
        c.refuses(bad, status, &format!("page list {index}"));
    }

    let bad = with(new_cq, |r| r.context = 0xdead.into());
    c.refuses(bad, NotFound, "no such context");
    let bad = with(new_cq, |r| r.vector = 4.into());
    c.refuses(bad, InvalidArgument, "vector");
    let bad = with(new_cq, |r| r.flags = 2.into());
    c.refuses(bad, InvalidArgument, "unknown flag");
    let layouts: [fn(&mut RingLayout); 6] = [
        |ring| *ring = RingLayout::absent(),
        |ring| ring.stride = 128.into(),
        |ring| ring.entries = 15.into(),
        |ring| ring.entries = 64.into(),
        |ring| ring.header_offset = 64.into(),
        |ring| ring.entries_offset = 64.into(),
    ];
    for change in layouts {
        let bad = with(new_cq, |r| change(&mut r.ring));
        c.refuses(bad, InvalidArgument, "ring");
    }
    let bad = with(new_cq, |r| r.pages.offset = 128.into());
    c.refuses(bad, BadAddress, "offset");
    let destroy = |cqn: u32| DestroyCq {
        cqn: cqn.into(),
        ..Default::default()
    };
    c.refuses(destroy(0xdead), NotFound, "no such completion queue");
    refused_cq_changes(c, cqn);
    let srqn = refused_srqs(c);

    let changes: [Fault<CreateQp>; 16] = [
        (|r| r.context = 0xdead.into(), NotFound),
        (|r| r.pd = 0xdead.into(), NotFound),
        (|r| r.send_cqn = 0xdead.into(), NotFound),
        (|r| r.recv_cqn = 0xdead.into(), NotFound),
        (|r| r.qp_type = 5, InvalidArgument),
        (|r| r.qp_type = 0, Status::Unsupported),
        (|r| r.flags = 4, InvalidArgument),
        (|r| r.flags = 2, InvalidArgument),
        (|r| r.srqn = 1.into(), Malformed),
        (
            |r| (r.flags, r.recv_ring, r.srqn) = (2, RingLayout::default(), 0xdead.into()),
            NotFound,
        ),
        (|r| r.max_send_sge = 61.into(), InvalidArgument),
        (|r| r.max_send_sge = 5.into(), InvalidArgument),
        (|r| r.max_recv_sge = 8.into(), InvalidArgument),
        (|r| r.max_inline = 65.into(), InvalidArgument),
        (|r| r.recv_ring.entries = 64.into(), InvalidArgument),
        (|r| r.pages.offset = 64.into(), BadAddress),
    ];
    for (index, (change, status)) in changes.into_iter().enumerate() {
        c.refuses(with(qp, change), status, &format!("queue pair {index}"));
    }
    let user = c.run(context).expect("a context of a process").context;
    let foreign = with(qp, |r| r.context = user);
    c.refuses(foreign, NotPermitted, "objects of another context");
    let foreign = with(c.new_srq(), |r| r.context = user);
    c.refuses(
        foreign,
        NotPermitted,
        "protection domain of another context",
    );
    let create = CreatePd {
        context: user,
        ..Default::default()
    };
    let user_pd = c.run(create).unwrap().pd;
    let all = RegisterMr {
        pd: user_pd,
        flags: mr_flags::ALL_MEMORY.into(),
        ..Default::default()
    };
    c.refuses(all, NotPermitted, "all memory for a process");
    let user_cq = c.run(with(new_cq, |r| r.context = user)).unwrap().cqn;
    let gsi = with(qp, |r| {
        (r.context, r.pd, r.send_cqn, r.recv_cqn) = (user, user_pd, user_cq, user_cq);
        r.qp_type = Gsi.raw();
    });
    c.refuses(gsi, NotPermitted, "GSI for a process");
    let foreign = with(gsi, |r| {
        r.qp_type = ReliableConnection.raw();
        (r.flags, r.recv_ring, r.srqn) = (2, RingLayout::default(), srqn.into());
    });
    c.refuses(foreign, NotPermitted, "receives of another context");
    let gsi = with(qp, |r| r.qp_type = Gsi.raw());
    assert_eq!(c.run(gsi).unwrap().qpn.get(), 1);
    c.refuses(gsi, Busy, "GSI exists");
    c.refuses(destroy(cqn), Busy, "queue pairs use it");

    let query = QueryQp {
        qpn: 0xdead.into(),
        ..Default::default()
    };
    c.refuses(query, NotFound, "no such queue pair");
    let modify = ModifyQp {
        qpn: 0xdead.into(),
        ..Default::default()
    };
    c.refuses(modify, NotFound, "no such queue pair");
    let destroy = DestroyQp {
        qpn: 0xdead.into(),
        ..Default::default()
    };
    c.refuses(destroy, NotFound, "no such queue pair");
}

#[test]
fn limits_hold_at_their_values() {
    let limits = Limits {
        qp: 3,
        cq: 3,
        mr: 3,
        mw: 3,
        srq: 3,
        pd: 3,
        contexts: 3,
        multicast_groups: 3,
        multicast_members: 2,
        multicast_attachments: 5,
        ..Limits::default()
    };
    let mut commands = Commands::new(&RnicConfig {
        limits,
        ..RnicConfig::default()
    });
    let Commands {
        context,
        mr,
        new_cq,
        qp,
        ..
    } = commands;
    let owner = commands.world.nodes[0].guest.context;
    let reported = commands.run(QueryDevice {}).unwrap();
    let c = &mut commands;
    let pd = CreatePd {
        context: owner.into(),
        ..Default::default()
    };

    // One context, protection domain and completion queue already exist.
    (1..reported.max_contexts.get()).for_each(|_| assert!(c.run(context).is_ok()));
    c.refuses(context, Status::NoResources, "contexts");
    (1..reported.max_pd.get()).for_each(|_| assert!(c.run(pd).is_ok()));
    c.refuses(pd, Status::NoResources, "protection domains");
    (1..reported.max_cq.get()).for_each(|_| assert!(c.run(new_cq).is_ok()));
    c.refuses(new_cq, Status::NoResources, "completion queues");
    (0..reported.max_mr.get()).for_each(|_| assert!(c.run(mr).is_ok()));
    c.refuses(mr, Status::NoResources, "memory regions");
    let mw = AllocateMw {
        pd: mr.pd,
        mw_type: MwType::Type2.raw().into(),
    };
    (0..reported.max_mw.get()).for_each(|_| assert!(c.run(mw).is_ok()));
    c.refuses(mw, Status::NoResources, "memory windows");
    let srq = c.new_srq();
    (0..reported.max_srq.get()).for_each(|_| assert!(c.run(srq).is_ok()));
    c.refuses(srq, Status::NoResources, "shared receive queues");
    let datagrams = with(qp, |r| r.qp_type = UnreliableDatagram.raw());
    let mut qpns = Vec::new();
    for _ in 0..reported.max_qp.get() {
        qpns.push(c.run(datagrams).expect("queue pair").qpn);
    }
    c.refuses(datagrams, Status::NoResources, "queue pairs");

    let attach = |qpn, group: u32| AttachMulticast {
        qpn,
        gid: [0xff00_0000, 0, 0, group]
            .map(u32::to_be_bytes)
            .concat()
            .try_into()
            .expect("16 bytes"),
        ..Default::default()
    };
    let groups = reported.max_multicast_groups.get();
    let members = reported.max_multicast_members.get();
    let all = reported.max_multicast_attachments.get();
    (0..groups).for_each(|group| assert!(c.run(attach(qpns[0], group)).is_ok()));
    let refused = Status::NoResources;
    c.refuses(attach(qpns[0], groups), refused, "multicast groups");
    (1..members).for_each(|n| assert!(c.run(attach(qpns[n as usize], 0)).is_ok()));
    c.refuses(attach(qpns[members as usize], 0), refused, "members");
    let mut there = groups + members - 1;
    'full: for group in 1..groups {
        for &qpn in &qpns[1..members as usize] {
            if there == all {
                c.refuses(attach(qpn, group), refused, "attachments");
                break 'full;
            }
            assert!(c.run(attach(qpn, group)).is_ok());
            there += 1;
        }
    }
    assert_eq!(there, all);
}
