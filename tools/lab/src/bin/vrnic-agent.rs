// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs programs in a guest on behalf of the lab. Started by the guest's init; talks over a virtio-serial port.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use vrnic_lab::protocol::{PORT_NAME, Reply, Request, Stream, encode};

/// The port's writing end; frames of concurrent programs must not mix.
#[derive(Clone)]
struct Port(Arc<Mutex<File>>);

impl Port {
    fn send(&self, reply: &Reply) {
        let mut line = serde_json::to_vec(reply).expect("frames are plain data");
        line.push(b'\n');
        let mut file = self.0.lock().expect("no holder of the port panics");
        // The lab is gone when this fails; there is nobody to tell.
        let _ = file.write_all(&line);
    }
}

/// Process groups of the running programs by id.
type Running = Arc<Mutex<HashMap<u64, Pid>>>;

fn main() -> Result<()> {
    let path = port_path()?;
    let reader = open(&path)?;
    let port = Port(Arc::new(Mutex::new(
        open(&path).or_else(|_| reader.try_clone())?,
    )));
    let running: Running = Arc::default();
    port.send(&Reply::Hello);
    let mut lines = BufReader::new(reader);
    loop {
        let mut line = String::new();
        match lines.read_line(&mut line) {
            // The lab closed its end. It may come back.
            Ok(0) => thread::sleep(Duration::from_millis(50)),
            Ok(_) => match serde_json::from_str(&line) {
                Ok(request) => handle(request, &port, &running),
                Err(error) => eprintln!("vrnic-agent: bad frame: {error}"),
            },
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("reading the port"),
        }
    }
}

fn open(path: &PathBuf) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Finds the port's device node by name; there is no udev in the guest.
fn port_path() -> Result<PathBuf> {
    for entry in std::fs::read_dir("/sys/class/virtio-ports").context("no virtio-serial ports")? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT_NAME {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    anyhow::bail!("no virtio-serial port named {PORT_NAME}")
}

fn handle(request: Request, port: &Port, running: &Running) {
    match request {
        Request::Ping => port.send(&Reply::Pong),
        Request::Start { id, argv, env } => {
            let (port, running) = (port.clone(), running.clone());
            thread::spawn(move || run(id, &argv, env, &port, &running));
        }
        Request::Kill { id } => {
            if let Some(group) = running.lock().expect("no holder panics").get(&id) {
                let _ = killpg(*group, Signal::SIGKILL);
            }
        }
        Request::PowerOff => {
            let _ = std::fs::write("/proc/sysrq-trigger", "o");
        }
    }
}

fn run(
    id: u64,
    argv: &[String],
    env: std::collections::BTreeMap<String, String>,
    port: &Port,
    running: &Running,
) {
    let Some((program, args)) = argv.split_first() else {
        return port.send(&Reply::Failed {
            id,
            error: "empty command".into(),
        });
    };
    let mut command = Command::new(program);
    command
        .args(args)
        .envs(env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return port.send(&Reply::Failed {
                id,
                error: format!("{program}: {error}"),
            });
        }
    };
    let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"));
    running.lock().expect("no holder panics").insert(id, group);
    let pumps = [
        child
            .stdout
            .take()
            .map(|pipe| pump(id, Stream::Out, pipe, port.clone())),
        child
            .stderr
            .take()
            .map(|pipe| pump(id, Stream::Err, pipe, port.clone())),
    ];
    let status = child.wait();
    running.lock().expect("no holder panics").remove(&id);
    // A grandchild that keeps the pipes open must not hold the exit status back for ever.
    for pump in pumps.into_iter().flatten() {
        for _ in 0..1000 {
            if pump.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    let code = match status {
        Ok(status) => status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        Err(error) => {
            return port.send(&Reply::Failed {
                id,
                error: error.to_string(),
            });
        }
    };
    port.send(&Reply::Exit { id, code });
}

fn pump(
    id: u64,
    stream: Stream,
    mut pipe: impl Read + Send + 'static,
    port: Port,
) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buffer = vec![0; 32 << 10];
        loop {
            match pipe.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => port.send(&Reply::Output {
                    id,
                    stream,
                    data: encode(&buffer[..n]),
                }),
            }
        }
    })
}
