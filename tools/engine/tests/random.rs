// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Random verb programs against a model, on perfect and on bad fabrics.

use crate::programs::{
    config,
    failing::{run_failing, wrong},
    op, run_program, setting,
};
use proptest::{collection::vec, prelude::*};

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_do_what_the_model_does(
        setting in setting(),
        first in vec(op(), 0..40),
        second in vec(op(), 0..20),
    ) {
        run_program(&setting, &[first, second]);
    }

    #[test]
    fn failures_end_a_connection_in_order(
        setting in setting(),
        before in vec(op(), 0..15),
        wrong in wrong(),
        after in vec(op(), 0..10),
    ) {
        run_failing(&setting, &before, wrong, &after);
    }
}
