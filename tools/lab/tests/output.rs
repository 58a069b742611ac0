// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Commands whose reader leaves early, as `grep -q` does, end as if it had stayed.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_left_is_no_failure() {
    let directory = tempfile::tempdir().expect("a directory");
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["chaos", "--list"],
        &["down", "nobody", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_vrnic-lab"))
            .args(words)
            .env("XDG_RUNTIME_DIR", directory.path())
            .stdin(Stdio::null())
            .stdout(writer)
            .stderr(Stdio::piped())
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{words:?}: {} {said}",
            output.status
        );
    }
}
