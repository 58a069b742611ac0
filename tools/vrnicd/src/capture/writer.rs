// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Writes the file of a capture.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, TryRecvError};

use anyhow::Result;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};

use super::{Direction, Packet};

/// Negative power of 10 that is the unit of timestamps: nanoseconds.
const NANOSECONDS: u8 = 9;

/// Flags of a packet that was received, and of one that was sent.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// An open file.
pub struct Writer {
    file: PcapNgWriter<BufWriter<File>>,
}

impl Writer {
    /// Opens the file, with an interface for each device.
    pub fn create(path: &Path, names: &[String]) -> Result<Self> {
        let mut file = PcapNgWriter::new(BufWriter::new(File::create(path)?))?;
        for name in names {
            file.write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::ETHERNET,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(name.clone())),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
        }
        file.get_mut().flush()?;
        Ok(Self { file })
    }

    /// Writes packets until there will be no more; how many.
    pub fn run(mut self, packets: &Receiver<Packet>) -> Result<u64> {
        let mut count = 0;
        loop {
            let packet = match packets.try_recv() {
                Ok(packet) => packet,
                Err(TryRecvError::Disconnected) => break,
                Err(TryRecvError::Empty) => {
                    // What is there can be read while nothing happens.
                    self.file.get_mut().flush()?;
                    match packets.recv() {
                        Ok(packet) => packet,
                        Err(_) => break,
                    }
                }
            };
            self.write(packet)?;
            count += 1;
        }
        self.file.get_mut().flush()?;
        Ok(count)
    }

    fn write(&mut self, packet: Packet) -> Result<()> {
        let mut options = vec![
            EnhancedPacketOption::Comment(Cow::Owned(packet.comment)),
            EnhancedPacketOption::Flags(match packet.direction {
                Direction::In => INBOUND,
                Direction::Out => OUTBOUND,
            }),
        ];
        if packet.missing > 0 {
            options.push(EnhancedPacketOption::DropCount(packet.missing));
        }
        self.file.write_pcapng_block(EnhancedPacketBlock {
            interface_id: packet.interface,
            timestamp: packet.time,
            original_len: packet.frame.len() as u32,
            data: Cow::Owned(packet.frame),
            options,
        })?;
        Ok(())
    }
}
