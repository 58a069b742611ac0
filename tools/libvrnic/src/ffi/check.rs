// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks layouts against the C headers of each release.
//!
//! `layout/<release>.txt` is the output of a C program that was compiled with that release's own
//! headers. The tests here compare it with the Rust definitions, so they need no sources of
//! rdma-core. `layout/check.sh` generates the C program from [`questions`], runs it and compares
//! its output with the committed file.

extern crate std;

use super::{Layout, abi34, abi65, command, driver, ioctl, verbs};
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Returns expressions in C and the values that we expect them to have in one release.
fn questions(own: &[Layout]) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    let tables = [
        verbs::LAYOUTS,
        driver::LAYOUTS,
        command::LAYOUTS,
        ioctl::LAYOUTS,
        own,
    ];

    for layout in tables.into_iter().flatten() {
        let name = layout.name;
        all.push((format!("sizeof({name})"), layout.size as u64));
        all.push((format!("_Alignof({name})"), layout.align as u64));
        for (member, offset) in layout.members {
            all.push((format!("offsetof({name}, {member})"), *offset as u64));
        }
    }
    for (name, member, offset) in verbs::NESTED {
        all.push((format!("offsetof({name}, {member})"), *offset as u64));
    }
    for (name, value) in verbs::CONSTANTS {
        all.push((String::from(*name), *value));
    }
    let constants = [
        (
            "VERBS_MATCH_SENTINEL",
            u64::from(driver::VERBS_MATCH_SENTINEL),
        ),
        (
            "VERBS_MATCH_DRIVER_ID",
            u64::from(driver::VERBS_MATCH_DRIVER_ID),
        ),
        (
            "IBV_MR_TYPE_NULL_MR",
            u64::from(driver::IBV_MR_TYPE_NULL_MR.unsigned_abs()),
        ),
        ("VERBS_QP_EX", u64::from(driver::VERBS_QP_EX)),
        ("VERBS_LOG_ERR", u64::from(driver::VERBS_LOG_ERR)),
        ("VERBS_LOG_DEBUG", u64::from(driver::VERBS_LOG_DEBUG)),
        (
            "UVERBS_ATTR_F_MANDATORY",
            u64::from(ioctl::UVERBS_ATTR_F_MANDATORY),
        ),
        (
            "UVERBS_OBJECT_DEVICE",
            u64::from(ioctl::UVERBS_OBJECT_DEVICE),
        ),
        ("UVERBS_OBJECT_PD", u64::from(ioctl::UVERBS_OBJECT_PD)),
        ("UVERBS_OBJECT_DM", u64::from(ioctl::UVERBS_OBJECT_DM)),
        ("IBV_DM_MASK_HANDLE", u64::from(verbs::IBV_DM_MASK_HANDLE)),
        (
            "UVERBS_METHOD_QUERY_CONTEXT",
            u64::from(ioctl::UVERBS_METHOD_QUERY_CONTEXT),
        ),
        ("1 << UVERBS_ID_NS_SHIFT", u64::from(ioctl::DRIVER_NS)),
    ];
    all.extend(constants.map(|(name, value)| (String::from(name), value)));
    all
}

fn compare(release: &str, own: &[Layout], answers: &str) {
    let answers: BTreeMap<&str, u64> = answers
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (expression, value) = line.rsplit_once(' ').expect("expression and value");
            (expression, value.parse().expect("a number"))
        })
        .collect();
    let questions = questions(own);
    let mut wrong = Vec::new();

    assert_eq!(
        answers.len(),
        questions.len(),
        "{release}: run layout/check.sh --update"
    );
    for (expression, ours) in &questions {
        let theirs = answers.get(expression.as_str());
        if theirs != Some(ours) {
            wrong.push(format!(
                "{expression}: ours {ours}, rdma-core {release} {theirs:?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

const ABI34: &[Layout] = &[
    abi34::verbs_context::LAYOUT,
    abi34::verbs_context_ops::LAYOUT,
];
const ABI65: &[Layout] = &[
    abi65::verbs_context::LAYOUT,
    abi65::verbs_context_ops::LAYOUT,
    abi65::ibv_dmah::LAYOUT,
    abi65::verbs_dmah::LAYOUT,
];

#[test]
fn layouts_are_those_of_private_abi_34() {
    compare(abi34::RELEASE, ABI34, include_str!("../../layout/56.1.txt"));
}

#[test]
fn layouts_are_those_of_private_abi_65() {
    compare(abi65::RELEASE, ABI65, include_str!("../../layout/65.0.txt"));
}

#[test]
fn tables_of_operations_have_the_known_number_of_members() {
    assert_eq!(
        size_of::<abi34::verbs_context_ops>() / size_of::<usize>(),
        76
    );
    assert_eq!(
        size_of::<abi65::verbs_context_ops>() / size_of::<usize>(),
        93
    );
}

/// Prints the expressions, one per line, for `layout/check.sh`.
#[test]
#[ignore = "prints the input of layout/check.sh"]
fn print_questions() {
    let own = match std::env::var("VRNIC_PABI").as_deref() {
        Ok("34") => ABI34,
        Ok("65") => ABI65,
        other => panic!("VRNIC_PABI is {other:?}"),
    };
    for (expression, _) in questions(own) {
        std::println!("QUESTION {expression}");
    }
}
