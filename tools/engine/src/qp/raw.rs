// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Raw packets: whole Ethernet frames.

use super::Qp;
use crate::{
    cause::Cause,
    checksum::Envelope,
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
    work::{Sge, send_flags},
};

impl Qp {
    /// Sends the frame of a work request. Its ring entry has this index.
    pub(super) fn send_frame<M: Memory>(
        &mut self,
        request: &SendRequest,
        elements: &[Sge],
        index: u32,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> Result<(), (Status, Cause)> {
        let entry = self.created.sq.entry(index);
        let entry = entry.map_err(|_| (Status::LocalProtection, Cause::RingUnmapped))?;
        let length = request.length as usize;
        let untagged = FRAME_HEADER + usize::from(resources.frame_mtu);
        if length < FRAME_HEADER {
            return Err((Status::LocalLength, Cause::FrameLength));
        }
        if length > untagged + FRAME_TAG {
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        // As for a datagram, the work request completes before the frame arrives.
        let mut bytes = io.outbox.bytes();
        bytes.resize(length, 0);
        let gathered = self.gather_datagram(request, elements, entry, &mut bytes, resources, io);
        let fits = length <= untagged || is_tagged(&bytes);
        let refused = match gathered {
            Err(cause) => Some((Status::LocalProtection, cause)),
            Ok(()) => (!fits).then_some((Status::LocalLength, Cause::WqeLength)),
        };
        if let Some(refused) = refused {
            io.outbox.recycle(Payload::Bytes(bytes));
            return Err(refused);
        }
        if request.flags & send_flags::CHECKSUMS != 0 {
            Envelope::Frame.fill(&mut bytes);
        }
        let segment = Segment {
            source_qpn: self.number,
            ..Segment::of_frame(Payload::Bytes(bytes))
        };
        resources.send(segment, io);
        Ok(())
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
