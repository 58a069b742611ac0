// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Many devices, connections and faults in virtual time, and what has to hold whatever happens:
//!
//! * the simulation ends;
//! * each request completes exactly once, in order, with a status that the faults allow; what follows
//!   the first error is flushed;
//! * memory holds what completed requests moved, and nothing that nobody sent;
//! * whom no fault concerns notices nothing;
//! * when all objects are destroyed, the devices are as they were.
//!
//! A failure prints its smallest form: few connections, few requests, few faults. Recordings of its devices are kept
//! for `vrnic-replay`, and their names printed.
//! `PROPTEST_CASES=n cargo test --release -p vrnic-engine --test simulation` runs n simulations.

mod faults;
mod link;

use faults::{Fault, KNOWN, fault};
use link::{Link, LinkPlan, link};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner},
};
use std::{panic::catch_unwind, path::PathBuf, time::Duration};
use vrnic_engine::{
    RnicConfig, Segmentation, Snapshot,
    testing::{Faults, World},
};

/// What is simulated.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    segmentation: Segmentation,
    devices: usize,
    /// What goes wrong between the devices, for all of them.
    fabric: Faults,
    links: Vec<LinkPlan>,
    faults: Vec<Fault>,
    /// Microseconds between one round of requests and the next.
    pause: u64,
}

fn plan() -> impl Strategy<Value = Plan> {
    let segmentation = prop_oneof![Just(Segmentation::Local), Just(Segmentation::PathMtu)];
    let fabric = prop_oneof![
        2 => Just(Faults::default()),
        1 => (0u32..40, 0u32..40, 0u32..80, 0u32..300).prop_map(|(drop, duplicate, delay, mark)| {
            Faults { drop, duplicate, delay, mark, ..Faults::default() }
        }),
    ];
    let size = prop_oneof![
        10 => (2usize..5, 1usize..8),
        3 => (4usize..12, 8usize..24),
        1 => (12usize..24, 24usize..80),
    ];
    (any::<u64>(), segmentation, fabric, size, 0u64..300).prop_flat_map(
        |(seed, segmentation, fabric, (devices, links), pause)| {
            let links = vec(link(devices), 1..=links);
            let faults = vec(fault(devices), 0..=devices.min(6));
            (links, faults).prop_map(move |(links, faults)| Plan {
                seed,
                segmentation,
                devices,
                fabric,
                links,
                faults,
                pause,
            })
        },
    )
}

impl Plan {
    /// Whether nothing goes wrong between these devices.
    fn is_sound_between(&self, nodes: [usize; 2]) -> bool {
        let Faults {
            drop,
            duplicate,
            delay,
            ..
        } = self.fabric;
        drop + duplicate + delay == 0
            && !self
                .faults
                .iter()
                .any(|fault| nodes.contains(&fault.device))
    }

    /// Objects of each device.
    fn objects(world: &World) -> Vec<Snapshot> {
        world
            .nodes
            .iter()
            .map(|node| node.rnic.snapshot())
            .collect()
    }

    /// Runs it. One in eight is recorded, and has to replay; or `all`, and the recordings are kept if it fails.
    fn run(&self, all: bool) {
        let config = RnicConfig {
            segmentation: self.segmentation,
            ..RnicConfig::default()
        };
        let pages = 1024 + self.links.len() * 2 * Link::PAGES;
        let configs = vec![config; self.devices];
        let mut world = if all || self.seed.is_multiple_of(8) {
            World::recorded(&configs, pages, self.seed)
        } else {
            World::of(&configs, pages, self.seed)
        };
        world.keep = all.then(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("failure"));
        let before = Self::objects(&world);
        let mut links: Vec<Link> = self
            .links
            .iter()
            .map(|plan| Link::new(plan, &mut world))
            .collect();
        world.faults = self.fabric;
        for fault in &self.faults {
            let now = world.now;
            let text = fault.text();
            let spec = text.parse().unwrap_or_else(|why| panic!("{text}: {why}"));
            let mut faults = world.nodes[fault.device].rnic.faults_mut();
            faults.arm(spec, now).expect("room for a fault");
        }
        for round in 0..link::MOST {
            for link in &mut links {
                link.post(round, &mut world);
            }
            world.run(Duration::from_micros(self.pause));
        }
        // Far more than all timeouts and faults together.
        world.run(Duration::from_secs(2));
        assert!(world.is_idle(), "the simulation does not end");
        for link in &mut links {
            let concerned = |fault: &&Fault| link.nodes().contains(&fault.device);
            let concerning: Vec<&Fault> = self.faults.iter().filter(concerned).collect();
            link.check(&mut world, self.is_sound_between(link.nodes()), &concerning);
        }
        for link in links {
            link.destroy(&mut world);
        }
        for node in &mut world.nodes {
            node.rnic.faults_mut().clear(None);
        }
        world.settle();
        let left = |at: usize| (before[at].clone(), world.nodes[at].rnic.snapshot());
        for (before, after) in (0..self.devices).map(left) {
            assert_eq!(
                format!("{before:?}"),
                format!("{after:?}"),
                "objects are left"
            );
        }
    }
}

fn cases() -> u32 {
    match std::env::var("PROPTEST_CASES") {
        Ok(_) => Config::default().cases,
        Err(_) => 400,
    }
}

/// Simulations that the search for a smaller failure may take.
const SHRINKING: u32 = 1000;

fn simulate(mut runner: TestRunner) {
    let result = runner.run(&plan(), |plan| {
        plan.run(false);
        Ok(())
    });
    if let Err(failure) = result {
        if let TestError::Fail(_, plan) = &failure {
            // Once more, for its recordings.
            let _ = catch_unwind(|| plan.run(true));
        }
        panic!("{failure}");
    }
}

/// The same simulations in each run.
#[test]
fn known_simulations() {
    let config = Config {
        cases: cases(),
        failure_persistence: None,
        max_shrink_iters: Config::default().max_shrink_iters.min(SHRINKING),
        ..Config::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    simulate(TestRunner::new_with_rng(config, random));
}

/// Others in each run.
#[test]
fn new_simulations() {
    simulate(TestRunner::new(Config {
        cases: cases(),
        source_file: Some(file!()),
        max_shrink_iters: Config::default().max_shrink_iters.min(SHRINKING),
        ..Config::default()
    }));
}

#[test]
fn all_faults_are_well_formed() {
    for index in 0..KNOWN.len() {
        for n in [2, 9] {
            let text = Fault {
                device: 0,
                index,
                n,
            }
            .text();
            text.parse::<vrnic_engine::fault::Spec>()
                .unwrap_or_else(|why| panic!("{text}: {why}"));
        }
    }
}
