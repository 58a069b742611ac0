// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab pair`: runs a user's server in VM b and a client in VM a.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use vrnic_lab::protocol::Stream;

use crate::agent::{Agent, Event, Program};
use crate::chaos::plan;
use crate::exec::Outcome;
use crate::lab::{Extra, Lab, Module, Options, TREE};
use crate::output;
use crate::settings::Settings;
use crate::vm::{Device, Family};

/// How long the server may take to end after the client.
const FAREWELL: Duration = Duration::from_secs(10);
/// If the server's port is not known, the client starts this much later.
const HEAD_START: Duration = Duration::from_secs(1);

/// Arguments on the command line.
#[derive(Args)]
pub struct Arguments {
    /// RDMA device in the VMs
    #[arg(long, value_enum, default_value = "vrnic")]
    device: Device,
    /// Mount DIR in the VMs as /mnt/tree, read-write, and run the commands there
    #[arg(long, value_name = "DIR")]
    tree: Option<PathBuf>,
    /// Port of the server (TCP or rdma_cm): the client starts when the server listens; default: after one second
    #[arg(long, value_name = "PORT")]
    listen: Option<u16>,
    /// Kill the programs if they have not ended after this many seconds
    #[arg(long, default_value_t = 600)]
    timeout: u64,
    /// Directory for the logs
    #[arg(long, default_value = "build/pair")]
    out: PathBuf,
    /// When both programs have ended, print their output and exit codes as JSON, as `exec` does
    #[arg(long)]
    json: bool,
    /// SERVER-COMMAND --- CLIENT-COMMAND
    #[arg(last = true, required = true, value_name = "COMMANDS")]
    commands: Vec<String>,
}

/// Checks a directory that VMs are to mount, and returns its path.
///
/// # Errors
/// It is not a directory.
pub fn tree(dir: &Path) -> Result<PathBuf> {
    let path = dir
        .canonicalize()
        .with_context(|| format!("--tree {}", dir.display()))?;
    if !path.is_dir() {
        bail!("--tree {}: not a directory", dir.display());
    }
    Ok(path)
}

/// One of the two programs.
struct End {
    program: Program,
    /// Mark at the beginning of each printed line.
    mark: &'static str,
    log: File,
    /// A line whose end has not arrived yet.
    line: Vec<u8>,
    code: Option<i32>,
    /// What it printed, if that is for JSON.
    kept: Option<[Vec<u8>; 2]>,
}

impl End {
    fn start(
        agent: &Agent,
        command: &str,
        environment: &[(&str, &str)],
        log: &Path,
        mark: &'static str,
        json: bool,
    ) -> Result<Self> {
        Ok(Self {
            program: agent.start(&["sh", "-c", command], environment)?,
            mark,
            log: File::create(log).with_context(|| format!("making {}", log.display()))?,
            line: Vec::new(),
            code: None,
            kept: json.then(Default::default),
        })
    }

    /// Passes on the output until the program ends, or until `deadline`.
    fn follow(&mut self, deadline: Instant) -> Result<()> {
        while self.code.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.program.next(left) {
                Some(Event::Output(stream, bytes)) => self.print(stream, &bytes)?,
                Some(Event::Exit(code)) => self.code = Some(code),
                Some(Event::Lost(why)) => {
                    self.print(Stream::Err, format!("{why}\n").as_bytes())?;
                    self.code = Some(127);
                }
                None => return Ok(()),
            }
        }
        if !self.line.is_empty() {
            self.print(Stream::Out, b"\n")?;
        }
        Ok(())
    }

    /// Prints whole lines only, because lines of the other end may come between. Or keeps everything for JSON.
    fn print(&mut self, stream: Stream, bytes: &[u8]) -> Result<()> {
        self.log.write_all(bytes)?;
        if let Some([stdout, stderr]) = &mut self.kept {
            let kept = match stream {
                Stream::Out => stdout,
                Stream::Err => stderr,
            };
            kept.extend_from_slice(bytes);
            return Ok(());
        }
        self.line.extend_from_slice(bytes);
        let Some(end) = self.line.iter().rposition(|&byte| byte == b'\n') else {
            return Ok(());
        };
        let mut marked = Vec::new();
        for line in self
            .line
            .drain(..=end)
            .as_slice()
            .split_inclusive(|&byte| byte == b'\n')
        {
            marked.extend_from_slice(self.mark.as_bytes());
            marked.extend_from_slice(line);
        }
        output::pass_on(Stream::Out, &marked)
    }

    /// Returns its result. Kills it if it has not ended.
    fn end(mut self, vm: &str) -> Result<Outcome> {
        if self.code.is_none() {
            let why = b"vrnic-lab: the command ran too long and was killed\n";
            self.print(Stream::Err, why)?;
            self.program.kill();
        }
        let [stdout, stderr] = self.kept.unwrap_or_default();
        Ok(Outcome {
            vm: vm.to_owned(),
            code: self.code.unwrap_or(124),
            stdout,
            stderr,
        })
    }
}

/// Boots a lab for the two programs, runs them, and returns the exit code.
///
/// # Errors
/// There are not two commands, the lab did not come up, or a VM was lost.
pub fn run(settings: &Settings, arguments: Arguments) -> Result<i32> {
    let words = plan::own(&arguments.commands, arguments.listen, arguments.timeout)?;
    let shared = arguments.tree.as_deref().map(tree).transpose()?;
    let out = settings.tree.join(&arguments.out);
    fs::create_dir_all(&out).with_context(|| format!("making {}", out.display()))?;
    let there = |command: &str| match &shared {
        Some(_) => format!("cd {TREE} || exit\n{command}"),
        None => command.to_owned(),
    };
    let lab = Lab::boot(
        settings,
        Options {
            device: arguments.device,
            logs: out.join("logs"),
            vrnicd: Extra {
                tree: shared.clone(),
                ..Extra::default()
            },
            no_rnic: arguments.device == Device::Rxe,
            module: Module::Plain,
        },
    )?;
    let start = |vm: &str, command: &str, log: &str, mark| -> Result<(Agent, End)> {
        let agent = lab.agent(vm)?;
        let gid = lab.wait_rdma(vm, lab.device(vm))?.to_string();
        let server = lab.address("b", Family::V4)?;
        let environment = [
            ("DEV", lab.device(vm).ibdev()),
            ("GID", &gid),
            ("SERVER", &server),
        ];
        let command = there(command);
        let log = out.join(log);
        let end = End::start(&agent, &command, &environment, &log, mark, arguments.json)?;
        Ok((agent, end))
    };
    let (agent, mut server) = start("b", &words.server, "server.log", "b| ")?;
    let deadline = Instant::now() + agent.patience(Duration::from_secs(arguments.timeout));
    match arguments.listen {
        None => server.follow(Instant::now() + HEAD_START)?,
        Some(port) => {
            while server.code.is_none() && Instant::now() < deadline && !agent.listens(port)? {
                server.follow(Instant::now() + Duration::from_millis(100))?;
            }
        }
    }
    let (_, mut client) = start("a", &words.client, "client.log", "")?;
    while client.code.is_none() && Instant::now() < deadline {
        client.follow(deadline.min(Instant::now() + Duration::from_millis(50)))?;
        server.follow(Instant::now())?;
    }
    server.follow(deadline.min(Instant::now() + FAREWELL))?;
    let outcomes = [client.end("a")?, server.end("b")?];
    if arguments.json {
        output::print_json(&outcomes.each_ref().map(Outcome::json))?;
    }
    if !lab.shut_down() {
        bail!(
            "vrnicd did not end cleanly; its log is in {}",
            out.join("logs").display()
        );
    }
    let mut codes = outcomes.iter().map(|outcome| outcome.code);
    Ok(codes.find(|code| *code != 0).unwrap_or(0))
}
