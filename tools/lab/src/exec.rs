// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnic-lab exec`: runs a command in one VM, or in several in parallel.

use std::path::Path;
use std::thread;

use anyhow::Result;
use serde_json::{Value, json};
use vrnic_lab::protocol::Stream;

use crate::control::{self, Ask};
use crate::output;
use crate::status::Status;

/// The command to run.
pub struct Command {
    /// Names of the VMs; none for all.
    pub vms: Option<Vec<String>>,
    /// Seconds after which it is killed.
    pub timeout: u64,
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Whether to print JSON.
    pub json: bool,
}

/// Result in a VM.
pub struct Outcome {
    /// Name of the VM.
    pub vm: String,
    /// Exit code of the program.
    pub code: i32,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it printed to standard error.
    pub stderr: Vec<u8>,
}

/// Runs the command in VMs of the lab with this control socket. Returns the first exit code that is not 0.
///
/// # Errors
/// The lab has ended, or has no such VM.
pub fn run(control: &Path, command: &Command) -> Result<i32> {
    let vms = if let Some(vms) = &command.vms {
        vms.clone()
    } else {
        let (_, text) = control::ask(control, &Ask::Status)?;
        let status: Status = serde_json::from_str(&text)?;
        status.vms.into_iter().map(|vm| vm.name).collect()
    };
    if let ([vm], false) = (&vms[..], command.json) {
        return Ok(control::ask(control, &request(vm, command))?.0);
    }
    let outcomes: Vec<Result<Outcome>> = thread::scope(|scope| {
        let threads: Vec<_> = vms
            .iter()
            .map(|vm| scope.spawn(move || in_vm(control, vm, command)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"))
            .collect()
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>>>()?;
    if command.json {
        let list: Vec<Value> = outcomes.iter().map(Outcome::json).collect();
        output::print_json(&list)?;
    }
    let mut codes = outcomes.iter().map(|outcome| outcome.code);
    Ok(codes.find(|code| *code != 0).unwrap_or(0))
}

fn request(vm: &str, command: &Command) -> Ask {
    Ask::Exec {
        vm: vm.to_owned(),
        argv: command.argv.clone(),
        timeout: command.timeout,
    }
}

/// Runs the command in a VM. Prints whole lines as they arrive, or keeps them for JSON.
fn in_vm(control: &Path, vm: &str, command: &Command) -> Result<Outcome> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (code, _) = control::run(control, &request(vm, command), &mut |stream, bytes| {
        let kept = match stream {
            Stream::Out => &mut stdout,
            Stream::Err => &mut stderr,
        };
        kept.extend_from_slice(bytes);
        if !command.json
            && let Some(end) = kept.iter().rposition(|&byte| byte == b'\n')
        {
            print(vm, stream, &kept.drain(..=end).collect::<Vec<_>>())?;
        }
        Ok(())
    })?;
    if !command.json {
        print(vm, Stream::Out, &stdout)?;
        print(vm, Stream::Err, &stderr)?;
    }
    Ok(Outcome {
        vm: vm.to_owned(),
        code,
        stdout,
        stderr,
    })
}

/// Prints lines, each with the name of the VM.
fn print(vm: &str, stream: Stream, lines: &[u8]) -> Result<()> {
    let text = String::from_utf8_lossy(lines);
    let mut named = String::new();
    for line in text.lines() {
        named.extend([vm, ": ", line, "\n"]);
    }
    output::pass_on(stream, named.as_bytes())
}

impl Outcome {
    /// Returns it as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!({
            "vm": self.vm,
            "exit": self.code,
            "stdout": String::from_utf8_lossy(&self.stdout),
            "stderr": String::from_utf8_lossy(&self.stderr),
        })
    }
}
