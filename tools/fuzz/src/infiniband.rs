// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets of a hostile HCA in an InfiniBand subnet.
//!
//! Two HCAs and a switch have been brought up, all protected by a management key. The third port of the switch sends
//! them anything: frames of any bytes, and management datagrams that are valid or almost valid. What the key protects
//! must not change, and a packet from one HCA must arrive at the other exactly once. So must a long message, whatever
//! segments, window updates and ends of transfers the hostile port sends.

use crate::input::Input;
use std::time::Duration;
use vrnic_infiniband::{
    Lid,
    agent::{Agent, Answer, Identity},
    attributes::{LinearForwarding, PortInfo, PortState, SwitchInfo, id},
    hca::Hca,
    mad::{
        Header, MAD_LENGTH, MANAGEMENT_QKEY, Method, PERMISSIVE, PerformanceMad, Route, Smp,
        Status, class,
    },
    packet::{Bth, Deth, Packet, set_lane},
    port::{PortConfig, Speed, Width},
    rmpp::{self, Delivery, Kind, Peer, Rmpp, RmppHeader, RmppStatus},
    switch::{Output, Switch},
};

/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 200;
/// The management key.
const KEY: u64 = 0x5f1e_8c03_77d2_a94b;
/// LIDs of the switch and of the HCAs at its first two ports.
const LIDS: [Lid; 3] = [1, 2, 3];
/// Port of the switch with the hostile HCA.
const HOSTILE: u8 = 3;

/// Everything on which an input acts.
struct Scene {
    switch: Switch,
    hcas: [Hca; 2],
    /// Long messages (RMPP) of the HCAs.
    long: [Rmpp; 2],
    now: Duration,
    frame: Vec<u8>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new();
    let guarded = scene.guarded();
    input.operations(MAX_OPERATIONS, |input| scene.operate(input));
    assert_eq!(scene.guarded(), guarded, "without the key nothing changes");
    scene.now += Duration::from_secs(1);
    scene.exchange();
    scene.exchange_long();
}

/// Returns the attributes that a manager sets, without counters.
fn guarded_of(agent: &Agent, ports: std::ops::Range<u8>) -> Vec<(PortInfo, Vec<u16>, Vec<u64>)> {
    let ports = ports.filter_map(|port| agent.port(port));
    ports
        .map(|port| {
            let info = PortInfo {
                m_key_violations: 0,
                p_key_violations: 0,
                q_key_violations: 0,
                ..*port.info()
            };
            (info, port.pkeys().to_vec(), port.guids().to_vec())
        })
        .collect()
}

/// Sets an attribute as the manager does.
fn set(agent: &mut Agent, attribute: u16, modifier: u32, data: [u8; 64]) {
    let request = Smp {
        m_key: KEY,
        data,
        ..Smp::request(Method::SET, attribute, modifier)
    };
    let answer = agent.answer(&request, 1, Duration::ZERO);
    let done = matches!(&answer, Answer::Respond(smp) if smp.header.status == Status::OK);
    assert!(done, "{answer:?}");
}

/// Brings a port up, and assigns its LID if it is an endpoint.
fn set_port(agent: &mut Agent, port: u8, lid: Option<Lid>) {
    let states = [PortState::ARMED, PortState::ACTIVE];
    for state in if port == 0 { &states[..1] } else { &states[..] } {
        let mut info = *agent.port(port).expect("port").info();
        info.state = *state;
        info.physical_state = vrnic_infiniband::attributes::PhysicalState::NO_CHANGE;
        if let Some(lid) = lid {
            (info.lid, info.sm_lid) = (lid, LIDS[1]);
            (info.m_key, info.m_key_protection) = (KEY, 3);
        }
        set(agent, id::PORT_INFO, port.into(), info.to_data());
    }
}

impl Scene {
    fn new() -> Self {
        let config = PortConfig::default();
        let mut switch = Switch::new(&Identity::default(), &[config; 3]);
        let agent = switch.agent_mut();
        for port in 1..=3 {
            agent.link_up(port, Width::X4, Speed::Edr);
            set_port(agent, port, None);
        }
        let mut table = LinearForwarding { ports: [0xff; 64] };
        table.ports[1..5].copy_from_slice(&[0, 1, 2, HOSTILE]);
        set(agent, id::LINEAR_FORWARDING, 0, table.to_data());
        let info = SwitchInfo {
            linear_top: 63,
            life_time: 18,
            ..SwitchInfo::default()
        };
        set(agent, id::SWITCH_INFO, 0, info.to_data());
        set_port(agent, 0, Some(LIDS[0]));
        let hcas = [1, 2].map(|place| {
            let mut hca = Hca::new(&Identity::default(), config);
            hca.agent_mut().link_up(1, Width::X4, Speed::Edr);
            set_port(hca.agent_mut(), 1, Some(LIDS[place]));
            hca
        });
        Self {
            switch,
            hcas,
            long: [Rmpp::default(), Rmpp::default()],
            now: Duration::ZERO,
            frame: Vec::new(),
        }
    }

    fn guarded(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let switch = self.switch.agent();
        let info = SwitchInfo {
            state_change: false,
            ..*switch.switch_info().expect("a switch")
        };
        let hcas = self
            .hcas
            .each_ref()
            .map(|hca| guarded_of(hca.agent(), 1..2));
        (info, guarded_of(switch, 0..4), hcas)
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        match input.below(16) {
            0 => self.frame = input.bytes(255).to_vec(),
            1 | 2 => {
                for _ in 0..=input.below(4) {
                    let at = input.below(256);
                    let value = input.take();
                    if let Some(byte) = self.frame.get_mut(at) {
                        *byte = value;
                    }
                }
                // Gives it a valid CRC, so that it gets further.
                let lane = self.frame.first().map_or(0, |byte| byte >> 4);
                set_lane(&mut self.frame, lane);
            }
            3 => {
                self.now += Duration::from_millis(input.take::<u8>().into());
                let outputs = self.switch.poll(self.now);
                self.carry(outputs);
                for place in 0..2 {
                    let outputs = self.hcas[place].poll(self.now);
                    self.hca_output(place, outputs);
                }
                return;
            }
            4 => return self.exchange(),
            5 => return self.segment(input),
            _ => self.build(input),
        }
        if let Ok(packet) = Packet::parse(&self.frame) {
            // The device behind an HCA parses it as well.
            let _ = vrnicd::fabric::subnet::read(&packet);
        }
        self.now += Duration::from_micros(10);
        let outputs = self
            .switch
            .receive(HOSTILE, self.frame.clone().into(), self.now);
        self.carry(outputs);
    }

    /// Builds a management datagram that is valid or almost valid.
    fn build(&mut self, input: &mut Input<'_>) {
        let methods = [
            Method::GET,
            Method::SET,
            Method::TRAP_REPRESS,
            Method(input.take()),
        ];
        let (method, attribute) = (input.pick(&methods), input.take::<u8>() % 0x24);
        let any = input.take::<u16>().into();
        let modifier = input.pick(&[0, 1, 1 << 16, any]);
        let general = input.below(4) == 0;
        let payload = if general {
            let mut mad = PerformanceMad::request(method, attribute.into());
            mad.data[..8].copy_from_slice(&input.take::<[u8; 8]>());
            mad.to_bytes()
        } else {
            let mut smp = Smp::request(method, attribute.into(), modifier);
            smp.data[..32].copy_from_slice(&input.take::<[u8; 32]>());
            smp.m_key = input.pick(&[0, 1, KEY + 1]);
            if input.take() {
                let path = input.take::<[u8; 3]>().map(|port| port % 5);
                smp.route = Route::along(&path[..input.below(4)]);
                if let Some(route) = &mut smp.route {
                    route.hop_pointer = input.take::<u8>() % 5;
                    route.returning = input.take();
                    route.back[..4].copy_from_slice(&input.take::<[u8; 4]>().map(|port| port % 5));
                    route.destination = input.pick(&[PERMISSIVE, PERMISSIVE, 1, 2, 3]);
                }
            }
            smp.to_bytes()
        };
        let queue = u32::from(general);
        let bth = Bth {
            pkey: input.pick(&[0xffff, 0xffff, 0x7fff, 1]),
            destination_qp: queue,
            ..Bth::default()
        };
        let deth = Deth {
            qkey: if general { MANAGEMENT_QKEY } else { 0 },
            source_qp: queue,
        };
        let to = input.pick(&[PERMISSIVE, PERMISSIVE, 1, 2, 3, 4, 0xc000, 0]);
        self.frame = Packet::datagram((4, to), 0, bth, deth, &payload).to_bytes();
    }

    /// Sends the first HCA a segment that is valid or almost valid, or lets the HCA send a long message to the hostile
    /// one.
    fn segment(&mut self, input: &mut Input<'_>) {
        let hostile = peer(4);
        let class = input.pick(&[class::ADMINISTRATION, class::VENDOR_OUI_FIRST, 0x10, 4]);
        let method = Method(input.pick(&[0x12, 0x92, 0x14, 0x94]));
        let header = Header {
            transaction: input.below(3) as u64,
            ..Header::request(class, method, 0x11, 0)
        };
        let any = input.take::<u32>();
        let segment = input.pick(&[0, 1, 2, 3, any]);
        let rmpp = RmppHeader {
            version: input.pick(&[1, 1, 1, 0]),
            kind: input.pick(&[
                Kind::DATA,
                Kind::ACK,
                Kind::STOP,
                Kind::ABORT,
                Kind(any as u8),
            ]),
            active: input.below(8) > 0,
            first: segment == 1,
            last: input.take(),
            status: RmppStatus(input.pick(&[0, 0, 1, 118, any as u8])),
            segment,
            length: input.pick(&[0, 20, 64, 220, any]),
            ..RmppHeader::data()
        };
        let mut mad = [0x5a; MAD_LENGTH];
        header.write(&mut mad);
        rmpp.write(&mut mad);
        self.now += Duration::from_millis(input.take::<u8>().into());
        let long = &mut self.long[0];
        if input.below(4) == 0 {
            let mut message = mad.to_vec();
            message.resize(input.below(256) * 16, 0);
            // The transfer never ends if the hostile HCA is silent, and does not start if too many have not ended.
            let _ = long.send(hostile, message, Delivery::default(), self.now);
        } else {
            long.receive(hostile, &mad, self.now);
        }
        long.poll(self.now);
        let outputs = std::iter::from_fn(|| long.output()).count();
        assert!(outputs < 1 << 12, "{outputs} answers to one segment");
    }

    /// Checks that a long message from one HCA arrives at the other exactly once.
    fn exchange_long(&mut self) {
        let mut message = vec![7; 1000];
        Header::request(class::ADMINISTRATION, Method(0x92), 0x11, 0).write(&mut message);
        let peers = [peer(LIDS[1]), peer(LIDS[2])];
        let sent = self.long[0].send(peers[1], message.clone(), Delivery::default(), self.now);
        assert_eq!(sent, Ok(()));
        let (mut arrived, mut done) = (0, false);
        while !done {
            for place in [0, 1] {
                while let Some(output) = self.long[place].output() {
                    match output {
                        rmpp::Output::Transmit(_, mad) => {
                            self.long[1 - place].receive(peers[place], &mad, self.now);
                        }
                        rmpp::Output::Message(_, received) => {
                            assert!(received[36..] == message[36..]);
                            arrived += 1;
                        }
                        rmpp::Output::Sent { result, .. } => {
                            assert_eq!(result, Ok(()));
                            done = true;
                        }
                    }
                }
            }
        }
        assert_eq!(arrived, 1);
    }

    /// Delivers the switch's output to the HCAs. Returns how many packets of [`exchange`](Self::exchange) were
    /// delivered.
    fn carry(&mut self, outputs: Vec<Output>) -> usize {
        let mut delivered = 0;
        for output in outputs {
            let Output::Transmit { port, frame, at } = output else {
                panic!("a switch delivers nothing");
            };
            if port == HOSTILE {
                continue;
            }
            let place = usize::from(port) - 1;
            let outputs = self.hcas[place].receive(frame, at);
            delivered += self.hca_output(place, outputs);
        }
        delivered
    }

    fn hca_output(&mut self, place: usize, outputs: Vec<Output>) -> usize {
        let mut delivered = 0;
        for output in outputs {
            match output {
                Output::Deliver(packet) => {
                    let outputs = self.hcas[place].answer_ping(&packet, self.now);
                    delivered += self.hca_output(place, outputs);
                    let own = packet.as_datagram().is_some_and(|(bth, _, payload)| {
                        bth.destination_qp == 9 && payload == b"own"
                    });
                    delivered += usize::from(own);
                }
                Output::Transmit { frame, at, .. } => {
                    let outputs = self.switch.receive(place as u8 + 1, frame, at);
                    delivered += self.carry(outputs);
                }
            }
        }
        delivered
    }

    /// Checks that a packet from one HCA arrives at the other exactly once.
    fn exchange(&mut self) {
        let bth = Bth {
            pkey: 0xffff,
            destination_qp: 9,
            ..Bth::default()
        };
        let packet = Packet::datagram((0, LIDS[2]), 0, bth, Deth::default(), b"own");
        let outputs = self.hcas[0].send(packet, self.now).expect("it leaves");
        assert_eq!(self.hca_output(0, outputs), 1);
    }
}

fn peer(lid: Lid) -> Peer {
    Peer {
        lid,
        qp: 1,
        ..Peer::default()
    }
}
