// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The live view: counters as rates, the queue pairs with work, and what went wrong since the last look.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Device, Explanation, Qp};

use crate::table::{render, sentence};
use crate::{Of, chosen};

/// Queue pairs of a device that are shown.
const QPS_SHOWN: usize = 20;
/// Explanations of a device that are shown.
const EXPLANATIONS_SHOWN: usize = 10;
/// Queue pairs of a device up to which all of them are asked for at each look.
const QPS_ASKED: u32 = 4096;

/// What one look at a device sees.
#[derive(Serialize)]
struct Look {
    #[serde(flatten)]
    device: Device,
    /// Counters per second since the last look.
    rates: BTreeMap<String, f64>,
    /// Queue pairs with work, the busiest first.
    busy: Vec<Qp>,
    /// What went wrong since the last look.
    explanations: Vec<Explanation>,
}

/// What the look before saw of a device.
struct Before {
    at: Instant,
    counters: BTreeMap<String, u64>,
    /// Number of the next explanation.
    next: u64,
}

/// Looks every `interval`, `count` times or until interrupted.
pub fn run(
    client: &mut Client,
    device: Option<&str>,
    interval: Duration,
    count: Option<u64>,
    json: bool,
) -> Result<()> {
    let mut before = BTreeMap::new();
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        let mut looks = Vec::new();
        for device in chosen(client, device)? {
            looks.push(look(client, device, &mut before)?);
        }
        show(&looks, json)?;
        if left > 0 {
            std::thread::sleep(interval);
        }
    }
    Ok(())
}

fn look(
    client: &mut Client,
    device: Device,
    before: &mut BTreeMap<String, Before>,
) -> Result<Look> {
    let now = Instant::now();
    let last = before.remove(&device.name);
    let counters = device.port.as_ref().map(|port| port.counters.clone());
    let counters: BTreeMap<String, u64> = counters.unwrap_or_default().into_iter().collect();
    let mut rates = BTreeMap::new();
    if let Some(last) = &last {
        let seconds = (now - last.at).as_secs_f64().max(1e-3);
        for (name, value) in &counters {
            // After a reset of the device they count from 0.
            let change = value.saturating_sub(last.counters.get(name).copied().unwrap_or(0));
            if change > 0 {
                #[allow(clippy::cast_precision_loss, reason = "for people")]
                rates.insert(name.clone(), change as f64 / seconds);
            }
        }
    }
    let mut busy = if device.qps <= QPS_ASKED {
        client.qps(&device.name)?
    } else {
        Vec::new()
    };
    let work = |qp: &Qp| u64::from(qp.sends_posted.unwrap_or(0)) + qp.responses_waiting as u64;
    busy.retain(|qp| work(qp) > 0);
    busy.sort_by_key(|qp| std::cmp::Reverse(work(qp)));
    busy.truncate(QPS_SHOWN);
    let from = last.map_or(0, |last| last.next);
    let mut explanations = client.explanations(&device.name, from)?;
    let next = explanations.last().map_or(from, |last| last.number + 1);
    let skip = explanations.len().saturating_sub(EXPLANATIONS_SHOWN);
    explanations.drain(..skip);
    before.insert(
        device.name.clone(),
        Before {
            at: now,
            counters,
            next,
        },
    );
    Ok(Look {
        device,
        rates,
        busy,
        explanations,
    })
}

fn show(looks: &[Look], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, looks)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if out.is_terminal() {
        // Home, and clear.
        write!(out, "\x1b[H\x1b[2J")?;
    }
    for look in looks {
        let device = &look.device;
        writeln!(
            out,
            "{} {}: {} contexts, {} QPs, {} CQs, {} MRs",
            device.name, device.state, device.contexts, device.qps, device.cqs, device.mrs
        )?;
        for (name, rate) in &look.rates {
            writeln!(out, "  {name:28} {rate:16.0} /s")?;
        }
        let busy: Vec<_> = look
            .busy
            .iter()
            .map(|qp| Of {
                device: device.name.clone(),
                item: qp.clone(),
            })
            .collect();
        if !busy.is_empty() {
            writeln!(out, "{}", render(&busy))?;
        }
        for what in &look.explanations {
            writeln!(out, "  {}", sentence(&device.name, what))?;
        }
    }
    writeln!(out)?;
    Ok(out.flush()?)
}
