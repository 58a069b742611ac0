// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Unreliable connections: a message that cannot be received is dropped as a whole, and the peer is not told (IBTA
//! volume 1, 9.8.2).

use super::{Fault, Message, Outcome};
use crate::{
    cause::Cause,
    memory::Memory,
    pages::Half,
    qp::Qp,
    resources::{Io, Resources},
    segment::{Body, Segment, SendTail},
};
use vrnic_wire::{completion::Status, counter::Counter};

impl Fault {
    /// Returns whether the receive itself is at fault, for which its owner is responsible.
    fn is_of_receive(self) -> bool {
        matches!(
            self.status,
            Status::LocalProtection | Status::LocalQueuePairOperation
        )
    }
}

impl Qp {
    /// Processes a packet of an unreliable connection. Returns `false` if it has to wait for pages and must be
    /// processed again later.
    pub(in crate::qp) fn take_unacknowledged<M: Memory>(
        &mut self,
        segment: &Segment,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) -> bool {
        let (Body::Send {
            position,
            tail: SendTail::Plain | SendTail::Immediate(_),
        }
        | Body::Write { position, .. }) = segment.body
        else {
            self.drop_message(Cause::PacketSequence, segment, resources);
            return true;
        };
        self.note_established(resources);
        let in_order = segment.psn == self.responder.expected;
        let continues = in_order && self.responder.message != Message::None;
        if position.begins() && self.responder.message != Message::None {
            // The rest of the previous message will not arrive any more.
            self.drop_message(Cause::PacketMissing, segment, resources);
        }
        self.responder.expected = segment.psn.add(1);
        if !position.begins() && !continues {
            if in_order {
                // The packet belongs to a message that was dropped.
                resources.counters.count(Counter::Dropped);
            } else {
                self.drop_message(Cause::PacketMissing, segment, resources);
            }
            return true;
        }
        match self.execute(segment, resources, io) {
            Ok(Outcome::Done(_)) => self.note_access(Half::Responder),
            Ok(Outcome::NotReady) => self.drop_message(Cause::NoReceive, segment, resources),
            Err(fault) => {
                let Some(fault) = self.or_wait(fault, Half::Responder, resources) else {
                    // Process the packet again as if it had not arrived yet.
                    self.responder.expected = segment.psn;
                    return false;
                };
                self.drop_message(fault.cause, segment, resources);
                if fault.is_of_receive() {
                    self.fail_by_receive(fault.status, fault.cause, resources, io);
                }
            }
        }
        true
    }

    /// Drops the current message, or the one that begins with this packet. A receive that was taken for it stays for
    /// the next message.
    fn drop_message(&mut self, cause: Cause, segment: &Segment, resources: &mut Resources) {
        resources.counters.count(Counter::Dropped);
        self.explain_dropped(cause, segment, resources);
        self.responder.message = Message::None;
    }
}
