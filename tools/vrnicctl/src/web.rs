// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl web`: the live view in a browser.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;
use clap::Args;
use vrnic_web::Server;

/// The address at which a page is served.
#[derive(Args)]
pub struct Listen {
    /// Address and port to listen at; port 0 means a free one. Anyone with the printed address can use the page, and
    /// nothing is encrypted, so be careful with an address that other machines can reach.
    #[arg(
        long,
        short,
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:0"
    )]
    pub listen: SocketAddr,
}

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    listen: Listen,
    /// Also allow the page to take links up and down, to capture packets, to inject faults, and to set the log filter.
    #[arg(long)]
    allow_actions: bool,
}

pub fn run(options: &Options, socket: &Path, json: bool) -> Result<()> {
    let server = Server::bind(vrnic_web::Options {
        listen: options.listen.listen,
        socket: socket.to_owned(),
        allow_actions: options.allow_actions,
    })?;
    print_address(&server, json)?;
    server.run()
}

/// Prints the address to open.
pub fn print_address(server: &Server, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::json!([{ "url": server.url() }]))?;
    } else {
        writeln!(out, "{}", server.url())?;
    }
    out.flush()?;
    Ok(())
}
