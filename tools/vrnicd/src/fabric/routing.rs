// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Watches the routing of the subnet for credit loops.
//!
//! A subnet manager changes forwarding tables in many steps, and tables that are half done can have a loop that does
//! not last. So the search begins when nothing has changed for a while. It takes part of each turn of the worker, so
//! that the devices of a large subnet do not wait for it.

use std::time::Duration;

use tracing::{info, warn};
use vrnic_infiniband::credits::{Channel, Search};
use vrnic_infiniband::subnet::{NodeId, Subnet};

/// How long the routing has not changed before it is searched.
const SETTLED: Duration = Duration::from_secs(1);
/// Number of ways through the subnet that are followed in a turn, or of steps from lane to lane.
const WAYS: usize = 128;

/// What is known about credit loops of a subnet.
#[derive(Default)]
pub struct Routing {
    /// Number of changes of the routing that have been noticed.
    changes: u64,
    /// When the search begins, if the routing changed.
    begin: Option<Duration>,
    search: Option<Search>,
    found: Vec<Channel>,
}

impl Routing {
    /// Works on the search. Returns whether there was anything to do.
    pub fn turn(&mut self, subnet: &Subnet, now: Duration) -> bool {
        let changes = subnet.routing_changes();
        if std::mem::replace(&mut self.changes, changes) != changes {
            self.search = None;
            self.begin = Some(now + SETTLED);
        }
        if self.begin.take_if(|begin| *begin <= now).is_some() {
            self.search = Some(Search::new(subnet));
        }
        let Some(search) = &mut self.search else {
            return false;
        };
        // The senders choose the level of their packets, and most choose this one.
        if let Some(found) = search.step(subnet, |_, _| 0, WAYS) {
            self.search = None;
            self.set_found(found);
        }
        true
    }

    fn set_found(&mut self, found: Vec<Channel>) {
        match (self.found.is_empty(), found.is_empty()) {
            (true, false) => warn!(
                lanes = found.len(),
                "the routing of the InfiniBand subnet has a credit loop at service level 0: see `vrnicctl subnet loop`"
            ),
            (false, true) => {
                info!("the routing of the InfiniBand subnet has no credit loop any more");
            }
            _ => {}
        }
        self.found = found;
    }

    /// Returns when there is something to do.
    pub fn next_deadline(&self, now: Duration) -> Option<Duration> {
        self.search.as_ref().map(|_| now).or(self.begin)
    }

    /// Returns the lanes of the credit loop that was found, in the order in which they wait for each other. Empty if
    /// there is no loop, or the routing has not settled yet since the subnet was created.
    pub fn credit_loop(&self) -> &[Channel] {
        &self.found
    }
}

/// Returns the end of a link as a topology names it: an HCA, or a switch and its port after a slash.
pub fn name(subnet: &Subnet, node: NodeId, port: u8) -> String {
    match subnet.hca(node) {
        Some(_) => subnet.name(node).to_owned(),
        None => format!("{}/{port}", subnet.name(node)),
    }
}
