// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Commands whose reader leaves early, as `grep -q` does, end as if it had stayed. With `--json`, standard output is
//! JSON and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

#[test]
fn a_reader_that_left_is_no_failure() {
    let directory = tempfile::tempdir().expect("a directory");
    for words in [
        &["status"][..],
        &["status", "--json"],
        &["chaos", "--list"],
        &["chaos", "--list", "--json"],
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

#[test]
fn workloads_and_faults_are_listed_as_json() {
    let list = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_vrnic-lab"))
            .args(["chaos", "--list", "--json"])
            .args(words)
            .output()
            .expect("it starts");
        assert!(output.status.success() && output.stderr.is_empty());
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")
    };
    let all = list(&[]);
    let of = |list: &Value, kind: &str, key: &str, name: &str| {
        let mut entries = list[kind].as_array().expect("an array").iter();
        entries
            .find(|entry| entry[key] == name)
            .cloned()
            .expect(name)
    };
    let rails = of(&all, "workloads", "name", "rails");
    assert_eq!(rails["rails"], 4);
    assert_eq!(
        of(&list(&["--rails", "8"]), "workloads", "name", "rails")["rails"],
        8
    );
    assert_eq!(
        of(&list(&["--rails", "2"]), "workloads", "name", "pingpong")["rails"],
        1
    );
    let flap = of(&all, "faults", "fault", "rails/port-flap");
    assert_eq!(
        (&flap["scenario"], &flap["at_ports"]),
        (&json!(true), &json!(false))
    );
}

/// Stands for a running lab: runs `vrnic-lab ctl --json` with one request, which gets these answers. Returns the
/// request, what the command printed, and its exit code.
fn ctl(request: &[&str], answers: &[Value]) -> (Value, Value, Option<i32>) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("control");
    let listener = UnixListener::bind(&path).expect("a socket");
    let command = Command::new(env!("CARGO_BIN_EXE_vrnic-lab"))
        .args(["ctl", "--json"])
        .args(request)
        .env("LAB_CONTROL", &path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut stream, _) = listener.accept().expect("a client");
    let mut line = String::new();
    let mut reader = BufReader::new(stream.try_clone().expect("the stream"));
    reader.read_line(&mut line).expect("a request");
    for answer in answers {
        writeln!(stream, "{answer}").expect("a client");
    }
    let output = command.wait_with_output().expect("it ends");
    let printed = serde_json::from_slice(&output.stdout).expect("JSON");
    (
        serde_json::from_str(&line).expect("JSON"),
        printed,
        output.status.code(),
    )
}

#[test]
fn answers_of_a_lab_are_printed_as_json() {
    let (asked, printed, code) = ctl(&["ssh-port", "a"], &[json!({ "done": "2222" })]);
    assert_eq!(asked, json!({ "fact": ["ssh-port", "a"] }));
    let expected = json!({ "exit": 0, "answer": "2222", "stdout": "", "stderr": "" });
    assert_eq!((printed, code), (expected, Some(0)));
    let answers = [
        json!({ "output": ["out", "bGF0ZW5jeQo="] }),
        json!({ "output": ["err", "c2xvdwo="] }),
        json!({ "end": 3 }),
    ];
    let (_, printed, code) = ctl(&["perf", "a", "b", "ib_write_lat"], &answers);
    let expected = json!({ "exit": 3, "answer": "", "stdout": "latency\n", "stderr": "slow\n" });
    assert_eq!((printed, code), (expected, Some(3)));
}
