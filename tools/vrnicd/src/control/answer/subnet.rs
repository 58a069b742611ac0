// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Requests about the InfiniBand subnet: showing and changing its links, and showing a credit loop.

use vrnic_infiniband::credits::Channel;
use vrnic_infiniband::subnet::{LinkId, NodeId, Subnet};

use super::{PAGE, Timed, page};
use crate::control::protocol::{Reply, Request, SubnetLane, SubnetLink};
use crate::fabric::SubnetFabric;
use crate::fabric::routing::name;

/// Answers a request about the subnet.
pub fn answer(request: &Request, fabric: Option<&mut Timed<'_, SubnetFabric>>) -> Reply {
    let Some(&mut Timed {
        it: ref mut fabric,
        now,
    }) = fabric
    else {
        return Reply::Error("no device is on an InfiniBand subnet".into());
    };
    let done = match request {
        Request::SubnetLinks { from } => {
            let subnet = fabric.subnet();
            let found: Vec<_> = subnet.links().skip(*from).take(PAGE).collect();
            let found = (!found.is_empty()).then_some(found);
            return Reply::SubnetLinks(page(found, *from, |link| view(subnet, link)));
        }
        Request::SubnetCreditLoop { from } => {
            let (subnet, lanes) = (fabric.subnet(), fabric.routing().credit_loop());
            let found: Vec<_> = lanes.iter().skip(*from).take(PAGE).collect();
            let found = (!found.is_empty()).then_some(found);
            return Reply::SubnetLanes(page(found, *from, |lane| view_lane(subnet, lane)));
        }
        Request::SetSubnetLink {
            end,
            up,
            bit_error_rate,
        } => link(fabric.subnet(), end).and_then(|link| {
            if let Some(rate) = bit_error_rate.filter(|rate| !(0.0..=1.0).contains(rate)) {
                return Err(format!("bit error rate {rate}: must be 0 to 1"));
            }
            fabric.change(now, |subnet| {
                if let Some(rate) = *bit_error_rate {
                    subnet.set_bit_error_rate(link, rate);
                }
                if let Some(up) = *up {
                    subnet.set_link(link, up);
                }
            });
            Ok(())
        }),
        Request::SetSubnetSwitch { switch, up } => {
            self::switch(fabric.subnet(), switch).map(|node| {
                fabric.change(now, |subnet| subnet.set_on(node, *up));
            })
        }
        _ => Err("the request is not about a subnet".into()),
    };
    done.map_or_else(Reply::Error, |()| Reply::Done)
}

/// Returns the node with this name.
fn node(subnet: &Subnet, name: &str) -> Result<NodeId, String> {
    let found = subnet.find(name);
    found.ok_or_else(|| format!("the subnet has no node named {name:?}"))
}

/// Returns the switch with this name.
fn switch(subnet: &Subnet, name: &str) -> Result<NodeId, String> {
    let node = node(subnet, name)?;
    match subnet.hca(node) {
        Some(_) => Err(format!("{name:?} is an HCA, not a switch")),
        None => Ok(node),
    }
}

/// Returns the link at an end.
fn link(subnet: &Subnet, end: &str) -> Result<LinkId, String> {
    let (name, port) = match end.split_once('/') {
        Some((name, port)) => (name, Some(port)),
        None => (end, None),
    };
    let node = node(subnet, name)?;
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| format!("{port:?} is not a port number"))?,
        None if subnet.hca(node).is_some() => 1,
        None => return Err(format!("say which port of {name:?}, as in {name}/1")),
    };
    let peer = subnet.peer(node, port);
    let found = peer.map(|(link, ..)| link);
    found.ok_or_else(|| format!("port {port} of {name:?} has no link"))
}

fn view(subnet: &Subnet, id: LinkId) -> SubnetLink {
    let link = subnet.link(id);
    let on = subnet.ends(id).iter().all(|(node, _)| subnet.is_on(*node));
    SubnetLink {
        ends: subnet.ends(id).map(|(node, port)| name(subnet, node, port)),
        state: match (link.up, on, subnet.is_up(id)) {
            (false, ..) => "cut",
            (true, false, _) => "off",
            (true, true, false) => "down",
            (true, true, true) => "up",
        }
        .into(),
        bit_error_rate: link.bit_error_rate,
    }
}

fn view_lane(subnet: &Subnet, channel: &Channel) -> SubnetLane {
    let Channel { node, port, lane } = *channel;
    let peer = subnet.peer(node, port);
    let to = peer.map(|(_, node, port)| name(subnet, node, port));
    SubnetLane {
        from: name(subnet, node, port),
        to: to.unwrap_or_default(),
        lane,
    }
}

#[cfg(test)]
mod tests {
    use vrnic_engine::time::Instant;

    use super::*;
    use crate::config::Config;
    use std::time::Duration;
    use vrnic_infiniband::agent::Answer;
    use vrnic_infiniband::attributes::{
        LinearForwarding, PhysicalState, PortInfo, PortState, SwitchInfo, id,
    };
    use vrnic_infiniband::mad::{Method, Smp, Status};

    const RING: &str = "[[device]]\nname = \"a\"\nsocket = \"a.sock\"\nmac = \"02:00:00:00:00:01\"\n\
                        fabric = \"infiniband\"\nhca = \"switch1-h1\"\n\
                        [subnet.topology.ring]\nswitches = 3\nhosts = 1\n";

    fn error(reply: &Reply) -> &str {
        match reply {
            Reply::Error(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn links_are_cut_and_plugged_in() {
        let config = Config::parse(RING).unwrap();
        let mut fabric = SubnetFabric::new(&config).unwrap();
        let mut now = Instant::default();
        let mut ask = |request: &Request, seconds: u64| {
            now = now + Duration::from_secs(seconds);
            if let Some(fabric) = &mut fabric {
                fabric.turn(now);
            }
            answer(
                request,
                fabric.as_mut().map(|it| Timed { it, now }).as_mut(),
            )
        };
        let states = |ask: &mut dyn FnMut(&Request, u64) -> Reply| {
            let Reply::SubnetLinks(page) = ask(&Request::SubnetLinks { from: 0 }, 1) else {
                panic!("no links");
            };
            let states = page
                .items
                .into_iter()
                .map(|link| (link.ends.join(" "), link.state, link.bit_error_rate));
            states.collect::<Vec<_>>()
        };
        let set =
            |end: &str, up: Option<bool>, bit_error_rate: Option<f64>| Request::SetSubnetLink {
                end: end.into(),
                up,
                bit_error_rate,
            };
        let links = states(&mut ask);
        assert_eq!(links.len(), 6);
        assert!(
            links
                .iter()
                .all(|(_, state, rate)| state == "up" && *rate == 0.0),
            "{links:?}"
        );
        let (first, ..) = &links[0];
        assert_eq!(first, "switch1/1 switch1-h1");
        assert_eq!(
            ask(&set("switch1-h1", Some(false), Some(0.25)), 0),
            Reply::Done
        );
        assert_eq!(states(&mut ask)[0], (first.clone(), "cut".to_owned(), 0.25));
        assert_eq!(ask(&set("switch1/1", Some(true), None), 0), Reply::Done);
        let training = ask(&Request::SubnetLinks { from: 0 }, 0);
        assert!(format!("{training:?}").contains("\"down\""), "{training:?}");
        assert_eq!(states(&mut ask)[0], (first.clone(), "up".to_owned(), 0.25));

        let whole = |up| Request::SetSubnetSwitch {
            switch: "switch2".into(),
            up,
        };
        assert_eq!(ask(&whole(false), 0), Reply::Done);
        let cut = states(&mut ask);
        for (ends, state, _) in &cut {
            assert_eq!(state == "off", ends.contains("switch2/"), "{cut:?}");
        }
        assert_eq!(ask(&whole(true), 0), Reply::Done);
        assert!(states(&mut ask).iter().all(|(_, state, _)| state == "up"));

        // A link that is cut stays so when its switch comes back, and one that is plugged in meanwhile comes up then.
        let state = |ask: &mut dyn FnMut(&Request, u64) -> Reply, end: &str| {
            let links = states(ask);
            let link = links.iter().find(|(ends, ..)| ends.contains(end)).unwrap();
            link.1.clone()
        };
        let host = "switch2-h1";
        assert_eq!(ask(&set(host, Some(false), None), 0), Reply::Done);
        assert_eq!(ask(&whole(false), 0), Reply::Done);
        assert_eq!(state(&mut ask, host), "cut");
        assert_eq!(ask(&whole(true), 0), Reply::Done);
        assert_eq!(state(&mut ask, host), "cut");
        assert_eq!(ask(&whole(false), 0), Reply::Done);
        assert_eq!(ask(&set(host, Some(true), None), 0), Reply::Done);
        assert_eq!(state(&mut ask, host), "off");
        assert_eq!(ask(&whole(true), 0), Reply::Done);
        assert!(states(&mut ask).iter().all(|(_, state, _)| state == "up"));

        for (request, why) in [
            (set("nobody", None, None), "no node named \"nobody\""),
            (set("switch1", None, None), "say which port"),
            (
                set("switch1/0", None, None),
                "port 0 of \"switch1\" has no link",
            ),
            (set("switch1/200", None, None), "port 200"),
            (
                set("switch1/999", None, None),
                "\"999\" is not a port number",
            ),
            (set("switch1/1", Some(false), Some(1.5)), "must be 0 to 1"),
            (
                set("switch1/1", Some(false), Some(f64::NAN)),
                "must be 0 to 1",
            ),
            (
                Request::SetSubnetSwitch {
                    switch: "switch1-h1".into(),
                    up: true,
                },
                "is an HCA",
            ),
        ] {
            let reply = ask(&request, 0);
            assert!(error(&reply).contains(why), "{reply:?}");
        }
        assert_eq!(
            states(&mut ask)[0].1,
            "up",
            "what is refused changes nothing"
        );
        let end = ask(&Request::SubnetLinks { from: PAGE }, 0);
        assert!(
            matches!(&end, Reply::SubnetLinks(page) if page.next.is_none()),
            "{end:?}"
        );
        let nothing = answer(&Request::SubnetLinks { from: 0 }, None);
        assert!(error(&nothing).contains("no device is on an InfiniBand subnet"));
    }

    /// Sets an attribute of a node as a subnet manager does.
    fn set(subnet: &mut Subnet, node: NodeId, attribute: u16, port: u8, data: [u8; 64]) {
        let request = Smp {
            data,
            ..Smp::request(Method::SET, attribute, port.into())
        };
        let now = subnet.now();
        let answer = subnet.change_agent(node, |agent| agent.answer(&request, 1, now));
        let done = matches!(&answer, Answer::Respond(smp) if smp.header.status == Status::OK);
        assert!(done, "{answer:?}");
    }

    /// Routes from switch to switch in a ring of five, each of which has an HCA with the LID of its number: the shorter
    /// way around the ring or, as in a line, never from the last to the first.
    fn route(subnet: &mut Subnet, shortest: bool) {
        let switches: Vec<_> = (1..=5)
            .map(|number| subnet.find(&format!("switch{number}")).unwrap())
            .collect();
        for (at, &switch) in switches.iter().enumerate() {
            let port_to = |peer: NodeId| {
                let leads = |port: &u8| subnet.peer(switch, *port).is_some_and(|it| it.1 == peer);
                (1..=u8::MAX).find(leads).unwrap()
            };
            let mut ports = [0xff; 64];
            for to in 0..5 {
                let ahead = (to + 5 - at) % 5;
                let up = if shortest { ahead <= 2 } else { to > at };
                let next = if up { at + 1 } else { at + 4 } % 5;
                let hca = subnet.find(&format!("switch{}-h1", to + 1)).unwrap();
                let peer = if to == at { hca } else { switches[next] };
                ports[to + 1] = port_to(peer);
            }
            let table = LinearForwarding { ports }.to_data();
            set(subnet, switch, id::LINEAR_FORWARDING, 0, table);
            let info = SwitchInfo {
                linear_top: 63,
                ..SwitchInfo::default()
            };
            set(subnet, switch, id::SWITCH_INFO, 0, info.to_data());
            let hca = subnet.find(&format!("switch{}-h1", at + 1)).unwrap();
            let info = PortInfo {
                physical_state: PhysicalState::NO_CHANGE,
                state: PortState::NO_CHANGE,
                lid: u16::try_from(at).unwrap() + 1,
                ..*subnet.agent(hca).end_port().info()
            };
            set(subnet, hca, id::PORT_INFO, 1, info.to_data());
        }
    }

    /// Routes anew now.
    fn reroute(fabric: &mut SubnetFabric, shortest: bool) {
        let now = after(fabric, Duration::ZERO);
        fabric.change(now, |subnet| route(subnet, shortest));
    }

    /// Returns the time that it is in a subnet after some time.
    fn after(fabric: &SubnetFabric, time: Duration) -> Instant {
        let now = fabric.subnet().now() + time;
        Instant::from_nanos(now.as_nanos().try_into().unwrap())
    }

    /// Runs the subnet for some time, and returns the credit loop.
    fn credit_loop(fabric: &mut SubnetFabric, time: Duration) -> Vec<SubnetLane> {
        let now = after(fabric, time);
        fabric.turn(now);
        let mut fabric = Timed { it: fabric, now };
        match answer(&Request::SubnetCreditLoop { from: 0 }, Some(&mut fabric)) {
            Reply::SubnetLanes(page) => page.items,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_credit_loop_is_shown_when_the_routing_has_settled() {
        let config = Config::parse(&RING.replace("switches = 3", "switches = 5")).unwrap();
        let mut fabric = SubnetFabric::new(&config).unwrap().unwrap();
        let (second, moment) = (Duration::from_secs(1), Duration::from_millis(100));
        assert_eq!(credit_loop(&mut fabric, second), []);
        reroute(&mut fabric, true);
        assert_eq!(credit_loop(&mut fabric, moment), []);
        let found = credit_loop(&mut fabric, second);
        assert_eq!(found.len(), 5, "{found:?}");
        for (place, lane) in found.iter().enumerate() {
            let switch = |end: &str| end.split_once('/').unwrap().0.to_owned();
            assert_eq!(lane.lane, 0);
            assert_eq!(switch(&lane.to), switch(&found[(place + 1) % 5].from));
        }
        // The same values again are no change.
        let changes = fabric.subnet().routing_changes();
        reroute(&mut fabric, true);
        assert_eq!(fabric.subnet().routing_changes(), changes);
        // The loop stays known until another routing has settled.
        reroute(&mut fabric, false);
        assert_eq!(credit_loop(&mut fabric, moment), found);
        assert_eq!(credit_loop(&mut fabric, second), []);
    }
}
