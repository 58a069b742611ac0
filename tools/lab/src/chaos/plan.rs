// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Parts of a chaos run: workloads and faults. Those that come with the lab are in tools/lab/chaos.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use regex_lite::Regex;
use serde::{Deserialize, Serialize};
use vrnic_engine::fault::Spec;

use super::scene;

/// An end of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// The program in VM a.
    Client,
    /// The program in VM b.
    Server,
}

impl Side {
    /// Returns its VM, which is also the name of its RNIC.
    #[must_use]
    pub fn vm(self) -> &'static str {
        match self {
            Self::Client => "a",
            Self::Server => "b",
        }
    }

    /// Returns its name for display.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }
}

/// A workload: a program in each VM.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// What it does.
    pub about: String,
    /// Command of the server, for `sh -c`.
    pub server: String,
    /// Command of the client, for `sh -c`.
    pub client: String,
    /// Port on which the server listens, over TCP or rdma_cm. Without it, the client starts a second later.
    pub listen: Option<u16>,
    /// Seconds after which a program counts as hung.
    pub seconds: u64,
    /// Output that reports damaged data.
    #[serde(default, deserialize_with = "regex")]
    pub wrong_data: Option<Regex>,
    /// Whether it uses the kernel's shared completion queues, which stay until the device is removed.
    #[serde(default)]
    pub in_kernel: bool,
    /// A program that some guest images lack.
    pub needs: Option<String>,
    /// Number of RNICs of each VM.
    #[serde(default = "one")]
    pub rails: usize,
}

fn one() -> usize {
    1
}

impl Profile {
    /// Returns whether guests with this root directory have what it needs. The contents of a disk image are not known.
    #[must_use]
    pub fn fits(&self, guest_root: &Path) -> bool {
        let needs = self.needs.as_ref().filter(|_| guest_root.is_dir());
        needs.is_none_or(|program| {
            guest_root
                .join("usr/bin")
                .join(program)
                .symlink_metadata()
                .is_ok()
        })
    }
}

/// A fault, and the end at whose RNIC or switch port it is injected. Or a scenario, which names its RNICs itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// Its description, as for `vrnicctl fault add`, or the name of the scenario.
    pub fault: String,
    /// Whether it is a scenario of `vrnicctl fault run`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub scenario: bool,
    /// End with the fault. Of a scenario, the end that it strikes first.
    pub on: Side,
    /// Whether to wait until the RNIC has sent some packets of a reliable connection.
    #[serde(default)]
    pub traffic: bool,
}

fn regex<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Regex>, D::Error> {
    let text = String::deserialize(from)?;
    Regex::new(&text)
        .map(Some)
        .map_err(serde::de::Error::custom)
}

/// Returns the workloads that come with the lab.
///
/// # Errors
/// The file is not valid.
pub fn profiles() -> Result<Vec<Profile>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        profile: Vec<Profile>,
    }
    let file: File = toml::from_str(include_str!("../../chaos/profiles.toml"))
        .context("tools/lab/chaos/profiles.toml")?;
    Ok(file.profile)
}

/// Returns the faults that come with the lab.
///
/// # Errors
/// The file is not valid.
pub fn faults() -> Result<Vec<Fault>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        fault: Vec<Fault>,
    }
    let file: File = toml::from_str(include_str!("../../chaos/faults.toml"))
        .context("tools/lab/chaos/faults.toml")?;
    Ok(file.fault)
}

/// Creates a custom workload from the words of the server, `---`, and the words of the client.
///
/// # Errors
/// There are not two commands.
pub fn own(words: &[String], listen: Option<u16>, seconds: u64) -> Result<Profile> {
    let mut ends = words.split(|word| word == "---");
    let (Some(server), Some(client), None) = (ends.next(), ends.next(), ends.next()) else {
        bail!("your own workload is: -- SERVER-COMMAND --- CLIENT-COMMAND");
    };
    if server.is_empty() || client.is_empty() {
        bail!("your own workload is: -- SERVER-COMMAND --- CLIENT-COMMAND");
    }
    Ok(Profile {
        name: "own".into(),
        about: format!("{} / {}", server.join(" "), client.join(" ")),
        server: server.join(" "),
        client: client.join(" "),
        listen,
        seconds,
        wrong_data: None,
        in_kernel: false,
        needs: None,
        rails: 1,
    })
}

impl Fault {
    /// Returns the name of its kind.
    #[must_use]
    pub fn name(&self) -> &str {
        self.fault.split(' ').next().unwrap_or_default()
    }

    /// Returns what it is for display.
    #[must_use]
    pub fn words(&self) -> String {
        let kind = if self.scenario { "scenario " } else { "" };
        format!("{kind}{}", self.fault)
    }

    /// Returns whether it can be made to a workload: some scenarios need VMs with several RNICs.
    #[must_use]
    pub fn fits(&self, profile: &Profile) -> bool {
        !(self.scenario && self.fault.starts_with(scene::RAILS)) || profile.rails > 1
    }

    /// Checks that an RNIC, or a switch port, accepts the fault.
    ///
    /// # Errors
    /// The fault is not valid; the message says why.
    pub fn check(&self, at_ports: bool) -> Result<()> {
        if self.scenario {
            scene::find(&self.fault)
                .with_context(|| format!("no scenario is called {:?}", self.fault))?;
            ensure!(
                !at_ports,
                "scenario {}: a port of a switch has no scenarios",
                self.fault
            );
            return Ok(());
        }
        let spec = self.fault.parse::<Spec>();
        spec.and_then(|spec| {
            if at_ports {
                spec.check_for_port()
            } else {
                Ok(())
            }
        })
        .with_context(|| format!("fault `{}`", self.fault))
    }
}

/// Returns the arguments of a custom workload on the command line, options first.
#[must_use]
pub fn words(words: &[String], profile: &Profile, wrong_data: Option<&Regex>) -> String {
    let quote = |word: &String| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,".contains(letter);
        if word.chars().all(plain) && !word.is_empty() {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let mut text = format!("--seconds {}", profile.seconds);
    if let Some(port) = profile.listen {
        let _ = write!(text, " --listen {port}");
    }
    if let Some(wrong) = wrong_data {
        let _ = write!(text, " --wrong-data {}", quote(&wrong.to_string()));
    }
    let words: Vec<String> = words.iter().map(quote).collect();
    format!("{text} -- {}", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_with_the_lab_is_well_formed() {
        let (profiles, faults) = (profiles().unwrap(), faults().unwrap());
        assert!(faults.len() >= 60);
        for fault in &faults {
            fault.check(false).unwrap();
        }
        let at_ports = faults.iter().filter(|fault| fault.check(true).is_ok());
        assert!(at_ports.count() >= 30);
        for (index, fault) in faults.iter().enumerate() {
            assert!(!faults[..index].contains(fault), "{} twice", fault.fault);
        }
        for (index, profile) in profiles.iter().enumerate() {
            let before = &profiles[..index];
            assert!(before.iter().all(|other| other.name != profile.name));
        }
    }

    #[test]
    fn faults_that_cannot_be_are_refused() {
        let told = |fault: &str, at_ports| {
            let (fault, on) = (fault.to_owned(), Side::Client);
            let fault = Fault {
                fault,
                scenario: false,
                on,
                traffic: false,
            };
            fault.check(at_ports).map_err(|error| format!("{error:#}"))
        };
        assert!(told("drip", false).unwrap_err().contains("fault `drip`"));
        assert!(told("cqe-lost", false).is_ok() && told("drop type=rc", true).is_ok());
        let refused = told("cqe-lost", true).unwrap_err();
        assert!(refused.contains("a fault of a device"), "{refused}");
    }

    #[test]
    fn a_workload_needs_its_program() {
        let root = tempfile::tempdir().unwrap();
        let mut profile = own(&["a", "---", "b"].map(str::to_owned), None, 9).unwrap();
        assert!(profile.fits(root.path()));
        profile.needs = Some("program".to_owned());
        assert!(!profile.fits(root.path()));
        std::fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        std::fs::write(root.path().join("usr/bin/program"), "").unwrap();
        assert!(profile.fits(root.path()));
    }

    #[test]
    fn damaged_blocks_are_wrong_data() {
        let said = [
            "verify: bad magic header 0, wanted acca at file /run/storage/file offset 8192, length 4096",
            "crc32c: verify failed at file /run/storage/file offset 2097152, length 4096",
        ];
        for name in ["nvme", "nfs", "iser", "srp"] {
            let profiles = profiles().unwrap();
            let profile = profiles.iter().find(|profile| profile.name == name);
            let wrong = profile.and_then(|it| it.wrong_data.as_ref()).unwrap();
            assert!(said.iter().all(|line| wrong.is_match(line)), "{name}");
            assert!(!wrong.is_match("fio: io_u error on file /run/storage/file"));
        }
    }

    #[test]
    fn own_commands() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let own = |text: &str| own(&words(text), None, 9);
        let profile = own("serve -p 7 --- ask $SERVER").unwrap();
        assert_eq!(
            (profile.server.as_str(), profile.client.as_str()),
            ("serve -p 7", "ask $SERVER")
        );
        assert_eq!(
            super::words(&words("serve --- ask $SERVER"), &profile, None),
            "--seconds 9 -- serve --- ask '$SERVER'"
        );
        assert!(own("serve").is_err());
        assert!(own("serve ---").is_err());
        assert!(own("a --- b --- c").is_err());
    }
}
