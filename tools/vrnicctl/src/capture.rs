// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Captures: started, ended, listed.
//!
//! The file is opened here, with the rights of whoever asks; the daemon is given the descriptor and opens nothing.

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
    /// Begins one: of every packet that RNICs send, or of one RNIC, one queue pair or the switch. It goes on when this
    /// program ends.
    Start {
        /// The file; what was in it is lost. `-` is standard output: `vrnicctl capture start - | wireshark -k -i -`.
        file: PathBuf,
        /// What this device sends and receives.
        #[arg(long, short, value_name = "NAME")]
        device: Option<String>,
        /// Only what this queue pair of the device does.
        #[arg(long, short, value_name = "N", requires = "device")]
        qpn: Option<u32>,
        /// What RNICs send, and every other frame that comes to the switch.
        #[arg(long, conflicts_with = "device")]
        switch: bool,
        /// End after so many packets.
        #[arg(long, short = 'c', value_name = "COUNT")]
        packets: Option<u64>,
        /// End before the file has more than so many bytes.
        #[arg(long, short = 'b', value_name = "COUNT")]
        bytes: Option<u64>,
    },
    /// Ends one, and waits until its file is whole.
    Stop {
        /// Its number, or none if one alone runs.
        id: Option<u64>,
    },
    /// Lists those that run and the last that ran.
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
                    bail!("a terminal takes no capture");
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

/// The number of the one capture that runs.
fn only(captures: &[Capture]) -> Result<u64> {
    let mut running = captures.iter().filter(|capture| capture.ended.is_none());
    match (running.next(), running.next()) {
        (Some(one), None) => Ok(one.id),
        (None, _) => bail!("no capture runs"),
        (Some(_), Some(_)) => bail!("several captures run: say which"),
    }
}
