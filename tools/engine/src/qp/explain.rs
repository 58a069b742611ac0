// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Records in the device's explanations why a queue pair failed, refused or dropped something.

use super::Qp;
use crate::{
    cause::Cause,
    explain::{Explanation, Happening, Packet},
    psn::Psn,
    resources::Resources,
    segment::{Segment, Syndrome},
    trace::Concern,
};
use vrnic_wire::completion::{Opcode, Status};

impl Qp {
    fn explain(
        &mut self,
        happening: Happening,
        cause: Option<Cause>,
        psn: Option<Psn>,
        packet: Option<Packet>,
        resources: &mut Resources,
    ) {
        if let Some(cause) = cause {
            self.note_refused(cause, resources);
        }
        let refused = self
            .refused
            .filter(|(why, _)| cause.is_some_and(|cause| cause.as_remote() == why.as_remote()));
        let access = refused.map(|(_, access)| access);
        let srqn = self
            .receiver
            .srqn
            .filter(|_| cause == Some(Cause::NoReceive));
        let concern = Concern {
            qpn: self.number,
            key: access.map(|access| access.key),
            srqn,
        };
        match happening {
            Happening::Completion { .. } => resources.concern(concern),
            Happening::NakSent(_) => self.responder.concern = Some(concern),
            _ => {}
        }
        resources.explain(Explanation {
            peer_qpn: self.attributes.dest_qpn,
            psn: psn.map(Psn::raw),
            packet,
            access,
            ..Explanation::new(happening, self.number, cause)
        });
    }

    /// Remembers an access that was just refused for this reason until it is reported, which may be after the turns of
    /// other queue pairs.
    pub(super) fn note_refused(&mut self, cause: Cause, resources: &Resources) {
        if let Some((why, access)) = resources.keys.take_refused()
            && why.as_remote() == cause.as_remote()
        {
            self.refused = Some((why, access));
        }
    }

    /// Explains a work completion with an error.
    pub(super) fn explain_completion(
        &mut self,
        (wr_id, opcode): (u64, Opcode),
        status: Status,
        cause: Cause,
        psn: Option<Psn>,
        resources: &mut Resources,
    ) {
        let happening = Happening::Completion {
            wr_id,
            opcode,
            status,
        };
        self.explain(happening, Some(cause), psn, None, resources);
    }

    /// Explains a negative acknowledgement of a packet that arrived.
    pub(super) fn explain_nak_sent(
        &mut self,
        syndrome: Syndrome,
        cause: Cause,
        segment: &Segment,
        resources: &mut Resources,
    ) {
        let packet = Packet::new(&segment.body, segment.psn.raw());
        let expected = Some(self.responder.expected());
        self.explain(
            Happening::NakSent(syndrome),
            Some(cause),
            expected,
            Some(packet),
            resources,
        );
    }

    /// Explains why a message of an unreliable connection is dropped.
    pub(super) fn explain_dropped(
        &mut self,
        cause: Cause,
        segment: &Segment,
        resources: &mut Resources,
    ) {
        let packet = Packet::new(&segment.body, segment.psn.raw());
        let expected = Some(self.responder.expected());
        self.explain(
            Happening::Dropped,
            Some(cause),
            expected,
            Some(packet),
            resources,
        );
    }

    /// Explains why a frame is dropped.
    pub(super) fn explain_frame_dropped(&mut self, cause: Cause, resources: &mut Resources) {
        self.explain(Happening::FrameDropped, Some(cause), None, None, resources);
    }

    /// Explains why an accepted request cannot be executed any more.
    pub(super) fn explain_response_refused(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        cause: Cause,
        resources: &mut Resources,
    ) {
        let happening = Happening::NakSent(syndrome);
        self.explain(happening, Some(cause), Some(psn), None, resources);
    }

    /// Records a negative acknowledgement from the peer.
    pub(super) fn explain_nak_received(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        resources: &mut Resources,
    ) {
        self.explain(
            Happening::NakReceived(syndrome),
            None,
            Some(psn),
            None,
            resources,
        );
    }
}
