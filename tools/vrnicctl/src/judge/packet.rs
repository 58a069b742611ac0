// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Extracts the connections with one peer from a capture.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::BufReader;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{Body, ECN_MARKED, ECN_MASK, Position, Service};
use vrnic_roce::{FrameError, opcode_name, parse};

/// A packet of a reliable connection.
#[derive(Clone, Debug)]
pub struct Packet {
    /// Number in its file, counted from 1 as in Wireshark.
    pub number: usize,
    /// Time at which it passed, relative to an arbitrary moment.
    pub time: Duration,
    /// Destination queue pair.
    pub qpn: u32,
    /// PSN.
    pub psn: Psn,
    /// Kind, with the contents of the extended headers.
    pub body: Body,
    /// Length of the payload in bytes.
    pub payload: u32,
    /// Whether the requester asks for an acknowledgement.
    pub ack_request: bool,
    /// Whether a switch, or a fault, marked it as congested.
    pub marked: bool,
}

impl Packet {
    /// Returns whether it is the last packet of a message.
    pub fn ends_message(&self) -> bool {
        match &self.body {
            Body::Send { position, .. } | Body::Write { position, .. } => position.ends(),
            body => body.has_response(),
        }
    }

    /// Returns how many PSNs it takes up. For a read, that is the number of its responses.
    fn packets(&self, mtu: u32) -> u32 {
        match &self.body {
            Body::ReadRequest(reth) => reth.length.div_ceil(mtu.max(1)).max(1),
            _ => 1,
        }
    }
}

/// The side that sends the requests of one half of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Requester {
    /// The peer that is judged.
    Peer,
    /// The local device.
    Here,
}

/// Requests in one direction and the responses to them, in order of time.
#[derive(Debug)]
pub struct Half {
    /// The side that sends the requests.
    pub requester: Requester,
    /// Requests.
    pub requests: Vec<Packet>,
    /// ACKs, NAKs and responses.
    pub responses: Vec<Packet>,
    /// Congestion notifications that the requester received.
    pub notified: Vec<Packet>,
    /// Largest payload of a packet in bytes.
    pub mtu: u32,
}

impl Half {
    /// Returns the PSN after that request.
    pub fn psn_behind(&self, request: &Packet) -> Psn {
        request.psn.add(request.packets(self.mtu))
    }

    /// Returns the PSN of the last packet of that request and its responses.
    pub fn last_psn(&self, request: &Packet) -> Psn {
        self.psn_behind(request).previous()
    }
}

/// An invalid frame of the peer.
#[derive(Debug)]
pub struct Malformed {
    /// Number in its file.
    pub number: usize,
    /// What is wrong.
    pub error: FrameError,
}

/// The packets of a peer in a capture.
#[derive(Debug, Default)]
pub struct Trace {
    /// Halves of connections.
    pub halves: Vec<Half>,
    /// Invalid frames of the peer.
    pub malformed: Vec<Malformed>,
}

/// A frame of a capture.
struct Frame {
    time: Duration,
    data: Vec<u8>,
    comment: String,
}

impl Frame {
    /// Returns whether a fault kept the frame back, so that it did not pass.
    fn is_kept_back(&self) -> bool {
        self.comment.ends_with(": kept back")
    }
}

/// Returns all frames of a file.
fn frames(path: &Path) -> Result<Vec<Frame>> {
    let whole = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(whole)?;
    let mut reader = PcapNgReader::new(BufReader::new(file)).with_context(whole)?;
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(block) = block.with_context(whole)? {
            let comment = block.options.iter().find_map(|option| match option {
                EnhancedPacketOption::Comment(text) => Some(text.to_string()),
                _ => None,
            });
            frames.push(Frame {
                time: block.timestamp,
                comment: comment.unwrap_or_default(),
                data: block.data.into_owned(),
            });
        }
    }
    Ok(frames)
}

/// Lists the RoCE packets of a capture as text, one per line: number, time since the first, direction, kind, and the
/// fault that struck it. Leaves out packets further than `around` from all of `numbers`.
///
/// # Errors
/// The file cannot be read.
pub fn listing(path: &Path, peer: IpAddr, numbers: &[usize], around: usize) -> Result<String> {
    let peer = gid(peer);
    let frames = frames(path)?;
    let start = frames.first().map_or(Duration::ZERO, |frame| frame.time);
    let mut text = String::new();
    let mut last = 0;
    for (number, frame) in (1..).zip(&frames) {
        if !numbers
            .iter()
            .any(|wanted| wanted.abs_diff(number) <= around)
        {
            continue;
        }
        let Ok(segment) = parse(&frame.data) else {
            continue;
        };
        if last != 0 && last + 1 != number {
            text.push_str("    ...\n");
        }
        last = number;
        let micros = frame.time.saturating_sub(start).as_micros();
        let way = if segment.path.source == peer {
            "from the peer"
        } else {
            "to the peer"
        };
        let opcode = opcode_name(&segment);
        let asks = if segment.ack_request {
            ", asks for an ACK"
        } else {
            ""
        };
        let mut details = match &segment.body {
            Body::Acknowledge(aeth) => format!(" {}", aeth.syndrome),
            _ => format!(" {} B{asks}", segment.payload.len()),
        };
        if let Some((_, fault)) = frame.comment.split_once(", fault ") {
            let _ = write!(details, " (fault {fault})");
        }
        let (whole, part) = (micros / 1000, micros % 1000);
        let psn = segment.psn.raw();
        let _ = writeln!(
            text,
            "{number:7} {whole:5}.{part:03} ms {way:13} PSN {psn:8} {opcode}{details}"
        );
    }
    Ok(text)
}

/// Packets, grouped by direction (requester last) and destination queue pair.
type Streams = BTreeMap<(Requester, u32), Vec<Packet>>;

impl Trace {
    /// Reads a capture of what a device sent and received.
    ///
    /// # Errors
    /// The file cannot be read, or has no packet of a reliable connection with that peer.
    pub fn read(path: &Path, peer: IpAddr) -> Result<Self> {
        let frames = frames(path)?;
        // A frame that a fault kept back did not pass, but it counts for the numbers of frames.
        let passed = frames.iter().map(|frame| {
            let kept = frame.is_kept_back();
            (frame.time, if kept { &[][..] } else { &frame.data[..] })
        });
        let trace = Self::of_frames(passed, peer);
        if trace.halves.is_empty() && trace.malformed.is_empty() {
            bail!(
                "{}: no packet of a reliable connection with {peer}",
                path.display()
            );
        }
        Ok(trace)
    }

    /// Sorts frames by connection.
    pub fn of_frames<'a>(frames: impl Iterator<Item = (Duration, &'a [u8])>, peer: IpAddr) -> Self {
        let peer = gid(peer);
        let mut malformed = Vec::new();
        let (mut requests, mut responses, mut notified) =
            (Streams::new(), Streams::new(), Streams::new());
        for (index, (time, frame)) in frames.enumerate() {
            let number = index + 1;
            let segment = match parse(frame) {
                Ok(segment) => segment,
                Err(FrameError::NotRoce) => continue,
                Err(error) => {
                    if source(frame) == Some(peer) {
                        malformed.push(Malformed { number, error });
                    }
                    continue;
                }
            };
            let from = if segment.path.source == peer {
                Requester::Peer
            } else if segment.path.destination == peer {
                Requester::Here
            } else {
                continue;
            };
            if segment.service != Service::Reliable || matches!(segment.body, Body::Datagram { .. })
            {
                continue;
            }
            let packet = Packet {
                number,
                time,
                qpn: segment.destination_qpn,
                psn: segment.psn,
                body: segment.body,
                payload: u32::try_from(segment.payload.len()).unwrap_or(u32::MAX),
                ack_request: segment.ack_request,
                marked: segment.path.traffic_class & ECN_MASK == ECN_MARKED,
            };
            let streams = if packet.body.is_response() {
                &mut responses
            } else if packet.body == Body::CongestionNotification {
                &mut notified
            } else {
                &mut requests
            };
            streams.entry((from, packet.qpn)).or_default().push(packet);
        }
        Self {
            halves: pair(requests, responses, notified),
            malformed,
        }
    }
}

/// Finds the responses to each stream of requests. Frames do not contain the number of the queue pair that sent them,
/// but the responses have the PSNs of the requests.
fn pair(requests: Streams, mut responses: Streams, mut notified: Streams) -> Vec<Half> {
    let mut halves = Vec::new();
    for ((requester, _), requests) in requests {
        let mut half = Half {
            requester,
            mtu: 1,
            requests,
            responses: Vec::new(),
            notified: Vec::new(),
        };
        half.mtu = mtu(&half.requests);
        let other = match requester {
            Requester::Peer => Requester::Here,
            Requester::Here => Requester::Peer,
        };
        let starts: BTreeMap<u32, &Packet> = half
            .requests
            .iter()
            .map(|request| (request.psn.raw(), request))
            .collect();
        let hits = |stream: &[Packet]| {
            let mtu = mtu(stream).max(half.mtu);
            let answers = |response: &&Packet| {
                // PSNs wrap around, so the last request comes before the first one.
                let before = starts.range(..=response.psn.raw()).next_back();
                before
                    .or(starts.last_key_value())
                    .is_some_and(|(_, request)| {
                        let distance = response.psn.packets_since(request.psn);
                        distance < request.packets(mtu)
                    })
            };
            stream.iter().filter(answers).count()
        };
        let best = responses
            .iter()
            .filter(|((from, _), _)| *from == other)
            .map(|(key, stream)| (hits(stream), *key))
            .max();
        if let Some((1.., key)) = best {
            half.responses = responses.remove(&key).unwrap_or_default();
            half.mtu = half.mtu.max(mtu(&half.responses));
            half.notified = notified.remove(&key).unwrap_or_default();
        }
        halves.push(half);
    }
    halves
}

/// Returns the largest payload of packets that are followed by others of their message, or of all packets if there are
/// none.
fn mtu(packets: &[Packet]) -> u32 {
    let full = |packet: &&Packet| {
        matches!(
            packet.body,
            Body::Send { position, .. } | Body::Write { position, .. } | Body::ReadResponse { position, .. }
                if matches!(position, Position::First | Position::Middle)
        )
    };
    let of = |packets: &mut dyn Iterator<Item = &Packet>| packets.map(|one| one.payload).max();
    of(&mut packets.iter().filter(full))
        .or_else(|| of(&mut packets.iter()))
        .unwrap_or(1)
        .max(1)
}

/// Returns the GID of an IP address.
fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Returns the source of an invalid frame, if that can be read.
fn source(frame: &[u8]) -> Option<[u8; 16]> {
    let tagged = frame.get(12..14)? == [0x81, 0];
    let start = if tagged { 18 } else { 14 };
    match frame.get(start - 2..start)? {
        [0x08, 0x00] => {
            let bytes: [u8; 4] = frame.get(start + 12..start + 16)?.try_into().ok()?;
            Some(gid(IpAddr::from(bytes)))
        }
        [0x86, 0xdd] => {
            let bytes: [u8; 16] = frame.get(start + 8..start + 24)?.try_into().ok()?;
            Some(gid(Ipv6Addr::from(bytes).into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use pcap_file::DataLink;
    use pcap_file::pcapng::PcapNgWriter;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketBlock;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionBlock;
    use vrnic_engine::memory::Nowhere;
    use vrnic_engine::segment::{Path as Way, Payload, Segment, SendTail, Touched};
    use vrnic_roce::{MAX_FRAME, encode};
    use vrnic_wire::port::NO_VLAN;

    use super::*;

    const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));
    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    /// Returns a send of ours with that PSN.
    fn frame(psn: u32) -> Vec<u8> {
        let segment = Segment {
            path: Way {
                source: gid(HERE),
                destination: gid(PEER),
                vlan: NO_VLAN,
                ..Way::default()
            },
            source_qpn: 0,
            destination_qpn: 17,
            pkey: 0xffff,
            psn: Psn::new(psn),
            solicited: false,
            ack_request: psn == 3,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Only,
                tail: SendTail::Plain,
            },
            payload: Payload::Bytes(vec![7; 8]),
            checksums_ok: false,
            touched: Touched::NOT,
        };
        let mut frame = vec![0; MAX_FRAME];
        let length = encode(&segment, &Nowhere, &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    #[test]
    fn what_a_fault_kept_back_is_listed_and_did_not_pass() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = PcapNgWriter::new(file.reopen().unwrap()).unwrap();
        let interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, 0);
        writer.write_pcapng_block(interface).unwrap();
        for (psn, comment) in [
            (1, "a QP 0x11 -> its peer: SEND_ONLY"),
            (2, "a QP 0x11 -> its peer: SEND_ONLY, fault drop: kept back"),
            (3, "a QP 0x11 -> its peer: SEND_ONLY, fault ecn-mark"),
        ] {
            let data = frame(psn);
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_micros(psn.into()),
                original_len: data.len() as u32,
                data: Cow::Owned(data),
                options: vec![EnhancedPacketOption::Comment(comment.into())],
            };
            writer.write_pcapng_block(block).unwrap();
        }
        drop(writer);
        let trace = Trace::read(file.path(), PEER).unwrap();
        let passed = trace.halves[0].requests.iter();
        let passed: Vec<_> = passed.map(|one| (one.number, one.psn.raw())).collect();
        assert_eq!(passed, [(1, 1), (3, 3)]);
        let text = listing(file.path(), PEER, &[1, 3], 0).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[0].contains("to the peer") && lines[0].contains("PSN        1"),
            "{text}"
        );
        assert!(lines[1].ends_with("..."));
        assert!(
            lines[2].contains("8 B, asks for an ACK (fault ecn-mark)"),
            "{text}"
        );
        let all = listing(file.path(), PEER, &[2], 1).unwrap();
        assert!(
            all.contains("(fault drop: kept back)") && !all.contains("..."),
            "{all}"
        );
    }
}
