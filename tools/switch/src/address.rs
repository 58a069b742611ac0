// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The address table: maps MAC addresses to ports.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::port::PortId;
use crate::vlan::Vlan;

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is a multicast address (including broadcast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether switches must not forward frames to this address (IEEE 802.1Q, table 8-1).
    pub(crate) const fn is_reserved(self) -> bool {
        matches!(self.0, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f])
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.0.map(|byte| format!("{byte:02x}"));
        f.write_str(&groups.join(":"))
    }
}

/// Result of learning a source address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// The address is now known to be at the port.
    Yes,
    /// The address is the fixed address of another port.
    Spoofed,
    /// The address is new, and the port already has as many as it may have.
    Full,
}

/// A learned address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedAddress {
    /// The VLAN in which it was seen.
    pub vlan: Vlan,
    /// The address.
    pub mac: Mac,
    /// The port at which it is.
    pub port: PortId,
    /// Time since the last frame from it.
    pub age: Duration,
}

#[derive(Debug)]
struct Entry {
    port: PortId,
    seen: Duration,
}

/// The addresses of a switch.
///
/// Fixed addresses belong to one port in all of its VLANs. Learned ones belong to one VLAN, move with their owner, and
/// expire when no frame has come from them for a while. The number of addresses per port is limited, so the table is
/// bounded.
#[derive(Debug)]
pub struct Table {
    fixed: HashMap<Mac, PortId>,
    learned: HashMap<(Vlan, Mac), Entry>,
    /// Number of learned addresses of each port, including expired ones.
    counts: Vec<usize>,
    age: Duration,
    /// Earliest time of the next sweep for expired addresses.
    next_sweep: Duration,
}

impl Table {
    /// Shortest time between two sweeps, which limits the cost of a flood of new addresses.
    const SWEEP_PAUSE: Duration = Duration::from_secs(1);

    /// Creates an empty table. Learned addresses expire `age` after the last frame.
    pub fn new(age: Duration) -> Self {
        Self {
            fixed: HashMap::new(),
            learned: HashMap::new(),
            counts: Vec::new(),
            age,
            next_sweep: Duration::ZERO,
        }
    }

    /// Adds a port with its fixed address. Returns false if another port has that address.
    pub fn add_port(&mut self, port: PortId, mac: Option<Mac>) -> bool {
        self.counts.resize(port.0 + 1, 0);
        match mac {
            Some(mac) => *self.fixed.entry(mac).or_insert(port) == port,
            None => true,
        }
    }

    /// Returns the port of an address, if known.
    pub fn find(&self, vlan: Vlan, mac: Mac, now: Duration) -> Option<PortId> {
        if let Some(port) = self.fixed.get(&mac) {
            return Some(*port);
        }
        let entry = self.learned.get(&(vlan, mac))?;
        (now.saturating_sub(entry.seen) < self.age).then_some(entry.port)
    }

    /// Learns that a frame from `mac` came in at `port`, which may have up to `limit` addresses.
    pub fn learn(
        &mut self,
        vlan: Vlan,
        mac: Mac,
        port: PortId,
        limit: usize,
        now: Duration,
    ) -> Learned {
        if let Some(&owner) = self.fixed.get(&mac) {
            return if owner == port {
                Learned::Yes
            } else {
                Learned::Spoofed
            };
        }
        if let Some(entry) = self.learned.get_mut(&(vlan, mac))
            && entry.port == port
            && now.saturating_sub(entry.seen) < self.age
        {
            entry.seen = now;
            return Learned::Yes;
        }
        if self.counts[port.0] >= limit {
            self.sweep(now);
            if self.counts[port.0] >= limit {
                return Learned::Full;
            }
        }
        let entry = Entry { port, seen: now };
        if let Some(previous) = self.learned.insert((vlan, mac), entry) {
            self.counts[previous.port.0] -= 1;
        }
        self.counts[port.0] += 1;
        Learned::Yes
    }

    /// Forgets the addresses learned at `port`.
    pub fn forget(&mut self, port: PortId) {
        self.learned.retain(|_, entry| entry.port != port);
        self.counts[port.0] = 0;
    }

    /// Returns the learned addresses that have not expired.
    pub fn learned(&self, now: Duration) -> impl Iterator<Item = LearnedAddress> + '_ {
        self.learned
            .iter()
            .filter_map(move |(&(vlan, mac), entry)| {
                let age = now.saturating_sub(entry.seen);
                (age < self.age).then_some(LearnedAddress {
                    vlan,
                    mac,
                    port: entry.port,
                    age,
                })
            })
    }

    fn sweep(&mut self, now: Duration) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + Self::SWEEP_PAUSE;
        let (age, counts) = (self.age, &mut self.counts);
        self.learned.retain(|_, entry| {
            let keep = now.saturating_sub(entry.seen) < age;
            counts[entry.port.0] -= usize::from(!keep);
            keep
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGE: Duration = Duration::from_secs(300);
    const ONE: Vlan = Vlan::DEFAULT;

    fn mac(number: u16) -> Mac {
        let [a, b] = number.to_be_bytes();
        Mac([2, 0, 0, 0, a, b])
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn table(fixed: &[Option<Mac>]) -> Table {
        let mut table = Table::new(AGE);
        for (index, mac) in fixed.iter().enumerate() {
            assert!(table.add_port(PortId(index), *mac));
        }
        table
    }

    #[test]
    fn addresses_are_learned_move_and_expire() {
        let mut table = table(&[None, None]);
        assert_eq!(table.find(ONE, mac(1), at(0)), None);
        assert_eq!(table.learn(ONE, mac(1), PortId(0), 9, at(0)), Learned::Yes);
        assert_eq!(table.find(ONE, mac(1), at(299)), Some(PortId(0)));
        assert_eq!(table.find(Vlan::new(2).unwrap(), mac(1), at(0)), None);
        assert_eq!(table.learn(ONE, mac(1), PortId(1), 9, at(1)), Learned::Yes);
        assert_eq!(table.find(ONE, mac(1), at(300)), Some(PortId(1)));
        let known = LearnedAddress {
            vlan: ONE,
            mac: mac(1),
            port: PortId(1),
            age: at(299),
        };
        assert_eq!(table.learned(at(300)).collect::<Vec<_>>(), [known]);
        assert_eq!(table.find(ONE, mac(1), at(301)), None);
        assert_eq!(table.learned(at(301)).count(), 0);
        assert_eq!(table.counts, [0, 1]);
    }

    #[test]
    fn a_fixed_address_stays_where_it_is() {
        let mut table = table(&[Some(mac(1)), None]);
        assert_eq!(table.learn(ONE, mac(1), PortId(0), 0, at(0)), Learned::Yes);
        assert_eq!(
            table.learn(ONE, mac(1), PortId(1), 9, at(0)),
            Learned::Spoofed
        );
        assert_eq!(table.find(ONE, mac(1), at(9999)), Some(PortId(0)));
        assert!(!table.add_port(PortId(2), Some(mac(1))));
    }

    #[test]
    fn a_flood_harms_only_its_port() {
        let mut table = table(&[None, None]);
        table.learn(ONE, mac(1), PortId(1), 4, at(0));
        for number in 100..200 {
            let learned = table.learn(ONE, mac(number), PortId(0), 4, at(0));
            assert_eq!(learned == Learned::Yes, number < 104);
        }
        // An address of another port is not accepted either.
        assert_eq!(table.learn(ONE, mac(1), PortId(0), 4, at(0)), Learned::Full);
        assert_eq!(table.find(ONE, mac(1), at(0)), Some(PortId(1)));
        assert_eq!(table.learn(ONE, mac(2), PortId(1), 4, at(0)), Learned::Yes);
        // Expired addresses make room, but are swept only once a second.
        table.learn(ONE, mac(1), PortId(1), 4, at(299));
        assert_eq!(
            table.learn(ONE, mac(200), PortId(0), 4, at(300)),
            Learned::Yes
        );
        assert_eq!(table.learned.len(), 2);
        table.forget(PortId(0));
        assert_eq!(table.learned(at(300)).count(), 1);
        assert_eq!(table.counts, [0, 1]);
    }
}
