// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Parses frames into segments.

use crate::{
    ETHERNET_TYPE, UDP_PORT,
    encode::{GRH_NEXT_HEADER, gid_of_ipv4},
    error::FrameError,
    header::{BTH_LENGTH, Bth, ICRC_LENGTH, LOW_24, Reader},
    icrc::{Network, icrc},
    opcode,
};
use etherparse::{
    EtherType, Ethernet2Header, IpNumber, Ipv4Header, Ipv6Header, SingleVlanHeader, UdpHeader,
};
use vrnic_engine::{
    Segment,
    psn::Psn,
    segment::{Body, Path, Payload},
};
use vrnic_wire::port::NO_VLAN;

/// Highest VLAN; 4095 is reserved.
const MAX_VLAN: u16 = 4094;

/// Parses a frame without FCS. Ignores anything after the end that the headers state, such as Ethernet's padding.
///
/// # Errors
///
/// [`FrameError::NotRoce`] for frames of other protocols, and any other error for invalid frames.
pub fn parse(frame: &[u8]) -> Result<Segment<'_>, FrameError> {
    let (transport, path) = read_network(frame)?;
    read_transport(transport, path)
}

/// Returns the transport headers of a frame as they appear there: the base transport header and the extended ones.
///
/// # Errors
///
/// As for [`parse`].
pub fn headers_of(frame: &[u8]) -> Result<&[u8], FrameError> {
    let (transport, path) = read_network(frame)?;
    let segment = read_transport(transport, path)?;
    Ok(&transport[..size_of::<Bth>() + opcode::extended_length(&segment)])
}

/// Reads everything in front of the base transport header and checks the invariant CRC; returns the transport packet,
/// from the base transport header to the pad.
fn read_network(frame: &[u8]) -> Result<(&[u8], Path), FrameError> {
    let (network, packet, path) = read_packet(frame)?;
    let transport = packet.len() - network.length();
    if transport < size_of::<Bth>() + ICRC_LENGTH {
        return Err(FrameError::Truncated);
    }
    if !transport.is_multiple_of(4) {
        return Err(FrameError::Length);
    }
    let (covered, crc) = packet.split_at(packet.len() - ICRC_LENGTH);
    if icrc(network, covered) != crc {
        return Err(FrameError::Icrc);
    }
    Ok((&covered[network.length()..], path))
}

/// Reads everything in front of the base transport header; returns the packet, from the first header after Ethernet's
/// to the invariant CRC.
pub(crate) fn read_packet(frame: &[u8]) -> Result<(Network, &[u8], Path), FrameError> {
    let (ethernet, rest) = Ethernet2Header::from_slice(frame).map_err(|_| FrameError::Truncated)?;
    let mut path = Path {
        source_mac: ethernet.source,
        destination_mac: ethernet.destination,
        vlan: NO_VLAN,
        ..Path::default()
    };
    let (ether_type, rest) = read_tag(ethernet.ether_type, rest, &mut path)?;
    let (network, packet) = match ether_type {
        EtherType::IPV4 => (Network::Ipv4, read_ipv4(rest, &mut path)?),
        EtherType::IPV6 => (Network::Ipv6, read_ipv6(rest, &mut path)?),
        EtherType(ETHERNET_TYPE) => (Network::Grh, read_grh(rest, &mut path)?),
        _ => return Err(FrameError::NotRoce),
    };
    Ok((network, packet, path))
}

/// Reads a VLAN tag, if there is one; returns the type of what follows and the rest.
fn read_tag<'a>(
    ether_type: EtherType,
    rest: &'a [u8],
    path: &mut Path,
) -> Result<(EtherType, &'a [u8]), FrameError> {
    let tagged = |ether_type| {
        matches!(
            ether_type,
            EtherType::VLAN_TAGGED_FRAME
                | EtherType::PROVIDER_BRIDGING
                | EtherType::VLAN_DOUBLE_TAGGED_FRAME
        )
    };
    if ether_type != EtherType::VLAN_TAGGED_FRAME {
        let stacked = tagged(ether_type);
        return if stacked {
            Err(FrameError::Vlan)
        } else {
            Ok((ether_type, rest))
        };
    }
    let (tag, rest) = SingleVlanHeader::from_slice(rest).map_err(|_| FrameError::Truncated)?;
    let vlan = tag.vlan_id.value();
    if vlan > MAX_VLAN || tagged(tag.ether_type) {
        return Err(FrameError::Vlan);
    }
    // VLAN 0 marks a tag that carries only a priority.
    if vlan != 0 {
        path.vlan = vlan;
    }
    path.service_level = tag.pcp.value();
    Ok((tag.ether_type, rest))
}

/// Reads the headers of IPv4 and UDP; returns the packet from the IP header to its end.
fn read_ipv4<'a>(bytes: &'a [u8], path: &mut Path) -> Result<&'a [u8], FrameError> {
    let (header, _) = Ipv4Header::from_slice(bytes).map_err(|error| match error {
        etherparse::err::ipv4::HeaderSliceError::Len(_) => FrameError::Truncated,
        etherparse::err::ipv4::HeaderSliceError::Content(_) => FrameError::IpVersion,
    })?;
    if header.protocol != IpNumber::UDP {
        return Err(FrameError::NotRoce);
    }
    let packet = bytes.get(..header.total_len.into());
    let packet = packet.ok_or(FrameError::Truncated)?;
    let udp = packet.get(header.header_len()..);
    let udp = udp.ok_or(FrameError::Truncated)?;
    if header.more_fragments || header.fragment_offset.value() != 0 {
        // Fragments of other protocols are not errors, but only the first fragment contains the port.
        let first = header.fragment_offset.value() == 0;
        return Err(match first.then(|| read_udp(udp)) {
            Some(Ok(_)) => FrameError::Fragment,
            _ => FrameError::NotRoce,
        });
    }
    let udp_header = read_udp(udp)?;
    if !header.options.is_empty() {
        return Err(FrameError::IpOptions);
    }
    if header.calc_header_checksum() != header.header_checksum {
        return Err(FrameError::IpChecksum);
    }
    check_udp(&udp_header, udp, |payload| {
        udp_header.calc_checksum_ipv4_raw(header.source, header.destination, payload)
    })?;
    path.source = gid_of_ipv4(header.source);
    path.destination = gid_of_ipv4(header.destination);
    path.traffic_class = header.dscp.value() << 2 | header.ecn.value();
    path.hop_limit = header.time_to_live;
    path.source_port = udp_header.source_port;
    Ok(packet)
}

/// Reads the header that IPv6 and GRH share; returns it and the packet from it to its end.
fn read_route<'a>(bytes: &'a [u8], path: &mut Path) -> Result<(Ipv6Header, &'a [u8]), FrameError> {
    let (header, rest) = Ipv6Header::from_slice(bytes).map_err(|error| match error {
        etherparse::err::ipv6::HeaderSliceError::Len(_) => FrameError::Truncated,
        etherparse::err::ipv6::HeaderSliceError::Content(_) => FrameError::IpVersion,
    })?;
    let length = bytes.len() - rest.len() + usize::from(header.payload_length);
    path.source = header.source;
    path.destination = header.destination;
    path.traffic_class = header.traffic_class;
    path.flow_label = header.flow_label.value();
    path.hop_limit = header.hop_limit;
    let packet = bytes.get(..length).ok_or(FrameError::Truncated);
    Ok((header, packet?))
}

/// Reads the headers of IPv6 and UDP; returns the packet from the IP header to its end.
fn read_ipv6<'a>(bytes: &'a [u8], path: &mut Path) -> Result<&'a [u8], FrameError> {
    let (header, packet) = read_route(bytes, path)?;
    if header.next_header != IpNumber::UDP {
        return Err(FrameError::NotRoce);
    }
    let udp = &packet[Ipv6Header::LEN..];
    let udp_header = read_udp(udp)?;
    check_udp(&udp_header, udp, |payload| {
        udp_header.calc_checksum_ipv6_raw(header.source, header.destination, payload)
    })?;
    path.source_port = udp_header.source_port;
    Ok(packet)
}

/// Reads a GRH; returns the packet from it to its end.
fn read_grh<'a>(bytes: &'a [u8], path: &mut Path) -> Result<&'a [u8], FrameError> {
    path.roce_v1 = true;
    let (header, packet) = read_route(bytes, path)?;
    if header.next_header != GRH_NEXT_HEADER {
        return Err(FrameError::NotRoce);
    }
    Ok(packet)
}

/// Reads the header of a UDP datagram to the RoCE port.
fn read_udp(udp: &[u8]) -> Result<UdpHeader, FrameError> {
    let (header, _) = UdpHeader::from_slice(udp).map_err(|_| FrameError::Truncated)?;
    if header.destination_port != UDP_PORT {
        return Err(FrameError::NotRoce);
    }
    Ok(header)
}

/// Checks length and checksum of a UDP datagram.
fn check_udp<E>(
    header: &UdpHeader,
    udp: &[u8],
    checksum: impl FnOnce(&[u8]) -> Result<u16, E>,
) -> Result<(), FrameError> {
    if usize::from(header.length) != udp.len() {
        return Err(FrameError::UdpLength);
    }
    if header.checksum != 0 {
        let expected = checksum(&udp[UdpHeader::LEN..]).map_err(|_| FrameError::UdpLength)?;
        if expected != header.checksum {
            return Err(FrameError::UdpChecksum);
        }
    }
    Ok(())
}

/// Parses a transport packet that came by `path`: `bth` is its base transport header, `rest` what follows it, up to the
/// pad. On networks other than Ethernet, this is what lies between their headers and the invariant CRC, which the
/// caller has checked.
///
/// # Errors
///
/// The packet is invalid.
pub fn parse_transport<'a>(
    bth: &[u8; BTH_LENGTH],
    rest: &'a [u8],
    path: Path,
) -> Result<Segment<'a>, FrameError> {
    read_behind(zerocopy::transmute!(*bth), Reader { rest }, path)
}

/// Parses the transport packet, from the base transport header to the pad.
fn read_transport(bytes: &[u8], path: Path) -> Result<Segment<'_>, FrameError> {
    let mut reader = Reader { rest: bytes };
    read_behind(reader.take()?, reader, path)
}

/// Reads what is behind the base transport header.
fn read_behind(bth: Bth, mut reader: Reader<'_>, path: Path) -> Result<Segment<'_>, FrameError> {
    if bth.flags & Bth::VERSION_MASK != 0 {
        return Err(FrameError::Version);
    }
    let (service, opcode) = opcode::read_service(bth.opcode, &mut reader)?;
    let body = opcode::read_body(opcode, &mut reader)?;
    let length = reader.rest.len().checked_sub(bth.pad());
    let payload = &reader.rest[..length.ok_or(FrameError::Pad)?];
    if !opcode::has_payload(&body) && !reader.rest.is_empty() {
        return Err(FrameError::Payload);
    }
    Ok(Segment {
        path,
        source_qpn: match body {
            Body::Datagram { source_qpn, .. } => source_qpn,
            _ => 0,
        },
        destination_qpn: bth.destination.get() & LOW_24,
        pkey: bth.pkey.get(),
        checksums_ok: false,
        touched: vrnic_engine::segment::Touched::NOT,
        psn: Psn::new(bth.psn.get()),
        solicited: bth.flags & Bth::SOLICITED != 0,
        ack_request: bth.psn.get() & Bth::ACK_REQUEST != 0,
        migrated: bth.flags & Bth::MIGRATED != 0,
        service,
        body,
        payload: if payload.is_empty() {
            Payload::Empty
        } else {
            Payload::Frame(payload)
        },
    })
}
