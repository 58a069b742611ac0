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
            "Firmware that runs out of memory, or that disagrees with its driver.",
            "A verb that fails has changed nothing; virtio-rdma says which errno belongs to which status.",
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
            "Devices with page tables in memory of their own.",
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
            "The driver cannot free memory that the device may still use, so it stops the device (IBV_EVENT_DEVICE_FATAL).",
        ],
    ),
    kind(
        "command-slow",
        Act::DelayReply,
        "delay=500ms",
        &["delay"],
        [
            "A command is executed, but its reply is late. Later commands do not wait for it.",
            "Firmware of many functions with one processor.",
            "The standard says nothing about time.",
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
            "As command-never.",
            "The verb fails with EIO, IBV_EVENT_DEVICE_FATAL, and the late reply harms nobody.",
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
            "The driver has to survive it. It gives the device up.",
            "The verb fails with EIO after the driver's time limit; IBV_EVENT_DEVICE_FATAL.",
        ],
    ),
    kind(
        "command-answered-twice",
        Act::ReplyTwice,
        "",
        &[],
        [
            "A command is answered twice, in the same buffer.",
            "Firmware or a hypervisor that repeats what it did before a restart.",
            "A buffer comes back once.",
            "The driver refuses the second; the verb succeeds.",
        ],
    ),
    kind(
        "limit-lowered",
        Act::RefuseCommand,
        "status=no-resources count=all code=create-qp limit=0",
        &["status", "vendor", "limit"],
        [
            "The command code=NAME fails once limit=N objects of its kind exist, although the device reports a higher maximum.",
            "Functions of a device that share its resources.",
            "Limits are upper bounds: a verb may fail for insufficient resources before (11.2).",
            "ibv_create_qp and the like fail with ENOMEM below the maximum.",
        ],
    ),
];
