// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The description of a lab: its networks, and its VMs with their devices. It is read from a lab file. `pair.toml` is
//! the lab file of `make run` and of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use toml::Spanned;
use vrnic_infiniband::topology;
use vrnicd::config::subnet;
use vrnicd::config::switch::{Impair, Link, Udp, VlanRange};

use crate::daemon;
use crate::lab::{Extra, TREE};
use crate::vm::{Device, Fabric};

/// Maximum number of VMs of a lab.
const MAX_VMS: usize = 32;
/// Maximum number of devices of a VM, each of which takes two slots of its PCI bus.
const MAX_NICS: usize = 8;
/// Maximum number of a VM. It leaves room in the last byte of the IPv4 address for 4 devices on one network.
const MAX_NUMBER: u8 = 60;
/// Distance between the addresses of a VM's devices on one network.
const STRIDE: u8 = 64;
/// Highest priority of a subnet manager (InfiniBand architecture, 14.4.1).
const MAX_PRIORITY: u8 = 15;
/// Program that starts the first part of a guest's software. An image must have it.
const INIT: &str = "sbin/vrnic-init";
/// The ssh server of an image.
pub const SSHD: &str = "usr/sbin/sshd";
/// Directories that each guest has in memory, so that mount points can be created in them.
const WRITABLE: [&str; 5] = ["/mnt", "/root", "/run", "/tmp", "/var/tmp"];

/// A lab.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Description {
    /// Name of the lab, which defaults to that of the file.
    pub name: String,
    /// Networks, in the order of the lab file.
    pub networks: Vec<Network>,
    /// VMs, in the order of the lab file.
    pub machines: Vec<Machine>,
}

/// A network, which has its own vrnicd.
#[derive(Debug, Clone, PartialEq)]
pub struct Network {
    /// Name of the network.
    pub name: String,
    /// How the messages of its RNICs travel.
    pub fabric: Fabric,
    /// Third byte of the IPv4 addresses.
    pub subnet: u8,
    /// Maximum packet size, if it is not the default.
    pub mtu: Option<usize>,
    /// Impairment of frames on their way to the ports, as an inline table for vrnicd's configuration.
    pub impairment: Option<String>,
    /// Switches, links and HCAs of an InfiniBand subnet, as an inline table for vrnicd's configuration. `None` for a
    /// subnet with one switch.
    pub topology: Option<String>,
    /// Whether a switch connects the virtio-nets. If not, there are at most two, connected by a socket.
    pub switch: bool,
    /// Links to other hosts and ports to the host's network, each as the lines of its port in vrnicd's configuration.
    pub links: Vec<String>,
    /// Additional lines for vrnicd's configuration.
    pub daemon: Vec<String>,
    /// Network namespace in which vrnicd runs.
    pub host: Option<usize>,
}

/// A virtual machine.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Name of the VM, which is also its hostname.
    pub name: String,
    /// Last byte of the addresses.
    pub number: u8,
    /// RDMA device whose driver the guest loads at start.
    pub device: Device,
    /// Kernel, if not that of the lab: a name, or the path of a built tree.
    pub kernel: Option<String>,
    /// Root directory, if not the default one.
    pub image: Option<PathBuf>,
    /// Debian packages to add to the default root directory, sorted.
    pub packages: Vec<String>,
    /// Disk, if the VM has a system of its own.
    pub disk: Option<Disk>,
    /// Whether users can log in by ssh.
    pub ssh: bool,
    /// Memory in MiB.
    pub memory: Option<u32>,
    /// Number of processors.
    pub cpus: Option<u32>,
    /// Words to add to the kernel's command line.
    pub kernel_arguments: String,
    /// Size of the NVDIMM in MiB, if there is one.
    pub nvdimm: Option<u32>,
    /// Whether the guest can suspend to idle and still has its directories and its agent when it wakes up. Linux does
    /// not restore a device that shares directories, so those of the lab keep their state then (No_Soft_Reset).
    pub sleeps: bool,
    /// Network devices, RNICs first.
    pub nics: Vec<Nic>,
    /// Directories of the host in the guest.
    pub shares: Vec<Share>,
}

/// A disk image with a system, of which a VM has a private copy. The kernel of the lab starts the system.
#[derive(Debug, Clone, PartialEq)]
pub struct Disk {
    /// Path of the image.
    pub path: PathBuf,
    /// `qcow2` or `raw`.
    pub format: &'static str,
    /// User data for cloud-init in the image.
    pub user_data: Option<PathBuf>,
}

/// A virtio-net device, and the RNIC that is paired with it, if any.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Nic {
    /// Name of the network.
    pub network: String,
    /// Whether there is an RNIC.
    pub rnic: bool,
    /// Whether the guest runs Soft-RoCE on the virtio-net.
    pub soft_roce: bool,
    /// Priority of the subnet manager that runs behind this RNIC, or `None` if none does.
    #[serde(skip)]
    pub manages: Option<u8>,
    /// MAC address.
    pub mac: String,
    /// IPv4 address of the guest.
    pub ipv4: String,
    /// IPv6 address of the guest.
    pub ipv6: String,
    /// Name of the RNIC and of its port in vrnicd.
    #[serde(skip)]
    pub name: String,
    /// Additional lines for the RNIC in vrnicd's configuration.
    #[serde(skip)]
    pub device: Vec<String>,
    /// Additional lines for the switch port in vrnicd's configuration.
    #[serde(skip)]
    pub port: Vec<String>,
}

impl Nic {
    /// Returns the GUID of the RNIC's port on an InfiniBand subnet, in the notation of programs.
    #[must_use]
    pub fn port_guid(&self) -> String {
        let mac = self.mac.parse::<vrnicd::config::Mac>();
        mac.map_or_else(|_| String::new(), |mac| format!("{:#018x}", mac.guid().0))
    }
}

/// A directory of the host in a guest.
#[derive(Debug, Clone, PartialEq)]
pub struct Share {
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the guest.
    pub guest: String,
    /// Whether the guest may only read.
    pub read_only: bool,
}

/// A file or a directory that is copied into a guest at each `up`.
#[derive(Debug, Clone, PartialEq)]
pub struct Copy {
    /// Name of the VM.
    pub vm: String,
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the guest.
    pub guest: String,
}

/// Numbers of VMs and networks that must not change.
#[derive(Debug, Clone, Default)]
pub struct Numbers {
    /// Numbers of VMs by name.
    pub machines: BTreeMap<String, u8>,
    /// Subnets of networks by name.
    pub networks: BTreeMap<String, u8>,
}

/// The contents of a lab file.
#[derive(Debug)]
pub struct Parsed {
    /// The lab.
    pub description: Description,
    /// Files to copy into the VMs.
    pub copies: Vec<Copy>,
    /// Kernel of VMs that do not name one.
    pub kernel: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSection {
    name: Option<Spanned<String>>,
    kernel: Option<Spanned<String>>,
    image: Option<Spanned<PathBuf>>,
    packages: Option<Spanned<Vec<Spanned<String>>>>,
    user_data: Option<Spanned<PathBuf>>,
    #[serde(default)]
    ssh: bool,
    memory: Option<Spanned<u32>>,
    cpus: Option<Spanned<u32>>,
    first_number: Option<Spanned<u8>>,
    #[serde(default)]
    network: Vec<Spanned<NetworkSection>>,
    #[serde(default)]
    vm: Vec<Spanned<MachineSection>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkSection {
    name: Spanned<String>,
    fabric: Option<Fabric>,
    subnet: Option<Spanned<u8>>,
    mtu: Option<Spanned<usize>>,
    switch: Option<Spanned<bool>>,
    #[serde(default)]
    faults: bool,
    impairment: Option<Spanned<Impair>>,
    topology: Option<Spanned<subnet::Source>>,
    #[serde(default)]
    link: Vec<Spanned<Link>>,
    #[serde(default)]
    udp: Vec<Spanned<Udp>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineSection {
    name: Spanned<String>,
    count: Option<Spanned<usize>>,
    kernel: Option<Spanned<String>>,
    image: Option<Spanned<PathBuf>>,
    packages: Option<Spanned<Vec<Spanned<String>>>>,
    user_data: Option<Spanned<PathBuf>>,
    ssh: Option<bool>,
    memory: Option<Spanned<u32>>,
    cpus: Option<Spanned<u32>>,
    kernel_arguments: Option<Spanned<String>>,
    rnic: Option<Vec<Spanned<RnicSection>>>,
    netdev: Option<Vec<Spanned<NetdevSection>>>,
    #[serde(default)]
    share: Vec<Spanned<ShareSection>>,
    #[serde(default)]
    file: Vec<Spanned<CopySection>>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RnicSection {
    network: Option<Spanned<String>>,
    hca: Option<Spanned<String>>,
    opensm_priority: Option<Spanned<u8>>,
    vlan: Option<u16>,
    trunk: Option<Vec<VlanRange>>,
    native: Option<u16>,
    impairment: Option<Impair>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct NetdevSection {
    network: Option<Spanned<String>>,
    #[serde(default)]
    soft_roce: bool,
    vlan: Option<u16>,
    trunk: Option<Vec<VlanRange>>,
    native: Option<u16>,
    impairment: Option<Impair>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShareSection {
    host: Spanned<PathBuf>,
    guest: Spanned<String>,
    #[serde(default)]
    read_only: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CopySection {
    host: Spanned<PathBuf>,
    guest: Spanned<String>,
}

/// What all devices of a VM have in common.
struct NicSection {
    span: Range<usize>,
    rnic: bool,
    soft_roce: bool,
    common: RnicSection,
}

/// A lab file, to show where an error is.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// Creates an error with the line number and the line.
    fn error(&self, span: &Range<usize>, message: impl std::fmt::Display) -> anyhow::Error {
        let before = self.text.get(..span.start).unwrap_or(self.text);
        let number = before.matches('\n').count();
        let line = self.text.lines().nth(number).unwrap_or_default().trim();
        let shown: String = line.chars().take(60).collect();
        anyhow!(
            "{}:{}: `{shown}`: {message}",
            self.path.display(),
            number + 1
        )
    }

    /// Returns an error unless `good`.
    fn ensure(
        &self,
        good: bool,
        span: &Range<usize>,
        message: impl FnOnce() -> String,
    ) -> Result<()> {
        if good {
            Ok(())
        } else {
            Err(self.error(span, message()))
        }
    }

    /// Returns the name of a VM, a network or a lab if it is valid.
    fn name(&self, what: &str, name: &Spanned<String>) -> Result<String> {
        let text = name.get_ref();
        self.ensure(is_name(text), &name.span(), || {
            format!(
                "name: the name of a {what} has 1 to 15 lower-case letters, digits and hyphens, and does not begin \
                 with a hyphen"
            )
        })?;
        Ok(text.clone())
    }

    /// Returns an existing path of the host, which is relative to the directory of the file.
    fn host(&self, key: &str, path: &Spanned<PathBuf>) -> Result<PathBuf> {
        let whole = std::env::current_dir()?
            .join(self.path.parent().unwrap_or(Path::new("")))
            .join(path.get_ref());
        whole.canonicalize().map_err(|error| {
            self.error(&path.span(), format!("{key}: {}: {error}", whole.display()))
        })
    }
}

/// Returns whether a lab, a VM or a network can have this name, which becomes part of paths.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=15).contains(&text.len())
        && !text.starts_with('-')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Returns the topology of a network for vrnicd's configuration. The contents of a topology file become part of the
/// lab, so that a lab with other contents is a different one.
fn topology_of(source: &Source<'_>, topology: &Spanned<subnet::Source>) -> Result<String> {
    let here = match topology.get_ref() {
        subnet::Source::Here(here) => {
            topology::Topology::new(here, source.text).map_err(|error| {
                let topology::TopologyError {
                    line,
                    text,
                    message,
                } = error;
                let path = source.path.display();
                anyhow!("{path}:{line}: `{text}`: topology: {message}")
            })?;
            here.clone()
        }
        subnet::Source::File(file) => {
            let path = source.host("topology", &Spanned::new(topology.span(), file.clone()))?;
            let wrong = |error: &dyn std::fmt::Display| {
                let message = format!("topology: {}: {error}", path.display());
                source.error(&topology.span(), message)
            };
            let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
            let here = topology::Description::parse(&text).map_err(|error| wrong(&error))?;
            topology::Topology::new(&here, &text).map_err(|error| wrong(&error))?;
            Box::new(here)
        }
    };
    inline(here)
}

/// Formats a value as one line of TOML.
fn inline(value: impl Serialize) -> Result<String> {
    Ok(toml::Value::try_from(value)?.to_string())
}

impl Parsed {
    /// Reads a lab file. VMs and networks in `known` keep their numbers. Networks without a fabric get `fabric`.
    ///
    /// # Errors
    /// A sentence that names the file and the line and describes the error.
    pub fn load(path: &Path, known: &Numbers, fabric: Fabric) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the lab file {}", path.display()))?;
        Self::parse(path, &text, known, fabric)
    }

    /// Reads the text of a lab file.
    ///
    /// # Errors
    /// Those of [`load`](Self::load).
    pub fn parse(path: &Path, text: &str, known: &Numbers, fabric: Fabric) -> Result<Self> {
        let source = Source { path, text };
        let file: FileSection = toml::from_str(text).map_err(|error| {
            source.error(
                &error.span().unwrap_or_default(),
                error.message().replace('\n', ", "),
            )
        })?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = match &file.name {
            Some(name) => source.name("lab", name)?,
            None if is_name(&stem) => stem.into_owned(),
            None => {
                return Err(source.error(
                    &(0..0),
                    "name: give the lab a name of 1 to 15 lower-case letters, digits and hyphens; the name of the \
                     file is not one",
                ));
            }
        };
        let networks = networks(&source, &file, known, fabric)?;
        let (machines, copies, spans) = machines(&source, &file, known, &networks)?;
        let mut description = Description {
            name,
            networks,
            machines,
        };
        description.choose_subnet_managers();
        description.check(&source, &file, &spans)?;
        Ok(Self {
            description,
            copies,
            kernel: file.kernel.map(Spanned::into_inner),
        })
    }
}

fn networks(
    source: &Source<'_>,
    file: &FileSection,
    known: &Numbers,
    fabric: Fabric,
) -> Result<Vec<Network>> {
    let mut networks: Vec<Network> = Vec::new();
    let mut taken = BTreeSet::new();
    for section in &file.network {
        if let Some(subnet) = &section.get_ref().subnet {
            source.ensure(taken.insert(*subnet.get_ref()), &subnet.span(), || {
                "subnet: another network has it".to_owned()
            })?;
        }
    }
    let names = file.network.iter().map(|it| it.get_ref().name.get_ref());
    let kept: Vec<u8> = names
        .filter_map(|name| known.networks.get(name).copied())
        .collect();
    for section in &file.network {
        let (section, span) = (section.get_ref(), section.span());
        let name = source.name("network", &section.name)?;
        source.ensure(
            !networks.iter().any(|other| other.name == name),
            &section.name.span(),
            || format!("name: two networks are named `{name}`"),
        )?;
        let subnet = match (&section.subnet, known.networks.get(&name)) {
            (Some(subnet), _) => *subnet.get_ref(),
            (None, Some(subnet)) if !taken.contains(subnet) => *subnet,
            _ => (0..=u8::MAX)
                .find(|subnet| !taken.contains(subnet) && !kept.contains(subnet))
                .ok_or_else(|| source.error(&span, "too many networks"))?,
        };
        taken.insert(subnet);
        let fabric = section.fabric.unwrap_or(fabric);
        let local_wire = fabric == Fabric::Local
            && section.link.is_empty()
            && section.udp.is_empty()
            && section.impairment.is_none()
            && section.mtu.is_none();
        let switch = section.switch.as_ref();
        if let Some(switch) = switch.filter(|switch| !*switch.get_ref()) {
            source.ensure(local_wire, &switch.span(), || {
                "switch: only a network of fabric \"local\" without link, udp, impairment and mtu can have switch = \
                 false".to_owned()
            })?;
        }
        let topology = match &section.topology {
            Some(topology) => {
                source.ensure(fabric == Fabric::Infiniband, &topology.span(), || {
                    "topology: only valid for a network of fabric \"infiniband\"".to_owned()
                })?;
                Some(topology_of(source, topology)?)
            }
            None => None,
        };
        let mut links = Vec::new();
        for link in &section.link {
            links.push(format!("link = {}", inline(link.get_ref())?));
        }
        for udp in &section.udp {
            links.push(format!("udp = {}", inline(udp.get_ref())?));
        }
        networks.push(Network {
            name,
            fabric,
            subnet,
            mtu: section.mtu.as_ref().map(|mtu| *mtu.get_ref()),
            impairment: match &section.impairment {
                Some(impairment) => Some(inline(impairment.get_ref())?),
                None => None,
            },
            topology,
            switch: switch.is_none_or(|switch| *switch.get_ref()),
            links,
            daemon: if section.faults {
                vec!["faults = true".to_owned()]
            } else {
                Vec::new()
            },
            host: None,
        });
    }
    if networks.is_empty() {
        networks.push(Network {
            name: daemon::FIRST.to_owned(),
            fabric,
            subnet: 0,
            mtu: None,
            impairment: None,
            topology: None,
            switch: true,
            links: Vec::new(),
            daemon: Vec::new(),
            host: None,
        });
    }
    Ok(networks)
}

/// Position of each device in the file, by its name.
type Spans = BTreeMap<String, Range<usize>>;

fn machines(
    source: &Source<'_>,
    file: &FileSection,
    known: &Numbers,
    networks: &[Network],
) -> Result<(Vec<Machine>, Vec<Copy>, Spans)> {
    let (mut machines, mut copies, mut spans) = (Vec::<Machine>::new(), Vec::new(), Spans::new());
    let first = match &file.first_number {
        Some(first) => {
            source.ensure(
                (1..=MAX_NUMBER).contains(first.get_ref()),
                &first.span(),
                || format!("first_number: must be 1 to {MAX_NUMBER}"),
            )?;
            *first.get_ref()
        }
        None => 1,
    };
    let mut names = Vec::new();
    for section in &file.vm {
        let vm = section.get_ref();
        let name = source.name("VM", &vm.name)?;
        let Some(count) = &vm.count else {
            names.push((name, section));
            continue;
        };
        source.ensure(
            (1..=MAX_VMS).contains(count.get_ref()),
            &count.span(),
            || format!("count: must be 1 to {MAX_VMS} VMs"),
        )?;
        for index in 1..=*count.get_ref() {
            let name = format!("{name}{index}");
            source.ensure(is_name(&name), &vm.name.span(), || {
                format!("name: `{name}` has more than 15 characters")
            })?;
            names.push((name, section));
        }
    }
    let kept: Vec<u8> = names
        .iter()
        .filter_map(|(name, _)| known.machines.get(name).copied())
        .collect();
    for (name, section) in names {
        let (vm, span) = (section.get_ref(), section.span());
        source.ensure(
            !machines.iter().any(|other| other.name == name),
            &vm.name.span(),
            || format!("name: two VMs are named `{name}`"),
        )?;
        source.ensure(machines.len() < MAX_VMS, &span, || {
            format!("a lab has at most {MAX_VMS} VMs")
        })?;
        let free = |number: &u8| {
            !kept.contains(number) && !machines.iter().any(|other| other.number == *number)
        };
        let number = match known.machines.get(&name) {
            Some(number) => *number,
            None => (first..=MAX_NUMBER).find(free).ok_or_else(|| {
                source.error(
                    &span,
                    format!("no number from {first} to {MAX_NUMBER} is left"),
                )
            })?,
        };
        let memory = vm.memory.as_ref().or(file.memory.as_ref());
        if let Some(memory) = memory {
            source.ensure(
                (256..=1 << 20).contains(memory.get_ref()),
                &memory.span(),
                || "memory: must be 256 to 1048576 MiB".to_owned(),
            )?;
        }
        let cpus = vm.cpus.as_ref().or(file.cpus.as_ref());
        if let Some(cpus) = cpus {
            source.ensure((1..=64).contains(cpus.get_ref()), &cpus.span(), || {
                "cpus: must be 1 to 64".to_owned()
            })?;
        }
        let kernel = match vm.kernel.as_ref().or(file.kernel.as_ref()) {
            Some(kernel) => Some(kernel_of(source, kernel)?),
            None => None,
        };
        let ssh = vm.ssh.unwrap_or(file.ssh);
        let (image, disk) = image_of(source, file, vm, ssh)?;
        let packages = packages_of(source, file, vm, ssh)?;
        let kernel_arguments = match &vm.kernel_arguments {
            Some(arguments) => {
                source.ensure(
                    arguments.get_ref().chars().all(|it| !it.is_control()),
                    &arguments.span(),
                    || "kernel_arguments: must be one line".to_owned(),
                )?;
                arguments.get_ref().clone()
            }
            None => String::new(),
        };
        let nics = nics(source, &name, number, section, networks, &mut spans)?;
        let mut shares: Vec<Share> = Vec::new();
        for share in &vm.share {
            let share = share.get_ref();
            let guest = share.guest.get_ref();
            source.ensure(can_mount(guest), &share.guest.span(), || {
                format!(
                    "guest: must be a path below {}, without `..`, spaces and commas",
                    WRITABLE.join(", ")
                )
            })?;
            let host = source.host("host", &share.host)?;
            source.ensure(host.is_dir(), &share.host.span(), || {
                format!("host: {} is not a directory", host.display())
            })?;
            source.ensure(
                !shares.iter().any(|other| other.guest == *guest),
                &share.guest.span(),
                || format!("guest: two shares have the path {guest}"),
            )?;
            shares.push(Share {
                host,
                guest: guest.clone(),
                read_only: share.read_only,
            });
        }
        for copy in &vm.file {
            let copy = copy.get_ref();
            source.ensure(
                copy.guest.get_ref().starts_with('/'),
                &copy.guest.span(),
                || "guest: must begin with /".to_owned(),
            )?;
            copies.push(Copy {
                vm: name.clone(),
                host: source.host("host", &copy.host)?,
                guest: copy.guest.get_ref().clone(),
            });
        }
        let device = if nics.iter().any(|nic| nic.soft_roce) && !nics.iter().any(|nic| nic.rnic) {
            Device::Rxe
        } else {
            Device::Vrnic
        };
        machines.push(Machine {
            name,
            number,
            device,
            kernel,
            image,
            packages,
            disk,
            ssh,
            memory: memory.map(|memory| *memory.get_ref()),
            cpus: cpus.map(|cpus| *cpus.get_ref()),
            kernel_arguments,
            nvdimm: None,
            sleeps: false,
            nics,
            shares,
        });
    }
    source.ensure(!machines.is_empty(), &(0..0), || {
        "a lab has at least one [[vm]]".to_owned()
    })?;
    Ok((machines, copies, spans))
}

/// Returns the root directory of a VM, or its disk.
fn image_of(
    source: &Source<'_>,
    file: &FileSection,
    vm: &MachineSection,
    ssh: bool,
) -> Result<(Option<PathBuf>, Option<Disk>)> {
    let own_user_data = vm.user_data.as_ref();
    let inherited = file.image.as_ref().filter(|_| vm.packages.is_none());
    let Some(image) = vm.image.as_ref().or(inherited) else {
        return match own_user_data {
            Some(data) => Err(source.error(
                &data.span(),
                "user_data: only valid for VMs whose image is a disk",
            )),
            None => Ok((None, None)),
        };
    };
    let path = source.host("image", image)?;
    if path.is_dir() {
        source.ensure(path.join(INIT).is_file(), &image.span(), || {
            format!(
                "image: {} is not the root directory of a guest: it has no {INIT}; copy tools/setup/guest-init there",
                path.display()
            )
        })?;
        source.ensure(!ssh || path.join(SSHD).is_file(), &image.span(), || {
            format!("image: {} has no {SSHD}, which `ssh` needs", path.display())
        })?;
        if let Some(data) = own_user_data {
            return Err(source.error(
                &data.span(),
                "user_data: only valid for VMs whose image is a disk",
            ));
        }
        return Ok((Some(path), None));
    }
    let format = disk_format(&path).ok_or_else(|| {
        source.error(
            &image.span(),
            format!(
                "image: {} is neither a root directory nor a disk image (qcow2, or raw with partitions or ext4)",
                path.display()
            ),
        )
    })?;
    let user_data = match own_user_data.or(file.user_data.as_ref()) {
        Some(data) => {
            let path = source.host("user_data", data)?;
            source.ensure(path.is_file(), &data.span(), || {
                format!("user_data: {} is not a file", path.display())
            })?;
            Some(path)
        }
        None => None,
    };
    Ok((
        None,
        Some(Disk {
            path,
            format,
            user_data,
        }),
    ))
}

/// Returns the packages to add to the usual root directory for a VM, without duplicates.
fn packages_of(
    source: &Source<'_>,
    file: &FileSection,
    vm: &MachineSection,
    ssh: bool,
) -> Result<Vec<String>> {
    let both = |image: &Option<_>, packages: &Option<Spanned<Vec<_>>>| match packages {
        Some(packages) if image.is_some() => Err(source.error(
            &packages.span(),
            "packages: they are added to the default image, so `image` must not be set beside them",
        )),
        _ => Ok(()),
    };
    both(&file.image, &file.packages)?;
    both(&vm.image, &vm.packages)?;
    let inherited = file.packages.as_ref().filter(|_| vm.image.is_none());
    let Some(list) = vm.packages.as_ref().or(inherited) else {
        return Ok(Vec::new());
    };
    let mut packages = Vec::new();
    for package in list.get_ref() {
        source.ensure(is_package(package.get_ref()), &package.span(), || {
            format!(
                "packages: `{}` is not the name of a Debian package",
                package.get_ref()
            )
        })?;
        packages.push(package.get_ref().clone());
    }
    if ssh && !packages.is_empty() {
        packages.push("openssh-server".to_owned());
    }
    packages.sort();
    packages.dedup();
    Ok(packages)
}

/// Returns whether a Debian package can have this name (Debian Policy, section 5.6.1).
fn is_package(text: &str) -> bool {
    let lower = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit();
    text.len() >= 2
        && text.starts_with(lower)
        && text.chars().all(|it| lower(it) || "+-.".contains(it))
}

/// Returns the format of a disk image, which is recognized by its first bytes.
fn disk_format(path: &Path) -> Option<&'static str> {
    let mut start = Vec::new();
    let file = std::fs::File::open(path).ok()?;
    file.take(2048).read_to_end(&mut start).ok()?;
    let at = |offset: usize, bytes: &[u8]| start.get(offset..offset + bytes.len()) == Some(bytes);
    if at(0, b"QFI\xfb") {
        Some("qcow2")
    } else if at(510, &[0x55, 0xaa]) || at(1080, &[0x53, 0xef]) {
        Some("raw")
    } else {
        None
    }
}

/// Returns the name of a kernel, or the path of a built tree.
fn kernel_of(source: &Source<'_>, kernel: &Spanned<String>) -> Result<String> {
    let text = kernel.get_ref();
    if ["stock", "lab", "debug", "races"].contains(&text.as_str()) {
        return Ok(text.clone());
    }
    source.ensure(text.contains('/'), &kernel.span(), || {
        "kernel: must be stock, lab, debug, races, or the path of a built kernel tree".to_owned()
    })?;
    let path = Spanned::new(kernel.span(), PathBuf::from(text));
    let path = source.host("kernel", &path)?;
    Ok(path.to_string_lossy().into_owned())
}

fn can_mount(path: &str) -> bool {
    let below = |dir: &&str| {
        let rest = path.strip_prefix(*dir);
        rest.is_some_and(|rest| rest.starts_with('/') && rest.len() > 1)
    };
    WRITABLE.iter().any(below)
        && !path.split('/').any(|part| part == ".." || part == ".")
        && path
            .chars()
            .all(|it| !it.is_whitespace() && !it.is_control() && it != ',')
}

fn nics(
    source: &Source<'_>,
    vm: &str,
    number: u8,
    section: &Spanned<MachineSection>,
    networks: &[Network],
    spans: &mut Spans,
) -> Result<Vec<Nic>> {
    let mut sections = Vec::new();
    let machine = section.get_ref();
    if let (None, None) = (&machine.rnic, &machine.netdev) {
        for network in networks {
            sections.push(NicSection {
                span: section.span(),
                rnic: true,
                soft_roce: false,
                common: RnicSection {
                    network: Some(Spanned::new(section.span(), network.name.clone())),
                    ..RnicSection::default()
                },
            });
        }
    }
    for rnic in machine.rnic.iter().flatten() {
        sections.push(NicSection {
            span: rnic.span(),
            rnic: true,
            soft_roce: false,
            common: rnic.get_ref().clone(),
        });
    }
    for netdev in machine.netdev.iter().flatten() {
        let NetdevSection {
            network,
            soft_roce,
            vlan,
            trunk,
            native,
            impairment,
        } = netdev.get_ref().clone();
        sections.push(NicSection {
            span: netdev.span(),
            rnic: false,
            soft_roce,
            common: RnicSection {
                network,
                vlan,
                trunk,
                native,
                impairment,
                ..RnicSection::default()
            },
        });
    }
    source.ensure(sections.len() <= MAX_NICS, &section.span(), || {
        format!(
            "VM {vm} has {} devices; at most {MAX_NICS} fit",
            sections.len()
        )
    })?;
    let mut nics: Vec<Nic> = Vec::new();
    for (index, section) in sections.into_iter().enumerate() {
        let NicSection {
            span,
            rnic,
            soft_roce,
            common,
        } = section;
        let network = match &common.network {
            Some(name) => networks
                .iter()
                .find(|network| network.name == *name.get_ref())
                .ok_or_else(|| {
                    let names: Vec<_> = networks.iter().map(|it| it.name.as_str()).collect();
                    source.error(
                        &name.span(),
                        format!(
                            "network: no network is named `{}`; there are {}",
                            name.get_ref(),
                            names.join(", ")
                        ),
                    )
                })?,
            None if networks.len() == 1 => &networks[0],
            None => return Err(source.error(&span, "network: there are several; name one")),
        };
        let same = nics
            .iter()
            .filter(|nic| nic.network == network.name)
            .count();
        let same = u8::try_from(same)
            .ok()
            .filter(|same| *same < 4)
            .ok_or_else(|| source.error(&span, "a VM has at most 4 devices on one network"))?;
        let mut port = Vec::new();
        if let Some(mtu) = network.mtu {
            port.push(format!("mtu = {mtu}"));
        }
        if let Some(vlan) = common.vlan {
            port.push(format!("vlan = {vlan}"));
        }
        if let Some(trunk) = &common.trunk {
            port.push(format!("trunk = {}", inline(trunk)?));
        }
        if let Some(native) = common.native {
            port.push(format!("native = {native}"));
        }
        let impairment = common.impairment.map(inline).transpose()?;
        if let Some(impairment) = impairment.as_ref().or(network.impairment.as_ref()) {
            port.push(format!("impairment = {impairment}"));
        }
        let only_mtu = usize::from(network.mtu.is_some());
        source.ensure(network.switch || port.len() == only_mtu, &span, || {
            format!(
                "network `{}` has switch = false: remove vlan, trunk, native and impairment",
                network.name
            )
        })?;
        source.ensure(
            !(rnic && network.fabric == Fabric::Local) || port.len() == only_mtu,
            &span,
            || {
                format!(
                    "RNICs on network `{}` send no frames: remove vlan, trunk, native and impairment, or give the \
                     network fabric = \"roce\"",
                    network.name
                )
            },
        )?;
        let mut device = Vec::new();
        if let Some(hca) = &common.hca {
            source.ensure(network.topology.is_some(), &hca.span(), || {
                format!("hca: network `{}` has no topology", network.name)
            })?;
            device.push(format!("hca = {}", inline(hca.get_ref())?));
        }
        if let Some(priority) = &common.opensm_priority {
            source.ensure(
                network.fabric == Fabric::Infiniband,
                &priority.span(),
                || {
                    format!(
                        "opensm_priority: network `{}` is not of fabric \"infiniband\"",
                        network.name
                    )
                },
            )?;
            source.ensure(
                *priority.get_ref() <= MAX_PRIORITY,
                &priority.span(),
                || format!("opensm_priority: must be 0 to {MAX_PRIORITY}"),
            )?;
        }
        let host = number + STRIDE * same;
        let index = u8::try_from(index)?;
        let name = if index == 0 {
            vm.to_owned()
        } else {
            format!("{vm}.{index}")
        };
        spans.insert(name.clone(), span);
        nics.push(Nic {
            network: network.name.clone(),
            rnic,
            soft_roce,
            manages: common.opensm_priority.map(Spanned::into_inner),
            mac: format!("52:54:00:76:{:02x}:{:02x}", 0x72 + index, number + 9),
            ipv4: format!("10.77.{}.{host}", network.subnet),
            ipv6: if network.subnet == 0 {
                format!("fd77::{host:x}")
            } else {
                format!("fd77:0:0:{:x}::{host:x}", network.subnet)
            },
            name,
            device,
            port,
        });
    }
    Ok(nics)
}

impl Machine {
    /// Returns the name of the RDMA device in the guest for each network device.
    #[must_use]
    pub fn rdma_devices(&self) -> Vec<Option<String>> {
        let (mut rnics, mut soft) = (0.., 0..);
        let names = self.nics.iter().map(|nic| {
            let (device, numbers) = match nic {
                Nic { rnic: true, .. } => ("vrnic", &mut rnics),
                Nic {
                    soft_roce: true, ..
                } => ("rxe", &mut soft),
                _ => return None,
            };
            let number: u32 = numbers.next()?;
            Some(format!("{device}{number}"))
        });
        names.collect()
    }
}

impl Description {
    /// Makes the first RNIC of each InfiniBand subnet manage it, unless another one does.
    fn choose_subnet_managers(&mut self) {
        for network in &self.networks {
            if network.fabric != Fabric::Infiniband {
                continue;
            }
            let nics = self.machines.iter_mut().flat_map(|it| &mut it.nics);
            let on_it = |nic: &&mut Nic| nic.rnic && nic.network == network.name;
            let mut rnics: Vec<_> = nics.filter(on_it).collect();
            if rnics.iter().all(|nic| nic.manages.is_none())
                && let Some(first) = rnics.first_mut()
            {
                first.manages = Some(0);
            }
        }
    }

    /// Checks what involves several sections, and that vrnicd accepts the resulting configuration.
    fn check(&self, source: &Source<'_>, file: &FileSection, spans: &Spans) -> Result<()> {
        for (network, section) in self.networks.iter().zip(&file.network) {
            let span = section.get_ref().name.span();
            let on_it = || self.nics(&network.name).map(|(_, nic)| nic);
            let rnics = network.fabric == Fabric::Local && on_it().any(|nic| nic.rnic);
            let (link, udp) = (
                section.get_ref().link.first(),
                section.get_ref().udp.first(),
            );
            let of_link = link.map(Spanned::span).or(udp.map(Spanned::span));
            source.ensure(
                !rnics || network.links.is_empty(),
                &of_link.unwrap_or_else(|| span.clone()),
                || {
                    let key = link.map_or("udp", |_| "link");
                    format!(
                        "{key}: RNICs on this network send no frames: give it fabric = \"roce\""
                    )
                },
            )?;
            source.ensure(
                network.switch || on_it().count() <= 2,
                &section
                    .get_ref()
                    .switch
                    .as_ref()
                    .map_or(span.clone(), Spanned::span),
                || "switch: more than two devices need one".to_owned(),
            )?;
        }
        let nowhere = Path::new("/run/vrnic-lab");
        for network in &self.networks {
            if !self.needs_daemon(network) {
                continue;
            }
            let text = daemon::text(nowhere, network, self)?;
            if let Err(error) = vrnicd::config::Config::parse(&text) {
                let message = format!("{error:#}").replace('\n', ", ");
                let of_port = |name: &&String| message.contains(&format!("`{name}`"));
                let of_network = || {
                    let section = file
                        .network
                        .iter()
                        .find(|it| *it.get_ref().name.get_ref() == network.name);
                    section.map_or(0..0, Spanned::span)
                };
                let span = spans.keys().find(of_port).map(|name| spans[name].clone());
                return Err(source.error(&span.unwrap_or_else(of_network), message));
            }
        }
        Ok(())
    }

    /// Returns the devices on a network, with their VMs.
    pub fn nics<'a>(&'a self, network: &'a str) -> impl Iterator<Item = (&'a Machine, &'a Nic)> {
        self.machines.iter().flat_map(move |machine| {
            let nics = machine.nics.iter();
            nics.filter(move |nic| nic.network == network)
                .map(move |nic| (machine, nic))
        })
    }

    /// Returns whether the network needs a vrnicd.
    #[must_use]
    pub fn needs_daemon(&self, network: &Network) -> bool {
        network.switch || self.nics(&network.name).any(|(_, nic)| nic.rnic)
    }

    /// Returns the network with this name.
    ///
    /// # Errors
    /// There is no such network.
    pub fn network(&self, name: &str) -> Result<&Network> {
        self.networks
            .iter()
            .find(|network| network.name == name)
            .with_context(|| format!("no network `{name}`"))
    }

    /// Returns the VM with this name.
    ///
    /// # Errors
    /// There is no such VM.
    pub fn machine(&self, name: &str) -> Result<&Machine> {
        let mut machines = self.machines.iter();
        machines
            .find(|machine| machine.name == name)
            .with_context(|| {
                let names: Vec<_> = self.machines.iter().map(|it| it.name.as_str()).collect();
                format!("no VM `{name}`; there are {}", names.join(", "))
            })
    }

    /// Returns the numbers of the VMs and networks.
    #[must_use]
    pub fn numbers(&self) -> Numbers {
        let machines = self.machines.iter();
        let networks = self.networks.iter();
        Numbers {
            machines: machines.map(|it| (it.name.clone(), it.number)).collect(),
            networks: networks.map(|it| (it.name.clone(), it.subnet)).collect(),
        }
    }

    /// Returns the lab of `make run` and of tests, with the changes in `extra`.
    ///
    /// # Errors
    /// Never, because the file is part of the lab.
    pub fn pair(fabric: Fabric, device: Device, rnics: bool, extra: &Extra) -> Result<Self> {
        let mut text = include_str!("../pair.toml").to_owned();
        if let Some(rails) = extra.rails {
            let rails = vec!["{ network = \"net\" }"; rails].join(", ");
            text = text.replace("[[vm]]\n", &format!("[[vm]]\nrnic = [{rails}]\n"));
            text = text.replace("switch = false", "switch = true");
        }
        let parsed = Parsed::parse(
            Path::new("pair.toml"),
            &text,
            &Numbers::default(),
            Fabric::Local,
        );
        let mut lab = parsed?.description;
        let network = &mut lab.networks[0];
        network.fabric = fabric;
        network.daemon.clone_from(&extra.daemon);
        network.switch = extra.switch
            || extra.two_daemons
            || !extra.port.is_empty()
            || !extra.rxe.is_empty()
            || extra.rails.is_some()
            || fabric != Fabric::Local;
        for machine in &mut lab.machines {
            let soft = extra.rxe.contains(&machine.name);
            machine.device = if soft { Device::Rxe } else { device };
            machine.cpus = extra.cpus;
            machine.nvdimm = extra.nvdimm;
            machine.sleeps = extra.sleeps;
            machine.shares.extend(extra.tree.iter().map(|tree| Share {
                host: tree.clone(),
                guest: TREE.to_owned(),
                read_only: false,
            }));
            for nic in &mut machine.nics {
                nic.rnic = rnics && !soft;
                nic.soft_roce = machine.device == Device::Rxe;
                nic.device.clone_from(&extra.device);
                nic.port.clone_from(&extra.port);
            }
        }
        lab.choose_subnet_managers();
        if extra.two_daemons {
            let other = format!("{}-2", lab.networks[0].name);
            let mut second = lab.networks[0].clone();
            second.name.clone_from(&other);
            lab.networks.push(second);
            lab.machines[1].nics[0].network = other;
            let ends = crate::namespaces::Namespaces::ADDRESSES;
            for (host, network) in lab.networks.iter_mut().enumerate() {
                network.host = Some(host);
                network.links.push(format!(
                    "link = {{ local = \"{}:4789\", peer = \"{}:4789\" }}",
                    ends[host],
                    ends[1 - host]
                ));
            }
        }
        Ok(lab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Parsed> {
        Parsed::parse(
            Path::new("lab.toml"),
            text,
            &Numbers::default(),
            Fabric::Local,
        )
    }

    fn lab(text: &str) -> Description {
        parse(text).unwrap().description
    }

    #[test]
    fn the_first_hca_of_each_subnet_manages_it() {
        let lab = lab(
            "[[network]]\nname = \"one\"\nfabric = \"infiniband\"\n[[network]]\nname = \"wire\"\nfabric = \"roce\"\n\
             [[network]]\nname = \"two\"\nfabric = \"infiniband\"\n\
             [[vm]]\nname = \"a\"\n[[vm.rnic]]\nnetwork = \"one\"\n[[vm.rnic]]\nnetwork = \"wire\"\n\
             [[vm]]\nname = \"b\"\n[[vm.rnic]]\nnetwork = \"one\"\n[[vm.rnic]]\nnetwork = \"two\"\n",
        );
        let manages = |vm: usize| {
            let nics = lab.machines[vm].nics.iter();
            nics.map(|nic| nic.manages).collect::<Vec<_>>()
        };
        assert_eq!(
            (manages(0), manages(1)),
            (vec![Some(0), None], vec![None, Some(0)])
        );
        let nic = &lab.machines[0].nics[0];
        assert_eq!(
            (nic.mac.as_str(), nic.port_guid().as_str()),
            ("52:54:00:76:72:0a", "0x505400fffe76720a")
        );
        for (fabric, first) in [(Fabric::Roce, false), (Fabric::Infiniband, true)] {
            let pair = Description::pair(fabric, Device::Vrnic, true, &Extra::default()).unwrap();
            assert_eq!(pair.machines[0].nics[0].manages.is_some(), first);
            assert!(pair.machines[1].nics[0].manages.is_none());
        }
    }

    #[test]
    fn the_pair_can_have_several_rails() {
        let devices = |rails| {
            let extra = Extra {
                rails,
                ..Extra::default()
            };
            let pair = Description::pair(Fabric::Local, Device::Vrnic, true, &extra).unwrap();
            let nics = pair.machines.iter().map(|vm| &vm.nics);
            nics.map(|nics| nics.iter().filter(|nic| nic.rnic).count())
                .collect::<Vec<_>>()
        };
        assert_eq!(devices(None), [1, 1]);
        assert_eq!(devices(Some(4)), [4, 4]);
    }

    #[test]
    fn a_subnet_is_what_its_topology_says() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ring.toml");
        std::fs::write(&file, "seed = 3\n[ring]\nswitches = 4\nhosts = 1\n").unwrap();
        let vms = "[[vm]]\nname = \"a\"\nrnic = [{ hca = \"switch3-h1\", opensm_priority = 5 }]\n\
                   [[vm]]\nname = \"b\"\nrnic = [{ hca = \"switch1-h1\", opensm_priority = 0 }]\n";
        let network = "[[network]]\nname = \"x\"\nfabric = \"infiniband\"\n";
        let texts = [
            format!(
                "{network}topology = {:?}\n{vms}",
                file.display().to_string()
            ),
            format!(
                "{network}[network.topology]\nseed = 3\nring = {{ switches = 4, hosts = 1 }}\n{vms}"
            ),
        ];
        for text in texts {
            let lab = lab(&text);
            let managers = lab.machines.iter().map(|it| it.nics[0].manages);
            assert_eq!(managers.collect::<Vec<_>>(), [Some(5), Some(0)]);
            let text = daemon::text(Path::new("/x"), &lab.networks[0], &lab).unwrap();
            let config = vrnicd::config::Config::parse(&text).unwrap();
            let hcas = config.devices.iter().map(vrnicd::config::Device::hca);
            assert_eq!(hcas.collect::<Vec<_>>(), ["switch3-h1", "switch1-h1"]);
            let subnet = vrnicd::fabric::subnet::topology(&config).unwrap();
            assert_eq!((subnet.seed, subnet.nodes.len()), (3, 8));
        }
    }

    #[test]
    fn the_smallest_lab_has_an_rnic_in_each_vm() {
        let lab = lab("[[vm]]\nname = \"node\"\ncount = 3\n");
        assert_eq!(lab.name, "lab");
        let names: Vec<_> = lab.machines.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["node1", "node2", "node3"]);
        let nic = &lab.machines[2].nics[0];
        assert!(nic.rnic && lab.networks[0].switch);
        assert_eq!(
            (nic.ipv4.as_str(), nic.ipv6.as_str()),
            ("10.77.0.3", "fd77::3")
        );
        assert_eq!(nic.mac, "52:54:00:76:72:0c");
    }

    #[test]
    fn the_pair_is_what_tests_expect() {
        let pair =
            Description::pair(Fabric::Local, Device::Vrnic, true, &Extra::default()).unwrap();
        let [a, b] = &pair.machines[..] else {
            panic!("{pair:?}")
        };
        assert_eq!(
            (a.nics[0].ipv4.as_str(), b.nics[0].ipv6.as_str()),
            ("10.77.0.1", "fd77::2")
        );
        assert_eq!(b.nics[0].mac, "52:54:00:76:72:0b");
        assert!(!pair.networks[0].switch);
        let extra = Extra {
            two_daemons: true,
            rxe: vec!["b".into()],
            ..Extra::default()
        };
        let pair = Description::pair(Fabric::Roce, Device::Vrnic, true, &extra).unwrap();
        assert_eq!(pair.networks.len(), 2);
        let b = &pair.machines[1];
        assert!(b.device == Device::Rxe && !b.nics[0].rnic && b.nics[0].soft_roce);
        assert_ne!(pair.machines[0].nics[0].network, b.nics[0].network);
    }

    #[test]
    fn devices_are_numbered_in_each_vm_and_addresses_in_each_network() {
        let lab = lab(
            "[[network]]\nname = \"x\"\n[[network]]\nname = \"y\"\nfabric = \"roce\"\nsubnet = 9\n\
             [[vm]]\nname = \"a\"\nrnic = [{ network = \"y\", vlan = 7 }, { network = \"x\" }, { network = \"y\" }]\n\
             netdev = [{ network = \"y\", soft_roce = true }]\n",
        );
        let nics = &lab.machines[0].nics;
        let addresses: Vec<_> = nics.iter().map(|nic| nic.ipv4.as_str()).collect();
        assert_eq!(
            addresses,
            ["10.77.9.1", "10.77.0.1", "10.77.9.65", "10.77.9.129"]
        );
        let names = lab.machines[0].rdma_devices();
        let names: Vec<_> = names.iter().flatten().collect();
        assert_eq!(names, ["vrnic0", "vrnic1", "vrnic2", "rxe0"]);
        assert_eq!(nics[0].port, ["vlan = 7"]);
        let text = daemon::text(Path::new("/x"), &lab.networks[1], &lab).unwrap();
        let config = vrnicd::config::Config::parse(&text).unwrap();
        assert_eq!(
            (config.devices.len(), config.switch.unwrap().ports.len()),
            (2, 3)
        );
    }

    #[test]
    fn an_image_is_a_disk_by_what_is_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        let text = format!(
            "ssh = true\nimage = \"{0}\"\nuser_data = \"{0}\"\n[[vm]]\nname = \"a\"\n",
            path.display()
        );
        let mut ext4 = vec![0; 2048];
        ext4[1080..1082].copy_from_slice(&[0x53, 0xef]);
        let mut partitions = vec![0; 512];
        partitions[510..].copy_from_slice(&[0x55, 0xaa]);
        for (bytes, format) in [
            (b"QFI\xfb\0\0\0\x03".to_vec(), "qcow2"),
            (ext4, "raw"),
            (partitions, "raw"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let lab = lab(&text);
            let machine = &lab.machines[0];
            let disk = machine.disk.as_ref().unwrap();
            assert_eq!(disk.format, format);
            assert_eq!(disk.user_data.as_deref(), Some(disk.path.as_path()));
            assert!(machine.ssh && machine.image.is_none());
        }
        std::fs::write(&path, b"QF").unwrap();
        assert!(parse(&text).is_err());
    }

    #[test]
    fn packages_are_those_of_the_lab_or_of_the_vm() {
        let text = "ssh = true\npackages = [\"tree\", \"fio\", \"tree\"]\n\
            [[vm]]\nname = \"a\"\n\
            [[vm]]\nname = \"b\"\npackages = [\"g++\"]\nssh = false\n\
            [[vm]]\nname = \"c\"\npackages = []\n";
        let lab = lab(text);
        let packages: Vec<_> = lab.machines.iter().map(|it| &it.packages[..]).collect();
        assert_eq!(packages[0], ["fio", "openssh-server", "tree"]);
        assert_eq!(packages[1], ["g++"]);
        assert!(packages[2].is_empty());
    }

    #[test]
    fn a_vm_has_either_an_image_or_packages_whichever_it_names_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sbin")).unwrap();
        std::fs::write(dir.path().join(INIT), "").unwrap();
        let image = format!("image = \"{}\"\n", dir.path().display());
        let packages = "packages = [\"tree\"]\n";
        let vm = "[[vm]]\nname = \"a\"\n";
        let own_packages = lab(&format!("{image}{vm}{packages}"));
        let machine = &own_packages.machines[0];
        assert!(machine.image.is_none() && machine.packages == ["tree"]);
        let own_image = lab(&format!("{packages}{vm}{image}"));
        let machine = &own_image.machines[0];
        assert!(machine.image.is_some() && machine.packages.is_empty());
        for both in [
            format!("{image}{packages}{vm}"),
            format!("{vm}{image}{packages}"),
        ] {
            let error = parse(&both).unwrap_err().to_string();
            assert!(error.contains("`image` must not be set"), "{error}");
        }
    }

    #[test]
    fn those_that_stay_keep_their_numbers() {
        let before = lab("[[vm]]\nname = \"a\"\n[[vm]]\nname = \"b\"\n[[vm]]\nname = \"c\"\n");
        let text = "[[vm]]\nname = \"d\"\n[[vm]]\nname = \"c\"\n[[vm]]\nname = \"a\"\n";
        let parsed = Parsed::parse(
            Path::new("lab.toml"),
            text,
            &before.numbers(),
            Fabric::Local,
        );
        let after = parsed.unwrap().description;
        let numbers: Vec<_> = after.machines.iter().map(|it| it.number).collect();
        assert_eq!(numbers, [2, 3, 1]);
        assert_eq!(after.machine("c").unwrap(), before.machine("c").unwrap());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        const VM: &str = "[[vm]]\nname = \"a\"\n";
        let many = (0..33).map(|n| format!("[[vm]]\nname = \"n{n}\"\n"));
        let many = many.collect::<Vec<_>>().concat();
        let nics = "{}, ".repeat(9);
        let ring = "[[network]]\nname = \"x\"\nfabric = \"infiniband\"\n[network.topology.ring]\nswitches = 3\nhosts = 1\n";
        let table: &[(&str, usize, &str)] = &[
            ("", 1, "at least one [[vm]]"),
            ("[[vm]\nname = \"a\"\n", 1, "[[vm]"),
            ("[[vm]]\nname = \"a\n", 2, "name = \"a"),
            ("[[vm]]\n", 1, "missing field `name`"),
            ("[[vm]]\nname = 7\n", 2, "expected a string"),
            ("[[vm]]\nname = \"A\"\n", 2, "name: the name of a VM has"),
            (&format!("{VM}{VM}"), 4, "two VMs are named `a`"),
            (&format!("{VM}memry = 1\n"), 3, "unknown field `memry`"),
            (
                &format!("{VM}memory = \"1G\"\n"),
                3,
                "memory = \"1G\"`: invalid type",
            ),
            (&format!("{VM}memory = 1\n"), 3, "memory: must be 256 to"),
            (&format!("{VM}memory = -1\n"), 3, "memory = -1"),
            (&format!("{VM}cpus = 0\n"), 3, "cpus: must be 1 to 64"),
            (&format!("{VM}count = 33\n"), 3, "count: must be 1 to 32"),
            (&format!("{VM}count = 0\n"), 3, "count: must be 1 to 32"),
            (&many, 65, "at most 32 VMs"),
            (&format!("{VM}rnic = [{nics}]\n"), 1, "at most 8"),
            (
                &format!("{VM}kernel = \"stok\"\n"),
                3,
                "kernel: must be stock, lab",
            ),
            (
                &format!("{VM}kernel = \"/no/such\"\n"),
                3,
                "kernel: /no/such",
            ),
            (&format!("{VM}image = \"/no/such\"\n"), 3, "image: /no/such"),
            (&format!("{VM}image = \"/\"\n"), 3, "sbin/vrnic-init"),
            (
                &format!("{VM}image = \"/proc/version\"\n"),
                3,
                "neither a root directory nor a disk image",
            ),
            (
                &format!("{VM}packages = [\"tree; reboot\"]\n"),
                3,
                "`tree; reboot` is not the name of a Debian package",
            ),
            (
                &format!("{VM}packages = [\"-f\"]\n"),
                3,
                "`-f` is not the name of a Debian package",
            ),
            (
                &format!("{VM}user_data = \"/proc/version\"\n"),
                3,
                "user_data: only valid for VMs whose image is a disk",
            ),
            (
                &format!("{VM}rnic = [{{ network = \"x\" }}]\n"),
                3,
                "network: no network is named `x`",
            ),
            (
                &format!("{VM}rnic = [{{ vlan = 1 }}]\n"),
                3,
                "send no frames",
            ),
            (&format!("{VM}netdev = [{{ vlan = 5000 }}]\n"), 3, "5000"),
            (
                &format!("{VM}netdev = [{{ vlan = 5, trunk = [6] }}]\n"),
                3,
                "give only one of them",
            ),
            (
                &format!("{VM}netdev = [{{ impairment = {{ loss = 2.0 }} }}]\n"),
                3,
                "loss",
            ),
            (
                &format!("{VM}netdev = [{{ impairment = {{ los = 0.5 }} }}]\n"),
                3,
                "unknown field `los`",
            ),
            (
                &format!("{VM}[[vm.share]]\nhost = \"/no/such\"\nguest = \"/mnt/x\"\n"),
                4,
                "host: /no/such",
            ),
            (
                &format!("{VM}[[vm.share]]\nhost = \"/\"\nguest = \"/usr\"\n"),
                5,
                "guest: must be a path below /mnt",
            ),
            (
                &format!("{VM}[[vm.share]]\nhost = \"/\"\nguest = \"/mnt/../usr\"\n"),
                5,
                "guest: must be a path below /mnt",
            ),
            (
                &format!("{VM}[[vm.share]]\nhost = \"/\"\n"),
                3,
                "missing field `guest`",
            ),
            (
                &format!("{VM}[[vm.file]]\nhost = \"/\"\nguest = \"x\"\n"),
                5,
                "guest: must begin with /",
            ),
            (
                &format!("{VM}[[network]]\nname = \"x\"\nfabric = \"ib\"\n"),
                5,
                "unknown variant `ib`",
            ),
            (
                &format!("{VM}[[network]]\nname = \"x\"\n[[network]]\nname = \"x\"\n"),
                6,
                "two networks are named `x`",
            ),
            (
                &format!("{VM}[[network]]\nname = \"x\"\nmtu = 7\nfabric = \"roce\"\n"),
                1,
                "mtu = 7",
            ),
            (
                &format!("{VM}[[network]]\nname = \"x\"\nsubnet = 256\n"),
                5,
                "subnet = 256",
            ),
            (
                &format!("{VM}[[network]]\nname = \"x\"\nswitch = false\nmtu = 1500\n"),
                5,
                "switch: only",
            ),
            (
                &format!("{VM}count = 3\n[[network]]\nname = \"x\"\nswitch = false\n"),
                6,
                "switch: more than two",
            ),
            (
                &format!(
                    "{VM}[[network]]\nname = \"x\"\n[[network.link]]\nlocal = \"1.2.3.4:5\"\npeer = \"1.2.3.5:5\"\n"
                ),
                5,
                "link: RNICs on this network send no frames",
            ),
            (
                &format!(
                    "{VM}[[network]]\nname = \"x\"\n[[network.udp]]\nlocal = \"1.2.3.4\"\ndevice = \"a\"\npeers = [\"1.2.3.5\"]\n"
                ),
                5,
                "udp: RNICs on this network send no frames",
            ),
            (
                &format!(
                    "{VM}[[network]]\nname = \"x\"\nfabric = \"roce\"\n[[network.link]]\nlocal = \"1.2.3.4\"\n"
                ),
                7,
                "local = \"1.2.3.4\"",
            ),
            (
                &format!("{ring}{VM}").replace("= 3", "= 2"),
                5,
                "`switches = 2`: topology: a ring has 3",
            ),
            (
                &format!("{ring}{VM}").replace("hosts", "guests"),
                6,
                "unknown field `guests`",
            ),
            (
                &format!("{ring}{VM}").replace("\"infiniband\"", "\"roce\""),
                4,
                "topology: only valid for a network of fabric \"infiniband\"",
            ),
            (
                &format!(
                    "[[network]]\nname = \"x\"\nfabric = \"infiniband\"\ntopology = \"/no/such\"\n{VM}"
                ),
                4,
                "topology: /no/such",
            ),
            (
                &format!(
                    "[[network]]\nname = \"x\"\nfabric = \"infiniband\"\ntopology = \"/proc/version\"\n{VM}"
                ),
                4,
                "topology: /proc/version: line 1",
            ),
            (
                &format!("[[network]]\nname = \"x\"\nfabric = \"infiniband\"\ntopology = 7\n{VM}"),
                4,
                "the path of a topology file, or a table",
            ),
            (
                &format!("{ring}{VM}"),
                7,
                "no HCA named \"a\" for the device `a`: name another one with hca",
            ),
            (
                &format!("{ring}{VM}rnic = [{{ hca = \"switch1\" }}]\n"),
                9,
                "no HCA named \"switch1\"",
            ),
            (
                &format!(
                    "{ring}{VM}rnic = [{{ hca = \"switch1-h1\" }}, {{ hca = \"switch1-h1\" }}]\n"
                ),
                9,
                "are the same HCA, \"switch1-h1\"",
            ),
            (
                &format!("{VM}rnic = [{{ hca = \"switch1-h1\" }}]\n"),
                3,
                "hca: network `net` has no topology",
            ),
            (
                &format!("{ring}{VM}rnic = [{{ hca = \"switch1-h1\", opensm_priority = 16 }}]\n"),
                9,
                "opensm_priority: must be 0 to 15",
            ),
            (
                &format!("{VM}rnic = [{{ opensm_priority = 1 }}]\n"),
                3,
                "opensm_priority: network `net` is not of fabric",
            ),
            (
                &format!("{VM}netdev = [{{ opensm_priority = 1 }}]\n"),
                3,
                "unknown field `opensm_priority`",
            ),
            (
                "first_number = 0\n[[vm]]\nname = \"a\"\n",
                1,
                "first_number: must be 1 to",
            ),
            (
                "name = \"no name\"\n[[vm]]\nname = \"a\"\n",
                1,
                "name: the name of a lab has",
            ),
        ];
        for (text, line, part) in table {
            let error = format!("{:#}", parse(text).unwrap_err());
            let start = format!("lab.toml:{line}: ");
            assert!(
                error.starts_with(&start) && error.contains(part),
                "{text}\n{error}"
            );
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
