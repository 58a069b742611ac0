// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RoCE frames: [`Segment`](vrnic_engine::Segment)s as bytes on Ethernet, and back.
//!
//! [`encode()`] writes a segment as a frame of RoCE version 2 (IBTA volume 1, annex A17: Ethernet,
//! IPv4 or IPv6, UDP port 4791) or version 1 (annex A16: Ethernet type 0x8915 and a GRH), with or
//! without a VLAN tag. [`parse()`] reads a frame into a segment, or says what is wrong with it. Anybody can
//! send frames, so `parse` trusts nothing: it checks every length, and reads nothing after the addresses
//! before it has checked the invariant CRC.
//!
//! ```text
//! Ethernet  [802.1Q]  IPv4 or IPv6   UDP   BTH  extended headers  payload  pad  ICRC
//! Ethernet  [802.1Q]  GRH                  BTH  extended headers  payload  pad  ICRC
//! ```
//!
//! A program that has a UDP socket and no more sends and receives frames through a [`Carrier`].
//!
//! A frame has no FCS, as is usual for frames in software. This crate does no input or output, and
//! `encode` and `parse` allocate nothing.
//!
//! # Example
//!
//! ```
//! use vrnic_roce::{FrameError, parse};
//!
//! // A request of ARP, as a capture may have it.
//! let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[8, 6], &[0; 46]].concat();
//! match parse(&frame) {
//!     Ok(segment) => println!("to QP {}, PSN {}", segment.destination_qpn, segment.psn.raw()),
//!     Err(FrameError::NotRoce) => println!("another protocol"),
//!     Err(error) => println!("{error}"),
//! }
//! # assert_eq!(parse(&frame).unwrap_err(), FrameError::NotRoce);
//! ```

#![forbid(unsafe_code)]

mod datagram;
mod encode;
mod error;
mod header;
mod icrc;
mod opcode;
mod parse;
mod split;
#[cfg(feature = "testing")]
pub mod testing;

pub use datagram::{Carrier, HEADROOM, Outline, gid_of};
pub use encode::{damage, encode, encode_transport, headers};
pub use error::{EncodeError, FrameError, FrameErrors};
pub use opcode::opcode_name;
pub use parse::{headers_of, parse, parse_transport};
pub use split::split;

use vrnic_wire::port::Mtu;

/// UDP port of RoCE version 2.
pub const UDP_PORT: u16 = 4791;

/// Ethernet type of RoCE version 1.
pub const ETHERNET_TYPE: u16 = 0x8915;

/// Bytes of the longest headers and trailers around a payload: Ethernet with a VLAN tag, IPv6, UDP,
/// BTH, the extended headers of an atomic, pad and ICRC.
pub const MAX_OVERHEAD: usize = 14 + 4 + 40 + 8 + 12 + 28 + 3 + 4;

/// Most bytes of a packet behind the Ethernet header that are not payload, as RoCE drivers reckon them: IPv6, UDP, BTH,
/// the extended headers of an atomic, those of an immediate, ICRC.
const PACKET_OVERHEAD: usize = 40 + 8 + 12 + 28 + 4 + 4;

/// The largest path MTU whose packets fit frames with `link` bytes behind the Ethernet header; the least there is if
/// none does.
pub const fn path_mtu(link: usize) -> Mtu {
    match link.saturating_sub(PACKET_OVERHEAD) {
        4096.. => Mtu::Mtu4096,
        2048.. => Mtu::Mtu2048,
        1024.. => Mtu::Mtu1024,
        512.. => Mtu::Mtu512,
        _ => Mtu::Mtu256,
    }
}

/// Bytes of the longest frame with a payload of the largest path MTU.
pub const MAX_FRAME: usize = vrnic_engine::segment::DATAGRAM_MTU as usize + MAX_OVERHEAD;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_the_path_mtu_fit_the_link() {
        assert_eq!(path_mtu(9000), Mtu::Mtu4096);
        assert_eq!(path_mtu(4192), Mtu::Mtu4096);
        assert_eq!(path_mtu(4191), Mtu::Mtu2048);
        assert_eq!(path_mtu(1500), Mtu::Mtu1024);
        assert_eq!(path_mtu(576), Mtu::Mtu256);
        assert_eq!(path_mtu(0), Mtu::Mtu256);
    }
}
