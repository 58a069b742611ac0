// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Deduces from the packets of a connection how the peer behaves. Clauses are those of IBTA volume 1.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use vrnic_engine::psn::Psn;
use vrnic_engine::segment::{Aeth, Body, NakCode, Position, Syndrome};
use vrnic_engine::{ack_timeout, rnr_timeout};

use super::packet::{Half, Packet, Requester, Trace};

/// Largest number of packets that a finding lists.
const EVIDENCE: usize = 8;
/// The ACK timer may take up to this many times its configured time (9.7.6.1.3).
const TIMER_SLACK: u32 = 4;

/// Number of packets before and after the first CNP from which on a rate is meaningful.
const RATE_PACKETS: usize = 200;
/// Packets closer together than this form a burst: no timer expires between them.
const BURST: Duration = Duration::from_millis(1);

/// Kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The standard forbids it.
    Violation,
    /// The standard allows it, but existing hardware behaves differently, or it costs time.
    Remark,
    /// A neutral observation.
    Observed,
}

/// A finding about the peer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Violation, remark or observation.
    pub judgement: Judgement,
    /// The part of the transport concerned.
    pub topic: &'static str,
    /// Description of the peer's behaviour.
    pub text: String,
    /// Clause of the standard, if one applies.
    pub clause: &'static str,
    /// Numbers of the packets in the capture that show it.
    pub packets: Vec<usize>,
}

/// Collects findings.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(
        &mut self,
        judgement: Judgement,
        topic: &'static str,
        clause: &'static str,
        packets: impl IntoIterator<Item = usize>,
        text: String,
    ) {
        self.0.push(Finding {
            judgement,
            topic,
            text,
            clause,
            packets: packets.into_iter().take(EVIDENCE).collect(),
        });
    }
}

/// Judges the peer's packets in a capture. `timeout` is the peer's local ACK timeout field, if known.
pub fn judge(trace: &Trace, timeout: Option<u8>) -> Vec<Finding> {
    let mut findings = Findings::default();
    if let Some(first) = trace.malformed.first() {
        let packets = trace.malformed.iter().map(|frame| frame.number);
        let text = format!(
            "{}; the first one: {}",
            count(trace.malformed.len(), "malformed frame"),
            first.error
        );
        findings.add(Judgement::Violation, "frames", "9.2", packets, text);
    }
    for half in &trace.halves {
        match half.requester {
            Requester::Peer => {
                retransmissions(half, timeout, &mut findings);
                messages(half, &mut findings);
                acknowledgement_requests(half, &mut findings);
                reaction_to_congestion(half, &mut findings);
            }
            Requester::Here => {
                acknowledgements(half, &mut findings);
                gaps(half, &mut findings);
                duplicates(half, &mut findings);
                message_numbers(half, &mut findings);
            }
        }
    }
    congestion_notifications(trace, &mut findings);
    findings.0.sort_by_key(|finding| finding.judgement);
    findings.0
}

/// Returns the AETH of a response, if it has one.
fn aeth(packet: &Packet) -> Option<Aeth> {
    match &packet.body {
        Body::Acknowledge(aeth) | Body::AtomicAcknowledge { aeth, .. } => Some(*aeth),
        Body::ReadResponse { aeth, .. } => *aeth,
        _ => None,
    }
}

fn syndrome(packet: &Packet) -> Option<Syndrome> {
    aeth(packet).map(|aeth| aeth.syndrome)
}

/// Why a requester sent packets again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Sequence,
    Rnr(u8),
    Timer,
    /// A response arrived that was not the one expected next, so a response is missing.
    MissingResponse,
}

/// An occasion on which the requester went back.
struct Episode<'a> {
    cause: Cause,
    /// Time since the cause, or since the last sign of progress.
    delay: Duration,
    /// Number of packets sent again before new ones, or before the requester went back once more.
    again: u32,
    /// Number of packets outstanding, counted from the first one sent again.
    outstanding: u32,
    first: &'a Packet,
}

/// Returns the occasions on which the requester went back to packets that it had sent before. Packets that it sends
/// within `burst` after the previous one, and without a response in between, belong to the same occasion.
fn episodes(half: &Half, burst: Duration) -> Vec<Episode<'_>> {
    let mut all: Vec<Episode<'_>> = Vec::new();
    let mut responses = half.responses.iter().peekable();
    // The latest response, and when requests or responses last made progress.
    let mut last: Option<&Packet> = None;
    let mut furthest: Option<&Packet> = None;
    let mut moved = Duration::ZERO;
    let mut acknowledged: Option<Psn> = None;
    let mut fresh: Option<Psn> = None;
    let mut previous: Option<Psn> = None;
    let mut sent = Duration::ZERO;
    for request in &half.requests {
        let at_once = last.is_none() && request.time.saturating_sub(sent) < burst;
        sent = request.time;
        let mut answered = false;
        while let Some(response) = responses.next_if(|response| response.time <= request.time) {
            last = Some(response);
            answered = true;
            if furthest.is_none_or(|before| response.psn.distance_from(before.psn) > 0) {
                furthest = Some(response);
            }
            let positive = matches!(syndrome(response), Some(Syndrome::Ack { .. }) | None);
            if positive && acknowledged.is_none_or(|psn| response.psn.distance_from(psn) > 0) {
                acknowledged = Some(response.psn);
                moved = response.time;
            }
        }
        let behind = half.psn_behind(request);
        let Some(end) = fresh else {
            fresh = Some(behind);
            previous = Some(behind);
            moved = request.time;
            continue;
        };
        if request.psn.distance_from(end) >= 0 {
            fresh = Some(behind);
            // Only the first packet after a pause restarts the timer.
            if acknowledged.is_some_and(|psn| psn.add(1) == request.psn) {
                moved = request.time;
            }
        } else {
            let goes_on = previous == Some(request.psn) || at_once && !answered;
            if goes_on && let Some(episode) = all.last_mut() {
                episode.again += behind.packets_since(request.psn);
            } else {
                let recent = last.filter(|response| response.time >= moved);
                let skipped = furthest.filter(|response| {
                    request.body.has_response() && response.psn.distance_from(request.psn) > 0
                });
                let (cause, since) = match recent.map(|response| (syndrome(response), response)) {
                    Some((Some(Syndrome::Nak(NakCode::SequenceError)), nak)) => {
                        (Cause::Sequence, nak.time)
                    }
                    Some((Some(Syndrome::RnrNak { timer }), nak)) => (Cause::Rnr(timer), nak.time),
                    // Responses that come after the one requested have already arrived.
                    _ => match skipped {
                        Some(response) => (Cause::MissingResponse, response.time),
                        None => (Cause::Timer, moved),
                    },
                };
                all.push(Episode {
                    cause,
                    delay: request.time.saturating_sub(since),
                    again: behind.packets_since(request.psn),
                    outstanding: end.packets_since(request.psn),
                    first: request,
                });
                // The cause has been dealt with, and the timer restarts.
                last = None;
                moved = request.time;
            }
        }
        previous = Some(behind);
    }
    all
}

/// Examines what the peer sends again, and how soon.
fn retransmissions(half: &Half, timeout: Option<u8>, findings: &mut Findings) {
    const TOPIC: &str = "retransmission";
    let burst = timeout
        .and_then(ack_timeout)
        .map_or(BURST, |set| set.min(BURST));
    let all = episodes(half, burst);
    let of = |wanted: &dyn Fn(&Episode<'_>) -> bool| -> Vec<&Episode<'_>> {
        all.iter().filter(|episode| wanted(episode)).collect()
    };
    let mut tell =
        |judgement, topic, clause, episodes: &[&Episode<'_>], text: &dyn Fn(&str) -> String| {
            if !episodes.is_empty() {
                let packets = episodes.iter().map(|episode| episode.first.number);
                let delays = range(episodes.iter().map(|episode| episode.delay));
                findings.add(judgement, topic, clause, packets, text(&delays));
            }
        };
    let observed = Judgement::Observed;

    let wide = of(&|one| one.cause == Cause::Sequence && one.outstanding > 1);
    let back = wide.iter().filter(|one| one.again >= one.outstanding);
    let single = wide.iter().filter(|one| one.again == 1);
    let manner = if back.count() * 2 > wide.len() {
        "go-back-N: it resends everything from the missing packet on"
    } else if single.count() * 2 > wide.len() {
        "selective: it resends only the missing packet"
    } else {
        "between go-back-N and selective"
    };
    tell(observed, TOPIC, "9.7.5.2", &wide, &|delays| {
        let times = often(wide.len());
        format!("after a NAK for a sequence error: {manner} ({times}, after {delays})")
    });
    if wide.is_empty() {
        let narrow = of(&|one| one.cause == Cause::Sequence);
        tell(observed, TOPIC, "9.7.5.2", &narrow, &|delays| {
            format!("it sends the packet again {delays} after a NAK for a sequence error")
        });
    }
    let missing = of(&|one| one.cause == Cause::MissingResponse);
    tell(observed, TOPIC, "9.7.5.2", &missing, &|delays| {
        format!("it asks again {delays} after a later response showed that one is missing")
    });

    let timer = of(&|one| one.cause == Cause::Timer);
    let expires = |delays: &str| format!("its ACK timer expires after {delays}");
    tell(observed, TOPIC, "9.7.6.1.3", &timer, &expires);
    if let Some(set) = timeout.and_then(ack_timeout) {
        let early = of(&|one| one.cause == Cause::Timer && one.delay < set);
        tell(
            Judgement::Violation,
            TOPIC,
            "9.7.6.1.3",
            &early,
            &|delays| format!("{}, but it is set to {set:.1?}", expires(delays)),
        );
        let late = of(&|one| one.cause == Cause::Timer && one.delay > set * TIMER_SLACK);
        tell(Judgement::Remark, TOPIC, "9.7.6.1.3", &late, &|delays| {
            format!(
                "{}, more than four times the {set:.1?} it is set to",
                expires(delays)
            )
        });
    }

    let codes = all.iter().filter_map(|episode| match episode.cause {
        Cause::Rnr(code) => Some(code),
        _ => None,
    });
    for code in codes.collect::<BTreeSet<_>>() {
        let wanted = rnr_timeout(code);
        let waits =
            |delays: &str| format!("after an RNR NAK that asks for {wanted:.2?} it waits {delays}");
        let early = of(&|one| one.cause == Cause::Rnr(code) && one.delay < wanted);
        tell(Judgement::Violation, "RNR", "9.7.5.2", &early, &waits);
        if early.is_empty() {
            tell(
                observed,
                "RNR",
                "9.7.5.2",
                &of(&|one| one.cause == Cause::Rnr(code)),
                &waits,
            );
        }
    }
}

/// Checks the packets of the peer's messages.
fn messages(half: &Half, findings: &mut Findings) {
    const TOPIC: &str = "messages";
    let mut short = Vec::new();
    let mut skipped = Vec::new();
    let mut next: Option<Psn> = None;
    for request in &half.requests {
        if let Body::Send { position, .. } | Body::Write { position, .. } = &request.body
            && matches!(position, Position::First | Position::Middle)
            && request.payload != half.mtu
        {
            short.push(request.number);
        }
        let behind = half.psn_behind(request);
        match next {
            Some(expected) if request.psn.distance_from(expected) > 0 => {
                skipped.push(request.number);
                next = Some(behind);
            }
            Some(expected) if behind.distance_from(expected) <= 0 => {}
            _ => next = Some(behind),
        }
    }
    if !short.is_empty() {
        let text = format!(
            "{} not full ({} bytes), although more packets of the message follow",
            count(short.len(), "packet"),
            half.mtu
        );
        findings.add(Judgement::Violation, TOPIC, "9.7.2", short, text);
    }
    if !skipped.is_empty() {
        let text = format!(
            "the PSN skips packets before {}; the network may have lost them",
            count(skipped.len(), "packet")
        );
        findings.add(Judgement::Remark, TOPIC, "9.7.2", skipped, text);
    }
    let most = most_outstanding(half);
    let text = format!(
        "at most {} of up to {} unacknowledged",
        count(most as usize, "packet"),
        count(half.mtu as usize, "byte")
    );
    findings.add(Judgement::Observed, "window", "", [], text);
}

/// Returns the largest number of unacknowledged packets that the requester had outstanding.
fn most_outstanding(half: &Half) -> u32 {
    let mut responses = half.responses.iter().peekable();
    let mut acknowledged: Option<Psn> = None;
    let mut most = 0;
    for request in &half.requests {
        let known = acknowledged.get_or_insert(request.psn.previous());
        while let Some(response) = responses.next_if(|response| response.time <= request.time) {
            let through = match syndrome(response) {
                Some(Syndrome::Ack { .. }) | None => response.psn,
                Some(_) => response.psn.previous(),
            };
            if through.distance_from(*known) > 0 {
                *known = through;
            }
        }
        let outstanding = half.last_psn(request).distance_from(*known);
        most = most.max(u32::try_from(outstanding).unwrap_or(0));
    }
    most
}

/// Examines how often the peer requests acknowledgements.
fn acknowledgement_requests(half: &Half, findings: &mut Findings) {
    let counted = |request: &&Packet| !request.body.has_response();
    let packets = half.requests.iter().filter(counted).count();
    let asking = half
        .requests
        .iter()
        .filter(counted)
        .filter(|one| one.ack_request);
    let asking: Vec<_> = asking.map(|request| request.number).collect();
    if packets == 0 {
        return;
    }
    let ends = half
        .requests
        .iter()
        .filter(counted)
        .filter(|one| one.ends_message());
    let text = if asking.is_empty() {
        format!(
            "it asks for no acknowledgement of {}",
            count(packets, "packet")
        )
    } else {
        format!(
            "it asks for an acknowledgement with {} of {}, in {}",
            asking.len(),
            count(packets, "packet"),
            count(ends.count(), "message")
        )
    };
    findings.add(Judgement::Observed, "ACK requests", "9.7.5.1", asking, text);
}

/// Examines how often and how soon the peer acknowledges.
fn acknowledgements(half: &Half, findings: &mut Findings) {
    const TOPIC: &str = "ACKs";
    let acks: Vec<_> = half
        .responses
        .iter()
        .filter(|packet| matches!(packet.body, Body::Acknowledge(aeth) if matches!(aeth.syndrome, Syndrome::Ack { .. })))
        .collect();
    let messages = half
        .requests
        .iter()
        .filter(|request| !request.body.has_response() && request.ends_message())
        .count();
    if messages > 0 {
        let credits: BTreeSet<u8> = acks
            .iter()
            .filter_map(|ack| match syndrome(ack) {
                Some(Syndrome::Ack { credits }) => Some(credits),
                _ => None,
            })
            .collect();
        let counted = match (credits.len(), credits.contains(&31)) {
            (0, _) => String::new(),
            (1, true) => "; it does not count credits".to_owned(),
            _ => "; it counts credits".to_owned(),
        };
        let text = format!(
            "{} for {}{counted}",
            count(acks.len(), "ACK"),
            count(messages, "message")
        );
        let numbers = acks.iter().map(|ack| ack.number);
        findings.add(Judgement::Observed, TOPIC, "9.7.5.1", numbers, text);
    }

    // A request that asks for an acknowledgement gets one, unless an earlier request was lost or refused.
    let (mut waits, mut unanswered) = (Vec::new(), Vec::new());
    for request in half.requests.iter().filter(|request| request.ack_request) {
        let last = half.last_psn(request);
        let answer = half
            .responses
            .iter()
            .find(|one| one.time >= request.time && one.psn.distance_from(last) >= 0);
        match answer {
            Some(answer) => waits.push(answer.time.saturating_sub(request.time)),
            None => unanswered.push(request.number),
        }
    }
    waits.sort_unstable();
    if let Some(median) = waits.get(waits.len() / 2) {
        let longest = waits.last().unwrap_or(median);
        let text = format!(
            "it answers a packet that asks for an ACK within {median:.1?} (median), at most {longest:.1?}"
        );
        findings.add(Judgement::Observed, TOPIC, "9.7.5.1", [], text);
    }
    if !unanswered.is_empty() {
        let text = format!(
            "{} with a request for an ACK and no answer; the network may have lost them",
            count(unanswered.len(), "packet")
        );
        findings.add(Judgement::Remark, TOPIC, "9.7.5.1", unanswered, text);
    }

    // Every response must be to a PSN between the first request and the furthest one sent so far.
    let mut requests = half.requests.iter().peekable();
    let mut sent: Option<(Psn, Psn)> = None;
    let mut stray = Vec::new();
    for response in &half.responses {
        while let Some(request) = requests.next_if(|request| request.time <= response.time) {
            let last = half.last_psn(request);
            let (first, furthest) = sent.unwrap_or((request.psn, last));
            let ahead = last.distance_from(furthest) > 0;
            sent = Some((first, if ahead { last } else { furthest }));
        }
        let answers = sent.is_some_and(|(first, furthest)| {
            response.psn.distance_from(first) >= 0 && response.psn.distance_from(furthest) <= 0
        });
        if !answers {
            stray.push(response.number);
        }
    }
    if !stray.is_empty() {
        let text = format!(
            "{} to no request that was sent",
            count(stray.len(), "response")
        );
        findings.add(Judgement::Violation, TOPIC, "9.7.5.1", stray, text);
    }
}

/// Examines what the peer does when packets are missing.
fn gaps(half: &Half, findings: &mut Findings) {
    const TOPIC: &str = "lost requests";
    let (mut told, mut repeated, mut silent, mut wrong) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    let mut expected: Option<Psn> = None;
    for (index, request) in half.requests.iter().enumerate() {
        let behind = half.psn_behind(request);
        let Some(next) = expected else {
            expected = Some(behind);
            continue;
        };
        if request.psn.distance_from(next) <= 0 {
            if behind.distance_from(next) > 0 {
                expected = Some(behind);
            }
            continue;
        }
        // Packets from `next` on are missing. They are sent again later, or never.
        let later = &half.requests[index..];
        let filled = later.iter().find(|one| {
            one.psn.distance_from(next) <= 0 && half.last_psn(one).distance_from(next) >= 0
        });
        let until = filled.map_or(Duration::MAX, |one| one.time);
        let naks: Vec<_> = half
            .responses
            .iter()
            .filter(|one| one.time >= request.time)
            .filter(|one| syndrome(one) == Some(Syndrome::Nak(NakCode::SequenceError)))
            .collect();
        // If the packets were merely late, they fill the gap before the NAK arrives.
        match naks.iter().find(|one| one.time <= until || one.psn == next) {
            None => silent.push(request.number),
            Some(nak) => {
                told.push((nak.time.saturating_sub(request.time), nak.number));
                let early = naks.iter().filter(|one| one.time <= until);
                let (right, others): (Vec<&&Packet>, Vec<&&Packet>) =
                    early.partition(|one| one.psn == next);
                repeated.extend(right.iter().skip(1).map(|one| one.number));
                wrong.extend(others.iter().map(|one| one.number));
            }
        }
        if let Some(filled) = filled {
            // If the peer kept the packets that came early, its first ACK after the missing packet acknowledges more
            // than had been sent again by then.
            let ack = half.responses.iter().find(|one| {
                one.time > filled.time
                    && matches!(syndrome(one), Some(Syndrome::Ack { .. }))
                    && one.psn.distance_from(next) >= 0
            });
            if let Some(ack) = ack {
                let resent = later
                    .iter()
                    .filter(|one| one.time >= filled.time && one.time <= ack.time)
                    .map(|one| half.last_psn(one))
                    .reduce(|most, psn| {
                        if psn.distance_from(most) > 0 {
                            psn
                        } else {
                            most
                        }
                    });
                if resent.is_some_and(|psn| ack.psn.distance_from(psn) > 0) {
                    kept.push(ack.number);
                } else {
                    dropped.push(ack.number);
                }
            }
        }
        expected = Some(behind);
    }
    if !told.is_empty() {
        let text = format!(
            "it reports a gap with a NAK after {} ({})",
            range(told.iter().map(|(delay, _)| *delay)),
            often(told.len())
        );
        let numbers = told.iter().map(|(_, number)| *number);
        findings.add(Judgement::Observed, TOPIC, "9.7.5.2", numbers, text);
    }
    if !wrong.is_empty() {
        let text = "its NAK does not name the first missing packet".to_owned();
        findings.add(Judgement::Violation, TOPIC, "9.7.5.2", wrong, text);
    }
    if !repeated.is_empty() {
        let text = format!(
            "it repeats its NAK for the same gap ({})",
            often(repeated.len())
        );
        findings.add(Judgement::Violation, TOPIC, "9.7.5.2", repeated, text);
    }
    if !silent.is_empty() {
        let text = format!(
            "{} without a NAK; the network may also have lost the packets that follow",
            count(silent.len(), "gap")
        );
        findings.add(Judgement::Remark, TOPIC, "9.7.5.2", silent, text);
    }
    if !kept.is_empty() {
        let text =
            "it keeps packets that arrive after a gap: its ACK covers packets that were not resent"
                .to_owned();
        findings.add(Judgement::Observed, TOPIC, "9.7.5.2", kept, text);
    } else if !dropped.is_empty() {
        let text = "nothing shows that it keeps packets that arrive after a gap".to_owned();
        findings.add(Judgement::Observed, TOPIC, "9.7.5.2", dropped, text);
    }
}

/// Examines how the peer treats a request that it has already executed.
fn duplicates(half: &Half, findings: &mut Findings) {
    const TOPIC: &str = "duplicate requests";
    let mut seen: BTreeMap<u32, Duration> = BTreeMap::new();
    let (mut answered, mut silent) = (Vec::new(), Vec::new());
    for request in &half.requests {
        let before = seen.insert(request.psn.raw(), request.time);
        // Only requests that were answered are known to have been executed.
        let Some(executed) = before.and_then(|before| {
            half.responses.iter().find(|one| {
                one.time >= before
                    && one.time <= request.time
                    && matches!(syndrome(one), Some(Syndrome::Ack { .. }) | None)
                    && one.psn.distance_from(half.last_psn(request)) >= 0
            })
        }) else {
            continue;
        };
        let again = half.responses.iter().any(|one| {
            one.time >= request.time
                && one.number != executed.number
                && one.psn.distance_from(request.psn) >= 0
        });
        let list = if again { &mut answered } else { &mut silent };
        list.push(request.number);
    }
    if !answered.is_empty() {
        let text = format!(
            "it answers a repeated request that it had already executed ({})",
            often(answered.len())
        );
        findings.add(Judgement::Observed, TOPIC, "9.7.5.1", answered, text);
    }
    if !silent.is_empty() {
        let text = format!(
            "{} that it had already executed, repeated without an answer",
            count(silent.len(), "request")
        );
        findings.add(Judgement::Remark, TOPIC, "9.7.5.1", silent, text);
    }

    let mut originals: BTreeMap<u32, u64> = BTreeMap::new();
    let (mut same, mut other) = (Vec::new(), Vec::new());
    for response in &half.responses {
        if let Body::AtomicAcknowledge { original, .. } = response.body
            && let Some(before) = originals.insert(response.psn.raw(), original)
        {
            let list = if before == original {
                &mut same
            } else {
                &mut other
            };
            list.push(response.number);
        }
    }
    if !same.is_empty() {
        let text = format!(
            "it answers a repeated atomic with the result that it kept ({})",
            often(same.len())
        );
        findings.add(Judgement::Observed, TOPIC, "9.4.5", same, text);
    }
    if !other.is_empty() {
        let text = format!(
            "it executes a repeated atomic again ({})",
            often(other.len())
        );
        findings.add(Judgement::Violation, TOPIC, "9.4.5", other, text);
    }
}

/// Checks that the message sequence numbers of the peer grow as messages complete.
fn message_numbers(half: &Half, findings: &mut Findings) {
    let mut highest: Option<(Psn, Psn)> = None;
    let mut wrong = Vec::new();
    for response in &half.responses {
        let Some(aeth) = aeth(response) else { continue };
        // MSNs wrap around as PSNs do.
        let msn = Psn::new(aeth.msn);
        if let Some((psn, before)) = highest
            && response.psn.distance_from(psn) >= 0
            && msn.distance_from(before) < 0
        {
            wrong.push(response.number);
        }
        if highest.is_none_or(|(psn, _)| response.psn.distance_from(psn) > 0) {
            highest = Some((response.psn, msn));
        }
    }
    if !wrong.is_empty() {
        let text = "its message sequence number goes back".to_owned();
        findings.add(Judgement::Violation, "ACKs", "9.7.7", wrong, text);
    }
}

/// Examines how the peer responds to packets marked as congested.
fn congestion_notifications(trace: &Trace, findings: &mut Findings) {
    const TOPIC: &str = "congestion";
    let (mut marked, mut sent) = (Vec::new(), Vec::new());
    for half in &trace.halves {
        match half.requester {
            Requester::Here => {
                marked.extend(
                    half.requests
                        .iter()
                        .filter(|packet| packet.marked)
                        .map(|packet| packet.number),
                );
                sent.extend(
                    half.notified
                        .iter()
                        .map(|packet| (packet.time, packet.number)),
                );
            }
            Requester::Peer => {}
        }
    }
    if marked.is_empty() {
        return;
    }
    sent.sort_unstable();
    if sent.is_empty() {
        let text = format!(
            "it sends no CNP for {}",
            count(marked.len(), "marked packet")
        );
        findings.add(Judgement::Remark, TOPIC, "annex A17", marked, text);
        return;
    }
    let gaps = sent
        .windows(2)
        .map(|pair| pair[1].0.saturating_sub(pair[0].0));
    let apart = gaps
        .min()
        .map_or(String::new(), |gap| format!(", at least {gap:.1?} apart"));
    let text = format!(
        "it sends {} for {}{apart}",
        count(sent.len(), "CNP"),
        count(marked.len(), "marked packet")
    );
    findings.add(
        Judgement::Observed,
        TOPIC,
        "annex A17",
        sent.iter().map(|one| one.1),
        text,
    );
}

/// Examines whether the peer slows down when it is notified of congestion.
fn reaction_to_congestion(half: &Half, findings: &mut Findings) {
    let Some(first) = half.notified.first() else {
        return;
    };
    let split = half
        .requests
        .partition_point(|packet| packet.time < first.time);
    let (before, after) = half.requests.split_at(split);
    let rate = |packets: &[Packet]| match packets {
        [start, .., end] if packets.len() >= RATE_PACKETS && end.time > start.time => {
            let bytes: f64 = packets.iter().map(|packet| f64::from(packet.payload)).sum();
            Some(bytes / end.time.saturating_sub(start.time).as_secs_f64())
        }
        _ => None,
    };
    let notified = half.notified.len();
    let text = match (rate(before), rate(after)) {
        (Some(before), Some(after)) => format!(
            "after the first of {notified} CNPs, it sends at {:.0} % of its earlier rate",
            after / before * 100.0
        ),
        _ => format!(
            "too few packets to compare its rates: {} before the first of {notified} CNPs and {} after it, of which \
             {RATE_PACKETS} each are needed",
            before.len(),
            after.len()
        ),
    };
    findings.add(
        Judgement::Observed,
        "congestion",
        "annex A17",
        [first.number],
        text,
    );
}

/// Returns a count with the right singular or plural.
fn count(number: usize, thing: &str) -> String {
    match number {
        1 => format!("one {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// Returns how many times something happened, in words.
fn often(number: usize) -> String {
    match number {
        1 => "once".to_owned(),
        _ => format!("{number} times"),
    }
}

/// Returns the range from the shortest to the longest time.
fn range(times: impl Iterator<Item = Duration> + Clone) -> String {
    match (times.clone().min(), times.max()) {
        (Some(low), Some(high)) if low == high => format!("{low:.2?}"),
        (Some(low), Some(high)) => format!("{low:.2?} to {high:.2?}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
