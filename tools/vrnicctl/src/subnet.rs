// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl subnet`: the links of the InfiniBand subnet, and credit loops of its routing.

use anyhow::{Result, ensure};
use clap::Subcommand;
use vrnicd::control::client::Client;

use crate::scenario::LinkState;
use crate::table::print;

/// What to do.
#[derive(Subcommand)]
pub enum Command {
    /// List links: both ends, whether the link is up, its bit error rate.
    List {
        /// Only links of this HCA or switch.
        node: Option<String>,
    },
    /// Show a credit loop in the routing: lanes, each of which can wait for the next. Prints nothing if there is no
    /// loop.
    Loop,
    /// Cut a link, plug it in again, or set its bit error rate.
    Link {
        /// One end of the link: an HCA, or a switch and its port, such as `leaf1/5`.
        end: String,
        /// The new state of the link.
        state: Option<LinkState>,
        /// Probability that a bit is damaged, in either direction: 0 to 1.
        #[arg(long, value_name = "RATE", required_unless_present = "state")]
        bit_error_rate: Option<f64>,
    },
    /// Take a switch down, with all its links, or up again. Links that are cut stay cut.
    Switch {
        /// The switch.
        switch: String,
        /// The new state of the switch.
        state: LinkState,
    },
}

/// Does it.
pub fn run(client: &mut Client, command: &Command, json: bool) -> Result<()> {
    match command {
        Command::List { node } => {
            let mut links = client.subnet_links()?;
            if let Some(node) = node {
                let is_there = |end: &String| {
                    let port = end.strip_prefix(node.as_str());
                    port.is_some_and(|port| port.is_empty() || port.starts_with('/'))
                };
                links.retain(|link| link.ends.iter().any(is_there));
                ensure!(!links.is_empty(), "no link leads to a node named {node:?}");
            }
            print(&links, json)
        }
        Command::Loop => print(&client.subnet_credit_loop()?, json),
        Command::Link {
            end,
            state,
            bit_error_rate,
        } => {
            let up = state.map(|state| state == LinkState::Up);
            client.set_subnet_link(end, up, *bit_error_rate)
        }
        Command::Switch { switch, state } => {
            client.set_subnet_switch(switch, *state == LinkState::Up)
        }
    }
}
