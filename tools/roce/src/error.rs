// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Reasons to reject a frame.

use std::{error::Error, fmt};

/// Defines the errors with their counter names and texts.
macro_rules! frame_errors {
    ($($(#[$meta:meta])* $variant:ident => $name:literal, $text:literal;)*) => {
        /// Why a frame cannot be parsed as a segment.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
        pub enum FrameError {
            $($(#[$meta])* $variant,)*
        }

        impl FrameError {
            /// All errors.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name of the counter for this error.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns a description of the error.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

frame_errors! {
    /// A frame of another protocol, which is not an error: RNICs share the wire.
    NotRoce => "not_roce", "frame is not RoCE";
    /// The frame ends within a header, or is shorter than a header states.
    Truncated => "truncated", "frame is shorter than its headers say";
    /// VLAN 4095, or a tag within a tag.
    Vlan => "vlan", "VLAN tag is not valid";
    /// Invalid version or header length of IPv4 or IPv6.
    IpVersion => "ip_version", "IP header is not valid";
    /// IPv4 options, which RoCE does not allow.
    IpOptions => "ip_options", "IPv4 header has options";
    /// A fragment, which RoCE does not allow.
    Fragment => "fragment", "IP packet is a fragment";
    /// Wrong header checksum of IPv4.
    IpChecksum => "ip_checksum", "IPv4 header checksum is wrong";
    /// UDP length and IP length do not match.
    UdpLength => "udp_length", "UDP length is not that of the IP packet";
    /// Wrong UDP checksum, other than 0, which means that there is none.
    UdpChecksum => "udp_checksum", "UDP checksum is wrong";
    /// The length of the transport packet is not a multiple of 4.
    Length => "length", "packet length is not a multiple of 4";
    /// Wrong invariant CRC.
    Icrc => "icrc", "invariant CRC is wrong";
    /// Unknown transport header version.
    Version => "version", "transport header version is not 0";
    /// A transport that this device does not support, or a reserved opcode.
    Opcode => "opcode", "opcode is not supported";
    /// More pad bytes than there is payload and pad together.
    Pad => "pad", "pad count exceeds the payload";
    /// Payload in a packet whose kind has none.
    Payload => "payload", "packet of this kind has no payload";
    /// An AETH syndrome that has no meaning.
    Syndrome => "syndrome", "AETH syndrome is reserved";
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl Error for FrameError {}

/// How many times each error occurred.
#[derive(Clone, Debug)]
pub struct FrameErrors {
    counts: [u64; FrameError::ALL.len()],
}

impl Default for FrameErrors {
    fn default() -> Self {
        Self {
            counts: [0; FrameError::ALL.len()],
        }
    }
}

impl FrameErrors {
    /// Counts an error; returns how many times it has occurred.
    pub fn count(&mut self, error: FrameError) -> u64 {
        let count = &mut self.counts[error as usize];
        *count += 1;
        *count
    }

    /// Returns how many times `error` occurred.
    pub fn of(&self, error: FrameError) -> u64 {
        self.counts[error as usize]
    }

    /// Returns all errors with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (FrameError, u64)> {
        FrameError::ALL.iter().copied().zip(self.counts)
    }
}

/// Why a segment cannot be encoded as a frame.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// Source and destination are not both IPv4 or both IPv6 addresses.
    MixedAddresses,
    /// The frame does not fit the buffer, or an IP packet.
    TooLong,
    /// Guest memory with the payload is no longer mapped.
    Unmapped,
    /// The extended headers do not match the position in the message.
    Headers,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MixedAddresses => "one GID is an IPv4 address and the other is not",
            Self::TooLong => "segment is too long for a frame",
            Self::Unmapped => "guest memory is not mapped",
            Self::Headers => "headers do not fit the position in the message",
        })
    }
}

impl Error for EncodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_has_its_own_count() {
        let mut errors = FrameErrors::default();
        for (index, &error) in FrameError::ALL.iter().enumerate() {
            for _ in 0..=index {
                errors.count(error);
            }
        }
        let counts: Vec<u64> = errors.iter().map(|(_, count)| count).collect();
        let expected: Vec<u64> = (1..=FrameError::ALL.len() as u64).collect();
        assert_eq!(counts, expected);
        assert_eq!(errors.of(FrameError::Truncated), 2);
    }
}
