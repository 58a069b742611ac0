// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random segments.

use proptest::{collection::vec, prelude::*};
use vrnic_engine::{
    Segment,
    psn::Psn,
    segment::{
        Aeth, AtomicKind, AtomicRequest, Body, Flush, Gid, NakCode, Path, Payload, Position, Reth,
        SendTail, Service, Syndrome,
    },
    testing::{GuestView, Memories},
};
use vrnic_roce::MAX_FRAME;
use vrnic_wire::port::NO_VLAN;

/// Returns the memory of a guest to which no segment refers.
pub fn no_memory() -> GuestView {
    Memories::new().add(0)
}

fn position() -> impl Strategy<Value = Position> {
    prop::sample::select(vec![
        Position::First,
        Position::Middle,
        Position::Last,
        Position::Only,
    ])
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(address, rkey, length)| Reth {
        address,
        rkey,
        length,
    })
}

fn aeth() -> impl Strategy<Value = Aeth> {
    let syndrome = prop_oneof![
        (0u8..32).prop_map(|credits| Syndrome::Ack { credits }),
        (0u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        prop::sample::select(vec![
            NakCode::SequenceError,
            NakCode::InvalidRequest,
            NakCode::RemoteAccess,
            NakCode::RemoteOperation,
        ])
        .prop_map(Syndrome::Nak),
    ];
    (syndrome, 0u32..1 << 24).prop_map(|(syndrome, msn)| Aeth { syndrome, msn })
}

/// Generates every kind of packet.
pub fn body() -> impl Strategy<Value = Body> {
    let tail = prop_oneof![
        Just(SendTail::Plain),
        any::<u32>().prop_map(SendTail::Immediate),
        any::<u32>().prop_map(SendTail::Invalidate),
    ];
    let send = (position(), tail).prop_map(|(position, tail)| Body::Send {
        position,
        tail: if position.ends() {
            tail
        } else {
            SendTail::Plain
        },
    });
    let write = (position(), reth(), any::<Option<u32>>()).prop_map(|(position, reth, value)| {
        Body::Write {
            position,
            reth: position.begins().then_some(reth),
            immediate: value.filter(|_| position.ends()),
        }
    });
    let atomic = any::<(bool, u64, u32, u64, u64)>().prop_map(|(add, address, rkey, a, b)| {
        Body::AtomicRequest(AtomicRequest {
            kind: if add {
                AtomicKind::FetchAdd
            } else {
                AtomicKind::CompareSwap
            },
            address,
            rkey,
            compare_add: a,
            swap: if add { 0 } else { b },
        })
    });
    let response = (position(), aeth()).prop_map(|(position, aeth)| Body::ReadResponse {
        position,
        aeth: (position != Position::Middle).then_some(aeth),
    });
    let datagram = (any::<u32>(), 0u32..1 << 24, any::<Option<u32>>()).prop_map(
        |(qkey, source_qpn, immediate)| Body::Datagram {
            qkey,
            source_qpn,
            immediate,
        },
    );
    prop_oneof![
        4 => send,
        4 => write,
        1 => reth().prop_map(Body::ReadRequest),
        2 => atomic,
        1 => reth().prop_map(Body::AtomicWrite),
        1 => (reth(), 0u8..16, 0u8..4).prop_map(|(remote, placement, selectivity)| {
            Body::FlushRequest(Flush { remote, placement, selectivity })
        }),
        2 => response,
        1 => aeth().prop_map(Body::Acknowledge),
        1 => (aeth(), any::<u64>()).prop_map(|(aeth, original)| Body::AtomicAcknowledge { aeth, original }),
        1 => datagram,
        1 => prop_oneof![Just(0x15), 0x18u8..0x1c, 0x1eu8..0x20].prop_map(Body::Unknown),
        1 => Just(Body::CongestionNotification),
    ]
}

/// Returns whether packets of this kind may have payload.
pub fn has_payload(body: &Body) -> bool {
    matches!(
        body,
        Body::Send { .. }
            | Body::Write { .. }
            | Body::AtomicWrite(_)
            | Body::ReadResponse { .. }
            | Body::Datagram { .. }
            | Body::Unknown(_)
    )
}

/// Returns one of the services that have packets of this kind.
fn service_of(body: &Body, choice: u8, srqn: u32) -> Service {
    match (body, choice % 3) {
        (Body::Datagram { .. } | Body::CongestionNotification, _) => Service::Reliable,
        (Body::Unknown(_), 1) => Service::Xrc { srqn: 0 },
        (body, 1) if body.is_response() => Service::Xrc { srqn: 0 },
        (_, 1) => Service::Xrc {
            srqn: srqn & 0xff_ffff,
        },
        (Body::Send { tail, .. }, 2) if !matches!(tail, SendTail::Invalidate(_)) => {
            Service::Unreliable
        }
        (Body::Write { .. }, 2) => Service::Unreliable,
        _ => Service::Reliable,
    }
}

fn path() -> impl Strategy<Value = Path> {
    let addresses = any::<(u8, [u8; 16], [u8; 16])>();
    (
        addresses,
        any::<([u8; 6], [u8; 6], u16, u8, u8, u8, u32, u16)>(),
    )
        .prop_map(|((kind, mut source, mut destination), rest)| {
            let (source_mac, destination_mac, vlan, hop_limit, traffic_class, level, flow, port) =
                rest;
            let mapped = |gid: &mut Gid| {
                gid[..12].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            };
            let (ipv4, roce_v1) = (kind % 3 == 0, kind % 3 == 1);
            if ipv4 {
                mapped(&mut source);
                mapped(&mut destination);
            } else {
                // Avoids GIDs that stand for IPv4 addresses.
                source[0] = 0xfe;
                destination[0] = 0xfe;
            }
            let tagged = vlan % 2 == 0;
            Path {
                source,
                destination,
                source_mac,
                destination_mac,
                vlan: if tagged { vlan % 4094 + 1 } else { NO_VLAN },
                hop_limit: hop_limit.max(1),
                traffic_class,
                service_level: if tagged { level & 7 } else { 0 },
                flow_label: if ipv4 { 0 } else { flow & 0xf_ffff },
                source_port: if roce_v1 { 0 } else { port },
                lids: None,
                roce_v1,
            }
        })
}

/// Generates any segment that fits a frame.
pub fn segment() -> impl Strategy<Value = Segment<'static>> {
    let payload = prop_oneof![vec(any::<u8>(), 0..20), vec(any::<u8>(), 0..=4096)];
    (
        path(),
        body(),
        payload,
        (0u32..1 << 24, any::<u16>(), 0u32..1 << 24),
        any::<(bool, bool, bool)>(),
        any::<(u8, u32)>(),
    )
        .prop_map(
            |(
                path,
                body,
                payload,
                (destination_qpn, pkey, psn),
                (solicited, ack_request, migrated),
                (service, srqn),
            )| {
                Segment {
                    path,
                    source_qpn: 0,
                    destination_qpn,
                    pkey,
                    checksums_ok: false,
                    touched: vrnic_engine::segment::Touched::NOT,
                    psn: Psn::new(psn),
                    solicited,
                    ack_request,
                    // Notifications say nothing of it.
                    migrated: migrated && body != Body::CongestionNotification,
                    service: service_of(&body, service, srqn),
                    body,
                    payload: if has_payload(&body) && !payload.is_empty() {
                        Payload::Bytes(payload)
                    } else {
                        Payload::Empty
                    },
                }
            },
        )
}

/// Returns the frame of a segment.
pub fn frame(segment: &Segment) -> Vec<u8> {
    let mut buffer = vec![0; MAX_FRAME];
    let length = vrnic_roce::encode(segment, &no_memory(), &mut buffer).expect("frame");
    buffer.truncate(length);
    buffer
}

/// Returns the bytes of a payload.
pub fn bytes(payload: &Payload) -> Vec<u8> {
    match payload {
        Payload::Empty => Vec::new(),
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Frame(bytes) => bytes.to_vec(),
        Payload::Ranges(_) => panic!("payload in memory"),
    }
}

/// Path, kind, payload; destination, P_Key, PSN, the three flags, and the service.
pub type Parts = (Path, Body, Vec<u8>, (u32, u16, u32, [bool; 3], Service));

/// Returns all parts of a segment, for comparison.
pub fn parts(segment: &Segment) -> Parts {
    (
        segment.path,
        segment.body,
        bytes(&segment.payload),
        (
            segment.destination_qpn,
            segment.pkey,
            segment.psn.raw(),
            [segment.solicited, segment.ack_request, segment.migrated],
            segment.service,
        ),
    )
}
