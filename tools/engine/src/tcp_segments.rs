// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Segmentation of TCP packets, which network devices know as TSO or LSO: a header and a long payload become packets.

use crate::{cause::Cause, checksum::Envelope};
use etherparse::{IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice, ether_type};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use vrnic_wire::completion::Status;

/// Longest payload of a request in bytes.
pub(crate) const MAX_PAYLOAD: u32 = 256 * 1024;

/// Offsets in the headers of IPv4, IPv6 and TCP.
const IPV4_LENGTH: usize = 2;
const IPV4_IDENTIFICATION: usize = 4;
const IPV6_LENGTH: usize = 4;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;

/// Flags of TCP that only the first packet has.
const FIRST_ONLY: u8 = 1 << 7;

/// Flags of TCP that only the last packet has: FIN and PSH.
const LAST_ONLY: u8 = 1 << 0 | 1 << 3;

/// A request that becomes several packets, or none. Keeps a copy of its header, so that it does not matter what the
/// poster does to the original.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct TcpSegments {
    /// The header. If it is empty, no request is under way. The memory stays for the next one.
    header: Vec<u8>,
    /// Payload of each packet but the last.
    size: u32,
    /// Payload of all packets.
    payload: u32,
    /// Payload that was sent.
    sent: u32,
    /// Number of packets that were sent.
    packets: u32,
}

impl TcpSegments {
    /// Begins a request with this header, which sends `payload` bytes in packets with `size` of them. An IP packet has
    /// at most `mtu` bytes.
    ///
    /// # Errors
    ///
    /// The request is not valid. No request is under way then.
    pub(crate) fn begin(
        &mut self,
        envelope: Envelope,
        header: &[u8],
        (size, payload): (u32, u32),
        mtu: usize,
    ) -> Result<(), (Status, Cause)> {
        self.end();
        let invalid = |cause| (Status::LocalQueuePairOperation, cause);
        let places = Places::of(envelope, header).ok_or(invalid(Cause::SegmentHeader))?;
        if size == 0 {
            return Err(invalid(Cause::SegmentSize));
        }
        if (header.len() - places.network).saturating_add(size as usize) > mtu {
            return Err((Status::LocalLength, Cause::WqeLength));
        }
        self.header.extend_from_slice(header);
        *self = Self {
            header: std::mem::take(&mut self.header),
            size,
            payload,
            sent: 0,
            packets: 0,
        };
        Ok(())
    }

    /// Returns whether a request is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        !self.header.is_empty()
    }

    /// Returns the part of the payload that the next packet has.
    fn next(&self) -> Range<u32> {
        self.sent..self.payload.min(self.sent.saturating_add(self.size))
    }

    /// Returns the length of the header of the next packet, and the part of the payload behind it. `None` if no request
    /// is under way.
    pub(crate) fn packet(&self) -> Option<(usize, Range<u32>)> {
        self.is_under_way()
            .then(|| (self.header.len(), self.next()))
    }

    /// Writes the header of the next packet to the beginning of `packet`, which already has its payload. Its checksums
    /// are still to be filled in.
    pub(crate) fn write_header(&self, envelope: Envelope, packet: &mut [u8]) {
        packet[..self.header.len()].copy_from_slice(&self.header);
        let Some(places) = Places::of(envelope, &self.header) else {
            return;
        };
        let mut put = |at: usize, bytes: &[u8]| packet[at..at + bytes.len()].copy_from_slice(bytes);
        let behind = |offset: usize| self.header.len() - offset + self.next().len();
        if places.is_ipv4 {
            let length = behind(places.network) as u16;
            put(places.network + IPV4_LENGTH, &length.to_be_bytes());
            let at = places.network + IPV4_IDENTIFICATION;
            let first = u16::from_be_bytes([self.header[at], self.header[at + 1]]);
            put(at, &first.wrapping_add(self.packets as u16).to_be_bytes());
        } else {
            let length = behind(places.transport) as u16;
            put(places.network + IPV6_LENGTH, &length.to_be_bytes());
        }
        let at = places.transport + TCP_SEQUENCE;
        let mut first = [0; 4];
        first.copy_from_slice(&self.header[at..at + 4]);
        let sequence = u32::from_be_bytes(first).wrapping_add(self.sent);
        put(at, &sequence.to_be_bytes());
        let mut flags = self.header[places.transport + TCP_FLAGS];
        if self.sent > 0 {
            flags &= !FIRST_ONLY;
        }
        if self.next().end < self.payload {
            flags &= !LAST_ONLY;
        }
        put(places.transport + TCP_FLAGS, &[flags]);
    }

    /// Notes that the next packet was sent. Returns whether it was the last, and ends the request then.
    pub(crate) fn advance(&mut self) -> bool {
        self.sent = self.next().end;
        self.packets = self.packets.wrapping_add(1);
        let done = self.sent == self.payload;
        if done {
            self.end();
        }
        done
    }

    /// Ends the request, if one is under way.
    pub(crate) fn end(&mut self) {
        self.header.clear();
    }
}

/// What is where in a header.
struct Places {
    is_ipv4: bool,
    /// Offset of the IP header.
    network: usize,
    /// Offset of the TCP header.
    transport: usize,
}

impl Places {
    /// Returns `None` unless this is a complete header of a TCP packet that is not a fragment, and nothing else.
    fn of(envelope: Envelope, header: &[u8]) -> Option<Self> {
        let (ether_type, network) = envelope.open(header)?;
        let packet = header.get(network..)?;
        let (is_ipv4, length, protocol) = match ether_type {
            ether_type::IPV4 => {
                let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
                if ip.is_fragmenting_payload() {
                    return None;
                }
                (true, ip.slice().len(), ip.protocol())
            }
            ether_type::IPV6 => {
                let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
                (false, ip.slice().len(), ip.next_header())
            }
            _ => return None,
        };
        let transport = network + length;
        let tcp = TcpHeaderSlice::from_slice(&header[transport..]).ok()?;
        let complete = protocol == IpNumber::TCP && transport + tcp.slice().len() == header.len();
        complete.then_some(Self {
            is_ipv4,
            network,
            transport,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::IPOIB_HEADER;
    use etherparse::{
        IpHeaders, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6Header, PacketBuilder,
        TcpHeader, VlanId,
    };
    use proptest::{collection::vec, prelude::*, sample::select};

    /// A packet as a test describes it. The packets that are expected are built by another implementation, which knows
    /// nothing of segments.
    #[derive(Clone, Debug)]
    struct Described {
        envelope: Envelope,
        tagged: bool,
        ip: IpHeaders,
        tcp: TcpHeader,
    }

    impl Described {
        /// Returns the packet with this payload, with right lengths and checksums.
        fn packet(&self, payload: &[u8]) -> Vec<u8> {
            let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let builder = if self.tagged {
                let id = VlanId::try_new(5).unwrap();
                builder.single_vlan(id).ip(self.ip.clone())
            } else {
                builder.ip(self.ip.clone())
            };
            let mut message = Vec::new();
            let builder = builder.tcp_header(self.tcp.clone());
            builder.write(&mut message, payload).unwrap();
            if self.envelope == Envelope::Datagram {
                let ether_type = [message[12], message[13], 0, 0];
                message.splice(..14, ether_type);
            }
            message
        }

        /// Returns the header of packets with other lengths and checksums than the real ones.
        fn header(&self) -> Vec<u8> {
            let mut header = self.packet(&[]);
            let network = self.network();
            let (length, sums) = match &self.ip {
                IpHeaders::Ipv4(ip, _) => {
                    let transport = network + ip.header_len();
                    (network + 2, vec![network + 10, transport + 16])
                }
                IpHeaders::Ipv6(..) => (network + 4, vec![network + 40 + 16]),
            };
            for place in [vec![length], sums].concat() {
                header[place..place + 2].fill(0x5a);
            }
            header
        }

        /// Returns the offset of the IP header.
        fn network(&self) -> usize {
            match (self.envelope, self.tagged) {
                (Envelope::Datagram, _) => IPOIB_HEADER,
                (Envelope::Frame, false) => 14,
                (Envelope::Frame, true) => 18,
            }
        }

        /// Returns the packets that such a request becomes.
        fn packets(&self, payload: &[u8], size: usize) -> Vec<Vec<u8>> {
            let chunks: Vec<_> = payload.chunks(size).collect();
            let count = chunks.len();
            let packet = |(index, chunk): (usize, &[u8])| {
                let mut one = self.clone();
                if let IpHeaders::Ipv4(ip, _) = &mut one.ip {
                    ip.identification = ip.identification.wrapping_add(index as u16);
                }
                let sent = (index * size) as u32;
                one.tcp.sequence_number = one.tcp.sequence_number.wrapping_add(sent);
                one.tcp.cwr &= index == 0;
                one.tcp.fin &= index == count - 1;
                one.tcp.psh &= index == count - 1;
                one.packet(chunk)
            };
            chunks.into_iter().enumerate().map(packet).collect()
        }
    }

    prop_compose! {
        fn described()(
            envelope in select(vec![Envelope::Frame, Envelope::Datagram]),
            tagged: bool,
            ipv4: bool,
            options in (0..11_usize, 0..11_usize),
            addresses in vec(any::<u8>(), 32),
            words: (u16, u16, u16, u32, u32),
            flags in any::<[bool; 9]>(),
        ) -> Described {
            let (source, destination) = addresses.split_at(16);
            let ip = if ipv4 {
                let mut ip = Ipv4Header::new(
                    0, 7, IpNumber::TCP,
                    *source.first_chunk().unwrap(), *destination.first_chunk().unwrap(),
                ).unwrap();
                ip.options = vec![1; options.0 * 4].as_slice().try_into().unwrap();
                ip.identification = words.0;
                ip.dont_fragment = flags[8];
                IpHeaders::Ipv4(ip, Ipv4Extensions::default())
            } else {
                IpHeaders::Ipv6(Ipv6Header {
                    source: source.try_into().unwrap(),
                    destination: destination.try_into().unwrap(),
                    ..Default::default()
                }, Ipv6Extensions::default())
            };
            let mut tcp = TcpHeader::new(words.1, words.2, words.3, 77);
            tcp.acknowledgment_number = words.4;
            tcp.set_options_raw(&vec![1; options.1 * 4]).unwrap();
            [tcp.cwr, tcp.ece, tcp.urg, tcp.ack, tcp.psh, tcp.rst, tcp.syn, tcp.fin] =
                *flags.first_chunk().unwrap();
            Described { envelope, tagged: tagged && envelope == Envelope::Frame, ip, tcp }
        }
    }

    /// Returns the packets of the request that was begun, which has this payload.
    fn packets_of(segments: &mut TcpSegments, envelope: Envelope, payload: &[u8]) -> Vec<Vec<u8>> {
        let mut packets = Vec::new();
        while let Some((header, part)) = segments.packet() {
            let part = &payload[part.start as usize..part.end as usize];
            let mut packet = [&vec![0xee; header][..], part].concat();
            segments.write_header(envelope, &mut packet);
            envelope.fill(&mut packet);
            packets.push(packet);
            assert_eq!(segments.advance(), !segments.is_under_way());
        }
        packets
    }

    proptest! {
        #[test]
        fn packets_are_those_of_another_implementation(
            described in described(),
            payload in vec(any::<u8>(), 1..2000),
            size in prop_oneof![1..20_usize, 1..3000_usize],
            times in 1..3,
        ) {
            let mut segments = TcpSegments::default();
            for _ in 0..times {
                let lengths = (size as u32, payload.len() as u32);
                let began = segments.begin(
                    described.envelope, &described.header(), lengths, 9000,
                );
                prop_assert_eq!(began, Ok(()));
                let packets = packets_of(&mut segments, described.envelope, &payload);
                prop_assert_eq!(packets, described.packets(&payload, size));
            }
        }

        #[test]
        fn a_header_has_exactly_its_length(described in described(), more in 1..80_usize) {
            let header = described.header();
            let mut segments = TcpSegments::default();
            let mut begin = |header: &[u8]| {
                let began = segments.begin(described.envelope, header, (1, 1), 9000);
                assert_eq!(segments.is_under_way(), began.is_ok());
                began
            };
            prop_assert_eq!(begin(&header), Ok(()));
            let invalid = Err((Status::LocalQueuePairOperation, Cause::SegmentHeader));
            for length in 0..header.len() {
                prop_assert_eq!(begin(&header[..length]), invalid);
            }
            prop_assert_eq!(begin(&[header, vec![0; more]].concat()), invalid);
        }

        #[test]
        fn no_header_is_too_strange(
            described in described(),
            changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            payload in vec(any::<u8>(), 1..100),
            size in 0..60_u32,
        ) {
            let mut header = described.header();
            for (at, byte) in changes {
                let at = at.index(header.len());
                header[at] = byte;
            }
            let mut segments = TcpSegments::default();
            let lengths = (size, payload.len() as u32);
            if segments.begin(described.envelope, &header, lengths, 9000).is_ok() {
                let packets = packets_of(&mut segments, described.envelope, &payload);
                let parts: Vec<u8> =
                    packets.iter().flat_map(|packet| &packet[header.len()..]).copied().collect();
                prop_assert_eq!(parts, payload);
            }
        }
    }

    /// Returns the header of TCP over IPv4 in a frame.
    fn header() -> Vec<u8> {
        let mut header = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .tcp(1, 2, 3, 4)
            .write(&mut header, &[])
            .unwrap();
        header
    }

    fn begin(header: &[u8], size: u32, mtu: usize) -> Result<(), (Status, Cause)> {
        TcpSegments::default().begin(Envelope::Frame, header, (size, 10_000), mtu)
    }

    #[test]
    fn only_tcp_is_divided() {
        let with = |at: usize, byte: u8| {
            let mut header = header();
            header[at] = byte;
            begin(&header, 100, 9000)
        };
        assert_eq!(with(0, 3), Ok(()));
        for (what, at, byte) in [
            ("another Ethertype", 13, 6),
            ("a second tag", 12, 0x88),
            ("IPv6 with the Ethertype of IPv4", 14, 0x65),
            ("less than the fixed header", 14, 0x44),
            ("more options than there are", 14, 0x46),
            ("UDP", 23, 17),
            ("the first fragment", 20, 0x20),
            ("a later fragment", 21, 1),
            ("a TCP header that is too short", 46, 0x40),
            ("TCP options that are missing", 46, 0x60),
        ] {
            let invalid = Err((Status::LocalQueuePairOperation, Cause::SegmentHeader));
            assert_eq!(with(at, byte), invalid, "{what}");
        }
    }

    #[test]
    fn packets_fit_the_network() {
        let header = header();
        let none = Err((Status::LocalQueuePairOperation, Cause::SegmentSize));
        assert_eq!(begin(&header, 0, 1500), none);
        assert_eq!(begin(&header, 1, 1500), Ok(()));
        assert_eq!(begin(&header, 1460, 1500), Ok(()));
        let long = Err((Status::LocalLength, Cause::WqeLength));
        for size in [1461, 10_000, u32::MAX] {
            assert_eq!(begin(&header, size, 1500), long, "{size}");
        }
        // The tag is not a part of the packet.
        let mut tagged = header.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(begin(&tagged, 1460, 1500), Ok(()));
        assert_eq!(begin(&tagged, 1461, 1500), long);
    }
}
