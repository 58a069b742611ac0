// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The workers' answers. They are made in a worker's thread, while the others wait, so each covers a bounded number of
//! objects.

use std::net::Ipv6Addr;

use vrnic_engine::explain::Happening;
use vrnic_engine::time::Instant;
use vrnic_engine::{
    CompletionCounterSnapshot, CqSnapshot, Explanation, GroupSnapshot, MrSnapshot, MwSnapshot,
    QpSnapshot, Rnic, SrqSnapshot,
};
use vrnic_wire::command::CommandCode;
use vrnic_wire::counter::Counter;
use vrnic_wire::memory::access;
use vrnic_wire::port::{GidType, Mtu, NO_VLAN, PortState};
use vrnic_wire::qp::QpType;

use super::inspector::Topic;
use super::protocol::{self};
use super::protocol::{
    Access, BoundMw, CompletionCounter, Cq, Device, Gid, Group, Mr, Mw, Page, Port, Qp, Reply,
    Request, Srq,
};
use crate::config::Mac;
use crate::device::{self, Shared};
use crate::fabric::SubnetFabric;
use crate::network::Network;

mod fault;
mod flow;
mod subnet;
mod switch;
pub mod trace;

/// Largest number of objects in one answer.
const PAGE: usize = 256;
/// Largest number of steps in one answer.
const STEPS: usize = 512;
/// Largest number of memory regions that can be listed. Finding a region takes time in proportion to those before it.
const MAX_REGIONS: usize = 1 << 16;
/// Largest number of the switch's learned addresses that can be listed, for the same reason.
const MAX_ADDRESSES: usize = 1 << 16;

/// Something with a time of its own.
pub struct Timed<'a, T> {
    /// What it is.
    pub it: &'a mut T,
    /// Its time.
    pub now: Instant,
}

/// Answers a question about `devices`, the `network` or the `subnet`.
pub fn answer(
    topic: &mut Topic,
    devices: &mut [Timed<'_, device::Device>],
    network: &mut Timed<'_, Network>,
    subnet: Option<&mut Timed<'_, SubnetFabric>>,
    shared: &mut Shared,
) -> Reply {
    match topic {
        Topic::Request(
            request @ (Request::SubnetLinks { .. }
            | Request::SubnetCreditLoop { .. }
            | Request::SetSubnetLink { .. }
            | Request::SetSubnetSwitch { .. }),
        ) => subnet::answer(request, subnet),
        Topic::Request(request) => about_all(request, devices, network, shared),
        Topic::Capture(capture) => {
            if let Some(capture) = capture.take() {
                for device in devices {
                    device.it.begin_capture(shared);
                }
                shared.captures.add(capture);
            }
            Reply::Done
        }
        Topic::Tape(name, tape) => {
            let mut all = devices.iter_mut().map(|device| &mut *device.it);
            let device = all.find(|device| device.name() == name);
            let (Some(device), Some(tape)) = (device, tape.take()) else {
                return Reply::Error(format!("no device is named {name:?}"));
            };
            match device.set_tape(tape) {
                Ok(()) => recording(device),
                Err(why) => Reply::Error(why),
            }
        }
        Topic::EndOfCapture(id) => {
            shared.captures.remove(*id);
            Reply::Done
        }
    }
}

fn about_all(
    request: &Request,
    devices: &mut [Timed<'_, device::Device>],
    network: &mut Timed<'_, Network>,
    shared: &mut Shared,
) -> Reply {
    let name = match request {
        Request::Devices => {
            let mut vms = Vec::new();
            let all = devices.iter_mut().map(|device| &mut *device.it);
            let devices = all.map(|device| Device {
                vm: device.vm().map(|vm| number(&mut vms, vm)),
                ..describe(device, shared)
            });
            return Reply::Devices(devices.collect());
        }
        Request::Recordings => {
            let all = devices.iter().filter_map(|device| {
                let tape = device.it.tape()?;
                Some(tape.describe(device.it.name()))
            });
            return Reply::Recordings(all.collect());
        }
        Request::Switch => return Reply::Switch(switch::ports(devices, network.it)),
        Request::Addresses { from } => {
            let found =
                (*from < MAX_ADDRESSES).then(|| network.it.addresses(network.now, *from, PAGE));
            return Reply::Addresses(page(found.flatten(), *from, switch::address));
        }
        Request::Log { .. }
        | Request::CaptureStart { .. }
        | Request::CaptureStop { .. }
        | Request::RecordStart { .. }
        | Request::Captures
        | Request::SubnetLinks { .. }
        | Request::SubnetCreditLoop { .. }
        | Request::SetSubnetLink { .. }
        | Request::SetSubnetSwitch { .. } => {
            return Reply::Error("the workers do not handle this request".into());
        }
        Request::Gids { device }
        | Request::Qps { device, .. }
        | Request::Cqs { device, .. }
        | Request::Srqs { device, .. }
        | Request::Groups { device, .. }
        | Request::Flows { device, .. }
        | Request::CompletionCounters { device, .. }
        | Request::SetLink { device, .. }
        | Request::SetRateLimit { device, .. }
        | Request::Mrs { device, .. }
        | Request::Mws { device, .. }
        | Request::FaultAdd { device, .. }
        | Request::FaultClear { device, .. }
        | Request::Faults { device }
        | Request::FaultLog { device, .. }
        | Request::RecordStop { device }
        | Request::Flight { device, .. }
        | Request::Trace { device, .. }
        | Request::Explain { device, .. } => device,
    };
    if let Some(port) = name.strip_prefix(protocol::PORT) {
        return match network.it.faults(port) {
            Some(faults) => fault::answer(request, faults, network.now, PAGE),
            None => Reply::Error(format!("no port of the switch is named {port:?}")),
        };
    }
    let Some(Timed { it, now }) = devices.iter_mut().find(|device| device.it.name() == name) else {
        return Reply::Error(format!("no device is named {name:?}"));
    };
    // The engine may panic here as in any other call.
    let reply = it.contained(shared, |device, _| about(request, device, *now));
    reply.unwrap_or_else(|| Reply::Error(format!("device {name:?} failed during this request")))
}

fn about(request: &Request, device: &mut device::Device, now: Instant) -> Reply {
    match *request {
        Request::FaultAdd { .. }
        | Request::FaultClear { .. }
        | Request::Faults { .. }
        | Request::FaultLog { .. } => fault::answer(request, device.faults(), now, PAGE),
        Request::Gids { .. } => {
            let gids = device.rnic().map(|rnic| rnic.gids().map(gid).collect());
            Reply::Gids(gids.unwrap_or_default())
        }
        Request::Qps { from, .. } => {
            let found = device.with_memory(|rnic, memory| rnic.qp_page(from, PAGE, memory));
            Reply::Qps(page(found.flatten(), from, qp))
        }
        Request::Cqs { from, .. } => {
            let found = device.with_memory(|rnic, memory| rnic.cq_page(from, PAGE, memory));
            Reply::Cqs(page(found.flatten(), from, cq))
        }
        Request::Srqs { from, .. } => {
            let found = device.with_memory(|rnic, memory| rnic.srq_page(from, PAGE, memory));
            Reply::Srqs(page(found.flatten(), from, srq))
        }
        Request::Groups { from, .. } => {
            let found = device.rnic().and_then(|rnic| rnic.group_page(from, PAGE));
            Reply::Groups(page(found, from, group))
        }
        Request::Flows { from, .. } => {
            let found = device.rnic().and_then(|rnic| rnic.flow_page(from, PAGE));
            Reply::Flows(page(found, from, |flow| flow::view(&flow)))
        }
        Request::CompletionCounters { from, .. } => {
            let rnic = device.rnic();
            let found = rnic.and_then(|rnic| rnic.completion_counter_page(from, PAGE));
            Reply::CompletionCounters(page(found, from, completion_counter))
        }
        Request::Mrs { from, .. } if from < MAX_REGIONS => {
            let found = device.rnic().and_then(|rnic| rnic.mr_page(from, PAGE));
            Reply::Mrs(page(found, from, mr))
        }
        Request::Mrs { from, .. } => Reply::Mrs(page(None, from, mr)),
        Request::Mws { from, .. } if from < MAX_REGIONS => {
            let found = device.rnic().and_then(|rnic| rnic.mw_page(from, PAGE));
            Reply::Mws(page(found, from, mw))
        }
        Request::Mws { from, .. } => Reply::Mws(page(None, from, mw)),
        Request::Flight { failure: false, .. } => Reply::Flight(device.flight()),
        Request::Flight { failure: true, .. } => match device.flight_of_failure() {
            Some(calls) => Reply::Flight(calls.to_vec()),
            None => Reply::Error(format!("device {:?} has not failed", device.name())),
        },
        Request::Trace { from, .. } => {
            let rnic = device.rnic();
            let page = rnic.map(|rnic| rnic.trace(trace::clock, from, STEPS));
            Reply::Trace(trace::page(&page.unwrap_or_default()))
        }
        Request::RecordStop { .. } => {
            device.end_tape("stopped");
            recording(device)
        }
        Request::SetLink { up, .. } => {
            device.set_link(up);
            Reply::Done
        }
        Request::SetRateLimit { limit, .. } => {
            device.set_rate_limit(limit.into());
            Reply::Done
        }
        Request::Explain { from, .. } => Reply::Explanations(
            device
                .record()
                .filter(|(number, _)| *number >= from)
                .take(PAGE)
                .map(|(number, what)| explanation(number, what))
                .collect(),
        ),
        _ => Reply::Error("the request is not about a device".into()),
    }
}

/// Returns the page of [`PAGE`] entries that begins at `from`.
fn page<T, U>(found: Option<Vec<T>>, from: usize, view: impl Fn(T) -> U) -> Page<U> {
    let next = found.as_ref().map(|_| from + PAGE);
    Page {
        items: found.unwrap_or_default().into_iter().map(view).collect(),
        next,
    }
}

/// Returns the progress of a device's recording.
fn recording(device: &device::Device) -> Reply {
    match device.tape() {
        Some(tape) => Reply::Recording(tape.describe(device.name())),
        None => Reply::Error(format!("device {:?} has no recording", device.name())),
    }
}

/// Returns the number of `item`, counted from 1, among those in `seen`; appends it if it is new.
fn number<T: PartialEq>(seen: &mut Vec<T>, item: T) -> usize {
    let known = seen.iter().position(|known| *known == item);
    known.unwrap_or_else(|| {
        seen.push(item);
        seen.len() - 1
    }) + 1
}

/// Describes a device, except for the number of its VM, which only makes sense among several devices.
fn describe(device: &mut device::Device, shared: &mut Shared) -> Device {
    let (name, state) = (device.name().to_owned(), device.state().to_owned());
    let config = device.config();
    let (mac, node_guid) = (Mac(config.mac).to_string(), guid(config.node_guid));
    let seen = device.contained(shared, |device, _| {
        let rnic = device.rnic()?;
        Some((rnic.snapshot(), port(rnic)))
    });
    let (counts, mut port) = seen.flatten().unzip();
    if let (Some(port), Some(end)) = (&mut port, device.roce()) {
        let lost = end.counters();
        let named = lost.map(|(reason, count)| (format!("frames_{reason}"), count));
        port.counters.extend(named);
    }
    let counts = counts.unwrap_or_default();
    Device {
        name,
        mac,
        node_guid,
        state,
        link: if device.link() { "up" } else { "down" }.into(),
        rate_limit: device.rate_limit().into(),
        vm: None,
        contexts: counts.contexts,
        pds: counts.pds,
        mrs: counts.mrs,
        cqs: counts.cqs,
        srqs: counts.srqs,
        qps: counts.qps,
        translations: counts.translations,
        port,
    }
}

fn port(rnic: &Rnic) -> Port {
    let attributes = rnic.port_attributes();
    let active = attributes.state == PortState::Active.raw();
    let names = Counter::ALL.iter().map(|counter| counter.name());
    Port {
        state: if active { "active" } else { "down" }.into(),
        mtu: Mtu::try_from(attributes.active_mtu).map_or(0, Mtu::bytes),
        gids: rnic.gids().count(),
        bad_pkeys: attributes.bad_pkey_count.get(),
        bad_qkeys: attributes.qkey_violation_count.get(),
        counters: names
            .zip(rnic.counters())
            .map(|(name, value)| (name.to_string_lossy().into_owned(), *value))
            .collect(),
    }
}

fn guid(guid: u64) -> String {
    let groups = guid.to_be_bytes();
    let groups = groups
        .chunks_exact(2)
        .map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    groups.collect::<Vec<_>>().join(":")
}

fn gid(entry: &vrnic_wire::port::GidEntry) -> Gid {
    let kind = GidType::try_from(entry.gid_type);
    Gid {
        gid: Ipv6Addr::from(entry.gid).to_string(),
        kind: kind.map_or("?", GidType::name).into(),
        mac: Mac(entry.mac).to_string(),
        vlan: (entry.vlan.get() != NO_VLAN).then(|| entry.vlan.get()),
    }
}

fn qp(qp: QpSnapshot) -> Qp {
    let kind = match qp.qp_type {
        QpType::Smi => "SMI",
        QpType::Gsi => "GSI",
        QpType::ReliableConnection => "RC",
        QpType::UnreliableConnection => "UC",
        QpType::UnreliableDatagram => "UD",
        QpType::RawPacket => "RAW",
        QpType::XrcInitiator => "XRC_INI",
        QpType::XrcTarget => "XRC_TGT",
        QpType::ReceiveQueue => "RQ",
        QpType::ReceiveScaling => "RSS",
    };
    let peer = qp.path.destination;
    Qp {
        qpn: qp.number,
        kind: kind.into(),
        state: qp.state.name().into(),
        context: qp.context,
        process: qp.owner.to_string(),
        pid: qp.owner.pid,
        pd: qp.pd,
        peer_qpn: qp.destination_qpn,
        peer_gid: (peer != [0; 16]).then(|| Ipv6Addr::from(peer).to_string()),
        mtu: qp.mtu,
        send_psn: qp.send_psn,
        unacknowledged_psn: qp.unacknowledged_psn,
        receive_psn: qp.receive_psn,
        sends_posted: qp.sends_posted,
        sends_in_flight: qp.sends_in_flight,
        send_entries: qp.send_entries,
        receives_posted: qp.receives_posted,
        receive_entries: qp.receive_entries,
        responses_waiting: qp.responses_waiting,
        send_cqn: qp.send_cqn,
        receive_cqn: qp.receive_cqn,
        srqn: qp.srqn,
        xrcdn: qp.xrcdn,
        rate_limit_kbps: qp.rate_limit,
        max_burst: qp.max_burst,
    }
}

fn cq(cq: CqSnapshot) -> Cq {
    Cq {
        cqn: cq.number,
        context: cq.context,
        vector: cq.vector,
        entries: cq.entries,
        moderation_count: cq.moderation_count,
        moderation_period_us: u64::try_from(cq.moderation_period.as_micros()).unwrap_or(u64::MAX),
        unread: cq.unread,
        exact: cq.exact,
        armed: cq.armed,
        queue_pairs: cq.queue_pairs,
        failed: cq.failed,
    }
}

fn srq(srq: SrqSnapshot) -> Srq {
    Srq {
        srqn: srq.number,
        context: srq.context,
        pd: srq.pd,
        entries: srq.entries,
        posted: srq.posted,
        exact: srq.exact,
        limit: srq.limit,
        queue_pairs: srq.queue_pairs,
        xrcdn: srq.xrcdn,
        cqn: srq.cqn,
        failed: srq.failed,
    }
}

fn group(group: GroupSnapshot) -> Group {
    Group {
        gid: Ipv6Addr::from(group.gid).to_string(),
        qpns: group.members,
    }
}

fn completion_counter(counter: CompletionCounterSnapshot) -> CompletionCounter {
    CompletionCounter {
        counter: counter.number,
        context: counter.context,
        qps: counter.queue_pairs,
        completions: counter.completions,
        errors: counter.errors,
    }
}

fn mr(mr: MrSnapshot) -> Mr {
    Mr {
        key: mr.key,
        pd: mr.pd,
        access: rights(mr.access),
        iova: mr.iova,
        length: mr.length,
        translations: mr.translations,
        valid: mr.valid,
    }
}

fn mw(mw: MwSnapshot) -> Mw {
    Mw {
        key: mw.key,
        pd: mw.pd,
        kind: mw.mw_type.raw(),
        bound: mw.bound.map(|bound| BoundMw {
            region: bound.region,
            iova: bound.first,
            length: bound.length,
            access: rights(bound.access),
            qpn: bound.qpn,
        }),
    }
}

fn rights(bits: u32) -> Vec<String> {
    let names = [
        (access::LOCAL_WRITE, "local write"),
        (access::REMOTE_WRITE, "remote write"),
        (access::REMOTE_READ, "remote read"),
        (access::REMOTE_ATOMIC, "remote atomic"),
        (access::MW_BIND, "bind windows"),
        (access::ZERO_BASED, "zero based"),
        (access::FLUSH_GLOBAL, "flush"),
        (access::FLUSH_PERSISTENT, "flush to persistence"),
        (access::RELAXED_ORDERING, "relaxed ordering"),
    ];
    let given = names.iter().filter(|(bit, _)| bits & bit != 0);
    given.map(|(_, name)| (*name).to_owned()).collect()
}

/// Describes in words something that went wrong.
pub fn explanation(number: u64, told: &Explanation) -> protocol::Explanation {
    let (what, wr_id) = match told.happening {
        Happening::NakSent(syndrome) => (format!("sent {syndrome}"), None),
        Happening::NakReceived(syndrome) => (format!("received {syndrome}"), None),
        Happening::Dropped => ("dropped a message and sent no answer".to_owned(), None),
        Happening::FrameDropped => ("dropped a frame".to_owned(), None),
        Happening::Completion {
            wr_id,
            opcode,
            status,
        } => (
            format!("{} completed with {}", opcode.name(), status.name()),
            Some(wr_id),
        ),
        Happening::Event(event) => (format!("event {}", event.name()), None),
        Happening::Fault { id, name } => (format!("fault {id} ({name}) fired"), None),
        Happening::Command { code, status } => {
            let command = match CommandCode::try_from(code) {
                Ok(code) => format!("{code:?}"),
                Err(_) => format!("{code}"),
            };
            (format!("command {command} refused with {status:?}"), None)
        }
    };
    protocol::Explanation {
        number,
        nanoseconds: told.time.as_nanos(),
        object: told.number,
        peer_qpn: told.peer_qpn,
        what,
        why: told.cause.map(|cause| cause.text().to_owned()),
        cause: told.cause.map(vrnic_engine::Cause::code),
        wr_id,
        psn: told.psn,
        packet: told
            .packet
            .map(|packet| (packet.name.to_owned(), packet.psn)),
        access: told.access.map(|access| Access {
            key: access.key,
            pd: access.pd,
            rights: rights(access.rights),
            address: access.address,
            length: access.length,
        }),
        count: told.count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_right_has_a_name() {
        for bit in (0..u32::BITS).map(|shift| 1 << shift) {
            let named = access::REGION & bit != 0;
            assert_eq!(rights(bit).len(), usize::from(named), "{bit:#x}");
        }
    }
}
