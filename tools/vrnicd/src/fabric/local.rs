// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The network inside this process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use imbl::OrdMap;
use vrnic_engine::Segment;
use vrnic_engine::segment::{Gid, Group};

use super::Route;
use crate::inbox::Latest;

/// Connects all RNICs of this process by their GIDs.
///
/// A device reaches itself at any of its own GIDs. Several devices have the same GID only by misconfiguration of the
/// guests or in an attack. Others then reach the device that had the GID first, and segments from the other devices
/// with this GID as source are dropped.
///
/// Only a device's command, or a fault, changes the tables, and only that takes the lock. Each change leaves the new
/// tables with every worker (`inbox::Latest`), so a worker that carries segments waits for nobody.
#[derive(Default)]
pub struct Local {
    tables: Mutex<Known>,
}

/// What the network knows.
#[derive(Default)]
struct Known {
    view: View,
    /// The GIDs of each device.
    gids: Vec<BTreeSet<Gid>>,
    /// The multicast groups of each device.
    groups: Vec<BTreeSet<Group>>,
    /// The workers, to which changes are told.
    workers: Vec<Arc<Latest<View>>>,
}

/// The tables at one time. Every worker has a copy. Copies share what has not changed, so a device pays for its own
/// GIDs and groups when it changes them, and not for those of everybody.
#[derive(Clone, Default)]
struct View {
    owners: Devices<Gid>,
    members: Devices<Group>,
}

/// The devices that have a GID, or members of a multicast group, in the order in which they came.
pub type Devices<K> = OrdMap<K, Vec<usize>>;

impl Known {
    /// Tells all workers of a change.
    fn tell(&mut self) {
        // Nobody else has the place of a worker that is gone.
        self.workers.retain(|news| Arc::strong_count(news) > 1);
        for news in &self.workers {
            news.put(self.view.clone());
        }
    }
}

/// Sets what `device` has to `after`. `all` is what each device has, and `devices` says the same from the other side.
fn set<K: Ord + Copy>(
    devices: &mut Devices<K>,
    all: &mut Vec<BTreeSet<K>>,
    device: usize,
    after: impl Iterator<Item = K>,
) {
    if all.len() <= device {
        all.resize(device + 1, BTreeSet::new());
    }
    let before = std::mem::replace(&mut all[device], after.collect());
    for key in before.difference(&all[device]) {
        let Some(having) = devices.get_mut(key) else {
            continue;
        };
        having.retain(|&other| other != device);
        if having.is_empty() {
            devices.remove(key);
        }
    }
    for key in all[device].difference(&before) {
        devices.entry(*key).or_default().push(device);
    }
}

/// A device exchanges much with another one if at least one of this many of its segments goes there.
const MUCH: u64 = 16;

/// What one worker knows of the GIDs.
pub struct Routes {
    view: View,
    /// The tables after the last change, if the worker has not noticed it yet.
    news: Arc<Latest<View>>,
    /// Route of the last segment of each device. Many segments in a row take the same route, and a lookup is slow.
    last: Vec<Option<Way>>,
    /// Number of segments that went from a sender to a receiver, without those that `last` counts.
    traffic: HashMap<(usize, usize), u64>,
}

/// A route that was looked up.
#[derive(Clone, Copy)]
struct Way {
    source: Gid,
    destination: Gid,
    route: Route,
    /// Number of segments that took it in a row.
    count: u64,
}

impl Local {
    /// Creates a network without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the GIDs of device `device`.
    pub fn set_gids(&self, device: usize, gids: impl Iterator<Item = Gid>) {
        let known = &mut *self.lock();
        set(&mut known.view.owners, &mut known.gids, device, gids);
        known.tell();
    }

    /// Sets the multicast groups in which device `device` has members.
    pub fn set_groups(&self, device: usize, groups: impl Iterator<Item = Group>) {
        let known = &mut *self.lock();
        set(&mut known.view.members, &mut known.groups, device, groups);
        known.tell();
    }

    /// Returns whether a device has a GID.
    #[cfg(test)]
    pub fn has_gid(&self, device: usize, gid: &Gid) -> bool {
        let gids = &self.lock().gids;
        gids.get(device).is_some_and(|gids| gids.contains(gid))
    }

    /// Returns a worker's view.
    pub fn routes(&self) -> Routes {
        let mut known = self.lock();
        let news = Arc::new(Latest::new());
        known.workers.push(news.clone());
        Routes {
            view: known.view.clone(),
            news,
            last: Vec::new(),
            traffic: HashMap::new(),
        }
    }

    /// Locks the tables. A thread that panics while it changes them takes the process down.
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routes {
    /// Returns the route of `segment`, sent by device `from`.
    pub fn route(&mut self, from: usize, segment: &Segment<'_>) -> Route {
        if let Some(view) = self.news.take() {
            self.count_last();
            self.view = view;
        }
        let (source, destination) = (segment.path.source, segment.path.destination);
        if let Some(Some(way)) = self.last.get_mut(from)
            && (way.source, way.destination) == (source, destination)
        {
            way.count += 1;
            return way.route;
        }
        let route = self.view.find(from, segment);
        if self.last.len() <= from {
            self.last.resize(from + 1, None);
        }
        let way = Way {
            source,
            destination,
            route,
            count: 1,
        };
        if let Some(before) = self.last[from].replace(way) {
            self.count(from, before);
        }
        route
    }

    /// Returns the devices that have members of each multicast group.
    pub fn members(&self) -> Devices<Group> {
        self.view.members.clone()
    }

    /// Returns the pairs of a sender and a receiver to which at least one in `MUCH` of the sender's segments went
    /// since the last call. So each sender is in a few pairs at most, and cannot make itself a partner of a device that
    /// hardly answers.
    pub fn take_pairs(&mut self) -> HashSet<(usize, usize)> {
        self.count_last();
        let traffic = std::mem::take(&mut self.traffic);
        let mut sent: HashMap<usize, u64> = HashMap::new();
        for ((from, _), count) in &traffic {
            *sent.entry(*from).or_default() += count;
        }
        let much = traffic
            .iter()
            .filter(|((from, _), count)| **count * MUCH >= sent[from]);
        much.map(|(pair, _)| *pair).collect()
    }

    fn count_last(&mut self) {
        let last = std::mem::take(&mut self.last);
        for (from, way) in last.into_iter().enumerate() {
            if let Some(way) = way {
                self.count(from, way);
            }
        }
    }

    fn count(&mut self, from: usize, way: Way) {
        if let Route::Device(to) = way.route {
            *self.traffic.entry((from, to)).or_default() += way.count;
        }
    }
}

impl View {
    fn find(&self, from: usize, segment: &Segment<'_>) -> Route {
        let having = |gid| self.owners.get(gid).map_or(&[][..], Vec::as_slice);
        let destination = having(&segment.path.destination);
        let multicast = segment.path.is_multicast();
        if !multicast && destination.contains(&from) {
            return Route::Device(from);
        }
        let source = having(&segment.path.source).first();
        if source.is_some_and(|&owner| owner != from) {
            return Route::Nowhere;
        }
        if multicast {
            return Route::Group;
        }
        (destination.first()).map_or(Route::Nowhere, |&owner| Route::Device(owner))
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
        let local = Local::new();
        let mut routes = local.routes();
        local.set_gids(1, [[1; 16], [2; 16]].into_iter());
        local.set_gids(0, [[2; 16], [3; 16]].into_iter());
        assert_eq!(routes.route(0, &to([1; 16])), Route::Device(1));
        assert_eq!(
            routes.route(0, &to([2; 16])),
            Route::Device(0),
            "loopback first"
        );
        assert_eq!(
            routes.route(1, &to([2; 16])),
            Route::Device(1),
            "loopback first"
        );
        assert_eq!(
            routes.route(2, &to([2; 16])),
            Route::Device(1),
            "first owner"
        );
        assert_eq!(routes.route(1, &to([9; 16])), Route::Nowhere);
        for way in [[1; 16], [2; 16], [1; 16], [1; 16]] {
            let owner = usize::from(way == [1; 16]);
            assert_eq!(
                routes.route(0, &to(way)),
                Route::Device(owner),
                "the last way is found again, and no other"
            );
        }
        local.set_gids(1, std::iter::empty());
        assert_eq!(
            routes.route(0, &to([1; 16])),
            Route::Nowhere,
            "a way ends with its GID"
        );
        assert_eq!(routes.route(1, &to([1; 16])), Route::Nowhere);
        assert_eq!(
            routes.route(1, &to([2; 16])),
            Route::Device(0),
            "the next owner"
        );
    }

    #[test]
    fn workers_learn_of_changes_while_another_one_changes_the_tables() {
        let local = Local::new();
        let mut routes = [local.routes(), local.routes()];
        drop(local.routes());
        local.set_gids(1, [[1; 16]].into_iter());
        local.set_gids(2, [[2; 16]].into_iter());
        // A thread that lost its CPU in the midst of a change.
        let stuck = local.lock();
        assert_eq!(stuck.workers.len(), 2, "those that are left");
        for routes in &mut routes {
            assert_eq!(routes.route(1, &to([2; 16])), Route::Device(2));
            assert_eq!(routes.route(2, &to([1; 16])), Route::Device(1));
        }
    }

    #[test]
    fn a_gid_stays_with_who_had_it_first() {
        let local = Local::new();
        let mut routes = local.routes();
        let victims = [[1; 16], [2; 16]];
        local.set_gids(1, victims[..1].iter().copied());
        local.set_gids(0, [[1; 16], [3; 16]].into_iter());
        // The first owner changes its table and keeps the GID.
        local.set_gids(1, victims.into_iter());
        assert_eq!(routes.route(2, &to([1; 16])), Route::Device(1));
        local.set_gids(0, [[1; 16]].into_iter());
        assert_eq!(routes.route(2, &to([1; 16])), Route::Device(1));
    }

    #[test]
    fn the_next_owner_of_a_gid_is_who_came_next() {
        let local = Local::new();
        let mut routes = local.routes();
        for device in [2, 1, 0] {
            local.set_gids(device, [[1; 16]].into_iter());
        }
        for owner in [2, 1, 0] {
            assert_eq!(routes.route(3, &to([1; 16])), Route::Device(owner));
            local.set_gids(owner, std::iter::empty());
        }
        assert!(local.lock().view.owners.is_empty());
    }

    #[test]
    fn nobody_speaks_under_the_name_of_another() {
        let local = Local::new();
        let mut routes = local.routes();
        local.set_gids(1, [[1; 16]].into_iter());
        local.set_gids(2, [[2; 16]].into_iter());
        local.set_gids(0, [[1; 16], [3; 16]].into_iter());
        let from = |source| {
            let mut segment = to([2; 16]);
            segment.path.source = source;
            segment
        };
        assert_eq!(routes.route(0, &from([3; 16])), Route::Device(2));
        assert_eq!(routes.route(1, &from([1; 16])), Route::Device(2));
        assert_eq!(routes.route(0, &from([1; 16])), Route::Nowhere);
    }

    #[test]
    fn a_group_is_of_nobody() {
        let local = Local::new();
        let mut routes = local.routes();
        let group = [0xff; 16];
        local.set_gids(1, [[1; 16]].into_iter());
        // A device that claims the group as its own GID gains nothing from that.
        local.set_gids(0, [group, [1; 16]].into_iter());
        let from = |source| {
            let mut segment = to(group);
            segment.path.source = source;
            segment
        };
        assert_eq!(routes.route(1, &from([1; 16])), Route::Group);
        assert_eq!(routes.route(0, &from(group)), Route::Group);
        assert_eq!(routes.route(0, &from([1; 16])), Route::Nowhere);
    }

    #[test]
    fn a_group_has_the_devices_with_members() {
        let local = Local::new();
        let (one, other) = (([0xff; 16], 0), ([0xfe; 16], 0));
        local.set_groups(1, [one].into_iter());
        local.set_groups(2, [one, other].into_iter());
        let members = |group: Group| -> Vec<usize> {
            let members = local.routes().members();
            members.get(&group).into_iter().flatten().copied().collect()
        };
        assert_eq!(members(one), [1, 2]);
        assert_eq!(members(other), [2]);
        local.set_groups(2, [one].into_iter());
        assert_eq!((members(one), members(other)), (vec![1, 2], vec![]));
        local.set_groups(1, std::iter::empty());
        local.set_groups(2, std::iter::empty());
        assert!(members(one).is_empty());
        assert!(local.lock().view.members.is_empty());
    }

    #[test]
    fn partners_are_those_to_whom_much_goes() {
        let local = Local::new();
        let gid = |device: usize| [device as u8 + 1; 16];
        for device in 0..20 {
            local.set_gids(device, [gid(device)].into_iter());
        }
        let mut routes = local.routes();
        let mut send = |from: usize, to_device: usize, count: usize| {
            let mut segment = to(gid(to_device));
            segment.path.source = gid(from);
            for _ in 0..count {
                routes.route(from, &segment);
            }
        };
        // Two partners, of which one sends a word to everybody.
        send(0, 1, 50);
        send(1, 0, 1);
        for other in 2..20 {
            send(0, other, 1);
        }
        send(0, 1, 50);
        local.set_gids(19, std::iter::empty());
        send(0, 1, 1);
        assert_eq!(routes.take_pairs(), HashSet::from([(0, 1), (1, 0)]));
        assert_eq!(routes.take_pairs(), HashSet::new());
    }
}
