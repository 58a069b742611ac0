// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Plays a scenario and leaves no fault behind.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Device, Fault};

use super::{About, Condition, LinkState, Phase, Scenario};

/// Interval between checks of the conditions.
const LOOK: Duration = Duration::from_millis(20);

/// What a scenario acts on.
pub trait Stage {
    /// Arms a fault and returns its number.
    fn arm(&mut self, device: &str, fault: &str) -> Result<u64>;
    /// Clears a fault.
    fn clear(&mut self, device: &str, id: u64) -> Result<()>;
    /// Returns the faults, including those that are no longer armed.
    fn faults(&mut self, device: &str) -> Result<Vec<Fault>>;
    /// Brings a link up or takes it down.
    fn set_link(&mut self, device: &str, up: bool) -> Result<()>;
    /// Returns the device with its counters.
    fn device(&mut self, device: &str) -> Result<Device>;
    /// Returns the number of queue pairs in a state, without QP1, which belongs to the kernel.
    fn queue_pairs(&mut self, device: &str, state: &str) -> Result<u64>;
    /// Returns numbers and descriptions of failures from number `from` on.
    fn explained(&mut self, device: &str, from: u64) -> Result<Vec<(u64, String)>>;
    /// Returns the time since an arbitrary moment.
    fn now(&self) -> Duration;
    /// Waits a moment. Fails if the user has interrupted the scenario.
    fn pause(&mut self) -> Result<()>;
}

/// A stage that acts on a daemon.
pub struct Daemon<'a> {
    client: &'a mut Client,
    began: Instant,
    interrupted: Arc<AtomicBool>,
}

impl<'a> Daemon<'a> {
    /// Creates a stage for the daemon of that client. From now on, SIGINT and SIGTERM end the scenario, not the
    /// process.
    pub fn new(client: &'a mut Client) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // A second signal does end the process.
            signal_hook::flag::register_conditional_default(signal, interrupted.clone())?;
            signal_hook::flag::register(signal, interrupted.clone())?;
        }
        Ok(Self {
            client,
            began: Instant::now(),
            interrupted,
        })
    }
}

impl Stage for Daemon<'_> {
    fn arm(&mut self, device: &str, fault: &str) -> Result<u64> {
        self.client.add_fault(device, fault)
    }

    fn clear(&mut self, device: &str, id: u64) -> Result<()> {
        self.client.clear_faults(device, Some(id)).map(drop)
    }

    fn faults(&mut self, device: &str) -> Result<Vec<Fault>> {
        self.client.faults(device)
    }

    fn set_link(&mut self, device: &str, up: bool) -> Result<()> {
        self.client.set_link(device, up)
    }

    fn device(&mut self, device: &str) -> Result<Device> {
        let mut all = crate::chosen(self.client, Some(device))?;
        Ok(all.remove(0))
    }

    fn queue_pairs(&mut self, device: &str, state: &str) -> Result<u64> {
        let all = self.client.qps(device)?;
        let there = all
            .iter()
            .filter(|qp| qp.kind != "GSI" && qp.state.eq_ignore_ascii_case(state))
            .count();
        Ok(there as u64)
    }

    fn explained(&mut self, device: &str, from: u64) -> Result<Vec<(u64, String)>> {
        let all = self.client.explanations(device, from)?;
        Ok(all
            .iter()
            .map(|one| (one.number, one.to_string()))
            .collect())
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn pause(&mut self) -> Result<()> {
        std::thread::sleep(LOOK);
        if self.interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }
}

/// The result of a condition.
#[derive(Debug, Serialize)]
pub struct Finding {
    /// The condition, in words.
    pub condition: String,
    /// The device concerned.
    pub device: String,
    /// The actual value or state.
    pub found: String,
    /// Whether the condition is true.
    pub holds: bool,
}

/// The result of a phase.
#[derive(Debug, Serialize)]
pub struct PhaseOutcome {
    /// Name of the phase.
    pub phase: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// The faults that it armed: number, device and description.
    pub armed: Vec<(u64, String, String)>,
    /// Results of the conditions that it waited for and of those that it expected.
    pub findings: Vec<Finding>,
}

impl PhaseOutcome {
    /// Returns whether all conditions are true.
    pub fn is_good(&self) -> bool {
        self.findings.iter().all(|finding| finding.holds)
    }
}

/// State of a device when the phase began.
struct Before {
    counters: BTreeMap<String, u64>,
    next_explanation: u64,
}

/// A fault armed by the scenario.
struct Armed<'a> {
    device: &'a str,
    id: u64,
    /// Name of the fault.
    kind: &'a str,
    /// How many times it had fired when last checked.
    fired: u64,
    cleared: bool,
}

/// A scenario in progress.
struct Run<'a, S> {
    scenario: &'a Scenario,
    stage: &'a mut S,
    before: BTreeMap<&'a str, Before>,
    /// Faults armed by the scenario.
    armed: Vec<Armed<'a>>,
    /// Devices whose links the scenario has taken down.
    down: Vec<&'a str>,
}

/// Plays a scenario and calls `report` with the outcome of each phase. Returns whether all phases went as expected.
/// Whatever happens, the faults that it armed are cleared at the end, and the links that it took down are brought up.
pub fn play<S: Stage>(
    scenario: &Scenario,
    stage: &mut S,
    mut report: impl FnMut(PhaseOutcome) -> Result<()>,
) -> Result<bool> {
    let mut run = Run {
        scenario,
        stage,
        before: BTreeMap::new(),
        armed: Vec::new(),
        down: Vec::new(),
    };
    let outcome = run.phases(&mut report);
    let tidied = run.tidy_up();
    let good = outcome?;
    tidied.map(|()| good)
}

impl<'a, S: Stage> Run<'a, S> {
    fn phases(&mut self, report: &mut impl FnMut(PhaseOutcome) -> Result<()>) -> Result<bool> {
        for phase in &self.scenario.phases {
            let outcome = self
                .phase(phase)
                .with_context(|| format!("phase {:?}", phase.name))?;
            let good = outcome.is_good();
            report(outcome)?;
            if !good {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn phase(&mut self, phase: &'a Phase) -> Result<PhaseOutcome> {
        let began = self.stage.now();
        self.remember()?;
        if phase.clear {
            self.clear()?;
        }
        for link in &phase.link {
            let device = self.scenario.device_to_link(link)?;
            let up = link.state == LinkState::Up;
            self.stage.set_link(device, up)?;
            self.down.retain(|known| *known != device);
            if !up {
                self.down.push(device);
            }
        }
        let mut armed = Vec::new();
        for arm in &phase.arm {
            let device = self.scenario.device_to_arm(arm)?;
            let id = self.stage.arm(device, &arm.fault)?;
            self.armed.push(Armed {
                device,
                id,
                kind: arm.fault.split_whitespace().next().unwrap_or_default(),
                fired: 0,
                cleared: false,
            });
            armed.push((id, device.to_owned(), arm.fault.clone()));
        }
        let deadline = began + self.scenario.timeout_of(phase);
        let mut findings = loop {
            let findings = self.look(&phase.wait, began)?;
            let done = findings.iter().all(|finding| finding.holds);
            if done || self.stage.now() >= deadline {
                break findings;
            }
            self.stage.pause()?;
        };
        if findings.iter().all(|finding| finding.holds) {
            findings.extend(self.look(&phase.expect, began)?);
        }
        Ok(PhaseOutcome {
            phase: phase.name.clone(),
            seconds: self.stage.now().saturating_sub(began).as_secs_f64(),
            armed,
            findings,
        })
    }

    /// Records the state of the devices before a phase.
    fn remember(&mut self) -> Result<()> {
        for name in self.scenario.devices()? {
            let device = self.stage.device(name)?;
            let known = self.before.get(name);
            let explained = self
                .stage
                .explained(name, known.map_or(0, |known| known.next_explanation))?;
            let before = Before {
                counters: counters(&device),
                next_explanation: match explained.last() {
                    Some((number, _)) => number + 1,
                    None => known.map_or(0, |known| known.next_explanation),
                },
            };
            self.before.insert(name, before);
        }
        Ok(())
    }

    fn look(&mut self, conditions: &'a [Condition], began: Duration) -> Result<Vec<Finding>> {
        let findings = conditions.iter().map(|condition| {
            let (found, holds) = self.find(condition, began)?;
            Ok(Finding {
                condition: condition.to_string(),
                device: self.scenario.device_of(condition)?.to_owned(),
                found,
                holds,
            })
        });
        findings.collect()
    }

    /// Returns the actual value of a condition, in words, and whether the condition is true.
    fn find(&mut self, condition: &'a Condition, began: Duration) -> Result<(String, bool)> {
        let name = self.scenario.device_of(condition)?;
        let count = match condition.about()? {
            About::Lasted(time) => {
                let lasted = self.stage.now().saturating_sub(began);
                return Ok((format!("{:.3} s", lasted.as_secs_f64()), lasted >= time));
            }
            About::Port(state) => {
                let port = self.stage.device(name)?.port;
                let found = port.map_or_else(|| "down".into(), |port| port.state);
                let holds = found == state;
                return Ok((found, holds));
            }
            About::State(state) => {
                let found = self.stage.device(name)?.state;
                let holds = found == state;
                return Ok((found, holds));
            }
            About::Fired(kind) => {
                self.count_firings(name)?;
                let own = self.armed.iter();
                let own = own.filter(|armed| armed.device == name && armed.kind == kind);
                own.map(|armed| armed.fired).sum()
            }
            About::Counter(counter) => {
                let now = counters(&self.stage.device(name)?);
                let before = self.before.get(name);
                let before = before.and_then(|before| before.counters.get(counter));
                let now = now
                    .get(counter)
                    .with_context(|| format!("device {name} has no counter {counter:?}"))?;
                // After a reset of the device, counters start from 0.
                now.checked_sub(before.copied().unwrap_or(0))
                    .unwrap_or(*now)
            }
            About::Explained(words) => {
                let from = self
                    .before
                    .get(name)
                    .map_or(0, |before| before.next_explanation);
                let all = self.stage.explained(name, from)?;
                all.iter().filter(|(_, text)| text.contains(words)).count() as u64
            }
            About::QueuePairs(state) => self.stage.queue_pairs(name, state)?,
        };
        Ok((count.to_string(), condition.allows(count)))
    }

    /// Updates how many times the faults of a device that are not cleared have fired.
    fn count_firings(&mut self, device: &str) -> Result<()> {
        let faults = self.stage.faults(device)?;
        for armed in &mut self.armed {
            let found = faults.iter().find(|fault| fault.id == armed.id);
            if let Some(found) = found.filter(|_| armed.device == device && !armed.cleared) {
                armed.fired = found.fired;
            }
        }
        Ok(())
    }

    /// Clears the faults armed by the scenario.
    fn clear(&mut self) -> Result<()> {
        for index in 0..self.armed.len() {
            if self.armed[index].cleared {
                continue;
            }
            let Armed { device, id, .. } = self.armed[index];
            self.count_firings(device)?;
            self.stage
                .clear(device, id)
                .with_context(|| format!("cannot clear fault {id} of device {device}"))?;
            self.armed[index].cleared = true;
        }
        Ok(())
    }

    /// Clears all faults and brings up all links, as far as possible.
    fn tidy_up(&mut self) -> Result<()> {
        let mut outcome = self.clear();
        for armed in self.armed.iter().filter(|armed| !armed.cleared) {
            // The first failure has already been reported.
            let _ = self.stage.clear(armed.device, armed.id);
        }
        for device in self.down.drain(..) {
            outcome = outcome.and(self.stage.set_link(device, true));
        }
        outcome
    }
}

/// Returns the counters of a device by name.
fn counters(device: &Device) -> BTreeMap<String, u64> {
    let port = device.port.as_ref();
    port.map(|port| port.counters.iter().cloned().collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
