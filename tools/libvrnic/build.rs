// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Builds a library to link against. It has the symbols of libibverbs that a provider uses, with
//! their versions but without code. So any machine can build a provider for each private ABI,
//! whatever libibverbs it has.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=src/ffi/functions.rs");
    println!("cargo::rerun-if-changed=build.rs");
    // The newest one: its feature includes the older ones.
    let Some(abi) = ["65", "64", "59", "57", "34"]
        .into_iter()
        .find(|abi| feature(abi))
    else {
        return;
    };
    println!("cargo::rustc-env=VRNIC_PRIVATE_ABI={abi}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    make_stub(&out, abi);
    println!("cargo::rustc-link-search=native={}", out.display());
    println!("cargo::rustc-link-lib=dylib=ibverbs");
}

fn feature(abi: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_PABI{abi}")).is_some()
}

fn make_stub(out: &Path, abi: &str) {
    let source = fs::read_to_string("src/ffi/functions.rs").expect("functions.rs is readable");
    let mut names: Vec<&str> = source
        .lines()
        .filter_map(|line| line.trim().strip_prefix("pub fn "))
        .map(|rest| &rest[..rest.find('(').expect("a function has arguments")])
        .filter(|name| *name != "verbs_register_driver")
        .collect();
    let register = format!("verbs_register_driver_{abi}");
    names.push(&register);
    names.sort_unstable();
    names.dedup();

    let is_public = |name: &&&str| ["ibv_dofork_range", "ibv_dontfork_range"].contains(*name);
    let mut code = String::new();
    let mut versions = String::from("IBVERBS_1.1 { global:\n");
    for name in names.iter().filter(is_public) {
        writeln!(versions, "\t{name};").expect("strings grow");
    }
    writeln!(versions, "}};\nIBVERBS_PRIVATE_{abi} {{ global:").expect("strings grow");
    for name in &names {
        if !is_public(&name) {
            writeln!(versions, "\t{name};").expect("strings grow");
        }
        writeln!(code, "void {name}(void) {{}}").expect("strings grow");
    }
    versions.push_str("local: *; };\n");

    let (code_file, version_file) = (out.join("stub.c"), out.join("stub.map"));
    fs::write(&code_file, code).expect("OUT_DIR is writable");
    fs::write(&version_file, versions).expect("OUT_DIR is writable");
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args([
            "-shared",
            "-fPIC",
            "-nostdlib",
            "-Wl,-soname,libibverbs.so.1",
        ])
        .arg(format!("-Wl,--version-script={}", version_file.display()))
        .arg("-o")
        .arg(out.join("libibverbs.so"))
        .arg(&code_file)
        .status();
    match status {
        Ok(status) if status.success() => {}
        other => panic!("{compiler} did not make a stub of libibverbs: {other:?}"),
    }
}
