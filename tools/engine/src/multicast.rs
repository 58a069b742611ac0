// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Multicast groups (IBTA volume 1, 10.5).

use crate::{cause::Cause, limits::Limits, segment::Group};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use vrnic_wire::port::is_multicast;

/// The attachments of queue pairs to multicast groups.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Groups {
    /// Queue pairs of each group, at least one, in the order in which they were attached.
    members: BTreeMap<Group, Vec<u32>>,
    /// The same pairs, by queue pair.
    attached: BTreeSet<(u32, Group)>,
    /// Largest numbers of groups, of members of a group, and of attachments in total.
    limits: [u32; 3],
    /// Increases by one when a group is created or removed.
    generation: u64,
}

impl Groups {
    /// Creates an empty set of groups.
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            members: BTreeMap::new(),
            attached: BTreeSet::new(),
            limits: [
                limits.multicast_groups,
                limits.multicast_members,
                limits.multicast_attachments,
            ],
            generation: 0,
        }
    }

    /// Attaches a queue pair to a group.
    pub(crate) fn attach(&mut self, qpn: u32, group: Group) -> Result<(), Cause> {
        if !is_multicast(&group.0) {
            return Err(Cause::MulticastGid);
        }
        if self.attached.contains(&(qpn, group)) {
            return Err(Cause::Attached);
        }
        let [groups, members, all] = self.limits.map(|limit| limit as usize);
        let there = self.members(&group).len();
        let is_full = there >= members || self.attached.len() >= all;
        if is_full || there == 0 && self.members.len() >= groups {
            return Err(Cause::LimitReached);
        }
        self.attached.insert((qpn, group));
        self.members.entry(group).or_default().push(qpn);
        self.generation += u64::from(there == 0);
        Ok(())
    }

    /// Detaches a queue pair from a group.
    pub(crate) fn detach(&mut self, qpn: u32, group: Group) -> Result<(), Cause> {
        if !self.attached.remove(&(qpn, group)) {
            return Err(Cause::NotAttached);
        }
        if let Some(members) = self.members.get_mut(&group) {
            members.retain(|&member| member != qpn);
            if members.is_empty() {
                self.members.remove(&group);
                self.generation += 1;
            }
        }
        Ok(())
    }

    /// Detaches a queue pair from all groups.
    pub(crate) fn forget(&mut self, qpn: u32) {
        let of_it = (qpn, ([0; 16], 0))..=(qpn, ([0xff; 16], u16::MAX));
        let groups: Vec<Group> = self
            .attached
            .range(of_it)
            .map(|(_, group)| *group)
            .collect();
        for group in groups {
            // This cannot fail, because the queue pair is attached to each of these groups.
            let _ = self.detach(qpn, group);
        }
    }

    /// Returns the queue pairs of a group.
    pub(crate) fn members(&self, group: &Group) -> &[u32] {
        self.members.get(group).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of members of all groups together.
    pub(crate) fn attachments(&self) -> usize {
        self.attached.len()
    }

    /// Returns a number that changes whenever a group gets its first member or loses its last one.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the groups that have members, in the order of their GIDs.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Group, &[u32])> {
        self.members
            .iter()
            .map(|(group, members)| (group, members.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(last: u8) -> Group {
        let mut gid = [0; 16];
        (gid[0], gid[15]) = (0xff, last);
        (gid, 0)
    }

    fn groups(limits: [u32; 3]) -> Groups {
        let [multicast_groups, multicast_members, multicast_attachments] = limits;
        Groups::new(&Limits {
            multicast_groups,
            multicast_members,
            multicast_attachments,
            ..Limits::default()
        })
    }

    #[test]
    fn each_limit_holds_by_itself() {
        let full = Err(Cause::LimitReached);
        let mut table = groups([2, 9, 9]);
        assert_eq!(
            [1, 2, 3].map(|n| table.attach(5, group(n))),
            [Ok(()), Ok(()), full]
        );
        assert_eq!(table.attach(6, group(2)), Ok(()), "no new group");
        let mut table = groups([9, 2, 9]);
        assert_eq!(
            [1, 2, 3].map(|qpn| table.attach(qpn, group(1))),
            [Ok(()), Ok(()), full]
        );
        assert_eq!(table.attach(1, group(1)), Err(Cause::Attached));
        let mut table = groups([9, 9, 2]);
        assert_eq!(
            [1, 2, 3].map(|qpn| table.attach(qpn, group(qpn as u8 % 2))),
            [Ok(()), Ok(()), full]
        );
        table.detach(1, group(1)).expect("attached");
        assert_eq!(table.attach(3, group(1)), Ok(()));
    }

    #[test]
    fn a_queue_pair_leaves_all_its_groups() {
        let mut table = groups([9, 9, 9]);
        for (qpn, last) in [(7, 1), (8, 1), (7, 2), (9, 3)] {
            table.attach(qpn, group(last)).expect("room");
        }
        assert_eq!(table.members(&group(1)), [7, 8]);
        table.forget(7);
        let left: Vec<_> = table
            .iter()
            .map(|(group, members)| (*group, members))
            .collect();
        assert_eq!(left, [(group(1), &[8][..]), (group(3), &[9][..])]);
        assert_eq!(table.attachments(), 2);
        assert_eq!(table.detach(7, group(1)), Err(Cause::NotAttached));
        table.forget(8);
        table.forget(9);
        assert_eq!(table.iter().count() + table.attachments(), 0);
    }

    #[test]
    fn groups_have_multicast_gids() {
        let mut table = groups([9, 9, 9]);
        let mapped = |first| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, first, 1, 2, 3];
        for first in [224, 239] {
            assert_eq!(table.attach(1, (mapped(first), 0)), Ok(()));
        }
        for gid in [mapped(223), mapped(240), [0; 16], [0xfe; 16]] {
            assert_eq!(table.attach(1, (gid, 0)), Err(Cause::MulticastGid));
        }
    }

    #[test]
    fn a_group_is_a_gid_and_a_lid() {
        let mut table = groups([9, 9, 9]);
        let (gid, _) = group(1);
        let before = table.generation();
        table.attach(7, (gid, 0xc001)).expect("room");
        table.attach(8, (gid, 0xc002)).expect("room");
        assert_eq!(table.members(&(gid, 0xc001)), [7]);
        assert_eq!(table.members(&(gid, 0)), []);
        assert_eq!(table.detach(7, (gid, 0xc002)), Err(Cause::NotAttached));
        table.attach(9, (gid, 0xc002)).expect("room");
        assert_eq!(table.generation(), before + 2, "no new group");
        table.forget(7);
        assert_eq!(table.generation(), before + 3);
    }
}
