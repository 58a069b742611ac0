// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Capture: what RNICs send and receive and what passes the switch, as pcapng files that Wireshark and tshark dissect.
//!
//! RNICs on a wire send frames anyway. RNICs that copy from guest to guest send none. The capture then has the packets
//! that they would have sent, with up to [`RENDERED_MTU`] bytes of payload. There a sequence number counts segments, so
//! all packets of one segment have the same number.
//!
//! The worker only copies frames into bounded queues ([`Captures`]). A thread for each capture writes its file. If it
//! cannot keep up, packets are missing from the file, and the next packet in it says how many. [`Center`] starts
//! captures and keeps track of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::{Duration, SystemTime};

use vrnic_engine::Segment;
use vrnic_engine::fault::Firing;
use vrnic_engine::memory::Memory;
use vrnic_roce::{MAX_FRAME, encode, opcode_name, split};

mod center;
mod settings;
mod sink;
mod writer;

pub use center::{Center, Known, MAX_RUNNING};
use settings::Scope;
pub use settings::{Choice, Settings};
pub(crate) use sink::Sink;

/// Payload bytes of packets that are rendered of longer segments.
pub const RENDERED_MTU: u64 = 4096;

/// Ethertype of frames that were never sent, whose comments tell of faults: one for local experiments (IEEE 802).
pub const NO_PACKET: u16 = 0x88b5;

/// Packets that wait to be written.
const QUEUE: usize = 8192;
/// Bytes of their frames.
const QUEUE_BYTES: usize = 32 << 20;

/// Which way a packet goes, as seen by the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// A packet on its way to the file.
struct Packet {
    /// Index of the device; behind all devices, of the port.
    interface: u32,
    /// None if it did not pass.
    direction: Option<Direction>,
    /// Since the epoch.
    time: Duration,
    frame: Vec<u8>,
    comment: String,
    /// Packets that are missing before this one.
    missing: u64,
}

/// How far a capture is.
#[derive(Debug, Default)]
struct Progress {
    /// Packets written.
    packets: AtomicU64,
    /// Bytes written.
    bytes: AtomicU64,
    /// Packets that found no room.
    missing: AtomicU64,
    /// Bytes of frames that wait to be written.
    queued: AtomicUsize,
    /// Nobody writes any more.
    over: AtomicBool,
}

impl Progress {
    fn dequeued(&self, length: usize) {
        self.queued.fetch_sub(length, Ordering::Relaxed);
    }
}

/// The worker's end of a capture. The file is finished some time after this is dropped.
pub struct Capture {
    id: u64,
    scope: Scope,
    packets: SyncSender<Packet>,
    progress: Arc<Progress>,
    /// Packets that are missing since the last that is not.
    missing: u64,
}

impl Capture {
    fn new(id: u64, scope: Scope, packets: SyncSender<Packet>, progress: Arc<Progress>) -> Self {
        Self {
            id,
            scope,
            packets,
            progress,
            missing: 0,
        }
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether it ended by itself.
    fn is_over(&self) -> bool {
        self.progress.over.load(Ordering::Relaxed)
    }

    fn put(
        &mut self,
        interface: usize,
        direction: Option<Direction>,
        frame: &[u8],
        comment: String,
    ) {
        let queued = &self.progress.queued;
        let room = queued.load(Ordering::Relaxed) + frame.len() <= QUEUE_BYTES;
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
                missing: self.missing,
            })
        });
        match sent {
            Some(Ok(())) => {
                self.missing = 0;
                return;
            }
            Some(Err(TrySendError::Full(packet) | TrySendError::Disconnected(packet))) => {
                self.progress.dequeued(packet.frame.len());
            }
            None => {}
        }
        self.missing += 1;
        self.progress.missing.fetch_add(1, Ordering::Relaxed);
    }
}

/// The captures under way, as the worker has them.
pub struct Captures {
    /// Names of the devices.
    devices: Vec<String>,
    captures: Vec<Capture>,
    /// A frame in the making.
    buffer: Vec<u8>,
}

impl Captures {
    /// None, for devices of these names.
    pub fn new(devices: Vec<String>) -> Self {
        Self {
            devices,
            captures: Vec::new(),
            buffer: vec![0; MAX_FRAME],
        }
    }

    /// Takes one up.
    pub fn add(&mut self, capture: Capture) {
        self.drop_ended();
        self.captures.push(capture);
    }

    /// Ends one. What was given to it will be written. False if there is none of that number.
    pub fn remove(&mut self, id: u64) -> bool {
        let before = self.captures.len();
        self.captures.retain(|capture| capture.id != id);
        self.captures.len() < before
    }

    /// Drops those that ended by themselves.
    fn drop_ended(&mut self) {
        self.captures.retain(|capture| !capture.is_over());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.captures.is_empty()
    }

    /// A frame with `segment` passes a device; `note` is more to say of it.
    pub fn frame(
        &mut self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        frame: &[u8],
        note: &str,
    ) {
        self.drop_ended();
        for capture in &mut self.captures {
            if capture.scope.has(device, direction, segment) {
                let comment = comment(&self.devices[device], direction, segment) + note;
                capture.put(device, Some(direction), frame, comment);
            }
        }
    }

    /// A segment without frames passes a device; `note` is more to say of it.
    pub fn segment<M: Memory>(
        &mut self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        memory: &M,
        note: &str,
    ) {
        let wanted = |capture: &Capture| capture.scope.has(device, direction, segment);
        if !self.captures.iter().any(wanted) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        split(segment, RENDERED_MTU, |packet| {
            if let Ok(length) = encode(packet, memory, &mut buffer) {
                self.frame(device, direction, packet, &buffer[..length], note);
            }
        });
        self.buffer = buffer;
    }

    /// A fault of a device with that MAC address fired. Captures have it as the comment of a frame that was never sent,
    /// but for those that have it as the comment of the packet that arrived for the queue pair `by`.
    pub fn firing(&mut self, device: usize, mac: &[u8; 6], firing: &Firing, by: Option<u32>) {
        self.drop_ended();
        let mut frame = [0; 14];
        frame[..6].copy_from_slice(mac);
        frame[6..12].copy_from_slice(mac);
        frame[12..].copy_from_slice(&NO_PACKET.to_be_bytes());
        for capture in &mut self.captures {
            let has_packet = |qpn| capture.scope.has_packet(device, Direction::In, qpn);
            if capture.scope.has_firing(device, firing.qpn) && !by.is_some_and(has_packet) {
                let comment = firing_comment(&self.devices[device], firing);
                capture.put(device, None, &frame, comment);
            }
        }
    }

    /// A frame passes the port of the switch with this index and name: one that comes from something that is no RNIC of
    /// ours, or one that a fault struck or made, of which `note` tells.
    pub fn outside(
        &mut self,
        port: usize,
        name: &str,
        direction: Direction,
        frame: &[u8],
        note: &str,
    ) {
        self.drop_ended();
        let interface = self.devices.len() + port;
        for capture in &mut self.captures {
            if matches!(capture.scope, Scope::Switch) {
                let comment = format!("switch port {name}{note}");
                capture.put(interface, Some(direction), frame, comment);
            }
        }
    }
}

/// What a fault did that struck no packet, or none that the capture has, for people.
fn firing_comment(name: &str, firing: &Firing) -> String {
    let number = |kind, number| match number {
        0 => String::new(),
        _ => format!(" {kind} {number:#x}"),
    };
    let (qp, cq) = (number("QP", firing.qpn), number("CQ", firing.cqn));
    format!("{name}{qp}{cq}, fault {}: {}", firing.name, firing.what)
}

/// What a packet is, for people.
fn comment(name: &str, direction: Direction, segment: &Segment<'_>) -> String {
    let (own, peer, arrow) = match direction {
        Direction::In => (segment.destination_qpn, segment.source_qpn, "<-"),
        Direction::Out => (segment.source_qpn, segment.destination_qpn, "->"),
    };
    let peer = match peer {
        // Frames of connections do not tell who sent them.
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
