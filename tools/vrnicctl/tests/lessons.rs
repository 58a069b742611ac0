// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs `vrnicctl lessons` as users do: it prints an address, has a lab behind that, and leaves nothing behind at the
//! end. The lessons themselves are tested in `tools/web`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Returns the child processes of `parent`.
fn children(parent: u32) -> Vec<String> {
    let list = format!("/proc/{parent}/task/{parent}/children");
    let list = std::fs::read_to_string(list).unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn the_lab_begins_and_ends_with_the_command() {
    let own = Path::new(env!("CARGO_BIN_EXE_vrnicctl"));
    assert!(own.with_file_name("vrnicd").exists(), "build vrnicd, too");
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(own)
        .arg("lessons")
        .env("TMPDIR", directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(command.stdout.take().unwrap());
    let mut url = String::new();
    output.read_line(&mut url).unwrap();
    let host = url.trim_start_matches("http://").split('/').next().unwrap();
    let token = url.trim_end().split_once("token=").expect(&url).1;
    let mut client = TcpStream::connect(host).unwrap();
    write!(
        client,
        "GET /api/lessons HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("A SEND needs a receive"),
        "{answer}"
    );
    let lab = children(command.id());
    assert_eq!(lab.len(), 1, "a vrnicd");
    let ended = Command::new("kill")
        .arg(command.id().to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    assert!(command.wait().unwrap().success());
    // A process that has ended is a zombie until its parent waits for it. Then its `exe` does not exist either.
    let deadline = Instant::now() + Duration::from_secs(20);
    while Path::new(&format!("/proc/{}/exe", lab[0])).exists() {
        assert!(Instant::now() < deadline, "vrnicd goes on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        0,
        "files are left"
    );
}
