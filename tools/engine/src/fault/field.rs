// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Fields of packet headers that faults change. The ICRC is computed after the change.

use crate::{
    psn::Psn,
    segment::{
        Aeth, Body, Damage, Flush, LidRoute, Payload, Segment, SendTail, Service, Syndrome, Touched,
    },
};
use serde::{Deserialize, Serialize};

/// A field of a header.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Field {
    Opcode,
    Solicited,
    Pkey,
    DestinationQp,
    AckRequest,
    Migrated,
    Psn,
    Qkey,
    SourceQp,
    Srq,
    Address,
    Rkey,
    Length,
    Swap,
    CompareAdd,
    Original,
    Placement,
    Selectivity,
    Credits,
    RnrTimer,
    Msn,
    Immediate,
    InvalidateKey,
    TrafficClass,
    FlowLabel,
    HopLimit,
    SourcePort,
    Pad,
    Version,
    SourceGid,
    DestinationGid,
    SourceMac,
    DestinationMac,
    SourceLid,
    DestinationLid,
}

/// Reference to a field in a packet.
enum Slot<'a> {
    Flag(&'a mut bool),
    Byte(&'a mut u8),
    Short(&'a mut u16),
    Word(&'a mut u32),
    Long(&'a mut u64),
    Psn(&'a mut Psn),
    Mac(&'a mut [u8; 6]),
    /// The end of a GID: with IPv4, the address.
    End(&'a mut [u8; 4]),
    /// The pad count follows from the length of the payload, which changes instead.
    Pad(&'a mut Payload<'static>, &'a mut Touched),
    Version(&'a mut Touched),
    /// Headers that follow from the opcode change with it.
    Opcode(&'a mut Body),
}

/// Opcode from which a changed one is made, such as 0x1f by its lowest bit. Neither has an operation: FLUSH and
/// ATOMIC WRITE are 0x1c and 0x1d (annex A19).
const RESERVED: u8 = 0x1e;

impl Slot<'_> {
    fn change(self, max: u64, change: impl FnOnce(u64) -> u64) {
        let new = |old: u64| change(old) & max;
        match self {
            Self::Flag(flag) => *flag = new((*flag).into()) != 0,
            Self::Byte(byte) => *byte = new((*byte).into()) as u8,
            Self::Short(short) => *short = new((*short).into()) as u16,
            Self::Word(word) => *word = new((*word).into()) as u32,
            Self::Long(long) => *long = new(*long),
            Self::Psn(psn) => *psn = Psn::new(new(psn.raw().into()) as u32),
            Self::Mac(mac) => {
                let mut number = [0; 8];
                number[2..].copy_from_slice(mac);
                let number = new(u64::from_be_bytes(number)).to_be_bytes();
                mac.copy_from_slice(&number[2..]);
            }
            Self::End(end) => *end = (new(u32::from_be_bytes(*end).into()) as u32).to_be_bytes(),
            Self::Pad(Payload::Bytes(bytes), _) if !bytes.is_empty() => {
                let old = bytes.len().wrapping_neg() & 3;
                let length = bytes.len() + old - new(old as u64) as usize;
                bytes.resize(length, 0);
            }
            Self::Pad(_, touched) => {
                let old = match touched.damage {
                    Some(Damage::Pad(pad)) => pad,
                    _ => 0,
                };
                touched.damage = Some(new(old.into()) as u8)
                    .filter(|pad| *pad > 0)
                    .map(Damage::Pad);
            }
            Self::Version(touched) => {
                let old = match touched.damage {
                    Some(Damage::Version(version)) => version,
                    _ => 0,
                };
                touched.damage = Some(new(old.into()) as u8)
                    .filter(|version| *version > 0)
                    .map(Damage::Version);
            }
            Self::Opcode(body) => *body = Body::Unknown(new(RESERVED.into()) as u8),
        }
    }
}

fn aeth(body: &mut Body) -> Option<&mut Aeth> {
    match body {
        Body::Acknowledge(aeth) | Body::AtomicAcknowledge { aeth, .. } => Some(aeth),
        Body::ReadResponse { aeth, .. } => aeth.as_mut(),
        _ => None,
    }
}

/// Returns address, key and, if present, length of remote memory.
fn remote(body: &mut Body) -> Option<(&mut u64, &mut u32, Option<&mut u32>)> {
    match body {
        Body::Write {
            reth: Some(reth), ..
        }
        | Body::ReadRequest(reth)
        | Body::AtomicWrite(reth)
        | Body::FlushRequest(Flush { remote: reth, .. }) => {
            Some((&mut reth.address, &mut reth.rkey, Some(&mut reth.length)))
        }
        Body::AtomicRequest(atomic) => Some((&mut atomic.address, &mut atomic.rkey, None)),
        _ => None,
    }
}

impl Field {
    /// All fields with their names in descriptions and their widths in bits.
    pub(crate) const ALL: [(&'static str, Self, u32); 35] = [
        ("opcode", Self::Opcode, 5),
        ("solicited", Self::Solicited, 1),
        ("pkey", Self::Pkey, 16),
        ("destination-qp", Self::DestinationQp, 24),
        ("ack-request", Self::AckRequest, 1),
        ("migrated", Self::Migrated, 1),
        ("psn", Self::Psn, 24),
        ("qkey", Self::Qkey, 32),
        ("source-qp", Self::SourceQp, 24),
        ("srq", Self::Srq, 24),
        ("address", Self::Address, 64),
        ("rkey", Self::Rkey, 32),
        ("length", Self::Length, 32),
        ("swap", Self::Swap, 64),
        ("compare-add", Self::CompareAdd, 64),
        ("original", Self::Original, 64),
        ("placement", Self::Placement, 4),
        ("selectivity", Self::Selectivity, 2),
        ("credits", Self::Credits, 5),
        ("rnr-timer", Self::RnrTimer, 5),
        ("msn", Self::Msn, 24),
        ("immediate", Self::Immediate, 32),
        ("invalidate-key", Self::InvalidateKey, 32),
        ("traffic-class", Self::TrafficClass, 8),
        ("flow-label", Self::FlowLabel, 20),
        ("hop-limit", Self::HopLimit, 8),
        ("source-port", Self::SourcePort, 16),
        ("pad", Self::Pad, 2),
        ("version", Self::Version, 4),
        ("source-gid", Self::SourceGid, 32),
        ("destination-gid", Self::DestinationGid, 32),
        ("source-mac", Self::SourceMac, 48),
        ("destination-mac", Self::DestinationMac, 48),
        ("source-lid", Self::SourceLid, 16),
        ("destination-lid", Self::DestinationLid, 16),
    ];

    /// Returns the field with this name.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(known, ..)| *known == name);
        found.map(|(_, field, _)| *field)
    }

    /// Returns the width in bits.
    pub(crate) fn bits(self) -> u32 {
        Self::ALL[self as usize].2
    }

    /// Returns the largest possible value.
    pub(crate) fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// Returns whether a packet has this field.
    pub(crate) fn is_in(self, body: &Body, service: Service, lids: Option<LidRoute>) -> bool {
        let mut bare = Segment {
            path: crate::segment::Path {
                lids,
                ..crate::segment::Path::default()
            },
            source_qpn: 0,
            destination_qpn: 0,
            pkey: 0,
            psn: Psn::default(),
            solicited: false,
            ack_request: false,
            migrated: true,
            service,
            body: *body,
            payload: Payload::Empty,
            checksums_ok: false,
            touched: Touched::NOT,
        };
        self.slot(&mut bare).is_some()
    }

    /// Changes this field in a packet that has it.
    pub(crate) fn change(self, segment: &mut Segment<'static>, change: impl FnOnce(u64) -> u64) {
        let max = self.max();
        if let Some(slot) = self.slot(segment) {
            slot.change(max, change);
        }
    }

    fn slot<'a>(self, segment: &'a mut Segment<'static>) -> Option<Slot<'a>> {
        let path = &mut segment.path;
        let body = &mut segment.body;
        if matches!(body, Body::Frame { .. }) {
            // It has no headers of the RDMA transport.
            return None;
        }
        Some(match self {
            Self::Opcode => match body {
                Body::Datagram { .. } | Body::CongestionNotification => return None,
                body => Slot::Opcode(body),
            },
            Self::Solicited => Slot::Flag(&mut segment.solicited),
            Self::Pkey => Slot::Short(&mut segment.pkey),
            Self::DestinationQp => Slot::Word(&mut segment.destination_qpn),
            Self::AckRequest => Slot::Flag(&mut segment.ack_request),
            Self::Migrated => match body {
                Body::CongestionNotification => return None,
                _ => Slot::Flag(&mut segment.migrated),
            },
            Self::Psn => Slot::Psn(&mut segment.psn),
            Self::Srq => match &mut segment.service {
                Service::Xrc { srqn } if !body.is_response() => Slot::Word(srqn),
                _ => return None,
            },
            Self::Address => Slot::Long(remote(body)?.0),
            Self::Rkey => Slot::Word(remote(body)?.1),
            Self::Length => Slot::Word(remote(body)?.2?),
            Self::Msn => Slot::Word(&mut aeth(body)?.msn),
            Self::Credits => match &mut aeth(body)?.syndrome {
                Syndrome::Ack { credits } => Slot::Byte(credits),
                _ => return None,
            },
            Self::RnrTimer => match &mut aeth(body)?.syndrome {
                Syndrome::RnrNak { timer } => Slot::Byte(timer),
                _ => return None,
            },
            Self::TrafficClass => Slot::Byte(&mut path.traffic_class),
            Self::FlowLabel => Slot::Word(&mut path.flow_label),
            Self::HopLimit => Slot::Byte(&mut path.hop_limit),
            Self::SourcePort => Slot::Short(&mut path.source_port),
            Self::Pad => Slot::Pad(&mut segment.payload, &mut segment.touched),
            Self::Version => Slot::Version(&mut segment.touched),
            Self::SourceMac | Self::DestinationMac if path.lids.is_some() => return None,
            Self::SourceMac => Slot::Mac(&mut path.source_mac),
            Self::DestinationMac => Slot::Mac(&mut path.destination_mac),
            Self::SourceLid => Slot::Short(&mut path.lids.as_mut()?.source),
            Self::DestinationLid => Slot::Short(&mut path.lids.as_mut()?.destination),
            Self::SourceGid | Self::DestinationGid
                if path.lids.is_some_and(|lids| !lids.global) =>
            {
                return None;
            }
            Self::SourceGid => Slot::End(path.source.last_chunk_mut()?),
            Self::DestinationGid => Slot::End(path.destination.last_chunk_mut()?),
            _ => match (self, body) {
                (Self::Qkey, Body::Datagram { qkey, .. }) => Slot::Word(qkey),
                (Self::SourceQp, Body::Datagram { source_qpn, .. }) => Slot::Word(source_qpn),
                (Self::Swap, Body::AtomicRequest(atomic)) => Slot::Long(&mut atomic.swap),
                (Self::CompareAdd, Body::AtomicRequest(atomic)) => {
                    Slot::Long(&mut atomic.compare_add)
                }
                (Self::Original, Body::AtomicAcknowledge { original, .. }) => Slot::Long(original),
                (Self::Placement, Body::FlushRequest(flush)) => Slot::Byte(&mut flush.placement),
                (Self::Selectivity, Body::FlushRequest(flush)) => {
                    Slot::Byte(&mut flush.selectivity)
                }
                (
                    Self::Immediate,
                    Body::Send {
                        tail: SendTail::Immediate(immediate),
                        ..
                    }
                    | Body::Write {
                        immediate: Some(immediate),
                        ..
                    }
                    | Body::Datagram {
                        immediate: Some(immediate),
                        ..
                    },
                ) => Slot::Word(immediate),
                (
                    Self::InvalidateKey,
                    Body::Send {
                        tail: SendTail::Invalidate(key),
                        ..
                    },
                ) => Slot::Word(key),
                _ => return None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{AtomicKind, AtomicRequest, NakCode, Path, Position, Reth};

    /// Returns packets that together have all fields.
    fn packets() -> Vec<Segment<'static>> {
        let reth = Reth {
            address: 1 << 40,
            rkey: 7,
            length: 100,
        };
        let aeth = |syndrome| Aeth { syndrome, msn: 5 };
        let position = Position::Only;
        let bodies = [
            Body::Send {
                position,
                tail: SendTail::Invalidate(9),
            },
            Body::Send {
                position,
                tail: SendTail::Immediate(9),
            },
            Body::Write {
                position,
                reth: Some(reth),
                immediate: Some(8),
            },
            Body::ReadRequest(reth),
            Body::AtomicRequest(AtomicRequest {
                kind: AtomicKind::FetchAdd,
                address: 1 << 41,
                rkey: 8,
                compare_add: 3,
                swap: 4,
            }),
            Body::FlushRequest(Flush {
                remote: reth,
                placement: 1,
                selectivity: 1,
            }),
            Body::Acknowledge(aeth(Syndrome::ACK)),
            Body::Acknowledge(aeth(Syndrome::RnrNak { timer: 4 })),
            Body::Acknowledge(aeth(Syndrome::Nak(NakCode::SequenceError))),
            Body::AtomicAcknowledge {
                aeth: aeth(Syndrome::ACK),
                original: 77,
            },
            Body::Datagram {
                qkey: 5,
                source_qpn: 6,
                immediate: Some(7),
            },
        ];
        let packet = |body| Segment {
            path: Path::default(),
            source_qpn: 3,
            destination_qpn: 17,
            pkey: 0xffff,
            psn: Psn::new(12),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Xrc { srqn: 4 },
            body,
            payload: Payload::Empty,
            checksums_ok: false,
            touched: Touched::NOT,
        };
        let on_subnet = [false, true].map(|global| {
            let mut packet = packet(Body::ReadRequest(reth));
            packet.path.lids = Some(LidRoute {
                source: 7,
                destination: 8,
                global,
            });
            packet
        });
        bodies.map(packet).into_iter().chain(on_subnet).collect()
    }

    #[test]
    fn each_field_is_listed_once_is_in_some_packet_and_changes_there_alone() {
        let written = |packet: &Segment<'_>| format!("{packet:?}");
        for (index, (name, field, bits)) in Field::ALL.into_iter().enumerate() {
            assert_eq!(field as usize, index, "{name}");
            assert_eq!(Field::find(name), Some(field));
            assert!((1..=64).contains(&bits), "{name}");
            let mut found = 0;
            for packet in packets() {
                let before = written(&packet);
                let mut packet = packet;
                let is_in = field.is_in(&packet.body, packet.service, packet.path.lids);
                field.change(&mut packet, |old| old ^ 1);
                assert_eq!(written(&packet) != before, is_in, "{name} of {before}");
                found += u32::from(is_in);
                if field == Field::Opcode {
                    continue;
                }
                field.change(&mut packet, |old| old ^ 1);
                assert_eq!(written(&packet), before, "{name}");
                // Values are truncated to the width of the field.
                field.change(&mut packet, |_| u64::MAX);
                let highest = written(&packet);
                field.change(&mut packet, |_| field.max());
                assert_eq!(written(&packet), highest, "{name}");
            }
            assert!(found > 0, "no packet has {name}");
        }
    }

    #[test]
    fn a_pad_count_says_how_long_the_payload_is() {
        for (length, pad, expected) in [
            (8, 1, 7),
            (8, 3, 5),
            (7, 0, 8),
            (5, 2, 6),
            (1, 3, 1),
            (3, 3, 1),
        ] {
            let mut packet = packets().remove(0);
            packet.payload = Payload::Bytes(vec![9; length]);
            Field::Pad.change(&mut packet, |_| pad);
            assert_eq!(packet.payload.len(), expected, "{length} bytes, pad {pad}");
            assert_eq!(packet.touched.damage, None);
        }
    }
}
