// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Answers that a fault provokes.

use super::Fault;
use crate::{
    cause::Cause,
    fault::{Kind, table::Act},
    qp::Qp,
    resources::Resources,
    segment::{NakCode, Segment, Syndrome},
};
use vrnic_wire::{completion::Status, counter::Counter};

impl Qp {
    /// Answers the expected packet as a fault demands, without executing it.
    pub(super) fn provoked(&mut self, kind: &Kind, segment: &Segment, resources: &mut Resources) {
        let cause = Cause::Provoked;
        match kind.act {
            Act::MissPacket => {
                resources.counters.count(Counter::SequenceNaksSent);
                let syndrome = Syndrome::Nak(NakCode::SequenceError);
                self.explain_nak_sent(syndrome, cause, segment, resources);
                self.nak(syndrome);
            }
            Act::Refuse(code) => {
                let status = match code {
                    NakCode::InvalidRequest => Status::RemoteInvalidRequest,
                    NakCode::RemoteAccess => Status::LocalAccess,
                    _ => Status::LocalQueuePairOperation,
                };
                let fault = Fault {
                    code: Some(code),
                    cause,
                    status,
                };
                self.refuse(fault, segment, resources);
            }
            _ => self.nak_not_ready(cause, segment, resources),
        }
    }
}
