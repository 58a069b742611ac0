// SPDX-License-Identifier: GPL-2.0

//! Tests of the description of processes.

use kernel::prelude::*;

use super::*;

#[kunit_tests(rdma_process)]
mod cases {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_name() {
        let Process { pid, name } = Process::current();
        assert_eq!(pid, current!().tgid() as u32);
        // Tests run in a kernel thread.
        assert!(name.starts_with(b"kunit_try_catch") && name[NAME_LENGTH - 1] == 0);
    }
}
