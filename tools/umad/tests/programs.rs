// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Unmodified OpenSM and infiniband-diags on a simulated subnet.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File, Permissions},
    io::{self, Read},
    os::unix::{fs::PermissionsExt, fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
    thread,
    time::{Duration, Instant},
};
use vrnic_infiniband::{
    attributes::{NodeInfo, id},
    mad::{MANAGEMENT_QKEY, Method, Route, Smp},
    packet::{Bth, Deth, Packet},
    subnet::{NodeId, Subnet},
    topology::Topology,
};
use vrnic_umad::Server;

/// Directories with what the programs' scripts run.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";
/// How long to wait for the effects of a program.
const PATIENCE: Duration = Duration::from_secs(120);
/// Configuration of a manager that soon notices changes and the loss of another manager.
const QUICK: &str = "sminfo_polling_timeout 200\npolling_retry_number 3\nsweep_interval 1\n";
/// A management key.
const KEY: &str = "0x1234567890abcdef";
/// Milliseconds that the programs wait for responses, because this machine may be busy.
const TIMEOUT: &str = "60000";

/// Returns the directory with the programs. They are those of the guest image, which run here with the image's loader
/// and libraries. The setup does not install them, because Debian's opensm starts itself.
fn programs() -> &'static Path {
    static PROGRAMS: OnceLock<PathBuf> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let image = concat!(env!("CARGO_MANIFEST_DIR"), "/../../build/setup/guest");
        let image = fs::canonicalize(image).expect("the guest image (make setup-guest)");
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let whole = scratch.join(format!(
            "programs-{}",
            image.file_name().expect("a name").display()
        ));
        if !whole.exists() {
            let new = tempfile::tempdir_in(scratch).expect("a directory");
            link_programs(&image, new.path()).expect("links to the programs");
            let made = fs::rename(new.path(), &whole);
            assert!(whole.exists(), "{made:?}");
        }
        whole
    })
}

/// Fills a directory with links to the scripts of an image, and to a script that runs the program of the link's name.
fn link_programs(image: &Path, directory: &Path) -> io::Result<()> {
    let run = directory.join("run");
    fs::write(
        &run,
        format!(
            "#!/bin/sh\nexec {0}/lib64/ld-linux-x86-64.so.2 --library-path {0}/usr/lib/x86_64-linux-gnu \\\n\t\
             \"{0}/usr/sbin/${{0##*/}}\" \"$@\"\n",
            image.display()
        ),
    )?;
    fs::set_permissions(&run, Permissions::from_mode(0o755))?;
    fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    for program in fs::read_dir(image.join("usr/sbin"))? {
        let program = program?;
        let mut start = [0; 4];
        // Not each link leads somewhere.
        let Ok(mut file) = File::open(program.path()) else {
            continue;
        };
        let is_elf = file.read_exact(&mut start).is_ok() && start == *b"\x7fELF";
        let target = if is_elf { "run".into() } else { program.path() };
        symlink(target, directory.join(program.file_name()))?;
    }
    Ok(())
}

struct Scene {
    server: Server,
    directory: tempfile::TempDir,
}

impl Scene {
    fn new(topology: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket");
        let server = Server::new(Subnet::new(&Topology::parse(topology).expect("a topology")));
        let runs = server.clone();
        thread::spawn(move || runs.run(&listener));
        // Wait until the links are up.
        thread::sleep(Duration::from_millis(50));
        Self { server, directory }
    }

    /// Creates a command for a program at the named HCA, or at the first one if the name is empty.
    fn program_at(&self, hca: &str, name: &str) -> Command {
        let library: PathBuf = env::current_exe()
            .expect("this test")
            .with_file_name("libvrnic_umad.so");
        assert!(library.exists(), "{}", library.display());
        let directory = programs();
        let mut command = Command::new(directory.join(name));
        let path = env::join_paths(
            [directory.to_owned()]
                .into_iter()
                .chain(env::split_paths(PATH)),
        );
        command
            .env("PATH", path.expect("a path"))
            .env("IBPATH", directory)
            .env("LD_PRELOAD", library)
            .env("VRNIC_SUBNET", self.directory.path().join("socket"))
            .env("VRNIC_HCA", hca)
            .stdin(Stdio::null());
        command
    }

    /// Starts OpenSM at an HCA with lines for its configuration. Returns its log as well.
    fn opensm(&self, hca: &str, configuration: &str) -> (Running, PathBuf) {
        let own = self.directory.path().join(format!("opensm-{hca}"));
        fs::create_dir_all(&own).expect("a directory");
        let (file, log) = (own.join("opensm.conf"), own.join("opensm.log"));
        fs::write(&file, configuration).expect("a file");
        let mut command = self.program_at(hca, "opensm");
        command
            .arg("--config")
            .arg(file)
            .arg("--log_file")
            .arg(&log)
            .env("OSM_TMP_DIR", &own)
            .env("OSM_CACHE_DIR", &own)
            .stdout(Stdio::null());
        (Running(command.spawn().expect("it runs")), log)
    }

    /// Waits until all of these HCAs reach each other, which requires a subnet manager.
    fn wait_until_reached(&self, hcas: &[NodeId], log: &Path) {
        wait(log, || {
            self.server.change(|subnet| all_reach_all(subnet, hcas))
        });
    }

    /// Waits until all HCAs reach each other.
    fn wait_until_all_reach_all(&self, log: &Path) {
        self.wait_until_reached(&self.hcas(), log);
    }

    fn hcas(&self) -> Vec<NodeId> {
        self.server.change(|subnet| subnet.hcas().collect())
    }

    /// Returns the LID of a node.
    fn lid(&self, name: &str) -> u16 {
        self.server.change(|subnet| {
            let node = subnet.find(name).expect("a node");
            subnet.agent(node).end_port().info().lid
        })
    }

    /// Runs a program at the first HCA. Returns whether it succeeded, and its output.
    fn tried(&self, program: &str, arguments: &[&str]) -> (bool, String) {
        let output = self.program_at("", program).args(arguments).output();
        let output = output.expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text + &errors)
    }

    /// Runs a program that must succeed, and returns its output.
    fn said(&self, program: &str, arguments: &[&str]) -> String {
        let (success, text) = self.tried(program, arguments);
        assert!(success, "{program} {arguments:?}: {text}");
        text
    }

    /// Runs a program repeatedly until its output contains `wanted`.
    fn wait_until_said(&self, program: &str, arguments: &[&str], wanted: &str, log: &Path) {
        wait(log, || self.tried(program, arguments).1.contains(wanted));
    }
}

/// Waits for a condition. If that takes too long, shows the log of a manager.
fn wait(log: &Path, mut happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !happened() {
        let journal = || fs::read_to_string(log).unwrap_or_default();
        assert!(Instant::now() < deadline, "{}", journal());
        thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until a log contains a text.
fn wait_for_log(log: &Path, wanted: &str) {
    wait(log, || {
        fs::read_to_string(log).is_ok_and(|text| text.contains(wanted))
    });
}

/// Returns whether all of these HCAs reach each other now.
fn all_reach_all(subnet: &mut Subnet, hcas: &[NodeId]) -> bool {
    let lids: Vec<_> = hcas
        .iter()
        .map(|hca| subnet.agent(*hca).end_port().info().lid)
        .collect();
    for &from in hcas {
        for &to in &lids {
            let bth = Bth {
                pkey: 0xffff,
                destination_qp: 77,
                ..Bth::default()
            };
            let packet = Packet::datagram((0, to), 0, bth, Deth::default(), &to.to_be_bytes());
            if subnet.send(from, packet).is_err() {
                return false;
            }
        }
    }
    subnet.run_until(subnet.now() + Duration::from_millis(1));
    let arrived = std::iter::from_fn(|| subnet.receive()).filter(|(_, packet)| {
        let datagram = packet.as_datagram();
        datagram.is_some_and(|(bth, ..)| bth.destination_qp == 77)
    });
    arrived.count() == hcas.len() * hcas.len()
}

/// A running program. Dropping this ends it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the number of lines with this beginning.
fn lines(text: &str, beginning: &str) -> usize {
    let lines = text.lines().map(str::trim_start);
    lines.filter(|line| line.starts_with(beginning)).count()
}

/// OpenSM brings up a fat tree, other programs see it, and traffic is routed around a cut link.
#[test]
fn opensm_manages_a_fat_tree_of_64_hcas() {
    let scene = Scene::new("[fat-tree]\nspines = 4\nleaves = 8\nhosts = 8");
    let (_opensm, log) = scene.opensm("leaf1-h1", "");
    scene.wait_until_all_reach_all(&log);

    let nodes = scene.said("ibnetdiscover", &["-t", TIMEOUT]);
    assert_eq!(
        (lines(&nodes, "Switch"), lines(&nodes, "Ca")),
        (12, 64),
        "{nodes}"
    );
    // Tables that do not fit in one MAD. The last one has 370 kB.
    for (what, record, count) in [
        ("-N", "NodeRecord dump", 76),
        ("LR", "LinkRecord dump", 2 * (64 + 32)),
        ("-p", "PathRecord dump", 76 * 76),
    ] {
        let said = scene.said("saquery", &["-t", TIMEOUT, what]);
        assert_eq!(lines(&said, record), count, "{what}");
    }
    let cut = scene.server.change(|subnet| {
        let [leaf, spine] = ["leaf1", "spine1"].map(|name| subnet.find(name).expect("a switch"));
        let mut links = (1..=12).filter_map(|port| subnet.peer(leaf, port));
        let (link, ..) = links.find(|(_, peer, _)| *peer == spine).expect("a link");
        subnet.set_link(link, false);
        let hcas: Vec<_> = subnet.hcas().collect();
        !all_reach_all(subnet, &hcas)
    });
    assert!(cut, "somebody was reached over the link");
    scene.wait_until_all_reach_all(&log);
}

/// OpenSM brings up the other shapes as well, with links of other rates, and gives each port two LIDs.
#[test]
fn opensm_manages_the_other_shapes() {
    for (shape, switches, hcas) in [
        ("[ring]\nswitches = 6\nhosts = 2", 6, 12),
        ("[torus]\nsize = [3, 3, 2]\nhosts = 1", 18, 18),
        ("[random]\nswitches = 9\nhosts = 14\nextra_links = 5", 9, 14),
    ] {
        let scene = Scene::new(&format!(
            "seed = 11\nspeed = \"qdr\"\nwidth = \"12x\"\nmtu = 2048\nlanes = 4\n{shape}"
        ));
        let first = if shape.starts_with("[random]") {
            "h1"
        } else {
            "switch1-h1"
        };
        let (_opensm, log) = scene.opensm(first, "lmc 1\n");
        scene.wait_until_all_reach_all(&log);
        let nodes = scene.said("ibnetdiscover", &["-t", TIMEOUT]);
        assert_eq!(
            (lines(&nodes, "Switch"), lines(&nodes, "Ca")),
            (switches, hcas),
            "{nodes}"
        );
        assert!(nodes.contains("lmc 1 \"switch"), "{nodes}");
        assert!(
            !nodes.contains("4xEDR") && nodes.contains(" 12xQDR"),
            "{nodes}"
        );
        let own = scene.lid(first);
        assert_eq!(own % 2, 0, "two LIDs");
        for other in scene.hcas() {
            let other = scene
                .server
                .change(|subnet| *subnet.agent(other).end_port().info());
            // SL 0 has a lane on each link, of which each has four.
            assert_eq!(
                (other.lmc, other.operational_vls, other.neighbor_mtu),
                (1, 3, 4)
            );
            for lid in [other.lid, other.lid + 1] {
                let pair = format!("{own}:{lid}");
                let path = scene.said("saquery", &["-t", TIMEOUT, "--src-to-dst", &pair]);
                // 120 Gb/s, and 2048 bytes.
                for wanted in [
                    "rate....................0x8A",
                    "mtu.....................0x84",
                ] {
                    assert!(path.contains(wanted), "{shape}, {pair}: {path}");
                }
                let way = scene.said(
                    "ibtracert",
                    &["-t", TIMEOUT, &own.to_string(), &lid.to_string()],
                );
                assert!(way.contains("To ca"), "{shape}, {pair}: {way}");
            }
        }
    }
}

/// Each program of infiniband-diags shows the state of the subnet.
#[test]
fn diagnostics_show_the_subnet() {
    let scene = Scene::new("[fat-tree]\nspines = 2\nleaves = 2\nhosts = 2");
    let (_opensm, log) = scene.opensm("leaf1-h1", "");
    scene.wait_until_all_reach_all(&log);
    let lid = |name: &str| scene.lid(name).to_string();
    let (own, peer, leaf) = (&*lid("leaf1-h1"), &*lid("leaf2-h2"), &*lid("leaf2"));
    let ours = format!("Base lid: {own}");
    let pair = format!("{own}:{peer}");
    for (program, arguments, wanted) in [
        ("smpquery", &["NodeDesc", peer][..], "leaf2-h2"),
        ("smpquery", &["-D", "NodeDesc", "0,1"], "leaf1"),
        (
            "smpquery",
            &["NodeInfo", leaf],
            "NodeType:........................Switch",
        ),
        (
            "smpquery",
            &["PortInfo", peer, "1"],
            "LinkState:.......................Active",
        ),
        ("smpquery", &["SwitchInfo", leaf], "LinearFdbTop:"),
        ("smpquery", &["PKeys", peer, "1"], "32 pkeys capacity"),
        (
            "smpquery",
            &["SL2VLTable", peer, "1"],
            "| 0| 1| 2| 3| 4| 5| 6| 7| 0| 1| 2| 3|",
        ),
        (
            "smpquery",
            &["VLArbitration", peer, "1"],
            "LowCap 32 HighCap 32",
        ),
        ("perfquery", &[peer, "1"], "PortXmitPkts:"),
        ("perfquery", &["-x", peer, "1"], "PortUnicastXmitPkts:"),
        ("perfquery", &["-a", leaf], "port 255"),
        ("perfquery", &["-x", peer, "1"], "VL15Dropped:"),
        ("perfquery", &["-X", peer, "1"], "XmtDataSL15:"),
        ("perfquery", &["-S", peer, "1"], "RcvDataSL0:"),
        ("perfquery", &["-D", leaf, "1"], "PortNeighborMTUDiscards:"),
        ("perfquery", &["-E", leaf, "1"], "PortDLIDMappingErrors:"),
        ("perfquery", &["-c", leaf, "1"], "CounterSelect14:"),
        ("ibstat", &[], "State: Active"),
        ("ibstat", &[], &ours),
        ("ibaddr", &[peer], "GID fe80::"),
        (
            "ibportstate",
            &[peer, "1", "query"],
            "LinkWidthActive:.................4X",
        ),
        ("sminfo", &[], "SMINFO_MASTER"),
        ("saquery", &["-t", TIMEOUT, "-s"], "IsSM ports"),
        (
            "saquery",
            &["-t", TIMEOUT, "-g"],
            "MGID....................ff12:401b:ffff::ffff:ffff",
        ),
        (
            "saquery",
            &["-t", TIMEOUT, "-m"],
            "Mlid....................0xC000",
        ),
        (
            "saquery",
            &["-t", TIMEOUT, "--src-to-dst", &pair],
            &format!("dlid....................{peer}"),
        ),
    ] {
        let said = scene.said(program, arguments);
        assert!(said.contains(wanted), "{program} {arguments:?}: {said}");
    }
    // Programs that query all nodes, and the number of lines with a beginning.
    for (program, counted, count) in [
        ("ibnetdiscover", "Switch", 4),
        ("ibnetdiscover", "Ca", 4),
        ("ibhosts", "Ca", 4),
        ("ibswitches", "Switch", 4),
        ("iblinkinfo", "CA: leaf", 4),
        ("iblinkinfo", "Switch: ", 4),
        // Four switches have routes to eight nodes.
        ("dump_fts", "0x", 4 * 8),
    ] {
        let said = scene.said(program, &["-t", TIMEOUT]);
        assert_eq!(lines(&said, counted), count, "{program}: {said}");
    }
    let links = scene.said("iblinkinfo", &["-t", TIMEOUT]);
    let active = links.matches("Active/  LinkUp").count();
    assert_eq!(active, 2 * (4 + 4), "both ends of each link: {links}");
    let routes = scene.said("ibroute", &["-t", TIMEOUT, leaf]);
    assert!(routes.contains("8 valid lids dumped"), "{routes}");
    for name in ["spine1", "leaf1-h2", "leaf2"] {
        assert!(routes.contains(&format!("'{name}'")), "{routes}");
    }
    let way = scene.said("ibtracert", &["-t", TIMEOUT, own, peer]);
    let nodes: Vec<_> = way.split('"').skip(1).step_by(2).collect();
    assert_eq!(nodes.len(), 6, "{way}");
    assert!(nodes[2].starts_with("spine"), "{way}");
    assert_eq!(
        [nodes[0], nodes[1], nodes[3], nodes[4]],
        ["leaf1-h1", "leaf1", "leaf2", "leaf2-h2"]
    );

    // The program fails if there are errors.
    let errors = || scene.tried("ibqueryerrors", &["-t", TIMEOUT]).1;
    assert!(errors().contains("0 bad nodes found"), "{}", errors());
    scene.server.change(|subnet| {
        let leaf = subnet.find("leaf2").expect("a switch");
        let (link, node, _) = subnet.peer(leaf, 1).expect("a link");
        subnet.set_bit_error_rate(link, 1.0);
        let packet = datagram(own.parse().expect("a LID"), 77);
        subnet.send(node, packet).expect("it leaves");
        subnet.run_until(subnet.now() + Duration::from_millis(1));
        subnet.set_bit_error_rate(link, 0.0);
    });
    let said = errors();
    assert!(
        said.contains("\"leaf2\"") && said.contains("SymbolErrorCounter == 1"),
        "{said}"
    );
    // A switch cannot forward to a LID that nobody has.
    scene.server.change(|subnet| {
        let host = subnet.find("leaf2-h1").expect("an HCA");
        subnet.send(host, datagram(0x1234, 77)).expect("it leaves");
        subnet.run_until(subnet.now() + Duration::from_millis(1));
    });
    let said = scene
        .tried("ibqueryerrors", &["-t", TIMEOUT, "--details"])
        .1;
    assert!(said.contains("PortRcvSwitchRelayErrors == 1"), "{said}");
    let details = |leaf: &str| {
        let ports = 1..=4;
        let said = ports.map(|port: u8| scene.said("perfquery", &["-E", leaf, &port.to_string()]));
        said.collect::<String>()
    };
    let count = |said: &str, name: &str| {
        let lines = said.lines().filter(|line| line.starts_with(name));
        lines.filter(|line| line.ends_with("..1")).count()
    };
    let said = details(leaf);
    assert_eq!(count(&said, "PortLocalPhysicalErrors"), 1, "{said}");
    assert_eq!(count(&said, "PortDLIDMappingErrors"), 1, "{said}");
    // The counters of 64 bits are reset apart from the others.
    scene.said("perfquery", &["-R", "-a", leaf]);
    assert!(errors().contains("SymbolErrorCounter == 1"), "{}", errors());
    scene.said("perfquery", &["-x", "-R", leaf, "255", "0xfff0000"]);
    assert!(!errors().contains("SymbolErrorCounter"), "they were reset");

    // An HCA without programs answers by its name; a switch does not.
    for (program, operation, wanted) in [
        ("ibping", "", "Pong from leaf2-h2 (Lid"),
        ("ibsysstat", "ping", "sysstat ping succeeded"),
        ("ibsysstat", "host", "leaf2-h2"),
    ] {
        let (options, operation) = match operation {
            "" => (&["-c", "1"][..], &[][..]),
            _ => (&[][..], &[operation][..]),
        };
        let arguments = [options, &["-t", TIMEOUT, peer], operation].concat();
        let said = scene.said(program, &arguments);
        assert!(said.contains(wanted), "{program} {arguments:?}: {said}");
    }
    let (_, said) = scene.tried("ibping", &["-c", "1", "-t", "100", leaf]);
    assert!(said.contains("100% packet loss"), "{said}");

    // Programs that communicate with a server at the other end.
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let server_pong = format!("--- {}", hostname.trim());
    for (program, arguments, wanted) in [
        (
            "ibping",
            &["-c", "2", "-t", "1000", peer][..],
            &*server_pong,
        ),
        (
            "ibsysstat",
            &["-t", "1000", peer, "ping"],
            "sysstat ping succeeded",
        ),
    ] {
        let mut server = scene.program_at("leaf2-h2", program);
        server.arg("-S").stdout(Stdio::null()).stderr(Stdio::null());
        let _server = Running(server.spawn().expect("it runs"));
        // Requests before the server is up are lost and repeated.
        scene.wait_until_said(program, arguments, wanted, &log);
    }
}

/// Creates a datagram to a queue pair.
fn datagram(lid: u16, queue: u32) -> Packet {
    let bth = Bth {
        pkey: 0xffff,
        destination_qp: queue,
        ..Bth::default()
    };
    let deth = Deth {
        qkey: MANAGEMENT_QKEY,
        source_qp: queue,
    };
    Packet::datagram((0, lid), 0, bth, deth, &[0; 256])
}

/// The manager with the higher priority is the master. When it is gone, the other one takes over. When it is back, it
/// becomes the master again.
#[test]
fn a_standby_takes_over() {
    let scene = Scene::new("[fat-tree]\nspines = 2\nleaves = 3\nhosts = 2");
    let first = || scene.opensm("leaf1-h1", &format!("{QUICK}sm_priority 14\n"));
    let (opensm, log) = first();
    scene.wait_until_all_reach_all(&log);
    let (_standby, other_log) = scene.opensm("leaf2-h1", &format!("{QUICK}sm_priority 3\n"));
    let lid = |name: &str| scene.lid(name).to_string();
    // Checks the state that a manager reports.
    let is = |name: &str, state: &str, log: &Path| {
        scene.wait_until_said("sminfo", &["-t", "1000", &lid(name)], state, log);
    };
    is("leaf2-h1", "SMINFO_STANDBY", &other_log);
    is("leaf1-h1", "SMINFO_MASTER", &log);
    let managers = scene.said("saquery", &["-t", TIMEOUT, "-s"]);
    assert_eq!(lines(&managers, "PortInfoRecord dump"), 2, "{managers}");

    drop(opensm);
    is("leaf2-h1", "SMINFO_MASTER", &other_log);
    // The ports know the new manager, which routes around a cut link.
    let manager = lid("leaf2-h1").parse::<u16>().expect("a LID");
    wait(&other_log, || {
        scene.server.change(|subnet| {
            let mut infos = subnet
                .nodes()
                .map(|node| *subnet.agent(node).end_port().info());
            infos.all(|info| info.sm_lid == manager)
        })
    });
    scene.server.change(|subnet| {
        let leaf = subnet.find("leaf3").expect("a switch");
        let mut links = (1..).filter_map(|port| subnet.peer(leaf, port));
        let is_switch = |node| subnet.hca(node).is_none();
        let (link, ..) = links.find(|(_, peer, _)| is_switch(*peer)).expect("a link");
        subnet.set_link(link, false);
    });
    scene.wait_until_all_reach_all(&other_log);

    let (_back, log) = first();
    is("leaf1-h1", "SMINFO_MASTER", &log);
    is("leaf2-h1", "SMINFO_STANDBY", &other_log);
    scene.wait_until_all_reach_all(&log);
}

/// In a ring, the shortest paths of OpenSM have a credit loop. Its up/down routing avoids the loop, and LASH assigns
/// another lane to paths that would cause one, which path records show.
#[test]
fn credit_loops_depend_on_the_routing_engine() {
    for engine in ["minhop", "updn", "lash"] {
        let scene = Scene::new("[ring]\nswitches = 5\nhosts = 1");
        let qos = if engine == "lash" { "qos TRUE\n" } else { "" };
        let root = scene.directory.path().join("root");
        let guid = scene.server.change(|subnet| {
            let switch = subnet.find("switch1").expect("a switch");
            subnet.agent(switch).node().node_guid
        });
        fs::write(&root, format!("{guid:#x}\n")).expect("a file");
        let root = root.display();
        let configuration = format!("routing_engine {engine}\n{qos}root_guid_file {root}\n");
        let (_opensm, log) = scene.opensm("switch1-h1", &configuration);
        scene.wait_until_all_reach_all(&log);
        let lids: Vec<u16> = (1..=5)
            .map(|number| scene.lid(&format!("switch{number}-h1")))
            .collect();
        let mut levels = BTreeMap::new();
        for from in &lids {
            for to in &lids {
                let said = scene.said(
                    "saquery",
                    &["-t", TIMEOUT, "--src-to-dst", &format!("{from}:{to}")],
                );
                let line = said
                    .lines()
                    .find_map(|line| line.trim().strip_prefix("sl.."));
                let level = line.and_then(|line| line.rsplit("0x").next());
                let level = level.and_then(|level| u8::from_str_radix(level, 16).ok());
                levels.insert((*from, *to), level.expect("a service level"));
            }
        }
        let found = scene.server.change(|subnet| {
            let told = subnet.credit_loop(|from, to| levels[&(from, to)]);
            [told, subnet.credit_loop(|_, _| 0)].map(|found| found.is_some())
        });
        let expected = match engine {
            "minhop" => [true, true],
            "updn" => [false, false],
            _ => [false, true],
        };
        assert_eq!(found, expected, "{engine}: {levels:?}");
    }
}

/// OpenSM repeatedly reports a GUID that two nodes have, and makes no progress.
#[test]
fn opensm_tells_of_two_nodes_with_one_guid() {
    let names = ["one", "two", "three"];
    let switch = "[[switch]]\nname = \"switch\"\nports = 4\n".to_owned();
    let hcas = names.iter().zip(1..).map(|(name, port)| {
        let guid = if port == 1 { "" } else { "guid = 0x77\n" };
        let link = format!("[[link]]\nends = [\"{name}\", \"switch/{port}\"]\n");
        format!("[[hca]]\nname = \"{name}\"\n{guid}{link}")
    });
    let text: Vec<String> = [switch].into_iter().chain(hcas).collect();
    let scene = Scene::new(&text.concat());
    let (_opensm, log) = scene.opensm("one", "");
    wait(&log, || {
        let journal = fs::read_to_string(&log).unwrap_or_default();
        journal.matches("Found duplicated node GUID").count() > 10
            && journal.contains("Node 0x77 port 1 is reachable from remote node")
    });
    assert_eq!(
        names.map(|name| scene.lid(name)),
        [0; 3],
        "nobody is configured"
    );
}

/// When two HCAs with one GUID are plugged in, OpenSM says so and configures neither, but the others still reach each
/// other. OpenSM goes on when one of the two is gone.
#[test]
fn twins_that_come_later_stop_no_traffic() {
    let twins = [("twin1", "spine1/9"), ("twin2", "spine2/9")].map(|(name, port)| {
        format!(
            "[[hca]]\nname = \"{name}\"\nguid = 0x70\n[[link]]\nends = [\"{name}\", \"{port}\"]\nup = false\n"
        )
    });
    let tree = "[fat-tree]\nspines = 2\nleaves = 2\nhosts = 2\n";
    let scene = Scene::new(&[tree, &twins[0], &twins[1]].concat());
    let (_opensm, log) = scene.opensm("leaf1-h1", "");
    let twins = ["twin1", "twin2"].map(|name| scene.server.change(|subnet| subnet.find(name)));
    let [twin, other] = twins.map(|node| node.expect("an HCA"));
    let others: Vec<_> = (scene.hcas().into_iter())
        .filter(|hca| ![twin, other].contains(hca))
        .collect();
    let plug = |hca, up| {
        scene.server.change(|subnet| {
            let (link, ..) = subnet.peer(hca, 1).expect("a link");
            subnet.set_link(link, up);
        });
    };
    scene.wait_until_reached(&others, &log);
    plug(twin, true);
    plug(other, true);
    wait_for_log(&log, "Found duplicated node GUID");
    scene
        .server
        .change(|subnet| assert!(all_reach_all(subnet, &others), "others are disturbed"));
    plug(other, false);
    scene.wait_until_reached(&[&others[..], &[twin]].concat(), &log);
}

/// Switches are members of the default partition, too: if they are limited ones, only full members read their counters.
#[test]
fn counters_are_for_members_of_the_partition() {
    for (switches, key, told) in [("", 0x7fff, false), ("ALL_SWITCHES=full, ", 0xffff, true)] {
        let scene = Scene::new("[fat-tree]\nspines = 1\nleaves = 2\nhosts = 1");
        let partitions = scene.directory.path().join("partitions");
        let text = format!("Default=0x7fff, ipoib: ALL=limited, {switches}SELF=full;\n");
        fs::write(&partitions, text).expect("a file");
        let configuration = format!("partition_config_file {}\n", partitions.display());
        let (_opensm, log) = scene.opensm("leaf1-h1", &configuration);
        let keys = [("leaf1-h1", 0xffff), ("leaf2-h1", 0x7fff), ("leaf2", key)];
        wait(&log, || {
            scene.server.change(|subnet| {
                keys.iter().all(|(name, key)| {
                    let node = subnet.find(name).expect("a node");
                    let port = subnet.agent(node).end_port();
                    port.pkeys()[0] == *key && port.info().lid != 0
                })
            })
        });
        let leaf = scene.lid("leaf2").to_string();
        scene.wait_until_said(
            "perfquery",
            &["-t", "1000", &leaf, "1"],
            "PortXmitPkts:",
            &log,
        );
        let mut other = scene.program_at("leaf2-h1", "perfquery");
        let time = if told { TIMEOUT } else { "500" };
        let output = other.args(["-t", time, &leaf, "1"]).output();
        let output = output.expect("it runs");
        assert_eq!(output.status.success(), told, "{switches}: {output:?}");
    }
}

/// An HCA that sends faster than agents can process only harms itself: excess packets are dropped and counted, and the
/// manager continues to work.
#[test]
fn a_flood_is_counted_and_the_manager_goes_on() {
    let scene = Scene::new("[fat-tree]\nspines = 2\nleaves = 2\nhosts = 2");
    let (_opensm, log) = scene.opensm("leaf1-h1", "sweep_interval 1\n");
    scene.wait_until_all_reach_all(&log);
    scene.server.change(|subnet| {
        let hostile = subnet.find("leaf2-h1").expect("an HCA");
        for _ in 0..1000 {
            let request = Smp {
                route: Route::along(&[1]),
                ..Smp::request(Method::GET, id::NODE_INFO, 0)
            };
            subnet.send_smp(hostile, &request, 0).expect("it leaves");
        }
        subnet.run_until(subnet.now() + Duration::from_millis(1));
        let nodes = std::iter::from_fn(|| subnet.receive());
        let answered = nodes.filter(|(_, packet)| {
            let smp = packet
                .as_datagram()
                .and_then(|(_, _, mad)| Smp::parse(mad).ok());
            smp.is_some_and(|smp| NodeInfo::read(&smp.data).ports == 4)
        });
        let answered = answered.count();
        assert!((1..500).contains(&answered), "{answered}");
    });
    let port = scene.server.change(|subnet| {
        let (_, _, port) = subnet
            .peer(subnet.find("leaf2-h1").expect("an HCA"), 1)
            .expect("a link");
        port.to_string()
    });
    let said = scene.said(
        "perfquery",
        &["-t", TIMEOUT, &scene.lid("leaf2").to_string(), &port],
    );
    let dropped = said
        .lines()
        .find(|line| line.starts_with("VL15Dropped"))
        .expect("a counter");
    let dropped = dropped
        .rsplit('.')
        .next()
        .and_then(|number| number.parse::<u32>().ok());
    assert!(dropped.is_some_and(|dropped| dropped > 400), "{said}");
    // The manager notices links that go down and come up.
    let link = scene.server.change(|subnet| {
        let spine = subnet.find("spine1").expect("a switch");
        let (link, ..) = subnet.peer(spine, 1).expect("a link");
        subnet.set_link(link, false);
        link
    });
    scene.wait_until_all_reach_all(&log);
    scene.server.change(|subnet| subnet.set_link(link, true));
    scene.wait_until_all_reach_all(&log);
}

/// The source LID of an HCA cannot be forged: the manager's log has the HCA's own LID.
#[test]
fn a_forged_lid_is_replaced() {
    let scene = Scene::new("[single]\nhosts = 3");
    let (_opensm, log) = scene.opensm("switch1-h1", "");
    scene.wait_until_all_reach_all(&log);
    let [manager, hostile, other] =
        ["switch1-h1", "switch1-h2", "switch1-h3"].map(|name| scene.lid(name));
    let hcas = scene.hcas();
    // A trap with the LID of another HCA.
    scene.server.change(|subnet| {
        let mut trap = Smp::request(Method::TRAP, id::NOTICE, 0);
        trap.header.transaction = 0x66;
        // A generic, urgent notice of a channel adapter with number 131.
        trap.data[..6].copy_from_slice(&[0x81, 0, 0, 1, 0, 131]);
        trap.data[6..8].copy_from_slice(&other.to_be_bytes());
        let packet = Packet::datagram(
            (other, manager),
            0,
            Bth {
                pkey: 0xffff,
                ..Bth::default()
            },
            Deth::default(),
            &trap.to_bytes(),
        );
        subnet.send(hcas[1], packet).expect("it leaves");
    });
    wait_for_log(&log, "num:131");
    let journal = fs::read_to_string(&log).expect("a log");
    let line = journal.lines().find(|line| line.contains("num:131"));
    let line = line.expect("a line");
    assert!(line.contains(&format!("LID:{hostile} ")), "{line}");
}

/// A request without the management key gets no response. The port counts it and sends a trap to the manager.
#[test]
fn a_wrong_m_key_is_counted_and_told() {
    let scene = Scene::new("[single]\nhosts = 3");
    let (_opensm, log) = scene.opensm(
        "switch1-h1",
        &format!("m_key {KEY}\nm_key_protection_level 2\n"),
    );
    scene.wait_until_all_reach_all(&log);
    let lid = scene.lid("switch1-h3").to_string();
    let query =
        |key: &'static str| ["-t", "100", "-y", key, "PortInfo", &lid, "1"].map(str::to_owned);
    let ask = |key| {
        let arguments = query(key);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        scene.tried("smpquery", &arguments)
    };
    let (answered, said) = ask("0x1");
    assert!(!answered, "{said}");
    wait(&log, || {
        let (answered, said) = ask(KEY);
        answered
            && said
                .lines()
                .any(|line| line.starts_with("MkeyViolations") && !line.ends_with(".0"))
    });
    wait_for_log(&log, "num:256");
}
