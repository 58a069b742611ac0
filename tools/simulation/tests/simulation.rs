// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Runs simulations: the same ones in each run, and new ones.
//!
//! `VRNIC_SEED=n` runs only the simulation of seed n. `VRNIC_SECONDS=n` runs new ones on all CPUs until n virtual
//! seconds have passed.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    panic::{catch_unwind, resume_unwind},
    path::Path,
    sync::Mutex,
    time::{Duration, Instant},
};
use vrnic_simulation::{
    failure::{report, run},
    plan::Plan,
    world::Tally,
};

/// Number of simulations in each run: with the seeds from 0 on, and with new seeds.
const SHARE: [u64; 2] = [400, 400];

/// Returns a number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text} is not a number")),
    )
}

/// Runs the simulation of a seed. If it fails, reports the smallest plan that does.
fn simulate(seed: u64) -> Tally {
    let plan = Plan::new(seed);
    run(&plan)
        .unwrap_or_else(|_| panic!("{}", report(&plan, Path::new(env!("CARGO_TARGET_TMPDIR")))))
}

/// Where lines repeat a third of all frames, a shared receive queue gets far more messages than were sent. Completion
/// queues have room for them; the first two of these simulations failed when they had not.
#[test]
fn repeated_messages_find_room_in_completion_queues() {
    let mut count = 0;
    for seed in [7_609_471_113_436, 7_609_471_113_042]
        .into_iter()
        .chain(0..1000)
    {
        let mut plan = Plan::new(seed);
        plan.flows
            .retain(|flow| !flow.is_reliable() && flow.shared.contains(&true));
        if plan.flows.is_empty() || plan.switches == 0 || plan.devices.len() > 12 {
            continue;
        }
        plan.faults.clear();
        plan.resets.clear();
        plan.outages.clear();
        plan.circles.clear();
        let lines = plan.devices.iter_mut().flat_map(|device| &mut device.lines);
        for line in lines.chain([&mut plan.trunk]) {
            line.duplicate = 20_000;
            line.lateness = Duration::from_micros(20);
        }
        run(&plan).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        count += 1;
    }
    assert!(count > 50, "{count}");
}

fn tell(tally: &Tally, since: Instant) {
    println!("{tally:#?}\nin {:.1} s", since.elapsed().as_secs_f64());
}

#[test]
fn known_seeds() {
    let start = Instant::now();
    let mut tally = Tally::default();
    match number("VRNIC_SEED") {
        Some(seed) => tally += simulate(seed),
        None if number("VRNIC_SECONDS").is_some() => return,
        None => {
            for seed in 0..SHARE[0] {
                tally += simulate(seed);
            }
            let reached = [
                tally.faults,
                tally.page_faults,
                tally.group_messages,
                tally.extended,
                tally.registrations,
                tally.losses,
                tally.panics,
                tally.outages,
            ];
            assert!(
                reached.iter().all(|count| *count > 10),
                "some things never happen: {tally:#?}"
            );
        }
    }
    tell(&tally, start);
}

#[test]
fn new_seeds() {
    if number("VRNIC_SEED").is_some() {
        return;
    }
    let start = Instant::now();
    let first = RandomState::new().build_hasher().finish() >> 20;
    println!("seeds from {first} on");
    let seconds = number("VRNIC_SECONDS").map(Duration::from_secs);
    let threads = match seconds {
        Some(_) => std::thread::available_parallelism().map_or(1, usize::from),
        None => 1,
    };
    let all = Mutex::new((first, Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = {
                        let mut all = all.lock().expect("nobody panics with it");
                        let enough = match seconds {
                            Some(seconds) => all.1.time >= seconds,
                            None => all.0 - first >= SHARE[1],
                        };
                        if enough {
                            return;
                        }
                        all.0 += 1;
                        all.0 - 1
                    };
                    let done = catch_unwind(|| simulate(seed));
                    let mut all = all.lock().expect("nobody panics with it");
                    match done {
                        Ok(tally) => all.1 += tally,
                        Err(failure) => {
                            // Makes the other threads end as well.
                            (all.0, all.1.time) = (u64::MAX, Duration::MAX);
                            drop(all);
                            resume_unwind(failure);
                        }
                    }
                }
            });
        }
    });
    let (_, tally) = all.into_inner().expect("nobody panics with it");
    tell(&tally, start);
}
