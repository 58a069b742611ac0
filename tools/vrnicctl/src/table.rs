// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Prints devices, queue pairs and the like as tables or as JSON.

use std::io::Write;
use std::num::NonZeroU64;

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use vrnicd::control::protocol::{
    Address, BoundMw, Capture, CompletionCounter, Cq, Device, Explanation, Flow, Gid, Group, Mr,
    Mw, Port, Qp, RateLimit, Recording, Srq, SubnetLane, SubnetLink, SwitchPort,
};

use crate::Of;

/// A kind of item that is shown as a row of a table.
pub trait Row {
    /// Headers of the columns.
    const HEADS: &'static [&'static str];

    /// Returns the cells of the row.
    fn cells(&self) -> Vec<String>;
}

/// A counter of a port.
#[derive(Serialize)]
pub struct Counter {
    /// Name.
    pub counter: String,
    /// Value.
    pub value: u64,
}

/// The rate limit of a device.
#[derive(Serialize)]
pub struct Limit {
    /// Gigabits a second.
    pub tx_gbps: Option<f64>,
    /// Requests a second.
    pub max_iops: Option<u64>,
}

impl From<RateLimit> for Limit {
    #[expect(clippy::cast_precision_loss, reason = "people read it")]
    fn from(limit: RateLimit) -> Self {
        Self {
            tx_gbps: limit.bytes.map(|bytes| bytes.get() as f64 * 8.0 / 1e9),
            max_iops: limit.requests.map(NonZeroU64::get),
        }
    }
}

impl Row for Limit {
    const HEADS: &'static [&'static str] = &["DEVICE", "TX GBPS", "MAX IOPS"];

    fn cells(&self) -> Vec<String> {
        let cell = |rate: Option<String>| rate.unwrap_or_else(|| "-".into());
        vec![
            cell(self.tx_gbps.map(|gbps| gbps.to_string())),
            cell(self.max_iops.map(|iops| iops.to_string())),
        ]
    }
}

/// Prints a table, or a JSON array.
pub fn print<T: Serialize + Row>(rows: &[T], json: bool) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, rows)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", render(rows))?;
    }
    Ok(())
}

/// Renders a table; only its header if there are no rows.
pub fn render<T: Row>(rows: &[T]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header(T::HEADS);
    table.add_rows(rows.iter().map(Row::cells));
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}

/// Describes in one sentence what went wrong on a device.
pub fn sentence(device: &str, what: &Explanation) -> String {
    let (seconds, rest) = (
        what.nanoseconds / 1_000_000_000,
        what.nanoseconds % 1_000_000_000,
    );
    format!(
        "{device} #{} at {seconds}.{:06} s: {what}",
        what.number,
        rest / 1000
    )
}

/// Formats a number; a dash if there is none.
fn number(number: Option<u32>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

/// Formats a number; a question mark if it is unknown.
fn known(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "?".into(), |number| number.to_string())
}

impl<T: Row> Row for Of<T> {
    const HEADS: &'static [&'static str] = T::HEADS;

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.device.clone()];
        cells.extend(self.item.cells());
        cells
    }
}

impl Row for Device {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "STATE",
        "LINK",
        "VM",
        "MAC",
        "NODE GUID",
        "CONTEXTS",
        "PDS",
        "MRS",
        "CQS",
        "SRQS",
        "QPS",
        "RANGES",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            self.state.clone(),
            self.link.clone(),
            self.vm.map_or_else(|| "-".into(), |vm| vm.to_string()),
            self.mac.clone(),
            self.node_guid.clone(),
            self.contexts.to_string(),
            self.pds.to_string(),
            self.mrs.to_string(),
            self.cqs.to_string(),
            self.srqs.to_string(),
            self.qps.to_string(),
            self.translations.to_string(),
        ]
    }
}

impl Row for Port {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "PORT",
        "STATE",
        "MTU",
        "GIDS",
        "BAD PKEYS",
        "BAD QKEYS",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            "1".into(),
            self.state.clone(),
            self.mtu.to_string(),
            self.gids.to_string(),
            self.bad_pkeys.to_string(),
            self.bad_qkeys.to_string(),
        ]
    }
}

impl Row for Gid {
    const HEADS: &'static [&'static str] = &["DEVICE", "GID", "TYPE", "MAC", "VLAN"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.gid.clone(),
            self.kind.clone(),
            self.mac.clone(),
            self.vlan
                .map_or_else(|| "-".into(), |vlan| vlan.to_string()),
        ]
    }
}

impl Row for Qp {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "QPN",
        "TYPE",
        "STATE",
        "PEER",
        "PEER GID",
        "MTU",
        "SQ PSN",
        "UNACKED",
        "RQ PSN",
        "SENDS",
        "IN FLIGHT",
        "RECVS",
        "READS",
        "KBIT/S",
        "SCQ",
        "RCQ",
        "SRQ",
        "PD",
        "CONTEXT",
        "PROCESS",
    ];

    fn cells(&self) -> Vec<String> {
        let of = |posted, entries: u32| format!("{}/{entries}", known(posted));
        vec![
            self.qpn.to_string(),
            self.kind.clone(),
            self.state.clone(),
            self.peer_qpn.to_string(),
            self.peer_gid.clone().unwrap_or_else(|| "-".into()),
            self.mtu.to_string(),
            self.send_psn.to_string(),
            self.unacknowledged_psn.to_string(),
            self.receive_psn.to_string(),
            of(self.sends_posted, self.send_entries),
            self.sends_in_flight.to_string(),
            of(self.receives_posted, self.receive_entries),
            self.responses_waiting.to_string(),
            number(self.rate_limit_kbps),
            self.send_cqn.to_string(),
            self.receive_cqn.to_string(),
            number(self.srqn),
            self.pd.to_string(),
            self.context.to_string(),
            match self.pid {
                0 => self.process.clone(),
                pid => format!("{} ({pid})", self.process),
            },
        ]
    }
}

impl Row for Cq {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "CQN",
        "UNREAD",
        "ENTRIES",
        "ARMED",
        "MODERATION",
        "QPS",
        "VECTOR",
        "CONTEXT",
        "STATE",
    ];

    fn cells(&self) -> Vec<String> {
        let moderation = match self.moderation_count {
            0 | 1 => "none".into(),
            count => format!("{count} in {} us", self.moderation_period_us),
        };
        vec![
            self.cqn.to_string(),
            known(self.unread),
            self.entries.to_string(),
            known(self.armed.map(|armed| if armed { "yes" } else { "no" })),
            moderation,
            self.queue_pairs.to_string(),
            self.vector.to_string(),
            self.context.to_string(),
            if self.failed { "failed" } else { "ok" }.into(),
        ]
    }
}

impl Row for Srq {
    const HEADS: &'static [&'static str] = &[
        "DEVICE", "SRQN", "POSTED", "ENTRIES", "LIMIT", "QPS", "XRCD", "CQ", "PD", "CONTEXT",
        "STATE",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.srqn.to_string(),
            known(self.posted),
            self.entries.to_string(),
            self.limit.to_string(),
            self.queue_pairs.to_string(),
            number(self.xrcdn),
            number(self.cqn),
            self.pd.to_string(),
            self.context.to_string(),
            if self.failed { "failed" } else { "ok" }.into(),
        ]
    }
}

impl Row for Group {
    const HEADS: &'static [&'static str] = &["DEVICE", "GID", "QPS"];

    fn cells(&self) -> Vec<String> {
        let qpns: Vec<_> = self.qpns.iter().map(u32::to_string).collect();
        vec![self.gid.clone(), qpns.join(" ")]
    }
}

impl Row for Flow {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "FLOW",
        "QP",
        "TYPE",
        "PRIORITY",
        "DONT TRAP",
        "ACTIONS",
        "FRAMES",
        "BYTES",
        "FRAMES WITH",
    ];

    fn cells(&self) -> Vec<String> {
        let fields = self.fields.iter();
        let fields: Vec<_> = fields
            .map(|(name, text)| format!("{name}={text}"))
            .collect();
        vec![
            self.flow.to_string(),
            self.qpn.to_string(),
            self.kind.clone(),
            self.priority.to_string(),
            if self.dont_trap { "yes" } else { "no" }.into(),
            match (self.drops, self.tag) {
                (true, _) => "drop".into(),
                (false, 0) => "-".into(),
                (false, tag) => format!("tag {tag}"),
            },
            self.packets.to_string(),
            self.bytes.to_string(),
            if fields.is_empty() {
                "any fields".into()
            } else {
                fields.join(" ")
            },
        ]
    }
}

impl Row for CompletionCounter {
    const HEADS: &'static [&'static str] = &[
        "DEVICE",
        "COUNTER",
        "CONTEXT",
        "QPS",
        "COMPLETIONS",
        "ERRORS",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.counter.to_string(),
            self.context.to_string(),
            self.qps.to_string(),
            self.completions.to_string(),
            self.errors.to_string(),
        ]
    }
}

impl Row for Mr {
    const HEADS: &'static [&'static str] =
        &["DEVICE", "KEY", "PD", "IOVA", "LENGTH", "RANGES", "ACCESS"];

    fn cells(&self) -> Vec<String> {
        vec![
            format!("{:#010x}", self.key),
            self.pd.to_string(),
            format!("{:#x}", self.iova),
            self.length
                .map_or_else(|| "all".into(), |length| length.to_string()),
            self.translations.to_string(),
            if !self.valid {
                "not valid".into()
            } else if self.access.is_empty() {
                "local read".into()
            } else {
                self.access.join(", ")
            },
        ]
    }
}

impl Row for Mw {
    const HEADS: &'static [&'static str] = &[
        "DEVICE", "KEY", "PD", "TYPE", "MR", "IOVA", "LENGTH", "QP", "ACCESS",
    ];

    fn cells(&self) -> Vec<String> {
        let bound =
            |show: fn(&BoundMw) -> String| self.bound.as_ref().map(show).unwrap_or_default();
        vec![
            format!("{:#010x}", self.key),
            self.pd.to_string(),
            self.kind.to_string(),
            bound(|bound| format!("{:#010x}", bound.region)),
            bound(|bound| format!("{:#x}", bound.iova)),
            bound(|bound| bound.length.to_string()),
            bound(|bound| bound.qpn.to_string()),
            bound(|bound| bound.access.join(", ")),
        ]
    }
}

impl Row for SubnetLane {
    const HEADS: &'static [&'static str] = &["FROM", "TO", "LANE"];

    fn cells(&self) -> Vec<String> {
        vec![self.from.clone(), self.to.clone(), self.lane.to_string()]
    }
}

impl Row for SubnetLink {
    const HEADS: &'static [&'static str] = &["END", "OTHER END", "STATE", "BIT ERROR RATE"];

    fn cells(&self) -> Vec<String> {
        let [one, other] = self.ends.clone();
        vec![
            one,
            other,
            self.state.clone(),
            self.bit_error_rate.to_string(),
        ]
    }
}

impl Row for SwitchPort {
    const HEADS: &'static [&'static str] = &[
        "PORT",
        "RNIC",
        "BEHIND",
        "MAC",
        "MTU",
        "VLANS",
        "RX FRAMES",
        "RX BYTES",
        "TX FRAMES",
        "TX BYTES",
        "WAITING",
        "DROPS",
    ];

    fn cells(&self) -> Vec<String> {
        let state = |name: &Option<String>, up: bool| match name {
            None => "-".to_owned(),
            Some(name) => format!("{name} {}", if up { "up" } else { "down" }),
        };
        let drops: Vec<_> = self
            .drops()
            .map(|(reason, count)| format!("{reason}={count}"))
            .collect();
        vec![
            self.name.clone(),
            state(&self.device, self.rnic_up),
            state(&self.medium, self.medium_up),
            self.mac.clone().unwrap_or_else(|| "-".into()),
            self.mtu.to_string(),
            self.vlans.clone(),
            self.counter("rx_frames").to_string(),
            self.counter("rx_bytes").to_string(),
            self.counter("tx_frames").to_string(),
            self.counter("tx_bytes").to_string(),
            self.waiting.to_string(),
            if drops.is_empty() {
                "-".into()
            } else {
                drops.join(" ")
            },
        ]
    }
}

impl Row for Address {
    const HEADS: &'static [&'static str] = &["MAC", "VLAN", "PORT", "AGE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.mac.clone(),
            self.vlan
                .map_or_else(|| "all".into(), |vlan| vlan.to_string()),
            self.port.clone(),
            self.age_s
                .map_or_else(|| "own".into(), |age| format!("{age} s")),
        ]
    }
}

impl Row for Capture {
    const HEADS: &'static [&'static str] =
        &["ID", "OF", "PACKETS", "BYTES", "MISSING", "STATE", "FILE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.id.to_string(),
            self.scope(),
            self.packets.to_string(),
            self.bytes.to_string(),
            self.missing.to_string(),
            self.ended.clone().unwrap_or_else(|| "running".into()),
            self.file.clone(),
        ]
    }
}

impl Row for Recording {
    const HEADS: &'static [&'static str] = &["DEVICE", "BYTES", "STATE", "FILE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.device.clone(),
            self.bytes.to_string(),
            self.state.clone(),
            self.file.clone(),
        ]
    }
}

impl Row for Explanation {
    const HEADS: &'static [&'static str] = &["DEVICE", "WHAT"];

    fn cells(&self) -> Vec<String> {
        vec![self.to_string()]
    }
}

impl Row for Counter {
    const HEADS: &'static [&'static str] = &["DEVICE", "COUNTER", "VALUE"];

    fn cells(&self) -> Vec<String> {
        vec![self.counter.clone(), self.value.to_string()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_a_cell_for_each_head() {
        let explanation = Explanation {
            number: 3,
            nanoseconds: 1_500_000_000,
            object: 17,
            peer_qpn: 18,
            what: "sent NAK: remote access error".into(),
            why: Some("no memory region has the remote key".into()),
            cause: Some(90),
            wr_id: None,
            psn: Some(5),
            packet: Some(("RDMA WRITE".into(), 6)),
            access: None,
            count: 1,
        };
        assert_eq!(
            sentence("a", &explanation),
            "a #3 at 1.500000 s: QP 17 (peer 18): sent NAK: remote access error, to RDMA WRITE with PSN 6, PSN 5 was \
             expected: no memory region has the remote key"
        );
        let dropped = Explanation {
            what: "dropped a message and sent no answer".into(),
            psn: None,
            packet: Some(("SEND".into(), 6)),
            why: Some("no receive is posted".into()),
            ..explanation
        };
        assert_eq!(
            sentence("a", &dropped),
            "a #3 at 1.500000 s: QP 17 (peer 18): dropped a message and sent no answer, to SEND with PSN 6: no \
             receive is posted"
        );
        let mr = Of {
            device: "a".into(),
            item: Mr {
                key: 0x1234,
                pd: 1,
                access: vec!["local write".into(), "remote read".into()],
                iova: 0x1000,
                length: None,
                translations: 2,
                valid: true,
            },
        };
        assert_eq!(mr.cells().len(), Of::<Mr>::HEADS.len());
        let mw = |bound| Of {
            device: "a".into(),
            item: Mw {
                key: 0x1235,
                pd: 1,
                kind: 2,
                bound,
            },
        };
        let bound = BoundMw {
            region: 0x1234,
            iova: 0x1100,
            length: 256,
            access: vec!["remote write".into()],
            qpn: 7,
        };
        for (mw, shown) in [(mw(None), ""), (mw(Some(bound)), "0x00001234")] {
            assert_eq!(mw.cells().len(), Of::<Mw>::HEADS.len());
            assert_eq!(mw.cells()[4], shown);
        }
        let flow = |fields, drops, tag| Of {
            device: "a".into(),
            item: Flow {
                flow: 1,
                qpn: 17,
                kind: "normal".into(),
                priority: 3,
                dont_trap: false,
                tag,
                drops,
                packets: 5,
                bytes: 300,
                fields,
            },
        };
        let field = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let fields = vec![field("ether_type", "0x0800"), field("source", "10.0.0.0/8")];
        for (flow, action, shown) in [
            (flow(Vec::new(), false, 0), "-", "any fields"),
            (flow(Vec::new(), false, 7), "tag 7", "any fields"),
            (
                flow(fields, true, 0),
                "drop",
                "ether_type=0x0800 source=10.0.0.0/8",
            ),
        ] {
            assert_eq!(flow.cells().len(), Of::<Flow>::HEADS.len());
            assert_eq!(
                flow.cells(),
                [
                    "a", "1", "17", "normal", "3", "no", action, "5", "300", shown
                ]
                .map(str::to_owned)
            );
        }
        let counter = Of {
            device: "a".into(),
            item: CompletionCounter {
                counter: 1,
                context: 3,
                qps: 2,
                completions: 500,
                errors: 7,
            },
        };
        assert_eq!(counter.cells().len(), Of::<CompletionCounter>::HEADS.len());
        assert_eq!(
            counter.cells(),
            ["a", "1", "3", "2", "500", "7"].map(str::to_owned)
        );
        let shown = render(&[mr]);
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[0].starts_with("DEVICE  KEY"), "{shown}");
        assert!(lines[1].contains("0x00001234") && lines[1].ends_with("local write, remote read"));
        assert_eq!(lines.len(), 2);
    }
}
