// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests of a real vrnicd on an InfiniBand subnet with one switch. The first guest manages the subnet through QP
//! 0, as software of a VM does. Then the guests exchange messages by LID, and every byte is checked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vrnic::ring::send::Target;
use vrnic_infiniband::attributes::{GuidInfo, PKeyTable, PortCounters, PortInfo, id};
use vrnic_infiniband::directed::{Place, Step};
use vrnic_infiniband::mad::{MAD_LENGTH, MANAGEMENT_QKEY, Method, PerformanceMad, Route, Smp};
use vrnic_infiniband::trap::{KeyViolation, Trap};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::manager::{self, Manager};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Cq, Mr, Qp, request};
use vrnic_wire::command::{QueryGids, QueryPkeys, QueryPort, QuerySubnetPort};
use vrnic_wire::completion::{Cqe, LidSource, Status, flags, packet_flags};
use vrnic_wire::event::EventType;
use vrnic_wire::port::{GidEntry, PERMISSIVE_LID};
use vrnic_wire::qp::{QpType, SMI_QPN};
use vrnic_wire::work::{AddressVector, GRH_LENGTH, LidAddress, SendOpcode, lid_flags, send_flags};
use vrnicd::control::client::Client;

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

/// Waits for these events, in any order. Fails if there is another one.
fn hears(end: &mut End, events: &[EventType]) -> Result<()> {
    let mut wanted: Vec<u16> = events.iter().map(|kind| kind.raw()).collect();
    while !wanted.is_empty() {
        let Some(event) = end.vm.async_event(PATIENCE)? else {
            bail!("no event of {events:?}");
        };
        let place = wanted
            .iter()
            .position(|kind| *kind == event.event_type.get());
        wanted.remove(place.with_context(|| format!("{event:?}, not {events:?}"))?);
    }
    Ok(())
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
        let path = &[1, 2];
        manager.change_port(a, path, 1, |info| {
            info.sm_lid = 5;
            info.client_reregister = true;
        })?;
        hears(b, &[EventType::SmChange, EventType::ClientReregister])?;
        let mut pkeys = PKeyTable::default();
        pkeys.keys[..2].copy_from_slice(&[0xffff, 0x8001]);
        manager.set(a, path, (id::PKEY_TABLE, 0), pkeys.to_data())?;
        hears(b, &[EventType::PkeyChange])?;
        let mut guids = GuidInfo::read(&manager.get(a, path, id::GUID_INFO, 0)?);
        guids.guids[1] = 0x1234;
        manager.set(a, path, (id::GUID_INFO, 0), guids.to_data())?;
        hears(b, &[EventType::GidChange])?;
        manager.change_port(a, path, 1, |info| info.lid = 12)?;
        hears(b, &[EventType::LidChange])?;
        ensure!(
            b.vm.async_event(Duration::ZERO)?.is_none(),
            "one more event"
        );
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

/// A datagram with a wrong `P_Key` or `Q_Key` does not arrive. The receiver's port counts it, and tells the subnet
/// manager who sent it.
#[test]
fn wrong_keys_are_counted_and_told() {
    let (daemon, mut ends, mut manager) = subnet().unwrap();
    let mut send_wrong = |ends: &mut [End; 2]| {
        let [a, b] = ends;
        let mut qps = Vec::new();
        for end in [&mut *a, &mut *b] {
            let cqs = (&mut end.sends, &mut end.receives);
            qps.push(Qp::datagrams(
                QpType::UnreliableDatagram,
                &mut end.vm,
                16,
                cqs,
                QKEY,
            )?);
        }
        let [sender, receiver] = &mut qps[..] else {
            bail!("two queue pairs");
        };
        receiver.push_receive(3, b.mr.sge(MESSAGE, MESSAGE))?;
        receiver.offer(&mut b.vm)?;
        let entry = address(8, [0; 16], false);
        let address = AddressVector {
            dmac: entry.mac,
            ..AddressVector::default()
        };
        // First a wrong Q_Key; then the manager takes the P_Key away, and gives it back.
        for (qkey, pkey, arrives) in [
            (QKEY, 0xffff, true),
            (7, 0xffff, false),
            (QKEY, 0x8001, false),
            (QKEY, 0xffff, true),
        ] {
            let mut table = PKeyTable::default();
            table.keys[0] = pkey;
            manager.set(a, &[1, 2], (id::PKEY_TABLE, 0), table.to_data())?;
            let deadline = Instant::now() + PATIENCE;
            let knows = |b: &mut End| {
                let reply = b.vm.execute(&QueryPkeys {
                    port: 1.into(),
                    ..QueryPkeys::default()
                })?;
                anyhow::Ok(reply.pkeys[0].get() == pkey)
            };
            while !knows(b)? {
                ensure!(Instant::now() < deadline, "the port does not get the P_Key");
            }
            let target = Target::Datagram {
                address: &address,
                remote_qpn: receiver.qpn(),
                qkey,
            };
            let send = request(SendOpcode::Send, 4, target);
            sender.post(&mut a.vm, &send, a.mr.sge(0, 64))?;
            sent(a, 4)?;
            if arrives {
                b.receives.wait()?;
                receiver.push_receive(3, b.mr.sge(MESSAGE, MESSAGE))?;
                receiver.offer(&mut b.vm)?;
                continue;
            }
            // Nobody represses the traps, so earlier ones are repeated.
            let details = loop {
                ensure!(Instant::now() < deadline, "the manager is not told");
                match (manager.trap(a)?, pkey) {
                    (Trap::QKey(details), 0xffff) | (Trap::PKey(details), 0x8001) => break details,
                    _ => {}
                }
            };
            let wanted = KeyViolation {
                source: 5,
                destination: 9,
                key: if pkey == 0xffff { 7 } else { 0xffff },
                source_qp: sender.qpn(),
                destination_qp: receiver.qpn(),
                ..details
            };
            ensure!(details == wanted, "{details:?}, not {wanted:?}");
        }
        let port = b.vm.execute(&QueryPort {
            port: 1.into(),
            ..QueryPort::default()
        })?;
        let counted = (port.bad_pkey_count.get(), port.qkey_violation_count.get());
        ensure!(counted == (1, 1), "{port:?}");
        let info = PortInfo::read(&manager.get(a, &[1, 2], id::PORT_INFO, 1)?);
        ensure!(
            (info.p_key_violations, info.q_key_violations) == (1, 1),
            "{info:?}"
        );
        ensure!(
            b.receives.poll().is_none(),
            "a datagram with a wrong key arrived"
        );
        Ok(())
    };
    send_wrong(&mut ends).with_context(|| daemon.log()).unwrap();
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

/// A link that damages bits loses packets. They are sent again, and no damaged byte arrives. The port that receives
/// them counts errors, the more the more bits are damaged.
#[test]
fn damaged_bits_are_counted_and_harm_no_message() {
    const MESSAGES: u8 = 64;
    let (daemon, mut ends, _manager) = subnet().unwrap();
    let exchange = |ends: &mut [End; 2]| {
        ends[0].address = address(4, [0; 16], false);
        ends[1].address = address(8, [0; 16], false);
        pair::connect(ends, 1, 16)?;
        let [a, b] = &mut *ends;
        let cqs = (&mut a.sends, &mut a.receives);
        let kind = QpType::UnreliableDatagram;
        let mut reader = Qp::datagrams(kind, &mut a.vm, 16, cqs, MANAGEMENT_QKEY)?;
        let mut control = Client::connect(&daemon.control())?;
        let mut errors = Vec::new();
        for rate in [0.0, 3e-7, 3e-6] {
            control.set_subnet_link("1", None, Some(rate))?;
            let before = counters(a, &mut reader, 2)?;
            for seed in 0..MESSAGES {
                b.mr.area.fill(seed, 0..MESSAGE);
                a.mr.area.clear(MESSAGE..REGION);
                let write = request(SendOpcode::Write, 7, a.mr.target(MESSAGE));
                b.qps[0].post(&mut b.vm, &write, b.mr.sge(0, MESSAGE))?;
                sent(b, 7)?;
                arrived(a, seed, 0, MESSAGE)?;
            }
            let after = counters(a, &mut reader, 2)?;
            errors.push(after.symbol_errors - before.symbol_errors);
            ensure!(
                (after.receive_errors == before.receive_errors) == (rate == 0.0),
                "{after:?}"
            );
        }
        ensure!(
            errors[0] == 0 && (1..errors[2]).contains(&errors[1]),
            "{errors:?}"
        );
        Ok(())
    };
    exchange(&mut ends).with_context(|| daemon.log()).unwrap();
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
