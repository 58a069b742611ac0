// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Workers whose turns are stepped by hand in one thread, at a time that the test sets, and guests with real drivers
//! and programs.

use std::cell::RefCell;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_DATA_EVENTFD, VFIO_PCI_MSIX_IRQ_INDEX,
};
use vrnic_native::queues::{Cq, Mr, Qp, request};
use vrnic_native::vm::{Bus, Vm, gid};
use vrnic_wire::command::{AttachMulticast, QueryDevice, SetGid};
use vrnic_wire::config::{ASYNC_EVENT_QUEUE, FIRST_COMPLETION_QUEUE};
use vrnic_wire::qp::QpType;
use vrnic_wire::work::SendOpcode;

use super::*;
use crate::config::Config;
use crate::control::inspector::Topic;
use crate::control::protocol::{Reply, Request};
use crate::guest_memory::GuestMemory;
use crate::pci::Function;
use crate::vfio_user::Device as _;
use crate::vfio_user::message::{DmaMap, IrqSet, dma_flags};
use crate::vfio_user::pci_device::PciDevice;
use crate::virtio::{Backend, Notifier};

/// Time between two turns.
const STEP: Duration = Duration::from_micros(10);
/// RAM of a guest in bytes.
const RAM: usize = 64 << 20;
/// Size of a guest's region in bytes.
const REGION: usize = 1 << 20;
/// Entries of the queues of a queue pair.
const ENTRIES: u32 = 256;

thread_local! {
    /// The teams of this thread, by their numbers. A guest can go to another thread, but its team cannot.
    static TEAMS: RefCell<Vec<Rc<RefCell<Team>>>> = const { RefCell::new(Vec::new()) };
}

/// The workers.
struct Team {
    shop: &'static Workshop,
    workers: Vec<Worker<'static>>,
    now: RealInstant,
}

impl Team {
    /// Gives a worker a turn, some time after the last one of any worker.
    fn step_after(&mut self, time: Duration, number: usize) -> bool {
        self.now += time;
        self.workers[number].step(self.now)
    }

    /// Gives every worker with units a turn; the others rest. Returns whether there was anything to do.
    fn step_all(&mut self, time: Duration) -> bool {
        let mut worked = false;
        for number in 0..self.workers.len() {
            if self.home_of_any(number) {
                worked |= self.step_after(time, number);
            } else {
                let _ = self.shop.roster.retire(number);
            }
        }
        worked
    }

    fn home_of_any(&self, number: usize) -> bool {
        let units = self.shop.locals.len() + self.shop.networks.len();
        (0..units).any(|unit| self.shop.roster.is_home(unit, number))
    }
}

/// A workshop with guests.
struct Stage {
    shop: &'static Workshop,
    team: Rc<RefCell<Team>>,
    inspector: Arc<Inspector>,
}

impl Stage {
    /// Creates a device for each of `homes`, the workers that drive them.
    fn new(homes: &[usize]) -> Self {
        Self::with(homes, false)
    }

    /// Like [`new`](Self::new); the workers may be restless.
    fn with(homes: &[usize], restless: bool) -> Self {
        Self::weighted(homes, &vec![1; homes.len()], restless)
    }

    /// Like [`with`](Self::with); each device has a weight.
    fn weighted(homes: &[usize], weights: &[u32], restless: bool) -> Self {
        let devices = weights.iter().enumerate();
        let sections: Vec<_> = devices
            .map(|(index, weight)| {
                format!("[[device]]\nname = \"{index}\"\nsocket = \"/nowhere/{index}\"\nmac = \"02:00:00:00:00:0{index}\"\nweight = {weight}\n")
            })
            .collect();
        let config = Config::parse(&sections.concat()).unwrap();
        let waker = Arc::new(Waker::new().unwrap());
        let (network, _) = Network::new(&config, waker.clone()).unwrap();
        let devices = config.devices.iter().enumerate();
        let devices: Vec<_> = devices
            .map(|(index, settings)| {
                let (mtu, frame_mtu) = (network.path_mtu(index), network.frame_mtu(index));
                Device::new(index, settings, 1, mtu, frame_mtu, waker.clone())
            })
            .collect();
        let names = devices.iter().map(|device| device.name().to_owned());
        let captures = Captures::new(names.collect());
        let inspector = Arc::new(Inspector::new(waker.clone()));
        let workers = homes.iter().max().unwrap() + 1;
        let shop = Workshop::new(
            devices,
            network,
            None,
            waker,
            inspector.clone(),
            Duration::ZERO,
            captures,
            workers,
            restless,
        );
        let shop: &Workshop = Box::leak(Box::new(shop.unwrap()));
        shop.roster
            .scatter(0, |unit| homes.get(unit).copied().unwrap_or(0));
        let now = RealInstant::now();
        let workers = (0..workers).map(|number| Worker::new(shop, number, now));
        let team = Team {
            shop,
            workers: workers.collect(),
            now,
        };
        let team = Rc::new(RefCell::new(team));
        TEAMS.with_borrow_mut(|teams| teams.push(team.clone()));
        Self {
            shop,
            team,
            inspector,
        }
    }

    /// Starts a guest on a device.
    fn guest(&self, device: usize) -> Guest {
        let memory = Arc::new(GuestMemory::new());
        let interrupts = Arc::new(Mutex::new(Vec::new()));
        let is_own = |team: &Rc<RefCell<Team>>| Rc::ptr_eq(team, &self.team);
        let team = TEAMS.with_borrow(|teams| teams.iter().position(is_own).unwrap());
        let bus = {
            let local = self.device(device);
            let backend: Arc<dyn Backend> = local.device.mailbox().clone();
            let function = Function::new(local.device.spec(), backend, memory.clone());
            Slot {
                pci: PciDevice::new(function, memory, None),
                team,
                interrupts: interrupts.clone(),
            }
        };
        let mut vm = Vm::start_on(Box::new(bus), gid(device), RAM).unwrap();
        Guest {
            sends: Cq::new(&mut vm, 4 * ENTRIES, 0).unwrap(),
            receives: Cq::new(&mut vm, ENTRIES, 1).unwrap(),
            mr: Mr::new(&mut vm, REGION).unwrap(),
            device,
            interrupts,
            vm,
        }
    }

    /// Takes a device, as a worker that drives it.
    fn device(&self, index: usize) -> Held<'static, LocalDevice, Letter> {
        let local = self.shop.locals[index].as_ref().unwrap();
        local.try_take().expect("no turn is under way")
    }

    /// Returns the number of letters from a device that nobody has read.
    fn unread_of(&self, device: usize) -> usize {
        self.device(device).outgoing.under_way()
    }

    fn home(&self, device: usize) -> usize {
        let mut workers = 0..self.team.borrow().workers.len();
        workers
            .find(|&worker| self.shop.roster.is_home(device, worker))
            .unwrap()
    }

    /// Gives a worker a turn. Returns whether there was anything to do.
    fn step(&self, worker: usize) -> bool {
        self.team.borrow_mut().step_after(STEP, worker)
    }

    /// Gives the workers turns until there is nothing to do.
    fn settle(&self) {
        for _ in 0..10_000 {
            if !self.team.borrow_mut().step_all(STEP) {
                return;
            }
        }
        panic!("it never settles");
    }
}

/// The slot in which a guest finds its device.
struct Slot {
    pci: PciDevice,
    /// The number of the team in [`TEAMS`].
    team: usize,
    interrupts: Arc<Mutex<Vec<OwnedFd>>>,
}

impl Bus for Slot {
    fn share(&mut self, ram: &OwnedFd, length: u64) -> Result<()> {
        let map = DmaMap {
            argsz: size_of::<DmaMap>() as u32,
            flags: dma_flags::READ | dma_flags::WRITE,
            offset: 0,
            address: 0,
            size: length,
        };
        Ok(self.pci.dma_map(&map, Some(ram.try_clone()?))?)
    }

    fn connect_vectors(&mut self, count: u32) -> Result<Vec<OwnedFd>, Errno> {
        let new = |_| eventfd(0, EventfdFlags::NONBLOCK);
        let eventfds: Vec<_> = (0..count).map(new).collect::<Result<_, _>>()?;
        let clones = || -> Vec<OwnedFd> {
            let clone = |eventfd: &OwnedFd| eventfd.as_fd().try_clone_to_owned().unwrap();
            eventfds.iter().map(clone).collect()
        };
        let set = IrqSet {
            argsz: size_of::<IrqSet>() as u32,
            flags: VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
            index: VFIO_PCI_MSIX_IRQ_INDEX,
            start: 0,
            count,
        };
        self.pci.set_irqs(&set, &[], clones())?;
        *self.interrupts.lock().unwrap() = clones();
        Ok(eventfds)
    }

    fn read(&mut self, region: u32, offset: u64, length: u32) -> Result<Vec<u8>, Errno> {
        let mut data = vec![0; length as usize];
        self.pci.read(region, offset, &mut data)?;
        Ok(data)
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.pci.write(region, offset, data)
    }

    fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.pci.write(region, offset, data)
    }

    fn wait(&mut self) {
        let team = TEAMS.with_borrow(|teams| teams[self.team].clone());
        team.borrow_mut().step_all(STEP);
    }
}

/// A guest.
struct Guest {
    vm: Vm,
    device: usize,
    sends: Cq,
    receives: Cq,
    mr: Mr,
    interrupts: Arc<Mutex<Vec<OwnedFd>>>,
}

impl Guest {
    fn qp(&mut self) -> Qp {
        Qp::new(&mut self.vm, ENTRIES, &mut self.sends, &mut self.receives).unwrap()
    }

    /// Returns a queue pair that is connected to itself.
    fn loopback(&mut self) -> Qp {
        let mut qp = self.qp();
        let (own, address) = (qp.qpn(), self.vm.gid());
        qp.connect(&mut self.vm, own, &address).unwrap();
        qp
    }

    /// Writes the first bytes of the own region to those of another one.
    fn write(&mut self, qp: &mut Qp, wr_id: u64, to: &Mr, length: usize) {
        let request = request(SendOpcode::Write, wr_id, to.target(0));
        qp.post(&mut self.vm, &request, self.mr.sge(0, length))
            .unwrap();
    }

    /// Returns the identifiers of the sends that have completed, all of which must be successful.
    fn sent(&mut self) -> Vec<u64> {
        let mut done = Vec::new();
        self.sends
            .drain(u32::MAX, |cqe| done.push(cqe.wr_id.get()))
            .unwrap();
        done
    }

    /// Returns whether a queue has interrupted since the last call.
    fn is_interrupted(&self, queue: u16) -> bool {
        let eventfd = &self.interrupts.lock().unwrap()[usize::from(queue) + 1];
        rustix::io::read(eventfd, &mut [0; 8]).is_ok()
    }
}

/// Connects two guests.
fn connect(one: &mut Guest, other: &mut Guest) -> (Qp, Qp) {
    let (mut a, mut b) = (one.qp(), other.qp());
    a.connect(&mut one.vm, b.qpn(), &gid(other.device)).unwrap();
    b.connect(&mut other.vm, a.qpn(), &gid(one.device)).unwrap();
    (a, b)
}

#[test]
fn what_a_command_changes_is_announced_before_its_reply() {
    let stage = Stage::new(&[0, 1]);
    let mut guest = stage.guest(0);
    let mut shared = stage.team.borrow_mut().workers.pop().unwrap().shared;
    let set = |index: u32, guest: usize| SetGid {
        index: index.into(),
        entry: gid(guest),
        ..SetGid::default()
    };
    // The device says what it has executed before the driver learns of it.
    guest.vm.begin(&set(1, 8)).unwrap();
    let mut local = stage.device(0);
    let (mut executed, now) = (0, local.now);
    local.device.control(&mut shared, now, &mut |rnic| {
        executed += 1;
        let rnic = rnic.unwrap();
        assert!(rnic.gids().any(|entry| entry.gid == gid(8).gid));
        assert!(guest.vm.reply::<SetGid>().is_none());
        true
    });
    assert_eq!(executed, 1);
    guest.vm.reply::<SetGid>().expect("a reply").unwrap();
    // The worker uses that to tell the other workers.
    guest.vm.begin(&set(2, 9)).unwrap();
    local.control(0, &mut shared, &stage.shop.fabric);
    guest.vm.reply::<SetGid>().expect("a reply").unwrap();
    assert!(stage.shop.fabric.has_gid(0, &gid(8).gid));
    assert!(stage.shop.fabric.has_gid(0, &gid(9).gid));
    drop(local);

    let group = [&[0xff, 0x0e][..], &[7; 14]].concat().try_into().unwrap();
    let (sends, receives) = (&mut guest.sends, &mut guest.receives);
    let unreliable = QpType::UnreliableDatagram;
    let qp = Qp::datagrams(unreliable, &mut guest.vm, 8, (sends, receives), 1).unwrap();
    let attach = AttachMulticast {
        qpn: qp.qpn().into(),
        gid: group,
        ..AttachMulticast::default()
    };
    guest.vm.begin(&attach).unwrap();
    let members = || stage.shop.fabric.routes().members();
    assert!(members().is_empty());
    stage.device(0).control(0, &mut shared, &stage.shop.fabric);
    guest
        .vm
        .reply::<AttachMulticast>()
        .expect("a reply")
        .unwrap();
    assert_eq!(members().len(), 1);
}

#[test]
fn a_reset_is_announced_before_the_driver_learns_of_it() {
    struct Driver {
        shop: &'static Workshop,
        told: AtomicBool,
    }

    impl Notifier for Driver {
        fn queue_used(&self, _: u16) {}
        fn needs_reset(&self) {}
        fn reset_done(&self, _: u64) {
            assert!(!self.shop.fabric.has_gid(0, &gid(0).gid));
            self.told.store(true, Ordering::SeqCst);
        }
    }

    let stage = Stage::new(&[0]);
    let _guest = stage.guest(0);
    assert!(stage.shop.fabric.has_gid(0, &gid(0).gid));
    let (shop, told) = (stage.shop, AtomicBool::new(false));
    let driver = Arc::new(Driver { shop, told });
    let mailbox = stage.device(0).device.mailbox().clone();
    mailbox.reset(99, driver.clone());
    stage.step(0);
    assert!(driver.told.load(Ordering::SeqCst));
}

#[test]
fn another_worker_reaches_a_new_gid_at_once() {
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, mut b) = (one.qp(), other.qp());
    // An address that nobody has yet.
    b.connect(&mut other.vm, a.qpn(), &gid(5)).unwrap();
    a.connect(&mut one.vm, b.qpn(), &gid(1)).unwrap();
    other.write(&mut b, 1, &one.mr, 8);
    stage.step(1);
    assert_eq!(stage.unread_of(1), 0, "it is lost");
    one.vm
        .begin(&SetGid {
            index: 1.into(),
            entry: gid(5),
            ..SetGid::default()
        })
        .unwrap();
    stage.step(0);
    one.vm.reply::<SetGid>().expect("a reply").unwrap();
    other.write(&mut b, 2, &one.mr, 8);
    stage.step(1);
    assert_eq!(stage.unread_of(1), 1, "it is on its way");
}

#[test]
fn messages_arrive_in_order_whoever_drives_the_devices() {
    let stage = Stage::with(&[0, 1], true);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, mut b) = connect(&mut one, &mut other);
    let (to_one, to_other) = (one.mr, other.mr);
    let mut drivers = HashSet::new();
    let (mut sent, mut done) = ([0; 2], [0; 2]);
    for round in 0..2000_u64 {
        // Sometimes a worker has several turns while the other one gets no CPU.
        for (guest, qp, to) in [(&mut one, &mut a, to_other), (&mut other, &mut b, to_one)] {
            let device = guest.device;
            if sent[device] < done[device] + 100 {
                sent[device] += 1;
                guest.mr.area.set_long(8 * device, sent[device]);
                let place = guest.mr.sge(8 * device, 8);
                let write = request(SendOpcode::Write, sent[device], to.target(8 * device));
                qp.post(&mut guest.vm, &write, place).unwrap();
            }
            for wr_id in guest.sent() {
                done[device] += 1;
                assert_eq!(wr_id, done[device]);
                assert!(to.area.long(8 * device) >= wr_id);
            }
        }
        stage.step((round / 3 * 7 / 5 % 2) as usize);
        drivers.insert((stage.home(0), stage.home(1)));
    }
    stage.settle();
    for (guest, to) in [(&mut one, to_other), (&mut other, to_one)] {
        let device = guest.device;
        done[device] += guest.sent().len() as u64;
        assert_eq!(to.area.long(8 * device), sent[device]);
    }
    assert_eq!(done, sent);
    assert!(done.iter().all(|&done| done > 500), "{done:?}");
    assert_eq!(
        drivers.len(),
        4,
        "each worker had each of them: {drivers:?}"
    );
}

#[test]
fn units_are_together_that_exchange_much_in_one_period() {
    let grouped = |pairs: &[(usize, usize)]| {
        let groups = grouped([0, 1, 2, 3].into_iter(), &pairs.iter().copied().collect());
        [0, 1, 2, 3].map(|unit| groups[&unit])
    };
    assert_eq!(grouped(&[]), [0, 1, 2, 3]);
    // One that gets no answers, or has a partner elsewhere, stays alone.
    assert_eq!(grouped(&[(0, 1), (2, 7), (7, 2)]), [0, 1, 2, 3]);
    let [a, b, c, d] = grouped(&[(0, 1), (1, 0), (2, 3), (3, 2)]);
    assert!(a == b && c == d && a != c);
    let [a, b, c, d] = grouped(&[(0, 1), (1, 0), (1, 2), (2, 1)]);
    assert!(a == b && b == c && c != d);
}

#[test]
fn a_pair_stays_together_however_busy_it_is() {
    let stage = Stage::new(&[0, 0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, mut b) = connect(&mut one, &mut other);
    for _ in 0..1000 {
        let (to_one, to_other) = (one.mr, other.mr);
        for (guest, qp, to) in [(&mut one, &mut a, to_other), (&mut other, &mut b, to_one)] {
            guest.sent();
            for wr_id in 0..4 {
                guest.write(qp, wr_id, &to, 64);
            }
        }
        stage.team.borrow_mut().step_all(Duration::from_micros(50));
        assert_eq!((stage.home(0), stage.home(1)), (0, 0));
    }
}

#[test]
fn partners_share_a_worker_while_they_exchange_much() {
    const LONG: Duration = Duration::from_micros(50);
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, mut b) = connect(&mut one, &mut other);
    let (mut own_a, mut own_b) = (one.loopback(), other.loopback());
    let mut flow = |exchange: bool| {
        let (to_one, to_other) = (one.mr, other.mr);
        for (guest, qp, own, to) in [
            (&mut one, &mut a, &mut own_a, to_other),
            (&mut other, &mut b, &mut own_b, to_one),
        ] {
            let own_mr = guest.mr;
            guest.sent();
            for wr_id in 0..4 {
                if exchange {
                    guest.write(qp, wr_id, &to, 64);
                } else {
                    guest.write(own, wr_id, &own_mr, 64);
                }
            }
        }
        stage.team.borrow_mut().step_all(LONG);
        (stage.home(0), stage.home(1))
    };
    assert!((0..200).any(|_| flow(true) == (0, 0)), "they come together");
    for _ in 0..500 {
        assert_eq!(flow(true), (0, 0), "and stay together");
    }
    assert!((0..200).any(|_| {
        let (first, second) = flow(false);
        first != second
    }));
    for _ in 0..500 {
        let (first, second) = flow(false);
        assert_ne!(first, second, "and stay apart");
    }
}

#[test]
fn a_device_sends_only_so_much_to_one_that_does_not_read() {
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let mut pairs: Vec<_> = (0..4).map(|_| connect(&mut one, &mut other)).collect();
    for (qp, _) in &mut pairs {
        for wr_id in 0..200 {
            one.write(qp, wr_id, &other.mr, 64);
        }
    }
    for _ in 0..100 {
        stage.step(0);
    }
    let unread = stage.unread_of(0);
    // It may finish the turn in which it exceeds the limit.
    assert!((256..256 + 64).contains(&unread), "{unread}");
    stage.settle();
    assert_eq!(one.sent().len(), 800);
}

#[test]
fn a_flooded_device_reads_its_budget_and_its_neighbours_get_their_turns() {
    const ROUNDS: usize = 20;
    // Three busy neighbours, so that turns are short.
    let stage = Stage::new(&[0, 0, 0, 0, 1]);
    let mut flooded = stage.guest(0);
    let mut neighbours = [1, 2, 3].map(|device| {
        let mut guest = stage.guest(device);
        let qp = guest.loopback();
        (guest, qp)
    });
    let mut sender = stage.guest(4);
    let mut pairs: Vec<_> = (0..4).map(|_| connect(&mut sender, &mut flooded)).collect();
    // A new period begins, so that nobody goes to another worker meanwhile.
    for _ in 0..2 * LEAST_TURNS {
        stage.team.borrow_mut().step_all(PERIOD);
    }
    for (qp, _) in &mut pairs {
        // Few enough that the first turn finds the oldest letter, and that each queue pair sends all it has.
        for wr_id in 0..50 {
            sender.write(qp, wr_id, &flooded.mr, 64);
        }
    }
    let mut step = || {
        for (guest, qp) in &mut neighbours {
            let own = guest.mr;
            guest.write(qp, 7, &own, 64);
        }
        stage.step(0);
        neighbours.each_mut().map(|(guest, _)| guest.sent().len())
    };
    for _ in 0..2 {
        step();
    }
    for _ in 0..10 {
        stage.step(1);
    }
    let budget = stage.device(0).device.budget(Crowd::Many).units as usize;
    let mut unread = stage.unread_of(4);
    assert!(unread >= ROUNDS * budget, "{unread}");
    let mut done = [0; 3];
    for round in 0..ROUNDS {
        for (done, more) in done.iter_mut().zip(step()) {
            *done += more;
        }
        let left = stage.unread_of(4);
        assert_eq!(unread - left, budget, "in round {round}");
        unread = left;
    }
    assert!(done.iter().all(|&done| done >= ROUNDS), "{done:?}");
    assert!((0..5).all(|device| stage.home(device) == device / 4));
}

#[test]
fn weights_apply_to_devices_that_only_receive() {
    let stage = Stage::weighted(&[0, 0, 1, 1], &[1, 4, 1, 1], false);
    let mut guests = [0, 1, 2, 3].map(|device| stage.guest(device));
    let (receivers, senders) = guests.split_at_mut(2);
    let mut pairs: Vec<_> = (0..8)
        .map(|pair| connect(&mut senders[pair % 2], &mut receivers[pair % 2]))
        .collect();
    // A new period begins, so that nobody goes to another worker meanwhile.
    for _ in 0..2 * LEAST_TURNS {
        stage.team.borrow_mut().step_all(PERIOD);
    }
    for (pair, (qp, _)) in pairs.iter_mut().enumerate() {
        for wr_id in 0..50 {
            senders[pair % 2].write(qp, wr_id, &receivers[pair % 2].mr, 64);
        }
    }
    for _ in 0..6 {
        stage.step(1);
    }
    let unread = || [2, 3].map(|device| stage.unread_of(device));
    assert_eq!(unread(), [200, 200]);
    stage.step(0);
    let [light, heavy] = unread();
    stage.step(0);
    let [less, more] = [light - unread()[0], heavy - unread()[1]];
    assert!(heavy > more, "it has more to read");
    assert_eq!(4 * less, more);
    assert!((0..4).all(|device| stage.home(device) == device / 2));
}

#[test]
fn a_receiver_that_does_not_read_stops_only_what_is_for_it() {
    let stage = Stage::new(&[0, 1, 2]);
    let (mut one, mut slow, mut other) = (stage.guest(0), stage.guest(1), stage.guest(2));
    let mut pairs: Vec<_> = (0..4).map(|_| connect(&mut one, &mut slow)).collect();
    let (mut to_other, _other_qp) = connect(&mut one, &mut other);
    for (qp, _) in &mut pairs {
        for wr_id in 0..200 {
            one.write(qp, wr_id, &slow.mr, 64);
        }
    }
    let mut done = 0;
    for round in 0..100 {
        one.write(&mut to_other, 1000 + round, &other.mr, 64);
        stage.step(0);
        stage.step(2);
        stage.step(0);
        // Others do not wait, except for a moment while turns are full.
        let sent = one.sent();
        done += sent.len();
        assert!(sent.iter().all(|wr_id| *wr_id >= 1000));
    }
    assert!((98..=100).contains(&done), "{done}");
    let unread = stage.unread_of(0);
    assert!((256..256 + 64).contains(&unread), "{unread}");
    assert!(stage.step(0), "it does not fall asleep");
    stage.settle();
    assert_eq!(done + one.sent().len(), 900);
    assert!(!stage.device(0).outgoing.is_paused());
}

#[test]
fn a_worker_stays_awake_for_what_waits() {
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut slow) = (stage.guest(0), stage.guest(1));
    let mut pairs: Vec<_> = (0..4).map(|_| connect(&mut one, &mut slow)).collect();
    for (qp, _) in &mut pairs {
        for wr_id in 0..200 {
            one.write(qp, wr_id, &slow.mr, 64);
        }
    }
    for _ in 0..20 {
        stage.step(0);
    }
    assert!(stage.device(0).outgoing.is_paused());
    // The other worker reads everything, but the sender had no turn since.
    while stage.unread_of(0) > 0 {
        stage.step(1);
    }
    assert_eq!(stage.shop.roster.retire(1), Retirement::Done);
    assert!(stage.device(0).outgoing.is_paused());
    assert!(stage.team.borrow_mut().workers[0].has_work());
    stage.settle();
    assert!(!stage.team.borrow_mut().workers[0].has_work());
    assert_eq!(one.sent().len(), 800);
}

#[test]
fn a_device_with_a_command_waits_for_its_letters_with_patience() {
    let stage = Stage::new(&[0, 1, 2]);
    let mut guests = [0, 1, 2].map(|device| stage.guest(device));
    let [one, slow, other] = &mut guests;
    let (mut to_slow, _slow_qp) = connect(one, slow);
    let (mut to_one, _one_qp) = connect(other, one);
    one.write(&mut to_slow, 1, &slow.mr, 64);
    stage.step(0);
    other.write(&mut to_one, 2, &one.mr, 64);
    stage.step(2);
    assert_eq!((stage.unread_of(0), stage.unread_of(2)), (1, 1));
    one.vm.begin(&QueryDevice::default()).unwrap();
    one.write(&mut to_slow, 3, &slow.mr, 64);
    for turn in 1..PATIENCE {
        assert!(stage.step(0), "it does not fall asleep");
        assert_eq!(stage.unread_of(2), 1, "it reads in turn {turn}");
    }
    stage.step(0);
    assert_eq!(stage.unread_of(2), 0, "its patience has ended");
    assert_eq!(stage.unread_of(0), 1, "it has sent nothing");
    assert!(one.vm.reply::<QueryDevice>().is_none());
    // When the other ones have read, it goes on.
    stage.step(1);
    stage.step(2);
    assert_eq!(stage.unread_of(0), 0);
    stage.step(0);
    one.vm.reply::<QueryDevice>().expect("a reply").unwrap();
    stage.settle();
    assert_eq!((one.sent(), other.sent()), (vec![1, 3], vec![2]));
}

#[test]
fn the_peer_of_a_removed_device_gets_all_that_was_on_its_way() {
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, mut b) = connect(&mut one, &mut other);
    let mut own = other.loopback();
    // A write and the answer to a read, both of which refer to memory of the device that is removed.
    one.mr.area.fill(1, 0..5000);
    one.mr.area.fill(2, 5000..9000);
    let read = request(SendOpcode::Read, 1, one.mr.target(0));
    let place = other.mr.sge(0, 5000);
    b.post(&mut other.vm, &read, place).unwrap();
    stage.step(1);
    let write = request(SendOpcode::Write, 2, other.mr.target(5000));
    let place = one.mr.sge(5000, 4000);
    a.post(&mut one.vm, &write, place).unwrap();
    stage.step(0);
    assert!(stage.unread_of(0) >= 2);
    {
        let mut local = stage.device(0);
        let now = local.now;
        let removed = "removed".parse().unwrap();
        local.device.faults().arm(removed, now).unwrap();
    }
    for _ in 0..10 {
        stage.step(0);
        assert_eq!(stage.device(0).device.state(), "up");
    }
    stage.step(1);
    assert_eq!(other.sent(), [1]);
    assert_eq!(other.mr.area.difference(1, 0, 5000), None);
    assert_eq!(other.mr.area.difference(2, 5000, 4000), None);
    stage.settle();
    assert_eq!(stage.device(0).device.state(), "removed");
    let own_mr = other.mr;
    other.write(&mut own, 3, &own_mr, 64);
    stage.settle();
    assert_eq!(other.sent(), [3]);
    assert!(!other.is_interrupted(ASYNC_EVENT_QUEUE));
    let device = &stage.device(1).device;
    assert_eq!((device.state(), device.record().count()), ("up", 0));
}

#[test]
fn events_are_published_in_the_turn_of_their_cause() {
    let stage = Stage::new(&[0, 1]);
    let (mut one, mut other) = (stage.guest(0), stage.guest(1));
    let (mut a, _b) = connect(&mut one, &mut other);
    assert!(!one.is_interrupted(FIRST_COMPLETION_QUEUE));
    one.sends.arm();
    one.write(&mut a, 1, &other.mr, 64);
    stage.step(0);
    stage.step(1);
    assert!(!one.is_interrupted(FIRST_COMPLETION_QUEUE));
    stage.step(0);
    assert!(one.is_interrupted(FIRST_COMPLETION_QUEUE));
    one.sends.wait_event(&mut one.vm).unwrap();
    assert_eq!(one.sent(), [1]);

    // Another worker still has the device when its new home wants to publish.
    one.sends.arm();
    one.write(&mut a, 2, &other.mr, 64);
    stage.step(0);
    stage.step(1);
    let mut held = stage.device(0);
    let mut team = stage.team.borrow_mut();
    let worker = &mut team.workers[0];
    let mut letter = held.take_letter().expect("an acknowledgement");
    let sender = &*letter.stamp.sender;
    held.receive(&mut worker.shared, &mut letter.segment, Some(sender));
    drop(team);
    assert!(
        stage.step(0),
        "it cannot know whether there is something to do"
    );
    assert!(!one.is_interrupted(FIRST_COMPLETION_QUEUE));
    drop(held);
    stage.step(0);
    assert!(one.is_interrupted(FIRST_COMPLETION_QUEUE));
}

#[test]
fn any_worker_answers_for_all_devices_and_the_others_tell_their_drivers() {
    let stage = Stage::new(&[0, 1]);
    let (one, _other) = (stage.guest(0), stage.guest(1));
    stage.settle();
    assert!(!one.is_interrupted(ASYNC_EVENT_QUEUE));
    let ask = |request: Request| {
        std::thread::scope(|scope| {
            let inspector = &stage.inspector;
            let asking = scope.spawn(move || inspector.ask(Topic::Request(request)));
            while !inspector.is_asked() {
                std::thread::yield_now();
            }
            while inspector.is_asked() {
                stage.step(1);
            }
            asking.join().unwrap()
        })
    };
    let Reply::Devices(devices) = ask(Request::Devices) else {
        panic!("no list of devices");
    };
    assert_eq!(devices.len(), 2);
    let down = Request::SetLink {
        device: "0".into(),
        up: false,
    };
    assert_eq!(ask(down), Reply::Done);
    // The home of the device has nothing else to do, but learns of the answer.
    stage.step(0);
    assert!(one.is_interrupted(ASYNC_EVENT_QUEUE));
}

#[test]
fn no_turn_begins_while_a_question_is_answered() {
    let shop = Stage::new(&[0]).shop;
    let gate = shop.close_gate();
    shop.asked.store(true, Ordering::Relaxed);
    let began = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shop.let_answer();
            began.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!began.load(Ordering::SeqCst));
        shop.asked.store(false, Ordering::Relaxed);
        drop(gate);
    });
    assert!(began.load(Ordering::SeqCst));
    shop.let_answer();
}
