// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faulty nodes and managers cannot harm other nodes or the program that runs the subnet.

use super::{
    MILLISECOND, SECOND, arrivals, datagram, discards, general, lid, managed, management,
    next_datagram,
};
use crate::manager::Manager;
use vrnic_infiniband::{
    Lid,
    attributes::{
        LinearForwarding, MulticastForwarding, PKeyTable, PortCounters, SlToVl, SwitchInfo,
        capability, id,
    },
    hca::SendError,
    mad::{MANAGEMENT_QKEY, Method, PerformanceMad, Route, Smp, Status},
    packet::{Body, Deth, GRH_NEXT_HEADER, Grh, Packet},
    performance::{ALL_PORTS, Statistics},
    subnet::{NodeId, Subnet},
    trap::Trap,
};

/// Creates a ring of three switches whose tables send packets to `CIRCLING` and the group `GROUP` around it in a loop.
fn circle(more: &str) -> (Subnet, Manager, [NodeId; 3]) {
    let (mut subnet, mut manager) = managed(&format!("{more}[ring]\nswitches = 3\nhosts = 1"));
    // Wait until no traps are pending.
    manager.wait(&mut subnet, SECOND);
    let switches = ["switch1", "switch2", "switch3"].map(|name| subnet.find(name).unwrap());
    for place in 0..3 {
        let (node, next) = (switches[place], switches[(place + 1) % 3]);
        let leads = |port: &u8| subnet.peer(node, *port).is_some_and(|it| it.1 == next);
        let port = (1..=3).find(leads).unwrap();
        let own = lid(&subnet, node);
        let found = manager.found.iter().find(|found| found.lid == own).unwrap();
        let path = found.path.clone();
        let mut ports = [0xff; 64];
        ports[usize::from(CIRCLING)] = port;
        let table = LinearForwarding { ports }.to_data();
        manager.set(&mut subnet, &path, id::LINEAR_FORWARDING, 0, table);
        let mut groups = MulticastForwarding::default();
        // Send the group to the switch itself as well.
        groups.ports[usize::from(GROUP - 0xc000)] = 1 << port | 1;
        manager.set(
            &mut subnet,
            &path,
            id::MULTICAST_FORWARDING,
            0,
            groups.to_data(),
        );
        let data = manager.get(&mut subnet, &path, id::SWITCH_INFO, 0).unwrap();
        let info = SwitchInfo {
            linear_top: 63,
            ..SwitchInfo::read(&data)
        };
        manager.set(&mut subnet, &path, id::SWITCH_INFO, 0, info.to_data());
    }
    (subnet, manager, switches)
}

const CIRCLING: Lid = 60;

const GROUP: Lid = 0xc005;

/// Returns the number of packets that switches sent, and of those that they could not forward.
fn sent(subnet: &Subnet, switches: &[NodeId]) -> (u64, u16) {
    let ports = switches.iter().flat_map(|switch| {
        let agent = subnet.agent(*switch);
        agent.external_ports().filter_map(|port| agent.port(port))
    });
    ports.fold((0, 0), |(packets, errors), port| {
        let statistics = port.statistics();
        (
            packets + statistics.extended.transmit_packets,
            errors + statistics.counters.receive_switch_relay_errors,
        )
    })
}

/// A packet in a loop ends after a limited number of hops, whether it is unicast, multicast or management, and with or
/// without flow control.
#[test]
fn a_circle_in_the_tables_has_an_end() {
    for more in ["", "buffer = 20000\n"] {
        for kind in 0..3 {
            let (mut subnet, manager, switches) = circle(more);
            let before = sent(&subnet, &switches);
            match kind {
                0 => subnet
                    .send(manager.at, datagram(CIRCLING, 0xffff, b"round"))
                    .unwrap(),
                1 => subnet
                    .send(manager.at, datagram(GROUP, 0xffff, b"round"))
                    .unwrap(),
                _ => {
                    let smp = Smp::request(Method::GET, id::NODE_INFO, 0);
                    subnet.send_smp(manager.at, &smp, CIRCLING).unwrap();
                }
            }
            for time in [MILLISECOND, SECOND] {
                subnet.run_until(subnet.now() + time);
                let after = sent(&subnet, &switches);
                let hops = after.0 - before.0;
                assert!((64..200).contains(&hops), "{more}{kind}: {hops} hops");
                assert_eq!(after.1 - before.1, 1, "{more}{kind}");
            }
        }
    }
}

/// A sender that exceeds the rate of a link loses packets, and other senders do not.
#[test]
fn what_waits_for_a_link_has_bounds() {
    let (mut subnet, _) = managed(
        "[[switch]]\nname = 's'\nports = 4\n[[hca]]\nname = 'm'\n[[hca]]\nname = 'slow'\n[[hca]]\nname = 'b'\n\
         [[hca]]\nname = 'c'\n[[link]]\nends = ['m', 's/1']\n[[link]]\nends = ['slow', 's/2']\nwidth = '1x'\n\
         speed = 'sdr'\n[[link]]\nends = ['b', 's/3']\n[[link]]\nends = ['c', 's/4']",
    );
    let [m, slow, b, c] = ["m", "slow", "b", "c"].map(|name| subnet.find(name).unwrap());
    let (to_slow, to_c) = (lid(&subnet, slow), lid(&subnet, c));
    let mut arrived = Vec::new();
    for _ in 0..3 {
        let flows = [(m, to_slow, 0, 2000), (b, to_c, 1, 2000)];
        arrived.extend(arrivals(&mut subnet, &flows, MILLISECOND));
    }
    arrived.extend(arrivals(&mut subnet, &[], SECOND));
    let of = |to: Lid| {
        arrived
            .iter()
            .filter(|packet| packet.destination == to)
            .count()
    };
    assert_eq!(of(to_c), 6000);
    assert!((3000..4200).contains(&of(to_slow)), "{}", of(to_slow));
    assert_eq!(of(to_slow) + discards(&subnet) as usize, 6000);
}

/// The owner of an HCA has no more access to its port than the network, because the management key belongs to the
/// subnet manager.
#[test]
fn the_owner_of_an_hca_does_not_get_its_management_key() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let hca = subnet.hcas().next().expect("an HCA");
    manager.change_port(&mut subnet, &[], 1, |info| {
        (info.m_key, info.m_key_protection) = (0x5ec_2e70, 3);
    });
    let own = lid(&subnet, hca);
    let get = Smp::request(Method::GET, id::PORT_INFO, 1);
    let mut table = PKeyTable::default();
    table.keys[..2].copy_from_slice(&[0xffff, 0x8001]);
    let set = Smp {
        data: table.to_data(),
        ..Smp::request(Method::SET, id::PKEY_TABLE, 0)
    };
    for smp in [&get, &set] {
        for route in [false, true] {
            let mut smp = smp.clone();
            if route {
                let mut route = Route::along(&[]).expect("a route");
                route.hop_pointer = 1;
                smp.route = Some(route);
            }
            let answer = subnet.process(hca, &management((0xffff, own), &smp));
            assert_eq!(answer, Some(None), "{smp:?}");
        }
    }
    assert_eq!(subnet.agent(hca).end_port().pkeys()[1], 0);
    assert_eq!(subnet.agent(hca).end_port().info().m_key_violations, 4);
    // Counters are not protected by a key.
    let counters = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
    let packet = general((0, own), 0xffff, &counters);
    assert!(matches!(subnet.process(hca, &packet), Some(Some(_))));
}

/// A flood of traps about violations does not keep traps of another kind or about another source from the manager.
#[test]
fn a_flood_of_violations_hides_no_trap() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 4");
    let hcas: Vec<_> = subnet.hcas().collect();
    let switch = subnet.find("switch1").unwrap();
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    let to = lid(&subnet, switch);
    let wrong = |qkey| {
        let request = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
        let bth = *general((0, to), 0xffff, &request).as_datagram().unwrap().0;
        let deth = Deth { qkey, source_qp: 1 };
        Packet::datagram((0, to), 0, bth, deth, &request.to_bytes())
    };
    for qkey in 1..=40 {
        subnet.send(hcas[1], wrong(qkey)).unwrap();
    }
    subnet.run_until(subnet.now() + MILLISECOND / 10);
    let (link, ..) = subnet.peer(hcas[3], 1).unwrap();
    subnet.set_link(link, false);
    subnet.send(hcas[2], wrong(7)).unwrap();
    let mask = capability::TRAP | 1 << 17;
    subnet.change_agent(switch, |agent| agent.set_capabilities(mask));
    manager.wait(&mut subnet, 60 * SECOND);
    let violations = &subnet.agent(switch).end_port().info().q_key_violations;
    assert_eq!(*violations, 41);
    let told = |trap: fn(&Trap) -> bool| manager.traps.iter().filter(|it| trap(it)).count();
    assert_eq!(told(|trap| matches!(trap, Trap::LinkState(_))), 1);
    assert_eq!(told(|trap| matches!(trap, Trap::Capability(_))), 1);
    let of = |hca: NodeId| {
        let from = lid(&subnet, hca);
        let is = |trap: &&Trap| matches!(trap, Trap::QKey(it) if it.source == from);
        manager.traps.iter().filter(is).count()
    };
    // The first trap of the flood, and the last one.
    assert_eq!((of(hcas[1]), of(hcas[2])), (2, 1), "{:?}", manager.traps);
}

/// If the same attribute changes again before the manager has acknowledged the trap, the manager learns the last value.
#[test]
fn the_last_change_is_told() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    for bit in 0..32 {
        subnet.change_agent(peer, |agent| agent.set_capabilities(1 << bit));
    }
    manager.wait(&mut subnet, SECOND);
    let masks: Vec<u32> = manager
        .traps
        .iter()
        .map(|trap| match trap {
            Trap::Capability(change) => change.mask,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(masks.last(), Some(&(1 << 31)), "{masks:x?}");
    assert!(masks.len() <= 3, "{masks:x?}");
}

/// A trap about an event before the node had a LID is sent with its current LID.
#[test]
fn traps_have_the_lid_that_a_node_has() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    manager.wait(&mut subnet, SECOND);
    let own = lid(&subnet, subnet.find("switch1").unwrap());
    assert!(!manager.traps.is_empty());
    for trap in &manager.traps {
        assert!(
            matches!(trap, Trap::LinkState(change) if change.lid == own),
            "{trap:?}"
        );
    }
}

/// An HCA cannot send with the key of an empty entry of its partition table.
#[test]
fn an_empty_entry_is_no_partition() {
    let (mut subnet, manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    let to = lid(&subnet, peer);
    for pkey in [0, 0x8000] {
        let packet = datagram(to, pkey, b"?");
        assert_eq!(subnet.send(manager.at, packet), Err(SendError::Partition));
    }
    subnet.run_until(subnet.now() + MILLISECOND);
    assert_eq!(subnet.agent(peer).end_port().info().p_key_violations, 0);
}

/// An agent responds with its own partition key, even if it or the requester is only a limited member.
#[test]
fn answers_have_the_partition_key_of_who_answers() {
    for limited in [0, 1] {
        let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
        let hcas: Vec<_> = subnet.hcas().collect();
        let mut table = PKeyTable::default();
        table.keys[..2].copy_from_slice(&[0x8007, 0x7fff]);
        let paths: [&[u8]; 2] = [&[], &[1, 2]];
        let path = paths[limited];
        manager.set(&mut subnet, path, id::PKEY_TABLE, 0, table.to_data());
        manager.wait(&mut subnet, SECOND);
        for from in [0, 1] {
            while subnet.receive().is_some() {}
            let own = if from == limited { 0x7fff } else { 0xffff };
            let other = if from == limited { 0xffff } else { 0x7fff };
            let mut packet = general(
                (0, lid(&subnet, hcas[1 - from])),
                own,
                &PerformanceMad::request(Method::GET, id::CLASS_PORT_INFO),
            );
            // The response has a global route header if the request has one.
            let gid = |hca: NodeId| {
                let port = subnet.agent(hca).end_port();
                let prefix = u128::from(port.info().gid_prefix) << 64;
                (prefix | u128::from(port.guids()[0])).to_be_bytes()
            };
            let gids = [gid(hcas[from]), gid(hcas[1 - from])];
            if let Body::Transport { grh, .. } = &mut packet.body {
                *grh = (from == 1).then_some(Grh {
                    traffic_class: 3,
                    flow_label: 9,
                    next_header: GRH_NEXT_HEADER,
                    hop_limit: 1,
                    source: gids[0],
                    destination: gids[1],
                });
            }
            subnet.send(hcas[from], packet).unwrap();
            subnet.run_until(subnet.now() + MILLISECOND);
            let (node, packet) = subnet.receive().expect("an answer");
            let Body::Transport { grh, bth, .. } = &packet.body else {
                panic!("{packet:?}");
            };
            assert_eq!((node, bth.pkey), (hcas[from], other));
            let answered =
                grh.map(|it| (it.source, it.destination, it.traffic_class, it.flow_label));
            assert_eq!(answered, (from == 1).then_some((gids[1], gids[0], 3, 9)));
        }
        for hca in hcas {
            assert_eq!(subnet.agent(hca).end_port().info().p_key_violations, 0);
        }
    }
}

/// Returns whether a node answers a request for its counters, sent with the first partition key of an HCA.
fn tells_counters(subnet: &mut Subnet, from: NodeId, to: Lid) -> bool {
    while subnet.receive().is_some() {}
    let key = subnet.agent(from).end_port().pkeys()[0];
    let request = PerformanceMad::request(Method::GET, id::CLASS_PORT_INFO);
    subnet.send(from, general((0, to), key, &request)).unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    let mut arrived = std::iter::from_fn(|| subnet.receive());
    arrived.any(|(node, packet)| {
        let datagram = packet.as_datagram();
        node == from && datagram.is_some_and(|(bth, ..)| bth.destination_qp == 1)
    })
}

/// Limited members of a partition, HCAs and switches alike, do not tell each other their counters, but count the
/// attempt. Subnet management has no partition.
#[test]
fn limited_members_do_not_tell_each_other_their_counters() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 3");
    let hcas: Vec<_> = subnet.hcas().collect();
    let switch = subnet.find("switch1").unwrap();
    let set = |subnet: &mut Subnet, manager: &mut Manager, path: &[u8], key| {
        let mut table = PKeyTable::default();
        table.keys[0] = key;
        assert!(manager.set(subnet, path, id::PKEY_TABLE, 0, table.to_data()));
    };
    for path in [&[1][..], &[1, 2], &[1, 3]] {
        set(&mut subnet, &mut manager, path, 0x7fff);
    }
    let own = lid(&subnet, hcas[0]);
    for node in [switch, hcas[2]] {
        let to = lid(&subnet, node);
        assert!(tells_counters(&mut subnet, hcas[0], to), "a full member");
        assert!(
            tells_counters(&mut subnet, hcas[1], own),
            "to a full member"
        );
        assert!(
            !tells_counters(&mut subnet, hcas[1], to),
            "both are limited"
        );
        assert_eq!(subnet.agent(node).end_port().info().p_key_violations, 1);
        let request = Smp::request(Method::GET, id::NODE_INFO, 0);
        let mut other = Manager::new(hcas[1]);
        assert!(other.ask(&mut subnet, request, to).is_some());
    }
    set(&mut subnet, &mut manager, &[1, 2], 0xffff);
    for node in [switch, hcas[2]] {
        let to = lid(&subnet, node);
        assert!(tells_counters(&mut subnet, hcas[1], to));
    }
}

/// While the link of a port has come back and no manager has activated it, requests for counters are discarded there.
/// Subnet management passes.
#[test]
fn counters_are_told_when_links_are_active() {
    let (mut subnet, mut manager) = managed("[fat-tree]\nspines = 1\nleaves = 2\nhosts = 1");
    let [leaf, other] = ["leaf1", "leaf2"].map(|name| subnet.find(name).unwrap());
    let to = lid(&subnet, other);
    let from = manager.at;
    assert!(tells_counters(&mut subnet, from, to));
    let (link, port) = (1..=2)
        .find_map(|port| {
            let (link, peer, _) = subnet.peer(leaf, port)?;
            subnet.hca(peer).is_none().then_some((link, port))
        })
        .unwrap();
    subnet.set_link(link, false);
    subnet.set_link(link, true);
    subnet.run_until(subnet.now() + SECOND);
    assert!(subnet.is_up(link));
    let inactive = |subnet: &Subnet| {
        let port = subnet.agent(leaf).port(port).unwrap();
        port.statistics().discards.inactive
    };
    let before = inactive(&subnet);
    assert!(!tells_counters(&mut subnet, from, to));
    assert_eq!(inactive(&subnet), before + 1);
    let request = Smp::request(Method::GET, id::NODE_INFO, 0);
    assert!(manager.ask(&mut subnet, request, to).is_some());
    manager.sweep(&mut subnet);
    assert!(tells_counters(&mut subnet, from, to));
}

/// Agents are not in any multicast group: a request to a group changes nothing and gets no response. The multicast QP
/// is not one of a port either.
#[test]
fn agents_are_in_no_group() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 3");
    let hcas: Vec<_> = subnet.hcas().collect();
    let mut groups = MulticastForwarding::default();
    groups.ports[5] = 0b1111;
    manager.set(
        &mut subnet,
        &[1],
        id::MULTICAST_FORWARDING,
        0,
        groups.to_data(),
    );
    for &hca in &hcas {
        assert!(subnet.attach(hca, GROUP, true));
    }
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    let mut clear = PerformanceMad::request(Method::SET, id::PORT_COUNTERS);
    PortCounters {
        port_select: ALL_PORTS,
        select: 0xffff,
        ..PortCounters::default()
    }
    .write(&mut clear.data);
    let packet = general((0, GROUP), 0xffff, &clear);
    subnet.send(hcas[0], packet).unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    assert_eq!(subnet.receive(), None, "nobody answers");
    let switch = subnet.find("switch1").unwrap();
    for (node, port) in [(hcas[1], 1), (hcas[2], 1), (switch, 1)] {
        let port = subnet.agent(node).port(port).unwrap();
        assert!(port.statistics().counters.receive_packets > 1);
    }
    // A wrong key in a request to a group is not a violation at any node.
    let mut packet = general((0, GROUP), 0xffff, &clear);
    if let Body::Transport { rest, .. } = &mut packet.body {
        rest[..4].copy_from_slice(&(MANAGEMENT_QKEY + 1).to_be_bytes());
    }
    subnet.send(hcas[0], packet).unwrap();
    let mut packet = datagram(lid(&subnet, hcas[1]), 0xffff, b"x");
    if let Body::Transport { bth, .. } = &mut packet.body {
        bth.destination_qp = 0xff_ffff;
    }
    subnet.send(hcas[0], packet).unwrap();
    manager.wait(&mut subnet, SECOND);
    assert_eq!(
        (manager.traps.last(), next_datagram(&mut subnet)),
        (None, None)
    );
    assert!(manager.delivered.is_empty(), "{:?}", manager.delivered);
    for node in [hcas[1], switch] {
        assert_eq!(subnet.agent(node).end_port().info().q_key_violations, 0);
    }
}

/// Responses about counters never use the lane of subnet management, whatever the SL to VL tables say.
#[test]
fn answers_of_counters_are_not_on_the_lane_of_management() {
    for lane in [8, 15] {
        let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
        let hcas: Vec<_> = subnet.hcas().collect();
        let map = SlToVl { lanes: [lane; 16] };
        manager.set(&mut subnet, &[1, 2], id::SL_TO_VL, 0, map.to_data());
        manager.wait(&mut subnet, SECOND);
        let statistics = |subnet: &Subnet| *subnet.agent(hcas[1]).end_port().statistics();
        let before = statistics(&subnet);
        let request = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
        let packet = general((0, lid(&subnet, hcas[1])), 0xffff, &request);
        subnet.send(hcas[0], packet).unwrap();
        subnet.run_until(subnet.now() + MILLISECOND);
        let after = statistics(&subnet);
        let received = |it: &Statistics| it.counters.receive_packets;
        assert_eq!(received(&after), received(&before) + 1);
        assert_eq!(
            after.extended.transmit_packets, before.extended.transmit_packets,
            "{lane}"
        );
        assert_eq!(
            after.counters.transmit_discards,
            before.counters.transmit_discards + 1
        );
    }
}

/// An agent has exactly the capabilities that it reports.
#[test]
fn capabilities_are_true() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    for (path, port) in [(vec![1], 0), (vec![1, 2], 1)] {
        let info = manager.port_info(&mut subnet, &path, port).unwrap();
        let mut has = |attribute| {
            let route = Route::along(&path);
            let smp = Smp {
                route,
                ..Smp::request(Method::GET, attribute, 0)
            };
            let answer = manager.ask(&mut subnet, smp, 0xffff).expect("an answer");
            answer.header.status != Status::BAD_ATTRIBUTE
        };
        let says = |bit| info.capability_mask & bit != 0;
        assert_eq!(says(capability::NOTICE), has(id::NOTICE), "{path:?}");
        assert_eq!(says(capability::SL_TO_VL), has(id::SL_TO_VL), "{path:?}");
        assert_eq!(says(capability::SM), has(id::SM_INFO), "{path:?}");
        // The capabilities of software are not set before there is any.
        for bit in [
            capability::AUTOMATIC_MIGRATION,
            capability::COMMUNICATION_MANAGEMENT,
        ] {
            assert!(!says(bit), "{path:?} {bit:#x}");
        }
    }
}

/// A manager cannot remove the LID of a port, and can write back the attributes of a port that has none.
#[test]
fn a_lid_is_not_taken_away() {
    let mut subnet = super::subnet("[single]\nhosts = 2");
    let hcas: Vec<_> = subnet.hcas().collect();
    let mut manager = Manager::new(hcas[0]);
    assert!(manager.change_port(&mut subnet, &[1, 2], 1, |info| info.sm_lid = 3));
    manager.sweep(&mut subnet);
    let own = lid(&subnet, hcas[1]);
    let mut info = manager.port_info(&mut subnet, &[1, 2], 1).unwrap();
    info.lid = 0;
    let smp = Smp {
        route: Route::along(&[1, 2]),
        data: info.to_data(),
        ..Smp::request(Method::SET, id::PORT_INFO, 1)
    };
    let answer = manager.ask(&mut subnet, smp, 0xffff).expect("an answer");
    assert_eq!(answer.header.status, Status::BAD_FIELD);
    assert_eq!(lid(&subnet, hcas[1]), own);
}
