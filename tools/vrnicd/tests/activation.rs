// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A socket that is bound before the daemon starts, as by systemd.

mod common;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};

use common::Client;
use common::daemon::Daemon;
use rustix::process::Signal;

#[test]
fn a_socket_of_systemd_is_served_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let listener = UnixListener::bind(path("rnic0.sock")).unwrap();
    // A VMM connects first, which makes systemd start the daemon.
    let early = UnixStream::connect(path("rnic0.sock")).unwrap();
    let process = Command::new("sh")
        .arg("-c")
        .arg("LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" \"$@\" 3<&0 0</dev/null")
        .arg(env!("CARGO_BIN_EXE_vrnicd"))
        .args(["--mac", "52:54:00:00:00:01", "--socket"])
        .arg(path("rnic0.sock"))
        .arg("--control")
        .arg(path("control"))
        .stdin(OwnedFd::from(listener.try_clone().unwrap()))
        .stderr(Stdio::from(File::create(path("log")).unwrap()))
        .spawn()
        .unwrap();
    let mut daemon = Daemon { process, directory };
    drop(Client::negotiated(early));
    drop(daemon.connect("rnic0"));
    let path = |name: &str| daemon.directory.path().join(name);
    let (socket, control) = (path("rnic0.sock"), path("control"));
    assert!(control.exists());
    daemon.signal(Signal::TERM);
    assert!(daemon.process.wait().unwrap().success());
    assert!(!control.exists(), "this one was the daemon's");
    // The next VMM waits for the next daemon.
    UnixStream::connect(socket).unwrap();
}
