// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Capture: writes what RNICs send and receive, and what passes through the switch, to pcapng files that Wireshark and
//! tshark can dissect.
//!
//! RNICs on a wire send frames anyway. RNICs on the local fabric, which copies from guest to guest, send none. The
//! capture then contains the packets that they would have sent, with up to [`RENDERED_MTU`] bytes of payload. On that
//! fabric, a sequence number counts segments, so all packets of one segment have the same number.
//!
//! Workers only copy frames to bounded queues ([`Captures`]). A thread for each capture writes its file. If it
//! cannot keep up, packets are missing from the file, and the next packet in the file records how many. [`Center`]
//! starts captures and keeps track of them.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

use vrnic_engine::fault::Firing;
use vrnic_engine::memory::Memory;
use vrnic_engine::{LinkLayer, Segment};
use vrnic_infiniband::packet as infiniband;
use vrnic_roce::{MAX_FRAME, encode, opcode_name, split};

mod center;
mod settings;
mod sink;
mod writer;

pub use center::{Center, Known, MAX_RUNNING};
use settings::Scope;
pub use settings::{Choice, Settings};
pub(crate) use sink::Sink;

/// Payload size of the packets into which longer segments are split.
pub const RENDERED_MTU: u64 = 4096;

/// Ethertype of placeholder frames that were never sent and whose comments describe faults: one reserved for local
/// experiments (IEEE 802).
pub const NO_PACKET: u16 = 0x88b5;

/// Returns a placeholder frame for comments, with the type [`NO_PACKET`]. On Ethernet, it has the given MAC address as
/// source and destination; on InfiniBand, it is a raw packet without LIDs.
pub fn no_packet(link_layer: LinkLayer, mac: &[u8; 6]) -> Vec<u8> {
    let [high, low] = NO_PACKET.to_be_bytes();
    match link_layer {
        LinkLayer::Ethernet => [&mac[..], mac, &[high, low]].concat(),
        LinkLayer::InfiniBand => infiniband::Packet {
            lane: 0,
            service_level: 0,
            source: 0,
            destination: 0,
            // The raw header (IBTA volume 1, 5.3): 16 bits are reserved before the type.
            body: infiniband::Body::Raw(vec![0, 0, high, low]),
        }
        .to_bytes(),
    }
}

/// Largest number of packets that wait to be written.
const QUEUE: usize = 8192;
/// Largest total size of their frames in bytes.
const QUEUE_BYTES: usize = 32 << 20;

/// Direction of a packet, as seen by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// A packet to be written to the file.
struct Packet {
    /// Index of the interface: that of the device, or the number of devices plus the index of the port.
    interface: u32,
    /// Direction; none if the frame was never sent.
    direction: Option<Direction>,
    /// Time since the epoch.
    time: Duration,
    frame: Vec<u8>,
    comment: String,
    /// Number of packets that are missing before this one.
    missing: u64,
}

/// Progress of a capture.
#[derive(Debug, Default)]
struct Progress {
    /// Number of packets written.
    packets: AtomicU64,
    /// Number of bytes written.
    bytes: AtomicU64,
    /// Number of packets for which there was no room.
    missing: AtomicU64,
    /// Size of the frames that wait to be written, in bytes.
    queued: AtomicUsize,
    /// Whether writing has ended.
    over: AtomicBool,
}

impl Progress {
    fn dequeued(&self, length: usize) {
        self.queued.fetch_sub(length, Ordering::Relaxed);
    }
}

/// The workers' end of a capture. The file is finished some time after this has been dropped.
pub struct Capture {
    id: u64,
    scope: Scope,
    packets: SyncSender<Packet>,
    progress: Arc<Progress>,
    /// Number of packets missing since the last one that was queued.
    missing: AtomicU64,
}

impl Capture {
    fn new(id: u64, scope: Scope, packets: SyncSender<Packet>, progress: Arc<Progress>) -> Self {
        Self {
            id,
            scope,
            packets,
            progress,
            missing: AtomicU64::new(0),
        }
    }

    /// Returns the number of the capture.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether the capture has ended on its own.
    fn is_over(&self) -> bool {
        self.progress.over.load(Ordering::Relaxed)
    }

    fn put(&self, interface: usize, direction: Option<Direction>, frame: &[u8], comment: String) {
        let queued = &self.progress.queued;
        let room = queued.load(Ordering::Relaxed) + frame.len() <= QUEUE_BYTES;
        let missing = self.missing.swap(0, Ordering::Relaxed);
        let sent = room.then(|| {
            queued.fetch_add(frame.len(), Ordering::Relaxed);
            self.packets.try_send(Packet {
                interface: interface as u32,
                direction,
                time: SystemTime::now()
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default(),
                frame: frame.to_vec(),
                comment,
                missing,
            })
        });
        match sent {
            Some(Ok(())) => return,
            Some(Err(TrySendError::Full(packet) | TrySendError::Disconnected(packet))) => {
                self.progress.dequeued(packet.frame.len());
            }
            None => {}
        }
        self.missing.fetch_add(missing + 1, Ordering::Relaxed);
        self.progress.missing.fetch_add(1, Ordering::Relaxed);
    }
}

/// The running captures.
///
/// A worker that shows them something is one of many readers of the lock, who do not wait for each other. It is locked
/// for writing only while a question is answered, and then no turn is under way. Nobody locks it without a capture.
pub struct Captures {
    /// Names of the devices.
    devices: Vec<String>,
    /// Whether there are captures. Changes only while `running` is locked.
    any: AtomicBool,
    running: RwLock<Vec<Capture>>,
}

thread_local! {
    /// Buffer for encoding a frame.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; MAX_FRAME]);
}

impl Captures {
    /// Creates an empty list of captures, for devices with these names.
    pub fn new(devices: Vec<String>) -> Self {
        Self {
            devices,
            any: AtomicBool::new(false),
            running: RwLock::new(Vec::new()),
        }
    }

    /// Locks the captures to show them something, even if a thread panicked meanwhile: they are complete at any time.
    fn read(&self) -> RwLockReadGuard<'_, Vec<Capture>> {
        let captures = self.running.read().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended on their own are dropped when the next one begins or ends.
        if captures.iter().all(Capture::is_over) {
            self.any.store(false, Ordering::Relaxed);
        }
        captures
    }

    /// Changes the list of captures.
    fn change(&self, change: impl FnOnce(&mut Vec<Capture>)) {
        let captures = self.running.write();
        let mut captures: RwLockWriteGuard<'_, _> =
            captures.unwrap_or_else(PoisonError::into_inner);
        captures.retain(|capture| !capture.is_over());
        change(&mut captures);
        self.any.store(!captures.is_empty(), Ordering::Relaxed);
    }

    /// Adds a capture.
    pub fn add(&self, capture: Capture) {
        self.change(|captures| captures.push(capture));
    }

    /// Ends a capture. Packets that it was given before will be written. Returns false if there is no capture with that
    /// number.
    pub fn remove(&self, id: u64) -> bool {
        let mut removed = false;
        self.change(|captures| {
            let before = captures.len();
            captures.retain(|capture| capture.id != id);
            removed = captures.len() < before;
        });
        removed
    }

    /// Returns whether there are no captures.
    pub fn is_empty(&self) -> bool {
        !self.any.load(Ordering::Relaxed)
    }

    /// Shows the captures a frame with `segment` that passes a device; `note` is appended to its comment.
    pub fn frame(
        &self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        frame: &[u8],
        note: &str,
    ) {
        if self.is_empty() {
            return;
        }
        self.show(&self.read(), device, direction, segment, frame, note);
    }

    fn show(
        &self,
        captures: &[Capture],
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        frame: &[u8],
        note: &str,
    ) {
        for capture in captures.iter().filter(|capture| !capture.is_over()) {
            if capture.scope.has(device, direction, segment) {
                let comment = comment(&self.devices[device], direction, segment) + note;
                capture.put(device, Some(direction), frame, comment);
            }
        }
    }

    /// Shows the captures a segment without frames that passes a device; `note` is appended to its comment.
    pub fn segment<M: Memory>(
        &self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        memory: &M,
        note: &str,
    ) {
        if self.is_empty() {
            return;
        }
        let wanted =
            |capture: &Capture| !capture.is_over() && capture.scope.has(device, direction, segment);
        let captures = self.read();
        if !captures.iter().any(wanted) {
            return;
        }
        BUFFER.with_borrow_mut(|buffer| {
            split(segment, RENDERED_MTU, |packet| {
                if let Ok(length) = encode(packet, memory, buffer) {
                    let frame = &buffer[..length];
                    self.show(&captures, device, direction, packet, frame, note);
                }
            });
        });
    }

    /// Shows the captures that a fault fired on a device. A capture gets the placeholder `frame` ([`no_packet`]) with a
    /// comment, unless it has the packet that arrived for the queue pair `by`, whose own comment describes the fault.
    pub fn firing(&self, device: usize, frame: &[u8], firing: &Firing, by: Option<u32>) {
        for capture in self.read().iter().filter(|capture| !capture.is_over()) {
            let has_packet = |qpn| capture.scope.has_packet(device, Direction::In, qpn);
            if capture.scope.has_firing(device, firing.qpn) && !by.is_some_and(has_packet) {
                let comment = firing_comment(&self.devices[device], firing);
                capture.put(device, None, frame, comment);
            }
        }
    }

    /// Shows the captures a frame that passes the switch port with this index and name. The frame comes from something
    /// other than an RNIC of this daemon, or a fault struck or made it, as `note` tells.
    pub fn outside(&self, port: usize, name: &str, direction: Direction, frame: &[u8], note: &str) {
        if self.is_empty() {
            return;
        }
        let interface = self.devices.len() + port;
        for capture in self.read().iter().filter(|capture| !capture.is_over()) {
            if matches!(capture.scope, Scope::Switch) {
                let comment = format!("switch port {name}{note}");
                capture.put(interface, Some(direction), frame, comment);
            }
        }
    }
}

/// Describes what a fault did that struck no packet, or no packet in the capture.
fn firing_comment(name: &str, firing: &Firing) -> String {
    let number = |kind, number| match number {
        0 => String::new(),
        _ => format!(" {kind} {number:#x}"),
    };
    let (qp, cq) = (number("QP", firing.qpn), number("CQ", firing.cqn));
    format!("{name}{qp}{cq}, fault {}: {}", firing.name, firing.what)
}

/// Describes a packet.
fn comment(name: &str, direction: Direction, segment: &Segment<'_>) -> String {
    let (own, peer, arrow) = match direction {
        Direction::In => (segment.destination_qpn, segment.source_qpn, "<-"),
        Direction::Out => (segment.source_qpn, segment.destination_qpn, "->"),
    };
    let peer = match peer {
        // Frames of connected queue pairs do not contain the sender's number.
        0 => "its peer".to_owned(),
        number => format!("QP {number:#x}"),
    };
    let fault = segment.touched.kind.map_or("", |kind| kind.name);
    let by = if fault.is_empty() { "" } else { ", fault " };
    let kept = if segment.touched.withheld {
        ": kept back"
    } else {
        ""
    };
    let opcode = opcode_name(segment);
    format!("{name} QP {own:#x} {arrow} {peer}: {opcode}{by}{fault}{kept}")
}

#[cfg(test)]
mod tests;
