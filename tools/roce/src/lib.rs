// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! RoCE frames: converts [`Segment`](vrnic_engine::Segment)s to bytes on Ethernet and back.
//!
//! [`encode()`] writes a segment as a frame of RoCE version 2 (IBTA volume 1, annex A17: Ethernet, IPv4 or IPv6, UDP
//! port 4791) or version 1 (annex A16: Ethernet type 0x8915 and a GRH), with or without a VLAN tag. [`parse()`] parses
//! a frame into a segment, or returns what is wrong with it. Frames may come from anywhere, so `parse` trusts nothing:
//! it checks every length, and checks the invariant CRC before it reads anything after the addresses.
//!
//! ```text
//! Ethernet  [802.1Q]  IPv4 or IPv6   UDP   BTH  extended headers  payload  pad  ICRC
//! Ethernet  [802.1Q]  GRH                  BTH  extended headers  payload  pad  ICRC
//! ```
//!
//! A program that only has a UDP socket sends and receives frames through a [`Carrier`].
//!
//! Frames have no FCS, as is usual in software. This crate does no I/O, and `encode` and `parse` allocate nothing.
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

/// Length of the longest headers and trailers around a payload: Ethernet with a VLAN tag, IPv6, UDP, BTH, the extended
/// headers of an atomic, pad and ICRC.
pub const MAX_OVERHEAD: usize = 14 + 4 + 40 + 8 + 12 + 28 + 3 + 4;

/// Largest part of a packet after the Ethernet header that is not payload, as RoCE drivers calculate it: IPv6, UDP,
/// BTH, the extended headers of an atomic, those of an immediate, ICRC.
const PACKET_OVERHEAD: usize = 40 + 8 + 12 + 28 + 4 + 4;

/// Returns the largest path MTU whose packets fit frames with `link` bytes after the Ethernet header; if there is none,
/// the smallest path MTU.
pub const fn path_mtu(link: usize) -> Mtu {
    match link.saturating_sub(PACKET_OVERHEAD) {
        4096.. => Mtu::Mtu4096,
        2048.. => Mtu::Mtu2048,
        1024.. => Mtu::Mtu1024,
        512.. => Mtu::Mtu512,
        _ => Mtu::Mtu256,
    }
}

/// Length of the longest frame with a payload of the largest path MTU.
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
