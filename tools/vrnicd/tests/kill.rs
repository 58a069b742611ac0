// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Kills the daemon with SIGKILL at hundreds of random moments under load, and checks that a VMM gets exactly one reply
//! to each request.

#![allow(clippy::cast_possible_truncation, reason = "test values are small")]

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::daemon::Daemon;
use common::*;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use vrnicd::vfio_user::message::{Header, RegionAccess, command};
use zerocopy::{FromBytes, IntoBytes};

const ROUNDS: u64 = 300;

/// Ids and lengths of the expected replies, in order.
type Replies = Vec<(u16, usize)>;

fn message(id: u16, command: u16, body: &[u8], posted: bool) -> Vec<u8> {
    let header = Header::request(id, command, body.len(), posted);
    [header.as_bytes(), body].concat()
}

/// Sends doorbells with reads between them, and incomplete messages, until some time after the daemon is gone. The last
/// request is a DEVICE_RESET.
fn load(mut socket: &UnixStream, random: &mut ChaCha8Rng, gone: &AtomicBool) -> Replies {
    let (mut wanted, mut id, mut left) = (Replies::new(), 1u16, 20);
    while left > 0 {
        let mut bytes = Vec::new();
        for _ in 0..=random.next_u32() % 40 {
            id = id.wrapping_add(1);
            let (region, count, posted) = match random.next_u32() % 100 {
                0..80 => (BAR4, 4, true),
                80..98 => (BAR0, 1, false),
                _ => (BAR4, 1 + random.next_u32() % 30_000, false),
            };
            let access = RegionAccess {
                offset: if region == BAR0 { 0x14 } else { 0 },
                region,
                count,
            };
            if posted {
                let body = [access.as_bytes(), &[0; 4]].concat();
                bytes.extend(message(id, command::REGION_WRITE, &body, true));
            } else {
                wanted.push((id, 32 + count as usize));
                bytes.extend(message(id, command::REGION_READ, access.as_bytes(), false));
            }
        }
        let piece = 1 + random.next_u32() as usize % (2 * bytes.len());
        for piece in bytes.chunks(piece) {
            socket.write_all(piece).unwrap();
        }
        if gone.load(Ordering::SeqCst) {
            left -= 1;
        }
    }
    id = id.wrapping_add(1);
    wanted.push((id, 16));
    let last = message(id, command::DEVICE_RESET, &[], false);
    socket.write_all(&last).unwrap();
    wanted
}

/// Reads replies up to that of the DEVICE_RESET. Also returns how many of them came from the dead device.
fn replies(mut socket: &UnixStream) -> (Replies, usize) {
    let (mut replies, mut dead) = (Replies::new(), 0);
    loop {
        let mut header = [0; Header::LEN];
        socket.read_exact(&mut header).expect("a reply is missing");
        let header = Header::read_from_bytes(&header).unwrap();
        let size = header.size as usize;
        assert!(
            !header.is_command() && (Header::LEN..100_000).contains(&size),
            "{header:?}"
        );
        let mut body = vec![0; size - Header::LEN];
        socket.read_exact(&mut body).unwrap();
        replies.push((header.id, size));
        match body.get(16..) {
            Some([first, rest @ ..]) => {
                assert!(rest.iter().all(|byte| byte == first), "torn reply");
                dead += usize::from(*first == 0xff);
            }
            _ if header.command == command::DEVICE_RESET => return (replies, dead),
            _ => panic!("empty reply {header:?}"),
        }
    }
}

#[test]
fn every_request_is_answered_once_whenever_the_daemon_is_killed() {
    let (mut alive, mut dead) = (0, 0);
    for round in 0..ROUNDS {
        let mut daemon = Daemon::start();
        let socket = daemon.connect("a").into_stream();
        let mut random = ChaCha8Rng::seed_from_u64(round);
        let moment = Duration::from_micros(u64::from(random.next_u32() % 3000));
        let gone = AtomicBool::new(false);
        let (wanted, (got, from_dead)) = std::thread::scope(|scope| {
            let reader = scope.spawn(|| replies(&socket));
            let writer = scope.spawn(|| load(&socket, &mut random, &gone));
            std::thread::sleep(moment);
            daemon.process.kill().unwrap();
            daemon.process.wait().unwrap();
            gone.store(true, Ordering::SeqCst);
            (writer.join().unwrap(), reader.join().unwrap())
        });
        assert!(
            wanted == got,
            "round {round}: {} requests, {} replies, first difference at {:?}",
            wanted.len(),
            got.len(),
            wanted
                .iter()
                .zip(&got)
                .position(|(wanted, got)| wanted != got)
        );
        dead += from_dead;
        alive += got.len() - from_dead;
    }
    assert!(
        alive > 1000 && dead > 1000,
        "both answered: {alive}, {dead}"
    );
}
