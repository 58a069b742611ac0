// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Command line of `vrnic-replay`.

#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use clap::{CommandFactory, Parser, Subcommand};
use vrnic_engine::memory::Nowhere;
use vrnic_engine::recording::{Failed, Outcome, Player, panic_message};
use vrnic_engine::{Engine, Explanation};
use vrnic_replay::check::Checker;
use vrnic_replay::minimise::{Failure, minimise};
use vrnic_replay::story::{Event, Narrator, timeline_head};
use vrnicd::control::answer::explanation;
use vrnicd::recording::create_private;

/// Replays a recording of a device, checks that the device does exactly the same again, and shows what happened.
///
/// To make a recording, use `vrnicctl record start`. The replay runs offline, without a guest, network or clock. Times
/// are in seconds of the device's clock, as in vrnicctl.
///
/// The exit code is 0 if the replay matches the recording and everything that you requested succeeded.
#[derive(Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
struct Arguments {
    /// The recording.
    #[arg(required = true)]
    file: Option<PathBuf>,

    /// Stop at this time, or after call N if given as `#N`, and show the state of the device.
    #[arg(long, value_name = "SECONDS|#N", value_parser = parse_until)]
    until: Option<Until>,

    /// Explain what went wrong on this queue pair, and why.
    #[arg(long, value_name = "QPN")]
    explain: Option<u32>,

    /// Print a sequence diagram: the guest's requests and completions on the left of a bar, packets on the right.
    #[arg(long)]
    timeline: bool,

    /// Show only this queue pair in the sequence diagram.
    #[arg(long, value_name = "QPN", requires = "timeline")]
    qpn: Option<u32>,

    /// Check every step against the rules that the standard sets for a device.
    #[arg(long)]
    check: bool,

    /// Find a smaller recording in which the failure still happens, and write it to OUT. The failure is the one given
    /// with --fails. Without --fails, it is a panic of the engine, if there is one, or the first violation that --check
    /// finds.
    #[arg(long, value_name = "OUT")]
    minimise: Option<PathBuf>,

    /// The failure to preserve: a text that a line of the timeline contains, such as `IBV_WC_RETRY_EXC_ERR`.
    #[arg(long, value_name = "TEXT", requires = "minimise")]
    fails: Option<String>,

    #[command(subcommand)]
    command: Option<Internal>,
}

#[derive(Subcommand)]
enum Internal {
    /// Write man pages and shell completions.
    #[command(name = vrnicd::manual::SUBCOMMAND, hide = true)]
    Manual { directory: PathBuf },
}

/// Where to stop.
#[derive(Clone, Copy, Debug)]
enum Until {
    Call(u64),
    Time(u64),
}

fn parse_until(text: &str) -> Result<Until, String> {
    if let Some(call) = text.strip_prefix('#') {
        return call
            .parse()
            .map(Until::Call)
            .map_err(|_| "expected the number of a call".into());
    }
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let time = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    let nanoseconds = u64::try_from(time.as_nanos()).map_err(|_| "too long".to_owned())?;
    Ok(Until::Time(nanoseconds))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Panics of the engine are results here and are reported as such, so print nothing.
    std::panic::set_hook(Box::new(|info| {
        PANIC.with(|place| {
            let location = info.location().map(ToString::to_string);
            *place.borrow_mut() = location.unwrap_or_default();
        });
    }));
    let outcome = catch_unwind(|| run(&arguments)).unwrap_or_else(|payload| {
        // This panic did not come from the engine and has not been reported.
        let place = PANIC.with(|place| place.borrow().clone());
        Err(anyhow!(
            "internal error: {} ({place})",
            panic_message(&*payload)
        ))
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let broken = error.downcast_ref::<std::io::Error>();
            if broken.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe) {
                return ExitCode::SUCCESS;
            }
            let _ = writeln!(std::io::stderr(), "vrnic-replay: {error:#}");
            ExitCode::FAILURE
        }
    }
}

thread_local! {
    /// Location of the latest panic.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn run(arguments: &Arguments) -> Result<bool> {
    if let Some(Internal::Manual { directory }) = &arguments.command {
        vrnicd::manual::write(Arguments::command(), 1, directory)?;
        return Ok(true);
    }
    let Some(file) = &arguments.file else {
        bail!("name the recording to replay");
    };
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let sound = play(arguments, &bytes).with_context(|| file.display().to_string())?;
    match &arguments.minimise {
        Some(out) => reduce(arguments, &bytes, out),
        None => Ok(sound),
    }
}

/// Replays and prints what was requested. Returns whether everything succeeded.
fn play(arguments: &Arguments, bytes: &[u8]) -> Result<bool> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut player = Player::new(bytes)?;
    let header = player.recording().header().clone();
    let mut narrator = Narrator::new(player.rnic());
    let mut checker = Checker::new(player.rnic());
    let mut explanations: Vec<Explanation> = Vec::new();
    let (mut calls, mut last) = (0u64, 0);
    let mut first = None;
    let mut failed = None;
    let mut panicked = None;
    if arguments.timeline {
        out.write_all(timeline_head().as_bytes())?;
    }
    loop {
        let enough = arguments.until.is_some_and(|until| match until {
            Until::Call(call) => calls > call,
            Until::Time(time) => player
                .next_time()
                .is_some_and(|next| next.as_nanos() >= time),
        });
        if enough {
            break;
        }
        let (call, step) = match player.next() {
            None => break,
            Some(Ok(step)) => step,
            Some(Err(error)) => {
                failed = Some(error);
                break;
            }
        };
        calls += 1;
        last = call.now.as_nanos();
        first.get_or_insert(last);
        let panics = call.outcome == Outcome::Panicked;
        let events = narrator.tell(&call, &step, player.rnic());
        for told in &events {
            match &told.event {
                Event::Explained(why) => explanations.push((**why).clone()),
                Event::Panicked(message) => panicked = Some(message.clone()),
                _ => {}
            }
            let wanted = arguments.qpn.is_none_or(|qpn| told.qpn() == Some(qpn));
            if arguments.timeline && wanted {
                writeln!(out, "{told}")?;
            }
        }
        if arguments.check {
            checker.look(&events, (!panics).then_some(player.rnic()));
        }
    }
    let passed = Duration::from_nanos(last.saturating_sub(first.unwrap_or(last)));
    writeln!(
        out,
        "device {} ({}): {calls} calls in {:.6} s",
        header.device.escape_debug(),
        header.program.escape_debug(),
        passed.as_secs_f64()
    )?;
    let mut sound = match &failed {
        None => {
            writeln!(out, "the replay is equal to the recording")?;
            true
        }
        Some(Failed::Divergence(divergence)) => {
            writeln!(
                out,
                "the replay is NOT equal to the recording: {divergence}"
            )?;
            let here = concat!("vrnic ", env!("CARGO_PKG_VERSION"));
            if header.program != here {
                let program = header.program.escape_debug();
                writeln!(
                    out,
                    "the recording was made by {program}, but this program is {here}"
                )?;
            }
            false
        }
        Some(Failed::Bad(bad)) => {
            writeln!(
                out,
                "the replay is equal up to a damaged part of the recording: {bad}"
            )?;
            false
        }
    };
    if arguments.until.is_none() && failed.is_none() {
        match player.recording().ended() {
            Some(why) => writeln!(out, "the recording ends: {}", why.escape_debug())?,
            None if panicked.is_some() => {}
            None => writeln!(
                out,
                "the recording has no end: vrnicd was killed, or could not write the file"
            )?,
        }
    }
    if let Some(message) = &panicked {
        let place = PANIC.with(|place| place.borrow().clone());
        writeln!(out, "the engine panics, as it did: {message} ({place})")?;
    }
    if arguments.until.is_some() && panicked.is_none() {
        write!(out, "{}", state(player.rnic()))?;
    }
    if let Some(qpn) = arguments.explain {
        explain(&mut out, qpn, &explanations, player.leftovers())?;
    }
    if arguments.check {
        let (completions, packets) = checker.looked_at;
        for violation in &checker.violations {
            writeln!(out, "{violation}")?;
        }
        writeln!(
            out,
            "{completions} completions and {packets} packets checked, {} violations",
            checker.violations.len()
        )?;
        sound &= checker.violations.is_empty();
    }
    out.flush()?;
    Ok(sound)
}

/// Explains what went wrong on a queue pair.
fn explain(
    out: &mut impl Write,
    qpn: u32,
    told: &[Explanation],
    left: Vec<Explanation>,
) -> Result<()> {
    let mut any = false;
    for why in told.iter().chain(&left).filter(|why| why.number == qpn) {
        let nanoseconds = why.time.as_nanos();
        let (seconds, rest) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
        writeln!(out, "at {seconds}.{rest:09} s: {}", explanation(0, why))?;
        any = true;
    }
    if !any {
        writeln!(out, "nothing went wrong on QP {qpn}")?;
    }
    Ok(())
}

/// Describes the device.
fn state(engine: &Engine) -> String {
    let mut text = String::new();
    let mut first = 0;
    while let Some(page) = engine.qp_page(first, 256, &Nowhere) {
        first += 256;
        for qp in page {
            let _ = writeln!(
                text,
                "QP {}: {:?}, {}, peer {}, next PSN {}, unacknowledged from {}, expects {}, {} sends in flight",
                qp.number,
                qp.qp_type,
                qp.state.name(),
                qp.destination_qpn,
                qp.send_psn,
                qp.unacknowledged_psn,
                qp.receive_psn,
                qp.sends_in_flight
            );
        }
    }
    let names = vrnic_wire::counter::Counter::ALL.iter();
    for (counter, value) in names.zip(engine.counters()) {
        if *value != 0 {
            let _ = writeln!(text, "{} {value}", counter.name().to_string_lossy());
        }
    }
    text
}

/// Writes the smallest recording that still fails.
fn reduce(arguments: &Arguments, bytes: &[u8], out: &Path) -> Result<bool> {
    let failure = match &arguments.fails {
        Some(text) => Failure::Says(text.clone()),
        None => match Failure::find(bytes)? {
            Some(failure) => failure,
            None => {
                bail!("nothing fails in this recording: use --fails to name the failure")
            }
        },
    };
    let minimal = minimise(bytes, &failure)?;
    create_private(out)
        .and_then(|mut file| file.write_all(&minimal.recording))
        .with_context(|| format!("cannot write {}", out.display()))?;
    writeln!(
        std::io::stdout(),
        "{}: {} of {} calls up to the failure, after {} attempts",
        out.display(),
        minimal.calls,
        minimal.before,
        minimal.attempts
    )?;
    Ok(true)
}
