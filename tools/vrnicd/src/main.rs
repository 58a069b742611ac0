// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Command line of `vrnicd`.

#![forbid(unsafe_code)]

use std::io::Write;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{CommandFactory, Parser, Subcommand};
use rustix::process::{Resource, getrlimit, setrlimit};
use vrnicd::config::{Config, Device, Mac};

/// Provides RDMA NICs to QEMU virtual machines over vfio-user. Needs no privileges.
///
/// For one device, use --socket and --mac. For several devices, use --config. Then start QEMU (10.1 or
/// newer) with these options:
///
///   -machine q35,memory-backend=mem0
///   -object memory-backend-memfd,id=mem0,size=…,share=on
///   -device '{"driver":"vfio-user-pci","socket":{"path":"SOCKET","type":"unix"}}'
///
/// Give the guest a network device with the same MAC address.
#[derive(Parser)]
#[command(version, verbatim_doc_comment, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Configuration file (TOML). tools/vrnicd/vrnicd.toml lists all settings with their defaults.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["socket", "mac", "name"], required_unless_present = "socket")]
    config: Option<PathBuf>,

    /// Socket for QEMU, for a single device without a configuration file.
    #[arg(long, value_name = "PATH", requires = "mac")]
    socket: Option<PathBuf>,

    /// MAC address of the device. The guest's network device must have the same address.
    #[arg(long, value_name = "MAC", requires = "socket", value_parser = |text: &str| text.parse::<Mac>())]
    mac: Option<Mac>,

    /// Name of the device in logs and in vrnicctl.
    #[arg(long, default_value = "rnic0")]
    name: String,

    /// Log level (error, warn, info, debug, trace) or filter, such as `info,vrnic_vfio_user=debug`. Overrides the
    /// configuration file.
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,

    /// Control socket for vrnicctl. Overrides the configuration file.
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,

    /// When there is no more work, poll for this many microseconds before sleeping. Overrides the configuration file.
    #[arg(long, value_name = "N")]
    poll_us: Option<u32>,

    #[command(subcommand)]
    command: Option<Internal>,
}

#[derive(Subcommand)]
enum Internal {
    /// Keeps QEMU alive when vrnicd dies; started by vrnicd itself.
    #[command(name = vrnicd::holder::SUBCOMMAND, hide = true)]
    Holder,
    /// Write man pages and shell completions.
    #[command(name = vrnicd::manual::SUBCOMMAND, hide = true)]
    Manual { directory: PathBuf },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    raise_descriptor_limit();
    let result = match arguments.command {
        Some(Internal::Holder) => vrnicd::holder::run(std::io::stdin().as_fd()).context("holder"),
        Some(Internal::Manual { directory }) => {
            vrnicd::manual::write(Arguments::command(), 8, &directory)
        }
        None => serve(arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vrnicd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Raises the descriptor limit to the hard limit: each MSI-X vector of each device takes one descriptor.
fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, fewer devices fit, and adding one too many reports an error.
    let _ = setrlimit(Resource::Nofile, limit);
}

fn serve(arguments: Arguments) -> Result<()> {
    let mut config = match (arguments.config, arguments.socket, arguments.mac) {
        (None, Some(socket), Some(mac)) => Config::of_one(Device::new(arguments.name, socket, mac)),
        (file, ..) => {
            Config::load(&file.context("give --config FILE, or --socket PATH and --mac MAC")?)?
        }
    };
    if let Some(log) = arguments.log {
        config.log = log;
    }
    if arguments.control.is_some() {
        config.control = arguments.control;
    }
    if let Some(poll_us) = arguments.poll_us {
        config.poll_us = poll_us;
    }
    config.check()?;
    let _log = vrnicd::logging::start(&config.log, config.log_format)?;
    vrnicd::daemon::run(&config)
}
