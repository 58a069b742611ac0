// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What an HCA and a switch have in common: management packets that end at a node, and their answers.

use crate::{
    agent::{Agent, Answer},
    directed::Step,
    mad::{MANAGEMENT_QKEY, Method, PERMISSIVE, PerformanceMad, Smp},
    packet::{Body, Bth, Deth, Frame, Packet},
    performance::count,
    port::DEFAULT_PKEY,
    trap::{KeyViolation, Trap},
};
use std::time::Duration;

/// What comes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// It leaves by a port.
    Transmit {
        /// The port.
        port: u8,
        /// The packet.
        frame: Frame,
        /// When its last byte leaves.
        at: Duration,
    },
    /// It is for whoever has the HCA.
    Deliver(Packet),
}

/// What a node does with a packet that ended at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Sends this that way.
    Send(Packet, Step),
    /// Gives it to whoever has the node.
    Deliver,
}

/// A packet of subnet management from a node.
pub(crate) fn smp_packet(smp: &Smp, addresses: (u16, u16), service_level: u8) -> Packet {
    let bth = Bth {
        pkey: DEFAULT_PKEY,
        ..Bth::default()
    };
    Packet::datagram(
        addresses,
        service_level,
        bth,
        Deth::default(),
        &smp.to_bytes(),
    )
}

/// A packet of subnet management ended here, having come in by port `input`.
pub(crate) fn answer_smp(
    agent: &mut Agent,
    packet: &Packet,
    smp: &Smp,
    input: u8,
    now: Duration,
) -> Option<Reply> {
    let passes = smp.header.method.is_response() || smp.header.method == Method::TRAP;
    if !passes && !agent.has_room(input, now) {
        return None;
    }
    let mut response = match agent.answer(smp, input, now) {
        Answer::Respond(response) => response,
        Answer::Discard => return None,
        Answer::Pass => return Some(Reply::Deliver),
    };
    let place = agent.place();
    let level = packet.service_level;
    Some(match &mut response.route {
        // It goes back as it came: along the route, unless the last part of the way was by LID.
        Some(route) if route.destination == PERMISSIVE => {
            let step = route.depart(place);
            let addresses = (agent.end_port().info().lid, route.source);
            let addresses = match step {
                Step::Lid(_) => addresses,
                _ => (PERMISSIVE, PERMISSIVE),
            };
            Reply::Send(smp_packet(&response, addresses, level), step)
        }
        _ => {
            let addresses = (packet.destination, packet.source);
            Reply::Send(
                smp_packet(&response, addresses, level),
                Step::Lid(packet.source),
            )
        }
    })
}

/// A datagram to QP 1 ended here, whose partition is one of the node's. The answer has the key of the node, not that of
/// who asked: one of them may be a limited member.
pub(crate) fn answer_general(agent: &mut Agent, packet: &Packet) -> Option<Reply> {
    let (bth, deth, payload) = packet.as_datagram()?;
    if deth.qkey != MANAGEMENT_QKEY {
        let violations = &mut agent.end_port_mut().info.q_key_violations;
        count!(*violations);
        agent.raise(Trap::QKey(key_violation(packet, deth.qkey)));
        return None;
    }
    let Ok(request) = PerformanceMad::parse(payload) else {
        return Some(Reply::Deliver);
    };
    let Some(response) = agent.answer_performance(&request) else {
        return Some(Reply::Deliver);
    };
    let port = agent.end_port();
    let bth = Bth {
        pkey: crate::port::admitting(port.pkeys(), bth.pkey)?,
        destination_qp: deth.source_qp,
        ..Bth::default()
    };
    let deth = Deth {
        qkey: MANAGEMENT_QKEY,
        source_qp: 1,
    };
    let addresses = (packet.destination, packet.source);
    let level = packet.service_level;
    let mut answer = Packet::datagram(addresses, level, bth, deth, &response.to_bytes());
    if let (Body::Transport { grh: from, .. }, Body::Transport { grh, .. }) =
        (&packet.body, &mut answer.body)
    {
        *grh = from.as_ref().map(|from| port.answering(from));
    }
    Some(Reply::Send(answer, Step::Lid(addresses.1)))
}

/// Who used which wrong key.
pub(crate) fn key_violation(packet: &Packet, key: u32) -> KeyViolation {
    let mut violation = KeyViolation {
        source: packet.source,
        destination: packet.destination,
        key,
        service_level: packet.service_level,
        ..KeyViolation::default()
    };
    if let Body::Transport { grh, bth, .. } = &packet.body {
        violation.destination_qp = bth.destination_qp;
        if let Some(grh) = grh {
            violation.source_gid = grh.source;
            violation.destination_gid = grh.destination;
        }
    }
    if let Some((_, deth, _)) = packet.as_datagram() {
        violation.source_qp = deth.source_qp;
    }
    violation
}

/// Checks the partition of a packet that ends at a node, and tells of it if it is a wrong one (10.9.3).
pub(crate) fn check_pkey(agent: &mut Agent, packet: &Packet) -> bool {
    let Body::Transport { bth, .. } = &packet.body else {
        return false;
    };
    if crate::port::admits(agent.end_port().pkeys(), bth.pkey) {
        return true;
    }
    let violations = &mut agent.end_port_mut().info.p_key_violations;
    count!(*violations);
    agent.raise(Trap::PKey(key_violation(packet, bth.pkey.into())));
    false
}
