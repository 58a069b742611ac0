// SPDX-License-Identifier: GPL-2.0

//! The process on whose behalf a verb runs, for display.

use kernel::current;

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Maximum length of the name of a process, in bytes.
// CAST: A small constant.
const NAME_LENGTH: usize = kernel::bindings::TASK_COMM_LEN as usize;

/// A process, for display to people.
pub struct Process {
    /// Process ID in the initial PID namespace.
    pub pid: u32,
    /// Name, padded with zeros.
    pub name: [u8; NAME_LENGTH],
}

impl Process {
    /// Returns the current process.
    pub fn current() -> Self {
        let current = current!();
        let leader = current.group_leader();
        let mut name = [0; NAME_LENGTH];
        // SAFETY: `name` has room for the name of a task, and the task is valid.
        unsafe { bindings::get_task_comm(name.as_mut_ptr(), leader.as_ptr()) };
        Self {
            // CAST: Process IDs are not negative.
            pid: leader.pid() as u32,
            name,
        }
    }
}
