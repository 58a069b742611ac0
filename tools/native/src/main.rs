// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Measures a vrnicd without VMs.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use vrnic_native::bench::{self, Operation, Options};
use vrnic_native::daemon::Fabric;
use vrnic_native::table;

/// Measures vrnicd without VMs: this program plays the guests itself.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The vrnicd to measure; default: the one in the directory of this program
    #[arg(long, global = true)]
    vrnicd: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measure everything, and compare it with the best that the machine can do
    Bench {
        /// Measure only this fabric
        #[arg(long)]
        fabric: Option<FabricName>,
        /// Measure only this part: latency, rate, bandwidth, counters, objects, watched, neighbours, faults or
        /// pairs
        #[arg(long, default_value = "")]
        only: String,
        /// Milliseconds per figure
        #[arg(long, default_value_t = 400)]
        time: u64,
        /// Write the figures to this file, as JSON
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Keep vrnicd busy with one kind of message, to profile it
    Load {
        /// Fabric that carries the messages
        #[arg(long, default_value = "local")]
        fabric: FabricName,
        /// Kind of message
        #[arg(long, default_value = "write")]
        operation: OperationName,
        /// Bytes of a message; default: 2. Those of an atomic are always 8
        #[arg(long)]
        bytes: Option<usize>,
        /// Queue pairs
        #[arg(long, default_value_t = 32)]
        qps: usize,
        /// Requests that are posted together; only the last one gets a completion
        #[arg(long, default_value_t = 16)]
        batch: u32,
        /// How long, in seconds
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Keep two vrnicd busy with packets that they exchange by UDP. `tools/native/over-udp.sh` makes a network and runs
    /// this
    OverUdp {
        /// Addresses of the two hosts
        #[arg(long, required = true, num_args = 2, value_names = ["FROM", "TO"])]
        hosts: Vec<IpAddr>,
        /// Program that starts the second vrnicd, for example in another network namespace; default: the first vrnicd
        #[arg(long)]
        other: Option<PathBuf>,
        /// Kind of message
        #[arg(long, default_value = "write")]
        operation: OperationName,
        /// Bytes of a message; default: 65536. Those of an atomic are always 8
        #[arg(long)]
        bytes: Option<usize>,
        /// Queue pairs
        #[arg(long, default_value_t = 1)]
        qps: usize,
        /// How long, in seconds
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
    /// Keep vrnicd busy with round trips of 8-byte writes, to profile it
    RoundTrips {
        /// Fabric that carries the messages
        #[arg(long, default_value = "local")]
        fabric: FabricName,
        /// How long, in seconds
        #[arg(long, default_value_t = 5)]
        seconds: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum FabricName {
    Local,
    Roce,
    Infiniband,
}

impl From<FabricName> for Fabric {
    fn from(name: FabricName) -> Self {
        match name {
            FabricName::Local => Self::Local,
            FabricName::Roce => Self::Roce,
            FabricName::Infiniband => Self::Infiniband,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum OperationName {
    Write,
    Read,
    Send,
    Atomic,
}

impl OperationName {
    /// Returns how many bytes a message has.
    fn bytes(self, asked: Option<usize>, default: usize) -> Result<usize> {
        match (self, asked) {
            (Self::Atomic, None | Some(8)) => Ok(8),
            (Self::Atomic, Some(_)) => bail!("an atomic operation has 8 bytes: leave out --bytes"),
            (_, asked) => Ok(asked.unwrap_or(default)),
        }
    }
}

impl From<OperationName> for Operation {
    fn from(name: OperationName) -> Self {
        match name {
            OperationName::Write => Self::Write,
            OperationName::Read => Self::Read,
            OperationName::Send => Self::Send,
            OperationName::Atomic => Self::Atomic,
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let program = match arguments.vrnicd {
        Some(program) => program,
        None => std::env::current_exe()?.with_file_name("vrnicd"),
    };
    let ready = |pid: u32| eprintln!("vrnicd has the PID {pid}");
    match arguments.command {
        Command::Bench {
            fabric,
            only,
            time,
            json,
        } => {
            let options = Options {
                program,
                fabrics: match fabric {
                    Some(fabric) => vec![fabric.into()],
                    None => Fabric::ALL.to_vec(),
                },
                time: Duration::from_millis(time),
                only,
            };
            let report = bench::run(&options, |figure| eprintln!("{}", table::line(figure)))?;
            if let Some(json) = json {
                let text = serde_json::to_string_pretty(&report)? + "\n";
                std::fs::write(&json, text).with_context(|| json.display().to_string())?;
            }
            print!("{}", table::tables(&report));
        }
        Command::Load {
            fabric,
            operation,
            bytes,
            qps,
            batch,
            seconds,
        } => {
            let load = bench::Busy {
                operation: operation.into(),
                bytes: operation.bytes(bytes, 2)?,
                qps,
                batch,
            };
            let time = Duration::from_secs(seconds);
            let (best, median) = bench::keep_busy(&program, fabric.into(), load, time, ready)?;
            println!(
                "{best:.0} messages/s in the best window, {median:.0} in the median one; {:.1} ns each",
                1e9 / best
            );
        }
        Command::OverUdp {
            hosts,
            other,
            operation,
            bytes,
            qps,
            seconds,
        } => {
            let bytes = operation.bytes(bytes, 65536)?;
            let busy = bench::Busy {
                operation: operation.into(),
                bytes,
                qps,
                batch: 1,
            };
            let programs = [&program, other.as_ref().unwrap_or(&program)];
            let time = Duration::from_secs(seconds);
            let hosts = [hosts[0], hosts[1]];
            let (best, median) =
                bench::over_udp(programs.map(PathBuf::as_path), hosts, busy, time)?;
            let gigabit = 8e-9 * f64::from(u32::try_from(bytes)?);
            println!(
                "{:.2} Gbit/s in the best window, {:.2} in the median one",
                best * gigabit,
                median * gigabit
            );
        }
        Command::RoundTrips { fabric, seconds } => {
            let time = Duration::from_secs(seconds);
            let (best, median) = bench::round_trips(&program, fabric.into(), time, ready)?;
            println!("{best:.0} ns in the best window, {median:.0} in the median one");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_atomic_has_eight_bytes() {
        assert_eq!(OperationName::Atomic.bytes(None, 2).ok(), Some(8));
        assert_eq!(OperationName::Atomic.bytes(Some(8), 2).ok(), Some(8));
        assert!(OperationName::Atomic.bytes(Some(2), 2).is_err());
        assert_eq!(OperationName::Write.bytes(None, 2).ok(), Some(2));
        assert_eq!(OperationName::Write.bytes(Some(9), 2).ok(), Some(9));
    }
}
