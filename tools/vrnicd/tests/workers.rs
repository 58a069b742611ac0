// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Several workers: guests that come, send, change their memory and go, all at once, while the workers keep giving
//! their devices to each other.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vrnic_native::bench::{Load, Operation};
use vrnic_native::daemon::{Daemon, Fabric};
use vrnic_native::pair::{self, End};
use vrnic_native::queues::{Mr, request};
use vrnic_wire::work::SendOpcode;
use vrnicd::control::client::Client;

/// Number of pairs of guests.
const PAIRS: usize = 4;
/// How long they live in all.
const TIME: Duration = Duration::from_secs(6);
/// Size of each region in bytes.
const REGION: usize = 256 << 10;

fn daemon(devices: usize, settings: &str) -> Daemon {
    let program = Path::new(env!("CARGO_BIN_EXE_vrnicd"));
    let devices: Vec<_> = (0..devices)
        .map(|device| (device.to_string(), ""))
        .collect();
    Daemon::configured(program, Fabric::Local, &devices, settings).unwrap()
}

/// Writes a pattern from each guest to the other, over and over, and checks every byte.
fn exchange(ends: &mut [End; 2], rounds: u8) -> Result<()> {
    const LENGTH: usize = 70_000;
    for seed in 1..=rounds {
        for from in 0..2 {
            ends.swap(0, from);
            let [a, b] = &mut *ends;
            a.mr.area.fill(seed, 0..LENGTH);
            b.mr.area.clear(LENGTH..REGION);
            let write = request(SendOpcode::Write, 1, b.mr.target(LENGTH));
            a.qps[0].post(&mut a.vm, &write, a.mr.sge(0, LENGTH))?;
            a.sends.wait()?;
            let wrong = b.mr.area.difference(seed, LENGTH, LENGTH);
            ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
            ends.swap(0, from);
        }
    }
    Ok(())
}

/// Lets a pair of guests live once.
fn live(daemon: &Mutex<Daemon>, pair: usize, round: usize) -> Result<()> {
    let mut ends = pair::start(&mut daemon.lock().unwrap(), 2 * pair, REGION, 4096)?;
    pair::connect(&mut ends, 3, 64)?;
    exchange(&mut ends, 5)?;
    let operation = Operation::ALL[(pair + round) % 4];
    let bytes = if operation == Operation::Atomic {
        8
    } else {
        30_000
    };
    let mut load = Load::new(&mut ends, operation, bytes, 4)?;
    load.windows(&mut ends, Duration::from_millis(20))?;
    // Commands that release memory, while the device has sent things that refer to memory.
    for _ in 0..20 {
        load.fill(&mut ends)?;
        for end in &mut ends {
            let mr = Mr::new(&mut end.vm, 64 << 10)?;
            mr.deregister(&mut end.vm)?;
        }
    }
    if round.is_multiple_of(3) {
        // The receiver disappears in the midst of it, and its memory is unmapped, and then the sender does.
        let [sender, receiver] = ends;
        drop(receiver);
        std::thread::sleep(Duration::from_millis(1));
        drop(sender);
        return Ok(());
    }
    load.settle(&mut ends)?;
    load.finish(&mut ends)?;
    pair::disconnect(&mut ends)?;
    pair::connect(&mut ends, 1, 64)?;
    exchange(&mut ends, 2)
}

/// Connects to a vrnicd that may just have started.
fn client(control: &Path) -> Client {
    for _ in 0..1000 {
        if let Ok(client) = Client::connect(control) {
            return client;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no control socket");
}

/// Lets all pairs live until the time is over, while somebody asks all kinds of questions.
fn bustle(settings: &str) {
    let daemon = daemon(2 * PAIRS, settings);
    let control = daemon.control();
    let pid = daemon.pid();
    let daemon = Mutex::new(daemon);
    let over = AtomicBool::new(false);
    let lives = std::thread::scope(|scope| {
        let end = Instant::now() + TIME;
        let pairs: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let daemon = &daemon;
                scope.spawn(move || {
                    let mut rounds = 0;
                    while Instant::now() < end {
                        live(daemon, pair, rounds)
                            .with_context(|| format!("pair {pair}, round {rounds}"))
                            .unwrap();
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let asking = scope.spawn(|| {
            let mut client = client(&control);
            let mut answers = 0;
            while !over.load(Ordering::Relaxed) {
                assert_eq!(client.devices().unwrap().len(), 2 * PAIRS);
                client.qps(&(answers % (2 * PAIRS)).to_string()).unwrap();
                answers += 1;
            }
            answers
        });
        let lives: Vec<usize> = pairs.into_iter().map(|pair| pair.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        assert!(asking.join().unwrap() > 10);
        lives
    });
    assert!(lives.iter().all(|&rounds| rounds > 1), "{lives:?}");
    let log = daemon.lock().unwrap().log();
    assert!(!log.contains("panicked"), "{log}");
    // A process that has ended is a zombie until someone waits for it.
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is there");
    let (_, state) = status.rsplit_once(") ").expect("a state");
    assert!(!state.starts_with('Z'), "{status}");
}

#[test]
fn guests_come_and_go_on_restless_workers() {
    bustle("workers = 4\ntest_restless_workers = true\n");
}

#[test]
fn guests_come_and_go_on_several_workers() {
    bustle("workers = 4\npoll_us = 0\n");
}

/// Returns the CPU time of each worker, in ticks.
fn times(pid: u32) -> Vec<u64> {
    let mut times = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
    {
        let name = std::fs::read_to_string(task.path().join("comm")).unwrap();
        if name.starts_with("worker") {
            let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap();
            times.push(stat.split_whitespace().next().unwrap().parse().unwrap());
        }
    }
    times.sort_unstable();
    times
}

#[test]
fn one_pair_keeps_one_worker_awake_and_two_busy_pairs_keep_two() {
    let mut daemon = daemon(4, "workers = 3\n");
    let mut pairs = [0, 2].map(|first| pair::start(&mut daemon, first, REGION, 4096).unwrap());
    for ends in &mut pairs {
        pair::connect(ends, 8, 64).unwrap();
    }
    let [one, other] = &mut pairs;
    let mut load = Load::new(one, Operation::Write, 64 << 10, 1).unwrap();
    // A worker that was needed meanwhile still polls for a moment.
    let mut before = times(daemon.pid());
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = times(daemon.pid());
        if std::mem::replace(&mut before, now.clone()) == now {
            break;
        }
        assert!(Instant::now() < end, "workers without work do not sleep");
    }
    load.windows(one, Duration::from_millis(300)).unwrap();
    let after = times(daemon.pid());
    assert_eq!(before[..2], after[..2], "{before:?} {after:?}");
    assert!(after[2] > before[2], "{before:?} {after:?}");

    let mut loads = [
        load,
        Load::new(other, Operation::Write, 64 << 10, 1).unwrap(),
    ];
    let end = Instant::now() + Duration::from_secs(20);
    while times(daemon.pid())[1] == after[1] {
        assert!(
            Instant::now() < end,
            "the second worker sleeps: {}",
            daemon.log()
        );
        for (load, ends) in loads.iter_mut().zip(&mut pairs) {
            load.fill(ends).unwrap();
        }
    }
    for (load, ends) in loads.iter_mut().zip(&mut pairs) {
        load.settle(ends).unwrap();
    }
}
