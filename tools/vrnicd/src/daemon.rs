// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Assembles the daemon: holder, listeners with their threads, workers, signals.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{debug, info, info_span, warn};

use crate::capture::{Captures, Center};
use crate::config::{self, Config, FabricKind};
use crate::control::inspector::Inspector;
use crate::control::server::Server;
use crate::device::Device;
use crate::fabric::SubnetFabric;
use crate::holder::Holder;
use crate::network::Network;
use crate::scheduling::prefer_short_waits;
use crate::socket;
use crate::stop::Stop;
use crate::vfio_user::listener::Listener;
use crate::virtio::Backend;
use crate::virtio::mailbox::Mailbox;
use crate::waker::Waker;
use crate::watchdog;
use crate::worker::Workshop;

/// How long front ends may take to close their connections.
const STOP_TIME: Duration = Duration::from_secs(2);

/// Serves until SIGTERM or SIGINT arrives.
pub fn run(config: &Config) -> Result<()> {
    socket::inherit();
    // Starts before any thread does, so that the holder inherits neither locks nor sockets.
    let holder = if config.holder {
        // The running executable, even if the file on disk has been replaced since.
        let program = std::path::Path::new("/proc/self/exe");
        Some(Arc::new(
            Holder::start(program).context("cannot start the holder process")?,
        ))
    } else {
        None
    };
    // SIGHUP comes when a terminal closes; there is nothing to reload. SIGXFSZ comes when a file may not grow; the
    // writer of the file gets an error as well.
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1, libc::SIGXFSZ])
        .context("cannot catch signals")?;
    let stop = Arc::new(Stop::new()?);
    let waker = Arc::new(Waker::new()?);

    let crash_directory = config.crash_directory(std::env::var_os("STATE_DIRECTORY").as_deref());
    if let Some(directory) = &crash_directory {
        let name = directory.display();
        ensure!(
            directory.is_dir(),
            "crash_directory: {name} is not a directory"
        );
    }
    let (network, network_thread) = Network::new(config, waker.clone()).context("the switch")?;
    let subnet = SubnetFabric::new(config).context("the subnet")?;
    let weights = config.devices.iter().map(|settings| settings.weight);
    let heaviest = weights.max().unwrap_or(1);
    let devices: Vec<Device> = config
        .devices
        .iter()
        .enumerate()
        .map(|(index, settings)| {
            let mtu = network.path_mtu(index);
            let frame_mtu = network.frame_mtu(index);
            let mut device = Device::new(index, settings, heaviest, mtu, frame_mtu, waker.clone());
            if let Some(directory) = &crash_directory {
                device.set_crash_directory(directory);
            }
            if let Some(hostile) = &config.test_hostile
                && hostile.devices.contains(&settings.name)
            {
                device.set_hostile(hostile);
            }
            device
        })
        .collect();
    let named = |names: &[String]| -> Vec<(String, Arc<Mailbox>)> {
        let named = devices
            .iter()
            .filter(|device| names.iter().any(|name| name == device.name()));
        named
            .map(|device| (device.name().to_owned(), device.mailbox().clone()))
            .collect()
    };
    let to_panic = named(&config.test_panic_on_sigusr1);
    let hostile = config.test_hostile.as_ref();
    let to_change_sides = hostile.map_or_else(Vec::new, |hostile| named(&hostile.devices));

    let names: Vec<String> = devices
        .iter()
        .map(|device| device.name().to_owned())
        .collect();
    let ports = network.ports().map(|port| port.name.to_owned());
    let on_subnet = |device: &&config::Device| device.fabric == FabricKind::Infiniband;
    let infiniband = config.devices.iter().filter(on_subnet);
    let infiniband = infiniband.map(|device| device.name.clone());
    let center = Center::new(names.clone(), ports).with_infiniband(infiniband.collect());
    let center = Arc::new(center);
    let captures = Captures::new(names);
    if let Some(settings) = &config.capture {
        let name = settings.file.display().to_string();
        let file =
            File::create(&settings.file).with_context(|| format!("cannot capture to {name}"))?;
        captures.add(center.start(settings.choice(), file, &name)?);
    }

    let mut front_ends = Vec::new();
    let inspector = Arc::new(Inspector::new(waker.clone()));
    if let Some(path) = &config.control {
        let mode = config.control_mode.0;
        let server = Server::bind(path, mode, inspector.clone(), center.clone(), config.faults)
            .with_context(|| format!("cannot listen on {}", path.display()))?;
        info!(socket = %path.display(), mode = format_args!("{mode:o}"), "control");
        let stop = stop.clone();
        let thread = thread::Builder::new()
            .name("control".into())
            .spawn(move || server.run(&stop))?;
        front_ends.push(thread);
    }

    for (device, settings) in devices.iter().zip(&config.devices) {
        let listener = Listener::bind(&settings.socket)
            .with_context(|| format!("cannot listen on {}", settings.socket.display()))?;
        info!(device = device.name(), socket = %listener.path().display(), mac = %settings.mac, "listening");
        let (spec, name) = (device.spec(), device.name().to_owned());
        let (stop, holder) = (stop.clone(), holder.clone());
        let backend: Arc<dyn Backend> = device.mailbox().clone();
        let thread = thread::Builder::new()
            .name(format!("vfio-{name}"))
            .spawn(move || {
                let _span = info_span!("vfio-user", device = name).entered();
                short_waits();
                listener.run(&spec, &backend, holder.as_deref(), &stop);
            })?;
        front_ends.push(thread);
    }

    let workers = config.workers.count(devices.len());
    let shop = Arc::new(Workshop::new(
        devices,
        network,
        subnet,
        waker,
        inspector,
        config.poll_time(),
        captures,
        workers,
        config.test_restless_workers,
    )?);
    let thread_gone = Arc::new(AtomicBool::new(false));
    let start = |name: String, mut work: Box<dyn FnMut() + Send>| {
        let (gone, handle) = (thread_gone.clone(), signals.handle());
        thread::Builder::new().name(name).spawn(move || {
            short_waits();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(&mut work));
            if outcome.is_err() {
                gone.store(true, Ordering::SeqCst);
                handle.close();
            }
        })
    };
    let mut worker_threads = Vec::new();
    for number in 0..workers {
        let shop = shop.clone();
        let work = move || {
            if let Err(error) = watchdog::start() {
                warn!(%error, "cannot create a timer for a worker: a VMM can stall it");
            }
            shop.work(number);
        };
        let name = match number {
            0 => "worker".to_owned(),
            _ => format!("worker-{number}"),
        };
        worker_threads.push(start(name, Box::new(work))?);
    }
    let network_thread = network_thread
        .map(|mut network| {
            let stop = stop.clone();
            start("network".into(), Box::new(move || network.run(&stop)))
        })
        .transpose()?;

    for signal in &mut signals {
        match signal {
            SIGUSR1 => {
                for (name, mailbox) in &to_panic {
                    warn!(device = name, "panic requested by SIGUSR1");
                    mailbox.request_panic();
                }
                for (name, mailbox) in &to_change_sides {
                    let hostile = mailbox.change_sides();
                    warn!(device = name, hostile, "hostility toggled by SIGUSR1");
                }
            }
            SIGHUP | libc::SIGXFSZ => {}
            _ => {
                info!(signal, "stopping");
                break;
            }
        }
    }

    stop.stop();
    let deadline = Instant::now() + STOP_TIME;
    while front_ends.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
    }
    // A front end stuck in a write to a VMM that does not read ends with the process, so its socket file is removed
    // here.
    let sockets = config.devices.iter().map(|settings| &settings.socket);
    for socket in sockets.chain(&config.control) {
        socket::remove(socket);
    }
    shop.stop();
    for thread in worker_threads {
        let _ = thread.join();
    }
    shop.finish();
    // The captures end with it.
    drop(shop);
    if let Some(thread) = network_thread {
        let _ = thread.join();
    }
    if !center.wait(None, STOP_TIME) {
        warn!("cannot finish a capture in time");
    }
    if thread_gone.load(Ordering::SeqCst) {
        anyhow::bail!("a thread ended unexpectedly");
    }
    Ok(())
}

fn short_waits() {
    if let Err(error) = prefer_short_waits() {
        debug!(%error, "cannot ask the scheduler for short waits");
    }
}
