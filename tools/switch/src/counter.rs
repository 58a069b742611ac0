// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Counters of a port.

/// Why a frame was dropped. Most reasons count at the port where the frame came in. Those marked "leaving" count at the
/// port by which it would have left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Drop {
    /// The Ethernet header is incomplete, or the source is not a unicast address.
    Malformed,
    /// The endpoint is down.
    Down,
    /// Longer than the MTU of the port where it came in.
    Oversize,
    /// In a VLAN that the port is not in, or to an address whose port is not in the VLAN.
    Vlan,
    /// The source is the address of another port.
    Spoofed,
    /// The source is new, and the port already has as many addresses as it may have.
    Addresses,
    /// To an address to which switches do not forward frames (01-80-C2-00-00-00 to -0F): flow control, spanning tree
    /// and the like.
    Reserved,
    /// The destination is where the frame came from, or there is no other endpoint for it.
    Nowhere,
    /// Leaving: the port has no endpoint for it, or the endpoint is down.
    DownLeaving,
    /// Leaving: longer than the MTU of the port.
    OversizeLeaving,
    /// Leaving: the queue is full.
    QueueFull,
    /// Leaving: lost deliberately by [`Impairment`](crate::Impairment).
    Impaired,
}

impl Drop {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 12] = [
        Self::Malformed,
        Self::Down,
        Self::Oversize,
        Self::Vlan,
        Self::Spoofed,
        Self::Addresses,
        Self::Reserved,
        Self::Nowhere,
        Self::DownLeaving,
        Self::OversizeLeaving,
        Self::QueueFull,
        Self::Impaired,
    ];

    /// Returns the name used in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "rx_malformed",
            Self::Down => "rx_down",
            Self::Oversize => "rx_oversize",
            Self::Vlan => "rx_vlan",
            Self::Spoofed => "rx_spoofed",
            Self::Addresses => "rx_addresses",
            Self::Reserved => "rx_reserved",
            Self::Nowhere => "rx_nowhere",
            Self::DownLeaving => "tx_down",
            Self::OversizeLeaving => "tx_oversize",
            Self::QueueFull => "tx_queue_full",
            Self::Impaired => "tx_impaired",
        }
    }
}

/// Counters of a port. `rx` counts frames from its endpoints, `tx` frames to them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received from endpoints, including dropped ones.
    pub rx_frames: u64,
    /// Bytes of these frames.
    pub rx_bytes: u64,
    /// Frames that left for endpoints, including those that were lost on the way to them.
    pub tx_frames: u64,
    /// Bytes of these frames.
    pub tx_bytes: u64,
    drops: [u64; Drop::ALL.len()],
}

impl Counters {
    /// Returns the number of frames dropped for `reason`.
    pub fn drops(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Returns the numbers of dropped frames by reason, without the reasons that did not occur.
    pub fn all_drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL
            .into_iter()
            .zip(self.drops)
            .filter(|&(_, count)| count > 0)
    }

    pub(crate) fn received(&mut self, bytes: usize) {
        self.rx_frames += 1;
        self.rx_bytes += bytes as u64;
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        self.tx_frames += 1;
        self.tx_bytes += bytes as u64;
    }

    pub(crate) fn dropped(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_reason_has_a_place_and_a_name() {
        let mut counters = Counters::default();
        for (place, reason) in Drop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
            counters.dropped(reason);
            assert_eq!(counters.drops(reason), 1);
        }
        assert_eq!(counters.all_drops().count(), Drop::ALL.len());
        let names: HashSet<_> = Drop::ALL.map(Drop::name).into_iter().collect();
        assert_eq!(names.len(), Drop::ALL.len());
    }
}
