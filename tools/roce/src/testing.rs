// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Helpers for tests that change frames.

use crate::{
    ETHERNET_TYPE,
    header::{Bth, ICRC_LENGTH},
    icrc::{Network, icrc},
};
use etherparse::{EtherType, Ipv4Header, UdpHeader};

/// Corrects the checksum of the IPv4 header and the invariant CRC of a frame, and clears the UDP checksum, as far as
/// the lengths in the frame make sense.
pub fn seal(frame: &mut [u8]) {
    let tagged = be16(frame, 12) == Some(EtherType::VLAN_TAGGED_FRAME.0);
    let start = if tagged { 18 } else { 14 };
    let network = match be16(frame, start - 2).map(EtherType) {
        Some(EtherType::IPV4) => Network::Ipv4,
        Some(EtherType::IPV6) => Network::Ipv6,
        Some(EtherType(ETHERNET_TYPE)) => Network::Grh,
        _ => return,
    };
    let Some(packet) = frame.get_mut(start..) else {
        return;
    };
    let length = match network {
        Network::Ipv4 => be16(packet, 2),
        Network::Ipv6 | Network::Grh => be16(packet, 4).map(|length| length.saturating_add(40)),
    };
    let length = usize::from(length.unwrap_or_default());
    let Some(packet) = packet.get_mut(..length) else {
        return;
    };
    if length < network.length() + size_of::<Bth>() + ICRC_LENGTH {
        return;
    }
    if network == Network::Ipv4
        && let Ok((header, _)) = Ipv4Header::from_slice(packet)
    {
        let sum = header.calc_header_checksum();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    if network != Network::Grh {
        let udp = network.length() - UdpHeader::LEN;
        packet[udp + 6..udp + 8].fill(0);
    }
    let (covered, crc) = packet.split_at_mut(length - ICRC_LENGTH);
    crc.copy_from_slice(&icrc(network, covered));
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}
