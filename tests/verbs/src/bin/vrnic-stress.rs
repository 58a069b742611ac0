// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Data-verifying stress over verbs, in loopback or between two machines.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use verbs_tests::args::Args;
use verbs_tests::control::Control;
use verbs_tests::memory::sleeping_child;
use verbs_tests::rng::fresh_seed;
use verbs_tests::stress::endpoint::{Options, Totals};
use verbs_tests::stress::{During, Failure, Outcome, datagrams, endpoint};
use verbs_tests::verbs::{
    Context, GidEntry, Interface, event_name, failed_destroys, register_on_demand,
};
use verbs_tests::verbs::{EVENT_COMM_EST, EVENT_GID_CHANGE, EVENT_PORT_ACTIVE};

const USAGE: &str = "\
vrnic-stress [options]              both ends in this process (loopback)
vrnic-stress [options] --server     wait for a client
vrnic-stress [options] --client HOST

Sends random SEND, WRITE, READ and atomic traffic in both directions over RC QPs, and checks every byte and every
completion. If both devices support FLUSH and ATOMIC_WRITE, QPs of the extended interface use them too.
Both ends need the same --threads and --ud. The client sets all other options (in loopback: this process).

  --device NAME     RDMA device (default: the first)
  --gid N           GID index (default: RoCE v2 over IPv4 if there is one)
  --port N          TCP port of the control connection (default 18600)
  --seed N          use this seed, to repeat a run
  --seconds N       start new batches for N seconds (default 10)
  --batches N       … or until each QP has run N batches
  --qps N           QPs per thread (default 4)
  --threads N       threads, each with its own QPs (default 1)
  --max-size N      maximum message size in bytes (default 1048576)
  --batch-ops N     maximum number of operations between two checks of all memory (default 24)
  --sges N          maximum number of scatter/gather entries (default 8)
  --sq-depth N      send queue depth (default 32)
  --cqs N           completion queues per thread (default 3)
  --mtu N           path MTU as an enumerator, 1 = 256 … 5 = 4096 (default: the port's MTU)
  --ack-timeout N   wait 4.096 us * 2^N for an acknowledgement (default 17)
  --patience N      fail after N seconds without progress (default 60)
  --events          sleep on completion events instead of polling
  --rnr             post too few receives from time to time
  --srq             use one shared receive queue for all QPs of a thread, and resize it during the run
  --on-demand       use on-demand regions, and fork from time to time so that pages move
  --no-atomics      use no atomics, ATOMIC_WRITE or FLUSH
  --interface X     legacy, extended (ibv_wr_*, ibv_start_poll) or mixed (default)
  --ud              also send datagrams
  --ud-loss         do not treat lost datagrams as errors
";

const VALUES: &[&str] = &[
    "device",
    "gid",
    "port",
    "seed",
    "seconds",
    "batches",
    "qps",
    "threads",
    "max-size",
    "batch-ops",
    "sges",
    "sq-depth",
    "cqs",
    "mtu",
    "ack-timeout",
    "patience",
    "interface",
    "client",
];
const FLAGS: &[&str] = &[
    "events",
    "rnr",
    "srq",
    "on-demand",
    "no-atomics",
    "ud",
    "ud-loss",
    "server",
];

/// One end's share: its device and what it runs on each control connection.
struct Side {
    context: Arc<Context>,
    gid: GidEntry,
    options: Options,
    number: u64,
}

impl Side {
    fn run(self, mut connections: Vec<Control>, ud: Option<bool>) -> Outcome<Totals> {
        let datagram_connection = ud.and_then(|_| connections.pop());
        let mut threads = Vec::new();
        for (n, control) in connections.into_iter().enumerate() {
            let (context, gid, side) = (self.context.clone(), self.gid, self.number);
            let mut options = self.options.clone();
            options.seed = options.seed.wrapping_add(n as u64 * 0x1_0000_0000);
            threads.push(std::thread::spawn(move || {
                endpoint::run(&context, gid, options, side, control)
            }));
        }
        if let (Some(control), Some(may_lose)) = (datagram_connection, ud) {
            let (context, gid, side, seed) = (
                self.context.clone(),
                self.gid,
                self.number,
                self.options.seed,
            );
            let duration = self.options.duration.unwrap_or(Duration::from_secs(2));
            threads.push(std::thread::spawn(move || {
                let totals = datagrams::run(&context, gid, seed, duration, may_lose, side, control)
                    .map_err(|e| Failure(format!("UD: {e}")))?;
                println!(
                    "side {side} UD: {} datagrams checked, {} lost",
                    totals.batches, totals.starved
                );
                Ok(totals)
            }));
        }
        let mut sum = Totals::default();
        for thread in threads {
            let totals = thread
                .join()
                .map_err(|_| Failure("a thread panicked".into()))??;
            sum.ops += totals.ops;
            sum.bytes += totals.bytes;
            sum.placed += totals.placed;
            sum.batches += totals.batches;
            sum.events += totals.events;
            sum.starved += totals.starved;
        }
        while let Some(event) = self.context.async_event(Duration::ZERO) {
            if ![EVENT_COMM_EST, EVENT_GID_CHANGE, EVENT_PORT_ACTIVE].contains(&event.kind) {
                return Err(Failure(format!(
                    "async event {} for {:?}",
                    event_name(event.kind),
                    event.object
                )));
            }
        }
        self.context.close().during("closing the device")?;
        Ok(sum)
    }
}

fn options(args: &Args, seed: u64, mtu: i32) -> Options {
    let max_size = args.get("max-size").unwrap_or(1 << 20);
    Options {
        seed,
        qps: args.get("qps").unwrap_or(4),
        max_size: std::cmp::max(max_size, 64),
        batch_ops: std::cmp::max(args.get("batch-ops").unwrap_or(24), 1),
        sges: std::cmp::max(args.get("sges").unwrap_or(8), 1),
        sq_depth: std::cmp::max(args.get("sq-depth").unwrap_or(32), 8),
        cqs: args.get("cqs").unwrap_or(3),
        events: args.flag("events"),
        rnr: args.flag("rnr"),
        srq: args.flag("srq"),
        no_atomics: args.flag("no-atomics"),
        interface: match args.get::<String>("interface").as_deref() {
            Some("legacy") => Some(Interface::Legacy),
            Some("extended") => Some(Interface::Extended),
            _ => None,
        },
        duration: (args.get::<u64>("batches").is_none())
            .then(|| Duration::from_secs(args.get("seconds").unwrap_or(10))),
        batches: args.get("batches"),
        mtu: args.get("mtu").unwrap_or(mtu),
        ack_timeout: args.get("ack-timeout").unwrap_or(17),
        patience: Duration::from_secs(args.get("patience").unwrap_or(60)),
    }
}

fn run(args: &Args, seed: u64) -> Outcome<Totals> {
    let device: Option<String> = args.get("device");
    let threads: usize = args.get("threads").unwrap_or(1);
    let ud = args.flag("ud").then(|| args.flag("ud-loss"));
    let port: u16 = args.get("port").unwrap_or(18600);
    let count = threads + usize::from(ud.is_some());
    let open = |side: u64| -> Outcome<Side> {
        let context = Context::open(device.as_deref()).during("opening the device")?;
        let gid = context.gid(args.get("gid")).during("looking for a GID")?;
        let mtu = context.port_attr().during("ibv_query_port")?.active_mtu;
        println!(
            "side {side}: {} gid[{}] = {}",
            context.name(),
            gid.index,
            gid.gid
        );
        Ok(Side {
            context,
            gid,
            options: options(args, seed, mtu),
            number: side,
        })
    };
    if args.flag("server") {
        let side = open(1)?;
        let mut listener = Control::listener(port).during("listening")?;
        let connections = (0..count)
            .map(|_| listener.accept())
            .collect::<Result<Vec<_>, _>>()
            .during("accepting")?;
        return side.run(connections, ud);
    }
    if let Some(host) = args.get::<String>("client") {
        let side = open(0)?;
        let patience = Duration::from_secs(30);
        let mut connections = Vec::new();
        for _ in 0..count {
            connections.push(Control::connect(&host, port, patience).during("connecting")?);
        }
        return side.run(connections, ud);
    }
    let pairs = (0..count)
        .map(|_| Control::pair())
        .collect::<Result<Vec<_>, _>>()
        .during("creating a socket pair")?;
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let (zero, one) = (open(0)?, open(1)?);
    let other = std::thread::spawn(move || one.run(theirs, ud));
    let mine = zero.run(ours, ud);
    let other = other
        .join()
        .map_err(|_| Failure("a thread panicked".into()))?;
    match (mine, other) {
        (Ok(mut mine), Ok(other)) => {
            mine.ops += other.ops;
            mine.bytes += other.bytes;
            mine.placed += other.placed;
            mine.batches += other.batches;
            mine.events += other.events;
            mine.starved += other.starved;
            Ok(mine)
        }
        // The end that failed first closed the connection; both say something.
        (Err(a), Err(b)) => Err(Failure(format!("{a}; other end: {b}"))),
        (Err(e), _) | (_, Err(e)) => Err(e),
    }
}

fn main() -> ExitCode {
    let args = Args::parse(USAGE, VALUES, FLAGS);
    let seed = args.get("seed").unwrap_or_else(fresh_seed);
    println!("vrnic-stress seed {seed}");
    if args.flag("on-demand") {
        register_on_demand();
        std::thread::spawn(|| {
            while let Ok(child) = sleeping_child() {
                std::thread::sleep(Duration::from_millis(20));
                drop(child);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
    }
    let begin = Instant::now();
    match run(&args, seed) {
        Ok(totals) if failed_destroys() == 0 => {
            println!(
                "PASS: {} operations, {} bytes, {} batches checked, {} events, {} empty queues, {} flushes and atomic writes, {:.1} s",
                totals.ops,
                totals.bytes,
                totals.batches,
                totals.events,
                totals.starved,
                totals.placed,
                begin.elapsed().as_secs_f64()
            );
            ExitCode::SUCCESS
        }
        Ok(_) => {
            println!(
                "FAIL (seed {seed}): {} objects could not be destroyed",
                failed_destroys()
            );
            ExitCode::FAILURE
        }
        Err(e) => {
            println!("FAIL (seed {seed}): {e}");
            ExitCode::FAILURE
        }
    }
}
