// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The protocol on the socket, which consists of records. Each record has the header that libibumad puts before a MAD,
//! followed by a MAD or a longer message.

use std::io::{self, Read, Result, Write};
use vrnic_infiniband::{mad::MAD_LENGTH, rmpp::MAX_MESSAGE};

/// Bytes of the header of libibumad.
pub const HEADER: usize = 64;
/// Bytes of a MAD.
pub const MAD: usize = MAD_LENGTH;
/// Bytes of the shortest record, which has one MAD.
pub const LENGTH: usize = 4 + HEADER + MAD;

/// Kind of a record from a program that opens an HCA, whose name is in the MAD. The answer, of the same kind, has
/// PortInfo, NodeInfo, the partition table and the rate in the MAD.
pub const OPEN: u32 = 1;
/// Kind of a record from a program that registers an agent. The MAD has the class, the version of the class, the
/// version of RMPP, flags, the vendor in 3 bytes, and, from byte 8 on, a bit for each method.
pub const REGISTER: u32 = 2;
/// Kind of a record with a MAD or a longer message, in both directions.
pub const PACKET: u32 = 3;
/// Kind of a record from a program that unregisters an agent.
pub const UNREGISTER: u32 = 4;

/// Flag of an agent that sends and receives the segments of long messages itself.
pub const USER_RMPP: u8 = 1;

/// A record.
#[derive(Clone, Debug)]
pub struct Record(Vec<u8>);

impl Record {
    /// Creates an empty record.
    pub fn new(kind: u32) -> Self {
        let mut record = Self(vec![0; LENGTH]);
        record.set(0, kind.to_ne_bytes());
        record
    }

    /// Creates a record with a message. A message shorter than a MAD is followed by zeros.
    pub fn packet(header: [u8; HEADER], message: &[u8]) -> Self {
        let mut record = Self::new(PACKET);
        record.set(4, header);
        record.0.truncate(4 + HEADER);
        record.0.extend(message);
        record.0.resize(record.0.len().max(LENGTH), 0);
        record.set_length((HEADER + message.len()) as u32);
        record
    }

    /// Creates a record from its first bytes, as many as the shortest record has.
    pub fn beginning(bytes: [u8; LENGTH]) -> Self {
        Self(bytes.to_vec())
    }

    /// Reads the next record.
    ///
    /// # Errors
    ///
    /// The other end is gone, or sends an invalid record.
    pub fn receive(mut from: impl Read) -> Result<Self> {
        let mut record = Self(vec![0; LENGTH]);
        from.read_exact(&mut record.0)?;
        let length = record.length() as usize;
        if length > HEADER + MAX_MESSAGE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if length > HEADER + MAD {
            record.0.resize(4 + length, 0);
            from.read_exact(&mut record.0[LENGTH..])?;
        }
        Ok(record)
    }

    /// Sends the record.
    ///
    /// # Errors
    ///
    /// The other end is gone, or does not read.
    pub fn send(&self, mut to: impl Write) -> Result<()> {
        to.write_all(&self.0)
    }

    /// Returns the kind of the record.
    pub fn kind(&self) -> u32 {
        u32::from_ne_bytes(self.get(0))
    }

    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }

    fn set<const N: usize>(&mut self, at: usize, bytes: [u8; N]) {
        self.0[at..at + N].copy_from_slice(&bytes);
    }

    /// Returns the header of libibumad.
    pub fn header(&self) -> [u8; HEADER] {
        self.get(4)
    }

    /// Returns the MAD, or the first MAD of a longer message.
    pub fn mad(&self) -> &[u8] {
        &self.0[4 + HEADER..LENGTH]
    }

    /// Returns a mutable reference to the MAD.
    pub fn mad_mut(&mut self) -> &mut [u8] {
        &mut self.0[4 + HEADER..LENGTH]
    }

    /// Returns the message, with the length in the header.
    pub fn message(&self) -> &[u8] {
        let bytes = &self.0[4 + HEADER..];
        &bytes[..self.message_length().min(bytes.len())]
    }

    /// Returns the length of the message in bytes.
    pub fn message_length(&self) -> usize {
        (self.length() as usize).saturating_sub(HEADER)
    }
}

/// Defines the fields of libibumad's header by their offsets. They are in host byte order unless they are read as
/// big-endian.
macro_rules! fields {
    ($($(#[$meta:meta])* $get:ident $set:ident: $number:ty = $at:literal $from:ident $to:ident;)*) => {
        impl Record {
            $($(#[$meta])* pub fn $get(&self) -> $number {
                <$number>::$from(self.get(4 + $at))
            }
            /// Sets the field.
            pub fn $set(&mut self, value: $number) {
                self.set(4 + $at, value.$to());
            })*
        }
    };
}
fields! {
    /// The agent that sends or receives.
    agent set_agent: u32 = 0 from_ne_bytes to_ne_bytes;
    /// Error of a request without a response, or 0.
    status set_status: u32 = 4 from_ne_bytes to_ne_bytes;
    /// Milliseconds to wait for a response.
    timeout set_timeout: u32 = 8 from_ne_bytes to_ne_bytes;
    /// Number of retries.
    retries set_retries: u32 = 12 from_ne_bytes to_ne_bytes;
    /// Length of the header and the message.
    length set_length: u32 = 16 from_ne_bytes to_ne_bytes;
    /// QP of the other end.
    qpn set_qpn: u32 = 20 from_be_bytes to_be_bytes;
    /// Q_Key.
    qkey set_qkey: u32 = 24 from_be_bytes to_be_bytes;
    /// LID of the other end.
    lid set_lid: u16 = 28 from_be_bytes to_be_bytes;
    /// Service level.
    service_level set_service_level: u8 = 30 from_ne_bytes to_ne_bytes;
    /// Path bits, which select one of the port's LIDs.
    path_bits set_path_bits: u8 = 31 from_ne_bytes to_ne_bytes;
    /// Index of the partition key in the port's table.
    pkey_index set_pkey_index: u16 = 56 from_ne_bytes to_ne_bytes;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_the_length_of_their_message() {
        let mut header = [0; HEADER];
        header[28..30].copy_from_slice(&[0, 7]);
        let mut bytes = Vec::new();
        for length in [0, 1, 168, 256, 257, 70_000] {
            let message = vec![length as u8; length];
            let record = Record::packet(header, &message);
            record.send(&mut bytes).expect("there is room");
            assert_eq!(record.message(), message);
        }
        let mut from = &bytes[..];
        for length in [0, 1, 168, 256, 257, 70_000] {
            let record = Record::receive(&mut from).expect("a record");
            assert_eq!(record.message(), vec![length as u8; length]);
            assert_eq!((record.kind(), record.lid()), (PACKET, 7));
            assert_eq!(record.mad().len(), MAD);
        }
        assert!(from.is_empty());
        let mut long = Record::new(PACKET);
        long.set_length(u32::MAX);
        assert_eq!(long.message().len(), MAD, "what is not there is not read");
        let mut bytes = Vec::new();
        long.send(&mut bytes).expect("there is room");
        assert!(Record::receive(&bytes[..]).is_err());
    }
}
