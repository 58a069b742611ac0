// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Properties that hold for any network and any frames.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use vrnic_switch::{
    Drop, Endpoint, Impairment, Mac, Member, PortConfig, PortId, QueueLimits, Switch, Vlan,
    VlanSet, Vlans,
};

const AGE: Duration = Duration::from_secs(300);
const ROCE: [u8; 2] = [0x89, 0x15];
const OTHER: [u8; 2] = [0x08, 0x06];

fn vlan(identifier: u16) -> Vlan {
    Vlan::new(identifier).unwrap()
}

/// Returns the address of the port with this number if it is a NIC.
fn nic_mac(port: usize) -> Mac {
    Mac([2, 0, 0, 0, 1, port as u8])
}

fn endpoint(port: PortId, member: Member) -> Endpoint {
    Endpoint { port, member }
}

/// Returns a frame that contains its own number.
fn frame(destination: Mac, source: Mac, tag: Option<u16>, roce: bool, number: u32) -> Vec<u8> {
    let mut frame = [destination.0, source.0].concat();
    if let Some(identifier) = tag {
        frame.extend([0x81, 0x00]);
        frame.extend(identifier.to_be_bytes());
    }
    frame.extend(if roce { ROCE } else { OTHER });
    frame.extend(number.to_be_bytes());
    frame
}

/// Returns the VLAN identifier in the tag of a frame, and the frame's number.
fn read(frame: &[u8]) -> (Option<u16>, u32) {
    let number = u32::from_be_bytes(frame[frame.len() - 4..].try_into().unwrap());
    let tag =
        (frame[12..14] == [0x81, 0x00]).then(|| u16::from_be_bytes([frame[14], frame[15]]) & 0xfff);
    (tag, number)
}

fn take_all(switch: &mut Switch) -> Vec<(Endpoint, Vec<u8>)> {
    std::iter::from_fn(|| switch.pop()).collect()
}

#[derive(Debug, Clone)]
struct Sent {
    port: usize,
    rnic: bool,
    destination: Mac,
    source: Mac,
    tag: Option<u16>,
    roce: bool,
    after_seconds: u64,
}

fn ports() -> impl Strategy<Value = Vec<PortConfig>> {
    let vlans = prop_oneof![
        (1u16..4).prop_map(|id| Vlans::Access(vlan(id))),
        Just(Vlans::default()),
        (proptest::option::of(1u16..4), vec(1u16..4, 0..3)).prop_map(|(native, tagged)| {
            Vlans::Trunk {
                native: native.map(vlan),
                tagged: tagged.into_iter().map(vlan).collect(),
            }
        }),
    ];
    let port = (
        vlans,
        any::<bool>(),
        0usize..4,
        proptest::option::of(0u32..2),
    );
    vec(port, 2..6).prop_map(|ports| {
        let mut configs = Vec::new();
        for (index, (vlans, nic, addresses, group)) in ports.into_iter().enumerate() {
            let base = if nic {
                PortConfig::nic(nic_mac(index))
            } else {
                PortConfig::default()
            };
            configs.push(PortConfig {
                vlans,
                group,
                addresses,
                ..base
            });
        }
        configs
    })
}

fn macs() -> impl Strategy<Value = Mac> {
    prop_oneof![
        4 => (0usize..6).prop_map(nic_mac),
        4 => (0u8..5).prop_map(|n| Mac([2, 0, 0, 0, 2, n])),
        1 => Just(Mac::BROADCAST),
        1 => Just(Mac([0x33, 0x33, 0, 0, 0, 1])),
        1 => Just(Mac([0x01, 0x80, 0xc2, 0, 0, 1])),
    ]
}

fn traffic() -> impl Strategy<Value = Vec<Sent>> {
    let sent = (
        (0usize..6, any::<bool>()),
        macs(),
        macs(),
        proptest::option::of(0u16..5),
        any::<bool>(),
        prop_oneof![9 => 0u64..3, 1 => 290u64..310],
    );
    vec(sent, 1..60).prop_map(|all| {
        let sent = |((port, rnic), destination, source, tag, roce, after_seconds)| Sent {
            port,
            rnic,
            destination,
            source,
            tag,
            roce,
            after_seconds,
        };
        all.into_iter().map(sent).collect()
    })
}

/// A model of the same network, as simple as possible: lists, no table.
struct Model {
    ports: Vec<PortConfig>,
    /// VLAN, address, port, time.
    learned: Vec<(u16, Mac, usize, u64)>,
}

impl Model {
    fn vlan_of(&self, port: usize, tag: Option<u16>) -> Option<u16> {
        let tag = tag.filter(|&tag| tag != 0);
        match &self.ports[port].vlans {
            Vlans::Access(own) => tag.is_none_or(|tag| tag == own.get()).then(|| own.get()),
            Vlans::Trunk { native, tagged } => match tag {
                None => native.map(Vlan::get),
                Some(tag) => {
                    (tagged.contains(vlan(tag)) || *native == Some(vlan(tag))).then_some(tag)
                }
            },
        }
    }

    /// Returns the tag with which frames of `id` leave by `port`; `None` if they do not leave.
    #[expect(
        clippy::option_option,
        reason = "whether it leaves, and whether tagged"
    )]
    fn tag_of(&self, port: usize, id: u16) -> Option<Option<u16>> {
        match &self.ports[port].vlans {
            Vlans::Access(own) => (own.get() == id).then_some(None),
            Vlans::Trunk { native, tagged } => {
                if *native == Some(vlan(id)) {
                    Some(None)
                } else {
                    tagged.contains(vlan(id)).then_some(Some(id))
                }
            }
        }
    }

    fn fixed(&self, mac: Mac) -> Option<usize> {
        self.ports.iter().position(|port| port.mac == Some(mac))
    }

    /// Returns the endpoints that `sent` reaches, each with the tag.
    fn send(&mut self, sent: &Sent, now: u64) -> BTreeSet<(usize, Member, Option<u16>)> {
        let nobody = BTreeSet::new();
        let sender = if sent.rnic {
            Member::Rnic
        } else {
            Member::Netdev
        };
        if sent.source.is_multicast() {
            return nobody;
        }
        let Some(id) = self.vlan_of(sent.port, sent.tag) else {
            return nobody;
        };
        match self.fixed(sent.source) {
            Some(owner) if owner != sent.port => return nobody,
            Some(_) => {}
            None => {
                let fresh = |entry: &&(u16, Mac, usize, u64)| now - entry.3 < AGE.as_secs();
                let known =
                    |entry: &(u16, Mac, usize, u64)| entry.0 == id && entry.1 == sent.source;
                let here = self
                    .learned
                    .iter()
                    .filter(fresh)
                    .any(|entry| known(entry) && entry.2 == sent.port);
                let count = self
                    .learned
                    .iter()
                    .filter(fresh)
                    .filter(|e| e.2 == sent.port)
                    .count();
                if !here && count >= self.ports[sent.port].addresses {
                    return nobody;
                }
                self.learned.retain(|entry| !known(entry));
                self.learned.push((id, sent.source, sent.port, now));
            }
        }
        if sent.destination.0[..5] == [0x01, 0x80, 0xc2, 0, 0] {
            return nobody;
        }
        let multicast = sent.destination.is_multicast();
        let owner = self.fixed(sent.destination).or_else(|| {
            let entry = self
                .learned
                .iter()
                .find(|entry| entry.0 == id && entry.1 == sent.destination && now - entry.3 < 300);
            entry.map(|entry| entry.2)
        });
        let mut reached = BTreeSet::new();
        for (index, port) in self.ports.iter().enumerate() {
            let apart = index != sent.port
                && port.group.is_some()
                && port.group == self.ports[sent.port].group;
            let wanted = multicast || owner.map_or(port.addresses > 0, |owner| owner == index);
            let Some(tag) = self.tag_of(index, id).filter(|_| wanted && !apart) else {
                continue;
            };
            let for_rnic =
                port.rnic && sent.roce && (multicast || port.mac == Some(sent.destination));
            let for_netdev = multicast || !for_rnic;
            for (member, wanted) in [(Member::Netdev, for_netdev), (Member::Rnic, for_rnic)] {
                let own = index == sent.port && member == sender;
                if wanted && (!own || sent.rnic && !multicast) {
                    reached.insert((index, member, tag));
                }
            }
        }
        reached
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Each frame reaches exactly the right endpoints, once, with the right tag, and each frame is accounted for.
    #[test]
    fn frames_reach_whom_they_should(configs in ports(), traffic in traffic()) {
        let mut switch = Switch::new(AGE);
        let ids: Vec<PortId> = configs.iter().map(|config| switch.add_port(config.clone()).unwrap()).collect();
        let mut model = Model { ports: configs, learned: Vec::new() };
        let (mut now, mut given) = (0, 0);
        for (number, mut sent) in traffic.into_iter().enumerate() {
            sent.port %= ids.len();
            sent.rnic &= model.ports[sent.port].rnic;
            // The table sweeps expired addresses once a second, so an address that expired within this second may still
            // count.
            now += sent.after_seconds.max(1);
            let member = if sent.rnic { Member::Rnic } else { Member::Netdev };
            let bytes = frame(sent.destination, sent.source, sent.tag, sent.roce, number as u32);
            switch.receive(endpoint(ids[sent.port], member), bytes, Duration::from_secs(now));
            let out = take_all(&mut switch);
            given += out.len() as u64;
            let reached: BTreeSet<_> = out.iter().map(|(to, frame)| {
                let (tag, which) = read(frame);
                assert_eq!(which, number as u32);
                (to.port.index(), to.member, tag)
            }).collect();
            prop_assert_eq!(reached.len(), out.len(), "no duplicates");
            prop_assert_eq!(reached, model.send(&sent, now), "{:?}", sent);
        }
        let total: u64 = ids.iter().map(|&id| switch.counters(id).tx_frames).sum();
        prop_assert_eq!(total, given);
        prop_assert!(!switch.has_output());
    }

    /// Any bytes at all: nothing panics, and every frame that comes out went in.
    #[test]
    fn any_bytes_are_survived(configs in ports(), frames in vec((0usize..6, vec(any::<u8>(), 0..80)), 0..40)) {
        let mut switch = Switch::new(AGE);
        let ids: Vec<PortId> = configs.into_iter().map(|config| switch.add_port(config).unwrap()).collect();
        for (port, bytes) in frames {
            let from = endpoint(ids[port % ids.len()], Member::Netdev);
            let length = bytes.len();
            switch.receive(from, bytes, Duration::ZERO);
            for (_, out) in take_all(&mut switch) {
                prop_assert!(out.len().abs_diff(length) <= 4);
            }
        }
    }

    /// Switches that are all linked to each other, with the links of each in a group: a broadcast reaches every station
    /// once, and then no more frames travel.
    #[test]
    fn a_mesh_has_no_loops(switches in 2usize..5, stations in 1usize..4, from in (0usize..5, 0usize..4)) {
        let mut mesh: Vec<Switch> = Vec::new();
        let mut links: BTreeMap<(usize, PortId), usize> = BTreeMap::new();
        for index in 0..switches {
            let mut switch = Switch::new(AGE);
            for _ in 0..stations {
                switch.add_port(PortConfig::default()).unwrap();
            }
            for peer in (0..switches).filter(|&peer| peer != index) {
                let port = switch.add_port(PortConfig { group: Some(1), ..PortConfig::default() }).unwrap();
                links.insert((index, port), peer);
            }
            mesh.push(switch);
        }
        let port_to = |links: &BTreeMap<(usize, PortId), usize>, index: usize, peer: usize| {
            links.iter().find(|((at, _), to)| *at == index && **to == peer).map(|((_, port), _)| *port).unwrap()
        };
        let (start, station) = (from.0 % switches, from.1 % stations);
        let station = mesh[0].ports().nth(station).unwrap();
        let source = Mac([2, 0, 0, 0, 9, 9]);
        mesh[start].receive(endpoint(station, Member::Netdev), frame(Mac::BROADCAST, source, None, false, 7), Duration::ZERO);
        let (mut reached, mut hops) = (BTreeMap::new(), 0);
        while mesh.iter().any(Switch::has_output) {
            for index in 0..switches {
                for (to, bytes) in take_all(&mut mesh[index]) {
                    if let Some(&peer) = links.get(&(index, to.port)) {
                        hops += 1;
                        let port = port_to(&links, peer, index);
                        mesh[peer].receive(endpoint(port, Member::Netdev), bytes, Duration::ZERO);
                    } else {
                        *reached.entry((index, to.port)).or_insert(0) += 1;
                    }
                }
            }
            prop_assert!(hops < 100, "frames go in circles");
        }
        prop_assert_eq!(reached.len(), switches * stations - 1);
        prop_assert!(reached.values().all(|&times| times == 1));
    }

    /// A queue that is full does not affect others, and loses what came last.
    #[test]
    fn a_full_queue_loses_only_its_own_frames(count in 1u32..200, limit in 1usize..20) {
        let mut switch = Switch::new(AGE);
        let queue = QueueLimits { frames: limit, bytes: 1 << 20 };
        let wide = QueueLimits { frames: 200, bytes: 1 << 20 };
        let ids = [wide, queue, wide].map(|queue| switch.add_port(PortConfig { queue, ..PortConfig::default() }).unwrap());
        for number in 0..count {
            let bytes = frame(Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 1]), None, false, number);
            switch.receive(endpoint(ids[0], Member::Netdev), bytes, Duration::ZERO);
        }
        let kept = count.min(limit as u32);
        prop_assert_eq!(switch.counters(ids[1]).drops(Drop::QueueFull), u64::from(count - kept));
        let all = take_all(&mut switch);
        for (id, kept) in [(ids[1], kept), (ids[2], count)] {
            let of = all.iter().filter(|(to, _)| to.port == id);
            prop_assert_eq!(of.map(|(_, bytes)| read(bytes).1).collect::<Vec<_>>(), (0..kept).collect::<Vec<_>>());
        }
        for (to, bytes) in all {
            switch.lose(to.port, Drop::QueueFull, bytes);
        }
        prop_assert_eq!(switch.counters(ids[2]).drops(Drop::QueueFull), u64::from(count));
    }
}

fn nic_pair() -> (Switch, PortId, PortId) {
    let mut switch = Switch::new(AGE);
    let a = switch.add_port(PortConfig::nic(nic_mac(0))).unwrap();
    let b = switch.add_port(PortConfig::nic(nic_mac(1))).unwrap();
    (switch, a, b)
}

/// Returns the endpoints that get a frame from `from` to `destination`.
fn reached(switch: &mut Switch, from: Endpoint, destination: Mac, roce: bool) -> Vec<Endpoint> {
    let source = switch.config(from.port).mac.unwrap();
    switch.receive(
        from,
        frame(destination, source, None, roce, 0),
        Duration::ZERO,
    );
    take_all(switch).into_iter().map(|(to, _)| to).collect()
}

#[test]
fn members_of_a_nic_share_address_and_wire() {
    let (mut switch, a, b) = nic_pair();
    let (netdev_a, rnic_a) = (endpoint(a, Member::Netdev), endpoint(a, Member::Rnic));
    let (netdev_b, rnic_b) = (endpoint(b, Member::Netdev), endpoint(b, Member::Rnic));
    for from in [netdev_a, rnic_a] {
        assert_eq!(reached(&mut switch, from, nic_mac(1), true), [rnic_b]);
        assert_eq!(reached(&mut switch, from, nic_mac(1), false), [netdev_b]);
    }
    assert_eq!(
        reached(&mut switch, rnic_a, nic_mac(0), true),
        [rnic_a],
        "loopback"
    );
    assert_eq!(reached(&mut switch, netdev_a, nic_mac(0), true), [rnic_a]);
    assert_eq!(reached(&mut switch, rnic_a, nic_mac(0), false), [netdev_a]);
    assert_eq!(reached(&mut switch, netdev_a, nic_mac(0), false), []);
    assert_eq!(
        reached(&mut switch, netdev_a, Mac::BROADCAST, false),
        [netdev_b]
    );
    assert_eq!(
        reached(&mut switch, netdev_a, Mac::BROADCAST, true),
        [rnic_a, netdev_b, rnic_b]
    );
    assert_eq!(
        reached(&mut switch, rnic_a, Mac::BROADCAST, true),
        [netdev_a, netdev_b, rnic_b]
    );
    // Without its RNIC, the port is like that of any other network device.
    switch.set_up(rnic_b, false);
    assert_eq!(reached(&mut switch, netdev_a, nic_mac(1), true), [netdev_b]);
    switch.set_up(netdev_b, false);
    assert_eq!(reached(&mut switch, netdev_a, nic_mac(1), true), []);
    assert_eq!(switch.counters(b).drops(Drop::DownLeaving), 1);
    assert_eq!(reached(&mut switch, netdev_a, Mac::BROADCAST, false), []);
    assert_eq!(switch.counters(a).drops(Drop::Nowhere), 2);
}

#[test]
fn what_waits_for_an_endpoint_that_goes_down_is_lost() {
    let (mut switch, a, b) = nic_pair();
    let netdev_b = endpoint(b, Member::Netdev);
    let bytes = frame(nic_mac(1), nic_mac(0), None, false, 0);
    switch.receive(endpoint(a, Member::Netdev), bytes.clone(), Duration::ZERO);
    switch.set_up(netdev_b, false);
    switch.set_up(netdev_b, true);
    assert_eq!(take_all(&mut switch), []);
    assert_eq!(switch.counters(b).drops(Drop::DownLeaving), 1);
    switch.receive(endpoint(a, Member::Netdev), bytes, Duration::ZERO);
    assert_eq!(take_all(&mut switch).len(), 1);
    switch.set_up(endpoint(a, Member::Netdev), false);
    let bytes = frame(nic_mac(1), nic_mac(0), None, false, 0);
    switch.receive(endpoint(a, Member::Netdev), bytes, Duration::ZERO);
    assert_eq!(switch.counters(a).drops(Drop::Down), 1);
}

#[test]
fn an_address_cannot_be_taken() {
    let (mut switch, a, b) = nic_pair();
    switch.receive(
        endpoint(b, Member::Netdev),
        frame(Mac::BROADCAST, nic_mac(0), None, false, 0),
        Duration::ZERO,
    );
    switch.receive(
        endpoint(b, Member::Netdev),
        frame(Mac::BROADCAST, nic_mac(5), None, false, 0),
        Duration::ZERO,
    );
    assert_eq!(take_all(&mut switch), []);
    assert_eq!(switch.counters(b).drops(Drop::Spoofed), 1);
    assert_eq!(switch.counters(b).drops(Drop::Addresses), 1);
    assert_eq!(
        reached(&mut switch, endpoint(b, Member::Netdev), nic_mac(0), false),
        [endpoint(a, Member::Netdev)]
    );
    assert!(switch.add_port(PortConfig::nic(nic_mac(0))).is_none());
    assert!(
        switch
            .add_port(PortConfig {
                rnic: true,
                ..PortConfig::default()
            })
            .is_none()
    );
    assert!(switch.add_port(PortConfig::nic(Mac::BROADCAST)).is_none());
}

#[test]
fn the_mtu_holds_both_ways_and_counts_no_tag() {
    let mut switch = Switch::new(AGE);
    let wide = switch.add_port(PortConfig::default()).unwrap();
    let narrow = switch
        .add_port(PortConfig {
            mtu: 1500,
            ..PortConfig::default()
        })
        .unwrap();
    let mut send = |from: PortId, tag: Option<u16>, payload: usize| {
        let mut bytes = frame(
            Mac::BROADCAST,
            Mac([2, 0, 0, 0, 0, from.index() as u8]),
            tag,
            false,
            0,
        );
        bytes.resize(14 + tag.map_or(0, |_| 4) + payload, 0);
        switch.receive(endpoint(from, Member::Netdev), bytes, Duration::ZERO);
        let passed = take_all(&mut switch).len();
        (
            passed,
            switch.counters(narrow).drops(Drop::Oversize),
            switch.counters(narrow).drops(Drop::OversizeLeaving),
        )
    };
    assert_eq!(send(narrow, None, 1500), (1, 0, 0));
    assert_eq!(send(narrow, Some(9), 1500), (1, 0, 0));
    assert_eq!(send(narrow, None, 1501), (0, 1, 0));
    assert_eq!(send(wide, Some(9), 1500), (1, 1, 0));
    assert_eq!(send(wide, None, 1501), (0, 1, 1));
    assert_eq!(send(wide, None, 9001), (0, 1, 1));
}

#[test]
fn an_impaired_line_loses_repeats_and_delays() {
    let ms = Duration::from_millis;
    let run = |impairment: Impairment| {
        let mut switch = Switch::new(AGE);
        let from = switch.add_port(PortConfig::default()).unwrap();
        let to = switch
            .add_port(PortConfig {
                impairment,
                ..PortConfig::default()
            })
            .unwrap();
        let mut arrived = Vec::new();
        let mut now = Duration::ZERO;
        for number in 0..2000 {
            switch.receive(
                endpoint(from, Member::Netdev),
                frame(Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 1]), None, false, number),
                now,
            );
            now += ms(1);
            switch.advance(now);
            arrived.extend(take_all(&mut switch).iter().map(|(_, bytes)| read(bytes).1));
        }
        while let Some(due) = switch.next_deadline() {
            switch.advance(due);
            arrived.extend(take_all(&mut switch).iter().map(|(_, bytes)| read(bytes).1));
        }
        assert_eq!(switch.counters(to).tx_frames, arrived.len() as u64);
        (arrived, switch.counters(to).drops(Drop::Impaired))
    };
    let (arrived, lost) = run(Impairment {
        seed: 3,
        loss: 0.1,
        ..Impairment::default()
    });
    assert_eq!(arrived.len() as u64 + lost, 2000);
    assert!((150..250).contains(&lost), "{lost}");
    assert!(arrived.is_sorted());

    let bad = Impairment {
        seed: 3,
        duplicate: 0.1,
        delay: ms(5),
        reorder: 0.1,
        reorder_delay: ms(3),
        ..Impairment::default()
    };
    let (arrived, lost) = run(bad.clone());
    assert_eq!(lost, 0);
    assert!((2150..2250).contains(&arrived.len()), "{}", arrived.len());
    assert!(!arrived.is_sorted());
    assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), 2000);
    assert_eq!(run(bad.clone()).0, arrived, "the seed decides");
    assert_ne!(run(Impairment { seed: 4, ..bad }).0, arrived);
}

#[test]
fn what_is_on_the_line_is_bounded() {
    let mut switch = Switch::new(AGE);
    let from = switch.add_port(PortConfig::default()).unwrap();
    let to = switch
        .add_port(PortConfig {
            impairment: Impairment {
                delay: AGE,
                ..Impairment::default()
            },
            queue: QueueLimits {
                frames: 10,
                bytes: 1 << 20,
            },
            vlans: Vlans::Trunk {
                native: Some(Vlan::DEFAULT),
                tagged: VlanSet::none(),
            },
            ..PortConfig::default()
        })
        .unwrap();
    for number in 0..100 {
        switch.receive(
            endpoint(from, Member::Netdev),
            frame(Mac::BROADCAST, Mac([2, 0, 0, 0, 0, 1]), None, false, number),
            Duration::ZERO,
        );
    }
    assert_eq!(switch.counters(to).drops(Drop::QueueFull), 90);
    switch.advance(AGE);
    assert_eq!(take_all(&mut switch).len(), 10);
}
