// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Files of captures, read by others.

use std::process::Command;

use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{
    Aeth, AtomicKind, AtomicRequest, Body, Path as Way, Payload, Position, Reth, SendTail, Syndrome,
};
use vrnic_engine::testing::{GuestView, Memories, gid_of};
use vrnic_wire::port::NO_VLAN;

use super::*;

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
        psn: Psn::new(77),
        solicited: false,
        ack_request: true,
        unreliable: false,
        body,
        payload: match payload {
            0 => Payload::Empty,
            length => Payload::Bytes(vec![0x5a; length]),
        },
    }
}

/// One segment of each kind, with what tshark calls its opcode.
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
                unreliable: true,
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

fn settings(dir: &tempfile::TempDir, device: Option<&str>, qp: Option<u32>) -> Settings {
    Settings {
        file: dir.path().join("capture.pcapng"),
        device: device.map(str::to_owned),
        qp,
    }
}

/// Protocols that tshark takes payload for, by its looks.
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

/// Severity of what tshark says of a packet, from which on it is a complaint.
const NOTE: u32 = 0x0040_0000;

/// Fields of each packet in a file as tshark sees them, which must not complain of any.
fn dissect(file: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let tshark = |arguments: &[&str]| {
        let mut command = Command::new("tshark");
        command.arg("-n").arg("-r").arg(file).args(arguments);
        // RoCE has no UDP checksum, over IPv6 neither.
        command.args(["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]);
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

#[test]
fn tshark_dissects_every_kind_of_packet() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&dir, None, None);
    let mut capture = Capture::start(&settings, &names()).unwrap();
    let mut expected = Vec::new();
    for family in 0..4 {
        for (mut segment, opcode) in kinds() {
            match family {
                1 => (segment.path.source, segment.path.destination) = ([0xfd; 16], [0xfe; 16]),
                2 => segment.path.roce_v1 = true,
                3 => segment.path.vlan = 7,
                _ => {}
            }
            capture.segment(0, Direction::Out, &segment, &memory());
            expected.push(opcode.to_string());
        }
    }
    drop(capture);
    let packets = dissect(
        &settings.file,
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
fn long_segments_become_packets() {
    let dir = tempfile::tempdir().unwrap();
    let settings = settings(&dir, None, None);
    let mut capture = Capture::start(&settings, &names()).unwrap();
    let body = Body::Send {
        position: Position::Only,
        tail: SendTail::Plain,
    };
    capture.segment(1, Direction::Out, &segment(body, 65536), &memory());
    drop(capture);
    let packets = dissect(&settings.file, &["infiniband.bth.opcode", "frame.len"]);
    assert_eq!(packets.len(), 16);
    assert_eq!(packets[0], ["0", "4154"]);
    assert_eq!(packets[7], ["1", "4154"]);
    assert_eq!(packets[15], ["2", "4154"]);
}

#[test]
fn a_device_or_a_queue_pair_is_picked_out() {
    let count = |device, qp| {
        let dir = tempfile::tempdir().unwrap();
        let settings = settings(&dir, device, qp);
        let mut capture = Capture::start(&settings, &names()).unwrap();
        let body = Body::Send {
            position: Position::Only,
            tail: SendTail::Plain,
        };
        // From QP 0x11 of a to QP 0x12 of b, and an answer.
        capture.segment(0, Direction::Out, &segment(body, 10), &memory());
        capture.segment(1, Direction::In, &segment(body, 10), &memory());
        let mut answer = segment(body, 10);
        (answer.source_qpn, answer.destination_qpn) = (0x12, 0x11);
        capture.segment(1, Direction::Out, &answer, &memory());
        capture.segment(0, Direction::In, &answer, &memory());
        drop(capture);
        dissect(&settings.file, &["frame.comment"])
            .into_iter()
            .map(|mut fields| fields.remove(0))
            .collect::<Vec<_>>()
    };
    let all = count(None, None);
    assert_eq!(
        all,
        [
            "a QP 0x11 -> QP 0x12: SEND Only",
            "b QP 0x12 -> QP 0x11: SEND Only"
        ]
    );
    let a = [
        "a QP 0x11 -> QP 0x12: SEND Only",
        "a QP 0x11 <- QP 0x12: SEND Only",
    ];
    assert_eq!(count(Some("a"), None), a);
    assert_eq!(count(Some("a"), Some(0x11)), a);
    assert!(count(Some("a"), Some(0x12)).is_empty());
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let start = |settings: &Settings| {
        Capture::start(settings, &names())
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(start(&settings(&dir, Some("c"), None)).contains("no device"));
    assert!(start(&settings(&dir, None, Some(3))).contains("needs its device"));
    let mut nowhere = settings(&dir, None, None);
    nowhere.file = dir.path().join("none/capture");
    assert!(start(&nowhere).contains("cannot capture"));
}
