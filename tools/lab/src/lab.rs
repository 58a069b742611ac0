// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The lab: one vrnicd, two VMs, and what the programs in them need to know.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::accelerator::{self, Accelerator};
use crate::agent::Agent;
use crate::daemon::{self, Daemon};
use crate::process::{scratch, scratch_in};
use crate::progress::Step;
use crate::settings::Settings;
use crate::share;
use crate::vm::{Device, Fabric, Family, NAMES, Spec, Vm};

/// How long a guest may take to boot. TCG on a busy machine is slow.
const BOOT: Duration = Duration::from_secs(180);
/// How long a short command in a guest may take.
pub const SHORT: Duration = Duration::from_secs(30);

/// Which build of the kernel module the guests get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Module {
    /// As users have it.
    Plain,
    /// With its KUnit suites, which run when it is loaded.
    Kunit,
}

impl Module {
    /// Where the build puts it.
    #[must_use]
    pub fn path(self, settings: &Settings) -> PathBuf {
        settings.kernel.built.join(match self {
            Self::Plain => "module/vrnic.ko",
            Self::Kunit => "kunit/vrnic.ko",
        })
    }
}

/// What is special about a lab: lines of TOML added to vrnicd's configuration, how the VMs' network is made, and what
/// else the VMs have.
#[derive(Debug, Clone, Default)]
pub struct Extra {
    /// For the daemon.
    pub daemon: Vec<String>,
    /// For each device.
    pub device: Vec<String>,
    /// For each VM's port of the switch.
    pub port: Vec<String>,
    /// The VMs' network goes through the switch though the RNICs' does not.
    pub switch: bool,
    /// Each VM has a vrnicd of its own, in a network of its own, with a link between them.
    pub two_daemons: bool,
    /// VMs that have no RNIC but Soft-RoCE on their virtio-net.
    pub rxe: Vec<String>,
    /// Size of each VM's NVDIMM in MiB, if it has one. What is in it outlives the VM, not the lab.
    pub nvdimm: Option<u32>,
    /// Processors of each VM, if not as many as usual.
    pub cpus: Option<u32>,
}

impl Extra {
    /// Whether the VMs' network goes through vrnicd's switch: where RNICs send frames, their virtio-nets do so too.
    #[must_use]
    pub fn switched(&self, settings: &Settings) -> bool {
        self.switch
            || self.two_daemons
            || !self.port.is_empty()
            || !self.rxe.is_empty()
            || settings.fabric == Fabric::Roce
    }

    /// Whether a VM has an RNIC in a lab whose VMs have.
    #[must_use]
    pub fn has_rnic(&self, name: &str) -> bool {
        !self.rxe.iter().any(|vm| vm == name)
    }
}

/// How to build a lab.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which RDMA device the guests load at boot.
    pub device: Device,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// Lines added to vrnicd's configuration.
    pub vrnicd: Extra,
    /// Boot without vrnicd and RNICs: rxe or a module's self-tests.
    pub no_rnic: bool,
    /// Which build of the driver.
    pub module: Module,
}

/// Two running VMs and their vrnicd. Dropping it ends everything.
pub struct Lab {
    /// Where things are.
    pub settings: Settings,
    /// KVM or TCG.
    pub accelerator: Accelerator,
    options: Options,
    // Order matters: VMs end before vrnicd, sockets vanish last.
    vms: [Mutex<Option<Vm>>; 2],
    daemon: Mutex<Option<Daemon>>,
    sockets: tempfile::TempDir,
    /// NVDIMMs of the VMs, if they have any.
    disk: Option<tempfile::TempDir>,
}

impl Lab {
    /// Stages the share, starts vrnicd, boots both VMs side by side and waits for the RDMA devices.
    ///
    /// # Errors
    /// Any part did not come up; the message says which and shows its log's end.
    pub fn boot(settings: &Settings, options: Options) -> Result<Self> {
        let (accelerator, why) = accelerator::choose(settings)?;
        let linux = settings.kernel.release()?;
        let step = Step::start(&format!(
            "booting two VMs with Linux {linux} ({accelerator}: {why})"
        ));
        let sockets = scratch()?;
        let _ = fs::remove_dir_all(&options.logs);
        fs::create_dir_all(&options.logs)
            .with_context(|| format!("making {}", options.logs.display()))?;
        let driver = (options.device == Device::Vrnic).then(|| options.module.path(settings));
        share::stage(settings, &sockets.path().join("share"), driver.as_deref())?;
        let daemon = if options.no_rnic && !options.vrnicd.switched(settings) {
            None
        } else {
            Some(Daemon::start(
                settings,
                sockets.path(),
                &options.logs,
                &options.vrnicd,
                !options.no_rnic,
            )?)
        };
        // vrnicd does not take a file in memory for persistent, which one in /tmp may be.
        let disk = options
            .vrnicd
            .nvdimm
            .map(|_| scratch_in(Path::new("/var/tmp")))
            .transpose()?;
        let lab = Self {
            settings: settings.clone(),
            accelerator,
            options,
            vms: [Mutex::new(None), Mutex::new(None)],
            daemon: Mutex::new(daemon),
            sockets,
            disk,
        };
        if let Err(error) = lab.start_vms() {
            if !lab.keep_early_panics()? {
                return Err(error);
            }
            lab.start_vms()?;
        }
        step.done();
        Ok(lab)
    }

    fn spec(&self, name: &str) -> Spec {
        Spec {
            name: name.to_owned(),
            accelerator: self.accelerator,
            device: self.device(name),
            rnic: (!self.options.no_rnic && self.options.vrnicd.has_rnic(name))
                .then(|| daemon::socket(self.sockets.path(), name)),
            switch: self
                .options
                .vrnicd
                .switched(&self.settings)
                .then(|| daemon::switch_socket(self.sockets.path(), name)),
            cpus: self.options.vrnicd.cpus,
            nvdimm: self
                .disk
                .as_ref()
                .zip(self.options.vrnicd.nvdimm)
                .map(|(disk, size)| (disk.path().join(name), size)),
            sockets: self.sockets.path().to_path_buf(),
            share: self.sockets.path().join("share"),
            logs: self.options.logs.clone(),
        }
    }

    fn slot(&self, name: &str) -> Result<MutexGuard<'_, Option<Vm>>> {
        let index = NAMES
            .iter()
            .position(|&known| known == name)
            .with_context(|| format!("no VM `{name}`; there are a and b"))?;
        Ok(self.vms[index]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    fn start_vms(&self) -> Result<()> {
        for name in NAMES {
            self.start_vm(name)?;
        }
        NAMES.iter().try_for_each(|name| self.wait_vm(name))
    }

    /// Whether a kernel panicked while it set up its interrupts, see [`Vm::panicked_early`], which says nothing about
    /// what is tested and deserves a second boot. Ends the VMs and keeps the consoles of such panics.
    fn keep_early_panics(&self) -> Result<bool> {
        let mut any = false;
        for name in NAMES {
            let mut slot = self.slot(name)?;
            if let Some(vm) = slot.as_ref().filter(|vm| vm.panicked_early()) {
                let kept = vm.spec.console().with_extension("panic.log");
                fs::rename(vm.spec.console(), &kept)?;
                println!(
                    "VM {name}: Linux panicked as it set up its interrupts ({}); booting again",
                    kept.display()
                );
                any = true;
            }
            *slot = None;
        }
        Ok(any)
    }

    fn start_vm(&self, name: &str) -> Result<()> {
        let mut slot = self.slot(name)?;
        *slot = None;
        *slot = Some(Vm::start(&self.settings, self.spec(name))?);
        Ok(())
    }

    fn wait_vm(&self, name: &str) -> Result<()> {
        self.with_vm(name, |vm| vm.wait_ready(0, BOOT))
    }

    /// Which device a guest loaded at boot.
    #[must_use]
    pub fn device(&self, name: &str) -> Device {
        if self.options.vrnicd.has_rnic(name) {
            self.options.device
        } else {
            Device::Rxe
        }
    }

    /// Where the logs are.
    #[must_use]
    pub fn logs(&self) -> &Path {
        &self.options.logs
    }

    /// Sockets and the share.
    #[must_use]
    pub fn sockets(&self) -> &Path {
        self.sockets.path()
    }

    /// Runs programs in a VM.
    ///
    /// # Errors
    /// The VM does not exist or does not run.
    pub fn agent(&self, name: &str) -> Result<Agent> {
        Ok(self
            .slot(name)?
            .as_ref()
            .with_context(|| format!("VM {name} is not running"))?
            .agent
            .clone())
    }

    /// Does something with a running VM.
    ///
    /// # Errors
    /// The VM does not run, or `action` fails.
    pub fn with_vm<T>(&self, name: &str, action: impl FnOnce(&mut Vm) -> Result<T>) -> Result<T> {
        action(
            self.slot(name)?
                .as_mut()
                .with_context(|| format!("VM {name} is not running"))?,
        )
    }

    /// Whether the VM's QEMU runs.
    #[must_use]
    pub fn vm_alive(&self, name: &str) -> bool {
        self.slot(name)
            .is_ok_and(|mut slot| slot.as_mut().is_some_and(Vm::alive))
    }

    /// Waits for a boot of the guest that nobody has waited for yet; the boot by [`Lab::boot`] and
    /// [`Lab::boot_vm`] counts as waited for.
    ///
    /// # Errors
    /// As [`Vm::wait_ready`].
    pub fn wait_reboot(&self, name: &str) -> Result<()> {
        self.with_vm(name, |vm| {
            let waited = vm.waited;
            vm.wait_ready(waited, BOOT)
        })
    }

    /// Boots a VM anew, whether it runs or not.
    ///
    /// # Errors
    /// As [`Vm::start`] and [`Vm::wait_ready`].
    pub fn boot_vm(&self, name: &str) -> Result<()> {
        self.start_vm(name)?;
        self.wait_vm(name)
    }

    /// Ends a VM as a crash of its QEMU would.
    ///
    /// # Errors
    /// No such VM.
    pub fn kill_vm(&self, name: &str) -> Result<()> {
        if let Some(vm) = self.slot(name)?.as_mut() {
            vm.kill();
        }
        Ok(())
    }

    /// Does something with vrnicd.
    ///
    /// # Errors
    /// This lab has none, or `action` fails.
    pub fn with_daemon<T>(&self, action: impl FnOnce(&mut Daemon) -> Result<T>) -> Result<T> {
        let mut daemon = self
            .daemon
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        action(daemon.as_mut().context("this lab has no vrnicd")?)
    }

    /// Starts a new vrnicd in place of the old one.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn restart_daemon(&self) -> Result<()> {
        let mut daemon = self
            .daemon
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        *daemon = None;
        *daemon = Some(Daemon::start(
            &self.settings,
            self.sockets.path(),
            &self.options.logs,
            &self.options.vrnicd,
            !self.options.no_rnic,
        )?);
        Ok(())
    }

    /// Waits until the RDMA device of a VM has an active port and its RoCEv2 IPv4 GID; returns that GID's index.
    ///
    /// # Errors
    /// It does not within half a minute; the message has the end of the guest's console.
    pub fn wait_rdma(&self, name: &str, device: Device) -> Result<u32> {
        self.wait_gid(name, device, Family::V4)
    }

    /// The same with the GID of that address of the VM.
    ///
    /// # Errors
    /// As [`wait_rdma`](Self::wait_rdma).
    pub fn wait_gid(&self, name: &str, device: Device, family: Family) -> Result<u32> {
        let script = format!(
            "port=/sys/class/infiniband/{0}/ports/1
            for i in $(seq 300); do
                if grep -q ACTIVE $port/state 2>/dev/null; then
                    # Tables are long, processes slow to start.
                    n=0
                    while [ -e $port/gids/$n ]; do
                        gid= type=
                        {{ read -r gid <$port/gids/$n; read -r type <$port/gid_attrs/types/$n; }} 2>/dev/null
                        case $gid:$type in
                        {1}:*v2) echo $n; exit 0 ;;
                        esac
                        n=$((n + 1))
                    done
                fi
                sleep 0.1
            done
            echo \"no RDMA device {0} with an active port and an {2} GID; devices: $(ls /sys/class/infiniband 2>&1)\"
            exit 1",
            device.ibdev(),
            family.gids(),
            family.name(),
        );
        let output = self
            .agent(name)?
            .run(&["sh", "-c", &script], Duration::from_secs(60))?;
        if output.code != 0 {
            let console = self.options.logs.join(format!("console-{name}.log"));
            bail!(
                "VM {name}: {}\nthe console ({}) ends with:\n{}",
                output.text(),
                console.display(),
                crate::process::tail(&console, 25)
            );
        }
        output.stdout.trim().parse().context("a GID index")
    }

    /// Ends everything in order. False when vrnicd did not end cleanly.
    #[must_use]
    pub fn shut_down(self) -> bool {
        for slot in &self.vms {
            if let Some(vm) = slot
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .as_mut()
            {
                vm.stop();
            }
        }
        let mut daemon = self
            .daemon
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        daemon
            .as_mut()
            .is_none_or(|daemon| !daemon.alive() || daemon.stop())
    }
}
