// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The kernel writes the headers of packets that leave by a port of kind `udp`, and the invariant CRC covers them. This
//! test checks in a network namespace that the headers are as vrnicd predicts. It is ignored where namespaces may not
//! be created.

use std::collections::HashSet;
use std::env;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, eth, sockopt};
use vrnic_native::daemon::Daemon;
use vrnic_native::pair::End;
use vrnic_native::queues::{Qp, request};
use vrnic_native::vm::gid_of;
use vrnic_roce::{FrameError, parse};
use vrnic_wire::work::SendOpcode;

const NAME: &str = "the_kernel_writes_the_headers_that_the_icrc_covers";
/// Environment variable that tells the process that it is in the namespace.
const INSIDE: &str = "VRNIC_TEST_INSIDE";
/// Commands that create a network with one host, which sends to an address where a second host only listens.
const NETWORK: &str = "ip link add v0 type veth peer name v1
    ip address add 192.0.2.1/24 dev v0
    ip address add 2001:db8::1/64 dev v0 nodad
    ip link set v1 mtu 9000 up
    ip link set v0 mtu 9000 gso_max_segs 1 up
    ip neighbor add 192.0.2.7 lladdr 02:00:00:00:00:07 dev v0
    ip neighbor add 2001:db8::7 lladdr 02:00:00:00:00:07 dev v0";
/// Time without a packet after which the sender has used up its retries.
const SILENCE: Duration = Duration::from_secs(10);
/// Longest time for all packets. It is reached only if one never comes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Size of a write, in bytes, that takes at least as many packets as one message of a socket can hold.
const LENGTH: usize = 1 << 20;
/// Number of packets to check.
const PACKETS: usize = 100;
/// Size of a socket buffer, in bytes, that holds that many packets for a reader that waits for a CPU.
const ROOM: usize = 16 << 20;
/// Number of packets to check if the kernel does not allow such a buffer.
const FEW_PACKETS: usize = 16;

/// Follows libtest's conventions for arguments and output. libtest itself cannot ignore a test at run time.
fn main() -> ExitCode {
    if env::var_os(INSIDE).is_some() {
        inside();
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        println!("{NAME}: test");
        return ExitCode::SUCCESS;
    }
    let mut filters = arguments
        .iter()
        .filter(|argument| !argument.starts_with('-'))
        .peekable();
    if filters.peek().is_some() && !filters.any(|filter| NAME.contains(filter.as_str())) {
        return ExitCode::SUCCESS;
    }
    let in_namespace = |program: &Path| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--net"])
            .arg(program);
        command
    };
    let allowed = in_namespace(Path::new("true"))
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        println!("test {NAME} ... ignored, nobody may make network namespaces here");
        return ExitCode::SUCCESS;
    }
    let program = env::current_exe().expect("this program");
    let status = in_namespace(&program).env(INSIDE, "1").status();
    let passed = status.is_ok_and(|status| status.success());
    println!("test {NAME} ... {}", if passed { "ok" } else { "FAILED" });
    ExitCode::from(u8::from(!passed))
}

/// Runs the test inside the namespace.
fn inside() {
    for command in NETWORK.lines() {
        let words: Vec<_> = command.split_whitespace().collect();
        let status = Command::new(words[0]).args(&words[1..]).status();
        assert!(status.is_ok_and(|status| status.success()), "{command}");
    }
    // The last argument lists the identifications of packets that the kernel segments from one message.
    listen(["192.0.2.1", "192.0.2.7"], eth::IP, 40, &[0, 1, 2]);
    listen(["2001:db8::1", "2001:db8::7"], eth::IPV6, 60, &[]);
}

/// Checks packets from a guest to a peer until there were enough and all identifications in `wanted` have been seen.
/// `checksum` is the offset of the UDP checksum, which the NIC would complete.
fn listen(addresses: [&str; 2], protocol: Protocol, checksum: usize, wanted: &[u16]) {
    let [local, peer] = addresses.map(|address| address.parse::<IpAddr>().expect(address));
    let listener = rustix::net::socket_with(
        AddressFamily::PACKET,
        SocketType::RAW,
        SocketFlags::empty(),
        Some(protocol),
    )
    .expect("a packet socket");
    sockopt::set_socket_timeout(&listener, sockopt::Timeout::Recv, Some(SILENCE))
        .expect("a timeout");
    let enough = match sockopt::set_socket_recv_buffer_size_force(&listener, ROOM) {
        Ok(()) => PACKETS,
        Err(_) => FEW_PACKETS,
    };
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let mut daemon = Daemon::over_udp(program, local, peer, "").expect("vrnicd");
    let mut end = End::at(&mut daemon, local, LENGTH, 16).expect("a guest");
    let mut write = || {
        let mut qp =
            Qp::new(&mut end.vm, 16, &mut end.sends, &mut end.receives).expect("a queue pair");
        qp.connect(&mut end.vm, 7, &gid_of(peer, [2, 0, 0, 0, 0, 7]))
            .expect("a connection");
        let write = request(SendOpcode::Write, 1, end.mr.target(0));
        qp.post(&mut end.vm, &write, end.mr.sge(0, LENGTH))
            .expect("a request");
        qp
    };
    let mut qps = vec![write()];
    let deadline = Instant::now() + PATIENCE;
    let mut found = HashSet::new();
    let mut packets = 0;
    while packets < enough || !wanted.iter().all(|number| found.contains(number)) {
        let mut frame = vec![0; 9100];
        match rustix::net::recv(&listener, &mut frame[..], RecvFlags::empty()) {
            Ok((_, length)) => frame.truncate(length),
            // On a busy machine, the socket may drop packets that are not sent again.
            Err(Errno::AGAIN) if Instant::now() < deadline => {
                qps.push(write());
                continue;
            }
            Err(error) => panic!("no packet: {error}, log: {}", daemon.log()),
        }
        if frame.len() >= checksum + 2 {
            frame[checksum..checksum + 2].fill(0);
        }
        match parse(&frame) {
            Ok(segment) => assert_eq!(segment.destination_qpn, 7),
            Err(FrameError::NotRoce) => continue,
            Err(error) => panic!("{error}: {:02x?}, log: {}", &frame[..80], daemon.log()),
        }
        found.insert(u16::from_be_bytes([frame[18], frame[19]]));
        packets += 1;
    }
}
