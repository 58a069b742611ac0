// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket of a running lab: `vrnic-lab exec` and the VM tests' `on` and `lab` speak to it.
//!
//! One connection carries one request, a line of JSON, and its answers, lines of JSON. A client that hangs up
//! while its program runs gets the program killed.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vrnic_lab::protocol::{Stream, decode, encode};

use crate::agent::Event;
use crate::daemon;
use crate::lab::Lab;
use crate::perf::{self, End, Pair};
use crate::vm::Family;

/// What a client may ask.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Runs a program in a VM. Answered by outputs and one end.
    Exec {
        /// `a` or `b`.
        vm: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// Seconds until it is killed.
        timeout: u64,
    },
    /// A fact about the lab: `pid vrnicd`, `pid qemu-a`, `console a`, `log`, `config`, `sockets`, `device`,
    /// `control` (vrnicd's control socket).
    Fact(Vec<String>),
    /// Sends a QMP command.
    Qmp {
        /// `a` or `b`.
        vm: String,
        /// JSON.
        command: String,
    },
    /// Waits for a boot of the guest that nobody has waited for yet (the first one does not count).
    Wait(String),
    /// Waits for the RDMA device and answers with the index of the GID of that address.
    Ready(String, Family),
    /// Boots the VM anew.
    Boot(String),
    /// Kills the VM's QEMU.
    Kill(String),
    /// Starts a new vrnicd.
    RestartVrnicd,
    /// Runs a two-ended program; answered with the client's output.
    Perf {
        /// VM of the client.
        client: String,
        /// VM of the server.
        server: String,
        /// Which addresses the queue pairs use.
        family: Family,
        /// Program and arguments.
        argv: Vec<String>,
    },
}

impl Ask {
    /// Reads a request as people write it.
    ///
    /// # Errors
    /// No such request.
    pub fn from_words(words: &[String]) -> Result<Self> {
        let list: Vec<&str> = words.iter().map(String::as_str).collect();
        let own = str::to_owned;
        Ok(match list.as_slice() {
            [
                "pid" | "console" | "log" | "config" | "sockets" | "device" | "control",
                ..,
            ] => Self::Fact(words.to_vec()),
            ["qmp", vm, command] => Self::Qmp {
                vm: own(vm),
                command: own(command),
            },
            ["wait", vm] => Self::Wait(own(vm)),
            ["ready", vm] => Self::Ready(own(vm), Family::V4),
            ["ready", "-6", vm] => Self::Ready(own(vm), Family::V6),
            ["boot", vm] => Self::Boot(own(vm)),
            ["kill", vm] => Self::Kill(own(vm)),
            ["restart-vrnicd"] => Self::RestartVrnicd,
            ["perf", "-6", client, server, argv @ ..] if !argv.is_empty() => {
                Self::perf(Family::V6, client, server, argv)
            }
            ["perf", client, server, argv @ ..] if !argv.is_empty() => {
                Self::perf(Family::V4, client, server, argv)
            }
            _ => bail!(
                "unknown request `{}`; see vrnic-lab ctl --help",
                words.join(" ")
            ),
        })
    }

    fn perf(family: Family, client: &str, server: &str, argv: &[&str]) -> Self {
        Self::Perf {
            client: client.to_owned(),
            server: server.to_owned(),
            family,
            argv: argv.iter().map(|&word| word.to_owned()).collect(),
        }
    }
}

/// Answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A program printed; base64.
    Output(Stream, String),
    /// A program ended; 124 after a timeout, 127 when it could not be started.
    End(i32),
    /// The answer to everything else.
    Done(String),
    /// It did not work.
    Failed(String),
}

/// Serves a lab's control socket until the process ends.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(lab: &Arc<Lab>, path: &Path) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let listener =
        UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    let lab = Arc::downgrade(lab);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), Some(lab)) = (stream, lab.upgrade()) else {
                return;
            };
            std::thread::spawn(move || {
                let Ok(mut writer) = stream.try_clone() else {
                    return;
                };
                if let Err(error) = answer(&lab, stream, &mut writer) {
                    let _ = send(&mut writer, &Answer::Failed(format!("{error:#}")));
                }
            });
        }
    });
    Ok(())
}

fn send(writer: &mut UnixStream, answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    Ok(writer.write_all(&line)?)
}

fn answer(lab: &Lab, stream: UnixStream, writer: &mut UnixStream) -> Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let done = match serde_json::from_str::<Ask>(&line)? {
        Ask::Exec { vm, argv, timeout } => return exec(lab, &vm, &argv, timeout, reader, writer),
        Ask::Fact(words) => fact(lab, &words)?,
        Ask::Qmp { vm, command } => lab.with_vm(&vm, |vm| vm.qmp(&command))?.to_string(),
        Ask::Wait(vm) => lab.wait_reboot(&vm).map(|()| String::new())?,
        Ask::Ready(vm, family) => lab.wait_gid(&vm, lab.device(&vm), family)?.to_string(),
        Ask::Boot(vm) => lab.boot_vm(&vm).map(|()| String::new())?,
        Ask::Kill(vm) => lab.kill_vm(&vm).map(|()| String::new())?,
        Ask::RestartVrnicd => lab.restart_daemon().map(|()| String::new())?,
        Ask::Perf {
            client,
            server,
            family,
            argv,
        } => {
            let (program, args) = argv.split_first().context("which program?")?;
            let end = |vm: &str| -> Result<End> {
                let device = lab.device(vm);
                Ok(End::new(vm, device, lab.wait_gid(vm, device, family)?))
            };
            let (client, server) = (end(&client)?, end(&server)?);
            perf::output(lab, &Pair::new(program, &args.join(" "), client, server))?
        }
    };
    send(writer, &Answer::Done(done))
}

fn fact(lab: &Lab, words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(match words.as_slice() {
        ["pid", "vrnicd"] => lab.with_daemon(|daemon| Ok(daemon.pid()))?.to_string(),
        ["pid", "qemu-a"] => lab.with_vm("a", |vm| Ok(vm.pid()))?.to_string(),
        ["pid", "qemu-b"] => lab.with_vm("b", |vm| Ok(vm.pid()))?.to_string(),
        ["console", vm] => path(lab.logs().join(format!("console-{vm}.log"))),
        ["log"] => path(lab.with_daemon(|daemon| Ok(daemon.log().to_path_buf()))?),
        ["config"] => path(daemon::config(lab.sockets())),
        ["sockets"] => path(lab.sockets().to_path_buf()),
        ["control"] => path(daemon::control(lab.sockets())),
        ["device", vm] => lab.device(vm).name().to_owned(),
        _ => bail!("unknown fact `{}`", words.join(" ")),
    })
}

fn exec(
    lab: &Lab,
    vm: &str,
    argv: &[String],
    timeout: u64,
    mut reader: BufReader<UnixStream>,
    writer: &mut UnixStream,
) -> Result<()> {
    let argv: Vec<&str> = argv.iter().map(String::as_str).collect();
    let agent = lab.agent(vm)?;
    let mut program = agent.start(&argv, &[])?;
    // The client never writes again: an end of file means that it is gone.
    let (gone, hung_up) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = reader.read(&mut [0; 1]);
        drop(gone);
    });
    let deadline = Instant::now() + agent.patience(Duration::from_secs(timeout));
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match program.next(left.min(Duration::from_millis(100))) {
            Some(Event::Output(stream, bytes)) => {
                send(writer, &Answer::Output(stream, encode(&bytes)))?;
            }
            Some(Event::Exit(code)) => return send(writer, &Answer::End(code)),
            Some(Event::Lost(why)) => {
                send(
                    writer,
                    &Answer::Output(Stream::Err, encode(format!("{why}\n").as_bytes())),
                )?;
                return send(writer, &Answer::End(127));
            }
            None if left.is_zero() => return send(writer, &Answer::End(124)),
            None => {}
        }
        if matches!(
            hung_up.try_recv(),
            Err(std::sync::mpsc::TryRecvError::Disconnected)
        ) {
            return Ok(());
        }
    }
}

/// Asks a running lab; program output goes to this process's streams. Returns the exit code, or what was answered.
///
/// # Errors
/// No lab listens there, or it could not do what was asked.
pub fn ask(path: &Path, request: &Ask) -> Result<(i32, String)> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!(
            "no lab is running at {}; `make shell` starts one",
            path.display()
        )
    })?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    for line in BufReader::new(stream).lines() {
        match serde_json::from_str(&line?)? {
            Answer::Output(Stream::Out, data) => {
                let mut out = std::io::stdout().lock();
                out.write_all(&decode(&data)?)?;
                out.flush()?;
            }
            Answer::Output(Stream::Err, data) => {
                std::io::stderr().lock().write_all(&decode(&data)?)?;
            }
            Answer::End(code) => return Ok((code, String::new())),
            Answer::Done(text) => return Ok((0, text)),
            Answer::Failed(why) => bail!("{why}"),
        }
    }
    bail!("the lab ended while it was working on this")
}
