// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A log that nobody reads.

mod common;

use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use common::daemon::Daemon;
use common::{Client, Ram};

#[test]
fn nobody_waits_for_the_reader_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (reader, writer) = std::io::pipe().unwrap();
    let process = Command::new(env!("CARGO_BIN_EXE_vrnicd"))
        .args(["--log", "debug", "--mac", "52:54:00:00:00:01", "--socket"])
        .arg(path("a.sock"))
        .stderr(Stdio::from(writer))
        .spawn()
        .unwrap();
    let daemon = Daemon { process, directory };
    let mut client: Client = daemon.connect("a");
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let ram = Ram::new(1 << 12);
        // Each of these is a line of more than a hundred bytes, and a pipe holds 64 KiB.
        for page in 0..2000 {
            client.map(&ram.fd, 0, page << 12, 1 << 12).unwrap();
        }
        done.send(()).unwrap();
    });
    let answered = is_done.recv_timeout(Duration::from_secs(60));
    assert!(answered.is_ok(), "vrnicd waits for whoever reads its log");
    drop(reader);
}
