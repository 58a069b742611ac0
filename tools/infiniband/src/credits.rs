// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Credit loops: forwarding tables that can deadlock a subnet.
//!
//! A packet leaves by a lane of a link when the other end has room for it there (IBTA volume 1, 7.9). Until then, it
//! occupies the buffer of the port by which it arrived. If lanes wait for each other in a cycle, none of them ever gets
//! room. The forwarding tables and the maps from service levels to lanes determine which lanes can wait for which.

use crate::{
    Lid,
    hca::PORT,
    packet::MANAGEMENT_LANE,
    subnet::{NodeId, Subnet},
};
use std::collections::{BTreeMap, BTreeSet};

/// A lane of a link, in one direction.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The node that the packets leave.
    pub node: NodeId,
    /// The port by which they leave.
    pub port: u8,
    /// Their lane.
    pub lane: u8,
}

impl Subnet {
    /// Returns lanes that can wait for each other in a cycle, or `None` if there are none. `level` returns the service
    /// level from one LID to another. All HCAs may send to all others.
    pub fn credit_loop(&self, level: impl Fn(Lid, Lid) -> u8) -> Option<Vec<Channel>> {
        let mut waits: BTreeMap<Channel, BTreeSet<Channel>> = BTreeMap::new();
        let lids = |node| {
            let info = self.agent(node).end_port().info();
            info.lid..info.lid + (1 << info.lmc)
        };
        for from in self.hcas() {
            for to in self.hcas().filter(|to| *to != from).flat_map(lids) {
                let way = self.way(from, to, level(lids(from).start, to));
                for pair in way.windows(2) {
                    waits.entry(pair[0]).or_default().insert(pair[1]);
                }
            }
        }
        circle(&waits)
    }

    /// Returns the lanes that a packet takes in turn, until it is delivered or dropped, or repeats a lane.
    pub fn way(&self, from: NodeId, to: Lid, level: u8) -> Vec<Channel> {
        let mut way: Vec<Channel> = Vec::new();
        // The node, the port by which the packet arrived, and the port by which it leaves.
        let mut next = Some((from, 0, PORT));
        while let Some((node, input, port)) = next {
            let agent = self.agent(node);
            let map = agent.port(port).and_then(|it| it.lanes.get(input));
            let lane = map.map_or(MANAGEMENT_LANE, |map| {
                map.lanes[usize::from(level) % map.lanes.len()]
            });
            let channel = Channel { node, port, lane };
            let link = self.peer(node, port).filter(|link| self.is_up(link.0));
            let Some((_, peer, input)) = link.filter(|_| lane < MANAGEMENT_LANE) else {
                break;
            };
            let circles = way.contains(&channel);
            way.push(channel);
            if circles {
                break;
            }
            let output = self.agent(peer).unicast_port(to);
            let output = output.filter(|output| ![0, input].contains(output));
            next = output.map(|output| (peer, input.into(), output));
        }
        way
    }
}

/// Returns a cycle of a graph, if there is one.
fn circle(waits: &BTreeMap<Channel, BTreeSet<Channel>>) -> Option<Vec<Channel>> {
    let mut done = BTreeSet::new();
    for &start in waits.keys() {
        // The path of the search, and the edges that are left to follow from each of its vertices.
        let mut way = vec![start];
        let mut ahead = vec![waits[&start].iter()];
        while let Some(left) = ahead.last_mut() {
            let Some(next) = left.next().filter(|_| !done.contains(&way[way.len() - 1])) else {
                done.extend(way.pop());
                ahead.pop();
                continue;
            };
            if let Some(place) = way.iter().position(|channel| channel == next) {
                return Some(way.split_off(place));
            }
            if let Some(more) = waits.get(next).filter(|_| !done.contains(next)) {
                way.push(*next);
                ahead.push(more.iter());
            }
        }
    }
    None
}
