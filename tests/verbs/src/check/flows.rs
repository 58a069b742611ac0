// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Counters of flows, on a device that has raw packets.

use super::{Case, Env, SOON, expect};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_LOCAL_WRITE, Counters, Cq, DEVICE_MANAGED_FLOW_STEERING, Errno, Flow, Mr, QP_PORT,
    QP_STATE, QPS_INIT, QPS_RTR, QPS_RTS, QPT_RAW_PACKET, Qp, QpConfig, SendOp, SendWr, WC_SUCCESS,
};
use std::time::Instant;

pub(super) const CASES: &[Case] = &[("flow-counters", counters)];

/// An Ethertype for experiments.
const ETHER_TYPE: u16 = 0x88b5;

/// The MAC address of the network device that belongs to our GID.
fn own_mac(env: &Env) -> Outcome<[u8; 6]> {
    let read = |path: String| {
        let text = std::fs::read_to_string(&path);
        text.map_err(|error| Failure(format!("{path}: {error}")))
    };
    let (device, index) = (env.context.name(), env.gid.index);
    let netdev = read(format!(
        "/sys/class/infiniband/{device}/ports/1/gid_attrs/ndevs/{index}"
    ))?;
    let text = read(format!("/sys/class/net/{}/address", netdev.trim()))?;
    let bytes: Vec<u8> = (text.trim().split(':'))
        .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes
        .try_into()
        .map_err(|_| Failure(format!("no MAC address: {text}")))
}

/// Flows that have the same counters add up, also when one of them is gone.
fn counters(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    if env.attr.device_cap_flags & DEVICE_MANAGED_FLOW_STEERING == 0 {
        let refused = Counters::new(&env.context).err();
        ensure!(refused == Some(Errno(libc::EOPNOTSUPP)), "{refused:?}");
        return Ok(());
    }
    let cq = Cq::new(&env.context, 16).during("ibv_create_cq")?;
    let config = QpConfig {
        kind: QPT_RAW_PACKET,
        ..Default::default()
    };
    let qp = Qp::new(&env.pd, &cq, &cq, &config).during("creating a raw packet QP")?;
    let mut attr = crate::ffi::ibv_qp_attr {
        qp_state: QPS_INIT,
        port_num: 1,
        ..Default::default()
    };
    qp.modify(&attr, QP_STATE | QP_PORT).during("INIT")?;
    for state in [QPS_RTR, QPS_RTS] {
        attr.qp_state = state;
        qp.modify(&attr, QP_STATE).during("RTR or RTS")?;
    }
    let mr = Mr::new(&env.pd, 4096, ACCESS_LOCAL_WRITE).during("ibv_reg_mr")?;
    let mac = own_mac(env)?;
    let counters = Counters::new(&env.context).during("ibv_create_counters")?;
    let unused = counters.read().err();
    ensure!(
        unused == Some(Errno(libc::EINVAL)),
        "without a flow: {unused:?}"
    );
    let unchosen = Counters::unchosen(&env.context).during("ibv_create_counters")?;
    let refused = Flow::new(&qp, &unchosen, mac, ETHER_TYPE).err();
    ensure!(
        refused == Some(Errno(libc::EINVAL)),
        "nothing to count: {refused:?}"
    );
    let first = Flow::new(&qp, &counters, mac, ETHER_TYPE).during("ibv_create_flow")?;
    let busy = counters.choose(0).err();
    ensure!(
        busy == Some(Errno(libc::EBUSY)),
        "chosen after the flow: {busy:?}"
    );
    let second = Flow::new(&qp, &counters, mac, ETHER_TYPE + 1).during("ibv_create_flow")?;
    let send = |ether_type: u16, length: usize| -> Outcome<()> {
        let header = [&mac[..], &mac, &ether_type.to_be_bytes()].concat();
        mr.memory().write(0, &header);
        let sges = [mr.sge(0, length)];
        qp.post_send(&[SendWr::new(9, SendOp::Send, &sges)])
            .map_err(|e| Failure(format!("posting a frame: {}", e.error)))?;
        expect(&cq, 9, WC_SUCCESS).map(drop)
    };
    let reach = |expected: [u64; 2]| -> Outcome<()> {
        let start = Instant::now();
        loop {
            let got = counters.read().during("ibv_read_counters")?;
            if got == expected {
                return Ok(());
            }
            ensure!(start.elapsed() < SOON, "{got:?}, not {expected:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    reach([0, 0])?;
    // There is no receive: what a flow gets counts all the same. The last frame is for nobody.
    for (ether_type, length) in [(ETHER_TYPE, 60), (ETHER_TYPE + 1, 1000), (ETHER_TYPE, 100)] {
        send(ether_type, length)?;
    }
    send(ETHER_TYPE + 2, 200)?;
    reach([3, 1160])?;
    drop(first);
    reach([3, 1160])?;
    send(ETHER_TYPE, 60)?;
    send(ETHER_TYPE + 1, 64)?;
    reach([4, 1224])?;
    drop(second);
    counters.choose(0).during("choosing without flows")?;
    Ok(())
}
