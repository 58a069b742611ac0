// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Messages that are longer than one MAD: the reliable multi-packet transaction protocol (IBTA volume 1, 13.6).
//!
//! A [message](Rmpp::send) goes out in segments. The receiver acknowledges them and says up to which one the sender may
//! go on: the window. What is not acknowledged in time is sent again. Either end can give up.
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
//! What peers make it keep is limited: the bytes of a message, the messages of a peer, and messages and bytes of all.
//! What does not fit in is refused: a peer that begins much, or acknowledges nothing, hinders itself first.

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

/// Version of the protocol.
const VERSION: u8 = 1;
/// Bytes of the common header and of the protocol's own.
const HEADERS: usize = 36;
/// Segments that a receiver allows ahead.
const WINDOW: u32 = 64;
/// Most segments that a sender has under way, however many it may.
const MAX_UNDER_WAY: u32 = 256;

/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = 16 << 20;
/// Most bytes of all messages in one direction.
const MAX_BYTES: usize = 4 * MAX_MESSAGE;
/// Most messages in one direction.
const MAX_MESSAGES: usize = 1024;
/// Most messages from or to one LID.
const MAX_MESSAGES_OF_PEER: usize = 64;

/// Least time between two attempts.
const MIN_INTERVAL: Duration = Duration::from_millis(1);
/// How long a message may take to arrive.
const MAX_TIME: Duration = Duration::from_secs(40);
/// How long a receiver knows that a message is complete, and says so to whoever sends a segment of it again.
const LINGER: Duration = Duration::from_secs(10);

named! {
    /// What a segment is (13.6.2.1).
    Kind(u8) {
        /// A part of a message.
        DATA = 1,
        /// Segments arrived, and others may come.
        ACK = 2,
        /// The receiver has no room.
        STOP = 3,
        /// One of the two gives up.
        ABORT = 4,
    }
}

named! {
    /// Why a transfer ends early (13.6.2.1).
    RmppStatus(u8) {
        /// It goes on.
        OK = 0,
        /// No room.
        NO_RESOURCES = 1,
        /// It took too long in all.
        TOO_LONG = 118,
        /// The length is not that of the segments.
        BAD_LENGTH = 119,
        /// First segment and segment number contradict each other.
        BAD_SEGMENT = 120,
        /// No such kind of segment.
        BAD_KIND = 121,
        /// The window ends before what is acknowledged.
        WINDOW_TOO_SMALL = 122,
        /// What was never sent is acknowledged.
        SEGMENT_TOO_BIG = 123,
        /// No such status.
        BAD_STATUS = 124,
        /// No such version.
        BAD_VERSION = 125,
        /// Nothing was acknowledged, however often it was sent.
        TOO_MANY_RETRIES = 126,
    }
}

layout! {
    /// What MADs of a class with long messages have behind the common header (13.6.2.1).
    RmppHeader {
        /// Version of the protocol.
        version: u8 = 192, 8;
        /// What the segment is.
        kind: Kind = 200, 8;
        /// Time that the sender takes for its answers, or 31.
        response_time: u8 = 208, 5;
        /// The message ends here.
        last: bool = 213, 1;
        /// The message begins here.
        first: bool = 214, 1;
        /// The MAD is one of the protocol.
        active: bool = 215, 1;
        /// Why the transfer ends.
        status: RmppStatus = 216, 8;
        /// Number of the segment, from 1 on; the last one that an acknowledgement is about.
        segment: u32 = 224, 32;
        /// Bytes behind this header: in the whole message if it is the first segment. The end of the window if it is an
        /// acknowledgement.
        length: u32 = 256, 32;
    }
}

impl RmppHeader {
    /// What a message has that is to be sent in segments.
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

/// Bytes of all headers of a class, which each segment has; `None` if the class has no long messages (13.6.1).
pub const fn header_length(class: u8) -> Option<usize> {
    match class {
        class::ADMINISTRATION => Some(56),
        class::DEVICE_ADMINISTRATION | class::BOOT => Some(64),
        class::VENDOR_OUI_FIRST..=class::VENDOR_OUI_LAST => Some(40),
        _ => None,
    }
}

/// Who is at the other end, and the way there.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its LID.
    pub lid: Lid,
    /// Its queue pair.
    pub qp: u32,
    /// Own LID.
    pub own: Lid,
    /// Service level.
    pub service_level: u8,
    /// Partition key.
    pub pkey: u16,
}

/// How a message is sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// How long to wait for an acknowledgement.
    pub interval: Duration,
    /// How often to send again without one.
    pub retries: u32,
    /// There will be an answer: the receiver is told that it may begin with it (13.6.6.3).
    pub answered: bool,
}

impl Default for Delivery {
    /// Two seconds, three times.
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(2),
            retries: 3,
            answered: false,
        }
    }
}

/// What comes of what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// This is to be sent.
    Transmit(Peer, Box<[u8; MAD_LENGTH]>),
    /// A whole message arrived: the headers of its first segment, and all data.
    Message(Peer, Vec<u8>),
    /// All of a message arrived at the other end, or it will not.
    Sent {
        /// The other end.
        peer: Peer,
        /// Header of the message.
        header: Header,
        /// Why it did not arrive.
        result: Result<(), RmppStatus>,
    },
}

/// Why a message cannot be sent.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum SendError {
    /// Its class has no long messages.
    Class,
    /// It is shorter than its headers, or longer than [`MAX_MESSAGE`].
    Length,
    /// A message of this transaction is being sent there.
    Duplicate,
    /// Too much is being sent.
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

/// What tells transfers apart. The method is that of the data.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    lid: Lid,
    qp: u32,
    transaction: u64,
    class: u8,
    method: u8,
}

/// Bit of a method that the two directions of a transfer differ in.
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

    /// Of the other direction.
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
    /// The last segment of the message.
    segments: u32,
    /// The last one that was acknowledged.
    acknowledged: u32,
    /// The last one that was sent.
    sent: u32,
    /// The last one that may be sent.
    window: u32,
    retries: u32,
    due: Duration,
}

/// A message that arrives.
#[derive(Clone, Debug)]
struct Receiver {
    peer: Peer,
    /// Headers of the first segment, and what came in order behind it.
    message: Vec<u8>,
    /// Segments behind one that is missing, and whether they are the last.
    ahead: BTreeMap<u32, (bool, Vec<u8>)>,
    /// Bytes that the first segment announced, or 0.
    announced: u32,
    /// The last segment in order.
    segment: u32,
    /// The last segment that may come.
    window: u32,
    /// Segments that an answer may begin with.
    answer_window: u32,
    complete: bool,
    /// When it is given up, or forgotten.
    due: Duration,
}

/// One end of transfers: of an agent.
#[derive(Clone, Debug, Default)]
pub struct Rmpp {
    senders: BTreeMap<Key, Sender>,
    receivers: BTreeMap<Key, Receiver>,
    outputs: VecDeque<Output>,
}

/// Whether there is room for a message of `bytes` from or to `lid` beside those of other transfers.
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
    /// Sends a message: all headers of its class, and data. [`RmppHeader::data`] says what the protocol's own has.
    ///
    /// # Errors
    ///
    /// The message is none, or there is no room for it.
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

    /// A MAD arrived. Whether it is one of the protocol; if not, it is a whole message itself.
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
                // What contradicts the protocol ends the transfer at both ends.
                let kind = match wrong {
                    RmppStatus::NO_RESOURCES => Kind::STOP,
                    _ => Kind::ABORT,
                };
                self.reply(peer, mad, kind, wrong, (0, 0));
            }
        }
        true
    }

    /// Whether a MAD is about a message that arrives, or arrived a short time ago.
    pub fn knows(&self, peer: Peer, header: &Header) -> bool {
        self.receivers.contains_key(&Key::new(peer, header))
    }

    /// The next thing to do.
    pub fn output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Lets time pass.
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
                // To the receiver, so with the method of the data.
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

    /// When [`poll`](Self::poll) has something to do.
    pub fn next_deadline(&self) -> Option<Duration> {
        let senders = self.senders.values().map(|sender| sender.due);
        let receivers = self.receivers.values().map(|receiver| receiver.due);
        senders.chain(receivers).min()
    }

    /// Ends the transfer that a MAD with this key is about, in whichever direction it goes.
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

    /// Answers a MAD of the protocol with another one; `numbers` are those of segment and window.
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

    /// An acknowledgement arrived; what is wrong with it.
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
            // Without a sender, and of no segment: who sent us a message allows the answer to begin.
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
            // An old one.
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

    /// Data arrived; what is wrong with them.
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
                // The first segment is missing, and will come again.
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
            // An acknowledgement, or what made one necessary, was lost.
            let numbers = (receiver.segment, receiver.window);
            self.reply(peer, mad, Kind::ACK, RmppStatus::OK, numbers);
            return RmppStatus::OK;
        }
        if rmpp.segment > receiver.window {
            return RmppStatus::OK;
        }
        // Only the last segment may be a short one.
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

    /// The last segment of a message is there, and all before it.
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

    /// Makes room: forgets the message that has been complete for longest.
    fn forget_complete(&mut self) {
        let complete = || self.receivers.iter().filter(|(_, it)| it.complete);
        if complete().count() >= MAX_MESSAGES {
            let oldest = complete().min_by_key(|(_, it)| it.due).map(|(key, _)| *key);
            oldest.map(|key| self.receivers.remove(&key));
        }
    }
}

impl Sender {
    /// Sends what may be sent.
    fn go_on(&mut self, outputs: &mut VecDeque<Output>) {
        let end = self.acknowledged.saturating_add(MAX_UNDER_WAY);
        let end = end.min(self.window).min(self.segments);
        for number in self.sent + 1..=end {
            outputs.push_back(Output::Transmit(self.peer, self.segment(number)));
        }
        self.sent = self.sent.max(end);
    }

    /// A segment, by its number.
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
