// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Recordings of devices on their way to files.
//!
//! The engine makes the recording ([`vrnic_engine::recording`]). The worker takes it piece by piece and passes the
//! pieces to a thread that writes the file. The worker never waits for that thread. If the file is too slow, the
//! recording ends, because one with a gap could not be replayed.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tracing::{info, warn};
use vrnic_engine::recording::{Recorder, ending};

use crate::capture::Sink;
use crate::control::protocol;

/// Default size limit of a recording in bytes.
pub const MAX_BYTES: u64 = 256 << 20;
/// Smallest piece that is worth passing on, in bytes.
const PIECE: usize = 256 << 10;
/// Largest number of pieces that can wait for the file.
const WAITING: usize = 256;
/// How long a file may accept nothing before it is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Interval between checks whether a file is finished.
const LOOK: Duration = Duration::from_millis(2);

/// Opens a file for a recording. A recording is as confidential as the guest, so the file must belong to this user, is
/// emptied, and becomes readable by its owner only. Anything but a regular file, such as a pipe, is opened as it is.
///
/// # Errors
/// The file cannot be opened, or belongs to another user.
pub fn create_private(path: &Path) -> std::io::Result<File> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let found = file.metadata()?;
    if found.is_file() {
        if found.uid() != rustix::process::geteuid().as_raw() {
            let why = "the file belongs to another user, who could read the recording";
            return Err(Error::new(ErrorKind::PermissionDenied, why));
        }
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.set_len(0)?;
    }
    Ok(file)
}

/// Creates a file for a recording like [`create_private`], but never reuses an existing file: whatever is at `path` is
/// removed first. So no other process has the file open, and symbolic links are not followed.
///
/// # Errors
/// The file cannot be opened, or the existing one cannot be removed, for example because it belongs to another user.
pub fn replace_private(path: &Path) -> std::io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// How a recording ended.
#[derive(Debug, Default)]
struct End {
    /// The reason; none while it waits or runs.
    why: Option<String>,
    /// Whether a piece is missing, so that the recording itself lacks its end.
    cut: bool,
}

/// Progress of a recording.
#[derive(Debug)]
pub struct Progress {
    /// Size of the file in bytes.
    bytes: AtomicU64,
    /// Why it ended; none while it waits or runs.
    ended: Mutex<Option<String>>,
}

impl Progress {
    /// Returns whether the file is complete.
    pub fn is_finished(&self) -> bool {
        lock(&self.ended).is_some()
    }

    /// Waits until the file is complete. Returns false if that has not happened by the deadline.
    pub fn wait(&self, deadline: Instant) -> bool {
        while !self.is_finished() {
            if Instant::now() > deadline {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

/// A recording that waits for the driver of its device, runs, or has ended.
#[derive(Debug)]
pub struct Tape {
    file: String,
    limit: u64,
    /// Channel for pieces; none once the last one has been sent.
    sender: Option<SyncSender<Vec<u8>>>,
    /// Tells the thread what to do when it has written everything. Locked only when the recording ends.
    end: Arc<Mutex<End>>,
    progress: Arc<Progress>,
    runs: bool,
}

/// Locks a mutex even if it is poisoned: the data is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tape {
    /// Creates a recording of about `limit` bytes at most, to a file that messages call `name`.
    ///
    /// # Errors
    /// The file is not open for writing.
    pub fn new(file: File, name: &str, limit: u64) -> Result<Self> {
        let name = name.escape_debug().to_string();
        let sink = Sink::new(file, PATIENCE).with_context(|| format!("cannot record to {name}"))?;
        Self::begun(name, limit, move || Ok(sink), |written| written)
    }

    /// A whole recording, which ended because of `why`, on its way to the file at `path`. It takes the place of another
    /// one there when it is complete. Until then, its name ends in `.new`. The caller does not wait for that, either.
    ///
    /// # Errors
    /// There is no thread for it. What is wrong with the file becomes the reason why the recording ended.
    pub fn left(path: PathBuf, recording: Vec<u8>, why: &str) -> Result<Self> {
        let name = path.display().to_string().escape_debug().to_string();
        let mut new = path.clone().into_os_string();
        new.push(".new");
        let new = PathBuf::from(new);
        let incomplete = new.clone();
        let open = move || Sink::new(replace_private(&new)?, PATIENCE);
        let keep = move |written: std::io::Result<String>| match written {
            Ok(why) => std::fs::rename(&incomplete, &path).map(|()| why),
            Err(error) => {
                let _ = std::fs::remove_file(&incomplete);
                Err(error)
            }
        };
        let mut tape = Self::begun(name, u64::MAX, open, keep)?;
        tape.runs = true;
        if let Some(sender) = &tape.sender {
            // There is room for the first.
            let _ = sender.try_send(recording);
        }
        tape.end(why);
        Ok(tape)
    }

    /// A recording whose file is called `name`, with control characters escaped. Its own thread opens the file, and
    /// calls `keep` with why the recording ended, or what is wrong with the file.
    fn begun(
        name: String,
        limit: u64,
        open: impl FnOnce() -> std::io::Result<Sink> + Send + 'static,
        keep: impl FnOnce(std::io::Result<String>) -> std::io::Result<String> + Send + 'static,
    ) -> Result<Self> {
        let (sender, receiver) = sync_channel::<Vec<u8>>(WAITING);
        let end = Arc::new(Mutex::new(End::default()));
        let progress = Arc::new(Progress {
            bytes: AtomicU64::new(0),
            ended: Mutex::new(None),
        });
        let (told, written, file) = (end.clone(), progress.clone(), name.clone());
        std::thread::Builder::new()
            .name("recording".into())
            .spawn(move || {
                let why = open().and_then(|sink| write(sink, &receiver, &told, &written.bytes));
                let why = keep(why).unwrap_or_else(|error| {
                    warn!(file, %error, "a recording cannot be written");
                    error.to_string()
                });
                info!(file, why, "recording ended");
                *lock(&written.ended) = Some(why);
            })?;
        Ok(Self {
            file: name,
            limit,
            sender: Some(sender),
            end,
            progress,
            runs: false,
        })
    }

    /// Returns the progress of its file, which goes on when the recording is dropped.
    pub fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Returns whether it waits for the driver of its device.
    pub fn waits(&self) -> bool {
        !self.runs && self.sender.is_some()
    }

    /// Returns whether nothing more will be passed on.
    pub fn is_over(&self) -> bool {
        self.sender.is_none()
    }

    /// Begins the recording and returns the limit in bytes.
    pub fn begin(&mut self) -> u64 {
        self.runs = true;
        self.limit
    }

    /// Passes on what was recorded, if it is enough or if `all` is set. Returns false if the recording ended with that.
    pub fn pass_on(&mut self, recorder: &mut Recorder, all: bool) -> bool {
        let waiting = recorder.waiting();
        if waiting == 0 || (waiting < PIECE && !all && !recorder.is_over()) {
            return true;
        }
        let Some(sender) = &self.sender else {
            return false;
        };
        let over = recorder.is_over();
        if sender.try_send(recorder.take()).is_err() {
            *lock(&self.end) = End {
                why: Some("the file is too slow".into()),
                cut: true,
            };
            self.sender = None;
            return false;
        }
        if over {
            self.end("full");
        }
        !over
    }

    /// Ends with the reason `why`: nothing more will be passed on.
    pub fn end(&mut self, why: &str) {
        if let Some(sender) = self.sender.take() {
            // Set the reason first: the thread looks for it when the channel is closed.
            lock(&self.end).why.get_or_insert_with(|| why.to_owned());
            drop(sender);
        }
    }

    /// Ends the recorder, then [`end`](Self::end)s.
    pub fn finish(&mut self, mut recorder: Box<Recorder>, why: &str) {
        if !recorder.is_over() {
            // Set the reason first: `pass_on` would set another one when it finds that the recorder has ended.
            lock(&self.end).why.get_or_insert_with(|| why.to_owned());
            recorder.end(why);
        }
        if self.pass_on(&mut recorder, true) {
            self.end(why);
        }
    }

    /// Describes the progress.
    pub fn describe(&self, device: &str) -> protocol::Recording {
        let ended = lock(&self.progress.ended).clone();
        protocol::Recording {
            device: device.to_owned(),
            file: self.file.clone(),
            state: match ended {
                Some(why) => format!("ended: {why}"),
                None if self.is_over() => "ending".into(),
                None if self.runs => "recording".into(),
                None => "waiting for the driver".into(),
            },
            bytes: self.progress.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Writes pieces until no more come. Returns why it stopped.
fn write(
    mut sink: Sink,
    pieces: &Receiver<Vec<u8>>,
    end: &Mutex<End>,
    bytes: &AtomicU64,
) -> std::io::Result<String> {
    let mut put = |piece: &[u8]| {
        sink.write_all(piece)?;
        bytes.fetch_add(piece.len() as u64, Ordering::Relaxed);
        Ok::<_, Error>(())
    };
    while let Ok(piece) = pieces.recv() {
        put(&piece)?;
    }
    let End { why, cut } = std::mem::take(&mut *lock(end));
    let why = why.unwrap_or_else(|| "stopped".into());
    if cut {
        put(&ending(&why))?;
    }
    sink.flush()?;
    Ok(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use vrnic_engine::recording::{Recording, replay};
    use vrnic_engine::{Rnic, RnicConfig};

    fn ended(tape: &Tape) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let state = tape.describe("x").state;
            if state.starts_with("ended") {
                return state;
            }
            assert!(Instant::now() < deadline, "{state}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_file_that_takes_the_place_of_another_is_new() {
        let directory = tempfile::tempdir().unwrap();
        let (path, victim) = (directory.path().join("x"), directory.path().join("victim"));
        std::fs::write(&victim, "kept").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for text in ["first", "second"] {
            let mut file = replace_private(&path).unwrap();
            assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "kept");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(replace_private(&path).is_err());
    }

    #[test]
    fn a_whole_recording_takes_the_place_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        for text in ["a long first", "second"] {
            let tape = Tape::left(path.clone(), text.into(), "it broke").unwrap();
            assert!(tape.is_over());
            assert_eq!(ended(&tape), "ended: it broke");
            assert!(tape.progress().is_finished());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        let tape = Tape::left(path, b"third".into(), "it broke").unwrap();
        let state = ended(&tape);
        assert!(state.contains("directory"), "{state}");
        assert!(tape.progress().is_finished());
    }

    #[test]
    fn a_file_has_what_was_recorded() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tape = Tape::new(file.reopen().unwrap(), "a\nb", 1 << 20).unwrap();
        assert!(tape.waits());
        assert_eq!(tape.describe("x").state, "waiting for the driver");
        let mut rnic = Rnic::recorded(RnicConfig::default(), "x", tape.begin());
        assert!(!tape.waits());
        for value in 0..1000 {
            rnic.doorbell(0, value);
            assert!(tape.pass_on(rnic.recorder().unwrap(), value % 100 == 0));
        }
        tape.finish(rnic.take_recorder().unwrap(), "reset");
        assert_eq!(ended(&tape), "ended: reset");
        let bytes = std::fs::read(file.path()).unwrap();
        let view = tape.describe("x");
        assert_eq!(
            (view.bytes, view.file.as_str()),
            (bytes.len() as u64, r"a\nb")
        );
        assert_eq!(replay(&bytes), Ok(1000));
        let mut recording = Recording::new(&bytes).unwrap();
        assert_eq!(recording.by_ref().count(), 1000);
        assert_eq!(recording.ended(), Some("reset"));
    }

    #[test]
    fn a_recording_ends_when_it_is_full() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut tape = Tape::new(file.reopen().unwrap(), "a", 1000).unwrap();
        let mut rnic = Rnic::recorded(RnicConfig::default(), "x", tape.begin());
        let mut value = 0;
        while tape.pass_on(rnic.recorder().unwrap(), false) {
            rnic.doorbell(0, value);
            value += 1;
            assert!(value < 1000);
        }
        assert!(tape.is_over());
        assert_eq!(ended(&tape), "ended: full");
        assert_eq!(
            replay(&std::fs::read(file.path()).unwrap()),
            Ok(value.into())
        );
    }

    #[test]
    fn the_thread_never_misses_the_reason() {
        for _ in 0..1000 {
            let mut tape = Tape::new(tempfile::tempfile().unwrap(), "a", 1000).unwrap();
            tape.end("why");
            assert_eq!(ended(&tape), "ended: why");
        }
    }

    #[test]
    fn a_recording_whose_file_is_too_slow_says_so_itself() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut tape = Tape::new(file, "a", u64::MAX).unwrap();
        let mut rnic = Rnic::recorded(RnicConfig::default(), "x", tape.begin());
        // Records more than the pipe and the waiting pieces can hold.
        let mut passed = 0;
        while !tape.is_over() {
            for value in 0..5000 {
                rnic.doorbell(value % 7, passed);
            }
            if tape.pass_on(rnic.recorder().unwrap(), true) {
                passed += 1;
            }
            assert!(passed < 2 * WAITING as u32);
        }
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(ended(&tape), "ended: the file is too slow");
        assert_eq!(replay(&bytes), Ok(u64::from(passed) * 5000));
        let mut recording = Recording::new(&bytes).unwrap();
        assert_eq!(recording.by_ref().count() as u32, passed * 5000);
        assert_eq!(recording.ended(), Some("the file is too slow"));
    }

    #[test]
    fn a_file_that_cannot_be_written_takes_no_place() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a-crash.vrnic");
        std::fs::write(&path, "old").unwrap();
        // No file can have this name.
        let new = directory.path().join("a-crash.vrnic.new");
        std::fs::create_dir(&new).unwrap();
        let tape = Tape::left(path.clone(), b"new".to_vec(), "why").unwrap();
        assert_ne!(ended(&tape), "ended: why");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        std::fs::remove_dir(&new).unwrap();
        let tape = Tape::left(path.clone(), b"new".to_vec(), "why").unwrap();
        assert_eq!(ended(&tape), "ended: why");
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert!(!new.exists());
    }

    #[test]
    fn only_the_user_may_read_a_recording() {
        let directory = tempfile::tempdir().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        let path = directory.path().join("new");
        create_private(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        std::fs::write(&path, "what others could read").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        create_private(&path).unwrap();
        assert_eq!((mode(&path), path.metadata().unwrap().len()), (0o600, 0));
        // Root may write files of other users.
        if std::os::unix::fs::chown(&path, Some(1234), None).is_ok() {
            std::fs::write(&path, "precious").unwrap();
            let error = create_private(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
            assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        }
        assert!(create_private(Path::new("/dev/null")).is_ok());
        assert!(create_private(directory.path()).is_err());
    }

    #[test]
    fn a_file_that_is_not_for_writing_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(file.path()).unwrap();
        assert!(Tape::new(file, "a", 1000).is_err());
    }
}
