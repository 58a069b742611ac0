// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Many objects or processes at once: that they work, and what one costs.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_tests::args::Args;
use verbs_tests::ensure;
use verbs_tests::memory::{Memory, PAGE};
use verbs_tests::stress::{During, Failure, Outcome};
use verbs_tests::verbs::{
    ACCESS_LOCAL_WRITE, Context, Cq, GidEntry, Mr, Path, Pd, Qp, QpConfig, SendOp, SendWr,
    WC_SUCCESS, failed_destroys,
};

const USAGE: &str = "\
vrnic-scale [options] qp|mr|process COUNT

Creates COUNT queue pairs, memory regions or processes that exist at the same time, uses them, and prints the cost of one.
Each process has its own context, queue pair and region.

  --device NAME     RDMA device (default: the first)
  --gid N           GID index (default: RoCE v2 over IPv4 if there is one)
  --hold FILE       keep the objects until FILE exists
";

/// Length of the message that shows that something works.
const MESSAGE: usize = 3000;
/// Pages that so many regions share that each has one.
const PAGES: usize = 16_384;
/// How long the message may take; a machine with hundreds of processes is busy.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where objects are made.
struct Place {
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    gid: GidEntry,
}

impl Place {
    fn open(device: Option<&str>, gid: Option<u8>) -> Outcome<Self> {
        let context = Context::open(device).during("opening the device")?;
        let pd = Pd::new(&context).during("creating a PD")?;
        let cq = Cq::new(&context, 16).during("creating a CQ")?;
        let gid = context.gid(gid).during("looking for a GID")?;
        Ok(Self { pd, cq, gid })
    }

    fn qp(&self) -> Outcome<Qp> {
        let smallest = QpConfig {
            signal_all: true,
            ..QpConfig::smallest()
        };
        Qp::new(&self.pd, &self.cq, &self.cq, &smallest).during("creating a QP")
    }

    /// Connects a QP to itself.
    fn connect(&self, qp: &Qp) -> Outcome<()> {
        let path = Path {
            timeout: 20,
            access: ACCESS_LOCAL_WRITE,
            ..Path::to_self(self.gid, 3, qp.number())
        };
        qp.connect(&path).during("connecting")
    }

    /// Sends a message through a QP that is connected to itself, from a place in one region to another region.
    fn exchange(&self, qp: &Qp, from: (&Mr, usize), to: &Mr, key: u64) -> Outcome<()> {
        let (from, at) = from;
        from.memory().fill(at, MESSAGE, key, 0);
        qp.post_recv(&[(1, &[to.sge(0, MESSAGE)])])
            .map_err(|e| Failure(format!("posting a receive: {}", e.error)))?;
        qp.post_send(&[SendWr::new(2, SendOp::Send, &[from.sge(at, MESSAGE)])])
            .map_err(|e| Failure(format!("posting a send: {}", e.error)))?;
        for _ in 0..2 {
            let wc = self.cq.wait(PATIENCE).during("polling")?;
            let Some(wc) = wc else {
                return Err(Failure("no completion".into()));
            };
            ensure!(
                wc.status == WC_SUCCESS,
                "request {}: status {}",
                wc.wr_id,
                wc.status
            );
        }
        to.memory()
            .check(0, MESSAGE, key, 0)
            .map_err(|at| Failure(format!("byte {at} of the message is wrong")))
    }

    fn region(&self) -> Outcome<Mr> {
        Mr::new(&self.pd, 4096, ACCESS_LOCAL_WRITE).during("registering")
    }
}

/// Memory of this machine that is free for use, in bytes.
fn free_memory() -> Outcome<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").during("/proc/meminfo")?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    number
        .map(|kib| kib * 1024)
        .ok_or_else(|| Failure("/proc/meminfo has no MemAvailable".into()))
}

/// Makes `count` things, shows that they work, keeps and ends them, and prints what one of them costs.
fn measure<T>(
    what: &str,
    count: u32,
    hold: Option<&PathBuf>,
    make: impl FnMut(u32) -> Outcome<T>,
    works: impl FnOnce(&mut [T]) -> Outcome<()>,
    end: impl FnOnce(Vec<T>) -> Outcome<()>,
) -> Outcome<()> {
    let free = free_memory()?;
    let begin = Instant::now();
    let mut things = (0..count).map(make).collect::<Outcome<Vec<T>>>()?;
    let made = begin.elapsed();
    let taken = free.saturating_sub(free_memory()?);
    works(&mut things)?;
    let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(count);
    println!(
        "{what} {count}: make_us {:.2} bytes {}",
        each(made),
        taken / u64::from(count)
    );
    while hold.is_some_and(|file| !file.exists()) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let begin = Instant::now();
    end(things)?;
    println!("{what} {count}: end_us {:.2}", each(begin.elapsed()));
    Ok(())
}

/// A thousand of many things, the last too.
fn some<T>(things: &[T]) -> Vec<&T> {
    let step = things.len().div_ceil(1000);
    things.iter().rev().step_by(step).collect()
}

fn queue_pairs(place: &Place, count: u32, hold: Option<&PathBuf>) -> Outcome<()> {
    let regions = (place.region()?, place.region()?);
    let works = |qps: &mut [Qp]| {
        // All of those are connected at the same time.
        let some = some(qps);
        for qp in &some {
            place.connect(qp)?;
        }
        for (index, qp) in some.into_iter().enumerate() {
            place.exchange(qp, (&regions.0, 0), &regions.1, index as u64)?;
        }
        Ok(())
    };
    let end = |qps| {
        drop(qps);
        Ok(())
    };
    measure("qp", count, hold, |_| place.qp(), works, end)
}

fn memory_regions(place: &Place, count: u32, hold: Option<&PathBuf>) -> Outcome<()> {
    let memory = Arc::new(Memory::new(PAGES * PAGE).during("mmap")?);
    // What a page costs is not what a region costs.
    memory.set(0, PAGES * PAGE, 1);
    let target = place.region()?;
    let offset = |index: u32| index as usize % PAGES * PAGE;
    let make = |index| {
        Mr::of(&place.pd, &memory, offset(index), PAGE, ACCESS_LOCAL_WRITE).during("registering")
    };
    let works = |regions: &mut [Mr]| {
        let qp = place.qp()?;
        place.connect(&qp)?;
        for (index, region) in some(&(0..count).zip(regions).collect::<Vec<_>>()) {
            place.exchange(
                &qp,
                (region, offset(*index)),
                &target,
                u64::from(region.lkey()),
            )?;
        }
        Ok(())
    };
    let end = |regions| {
        drop(regions);
        Ok(())
    };
    measure("mr", count, hold, make, works, end)
}

/// Runs this program again, as one of many.
fn start(device: Option<&str>, gid: Option<u8>) -> Outcome<Child> {
    let mut command = Command::new(std::env::current_exe().during("finding this program")?);
    if let Some(device) = device {
        command.args(["--device", device]);
    }
    if let Some(gid) = gid {
        command.args(["--gid", &gid.to_string()]);
    }
    command
        .arg("one")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().during("starting a process")?;
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("a pipe");
    BufReader::new(output)
        .read_line(&mut line)
        .during("waiting for a message of a process")?;
    ensure!(
        line == "ready\n",
        "unexpected message of a process: {line:?}"
    );
    Ok(child)
}

/// Tells processes to do something, and waits for the answer of each.
fn all(processes: &mut [Child]) -> Outcome<()> {
    for process in &mut *processes {
        let input = process.stdin.as_mut().expect("a pipe");
        input
            .write_all(b"\n")
            .during("sending a message to a process")?;
    }
    for process in processes {
        let mut answer = [0; 1];
        let output = process.stdout.as_mut().expect("a pipe");
        output.read_exact(&mut answer).during("a process")?;
    }
    Ok(())
}

fn processes(
    device: Option<&str>,
    gid: Option<u8>,
    count: u32,
    hold: Option<&PathBuf>,
) -> Outcome<()> {
    let end = |mut processes: Vec<Child>| {
        for process in &mut processes {
            drop(process.stdin.take());
        }
        for mut process in processes {
            let status = process.wait().during("waiting for a process")?;
            ensure!(status.success(), "a process ended with {status}");
        }
        Ok(())
    };
    let works = |processes: &mut [Child]| all(processes);
    measure("process", count, hold, |_| start(device, gid), works, end)
}

/// One of many processes: makes its objects, and sends a message whenever it is told to, until nobody tells it more.
fn one(place: &Place) -> Outcome<()> {
    let (from, to) = (place.region()?, place.region()?);
    let qp = place.qp()?;
    println!("ready");
    let mut input = std::io::stdin().lock();
    let mut key = u64::from(std::process::id());
    while input.read(&mut [0; 1]).during("listening")? > 0 {
        place.connect(&qp)?;
        place.exchange(&qp, (&from, 0), &to, key)?;
        qp.reset().during("resetting")?;
        key += 1;
        print!("!");
        std::io::stdout().flush().during("answering")?;
    }
    Ok(())
}

fn run(args: &Args) -> Outcome<()> {
    let device: Option<String> = args.get("device");
    let (gid, hold) = (args.get("gid"), args.get::<PathBuf>("hold"));
    let place = || Place::open(device.as_deref(), gid);
    let words: Vec<&str> = args.words().iter().map(String::as_str).collect();
    match words[..] {
        ["one"] => one(&place()?),
        [kind, count] => {
            let count = count.parse().during("the number of objects")?;
            ensure!(count > 0, "the number must be at least 1");
            match kind {
                "qp" => queue_pairs(&place()?, count, hold.as_ref()),
                "mr" => memory_regions(&place()?, count, hold.as_ref()),
                "process" => processes(device.as_deref(), gid, count, hold.as_ref()),
                _ => Err(Failure(format!("there are no objects of kind {kind}"))),
            }
        }
        _ => Err(Failure(format!(
            "give the kind of object and the count\n\n{USAGE}"
        ))),
    }
}

fn main() -> ExitCode {
    let args = Args::parse(USAGE, &["device", "gid", "hold"], &[]);
    match run(&args) {
        Ok(()) if failed_destroys() == 0 => ExitCode::SUCCESS,
        Ok(()) => {
            println!("FAIL: {} objects could not be destroyed", failed_destroys());
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("FAIL: {error}");
            ExitCode::FAILURE
        }
    }
}
