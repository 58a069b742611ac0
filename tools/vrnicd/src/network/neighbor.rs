// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Replies of a port on behalf of peers that have no Ethernet address on this network: ARP (RFC 826) and neighbor
//! solicitations (RFC 4861, 7.2).

use std::net::{IpAddr, Ipv6Addr};

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, ArpPacketSlice, EtherType, Ethernet2Header,
    Ethernet2HeaderSlice, Icmpv6Header, Icmpv6Type, IpNumber, Ipv6Header, Ipv6HeaderSlice,
    ether_type,
};

/// Hop limit that proves that no router has forwarded a neighbor discovery packet.
const HOP_LIMIT: u8 = 255;
/// Type of a neighbor solicitation.
const SOLICITATION: u8 = 135;
/// Option for the target's Ethernet address, with its length in units of eight bytes.
const TARGET_ADDRESS: [u8; 2] = [2, 1];

/// If a frame asks for the Ethernet address of a peer for which the port replies, returns a reply with `mac`.
pub fn answer(frame: &[u8], mac: [u8; 6], speaks_for: impl Fn(IpAddr) -> bool) -> Option<Vec<u8>> {
    let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
    let packet = &frame[Ethernet2Header::LEN..];
    let (ether_type, answer) = match ethernet.ether_type() {
        ether_type::ARP => {
            let request = ArpPacketSlice::from_slice(packet).ok()?;
            let request = request.to_packet().try_eth_ipv4().ok()?;
            let asked = request.operation == ArpOperation::REQUEST
                && speaks_for(request.target_ipv4_addr().into());
            let reply = asked.then_some(ArpEthIpv4Packet {
                operation: ArpOperation::REPLY,
                sender_mac: mac,
                sender_ipv4: request.target_ipv4,
                target_mac: request.sender_mac,
                target_ipv4: request.sender_ipv4,
            })?;
            (EtherType::ARP, reply.to_bytes().to_vec())
        }
        ether_type::IPV6 => {
            let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
            let solicitation = &packet[Ipv6Header::LEN..];
            let target: [u8; 16] = solicitation.get(8..24)?.try_into().ok()?;
            let asker = header.source_addr();
            let asked = header.next_header() == IpNumber::IPV6_ICMP
                && header.hop_limit() == HOP_LIMIT
                && solicitation.starts_with(&[SOLICITATION, 0])
                && !asker.is_unspecified()
                && speaks_for(Ipv6Addr::from(target).into());
            asked.then_some(())?;
            (EtherType::IPV6, advertisement(target, asker, mac)?)
        }
        _ => return None,
    };
    let ethernet = Ethernet2Header {
        source: mac,
        destination: ethernet.source(),
        ether_type,
    };
    Some([&ethernet.to_bytes(), answer.as_slice()].concat())
}

/// Returns the packet that tells `asker` that `target` is at `mac`.
fn advertisement(target: [u8; 16], asker: Ipv6Addr, mac: [u8; 6]) -> Option<Vec<u8>> {
    let payload = [target.as_slice(), &TARGET_ADDRESS, &mac].concat();
    let advertisement = Icmpv6Type::NeighborAdvertisement(NeighborAdvertisementHeader {
        router: false,
        solicited: true,
        r#override: true,
    });
    let icmp = Icmpv6Header::with_checksum(advertisement, target, asker.octets(), &payload).ok()?;
    let icmp = icmp.to_bytes();
    let header = Ipv6Header {
        payload_length: u16::try_from(icmp.len() + payload.len()).ok()?,
        next_header: IpNumber::IPV6_ICMP,
        hop_limit: HOP_LIMIT,
        source: target,
        destination: asker.octets(),
        ..Ipv6Header::default()
    };
    Some([&header.to_bytes(), icmp.as_slice(), &payload].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 192, 0, 2, 1];
    const GUEST: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];

    /// Returns an ARP request by `asker` for `target`.
    fn arp(target: [u8; 4], asker: [u8; 4]) -> Vec<u8> {
        let mut frame = [[0xff; 6], GUEST].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend(GUEST);
        frame.extend(asker);
        frame.extend([0; 6]);
        frame.extend(target);
        frame
    }

    fn solicitation(target: Ipv6Addr, asker: Ipv6Addr) -> Vec<u8> {
        let mut frame = [[0x33, 0x33, 0xff, 0, 0, 7], GUEST].concat();
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 24, 58, 255]);
        frame.extend(asker.octets());
        frame.extend([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 7]);
        frame.extend([135, 0, 0, 0, 0, 0, 0, 0]);
        frame.extend(target.octets());
        frame
    }

    fn answered(frame: &[u8], to: &str) -> Option<Vec<u8>> {
        let to: IpAddr = to.parse().unwrap();
        answer(frame, MAC, |address| address == to)
    }

    #[test]
    fn arp_is_answered_for_peers_only() {
        let request = arp([192, 0, 2, 7], [192, 0, 2, 1]);
        let mut reply = [GUEST, MAC].concat();
        reply.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
        reply.extend(MAC);
        reply.extend([192, 0, 2, 7]);
        reply.extend(GUEST);
        reply.extend([192, 0, 2, 1]);
        assert_eq!(answered(&request, "192.0.2.7"), Some(reply.clone()));
        assert_eq!(answered(&request, "192.0.2.8"), None);
        assert_eq!(answered(&reply, "192.0.2.1"), None, "a reply asks nothing");
        for end in 0..request.len() {
            assert_eq!(answered(&request[..end], "192.0.2.7"), None);
        }
    }

    #[test]
    fn solicitations_are_answered_for_peers_only() {
        let (peer, guest) = ("2001:db8::7", "2001:db8::1".parse().unwrap());
        let request = solicitation(peer.parse().unwrap(), guest);
        let reply = answered(&request, peer).unwrap();
        assert_eq!(reply[..14], [&GUEST[..], &MAC, &[0x86, 0xdd]].concat());
        let (header, icmp) = Ipv6Header::from_slice(&reply[14..]).unwrap();
        assert_eq!(
            (header.source, header.hop_limit),
            (request[62..78].try_into().unwrap(), 255)
        );
        assert_eq!(header.destination, guest.octets());
        assert_eq!((icmp[0], icmp[1], icmp[4]), (136, 0, 0x60));
        assert_eq!(icmp[8..24], request[62..78]);
        assert_eq!(icmp[24..], [&[2, 1][..], &MAC].concat());
        let sum = Icmpv6Header::from_slice(icmp).unwrap().0;
        let expected = sum
            .icmp_type
            .calc_checksum(header.source, header.destination, &icmp[8..]);
        assert_eq!(expected.unwrap(), sum.checksum);
        assert_eq!(answered(&request, "2001:db8::8"), None);
        let looking = solicitation(peer.parse().unwrap(), Ipv6Addr::UNSPECIFIED);
        assert_eq!(answered(&looking, peer), None, "whether an address is free");
        for end in 0..request.len() {
            assert_eq!(answered(&request[..end], peer), None);
        }
    }
}
