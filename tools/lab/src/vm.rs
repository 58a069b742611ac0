// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One virtual machine: a stock QEMU with the RNIC on `vfio-user-pci` and a paired virtio-net.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::accelerator::Accelerator;
use crate::agent::Agent;
use crate::description::Machine;
use crate::image;
use crate::process::{Process, tail, text};
use crate::settings::Settings;
use vrnic_lab::protocol::PORT_NAME;

/// RDMA device that programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The RNIC of vrnicd.
    Vrnic,
    /// The Soft-RoCE driver of the kernel on the virtio-net, for comparison.
    Rxe,
}

impl Device {
    /// Returns the name in reports and on the guest's command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vrnic => "vrnic",
            Self::Rxe => "rxe",
        }
    }

    /// Returns the name of the RDMA device in the guests.
    #[must_use]
    pub fn ibdev(self) -> &'static str {
        match self {
            Self::Vrnic => "vrnic0",
            Self::Rxe => "rxe0",
        }
    }

    /// Returns the fabric of the device's packets if vrnicd's RNICs are on `fabric`.
    #[must_use]
    pub fn fabric(self, fabric: Fabric) -> Fabric {
        match self {
            Self::Vrnic => fabric,
            Self::Rxe => Fabric::Roce,
        }
    }
}

/// How messages travel between VMs.
#[derive(
    Debug,
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    clap::ValueEnum,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Fabric {
    /// Copied from guest to guest by vrnicd.
    #[default]
    Local,
    /// In RoCE frames.
    Roce,
    /// In packets of an InfiniBand subnet, which OpenSM in the first of its VMs manages.
    Infiniband,
}

impl Fabric {
    /// Returns the name in vrnicd's configuration and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Roce => "roce",
            Self::Infiniband => "infiniband",
        }
    }
}

/// Kind of a VM's address, and of the GID for that address.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6, with the address that the lab assigned.
    V6,
}

impl Family {
    /// Returns the name for display.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns a shell pattern for GIDs of this kind as sysfs shows them.
    #[must_use]
    pub fn gids(self) -> &'static str {
        match self {
            Self::V4 => "0000:0000:0000:0000:0000:ffff:*",
            Self::V6 => "fd77:*",
        }
    }
}

/// Names of the VMs of `make run` and of the tests.
pub const NAMES: [&str; 2] = ["a", "b"];

/// Serial number by which a guest finds its disk.
const DISK: &str = "lab-disk";
/// Address of a guest in the network for ssh, which is the one that QEMU assigns to the first guest.
const SSH_IPV4: &str = "10.0.2.15";
/// IPv6 address in the same network, because each device has both kinds.
const SSH_IPV6: &str = "fec0::15";

/// Default memory of a VM in MiB.
const MEMORY_MB: u32 = 1536;

/// Specification of a VM.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The VM.
    pub machine: Machine,
    /// Kernel of the VM, and paths.
    pub settings: Settings,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// What each of the machine's devices is connected to.
    pub cables: Vec<Cable>,
    /// File of the NVDIMM, if there is one.
    pub nvdimm: Option<PathBuf>,
    /// Directory of the lab's sockets.
    pub sockets: PathBuf,
    /// Directory that the guest sees as /vrnic.
    pub share: PathBuf,
    /// Directory of the console and QEMU logs.
    pub logs: PathBuf,
    /// Public part, in base64, of the Ed25519 key that may log in by ssh. `None` without ssh.
    pub ssh_key: Option<String>,
}

/// What a device is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cable {
    /// The socket of vrnicd, if there is an RNIC.
    pub rnic: Option<PathBuf>,
    /// What the virtio-net is connected to.
    pub net: Net,
}

/// What a virtio-net is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Net {
    /// A switch port, and the maximum packet size there.
    Switch(PathBuf, usize),
    /// Another virtio-net, and whether this end listens.
    Wire(PathBuf, bool),
}

/// Returns a number from the environment.
fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Returns the memory of a machine in MiB.
#[must_use]
pub fn memory(machine: &Machine) -> u32 {
    machine.memory.unwrap_or_else(usual_memory)
}

/// Returns the memory in MiB of a machine whose description does not say otherwise.
#[must_use]
pub fn usual_memory() -> u32 {
    number("VRNIC_VM_MEMORY_MB").unwrap_or(MEMORY_MB)
}

impl Spec {
    /// Returns the name of the VM.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Returns whether a VM of this specification is the same as one of `other`.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.machine, &self.cables) == (&other.machine, &other.cables)
            && self.settings.kernel.tree == other.settings.kernel.tree
    }

    /// Returns the number of processors.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let cpus = self.machine.cpus.or_else(|| number("VRNIC_VM_CPUS"));
        // Races need a second processor.
        let two = self.accelerator == Accelerator::Kvm || self.settings.kernel.races();
        cpus.unwrap_or(if two { 2 } else { 1 })
    }

    /// Returns the path of the console log.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.logs.join(format!("console-{}.log", self.name()))
    }

    /// Returns the path of the socket of the guest's second console, for `shell`.
    #[must_use]
    pub fn shell(&self) -> PathBuf {
        self.sockets.join(format!("shell-{}", self.name()))
    }

    fn socket(&self, what: &str) -> PathBuf {
        self.sockets.join(format!("{what}-{}", self.name()))
    }

    fn arguments(&self) -> Vec<String> {
        let settings = &self.settings;
        let machine = &self.machine;
        let (memory, cpus) = (memory(machine), self.cpus());
        let mut args: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| args.extend(words.iter().map(|&word| word.to_owned()));
        add(&[
            "-name",
            self.name(),
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
        ]);
        add(&["-machine", "q35,memory-backend=mem0"]);
        match self.accelerator {
            Accelerator::Kvm => add(&["-accel", "kvm", "-cpu", "host"]),
            // The flags erms and fsrm say that `rep movsb` is fast, but QEMU's translator executes it byte by byte.
            // Without the flags, Linux and libc copy words, and VMs boot with a sixth less processor time.
            Accelerator::Tcg => add(&[
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max,erms=off,fsrm=off",
            ]),
        }
        // Leave room for a second processor even if there is one. For a machine that can never have two, QEMU's
        // translator turns the guest's atomic instructions into plain ones and drops its fences, and Linux patches its
        // own likewise. Rings that another process reads need both.
        let most = cpus.max(2);
        add(&["-smp", &format!("{cpus},maxcpus={most}")]);
        if let Some((file, size)) = self.nvdimm.as_ref().zip(machine.nvdimm) {
            add(&["-machine", "nvdimm=on"]);
            add(&[
                "-m",
                &format!("{memory}M,slots=1,maxmem={}M", memory + size),
            ]);
            let file = option(file);
            add(&[
                "-object",
                &format!("memory-backend-file,id=pmem,mem-path={file},size={size}M,share=on"),
            ]);
            add(&["-device", "nvdimm,id=nvdimm,memdev=pmem"]);
        } else {
            add(&["-m", &format!("{memory}M")]);
        }
        add(&[
            "-object",
            &format!("memory-backend-memfd,id=mem0,size={memory}M,share=on"),
        ]);
        add(&["-kernel", &text(&settings.kernel.image())]);
        if let Some(initramfs) = settings.kernel.initramfs() {
            add(&["-initrd", &text(&initramfs)]);
        }
        // no5lvl: while Linux identifies its processor, it forgets for a moment that page tables have five levels. If
        // an interrupt comes at that moment, KASAN reports the memory that it uses as invalid, then reports nothing
        // else, and lockdep is off. On a kernel with KASAN, a task may also wait for minutes without being hung.
        // Mitigations of processor vulnerabilities cost most where the processor is emulated, as do tests of ciphers
        // and the certificates of signed modules, which a VM here does not have.
        let guest = image::root(settings, machine);
        let image = guest.is_file();
        let root = if image {
            "root=/dev/vda rootfstype=erofs"
        } else {
            "root=root rootfstype=9p rootflags=trans=virtio,version=9p2000.L,msize=524288,cache=loose"
        };
        add(&[
            "-append",
            &format!(
                "console=ttyS0 {root} ro \
                 init=/sbin/vrnic-init panic=0 no_timer_check no5lvl mitigations=off cryptomgr.notests \
                 initcall_blacklist=load_system_certificate_list sysctl.kernel.hung_task_timeout_secs={} kunit.enable=1 \
                 lab.name={} lab.device={}{} {}",
                if settings.kernel.slow() { 600 } else { 60 },
                self.name(),
                machine.device.name(),
                self.words(),
                machine.kernel_arguments
            ),
        ]);
        let directory =
            |tag: &str, path: &PathBuf, read_only| (tag.to_owned(), path.clone(), read_only);
        let mut directories = vec![directory("share", &self.share, true)];
        if image {
            add(&[
                "-drive",
                &format!(
                    "id=root,if=none,format=raw,readonly=on,file={}",
                    option(&guest)
                ),
                "-device",
                "virtio-blk-pci,drive=root",
            ]);
        } else {
            directories.push(directory("root", &guest, true));
        }
        if let Some(disk) = &machine.disk {
            // The guest's writes go to a private file, which disappears with QEMU.
            add(&[
                "-drive",
                &format!(
                    "id=disk,if=none,format={},snapshot=on,file={}",
                    disk.format,
                    option(&disk.path)
                ),
                "-device",
                &format!("virtio-blk-pci,drive=disk,serial={DISK}"),
            ]);
            directories.push(directory("seed", &self.socket("seed"), true));
        }
        // Only a PCI Express device behind a port can keep its state while the guest sleeps.
        let kept = |add: &mut dyn FnMut(&[&str]), port: usize| {
            if !machine.sleeps {
                return String::new();
            }
            add(&[
                "-device",
                &format!("pcie-root-port,id=port{port},chassis={}", port + 1),
            ]);
            format!(",bus=port{port},x-pcie-pm-no-soft-reset=on")
        };
        let modules = settings.kernel.modules().map(|dir| dir.join("kernel"));
        directories.extend(modules.iter().map(|dir| directory("modules", dir, true)));
        for (index, share) in machine.shares.iter().enumerate() {
            let tag = format!("share{index}");
            directories.push(directory(&tag, &share.host, share.read_only));
        }
        for (index, (tag, path, read_only)) in directories.into_iter().enumerate() {
            let read_only = if read_only { "on" } else { "off" };
            // A directory may contain other file systems, whose inode numbers may be the same.
            add(&[
                "-fsdev",
                &format!(
                    "local,id={tag},path={},security_model=none,multidevs=remap,readonly={read_only}",
                    option(&path)
                ),
            ]);
            let kept = kept(&mut add, index + 1);
            add(&[
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}{kept}"),
            ]);
        }
        add(&["-device", "virtio-rng-pci"]);
        add(&[
            "-chardev",
            &format!("file,id=console,path={},append=on", option(&self.console())),
            "-serial",
            "chardev:console",
        ]);
        let serial = kept(&mut add, 0);
        add(&["-device", &format!("virtio-serial-pci{serial}")]);
        add(&[
            "-chardev",
            &format!(
                "socket,id=shell,path={},server=on,wait=off",
                option(&self.shell())
            ),
        ]);
        add(&["-device", "virtconsole,chardev=shell"]);
        add(&[
            "-chardev",
            &format!(
                "socket,id=agent,path={},server=on,wait=off",
                option(&self.socket("agent"))
            ),
        ]);
        add(&[
            "-device",
            &format!("virtserialport,chardev=agent,name={PORT_NAME}"),
        ]);
        add(&[
            "-qmp",
            &format!("unix:{},server=on,wait=off", option(&self.socket("qmp"))),
        ]);
        if self.ssh_key.is_some() {
            add(&[
                "-netdev",
                "user,id=ssh,restrict=on,hostfwd=tcp:127.0.0.1:0-:22",
            ]);
            add(&[
                "-device",
                &format!("virtio-net-pci,netdev=ssh,mac={},romfile=", self.ssh_mac()),
            ]);
        }
        for (index, (nic, cable)) in machine.nics.iter().zip(&self.cables).enumerate() {
            // Without a switch, one end listens, and the other connects and reconnects. So either may start first or be
            // restarted.
            let (end, path, mtu) = match &cable.net {
                Net::Switch(path, mtu) => (
                    "server=off,reconnect-ms=200",
                    path,
                    format!(",host_mtu={mtu}"),
                ),
                Net::Wire(path, true) => ("server=on", path, String::new()),
                Net::Wire(path, false) => ("server=off,reconnect-ms=200", path, String::new()),
            };
            add(&[
                "-netdev",
                &format!(
                    "stream,id=net{index},{end},addr.type=unix,addr.path={}",
                    option(path)
                ),
            ]);
            add(&[
                "-device",
                &format!(
                    "virtio-net-pci,netdev=net{index},mac={},romfile={mtu}",
                    nic.mac
                ),
            ]);
        }
        for (index, cable) in self.cables.iter().enumerate() {
            let Some(socket) = &cable.rnic else { continue };
            let device = json!({
                "driver": "vfio-user-pci",
                "id": format!("rnic{index}"),
                "bus": "pcie.0",
                "socket": { "type": "unix", "path": socket },
                // A busy host must not cost the guest its device. The default is 5 s.
                "x-msg-timeout": 60_000,
            });
            add(&["-device", &device.to_string()]);
        }
        args
    }

    /// Returns the words for the guest's init: its network devices and its shares.
    fn words(&self) -> String {
        let nics = self.machine.nics.iter().map(|nic| {
            let soft = if nic.soft_roce { ",rxe" } else { "" };
            let manager = nic
                .manages
                .map(|priority| format!(" lab.subnet-manager={},{priority}", nic.port_guid()));
            let manager = manager.unwrap_or_default();
            format!(
                " lab.nic={},{},{}{soft}{manager}",
                nic.mac, nic.ipv4, nic.ipv6
            )
        });
        let shares = self.machine.shares.iter().enumerate();
        let shares = shares.map(|(index, share)| {
            let mode = if share.read_only { "ro" } else { "rw" };
            format!(" lab.share=share{index},{mode},{}", share.guest)
        });
        let disk = self
            .machine
            .disk
            .iter()
            .map(|_| format!(" lab.disk={DISK}"));
        let ssh = self.ssh_key.iter().map(|key| {
            let mac = self.ssh_mac();
            format!(" lab.ssh={key} lab.nic={mac},{SSH_IPV4},{SSH_IPV6}")
        });
        nics.chain(shares).chain(disk).chain(ssh).collect()
    }

    /// Returns the MAC address of the network device for ssh.
    fn ssh_mac(&self) -> String {
        format!("52:54:00:77:00:{:02x}", self.machine.number)
    }

    /// Writes the files that cloud-init in the guest reads.
    fn write_seed(&self) -> Result<()> {
        let Some(disk) = &self.machine.disk else {
            return Ok(());
        };
        let directory = self.socket("seed");
        fs::create_dir_all(&directory)?;
        let user_data = match &disk.user_data {
            Some(path) => fs::read(path).with_context(|| format!("reading {}", path.display()))?,
            None => b"#cloud-config\n{}\n".to_vec(),
        };
        fs::write(directory.join("user-data"), user_data)?;
        // Users log in as root, as in the lab's own image.
        let vendor_data = "#cloud-config\ndisable_root: false\n";
        fs::write(directory.join("vendor-data"), vendor_data)?;
        let mut meta_data = format!("instance-id: vrnic-{0}\nlocal-hostname: {0}\n", self.name());
        if let Some(key) = &self.ssh_key {
            let _ = writeln!(meta_data, "public-keys:\n  - ssh-ed25519 {key} vrnic-lab");
        }
        fs::write(directory.join("meta-data"), meta_data)?;
        let mut network = "version: 2\nethernets:\n".to_owned();
        let nics = self.machine.nics.iter();
        let nics = nics.map(|nic| (nic.mac.clone(), nic.ipv4.as_str(), nic.ipv6.as_str()));
        let ssh = self
            .ssh_key
            .iter()
            .map(|_| (self.ssh_mac(), SSH_IPV4, SSH_IPV6));
        for (index, (mac, ipv4, ipv6)) in nics.chain(ssh).enumerate() {
            let _ = writeln!(
                network,
                "  nic{index}:\n    match: {{ macaddress: \"{mac}\" }}\n    addresses: [{ipv4}/24, \"{ipv6}/64\"]"
            );
        }
        fs::write(directory.join("network-config"), network)?;
        Ok(())
    }
}

/// Returns whether the first panic in a console log is one in `setup_IO_APIC()` before the first process.
fn early_panic(console: &str) -> bool {
    console
        .split_once("Kernel panic - not syncing")
        .is_some_and(|(before, _)| {
            before.contains(" setup_IO_APIC+") && !before.contains(" as init process")
        })
}

/// Returns the port on which QEMU listens, according to `info usernet`.
fn forwarded_port(text: &str) -> Option<u16> {
    let line = text
        .lines()
        .find(|line| line.contains("TCP[HOST_FORWARD]"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// Formats a path as part of a QEMU option, in which a single comma would end it.
fn option(path: &Path) -> String {
    text(path).replace(',', ",,")
}

/// State of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The VM is being started.
    Booting,
    /// The VM runs.
    Up {
        /// Process ID of QEMU.
        pid: i32,
        /// Number of processors.
        cpus: u32,
    },
    /// The VM does not run.
    Ended,
}

/// A running VM. Dropping this ends QEMU.
pub struct Vm {
    /// Specification of the VM.
    pub spec: Spec,
    /// Agent that runs programs in the VM.
    pub agent: Agent,
    /// Number of boots that have been waited for.
    pub waited: u64,
    process: Process,
}

impl Vm {
    /// Starts QEMU. The guest then boots. [`Vm::wait_ready`] waits until it is up.
    ///
    /// # Errors
    /// QEMU does not start. The message has its last output.
    pub fn start(spec: Spec) -> Result<Self> {
        for socket in [spec.shell(), spec.socket("agent"), spec.socket("qmp")] {
            let _ = fs::remove_file(socket);
        }
        for cable in &spec.cables {
            if let Net::Wire(path, true) = &cable.net {
                let _ = fs::remove_file(path);
            }
        }
        fs::create_dir_all(&spec.logs)?;
        spec.write_seed()?;
        let log = spec.logs.join(format!("qemu-{}.log", spec.name()));
        let mut process = Process::start(
            &format!("QEMU {}", spec.name()),
            &spec.settings.qemu,
            &spec.arguments(),
            &[],
            &log,
        )?;
        let deadline = Instant::now() + Duration::from_secs(30);
        let agent = loop {
            if let Ok(agent) =
                Agent::connect(spec.name(), &spec.socket("agent"), spec.settings.slowness())
            {
                break agent;
            }
            if let Some(status) = process.ended() {
                bail!(
                    "QEMU of VM {} ended at once ({status}); {} says:\n{}",
                    spec.name(),
                    log.display(),
                    tail(&log, 10)
                );
            }
            if Instant::now() > deadline {
                bail!(
                    "QEMU of VM {} opened no agent socket within 30 s; see {}",
                    spec.name(),
                    log.display()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        Ok(Self {
            spec,
            agent,
            waited: 0,
            process,
        })
    }

    /// Waits until the guest's agent has started more than `boots` times.
    ///
    /// # Errors
    /// QEMU ended, the guest's kernel panicked, or `patience` is over. The message has the end of the console log.
    pub fn wait_ready(&mut self, boots: u64, patience: Duration) -> Result<()> {
        let start = Instant::now();
        while !self.ready(boots, start, patience)? {}
        Ok(())
    }

    /// Does a part of [`wait_ready`](Self::wait_ready), which began at `start`. Returns soon, with whether the guest is
    /// up.
    ///
    /// # Errors
    /// Those of [`wait_ready`](Self::wait_ready).
    pub fn ready(&mut self, boots: u64, start: Instant, patience: Duration) -> Result<bool> {
        let patience = self.agent.patience(patience);
        if self.agent.wait_boot(boots, Duration::from_millis(200)) {
            self.waited = self.agent.boots();
            return Ok(true);
        }
        let console = self.spec.console();
        if let Some(status) = self.process.ended() {
            let log = self
                .spec
                .logs
                .join(format!("qemu-{}.log", self.spec.name()));
            bail!(
                "QEMU of VM {} ended while the guest booted ({status}): {}\n{}",
                self.spec.name(),
                tail(&log, 10),
                tail(&console, 10)
            );
        }
        if self.panicked() {
            bail!(
                "the kernel of VM {} panicked; the console ({}) ends with:\n{}",
                self.spec.name(),
                console.display(),
                tail(&console, 40)
            );
        }
        if start.elapsed() > patience {
            bail!(
                "VM {} was not up after {} s; its console ({}) ends with:\n{}",
                self.spec.name(),
                patience.as_secs(),
                console.display(),
                tail(&console, 25)
            );
        }
        Ok(false)
    }

    /// Returns whether the guest's kernel has panicked since QEMU was started.
    #[must_use]
    pub fn panicked(&self) -> bool {
        fs::read(self.spec.console())
            .is_ok_and(|text| String::from_utf8_lossy(&text).contains("Kernel panic - not syncing"))
    }

    /// Returns whether the guest's kernel panicked while it set up its interrupt controllers, which is before it looks
    /// for devices and long before it runs any of our code. Linux 7.3 does so if a timer interrupt arrives during
    /// `mp_irqdomain_alloc()` (`arch/x86/kernel/apic/io_apic.c`). Other panics at boot may be the fault of a device.
    #[must_use]
    pub fn panicked_early(&self) -> bool {
        fs::read(self.spec.console()).is_ok_and(|text| early_panic(&String::from_utf8_lossy(&text)))
    }

    /// Returns whether QEMU still runs.
    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// Returns the host process ID of QEMU.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Sends one QMP command, e.g. `{"execute": "system_reset"}`, and returns the reply.
    ///
    /// # Errors
    /// QEMU does not answer within ten seconds, or the command is not JSON.
    pub fn qmp(&self, command: &str) -> Result<Value> {
        let _: Value = serde_json::from_str(command).context("a QMP command is JSON")?;
        let stream = UnixStream::connect(self.spec.socket("qmp")).context("connecting to QMP")?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let mut writer = stream;
        lines.next().context("no QMP greeting")??;
        let mut ask = |command: &str| -> Result<Value> {
            writeln!(writer, "{command}")?;
            loop {
                let value: Value = serde_json::from_str(&lines.next().context("QMP closed")??)?;
                if value.get("event").is_none() {
                    return Ok(value);
                }
            }
        };
        ask(r#"{"execute": "qmp_capabilities"}"#)?;
        ask(command)
    }

    /// Returns the TCP port of this machine that QEMU forwards to the ssh server of the guest.
    ///
    /// # Errors
    /// The VM has no ssh, or QEMU does not answer.
    pub fn ssh_port(&self) -> Result<u16> {
        if self.spec.ssh_key.is_none() {
            bail!(
                "VM {} has no ssh: give it `ssh = true` in the lab file",
                self.spec.name()
            );
        }
        let command = json!({
            "execute": "human-monitor-command",
            "arguments": { "command-line": "info usernet" },
        });
        let reply = self.qmp(&command.to_string())?;
        let text = reply["return"].as_str().unwrap_or_default();
        forwarded_port(text).with_context(|| format!("QEMU forwards no port: {text}"))
    }

    /// Ends QEMU and waits for it. Kills it if that takes too long.
    pub fn stop(&mut self) {
        if self.alive() {
            let _ = self.qmp(r#"{"execute": "quit"}"#);
        }
        self.process.reap(Duration::from_secs(3));
    }

    /// Kills QEMU, which the rest sees as a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::{early_panic, forwarded_port, option};
    use std::path::Path;

    #[test]
    fn only_a_panic_of_the_interrupt_setup_is_early() {
        let panic = "Kernel panic - not syncing: Fatal exception\n";
        let oops =
            &format!("RIP: 0010:mask_ioapic_irq+0x19/0xb0\n setup_IO_APIC+0x149/0x7f0\n{panic}");
        assert!(!early_panic(&format!(" pci_scan_slot+0x1/0x2\n{panic}")));
        assert!(early_panic(oops));
        assert!(!early_panic(&format!(
            "Run /sbin/init as init process\n{oops}"
        )));
        // The guest reboots after a panic.
        assert!(early_panic(&format!(
            "{oops}Run /sbin/init as init process\n"
        )));
        assert!(!early_panic("Run /sbin/init as init process\n"));
    }

    #[test]
    fn the_port_of_ssh_is_what_qemu_says() {
        let text = "Hub -1 (ssh):\n  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\n\
                    \x20 TCP[HOST_FORWARD]  12       127.0.0.1 40113       10.0.2.15    22     0     0\n";
        assert_eq!(forwarded_port(text), Some(40113));
        assert_eq!(forwarded_port(""), None);
    }

    #[test]
    fn a_comma_in_a_path_does_not_end_an_option() {
        assert_eq!(option(Path::new("/a,b/c")), "/a,,b/c");
    }
}
