// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests whose programs are connected.

use std::net::IpAddr;
use std::path::Path;

use anyhow::Result;
use vrnic_wire::port::{GidEntry, PortState};

use crate::daemon::{Daemon, Fabric, mac};
use crate::manager;
use crate::queues::{Cq, Mr, Qp};
use crate::vm::{Vm, gid_of};

/// Size of a guest's RAM, of which only few pages are used.
const RAM: usize = 8 << 30;

/// A guest and the objects of its programs.
pub struct End {
    /// The guest.
    pub vm: Vm,
    /// Address at which its peer reaches it.
    pub address: GidEntry,
    /// Queue pairs, each connected to the peer's with the same index.
    pub qps: Vec<Qp>,
    /// Completion queue for the sends of all queue pairs.
    pub sends: Cq,
    /// Completion queue for their receives.
    pub receives: Cq,
    /// Memory region.
    pub mr: Mr,
}

impl End {
    /// Creates a guest with a region, and completion queues with at least `completions` entries.
    fn new(daemon: &mut Daemon, device: usize, bytes: usize, completions: u32) -> Result<Self> {
        Self::of(
            Vm::start(daemon.connect(device)?, device, RAM)?,
            bytes,
            completions,
        )
    }

    /// Creates the guest of the only device of a daemon that is [over UDP](Daemon::over_udp) at `host`. For its peer,
    /// it has an Ethernet address that no switch knows, as if it were behind a router.
    pub fn at(daemon: &mut Daemon, host: IpAddr, bytes: usize, completions: u32) -> Result<Self> {
        let gid = gid_of(host, mac(0));
        let end = Self::of(
            Vm::start_as(daemon.connect(0)?, gid, RAM)?,
            bytes,
            completions,
        )?;
        let [.., a, b, c, d] = gid.gid;
        Ok(Self {
            address: gid_of(host, [2, 0, a, b, c, d]),
            ..end
        })
    }

    fn of(mut vm: Vm, bytes: usize, completions: u32) -> Result<Self> {
        Ok(Self {
            address: vm.gid(),
            sends: Cq::new(&mut vm, completions, 0)?,
            receives: Cq::new(&mut vm, completions, 1)?,
            mr: Mr::new(&mut vm, bytes)?,
            qps: Vec::new(),
            vm,
        })
    }
}

/// Starts two guests on the devices `first` and the next one, which can reach each other. On a subnet those of the
/// first two devices make that work for all, so they come first.
pub fn start(
    daemon: &mut Daemon,
    first: usize,
    bytes: usize,
    completions: u32,
) -> Result<[End; 2]> {
    let mut ends = guests(daemon, first, bytes, completions)?;
    if daemon.fabric() == Fabric::Infiniband {
        if first == 0 {
            manager::manage(&mut ends, daemon.devices())?;
        }
        for (device, end) in (first..).zip(&mut ends) {
            end.address = manager::address_of(device)?;
            manager::wait_for_state(end, PortState::Active)?;
        }
    }
    Ok(ends)
}

/// Starts two guests on the devices `first` and the next one. On a subnet that has no manager yet.
pub fn guests(
    daemon: &mut Daemon,
    first: usize,
    bytes: usize,
    completions: u32,
) -> Result<[End; 2]> {
    Ok([
        End::new(daemon, first, bytes, completions)?,
        End::new(daemon, first + 1, bytes, completions)?,
    ])
}

/// Starts a vrnicd with two guests.
pub fn alone(
    program: &Path,
    fabric: Fabric,
    bytes: usize,
    completions: u32,
) -> Result<(Daemon, [End; 2])> {
    let mut daemon = Daemon::start(program, fabric, 2)?;
    let ends = start(&mut daemon, 0, bytes, completions)?;
    Ok((daemon, ends))
}

/// Connects `count` more queue pairs of the two guests, with `entries` entries each.
pub fn connect([a, b]: &mut [End; 2], count: usize, entries: u32) -> Result<()> {
    for _ in 0..count {
        let mut first = Qp::new(&mut a.vm, entries, &mut a.sends, &mut a.receives)?;
        let mut second = Qp::new(&mut b.vm, entries, &mut b.sends, &mut b.receives)?;
        first.connect(&mut a.vm, second.qpn(), &b.address)?;
        second.connect(&mut b.vm, first.qpn(), &a.address)?;
        a.qps.push(first);
        b.qps.push(second);
    }
    Ok(())
}

/// Destroys all queue pairs of the two guests. Their completions must have been polled.
pub fn disconnect(ends: &mut [End; 2]) -> Result<()> {
    for end in ends {
        for qp in end.qps.drain(..) {
            qp.destroy(&mut end.vm, &mut end.sends, &mut end.receives)?;
        }
    }
    Ok(())
}
