// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Path migration: a connection changes to an alternate path to its peer, which its owner has loaded before (IBTA
//! volume 1, 17.2.8).

use super::{Qp, attributes::check_address};
use crate::{
    cause::Cause,
    memory::Memory,
    resources::{Io, Resources},
    segment::{Body, Path, Segment},
    state::wire,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    event::EventType,
    qp::{AlternatePath, Migration, QpState, attribute},
};

/// Path migration state of a queue pair.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct PathMigration {
    #[serde(with = "wire")]
    state: Migration,
    /// The alternate path, as the owner loaded it.
    alternate: Option<Alternate>,
    /// Whether the owner has been told, since it last set the state, that the peer uses a path that is not the
    /// alternate one.
    told: bool,
    /// Whether a packet of the peer has arrived by the current path since this side migrated to it.
    followed: bool,
}

/// An alternate path.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
struct Alternate {
    #[serde(with = "wire")]
    attributes: AlternatePath,
    path: Path,
}

impl Default for PathMigration {
    /// Returns the state of a queue pair that was reset.
    fn default() -> Self {
        Self {
            state: Migration::Migrated,
            alternate: None,
            told: false,
            followed: true,
        }
    }
}

/// How a packet for a connection arrived.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By the current path.
    Current,
    /// By the alternate path, to which the peer has migrated.
    Alternate,
    /// By another path, to which the peer claims to have migrated.
    Wrong,
    /// Not from the peer.
    Strange,
}

impl PathMigration {
    /// Returns whether packets tell the peer that this side is in the migrated state. They do so until the peer has
    /// followed, even if the owner has set the next state before, because the peer would drop them otherwise.
    pub(super) fn is_migrated(&self) -> bool {
        self.state == Migration::Migrated || !self.followed
    }

    /// Returns the path migration state.
    pub(super) fn state(&self) -> Migration {
        self.state
    }

    /// Returns the alternate path, or zeros if there is none.
    pub(super) fn alternate(&self) -> AlternatePath {
        let alternate = self.alternate.as_ref();
        alternate.map_or_else(AlternatePath::default, |one| one.attributes)
    }

    /// Returns how a packet arrived at a queue pair whose current path is `current`. `admitted` is whether the P_Key of
    /// that path admits it. Only the P_Key may distinguish the two paths.
    pub(super) fn way_of(
        &self,
        segment: &Segment<'_>,
        current: &Path,
        admitted: impl FnOnce() -> bool,
    ) -> Way {
        // The bit has no meaning in congestion notifications.
        let tells = !matches!(segment.body, Body::CongestionNotification);
        let asks = tells && segment.migrated && self.state == Migration::Armed;
        let by = |path| segment.path.answers(path);
        if asks
            && self.alternate.as_ref().is_some_and(|one| by(&one.path))
            && !(by(current) && admitted())
        {
            Way::Alternate
        } else if by(current) {
            // If the bit is set, the packet was overtaken by the one that armed this side.
            Way::Current
        } else if asks {
            Way::Wrong
        } else {
            Way::Strange
        }
    }
}

impl Qp {
    /// Checks whether the path migration attributes in `mask` can be set, without changing anything.
    pub(super) fn check_migration(
        &self,
        mask: u32,
        wanted: u8,
        alternate: Option<&AlternatePath>,
        resources: &Resources,
    ) -> Result<(), Cause> {
        let valid = |ok: bool| ok.then_some(()).ok_or(Cause::AttributeValue);
        let loads = mask & attribute::ALTERNATE_PATH != 0;
        if loads {
            // A command without an alternate path cannot load one.
            let alternate = alternate.ok_or(Cause::AttributeForbidden)?;
            valid(alternate.port == 1 && alternate.timeout < 32)?;
            valid(alternate.pkey_index.get() < resources.pkey_table_length())?;
            check_address(&alternate.address, resources)?;
        }
        if mask & attribute::PATH_MIGRATION_STATE != 0 {
            let wanted = Migration::try_from(wanted).map_err(|_| Cause::AttributeValue)?;
            let from = self.migration.state;
            let possible = match wanted {
                Migration::Migrated => from != Migration::Rearm,
                Migration::Rearm => self.has_two_paths(alternate.filter(|_| loads), resources),
                // Only a packet of the peer sets this state.
                Migration::Armed => return Err(Cause::AttributeValue),
            };
            return possible.then_some(()).ok_or(Cause::MigrationState);
        }
        Ok(())
    }

    /// Returns whether the alternate path, or the one in `loaded` if that is loaded with it, differs from the path in
    /// use. After a migration, it does not until another one is loaded.
    fn has_two_paths(&self, loaded: Option<&AlternatePath>, resources: &Resources) -> bool {
        let (path, pkey_index) = match (loaded, &self.migration.alternate) {
            (Some(attributes), _) => (
                self.connected_path(&attributes.address, resources),
                attributes.pkey_index.get(),
            ),
            (None, Some(one)) => (Some(one.path), one.attributes.pkey_index.get()),
            (None, None) => return false,
        };
        path.is_some_and(|path| (path, pkey_index) != (self.path, self.attributes.pkey_index))
    }

    /// Sets the path migration attributes in `mask`, which must have been [checked](Self::check_migration).
    pub(super) fn set_migration<M: Memory>(
        &mut self,
        mask: u32,
        wanted: u8,
        alternate: Option<&AlternatePath>,
        resources: &Resources,
        io: &Io<'_, M>,
    ) {
        if mask & attribute::ALTERNATE_PATH != 0
            && let Some(&attributes) = alternate
            && let Some(path) = self.connected_path(&attributes.address, resources)
        {
            self.migration.alternate = Some(Alternate { attributes, path });
        }
        if mask & attribute::PATH_MIGRATION_STATE == 0 {
            return;
        }
        if wanted == Migration::Rearm.raw() {
            self.migration.state = Migration::Rearm;
            self.migration.told = false;
        } else if self.migration.state == Migration::Armed {
            self.migrate(io);
        }
    }

    /// Returns the P_Key index for packets that arrive by `way`.
    pub(super) fn pkey_index_of(&self, way: Way) -> u16 {
        match (way, &self.migration.alternate) {
            (Way::Alternate, Some(alternate)) => alternate.attributes.pkey_index.get(),
            _ => self.attributes.pkey_index,
        }
    }

    /// Follows the peer, which may have armed or migrated to the alternate path, when a packet is accepted.
    pub(super) fn follow_peer<M: Memory>(
        &mut self,
        way: Way,
        segment: &Segment<'_>,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) {
        let notifies = matches!(segment.body, Body::CongestionNotification);
        if way == Way::Alternate {
            self.migrate(io);
            self.migration.followed = true;
            self.raise(EventType::PathMigrated, None, resources);
            return;
        }
        self.migration.followed = true;
        if !segment.migrated && !notifies && self.migration.state == Migration::Rearm {
            self.migration.state = Migration::Armed;
        }
    }

    /// Tells the owner that the peer has migrated to a path that is not the alternate one, but only once.
    pub(super) fn note_wrong_way(&mut self, resources: &mut Resources) {
        if !std::mem::replace(&mut self.migration.told, true) {
            let cause = Some(Cause::MigrationPath);
            self.raise(EventType::PathMigrationError, cause, resources);
        }
    }

    /// Migrates after all retries by the current path have failed. Returns whether there was an alternate path.
    pub(super) fn migrate_or_fail<M: Memory>(
        &mut self,
        resources: &mut Resources,
        io: &Io<'_, M>,
    ) -> bool {
        let armed = self.migration.state == Migration::Armed;
        if armed {
            self.migrate(io);
            self.raise(EventType::PathMigrated, None, resources);
        }
        armed
    }

    /// Migrates to the alternate path, and sends unacknowledged packets again by it.
    fn migrate<M: Memory>(&mut self, io: &Io<'_, M>) {
        let Some(Alternate { attributes, path }) = self.migration.alternate else {
            return;
        };
        self.migration.state = Migration::Migrated;
        self.migration.followed = false;
        self.path = path;
        self.attributes.address = attributes.address;
        self.attributes.pkey_index = attributes.pkey_index.get();
        self.attributes.port = attributes.port;
        if self.is_reliable() {
            self.attributes.timeout = attributes.timeout;
        }
        self.congestion.change_path();
        self.renew_pacer(io.now);
        if !self.is_unreliable()
            && matches!(self.state, QpState::ReadyToSend | QpState::SendQueueDrain)
        {
            self.resend_by_new_path(io.now);
        }
    }
}
