// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! An RDMA device: connects the engine to the device's virtqueues, guest memory and mailbox.
//!
//! Devices run in the threads of the workers, each in one at a time. A worker calls them through
//! [`contained`](Device::contained), which catches panics, so a panic fails one device only.

pub mod hostile;
mod session;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::{debug, error, info, warn};
use vrnic_engine::explain::{Explanation, Happening, Record};
use vrnic_engine::fault::{Armory, Direction as Way};
use vrnic_engine::segment::{Body, Group, Payload};
use vrnic_engine::time::Instant;
use vrnic_engine::{
    Budget, Cause, Faults, Features, Io, LinkLayer, Outbox, RateLimit, Recovery, Rnic, RnicConfig,
    Segment, Segmentation,
};
use vrnic_infiniband::packet::Packet;
use vrnic_vfio_user::mapping::FileId;
use vrnic_wire::config::{
    ASYNC_EVENT_QUEUE, CONTROL_QUEUE, DOORBELL_PAGE_SIZE, F_DOORBELL, F_INFINIBAND,
    FIRST_COMPLETION_QUEUE, VIRTIO_ID_RDMA,
};
use vrnic_wire::event::{AsyncEvent, EventType};
use vrnic_wire::port::Mtu;
use zerocopy::IntoBytes;

use crate::capture::{self, Captures, Direction};
use crate::config::{
    self, FabricKind, RecoveryKind,
    feature::{all_without, complete},
};
use crate::control::answer::explanation;
use crate::fabric::{Refused, RoceEnd, SubnetFabric, subnet};
use crate::guest_memory::{DeviceMemory, RegionTable, Syncer};
use crate::network::Network;
use crate::quota::{Quota, limited};
use crate::reaper;
use crate::recording::{Progress, Tape};
use crate::virtio::mailbox::{Mailbox, Request};
use crate::virtio::queue::{BadQueue, Virtqueue};
use crate::virtio::{Activation, DeviceSpec};
use crate::waker::Waker;
use hostile::Hostile;
use session::{EventQueue, Queues, Session};

/// Budget of a turn while few devices are busy. It is large enough to make the fixed cost of a turn negligible.
const LONG_TURN: Budget = Budget::units(64);
/// Budget of a turn of the heaviest device while others wait. It lasts a few microseconds.
const SHORT_TURN: Budget = Budget {
    units: 8,
    bytes: 64 * 1024,
};
/// Bytes in a turn of the heavier one of two devices with different weights. Most turns have fewer packets than
/// [`LONG_TURN`] then, but still enough to make the fixed cost of a turn negligible.
const LONG_BYTES: u64 = 512 * 1024;
/// How long a device counts as busy after it last had work.
const BUSY_FOR: Duration = Duration::from_millis(2);
/// Least time between two crash recordings of a device, so that a guest that makes it fail again and again does not
/// keep the disk busy.
const CRASH_INTERVAL: Duration = Duration::from_secs(60);
/// Number of explanations kept, even when the driver resets the device.
const EXPLANATIONS: usize = 4096;
/// Largest virtqueue.
const MAX_QUEUE_SIZE: u16 = 256;

const F_VERSION_1: u64 = 1 << 32;
const F_ACCESS_PLATFORM: u64 = 1 << 33;

/// Devices of a worker that have work, as far as that matters for how long their turns are.
///
/// The fixed cost of a turn is shared by its packets, so turns are long where nobody suffers: if a device is alone, or
/// if two devices with the same weight take turns of the same length. The turns of two devices with different weights
/// are in proportion to them. If there are more, short turns keep the wait for the next turn short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Crowd {
    /// At most one device, or two of which at most one has more work than a turn is long, or with the same weight.
    #[default]
    Few,
    /// Two, of which the heavier one has this weight.
    Unequal(u32),
    /// More than two.
    Many,
}

/// The busy devices of a worker or of one of its units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Busy {
    /// Their number.
    pub count: usize,
    /// The smallest and the largest weight of those that have more work than a turn is long. The weight of one that
    /// does little does not matter.
    weights: Option<(u32, u32)>,
}

impl Busy {
    /// Counts a device if it [is busy](Device::is_busy). `more` says that there may be more for it to receive than its
    /// turn was long.
    pub fn count(&mut self, device: &Device, now: Instant, more: bool) {
        if device.is_busy(now) {
            let more = more || device.cut_short;
            self.add(Self {
                count: 1,
                weights: more.then_some((device.weight, device.weight)),
            });
        }
    }

    /// Adds those of another unit.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.weights = match (self.weights, other.weights) {
            (Some((low, high)), Some((lowest, highest))) => {
                Some((low.min(lowest), high.max(highest)))
            }
            (own, others) => own.or(others),
        };
    }

    /// Returns whether and how they crowd each other.
    pub fn crowd(&self) -> Crowd {
        match self.weights {
            _ if self.count > 2 => Crowd::Many,
            Some((lightest, heaviest)) if lightest < heaviest => Crowd::Unequal(heaviest),
            _ => Crowd::Few,
        }
    }
}

/// What a worker lends to the device that it drives.
pub struct Shared {
    /// Segments waiting to be sent.
    pub outbox: Outbox,
    /// The running captures.
    pub captures: Arc<Captures>,
}

/// One device.
pub struct Device {
    name: String,
    index: usize,
    config: RnicConfig,
    mailbox: Arc<Mailbox>,
    /// Whether the link is up, independent of the driver.
    link: bool,
    /// Rate limit, which outlives drivers.
    rate_limit: RateLimit,
    weight: u32,
    /// Budget of a turn while many others wait.
    share: Budget,
    /// When the device last had work.
    busy_at: Instant,
    /// Whether its last turn was too short for its work.
    cut_short: bool,
    /// The RNIC's end of the wire, if it is on one.
    roce: Option<RoceEnd>,
    session: Option<Session>,
    /// Names of regions of guest memory.
    regions: Arc<RegionTable>,
    /// Makes writes to guest memory persistent.
    syncer: Syncer,
    /// The recording that waits or runs, or else the last one.
    tape: Option<Tape>,
    /// Files of earlier recordings that were not finished when the next one took their place.
    ending: Vec<Arc<Progress>>,
    /// Calls into the engine before its last failure. Later drivers do not change it.
    flown: Option<Vec<String>>,
    /// Directory for a recording of the last calls when the device fails.
    crash_directory: Option<PathBuf>,
    /// When the last crash recording was begun, and the progress of its file.
    crash: Option<(Instant, Arc<Progress>)>,
    /// How much the guest may still add to the log.
    quota: Quota,
    /// Whether a fault has removed the device from its slot.
    removed: bool,
    /// Hostile behaviour, if enabled.
    hostile: Option<Hostile>,
    record: Record,
    /// The device's faults while there is no engine to hold them.
    faults: Faults,
    /// Number of the first firing that captures have not been shown.
    shown: u64,
    /// Time of the last turn.
    now: Instant,
}

impl Device {
    /// Creates a device that waits for its driver. `index` is its index among all devices, `heaviest` the largest
    /// weight of all devices, `max_mtu` the largest MTU that its frames can carry, and `frame_mtu` the largest number
    /// of bytes after the header of an Ethernet frame; `None` if the device is not beside a network device on a
    /// network.
    pub fn new(
        index: usize,
        settings: &config::Device,
        heaviest: u32,
        max_mtu: Mtu,
        frame_mtu: Option<u16>,
        waker: Arc<Waker>,
    ) -> Self {
        let limits = settings.limits.clamped();
        let features = all_without(&settings.without);
        let config = RnicConfig {
            // An HCA has no MAC address.
            mac: match settings.fabric {
                FabricKind::Infiniband => [0; 6],
                FabricKind::Local | FabricKind::Roce => settings.mac.0,
            },
            node_guid: settings.guid().0,
            completion_vectors: settings.completion_vectors,
            doorbell_pages: if settings.doorbells {
                limits.contexts
            } else {
                0
            },
            features: complete(Features {
                raw_packets: features.raw_packets && frame_mtu.is_some(),
                ..features
            }),
            limits,
            max_mtu,
            frame_mtu: frame_mtu.unwrap_or_default(),
            segmentation: match settings.fabric {
                FabricKind::Local => Segmentation::Local,
                FabricKind::Roce | FabricKind::Infiniband => Segmentation::PathMtu,
            },
            link_layer: match settings.fabric {
                FabricKind::Infiniband => LinkLayer::InfiniBand,
                FabricKind::Local | FabricKind::Roce => LinkLayer::Ethernet,
            },
            recovery: match settings.recovery {
                RecoveryKind::Selective => Recovery::Selective,
                RecoveryKind::GoBackN => Recovery::GoBackN,
            },
            seed: [0; 32],
        };
        let queues = FIRST_COMPLETION_QUEUE + config.completion_vectors;
        let syncer = Syncer::new(&settings.name, waker.clone());
        let mailbox = Arc::new(Mailbox::new(queues, config.doorbell_pages, waker));
        Self {
            name: settings.name.clone(),
            index,
            config,
            mailbox,
            link: true,
            // The configuration has been checked, so this does not fail.
            rate_limit: settings.rate_limit().unwrap_or_default(),
            weight: settings.weight,
            share: share(SHORT_TURN, settings.weight, heaviest),
            busy_at: Instant::default(),
            cut_short: false,
            roce: (settings.fabric == FabricKind::Roce).then(RoceEnd::default),
            session: None,
            regions: Arc::new(RegionTable::new(index)),
            syncer,
            tape: None,
            ending: Vec::new(),
            flown: None,
            crash_directory: None,
            crash: None,
            quota: Quota::default(),
            removed: false,
            hostile: None,
            record: Record::new(EXPLANATIONS),
            faults: Faults::default(),
            shown: 0,
            now: Instant::default(),
        }
    }

    /// Makes the device hostile to its driver.
    pub fn set_hostile(&mut self, settings: &hostile::Settings) {
        warn!(device = %self.name, seed = settings.seed, one_in = settings.one_in, "hostile");
        self.hostile = Some(Hostile::new(settings));
    }

    /// Sets the directory for a recording of the last calls when the device fails. There is none if the driver broke a
    /// virtqueue, and at most one per minute.
    pub fn set_crash_directory(&mut self, directory: &Path) {
        self.crash_directory = Some(directory.to_owned());
    }

    /// Returns the name used in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the configuration of the engine.
    pub fn config(&self) -> &RnicConfig {
        &self.config
    }

    /// Returns the state: `down` without a driver, `up`, `failed` until the driver resets it, or `removed` by a fault.
    pub fn state(&self) -> &'static str {
        match &self.session {
            None if self.removed => "removed",
            None => "down",
            Some(session) if session.rnic.is_none() => "failed",
            Some(_) => "up",
        }
    }

    /// Returns whether the link is up.
    pub fn link(&self) -> bool {
        self.link
    }

    /// Returns an identifier of the VM whose driver is up.
    pub fn vm(&self) -> Option<FileId> {
        self.session.as_ref()?.memory.largest_file()
    }

    /// Brings the link up or takes it down, for the current driver and later ones.
    pub fn set_link(&mut self, up: bool) {
        info!(device = %self.name, up, "link");
        self.link = up;
        if let Some(rnic) = self.rnic() {
            rnic.set_link(up);
        }
    }

    /// Returns the rate limit.
    pub fn rate_limit(&self) -> RateLimit {
        self.rate_limit
    }

    /// Changes the rate limit, for the current driver and later ones.
    pub fn set_rate_limit(&mut self, limit: RateLimit) {
        info!(device = %self.name, ?limit, "rate limit");
        self.rate_limit = limit;
        if let Some(rnic) = self.rnic() {
            rnic.set_rate_limit(limit);
        }
    }

    /// Returns the device's faults, which outlive its drivers.
    pub fn faults(&mut self) -> Armory<'_> {
        match self
            .session
            .as_mut()
            .and_then(|session| session.rnic.as_mut())
        {
            Some(rnic) => rnic.faults_mut(),
            None => Armory::new(&mut self.faults),
        }
    }

    /// Starts recording the device; if it has no driver yet, when it gets one.
    ///
    /// # Errors
    /// Another recording is waiting or running.
    pub fn set_tape(&mut self, mut tape: Tape) -> Result<(), String> {
        if self.tape.as_ref().is_some_and(|tape| !tape.is_over()) {
            return Err(format!("device {:?} has a recording already", self.name));
        }
        let rnic = self
            .session
            .as_mut()
            .and_then(|session| session.rnic.as_mut());
        if let Some(rnic) = rnic {
            info!(device = %self.name, "recording started");
            rnic.record(&self.name, tape.begin());
        }
        self.replace_tape(tape);
        Ok(())
    }

    /// Keeps a recording in place of the last one, whose file may not be finished yet.
    fn replace_tape(&mut self, tape: Tape) {
        if let Some(last) = self.tape.replace(tape) {
            self.ending.push(last.progress());
        }
        self.ending.retain(|file| !file.is_finished());
    }

    /// Returns the latest calls into the engine in words, oldest first; nothing if there is no engine.
    pub fn flight(&self) -> Vec<String> {
        let session = self.session.as_ref();
        let rnic = session.and_then(|session| session.rnic.as_ref());
        rnic.map_or_else(Vec::new, |rnic| rnic.flight().collect())
    }

    /// Returns, in the same form, the calls that led to the last failure, even if the driver has reset the device
    /// since; `None` if it never failed.
    pub fn flight_of_failure(&self) -> Option<&[String]> {
        self.flown.as_deref()
    }

    /// Returns the recording that waits or runs, or else the last one.
    pub fn tape(&self) -> Option<&Tape> {
        self.tape.as_ref()
    }

    /// Ends the recording that waits or runs, if there is one.
    pub fn end_tape(&mut self, why: &str) {
        self.finish_recording(why);
        if let Some(tape) = &mut self.tape {
            tape.end(why);
        }
    }

    /// Ends the running recording, if there is one.
    fn finish_recording(&mut self, why: &str) {
        let recorder = self.rnic().and_then(Rnic::take_recorder);
        if let (Some(tape), Some(recorder)) = (&mut self.tape, recorder) {
            tape.finish(recorder, why);
        }
    }

    /// Waits until the files of the recording, which has been [ended](Self::end_tape), and of earlier ones are
    /// finished. Returns false if that has not happened by the deadline.
    pub fn wait_for_tapes(&self, deadline: std::time::Instant) -> bool {
        let last = self.tape.as_ref().map(Tape::progress);
        (self.ending.iter().chain(&last)).all(|file| file.wait(deadline))
    }

    /// Passes on what was recorded, if there is enough or if `all` is set.
    pub fn pass_recording_on(&mut self, all: bool) {
        if let Some(tape) = self.tape.as_mut().filter(|tape| !tape.is_over())
            && let Some(session) = &mut self.session
            && let Some(rnic) = &mut session.rnic
            && let Some(recorder) = rnic.recorder()
            && !tape.pass_on(recorder, all)
        {
            rnic.take_recorder();
        }
    }

    /// Returns what went wrong lately.
    pub fn record(&self) -> impl Iterator<Item = (u64, &Explanation)> {
        self.record.iter()
    }

    /// Calls `look` with the engine and its guest's memory, if there is an engine.
    pub fn with_memory<R>(&self, look: impl FnOnce(&Rnic, &DeviceMemory<'_>) -> R) -> Option<R> {
        let session = self.session.as_ref()?;
        let rnic = session.rnic.as_ref()?;
        let memory = self.regions.device(&session.memory, None);
        Some(look(rnic, &memory))
    }

    /// Returns the table with the names of the device's memory. Whatever refers to that memory holds the table as long
    /// as it does so.
    pub fn regions(&self) -> &Arc<RegionTable> {
        &self.regions
    }

    /// Returns the RNIC's end of the wire, if it is on one.
    pub fn roce(&mut self) -> Option<&mut RoceEnd> {
        self.roce.as_mut()
    }

    /// Returns the mailbox in which front ends leave messages.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Returns what a transport has to present to the guest.
    pub fn spec(&self) -> DeviceSpec {
        let doorbell = u64::from(self.config.doorbell_pages > 0) << F_DOORBELL;
        let infiniband = self.config.link_layer == LinkLayer::InfiniBand;
        let required = F_VERSION_1 | F_ACCESS_PLATFORM | u64::from(infiniband) << F_INFINIBAND;
        DeviceSpec {
            virtio_id: VIRTIO_ID_RDMA,
            pci_class: [0x00, 0x80, 0x02],
            offered_features: required | doorbell | self.config.features.bits(),
            required_features: required,
            config: Rnic::new(self.config.clone())
                .config_space()
                .as_bytes()
                .to_vec(),
            queues: FIRST_COMPLETION_QUEUE + self.config.completion_vectors,
            max_queue_size: MAX_QUEUE_SIZE,
            doorbell_pages: self.config.doorbell_pages,
        }
    }

    /// Returns the engine, if the driver is up and the device has not failed.
    pub fn rnic(&mut self) -> Option<&mut Rnic> {
        self.session.as_mut()?.rnic.as_mut()
    }

    /// Runs `work`. A panic in it fails this device only.
    pub fn contained<R>(
        &mut self,
        shared: &mut Shared,
        work: impl FnOnce(&mut Self, &mut Shared) -> R,
    ) -> Option<R> {
        // `fail` takes down a device that panicked, so its inconsistent state is never used. The shared state stays
        // consistent: the outbox holds only complete segments, and the region table changes by whole slots.
        let result = catch_unwind(AssertUnwindSafe(|| work(self, shared))).ok();
        if result.is_none() {
            error!(device = %self.name, "the engine panicked; the device fails until its driver resets it");
            self.fail(Cause::InternalFault);
        }
        self.show_firings(shared, None);
        result
    }

    /// Returns the faults, whether the engine or the device holds them.
    fn all_faults(&self) -> &Faults {
        let session = self.session.as_ref();
        let rnic = session.and_then(|session| session.rnic.as_ref());
        rnic.map_or(&self.faults, |rnic| rnic.faults())
    }

    /// Begins a capture, which shows firings from now on.
    pub fn begin_capture(&mut self, shared: &mut Shared) {
        self.show_firings(shared, None);
        self.shown = self.all_faults().fired();
    }

    /// Shows new firings of the device's faults to the captures and returns their names. Leaves out faults that
    /// affected an outgoing packet, because that packet's own comment names them. `by` is the queue pair of the packet
    /// that has just arrived, whose comment will contain the returned names.
    fn show_firings(&mut self, shared: &mut Shared, by: Option<u32>) -> String {
        let mut names = String::new();
        if shared.captures.is_empty() {
            return names;
        }
        let faults = self.all_faults();
        let log = faults.log().rev();
        let new = log.take_while(|firing| firing.number >= self.shown);
        let new: Vec<_> = new
            .filter(|firing| firing.direction != Some(Way::Out))
            .collect();
        for firing in new.into_iter().rev() {
            let frame = capture::no_packet(self.config.link_layer, &self.config.mac);
            shared.captures.firing(self.index, &frame, firing, by);
            names += ", fault ";
            names += firing.name;
        }
        self.shown = faults.fired();
        names
    }

    /// Returns whether nothing that the device has sent refers to its memory any more. While the caller does not let it
    /// send, this stays so.
    pub fn is_quiet(&mut self) -> bool {
        Arc::get_mut(&mut self.regions).is_some()
    }

    /// Returns whether [`control`](Self::control) has something to do.
    pub fn has_orders(&self) -> bool {
        let waits = |session: &Session| {
            let removed = |rnic: &Rnic| rnic.is_removed();
            session.queues.control_notified || session.rnic.as_ref().is_some_and(removed)
        };
        self.mailbox.has_orders(CONTROL_QUEUE) || self.session.as_ref().is_some_and(waits)
    }

    /// Executes requests and commands, which may release memory, so the outbox must be empty and the device
    /// [quiet](Self::is_quiet). Calls `executed` after each of them, before the driver learns that it is done, with the
    /// engine, if there is one; if that returns true, the next command has to wait for another turn. Returns true if
    /// there was anything to do.
    pub fn control(
        &mut self,
        shared: &mut Shared,
        now: Instant,
        executed: &mut dyn FnMut(Option<&Rnic>) -> bool,
    ) -> bool {
        self.now = now;
        let mut worked = self.removed && self.put_back();
        if self.rnic().is_some_and(|rnic| rnic.is_removed()) {
            self.remove();
            worked = true;
        }
        while let Some(request) = self.mailbox.next_request() {
            worked = true;
            match request {
                // This driver has not noticed yet that the device has been removed.
                Request::Activate(_) if self.removed => {}
                Request::Activate(activation) => self.activate(activation),
                Request::Reset {
                    generation,
                    notifier,
                } => {
                    self.reset("the driver reset the device");
                    executed(None);
                    debug!(device = %self.name, "reset");
                    notifier.reset_done(generation);
                }
            }
        }
        worked |= self.heed_notifications();
        let Some(session) = &mut self.session else {
            // Doorbells from before a reset are void.
            self.mailbox.drain_doorbells(|_, _| worked = true);
            return worked;
        };
        if session.queues.control_notified {
            worked = true;
            let hostile = self.hostile.as_mut();
            if let Err(bad) =
                session.execute_commands(&self.regions, shared, hostile, now, &mut |rnic| {
                    executed(Some(rnic))
                })
            {
                self.broken_queue(CONTROL_QUEUE, bad);
            }
        }
        worked
    }

    /// Notes which queues the driver has notified. Returns whether there were any.
    fn heed_notifications(&mut self) -> bool {
        let mut any = false;
        self.mailbox.drain_queues(|queue| {
            any = true;
            // Notifications from before a reset are void.
            let Some(session) = &mut self.session else {
                return;
            };
            match queue as u16 {
                CONTROL_QUEUE => session.queues.control_notified = true,
                queue => {
                    let index = usize::from(queue - ASYNC_EVENT_QUEUE);
                    if let Some(events) = session.queues.events.get_mut(index) {
                        events.dry = false;
                    }
                }
            }
        });
        any
    }

    /// Returns how much the device may do in a turn.
    pub fn budget(&self, crowd: Crowd) -> Budget {
        let long = Budget {
            bytes: LONG_BYTES,
            ..LONG_TURN
        };
        match crowd {
            Crowd::Few => LONG_TURN,
            // A device that had no work until now may be even heavier.
            Crowd::Unequal(heaviest) => share(long, self.weight, heaviest.max(self.weight)),
            Crowd::Many => self.share,
        }
    }

    /// Returns whether the device had work recently.
    pub fn is_busy(&self, now: Instant) -> bool {
        self.session.is_some() && now - self.busy_at < BUSY_FOR
    }

    /// Does a bounded amount of work, less in a crowd. Returns true if anything was done or remains.
    pub fn work(&mut self, shared: &mut Shared, now: Instant, crowd: Crowd) -> bool {
        self.now = now;
        self.cut_short = false;
        let worked = self.take_turn(shared, now, crowd);
        if worked {
            self.busy_at = now;
        }
        worked
    }

    fn take_turn(&mut self, shared: &mut Shared, now: Instant, crowd: Crowd) -> bool {
        let panic_requested = self.mailbox.take_panic_request() && self.session.is_some();
        assert!(!panic_requested, "panic requested for a test");
        let heeded = self.heed_notifications();
        let budget = self.budget(crowd);
        let mailbox = &self.mailbox;
        let Some(session) = &mut self.session else {
            return false;
        };
        let acted = match &mut self.hostile {
            Some(hostile) => session.act(hostile, now),
            None => Ok(false),
        };
        let acted = acted.and_then(|acted| Ok(session.deliver_late(now)? | acted));
        let mut worked = match acted {
            Ok(acted) => acted | heeded,
            Err(bad) => {
                self.broken_queue(CONTROL_QUEUE, bad);
                return true;
            }
        };
        let Some(rnic) = &mut session.rnic else {
            mailbox.drain_doorbells(|_, _| {});
            return worked;
        };
        mailbox.drain_doorbells(|page, value| {
            worked = true;
            rnic.doorbell(page, value);
        });
        let memory = self.regions.device(&session.memory, None);
        let mut io = Io {
            memory: &memory,
            now,
            outbox: &mut shared.outbox,
        };
        if rnic.next_deadline().is_some_and(|deadline| deadline <= now) {
            worked = true;
            rnic.advance(&mut io);
        }
        worked |= rnic.poll(budget, &mut io);
        self.cut_short = rnic.has_ready();
        if rnic.is_killing() {
            // This is the purpose of the fault: to die without a message or cleanup.
            std::process::abort();
        }
        if rnic.is_failing() {
            self.fail(Cause::Provoked);
            return true;
        }
        if rnic.is_removed() {
            // `control` removes it once nothing that it sent is under way.
            return true;
        }
        worked | self.sync()
    }

    /// Advances the tasks that make guest memory persistent. Returns true if there was anything to do.
    fn sync(&mut self) -> bool {
        let Some(rnic) = self
            .session
            .as_mut()
            .and_then(|session| session.rnic.as_mut())
        else {
            return false;
        };
        let result = self.syncer.result();
        if let Some(done) = result {
            rnic.synced(done);
        }
        let mut worked = result.is_some();
        while !self.syncer.is_busy()
            && let Some(ranges) = rnic.next_sync()
        {
            worked = true;
            if !self.syncer.begin(&ranges, &self.regions) {
                rnic.synced(false);
            }
        }
        worked
    }

    /// Receives a segment, and takes its payload. If that may be in the sender's memory, `sender` is the table with the
    /// names of that.
    pub fn receive(
        &mut self,
        shared: &mut Shared,
        segment: &mut Segment<'_>,
        sender: Option<&RegionTable>,
        now: Instant,
    ) {
        if let Some(session) = &mut self.session
            && let Some(rnic) = &mut session.rnic
        {
            let memory = self.regions.device(&session.memory, sender);
            rnic.receive_from(
                segment,
                &mut Io {
                    memory: &memory,
                    now,
                    outbox: &mut shared.outbox,
                },
            );
        } else {
            shared.outbox.recycle(segment.take_payload());
        }
    }

    /// Sends all segments in the outbox, which are from this device, as frames.
    pub fn send_frames(&mut self, shared: &mut Shared, network: &mut Network, now: Instant) {
        let (index, roce) = (self.index, &mut self.roce);
        let memory = memory_of(&self.regions, self.session.as_ref());
        send_all(memory, shared, |segment, memory, captures| {
            let Some(end) = roce else {
                return;
            };
            let mut frame = network.buffer();
            let is_written = end.write(segment, memory, &mut frame);
            // Nobody receives an Ethernet frame with a wrong frame check sequence, which these frames end before.
            let is_frame = matches!(segment.body, Body::Frame { .. });
            let is_lost = is_frame && segment.touched.damage.is_some();
            if is_written {
                if !is_lost {
                    vrnic_roce::damage(&mut frame, segment.touched.damage);
                }
                captures.frame(index, Direction::Out, segment, &frame, "");
            }
            if is_written && !is_lost && !segment.touched.withheld {
                network.send(index, frame, now, captures);
            } else {
                network.recycle(frame);
            }
        });
    }

    /// Sends all segments in the outbox, which are from this device, as packets on a subnet.
    pub fn send_packets(&mut self, shared: &mut Shared, subnet: &mut SubnetFabric) {
        let index = self.index;
        let memory = memory_of(&self.regions, self.session.as_ref());
        send_all(memory, shared, |segment, memory, captures| {
            let Some(packet) = subnet.packet(index, segment, memory) else {
                return;
            };
            let watched = !captures.is_empty();
            let seen = watched.then(|| subnet.as_sent(index, &packet)).flatten();
            // A packet that a fault damages does not get beyond the first port that looks at it.
            let left = if segment.touched.withheld || segment.touched.damage.is_some() {
                subnet.recycle(packet);
                true
            } else {
                subnet.send(index, packet)
            };
            if let Some(frame) = seen.filter(|_| left) {
                captures.frame(index, Direction::Out, segment, &frame, "");
            }
        });
    }

    /// Receives a packet from a subnet.
    pub fn receive_packet(
        &mut self,
        shared: &mut Shared,
        subnet: &mut SubnetFabric,
        packet: &Packet,
        now: Instant,
    ) {
        match subnet::read(packet) {
            Ok(mut segment) if shared.captures.is_empty() => {
                self.receive(shared, &mut segment, None, now);
            }
            Ok(mut segment) => {
                let seen = segment.clone();
                let note = self.receive_noted(shared, &mut segment, None, now);
                let frame = packet.to_bytes();
                let captures = &shared.captures;
                captures.frame(self.index, Direction::In, &seen, &frame, &note);
            }
            Err(error) => {
                subnet.note_malformed(self.index, error);
                if let Some(rnic) = self.rnic() {
                    rnic.count_bad_packet(false);
                }
            }
        }
    }

    /// Receives a frame.
    pub fn receive_frame(&mut self, shared: &mut Shared, frame: &[u8], now: Instant) {
        let Some(end) = &mut self.roce else {
            return;
        };
        let refused = match end.read(frame) {
            // Ignored, as by an adapter whose multicast filter lacks the address.
            Ok(segment)
                if segment.path.is_multicast() && !self.has_group(&segment.path.group()) =>
            {
                return;
            }
            Ok(mut segment) => {
                if shared.captures.is_empty() {
                    return self.receive(shared, &mut segment, None, now);
                }
                let seen = segment.clone();
                let note = self.receive_noted(shared, &mut segment, None, now);
                let captures = &shared.captures;
                return captures.frame(self.index, Direction::In, &seen, frame, &note);
            }
            Err(refused) => refused,
        };
        if refused != Refused::Other
            && let Some(rnic) = self.rnic()
        {
            rnic.count_bad_packet(refused == Refused::Crc);
        }
    }

    /// Receives a frame that is for the network device of the port unless flows of this device take it. Returns whether
    /// the network device gets it.
    pub fn receive_raw(&mut self, shared: &mut Shared, frame: &[u8], now: Instant) -> bool {
        self.show_firings(shared, None);
        let index = self.index;
        let Some(Session {
            rnic: Some(rnic),
            memory,
            ..
        }) = &mut self.session
        else {
            return true;
        };
        let memory = self.regions.device(memory, None);
        let steered = rnic.receive_frame(
            frame,
            &mut Io {
                memory: &memory,
                now,
                outbox: &mut shared.outbox,
            },
        );
        if steered.taken && !shared.captures.is_empty() {
            let note = self.show_firings(shared, Some(0));
            let segment = Segment::of_frame(Payload::Frame(frame));
            let captures = &shared.captures;
            captures.frame(index, Direction::In, &segment, frame, &note);
        }
        steered.passes
    }

    /// Returns whether queue pairs of this device are in the multicast group.
    pub fn has_group(&mut self, group: &Group) -> bool {
        self.rnic().is_some_and(|rnic| rnic.has_group(group))
    }

    /// Shows the captures a segment that travels without frames, when it leaves this device, or reaches it from the
    /// device with the table `sender`. The comment is `note`.
    pub fn capture(
        &self,
        shared: &Shared,
        direction: Direction,
        segment: &Segment<'_>,
        sender: Option<&RegionTable>,
        note: &str,
    ) {
        if let Some(session) = &self.session {
            let memory = self.regions.device(&session.memory, sender);
            let captures = &shared.captures;
            captures.segment(self.index, direction, segment, &memory, note);
        }
    }

    /// Receives a segment that captures will be shown, and returns the comment for it: the faults that it triggered.
    /// Faults that affected a reply are left out, because the reply's own comment names them.
    pub fn receive_noted(
        &mut self,
        shared: &mut Shared,
        segment: &mut Segment<'_>,
        sender: Option<&RegionTable>,
        now: Instant,
    ) -> String {
        self.show_firings(shared, None);
        let qpn = segment.destination_qpn;
        let mut names = String::new();
        self.contained(shared, |device, shared| {
            device.receive(shared, segment, sender, now);
            names = device.show_firings(shared, Some(qpn));
        });
        names
    }

    /// Passes events to the driver as long as it provides buffers.
    pub fn publish_events(&mut self) {
        self.take_explanations();
        let Some(session) = &mut self.session else {
            return;
        };
        let mut outcome = Ok(());
        for (index, events) in session.queues.events.iter_mut().enumerate() {
            let rnic = &mut session.rnic;
            let hostile = &mut self.hostile;
            let mut next = || {
                let forged = hostile
                    .as_mut()
                    .and_then(|hostile| hostile.event(index == 0));
                if forged.is_some() {
                    return forged;
                }
                let rnic = rnic.as_mut()?;
                match index {
                    0 => rnic
                        .next_async_event()
                        .map(|event| event.as_bytes().to_vec()),
                    _ => rnic
                        .next_completion_event(index as u16 - 1)
                        .map(|event| event.as_bytes().to_vec()),
                }
            };
            let queue = ASYNC_EVENT_QUEUE + index as u16;
            match events.publish(&mut next) {
                Ok(true) => session.notifier.queue_used(queue),
                Ok(false) => {}
                Err(bad) => outcome = Err((queue, bad)),
            }
        }
        if let Err((queue, bad)) = outcome {
            self.broken_queue(queue, bad);
        }
    }

    /// Returns whether a message is waiting that `control` or `work` would act on.
    pub fn has_messages(&self) -> bool {
        !self.mailbox.is_empty()
    }

    /// Announces to the guest that the device will stop polling its memory. Returns true if there is work after all.
    pub fn prepare_sleep(&mut self, shared: &mut Shared, now: Instant) -> bool {
        let Some(session) = &mut self.session else {
            return false;
        };
        let Some(rnic) = &mut session.rnic else {
            return false;
        };
        let memory = self.regions.device(&session.memory, None);
        let work = rnic.prepare_sleep(&mut Io {
            memory: &memory,
            now,
            outbox: &mut shared.outbox,
        });
        work | self.sync()
    }

    /// Returns when the device has to be woken.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.removed {
            return self.faults.removed_until();
        }
        let session = self.session.as_ref()?;
        let engine = session.rnic.as_ref().and_then(|rnic| rnic.next_deadline());
        let hostile = self.hostile.as_ref().and_then(Hostile::deadline);
        let late = session.next_late();
        engine.into_iter().chain(hostile).chain(late).min()
    }

    fn activate(&mut self, activation: Activation) {
        self.reset("another driver took over the device");
        if let Some(hostile) = &mut self.hostile {
            hostile.begin(self.mailbox.is_hostile());
        }
        let memory = activation.memory;
        let (ranges, bytes) = memory.summary();
        limited!(
            self.quota,
            info,
            device = %self.name,
            features = format_args!("{:#x}", activation.features),
            queues = activation.queues.len(),
            memory_ranges = ranges,
            memory_mib = bytes >> 20,
            "driver is up"
        );
        if ranges == 0 {
            limited!(
                self.quota,
                warn,
                device = %self.name,
                "the VM shares no memory with vrnicd: start QEMU with -machine memory-backend=mem0 and \
                 -object memory-backend-memfd,id=mem0,size=SIZE,share=on"
            );
        }
        let mut queues = Queues {
            control: None,
            control_notified: true,
            begun: None,
            events: Vec::new(),
            late: Vec::new(),
        };
        queues.events.resize_with(
            usize::from(1 + self.config.completion_vectors),
            EventQueue::default,
        );
        let mut broken = None;
        for setup in &activation.queues {
            match Virtqueue::new(setup, memory.clone()) {
                Err(bad) => broken = Some((setup.index, bad)),
                Ok(queue) if setup.index == CONTROL_QUEUE => queues.control = Some(queue),
                Ok(queue) => {
                    let index = usize::from(setup.index - ASYNC_EVENT_QUEUE);
                    if let Some(events) = queues.events.get_mut(index) {
                        events.queue = Some(queue);
                    }
                }
            }
        }
        let mut config = self.config.clone();
        if activation.features & 1 << F_DOORBELL == 0 {
            config.doorbell_pages = 0;
        }
        config.features = Features::from_bits(activation.features);
        config.seed = random_seed();
        let tape = self.tape.as_mut().filter(|tape| tape.waits());
        let mut rnic = match tape {
            Some(tape) => {
                info!(device = %self.name, "recording started");
                Rnic::recorded(config, &self.name, tape.begin())
            }
            None => Rnic::new(config),
        };
        if self.crash_directory.is_some() {
            rnic.keep_flight(&self.name);
        }
        rnic.set_link(self.link);
        if self.rate_limit != RateLimit::default() {
            rnic.set_rate_limit(self.rate_limit);
        }
        rnic.set_faults(std::mem::take(&mut self.faults));
        self.session = Some(Session {
            memory,
            notifier: activation.notifier,
            queues,
            rnic: Some(rnic),
        });
        if let Some((queue, bad)) = broken {
            self.broken_queue(queue, bad);
        }
    }

    /// Removes the device from its slot: it releases everything without telling the driver.
    fn remove(&mut self) {
        warn!(device = %self.name, "a fault removes the device");
        self.removed = true;
        self.mailbox.change_presence();
        self.take_explanations();
        self.reset("a fault removed the device");
    }

    /// Puts the device back into its slot if the fault that removed it has ended. Returns whether it did.
    fn put_back(&mut self) -> bool {
        if self.faults.is_removed(self.now) {
            return false;
        }
        info!(device = %self.name, "the device is back in its slot");
        self.removed = false;
        self.mailbox.change_presence();
        true
    }

    /// Drops everything that belongs to the driver and its memory.
    fn reset(&mut self, why: &str) {
        if let Some(hostile) = &mut self.hostile {
            hostile.forget();
        }
        self.drop_rnic(why);
        self.regions = Arc::new(self.regions.next());
        if let Some(session) = self.session.take() {
            reaper::run(move || {
                let memory = session.memory.clone();
                drop(session);
                memory.release_unused();
            });
        }
    }

    fn broken_queue(&mut self, queue: u16, bad: BadQueue) {
        limited!(
            self.quota,
            warn,
            device = %self.name,
            queue,
            reason = bad.0,
            "the driver broke a virtqueue; the device needs a reset"
        );
        self.fail(Cause::VirtqueueBroken);
    }

    /// Takes the engine down, tells the driver, and waits for its reset.
    fn fail(&mut self, cause: Cause) {
        let leaves = self.may_leave(cause);
        if let Some(rnic) = self.rnic() {
            let flown = rnic.flight().collect();
            let flight = leaves.then(|| rnic.take_flight(cause.text())).flatten();
            self.flown = Some(flown);
            if let Some(flight) = flight
                && let Err(error) = self.leave(flight, cause.text())
            {
                warn!(device = %self.name, "cannot save a recording of the last calls: {error:#}");
            }
        }
        self.drop_rnic(cause.text());
        if self.session.is_some() {
            let happening = Happening::Event(EventType::DeviceFatal);
            self.explain(Explanation {
                time: self.now,
                ..Explanation::new(happening, 0, Some(cause))
            });
        }
        let Some(session) = &mut self.session else {
            return;
        };
        let event = AsyncEvent {
            event_type: EventType::DeviceFatal.raw().into(),
            vendor_error: cause.code().into(),
            ..AsyncEvent::default()
        };
        if let Some(events) = session.queues.events.first_mut() {
            events.last = Some(event.as_bytes().to_vec());
            events.dry = false;
            if let Ok(true) = events.publish(&mut || None) {
                session.notifier.queue_used(ASYNC_EVENT_QUEUE);
                self.faults.event_given(EventType::DeviceFatal, self.now);
            }
        }
        session.notifier.needs_reset();
    }

    /// Returns whether a failure may be recorded. One that the driver causes may not: a guest can cause it as often as
    /// it likes, the engine did nothing that led to it, and it would replace the recording of a real failure.
    fn may_leave(&self, cause: Cause) -> bool {
        let rests = |(at, file): &(Instant, Arc<Progress>)| {
            self.now - *at < CRASH_INTERVAL || !file.is_finished()
        };
        cause != Cause::VirtqueueBroken
            && self.crash_directory.is_some()
            && !self.crash.as_ref().is_some_and(rests)
    }

    /// Writes a recording of the calls that led to a failure.
    fn leave(&mut self, flight: Vec<u8>, why: &str) -> Result<()> {
        let Some(directory) = &self.crash_directory else {
            return Ok(());
        };
        let path = directory.join(format!("{}-crash.vrnic", file_name(&self.name)));
        let name = path.display().to_string();
        let tape = Tape::left(path, flight, why).with_context(|| format!("cannot write {name}"))?;
        warn!(device = %self.name, file = name, "saved a recording of the last calls");
        self.crash = Some((self.now, tape.progress()));
        self.replace_tape(tape);
        Ok(())
    }

    /// Keeps and logs the engine's explanations of what went wrong.
    pub fn take_explanations(&mut self) {
        while let Some(what) = self.rnic().and_then(Rnic::next_explanation) {
            self.explain(what);
        }
    }

    fn explain(&mut self, what: Explanation) {
        debug!(device = %self.name, "{}", explanation(self.record.next(), &what));
        self.record.add(what);
    }

    fn drop_rnic(&mut self, why: &str) {
        self.finish_recording(why);
        self.syncer.forget();
        let told = catch_unwind(AssertUnwindSafe(|| self.take_explanations()));
        if told.is_err() {
            error!(device = %self.name, "the engine panicked again; its last explanations are lost");
        }
        let mut rnic = self
            .session
            .as_mut()
            .and_then(|session| session.rnic.take());
        if let Some(rnic) = &mut rnic {
            self.faults = rnic.take_faults();
            self.faults.rest();
        }
        let name = self.name.clone();
        // After a panic the engine's state may be inconsistent, so even dropping it may panic.
        reaper::run(move || {
            if catch_unwind(AssertUnwindSafe(|| drop(rnic))).is_err() {
                error!(device = %name, "the engine panicked again while it was taken down");
            }
        });
    }
}

/// Returns memory as the device with this table and session sees it.
fn memory_of<'a>(
    regions: &'a RegionTable,
    session: Option<&'a Session>,
) -> Option<DeviceMemory<'a>> {
    session.map(|session| regions.device(&session.memory, None))
}

/// Passes each segment in the outbox, all from the same device, to `send`, with the memory that contains its payload.
/// Recycles the buffers of payloads.
fn send_all(
    memory: Option<DeviceMemory<'_>>,
    shared: &mut Shared,
    mut send: impl FnMut(&Segment<'_>, &DeviceMemory<'_>, &Captures),
) {
    let Shared { outbox, captures } = shared;
    let mut segments = std::mem::take(&mut outbox.segments);
    for segment in segments.drain(..) {
        if let Some(memory) = &memory {
            send(&segment, memory, captures);
        }
        outbox.recycle(segment.payload);
    }
    outbox.segments = segments;
}

/// Returns the part of a file name that stands for the device of that name, and for no other.
fn file_name(device: &str) -> String {
    device.replace('%', "%25").replace('/', "%2F")
}

/// Returns a seed that no guest can guess; keys are derived from it.
fn random_seed() -> [u8; 32] {
    let mut seed = [0; 32];
    let mut filled = 0;
    while filled < seed.len() {
        match rustix::rand::getrandom(&mut seed[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            // Every supported kernel has getrandom; without randomness, keys could be guessed.
            Err(errno) => panic!("no randomness: {errno}"),
        }
    }
    seed
}

/// Returns the part of `turn`, the budget of the heaviest device, for a device of that weight.
fn share(turn: Budget, weight: u32, heaviest: u32) -> Budget {
    Budget {
        units: (turn.units * weight / heaviest).max(1),
        bytes: turn.bytes * u64::from(weight) / u64::from(heaviest),
    }
}

const _: () = assert!(DOORBELL_PAGE_SIZE as u64 == crate::pci::DOORBELL_PAGE_SIZE);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::capture::{Center, Choice};
    use crate::config::MAX_WEIGHT;
    use crate::guest_memory::GuestMemory;
    use crate::guest_memory::tests::memfd;
    use crate::virtio::{Notifier, QueueSetup};
    use pcap_file::pcapng::{Block, PcapNgReader};
    use vrnic_engine::recording::Recording;
    use vrnic_wire::command::{Command, CommandHeader, RegisterMr};
    use vrnic_wire::memory::PageList;

    /// A driver that does not listen.
    struct Deaf;

    impl Notifier for Deaf {
        fn queue_used(&self, _: u16) {}
        fn needs_reset(&self) {}
        fn reset_done(&self, _: u64) {}
    }

    /// Longer than anything takes that happens.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn shared(names: &[&str]) -> Shared {
        Shared {
            outbox: Outbox::new(),
            captures: Arc::new(Captures::new(
                names.iter().map(|name| (*name).to_owned()).collect(),
            )),
        }
    }

    fn device(name: &str, more: &str) -> Device {
        let config = config::Config::parse(&format!(
            "[[device]]\nname = {name:?}\nsocket = \"s\"\nmac = \"02:00:00:00:00:01\"\n{more}"
        ));
        let waker = Arc::new(Waker::new().unwrap());
        Device::new(0, &config.unwrap().devices[0], 1, Mtu::Mtu4096, None, waker)
    }

    /// A driver comes, and something is done.
    fn bring_up(device: &mut Device) {
        device.activate(Activation {
            features: u64::MAX,
            queues: Vec::new(),
            memory: Arc::new(GuestMemory::new()),
            notifier: Arc::new(Deaf),
        });
        device.rnic().unwrap().doorbell(0, 0);
    }

    /// The device fails then, with a driver; why the recording in `file` ended once all of that is written.
    fn fail(device: &mut Device, seconds: u64, cause: Cause, file: &Path) -> Option<String> {
        device.now = at(seconds);
        bring_up(device);
        device.fail(cause);
        assert!(device.wait_for_tapes(std::time::Instant::now() + PATIENCE));
        let bytes = std::fs::read(file).ok()?;
        let mut recording = Recording::new(&bytes).unwrap();
        assert!(recording.by_ref().all(|call| call.is_ok()));
        recording.ended().map(str::to_owned)
    }

    #[test]
    fn a_control_queue_that_is_missing_or_broken_makes_no_work() {
        let memory = Arc::new(GuestMemory::new());
        let file = memfd(0x3000);
        memory.map(0x1000, 0x3000, &file, 0, true).unwrap();
        // More chains than the queue has room for.
        rustix::io::pwrite(&file, &[100], 0x1002).unwrap();
        let broken = QueueSetup {
            index: CONTROL_QUEUE,
            size: 4,
            descriptors: 0x1000,
            driver_area: 0x2000,
            device_area: 0x3000,
        };
        for queues in [vec![], vec![broken]] {
            let (mut device, mut shared) = (device("x", ""), shared(&["x"]));
            device.activate(Activation {
                features: u64::MAX,
                queues,
                memory: memory.clone(),
                notifier: Arc::new(Deaf),
            });
            let mut turn = || {
                let controlled = device.control(&mut shared, at(1), &mut |_| false);
                controlled | device.work(&mut shared, at(1), Crowd::Few)
            };
            assert!(!(0..20).all(|_| turn()), "it never rests");
        }
    }

    #[test]
    fn commands_that_take_long_together_are_spread_over_turns() {
        const PAGES: u32 = 2000;
        const COMMANDS: u16 = 16;
        const BASE: u64 = 0x10000;
        let setup = QueueSetup {
            index: CONTROL_QUEUE,
            size: 64,
            descriptors: BASE,
            driver_area: BASE + 0x1000,
            device_area: BASE + 0x2000,
        };
        let (request, chunk, page) = (BASE + 0x4000, BASE + 0x5000, BASE + 0x6000);
        let memory = Arc::new(GuestMemory::new());
        let file = memfd(0x10000);
        memory.map(BASE, 0x10000, &file, 0, true).unwrap();
        let put = |address: u64, bytes: &[u8]| {
            rustix::io::pwrite(&file, bytes, address - BASE).unwrap();
        };
        // One page in a chunk that follows itself. There is no such protection domain, but that is found out later.
        put(chunk, [chunk, 1, page].map(u64::to_le_bytes).as_flattened());
        let body = RegisterMr {
            pages: PageList {
                first_chunk: chunk.into(),
                length: (u64::from(PAGES) << 12).into(),
                page_count: PAGES.into(),
                page_shift: 12,
                ..PageList::default()
            },
            ..RegisterMr::default()
        };
        let header = CommandHeader {
            code: RegisterMr::CODE.raw().into(),
            reserved: 0.into(),
            length: (size_of::<RegisterMr>() as u32).into(),
        };
        let bytes = [header.as_bytes(), body.as_bytes()].concat();
        put(request, &bytes);
        for index in 0..COMMANDS {
            let (first, reply) = (2 * index, request + 0x400 + 64 * u64::from(index));
            let chain = [
                (first, request, bytes.len() as u64, 1),
                (first + 1, reply, 64, 2),
            ];
            for (number, address, length, flags) in chain {
                // Length, flags and the number of the next one.
                let rest = length | flags << 32 | u64::from(first + 1) << 48;
                let descriptor = [address, rest].map(u64::to_le_bytes);
                let at = setup.descriptors + 16 * u64::from(number);
                put(at, descriptor.as_flattened());
            }
            let entry = setup.driver_area + 4 + 2 * u64::from(index);
            put(entry, &first.to_le_bytes());
        }
        put(setup.driver_area + 2, &COMMANDS.to_le_bytes());
        let (mut device, mut shared) = (device("x", ""), shared(&["x"]));
        device.activate(Activation {
            features: u64::MAX,
            queues: vec![setup],
            memory,
            notifier: Arc::new(Deaf),
        });
        for turn in 1..=COMMANDS / 2 {
            let mut executed = 0;
            device.control(&mut shared, at(turn.into()), &mut |_| {
                executed += 1;
                false
            });
            assert_eq!(executed, 2, "turn {turn}");
        }
    }

    #[test]
    fn failures_leave_a_recording_now_and_then() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x-crash.vrnic");
        let mut device = device("x", "");
        device.set_crash_directory(directory.path());
        let fault = Some(Cause::InternalFault.text().to_owned());
        assert_eq!(fail(&mut device, 5, Cause::InternalFault, &file), fault);
        for seconds in 6..60 {
            assert_eq!(fail(&mut device, seconds, Cause::Provoked, &file), fault);
        }
        let later = fail(&mut device, 65, Cause::Provoked, &file);
        assert_eq!(later.as_deref(), Some(Cause::Provoked.text()));
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_driver_leaves_no_recording_by_breaking_a_queue() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x-crash.vrnic");
        let mut device = device("x", "");
        device.set_crash_directory(directory.path());
        for seconds in (0..100).map(|n| n * 1000) {
            let left = fail(&mut device, seconds, Cause::VirtqueueBroken, &file);
            assert_eq!(left, None);
        }
        // What the device was called with is still known.
        let flight = device.flight_of_failure().unwrap();
        assert!(flight.last().unwrap().contains("doorbell"), "{flight:?}");
    }

    #[test]
    fn no_failure_leaves_a_recording_while_another_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("x-crash.vrnic");
        let mut device = device("x", "");
        device.set_crash_directory(directory.path());
        // One that waits for somebody to read the pipe.
        let (reader, writer) = std::io::pipe().unwrap();
        let writer = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
        let mut stuck = Tape::new(writer, "pipe", u64::MAX).unwrap();
        device.crash = Some((at(1), stuck.progress()));
        assert_eq!(fail(&mut device, 1000, Cause::InternalFault, &file), None);
        drop(reader);
        stuck.end("enough");
        assert!(stuck.progress().wait(std::time::Instant::now() + PATIENCE));
        let left = fail(&mut device, 1001, Cause::InternalFault, &file);
        assert_eq!(left.as_deref(), Some(Cause::InternalFault.text()));
    }

    #[test]
    fn the_end_waits_for_the_files_of_all_recordings() {
        let mut device = device("x", "");
        // More than a pipe holds.
        let (reader, writer) = std::io::pipe().unwrap();
        let writer = std::fs::File::from(std::os::fd::OwnedFd::from(writer));
        let mut stuck = Tape::new(writer, "pipe", u64::MAX).unwrap();
        let mut rnic = Rnic::recorded(RnicConfig::default(), "x", stuck.begin());
        (0..100_000).for_each(|value| rnic.doorbell(0, value));
        assert!(stuck.pass_on(rnic.recorder().unwrap(), true));
        stuck.end("enough");
        device.set_tape(stuck).unwrap();
        let file = tempfile::tempfile().unwrap();
        let last = Tape::new(file, "file", u64::MAX).unwrap();
        device.set_tape(last).unwrap();
        device.end_tape("over");
        let now = std::time::Instant::now;
        assert!(device.tape().unwrap().progress().wait(now() + PATIENCE));
        assert!(!device.wait_for_tapes(now()));
        drop(reader);
        assert!(device.wait_for_tapes(now() + PATIENCE));
    }

    #[test]
    fn recordings_of_all_devices_have_files_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a/b", "a_b", "a%2Fb", "a%252Fb", "a", "..", "/"];
        for name in names {
            let mut device = device(name, "");
            device.set_crash_directory(directory.path());
            fail(&mut device, 1, Cause::InternalFault, Path::new("/"));
        }
        let files = directory.path().read_dir().unwrap();
        let mut files: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files.len(), names.len(), "{files:?}");
        let devices: BTreeSet<String> = files
            .iter()
            .map(|file| {
                let bytes = std::fs::read(directory.path().join(file)).unwrap();
                Recording::new(&bytes).unwrap().header().device.clone()
            })
            .collect();
        assert_eq!(devices, BTreeSet::from(names.map(String::from)));
    }

    #[test]
    fn captures_of_an_hca_have_packets_of_infiniband_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("capture.pcapng");
        let center = Center::new(vec!["x".into()], std::iter::empty());
        let center = center.with_infiniband(vec!["x".into()]);
        let mut shared = shared(&["x"]);
        let file = std::fs::File::create(&path).unwrap();
        let capture = center.start(Choice::default(), file, "capture").unwrap();
        shared.captures.add(capture);
        let mut device = device("x", "fabric = \"infiniband\"\n");
        let spec = "event-gid-change count=3".parse().unwrap();
        device.faults().arm(spec, at(0)).unwrap();
        bring_up(&mut device);
        for _ in 0..3 {
            device.now = device.now + Duration::from_secs(1);
            let now = device.now;
            device.contained(&mut shared, |device, shared| {
                device.work(shared, now, Crowd::Few)
            });
        }
        drop(shared);
        assert!(center.wait(None, PATIENCE));
        let mut reader = PcapNgReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let mut packets = 0;
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(block) = block.unwrap() {
                packets += 1;
                let packet = Packet::parse(&block.data).expect("a packet");
                // Nobody takes it for one of a transport.
                assert!(matches!(
                    packet.body,
                    vrnic_infiniband::packet::Body::Raw(_)
                ));
            }
        }
        assert_eq!(packets, 3);
    }

    #[test]
    fn a_turn_is_in_proportion_to_the_weight() {
        assert_eq!(share(SHORT_TURN, 3, 3), SHORT_TURN);
        let half = share(SHORT_TURN, 2, 4);
        assert_eq!(half.units * 2, SHORT_TURN.units);
        assert_eq!(half.bytes * 2, SHORT_TURN.bytes);
        let least = share(SHORT_TURN, 1, MAX_WEIGHT);
        assert_eq!((least.units, least.bytes), (1, 8192));
    }

    #[test]
    fn two_busy_devices_crowd_each_other_only_if_their_weights_differ() {
        let of_weight = |weight| device("x", &format!("weight = {weight}\n"));
        let busy = |devices: &[&Device]| {
            let mut busy = Busy::default();
            for device in devices {
                busy.add(Busy {
                    count: 1,
                    weights: Some((device.weight, device.weight)),
                });
            }
            busy.crowd()
        };
        let (one, other, heavy) = (of_weight(1), of_weight(1), of_weight(4));
        // Alone, and beside an equal one, as long as a turn can be.
        for crowd in [
            busy(&[]),
            busy(&[&one]),
            busy(&[&heavy]),
            busy(&[&one, &other]),
        ] {
            assert_eq!((crowd, one.budget(crowd)), (Crowd::Few, LONG_TURN));
        }
        let unequal = busy(&[&one, &heavy]);
        assert_eq!(unequal, Crowd::Unequal(4));
        let (less, more) = (one.budget(unequal), heavy.budget(unequal));
        assert_eq!((more.units, more.bytes), (LONG_TURN.units, LONG_BYTES));
        assert_eq!((4 * less.units, 4 * less.bytes), (more.units, more.bytes));
        // Even the lightest one has a turn that is not short.
        let least = one.budget(Crowd::Unequal(MAX_WEIGHT));
        assert!(least.units >= SHORT_TURN.units && least.bytes >= SHORT_TURN.bytes);
        // One that just begins.
        assert_eq!(of_weight(8).budget(unequal), more);
        // One that is busy, but with little.
        let mut light = of_weight(1);
        bring_up(&mut light);
        let with_heavy = |light: &Device| {
            let mut busy = Busy {
                count: 1,
                weights: Some((4, 4)),
            };
            busy.count(light, at(0), false);
            assert_eq!(busy.count, 2);
            busy.crowd()
        };
        assert_eq!(with_heavy(&light), Crowd::Few);
        light.cut_short = true;
        assert_eq!(with_heavy(&light), Crowd::Unequal(4));
        // One that has failed has no work.
        light.fail(Cause::Provoked);
        light.work(&mut shared(&["x"]), at(0), Crowd::Few);
        assert_eq!(with_heavy(&light), Crowd::Few);
        assert_eq!(busy(&[&one, &other, &heavy]), Crowd::Many);
        assert_eq!(one.budget(Crowd::Many), one.share);
    }
}
