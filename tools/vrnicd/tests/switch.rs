// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The switch of a running daemon, seen from its ports.

use std::fmt::Write as _;
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vrnicd::control::client;
use vrnicd::control::protocol::Address;

const BROADCAST: [u8; 6] = [0xff; 6];
/// Long enough to be reached only if a frame never comes.
const PATIENCE: Duration = Duration::from_secs(120);

fn mac(number: u8) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, number]
}

fn frame(to: [u8; 6], from: u8, text: &str) -> Vec<u8> {
    let mut frame = [to, mac(from)].concat();
    frame.extend([0x88, 0xb5]);
    frame.extend(text.as_bytes());
    frame
}

/// A running daemon.
struct Daemon {
    process: Child,
    directory: TempDir,
}

impl Daemon {
    /// Starts a daemon with this configuration, in which `@` stands for its directory. The words `around` come before
    /// the command.
    fn start(config: &str, around: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let config = config.replace('@', &directory.path().display().to_string());
        let config = vrnic_native::daemon::workers() + &config;
        std::fs::write(path("config"), config).unwrap();
        let mut words = around.to_vec();
        words.push(env!("CARGO_BIN_EXE_vrnicd"));
        let process = Command::new(words[0])
            .args(&words[1..])
            .arg("--config")
            .arg(path("config"))
            .stderr(Stdio::from(std::fs::File::create(path("log")).unwrap()))
            .spawn()
            .unwrap();
        Self { process, directory }
    }

    /// Starts a daemon with a stream port for each of `names`, each with additional lines.
    fn with_ports(names: &[(&str, &str)]) -> Self {
        let mut config = String::from("log = \"debug\"\nholder = false\ncontrol = \"@/control\"\n");
        for (name, lines) in names {
            writeln!(
                config,
                "[[switch.port]]\nname = \"{name}\"\nstream = \"@/{name}\"\n{lines}"
            )
            .unwrap();
        }
        Self::start(&config, &[])
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    fn wait_log(&self, text: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !self.log().contains(text) {
            assert!(Instant::now() < deadline, "no `{text}` in {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn connect(&self, name: &str) -> Client {
        let deadline = Instant::now() + PATIENCE;
        let path = self.directory.path().join(name);
        loop {
            match UnixStream::connect(&path) {
                Ok(stream) => return Client::new(stream),
                Err(error) => assert!(Instant::now() < deadline, "{error}: {}", self.log()),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the daemon and returns its log.
    fn stop(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(self.process.wait().unwrap().success(), "{}", self.log());
        self.log()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Plays QEMU's side of a connection to the daemon.
struct Client(UnixStream);

impl Client {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn send(&mut self, frame: &[u8]) {
        let mut bytes = (frame.len() as u32).to_be_bytes().to_vec();
        bytes.extend(frame);
        self.0.write_all(&bytes).unwrap();
    }

    fn receive(&mut self) -> Vec<u8> {
        let mut length = [0; 4];
        self.0.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.0.read_exact(&mut frame).unwrap();
        frame
    }

    /// Returns the first frame that was not sent by [`meet`].
    fn receive_after_meeting(&mut self) -> Vec<u8> {
        loop {
            let frame = self.receive();
            if frame[14..] != *b"meet" && frame[14..] != *b"mark" {
                return frame;
            }
        }
    }

    /// Returns whether the daemon closed the connection.
    fn is_closed(&mut self) -> bool {
        loop {
            match self.0.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Waits until frames pass in both directions; the daemon accepts connections in any order.
fn meet(a: &mut Client, a_number: u8, b: &mut Client, b_number: u8) {
    reach(a, a_number, b);
    reach(b, b_number, a);
}

/// Sends until a frame arrives.
fn reach(from: &mut Client, number: u8, to: &mut Client) {
    let deadline = Instant::now() + PATIENCE;
    to.0.set_read_timeout(Some(Duration::from_millis(50)))
        .unwrap();
    loop {
        from.send(&frame(BROADCAST, number, "meet"));
        if to.0.read_exact(&mut [0; 4 + 18]).is_ok() {
            break;
        }
        assert!(Instant::now() < deadline);
    }
    // More than one frame may be on its way; the mark comes last.
    from.send(&frame(BROADCAST, number, "mark"));
    to.0.set_read_timeout(Some(PATIENCE)).unwrap();
    while to.receive()[14..] != *b"mark" {}
}

#[test]
fn frames_pass_between_stream_ports() {
    let daemon = Daemon::with_ports(&[("a", ""), ("b", ""), ("c", "")]);
    let (mut a, mut b, mut c) = (
        daemon.connect("a"),
        daemon.connect("b"),
        daemon.connect("c"),
    );
    meet(&mut a, 1, &mut b, 2);
    meet(&mut a, 1, &mut c, 3);
    // The address has been learned, so only `b` gets the frame. The broadcast after it shows that `c` would have
    // received it by then.
    a.send(&frame(mac(2), 1, "for b"));
    a.send(&frame(BROADCAST, 1, "for all"));
    assert_eq!(c.receive_after_meeting(), frame(BROADCAST, 1, "for all"));
    assert_eq!(b.receive_after_meeting(), frame(mac(2), 1, "for b"));
    assert_eq!(b.receive(), frame(BROADCAST, 1, "for all"));
    let log = daemon.stop();
    assert!(log.contains("switch port counters"), "{log}");
}

#[test]
fn ports_and_addresses_are_shown_while_it_runs() {
    let daemon = Daemon::with_ports(&[("a", ""), ("b", "mtu = 1500"), ("c", "vlan = 7")]);
    let (mut a, mut b) = (daemon.connect("a"), daemon.connect("b"));
    meet(&mut a, 1, &mut b, 2);
    a.send(&frame(mac(2), 1, &"x".repeat(1501)));
    a.send(&frame(mac(2), 1, &"y".repeat(1500)));
    assert_eq!(
        b.receive_after_meeting(),
        frame(mac(2), 1, &"y".repeat(1500))
    );
    let mut control = client::Client::connect(&daemon.directory.path().join("control")).unwrap();
    let ports = control.switch().unwrap();
    let names: Vec<_> = ports.iter().map(|port| port.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!((ports[0].mtu, ports[1].mtu), (9000, 1500));
    assert_eq!(ports[1].vlans, "tagged all, untagged 1");
    assert_eq!(ports[2].vlans, "7");
    assert!(ports[0].medium_up && ports[1].medium_up && !ports[2].medium_up);
    assert_eq!(ports[0].medium.as_deref(), Some("stream"));
    assert_eq!(ports[1].counter("tx_oversize"), 1, "{:?}", ports[1]);
    assert_eq!(ports[1].drops().collect::<Vec<_>>(), [("tx_oversize", 1)]);
    assert!(ports[0].counter("rx_bytes") >= 1501 + 1500);
    assert!(ports[1].counter("tx_frames") >= 1);
    let mut addresses = control.addresses().unwrap();
    addresses.sort_by(|one, other| one.mac.cmp(&other.mac));
    let learned = |number: u8, port: &str, age_s| Address {
        mac: format!("52:54:00:00:00:0{number}"),
        vlan: Some(1),
        port: port.into(),
        age_s,
    };
    let ages: Vec<_> = addresses.iter().map(|address| address.age_s).collect();
    assert_eq!(
        addresses,
        [learned(1, "a", ages[0]), learned(2, "b", ages[1])]
    );
}

#[test]
fn vlans_are_apart_and_trunks_see_tags() {
    let daemon = Daemon::with_ports(&[
        ("red", "vlan = 10"),
        ("blue", "vlan = 20"),
        ("trunk", "trunk = [10, 20]"),
    ]);
    let (mut red, mut blue, mut trunk) = (
        daemon.connect("red"),
        daemon.connect("blue"),
        daemon.connect("trunk"),
    );
    daemon.wait_log("connected port=\"trunk\"");
    let tagged =
        |vlan: u8, frame: &[u8]| [&frame[..12], &[0x81, 0, 0, vlan], &frame[12..]].concat();
    // The daemon accepts connections in any order, so the first frames may be too early.
    let deadline = Instant::now() + PATIENCE;
    for (vlan, port) in [(10, &mut red), (20, &mut blue)] {
        port.0
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        loop {
            trunk.send(&tagged(vlan, &frame(BROADCAST, 9, "meet")));
            if port.0.read_exact(&mut [0; 22]).is_ok() {
                break;
            }
            assert!(Instant::now() < deadline, "{}", daemon.log());
        }
        port.0.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    red.send(&frame(BROADCAST, 1, "red"));
    assert_eq!(trunk.receive(), tagged(10, &frame(BROADCAST, 1, "red")));
    blue.send(&frame(BROADCAST, 2, "blue"));
    assert_eq!(trunk.receive(), tagged(20, &frame(BROADCAST, 2, "blue")));
    trunk.send(&tagged(20, &frame(BROADCAST, 9, "answer")));
    assert_eq!(blue.receive_after_meeting(), frame(BROADCAST, 9, "answer"));
    trunk.send(&tagged(10, &frame(BROADCAST, 9, "end")));
    assert_eq!(
        red.receive_after_meeting(),
        frame(BROADCAST, 9, "end"),
        "neither blue nor its answer"
    );
}

#[test]
fn a_port_that_does_not_read_stalls_nobody() {
    let daemon = Daemon::with_ports(&[
        ("a", ""),
        ("b", ""),
        ("stuck", "queue_frames = 100\nqueue_bytes = 100000"),
    ]);
    let (mut a, mut b, stuck) = (
        daemon.connect("a"),
        daemon.connect("b"),
        daemon.connect("stuck"),
    );
    daemon.wait_log("connected port=\"stuck\"");
    meet(&mut a, 1, &mut b, 2);
    // 30 MB in broadcasts, one after the other: far more than all buffers on the way to the stuck port hold.
    for number in 0..30_000u32 {
        let mut sent = frame(BROADCAST, 1, "");
        sent.extend(number.to_be_bytes());
        sent.resize(1000, 0);
        a.send(&sent);
        assert_eq!(b.receive(), sent);
    }
    let log = daemon.stop();
    let counters = log
        .lines()
        .find(|line| line.contains("counters port=\"stuck\""))
        .unwrap();
    assert!(counters.contains("tx_queue_full="), "{counters}");
    drop(stuck);
}

#[test]
fn broken_framing_ends_one_connection_and_vms_come_back() {
    let daemon = Daemon::with_ports(&[("a", ""), ("b", "")]);
    let (mut a, mut b) = (daemon.connect("a"), daemon.connect("b"));
    meet(&mut a, 1, &mut b, 2);
    a.0.write_all(&[0xff; 64]).unwrap();
    assert!(a.is_closed());
    drop(a);
    for _ in 0..3 {
        let mut a = daemon.connect("a");
        meet(&mut a, 1, &mut b, 2);
        // Half a frame, then the connection closes.
        a.0.write_all(&[0, 0, 1, 0, 7, 7]).unwrap();
    }
    daemon.stop();
}

#[test]
fn two_daemons_are_joined_by_a_link() {
    // Ports that are unused, as far as can be known.
    let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let [one, two] = sockets.each_ref().map(|s| s.local_addr().unwrap());
    drop(sockets);
    let daemon = |local, peer| {
        Daemon::start(
            &format!(
                "holder = false\n[[switch.port]]\nname = \"vm\"\nstream = \"@/vm\"\n\
                 [[switch.port]]\nname = \"link\"\nlink = {{ local = \"{local}\", peer = \"{peer}\" }}\n"
            ),
            &[],
        )
    };
    let (first, second) = (daemon(one, two), daemon(two, one));
    let (mut a, mut b) = (first.connect("vm"), second.connect("vm"));
    meet(&mut a, 1, &mut b, 2);
    let jumbo = frame(mac(2), 1, &"x".repeat(8000));
    a.send(&jumbo);
    assert_eq!(b.receive(), jumbo);
    // A restarted peer is found again without any action.
    drop(b);
    second.stop();
    let second = daemon(two, one);
    let mut b = second.connect("vm");
    meet(&mut a, 1, &mut b, 2);
}

/// Returns words that run a command in a network namespace where it may create devices; `None` if that is not allowed
/// here.
fn own_network() -> Option<&'static [&'static str]> {
    let words: &[&str] = &["unshare", "--user", "--map-root-user", "--net"];
    let allowed = Command::new(words[0])
        .args(&words[1..])
        .arg("true")
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    let tap = Path::new("/dev/net/tun").exists();
    (allowed && tap).then_some(words)
}

#[test]
fn a_tap_device_joins_the_host() {
    let Some(words) = own_network() else {
        eprintln!("skipped: no right to make a network namespace, or no /dev/net/tun");
        return;
    };
    let script = "ip tuntap add up0 mode tap && ip link set up0 address 52:54:00:00:00:77 && ip link set up0 up && \
                  ip address add 10.9.9.1/24 dev up0 && exec \"$@\"";
    let around = [words, &["sh", "-c", script, "sh"]].concat();
    let daemon = Daemon::start(
        "holder = false\n[[switch.port]]\nname = \"vm\"\nstream = \"@/vm\"\n\
         [[switch.port]]\nname = \"up\"\ntap = \"up0\"\nmtu = 1500\n",
        &around,
    );
    let mut vm = daemon.connect("vm");
    // ARP: who has 10.9.9.1? Tell 10.9.9.2.
    let mut request = [BROADCAST, mac(2)].concat();
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(mac(2));
    request.extend([10, 9, 9, 2, 0, 0, 0, 0, 0, 0, 10, 9, 9, 1]);
    vm.0.set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    let answer = [10, 9, 9, 1, 0x52, 0x54, 0, 0, 0, 2, 10, 9, 9, 2];
    while !received.windows(answer.len()).any(|part| part == answer) {
        assert!(Instant::now() < deadline, "{}", daemon.log());
        vm.send(&request);
        let mut part = [0; 4096];
        if let Ok(length) = vm.0.read(&mut part) {
            received.extend_from_slice(&part[..length]);
        }
    }
    assert!(received.windows(6).any(|part| part == mac(0x77)));
    daemon.stop();
}

/// Returns the log of a daemon that refuses its configuration.
fn refused(config: &str) -> String {
    let mut daemon = Daemon::start(config, &[]);
    assert!(!daemon.process.wait().unwrap().success());
    daemon.log()
}

#[test]
fn what_cannot_be_opened_is_named() {
    let port = "holder = false\n[[switch.port]]\nname = \"p\"\n";
    let log = refused(&format!("{port}tap_fd = 999\n"));
    assert!(
        log.contains("switch port `p`: tap_fd = 999 is not open"),
        "{log}"
    );
    let log = refused(&format!("{port}stream = \"@/no/such/directory\"\n"));
    assert!(log.contains("cannot listen on"), "{log}");
    let log = refused(&format!(
        "{port}link = {{ local = \"192.0.2.1:4789\", peer = \"192.0.2.2:4789\" }}\n"
    ));
    assert!(
        log.contains("cannot use the address 192.0.2.1:4789"),
        "{log}"
    );
    let log = refused(&format!("{port}stream = \"@/config\"\n"));
    assert!(log.contains("not a socket"), "{log}");
}

#[test]
fn everything_works_with_four_workers() {
    vrnic_native::daemon::others_with_four_workers("everything_works_with_four_workers").unwrap();
}
