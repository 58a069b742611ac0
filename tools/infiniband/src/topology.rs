// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The switches, HCAs and links of a subnet, described in a TOML file.
//!
//! ```
//! use vrnic_infiniband::topology::Topology;
//!
//! let topology = Topology::parse(
//!     r#"
//!     seed = 7
//!     speed = "hdr"
//!
//!     [fat-tree]      # each leaf is linked to each spine
//!     spines = 2
//!     leaves = 4
//!     hosts = 4       # of each leaf
//!
//!     [[hca]]         # one more, by hand
//!     name = "storage"
//!
//!     [[link]]
//!     ends = ["storage", "spine1/9"]
//!     width = "12x"
//!     latency = 500   # nanoseconds
//!     "#,
//! )
//! .unwrap();
//! assert_eq!(topology.nodes.len(), 2 + 4 + 16 + 1);
//!
//! let error = Topology::parse("[ring]\nswitches = 1\nhosts = 1").unwrap_err();
//! assert_eq!(error.to_string(), "line 2: `switches = 1`: a ring has 3 to 1000 switches");
//! ```

use crate::{
    agent::MAX_PORTS,
    attributes::{lanes_of, mtu_of},
    port::{MIN_BUFFER, PortConfig, Speed, Width},
};
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt,
    ops::Range,
    time::Duration,
};
use toml::Spanned;

/// Maximum number of nodes of a subnet.
pub const MAX_NODES: usize = 10_000;
/// Maximum number of switches of a shape.
const MAX_SWITCHES: usize = 1000;
/// Default GUID of the first node, which is locally administered.
const FIRST_GUID: u64 = 0x0200_0000_0001_0000;
/// Distance between the GUIDs of nodes. The GUIDs of ports are in between.
const GUID_STEP: u64 = 16;

/// Kind of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An HCA, whose only port has number 1.
    Hca,
    /// A switch with this many external ports, which begin at number 1.
    Switch(u8),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Name, which is also the node description.
    pub name: String,
    /// Kind of node.
    pub kind: Kind,
    /// GUID of the node.
    pub guid: u64,
    /// GUID of the port of an HCA. Follows that of the node.
    pub port_guid: u64,
}

/// A port of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// Index of the node in [`Topology::nodes`].
    pub node: usize,
    /// Port number.
    pub port: u8,
}

/// A link.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Link {
    /// Ports that the link connects.
    pub ends: [End; 2],
    /// Capabilities of these ports.
    pub ports: PortConfig,
    /// How long a bit takes from one end to the other.
    pub latency: Duration,
    /// Probability that a bit arrives wrong.
    pub bit_error_rate: f64,
    /// Whether the link is plugged in at the beginning.
    pub up: bool,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Switches and HCAs.
    pub nodes: Vec<Node>,
    /// Links between the nodes.
    pub links: Vec<Link>,
    /// Capabilities of ports without a link.
    pub ports: PortConfig,
}

/// An error in a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    /// Line number, from 1 on.
    pub line: usize,
    /// Text of the line, at most 60 characters.
    pub text: String,
    /// Error message.
    pub message: String,
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: `{}`: {}", self.line, self.text, self.message)
    }
}

impl Error for TopologyError {}

/// The text of a description in parsed form. It may be part of a larger text, such as the configuration of a program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    seed: Option<u64>,
    guid: Option<Spanned<u64>>,
    mtu: Option<Spanned<usize>>,
    lanes: Option<Spanned<u8>>,
    buffer: Option<Spanned<u32>>,
    width: Option<Width>,
    speed: Option<Speed>,
    latency: Option<u64>,
    bit_error_rate: Option<Spanned<f64>>,
    single: Option<Spanned<Single>>,
    #[serde(rename = "fat-tree")]
    fat_tree: Option<Spanned<FatTree>>,
    ring: Option<Spanned<Ring>>,
    torus: Option<Spanned<Torus>>,
    random: Option<Spanned<Random>>,
    #[serde(default)]
    switch: Vec<Spanned<SwitchSection>>,
    #[serde(default)]
    hca: Vec<Spanned<HcaSection>>,
    #[serde(default)]
    link: Vec<Spanned<LinkSection>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Single {
    hosts: Spanned<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FatTree {
    spines: Spanned<usize>,
    leaves: Spanned<usize>,
    hosts: Spanned<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ring {
    switches: Spanned<usize>,
    hosts: Spanned<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Torus {
    size: Spanned<Vec<usize>>,
    hosts: Spanned<usize>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Random {
    switches: Spanned<usize>,
    hosts: Spanned<usize>,
    #[serde(default)]
    extra_links: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchSection {
    name: Spanned<String>,
    ports: Spanned<usize>,
    guid: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HcaSection {
    name: Spanned<String>,
    guid: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkSection {
    ends: Spanned<[Spanned<String>; 2]>,
    width: Option<Width>,
    speed: Option<Speed>,
    latency: Option<u64>,
    bit_error_rate: Option<Spanned<f64>>,
    #[serde(default = "up")]
    up: bool,
}

fn up() -> bool {
    true
}

/// The text of a description, to find the line of an error.
struct Source<'a>(&'a str);

impl Source<'_> {
    fn error(&self, span: &Range<usize>, message: impl fmt::Display) -> TopologyError {
        let before = self.0.get(..span.start).unwrap_or(self.0);
        let line = before.matches('\n').count();
        let text = self.0.lines().nth(line).unwrap_or_default().trim();
        TopologyError {
            line: line + 1,
            text: text.chars().take(60).collect(),
            message: message.to_string(),
        }
    }

    /// Returns a number if it is in a range, and an error otherwise.
    fn number<T: Copy + PartialOrd + fmt::Display>(
        &self,
        value: &Spanned<T>,
        range: std::ops::RangeInclusive<T>,
        what: &str,
        unit: &str,
    ) -> Result<T, TopologyError> {
        let number = *value.get_ref();
        if range.contains(&number) {
            return Ok(number);
        }
        let message = format!("{what} has {} to {}{unit}", range.start(), range.end());
        Err(self.error(&value.span(), message))
    }
}

/// A subnet that is being built.
struct Builder<'a> {
    source: Source<'a>,
    topology: Topology,
    latency: Duration,
    bit_error_rate: f64,
    guid: u64,
    /// Ports with a link that the description names.
    used: BTreeSet<End>,
    names: BTreeMap<String, usize>,
    /// Next free port of each node for links that the description does not name.
    next_port: BTreeMap<usize, u8>,
}

impl Description {
    /// Parses the whole text of a description.
    ///
    /// # Errors
    ///
    /// The first key or value that is not valid.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        toml::from_str(text).map_err(|error| {
            let message = error.message().replace('\n', ", ");
            Source(text).error(&error.span().unwrap_or_default(), message)
        })
    }
}

impl Topology {
    /// Parses a description and builds its subnet.
    ///
    /// # Errors
    ///
    /// The first error in the description.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        Self::new(&Description::parse(text)?, text)
    }

    /// Builds the subnet of a description. `text` is the whole text that the description is a part of.
    ///
    /// # Errors
    ///
    /// The first error in the description, with its line in `text`.
    pub fn new(file: &Description, text: &str) -> Result<Self, TopologyError> {
        let source = Source(text);
        let ports = port_config(&source, file)?;
        let rate = file.bit_error_rate.as_ref();
        let mut builder = Builder {
            topology: Self {
                seed: file.seed.unwrap_or(0),
                nodes: Vec::new(),
                links: Vec::new(),
                ports,
            },
            latency: Duration::from_nanos(file.latency.unwrap_or(100)),
            bit_error_rate: rate.map_or(Ok(0.0), |rate| probability(&source, rate))?,
            guid: match &file.guid {
                Some(guid) => source.number(guid, 1..=u64::MAX >> 8, "the first GUID", "")?,
                None => FIRST_GUID,
            },
            source,
            used: BTreeSet::new(),
            names: BTreeMap::new(),
            next_port: BTreeMap::new(),
        };
        builder.shape(file)?;
        builder.by_hand(file)?;
        if builder.topology.nodes.is_empty() {
            return Err(builder
                .source
                .error(&(0..0), "the topology has neither a switch nor an HCA"));
        }
        Ok(builder.topology)
    }

    /// Returns the links of a node.
    pub fn links_of(&self, node: usize) -> impl Iterator<Item = &Link> {
        let joins = move |link: &&Link| link.ends.iter().any(|end| end.node == node);
        self.links.iter().filter(joins)
    }
}

fn port_config(source: &Source<'_>, file: &Description) -> Result<PortConfig, TopologyError> {
    let mut ports = PortConfig::default();
    ports.width = file.width.unwrap_or(ports.width);
    ports.speed = file.speed.unwrap_or(ports.speed);
    if let Some(mtu) = &file.mtu {
        let code = (1..=5).find(|&code| mtu_of(code) == Some(*mtu.get_ref()));
        let message = "an MTU is 256, 512, 1024, 2048 or 4096";
        ports.mtu = code.ok_or_else(|| source.error(&mtu.span(), message))?;
    }
    if let Some(lanes) = &file.lanes {
        let code = (1..=5).find(|&code| lanes_of(code) == Some(*lanes.get_ref()));
        let message = "a port has 1, 2, 4, 8 or 15 data lanes";
        ports.lanes = code.ok_or_else(|| source.error(&lanes.span(), message))?;
    }
    if let Some(buffer) = &file.buffer {
        let range = MIN_BUFFER..=1 << 24;
        ports.buffer = Some(source.number(buffer, range, "room for packets", " bytes")?);
    }
    Ok(ports)
}

fn probability(source: &Source<'_>, rate: &Spanned<f64>) -> Result<f64, TopologyError> {
    source.number(rate, 0.0..=1.0, "a bit error rate", "")
}

impl Builder<'_> {
    fn add(&mut self, name: String, kind: Kind, guid: Option<u64>) -> usize {
        let node = self.topology.nodes.len();
        self.names.insert(name.clone(), node);
        let guid = guid.unwrap_or(self.guid + node as u64 * GUID_STEP);
        self.topology.nodes.push(Node {
            name,
            kind,
            guid,
            port_guid: guid.wrapping_add(1),
        });
        node
    }

    /// Returns the next port of a node that has no link.
    fn next_port(&mut self, node: usize) -> u8 {
        let next = self.next_port.entry(node).or_insert(1);
        *next += 1;
        *next - 1
    }

    /// Links two nodes.
    fn join(&mut self, one: usize, other: usize) {
        let ends = [one, other].map(|node| End {
            node,
            port: self.next_port(node),
        });
        self.used.extend(ends);
        self.topology.links.push(Link {
            ends,
            ports: self.topology.ports,
            latency: self.latency,
            bit_error_rate: self.bit_error_rate,
            up: true,
        });
    }

    /// Adds a switch with HCAs.
    fn add_switch(&mut self, name: String, ports: usize, hosts: usize) -> usize {
        let switch = self.add(name.clone(), Kind::Switch(ports as u8), None);
        for host in 1..=hosts {
            let hca = self.add(format!("{name}-h{host}"), Kind::Hca, None);
            self.join(switch, hca);
        }
        switch
    }

    /// Adds the nodes and links of the shape.
    fn shape(&mut self, file: &Description) -> Result<(), TopologyError> {
        let shapes = [
            file.single.as_ref().map(Spanned::span),
            file.fat_tree.as_ref().map(Spanned::span),
            file.ring.as_ref().map(Spanned::span),
            file.torus.as_ref().map(Spanned::span),
            file.random.as_ref().map(Spanned::span),
        ];
        if let Some(second) = shapes.into_iter().flatten().nth(1) {
            return Err(self.source.error(
                &second,
                "a subnet has one shape; add to it with [[switch]], [[hca]] and [[link]]",
            ));
        }
        if let Some(single) = &file.single {
            let hosts = &single.get_ref().hosts;
            let hosts = self
                .source
                .number(hosts, 1..=MAX_PORTS, "a switch", " hosts")?;
            self.add_switch("switch1".to_owned(), hosts, hosts);
        } else if let Some(tree) = &file.fat_tree {
            self.fat_tree(tree.get_ref())?;
        } else if let Some(ring) = &file.ring {
            let ring = ring.get_ref();
            let switches =
                self.source
                    .number(&ring.switches, 3..=MAX_SWITCHES, "a ring", " switches")?;
            self.torus(&[switches], &ring.hosts)?;
        } else if let Some(torus) = &file.torus {
            let torus = torus.get_ref();
            let size = torus.size.get_ref();
            let product = size
                .iter()
                .try_fold(1_usize, |product, &side| product.checked_mul(side));
            let fits = product.is_some_and(|product| (1..=MAX_SWITCHES).contains(&product));
            if !fits || !(1..=6).contains(&size.len()) {
                let message =
                    format!("a torus has 1 to 6 dimensions and 1 to {MAX_SWITCHES} switches");
                return Err(self.source.error(&torus.size.span(), message));
            }
            self.torus(size, &torus.hosts)?;
        } else if let Some(random) = &file.random {
            self.random(random.get_ref())?;
        }
        Ok(())
    }

    fn fat_tree(&mut self, tree: &FatTree) -> Result<(), TopologyError> {
        let number = |value, unit| self.source.number(value, 1..=MAX_PORTS, "a fat tree", unit);
        let spines = number(&tree.spines, " spines")?;
        let leaves = number(&tree.leaves, " leaves")?;
        let most = MAX_PORTS - spines;
        let hosts = self
            .source
            .number(&tree.hosts, 0..=most, "a leaf of this tree", " hosts")?;
        self.check_nodes(spines + leaves * (hosts + 1), &tree.hosts)?;
        let spines: Vec<_> = (1..=spines)
            // Some ports stay free for links that the description adds.
            .map(|spine| self.add_switch(format!("spine{spine}"), (leaves + 8).min(MAX_PORTS), 0))
            .collect();
        for leaf in 1..=leaves {
            let leaf = self.add_switch(format!("leaf{leaf}"), hosts + spines.len(), hosts);
            for &spine in &spines {
                self.join(leaf, spine);
            }
        }
        Ok(())
    }

    fn check_nodes(&self, nodes: usize, at: &Spanned<usize>) -> Result<(), TopologyError> {
        if nodes > MAX_NODES {
            let message = format!("a subnet has at most {MAX_NODES} nodes, and this one {nodes}");
            return Err(self.source.error(&at.span(), message));
        }
        Ok(())
    }

    /// Adds the switches of a torus or a ring.
    fn torus(&mut self, size: &[usize], hosts: &Spanned<usize>) -> Result<(), TopologyError> {
        let links = 2 * size.len();
        let switches: usize = size.iter().product();
        let most = MAX_PORTS - links;
        let hosts_each =
            self.source
                .number(hosts, 0..=most, "a switch of this subnet", " hosts")?;
        self.check_nodes(switches * (hosts_each + 1), hosts)?;
        let nodes: Vec<_> = (1..=switches)
            .map(|switch| {
                self.add_switch(format!("switch{switch}"), hosts_each + links, hosts_each)
            })
            .collect();
        for (place, &node) in nodes.iter().enumerate() {
            let mut stride = 1;
            for &side in size {
                let coordinate = place / stride % side;
                let next = place - coordinate * stride + (coordinate + 1) % side * stride;
                // On a side of two, the switches are linked once, and a switch is never linked to itself.
                if side > 2 || side == 2 && coordinate == 0 {
                    self.join(node, nodes[next]);
                }
                stride *= side;
            }
        }
        Ok(())
    }

    /// Adds switches in a random tree, in which each one is linked to an earlier one, and extra links.
    fn random(&mut self, random: &Random) -> Result<(), TopologyError> {
        let count = self.source.number(
            &random.switches,
            1..=MAX_SWITCHES,
            "a random subnet",
            " switches",
        )?;
        let hosts =
            self.source
                .number(&random.hosts, 0..=MAX_NODES, "a random subnet", " hosts")?;
        self.check_nodes(count + hosts, &random.hosts)?;
        let mut chance = ChaCha8Rng::seed_from_u64(self.topology.seed);
        let mut below = |limit: usize| (chance.next_u64() % limit as u64) as usize;
        let mut pairs: Vec<(usize, usize)> =
            (1..count).map(|switch| (switch, below(switch))).collect();
        if count > 1 {
            pairs.extend((0..random.extra_links.min(MAX_NODES)).map(|_| {
                let one = below(count);
                (one, (one + 1 + below(count - 1)) % count)
            }));
        }
        let places: Vec<usize> = (0..hosts).map(|_| below(count)).collect();
        let mut ports = vec![0; count];
        for place in pairs
            .iter()
            .flat_map(|&(one, other)| [one, other])
            .chain(places.iter().copied())
        {
            ports[place] += 1;
        }
        if ports.iter().any(|&ports| ports > MAX_PORTS) {
            let message = format!("with this seed a switch would have more than {MAX_PORTS} links");
            return Err(self.source.error(&random.switches.span(), message));
        }
        let nodes: Vec<_> = (0..count)
            .map(|switch| self.add_switch(format!("switch{}", switch + 1), ports[switch].max(1), 0))
            .collect();
        for (host, place) in places.into_iter().enumerate() {
            let hca = self.add(format!("h{}", host + 1), Kind::Hca, None);
            self.join(nodes[place], hca);
        }
        for (one, other) in pairs {
            self.join(nodes[one], nodes[other]);
        }
        Ok(())
    }

    /// Adds the nodes and links that the description names.
    fn by_hand(&mut self, file: &Description) -> Result<(), TopologyError> {
        for section in &file.switch {
            let section = section.get_ref();
            let ports = self
                .source
                .number(&section.ports, 1..=MAX_PORTS, "a switch", " ports")?;
            self.add_named(&section.name, Kind::Switch(ports as u8), section.guid)?;
        }
        for section in &file.hca {
            let section = section.get_ref();
            self.add_named(&section.name, Kind::Hca, section.guid)?;
        }
        for section in &file.link {
            self.link(section.get_ref())?;
        }
        Ok(())
    }

    fn add_named(
        &mut self,
        name: &Spanned<String>,
        kind: Kind,
        guid: Option<u64>,
    ) -> Result<(), TopologyError> {
        let (text, span) = (name.get_ref(), name.span());
        let fits = (1..=63).contains(&text.len()) && !text.contains(['/', '\n']);
        if !fits {
            return Err(self
                .source
                .error(&span, "a name has 1 to 63 bytes, and no slash"));
        }
        if self.names.contains_key(text) {
            return Err(self
                .source
                .error(&span, format!("two nodes are named `{text}`")));
        }
        if self.topology.nodes.len() == MAX_NODES {
            let message = format!("a subnet has at most {MAX_NODES} nodes");
            return Err(self.source.error(&span, message));
        }
        self.add(text.clone(), kind, guid);
        Ok(())
    }

    fn link(&mut self, section: &LinkSection) -> Result<(), TopologyError> {
        let [one, other] = section.ends.get_ref();
        let ends = [self.end(one)?, self.end(other)?];
        let defaults = self.topology.ports;
        let rate = section.bit_error_rate.as_ref();
        self.topology.links.push(Link {
            ends,
            ports: PortConfig {
                width: section.width.unwrap_or(defaults.width),
                speed: section.speed.unwrap_or(defaults.speed),
                ..defaults
            },
            latency: section.latency.map_or(self.latency, Duration::from_nanos),
            bit_error_rate: rate.map_or(Ok(self.bit_error_rate), |rate| {
                probability(&self.source, rate)
            })?,
            up: section.up,
        });
        Ok(())
    }

    /// Returns an end of a link, which is written as `hca` or `switch/port`.
    fn end(&mut self, text: &Spanned<String>) -> Result<End, TopologyError> {
        let span = text.span();
        let (name, port) = match text.get_ref().split_once('/') {
            Some((name, port)) => (name, Some(port)),
            None => (text.get_ref().as_str(), None),
        };
        let Some(&node) = self.names.get(name) else {
            return Err(self
                .source
                .error(&span, format!("there is no node `{name}`")));
        };
        let ports = match self.topology.nodes[node].kind {
            Kind::Hca => 1,
            Kind::Switch(ports) => ports,
        };
        let port = match (port, self.topology.nodes[node].kind) {
            (Some(port), _) => port.parse().ok().filter(|port| (1..=ports).contains(port)),
            (None, Kind::Hca) => Some(1),
            (None, Kind::Switch(_)) => {
                let message = format!("say which port of `{name}`, as in `{name}/1`");
                return Err(self.source.error(&span, message));
            }
        };
        let Some(port) = port else {
            return Err(self
                .source
                .error(&span, format!("the ports of `{name}` are 1 to {ports}")));
        };
        let end = End { node, port };
        if !self.used.insert(end) {
            return Err(self
                .source
                .error(&span, format!("port {port} of `{name}` has a link")));
        }
        Ok(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(topology: &Topology) -> usize {
        let is_switch = |node: &&Node| matches!(node.kind, Kind::Switch(_));
        topology.nodes.iter().filter(is_switch).count()
    }

    /// No port has two links, both ends of each link exist, and the subnet is connected.
    fn check(text: &str, expected: (usize, usize, usize)) -> Topology {
        let topology = Topology::parse(text).unwrap_or_else(|error| panic!("{error}"));
        let mut ends = BTreeSet::new();
        let mut reached: Vec<usize> = (0..topology.nodes.len()).collect();
        for link in &topology.links {
            for end in link.ends {
                let ports = match topology.nodes[end.node].kind {
                    Kind::Hca => 1,
                    Kind::Switch(ports) => ports,
                };
                assert!(
                    (1..=ports).contains(&end.port) && ends.insert(end),
                    "{text}: {link:?}"
                );
            }
            let [one, other] = link.ends.map(|end| reached[end.node]);
            for root in &mut reached {
                if *root == one {
                    *root = other;
                }
            }
        }
        assert!(
            reached.iter().all(|root| *root == reached[0]),
            "{text}: it is in parts"
        );
        let guids: BTreeSet<_> = topology.nodes.iter().map(|node| node.guid).collect();
        assert_eq!(guids.len(), topology.nodes.len());
        let switches = switches(&topology);
        assert_eq!(
            (
                switches,
                topology.nodes.len() - switches,
                topology.links.len()
            ),
            expected,
            "{text}"
        );
        topology
    }

    #[test]
    fn shapes_are_what_they_are_called() {
        check("[single]\nhosts = 254", (1, 254, 254));
        check(
            "[fat-tree]\nspines = 4\nleaves = 8\nhosts = 8",
            (12, 64, 96),
        );
        check("[ring]\nswitches = 3\nhosts = 2", (3, 6, 9));
        check("[torus]\nsize = [3, 4]\nhosts = 1", (12, 12, 36));
        check("[torus]\nsize = [2, 2, 2]\nhosts = 0", (8, 0, 12));
        check("[torus]\nsize = [1, 3]\nhosts = 1", (3, 3, 6));
        check(
            "[[hca]]\nname = 'a'\n[[hca]]\nname = 'b'\n[[link]]\nends = ['a', 'b']",
            (0, 2, 1),
        );
        for seed in 0..20 {
            let text =
                format!("seed = {seed}\n[random]\nswitches = 12\nhosts = 9\nextra_links = 5");
            let one = check(&text, (12, 9, 11 + 9 + 5));
            assert_eq!(
                one,
                Topology::parse(&text).unwrap(),
                "the same seed, the same subnet"
            );
        }
        let other = |seed| format!("seed = {seed}\n[random]\nswitches = 12\nhosts = 9");
        assert_ne!(
            Topology::parse(&other(1)).unwrap().links,
            Topology::parse(&other(2)).unwrap().links
        );
    }

    #[test]
    fn a_link_is_what_it_is_said_to_be() {
        let topology = Topology::parse(
            "speed = 'hdr'\nlatency = 7\nmtu = 1024\nlanes = 15\nguid = 0x1000\n[[switch]]\nname = 's'\nports = 4\n\
             [[hca]]\nname = 'a'\nguid = 5\n[[link]]\nends = ['s/3', 'a']\nwidth = '1x'\nup = false\nbit_error_rate = 1e-6",
        )
        .unwrap();
        let link = topology.links[0];
        assert_eq!(
            link.ends,
            [End { node: 0, port: 3 }, End { node: 1, port: 1 }]
        );
        assert_eq!(
            (
                link.ports.width,
                link.ports.speed,
                link.ports.mtu,
                link.ports.lanes
            ),
            (Width::X1, Speed::Hdr, 3, 5)
        );
        assert_eq!((link.latency, link.up), (Duration::from_nanos(7), false));
        assert!((link.bit_error_rate - 1e-6).abs() < 1e-12);
        assert_eq!(
            topology
                .nodes
                .iter()
                .map(|node| node.guid)
                .collect::<Vec<_>>(),
            [0x1000, 5]
        );
        assert_eq!(topology.links_of(1).count(), 1);
    }

    #[test]
    fn a_description_is_written_as_it_was_read() {
        let text = "seed = 7\nguid = 0x1000\nmtu = 1024\nbit_error_rate = 0.5\n[ring]\nswitches = 3\nhosts = 1\n\
                    [[switch]]\nname = 's'\nports = 4\n[[hca]]\nname = 'a'\nguid = 5\n\
                    [[link]]\nends = ['a', 's/2']\nwidth = '12x'\nspeed = 'hdr'\nup = false\n";
        let written = toml::to_string(&Description::parse(text).unwrap()).unwrap();
        assert_eq!(
            Topology::parse(&written).unwrap(),
            Topology::parse(text).unwrap()
        );
    }

    #[test]
    fn a_description_in_a_larger_text_has_its_lines() {
        #[derive(Deserialize)]
        struct Larger {
            inner: Description,
        }
        let text = "\n[inner]\n[inner.ring]\nswitches = 2\nhosts = 1\n";
        let larger: Larger = toml::from_str(text).unwrap();
        let error = Topology::new(&larger.inner, text).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (4, "switches = 2"));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_line() {
        let nodes = "[[switch]]\nname = 's'\nports = 2\n[[hca]]\nname = 'a'\n";
        for (text, line, message) in [
            ("", 1, "neither a switch nor an HCA"),
            (
                "speed = 'warp'\n[single]\nhosts = 1",
                1,
                "unknown variant `warp`",
            ),
            ("mtu = 1500\n[single]\nhosts = 1", 1, "an MTU is 256"),
            ("lanes = 3\n[single]\nhosts = 1", 1, "1, 2, 4, 8 or 15"),
            ("bit_error_rate = 2.0\n[single]\nhosts = 1", 1, "0 to 1"),
            ("guid = 0\n[single]\nhosts = 1", 1, "the first GUID"),
            ("[single]\nhosts = 0", 2, "a switch has 1 to 254 hosts"),
            ("[single]\nhosts = 1\nspines = 2", 3, "unknown field"),
            (
                "[single]\nhosts = 1\n[ring]\nswitches = 3\nhosts = 1",
                3,
                "one shape",
            ),
            (
                "[fat-tree]\nspines = 250\nleaves = 1\nhosts = 5",
                4,
                "0 to 4 hosts",
            ),
            (
                "[fat-tree]\nspines = 1\nleaves = 200\nhosts = 200",
                4,
                "at most 10000 nodes",
            ),
            ("[torus]\nsize = [0]\nhosts = 1", 2, "1 to 6 dimensions"),
            (
                "[torus]\nsize = [100000, 10000000000000, 1000000]\nhosts = 1",
                2,
                "1 to 6 dimensions",
            ),
            (
                "[random]\nswitches = 1\nhosts = 255",
                2,
                "more than 254 links",
            ),
            (
                "[[hca]]\nname = 'a'\n[[hca]]\nname = 'a'",
                4,
                "two nodes are named `a`",
            ),
            ("[[hca]]\nname = 'a/b'", 2, "no slash"),
            (
                &format!("{nodes}[[link]]\nends = ['s/1', 'b']"),
                7,
                "no node `b`",
            ),
            (
                &format!("{nodes}[[link]]\nends = ['s', 'a']"),
                7,
                "say which port of `s`",
            ),
            (
                &format!("{nodes}[[link]]\nends = ['s/3', 'a']"),
                7,
                "the ports of `s` are 1 to 2",
            ),
            (
                &format!("{nodes}[[link]]\nends = ['s/1', 's/1']"),
                7,
                "port 1 of `s` has a link",
            ),
            (
                &format!("{nodes}[[link]]\nends = ['s/1']"),
                7,
                "invalid length",
            ),
            (
                &format!("{nodes}[[link]]\nends = ['s/1', 'a']\nbit_error_rate = -1.0"),
                8,
                "0 to 1",
            ),
        ] {
            let error = Topology::parse(text).expect_err(text);
            assert_eq!(error.line, line, "{text}: {error}");
            assert!(error.message.contains(message), "{text}: {error}");
        }
    }
}
