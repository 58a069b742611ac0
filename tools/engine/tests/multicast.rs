// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Multicast groups: which queue pairs get a copy.

use std::collections::{BTreeMap, BTreeSet};
use vrnic_engine::{
    Features, RnicConfig, Segment,
    psn::Psn,
    segment::{Body, Path, Payload, Service, Touched},
    testing::{DatagramEnd, QpOptions, Send, World, gid_of},
};
use vrnic_wire::{
    command::{AttachMulticast, DestroyQp, DetachMulticast, SetGid, qp_flags},
    completion::Status,
    counter::Counter,
    port::{GidEntry, GidType, NO_VLAN},
    qp::{GSI_QPN, MULTICAST_QPN, QpState, QpType},
    work::{AddressVector, SendOpcode},
};

const QKEY: u32 = 0x2222_2222;

/// Returns the GID of an IPv4 group.
fn group(last: u8) -> [u8; 16] {
    let mut gid = gid_of(0);
    gid[12..].copy_from_slice(&[239, 1, 2, last]);
    gid
}

/// A queue pair that sends to groups and receives what is sent to them.
struct Member(DatagramEnd);

impl Member {
    fn new(world: &mut World, node: usize, qkey: u32) -> Self {
        let qp_type = QpType::UnreliableDatagram;
        Self(DatagramEnd::new(world, node, qp_type, qkey, 8192))
    }

    fn attach(&self, world: &mut World, gid: [u8; 16]) {
        let place = &mut world.nodes[self.0.node];
        let request = AttachMulticast {
            qpn: self.0.qp.qpn.into(),
            gid,
            ..AttachMulticast::default()
        };
        place.guest.command(&mut place.rnic, request).expect("room");
    }

    fn detach(&self, world: &mut World, gid: [u8; 16]) {
        let place = &mut world.nodes[self.0.node];
        let request = DetachMulticast {
            qpn: self.0.qp.qpn.into(),
            gid,
            ..DetachMulticast::default()
        };
        place
            .guest
            .command(&mut place.rnic, request)
            .expect("attached");
    }

    fn send_to(&mut self, world: &mut World, gid: [u8; 16], qpn: u32, text: &[u8]) {
        let to = AddressVector {
            dgid: gid,
            ..AddressVector::default()
        };
        let send = Send::new(1, SendOpcode::Send)
            .inline(text)
            .datagram(to, qpn, QKEY);
        self.0.send(world, &send);
        world.settle();
        assert_eq!(self.0.send_cq.drain()[0].status, Status::Success);
    }

    fn receive(&mut self, world: &mut World, wr_id: u64) {
        self.0.receive(world, wr_id, wr_id as usize * 256, 256);
    }

    /// Returns the payloads that arrived, each in a receive of 256 bytes at its `wr_id`.
    fn got(&mut self) -> Vec<Vec<u8>> {
        let done = self.0.recv_cq.drain();
        let payload = |wr_id: u64, length: u32| {
            let begin = wr_id as usize * 256 + 40;
            self.0.mr.arena.get(begin, length as usize - 40)
        };
        done.iter()
            .map(|cqe| {
                assert_eq!(cqe.status, Status::Success);
                payload(cqe.wr_id, cqe.length)
            })
            .collect()
    }
}

fn dropped(world: &World, node: usize) -> u64 {
    world.nodes[node].rnic.counters()[Counter::Dropped as usize]
}

#[test]
fn every_member_everywhere_gets_one_copy() {
    let mut world = World::new(3, 512, &RnicConfig::default(), 1);
    let mut ends: Vec<Member> = [0, 0, 1, 1, 2]
        .iter()
        .map(|&node| Member::new(&mut world, node, QKEY))
        .collect();
    for end in &mut ends {
        end.receive(&mut world, 0);
        end.receive(&mut world, 1);
    }
    // All but the second of node 1.
    for member in [0, 1, 2, 4] {
        ends[member].attach(&mut world, group(1));
    }
    ends[3].attach(&mut world, group(2));
    ends[0].send_to(&mut world, group(1), MULTICAST_QPN, b"to one");
    for (index, end) in ends.iter_mut().enumerate() {
        let expected: &[&[u8]] = if index == 3 { &[] } else { &[b"to one"] };
        assert_eq!(end.got(), expected, "end {index}, the sender included");
    }
    ends[4].send_to(&mut world, group(2), MULTICAST_QPN, b"to two");
    assert_eq!(ends[3].got(), [b"to two"]);
    assert_eq!(ends[4].got(), [b""; 0], "a sender need not be in the group");
    let bytes = ends[3].0.mr.arena.get(0, 40);
    assert_eq!(bytes[32..36], gid_of(2)[12..]);
    assert_eq!(bytes[36..40], group(2)[12..]);
    for node in 0..3 {
        assert_eq!(dropped(&world, node), 0);
    }
}

#[test]
fn what_one_drops_others_get() {
    let mut world = World::pair(2);
    let mut sender = Member::new(&mut world, 0, QKEY);
    let mut wrong_qkey = Member::new(&mut world, 1, QKEY + 1);
    let mut without_receive = Member::new(&mut world, 1, QKEY);
    let mut broken = Member::new(&mut world, 1, QKEY);
    let mut good = Member::new(&mut world, 1, QKEY);
    wrong_qkey.receive(&mut world, 0);
    good.receive(&mut world, 0);
    let place = &mut world.nodes[1];
    let nowhere = vrnic_wire::work::Sge {
        address: 0.into(),
        length: 256.into(),
        lkey: 0xdead_be00.into(),
    };
    assert!(
        place
            .guest
            .post_receive(&mut place.rnic, &mut broken.0.qp, 0, &[nowhere])
    );
    for end in [&wrong_qkey, &without_receive, &broken, &good] {
        end.attach(&mut world, group(1));
    }
    sender.send_to(&mut world, group(1), MULTICAST_QPN, b"all");
    assert_eq!(good.got(), [b"all"]);
    assert!(wrong_qkey.got().is_empty() && without_receive.got().is_empty());
    let failed = broken.0.recv_cq.drain();
    assert_eq!(failed[0].status, Status::LocalProtection);
    assert_eq!(world.state(1, broken.0.qp.qpn), QpState::Error);
    assert_eq!(world.state(1, good.0.qp.qpn), QpState::ReadyToSend);
    assert_eq!(dropped(&world, 1), 2);
}

#[test]
fn nobody_else_gets_anything() {
    let mut world = World::pair(3);
    let mut a = Member::new(&mut world, 0, QKEY);
    let mut b = Member::new(&mut world, 1, QKEY);
    b.receive(&mut world, 0);
    // Without members, nothing happens.
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"x");
    b.attach(&mut world, group(1));
    // Another group, the queue pairs of a group, all queue pairs of one device.
    a.send_to(&mut world, group(2), MULTICAST_QPN, b"x");
    a.send_to(&mut world, group(1), b.0.qp.qpn, b"x");
    a.send_to(&mut world, group(1), GSI_QPN, b"x");
    a.send_to(&mut world, gid_of(1), MULTICAST_QPN, b"x");
    b.detach(&mut world, group(1));
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"x");
    assert!(b.got().is_empty());
    // Its receive is still posted.
    b.attach(&mut world, group(1));
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"y");
    assert_eq!(b.got(), [b"y"]);
    let place = &mut world.nodes[1];
    let destroy = DestroyQp {
        qpn: b.0.qp.qpn.into(),
        ..DestroyQp::default()
    };
    place.guest.command(&mut place.rnic, destroy).expect("done");
    assert!(!place.rnic.has_group(&(group(1), 0)));
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"z");
}

#[test]
fn frames_of_another_vlan_or_version_are_not_for_the_port() {
    for (vlan, gid_type) in [(5, GidType::RoceV2), (NO_VLAN, GidType::RoceV1)] {
        let mut world = World::pair(4);
        let mut a = Member::new(&mut world, 0, QKEY);
        let mut b = Member::new(&mut world, 1, QKEY);
        let mut c = Member::new(&mut world, 0, QKEY);
        for end in [&mut b, &mut c] {
            end.receive(&mut world, 0);
            end.attach(&mut world, group(1));
        }
        let set = |world: &mut World, node: usize, index: u32| {
            let place = &mut world.nodes[node];
            let request = SetGid {
                index: index.into(),
                entry: GidEntry {
                    gid: gid_of(node),
                    vlan: vlan.into(),
                    gid_type: gid_type.raw(),
                    ..GidEntry::default()
                },
                ..SetGid::default()
            };
            place.guest.command(&mut place.rnic, request).expect("gid");
        };
        set(&mut world, 0, 0);
        a.send_to(&mut world, group(1), MULTICAST_QPN, b"x");
        assert_eq!(dropped(&world, 1), 1);
        assert!(b.got().is_empty());
        assert_eq!(c.got(), [b"x"], "the sender's device");
        set(&mut world, 1, 1);
        a.send_to(&mut world, group(1), MULTICAST_QPN, b"y");
        assert_eq!(b.got(), [b"y"]);
    }
}

#[test]
fn what_comes_back_is_not_delivered_twice() {
    // The fabric of these tests returns each datagram for a group to its sender too.
    let mut world = World::pair(5);
    let mut a = Member::new(&mut world, 0, QKEY);
    a.attach(&mut world, group(1));
    for wr_id in 0..3 {
        a.receive(&mut world, wr_id);
    }
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"once");
    assert_eq!(a.got(), [b"once"]);
}

#[test]
fn a_queue_pair_can_do_without_its_own_datagrams() {
    let mut world = World::pair(8);
    let options = QpOptions {
        qp_type: QpType::UnreliableDatagram,
        flags: qp_flags::BLOCK_OWN_MULTICAST,
        ..QpOptions::default()
    };
    let mut blocking = |node| {
        Member(DatagramEnd::with_options(
            &mut world, node, &options, QKEY, 8192,
        ))
    };
    // That of the other device has the same number.
    let [mut a, mut other, mut remote] = [0, 0, 1].map(&mut blocking);
    assert_eq!(a.0.qp.qpn, remote.0.qp.qpn);
    let mut plain = Member::new(&mut world, 0, QKEY);
    for member in [&mut a, &mut other, &mut remote, &mut plain] {
        member.attach(&mut world, group(1));
        for wr_id in 0..4 {
            member.receive(&mut world, wr_id);
        }
    }
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"by a");
    assert_eq!(a.got(), [b""; 0]);
    for member in [&mut other, &mut remote, &mut plain] {
        assert_eq!(member.got(), [b"by a"]);
    }
    remote.send_to(&mut world, group(1), MULTICAST_QPN, b"remote");
    assert_eq!(remote.got(), [b""; 0]);
    assert_eq!(a.got(), [b"remote"]);
    plain.send_to(&mut world, group(1), MULTICAST_QPN, b"plain");
    assert_eq!(plain.got(), [&b"remote"[..], b"plain"]);
}

#[test]
fn without_the_feature_sends_leave_and_nothing_arrives() {
    let config = RnicConfig {
        features: Features {
            multicast: false,
            ..Features::ALL
        },
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 512, &config, 6);
    let mut a = Member::new(&mut world, 0, QKEY);
    let mut b = Member::new(&mut world, 1, QKEY);
    b.receive(&mut world, 0);
    a.send_to(&mut world, group(1), MULTICAST_QPN, b"x");
    assert!(b.got().is_empty());
    let sent = world.nodes[0].rnic.counters()[Counter::TransmitPackets as usize];
    assert_eq!(sent, 1);
}

/// Attaches, detaches and sends at random. Each member must receive exactly what a model predicts.
#[test]
fn a_model_knows_who_gets_what() {
    let mut world = World::new(3, 2048, &RnicConfig::default(), 7);
    let mut ends: Vec<Member> = (0..9)
        .map(|index| Member::new(&mut world, index % 3, QKEY))
        .collect();
    let mut members: BTreeMap<u8, BTreeSet<usize>> = BTreeMap::new();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % limit
    };
    for round in 0..2000_u32 {
        let (end, number) = (below(9) as usize, below(4) as u8);
        let there = members.entry(number).or_default();
        match below(3) {
            0 if there.insert(end) => ends[end].attach(&mut world, group(number)),
            1 if there.remove(&end) => ends[end].detach(&mut world, group(number)),
            _ => {
                for end in &mut ends {
                    end.receive(&mut world, 0);
                }
                let text = round.to_le_bytes();
                ends[end].send_to(&mut world, group(number), MULTICAST_QPN, &text);
                for (index, end) in ends.iter_mut().enumerate() {
                    let got = end.got();
                    assert_eq!(got.len(), usize::from(there.contains(&index)));
                    assert!(got.iter().all(|payload| payload == &text));
                    if got.is_empty() {
                        // Uses up the receive, so that there is one the next time.
                        let own = gid_of(index % 3);
                        let qpn = end.0.qp.qpn;
                        end.send_to(&mut world, own, qpn, b"");
                        assert_eq!(end.got(), [b""]);
                    }
                }
            }
        }
    }
}

#[test]
fn a_device_pays_for_additional_copies() {
    const MEMBERS: usize = 64;
    const PAYLOAD: u64 = 100;
    // Each copy beyond the first also costs as much as this number of bytes.
    let limit = (8 << 20) / (1024 + PAYLOAD) + 1;
    let mut world = World::new(2, 2048, &RnicConfig::default(), 21);
    let sender = Member::new(&mut world, 0, QKEY);
    for _ in 0..MEMBERS {
        Member::new(&mut world, 1, QKEY).attach(&mut world, group(1));
    }
    let received = |world: &World| {
        let counters = world.nodes[1].rnic.counters();
        counters[Counter::ReceivePackets as usize]
    };
    let send = |world: &mut World| {
        let path = Path {
            source: gid_of(0),
            destination: group(1),
            vlan: NO_VLAN,
            ..Path::default()
        };
        world.deliver(Segment {
            path,
            source_qpn: sender.0.qp.qpn,
            destination_qpn: MULTICAST_QPN,
            pkey: 0xffff,
            psn: Psn::new(0),
            solicited: false,
            ack_request: false,
            migrated: false,
            service: Service::Reliable,
            body: Body::Datagram {
                qkey: QKEY,
                source_qpn: sender.0.qp.qpn,
                immediate: None,
            },
            payload: Payload::Bytes(vec![7; PAYLOAD as usize]),
            checksums_ok: false,
            touched: Touched::NOT,
        });
    };
    // Datagrams arrive faster than the device has turns.
    let count = 1000;
    (0..count).for_each(|_| send(&mut world));
    assert_eq!(received(&world), count + limit, "one of each, and more");
    world.settle();
    send(&mut world);
    assert_eq!(
        received(&world),
        count + limit + MEMBERS as u64,
        "all again"
    );
}
