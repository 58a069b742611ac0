// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queries the nodes of a small subnet, and writes the requests and responses to a pcap file. Its link type is that of
//! InfiniBand, or the one in the second argument, because tshark 4.0 needs one of the user link types.
//!
//! ```sh
//! cargo run -p vrnic-infiniband --example capture -- /tmp/subnet.pcap 147
//! tshark -o 'uat:user_dlts:"User 0 (DLT=147)","infiniband","0","","0",""' -r /tmp/subnet.pcap
//! ```

use std::{env, error::Error, fs, time::Duration};
use vrnic_infiniband::{
    attributes::id,
    mad::{MANAGEMENT_QKEY, Method, PERMISSIVE, PerformanceMad, Route, Smp},
    packet::{Body, Bth, Deth, GRH_NEXT_HEADER, Grh, LINKTYPE_INFINIBAND, Packet},
    subnet::Subnet,
    topology::Topology,
};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let path = arguments
        .next()
        .ok_or("give the path of the file to write")?;
    let link_type = match arguments.next() {
        Some(number) => number.parse()?,
        None => u32::from(LINKTYPE_INFINIBAND),
    };
    let mut subnet = Subnet::new(&Topology::parse(
        "[fat-tree]\nspines = 1\nleaves = 2\nhosts = 2",
    )?);
    subnet.run_until(Duration::from_millis(50));
    let from = subnet.hcas().next().ok_or("there is no HCA")?;
    let mut packets = Vec::new();

    for (path, attribute) in [
        (&[][..], id::NODE_INFO),
        (&[1], id::NODE_INFO),
        (&[1], id::SWITCH_INFO),
        (&[1, 3], id::NODE_DESCRIPTION),
        (&[1, 3, 2], id::LINEAR_FORWARDING),
        (&[1, 3, 2, 1], id::PORT_INFO),
        (&[1, 3, 2, 1], id::PKEY_TABLE),
        (&[1, 3, 2, 1], id::SM_INFO),
    ] {
        let mut request = Smp::request(Method::GET, attribute, 0);
        request.route = Route::along(path);
        request.header.transaction = packets.len() as u64 + 1;
        let bth = Bth {
            pkey: 0xffff,
            ..Bth::default()
        };
        let addresses = (PERMISSIVE, PERMISSIVE);
        packets.push(Packet::datagram(
            addresses,
            0,
            bth,
            Deth::default(),
            &request.to_bytes(),
        ));
        subnet.send_smp(from, &request, PERMISSIVE)?;
        subnet.run_until(subnet.now() + Duration::from_millis(1));
        packets.extend(subnet.receive().map(|(_, packet)| packet));
    }

    // A request of another class, with a global route header.
    let request = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
    let bth = Bth {
        pkey: 0xffff,
        destination_qp: 1,
        ..Bth::default()
    };
    let deth = Deth {
        qkey: MANAGEMENT_QKEY,
        source_qp: 1,
    };
    let mut packet = Packet::datagram((1, 2), 0, bth, deth, &request.to_bytes());
    if let Body::Transport { grh, .. } = &mut packet.body {
        *grh = Some(Grh {
            next_header: GRH_NEXT_HEADER,
            hop_limit: 1,
            source: [1; 16],
            destination: [2; 16],
            ..Grh::default()
        });
    }
    packets.push(packet);

    let mut file = Vec::new();
    for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, 0xffff, link_type] {
        file.extend(u32::to_le_bytes(word));
    }
    for (microseconds, packet) in (0_u32..).zip(&packets) {
        let frame = packet.to_bytes();
        let length = u32::try_from(frame.len())?;
        for word in [0, microseconds, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    fs::write(&path, file)?;
    println!("{} packets in {path}", packets.len());
    Ok(())
}
