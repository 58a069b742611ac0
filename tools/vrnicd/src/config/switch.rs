// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The `[switch]` section: the ports of the switch and what is attached to them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use vrnic_switch::{Impairment, PortConfig, QueueLimits, Vlan, VlanSet, Vlans};

use super::{Device, FabricKind, Mac, check_socket_path};

/// Default number of addresses that a port learns in addition to its own: for a VM and for a network.
const VM_ADDRESSES: usize = 64;
const NETWORK_ADDRESSES: usize = 16384;
/// Group of links that name none. Frames from one link do not leave by another.
const LINK_GROUP: u32 = 0;
/// Smallest MTU: the size that every IPv4 host must be able to receive.
const MIN_MTU: usize = 576;
/// Largest MTU: a frame with its headers still fits a UDP datagram.
const MAX_MTU: usize = 65000;
/// Longest delay of an impairment.
const MAX_DELAY_US: u64 = 60_000_000;

/// The switch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Seconds without a frame from an address after which the switch forgets that address.
    #[serde(default = "default_age")]
    pub address_age_s: u64,
    /// Ports of the switch. Each RNIC on the fabric "roce" that no port names gets a port of its own.
    #[serde(default, rename = "port")]
    pub ports: Vec<Port>,
}

impl Default for Switch {
    /// Returns a switch whose only ports are those of RNICs.
    fn default() -> Self {
        Self {
            address_age_s: default_age(),
            ports: Vec::new(),
        }
    }
}

/// A port of the switch: an RNIC, something that carries plain frames, or both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Port {
    /// Name in logs.
    pub name: String,
    /// Device whose RNIC is attached. The port then has the MAC address of that device.
    pub device: Option<String>,
    /// UNIX socket that accepts the connection of QEMU's `-netdev stream`.
    pub stream: Option<PathBuf>,
    /// Name of a TAP device.
    pub tap: Option<String>,
    /// Number of an open descriptor of a TAP (or macvtap) device that vrnicd inherited.
    pub tap_fd: Option<i32>,
    /// Link to another switch.
    pub link: Option<Link>,
    /// RoCE over the host's own network.
    pub udp: Option<Udp>,
    /// MAC address of the peer on a port without an RNIC. No other port can claim it.
    pub mac: Option<Mac>,
    /// MTU: largest size of a frame in bytes, without its Ethernet header and VLAN tag.
    #[serde(default = "default_mtu")]
    pub mtu: usize,
    /// The only VLAN of the port; its frames are untagged.
    pub vlan: Option<u16>,
    /// VLANs whose frames are tagged; all VLANs if neither `vlan` nor `trunk` is given.
    pub trunk: Option<Vec<VlanRange>>,
    /// VLAN of untagged frames on a port that also has tagged ones. If absent: VLAN 1 without a `trunk`, none with one.
    pub native: Option<u16>,
    /// Largest number of addresses that the port learns in addition to its own.
    pub addresses: Option<usize>,
    /// Group of the port. Ports in the same group do not exchange frames.
    pub group: Option<u32>,
    /// Largest number of frames queued for the port.
    #[serde(default = "default_queue_frames")]
    pub queue_frames: usize,
    /// Largest number of bytes queued for the port.
    #[serde(default = "default_queue_bytes")]
    pub queue_bytes: usize,
    /// Impairments of frames on their way to the port.
    #[serde(default)]
    pub impairment: Impair,
}

/// A link to another switch: frames in VXLAN (RFC 7348) over UDP.
#[derive(Debug, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Local address and UDP port.
    pub local: SocketAddr,
    /// Address and UDP port of the peer. Datagrams from any other source are dropped.
    pub peer: SocketAddr,
    /// VXLAN network identifier, 24 bits.
    #[serde(default = "default_vni")]
    pub vni: u32,
}

/// RoCE version 2 over the host's own network, without encapsulation: the peers can be any RNICs.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// The host's address that packets are sent from and received at. The RNIC must have it as a GID.
    pub local: IpAddr,
    /// Name of the device that has the RNIC.
    pub device: String,
    /// Peers that the RNIC exchanges packets with.
    pub peers: Vec<Prefix>,
}

/// A prefix of IP addresses, such as `"192.0.2.0/24"`, or a single address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Returns whether the prefix contains `address`. It never contains multicast, broadcast or unspecified addresses.
    pub fn contains(&self, address: IpAddr) -> bool {
        let unequal = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) if !other.is_broadcast() => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        unequal >= self.length.into() && !address.is_multicast() && !address.is_unspecified()
    }
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not an IP address or a network such as 192.0.2.0/24");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text.as_str(), None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(bits), |length| length.parse().ok());
        let length = length.filter(|&length| length <= bits).ok_or_else(wrong)?;
        Ok(Self { address, length })
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        format!("{}/{}", prefix.address, prefix.length)
    }
}

/// One VLAN, or a range of VLANs such as `"100-199"`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(untagged)]
pub enum VlanRange {
    /// One VLAN.
    One(u16),
    /// A range, as `"FIRST-LAST"`.
    Range(String),
}

/// Deliberate impairments of a line.
#[derive(Debug, Default, Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Impair {
    /// Seed of the random numbers.
    pub seed: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame is duplicated.
    pub duplicate: f64,
    /// Delay of every frame in microseconds.
    pub delay_us: u64,
    /// Probability that a frame is delayed further, so that others overtake it.
    pub reorder: f64,
    /// This further delay in microseconds.
    pub reorder_delay_us: u64,
}

fn default_age() -> u64 {
    300
}

fn default_mtu() -> usize {
    9000
}

fn default_vni() -> u32 {
    1
}

fn default_queue_frames() -> usize {
    QueueLimits::default().frames
}

fn default_queue_bytes() -> usize {
    QueueLimits::default().bytes
}

impl Switch {
    /// Checks what the types cannot express.
    pub fn check(&self, devices: &[Device]) -> Result<()> {
        ensure!(
            (1..=1_000_000).contains(&self.address_age_s),
            "address_age_s = {}: must be 1 to 1000000",
            self.address_age_s
        );
        let (mut names, mut joined, mut macs) = (HashSet::new(), HashSet::new(), HashSet::new());
        for port in &self.ports {
            port.check()
                .with_context(|| format!("in switch port `{}`", port.name))?;
            ensure!(
                names.insert(&port.name),
                "two switch ports are named `{}`",
                port.name
            );
            if let Some(udp) = &port.udp {
                let on_switch = |device: &Device| {
                    device.name == udp.device && device.fabric == FabricKind::Roce
                };
                ensure!(
                    devices.iter().any(on_switch),
                    "switch port `{}`: udp: there is no device `{}` on the fabric \"roce\"",
                    port.name,
                    udp.device
                );
            }
            if let Some(device) = &port.device {
                let found = devices.iter().find(|known| known.name == *device);
                let found = found.with_context(|| {
                    format!(
                        "switch port `{}` names the device `{device}`, which does not exist",
                        port.name
                    )
                })?;
                ensure!(
                    found.fabric != FabricKind::Infiniband,
                    "switch port `{}` names the device `{device}`, whose port is on an InfiniBand subnet",
                    port.name
                );
                ensure!(
                    found.fabric == FabricKind::Roce || port.has_medium(),
                    "switch port `{}` names the device `{device}`, which is not on the fabric \"roce\"",
                    port.name
                );
                ensure!(
                    joined.insert(device),
                    "two switch ports name the device `{device}`"
                );
            }
            if let Some(mac) = port.mac {
                ensure!(
                    macs.insert(mac),
                    "two switch ports have the MAC address {mac}"
                );
            }
        }
        Ok(())
    }
}

impl Port {
    fn check(&self) -> Result<()> {
        ensure!(!self.name.is_empty(), "the name is empty");
        let media = [
            self.stream.is_some(),
            self.tap.is_some(),
            self.tap_fd.is_some(),
            self.link.is_some(),
            self.udp.is_some(),
        ];
        let media = media.into_iter().filter(|&given| given).count();
        ensure!(
            media <= 1,
            "a port can have only one of stream, tap, tap_fd, link and udp"
        );
        ensure!(
            media == 1 || self.device.is_some(),
            "the port is connected to nothing: give device, stream, tap, tap_fd, link or udp"
        );
        ensure!(
            self.mac.is_none() || self.device.is_none(),
            "the port has the MAC address of its device: leave mac out"
        );
        if let Some(path) = &self.stream {
            check_socket_path(path)?;
        }
        if let Some(name) = &self.tap {
            ensure!(
                (1..=15).contains(&name.len()) && !name.contains(['/', '%', '\0']),
                "tap = \"{name}\" is not a valid name of a network device (1 to 15 bytes)"
            );
        }
        if let Some(fd) = self.tap_fd {
            ensure!(fd > 2, "tap_fd = {fd}: must be 3 or greater");
        }
        if let Some(link) = &self.link {
            link.check()?;
        }
        if let Some(udp) = &self.udp {
            ensure!(
                self.device.is_none(),
                "udp already names its device, which has its own port: leave device out"
            );
            udp.check()?;
        }
        ensure!(
            (MIN_MTU..=MAX_MTU).contains(&self.mtu),
            "mtu = {}: must be {MIN_MTU} to {MAX_MTU}",
            self.mtu
        );
        ensure!(
            (1..=1 << 20).contains(&self.queue_frames),
            "queue_frames = {}: must be 1 to 1048576",
            self.queue_frames
        );
        ensure!(
            (1 << 16..=1 << 30).contains(&self.queue_bytes),
            "queue_bytes = {}: must be 65536 to 1073741824",
            self.queue_bytes
        );
        self.impairment.check()?;
        self.vlans().map(|_| ())
    }

    /// Returns the VLANs of the port.
    fn vlans(&self) -> Result<Vlans> {
        let native = self.native.map(vlan).transpose()?;
        match (self.vlan, &self.trunk) {
            (Some(_), Some(_)) => {
                bail!("vlan is for one VLAN, trunk for several: give only one of them")
            }
            (Some(_), None) if native.is_some() => bail!("native needs trunk"),
            (Some(access), None) => Ok(Vlans::Access(vlan(access)?)),
            (None, Some(ranges)) => {
                let mut tagged = VlanSet::none();
                for range in ranges {
                    range.add_to(&mut tagged)?;
                }
                Ok(Vlans::Trunk { native, tagged })
            }
            (None, None) => Ok(Vlans::Trunk {
                native: native.or(Some(Vlan::DEFAULT)),
                tagged: VlanSet::all(),
            }),
        }
    }

    /// Returns the limits of each of its queues of frames that leave.
    pub fn queue(&self) -> QueueLimits {
        QueueLimits {
            frames: self.queue_frames,
            bytes: self.queue_bytes,
        }
    }

    /// Returns the settings of the port for the switch. `mac` is the MAC address of the device at the port, if there is
    /// one. `rnic` tells whether the device's RNIC is on the switch.
    pub fn settings(&self, mac: Option<Mac>, rnic: bool) -> Result<PortConfig> {
        let mac = mac.or(self.mac);
        let udp = self.udp.as_ref();
        let mac = mac.or_else(|| udp.map(|udp| udp.mac(self)));
        let is_network = self.stream.is_none() && self.device.is_none();
        let addresses = match mac {
            // Not 0, so that the switch sends frames for unknown destinations to this port, too: a peer may be behind a
            // router whose Ethernet address the guest learned from another port.
            Some(_) if udp.is_some() => 1,
            Some(_) => 0,
            None if is_network => NETWORK_ADDRESSES,
            None => VM_ADDRESSES,
        };
        Ok(PortConfig {
            netdev: self.has_medium(),
            rnic,
            mac: mac.map(|mac| vrnic_switch::Mac(mac.0)),
            addresses: self.addresses.unwrap_or(addresses),
            vlans: self.vlans()?,
            mtu: self.mtu,
            group: self.group.or(self.link.map(|_| LINK_GROUP)),
            queue: self.queue(),
            impairment: self.impairment.settings(),
        })
    }

    /// Returns whether something other than an RNIC is attached to the port.
    pub fn has_medium(&self) -> bool {
        self.medium().is_some()
    }

    /// Describes what is attached to the port apart from an RNIC.
    pub fn medium(&self) -> Option<String> {
        let stream = self.stream.as_ref().map(|_| "stream".to_owned());
        let tap = self.tap.as_ref().map(|name| format!("tap {name}"));
        let tap_fd = self.tap_fd.map(|fd| format!("tap at descriptor {fd}"));
        let link = self.link.map(|link| format!("link {}", link.peer));
        let udp = self.udp.as_ref().map(|udp| format!("udp {}", udp.local));
        stream.or(tap).or(tap_fd).or(link).or(udp)
    }
}

impl Link {
    fn check(&self) -> Result<()> {
        ensure!(
            self.local.is_ipv4() == self.peer.is_ipv4(),
            "link: local and peer must both be IPv4 or both IPv6"
        );
        ensure!(
            self.local.port() != 0 && self.peer.port() != 0,
            "link: local and peer need a port, such as 4789"
        );
        ensure!(
            !self.peer.ip().is_unspecified() && !self.peer.ip().is_multicast(),
            "link: peer must be the address of one host"
        );
        ensure!(
            self.vni < 1 << 24,
            "link: vni = {}: must be less than 16777216",
            self.vni
        );
        Ok(())
    }
}

impl Udp {
    /// Returns the Ethernet address of the port: the configured one, or one derived from the host's IP address.
    pub fn mac(&self, port: &Port) -> Mac {
        let [.., a, b, c, d] = vrnic_roce::gid_of(self.local);
        port.mac.unwrap_or(Mac([2, 0, a, b, c, d]))
    }

    fn check(&self) -> Result<()> {
        let local = self.local;
        let whole = match local {
            IpAddr::V4(address) => !address.is_broadcast(),
            IpAddr::V6(address) => {
                !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none()
            }
        };
        ensure!(
            whole && !local.is_unspecified() && !local.is_multicast(),
            "udp: local = \"{local}\" must be the address of one host, and not link-local or IPv4-mapped"
        );
        ensure!(
            !self.peers.is_empty(),
            "udp: peers is empty: name hosts or networks, such as \"192.0.2.0/24\""
        );
        for peer in &self.peers {
            ensure!(
                peer.address.is_ipv4() == local.is_ipv4(),
                "udp: local and peers must all be IPv4 or all IPv6"
            );
        }
        Ok(())
    }
}

impl VlanRange {
    fn add_to(&self, set: &mut VlanSet) -> Result<()> {
        let (first, last) = match self {
            Self::One(one) => (*one, *one),
            Self::Range(text) => text
                .split_once('-')
                .and_then(|(first, last)| {
                    Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
                })
                .with_context(|| format!("`{text}` is not a range of VLANs such as \"100-199\""))?,
        };
        ensure!(
            first <= last,
            "the range of VLANs {first}-{last} is empty: give the lower VLAN first"
        );
        for identifier in first..=last {
            set.insert(vlan(identifier)?);
        }
        Ok(())
    }
}

impl Impair {
    fn check(&self) -> Result<()> {
        for (name, value) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
        ] {
            ensure!(
                (0.0..=1.0).contains(&value),
                "impairment: {name} = {value}: must be 0 to 1"
            );
        }
        ensure!(
            self.delay_us <= MAX_DELAY_US && self.reorder_delay_us <= MAX_DELAY_US,
            "impairment: a delay is at most {MAX_DELAY_US} microseconds"
        );
        ensure!(
            self.reorder <= 0.0 || self.reorder_delay_us > 0,
            "impairment: reorder needs reorder_delay_us"
        );
        Ok(())
    }

    fn settings(&self) -> Impairment {
        Impairment {
            seed: self.seed,
            loss: self.loss,
            duplicate: self.duplicate,
            delay: Duration::from_micros(self.delay_us),
            reorder: self.reorder,
            reorder_delay: Duration::from_micros(self.reorder_delay_us),
        }
    }
}

fn vlan(identifier: u16) -> Result<Vlan> {
    Vlan::new(identifier).with_context(|| format!("VLAN {identifier} is out of range: 1 to 4094"))
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    const DEVICE: &str =
        "[[device]]\nname = \"a\"\nsocket = \"a.sock\"\nmac = \"52:54:00:12:34:56\"\n";
    const PORT: &str = "[[switch.port]]\nname = \"p\"\nstream = \"p.sock\"\n";

    fn error(port: &str) -> String {
        format!(
            "{:#}",
            Config::parse(&format!("{DEVICE}{port}")).unwrap_err()
        )
    }

    fn settings(port: &str) -> PortConfig {
        let config = Config::parse(port).unwrap();
        config.switch.unwrap().ports[0]
            .settings(None, false)
            .unwrap()
    }

    #[test]
    fn a_switch_needs_no_devices() {
        let port = settings(PORT);
        assert_eq!((port.mtu, port.addresses), (9000, VM_ADDRESSES));
        assert_eq!(port.vlans, Vlans::default());
        assert!(port.impairment.is_none() && port.group.is_none() && port.netdev && !port.rnic);
    }

    #[test]
    fn everything_can_be_set() {
        let port = settings(&format!(
            "{PORT}mac = \"52:54:00:12:34:56\"\nmtu = 1500\ntrunk = [5, \"7-9\"]\nnative = 2\naddresses = 3\ngroup = 4\n\
             queue_frames = 10\nqueue_bytes = 100000\n\
             [switch.port.impairment]\nseed = 1\nloss = 0.5\nduplicate = 0.25\ndelay_us = 10\nreorder = 1.0\nreorder_delay_us = 20\n"
        ));
        let vlan = |identifier| Vlan::new(identifier).unwrap();
        assert_eq!(
            port.vlans,
            Vlans::Trunk {
                native: Some(vlan(2)),
                tagged: [5, 7, 8, 9].map(vlan).into_iter().collect(),
            }
        );
        assert_eq!((port.mtu, port.addresses, port.group), (1500, 3, Some(4)));
        assert_eq!((port.queue.frames, port.queue.bytes), (10, 100_000));
        assert_eq!(port.impairment.reorder_delay, Duration::from_micros(20));
        let link = settings(
            "[[switch.port]]\nname = \"l\"\nlink = { local = \"[::1]:4789\", peer = \"[::2]:4789\", vni = 9 }\nvlan = 7\n",
        );
        assert_eq!(link.vlans, Vlans::Access(vlan(7)));
        assert_eq!(
            (link.group, link.addresses),
            (Some(LINK_GROUP), NETWORK_ADDRESSES)
        );
    }

    #[test]
    fn a_udp_port_has_an_address_and_takes_what_is_for_unknown_ones() {
        let device = DEVICE.replace("mac =", "fabric = \"roce\"\nmac =");
        let udp = "[[switch.port]]\nname = \"u\"\n\
                   udp = { local = \"192.0.2.1\", device = \"a\", peers = [\"192.0.2.0/24\", \"10.0.0.7\"] }\n";
        let port = settings(&format!("{device}{udp}"));
        assert_eq!(port.mac, Some(vrnic_switch::Mac([2, 0, 192, 0, 2, 1])));
        assert!(port.netdev && !port.rnic && port.addresses == 1 && port.group.is_none());
        let own = settings(&format!("{device}{udp}mac = \"52:54:00:00:00:07\"\n"));
        assert_eq!(own.mac, Some(vrnic_switch::Mac([0x52, 0x54, 0, 0, 0, 7])));
    }

    #[test]
    fn prefixes_contain_what_begins_alike() {
        let contains = |prefix: &str, address: &str| {
            let prefix = Prefix::try_from(prefix.to_owned()).unwrap();
            prefix.contains(address.parse().unwrap())
        };
        assert!(contains("192.0.2.7", "192.0.2.7") && !contains("192.0.2.7", "192.0.2.6"));
        assert!(
            contains("192.0.2.0/25", "192.0.2.127") && !contains("192.0.2.0/25", "192.0.2.128")
        );
        assert!(contains("0.0.0.0/0", "1.2.3.4") && !contains("0.0.0.0/0", "::1"));
        for nobody in ["0.0.0.0", "255.255.255.255", "224.0.0.1"] {
            assert!(!contains("0.0.0.0/0", nobody), "{nobody}");
        }
        assert!(
            contains("2001:db8::/32", "2001:db8:1::1") && !contains("2001:db8::/32", "2001:db9::1")
        );
        assert!(contains("::/0", "::1") && !contains("::/0", "ff02::1") && !contains("::/0", "::"));
        assert!(contains("::1", "::1") && !contains("::1", "::2"));
        let text = String::from(Prefix::try_from("10.0.0.7".to_owned()).unwrap());
        assert_eq!(text, "10.0.0.7/32");
    }

    #[test]
    fn mistakes_are_named() {
        let with = |line: &str| error(&format!("{PORT}{line}\n"));
        assert!(error("[[switch.port]]\nname = \"p\"\n").contains("connected to nothing"));
        assert!(error(&format!("{PORT}{PORT}")).contains("two switch ports are named `p`"));
        assert!(with("tap = \"tap0\"").contains("only one of"));
        let local = "[[switch.port]]\nname = \"p\"\ndevice = \"a\"\n";
        assert!(error(local).contains("not on the fabric \"roce\""));
        assert!(with("device = \"b\"").contains("`b`, which does not exist"));
        assert!(with("device = \"a\"\nmac = \"52:54:00:12:34:56\"").contains("leave mac out"));
        assert!(with("mtu = 100").contains("576 to 65000"));
        assert!(with("vlan = 0").contains("1 to 4094"));
        assert!(with("vlan = 1\ntrunk = [1]").contains("only one of them"));
        assert!(with("vlan = 1\nnative = 1").contains("native needs trunk"));
        assert!(with("trunk = [\"9-7\"]").contains("empty"));
        assert!(with("trunk = [\"nine\"]").contains("not a range"));
        assert!(with("impairment = { loss = 1.5 }").contains("loss = 1.5"));
        assert!(with("impairment = { reorder = 0.5 }").contains("reorder_delay_us"));
        assert!(with("colour = 1").contains("colour"));
        assert!(error(&PORT.replace("p.sock", "a.sock")).contains("use the socket a.sock"));
        let link = |text: &str| {
            error(&format!(
                "[[switch.port]]\nname = \"l\"\nlink = {{ {text} }}\n"
            ))
        };
        assert!(link("local = \"1.2.3.4:1\", peer = \"[::1]:1\"").contains("both"));
        assert!(link("local = \"1.2.3.4:0\", peer = \"1.2.3.5:1\"").contains("need a port"));
        assert!(link("local = \"1.2.3.4:1\", peer = \"0.0.0.0:1\"").contains("one host"));
        assert!(
            link("local = \"1.2.3.4:1\", peer = \"1.2.3.5:1\", vni = 16777216").contains("vni")
        );
        let udp = |text: &str| {
            let device = DEVICE.replace("mac =", "fabric = \"roce\"\nmac =");
            let port = format!("[[switch.port]]\nname = \"u\"\nudp = {{ {text} }}\n");
            format!(
                "{:#}",
                Config::parse(&format!("{device}{port}")).unwrap_err()
            )
        };
        let rest = "device = \"a\", peers = [\"192.0.2.0/24\"]";
        assert!(udp(&format!("local = \"0.0.0.0\", {rest}")).contains("one host"));
        assert!(udp(&format!("local = \"2001:db8::1\", {rest}")).contains("all be IPv4"));
        let link_local = "local = \"fe80::1\", device = \"a\", peers = [\"fe80::/64\"]";
        assert!(udp(link_local).contains("one host"));
        let peers = |list: &str| {
            udp(&format!(
                "local = \"192.0.2.1\", device = \"a\", peers = [{list}]"
            ))
        };
        assert!(peers("").contains("peers is empty"));
        for wrong in [
            "\"192.0.2.0/33\"",
            "\"192.0.2\"",
            "\"192.0.2.0/-1\"",
            "\"\"",
        ] {
            assert!(peers(wrong).contains("is not an IP address"), "{wrong}");
        }
        let other = "local = \"192.0.2.1\", device = \"b\", peers = [\"192.0.2.7\"]";
        assert!(udp(other).contains("no device `b`"));
        let local =
            format!("[[switch.port]]\nname = \"u\"\nudp = {{ local = \"192.0.2.1\", {rest} }}\n");
        assert!(error(&local).contains("on the fabric \"roce\""));
        assert!(error(&format!("{local}device = \"a\"\n")).contains("leave device out"));
        let tap = |text: &str| error(&format!("[[switch.port]]\nname = \"t\"\n{text}\n"));
        assert!(tap("tap = \"a-name-that-is-long\"").contains("1 to 15"));
        assert!(tap("tap_fd = 1").contains("3 or greater"));
        assert!(error("[switch]\naddress_age_s = 0\n").contains("address_age_s"));
    }
}
