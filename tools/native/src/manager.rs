// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A subnet manager for one particular subnet: a switch with the HCAs of a vrnicd at its first ports. It works through
//! QP 0 of a guest, as software of a VM does.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vrnic::ring::send::Target;
use vrnic_infiniband::attributes::{
    LinearForwarding, NodeInfo, NodeType, Notice, PhysicalState, PortInfo, PortState, SwitchInfo,
    id,
};
use vrnic_infiniband::directed::{Place, Step};
use vrnic_infiniband::mad::{MAD_LENGTH, Method, Route, Smp, Status};
use vrnic_infiniband::trap::Trap;
use vrnic_wire::command::{MadResult, ProcessMad, QueryPort};
use vrnic_wire::port::{GidEntry, PERMISSIVE_LID};
use vrnic_wire::qp::{QpType, SMI_QPN};
use vrnic_wire::work::{AddressVector, GRH_LENGTH, LidAddress, SendOpcode};

use crate::pair::End;
use crate::queues::{Cq, Mr, Qp, request};

/// How long the subnet may take for an operation.
const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a receive for a management datagram.
const RECEIVE: usize = GRH_LENGTH + MAD_LENGTH;
/// LID of the switch.
const SWITCH: u16 = 1;
/// LID mask count of an HCA.
const LMC: u8 = 1;
/// Number of entries in a block of a forwarding table.
const BLOCK: u16 = 64;
/// Entry without a port.
const NOWHERE: u8 = 0xff;

/// The properties of an HCA that directed routes depend on.
const HCA: Place = Place {
    switch: false,
    ports: 1,
};

/// Returns the first LID of a device's HCA, which has two.
///
/// # Errors
/// There are not enough LIDs for this many devices.
pub fn lid_of(device: usize) -> Result<u16> {
    Ok(u16::try_from(4 * (device + 1))?)
}

/// Returns the address of a device at its first LID, without a global route.
///
/// # Errors
/// Those of [`lid_of`].
pub fn address_of(device: usize) -> Result<GidEntry> {
    let lids = LidAddress {
        dlid: lid_of(device)?.into(),
        ..LidAddress::default()
    };
    Ok(GidEntry {
        mac: lids.to_bytes(),
        ..GidEntry::default()
    })
}

/// The subnet manager at the guest of the first device.
pub struct Manager {
    qp: Qp,
    sends: Cq,
    receives: Cq,
    mr: Mr,
    transaction: u64,
}

impl Manager {
    /// Creates the queue pair.
    ///
    /// # Errors
    /// The device refuses an object.
    pub fn new(end: &mut End) -> Result<Self> {
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

    /// Sends a request to the node at the end of a path, or to the agent of the manager's own node if the path is
    /// empty.
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
            // The software of the node at which a route begins takes the first step.
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
            let mut response = self.receive(end)?;
            // Traps, which are not answered, may arrive as well.
            if response.header.transaction != self.transaction {
                continue;
            }
            let route = response.route.as_mut().context("a directed route")?;
            ensure!(route.hop_pointer == 1, "it is as it arrived: {route:?}");
            ensure!(route.arrive(1, HCA) == Step::Here, "{route:?}");
            return Ok(response);
        }
    }

    /// Returns the next trap that a node has sent to this manager.
    ///
    /// # Errors
    /// None arrives in time.
    pub fn trap(&mut self, end: &mut End) -> Result<Trap> {
        loop {
            let smp = self.receive(end)?;
            if smp.header.method == Method::TRAP {
                return Trap::of(&Notice::read(&smp.data)).context("an unknown trap");
            }
        }
    }

    /// Returns the next datagram.
    fn receive(&mut self, end: &mut End) -> Result<Smp> {
        let cqe = self.receives.wait()?;
        ensure!(cqe.byte_length.get() as usize == RECEIVE, "{cqe:?}");
        let mad: Vec<u8> = (RECEIVE + GRH_LENGTH..2 * RECEIVE)
            .map(|at| self.mr.area.byte(at))
            .collect();
        self.qp.push_receive(0, self.mr.sge(RECEIVE, RECEIVE))?;
        self.qp.offer(&mut end.vm)?;
        Ok(Smp::parse(&mad)?)
    }

    /// Reads an attribute of the node at the end of a path.
    ///
    /// # Errors
    /// The node does not answer, or refuses the request.
    pub fn get(
        &mut self,
        end: &mut End,
        path: &[u8],
        attribute: u16,
        modifier: u32,
    ) -> Result<[u8; 64]> {
        self.ask(end, path, Smp::request(Method::GET, attribute, modifier))
    }

    /// Writes an attribute of the node at the end of a path.
    ///
    /// # Errors
    /// The node does not answer, or refuses the request.
    pub fn set(
        &mut self,
        end: &mut End,
        path: &[u8],
        (attribute, modifier): (u16, u32),
        data: [u8; 64],
    ) -> Result<[u8; 64]> {
        let request = Smp::request(Method::SET, attribute, modifier);
        self.ask(end, path, Smp { data, ..request })
    }

    /// Changes the attributes of a port of the node at the end of a path.
    ///
    /// # Errors
    /// The node does not answer, or refuses the change.
    pub fn change_port(
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

    /// Brings up a subnet with this many HCAs, whose LIDs are those of [`lid_of`].
    ///
    /// # Errors
    /// A node does not answer, or is not the expected one.
    pub fn sweep(&mut self, end: &mut End, hcas: usize) -> Result<()> {
        let node = NodeInfo::read(&self.get(end, &[1], id::NODE_INFO, 0)?);
        ensure!(
            (node.kind, node.local_port) == (NodeType::SWITCH, 1),
            "{node:?}"
        );
        let ports: Vec<u8> = (1..=u8::try_from(hcas)?).collect();
        self.fill_tables(end, hcas)?;
        let manager = lid_of(0)?;
        self.change_port(end, &[1], 0, |info| {
            (info.lid, info.sm_lid) = (SWITCH, manager);
        })?;
        // The manager's own HCA is at the first port.
        let path_to = |port: u8| if port == 1 { vec![] } else { vec![1, port] };
        for (device, &port) in ports.iter().enumerate() {
            let lid = lid_of(device)?;
            self.change_port(end, &path_to(port), 1, |info| {
                (info.lid, info.lmc, info.sm_lid) = (lid, LMC, manager);
            })?;
        }
        for state in [PortState::ARMED, PortState::ACTIVE] {
            for &port in &ports {
                for (path, port) in [(path_to(port), 1), (vec![1], port)] {
                    // The first packet that arrives may have made an armed port active.
                    let data = self.get(end, &path, id::PORT_INFO, port.into())?;
                    if PortInfo::read(&data).state < state {
                        self.change_port(end, &path, port, |info| info.state = state)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Fills the forwarding table of the switch.
    fn fill_tables(&mut self, end: &mut End, hcas: usize) -> Result<()> {
        let mut table = vec![NOWHERE; usize::from(BLOCK)];
        table[usize::from(SWITCH)] = 0;
        for (device, port) in (0..hcas).zip(1..) {
            let first = usize::from(lid_of(device)?);
            for lid in first..first + (1 << LMC) {
                table.resize(table.len().max(lid + 1), NOWHERE);
                table[lid] = port;
            }
        }
        let data = self.get(end, &[1], id::SWITCH_INFO, 0)?;
        let info = SwitchInfo {
            linear_top: u16::try_from(table.len() - 1)?,
            ..SwitchInfo::read(&data)
        };
        self.set(end, &[1], (id::SWITCH_INFO, 0), info.to_data())?;
        for (number, block) in (0..).zip(table.chunks(usize::from(BLOCK))) {
            let mut ports = [NOWHERE; BLOCK as usize];
            ports[..block.len()].copy_from_slice(block);
            let block = LinearForwarding { ports };
            self.set(end, &[1], (id::LINEAR_FORWARDING, number), block.to_data())?;
        }
        Ok(())
    }
}

/// Waits until the port of a guest is in a state.
///
/// # Errors
/// The port does not reach the state in time.
pub fn wait_for_state(end: &mut End, state: vrnic_wire::port::PortState) -> Result<()> {
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

/// Brings up a subnet with this many HCAs, of which `ends` are the first guests.
///
/// # Errors
/// The links do not come up, or the manager fails.
pub fn manage(ends: &mut [End], hcas: usize) -> Result<Manager> {
    use vrnic_wire::port::PortState::{Active, Initialize};
    for end in ends.iter_mut() {
        wait_for_state(end, Initialize)?;
    }
    let first = ends.first_mut().context("a guest")?;
    let mut manager = Manager::new(first)?;
    manager.sweep(first, hcas)?;
    for end in ends.iter_mut() {
        wait_for_state(end, Active)?;
    }
    Ok(manager)
}
