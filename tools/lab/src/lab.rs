// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The lab: VMs, a vrnicd for each network, and what the programs in the VMs need to know.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::accelerator::{self, Accelerator};
use crate::agent::Agent;
use crate::daemon::{self, Daemon};
use crate::description::{Description, Machine, Network, SSHD};
use crate::image;
use crate::kernel::Kernel;
use crate::namespaces::Namespaces;
use crate::output::tell;
use crate::process::{scratch, scratch_in};
use crate::progress::Step;
use crate::settings::{Settings, available_memory};
use crate::share;
use crate::ssh;
use crate::vm::{self, Cable, Device, Family, Net, Spec, Vm};

/// How long a guest may take to boot. TCG on a busy machine is slow.
const BOOT: Duration = Duration::from_secs(180);
/// Where [`Extra::tree`] is mounted in the VMs.
pub const TREE: &str = "/mnt/tree";
/// How long copying files to a guest may take.
const COPY: Duration = Duration::from_secs(600);
/// How long a short command in a guest may take.
pub const SHORT: Duration = Duration::from_secs(30);

/// The build of the kernel module for the guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// The build for users.
    Plain,
    /// The build with KUnit suites, which run when it is loaded.
    Kunit,
}

impl Module {
    /// Returns where the build puts it.
    #[must_use]
    pub fn path(self, settings: &Settings) -> PathBuf {
        settings.kernel.built.join(match self {
            Self::Plain => "module/vrnic.ko",
            Self::Kunit => "kunit/vrnic.ko",
        })
    }
}

/// Special properties of a lab with two VMs: lines of TOML for vrnicd's configuration, the VMs' network, and additional
/// hardware.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// Configuration of the daemon.
    pub daemon: Vec<String>,
    /// Configuration of each device.
    pub device: Vec<String>,
    /// Configuration of each VM's switch port.
    pub port: Vec<String>,
    /// Whether the VMs' network goes through the switch even if the RNICs' does not.
    pub switch: bool,
    /// Whether each VM has its own vrnicd on its own network, with a link between them.
    pub two_daemons: bool,
    /// VMs with Soft-RoCE on their virtio-net instead of an RNIC.
    pub rxe: Vec<String>,
    /// Size of each VM's NVDIMM in MiB, if it has one. Its contents outlive the VM, but not the lab.
    pub nvdimm: Option<u32>,
    /// Number of RNICs of each VM, if more than one.
    pub rails: Option<usize>,
    /// Number of processors of each VM, if not the usual one.
    pub cpus: Option<u32>,
    /// Whether the VMs can sleep; see [`Machine::sleeps`].
    pub sleeps: bool,
    /// A directory of this machine that the VMs have as [`TREE`], with write access.
    pub tree: Option<PathBuf>,
}

/// How to build a lab.
#[derive(Debug, Clone)]
pub struct Options {
    /// RDMA device that the guests load at boot.
    pub device: Device,
    /// Directory for the logs.
    pub logs: PathBuf,
    /// Special properties.
    pub vrnicd: Extra,
    /// Whether to boot without vrnicd and RNICs, for rxe or a module's self-tests.
    pub no_rnic: bool,
    /// Build of the driver.
    pub module: Module,
}

/// A VM that is running or will be.
type Slot = Arc<Mutex<Option<Vm>>>;

/// Running VMs and the vrnicd of each network. Everything ends when this is dropped.
pub struct Lab {
    /// Locations of files.
    pub settings: Settings,
    /// How the lab's kernel is run.
    pub accelerator: Accelerator,
    /// Reason for this choice of KVM or TCG.
    why: String,
    module: Module,
    logs: PathBuf,
    /// Current or intended description.
    description: Mutex<Description>,
    /// Held while that changes.
    changing: Mutex<()>,
    /// Whether nothing may be started any more.
    ending: AtomicBool,
    // The order matters: VMs end before their vrnicd, which end before their namespaces; directories are removed last.
    vms: Mutex<BTreeMap<String, Slot>>,
    daemons: Mutex<BTreeMap<String, Daemon>>,
    namespaces: Mutex<Option<Namespaces>>,
    sockets: PathBuf,
    /// Shares by the tree of their kernel.
    shares: Mutex<BTreeMap<PathBuf, PathBuf>>,
    scratch: tempfile::TempDir,
    /// NVDIMMs of the VMs, if they have any.
    disk: Mutex<Option<tempfile::TempDir>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lab {
    /// Boots the lab of `make run` and of the tests.
    ///
    /// # Errors
    /// A part did not come up. The message names it and has the end of its log.
    pub fn boot(settings: &Settings, options: Options) -> Result<Self> {
        let rnics = !options.no_rnic;
        let pair = Description::pair(settings.fabric, options.device, rnics, &options.vrnicd)?;
        let _ = fs::remove_dir_all(&options.logs);
        let lab = Self::empty(settings, options.module, options.logs, None)?;
        lab.apply(pair, &|_| {})?;
        Ok(lab)
    }

    /// Creates a lab without VMs. Its sockets are in `sockets`, or in a directory of its own.
    ///
    /// # Errors
    /// A directory cannot be created, or there is no kernel.
    pub fn empty(
        settings: &Settings,
        module: Module,
        logs: PathBuf,
        sockets: Option<&Path>,
    ) -> Result<Self> {
        let (accelerator, why) = accelerator::choose(settings)?;
        let scratch = scratch()?;
        fs::create_dir_all(&logs).with_context(|| format!("making {}", logs.display()))?;
        Ok(Self {
            settings: settings.clone(),
            accelerator,
            why,
            module,
            logs,
            description: Mutex::default(),
            changing: Mutex::default(),
            ending: AtomicBool::new(false),
            vms: Mutex::default(),
            daemons: Mutex::default(),
            namespaces: Mutex::default(),
            sockets: sockets.unwrap_or(scratch.path()).to_path_buf(),
            shares: Mutex::default(),
            scratch,
            disk: Mutex::default(),
        })
    }

    /// Makes the lab match `description`: ends what is no longer in it, and starts what is new, has changed, or has
    /// ended. Unchanged parts keep running. A VM reboots if the vrnicd of its RNIC or port has to change.
    ///
    /// # Errors
    /// A part did not come up. The message names it and has the end of its log. The rest is running.
    pub fn apply(&self, description: Description, say: &dyn Fn(&str)) -> Result<()> {
        let _changing = locked(&self.changing);
        let mut specs = BTreeMap::new();
        for machine in &description.machines {
            specs.insert(machine.name.clone(), self.spec(&description, machine)?);
        }
        let changed = self.changed_networks(&description)?;
        *locked(&self.description) = description.clone();
        self.end_vms(&specs, &changed, say);
        {
            let mut daemons = locked(&self.daemons);
            daemons.retain(|name, daemon| {
                let stays = description
                    .network(name)
                    .is_ok_and(|it| description.needs_daemon(it) && !changed.contains(name));
                if !stays {
                    daemon.stop();
                }
                stays
            });
            self.enter_namespaces(&description)?;
            for network in &description.networks {
                if description.needs_daemon(network) && !daemons.contains_key(&network.name) {
                    let daemon = self.start_daemon(network, &description)?;
                    daemons.insert(network.name.clone(), daemon);
                }
            }
        }
        let names = description.machines.iter().map(|it| it.name.as_str());
        let missing: Vec<_> = names.filter(|name| !self.vm_alive(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Self::enough_memory(&description, &missing)?;
        let linux = self.settings.kernel.release()?;
        let step = Step::start(&format!(
            "booting {} with Linux {linux} ({}: {})",
            match missing.len() {
                1 => format!("VM {}", missing[0]),
                2 => "two VMs".to_owned(),
                number => format!("{number} VMs"),
            },
            self.accelerator,
            self.why
        ));
        if let Err(error) = self.start_vms(&missing, say) {
            let again = self.keep_early_panics(&missing)?;
            if again.is_empty() {
                return Err(error);
            }
            self.start_vms(&again, say)?;
            missing
                .iter()
                .try_for_each(|name| self.wait_vm(name, missing.len()))?;
        }
        step.done();
        Ok(())
    }

    /// Returns the networks whose vrnicd does not run as described.
    fn changed_networks(&self, description: &Description) -> Result<BTreeSet<String>> {
        let mut changed = BTreeSet::new();
        let mut daemons = locked(&self.daemons);
        for network in &description.networks {
            if let Some(daemon) = daemons.get_mut(&network.name) {
                let text = daemon::text(&self.sockets, network, description)?;
                if !daemon.alive() || daemon.text() != text {
                    changed.insert(network.name.clone());
                }
            }
        }
        Ok(changed)
    }

    /// Ends VMs that differ from `specs` or are on a changed network.
    fn end_vms(
        &self,
        specs: &BTreeMap<String, Spec>,
        changed: &BTreeSet<String>,
        say: &dyn Fn(&str),
    ) {
        let running: Vec<_> = locked(&self.vms).clone().into_iter().collect();
        for (name, slot) in running {
            let mut vm = locked(&slot);
            let Some(spec) = specs.get(&name) else {
                if let Some(vm) = vm.as_mut() {
                    say(&format!("VM {name}: ends"));
                    vm.stop();
                }
                drop(vm);
                locked(&self.vms).remove(&name);
                continue;
            };
            let Some(old) = vm.as_mut() else { continue };
            let moved = spec
                .machine
                .nics
                .iter()
                .find(|nic| changed.contains(&nic.network));
            if !old.alive() {
                say(&format!("VM {name}: had ended"));
            } else if !old.spec.is_same(spec) {
                say(&format!("VM {name}: has changed"));
            } else if let Some(nic) = moved {
                say(&format!(
                    "VM {name}: its network {} has changed",
                    nic.network
                ));
            } else {
                continue;
            }
            old.stop();
            *vm = None;
        }
    }

    /// Creates the namespaces of networks.
    fn enter_namespaces(&self, description: &Description) -> Result<()> {
        let mut namespaces = locked(&self.namespaces);
        if namespaces.is_none() && description.networks.iter().any(|it| it.host.is_some()) {
            *namespaces = Some(Namespaces::start(&self.sockets, &self.logs)?);
        }
        Ok(())
    }

    fn start_daemon(&self, network: &Network, description: &Description) -> Result<Daemon> {
        let namespaces = locked(&self.namespaces);
        let enter = network.host.zip(namespaces.as_ref());
        Daemon::start(
            &self.settings,
            &self.sockets,
            &self.logs,
            network,
            description,
            enter.map(|(host, namespaces)| namespaces.enter(host)),
        )
    }

    /// Checks that the machine has enough memory for this number of additional VMs.
    fn enough_memory(description: &Description, missing: &[&str]) -> Result<()> {
        let Some(available) = available_memory() else {
            return Ok(());
        };
        let mut wanted = 0;
        for name in missing {
            wanted += u64::from(vm::memory(description.machine(name)?));
        }
        if wanted > available {
            bail!(
                "the VMs to start have {wanted} MiB of memory and this machine has {available} MiB left: start fewer, \
                 or give them less (`memory` in the lab file)"
            );
        }
        Ok(())
    }

    /// Returns how to start a machine.
    fn spec(&self, description: &Description, machine: &Machine) -> Result<Spec> {
        let (settings, accelerator) = match &machine.kernel {
            None => (self.settings.clone(), self.accelerator),
            Some(kernel) => {
                let kernel = Kernel::named(&self.settings.tree, kernel)?;
                let settings = self.settings.with_kernel(&kernel);
                let accelerator = accelerator::choose(&settings)?.0;
                (settings, accelerator)
            }
        };
        let mut cables = Vec::new();
        for nic in &machine.nics {
            let network = description.network(&nic.network)?;
            let first = description.nics(&network.name).next();
            cables.push(Cable {
                rnic: nic.rnic.then(|| daemon::socket(&self.sockets, nic)),
                net: if network.switch {
                    // There is room for RoCE's largest packets.
                    let mtu = network.mtu.unwrap_or(9000);
                    Net::Switch(daemon::switch_socket(&self.sockets, nic), mtu)
                } else {
                    let wire = self.sockets.join(format!("wire-{}", network.name));
                    Net::Wire(wire, first.is_some_and(|(_, first)| first.name == nic.name))
                },
            });
        }
        let mut disk = locked(&self.disk);
        if machine.nvdimm.is_some() && disk.is_none() {
            // vrnicd does not treat a file in memory, such as one in /tmp, as persistent.
            *disk = Some(scratch_in(Path::new("/var/tmp"))?);
        }
        let disk = machine.nvdimm.and(disk.as_ref());
        let nvdimm = disk.map(|disk| disk.path().join(&machine.name));
        let driven = description
            .machines
            .iter()
            .any(|it| it.device == Device::Vrnic);
        let ssh_key = if machine.ssh {
            let root = image::root(&settings, machine);
            // The contents of a disk are not known.
            ensure!(
                machine.disk.is_some() || !root.is_dir() || root.join(SSHD).is_file(),
                "VM {}: its image has no {SSHD}, which `ssh` needs; add packages = [\"openssh-server\"] to the lab file",
                machine.name
            );
            Some(ssh::key(&self.sockets)?)
        } else {
            None
        };
        Ok(Spec {
            machine: machine.clone(),
            ssh_key,
            accelerator,
            cables,
            nvdimm,
            sockets: self.sockets.clone(),
            share: self.share(&settings, driven)?,
            logs: self.logs.clone(),
            settings,
        })
    }

    /// Returns the share for guests with this kernel.
    fn share(&self, settings: &Settings, driven: bool) -> Result<PathBuf> {
        if settings.bundled {
            return Ok(settings.tree.join("share"));
        }
        let mut shares = locked(&self.shares);
        if let Some(share) = shares.get(&settings.kernel.tree) {
            return Ok(share.clone());
        }
        let driver = self.module.path(settings);
        let module = !settings.kernel.has_driver() && (driven || driver.is_file());
        let driver = module.then_some(driver);
        let share = self.scratch.path().join(format!("share-{}", shares.len()));
        share::stage(settings, &share, driver.as_deref())?;
        shares.insert(settings.kernel.tree.clone(), share.clone());
        Ok(share)
    }

    fn slot(&self, name: &str) -> Result<Slot> {
        locked(&self.description).machine(name)?;
        Ok(locked(&self.vms)
            .entry(name.to_owned())
            .or_default()
            .clone())
    }

    fn start_vms(&self, names: &[&str], say: &dyn Fn(&str)) -> Result<()> {
        for name in names {
            self.start_vm(name)?;
        }
        for name in names {
            self.wait_vm(name, names.len())?;
            say(&format!("VM {name}: is up"));
        }
        Ok(())
    }

    /// Ends VMs whose kernel panicked while it set up its interrupts (see [`Vm::panicked_early`]), and keeps the
    /// consoles of such panics. Such a panic has nothing to do with what is tested, so the VM gets a second boot.
    fn keep_early_panics<'a>(&self, names: &[&'a str]) -> Result<Vec<&'a str>> {
        let mut again = Vec::new();
        for name in names {
            let slot = self.slot(name)?;
            let mut slot = locked(&slot);
            if let Some(vm) = slot.as_ref().filter(|vm| vm.panicked_early()) {
                let kept = vm.spec.console().with_extension("panic.log");
                fs::rename(vm.spec.console(), &kept)?;
                tell!(
                    "VM {name}: Linux panicked as it set up its interrupts ({}); booting again",
                    kept.display()
                );
                again.push(*name);
                *slot = None;
            }
        }
        Ok(again)
    }

    fn start_vm(&self, name: &str) -> Result<()> {
        let description = locked(&self.description).clone();
        self.may_start()?;
        let spec = self.spec(&description, description.machine(name)?)?;
        let slot = self.slot(name)?;
        let mut slot = locked(&slot);
        *slot = None;
        *slot = Some(Vm::start(spec)?);
        Ok(())
    }

    /// Waits for a VM that boots in parallel with others.
    fn wait_vm(&self, name: &str, others: usize) -> Result<()> {
        let waves = u32::try_from(others.div_ceil(2))?;
        let (start, patience) = (Instant::now(), self.patience(name)? * waves.max(1));
        loop {
            self.may_start()?;
            if self.with_vm(name, |vm| vm.ready(0, start, patience))? {
                return Ok(());
            }
        }
    }

    /// Returns how long this VM may take to boot.
    fn patience(&self, name: &str) -> Result<Duration> {
        let description = locked(&self.description);
        let whole_system = description.machine(name)?.disk.is_some();
        Ok(if whole_system { BOOT * 4 } else { BOOT })
    }

    /// Returns an error if the lab is ending.
    fn may_start(&self) -> Result<()> {
        ensure!(!self.ending.load(Ordering::Relaxed), "the lab ends");
        Ok(())
    }

    /// Returns the device that a guest loaded at boot.
    #[must_use]
    pub fn device(&self, name: &str) -> Device {
        let description = locked(&self.description);
        description
            .machine(name)
            .map_or(Device::Vrnic, |machine| machine.device)
    }

    /// Returns the current description.
    #[must_use]
    pub fn description(&self) -> Description {
        locked(&self.description).clone()
    }

    /// Returns the address of a VM's first device.
    ///
    /// # Errors
    /// The VM does not exist, or has no network device.
    pub fn address(&self, name: &str, family: Family) -> Result<String> {
        let description = locked(&self.description);
        let nics = &description.machine(name)?.nics;
        let nic = nics.first();
        let nic = nic.with_context(|| format!("VM {name} has no network device"))?;
        Ok(match family {
            Family::V4 => nic.ipv4.clone(),
            Family::V6 => nic.ipv6.clone(),
        })
    }

    /// Returns the directory of shares.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// Returns the directory of the logs.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Returns the directory of sockets.
    #[must_use]
    pub fn sockets(&self) -> &Path {
        &self.sockets
    }

    /// Returns the control socket of the first network's vrnicd.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        daemon::control(&self.sockets, &self.first_network())
    }

    /// Returns the configuration of the first network's vrnicd.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        daemon::config(&self.sockets, &self.first_network())
    }

    fn first_network(&self) -> String {
        let description = locked(&self.description);
        let first = description.networks.first();
        first
            .map_or(daemon::FIRST, |network| &network.name)
            .to_owned()
    }

    /// Returns the agent that runs programs in a VM.
    ///
    /// # Errors
    /// The VM does not exist or is not running.
    pub fn agent(&self, name: &str) -> Result<Agent> {
        self.with_vm(name, |vm| Ok(vm.agent.clone()))
    }

    /// Calls `action` with a running VM.
    ///
    /// # Errors
    /// The VM is not running, or `action` fails.
    pub fn with_vm<T>(&self, name: &str, action: impl FnOnce(&mut Vm) -> Result<T>) -> Result<T> {
        let slot = self.slot(name)?;
        let mut slot = locked(&slot);
        action(
            slot.as_mut()
                .with_context(|| format!("VM {name} is not running"))?,
        )
    }

    /// Returns what a VM is doing, without waiting.
    #[must_use]
    pub fn vm_state(&self, name: &str) -> vm::State {
        let slot = self.slot(name).ok();
        let Some(mut slot) = slot.as_deref().and_then(|slot| slot.try_lock().ok()) else {
            return vm::State::Booting;
        };
        let Some(vm) = slot.as_mut().filter(|vm| vm.waited > 0) else {
            // The VMs are being started one after the other.
            let starting = self.changing.try_lock().is_err();
            return if starting {
                vm::State::Booting
            } else {
                vm::State::Ended
            };
        };
        if !vm.alive() {
            return vm::State::Ended;
        }
        vm::State::Up {
            pid: vm.pid(),
            cpus: vm.spec.cpus(),
        }
    }

    /// Returns the process ID of a network's vrnicd, if it is running.
    #[must_use]
    pub fn daemon_pid(&self, network: &str) -> Option<i32> {
        let mut daemons = locked(&self.daemons);
        let daemon = daemons.get_mut(network)?;
        daemon.alive().then(|| daemon.pid())
    }

    /// Waits for all RDMA devices of a VM.
    ///
    /// # Errors
    /// The same as for [`wait_rdma`](Self::wait_rdma).
    pub fn wait_devices(&self, machine: &Machine) -> Result<()> {
        for device in machine.rdma_devices().into_iter().flatten() {
            self.wait_port(&machine.name, &device, Family::V4)?;
        }
        Ok(())
    }

    /// Copies a file or a directory of the host to the directory or path `guest` in a VM.
    ///
    /// # Errors
    /// The source cannot be read, or the destination cannot be written.
    pub fn copy_in(&self, name: &str, host: &Path, guest: &str) -> Result<()> {
        let file = host.file_name().context("a file or a directory to copy")?;
        let share = self.with_vm(name, |vm| Ok(vm.spec.share.clone()))?;
        let here = tempfile::Builder::new()
            .prefix("copy-")
            .tempdir_in(&share)?;
        let there = here.path().file_name().context("it has a name")?;
        let mut permissions = fs::metadata(here.path())?.permissions();
        permissions.set_mode(0o755);
        fs::set_permissions(here.path(), permissions)?;
        let output = Command::new("cp")
            .args(["-a", "--no-preserve=ownership", "--"])
            .args([host, here.path()])
            .output()
            .context("running cp")?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let from = Path::new("/vrnic").join(there).join(file);
        let script = "case $2 in */) mkdir -p \"$2\" ;; *) mkdir -p \"$(dirname \"$2\")\" ;; esac
            [ -d \"$2\" ] && exec cp -a \"$1\" \"$2\"
            exec cp -aT \"$1\" \"$2\"";
        let words = ["sh", "-ec", script, "sh", &from.to_string_lossy(), guest];
        self.agent(name)?.check(&words, COPY)?;
        Ok(())
    }

    /// Returns whether the VM's QEMU is running.
    #[must_use]
    pub fn vm_alive(&self, name: &str) -> bool {
        self.slot(name)
            .is_ok_and(|slot| locked(&slot).as_mut().is_some_and(Vm::alive))
    }

    /// Waits for a boot of the guest for which nothing has waited yet. Boots by [`Lab::boot`] and
    /// [`Lab::boot_vm`] count as waited for.
    ///
    /// # Errors
    /// The same as for [`Vm::wait_ready`].
    pub fn wait_reboot(&self, name: &str) -> Result<()> {
        let patience = self.patience(name)?;
        self.with_vm(name, |vm| {
            let waited = vm.waited;
            vm.wait_ready(waited, patience)
        })
    }

    /// Boots a VM again, whether it is running or not.
    ///
    /// # Errors
    /// The same as for [`Vm::start`] and [`Vm::wait_ready`].
    pub fn boot_vm(&self, name: &str) -> Result<()> {
        self.start_vm(name)?;
        self.wait_vm(name, 1)
    }

    /// Ends a VM as if its QEMU had crashed.
    ///
    /// # Errors
    /// The VM does not exist.
    pub fn kill_vm(&self, name: &str) -> Result<()> {
        if let Some(vm) = locked(&*self.slot(name)?).as_mut() {
            vm.kill();
        }
        Ok(())
    }

    /// Calls `action` with the first network's vrnicd.
    ///
    /// # Errors
    /// The lab has no vrnicd, or `action` fails.
    pub fn with_daemon<T>(&self, action: impl FnOnce(&mut Daemon) -> Result<T>) -> Result<T> {
        let mut daemons = locked(&self.daemons);
        let daemon = daemons.get_mut(&self.first_network());
        action(daemon.context("this lab has no vrnicd")?)
    }

    /// Starts a new vrnicd in place of each old one.
    ///
    /// # Errors
    /// The same as for [`Daemon::start`].
    pub fn restart_daemon(&self) -> Result<()> {
        let description = locked(&self.description).clone();
        for (name, daemon) in locked(&self.daemons).iter_mut() {
            daemon.kill();
            *daemon = self.start_daemon(description.network(name)?, &description)?;
        }
        Ok(())
    }

    /// Waits until the RDMA device of a VM has an active port and its RoCEv2 IPv4 GID, or any GID on InfiniBand.
    /// Returns the index of the GID.
    ///
    /// # Errors
    /// This takes longer than half a minute. The message has the end of the guest's console.
    pub fn wait_rdma(&self, name: &str, device: Device) -> Result<u32> {
        self.wait_gid(name, device, Family::V4)
    }

    /// Does the same for the GID of an address of this family.
    ///
    /// # Errors
    /// The same as for [`wait_rdma`](Self::wait_rdma).
    pub fn wait_gid(&self, name: &str, device: Device, family: Family) -> Result<u32> {
        self.wait_port(name, device.ibdev(), family)
    }

    /// Does the same for the RDMA device with this name in the VM.
    ///
    /// # Errors
    /// The same as for [`wait_rdma`](Self::wait_rdma).
    pub fn wait_port(&self, name: &str, ibdev: &str, family: Family) -> Result<u32> {
        let script = format!(
            "port=/sys/class/infiniband/{0}/ports/1 link=
            for i in $(seq 300); do
                if grep -q ACTIVE $port/state 2>/dev/null; then
                    read -r link <$port/link_layer
                    # Tables are long, processes slow to start.
                    n=0
                    while [ -e $port/gids/$n ]; do
                        gid= type=
                        {{ read -r gid <$port/gids/$n; read -r type <$port/gid_attrs/types/$n; }} 2>/dev/null
                        case $link:$gid:$type in
                        Ethernet:{1}:*v2 | InfiniBand:fe80:*) echo $n; exit 0 ;;
                        esac
                        n=$((n + 1))
                    done
                fi
                sleep 0.1
            done
            echo \"no RDMA device {0} with an active port and an {2} GID; devices: $(ls /sys/class/infiniband 2>&1)\"
            exit 1",
            ibdev,
            family.gids(),
            family.name(),
        );
        let output = self
            .agent(name)?
            .run(&["sh", "-c", &script], Duration::from_secs(60))?;
        if output.code != 0 {
            let console = self.logs.join(format!("console-{name}.log"));
            bail!(
                "VM {name}: {}\nthe console ({}) ends with:\n{}",
                output.text(),
                console.display(),
                crate::process::tail(&console, 25)
            );
        }
        output.stdout.trim().parse().context("a GID index")
    }

    /// Ends everything in order. Returns false if vrnicd did not end cleanly.
    #[must_use]
    pub fn shut_down(&self) -> bool {
        self.ending.store(true, Ordering::Relaxed);
        let slots: Vec<_> = locked(&self.vms).values().cloned().collect();
        for slot in slots {
            if let Some(vm) = locked(&slot).as_mut() {
                vm.stop();
            }
        }
        let mut clean = true;
        for daemon in locked(&self.daemons).values_mut() {
            clean &= !daemon.alive() || daemon.stop();
        }
        clean
    }
}
