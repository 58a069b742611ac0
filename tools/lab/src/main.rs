// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab`: boots virtual machines with RNICs and runs programs in them.

#![forbid(unsafe_code)]

mod accelerator;
mod agent;
mod bench;
mod chaos;
mod chart;
mod console;
mod control;
mod daemon;
mod description;
mod exec;
mod goodput;
mod host;
mod kernel;
mod lab;
mod namespaces;
mod native;
mod perf;
mod process;
mod progress;
mod report;
mod run;
mod scale;
mod settings;
mod share;
mod shell;
mod status;
mod suite;
mod up;
mod vm;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::control::Ask;
use crate::kernel::Kernel;
use crate::lab::{Extra, Lab, Module, Options};
use crate::settings::Settings;
use crate::up::Place;
use crate::vm::{Device, Fabric};

/// Boots VMs with RNICs, and runs programs in them: two, a and b, or those that a lab file describes.
///
/// Environment:
///   VRNIC_KERNEL=NAME      kernel of the VMs, as --kernel
///   KDIR=DIR               built kernel tree for the VMs
///   QEMU=PROGRAM           QEMU 10.1 or newer
///   VRNIC_ACCEL=kvm|tcg    how QEMU runs the VMs; default: kvm if the kernel boots under it
///   VRNIC_VM_CPUS=N        processors of each VM
///   VRNIC_VM_MEMORY_MB=N   memory of each VM
///   VRNIC_VRNICD=TOML      a line for vrnicd's configuration
///   VRNIC_CACHE=DIR        default: ~/.cache/vrnic
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Cli {
    /// How messages travel between the RNICs
    #[arg(long, global = true, value_enum, default_value = "local")]
    fabric: Fabric,
    /// Kernel of the VMs; default: stock; of tests, lab
    #[arg(long, global = true, value_enum)]
    kernel: Option<kernel::Name>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run RDMA programs between the VMs and in loopback, print a table, write build/run/report.json
    Run {
        /// RDMA device in the VMs
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Directory for the report and the logs
        #[arg(long, default_value = "build/run")]
        out: PathBuf,
    },
    /// Boot the VMs and open a prompt in each
    Shell {
        /// RDMA device in the VMs
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Do not use tmux: VM a is in this terminal; run `attach --vm b` in another one for VM b
        #[arg(long)]
        plain: bool,
    },
    /// Open the prompt of a VM of `shell` or `up` in this terminal; Ctrl-] leaves it
    Attach {
        /// Name of the lab, if it is one of `up`
        #[arg(long)]
        lab: Option<String>,
        /// Name of the VM
        #[arg(long, default_value = "a")]
        vm: String,
    },
    /// Start a lab in the background, as a lab file describes it; if it is up, change what has changed in the file
    ///
    /// VMs that are the same run on; those that are new, have changed or have ended boot. VMs on a network whose
    /// devices have changed boot, too. Ctrl-C ends the command, not the lab: run it again, or `down`.
    ///
    /// A lab file is TOML; Documentation/lab.rst describes it. The smallest has VMs with an RNIC each, on one network:
    ///
    ///   [[vm]]
    ///   name = "node"
    ///   count = 3
    #[command(verbatim_doc_comment)]
    Up {
        /// The lab file
        file: PathBuf,
        /// Print the status in JSON
        #[arg(long)]
        json: bool,
    },
    /// End a lab of `up`: its VMs, its processes, and its files
    Down {
        /// Name of the lab; the only one if not given
        lab: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the labs of `up`: VMs, devices and addresses
    Status {
        /// Name of the lab; all if not given
        lab: Option<String>,
        /// Print JSON, with processes, sockets and logs
        #[arg(long)]
        json: bool,
    },
    /// Print logs of a lab of `up`: the last lines of all, or all lines of those named
    Logs {
        /// Name of the lab; the only one if not given
        #[arg(long)]
        lab: Option<String>,
        /// Name of a VM (its console), qemu-VM, vrnicd, vrnicd-NETWORK or supervisor
        name: Vec<String>,
        /// Print so many last lines
        #[arg(long)]
        lines: Option<usize>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a file or a directory into a VM, or out of it
    Copy {
        /// Name of the lab; the one of `shell`, or the only one, if not given
        #[arg(long)]
        lab: Option<String>,
        /// What to copy: a path, or VM:PATH
        from: String,
        /// Where to: VM:PATH, or a path. Into a directory that exists
        to: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a command in a VM, or in several at the same time
    ///
    /// Uses the VMs of the lab that --lab names; else those of a running `shell`; else those of `up`, if one lab is up;
    /// else boots VMs for this command.
    ///
    /// Exits with the command's exit code, with 124 if it ran too long, or with 127 if it could not be started; of
    /// several VMs, with the first that is not 0. With several, each line of output begins with the VM's name.
    Exec {
        /// Name of the lab, if it is one of `up`
        #[arg(long)]
        lab: Option<String>,
        /// Names of VMs, with commas between them
        #[arg(long, value_delimiter = ',', default_value = "a")]
        vm: Vec<String>,
        /// In all VMs
        #[arg(long, conflicts_with = "vm")]
        all: bool,
        /// Print exit code and output of each VM in JSON, at the end
        #[arg(long)]
        json: bool,
        /// Kill the command after this many seconds
        #[arg(long, default_value_t = 600)]
        timeout: u64,
        /// RDMA device, if VMs are booted for this command
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Program and arguments. For pipes and redirections, use: sh -c '…'
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Measure vrnic and rxe in the same two VMs; print tables, write charts and build/bench/report.json
    Bench {
        /// Directory for the report, the charts and the logs
        #[arg(long, default_value = "build/bench")]
        out: PathBuf,
        /// Measure only the goodput on wires that lose frames; write no report and no charts
        #[arg(long)]
        goodput: bool,
        /// Measure only the device, with guests that nothing emulates and no VM; write native.json and its chart
        #[arg(long, conflicts_with = "goodput")]
        native: bool,
    },
    /// Run workloads between the VMs once under each fault, and judge how they take it
    ///
    /// A fault is made in the RNIC of one end; `vrnicctl fault explain` describes all faults. Each run is judged:
    /// not reached, unaffected, recovered, reported, hang, crash, leak, wrong data, or kernel report. Writes
    /// build/chaos/index.html with the evidence of each run, and build/chaos/report.json.
    ///
    /// The workloads run VM b's command first, as the server, then VM a's, as the client. Your own commands run by
    /// `sh -c`, with DEV (the RDMA device), GID (index of its RoCEv2 GID) and SERVER (address of VM b) set:
    ///
    ///   vrnic-lab chaos --listen 18515 -- 'ibv_rc_pingpong -g $GID' --- 'ibv_rc_pingpong -g $GID $SERVER'
    #[command(verbatim_doc_comment)]
    Chaos(ChaosArguments),
    /// Run all tests: cargo, KUnit in a VM, tests/vm
    Test {
        /// Run only tests whose name contains one of these, such as `kunit`, `cargo` or a name in tests/vm
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Run only the tests in VMs, none on the host
        #[arg(long)]
        guests: bool,
        /// RDMA device of the VM tests
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Number of VM tests that run at the same time, each in its own lab
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
        labs: u32,
        /// Directory for the logs
        #[arg(long, default_value = "build/test")]
        out: PathBuf,
    },
    /// Query or control a running lab
    ///
    /// The lab is the one that --lab names, else the one of the VM test that calls this ($LAB_CONTROL), else the one
    /// that `shell` started, else the only one of `up`.
    ///
    /// Requests that print something:
    ///   pid vrnicd|qemu-VM         process id
    ///   control                    control socket of vrnicd, for VRNIC_CONTROL
    ///   console VM                 console log of the VM
    ///   log                        log of vrnicd
    ///   config                     configuration of vrnicd
    ///   sockets                    directory of the lab's sockets
    ///   device VM                  RDMA device of the VM: vrnic or rxe
    ///   ready [-6] VM              wait for the RDMA device, print the index of its IPv4 (-6: IPv6) GID
    ///   perf [-6] CLIENT SERVER PROGRAM ARGS…
    ///                              run a two-ended program over IPv4 (-6: IPv6), print the client's output
    /// Requests that do something:
    ///   boot VM, kill VM           start the VM, or kill it
    ///   wait VM                    wait until the VM has rebooted
    ///   restart-vrnicd             start vrnicd again
    ///   qmp VM JSON                send a QMP command to QEMU
    #[command(verbatim_doc_comment)]
    Ctl {
        /// Name of the lab, if it is one of `up`
        #[arg(long)]
        lab: Option<String>,
        /// Request and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        request: Vec<String>,
    },
    /// Have a lab; started by `up`
    #[command(hide = true)]
    Supervise { name: String },
    /// Write manual pages and shell completions
    #[command(name = vrnicd::manual::SUBCOMMAND, hide = true)]
    Manual { directory: PathBuf },
}

#[derive(Args)]
struct ChaosArguments {
    /// Workloads that come with the lab, see --list; all if none is named
    workload: Vec<String>,
    /// List the workloads and the faults, and run nothing
    #[arg(long)]
    list: bool,
    /// Make only this fault: NAME [KEY=VALUE]…, as for `vrnicctl fault add`. May be given more than once
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// Whose RNIC has the faults of --fault
    #[arg(long, value_enum, default_value = "client", requires = "fault")]
    on: chaos::plan::Side,
    /// Arm the faults of --fault only when the RNIC has sent some packets of a reliable connection
    #[arg(long, requires = "fault")]
    traffic: bool,
    /// Your server's port, TCP or rdma_cm: the client starts when somebody listens there; without it, after a second
    #[arg(long, value_name = "PORT", requires = "own")]
    listen: Option<u16>,
    /// Your programs hang if they have not ended after so many seconds
    #[arg(long, default_value_t = 20, requires = "own")]
    seconds: u64,
    /// What your programs print when they find damaged data, a regular expression
    #[arg(long, value_name = "REGEX", requires = "own")]
    wrong_data: Option<regex_lite::Regex>,
    /// Fail if a run ends with one of these verdicts
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["crash", "leak", "wrong-data", "kernel-report"])]
    fail_on: Vec<chaos::verdict::Verdict>,
    /// Number of runs at the same time, each in its own lab
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    labs: u32,
    /// Directory for the page, the report and the logs
    #[arg(long, default_value = "build/chaos")]
    out: PathBuf,
    /// Your own workload: SERVER-COMMAND --- CLIENT-COMMAND
    #[arg(last = true, conflicts_with = "workload", value_name = "COMMANDS")]
    own: Vec<String>,
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
    let asked = match cli.kernel {
        None => kernel::Name::of_environment()?,
        kernel => kernel,
    };
    let kernel = asked.unwrap_or(match cli.command {
        Command::Test { .. } => kernel::Name::Lab,
        _ => kernel::Name::Stock,
    });
    let load = || Settings::load(kernel).map(|settings| settings.with_fabric(cli.fabric));
    match cli.command {
        Command::Run { device, out } => {
            let settings = load()?;
            run::run(&settings, &settings.tree.join(out), device)?;
        }
        Command::Shell { device, plain } => shell::shell(&load()?, device, plain)?,
        Command::Attach { lab, vm } => {
            let sockets = match lab {
                Some(lab) => Place::chosen(Some(lab))?.directory(),
                None => shell::running(&settings::source_tree()?),
            };
            shell::attach(&sockets, &vm)?;
        }
        Command::Up { file, json } => up::up(&file, asked, cli.fabric, json)?,
        Command::Down { lab, json } => up::down(lab, json)?,
        Command::Status { lab, json } => up::status(lab, json)?,
        Command::Logs {
            lab,
            name,
            lines,
            json,
        } => up::logs(lab, &name, lines, json)?,
        Command::Copy {
            lab,
            from,
            to,
            json,
        } => up::copy(&control_socket(lab)?, &from, &to, json)?,
        Command::Supervise { name } => up::supervise(&name, kernel)?,
        Command::Exec {
            lab,
            vm,
            all,
            json,
            timeout,
            device,
            argv,
        } => {
            let vms = (!all).then_some(vm);
            let command = exec::Command {
                vms,
                timeout,
                argv,
                json,
            };
            return exec(load, lab, device, &command);
        }
        Command::Bench {
            out,
            goodput,
            native,
        } => {
            let settings = load()?;
            let out = settings.tree.join(out);
            if goodput {
                goodput::run(&settings, &out)?;
            } else if native {
                native::run(&settings, &out)?;
            } else {
                bench::run(&settings, &out)?;
            }
        }
        Command::Chaos(arguments) => run_chaos(arguments, load)?,
        Command::Test {
            only,
            guests,
            device,
            labs,
            out,
        } => {
            let settings = Settings { labs, ..load()? };
            let special = asked.unwrap_or(kernel::Name::Lab);
            suite::run(
                &settings,
                &suite::Choice {
                    only,
                    guests,
                    device,
                    special: Kernel::load(&settings.tree, special).ok(),
                    out: settings.tree.join(out),
                },
            )?;
        }
        Command::Manual { directory } => vrnicd::manual::write(Cli::command(), 1, &directory)?,
        Command::Ctl { lab, request } => {
            let (code, text) = control::ask(&control_socket(lab)?, &Ask::from_words(&request)?)?;
            if !text.is_empty() {
                println!("{text}");
            }
            return Ok(exit(code));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_chaos(arguments: ChaosArguments, load: impl FnOnce() -> Result<Settings>) -> Result<()> {
    let mut known = chaos::plan::profiles()?;
    if arguments.list {
        return chaos::list(&known, &chaos::plan::faults()?);
    }
    for name in &arguments.workload {
        if !known.iter().any(|profile| profile.name == *name) {
            bail!("no workload is called {name:?}; `vrnic-lab chaos --list` lists all");
        }
    }
    let mut repeat = String::new();
    let profiles = if arguments.own.is_empty() {
        known.retain(|profile| {
            arguments.workload.is_empty() || arguments.workload.contains(&profile.name)
        });
        known
    } else {
        let mut own = chaos::plan::own(&arguments.own, arguments.listen, arguments.seconds)?;
        repeat = chaos::plan::words(&arguments.own, &own, arguments.wrong_data.as_ref());
        own.wrong_data = arguments.wrong_data;
        vec![own]
    };
    let chosen = arguments.fault.into_iter().map(|fault| chaos::plan::Fault {
        fault,
        on: arguments.on,
        traffic: arguments.traffic,
    });
    let chosen: Vec<_> = chosen.collect();
    let faults = if chosen.is_empty() {
        chaos::plan::faults()?
    } else {
        chosen
    };
    chaos::plan::check(&faults)?;
    let settings = Settings {
        labs: arguments.labs,
        ..load()?
    };
    let out = settings.tree.join(arguments.out);
    chaos::run(
        &settings,
        &chaos::Plan {
            profiles,
            faults,
            fail_on: arguments.fail_on,
            out,
            repeat,
        },
    )
}

fn exec(
    load: impl FnOnce() -> Result<Settings>,
    lab: Option<String>,
    device: Device,
    command: &exec::Command,
) -> Result<ExitCode> {
    let named = lab.is_some();
    let socket = control_socket(lab);
    if let Ok(socket) = &socket
        && std::os::unix::net::UnixStream::connect(socket).is_ok()
    {
        return Ok(exit(exec::run(socket, command)?));
    }
    if named {
        socket?;
    }
    if let Some(socket) = std::env::var_os("LAB_CONTROL") {
        bail!("the lab at {} is gone", PathBuf::from(socket).display());
    }
    if up::Place::all()?.len() > 1 {
        bail!("several labs are up; name one with --lab");
    }
    let settings = load()?;
    let logs = settings.tree.join("build/exec/logs");
    let lab = Arc::new(Lab::boot(
        &settings,
        Options {
            device,
            logs,
            vrnicd: Extra::default(),
            no_rnic: device == Device::Rxe,
            module: Module::Plain,
        },
    )?);
    let socket = lab.sockets().join("control");
    control::serve(&lab, &socket, None)?;
    Ok(exit(exec::run(&socket, command)?))
}

/// The control socket of a lab: the one named, that of the VM test, that of `shell`, or that of the only lab.
fn control_socket(lab: Option<String>) -> Result<PathBuf> {
    if lab.is_some() {
        return Ok(Place::chosen(lab)?.control());
    }
    if let Some(socket) = std::env::var_os("LAB_CONTROL") {
        return Ok(socket.into());
    }
    if let Ok(tree) = settings::source_tree() {
        let shell = shell::control_socket(&tree);
        if std::os::unix::net::UnixStream::connect(&shell).is_ok() {
            return Ok(shell);
        }
    }
    Ok(Place::chosen(None)?.control())
}

/// Exit codes of guests fit: they are 0 to 255.
fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
