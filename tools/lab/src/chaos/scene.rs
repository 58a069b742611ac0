// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A scenario of `vrnicctl fault run` that is played while a workload runs.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::process::{Process, text};

/// Expands to the name and the text of a scenario.
macro_rules! scenario {
    ($name:literal) => {
        (
            $name,
            include_str!(concat!("../../../vrnicctl/scenarios/", $name, ".toml")),
        )
    };
}

/// How the names of the scenarios start that need several RNICs in each VM.
pub const RAILS: &str = "rails/";

/// All scenarios, by name.
const SCENARIOS: &[(&str, &str)] = &[
    scenario!("lost-ack"),
    scenario!("cable-pulled"),
    scenario!("both-links-down"),
    scenario!("peer-gone"),
    scenario!("slow-receiver"),
    scenario!("slow-device"),
    scenario!("error-under-load"),
    scenario!("reset-while-flushing"),
    scenario!("fatal-without-completion"),
    scenario!("gid-changes"),
    scenario!("rails/port-flap"),
    scenario!("rails/all-down"),
];

/// Names of the files with the scenario, and with what `vrnicctl` prints.
const SCENARIO: &str = "scenario.toml";
const LOG: &str = "log";

/// How long `vrnicctl` may take to clear the faults and to bring up the links.
const FAREWELL: Duration = Duration::from_secs(10);

/// Returns the text of the scenario with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static str> {
    let mut all = SCENARIOS.iter();
    all.find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// Returns a scenario, which is for VMs with four RNICs, for VMs with this number of them, at least two. A line of its
/// own says what happens to each RNIC: those of the third and fourth one are left out, or are for more.
fn with_rails(text: &str, rails: usize) -> String {
    let of_rail = |line: &str| (2..4).find(|rail| line.contains(&format!("\"a.{rail}\"")));
    let mut adapted = String::new();
    for line in text.split_inclusive('\n') {
        match of_rail(line) {
            None => adapted.push_str(line),
            Some(3) => {
                for rail in 3..rails {
                    adapted.push_str(&line.replace("\"a.3\"", &format!("\"a.{rail}\"")));
                }
            }
            Some(rail) if rail < rails => adapted.push_str(line),
            Some(_) => {}
        }
    }
    adapted
}

/// A scenario that is being played. Its first phase waits for the workload.
pub struct Scene {
    player: Process,
    /// Holds the scenario and what `vrnicctl` prints.
    directory: TempDir,
}

impl Scene {
    /// Starts to play a scenario in a lab whose VMs have this number of RNICs.
    ///
    /// # Errors
    /// There is no such scenario, or `vrnicctl` cannot be started.
    pub fn start(lab: &Lab, name: &str, rails: usize) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let file = directory.path().join(SCENARIO);
        let scenario = find(name).context("no such scenario")?;
        let scenario = if name.starts_with(RAILS) {
            with_rails(scenario, rails)
        } else {
            scenario.to_owned()
        };
        fs::write(&file, scenario)?;
        let player = Process::start(
            "vrnicctl",
            &lab.settings.programs().join("vrnicctl"),
            &["fault".to_owned(), "run".to_owned(), text(&file)],
            &[("VRNIC_CONTROL".to_owned(), text(&lab.control()))],
            &directory.path().join(LOG),
        )?;
        Ok(Self { player, directory })
    }

    /// Ends the scenario, wherever it is, and returns what `vrnicctl` printed about each phase.
    ///
    /// # Errors
    /// Its output cannot be read, it was not played, or what it did to the devices stays.
    pub fn end(mut self) -> Result<String> {
        self.player.stop(FAREWELL);
        let said = fs::read_to_string(self.directory.path().join(LOG))?;
        let file = text(&self.directory.path().join(SCENARIO));
        played(&file, &said, self.player.ended())
    }
}

/// Returns what `vrnicctl` printed about the phases of the scenario in `file`.
fn played(file: &str, said: &str, ended: Option<ExitStatus>) -> Result<String> {
    let killed = ended.is_some_and(|status| status.signal() == Some(Signal::SIGKILL as i32));
    ensure!(!killed, "vrnicctl did not end: links may be down");
    // The first line has the name of the file, and what the scenario is about. If the workload ended at once, there is
    // none.
    let (first, phases) = said.split_once('\n').unwrap_or((said, ""));
    ensure!(
        first.is_empty() || first.starts_with(file),
        "the scenario was not played: {first}"
    );
    Ok(phases.to_owned())
}

/// Returns how many phases of a scenario ended as they should after the first, which waits for traffic.
#[must_use]
pub fn phases(said: &str) -> u64 {
    let good = said.lines().filter(|line| line.starts_with("  ok "));
    good.skip(1).count() as u64
}

/// Returns the line about the phase that did not end as it should, if there is one.
#[must_use]
pub fn failed(said: &str) -> Option<&str> {
    let mut lines = said.lines().map(str::trim);
    lines.find(|line| line.starts_with("FAILED"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_scenario_is_known() {
        let mut count = 0;
        for part in ["", RAILS] {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vrnicctl/scenarios");
            for entry in fs::read_dir(directory.join(part)).unwrap() {
                let file = entry.unwrap().path();
                let stem = file.file_stem().unwrap().to_str().unwrap();
                if file.is_dir() || stem == "lab" {
                    continue;
                }
                let name = format!("{part}{stem}");
                let text = fs::read_to_string(&file).unwrap();
                assert_eq!(find(&name), Some(&*text), "{name}");
                count += 1;
            }
        }
        assert_eq!(count, SCENARIOS.len());
        assert_eq!(find("cable"), None);
    }

    #[test]
    fn scenarios_of_rails_name_each_of_them() {
        let all = find("rails/all-down").unwrap();
        assert_eq!(with_rails(all, 4), all);
        for rails in 2..=8 {
            let text = with_rails(all, rails);
            toml::from_str::<toml::Table>(&text).unwrap();
            for rail in 1..9 {
                // It has traffic or is checked to be down; it goes down, goes up, and is up.
                let named = text.matches(&format!("\"a.{rail}\"")).count();
                let expected = match rail {
                    _ if rail >= rails => 0,
                    2 => 3,
                    _ => 4,
                };
                assert_eq!(named, expected, "rail {rail} of {rails}");
            }
            let flap = find("rails/port-flap").unwrap();
            assert_eq!(with_rails(flap, rails), flap);
        }
    }

    #[test]
    fn a_scenario_that_was_not_played_is_told() {
        let interrupted = Some(ExitStatus::from_raw(1 << 8));
        let said = "/tmp/x.toml: A link.\n  ok      down (0.2 s)\nvrnicctl: interrupted\n";
        let phases = played("/tmp/x.toml", said, interrupted).unwrap();
        assert_eq!(phases, "  ok      down (0.2 s)\nvrnicctl: interrupted\n");
        let early = Some(ExitStatus::from_raw(Signal::SIGTERM as i32));
        assert_eq!(played("/tmp/x.toml", "", early).unwrap(), "");

        let error = |said, ended| played("/tmp/x.toml", said, ended).unwrap_err().to_string();
        assert_eq!(
            error("vrnicctl: /tmp/x.toml: unknown field\n", interrupted),
            "the scenario was not played: vrnicctl: /tmp/x.toml: unknown field"
        );
        let killed = Some(ExitStatus::from_raw(Signal::SIGKILL as i32));
        assert_eq!(
            error(said, killed),
            "vrnicctl did not end: links may be down"
        );
    }

    #[test]
    fn phases_are_counted_after_the_first() {
        let said =
            "  ok      traffic (0.1 s)\n          yes 3 QPs (found 4)\n  ok      down (0.2 s)\n";
        assert_eq!((phases(said), phases("")), (1, 0));
        assert_eq!(failed(said), None);
        let said =
            format!("{said}  FAILED  up (60.0 s)\n          NO  port is active (found down)\n");
        assert_eq!(
            (phases(&said), failed(&said)),
            (1, Some("FAILED  up (60.0 s)"))
        );
    }
}
