// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A run of a workload under a fault, with its evidence.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Firing, PORT};

use super::plan::{Fault, Profile, Side};
use super::scene::{self, Scene};
use super::verdict::{Ending, Seen, TROUBLE, Verdict, complaint};
use super::window;
use crate::agent::{Agent, Program};
use crate::console::{Known, judge, unread};
use crate::lab::{Lab, SHORT};
use crate::vm::{Device, Family, NAMES};

/// How long a program may take to end after its peer has.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long the RNICs and their drivers may take to recover.
const RETURN: Duration = Duration::from_secs(20);
/// Largest size of a running capture in bytes.
const MAX_CAPTURE: u64 = 64 << 20;

/// Result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Case {
    /// The RDMA device.
    pub device: Device,
    /// The workload.
    pub profile: String,
    /// The fault; `None` for the run without one.
    pub fault: Option<Fault>,
    /// How the workload handled it.
    pub verdict: Verdict,
    /// Observations.
    #[serde(flatten)]
    pub seen: Seen,
    /// Each time the fault fired, or faults of the scenario did.
    pub firings: Vec<String>,
    /// The phases of the scenario.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// The RNICs' explanations of failures.
    pub explain: Vec<String>,
    /// Output of the programs.
    pub output: [String; 2],
    /// Packets around the fault: pcapng, base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<String>,
}

impl Case {
    /// Returns whether this is the run of this workload with this device under this fault.
    #[must_use]
    pub fn is_of(&self, device: Device, profile: &Profile, fault: Option<&Fault>) -> bool {
        self.device == device && self.profile == profile.name && self.fault.as_ref() == fault
    }

    /// Returns whether the lab is unchanged, so that another run can follow.
    #[must_use]
    pub fn left_clean(&self) -> bool {
        let seen = &self.seen;
        seen.kernel.is_none() && seen.leak.is_none() && seen.lost_device.is_none()
    }

    /// Returns one line with what the programs and the RNICs reported.
    #[must_use]
    pub fn summary(&self) -> String {
        let seen = &self.seen;
        let mut parts = Vec::new();
        let ends = [
            ("client", &seen.client, &seen.client_says),
            ("server", &seen.server, &seen.server_says),
        ];
        for (name, end, says) in ends {
            match (end, says) {
                (None | Some(Ending::Exited(0)), _) => {}
                (Some(Ending::Exited(_)), Some(says)) => parts.push(format!("{name}: {says}")),
                (Some(end), _) => parts.push(format!("{name}: {}", end.text())),
            }
        }
        if let Some(after) = seen.after.filter(|_| !parts.is_empty()) {
            parts.push(format!("{after:.1} s after the fault"));
        }
        let failed = self.scenario.as_deref().and_then(scene::failed);
        parts.extend(failed.map(|phase| format!("scenario: {phase}")));
        parts.extend(seen.wrong_data.iter().map(|line| line.trim().to_owned()));
        parts.extend(seen.leak.iter().cloned());
        parts.extend(
            seen.kernel
                .iter()
                .map(|text| text.lines().nth(1).unwrap_or(text).trim().to_owned()),
        );
        if parts.is_empty() {
            let counters = seen
                .counters
                .iter()
                .map(|(name, grown)| format!("{name} {grown}"));
            parts.push(counters.collect::<Vec<_>>().join(", "));
        }
        parts.extend(seen.lost_device.iter().cloned());
        parts.join("; ")
    }
}

/// A lab in which runs are made one after the other.
pub struct Bench<'a> {
    lab: &'a Lab,
    device: Device,
    /// Where faults are injected for each VM: its first RNIC or its switch port.
    places: [String; NAMES.len()],
    /// All places where faults can fire.
    logs: Vec<String>,
    /// vrnicd's RNICs, if the device is one.
    rnics: Vec<String>,
    control: Client,
    /// How much of each VM's console has been read.
    consoles: [usize; NAMES.len()],
    /// Environment of the programs of each VM.
    environment: [Vec<(String, String)>; NAMES.len()],
}

impl<'a> Bench<'a> {
    /// Prepares a lab that has just been booted.
    ///
    /// # Errors
    /// vrnicd does not answer, or a VM has no RNIC.
    pub fn new(lab: &'a Lab, device: Device, at_ports: bool) -> Result<Self> {
        let mut control = Client::connect(&lab.control())?;
        let mut environment = [Vec::new(), Vec::new()];
        for (name, environment) in NAMES.into_iter().zip(&mut environment) {
            let gid = lab.wait_rdma(name, lab.device(name))?;
            let server = lab.address(Side::Server.vm(), Family::V4)?;
            *environment = rail("", lab.device(name).ibdev(), gid, server).into();
            let description = lab.description();
            let nics = &description.machine(Side::Server.vm())?.nics;
            for (number, nic) in nics.iter().enumerate().skip(1) {
                let ibdev = format!("vrnic{number}");
                let gid = lab.wait_port(name, &ibdev, Family::V4)?;
                environment.extend(rail(&number.to_string(), &ibdev, gid, nic.ipv4.clone()));
            }
        }
        let port = if at_ports { PORT } else { "" };
        let places = NAMES.map(|name| format!("{port}{name}"));
        let mut rnics = Vec::new();
        if device == Device::Vrnic {
            rnics = control.devices()?.into_iter().map(|it| it.name).collect();
        }
        let mut bench = Self {
            lab,
            device,
            logs: if at_ports {
                places.to_vec()
            } else {
                rnics.clone()
            },
            rnics,
            places,
            control,
            consoles: [0; NAMES.len()],
            environment,
        };
        // Kernel reports during the boot do not count here.
        bench.complaints()?;
        Ok(bench)
    }

    /// Runs the workload under the fault. [`Case::left_clean`] tells whether the lab can be used again.
    ///
    /// # Errors
    /// The run could not be made: the fault was refused, or a VM or vrnicd was gone before the start.
    pub fn run(&mut self, profile: &Profile, fault: Option<&Fault>) -> Result<Case> {
        let before = self.counters()?;
        let objects = self.objects()?;
        let explained = self.explained()?;
        let fired = self.fired()?;
        let scratch = tempfile::NamedTempFile::new()?;
        let capture = self.start_capture(scratch.as_file())?;
        let (mut armed, mut scene) = (None, None);
        match fault {
            Some(fault) if fault.scenario => {
                scene = Some(Scene::start(self.lab, &fault.fault, profile.rails)?);
            }
            Some(fault) => armed = Some(self.arm(fault)?),
            None => {}
        }

        let mut seen = Seen::default();
        let (output, ended) = self.play(profile, &mut seen)?;
        // vrnicd disconnects a client that sends nothing for a minute, which a program that hangs can take.
        self.control = Client::connect(&self.lab.control())?;

        let _ = self.control.stop_capture(capture);
        let mut firings = Vec::new();
        let scenario = scene.map(Scene::end).transpose()?;
        if let Some(said) = &scenario {
            firings = self.firings(&fired, |_, _| true)?;
            seen.fired = Some(firings.len() as u64 + scene::phases(said));
        }
        if let (Some(fault), Some(armed)) = (fault, armed) {
            let here = self.places[index(fault.on)].clone();
            let of_it = |place: &str, firing: &Firing| place == here && firing.id == armed;
            firings = self.firings(&fired, of_it)?;
            let all = self.control.faults(&self.places[index(fault.on)])?;
            let one = all.iter().find(|fault| fault.id == armed);
            seen.fired = Some(one.map_or(0, |fault| fault.fired));
        }
        let explain = self.explain_since(&explained)?;
        seen.counters = grown(&before, &self.counters()?);
        for place in &self.logs {
            self.control.clear_faults(place, None)?;
        }
        seen.lost_device = self.is_lost();
        if seen.lost_device.is_none() {
            seen.leak = self.leak(&objects, profile.in_kernel);
        }
        seen.kernel = self.complaints().err().map(|error| format!("{error:#}"));
        let packets = fs::read(scratch.path())?;
        if let (Some(fault), Some(ended)) = (fault, ended) {
            let name = if fault.scenario { "" } else { fault.name() };
            let first = window::first_firing(&packets, name);
            let after = first.and_then(|first| ended.duration_since(first).ok());
            seen.after = after.map(|after| after.as_secs_f64());
        }
        Ok(Case {
            device: self.device,
            profile: profile.name.clone(),
            fault: fault.cloned(),
            verdict: Verdict::of(&seen),
            seen,
            firings,
            scenario,
            explain,
            output,
            capture: window::around_faults(&packets).map(|bytes| STANDARD.encode(bytes)),
        })
    }

    /// Arms a fault and returns its number.
    fn arm(&mut self, fault: &Fault) -> Result<u64> {
        let place = &self.places[index(fault.on)];
        let mut words = fault.fault.clone();
        if fault.traffic {
            // A PSN that is increased by 0 does no harm, and shows that there is traffic.
            let sign = self
                .control
                .add_fault(place, "wrong-psn type=rc nth=10 value=0")?;
            words = format!("{words} after-fault={sign}");
        }
        self.control
            .add_fault(place, &words)
            .with_context(|| format!("arming `{words}`"))
    }

    /// Runs both programs to their ends. Returns the output of client and server, and when the client ended unless it
    /// had to be killed.
    fn play(
        &self,
        profile: &Profile,
        seen: &mut Seen,
    ) -> Result<([String; 2], Option<SystemTime>)> {
        let patience = Duration::from_secs(profile.seconds);
        let server_agent = self.lab.agent(Side::Server.vm())?;
        let mut server = Running::new(self.start(&server_agent, Side::Server, &profile.server)?);
        await_server(profile, &server_agent, &mut server)?;
        let client_agent = self.lab.agent(Side::Client.vm())?;
        let start = Instant::now();
        let mut client = Running::new(self.start(&client_agent, Side::Client, &profile.client)?);
        let deadline = start + client_agent.patience(patience);
        client.follow(deadline);
        seen.seconds = start.elapsed().as_secs_f64();
        let ended = client.ending.as_ref().map(|_| SystemTime::now());
        server.follow(deadline.min(Instant::now() + server_agent.patience(FAREWELL)));
        seen.client = Some(client.end());
        seen.server = Some(server.end());
        let output = [client.output, server.output];
        for (text, end, says) in [
            (&output[0], &seen.client, &mut seen.client_says),
            (&output[1], &seen.server, &mut seen.server_says),
        ] {
            if *end != Some(Ending::Exited(0)) {
                *says = complaint(text);
            }
            if let Some(wrong) = &profile.wrong_data {
                let line = text.lines().find(|line| wrong.is_match(line));
                seen.wrong_data = seen.wrong_data.take().or(line.map(str::to_owned));
            }
        }
        Ok((output, ended))
    }

    /// Starts the command of one end.
    fn start(&self, agent: &Agent, side: Side, command: &str) -> Result<Program> {
        let environment = &self.environment[index(side)];
        let environment: Vec<(&str, &str)> = environment
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        agent.start(&["sh", "-c", command], &environment)
    }

    fn start_capture(&mut self, file: &File) -> Result<u64> {
        let choice = Choice {
            device: None,
            qp: None,
            switch: self.places[0].starts_with(PORT),
            max_packets: None,
            max_bytes: Some(MAX_CAPTURE),
        };
        Ok(self
            .control
            .start_capture(choice, "chaos", file.as_fd())?
            .id)
    }

    /// Returns the counters of retries and errors.
    fn counters(&mut self) -> Result<Vec<(String, u64)>> {
        let mut all = Vec::new();
        for name in NAMES.iter().filter(|_| self.device == Device::Rxe) {
            let port = format!("{}/1", self.device.ibdev());
            let words = ["rdma", "statistic", "show", "link", &port, "-j"];
            let text = self.lab.agent(name)?.check(&words, SHORT)?;
            all.extend(trouble_in(name, &text)?);
        }
        for device in self.control.devices()? {
            let counters = device.port.map(|port| port.counters).unwrap_or_default();
            for (name, value) in counters {
                if TROUBLE.contains(&name.as_str()) {
                    all.push((format!("{} {name}", device.name), value));
                }
            }
        }
        Ok(all)
    }

    /// Returns the number of explanations that each RNIC has given.
    fn explained(&mut self) -> Result<Vec<u64>> {
        let mut next = Vec::new();
        for name in &self.rnics {
            let all = self.control.explanations(name, 0)?;
            next.push(all.last().map_or(0, |last| last.number + 1));
        }
        Ok(next)
    }

    /// Returns the RNICs' explanations since then.
    fn explain_since(&mut self, from: &[u64]) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (name, from) in self.rnics.iter().zip(from) {
            for explanation in self.control.explanations(name, *from)? {
                lines.push((
                    explanation.nanoseconds,
                    format!("{} {name}: {explanation}", time(explanation.nanoseconds)),
                ));
            }
        }
        lines.sort();
        Ok(lines.into_iter().map(|(_, line)| line).collect())
    }

    /// Returns the number of firings in each log.
    fn fired(&mut self) -> Result<Vec<u64>> {
        let mut next = Vec::new();
        for place in &self.logs {
            let all = self.control.fault_log(place)?;
            next.push(all.last().map_or(0, |last| last.number + 1));
        }
        Ok(next)
    }

    /// Returns when faults have fired since then, and on what. `wanted` chooses the firings.
    fn firings(
        &mut self,
        from: &[u64],
        wanted: impl Fn(&str, &Firing) -> bool,
    ) -> Result<Vec<String>> {
        let mut lines = Vec::new();
        for (place, from) in self.logs.iter().zip(from) {
            let log = self.control.fault_log(place)?;
            let new = log.iter().filter(|firing| firing.number >= *from);
            lines.extend(new.filter(|firing| wanted(place, firing)).map(|firing| {
                let Firing {
                    name,
                    position,
                    what,
                    ..
                } = firing;
                format!("{} {name} #{position}: {what}", time(firing.nanoseconds))
            }));
        }
        Ok(lines)
    }

    /// Returns the RDMA objects of both VMs.
    fn objects(&self) -> Result<[String; NAMES.len()]> {
        let mut objects = [const { String::new() }; NAMES.len()];
        for (name, objects) in NAMES.into_iter().zip(&mut objects) {
            let text = self
                .lab
                .agent(name)?
                .check(&["rdma", "resource", "show"], SHORT)?;
            // When a driver is bound again, its device gets another number.
            let devices = text
                .lines()
                .map(|line| line.split_once(": ").map_or(line, |(_, device)| device));
            *objects = devices.collect::<Vec<_>>().join("\n");
        }
        Ok(objects)
    }

    /// Returns the programs' remaining objects if they do not disappear within some seconds.
    fn leak(&self, before: &[String; NAMES.len()], in_kernel: bool) -> Option<String> {
        let before = &before.each_ref().map(|text| counted(text, in_kernel));
        let deadline = Instant::now() + RETURN * self.lab.settings.slowness();
        loop {
            let now = self.objects().ok()?;
            let now = now.each_ref().map(|text| counted(text, in_kernel));
            if now == *before {
                return None;
            }
            if Instant::now() > deadline {
                let (name, now) = NAMES
                    .iter()
                    .zip(now)
                    .zip(before)
                    .find_map(|((name, now), before)| (now != *before).then_some((name, now)))?;
                return Some(format!("VM {name} still has {}", now.trim()));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Returns why an RNIC cannot be used again, if that is so.
    fn is_lost(&mut self) -> Option<String> {
        let gone = NAMES.into_iter().find(|name| !self.lab.vm_alive(name));
        if let Some(name) = gone {
            return Some(format!("VM {name} is gone"));
        }
        let deadline = Instant::now() + RETURN * self.lab.settings.slowness();
        for name in &self.rnics {
            let good = |control: &mut Client| -> Option<bool> {
                let devices = control.devices().ok()?;
                let device = devices.into_iter().find(|device| device.name == *name)?;
                Some(device.state == "up" && device.port?.state == "active")
            };
            while good(&mut self.control) != Some(true) {
                if Instant::now() > deadline {
                    return Some(format!("the RNIC {name} does not come back by itself"));
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        NAMES.into_iter().find_map(|name| {
            let back = self.lab.wait_rdma(name, self.lab.device(name));
            let error = format!("{:#}", back.err()?);
            Some(error.lines().next().unwrap_or_default().to_owned())
        })
    }

    /// Checks the kernels' messages since the last call.
    fn complaints(&mut self) -> Result<()> {
        for (name, read) in NAMES.into_iter().zip(&mut self.consoles) {
            let new = unread(&self.lab.logs().join(format!("console-{name}.log")), read);
            judge(&new, Known::default()).with_context(|| format!("VM {name}"))?;
        }
        Ok(())
    }
}

/// A program with its output so far.
struct Running {
    program: Program,
    output: String,
    ending: Option<Ending>,
}

impl Running {
    fn new(program: Program) -> Self {
        Self {
            program,
            output: String::new(),
            ending: None,
        }
    }

    /// Reads the output until the program ends, or until `deadline`.
    fn follow(&mut self, deadline: Instant) {
        use crate::agent::Event;
        while self.ending.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.program.next(left) {
                Some(Event::Output(_, bytes)) => {
                    self.output.push_str(&String::from_utf8_lossy(&bytes));
                }
                Some(Event::Exit(code)) => self.ending = Some(Ending::of_code(code)),
                Some(Event::Lost(why)) => self.ending = Some(Ending::Lost(why)),
                None => return,
            }
        }
    }

    /// Returns how the program ended. Kills it if it has not.
    fn end(&mut self) -> Ending {
        self.ending.clone().unwrap_or_else(|| {
            self.program.kill();
            // Its last output still arrives, and its objects are destroyed.
            self.follow(Instant::now() + FAREWELL);
            Ending::Hung
        })
    }
}

/// Waits until the server listens, has ended, or takes too long; the client will find out.
fn await_server(profile: &Profile, agent: &Agent, server: &mut Running) -> Result<()> {
    let Some(port) = profile.listen else {
        server.follow(Instant::now() + Duration::from_secs(1));
        return Ok(());
    };
    let deadline = Instant::now() + agent.patience(Duration::from_secs(profile.seconds));
    while server.ending.is_none() && Instant::now() < deadline {
        if agent.listens(port)? {
            break;
        }
        server.follow(Instant::now() + Duration::from_millis(100));
    }
    Ok(())
}

/// Returns the variables of an RDMA device for the programs, whose names end with `number`.
fn rail(number: &str, ibdev: &str, gid: u32, server: String) -> [(String, String); 3] {
    [
        (format!("DEV{number}"), ibdev.to_owned()),
        (format!("GID{number}"), gid.to_string()),
        (format!("SERVER{number}"), server),
    ]
}

/// Returns the index of the VM of an end.
fn index(side: Side) -> usize {
    usize::from(NAMES[0] != side.vm())
}

/// Returns the counters of retries and errors from the output of `rdma statistic` for Soft-RoCE in a VM.
fn trouble_in(vm: &str, text: &str) -> Result<Vec<(String, u64)>> {
    let ports: Vec<serde_json::Map<String, serde_json::Value>> =
        serde_json::from_str(text).context("rdma statistic")?;
    let known = TROUBLE.iter().filter_map(|&name| {
        let value = ports.first()?.get(name)?.as_u64()?;
        Some((format!("{vm} {name}"), value))
    });
    Ok(known.collect())
}

/// Returns the objects in a list that count as leaked, which excludes completion queues that the kernel shares.
fn counted(objects: &str, in_kernel: bool) -> String {
    let words: Vec<&str> = objects.split(' ').collect();
    let mut counted = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let is_of_cqs = *word == "cq" || index > 0 && words[index - 1] == "cq";
        if !(in_kernel && is_of_cqs) {
            counted.push(*word);
        }
    }
    counted.join(" ")
}

/// Returns the counters that have increased, and by how much.
fn grown(before: &[(String, u64)], after: &[(String, u64)]) -> Vec<(String, u64)> {
    let old = |name: &str| {
        before
            .iter()
            .find(|(other, _)| other == name)
            .map_or(0, |(_, value)| *value)
    };
    after
        .iter()
        // After a reset of the RNIC, they start from 0.
        .map(|(name, value)| (name.clone(), value.checked_sub(old(name)).unwrap_or(*value)))
        .filter(|(_, grown)| *grown > 0)
        .collect()
}

/// Formats a time of the RNICs' clock in seconds.
fn time(nanoseconds: u64) -> String {
    format!(
        "{}.{:06}",
        nanoseconds / 1_000_000_000,
        nanoseconds % 1_000_000_000 / 1000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_queues_of_the_kernel_may_stay() {
        let objects = "vrnic0: pd 1 cq 2 qp 1\nrxe0: pd 0 cq 4 qp 0";
        assert_eq!(counted(objects, false), objects);
        assert_eq!(counted(objects, true), "vrnic0: pd 1 qp 1\nrxe0: pd 0 qp 0");
    }

    #[test]
    fn counters_of_soft_roce() {
        let text = r#"[{"ifindex":0,"ifname":"rxe0","port":1,"sent_pkts":7,"rcvd_seq_err":2,"send_err":0}]"#;
        let found = trouble_in("b", text).unwrap();
        let expected = [("b rcvd_seq_err", 2), ("b send_err", 0)];
        assert_eq!(
            found,
            expected.map(|(name, value)| (name.to_owned(), value))
        );
        assert!(trouble_in("b", "[]").unwrap().is_empty());
        assert!(trouble_in("b", "error").is_err());
    }

    #[test]
    fn counters_that_grow() {
        let counters = |values: &[(&str, u64)]| -> Vec<(String, u64)> {
            values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect()
        };
        let before = counters(&[("a", 5), ("b", 7), ("c", 9)]);
        let after = counters(&[("a", 5), ("b", 9), ("c", 2)]);
        assert_eq!(grown(&before, &after), counters(&[("b", 2), ("c", 2)]));
    }
}
