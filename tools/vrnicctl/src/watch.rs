// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! `vrnicctl watch`, the live view. It shows counters of devices and of the switch as rates, queue pairs with work, and
//! failures since the last update.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use vrnicd::control::client::Client;
use vrnicd::control::protocol::{Device, Explanation, Qp, SwitchPort};

use crate::table::{render, sentence};
use crate::{Of, chosen};

/// Largest number of queue pairs shown per device.
const QPS_SHOWN: usize = 20;
/// Largest number of explanations shown per device.
const EXPLANATIONS_SHOWN: usize = 10;
/// If a device has more queue pairs than this, they are not queried at each look.
const QPS_ASKED: u32 = 4096;

/// The state of a device at one look.
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

/// The state of a switch port at one look.
#[derive(Serialize)]
struct PortLook {
    #[serde(flatten)]
    port: SwitchPort,
    /// Counters per second since the last look.
    rates: BTreeMap<String, f64>,
}

/// Everything seen at one look.
#[derive(Serialize)]
struct View {
    devices: Vec<Look>,
    switch: Vec<PortLook>,
}

/// Counters at the last look.
struct Counted {
    at: Instant,
    values: BTreeMap<String, u64>,
}

impl Counted {
    fn new(counters: &[(String, u64)]) -> Self {
        Self {
            at: Instant::now(),
            values: counters.iter().cloned().collect(),
        }
    }

    /// Returns the changes per second since `last` of those counters that changed.
    fn rates(&self, last: Option<&Self>) -> BTreeMap<String, f64> {
        let Some(last) = last else {
            return BTreeMap::new();
        };
        let seconds = (self.at - last.at).as_secs_f64().max(1e-3);
        let changed = self.values.iter().filter_map(|(name, value)| {
            // After a reset of the device, counters start from 0.
            let change = value.saturating_sub(last.values.get(name).copied().unwrap_or(0));
            #[allow(clippy::cast_precision_loss, reason = "for people")]
            (change > 0).then(|| (name.clone(), change as f64 / seconds))
        });
        changed.collect()
    }
}

/// What was seen of a device at the previous look.
struct Before {
    counted: Counted,
    /// Number of the next explanation.
    next: u64,
}

/// Shows the view every `interval`, `count` times or until interrupted.
pub fn run(
    client: &mut Client,
    device: Option<&str>,
    interval: Duration,
    count: Option<u64>,
    json: bool,
) -> Result<()> {
    let (mut before, mut ports_before) = (BTreeMap::new(), BTreeMap::new());
    let mut left = count.unwrap_or(u64::MAX);
    while left > 0 {
        left -= 1;
        let mut devices = Vec::new();
        for device in chosen(client, device)? {
            devices.push(look(client, device, &mut before)?);
        }
        let mut switch = client.switch()?;
        switch.retain(|port| device.is_none() || port.device.as_deref() == device);
        let switch = switch
            .into_iter()
            .map(|port| look_at_port(port, &mut ports_before))
            .collect();
        show(&View { devices, switch }, json)?;
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
    let last = before.remove(&device.name);
    let counters = device.port.as_ref().map(|port| port.counters.as_slice());
    let counted = Counted::new(counters.unwrap_or_default());
    let rates = counted.rates(last.as_ref().map(|last| &last.counted));
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
    before.insert(device.name.clone(), Before { counted, next });
    Ok(Look {
        device,
        rates,
        busy,
        explanations,
    })
}

fn look_at_port(port: SwitchPort, before: &mut BTreeMap<String, Counted>) -> PortLook {
    let counted = Counted::new(&port.counters);
    let rates = counted.rates(before.get(&port.name));
    before.insert(port.name.clone(), counted);
    PortLook { port, rates }
}

fn show(view: &View, json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer(&mut out, view)?;
        writeln!(out)?;
        return Ok(out.flush()?);
    }
    if out.is_terminal() {
        // Moves the cursor home and clears the screen.
        write!(out, "\x1b[H\x1b[2J")?;
    }
    for look in &view.devices {
        let device = &look.device;
        writeln!(
            out,
            "{} {}: {} contexts, {} QPs, {} CQs, {} MRs",
            device.name, device.state, device.contexts, device.qps, device.cqs, device.mrs
        )?;
        show_rates(&mut out, &look.rates)?;
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
    for look in view.switch.iter().filter(|look| !look.rates.is_empty()) {
        writeln!(out, "switch port {}", look.port.name)?;
        show_rates(&mut out, &look.rates)?;
    }
    writeln!(out)?;
    Ok(out.flush()?)
}

fn show_rates(out: &mut impl Write, rates: &BTreeMap<String, f64>) -> Result<()> {
    for (name, rate) in rates {
        writeln!(out, "  {name:28} {rate:16.0} /s")?;
    }
    Ok(())
}
