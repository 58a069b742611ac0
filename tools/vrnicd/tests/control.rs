// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The control socket of a running daemon: its replies, and clients that misbehave.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use common::daemon::{Daemon, Driver, QUERY_DEVICE};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::Signal;
use vrnic_engine::Cause;
use vrnic_engine::recording::{Recording, replay};
use vrnic_wire::command::Status;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{MAX_REQUEST, RateLimit, Reply, Request};

fn path(daemon: &Daemon) -> PathBuf {
    daemon.directory.path().join("control")
}

fn client(daemon: &Daemon) -> Client {
    // The devices listen after the control socket, so once they do, this socket is ready.
    drop(daemon.connect("b"));
    Client::connect(&path(daemon)).unwrap()
}

#[test]
fn the_socket_is_the_users_alone_and_goes_with_the_daemon() {
    let mut daemon = Daemon::start();
    client(&daemon);
    let mode = std::fs::metadata(path(&daemon))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    daemon.signal(Signal::TERM);
    assert!(daemon.process.wait().unwrap().success());
    assert!(!path(&daemon).exists());
}

#[test]
fn devices_are_shown_as_they_are() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    let devices = client.devices().unwrap();
    let states: Vec<_> = devices
        .iter()
        .map(|device| (device.name.as_str(), device.state.as_str()))
        .collect();
    assert_eq!(states, [("a", "up"), ("b", "down")]);
    assert_eq!((devices[0].vm, devices[1].vm), (Some(1), None));
    assert_eq!(devices[0].mac, "52:54:00:00:00:01");
    assert_eq!(devices[0].node_guid, "5054:00ff:fe00:0001");
    let port = devices[0].port.as_ref().unwrap();
    let commands = port.counters.iter().find(|(name, _)| name == "commands");
    assert!(commands.unwrap().1 >= 1, "{:?}", port.counters);
    assert!(client.qps("a").unwrap().is_empty());
    assert!(client.cqs("a").unwrap().is_empty());
    assert!(client.srqs("a").unwrap().is_empty());
    assert!(client.groups("a").unwrap().is_empty());
    assert!(client.flows("a").unwrap().is_empty());
    assert!(client.mrs("a").unwrap().is_empty());
    assert!(client.gids("b").unwrap().is_empty());
    let error = client.qps("c").unwrap_err().to_string();
    assert!(error.contains("no device is named"), "{error}");
    // A driver in another VM.
    let mut other = Driver::start(daemon.connect("b"));
    other.works();
    let vms: Vec<_> = client
        .devices()
        .unwrap()
        .iter()
        .map(|device| device.vm)
        .collect();
    assert_eq!(vms, [Some(1), Some(2)]);
}

#[test]
fn refused_commands_and_failures_are_explained_also_after_the_reset() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    assert_eq!(
        driver.execute(QUERY_DEVICE, &[0; 4], 512).0,
        Status::Malformed.raw()
    );
    // A descriptor that does not exist.
    driver.control.offer(&driver.ram, 64);
    driver.client.notify(0);
    driver.wait_needs_reset();
    assert_eq!(client.devices().unwrap()[0].state, "failed");
    driver.bring_up();
    driver.works();
    daemon.signal(Signal::USR1);
    driver.wait_needs_reset();
    driver.bring_up();
    driver.works();
    let told: Vec<String> = client
        .explanations("a", 0)
        .unwrap()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        told,
        [
            "command QueryDevice refused with Malformed: command has the wrong length",
            "event IBV_EVENT_DEVICE_FATAL: driver broke a virtqueue",
            "event IBV_EVENT_DEVICE_FATAL: internal error of the device",
        ]
    );
    let last = client.explanations("a", 2).unwrap();
    assert_eq!(last.len(), 1, "only what was asked for");
    assert!(client.explanations("b", 0).unwrap().is_empty());
    // The log at level debug says it, too.
    daemon.log_with("command has the wrong length");
}

#[test]
fn the_log_filter_changes_while_the_daemon_runs() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    assert_eq!(client.log(None).unwrap(), "debug");
    let mut driver = Driver::start(daemon.connect("a"));
    client.log(Some("error".into())).unwrap();
    driver.works();
    driver.execute(QUERY_DEVICE, &[0; 4], 512);
    client.devices().unwrap();
    client.log(Some("vrnicd=debug".into())).unwrap();
    driver.execute(QUERY_DEVICE, &[0; 4], 512);
    client.devices().unwrap();
    let log = daemon.log_with("wrong length");
    assert_eq!(log.matches("wrong length").count(), 1, "silence before");
    assert!(client.log(Some("no such=filter=at all".into())).is_err());
    assert_eq!(client.log(None).unwrap(), "vrnicd=debug");
}

#[test]
fn nonsense_gets_an_error_and_the_conversation_goes_on() {
    let daemon = Daemon::start();
    client(&daemon);
    let socket = UnixStream::connect(path(&daemon)).unwrap();
    let mut input = BufReader::new(&socket);
    let mut ask = |line: &[u8]| {
        (&socket).write_all(line).unwrap();
        let mut reply = String::new();
        input.read_line(&mut reply).unwrap();
        serde_json::from_str::<Reply>(&reply).unwrap()
    };
    for line in [
        &b"\n"[..],
        b"{}\n",
        b"[1]\n",
        b"{\"request\":\"reboot\"}\n",
        b"{\"request\":\"qps\"}\n",
        b"{\"request\":\"qps\",\"device\":7}\n",
        b"{\"request\":\"qps\",\"device\":\"a\",\"from\":-1}\n",
        b"\xff\xfe\0\n",
    ] {
        assert!(matches!(ask(line), Reply::Error(_)), "{line:?}");
    }
    let far = b"{\"request\":\"mrs\",\"device\":\"a\",\"from\":18446744073709551615}\n";
    assert!(matches!(ask(far), Reply::Mrs(page) if page.items.is_empty() && page.next.is_none()));
    assert!(matches!(
        ask(b"{\"request\":\"devices\"}\n"),
        Reply::Devices(_)
    ));
    // A line without an end.
    let long = vec![b'['; MAX_REQUEST];
    assert!(matches!(ask(&long), Reply::Error(_)));
    assert_eq!((&socket).read(&mut [0]).unwrap(), 0, "and that was it");
}

#[test]
fn clients_that_hang_about_keep_nobody_else_out_for_long_and_the_worker_goes_on() {
    let daemon = Daemon::start();
    let mut friend = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    // One client sends requests and never reads; many others send half a request each.
    let deaf = UnixStream::connect(path(&daemon)).unwrap();
    deaf.set_nonblocking(true).unwrap();
    while (&deaf).write_all(b"{\"request\":\"devices\"}\n").is_ok() {}
    let mut idle: Vec<_> = (0..40)
        .map(|_| {
            let mut socket = UnixStream::connect(path(&daemon)).unwrap();
            let _ = socket.write_all(b"{\"requ");
            socket
        })
        .collect();
    driver.works();
    friend.devices().unwrap();
    let mut refused = String::new();
    let last = idle.pop().unwrap();
    BufReader::new(&last).read_line(&mut refused).unwrap();
    assert!(refused.contains("too many clients"), "{refused}");
    // Slots become free when clients disconnect.
    drop((idle, last, deaf));
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Client::connect(&path(&daemon))
        .and_then(|mut client| client.devices())
        .is_err()
    {
        assert!(std::time::Instant::now() < deadline, "no place comes back");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn choice(device: &str) -> Choice {
    Choice {
        device: Some(device.into()),
        ..Choice::default()
    }
}

#[test]
fn captures_start_and_stop_while_the_daemon_runs() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    assert!(client.captures().unwrap().is_empty());
    let path = daemon.directory.path().join("capture");
    let file = File::create(&path).unwrap();
    let started = client
        .start_capture(choice("a"), "capture", file.as_fd())
        .unwrap();
    drop(file);
    assert_eq!((started.id, started.ended.as_deref()), (1, None));
    assert_eq!(client.captures().unwrap().len(), 1);
    let stopped = client.stop_capture(1).unwrap();
    assert_eq!(stopped.ended.as_deref(), Some("stopped"));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), stopped.bytes);
    assert_eq!(client.captures().unwrap().last(), Some(&stopped));
    assert_eq!(client.stop_capture(1).unwrap(), stopped, "nothing changes");
    let error = client.stop_capture(2).unwrap_err().to_string();
    assert!(error.contains("no capture has the number 2"), "{error}");
}

#[test]
fn a_capture_writes_where_its_client_may_and_nowhere_else() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let precious = daemon.directory.path().join("precious");
    std::fs::write(&precious, "data").unwrap();
    // Naming a file gives no access to it.
    let name = precious.to_str().unwrap();
    let request = Request::CaptureStart {
        name: name.into(),
        choice: Choice::default(),
    };
    let error = client.ask(&request).unwrap_err().to_string();
    assert!(error.contains("no file descriptor"), "{error}");
    let readable = File::open(&precious).unwrap();
    let error = client.start_capture(Choice::default(), name, readable.as_fd());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("not open for writing"), "{error}");
    let error = client.start_capture(choice("nobody"), name, readable.as_fd());
    assert!(error.unwrap_err().to_string().contains("does not exist"));
    assert_eq!(std::fs::read(&precious).unwrap(), b"data");
    assert!(client.captures().unwrap().is_empty());
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let daemon = Daemon::start();
    client(&daemon);
    let open = || {
        let path = format!("/proc/{}/fd", daemon.process.id());
        std::fs::read_dir(path).unwrap().count()
    };
    let socket = UnixStream::connect(path(&daemon)).unwrap();
    let mut input = BufReader::new(&socket);
    let (reader, writer) = std::io::pipe().unwrap();
    let ask = |line: &[u8]| {
        let descriptors = [writer.as_fd(); 3];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let bytes = [std::io::IoSlice::new(line)];
        let flags = SendFlags::NOSIGNAL;
        assert_eq!(
            sendmsg(&socket, &bytes, &mut control, flags).unwrap(),
            line.len()
        );
    };
    let mut reply = String::new();
    for _ in 0..100 {
        ask(b"{\"request\":\"cap");
        ask(b"tures\"}\n");
        reply.clear();
        input.read_line(&mut reply).unwrap();
        assert_eq!(reply, "{\"captures\":[]}\n");
    }
    assert!(open() < 60, "{}", open());
    drop((writer, reader));
}

#[test]
fn a_file_that_may_not_grow_ends_its_capture_and_the_daemon_goes_on() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    let pid = rustix::process::Pid::from_child(&daemon.process);
    let limit = rustix::process::Rlimit {
        current: Some(100),
        maximum: Some(100),
    };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    let file = tempfile::tempfile().unwrap();
    let id = client
        .start_capture(Choice::default(), "file", file.as_fd())
        .unwrap()
        .id;
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let captures = client.captures().unwrap();
        if let Some(why) = &captures[0].ended {
            assert!(why.contains("File too large"), "{why}");
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{captures:?}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(client.stop_capture(id).is_ok());
    driver.works();
}

#[test]
fn a_fault_can_wait_until_the_device_has_failed() {
    let daemon = Daemon::configured("faults = true\n");
    let mut client = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    client
        .add_fault("a", "drop after-event=device-fatal")
        .unwrap();
    let progress = |client: &mut Client| client.faults("a").unwrap()[0].progress.clone();
    assert_eq!(progress(&mut client), "waits for device-fatal");
    daemon.signal(Signal::USR1);
    driver.wait_needs_reset();
    assert_eq!(progress(&mut client), "armed");
}

#[test]
fn faults_are_refused_unless_the_configuration_allows_them() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let why = client.add_fault("a", "link-down").unwrap_err().to_string();
    assert!(why.contains("faults = true"), "{why}");
    assert!(client.clear_faults("a", None).is_err());
    assert!(client.faults("a").unwrap().is_empty());
    assert!(client.fault_log("a").unwrap().is_empty());
}

fn recording_state(client: &mut Client) -> String {
    client.recordings().unwrap()[0].state.clone()
}

#[test]
fn a_recording_begins_with_the_driver_or_at_once_and_replays() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    assert!(client.recordings().unwrap().is_empty());
    let path = daemon.directory.path().join("recording");
    let file = File::create(&path).unwrap();
    let started = client
        .start_recording("a", "recording", None, file.as_fd())
        .unwrap();
    assert_eq!(started.state, "waiting for the driver");
    let again = client.start_recording("a", "recording", None, file.as_fd());
    let error = again.unwrap_err().to_string();
    assert!(error.contains("has a recording already"), "{error}");
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    assert_eq!(recording_state(&mut client), "recording");
    let stopped = client.stop_recording("a").unwrap();
    assert_eq!(stopped.state, "ended: stopped");
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len() as u64, stopped.bytes);
    assert!(replay(&bytes).unwrap() > 2);
    // What the driver did earlier is part of the recorded state.
    let file = File::create(&path).unwrap();
    let started = client.start_recording("a", "recording", None, file.as_fd());
    assert_eq!(started.unwrap().state, "recording");
    driver.works();
    client.stop_recording("a").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(Recording::new(&bytes).unwrap().header().state.is_some());
    assert!(replay(&bytes).unwrap() > 0);
    let error = client.stop_recording("b").unwrap_err().to_string();
    assert!(error.contains("has no recording"), "{error}");
}

#[test]
fn a_recording_goes_where_its_client_may_write_and_nowhere_else() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let precious = daemon.directory.path().join("precious");
    std::fs::write(&precious, "data").unwrap();
    // Naming a file gives no access to it.
    let name = precious.to_str().unwrap();
    let request = Request::RecordStart {
        device: "a".into(),
        name: name.into(),
        max_bytes: None,
    };
    let error = client.ask(&request).unwrap_err().to_string();
    assert!(error.contains("no file descriptor"), "{error}");
    let readable = File::open(&precious).unwrap();
    let error = client.start_recording("a", name, None, readable.as_fd());
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("not open for writing") || error.contains("cannot record"),
        "{error}"
    );
    let writable = tempfile::tempfile().unwrap();
    let error = client.start_recording("nobody", name, None, writable.as_fd());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("no device"), "{error}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"data");
    assert!(client.recordings().unwrap().is_empty());
}

#[test]
fn a_recording_is_whole_when_the_daemon_stops() {
    let mut daemon = Daemon::start();
    let mut client = client(&daemon);
    // A slow reader: the pipe stays full until the daemon is told to stop.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    client
        .start_recording("a", "pipe", None, writer.as_fd())
        .unwrap();
    let mut full = 0;
    fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
    while let Ok(length) = writer.write(&[0; 1024]) {
        full += length;
    }
    fcntl_setfl(&writer, OFlags::empty()).unwrap();
    drop(writer);
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    daemon.signal(Signal::TERM);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert!(daemon.process.wait().unwrap().success());
    let mut recording = Recording::new(&bytes[full..]).unwrap();
    assert!(recording.by_ref().all(|call| call.is_ok()));
    // The VMM is gone before the worker stops.
    assert_eq!(recording.ended(), Some("the driver reset the device"));
    assert!(replay(&bytes[full..]).unwrap() > 2);
}

#[test]
fn what_led_to_a_failure_is_known_after_the_driver_came_back() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let mut driver = Driver::start(daemon.connect("a"));
    let error = client.flight("a", true).unwrap_err().to_string();
    assert!(error.contains("has not failed"), "{error}");
    for _ in 0..3 {
        driver.works();
    }
    daemon.signal(Signal::USR1);
    driver.wait_needs_reset();
    let commands = |flight: Vec<String>| {
        let is_command = |call: &&String| call.ends_with("command QueryDevice");
        flight.iter().filter(is_command).count()
    };
    assert_eq!(commands(client.flight("a", true).unwrap()), 3);
    assert!(client.flight("a", false).unwrap().is_empty());
    let left = client.stop_recording("a").unwrap();
    assert_eq!(
        left.state,
        format!("ended: {}", Cause::InternalFault.text())
    );
    let bytes = std::fs::read(daemon.directory.path().join("a-crash.vrnic")).unwrap();
    assert_eq!(bytes.len() as u64, left.bytes);
    assert!(replay(&bytes).unwrap() >= 3);
    // The driver resets the device as soon as it has failed.
    for _ in 0..2 {
        driver.bring_up();
        driver.works();
    }
    assert_eq!(commands(client.flight("a", true).unwrap()), 3);
    assert_eq!(commands(client.flight("a", false).unwrap()), 1);
    assert!(client.flight("b", false).unwrap().is_empty());
}

#[test]
fn a_rate_limit_is_the_devices_whoever_drives_it() {
    let daemon = Daemon::start();
    let mut client = client(&daemon);
    let limits = |client: &mut Client| -> Vec<RateLimit> {
        let devices = client.devices().unwrap();
        devices.iter().map(|device| device.rate_limit).collect()
    };
    let none = RateLimit::default();
    let limit = RateLimit {
        bytes: NonZeroU64::new(1_000_000),
        requests: None,
    };
    client.set_rate_limit("a", limit).unwrap();
    assert_eq!(limits(&mut client), [limit, none]);
    let mut driver = Driver::start(daemon.connect("a"));
    driver.works();
    driver.bring_up();
    driver.works();
    assert_eq!(limits(&mut client), [limit, none]);
    client.set_rate_limit("a", none).unwrap();
    driver.works();
    assert_eq!(limits(&mut client), [none, none]);
    let error = client.set_rate_limit("c", none).unwrap_err().to_string();
    assert!(error.contains("no device is named"), "{error}");
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
