// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A bounded record of what went wrong, and why: every negative acknowledgement, dropped message of an unreliable
//! connection, dropped frame, error completion, fatal event and refused command, with the check that failed and its
//! subject.

use crate::{
    cause::Cause,
    fault::{Kind, PacketKind},
    segment::{Body, Syndrome},
    state::wire,
    time::Instant,
};
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use std::collections::VecDeque;
use vrnic_wire::{
    command,
    completion::{Opcode, Status},
    event::EventType,
};

/// Number of entries that a device keeps until they are taken.
const KEPT: usize = 256;

/// Number of the youngest entries that are searched for a repetition.
const LOOK_BACK: usize = 16;

/// A name from a table.
pub type Name = &'static str;

/// What happened.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Happening {
    /// The queue pair sent a negative acknowledgement.
    NakSent(Syndrome),
    /// The queue pair received a negative acknowledgement.
    NakReceived(Syndrome),
    /// The queue pair of an unreliable connection dropped a message.
    Dropped,
    /// A raw packet queue pair dropped a frame.
    FrameDropped,
    /// A work request completed with an error. Of a series of flushed ones, this is the first.
    Completion {
        /// Chosen by the consumer that posted it.
        wr_id: u64,
        /// Operation of the work request.
        #[serde(with = "wire")]
        opcode: Opcode,
        /// Its status.
        #[serde(with = "wire")]
        status: Status,
    },
    /// An asynchronous event that reports an error was raised.
    Event(#[serde(with = "wire")] EventType),
    /// An armed fault fired.
    Fault {
        /// Its number.
        id: u64,
        /// Name of its kind.
        #[serde(deserialize_with = "fault_name")]
        name: Name,
    },
    /// A command of the driver was refused.
    Command {
        /// Its code, which may be unknown.
        code: u16,
        /// The status of the reply.
        #[serde(with = "wire")]
        status: command::Status,
    },
}

impl Happening {
    /// Returns whether a series of these is merged into one entry, because there may be many that say the same.
    fn is_mass(&self) -> bool {
        match self {
            Self::Completion { status, .. } => *status == Status::Flushed,
            Self::NakSent(syndrome) | Self::NakReceived(syndrome) => {
                matches!(syndrome, Syndrome::RnrNak { .. })
            }
            Self::Dropped | Self::FrameDropped | Self::Fault { .. } => true,
            Self::Event(_) | Self::Command { .. } => false,
        }
    }

    /// Returns whether `later` is a repetition of this.
    fn is_repeated_by(&self, later: &Self) -> bool {
        self.is_mass()
            && match (self, later) {
                (
                    Self::Completion { opcode, status, .. },
                    Self::Completion {
                        opcode: later_opcode,
                        status: later_status,
                        ..
                    },
                ) => {
                    let receives = |opcode: &Opcode| *opcode == Opcode::Receive;
                    status == later_status && receives(opcode) == receives(later_opcode)
                }
                (first, later) => first == later,
            }
    }
}

/// An access to memory that was refused.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// The key that was used.
    pub key: u32,
    /// Protection domain of the queue pair.
    pub pd: u32,
    /// Rights ([`access`](vrnic_wire::memory::access)) that the access needs.
    pub rights: u32,
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes.
    pub length: u64,
}

/// A packet that arrived.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packet {
    /// Kind of packet.
    #[serde(deserialize_with = "packet_name")]
    pub name: Name,
    /// Its PSN.
    pub psn: u32,
}

/// Names of packets in explanations, in the order of [`PacketKind::NAMES`].
const PACKETS: [&str; PacketKind::NAMES.len()] = [
    "SEND",
    "RDMA WRITE",
    "RDMA READ request",
    "atomic request",
    "FLUSH request",
    "atomic write",
    "RDMA READ response",
    "ACK",
    "ACK",
    "ACK",
    "atomic ACK",
    "UD SEND",
    "CNP",
    "unknown request",
    "Ethernet frame",
];

fn packet_name<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    let name = <&str>::deserialize(from)?;
    let known = PACKETS.into_iter().find(|known| *known == name);
    known.ok_or_else(|| D::Error::custom("unknown packet"))
}

fn fault_name<'de, D: Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    <&Kind>::deserialize(from).map(|kind| kind.name)
}

impl Packet {
    /// Describes a packet with this body and PSN.
    pub(crate) fn new(body: &Body, psn: u32) -> Self {
        let name = PACKETS[PacketKind::of(body) as usize];
        Self { name, psn }
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Time; if it was repeated, that of the last repetition.
    pub time: Instant,
    /// Number of the queue pair, or of the completion queue if the event is about one; 0 if neither.
    pub number: u32,
    /// Number of the queue pair's peer; 0 if there is none.
    pub peer_qpn: u32,
    /// What happened.
    pub happening: Happening,
    /// The check that failed.
    pub cause: Option<Cause>,
    /// PSN of the request or of the acknowledgement. If a packet had an unexpected PSN, this is the expected one.
    pub psn: Option<u32>,
    /// The packet that the check was about.
    pub packet: Option<Packet>,
    /// The access that the check was about.
    pub access: Option<Access>,
    /// Number of occurrences.
    pub count: u64,
}

impl Explanation {
    /// Creates an explanation of something that happened to object `number`, without further details.
    pub fn new(happening: Happening, number: u32, cause: Option<Cause>) -> Self {
        Self {
            time: Instant::default(),
            number,
            peer_qpn: 0,
            happening,
            cause,
            psn: None,
            packet: None,
            access: None,
            count: 1,
        }
    }
}

/// The youngest explanations, each with a number that counts from 0.
#[derive(Debug, Serialize, Deserialize)]
pub struct Record {
    entries: VecDeque<(u64, Explanation)>,
    limit: usize,
    next: u64,
}

impl Default for Record {
    fn default() -> Self {
        Self::new(KEPT)
    }
}

impl Record {
    /// Creates an empty record with room for `limit` entries.
    pub fn new(limit: usize) -> Self {
        Self {
            entries: VecDeque::new(),
            limit: limit.max(1),
            next: 0,
        }
    }

    /// Adds an entry, or counts it in an older entry that it repeats. If there is no room, the oldest entry is dropped.
    /// Returns whether there is a new entry.
    pub fn add(&mut self, new: Explanation) -> bool {
        let young = self.entries.iter_mut().rev().take(LOOK_BACK);
        for (_, old) in young {
            if old.number == new.number
                && old.cause == new.cause
                && old.happening.is_repeated_by(&new.happening)
            {
                old.count = old.count.saturating_add(new.count);
                old.time = new.time;
                return false;
            }
        }
        if self.entries.len() == self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back((self.next, new));
        self.next += 1;
        true
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes and returns the oldest entry.
    pub fn take(&mut self) -> Option<Explanation> {
        Some(self.entries.pop_front()?.1)
    }

    /// Returns the number of the next entry.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the entries with their numbers, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, &Explanation)> {
        self.entries.iter().map(|(number, entry)| (*number, entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flush(number: u32, wr_id: u64, opcode: Opcode) -> Explanation {
        let happening = Happening::Completion {
            wr_id,
            opcode,
            status: Status::Flushed,
        };
        Explanation::new(happening, number, Some(Cause::QpInError))
    }

    #[test]
    fn floods_take_one_entry_for_each_queue() {
        let mut record = Record::new(100);
        for wr_id in 0..1000 {
            for number in 0..4 {
                record.add(flush(number, wr_id, Opcode::Write));
                record.add(flush(number, wr_id, Opcode::Receive));
            }
        }
        assert_eq!(record.iter().count(), 8);
        assert!(record.iter().all(|(_, entry)| entry.count == 1000));
        let Some((_, first)) = record.iter().next() else {
            panic!("entries");
        };
        assert!(matches!(
            first.happening,
            Happening::Completion { wr_id: 0, .. }
        ));
    }

    #[test]
    fn what_is_not_flushed_is_told_each_time_and_the_oldest_goes() {
        let mut record = Record::new(10);
        for wr_id in 0..25u64 {
            let happening = Happening::Completion {
                wr_id,
                opcode: Opcode::Send,
                status: Status::LocalProtection,
            };
            assert!(record.add(Explanation::new(happening, 1, Some(Cause::LocalKey))));
        }
        let numbers: Vec<u64> = record.iter().map(|(number, _)| number).collect();
        assert_eq!(numbers, (15..25).collect::<Vec<_>>());
        assert_eq!(record.next(), 25);
    }
}
