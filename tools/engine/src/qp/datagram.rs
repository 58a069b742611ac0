// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Unreliable datagrams and the general service interface (IBTA volume 1, 9.8.3).

use super::{GSI_QKEY, Qp, attributes::path_of, receive::pieces};
use crate::{
    cause::Cause,
    checksum::{Envelope, IPOIB_HEADER},
    memory::Memory,
    pages::Half,
    resources::{Io, Resources},
    segment::{Body, Path, Payload, Segment, Service, Touched},
    trace::Act,
    turn::Turn,
    work::{self, SendRequest, Source, Target},
};
use etherparse::checksum::Sum16BitWords;
use vrnic_wire::{
    command::{MAD_LENGTH, qp_flags},
    completion::{self, LidSource, Opcode, Status},
    counter::Counter,
    port::{DEFAULT_PKEY, IPV4_MAPPED, NO_VLAN, PERMISSIVE_LID, is_multicast},
    qp::{QpState, QpType, SMI_QPN},
    ring::MAX_STRIDE,
    work::{GRH_LENGTH, LidAddress, SEND_DATA_OFFSET, SendOpcode, Sge, send_flags},
};

/// Bit of the Q_Key in a work request that selects the Q_Key of the queue pair instead.
const OWN_QKEY: u32 = 1 << 31;

/// IP protocol number of UDP, which RoCEv2 uses.
const UDP: u8 = 17;

impl Qp {
    /// Sends datagrams or frames until the turn is over or there are none left.
    pub(super) fn send_datagrams<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        while !turn.is_over() && turn.may_send() && turn.may_begin() && self.pacer.may_send(io.now)
        {
            let mut elements = self.requester.take_spare();
            // A datagram that waited for pages or its receiver, or that follows others of its request, comes first.
            let (index, read) =
                if let Some((index, request)) = self.requester.resume_held(&mut elements) {
                    (index, Ok(request))
                } else {
                    if self.state != QpState::ReadyToSend {
                        return self.requester.put_spare(elements);
                    }
                    let (index, entry) = match self.created.sq.peek(io.memory) {
                        Ok(Some(found)) => found,
                        Ok(None) => return self.requester.put_spare(elements),
                        Err(broken) => {
                            return self.fail_ring(broken, Cause::SendProducer, resources, io);
                        }
                    };
                    let read = work::read_send(
                        entry,
                        self.created.qp_type,
                        &self.created.capacities,
                        io.memory,
                        |sge| elements.push(sge),
                    );
                    let Ok(read) = read else {
                        self.created.sq.give_up();
                        return self.fail(Cause::RingUnmapped, resources, io);
                    };
                    self.created.sq.take();
                    (index, read)
                };
            let (wr_id, opcode, outcome) = match read {
                Err(bad) => (bad.wr_id, bad.opcode, Err((bad.status, bad.cause))),
                Ok(request) => {
                    if !resources.paused.is_empty() && self.waits_to_send(&request, resources) {
                        self.requester.hold(index, request, &elements);
                        return self.requester.put_spare(elements);
                    }
                    let sent = self.begin_segments(&request, index, resources, io);
                    let sent = sent.and_then(|()| {
                        if self.is_raw() {
                            self.send_frame(&request, &elements, index, resources, io)
                        } else {
                            self.send_datagram(&request, &elements, index, resources, io)
                        }
                    });
                    let waits = matches!(sent, Err((_, Cause::PageAbsent)));
                    let denied = waits.then(|| self.demand(Half::Requester, resources));
                    if let Some(Ok(())) = denied {
                        self.requester.hold(index, request, &elements);
                        return self.requester.put_spare(elements);
                    }
                    let sent = match denied {
                        Some(Err(cause)) => Err((Status::LocalProtection, cause)),
                        _ => sent,
                    };
                    if let Ok(length) = sent {
                        self.note_access(Half::Requester);
                        turn.begin();
                        turn.send(length * copies(&request, resources));
                        self.pacer.charge(length, io.now);
                        let segments = &mut self.requester.segments;
                        if segments.is_under_way() && !segments.advance() {
                            self.requester.hold(index, request, &elements);
                            self.requester.put_spare(elements);
                            continue;
                        }
                    }
                    (request.wr_id, request.opcode, sent.map(|_| request))
                }
            };
            let opcode = work::completion_opcode(opcode);
            self.requester.put_spare(elements);
            self.created.sq.release(1, io.memory);
            match outcome {
                Ok(request) => {
                    resources.counters.count(Counter::SendRequests);
                    if self.created.has(qp_flags::SIGNAL_ALL)
                        || request.flags & send_flags::SIGNALED != 0
                        || resources.faults.flushes_sends(self.number)
                    {
                        let mut cqe = self.cqe(wr_id, opcode, Status::Success, None);
                        cqe.byte_length = request.length.into();
                        self.complete_request(opcode, cqe, false, resources, io);
                    } else {
                        self.count_unsignalled(opcode, resources, io);
                    }
                    self.note_drained(resources);
                }
                Err((status, cause)) => {
                    self.requester.segments.end();
                    if status == Status::LocalProtection {
                        resources.counters.count(Counter::LocalProtectionErrors);
                    }
                    let cqe = self.cqe(wr_id, opcode, status, Some(cause));
                    self.explain_completion((wr_id, opcode), status, cause, None, resources);
                    self.complete_request(opcode, cqe, true, resources, io);
                    self.state = QpState::SendQueueError;
                    turn.spend(0);
                }
            }
        }
    }

    /// Waits for the receiver of a datagram if that is paused. Returns whether it is.
    #[cold]
    fn waits_to_send(&mut self, request: &SendRequest, resources: &mut Resources) -> bool {
        let Target::Datagram(target) = &request.target else {
            return false;
        };
        let remote_qpn = target.remote_qpn.get();
        let path = path_of(&target.address, self.number, remote_qpn, true, resources);
        let receiver = path.map(|path| path.destination);
        let paused = &mut resources.paused;
        let Some(receiver) = receiver.filter(|receiver| paused.wait(receiver, self.number)) else {
            return false;
        };
        self.awaited = Some(receiver);
        true
    }

    /// Notes that a request begins, unless some of its segments were sent already. If it is to be sent in segments,
    /// takes their header from its ring entry, which has this index.
    fn begin_segments<M: Memory>(
        &mut self,
        request: &SendRequest,
        index: u32,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<(), (Status, Cause)> {
        if self.requester.segments.is_under_way() {
            return Ok(());
        }
        resources.note(self.number, || Act::Fetched {
            wr_id: request.wr_id,
            opcode: request.opcode,
            length: request.length.into(),
        });
        if request.opcode != SendOpcode::SendSegmented {
            return Ok(());
        }
        let mut header = [0; MAX_STRIDE as usize - SEND_DATA_OFFSET];
        let read = header
            .get_mut(..request.header.into())
            .and_then(|header| {
                let entry = self.created.sq.entry(index).ok()?;
                let place = entry.slice(SEND_DATA_OFFSET as u64, request.header.into())?;
                io.memory.read(place, header).ok()?;
                Some(&*header)
            })
            .ok_or((Status::LocalProtection, Cause::RingUnmapped))?;
        let envelope = self.envelope();
        let mtu = match envelope {
            Envelope::Frame => resources.frame_mtu.into(),
            Envelope::Datagram => resources.mtu.bytes() as usize - IPOIB_HEADER,
        };
        let lengths = (request.immediate, request.length);
        self.requester.segments.begin(envelope, read, lengths, mtu)
    }

    /// Returns what the IP packets are in that the queue pair sends.
    fn envelope(&self) -> Envelope {
        if self.is_raw() {
            Envelope::Frame
        } else {
            Envelope::Datagram
        }
    }

    /// Returns the length of the next datagram or frame of a request.
    pub(super) fn datagram_length(&self, request: &SendRequest) -> u32 {
        match self.requester.segments.packet() {
            Some((header, payload)) => (header as u32).saturating_add(payload.len() as u32),
            None => request.length,
        }
    }

    /// Sends the next datagram of a request. Its ring entry has this index. Returns the length of the datagram.
    fn send_datagram<M: Memory>(
        &mut self,
        request: &SendRequest,
        elements: &[Sge],
        index: u32,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<u64, (Status, Cause)> {
        let length = self.datagram_length(request);
        let Target::Datagram(target) = &request.target else {
            return Err((Status::LocalQueuePairOperation, Cause::WqeOpcode));
        };
        if length > resources.mtu.bytes() {
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        let remote_qpn = target.remote_qpn.get() & vrnic_wire::qp::MAX_QPN;
        let invalid = |cause| (Status::LocalQueuePairOperation, cause);
        let path = path_of(&target.address, self.number, remote_qpn, true, resources)
            .ok_or(invalid(Cause::WqeAddress))?;
        let management = self.created.qp_type == QpType::Smi;
        if let Some(lids) = path.lids {
            if management != (remote_qpn == SMI_QPN) {
                return Err(invalid(Cause::ManagementQp));
            }
            if !management && lids.destination == PERMISSIVE_LID {
                return Err(invalid(Cause::WqeAddress));
            }
        }
        if management && length as usize != MAD_LENGTH {
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        let pkey = match self.created.qp_type {
            QpType::Smi => DEFAULT_PKEY,
            QpType::Gsi => resources.pkey(request.pkey_index),
            _ => resources.pkey(self.attributes.pkey_index),
        };

        let bytes = self.gather_datagram(request, elements, index, resources, io)?;
        let wanted_qkey = target.qkey.get();
        let qkey = if wanted_qkey & OWN_QKEY != 0 {
            self.qkey()
        } else {
            wanted_qkey
        };
        let immediate = request.opcode == SendOpcode::SendWithImmediate;
        let psn = self.requester.take_psn();
        let segment = Segment {
            path,
            source_qpn: self.number,
            destination_qpn: remote_qpn,
            pkey,
            psn,
            solicited: request.flags & send_flags::SOLICITED != 0,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Datagram {
                qkey,
                source_qpn: self.number,
                immediate: immediate.then_some(request.immediate),
            },
            payload: Payload::Bytes(bytes),
            checksums_ok: false,
            touched: Touched::NOT,
        };
        resources.send(segment, io);
        Ok(length.into())
    }

    /// Returns the bytes of the next datagram or frame of a request. The work request completes before the datagram
    /// arrives, and then its memory may be reused. So the datagram carries a copy.
    pub(super) fn gather_datagram<M: Memory>(
        &self,
        request: &SendRequest,
        elements: &[Sge],
        index: u32,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<Vec<u8>, (Status, Cause)> {
        let segments = &self.requester.segments;
        let (header, payload) = (segments.packet()).unwrap_or((0, 0..request.length));
        let mut bytes = io.outbox.bytes();
        bytes.resize(header + payload.len(), 0);
        let gathered = self.gather_payload(
            (request, elements, index),
            payload.start.into(),
            &mut bytes[header..],
            resources,
            io,
        );
        if let Err(cause) = gathered {
            io.outbox.recycle(Payload::Bytes(bytes));
            return Err((Status::LocalProtection, cause));
        }
        let envelope = self.envelope();
        let segmented = segments.is_under_way();
        if segmented {
            segments.write_header(envelope, &mut bytes);
        }
        if segmented || request.flags & send_flags::CHECKSUMS != 0 {
            envelope.fill(&mut bytes);
        }
        Ok(bytes)
    }

    /// Copies the payload of a request, with its elements and the index of its ring entry, from byte `offset` on.
    fn gather_payload<M: Memory>(
        &self,
        (request, elements, index): (&SendRequest, &[Sge], u32),
        offset: u64,
        bytes: &mut [u8],
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> Result<(), Cause> {
        let accessor = self.accessor();
        let length = bytes.len() as u64;
        resources.with_scratch(|resources, ranges| {
            match request.source {
                Source::Inline => {
                    let entry = (self.created.sq.entry(index)).map_err(|_| Cause::RingUnmapped)?;
                    ranges.extend(entry.slice(SEND_DATA_OFFSET as u64 + offset, length));
                }
                Source::Elements(_) => {
                    pieces(elements.iter(), offset, length, |key, address, length| {
                        if resources.keys.is_integrity(key) {
                            return Err(Cause::LocalKey);
                        }
                        (resources.keys)
                            .resolve(key, accessor, 0, address, length, io.memory, ranges)
                    })?;
                }
            }
            let mut rest = bytes;
            for range in ranges.iter() {
                let (head, tail) = rest
                    .split_at_mut_checked(range.length as usize)
                    .ok_or(Cause::LocalBounds)?;
                io.memory
                    .read(*range, head)
                    .map_err(|_| Cause::LocalUnmapped)?;
                rest = tail;
            }
            Ok(())
        })
    }

    fn qkey(&self) -> u32 {
        match self.created.qp_type {
            QpType::Smi => 0,
            QpType::Gsi => GSI_QKEY,
            _ => self.attributes.qkey,
        }
    }

    /// Takes the next receive unless one that was not used is left. If there is none, counts a datagram or frame as
    /// dropped. If it is not valid, the queue pair fails. Returns whether there is a receive.
    pub(super) fn finds_receive<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> bool {
        if self.receive.is_taken() {
            return true;
        }
        let taken = self.take_receive(resources, io);
        if taken == Ok(false) {
            resources.counters.count(Counter::Dropped);
            if self.is_raw() {
                self.explain_frame_dropped(Cause::NoReceive, resources);
            }
            return false;
        }
        if let Err(cause) = taken.and_then(|_| self.receive.check()) {
            let status = Status::LocalQueuePairOperation;
            self.fail_by_receive(status, cause, resources, io);
            return false;
        }
        true
    }

    /// Receives a datagram. A datagram that does not fit is dropped, and the receive stays for the next one, because
    /// otherwise any sender could break the queue pair. Returns `false` if the datagram has to wait for pages and must
    /// be processed again later.
    pub(super) fn receive_datagram<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        let Body::Datagram {
            qkey,
            source_qpn,
            immediate,
        } = segment.body
        else {
            return true;
        };
        let length = segment.payload.len();
        if qkey != self.qkey() {
            resources.note_violation(segment, Some(qkey));
            resources.counters.count(Counter::Dropped);
            return true;
        }
        if !self.finds_receive(resources, io) {
            return true;
        }
        let total = GRH_LENGTH as u64 + length;
        if length > resources.mtu.bytes().into() || total > self.receive.capacity() {
            resources.counters.count(Counter::Dropped);
            return true;
        }
        if let Err(mut cause) = self.store_datagram(segment, length, resources, io) {
            if cause == Cause::PageAbsent {
                match self.demand(Half::Responder, resources) {
                    Ok(()) => return false,
                    Err(denied) => cause = denied,
                }
            }
            self.fail_by_receive(Status::LocalProtection, cause, resources, io);
            return true;
        }
        self.note_access(Half::Responder);
        let path = &segment.path;
        let source = resources.subnet.as_ref().zip(path.lids);
        let source = source.map(|(subnet, lids)| LidSource {
            slid: lids.source.into(),
            path_bits: subnet.port.path_bits(lids.destination),
            ..LidSource::default()
        });
        let own = match self.created.qp_type {
            QpType::Gsi | QpType::Smi => None,
            _ => Some(self.attributes.pkey_index),
        };
        let pkey_index = resources.admitting_pkey(own, segment.pkey).unwrap_or(0);
        let has_checksums = self.created.capacities.checksums;
        self.complete_receive(
            Opcode::Receive,
            segment.solicited,
            |cqe| {
                cqe.byte_length = (total as u32).into();
                cqe.source_qpn = source_qpn.into();
                cqe.service_level = path.service_level;
                cqe.pkey_index = pkey_index.into();
                if let Some(source) = source {
                    cqe.source_mac = source.to_bytes();
                    cqe.flags = completion::flags::SOURCE_LID;
                } else {
                    cqe.source_mac = path.source_mac;
                    cqe.flags = completion::flags::SOURCE_MAC;
                }
                if path.lids.is_none_or(|lids| lids.global) {
                    cqe.flags |= completion::flags::GRH;
                }
                if is_ipv4(path) {
                    cqe.flags |= completion::flags::IPV4;
                }
                if path.lids.is_none() && path.vlan != NO_VLAN {
                    cqe.vlan = path.vlan.into();
                    cqe.flags |= completion::flags::VLAN;
                }
                if segment.solicited {
                    cqe.flags |= completion::flags::SOLICITED;
                }
                if segment.checksums_ok && has_checksums {
                    cqe.packet_flags = completion::packet_flags::CHECKSUMS_OK;
                }
                if let Some(immediate) = immediate {
                    cqe.immediate = immediate.into();
                    cqe.flags |= completion::flags::IMMEDIATE;
                }
            },
            resources,
            io,
        );
        true
    }

    /// Writes the route header and the payload to the receive.
    fn store_datagram<M: Memory>(
        &self,
        segment: &Segment,
        length: u64,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<(), Cause> {
        let mut header = io.outbox.bytes();
        let immediate = matches!(
            segment.body,
            Body::Datagram {
                immediate: Some(_),
                ..
            }
        );
        header.extend_from_slice(&match segment.path.lids {
            Some(lids) => global_header(&segment.path, lids.global, length as u16, immediate),
            None => route_header(&segment.path, length as u16),
        });
        let header = Payload::Bytes(header);
        let stored = self.scatter(0, &header, resources, io);
        io.outbox.recycle(header);
        stored?;
        self.scatter(GRH_LENGTH as u64, &segment.payload, resources, io)
    }
}

/// Returns the number of copies that the device makes of a datagram, including those to local members of its group.
fn copies(request: &SendRequest, resources: &Resources) -> u64 {
    match &request.target {
        Target::Datagram(target) if is_multicast(&target.address.dgid) => {
            let lid = match resources.subnet {
                Some(_) => LidAddress::from_bytes(target.address.dmac).dlid.get(),
                None => 0,
            };
            let group = (target.address.dgid, lid);
            1 + resources.groups.members(&group).len() as u64
        }
        _ => 1,
    }
}

/// Returns the global route header of an InfiniBand datagram with this many bytes of payload (IBTA volume 1, 8.3), or
/// zeros if it had none.
fn global_header(path: &Path, global: bool, length: u16, immediate: bool) -> [u8; GRH_LENGTH] {
    /// Next header: a base transport header.
    const TRANSPORT: u8 = 0x1b;
    /// Bytes of the base transport and datagram headers and the invariant CRC.
    const OVERHEAD: u16 = 12 + 8 + 4;
    let mut bytes = [0; GRH_LENGTH];
    if global {
        let behind = OVERHEAD + if immediate { 4 } else { 0 } + length.next_multiple_of(4);
        put_ipv6_header(path, behind, TRANSPORT, &mut bytes);
    }
    bytes
}

/// Writes an IPv6 header, which has the layout of a global route header.
fn put_ipv6_header(path: &Path, behind: u16, next: u8, bytes: &mut [u8; GRH_LENGTH]) {
    let first = 6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label;
    bytes[..4].copy_from_slice(&first.to_be_bytes());
    bytes[4..6].copy_from_slice(&behind.to_be_bytes());
    bytes[6] = next;
    bytes[7] = path.hop_limit;
    bytes[8..24].copy_from_slice(&path.source);
    bytes[24..40].copy_from_slice(&path.destination);
}

fn is_ipv4(path: &Path) -> bool {
    path.source[..12] == IPV4_MAPPED && path.destination[..12] == IPV4_MAPPED
}

/// Returns the route header of a datagram with this many bytes of payload: an IPv6 header, which has the layout of a
/// GRH, or an IPv4 header in the last 20 bytes.
fn route_header(path: &Path, length: u16) -> [u8; GRH_LENGTH] {
    /// Bytes of the UDP, base transport and datagram headers and the invariant CRC.
    const OVERHEAD: u16 = 8 + 12 + 8 + 4;
    const IPV4_LENGTH: u16 = 20;
    let mut bytes = [0; GRH_LENGTH];
    if is_ipv4(path) {
        let header = &mut bytes[GRH_LENGTH - usize::from(IPV4_LENGTH)..];
        header[0] = 0x45;
        header[1] = path.traffic_class;
        header[2..4].copy_from_slice(&(IPV4_LENGTH + OVERHEAD + length).to_be_bytes());
        // Do not fragment.
        header[6] = 0x40;
        header[8] = path.hop_limit;
        header[9] = UDP;
        header[12..16].copy_from_slice(&path.source[12..]);
        header[16..20].copy_from_slice(&path.destination[12..]);
        let sum = Sum16BitWords::new().add_slice(header).ones_complement();
        // The crate adds words as they are in memory.
        header[10..12].copy_from_slice(&sum.to_ne_bytes());
    } else {
        put_ipv6_header(path, OVERHEAD + length, UDP, &mut bytes);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(last: u8) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[..12].copy_from_slice(&IPV4_MAPPED);
        gid[12..].copy_from_slice(&[10, 0, 0, last]);
        gid
    }

    #[test]
    fn ipv4_headers_have_a_valid_checksum() {
        let path = Path {
            source: mapped(1),
            destination: mapped(2),
            hop_limit: 64,
            ..Path::default()
        };
        let header = route_header(&path, 100);
        assert_eq!(header[..20], [0; 20]);
        assert_eq!(header[20], 0x45);
        assert_eq!(header[32..36], [10, 0, 0, 1]);
        let sum = Sum16BitWords::new().add_slice(&header[20..]);
        assert_eq!(sum.ones_complement(), 0, "sum including itself");
    }

    #[test]
    fn ipv6_headers_have_the_shape_of_a_grh() {
        let path = Path {
            source: [0xfe; 16],
            destination: mapped(2),
            flow_label: 0xabcde,
            traffic_class: 0x12,
            hop_limit: 3,
            ..Path::default()
        };
        let header = route_header(&path, 0);
        assert_eq!(header[..4], [0x61, 0x2a, 0xbc, 0xde]);
        assert_eq!(header[7], 3);
        assert_eq!(header[8..24], [0xfe; 16]);
        assert_eq!(header[24..40], mapped(2));
    }
}
