// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Subnets with a manager: HCAs reach each other in any topology, and failures, missing permissions and hostile packets
//! have the effects that the standard defines.

mod hostile;
mod isolation;
mod manager;

use manager::Manager;
use proptest::{option, prelude::*};
use std::{collections::BTreeSet, time::Duration};
use vrnic_infiniband::{
    Lid,
    agent::{Agent, Changes},
    attributes::{
        GuidInfo, LinearForwarding, NodeDescription, PKeyTable, PhysicalState, PortCounters,
        PortCountersExtended, PortState, SlToVl, SmInfo, SwitchInfo, VlArbitration, capability, id,
    },
    credits::Search,
    hca::SendError,
    mad::{Header, MAD_LENGTH, MANAGEMENT_QKEY, Method, PerformanceMad, Route, Smp, Status, class},
    packet::{Body, Bth, Deth, GRH_NEXT_HEADER, Grh, Packet},
    performance::ALL_PORTS,
    ping,
    port::is_multicast,
    subnet::{NodeId, Subnet},
    topology::Topology,
    trap::{KeyViolation, Trap},
};

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Creates a subnet and waits until its links are up.
fn subnet(text: &str) -> Subnet {
    let topology = Topology::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut subnet = Subnet::new(&topology);
    subnet.run_until(100 * MILLISECOND);
    subnet
}

/// Creates a subnet, and brings it up with a manager on the first HCA.
fn managed(text: &str) -> (Subnet, Manager) {
    let mut subnet = subnet(text);
    let at = subnet.hcas().next().expect("an HCA");
    let mut manager = Manager::new(at);
    manager.sweep(&mut subnet);
    (subnet, manager)
}

fn lid(subnet: &Subnet, node: NodeId) -> Lid {
    subnet.agent(node).end_port().info().lid
}

/// Destination QP of packets to groups.
const GROUPS: u32 = 0xff_ffff;

/// Creates a datagram to QP 77 or to a group.
fn datagram(destination: Lid, pkey: u16, payload: &[u8]) -> Packet {
    let bth = Bth {
        pkey,
        destination_qp: if is_multicast(destination) {
            GROUPS
        } else {
            77
        },
        ..Bth::default()
    };
    let deth = Deth {
        qkey: 5,
        source_qp: 66,
    };
    Packet::datagram((0, destination), 0, bth, deth, payload)
}

/// Returns the next datagram that is not a management packet. Management packets are dropped.
fn next_datagram(subnet: &mut Subnet) -> Option<(NodeId, Packet)> {
    loop {
        let (node, packet) = subnet.receive()?;
        let datagram = packet.as_datagram();
        if datagram.is_some_and(|(bth, ..)| [77, GROUPS].contains(&bth.destination_qp)) {
            return Some((node, packet));
        }
    }
}

/// Sends a datagram from each of `hcas` to each other one. Returns the pairs between which one arrived.
fn reached(subnet: &mut Subnet, hcas: &[NodeId]) -> BTreeSet<(Lid, Lid)> {
    while subnet.receive().is_some() {}
    for &from in hcas {
        for &to in hcas {
            let to = lid(subnet, to);
            let _ = subnet.send(from, datagram(to, 0xffff, &to.to_be_bytes()));
        }
    }
    subnet.run_until(subnet.now() + SECOND);
    let mut pairs = BTreeSet::new();
    while let Some((node, packet)) = next_datagram(subnet) {
        let (_, _, payload) = packet.as_datagram().expect("a datagram");
        assert_eq!(
            payload,
            lid(subnet, node).to_be_bytes(),
            "it is where it was to go"
        );
        assert!(
            pairs.insert((packet.source, packet.destination)),
            "it came once"
        );
    }
    pairs
}

/// Returns all pairs of LIDs of `hcas`.
fn all(subnet: &Subnet, hcas: &[NodeId]) -> BTreeSet<(Lid, Lid)> {
    let lids: Vec<Lid> = hcas.iter().map(|hca| lid(subnet, *hca)).collect();
    assert!(lids.iter().all(|lid| *lid != 0), "each has a LID");
    lids.iter()
        .flat_map(|&from| lids.iter().map(move |&to| (from, to)))
        .collect()
}

fn topologies() -> impl Strategy<Value = String> {
    prop_oneof![
        (1_usize..8).prop_map(|hosts| format!("[single]\nhosts = {hosts}")),
        (1_usize..4, 1_usize..4, 1_usize..3)
            .prop_map(|(spines, leaves, hosts)| format!("[fat-tree]\nspines = {spines}\nleaves = {leaves}\nhosts = {hosts}")),
        (3_usize..7, 1_usize..3).prop_map(|(switches, hosts)| format!("[ring]\nswitches = {switches}\nhosts = {hosts}")),
        (1_usize..4, 1_usize..4).prop_map(|(x, y)| format!("[torus]\nsize = [{x}, {y}]\nhosts = 1")),
        (any::<u32>(), 1_usize..8, 1_usize..8, 0_usize..5).prop_map(|(seed, switches, hosts, extra)| format!(
            "seed = {seed}\n[random]\nswitches = {switches}\nhosts = {hosts}\nextra_links = {extra}"
        )),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// In any topology, a manager finds all nodes and then all HCAs reach each other. Without a manager, none reaches
    /// another.
    #[test]
    fn every_hca_reaches_every_hca(text in topologies(), lmc in 0_u8..3, buffer in option::of(5000..9000)) {
        let buffer = buffer.map_or(String::new(), |bytes| format!("buffer = {bytes}\n"));
        let mut subnet = subnet(&(buffer + &text));
        let hcas: Vec<_> = subnet.hcas().collect();
        prop_assert_eq!(reached(&mut subnet, &hcas).len(), 0);
        let mut manager = Manager::new(hcas[0]);
        manager.lmc = lmc;
        manager.sweep(&mut subnet);
        prop_assert_eq!(manager.found.len(), subnet.nodes().count());
        let expected = all(&subnet, &hcas);
        prop_assert_eq!(reached(&mut subnet, &hcas), expected);
        // The other LIDs of a port work as well.
        for &to in &hcas[1..] {
            let to = lid(&subnet, to) + (1 << lmc) - 1;
            subnet.send(hcas[0], datagram(to, 0xffff, b"")).expect("it leaves");
            subnet.run_until(subnet.now() + MILLISECOND);
            let (_, packet) = next_datagram(&mut subnet).expect("it arrives");
            prop_assert_eq!(packet.destination, to);
        }
    }

    /// After a link is cut and the manager has swept, all HCAs that are still connected reach each other. Once the link
    /// is restored, all of them do.
    #[test]
    fn a_cut_link_is_routed_around(text in topologies(), which: prop::sample::Index) {
        let (mut subnet, mut manager) = managed(&text);
        let hcas: Vec<_> = subnet.hcas().collect();
        let links: Vec<_> = subnet.links().collect();
        let link = links[which.index(links.len())];
        subnet.set_link(link, false);
        if subnet.peer(manager.at, 1).is_some_and(|(own, ..)| own == link) {
            // The cut link was that of the manager.
            prop_assert_eq!(subnet.agent(manager.at).end_port().info().state, PortState::DOWN);
        } else {
            manager.sweep(&mut subnet);
            let expected: Vec<_> = hcas
                .iter()
                .filter(|hca| manager.found.iter().any(|found| found.lid == lid(&subnet, **hca)))
                .copied()
                .collect();
            let pairs = reached(&mut subnet, &expected);
            prop_assert_eq!(pairs, all(&subnet, &expected));
        }
        subnet.set_link(link, true);
        manager.wait(&mut subnet, SECOND);
        manager.sweep(&mut subnet);
        let expected = all(&subnet, &hcas);
        prop_assert_eq!(reached(&mut subnet, &hcas), expected);
    }
}

#[test]
fn a_fat_tree_of_64_hcas_works() {
    let (mut subnet, manager) = managed("[fat-tree]\nspines = 4\nleaves = 8\nhosts = 8");
    assert_eq!(manager.found.len(), 76);
    let hcas: Vec<_> = subnet.hcas().collect();
    let expected = all(&subnet, &hcas);
    assert_eq!(expected.len(), 64 * 64);
    assert_eq!(reached(&mut subnet, &hcas), expected);
}

#[test]
fn the_same_calls_give_the_same_result() {
    let run = || {
        let (mut subnet, _) = managed(
            "seed = 4\nbit_error_rate = 1e-6\n[random]\nswitches = 5\nhosts = 5\nextra_links = 3",
        );
        let hcas: Vec<_> = subnet.hcas().collect();
        let pairs = reached(&mut subnet, &hcas);
        let counters: Vec<_> = subnet
            .nodes()
            .map(|node| format!("{:?}", subnet.agent(node).end_port().statistics()))
            .collect();
        (pairs, counters)
    };
    assert_eq!(run(), run());
}

/// In a ring of three, packets take the other way after a cut, and the manager gets a trap.
#[test]
fn traps_tell_of_links() {
    let (mut subnet, mut manager) = managed("[ring]\nswitches = 3\nhosts = 1");
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    let [one, two] = ["switch1", "switch2"].map(|name| subnet.find(name).unwrap());
    let (link, ..) = (1..=3)
        .filter_map(|port| subnet.peer(one, port))
        .find(|(_, peer, _)| *peer == two)
        .unwrap();
    let before = *subnet.agent(one).port(2).unwrap().statistics();
    subnet.set_link(link, false);
    manager.wait(&mut subnet, SECOND);
    let told: BTreeSet<_> = manager
        .traps
        .iter()
        .map(|trap| match trap {
            Trap::LinkState(change) => change.lid,
            other => panic!("{other:?}"),
        })
        .collect();
    // The switch behind the cut has no path to the manager until there is a new one, but the other switch has.
    assert!(told.contains(&lid(&subnet, one)), "{told:?}");
    assert!(subnet.agent(one).switch_info().unwrap().state_change);
    let after = subnet.agent(one).port(2).unwrap().statistics();
    assert_eq!(after.counters.link_downed, before.counters.link_downed + 1);
    manager.sweep(&mut subnet);
    assert!(
        !subnet.agent(one).switch_info().unwrap().state_change,
        "the manager has seen it"
    );
}

/// A trap is repeated at limited intervals until it is repressed.
#[test]
fn traps_are_repeated_until_they_are_repressed() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    manager.wait(&mut subnet, SECOND);
    manager.represses = false;
    manager.traps.clear();
    let peer = subnet.hcas().nth(1).unwrap();
    for mask in [1, 2, 1, 2, 1, 2] {
        subnet.change_agent(peer, |agent| {
            agent.set_capabilities(capability::TRAP | mask << 30);
        });
    }
    manager.wait(&mut subnet, 10 * MILLISECOND);
    // The subnet timeout is 2^8 × 4.096 µs.
    assert!(
        (9..=11).contains(&manager.traps.len()),
        "{}",
        manager.traps.len()
    );
    assert!(
        manager
            .traps
            .iter()
            .all(|trap| matches!(trap, Trap::Capability(_)))
    );
    manager.represses = true;
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    manager.wait(&mut subnet, SECOND);
    assert_eq!(manager.traps, []);
    assert_eq!(subnet.next_event(), None, "nothing happens any more");
}

#[test]
fn two_nodes_with_one_guid_are_noticed() {
    let (mut subnet, manager) = managed(
        "[[switch]]\nname = 's'\nports = 3\n[[hca]]\nname = 'm'\n[[hca]]\nname = 'a'\nguid = 77\n[[hca]]\nname = 'b'\nguid = 77\n\
         [[link]]\nends = ['m', 's/1']\n[[link]]\nends = ['a', 's/2']\n[[link]]\nends = ['b', 's/3']",
    );
    assert_eq!(manager.duplicates, [77]);
    let others = ["m", "a"].map(|name| subnet.find(name).unwrap());
    let expected = all(&subnet, &others);
    assert_eq!(reached(&mut subnet, &others), expected);
}

#[test]
fn attributes_are_read_by_lid_too() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let [switch, peer] = [
        subnet.find("switch1").unwrap(),
        subnet.hcas().nth(1).unwrap(),
    ];
    for (node, name) in [
        (switch, "switch1"),
        (peer, "switch1-h2"),
        (manager.at, "switch1-h1"),
    ] {
        let to = lid(&subnet, node);
        let response = manager
            .ask(
                &mut subnet,
                Smp::request(Method::GET, id::NODE_DESCRIPTION, 0),
                to,
            )
            .expect("a response");
        assert_eq!(
            NodeDescription::read(&response.data),
            NodeDescription::new(name)
        );
    }
    // Over a switch and back: the request goes to the switch by LID, where the directed part starts.
    let to = lid(&subnet, switch);
    let own = lid(&subnet, manager.at);
    let route = Route {
        source: own,
        ..Route::along(&[2]).unwrap()
    };
    let smp = Smp {
        route: Some(route),
        ..Smp::request(Method::GET, id::NODE_DESCRIPTION, 0)
    };
    let response = manager.ask(&mut subnet, smp, to).expect("a response");
    assert_eq!(
        NodeDescription::read(&response.data),
        NodeDescription::new("switch1-h2")
    );
}

/// A change of a port's attributes.
type Change = fn(&mut vrnic_infiniband::attributes::PortInfo);

/// Requests that are not allowed, and the status in the response.
#[test]
fn bad_requests_are_told_so() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let [switch, hca] = [vec![1], vec![1, 2]];
    let mut status = |path: &[u8], method, attribute, modifier, data: [u8; 64]| {
        let smp = Smp {
            route: Route::along(path),
            data,
            ..Smp::request(method, attribute, modifier)
        };
        manager
            .ask(&mut subnet, smp, 0xffff)
            .expect("a response")
            .header
            .status
    };
    let none = [0; 64];
    for (path, method, attribute, modifier, expected) in [
        (&hca, Method::GET, id::NODE_INFO, 0, Status::OK),
        (&hca, Method::GET, 0x99, 0, Status::BAD_ATTRIBUTE),
        (&hca, Method::SET, id::NODE_INFO, 0, Status::BAD_ATTRIBUTE),
        (&hca, Method(0x42), id::NODE_INFO, 0, Status::BAD_METHOD),
        (&hca, Method::GET, id::SWITCH_INFO, 0, Status::BAD_ATTRIBUTE),
        (
            &hca,
            Method::GET,
            id::LINEAR_FORWARDING,
            0,
            Status::BAD_ATTRIBUTE,
        ),
        (
            &hca,
            Method::SET,
            id::MULTICAST_FORWARDING,
            0,
            Status::BAD_ATTRIBUTE,
        ),
        (&hca, Method::GET, id::SM_INFO, 0, Status::BAD_ATTRIBUTE),
        (&hca, Method::GET, id::PORT_INFO, 0, Status::OK),
        (&hca, Method::GET, id::PORT_INFO, 1, Status::OK),
        (&hca, Method::GET, id::PORT_INFO, 2, Status::BAD_FIELD),
        (&hca, Method::GET, id::GUID_INFO, 1, Status::BAD_FIELD),
        (&hca, Method::GET, id::PKEY_TABLE, 0, Status::OK),
        (&hca, Method::GET, id::PKEY_TABLE, 1, Status::BAD_FIELD),
        (&hca, Method::GET, id::SL_TO_VL, 0, Status::OK),
        (&hca, Method::GET, id::VL_ARBITRATION, 1 << 16, Status::OK),
        (&hca, Method::GET, id::VL_ARBITRATION, 0, Status::BAD_FIELD),
        (
            &hca,
            Method::GET,
            id::VL_ARBITRATION,
            5 << 16,
            Status::BAD_FIELD,
        ),
        (&switch, Method::GET, id::PORT_INFO, 2, Status::OK),
        (&switch, Method::GET, id::PORT_INFO, 1 << 31 | 2, Status::OK),
        (&switch, Method::GET, id::PORT_INFO, 3, Status::BAD_FIELD),
        (&switch, Method::GET, id::PKEY_TABLE, 2 << 16, Status::OK),
        (
            &switch,
            Method::GET,
            id::PKEY_TABLE,
            3 << 16,
            Status::BAD_FIELD,
        ),
        (&switch, Method::GET, id::SL_TO_VL, 0x0102, Status::OK),
        (
            &switch,
            Method::GET,
            id::SL_TO_VL,
            0x0302,
            Status::BAD_FIELD,
        ),
        (&switch, Method::GET, id::LINEAR_FORWARDING, 767, Status::OK),
        (
            &switch,
            Method::GET,
            id::LINEAR_FORWARDING,
            768,
            Status::BAD_FIELD,
        ),
        (
            &switch,
            Method::GET,
            id::LINEAR_FORWARDING,
            u32::MAX,
            Status::BAD_FIELD,
        ),
        (
            &switch,
            Method::GET,
            id::MULTICAST_FORWARDING,
            31,
            Status::OK,
        ),
        (
            &switch,
            Method::GET,
            id::MULTICAST_FORWARDING,
            32,
            Status::BAD_FIELD,
        ),
        (
            &switch,
            Method::GET,
            id::MULTICAST_FORWARDING,
            0xf000_001f,
            Status::OK,
        ),
    ] {
        assert_eq!(
            status(path, method, attribute, modifier, none),
            expected,
            "{method:?} {attribute:#x} {modifier:#x}"
        );
    }
    let info = *subnet.agent(manager.at).end_port().info();
    let wrong: [(&str, Change); 12] = [
        ("init cannot be asked for", |info| {
            info.state = PortState::INIT;
        }),
        ("a link does not get armed when it is active", |info| {
            info.state = PortState::ARMED;
        }),
        ("a state that is none", |info| info.state = PortState(9)),
        ("a physical state that cannot be asked for", |info| {
            info.physical_state = PhysicalState::LINK_UP;
        }),
        ("a default that is none", |info| {
            info.down_default = PhysicalState::DISABLED;
        }),
        ("a width that there is not", |info| info.width_enabled = 8),
        ("a speed that there is not", |info| info.speed_enabled = 8),
        ("a multicast LID", |info| info.lid = 0xc000),
        ("a manager with a multicast LID", |info| {
            info.sm_lid = 0xffff;
        }),
        ("too large an MTU", |info| info.neighbor_mtu = 6),
        ("no MTU", |info| info.neighbor_mtu = 0),
        ("too many lanes", |info| info.operational_vls = 5),
    ];
    for (what, change) in wrong {
        let mut changed = info;
        changed.state = PortState::NO_CHANGE;
        changed.physical_state = PhysicalState::NO_CHANGE;
        change(&mut changed);
        let smp = Smp {
            route: Route::along(&[]),
            data: changed.to_data(),
            ..Smp::request(Method::SET, id::PORT_INFO, 1)
        };
        let response = manager.ask(&mut subnet, smp, 0xffff).expect("a response");
        assert_eq!(response.header.status, Status::BAD_FIELD, "{what}");
        assert_eq!(*subnet.agent(manager.at).end_port().info(), info, "{what}");
    }
    let mut request = Smp::request(Method::GET, id::NODE_INFO, 0);
    request.route = Route::along(&[1]);
    request.header.class_version = 9;
    let response = manager
        .ask(&mut subnet, request, 0xffff)
        .expect("a response");
    assert_eq!(response.header.status, Status::BAD_VERSION);
}

/// Attributes that a manager may write read back as written. The others do not change.
#[test]
fn what_is_set_is_read() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let mut both = |path: &[u8], attribute, modifier, data: [u8; 64]| {
        assert!(manager.set(&mut subnet, path, attribute, modifier, data));
        manager
            .get(&mut subnet, path, attribute, modifier)
            .expect("a response")
    };
    let bytes: [u8; 64] = std::array::from_fn(|index| index as u8 + 1);
    for (path, attribute, modifier) in [
        (&[1, 2][..], id::PKEY_TABLE, 0),
        (&[1, 2], id::VL_ARBITRATION, 3 << 16),
        (&[1], id::PKEY_TABLE, 2 << 16),
        (&[1], id::VL_ARBITRATION, 1 << 16 | 2),
        (&[1], id::LINEAR_FORWARDING, 700),
        (&[1], id::MULTICAST_FORWARDING, 5),
        (&[1], id::MULTICAST_FORWARDING, 0xf000_0005),
    ] {
        assert_eq!(
            both(path, attribute, modifier, bytes),
            bytes,
            "{attribute:#x}"
        );
    }
    let map = SlToVl::read(&bytes);
    assert_eq!(SlToVl::read(&both(&[1], id::SL_TO_VL, 0x0102, bytes)), map);
    let guids = GuidInfo::read(&both(&[1, 2], id::GUID_INFO, 0, bytes)).guids;
    let own = subnet
        .agent(subnet.hcas().nth(1).unwrap())
        .end_port()
        .guids()[0];
    assert_eq!(
        (guids[0], guids[1]),
        (own, 0x090a_0b0c_0d0e_0f10),
        "the first one is burnt in"
    );
    let info = SwitchInfo {
        linear_top: 0xc000,
        ..SwitchInfo::default()
    };
    let smp = Smp {
        route: Route::along(&[1]),
        data: info.to_data(),
        ..Smp::request(Method::SET, id::SWITCH_INFO, 0)
    };
    assert_eq!(
        manager.ask(&mut subnet, smp, 0xffff).unwrap().header.status,
        Status::BAD_FIELD
    );
}

/// The key protects a node as its protection bits say, violations are counted and cause traps, and the end of the lease
/// ends the protection.
#[test]
fn the_management_key_protects() {
    const KEY: u64 = 0x1234_5678_9abc_def0;
    for protection in 0..4 {
        let mut subnet = subnet("[single]\nhosts = 2");
        let mut manager = Manager::new(subnet.hcas().next().unwrap());
        manager.sweep(&mut subnet);
        let peer = subnet.hcas().nth(1).unwrap();
        (manager.protection, manager.lease) = (protection, 3);
        let mut attacker = Manager::new(manager.at);
        attacker.represses = false;
        manager.change_port(&mut subnet, &[1, 2], 1, |info| {
            (info.m_key, info.m_key_protection, info.m_key_lease) = (KEY, protection, 3);
        });
        manager.wait(&mut subnet, SECOND);
        manager.traps.clear();
        // Requests without the key.
        let seen = attacker.port_info(&mut subnet, &[1, 2], 1);
        assert_eq!(
            seen.map(|info| info.m_key),
            [Some(KEY), Some(0), None, None][usize::from(protection)]
        );
        let refused = !attacker.set(
            &mut subnet,
            &[1, 2],
            id::PKEY_TABLE,
            0,
            PKeyTable::default().to_data(),
        );
        assert!(refused, "nobody writes without the key");
        assert_eq!(subnet.agent(peer).end_port().pkeys()[0], 0xffff);
        let violations = if protection < 2 { 1 } else { 2 };
        assert_eq!(
            subnet.agent(peer).end_port().info().m_key_violations,
            violations
        );
        manager.m_key = KEY;
        manager.wait(&mut subnet, 100 * MILLISECOND);
        let told = attacker
            .traps
            .iter()
            .chain(&manager.traps)
            .find_map(|trap| match trap {
                Trap::MKey(violation) if violation.attribute == id::PKEY_TABLE => Some(violation),
                _ => None,
            });
        let told = told.expect("a trap");
        assert_eq!(
            (told.lid, told.method, told.directed, told.hops),
            (lid(&subnet, peer), 2, true, 2)
        );
        assert_eq!(told.back[..2], [1, 1]);
        // Requests with the key.
        manager.represses = false;
        let info = manager
            .port_info(&mut subnet, &[1, 2], 1)
            .expect("a response");
        assert_eq!((info.m_key, info.m_key_protection), (KEY, protection));
        // The request ended the lease that was running. The next lease expires.
        manager.wait(&mut subnet, 5 * SECOND);
        assert_eq!(
            subnet.agent(peer).end_port().info().m_key_protection,
            protection
        );
        assert!(!attacker.set(
            &mut subnet,
            &[1, 2],
            id::PKEY_TABLE,
            0,
            PKeyTable::default().to_data()
        ));
        manager.wait(&mut subnet, 2 * SECOND);
        assert_eq!(
            subnet.agent(peer).end_port().info().m_key_protection,
            protection
        );
        manager.wait(&mut subnet, 2 * SECOND);
        assert_eq!(subnet.agent(peer).end_port().info().m_key_protection, 0);
        let info = attacker
            .port_info(&mut subnet, &[1, 2], 1)
            .expect("a response");
        assert_eq!(info.m_key, KEY, "now anybody may see it");
    }
}

/// A switch that knows its manager but has no path to it does not count its own traps as packets that it could not
/// forward.
#[test]
fn a_trap_without_a_way_is_no_error_of_a_port() {
    let mut subnet = subnet("[single]\nhosts = 2");
    let hcas: Vec<_> = subnet.hcas().collect();
    let mut manager = Manager::new(hcas[0]);
    manager.change_port(&mut subnet, &[1], 0, |info| {
        (info.lid, info.sm_lid) = (5, 1);
    });
    let (link, ..) = subnet.peer(hcas[1], 1).expect("a link");
    subnet.set_link(link, false);
    manager.wait(&mut subnet, SECOND);
    assert_eq!(manager.traps, []);
    let switch = subnet.find("switch1").expect("a switch");
    let port = subnet.agent(switch).end_port();
    assert_eq!(port.statistics().counters.receive_switch_relay_errors, 0);
}

/// No link of a node that is off is up, whatever else happens to the link. When the node is on again, its links come
/// up, except for those that are cut and those of another node that is off.
#[test]
fn a_node_that_is_off_has_no_links() {
    let mut subnet = subnet("[fat-tree]\nspines = 2\nleaves = 2\nhosts = 1");
    let [spine, leaf, host] =
        ["spine1", "leaf1", "leaf1-h1"].map(|name| subnet.find(name).expect("a node"));
    let (link, ..) = subnet.peer(host, 1).expect("a link");
    let up = |subnet: &mut Subnet| {
        subnet.run_until(subnet.now() + SECOND);
        subnet.links().filter(|link| subnet.is_up(*link)).count()
    };
    assert_eq!(up(&mut subnet), 6);
    subnet.set_on(spine, false);
    assert_eq!(up(&mut subnet), 4);
    subnet.set_on(leaf, false);
    assert_eq!(up(&mut subnet), 2);
    subnet.set_link(link, false);
    subnet.set_link(link, true);
    assert_eq!(up(&mut subnet), 2, "its other end is off");
    subnet.set_on(spine, true);
    assert_eq!(up(&mut subnet), 3, "leaf1 is still off");
    // While the links train.
    subnet.set_on(leaf, true);
    subnet.run_until(subnet.now() + MILLISECOND);
    subnet.set_on(leaf, false);
    assert_eq!(up(&mut subnet), 3);
    subnet.set_link(link, false);
    subnet.set_on(leaf, true);
    assert_eq!(up(&mut subnet), 5, "a link is cut");
    subnet.set_link(link, true);
    assert_eq!(up(&mut subnet), 6);
}

/// With the shortest paths around a ring, lanes can wait for each other. If there is a second lane, paths that cross
/// one link of the ring can use it, and there is no credit loop.
#[test]
fn credit_loops_are_found() {
    for shape in [
        "[single]\nhosts = 4",
        "[fat-tree]\nspines = 3\nleaves = 4\nhosts = 2",
        "[ring]\nswitches = 3\nhosts = 1",
    ] {
        let (subnet, _) = managed(shape);
        assert_eq!(subnet.credit_loop(|_, _| 0), None, "{shape}");
    }
    for lanes in [1, 2] {
        let (subnet, _) = managed(&format!("lanes = {lanes}\n[ring]\nswitches = 5\nhosts = 1"));
        let found = subnet.credit_loop(|_, _| 0).expect("a circle");
        let names: BTreeSet<_> = found.iter().map(|it| subnet.name(it.node)).collect();
        assert_eq!((found.len(), names.len()), (5, 5), "{found:?}");
        for (place, channel) in found.iter().enumerate() {
            let (_, peer, _) = subnet.peer(channel.node, channel.port).expect("a link");
            assert_eq!(peer, found[(place + 1) % 5].node, "each waits for the next");
            assert_eq!(channel.lane, 0);
        }
        // In steps of 3, of 20 ways first, and then from lane to lane.
        let mut search = Search::new(&subnet);
        for _ in 0..7 {
            assert_eq!(search.step(&subnet, |_, _| 0, 3), None);
        }
        let mut steps = std::iter::from_fn(|| Some(search.step(&subnet, |_, _| 0, 3)));
        assert_eq!(steps.find_map(|step| step), Some(found));
        // Returns the index of the switch of a LID.
        let place = |lid_of_hca| {
            let at = |node: &NodeId| lid(&subnet, *node) == lid_of_hca;
            subnet.hcas().position(|node| at(&node)).expect("an HCA")
        };
        let crosses = |from, to| u8::from(place(from).abs_diff(place(to)) > 2);
        assert_eq!(subnet.credit_loop(crosses).is_none(), lanes == 2);
    }
    // Packets that are in a loop themselves.
    let (mut subnet, mut manager) = managed("[ring]\nswitches = 3\nhosts = 1");
    let hcas: Vec<_> = subnet.hcas().collect();
    let to = lid(&subnet, hcas[2]);
    for place in 0..manager.found.len() {
        let found = manager.found[place].clone();
        if !found.is_switch() {
            continue;
        }
        let data = manager.get(&mut subnet, &found.path, id::LINEAR_FORWARDING, 0);
        let mut table = LinearForwarding::read(&data.expect("a table"));
        // Always forward by the same link to another switch.
        let is_switch = |(_, peer): &(&u8, &(usize, u8))| manager.found[peer.0].is_switch();
        let node = subnet
            .nodes()
            .find(|node| subnet.agent(*node).node().node_guid == found.info.node_guid);
        let node = node.expect("a switch");
        let next = format!(
            "switch{}",
            subnet
                .name(node)
                .trim_start_matches("switch")
                .parse::<u8>()
                .expect("a number")
                % 3
                + 1
        );
        let mut links = found.links.iter().filter(is_switch);
        let (port, _) = links
            .find(|(port, _)| {
                subnet
                    .peer(node, **port)
                    .is_some_and(|(_, peer, _)| subnet.name(peer) == next)
            })
            .expect("a link");
        table.ports[usize::from(to)] = *port;
        let path = found.path.clone();
        manager.set(
            &mut subnet,
            &path,
            id::LINEAR_FORWARDING,
            0,
            table.to_data(),
        );
    }
    assert_eq!(
        subnet.credit_loop(|_, _| 0).map(|found| found.len()),
        Some(3)
    );
}

/// Sends packets of 4096 bytes, and returns how many arrive in a period. Each sender is an HCA, with the LID that it
/// sends to, a service level and a number of packets.
fn arrivals(
    subnet: &mut Subnet,
    flows: &[(NodeId, Lid, u8, usize)],
    time: Duration,
) -> Vec<Packet> {
    for &(from, to, level, count) in flows {
        for _ in 0..count {
            let mut packet = datagram(to, 0xffff, &[level; 4096]);
            packet.service_level = level;
            subnet.send(from, packet).expect("it leaves, or waits");
        }
    }
    subnet.run_until(subnet.now() + time);
    std::iter::from_fn(|| next_datagram(subnet))
        .map(|(_, packet)| packet)
        .collect()
}

/// Returns the sum of discards at all ports.
fn discards(subnet: &Subnet) -> u32 {
    let nodes = subnet.nodes();
    let ports =
        nodes.flat_map(|node| (0..=16).filter_map(move |port| subnet.agent(node).port(port)));
    ports
        .map(|port| u32::from(port.statistics().counters.transmit_discards))
        .sum()
}

/// Lanes that wait for each other stand still until their packets expire. If paths that cross one link of the ring use
/// another lane, or without flow control, they do not.
#[test]
fn a_credit_loop_stands_still() {
    for (buffer, levels, stands) in [
        ("buffer = 4300\n", 1, true),
        ("buffer = 4300\n", 2, false),
        ("", 1, false),
    ] {
        let (mut subnet, _) = managed(&format!("{buffer}[ring]\nswitches = 5\nhosts = 1"));
        let hcas: Vec<_> = subnet.hcas().collect();
        let flows: Vec<_> = (0..5)
            .map(|place: usize| {
                let to = (place + 2) % 5;
                let level = u8::from(to < place && levels == 2);
                (hcas[place], lid(&subnet, hcas[to]), level, 100)
            })
            .collect();
        let arrived = arrivals(&mut subnet, &flows, 100 * MILLISECOND).len();
        if !stands {
            assert_eq!((arrived, discards(&subnet)), (500, 0));
            continue;
        }
        assert!(arrived < 100, "{arrived}");
        assert_eq!(arrivals(&mut subnet, &[], 100 * MILLISECOND).len(), 0);
        assert_eq!(discards(&subnet), 0);
        let more = arrivals(&mut subnet, &[], 100 * SECOND).len();
        let lost = discards(&subnet) as usize;
        assert!(lost > 0);
        assert_eq!(arrived + more + lost, 500);
    }
}

/// With flow control, a slow receiver loses no packets, and delays only its own lane.
#[test]
fn a_slow_receiver_slows_its_senders() {
    let topology = |buffer: &str| {
        format!(
            "{buffer}[[switch]]\nname = 's'\nports = 4\n[[switch]]\nname = 't'\nports = 4\n\
             [[hca]]\nname = 'a'\n[[hca]]\nname = 'b'\n[[hca]]\nname = 'slow'\n[[hca]]\nname = 'fast'\n\
             [[link]]\nends = ['s/1', 'a']\n[[link]]\nends = ['s/2', 'b']\n[[link]]\nends = ['s/3', 't/3']\n\
             [[link]]\nends = ['t/1', 'slow']\nwidth = '1x'\nspeed = 'sdr'\n[[link]]\nends = ['t/2', 'fast']"
        )
    };
    // In this time, the slow link carries about 60 packets, and the others 3000.
    let time = MILLISECOND;
    for (buffer, level) in [("buffer = 20000\n", 0), ("buffer = 20000\n", 1), ("", 0)] {
        let (mut subnet, _) = managed(&topology(buffer));
        let node = |name| subnet.find(name).expect("a node");
        let [one, other, slow, fast] = ["a", "b", "slow", "fast"].map(node);
        let [slow, fast] = [slow, fast].map(|node| lid(&subnet, node));
        let flows = [(one, slow, 0, 500), (other, fast, level, 500)];
        let arrived = arrivals(&mut subnet, &flows, time);
        let fast = arrived
            .iter()
            .filter(|packet| packet.destination == fast)
            .count();
        let slow = arrived.len() - fast;
        assert!((50..70).contains(&slow), "{slow}");
        match (buffer, level) {
            ("", _) | (_, 1) => assert_eq!(fast, 500, "its own lane, or no flow control"),
            _ => assert!(fast < 200, "it waits behind the others: {fast}"),
        }
        if !buffer.is_empty() {
            let waited = subnet
                .agent(one)
                .end_port()
                .statistics()
                .counters
                .transmit_wait;
            // A tick of 100 bits of a lane has 3.9 ns.
            assert!(waited > 128_000, "ticks: {waited}");
            let rest = arrivals(&mut subnet, &[], SECOND).len();
            assert_eq!((slow + fast + rest, discards(&subnet)), (1000, 0));
        }
    }
}

/// The arbitration tables of a port determine how its lanes share the link.
#[test]
fn lanes_share_a_link_as_the_tables_say() {
    let (mut subnet, mut manager) = managed("buffer = 100000\n[single]\nhosts = 2");
    let hcas: Vec<_> = subnet.hcas().collect();
    let to = lid(&subnet, hcas[1]);
    let table = |entries: &[(u16, u16)]| {
        let mut table = VlArbitration::default();
        for (place, (lane, weight)) in entries.iter().enumerate() {
            table.entries[place] = lane << 8 | weight;
        }
        table.to_data()
    };
    let mut share = |low: &[(u16, u16)], high: &[(u16, u16)], limit| {
        manager.set(
            &mut subnet,
            &[],
            id::VL_ARBITRATION,
            1 << 16 | 1,
            table(low),
        );
        manager.set(
            &mut subnet,
            &[],
            id::VL_ARBITRATION,
            3 << 16 | 1,
            table(high),
        );
        manager.change_port(&mut subnet, &[], 1, |info| info.vl_high_limit = limit);
        let flows = [
            (hcas[0], to, 0, 100),
            (hcas[0], to, 1, 100),
            (hcas[0], to, 2, 100),
        ];
        let arrived = arrivals(&mut subnet, &flows, SECOND);
        // The first packet left before the others arrived.
        let first = arrived[1..61]
            .iter()
            .map(|packet| usize::from(packet.service_level));
        first.fold([0; 3], |mut counts, level| {
            counts[level] += 1;
            counts
        })
    };
    // A packet has 65 blocks.
    assert_eq!(share(&[(0, 65), (1, 130), (2, 195)], &[], 0), [10, 20, 30]);
    assert_eq!(share(&[(0, 65), (1, 65)], &[(2, 65)], 0), [15, 15, 30]);
    assert_eq!(share(&[(0, 65), (1, 65)], &[(2, 65)], 255), [0, 0, 60]);
    assert_eq!(share(&[(0, 255), (1, 65), (2, 0)], &[], 0)[2], 0);
}

/// Two tenants on one switch cannot reach each other, whether the HCAs or the switch enforce partitions, and the
/// manager gets a trap about the sender.
#[test]
fn partitions_separate() {
    for at_switch in [false, true] {
        let (mut subnet, mut manager) = managed("[single]\nhosts = 4");
        let hcas: Vec<_> = subnet.hcas().collect();
        let tables = [[0x8001, 0x8002], [0x8001, 0], [0x8002, 0], [0x0001, 0]];
        for (place, keys) in tables.into_iter().enumerate() {
            let mut table = PKeyTable::default();
            table.keys[0] = 0xffff;
            table.keys[1..3].copy_from_slice(&keys);
            let path = if place == 0 {
                vec![]
            } else {
                vec![1, place as u8 + 1]
            };
            let port = place as u32 + 1;
            if at_switch {
                // Let the HCAs accept any packet.
                let mut any = table;
                any.keys[3..7].copy_from_slice(&[0x8001, 0x8002, 0x8003, 1]);
                manager.set(&mut subnet, &path, id::PKEY_TABLE, 0, any.to_data());
                manager.set(
                    &mut subnet,
                    &[1],
                    id::PKEY_TABLE,
                    port << 16,
                    table.to_data(),
                );
                manager.change_port(&mut subnet, &[1], port as u8, |info| {
                    (info.enforce_inbound, info.enforce_outbound) = (true, true);
                });
            } else {
                manager.set(&mut subnet, &path, id::PKEY_TABLE, 0, table.to_data());
            }
        }
        manager.wait(&mut subnet, SECOND);
        let mut try_it = |from: usize, to: usize, pkey| {
            let lid = lid(&subnet, hcas[to]);
            let sent = subnet.send(hcas[from], datagram(lid, pkey, b"?"));
            subnet.run_until(subnet.now() + MILLISECOND);
            let mut arrived = false;
            while let Some((node, packet)) = subnet.receive() {
                let to_program = packet
                    .as_datagram()
                    .is_some_and(|(bth, ..)| bth.destination_qp == 77);
                arrived |= node == hcas[to] && to_program;
            }
            (sent, arrived)
        };
        assert_eq!(try_it(0, 1, 0x8001), (Ok(()), true));
        assert_eq!(try_it(0, 2, 0x8002), (Ok(()), true));
        assert_eq!(
            try_it(0, 3, 0x8001),
            (Ok(()), true),
            "a limited member hears a full one"
        );
        assert_eq!(
            try_it(3, 0, 0x0001),
            (Ok(()), true),
            "a full member hears a limited one"
        );
        if at_switch {
            assert_eq!(try_it(1, 2, 0x8002), (Ok(()), false), "not let in");
            assert_eq!(try_it(0, 2, 0x8001), (Ok(()), false), "not let out");
            let counters = |port| {
                subnet
                    .agent(subnet.find("switch1").unwrap())
                    .port(port)
                    .unwrap()
                    .statistics()
                    .counters
            };
            assert_eq!(counters(2).receive_constraint_errors, 1);
            assert_eq!(counters(3).transmit_constraint_errors, 1);
        } else {
            assert_eq!(try_it(1, 2, 0x8002), (Err(SendError::Partition), false));
            assert_eq!(try_it(0, 2, 0x8001), (Ok(()), false));
            assert_eq!(subnet.agent(hcas[2]).end_port().info().p_key_violations, 1);
        }
        manager.represses = false;
        manager.wait(&mut subnet, 10 * MILLISECOND);
        let (two, one) = (lid(&subnet, hcas[2]), lid(&subnet, hcas[0]));
        let told = manager.traps.iter().any(|trap| match trap {
            Trap::PKey(it) => {
                !at_switch
                    && (it.source, it.destination, it.key, it.source_qp) == (one, two, 0x8001, 66)
            }
            Trap::SwitchPKey(it) => {
                at_switch && (it.source, it.destination, it.pkey, it.port) == (one, two, 0x8001, 3)
            }
            _ => false,
        });
        assert!(told, "{:?}", manager.traps);
        if at_switch {
            let forged = datagram(one, 0x8001, b"I am a full member");
            subnet.send(hcas[3], forged).unwrap();
            subnet.run_until(subnet.now() + MILLISECOND);
            let switch = subnet.agent(subnet.find("switch1").unwrap());
            let counters = switch.port(4).unwrap().statistics().counters;
            assert_eq!(counters.receive_constraint_errors, 1);
        }
    }
}

#[test]
fn multicast_reaches_each_member_once() {
    let (mut subnet, mut manager) = managed("[torus]\nsize = [3, 3]\nhosts = 1");
    let hcas: Vec<_> = subnet.hcas().collect();
    manager.join_all(&mut subnet, 0xc021);
    for &hca in &hcas[..8] {
        assert!(subnet.attach(hca, 0xc021, true));
    }
    subnet
        .send(hcas[3], datagram(0xc021, 0xffff, b"all"))
        .unwrap();
    subnet.run_until(subnet.now() + SECOND);
    let mut got = Vec::new();
    while let Some((node, packet)) = next_datagram(&mut subnet) {
        assert_eq!(packet.as_datagram().unwrap().2, b"all");
        got.push(node);
    }
    got.sort_unstable();
    assert_eq!(got, hcas[..8]);
    // A LID that no table covers goes to the default port, and there is none.
    subnet
        .send(hcas[3], datagram(0xd000, 0xffff, b"none"))
        .unwrap();
    subnet.run_until(subnet.now() + SECOND);
    assert!(next_datagram(&mut subnet).is_none());
}

/// Reads counters by LID from QP 1.
fn counters(
    subnet: &mut Subnet,
    from: NodeId,
    to: Lid,
    attribute: u16,
    port: u8,
) -> PerformanceMad {
    let mut request = PerformanceMad::request(Method::GET, attribute);
    request.data[1] = port;
    subnet
        .send(from, general((0, to), 0xffff, &request))
        .unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    loop {
        let (node, packet) = subnet.receive().expect("a response");
        let (bth, _, payload) = packet.as_datagram().unwrap();
        if node == from && bth.destination_qp == 1 {
            return PerformanceMad::parse(payload).unwrap();
        }
    }
}

#[test]
fn counters_count_words_and_packets() {
    let (mut subnet, manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    let [switch, to] = [subnet.find("switch1").unwrap(), peer].map(|node| lid(&subnet, node));
    let read = |subnet: &mut Subnet, lid, port| {
        let response = counters(subnet, manager.at, lid, id::PORT_COUNTERS_EXTENDED, port);
        assert_eq!(response.header.status, Status::OK);
        PortCountersExtended::read(&response.data)
    };
    let before = read(&mut subnet, switch, 2);
    for _ in 0..10 {
        subnet
            .send(manager.at, datagram(to, 0xffff, &[0; 1000]))
            .unwrap();
    }
    subnet.run_until(subnet.now() + MILLISECOND);
    let after = read(&mut subnet, switch, 2);
    assert_eq!(
        after.unicast_transmit_packets - before.unicast_transmit_packets,
        10
    );
    assert_eq!(
        after.transmit_data - before.transmit_data,
        10 * (8 + 12 + 8 + 1000 + 4) / 4
    );
    let sum = read(&mut subnet, switch, ALL_PORTS);
    assert!(sum.transmit_packets > after.transmit_packets);
    let short = counters(&mut subnet, manager.at, to, id::PORT_COUNTERS, 1);
    assert!(PortCounters::read(&short.data).receive_packets >= 10);
    assert_eq!(
        counters(&mut subnet, manager.at, to, id::PORT_COUNTERS, 2)
            .header
            .status,
        Status::BAD_FIELD
    );
    // A request with a wrong Q_Key gets no response, is counted and causes a trap.
    let bth = Bth {
        pkey: 0xffff,
        destination_qp: 1,
        ..Bth::default()
    };
    let request = PerformanceMad::request(Method::GET, id::PORT_COUNTERS).to_bytes();
    subnet
        .send(
            manager.at,
            Packet::datagram((0, to), 0, bth, Deth::default(), &request),
        )
        .unwrap();
    let mut manager = manager;
    manager.wait(&mut subnet, SECOND);
    assert_eq!(subnet.agent(peer).end_port().info().q_key_violations, 1);
    assert!(
        manager
            .traps
            .iter()
            .any(|trap| matches!(trap, Trap::QKey(it) if it.destination == to))
    );
}

/// A bad link loses packets, which the counters of its receiver show. A good link does not.
#[test]
fn errors_grow_with_the_bit_error_rate() {
    let mut errors = Vec::new();
    for rate in [0.0, 1e-6, 1e-5, 1e-4] {
        let (mut subnet, mut manager) = managed("seed = 3\n[single]\nhosts = 2");
        let peer = subnet.hcas().nth(1).unwrap();
        let (link, ..) = subnet.peer(peer, 1).unwrap();
        manager.wait(&mut subnet, SECOND);
        manager.traps.clear();
        subnet.set_bit_error_rate(link, rate);
        let to = lid(&subnet, peer);
        for _ in 0..2000 {
            subnet
                .send(manager.at, datagram(to, 0xffff, &[0; 256]))
                .unwrap();
        }
        let end = subnet.now() + 50 * MILLISECOND;
        subnet.run_until(end);
        let arrived = std::iter::from_fn(|| subnet.receive())
            .filter(|(node, _)| *node == peer)
            .count();
        let counters = subnet.agent(peer).end_port().statistics().counters;
        assert_eq!(arrived + usize::from(counters.symbol_errors), 2000);
        errors.push(counters.symbol_errors);
    }
    assert_eq!(errors[0], 0);
    // 2000 packets of 2304 bits.
    assert!(
        (1..20).contains(&errors[1])
            && (20..100).contains(&errors[2])
            && (300..600).contains(&errors[3]),
        "{errors:?}"
    );
}

/// Consecutive bad packets cause a trap, which the receiver sends as soon as it can.
#[test]
fn too_many_errors_are_told() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    manager.wait(&mut subnet, SECOND);
    manager.traps.clear();
    let peer = subnet.hcas().nth(1).unwrap();
    let (link, ..) = subnet.peer(peer, 1).unwrap();
    let to = lid(&subnet, peer);
    subnet.set_bit_error_rate(link, 1.0);
    for _ in 0..9 {
        subnet
            .send(manager.at, datagram(to, 0xffff, b"bad"))
            .unwrap();
    }
    manager.wait(&mut subnet, MILLISECOND);
    let counters = subnet.agent(peer).end_port().statistics().counters;
    assert_eq!(
        (counters.symbol_errors, counters.local_link_integrity_errors),
        (9, 1)
    );
    subnet.set_bit_error_rate(link, 0.0);
    manager.wait(&mut subnet, SECOND);
    assert!(matches!(manager.traps[..], [Trap::LinkIntegrity(it)] if (it.lid, it.port) == (to, 1)));
}

/// An HCA cannot send with the source of another one.
#[test]
fn a_source_is_ones_own() {
    let (mut subnet, manager) = managed("[single]\nhosts = 3");
    let hcas: Vec<_> = subnet.hcas().collect();
    let [own, other, to] = [0, 1, 2].map(|place| lid(&subnet, hcas[place]));
    let mut packet = datagram(to, 0xffff, b"forged");
    (packet.source, packet.service_level) = (other, 2);
    let seen = subnet.as_sent(manager.at, packet.clone()).unwrap();
    assert_eq!((seen.source, seen.lane), (own, 2));
    let stranger = datagram(to, 0x8009, b"forged");
    assert_eq!(
        subnet.as_sent(manager.at, stranger),
        Err(SendError::Partition)
    );
    subnet.send(manager.at, packet).unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    let (node, packet) = next_datagram(&mut subnet).unwrap();
    assert_eq!((node, packet.source), (hcas[2], own));
}

/// Violations that the owner of an HCA reports are counted and cause a trap.
#[test]
fn violations_that_an_owner_found_count() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let hca = subnet.hcas().nth(1).unwrap();
    let details = KeyViolation {
        key: 7,
        ..KeyViolation::default()
    };
    for (packets, count) in [(3, 3), (u32::MAX, u16::MAX)] {
        subnet.change_agent(hca, |agent| {
            agent.note_violations(Trap::QKey(details), packets);
        });
        let info = subnet.agent(hca).end_port().info();
        assert_eq!((info.q_key_violations, info.p_key_violations), (count, 0));
    }
    manager.wait(&mut subnet, SECOND);
    let told = |trap: &Trap| matches!(trap, Trap::QKey(it) if it.key == 7);
    assert!(manager.traps.iter().any(told), "{:?}", manager.traps);
}

/// Management packets that exceed the rate of an agent are dropped and counted. Later ones are answered.
#[test]
fn a_flood_is_dropped() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let switch = subnet.find("switch1").unwrap();
    let smp = Smp {
        route: Route::along(&[1]),
        ..Smp::request(Method::GET, id::NODE_INFO, 0)
    };
    let mut subnet_mut = |count| {
        for _ in 0..count {
            subnet.send_smp(manager.at, &smp, 0xffff).unwrap();
        }
        subnet.run_until(subnet.now() + SECOND);
        let is_response = |packet: &Packet| {
            let smp = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad));
            matches!(smp, Some(Ok(smp)) if smp.header.attribute == id::NODE_INFO)
        };
        let responses = std::iter::from_fn(|| subnet.receive())
            .filter(|(_, packet)| is_response(packet))
            .count();
        (
            responses,
            subnet
                .agent(switch)
                .port(1)
                .unwrap()
                .statistics()
                .counters
                .vl15_dropped,
        )
    };
    let (responses, dropped) = subnet_mut(5000);
    assert!(responses < 5000 && dropped > 0);
    assert_eq!(responses + usize::from(dropped), 5000);
    assert!(manager.get(&mut subnet, &[1], id::NODE_INFO, 0).is_some());
}

/// A manager can switch a port off and on again.
#[test]
fn ports_are_switched_off_and_on() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    let state = |subnet: &Subnet| {
        let info = subnet.agent(peer).end_port().info();
        (info.state, info.physical_state)
    };
    assert_eq!(state(&subnet), (PortState::ACTIVE, PhysicalState::LINK_UP));
    manager.change_port(&mut subnet, &[1], 2, |info| {
        info.physical_state = PhysicalState::DISABLED;
    });
    manager.wait(&mut subnet, SECOND);
    assert_eq!(state(&subnet), (PortState::DOWN, PhysicalState::POLLING));
    manager.change_port(&mut subnet, &[1], 2, |info| {
        info.physical_state = PhysicalState::POLLING;
    });
    manager.wait(&mut subnet, SECOND);
    assert_eq!(state(&subnet), (PortState::INIT, PhysicalState::LINK_UP));
    // The link goes down only briefly, because the physical layer polls at once.
    manager.sweep(&mut subnet);
    assert_eq!(state(&subnet), (PortState::ACTIVE, PhysicalState::LINK_UP));
    manager.change_port(&mut subnet, &[1], 2, |info| info.state = PortState::DOWN);
    assert_eq!(state(&subnet).0, PortState::DOWN);
    manager.wait(&mut subnet, SECOND);
    assert_eq!(state(&subnet), (PortState::INIT, PhysicalState::LINK_UP));
}

/// The first packet that arrives at an armed port makes it active.
#[test]
fn a_packet_activates_an_armed_port() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    manager.change_port(&mut subnet, &[1], 2, |info| info.state = PortState::DOWN);
    manager.wait(&mut subnet, SECOND);
    for (path, port) in [(&[1, 2][..], 1), (&[1][..], 2)] {
        manager.change_port(&mut subnet, path, port, |info| {
            info.state = PortState::ARMED;
        });
    }
    manager.change_port(&mut subnet, &[1], 2, |info| info.state = PortState::ACTIVE);
    let to = lid(&subnet, peer);
    assert_eq!(
        subnet.send(peer, datagram(1, 0xffff, b"")),
        Err(SendError::Down)
    );
    subnet
        .send(manager.at, datagram(to, 0xffff, b"wake"))
        .unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    assert_eq!(next_datagram(&mut subnet).map(|(node, _)| node), Some(peer));
    assert_eq!(
        subnet.agent(peer).end_port().info().state,
        PortState::ACTIVE
    );
}

/// Changes that a manager makes at an HCA are reported once to its driver.
#[test]
fn changes_are_told_once() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    let take = |subnet: &mut Subnet| subnet.change_agent(peer, Agent::take_changes);
    let changes = take(&mut subnet);
    assert!(
        changes.lid && changes.manager && !changes.pkeys && !changes.gids && !changes.reregister,
        "{changes:?}"
    );
    assert_eq!(take(&mut subnet), Changes::default());
    let mut table = PKeyTable::default();
    table.keys[0] = 0xffff;
    manager.set(&mut subnet, &[1, 2], id::PKEY_TABLE, 0, table.to_data());
    assert!(!take(&mut subnet).pkeys, "it is what it was");
    table.keys[1] = 0x8005;
    manager.set(&mut subnet, &[1, 2], id::PKEY_TABLE, 0, table.to_data());
    manager.change_port(&mut subnet, &[1, 2], 1, |info| {
        (info.client_reregister, info.gid_prefix) = (true, 0xfec0 << 48);
    });
    let changes = take(&mut subnet);
    assert!(
        changes.pkeys && changes.gids && changes.reregister && !changes.lid && !changes.manager,
        "{changes:?}"
    );
    let info = manager.port_info(&mut subnet, &[1, 2], 1).unwrap();
    assert!(!info.client_reregister, "that is a request, not a state");
}

/// A request of another manager about the subnet manager is delivered to the owner of the HCA, which responds itself.
#[test]
fn managers_see_each_other() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let peer = subnet.hcas().nth(1).unwrap();
    let mask = subnet.agent(peer).end_port().info().capability_mask;
    subnet.change_agent(peer, |agent| agent.set_capabilities(mask | capability::SM));
    let smp = Smp {
        route: Route::along(&[1, 2]),
        ..Smp::request(Method::GET, id::SM_INFO, 0)
    };
    subnet.send_smp(manager.at, &smp, 0xffff).unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    let asked = std::iter::from_fn(|| subnet.receive()).find(|(node, _)| *node == peer);
    let (_, packet) = asked.expect("the question");
    let question = Smp::parse(packet.as_datagram().unwrap().2).unwrap();
    let mut answer = question.response(Status::OK);
    let own = SmInfo {
        priority: 9,
        ..SmInfo::default()
    };
    answer.data = own.to_data();
    subnet.send_smp(peer, &answer, 0xffff).unwrap();
    subnet.run_until(subnet.now() + MILLISECOND);
    let is_answer = |packet: &Packet| {
        let smp = packet.as_datagram().map(|(_, _, mad)| Smp::parse(mad));
        matches!(smp, Some(Ok(smp)) if smp.header.attribute == id::SM_INFO)
    };
    let answered = std::iter::from_fn(|| subnet.receive())
        .find(|(node, packet)| *node == manager.at && is_answer(packet));
    let (_, packet) = answered.expect("the answer");
    assert_eq!(
        SmInfo::read(&Smp::parse(packet.as_datagram().unwrap().2).unwrap().data),
        own
    );
    manager.wait(&mut subnet, SECOND);
    assert!(
        manager
            .traps
            .iter()
            .any(|trap| matches!(trap, Trap::Capability(it) if it.mask & capability::SM != 0))
    );
}

/// Creates a subnet management packet between QPs 0.
fn management(addresses: (Lid, Lid), smp: &Smp) -> Packet {
    let bth = Bth {
        pkey: 0xffff,
        ..Bth::default()
    };
    Packet::datagram(addresses, 0, bth, Deth::default(), &smp.to_bytes())
}

/// Creates a request of performance management between QPs 1.
fn general(addresses: (Lid, Lid), pkey: u16, mad: &PerformanceMad) -> Packet {
    to_qp_1(addresses, pkey, &mad.to_bytes())
}

/// Creates a management datagram between QPs 1.
fn to_qp_1(addresses: (Lid, Lid), pkey: u16, mad: &[u8]) -> Packet {
    let bth = Bth {
        pkey,
        destination_qp: 1,
        ..Bth::default()
    };
    let deth = Deth {
        qkey: MANAGEMENT_QKEY,
        source_qp: 1,
    };
    Packet::datagram(addresses, 0, bth, deth, mad)
}

/// Creates a ping as `ibping` sends it.
fn ping_request(transaction: u64) -> [u8; MAD_LENGTH] {
    let mut bytes = [0; MAD_LENGTH];
    let header = Header {
        transaction,
        ..Header::request(class::PING, Method::GET, 0, 0)
    };
    header.write(&mut bytes);
    bytes[37..40].copy_from_slice(&ping::OUI);
    bytes
}

/// The owner of a subnet lets HCAs answer pings, by their names. Switches do not answer, and nobody answers what is not
/// a ping or comes from another partition.
#[test]
fn pings_are_answered_for_an_owner() {
    let (mut subnet, _) = managed("[single]\nhosts = 3");
    let hcas: Vec<_> = subnet.hcas().collect();
    let lids: Vec<_> = hcas.iter().map(|hca| lid(&subnet, *hca)).collect();
    let switch = lid(&subnet, subnet.find("switch1").expect("a switch"));
    // Sends a packet from the first HCA. Returns what it receives if the others answer pings.
    let ask = |subnet: &mut Subnet, packet: Packet| {
        subnet.send(hcas[0], packet).expect("it leaves");
        for _ in 0..2 {
            subnet.run_until(subnet.now() + MILLISECOND);
            let received: Vec<_> = std::iter::from_fn(|| subnet.receive()).collect();
            for (node, packet) in received {
                if node != hcas[0] {
                    subnet.answer_ping(node, &packet);
                } else if packet
                    .as_datagram()
                    .is_some_and(|it| it.0.destination_qp == 1)
                {
                    return Some(packet);
                }
            }
        }
        None
    };
    for (place, name) in [(1, "switch1-h2"), (2, "switch1-h3")] {
        let mut request = to_qp_1((0, lids[place]), 0xffff, &ping_request(7));
        let pong = ask(&mut subnet, request.clone()).expect("a pong");
        assert_eq!((pong.source, pong.destination), (lids[place], lids[0]));
        let (bth, deth, mad) = pong.as_datagram().expect("a datagram");
        assert_eq!((bth.destination_qp, deth.source_qp), (1, 1));
        assert_eq!(deth.qkey, MANAGEMENT_QKEY);
        let header = Header::read(mad);
        assert_eq!((header.method, header.transaction), (Method(0x81), 7));
        assert!(mad[40..].starts_with(format!("{name}\0").as_bytes()));
        // A global request has a global response.
        let Body::Transport { grh, .. } = &mut request.body else {
            panic!("no transport")
        };
        let global = Grh {
            next_header: GRH_NEXT_HEADER,
            source: [1; 16],
            ..Grh::default()
        };
        *grh = Some(global);
        let pong = ask(&mut subnet, request).expect("a pong");
        let Body::Transport { grh, .. } = &pong.body else {
            panic!("no transport")
        };
        assert_eq!(grh.map(|grh| grh.destination), Some([1; 16]));
    }
    let to = |lid, mad: &[u8]| to_qp_1((0, lid), 0xffff, mad);
    assert_eq!(ask(&mut subnet, to(switch, &ping_request(8))), None);
    let mut other = ping_request(9);
    other[1] = class::VENDOR_OUI_FIRST;
    assert_eq!(ask(&mut subnet, to(lids[1], &other)), None);
    let mut wrong_key = to(lids[1], &ping_request(10));
    if let Body::Transport { rest, .. } = &mut wrong_key.body {
        rest[0] ^= 1;
    }
    assert_eq!(ask(&mut subnet, wrong_key), None);
    // A ping to another QP is not for the server.
    let mut wrong_qp = to(lids[1], &ping_request(11));
    if let Body::Transport { bth, .. } = &mut wrong_qp.body {
        bth.destination_qp = 2;
    }
    assert_eq!(ask(&mut subnet, wrong_qp), None);
    assert!(ask(&mut subnet, to(lids[1], &ping_request(12))).is_some());
}

/// An owner that handles directed routes itself gets packets as they arrived, and its own are sent unchanged.
#[test]
fn a_bare_hca_leaves_directed_routes_to_its_owner() {
    let mut subnet = subnet("[single]\nhosts = 2");
    let from = subnet.hcas().next().expect("an HCA");
    assert!(subnet.set_bare(from));
    let mut smp = Smp::request(Method::GET, id::NODE_INFO, 0);
    let mut route = Route::along(&[1, 2]).expect("a route");
    // The owner has already taken the first step of the route.
    route.hop_pointer = 1;
    smp.route = Some(route);
    // The packet has a source LID that does not belong to the HCA.
    subnet
        .send(from, management((77, 0xffff), &smp))
        .expect("it leaves");
    subnet.run_until(SECOND);
    let (at, packet) = subnet.receive().expect("a response");
    assert_eq!(
        (at, packet.source, packet.destination),
        (from, 0xffff, 0xffff)
    );
    let (_, _, mad) = packet.as_datagram().expect("a datagram");
    let response = Smp::parse(mad).expect("a response");
    let route = response.route.expect("a route");
    assert!(route.returning);
    assert_eq!(route.hop_pointer, 1, "the last step is the owner's");
    // Without a route, a packet to the permissive LID is refused.
    let lost = Smp::request(Method::GET, id::NODE_INFO, 0);
    let sent = subnet.send(from, management((0, 0xffff), &lost));
    assert_eq!(sent, Err(SendError::Management));
}

#[test]
fn a_bare_hca_sends_with_its_own_lid_and_does_not_hear_its_groups() {
    let (mut subnet, mut manager) = managed("[single]\nhosts = 2");
    let hcas: Vec<NodeId> = subnet.hcas().collect();
    manager.join_all(&mut subnet, 0xc021);
    for &hca in &hcas {
        assert!(subnet.set_bare(hca) && subnet.attach(hca, 0xc021, true));
    }
    while subnet.receive().is_some() {}
    for source in [0, lid(&subnet, hcas[1]), 0xffff] {
        let packet = Packet {
            source,
            ..datagram(0xc021, 0xffff, b"x")
        };
        subnet.send(hcas[0], packet).expect("it leaves");
        subnet.run_until(subnet.now() + MILLISECOND);
        let (at, packet) = next_datagram(&mut subnet).expect("a packet");
        assert_eq!((at, packet.source), (hcas[1], lid(&subnet, hcas[0])));
        assert!(next_datagram(&mut subnet).is_none());
    }
    // Only directed routes use the permissive LID.
    let packet = Packet {
        source: 0xffff,
        ..datagram(0xffff, 0xffff, b"x")
    };
    let _ = subnet.send(hcas[0], packet);
    subnet.run_until(subnet.now() + MILLISECOND);
    assert!(next_datagram(&mut subnet).is_none());
}

#[test]
fn agents_process_what_does_not_come_from_the_network() {
    let (mut subnet, _) = managed("[single]\nhosts = 2");
    let hca = subnet.hcas().next().expect("an HCA");
    let get = Smp::request(Method::GET, id::PORT_INFO, 1);
    let packet = management((0xffff, 1), &get);
    let answer = subnet.process(hca, &packet).expect("for the agent");
    let response = Smp::parse(&answer.expect("an answer")).expect("a response");
    assert_eq!(response.header.method, Method::GET_RESPONSE);
    let general = |mad: &[u8]| {
        let bth = Bth {
            destination_qp: 1,
            ..Bth::default()
        };
        Packet::datagram((0, 1), 0, bth, Deth::default(), mad)
    };
    let counters = PerformanceMad::request(Method::GET, id::PORT_COUNTERS).to_bytes();
    assert!(subnet.process(hca, &general(&counters)).is_some());
    // Datagrams that are not for the agents.
    let pass = Smp {
        header: response.header,
        ..get.clone()
    };
    assert_eq!(subnet.process(hca, &management((1, 1), &pass)), None);
    assert_eq!(subnet.process(hca, &general(&[7; 256])), None);
}
