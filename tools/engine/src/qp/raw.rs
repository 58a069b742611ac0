// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Raw packets: whole Ethernet frames.

use super::Qp;
use crate::{
    cause::Cause,
    flow::{FRAME_HEADER, FRAME_TAG, is_tagged},
    memory::Memory,
    pages::Half,
    resources::{Io, Resources},
    segment::{Payload, Segment},
    work::SendRequest,
};
use vrnic_wire::{
    completion::{Opcode, Status, packet_flags},
    counter::Counter,
    work::Sge,
};

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
        let length = segment.payload.len();
        if length > self.receive.capacity() {
            resources.counters.count(Counter::Dropped);
            self.explain_frame_dropped(Cause::ReceiveTooShort, resources);
            return true;
        }
        if let Err(mut cause) = self.scatter(0, &segment.payload, resources, io) {
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
        self.complete_receive(
            Opcode::Receive,
            false,
            |cqe| {
                cqe.byte_length = (length as u32).into();
                if segment.checksums_ok && has_checksums {
                    cqe.packet_flags = packet_flags::CHECKSUMS_OK;
                }
            },
            resources,
            io,
        );
        true
    }
}
