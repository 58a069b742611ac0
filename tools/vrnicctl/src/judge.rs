// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl judge`: reports how another RNIC behaves when packets are lost, repeated, refused or marked.
//!
//! vrnic is the other end of that RNIC's connections: it causes the faults and captures the packets.

mod conduct;
mod packet;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use serde::Serialize;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;

use conduct::{Finding, Judgement};
use packet::Trace;

/// How long packets may still arrive after the program has ended.
const SETTLE: Duration = Duration::from_millis(200);

#[derive(Subcommand)]
pub enum Command {
    /// Run a program between a device and a peer once for each experiment, inject the experiment's fault into the
    /// device meanwhile, and report how the peer behaves. Requires `faults = true` in vrnicd's configuration. The
    /// program gets the environment variables VRNIC_JUDGE_OPERATION (write, send, read or atomic: the requests to
    /// send) and VRNIC_JUDGE_REQUESTER (`peer` or `device`: which side sends them).
    Run {
        /// The device.
        #[arg(long, short, value_name = "NAME")]
        device: String,
        /// Address of the peer, as in its GID.
        #[arg(long, short, value_name = "ADDRESS")]
        peer: IpAddr,
        /// The peer's local ACK timeout field: 4.096 µs times 2 to the N.
        #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u8).range(1..32))]
        ack_timeout: Option<u8>,
        /// Directory for the captures and report.json.
        #[arg(long, short, value_name = "DIRECTORY", default_value = "judge")]
        out: PathBuf,
        /// Only experiments whose names contain this word.
        #[arg(long, value_name = "WORD")]
        only: Option<String>,
        /// The program and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// Report how a peer behaves in captures of a device that communicates with it.
    Captures {
        /// Address of the peer, as in its GID.
        #[arg(long, short, value_name = "ADDRESS")]
        peer: IpAddr,
        /// The peer's local ACK timeout field: 4.096 µs times 2 to the N.
        #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u8).range(1..32))]
        ack_timeout: Option<u8>,
        /// Below each line, list the packets that show it, and this many other packets before and after each.
        #[arg(long, value_name = "N")]
        packets: Option<usize>,
        /// pcapng files.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List the experiments.
    Experiments,
}

/// An experiment: traffic, and a fault that disturbs it.
#[derive(Serialize)]
struct Experiment {
    name: &'static str,
    /// The side that sends the requests.
    requester: &'static str,
    operation: &'static str,
    /// Description of a fault on the local device.
    fault: Option<&'static str>,
    about: &'static str,
}

const PEER: &str = "peer";
const DEVICE: &str = "device";

const fn experiment(
    name: &'static str,
    requester: &'static str,
    operation: &'static str,
    fault: Option<&'static str>,
    about: &'static str,
) -> Experiment {
    Experiment {
        name,
        requester,
        operation,
        fault,
        about,
    }
}

/// All experiments. A fault on incoming packets strikes what the peer sends.
const EXPERIMENTS: &[Experiment] = &[
    experiment(
        "peer-writes",
        PEER,
        "write",
        None,
        "The peer writes, and nothing goes wrong.",
    ),
    experiment(
        "peer-sends",
        PEER,
        "send",
        None,
        "The peer sends, and nothing goes wrong.",
    ),
    experiment(
        "peer-reads",
        PEER,
        "read",
        None,
        "The peer reads, and nothing goes wrong.",
    ),
    experiment(
        "peer-loses-write",
        PEER,
        "write",
        Some("drop type=rc dir=in opcode=write nth=20"),
        "A packet of the peer's writes is lost.",
    ),
    experiment(
        "peer-loses-burst",
        PEER,
        "write",
        Some("drop type=rc dir=in opcode=write nth=20 burst=8"),
        "Eight packets of the peer's writes are lost.",
    ),
    experiment(
        "peer-loses-atomic-answers",
        PEER,
        "atomic",
        Some("lost-atomic-ack type=rc nth=5 burst=2"),
        "The answer to an atomic is lost twice: the peer's ACK timer has to expire.",
    ),
    experiment(
        "peer-loses-read-response",
        PEER,
        "read",
        Some("lost-read-response type=rc nth=12"),
        "A packet of a response to the peer's read is lost.",
    ),
    experiment(
        "peer-loses-acks",
        PEER,
        "write",
        Some("lost-ack type=rc every=2 count=all"),
        "Every other ACK to the peer is lost.",
    ),
    experiment(
        "peer-gets-acks-twice",
        PEER,
        "write",
        Some("duplicate type=rc opcode=ack every=2 count=all"),
        "Every other ACK comes to the peer twice.",
    ),
    experiment(
        "peer-gets-rnr-naks",
        PEER,
        "send",
        Some("rnr-nak type=rc nth=3 count=3"),
        "The peer is told that no receive is posted.",
    ),
    experiment(
        "peer-gets-wrong-nak",
        PEER,
        "write",
        Some("nak-sequence type=rc opcode=write nth=20"),
        "The peer gets a NAK for a gap that does not exist.",
    ),
    experiment(
        "peer-gets-cnps",
        PEER,
        "write",
        Some("ecn-mark type=rc dir=in nth=250 count=all"),
        "The peer's packets are marked as congested, and our device sends CNPs.",
    ),
    experiment(
        "device-writes",
        DEVICE,
        "write",
        None,
        "Our device writes, and nothing goes wrong.",
    ),
    experiment(
        "device-sends",
        DEVICE,
        "send",
        None,
        "Our device sends, and nothing goes wrong.",
    ),
    experiment(
        "device-reads",
        DEVICE,
        "read",
        None,
        "Our device reads, and nothing goes wrong.",
    ),
    experiment(
        "device-loses-write",
        DEVICE,
        "write",
        Some("lost-request type=rc opcode=write nth=20"),
        "A packet of our writes is lost.",
    ),
    experiment(
        "device-loses-burst",
        DEVICE,
        "write",
        Some("lost-request type=rc opcode=write nth=20 burst=8"),
        "Eight packets of our writes are lost.",
    ),
    experiment(
        "device-writes-out-of-order",
        DEVICE,
        "write",
        Some("reorder type=rc opcode=write nth=20"),
        "A packet of our writes is overtaken by the next ones.",
    ),
    experiment(
        "device-writes-twice",
        DEVICE,
        "write",
        Some("duplicate type=rc opcode=write every=5 count=all"),
        "Every fifth packet of our writes comes to the peer twice.",
    ),
    experiment(
        "device-reads-twice",
        DEVICE,
        "read",
        Some("duplicate type=rc opcode=read-request every=5 count=all"),
        "Every fifth read request comes to the peer twice.",
    ),
    experiment(
        "device-repeats-atomics",
        DEVICE,
        "atomic",
        Some("duplicate-atomic type=rc every=3 count=all"),
        "Every third atomic comes to the peer twice.",
    ),
    experiment(
        "device-writes-marked",
        DEVICE,
        "write",
        Some("ecn-mark type=rc opcode=write"),
        "Our packets come to the peer marked as congested.",
    ),
];

/// The result of an experiment or a capture.
#[derive(Serialize)]
struct Outcome {
    /// Name of the experiment, or of the file.
    name: String,
    /// Description of the experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    about: Option<&'static str>,
    /// The fault, if one was armed.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<&'static str>,
    /// How many times it fired.
    #[serde(skip_serializing_if = "Option::is_none")]
    fired: Option<u64>,
    /// Why the program failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
    capture: PathBuf,
    findings: Vec<Finding>,
}

impl Outcome {
    /// Judges a peer by a capture.
    fn of(name: &str, capture: &Path, peer: IpAddr, ack_timeout: Option<u8>) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            about: None,
            fault: None,
            fired: None,
            failed: None,
            capture: capture.to_owned(),
            findings: conduct::judge(&Trace::read(capture, peer)?, ack_timeout),
        })
    }
}

/// Runs a command that needs no daemon. Returns `None` if `command` needs one.
pub fn without_daemon(command: &Command, json: bool) -> Option<Result<()>> {
    match command {
        Command::Experiments => Some(list(json)),
        Command::Captures {
            peer,
            ack_timeout,
            packets,
            files,
        } => Some(captures(*peer, *ack_timeout, *packets, files, json)),
        Command::Run { .. } => None,
    }
}

/// Runs a command that needs a daemon.
pub fn run(client: &mut Client, command: &Command, json: bool) -> Result<()> {
    let Command::Run {
        device,
        peer,
        ack_timeout,
        out,
        only,
        command,
    } = command
    else {
        return Ok(());
    };
    let wanted = |one: &&Experiment| only.as_deref().is_none_or(|word| one.name.contains(word));
    let chosen: Vec<_> = EXPERIMENTS.iter().filter(wanted).collect();
    if chosen.is_empty() {
        bail!("no experiment has such a name; `vrnicctl judge experiments` lists all");
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let mut outcomes = Vec::new();
    for experiment in chosen {
        let _ = writeln!(
            std::io::stderr(),
            "{}: {}",
            experiment.name,
            experiment.about
        );
        let capture = out.join(format!("{}.pcapng", experiment.name));
        let mut outcome = perform(client, device, experiment, command, &capture)?;
        outcome.findings = conduct::judge(&Trace::read(&capture, *peer)?, *ack_timeout);
        outcomes.push(outcome);
    }
    let report = out.join("report.json");
    let file =
        File::create(&report).with_context(|| format!("cannot write {}", report.display()))?;
    serde_json::to_writer_pretty(file, &outcomes)?;
    show(&outcomes, json, None)
}

/// Runs the program under a fault and captures the packets.
fn perform(
    client: &mut Client,
    device: &str,
    experiment: &Experiment,
    command: &[String],
    capture: &Path,
) -> Result<Outcome> {
    let (program, arguments) = command.split_first().context("name a program to run")?;
    let choice = Choice {
        device: Some(device.to_owned()),
        ..Choice::default()
    };
    let file =
        File::create(capture).with_context(|| format!("cannot write {}", capture.display()))?;
    let name = std::path::absolute(capture)?.display().to_string();
    let running = client.start_capture(choice, &name, file.as_fd())?;
    let armed = experiment.fault.map(|fault| {
        client
            .add_fault(device, fault)
            .with_context(|| fault.to_owned())
    });
    // Whatever the result, the fault and the capture are ended below.
    let status = match &armed {
        Some(Err(_)) => None,
        _ => Some(
            process::Command::new(program)
                .args(arguments)
                .env("VRNIC_JUDGE_OPERATION", experiment.operation)
                .env("VRNIC_JUDGE_REQUESTER", experiment.requester)
                .stdin(process::Stdio::null())
                .stdout(process::Stdio::null())
                .status()
                .with_context(|| format!("cannot run {program}")),
        ),
    };
    std::thread::sleep(SETTLE);
    let mut fired = None;
    if let Some(Ok(id)) = armed {
        let known = client.faults(device)?;
        fired = known
            .iter()
            .find(|fault| fault.id == id)
            .map(|fault| fault.fired);
        client.clear_faults(device, Some(id))?;
    }
    client.stop_capture(running.id)?;
    if let Some(Err(error)) = armed {
        return Err(error);
    }
    let status = status.context("the program was not started")??;
    if fired == Some(0) {
        bail!(
            "experiment {}: the fault never fired: is this the device that the program uses, does the program obey \
             VRNIC_JUDGE_OPERATION and VRNIC_JUDGE_REQUESTER, and does it send enough? The fault is `{}`",
            experiment.name,
            experiment.fault.unwrap_or_default()
        );
    }
    Ok(Outcome {
        name: experiment.name.to_owned(),
        about: Some(experiment.about),
        fault: experiment.fault,
        fired,
        failed: (!status.success()).then(|| format!("the program ended with {status}")),
        capture: capture.to_owned(),
        findings: Vec::new(),
    })
}

/// Judges existing captures.
fn captures(
    peer: IpAddr,
    ack_timeout: Option<u8>,
    packets: Option<usize>,
    files: &[PathBuf],
    json: bool,
) -> Result<()> {
    let mut outcomes = Vec::new();
    for file in files {
        let name = file.display().to_string();
        outcomes.push(Outcome::of(&name, file, peer, ack_timeout)?);
    }
    show(&outcomes, json, packets.map(|around| (peer, around)))
}

fn list(json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, EXPERIMENTS)?;
        writeln!(out)?;
        return Ok(());
    }
    for one in EXPERIMENTS {
        writeln!(out, "{:28}{}", one.name, one.about)?;
        writeln!(out, "{:28}{}", "", one.fault.unwrap_or("no fault"))?;
    }
    Ok(())
}

/// Prints outcomes. With `listed`, also prints the packets of that peer that show each finding, with that many packets
/// around each.
fn show(outcomes: &[Outcome], json: bool, listed: Option<(IpAddr, usize)>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, outcomes)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", in_words(outcomes, listed)?)?;
    }
    Ok(())
}

/// Describes outcomes, and packets as for [`show`].
fn in_words(outcomes: &[Outcome], listed: Option<(IpAddr, usize)>) -> Result<String> {
    let mut out = String::new();
    for outcome in outcomes {
        writeln!(
            out,
            "{}{}",
            outcome.name,
            outcome
                .about
                .map_or(String::new(), |text| format!(": {text}"))
        )?;
        if let Some(failed) = &outcome.failed {
            writeln!(out, "  {failed}")?;
        }
        for finding in &outcome.findings {
            let word = match finding.judgement {
                Judgement::Violation => "VIOLATION: ",
                Judgement::Remark => "remark: ",
                Judgement::Observed => "",
            };
            let mut source = Vec::new();
            if !finding.clause.is_empty() {
                source.push(finding.clause.to_owned());
            }
            if !finding.packets.is_empty() {
                let numbers: Vec<_> = finding.packets.iter().map(usize::to_string).collect();
                source.push(format!("packets {}", numbers.join(", ")));
            }
            let source = if source.is_empty() {
                String::new()
            } else {
                format!(" [{}]", source.join("; "))
            };
            writeln!(out, "  {}: {word}{}{source}", finding.topic, finding.text)?;
            if let Some((peer, around)) = listed {
                out += &packet::listing(&outcome.capture, peer, &finding.packets, around)?;
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The captures of Documentation/captures show what Documentation/judge.rst says about them.
    #[test]
    fn the_captures_of_soft_roce_show_what_the_guide_says() {
        let documentation = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Documentation");
        let guide = fs::read_to_string(documentation.join("judge.rst")).unwrap();
        let (peer, ack_timeout) = ("10.77.0.2".parse().unwrap(), Some(17));
        let entries = fs::read_dir(documentation.join("captures/soft-roce")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        for file in &files {
            let name = file.file_name().unwrap().to_str().unwrap().to_owned();
            let outcome = Outcome::of(&name, file, peer, ack_timeout).unwrap();
            assert!(!outcome.findings.is_empty(), "{name}");
            let experiment = name.trim_end_matches(".pcapng");
            assert!(
                EXPERIMENTS.iter().any(|one| one.name == experiment),
                "{name}"
            );
            for line in in_words(&[outcome], None).unwrap().lines() {
                // The guide breaks long lines.
                let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
                assert!(words(&guide).contains(&words(line)), "{name}: {line}");
            }
        }
        assert!(files.len() >= 6);
    }
}
