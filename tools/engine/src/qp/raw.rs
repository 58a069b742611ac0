// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Raw packets: whole Ethernet frames.

use super::{Creation, Qp};
use crate::{
    cause::Cause,
    flow::{FRAME_HEADER, FRAME_TAG, is_tagged},
    memory::Memory,
    pages::Half,
    resources::{Io, Resources},
    segment::{Body, Payload, Segment},
    work::SendRequest,
};
use vrnic_wire::{
    command::qp_flags,
    completion::{Opcode, Status, flags, packet_flags},
    counter::Counter,
    work::Sge,
};

/// Where the tag of a frame begins: behind the addresses.
const TAG: usize = FRAME_HEADER - 2;

/// A frame as a queue pair receives it.
struct Received<'a> {
    /// What is in front of the tag that was removed, and behind it.
    parts: [&'a [u8]; 2],
    /// The tag that was removed.
    tag: Option<u16>,
    /// The frame check sequence, if the queue pair receives it.
    check: Option<[u8; 4]>,
}

impl<'a> Received<'a> {
    fn of(frame: &'a [u8], created: &Creation) -> Self {
        let check = created
            .has(qp_flags::APPEND_FCS)
            .then(|| crc32fast::hash(frame).to_le_bytes());
        let stripped = (created.has(qp_flags::STRIP_VLAN) && is_tagged(frame))
            .then(|| frame.split_at(TAG))
            .and_then(|(before, rest)| Some((before, rest.split_first_chunk::<FRAME_TAG>()?)));
        let (parts, tag) = match stripped {
            Some((before, ([_, _, high, low], behind))) => {
                ([before, behind], Some(u16::from_be_bytes([*high, *low])))
            }
            None => ([frame, &[]], None),
        };
        Self { parts, tag, check }
    }

    /// Returns the pieces of the receive, each with its place.
    fn pieces(&self) -> impl Iterator<Item = (usize, &[u8])> {
        let check = self.check.as_ref().map(<[u8; 4]>::as_slice);
        let pieces = self.parts.into_iter().chain(check);
        let mut end = 0;
        pieces.filter(|piece| !piece.is_empty()).map(move |piece| {
            let start = end;
            end += piece.len();
            (start, piece)
        })
    }

    /// Returns the number of bytes.
    fn len(&self) -> usize {
        self.pieces().map(|(_, piece)| piece.len()).sum()
    }
}

impl Qp {
    /// Sends the next frame of a work request. Its ring entry has this index. Returns the length of the frame.
    pub(super) fn send_frame<M: Memory>(
        &mut self,
        request: &SendRequest,
        elements: &[Sge],
        index: u32,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<u64, (Status, Cause)> {
        let length = self.datagram_length(request) as usize;
        let untagged = FRAME_HEADER + usize::from(resources.frame_mtu);
        if length < FRAME_HEADER {
            return Err((Status::LocalLength, Cause::FrameLength));
        }
        if length > untagged + FRAME_TAG {
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        let bytes = self.gather_datagram(request, elements, index, resources, io)?;
        if length > untagged && !is_tagged(&bytes) {
            io.outbox.recycle(Payload::Bytes(bytes));
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        let segment = Segment {
            source_qpn: self.number,
            ..Segment::of_frame(Payload::Bytes(bytes))
        };
        resources.send(segment, io);
        Ok(length as u64)
    }

    /// Receives a frame. One that does not fit is dropped, and the receive stays for the next one, as for datagrams.
    /// Returns `false` if the frame has to wait for pages and must be processed again later.
    pub(super) fn receive_frame<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        if !self.finds_receive(resources, io) {
            return true;
        }
        let received = Received::of(segment.payload.bytes(), &self.created);
        let length = received.len() as u64;
        if length > self.receive.capacity() {
            resources.counters.count(Counter::Dropped);
            self.explain_frame_dropped(Cause::ReceiveTooShort, resources);
            return true;
        }
        let stored = received.pieces().try_for_each(|(offset, piece)| {
            self.scatter(offset as u64, &Payload::Frame(piece), resources, io)
        });
        if let Err(mut cause) = stored {
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
        let has_checksums = self.created.capacities.checksums;
        let flow_tag = match segment.body {
            Body::Frame { tag } => tag,
            _ => 0,
        };
        self.complete_receive(
            Opcode::Receive,
            false,
            |cqe| {
                cqe.byte_length = (length as u32).into();
                cqe.flow_tag = flow_tag.into();
                if segment.checksums_ok && has_checksums {
                    cqe.packet_flags = packet_flags::CHECKSUMS_OK;
                }
                if let Some(tag) = received.tag {
                    cqe.vlan = tag.into();
                    cqe.flags = flags::VLAN;
                }
            },
            resources,
            io,
        );
        true
    }
}
