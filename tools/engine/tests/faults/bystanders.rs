// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Every fault harms nobody else: not the other connections of the same devices if it names an object of one, and never
//! a third device that talks to the peer of the faulty one. The tests of vrnicd check the faults that end a device.

use super::{LONG, MR, config, device::execute, statuses};
use std::{panic::catch_unwind, time::Duration};
use vrnic_engine::{
    Segmentation,
    fault::{Kind, Seam, Spec},
    testing::{Connection, DatagramEnd, Mr, QpOptions, Send, Srq, World, gid_of},
};
use vrnic_wire::{
    command::{CreatePd, DestroyQp},
    completion::Status,
    counter::Counter,
    memory::access,
    qp::{QpState, QpType},
    work::{AddressVector, SendOpcode, placement},
};

/// Faults that end the device or the daemon, which is not the engine's to do. `tools/vrnicd/tests/bystanders.rs` has
/// the first two. The last one ends all devices, as Documentation/faults.rst says.
const ENDINGS: &[&str] = &["engine-panic", "removed", "daemon-killed"];

/// Longest time that a request of a bystander takes.
const SOON: Duration = Duration::from_millis(20);

/// Time after which a fault and what it did to the victim are over.
const LATER: Duration = Duration::from_secs(5);

/// Faults that are never over: the victim waits for a receiver or for pages until the fault is cleared.
const ENDLESS: &[&str] = &["rnr-storm", "page-fault-slow", "page-fault-lost"];

/// Counters of a device that increase if something goes wrong on one of its connections.
const TROUBLE: &[Counter] = &[
    Counter::CompletionErrors,
    Counter::Timeouts,
    Counter::Retransmits,
    Counter::SequenceNaksSent,
    Counter::SequenceNaksReceived,
    Counter::DuplicateRequests,
];

/// Three devices. The first has the fault, and programs that do everything that faults can strike. The second is their
/// peer, and the peer of the third.
struct Crowd {
    world: World,
    victim: Connection,
    datagrams: [DatagramEnd; 2],
    srq: Srq,
    paged: Mr,
    /// Another connection of the first two devices.
    neighbor: Connection,
    /// A connection of the third device with the second.
    stranger: Connection,
}

impl Crowd {
    fn new(segmentation: Segmentation) -> Self {
        let mut world = World::new(3, 4096, &config(segmentation), 7);
        let [victim, neighbor, stranger] = [[0, 1], [0, 1], [2, 1]]
            .map(|nodes| world.connect(nodes, &QpOptions::default(), MR, |_, _| {}));
        let datagrams = [0, 1]
            .map(|node| DatagramEnd::new(&mut world, node, QpType::UnreliableDatagram, 7, 8192));
        let node = &mut world.nodes[0];
        let srq = node.guest.try_srq(&mut node.rnic, 16, 1, 0).expect("srq");
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let paged = node.guest.paged_mr(&mut node.rnic, 0, 8192, rights);
        Self {
            world,
            victim,
            datagrams,
            srq,
            paged,
            neighbor,
            stranger,
        }
    }

    fn arm(&mut self, text: &str) -> u64 {
        let now = self.world.now;
        let spec = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
        let mut faults = self.world.nodes[0].rnic.faults_mut();
        faults.arm(spec, now).expect("room")
    }

    /// Returns the description of a fault, limited to objects of the victim if such a fault can be, and whether it is.
    fn describe(&self, kind: &Kind) -> (String, bool) {
        let more = match kind.name {
            "limit-lowered" => " code=create-pd limit=1",
            "burst-loss" => " chance=1 count=4",
            "mtu-black-hole" => " size=500..65536",
            // Other numbers may be those of bystanders, which is what such a fault is for.
            "wrong-qp" | "answers-for-another" | "wrong-source" | "wrong-destination" => {
                " value=99999"
            }
            // A device that does nothing for long makes the test slow.
            "stuck" | "slow" => " for=10ms",
            _ => "",
        };
        let text = format!("{}{more}", kind.name);
        let qp = match kind.name {
            "wrong-qkey" => self.datagrams[0].qp.qpn,
            _ => self.victim.qps[0].qpn,
        };
        let places = [
            format!(" qp={qp}"),
            format!(" cq={}", self.victim.send_cqs[0].cqn),
            format!(" srq={}", self.srq.srqn),
        ];
        let limited = places.map(|place| format!("{text}{place}"));
        let valid = |text: &&String| text.parse::<Spec>().is_ok();
        match limited.iter().find(valid) {
            Some(limited) => (limited.clone(), true),
            None => (text, false),
        }
    }

    /// Arms the faults without which this one has no occasion.
    fn arm_occasion(&mut self, kind: &Kind) {
        let qp = self.victim.qps[0].qpn;
        let occasion = match kind.name {
            "lost-nak" => format!("nak-sequence qp={qp} nth=2"),
            "lost-rnr-nak" => format!("rnr-nak qp={qp}"),
            _ => return,
        };
        self.arm(&occasion);
    }

    /// Does everything that faults can strike.
    fn provoke(&mut self, kind: &Kind) {
        let Self { world, victim, .. } = self;
        // Requests that ask for pages, and that raise an event of the queue pair.
        let special = match kind.name {
            "page-fault-slow" | "page-fault-lost" => Some(self.paged.key),
            "event-lost" | "event-late" => Some(!self.paged.key),
            _ => None,
        };
        if let Some(key) = special {
            let write = Send::new(8, SendOpcode::Write)
                .rdma(self.paged.iova, key)
                .element(victim.mrs[1].sge(0, 100));
            victim.send(world, 1, &write);
        }
        for side in [0, 1] {
            victim.send_cqs[side].arm(false);
            for wr_id in 0..4 {
                let sge = victim.mrs[side].sge(LONG, 1000);
                victim.receive(world, side, wr_id, &[sge]);
            }
        }
        for side in [0, 1] {
            let (address, key) = (victim.mrs[1 - side].iova, victim.mrs[1 - side].key);
            let there = |wr_id, opcode| Send::new(wr_id, opcode).rdma(address, key);
            let [long, short] = [LONG, 1000].map(|length| victim.mrs[side].sge(0, length));
            let word = victim.mrs[side].sge(8, 8);
            let sends = [
                Send::new(0, SendOpcode::Send).element(short),
                there(1, SendOpcode::Write).element(long),
                there(2, SendOpcode::WriteWithImmediate).element(short),
                there(3, SendOpcode::Read).element(long),
                Send::new(4, SendOpcode::FetchAdd)
                    .atomic(address, key, 1, 0)
                    .element(word),
                Send::new(5, SendOpcode::Flush).flush(address, key, 64, placement::ALL),
                there(6, SendOpcode::Write).element(short),
                Send::new(7, SendOpcode::Send).element(short),
            ];
            for send in &sends {
                victim.send(world, side, send);
            }
        }
        let [from, to] = &mut self.datagrams;
        to.receive(world, 0, 0, 2000);
        let address = AddressVector {
            dgid: gid_of(1),
            ..AddressVector::default()
        };
        let send = Send::new(0, SendOpcode::Send)
            .datagram(address, to.qp.qpn, 7)
            .element(from.mr.sge(0, 1000));
        from.send(world, &send);
        if kind.seam() == Seam::Command {
            self.command();
        }
    }

    /// Executes commands of the victim; whether they fail is the fault's business.
    fn command(&mut self) {
        let node = &mut self.world.nodes[0];
        let context = node.guest.context.into();
        let arena = node.guest.arena(4096);
        let _ = (node.guest).try_register(&mut node.rnic, arena, 4096, access::LOCAL_WRITE);
        let create = CreatePd {
            context,
            reserved: 0.into(),
        };
        execute(&mut self.world, create);
        let destroy = DestroyQp {
            qpn: self.datagrams[0].qp.qpn.into(),
            reserved: 0.into(),
        };
        execute(&mut self.world, destroy);
    }
}

/// Makes a bystander send, write, read and add.
fn post(it: &mut Connection, world: &mut World, round: u8) {
    let fill = |seed: u8| -> Vec<u8> { (0..LONG).map(|at| (at % 251) as u8 ^ seed).collect() };
    it.mrs[0].arena.put(0, &fill(round));
    it.mrs[1].arena.put(0, &vec![0; LONG]);
    it.mrs[1].arena.put(LONG, &fill(round ^ 0x55));
    it.receive(world, 1, 0, &[]);
    let (address, key) = (it.mrs[1].iova, it.mrs[1].key);
    let sends = [
        Send::new(0, SendOpcode::Send),
        Send::new(1, SendOpcode::Write)
            .rdma(address, key)
            .element(it.mrs[0].sge(0, LONG)),
        Send::new(2, SendOpcode::Read)
            .rdma(address + LONG as u64, key)
            .element(it.mrs[0].sge(LONG, LONG)),
        Send::new(3, SendOpcode::FetchAdd)
            .atomic(address + 2 * LONG as u64, key, 1, 0)
            .element(it.mrs[0].sge(2 * LONG, 8)),
    ];
    for send in &sends {
        it.send(world, 0, send);
    }
}

/// Checks that all of that is done, and that the queue pairs still work.
fn check(it: &mut Connection, world: &mut World, round: u8, what: &str) {
    let sent: Vec<_> = it.send_cqs[0].drain();
    let ids: Vec<_> = sent.iter().map(|one| one.wr_id).collect();
    assert_eq!(ids, [0, 1, 2, 3], "{what}");
    assert_eq!(statuses(&sent), [Status::Success; 4], "{what}");
    let received = it.recv_cqs[1].drain();
    assert_eq!(statuses(&received), [Status::Success], "{what}");
    for offset in [0, LONG] {
        let [here, there] = [0, 1].map(|side: usize| it.mrs[side].arena.get(offset, LONG));
        assert!(here == there, "data at {offset}: {what}");
    }
    let count = it.mrs[1].arena.get(2 * LONG, 8);
    assert_eq!(count, u64::from(round).to_le_bytes(), "{what}");
    for side in 0..2 {
        let state = world.state(it.nodes[side], it.qps[side].qpn);
        assert_eq!(state, QpState::ReadyToSend, "{what}");
    }
}

fn endure(kind: &Kind, segmentation: Segmentation) {
    let mut crowd = Crowd::new(segmentation);
    let (text, is_limited) = crowd.describe(kind);
    let what = format!("{text} on {segmentation:?}");
    crowd.arm_occasion(kind);
    let id = crowd.arm(&text);
    // Once while the fault strikes, and once afterwards.
    for round in [1, 2] {
        post(&mut crowd.stranger, &mut crowd.world, round);
        if is_limited {
            post(&mut crowd.neighbor, &mut crowd.world, round);
        }
        if round == 1 {
            crowd.provoke(kind);
        }
        crowd.world.run(SOON);
        // Faults strike events when the driver takes them.
        let rnic = &mut crowd.world.nodes[0].rnic;
        while rnic.next_async_event().is_some() {}
        let stranger = format!("a stranger, round {round}: {what}");
        check(&mut crowd.stranger, &mut crowd.world, round, &stranger);
        if is_limited {
            let neighbor = format!("a neighbor, round {round}: {what}");
            check(&mut crowd.neighbor, &mut crowd.world, round, &neighbor);
        }
        if !ENDLESS.contains(&kind.name) {
            crowd.world.run(LATER);
        }
    }
    let counters = crowd.world.nodes[2].rnic.counters();
    for counter in TROUBLE {
        assert_eq!(counters[*counter as usize], 0, "{counter:?}: {what}");
    }
    let list = crowd.world.nodes[0].rnic.faults().list();
    let fault = list.iter().find(|fault| fault.id == id);
    let fired = fault.map_or(0, |fault| fault.fired);
    assert!(fired > 0, "it did not fire: {what}");
}

/// Checks all faults on a fabric.
fn check_all(segmentation: Segmentation) {
    let kinds = Kind::all().filter(|kind| !ENDINGS.contains(&kind.name));
    // Each one that fails says why.
    let failed: Vec<_> = kinds
        .filter(|kind| catch_unwind(|| endure(kind, segmentation)).is_err())
        .map(|kind| kind.name)
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn no_fault_harms_anybody_else_on_the_local_fabric() {
    check_all(Segmentation::Local);
}

#[test]
fn no_fault_harms_anybody_else_on_a_wire() {
    check_all(Segmentation::PathMtu);
}
