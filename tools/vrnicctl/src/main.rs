// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl` shows what the devices of a `vrnicd` do, and explains why something failed.

#![forbid(unsafe_code)]

mod capture;
mod fault;
mod judge;
mod lessons;
mod record;
mod scenario;
mod subnet;
mod table;
mod watch;
mod web;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use serde::Serialize;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::Device;

use scenario::LinkState;
use table::{Row, print};

/// Inspects and controls the RDMA devices of a running vrnicd: shows their state, explains failures, captures packets,
/// and injects faults.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Control socket of vrnicd, set by its `control` setting or --control option.
    #[arg(
        long,
        short,
        value_name = "PATH",
        env = "VRNIC_CONTROL",
        default_value = "/run/vrnic/control.sock",
        global = true
    )]
    socket: PathBuf,

    /// Print JSON instead of a table: an array with one object per row.
    #[arg(long, short, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List devices: driver, link, addresses, number of objects.
    Devices,
    /// List ports.
    Ports(Choice),
    /// List GIDs.
    Gids(Choice),
    /// List queue pairs: state, peer, PSNs, outstanding work, rate limit.
    Qps {
        #[command(flatten)]
        choice: Choice,
        /// Only this queue pair.
        #[arg(long, short, value_name = "N")]
        qpn: Option<u32>,
    },
    /// List completion queues.
    Cqs(Choice),
    /// List shared receive queues.
    Srqs(Choice),
    /// List multicast groups and the queue pairs attached to them.
    Groups(Choice),
    /// List flows: which frames go to which raw packet queue pairs, in the order in which they are tried.
    Flows(Choice),
    /// List completion counters: how many operations of queue pairs succeeded and failed.
    CompletionCounters(Choice),
    /// List memory regions, up to 65536 per device.
    Mrs(Choice),
    /// List memory windows, and what they are bound to.
    Mws(Choice),
    /// List the counters of ports, under the same names as `rdma statistic`.
    Counters {
        #[command(flatten)]
        choice: Choice,
        /// Also list counters that are 0.
        #[arg(long, short)]
        all: bool,
    },
    /// Take the link of a device down, as if the cable were unplugged, or bring it up again.
    Link {
        /// The device.
        device: String,
        /// The new state of the link.
        state: LinkState,
    },
    /// List the rate limits of devices, or change those of one device.
    Limit {
        /// The device. Without it, list all devices.
        device: Option<String>,
        /// Limit on the payload, including read responses, in gigabits per second: 0.001 to 10000.
        #[arg(long, value_name = "GBPS", requires = "device")]
        tx_gbps: Option<f64>,
        /// Limit on requests per second.
        #[arg(long, value_name = "N", requires = "device")]
        max_iops: Option<u64>,
        /// Remove the limits that this command does not set.
        #[arg(long, requires = "device")]
        none: bool,
    },
    /// List the ports of the switch: what is connected, frames received and sent, drops by reason.
    Switch,
    /// List the addresses that the switch knows: first those of ports, then learned ones, up to 65536.
    Addresses,
    /// List the links of the InfiniBand subnet, or make them fail.
    #[command(subcommand)]
    Subnet(subnet::Command),
    /// Explain why requests, packets and commands failed. Covers the last 4096 failures of each device.
    Explain {
        #[command(flatten)]
        choice: Choice,
        /// Only failures of this queue pair.
        #[arg(long, short, value_name = "N")]
        qpn: Option<u32>,
        /// Only the last COUNT failures.
        #[arg(long, short = 'n', value_name = "COUNT")]
        last: Option<usize>,
    },
    /// Show live rates, busy queue pairs and new failures, until interrupted.
    Watch {
        #[command(flatten)]
        choice: Choice,
        /// Seconds between updates.
        #[arg(long, short, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
        interval: Duration,
        /// Stop after COUNT updates.
        #[arg(long, short = 'n', value_name = "COUNT")]
        count: Option<u64>,
    },
    /// Capture packets to a pcapng file for Wireshark.
    #[command(subcommand)]
    Capture(capture::Command),
    /// Record all inputs of a device, for vrnic-replay.
    #[command(subcommand)]
    Record(record::Command),
    /// Inject faults into a device, its wire or its commands, or into the packets that pass a port of the switch.
    #[command(subcommand)]
    Fault(fault::Command),
    /// Report how another RNIC, or Soft-RoCE, behaves when packets are lost, repeated, refused or marked.
    #[command(subcommand)]
    Judge(judge::Command),
    /// Show everything live in a browser: devices, connections, objects, failures. Prints the address to open, and
    /// serves it until interrupted.
    Web(web::Options),
    /// Learn RDMA in a browser: six lessons with real RNICs, which show what the RNICs do at each step. Starts a vrnicd
    /// of its own and plays the guests; needs no VM. Prints the address to open, and serves it until interrupted.
    Lessons(lessons::Options),
    /// Show or change vrnicd's log filter, such as `debug` or `info,vrnic_vfio_user=trace`.
    Log {
        /// New filter. Without it, show the current one.
        filter: Option<String>,
    },
    /// Write man pages and shell completions.
    #[command(name = vrnicd::manual::SUBCOMMAND, hide = true)]
    Manual { directory: PathBuf },
}

/// Which devices.
#[derive(Args)]
struct Choice {
    /// Only this device.
    #[arg(long, short, value_name = "NAME")]
    device: Option<String>,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(interval) if interval >= Duration::from_millis(50) => Ok(interval),
        _ => Err("must be at least 0.05 seconds".into()),
    }
}

/// An item that belongs to a device.
#[derive(Serialize)]
struct Of<T> {
    device: String,
    #[serde(flatten)]
    item: T,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output has closed it.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "vrnicctl: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

fn run(arguments: &Arguments) -> Result<()> {
    if let Command::Fault(fault::Command::Explain { name }) = &arguments.command {
        return fault::explain(name.as_deref(), arguments.json);
    }
    if let Command::Judge(command) = &arguments.command
        && let Some(result) = judge::without_daemon(command, arguments.json)
    {
        return result;
    }
    if let Command::Manual { directory } = &arguments.command {
        vrnicd::manual::write(Arguments::command(), 1, directory)?;
        return fault::write_manual(directory);
    }
    if let Command::Lessons(options) = &arguments.command {
        return lessons::run(options, arguments.json);
    }
    if let Command::Web(options) = &arguments.command {
        return web::run(options, &arguments.socket, arguments.json);
    }
    let mut client = Client::connect(&arguments.socket)?;
    let client = &mut client;
    let json = arguments.json;
    match &arguments.command {
        Command::Devices => print(&chosen(client, None)?, json),
        Command::Ports(choice) => {
            let devices = chosen(client, choice.device.as_deref())?;
            let ports = devices.into_iter().filter_map(|device| {
                Some(Of {
                    device: device.name,
                    item: device.port?,
                })
            });
            print(&ports.collect::<Vec<_>>(), json)
        }
        Command::Gids(choice) => list(client, choice, json, Client::gids),
        Command::Qps { choice, qpn } => list(client, choice, json, |client, device| {
            let mut qps = client.qps(device)?;
            qps.retain(|qp| qpn.is_none_or(|qpn| qp.qpn == qpn));
            Ok(qps)
        }),
        Command::Cqs(choice) => list(client, choice, json, Client::cqs),
        Command::Srqs(choice) => list(client, choice, json, Client::srqs),
        Command::Groups(choice) => list(client, choice, json, Client::groups),
        Command::Flows(choice) => list(client, choice, json, Client::flows),
        Command::CompletionCounters(choice) => {
            list(client, choice, json, Client::completion_counters)
        }
        Command::Mrs(choice) => list(client, choice, json, Client::mrs),
        Command::Mws(choice) => list(client, choice, json, Client::mws),
        Command::Counters { choice, all } => {
            let devices = chosen(client, choice.device.as_deref())?;
            let mut counters = Vec::new();
            for Device { name, port, .. } in devices {
                for (counter, value) in port.map(|port| port.counters).unwrap_or_default() {
                    if *all || value != 0 {
                        counters.push(Of {
                            device: name.clone(),
                            item: table::Counter { counter, value },
                        });
                    }
                }
            }
            print(&counters, json)
        }
        Command::Link { device, state } => client.set_link(device, *state == LinkState::Up),
        Command::Limit {
            device,
            tx_gbps,
            max_iops,
            none,
        } => {
            let devices = chosen(client, device.as_deref())?;
            if tx_gbps.is_none() && max_iops.is_none() && !none {
                let limits = devices.into_iter().map(|device| Of {
                    device: device.name,
                    item: table::Limit::from(device.rate_limit),
                });
                return print(&limits.collect::<Vec<_>>(), json);
            }
            let mut limit = vrnicd::config::rate_limit(*tx_gbps, *max_iops)?;
            for device in devices {
                if !none {
                    limit.bytes = limit.bytes.or(device.rate_limit.bytes);
                    limit.requests = limit.requests.or(device.rate_limit.requests);
                }
                client.set_rate_limit(&device.name, limit.into())?;
            }
            Ok(())
        }
        Command::Switch => print(&client.switch()?, json),
        Command::Addresses => print(&client.addresses()?, json),
        Command::Subnet(command) => subnet::run(client, command, json),
        Command::Explain { choice, qpn, last } => list_with(client, choice, |client, device| {
            let mut all = client.explanations(device, 0)?;
            all.retain(|one| qpn.is_none_or(|qpn| one.object == qpn && one.object_kind() == "QP"));
            let skip = last.map_or(0, |last| all.len().saturating_sub(last));
            all.drain(..skip);
            Ok(all)
        })
        .and_then(|all| {
            if json {
                return print(&all, true);
            }
            let mut out = std::io::stdout().lock();
            for Of { device, item } in &all {
                writeln!(out, "{}", table::sentence(device, item))?;
            }
            Ok(())
        }),
        Command::Manual { .. } | Command::Web(_) | Command::Lessons(_) => Ok(()),
        Command::Watch {
            choice,
            interval,
            count,
        } => watch::run(client, choice.device.as_deref(), *interval, *count, json),
        Command::Capture(command) => capture::run(client, command, json),
        Command::Record(command) => record::run(client, command, json),
        Command::Fault(command) => fault::run(client, command, json),
        Command::Judge(command) => judge::run(client, command, json),
        Command::Log { filter } => {
            let filter = client.log(filter.clone())?;
            if json {
                writeln!(
                    std::io::stdout(),
                    "{}",
                    serde_json::json!({ "filter": filter })
                )?;
            } else {
                writeln!(std::io::stdout(), "{filter}")?;
            }
            Ok(())
        }
    }
}

/// Returns all devices, or the named one.
fn chosen(client: &mut Client, name: Option<&str>) -> Result<Vec<Device>> {
    let mut devices = client.devices()?;
    if let Some(name) = name {
        devices.retain(|device| device.name == name);
        if devices.is_empty() {
            bail!("no device is named {name:?}");
        }
    }
    Ok(devices)
}

/// Returns the results of `ask` for each chosen device.
fn list_with<T>(
    client: &mut Client,
    choice: &Choice,
    ask: impl FnMut(&mut Client, &str) -> Result<Vec<T>>,
) -> Result<Vec<Of<T>>> {
    let devices = chosen(client, choice.device.as_deref())?.into_iter();
    list_of(client, devices.map(|device| device.name), ask)
}

/// Returns the results of `ask` for each of these names.
fn list_of<T>(
    client: &mut Client,
    names: impl IntoIterator<Item = String>,
    mut ask: impl FnMut(&mut Client, &str) -> Result<Vec<T>>,
) -> Result<Vec<Of<T>>> {
    let mut all = Vec::new();
    for device in names {
        let items = ask(client, &device).with_context(|| format!("device {device}"))?;
        all.extend(items.into_iter().map(|item| Of {
            device: device.clone(),
            item,
        }));
    }
    Ok(all)
}

/// Prints the results of `ask` for each chosen device.
fn list<T: Row + Serialize>(
    client: &mut Client,
    choice: &Choice,
    json: bool,
    ask: impl FnMut(&mut Client, &str) -> Result<Vec<T>>,
) -> Result<()> {
    print(&list_with(client, choice, ask)?, json)
}
