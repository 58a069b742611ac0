// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The address table: which MAC address is behind which port.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::port::PortId;
use crate::vlan::Vlan;

/// A MAC address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Whether it is a multicast address (or broadcast).
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether switches keep frames to it to themselves (IEEE 802.1Q, table 8-1).
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

/// What learning a source address gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learned {
    /// It is known to be behind the port.
    Yes,
    /// It is the fixed address of another port.
    Spoofed,
    /// It is new and the port has as many as it may.
    Full,
}

/// An address that was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LearnedAddress {
    /// The VLAN that it was seen in.
    pub vlan: Vlan,
    /// The address.
    pub mac: Mac,
    /// The port that it is behind.
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
/// Fixed ones are behind one port in all its VLANs. Learned ones belong to one VLAN, move with their owner, and are
/// forgotten when nothing came from them for a while. Each port has at most a number of them, so the table is bounded.
#[derive(Debug)]
pub struct Table {
    fixed: HashMap<Mac, PortId>,
    learned: HashMap<(Vlan, Mac), Entry>,
    /// Learned addresses of each port, expired ones included.
    counts: Vec<usize>,
    age: Duration,
    /// When looking for expired ones may pay again.
    next_sweep: Duration,
}

impl Table {
    /// Shortest time between two sweeps: what a flood of new addresses costs at most.
    const SWEEP_PAUSE: Duration = Duration::from_secs(1);

    /// Empty; learned addresses hold for `age` after the last frame.
    pub fn new(age: Duration) -> Self {
        Self {
            fixed: HashMap::new(),
            learned: HashMap::new(),
            counts: Vec::new(),
            age,
            next_sweep: Duration::ZERO,
        }
    }

    /// Another port, with its fixed address. False if that is another port's.
    pub fn add_port(&mut self, port: PortId, mac: Option<Mac>) -> bool {
        self.counts.resize(port.0 + 1, 0);
        match mac {
            Some(mac) => *self.fixed.entry(mac).or_insert(port) == port,
            None => true,
        }
    }

    /// The port of an address, if known.
    pub fn find(&self, vlan: Vlan, mac: Mac, now: Duration) -> Option<PortId> {
        if let Some(port) = self.fixed.get(&mac) {
            return Some(*port);
        }
        let entry = self.learned.get(&(vlan, mac))?;
        (now.saturating_sub(entry.seen) < self.age).then_some(entry.port)
    }

    /// A frame from `mac` came by `port`, which may have `limit` addresses.
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

    /// Forgets what was learned at `port`.
    pub fn forget(&mut self, port: PortId) {
        self.learned.retain(|_, entry| entry.port != port);
        self.counts[port.0] = 0;
    }

    /// Learned addresses, those that expired left out.
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
        // Another port's address does not get in either.
        assert_eq!(table.learn(ONE, mac(1), PortId(0), 4, at(0)), Learned::Full);
        assert_eq!(table.find(ONE, mac(1), at(0)), Some(PortId(1)));
        assert_eq!(table.learn(ONE, mac(2), PortId(1), 4, at(0)), Learned::Yes);
        // What expired makes room, but is looked for only once a second.
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
