// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Two network namespaces with a cable between them, which act as two hosts on a network. Root creates them directly;
//! other users, who may not, create a user namespace around them.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::process::{Process, tail};

/// Creates the second namespace, the cable and its addresses, prints the process that represents the second namespace,
/// and stays to represent the first. The MTU has room for a frame of 9000 bytes and the headers that a link adds.
const SCRIPT: &str = r#"
set -e
unshare --net sleep infinity &
other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add cable mtu 9100 type veth peer name cable mtu 9100 netns $other
ip address add $2/24 dev cable
ip link set cable up
nsenter --target $other --net sh -c "ip address add $3/24 dev cable && ip link set cable up"
echo $other >"$1.new"
mv "$1.new" "$1"
exec sleep infinity
"#;

/// The namespaces. Dropping this ends them after the last process has left.
pub struct Namespaces {
    first: Process,
    second: i32,
}

impl Namespaces {
    /// Addresses of both ends of the cable.
    pub const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

    /// Creates the namespaces. `scratch` is a directory for a file.
    ///
    /// # Errors
    /// This host does not let users create namespaces. The message has the output of the tools.
    pub fn start(scratch: &Path, logs: &Path) -> Result<Self> {
        let (told, log) = (scratch.join("namespace"), logs.join("namespaces.log"));
        let _ = fs::remove_file(&told);
        let told_text = told.to_string_lossy();
        let around: &[&str] = match user() {
            Some(user) => &[user, "--map-root-user"],
            None => &[],
        };
        let words = around
            .iter()
            .copied()
            .chain(["--net", "sh", "-c", SCRIPT, "sh", &*told_text])
            .chain(Self::ADDRESSES);
        let words: Vec<String> = words.map(str::to_owned).collect();
        let mut first = Process::start("namespaces", Path::new("unshare"), &words, &[], &log)?;
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Ok(second) = fs::read_to_string(&told) {
                let second = second.trim().parse()?;
                return Ok(Self { first, second });
            }
            if first.ended().is_some() || Instant::now() > deadline {
                bail!("cannot make network namespaces: {}", tail(&log, 5));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns the words to put before a command so that it runs in the first (0) or second (1) namespace.
    #[must_use]
    pub fn enter(&self, which: usize) -> Vec<String> {
        let target = [self.first.pid(), self.second][which].to_string();
        ["nsenter", "--target", &target]
            .into_iter()
            .chain(user())
            .chain(["--net", "--preserve-credentials"])
            // Entering a namespace may reset the parent-death signal.
            .map(str::to_owned)
            .collect()
    }
}

/// Returns the option that creates or enters a user namespace if this user is not root. Root in a chroot may not create
/// one.
fn user() -> Option<&'static str> {
    (!nix::unistd::geteuid().is_root()).then_some("--user")
}
