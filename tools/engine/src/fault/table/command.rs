// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Faults of control commands: what firmware does to its driver.

use super::{Act, Kind, kind};

pub(super) const KINDS: &[Kind] = &[
    kind(
        "command-fails",
        Act::RefuseCommand,
        "status=no-resources",
        &["status", "vendor"],
        [
            "A command is not executed, and its reply contains an error; status=NAME sets which one.",
            "Firmware that runs out of memory or does not match its driver.",
            "A failed verb has changed nothing. The virtio-rdma specification maps each status to an errno.",
            "The verb fails with that errno: EOPNOTSUPP, EINVAL, ENOENT, EBUSY, ENOMEM, EFAULT, EPERM or EIO.",
        ],
    ),
    kind(
        "no-memory",
        Act::RefuseCommand,
        "status=no-resources code=register-mr",
        &["status", "vendor"],
        [
            "The device has no room for another memory region.",
            "Devices that keep page tables in their own memory.",
            "Insufficient resources (11.2).",
            "ibv_reg_mr fails with ENOMEM.",
        ],
    ),
    kind(
        "destroy-fails",
        Act::RefuseCommand,
        "status=busy code=destroy-qp",
        &["status", "vendor"],
        [
            "A queue pair cannot be destroyed.",
            "Firmware that still uses the queue pair.",
            "Destroying a queue pair succeeds (11.2).",
            "IBV_EVENT_DEVICE_FATAL: the driver stops the device, because it cannot free memory that the device may still use.",
        ],
    ),
    kind(
        "command-slow",
        Act::DelayReply,
        "delay=500ms",
        &["delay"],
        [
            "A command is executed, but its reply is late. Later commands do not wait for it.",
            "Firmware that serves many functions with one processor.",
            "The standard does not specify timing.",
            "The verb takes as long as the delay.",
        ],
    ),
    kind(
        "command-too-late",
        Act::DelayReply,
        "delay=100s",
        &["delay"],
        [
            "A command is executed, but its reply arrives after the driver has given up.",
            "Firmware that hangs and comes back.",
            "Same as command-never.",
            "The verb fails with EIO, and there is IBV_EVENT_DEVICE_FATAL. The late reply does no harm.",
        ],
    ),
    kind(
        "command-never",
        Act::NoReply,
        "",
        &[],
        [
            "A command is executed, but never answered.",
            "Firmware that hangs: `command timed out` in the logs of most drivers.",
            "The driver must survive this. It gives up on the device.",
            "The verb fails with EIO after the driver's timeout, and there is IBV_EVENT_DEVICE_FATAL.",
        ],
    ),
    kind(
        "command-answered-twice",
        Act::ReplyTwice,
        "",
        &[],
        [
            "A command is answered twice, in the same buffer.",
            "Firmware or a hypervisor that repeats earlier work after a restart.",
            "A buffer is returned only once.",
            "The verb succeeds. Linux then takes the control queue for broken, because a buffer came back that the device did not have: IBV_EVENT_DEVICE_FATAL, and verbs fail with EIO until the device is back, a second later.",
        ],
    ),
    kind(
        "limit-lowered",
        Act::RefuseCommand,
        "status=no-resources count=all code=create-qp limit=0",
        &["status", "vendor", "limit"],
        [
            "The command code=NAME fails once limit=N objects of its kind exist, although the device reports a higher maximum.",
            "Several functions that share the resources of one device.",
            "Limits are upper bounds. A verb may fail earlier for lack of resources (11.2).",
            "ibv_create_qp and similar calls fail with ENOMEM below the maximum.",
        ],
    ),
];
