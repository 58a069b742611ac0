// SPDX-License-Identifier: GPL-2.0

//! The process that a verb runs for, as people know it.

use kernel::current;

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Bytes of the name of a process.
// CAST: A small constant.
const NAME_LENGTH: usize = kernel::bindings::TASK_COMM_LEN as usize;

/// A process, as people know it.
pub struct Process {
    /// Its number in the initial namespace.
    pub pid: u32,
    /// What it is called, padded with zeros.
    pub name: [u8; NAME_LENGTH],
}

impl Process {
    /// The process that runs.
    pub fn current() -> Self {
        let current = current!();
        let leader = current.group_leader();
        let mut name = [0; NAME_LENGTH];
        // SAFETY: `name` has room for the name of a task, and the task is valid.
        unsafe { bindings::get_task_comm(name.as_mut_ptr(), leader.as_ptr()) };
        Self {
            // CAST: Numbers of processes are not negative.
            pid: leader.pid() as u32,
            name,
        }
    }
}
