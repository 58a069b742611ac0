// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The result as a self-contained HTML page.

use std::fmt::Write as _;

use super::Plan;
use super::case::Case;
use super::plan::Fault;
use super::verdict::Verdict;
use crate::html::escape;
use crate::vm::{Device, Fabric};

const STYLE: &str = "
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #1c2430; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid #ccd3dc; padding: .3em .6em; text-align: left; vertical-align: top; }
th { background: #f0f3f7; position: sticky; top: 0; }
td.fault { font-family: ui-monospace, monospace; font-size: 13px; }
a.cell { display: block; text-decoration: none; color: inherit; }
a.cell small { color: #3f4a59; display: block; max-width: 28em; overflow-wrap: anywhere; }
.not-reached { background: #eceff3; } .unaffected { background: #dff3e3; } .recovered { background: #d3ecf7; }
.reported { background: #fff3cd; } .hang { background: #ffd8b0; } .crash, .leak, .lost-device { background: #ffc2b8; }
.wrong-data, .kernel-report, .no-result { background: #e05a5a; color: #fff; }
.wrong-data small, .kernel-report small { color: #fff; }
pre { background: #f6f8fa; padding: .7em; overflow-x: auto; font-size: 12.5px; max-height: 30em; }
details { border-top: 1px solid #ccd3dc; padding: .4em 0; }
summary { cursor: pointer; } summary span { padding: 0 .5em; border-radius: .3em; }
";

fn class(verdict: Verdict) -> String {
    verdict.name().replace(' ', "-")
}

fn describe(fault: Option<&Fault>) -> String {
    match fault {
        Some(fault) if fault.traffic => format!("{} (when there is traffic)", fault.words()),
        Some(fault) => fault.words(),
        None => "no fault".to_owned(),
    }
}

/// Returns the command that repeats a run.
fn command(plan: &Plan, case: &Case) -> String {
    let fault = case.fault.as_ref().map_or_else(String::new, |fault| {
        if fault.scenario {
            return format!(" --scenario {}", fault.fault);
        }
        let traffic = if fault.traffic { " --traffic" } else { "" };
        format!(
            " --fault '{}' --on {}{traffic}",
            fault.fault,
            fault.on.name()
        )
    });
    let device = match (case.device, plan.at_ports) {
        (Device::Rxe, _) => " --device rxe",
        (Device::Vrnic, true) => " --ports",
        (Device::Vrnic, false) => "",
    };
    let workload = if plan.repeat.is_empty() {
        &case.profile
    } else {
        &plan.repeat
    };
    let profile = plan.profiles.iter().find(|one| one.name == case.profile);
    let rails = match profile.map_or(1, |profile| profile.rails) {
        1 => String::new(),
        rails => format!(" --rails {rails}"),
    };
    match workload.split_once("-- ") {
        Some((options, words)) => format!("vrnic-lab chaos{device}{fault} {options}-- {words}"),
        None => format!("vrnic-lab chaos{device}{rails} {workload}{fault}"),
    }
}

fn block(page: &mut String, heading: &str, text: &str) {
    if !text.trim().is_empty() {
        let _ = writeln!(
            page,
            "<p>{heading}</p><pre>{}</pre>",
            escape(text.trim_end())
        );
    }
}

/// Appends all that is known about a run.
fn evidence(page: &mut String, plan: &Plan, case: &Case, id: usize) {
    let on = case
        .fault
        .as_ref()
        .map_or_else(String::new, |fault| format!(" on the {}", fault.on.name()));
    let _ = writeln!(
        page,
        "<details id=\"run-{id}\"><summary><span class=\"{}\">{}</span> {}: {}{on}</summary>",
        class(case.verdict),
        case.verdict.name(),
        escape(&plan.title(case.device, &case.profile)),
        escape(&describe(case.fault.as_ref())),
    );
    let end = |end: &Option<super::verdict::Ending>| {
        end.as_ref()
            .map_or_else(String::new, super::verdict::Ending::text)
    };
    let fired = case.seen.fired.map_or_else(String::new, |fired| {
        format!(" The fault fired {fired} times.")
    });
    let after = case.seen.after.map_or_else(String::new, |after| {
        format!(" The client ended {after:.3} s after the fault first fired.")
    });
    let _ = writeln!(
        page,
        "<p>Client: {}. Server: {}. The client ran for {:.1} s.{fired}{after}</p>",
        escape(&end(&case.seen.client)),
        escape(&end(&case.seen.server)),
        case.seen.seconds,
    );
    for (what, text) in [
        ("The kernel says:", &case.seen.kernel),
        (
            "Objects that still existed after the programs had ended:",
            &case.seen.leak,
        ),
        ("Afterwards:", &case.seen.lost_device),
        ("Wrong data:", &case.seen.wrong_data),
    ] {
        block(page, what, text.as_deref().unwrap_or_default());
    }
    let counters: Vec<String> = case
        .seen
        .counters
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    block(
        page,
        "Counters that grew (RNIC, counter, by how much):",
        &counters.join("\n"),
    );
    block(
        page,
        "When the fault fired (seconds of the RNICs' clock):",
        &case.firings.join("\n"),
    );
    let phases = case.scenario.as_deref().unwrap_or_default();
    block(page, "The phases of the scenario:", phases);
    block(page, "Explanations of the RNICs:", &case.explain.join("\n"));
    block(page, "The client printed:", &case.output[0]);
    block(page, "The server printed:", &case.output[1]);
    block(page, "To repeat this run:", &command(plan, case));
    if let Some(capture) = &case.capture {
        let _ = writeln!(
            page,
            "<p><a download=\"run-{id}.pcapng\" href=\"data:application/vnd.tcpdump.pcap;base64,{capture}\">The packets \
             around the fault</a> (pcapng, for Wireshark)</p>"
        );
    }
    page.push_str("</details>\n");
}

/// Returns the page.
#[must_use]
pub fn html(plan: &Plan, fabric: Fabric, cases: &[Case], broken: &[String]) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>vrnic: \
         chaos</title>\n<style>{STYLE}</style></head><body>\n<h1>How programs cope with faults</h1>\n<p>Each cell is \
         a run of a workload between two VMs, with one fault {}; the fabric is {}. Click on a cell for the \
         evidence.</p>\n<ul>\n",
        if plan.at_ports {
            "at the switch port of one of them"
        } else {
            "in one of their RNICs"
        },
        fabric.name()
    );
    for profile in &plan.profiles {
        let _ = writeln!(
            page,
            "<li><b>{}</b>: {}</li>",
            escape(&profile.name),
            escape(&profile.about)
        );
    }
    page.push_str("</ul>\n<p>");
    for verdict in Verdict::ALL {
        let _ = write!(
            page,
            "<span class=\"{}\">&nbsp;{}&nbsp;</span> {}.<br>",
            class(verdict),
            verdict.name(),
            verdict.meaning()
        );
    }
    page.push_str("</p>\n<table><tr><th>fault</th><th>on the</th>");
    for (device, profile) in plan.columns() {
        let title = plan.title(device, &profile.name);
        let _ = write!(page, "<th>{}</th>", escape(&title));
    }
    page.push_str("</tr>\n");
    let faults = std::iter::once(None).chain(plan.faults.iter().map(Some));
    for fault in faults {
        let on = fault.map_or("", |fault| fault.on.name());
        let _ = write!(
            page,
            "<tr><td class=\"fault\">{}</td><td>{on}</td>",
            escape(&describe(fault))
        );
        for (device, profile) in plan.columns() {
            let found = cases
                .iter()
                .position(|case| case.is_of(device, profile, fault));
            match found {
                Some(id) => {
                    let case = &cases[id];
                    let _ = write!(
                        page,
                        "<td class=\"{}\"><a class=\"cell\" href=\"#run-{id}\">{}<small>{}</small></a></td>",
                        class(case.verdict),
                        case.verdict.name(),
                        escape(&case.summary())
                    );
                }
                None if fault.is_some_and(|fault| !fault.fits(profile)) => {
                    page.push_str("<td></td>");
                }
                None => page.push_str("<td class=\"no-result\">no result</td>"),
            }
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
    if !broken.is_empty() {
        block(&mut page, "Runs without a result:", &broken.join("\n"));
    }
    page.push_str("<h2>Evidence</h2>\n");
    for (id, case) in cases.iter().enumerate() {
        evidence(&mut page, plan, case, id);
    }
    page.push_str(
        "<script>function show() { const run = document.getElementById(location.hash.slice(1)); if (run) run.open = true; }\n\
         addEventListener('hashchange', show); show();</script>\n</body></html>\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::plan::{Side, faults, profiles};
    use crate::chaos::verdict::Seen;

    fn plan() -> Plan {
        Plan {
            devices: vec![Device::Vrnic],
            at_ports: false,
            profiles: profiles().unwrap(),
            faults: faults().unwrap(),
            fail_on: Vec::new(),
            out: "out".into(),
            repeat: String::new(),
            json: false,
        }
    }

    fn case() -> Case {
        Case {
            device: Device::Vrnic,
            profile: "pingpong".into(),
            fault: Some(Fault {
                fault: "drop type=rc".into(),
                scenario: false,
                on: Side::Server,
                traffic: true,
            }),
            verdict: Verdict::Reported,
            seen: Seen::default(),
            firings: Vec::new(),
            scenario: None,
            explain: Vec::new(),
            output: ["<script>\u{1b}[2J&".into(), String::new()],
            capture: None,
        }
    }

    #[test]
    fn what_programs_print_is_text() {
        let page = html(&plan(), Fabric::Local, &[case()], &[]);
        assert!(page.contains("&lt;script&gt;\u{fffd}[2J&amp;"));
        assert_eq!(page.matches("<script>").count(), 1);
        assert!(page.contains("no result"));
    }

    #[test]
    fn devices_stand_beside_each_other() {
        let plan = Plan {
            devices: vec![Device::Vrnic, Device::Rxe],
            at_ports: true,
            ..plan()
        };
        let soft = Case {
            device: Device::Rxe,
            verdict: Verdict::Hang,
            ..case()
        };
        let page = html(&plan, Fabric::Roce, &[case(), soft], &[]);
        assert!(page.contains("<th>pingpong (vrnic)</th><th>pingpong (rxe)</th>"));
        assert!(page.contains("vrnic-lab chaos --device rxe pingpong"));
        assert!(page.contains("vrnic-lab chaos --ports pingpong"));
    }

    #[test]
    fn commands_repeat_a_run() {
        let mut plan = plan();
        assert_eq!(
            command(&plan, &case()),
            "vrnic-lab chaos pingpong --fault 'drop type=rc' --on server --traffic"
        );
        let mut scene = case();
        if let Some(fault) = &mut scene.fault {
            (fault.fault, fault.scenario) = ("gid-changes".into(), true);
        }
        assert_eq!(
            command(&plan, &scene),
            "vrnic-lab chaos pingpong --scenario gid-changes"
        );
        let of_rails = Case {
            profile: "rails".into(),
            ..scene
        };
        for profile in &mut plan.profiles {
            profile.rails = if profile.rails > 1 { 8 } else { 1 };
        }
        assert_eq!(
            command(&plan, &of_rails),
            "vrnic-lab chaos --rails 8 rails --scenario gid-changes"
        );
        plan.at_ports = true;
        assert_eq!(
            command(&plan, &case()),
            "vrnic-lab chaos --ports pingpong --fault 'drop type=rc' --on server --traffic"
        );
        plan.at_ports = false;
        plan.repeat = "--listen 7 -- serve --- ask".into();
        assert_eq!(
            command(&plan, &case()),
            "vrnic-lab chaos --fault 'drop type=rc' --on server --traffic --listen 7 -- serve --- ask"
        );
    }
}
