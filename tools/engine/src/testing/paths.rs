// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Second paths between devices, and connections that migrate to them.

use super::world::{Connection, World, gid_of, lid_of};
use crate::cause::Cause;
use vrnic_wire::{
    command::{SetGid, Status},
    port::{GidEntry, GidType, NO_VLAN},
    qp::{
        AlternatePath, Migration, QpAttributes,
        attribute::{ALTERNATE_PATH, PATH_MIGRATION_STATE},
    },
    work::{AddressVector, LidAddress},
};

/// Local ACK timeout of all alternate paths.
pub const ALTERNATE_TIMEOUT: u8 = 9;

/// Returns the second GID of the device of guest `index` after [`World::add_second_paths`].
pub fn second_gid_of(index: usize) -> [u8; 16] {
    let mut gid = gid_of(index);
    gid[14] = 1;
    gid
}

impl World {
    /// Gives each device a second GID. On a subnet, devices have several LIDs already.
    pub fn add_second_paths(&mut self) {
        for (index, node) in self.nodes.iter_mut().enumerate() {
            if node.rnic.is_on_subnet() {
                continue;
            }
            let request = SetGid {
                index: 1.into(),
                reserved: 0.into(),
                entry: GidEntry {
                    gid: second_gid_of(index),
                    mac: [2, 0, 0, 0, 1, index as u8],
                    vlan: NO_VLAN.into(),
                    gid_type: GidType::RoceV2.raw(),
                    reserved: [0; 7],
                },
            };
            node.guest.command(&mut node.rnic, request).expect("gid");
        }
    }

    /// Returns the address of a device on the first or second path.
    pub fn address_of(&self, peer: usize, second: bool) -> AddressVector {
        let path = u8::from(second);
        if self.nodes[peer].rnic.is_on_subnet() {
            let lid = LidAddress {
                dlid: (lid_of(peer) + u16::from(path)).into(),
                path_bits: path,
                ..LidAddress::default()
            };
            return AddressVector {
                dmac: lid.to_bytes(),
                ..AddressVector::default()
            };
        }
        AddressVector {
            dgid: if second {
                second_gid_of(peer)
            } else {
                gid_of(peer)
            },
            sgid_index: path,
            ..AddressVector::default()
        }
    }

    /// Returns this address as an alternate path.
    pub fn alternate_of(&self, peer: usize, second: bool) -> AlternatePath {
        AlternatePath {
            address: self.address_of(peer, second),
            port: 1,
            timeout: ALTERNATE_TIMEOUT,
            ..AlternatePath::default()
        }
    }
}

/// Returns attributes for path migration.
pub fn migration(mask: u32, state: Migration) -> QpAttributes {
    QpAttributes {
        mask: mask.into(),
        path_migration_state: state.raw(),
        ..QpAttributes::default()
    }
}

impl Connection {
    /// Sets the state of path migration of one side.
    ///
    /// # Errors
    ///
    /// The device's answer if it refuses.
    pub fn set_migration(
        &self,
        world: &mut World,
        side: usize,
        state: Migration,
    ) -> Result<(), (Status, Cause)> {
        let wanted = migration(PATH_MIGRATION_STATE, state);
        let none = AlternatePath::default();
        world.modify_paths(self.nodes[side], self.qps[side].qpn, wanted, none)
    }

    /// Loads the second or first path as the alternate path of one side, and sets its state to rearm.
    pub fn rearm(&self, world: &mut World, side: usize, second: bool) {
        let wanted = migration(PATH_MIGRATION_STATE | ALTERNATE_PATH, Migration::Rearm);
        let alternate = world.alternate_of(self.nodes[1 - side], second);
        let done = world.modify_paths(self.nodes[side], self.qps[side].qpn, wanted, alternate);
        assert_eq!(done, Ok(()));
    }

    /// Returns the path migration state of both sides.
    pub fn migrations(&self, world: &mut World) -> [Migration; 2] {
        [0, 1].map(|side| {
            let paths = world.paths(self.nodes[side], self.qps[side].qpn);
            Migration::try_from(paths.attributes.path_migration_state).expect("a state")
        })
    }

    /// Returns for each side whether it uses the second path.
    pub fn use_second(&self, world: &mut World) -> [bool; 2] {
        [0, 1].map(|side| {
            let used = world.paths(self.nodes[side], self.qps[side].qpn);
            let used = used.attributes.address;
            let [first, second] =
                [false, true].map(|second| world.address_of(self.nodes[1 - side], second));
            assert!(used == first || used == second, "{used:?}");
            used == second
        })
    }

    /// Takes the next step towards the other path, if there is one: rearms both sides, or makes one of them migrate.
    /// Returns whether it migrates.
    pub fn wander(&self, world: &mut World, side: usize) -> bool {
        match self.migrations(world) {
            [Migration::Armed, Migration::Armed] => {
                assert_eq!(self.set_migration(world, side, Migration::Migrated), Ok(()));
                true
            }
            [Migration::Migrated, Migration::Migrated] => {
                let [used, _] = self.use_second(world);
                (0..2).for_each(|side| self.rearm(world, side, !used));
                false
            }
            _ => false,
        }
    }
}
