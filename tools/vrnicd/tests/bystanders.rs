// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Faults that strike a whole device or its driver harm no other device of the daemon. The tests of the engine check
//! the same for all faults and for other connections of the same device.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vrnic_engine::fault::{Kind, Seam};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::request;
use vrnic_wire::command::CreatePd;
use vrnic_wire::work::SendOpcode;
use vrnicd::control::client::Client;

/// Bytes of a message.
const MESSAGE: usize = 100_000;
/// Number of times that the bystanders exchange messages after the fault has struck.
const ROUNDS: u8 = 5;
/// How long a fault may take to strike.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends requests in both directions, and a command. Nobody waits for what becomes of them.
fn provoke([a, b]: &mut [End; 2]) -> Result<()> {
    for wr_id in 0..4 {
        let write = request(SendOpcode::Write, wr_id, b.mr.target(MESSAGE));
        a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, MESSAGE))?;
        let write = request(SendOpcode::Write, wr_id, a.mr.target(MESSAGE));
        b.qps[0].post(&mut b.vm, &write, b.mr.sge(0, MESSAGE))?;
    }
    let context = a.vm.context().into();
    a.vm.begin(&CreatePd {
        context,
        reserved: 0.into(),
    })
}

/// Writes from one bystander to the other and reads it back, and checks each byte.
fn exchange([c, d]: &mut [End; 2], seed: u8) -> Result<()> {
    c.mr.area.fill(seed, 0..MESSAGE);
    d.mr.area.clear(MESSAGE..2 * MESSAGE);
    for (opcode, wr_id, offset) in [(SendOpcode::Write, 1, 0), (SendOpcode::Read, 2, MESSAGE)] {
        let request = request(opcode, wr_id, d.mr.target(MESSAGE));
        c.qps[0].post(&mut c.vm, &request, c.mr.sge(offset, MESSAGE))?;
        let cqe = c.sends.wait()?;
        ensure!(cqe.wr_id.get() == wr_id, "{cqe:?}");
    }
    for end in [c, d] {
        let wrong = end.mr.area.difference(seed, MESSAGE, MESSAGE);
        ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
    }
    Ok(())
}

fn endure(kind: &Kind, fabric: Fabric) -> Result<()> {
    let devices: Vec<_> = (0..4).map(|device| (device.to_string(), "")).collect();
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let mut daemon = Daemon::configured(program, fabric, &devices, "faults = true")?;
    let mut victims = pair::start(&mut daemon, 0, 2 * MESSAGE, 64)?;
    let mut bystanders = pair::start(&mut daemon, 2, 2 * MESSAGE, 64)?;
    for ends in [&mut victims, &mut bystanders] {
        pair::connect(ends, 1, 16)?;
    }
    let mut client = Client::connect(&daemon.control())?;
    let more = match kind.name {
        "no-memory" | "destroy-fails" => " code=create-pd",
        "limit-lowered" => " code=create-pd limit=1",
        _ => "",
    };
    let id = client.add_fault("0", &format!("{}{more}", kind.name))?;
    let mut test = || -> Result<()> {
        provoke(&mut victims)?;
        let deadline = Instant::now() + PATIENCE;
        let (mut seed, mut rounds) = (0_u8, 0);
        while rounds < ROUNDS {
            seed = seed % 200 + 1;
            exchange(&mut bystanders, seed)?;
            let faults = client.faults("0")?;
            let fired = faults.iter().any(|fault| fault.id == id && fault.fired > 0);
            rounds += u8::from(fired);
            ensure!(fired || Instant::now() < deadline, "it did not fire");
        }
        let states = client.devices()?;
        for device in states
            .iter()
            .filter(|device| ["2", "3"].contains(&&*device.name))
        {
            ensure!(device.state == "up", "{device:?}");
            let port = device.port.as_ref().context("a port")?;
            ensure!(port.state == "active", "{port:?}");
            let errors = port
                .counters
                .iter()
                .find(|(name, _)| name == "completion_errors");
            ensure!(errors.is_some_and(|(_, count)| *count == 0), "{errors:?}");
        }
        Ok(())
    };
    test().with_context(|| daemon.log())
}

#[test]
fn no_fault_of_a_device_harms_another() {
    let mut kinds = 0;
    for kind in Kind::all().filter(|kind| matches!(kind.seam(), Seam::Time | Seam::Command)) {
        // It ends the daemon, and with it all devices, as Documentation/faults.rst says.
        if kind.name == "daemon-killed" {
            continue;
        }
        kinds += 1;
        for fabric in [Fabric::Local, Fabric::Roce] {
            endure(kind, fabric)
                .with_context(|| format!("{} on {}", kind.name, fabric.name()))
                .unwrap();
        }
    }
    assert!(kinds > 40, "{kinds}");
}
