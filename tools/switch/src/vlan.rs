// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! VLANs (IEEE 802.1Q): the VLAN of a frame and the VLANs of a port.

use std::fmt;

/// A VLAN, 1 to 4094.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vlan(u16);

impl Vlan {
    /// VLAN 1, the VLAN of untagged frames unless a port is configured otherwise.
    pub const DEFAULT: Self = Self(1);

    /// Returns the VLAN with this identifier; `None` for 0 (no VLAN) and from 4095 on (reserved).
    pub const fn new(identifier: u16) -> Option<Self> {
        if identifier >= 1 && identifier <= 4094 {
            Some(Self(identifier))
        } else {
            None
        }
    }

    /// Returns the identifier.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Debug for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A set of VLANs.
#[derive(Clone, PartialEq, Eq)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Returns the empty set.
    pub fn none() -> Self {
        Self(Box::new([0; 64]))
    }

    /// Returns the set of all VLANs.
    pub fn all() -> Self {
        Self(Box::new([u64::MAX; 64]))
    }

    /// Adds a VLAN.
    pub fn insert(&mut self, vlan: Vlan) {
        self.0[usize::from(vlan.0 / 64)] |= 1 << (vlan.0 % 64);
    }

    /// Returns whether the set contains `vlan`.
    pub fn contains(&self, vlan: Vlan) -> bool {
        self.0[usize::from(vlan.0 / 64)] & 1 << (vlan.0 % 64) != 0
    }
}

impl fmt::Debug for VlanSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("all");
        }
        let vlans = (0..4095).filter_map(Vlan::new);
        f.debug_set()
            .entries(vlans.filter(|&vlan| self.contains(vlan)))
            .finish()
    }
}

impl fmt::Display for VlanSet {
    /// Writes the set as ranges: `7,20-39`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("all");
        }
        let has = |identifier| Vlan::new(identifier).is_some_and(|vlan| self.contains(vlan));
        let mut separator = "";
        for first in (1..4095).filter(|&first| has(first) && !has(first - 1)) {
            let last = (first..4095).take_while(|&last| has(last)).last();
            write!(f, "{separator}{first}")?;
            if let Some(last) = last.filter(|&last| last > first) {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl FromIterator<Vlan> for VlanSet {
    fn from_iter<I: IntoIterator<Item = Vlan>>(vlans: I) -> Self {
        let mut set = Self::none();
        vlans.into_iter().for_each(|vlan| set.insert(vlan));
        set
    }
}

/// VLANs of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Vlans {
    /// The port is in one VLAN, which the endpoint does not see: frames leave untagged, and come in untagged or with a
    /// priority tag.
    Access(Vlan),
    /// The port is in several VLANs, distinguished by tags.
    Trunk {
        /// VLAN of untagged frames; `None` if untagged frames are not accepted.
        native: Option<Vlan>,
        /// VLANs whose frames are tagged.
        tagged: VlanSet,
    },
}

impl Default for Vlans {
    /// Returns a trunk with all VLANs, where untagged frames are in [`Vlan::DEFAULT`].
    fn default() -> Self {
        Self::Trunk {
            native: Some(Vlan::DEFAULT),
            tagged: VlanSet::all(),
        }
    }
}

impl fmt::Display for Vlans {
    /// Writes the VLANs in the syntax of the configuration: `5`, or `tagged 7,20-39, untagged 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access(vlan) => write!(f, "{vlan:?}"),
            Self::Trunk { native, tagged } => {
                write!(f, "tagged {tagged}")?;
                native.map_or(Ok(()), |native| write!(f, ", untagged {native:?}"))
            }
        }
    }
}

impl Vlans {
    /// Returns the VLAN of a frame that came in with this identifier in its tag (0 for a priority tag) or untagged;
    /// `None` if the frame is not accepted.
    pub fn classify(&self, identifier: Option<u16>) -> Option<Vlan> {
        let tag = match identifier {
            None | Some(0) => None,
            Some(identifier) => Some(Vlan::new(identifier)?),
        };
        match (self, tag) {
            (Self::Access(vlan), None) => Some(*vlan),
            (Self::Access(vlan), Some(tag)) => (*vlan == tag).then_some(tag),
            (Self::Trunk { native, .. }, None) => *native,
            (Self::Trunk { native, tagged }, Some(tag)) => {
                (*native == Some(tag) || tagged.contains(tag)).then_some(tag)
            }
        }
    }

    /// Returns whether frames of `vlan` leave with a tag; `None` if they may not leave.
    pub fn egress_tag(&self, vlan: Vlan) -> Option<bool> {
        match self {
            Self::Access(own) => (*own == vlan).then_some(false),
            Self::Trunk { native, .. } if *native == Some(vlan) => Some(false),
            Self::Trunk { tagged, .. } => tagged.contains(vlan).then_some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(identifier: u16) -> Vlan {
        Vlan::new(identifier).unwrap()
    }

    #[test]
    fn identifiers_have_a_range() {
        assert_eq!(Vlan::new(0), None);
        assert_eq!(Vlan::new(4095), None);
        assert_eq!(vlan(4094).get(), 4094);
    }

    #[test]
    fn vlans_are_shown_as_ranges() {
        let tagged: VlanSet = [1, 2, 7, 20, 21, 22, 4094].map(vlan).into_iter().collect();
        assert_eq!(tagged.to_string(), "1-2,7,20-22,4094");
        assert_eq!(Vlans::Access(vlan(5)).to_string(), "5");
        assert_eq!(Vlans::default().to_string(), "tagged all, untagged 1");
        let native = None;
        assert_eq!(
            Vlans::Trunk { native, tagged }.to_string(),
            "tagged 1-2,7,20-22,4094"
        );
    }

    #[test]
    fn an_access_port_is_in_one_vlan() {
        let port = Vlans::Access(vlan(5));
        assert_eq!(port.classify(None), Some(vlan(5)));
        assert_eq!(port.classify(Some(0)), Some(vlan(5)), "priority tag");
        assert_eq!(port.classify(Some(5)), Some(vlan(5)));
        assert_eq!(port.classify(Some(6)), None);
        assert_eq!(port.egress_tag(vlan(5)), Some(false));
        assert_eq!(port.egress_tag(vlan(1)), None);
    }

    #[test]
    fn a_trunk_tells_vlans_apart_by_tags() {
        let port = Vlans::Trunk {
            native: Some(vlan(1)),
            tagged: [vlan(7), vlan(4094)].into_iter().collect(),
        };
        assert_eq!(port.classify(None), Some(vlan(1)));
        assert_eq!(port.classify(Some(0)), Some(vlan(1)));
        assert_eq!(port.classify(Some(1)), Some(vlan(1)));
        assert_eq!(port.classify(Some(4094)), Some(vlan(4094)));
        assert_eq!(port.classify(Some(4095)), None);
        assert_eq!(port.classify(Some(8)), None);
        assert_eq!(port.egress_tag(vlan(1)), Some(false));
        assert_eq!(port.egress_tag(vlan(7)), Some(true));
        assert_eq!(port.egress_tag(vlan(8)), None);
        let closed = Vlans::Trunk {
            native: None,
            tagged: VlanSet::all(),
        };
        assert_eq!(closed.classify(None), None);
        assert_eq!(closed.egress_tag(vlan(1)), Some(true));
    }
}
