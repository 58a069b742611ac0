// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What goes over the socket: records of one size. Each has the header that libibumad puts before a MAD, and a MAD.

use std::io::{Read, Result, Write};
use vrnic_infiniband::mad::MAD_LENGTH;

/// Bytes of libibumad's header.
pub const HEADER: usize = 64;
/// Bytes of a MAD.
pub const MAD: usize = MAD_LENGTH;
/// Bytes of a record.
const LENGTH: usize = 4 + HEADER + MAD;

/// Kind of a record from a program: it wants to be at an HCA, whose name is in the MAD. The answer, of the same kind,
/// has PortInfo, NodeInfo, partition table and rate there.
pub const OPEN: u32 = 1;
/// Kind of a record from a program: an agent; class and methods are in the MAD.
pub const REGISTER: u32 = 2;
/// Kind of a record with a MAD, in both directions.
pub const PACKET: u32 = 3;

/// A record.
#[derive(Clone, Debug)]
pub struct Record(pub [u8; LENGTH]);

impl Record {
    /// An empty one.
    pub fn new(kind: u32) -> Self {
        let mut record = Self([0; LENGTH]);
        record.set(0, kind.to_ne_bytes());
        record
    }

    /// Reads the next one.
    ///
    /// # Errors
    ///
    /// The other end is gone.
    pub fn receive(mut from: impl Read) -> Result<Self> {
        let mut record = Self([0; LENGTH]);
        from.read_exact(&mut record.0)?;
        Ok(record)
    }

    /// Sends it.
    ///
    /// # Errors
    ///
    /// The other end is gone, or does not read.
    pub fn send(&self, mut to: impl Write) -> Result<()> {
        to.write_all(&self.0)
    }

    /// Its kind.
    pub fn kind(&self) -> u32 {
        u32::from_ne_bytes(self.get(0))
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    /// libibumad's header.
    pub fn header(&self) -> [u8; HEADER] {
        self.get(4)
    }

    /// Sets it.
    pub fn set_header(&mut self, header: [u8; HEADER]) {
        self.set(4, header);
    }

    /// The MAD.
    pub fn mad(&self) -> &[u8] {
        &self.0[4 + HEADER..]
    }

    /// The MAD, to change it.
    pub fn mad_mut(&mut self) -> &mut [u8] {
        &mut self.0[4 + HEADER..]
    }
}

/// Fields of libibumad's header, by their place: numbers of the host but for those that are said to be big-endian.
macro_rules! fields {
    ($($(#[$meta:meta])* $get:ident $set:ident: $number:ty = $at:literal $from:ident $to:ident;)*) => {
        impl Record {
            $($(#[$meta])* pub fn $get(&self) -> $number {
                <$number>::$from(self.get(4 + $at))
            }
            /// Sets it.
            pub fn $set(&mut self, value: $number) {
                self.set(4 + $at, value.$to());
            })*
        }
    };
}
fields! {
    /// Agent that sends or receives.
    agent set_agent: u32 = 0 from_ne_bytes to_ne_bytes;
    /// Error of a request that nobody answered, or 0.
    status set_status: u32 = 4 from_ne_bytes to_ne_bytes;
    /// Milliseconds to wait for a response.
    timeout set_timeout: u32 = 8 from_ne_bytes to_ne_bytes;
    /// How often to send again.
    retries set_retries: u32 = 12 from_ne_bytes to_ne_bytes;
    /// Bytes of header and MAD.
    length set_length: u32 = 16 from_ne_bytes to_ne_bytes;
    /// Queue pair of the other end.
    qpn set_qpn: u32 = 20 from_be_bytes to_be_bytes;
    /// Q_Key.
    qkey set_qkey: u32 = 24 from_be_bytes to_be_bytes;
    /// LID of the other end.
    lid set_lid: u16 = 28 from_be_bytes to_be_bytes;
    /// Service level.
    service_level set_service_level: u8 = 30 from_ne_bytes to_ne_bytes;
    /// Which of the port's LIDs.
    path_bits set_path_bits: u8 = 31 from_ne_bytes to_ne_bytes;
    /// Place of the partition key in the port's table.
    pkey_index set_pkey_index: u16 = 56 from_ne_bytes to_ne_bytes;
}
