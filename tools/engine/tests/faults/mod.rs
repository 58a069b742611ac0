// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Every fault in virtual time: an ordinary peer sees what the table of faults says, others notice nothing, and the
//! same seed gives the same firings.

mod bystanders;
mod completions;
mod device;
mod fields;
mod transport;
mod wire;

use std::{collections::HashSet, time::Duration};
use vrnic_engine::{
    RnicConfig, Segmentation,
    fault::{Firing, Kind, Progress},
    testing::{Completion, Connection, QpOptions, Send, World},
};
use vrnic_wire::{
    completion::Status,
    event::EventType,
    qp::{QpState, QpType},
    work::SendOpcode,
};

const MR: usize = 1 << 19;

/// Length of a long message in bytes: several packets on each fabric.
const LONG: usize = 200_000;

/// What the affected queue pair does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Op {
    /// This many sends of 1000 bytes.
    Sends(u64),
    /// This many writes of 1000 bytes.
    Writes(u64),
    /// A long write.
    LongWrite,
    /// A long read.
    LongRead,
    /// This many fetch-and-adds of 1.
    Adds(u64),
    /// A write with immediate data.
    WriteImmediate,
}

/// A test case with its expected result.
#[derive(Debug)]
struct Case {
    /// The fault. `{qp}` and `{cq}` stand for the queue pair and the completion queue of sends on the affected device,
    /// `{rcq}` for that of receives.
    fault: &'static str,
    /// Device with the fault: 0 is the requester's.
    node: usize,
    op: Op,
    /// Expected statuses of the requester's sends and of the responder's receives.
    sends: &'static [Status],
    receives: &'static [Status],
    /// Expected events at both ends.
    events: [&'static [EventType]; 2],
    /// Whether the data must arrive unchanged.
    intact: bool,
}

const OK: &[Status] = &[Status::Success];
const OK4: &[Status] = &[Status::Success; 4];
const NONE: &[Status] = &[];

/// A world with an affected connection, and another connection of the same devices.
struct Stage {
    world: World,
    victim: Connection,
    other: Connection,
}

fn config(segmentation: Segmentation) -> RnicConfig {
    RnicConfig {
        segmentation,
        ..RnicConfig::default()
    }
}

impl Stage {
    fn new(segmentation: Segmentation) -> Self {
        Self::of_type(segmentation, QpType::ReliableConnection)
    }

    fn of_type(segmentation: Segmentation, qp_type: QpType) -> Self {
        let mut world = World::new(2, 2048, &config(segmentation), 7);
        let options = QpOptions {
            qp_type,
            ..QpOptions::default()
        };
        let victim = world.connect([0, 1], &options, MR, |_, attributes| {
            attributes.rnr_retry = 3;
            attributes.retry_count = 3;
            attributes.timeout = 14;
        });
        let other = world.connect([0, 1], &QpOptions::default(), MR, |_, _| {});
        Self {
            world,
            victim,
            other,
        }
    }

    /// Arms a fault and returns its number.
    fn arm(&mut self, node: usize, text: &str) -> u64 {
        let text = text
            .replace("{qp}", &self.victim.qps[node].qpn.to_string())
            .replace("{cq}", &self.victim.send_cqs[node].cqn.to_string())
            .replace("{rcq}", &self.victim.recv_cqs[node].cqn.to_string());
        let spec = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
        let now = self.world.now;
        let mut faults = self.world.nodes[node].rnic.faults_mut();
        faults.arm(spec, now).expect("room")
    }

    fn post(&mut self, op: Op) {
        let Self { world, victim, .. } = self;
        let data: Vec<u8> = (0..LONG).map(|index| (index * 7 % 251) as u8).collect();
        let (address, rkey) = (victim.mrs[1].iova, victim.mrs[1].key);
        let reads = op == Op::LongRead;
        victim.mrs[usize::from(reads)].arena.put(0, &data);
        match op {
            Op::Sends(count) => {
                for wr_id in 0..count {
                    let sge = victim.mrs[1].sge(wr_id as usize * 1000, 1000);
                    victim.receive(world, 1, wr_id, &[sge]);
                }
                for wr_id in 0..count {
                    let sge = victim.mrs[0].sge(wr_id as usize * 1000, 1000);
                    victim.send(world, 0, &Send::new(wr_id, SendOpcode::Send).element(sge));
                }
            }
            Op::Writes(count) => {
                for wr_id in 0..count {
                    let sge = victim.mrs[0].sge(wr_id as usize * 1000, 1000);
                    let write = Send::new(wr_id, SendOpcode::Write)
                        .rdma(address + wr_id * 1000, rkey)
                        .element(sge);
                    victim.send(world, 0, &write);
                }
            }
            Op::LongWrite => {
                let write = Send::new(0, SendOpcode::Write)
                    .rdma(address, rkey)
                    .element(victim.mrs[0].sge(0, LONG));
                victim.send(world, 0, &write);
            }
            Op::LongRead => {
                let read = Send::new(0, SendOpcode::Read)
                    .rdma(address, rkey)
                    .element(victim.mrs[0].sge(0, LONG));
                victim.send(world, 0, &read);
            }
            Op::Adds(count) => {
                victim.mrs[1].arena.put(0, &[0; 8]);
                for wr_id in 0..count {
                    let add = Send::new(wr_id, SendOpcode::FetchAdd)
                        .atomic(address, rkey, 1, 0)
                        .element(victim.mrs[0].sge(8, 8));
                    victim.send(world, 0, &add);
                }
            }
            Op::WriteImmediate => {
                victim.receive(world, 1, 0, &[]);
                let write = Send::new(0, SendOpcode::WriteWithImmediate)
                    .immediate(0x55)
                    .rdma(address, rkey)
                    .element(victim.mrs[0].sge(0, 1000));
                victim.send(world, 0, &write);
            }
        }
    }

    /// Returns whether the data of an operation is in the right place.
    fn is_intact(&self, op: Op) -> bool {
        let victim = &self.victim;
        let length = match op {
            Op::Sends(count) | Op::Writes(count) => count as usize * 1000,
            Op::LongWrite | Op::LongRead => LONG,
            Op::WriteImmediate => 1000,
            Op::Adds(count) => {
                return victim.mrs[1].arena.get(0, 8) == count.to_le_bytes();
            }
        };
        let [here, there] = [0, 1].map(|side: usize| victim.mrs[side].arena.get(0, length));
        here == there
    }

    /// Checks that the other connection works.
    fn post_other(&mut self) {
        let Self { world, other, .. } = self;
        for wr_id in 0..4 {
            other.receive(world, 1, wr_id, &[other.mrs[1].sge(0, 1000)]);
            let send = Send::new(wr_id, SendOpcode::Send).element(other.mrs[0].sge(0, 1000));
            other.send(world, 0, &send);
        }
    }

    fn check_other(&mut self) {
        assert_eq!(statuses(&self.other.send_cqs[0].drain()), OK4, "the other");
        assert_eq!(statuses(&self.other.recv_cqs[1].drain()), OK4, "the other");
        for side in 0..2 {
            let qpn = self.other.qps[side].qpn;
            assert_eq!(self.world.state(side, qpn), QpState::ReadyToSend);
        }
    }

    fn events(&mut self, node: usize) -> Vec<EventType> {
        let rnic = &mut self.world.nodes[node].rnic;
        std::iter::from_fn(|| rnic.next_async_event())
            .map(|event| EventType::try_from(event.event_type.get()).expect("event"))
            .collect()
    }

    fn log(&self, node: usize) -> Vec<Firing> {
        self.world.nodes[node]
            .rnic
            .faults()
            .log()
            .cloned()
            .collect()
    }

    fn run(&mut self, millis: u64) {
        let end = self.world.now + Duration::from_millis(millis);
        self.world.run(Duration::from_millis(millis));
        self.world.now = self.world.now.max(end);
    }
}

fn statuses(completions: &[Completion]) -> Vec<Status> {
    completions.iter().map(|one| one.status).collect()
}

/// Runs a case once and returns its firings.
fn perform(case: &Case, segmentation: Segmentation) -> Vec<Firing> {
    let mut stage = Stage::new(segmentation);
    let id = stage.arm(case.node, case.fault);
    stage.post_other();
    stage.post(case.op);
    stage.world.settle();
    let what = format!("{case:?} on {segmentation:?}");
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        case.sends,
        "{what}"
    );
    assert_eq!(
        statuses(&stage.victim.recv_cqs[1].drain()),
        case.receives,
        "{what}"
    );
    for node in 0..2 {
        assert_eq!(
            stage.events(node),
            case.events[node],
            "events of {node}: {what}"
        );
    }
    assert_eq!(stage.is_intact(case.op), case.intact, "data: {what}");
    stage.check_other();
    let log = stage.log(case.node);
    let name = case.fault.split(' ').next().expect("name");
    assert!(
        log.iter()
            .all(|firing| firing.name == name && firing.id == id),
        "{log:?}"
    );
    let list = stage.world.nodes[case.node].rnic.faults().list();
    assert_eq!(list.len(), 1);
    assert!(list[0].fired > 0, "it did not fire: {what}");
    if list[0].progress == Progress::Done {
        // No effects remain: the queue pair works if it still may.
        let faults = stage.world.nodes[case.node].rnic.faults();
        assert!(faults.is_idle(), "{what}");
    }
    if case.sends.iter().all(|status| *status == Status::Success) {
        stage.world.nodes[case.node].rnic.faults_mut().clear(None);
        stage.post(Op::Writes(1));
        stage.world.settle();
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK, "{what}");
    }
    log
}

/// Runs cases on both fabrics, each twice.
fn perform_all(cases: &[Case]) {
    for case in cases {
        for segmentation in [Segmentation::Local, Segmentation::PathMtu] {
            let first = perform(case, segmentation);
            assert_eq!(first, perform(case, segmentation), "{case:?}");
        }
    }
}

/// Faults that have test functions of their own.
const ELSEWHERE: &[&str] = &[
    // wire
    "ghost",
    "slow-link",
    "wrong-qkey",
    "wrong-immediate",
    "wrong-field",
    "ecn-mark",
    "cnp-storm",
    "corrupt-icrc",
    "truncated-frame",
    "mute",
    "deaf",
    "lost-nak",
    "lost-rnr-nak",
    // transport
    "timer-late",
    // completions
    "cqe-late",
    "cqe-lost",
    "cq-overrun",
    "cq-event-lost",
    "cq-event-late",
    "cq-event-spurious",
    "cqe-loc-len-err",
    "cqe-loc-access-err",
    // events
    "event-srq-err",
    "event-srq-limit",
    "srq-fatal",
    "event-lost",
    "event-late",
    "page-fault-slow",
    "page-fault-lost",
    "event-cq-err",
    "event-qp-fatal",
    "event-qp-req-err",
    "event-qp-access-err",
    "event-comm-est",
    "event-sq-drained",
    "event-path-mig",
    "event-path-mig-err",
    "event-device-fatal",
    "event-port-active",
    "event-port-err",
    "event-lid-change",
    "event-pkey-change",
    "event-sm-change",
    "event-client-reregister",
    "event-gid-change",
    "event-last-wqe",
    "qp-fatal",
    "qp-error",
    "cq-fatal",
    // commands
    "command-fails",
    "no-memory",
    "destroy-fails",
    "command-slow",
    "command-too-late",
    "command-never",
    "command-answered-twice",
    "limit-lowered",
    // device
    "doorbell-lost",
    "doorbell-late",
    "stuck",
    "slow",
    "link-flap",
    "link-down",
    "mtu-change",
    "speed-change",
    "gid-vanishes",
    "clock-jump",
    "persistence-fails",
    "needs-reset",
    "engine-panic",
    "removed",
    "daemon-killed",
];

#[test]
fn every_fault_has_a_test() {
    let cases = [wire::CASES, transport::CASES, completions::CASES];
    let in_cases: Vec<&str> = cases
        .into_iter()
        .flatten()
        .map(|case| case.fault.split(' ').next().expect("name"))
        .collect();
    for kind in Kind::all() {
        assert!(
            in_cases.contains(&kind.name) || ELSEWHERE.contains(&kind.name),
            "{} has no test",
            kind.name
        );
    }
    let sources = [
        include_str!("wire.rs"),
        include_str!("transport.rs"),
        include_str!("completions.rs"),
        include_str!("device.rs"),
        include_str!("fields.rs"),
    ];
    for name in ELSEWHERE {
        assert!(Kind::find(name).is_some(), "{name} is no fault");
        let armed = |source: &&str| source.contains(&format!("\"{name}"));
        assert!(sources.iter().any(armed), "{name} is armed nowhere");
    }
}

/// Functions of the VM tests that arm a fault, and how many arguments they have before it.
const ARMING: &[(&str, usize)] = &[
    ("arm", 1),
    ("ping_pong", 0),
    ("transfer", 0),
    ("refuse", 0),
    ("says", 0),
    ("costs", 0),
    ("struck", 3),
];

/// Adds the names that a line of a VM test arms as faults: as an argument of `fault add` or of a function, in a row of
/// a table, or in the list of a loop.
fn add_armed(line: &str, names: &mut HashSet<String>) {
    let word = |text: &str| {
        text.trim_matches(|c: char| "\"'`$);+".contains(c))
            .to_owned()
    };
    let parts = line.split(|c: char| c.is_whitespace() || c == '(');
    let words: Vec<String> = parts.filter(|part| !part.is_empty()).map(word).collect();
    // `NAME [KEY=VALUE]...|DEVICE|...`, and `EVENT NAME [KEY=VALUE]...` in a table of events.
    if let Some((fault, _)) = line.split_once('|') {
        names.extend(fault.split_whitespace().next().map(word));
    }
    if let [event, fault, ..] = &words[..]
        && event.parse::<u32>().is_ok()
    {
        names.insert(fault.clone());
    }
    for (index, _) in words.iter().enumerate() {
        match &words[index..] {
            [fault, add, d, _, name, ..] if fault == "fault" && add == "add" && d == "-d" => {
                names.insert(name.clone());
            }
            [first, variable, list, all @ ..]
                if first == "for" && variable == "fault" && list == "in" =>
            {
                names.extend(all.iter().cloned());
            }
            [function, arguments @ ..] => {
                let known = ARMING.iter().find(|(known, _)| known == function);
                names.extend(
                    known
                        .and_then(|(_, before)| arguments.get(*before))
                        .cloned(),
                );
            }
            [] => {}
        }
    }
}

/// Each fault is also proven by an unmodified program in VMs: a test there arms it, and checks what the program sees.
/// Those that let `vrnic-lab chaos` arm faults do not count, because the verdict may be that the fault never fired.
#[test]
fn every_fault_is_armed_by_a_vm_test() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vm");
    let mut names = HashSet::new();
    for file in std::fs::read_dir(directory).expect("tests") {
        let path = file.expect("file").path();
        if path.extension().is_none_or(|extension| extension != "sh") {
            continue;
        }
        let text = std::fs::read_to_string(path).expect("text");
        for line in text.lines().filter(|line| !line.trim().starts_with('#')) {
            add_armed(line, &mut names);
        }
    }
    for kind in Kind::all() {
        assert!(names.contains(kind.name), "no test arms {}", kind.name);
    }
}

#[test]
fn only_what_is_armed_counts() {
    let armed = |line: &str| {
        let mut names = HashSet::new();
        add_armed(line, &mut names);
        names.contains("lost-ack")
    };
    for line in [
        "\tvrnicctl fault add -d a lost-ack type=rc nth=5",
        "+lost-ack type=rc|a|ok",
        "10 lost-ack for=200ms",
        "ping_pong \"lost-ack type=rc\" a ok",
        "id=$(arm a \"lost-ack\")",
        "for fault in drop lost-ack; do",
    ] {
        assert!(armed(line), "{line}");
    }
    for line in [
        "chaos pingpong --fault 'lost-ack type=rc'",
        "judged drop=recovered lost-ack=not-reached",
        "echo lost-ack",
        "[ \"$name\" = lost-ack ] | fail",
    ] {
        assert!(!armed(line), "{line}");
    }
}
