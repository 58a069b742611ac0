// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket of a running lab, used by `vrnic-lab exec` and by `on` and `lab` in VM tests.
//!
//! Each connection carries one request, a line of JSON, and its answers, also lines of JSON. If the client hangs up
//! while its program is running, the program is killed.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use vrnic_lab::protocol::{Stream, decode, encode};

use crate::agent::Event;
use crate::description::Parsed;
use crate::lab::Lab;
use crate::output;
use crate::perf::{self, Pair};
use crate::status::Status;
use crate::vm::{Fabric, Family};

/// A request of a client.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Runs a program in a VM. The answers are its outputs and one end.
    Exec {
        /// Name of the VM.
        vm: String,
        /// Program and arguments.
        argv: Vec<String>,
        /// Seconds after which it is killed.
        timeout: u64,
    },
    /// Returns a fact about the lab: `pid vrnicd`, `pid qemu-a`, `console a`, `log`, `config`, `sockets`, `device`, or
    /// `control` (vrnicd's control socket).
    Fact(Vec<String>),
    /// Sends a QMP command.
    Qmp {
        /// Name of the VM.
        vm: String,
        /// The command in JSON.
        command: String,
    },
    /// Waits for a boot of the guest for which nothing has waited yet. The first one does not count.
    Wait(String),
    /// Waits for the RDMA device, and returns the index of the GID of an address of this family.
    Ready(String, Family),
    /// Boots the VM again.
    Boot(String),
    /// Kills the VM's QEMU.
    Kill(String),
    /// Starts a new vrnicd.
    RestartVrnicd,
    /// Makes the lab match a lab file. Progress is sent as output.
    Apply {
        /// Absolute path of the file.
        file: PathBuf,
        /// Contents of the file.
        text: String,
        /// Fabric of networks for which the file does not name one.
        fabric: Fabric,
    },
    /// Ends the lab. Answered after it has ended.
    Down,
    /// Answered with a [`Status`] as JSON.
    Status,
    /// Copies a file or a directory into a VM.
    CopyIn {
        /// Name of the VM.
        vm: String,
        /// Path on the host.
        host: PathBuf,
        /// Path in the guest.
        guest: String,
    },
    /// Runs a two-ended program. Answered with the client's output.
    Perf {
        /// VM of the client.
        client: String,
        /// VM of the server.
        server: String,
        /// Family of the addresses that the queue pairs use.
        family: Family,
        /// Program and arguments.
        argv: Vec<String>,
    },
}

impl Ask {
    /// Parses a request from words of a command line.
    ///
    /// # Errors
    /// There is no such request.
    pub fn from_words(words: &[String]) -> Result<Self> {
        let list: Vec<&str> = words.iter().map(String::as_str).collect();
        let own = str::to_owned;
        Ok(match list.as_slice() {
            [
                "pid" | "console" | "log" | "config" | "sockets" | "device" | "ssh-port"
                | "control",
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

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Output of a program, base64.
    Output(Stream, String),
    /// A program ended. The code is 124 after a timeout, 127 if it could not be started.
    End(i32),
    /// The answer to all other requests.
    Done(String),
    /// The request failed.
    Failed(String),
}

/// Receiver of the request to end the lab, with the client that waits for the end, if any.
pub type End = Sender<Option<UnixStream>>;

/// Serves a lab's control socket until the process ends. With `end`, clients may end the lab.
///
/// # Errors
/// The socket cannot be created.
pub fn serve(lab: &Arc<Lab>, path: &Path, end: Option<End>) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let listener =
        UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    let lab = Arc::downgrade(lab);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), Some(lab)) = (stream, lab.upgrade()) else {
                return;
            };
            let end = end.clone();
            std::thread::spawn(move || {
                let Ok(mut writer) = stream.try_clone() else {
                    return;
                };
                if let Err(error) = answer(&lab, stream, &mut writer, end.as_ref()) {
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

/// Answers the client that waited for the end.
///
/// # Errors
/// The client has gone.
pub fn done(writer: &mut UnixStream, text: &str) -> Result<()> {
    send(writer, &Answer::Done(text.to_owned()))
}

fn answer(lab: &Lab, stream: UnixStream, writer: &mut UnixStream, end: Option<&End>) -> Result<()> {
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
        Ask::Apply { file, text, fabric } => {
            let fresh = lab.description().machines.is_empty();
            if let Err(error) = apply(lab, &file, &text, fabric, writer) {
                send(writer, &Answer::Failed(format!("{error:#}")))?;
                // A lab that did not come up is removed completely.
                if let Some(end) = end.filter(|_| fresh) {
                    end.send(None)?;
                }
                return Ok(());
            }
            String::new()
        }
        Ask::Down => {
            let end = end.context("only the command that started this lab can end it")?;
            return Ok(end.send(Some(writer.try_clone()?))?);
        }
        Ask::Status => serde_json::to_string(&Status::of(lab))?,
        Ask::CopyIn { vm, host, guest } => {
            lab.copy_in(&vm, &host, &guest).map(|()| String::new())?
        }
        Ask::RestartVrnicd => lab.restart_daemon().map(|()| String::new())?,
        Ask::Perf {
            client,
            server,
            family,
            argv,
        } => {
            let (program, args) = argv.split_first().context("name a program")?;
            let end = |vm: &str| -> Result<perf::End> {
                let device = lab.device(vm);
                Ok(perf::End::new(
                    vm,
                    device,
                    lab.wait_gid(vm, device, family)?,
                ))
            };
            let (client, server) = (end(&client)?, end(&server)?);
            perf::output(lab, &Pair::new(program, &args.join(" "), client, server))?
        }
    };
    send(writer, &Answer::Done(done))
}

/// Makes the lab match the file, waits for its RDMA devices, and copies files into its VMs.
fn apply(
    lab: &Lab,
    file: &Path,
    text: &str,
    fabric: Fabric,
    writer: &mut UnixStream,
) -> Result<()> {
    let parsed = Parsed::parse(file, text, &lab.description().numbers(), fabric)?;
    let writer = RefCell::new(writer);
    // The work continues even if the client has gone.
    let say = |line: &str| {
        let line = format!("{line}\n");
        let _ = send(
            &mut writer.borrow_mut(),
            &Answer::Output(Stream::Err, encode(line.as_bytes())),
        );
    };
    lab.apply(parsed.description.clone(), &say)?;
    for machine in &parsed.description.machines {
        lab.wait_devices(machine)?;
    }
    for copy in &parsed.copies {
        lab.copy_in(&copy.vm, &copy.host, &copy.guest)?;
    }
    Ok(())
}

fn fact(lab: &Lab, words: &[String]) -> Result<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let path = |path: PathBuf| path.to_string_lossy().into_owned();
    Ok(match words.as_slice() {
        ["pid", "vrnicd"] => lab.with_daemon(|daemon| Ok(daemon.pid()))?.to_string(),
        ["pid", process] if process.starts_with("qemu-") => {
            let vm = &process["qemu-".len()..];
            lab.with_vm(vm, |vm| Ok(vm.pid()))?.to_string()
        }
        ["console", vm] => path(lab.logs().join(format!("console-{vm}.log"))),
        ["log"] => path(lab.with_daemon(|daemon| Ok(daemon.log().to_path_buf()))?),
        ["config"] => path(lab.config()),
        ["sockets"] => path(lab.sockets().to_path_buf()),
        ["control"] => path(lab.control()),
        ["ssh-port", vm] => lab.with_vm(vm, |vm| vm.ssh_port())?.to_string(),
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
    // The client never writes again, so end of file means that it has gone.
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

/// Sends a request to a running lab. Program output goes to this process's streams. Returns the exit code, or the
/// answer.
///
/// # Errors
/// No lab listens there, or the request failed.
pub fn ask(path: &Path, request: &Ask) -> Result<(i32, String)> {
    run(path, request, &mut output::pass_on)
}

/// Sends a request to a running lab. Program output goes to `output`. Returns the exit code, or the answer.
///
/// # Errors
/// No lab listens there, the request failed, or `output` failed.
pub fn run(
    path: &Path,
    request: &Ask,
    output: &mut dyn FnMut(Stream, &[u8]) -> Result<()>,
) -> Result<(i32, String)> {
    let mut stream = UnixStream::connect(path).with_context(|| {
        format!(
            "no lab is running at {}; `make shell` or `vrnic-lab up` starts one",
            path.display()
        )
    })?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    for line in BufReader::new(stream).lines() {
        match serde_json::from_str(&line?)? {
            Answer::Output(stream, data) => output(stream, &decode(&data)?)?,
            Answer::End(code) => return Ok((code, String::new())),
            Answer::Done(text) => return Ok((0, text)),
            Answer::Failed(why) => bail!("{why}"),
        }
    }
    bail!("the lab ended during this request")
}
