// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Packets that came before their turn.
//!
//! Whatever a connection guarantees follows from this: packets are executed in the order of their PSNs, and an
//! acknowledgement means that everything up to it was executed. So a packet that comes early is copied and waits
//! here, and nobody is told. The peer learns of the first missing packet by the one negative acknowledgement that
//! the standard has for it. When that packet comes, those that waited are executed behind it, and the next
//! acknowledgement jumps over them. A peer that begins anew from the missing packet repeats what is known, which
//! does no harm.

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

/// A packet is kept if it is less than so many ahead of the expected one.
pub(crate) const MAX_AHEAD: u32 = 8192;

/// Bytes of packets that a device keeps.
pub(crate) const MAX_BYTES: usize = 64 << 20;

/// What a packet is taken to need besides its payload, in bytes.
const OVERHEAD: usize = 512;

/// Packets that waited and are executed at once with one that came. Those behind them have to wait for a turn.
const AT_ONCE: u32 = 16;

/// Packets for one queue pair, by their places in its stream.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Queue {
    packets: BTreeMap<u64, Box<Segment<'static>>>,
    /// Place of the expected packet.
    expected: u64,
    bytes: usize,
}

/// Packets that came before their turn, by the queue pair that they are for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(serialize_with = "state::map")]
    queues: FxHashMap<u32, Queue>,
    bytes: usize,
}

impl Kept {
    /// Bytes that are taken to be in use.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether anything waits for that queue pair.
    fn has(&self, qpn: u32) -> bool {
        self.queues.contains_key(&qpn)
    }

    /// Whether there is room for a packet so far ahead. A queue pair does not get more room than is left for
    /// all others.
    fn wants(&self, qpn: u32, ahead: u32, segment: &Segment) -> bool {
        let bytes = Self::bytes_of(segment);
        let used = self.queues.get(&qpn).map_or(0, |queue| queue.bytes);
        let left = MAX_BYTES.saturating_sub(self.bytes + bytes);
        ahead < MAX_AHEAD && used + bytes <= left
    }

    /// Keeps a packet that is [wanted](Self::wants). It takes the place of one with its PSN: that may be a
    /// ghost, or have been damaged by its sender, and the one that comes last is the one that belongs to the
    /// others.
    fn push(&mut self, qpn: u32, ahead: u32, segment: Segment<'static>) {
        let bytes = Self::bytes_of(&segment);
        let queue = self.queues.entry(qpn).or_default();
        let place = queue.expected + u64::from(ahead);
        let replaced = queue.packets.insert(place, Box::new(segment));
        let freed = replaced.map_or(0, |old| Self::bytes_of(&old));
        queue.bytes = queue.bytes + bytes - freed;
        self.bytes = self.bytes + bytes - freed;
    }

    /// Takes the packet that is expected.
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

    /// The first packet that waits.
    fn first(&self, qpn: u32) -> Option<&Segment<'static>> {
        let (_, packet) = self.queues.get(&qpn)?.packets.first_key_value()?;
        Some(packet)
    }

    /// The expected packet is so many ahead now. What is behind it is forgotten.
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

    /// Forgets what waits for a queue pair.
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
    /// A packet came that is so many ahead of the expected one: keeps it, if there is room, and tells the peer of the
    /// gap. If the peer was told to send the expected packet later, it will send everything behind that again, too.
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

    /// The expected packet did not come, but this one behind it: tells the peer, unless it knows.
    fn report_gap(&mut self, behind: &Segment, resources: &mut Resources) {
        if self.responder.told {
            return;
        }
        resources.counters.count(Counter::SequenceNaksSent);
        let syndrome = Syndrome::Nak(NakCode::SequenceError);
        self.explain_nak_sent(syndrome, Cause::PacketMissing, behind, resources);
        self.nak(syndrome);
    }

    /// The expected packet is so many ahead now.
    pub(super) fn pass_kept(&mut self, packets: u32, resources: &mut Resources) {
        if self.responder.keeping {
            resources.kept.advance(self.number, packets);
            self.responder.keeping = resources.kept.has(self.number);
        }
    }

    /// Executes some of what waits for the packet that was just executed.
    pub(super) fn follow_up<M: Memory>(&mut self, resources: &mut Resources, io: &mut Io<'_, M>) {
        if self.responder.keeping {
            self.take_kept(
                &mut Turn::new(Budget::units(AT_ONCE), Traffic::ENDLESS),
                resources,
                io,
            );
        }
    }

    /// Executes what came early and is expected now, until the turn is over. If a packet is missing behind
    /// that, tells the peer. If nothing was executed it is not told: what waits may be far ahead of all that it
    /// has sent.
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

    /// Forgets what came early.
    pub(in crate::qp) fn forget_kept(&mut self, resources: &mut Resources) {
        if std::mem::take(&mut self.responder.keeping) {
            resources.kept.forget(self.number);
        }
    }
}
