// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Counters of frames and datagrams lost between a port and the host's network.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a frame or datagram was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A datagram came from an address that does not belong to a peer, or is for another network.
    Stranger,
    /// A frame was sent to a port that does not carry this kind of frame.
    Foreign,
    /// The host's network rejected a datagram: it is too long, there is no route, or a firewall blocks it.
    Unsent,
    /// A host or router reported that a datagram was not delivered.
    Refused,
}

impl Loss {
    /// All variants, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Stranger, Self::Foreign, Self::Unsent, Self::Refused];

    /// Returns the name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stranger => "rx_stranger",
            Self::Foreign => "tx_foreign",
            Self::Unsent => "tx_unsent",
            Self::Refused => "tx_refused",
        }
    }
}

/// How many times each kind of loss occurred. The network thread counts, the worker reads.
#[derive(Debug, Default)]
pub struct Losses([AtomicU64; Loss::ALL.len()]);

impl Losses {
    /// Adds `count` losses.
    pub fn add(&self, loss: Loss, count: usize) {
        self.0[loss as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Returns all kinds with their counts.
    pub fn all(&self) -> impl Iterator<Item = (Loss, u64)> + '_ {
        let counts = self.0.iter().map(|count| count.load(Ordering::Relaxed));
        Loss::ALL.into_iter().zip(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_loss_has_a_place_and_a_name() {
        let losses = Losses::default();
        for (place, loss) in Loss::ALL.into_iter().enumerate() {
            losses.add(loss, place + 1);
        }
        let all: Vec<_> = losses
            .all()
            .map(|(loss, count)| (loss.name(), count))
            .collect();
        assert_eq!(
            all,
            [
                ("rx_stranger", 1),
                ("tx_foreign", 2),
                ("tx_unsent", 3),
                ("tx_refused", 4)
            ]
        );
    }
}
