// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What HCAs and switches have in common: how they answer management packets that end at them.

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

/// Result of processing a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A frame leaves by a port.
    Transmit {
        /// The port.
        port: u8,
        /// The frame.
        frame: Frame,
        /// When the last byte of the frame leaves.
        at: Duration,
    },
    /// A packet is for the owner of the HCA.
    Deliver(Packet),
}

/// What a node does with a packet that ended at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Sends this packet with this step as its first.
    Send(Packet, Step),
    /// Delivers the packet to the owner of the node.
    Deliver,
}

/// Creates a subnet management packet of a node.
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

/// Answers a subnet management packet that arrived by port `input` and ended here.
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
        // The response goes back along the route, unless the last part of the way was by LID.
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

/// Answers a datagram to QP 1 that ended here, and whose partition the node is in.
pub(crate) fn answer_general(agent: &mut Agent, packet: &Packet, now: Duration) -> Option<Reply> {
    let (_, deth, payload) = packet.as_datagram()?;
    if deth.qkey != MANAGEMENT_QKEY {
        let violations = &mut agent.end_port_mut().info.q_key_violations;
        count!(*violations);
        agent.raise(Trap::QKey(key_violation(packet, deth.qkey)));
        return None;
    }
    let Ok(request) = PerformanceMad::parse(payload) else {
        return Some(Reply::Deliver);
    };
    let Some(response) = agent.answer_performance(&request, now) else {
        return Some(Reply::Deliver);
    };
    respond(agent, packet, &response.to_bytes())
}

/// Returns the response to a datagram to QP 1 that ended here. It has the partition key of the node rather than that
/// of the requester, because one of them may be a limited member.
pub(crate) fn respond(agent: &Agent, packet: &Packet, response: &[u8]) -> Option<Reply> {
    let (bth, deth, _) = packet.as_datagram()?;
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
    let mut answer = Packet::datagram(addresses, level, bth, deth, response);
    if let (Body::Transport { grh: from, .. }, Body::Transport { grh, .. }) =
        (&packet.body, &mut answer.body)
    {
        *grh = from.as_ref().map(|from| port.answering(from));
    }
    Some(Reply::Send(answer, Step::Lid(addresses.1)))
}

/// Returns the details of a trap about a wrong key.
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

/// Checks the partition of a packet that ends at a node. Counts a wrong one and raises a trap (10.9.3).
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
