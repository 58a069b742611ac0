// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Credit loops: forwarding tables with which a subnet can stand still for ever.
//!
//! A packet leaves by a lane of a link when the other end has room for it there (IBTA volume 1, 7.9), and until then it
//! keeps its own room at the port that it came in by. If lanes wait for each other in a circle, none of them ever gets
//! room. The forwarding tables and the maps from service levels to lanes say which lanes can wait for which.

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
    /// The node that packets leave.
    pub node: NodeId,
    /// The port that they leave by.
    pub port: u8,
    /// Their lane.
    pub lane: u8,
}

impl Subnet {
    /// Lanes that wait for each other in a circle when there is enough to send; `None` if there are none. `level` is
    /// the service level from one LID to another one; all HCAs may send to all.
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

    /// The lanes that a packet takes one after the other. It ends where the packet does.
    pub fn way(&self, from: NodeId, to: Lid, level: u8) -> Vec<Channel> {
        let mut way: Vec<Channel> = Vec::new();
        // The node, the port that the packet came in by, and the one that it leaves by.
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

/// A circle in a graph.
fn circle(waits: &BTreeMap<Channel, BTreeSet<Channel>>) -> Option<Vec<Channel>> {
    let mut done = BTreeSet::new();
    for &start in waits.keys() {
        // The way to where the search is, and what is still to be seen from each of its places.
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
