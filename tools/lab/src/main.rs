// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab`: boots virtual machines with RNICs and runs programs in them.

#![forbid(unsafe_code)]
// These macros panic if the reader has closed; `say` and `tell` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

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
mod html;
mod image;
mod kernel;
mod lab;
mod namespaces;
mod native;
mod output;
mod page;
mod pair;
mod perf;
mod process;
mod progress;
mod report;
mod run;
mod scale;
mod settings;
mod share;
mod shell;
mod ssh;
mod status;
mod suite;
mod up;
mod vm;
mod web;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use vrnic_lab::protocol::Stream;

use crate::control::Ask;
use crate::kernel::Kernel;
use crate::lab::{Extra, Lab, Module, Options};
use crate::output::{ReaderLeft, note, say, tell};
use crate::settings::Settings;
use crate::up::Place;
use crate::vm::{Device, Fabric};

/// Boots VMs with RNICs and runs programs in them: two VMs, a and b, or the VMs that a lab file describes.
///
/// Environment:
///   VRNIC_KERNEL=NAME      kernel of the VMs, like --kernel
///   KDIR=DIR               built kernel tree for the VMs
///   QEMU=PROGRAM           QEMU 10.1 or newer
///   VRNIC_ACCEL=kvm|tcg    how QEMU runs the VMs; default: kvm if the kernel boots under it
///   VRNIC_VM_CPUS=N        processors of each VM
///   VRNIC_VM_MEMORY_MB=N   memory of each VM
///   VRNIC_GUEST=DIR        root directory of the VMs, such as build/setup/apps
///   VRNIC_VRNICD=TOML      a line to add to vrnicd's configuration
///   VRNIC_CACHE=DIR        cache directory; default: ~/.cache/vrnic
#[derive(Parser)]
#[command(version, verbatim_doc_comment)]
struct Cli {
    /// How messages travel between the RNICs
    #[arg(long, global = true, value_enum, default_value = "local")]
    fabric: Fabric,
    /// Kernel of the VMs; default: stock. Without this option, `test` also uses lab
    #[arg(long, global = true, value_enum)]
    kernel: Option<kernel::Name>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run RDMA programs between the VMs and in loopback, print a table of results, write build/run/report.json
    Run {
        /// RDMA device in the VMs
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Directory for the report and the logs
        #[arg(long, default_value = "build/run")]
        out: PathBuf,
        /// Print the report as JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Boot the VMs and open a prompt in each
    Shell {
        /// RDMA device in the VMs
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Do not use tmux: show VM a in this terminal. For VM b, run `attach --vm b` in another terminal
        #[arg(long)]
        plain: bool,
    },
    /// Open the prompt of a VM started by `shell` or `up` in this terminal; Ctrl-] leaves it
    Attach {
        /// Name of a lab started by `up`
        #[arg(long)]
        lab: Option<String>,
        /// Name of the VM
        #[arg(long, default_value = "a")]
        vm: String,
    },
    /// Start the lab described in a lab file, in the background. If the lab is up, apply the changes in the file
    ///
    /// Unchanged VMs keep running. VMs that are new, have changed or have ended are booted, and so are
    /// VMs on a network whose devices have changed. Ctrl-C ends this command, not the lab. To wait for
    /// the lab again, run this command again. To stop the lab, run `down`.
    ///
    /// A lab file is TOML. Documentation/lab.rst describes it. This is a minimal file, for three VMs
    /// with one RNIC each on one network:
    ///
    ///   [[vm]]
    ///   name = "node"
    ///   count = 3
    #[command(verbatim_doc_comment)]
    Up {
        /// The lab file
        file: PathBuf,
        /// Print the status as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop a lab started by `up`, and remove its files
    Down {
        /// Name of the lab; optional if only one is up
        lab: Option<String>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the labs started by `up`: VMs, devices and addresses
    Status {
        /// Name of the lab; default: all
        lab: Option<String>,
        /// Print JSON, with processes, sockets and logs
        #[arg(long)]
        json: bool,
    },
    /// Print logs of a lab started by `up`: the last lines of every log, or all lines of the named logs
    Logs {
        /// Name of the lab; optional if only one is up
        #[arg(long)]
        lab: Option<String>,
        /// Name of a VM (its console), qemu-VM, vrnicd, vrnicd-NETWORK or supervisor
        name: Vec<String>,
        /// Print only this many last lines
        #[arg(long)]
        lines: Option<usize>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a file or a directory into a VM, or out of it
    Copy {
        /// Name of the lab; default: the one started by `shell`, or the only one started by `up`
        #[arg(long)]
        lab: Option<String>,
        /// What to copy: a path, or VM:PATH
        from: String,
        /// Destination: VM:PATH, or a path. If it is an existing directory, copy into it
        to: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Log in by ssh to a VM of a lab started by `up`, or run a command there
    ///
    /// The VM needs `ssh = true` in the lab file.
    Ssh {
        /// Name of the lab; optional if only one is up
        #[arg(long)]
        lab: Option<String>,
        /// [USER@]VM; the default user is root
        vm: String,
        /// Command and arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        argv: Vec<String>,
    },
    /// Run a command in a VM, or in several VMs in parallel
    ///
    /// The VMs are chosen in this order: those of the lab given with --lab, those of a running `shell`, those of the
    /// only lab started by `up`. If there are none, this command boots VMs for itself.
    ///
    /// The exit code is that of the command, 124 if the command timed out, or 127 if it could not be started. With
    /// several VMs, it is the first code that is not 0, and each line of output starts with the name of the VM.
    Exec {
        /// Name of a lab started by `up`
        #[arg(long)]
        lab: Option<String>,
        /// Names of VMs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "a")]
        vm: Vec<String>,
        /// Run the command in all VMs
        #[arg(long, conflicts_with = "vm")]
        all: bool,
        /// Print the exit code and the output of each VM as JSON, at the end
        #[arg(long)]
        json: bool,
        /// Kill the command after this many seconds
        #[arg(long, default_value_t = 600)]
        timeout: u64,
        /// RDMA device in the VMs, if this command boots them
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Boot VMs for this command, mount DIR in them as /mnt/tree, read-write, and run the command there
        #[arg(long, value_name = "DIR", conflicts_with = "lab")]
        tree: Option<PathBuf>,
        /// Program and arguments. For pipes and redirections, use: sh -c '…'
        #[arg(last = true, required = true)]
        argv: Vec<String>,
    },
    /// Run a server in VM b and a client in VM a
    ///
    /// Boots VMs, starts the server, then the client, and prints the output of both. The server's lines
    /// begin with "b| ". Both commands run under `sh -c`, with DEV (the RDMA device), GID (index of its
    /// RoCEv2 GID) and SERVER (address of VM b) set:
    ///
    ///   vrnic-lab pair --listen 18515 -- 'ibv_rc_pingpong -g $GID' --- 'ibv_rc_pingpong -g $GID $SERVER'
    ///
    /// The exit code is the client's, or the server's if the client's is 0. It is 124 if either timed
    /// out.
    #[command(verbatim_doc_comment)]
    Pair(pair::Arguments),
    /// Measure vrnic, on each fabric, and rxe between two VMs, print tables, write charts and build/bench/report.json
    Bench {
        /// Directory for the report, the charts and the logs
        #[arg(long, default_value = "build/bench")]
        out: PathBuf,
        /// Measure only the goodput on lossy wires (with --fabric infiniband, only there); write no report, no charts
        #[arg(long)]
        goodput: bool,
        /// Measure only the device, without VMs (the program plays the guests); write native.json and its chart
        #[arg(long, conflicts_with = "goodput")]
        native: bool,
        /// Measure only perftest's programs in VMs, on each fabric and over rxe; write their report and chart
        #[arg(long, conflicts_with_all = ["goodput", "native"])]
        programs: bool,
    },
    /// Run workloads between the VMs once under each fault, and report how they cope
    ///
    /// Each fault is injected into the RNIC of one end. `vrnicctl fault explain` describes all faults.
    /// Each run gets a verdict: not reached, unaffected, recovered, reported, hang, crash, leak, lost
    /// device, wrong data, or kernel report. build/chaos/index.html shows the evidence of each run;
    /// build/chaos/report.json is for scripts.
    ///
    /// A workload is two commands. The server runs in VM b, then the client runs in VM a. Your own
    /// commands run under `sh -c`, with DEV (the RDMA device), GID (index of its RoCEv2 GID) and SERVER
    /// (address of VM b) set:
    ///
    ///   vrnic-lab chaos --listen 18515 -- 'ibv_rc_pingpong -g $GID' --- 'ibv_rc_pingpong -g $GID $SERVER'
    #[command(verbatim_doc_comment)]
    Chaos(ChaosArguments),
    /// Run all tests: host tests (cargo), KUnit in a VM, VM tests (tests/vm)
    Test {
        /// Run only tests whose name contains one of these, such as `kunit`, `cargo` or a name in tests/vm
        #[arg(long, value_delimiter = ',')]
        only: Vec<String>,
        /// Run only the tests in VMs, not those on the host
        #[arg(long)]
        guests: bool,
        /// Run the long VM tests too, and each VM test on every fabric that it can run on. Tests that --only chooses
        /// run like this anyway
        #[arg(long)]
        all: bool,
        /// RDMA device of the VM tests
        #[arg(long, value_enum, default_value = "vrnic")]
        device: Device,
        /// Number of VM tests to run in parallel, each in its own lab
        #[arg(long, default_value = "2", value_parser = clap::value_parser!(u32).range(1..))]
        labs: u32,
        /// Directory for the logs
        #[arg(long, default_value = "build/test")]
        out: PathBuf,
    },
    /// Query or control a running lab
    ///
    /// The lab is chosen in this order: the one given with --lab, the lab of the VM test that calls
    /// this ($LAB_CONTROL), the one started by `shell`, the only one started by `up`.
    ///
    /// Requests that print something:
    ///   pid vrnicd|qemu-VM         process id
    ///   control                    control socket of vrnicd, for VRNIC_CONTROL
    ///   console VM                 console log of the VM
    ///   log                        log of vrnicd
    ///   config                     configuration of vrnicd
    ///   sockets                    directory of the lab's sockets
    ///   device VM                  RDMA device of the VM: vrnic or rxe
    ///   ssh-port VM                port of 127.0.0.1 that leads to the VM's ssh server
    ///   ready [-6] VM              wait for the RDMA device, print the index of its IPv4 (-6: IPv6) GID
    ///   perf [-6] CLIENT SERVER PROGRAM ARGS…
    ///                              run a program as server and as client, over IPv4 (-6:
    ///                              IPv6), print the client's output
    /// Requests that do something:
    ///   boot VM, kill VM           start the VM, or kill it
    ///   wait VM                    wait until the VM has rebooted
    ///   restart-vrnicd             start vrnicd again
    ///   qmp VM JSON                send a QMP command to QEMU
    #[command(verbatim_doc_comment)]
    Ctl {
        /// Name of a lab started by `up`
        #[arg(long)]
        lab: Option<String>,
        /// Print the exit code, the answer and any output as JSON. Give it before the request
        #[arg(long)]
        json: bool,
        /// Request and its arguments
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        request: Vec<String>,
    },
    /// Run a program that ends with its parent
    #[command(hide = true, name = process::CHILD)]
    Child {
        #[arg(long)]
        without_privileges: bool,
        #[arg(last = true, required = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Run a lab; started by `up`
    #[command(hide = true)]
    Supervise { name: String },
    /// Write what the VMs see as /vrnic
    #[command(hide = true)]
    Stage { directory: PathBuf },
    /// Write man pages and shell completions
    #[command(name = vrnicd::manual::SUBCOMMAND, hide = true)]
    Manual { directory: PathBuf },
}

#[derive(Args)]
struct ChaosArguments {
    /// Workloads that come with the lab (see --list); default: all
    workload: Vec<String>,
    /// List the workloads and the faults, then exit
    #[arg(long)]
    list: bool,
    /// Print the list, or the report, as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// RDMA devices to run the workloads with, one after the other. For rxe, the kernel's Soft-RoCE, --ports is implied
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["vrnic"])]
    device: Vec<Device>,
    /// Inject the faults at the ports of vrnicd's switch between the VMs instead of in the RNICs. The RNICs are on the
    /// fabric roce then, and only faults of packets are possible
    #[arg(long)]
    ports: bool,
    /// Inject only this fault: NAME [KEY=VALUE]…, as in `vrnicctl fault add`. Can be given more than once
    #[arg(long, value_name = "FAULT")]
    fault: Vec<String>,
    /// Play only this scenario, one of tools/vrnicctl/scenarios, while the workload runs. Can be given more than once
    #[arg(long, value_name = "NAME")]
    scenario: Vec<String>,
    /// Number of RNICs of each VM for the workload `rails`
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=8), conflicts_with = "own")]
    rails: u8,
    /// The end whose RNIC, or port, gets the faults given with --fault
    #[arg(long, value_enum, default_value = "client", requires = "fault")]
    on: chaos::plan::Side,
    /// Arm the faults given with --fault only after the RNIC has sent some packets of a reliable connection
    #[arg(long, requires = "fault")]
    traffic: bool,
    /// Port of your server (TCP or rdma_cm): start the client when the server listens; default: after one second
    #[arg(long, value_name = "PORT", requires = "own")]
    listen: Option<u16>,
    /// Treat your programs as hung if they have not ended after this many seconds
    #[arg(long, default_value_t = 20, requires = "own")]
    seconds: u64,
    /// Regular expression for what your programs print when they find damaged data
    #[arg(long, value_name = "REGEX", requires = "own")]
    wrong_data: Option<regex_lite::Regex>,
    /// Fail if a run ends with one of these verdicts
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["crash", "leak", "lost-device", "wrong-data", "kernel-report"])]
    fail_on: Vec<chaos::verdict::Verdict>,
    /// Number of runs in parallel, each in its own lab. By default, as many as the machine has room for: each lab needs
    /// two processors, and the memory of its two VMs
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    labs: Option<u32>,
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
        Err(error) if error.is::<ReaderLeft>() => ReaderLeft::EXIT_CODE.into(),
        Err(error) => {
            tell!("vrnic-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(cli: Cli) -> Result<ExitCode> {
    let asked = match cli.kernel {
        None => kernel::Name::of_environment()?,
        kernel => kernel,
    };
    let kernel = asked.unwrap_or(kernel::Name::Stock);
    let load = || Settings::load(kernel).map(|settings| settings.with_fabric(cli.fabric));
    let sources = || -> Result<Settings> {
        if settings::is_bundled() {
            bail!(
                "this command needs the source tree, because it builds what it tests and measures"
            );
        }
        load()
    };
    match cli.command {
        Command::Run { device, out, json } => {
            let settings = load()?;
            run::run(&settings, &settings.tree.join(out), device, json)?;
        }
        Command::Shell { device, plain } => shell::shell(&load()?, device, plain)?,
        Command::Attach { lab, vm } => {
            let sockets = match lab {
                Some(lab) => Place::chosen(Some(lab))?.directory(),
                None => shell::running(&settings::tree()?),
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
        Command::Ssh { lab, vm, argv } => ssh::ssh(&control_socket(lab)?, &vm, &argv)?,
        Command::Supervise { name } => up::supervise(&name, kernel)?,
        Command::Exec {
            lab,
            vm,
            all,
            json,
            timeout,
            device,
            tree,
            argv,
        } => {
            let vms = (!all).then_some(vm);
            let command = exec::Command {
                vms,
                timeout,
                argv,
                json,
            };
            return exec(load, lab, device, tree.as_deref(), command);
        }
        Command::Pair(arguments) => return Ok(exit(pair::run(&load()?, arguments)?)),
        Command::Bench {
            out,
            goodput,
            native,
            programs,
        } => {
            let settings = sources()?;
            let out = settings.tree.join(out);
            if goodput {
                goodput::run(&settings, &out)?;
            } else if native {
                native::run(&settings, &out)?;
            } else {
                let extent = if programs {
                    bench::Extent::Programs
                } else {
                    bench::Extent::All
                };
                bench::run(&settings, &out, extent)?;
            }
        }
        Command::Chaos(arguments) => run_chaos(arguments, load)?,
        Command::Test {
            only,
            guests,
            all,
            device,
            labs,
            out,
        } => {
            let settings = Settings { labs, ..sources()? };
            let special = asked.unwrap_or(kernel::Name::Lab);
            suite::run(
                &settings,
                &suite::Choice {
                    only,
                    guests,
                    all,
                    device,
                    special: Kernel::load(&settings.tree, special).ok(),
                    out: settings.tree.join(out),
                },
            )?;
        }
        Command::Stage { directory } => {
            let settings = Settings {
                userland: None,
                ..sources()?
            };
            let driver = Module::Plain.path(&settings);
            share::stage(&settings, &directory, Some(&driver))?;
        }
        Command::Child {
            without_privileges,
            words,
        } => return Err(process::become_child(&words, without_privileges)),
        Command::Manual { directory } => vrnicd::manual::write(Cli::command(), 1, &directory)?,
        Command::Ctl { lab, json, request } => {
            let socket = control_socket(lab)?;
            return Ok(exit(ctl(&socket, &Ask::from_words(&request)?, json)?));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends a request to a lab, prints its answer, and returns its exit code.
fn ctl(socket: &Path, request: &Ask, json: bool) -> Result<i32> {
    if !json {
        let (code, text) = control::ask(socket, request)?;
        if !text.is_empty() {
            say!("{text}");
        }
        return Ok(code);
    }
    let mut kept = [Vec::new(), Vec::new()];
    let (code, answer) = control::run(socket, request, &mut |stream, bytes| {
        kept[usize::from(stream == Stream::Err)].extend_from_slice(bytes);
        Ok(())
    })?;
    let [stdout, stderr] = kept.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    output::print_json(&serde_json::json!({
        "exit": code,
        "answer": answer,
        "stdout": stdout,
        "stderr": stderr,
    }))?;
    Ok(code)
}

fn run_chaos(arguments: ChaosArguments, load: impl FnOnce() -> Result<Settings>) -> Result<()> {
    let mut known = chaos::plan::profiles()?;
    for profile in known.iter_mut().filter(|profile| profile.rails > 1) {
        profile.rails = arguments.rails.into();
    }
    if arguments.list {
        let faults = chaos::plan::faults()?;
        if arguments.json {
            return output::print_json(&chaos::list_json(&known, &faults));
        }
        chaos::list(&known, &faults);
        return Ok(());
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
        scenario: false,
        on: arguments.on,
        traffic: arguments.traffic,
    });
    let known_faults = chaos::plan::faults()?;
    let scenarios = arguments.scenario.into_iter().map(|name| {
        let mut all = known_faults.iter();
        all.find(|fault| fault.scenario && fault.fault == name)
            .cloned()
            .with_context(|| {
                format!("no scenario is called {name:?}; `vrnic-lab chaos --list` lists all")
            })
    });
    let scenarios = scenarios.collect::<Result<Vec<_>>>()?;
    let mut faults: Vec<_> = chosen.chain(scenarios).collect();
    let at_ports = arguments.ports || arguments.device.contains(&Device::Rxe);
    let all = faults.is_empty();
    if all {
        faults = known_faults;
        faults.retain(|fault| fault.check(at_ports).is_ok());
    }
    for fault in &faults {
        fault.check(at_ports)?;
    }
    let mut settings = Settings {
        labs: arguments
            .labs
            .unwrap_or_else(|| settings::labs_that_fit(vm::usual_memory())),
        ..load()?
    };
    if at_ports {
        settings = settings.with_fabric(Fabric::Roce);
    }
    let (profiles, others): (Vec<_>, Vec<_>) = profiles
        .into_iter()
        .partition(|profile| profile.fits(&settings.guest_root));
    let soft = arguments.device.contains(&Device::Rxe);
    let (profiles, of_rails): (Vec<_>, Vec<_>) = profiles
        .into_iter()
        .partition(|profile| profile.rails == 1 || !soft);
    for profile in &of_rails {
        note!(
            arguments.json,
            "{} is skipped: Soft-RoCE has one device in each VM",
            profile.name
        );
    }
    for profile in &others {
        let program = profile.needs.as_deref().unwrap_or_default();
        note!(
            arguments.json,
            "{} is skipped: the guests have no {program}; run `make setup-apps` and set VRNIC_GUEST=build/setup/apps",
            profile.name
        );
    }
    if profiles.is_empty() {
        bail!("no workload can be run");
    }
    let fits = |fault: &chaos::plan::Fault| profiles.iter().any(|profile| fault.fits(profile));
    if all {
        faults.retain(fits);
    } else if let Some(fault) = faults.iter().find(|fault| !fits(fault)) {
        bail!(
            "{} needs a workload with several RNICs in each VM, such as `rails`",
            fault.words()
        );
    }
    let out = settings.tree.join(arguments.out);
    chaos::run(
        &settings,
        &chaos::Plan {
            devices: arguments.device,
            at_ports,
            profiles,
            faults,
            fail_on: arguments.fail_on,
            out,
            repeat,
            json: arguments.json,
        },
    )
}

fn exec(
    load: impl FnOnce() -> Result<Settings>,
    lab: Option<String>,
    device: Device,
    tree: Option<&Path>,
    mut command: exec::Command,
) -> Result<ExitCode> {
    let tree = tree.map(pair::tree).transpose()?;
    if tree.is_some() {
        let there = ["sh", "-c", "cd /mnt/tree && exec \"$@\"", "sh"].map(str::to_owned);
        command.argv.splice(..0, there);
    } else if let Some(code) = exec_in_running(lab, &command)? {
        return Ok(exit(code));
    }
    let settings = load()?;
    let logs = settings.tree.join("build/exec/logs");
    let lab = Arc::new(Lab::boot(
        &settings,
        Options {
            device,
            logs,
            vrnicd: Extra {
                tree,
                ..Extra::default()
            },
            no_rnic: device == Device::Rxe,
            module: Module::Plain,
        },
    )?);
    let socket = lab.sockets().join("control");
    control::serve(&lab, &socket, None)?;
    Ok(exit(exec::run(&socket, &command)?))
}

/// Runs the command in the VMs of a running lab, and returns its exit code. Returns none if there is no such lab.
fn exec_in_running(lab: Option<String>, command: &exec::Command) -> Result<Option<i32>> {
    let named = lab.is_some();
    let socket = control_socket(lab);
    if let Ok(socket) = &socket
        && std::os::unix::net::UnixStream::connect(socket).is_ok()
    {
        return exec::run(socket, command).map(Some);
    }
    if named {
        socket?;
    }
    if let Some(socket) = std::env::var_os("LAB_CONTROL") {
        bail!("the lab at {} has ended", PathBuf::from(socket).display());
    }
    if up::Place::all()?.len() > 1 {
        bail!("several labs are up; name one with --lab");
    }
    Ok(None)
}

/// Returns the control socket of a lab: the one named, that of the VM test, that of `shell`, or that of the only lab.
fn control_socket(lab: Option<String>) -> Result<PathBuf> {
    if lab.is_some() {
        return Ok(Place::chosen(lab)?.control());
    }
    if let Some(socket) = std::env::var_os("LAB_CONTROL") {
        return Ok(socket.into());
    }
    if let Ok(tree) = settings::tree() {
        let shell = shell::control_socket(&tree);
        if std::os::unix::net::UnixStream::connect(&shell).is_ok() {
            return Ok(shell);
        }
    }
    Ok(Place::chosen(None)?.control())
}

/// Converts an exit code of a guest, which is between 0 and 255.
fn exit(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
