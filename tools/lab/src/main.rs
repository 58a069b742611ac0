// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab`: boots two virtual machines with one RNIC each and runs programs in them.

#![forbid(unsafe_code)]

mod accelerator;
mod agent;
mod bench;
mod chart;
mod control;
mod daemon;
mod goodput;
mod host;
mod lab;
mod namespaces;
mod perf;
mod process;
mod progress;
mod report;
mod run;
mod scale;
mod settings;
mod share;
mod shell;
mod suite;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

use crate::control::Ask;
use crate::lab::{Extra, Lab, Module, Options};
use crate::settings::Settings;
use crate::vm::{Device, Fabric};

/// Two VMs with one RNIC each, and what runs in them.
///
/// Environment: KDIR (a built kernel tree), QEMU (version 10.1 or newer), VRNIC_ACCEL=kvm|tcg, VRNIC_VM_CPUS,
/// VRNIC_VM_MEMORY_MB, VRNIC_CACHE.
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Cli {
    /// How messages travel between the VMs' RNICs
    #[arg(long, global = true, value_enum, default_value = "local")]
    fabric: Fabric,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the distribution's RDMA programs between the VMs and in loopback; print a table, write build/run/report.json
    Run {
        /// Which RDMA device
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Directory of the report and the logs
        #[arg(long, default_value = "build/run")]
        out: PathBuf,
    },
    /// Boot the VMs and give a prompt in each
    Shell {
        /// Which RDMA device
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// No tmux: VM a here, VM b by `attach` in another terminal
        #[arg(long)]
        plain: bool,
    },
    /// Join this terminal to a VM of the lab that `shell` started
    Attach {
        /// a or b
        #[arg(long, default_value = "a")]
        vm: String,
    },
    /// Run a command in a VM: of the lab that `shell` started, else of one booted for it
    Exec {
        /// a or b
        #[arg(long, default_value = "a")]
        vm: String,
        /// Seconds until it is killed (exit code 124)
        #[arg(long, default_value_t = 600)]
        timeout: u64,
        /// Which RDMA device, when VMs are booted for it
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// The command; no shell is involved
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Measure vrnic beside rxe in the same two VMs; tables, charts, build/bench/report.json
    Bench {
        /// Directory of the report, the charts and the logs
        #[arg(long, default_value = "build/bench")]
        out: PathBuf,
        /// Only the goodput on wires that lose frames, without report and charts
        #[arg(long)]
        goodput: bool,
    },
    /// Run all tests: cargo, KUnit in a VM, tests/vm; the last line counts them
    Test {
        /// Only tests whose name contains one of these (`cargo`, `kunit`, or a name in tests/vm)
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Only what runs in guests: no host tests
        #[arg(long)]
        guests: bool,
        /// The device of the VM tests
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// VM tests that run at the same time, each in a lab of its own
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
        labs: u32,
        /// Directory of the logs
        #[arg(long, default_value = "build/test")]
        out: PathBuf,
    },
    /// Ask or steer a running lab: of the VM test this runs in ($LAB_CONTROL), else the one that `shell` started
    ///
    /// pid vrnicd|qemu-a|qemu-b, console VM, log, config, sockets, control, device VM: facts.
    /// qmp VM JSON: sends a QMP command. wait VM: waits until the guest has rebooted. ready [-6] VM: waits for the RDMA
    /// device, prints the index of its IPv4 (IPv6) GID. boot VM, kill VM, restart-vrnicd.
    /// perf [-6] CLIENT SERVER PROGRAM ARGS…: runs a two-ended program over IPv4 (IPv6), prints the client's output.
    #[command(verbatim_doc_comment)]
    Ctl {
        /// The request's words
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        request: Vec<String>,
    },
}

fn main() -> ExitCode {
    let result = process::stop_children_on_signals().and_then(|()| command(Cli::parse()));
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("vrnic-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(cli: Cli) -> Result<ExitCode> {
    let load = || Settings::load().map(|settings| settings.with_fabric(cli.fabric));
    match cli.command {
        Command::Run { device, out } => {
            let settings = load()?;
            run::run(&settings, &settings.tree.join(out), device)?;
        }
        Command::Shell { device, plain } => shell::shell(&load()?, device, plain)?,
        Command::Attach { vm } => shell::attach(&Settings::load()?, &vm)?,
        Command::Exec {
            vm,
            timeout,
            device,
            argv,
        } => return exec(&load()?, vm, timeout, device, argv),
        Command::Bench { out, goodput } => {
            let settings = load()?;
            let out = settings.tree.join(out);
            if goodput {
                goodput::run(&settings, &out)?;
            } else {
                bench::run(&settings, &out)?;
            }
        }
        Command::Test {
            only,
            guests,
            device,
            labs,
            out,
        } => {
            let settings = Settings { labs, ..load()? };
            suite::run(
                &settings,
                &suite::Choice {
                    only,
                    guests,
                    device,
                    out: settings.tree.join(out),
                },
            )?;
        }
        Command::Ctl { request } => {
            let (code, text) = control::ask(
                &control_socket(&Settings::load()?),
                &Ask::from_words(&request)?,
            )?;
            if !text.is_empty() {
                println!("{text}");
            }
            return Ok(exit(code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn exec(
    settings: &Settings,
    vm: String,
    timeout: u64,
    device: Device,
    argv: Vec<String>,
) -> Result<ExitCode> {
    let socket = control_socket(settings);
    let request = Ask::Exec { vm, argv, timeout };
    if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
        return Ok(exit(control::ask(&socket, &request)?.0));
    }
    if std::env::var_os("LAB_CONTROL").is_some() {
        bail!("the lab at {} is gone", socket.display());
    }
    let logs = settings.tree.join("build/exec/logs");
    let lab = Arc::new(Lab::boot(
        settings,
        Options {
            device,
            logs,
            vrnicd: Extra::default(),
            no_rnic: device == Device::Rxe,
            module: Module::Plain,
        },
    )?);
    let socket = lab.sockets().join("control");
    control::serve(&lab, &socket)?;
    let (code, _) = control::ask(&socket, &request)?;
    Ok(exit(code))
}

/// The running lab's control socket.
fn control_socket(settings: &Settings) -> PathBuf {
    std::env::var_os("LAB_CONTROL").map_or_else(|| shell::control_socket(settings), PathBuf::from)
}

/// Exit codes of guests fit: they are 0 to 255.
fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
