// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Writes the file of a capture.

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

use anyhow::Result;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::sink::Sink;
use super::{Direction, Packet, Progress};

/// Negative power of 10 that is the unit of timestamps: nanoseconds.
const NANOSECONDS: u8 = 9;

/// Flags of a received packet and of a sent one.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Largest size of a block without its frame and comment: headers, lengths, other options, padding.
const BLOCK_OVERHEAD: u64 = 80;

/// Why a capture ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// There will be no more packets.
    Stopped,
    /// The capture has reached its limit.
    Full,
}

/// An open file.
pub struct Writer {
    file: PcapNgWriter<BufWriter<Sink>>,
    progress: Arc<Progress>,
    max_packets: u64,
    max_bytes: u64,
}

impl Writer {
    /// Begins the file, with one interface for each name.
    pub fn begin(
        sink: Sink,
        interfaces: &[(String, DataLink)],
        progress: Arc<Progress>,
        max_packets: Option<u64>,
        max_bytes: Option<u64>,
    ) -> Result<Self> {
        let mut file = PcapNgWriter::new(BufWriter::new(sink))?;
        // Size of the section header, which the line above wrote without options.
        let mut bytes = 28;
        for (name, linktype) in interfaces {
            bytes += file.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: *linktype,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        file.get_mut().flush()?;
        progress.bytes.store(bytes as u64, Ordering::Relaxed);
        Ok(Self {
            file,
            progress,
            max_packets: max_packets.unwrap_or(u64::MAX),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
        })
    }

    /// Writes packets until there will be no more or the limit is reached.
    pub fn run(mut self, packets: &Receiver<Packet>) -> Result<End> {
        let end = loop {
            let packet = match packets.try_recv() {
                Ok(packet) => packet,
                Err(TryRecvError::Disconnected) => break End::Stopped,
                Err(TryRecvError::Empty) => {
                    // Flushes, so that what has been captured can be read while no packets come.
                    self.file.get_mut().flush()?;
                    match packets.recv() {
                        Ok(packet) => packet,
                        Err(_) => break End::Stopped,
                    }
                }
            };
            self.progress.dequeued(packet.frame.len());
            if self.is_full(&packet) {
                break End::Full;
            }
            self.write(packet)?;
        };
        self.file.get_mut().flush()?;
        Ok(end)
    }

    /// Returns whether there is no room for a packet.
    fn is_full(&self, packet: &Packet) -> bool {
        let more = packet.frame.len() + packet.comment.len();
        let bytes = self.progress.bytes.load(Ordering::Relaxed) + more as u64 + BLOCK_OVERHEAD;
        self.progress.packets.load(Ordering::Relaxed) >= self.max_packets || bytes > self.max_bytes
    }

    fn write(&mut self, packet: Packet) -> Result<()> {
        let mut options = vec![
            EnhancedPacketOption::Comment(Cow::Owned(packet.comment)),
            EnhancedPacketOption::Flags(match packet.direction {
                Some(Direction::In) => INBOUND,
                Some(Direction::Out) => OUTBOUND,
                None => 0,
            }),
        ];
        if packet.missing > 0 {
            options.push(EnhancedPacketOption::DropCount(packet.missing));
        }
        let bytes = self.file.write_pcapng_block(EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: packet.time,
            original_len: packet.frame.len() as u32,
            data: Cow::Owned(packet.frame),
            options,
        })?;
        self.progress.packets.fetch_add(1, Ordering::Relaxed);
        self.progress
            .bytes
            .fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }
}
