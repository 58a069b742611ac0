// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What gets lost between a port and the host's network.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a frame or datagram went no further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// A datagram came from an address that is no peer's, or is of another network.
    Stranger,
    /// A frame left for a port that does not carry such frames.
    Foreign,
    /// The host's network did not take a datagram: it is too long, there is no route, or a firewall is against it.
    Unsent,
    /// A host or router said that a datagram did not arrive.
    Refused,
}

impl Loss {
    /// All of them, in the order of their declaration.
    pub const ALL: [Self; 4] = [Self::Stranger, Self::Foreign, Self::Unsent, Self::Refused];

    /// Name in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stranger => "rx_stranger",
            Self::Foreign => "tx_foreign",
            Self::Unsent => "tx_unsent",
            Self::Refused => "tx_refused",
        }
    }
}

/// How often each happened. The network thread counts, the worker reads.
#[derive(Debug, Default)]
pub struct Losses([AtomicU64; Loss::ALL.len()]);

impl Losses {
    /// Counts more of them.
    pub fn add(&self, loss: Loss, count: usize) {
        self.0[loss as usize].fetch_add(count as u64, Ordering::Relaxed);
    }

    /// All with their counts.
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
