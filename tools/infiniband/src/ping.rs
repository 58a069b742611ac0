// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What the servers of `ibping` and `ibsysstat` answer. Their requests have vendor classes of OpenIB (13.4.4), which
//! the standard does not define; the formats are those of infiniband-diags.
//!
//! These servers are software of a machine, not agents of its HCA. The owner of a subnet therefore decides which HCAs
//! answer ([`Subnet::answer_ping`](crate::subnet::Subnet::answer_ping)): those that it only simulates.

use crate::{
    mad::{self, Header, MAD_LENGTH, Method, OUI_AT, Status, VENDOR_DATA_AT, class},
    rmpp::RmppHeader,
};

/// OUI of OpenIB.
pub const OUI: [u8; 3] = [0x00, 0x14, 0x05];

/// Attributes of [`class::SYSTEM_STATUS`].
pub mod attribute {
    /// Empty.
    pub const PING: u16 = 0x10;
    /// Name of the machine.
    pub const HOST: u16 = 0x11;
}

/// Returns the answer of a machine with this name to a management datagram, or `None` if the datagram is not a request
/// for one of the servers. A simulated machine has no processors, so it refuses to list them.
pub fn answer(request: &[u8], name: &[u8]) -> Option<[u8; MAD_LENGTH]> {
    let header = Header::parse(request)?;
    let versions = (header.base_version, header.class_version);
    let known = [class::PING, class::SYSTEM_STATUS].contains(&header.class)
        && versions == (mad::BASE_VERSION, mad::CLASS_VERSION)
        && [Method::GET, Method::SET].contains(&header.method)
        && request.get(OUI_AT..OUI_AT + OUI.len()) == Some(&OUI)
        && !RmppHeader::read(request).active;
    if !known {
        return None;
    }
    let mut answer = [0; MAD_LENGTH];
    answer.copy_from_slice(request);
    let (status, text) = match (header.class, header.attribute) {
        (class::PING, _) | (_, attribute::HOST) => (Status::OK, name),
        (_, attribute::PING) => (Status::OK, &[][..]),
        _ => (Status::BAD_ATTRIBUTE, &[][..]),
    };
    let header = Header {
        method: Method::GET_RESPONSE,
        status,
        ..header
    };
    header.write(&mut answer);
    let data = &mut answer[VENDOR_DATA_AT..];
    data.fill(0);
    // The text ends with a zero.
    let last = data.len() - 1;
    for (to, from) in data[..last].iter_mut().zip(text) {
        *to = *from;
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a request as the programs do.
    fn request(class: u8, attribute: u16) -> [u8; MAD_LENGTH] {
        let mut bytes = [0; MAD_LENGTH];
        let header = Header {
            transaction: 0x1234_5678,
            ..Header::request(class, Method::GET, attribute, 0)
        };
        header.write(&mut bytes);
        bytes[37..40].copy_from_slice(&[0, 0x14, 5]);
        bytes[40..].fill(0xee);
        bytes
    }

    #[test]
    fn a_ping_is_answered_with_the_name() {
        for (class, attribute, text, status) in [
            (0x32, 0, &b"leaf1-h2"[..], 0),
            (0x33, 0x10, b"", 0),
            (0x33, 0x11, b"leaf1-h2", 0),
            // The processors.
            (0x33, 0x12, b"", 0xc),
        ] {
            let request = request(class, attribute);
            let answer = answer(&request, b"leaf1-h2").expect("an answer");
            assert_eq!((answer[3], answer[4], answer[5]), (0x81, 0, status));
            assert_eq!((answer[1], answer[6..40] == request[6..40]), (class, true));
            assert_eq!(answer[40..40 + text.len()], *text);
            assert!(answer[40 + text.len()..].iter().all(|byte| *byte == 0));
        }
        // A name that is too long is cut, and still ends.
        let answer = answer(&request(0x32, 0), &[b'x'; 300]).expect("an answer");
        assert_eq!((answer[254], answer[255]), (b'x', 0));
    }

    #[test]
    fn nothing_else_is_answered() {
        let good = request(0x32, 0);
        assert!(answer(&good, b"").is_some());
        // Base version, class, class version, method, RMPP flags, OUI.
        for (at, value) in [
            (0, 2),
            (1, 0x31),
            (1, 0x34),
            (2, 2),
            (3, 0x81),
            (3, 5),
            (26, 1),
            (39, 6),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(answer(&bad, b""), None, "{at}");
        }
        assert_eq!(answer(&good[..255], b""), None);
        assert_eq!(answer(&[], b""), None);
    }
}
