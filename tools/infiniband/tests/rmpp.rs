// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Long messages over a network that loses, repeats and reorders MADs, and from peers that break the protocol.

use proptest::{collection::vec, prelude::*};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use std::{collections::BTreeMap, time::Duration};
use vrnic_infiniband::{
    mad::{Header, MAD_LENGTH, Method, class},
    rmpp::{
        Delivery, Kind, MAX_MESSAGE, Output, Peer, Rmpp, RmppHeader, RmppStatus, SendError,
        header_length,
    },
};

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// A response that contains a table.
const TABLE: Method = Method(0x92);
/// A request that contains a table.
const MULTIPLE: Method = Method(0x14);

type Mad = Box<[u8; MAD_LENGTH]>;

/// Creates a message of subnet administration with `data` bytes, which depend on their positions.
fn message(method: Method, transaction: u64, data: usize) -> Vec<u8> {
    let mut message = vec![0; 56];
    message.extend((0..data).map(|place| (place % 251) as u8));
    let header = Header {
        transaction,
        ..Header::request(class::ADMINISTRATION, method, 0x11, 0)
    };
    header.write(&mut message);
    RmppHeader::data().write(&mut message);
    // The header of the class.
    message[36..56].copy_from_slice(&[9; 20]);
    message
}

fn peer(lid: u16) -> Peer {
    Peer {
        lid,
        qp: 1,
        ..Peer::default()
    }
}

/// Returns the MADs that an end sends.
fn transmitted(rmpp: &mut Rmpp) -> Vec<Mad> {
    let outputs = std::iter::from_fn(|| rmpp.output());
    outputs
        .filter_map(|output| match output {
            Output::Transmit(_, mad) => Some(mad),
            _ => None,
        })
        .collect()
}

/// Returns the kind, status, segment and length of a MAD.
fn about(mad: &Mad) -> (Kind, RmppStatus, u32, u32) {
    let rmpp = RmppHeader::read(&mad[..]);
    assert!(rmpp.active && rmpp.version == 1);
    (rmpp.kind, rmpp.status, rmpp.segment, rmpp.length)
}

/// Returns the replies of an end to a MAD with a changed header.
fn reaction(rmpp: &mut Rmpp, mad: &Mad, change: impl Fn(&mut RmppHeader)) -> Vec<Mad> {
    let mut mad = mad.clone();
    let mut header = RmppHeader::read(&mad[..]);
    change(&mut header);
    header.write(&mut mad[..]);
    assert!(rmpp.receive(peer(1), &mad, Duration::ZERO));
    transmitted(rmpp)
}

/// Returns an end that sends a message, and the first segment of the message.
fn sending(data: usize, delivery: Delivery) -> (Rmpp, Mad) {
    let mut rmpp = Rmpp::default();
    rmpp.send(peer(1), message(TABLE, 7, data), delivery, Duration::ZERO)
        .expect("room");
    let first = transmitted(&mut rmpp);
    assert_eq!(first.len(), 1, "the window is one segment at first");
    (rmpp, first[0].clone())
}

#[test]
fn segments_are_as_the_standard_has_them() {
    let (mut rmpp, first) = sending(450, Delivery::default());
    // Version 1, data, no response time and first and active, no error, segment 1, 3 * 20 + 450 bytes.
    assert_eq!(first[24..36], [1, 1, 0xfb, 0, 0, 0, 0, 1, 0, 0, 1, 0xfe]);
    assert_eq!(first[36..56], [9; 20]);
    let mut ack = first.clone();
    ack[3] ^= 0x80;
    let rest = reaction(&mut rmpp, &ack, |header| {
        *header = RmppHeader {
            kind: Kind::ACK,
            segment: 1,
            length: 65,
            ..RmppHeader::data()
        };
    });
    assert_eq!(rest.len(), 2);
    assert_eq!(rest[0][24..36], [1, 1, 0xf9, 0, 0, 0, 0, 2, 0, 0, 0, 0]);
    // The last segment has its own length.
    assert_eq!(rest[1][24..36], [1, 1, 0xfd, 0, 0, 0, 0, 3, 0, 0, 0, 70]);
    let all = message(TABLE, 7, 450);
    assert_eq!(rest[1][56..106], all[456..]);
    // An acknowledgement has the method of the other direction.
    let mut other = Rmpp::default();
    assert!(other.receive(peer(1), &first, Duration::ZERO));
    let acks = transmitted(&mut other);
    assert_eq!(acks[0][..4], [1, 3, 1, 0x12]);
    assert_eq!(acks[0][8..16], first[8..16]);
    assert_eq!(acks[0][24..36], [1, 2, 0xf9, 0, 0, 0, 0, 1, 0, 0, 0, 65]);
}

#[test]
fn what_is_not_acknowledged_is_sent_again_from_there_on() {
    let delivery = Delivery {
        interval: 100 * MILLISECOND,
        retries: 2,
        answered: false,
    };
    let (mut one, first) = sending(2000, delivery);
    let mut other = Rmpp::default();
    assert!(other.receive(peer(1), &first, Duration::ZERO));
    one.receive(peer(1), &transmitted(&mut other)[0], Duration::ZERO);
    assert_eq!(transmitted(&mut one).len(), 9, "all of these are lost");
    assert_eq!(one.next_deadline(), Some(100 * MILLISECOND));
    one.poll(99 * MILLISECOND);
    assert_eq!(transmitted(&mut one).len(), 0);
    one.poll(100 * MILLISECOND);
    let again: Vec<_> = transmitted(&mut one)
        .iter()
        .map(|mad| about(mad).2)
        .collect();
    assert_eq!(again, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
    one.poll(200 * MILLISECOND);
    assert_eq!(transmitted(&mut one).len(), 9);
    // The other end does not reply.
    one.poll(300 * MILLISECOND);
    let Some(Output::Sent { result, header, .. }) = one.output() else {
        panic!("the owner has to know");
    };
    assert_eq!(result, Err(RmppStatus::TOO_MANY_RETRIES));
    assert_eq!((header.method, header.transaction), (TABLE, 7));
    let abort = transmitted(&mut one);
    assert_eq!(about(&abort[0]).0, Kind::ABORT);
    assert_eq!(one.next_deadline(), None);
    // The other end forgets the message and does not reply.
    assert!(other.next_deadline().is_some());
    assert!(other.receive(peer(1), &abort[0], SECOND));
    assert_eq!((other.output(), other.next_deadline()), (None, None));
}

#[test]
fn a_message_that_does_not_end_is_given_up() {
    let (_, first) = sending(2000, Delivery::default());
    let mut other = Rmpp::default();
    other.receive(peer(1), &first, Duration::ZERO);
    transmitted(&mut other);
    let end = other.next_deadline().expect("a limit");
    other.poll(end);
    let abort = transmitted(&mut other);
    assert_eq!(about(&abort[0]), (Kind::ABORT, RmppStatus::TOO_LONG, 0, 0));
    assert_eq!(abort[0][3], 0x12, "it goes to the sender");
    let (mut one, _) = sending(2000, Delivery::default());
    one.receive(peer(1), &abort[0], end);
    assert!(matches!(
        one.output(),
        Some(Output::Sent {
            result: Err(RmppStatus::TOO_LONG),
            ..
        })
    ));
    assert_eq!(one.next_deadline(), None);
}

#[test]
fn what_contradicts_the_protocol_ends_the_transfer() {
    type Change = fn(&mut RmppHeader);
    // Errors at the receiving end.
    let wrong: [(RmppStatus, Change); 8] = [
        (RmppStatus::BAD_VERSION, |header| header.version = 2),
        (RmppStatus::BAD_KIND, |header| header.kind = Kind(5)),
        (RmppStatus::BAD_STATUS, |header| header.status.0 = 3),
        (RmppStatus::BAD_SEGMENT, |header| header.segment = 2),
        (RmppStatus::BAD_SEGMENT, |header| header.first = false),
        (RmppStatus::BAD_LENGTH, |header| {
            (header.last, header.length) = (true, 221);
        }),
        (RmppStatus::BAD_LENGTH, |header| {
            (header.last, header.length) = (true, 19);
        }),
        (RmppStatus::NO_RESOURCES, |header| {
            header.length = MAX_MESSAGE as u32 + 1;
        }),
    ];
    for (status, change) in wrong {
        let (_, first) = sending(2000, Delivery::default());
        let mut other = Rmpp::default();
        let said = reaction(&mut other, &first, change);
        let kind = match status {
            RmppStatus::NO_RESOURCES => Kind::STOP,
            _ => Kind::ABORT,
        };
        assert_eq!((said.len(), about(&said[0])), (1, (kind, status, 0, 0)));
        assert_eq!(other.next_deadline(), None, "{status:?}");
    }
    // Errors at the sending end.
    let wrong: [(RmppStatus, Change); 4] = [
        (RmppStatus::WINDOW_TOO_SMALL, |header| {
            (header.segment, header.length) = (1, 0);
        }),
        (RmppStatus::SEGMENT_TOO_BIG, |header| {
            (header.segment, header.length) = (2, 65);
        }),
        (RmppStatus::BAD_STATUS, |header| header.status.0 = 118),
        (RmppStatus::BAD_VERSION, |header| header.version = 0),
    ];
    for (status, change) in wrong {
        let (mut one, first) = sending(2000, Delivery::default());
        let mut ack = first.clone();
        ack[3] ^= 0x80;
        let said = reaction(&mut one, &ack, |header| {
            header.kind = Kind::ACK;
            change(header);
        });
        assert_eq!(
            (said.len(), about(&said[0])),
            (1, (Kind::ABORT, status, 0, 0))
        );
        assert_eq!(one.next_deadline(), None, "{status:?}");
        // There is no reply to a MAD that ends the transfer.
        for kind in [Kind::STOP, Kind::ABORT] {
            let (mut one, _) = sending(2000, Delivery::default());
            let said = reaction(&mut one, &ack, |header| header.kind = kind);
            assert_eq!((said.len(), one.next_deadline()), (0, None));
        }
    }
}

#[test]
fn a_length_that_was_announced_is_kept() {
    let (_, first) = sending(200, Delivery::default());
    let mut other = Rmpp::default();
    let said = reaction(&mut other, &first, |header| {
        (header.last, header.length) = (false, 300);
    });
    assert_eq!(about(&said[0]).0, Kind::ACK);
    let said = reaction(&mut other, &first, |header| {
        *header = RmppHeader {
            last: true,
            segment: 2,
            length: 220,
            ..RmppHeader::data()
        };
    });
    assert_eq!(about(&said[0]).1, RmppStatus::BAD_LENGTH);
}

#[test]
fn others_cannot_end_a_transfer() {
    let (mut one, first) = sending(2000, Delivery::default());
    let mut forged = first;
    forged[3] ^= 0x80;
    let header = RmppHeader {
        kind: Kind::ABORT,
        status: RmppStatus::TOO_LONG,
        ..RmppHeader::data()
    };
    header.write(&mut forged[..]);
    one.receive(peer(2), &forged, Duration::ZERO);
    assert_eq!(one.output(), None);
    one.receive(peer(1), &forged, Duration::ZERO);
    assert!(matches!(one.output(), Some(Output::Sent { .. })));
}

#[test]
fn a_peer_that_begins_much_hinders_itself() {
    let mut rmpp = Rmpp::default();
    let mut begin = |lid, transaction| {
        let mut one = Rmpp::default();
        let now = Duration::ZERO;
        let message = message(TABLE, transaction, 2000);
        one.send(peer(1), message, Delivery::default(), now)
            .expect("room");
        rmpp.receive(peer(lid), &transmitted(&mut one)[0], now);
        about(&transmitted(&mut rmpp)[0]).0
    };
    let accepted = (0..100).filter(|number| begin(5, *number) == Kind::ACK);
    assert_eq!(accepted.count(), 64);
    assert_eq!(begin(6, 0), Kind::ACK);
    // A peer that acknowledges nothing.
    let mut send = |lid, transaction, data| {
        let message = message(TABLE, transaction, data);
        rmpp.send(peer(lid), message, Delivery::default(), Duration::ZERO)
    };
    for number in 0..64 {
        assert_eq!(send(5, number, 100), Ok(()));
    }
    assert_eq!(send(5, 64, 100), Err(SendError::Busy));
    assert_eq!(send(6, 0, 100), Ok(()));
    assert_eq!(send(6, 0, 100), Err(SendError::Duplicate));
    assert_eq!(send(7, 0, MAX_MESSAGE), Err(SendError::Length));
    let most = MAX_MESSAGE - 56;
    let sent = (0..10).filter(|number| send(8, *number, most).is_ok());
    assert_eq!(sent.count(), 3, "with the others, four are too many");
}

#[test]
fn a_message_that_is_too_long_is_stopped() {
    // A peer that does not announce the length of its message.
    let mut rmpp = Rmpp::default();
    let (_, first) = sending(2000, Delivery::default());
    let mut number = 0;
    let said = loop {
        number += 1;
        let said = reaction(&mut rmpp, &first, |header| {
            header.segment = number;
            header.first = number == 1;
            header.length = 0;
        });
        match said.first().map(about) {
            Some((kind, ..)) if kind != Kind::ACK => break said,
            _ => {}
        }
    };
    assert_eq!(
        about(&said[0]),
        (Kind::STOP, RmppStatus::NO_RESOURCES, 0, 0)
    );
    assert_eq!(number as usize, (MAX_MESSAGE - 56).div_ceil(200));
    assert_eq!(rmpp.next_deadline(), None);
}

#[test]
fn only_some_classes_have_long_messages() {
    let lengths: Vec<_> = (0..=255).filter_map(header_length).collect();
    assert_eq!(lengths.len(), 3 + 32);
    for class in [class::SUBNET, class::PERFORMANCE, 0x2f, 0x50] {
        let mut mad = Box::new([0xff; MAD_LENGTH]);
        Header::request(class, Method::GET, 0, 0).write(&mut mad[..]);
        let mut rmpp = Rmpp::default();
        assert!(!rmpp.receive(peer(1), &mad, Duration::ZERO));
        let sent = rmpp.send(peer(1), mad.to_vec(), Delivery::default(), Duration::ZERO);
        assert_eq!(sent, Err(SendError::Class));
        assert_eq!(rmpp.output(), None);
    }
}

/// Two ends and a network between them.
struct Scene {
    ends: [Rmpp; 2],
    chance: ChaCha8Rng,
    /// How many of 256 MADs are lost, and how many arrive twice.
    lost: u8,
    twice: u8,
    /// Maximum milliseconds that a MAD is on the way.
    slowest: u32,
    now: Duration,
    order: u64,
    way: BTreeMap<(Duration, u64), (usize, Mad)>,
    /// Messages that each end received, and the results of those that it sent.
    received: [Vec<Vec<u8>>; 2],
    sent: [Vec<(u64, Result<(), RmppStatus>)>; 2],
}

impl Scene {
    fn new(seed: u64, lost: u8, twice: u8, slowest: u32) -> Self {
        Self {
            ends: [Rmpp::default(), Rmpp::default()],
            chance: ChaCha8Rng::seed_from_u64(seed),
            lost,
            twice,
            slowest,
            now: Duration::ZERO,
            order: 0,
            way: BTreeMap::new(),
            received: [Vec::new(), Vec::new()],
            sent: [Vec::new(), Vec::new()],
        }
    }

    fn send(&mut self, end: usize, message: Vec<u8>, delivery: Delivery) {
        self.ends[end]
            .send(peer(1), message, delivery, self.now)
            .expect("room");
    }

    /// Runs until nothing is left to do except to forget old messages.
    fn run(&mut self, end: Duration) {
        loop {
            for from in 0..2 {
                while let Some(output) = self.ends[from].output() {
                    match output {
                        Output::Transmit(_, mad) => self.transmit(1 - from, &mad),
                        Output::Message(_, message) => self.received[from].push(message),
                        Output::Sent { header, result, .. } => {
                            self.sent[from].push((header.transaction, result));
                        }
                    }
                }
            }
            let arrives = self.way.first_key_value().map(|((at, _), _)| *at);
            let deadlines = self.ends.iter().filter_map(Rmpp::next_deadline);
            let Some(next) = deadlines.chain(arrives).min().filter(|at| *at <= end) else {
                return;
            };
            self.now = next;
            if arrives == Some(next)
                && let Some((_, (to, mad))) = self.way.pop_first()
            {
                assert!(self.ends[to].receive(peer(1), &mad, next));
            } else {
                self.ends.iter_mut().for_each(|end| end.poll(next));
            }
        }
    }

    fn transmit(&mut self, to: usize, mad: &Mad) {
        let chance = |rng: &mut ChaCha8Rng, of: u8| rng.next_u32() % 256 < of.into();
        let copies = u32::from(chance(&mut self.chance, self.twice)) + 1;
        for _ in 0..copies {
            if !chance(&mut self.chance, self.lost) {
                let takes = self.chance.next_u32() % self.slowest + 1;
                self.order += 1;
                let at = self.now + MILLISECOND * takes;
                self.way.insert((at, self.order), (to, mad.clone()));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Each message that arrives is one that was sent, and arrives once. Each message that the sender reports as sent
    /// has arrived.
    #[test]
    fn a_message_arrives_whole_and_once(
        seed: u64, lengths in vec(0_usize..40_000, 1..4), lost in 0_u8..60, twice in 0_u8..60, slowest in 1_u32..40,
    ) {
        let mut scene = Scene::new(seed, lost, twice, slowest);
        let delivery = Delivery { interval: 50 * MILLISECOND, retries: 30, answered: false };
        let messages: Vec<_> = (1..).zip(&lengths).map(|(number, data)| message(TABLE, number, *data)).collect();
        for message in &messages {
            scene.send(0, message.clone(), delivery);
        }
        scene.run(40 * SECOND);
        let body = |message: &Vec<u8>| (message[8..16].to_vec(), message[36..].to_vec());
        let mut received: Vec<_> = scene.received[1].iter().map(body).collect();
        received.sort();
        let expected: Vec<_> = messages.iter().map(body).collect();
        prop_assert!(received == expected);
        let mut sent = scene.sent[0].clone();
        sent.sort();
        prop_assert_eq!(sent, (1..).zip(&lengths).map(|(number, _)| (number, Ok(()))).collect::<Vec<_>>());
        prop_assert_eq!(scene.received[0].len() + scene.sent[1].len(), 0);
        // Everything is forgotten in the end.
        for end in &mut scene.ends {
            end.poll(scene.now + 60 * SECOND);
            prop_assert_eq!(end.next_deadline(), None);
        }
    }

    /// With few retries on a bad network, a transfer may fail, and then the sender reports it.
    #[test]
    fn no_message_is_believed_to_have_arrived_that_did_not(seed: u64, data in 0_usize..10_000, lost in 0_u8..=255) {
        let mut scene = Scene::new(seed, lost, 0, 10);
        let delivery = Delivery { interval: 50 * MILLISECOND, retries: 1, answered: false };
        scene.send(0, message(TABLE, 1, data), delivery);
        scene.run(60 * SECOND);
        prop_assert_eq!(scene.sent[0].len(), 1);
        prop_assert!(scene.received[1].len() <= 1);
        if scene.sent[0][0].1.is_ok() {
            prop_assert_eq!(&scene.received[1][0][36..], &message(TABLE, 1, data)[36..]);
        }
    }

    /// Both a request and its response can have several segments.
    #[test]
    fn both_directions_can_be_long(seed: u64, asked in 0_usize..5000, answer in 0_usize..20_000, lost in 0_u8..40) {
        let mut scene = Scene::new(seed, lost, 0, 10);
        let delivery = Delivery { interval: 50 * MILLISECOND, retries: 30, answered: true };
        scene.send(0, message(MULTIPLE, 1, asked), delivery);
        scene.run(5 * SECOND);
        prop_assert_eq!(&scene.sent[0], &[(1, Ok(()))]);
        prop_assert_eq!(&scene.received[1][0][56..], &message(MULTIPLE, 1, asked)[56..]);
        scene.send(1, message(Method(MULTIPLE.0 | 0x80), 1, answer), Delivery { answered: false, ..delivery });
        scene.run(9 * SECOND);
        prop_assert_eq!(&scene.sent[1], &[(1, Ok(()))]);
        prop_assert_eq!(&scene.received[0][0][56..], &message(MULTIPLE, 1, answer)[56..]);
    }

    /// No sequence of MADs and times causes a panic.
    #[test]
    fn nothing_that_comes_panics(steps in vec((any::<[u8; 16]>(), 0_u32..8, 0_u32..4, any::<u16>(), 0_usize..3000), 1..60)) {
        let mut rmpp = Rmpp::default();
        let mut now = Duration::ZERO;
        for (bytes, kind, segment, time, data) in steps {
            now += MILLISECOND * u32::from(time);
            let mut mad = Box::new([bytes[0]; MAD_LENGTH]);
            let methods = [0x92, 0x12, 0x14, bytes[1]];
            let header = Header { transaction: (bytes[2] % 2).into(), ..Header::request([3, 3, 3, 0x10, bytes[3]][usize::from(bytes[4] % 5)], Method(methods[usize::from(bytes[5] % 4)]), 0x11, 0) };
            header.write(&mut mad[..]);
            let any = u32::from_be_bytes([bytes[6], bytes[7], bytes[8], bytes[9]]);
            let header = RmppHeader {
                version: bytes[10].max(254) - 253, kind: Kind(kind as u8 % 5), active: bytes[11] != 0, first: segment == 1, last: bytes[11] & 3 == 3,
                status: RmppStatus([0, 0, 0, bytes[12]][usize::from(bytes[13] % 4)]), segment: if kind == 7 { any } else { segment },
                length: [any, 20, 220, 65][usize::from(bytes[14] % 4)], response_time: 0,
            };
            header.write(&mut mad[..]);
            if bytes[15] < 64 {
                let mut message = mad.to_vec();
                message.resize(data, 5);
                let delivery = Delivery { interval: MILLISECOND * u32::from(bytes[14]), retries: any % 3, answered: bytes[13] & 4 != 0 };
                let _ = rmpp.send(peer(1), message, delivery, now);
            } else {
                rmpp.receive(peer(1), &mad, now);
            }
            rmpp.poll(now);
            let mut outputs = 0;
            while let Some(output) = rmpp.output() {
                outputs += 1;
                if let Output::Transmit(_, mad) = output {
                    prop_assert!(RmppHeader::read(&mad[..]).active);
                }
            }
            prop_assert!(outputs < 1000);
        }
    }
}
