// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Checks that other programs can read the files of captures.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{
    Aeth, AtomicKind, AtomicRequest, Body, Flush, LidRoute, Path as Way, Payload, Position, Reth,
    SendTail, Service, Syndrome,
};
use vrnic_engine::testing::{GuestView, Memories, gid_of};
use vrnic_infiniband::packet::LINKTYPE_INFINIBAND;
use vrnic_wire::port::NO_VLAN;

use super::*;
use crate::config::Config;
use crate::fabric::SubnetFabric;

fn memory() -> GuestView {
    Memories::new().add(0)
}

fn way() -> Way {
    Way {
        source: gid_of(0),
        destination: gid_of(1),
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        vlan: NO_VLAN,
        source_port: 0xc123,
        ..Way::default()
    }
}

fn segment(body: Body, payload: usize) -> Segment<'static> {
    Segment {
        path: way(),
        source_qpn: 0x11,
        destination_qpn: 0x12,
        pkey: 0xffff,
        checksums_ok: false,
        touched: vrnic_engine::segment::Touched::NOT,
        psn: Psn::new(77),
        solicited: false,
        ack_request: true,
        migrated: true,
        service: Service::Reliable,
        body,
        payload: match payload {
            0 => Payload::Empty,
            length => Payload::Bytes(vec![0x5a; length]),
        },
    }
}

/// Returns one segment of each kind, with the number that tshark shows for its opcode.
fn kinds() -> Vec<(Segment<'static>, u8)> {
    let reth = Reth {
        address: 0x7f00,
        rkey: 5,
        length: 100,
    };
    let aeth = Aeth {
        syndrome: Syndrome::ACK,
        msn: 3,
    };
    let send = |position, tail| Body::Send { position, tail };
    let write = |position: Position, immediate| Body::Write {
        position,
        reth: position.begins().then_some(reth),
        immediate,
    };
    let response = |position| Body::ReadResponse {
        position,
        aeth: (position != Position::Middle).then_some(aeth),
    };
    let atomic = |kind| {
        Body::AtomicRequest(AtomicRequest {
            kind,
            address: 8,
            rkey: 5,
            compare_add: 1,
            swap: 2,
        })
    };
    let flush = Body::FlushRequest(Flush {
        remote: reth,
        placement: 1,
        selectivity: 0,
    });
    let mut kinds = vec![
        (segment(send(Position::First, SendTail::Plain), 256), 0),
        (segment(send(Position::Middle, SendTail::Plain), 256), 1),
        (segment(send(Position::Last, SendTail::Plain), 7), 2),
        (segment(send(Position::Last, SendTail::Immediate(9)), 8), 3),
        (segment(send(Position::Only, SendTail::Plain), 0), 4),
        (segment(send(Position::Only, SendTail::Immediate(9)), 5), 5),
        (segment(write(Position::First, None), 256), 6),
        (segment(write(Position::Middle, None), 256), 7),
        (segment(write(Position::Last, None), 1), 8),
        (segment(write(Position::Last, Some(4)), 2), 9),
        (segment(write(Position::Only, None), 3), 10),
        (segment(write(Position::Only, Some(4)), 4), 11),
        (segment(Body::ReadRequest(reth), 0), 12),
        (segment(response(Position::First), 256), 13),
        (segment(response(Position::Middle), 256), 14),
        (segment(response(Position::Last), 9), 15),
        (segment(response(Position::Only), 10), 16),
        (segment(Body::Acknowledge(aeth), 0), 17),
        (
            segment(Body::AtomicAcknowledge { aeth, original: 1 }, 0),
            18,
        ),
        (segment(atomic(AtomicKind::CompareSwap), 0), 19),
        (segment(atomic(AtomicKind::FetchAdd), 0), 20),
        (segment(flush, 0), 28),
        (segment(Body::AtomicWrite(reth), 8), 29),
        (
            segment(send(Position::Last, SendTail::Invalidate(9)), 8),
            22,
        ),
        (
            segment(send(Position::Only, SendTail::Invalidate(9)), 8),
            23,
        ),
        (
            segment(
                Body::Datagram {
                    qkey: 0x11,
                    source_qpn: 0x11,
                    immediate: None,
                },
                30,
            ),
            100,
        ),
        (segment(Body::CongestionNotification, 0), 129),
    ];
    let unreliable: Vec<_> = kinds[..12]
        .iter()
        .map(|(packet, opcode)| {
            let packet = Segment {
                service: Service::Unreliable,
                ..packet.clone()
            };
            (packet, opcode + 32)
        })
        .collect();
    kinds.extend(unreliable);
    kinds
}

fn names() -> Vec<String> {
    vec!["a".into(), "b".into()]
}

/// Captures packets from `feed` to a file.
fn capture(choice: Choice, feed: impl FnOnce(&Captures)) -> (tempfile::TempDir, PathBuf) {
    capture_with(Vec::new(), choice, feed)
}

/// The same, where some devices have InfiniBand packets.
fn capture_with(
    infiniband: Vec<String>,
    choice: Choice,
    feed: impl FnOnce(&Captures),
) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("capture.pcapng");
    let center = Center::new(names(), ["p".to_owned()].into_iter()).with_infiniband(infiniband);
    let captures = Captures::new(names());
    let file = File::create(&path).unwrap();
    captures.add(center.start(choice, file, "capture.pcapng").unwrap());
    feed(&captures);
    drop(captures);
    assert!(center.wait(None, PATIENCE));
    (dir, path)
}

/// Long enough to be reached only if something never happens.
const PATIENCE: Duration = Duration::from_secs(30);

/// Protocols that tshark mistakes payload for.
const GUESSES: [&str; 10] = [
    "ethertype",
    "fcoib",
    "infiniband.eoib",
    "infiniband_sdp",
    "iser",
    "lnet",
    "nvme-rdma",
    "rpcordma",
    "smb_direct",
    "smc",
];

/// Severity from which on a remark by tshark counts as a complaint.
const NOTE: u32 = 0x0040_0000;

/// Link type for users. tshark 4.0 does not know the link type of InfiniBand, and can be told what this one means.
const FOR_USERS: u16 = 147;
const INFINIBAND_FOR_USERS: &str = r#"uat:user_dlts:"User 0 (DLT=147)","infiniband","0","","0","""#;

/// Changes interfaces with the link type of InfiniBand to the one for users. Returns how many there were.
fn retype(path: &Path) -> usize {
    let mut bytes = std::fs::read(path).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(*bytes[at..].first_chunk().unwrap());
    let (mut at, mut count) = (0, 0);
    while at < bytes.len() {
        let link = at + 8..at + 10;
        // Blocks of type 1 describe interfaces.
        if word(&bytes, at) == 1 && bytes[link.clone()] == LINKTYPE_INFINIBAND.to_ne_bytes() {
            bytes[link].copy_from_slice(&FOR_USERS.to_ne_bytes());
            count += 1;
        }
        at += word(&bytes, at + 4) as usize;
    }
    std::fs::write(path, bytes).unwrap();
    count
}

/// Returns fields of each packet in a file as tshark sees them; fails if tshark complains about a packet.
fn dissect(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let tshark = |arguments: &[&str]| {
        let mut command = Command::new("tshark");
        command.arg("-n").arg("-r").arg(file).args(arguments);
        // RoCE has no UDP checksum, not even over IPv6.
        command.args(["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]);
        command.args(["-o", INFINIBAND_FOR_USERS]);
        for guess in GUESSES {
            command.args(["--disable-protocol", guess]);
        }
        let output = command
            .output()
            .expect("tshark runs (tools/setup installs it)");
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let complaints = tshark(&[
        "-Y",
        &format!("_ws.malformed || _ws.expert.severity >= {NOTE}"),
    ]);
    assert_eq!(complaints, "");
    let mut arguments = vec!["-T", "fields", "-E", "occurrence=f"];
    arguments.extend(fields.iter().flat_map(|field| ["-e", field]));
    tshark(&arguments)
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}

const SEND: Body = Body::Send {
    position: Position::Only,
    tail: SendTail::Plain,
};

#[test]
fn tshark_dissects_every_kind_of_packet() {
    let mut expected = Vec::new();
    let (_dir, path) = capture(Choice::default(), |captures| {
        for family in 0..4 {
            for (mut segment, opcode) in kinds() {
                match family {
                    1 => (segment.path.source, segment.path.destination) = ([0xfd; 16], [0xfe; 16]),
                    2 => segment.path.roce_v1 = true,
                    3 => segment.path.vlan = 7,
                    _ => {}
                }
                captures.segment(0, Direction::Out, &segment, &memory(), "");
                expected.push(opcode.to_string());
            }
        }
    });
    let packets = dissect(
        &path,
        &[
            "infiniband.bth.opcode",
            "frame.comment",
            "frame.interface_name",
        ],
    );
    let opcodes: Vec<String> = packets.iter().map(|packet| packet[0].clone()).collect();
    assert_eq!(opcodes, expected);
    assert_eq!(packets[0][1], "a QP 0x11 -> QP 0x12: SEND First");
    assert_eq!(packets[0][2], "a");
}

#[test]
fn tshark_dissects_every_kind_of_packet_of_infiniband() {
    let mut expected = Vec::new();
    let devices = "[[device]]\nname = \"b\"\nsocket = \"b.sock\"\nmac = \"02:00:00:00:00:01\"\n\
                   fabric = \"infiniband\"\n";
    let config = Config::parse(devices).unwrap();
    let mut subnet = SubnetFabric::new(&config).unwrap().unwrap();
    let choice = Choice::default();
    let (_dir, path) = capture_with(vec!["b".into()], choice, |captures| {
        // The first interface is one of Ethernet.
        captures.segment(0, Direction::Out, &segment(SEND, 10), &memory(), "");
        for global in [false, true] {
            for (mut segment, opcode) in kinds() {
                segment.path.lids = Some(LidRoute {
                    source: 7,
                    destination: 9,
                    global,
                });
                let packet = subnet.packet(0, &segment, &memory()).unwrap();
                captures.frame(1, Direction::Out, &segment, &packet.to_bytes(), "");
                let crc = vrnic_infiniband::packet::check(&packet.to_bytes());
                assert!(crc.is_ok(), "{crc:?}");
                let to = if global {
                    std::net::Ipv6Addr::from(gid_of(1)).to_string()
                } else {
                    String::new()
                };
                expected.push([opcode.to_string(), "9".into(), "7".into(), to, "b".into()]);
            }
        }
    });
    assert_eq!(retype(&path), 1);
    let packets = dissect(
        &path,
        &[
            "infiniband.bth.opcode",
            "infiniband.lrh.dlid",
            "infiniband.lrh.slid",
            "infiniband.grh.dgid",
            "frame.interface_name",
        ],
    );
    assert_eq!(packets[0], ["4", "", "", "", "a"]);
    assert_eq!(packets[1..], expected);
}

#[test]
fn long_segments_become_packets() {
    let (_dir, path) = capture(Choice::default(), |captures| {
        captures.segment(1, Direction::Out, &segment(SEND, 65536), &memory(), "");
    });
    let packets = dissect(&path, &["infiniband.bth.opcode", "frame.len"]);
    assert_eq!(packets.len(), 16);
    assert_eq!(packets[0], ["0", "4154"]);
    assert_eq!(packets[7], ["1", "4154"]);
    assert_eq!(packets[15], ["2", "4154"]);
}

/// Returns the choice of a device, or of one of its queue pairs.
fn of(device: &str, qp: Option<u32>) -> Choice {
    Choice {
        device: Some(device.to_owned()),
        qp,
        ..Choice::default()
    }
}

#[test]
fn a_device_a_queue_pair_or_the_switch_is_picked_out() {
    let seen = |choice: Choice| {
        let (_dir, path) = capture(choice, |captures| {
            // From QP 0x11 of a to QP 0x12 of b, and a reply.
            captures.segment(0, Direction::Out, &segment(SEND, 10), &memory(), "");
            captures.segment(1, Direction::In, &segment(SEND, 10), &memory(), "");
            let mut answer = segment(SEND, 10);
            (answer.source_qpn, answer.destination_qpn) = (0x12, 0x11);
            captures.segment(1, Direction::Out, &answer, &memory(), "");
            captures.segment(0, Direction::In, &answer, &memory(), "");
            // The Ethertype is one for experiments.
            let mut frame = [[2; 6], [6; 6]].concat();
            frame.extend(b"\x88\xb5something else");
            captures.outside(0, "p", Direction::In, &frame, "");
        });
        dissect(&path, &["frame.interface_name", "frame.comment"])
            .into_iter()
            .map(|fields| fields.join(": "))
            .collect::<Vec<_>>()
    };
    let all = [
        "a: a QP 0x11 -> QP 0x12: SEND Only",
        "b: b QP 0x12 -> QP 0x11: SEND Only",
    ];
    assert_eq!(seen(Choice::default()), all);
    let switch = Choice {
        switch: true,
        ..Choice::default()
    };
    let outside = "switch port p: switch port p";
    assert_eq!(seen(switch), [all[0], all[1], outside]);
    let a = [
        "a: a QP 0x11 -> QP 0x12: SEND Only",
        "a: a QP 0x11 <- QP 0x12: SEND Only",
    ];
    assert_eq!(seen(of("a", None)), a);
    assert_eq!(seen(of("a", Some(0x11))), a);
    assert!(seen(of("a", Some(0x12))).is_empty());
}

#[test]
fn captures_run_beside_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let center = Center::new(names(), std::iter::empty());
    let captures = Captures::new(names());
    let start = |captures: &Captures, name: &str, choice| {
        let file = File::create(dir.path().join(name)).unwrap();
        let capture = center.start(choice, file, name).unwrap();
        let id = capture.id();
        captures.add(capture);
        id
    };
    let first = start(&captures, "a", of("a", None));
    captures.segment(0, Direction::Out, &segment(SEND, 10), &memory(), "");
    let second = start(&captures, "all", Choice::default());
    captures.segment(0, Direction::Out, &segment(SEND, 10), &memory(), "");
    captures.segment(1, Direction::Out, &segment(SEND, 10), &memory(), "");
    assert!(captures.remove(first) && !captures.remove(first));
    assert!(center.wait(Some(first), PATIENCE));
    assert!(!center.wait(Some(second), Duration::ZERO));
    captures.segment(0, Direction::Out, &segment(SEND, 10), &memory(), "");
    assert!(captures.remove(second) && captures.is_empty());
    assert!(center.wait(None, PATIENCE));
    let count = |name: &str| dissect(&dir.path().join(name), &["frame.len"]).len() as u64;
    assert_eq!((count("a"), count("all")), (2, 3));
    let known = center.known();
    let counts: Vec<_> = known.iter().map(|known| known.counts().0).collect();
    assert_eq!(counts, [2, 3]);
    assert_eq!(known[0].ended().as_deref(), Some("stopped"));
    let length = std::fs::metadata(dir.path().join("all")).unwrap().len();
    assert_eq!(known[1].counts().1, length, "bytes of the file");
}

#[test]
fn limits_are_held() {
    let feed = |captures: &Captures| {
        for _ in 0..20 {
            captures.segment(0, Direction::Out, &segment(SEND, 100), &memory(), "");
        }
    };
    let packets = Choice {
        max_packets: Some(7),
        ..Choice::default()
    };
    let (_dir, path) = capture(packets, feed);
    assert_eq!(dissect(&path, &["frame.len"]).len(), 7);
    let bytes = Choice {
        max_bytes: Some(2000),
        ..Choice::default()
    };
    let (_dir, path) = capture(bytes, feed);
    let count = dissect(&path, &["frame.len"]).len();
    assert!((5..20).contains(&count), "{count}");
    let length = std::fs::metadata(&path).unwrap().len();
    assert!((1500..=2000).contains(&length), "{length}");
}

#[test]
fn a_file_that_takes_nothing_stops_its_capture_only() {
    let center = Center::new(names(), std::iter::empty());
    let captures = Captures::new(names());
    let full = File::options().write(true).open("/dev/full").unwrap();
    captures.add(center.start(Choice::default(), full, "full").unwrap());
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(writer));
    let patience = Duration::from_millis(100);
    let stuck = center.start_with(Choice::default(), pipe, "stuck\x1b[2J", patience);
    captures.add(stuck.unwrap());
    let good = tempfile::tempfile().unwrap();
    let good = center.start(Choice::default(), good, "good").unwrap();
    let good_id = good.id();
    captures.add(good);
    // More than a pipe can hold, until the stuck captures are gone.
    let deadline = std::time::Instant::now() + PATIENCE;
    let ended = |center: &Center| {
        let known = center.known();
        known.iter().filter(|known| known.ended().is_some()).count()
    };
    while ended(&center) < 2 {
        captures.segment(0, Direction::Out, &segment(SEND, 4096), &memory(), "");
        assert!(std::time::Instant::now() < deadline);
    }
    // Nothing is missing in a capture that has ended.
    let missing = || [0, 1].map(|capture| center.known()[capture].counts().2);
    let before = missing();
    for _ in 0..100 {
        captures.segment(0, Direction::Out, &segment(SEND, 4096), &memory(), "");
    }
    assert_eq!(missing(), before);
    assert!(captures.remove(good_id), "the good one goes on");
    assert!(center.wait(None, PATIENCE));
    assert!(captures.is_empty(), "the others were noticed");
    let known = center.known();
    assert!(known[0].ended().unwrap().contains("No space left"));
    assert!(
        known[1]
            .ended()
            .unwrap()
            .contains("its reader does not read")
    );
    assert_eq!(known[1].file, "stuck\\u{1b}[2J");
    assert_eq!(known[2].ended().as_deref(), Some("stopped"));
    assert!(known[2].counts().0 > 0);
    drop(reader);
}

#[test]
fn what_waits_to_be_written_is_bounded() {
    let center = Center::new(names(), std::iter::empty());
    let captures = Captures::new(names());
    let (reader, writer) = std::io::pipe().unwrap();
    let pipe = File::from(std::os::fd::OwnedFd::from(writer));
    captures.add(center.start(Choice::default(), pipe, "pipe").unwrap());
    let all = 2 * QUEUE;
    for _ in 0..all {
        captures.segment(0, Direction::Out, &segment(SEND, 4096), &memory(), "");
    }
    let known = &center.known()[0];
    let (_, _, missing) = known.counts();
    assert!(missing >= (all - QUEUE - 100) as u64, "{missing}");
    drop(reader);
    assert!(center.wait(None, PATIENCE), "a closed pipe ends it");
    assert!(known.ended().unwrap().contains("Broken pipe"), "{known:?}");
}

#[test]
fn mistakes_are_named() {
    let center = Center::new(names(), std::iter::empty());
    let start = |choice| {
        let outcome = center.start(choice, tempfile::tempfile().unwrap(), "file");
        format!("{:#}", outcome.map(|_| ()).unwrap_err())
    };
    assert!(start(of("c", None)).contains("does not exist"));
    let mut qp = of("a", Some(3));
    qp.device = None;
    assert!(start(qp).contains("needs its device"));
    let mut both = of("a", None);
    both.switch = true;
    assert!(start(both).contains("not both"));
    let readable = File::open("/dev/null").unwrap();
    let error = center.start(Choice::default(), readable, "file");
    assert!(format!("{:#}", error.map(|_| ()).unwrap_err()).contains("not open for writing"));
    assert!(center.known().is_empty());
    let running: Vec<_> = (0..MAX_RUNNING)
        .map(|_| center.start(Choice::default(), tempfile::tempfile().unwrap(), "file"))
        .collect();
    assert!(running.iter().all(Result::is_ok));
    assert!(start(Choice::default()).contains("already running"));
    drop(running);
    assert!(center.wait(None, PATIENCE));
    for _ in 0..100 {
        let capture = center.start(Choice::default(), tempfile::tempfile().unwrap(), "file");
        drop(capture.unwrap());
        assert!(center.wait(None, PATIENCE));
    }
    assert!(center.known().len() <= 32);
}
