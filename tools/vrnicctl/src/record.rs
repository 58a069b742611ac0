// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl record`: starts, stops and lists recordings.
//!
//! As with captures, this program opens the file, with the rights of its user.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use vrnicd::control::client::Client;
use vrnicd::recording::create_private;

use crate::table::print;

#[derive(Subcommand)]
pub enum Command {
    /// Record a device, starting at once, or as soon as it has a driver. The recording continues after this command
    /// exits, until the driver resets the device. It contains the device's keys and the content of the guest's rings,
    /// so protect it like the guest itself.
    Start {
        /// File to write; an existing file is overwritten. Only you can read it afterwards.
        file: PathBuf,
        /// The device. Optional if there is only one.
        #[arg(long, short, value_name = "NAME")]
        device: Option<String>,
        /// Stop when the file has about COUNT bytes (default: 268435456).
        #[arg(long, short = 'b', value_name = "COUNT")]
        bytes: Option<u64>,
    },
    /// Stop the recording of a device, and wait until its file is complete.
    Stop {
        /// The device. Optional if only one is being recorded.
        #[arg(long, short, value_name = "NAME")]
        device: Option<String>,
    },
    /// Print the last calls to a device since its driver reset it, about 2000, oldest first. vrnicd always keeps this
    /// list. vrnic-replay cannot replay the list, but can replay DEVICE-crash.vrnic, which vrnicd saves when a device
    /// fails.
    Last {
        /// The device. Optional if there is only one.
        #[arg(long, short, value_name = "NAME")]
        device: Option<String>,
        /// Print the calls that led to the device's last failure instead, even if its driver has reset it since.
        #[arg(long, short)]
        failure: bool,
    },
    /// List the recording of each device: the waiting or running one, otherwise the last one.
    List,
}

pub fn run(client: &mut Client, command: &Command, json: bool) -> Result<()> {
    match command {
        Command::Start {
            file,
            device,
            bytes,
        } => {
            let device = chosen(client, device.as_deref())?;
            let opened =
                create_private(file).with_context(|| format!("cannot write {}", file.display()))?;
            let name = std::path::absolute(file)?.display().to_string();
            let started = client.start_recording(&device, &name, *bytes, opened.as_fd())?;
            print(&[started], json)
        }
        Command::Stop { device } => {
            let device = if let Some(device) = device {
                device.clone()
            } else {
                let all = client.recordings()?.into_iter();
                let left = all.filter(|recording| !recording.has_ended());
                only(left.map(|recording| recording.device))?
            };
            print(&[client.stop_recording(&device)?], json)
        }
        Command::Last { device, failure } => {
            let device = chosen(client, device.as_deref())?;
            let calls = client.flight(&device, *failure)?;
            let mut out = std::io::stdout().lock();
            if json {
                writeln!(out, "{}", serde_json::to_string(&calls)?)?;
                return Ok(());
            }
            for call in calls {
                writeln!(out, "{call}")?;
            }
            Ok(())
        }
        Command::List => print(&client.recordings()?, json),
    }
}

/// Returns the named device, or the only one.
fn chosen(client: &mut Client, device: Option<&str>) -> Result<String> {
    match device {
        Some(device) => Ok(device.to_owned()),
        None => only(client.devices()?.into_iter().map(|device| device.name)),
    }
}

/// Returns the only one of `names`.
fn only(mut names: impl Iterator<Item = String>) -> Result<String> {
    match (names.next(), names.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!("there is no device"),
        (Some(_), Some(_)) => bail!("there are several devices: name one with --device"),
    }
}
