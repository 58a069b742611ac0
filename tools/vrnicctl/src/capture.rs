// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl capture`: starts, stops and lists captures.
//!
//! This program opens the file, with the rights of its user, and passes the descriptor to the daemon. The daemon opens
//! no file itself.

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::Capture;

use crate::table::print;

#[derive(Subcommand)]
pub enum Command {
    /// Start a capture of every packet that RNICs send, or of one RNIC, one queue pair or the switch. The capture
    /// continues after this command exits.
    Start {
        /// File to write; an existing file is overwritten. `-` means standard output, for example `vrnicctl capture
        /// start - | wireshark -k -i -`.
        file: PathBuf,
        /// Capture what this device sends and receives.
        #[arg(long, short, value_name = "NAME")]
        device: Option<String>,
        /// Capture only this queue pair of the device.
        #[arg(long, short, value_name = "N", requires = "device")]
        qpn: Option<u32>,
        /// Capture what RNICs send and all other frames that reach the switch.
        #[arg(long, conflicts_with = "device")]
        switch: bool,
        /// Stop after COUNT packets.
        #[arg(long, short = 'c', value_name = "COUNT")]
        packets: Option<u64>,
        /// Stop before the file exceeds COUNT bytes.
        #[arg(long, short = 'b', value_name = "COUNT")]
        bytes: Option<u64>,
    },
    /// Stop a capture, and wait until its file is complete.
    Stop {
        /// Number of the capture. Optional if only one is running.
        id: Option<u64>,
    },
    /// List the running captures and the last finished ones.
    List,
}

pub fn run(client: &mut Client, command: &Command, json: bool) -> Result<()> {
    match command {
        Command::Start {
            file,
            device,
            qpn,
            switch,
            packets,
            bytes,
        } => {
            let choice = Choice {
                device: device.clone(),
                qp: *qpn,
                switch: *switch,
                max_packets: *packets,
                max_bytes: *bytes,
            };
            if file.as_os_str() == "-" {
                let out = std::io::stdout();
                if out.is_terminal() {
                    bail!(
                        "standard output is a terminal: pipe the capture to a program, or name a file"
                    );
                }
                client.start_capture(choice, "-", out.as_fd())?;
                return Ok(());
            }
            let opened =
                File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
            let name = std::path::absolute(file)?.display().to_string();
            let started = client.start_capture(choice, &name, opened.as_fd())?;
            print(&[started], json)
        }
        Command::Stop { id } => {
            let id = match id {
                Some(id) => *id,
                None => only(&client.captures()?)?,
            };
            print(&[client.stop_capture(id)?], json)
        }
        Command::List => print(&client.captures()?, json),
    }
}

/// Returns the number of the running capture, of which there must be exactly one.
fn only(captures: &[Capture]) -> Result<u64> {
    let mut running = captures.iter().filter(|capture| capture.ended.is_none());
    match (running.next(), running.next()) {
        (Some(one), None) => Ok(one.id),
        (None, _) => bail!("no capture is running"),
        (Some(_), Some(_)) => {
            bail!("several captures are running: give a number that `capture list` shows")
        }
    }
}
