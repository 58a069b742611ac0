// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What clients get from the server: with and without the token, under other names, from other sites, and if there are
//! too many.

mod common;

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use common::{Lab, Stage, connect, exchange, host, program, token};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_web::{Options, Server};
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Act, Object};

/// Sends a request with the token.
fn ask(url: &str, method: &str, path: &str, body: &str) -> String {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n",
        host(url),
        token(url),
        body.len()
    );
    exchange(url, &(head + body))
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[test]
fn nothing_is_given_without_the_token() {
    let stage = Stage::start("a");
    for path in [
        "/",
        "/main.js",
        "/api/events",
        "/api/objects?device=0",
        "/?token=0",
    ] {
        let answer = exchange(
            &stage.url,
            &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", host(&stage.url)),
        );
        assert_eq!(status(&answer), "401", "{path}: {answer}");
        assert!(answer.contains("Open the whole address"), "{answer}");
    }
}

#[test]
fn the_token_is_exchanged_for_a_cookie_of_this_page_alone() {
    let stage = Stage::start("a");
    let own = host(&stage.url).to_owned();
    let query = format!(
        "GET /?token={} HTTP/1.1\r\nHost: {own}\r\n\r\n",
        token(&stage.url)
    );
    let answer = exchange(&stage.url, &query);
    assert_eq!(status(&answer), "303", "{answer}");
    assert!(answer.contains("\r\nLocation: /\r\n"), "{answer}");
    let cookie = answer
        .lines()
        .find_map(|line| line.strip_prefix("Set-Cookie: "))
        .unwrap();
    assert!(
        cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"),
        "{cookie}"
    );
    let pair = cookie.split(';').next().unwrap();
    let answer = exchange(
        &stage.url,
        &format!("GET / HTTP/1.1\r\nHost: {own}\r\nCookie: {pair}\r\n\r\n"),
    );
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(answer.contains("<title>vrnic</title>"), "{answer}");
}

#[test]
fn a_name_of_another_site_that_leads_here_is_refused() {
    let stage = Stage::start("a");
    let token = token(&stage.url);
    for (name, origin, wanted) in [
        ("evil.example", "", "421"),
        (host(&stage.url), "Origin: http://evil.example\r\n", "403"),
        (host(&stage.url), "Sec-Fetch-Site: cross-site\r\n", "403"),
        (host(&stage.url), "", "200"),
    ] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: {name}\r\n{origin}Authorization: Bearer {token}\r\n\r\n"
        );
        assert_eq!(
            status(&exchange(&stage.url, &request)),
            wanted,
            "{name} {origin}"
        );
    }
}

#[test]
fn a_page_may_only_look_unless_more_is_allowed() {
    let stage = Stage::start("a");
    let action = r#"{"action":"link","device":"a","up":false}"#;
    let answer = ask(&stage.url, "POST", "/api/action", action);
    assert_eq!(status(&answer), "403");
    assert!(answer.contains("--allow-actions"), "{answer}");
    assert_eq!(
        status(&ask(
            &stage.url,
            "GET",
            "/api/capture?device=0&seconds=1",
            ""
        )),
        "403"
    );
    assert_eq!(status(&ask(&stage.url, "PUT", "/", "")), "405");
    // An error of vrnicd is reported, and the server goes on.
    let answer = ask(&stage.url, "GET", "/api/objects?device=7", "");
    assert!(
        status(&answer) == "502" && answer.contains("no such device"),
        "{answer}"
    );
    assert_eq!(
        status(&ask(&stage.url, "GET", "/api/objects?device=0", "")),
        "200"
    );
}

#[test]
fn a_capture_is_downloaded() {
    let mut lab = Lab::start();
    let url = lab.url.clone();
    for bad in [
        "device=0&seconds=0",
        "device=0&seconds=61",
        "device=9&seconds=1",
        "device=0",
        "",
    ] {
        assert_eq!(
            status(&ask(&url, "GET", &format!("/api/capture?{bad}"), "")),
            "502",
            "{bad}"
        );
    }
    let head = format!(
        "GET /api/capture?device=0&seconds=1 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        host(&url),
        token(&url)
    );
    let mut client = connect(&url);
    client.write_all(head.as_bytes()).unwrap();
    lab.paced(100, Duration::from_secs(2));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    let body = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap()
        + 4;
    let decoded = vrnic_web::decode::decode(&answer[body..]).unwrap();
    assert!(
        decoded.connections.len() == 3 && decoded.others == 0,
        "{decoded:?}"
    );
    for connection in &decoded.connections {
        // Writes and their acknowledgements, all attributed to this connection.
        assert!(
            connection.ends.iter().all(|end| end.qpn != 0),
            "{connection:?}"
        );
        assert!(
            connection.steps.iter().all(|steps| steps.len() > 5),
            "{connection:?}"
        );
        // Times are relative to the first packet, so JavaScript can calculate with them.
        let mut steps = connection.steps.iter().flatten();
        assert!(
            steps.all(|step| step.at < 60_000_000_000 && step.nanoseconds > step.at),
            "{connection:?}"
        );
    }
}

#[test]
fn a_recording_tells_what_its_device_did() {
    let mut daemon = Daemon::start(&program(), Fabric::Local, 2).unwrap();
    // The devices listen after the control socket, so that is ready.
    drop(daemon.connect(0).unwrap());
    let mut file = tempfile::tempfile().unwrap();
    let mut client = Client::connect(&daemon.control()).unwrap();
    client
        .start_recording("0", "story", None, file.as_fd())
        .unwrap();
    let mut lab = Lab::of(daemon, 1);
    lab.story();
    client.stop_recording("0").unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    let decoded = vrnic_web::decode::decode(&bytes).unwrap();
    let [connection] = &decoded.connections[..] else {
        panic!("{decoded:?}");
    };
    assert!(
        decoded.recording && !decoded.more && connection.ends[0].gid == "0",
        "{decoded:?}"
    );
    let acts = connection.steps[0]
        .iter()
        .filter_map(|step| match &step.act {
            Act::Fetched { opcode, length, .. } => Some(format!("{opcode} {length}")),
            Act::Arrived(packet) => packet.syndrome.clone(),
            Act::Completed { status, .. } => Some(status.clone()),
            Act::Moved { from, to } => Some(format!("{from} to {to}")),
            _ => None,
        });
    let wanted = [
        "RESET to INIT",
        "INIT to RTR",
        "RTR to RTS",
        "SEND 256",
        "ACK",
        "IBV_WC_SUCCESS",
        "RDMA WRITE 4096",
        "ACK",
        "IBV_WC_SUCCESS",
        "RDMA READ 65536",
        "ACK",
        "IBV_WC_SUCCESS",
        "RDMA WRITE 64",
        "NAK: remote access error",
        "IBV_WC_REM_ACCESS_ERR",
        "RTS to ERR",
    ];
    assert_eq!(acts.collect::<Vec<_>>(), wanted);
    // A recording does not tell what the program had polled.
    let failed = connection.steps[0]
        .iter()
        .rfind(|step| matches!(step.act, Act::Completed { .. }));
    let [Object::Cq(cq)] = &failed.unwrap().objects[..] else {
        panic!("{failed:?}");
    };
    assert_eq!((cq.unread, cq.exact, cq.armed), (Some(4), false, None));
    // A truncated file is refused or contains less.
    for length in (0..bytes.len()).step_by(97) {
        if let Ok(cut) = vrnic_web::decode::decode(&bytes[..length]) {
            assert!(cut.connections.len() <= 1, "{length}");
        }
    }
}

/// Reads until the first state has been received, and no further.
fn first_event(client: &mut TcpStream) -> String {
    let (mut text, mut byte) = (String::new(), [0]);
    while !text.ends_with("\n\n") || !text.contains("data: ") {
        client.read_exact(&mut byte).unwrap();
        text.push(char::from(byte[0]));
    }
    text
}

#[test]
fn a_client_that_does_not_read_costs_no_more_than_its_place() {
    let stage = Stage::start("a");
    let request = format!(
        "GET /api/events HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        host(&stage.url),
        token(&stage.url)
    );
    // They take all slots and read nothing.
    let lazy: Vec<_> = (0..32)
        .map(|_| {
            let mut client = connect(&stage.url);
            client.write_all(request.as_bytes()).unwrap();
            client
        })
        .collect();
    let full = |url: &str| status(&ask(url, "GET", "/", "")) != "200";
    while !full(&stage.url) {
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(lazy);
    // When they disconnect, there is room again.
    while full(&stage.url) {
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut client = connect(&stage.url);
    client.write_all(request.as_bytes()).unwrap();
    let event = first_event(&mut client);
    assert!(event.contains("\"name\":\"a\""), "{event}");
}

#[test]
fn without_a_vrnicd_there_is_no_server() {
    let directory = tempfile::tempdir().unwrap();
    let error = Server::bind(Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        socket: directory.path().join("none"),
        allow_actions: false,
    });
    let error = format!("{:#}", error.unwrap_err());
    assert!(
        error.contains("cannot connect to the control socket"),
        "{error}"
    );
}
