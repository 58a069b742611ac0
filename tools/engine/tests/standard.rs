// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Holds the device to the table of state transitions in `Documentation/virtio-rdma.rst`.
//!
//! The table is read from the text. Every pair of states of every type of queue pair is tried, with
//! all required attributes, with each of them missing, and with each other attribute added.

use vrnic_engine::testing::{Cq, Qp, QpOptions, Send, World};
use vrnic_wire::{
    command::{DestroyQp, ModifyQp, Status},
    memory::access,
    qp::{
        QpAttributes,
        QpState::{self, Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain},
        QpType::{self, Gsi, ReliableConnection, UnreliableDatagram},
        attribute,
    },
    work::SendOpcode,
};

const STANDARD: &str = include_str!("../../../Documentation/virtio-rdma.rst");

/// The types that every device has.
const TYPES: [QpType; 3] = [ReliableConnection, UnreliableDatagram, Gsi];

/// Attributes that a transition needs, and those that it allows besides.
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

    /// The rule of a transition.
    fn rule(&self, qp_type: QpType, from: QpState, to: QpState) -> Option<Rule> {
        let [_, required, optional] = self.rows.iter().find(|[name, ..]| {
            let (row_from, row_to) = name.split_once(", ").expect("two states");
            row_to == state_name(to) && (row_from == "any" || row_from == state_name(from))
        })?;
        let not_for = format!("Not for {}.", type_name(qp_type));
        if optional.contains(&not_for) {
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

fn type_name(qp_type: QpType) -> &'static str {
    match qp_type {
        ReliableConnection => "RC",
        QpType::UnreliableConnection => "UC",
        UnreliableDatagram => "UD",
        Gsi => "GSI",
    }
}

/// The attributes that a cell names for a type: sentences of the form `TYPES: NAMES.`, or `NAMES`.
fn attributes(cell: &str, qp_type: QpType) -> u32 {
    let mut mask = 0;
    for sentence in cell.split('.').map(str::trim) {
        let names = match sentence.split_once(": ") {
            Some((types, names)) if types.split(", ").any(|t| t == type_name(qp_type)) => names,
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
        _ => panic!("the table names {name}"),
    }
}

/// A device, a table that says how to reach a state, and a completion queue.
struct Bench {
    world: World,
    table: Table,
    cq: Cq,
}

impl Bench {
    fn new() -> Self {
        let mut world = World::pair(1);
        let node = &mut world.nodes[0];
        let cq = node.guest.cq(&mut node.rnic, 4096, 0);
        Self {
            world,
            table: Table::read(),
            cq,
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

    /// A queue pair in that state, or `None` if its type never gets there.
    fn qp_in(&mut self, qp_type: QpType, state: QpState) -> Option<Qp> {
        let node = &mut self.world.nodes[0];
        let options = QpOptions {
            qp_type,
            entries: 2,
            sge: 1,
            inline: 0,
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
            if qp_type == ReliableConnection {
                self.destroy(qp);
                return None;
            }
            // An operation that datagrams do not have.
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
        // Both rings are in it.
        node.guest.free(qp.sq.arena);
    }

    /// What becomes of a transition with `mask`.
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

#[test]
fn every_transition_is_as_the_standard_says() {
    let mut bench = Bench::new();
    for qp_type in TYPES {
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
                    } else if rule.optional & bit != 0 {
                        (rule.required | bit, Ok(()))
                    } else {
                        (rule.required | bit, Err(Status::InvalidArgument))
                    };
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
