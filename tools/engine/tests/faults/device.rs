// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of events, commands, doorbells, the link, and the whole device.

use super::{LONG, NONE, OK, OK4, Op, Stage, statuses};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};
use vrnic_engine::{
    Cause, Io, Outbox, Segmentation,
    fault::{Delivery, Progress},
    testing::{QpOptions, Send, World},
};
use vrnic_wire::{
    command::{
        self, CommandCode, CreatePd, DestroyQp, NameContext, QueryClock, QueryDevice, QueryPort,
        ReplyHeader,
    },
    completion::Status,
    event::EventType,
    memory::access,
    qp::{QpState, QpType},
    work::{SendOpcode, placement},
};
use zerocopy::FromBytes;

#[test]
fn events_come_alone_and_nothing_else_happens() {
    for (fault, event) in [
        ("event-cq-err cq={cq}", EventType::CqError),
        ("event-qp-fatal qp={qp}", EventType::QpFatal),
        ("event-qp-req-err qp={qp}", EventType::QpRequestError),
        ("event-qp-access-err qp={qp}", EventType::QpAccessError),
        (
            "event-comm-est qp={qp}",
            EventType::CommunicationEstablished,
        ),
        ("event-sq-drained qp={qp}", EventType::SendQueueDrained),
        ("event-path-mig qp={qp}", EventType::PathMigrated),
        ("event-path-mig-err qp={qp}", EventType::PathMigrationError),
        ("event-last-wqe qp={qp}", EventType::LastWqeReached),
        ("event-device-fatal", EventType::DeviceFatal),
        ("event-port-active", EventType::PortActive),
        ("event-port-err", EventType::PortError),
        ("event-lid-change", EventType::LidChange),
        ("event-pkey-change", EventType::PkeyChange),
        ("event-sm-change", EventType::SmChange),
        ("event-client-reregister", EventType::ClientReregister),
        ("event-gid-change", EventType::GidChange),
    ] {
        let mut stage = Stage::new(Segmentation::Local);
        stage.arm(0, &format!("{fault} after=5ms"));
        stage.run(4);
        assert_eq!(stage.events(0), [], "{fault}");
        stage.run(10);
        let number = match fault.split_once('=').map(|(key, _)| key) {
            Some(key) if key.ends_with("cq") => stage.victim.send_cqs[0].cqn,
            Some(_) => stage.victim.qps[0].qpn,
            None if event == EventType::DeviceFatal => 0,
            None => 1,
        };
        let raised = stage.world.nodes[0].rnic.next_async_event().expect("event");
        assert_eq!(raised.event_type.get(), event.raw(), "{fault}");
        assert_eq!(raised.number.get(), number, "{fault}");
        assert_eq!(raised.vendor_error.get(), Cause::Provoked.code());
        assert_eq!(
            (stage.events(0), stage.events(1)),
            (vec![], vec![]),
            "{fault}"
        );
        stage.post_other();
        stage.post(Op::Sends(4));
        stage.world.settle();
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK4, "{fault}");
        stage.check_other();
    }
}

/// Creates a stage whose victim's queue pair belongs to a process. The other one was created before its context had a
/// name.
fn stage_with_process(pid: u32, name: [u8; 16]) -> Stage {
    let mut stage = Stage::new(Segmentation::Local);
    let node = &mut stage.world.nodes[0];
    let context = node.guest.context.into();
    let request = NameContext {
        context,
        pid: pid.into(),
        name,
    };
    let named = node.guest.command(&mut node.rnic, request);
    named.expect("named");
    let options = QpOptions::default();
    stage.victim = stage.world.connect([0, 1], &options, super::MR, |_, _| {});
    stage
}

#[test]
fn a_process_is_hit_and_no_other() {
    let name = *b"victim\0\0\0\0\0\0\0\0\0\0";
    for place in ["process=victim", "pid=42", "process=victim pid=42"] {
        let mut stage = stage_with_process(42, name);
        for miss in [
            "process=victi",
            "process=victims",
            "pid=4",
            "process=victim pid=41",
        ] {
            stage.arm(0, &format!("cqe-general-err {miss}"));
        }
        stage.arm(0, &format!("cqe-general-err {place}"));
        stage.arm(0, &format!("event-comm-est {place}"));
        stage.arm(0, "event-cq-err process=nobody");
        stage.post_other();
        stage.post(Op::Sends(1));
        stage.world.settle();
        assert_eq!(
            statuses(&stage.victim.send_cqs[0].drain()),
            [Status::General],
            "{place}"
        );
        stage.check_other();
        let raised = stage.world.nodes[0].rnic.next_async_event().expect("event");
        assert_eq!(raised.number.get(), stage.victim.qps[0].qpn);
        assert_eq!(stage.events(0), []);
        let fired: Vec<_> = stage.log(0).iter().map(|firing| firing.name).collect();
        assert_eq!(
            fired
                .iter()
                .filter(|name| **name == "cqe-general-err")
                .count(),
            1
        );
    }
}

#[test]
fn the_kernel_has_a_name_and_others_what_the_driver_says() {
    let mut stage = Stage::new(Segmentation::Local);
    let owner = |stage: &Stage| {
        let node = &stage.world.nodes[0];
        let qp = node.rnic.qp(stage.victim.qps[0].qpn, &node.guest.view);
        qp.expect("queue pair").owner
    };
    assert_eq!(
        (owner(&stage).pid, owner(&stage).to_string()),
        (0, "kernel".to_owned())
    );
    // The guest can choose any name.
    stage = stage_with_process(7, *b"\x1b[2J\xff 16 letters");
    assert_eq!(owner(&stage).to_string(), "?[2J\u{fffd} 16 letters");
}

#[test]
fn events_come_so_often_at_such_intervals() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "event-gid-change count=3 interval=100ms");
    let mut times = 0;
    for _ in 0..50 {
        stage.run(10);
        times += stage.events(0).len();
    }
    assert_eq!(times, 3);
    assert!(stage.world.nodes[0].rnic.faults().is_idle());
}

#[test]
fn broken_objects_are_broken() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(1, "qp-fatal qp={qp} after=1ms");
    stage.run(5);
    assert_eq!(stage.events(1), [EventType::QpFatal]);
    stage.post_other();
    stage.post(Op::Sends(1));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::RetryExceeded]
    );
    assert_eq!(
        statuses(&stage.victim.recv_cqs[1].drain()),
        [Status::Flushed]
    );
    stage.check_other();

    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "qp-error qp={qp} after=1ms");
    stage.run(5);
    assert_eq!(stage.events(0), []);
    stage.post_other();
    stage.post(Op::Writes(2));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::Flushed; 2]
    );
    stage.check_other();

    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "cq-fatal cq={cq}");
    stage.run(5);
    assert_eq!(stage.events(0), [EventType::CqError, EventType::QpFatal]);
    stage.post_other();
    stage.post(Op::Writes(2));
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), NONE);
    stage.check_other();
}

#[test]
fn shared_receive_queues_have_their_faults() {
    let mut stage = Stage::new(Segmentation::Local);
    let node = &mut stage.world.nodes[1];
    let mut srq = node.guest.try_srq(&mut node.rnic, 16, 1, 0).expect("srq");
    let options = QpOptions {
        srqn: Some(srq.srqn),
        ..QpOptions::default()
    };
    let mut shared = {
        let world = &mut stage.world;
        let plain = world.connect([0, 1], &QpOptions::default(), 4096, |_, _| {});
        let node = &mut world.nodes[1];
        let qp = node
            .guest
            .try_qp(
                &mut node.rnic,
                &options,
                plain.send_cqs[1].cqn,
                plain.recv_cqs[1].cqn,
            )
            .expect("qp");
        let attributes = World::attributes(0, plain.qps[0].qpn);
        world.bring_up(1, qp.qpn, attributes, QpType::ReliableConnection);
        // The other end gets a new peer.
        let qpn = plain.qps[0].qpn;
        world.modify(0, qpn, reset());
        world.bring_up(
            0,
            qpn,
            World::attributes(1, qp.qpn),
            QpType::ReliableConnection,
        );
        (plain, qp)
    };
    let number = srq.srqn;
    for (fault, event) in [
        (
            format!("{} srq={number}", "event-srq-err"),
            EventType::SrqError,
        ),
        (
            format!("{} srq={number}", "event-srq-limit"),
            EventType::SrqLimitReached,
        ),
    ] {
        stage.arm(1, &fault);
        stage.run(5);
        assert_eq!(stage.events(1), [event]);
    }
    let mr = &shared.0.mrs[1];
    assert!(srq.post(1, &[mr.sge(0, 100)]) && srq.post(2, &[mr.sge(0, 100)]));
    let send = Send::new(1, SendOpcode::Send).element(shared.0.mrs[0].sge(0, 100));
    shared.0.send(&mut stage.world, 0, &send);
    stage.world.settle();
    assert_eq!(statuses(&shared.0.send_cqs[0].drain()), OK);
    stage.arm(1, &format!("{} srq={number}", "srq-fatal"));
    stage.run(5);
    assert_eq!(stage.events(1), [EventType::SrqError]);
    shared.0.send(&mut stage.world, 0, &send);
    stage.world.settle();
    assert_ne!(statuses(&shared.0.send_cqs[0].drain()), OK);
    assert_eq!(stage.world.state(1, shared.1.qpn), QpState::Error);
    stage.post_other();
    stage.world.settle();
    stage.check_other();
}

fn reset() -> vrnic_wire::qp::QpAttributes {
    vrnic_wire::qp::QpAttributes {
        state: QpState::Reset.raw(),
        mask: vrnic_wire::qp::attribute::STATE.into(),
        ..Default::default()
    }
}

#[test]
fn events_are_lost_or_late() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(1, "event-lost event=qp-access-error");
    stage.arm(1, "nak-remote-access qp={qp}");
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(stage.events(1), []);
    assert_eq!(stage.log(1).len(), 2);

    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(1, "event-late event=qp-access-error delay=300ms");
    stage.arm(1, "nak-remote-access qp={qp}");
    stage.post(Op::Writes(1));
    stage.run(1);
    assert_eq!(stage.events(1), []);
    stage.run(290);
    assert_eq!(stage.events(1), []);
    stage.run(20);
    assert_eq!(stage.events(1), [EventType::QpAccessError]);
}

#[test]
fn a_fault_waits_for_an_event() {
    let mut stage = Stage::new(Segmentation::Local);
    let lost = stage.arm(
        0,
        "cqe-general-err qp={qp} side=send after-event=port-error",
    );
    let later = stage.arm(0, &format!("duplicate qp={{qp}} after-fault={lost}"));
    let soon = stage.arm(0, "event-gid-change after-event=port-error after=5ms");
    let progress = |stage: &Stage, id: u64| {
        let listed = stage.world.nodes[0].rnic.faults().list();
        let found = listed.iter().find(|fault| fault.id == id);
        let found = found.expect("listed");
        (found.progress, found.spec.awaits())
    };
    let waits = |what: &str| (Progress::Waiting, Some(what.to_owned()));
    assert_eq!(progress(&stage, lost), waits("port-error"));
    assert_eq!(progress(&stage, later), waits(&lost.to_string()));
    stage.post(Op::Sends(1));
    stage.world.settle();
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK);
    // Another event changes nothing.
    stage.arm(0, "event-port-active");
    stage.run(1);
    assert_eq!(stage.events(0), [EventType::PortActive]);
    assert_eq!(progress(&stage, lost).0, Progress::Waiting);
    stage.arm(0, "event-port-err");
    stage.run(1);
    assert_eq!(stage.events(0), [EventType::PortError]);
    assert_eq!(progress(&stage, lost).0, Progress::Armed);
    stage.run(3);
    assert_eq!(stage.events(0), []);
    stage.run(3);
    assert_eq!(stage.events(0), [EventType::GidChange]);
    assert_eq!(progress(&stage, soon).0, Progress::Done);
    stage.post(Op::Sends(1));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::General]
    );
    assert_eq!(progress(&stage, later).0, Progress::Armed);
}

#[test]
fn a_fault_waits_until_the_driver_has_the_event() {
    let mut stage = Stage::new(Segmentation::Local);
    let waits = stage.arm(0, "drop after-event=port-error");
    let progress = |stage: &Stage| {
        let listed = stage.world.nodes[0].rnic.faults().list();
        listed
            .iter()
            .find(|fault| fault.id == waits)
            .expect("listed")
            .progress
    };
    stage.arm(0, "event-lost event=port-error");
    stage.arm(0, "event-port-err");
    stage.run(1);
    assert_eq!(stage.events(0), []);
    assert_eq!(progress(&stage), Progress::Waiting);
    stage.arm(0, "event-late event=port-error delay=5ms");
    stage.arm(0, "event-port-err");
    stage.run(3);
    assert_eq!(stage.events(0), []);
    assert_eq!(progress(&stage), Progress::Waiting);
    stage.run(3);
    assert_eq!(stage.events(0), [EventType::PortError]);
    assert_eq!(progress(&stage), Progress::Armed);
}

/// Performs a write to an on-demand region of a device with the fault. Returns when the device requested pages, which
/// shows whether it asks again.
fn page_fault(fault: &str) -> Vec<Duration> {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(1, fault);
    let node = &mut stage.world.nodes[1];
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let mr = node.guest.paged_mr(&mut node.rnic, 0, 8192, rights);
    let Stage { world, victim, .. } = &mut stage;
    let write = Send::new(1, SendOpcode::Write)
        .rdma(mr.iova, mr.key)
        .element(victim.mrs[0].sge(0, 100));
    victim.send(world, 0, &write);
    let start = stage.world.now;
    let mut asked = Vec::new();
    for _ in 0..400 {
        stage.run(10);
        if stage.events(1).contains(&EventType::PageFault) {
            asked.push(stage.world.now - start);
        }
    }
    asked
}

#[test]
fn pages_are_asked_for_late_or_never() {
    let late = page_fault("page-fault-slow delay=1s");
    assert!(late[0] >= Duration::from_secs(1), "{late:?}");
    assert_eq!(page_fault("page-fault-lost count=all"), []);
}

/// Executes a command, and returns its status and how its reply is to be delivered.
pub(super) fn execute<C: command::Command>(world: &mut World, request: C) -> (u32, u32, Delivery) {
    let node = &mut world.nodes[0];
    let body = request.as_bytes();
    let header = command::CommandHeader {
        code: C::CODE.raw().into(),
        reserved: 0.into(),
        length: (body.len() as u32).into(),
    };
    let bytes = [zerocopy::IntoBytes::as_bytes(&header), body].concat();
    let mut reply = Vec::new();
    let mut outbox = Outbox::new();
    let mut io = Io {
        memory: &node.guest.view,
        now: world.now,
        outbox: &mut outbox,
    };
    assert!(node.rnic.execute(&bytes, &mut reply, &mut io));
    let (header, _) = ReplyHeader::read_from_prefix(&reply).expect("reply");
    let delivery = node.rnic.take_delivery();
    (header.status.get(), header.vendor_error.get(), delivery)
}

#[test]
fn each_command_fails_with_each_status() {
    let mut stage = Stage::new(Segmentation::Local);
    for status in &command::Status::ALL[1..] {
        let name = kebab(status);
        stage.arm(
            0,
            &format!("command-fails code=query-device status={name} vendor=77"),
        );
        let answer = execute(&mut stage.world, QueryDevice {});
        assert_eq!(answer, (status.raw(), 77, Delivery::Now));
        let answer = execute(&mut stage.world, QueryDevice {});
        assert_eq!(answer, (0, 0, Delivery::Now));
    }
    for code in CommandCode::ALL {
        let text = format!("command-fails code={}", kebab(code));
        stage.arm(0, &text);
        stage.world.nodes[0].rnic.faults_mut().clear(None);
    }
}

fn kebab(name: &impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for letter in format!("{name:?}").chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[test]
fn commands_that_fail_change_nothing_and_replies_are_late_or_lost() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "destroy-fails");
    let destroy = || DestroyQp {
        qpn: stage.victim.qps[0].qpn.into(),
        reserved: 0.into(),
    };
    let (first, second) = (destroy(), destroy());
    let busy = command::Status::Busy.raw();
    assert_eq!(execute(&mut stage.world, first).0, busy);
    let qps = stage.world.nodes[0].rnic.snapshot().qps;
    assert_eq!(execute(&mut stage.world, second).0, 0);
    assert_eq!(stage.world.nodes[0].rnic.snapshot().qps, qps - 1);

    for (fault, delivery) in [
        (
            "command-slow delay=2s",
            Delivery::Late(Duration::from_secs(2)),
        ),
        ("command-too-late", Delivery::Late(Duration::from_secs(100))),
        ("command-never", Delivery::Never),
        ("command-answered-twice", Delivery::Twice),
    ] {
        stage.arm(0, &format!("{fault} code=query-port"));
        assert_eq!(execute(&mut stage.world, QueryDevice {}).2, Delivery::Now);
        let query = || QueryPort {
            port: 1.into(),
            reserved: 0.into(),
        };
        assert_eq!(
            execute(&mut stage.world, query()),
            (0, 0, delivery),
            "{fault}"
        );
        assert_eq!(execute(&mut stage.world, query()).2, Delivery::Now);
    }
}

#[test]
fn limits_are_lowered_and_memory_runs_out() {
    let mut stage = Stage::new(Segmentation::Local);
    let pds = stage.world.nodes[0].rnic.snapshot().pds;
    stage.arm(
        0,
        &format!("limit-lowered code=create-pd limit={}", pds + 2),
    );
    let context = stage.world.nodes[0].guest.context;
    let create = || CreatePd {
        context: context.into(),
        reserved: 0.into(),
    };
    let results: Vec<u32> = (0..4)
        .map(|_| execute(&mut stage.world, create()).0)
        .collect();
    let full = command::Status::NoResources.raw();
    assert_eq!(results, [0, 0, full, full]);
    assert_eq!(stage.log(0).len(), 2);

    stage.arm(0, "no-memory");
    let node = &mut stage.world.nodes[0];
    let arena = node.guest.arena(4096);
    let refused = node
        .guest
        .try_register(&mut node.rnic, arena, 4096, access::LOCAL_WRITE);
    assert!(refused.is_err());
}

#[test]
fn doorbells_are_lost_or_late() {
    for (fault, soon) in [
        ("doorbell-lost qp={qp}", false),
        ("doorbell-late qp={qp} delay=50ms", true),
    ] {
        let mut stage = Stage::new(Segmentation::Local);
        // The device sleeps, so the provider has to ring the doorbell.
        stage.run(100);
        stage.arm(0, fault);
        stage.post(Op::Writes(1));
        stage.run(20);
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), NONE, "{fault}");
        stage.run(100);
        let done = statuses(&stage.victim.send_cqs[0].drain());
        assert_eq!(done.is_empty(), !soon, "{fault}");
        // The next doorbell, of any queue pair, makes the device look at all rings of the context.
        stage.post_other();
        stage.world.settle();
        let done = statuses(&stage.victim.send_cqs[0].drain());
        assert_eq!(done.is_empty(), soon, "{fault}");
        stage.check_other();
    }
}

/// A deadline in the past would keep the worker busy as long as the device is stuck.
#[test]
fn a_stuck_device_waits_for_nothing_that_it_holds_back() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    stage.arm(0, "delay qp={qp} delay=3ms");
    stage.arm(0, "stuck after=1ms");
    stage.post(Op::Sends(1));
    stage.run(2);
    stage.run(5);
    let (rnic, now) = (&stage.world.nodes[0].rnic, stage.world.now);
    assert!(rnic.next_deadline().is_none_or(|at| at > now));
    stage.world.nodes[0].rnic.faults_mut().clear(None);
    stage.run(10);
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK[..1]);
}

#[test]
fn a_stuck_device_does_nothing_until_it_goes_on() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "stuck for=200ms");
    stage.run(1);
    stage.post(Op::Writes(4));
    stage.run(150);
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), NONE);
    // Commands are answered.
    assert_eq!(execute(&mut stage.world, QueryDevice {}).0, 0);
    stage.run(300);
    assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK4);

    // It does not answer its peers' requests. When the fault is cleared, it continues.
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(1, "stuck");
    stage.run(1);
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::RetryExceeded]
    );
    stage.world.nodes[1].rnic.faults_mut().clear(None);
    stage.post_other();
    stage.world.settle();
    stage.check_other();
}

#[test]
fn a_slow_device_takes_its_time() {
    let time = |fault: &str| {
        let mut stage = Stage::new(Segmentation::PathMtu);
        stage.arm(0, fault);
        stage.run(1);
        let start = stage.world.now;
        stage.post(Op::LongWrite);
        while stage.victim.send_cqs[0].unread() == 0
            && stage.world.now - start < Duration::from_secs(5)
        {
            stage.run(1);
        }
        assert_eq!(statuses(&stage.victim.send_cqs[0].drain()), OK, "{fault}");
        stage.world.now - start
    };
    let packets = (LONG / 1024) as u32;
    let by = |factor: u32| time(&format!("slow factor={factor}"));
    assert!(by(1000) >= Duration::from_millis(1) * packets);
    // What the device does a million times per second takes 1000 times as long.
    assert_eq!(time("slow delay=1ms"), by(1000));
    assert_eq!(by(3000), by(3000), "the same in each run");
    assert!(by(3000) >= 2 * by(1000));
}

#[test]
fn links_flap_and_come_back() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "link-flap count=2 for=20ms interval=50ms");
    let mut seen = Vec::new();
    for _ in 0..40 {
        stage.run(5);
        seen.extend(stage.events(0));
    }
    let (down, up) = (EventType::PortError, EventType::PortActive);
    assert_eq!(seen, [down, up, down, up]);
    stage.post_other();
    stage.world.settle();
    stage.check_other();

    let id = stage.arm(0, "link-down");
    stage.run(5);
    assert_eq!(stage.events(0), [down]);
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::RetryExceeded]
    );
    assert_eq!(stage.world.nodes[0].rnic.faults_mut().clear(Some(id)), 1);
    stage.run(5);
    assert_eq!(stage.events(0), [up]);
    // A link that was taken down by hand stays down.
    stage.world.nodes[0].rnic.set_link(false);
    stage.arm(0, "link-flap for=10ms");
    stage.run(100);
    assert_eq!(stage.events(0), [down]);
}

#[test]
fn the_mtu_changes_and_changes_back() {
    let mut stage = Stage::new(Segmentation::Local);
    let mtu = |stage: &Stage| stage.world.nodes[0].rnic.port_attributes().active_mtu;
    let before = mtu(&stage);
    stage.arm(0, "mtu-change mtu=512 for=20ms");
    stage.run(5);
    assert_eq!(mtu(&stage), vrnic_wire::port::Mtu::Mtu512.raw());
    stage.run(50);
    assert_eq!(mtu(&stage), before);
}

#[test]
fn a_port_says_that_its_link_is_slow() {
    let mut stage = Stage::new(Segmentation::Local);
    let link = |stage: &Stage| {
        let port = stage.world.nodes[0].rnic.port_attributes();
        (port.active_width, port.active_speed.get())
    };
    let before = link(&stage);
    stage.arm(0, "speed-change for=20ms");
    stage.run(5);
    assert_eq!(link(&stage), (1, 1));
    stage.run(50);
    assert_eq!(link(&stage), before);
}

/// Without its GID, a device receives nothing and cannot be connected. The other GID stays.
#[test]
fn a_gid_vanishes_and_comes_back() {
    let mut stage = Stage::new(Segmentation::PathMtu);
    let gid = vrnic_engine::testing::gid_of(1);
    let generation = stage.world.nodes[1].rnic.gid_generation();
    stage.arm(1, "gid-vanishes value=7 for=20ms");
    stage.run(5);
    assert!(stage.world.nodes[1].rnic.has_gid(&gid));
    stage.run(50);
    stage.arm(1, "gid-vanishes");
    stage.run(5);
    assert!(!stage.world.nodes[1].rnic.has_gid(&gid));
    assert!(stage.world.nodes[1].rnic.gid_generation() > generation);
    stage.post(Op::Writes(1));
    stage.world.settle();
    assert_eq!(
        statuses(&stage.victim.send_cqs[0].drain()),
        [Status::RetryExceeded]
    );
    stage.world.nodes[1].rnic.faults_mut().clear(None);
    stage.run(5);
    assert!(stage.world.nodes[1].rnic.has_gid(&gid));
    stage.post_other();
    stage.world.settle();
    stage.check_other();
}

#[test]
fn the_clock_jumps_ahead_and_back() {
    let mut stage = Stage::new(Segmentation::Local);
    let clock = |stage: &mut Stage| {
        let node = &mut stage.world.nodes[0];
        node.guest.now = stage.world.now;
        let clock = node.guest.command(&mut node.rnic, QueryClock {});
        clock.expect("a clock").time.get() - stage.world.now.as_nanos()
    };
    assert_eq!(clock(&mut stage), 0);
    stage.arm(0, "clock-jump delay=2s for=20ms");
    stage.run(5);
    assert_eq!(clock(&mut stage), 2_000_000_000);
    stage.run(50);
    assert_eq!(clock(&mut stage), 0);
}

/// Only the second of two flushes fails.
#[test]
fn memory_does_not_survive() {
    let mut world = World::pair(3);
    let mut c = world.connect([0, 1], &QpOptions::default(), 8192, |_, _| {});
    let spec = "persistence-fails nth=2".parse().expect("a fault");
    let now = world.now;
    let armed = world.nodes[1].rnic.faults_mut().arm(spec, now);
    assert!(armed.is_ok());
    for (wr_id, status) in [
        (1, Status::Success),
        (2, Status::RemoteOperation),
        (3, Status::Flushed),
    ] {
        let (address, key) = (c.mrs[1].iova, c.mrs[1].key);
        let flush = Send::new(wr_id, SendOpcode::Flush).flush(address, key, 64, placement::ALL);
        c.send(&mut world, 0, &flush);
        world.settle();
        assert_eq!(statuses(&c.send_cqs[0].drain()), [status]);
    }
    let log: Vec<_> = world.nodes[1].rnic.faults().log().collect();
    assert_eq!((log.len(), log[0].qpn), (1, c.qps[1].qpn));
}

#[test]
fn a_device_fails_or_panics_once() {
    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "needs-reset after=5ms");
    stage.run(2);
    assert!(!stage.world.nodes[0].rnic.is_failing());
    stage.run(10);
    assert!(stage.world.nodes[0].rnic.is_failing());
    assert!(!stage.world.nodes[0].rnic.is_killing());

    // Removed from its slot. A reset does not put it back.
    for (lasts, end) in [("", None), (" for=20ms", Some(Duration::from_millis(25)))] {
        let mut stage = Stage::new(Segmentation::Local);
        let end = end.map(|end| stage.world.now + end);
        stage.arm(0, &["removed after=5ms", lasts].concat());
        stage.run(2);
        assert!(!stage.world.nodes[0].rnic.is_removed());
        stage.run(10);
        assert!(stage.world.nodes[0].rnic.is_removed());
        let mut faults = stage.world.nodes[0].rnic.take_faults();
        faults.rest();
        assert_eq!(faults.list()[0].progress, Progress::Active);
        let now = stage.world.now;
        assert!(faults.is_removed(now));
        assert_eq!(faults.removed_until(), end);
        assert_eq!(
            faults.is_removed(now + Duration::from_secs(100)),
            end.is_none()
        );
        faults.clear(None);
        assert!(!faults.is_removed(now));
    }

    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "daemon-killed after=5ms");
    stage.run(2);
    assert!(!stage.world.nodes[0].rnic.is_killing());
    stage.run(10);
    assert!(stage.world.nodes[0].rnic.is_killing());

    let mut stage = Stage::new(Segmentation::Local);
    stage.arm(0, "engine-panic");
    let panicked = catch_unwind(AssertUnwindSafe(|| stage.run(1)));
    assert!(panicked.is_err());
    // The faults outlive the engine, and this one is finished.
    let mut faults = stage.world.nodes[0].rnic.take_faults();
    faults.rest();
    assert!(faults.is_idle());
    assert_eq!(faults.log().count(), 1);
}
