// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of the whole device: its doorbells, its link, its life.

use super::{Act, Kind, kind};

pub(super) const KINDS: &[Kind] = &[
    kind(
        "doorbell-lost",
        Act::LoseDoorbell,
        "",
        &[],
        [
            "A doorbell is lost.",
            "A write to the device that never arrives: PCI error recovery, a defective hypervisor.",
            "virtio-rdma: the device checks its rings when a doorbell is rung.",
            "Posted work waits until the next doorbell of its context.",
        ],
    ),
    kind(
        "doorbell-late",
        Act::HoldDoorbell,
        "delay=100ms",
        &["delay"],
        [
            "A doorbell is late.",
            "Device emulation on a busy host.",
            "The standard does not specify timing.",
            "Latency.",
        ],
    ),
    kind(
        "stuck",
        Act::Stuck,
        "",
        &[],
        [
            "The device handles no doorbells, packets or timers, but still answers commands.",
            "A data path that hangs while the control processor still runs.",
            "Peers detect it by their timers.",
            "No completions here; IBV_WC_RETRY_EXC_ERR at peers. When the fault ends, work resumes.",
        ],
    ),
    kind(
        "slow",
        Act::Slow,
        "delay=1ms",
        &["delay", "factor"],
        [
            "The device is slow: each unit of work, about a packet, takes delay=TIME, or factor=N microseconds, N times as long as usual.",
            "Thermal throttling; a virtual device on a busy host.",
            "The standard does not specify speed.",
            "Low bandwidth, and retransmissions if timeouts are too short.",
        ],
    ),
    kind(
        "link-flap",
        Act::LinkDown,
        "for=1s interval=2s",
        &[],
        [
            "The link goes down and comes up again: it stays down for=TIME, count=N times, once every interval=TIME.",
            "Optics; a switch that restarts; an administrator.",
            "The port is down, and packets are lost (11.6.3).",
            "IBV_EVENT_PORT_ERR, later IBV_EVENT_PORT_ACTIVE. Requests survive if their retries last longer than the outage.",
        ],
    ),
    kind(
        "link-down",
        Act::LinkDown,
        "",
        &[],
        [
            "The link goes down and stays down until the fault is cleared.",
            "An unplugged cable.",
            "Same as link-flap.",
            "IBV_EVENT_PORT_ERR, then IBV_WC_RETRY_EXC_ERR.",
        ],
    ),
    kind(
        "mtu-change",
        Act::Mtu,
        "mtu=1024",
        &["mtu"],
        [
            "The active MTU of the port changes to mtu=N.",
            "An administrator who changes the MTU of the network interface.",
            "The active MTU limits path MTUs and datagrams (12.7).",
            "ibv_query_port shows it. Longer datagrams end with IBV_WC_LOC_LEN_ERR. Existing connections keep their MTU.",
        ],
    ),
    kind(
        "speed-change",
        Act::Speed,
        "",
        &[],
        [
            "The port reports that its link has one lane of 2.5 Gbit/s.",
            "A cable or a module that trains at a lower width or speed.",
            "The active width and speed are attributes of the port (11.2.1.8).",
            "ibv_query_port shows it. Packets are as fast as before: add slow-link to slow them down.",
        ],
    ),
    kind(
        "gid-vanishes",
        Act::HideGid,
        "",
        &["value"],
        [
            "The GID with the index value=N is gone, although the guest has it in its table (default: all GIDs).",
            "An address that is removed from the network interface, or a bond that fails over.",
            "A packet to a GID that a port does not have is dropped (9.6.1.1).",
            "IBV_WC_RETRY_EXC_ERR at both ends. Queue pairs with this GID cannot be connected: EINVAL.",
        ],
    ),
    kind(
        "clock-jump",
        Act::Clock,
        "delay=3600s",
        &["delay"],
        [
            "The clock of the device is delay=TIME ahead.",
            "Firmware that sets the clock after an update or a restart; a virtual machine that was moved.",
            "The standard has no clock. Timestamps of completions and ibv_query_rt_values_ex show the same clock.",
            "Timestamps that jump ahead, and back when the fault ends. The device's own timers do not notice.",
        ],
    ),
    kind(
        "persistence-fails",
        Act::FailSync,
        "",
        &[],
        [
            "A FLUSH to persistence fails, because the memory cannot be written.",
            "An NVDIMM with a media error, or one that has become read-only.",
            "The responder answers a FLUSH that it cannot execute with a remote operational error (A19).",
            "IBV_WC_REM_OP_ERR for the FLUSH. What was written before it may be lost with the power.",
        ],
    ),
    kind(
        "needs-reset",
        Act::Fail,
        "",
        &[],
        [
            "The device fails and reports that it needs a reset.",
            "Firmware that hits an assertion; an uncorrectable bus error.",
            "A locally detected catastrophic error (11.6.3); virtio's DEVICE_NEEDS_RESET.",
            "IBV_EVENT_DEVICE_FATAL. Every verb fails with EIO, and everything posted completes as flushed. A second later the device is back, and programs can open it again.",
        ],
    ),
    kind(
        "engine-panic",
        Act::Panic,
        "",
        &[],
        [
            "The engine of the device panics.",
            "A bug in vrnicd. It corresponds to a firmware crash.",
            "Same as needs-reset: the panic affects only this device.",
            "Same as needs-reset. Other devices of the same vrnicd keep working.",
        ],
    ),
    kind(
        "removed",
        Act::Remove,
        "",
        &[],
        [
            "The device is pulled out of its slot, and put back when the fault ends.",
            "A card that falls off the bus; a virtual function that is hot-unplugged.",
            "Reads of a device that is not there give ones. Everything else is a catastrophic error (11.6.3).",
            "IBV_EVENT_DEVICE_FATAL within a second. Every verb fails with EIO, and everything posted completes as flushed. The device does not come back by itself: when the fault has ended, its PCI device has to be found again.",
        ],
    ),
    kind(
        "daemon-killed",
        Act::Kill,
        "",
        &[],
        [
            "vrnicd aborts: all its devices are removed by surprise.",
            "A card that falls off the bus; a host that kills the process of a virtual device.",
            "Reads of a device that is not there give ones. Everything else is a catastrophic error (11.6.3).",
            "IBV_EVENT_DEVICE_FATAL. Every verb fails with EIO, and everything posted completes as flushed. The devices do not come back.",
        ],
    ),
];
