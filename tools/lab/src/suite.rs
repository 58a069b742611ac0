// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab test`: runs host tests, KUnit in a VM, and the VM tests of tests/vm, and prints one total at the end.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use clap::ValueEnum as _;
use regex_lite::Regex;
use serde::Serialize;

use crate::console::{Known, judge, unread};
use crate::control;
use crate::kernel::Kernel;
use crate::lab::{Extra, Lab, Module, Options, SHORT};
use crate::output::say;
use crate::process::{Process, scratch, tail, text};
use crate::settings::Settings;
use crate::vm::{Device, Fabric, Family, NAMES};

/// Which tests to run.
#[derive(Debug, Clone)]
pub struct Choice {
    /// Only tests whose name contains one of these, which may also be `cargo`, `series` and `kunit`; all tests if
    /// empty.
    pub only: Vec<String>,
    /// Only tests in guests, no host tests.
    pub guests: bool,
    /// Also long tests, and each test on all its fabrics. This always applies to tests that [`Choice::only`] names.
    /// Tests can see it as `LAB_ALL`, `true` or `false`, and leave out cases that are like others.
    pub all: bool,
    /// RDMA device of the VM tests.
    pub device: Device,
    /// If it is prepared, the kernel for KUnit, for tests that need more than the usual kernel has, and for tests that
    /// have already run on the usual kernel with another fabric.
    pub special: Option<Kernel>,
    /// Directory for logs and the report.
    pub out: PathBuf,
}

impl Choice {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Message if the kernel of [`Choice::special`] is missing.
const NO_SPECIAL: &str = "this needs the lab's kernel: run `make test`, which builds it";

/// How a test ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Passed,
    Failed,
    Skipped,
}

#[derive(Debug, Serialize)]
struct Case {
    name: String,
    verdict: Verdict,
    seconds: f64,
    #[serde(skip_serializing_if = "String::is_empty")]
    why: String,
}

/// Results of all tests, which run in parallel.
#[derive(Debug, Default, Serialize)]
struct Tally {
    cases: Mutex<Vec<Case>>,
}

impl Tally {
    /// Counts a test that passed, without printing anything.
    fn pass(&self, name: String) {
        lock(&self.cases).push(Case {
            name,
            verdict: Verdict::Passed,
            seconds: 0.0,
            why: String::new(),
        });
    }

    /// Counts a test, and prints its result.
    fn add(
        &self,
        name: impl Into<String>,
        verdict: Verdict,
        start: Instant,
        why: impl Into<String>,
    ) {
        let case = Case {
            name: name.into(),
            verdict,
            seconds: start.elapsed().as_secs_f64(),
            why: why.into(),
        };
        let word = match verdict {
            Verdict::Passed => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        };
        // The lock keeps other tests from printing in between.
        let mut cases = lock(&self.cases);
        say!("{word:8}{} ({:.1} s)", case.name, case.seconds);
        if verdict != Verdict::Passed && !case.why.is_empty() {
            for line in case.why.lines() {
                say!("        | {line}");
            }
        }
        let _ = std::io::stdout().flush();
        cases.push(case);
    }

    fn count(&self, verdict: Verdict) -> usize {
        lock(&self.cases)
            .iter()
            .filter(|case| case.verdict == verdict)
            .count()
    }
}

/// Path of this program. It is looked up once, at the start, because cargo may replace the file.
static PROGRAM: LazyLock<String> =
    LazyLock::new(|| text(&std::env::current_exe().unwrap_or_default()));

/// Runs the chosen tests.
///
/// # Errors
/// A test failed, or no test was run.
pub fn run(settings: &Settings, choice: &Choice) -> Result<()> {
    let start = Instant::now();
    LazyLock::force(&PROGRAM);
    fs::create_dir_all(&choice.out)?;
    let tally = Tally::default();
    let host = || host_tests(settings, choice, &tally);
    vm_tests(settings, choice, &tally, host)?;

    let (passed, failed, skipped) = (
        tally.count(Verdict::Passed),
        tally.count(Verdict::Failed),
        tally.count(Verdict::Skipped),
    );
    fs::write(
        choice.out.join("report.json"),
        serde_json::to_string_pretty(&tally)? + "\n",
    )?;
    if failed > 0 {
        say!("\nfailed:");
        for case in lock(&tally.cases)
            .iter()
            .filter(|case| case.verdict == Verdict::Failed)
        {
            say!("  {}", case.name);
        }
    }
    say!(
        "\nlogs: {}   {:.0} s",
        choice.out.display(),
        start.elapsed().as_secs_f64()
    );
    let skips = if skipped > 0 {
        format!(", {skipped} skipped")
    } else {
        String::new()
    };
    say!("{passed} passed, {failed} failed{skips}");
    if failed > 0 {
        bail!("{failed} tests failed");
    }
    if passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// Runs the tests that do not use the VM tests' labs: `cargo test`, the patch series, and KUnit in a VM of its own.
fn host_tests(settings: &Settings, choice: &Choice, tally: &Tally) -> Result<()> {
    if choice.wants("cargo") && !choice.guests {
        say!("== host tests");
        cargo(settings, choice, tally)?;
    }
    if choice.wants("series") && !choice.guests {
        say!("== patch series");
        series(settings, choice, tally);
    }
    if choice.wants("kunit") && choice.device == Device::Vrnic {
        say!("== KUnit in a VM");
        let now = Instant::now();
        match &choice.special {
            Some(kernel) if kernel.has("CONFIG_KUNIT=y") => {
                kunit(&settings.with_kernel(kernel), choice, tally);
            }
            Some(_) => tally.add("kunit", Verdict::Skipped, now, "the kernel has no KUnit"),
            None => tally.add("kunit", Verdict::Failed, now, NO_SPECIAL),
        }
    }
    Ok(())
}

/// Runs `cargo test` of the workspace. Each Rust test is one case.
fn cargo(settings: &Settings, choice: &Choice, tally: &Tally) -> Result<()> {
    let start = Instant::now();
    let log_path = choice.out.join("cargo.log");
    let mut log = fs::File::create(&log_path)?;
    let mut child = Command::new("cargo")
        .args(["test", "--release", "--workspace", "--no-fail-fast"])
        .current_dir(settings.tree.join("tools"))
        // Cargo must not use the job server of the calling make.
        .env_remove("MAKEFLAGS")
        .env_remove("MFLAGS")
        // A backtrace would hide the actual error.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.try_clone()?)
        .spawn()
        .context("running cargo (is it installed? `make setup`)")?;
    let stdout = child.stdout.take().context("a pipe was asked for")?;
    let mut counts = (0, 0, 0);
    let mut failures = Failures::default();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        writeln!(log, "{line}")?;
        if failures.read(&line) {
            failures.report(&log_path, tally);
        }
        // One line per test: `test path::name ... ok`.
        if let Some((name, result)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.rsplit_once(" ... "))
        {
            match result.split([' ', ',']).next() {
                Some("ok") => {
                    counts.0 += 1;
                    tally.pass(format!("cargo: {name}"));
                }
                Some("FAILED") => {
                    counts.1 += 1;
                    failures.add(name);
                }
                _ => {
                    counts.2 += 1;
                    tally.add(
                        format!("cargo: {name}"),
                        Verdict::Skipped,
                        Instant::now(),
                        "ignored",
                    );
                }
            }
        }
    }
    // Reports the failures of a program that died before it printed a summary.
    failures.report(&log_path, tally);
    let status = child.wait()?;
    say!(
        "cargo test: {} passed, {} failed, {} ignored in {:.0} s",
        counts.0,
        counts.1,
        counts.2,
        start.elapsed().as_secs_f64()
    );
    if !status.success() && counts.1 == 0 {
        tally.add(
            "cargo test",
            Verdict::Failed,
            start,
            format!("cargo ended with {status}:\n{}", tail(&log_path, 30)),
        );
    }
    Ok(())
}

/// The failed tests of one test program and their output, which libtest prints after all tests have run.
#[derive(Default)]
struct Failures {
    outputs: Vec<(String, Vec<String>)>,
    speaking: Option<usize>,
}

impl Failures {
    /// Number of lines that are kept of each: a property test prints every step of its shrinking, and its result last.
    const LINES: usize = 50;

    fn add(&mut self, name: &str) {
        self.outputs.push((name.to_owned(), Vec::new()));
    }

    /// Handles a line of the program's output. Returns whether it is the last.
    fn read(&mut self, line: &str) -> bool {
        let heading = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(name) = heading {
            self.speaking = self.outputs.iter().position(|(failed, _)| failed == name);
        } else if line == "failures:" {
            self.speaking = None;
        } else if let Some((_, lines)) = self.speaking.and_then(|index| self.outputs.get_mut(index))
        {
            lines.push(line.to_owned());
        }
        line.starts_with("test result: ")
    }

    /// Counts the failed tests, and prints the end of the output of each.
    fn report(&mut self, log: &Path, tally: &Tally) {
        for (name, lines) in std::mem::take(self).outputs {
            let from = lines.len().saturating_sub(Self::LINES);
            let why = format!("{}\nsee {}", lines[from..].join("\n").trim(), log.display());
            let name = format!("cargo: {name}");
            tally.add(name, Verdict::Failed, Instant::now(), why);
        }
    }
}

/// Runs `make series`: the patches apply to the kernel, and it builds with them.
fn series(settings: &Settings, choice: &Choice, tally: &Tally) {
    let start = Instant::now();
    let output = Command::new("bash")
        .arg("tools/series/test.sh")
        .current_dir(&settings.tree)
        .stdin(Stdio::null())
        .output();
    let (verdict, why) = match output {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            let _ = fs::write(choice.out.join("series.log"), &text);
            let text = String::from_utf8_lossy(&text).into_owned();
            if output.status.success() {
                (Verdict::Passed, String::new())
            } else {
                (Verdict::Failed, text)
            }
        }
        Err(error) => (Verdict::Failed, error.to_string()),
    };
    tally.add("series: applies and builds", verdict, start, why);
}

/// Boots a VM with the test build of the module, whose suites run when it is loaded. Each KUnit case is one case here.
fn kunit(settings: &Settings, choice: &Choice, tally: &Tally) {
    let start = Instant::now();
    let logs = choice.out.join("kunit");
    let options = Options {
        device: Device::Vrnic,
        logs,
        vrnicd: Extra::default(),
        no_rnic: true,
        module: Module::Kunit,
    };
    let console = options.logs.join("console-a.log");
    let results = Lab::boot(settings, options).and_then(|lab| {
        let script = "cat /sys/kernel/debug/kunit/*/results; echo; [ -d /sys/bus/virtio/drivers/vrnic ] || echo 'NOT LOADED'";
        let text = lab.agent("a")?.check(&["sh", "-c", script], SHORT)?;
        let _ = lab.shut_down();
        Ok(text)
    });
    let text = match results {
        Ok(text) => text,
        Err(error) => return tally.add("kunit", Verdict::Failed, start, format!("{error:#}")),
    };
    let _ = fs::write(choice.out.join("kunit.ktap"), &text);
    let cases = ktap(&text);
    if text.contains("NOT LOADED") {
        tally.add(
            "kunit: vrnic.ko",
            Verdict::Failed,
            start,
            format!("the module did not load:\n{}", tail(&console, 20)),
        );
    }
    match suites(sources(settings)) {
        Ok(suites) => {
            let missing = missing(&suites, &cases);
            if missing.is_empty() {
                tally.pass("kunit: suites".to_owned());
            } else {
                let why = format!("suites of the sources that did not run: {missing:?}");
                tally.add("kunit: suites", Verdict::Failed, start, why);
            }
        }
        Err(error) => {
            let why = format!("{error:#}");
            tally.add("kunit: suites", Verdict::Failed, start, why);
        }
    }
    let mut passed = 0;
    for (name, verdict, detail) in cases {
        if verdict == Verdict::Passed {
            passed += 1;
            tally.pass(format!("kunit: {name}"));
        } else {
            tally.add(format!("kunit: {name}"), verdict, Instant::now(), detail);
        }
    }
    if let Err(error) = judge(
        &fs::read_to_string(&console).unwrap_or_default(),
        Known::default(),
    ) {
        let why = error.to_string();
        tally.add("kunit: kernel messages", Verdict::Failed, start, why);
    }
    say!(
        "KUnit: {passed} passed in {:.0} s",
        start.elapsed().as_secs_f64()
    );
}

/// Returns the directories with the sources of the abstractions and of the driver: those of the kernel, if the driver
/// is built in, otherwise those of this tree.
fn sources(settings: &Settings) -> Vec<PathBuf> {
    let kernel = &settings.kernel;
    let (tree, parts) = if kernel.has_driver() {
        let parts = [
            "rust/kernel/virtio",
            "drivers/infiniband/rust",
            "drivers/infiniband/hw/vrnic",
        ];
        (kernel.tree.join("source"), parts)
    } else {
        let parts = ["rust/virtio", "rust/rdma", "drivers/infiniband"];
        (settings.tree.clone(), parts)
    };
    parts.iter().map(|part| tree.join(part)).collect()
}

/// Returns the names of all KUnit suites in the sources in these directories.
fn suites(mut directories: Vec<PathBuf>) -> Result<Vec<String>> {
    let pattern = Regex::new(r"(?m)^\s*#\[kunit_tests\((\w+)\)\]")?;
    let mut suites = Vec::new();
    while let Some(directory) = directories.pop() {
        let entries = fs::read_dir(&directory);
        for entry in entries.with_context(|| directory.display().to_string())? {
            let entry = entry?;
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|it| it == "rs") {
                let text = fs::read_to_string(&path)?;
                let names = pattern.captures_iter(&text);
                suites.extend(names.map(|it| it[1].to_owned()));
            }
        }
    }
    if suites.is_empty() {
        bail!("there is no suite in the sources");
    }
    suites.sort();
    Ok(suites)
}

/// Returns those of `suites` without any of `cases`, as [`ktap`] names them.
fn missing<'a>(suites: &'a [String], cases: &[(String, Verdict, String)]) -> Vec<&'a str> {
    let ran = |suite: &str| {
        let mut names = cases.iter().filter_map(|(name, ..)| name.split_once('.'));
        names.any(|(it, _)| it == suite)
    };
    let names = suites.iter().map(String::as_str);
    names.filter(|suite| !ran(suite)).collect()
}

/// Parses KTAP in the form that debugfs shows: suites are indented by four spaces, their cases by eight.
fn ktap(text: &str) -> Vec<(String, Verdict, String)> {
    let mut cases = Vec::new();
    let mut suite = String::new();
    let mut diagnostics = String::new();
    for line in text.lines() {
        let trimmed = line.trim_start();
        if let Some(name) = trimmed.strip_prefix("# Subtest: ") {
            name.clone_into(&mut suite);
            diagnostics.clear();
            continue;
        }
        let (failed, rest) = match (trimmed.strip_prefix("ok "), trimmed.strip_prefix("not ok ")) {
            (Some(rest), _) => (false, rest),
            (_, Some(rest)) => (true, rest),
            _ => {
                if trimmed.starts_with('#') {
                    diagnostics.push_str(trimmed);
                    diagnostics.push('\n');
                }
                continue;
            }
        };
        let name = rest
            .split_once(' ')
            .map_or(rest, |(_, name)| name)
            .trim_start_matches("- ");
        let (name, directive) = name.split_once(" # ").unwrap_or((name, ""));
        // The line that ends a suite repeats its name; its cases have already been counted.
        if name != suite {
            let verdict = if directive.starts_with("SKIP") {
                Verdict::Skipped
            } else if failed {
                Verdict::Failed
            } else {
                Verdict::Passed
            };
            cases.push((
                format!("{suite}.{name}"),
                verdict,
                std::mem::take(&mut diagnostics),
            ));
        }
    }
    cases
}

/// Returns what kmemleak found, one object after the other, except for objects that match `allowed` and have no vrnic
/// function in their backtrace.
fn lost(found: &str, allowed: Option<&Regex>) -> String {
    let mut objects: Vec<String> = Vec::new();
    for line in found.lines() {
        match objects.last_mut() {
            Some(object) if !line.starts_with("unreferenced object") => {
                object.push_str(line);
                object.push('\n');
            }
            _ => objects.push(format!("{line}\n")),
        }
    }
    objects.retain(|object| {
        object.contains("[vrnic]") || !allowed.is_some_and(|allowed| allowed.is_match(object))
    });
    objects.concat()
}

/// A script of tests/vm with its directives.
#[derive(Debug)]
struct Script {
    name: String,
    path: PathBuf,
    timeout: Duration,
    fresh: bool,
    debug_kernel: bool,
    allow_leaks: bool,
    /// Lines that the .config of the guests' kernel must have.
    needs: Vec<String>,
    /// Kernel reports that are known to be caused by Linux itself.
    allowed: Option<Regex>,
    /// Function of Linux that calls another which reports an error, and is known for it.
    allowed_caller: Option<String>,
    /// Leaks that kmemleak finds and that are known to be caused by Linux itself. Only labs of the script's own are
    /// checked for leaks.
    allowed_leak: Option<Regex>,
    vrnicd: Extra,
    /// Fabrics on which it runs, one after the other; if empty, the selected fabric.
    fabrics: Vec<Fabric>,
    /// Only the first of the fabrics is used, unless everything is requested.
    one_fabric: bool,
    /// Runs only if everything, or this test, is requested.
    long: bool,
    /// Boots many VMs of its own. Two such tests at the same time would be too slow for the timeouts of programs.
    crowd: bool,
}

impl Script {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let name = path
            .file_stem()
            .context("a script has a name")?
            .to_string_lossy()
            .into_owned();
        let mut script = Self {
            name,
            path: path.to_owned(),
            timeout: Duration::from_secs(120),
            fresh: false,
            debug_kernel: false,
            allow_leaks: false,
            needs: Vec::new(),
            allowed: None,
            allowed_caller: None,
            allowed_leak: None,
            vrnicd: Extra::default(),
            fabrics: Vec::new(),
            one_fabric: false,
            long: false,
            crowd: false,
        };
        for directive in text.lines().filter_map(|line| line.strip_prefix("# lab: ")) {
            let (word, rest) = directive
                .trim()
                .split_once([' ', '='])
                .unwrap_or((directive.trim(), ""));
            match word {
                "timeout" => {
                    script.timeout = Duration::from_secs(
                        rest.trim()
                            .parse()
                            .with_context(|| format!("{}: timeout", path.display()))?,
                    );
                }
                "fresh" => script.fresh = true,
                "debug-kernel" => script.debug_kernel = true,
                "allow-leaks" => script.allow_leaks = true,
                "one-fabric" => script.one_fabric = true,
                "long" => script.long = true,
                "crowd" => script.crowd = true,
                "needs" => script.needs.push(rest.trim().to_owned()),
                "fabric" => script.fabrics.push(
                    Fabric::from_str(rest.trim(), false)
                        .map_err(|error| anyhow!("{}: {error}", path.display()))?,
                ),
                "allow-kernel-report" => script.allowed = Some(Regex::new(&format!("(?s){rest}"))?),
                "allow-kernel-warning" => script.allowed_caller = Some(rest.to_owned()),
                "allow-kernel-leak" => {
                    script.allowed_leak = Some(Regex::new(rest)?);
                    script.fresh = true;
                }
                "vrnicd" => {
                    script.vrnicd.daemon.push(rest.to_owned());
                    script.fresh = true;
                }
                "vrnicd-port" => {
                    script.vrnicd.port.push(rest.to_owned());
                    script.fresh = true;
                }
                "switch" => {
                    script.vrnicd.switch = true;
                    script.fresh = true;
                }
                "two-daemons" => {
                    script.vrnicd.two_daemons = true;
                    script.fresh = true;
                }
                "rxe" => {
                    let name = rest.trim();
                    if !NAMES.contains(&name) {
                        bail!("{}: no VM `{name}`", path.display());
                    }
                    script.vrnicd.rxe.push(name.to_owned());
                    script.fresh = true;
                }
                "nvdimm" => {
                    let size = rest.trim().parse();
                    let size = size.with_context(|| format!("{}: nvdimm", path.display()))?;
                    script.vrnicd.nvdimm = Some(size);
                    script.fresh = true;
                }
                "sleeps" => {
                    script.vrnicd.sleeps = true;
                    script.fresh = true;
                }
                "cpus" => {
                    let cpus = rest.trim().parse();
                    let cpus = cpus.with_context(|| format!("{}: cpus", path.display()))?;
                    script.vrnicd.cpus = Some(cpus);
                    script.fresh = true;
                }
                "vrnicd-device" => {
                    script.vrnicd.device.push(rest.to_owned());
                    script.fresh = true;
                }
                _ => bail!("{}: unknown directive `{directive}`", path.display()),
            }
        }
        Ok(script)
    }

    /// Returns an option that the script needs and `kernel` does not have.
    fn lacks(&self, kernel: &Kernel) -> Option<&str> {
        let mut needs = self.needs.iter().map(String::as_str);
        needs.find(|option| !kernel.has(option))
    }

    /// Returns the name of the test on this fabric.
    fn run_name(&self, fabric: Fabric) -> String {
        match fabric {
            Fabric::Local => self.name.clone(),
            Fabric::Roce => format!("{}-roce", self.name),
            Fabric::Infiniband if self.fabrics == [fabric] => self.name.clone(),
            Fabric::Infiniband => format!("{}-infiniband", self.name),
        }
    }
}

/// A lab, and what tests need to know about it.
#[derive(Clone)]
struct TestLab {
    lab: Arc<Lab>,
    gid: u32,
    /// How much of each VM's console [`TestLab::complaints`] has read.
    read: Arc<Mutex<[usize; NAMES.len()]>>,
}

impl TestLab {
    fn boot(settings: &Settings, choice: &Choice, logs: &str, vrnicd: Extra) -> Result<Self> {
        let device = choice.device;
        let lab = Arc::new(Lab::boot(
            settings,
            Options {
                device,
                logs: choice.out.join(logs),
                vrnicd,
                no_rnic: device == Device::Rxe,
                module: Module::Plain,
            },
        )?);
        control::serve(&lab, &lab.sockets().join("control"), None)?;
        let gid = lab.wait_rdma("a", lab.device("a"))?;
        lab.wait_rdma("b", lab.device("b"))?;
        Ok(Self {
            lab,
            gid,
            read: Arc::default(),
        })
    }

    /// Checks that both VMs still answer and have their device.
    fn usable(&self) -> Result<()> {
        for name in NAMES {
            if !self.lab.vm_alive(name) {
                bail!("VM {name} is dead");
            }
            self.lab.wait_rdma(name, self.lab.device(name))?;
        }
        Ok(())
    }

    /// Checks the messages of the VMs' kernels since the last call, or since they were started. Returns the VMs with a
    /// report that matches `known`.
    ///
    /// # Errors
    ///
    /// A VM made another report.
    fn complaints(&self, known: Known<'_>) -> Result<Vec<&'static str>> {
        let mut matching = Vec::new();
        for (name, read) in NAMES.iter().zip(lock(&self.read).iter_mut()) {
            let new = unread(&self.lab.logs().join(format!("console-{name}.log")), read);
            if judge(&new, known).with_context(|| format!("VM {name}"))? {
                matching.push(*name);
            }
        }
        Ok(matching)
    }

    /// Returns the output of `command` in each VM that is alive, except in `others`.
    fn answers(&self, command: &str, others: &[&str]) -> Result<Vec<(&'static str, String)>> {
        let asked = |name: &&str| self.lab.vm_alive(name) && !others.contains(name);
        let mut answers = Vec::new();
        for name in NAMES.into_iter().filter(asked) {
            let text = self.lab.agent(name)?.check(&["sh", "-c", command], SHORT)?;
            answers.push((name, text));
        }
        Ok(answers)
    }

    /// Returns an error if kernels of the VMs have leaked memory, except for what matches `allowed`.
    fn lost_nothing(&self, allowed: Option<&Regex>) -> Result<()> {
        for (name, found) in self.answers(KMEMLEAK, &[])? {
            let lost = lost(&found, allowed);
            if !lost.is_empty() {
                bail!("the kernel of VM {name} leaked memory:\n{lost}");
            }
        }
        Ok(())
    }

    /// Returns the output of `rdma resource show` in a VM that is alive, without the numbers of devices, which change
    /// whenever a driver is bound.
    fn resources(&self, name: &str) -> Option<String> {
        let output = self
            .lab
            .agent(name)
            .ok()?
            .run(&["rdma", "resource", "show"], SHORT)
            .ok()?;
        (output.code == 0).then(|| {
            output
                .stdout
                .lines()
                .map(|line| line.split_once(": ").map_or(line, |(_, device)| device))
                .collect::<Vec<_>>()
                .join("\n")
        })
    }
}

/// Runs the VM tests in several parallel lanes. One lane runs `first` before its VM tests. The others need not wait for
/// that, because linkers and single-threaded tests leave processors idle.
fn vm_tests(
    settings: &Settings,
    choice: &Choice,
    tally: &Tally,
    first: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let dir = settings.tree.join("tests/vm");
    let mut paths: Vec<PathBuf> = fs::read_dir(&dir)
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        })
        .unwrap_or_default();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "sh"));
    paths.sort();
    let mut scripts = Vec::new();
    for path in &paths {
        scripts.push(Script::read(path)?);
    }
    if !settings.kernel.debug() {
        scripts.retain(|script| !script.debug_kernel);
    }
    let everything = choice.all || settings.kernel.slow() || !choice.only.is_empty();
    scripts.retain(|script| everything || !script.long);
    let special = choice.special.as_ref().unwrap_or(&settings.kernel);
    let special = settings.with_kernel(special);
    let mut runs: Vec<(Settings, &Script)> = Vec::new();
    for script in &scripts {
        let fabrics = match &script.fabrics[..] {
            [] => vec![settings.fabric],
            // The fabric makes no difference to guests' kernels, and with a slow kernel, everything takes ten times as
            // long.
            [first, ..] if settings.kernel.slow() => vec![*first],
            [first, ..] if script.one_fabric && !everything => vec![*first],
            fabrics => fabrics.to_vec(),
        };
        // A test must pass on either kernel and on either fabric: one run on each is enough.
        let usual = script.lacks(&settings.kernel).is_none();
        let only_usual = usual && script.lacks(&special.kernel).is_some();
        runs.extend(fabrics.iter().enumerate().map(|(number, &fabric)| {
            let settings = if only_usual || (usual && number == 0) {
                settings
            } else {
                &special
            };
            (settings.with_fabric(fabric), script)
        }));
    }
    runs.retain(|(settings, script)| choice.wants(&script.run_name(settings.fabric)));
    // One boot serves all tests that share a lab, which has one fabric and one kernel. Tests that may take long go
    // first, so that the lanes end at about the same time.
    runs.sort_by_key(|(settings, script)| {
        let lab = (settings.fabric, settings.kernel.built.clone());
        (!script.fresh, lab, Reverse(script.timeout))
    });
    let (runs, boots) = (Mutex::new(VecDeque::from(runs)), AtomicUsize::new(0));
    let crowded = AtomicBool::new(false);
    let next = || loop {
        let mut runs = lock(&runs);
        let fits =
            |(_, script): &(Settings, &Script)| !script.crowd || !crowded.load(Ordering::Relaxed);
        if let Some(run) = (runs.iter().position(fits)).and_then(|place| runs.remove(place)) {
            crowded.fetch_or(run.1.crowd, Ordering::Relaxed);
            return Some(run);
        }
        if runs.is_empty() {
            return None;
        }
        drop(runs);
        thread::sleep(Duration::from_secs(1));
    };
    let lane = || {
        let mut lane = Lane {
            choice,
            tally,
            boots: &boots,
            shared: None,
        };
        while let Some((settings, script)) = next() {
            lane.run(&settings, script);
            if script.crowd {
                crowded.store(false, Ordering::Relaxed);
            }
        }
        lane.leave_shared();
    };
    thread::scope(|scope| {
        for _ in 1..settings.labs {
            scope.spawn(lane);
        }
        let result = first();
        say!("== VM tests");
        lane();
        result
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs VM tests one after the other, in parallel with other lanes. A lane has one lab at a time.
struct Lane<'a> {
    choice: &'a Choice,
    tally: &'a Tally,
    /// Number of shared labs that the lanes have booted.
    boots: &'a AtomicUsize,
    /// The lab for tests that do not need their own. Tests may make faults in it, and clear them.
    shared: Option<TestLab>,
}

impl Lane<'_> {
    fn run(&mut self, settings: &Settings, script: &Script) {
        let start = Instant::now();
        let name = script.run_name(settings.fabric);
        let add = |what: String, verdict, why| self.tally.add(what, verdict, start, why);
        if let Some(option) = script.lacks(&settings.kernel) {
            let (verdict, why) = match &self.choice.special {
                Some(_) => (Verdict::Skipped, format!("the kernel has no {option}")),
                None => (Verdict::Failed, NO_SPECIAL.to_owned()),
            };
            return add(format!("vm: {name}"), verdict, why);
        }
        let lab = match self.lab(settings, script, &name) {
            Ok(lab) => lab,
            Err(error) => {
                return add(format!("vm: {name}"), Verdict::Failed, format!("{error:#}"));
            }
        };
        let (verdict, why) = one(settings, self.choice, script, &lab)
            .unwrap_or_else(|error| (Verdict::Failed, format!("{error:#}")));
        add(format!("vm: {name}"), verdict, why);
        if script.fresh {
            return;
        }
        if verdict == Verdict::Failed || (settings.kernel.debug() && script.allowed.is_some()) {
            // What the test left behind, including a kernel that no longer checks for errors, must not affect the next
            // test.
            self.leave_shared();
        } else if let Err(error) = lab.usable() {
            let what = format!("vm: lab after {name}");
            add(what, Verdict::Failed, format!("{error:#}"));
            self.leave_shared();
        }
    }

    /// Ends the shared lab. The debug kernel searches for leaks only now, because that takes a minute.
    fn leave_shared(&mut self) {
        let Some(shared) = self.shared.take() else {
            return;
        };
        if shared.lab.settings.kernel.debug() {
            let start = Instant::now();
            let name = shared
                .lab
                .logs()
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy();
            let what = format!("vm: memory of {name}");
            let (verdict, why) = match shared.lost_nothing(None) {
                Ok(()) => (Verdict::Passed, String::new()),
                Err(error) => (Verdict::Failed, format!("{error:#}")),
            };
            self.tally.add(what, verdict, start, why);
        }
    }

    /// Returns a lab for a script.
    fn lab(&mut self, settings: &Settings, script: &Script, name: &str) -> Result<TestLab> {
        let suits = |shared: &TestLab| {
            let its = &shared.lab.settings;
            (its.fabric, &its.kernel.tree) == (settings.fabric, &settings.kernel.tree)
        };
        if script.fresh || !self.shared.as_ref().is_some_and(suits) {
            self.leave_shared();
        }
        let boot = |logs: &str, extra| TestLab::boot(settings, self.choice, logs, extra);
        if script.fresh {
            return boot(&format!("vm/{name}.lab"), script.vrnicd.clone());
        }
        if let Some(shared) = &self.shared {
            return Ok(shared.clone());
        }
        let number = self.boots.fetch_add(1, Ordering::Relaxed) + 1;
        let logs = format!("vm/shared-{}-{number}.lab", settings.fabric.name());
        let extra = Extra {
            daemon: vec!["faults = true".to_owned()],
            ..Extra::default()
        };
        let shared = boot(&logs, extra)?;
        Ok(self.shared.insert(shared).clone())
    }
}

/// Runs one script in a lab and judges the result.
fn one(
    settings: &Settings,
    choice: &Choice,
    script: &Script,
    test_lab: &TestLab,
) -> Result<(Verdict, String)> {
    let lab = &test_lab.lab;
    let before: Vec<Option<String>> = NAMES.iter().map(|name| test_lab.resources(name)).collect();

    let log_path = choice
        .out
        .join("vm")
        .join(format!("{}.log", script.run_name(settings.fabric)));
    fs::create_dir_all(choice.out.join("vm"))?;
    let _ = fs::remove_file(&log_path);
    let scratch = scratch()?;
    let patience = script.timeout * settings.slowness();
    let start = Instant::now();
    let mut env = vec![
        ("LAB_CONTROL", text(&lab.sockets().join("control"))),
        ("LAB_BIN", PROGRAM.clone()),
        ("VRNIC_CONTROL", text(&lab.control())),
        ("VRNICCTL", text(&settings.programs().join("vrnicctl"))),
        ("LAB_LIB", text(&settings.tree.join("tools/lab/vmtest.sh"))),
        ("LAB_DIR", text(scratch.path())),
        ("DEV", lab.device("a").ibdev().to_owned()),
        ("FABRIC", settings.fabric.name().to_owned()),
        ("LAB_SLOWNESS", settings.slowness().to_string()),
        ("LAB_ALL", choice.all.to_string()),
        ("NETDEV", "eth0".to_owned()),
        ("GID_INDEX", test_lab.gid.to_string()),
        ("VMS", NAMES.join(" ")),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect::<Vec<_>>();
    // For labs that the test starts itself.
    let kernel = settings.kernel.built.file_name().unwrap_or_default();
    if kernel != "own" {
        let kernel = kernel.to_string_lossy().into_owned();
        env.push(("VRNIC_KERNEL".to_owned(), kernel));
    }
    for name in NAMES {
        env.push((format!("IP_{name}"), lab.address(name, Family::V4)?));
        env.push((format!("IP6_{name}"), lab.address(name, Family::V6)?));
        env.push((format!("DEV_{name}"), lab.device(name).ibdev().to_owned()));
    }
    // Labs that the test boots itself use the same kernel. KDIR takes precedence.
    env.push(("VRNIC_KERNEL".to_owned(), settings.kernel.name()));
    // `timeout` is the leader of the process group, and kills all of it.
    let words = [
        format!("--chdir={}", settings.tree.display()),
        "timeout".to_owned(),
        "--kill-after=5".to_owned(),
        patience.as_secs().to_string(),
        "bash".to_owned(),
        "-euo".to_owned(),
        "pipefail".to_owned(),
        text(&script.path),
    ];
    let mut test = Process::start("the test", Path::new("env"), &words, &env, &log_path)?;
    let code = test.wait()?.code().unwrap_or(1);
    // Programs that the test left running are killed.
    test.kill();

    if code == 77 {
        return Ok((Verdict::Skipped, tail(&log_path, 1)));
    }
    if code != 0 {
        // The script itself may end with 124, the exit code of a program in a VM.
        let reason = if start.elapsed() >= patience {
            format!("not done after {} s", patience.as_secs())
        } else {
            format!("exit code {code}")
        };
        return Ok((
            Verdict::Failed,
            format!(
                "{reason}; {} ends with:\n{}",
                log_path.display(),
                tail(&log_path, 25)
            ),
        ));
    }
    let known = Known {
        // Only the debug kernel makes such reports.
        report: script.allowed.as_ref().filter(|_| settings.kernel.debug()),
        caller: script.allowed_caller.as_deref(),
    };
    let known = test_lab.complaints(known)?;
    if !script.allow_leaks {
        for (name, before) in NAMES.iter().zip(before) {
            if let Some(leak) = leaked(test_lab, name, before) {
                return Ok((Verdict::Failed, leak));
            }
        }
    }
    if settings.kernel.debug() {
        let answers = test_lab.answers(BLIND, &known)?;
        if let Some((name, _)) = answers.iter().find(|(_, answer)| !answer.is_empty()) {
            let why = format!("lockdep is off in the kernel of VM {name}");
            return Ok((Verdict::Failed, why));
        }
        if script.fresh {
            test_lab.lost_nothing(script.allowed_leak.as_ref())?;
        }
    }
    Ok((Verdict::Passed, String::new()))
}

/// Prints a word if lockdep has been disabled, which happens after any kernel report and makes it miss errors.
const BLIND: &str = r"grep -qE 'debug_locks: +1$' /proc/lockdep_stats || echo blind";

/// Prints memory of the guest's kernel to which kmemleak's last scan found no pointer. Allocations of the last five
/// seconds do not count, so the first scan comes after that. A scan may miss a pointer that moves meanwhile, so
/// findings are checked again.
const KMEMLEAK: &str = "f=/sys/kernel/debug/kmemleak; [ -e $f ] || { echo 'no kmemleak'; exit 1; }
    sleep 6; echo scan >$f; echo scan >$f
    [ -z \"$(cat $f)\" ] || { sleep 6; echo scan >$f; }
    cat $f";

/// Returns objects that still exist some seconds after the test, if any. Nothing is known of a VM that died or was
/// rebooted.
fn leaked(test_lab: &TestLab, name: &str, before: Option<String>) -> Option<String> {
    let before = before?;
    let deadline = Instant::now() + Duration::from_secs(30) * test_lab.lab.settings.slowness();
    loop {
        if !test_lab.lab.vm_alive(name) {
            return None;
        }
        let now = test_lab.resources(name)?;
        if now == before {
            return None;
        }
        if Instant::now() > deadline {
            return Some(format!(
                "the RDMA objects of VM {name} are not those from before the test\nbefore: {}\nafter:  {}",
                before.trim(),
                now.trim()
            ));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ktap_counts_cases_not_suites() {
        let text = "\
    KTAP version 1
    # Subtest: vrnic_rings
    1..3
    ok 1 wraps
    # full: EXPECTATION FAILED at drivers/ring.rs:7
    not ok 2 full
    ok 3 big # SKIP too little memory
# vrnic_rings: pass:1 fail:1 skip:1 total:3
not ok 1 vrnic_rings
";
        let cases = ktap(text);
        let short: Vec<_> = cases
            .iter()
            .map(|(name, verdict, _)| (name.as_str(), *verdict))
            .collect();
        assert_eq!(
            short,
            [
                ("vrnic_rings.wraps", Verdict::Passed),
                ("vrnic_rings.full", Verdict::Failed),
                ("vrnic_rings.big", Verdict::Skipped)
            ]
        );
        assert!(cases[1].2.contains("EXPECTATION FAILED"));
    }

    #[test]
    fn failed_host_tests_say_why() {
        let text = "\
running 2 tests
test good ... ok
test bad ... FAILED

failures:

---- bad stdout ----
thread 'bad' panicked at tests/x.rs:7:9:
minimal failing input: 3

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out
";
        let mut failures = Failures::default();
        failures.add("bad");
        let ends: Vec<bool> = text.lines().map(|line| failures.read(line)).collect();
        assert_eq!(ends.iter().position(|end| *end), Some(ends.len() - 1));
        let tally = Tally::default();
        failures.report(Path::new("cargo.log"), &tally);
        assert_eq!(tally.count(Verdict::Failed), 1);
        assert!(
            lock(&tally.cases)[0]
                .why
                .contains("minimal failing input: 3")
        );
        assert!(!lock(&tally.cases)[0].why.contains("failures:"));
        // What has been reported is not reported again.
        failures.report(Path::new("cargo.log"), &tally);
        assert_eq!(lock(&tally.cases).len(), 1);
    }

    #[test]
    fn parts_of_names_choose_tests() {
        let choice = |only: &[&str]| Choice {
            only: only.iter().map(|&part| part.to_owned()).collect(),
            guests: false,
            all: false,
            device: Device::Vrnic,
            special: None,
            out: PathBuf::new(),
        };
        assert!(choice(&[]).wants("srp"));
        assert!(choice(&["stress", "rp"]).wants("srp"));
        assert!(!choice(&["stress"]).wants("srp"));
    }

    #[test]
    fn lost_objects_are_allowed_one_by_one() {
        let task =
            "unreferenced object 0x1 (size 9):\n  comm \"a\"\n    dup_task_struct+0x3b/0x810\n";
        let ours = "unreferenced object 0x2 (size 8):\n    dup_task_struct+0x1/0x2\n    create+0x1/0x2 [vrnic]\n";
        let allowed = Regex::new("dup_task_struct").unwrap();
        assert_eq!(lost("", None), "");
        assert_eq!(lost(task, None), task);
        assert_eq!(lost(task, Some(&allowed)), "");
        assert_eq!(lost(&format!("{task}{ours}{task}"), Some(&allowed)), ours);
        assert_eq!(lost("no kmemleak\n", Some(&allowed)), "no kmemleak\n");
    }

    #[test]
    fn a_suite_that_does_not_run_is_missed() {
        let dir = tempfile::tempdir().unwrap();
        let sources = || suites(vec![dir.path().to_owned()]);
        assert!(sources().is_err());
        assert!(suites(vec![dir.path().join("other")]).is_err());
        fs::create_dir(dir.path().join("qp")).unwrap();
        let text = "#[kunit_tests(rdma_qp)]\nmod cases {}\n// #[kunit_tests(no)]\n";
        fs::write(dir.path().join("qp/tests.rs"), text).unwrap();
        fs::write(dir.path().join("cq.rs"), "    #[kunit_tests(rdma_cq)]\n").unwrap();
        let suites = sources().unwrap();
        assert_eq!(suites, ["rdma_cq", "rdma_qp"]);
        let cases = ktap("    # Subtest: rdma_cq\n    1..1\n        ok 1 one\n    ok 1 rdma_cq\n");
        assert_eq!(missing(&suites, &cases), ["rdma_qp"]);
    }

    #[test]
    fn directives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kill.sh");
        fs::write(&path, "# SPDX\n# lab: timeout=30\n# lab: allow-kernel-report a.*b\n# lab: vrnicd poll_us = 0\nfail\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert_eq!(
            (script.timeout.as_secs(), script.fresh, script.name.as_str()),
            (30, true, "kill")
        );
        assert_eq!(script.vrnicd.daemon, ["poll_us = 0"]);
        assert!(script.fabrics.is_empty());
        assert!(script.allowed.unwrap().is_match("ax\nxb"));
        fs::write(&path, "# lab: fabric=local\n# lab: fabric=roce\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert_eq!(script.fabrics, [Fabric::Local, Fabric::Roce]);
        assert!(!script.one_fabric);
        fs::write(
            &path,
            "# lab: fabric=roce\n# lab: fabric=local\n# lab: one-fabric\n",
        )
        .unwrap();
        let script = Script::read(&path).unwrap();
        assert_eq!(script.fabrics, [Fabric::Roce, Fabric::Local]);
        assert!(script.one_fabric && !script.long && !script.crowd);
        fs::write(&path, "# lab: crowd\n# lab: long\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert!(script.crowd && script.long);
        fs::write(&path, "# lab: rxe=b\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert!(script.fresh && script.vrnicd.rxe == ["b"]);
        fs::write(&path, "# lab: nvdimm=64\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert!(script.fresh && script.vrnicd.nvdimm == Some(64));
        fs::write(&path, "# lab: sleeps\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert!(script.fresh && script.vrnicd.sleeps);
        fs::write(&path, "# lab: needs CONFIG_A=y\n# lab: needs CONFIG_B=m\n").unwrap();
        let script = Script::read(&path).unwrap();
        let kernel = |config: &str| Kernel {
            config: config.to_owned(),
            ..Kernel::default()
        };
        let lacks = |config| script.lacks(&kernel(config)).map(str::to_owned);
        assert_eq!(lacks("CONFIG_A=y\nCONFIG_B=m\n"), None);
        assert_eq!(lacks("CONFIG_A=y\nCONFIG_B=y\n").unwrap(), "CONFIG_B=m");
        fs::write(&path, "# lab: cpus=2\n").unwrap();
        let script = Script::read(&path).unwrap();
        assert!(script.fresh && script.vrnicd.cpus == Some(2));
        fs::write(&path, "# lab: rxe=c\n").unwrap();
        assert!(Script::read(&path).is_err());
        fs::write(&path, "# lab: fabric=token-ring\n").unwrap();
        assert!(Script::read(&path).is_err());
        fs::write(&path, "# lab: tiemout=30\n").unwrap();
        assert!(Script::read(&path).is_err());
    }
}
