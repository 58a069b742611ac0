// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Scenarios: files that arm faults phase by phase, wait for the consequences, and state what must be true then.
//!
//! [`play`] plays them.

pub mod play;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Deserializer};
use vrnic_engine::fault::spec::Spec;
use vrnicd::control::protocol::PORT;

/// Default time limit for the waiting of a phase.
const PATIENCE: Duration = Duration::from_secs(30);

/// A scenario.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// One sentence about what it shows.
    pub about: String,
    /// Default device for everything that names none.
    pub device: Option<String>,
    /// Longest time that a phase waits.
    #[serde(default = "patience", deserialize_with = "seconds")]
    timeout: Duration,
    /// The phases, in order.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
}

/// A part of a scenario: actions, conditions to wait for, and conditions to check.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Short description of what happens.
    pub name: String,
    /// Whether to clear the faults that the scenario has armed so far.
    #[serde(default)]
    pub clear: bool,
    /// Links to take down or bring up.
    #[serde(default)]
    pub link: Vec<Link>,
    /// Faults to arm.
    #[serde(default)]
    pub arm: Vec<Arm>,
    /// Conditions to wait for, all of which must become true.
    #[serde(default)]
    pub wait: Vec<Condition>,
    /// Longest time to wait.
    #[serde(default, deserialize_with = "some_seconds")]
    timeout: Option<Duration>,
    /// Conditions that must all be true at the end of the phase.
    #[serde(default)]
    pub expect: Vec<Condition>,
}

/// A link to take down or bring up.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The device.
    device: Option<String>,
    /// The new state.
    pub state: LinkState,
}

/// State of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// Packets pass.
    Up,
    /// No packets pass, as if the cable were unplugged.
    Down,
}

/// A fault to arm.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arm {
    /// Description of the fault, as for `vrnicctl fault add`.
    pub fault: String,
    /// The device, or a port of the switch.
    device: Option<String>,
}

/// A condition. Exactly one of the first seven fields is set. The bounds apply to those that count something.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Number of times that faults of this name fired, of those that the scenario armed on the device.
    fired: Option<String>,
    /// Increase of this counter of the device since the phase began.
    counter: Option<String>,
    /// Number of failures since the phase began whose text in `vrnicctl explain` contains these words.
    explained: Option<String>,
    /// Number of queue pairs in this state, except QP1.
    qps: Option<String>,
    /// State of the port: `active` or `down`.
    port: Option<String>,
    /// State of the device: `up`, `down`, `failed` or `removed`.
    state: Option<String>,
    /// Number of seconds that the phase must have lasted.
    #[serde(default, deserialize_with = "some_seconds")]
    seconds: Option<Duration>,
    /// The device.
    device: Option<String>,
    /// Lower bound; 1 unless `at_most` is given.
    at_least: Option<u64>,
    /// Upper bound; none unless given.
    at_most: Option<u64>,
}

/// The subject of a condition.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// Faults with that name that fired.
    Fired(&'a str),
    /// Increase of a counter.
    Counter(&'a str),
    /// Failures whose text contains these words.
    Explained(&'a str),
    /// Queue pairs in a state.
    QueuePairs(&'a str),
    /// State of the port.
    Port(&'a str),
    /// State of the device.
    State(&'a str),
    /// Time since the phase began.
    Lasted(Duration),
}

fn patience() -> Duration {
    PATIENCE
}

fn seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)?;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| serde::de::Error::custom("expected a number of seconds, 0 or more"))
}

fn some_seconds<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    seconds(from).map(Some)
}

impl Scenario {
    /// Reads a file. Errors name the line, or the phase and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{} is not a valid scenario", path.display()))
    }

    fn parse(text: &str) -> Result<Self> {
        let scenario: Self = toml::from_str(text)?;
        if scenario.phases.is_empty() {
            bail!("there is no [[phase]]");
        }
        for phase in &scenario.phases {
            scenario
                .check(phase)
                .with_context(|| format!("phase {:?}", phase.name))?;
        }
        Ok(scenario)
    }

    fn check(&self, phase: &Phase) -> Result<()> {
        let devices = phase.link.iter().map(|link| &link.device);
        let devices = devices.chain(phase.arm.iter().map(|arm| &arm.device));
        for device in devices {
            self.device_or(device.as_ref())?;
        }
        for arm in &phase.arm {
            let at_port = self.device_to_arm(arm)?.starts_with(PORT);
            let spec = arm.fault.parse::<Spec>();
            spec.and_then(|spec| {
                if at_port {
                    spec.check_for_port()
                } else {
                    Ok(())
                }
            })
            .with_context(|| format!("fault {:?}", arm.fault))?;
        }
        for condition in phase.wait.iter().chain(&phase.expect) {
            condition.about()?;
            self.device_of(condition)?;
        }
        Ok(())
    }

    fn device_or<'a>(&'a self, named: Option<&'a String>) -> Result<&'a str> {
        named
            .or(self.device.as_ref())
            .map(String::as_str)
            .context("name a device here or in the scenario")
    }

    /// Returns the device of a condition; an empty name if the condition needs none.
    pub fn device_of<'a>(&'a self, condition: &'a Condition) -> Result<&'a str> {
        match condition.about()? {
            About::Lasted(_) => Ok(""),
            _ => self.device_or(condition.device.as_ref()),
        }
    }

    /// Returns the device on which a fault is armed.
    pub fn device_to_arm<'a>(&'a self, arm: &'a Arm) -> Result<&'a str> {
        self.device_or(arm.device.as_ref())
    }

    /// Returns the device whose link changes.
    pub fn device_to_link<'a>(&'a self, link: &'a Link) -> Result<&'a str> {
        self.device_or(link.device.as_ref())
    }

    /// Returns the longest time that a phase waits.
    pub fn timeout_of(&self, phase: &Phase) -> Duration {
        phase.timeout.unwrap_or(self.timeout)
    }

    /// Returns the names of all devices in the scenario, without ports of the switch.
    pub fn devices(&self) -> Result<Vec<&str>> {
        let mut all = Vec::new();
        for phase in &self.phases {
            for arm in &phase.arm {
                all.push(self.device_to_arm(arm)?);
            }
            for link in &phase.link {
                all.push(self.device_to_link(link)?);
            }
            for condition in phase.wait.iter().chain(&phase.expect) {
                all.push(self.device_of(condition)?);
            }
        }
        all.retain(|device| !device.is_empty() && !device.starts_with(PORT));
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }
}

impl Condition {
    /// Returns the subject. Fails if there is not exactly one, or if there are bounds on something that is not counted.
    pub fn about(&self) -> Result<About<'_>> {
        let counted = [
            self.fired.as_deref().map(About::Fired),
            self.counter.as_deref().map(About::Counter),
            self.explained.as_deref().map(About::Explained),
            self.qps.as_deref().map(About::QueuePairs),
        ];
        let plain = [
            self.port.as_deref().map(About::Port),
            self.state.as_deref().map(About::State),
            self.seconds.map(About::Lasted),
        ];
        let is_plain = plain.iter().any(Option::is_some);
        let mut all = counted.into_iter().chain(plain).flatten();
        let (Some(about), None) = (all.next(), all.next()) else {
            bail!(
                "a condition has one of fired, counter, explained, qps, port, state and seconds: give exactly one"
            );
        };
        if is_plain && (self.at_least.is_some() || self.at_most.is_some()) {
            bail!("only fired, counter, explained and qps can have at_least and at_most");
        }
        if self.at_most.is_some_and(|most| most < self.least()) {
            bail!("at_most is less than at_least");
        }
        Ok(about)
    }

    fn least(&self) -> u64 {
        let unsaid = u64::from(self.at_most.is_none());
        self.at_least.unwrap_or(unsaid)
    }

    /// Returns whether `count` is within the bounds.
    pub fn allows(&self, count: u64) -> bool {
        count >= self.least() && self.at_most.is_none_or(|most| count <= most)
    }
}

impl fmt::Display for Condition {
    /// Writes the condition in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, name) = match self.about() {
            Err(_) => return f.write_str("nothing"),
            Ok(About::Lasted(time)) => return write!(f, "{} s have passed", time.as_secs_f64()),
            Ok(About::Port(state)) => return write!(f, "the port is {state}"),
            Ok(About::State(state)) => return write!(f, "the device is {state}"),
            Ok(About::Fired(name)) => ("fault fired", name),
            Ok(About::Counter(name)) => ("counter grew", name),
            Ok(About::Explained(words)) => ("failures explained", words),
            Ok(About::QueuePairs(state)) => ("queue pairs", state),
        };
        match (self.least(), self.at_most) {
            (least, None) => write!(f, "{what}: {name}, at least {least}"),
            (0, Some(most)) => write!(f, "{what}: {name}, at most {most}"),
            (least, Some(most)) if least == most => write!(f, "{what}: {name}, exactly {least}"),
            (least, Some(most)) => write!(f, "{what}: {name}, {least} to {most}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn complaint(text: &str) -> String {
        format!("{:#}", Scenario::parse(text).unwrap_err())
    }

    #[test]
    fn scenarios_that_come_with_vrnic_are_right() {
        for (directory, least) in [("scenarios", 10), ("scenarios/rails", 2)] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
            let entries = std::fs::read_dir(directory).unwrap();
            let files = entries.map(|entry| entry.unwrap().path());
            // The last one is for `vrnic-lab up`.
            let is_scenario = |file: &PathBuf| file.is_file() && !file.ends_with("lab.toml");
            let files: Vec<_> = files.filter(is_scenario).collect();
            for file in &files {
                let scenario = Scenario::read(file).unwrap();
                assert!(scenario.about.ends_with('.'));
                assert!(!scenario.devices().unwrap().is_empty());
            }
            assert!(files.len() >= least, "{files:?}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let head = "about = \"x\"\ndevice = \"a\"\n[[phase]]\nname = \"one\"\n";
        let cases = [
            ("about = \"x\"\nphase = []\n", "no [[phase]]"),
            ("about = \"x\"\n[[phase]]\nname = \"one\"\nfoo = 1\n", "foo"),
            (&format!("{head}arm = [{{ fault = \"dorp\" }}]"), "dorp"),
            (
                &format!("{head}arm = [{{ fault = \"stuck\", device = \"port:b\" }}]"),
                "a fault of a device",
            ),
            (&format!("{head}wait = [{{ }}]"), "a condition has one of"),
            (
                &format!("{head}wait = [{{ fired = \"drop\", port = \"up\" }}]"),
                "phase \"one\": a condition has one of",
            ),
            (
                &format!("{head}wait = [{{ seconds = 1, at_least = 2 }}]"),
                "only fired",
            ),
            (
                &format!("{head}expect = [{{ qps = \"rts\", at_least = 2, at_most = 1 }}]"),
                "at_most is less",
            ),
            (&format!("{head}timeout = -1"), "0 or more"),
            (
                &format!("{head}link = [{{ state = \"broken\" }}]"),
                "broken",
            ),
            (
                "about = \"x\"\n[[phase]]\nname = \"one\"\narm = [{ fault = \"drop\" }]",
                "name a device",
            ),
        ];
        for (text, expected) in cases {
            let told = complaint(text);
            assert!(told.contains(expected), "{text}\n{told}");
        }
    }

    #[test]
    fn bounds_are_what_they_say() {
        let with = |at_least, at_most| Condition {
            fired: Some("drop".into()),
            at_least,
            at_most,
            ..Condition::default()
        };
        let allowed =
            |condition: Condition| (0..5).filter(|n| condition.allows(*n)).collect::<Vec<_>>();
        assert_eq!(allowed(with(None, None)), [1, 2, 3, 4]);
        assert_eq!(allowed(with(None, Some(1))), [0, 1]);
        assert_eq!(allowed(with(Some(2), Some(3))), [2, 3]);
        assert_eq!(
            with(Some(2), Some(2)).to_string(),
            "fault fired: drop, exactly 2"
        );
        assert_eq!(
            with(None, Some(0)).to_string(),
            "fault fired: drop, at most 0"
        );
    }
}
