// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Goodput on a wire that loses, repeats and reorders frames: vrnic and rxe on the same line of vrnicd's switch, with
//! the same seed. On an InfiniBand subnet, a link damages bits, so that as many packets are lost. perftest measures but
//! does not check any data, so a stress test of vrnic that checks every byte follows.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use vrnicd::control::client::Client;

use crate::lab::{Extra, Lab, Module, Options, SHORT};
use crate::output::say;
use crate::perf::{self, End, Pair};
use crate::progress::Step;
use crate::report::{Entry, align, bandwidth};
use crate::settings::Settings;
use crate::vm::{Device, Fabric, Family, NAMES};

/// Fractions of frames that are lost in each direction.
const LOSSES: [f64; 5] = [0.0, 0.001, 0.01, 0.05, 0.1];
/// Number of programs: one per loss and device, one on InfiniBand, and one on each fabric that checks vrnic's data.
pub const RUNS: usize = LOSSES.len() * 5;
/// Number of those on InfiniBand.
const RUNS_ON_SUBNET: usize = LOSSES.len() * 2;
/// Description of the measurement for display.
pub const PROGRAM: &str = "ib_write_bw, 64 KiB, two VMs";
/// perftest's arguments: the duration in seconds, and how many seconds at the start and the end do not count.
const ARGS: &str = "-s 65536 -D 8 -f 1";
/// Checks every byte and completion of random traffic in both directions.
const STRESS: &str = "vrnic-stress";
/// Arguments of the stress test at both ends. A connection without progress for this long is a failure.
const STRESS_ARGS: &str = "--seconds 8 --qps 4 --max-size 131072 --patience 60";
/// How long a program may take. Its own TCP connection uses the same wire.
const PATIENCE: Duration = Duration::from_secs(90);

/// Bits of a packet of InfiniBand with 4096 bytes of a write: those, the headers LRH and BTH, and both CRCs.
const PACKET_BITS: f64 = 8.0 * (4096.0 + 8.0 + 12.0 + 4.0 + 2.0);

/// Returns the probability that a bit arrives wrong with which this fraction of full packets is lost.
fn bit_error_rate(loss: f64) -> f64 {
    1.0 - (1.0 - loss).powf(1.0 / PACKET_BITS)
}

/// Returns the configuration line that makes a port's wire lose frames. Without loss, the wire is perfect.
fn impairment(loss: f64) -> Option<String> {
    (loss > 0.0).then(|| {
        format!(
            "impairment = {{ seed = 7, loss = {loss}, duplicate = 0.01, reorder = 0.01, reorder_delay_us = 200 }}"
        )
    })
}

/// Measures only this and prints the table: on all fabrics, or only on InfiniBand if the settings say so. The logs go
/// to `out`.
///
/// # Errors
/// The same as for [`measure`], or a program of vrnic failed, or vrnicd did.
pub fn run(settings: &Settings, out: &Path) -> Result<()> {
    let alone = settings.fabric == Fabric::Infiniband;
    let step = Step::of("programs", if alone { RUNS_ON_SUBNET } else { RUNS });
    let mut clean = true;
    let results = if alone {
        on_subnet(settings, out, &step, &mut clean)?
    } else {
        measure(settings, out, &step, &mut clean)?
    };
    step.done();
    say!("\n{}", table(&results));
    let failed = results
        .iter()
        .any(|entry| entry.exit != 0 && entry.device == Device::Vrnic.name());
    if failed || !clean {
        bail!("vrnic failed; see {}", out.display());
    }
    Ok(())
}

/// Runs both devices on a wire with each loss: first vrnic, then rxe on the virtio-net of the same VMs without the
/// RNIC's driver, so that its frames take the same path. Then vrnic on an InfiniBand subnet. Returns one entry per
/// loss, device and fabric, and one per loss and fabric for the bytes checked.
///
/// # Errors
/// A lab did not come up. Failures of programs are in their entries.
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
            let ends: [End; 2] = ends.try_into().expect("two VMs");
            let [client, server] = ends.clone();
            let pair = Pair::new("ib_write_bw", ARGS, client, server);
            results.push(rate(&lab, &pair, loss, step));
            if device == Device::Vrnic {
                results.push(check_bytes(&lab, &ends, loss, step)?);
            }
        }
        *clean &= lab.shut_down();
    }
    results.extend(on_subnet(settings, out, step, clean)?);
    Ok(results)
}

/// Measures the goodput of a pair on a wire with this loss.
fn rate(lab: &Lab, pair: &Pair, loss: f64, step: &Step) -> Entry {
    let mut entry = perf::run_on_bad_wire(lab, pair, PATIENCE);
    entry.loss = Some(loss);
    if let Some(error) = &entry.error {
        let name = pair.client.device.name();
        step.note(&format!("{name} at {}: {error}", percent(loss)));
    }
    step.advance();
    entry
}

/// Measures vrnic on an InfiniBand subnet in which the link of VM a's HCA damages bits.
fn on_subnet(settings: &Settings, out: &Path, step: &Step, clean: &mut bool) -> Result<Vec<Entry>> {
    let lab = Lab::boot(
        &settings.with_fabric(Fabric::Infiniband),
        Options {
            device: Device::Vrnic,
            logs: out.join("logs-bit-errors"),
            vrnicd: Extra::default(),
            no_rnic: false,
            module: Module::Plain,
        },
    )?;
    let ends = End::of_rnics(&lab)?;
    let [client, server] = ends.clone();
    let mut pair = Pair::new("ib_write_bw", ARGS, client, server);
    pair.by_lid = true;
    let mut vrnicd = Client::connect(&lab.control())?;
    let mut results = Vec::new();
    for loss in LOSSES {
        step.at(&format!("infiniband {ARGS} at {}", percent(loss)));
        vrnicd.set_subnet_link(NAMES[0], None, Some(bit_error_rate(loss)))?;
        results.push(rate(&lab, &pair, loss, step));
        results.push(check_bytes(&lab, &ends, loss, step)?);
    }
    *clean &= lab.shut_down();
    Ok(results)
}

/// Runs the stress test between the two ends and counts what it checked.
///
/// # Errors
/// A VM is gone. Failures of the stress test are in its entry.
fn check_bytes(lab: &Lab, [client, server]: &[End; 2], loss: f64, step: &Step) -> Result<Entry> {
    let fabric = lab.settings.fabric.name();
    step.at(&format!("{STRESS} on {fabric} at {}", percent(loss)));
    let start = Instant::now();
    let run = |end: &End, role: &str| {
        let (device, gid) = (end.device.ibdev(), end.gid);
        let line = format!("{STRESS} --device {device} --gid {gid} {STRESS_ARGS} {role}");
        let argv: Vec<&str> = line.split_whitespace().collect();
        lab.agent(&end.vm)?.start(&argv, &[])
    };
    let programs = [
        run(server, "--server")?,
        run(
            client,
            &format!("--client {}", lab.address(&server.vm, Family::V4)?),
        )?,
    ];
    let mut entry = Entry {
        program: STRESS.to_owned(),
        args: STRESS_ARGS.to_owned(),
        device: client.device.name().to_owned(),
        path: "vm-vm".to_owned(),
        fabric: fabric.to_owned(),
        loss: Some(loss),
        ..Entry::default()
    };
    let mut checked = 0;
    for program in programs {
        let error = match program.wait(PATIENCE) {
            Ok(output) => match checked_bytes(&output.stdout) {
                Some(bytes) if output.code == 0 => {
                    checked += bytes;
                    continue;
                }
                _ => output.text(),
            },
            Err(error) => format!("{error:#}"),
        };
        step.note(&format!(
            "{STRESS} on {fabric} at {}: {error}",
            percent(loss)
        ));
        entry.exit = 1;
        entry.error = Some(error);
    }
    entry.checked_bytes = Some(checked);
    entry.seconds = start.elapsed().as_secs_f64();
    step.advance();
    Ok(entry)
}

/// Returns the number of bytes that the stress test reports as checked.
fn checked_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("PASS: "))?;
    let (before, _) = line.split_once(" bytes")?;
    before.rsplit(' ').next()?.parse().ok()
}

/// Returns whether the entry is a rate that this module measured.
#[must_use]
pub fn is_rate(entry: &Entry) -> bool {
    entry.loss.is_some() && entry.program != STRESS
}

/// Names of the measured lines, and the device and the fabric of their entries.
pub const LINES: [(&str, Device, Fabric); 3] = [
    ("vrnic", Device::Vrnic, Fabric::Roce),
    ("infiniband", Device::Vrnic, Fabric::Infiniband),
    ("rxe", Device::Rxe, Fabric::Roce),
];

/// Returns whether the entry is a rate of one of [`LINES`].
#[must_use]
pub fn is_of(entry: &Entry, (_, device, fabric): &(&str, Device, Fabric)) -> bool {
    is_rate(entry) && entry.device == device.name() && entry.fabric == fabric.name()
}

/// Returns the table of results, vrnic next to rxe.
#[must_use]
pub fn table(results: &[Entry]) -> String {
    let [roce, infiniband, rxe] = LINES.map(|line| line.0);
    let heading = [
        "packets lost",
        roce,
        infiniband,
        rxe,
        "vrnic, every byte checked",
        "infiniband, every byte checked",
    ];
    let mut rows = vec![heading.map(str::to_owned)];
    for loss in LOSSES {
        let cell = |line| {
            let found = results
                .iter()
                .find(|entry| is_of(entry, line) && entry.loss == Some(loss));
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
        let checked = |fabric: Fabric| {
            let is_of = |entry: &&Entry| {
                entry.program == STRESS && entry.fabric == fabric.name() && entry.loss == Some(loss)
            };
            match results.iter().find(is_of) {
                None => String::new(),
                Some(Entry {
                    checked_bytes: Some(bytes),
                    exit: 0,
                    ..
                }) => format!("{bytes}, all right"),
                Some(_) => "FAILED".to_owned(),
            }
        };
        let [roce, infiniband, rxe] = LINES.each_ref().map(cell);
        let [of_roce, of_infiniband] = [Fabric::Roce, Fabric::Infiniband].map(checked);
        rows.push([percent(loss), roce, infiniband, rxe, of_roce, of_infiniband]);
    }
    format!(
        "goodput ({PROGRAM}); on Ethernet, from 0.1 % on also 1 % of frames twice and 1 % late by 200 us; on \
         InfiniBand, packets are lost because bits are damaged\n{}",
        align(&rows)
    )
}

/// Returns whether perftest's error is a work request that completed with an error.
fn connection_died(error: &str) -> bool {
    error.contains("Completion with error")
}

/// Formats a fraction as a percentage.
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
        assert!(bit_error_rate(0.0).abs() < f64::EPSILON);
        let rate = bit_error_rate(0.01);
        assert!((3.04e-7..3.06e-7).contains(&rate), "1 % in 33 kbit: {rate}");
    }

    #[test]
    fn what_the_stress_has_checked() {
        let text =
            "side 0: vrnic0\nPASS: 1722 operations, 8231754 bytes, 118 batches checked, 0 events";
        assert_eq!(checked_bytes(text), Some(8_231_754));
        assert_eq!(checked_bytes("FAIL (seed 1): 3 bytes differ"), None);
        let entry = |exit| Entry {
            program: STRESS.into(),
            device: "vrnic".into(),
            fabric: "infiniband".into(),
            loss: Some(0.05),
            exit,
            checked_bytes: Some(700),
            ..Entry::default()
        };
        assert!(!is_rate(&entry(0)));
        assert!(table(&[entry(0)]).contains("700, all right"));
        let failed = table(&[entry(1)]);
        assert!(failed.contains("FAILED") && !failed.contains("right"));
    }

    #[test]
    fn the_table_says_what_died() {
        let entry = |device: &str, fabric: &str, error: Option<&str>| Entry {
            device: device.into(),
            fabric: fabric.into(),
            loss: Some(0.1),
            exit: i32::from(error.is_some()),
            error: error.map(str::to_owned),
            bandwidth_bytes_per_s: error.is_none().then_some(5e6),
            ..Entry::default()
        };
        let row = |error| {
            let text = table(&[
                entry("vrnic", "roce", None),
                Entry {
                    bandwidth_bytes_per_s: Some(7e6),
                    ..entry("vrnic", "infiniband", None)
                },
                entry("rxe", "roce", Some(error)),
            ]);
            let words = text.lines().last().unwrap().split_whitespace();
            words.collect::<Vec<_>>().join(" ")
        };
        let died = " Completion with error at client\n Failed status 12: wr_id 0";
        assert_eq!(row(died), "10 % 5.0 MB/s 7.0 MB/s connection died");
        assert_eq!(
            row("Couldn't connect to b"),
            "10 % 5.0 MB/s 7.0 MB/s no result"
        );
    }
}
