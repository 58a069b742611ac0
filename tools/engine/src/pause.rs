// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receivers for which the caller takes no more for now, and the queue pairs that wait for them.
//!
//! Only what goes to these receivers waits. A connection has one receiver, so it has no turns at all. A queue pair for
//! datagrams waits when the next datagram is for such a receiver, because datagrams are sent in order.

use crate::segment::Gid;
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, time::Duration};

/// The timer of a connection whose receiver is paused is looked at again after this time. The peer is not late, so
/// nothing is retransmitted meanwhile.
pub(crate) const RETRY: Duration = Duration::from_millis(1);

/// The paused receivers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Paused {
    /// Numbers of the queue pairs that wait for each receiver. Some may no longer exist.
    waiting: BTreeMap<Gid, Vec<u32>>,
}

impl Paused {
    /// Returns whether no receiver is paused.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether a receiver is paused.
    pub(crate) fn contains(&self, receiver: &Gid) -> bool {
        self.waiting.contains_key(receiver)
    }

    /// Pauses a receiver.
    pub(crate) fn pause(&mut self, receiver: Gid) {
        self.waiting.entry(receiver).or_default();
    }

    /// Lets a queue pair wait for a receiver if that is paused. Returns whether it is.
    pub(crate) fn wait(&mut self, receiver: &Gid, qpn: u32) -> bool {
        let waiting = self.waiting.get_mut(receiver);
        waiting.map(|waiting| waiting.push(qpn)).is_some()
    }

    /// Ends the pause of a receiver. Returns the queue pairs that waited for it.
    pub(crate) fn resume(&mut self, receiver: &Gid) -> Vec<u32> {
        self.waiting.remove(receiver).unwrap_or_default()
    }
}
