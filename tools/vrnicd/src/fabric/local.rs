// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The network inside this process.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use vrnic_engine::Segment;
use vrnic_engine::segment::Gid;

use super::Route;

/// Connects all RNICs of this process by their GIDs.
///
/// A device reaches itself at any of its own GIDs. Several devices have the same GID only by misconfiguration of the
/// guests or in an attack. Others then reach the device that had the GID first, and segments from the other devices
/// with this GID as source are dropped.
#[derive(Default)]
pub struct Local {
    /// GIDs of each device.
    devices: Vec<Vec<Gid>>,
    owners: HashMap<Gid, usize>,
    /// Route of the last segment of each device. Many segments in a row take the same route, and a lookup is slow.
    last: Vec<Option<Way>>,
}

/// A route that was looked up.
#[derive(Clone, Copy)]
struct Way {
    source: Gid,
    destination: Gid,
    route: Route,
}

impl Local {
    /// Creates a network without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the GIDs of device `device`.
    pub fn set_gids(&mut self, device: usize, gids: impl Iterator<Item = Gid>) {
        if self.devices.len() <= device {
            self.devices.resize(device + 1, Vec::new());
        }
        self.devices[device] = gids.collect();
        self.last.clear();
        let kept = &self.devices[device];
        self.owners
            .retain(|gid, owner| *owner != device || kept.contains(gid));
        for (owner, gids) in self.devices.iter().enumerate() {
            for gid in gids {
                if let Entry::Vacant(vacant) = self.owners.entry(*gid) {
                    vacant.insert(owner);
                }
            }
        }
    }

    /// Returns the route of `segment`, sent by device `from`.
    pub fn route(&mut self, from: usize, segment: &Segment<'_>) -> Route {
        let (source, destination) = (segment.path.source, segment.path.destination);
        if let Some(Some(way)) = self.last.get(from)
            && (way.source, way.destination) == (source, destination)
        {
            return way.route;
        }
        let route = self.find(from, segment);
        if self.last.len() <= from {
            self.last.resize(from + 1, None);
        }
        self.last[from] = Some(Way {
            source,
            destination,
            route,
        });
        route
    }

    fn find(&self, from: usize, segment: &Segment<'_>) -> Route {
        let destination = &segment.path.destination;
        let multicast = segment.path.is_multicast();
        if !multicast
            && self
                .devices
                .get(from)
                .is_some_and(|gids| gids.contains(destination))
        {
            return Route::Device(from);
        }
        let owner = self.owners.get(&segment.path.source);
        if owner.is_some_and(|&owner| owner != from) {
            return Route::Nowhere;
        }
        if multicast {
            return Route::Group;
        }
        self.owners
            .get(destination)
            .map_or(Route::Nowhere, |&owner| Route::Device(owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{Body, Path, Payload, Position, SendTail, Service};

    fn to(destination: Gid) -> Segment<'static> {
        Segment {
            path: Path {
                destination,
                ..Path::default()
            },
            source_qpn: 0,
            destination_qpn: 2,
            pkey: 0xffff,
            checksums_ok: false,
            touched: vrnic_engine::segment::Touched::NOT,
            psn: Psn::default(),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Only,
                tail: SendTail::Plain,
            },
            payload: Payload::Empty,
        }
    }

    #[test]
    fn routes_follow_the_gid_tables() {
        let mut local = Local::new();
        local.set_gids(1, [[1; 16], [2; 16]].into_iter());
        local.set_gids(0, [[2; 16], [3; 16]].into_iter());
        assert_eq!(local.route(0, &to([1; 16])), Route::Device(1));
        assert_eq!(
            local.route(0, &to([2; 16])),
            Route::Device(0),
            "loopback first"
        );
        assert_eq!(
            local.route(1, &to([2; 16])),
            Route::Device(1),
            "loopback first"
        );
        assert_eq!(
            local.route(2, &to([2; 16])),
            Route::Device(1),
            "first owner"
        );
        assert_eq!(local.route(1, &to([9; 16])), Route::Nowhere);
        for way in [[1; 16], [2; 16], [1; 16], [1; 16]] {
            let owner = usize::from(way == [1; 16]);
            assert_eq!(
                local.route(0, &to(way)),
                Route::Device(owner),
                "the last way is found again, and no other"
            );
        }
        local.set_gids(1, std::iter::empty());
        assert_eq!(
            local.route(0, &to([1; 16])),
            Route::Nowhere,
            "a way ends with its GID"
        );
        assert_eq!(local.route(1, &to([1; 16])), Route::Nowhere);
        assert_eq!(
            local.route(1, &to([2; 16])),
            Route::Device(0),
            "the next owner"
        );
    }

    #[test]
    fn a_gid_stays_with_who_had_it_first() {
        let mut local = Local::new();
        let victims = [[1; 16], [2; 16]];
        local.set_gids(1, victims[..1].iter().copied());
        local.set_gids(0, [[1; 16], [3; 16]].into_iter());
        // The first owner changes its table and keeps the GID.
        local.set_gids(1, victims.into_iter());
        assert_eq!(local.route(2, &to([1; 16])), Route::Device(1));
        local.set_gids(0, [[1; 16]].into_iter());
        assert_eq!(local.route(2, &to([1; 16])), Route::Device(1));
    }

    #[test]
    fn nobody_speaks_under_the_name_of_another() {
        let mut local = Local::new();
        local.set_gids(1, [[1; 16]].into_iter());
        local.set_gids(2, [[2; 16]].into_iter());
        local.set_gids(0, [[1; 16], [3; 16]].into_iter());
        let from = |source| {
            let mut segment = to([2; 16]);
            segment.path.source = source;
            segment
        };
        assert_eq!(local.route(0, &from([3; 16])), Route::Device(2));
        assert_eq!(local.route(1, &from([1; 16])), Route::Device(2));
        assert_eq!(local.route(0, &from([1; 16])), Route::Nowhere);
    }

    #[test]
    fn a_group_is_of_nobody() {
        let mut local = Local::new();
        let group = [0xff; 16];
        local.set_gids(1, [[1; 16]].into_iter());
        // A device that claims the group as its own GID gains nothing from that.
        local.set_gids(0, [group, [1; 16]].into_iter());
        let from = |source| {
            let mut segment = to(group);
            segment.path.source = source;
            segment
        };
        assert_eq!(local.route(1, &from([1; 16])), Route::Group);
        assert_eq!(local.route(0, &from(group)), Route::Group);
        assert_eq!(local.route(0, &from([1; 16])), Route::Nowhere);
    }
}
