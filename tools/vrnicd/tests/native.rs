// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Runs every operation of a reliable connection between two guests of a real vrnicd, on each fabric, and between two
//! guests that exchange packets over UDP, and checks every byte. Needs neither QEMU nor a kernel module.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vrnic::ring::send::{Request, Target};
use vrnic_engine::recording::replay;
use vrnic_native::bench::{Load, Operation};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::request;
use vrnic_wire::completion::{Cqe, Opcode, flags};
use vrnic_wire::work::SendOpcode;
use vrnicd::capture::Choice;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Act, Object, Trace};

/// Size of each region in bytes: the send buffer, followed by the receive buffer.
const REGION: usize = 2 * MESSAGE;
/// Longest message. On a wire it takes several packets, the last of which is not full.
const MESSAGE: usize = 3 * 65536;
const LENGTHS: [usize; 7] = [0, 1, 8, 4095, 4096, 4097, 3 * 65536 - 5];

fn pair_on(fabric: Fabric) -> Result<(Daemon, [End; 2])> {
    let (daemon, mut ends) =
        pair::alone(Path::new(env!("CARGO_BIN_EXE_vrnicd")), fabric, REGION, 256)?;
    pair::connect(&mut ends, 2, 16)?;
    Ok((daemon, ends))
}

/// Allows only one pair over UDP at a time, because all such pairs have the same addresses.
static OVER_UDP: Mutex<()> = Mutex::new(());

/// Returns one of four loopback addresses that only this process uses.
fn loopback(index: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x7f00_0000 | std::process::id() << 2 | index).into()
}

/// Connects the guests of two daemons that share nothing but the host's network, which loses the fraction `loss` of
/// packets.
fn pair_over_udp(loss: f64) -> Result<([Daemon; 2], [End; 2])> {
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let more = format!("[switch.port.impairment]\nseed = 1\nloss = {loss:?}\n");
    let hosts = [loopback(0), loopback(1)];
    let mut daemons = [
        Daemon::over_udp(program, hosts[0], hosts[1], &more)?,
        Daemon::over_udp(program, hosts[1], hosts[0], &more)?,
    ];
    let mut ends = [
        End::at(&mut daemons[0], hosts[0], REGION, 256)?,
        End::at(&mut daemons[1], hosts[1], REGION, 256)?,
    ];
    pair::connect(&mut ends, 2, 16)?;
    Ok((daemons, ends))
}

/// Runs a test on each fabric and over UDP; errors include the logs of the daemons.
fn everywhere(test: impl Fn(&mut [End; 2]) -> Result<()>) {
    for fabric in Fabric::ALL {
        let (daemon, mut ends) = pair_on(fabric).unwrap();
        test(&mut ends)
            .with_context(|| format!("on {}: {}", fabric.name(), daemon.log()))
            .unwrap();
    }
    let _one = OVER_UDP.lock().unwrap_or_else(PoisonError::into_inner);
    for loss in [0.0, 0.03] {
        let (daemons, mut ends) = pair_over_udp(loss).unwrap();
        test(&mut ends)
            .with_context(|| {
                let logs = daemons.each_ref().map(Daemon::log);
                format!("over UDP, {loss} lost: {}", logs.join("\n"))
            })
            .unwrap();
    }
}

fn sent(end: &mut End, wr_id: u64, opcode: Opcode) -> Result<Cqe> {
    let cqe = end.sends.wait()?;
    ensure!(
        cqe.wr_id.get() == wr_id && cqe.opcode == opcode.raw(),
        "{cqe:?}"
    );
    Ok(cqe)
}

fn received(end: &mut End, wr_id: u64, length: usize) -> Result<Cqe> {
    let cqe = end.receives.wait()?;
    ensure!(
        cqe.wr_id.get() == wr_id && cqe.byte_length.get() as usize == length,
        "{cqe:?}"
    );
    Ok(cqe)
}

/// Checks that the receiver has the sender's pattern, and nothing after it.
fn arrived(receiver: &End, seed: u8, length: usize) -> Result<()> {
    let area = &receiver.mr.area;
    let wrong = area.difference(seed, MESSAGE, length);
    ensure!(wrong.is_none(), "byte {wrong:?} of {length} is wrong");
    ensure!(
        length == MESSAGE || area.byte(MESSAGE + length) == 0,
        "more than {length} bytes arrived"
    );
    Ok(())
}

/// Fills the send buffers and clears the receive buffers.
fn prepare(ends: &[End; 2], seed: u8) {
    for end in ends {
        end.mr.area.fill(seed, 0..MESSAGE);
        end.mr.area.clear(MESSAGE..REGION);
    }
}

#[test]
fn writes_arrive_whole() {
    everywhere(|ends| {
        for (seed, length) in (1..).zip(LENGTHS) {
            prepare(ends, seed);
            let [a, b] = ends;
            let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
            a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, length))?;
            sent(a, 7, Opcode::Write)?;
            arrived(b, seed, length)?;
        }
        Ok(())
    });
}

#[test]
fn writes_with_immediate_tell_the_peer() {
    everywhere(|ends| {
        for (seed, length) in (1..).zip(LENGTHS) {
            prepare(ends, seed);
            let [a, b] = ends;
            b.qps[1].push_receive(9, b.mr.sge(0, 0))?;
            b.qps[1].offer(&mut b.vm)?;
            let write = Request {
                immediate: 0x1234_5678,
                ..request(SendOpcode::WriteWithImmediate, 8, b.mr.target(MESSAGE))
            };
            a.qps[1].post(&mut a.vm, &write, a.mr.sge(0, length))?;
            let cqe = received(b, 9, length)?;
            ensure!(
                cqe.opcode == Opcode::ReceiveWriteWithImmediate.raw(),
                "{cqe:?}"
            );
            ensure!(cqe.flags & flags::IMMEDIATE != 0, "{cqe:?}");
            ensure!(cqe.immediate.get() == 0x1234_5678, "{cqe:?}");
            sent(a, 8, Opcode::Write)?;
            arrived(b, seed, length)?;
        }
        Ok(())
    });
}

#[test]
fn sends_fill_the_receives() {
    everywhere(|ends| {
        for (seed, length) in (1..).zip(LENGTHS) {
            for opcode in [SendOpcode::Send, SendOpcode::SendWithImmediate] {
                prepare(ends, seed);
                let [a, b] = ends;
                b.qps[0].push_receive(3, b.mr.sge(MESSAGE, MESSAGE))?;
                b.qps[0].offer(&mut b.vm)?;
                let send = Request {
                    immediate: 77,
                    ..request(opcode, 4, Target::Peer)
                };
                a.qps[0].post(&mut a.vm, &send, a.mr.sge(0, length))?;
                let cqe = received(b, 3, length)?;
                let immediate = cqe.flags & flags::IMMEDIATE != 0;
                ensure!(
                    immediate == (opcode == SendOpcode::SendWithImmediate),
                    "{cqe:?}"
                );
                ensure!(!immediate || cqe.immediate.get() == 77, "{cqe:?}");
                sent(a, 4, Opcode::Send)?;
                arrived(b, seed, length)?;
            }
        }
        Ok(())
    });
}

#[test]
fn reads_fetch_what_the_peer_has() {
    everywhere(|ends| {
        for (seed, length) in (1..).zip(LENGTHS) {
            prepare(ends, seed);
            let [a, b] = ends;
            let read = request(SendOpcode::Read, 5, a.mr.target(0));
            b.qps[0].post(&mut b.vm, &read, b.mr.sge(MESSAGE, length))?;
            let cqe = sent(b, 5, Opcode::Read)?;
            ensure!(cqe.byte_length.get() as usize == length, "{cqe:?}");
            arrived(b, seed, length)?;
        }
        Ok(())
    });
}

#[test]
fn atomics_are_exact() {
    everywhere(|ends| {
        let [a, b] = ends;
        let (target, result) = (64, 128);
        b.mr.area.set_long(target, 1000);
        let mut expected = 1000;
        for add in [1, 5, u64::MAX] {
            let request = request(SendOpcode::FetchAdd, add, b.mr.atomic(target, add, 0));
            a.qps[0].post(&mut a.vm, &request, a.mr.sge(result, 8))?;
            sent(a, add, Opcode::FetchAdd)?;
            ensure!(a.mr.area.long(result) == expected, "fetched");
            expected = expected.wrapping_add(add);
            ensure!(b.mr.area.long(target) == expected, "added");
        }
        for (compare, swap) in [(expected, 42), (expected, 43), (42, 44)] {
            let before = b.mr.area.long(target);
            let request = request(
                SendOpcode::CompareSwap,
                1,
                b.mr.atomic(target, compare, swap),
            );
            a.qps[0].post(&mut a.vm, &request, a.mr.sge(result, 8))?;
            sent(a, 1, Opcode::CompareSwap)?;
            ensure!(a.mr.area.long(result) == before, "what was there");
            let after = if before == compare { swap } else { before };
            ensure!(b.mr.area.long(target) == after, "swapped if it was equal");
        }
        Ok(())
    });
}

#[test]
fn what_is_written_atomically_is_there_whole() {
    everywhere(|ends| {
        let [a, b] = ends;
        let write = request(SendOpcode::AtomicWrite, 1, b.mr.atomic(72, 0, 0xfeed));
        a.qps[0].post_bare(&mut a.vm, &write)?;
        sent(a, 1, Opcode::AtomicWrite)?;
        ensure!(b.mr.area.long(72) == 0xfeed, "written");
        Ok(())
    });
}

#[test]
fn guests_of_one_daemon_talk_to_whom_they_are_connected_with() {
    const PAIRS: usize = 3;
    for fabric in Fabric::ALL {
        let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
        let mut daemon = Daemon::start(program, fabric, 2 * PAIRS).unwrap();
        let mut pairs: Vec<[End; 2]> = (0..PAIRS)
            .map(|pair| pair::start(&mut daemon, 2 * pair, REGION, 64).unwrap())
            .collect();
        for (seed, ends) in (1..).zip(&mut pairs) {
            pair::connect(ends, 1, 8).unwrap();
            prepare(ends, seed);
            let [a, b] = ends;
            let write = request(SendOpcode::Write, 1, b.mr.target(MESSAGE));
            a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, 5000)).unwrap();
        }
        for (seed, [a, b]) in (1..).zip(&mut pairs) {
            sent(a, 1, Opcode::Write).unwrap();
            arrived(b, seed, 5000).unwrap();
        }
    }
}

#[test]
fn completions_raise_events() {
    everywhere(|ends| {
        for round in 0..50_u64 {
            let seed = round as u8;
            prepare(ends, seed);
            let [a, b] = ends;
            b.qps[0].push_receive(round, b.mr.sge(MESSAGE, 64))?;
            b.qps[0].offer(&mut b.vm)?;
            b.receives.arm();
            a.sends.arm();
            if round % 3 == 0 {
                // Long enough for the device to fall asleep.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let send = request(SendOpcode::Send, round, Target::Peer);
            a.qps[0].post(&mut a.vm, &send, a.mr.sge(0, 64))?;
            b.receives.wait_event(&mut b.vm)?;
            let cqe = b.receives.poll().context("an event without a completion")?;
            ensure!(cqe.wr_id.get() == round, "{cqe:?}");
            arrived(b, seed, 64)?;
            a.sends.wait_event(&mut a.vm)?;
            let cqe = a.sends.poll().context("an event without a completion")?;
            ensure!(cqe.wr_id.get() == round, "{cqe:?}");
            ensure!(
                a.sends.poll().is_none() && b.receives.poll().is_none(),
                "once"
            );
        }
        Ok(())
    });
}

/// Guests use their memory while the engine reads it, so what the engine reads and when differs in each run.
#[test]
fn what_guests_do_meanwhile_is_recorded_and_replays() {
    for fabric in Fabric::ALL {
        let mut daemon = Daemon::start(Path::new(env!("CARGO_BIN_EXE_vrnicd")), fabric, 2).unwrap();
        daemon.connect(1).unwrap();
        let mut client = Client::connect(&daemon.control()).unwrap();
        let files = [tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap()];
        let mut start = |name, file: &File| {
            let started = client.start_recording(name, name, None, file.as_fd());
            started.unwrap().state
        };
        assert_eq!(start("0", &files[0]), "waiting for the driver");
        let mut ends = pair::start(&mut daemon, 0, 1 << 20, 4096).unwrap();
        pair::connect(&mut ends, 8, 64).unwrap();
        assert_eq!(start("1", &files[1]), "recording");
        for (operation, bytes) in [
            (Operation::Write, 2),
            (Operation::Send, 100),
            (Operation::Read, 9000),
            (Operation::Atomic, 8),
        ] {
            let mut load = Load::new(&mut ends, operation, bytes, 4).unwrap();
            load.windows(&mut ends, Duration::from_millis(1)).unwrap();
            load.finish(&mut ends).unwrap();
        }
        for (name, mut file) in ["0", "1"].into_iter().zip(files) {
            let ended = client.stop_recording(name).unwrap();
            assert_eq!(ended.state, "ended: stopped");
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len() as u64, ended.bytes);
            match replay(&bytes) {
                Ok(calls) => assert!(calls > 1000, "{calls}"),
                Err(error) => panic!("device {name} on {}: {error}", fabric.name()),
            }
        }
    }
}

/// Faults of switch ports strike frames on the wire, and queue pairs recover. The capture shows the faults.
#[test]
fn faults_of_ports_of_the_switch_are_survived() {
    let devices = ["0", "1"].map(|name| (name.to_owned(), ""));
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let mut daemon = Daemon::configured(program, Fabric::Roce, &devices, "faults = true").unwrap();
    let mut ends = pair::start(&mut daemon, 0, REGION, 256).unwrap();
    pair::connect(&mut ends, 1, 16).unwrap();
    let mut control = Client::connect(&daemon.control()).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    let everything = Choice {
        switch: true,
        ..Choice::default()
    };
    let capture = control
        .start_capture(everything, "all", file.as_fd())
        .unwrap();
    let cases = [
        ("port:0", "drop type=rc nth=3"),
        ("port:1", "drop type=rc dir=in nth=2"),
        ("port:1", "lost-ack type=rc"),
        ("port:0", "corrupt-icrc type=rc"),
        ("port:0", "truncated-frame type=rc"),
        ("port:0", "wrong-psn type=rc"),
        ("port:0", "wrong-version type=rc"),
        ("port:1", "wrong-pad type=rc opcode=ack"),
        ("port:0", "wrong-source type=rc"),
        ("port:0", "wrong-destination type=rc"),
        ("port:0", "wrong-field type=rc field=source-mac"),
        ("port:0", "wrong-field type=rc field=destination-mac"),
        ("port:0", "delay type=rc nth=2"),
        ("port:0", "reorder type=rc"),
        ("port:0", "duplicate type=rc count=all"),
        ("port:0", "slow-link type=rc rate=50000000"),
    ];
    for (seed, (port, fault)) in (1..).zip(cases) {
        let id = control.add_fault(port, fault).unwrap();
        prepare(&ends, seed);
        let [a, b] = &mut ends;
        let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
        a.qps[0]
            .post(&mut a.vm, &write, a.mr.sge(0, MESSAGE))
            .unwrap();
        sent(a, 7, Opcode::Write).expect(fault);
        arrived(b, seed, MESSAGE).expect(fault);
        let faults = control.faults(port).unwrap();
        let found = faults.iter().find(|found| found.id == id).unwrap();
        assert!(found.fired >= 1, "{found:?}");
        control.clear_faults(port, None).unwrap();
    }
    let log = control.fault_log("port:1").unwrap();
    assert_eq!(log[0].name, "drop");
    assert!(log[0].what.contains("in write"), "{log:?}");
    let counted = |name: &str, port: &str, control: &mut Client| {
        let ports = control.switch().unwrap();
        let port = ports.into_iter().find(|found| found.name == port).unwrap();
        port.counters.into_iter().find(|(found, _)| found == name)
    };
    assert_eq!(counted("faults", "1", &mut control).unwrap().1, 3);
    control.stop_capture(capture.id).unwrap();
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    for comment in [
        "switch port 0, fault drop",
        "switch port 1, fault lost-ack",
        "switch port 0, made by fault corrupt-icrc",
    ] {
        let found = bytes
            .windows(comment.len())
            .any(|text| text == comment.as_bytes());
        assert!(found, "no {comment:?} in the capture");
    }
    for (port, fault, why) in [
        ("port:2", "drop", "no port"),
        ("port:0", "cqe-lost", "a fault of a device"),
    ] {
        let told = control.add_fault(port, fault).unwrap_err().to_string();
        assert!(told.contains(why), "{told}");
    }
    let told = control.explanations("port:0", 0).unwrap_err().to_string();
    assert!(told.contains("only in requests about faults"), "{told}");
}

/// A capture of a device shows what its faults strike, including what they keep back and what they take from arriving
/// packets.
#[test]
fn faults_of_devices_are_in_captures() {
    for fabric in Fabric::ALL {
        let devices = ["0", "1"].map(|name| (name.to_owned(), ""));
        let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
        let mut daemon = Daemon::configured(program, fabric, &devices, "faults = true").unwrap();
        let mut ends = pair::start(&mut daemon, 0, REGION, 256).unwrap();
        pair::connect(&mut ends, 1, 16).unwrap();
        let mut control = Client::connect(&daemon.control()).unwrap();
        let tapes = ["0", "1"].map(|name| {
            let file = tempfile::tempfile().unwrap();
            let tape = control.start_recording(name, "tape", None, file.as_fd());
            tape.unwrap();
            file
        });
        // Whether the fault keeps something back, and whether a packet that passes carries its name.
        for (seed, (device, fault, keeps, passes)) in (1..).zip([
            ("0", "drop type=rc nth=2", true, false),
            ("0", "reorder type=rc", true, true),
            // Without any ACKs nothing completes.
            ("1", "delay type=rc opcode=ack count=all", true, true),
            ("1", "drop type=rc dir=in", false, true),
            ("1", "delay type=rc dir=in", false, true),
            ("1", "nak-sequence type=rc", false, true),
            ("0", "cqe-late type=rc delay=1ms", false, true),
            ("1", "duplicate type=rc opcode=ack", false, true),
        ]) {
            let mut file = tempfile::tempfile().unwrap();
            let choice = Choice {
                device: Some(device.to_owned()),
                ..Choice::default()
            };
            let capture = control.start_capture(choice, "one", file.as_fd()).unwrap();
            control.add_fault(device, fault).unwrap();
            prepare(&ends, seed);
            let [a, b] = &mut ends;
            let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
            let sge = a.mr.sge(0, MESSAGE);
            a.qps[0].post(&mut a.vm, &write, sge).unwrap();
            sent(a, 7, Opcode::Write).expect(fault);
            arrived(b, seed, MESSAGE).expect(fault);
            control.clear_faults(device, None).unwrap();
            control.stop_capture(capture.id).unwrap();
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            let count = |comment: &str| {
                let all = bytes.windows(comment.len());
                all.filter(|text| *text == comment.as_bytes()).count()
            };
            let comment = format!(", fault {}", fault.split(' ').next().unwrap());
            let kept = count(&format!("{comment}: kept back"));
            let passed = count(&comment) - kept;
            let what = format!(
                "{}: {kept} kept back, {passed} pass: {fault}",
                fabric.name()
            );
            assert_eq!((kept > 0, passed > 0), (keeps, passes), "{what}");
        }
        // Capturing did not change the behaviour of the devices.
        for (name, mut file) in ["0", "1"].into_iter().zip(tapes) {
            let stopped = control.stop_recording(name).unwrap();
            assert_eq!(stopped.state, "ended: stopped");
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            let calls = replay(&bytes).unwrap_or_else(|why| panic!("{}: {why}", fabric.name()));
            assert!(calls > 100, "{calls}");
        }
    }
}

/// Firings that strike no packet appear as comments in captures too: of a device, of all devices, and of a queue pair.
#[test]
fn faults_without_packets_are_in_captures() {
    for fabric in Fabric::ALL {
        let devices = ["0", "1"].map(|name| (name.to_owned(), ""));
        let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
        let mut daemon = Daemon::configured(program, fabric, &devices, "faults = true").unwrap();
        let mut ends = pair::start(&mut daemon, 0, REGION, 256).unwrap();
        pair::connect(&mut ends, 1, 16).unwrap();
        let mut control = Client::connect(&daemon.control()).unwrap();
        let qp = ends[0].qps[0].qpn();
        // It fires before there is a capture.
        control.add_fault("0", "event-lid-change").unwrap();
        let fired = |control: &mut Client, count: u64| {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while (control.fault_log("0").unwrap().len() as u64) < count {
                assert!(std::time::Instant::now() < deadline, "it does not fire");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        fired(&mut control, 1);
        let choices = [
            Choice::default(),
            Choice {
                device: Some("0".to_owned()),
                ..Choice::default()
            },
            Choice {
                device: Some("0".to_owned()),
                qp: Some(qp),
                ..Choice::default()
            },
            Choice {
                device: Some("1".to_owned()),
                ..Choice::default()
            },
        ];
        let captures = choices.map(|choice| {
            let file = tempfile::tempfile().unwrap();
            let capture = control.start_capture(choice, "one", file.as_fd()).unwrap();
            (capture.id, file)
        });
        for fault in [
            "event-gid-change",
            "doorbell-late delay=1ms",
            "cqe-late type=rc delay=1ms",
            "drop dir=in opcode=ack",
        ] {
            control.add_fault("0", fault).unwrap();
        }
        prepare(&ends, 1);
        let [a, b] = &mut ends;
        let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
        let sge = a.mr.sge(0, MESSAGE);
        a.qps[0].post(&mut a.vm, &write, sge).unwrap();
        sent(a, 7, Opcode::Write).unwrap();
        fired(&mut control, 5);
        let own = format!("QP {qp:#x}");
        for (index, (id, mut file)) in captures.into_iter().enumerate() {
            control.stop_capture(id).unwrap();
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            let count = |comment: &str| {
                let all = bytes.windows(comment.len());
                all.filter(|text| *text == comment.as_bytes()).count()
            };
            let of_all = usize::from(index < 3);
            for (comment, wanted) in [
                ("fault event-lid-change".to_owned(), 0),
                (
                    "0, fault event-gid-change: its time came".to_owned(),
                    of_all,
                ),
                (format!("0 {own}, fault doorbell-late: doorbell"), of_all),
                // The captures of the device and of the queue pair have these as comments of the ACK that triggered
                // them.
                ("fault cqe-late".to_owned(), of_all),
                ("fault drop".to_owned(), of_all),
                (
                    "fault drop: in ack, 0 bytes".to_owned(),
                    usize::from(index == 0),
                ),
            ] {
                let found = count(&comment);
                assert_eq!(found, wanted, "{} {index}: {comment:?}", fabric.name());
            }
        }
    }
}

/// Both devices report the steps of a write to a client that asks.
#[test]
fn steps_are_traced_while_somebody_asks() {
    for fabric in Fabric::ALL {
        let (daemon, mut ends) = pair_on(fabric).unwrap();
        let mut client = Client::connect(&daemon.control()).unwrap();
        let write = |ends: &mut [End; 2], wr_id| {
            let [a, b] = ends;
            let write = request(SendOpcode::Write, wr_id, b.mr.target(MESSAGE));
            a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, 100)).unwrap();
            sent(a, wr_id, Opcode::Write).unwrap();
        };
        // No client has asked so far.
        write(&mut ends, 1);
        let mut first = |device: &str| {
            let trace = client.trace(device, 0).unwrap();
            assert!(trace.steps.is_empty(), "{trace:?}");
            trace.first
        };
        let mut from = [first("0"), first("1")];
        let mut count = 1;
        // On a slow machine, the requester may find that an answer takes long, and ask once more.
        let [a, b] = loop {
            count += 1;
            write(&mut ends, count);
            let traces = ["0", "1"].map(|device| {
                let from = &mut from[usize::from(device == "1")];
                let trace = client.trace(device, *from).unwrap();
                *from = trace.first + trace.steps.len() as u64;
                trace
            });
            if traces.iter().map(|trace| trace.steps.len()).eq([4, 2]) {
                break traces;
            }
            assert!(count < 20, "{traces:?}");
        };
        // libvrnic uses the number of a request as its `wr_id`.
        let normal = |wr_id: u64| wr_id + 2 - count;
        let acts = |trace: &Trace| -> Vec<String> {
            let acts = trace.steps.iter().map(|step| match &step.act {
                Act::Fetched { wr_id, length, .. } => {
                    format!("fetched {}, {length}", normal(*wr_id))
                }
                Act::Sent(packet) => format!("sent {}", packet.opcode),
                Act::Arrived(packet) => format!("arrived {}", packet.opcode),
                Act::Completed { wr_id, status, .. } => {
                    format!("completed {} {status}", normal(*wr_id))
                }
                other => format!("{other:?}"),
            });
            acts.collect()
        };
        let wanted = [
            "fetched 1, 100",
            "sent RDMA WRITE Only",
            "arrived Acknowledge",
            "completed 1 IBV_WC_SUCCESS",
        ];
        assert_eq!(acts(&a), wanted, "on {}", fabric.name());
        assert_eq!(
            acts(&b),
            ["arrived RDMA WRITE Only", "sent Acknowledge"],
            "on {}",
            fabric.name()
        );
        let [Act::Sent(packet), Act::Arrived(same)] = [&a.steps[1].act, &b.steps[0].act] else {
            panic!("{a:?} {b:?}");
        };
        assert_eq!(
            (packet.psn, packet.rkey, packet.length),
            (same.psn, same.rkey, 100)
        );
        assert_eq!(a.steps[0].qpn, ends[0].qps[0].qpn());
        // The receiver knows what the key refers to, and the sender its queue.
        let [Object::Region { named, mr }] = &b.steps[0].objects[..] else {
            panic!("{b:?}");
        };
        assert_eq!((Some(*named), mr.key), (packet.rkey, *named));
        assert!(a.steps[1].objects.is_empty(), "{a:?}");
        let [Object::Cq(cq)] = &a.steps[3].objects[..] else {
            panic!("{a:?}");
        };
        assert!(cq.exact && cq.armed.is_some() && !cq.failed, "{cq:?}");
        let times = [
            &a.steps[0],
            &a.steps[1],
            &b.steps[0],
            &b.steps[1],
            &a.steps[2],
            &a.steps[3],
        ];
        assert!(times.is_sorted_by_key(|step| step.at), "{a:?} {b:?}");
        // Steps that have been returned are not returned again.
        let next = a.first + a.steps.len() as u64;
        assert!(client.trace("0", next).unwrap().steps.is_empty());
    }
}

/// Any host that reaches the host's address may send anything there. It is counted and has no effect.
#[test]
fn a_network_full_of_nonsense_does_no_harm() {
    let _one = OVER_UDP.lock().unwrap_or_else(PoisonError::into_inner);
    let ([daemon, _other], mut ends) = pair_over_udp(0.0).unwrap();
    let to = (loopback(0), vrnic_roce::UDP_PORT);
    // A host that is not a peer, and the peer's host, where other programs than vrnicd may send, too.
    let sockets = [2, 1].map(|index| UdpSocket::bind((loopback(index), 0)).unwrap());
    let mut random = 1_u32;
    for length in 0..100_usize {
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 24) as u8
        })
        .take(length * 71 % 5000)
        .collect();
        for socket in &sockets {
            socket.send_to(&bytes, to).unwrap();
        }
        prepare(&ends, length as u8);
        let [a, b] = &mut ends;
        let write = request(SendOpcode::Write, 1, a.mr.target(MESSAGE));
        b.qps[0].post(&mut b.vm, &write, b.mr.sge(0, 5000)).unwrap();
        sent(b, 1, Opcode::Write).unwrap();
        arrived(a, length as u8, 5000).unwrap();
    }
    // The writes came after the nonsense through the same socket.
    let mut client = Client::connect(&daemon.control()).unwrap();
    let ports = client.switch().unwrap();
    let port = ports.iter().find(|port| port.name == "udp").unwrap();
    assert_eq!(port.counter("rx_stranger"), 100, "{port:?}");
    assert!(port.counter("rx_frames") >= 200, "{port:?}");
    assert_eq!(port.counter("tx_foreign"), 0, "{port:?}");
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
