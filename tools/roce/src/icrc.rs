// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The invariant CRC (IBTA volume 1, 7.8.1; annex A17, 3.3): Ethernet's CRC over everything from the IP header or GRH
//! on. Fields that may change on the way are replaced by ones.

use crate::header::Bth;
use crc32fast::Hasher;

/// Headers in front of the base transport header.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// GRH, without UDP.
    Grh,
    /// IPv4 without options, and UDP.
    Ipv4,
    /// IPv6 without extensions, and UDP.
    Ipv6,
}

/// Number of bytes of ones in place of the local route header, which RoCE does not have.
const LOCAL_ROUTE_HEADER: usize = 8;

/// Offset of FECN, BECN and reserved bits in a base transport header.
const BTH_VARIANT: usize = 4;

impl Network {
    /// Returns the length of the headers.
    pub(crate) const fn length(self) -> usize {
        match self {
            Self::Grh => 40,
            Self::Ipv4 => 20 + 8,
            Self::Ipv6 => 40 + 8,
        }
    }

    /// Replaces fields that may change on the way with ones.
    fn mask(self, headers: &mut [u8]) {
        match self {
            Self::Ipv4 => {
                headers[1] = 0xff; // DSCP and ECN
                headers[8] = 0xff; // time to live
                headers[10..12].fill(0xff); // checksum
                headers[26..28].fill(0xff); // UDP checksum
            }
            Self::Grh | Self::Ipv6 => {
                headers[0] |= 0x0f; // traffic class
                headers[1..4].fill(0xff); // traffic class and flow label
                headers[7] = 0xff; // hop limit
                if self == Self::Ipv6 {
                    headers[46..48].fill(0xff); // UDP checksum
                }
            }
        }
        headers[self.length() + BTH_VARIANT] = 0xff;
    }
}

/// Largest length of the headers before the extended ones.
const MAX_HEADERS: usize = LOCAL_ROUTE_HEADER + Network::Ipv6.length() + size_of::<Bth>();

/// Returns the CRC, in transmission byte order, of a packet without it. `packet` begins with the headers of `network`
/// and contains at least these and a base transport header.
pub(crate) fn icrc(network: Network, packet: &[u8]) -> [u8; 4] {
    let length = network.length() + size_of::<Bth>();
    let (headers, rest) = packet.split_at(length);
    let mut masked = [0xff; MAX_HEADERS];
    let copy = &mut masked[LOCAL_ROUTE_HEADER..LOCAL_ROUTE_HEADER + length];
    copy.copy_from_slice(headers);
    network.mask(copy);
    let mut crc = Hasher::new();
    crc.update(&masked[..LOCAL_ROUTE_HEADER + length]);
    crc.update(rest);
    crc.finalize().to_le_bytes()
}
