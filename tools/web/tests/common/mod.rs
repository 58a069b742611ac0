// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Support for tests of the server: a vrnicd to watch, or something that replies like one.

#![allow(dead_code, reason = "each test uses a part of it")]

pub mod browser;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;
use vrnic::ring::send::Target;
use vrnic_native::bench::{Load, Operation};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Patience, request};
use vrnic_web::{Classroom, Options, Server};
use vrnic_wire::completion::Status;
use vrnic_wire::work::SendOpcode;

/// Length of each region in bytes.
const REGION: usize = 1 << 20;

/// Writes a picture of the page to the directory in `VRNIC_PICTURES`, or to the directory for temporary files.
pub fn picture(browser: &mut browser::Browser, name: &str) {
    let directory = std::env::var_os("VRNIC_PICTURES");
    let directory = directory.map_or_else(std::env::temp_dir, Into::into);
    let path: &Path = directory.as_ref();
    std::fs::write(
        path.join(format!("vrnic-web-{name}.png")),
        browser.screenshot(),
    )
    .unwrap();
}

/// Starts a server for a control socket and returns its address with the token.
pub fn serve(socket: &Path, allow_actions: bool) -> String {
    let server = Server::bind(Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        socket: socket.to_owned(),
        allow_actions,
    });
    let server = server.unwrap();
    let url = server.url();
    // It ends with the test.
    std::thread::spawn(move || server.run());
    url
}

/// A lab for lessons, and a server that shows it. Its vrnicd ends when this is dropped, not only when the tests end.
pub struct School {
    pub url: String,
    classroom: Arc<Classroom>,
}

impl School {
    pub fn open() -> Self {
        let classroom = Arc::new(Classroom::open(&program()).unwrap());
        let server = Server::teach("127.0.0.1:0".parse().unwrap(), classroom.clone()).unwrap();
        let url = server.url();
        // It ends with the tests.
        std::thread::spawn(move || server.run());
        Self { url, classroom }
    }
}

impl Drop for School {
    fn drop(&mut self) {
        self.classroom.close();
    }
}

/// Returns the path of the vrnicd that was built with this test.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("vrnicd");
    assert!(
        program.exists(),
        "{} is missing: cargo build --release -p vrnicd",
        program.display()
    );
    program
}

/// A vrnicd with two guests whose queue pairs are connected, and a server that shows it.
pub struct Lab {
    pub daemon: Daemon,
    pub ends: [End; 2],
    pub url: String,
}

impl Lab {
    pub fn start() -> Self {
        Self::with(3)
    }

    /// Starts a lab with this many connections.
    pub fn with(connections: usize) -> Self {
        Self::on(Fabric::Local, connections)
    }

    /// Starts a lab with this many connections on a fabric.
    pub fn on(fabric: Fabric, connections: usize) -> Self {
        Self::of(Daemon::start(&program(), fabric, 2).unwrap(), connections)
    }

    /// Creates a lab with this many connections between the two devices of a vrnicd.
    pub fn of(mut daemon: Daemon, connections: usize) -> Self {
        let mut ends = pair::start(&mut daemon, 0, REGION, 4096).unwrap();
        pair::connect(&mut ends, connections, 64).unwrap();
        let url = serve(&daemon.control(), true);
        Self { daemon, ends, url }
    }

    /// Keeps the connections busy for `time`.
    pub fn traffic(&mut self, time: Duration) {
        let end = Instant::now() + time;
        let mut load = Load::new(&mut self.ends, Operation::Write, 4096, 1).unwrap();
        load.until(&mut self.ends, || Instant::now() >= end)
            .unwrap();
        load.finish(&mut self.ends).unwrap();
    }
}

impl Lab {
    /// Writes on one connection after the other for `time`, about `rate` times per second.
    pub fn paced(&mut self, rate: u32, time: Duration) {
        let [a, b] = &mut self.ends;
        let (start, mut written) = (Instant::now(), 0u32);
        while start.elapsed() < time {
            if f64::from(written) > start.elapsed().as_secs_f64() * f64::from(rate) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let count = a.qps.len();
            let qp = &mut a.qps[written as usize % count];
            let write = request(SendOpcode::Write, written.into(), b.mr.target(0));
            qp.post(&mut a.vm, &write, a.mr.sge(0, 512)).unwrap();
            a.sends.wait().unwrap();
            written += 1;
        }
    }

    /// Returns the key of the second guest's region.
    pub fn key(&self) -> u32 {
        let Target::Memory { rkey, .. } = self.ends[1].mr.target(0) else {
            unreachable!("a region is memory");
        };
        rkey
    }

    /// Sends a message, writes, reads, and finally writes with a wrong key, which leaves the first connection in the
    /// error state.
    pub fn story(&mut self) {
        let key = self.key();
        let [a, b] = &mut self.ends;
        let pause = || std::thread::sleep(Duration::from_millis(30));
        b.qps[0].push_receive(1, b.mr.sge(0, 4096)).unwrap();
        b.qps[0].offer(&mut b.vm).unwrap();
        let wrong = Target::Memory {
            address: 0x7f00_0000,
            rkey: key ^ 1,
        };
        for (wr_id, opcode, target, length) in [
            (1, SendOpcode::Send, Target::Peer, 256),
            (2, SendOpcode::Write, b.mr.target(0), 4096),
            (3, SendOpcode::Read, b.mr.target(0), 65536),
            (4, SendOpcode::Write, wrong, 64),
        ] {
            let request = request(opcode, wr_id, target);
            a.qps[0]
                .post(&mut a.vm, &request, a.mr.sge(0, length))
                .unwrap();
            let mut patience = Patience::new();
            let cqe = loop {
                match a.sends.poll() {
                    Some(cqe) => break cqe,
                    None => patience.look().unwrap(),
                }
            };
            assert_eq!(cqe.status == Status::Success.raw(), wr_id != 4, "{cqe:?}");
            pause();
        }
        b.receives.wait().unwrap();
    }
}

/// Replies like a vrnicd with one device that has a hostile name and a hostile guest.
pub struct Stage {
    pub url: String,
    _directory: TempDir,
}

impl Stage {
    pub fn start(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let name = name.to_owned();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let name = name.clone();
                std::thread::spawn(move || play(client.unwrap(), &name));
            }
        });
        Self {
            url: serve(&path, false),
            _directory: directory,
        }
    }
}

fn play(mut client: UnixStream, name: &str) {
    let input = BufReader::new(client.try_clone().unwrap());
    for line in input.lines().map_while(Result::ok) {
        let request: Value = serde_json::from_str(&line).unwrap();
        let reply = lie(&request, name);
        if writeln!(client, "{reply}").is_err() {
            return;
        }
    }
}

fn lie(request: &Value, name: &str) -> Value {
    let page = |items: Value| json!({ "items": items, "next": null });
    let qp = json!({
        "qpn": 17, "kind": name, "state": name, "context": 1, "pd": 1, "peer_qpn": 17, "peer_gid": name, "mtu": 1024,
        "send_psn": 1, "unacknowledged_psn": 1, "receive_psn": 1, "sends_posted": null, "sends_in_flight": 0,
        "send_entries": 1, "receives_posted": null, "receive_entries": 1, "responses_waiting": 0, "send_cqn": 1,
        "receive_cqn": 1, "srqn": null, "rate_limit_kbps": 80000,
    });
    let failure = json!({
        "number": 0, "nanoseconds": 5, "object": 17, "peer_qpn": 17, "what": name, "why": name, "cause": 1, "wr_id": 7,
        "psn": 1, "packet": [name, 1], "count": 2,
        "access": { "key": 1, "pd": 1, "rights": [name], "address": 1, "length": 1 },
    });
    match request["request"].as_str().unwrap() {
        "devices" => json!({ "devices": [{
            "name": name, "mac": name, "node_guid": name, "state": "up", "link": name, "contexts": 1, "pds": 1, "mrs": 1,
            "cqs": 1, "srqs": 1, "qps": 1, "translations": 1,
            "port": { "state": name, "mtu": 1024, "gids": 1, "bad_pkeys": 0, "bad_qkeys": 0, "counters": [[name, 1]] },
        }] }),
        "gids" => json!({ "gids": [{ "gid": name, "kind": name, "mac": name, "vlan": null }] }),
        "qps" => json!({ "qps": page(json!([qp])) }),
        "cqs" => json!({ "cqs": page(json!([])) }),
        "srqs" => json!({ "srqs": page(json!([])) }),
        "groups" => json!({ "groups": page(json!([])) }),
        "flows" => json!({ "flows": page(json!([
            { "flow": 3, "qpn": 17, "kind": name, "priority": 5, "dont_trap": true, "tag": 9, "drops": false, "packets": 5, "bytes": 300, "fields": [["ether_type", "0x88b5"], [name, name]] },
        ])) }),
        "faults" => {
            json!({ "faults": [{ "id": 1, "fault": name, "progress": name, "seen": 1, "fired": 1 }] })
        }
        "mrs" => json!({ "mrs": page(json!([
            { "key": 1, "pd": 1, "access": [name], "iova": 4096, "length": 4096, "translations": 1 },
        ])) }),
        "mws" => json!({ "mws": page(json!([
            { "key": 2, "pd": 1, "kind": 2, "bound": { "region": 1, "iova": 4096, "length": 64, "access": [name], "qpn": 17 } },
        ])) }),
        "trace" if request["from"] == 0 => json!({ "trace": { "first": 0, "waiting": 0, "steps": [
            { "nanoseconds": 1, "at": 1, "qpn": 17, "act": "fetched", "wr_id": 1, "opcode": name, "length": 1 },
            { "nanoseconds": 2, "at": 2, "qpn": 17, "act": "completed", "cqn": 1, "wr_id": 1, "opcode": name, "status": name, "length": 1,
              "vendor_error": 1 },
        ] } }),
        "trace" => json!({ "trace": { "first": 2, "waiting": 0, "steps": [] } }),
        "explain" if request["from"] == 0 => json!({ "explanations": [failure] }),
        "explain" => json!({ "explanations": [] }),
        "switch" => json!({ "switch": [{
            "name": name, "device": name, "rnic_up": true, "medium": name, "medium_up": true, "mac": name, "mtu": 1500,
            "vlans": name, "waiting": 0, "counters": [[name, 1]],
        }] }),
        _ => json!({ "error": "not in this play" }),
    }
}

/// Sends bytes to the server at that address, and returns everything that comes back until it closes the connection.
pub fn exchange(url: &str, request: &str) -> String {
    let mut stream = connect(url);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

pub fn connect(url: &str) -> TcpStream {
    let stream = TcpStream::connect(host(url).parse::<SocketAddr>().unwrap()).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    stream
}

/// Returns host and port of an address.
pub fn host(url: &str) -> &str {
    url.trim_start_matches("http://").split('/').next().unwrap()
}

/// Returns the token in an address.
pub fn token(url: &str) -> &str {
    url.split_once("token=").unwrap().1
}
