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
    switch::MAX_SWITCHES,
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

/// A search for a [credit loop](Subnet::credit_loop) in steps, so that other work need not wait for it. If the routing
/// changes between the steps, start again.
#[derive(Debug)]
pub struct Search {
    /// The HCAs with LIDs; no packet reaches others.
    hcas: Vec<NodeId>,
    /// Number of pairs of HCAs that have been looked at.
    pairs: usize,
    /// For each lane, those that it can wait for.
    waits: BTreeMap<Channel, BTreeSet<Channel>>,
}

impl Search {
    /// Starts a search.
    pub fn new(subnet: &Subnet) -> Self {
        Self {
            hcas: subnet
                .hcas()
                .filter(|&hca| !subnet.agent(hca).end_port().lids().is_empty())
                .collect(),
            pairs: 0,
            waits: BTreeMap::new(),
        }
    }

    /// Follows about `ways` further ways through the subnet. When all are done, returns the lanes of a loop, or none if
    /// there is no loop; to look for it takes a time of its own, which depends on the number of lanes.
    pub fn step(
        &mut self,
        subnet: &Subnet,
        level: impl Fn(Lid, Lid) -> u8,
        mut ways: usize,
    ) -> Option<Vec<Channel>> {
        let lids = |node| subnet.agent(node).end_port().lids();
        while self.pairs < self.hcas.len().pow(2) {
            if ways == 0 {
                return None;
            }
            let (from, to) = (self.pairs / self.hcas.len(), self.pairs % self.hcas.len());
            self.pairs += 1;
            let (from, to) = (self.hcas[from], self.hcas[to]);
            for to in lids(to).filter(|_| from != to) {
                ways = ways.saturating_sub(1);
                let way = subnet.way(from, to, level(lids(from).start, to));
                for pair in way.windows(2) {
                    self.waits.entry(pair[0]).or_default().insert(pair[1]);
                }
            }
        }
        Some(circle(&self.waits).unwrap_or_default())
    }
}

impl Subnet {
    /// Returns lanes that can wait for each other in a cycle, or `None` if there are none. `level` returns the service
    /// level from one LID to another. All HCAs may send to all others.
    pub fn credit_loop(&self, level: impl Fn(Lid, Lid) -> u8) -> Option<Vec<Channel>> {
        let found = Search::new(self).step(self, level, usize::MAX);
        found.filter(|found| !found.is_empty())
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
            if circles || way.len() > usize::from(MAX_SWITCHES) {
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
        // The path of the search, its vertices, and the edges that are left to follow from each of them.
        let mut way = vec![start];
        let mut on_way = BTreeSet::from([start]);
        let mut ahead = vec![waits[&start].iter()];
        while let Some(left) = ahead.last_mut() {
            let Some(next) = left.next().filter(|_| !done.contains(&way[way.len() - 1])) else {
                if let Some(last) = way.pop() {
                    on_way.remove(&last);
                    done.insert(last);
                }
                ahead.pop();
                continue;
            };
            if on_way.contains(next) {
                let begins = |channel: &Channel| channel == next;
                return way.iter().position(begins).map(|at| way.split_off(at));
            }
            if let Some(more) = waits.get(next).filter(|_| !done.contains(next)) {
                way.push(*next);
                on_way.insert(*next);
                ahead.push(more.iter());
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn hcas_without_lids_take_no_time() {
        let topology = Topology::parse("[single]\nhosts = 20").expect("valid");
        assert!(Search::new(&Subnet::new(&topology)).hcas.is_empty());
    }
}
