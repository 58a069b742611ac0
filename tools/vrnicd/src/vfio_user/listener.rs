// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A listening socket that serves one VMM at a time, each with a new device.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::journal::Journal;
use super::pci_device::PciDevice;
use super::session::{Disconnect, serve};
use super::stream::MessageStream;
use crate::guest_memory::GuestMemory;
use crate::holder::Holder;
use crate::pci::Function;
use crate::quota::{Quota, limited};
use crate::socket;
use crate::stop::Stop;
use crate::virtio::{Backend, DeviceSpec};

/// How long a VMM that made the worker block has to wait for a new connection.
const PENALTY: Duration = Duration::from_secs(1);
/// How long the worker may take to release a VM's memory.
const RELEASE_TIME: Duration = Duration::from_secs(5);

/// A bound socket; removed when dropped.
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
}

impl Listener {
    /// Binds `path`. Replaces a socket on which no process listens any more; fails if anything else exists at `path`.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self {
            socket: socket::bind(path)?,
            path: path.to_owned(),
        })
    }

    /// Accepts and serves VMMs, one at a time, until `stop` is signalled. Blocks.
    pub fn run(
        &self,
        spec: &DeviceSpec,
        backend: &Arc<dyn Backend>,
        holder: Option<&Holder>,
        stop: &Arc<Stop>,
    ) {
        // One for all connections, or a VMM could get another one by connecting again.
        let quota = Quota::default();
        while stop.wait_readable(self.socket.as_fd()) {
            let stream = match self.socket.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    std::thread::sleep(std::time::Duration::from_millis(100));
                    continue;
                }
            };
            limited!(quota, info, "VMM connected");
            let (journal, fd) = match Journal::new() {
                Ok(made) => made,
                Err(error) => {
                    warn!(%error, "not enough memory for the connection");
                    continue;
                }
            };
            let held = holder.and_then(|holder| holder.hold(stream.as_fd(), fd.as_fd()));
            let held = held.map(Arc::new);
            drop(fd);
            let memory = Arc::new(GuestMemory::with_log(quota.clone()));
            let mut function = Function::new(spec.clone(), backend.clone(), memory.clone());
            function.limit_log(quota.clone());
            let mut device = PciDevice::new(function, memory.clone(), held.clone());
            match serve(
                MessageStream::new(stream, stop.clone(), journal),
                &mut device,
            ) {
                Disconnect::Closed => limited!(quota, info, "VMM disconnected"),
                Disconnect::Stopped => {
                    info!("vrnicd stops; the VMM loses its device");
                    // Leaves the socket with the holder, which keeps the VMM alive.
                    std::mem::forget(held);
                }
                Disconnect::Protocol(what) => {
                    limited!(
                        quota,
                        warn,
                        what,
                        "VMM broke the protocol; connection closed"
                    );
                }
                Disconnect::Io(error) => limited!(quota, warn, %error, "connection failed"),
            }
            if device.is_silenced() {
                // Otherwise the VMM could reconnect at once and make the worker block again.
                std::thread::sleep(PENALTY);
            }
            drop(device);
            // Unmapping gigabytes takes a while, so the last reference should be dropped here and not in the worker.
            let deadline = Instant::now() + RELEASE_TIME;
            while Arc::strong_count(&memory) > 1 && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns the path of the socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        socket::remove(&self.path);
    }
}
