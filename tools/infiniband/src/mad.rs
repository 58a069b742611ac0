// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Management datagrams (IBTA volume 1, 13.4, 14.2.1 and 16.1.1).
//!
//! An [`Smp`] is a datagram of subnet management, by LID or along a [directed route](Route). A [`PerformanceMad`] is
//! one of performance management. [`Header::parse`] reads the common header of any other datagram.
//!
//! ```
//! use vrnic_infiniband::{attributes::id, mad::{Method, Route, Smp}};
//!
//! // To the node at the end of the route that leaves this node by port 1 and the next one by port 3.
//! let request = Smp { route: Route::along(&[1, 3]), ..Smp::request(Method::GET, id::NODE_INFO, 0) };
//! let bytes = request.to_bytes();
//! assert_eq!(Smp::parse(&bytes), Ok(request));
//! ```

use crate::{
    Lid,
    attributes::DATA_LENGTH,
    field::{Field, layout, named},
};
use std::{error::Error, fmt};

/// Bytes of a MAD.
pub const MAD_LENGTH: usize = 256;

/// Version of the MAD format.
pub const BASE_VERSION: u8 = 1;
/// Version of the management classes that this crate answers.
pub const CLASS_VERSION: u8 = 1;

/// Bytes of a path. Byte 0 is not used.
pub const PATH_LENGTH: usize = 64;
/// Maximum number of hops of a directed route.
pub const MAX_HOPS: u8 = 63;

/// The permissive LID (4.1.3), which addresses the node at the other end of the link. Directed routes use it.
pub const PERMISSIVE: Lid = 0xffff;

/// Q_Key of general management (10.2.4).
pub const MANAGEMENT_QKEY: u32 = 0x8001_0000;

/// Classes of management (13.4.4).
pub mod class {
    /// Subnet management by LID.
    pub const SUBNET: u8 = 0x01;
    /// Subnet management along a directed route.
    pub const SUBNET_DIRECTED: u8 = 0x81;
    /// Subnet administration.
    pub const ADMINISTRATION: u8 = 0x03;
    /// Performance management.
    pub const PERFORMANCE: u8 = 0x04;
    /// Device administration.
    pub const DEVICE_ADMINISTRATION: u8 = 0x10;
    /// Boot management.
    pub const BOOT: u8 = 0x12;
    /// Pings of OpenIB, one of the vendor classes.
    pub const PING: u8 = 0x32;
    /// System status of OpenIB, one of the vendor classes.
    pub const SYSTEM_STATUS: u8 = 0x33;
    /// First class of the vendor range whose MADs contain the vendor's OUI.
    pub const VENDOR_OUI_FIRST: u8 = 0x30;
    /// Last class of that range.
    pub const VENDOR_OUI_LAST: u8 = 0x4f;
}

named! {
    /// Method of a MAD (13.4.5). The highest bit marks a response.
    Method(u8) {
        /// Read an attribute.
        GET = 0x01,
        /// Write an attribute.
        SET = 0x02,
        /// Report an event.
        TRAP = 0x05,
        /// Acknowledge a trap.
        TRAP_REPRESS = 0x07,
        /// The response to a read or write.
        GET_RESPONSE = 0x81,
    }
}

impl Method {
    /// Returns whether the method is a response.
    pub const fn is_response(self) -> bool {
        self.0 & 0x80 != 0
    }
}

named! {
    /// Result of a request (13.4.7), without the direction bit of directed routes.
    Status(u16) {
        /// Success.
        OK = 0,
        /// The node is busy: try again later.
        BUSY = 1,
        /// The version of the format or of the class is not supported.
        BAD_VERSION = 4,
        /// The method is not supported.
        BAD_METHOD = 8,
        /// The attribute is not supported, or not with this method.
        BAD_ATTRIBUTE = 0xc,
        /// A field of the attribute or the modifier has an invalid value.
        BAD_FIELD = 0x1c,
    }
}

layout! {
    /// The header of all MADs (13.4.2).
    Header {
        /// Version of the format.
        base_version: u8 = 0, 8;
        /// Class of management.
        class: u8 = 8, 8;
        /// Version of the class.
        class_version: u8 = 16, 8;
        /// Method.
        method: Method = 24, 8;
        /// Result.
        status: Status = 32, 16;
        /// Bits whose meaning depends on the class.
        class_specific: u16 = 48, 16;
        /// Transaction ID, by which the sender matches the response.
        transaction: u64 = 64, 64;
        /// Attribute ID.
        attribute: u16 = 128, 16;
        /// Attribute modifier.
        modifier: u32 = 160, 32;
    }
}

/// Byte offset of the vendor's OUI in MADs of the classes from [`class::VENDOR_OUI_FIRST`] on.
pub const OUI_AT: usize = 37;
/// Byte offset of the data in MADs of these classes.
pub const VENDOR_DATA_AT: usize = 40;

/// Bytes of the common header.
pub const HEADER_LENGTH: usize = 24;

impl Header {
    /// Reads the header of a MAD. Returns `None` if `bytes` is not exactly one MAD.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == MAD_LENGTH).then(|| Self::read(bytes))
    }

    /// Creates the header of a request.
    pub fn request(class: u8, method: Method, attribute: u16, modifier: u32) -> Self {
        Self {
            base_version: BASE_VERSION,
            class,
            class_version: CLASS_VERSION,
            method,
            attribute,
            modifier,
            ..Self::default()
        }
    }
}

layout! {
    /// Directed route of a subnet management packet (14.2.1.2), which lists the ports by which it leaves the nodes and
    /// needs no LIDs.
    Route {
        /// The packet is on its way back.
        returning: bool = 32, 1;
        /// Current hop.
        hop_pointer: u8 = 48, 8;
        /// Number of hops.
        hop_count: u8 = 56, 8;
        /// LID of the sender if the packet goes by LID before the directed part, otherwise [`PERMISSIVE`].
        source: Lid = 256, 16;
        /// LID of the destination if the packet goes by LID after the directed part, otherwise [`PERMISSIVE`].
        destination: Lid = 272, 16;
        /// Ports by which the packet leaves the nodes, from index 1 on.
        initial: [u8; 64] = 1024, 512;
        /// Ports by which the packet arrived at the nodes.
        back: [u8; 64] = 1536, 512;
    }
}

impl Route {
    /// Creates a route from this node through these ports. Returns `None` if there are too many.
    pub fn along(ports: &[u8]) -> Option<Self> {
        if ports.len() > MAX_HOPS.into() {
            return None;
        }
        let mut route = Self {
            hop_count: ports.len() as u8,
            source: PERMISSIVE,
            destination: PERMISSIVE,
            ..Self::default()
        };
        route.initial[1..=ports.len()].copy_from_slice(ports);
        Some(route)
    }
}

/// Why bytes are not a MAD of the expected class.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum MadError {
    /// The length is not [`MAD_LENGTH`].
    Length,
    /// The MAD is of another class.
    Class,
}

impl fmt::Display for MadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "a management datagram has 256 bytes",
            Self::Class => "management datagram is of another class",
        })
    }
}

impl Error for MadError {}

/// Bit offset of the management key.
const M_KEY_AT: usize = 24 * 8;
/// Byte offset of the data.
const DATA_AT: usize = 64;
/// The direction bit in the status of a directed route.
const DIRECTION: u16 = 1 << 15;

/// A subnet management packet (14.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Smp {
    /// Common header, without the fields of the directed route.
    pub header: Header,
    /// Management key.
    pub m_key: u64,
    /// Directed route, if the packet has one.
    pub route: Option<Route>,
    /// Data of the attribute.
    pub data: [u8; DATA_LENGTH],
}

impl Smp {
    /// Creates a request by LID. Setting its `route` makes it a directed one.
    pub fn request(method: Method, attribute: u16, modifier: u32) -> Self {
        Self {
            header: Header::request(class::SUBNET, method, attribute, modifier),
            m_key: 0,
            route: None,
            data: [0; DATA_LENGTH],
        }
    }

    /// Returns the response to this request.
    #[must_use]
    pub fn response(&self, status: Status) -> Self {
        let mut response = self.clone();
        response.header.method = Method::GET_RESPONSE;
        response.header.status = status;
        if let Some(route) = &mut response.route {
            route.returning = true;
        }
        response
    }

    /// Reads a subnet management packet.
    ///
    /// # Errors
    ///
    /// The bytes are not a MAD, or not one of subnet management.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let mut header = Header::parse(bytes).ok_or(MadError::Length)?;
        let route = match header.class {
            class::SUBNET => None,
            class::SUBNET_DIRECTED => Some(Route::read(bytes)),
            _ => return Err(MadError::Class),
        };
        if route.is_some() {
            header.class = class::SUBNET;
            header.status.0 &= !DIRECTION;
            header.class_specific = 0;
        }
        let mut data = [0; DATA_LENGTH];
        data.copy_from_slice(&bytes[DATA_AT..DATA_AT + DATA_LENGTH]);
        Ok(Self {
            header,
            m_key: u64::read(bytes, M_KEY_AT, 64),
            route,
            data,
        })
    }

    /// Returns the bytes of the packet.
    pub fn to_bytes(&self) -> [u8; MAD_LENGTH] {
        let mut bytes = [0; MAD_LENGTH];
        self.header.write(&mut bytes);
        self.m_key.write(&mut bytes, M_KEY_AT, 64);
        if let Some(route) = &self.route {
            class::SUBNET_DIRECTED.write(&mut bytes, 8, 8);
            route.write(&mut bytes);
        }
        bytes[DATA_AT..DATA_AT + DATA_LENGTH].copy_from_slice(&self.data);
        bytes
    }
}

/// Bytes of the data of a [`PerformanceMad`].
pub const PERFORMANCE_DATA_LENGTH: usize = MAD_LENGTH - DATA_AT;

/// A MAD of performance management (16.1.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerformanceMad {
    /// Common header.
    pub header: Header,
    /// Data of the attribute.
    pub data: [u8; PERFORMANCE_DATA_LENGTH],
}

impl PerformanceMad {
    /// Creates a request.
    pub fn request(method: Method, attribute: u16) -> Self {
        Self {
            header: Header::request(class::PERFORMANCE, method, attribute, 0),
            data: [0; PERFORMANCE_DATA_LENGTH],
        }
    }

    /// Reads a MAD of performance management.
    ///
    /// # Errors
    ///
    /// The bytes are not a MAD, or not one of performance management.
    pub fn parse(bytes: &[u8]) -> Result<Self, MadError> {
        let header = Header::parse(bytes).ok_or(MadError::Length)?;
        if header.class != class::PERFORMANCE {
            return Err(MadError::Class);
        }
        let mut data = [0; PERFORMANCE_DATA_LENGTH];
        data.copy_from_slice(&bytes[DATA_AT..]);
        Ok(Self { header, data })
    }

    /// Returns the bytes of the MAD.
    pub fn to_bytes(&self) -> [u8; MAD_LENGTH] {
        let mut bytes = [0; MAD_LENGTH];
        self.header.write(&mut bytes);
        bytes[DATA_AT..].copy_from_slice(&self.data);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_directed_request_has_the_standards_layout() {
        let mut request = Smp::request(Method::SET, 0x15, 0x0102_0304);
        request.route = Route::along(&[1, 9]);
        request.m_key = 0x1122_3344_5566_7788;
        request.header.transaction = 0xa1a2_a3a4_a5a6_a7a8;
        request.data[0] = 0xdd;
        let bytes = request.to_bytes();
        assert_eq!(bytes[..8], [1, 0x81, 1, 2, 0, 0, 0, 2]);
        assert_eq!(
            bytes[8..16],
            [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8]
        );
        assert_eq!(bytes[16..24], [0, 0x15, 0, 0, 1, 2, 3, 4]);
        assert_eq!(
            bytes[24..32],
            [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]
        );
        assert_eq!(bytes[32..36], [0xff; 4]);
        assert_eq!((bytes[64], &bytes[128..131]), (0xdd, &[0, 1, 9][..]));
        let response = request.response(Status::BAD_FIELD).to_bytes();
        assert_eq!(
            response[3..6],
            [0x81, 0x80, 0x1c],
            "direction and status share a word"
        );
        assert_eq!(Route::along(&[1; 64]), None);
    }

    proptest! {
        #[test]
        fn what_can_be_read_is_written_and_read_again(bytes in proptest::collection::vec(any::<u8>(), 250..260), class: u8) {
            let mut bytes = bytes;
            bytes[1] = [1, 0x81, 4, class][usize::from(class & 3)];
            match (Header::parse(&bytes), Smp::parse(&bytes), PerformanceMad::parse(&bytes)) {
                (None, smp, mad) => prop_assert_eq!((smp, mad), (Err(MadError::Length), Err(MadError::Length))),
                (Some(header), Ok(smp), Err(MadError::Class)) => {
                    prop_assert!(matches!(header.class, 1 | 0x81));
                    prop_assert_eq!(Smp::parse(&smp.to_bytes()), Ok(smp));
                }
                (Some(header), Err(MadError::Class), mad) => prop_assert_eq!(mad.is_ok(), header.class == 4),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}
