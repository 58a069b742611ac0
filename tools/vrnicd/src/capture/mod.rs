// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Capture: what the RNICs send and receive, as a pcapng file that Wireshark and tshark dissect.
//!
//! RNICs on a wire send frames anyway. Between RNICs that copy from guest to guest there are none: what would have been
//! sent is written then, cut into packets of [`RENDERED_MTU`] bytes. There a sequence number stands for a segment, so
//! the packets of one segment have the same.
//!
//! The worker only copies frames into a bounded queue. A thread of its own writes the file; when it cannot keep up,
//! packets are missing in the file, and the next one that is not says how many.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tracing::{info, warn};
use vrnic_engine::Segment;
use vrnic_engine::memory::Memory;
use vrnic_roce::{MAX_FRAME, encode, opcode_name, split};

mod writer;

/// Payload bytes of packets that are rendered of longer segments.
pub const RENDERED_MTU: u64 = 4096;

/// Packets that wait to be written.
const QUEUE: usize = 8192;

/// What to capture, and where to.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The file; what was in it is lost.
    pub file: PathBuf,
    /// Name of the one device whose packets, in both directions, are captured. Without, every packet that any device
    /// sends is, once.
    #[serde(default)]
    pub device: Option<String>,
    /// Number of the one queue pair of that device.
    #[serde(default)]
    pub qp: Option<u32>,
}

impl Settings {
    /// Checks that the settings go together, for devices of these names.
    pub fn check<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<()> {
        match &self.device {
            Some(device) if !names.any(|name| name == device) => {
                bail!("capture names `{device}`, which is no device")
            }
            None if self.qp.is_some() => {
                bail!("capture of a QP needs its device: QP numbers are those of a device")
            }
            _ => Ok(()),
        }
    }
}

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
    /// Index of the device.
    interface: u32,
    direction: Direction,
    /// Since the epoch.
    time: Duration,
    frame: Vec<u8>,
    comment: String,
    /// Packets that are missing before this one.
    missing: u64,
}

/// A capture under way. It ends when this is dropped; the file is whole then.
pub struct Capture {
    names: Vec<String>,
    device: Option<usize>,
    qp: Option<u32>,
    packets: Option<SyncSender<Packet>>,
    thread: Option<JoinHandle<()>>,
    missing: u64,
    /// A frame in the making.
    buffer: Vec<u8>,
}

impl Capture {
    /// Starts to capture packets of devices with these names.
    ///
    /// # Errors
    /// The settings make no sense, or the file cannot be written.
    pub fn start(settings: &Settings, names: &[String]) -> Result<Self> {
        settings.check(names.iter().map(String::as_str))?;
        let (sender, receiver) = sync_channel(QUEUE);
        let writer = writer::Writer::create(&settings.file, names)
            .with_context(|| format!("cannot capture to {}", settings.file.display()))?;
        let path = settings.file.clone();
        let thread = std::thread::Builder::new()
            .name("capture".into())
            .spawn(move || end(&path, writer.run(&receiver)))?;
        info!(file = %settings.file.display(), device = ?settings.device, qp = ?settings.qp, "capture starts");
        let named = |wanted: &String| names.iter().position(|name| name == wanted);
        Ok(Self {
            names: names.to_vec(),
            device: settings.device.as_ref().and_then(named),
            qp: settings.qp,
            packets: Some(sender),
            thread: Some(thread),
            missing: 0,
            buffer: vec![0; MAX_FRAME],
        })
    }

    /// Whether a packet that passes a device is to be captured.
    fn wants(&self, device: usize, direction: Direction, segment: &Segment<'_>) -> bool {
        let qp = match direction {
            Direction::In => segment.destination_qpn,
            Direction::Out => segment.source_qpn,
        };
        match self.device {
            None => direction == Direction::Out,
            Some(wanted) => wanted == device && self.qp.is_none_or(|wanted| wanted == qp),
        }
    }

    /// A frame with `segment` passes a device.
    pub fn frame(
        &mut self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        frame: &[u8],
    ) {
        if self.wants(device, direction, segment) {
            self.put(device, direction, segment, frame.to_vec());
        }
    }

    /// A segment without frames passes a device.
    pub fn segment<M: Memory>(
        &mut self,
        device: usize,
        direction: Direction,
        segment: &Segment<'_>,
        memory: &M,
    ) {
        if !self.wants(device, direction, segment) {
            return;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        split(segment, RENDERED_MTU, |packet| {
            if let Ok(length) = encode(packet, memory, &mut buffer) {
                self.put(device, direction, packet, buffer[..length].to_vec());
            }
        });
        self.buffer = buffer;
    }

    fn put(&mut self, device: usize, direction: Direction, segment: &Segment<'_>, frame: Vec<u8>) {
        let packet = Packet {
            interface: device as u32,
            direction,
            time: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or_default(),
            frame,
            comment: comment(&self.names[device], direction, segment),
            missing: self.missing,
        };
        self.missing = match self
            .packets
            .as_ref()
            .map(|packets| packets.try_send(packet))
        {
            Some(Ok(())) => 0,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => {
                self.missing + 1
            }
        };
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // Without sender the thread writes what waits, and ends.
        self.packets = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The file is finished, one way or the other.
fn end(path: &Path, outcome: Result<u64>) {
    match outcome {
        Ok(packets) => info!(file = %path.display(), packets, "capture ends"),
        Err(error) => warn!(file = %path.display(), "capture stops: {error:#}"),
    }
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
    format!(
        "{name} QP {own:#x} {arrow} {peer}: {}",
        opcode_name(segment)
    )
}

#[cfg(test)]
mod tests;
