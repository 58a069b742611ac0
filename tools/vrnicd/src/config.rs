// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Configuration: a TOML file for any number of devices, or the command line for one.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use vrnic_engine::{Limits, RateLimit};
use vrnic_infiniband::topology::Topology;

use crate::capture;
use crate::control::protocol;
use crate::device::hostile;
use crate::guest_memory::MAX_DEVICES;

pub mod feature;
pub mod subnet;
pub mod switch;

use feature::Feature;

pub use subnet::Subnet;
pub use switch::Switch;

/// Largest number of completion vectors of a device: together with the other queues they must fit the MSI-X table.
const MAX_COMPLETION_VECTORS: u16 = 1024;
/// Largest number of workers.
const MAX_WORKERS: usize = 64;
/// Largest `weight`.
pub(crate) const MAX_WEIGHT: u32 = 8;
/// Smallest `tx_gbps`. At this rate, the longest packet (64 KiB) takes half a second.
const MIN_GBPS: f64 = 0.001;
/// Largest `tx_gbps`.
const MAX_GBPS: f64 = 10_000.0;
/// Longest path that fits the address of a UNIX socket.
const MAX_SOCKET_PATH: usize = 107;

/// The whole configuration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What to log: a level (`error`, `warn`, `info`, `debug`, `trace`) or a filter such as
    /// `info,vrnic_vfio_user=debug`.
    #[serde(default = "default_log")]
    pub log: String,
    /// How to log.
    #[serde(default)]
    pub log_format: LogFormat,
    /// Number of threads that drive the devices.
    #[serde(default)]
    pub workers: Workers,
    /// Microseconds for which a worker keeps polling after it last found work. A higher value lowers latency and
    /// keeps a CPU busy for longer.
    #[serde(default = "default_poll_us")]
    pub poll_us: u32,
    /// Whether a holder process keeps QEMU alive if this daemon dies.
    #[serde(default = "default_holder")]
    pub holder: bool,
    /// Path of the control socket, to which `vrnicctl` connects; no control socket if absent.
    #[serde(default)]
    pub control: Option<PathBuf>,
    /// Permissions of the control socket, in octal digits.
    #[serde(default)]
    pub control_mode: SocketMode,
    /// Whether a device that fails leaves a recording of the last calls into its engine.
    #[serde(default = "default_crash_recordings")]
    pub crash_recordings: bool,
    /// Directory for these recordings; see [`Config::crash_directory`].
    #[serde(default)]
    crash_directory: Option<PathBuf>,
    /// For tests of containment: names of devices whose engine panics when the daemon gets SIGUSR1.
    #[serde(default)]
    pub test_panic_on_sigusr1: Vec<String>,
    /// For tests of drivers: devices that give the driver wrong answers.
    #[serde(default)]
    pub test_hostile: Option<hostile::Settings>,
    /// For tests: whether workers keep giving devices to each other without a reason.
    #[serde(default)]
    pub test_restless_workers: bool,
    /// Whether clients of the control socket may arm faults.
    #[serde(default)]
    pub faults: bool,
    /// A capture that starts with the daemon.
    #[serde(default)]
    pub capture: Option<capture::Settings>,
    /// The devices.
    #[serde(default, rename = "device")]
    pub devices: Vec<Device>,
    /// The switch.
    #[serde(default)]
    pub switch: Option<Switch>,
    /// The InfiniBand subnet.
    #[serde(default)]
    pub subnet: Option<Subnet>,
}

/// One RNIC.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// Name in logs.
    pub name: String,
    /// Path at which the vfio-user socket is created.
    pub socket: PathBuf,
    /// MAC address of the guest's network device with which the RNIC is paired.
    pub mac: Mac,
    /// Node GUID; derived from the MAC address if absent.
    #[serde(default)]
    pub node_guid: Option<Guid>,
    /// Number of completion vectors, each with its own MSI-X vector.
    #[serde(default = "default_completion_vectors")]
    pub completion_vectors: u16,
    /// Network that the device is on.
    #[serde(default)]
    pub fabric: FabricKind,
    /// HCA of the subnet's topology that the device is; the one with its name if absent.
    #[serde(default)]
    pub hca: Option<String>,
    /// How reliable connections recover lost packets.
    #[serde(default)]
    pub recovery: RecoveryKind,
    /// Whether the device has doorbell pages. Without them, the driver rings doorbells with commands.
    #[serde(default = "default_doorbells")]
    pub doorbells: bool,
    /// Optional features that the device does not offer.
    #[serde(default)]
    pub without: Vec<Feature>,
    /// Limit on the payload that the device sends, including read responses, in gigabits per second; no limit if
    /// absent.
    #[serde(default)]
    pub tx_gbps: Option<f64>,
    /// Limit on the requests that the device starts per second; no limit if absent.
    #[serde(default)]
    pub max_iops: Option<u64>,
    /// The device's share of a worker that cannot keep up: a device with twice the weight gets twice the
    /// share.
    #[serde(default = "default_weight")]
    pub weight: u32,
    /// Limits; those not given keep their defaults.
    #[serde(default)]
    pub limits: Limits,
}

/// Number of workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(
    untagged,
    expecting = "a number of workers is expected, 1 to 64, or \"auto\""
)]
pub enum Workers {
    /// This many.
    Count(usize),
    /// As many as the machine can spare.
    Auto(Auto),
}

/// The word `auto`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto {
    /// As many as the machine can spare.
    Auto,
}

impl Default for Workers {
    fn default() -> Self {
        Self::Count(1)
    }
}

impl Workers {
    /// Returns the number for that many devices. `auto` leaves at least half of the CPUs to the guests.
    pub fn count(self, devices: usize) -> usize {
        match self {
            Self::Count(count) => count,
            Self::Auto(Auto::Auto) => {
                let cpus = std::thread::available_parallelism().map_or(1, usize::from);
                (cpus / 2).min(devices).clamp(1, MAX_WORKERS)
            }
        }
    }
}

/// Format of log lines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Network that a device can be on.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    /// Memory of this process: payload is copied directly from guest to guest.
    #[default]
    Local,
    /// RoCE frames.
    Roce,
    /// An InfiniBand subnet.
    Infiniband,
}

/// How reliable connections recover lost packets.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryKind {
    /// The receiver keeps packets that follow a missing one. A sender whose peer does this resends only the missing
    /// packet.
    #[default]
    Selective,
    /// The receiver drops packets that follow a missing one. The sender resends all of them.
    GoBackN,
}

/// Permissions of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    /// Returns permissions for the owner only.
    fn default() -> Self {
        Self(0o600)
    }
}

impl TryFrom<String> for SocketMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let mode = u32::from_str_radix(&text, 8).ok();
        mode.filter(|mode| *mode <= 0o777)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a mode such as \"0600\""))
    }
}

/// Unicast MAC address, `xx:xx:xx:xx:xx:xx`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns the EUI-64 derived from this address, as a GUID.
    pub fn guid(self) -> Guid {
        let [a, b, c, d, e, f] = self.0;
        Guid(u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]))
    }
}

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a MAC address such as 52:54:00:12:34:56");
        let bytes = hex_groups(text, 2).ok_or_else(wrong)?;
        let mac: [u8; 6] = bytes.try_into().map_err(|_| wrong())?;
        if mac[0] & 1 != 0 {
            return Err(format!(
                "`{text}` is a multicast address; a device needs a unicast one (even first byte)"
            ));
        }
        if mac == [0; 6] {
            return Err("the MAC address must not be all zeros".into());
        }
        Ok(Self(mac))
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// GUID, `xxxx:xxxx:xxxx:xxxx`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Guid(pub u64);

impl FromStr for Guid {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes = hex_groups(text, 4).and_then(|bytes| bytes.try_into().ok());
        let guid = bytes.map(u64::from_be_bytes).filter(|&guid| guid != 0);
        guid.map(Self)
            .ok_or_else(|| format!("`{text}` is not a GUID such as 5054:00ff:fe12:3456"))
    }
}

impl TryFrom<String> for Guid {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Parses colon-separated groups of `digits` hexadecimal digits (an even number) into bytes.
fn hex_groups(text: &str, digits: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for group in text.split(':') {
        if group.len() != digits || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        for at in (0..digits).step_by(2) {
            bytes.push(u8::from_str_radix(&group[at..at + 2], 16).ok()?);
        }
    }
    Some(bytes)
}

fn default_log() -> String {
    "info".into()
}

fn default_poll_us() -> u32 {
    40
}

fn default_holder() -> bool {
    true
}

fn default_crash_recordings() -> bool {
    true
}

fn default_doorbells() -> bool {
    true
}

fn default_weight() -> u32 {
    1
}

fn default_completion_vectors() -> u16 {
    4
}

impl Config {
    /// Returns a configuration with one device and defaults for everything else.
    pub fn of_one(device: Device) -> Self {
        Self {
            log: default_log(),
            log_format: LogFormat::default(),
            workers: Workers::default(),
            poll_us: default_poll_us(),
            holder: default_holder(),
            control: None,
            control_mode: SocketMode::default(),
            crash_recordings: default_crash_recordings(),
            crash_directory: None,
            test_panic_on_sigusr1: Vec::new(),
            test_hostile: None,
            test_restless_workers: false,
            faults: false,
            capture: None,
            devices: vec![device],
            switch: None,
            subnet: None,
        }
    }

    /// Reads and checks a configuration file.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in the configuration {}", path.display()))
    }

    /// Parses and checks the text of a configuration.
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)?;
        if let Some(Subnet {
            topology: subnet::Source::Here(here),
        }) = &config.subnet
        {
            // Now, because the lines of its mistakes are those of this text.
            Topology::new(here, text).context("in the topology")?;
        }
        config.check()?;
        Ok(config)
    }

    /// Checks what the types cannot express.
    pub fn check(&self) -> Result<()> {
        ensure!(
            !self.devices.is_empty() || self.switch.is_some(),
            "no devices: add a [[device]] section with name, socket and mac"
        );
        ensure!(
            self.devices.len() <= MAX_DEVICES,
            "{} devices: at most {MAX_DEVICES}",
            self.devices.len()
        );
        ensure!(
            self.poll_us <= 1_000_000,
            "poll_us = {}: at most 1000000 (one second)",
            self.poll_us
        );
        if let Workers::Count(count) = self.workers {
            ensure!(
                (1..=MAX_WORKERS).contains(&count),
                "workers = {count}: 1 to {MAX_WORKERS}, or \"auto\""
            );
        }
        let (mut names, mut sockets, mut macs) = (HashSet::new(), HashSet::new(), HashSet::new());
        for device in &self.devices {
            device
                .check()
                .with_context(|| format!("in device `{}`", device.name))?;
            ensure!(
                names.insert(&device.name),
                "two devices are named `{}`",
                device.name
            );
            ensure!(
                sockets.insert(&device.socket),
                "two devices use the socket {}",
                device.socket.display()
            );
            ensure!(
                macs.insert(device.mac),
                "two devices have the MAC address {}",
                device.mac
            );
        }
        if let Some(capture) = &self.capture {
            capture
                .choice()
                .check(names.iter().map(|name| name.as_str()))?;
        }
        if let Some(switch) = &self.switch {
            switch.check(&self.devices)?;
            for path in switch.ports.iter().filter_map(|port| port.stream.as_ref()) {
                ensure!(
                    sockets.insert(path),
                    "two devices or switch ports use the socket {}",
                    path.display()
                );
            }
            // The MAC address of an HCA only serves to derive its GUID, so a switch port may have the same one.
            let on_subnet = |device: &&Device| device.fabric == FabricKind::Infiniband;
            for device in self.devices.iter().filter(on_subnet) {
                macs.remove(&device.mac);
            }
            for mac in switch.ports.iter().filter_map(|port| port.mac) {
                ensure!(
                    macs.insert(mac),
                    "a switch port has the MAC address {mac} of a device; name the device instead"
                );
            }
        }
        crate::fabric::subnet::check(self)?;
        for name in &self.test_panic_on_sigusr1 {
            ensure!(
                names.contains(name),
                "test_panic_on_sigusr1 names the device `{name}`, which does not exist"
            );
        }
        if let Some(hostile) = &self.test_hostile {
            for name in &hostile.devices {
                ensure!(
                    names.contains(name),
                    "test_hostile names the device `{name}`, which does not exist"
                );
            }
            ensure!(
                hostile.one_in > 0,
                "test_hostile: one_in must be at least 1"
            );
        }
        Ok(())
    }

    /// Returns the directory for recordings of devices that fail: the one in the configuration; or else `state`, the
    /// state directory that a service manager assigned to the daemon; or else the directory of the control socket.
    /// Returns `None` if recordings are turned off or none of these exists.
    pub fn crash_directory(&self, state: Option<&OsStr>) -> Option<PathBuf> {
        // `state` may list several directories (systemd.exec(5)); the first one will do.
        let state = state.and_then(|state| state.as_bytes().split(|byte| *byte == b':').next());
        let state = state.filter(|path| !path.is_empty());
        let state = state.map(|path| PathBuf::from(OsStr::from_bytes(path)));
        let beside = || match self.control.as_ref()?.parent() {
            Some(directory) if directory.as_os_str().is_empty() => Some(PathBuf::from(".")),
            directory => directory.map(PathBuf::from),
        };
        let directory = self.crash_directory.clone().or(state).or_else(beside);
        directory.filter(|_| self.crash_recordings)
    }

    /// Returns the polling time.
    pub fn poll_time(&self) -> Duration {
        Duration::from_micros(self.poll_us.into())
    }
}

impl Device {
    /// Returns a device with default settings.
    pub fn new(name: String, socket: PathBuf, mac: Mac) -> Self {
        Self {
            name,
            socket,
            mac,
            node_guid: None,
            completion_vectors: default_completion_vectors(),
            fabric: FabricKind::default(),
            hca: None,
            recovery: RecoveryKind::default(),
            doorbells: default_doorbells(),
            without: Vec::new(),
            tx_gbps: None,
            max_iops: None,
            weight: default_weight(),
            limits: Limits::default(),
        }
    }

    /// Returns the configured GUID, or else the one derived from the MAC address.
    pub fn guid(&self) -> Guid {
        self.node_guid.unwrap_or_else(|| self.mac.guid())
    }

    /// Returns the name of its HCA in the topology of the subnet.
    pub fn hca(&self) -> &str {
        self.hca.as_ref().unwrap_or(&self.name)
    }

    /// Returns the rate limit of the device.
    ///
    /// # Errors
    /// A rate is out of range.
    pub fn rate_limit(&self) -> Result<RateLimit> {
        rate_limit(self.tx_gbps, self.max_iops)
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.name.is_empty(), "the name is empty");
        self.rate_limit()?;
        ensure!(
            (1..=MAX_WEIGHT).contains(&self.weight),
            "weight = {}: must be 1 to {MAX_WEIGHT}",
            self.weight
        );
        ensure!(
            !self.name.starts_with(protocol::PORT),
            "names that begin with `{}` are reserved for ports of the switch",
            protocol::PORT
        );
        check_socket_path(&self.socket)?;
        if !(1..=MAX_COMPLETION_VECTORS).contains(&self.completion_vectors) {
            bail!(
                "completion_vectors = {}: must be 1 to {MAX_COMPLETION_VECTORS}",
                self.completion_vectors
            );
        }
        Ok(())
    }
}

/// Returns the rate limit for a payload of `tx_gbps` gigabits and `max_iops` requests per second.
///
/// # Errors
/// A rate is out of range.
#[expect(
    clippy::cast_sign_loss,
    reason = "rates out of range are refused before"
)]
pub fn rate_limit(tx_gbps: Option<f64>, max_iops: Option<u64>) -> Result<RateLimit> {
    let bytes = tx_gbps.map(|gbps| {
        ensure!(
            (MIN_GBPS..=MAX_GBPS).contains(&gbps),
            "tx_gbps = {gbps}: must be {MIN_GBPS} to {MAX_GBPS}"
        );
        Ok((gbps * 1e9 / 8.0) as u64)
    });
    let requests = max_iops.map(|iops| {
        ensure!(iops > 0, "max_iops = 0: must be at least 1");
        Ok(iops)
    });
    Ok(RateLimit {
        bytes: bytes.transpose()?.and_then(NonZeroU64::new),
        requests: requests.transpose()?.and_then(NonZeroU64::new),
    })
}

/// Checks that `path` fits the address of a UNIX socket.
fn check_socket_path(path: &Path) -> Result<()> {
    let length = path.as_os_str().len();
    ensure!(length > 0, "the socket path is empty");
    ensure!(
        length <= MAX_SOCKET_PATH,
        "the socket path has {length} bytes; UNIX sockets allow {MAX_SOCKET_PATH}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str =
        "[[device]]\nname = \"a\"\nsocket = \"a.sock\"\nmac = \"52:54:00:12:34:56\"\n";

    fn error(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn defaults_fill_in() {
        let config = Config::parse(ONE).unwrap();
        let device = &config.devices[0];
        assert_eq!(device.mac.to_string(), "52:54:00:12:34:56");
        assert_eq!(device.guid(), Guid(0x5054_00ff_fe12_3456));
        assert_eq!(
            (
                device.completion_vectors,
                device.weight,
                config.poll_us,
                config.holder
            ),
            (4, 1, 40, true)
        );
    }

    #[test]
    fn workers_are_a_number_or_auto() {
        let of = |value: &str| Config::parse(&format!("workers = {value}\n{ONE}"));
        let count = |value: &str, devices| of(value).unwrap().workers.count(devices);
        assert_eq!(Config::parse(ONE).unwrap().workers.count(100), 1);
        assert_eq!((count("1", 9), count("64", 1)), (1, 64));
        assert_eq!((count("\"auto\"", 1), count("\"auto\"", 0)), (1, 1));
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(count("\"auto\"", 1000), (cpus / 2).clamp(1, MAX_WORKERS));
        for wrong in ["0", "65", "-1", "1.5", "\"many\"", "true"] {
            let error = format!("{:#}", of(wrong).unwrap_err());
            assert!(error.contains("1 to 64, or \"auto\""), "{wrong}: {error}");
        }
    }

    #[test]
    fn everything_can_be_set() {
        let config = Config::parse(&format!(
            "log = \"debug\"\nlog_format = \"json\"\npoll_us = 0\nholder = false\ntest_panic_on_sigusr1 = [\"a\"]\n{ONE}\
             node_guid = \"0011:2233:4455:6677\"\ncompletion_vectors = 8\nfabric = \"roce\"\nrecovery = \"selective\"\n\
             doorbells = false\nwithout = [\"xrc\"]\ntx_gbps = 0.5\nmax_iops = 1000\nweight = 3\n\
             [device.limits]\nqp = 100\ncontexts = 16\n"
        ))
        .unwrap();
        let device = &config.devices[0];
        assert_eq!(device.guid(), Guid(0x0011_2233_4455_6677));
        assert_eq!(device.fabric, FabricKind::Roce);
        assert_eq!(device.recovery, RecoveryKind::Selective);
        assert_eq!(device.limits.qp, 100);
        assert_eq!(device.limits.contexts, 16);
        assert_eq!(device.weight, 3);
        assert_eq!(device.without, [Feature::Xrc]);
        assert_eq!(
            device.rate_limit().unwrap(),
            RateLimit {
                bytes: NonZeroU64::new(62_500_000),
                requests: NonZeroU64::new(1000)
            }
        );
        assert_eq!(config.log_format, LogFormat::Json);
    }

    #[test]
    fn the_example_shows_the_defaults() {
        let text = include_str!("../vrnicd.toml");
        let example = Config::parse(text).unwrap();
        let mac = example.devices[0].mac;
        let default = Config::of_one(Device::new(
            "rnic0".into(),
            "/run/vrnic/rnic0.sock".into(),
            mac,
        ));
        let (shown, implied) = (example.devices[0].limits, default.devices[0].limits);
        assert_eq!(shown, implied);
        for limit in format!("{implied:#?}")
            .lines()
            .filter(|line| line.contains(':'))
        {
            let line = limit.trim().trim_end_matches(',').replace(": ", " = ");
            assert!(text.contains(&format!("\n{line}\n")), "{line}");
        }
        assert_eq!(example.devices[0].guid(), default.devices[0].guid());
        assert_eq!(
            format!(
                "{:?}",
                Config {
                    devices: vec![],
                    ..example
                }
            ),
            format!(
                "{:?}",
                Config {
                    devices: vec![],
                    control: Some("/run/vrnic/control.sock".into()),
                    ..default
                }
            )
        );
    }

    #[test]
    fn recordings_of_devices_that_fail_have_a_place() {
        let place = |lines: &str, state: Option<&str>| {
            let config = Config::parse(&format!("{lines}\n{ONE}")).unwrap();
            let found = config.crash_directory(state.map(OsStr::new));
            found.map(|path| path.to_string_lossy().into_owned())
        };
        let own = "crash_directory = \"/own\"\ncontrol = \"/run/x/control\"";
        assert_eq!(place(own, Some("/state")).as_deref(), Some("/own"));
        let control = "control = \"/run/x/control\"";
        assert_eq!(place(control, Some("/state:/b")).as_deref(), Some("/state"));
        for state in [None, Some("")] {
            assert_eq!(place(control, state).as_deref(), Some("/run/x"));
            assert_eq!(place("control = \"c\"", state).as_deref(), Some("."));
            assert_eq!(place("", state), None);
        }
        let off = format!("{own}\ncrash_recordings = false");
        assert_eq!(place(&off, Some("/state")), None);
    }

    #[test]
    fn mistakes_are_named() {
        assert!(error("").contains("no devices"));
        assert!(error("pol_us = 3").contains("pol_us"));
        assert!(error(&ONE.replace("52:", "53:")).contains("multicast"));
        assert!(error(&ONE.replace("52:", "5:")).contains("not a MAC address"));
        assert!(error(&ONE.replace("a.sock", &"x".repeat(108))).contains("107"));
        assert!(error(&ONE.replace("\"a\"", "\"port:a\"")).contains("ports of the switch"));
        assert!(error(&format!("{ONE}{ONE}")).contains("two devices are named `a`"));
        assert!(error(&ONE.repeat(MAX_DEVICES + 1)).contains("at most 4096"));
        assert!(error(&format!("{ONE}completion_vectors = 0")).contains("1 to 1024"));
        for gbps in ["0.0", "-1.0", "nan", "inf", "10001.0"] {
            assert!(error(&format!("{ONE}tx_gbps = {gbps}")).contains("0.001 to 10000"));
        }
        assert!(error(&format!("{ONE}max_iops = 0")).contains("at least 1"));
        for weight in [0, 9] {
            assert!(error(&format!("{ONE}weight = {weight}")).contains("1 to 8"));
        }
        assert!(
            error(&format!("test_panic_on_sigusr1 = [\"b\"]\n{ONE}")).contains("does not exist")
        );
        let hostile = |rest: &str| format!("test_hostile = {{ devices = {rest} }}\n{ONE}");
        assert!(error(&hostile("[\"b\"], seed = 1")).contains("does not exist"));
        assert!(error(&hostile("[\"a\"], seed = 1, one_in = 0")).contains("at least 1"));
        assert!(error(&hostile("[\"a\"]")).contains("seed"));
        let capture = |line: &str| error(&format!("[capture]\nfile = \"c\"\n{line}\n{ONE}"));
        assert!(capture("device = \"b\"").contains("does not exist"));
        assert!(capture("qp = 17").contains("needs its device"));
        assert!(error(&format!("{ONE}node_guid = \"1:2:3:4\"")).contains("not a GUID"));
    }
}
