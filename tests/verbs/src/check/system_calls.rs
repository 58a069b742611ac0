// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Posting and polling make no system call. A child process posts and polls while this one traces it.

use std::process::Command;

use super::pair::Loop;
use super::{BUFFER, Case, Env};
use crate::ensure;
use crate::ffi::ibv_wc;
use crate::stress::{During, Failure, Outcome};
use crate::trace::{mark, sections};
use crate::verbs::{Context, Cq, Interface, Pd, SendOp, SendWr, WC_SUCCESS};

pub(super) const CASES: &[Case] = &[("data-path-makes-no-system-call", makes_none)];

/// Times that every operation is posted.
const ROUNDS: usize = 50;
/// Polls that find nothing before that is an error: minutes, counted because a clock may be a system call.
const POLLS: u64 = 1 << 27;

fn makes_none(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let program = std::env::current_exe().during("finding this program")?;
    let mut seen = sections(
        Command::new(program)
            .args([
                "--device",
                env.context.name(),
                "--gid",
                &env.gid.index.to_string(),
            ])
            .arg("--data-path"),
    )
    .during("watching a process")?;
    // With one processor, who polls in vain lets others go first: what it waits for may be one of them.
    if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
        for calls in &mut seen {
            calls.retain(|&call| call != libc::SYS_sched_yield as u64);
        }
    }
    let [_before, known, legacy, extended, _after] = &seen[..] else {
        return Err(Failure(format!("{} sections, not 5", seen.len())));
    };
    ensure!(
        known[..] == [libc::SYS_getppid as u64],
        "{known:?} is not the one call that was made to see whether calls are seen"
    );
    ensure!(
        legacy.is_empty() && extended.is_empty(),
        "system calls {legacy:?} by ibv_post_* and ibv_poll_cq, {extended:?} by ibv_wr_* and ibv_start_poll"
    );
    Ok(())
}

/// The process that is watched.
pub fn data_path(device: Option<&str>, gid: Option<u8>) -> Outcome<()> {
    let context = Context::open(device).during("opening the device")?;
    let gid = context.gid(gid).during("looking for a GID")?;
    let pd = Pd::new(&context).during("ibv_alloc_pd")?;
    let legacy = Loop::new(&pd, gid, Interface::Legacy)?;
    let extended = Loop::new(&pd, gid, Interface::Extended)?;
    // What is allocated or resolved at first use is there afterwards.
    rounds(&legacy, 1)?;
    rounds(&extended, 1)?;
    mark();
    let _ = std::os::unix::process::parent_id();
    mark();
    rounds(&legacy, ROUNDS)?;
    mark();
    rounds(&extended, ROUNDS)?;
    mark();
    Ok(())
}

/// Every operation, so many times.
fn rounds(pair: &Loop, count: usize) -> Outcome<()> {
    let Loop { qps, cq, mr } = pair;
    let (far, key) = (mr.addr(BUFFER), mr.rkey());
    for _ in 0..count {
        let receive = [mr.sge(BUFFER, BUFFER)];
        (qps[1].post_recv(&[(2, &receive)])).map_err(|e| Failure(e.error.to_string()))?;
        for (op, len, completions) in [
            (SendOp::Send, BUFFER, 2),
            (SendOp::Write(far, key), BUFFER, 1),
            (SendOp::Read(far, key), BUFFER, 1),
            (SendOp::FetchAdd(far, key, 1), 8, 1),
        ] {
            let sge = [mr.sge(0, len)];
            (qps[0].post_send(&[SendWr::new(1, op, &sge)]))
                .map_err(|e| Failure(e.error.to_string()))?;
            for _ in 0..completions {
                completion(cq)?;
            }
        }
    }
    Ok(())
}

fn completion(cq: &Cq) -> Outcome<()> {
    let mut wc = [ibv_wc::default()];
    for _ in 0..POLLS {
        if cq.poll(&mut wc).during("polling")? == 1 {
            ensure!(wc[0].status == WC_SUCCESS, "{:?}", wc[0]);
            return Ok(());
        }
        std::hint::spin_loop();
    }
    Err(Failure("no completion".into()))
}
