// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Arms, lists, clears and explains faults.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use roff::{Roff, bold, italic, roman};
use serde::Serialize;
use vrnic_engine::fault::{
    Kind,
    table::{GROUPS, Group},
};
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Fault, Firing, PORT};

use crate::scenario::play::{Daemon, PhaseOutcome};
use crate::scenario::{self, Scenario};
use crate::table::{Row, print};

#[derive(Subcommand)]
pub enum Command {
    /// Arm a fault on a device and print its number, for example: `vrnicctl fault add -d a drop opcode=ack nth=3`.
    /// Requires `faults = true` in vrnicd's configuration.
    Add {
        /// The device, or `port:NAME` for a port of the switch. A port can have faults of packets. They affect all RoCE
        /// packets that pass it, including those of Soft-RoCE; `dir=out` selects packets that come from the machine or
        /// network connected to the port.
        #[arg(long, short, value_name = "NAME")]
        device: String,
        /// Name of the fault, then KEY=VALUE pairs that select where and when it fires and what it does. See `vrnicctl
        /// fault explain NAME`.
        #[arg(required = true, value_name = "FAULT")]
        fault: Vec<String>,
    },
    /// List the armed faults and the last finished ones.
    List(Where),
    /// Clear one fault, or all. This also ends a lasting fault, such as a link that is down.
    Clear {
        #[command(flatten)]
        place: Where,
        /// Number of the fault; requires --device. Without a number, clear all faults.
        #[arg(requires = "device")]
        id: Option<u64>,
    },
    /// List when faults fired. Covers the last 4096 times on each device and port.
    Log(Where),
    /// Play scenarios: files that arm faults in phases, wait for conditions, and check the result. Fails if a result
    /// is not as expected. At the end, or when interrupted, clears the faults that a scenario armed and brings up the
    /// links that it took down.
    Run {
        /// Scenario files. Documentation/faults.rst describes the format.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List all faults. With a name, describe that fault: what it does, what causes it in practice, what the standard
    /// says, what a program sees, and which keys you can use.
    Explain {
        /// Name of the fault.
        name: Option<String>,
    },
}

/// Selects the devices and ports whose faults are meant.
#[derive(Args)]
pub struct Where {
    /// Only this device, or this port of the switch: `port:NAME`.
    #[arg(long, short, value_name = "NAME")]
    device: Option<String>,
}

impl Where {
    /// Returns the names of the devices and ports.
    fn names(&self, client: &mut Client) -> Result<Vec<String>> {
        if let Some(name) = &self.device {
            return Ok(vec![name.clone()]);
        }
        let devices = client.devices()?.into_iter().map(|device| device.name);
        let ports = client.switch()?.into_iter();
        let ports = ports.map(|port| format!("{PORT}{}", port.name));
        Ok(devices.chain(ports).collect())
    }

    /// Prints the results of `ask` for each of them.
    fn list<T: Row + Serialize>(
        &self,
        client: &mut Client,
        json: bool,
        ask: impl FnMut(&mut Client, &str) -> Result<Vec<T>>,
    ) -> Result<()> {
        let names = self.names(client)?;
        print(&crate::list_of(client, names, ask)?, json)
    }
}

/// What `explain` tells about a kind of fault.
#[derive(Serialize)]
struct Known {
    name: &'static str,
    group: &'static str,
    /// Whether a port of the switch can have it.
    ports: bool,
    preset: &'static str,
    does: &'static str,
    in_practice: &'static str,
    standard: &'static str,
    program: &'static str,
    keys: Vec<Word>,
}

/// A word of fault descriptions.
#[derive(Serialize)]
struct Word {
    key: &'static str,
    value: &'static str,
    meaning: &'static str,
}

impl Known {
    fn new(group: &Group, kind: &'static Kind) -> Self {
        let word = |key: &'static vrnic_engine::fault::spec::Key| Word {
            key: key.name,
            value: key.value,
            meaning: key.text,
        };
        Self {
            name: kind.name,
            group: group.name,
            ports: kind.fits_ports(),
            preset: kind.preset,
            does: kind.summary,
            in_practice: kind.hardware,
            standard: kind.standard,
            program: kind.program,
            keys: kind.keys().map(word).collect(),
        }
    }
}

impl Known {
    /// Describes where the fault can be armed.
    fn place(&self) -> &'static str {
        if self.ports {
            "A device, or a port of the switch."
        } else {
            "A device."
        }
    }
}

impl Row for Known {
    const HEADS: &'static [&'static str] = &["ABOUT", "FAULT", "WHAT IT DOES"];

    fn cells(&self) -> Vec<String> {
        vec![self.group.into(), self.name.into(), self.does.into()]
    }
}

impl Row for Fault {
    const HEADS: &'static [&'static str] = &["DEVICE", "ID", "STATE", "SEEN", "FIRED", "FAULT"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.progress.clone(),
            self.seen.to_string(),
            self.fired.to_string(),
            self.fault.clone(),
        ]
    }
}

impl Row for Firing {
    const HEADS: &'static [&'static str] = &[
        "DEVICE", "SECONDS", "ID", "FAULT", "POSITION", "QP", "PEER", "CQ", "PSN", "WHAT",
    ];

    fn cells(&self) -> Vec<String> {
        let number = |number: u32| match number {
            0 => "-".to_owned(),
            number => number.to_string(),
        };
        let (seconds, rest) = (
            self.nanoseconds / 1_000_000_000,
            self.nanoseconds % 1_000_000_000,
        );
        vec![
            format!("{seconds}.{:06}", rest / 1000),
            self.id.to_string(),
            self.name.clone(),
            self.position.to_string(),
            number(self.qpn),
            number(self.peer_qpn),
            number(self.cqn),
            self.psn.map_or_else(|| "-".into(), |psn| psn.to_string()),
            self.what.clone(),
        ]
    }
}

/// Runs all commands except [`Command::Explain`].
pub fn run(client: &mut Client, command: &Command, json: bool) -> Result<()> {
    match command {
        Command::Add { device, fault } => {
            let id = client.add_fault(device, &fault.join(" "))?;
            tell(json, &id.to_string(), &serde_json::json!({ "id": id }))
        }
        Command::List(place) => place.list(client, json, Client::faults),
        Command::Clear { place, id } => {
            let mut count = 0;
            for name in place.names(client)? {
                count += client.clear_faults(&name, *id)?;
            }
            tell(
                json,
                &count.to_string(),
                &serde_json::json!({ "cleared": count }),
            )
        }
        Command::Log(place) => place.list(client, json, Client::fault_log),
        Command::Run { files } => play(client, files, json),
        Command::Explain { name } => explain(name.as_deref(), json),
    }
}

/// The result of a scenario.
#[derive(Serialize)]
struct Played<'a> {
    scenario: &'a Path,
    about: &'a str,
    good: bool,
    phases: Vec<PhaseOutcome>,
}

/// Plays scenarios one after the other.
fn play(client: &mut Client, files: &[PathBuf], json: bool) -> Result<()> {
    // Reads all of them before the first one starts.
    let scenarios = files.iter().map(|file| Scenario::read(file));
    let scenarios: Vec<Scenario> = scenarios.collect::<Result<_>>()?;
    let mut out = std::io::stdout();
    let mut stage = Daemon::new(client)?;
    let mut all = Vec::new();
    for (file, scenario) in files.iter().zip(&scenarios) {
        if !json {
            writeln!(out, "{}: {}", file.display(), scenario.about)?;
        }
        let mut phases = Vec::new();
        let good = scenario::play::play(scenario, &mut stage, |phase| {
            if !json {
                write!(out, "{}", in_words(&phase))?;
            }
            phases.push(phase);
            Ok(())
        })
        .with_context(|| file.display().to_string())?;
        all.push(Played {
            scenario: file,
            about: &scenario.about,
            good,
            phases,
        });
    }
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
    }
    let bad = all.iter().filter(|played| !played.good).count();
    if bad > 0 {
        bail!("{bad} of {} scenarios failed", all.len());
    }
    Ok(())
}

/// Describes the outcome of a phase.
fn in_words(outcome: &PhaseOutcome) -> String {
    let verdict = if outcome.is_good() { "ok" } else { "FAILED" };
    let mut text = format!(
        "  {verdict:<7} {} ({:.1} s)\n",
        outcome.phase, outcome.seconds
    );
    for (id, device, fault) in &outcome.armed {
        let _ = writeln!(text, "          armed {id} on {device}: {fault}");
    }
    for finding in &outcome.findings {
        let mark = if finding.holds { "yes" } else { "NO " };
        let on = match finding.device.as_str() {
            "" => String::new(),
            device => format!(" on {device}"),
        };
        let _ = writeln!(
            text,
            "          {mark} {}{on} (found {})",
            finding.condition, finding.found
        );
    }
    text
}

/// Writes the page vrnic-faults(7): every fault, and every word of descriptions.
pub fn write_manual(directory: &Path) -> Result<()> {
    let pages = directory.join("man7");
    std::fs::create_dir_all(&pages).with_context(|| format!("making {}", pages.display()))?;
    let path = pages.join("vrnic-faults.7");
    std::fs::write(&path, manual()).with_context(|| format!("writing {}", path.display()))
}

/// Returns the page vrnic-faults(7).
fn manual() -> String {
    let mut page = Roff::new();
    page.control("TH", ["vrnic-faults", "7"]);
    page.control("SH", ["NAME"]);
    page.text([roman(
        "vrnic-faults - fault injection in vrnic's RDMA devices",
    )]);
    page.control("SH", ["SYNOPSIS"]);
    page.text([
        bold("vrnicctl fault add -d"),
        roman(" DEVICE|port:PORT NAME [KEY=VALUE]..."),
    ]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "To arm a fault, give its name and KEY=VALUE pairs that select where and when it fires and what it does. Keys \
         that you leave out have the values of the fault's preset. The section KEYS describes each key. To allow \
         faults, set faults = true in vrnicd's configuration.",
    )]);
    page.control("PP", []);
    page.text([roman(
        "Faults that change packets can also be armed on a port of the switch. They affect all RoCE packets that pass \
         the port, including those of Soft-RoCE. A packet is outgoing if it comes from the machine or network that is \
         connected to the port, and incoming if it goes there. Packets of a connection do not contain the number of \
         the queue pair that sent them. For these packets, the key qp matches only incoming ones, and the key peer \
         only outgoing ones. The keys state, context, process and pid work only on devices.",
    )]);
    for group in GROUPS {
        page.control("SH", [group.name.to_uppercase().as_str()]);
        for kind in group.kinds {
            let known = Known::new(group, kind);
            page.control("SS", [known.name]);
            page.text([roman(known.does)]);
            for (what, text) in [
                ("In practice:", known.in_practice),
                ("The standard:", known.standard),
                ("A program sees:", known.program),
                ("Where:", known.place()),
                ("Preset:", known.preset),
            ] {
                if !text.is_empty() {
                    page.control("PP", []);
                    page.text([italic(what), roman(" "), roman(text)]);
                }
            }
            let words: Vec<&str> = known.keys.iter().map(|word| word.key).collect();
            page.control("PP", []);
            page.text([italic("Keys:"), roman(" "), roman(words.join(", "))]);
        }
    }
    page.control("SH", ["KEYS"]);
    for key in vrnic_engine::fault::spec::KEYS {
        page.control("TP", []);
        page.text([bold(format!("{}=", key.name)), italic(key.value)]);
        page.text([roman(key.text)]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("vrnicctl-fault"),
        roman("(1), "),
        bold("vrnicd"),
        roman("(8)"),
    ]);
    page.to_roff()
}

fn tell(json: bool, text: &str, value: &serde_json::Value) -> Result<()> {
    let mut out = std::io::stdout();
    if json {
        writeln!(out, "{value}")?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

/// Explains one kind of fault, or lists all kinds.
pub fn explain(name: Option<&str>, json: bool) -> Result<()> {
    let all = GROUPS
        .iter()
        .flat_map(|group| group.kinds.iter().map(move |kind| Known::new(group, kind)));
    let known: Vec<Known> = all
        .filter(|known| name.is_none_or(|name| known.name == name))
        .collect();
    let Some(name) = name else {
        return print(&known, json);
    };
    let [one] = &known[..] else {
        bail!("no fault is called {name:?}; `vrnicctl fault explain` lists all");
    };
    if json {
        return print(&known, true);
    }
    let mut text = format!(
        "{name}\n  {}\n\nCause in practice\n  {}\n\nThe standard\n  {}\n\nA program sees\n  {}\n\nWhere\n  {}\n\n",
        one.does,
        one.in_practice,
        one.standard,
        one.program,
        one.place()
    );
    if !one.preset.is_empty() {
        writeln!(text, "Preset\n  {}\n", one.preset)?;
    }
    writeln!(text, "Keys")?;
    for Word {
        key,
        value,
        meaning,
    } in &one.keys
    {
        writeln!(text, "  {key}={value}\n      {meaning}")?;
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_every_fault_and_every_word() {
        let page = manual();
        for kind in GROUPS.iter().flat_map(|group| group.kinds) {
            assert!(
                page.contains(&format!(".SS {}\n", kind.name.replace('-', "\\-")))
                    || page.contains(&format!(".SS {}\n", kind.name)),
                "{}",
                kind.name
            );
        }
        for key in vrnic_engine::fault::spec::KEYS {
            assert!(
                page.contains(&format!("{}=", key.name))
                    || page.contains(&key.name.replace('-', "\\-")),
                "{}",
                key.name
            );
        }
    }
}
