// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two guests whose programs are connected.

use std::path::Path;

use anyhow::Result;

use crate::daemon::{Daemon, Fabric};
use crate::queues::{Cq, Mr, Qp};
use crate::vm::Vm;

/// RAM of a guest, of which few pages are used.
const RAM: usize = 8 << 30;

/// A guest, and what its programs have.
pub struct End {
    /// The guest.
    pub vm: Vm,
    /// Queue pairs; the ones with the same index are connected.
    pub qps: Vec<Qp>,
    /// Completions of the sends of all of them.
    pub sends: Cq,
    /// Completions of the receives.
    pub receives: Cq,
    /// Memory.
    pub mr: Mr,
}

impl End {
    /// A guest with a region, and completion queues with at least so many entries.
    fn new(daemon: &mut Daemon, device: usize, bytes: usize, completions: u32) -> Result<Self> {
        let mut vm = Vm::start(daemon.connect(device)?, device, RAM)?;
        Ok(Self {
            sends: Cq::new(&mut vm, completions, 0)?,
            receives: Cq::new(&mut vm, completions, 1)?,
            mr: Mr::new(&mut vm, bytes)?,
            qps: Vec::new(),
            vm,
        })
    }
}

/// Starts two guests on the devices `first` and the next one.
pub fn start(
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

/// A vrnicd with two guests.
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

/// Connects `count` more queue pairs of the two, with so many entries.
pub fn connect([a, b]: &mut [End; 2], count: usize, entries: u32) -> Result<()> {
    for _ in 0..count {
        let mut first = Qp::new(&mut a.vm, entries, &mut a.sends, &mut a.receives)?;
        let mut second = Qp::new(&mut b.vm, entries, &mut b.sends, &mut b.receives)?;
        first.connect(&mut a.vm, second.qpn(), &b.vm.gid())?;
        second.connect(&mut b.vm, first.qpn(), &a.vm.gid())?;
        a.qps.push(first);
        b.qps.push(second);
    }
    Ok(())
}

/// Destroys all queue pairs of the two; their completions must be polled before.
pub fn disconnect(ends: &mut [End; 2]) -> Result<()> {
    for end in ends {
        for qp in end.qps.drain(..) {
            qp.destroy(&mut end.vm, &mut end.sends, &mut end.receives)?;
        }
    }
    Ok(())
}
