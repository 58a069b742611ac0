// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

use super::*;
use vrnicd::control::protocol::{Port, RateLimit};

/// A device `a` whose state changes at each look.
#[derive(Default)]
struct Theatre {
    now: Duration,
    faults: Vec<Fault>,
    next: u64,
    /// The actions, in order.
    done: Vec<String>,
    link_up: bool,
    timeouts: u64,
    explained: Vec<(u64, String)>,
    /// How many times armed faults fire at each pause.
    fires: u64,
    /// When the user interrupts the scenario.
    ends: Option<Duration>,
}

impl Stage for Theatre {
    fn arm(&mut self, device: &str, fault: &str) -> Result<u64> {
        if fault.starts_with("stuck") {
            bail!("no");
        }
        self.next += 1;
        self.done.push(format!("arm {device} {fault}"));
        self.faults.push(Fault {
            id: self.next,
            fault: fault.into(),
            progress: "armed".into(),
            seen: 0,
            fired: 0,
        });
        Ok(self.next)
    }

    fn clear(&mut self, device: &str, id: u64) -> Result<()> {
        self.done.push(format!("clear {device} {id}"));
        self.faults.retain(|fault| fault.id != id);
        Ok(())
    }

    fn faults(&mut self, _: &str) -> Result<Vec<Fault>> {
        Ok(self.faults.clone())
    }

    fn set_link(&mut self, device: &str, up: bool) -> Result<()> {
        self.done.push(format!("link {device} {up}"));
        self.link_up = up;
        Ok(())
    }

    fn device(&mut self, device: &str) -> Result<Device> {
        if device != "a" {
            bail!("no device is named {device:?}");
        }
        Ok(Device {
            name: device.into(),
            mac: String::new(),
            node_guid: String::new(),
            state: "up".into(),
            link: String::new(),
            rate_limit: RateLimit::default(),
            vm: None,
            contexts: 0,
            pds: 0,
            mrs: 0,
            cqs: 0,
            srqs: 0,
            qps: 0,
            translations: 0,
            port: Some(Port {
                state: if self.link_up { "active" } else { "down" }.into(),
                mtu: 1024,
                gids: 0,
                bad_pkeys: 0,
                bad_qkeys: 0,
                counters: vec![("timeouts".into(), self.timeouts)],
            }),
        })
    }

    fn queue_pairs(&mut self, _: &str, state: &str) -> Result<u64> {
        Ok(u64::from(state == "rts"))
    }

    fn explained(&mut self, _: &str, from: u64) -> Result<Vec<(u64, String)>> {
        let all = self.explained.iter();
        Ok(all.filter(|(number, _)| *number >= from).cloned().collect())
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn pause(&mut self) -> Result<()> {
        self.now += Duration::from_millis(100);
        for fault in &mut self.faults {
            fault.fired += self.fires;
        }
        self.timeouts += 1;
        self.explained
            .push((self.explained.len() as u64, "retries are used up".into()));
        if self.ends.is_some_and(|end| self.now >= end) {
            bail!("interrupted");
        }
        Ok(())
    }
}

fn theatre() -> Theatre {
    Theatre {
        link_up: true,
        fires: 1,
        timeouts: 70,
        explained: vec![(0, "retries are used up".into())],
        ..Theatre::default()
    }
}

/// Returns whether all went well, or why the scenario ended, and the outcomes.
fn run(stage: &mut Theatre, phases: &str) -> (Result<bool>, Vec<PhaseOutcome>) {
    let text = format!("about = \"x\"\ndevice = \"a\"\ntimeout = 2\n{phases}");
    let scenario = Scenario::parse(&text).unwrap();
    let mut outcomes = Vec::new();
    let good = play(&scenario, stage, |outcome| {
        outcomes.push(outcome);
        Ok(())
    });
    (good, outcomes)
}

#[test]
fn phases_follow_each_other_when_what_they_wait_for_is_true() {
    let mut stage = theatre();
    let (good, outcomes) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "lose"
        arm = [{ fault = "drop nth=1" }, { fault = "delay" }]
        wait = [{ fired = "drop", at_least = 3 }, { seconds = 0.5 }]
        [[phase]]
        name = "look"
        clear = true
        arm = [{ fault = "drop nth=2" }]
        wait = [{ fired = "drop", at_least = 7 }]
        expect = [
            { counter = "timeouts", at_least = 2, at_most = 2 },
            { explained = "used up", at_least = 2, at_most = 2 },
            { qps = "rts" }, { qps = "err", at_most = 0 },
            { port = "active" }, { state = "up" },
        ]
        "#,
    );
    assert!(good.unwrap(), "{outcomes:?}");
    assert_eq!(outcomes[0].armed.len(), 2);
    assert!((outcomes[0].seconds - 0.5).abs() < 1e-9);
    assert!(
        (outcomes[1].seconds - 0.2).abs() < 1e-9,
        "firings of cleared faults count"
    );
    assert_eq!(
        stage.done,
        [
            "arm a drop nth=1",
            "arm a delay",
            "clear a 1",
            "clear a 2",
            "arm a drop nth=2",
            "clear a 3"
        ]
    );
}

#[test]
fn a_wait_ends_with_its_time_and_the_scenario_with_it() {
    let mut stage = theatre();
    stage.fires = 0;
    let (good, outcomes) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "never"
        timeout = 0.3
        link = [{ state = "down" }]
        arm = [{ fault = "drop" }]
        wait = [{ port = "down" }, { fired = "drop" }]
        [[phase]]
        name = "not reached"
        "#,
    );
    assert!(!good.unwrap());
    let [outcome] = &outcomes[..] else {
        panic!("{outcomes:?}");
    };
    let holds: Vec<_> = outcome
        .findings
        .iter()
        .map(|finding| finding.holds)
        .collect();
    assert_eq!(holds, [true, false]);
    assert_eq!(outcome.findings[1].found, "0");
    assert!((outcome.seconds - 0.3).abs() < 1e-9);
    assert_eq!(
        stage.done,
        ["link a false", "arm a drop", "clear a 1", "link a true"],
        "nothing is left behind"
    );
}

#[test]
fn an_expectation_that_is_not_met_ends_the_scenario() {
    let mut stage = theatre();
    let (good, outcomes) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "one"
        expect = [{ counter = "timeouts" }]
        [[phase]]
        name = "two"
        "#,
    );
    assert!(!good.unwrap());
    assert_eq!(outcomes.len(), 1);
}

#[test]
fn a_port_of_the_switch_has_faults() {
    let mut stage = theatre();
    stage.fires = 1;
    let (good, _) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "the switch loses a packet"
        arm = [{ fault = "drop type=rc", device = "port:b" }]
        wait = [{ fired = "drop", device = "port:b" }]
        "#,
    );
    assert!(good.unwrap());
    assert_eq!(stage.done, ["arm port:b drop type=rc", "clear port:b 1"]);
}

#[test]
fn who_interrupts_leaves_nothing_behind() {
    let mut stage = theatre();
    stage.ends = Some(Duration::from_millis(300));
    let (good, outcomes) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "long"
        link = [{ state = "down" }]
        arm = [{ fault = "drop" }]
        wait = [{ seconds = 1 }]
        "#,
    );
    assert!(format!("{:#}", good.unwrap_err()).contains("interrupted"));
    assert!(outcomes.is_empty());
    assert!(stage.faults.is_empty() && stage.link_up);
}

#[test]
fn what_cannot_be_done_is_told_and_the_rest_undone() {
    let mut stage = theatre();
    let (good, _) = run(
        &mut stage,
        r#"
        [[phase]]
        name = "one"
        arm = [{ fault = "drop" }, { fault = "stuck" }]
        "#,
    );
    assert_eq!(format!("{:#}", good.unwrap_err()), "phase \"one\": no");
    assert!(stage.faults.is_empty());
    for (condition, told) in [
        ("counter = \"nothing\"", "no counter \"nothing\""),
        ("port = \"active\", device = \"z\"", "no device is named"),
    ] {
        let (good, _) = run(
            &mut theatre(),
            &format!("[[phase]]\nname = \"x\"\nexpect = [{{ {condition} }}]"),
        );
        let error = format!("{:#}", good.unwrap_err());
        assert!(error.contains(told), "{error}");
    }
}
