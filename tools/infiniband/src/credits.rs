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
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

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
    waits: Waits,
    /// The search among these lanes, when all pairs have been looked at.
    circle: Circle,
}

/// For each lane, those that it can wait for.
type Waits = BTreeMap<Channel, BTreeSet<Channel>>;

impl Search {
    /// Starts a search.
    pub fn new(subnet: &Subnet) -> Self {
        Self {
            hcas: subnet
                .hcas()
                .filter(|&hca| !subnet.agent(hca).end_port().lids().is_empty())
                .collect(),
            pairs: 0,
            waits: Waits::new(),
            circle: Circle::default(),
        }
    }

    /// Follows about `ways` further ways through the subnet. When all are done, each of `ways` is a step from a lane
    /// to one that it can wait for. At the end, returns the lanes of a loop, or none if there is no loop.
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
        self.circle.step(&self.waits, ways)
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

/// A depth-first search for a cycle of a graph, in steps.
#[derive(Debug, Default)]
struct Circle {
    /// The last vertex at which the search began.
    start: Option<Channel>,
    /// The path of the search, each vertex with the end of the edge that was followed last from it.
    way: Vec<(Channel, Option<Channel>)>,
    on_way: BTreeSet<Channel>,
    /// Vertices from which no cycle is reached.
    done: BTreeSet<Channel>,
}

impl Circle {
    /// Follows `steps` edges, or goes back. Returns a cycle when one has been found, and an empty one if there is none.
    fn step(&mut self, waits: &Waits, steps: usize) -> Option<Vec<Channel>> {
        for _ in 0..steps {
            let Some((last, followed)) = self.way.last_mut() else {
                let Some((&start, _)) = waits.range(beyond(self.start)).next() else {
                    return Some(Vec::new());
                };
                self.start = Some(start);
                self.enter(start);
                continue;
            };
            let edges = waits.get(last);
            let Some(&next) = edges.and_then(|edges| edges.range(beyond(*followed)).next()) else {
                self.on_way.remove(last);
                self.done.insert(*last);
                self.way.pop();
                continue;
            };
            *followed = Some(next);
            if self.on_way.contains(&next) {
                let way = self.way.iter().map(|(vertex, _)| *vertex);
                return Some(way.skip_while(|vertex| *vertex != next).collect());
            }
            if waits.contains_key(&next) {
                self.enter(next);
            }
        }
        None
    }

    /// Goes on from a vertex, unless that was done before.
    fn enter(&mut self, vertex: Channel) {
        if !self.done.contains(&vertex) {
            self.way.push((vertex, None));
            self.on_way.insert(vertex);
        }
    }
}

/// Returns the range of everything beyond `last`, or of everything.
fn beyond(last: Option<Channel>) -> (Bound<Channel>, Bound<Channel>) {
    (
        last.map_or(Bound::Unbounded, Bound::Excluded),
        Bound::Unbounded,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::topology::Topology;

    static NODE: LazyLock<NodeId> = LazyLock::new(|| {
        let topology = Topology::parse("[single]\nhosts = 1").expect("valid");
        Subnet::new(&topology).nodes().next().expect("a node")
    });

    /// Lanes by their number.
    fn lane(number: usize) -> Channel {
        Channel {
            node: *NODE,
            port: u8::try_from(number / 256).expect("few lanes"),
            lane: u8::try_from(number % 256).expect("below 256"),
        }
    }

    /// Lanes each of which waits for the next two.
    fn ladder(lanes: usize) -> Waits {
        let waits = |number| {
            (
                lane(number),
                BTreeSet::from([lane(number + 1), lane(number + 2)]),
            )
        };
        (0..lanes).map(waits).collect()
    }

    /// Searches in steps of 7; returns the cycle and the number of steps.
    fn search(waits: &Waits) -> (Vec<Channel>, usize) {
        let mut circle = Circle::default();
        for steps in 1.. {
            let before = circle.done.len() + circle.way.len();
            let found = circle.step(waits, 7);
            let after = circle.done.len() + circle.way.len();
            assert!(after <= before + 7, "a step that goes on and on");
            if let Some(found) = found {
                return (found, steps);
            }
        }
        unreachable!("the search ends");
    }

    #[test]
    fn a_step_of_the_search_is_short_however_many_lanes_there_are() {
        const LANES: usize = 10_000;
        let mut waits = ladder(LANES);
        let (found, steps) = search(&waits);
        assert_eq!(found, []);
        // Each lane is a start, and is entered and left, and has two edges.
        assert!((LANES / 7..=5 * LANES / 7).contains(&steps), "{steps}");
        // The last lane waits for one in the middle, and can be reached from it through all lanes in between.
        waits.insert(lane(LANES), BTreeSet::from([lane(LANES / 2)]));
        let (found, _) = search(&waits);
        assert_eq!(found, (LANES / 2..=LANES).map(lane).collect::<Vec<_>>());
        // Lanes that wait for themselves.
        let waits = Waits::from([(lane(1), BTreeSet::from([lane(1)]))]);
        assert_eq!(search(&waits).0, [lane(1)]);
        assert_eq!(search(&Waits::new()).0, []);
    }

    #[test]
    fn hcas_without_lids_take_no_time() {
        let topology = Topology::parse("[single]\nhosts = 20").expect("valid");
        assert!(Search::new(&Subnet::new(&topology)).hcas.is_empty());
    }
}
