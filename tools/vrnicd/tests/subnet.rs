// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests of a real vrnicd on an InfiniBand subnet with one switch. The first guest manages the subnet through QP
//! 0, as software of a VM does. Then the guests exchange messages by LID, and every byte is checked.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use vrnic::ring::send::Target;
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::manager::{self, Manager};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Qp, request};
use vrnic_wire::command::{QueryGids, QuerySubnetPort};
use vrnic_wire::completion::{Cqe, LidSource, flags, packet_flags};
use vrnic_wire::event::EventType;
use vrnic_wire::port::GidEntry;
use vrnic_wire::qp::QpType;
use vrnic_wire::work::{AddressVector, GRH_LENGTH, LidAddress, SendOpcode, lid_flags, send_flags};

/// Bytes of each region, which has the data to send followed by the received data.
const REGION: usize = 2 * MESSAGE;
const MESSAGE: usize = 65536;
const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 4097, 65536 - 5];
/// How long the subnet may take for an operation.
const PATIENCE: Duration = Duration::from_secs(120);
const QKEY: u32 = 0x1111_1111;

fn gid(end: &mut End) -> Result<[u8; 16]> {
    let reply = end.vm.execute(&QueryGids {
        port: 1.into(),
        ..QueryGids::default()
    })?;
    let gid = reply.gids.first_chunk().context("a GID")?;
    Ok(*gid)
}

/// Returns the address of an end at its second LID, as seen from the second LID of the sender.
fn address(lid: u16, gid: [u8; 16], global: bool) -> GidEntry {
    let lids = LidAddress {
        dlid: (lid + 1).into(),
        path_bits: 1,
        flags: if global { lid_flags::GRH } else { 0 },
        ..LidAddress::default()
    };
    GidEntry {
        gid: if global { gid } else { [0; 16] },
        mac: lids.to_bytes(),
        ..GidEntry::default()
    }
}

/// Starts a subnet with two guests, and brings it up.
fn subnet() -> Result<(Daemon, [End; 2], Manager)> {
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let mut daemon = Daemon::start(program, Fabric::Infiniband, 2)?;
    let mut ends = pair::guests(&mut daemon, 0, REGION, 256)?;
    let manager = manager::manage(&mut ends, 2).with_context(|| daemon.log())?;
    Ok((daemon, ends, manager))
}

fn sent(end: &mut End, wr_id: u64) -> Result<Cqe> {
    let cqe = end.sends.wait()?;
    ensure!(cqe.wr_id.get() == wr_id, "{cqe:?}");
    Ok(cqe)
}

/// Fills the data to send, and clears the received data.
fn prepare(ends: &[End; 2], seed: u8) {
    for end in ends {
        end.mr.area.fill(seed, 0..MESSAGE);
        end.mr.area.clear(MESSAGE..REGION);
    }
}

/// Checks that the receiver has the sender's pattern, `skip` bytes into the received data.
fn arrived(receiver: &End, seed: u8, skip: usize, length: usize) -> Result<()> {
    let wrong = (receiver.mr.area).difference(seed, MESSAGE + skip, length);
    ensure!(wrong.is_none(), "byte {wrong:?} of {length} is wrong");
    Ok(())
}

#[test]
fn guests_on_a_subnet_exchange_messages() {
    let (daemon, mut ends, _manager) = subnet().unwrap();
    let exchange = |ends: &mut [End; 2]| {
        let gids = [gid(&mut ends[0])?, gid(&mut ends[1])?];
        ensure!(gids[0] != gids[1] && gids[0] != [0; 16], "{gids:?}");
        for global in [false, true] {
            ends[0].address = address(4, gids[0], global);
            ends[1].address = address(8, gids[1], global);
            pair::connect(ends, 1, 16)?;
            for (seed, length) in (1..).zip(LENGTHS) {
                prepare(ends, seed);
                let [a, b] = ends;
                let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
                a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, length))?;
                sent(a, 7)?;
                arrived(b, seed, 0, length)?;
                let read = request(SendOpcode::Read, 8, b.mr.target(0));
                a.qps[0].post(&mut a.vm, &read, a.mr.sge(MESSAGE, length))?;
                sent(a, 8)?;
                arrived(a, seed, 0, length)?;
                prepare(ends, seed);
                let [a, b] = ends;
                b.qps[0].push_receive(9, b.mr.sge(MESSAGE, MESSAGE))?;
                b.qps[0].offer(&mut b.vm)?;
                let send = request(SendOpcode::Send, 9, Target::Peer);
                a.qps[0].post(&mut a.vm, &send, a.mr.sge(0, length))?;
                sent(a, 9)?;
                let cqe = b.receives.wait()?;
                ensure!(cqe.byte_length.get() as usize == length, "{cqe:?}");
                arrived(b, seed, 0, length)?;
            }
            pair::disconnect(ends)?;
        }
        Ok(())
    };
    exchange(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn guests_on_a_subnet_exchange_datagrams() {
    let (daemon, mut ends, _manager) = subnet().unwrap();
    let exchange = |ends: &mut [End; 2]| {
        let to = gid(&mut ends[1])?;
        for end in ends.iter_mut() {
            let cqs = (&mut end.sends, &mut end.receives);
            let qp = Qp::datagrams(QpType::UnreliableDatagram, &mut end.vm, 16, cqs, QKEY)?;
            end.qps.push(qp);
        }
        for (seed, (global, length)) in (1..).zip([(false, 1), (true, 4096), (false, 4096)]) {
            prepare(ends, seed);
            let [a, b] = ends;
            b.qps[0].push_receive(3, b.mr.sge(MESSAGE, MESSAGE))?;
            b.qps[0].offer(&mut b.vm)?;
            let entry = address(8, to, global);
            let address = AddressVector {
                dgid: entry.gid,
                dmac: entry.mac,
                ..AddressVector::default()
            };
            let target = Target::Datagram {
                address: &address,
                remote_qpn: b.qps[0].qpn(),
                qkey: QKEY,
            };
            let send = request(SendOpcode::Send, 4, target);
            a.qps[0].post(&mut a.vm, &send, a.mr.sge(0, length))?;
            sent(a, 4)?;
            let cqe = b.receives.wait()?;
            ensure!(
                cqe.byte_length.get() as usize == GRH_LENGTH + length,
                "{cqe:?}"
            );
            let source = LidSource::from_bytes(cqe.source_mac);
            ensure!(
                (source.slid.get(), source.path_bits) == (5, 1),
                "{source:?}"
            );
            let grh = if global { flags::GRH } else { 0 };
            ensure!(cqe.flags == flags::SOURCE_LID | grh, "{cqe:?}");
            arrived(b, seed, GRH_LENGTH, length)?;
        }
        Ok(())
    };
    exchange(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn datagrams_of_ip_over_infiniband_have_checksums() {
    let mut packet = Vec::new();
    etherparse::PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64)
        .udp(1, 2)
        .write(&mut packet, &[7; 1001])
        .unwrap();
    let right = [&[8, 0, 0, 0], &packet[..]].concat();
    let mut wrong = right.clone();
    wrong[4 + 10..4 + 12].fill(0);
    wrong[24 + 6..24 + 8].fill(0x55);

    let (daemon, mut ends, _manager) = subnet().unwrap();
    let exchange = |ends: &mut [End; 2]| {
        let to = gid(&mut ends[1])?;
        for end in ends.iter_mut() {
            let cqs = (&mut end.sends, &mut end.receives);
            let qp = Qp::datagrams(QpType::UnreliableDatagram, &mut end.vm, 16, cqs, QKEY)?;
            end.qps.push(qp);
        }
        let [a, b] = ends;
        let entry = address(8, to, true);
        let address = AddressVector {
            dgid: entry.gid,
            dmac: entry.mac,
            ..AddressVector::default()
        };
        for (sent, flags, arrived) in [
            (&right, 0, &right),
            (&wrong, 0, &wrong),
            (&wrong, send_flags::CHECKSUMS, &right),
        ] {
            b.qps[0].push_receive(3, b.mr.sge(0, MESSAGE))?;
            b.qps[0].offer(&mut b.vm)?;
            a.mr.area.memory.write_bytes(0, sent);
            let target = Target::Datagram {
                address: &address,
                remote_qpn: b.qps[0].qpn(),
                qkey: QKEY,
            };
            let mut send = request(SendOpcode::Send, 4, target);
            send.flags |= flags;
            a.qps[0].post(&mut a.vm, &send, a.mr.sge(0, sent.len()))?;
            self::sent(a, 4)?;
            let cqe = b.receives.wait()?;
            let wanted = if arrived == &right {
                packet_flags::CHECKSUMS_OK
            } else {
                0
            };
            ensure!(cqe.packet_flags == wanted, "{cqe:?}");
            let got = (GRH_LENGTH..GRH_LENGTH + sent.len()).map(|at| b.mr.area.byte(at));
            ensure!(got.eq(arrived.iter().copied()), "other bytes arrived");
        }
        Ok(())
    };
    exchange(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn guests_hear_what_a_subnet_manager_does() {
    let (daemon, mut ends, mut manager) = subnet().unwrap();
    let mut hear = |ends: &mut [End; 2]| {
        let [a, b] = ends;
        let port = b.vm.execute(&QuerySubnetPort {
            port: 1.into(),
            ..QuerySubnetPort::default()
        })?;
        ensure!(
            (port.lid.get(), port.lmc, port.sm_lid.get()) == (8, 1, 4),
            "{port:?}"
        );
        while b.vm.async_event(Duration::ZERO)?.is_some() {}
        manager.change_port(a, &[1, 2], 1, |info| {
            info.sm_lid = 5;
            info.client_reregister = true;
        })?;
        let mut wanted = vec![EventType::SmChange, EventType::ClientReregister];
        while !wanted.is_empty() {
            let Some(event) = b.vm.async_event(PATIENCE)? else {
                bail!("no event of {wanted:?}");
            };
            wanted.retain(|kind| kind.raw() != event.event_type.get());
        }
        Ok(())
    };
    hear(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
