// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checks layouts against the C headers of each release.
//!
//! The files `layout/*.txt` are the output of a C program that was compiled with the headers of
//! releases of rdma-core: what is the same in all releases, and what each level has of its own. The
//! tests here compare it with the Rust definitions, so they need no sources of rdma-core.
//! `layout/check.sh` generates the C program from [`questions`], runs it with the headers of every
//! release in `layout/releases`, and compares its output with the files.

extern crate std;

use super::abi::{ContextRoom, LEVELS, Level, verbs_context_ops};
use super::{Layout, command, driver, ioctl, verbs};
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Expressions in C, and the values that we expect them to have.
type Questions = Vec<(String, u64)>;

fn layout(layout: &Layout, to: &mut Questions) {
    let name = layout.name;
    to.push((format!("sizeof({name})"), layout.size as u64));
    to.push((format!("_Alignof({name})"), layout.align as u64));
    for (member, offset) in layout.members {
        let member = member.trim_start_matches("r#");
        to.push((format!("offsetof({name}, {member})"), *offset as u64));
    }
}

/// Returns the questions whose answers depend on the level.
fn questions_of(level: &Level) -> Questions {
    let mut all = Vec::new();
    let pointer = size_of::<usize>() as u64;

    let (size, offsets) = ContextRoom::layout(level);
    all.push((String::from("sizeof(struct verbs_context)"), size as u64));
    for (member, offset) in ["sz", "context"].iter().zip(offsets) {
        let expression = format!("offsetof(struct verbs_context, {member})");
        all.push((expression, offset as u64));
    }
    let names = verbs_context_ops::NAMES.iter();
    let known = names.filter(|(_, added)| *added <= level.number);
    let mut offset = 0;
    for (name, _) in known {
        all.push((
            format!("offsetof(struct verbs_context_ops, {name})"),
            offset,
        ));
        offset += pointer;
    }
    all.push((String::from("sizeof(struct verbs_context_ops)"), offset));
    if level.number >= 15 {
        layout(&driver::ibv_dmah::LAYOUT, &mut all);
        layout(&driver::verbs_dmah::LAYOUT, &mut all);
    }
    if level.number >= 16 {
        let constants = [
            (
                "UVERBS_METHOD_QUERY_PORT_SPEED",
                ioctl::UVERBS_METHOD_QUERY_PORT_SPEED,
            ),
            (
                "UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM",
                ioctl::UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM,
            ),
            (
                "UVERBS_ATTR_QUERY_PORT_SPEED_RESP",
                ioctl::UVERBS_ATTR_QUERY_PORT_SPEED_RESP,
            ),
        ];
        all.extend(constants.map(|(name, value)| (String::from(name), value.into())));
    }
    if level.number >= 18 {
        layout(&driver::ibv_comp_cntr::LAYOUT, &mut all);
        layout(&driver::ibv_comp_cntr_init_attr::LAYOUT, &mut all);
        layout(&driver::ibv_qp_attach_comp_cntr_attr::LAYOUT, &mut all);
        let object = ioctl::UVERBS_OBJECT_COMP_CNTR;
        all.push((String::from("UVERBS_OBJECT_COMP_CNTR"), object.into()));
        all.push((String::from("IBV_COMP_CNTR_TYPE_WRS"), 0));
    }
    all
}

/// Returns the questions whose answers are the same in all releases.
fn questions() -> Questions {
    let mut all = Vec::new();
    let tables = [
        verbs::LAYOUTS,
        driver::LAYOUTS,
        command::LAYOUTS,
        ioctl::LAYOUTS,
    ];
    for of in tables.into_iter().flatten() {
        layout(of, &mut all);
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

/// Answers of the headers, by level.
const ANSWERS: [(u32, &str); 5] = [
    (14, include_str!("../../layout/1.14.txt")),
    (15, include_str!("../../layout/1.15.txt")),
    (16, include_str!("../../layout/1.16.txt")),
    (17, include_str!("../../layout/1.17.txt")),
    (18, include_str!("../../layout/1.18.txt")),
];

fn compare(what: &str, questions: &Questions, answers: &str) {
    let answers: BTreeMap<&str, u64> = answers
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (expression, value) = line.rsplit_once(' ').expect("expression and value");
            (expression, value.parse().expect("a number"))
        })
        .collect();
    let mut wrong = Vec::new();

    assert_eq!(
        answers.len(),
        questions.len(),
        "{what}: run layout/check.sh --update"
    );
    for (expression, ours) in questions {
        let theirs = answers.get(expression.as_str());
        if theirs != Some(ours) {
            wrong.push(format!("{expression}: ours {ours}, {what} {theirs:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn layouts_are_those_of_all_releases() {
    let answers = include_str!("../../layout/all.txt");
    compare("all releases", &questions(), answers);
}

#[test]
fn layouts_of_each_level_are_those_of_its_releases() {
    assert_eq!(
        LEVELS.each_ref().map(|level| level.number),
        ANSWERS.map(|(number, _)| number)
    );
    for (level, (number, answers)) in LEVELS.iter().zip(ANSWERS) {
        compare(&format!("level {number}"), &questions_of(level), answers);
    }
}

#[test]
fn tables_of_operations_have_the_known_number_of_members() {
    let known = |level: &Level| {
        let names = verbs_context_ops::NAMES.iter();
        names.filter(|(_, added)| *added <= level.number).count()
    };
    assert_eq!(LEVELS.each_ref().map(known), [76, 79, 81, 83, 93]);
}

#[test]
fn a_table_has_the_operations_of_its_level_only() {
    unsafe extern "C" fn operation() {}
    unsafe extern "C" fn count(_: *mut driver::ibv_comp_cntr, _: u64) -> core::ffi::c_int {
        0
    }
    let own: super::Unused = Some(operation);
    let operations = verbs_context_ops {
        alloc_buf: own,
        create_flow_action_esp: own,
        set_err_comp_cntr: Some(count),
        ..verbs_context_ops::EMPTY
    };
    for level in &LEVELS {
        let table = operations.at(level.number);
        let names = verbs_context_ops::NAMES.iter();
        let known: Vec<&str> = names
            .filter(|(_, added)| *added <= level.number)
            .map(|(name, _)| *name)
            .collect();
        let set: Vec<&str> = (0..verbs_context_ops::COUNT)
            .filter(|index| table[*index].is_some())
            .map(|index| known[index])
            .collect();
        let expected: &[&str] = match level.number {
            18 => &["alloc_buf", "create_flow_action_esp", "set_err_comp_cntr"],
            17 => &["alloc_buf", "create_flow_action_esp"],
            _ => &["create_flow_action_esp"],
        };
        assert_eq!(set, expected, "level {}", level.number);
    }
}

/// Each release is of a level that we know, with a private ABI of that level, and
/// `layout/releases` has no other symbol of the level than we do.
#[test]
fn releases_have_known_levels() {
    let mut seen = Vec::new();
    for line in include_str!("../../layout/releases").lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.starts_with('#') || words.is_empty() {
            continue;
        }
        let [release, abi, number, symbol] = words[..] else {
            panic!("{line}");
        };
        let (abi, number) = (abi.parse().expect("a number"), number.parse::<u32>());
        let level = LEVELS.iter().find(|level| Ok(level.number) == number);
        let level = level.unwrap_or_else(|| panic!("{release}: an unknown level"));
        assert!(level.private_abis.contains(&abi), "{release}");
        assert_eq!(level.symbol.to_str(), Ok(symbol), "{release}");
        seen.push((abi, level.number));
    }
    for level in &LEVELS {
        for abi in level.private_abis {
            assert!(seen.contains(&(*abi, level.number)), "{abi} {level:?}");
        }
    }
}

/// Prints the expressions, one per line, for `layout/check.sh`: those for all releases, and those
/// for each level.
#[test]
#[ignore = "prints the input of layout/check.sh"]
fn print_questions() {
    for (expression, _) in questions() {
        std::println!("QUESTION all {expression}");
    }
    for level in &LEVELS {
        for (expression, _) in questions_of(level) {
            std::println!("QUESTION {} {expression}", level.number);
        }
    }
}
