// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs perftest's and libibverbs' two-ended programs between VMs and reads their figures.

use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::lab::{Lab, SHORT};
use crate::report::Entry;
use crate::vm::{Device, Family, NAMES};

/// One end of a pair of programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    /// The VM.
    pub vm: String,
    /// Its RDMA device.
    pub device: Device,
    /// Index of the device's GID.
    pub gid: u32,
}

impl End {
    /// Creates an end in this VM.
    #[must_use]
    pub fn new(vm: &str, device: Device, gid: u32) -> Self {
        Self {
            vm: vm.to_owned(),
            device,
            gid,
        }
    }

    /// Waits for the RNICs of the two VMs, and returns an end for each. Fails if one does not come up.
    pub fn of_rnics(lab: &Lab) -> Result<[Self; 2]> {
        let [a, b] = NAMES;
        let gid = |vm| lab.wait_rdma(vm, Device::Vrnic);
        Ok([
            Self::new(a, Device::Vrnic, gid(a)?),
            Self::new(b, Device::Vrnic, gid(b)?),
        ])
    }
}

/// A program with a server and a client end.
#[derive(Debug, Clone)]
pub struct Pair {
    /// Such as `ib_write_bw`.
    pub program: String,
    /// Its arguments, without those for device, port and peer. The GID is only included if it is not the usual one.
    pub args: String,
    /// End of the client.
    pub client: End,
    /// End of the server.
    pub server: End,
    /// Whether the ends address each other by LIDs, without global routes. This is only for InfiniBand.
    pub by_lid: bool,
}

impl Pair {
    /// Creates a pair between two VMs, or in one if `server == client`, whose ends use their GIDs.
    #[must_use]
    pub fn new(program: &str, args: &str, client: End, server: End) -> Self {
        Self {
            program: program.to_owned(),
            args: args.to_owned(),
            client,
            server,
            by_lid: false,
        }
    }

    /// Returns whether it is one of libibverbs' own programs, of any release.
    fn is_pingpong(&self) -> bool {
        self.program.contains("_pingpong")
    }

    fn path(&self) -> &'static str {
        if self.server.vm == self.client.vm {
            "loopback"
        } else {
            "vm-vm"
        }
    }
}

/// Returns a TCP port for a pair: that of a previous pair may linger in TIME_WAIT. Tests use ports below these.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    21_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 9000
}

/// Number of attempts to run a program that did not get as far as using the device properly.
const TRIES: usize = 3;
/// perftest could not measure the rate of its clock because of a disturbance: every figure is 0.
const NO_CLOCK: &str = "Correlation coefficient";
/// perftest could not establish its own TCP connection, which it tries only once.
const NO_CONNECTION: &str = "Couldn't connect to";

/// Runs the pair and reads its figures. Errors are in the entry. perftest runs again if it could not measure the rate
/// of its clock.
#[must_use]
pub fn run(lab: &Lab, pair: &Pair, patience: Duration) -> Entry {
    run_unless(lab, pair, patience, &[NO_CLOCK])
}

/// Does the same as [`run`] on a wire that loses frames. It also runs again if the two ends could not connect over TCP,
/// which they use before they use the device.
#[must_use]
pub fn run_on_bad_wire(lab: &Lab, pair: &Pair, patience: Duration) -> Entry {
    run_unless(lab, pair, patience, &[NO_CLOCK, NO_CONNECTION])
}

/// Runs the pair, and repeats that if its error says nothing about the device.
fn run_unless(lab: &Lab, pair: &Pair, patience: Duration, excuses: &[&str]) -> Entry {
    let excused = |entry: &Entry| {
        let error = entry.error.as_deref().unwrap_or_default();
        excuses.iter().any(|excuse| error.contains(excuse))
    };
    let mut entry = run_once(lab, pair, patience);
    for _ in 1..TRIES {
        if !excused(&entry) {
            break;
        }
        entry = run_once(lab, pair, patience);
    }
    entry
}

fn run_once(lab: &Lab, pair: &Pair, patience: Duration) -> Entry {
    let device = pair.client.device;
    let start = Instant::now();
    let mut entry = Entry {
        program: pair.program.clone(),
        args: pair.args.clone(),
        device: device.name().to_owned(),
        path: pair.path().to_owned(),
        fabric: device.fabric(lab.settings.fabric).name().to_owned(),
        ..Entry::default()
    };
    match ends(lab, pair, patience) {
        Ok((server, client)) => {
            entry.exit = if client.code == 0 {
                server.code
            } else {
                client.code
            };
            if entry.exit == 0 {
                let read = if client.text().contains(NO_CLOCK) {
                    Err(anyhow!("the program could not tell the rate of its clock"))
                } else {
                    figures(pair, &client.stdout, &mut entry)
                };
                if let Err(error) = read {
                    entry.exit = 1;
                    entry.error = Some(format!("{error:#}: {}", client.text()));
                }
            } else {
                entry.error = Some(format!(
                    "client ({}): {}\nserver ({}): {}",
                    client.code,
                    client.text(),
                    server.code,
                    server.text()
                ));
            }
        }
        Err(error) => {
            entry.exit = 124;
            entry.error = Some(format!("{error:#}"));
        }
    }
    entry.seconds = start.elapsed().as_secs_f64();
    entry
}

/// Runs the pair for a VM test and returns the client's output.
///
/// # Errors
/// Either end failed or took longer than two minutes.
pub fn output(lab: &Lab, pair: &Pair) -> Result<String> {
    let (server, client) = ends(lab, pair, Duration::from_secs(120))?;
    if client.code != 0 || server.code != 0 {
        bail!(
            "client ({}): {}\nserver ({}): {}",
            client.code,
            client.text(),
            server.code,
            server.text()
        );
    }
    Ok(client.stdout)
}

/// Returns the command line of one end.
fn command(pair: &Pair, end: &End, port: u16, peer: Option<&str>) -> Vec<String> {
    let pingpong = pair.is_pingpong();
    let device = end.device.ibdev().into();
    let mut argv = vec![pair.program.clone(), "-d".into(), device];
    let choice = if pingpong { "-g" } else { "-x" };
    // perftest accepts no option twice.
    if !pair.by_lid && !pair.args.split_whitespace().any(|word| word == choice) {
        argv.extend([choice.into(), end.gid.to_string()]);
    }
    argv.extend(["-p".into(), port.to_string()]);
    if !pingpong {
        // Under TCG, the clock's rate differs from that in /proc/cpuinfo. This must not stop the program.
        argv.push("-F".into());
    }
    argv.extend(pair.args.split_whitespace().map(str::to_owned));
    argv.extend(peer.map(str::to_owned));
    argv
}

fn ends(
    lab: &Lab,
    pair: &Pair,
    patience: Duration,
) -> Result<(crate::agent::Output, crate::agent::Output)> {
    let port = port();
    let server_argv = command(pair, &pair.server, port, None);
    let server = lab.address(&pair.server.vm, Family::V4)?;
    let client_argv = command(pair, &pair.client, port, Some(&server));
    let server_agent = lab.agent(&pair.server.vm)?;
    let server = server_agent.start(
        &server_argv.iter().map(String::as_str).collect::<Vec<_>>(),
        &[],
    )?;
    // The client tries only once, so it starts when the server listens.
    if !server_agent.await_listener(port, &server, SHORT)? {
        let server = server.wait(Duration::from_secs(2));
        match server {
            Ok(output) => bail!(
                "the server ended with {} before it listened: {}",
                output.code,
                output.text()
            ),
            Err(error) => bail!("the server does not listen: {error:#}"),
        }
    }
    let client = lab.agent(&pair.client.vm)?.start(
        &client_argv.iter().map(String::as_str).collect::<Vec<_>>(),
        &[],
    )?;
    let client = client.wait(patience)?;
    // When the client has ended, the server has at most its summary to print. If the client failed, the server may wait
    // forever.
    let server = match server.wait(if client.code == 0 {
        Duration::from_secs(20)
    } else {
        Duration::from_secs(2)
    }) {
        Ok(output) => output,
        Err(error) if client.code == 0 => {
            return Err(error).context("the client succeeded, but the server did not end");
        }
        Err(error) => crate::agent::Output {
            code: 124,
            stdout: String::new(),
            stderr: format!("{error:#}"),
        },
    };
    Ok((server, client))
}

/// Reads the client's figures.
fn figures(pair: &Pair, text: &str, entry: &mut Entry) -> Result<()> {
    entry.qps = Some(option(&pair.args, "-q").unwrap_or(1));
    if pair.is_pingpong() {
        return pingpong(text, entry);
    }
    let mut lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with("#bytes"));
    let head = lines.next().context("no results table")?;
    let row: Vec<f64> = lines
        .next()
        .context("no row in the results table")?
        .split_whitespace()
        .map(|word| {
            word.parse()
                .with_context(|| format!("`{word}` is not a number"))
        })
        .collect::<Result<_>>()?;
    let cell = |index: usize| {
        row.get(index)
            .copied()
            .context("the results table is too short")
    };
    // The cast is of a message size that perftest printed as an integer.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let bytes = cell(0)? as u64;
    entry.bytes = Some(bytes);
    if head.contains("MsgRate[Mpps]") {
        let (bandwidth, rate) = (cell(3)? * f64::from(1 << 20), cell(4)? * 1e6);
        entry.messages_per_s = Some(rate);
        // Two decimals of MiB/s are too few for small messages; the rate has six.
        #[allow(clippy::cast_precision_loss)]
        let from_rate = rate * bytes as f64;
        entry.bandwidth_bytes_per_s = Some(if bandwidth < f64::from(1 << 20) {
            from_rate
        } else {
            bandwidth
        });
        if rate <= 0.0 {
            bail!("no message in the measured time");
        }
    } else if head.contains("t_typical") {
        entry.latency_min_us = Some(cell(2)?);
        entry.latency_typical_us = Some(cell(4)?);
        entry.latency_p99_us = row.get(7).copied();
    } else {
        bail!("unknown results table");
    }
    Ok(())
}

/// Parses lines such as `8192000 bytes in 0.05 seconds = 1310.72 Mbit/sec` and `1000 iters in 0.05 seconds = 50.00
/// usec/iter`.
fn pingpong(text: &str, entry: &mut Entry) -> Result<()> {
    let number = |line: &str| -> Result<f64> {
        let value = line
            .split('=')
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next())
            .context("no figure")?;
        Ok(value.parse()?)
    };
    let mbit = text
        .lines()
        .find(|line| line.contains("Mbit/sec"))
        .context("no bandwidth line")?;
    let iteration = text
        .lines()
        .find(|line| line.contains("usec/iter"))
        .context("no latency line")?;
    entry.bytes = Some(option(&entry.args, "-s").unwrap_or(4096));
    entry.bandwidth_bytes_per_s = Some(number(mbit)? * 1e6 / 8.0);
    // An iteration is a round trip.
    entry.latency_typical_us = Some(number(iteration)? / 2.0);
    Ok(())
}

/// Returns the value of an option in a string of arguments.
fn option<T: std::str::FromStr>(args: &str, name: &str) -> Option<T> {
    let mut words = args.split_whitespace();
    words.by_ref().find(|&word| word == name)?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]
 65536      1000             17.48              17.02              0.000272
---------------------------------------------------------------------------------------\n";
    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       1000          295.20         5120.10      1450.30     \t       1480.00        90.10   2100.00                 5120.10\n";
    const PINGPONG: &str = "\
  local address:  LID 0x0000, QPN 0x000011, PSN 0x1, GID ::ffff:10.77.0.1
8192000 bytes in 0.05 seconds = 1310.72 Mbit/sec
1000 iters in 0.05 seconds = 50.00 usec/iter\n";

    fn end(vm: &str, device: Device, gid: u32) -> End {
        End::new(vm, device, gid)
    }

    fn read(program: &str, args: &str, text: &str) -> Result<Entry> {
        let ends = ["a", "b"].map(|vm| end(vm, Device::Vrnic, 1));
        let [client, server] = ends;
        let pair = Pair::new(program, args, client, server);
        let mut entry = Entry {
            args: args.into(),
            ..Entry::default()
        };
        figures(&pair, text, &mut entry).map(|()| entry)
    }

    #[test]
    fn bandwidth_table() {
        let entry = read("ib_write_bw", "-s 65536 -q 3", BANDWIDTH).unwrap();
        assert_eq!((entry.bytes, entry.qps), (Some(65536), Some(3)));
        assert!((entry.bandwidth_bytes_per_s.unwrap() - 17.02 * 1_048_576.0).abs() < 1.0);
        assert!((entry.messages_per_s.unwrap() - 272.0).abs() < 1e-6);
    }

    #[test]
    fn latency_table() {
        let entry = read("ib_send_lat", "-s 8", LATENCY).unwrap();
        assert_eq!(entry.latency_typical_us, Some(1450.3));
        assert_eq!(entry.latency_min_us, Some(295.2));
        assert_eq!(entry.latency_p99_us, Some(2100.0));
    }

    #[test]
    fn pingpong_lines() {
        let entry = read("ibv_rc_pingpong", "-n 1000", PINGPONG).unwrap();
        assert_eq!(entry.latency_typical_us, Some(25.0));
        assert_eq!(entry.bandwidth_bytes_per_s, Some(163.84e6));
    }

    #[test]
    fn no_table_is_an_error() {
        assert!(read("ib_write_bw", "", "Couldn't connect to 10.77.0.2:18600\n").is_err());
        assert!(read("ibv_rc_pingpong", "", "").is_err());
        let nothing = BANDWIDTH
            .replace("17.02", "0.00")
            .replace("0.000272", "0.000000");
        assert!(read("ib_write_bw", "", &nothing).is_err());
    }

    #[test]
    fn command_lines() {
        let ends = (end("a", Device::Vrnic, 1), end("b", Device::Rxe, 2));
        let pair = Pair::new("ib_read_bw", "-s 64", ends.0, ends.1);
        assert_eq!(
            command(&pair, &pair.client, 7, Some("10.77.0.2")).join(" "),
            "ib_read_bw -d vrnic0 -x 1 -p 7 -F -s 64 10.77.0.2"
        );
        let pair = Pair {
            program: "ibv_rc_pingpong".into(),
            args: "-n 5".into(),
            ..pair
        };
        assert_eq!(
            command(&pair, &pair.server, 7, None).join(" "),
            "ibv_rc_pingpong -d rxe0 -g 2 -p 7 -n 5"
        );
        let pair = Pair {
            by_lid: true,
            ..pair
        };
        assert_eq!(
            command(&pair, &pair.client, 7, Some("10.77.0.2")).join(" "),
            "ibv_rc_pingpong -d vrnic0 -p 7 -n 5 10.77.0.2"
        );
    }
}
