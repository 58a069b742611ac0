// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A hostile client of the control socket.
//!
//! The daemon's own server and worker run in threads, with a device that has objects to show. An input is what one
//! client writes: requests, requests with changed bytes, and plain bytes. Each line must get one reply, which is one
//! object of the protocol, until a line is too long; then the connection ends. Meanwhile, another client must get its
//! replies.

use crate::{
    input::Input,
    machine::{Innocent, NAMES, Worker},
};
use std::{
    fmt::Write as _,
    io::{BufRead, BufReader, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, LazyLock},
    time::Duration,
};
use vrnic_engine::fault::{Kind, spec::KEYS};
use vrnicd::{
    capture::Center,
    control::{
        client::Client,
        inspector::Inspector,
        protocol::{MAX_REQUEST, Reply},
        server::Server,
    },
    stop::Stop,
    waker::Waker,
};

/// Longest time for a reply.
const PATIENCE: Duration = Duration::from_secs(8);

/// Path of the server's socket; the server runs as long as the process.
static SOCKET: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = std::env::temp_dir().join(format!("vrnic-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("directory");
    let path = directory.join("control");
    let waker = Arc::new(Waker::new().expect("waker"));
    let inspector = Arc::new(Inspector::new(waker.clone()));
    let captures = Center::new(NAMES.map(str::to_owned).to_vec(), std::iter::empty());
    let server = Server::bind(&path, 0o600, inspector.clone(), Arc::new(captures), true);
    let server = server.expect("server");
    std::thread::spawn(move || server.run(&Stop::new().expect("stop")));
    std::thread::spawn(move || {
        let mut worker = Worker::new();
        let mut machine = Innocent::new(&mut worker, 0);
        machine.create_objects(&mut worker);
        loop {
            waker.announce();
            match inspector.next() {
                Some(question) => worker.answer(question),
                None => waker.sleep(None),
            }
        }
    });
    path
});

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut sent = Vec::new();
    while input.has_more() && sent.len() < 4 * MAX_REQUEST {
        request(&mut input, &mut sent);
    }
    let client = UnixStream::connect(&*SOCKET).expect("server");
    client.set_read_timeout(Some(PATIENCE)).expect("socket");
    client.set_write_timeout(Some(PATIENCE)).expect("socket");
    // The server may close the connection before it has read everything.
    let _ = (&client).write_all(&sent);
    let _ = client.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    if let Err(error) = BufReader::new(&client).read_to_end(&mut replies) {
        // Closing a connection with unread bytes resets it.
        assert_eq!(
            error.kind(),
            std::io::ErrorKind::ConnectionReset,
            "no answer"
        );
    }
    check(&sent, &replies);

    let mut other = Client::connect(&SOCKET).expect("server");
    let devices = other.devices().expect("devices");
    assert_eq!(devices.len(), 2);
    assert_eq!(devices[0].state, "up");
}

/// Checks that each line got its reply.
fn check(sent: &[u8], replies: &[u8]) {
    let mut lines = 0;
    let mut too_long = false;
    for line in sent.split_inclusive(|&byte| byte == b'\n') {
        if line.len() > MAX_REQUEST || line.len() == MAX_REQUEST && !line.ends_with(b"\n") {
            too_long = true;
            break;
        }
        lines += usize::from(line.ends_with(b"\n"));
    }
    let mut answers = 0;
    for reply in replies.lines() {
        let reply = reply.expect("replies are text");
        let parsed: Result<Reply, _> = serde_json::from_str(&reply);
        assert!(parsed.is_ok(), "no reply of the protocol: {reply}");
        answers += 1;
    }
    if too_long {
        // The last replies may be lost with the connection.
        assert!(answers <= lines + 1);
    } else {
        assert_eq!(answers, lines);
    }
}

/// Returns a description of a fault that is valid or almost valid, except the fault that causes a panic.
fn fault(input: &mut Input<'_>) -> String {
    let kinds: Vec<&Kind> = Kind::all()
        .filter(|kind| kind.name != "engine-panic")
        .collect();
    let mut text = input.pick(&kinds).name.to_owned();
    for _ in 0..input.below(5) {
        let key = KEYS[input.below(KEYS.len())].name;
        let values = [
            "1",
            "0",
            "all",
            "2..1",
            "50%",
            "10us",
            "9e9s",
            "rc|ud",
            "out",
            "busy",
            "ack",
            "1024",
            "port-error",
            "create-qp",
            "-1",
            "18446744073709551615",
            "",
        ];
        let value = input.pick(&values);
        let _ = write!(text, " {key}={value}");
    }
    text
}

/// Appends a request that is valid or almost valid.
fn request(input: &mut Input<'_>, sent: &mut Vec<u8>) {
    const REQUESTS: [&str; 19] = [
        "fault_add",
        "fault_clear",
        "faults",
        "fault_log",
        "devices",
        "gids",
        "qps",
        "cqs",
        "mrs",
        "explain",
        "log",
        "Devices",
        "",
        "format",
        "switch",
        "addresses",
        "captures",
        "capture_start",
        "capture_stop",
    ];
    const VALUES: [&str; 12] = [
        "0",
        "1",
        "255",
        "256",
        "65536",
        "18446744073709551615",
        "18446744073709551616",
        "-1",
        "1.5",
        "null",
        "\"a\"",
        "[[[[[[]]]]]]",
    ];
    const FILTERS: [&str; 6] = [
        "info",
        "trace",
        "vrnicd=debug",
        "a[b{c=\\\"d\\\"}]=info",
        ",",
        "=\\u0000",
    ];
    let start = sent.len();
    match input.below(8) {
        0 => sent.extend(input.bytes(255)),
        1 => {
            let byte = input.take::<u8>();
            let length = usize::from(input.take::<u16>()) % (MAX_REQUEST + 10);
            sent.extend(std::iter::repeat_n(byte, length));
        }
        _ => {
            let mut fields = vec![format!("{{\"request\":\"{}\"", input.pick(&REQUESTS))];
            if input.take() {
                let device = input.pick(&["a", "b", "a", "c", "\\ud800", ""]);
                fields.push(format!("\"device\":\"{device}\""));
            }
            if input.take() {
                fields.push(format!("\"from\":{}", input.pick(&VALUES)));
            }
            if input.below(4) == 0 {
                fields.push(format!("\"filter\":\"{}\"", input.pick(&FILTERS)));
            }
            if input.below(4) == 0 {
                fields.push(format!("\"id\":{},\"name\":\"x\"", input.pick(&VALUES)));
            }
            if input.below(4) == 0 {
                fields.push(format!("\"fault\":\"{}\"", fault(input)));
            }
            let text = fields.join(",") + "}";
            sent.extend(text.as_bytes());
        }
    }
    for _ in 0..input.below(8).saturating_sub(4) {
        let at = start + usize::from(input.take::<u16>()) % (sent.len() - start).max(1);
        let value = input.take();
        if let Some(byte) = sent.get_mut(at) {
            *byte = value;
        }
    }
    if input.below(16) != 0 {
        sent.push(b'\n');
    }
}
