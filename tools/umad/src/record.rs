// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What goes over the socket: records. Each has the header that libibumad puts before a MAD, and a MAD or a longer
//! message.

use std::io::{self, Read, Result, Write};
use vrnic_infiniband::{mad::MAD_LENGTH, rmpp::MAX_MESSAGE};

/// Bytes of libibumad's header.
pub const HEADER: usize = 64;
/// Bytes of a MAD.
pub const MAD: usize = MAD_LENGTH;
/// Bytes of a record with one MAD: the shortest one.
pub const LENGTH: usize = 4 + HEADER + MAD;

/// Kind of a record from a program: it wants to be at an HCA, whose name is in the MAD. The answer, of the same kind,
/// has PortInfo, NodeInfo, partition table and rate there.
pub const OPEN: u32 = 1;
/// Kind of a record from a program: an agent. In the MAD are its class and the class's version, the version of RMPP,
/// flags, the vendor in 3 bytes, and, from byte 8 on, a bit for each method.
pub const REGISTER: u32 = 2;
/// Kind of a record with a MAD or message, in both directions.
pub const PACKET: u32 = 3;
/// Kind of a record from a program: the agent is gone.
pub const UNREGISTER: u32 = 4;

/// Flag of an agent: it sends and takes the segments of long messages itself.
pub const USER_RMPP: u8 = 1;

/// A record.
#[derive(Clone, Debug)]
pub struct Record(Vec<u8>);

impl Record {
    /// An empty one.
    pub fn new(kind: u32) -> Self {
        let mut record = Self(vec![0; LENGTH]);
        record.set(0, kind.to_ne_bytes());
        record
    }

    /// One with a message; a message that is shorter than a MAD has zeros behind it.
    pub fn packet(header: [u8; HEADER], message: &[u8]) -> Self {
        let mut record = Self::new(PACKET);
        record.set(4, header);
        record.0.truncate(4 + HEADER);
        record.0.extend(message);
        record.0.resize(record.0.len().max(LENGTH), 0);
        record.set_length((HEADER + message.len()) as u32);
        record
    }

    /// One of which only the first bytes are known, as many as the shortest one has.
    pub fn beginning(bytes: [u8; LENGTH]) -> Self {
        Self(bytes.to_vec())
    }

    /// Reads the next one.
    ///
    /// # Errors
    ///
    /// The other end is gone, or sends what is none.
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

    /// The MAD, or the first one of a message.
    pub fn mad(&self) -> &[u8] {
        &self.0[4 + HEADER..LENGTH]
    }

    /// The MAD, to change it.
    pub fn mad_mut(&mut self) -> &mut [u8] {
        &mut self.0[4 + HEADER..LENGTH]
    }

    /// The message, with the length that the header says.
    pub fn message(&self) -> &[u8] {
        let bytes = &self.0[4 + HEADER..];
        &bytes[..self.message_length().min(bytes.len())]
    }

    /// Bytes of the message.
    pub fn message_length(&self) -> usize {
        (self.length() as usize).saturating_sub(HEADER)
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
    /// Bytes of header and message.
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
