// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that arrived before their turn.
//!
//! All guarantees of a connection follow from two rules: packets are executed in the order of their PSNs, and an
//! acknowledgement means that everything up to it was executed. So an early packet is copied and kept here, and is not
//! acknowledged. The peer learns of the first missing packet by the NAK that the standard defines for it. When that
//! packet arrives, the kept packets after it are executed, and the next acknowledgement skips over them. A peer that
//! goes back to the missing packet repeats packets that are known, which does no harm.

use crate::{
    cause::Cause,
    memory::Memory,
    qp::Qp,
    rate::Traffic,
    resources::{Io, Resources},
    segment::{NakCode, Payload, Segment, Syndrome},
    state,
    turn::{Budget, Turn},
};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use vrnic_wire::counter::Counter;

/// A packet is kept if it is fewer than this many packets ahead of the expected one.
pub(crate) const MAX_AHEAD: u32 = 8192;

/// Maximum bytes of packets that a device keeps.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// Assumed memory of a packet besides its payload, in bytes.
const OVERHEAD: usize = 512;

/// Maximum number of kept packets that are executed at once after one that arrived. Others wait for a turn.
const AT_ONCE: u32 = 16;

/// Packets for one queue pair, by their positions in its stream.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Queue {
    packets: BTreeMap<u64, Box<Segment<'static>>>,
    /// Position of the expected packet.
    expected: u64,
    bytes: usize,
}

/// Packets that arrived before their turn, by destination queue pair.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(serialize_with = "state::map")]
    queues: FxHashMap<u32, Queue>,
    bytes: usize,
}

impl Kept {
    /// Returns the assumed memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether packets wait for this queue pair.
    fn has(&self, qpn: u32) -> bool {
        self.queues.contains_key(&qpn)
    }

    /// Returns whether there is room for a packet this far ahead. A queue pair does not get more room than is left for
    /// all others.
    fn wants(&self, qpn: u32, ahead: u32, segment: &Segment) -> bool {
        let bytes = Self::bytes_of(segment);
        let used = self.queues.get(&qpn).map_or(0, |queue| queue.bytes);
        let left = MAX_BYTES.saturating_sub(self.bytes + bytes);
        ahead < MAX_AHEAD && used + bytes <= left
    }

    /// Keeps a packet that is [wanted](Self::wants). It replaces one with the same PSN, which may be a stray packet
    /// from the past or damaged by its sender. The one that arrives last belongs to the other packets.
    fn push(&mut self, qpn: u32, ahead: u32, segment: Segment<'static>) {
        let bytes = Self::bytes_of(&segment);
        let queue = self.queues.entry(qpn).or_default();
        let place = queue.expected + u64::from(ahead);
        let replaced = queue.packets.insert(place, Box::new(segment));
        let freed = replaced.map_or(0, |old| Self::bytes_of(&old));
        queue.bytes = queue.bytes + bytes - freed;
        self.bytes = self.bytes + bytes - freed;
    }

    /// Removes and returns the expected packet.
    fn pop(&mut self, qpn: u32) -> Option<Segment<'static>> {
        let queue = self.queues.get_mut(&qpn)?;
        let packet = queue.packets.remove(&queue.expected)?;
        let bytes = Self::bytes_of(&packet);
        queue.bytes -= bytes;
        self.bytes -= bytes;
        if queue.packets.is_empty() {
            self.queues.remove(&qpn);
        }
        Some(*packet)
    }

    /// Returns the first packet that waits.
    fn first(&self, qpn: u32) -> Option<&Segment<'static>> {
        let (_, packet) = self.queues.get(&qpn)?.packets.first_key_value()?;
        Some(packet)
    }

    /// Moves the expected position ahead, and drops packets before it.
    fn advance(&mut self, qpn: u32, packets: u32) {
        let Some(queue) = self.queues.get_mut(&qpn) else {
            return;
        };
        queue.expected += u64::from(packets);
        while let Some(first) = queue.packets.first_entry()
            && *first.key() < queue.expected
        {
            let bytes = Self::bytes_of(&first.remove());
            queue.bytes -= bytes;
            self.bytes -= bytes;
        }
        if queue.packets.is_empty() {
            self.queues.remove(&qpn);
        }
    }

    /// Drops the packets that wait for a queue pair.
    pub(crate) fn forget(&mut self, qpn: u32) {
        if let Some(queue) = self.queues.remove(&qpn) {
            self.bytes -= queue.bytes;
        }
    }

    fn bytes_of(segment: &Segment) -> usize {
        segment.payload.len() as usize + OVERHEAD
    }
}

impl Qp {
    /// Processes a packet that is this far ahead of the expected one: keeps it if there is room, and reports the gap to
    /// the peer. It is not kept if the peer was told to send the expected packet later, because the peer will then send
    /// everything after that again as well.
    pub(super) fn take_early<M: Memory>(
        &mut self,
        segment: &Segment,
        ahead: u32,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        if resources.recovers_selectively
            && !self.responder.refused
            && resources.kept.wants(self.number, ahead, segment)
            && let Ok(owned) = segment.to_owned(io.memory)
        {
            resources.kept.push(self.number, ahead, owned);
            self.responder.keeping = true;
        }
        self.report_gap(segment, resources);
    }

    /// Tells the peer that the expected packet is missing and a later one has arrived, unless it has been told.
    fn report_gap(&mut self, behind: &Segment, resources: &mut Resources) {
        if self.responder.told {
            return;
        }
        resources.counters.count(Counter::SequenceNaksSent);
        let syndrome = Syndrome::Nak(NakCode::SequenceError);
        self.explain_nak_sent(syndrome, Cause::PacketMissing, behind, resources);
        self.nak(syndrome);
    }

    /// Notes that the expected packet has moved ahead.
    pub(super) fn pass_kept(&mut self, packets: u32, resources: &mut Resources) {
        if self.responder.keeping {
            resources.kept.advance(self.number, packets);
            self.responder.keeping = resources.kept.has(self.number);
        }
    }

    /// Executes some of the packets that waited for the one just executed.
    pub(super) fn follow_up<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        if self.responder.keeping {
            self.take_kept(
                &mut Turn::new(Budget::units(AT_ONCE), Traffic::ENDLESS),
                resources,
                io,
            );
        }
    }

    /// Executes kept packets that are expected now, until the turn is over. If a packet is missing after them, tells
    /// the peer. If nothing was executed, the peer is not told, because the kept packets may be far ahead of everything
    /// that it has sent.
    pub(in crate::qp) fn take_kept<M: Memory>(
        &mut self,
        turn: &mut Turn,
        resources: &mut Resources,
        io: &mut Io<'_, M>,
    ) {
        let mut executed = false;
        while self.responder.keeping
            && self.receives()
            && !self.responder.is_ending()
            && !turn.is_over()
        {
            let Some(segment) = resources.kept.pop(self.number) else {
                if executed && let Some(first) = resources.kept.first(self.number) {
                    let behind = Segment {
                        payload: Payload::Empty,
                        ..*first
                    };
                    self.report_gap(&behind, resources);
                }
                return;
            };
            turn.spend(segment.payload.len());
            executed = self.execute_expected(&segment, resources, io);
            io.outbox.recycle(segment.payload);
            self.responder.keeping = resources.kept.has(self.number);
            if !executed {
                return;
            }
        }
    }

    /// Drops all early packets.
    pub(in crate::qp) fn forget_kept(&mut self, resources: &mut Resources) {
        if std::mem::take(&mut self.responder.keeping) {
            resources.kept.forget(self.number);
        }
    }
}
