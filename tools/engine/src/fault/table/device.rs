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
            "A write to the device that never arrives: PCI error recovery, a hypervisor's defect.",
            "virtio-rdma: the device looks at its rings when it is rung.",
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
            "A host whose emulation is busy.",
            "The standard says nothing about time.",
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
            "A data path that hangs while the control processor lives.",
            "Peers notice by their timers.",
            "No completions here; IBV_WC_RETRY_EXC_ERR at peers. When the fault ends, work goes on.",
        ],
    ),
    kind(
        "slow",
        Act::Slow,
        "delay=1ms",
        &["delay"],
        [
            "The device is slow: each unit of work, about a packet, takes delay=TIME.",
            "Thermal throttling; a virtual device on a busy host.",
            "The standard says nothing about speed.",
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
            "Optics, a switch that restarts, an administrator.",
            "The port is down, packets are lost (11.6.3).",
            "IBV_EVENT_PORT_ERR, later IBV_EVENT_PORT_ACTIVE. Requests survive if their retries last longer than that.",
        ],
    ),
    kind(
        "link-down",
        Act::LinkDown,
        "",
        &[],
        [
            "The link goes down and stays down until the fault is cleared.",
            "A cable that is pulled.",
            "As link-flap.",
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
            "The active MTU bounds path MTUs and datagrams (12.7).",
            "ibv_query_port shows it. Longer datagrams end with IBV_WC_LOC_LEN_ERR. Connections go on with the MTU that they have.",
        ],
    ),
    kind(
        "needs-reset",
        Act::Fail,
        "",
        &[],
        [
            "The device fails and reports that it needs a reset.",
            "Firmware that asserts; an uncorrectable error of the bus.",
            "A locally detected catastrophic error (11.6.3); virtio's DEVICE_NEEDS_RESET.",
            "IBV_EVENT_DEVICE_FATAL, every verb fails with EIO, completions of what was posted say flushed. A second later the device is there again, to be opened anew.",
        ],
    ),
    kind(
        "engine-panic",
        Act::Panic,
        "",
        &[],
        [
            "The engine of the device panics.",
            "A bug of vrnicd. It corresponds to firmware that crashes.",
            "As needs-reset: the panic is contained to the device.",
            "As needs-reset. Other devices of the same vrnicd go on.",
        ],
    ),
];
