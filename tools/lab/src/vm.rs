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
use crate::process::{Process, tail, text};
use crate::settings::Settings;
use vrnic_lab::protocol::PORT_NAME;

/// Which RDMA device the programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The RNIC of vrnicd.
    Vrnic,
    /// The kernel's Soft-RoCE on the virtio-net, for comparison.
    Rxe,
}

impl Device {
    /// As in reports and on the guest's command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vrnic => "vrnic",
            Self::Rxe => "rxe",
        }
    }

    /// The RDMA device's name in the guests.
    #[must_use]
    pub fn ibdev(self) -> &'static str {
        match self {
            Self::Vrnic => "vrnic0",
            Self::Rxe => "rxe0",
        }
    }

    /// What its packets travel as, if vrnicd's RNICs are on `fabric`.
    #[must_use]
    pub fn fabric(self, fabric: Fabric) -> Fabric {
        match self {
            Self::Vrnic => fabric,
            Self::Rxe => Fabric::Roce,
        }
    }
}

/// How messages travel from one VM to the other.
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
    /// In packets of an InfiniBand subnet; OpenSM in the first of its VMs manages it.
    Infiniband,
}

impl Fabric {
    /// As in vrnicd's configuration and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Roce => "roce",
            Self::Infiniband => "infiniband",
        }
    }
}

/// Kind of a VM's address, and with it of a GID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Family {
    /// IPv4.
    #[default]
    V4,
    /// IPv6, the address that the lab gave.
    V6,
}

impl Family {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// A shell's pattern of such GIDs as sysfs shows them.
    #[must_use]
    pub fn gids(self) -> &'static str {
        match self {
            Self::V4 => "0000:0000:0000:0000:0000:ffff:*",
            Self::V6 => "fd77:*",
        }
    }
}

/// The VMs of `make run` and of the tests.
pub const NAMES: [&str; 2] = ["a", "b"];

/// Serial number by which a guest knows its disk.
const DISK: &str = "lab-disk";
/// Address of a guest in the network that only ssh uses, which QEMU's has for the first guest.
const SSH_IPV4: &str = "10.0.2.15";
/// Another one, as each device has both.
const SSH_IPV6: &str = "fec0::15";

/// Memory of a VM in MiB, if nothing says otherwise.
const MEMORY_MB: u32 = 1536;

/// What a VM is made of.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The VM.
    pub machine: Machine,
    /// Its kernel, and where things are.
    pub settings: Settings,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    /// What is behind each of the machine's devices.
    pub cables: Vec<Cable>,
    /// The file of its NVDIMM, if it has one.
    pub nvdimm: Option<PathBuf>,
    /// Sockets of this lab.
    pub sockets: PathBuf,
    /// Served as /vrnic.
    pub share: PathBuf,
    /// Console and QEMU logs.
    pub logs: PathBuf,
    /// Whom ssh lets in, if it does: the public part of an Ed25519 key, base64.
    pub ssh_key: Option<String>,
}

/// What is behind a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cable {
    /// vrnicd's socket, when there is an RNIC.
    pub rnic: Option<PathBuf>,
    /// What the virtio-net is joined to.
    pub net: Net,
}

/// What a virtio-net is joined to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Net {
    /// A port of the switch, and the greatest packet there.
    Switch(PathBuf, usize),
    /// Another one; whether this end listens.
    Wire(PathBuf, bool),
}

/// A number in the environment.
fn number(variable: &str) -> Option<u32> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Memory of a machine in MiB.
#[must_use]
pub fn memory(machine: &Machine) -> u32 {
    let memory = machine.memory.or_else(|| number("VRNIC_VM_MEMORY_MB"));
    memory.unwrap_or(MEMORY_MB)
}

impl Spec {
    /// Name of the VM.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.machine.name
    }

    /// Whether a VM made of this is one made of `other`.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.machine, &self.cables) == (&other.machine, &other.cables)
            && self.settings.kernel.tree == other.settings.kernel.tree
    }

    /// Processors of the VM.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let cpus = self.machine.cpus.or_else(|| number("VRNIC_VM_CPUS"));
        // Races need somebody to race with.
        let two = self.accelerator == Accelerator::Kvm || self.settings.kernel.races();
        cpus.unwrap_or(if two { 2 } else { 1 })
    }

    /// The console log.
    #[must_use]
    pub fn console(&self) -> PathBuf {
        self.logs.join(format!("console-{}.log", self.name()))
    }

    /// The socket of the guest's second console, for `shell`.
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
            // The flags erms and fsrm say that `rep movsb` is fast. QEMU's translator does it byte by byte. Without
            // them, Linux and libc copy words, and VMs boot in a sixth less of a processor's time.
            Accelerator::Tcg => add(&[
                "-accel",
                "tcg,thread=multi",
                "-cpu",
                "max,erms=off,fsrm=off",
            ]),
        }
        // Room for a second processor even where there is one: for a machine that can never have
        // two, QEMU's translator makes the guest's atomic instructions plain ones and drops its
        // fences, and Linux patches its own likewise. Rings that another process reads need both.
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
        // no5lvl: as Linux identifies its processor, it forgets for a moment that page tables have five levels. KASAN
        // takes the memory that an interrupt uses in that moment for none and says so, and from then on it says no more
        // and lockdep is off. On that kernel a task may also wait for minutes without being hung. What a distribution's
        // kernel does against faults of processors costs most of all where a processor is emulated.
        let guest = machine.image.as_ref().unwrap_or(&settings.guest_root);
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
                 init=/sbin/vrnic-init panic=0 no_timer_check no5lvl mitigations=off sysctl.kernel.hung_task_timeout_secs={} kunit.enable=1 \
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
                    option(guest)
                ),
                "-device",
                "virtio-blk-pci,drive=root",
            ]);
        } else {
            directories.push(directory("root", guest, true));
        }
        if let Some(disk) = &machine.disk {
            // What the guest writes goes to a file that nobody else sees, and ends with QEMU.
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
        let modules = settings.kernel.modules().map(|dir| dir.join("kernel"));
        directories.extend(modules.iter().map(|dir| directory("modules", dir, true)));
        for (index, share) in machine.shares.iter().enumerate() {
            let tag = format!("share{index}");
            directories.push(directory(&tag, &share.host, share.read_only));
        }
        for (tag, path, read_only) in directories {
            let read_only = if read_only { "on" } else { "off" };
            // Below a directory may be other file systems, with the same numbers of files.
            add(&[
                "-fsdev",
                &format!(
                    "local,id={tag},path={},security_model=none,multidevs=remap,readonly={read_only}",
                    option(&path)
                ),
            ]);
            add(&[
                "-device",
                &format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}"),
            ]);
        }
        add(&["-device", "virtio-rng-pci"]);
        add(&[
            "-chardev",
            &format!("file,id=console,path={},append=on", option(&self.console())),
            "-serial",
            "chardev:console",
        ]);
        add(&["-device", "virtio-serial-pci"]);
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
            // Without a switch one end listens, the other connects and reconnects: either may start first or be started
            // again.
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
                // A busy host must not cost the guest its device: the default is 5 s.
                "x-msg-timeout": 60_000,
            });
            add(&["-device", &device.to_string()]);
        }
        args
    }

    /// What the guest's init reads: its network devices and its shares.
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

    /// Address of the network device that only ssh uses.
    fn ssh_mac(&self) -> String {
        format!("52:54:00:77:00:{:02x}", self.machine.number)
    }

    /// Writes what cloud-init in the guest reads.
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
        // People log in as root, as in the lab's own image.
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

/// Whether the first panic that a console tells of is one in `setup_IO_APIC()` before the first process.
fn early_panic(console: &str) -> bool {
    console
        .split_once("Kernel panic - not syncing")
        .is_some_and(|(before, _)| {
            before.contains(" setup_IO_APIC+") && !before.contains(" as init process")
        })
}

/// The port that QEMU listens on, as `info usernet` shows it.
fn forwarded_port(text: &str) -> Option<u16> {
    let line = text
        .lines()
        .find(|line| line.contains("TCP[HOST_FORWARD]"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// A path as part of a QEMU option, where a single comma would end it.
fn option(path: &Path) -> String {
    text(path).replace(',', ",,")
}

/// What a VM does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Somebody starts it or waits for it.
    Booting,
    /// It runs, with the process of its QEMU, and its processors.
    Up {
        /// Of QEMU.
        pid: i32,
        /// Their number.
        cpus: u32,
    },
    /// It does not run.
    Ended,
}

/// A running VM. Dropping it ends QEMU.
pub struct Vm {
    /// What it is made of.
    pub spec: Spec,
    /// Runs programs in it.
    pub agent: Agent,
    /// The number of boots somebody has waited for.
    pub waited: u64,
    process: Process,
}

impl Vm {
    /// Starts QEMU; the guest boots on its own. [`Vm::wait_ready`] tells when it is up.
    ///
    /// # Errors
    /// QEMU does not start; the message has its last words.
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
    /// QEMU ended, the guest's kernel panicked, or `patience` is over; the message has the end of the console.
    pub fn wait_ready(&mut self, boots: u64, patience: Duration) -> Result<()> {
        let start = Instant::now();
        while !self.ready(boots, start, patience)? {}
        Ok(())
    }

    /// A part of [`wait_ready`](Self::wait_ready) since `start`: returns soon whether it is over.
    ///
    /// # Errors
    /// As [`wait_ready`](Self::wait_ready).
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

    /// Whether the guest's kernel has panicked since QEMU was started.
    #[must_use]
    pub fn panicked(&self) -> bool {
        fs::read(self.spec.console())
            .is_ok_and(|text| String::from_utf8_lossy(&text).contains("Kernel panic - not syncing"))
    }

    /// Whether the guest's kernel panicked while it set up its interrupt controllers: before it looks for devices, and
    /// long before any code of ours. Linux 7.3 does when a timer interrupt comes amid `mp_irqdomain_alloc()`
    /// (`arch/x86/kernel/apic/io_apic.c`). Other panics at boot may be a device's fault.
    #[must_use]
    pub fn panicked_early(&self) -> bool {
        fs::read(self.spec.console()).is_ok_and(|text| early_panic(&String::from_utf8_lossy(&text)))
    }

    /// Whether QEMU still runs.
    pub fn alive(&mut self) -> bool {
        self.process.ended().is_none()
    }

    /// QEMU's host process id.
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

    /// The TCP port of this machine that leads to the ssh server of the guest.
    ///
    /// # Errors
    /// It has none, or QEMU does not answer.
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

    /// Powers the guest off and waits for QEMU; kills it when that takes long.
    pub fn stop(&mut self) {
        if self.alive() {
            let _ = self.qmp(r#"{"execute": "quit"}"#);
        }
        self.process.reap(Duration::from_secs(3));
    }

    /// Kills QEMU as a crash would.
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
        // The guest boots again by itself after a panic.
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
