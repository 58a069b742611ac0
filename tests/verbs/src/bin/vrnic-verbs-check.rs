// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Semantic checks of verbs, in loopback or between two machines.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use verbs_tests::args::Args;
use verbs_tests::check::errors::survive;
use verbs_tests::check::failure::{outlive, recover};
use verbs_tests::check::import;
use verbs_tests::check::peer::{self, Peer};
use verbs_tests::check::system_calls::data_path;
use verbs_tests::check::{Env, cases};
use verbs_tests::control::Control;
use verbs_tests::stress::{During, Failure, Outcome};
use verbs_tests::verbs::{Context, failed_destroys};

const USAGE: &str = "\
vrnic-verbs-check [options] [NAME…]             both ends in this process (loopback)
vrnic-verbs-check [options] --server            wait for a client
vrnic-verbs-check [options] --client HOST [NAME…]

Runs the cases whose name contains one of the NAMEs. Without a NAME, runs all cases.

  --device NAME     RDMA device (default: the first)
  --gid N           GID index (default: RoCE v2 over IPv4 if there is one)
  --port N          TCP port of the control connection (default 18601)
  --slow            also run cases that take minutes: every limit to its last object
  --survivor        connect, print a message, and expect the peer's machine to disappear
  --outlive         post requests, print a message, and expect the device to fail or disappear
  --recover         like --outlive, then run the cases when the device is back
  --own, --import   internal: act as a process of the cases `import`
  --data-path       internal: act as the process of the case `data-path-makes-no-system-call`
  --list            print the names of the cases
";

fn run(args: &Args) -> Outcome<usize> {
    let device: Option<String> = args.get("device");
    let gid: Option<u8> = args.get("gid");
    let port = args.get("port").unwrap_or(18601);
    if args.flag("server") {
        let control = Control::listener(port)
            .during("listening")?
            .accept()
            .during("accepting")?;
        peer::serve(device.as_deref(), gid, control)?;
        return Ok(0);
    }
    if args.flag("own") {
        import::own(device.as_deref(), gid, args.words())?;
        return Ok(0);
    }
    if args.flag("import") {
        import::import(gid, args.words())?;
        return Ok(0);
    }
    if args.flag("data-path") {
        data_path(device.as_deref(), gid)?;
        return Ok(0);
    }
    let control = if let Some(host) = args.get::<String>("client") {
        Control::connect(&host, port, Duration::from_secs(30)).during("connecting")?
    } else {
        let (ours, theirs) = Control::pair().during("creating a socket pair")?;
        let device = device.clone();
        std::thread::spawn(move || peer::serve(device.as_deref(), gid, theirs));
        ours
    };
    let mut peer = Peer::new(control);
    if args.flag("survivor") {
        let mut env = Env::new(device.as_deref(), gid, false, peer).during("connecting")?;
        survive(&mut env)?;
        env.finish()?;
        println!("the peer's disappearance was reported as the standard says");
        return Ok(0);
    }
    if args.flag("outlive") {
        let mut env = Env::new(device.as_deref(), gid, false, peer).during("connecting")?;
        outlive(&mut env, true)?;
        println!("all requests were flushed");
        return Ok(0);
    }
    if args.flag("recover") {
        let mut env = Env::new(device.as_deref(), gid, false, peer).during("connecting")?;
        outlive(&mut env, false)?;
        peer = recover(env, device.as_deref())?;
        println!("the device is back");
    }
    let infiniband = Context::open(device.as_deref())
        .and_then(|context| context.port_attr())
        .during("asking for the port's LID")?
        .lid
        != 0;
    let mut failures = 0;
    let mut count = 0;
    for (name, case) in cases() {
        if !args.words().is_empty() && !args.words().iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        // There, the subnet administrator has to give each group a LID.
        if infiniband && name.starts_with("multicast-") {
            println!("--    {name}: not run on InfiniBand");
            continue;
        }
        count += 1;
        let begin = Instant::now();
        let mut env = Env::new(device.as_deref(), gid, args.flag("slow"), peer).during(name)?;
        let outcome = case(&mut env);
        // Close also after a failure, or the next case would find what this one left.
        let (back, outcome) = match (env.finish(), outcome) {
            (Ok(peer), Ok(())) if failed_destroys() == 0 => (peer, Ok(())),
            (Ok(peer), Ok(())) => (
                peer,
                Err(Failure("an object could not be destroyed".into())),
            ),
            (Ok(peer), Err(e)) => (peer, Err(e)),
            (Err(e), Ok(())) => return Err(Failure(format!("{name}: {e}"))),
            (Err(close), Err(e)) => return Err(Failure(format!("{name}: {e}; then {close}"))),
        };
        peer = back;
        let took = begin.elapsed().as_secs_f64();
        match outcome {
            Ok(()) => println!("ok    {name} ({took:.1} s)"),
            Err(e) => {
                println!("FAIL  {name} ({took:.1} s): {e}");
                failures += 1;
            }
        }
    }
    if count == 0 {
        return Err(Failure("no case has this name".into()));
    }
    println!("{} of {count} cases passed", count - failures);
    Ok(failures)
}

fn main() -> ExitCode {
    let args = Args::parse(
        USAGE,
        &["device", "gid", "port", "client"],
        &[
            "server",
            "slow",
            "list",
            "survivor",
            "outlive",
            "recover",
            "own",
            "import",
            "data-path",
        ],
    );
    if args.flag("list") {
        for (name, _) in cases() {
            println!("{name}");
        }
        return ExitCode::SUCCESS;
    }
    match run(&args) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            println!("FAIL  {e}");
            ExitCode::FAILURE
        }
    }
}
