// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages longer than one MAD: the reliable multi-packet transaction protocol, RMPP (IBTA volume 1, 13.6).
//!
//! A [message](Rmpp::send) is sent in segments. The receiver acknowledges them, and tells the sender the window, which
//! is the last segment that it may send. Segments that are not acknowledged in time are sent again. Either end can give
//! up.
//!
//! ```
//! use std::time::Duration;
//! use vrnic_infiniband::{
//!     mad::{Header, Method, class},
//!     rmpp::{Delivery, Output, Peer, Rmpp, RmppHeader},
//! };
//!
//! // A table of 1000 bytes, behind the headers of subnet administration.
//! let mut message = vec![7; 56 + 1000];
//! Header::request(class::ADMINISTRATION, Method(0x92), 0x11, 0).write(&mut message);
//! RmppHeader::data().write(&mut message);
//!
//! let (mut one, mut other) = (Rmpp::default(), Rmpp::default());
//! let now = Duration::ZERO;
//! one.send(Peer::default(), message.clone(), Delivery::default(), now).unwrap();
//! let received = loop {
//!     while let Some(Output::Transmit(peer, mad)) = one.output() {
//!         other.receive(peer, &mad, now);
//!     }
//!     match other.output().expect("an acknowledgement, or the message") {
//!         Output::Transmit(peer, mad) => one.receive(peer, &mad, now),
//!         Output::Message(_, received) => break received,
//!         Output::Sent { .. } => unreachable!(),
//!     };
//! };
//! // The header is that of the first segment.
//! assert_eq!(received[36..], message[36..]);
//! ```
//!
//! The state that peers can create is limited: the bytes of a message, the messages of a peer, and the messages and
//! bytes of all peers. What exceeds a limit is refused. A peer that begins many messages or acknowledges none is the
//! first to run into the limits.

use crate::{
    Lid,
    field::{layout, named},
    mad::{Header, MAD_LENGTH, class},
};
use std::{
    collections::{BTreeMap, VecDeque},
    error::Error,
    fmt,
    time::Duration,
};

/// Version of RMPP.
const VERSION: u8 = 1;
/// Bytes of the common header and the RMPP header.
const HEADERS: usize = 36;
/// Number of segments that a receiver allows ahead.
const WINDOW: u32 = 64;
/// Maximum number of unacknowledged segments of a sender, even if the window is larger.
const MAX_UNDER_WAY: u32 = 256;

/// Maximum length of a message in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Maximum number of bytes of all messages in one direction.
const MAX_BYTES: usize = 4 * MAX_MESSAGE;
/// Maximum number of messages in one direction.
const MAX_MESSAGES: usize = 1024;
/// Maximum number of messages from or to one LID.
const MAX_MESSAGES_OF_PEER: usize = 64;

/// Minimum time between two attempts.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// How long a message may take to arrive.
const MAX_TIME: Duration = Duration::from_secs(40);
/// How long a receiver remembers a complete message, to acknowledge segments that are sent again.
const LINGER: Duration = Duration::from_secs(10);

named! {
    /// Kind of a segment (13.6.2.1).
    Kind(u8) {
        /// A part of a message.
        DATA = 1,
        /// An acknowledgement of segments, with the window.
        ACK = 2,
        /// The receiver has no room.
        STOP = 3,
        /// One of the two ends gives up.
        ABORT = 4,
    }
}

named! {
    /// Why a transfer ends early (13.6.2.1).
    RmppStatus(u8) {
        /// The transfer continues.
        OK = 0,
        /// There is no room.
        NO_RESOURCES = 1,
        /// The transfer took too long.
        TOO_LONG = 118,
        /// The length contradicts the segments.
        BAD_LENGTH = 119,
        /// The flag of the first segment contradicts the segment number.
        BAD_SEGMENT = 120,
        /// Unknown kind of segment.
        BAD_KIND = 121,
        /// The window ends before the acknowledged segment.
        WINDOW_TOO_SMALL = 122,
        /// A segment that was not sent is acknowledged.
        SEGMENT_TOO_BIG = 123,
        /// The status is not valid for the kind of segment.
        BAD_STATUS = 124,
        /// Unsupported version.
        BAD_VERSION = 125,
        /// No acknowledgement arrived after all retries.
        TOO_MANY_RETRIES = 126,
    }
}

layout! {
    /// The RMPP header, which follows the common header in classes with long messages (13.6.2.1).
    RmppHeader {
        /// Version of RMPP.
        version: u8 = 192, 8;
        /// Kind of the segment.
        kind: Kind = 200, 8;
        /// Time that the sender needs to respond. 31 if it is not given.
        response_time: u8 = 208, 5;
        /// The segment is the last one.
        last: bool = 213, 1;
        /// The segment is the first one.
        first: bool = 214, 1;
        /// The MAD uses RMPP.
        active: bool = 215, 1;
        /// Why the transfer ends.
        status: RmppStatus = 216, 8;
        /// Number of the segment, from 1 on, or the last segment that is acknowledged.
        segment: u32 = 224, 32;
        /// Bytes after this header, in the whole message for the first segment. In an acknowledgement, the end of the
        /// window.
        length: u32 = 256, 32;
    }
}

impl RmppHeader {
    /// Creates the RMPP header of a message to send.
    pub fn data() -> Self {
        Self {
            version: VERSION,
            kind: Kind::DATA,
            response_time: 31,
            active: true,
            ..Self::default()
        }
    }
}

/// Returns the bytes of all headers of a class, which each segment has, or `None` if the class has no long messages
/// (13.6.1).
pub const fn header_length(class: u8) -> Option<usize> {
    match class {
        class::ADMINISTRATION => Some(56),
        class::DEVICE_ADMINISTRATION | class::BOOT => Some(64),
        class::VENDOR_OUI_FIRST..=class::VENDOR_OUI_LAST => Some(40),
        _ => None,
    }
}

/// The other end of a transfer, and the path to it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// LID of the other end.
    pub lid: Lid,
    /// QP of the other end.
    pub qp: u32,
    /// LID of this end.
    pub own: Lid,
    /// Service level.
    pub service_level: u8,
    /// Partition key.
    pub pkey: u16,
}

/// Parameters of sending a message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// How long to wait for an acknowledgement.
    pub interval: Duration,
    /// Number of retries without an acknowledgement.
    pub retries: u32,
    /// A response will follow, and the receiver is told that it may begin (13.6.6.3).
    pub answered: bool,
}

impl Default for Delivery {
    /// Returns an interval of two seconds and three retries.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            retries: 3,
            answered: false,
        }
    }
}

/// Result of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this MAD.
    Transmit(Peer, Box<[u8; MAD_LENGTH]>),
    /// A whole message arrived, with the headers of its first segment and all data.
    Message(Peer, Vec<u8>),
    /// A message was sent, or sending it failed.
    Sent {
        /// The other end.
        peer: Peer,
        /// Header of the message.
        header: Header,
        /// Why the message did not arrive, if it did not.
        result: Result<(), RmppStatus>,
    },
}

/// Why a message cannot be sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SendError {
    /// The class has no long messages.
    Class,
    /// The message is shorter than its headers, or longer than [`MAX_MESSAGE`].
    Length,
    /// A message of this transaction is already being sent to this peer.
    Duplicate,
    /// Too many messages or bytes are being sent.
    Busy,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Class => "the class has no long messages",
            Self::Length => "the message is too short or too long",
            Self::Duplicate => "a message of this transaction is being sent there",
            Self::Busy => "too much is being sent",
        })
    }
}

impl Error for SendError {}

/// Identity of a transfer. The method is that of the data.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    lid: Lid,
    qp: u32,
    transaction: u64,
    class: u8,
    method: u8,
}

/// Bit of the method in which the two directions of a transfer differ.
const RESPONSE: u8 = 0x80;

impl Key {
    fn new(peer: Peer, header: &Header) -> Self {
        Self {
            lid: peer.lid,
            qp: peer.qp,
            transaction: header.transaction,
            class: header.class,
            method: header.method.0,
        }
    }

    /// Returns the key of the other direction.
    fn reversed(self) -> Self {
        Self {
            method: self.method ^ RESPONSE,
            ..self
        }
    }
}

/// A message that is being sent.
#[derive(Clone, Debug)]
struct Sender {
    peer: Peer,
    message: Vec<u8>,
    /// Bytes of the headers.
    headers: usize,
    delivery: Delivery,
    /// Number of segments of the message.
    segments: u32,
    /// Last segment that was acknowledged.
    acknowledged: u32,
    /// Last segment that was sent.
    sent: u32,
    /// Last segment that may be sent.
    window: u32,
    retries: u32,
    due: Duration,
}

/// A message that is being received.
#[derive(Clone, Debug)]
struct Receiver {
    peer: Peer,
    /// Headers of the first segment, and the data that arrived in order.
    message: Vec<u8>,
    /// Segments after a missing one, and whether they are the last.
    ahead: BTreeMap<u32, (bool, Vec<u8>)>,
    /// Number of bytes that the first segment announced, or 0.
    announced: u32,
    /// Last segment that arrived in order.
    segment: u32,
    /// Last segment that may arrive.
    window: u32,
    /// Number of segments that a response may begin with.
    answer_window: u32,
    complete: bool,
    /// When the message is given up or forgotten.
    due: Duration,
}

/// The RMPP state of one agent.
#[derive(Clone, Debug, Default)]
pub struct Rmpp {
    senders: BTreeMap<Key, Sender>,
    receivers: BTreeMap<Key, Receiver>,
    outputs: VecDeque<Output>,
}

/// Returns whether there is room for a message of `bytes` from or to `lid`, given the other transfers.
fn has_room(transfers: impl Iterator<Item = (Lid, usize)>, lid: Lid, bytes: usize) -> bool {
    let (mut all, mut own, mut sum) = (0, 0, bytes);
    for (peer, length) in transfers {
        all += 1;
        own += usize::from(peer == lid);
        sum += length;
    }
    all < MAX_MESSAGES && own < MAX_MESSAGES_OF_PEER && sum <= MAX_BYTES
}

impl Rmpp {
    /// Sends a message, which consists of all headers of its class and the data. [`RmppHeader::data`] returns its RMPP
    /// header.
    ///
    /// # Errors
    ///
    /// The message is not valid, or there is no room for it.
    pub fn send(
        &mut self,
        peer: Peer,
        message: Vec<u8>,
        mut delivery: Delivery,
        now: Duration,
    ) -> Result<(), SendError> {
        delivery.interval = delivery.interval.max(MIN_INTERVAL);
        let header = Header::read(&message);
        let headers = header_length(header.class).ok_or(SendError::Class)?;
        if !(headers..=MAX_MESSAGE).contains(&message.len()) {
            return Err(SendError::Length);
        }
        let key = Key::new(peer, &header);
        if self.senders.contains_key(&key) {
            return Err(SendError::Duplicate);
        }
        let others = self.senders.values();
        let others = others.map(|sender| (sender.peer.lid, sender.message.len()));
        if !has_room(others, peer.lid, message.len()) {
            return Err(SendError::Busy);
        }
        let data = message.len() - headers;
        let request = self.receivers.get(&key.reversed());
        let window = request.map_or(1, |request| request.answer_window);
        let mut sender = Sender {
            peer,
            headers,
            delivery,
            segments: data.div_ceil(MAD_LENGTH - headers).max(1) as u32,
            message,
            acknowledged: 0,
            sent: 0,
            window,
            retries: delivery.retries,
            due: now + delivery.interval,
        };
        sender.go_on(&mut self.outputs);
        self.senders.insert(key, sender);
        Ok(())
    }

    /// Receives a MAD. Returns whether it uses RMPP. If not, the MAD is a whole message.
    pub fn receive(&mut self, peer: Peer, mad: &[u8; MAD_LENGTH], now: Duration) -> bool {
        let (header, rmpp) = (Header::read(mad), RmppHeader::read(mad));
        let Some(headers) = header_length(header.class).filter(|_| rmpp.active) else {
            return false;
        };
        let key = Key::new(peer, &header);
        let ends = matches!(rmpp.kind, Kind::STOP | Kind::ABORT);
        let wrong = if rmpp.version != VERSION {
            RmppStatus::BAD_VERSION
        } else if ends && rmpp.status != RmppStatus::OK {
            rmpp.status
        } else if ends {
            RmppStatus::BAD_STATUS
        } else if !matches!(rmpp.kind, Kind::DATA | Kind::ACK) {
            RmppStatus::BAD_KIND
        } else if rmpp.status != RmppStatus::OK {
            RmppStatus::BAD_STATUS
        } else if rmpp.kind == Kind::ACK {
            self.acknowledged(key, mad, &rmpp, now)
        } else if rmpp.first != (rmpp.segment == 1) {
            RmppStatus::BAD_SEGMENT
        } else {
            self.data(peer, key, mad, headers, &rmpp, now)
        };
        if wrong != RmppStatus::OK {
            self.end(key, wrong);
            if !ends {
                // A violation of the protocol ends the transfer at both ends.
                let kind = match wrong {
                    RmppStatus::NO_RESOURCES => Kind::STOP,
                    _ => Kind::ABORT,
                };
                self.reply(peer, mad, kind, wrong, (0, 0));
            }
        }
        true
    }

    /// Returns whether a MAD belongs to a message that is arriving, or that arrived recently.
    pub fn knows(&self, peer: Peer, header: &Header) -> bool {
        self.receivers.contains_key(&Key::new(peer, header))
    }

    /// Returns the next output.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Advances the time: sends again what was not acknowledged, and gives up or forgets old messages.
    pub fn poll(&mut self, now: Duration) {
        let late: Vec<Key> = self
            .senders
            .iter()
            .filter(|(_, sender)| sender.due <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            let Some(sender) = self.senders.get_mut(&key) else {
                continue;
            };
            if let Some(left) = sender.retries.checked_sub(1) {
                sender.retries = left;
                sender.sent = sender.acknowledged;
                sender.due = now + sender.delivery.interval;
                sender.go_on(&mut self.outputs);
            } else {
                let (peer, wrong) = (sender.peer, RmppStatus::TOO_MANY_RETRIES);
                let mut mad = sender.segment(1);
                // The reply inverts the bit, so that the receiver gets the method of the data.
                mad[3] ^= RESPONSE;
                self.end(key.reversed(), wrong);
                self.reply(peer, &mad, Kind::ABORT, wrong, (0, 0));
            }
        }
        let late: Vec<Key> = self
            .receivers
            .iter()
            .filter(|(_, receiver)| receiver.due <= now)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            if let Some(receiver) = self.receivers.remove(&key).filter(|it| !it.complete) {
                let mut mad = [0; MAD_LENGTH];
                for (to, from) in mad.iter_mut().zip(receiver.message) {
                    *to = from;
                }
                let wrong = RmppStatus::TOO_LONG;
                self.reply(receiver.peer, &mad, Kind::ABORT, wrong, (0, 0));
            }
        }
    }

    /// Returns when [`poll`](Self::poll) has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let senders = self.senders.values().map(|sender| sender.due);
        let receivers = self.receivers.values().map(|receiver| receiver.due);
        senders.chain(receivers).min()
    }

    /// Ends the transfer that a MAD with this key is about, in either direction.
    fn end(&mut self, key: Key, wrong: RmppStatus) {
        if let Some(sender) = self.senders.remove(&key.reversed()) {
            self.outputs.push_back(Output::Sent {
                peer: sender.peer,
                header: Header::read(&sender.message),
                result: Err(wrong),
            });
        } else if self.receivers.get(&key).is_some_and(|it| !it.complete) {
            self.receivers.remove(&key);
        }
    }

    /// Replies to a MAD of RMPP. `numbers` are those of the segment and of the window.
    fn reply(
        &mut self,
        peer: Peer,
        to: &[u8; MAD_LENGTH],
        kind: Kind,
        status: RmppStatus,
        numbers: (u32, u32),
    ) {
        let mut mad = Box::new([0; MAD_LENGTH]);
        let headers = header_length(to[1]).unwrap_or(HEADERS);
        mad[..headers].copy_from_slice(&to[..headers]);
        mad[3] ^= RESPONSE;
        let rmpp = RmppHeader {
            version: VERSION,
            kind,
            active: true,
            first: false,
            last: false,
            status,
            segment: numbers.0,
            length: numbers.1,
            ..RmppHeader::read(to)
        };
        rmpp.write(&mut mad[..]);
        self.outputs.push_back(Output::Transmit(peer, mad));
    }

    /// Processes an acknowledgement. Returns the status of the transfer.
    fn acknowledged(
        &mut self,
        key: Key,
        mad: &[u8; MAD_LENGTH],
        rmpp: &RmppHeader,
        now: Duration,
    ) -> RmppStatus {
        let (segment, window) = (rmpp.segment, rmpp.length);
        if window < segment {
            return RmppStatus::WINDOW_TOO_SMALL;
        }
        let Some(sender) = self.senders.get_mut(&key.reversed()) else {
            // Without a sender, an acknowledgement of segment 0 lets this end begin its response to the message.
            let answers = self.receivers.get_mut(&key).filter(|_| segment == 0);
            if let Some(receiver) = answers.filter(|receiver| receiver.complete) {
                receiver.answer_window = window.max(1);
            }
            return RmppStatus::OK;
        };
        if segment > sender.segments.min(sender.window) {
            return RmppStatus::SEGMENT_TOO_BIG;
        }
        if segment < sender.acknowledged || window < sender.window {
            // An old acknowledgement.
            return RmppStatus::OK;
        }
        if segment > sender.acknowledged {
            sender.acknowledged = segment;
            sender.sent = sender.sent.max(segment);
            sender.retries = sender.delivery.retries;
            sender.due = now + sender.delivery.interval;
        }
        sender.window = window;
        if segment < sender.segments {
            sender.go_on(&mut self.outputs);
            return RmppStatus::OK;
        }
        let (peer, answered) = (sender.peer, sender.delivery.answered);
        let header = Header::read(&sender.message);
        self.senders.remove(&key.reversed());
        if answered {
            self.reply(peer, mad, Kind::ACK, RmppStatus::OK, (0, 1));
        }
        let result = Ok(());
        self.outputs.push_back(Output::Sent {
            peer,
            header,
            result,
        });
        RmppStatus::OK
    }

    /// Processes a segment of data. Returns the status of the transfer.
    fn data(
        &mut self,
        peer: Peer,
        key: Key,
        mad: &[u8; MAD_LENGTH],
        headers: usize,
        rmpp: &RmppHeader,
        now: Duration,
    ) -> RmppStatus {
        if !self.receivers.contains_key(&key) {
            if !rmpp.first {
                // The first segment was lost, and will be sent again.
                return RmppStatus::OK;
            }
            let unfinished = self.receivers.values().filter(|it| !it.complete);
            let unfinished = unfinished.map(|it| (it.peer.lid, it.message.len()));
            let announced = rmpp.length as usize;
            if announced > MAX_MESSAGE || !has_room(unfinished, peer.lid, announced) {
                return RmppStatus::NO_RESOURCES;
            }
            self.forget_complete();
            self.receivers.insert(
                key,
                Receiver {
                    peer,
                    message: mad[..headers].to_vec(),
                    ahead: BTreeMap::new(),
                    announced: rmpp.length,
                    segment: 0,
                    window: 1,
                    answer_window: 1,
                    complete: false,
                    due: now + MAX_TIME,
                },
            );
        }
        let all: usize = self
            .receivers
            .values()
            .map(|receiver| receiver.message.len())
            .sum();
        let Some(receiver) = self.receivers.get_mut(&key) else {
            return RmppStatus::OK;
        };
        if receiver.complete || rmpp.segment <= receiver.segment {
            // The sender did not get the acknowledgement.
            let numbers = (receiver.segment, receiver.window);
            self.reply(peer, mad, Kind::ACK, RmppStatus::OK, numbers);
            return RmppStatus::OK;
        }
        if rmpp.segment > receiver.window {
            return RmppStatus::OK;
        }
        // Only the last segment may be shorter.
        let length = if rmpp.last {
            rmpp.length as usize
        } else {
            MAD_LENGTH - HEADERS
        };
        if !(headers - HEADERS..=MAD_LENGTH - HEADERS).contains(&length) {
            return RmppStatus::BAD_LENGTH;
        }
        let data = mad[headers..HEADERS + length].to_vec();
        receiver.ahead.insert(rmpp.segment, (rmpp.last, data));
        while let Some((last, data)) = receiver.ahead.remove(&(receiver.segment + 1)) {
            receiver.segment += 1;
            receiver.message.extend(data);
            if last {
                return self.complete(key, mad, headers, now);
            }
        }
        if receiver.message.len() > MAX_MESSAGE || all > MAX_BYTES {
            return RmppStatus::NO_RESOURCES;
        }
        if receiver.segment == receiver.window {
            receiver.window += WINDOW;
            let numbers = (receiver.segment, receiver.window);
            self.reply(peer, mad, Kind::ACK, RmppStatus::OK, numbers);
        }
        RmppStatus::OK
    }

    /// Completes a message whose last segment has arrived in order.
    fn complete(
        &mut self,
        key: Key,
        mad: &[u8; MAD_LENGTH],
        headers: usize,
        now: Duration,
    ) -> RmppStatus {
        let Some(receiver) = self.receivers.get_mut(&key) else {
            return RmppStatus::OK;
        };
        let repeated = receiver.segment as usize * (headers - HEADERS);
        let length = receiver.message.len() - headers + repeated;
        if receiver.announced != 0 && receiver.announced as usize != length {
            return RmppStatus::BAD_LENGTH;
        }
        receiver.complete = true;
        receiver.due = now + LINGER;
        receiver.ahead.clear();
        let peer = receiver.peer;
        let numbers = (receiver.segment, receiver.window);
        let message = std::mem::take(&mut receiver.message);
        self.reply(peer, mad, Kind::ACK, RmppStatus::OK, numbers);
        self.outputs.push_back(Output::Message(peer, message));
        RmppStatus::OK
    }

    /// Makes room by forgetting the message that has been complete the longest.
    fn forget_complete(&mut self) {
        let complete = || self.receivers.iter().filter(|(_, it)| it.complete);
        if complete().count() >= MAX_MESSAGES {
            let oldest = complete().min_by_key(|(_, it)| it.due).map(|(key, _)| *key);
            oldest.map(|key| self.receivers.remove(&key));
        }
    }
}

impl Sender {
    /// Sends the segments that the window allows.
    fn go_on(&mut self, outputs: &mut VecDeque<Output>) {
        let end = self.acknowledged.saturating_add(MAX_UNDER_WAY);
        let end = end.min(self.window).min(self.segments);
        for number in self.sent + 1..=end {
            outputs.push_back(Output::Transmit(self.peer, self.segment(number)));
        }
        self.sent = self.sent.max(end);
    }

    /// Returns a segment by its number.
    fn segment(&self, number: u32) -> Box<[u8; MAD_LENGTH]> {
        let mut mad = Box::new([0; MAD_LENGTH]);
        let (headers, data) = self.message.split_at(self.headers);
        let part = data
            .chunks(MAD_LENGTH - self.headers)
            .nth(number as usize - 1);
        let part = part.unwrap_or_default();
        mad[..self.headers].copy_from_slice(headers);
        mad[self.headers..][..part.len()].copy_from_slice(part);
        let own = (self.headers - HEADERS) as u32;
        let (first, last) = (number == 1, number == self.segments);
        let rmpp = RmppHeader {
            version: VERSION,
            kind: Kind::DATA,
            active: true,
            status: RmppStatus::OK,
            first,
            last,
            segment: number,
            length: match (first, last) {
                (_, true) => own + part.len() as u32,
                (true, false) => self.segments * own + data.len() as u32,
                (false, false) => 0,
            },
            ..RmppHeader::read(headers)
        };
        rmpp.write(&mut mad[..]);
        mad
    }
}
