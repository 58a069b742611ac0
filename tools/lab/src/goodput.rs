// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! What comes through a wire that loses, repeats and reorders frames: vrnic and rxe on the same line of vrnicd's
//! switch, by the same seed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::lab::{Extra, Lab, Module, Options, SHORT};
use crate::perf::{self, End, Pair};
use crate::progress::Step;
use crate::report::{Entry, align, bandwidth};
use crate::settings::Settings;
use crate::vm::{Device, Fabric, NAMES};

/// Shares of frames that are lost in each direction.
const LOSSES: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.1];
/// Programs that are run: one per loss and device.
pub const RUNS: usize = LOSSES.len() * 2;
/// What is measured, for people.
pub const PROGRAM: &str = "ib_write_bw, 64 KiB, two VMs";
/// perftest's arguments: for a number of seconds, of which the first and the last do not count.
const ARGS: &str = "-s 65536 -D 8 -f 1";
/// How long a program may take. Its own connection (TCP) has the same wire.
const PATIENCE: Duration = Duration::from_secs(90);

/// The line of the configuration that makes a port's wire lose frames. A wire without loss is a good one.
fn impairment(loss: f64) -> Option<String> {
    (loss > 0.0).then(|| {
        format!(
            "impairment = {{ seed = 7, loss = {loss}, duplicate = 0.01, reorder = 0.01, reorder_delay_us = 200 }}"
        )
    })
}

/// Measures this alone and prints the table; `out` gets the logs.
///
/// # Errors
/// As [`measure`]; or a program of vrnic failed, or vrnicd did.
pub fn run(settings: &Settings, out: &Path) -> Result<()> {
    let step = Step::of("programs", RUNS);
    let mut clean = true;
    let results = measure(settings, out, &step, &mut clean)?;
    step.done();
    println!("\n{}", table(&results));
    let failed = results
        .iter()
        .any(|entry| entry.exit != 0 && entry.device == Device::Vrnic.name());
    if failed || !clean {
        bail!("vrnic failed; see {}", out.display());
    }
    Ok(())
}

/// Runs both devices on a wire of each loss: vrnic first, then rxe on the virtio-net of the same VMs with the RNIC's
/// driver gone, so that its frames take the same way. One entry per loss and device.
///
/// # Errors
/// A lab did not come up. What a program does is in its entry.
pub fn measure(
    settings: &Settings,
    out: &Path,
    step: &Step,
    clean: &mut bool,
) -> Result<Vec<Entry>> {
    let mut results = Vec::new();
    for loss in LOSSES {
        let lab = Lab::boot(
            &settings.with_fabric(Fabric::Roce),
            Options {
                device: Device::Vrnic,
                logs: out.join(format!("logs-loss-{loss}")),
                vrnicd: Extra {
                    port: impairment(loss).into_iter().collect(),
                    ..Extra::default()
                },
                no_rnic: false,
                module: Module::Plain,
            },
        )?;
        for device in [Device::Vrnic, Device::Rxe] {
            step.at(&format!("{} {ARGS} at {}", device.name(), percent(loss)));
            let mut ends = Vec::new();
            for name in NAMES {
                if device == Device::Rxe {
                    let script = "rmmod vrnic && modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0";
                    lab.agent(name)?.check(&["sh", "-c", script], SHORT)?;
                }
                ends.push(End::new(name, device, lab.wait_rdma(name, device)?));
            }
            let [client, server] = [ends[0].clone(), ends[1].clone()];
            let pair = Pair::new("ib_write_bw", ARGS, client, server);
            let mut entry = perf::run_on_bad_wire(&lab, &pair, PATIENCE);
            entry.loss = Some(loss);
            if let Some(error) = &entry.error {
                step.note(&format!("{} at {}: {error}", device.name(), percent(loss)));
            }
            step.advance();
            results.push(entry);
        }
        *clean &= lab.shut_down();
    }
    Ok(results)
}

/// The results, vrnic beside rxe.
#[must_use]
pub fn table(results: &[Entry]) -> String {
    let mut rows = vec![["frames lost", "vrnic", "rxe"].map(str::to_owned)];
    for loss in LOSSES {
        let cell = |device: Device| {
            let found = results
                .iter()
                .find(|entry| entry.loss == Some(loss) && entry.device == device.name());
            match found {
                Some(entry) if entry.exit == 0 => entry
                    .bandwidth_bytes_per_s
                    .map(bandwidth)
                    .unwrap_or_default(),
                Some(entry) if entry.error.as_deref().is_some_and(connection_died) => {
                    "connection died".to_owned()
                }
                Some(_) => "no result".to_owned(),
                None => String::new(),
            }
        };
        rows.push([percent(loss), cell(Device::Vrnic), cell(Device::Rxe)]);
    }
    format!(
        "goodput ({PROGRAM}); from 0.1 % on also 1 % of frames twice and 1 % late by 200 us\n{}",
        align(&rows)
    )
}

/// Whether an error of perftest is that a work request completed with one.
fn connection_died(error: &str) -> bool {
    error.contains("Completion with error")
}

/// A share as people write it.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares() {
        let shares = LOSSES.map(percent);
        assert_eq!(shares, ["0 %", "0.1 %", "1 %", "5 %", "10 %"]);
        assert!(impairment(0.0).is_none());
        assert!(impairment(0.05).unwrap().contains("loss = 0.05,"));
    }

    #[test]
    fn the_table_says_what_died() {
        let entry = |device: &str, error: Option<&str>| Entry {
            device: device.into(),
            loss: Some(0.1),
            exit: i32::from(error.is_some()),
            error: error.map(str::to_owned),
            bandwidth_bytes_per_s: error.is_none().then_some(5e6),
            ..Entry::default()
        };
        let row = |error| {
            let text = table(&[entry("vrnic", None), entry("rxe", Some(error))]);
            let words = text.lines().last().unwrap().split_whitespace();
            words.collect::<Vec<_>>().join(" ")
        };
        let died = " Completion with error at client\n Failed status 12: wr_id 0";
        assert_eq!(row(died), "10 % 5.0 MB/s connection died");
        assert_eq!(row("Couldn't connect to b"), "10 % 5.0 MB/s no result");
    }
}
