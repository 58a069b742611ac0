// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Labs that run in the background: `vrnic-lab up`, `down`, `status`, `logs` and `copy`.
//!
//! A separate process, the supervisor, owns the lab and serves its control socket. It holds a lock as long as it lives,
//! and everything that it starts ends with it. So a process that gets the lock may clean up after a supervisor that was
//! killed.
//!
//! ```text
//! $XDG_RUNTIME_DIR/vrnic-lab/     or /tmp/vrnic-lab-UID/
//!     NAME.lock                   held while the lab is up
//!     NAME.log                    what the supervisor says
//!     NAME/                       sockets, configurations of vrnicd
//!     NAME/scratch                where the lab's scratch directory is
//!     NAME/logs/                  logs of VMs, QEMU and vrnicd
//! ```

use std::fs::{self, DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::{Flock, FlockArg};
use serde_json::json;

use crate::control::{self, Ask};
use crate::description::{Numbers, Parsed, is_name};
use crate::image;
use crate::kernel::{self, Kernel};
use crate::lab::{Lab, Module};
use crate::output::say;
use crate::process::{remove_at_end, tail};
use crate::settings::Settings;
use crate::status::Status;
use crate::vm::Fabric;

/// How long the supervisor may take to start listening: it tries KVM first.
const START: Duration = Duration::from_secs(60);
/// How long it may take to end.
const END: Duration = Duration::from_secs(60);
/// Longest name of a socket in a lab's directory.
const SOCKET_NAME: usize = "/vrnicd-123456789012345-control".len();
/// Longest path of a UNIX socket.
const SOCKET_PATH: usize = 107;

/// Location of the files of a lab, whether it is up or not.
pub struct Place {
    name: String,
    base: PathBuf,
}

impl Place {
    /// Returns the place of the lab `name`.
    ///
    /// # Errors
    /// The name is not valid, the directory of all labs cannot be created, or it belongs to another user.
    pub fn of(name: &str) -> Result<Self> {
        ensure!(
            is_name(name),
            "no lab is named `{name}`: names have 1 to 15 lower-case letters, digits and hyphens"
        );
        let name = name.to_owned();
        Ok(Self {
            name,
            base: base()?,
        })
    }

    /// Returns the places of all labs that are up.
    ///
    /// # Errors
    /// The same as for [`of`](Self::of).
    pub fn all() -> Result<Vec<Self>> {
        let mut places = Vec::new();
        let base = base()?;
        for entry in fs::read_dir(&base)? {
            let path = entry?.path();
            if path.extension().is_some_and(|it| it == "lock") {
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                let place = Self {
                    name: name.into_owned(),
                    base: base.clone(),
                };
                if place.is_up()? {
                    places.push(place);
                }
            }
        }
        places.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(places)
    }

    /// Returns the lab that a command refers to: the one named, or the only one.
    ///
    /// # Errors
    /// The lab is not up, or there are several.
    pub fn chosen(name: Option<String>) -> Result<Self> {
        if let Some(name) = name {
            let place = Self::of(&name)?;
            ensure!(
                place.is_up()?,
                "no lab named `{name}` is up; `vrnic-lab status` shows those that are"
            );
            return Ok(place);
        }
        let mut all = Self::all()?;
        match all.len() {
            0 => bail!("no lab is up; start one: vrnic-lab up FILE"),
            1 => Ok(all.remove(0)),
            _ => {
                let names: Vec<_> = all.iter().map(|place| place.name.as_str()).collect();
                bail!("several labs are up; name one of {}", names.join(", "))
            }
        }
    }

    /// Returns the directory of sockets and configurations.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    /// Returns the lab's control socket.
    #[must_use]
    pub fn control(&self) -> PathBuf {
        self.directory().join("control")
    }

    fn logs(&self) -> PathBuf {
        self.directory().join("logs")
    }

    fn log(&self) -> PathBuf {
        self.base.join(format!("{}.log", self.name))
    }

    fn lock_file(&self) -> PathBuf {
        self.base.join(format!("{}.lock", self.name))
    }

    /// Takes the lock if it is free.
    fn lock(&self) -> Result<Option<Flock<File>>> {
        let path = self.lock_file();
        let open = File::options().create(true).append(true).open(&path);
        let file = open.with_context(|| format!("opening {}", path.display()))?;
        let Ok(lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) else {
            return Ok(None);
        };
        // Its last holder may have removed the file after this opened it.
        let same = fs::metadata(&path).is_ok_and(|there| {
            lock.metadata()
                .is_ok_and(|here| (here.dev(), here.ino()) == (there.dev(), there.ino()))
        });
        if same { Ok(Some(lock)) } else { self.lock() }
    }

    fn is_up(&self) -> Result<bool> {
        if !self.lock_file().exists() {
            return Ok(false);
        }
        Ok(match self.lock()? {
            None => true,
            Some(lock) => {
                // The files were left by a supervisor that was killed.
                self.clear(lock);
                false
            }
        })
    }

    /// Removes all files of a lab that has ended.
    fn clear(&self, lock: Flock<File>) {
        if let Ok(scratch) = fs::read_to_string(self.directory().join("scratch")) {
            let _ = fs::remove_dir_all(scratch);
        }
        let _ = fs::remove_dir_all(self.directory());
        let _ = fs::remove_file(self.log());
        let _ = fs::remove_file(self.lock_file());
        drop(lock);
    }

    /// Waits until the lab has ended, and removes what it left.
    fn wait_end(&self, patience: Duration) -> Result<bool> {
        let deadline = Instant::now() + patience;
        while self.is_up()? {
            if Instant::now() > deadline {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(true)
    }

    /// Returns the lab's own status.
    ///
    /// # Errors
    /// The lab does not answer.
    pub fn status(&self) -> Result<Status> {
        let (_, text) = control::ask(&self.control(), &Ask::Status)?;
        Ok(serde_json::from_str(&text)?)
    }
}

/// Returns the directory of all labs of this user. It must belong to this user.
fn base() -> Result<PathBuf> {
    let user = nix::unistd::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = match runtime.filter(|dir| dir.is_absolute() && dir.is_dir()) {
        Some(dir) => dir.join("vrnic-lab"),
        None => std::env::temp_dir().join(format!("vrnic-lab-{user}")),
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&base);
    made.with_context(|| format!("making {}", base.display()))?;
    check_owner(&base, user)?;
    // A "/" and the name of a lab.
    let longest = base.as_os_str().len() + 16 + SOCKET_NAME;
    ensure!(
        longest <= SOCKET_PATH,
        "{} is too long for sockets in it: set XDG_RUNTIME_DIR or TMPDIR to a shorter path",
        base.display()
    );
    Ok(base)
}

/// Checks that only this user may write to a directory: another user may have made it first.
fn check_owner(base: &Path, user: u32) -> Result<()> {
    let metadata = fs::symlink_metadata(base)?;
    ensure!(
        metadata.is_dir() && metadata.uid() == user && metadata.mode() & 0o022 == 0,
        "{} is not a directory that only you may write to: remove it, or set XDG_RUNTIME_DIR",
        base.display()
    );
    Ok(())
}

/// Makes the lab match `file`, and starts it if it is not up.
///
/// # Errors
/// The file is not valid, or the lab did not come up.
pub fn up(file: &Path, kernel: Option<kernel::Name>, fabric: Fabric, as_json: bool) -> Result<()> {
    let parsed = Parsed::load(file, &Numbers::default(), fabric)?;
    let settings = Settings::load(default_kernel(&parsed, kernel))?;
    for machine in &parsed.description.machines {
        if let Some(kernel) = &machine.kernel {
            Kernel::named(&settings.tree, kernel)?;
        }
    }
    image::prepare(&settings, &parsed.description.machines)?;
    let place = Place::of(&parsed.description.name)?;
    let started = start_supervisor(&place, &settings, default_kernel(&parsed, kernel))?;
    let request = Ask::Apply {
        file: file.canonicalize()?,
        text: fs::read_to_string(file)?,
        fabric,
    };
    if let Err(error) = control::ask(&place.control(), &request) {
        if started {
            // The supervisor ends on its own and leaves nothing.
            place.wait_end(END)?;
        }
        return Err(error);
    }
    let status = place.status()?;
    if as_json {
        say!("{}", serde_json::to_string_pretty(&status)?);
    } else {
        say!("{}", status.table().trim_end());
    }
    Ok(())
}

/// Returns the kernel of VMs for which the file does not name one.
fn default_kernel(parsed: &Parsed, asked: Option<kernel::Name>) -> kernel::Name {
    use clap::ValueEnum as _;
    let named = parsed.kernel.as_deref();
    let named = named.and_then(|name| kernel::Name::from_str(name, false).ok());
    named.or(asked).unwrap_or(kernel::Name::Stock)
}

/// Starts the supervisor unless there is one. Returns whether it did.
fn start_supervisor(place: &Place, settings: &Settings, kernel: kernel::Name) -> Result<bool> {
    let listens = || UnixStream::connect(place.control()).is_ok();
    if place.is_up()? && listens() {
        return Ok(false);
    }
    let log = File::create(place.log())?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["supervise", &place.name]);
    if kernel != kernel::Name::Own {
        command.args(["--kernel", kernel.text()]);
    }
    let mut child = command
        .current_dir(&settings.tree)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting the lab's own process")?;
    let deadline = Instant::now() + START;
    while !listens() {
        if child.try_wait()?.is_some() && !place.is_up()? {
            bail!("the lab did not start: {}", tail(&place.log(), 5));
        }
        if Instant::now() > deadline {
            bail!(
                "the lab did not start within {} s; {} says: {}",
                START.as_secs(),
                place.log().display(),
                tail(&place.log(), 5)
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

/// Runs the lab `name` until it is told to end. `up` starts this in the background.
///
/// # Errors
/// The lab is already up, or it cannot start.
pub fn supervise(name: &str, kernel: kernel::Name) -> Result<()> {
    // A session of its own: what ends a terminal's programs must not end the lab.
    nix::unistd::setsid()?;
    let place = Place::of(name)?;
    // Another process may hold the lock for a moment to check it.
    let deadline = Instant::now() + Duration::from_secs(2);
    let lock = loop {
        match place.lock()? {
            Some(lock) => break lock,
            // Another `up` was faster.
            None if Instant::now() > deadline => return Ok(()),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let directory = place.directory();
    if let Ok(scratch) = fs::read_to_string(directory.join("scratch")) {
        let _ = fs::remove_dir_all(scratch);
    }
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    for path in [directory.clone(), place.log(), place.lock_file()] {
        remove_at_end(path);
    }
    let result = serve(&place, kernel);
    match result {
        Ok(()) => place.clear(lock),
        Err(error) => {
            // The log is kept, because `up` shows it.
            let _ = fs::remove_dir_all(&directory);
            let _ = fs::remove_file(place.lock_file());
            return Err(error);
        }
    }
    Ok(())
}

fn serve(place: &Place, kernel: kernel::Name) -> Result<()> {
    let settings = Settings::load(kernel)?;
    let (end, ended) = channel();
    let directory = place.directory();
    let lab = Lab::empty(&settings, Module::Plain, place.logs(), Some(&directory))?;
    fs::write(
        directory.join("scratch"),
        lab.scratch().to_string_lossy().as_bytes(),
    )?;
    let lab = Arc::new(lab);
    control::serve(&lab, &place.control(), Some(end))?;
    let client = ended.recv().context("nobody listens any more")?;
    let _ = fs::remove_file(place.control());
    let _ = lab.shut_down();
    if let Some(mut client) = client {
        let _ = control::done(&mut client, "");
    }
    Ok(())
}

/// Ends a lab, and removes all its files.
///
/// # Errors
/// The lab does not end.
pub fn down(name: Option<String>, as_json: bool) -> Result<()> {
    let place = match name {
        Some(name) => Place::of(&name)?,
        None => Place::chosen(None)?,
    };
    let was_up = place.is_up()?;
    if was_up {
        // The lab may be starting or ending.
        let asked = control::ask(&place.control(), &Ask::Down);
        if !place.wait_end(END)? {
            asked?;
            bail!("the lab {} did not end in time", place.name);
        }
    }
    if as_json {
        say!("{}", json!({ "name": place.name, "was_up": was_up }));
    } else if was_up {
        say!("lab {}: is down", place.name);
    } else {
        say!("lab {}: was not up", place.name);
    }
    Ok(())
}

/// Shows one lab, or all.
///
/// # Errors
/// A lab is not up, or does not answer.
pub fn status(name: Option<String>, as_json: bool) -> Result<()> {
    let places = match name {
        Some(name) => vec![Place::chosen(Some(name))?],
        None => Place::all()?,
    };
    let mut all = Vec::new();
    for place in &places {
        all.push(place.status()?);
    }
    if as_json {
        say!("{}", serde_json::to_string_pretty(&all)?);
    } else if all.is_empty() {
        say!("no lab is up");
    } else {
        let tables: Vec<_> = all.iter().map(Status::table).collect();
        say!("{}", tables.join("\n").trim_end());
    }
    Ok(())
}

/// Prints logs of VMs' consoles, of `vrnicd`, of `qemu-VM`, or of the `supervisor`; the ends of all logs if none is
/// named.
///
/// # Errors
/// There is no log with this name.
pub fn logs(
    lab: Option<String>,
    names: &[String],
    lines: Option<usize>,
    as_json: bool,
) -> Result<()> {
    let place = Place::chosen(lab)?;
    let mut files = vec![("supervisor".to_owned(), place.log())];
    for entry in fs::read_dir(place.logs())? {
        let path = entry?.path();
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let name = stem
            .strip_prefix("console-")
            .map_or(stem.clone(), str::to_owned);
        files.push((name, path));
    }
    files.sort();
    let lines = lines.or(if names.is_empty() { Some(20) } else { None });
    let mut texts = serde_json::Map::new();
    for name in names {
        if !files.iter().any(|(known, _)| known == name) {
            let known: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
            bail!("no log `{name}`; there are {}", known.join(", "));
        }
    }
    files.retain(|(name, _)| names.is_empty() || names.contains(name));
    for (name, path) in &files {
        let text = tail(path, lines.unwrap_or(usize::MAX));
        if as_json {
            texts.insert(name.clone(), json!(text));
            continue;
        }
        if files.len() > 1 {
            say!("==> {name} ({}) <==", path.display());
        }
        say!("{text}");
    }
    if as_json {
        say!("{}", serde_json::to_string_pretty(&texts)?);
    }
    Ok(())
}

/// Splits one end of a copy into the VM, if any, and the path.
fn end(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((vm, path)) if !vm.is_empty() && !vm.contains('/') => (Some(vm), path),
        _ => (None, text),
    }
}

/// Copies a file or a directory into a VM, or out of it.
///
/// # Errors
/// The source cannot be read, or the destination cannot be written.
pub fn copy(control: &Path, from: &str, to: &str, as_json: bool) -> Result<()> {
    match (end(from), end(to)) {
        ((None, host), (Some(vm), guest)) => {
            let request = Ask::CopyIn {
                vm: vm.to_owned(),
                host: Path::new(host)
                    .canonicalize()
                    .with_context(|| host.to_owned())?,
                guest: guest.to_owned(),
            };
            control::ask(control, &request)?;
        }
        ((Some(vm), guest), (None, host)) => copy_out(control, vm, guest, Path::new(host))?,
        _ => bail!("give one VM:PATH and one path of the host"),
    }
    if as_json {
        say!("{}", json!({ "from": from, "to": to }));
    }
    Ok(())
}

/// Copies from a VM. The data are first unpacked in a separate directory.
fn copy_out(control: &Path, vm: &str, guest: &str, host: &Path) -> Result<()> {
    let name = Path::new(guest)
        .file_name()
        .with_context(|| format!("{guest}: not the path of a file or directory"))?;
    let into = if host.is_dir() {
        host.join(name)
    } else {
        host.to_path_buf()
    };
    let parent = match into.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let scratch = crate::process::scratch_in(parent)?;
    let mut tar = Command::new("tar")
        .args(["--no-same-owner", "--no-same-permissions", "-xf", "-", "-C"])
        .arg(scratch.path())
        .stdin(Stdio::piped())
        .spawn()
        .context("running tar")?;
    let mut pipe = tar.stdin.take().context("a pipe was asked for")?;
    let script = "cd \"$(dirname \"$1\")\" && exec tar -cf - -- \"$(basename \"$1\")\"";
    let request = Ask::Exec {
        vm: vm.to_owned(),
        argv: ["sh", "-c", script, "sh", guest]
            .map(str::to_owned)
            .to_vec(),
        timeout: 3600,
    };
    let mut errors = Vec::new();
    let (code, _) = control::run(control, &request, &mut |stream, bytes| {
        match stream {
            vrnic_lab::protocol::Stream::Out => pipe.write_all(bytes)?,
            vrnic_lab::protocol::Stream::Err => errors.extend_from_slice(bytes),
        }
        Ok(())
    })?;
    drop(pipe);
    let unpacked = tar.wait()?;
    ensure!(
        code == 0,
        "VM {vm}: {}",
        String::from_utf8_lossy(&errors).trim()
    );
    ensure!(unpacked.success(), "tar ended with {unpacked}");
    fs::rename(scratch.path().join(name), &into)
        .with_context(|| format!("writing {}", into.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::{Place, check_owner, end};

    #[test]
    fn the_directory_of_another_user_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let user = nix::unistd::geteuid().as_raw();
        let refused = |path, user| {
            let said = check_owner(path, user).unwrap_err().to_string();
            assert!(
                said.contains("only you may write to: remove it, or set"),
                "{said}"
            );
        };
        let base = directory.path().join("base");
        fs::create_dir(&base).unwrap();
        check_owner(&base, user).unwrap();
        refused(&base, user + 1);
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&base, &link).unwrap();
        refused(&link, user);
        fs::set_permissions(&base, fs::Permissions::from_mode(0o777)).unwrap();
        refused(&base, user);
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        for name in ["../other", "", "a/b", ".", "sixteen-letters-"] {
            assert!(Place::of(name).is_err(), "{name}");
        }
    }

    #[test]
    fn ends_of_copies() {
        assert_eq!(end("a:/tmp/x"), (Some("a"), "/tmp/x"));
        assert_eq!(end("./a:b"), (None, "./a:b"));
        assert_eq!(end("/tmp/x"), (None, "/tmp/x"));
        assert_eq!(end(":x"), (None, ":x"));
    }
}
