// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Processes that share a context. One imports the other's protection domain and memory region, and makes queues and
//! regions of its own. Either of the two may end first.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::pair::Loop;
use super::{BUFFER, Case, Env, expect};
use crate::ensure;
use crate::stress::{During, Failure, Outcome};
use crate::verbs::{
    ACCESS_ALL, Context, Errno, ImportedMr, Interface, Mr, Pd, Qp, SendOp, SendWr, Sge, WC_SUCCESS,
};

pub(super) const CASES: &[Case] = &[
    ("import-takes-part", takes_part),
    ("import-survives-its-importer", survives_importer),
    ("import-survives-its-owner", survives_owner),
];

/// Times that data moves there and back.
const ROUNDS: u64 = 40;
/// How long an importer waits for its owner to be killed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A region as work requests name it.
#[derive(Clone, Copy)]
struct Region {
    addr: u64,
    lkey: u32,
    rkey: u32,
}

impl Region {
    fn of(mr: &Mr) -> Self {
        Region {
            addr: mr.addr(0),
            lkey: mr.lkey(),
            rkey: mr.rkey(),
        }
    }
}

impl Loop {
    fn move_data(&self, qp: &Qp, op: SendOp<'_>, sge: Sge<'_>) -> Outcome<()> {
        qp.post_send(&[SendWr::new(1, op, &[sge])])
            .map_err(|e| Failure(format!("posting {op:?}: {}", e.error)))?;
        expect(&self.cq, 1, WC_SUCCESS).map(|_| ())
    }

    /// Reads the region, which has the pattern `key`, and writes the next pattern to it; then the device writes from
    /// it.
    fn round(&self, region: Region, key: u64) -> Outcome<()> {
        let memory = self.mr.memory();
        let (near, far) = (self.mr.sge(0, BUFFER), (region.addr, region.rkey));
        self.move_data(&self.qps[0], SendOp::Read(far.0, far.1), near)?;
        memory
            .check(0, BUFFER, key, 0)
            .map_err(|at| Failure(format!("what was read is wrong: {at:?}")))?;
        memory.fill(0, BUFFER, key + 1, 0);
        self.move_data(&self.qps[0], SendOp::Write(far.0, far.1), near)?;
        let sge = Sge::raw(region.addr, BUFFER as u32, region.lkey);
        let here = SendOp::Write(self.mr.addr(BUFFER), self.mr.rkey());
        self.move_data(&self.qps[1], here, sge)?;
        memory
            .check(BUFFER, BUFFER, key + 1, 0)
            .map_err(|at| Failure(format!("what was written is wrong: {at:?}")))
    }

    fn rounds(&self, region: Region, keys: std::ops::Range<u64>) -> Outcome<()> {
        for key in keys {
            self.round(region, key)
                .map_err(|e| Failure(format!("round {key}: {e}")))?;
        }
        Ok(())
    }
}

/// This program again, as `role`; `context` is its standard input.
fn helper(env: &Env, role: &str, words: &[&str], context: Option<OwnedFd>) -> Outcome<Child> {
    spawn(
        env.context.name(),
        env.gid.index,
        role,
        words,
        context,
        Stdio::piped(),
    )
}

fn spawn(
    device: &str,
    gid: u8,
    role: &str,
    words: &[&str],
    context: Option<OwnedFd>,
    output: Stdio,
) -> Outcome<Child> {
    let program = std::env::current_exe().during("finding this program")?;
    Command::new(program)
        .args(["--device", device, "--gid", &gid.to_string()])
        .arg(format!("--{role}"))
        .args(words)
        .stdin(context.map_or_else(Stdio::null, Stdio::from))
        .stdout(output)
        .spawn()
        .during("starting a process")
}

/// The process says that, and no more, and ends well.
fn says(mut child: Child, lines: &[&str]) -> Outcome<()> {
    let output = child.stdout.take().ok_or(Errno(libc::EPIPE))?;
    let said: Vec<String> = BufReader::new(output)
        .lines()
        .collect::<Result<_, _>>()
        .during("reading")?;
    let status = child.wait().during("waiting for a process")?;
    ensure!(
        said == lines && status.success(),
        "a process said {said:?} and ended with {status}"
    );
    Ok(())
}

/// What an importer needs to know.
fn words(mode: &str, pd: &Pd, mr: &Mr) -> [String; 4] {
    let (pd, mr, addr) = (pd.handle(), mr.handle(), mr.addr(0));
    [
        mode.into(),
        pd.to_string(),
        mr.to_string(),
        addr.to_string(),
    ]
}

fn takes_part(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    // A descriptor that nobody made a context with has none.
    let path = format!("/proc/self/fd/{}", env.context.command_fd());
    let empty = File::options().read(true).write(true).open(path)?;
    let imported = Context::import(empty.into()).map(|_| ());
    ensure!(
        imported == Err(Errno(libc::EINVAL)),
        "nothing was imported: {imported:?}"
    );

    let mr = env.buffer()?;
    mr.memory().fill(0, BUFFER, 1, 0);
    let words = words("leaves", &env.pd, &mr);
    let context = env.context.share().during("sharing the context")?;
    let importer = helper(
        env,
        "import",
        &words.each_ref().map(String::as_str),
        Some(context),
    )?;
    // Both use one doorbell page and one notify area.
    let own = env.buffer()?;
    own.memory().fill(0, BUFFER, 1, 0);
    let ours = Loop::new(&env.pd, env.gid, Interface::Legacy)?;
    ours.rounds(Region::of(&own), 1..ROUNDS + 1)?;
    says(importer, &["imported", "done"])?;
    mr.memory()
        .check(0, BUFFER, ROUNDS + 1, 0)
        .map_err(|at| Failure(format!("the importer's data did not arrive: {at:?}")))?;
    ours.rounds(Region::of(&own), ROUNDS + 1..2 * ROUNDS + 1)
}

fn survives_importer(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let owner = helper(env, "own", &["outlives"], None)?;
    says(owner, &["imported", "done", "the owner goes on"])
}

fn survives_owner(env: &mut Env) -> Outcome<()> {
    if !env.vrnic {
        return Ok(());
    }
    let mut owner = helper(env, "own", &["killed"], None)?;
    let output = owner.stdout.take().ok_or(Errno(libc::EPIPE))?;
    let mut lines = BufReader::new(output).lines();
    let first = lines.next().transpose().during("reading")?;
    owner.kill().during("killing the owner")?;
    owner.wait().during("waiting for the owner")?;
    let rest: Vec<String> = lines.collect::<Result<_, _>>().during("reading")?;
    ensure!(
        first.as_deref() == Some("imported") && rest == ["done"],
        "the importer said {first:?} {rest:?}"
    );
    Ok(())
}

/// The role `own`: has the context that an importer takes part in. Its end is that of the process.
pub fn own(device: Option<&str>, gid: Option<u8>, mode: &[String]) -> Outcome<()> {
    let context = Context::open(device).during("opening the device")?;
    let gid = context.gid(gid).during("looking for a GID")?;
    let pd = Pd::new(&context).during("ibv_alloc_pd")?;
    let mr = Mr::new(&pd, BUFFER, ACCESS_ALL).during("ibv_reg_mr")?;
    mr.memory().fill(0, BUFFER, 1, 0);
    let outlives = mode == ["outlives"];
    let words = words(if outlives { "aborts" } else { "is-left" }, &pd, &mr);
    let mut importer = spawn(
        context.name(),
        gid.index,
        "import",
        &words.each_ref().map(String::as_str),
        Some(context.share().during("sharing the context")?),
        Stdio::inherit(),
    )?;
    let status = importer.wait().during("waiting for the importer")?;
    ensure!(
        outlives && status.signal() == Some(libc::SIGABRT),
        "the importer ended with {status}"
    );
    // What it had is still there, since the context is; it disturbs nobody.
    Loop::new(&pd, gid, Interface::Legacy)?.rounds(Region::of(&mr), ROUNDS + 1..2 * ROUNDS + 1)?;
    println!("the owner goes on");
    std::process::exit(0)
}

/// The role `import`: takes part in the context that is its standard input.
pub fn import(gid: Option<u8>, words: &[String]) -> Outcome<()> {
    let [mode, numbers @ ..] = words else {
        return Err(Failure("nothing to import".into()));
    };
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|word| word.parse())
        .collect::<Result<_, _>>()
        .during("reading the handles")?;
    let &[pd_handle, mr_handle, addr] = &numbers[..] else {
        return Err(Failure("three numbers are needed".into()));
    };
    let (pd_handle, mr_handle) = (pd_handle as u32, mr_handle as u32);
    let owner = std::os::unix::process::parent_id();
    let context = std::io::stdin().as_fd().try_clone_to_owned()?;
    let context = Context::import(context).during("ibv_import_device")?;
    let gid = context.gid(gid).during("looking for a GID")?;
    for wrong in [mr_handle, 0xffff] {
        let imported = Pd::import(&context, wrong).map(|_| ());
        ensure!(imported.is_err(), "there is no domain {wrong}");
    }
    let pd = Pd::import(&context, pd_handle).during("ibv_import_pd")?;
    for wrong in [pd_handle, 0xffff] {
        let imported = ImportedMr::new(&pd, wrong).map(|_| ());
        ensure!(imported.is_err(), "there is no region {wrong}");
    }
    let mr = ImportedMr::new(&pd, mr_handle).during("ibv_import_mr")?;
    ensure!(
        mr.length() == BUFFER,
        "the region has {} bytes",
        mr.length()
    );
    let (lkey, rkey) = mr.keys();
    let region = Region { addr, lkey, rkey };
    let own = Loop::new(&pd, gid, Interface::Legacy)?;
    own.round(region, 1)?;
    println!("imported");
    if mode == "is-left" {
        let begin = Instant::now();
        while std::os::unix::process::parent_id() == owner {
            ensure!(begin.elapsed() < PATIENCE, "the owner is still running");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    own.rounds(region, 2..ROUNDS + 1)?;
    println!("done");
    if mode == "aborts" {
        std::process::abort();
    }
    Ok(())
}
