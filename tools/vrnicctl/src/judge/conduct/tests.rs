// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
use std::net::{IpAddr, Ipv4Addr};

use vrnic_engine::segment::{
    AtomicKind, AtomicRequest, ECN_CAPABLE, ECN_MARKED, NO_CREDITS, Path, Payload, Reth, Service,
    Touched,
};
use vrnic_engine::{Segment, testing};
use vrnic_roce::encode;

use super::*;

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Numbers of the queue pairs.
const OURS: u32 = 0x11;
const THEIRS: u32 = 0x22;
/// The PSN at which all traffic starts; it wraps around soon.
const START: Psn = Psn::new(0xff_fffd);

/// Frames, each with the time in µs at which it passed.
#[derive(Default)]
struct Wire(Vec<(u64, Vec<u8>)>);

impl Wire {
    fn put(
        &mut self,
        time: u64,
        from: Requester,
        psn: u32,
        body: Body,
        payload: usize,
    ) -> &mut Self {
        self.marked(time, from, psn, body, payload, false)
    }

    fn marked(
        &mut self,
        time: u64,
        from: Requester,
        psn: u32,
        body: Body,
        payload: usize,
        marked: bool,
    ) -> &mut Self {
        let (source, destination, qpn) = match from {
            Requester::Here => (HERE, PEER, THEIRS),
            Requester::Peer => (PEER, HERE, OURS),
        };
        let bytes = vec![7; payload];
        let segment = Segment {
            path: Path {
                source: source.to_ipv6_mapped().octets(),
                destination: destination.to_ipv6_mapped().octets(),
                vlan: vrnic_wire::port::NO_VLAN,
                hop_limit: 64,
                traffic_class: if marked { ECN_MARKED } else { ECN_CAPABLE },
                source_port: 0xc000,
                ..Path::default()
            },
            source_qpn: 0,
            destination_qpn: qpn,
            pkey: 0xffff,
            psn: START.add(psn),
            solicited: false,
            ack_request: !body.is_response() && payload < 1024,
            migrated: true,
            service: Service::Reliable,
            body,
            payload: Payload::Bytes(bytes),
            checksums_ok: false,
            touched: Touched::NOT,
        };
        let mut frame = vec![0; 8192];
        let length =
            encode(&segment, &testing::Memories::new().add(0), &mut frame).expect("a frame");
        frame.truncate(length);
        self.0.push((time, frame));
        self
    }

    fn judge(&mut self, timeout: Option<u8>) -> Vec<Finding> {
        self.0.sort_by_key(|(time, _)| *time);
        let frames = self
            .0
            .iter()
            .map(|(time, frame)| (Duration::from_micros(*time), &frame[..]));
        judge(&Trace::of_frames(frames, IpAddr::V4(PEER)), timeout)
    }
}

/// Returns a packet of a write that consists of three packets.
fn write(index: u32) -> Body {
    Body::Write {
        position: Position::of(index % 3, 3),
        reth: index.is_multiple_of(3).then_some(Reth {
            address: 0x1000,
            rkey: 9,
            length: 2560,
        }),
        immediate: None,
    }
}

fn size(index: u32) -> usize {
    if index % 3 == 2 { 512 } else { 1024 }
}

fn answer(syndrome: Syndrome, msn: u32) -> Body {
    Body::Acknowledge(Aeth { syndrome, msn })
}

const ACK: Syndrome = Syndrome::Ack {
    credits: NO_CREDITS,
};
const SEQUENCE: Syndrome = Syndrome::Nak(NakCode::SequenceError);

fn texts(findings: &[Finding], judgement: Judgement) -> Vec<&str> {
    let wanted = |finding: &&Finding| finding.judgement == judgement;
    findings
        .iter()
        .filter(wanted)
        .map(|finding| &finding.text[..])
        .collect()
}

#[track_caller]
fn says(findings: &[Finding], judgement: Judgement, words: &str) {
    let texts = texts(findings, judgement);
    assert!(
        texts.iter().any(|text| text.contains(words)),
        "{words:?} is not in {texts:?}"
    );
}

#[track_caller]
fn is_clean(findings: &[Finding]) {
    assert_eq!(texts(findings, Judgement::Violation), [""; 0]);
    assert_eq!(texts(findings, Judgement::Remark), [""; 0]);
}

/// The peer sends six packets, the second of which is lost on its way to us, and gets a NAK.
fn peer_lost_one() -> Wire {
    let mut wire = Wire::default();
    for index in 0..6 {
        wire.put(
            index.into(),
            Requester::Peer,
            index,
            write(index),
            size(index),
        );
    }
    wire.put(10, Requester::Here, 1, answer(SEQUENCE, 0), 0);
    wire
}

#[test]
fn a_peer_that_goes_back_to_the_lost_packet() {
    let mut wire = peer_lost_one();
    for index in 1..6 {
        wire.put(
            20 + u64::from(index),
            Requester::Peer,
            index,
            write(index),
            size(index),
        );
    }
    wire.put(40, Requester::Here, 5, answer(ACK, 2), 0);
    let findings = wire.judge(Some(14));
    is_clean(&findings);
    says(&findings, Judgement::Observed, "go-back-N");
    says(&findings, Judgement::Observed, "(once, after 11.00µs)");
    says(
        &findings,
        Judgement::Observed,
        "at most 6 packets of up to 1024 bytes unacknowledged",
    );
    says(
        &findings,
        Judgement::Observed,
        "4 of 11 packets, in 4 messages",
    );
}

#[test]
fn a_peer_that_sends_the_lost_packet_only() {
    let mut wire = peer_lost_one();
    wire.put(20, Requester::Peer, 1, write(1), size(1));
    wire.put(30, Requester::Here, 5, answer(ACK, 2), 0);
    wire.put(40, Requester::Peer, 6, write(6), size(6));
    says(&wire.judge(None), Judgement::Observed, "selective");
}

#[test]
fn a_peer_that_goes_back_twice_at_once() {
    let mut wire = peer_lost_one();
    for (time, index) in [(20, 1), (21, 2), (23, 1), (24, 2), (25, 3)] {
        wire.put(time, Requester::Peer, index, write(index), size(index));
    }
    let findings = wire.judge(Some(14));
    is_clean(&findings);
    assert!(
        !texts(&findings, Judgement::Observed)
            .iter()
            .any(|text| text.contains("timer"))
    );
}

#[test]
fn a_peer_that_asks_again_for_a_response() {
    let read = |length| {
        Body::ReadRequest(Reth {
            address: 0x1000,
            rkey: 9,
            length,
        })
    };
    let response = |position| Body::ReadResponse {
        position,
        aeth: (position != Position::Middle).then_some(Aeth {
            syndrome: ACK,
            msn: 1,
        }),
    };
    let mut wire = Wire::default();
    wire.put(0, Requester::Peer, 0, read(3072), 0);
    // The middle response is lost.
    wire.put(5, Requester::Here, 0, response(Position::First), 1024);
    wire.put(7, Requester::Here, 2, response(Position::Last), 1024);
    // A new request comes first.
    wire.put(9, Requester::Peer, 3, read(1024), 0);
    wire.put(10, Requester::Peer, 1, read(2048), 0);
    let findings = wire.judge(Some(14));
    is_clean(&findings);
    says(
        &findings,
        Judgement::Observed,
        "it asks again 3.00µs after a later response",
    );
}

#[test]
fn timers_are_held_against_what_they_are_set_to() {
    let again = |after: u64| {
        let mut wire = Wire::default();
        for index in 0..3 {
            wire.put(
                index.into(),
                Requester::Peer,
                index,
                write(index),
                size(index),
            );
        }
        for index in 0..3 {
            wire.put(
                after + u64::from(index),
                Requester::Peer,
                index,
                write(index),
                size(index),
            );
        }
        wire.put(after + 10, Requester::Here, 2, answer(ACK, 1), 0);
        // 4.096 µs times 2 to the 8: 1.05 ms.
        wire.judge(Some(8))
    };
    says(&again(900), Judgement::Violation, "but it is set to 1.0ms");
    is_clean(&again(1500));
    says(
        &again(1500),
        Judgement::Observed,
        "its ACK timer expires after 1.50ms",
    );
    says(&again(5000), Judgement::Remark, "more than four times");
}

#[test]
fn a_peer_waits_as_long_as_an_rnr_nak_says() {
    let again = |after: u64| {
        let mut wire = Wire::default();
        wire.put(0, Requester::Peer, 0, write(0), 1024);
        wire.put(
            10,
            Requester::Here,
            0,
            answer(Syndrome::RnrNak { timer: 12 }, 0),
            0,
        );
        wire.put(10 + after, Requester::Peer, 0, write(0), 1024);
        wire.judge(None)
    };
    is_clean(&again(640));
    says(
        &again(640),
        Judgement::Observed,
        "asks for 640.00µs it waits 640.00µs",
    );
    says(
        &again(639),
        Judgement::Violation,
        "asks for 640.00µs it waits 639.00µs",
    );
}

/// We send six packets, of which the second is lost, and the peer sends a NAK.
fn we_lost_one(naks: u32) -> Wire {
    let mut wire = Wire::default();
    for index in [0, 2, 3, 4, 5] {
        wire.put(
            index.into(),
            Requester::Here,
            index,
            write(index),
            size(index),
        );
    }
    for nak in 0..naks {
        wire.put(
            10 + u64::from(nak),
            Requester::Peer,
            1,
            answer(SEQUENCE, 0),
            0,
        );
    }
    wire
}

#[test]
fn a_peer_tells_of_a_gap_once() {
    let mut wire = we_lost_one(1);
    for index in 1..6 {
        wire.put(
            20 + u64::from(index),
            Requester::Here,
            index,
            write(index),
            size(index),
        );
    }
    wire.put(40, Requester::Peer, 5, answer(ACK, 2), 0);
    let findings = wire.judge(None);
    is_clean(&findings);
    says(
        &findings,
        Judgement::Observed,
        "it reports a gap with a NAK after 8.00µs",
    );
    says(
        &findings,
        Judgement::Observed,
        "nothing shows that it keeps",
    );

    let mut wire = we_lost_one(2);
    wire.put(20, Requester::Here, 1, write(1), size(1));
    says(&wire.judge(None), Judgement::Violation, "repeats its NAK");
}

#[test]
fn a_peer_that_keeps_what_comes_behind_a_gap() {
    let mut wire = we_lost_one(1);
    wire.put(20, Requester::Here, 1, write(1), size(1));
    wire.put(30, Requester::Peer, 5, answer(ACK, 2), 0);
    let findings = wire.judge(None);
    is_clean(&findings);
    says(
        &findings,
        Judgement::Observed,
        "it keeps packets that arrive after a gap",
    );
}

#[test]
fn a_nak_of_another_packet_than_the_missing_one() {
    let mut wire = we_lost_one(0);
    wire.put(10, Requester::Peer, 2, answer(SEQUENCE, 0), 0);
    wire.put(20, Requester::Here, 1, write(1), size(1));
    says(
        &wire.judge(None),
        Judgement::Violation,
        "does not name the first missing packet",
    );
}

#[test]
fn an_atomic_that_comes_twice() {
    let atomic = Body::AtomicRequest(AtomicRequest {
        kind: AtomicKind::FetchAdd,
        address: 0x1000,
        rkey: 9,
        compare_add: 1,
        swap: 0,
    });
    let answered = |second: u64| {
        let aeth = Aeth {
            syndrome: ACK,
            msn: 1,
        };
        let reply = |original| Body::AtomicAcknowledge { aeth, original };
        let mut wire = Wire::default();
        wire.put(0, Requester::Here, 0, atomic, 0)
            .put(1, Requester::Peer, 0, reply(7), 0);
        wire.put(2, Requester::Here, 0, atomic, 0)
            .put(3, Requester::Peer, 0, reply(second), 0);
        wire.judge(None)
    };
    is_clean(&answered(7));
    says(
        &answered(7),
        Judgement::Observed,
        "with the result that it kept",
    );
    says(
        &answered(8),
        Judgement::Violation,
        "executes a repeated atomic again",
    );
}

#[test]
fn marked_packets_and_their_notifications() {
    let mut wire = Wire::default();
    for index in 0..3 {
        wire.marked(
            index.into(),
            Requester::Here,
            index,
            write(index),
            size(index),
            true,
        );
    }
    wire.put(5, Requester::Peer, 2, answer(ACK, 1), 0);
    says(
        &wire.judge(None),
        Judgement::Remark,
        "no CNP for 3 marked packets",
    );
    wire.put(6, Requester::Peer, 0, Body::CongestionNotification, 0);
    wire.put(56, Requester::Peer, 0, Body::CongestionNotification, 0);
    let findings = wire.judge(None);
    is_clean(&findings);
    says(
        &findings,
        Judgement::Observed,
        "2 CNPs for 3 marked packets, at least 50.0µs apart",
    );
}

#[test]
fn a_peer_that_slows_down_when_it_is_told_of_congestion() {
    let told = |count: u32, slower: u64| {
        let mut wire = Wire::default();
        for index in 0..count {
            wire.put(
                index.into(),
                Requester::Peer,
                index,
                write(index),
                size(index),
            );
        }
        wire.put(5, Requester::Here, 0, answer(ACK, 0), 0);
        let start = u64::from(count);
        wire.put(start, Requester::Here, 0, Body::CongestionNotification, 0);
        for index in count..2 * count {
            let time = start + 1 + u64::from(index - count) * slower;
            wire.put(time, Requester::Peer, index, write(index), size(index));
        }
        wire.judge(None)
    };
    says(
        &told(300, 2),
        Judgement::Observed,
        "after the first of 1 CNPs, it sends at 50 % of its earlier rate",
    );
    says(
        &told(30, 2),
        Judgement::Observed,
        "too few packets to compare its rates: 30 before the first of 1 CNPs and 30 after it, of which 200 each are \
         needed",
    );
}

#[test]
fn what_no_peer_may_send() {
    let mut wire = Wire::default();
    for index in 0..3 {
        wire.put(
            index.into(),
            Requester::Here,
            index,
            write(index),
            size(index),
        );
    }
    wire.put(4, Requester::Peer, 0, answer(ACK, 3), 0);
    wire.put(5, Requester::Peer, 2, answer(ACK, 1), 0);
    wire.put(6, Requester::Peer, 900, answer(ACK, 4), 0);
    let findings = wire.judge(None);
    says(&findings, Judgement::Violation, "sequence number goes back");
    says(
        &findings,
        Judgement::Violation,
        "one response to no request that was sent",
    );

    let mut wire = Wire::default();
    wire.put(0, Requester::Peer, 0, write(0), 1024)
        .put(1, Requester::Peer, 1, write(1), 1000);
    says(
        &wire.judge(None),
        Judgement::Violation,
        "not full (1024 bytes)",
    );
    let last = wire.0.last_mut().expect("two frames");
    let end = last.1.len() - 1;
    last.1[end] ^= 1;
    says(
        &wire.judge(None),
        Judgement::Violation,
        "one malformed frame",
    );
}
