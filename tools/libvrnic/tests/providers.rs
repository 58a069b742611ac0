// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Builds and checks the shared objects that libibverbs loads, with `build.sh` and the scripts in
//! `layout/`.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Runs a script of this crate; fails with its output if it fails.
fn script(name: &str, arguments: &[&PathBuf]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
    let output = Command::new("bash")
        .arg(&path)
        .args(arguments)
        .output()
        .expect("bash runs");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    println!("{text}");
    assert!(output.status.success(), "{}: {text}", path.display());
}

/// Returns the directory of the providers, just built. `build.sh` itself checks what they export
/// and need.
fn providers() -> &'static PathBuf {
    static PROVIDERS: OnceLock<PathBuf> = OnceLock::new();
    PROVIDERS.get_or_init(|| {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("providers");
        script("build.sh", &[&directory]);
        directory
    })
}

/// Returns the sources of the releases that Debian has, which apt fetches the first time. What else
/// is there is checked, too.
fn sources() -> PathBuf {
    let cache = env::var_os("VRNIC_CACHE").map_or_else(
        || {
            let base = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || PathBuf::from(env::var_os("HOME").expect("HOME is set")).join(".cache");
            base.unwrap_or_else(home).join("vrnic")
        },
        PathBuf::from,
    );
    let directory = cache.join("rdma-core");
    script("layout/sources.sh", &[&directory]);
    directory
}

#[test]
fn providers_register_with_their_own_library_only() {
    script("layout/load.sh", &[providers()]);
}

#[test]
fn layouts_and_behaviour_agree_with_the_headers_of_releases() {
    script("layout/check.sh", &[&sources(), providers()]);
}
