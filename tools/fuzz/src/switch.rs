// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Frames of hostile ports for the switch.
//!
//! Two NICs in a separate VLAN talk to each other. Meanwhile two other ports, an access port and a trunk, send
//! anything, claim any address, go down and come back, and do not take frames queued for them. No frame of the VLAN may
//! reach a port outside of it, none may be lost or duplicated once there is room again, and no port may take over the
//! address of a NIC.

use crate::input::Input;
use std::time::Duration;
use vrnic_switch::{
    Endpoint, Impairment, Mac, Member, PortConfig, PortId, QueueLimits, Switch, Vlan, Vlans,
};

/// Largest number of operations in one input.
const MAX_OPERATIONS: usize = 300;
/// Bytes that only frames of the NICs contain.
const PRIVATE: [u8; 12] = *b"\xd7\x19\x85\xf1\x3c\xe2\x68\xab\x90\x4e\x27\xb6";

fn nic(number: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, number])
}

fn is_private(frame: &[u8]) -> bool {
    frame.windows(PRIVATE.len()).any(|window| window == PRIVATE)
}

fn vlan(identifier: u16) -> Vlan {
    Vlan::new(identifier).expect("VLAN")
}

/// Everything on which an input acts.
struct Scene {
    switch: Switch,
    nics: [PortId; 2],
    hostile: [PortId; 2],
    now: Duration,
    frame: Vec<u8>,
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut scene = Scene::new(&mut input);
    input.operations(MAX_OPERATIONS, |input| scene.operate(input));
    scene.end();
}

impl Scene {
    fn new(input: &mut Input<'_>) -> Self {
        let settings = input.take::<u8>();
        let mut switch = Switch::new(Duration::from_secs(300));
        let limits = QueueLimits {
            frames: 32,
            bytes: 1 << 16,
        };
        let own = Vlans::Access(vlan(5));
        let nics = [0, 1].map(|number| {
            let config = PortConfig {
                vlans: own.clone(),
                queue: limits,
                ..PortConfig::nic(nic(number))
            };
            switch.add_port(config).expect("port")
        });
        // The trunk carries VLANs 1 to 4 or, as an uplink may, also that of the NICs.
        let with_own = settings & 1 != 0;
        let vlans = [
            Vlans::Access(vlan(1)),
            Vlans::Trunk {
                native: (settings & 2 != 0).then(|| vlan(1)),
                tagged: (2..5 + u16::from(with_own)).map(vlan).collect(),
            },
        ];
        let hostile = vlans.map(|vlans| {
            let config = PortConfig {
                vlans,
                addresses: 1 << (settings >> 4),
                group: (settings & 4 != 0).then_some(1),
                queue: limits,
                impairment: Impairment::default(),
                ..PortConfig::default()
            };
            switch.add_port(config).expect("port")
        });
        Self {
            switch,
            nics,
            hostile,
            now: Duration::ZERO,
            frame: Vec::new(),
        }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        let from = Endpoint {
            port: input.pick(&self.hostile),
            member: if input.below(16) == 0 {
                Member::Rnic
            } else {
                Member::Netdev
            },
        };
        match input.below(16) {
            0..=7 => {
                self.build(input);
                self.send(from, self.frame.clone());
            }
            8 => {
                for _ in 0..=input.below(4) {
                    let at = input.below(64);
                    let value = input.take();
                    if let Some(byte) = self.frame.get_mut(at) {
                        *byte = value;
                    }
                }
                self.send(from, self.frame.clone());
            }
            9 => self.send(from, input.bytes(255).to_vec()),
            10 => self.switch.set_up(from, input.take()),
            11 => {
                self.now += Duration::from_secs(input.take::<u8>().into());
                self.switch.advance(self.now);
            }
            12 | 13 => {
                let most = input.take::<u8>();
                self.take(most.into());
            }
            _ => self.exchange(),
        }
    }

    /// Sends a frame from a hostile port.
    fn send(&mut self, from: Endpoint, frame: Vec<u8>) {
        if !is_private(&frame) {
            self.switch.receive(from, frame, self.now);
        }
    }

    /// Builds a frame that is valid or almost valid.
    fn build(&mut self, input: &mut Input<'_>) {
        let address = |input: &mut Input<'_>| match input.below(8) {
            0 => nic(0),
            1 => nic(1),
            2 => Mac::BROADCAST,
            3 => Mac([0x33, 0x33, 0, 0, 0, 1]),
            4 => Mac([0x01, 0x80, 0xc2, 0, 0, input.take()]),
            _ => Mac([2, 0, 0, 0, 2, input.take()]),
        };
        let frame = &mut self.frame;
        frame.clear();
        frame.extend(address(input).0);
        frame.extend(address(input).0);
        for _ in 0..input.below(4).saturating_sub(1) {
            frame.extend(input.pick(&[[0x81, 0x00], [0x81, 0x00], [0x88, 0xa8]]));
            frame.extend(u16::from(input.take::<u8>() & 0x87).to_be_bytes());
        }
        frame.extend(input.pick(&[[0x89, 0x15], [0x08, 0x00], [0x86, 0xdd], [0x00, 0x20]]));
        let length = input.pick(&[0, 46, 1500, 9000, 9001]);
        let start = frame.len();
        frame.extend(input.bytes(64));
        frame.resize(start + length, 0);
    }

    /// Takes at most this many frames. Returns the numbers of frames from NICs that the NICs received.
    fn take(&mut self, most: usize) -> [usize; 2] {
        let mut got = [0; 2];
        let nics = self.nics;
        let trunk_may = self.hostile[1];
        let tagged_own = self
            .switch
            .config(trunk_may)
            .vlans
            .egress_tag(vlan(5))
            .is_some();
        let frames = std::iter::from_fn(|| self.switch.pop());
        for (to, frame) in frames.take(most) {
            let private = is_private(&frame);
            match nics.iter().position(|&port| port == to.port) {
                Some(index) => got[index] += usize::from(private),
                None => assert!(
                    !private || tagged_own && to.port == trunk_may,
                    "a frame left its VLAN"
                ),
            }
        }
        got
    }

    /// Checks that the NICs can talk to each other, and that each frame arrives once.
    fn exchange(&mut self) {
        self.take(usize::MAX);
        for (from, to) in [(0, 1), (1, 0)] {
            let mut frame = [nic(to).0, nic(from).0].concat();
            frame.extend([0x89, 0x15]);
            frame.extend(PRIVATE);
            let endpoint = Endpoint {
                port: self.nics[usize::from(from)],
                member: Member::Rnic,
            };
            self.switch.receive(endpoint, frame, self.now);
            let mut wanted = [0; 2];
            wanted[usize::from(to)] = 1;
            assert_eq!(self.take(usize::MAX), wanted);
        }
    }

    fn end(mut self) {
        self.exchange();
        self.now += Duration::from_secs(1000);
        self.switch.advance(self.now);
        self.exchange();
        assert!(!self.switch.has_output());
        assert_eq!(self.switch.learned(self.now).count(), 0, "addresses stay");
    }
}
