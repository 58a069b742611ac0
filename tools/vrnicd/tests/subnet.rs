// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests of a real vrnicd on an InfiniBand subnet with one switch. The first guest manages the subnet through QP
//! 0, as software of a VM does. Then the guests exchange messages by LID, and every byte is checked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vrnic::ring::send::Target;
use vrnic_infiniband::attributes::{PortCounters, id};
use vrnic_infiniband::directed::{Place, Step};
use vrnic_infiniband::mad::{MAD_LENGTH, MANAGEMENT_QKEY, Method, PerformanceMad, Route, Smp};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::manager::{self, Manager};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Cq, Mr, Qp, request};
use vrnic_wire::command::{QueryGids, QuerySubnetPort};
use vrnic_wire::completion::{Cqe, LidSource, Status, flags, packet_flags};
use vrnic_wire::event::EventType;
use vrnic_wire::port::{GidEntry, PERMISSIVE_LID};
use vrnic_wire::qp::{QpType, SMI_QPN};
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

/// A guest names its own LIDs as sources, and those of nobody else: requests with other path bits fail, and no packet
/// leaves.
#[test]
fn guests_cannot_forge_a_lid() {
    let (daemon, mut ends, _manager) = subnet().unwrap();
    let forge = |ends: &mut [End; 2]| {
        let [a, b] = ends;
        let cqs = (&mut b.sends, &mut b.receives);
        let mut receiver = Qp::datagrams(QpType::UnreliableDatagram, &mut b.vm, 16, cqs, QKEY)?;
        for _ in 0..8 {
            receiver.push_receive(3, b.mr.sge(MESSAGE, MESSAGE))?;
        }
        receiver.offer(&mut b.vm)?;
        // The LIDs 4 and 5 are those of the sender, 8 and 9 those of the other guest.
        for path_bits in [2, 4, 5, 12, 0xff, 1, 0] {
            let cqs = (&mut a.sends, &mut a.receives);
            let mut qp = Qp::datagrams(QpType::UnreliableDatagram, &mut a.vm, 16, cqs, QKEY)?;
            let lids = LidAddress {
                dlid: 8.into(),
                path_bits,
                ..LidAddress::default()
            };
            let address = AddressVector {
                dmac: lids.to_bytes(),
                ..AddressVector::default()
            };
            let target = Target::Datagram {
                address: &address,
                remote_qpn: receiver.qpn(),
                qkey: QKEY,
            };
            let send = request(SendOpcode::Send, 4, target);
            qp.post(&mut a.vm, &send, a.mr.sge(0, 64))?;
            let cqe = a.sends.wait_any()?;
            ensure!(
                (cqe.status == Status::Success.raw()) == (path_bits < 2),
                "{path_bits}: {cqe:?}"
            );
            if path_bits < 2 {
                let source = LidSource::from_bytes(b.receives.wait()?.source_mac);
                ensure!(source.slid.get() == 4 + u16::from(path_bits), "{source:?}");
            }
        }
        ensure!(b.receives.poll().is_none(), "a forged packet arrived");
        Ok(())
    };
    forge(&mut ends).with_context(|| daemon.log()).unwrap();
}

/// Reads the counters of a port of the switch through a queue pair with the `Q_Key` of management.
fn counters(end: &mut End, qp: &mut Qp, port: u8) -> Result<PortCounters> {
    let mut mad = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
    mad.data[1] = port;
    end.mr.area.memory.write_bytes(0, &mad.to_bytes());
    qp.push_receive(5, end.mr.sge(MESSAGE, GRH_LENGTH + MAD_LENGTH))?;
    qp.offer(&mut end.vm)?;
    let switch = LidAddress {
        dlid: 1.into(),
        ..LidAddress::default()
    };
    let address = AddressVector {
        dmac: switch.to_bytes(),
        ..AddressVector::default()
    };
    let target = Target::Datagram {
        address: &address,
        remote_qpn: 1,
        qkey: MANAGEMENT_QKEY,
    };
    let send = request(SendOpcode::Send, 6, target);
    qp.post(&mut end.vm, &send, end.mr.sge(0, MAD_LENGTH))?;
    sent(end, 6)?;
    let cqe = end.receives.wait()?;
    ensure!(cqe.wr_id.get() == 5, "{cqe:?}");
    let first = MESSAGE + GRH_LENGTH;
    let mad: Vec<u8> = (first..first + MAD_LENGTH)
        .map(|at| end.mr.area.byte(at))
        .collect();
    Ok(PortCounters::read(&PerformanceMad::parse(&mad)?.data))
}

/// A guest that floods the switch with management packets loses some of them, which its port counts. Messages pass
/// meanwhile, and the manager goes on afterwards.
#[test]
fn a_flood_of_management_harms_only_its_sender() {
    const PACKETS: u64 = 512;
    let (daemon, mut ends, mut manager) = subnet().unwrap();
    let mut flood = |ends: &mut [End; 2]| {
        ends[0].address = address(4, [0; 16], false);
        ends[1].address = address(8, [0; 16], false);
        pair::connect(ends, 1, 16)?;
        let [a, b] = ends;
        let cqs = (&mut a.sends, &mut a.receives);
        let mut reader = Qp::datagrams(
            QpType::UnreliableDatagram,
            &mut a.vm,
            16,
            cqs,
            MANAGEMENT_QKEY,
        )?;

        let mut route = Route::along(&[1]).context("a path")?;
        let hca = Place {
            switch: false,
            ports: 1,
        };
        ensure!(route.depart(hca) == Step::Port(1), "{route:?}");
        let smp = Smp {
            route: Some(route),
            ..Smp::request(Method::GET, id::NODE_INFO, 0)
        };
        let mr = Mr::new(&mut b.vm, MAD_LENGTH)?;
        mr.area.memory.write_bytes(0, &smp.to_bytes());
        let mut sends = Cq::new(&mut b.vm, PACKETS as u32, 0)?;
        let mut receives = Cq::new(&mut b.vm, 16, 1)?;
        let cqs = (&mut sends, &mut receives);
        let mut hostile = Qp::datagrams(QpType::Smi, &mut b.vm, PACKETS as u32, cqs, 0)?;
        let anywhere = LidAddress {
            dlid: PERMISSIVE_LID.into(),
            ..LidAddress::default()
        };
        let address = AddressVector {
            dmac: anywhere.to_bytes(),
            ..AddressVector::default()
        };
        let target = Target::Datagram {
            address: &address,
            remote_qpn: SMI_QPN,
            qkey: 0,
        };
        let send = request(SendOpcode::Send, 1, target);

        let deadline = Instant::now() + PATIENCE;
        let mut flooded = 0;
        loop {
            for _ in 0..PACKETS {
                ensure!(hostile.push(&send, mr.sge(0, MAD_LENGTH))?, "no room");
            }
            hostile.ring(&mut b.vm)?;
            flooded += PACKETS;
            a.mr.area.fill(1, 0..MESSAGE);
            b.mr.area.clear(MESSAGE..REGION);
            let write = request(SendOpcode::Write, 7, b.mr.target(MESSAGE));
            a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, MESSAGE))?;
            sent(a, 7)?;
            arrived(b, 1, 0, MESSAGE)?;
            for _ in 0..PACKETS {
                sends.wait()?;
            }
            let counted = counters(a, &mut reader, 2)?;
            let dropped = u64::from(counted.vl15_dropped);
            ensure!(dropped < flooded, "{dropped} of {flooded}");
            if dropped > 0 {
                break;
            }
            ensure!(Instant::now() < deadline, "nothing of {flooded} is dropped");
        }
        ensure!(counters(a, &mut reader, 1)?.vl15_dropped == 0, "at port 1");
        manager.change_port(a, &[1, 2], 1, |info| info.sm_lid = 5)
    };
    flood(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
