// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A process that misuses its own RNIC context in every way it can. Run well-behaved programs beside it: they must not
//! notice.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes and numbers of tests fit, and their bytes are cut out of random numbers"
)]

mod attacks;
mod provider;
mod uverbs;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use attacks::{Range, attacks};
use provider::Port;
use verbs_tests::args::Args;
use verbs_tests::rng::fresh_seed;

const USAGE: &str = "\
vrnic-abuse [options]

Attacks a vrnic device as a hostile process: fills rings, notify area, doorbell page and commands with garbage.

  --device NAME     RDMA device (default vrnic0)
  --seed N          use this seed, to repeat a run
  --seconds N       duration of each random attack (default 3)
  --only WORD       run only attacks whose name contains WORD
  --list            print the names of the attacks
";

fn main() -> ExitCode {
    let args = Args::parse(USAGE, &["device", "seed", "seconds", "only"], &["list"]);
    if args.flag("list") {
        for (name, _) in attacks() {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    let device = args.get("device").unwrap_or_else(|| "vrnic0".to_owned());
    let seed = args.get("seed").unwrap_or_else(fresh_seed);
    let Some(port) = Port::of(&device) else {
        println!("FAIL  {device} does not exist or has no GID");
        return ExitCode::FAILURE;
    };
    println!("vrnic-abuse seed {seed}");
    let range = Range {
        device,
        port,
        seed,
        duration: Duration::from_secs(args.get("seconds").unwrap_or(3)),
    };
    let only: Option<String> = args.get("only");
    let mut failures = 0;
    for (name, attack) in attacks() {
        if only
            .as_ref()
            .is_some_and(|word| !name.contains(word.as_str()))
        {
            continue;
        }
        let begin = Instant::now();
        match attack(&range) {
            Ok(()) => println!("ok    {name} ({:.1} s)", begin.elapsed().as_secs_f64()),
            Err(e) => {
                println!(
                    "FAIL  {name} ({:.1} s, seed {seed}): {e}",
                    begin.elapsed().as_secs_f64()
                );
                failures += 1;
            }
        }
    }
    if failures == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
