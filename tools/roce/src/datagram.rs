// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Converts frames of RoCE version 2 to datagrams of an ordinary UDP socket, and back.
//!
//! A program with such a socket neither writes nor sees the IP and UDP headers, but the invariant CRC covers them. Most
//! of their contents are known. The exceptions concern IPv4: a sender cannot choose the identification of a packet (but
//! can predict it), and a receiver sees neither the identification nor the DF flag.
//!
//! The CRC is linear: the effect of a change of the headers does not depend on the rest of the packet. So the CRC of a
//! frame can be adapted to other headers without reading the payload, and a damaged frame stays damaged. It also means
//! that the CRC of a received packet reveals an unknown identification, at the cost of 17 of its 32 bits.

use std::net::IpAddr;

use crate::{
    UDP_PORT,
    encode::{gid_of_ipv4, write_network},
    header::{Bth, ICRC_LENGTH, Writer},
    icrc::{Network, icrc},
};
use etherparse::{
    Ethernet2Header, Ethernet2HeaderSlice, IpNumber, Ipv4Header, Ipv4HeaderSlice, Ipv6Header,
    Ipv6HeaderSlice, UdpHeader, UdpHeaderSlice, ether_type,
};
use vrnic_engine::segment::{Gid, Path};

/// Number of bytes that [`Carrier::frame`] needs in front of a datagram.
pub const HEADROOM: usize = Ethernet2Header::LEN + Ipv6Header::LEN + UdpHeader::LEN;

/// The polynomial of the CRC, bit-reversed.
const POLYNOMIAL: u32 = 0xedb8_8320;
/// The polynomial x, bit-reversed. Its powers repeat after 2³² - 1.
const X: u32 = 1 << 30;

/// Range of identification and flags in an IPv4 header.
const FRAGMENTS: std::ops::Range<usize> = 4..8;
/// The DF flag, in the third of these bytes.
const DONT_FRAGMENT: u8 = 0x40;

/// What a socket needs to know about a frame in order to send its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outline {
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Length of the datagram in bytes, from the base transport header to the invariant CRC.
    pub length: usize,
    /// Length of the IP and UDP headers in bytes.
    headers: usize,
}

impl Outline {
    /// Parses a frame. Returns `None` if it has a VLAN tag, is not RoCE version 2, or is incomplete.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let ethernet = Ethernet2HeaderSlice::from_slice(frame).ok()?;
        let packet = &frame[Ethernet2Header::LEN..];
        let (source, destination, traffic_class, ip, total) = match ethernet.ether_type() {
            ether_type::IPV4 => {
                let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
                let plain = header.slice().len() == Ipv4Header::MIN_LEN
                    && header.protocol() == IpNumber::UDP
                    && !header.is_fragmenting_payload();
                plain.then_some((
                    header.source_addr().into(),
                    header.destination_addr().into(),
                    header.slice()[1],
                    Ipv4Header::MIN_LEN,
                    usize::from(header.total_len()),
                ))?
            }
            ether_type::IPV6 => {
                let header = Ipv6HeaderSlice::from_slice(packet).ok()?;
                (header.next_header() == IpNumber::UDP).then_some((
                    header.source_addr().into(),
                    header.destination_addr().into(),
                    header.traffic_class(),
                    Ipv6Header::LEN,
                    Ipv6Header::LEN + usize::from(header.payload_length()),
                ))?
            }
            _ => return None,
        };
        let datagram = packet.get(ip..total)?;
        let udp = UdpHeaderSlice::from_slice(datagram).ok()?;
        let length = datagram.len() - UdpHeader::LEN;
        let roce = udp.destination_port() == UDP_PORT
            && usize::from(udp.length()) == datagram.len()
            && length >= size_of::<Bth>() + ICRC_LENGTH;
        roce.then_some(Self {
            source,
            destination,
            traffic_class,
            length,
            headers: ip + UdpHeader::LEN,
        })
    }
}

/// Returns the GID of an IP address.
pub fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => gid_of_ipv4(address.octets()),
        IpAddr::V6(address) => address.octets(),
    }
}

/// Converts frames to datagrams and datagrams to frames.
#[derive(Debug, Default)]
pub struct Carrier {
    forward: Power,
    backward: Power,
}

impl Carrier {
    /// Returns the datagram in `frame`, whose outline is `outline`, with the invariant CRC for being sent from
    /// `source_port` and, over IPv4, with the DF flag and this `identification`. Also updates the headers in `frame`,
    /// so that calling this again with the same arguments changes nothing.
    ///
    /// # Panics
    /// The outline belongs to another frame.
    pub fn datagram<'a>(
        &mut self,
        frame: &'a mut [u8],
        outline: &Outline,
        source_port: u16,
        identification: u16,
    ) -> &'a [u8] {
        let packet = &mut frame[Ethernet2Header::LEN..];
        let packet = &mut packet[..outline.headers + outline.length];
        let (headers, datagram) = packet.split_at_mut(outline.headers);
        let before = crc32fast::hash(headers);
        if outline.source.is_ipv4() {
            let [high, low] = identification.to_be_bytes();
            headers[FRAGMENTS].copy_from_slice(&[high, low, DONT_FRAGMENT, 0]);
        }
        let udp = outline.headers - UdpHeader::LEN;
        headers[udp..udp + 2].copy_from_slice(&source_port.to_be_bytes());
        let change = before ^ crc32fast::hash(headers);
        let (covered, crc) = datagram.split_at_mut(outline.length - ICRC_LENGTH);
        add(crc, self.forward.times(change, bits(covered)));
        datagram
    }

    /// Writes headers in front of the datagram that begins at [`HEADROOM`] in `buffer` and came by `path`; returns the
    /// frame. For an IPv4 packet, chooses identification and flags so that the invariant CRC is correct, if possible.
    /// Returns `None` if the datagram is too long for an IP packet, or if `path` mixes IPv4 and IPv6 addresses.
    pub fn frame<'a>(&mut self, buffer: &'a mut [u8], path: &Path) -> Option<&'a [u8]> {
        let length = buffer.len().checked_sub(HEADROOM)?;
        let mut headers = [0; HEADROOM];
        let mut writer = Writer::new(&mut headers);
        let network = write_network(path, length, &mut writer).ok()?;
        let written = writer.length();
        let frame = &mut buffer[HEADROOM - written..];
        frame[..written].copy_from_slice(&headers[..written]);
        if network == Network::Ipv4 && length >= size_of::<Bth>() + ICRC_LENGTH {
            self.identify(&mut frame[Ethernet2Header::LEN..]);
        }
        Some(frame)
    }

    /// Finds the identification and flags of an IPv4 packet.
    fn identify(&mut self, packet: &mut [u8]) {
        let (covered, crc) = packet.split_at_mut(packet.len() - ICRC_LENGTH);
        let mut wrong = icrc(Network::Ipv4, covered);
        add(&mut wrong, number(crc));
        // A change in these four bytes alone affects the CRC multiplied by a power of x; this undoes the
        // multiplication.
        let behind = bits(&covered[FRAGMENTS.end..]) + 32;
        let change = self
            .backward
            .times(u32::from_le_bytes(wrong), u32::MAX - behind)
            .to_le_bytes();
        if change[2] & !DONT_FRAGMENT == 0 && change[3] == 0 {
            add(&mut covered[FRAGMENTS], u32::from_le_bytes(change));
            if let Ok((header, _)) = Ipv4Header::from_slice(covered) {
                let sum = header.calc_header_checksum();
                covered[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
    }
}

/// Returns the number of bits. A datagram has far less than 2³² of them.
fn bits(bytes: &[u8]) -> u32 {
    8 * bytes.len() as u32
}

/// Returns four bytes as a number, in the bit order of the CRC.
fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |sum, &byte| sum << 8 | u32::from(byte))
}

/// Adds the polynomial `change` to the four bytes of `bytes`.
fn add(bytes: &mut [u8], change: u32) {
    for (byte, change) in bytes.iter_mut().zip(change.to_le_bytes()) {
        *byte ^= change;
    }
}

/// A power of x, kept for the next packet because consecutive packets often have the same length.
#[derive(Debug, Default)]
struct Power {
    exponent: u32,
    /// The power; 0, which is not a power, if none has been computed yet.
    value: u32,
}

impl Power {
    /// Returns the product of a polynomial and x to the power of `exponent`.
    fn times(&mut self, factor: u32, exponent: u32) -> u32 {
        if self.value == 0 || self.exponent != exponent {
            *self = Self {
                exponent,
                value: power(exponent),
            };
        }
        product(factor, self.value)
    }
}

/// Returns x to the power of `exponent`.
fn power(mut exponent: u32) -> u32 {
    let (mut result, mut square) = (1 << 31, X);
    while exponent > 0 {
        if exponent & 1 != 0 {
            result = product(result, square);
        }
        square = product(square, square);
        exponent >>= 1;
    }
    result
}

/// Returns the product of two polynomials modulo that of the CRC. Bit 31 is the coefficient of 1, bit 0 that of x³¹.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for bit in (0..32).rev() {
        if a >> bit & 1 != 0 {
            sum ^= b;
        }
        b = (b >> 1) ^ ((b & 1) * POLYNOMIAL);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameError, encode, parse};
    use proptest::prelude::*;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{Body, Payload, Position, SendTail, Service, Touched};
    use vrnic_engine::testing::Memories;
    use vrnic_wire::port::NO_VLAN;

    const FOUR: [&str; 2] = ["192.0.2.1", "192.0.2.7"];
    const SIX: [&str; 2] = ["2001:db8::1", "2001:db8::7"];

    fn path([source, destination]: [&str; 2], source_port: u16) -> Path {
        Path {
            source_mac: [2, 0, 0, 0, 0, 1],
            destination_mac: [2, 0, 0, 0, 0, 2],
            source: gid_of(source.parse().unwrap()),
            destination: gid_of(destination.parse().unwrap()),
            vlan: NO_VLAN,
            traffic_class: 0x6a,
            source_port,
            ..Path::default()
        }
    }

    fn segment(path: Path, length: usize) -> Segment<'static> {
        Segment {
            path,
            source_qpn: 0,
            destination_qpn: 5,
            pkey: 0xffff,
            checksums_ok: false,
            touched: Touched::NOT,
            psn: Psn::new(7),
            solicited: false,
            ack_request: true,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Only,
                tail: SendTail::Plain,
            },
            payload: Payload::Bytes((0..length).map(|byte| byte as u8).collect()),
        }
    }

    use vrnic_engine::Segment;

    fn frame(segment: &Segment<'_>) -> Vec<u8> {
        let mut frame = vec![0; crate::MAX_FRAME];
        let length = encode(segment, &Memories::new().add(0), &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    /// Returns the datagram as received, with headroom in front.
    fn arrived(datagram: &[u8]) -> Vec<u8> {
        [&[0xee; HEADROOM], datagram].concat()
    }

    #[test]
    fn frames_pass_through_sockets() {
        let mut carrier = Carrier::default();
        for (addresses, length, identification) in [
            (FOUR, 0, 0),
            (FOUR, 1, 1),
            (FOUR, 4096, 63),
            (FOUR, 4096, 0xffff),
            (SIX, 0, 9),
            (SIX, 4095, 0),
        ] {
            let mut sent = frame(&segment(path(addresses, 0xc123), length));
            let outline = Outline::of(&sent).unwrap();
            let [source, destination] = addresses.map(|address| address.parse().unwrap());
            assert_eq!((outline.source, outline.destination), (source, destination));
            assert_eq!(outline.traffic_class, 0x6a);
            let once = carrier.datagram(&mut sent, &outline, UDP_PORT, identification);
            assert_eq!(once.len(), outline.length);
            let once = once.to_vec();
            let again = carrier.datagram(&mut sent, &outline, UDP_PORT, identification);
            assert_eq!(again, once);
            let mut buffer = arrived(again);
            let came = carrier
                .frame(&mut buffer, &path(addresses, UDP_PORT))
                .unwrap();
            if addresses == FOUR {
                assert_eq!(came[18..20], identification.to_be_bytes());
            }
            let came = parse(came).unwrap();
            assert_eq!(came.path.source_port, UDP_PORT);
            assert_eq!(came.payload.len() as usize, length);
        }
    }

    #[test]
    fn any_identification_is_found() {
        let mut carrier = Carrier::default();
        let mut original = frame(&segment(path(FOUR, 0xc000), 100));
        for (identification, flags) in [(0u16, 0u8), (1, 0), (0x8000, DONT_FRAGMENT), (0xabcd, 0)] {
            original[18..20].copy_from_slice(&identification.to_be_bytes());
            original[20] = flags;
            crate::testing::seal(&mut original);
            let mut buffer = arrived(&original[42..]);
            let came = carrier.frame(&mut buffer, &path(FOUR, 0xc000)).unwrap();
            assert_eq!(came, original);
        }
        // With the reserved flag, or as a fragment, the packet was never valid.
        original[20] = 0x80;
        crate::testing::seal(&mut original);
        let mut buffer = arrived(&original[42..]);
        let came = carrier.frame(&mut buffer, &path(FOUR, 0xc000)).unwrap();
        assert_eq!(parse(came).unwrap_err(), FrameError::Icrc);
    }

    #[test]
    fn damage_is_not_taken_for_an_identification() {
        let mut carrier = Carrier::default();
        let mut sent = frame(&segment(path(FOUR, 0xc000), 64));
        let outline = Outline::of(&sent).unwrap();
        let datagram = carrier.datagram(&mut sent, &outline, UDP_PORT, 3).to_vec();
        for bit in 0..8 * datagram.len() {
            // These bits may change on the way.
            if bit / 8 == 4 {
                continue;
            }
            let mut buffer = arrived(&datagram);
            buffer[HEADROOM + bit / 8] ^= 1 << (bit % 8);
            let came = carrier.frame(&mut buffer, &path(FOUR, UDP_PORT)).unwrap();
            assert_eq!(parse(came).unwrap_err(), FrameError::Icrc, "bit {bit}");
        }
    }

    #[test]
    fn what_was_damaged_before_stays_so() {
        let mut carrier = Carrier::default();
        for addresses in [FOUR, SIX] {
            let mut sent = frame(&segment(path(addresses, 0xc000), 64));
            let outline = Outline::of(&sent).unwrap();
            let last = sent.len() - 1;
            sent[last] ^= 0x10;
            let mut buffer = arrived(carrier.datagram(&mut sent, &outline, UDP_PORT, 0));
            let came = carrier
                .frame(&mut buffer, &path(addresses, UDP_PORT))
                .unwrap();
            assert_eq!(parse(came).unwrap_err(), FrameError::Icrc);
        }
    }

    #[test]
    fn powers_move_a_crc() {
        let mut power = Power::default();
        for length in [0, 1, 4, 4096, 4096, 65_000] {
            let behind = vec![0x5a; length];
            let crc = |first: u8| crc32fast::hash(&[&[first], behind.as_slice()].concat());
            let change = crc32fast::hash(&[1]) ^ crc32fast::hash(&[9]);
            assert_eq!(power.times(change, bits(&behind)), crc(1) ^ crc(9));
        }
        assert_eq!(super::power(u32::MAX), 1 << 31, "powers repeat");
        assert_eq!(
            product(super::power(u32::MAX - 77), super::power(77)),
            1 << 31
        );
    }

    #[test]
    fn what_no_socket_can_send_has_no_outline() {
        let whole = frame(&segment(path(FOUR, 0xc000), 64));
        for end in 0..whole.len() {
            assert_eq!(Outline::of(&whole[..end]), None, "{end}");
        }
        let padded = [whole.as_slice(), &[0; 9]].concat();
        assert_eq!(Outline::of(&padded), Outline::of(&whole));
        // A tag, a fragment, TCP, another port, another length.
        for (at, value) in [(12, 0x81), (20, 0x20), (21, 1), (23, 6), (37, 1), (39, 1)] {
            let mut other = whole.clone();
            other[at] = value;
            assert_eq!(Outline::of(&other), None, "{at}");
        }
        let version_1 = Path {
            roce_v1: true,
            ..path(SIX, 0)
        };
        assert_eq!(Outline::of(&frame(&segment(version_1, 0))), None);
    }

    #[test]
    fn a_path_of_both_kinds_is_none() {
        let mixed = path([FOUR[0], SIX[0]], 1);
        assert_eq!(
            Carrier::default().frame(&mut [0; HEADROOM + 16], &mixed),
            None
        );
        let long = &mut vec![0; HEADROOM + 65_508];
        assert_eq!(Carrier::default().frame(long, &path(FOUR, 1)), None);
        assert_eq!(Carrier::default().frame(&mut [0; 8], &path(FOUR, 1)), None);
    }

    proptest! {
        #[test]
        fn anything_may_arrive(bytes in prop::collection::vec(any::<u8>(), 0..200), six: bool) {
            let addresses = if six { SIX } else { FOUR };
            let mut buffer = arrived(&bytes);
            let mut carrier = Carrier::default();
            let frame = carrier.frame(&mut buffer, &path(addresses, 1)).unwrap();
            prop_assert!(frame.ends_with(&bytes));
            let _ = parse(frame);
        }

        #[test]
        fn a_guest_may_send_anything(
            change in prop::collection::vec((0..200usize, any::<u8>()), 0..6),
            six: bool,
        ) {
            let addresses = if six { SIX } else { FOUR };
            let mut sent = frame(&segment(path(addresses, 1), 64));
            for (at, value) in change {
                if let Some(byte) = sent.get_mut(at) {
                    *byte = value;
                }
            }
            if let Some(outline) = Outline::of(&sent) {
                Carrier::default().datagram(&mut sent, &outline, 2, 3);
            }
        }
    }
}
