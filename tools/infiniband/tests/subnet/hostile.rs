// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Hostile packets at every port: nothing panics, and a manager can still bring the subnet up.

use super::{MILLISECOND, all, managed, reached};
use crate::manager::Manager;
use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use vrnic_infiniband::{
    agent::Identity,
    hca::{Hca, Output},
    mad::{Header, MAD_LENGTH, MANAGEMENT_QKEY, Method, OUI_AT, PerformanceMad, Route, Smp, class},
    packet::{Bth, Deth, Packet, check, set_lane},
    ping,
    port::{PortConfig, Speed, Width},
    switch::Switch,
};

/// Creates valid or nearly valid packets with random changes.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let mad = (
        0_u8..5,
        any::<u8>(),
        0_u16..0x40,
        any::<u32>(),
        any::<[u8; 32]>(),
        vec(0_u8..6, 0..5),
    )
        .prop_map(|(kind, method, attribute, modifier, data, path)| {
            let method = [
                Method::GET,
                Method::SET,
                Method::TRAP_REPRESS,
                Method(method),
            ][usize::from(method % 4)];
            let modifier = if modifier & 1 == 0 {
                modifier >> 24
            } else {
                modifier
            };
            if kind == 0 {
                let mut mad = PerformanceMad::request(method, attribute);
                mad.data[..32].copy_from_slice(&data);
                return (1, mad.to_bytes());
            }
            if kind == 4 {
                let class = [class::PING, class::SYSTEM_STATUS][usize::from(data[0] & 1)];
                let mut mad = [data[1]; MAD_LENGTH];
                Header::request(class, method, attribute, modifier).write(&mut mad);
                mad[24..OUI_AT].fill(0);
                mad[OUI_AT..OUI_AT + 3].copy_from_slice(&ping::OUI);
                return (1, mad);
            }
            let mut smp = Smp::request(method, attribute, modifier);
            smp.data[..32].copy_from_slice(&data);
            smp.data[32..].copy_from_slice(&data);
            smp.route = Route::along(&path).filter(|_| kind > 1);
            if let Some(route) = smp.route.as_mut().filter(|_| kind == 3) {
                route.hop_pointer = data[0] % 4;
                route.returning = data[1] & 1 == 1;
                route.back[..32].copy_from_slice(&data.map(|byte| byte % 6));
            }
            (0, smp.to_bytes())
        });
    let addresses = prop_oneof![Just(0xffff_u16), 0_u16..8, 0xbfff_u16..0xc004, any::<u16>()];
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    let pkeys = prop_oneof![Just(0xffff_u16), any::<u16>()];
    (mad, addresses, pkeys, changes, any::<bool>(), any::<u8>()).prop_map(
        |(mad, to, pkey, changes, repaired, lane)| {
            let bth = Bth {
                pkey,
                destination_qp: mad.0,
                ..Bth::default()
            };
            let deth = Deth {
                qkey: if mad.0 == 0 { 0 } else { MANAGEMENT_QKEY },
                source_qp: mad.0,
            };
            let mut payload = mad.1;
            for (place, value) in &changes {
                payload[place.index(256)] = *value;
            }
            let mut frame = Packet::datagram((3, to), lane % 16, bth, deth, &payload).to_bytes();
            if !repaired && let Some((place, value)) = changes.first() {
                let at = place.index(frame.len());
                frame[at] ^= value;
            } else if lane & 0x80 != 0 {
                set_lane(&mut frame, lane & 0xf);
            }
            frame
        },
    )
}

/// Checks that packets leave by existing ports and that a receiver accepts them.
fn check_outputs(outputs: Vec<Output>, ports: u8) {
    assert!(outputs.len() <= usize::from(ports) + 1);
    for output in outputs {
        if let Output::Transmit { port, frame, .. } = output {
            assert!((1..=ports).contains(&port));
            check(&frame.into_bytes()).expect("a good frame");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_that_comes_in_panics(frames in vec(prop_oneof![9 => packets(), 1 => vec(any::<u8>(), 0..400)], 1..20), time in 0_u64..1000) {
        let config = PortConfig::default();
        let mut hca = Hca::new(&Identity::default(), config);
        let mut switch = Switch::new(&Identity::default(), &[config; 4]);
        hca.agent_mut().link_up(1, Width::X4, Speed::Edr);
        for port in 1..5 {
            switch.agent_mut().link_up(port, Width::X4, Speed::Edr);
        }
        for (place, frame) in frames.iter().enumerate() {
            let now = Duration::from_micros(time * place as u64);
            check_outputs(hca.receive(frame.clone().into(), now), 1);
            check_outputs(hca.poll(now), 1);
            check_outputs(switch.receive(place as u8 % 6, frame.clone().into(), now), 4);
            check_outputs(switch.poll(now), 4);
            if let Ok(packet) = Packet::parse(frame) {
                check_outputs(hca.answer_ping(&packet, now), 1);
                if let Ok(outputs) = hca.send(packet, now) {
                    check_outputs(outputs, 1);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// A hostile HCA sends arbitrary packets. The nodes that it cannot configure, because it does not have the
    /// manager's key, still work without any repair by the manager.
    #[test]
    fn a_hostile_hca_changes_nothing(frames in vec(packets(), 1..60)) {
        const KEY: u64 = 0x6c6f_636b_6564;
        let (mut subnet, _) = managed("[ring]\nswitches = 3\nhosts = 1");
        let hcas: Vec<_> = subnet.hcas().collect();
        let mut manager = Manager::new(hcas[0]);
        manager.sweep(&mut subnet);
        manager.protection = 1;
        manager.m_key = KEY;
        // While there is no key, a request with any key can set one.
        manager.sweep(&mut subnet);
        for frame in frames {
            // A sender with the right key is the manager, so its packets are left out.
            if let Ok(packet) = Packet::parse(&frame) {
                let _ = subnet.send(hcas[1], packet);
                subnet.run_until(subnet.now() + MILLISECOND);
            }
        }
        let others = [hcas[0], hcas[2]];
        let expected = all(&subnet, &others);
        prop_assert_eq!(reached(&mut subnet, &others), expected);
    }
}
