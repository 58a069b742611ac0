// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Measures the cost of a packet with the largest payload on a wire, part by part. Prints one JSON object with the
//! nanoseconds of sender and receiver together.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};
use vrnic_engine::{
    RnicConfig, Segment, Segmentation,
    memory::{GuestAddress, Memory},
    psn::Psn,
    segment::{Body, Path, Payload, Position, SendTail, Service},
    testing::{BASE, GuestView, Memories, QpOptions, Send, World, gid_of},
};
use vrnic_roce::{MAX_FRAME, encode, parse};
use vrnic_wire::{port::Mtu, port::NO_VLAN, work::SendOpcode};

/// Payload of a packet in bytes.
const PAYLOAD: u16 = 4096;

/// Returns the fewest nanoseconds per call of `work`, from the runs that were not disturbed.
fn cost(mut work: impl FnMut()) -> f64 {
    let calls = 2000;
    let mut best = Duration::MAX;
    for _ in 0..100 {
        let start = Instant::now();
        for _ in 0..calls {
            work();
        }
        best = best.min(start.elapsed());
    }
    best.as_secs_f64() * 1e9 / f64::from(calls)
}

fn segment(payload: Payload<'static>) -> Segment<'static> {
    Segment {
        path: Path {
            source: gid_of(0),
            destination: gid_of(1),
            vlan: NO_VLAN,
            ..Path::default()
        },
        source_qpn: 5,
        destination_qpn: 5,
        pkey: 0xffff,
        checksums_ok: false,
        touched: vrnic_engine::segment::Touched::NOT,
        psn: Psn::new(7),
        solicited: false,
        ack_request: false,
        migrated: true,
        service: Service::Reliable,
        body: Body::Send {
            position: Position::Middle,
            tail: SendTail::Plain,
        },
        payload,
    }
}

fn frame_of(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    frame
}

/// Returns the nanoseconds per packet in both engines, including the copy to the receiver's memory.
fn engines() -> f64 {
    const PACKETS: u16 = 256;
    const MESSAGE: usize = PACKETS as usize * PAYLOAD as usize;
    let config = RnicConfig {
        segmentation: Segmentation::PathMtu,
        ..RnicConfig::default()
    };
    let mut world = World::new(2, 2048, &config, 1);
    let mut c = world.connect([0, 1], &QpOptions::default(), MESSAGE, |_, attributes| {
        attributes.path_mtu = Mtu::Mtu4096.raw();
    });
    let mut best = Duration::MAX;
    for wr_id in 0..300 {
        let write = Send::new(wr_id, SendOpcode::Write)
            .rdma(c.mrs[1].iova, c.mrs[1].key)
            .element(c.mrs[0].sge(0, MESSAGE));
        c.send(&mut world, 0, &write);
        let start = Instant::now();
        while world.step() {}
        best = best.min(start.elapsed());
        assert_eq!(c.send_cqs[0].drain().len(), 1);
    }
    best.as_secs_f64() * 1e9 / f64::from(PACKETS)
}

fn main() {
    let memories = Memories::new();
    let view = memories.add(2 * usize::from(PAYLOAD));
    let from = view
        .resolve(GuestAddress(BASE), PAYLOAD.into())
        .expect("memory");
    let long = segment(Payload::Ranges(vec![from]));
    let short = segment(Payload::Empty);
    let mut buffer = vec![0; MAX_FRAME];
    let copy = cost(|| {
        view.read(from, black_box(&mut buffer[..usize::from(PAYLOAD)]))
            .expect("copy");
    });
    let bytes = buffer[..usize::from(PAYLOAD)].to_vec();
    let icrc = cost(|| {
        black_box(crc32fast::hash(black_box(&bytes)));
    });
    let build = cost(|| {
        black_box(encode(black_box(&short), &view, &mut buffer).expect("frame"));
    });
    let frame = frame_of(&short, &view);
    let read = cost(|| {
        black_box(parse(black_box(&frame)).expect("parse").psn);
    });
    let whole_build = cost(|| {
        black_box(encode(black_box(&long), &view, &mut buffer).expect("frame"));
    });
    let frame = frame_of(&long, &view);
    let whole_read = cost(|| {
        black_box(parse(black_box(&frame)).expect("parse").psn);
    });
    let state_machines = (engines() - copy).max(0.0);
    println!(
        "{{\"payload_bytes\": {PAYLOAD}, \"headers_written_ns\": {build:.0}, \"headers_parsed_ns\": {read:.0}, \
         \"icrc_ns\": {:.0}, \"copies_ns\": {:.0}, \"state_machines_ns\": {state_machines:.0}, \
         \"encode_ns\": {whole_build:.0}, \"parse_ns\": {whole_read:.0}, \"icrc_bytes_per_s\": {:.0}}}",
        2.0 * icrc,
        2.0 * copy,
        f64::from(PAYLOAD) * 1e9 / icrc,
    );
}
