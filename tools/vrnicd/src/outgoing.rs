// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What a device has sent to devices with other homes, as long as these have not read it.
//!
//! All letters from one device to another one carry the same [`Stamp`], so the number of references to it tells how
//! many of them are under way. If there are many, the sender [pauses](vrnic_engine::Rnic::pause) that receiver: queue
//! pairs with something for it wait, and all others go on. So a receiver that is slow, or whose worker gets no CPU,
//! holds up only what is for it. Answers of connections wait as well. Two kinds of packets do not: congestion
//! notifications, and the last acknowledgement of a queue pair that fails. There are few of them, because each follows
//! a packet from the receiver.
//!
//! A multicast datagram waits for nobody, because its other receivers are not slow. The copy for a receiver with many
//! letters is lost, as at a full port of a switch.

use std::collections::BTreeMap;
use std::sync::Arc;

use vrnic_engine::segment::Gid;

use crate::guest_memory::RegionTable;

/// Number of letters under way at which a receiver is paused.
pub const MANY: usize = 256;
/// Number of letters under way at which its pause ends.
const FEW: usize = MANY / 2;
/// Number of receivers with letters under way at which the device stops to send. It limits the memory of letters.
const MAX_RECEIVERS: usize = 256;

/// What the letters from one device to another one have in common.
pub struct Stamp {
    /// The table with the names of the sender's memory.
    pub sender: Arc<RegionTable>,
}

/// One receiver.
pub struct Receiver {
    stamp: Arc<Stamp>,
    /// Its GIDs to which the sender does not send.
    paused: Vec<Gid>,
}

impl Receiver {
    /// Returns the stamp for a letter.
    pub fn stamp(&self) -> Arc<Stamp> {
        self.stamp.clone()
    }

    /// Returns whether many letters are under way.
    pub fn is_busy(&self) -> bool {
        self.under_way() >= MANY
    }

    /// Notes that nothing is sent to a GID any more. Returns false if that was so before.
    pub fn pause(&mut self, gid: Gid) -> bool {
        let new = !self.paused.contains(&gid);
        if new {
            self.paused.push(gid);
        }
        new
    }

    fn under_way(&self) -> usize {
        Arc::strong_count(&self.stamp) - 1
    }

    /// Returns whether there is nothing to remember. As only the sender copies stamps, this stays so.
    fn is_idle(&mut self) -> bool {
        self.paused.is_empty() && Arc::get_mut(&mut self.stamp).is_some()
    }
}

/// All receivers of a device.
#[derive(Default)]
pub struct Outgoing {
    /// The receivers by their index.
    receivers: BTreeMap<usize, Receiver>,
    /// Those of them that are paused.
    paused: Vec<usize>,
}

impl Outgoing {
    /// Returns the receiver with that index. The table of the sender is `sender`.
    pub fn receiver(&mut self, index: usize, sender: &Arc<RegionTable>) -> &mut Receiver {
        self.receivers.entry(index).or_insert_with(|| Receiver {
            stamp: Arc::new(Stamp {
                sender: sender.clone(),
            }),
            paused: Vec::new(),
        })
    }

    /// Remembers that a receiver is paused.
    pub fn note_paused(&mut self, index: usize) {
        if !self.paused.contains(&index) {
            self.paused.push(index);
        }
    }

    /// Returns whether something is paused, so that the sender may have work whenever letters are read.
    pub fn is_paused(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Ends the pauses of receivers that have read most of their letters: calls `resume` with their GIDs. If a GID went
    /// from one receiver to another one, both may have it. Its pause ends with that of the last of them.
    pub fn resume(&mut self, resume: impl FnMut(&Gid)) {
        let mut ended = Vec::new();
        let receivers = &mut self.receivers;
        self.paused.retain(|index| {
            let receiver = receivers.get_mut(index);
            let ready = receiver.filter(|receiver| receiver.under_way() <= FEW);
            let Some(receiver) = ready else {
                return true;
            };
            ended.append(&mut receiver.paused);
            false
        });
        ended
            .iter()
            .filter(|gid| !self.has_paused(gid))
            .for_each(resume);
    }

    /// Returns whether a receiver is paused with that GID.
    fn has_paused(&self, gid: &Gid) -> bool {
        let mut receivers = self.receivers.values();
        receivers.any(|receiver| receiver.paused.contains(gid))
    }

    /// Returns whether no letters are under way. Then nothing here refers to the sender's table.
    pub fn is_empty(&mut self) -> bool {
        let is_empty = self.receivers.values_mut().all(Receiver::is_idle);
        if is_empty {
            self.receivers.clear();
        }
        is_empty
    }

    /// Returns whether letters to so many receivers are under way that the device had better not send more.
    pub fn is_full(&mut self) -> bool {
        if self.receivers.len() < MAX_RECEIVERS {
            return false;
        }
        self.receivers.retain(|_, receiver| !receiver.is_idle());
        self.receivers.len() >= MAX_RECEIVERS
    }

    /// Returns the number of letters under way.
    #[cfg(test)]
    pub fn under_way(&self) -> usize {
        self.receivers.values().map(Receiver::under_way).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receiver_is_paused_until_it_has_read_most_letters() {
        let (mut outgoing, table) = (Outgoing::default(), Arc::new(RegionTable::new(0)));
        let mut letters = Vec::new();
        for (index, gid) in [(1, [1; 16]), (1, [2; 16]), (2, [3; 16])] {
            while !outgoing.receiver(index, &table).is_busy() {
                letters.push(outgoing.receiver(index, &table).stamp());
            }
            let receiver = outgoing.receiver(index, &table);
            assert!(receiver.pause(gid) && !receiver.pause(gid));
            outgoing.note_paused(index);
        }
        assert_eq!(outgoing.under_way(), 2 * MANY);
        let resumed = |outgoing: &mut Outgoing| {
            let mut gids = Vec::new();
            outgoing.resume(|gid| gids.push(gid[0]));
            gids
        };
        letters.drain(..MANY - FEW - 1);
        assert!(resumed(&mut outgoing).is_empty());
        letters.drain(..1);
        assert_eq!(resumed(&mut outgoing), [1, 2]);
        assert!(outgoing.is_paused() && !outgoing.is_empty());
        letters.clear();
        assert!(!outgoing.is_empty(), "a pause must end first");
        assert_eq!(resumed(&mut outgoing), [3]);
        assert!(!outgoing.is_paused() && Arc::strong_count(&table) > 1);
        assert!(outgoing.is_empty());
        assert_eq!(Arc::strong_count(&table), 1);
    }

    #[test]
    fn a_pause_for_several_receivers_ends_with_the_last_of_them() {
        let (mut outgoing, table) = (Outgoing::default(), Arc::new(RegionTable::new(0)));
        let mut letters = Vec::new();
        // A GID that went from one receiver to another one.
        for index in [1, 2] {
            let receiver = outgoing.receiver(index, &table);
            letters.push((0..MANY).map(|_| receiver.stamp()).collect::<Vec<_>>());
            assert!(receiver.pause([7; 16]));
            outgoing.note_paused(index);
        }
        for last in [false, true] {
            letters.pop();
            let mut resumed = 0;
            outgoing.resume(|gid| {
                assert_eq!(*gid, [7; 16]);
                resumed += 1;
            });
            assert_eq!((resumed == 1, outgoing.is_paused()), (last, !last));
        }
    }

    #[test]
    fn the_number_of_receivers_is_limited() {
        let (mut outgoing, table) = (Outgoing::default(), Arc::new(RegionTable::new(0)));
        let stamp = |outgoing: &mut Outgoing, index| outgoing.receiver(index, &table).stamp();
        let mut letters: Vec<_> = (0..MAX_RECEIVERS - 1)
            .map(|index| stamp(&mut outgoing, index))
            .collect();
        assert!(!outgoing.is_full());
        letters.push(stamp(&mut outgoing, MAX_RECEIVERS));
        assert!(outgoing.is_full());
        letters.pop();
        assert!(!outgoing.is_full(), "that one has read");
        assert_eq!(outgoing.under_way(), MAX_RECEIVERS - 1);
    }
}
