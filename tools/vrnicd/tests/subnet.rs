// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests of a real vrnicd on an InfiniBand subnet, joined by a switch. The first one manages the subnet through
//! its queue pair 0, as software of a VM does, and then both exchange messages by LID, every byte checked.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vrnic::ring::send::Target;
use vrnic_infiniband::attributes::{
    LinearForwarding, NodeInfo, NodeType, PhysicalState, PortInfo, PortState, SwitchInfo, id,
};
use vrnic_infiniband::directed::{Place, Step};
use vrnic_infiniband::mad::{MAD_LENGTH, Method, Route, Smp, Status};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Cq, Mr, Qp, request};
use vrnic_wire::command::{MadResult, ProcessMad, QueryGids, QueryPort, QuerySubnetPort};
use vrnic_wire::completion::{Cqe, LidSource, flags};
use vrnic_wire::event::EventType;
use vrnic_wire::port::{GidEntry, PERMISSIVE_LID};
use vrnic_wire::qp::{QpType, SMI_QPN};
use vrnic_wire::work::{AddressVector, GRH_LENGTH, LidAddress, SendOpcode, lid_flags};

/// Bytes of each region: what is sent, and behind it what is received.
const REGION: usize = 2 * MESSAGE;
const MESSAGE: usize = 65536;
const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 4097, 65536 - 5];
/// How long the subnet may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(20);
const QKEY: u32 = 0x1111_1111;
/// Bytes of a receive of a management datagram.
const RECEIVE: usize = GRH_LENGTH + MAD_LENGTH;

/// An HCA as a directed route sees it.
const HCA: Place = Place {
    switch: false,
    ports: 1,
};

/// What a guest has to manage the subnet.
struct Manager {
    qp: Qp,
    sends: Cq,
    receives: Cq,
    mr: Mr,
    transaction: u64,
}

impl Manager {
    fn new(end: &mut End) -> Result<Self> {
        let vm = &mut end.vm;
        let mut sends = Cq::new(vm, 16, 0)?;
        let mut receives = Cq::new(vm, 16, 1)?;
        let mr = Mr::new(vm, 2 * RECEIVE)?;
        let cqs = (&mut sends, &mut receives);
        let mut qp = Qp::datagrams(QpType::Smi, vm, 8, cqs, 0)?;
        ensure!(qp.qpn() == SMI_QPN, "QP {}", qp.qpn());
        qp.push_receive(0, mr.sge(RECEIVE, RECEIVE))?;
        qp.offer(vm)?;
        Ok(Self {
            qp,
            sends,
            receives,
            mr,
            transaction: 1,
        })
    }

    /// Asks the node at the end of a path, or the own one.
    fn ask(&mut self, end: &mut End, path: &[u8], mut smp: Smp) -> Result<[u8; 64]> {
        self.transaction += 1;
        smp.header.transaction = self.transaction;
        let response = if path.is_empty() {
            let reply = end.vm.execute(&ProcessMad {
                port: 1.into(),
                flags: 0.into(),
                slid: PERMISSIVE_LID.into(),
                service_level: 0,
                reserved: [0; 5],
                mad: smp.to_bytes(),
            })?;
            ensure!(reply.result.get() == MadResult::Answered.raw(), "no answer");
            Smp::parse(&reply.mad)?
        } else {
            let mut route = Route::along(path).context("a path")?;
            // As the software of a node at which a route begins.
            ensure!(route.depart(HCA) == Step::Port(1), "{path:?}");
            smp.route = Some(route);
            self.exchange(end, &smp)?
        };
        ensure!(
            response.header.status == Status::OK,
            "{:?}",
            response.header
        );
        Ok(response.data)
    }

    /// Sends a datagram and waits for its response.
    fn exchange(&mut self, end: &mut End, smp: &Smp) -> Result<Smp> {
        for (at, byte) in smp.to_bytes().into_iter().enumerate() {
            self.mr.area.memory.write_bytes(at, &[byte]);
        }
        let address = AddressVector {
            dmac: LidAddress {
                dlid: PERMISSIVE_LID.into(),
                ..LidAddress::default()
            }
            .to_bytes(),
            ..AddressVector::default()
        };
        let target = Target::Datagram {
            address: &address,
            remote_qpn: SMI_QPN,
            qkey: 0,
        };
        let send = request(SendOpcode::Send, 1, target);
        self.qp
            .post(&mut end.vm, &send, self.mr.sge(0, MAD_LENGTH))?;
        self.sends.wait()?;
        loop {
            let cqe = self.receives.wait()?;
            ensure!(cqe.byte_length.get() as usize == RECEIVE, "{cqe:?}");
            let mad: Vec<u8> = (RECEIVE + GRH_LENGTH..2 * RECEIVE)
                .map(|at| self.mr.area.byte(at))
                .collect();
            self.qp.push_receive(0, self.mr.sge(RECEIVE, RECEIVE))?;
            self.qp.offer(&mut end.vm)?;
            let mut response = Smp::parse(&mad)?;
            // Traps, which nobody answers, may come as well.
            if response.header.transaction != self.transaction {
                continue;
            }
            let route = response.route.as_mut().context("a directed route")?;
            ensure!(route.hop_pointer == 1, "it is as it arrived: {route:?}");
            ensure!(route.arrive(1, HCA) == Step::Here, "{route:?}");
            return Ok(response);
        }
    }

    fn get(
        &mut self,
        end: &mut End,
        path: &[u8],
        attribute: u16,
        modifier: u32,
    ) -> Result<[u8; 64]> {
        self.ask(end, path, Smp::request(Method::GET, attribute, modifier))
    }

    fn set(
        &mut self,
        end: &mut End,
        path: &[u8],
        (attribute, modifier): (u16, u32),
        data: [u8; 64],
    ) -> Result<[u8; 64]> {
        let request = Smp::request(Method::SET, attribute, modifier);
        self.ask(end, path, Smp { data, ..request })
    }

    fn change_port(
        &mut self,
        end: &mut End,
        path: &[u8],
        port: u8,
        change: impl Fn(&mut PortInfo),
    ) -> Result<()> {
        let data = self.get(end, path, id::PORT_INFO, port.into())?;
        let mut info = PortInfo::read(&data);
        info.state = PortState::NO_CHANGE;
        info.physical_state = PhysicalState::NO_CHANGE;
        change(&mut info);
        self.set(end, path, (id::PORT_INFO, port.into()), info.to_data())?;
        Ok(())
    }

    /// Makes a subnet of two HCAs, at ports 1 and 2 of a switch, work. They get the LIDs 4 to 5 and 8 to 9.
    fn sweep(&mut self, end: &mut End) -> Result<()> {
        let switch = NodeInfo::read(&self.get(end, &[1], id::NODE_INFO, 0)?);
        ensure!(
            (switch.kind, switch.local_port) == (NodeType::SWITCH, 1),
            "{switch:?}"
        );
        let data = self.get(end, &[1], id::SWITCH_INFO, 0)?;
        let info = SwitchInfo {
            linear_top: 9,
            ..SwitchInfo::read(&data)
        };
        self.set(end, &[1], (id::SWITCH_INFO, 0), info.to_data())?;
        let mut ports = [0xff; 64];
        (ports[1], ports[4], ports[5], ports[8], ports[9]) = (0, 1, 1, 2, 2);
        let table = LinearForwarding { ports };
        self.set(end, &[1], (id::LINEAR_FORWARDING, 0), table.to_data())?;
        self.change_port(end, &[1], 0, |info| (info.lid, info.sm_lid) = (1, 4))?;
        let hcas: [(&[u8], u16); 2] = [(&[], 4), (&[1, 2], 8)];
        for (path, lid) in hcas {
            self.change_port(end, path, 1, |info| {
                (info.lid, info.lmc, info.sm_lid) = (lid, 1, 4);
            })?;
        }
        for state in [PortState::ARMED, PortState::ACTIVE] {
            let ports: [(&[u8], u8); 4] = [(&[], 1), (&[1], 1), (&[1], 2), (&[1, 2], 1)];
            for (path, port) in ports {
                // The first packet that comes makes an armed port active.
                let now = PortInfo::read(&self.get(end, path, id::PORT_INFO, port.into())?);
                if now.state < state {
                    self.change_port(end, path, port, |info| info.state = state)?;
                }
            }
        }
        Ok(())
    }
}

/// Waits until the port has a state.
fn wait_for_state(end: &mut End, state: vrnic_wire::port::PortState) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let port = end.vm.execute(&QueryPort {
            port: 1.into(),
            ..QueryPort::default()
        })?;
        if port.state == state.raw() {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "the port is in state {}",
            port.state
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn gid(end: &mut End) -> Result<[u8; 16]> {
    let reply = end.vm.execute(&QueryGids {
        port: 1.into(),
        ..QueryGids::default()
    })?;
    let gid = reply.gids.first_chunk().context("a GID")?;
    Ok(*gid)
}

/// The address of an end at its second LID, from the second one.
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

/// Two guests on a subnet that works.
fn subnet() -> Result<(Daemon, [End; 2], Manager)> {
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let (daemon, mut ends) = pair::alone(program, Fabric::Infiniband, REGION, 256)?;
    let manage = |ends: &mut [End; 2]| {
        for end in ends.iter_mut() {
            wait_for_state(end, vrnic_wire::port::PortState::Initialize)?;
        }
        let mut manager = Manager::new(&mut ends[0])?;
        manager.sweep(&mut ends[0])?;
        for end in ends.iter_mut() {
            wait_for_state(end, vrnic_wire::port::PortState::Active)?;
        }
        anyhow::Ok(manager)
    };
    let manager = manage(&mut ends).with_context(|| daemon.log())?;
    Ok((daemon, ends, manager))
}

fn sent(end: &mut End, wr_id: u64) -> Result<Cqe> {
    let cqe = end.sends.wait()?;
    ensure!(cqe.wr_id.get() == wr_id, "{cqe:?}");
    Ok(cqe)
}

/// Fills what is sent, and empties what is received.
fn prepare(ends: &[End; 2], seed: u8) {
    for end in ends {
        end.mr.area.fill(seed, 0..MESSAGE);
        end.mr.area.clear(MESSAGE..REGION);
    }
}

/// The sender's pattern is at the receiver, `skip` bytes into what is received.
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
