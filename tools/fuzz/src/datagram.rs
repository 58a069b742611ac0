// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Frames of a hostile guest for a UDP socket, and datagrams of a hostile network.
//!
//! A valid frame must arrive as one with the same contents. A datagram that arrives must become a frame with the same
//! bytes and with headers that tell where it came from.

use vrnic_engine::segment::Path;
use vrnic_roce::{Carrier, HEADROOM, Outline, UDP_PORT, gid_of, parse};
use vrnic_wire::port::NO_VLAN;

/// Returns the path of a datagram that arrives from `outline`'s source.
fn path(outline: &Outline) -> Path {
    Path {
        source: gid_of(outline.source),
        destination: gid_of(outline.destination),
        vlan: NO_VLAN,
        source_port: UDP_PORT,
        ..Path::default()
    }
}

/// Runs one input.
pub fn run(data: &[u8]) {
    let Some((&first, bytes)) = data.split_first() else {
        return;
    };
    let mut carrier = Carrier::default();
    if first & 1 == 0 {
        let address = if first & 2 == 0 { "::1" } else { "127.0.0.1" };
        let gid = address.parse().map(gid_of).expect("address");
        let way = Path {
            source: gid,
            destination: gid,
            vlan: NO_VLAN,
            ..Path::default()
        };
        let mut buffer = [&[0; HEADROOM], bytes].concat();
        if let Some(frame) = carrier.frame(&mut buffer, &way) {
            assert!(frame.ends_with(bytes));
            let _ = parse(frame);
        }
        return;
    }
    let Some(outline) = Outline::of(bytes) else {
        return;
    };
    let mut frame = bytes.to_vec();
    let datagram = carrier.datagram(&mut frame, &outline, UDP_PORT, first.into());
    let mut buffer = [&[0; HEADROOM], datagram].concat();
    let arrived = carrier
        .frame(&mut buffer, &path(&outline))
        .expect("a frame");
    if let Ok(segment) = parse(bytes) {
        let arrived = parse(arrived).expect("a good one");
        assert_eq!(
            (arrived.destination_qpn, arrived.psn, arrived.payload.len()),
            (segment.destination_qpn, segment.psn, segment.payload.len())
        );
    }
}
