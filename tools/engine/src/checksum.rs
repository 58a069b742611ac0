// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksums of IP packets, which the device fills in and checks for its users.

use crate::flow::network_of;
use etherparse::{
    EtherType, IpNumber, Ipv4HeaderSlice, Ipv6HeaderSlice, TcpHeaderSlice, UdpHeaderSlice,
    checksum::Sum16BitWords, ether_type,
};
use std::ops::Range;

/// Offsets of the checksums in the headers of IPv4, TCP and UDP.
const IPV4_CHECKSUM: usize = 10;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;

/// Offsets of the addresses in the headers of IPv4 and IPv6, which end with them, except for options.
const IPV4_ADDRESSES: Range<usize> = 12..20;
const IPV6_ADDRESSES: Range<usize> = 8..40;

/// Length of the header in front of IP over InfiniBand (RFC 4391, section 6).
pub(crate) const IPOIB_HEADER: usize = 4;

/// What an IP packet is in.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Envelope {
    /// An Ethernet frame.
    Frame,
    /// A datagram of IP over InfiniBand.
    Datagram,
}

impl Envelope {
    /// Returns the Ethertype of a message, and where its packet begins.
    pub(crate) fn open(self, message: &[u8]) -> Option<(EtherType, usize)> {
        match self {
            Self::Frame => network_of(message),
            Self::Datagram => match message {
                [high, low, _, _, ..] => {
                    let ether_type = u16::from_be_bytes([*high, *low]);
                    Some((EtherType(ether_type), IPOIB_HEADER))
                }
                _ => None,
            },
        }
    }

    /// Fills in the checksums of a message. Leaves the rest as it is, and all of it if it has none.
    pub(crate) fn fill(self, message: &mut [u8]) {
        if let Some(Checksums { network, transport }) = self.find(message) {
            for checksum in [network, transport].into_iter().flatten() {
                checksum.fill(message);
            }
        }
    }

    /// Returns whether a message is an IPv4 packet with TCP or UDP, and both checksums are right.
    pub(crate) fn is_right(self, message: &[u8]) -> bool {
        let Some(Checksums { network, transport }) = self.find(message) else {
            return false;
        };
        network.zip(transport).is_some_and(|(network, transport)| {
            network.is_right(message) && transport.is_right(message)
        })
    }

    /// Finds the checksums of a message.
    fn find(self, message: &[u8]) -> Option<Checksums> {
        let (ether_type, start) = self.open(message)?;
        let packet = &message[start..];
        match ether_type {
            ether_type::IPV4 => {
                let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
                let header = start..start + ip.slice().len();
                let transport = header.end..start + usize::from(ip.total_len());
                let addresses = &ip.slice()[IPV4_ADDRESSES];
                let transport =
                    Checksum::of_transport(message, transport, ip.protocol(), addresses);
                Some(Checksums {
                    transport: transport.filter(|_| !ip.is_fragmenting_payload()),
                    network: Some(Checksum {
                        place: start + IPV4_CHECKSUM,
                        covered: header,
                        pseudo: Sum16BitWords::new(),
                        optional: false,
                    }),
                })
            }
            ether_type::IPV6 => {
                let ip = Ipv6HeaderSlice::from_slice(packet).ok()?;
                let header = start + ip.slice().len();
                let transport = header..header + usize::from(ip.payload_length());
                let addresses = &ip.slice()[IPV6_ADDRESSES];
                Some(Checksums {
                    network: None,
                    transport: Checksum::of_transport(
                        message,
                        transport,
                        ip.next_header(),
                        addresses,
                    ),
                })
            }
            _ => None,
        }
    }
}

/// The checksums of a packet.
#[derive(Debug)]
struct Checksums {
    /// That of the IPv4 header.
    network: Option<Checksum>,
    /// That of TCP or UDP.
    transport: Option<Checksum>,
}

/// A checksum in a message.
#[derive(Debug)]
struct Checksum {
    /// Offset of the checksum.
    place: usize,
    /// The bytes that it covers, including itself.
    covered: Range<usize>,
    /// Sum of the pseudo-header, which it covers as well.
    pseudo: Sum16BitWords,
    /// Whether 0 means that there is none.
    optional: bool,
}

impl Checksum {
    /// Returns the checksum of TCP or UDP, which is these bytes of a message. `None` if it is neither, or not complete.
    fn of_transport(
        message: &[u8],
        covered: Range<usize>,
        protocol: IpNumber,
        addresses: &[u8],
    ) -> Option<Self> {
        let bytes = message.get(covered.clone())?;
        let (place, optional) = match protocol {
            IpNumber::TCP => {
                TcpHeaderSlice::from_slice(bytes).ok()?;
                (TCP_CHECKSUM, false)
            }
            IpNumber::UDP => {
                let udp = UdpHeaderSlice::from_slice(bytes).ok()?;
                if usize::from(udp.length()) != bytes.len() {
                    return None;
                }
                (UDP_CHECKSUM, true)
            }
            _ => return None,
        };
        let length = u32::try_from(bytes.len()).ok()?;
        let pseudo = Sum16BitWords::new()
            .add_slice(addresses)
            .add_2bytes([0, protocol.0])
            .add_4bytes(length.to_be_bytes());
        Some(Self {
            place: covered.start + place,
            covered,
            pseudo,
            optional,
        })
    }

    /// Returns the sum of what the checksum covers.
    fn sum(&self, message: &[u8]) -> Sum16BitWords {
        (self.pseudo.clone()).add_slice(&message[self.covered.clone()])
    }

    /// Returns the place of the checksum.
    fn field(&self) -> Range<usize> {
        self.place..self.place + 2
    }

    /// Calculates the checksum and writes it to its place.
    fn fill(&self, message: &mut [u8]) {
        message[self.field()].fill(0);
        let sum = self.sum(message);
        let checksum = if self.optional {
            sum.to_ones_complement_with_no_zero()
        } else {
            sum.ones_complement()
        };
        // The crate adds words as they are in memory.
        message[self.field()].copy_from_slice(&checksum.to_ne_bytes());
    }

    /// Returns whether the checksum is right.
    fn is_right(&self, message: &[u8]) -> bool {
        let is_absent = self.optional && message[self.field()] == [0, 0];
        is_absent || self.sum(message).ones_complement() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{PacketBuilder, VlanId};
    use proptest::{collection::vec, prelude::*, sample::select};

    /// Returns the Internet checksum of some bytes as RFC 1071 defines it, word by word.
    fn checksum(bytes: &[u8]) -> u16 {
        let mut sum = 0_u16;
        for pair in bytes.chunks(2) {
            let word = u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]);
            let (next, carry) = sum.overflowing_add(word);
            sum = next + u16::from(carry);
        }
        !sum
    }

    /// A packet that a test knows, because it made it.
    #[derive(Clone, Debug)]
    struct Made {
        message: Vec<u8>,
        envelope: Envelope,
        /// Offset of the packet.
        start: usize,
        /// Offset of what is behind the IP header.
        transport: usize,
        /// Offset of what is behind the IP packet.
        end: usize,
        ipv4: bool,
        udp: bool,
    }

    impl Made {
        fn network_field(&self) -> Option<usize> {
            self.ipv4.then_some(self.start + 10)
        }

        fn transport_field(&self) -> usize {
            self.transport + if self.udp { 6 } else { 16 }
        }

        /// Fills in the checksums by the other implementation.
        fn fill(&mut self) {
            if let Some(field) = self.network_field() {
                self.message[field..field + 2].fill(0);
                let sum = checksum(&self.message[self.start..self.transport]);
                self.message[field..field + 2].copy_from_slice(&sum.to_be_bytes());
            }
            let field = self.transport_field();
            self.message[field..field + 2].fill(0);
            let addresses = if self.ipv4 { 12..20 } else { 8..40 };
            let addresses = self.start + addresses.start..self.start + addresses.end;
            let length = ((self.end - self.transport) as u32).to_be_bytes();
            let protocol = if self.udp { 17 } else { 6 };
            let covered = [
                &self.message[addresses],
                &length,
                &[0, 0, 0, protocol],
                &self.message[self.transport..self.end],
            ]
            .concat();
            let sum = match checksum(&covered) {
                0 if self.udp => 0xffff,
                sum => sum,
            };
            self.message[field..field + 2].copy_from_slice(&sum.to_be_bytes());
        }
    }

    prop_compose! {
        /// Makes a packet with TCP or UDP, with any checksums.
        fn made()(
            envelope in select(vec![Envelope::Frame, Envelope::Datagram]),
            tagged: bool,
            ipv4: bool,
            udp: bool,
            options in 0..11_usize,
            addresses in vec(any::<u8>(), 32),
            ports: (u16, u16),
            sums: (u16, u16),
            payload in vec(any::<u8>(), 0..200),
            padding in vec(any::<u8>(), 0..20),
        ) -> Made {
            let tagged = tagged && envelope == Envelope::Frame;
            let builder = PacketBuilder::ethernet2([2; 6], [4; 6]);
            let (source, destination) = addresses.split_at(16);
            let options = vec![1; options * 4];
            let ip = if ipv4 {
                let mut ip = etherparse::Ipv4Header::new(
                    0, 7, IpNumber::TCP,
                    *source.first_chunk().unwrap(), *destination.first_chunk().unwrap(),
                ).unwrap();
                ip.options = options.as_slice().try_into().unwrap();
                etherparse::IpHeaders::Ipv4(ip, etherparse::Ipv4Extensions::default())
            } else {
                etherparse::IpHeaders::Ipv6(etherparse::Ipv6Header {
                    source: source.try_into().unwrap(),
                    destination: destination.try_into().unwrap(),
                    ..Default::default()
                }, etherparse::Ipv6Extensions::default())
            };
            let builder = if tagged {
                builder.single_vlan(VlanId::try_new(5).unwrap()).ip(ip)
            } else {
                builder.ip(ip)
            };
            let mut message = Vec::new();
            if udp {
                builder.udp(ports.0, ports.1).write(&mut message, &payload).unwrap();
            } else {
                builder.tcp(ports.0, ports.1, 3, 4).write(&mut message, &payload).unwrap();
            }
            let mut start = if tagged { 18 } else { 14 };
            if envelope == Envelope::Datagram {
                let ether_type = [message[12], message[13], 0, 0];
                message.splice(..start, ether_type);
                start = 4;
            }
            let end = message.len();
            message.extend(padding);
            let header = if ipv4 { 20 + options.len() } else { 40 };
            let mut made = Made {
                message, envelope, start, transport: start + header, end, ipv4, udp,
            };
            if let Some(field) = made.network_field() {
                made.message[field..field + 2].copy_from_slice(&sums.0.to_be_bytes());
            }
            let field = made.transport_field();
            made.message[field..field + 2].copy_from_slice(&sums.1.to_be_bytes());
            made
        }
    }

    proptest! {
        #[test]
        fn checksums_are_those_of_another_implementation(made in made()) {
            let mut expected = made.clone();
            expected.fill();
            let mut message = made.message.clone();
            made.envelope.fill(&mut message);
            prop_assert_eq!(&message, &expected.message);
            prop_assert_eq!(made.envelope.is_right(&message), made.ipv4);
        }

        #[test]
        fn a_bit_that_is_wrong_is_noticed(mut made in made(), at: prop::sample::Index, bit in 0..8) {
            made.fill();
            let at = at.index(made.message.len());
            made.message[at] ^= 1_u8 << bit;
            // The addresses count twice; the Ethernet header and what is behind the packet do not count.
            if (made.start..made.end).contains(&at) {
                let field = made.transport_field();
                let absent = made.udp && made.message[field..field + 2] == [0, 0];
                prop_assert!(!made.envelope.is_right(&made.message) || absent);
            } else if at >= made.end {
                prop_assert_eq!(made.envelope.is_right(&made.message), made.ipv4);
            }
        }

        #[test]
        fn what_is_not_complete_has_no_checksum_of_its_own(made in made(), at: prop::sample::Index) {
            let length = at.index(made.end);
            let mut message = made.message[..length].to_vec();
            prop_assert!(!made.envelope.is_right(&message));
            made.envelope.fill(&mut message);
            let field = match made.network_field() {
                Some(field) if length >= made.transport => field..field + 2,
                _ => 0..0,
            };
            message[field.clone()].copy_from_slice(&made.message[field]);
            prop_assert_eq!(&message, &made.message[..length]);
        }

        #[test]
        fn no_bytes_are_too_strange(
            envelope in select(vec![Envelope::Frame, Envelope::Datagram]),
            kind in select(vec![[8, 0], [0x86, 0xdd], [0x81, 0]]),
            first in select(vec![0x45, 0x4f, 0x60, 0x44]),
            mut message in vec(any::<u8>(), 0..120),
        ) {
            let start = if envelope == Envelope::Frame { 12 } else { 0 };
            if let Some(ether_type) = message.get_mut(start..start + 2) {
                ether_type.copy_from_slice(&kind);
            }
            let ip = if envelope == Envelope::Frame { 14 } else { 4 };
            if let Some(version) = message.get_mut(ip) {
                *version = first;
            }
            let before = message.clone();
            envelope.is_right(&message);
            envelope.fill(&mut message);
            let changed = before.iter().zip(&message).filter(|(old, new)| old != new);
            prop_assert!(before.len() == message.len() && changed.count() <= 4);
        }
    }

    /// Returns a frame with UDP over IPv4 and right checksums.
    fn frame() -> Vec<u8> {
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
            .udp(1, 2)
            .write(&mut frame, b"text")
            .unwrap();
        frame
    }

    #[test]
    fn a_datagram_need_not_have_a_checksum() {
        let mut frame = frame();
        assert!(Envelope::Frame.is_right(&frame));
        frame[40..42].fill(0);
        assert!(Envelope::Frame.is_right(&frame));
        frame[24] ^= 1;
        assert!(!Envelope::Frame.is_right(&frame), "the header is wrong");
    }

    #[test]
    fn a_checksum_of_zero_is_not_sent() {
        let mut frame = frame();
        frame[42..46].fill(0);
        Envelope::Frame.fill(&mut frame);
        // With its checksum as payload, the sum is all ones.
        frame.copy_within(40..42, 42);
        Envelope::Frame.fill(&mut frame);
        assert_eq!(frame[40..42], [0xff, 0xff]);
        assert!(Envelope::Frame.is_right(&frame));
    }

    #[test]
    fn only_the_header_of_a_fragment_has_a_checksum() {
        for (offset, bits) in [(20, 0x20), (21, 0x01)] {
            let mut frame = frame();
            frame[offset] |= bits;
            frame[24..26].fill(0x77);
            frame[40..42].fill(0x77);
            Envelope::Frame.fill(&mut frame);
            assert_eq!(checksum(&frame[14..34]), 0);
            assert_eq!(frame[40..42], [0x77, 0x77]);
            assert!(!Envelope::Frame.is_right(&frame));
        }
    }

    #[test]
    fn other_lengths_and_protocols_have_no_checksum_of_their_own() {
        let change = |offset: usize, value: u8| {
            let mut frame = frame();
            frame[offset] = value;
            frame[24..26].fill(0x77);
            frame[40..42].fill(0x77);
            Envelope::Frame.fill(&mut frame);
            assert_eq!(checksum(&frame[14..34]), 0);
            assert_eq!(frame[40..42], [0x77, 0x77], "{offset}");
            assert!(!Envelope::Frame.is_right(&frame));
        };
        // The length of UDP, and of IP: more than there is, less than two headers, less than its own header.
        for (offset, value) in [(39, 11), (39, 13), (17, 33), (17, 27), (17, 19), (17, 0)] {
            change(offset, value);
        }
        for protocol in [0, 1, 41, 136] {
            change(23, protocol);
        }
    }

    #[test]
    fn a_stacked_tag_hides_the_packet() {
        for outer in [[0x81, 0], [0x88, 0xa8]] {
            let mut frame = frame();
            frame.splice(12..12, [outer[0], outer[1], 0, 5, 0x81, 0, 0, 6]);
            let before = frame.clone();
            Envelope::Frame.fill(&mut frame);
            assert_eq!(frame, before);
            assert!(!Envelope::Frame.is_right(&frame));
        }
    }
}
