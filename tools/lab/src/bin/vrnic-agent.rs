// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs programs in a guest on behalf of the lab. The guest's init starts it. It communicates over a virtio-serial
//! port.

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

/// The writing end of the port. Frames of concurrent programs must not be mixed.
#[derive(Clone)]
struct Port(Arc<Mutex<File>>);

impl Port {
    fn send(&self, reply: &Reply) {
        let mut line = serde_json::to_vec(reply).expect("frames are plain data");
        line.push(b'\n');
        let mut file = self.0.lock().expect("no holder of the port panics");
        // If this fails, the lab has ended, and there is nothing to report the error to.
        let _ = file.write_all(&line);
    }
}

/// Process groups of the running programs by ID; none for programs that are about to start or have just ended.
type Running = Arc<Mutex<HashMap<u64, Option<Pid>>>>;

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
            // The lab has closed its end, but may open it again.
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
            running.lock().expect("no holder panics").insert(id, None);
            let (port, running) = (port.clone(), running.clone());
            thread::spawn(move || {
                let ended = run(id, &argv, env, &port, &running);
                running.lock().expect("no holder panics").remove(&id);
                port.send(&ended);
            });
        }
        Request::AwaitListener {
            id,
            port: number,
            program,
        } => {
            let (port, running) = (port.clone(), running.clone());
            thread::spawn(move || {
                let code = await_listener(number, program, &running);
                port.send(&Reply::Exit { id, code });
            });
        }
        Request::Kill { id } => {
            if let Some(Some(group)) = running.lock().expect("no holder panics").get(&id) {
                let _ = killpg(*group, Signal::SIGKILL);
            }
        }
        Request::PowerOff => {
            let _ = std::fs::write("/proc/sysrq-trigger", "o");
        }
    }
}

/// Returns 0 as soon as something listens on the port, or 1 if the program ended before that.
fn await_listener(port: u16, program: u64, running: &Running) -> i32 {
    loop {
        // It may have listened just before it ended.
        let ended = !(running.lock().expect("no holder panics")).contains_key(&program);
        let mut tables = ["/proc/net/tcp", "/proc/net/tcp6"].iter();
        if tables.any(|table| std::fs::read_to_string(table).is_ok_and(|it| listens(&it, port))) {
            return 0;
        }
        if ended {
            return 1;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns whether a socket in this table listens on the port. The columns are number, local address, remote address
/// and state (proc(5)).
fn listens(table: &str, port: u16) -> bool {
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let local = columns.next().unwrap_or_default();
        local.ends_with(&format!(":{port:04X}")) && columns.nth(1) == Some("0A")
    })
}

/// Runs a program to its end, and sends how it ended.
fn run(
    id: u64,
    argv: &[String],
    env: std::collections::BTreeMap<String, String>,
    port: &Port,
    running: &Running,
) -> Reply {
    let failed = |error: String| Reply::Failed { id, error };
    let Some((program, args)) = argv.split_first() else {
        return failed("empty command".into());
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
        Err(error) => return failed(format!("{program}: {error}")),
    };
    let group = Pid::from_raw(i32::try_from(child.id()).expect("process ids fit"));
    running
        .lock()
        .expect("no holder panics")
        .insert(id, Some(group));
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
    // The number may belong to another process now.
    running.lock().expect("no holder panics").insert(id, None);
    // A grandchild that keeps the pipes open must not delay the exit status forever.
    for pump in pumps.into_iter().flatten() {
        for _ in 0..1000 {
            if pump.is_finished() {
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
    match status {
        Ok(status) => Reply::Exit {
            id,
            code: status
                .code()
                .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
        },
        Err(error) => failed(error.to_string()),
    }
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

#[cfg(test)]
mod tests {
    use super::listens;

    #[test]
    fn only_a_listener_on_that_port_counts() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt\n\
                     \x20  0: 00000000:48A8 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
                     \x20  1: 0100007F:48A9 0100007F:48AA 01 00000000:00000000 00:00000000 00000000\n";
        assert!(listens(table, 0x48a8));
        // A connection, its other end, and an unused port.
        assert!(!listens(table, 0x48a9));
        assert!(!listens(table, 0x48aa));
        assert!(!listens(table, 0xa8));
        assert!(listens(
            "   0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A 0:0",
            22
        ));
    }
}
