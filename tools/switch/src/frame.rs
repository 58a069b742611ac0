// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Ethernet frames: parses the header and tags, and recognizes RoCE.

use etherparse::{
    EtherType, Ethernet2HeaderSlice, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice,
    SingleVlanHeaderSlice, UdpHeaderSlice, ether_type,
};

use crate::address::Mac;
use crate::vlan::Vlan;
use crate::{HEADER_LENGTH, TAG_LENGTH};

/// Ethertype of RoCE v1 (IBTA annex A16).
const ROCE_V1: EtherType = EtherType(0x8915);
/// UDP port of RoCE v2 (IBTA annex A17).
const ROCE_V2_PORT: u16 = 4791;
/// Offset of the tag, which follows the two addresses.
const TAG_AT: usize = 12;

/// The fields that the switch uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    pub destination: Mac,
    pub source: Mac,
    /// VLAN identifier of the tag, if there is one.
    pub vlan: Option<u16>,
    /// Whether the frame is RoCE of either version. A fragment of a datagram is not, because RoCE packets are never
    /// fragmented.
    pub roce: bool,
}

impl Header {
    /// Parses a header. Returns `None` if the frame ends within it or its source is not a unicast address.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        let (vlan, ether_type) = if ethernet.ether_type() == ether_type::VLAN_TAGGED_FRAME {
            let tag = SingleVlanHeaderSlice::from_slice(&frame[HEADER_LENGTH..]).ok()?;
            (Some(tag.vlan_identifier().value()), tag.ether_type())
        } else {
            (None, ethernet.ether_type())
        };
        let source = Mac(ethernet.source());
        (!source.is_multicast() && source != Mac([0; 6])).then(|| Self {
            destination: Mac(ethernet.destination()),
            source,
            vlan,
            roce: is_roce(ether_type, &frame[header_length(vlan)..]),
        })
    }

    /// Returns the length of a frame of `length` bytes without its Ethernet header and tag, which the MTU limits.
    pub fn payload_length(self, length: usize) -> usize {
        length - header_length(self.vlan)
    }

    /// Prepares `frame`, which has this header, for leaving with a tag of `vlan` or untagged. A tag that remains keeps
    /// its priority and drop eligibility.
    pub fn retag(self, frame: &mut Vec<u8>, vlan: Vlan, tagged: bool) {
        match (self.vlan, tagged) {
            (None, false) => {}
            (Some(_), true) => {
                // The upper four bits are priority and drop eligibility.
                let [high, low] = vlan.get().to_be_bytes();
                frame[TAG_AT + 2] = frame[TAG_AT + 2] & 0xf0 | high;
                frame[TAG_AT + 3] = low;
            }
            (Some(_), false) => {
                frame.drain(TAG_AT..TAG_AT + TAG_LENGTH);
            }
            (None, true) => {
                let [a, b] = ether_type::VLAN_TAGGED_FRAME.0.to_be_bytes();
                let [c, d] = vlan.get().to_be_bytes();
                frame.splice(TAG_AT..TAG_AT, [a, b, c, d]);
            }
        }
    }
}

/// Returns the length of the Ethernet header, including the tag.
fn header_length(vlan: Option<u16>) -> usize {
    HEADER_LENGTH + vlan.map_or(0, |_| TAG_LENGTH)
}

/// Returns whether the payload of a frame is RoCE.
fn is_roce(ether_type: EtherType, payload: &[u8]) -> bool {
    let datagram = match ether_type {
        ROCE_V1 => return true,
        ether_type::IPV4 => Ipv4HeaderSlice::from_slice(payload)
            .ok()
            .filter(|ip| ip.protocol() == IpNumber::UDP && !ip.is_fragmenting_payload())
            .map(|ip| &payload[ip.slice().len()..]),
        ether_type::IPV6 => Ipv6HeaderSlice::from_slice(payload)
            .ok()
            .filter(|ip| ip.next_header() == IpNumber::UDP)
            .map(|ip| &payload[ip.slice().len()..]),
        _ => None,
    };
    datagram
        .and_then(|datagram| UdpHeaderSlice::from_slice(datagram).ok())
        .is_some_and(|udp| udp.destination_port() == ROCE_V2_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;

    fn ethernet(destination: Mac, source: Mac, ether_type: u16, payload: &[u8]) -> Vec<u8> {
        let mut frame = [destination.0, source.0].concat();
        frame.extend(ether_type.to_be_bytes());
        frame.extend(payload);
        frame
    }

    fn is_roce(frame: &[u8]) -> bool {
        Header::parse(frame).unwrap().roce
    }

    const A: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn udp4(port: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(A.0, B.0)
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1000, port)
            .write(&mut frame, &[1; 24])
            .unwrap();
        frame
    }

    #[test]
    fn roce_is_told_from_the_rest() {
        assert!(is_roce(&udp4(4791)));
        assert!(!is_roce(&udp4(4790)));
        let mut source_port = udp4(1);
        source_port[34..36].copy_from_slice(&4791u16.to_be_bytes());
        assert!(!is_roce(&source_port), "only the destination port counts");

        let mut six = Vec::new();
        PacketBuilder::ethernet2(A.0, B.0)
            .single_vlan(7.try_into().unwrap())
            .ipv6([1; 16], [2; 16], 64)
            .udp(1000, 4791)
            .write(&mut six, &[1; 24])
            .unwrap();
        assert!(is_roce(&six), "IPv6 behind a tag");

        let mut tcp = udp4(4791);
        tcp[23] = 6;
        assert!(!is_roce(&tcp));
        for flags in [0x20u8, 0x01] {
            let mut fragment = udp4(4791);
            fragment[20] = flags;
            assert!(!is_roce(&fragment));
        }
        assert!(is_roce(&ethernet(A, B, 0x8915, &[])));
        assert!(!is_roce(&ethernet(A, B, 0x0806, &[0; 28])));
    }

    #[test]
    fn frames_may_end_anywhere() {
        let whole = udp4(4791);
        for end in 0..whole.len() {
            let cut = &whole[..end];
            let header = Header::parse(cut);
            assert_eq!(header.is_some(), end >= HEADER_LENGTH);
            if let Some(header) = header {
                assert_eq!(header.roce, end >= 42, "{end}");
            }
        }
        assert!(Header::parse(&ethernet(A, B, 0x8100, &[0, 1, 8])).is_none());
        assert!(Header::parse(&ethernet(A, Mac([1; 6]), 0x0800, &[])).is_none());
        assert!(Header::parse(&ethernet(A, Mac([0; 6]), 0x0800, &[])).is_none());
    }

    #[test]
    fn tags_come_and_go() {
        let vlan = Vlan::new(0x123).unwrap();
        let plain = udp4(4791);
        let mut frame = plain.clone();
        Header::parse(&frame)
            .unwrap()
            .retag(&mut frame, vlan, false);
        assert_eq!(frame, plain);
        Header::parse(&frame).unwrap().retag(&mut frame, vlan, true);
        let header = Header::parse(&frame).unwrap();
        assert_eq!(header.vlan, Some(0x123));
        assert_eq!(
            header.payload_length(frame.len()),
            plain.len() - HEADER_LENGTH
        );
        // Priority 5, drop eligible.
        frame[14] |= 0xb0;
        header.retag(&mut frame, Vlan::new(0x456).unwrap(), true);
        assert_eq!(frame[14..16], [0xb4, 0x56]);
        Header::parse(&frame)
            .unwrap()
            .retag(&mut frame, vlan, false);
        assert_eq!(frame, plain);
    }
}
