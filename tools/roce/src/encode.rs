// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Encodes segments as frames.

use crate::{
    ETHERNET_TYPE, UDP_PORT,
    error::EncodeError,
    header::{BTH_LENGTH, Bth, ICRC_LENGTH, LOW_24, Writer},
    icrc::{Network, icrc},
    opcode,
    parse::read_packet,
};
use etherparse::{
    EtherType, Ethernet2Header, IpDscp, IpEcn, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header,
    SingleVlanHeader, UdpHeader, VlanId, VlanPcp,
};
use std::mem::offset_of;
use vrnic_engine::{
    Segment,
    memory::Memory,
    segment::{Body, DATAGRAM_MTU, Damage, Gid, Path, Payload},
};
use vrnic_wire::port::{IPV4_MAPPED, NO_VLAN};

/// Next header of a GRH that is followed by a base transport header.
pub(crate) const GRH_NEXT_HEADER: IpNumber = IpNumber(0x1b);

/// Hop limit of packets whose address vector has 0.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Returns the GID of an IPv4 address.
pub(crate) fn gid_of_ipv4(address: [u8; 4]) -> Gid {
    let mut gid = [0; 16];
    gid[..12].copy_from_slice(&IPV4_MAPPED);
    gid[12..].copy_from_slice(&address);
    gid
}

/// Returns the IPv4 address that a GID stands for.
fn ipv4_of_gid(gid: &Gid) -> Option<[u8; 4]> {
    let [.., a, b, c, d] = *gid;
    gid.starts_with(&IPV4_MAPPED).then_some([a, b, c, d])
}

/// Writes `segment` as a frame to the beginning of `buffer` and returns its length. [`MAX_FRAME`](crate::MAX_FRAME)
/// bytes are enough for any path MTU. Payload in guest memory is read exactly once.
///
/// The UDP checksum is 0, as the standard requires. The VLAN tag carries the service level as its priority. A hop limit
/// of 0 becomes 64.
///
/// # Errors
///
/// The segment cannot be sent; the contents of the buffer are then meaningless.
pub fn encode<M: Memory>(
    segment: &Segment<'_>,
    memory: &M,
    buffer: &mut [u8],
) -> Result<usize, EncodeError> {
    let payload = usize::try_from(segment.payload.len()).map_err(|_| EncodeError::TooLong)?;
    let pad = payload.wrapping_neg() & 3;
    let transport = size_of::<Bth>() + opcode::extended_length(segment) + payload + pad;
    let mut writer = Writer::new(buffer);
    let network = write_network(&segment.path, transport + ICRC_LENGTH, &mut writer)?;
    let start = writer.length() - network.length();
    write_transport(segment, pad, &mut writer)?;
    write_payload(segment, memory, &mut writer)?;
    writer.room(pad)?.fill(0);
    let crc = icrc(network, writer.written(start));
    writer.put(&crc)?;
    Ok(writer.length())
}

/// Writes `segment` as a bare transport packet, around which networks other than Ethernet put their own headers.
/// Returns the base transport header; `rest` becomes what follows it, up to the pad. What was in `rest` does not
/// matter: a vector of about the right length saves clearing.
///
/// # Errors
///
/// The segment cannot be sent; the content of `rest` is then meaningless.
pub fn encode_transport<M: Memory>(
    segment: &Segment<'_>,
    memory: &M,
    rest: &mut Vec<u8>,
) -> Result<[u8; BTH_LENGTH], EncodeError> {
    let payload = usize::try_from(segment.payload.len()).map_err(|_| EncodeError::TooLong)?;
    if payload > DATAGRAM_MTU as usize {
        return Err(EncodeError::TooLong);
    }
    let pad = payload.wrapping_neg() & 3;
    rest.resize(opcode::extended_length(segment) + payload + pad, 0);
    let mut writer = Writer::new(rest);
    opcode::write_extended(segment, &mut writer)?;
    write_payload(segment, memory, &mut writer)?;
    writer.room(pad)?.fill(0);
    Ok(zerocopy::transmute!(bth(segment, pad)?))
}

/// Writes the payload. Each byte of guest memory is read once.
fn write_payload<M: Memory>(
    segment: &Segment<'_>,
    memory: &M,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    match &segment.payload {
        Payload::Empty => {}
        Payload::Bytes(bytes) => writer.put(bytes)?,
        Payload::Frame(bytes) => writer.put(bytes)?,
        Payload::Ranges(ranges) => {
            for range in ranges {
                let length = usize::try_from(range.length).map_err(|_| EncodeError::TooLong)?;
                let room = writer.room(length)?;
                memory
                    .read_payload(*range, room)
                    .map_err(|_| EncodeError::Unmapped)?;
            }
        }
    }
    Ok(())
}

/// Damages a frame as a fault demands.
pub fn damage(frame: &mut Vec<u8>, damage: Option<Damage>) {
    match damage {
        None => {}
        // The frame ends with the ICRC.
        Some(Damage::Icrc) => {
            if let Some(last) = frame.last_mut() {
                *last ^= 1;
            }
        }
        Some(Damage::Cut) => frame.truncate(frame.len().saturating_sub(8)),
        Some(Damage::Version(version)) => change_flags(frame, |flags| flags | version),
        Some(Damage::Pad(pad)) => change_flags(frame, |flags| flags | pad << Bth::PAD_SHIFT),
    }
}

/// Changes the flags of the base transport header of a frame that [`encode`] wrote, and makes its ICRC right again.
fn change_flags(frame: &mut [u8], change: impl FnOnce(u8) -> u8) {
    let Ok((network, packet, _)) = read_packet(frame) else {
        return;
    };
    // The packet is the end of the frame.
    let start = frame.len() - packet.len();
    let flags = &mut frame[start + network.length() + offset_of!(Bth, flags)];
    *flags = change(*flags);
    let end = frame.len() - ICRC_LENGTH;
    let crc = icrc(network, &frame[start..end]);
    frame[end..].copy_from_slice(&crc);
}

/// Returns the transport headers of `segment` as they appear in its frame: the base transport header and the extended
/// ones. `payload` is the length of the payload to assume, regardless of that in the segment.
///
/// # Errors
///
/// The segment cannot be sent.
pub fn headers(segment: &Segment<'_>, payload: u64) -> Result<Vec<u8>, EncodeError> {
    let mut buffer = [0; crate::MAX_OVERHEAD];
    let mut writer = Writer::new(&mut buffer);
    write_transport(segment, payload.wrapping_neg() as usize & 3, &mut writer)?;
    Ok(writer.written(0).to_vec())
}

/// Writes the headers between the network headers and the payload.
fn write_transport(
    segment: &Segment<'_>,
    pad: usize,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    writer.header(bth(segment, pad)?)?;
    opcode::write_extended(segment, writer)
}

fn bth(segment: &Segment<'_>, pad: usize) -> Result<Bth, EncodeError> {
    let notification = matches!(segment.body, Body::CongestionNotification);
    let mut flags = (pad as u8) << Bth::PAD_SHIFT;
    if segment.solicited {
        flags |= Bth::SOLICITED;
    }
    if segment.migrated && !notification {
        flags |= Bth::MIGRATED;
    }
    let mut destination = segment.destination_qpn & LOW_24;
    if notification {
        destination |= Bth::BECN;
    }
    let mut psn = segment.psn.raw();
    if segment.ack_request {
        psn |= Bth::ACK_REQUEST;
    }
    Ok(Bth {
        opcode: opcode::opcode_of(segment)?,
        flags,
        pkey: segment.pkey.into(),
        destination: destination.into(),
        psn: psn.into(),
    })
}

/// Writes everything in front of the base transport header. `length` is the length of everything from there on.
pub(crate) fn write_network(
    path: &Path,
    length: usize,
    writer: &mut Writer<'_>,
) -> Result<Network, EncodeError> {
    let too_long = |_| EncodeError::TooLong;
    let length = u16::try_from(length).map_err(too_long)?;
    let udp_length = length.checked_add(8).ok_or(EncodeError::TooLong)?;
    let hop_limit = match path.hop_limit {
        0 => DEFAULT_HOP_LIMIT,
        limit => limit,
    };
    let ipv6 = |payload_length, next_header| Ipv6Header {
        traffic_class: path.traffic_class,
        flow_label: Ipv6FlowLabel::try_new(path.flow_label & 0xf_ffff).unwrap_or_default(),
        payload_length,
        next_header,
        hop_limit,
        source: path.source,
        destination: path.destination,
    };
    let udp = UdpHeader {
        source_port: path.source_port,
        destination_port: UDP_PORT,
        length: udp_length,
        checksum: 0,
    };
    if path.roce_v1 {
        write_ethernet(path, EtherType(ETHERNET_TYPE), writer)?;
        writer.put(&ipv6(length, GRH_NEXT_HEADER).to_bytes())?;
        return Ok(Network::Grh);
    }
    match (ipv4_of_gid(&path.source), ipv4_of_gid(&path.destination)) {
        (Some(source), Some(destination)) => {
            write_ethernet(path, EtherType::IPV4, writer)?;
            let total_len = udp_length.checked_add(20).ok_or(EncodeError::TooLong)?;
            let mut header = Ipv4Header {
                dscp: IpDscp::try_new(path.traffic_class >> 2).unwrap_or_default(),
                ecn: IpEcn::try_new(path.traffic_class & 3).unwrap_or_default(),
                total_len,
                dont_fragment: true,
                time_to_live: hop_limit,
                protocol: IpNumber::UDP,
                source,
                destination,
                ..Ipv4Header::default()
            };
            header.header_checksum = header.calc_header_checksum();
            writer.put(&header.to_bytes())?;
            writer.put(&udp.to_bytes())?;
            Ok(Network::Ipv4)
        }
        (None, None) => {
            write_ethernet(path, EtherType::IPV6, writer)?;
            writer.put(&ipv6(udp_length, IpNumber::UDP).to_bytes())?;
            writer.put(&udp.to_bytes())?;
            Ok(Network::Ipv6)
        }
        _ => Err(EncodeError::MixedAddresses),
    }
}

fn write_ethernet(
    path: &Path,
    ether_type: EtherType,
    writer: &mut Writer<'_>,
) -> Result<(), EncodeError> {
    let tagged = path.vlan != NO_VLAN;
    let ethernet = Ethernet2Header {
        source: path.source_mac,
        destination: path.destination_mac,
        ether_type: if tagged {
            EtherType::VLAN_TAGGED_FRAME
        } else {
            ether_type
        },
    };
    writer.put(&ethernet.to_bytes())?;
    if tagged {
        let tag = SingleVlanHeader {
            pcp: VlanPcp::try_new(path.service_level & 7).unwrap_or_default(),
            drop_eligible_indicator: false,
            vlan_id: VlanId::try_new(path.vlan & 0xfff).unwrap_or_default(),
            ether_type,
        };
        writer.put(&tag.to_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::FrameError, parse};
    use vrnic_engine::{
        memory::Nowhere,
        psn::Psn,
        segment::{Reth, Service, Touched},
    };

    #[test]
    fn only_what_is_damaged_is_wrong() {
        let address = |last| gid_of_ipv4([10, 0, 0, last]);
        for roce_v1 in [false, true] {
            let path = Path {
                source: address(1),
                destination: address(2),
                vlan: NO_VLAN,
                roce_v1,
                ..Path::default()
            };
            let segment = Segment {
                path,
                source_qpn: 0,
                destination_qpn: 5,
                pkey: 0xffff,
                psn: Psn::new(7),
                solicited: false,
                ack_request: true,
                migrated: true,
                checksums_ok: false,
                service: Service::Reliable,
                body: Body::ReadRequest(Reth {
                    address: 4096,
                    rkey: 9,
                    length: 100,
                }),
                payload: Payload::Empty,
                touched: Touched::NOT,
            };
            for (wrong, error) in [
                (Damage::Icrc, FrameError::Icrc),
                (Damage::Cut, FrameError::Truncated),
                (Damage::Version(1), FrameError::Version),
                (Damage::Version(15), FrameError::Version),
                (Damage::Pad(1), FrameError::Pad),
                (Damage::Pad(3), FrameError::Pad),
            ] {
                let mut frame = vec![0; crate::MAX_FRAME];
                let length = encode(&segment, &Nowhere, &mut frame).unwrap();
                frame.truncate(length);
                assert!(parse(&frame).is_ok());
                damage(&mut frame, Some(wrong));
                assert_eq!(parse(&frame).err(), Some(error), "{wrong:?}");
            }
        }
    }
}
