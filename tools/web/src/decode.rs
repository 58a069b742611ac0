// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Reads connections from a file: a capture (pcapng or pcap) by vrnicd or any other program, or a recording of a
//! device.
//!
//! A recording is replayed: the device does the same again and traces it.
//!
//! A frame contains the number of the queue pair that receives it, but not of the one that sent it. Captures by vrnicd
//! have that number in the packet's comment. For others, it is deduced: a response has the PSN of its request.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::Ipv6Addr;

use anyhow::{Context, Result, anyhow, ensure};
use pcap_file::DataLink;
use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use serde::Serialize;
use vrnic_engine::Segment;
use vrnic_engine::recording::Player;
use vrnicd::control::answer::trace::{hex, packet_of, page};
use vrnicd::control::protocol::{Act, Step};

/// Largest number of packets or steps taken from a file.
const MAX_PACKETS: usize = 100_000;
/// First bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// First bytes of a recording.
const RECORDING: &[u8] = &vrnic_engine::recording::MAGIC;

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct End {
    /// GID; for a recording, the name of the device, or empty.
    pub gid: String,
    /// Number of the queue pair; 0 if unknown.
    pub qpn: u32,
}

/// A connection and its packets.
#[derive(Debug, Serialize)]
pub struct Connection {
    /// Both ends.
    pub ends: [End; 2],
    /// What each end sent; for a recording, what the device did.
    pub steps: [Vec<Step>; 2],
}

/// The contents of a file.
#[derive(Debug, Serialize)]
pub struct Decoded {
    /// Connections, by their ends.
    pub connections: Vec<Connection>,
    /// Number of frames that are not RoCE packets or are invalid.
    pub others: usize,
    /// Whether the file contains more than was taken.
    pub more: bool,
    /// Whether it is a recording, which has all steps of one end.
    pub recording: bool,
}

/// A packet in a capture.
struct Seen {
    nanoseconds: u64,
    from: End,
    to: End,
    psn: u32,
    is_response: bool,
    act: Act,
}

/// Reads a file.
///
/// # Errors
/// The file is neither a capture of Ethernet frames nor a recording, or it is damaged.
pub fn decode(file: &[u8]) -> Result<Decoded> {
    // The file may come from anywhere. A panic of the capture parser must not affect anything else, and neither must
    // that of an engine that panics again as it did when it was recorded.
    let read = std::panic::catch_unwind(|| {
        if file.starts_with(RECORDING) {
            replay(file)
        } else {
            capture(file)
        }
    });
    read.unwrap_or_else(|_| Err(anyhow!("the file is damaged")))
}

fn capture(file: &[u8]) -> Result<Decoded> {
    let mut frames = Frames::default();
    if file.starts_with(&PCAPNG) {
        read_pcapng(file, &mut frames)?;
    } else {
        read_pcap(file, &mut frames)?;
    }
    find_senders(&mut frames.seen);
    Ok(Decoded {
        connections: connections(frames.seen),
        others: frames.others,
        more: frames.more,
        recording: false,
    })
}

/// Returns the recorded actions of a device.
fn replay(file: &[u8]) -> Result<Decoded> {
    // Times come from the recording.
    let clock: fn() -> u64 = || 0;
    let mut player = Player::new(file).context("the recording is damaged")?;
    let device = player.recording().header().device.clone();
    let (mut steps, mut next) = (Vec::new(), player.trace(clock, 0, 0).first);
    let mut more = false;
    while let Some(made) = player.next() {
        if made.is_err() {
            more = true;
            break;
        }
        let page = page(&player.trace(clock, next, usize::MAX));
        next = page.first + page.steps.len() as u64;
        steps.extend(page.steps.into_iter().map(|step| Step {
            at: step.nanoseconds,
            ..step
        }));
        if steps.len() >= MAX_PACKETS {
            more = true;
            break;
        }
    }
    Ok(Decoded {
        connections: of_queue_pairs(&device, &steps),
        others: 0,
        more,
        recording: true,
    })
}

/// Returns a connection for each queue pair that a device used.
fn of_queue_pairs(device: &str, steps: &[Step]) -> Vec<Connection> {
    let mut queues: BTreeMap<u32, (u32, BTreeSet<u32>)> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.qpn != 0) {
        let (peer, cqs) = queues.entry(step.qpn).or_default();
        match &step.act {
            Act::Sent(packet) => *peer = packet.peer_qpn,
            Act::Completed { cqn, .. } => {
                cqs.insert(*cqn);
            }
            _ => {}
        }
    }
    let connection = |(qpn, (peer, cqs)): (u32, (u32, BTreeSet<u32>))| {
        let own = |step: &&Step| match step.act {
            Act::Notified { cqn } => cqs.contains(&cqn),
            _ => step.qpn == qpn,
        };
        Connection {
            ends: [
                End {
                    gid: device.to_owned(),
                    qpn,
                },
                End {
                    gid: "peer".to_owned(),
                    qpn: peer,
                },
            ],
            steps: [steps.iter().filter(own).cloned().collect(), Vec::new()],
        }
    };
    queues.into_iter().map(connection).collect()
}

#[derive(Default)]
struct Frames {
    seen: Vec<Seen>,
    others: usize,
    more: bool,
}

impl Frames {
    /// Takes a frame. Returns false if there is no room for more.
    fn take(&mut self, nanoseconds: u64, frame: &[u8], comment: &str) -> bool {
        if self.seen.len() >= MAX_PACKETS {
            self.more = true;
            return false;
        }
        match vrnic_roce::parse(frame) {
            Ok(segment) => self.seen.push(seen(nanoseconds, frame, &segment, comment)),
            Err(_) => self.others += 1,
        }
        true
    }
}

fn seen(nanoseconds: u64, frame: &[u8], segment: &Segment<'_>, comment: &str) -> Seen {
    let end = |gid: [u8; 16], qpn| End {
        gid: Ipv6Addr::from(gid).to_string(),
        qpn,
    };
    let mut packet = packet_of(segment);
    // The headers as sent, including fields that the parser does not interpret.
    packet.headers = vrnic_roce::headers_of(frame).map_or_else(|_| String::new(), hex);
    Seen {
        nanoseconds,
        from: end(segment.path.source, sender(comment).unwrap_or(0)),
        to: end(segment.path.destination, segment.destination_qpn),
        psn: segment.psn.raw(),
        is_response: segment.body.is_response(),
        act: Act::Sent(packet),
    }
}

/// Returns the queue pair that sent a packet, if it is in the comment by vrnicd: `NAME QP 0x11 -> QP 0x12: …`.
fn sender(comment: &str) -> Option<u32> {
    let number = |text: &str| {
        let digits = text.rsplit_once("QP 0x")?.1;
        let end = digits.find(|digit: char| !digit.is_ascii_hexdigit());
        u32::from_str_radix(&digits[..end.unwrap_or(digits.len())], 16).ok()
    };
    match (comment.split_once(" -> "), comment.split_once(" <- ")) {
        (Some((own, _)), None) => number(own),
        (None, Some((_, peer))) => number(peer.split(':').next()?),
        _ => None,
    }
}

fn read_pcapng(file: &[u8], frames: &mut Frames) -> Result<()> {
    let mut reader = PcapNgReader::new(file).context("this is not a pcapng file")?;
    let mut units = Vec::new();
    while let Some(block) = reader.next_block() {
        match block.context("the file is damaged")? {
            Block::SectionHeader(_) => units.clear(),
            Block::InterfaceDescription(interface) => units.push(unit(&interface)),
            Block::EnhancedPacket(packet) => {
                let unit = units.get(packet.interface_id as usize);
                let Some(Some(unit)) = unit else {
                    frames.others += 1;
                    continue;
                };
                let nanoseconds = unit.nanoseconds(packet.timestamp.as_nanos());
                if !frames.take(nanoseconds, &packet.data, comment(&packet)) {
                    break;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn comment<'a>(packet: &'a EnhancedPacketBlock<'_>) -> &'a str {
    let mut comments = packet.options.iter().filter_map(|option| match option {
        EnhancedPacketOption::Comment(text) => Some(text.as_ref()),
        _ => None,
    });
    comments.next().unwrap_or_default()
}

/// Time unit of an interface.
enum Unit {
    /// Nanoseconds per unit.
    Long(u128),
    /// Units per nanosecond.
    Short(u128),
    /// Units per second, as a power of 2.
    Binary(u32),
}

impl Unit {
    fn nanoseconds(&self, time: u128) -> u64 {
        let nanoseconds = match self {
            Self::Long(factor) => time.saturating_mul(*factor),
            Self::Short(divisor) => time / divisor,
            Self::Binary(power) => time.saturating_mul(1_000_000_000) >> power,
        };
        u64::try_from(nanoseconds).unwrap_or(u64::MAX)
    }
}

/// Returns the unit of an interface; none if its frames are not Ethernet.
fn unit(interface: &InterfaceDescriptionBlock<'_>) -> Option<Unit> {
    if interface.linktype != DataLink::ETHERNET {
        return None;
    }
    let resolution = interface.options.iter().find_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    let resolution = resolution.unwrap_or(6);
    let power = u32::from(resolution & 0x7f);
    Some(match resolution {
        0x80.. => Unit::Binary(power),
        ..=9 => Unit::Long(10u128.pow(9 - power)),
        _ => Unit::Short(10u128.checked_pow(power - 9).unwrap_or(u128::MAX)),
    })
}

fn read_pcap(file: &[u8], frames: &mut Frames) -> Result<()> {
    let mut reader = PcapReader::new(file)
        .context("this is neither a capture (pcapng or pcap) nor a recording")?;
    ensure!(
        reader.header().datalink == DataLink::ETHERNET,
        "the packets of this capture are not Ethernet frames"
    );
    while let Some(packet) = reader.next_packet() {
        let packet = packet.context("the file is damaged")?;
        let nanoseconds = u64::try_from(packet.timestamp.as_nanos()).unwrap_or(u64::MAX);
        if !frames.take(nanoseconds, &packet.data, "") {
            break;
        }
    }
    Ok(())
}

/// Deduces the unknown senders of packets.
fn find_senders(all: &mut [Seen]) {
    let mut requests = HashMap::new();
    let mut votes: HashMap<(End, String), BTreeMap<u32, usize>> = HashMap::new();
    for seen in &*all {
        if seen.is_response {
            let key = (seen.to.gid.clone(), seen.from.gid.clone(), seen.psn);
            if let Some(responder) = requests.get(&key) {
                let vote = |end: &End, peer: &End| (end.clone(), peer.gid.clone());
                *votes
                    .entry(vote(&seen.to, &seen.from))
                    .or_default()
                    .entry(*responder)
                    .or_default() += 1;
                let of_responder = End {
                    gid: seen.from.gid.clone(),
                    qpn: *responder,
                };
                *votes
                    .entry(vote(&of_responder, &seen.to))
                    .or_default()
                    .entry(seen.to.qpn)
                    .or_default() += 1;
            }
        } else {
            let key = (seen.from.gid.clone(), seen.to.gid.clone(), seen.psn);
            requests.insert(key, seen.to.qpn);
        }
    }
    for seen in all.iter_mut().filter(|seen| seen.from.qpn == 0) {
        let votes = votes.get(&(seen.to.clone(), seen.from.gid.clone()));
        let best = votes.and_then(|votes| votes.iter().max_by_key(|(_, count)| **count));
        seen.from.qpn = best.map_or(0, |(qpn, _)| *qpn);
    }
}

fn connections(all: Vec<Seen>) -> Vec<Connection> {
    let mut found: BTreeMap<[End; 2], Connection> = BTreeMap::new();
    // Nanoseconds since 1970 are too large for exact arithmetic in JavaScript.
    let first = all.iter().map(|seen| seen.nanoseconds).min().unwrap_or(0);
    for seen in all {
        let from_first = seen.from <= seen.to;
        let ends = if from_first {
            [seen.from.clone(), seen.to.clone()]
        } else {
            [seen.to.clone(), seen.from.clone()]
        };
        let connection = found.entry(ends.clone()).or_insert_with(|| Connection {
            ends,
            steps: [Vec::new(), Vec::new()],
        });
        connection.steps[usize::from(!from_first)].push(Step {
            nanoseconds: seen.nanoseconds,
            at: seen.nanoseconds - first,
            qpn: seen.from.qpn,
            act: seen.act,
            objects: Vec::new(),
        });
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sender_stands_in_the_comment() {
        assert_eq!(sender("a QP 0x11 -> QP 0x12: SEND Only"), Some(0x11));
        assert_eq!(sender("b QP 0x12 <- QP 0x11: SEND Only"), Some(0x11));
        assert_eq!(sender("b QP 0x12 <- its peer: SEND Only"), None);
        assert_eq!(sender("QP 0x5 -> its peer: Acknowledge"), Some(5));
        for text in ["", "switch port x", "QP -> QP", "a -> b <- c", "QP 0xé -> "] {
            assert_eq!(sender(text), None, "{text}");
        }
    }

    #[test]
    fn units_of_time_are_those_of_the_interface() {
        for (resolution, time, wanted) in [
            (6, 7, 7000),
            (9, 7, 7),
            (12, 7000, 7),
            (0, 7, 7_000_000_000),
            (0x8a, 512, 500_000_000),
            (0x7f, 5, 0),
            (0xff, 5, 0),
        ] {
            let interface = InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![InterfaceDescriptionOption::IfTsResol(resolution)],
            };
            assert_eq!(
                unit(&interface).unwrap().nanoseconds(time),
                wanted,
                "{resolution:#x}"
            );
        }
    }

    #[test]
    fn files_of_anything_else_are_refused() {
        for file in [
            &b""[..],
            b"GIF89a",
            RECORDING,
            &PCAPNG,
            &[0xff; 100],
            &[0; 5000],
        ] {
            assert!(decode(file).is_err(), "{file:?}");
        }
    }
}
