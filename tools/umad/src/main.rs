// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! `vrnic-subnet`: a subnet in real time for programs of InfiniBand management.

use anyhow::{Context, Result};
use clap::Parser;
use std::{fs, os::unix::net::UnixListener, path::PathBuf};
use vrnic_infiniband::{subnet::Subnet, topology::Topology};
use vrnic_umad::Server;

/// Runs an InfiniBand subnet for OpenSM and infiniband-diags.
///
/// Start these programs with LD_PRELOAD=libvrnic_umad.so and VRNIC_SUBNET=SOCKET. VRNIC_HCA names the HCA that they
/// use; default: the first one.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The topology file (Documentation/infiniband.rst).
    topology: PathBuf,
    /// Path of the socket to listen on; it must not exist.
    socket: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let path = arguments.topology.display();
    let text =
        fs::read_to_string(&arguments.topology).with_context(|| format!("cannot read {path}"))?;
    let topology =
        Topology::parse(&text).with_context(|| format!("{path} is not a valid topology"))?;
    let listener = UnixListener::bind(&arguments.socket)
        .with_context(|| format!("cannot listen on {}", arguments.socket.display()))?;
    Server::new(Subnet::new(&topology))
        .run(&listener)
        .context("cannot accept programs")
}
