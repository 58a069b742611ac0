// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs the engine's random verb programs over frames, on a wire that loses, duplicates, reorders, marks and damages
//! them. Completions and memory must match those of the model, as on the local fabric.

#[path = "../../engine/tests/programs/mod.rs"]
mod programs;

use programs::{
    Setting, config,
    failing::{run_failing, wrong},
    op, run_program, setting,
};
use proptest::{collection::vec, prelude::*};
use vrnic_engine::{
    Segment, Segmentation,
    testing::{Faults, GuestView, Wire},
};
use vrnic_roce::{MAX_FRAME, encode, headers, headers_of, parse};

fn frame(segment: &Segment<'_>, view: &GuestView) -> Vec<u8> {
    let mut frame = vec![0; MAX_FRAME];
    let length = encode(segment, view, &mut frame).expect("frame");
    frame.truncate(length);
    // For every packet of a program, the headers in a trace are those in the frame.
    let traced = headers(segment, segment.payload.len()).expect("headers");
    assert_eq!(traced, headers_of(&frame).expect("frame"));
    frame
}

fn segment(frame: &[u8]) -> Option<Segment<'_>> {
    parse(frame).ok()
}

fn on_the_wire() -> impl Strategy<Value = Setting> {
    (setting(), 0u32..40, 0u32..200).prop_map(|(setting, damage, mark)| Setting {
        segmentation: Segmentation::PathMtu,
        wire: Some(Wire {
            encode: frame,
            parse: segment,
        }),
        faults: Faults {
            damage,
            mark,
            ..setting.faults
        },
        ..setting
    })
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn programs_do_what_the_model_does(
        setting in on_the_wire(),
        first in vec(op(), 0..40),
        second in vec(op(), 0..20),
    ) {
        run_program(&setting, &[first, second]);
    }

    #[test]
    fn failures_end_a_connection_in_order(
        setting in on_the_wire(),
        before in vec(op(), 0..15),
        wrong in wrong(),
        after in vec(op(), 0..10),
    ) {
        run_failing(&setting, &before, wrong, &after);
    }
}
