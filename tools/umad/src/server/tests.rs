// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Programs that communicate with a server of two HCAs as the functions of libibumad do.

use super::*;
use crate::record::MAD;
use vrnic_infiniband::{
    attributes::{PhysicalState, PortState, id},
    mad::{Route, Smp},
    rmpp::RmppStatus,
    topology::Topology,
};

const GET: Method = Method::GET;
const TABLE: Method = Method(0x12);
const MULTIPLE: Method = Method(0x14);
/// Version of subnet administration.
const VERSION: u8 = 2;

/// Creates a server for two HCAs with the LIDs 1 and 2.
fn two_hcas() -> Server {
    let text = "[[hca]]\nname = \"a\"\n[[hca]]\nname = \"b\"\n[[link]]\nends = [\"a\", \"b\"]";
    let mut subnet = Subnet::new(&Topology::parse(text).expect("a topology"));
    let second = Duration::from_secs(1);
    subnet.run_until(second);
    let hcas: Vec<NodeId> = subnet.hcas().collect();
    for state in [PortState::ARMED, PortState::ACTIVE] {
        for (place, path) in [&[][..], &[1]].into_iter().enumerate() {
            let mut info = *subnet.agent(hcas[place]).end_port().info();
            (info.lid, info.sm_lid) = (place as u16 + 1, 1);
            info.state = state;
            info.physical_state = PhysicalState::NO_CHANGE;
            let request = Smp {
                route: Route::along(path),
                data: info.to_data(),
                ..Smp::request(Method::SET, id::PORT_INFO, 1)
            };
            subnet.send_smp(hcas[0], &request, 0).expect("it leaves");
            subnet.run_until(subnet.now() + second);
            while subnet.receive().is_some() {}
        }
    }
    let server = Server::new(subnet);
    server.tick();
    server
}

/// Waits until the state of the server meets a condition.
fn until(server: &Server, has: impl Fn(&State) -> bool) {
    while !has(&server.lock()) {
        thread::sleep(TICK);
    }
}

/// Returns the number of agents of all programs.
fn agents(state: &State) -> usize {
    state.clients.iter().map(|client| client.agents.len()).sum()
}

/// A program that is connected to a server.
struct Program(UnixStream, Server);

impl Program {
    fn new(server: &Server, hca: &str) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let serves = server.clone();
        thread::spawn(move || serves.serve(&theirs));
        let mut open = Record::new(OPEN);
        open.mad_mut()[..hca.len()].copy_from_slice(hca.as_bytes());
        open.send(&ours).expect("a server");
        assert_eq!(Record::receive(&ours).expect("an answer").status(), 0);
        Self(ours, server.clone())
    }

    fn register(
        &self,
        agent: u32,
        class: [u8; 2],
        rmpp: [u8; 2],
        oui: [u8; 3],
        methods: &[Method],
    ) {
        let mut record = Record::new(REGISTER);
        record.set_agent(agent);
        let mask = methods
            .iter()
            .fold(0_u128, |mask, method| mask | 1 << method.0);
        let mad = record.mad_mut();
        mad[..2].copy_from_slice(&class);
        mad[2..4].copy_from_slice(&rmpp);
        mad[4..7].copy_from_slice(&oui);
        mad[8..24].copy_from_slice(&mask.to_ne_bytes());
        let before = agents(&self.1.lock());
        record.send(&self.0).expect("a server");
        until(&self.1, |state| agents(state) > before);
    }

    /// Connects an agent of subnet administration, which answers requests if `methods` are given.
    fn administration(server: &Server, hca: &str, flags: u8, methods: &[Method]) -> Self {
        let program = Self::new(server, hca);
        program.register(
            3,
            [class::ADMINISTRATION, VERSION],
            [1, flags],
            [0; 3],
            methods,
        );
        program
    }

    fn send(&self, lid: u16, message: &[u8], timeout: u32) {
        let mut record = Record::packet([0; HEADER], message);
        record.set_agent(3);
        record.set_lid(lid);
        record.set_qpn(1);
        record.set_qkey(MANAGEMENT_QKEY);
        record.set_timeout(timeout);
        record.send(&self.0).expect("a server");
    }

    fn receive(&self) -> Record {
        let record = Record::receive(&self.0).expect("a record");
        assert_eq!((record.kind(), record.agent()), (PACKET, 3));
        record
    }
}

/// Creates a message of a class with this length in bytes.
fn message(class: u8, method: Method, transaction: u64, length: usize) -> Vec<u8> {
    let mut message: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
    let header = Header {
        transaction,
        class_version: if class == class::ADMINISTRATION {
            VERSION
        } else {
            1
        },
        ..Header::request(class, method, 0x11, 0)
    };
    header.write(&mut message);
    RmppHeader {
        active: length > MAD,
        ..RmppHeader::default()
    }
    .write(&mut message);
    message
}

/// Returns the response to a request.
fn answer(request: &Record, length: usize) -> Vec<u8> {
    let header = Header::read(request.message());
    let method = Method(header.method.0 | 0x80);
    message(header.class, method, header.transaction, length)
}

#[test]
fn a_table_arrives_whole() {
    let server = two_hcas();
    let asks = Program::administration(&server, "a", 0, &[]);
    let answers = Program::administration(&server, "b", 0, &[TABLE]);
    for (number, length) in [(1, 300), (2, 457), (3, 30_000), (4, 300_000)] {
        asks.send(2, &message(3, TABLE, number, MAD), 60_000);
        let request = answers.receive();
        assert_eq!((request.lid(), request.qpn()), (1, 1));
        let table = answer(&request, length);
        answers.send(1, &table, 0);
        let received = asks.receive();
        assert_eq!((received.status(), received.lid()), (0, 2));
        assert_eq!(received.message().len(), length);
        assert!(received.message()[36..] == table[36..]);
        let transaction = Header::read(received.message()).transaction;
        assert_eq!(transaction as u32, number as u32);
    }
}

#[test]
fn a_request_can_be_long_too() {
    let server = two_hcas();
    let asks = Program::administration(&server, "a", 0, &[]);
    let answers = Program::administration(&server, "b", 0, &[MULTIPLE]);
    let question = message(3, MULTIPLE, 5, 5000);
    asks.send(2, &question, 60_000);
    let request = answers.receive();
    assert!(request.message()[36..] == question[36..]);
    answers.send(1, &answer(&request, 7000), 0);
    assert_eq!(asks.receive().message().len(), 7000);
    // If the request does not arrive or is not answered, it is returned to the program.
    for lid in [9, 2] {
        asks.send(lid, &question, 20);
        let back = asks.receive();
        assert_eq!(back.status(), libc::ETIMEDOUT.cast_unsigned());
        assert_eq!(Header::read(back.mad()).method, MULTIPLE);
        assert_eq!(back.message_length(), HEADER_LENGTH);
    }
}

#[test]
fn a_program_can_take_care_of_segments_itself() {
    let server = two_hcas();
    let asks = Program::administration(&server, "a", USER_RMPP, &[]);
    let answers = Program::administration(&server, "b", 0, &[TABLE]);
    asks.send(2, &message(3, TABLE, 1, MAD), 60_000);
    let request = answers.receive();
    answers.send(1, &answer(&request, 56 + 500), 0);
    for segment in 1..=3 {
        let record = asks.receive();
        let rmpp = RmppHeader::read(record.mad());
        assert_eq!((rmpp.kind, rmpp.segment), (Kind::DATA, segment));
        assert_eq!((rmpp.first, rmpp.last), (segment == 1, segment == 3));
        let mut ack = record.message().to_vec();
        ack[3] ^= 0x80;
        let rmpp = RmppHeader {
            kind: Kind::ACK,
            first: false,
            last: false,
            status: RmppStatus::OK,
            length: segment + 1,
            ..rmpp
        };
        rmpp.write(&mut ack);
        asks.send(2, &ack, 0);
    }
    // The other end could not have sent the last segment otherwise. Nothing is sent again.
    asks.send(2, &message(3, TABLE, 2, MAD), 60_000);
    let request = answers.receive();
    answers.send(1, &answer(&request, MAD), 0);
    assert_eq!(Header::read(asks.receive().mad()).transaction as u32, 2);
}

#[test]
fn only_who_was_asked_can_answer() {
    let server = two_hcas();
    let asks = Program::administration(&server, "a", 0, &[]);
    let other = Program::administration(&server, "b", 0, &[GET]);
    // The other program learns the transaction ID.
    asks.send(2, &message(3, GET, 4, MAD), 60_000);
    let seen = other.receive();
    other.send(1, &answer(&seen, MAD), 0);
    assert_eq!(asks.receive().status(), 0);
    for length in [MAD, 5000] {
        asks.send(9, &message(3, GET, 4, MAD), 300);
        until(&server, |state| !state.clients[0].requests.is_empty());
        other.send(1, &answer(&seen, length), 0);
        let record = asks.receive();
        assert_eq!(record.status(), libc::ETIMEDOUT.cast_unsigned());
        // An unrequested table is returned to its sender with an error.
        if length > MAD {
            let back = other.receive();
            assert_eq!(back.status(), libc::ETIMEDOUT.cast_unsigned());
        }
    }
}

#[test]
fn vendors_get_their_own() {
    const CLASS: u8 = class::VENDOR_OUI_FIRST;
    let server = two_hcas();
    let asks = Program::new(&server, "a");
    asks.register(3, [CLASS, 1], [0; 2], [0; 3], &[]);
    let vendors = [[0, 0x14, 5], [0, 2, 0xc9]].map(|oui| {
        let program = Program::new(&server, "b");
        program.register(3, [CLASS, 1], [0; 2], oui, &[GET]);
        (program, oui)
    });
    for (number, (program, oui)) in vendors.iter().enumerate() {
        let mut request = message(CLASS, GET, number as u64, MAD);
        request[37..40].copy_from_slice(oui);
        asks.send(2, &request, 60_000);
        let received = program.receive();
        assert_eq!(received.message()[37..40], *oui);
        program.send(1, &answer(&received, MAD), 0);
        let record = asks.receive();
        assert_eq!(record.status(), 0);
        assert_eq!(Header::read(record.mad()).transaction as u32, number as u32);
    }
    // An agent that is gone gets no requests.
    let (program, oui) = &vendors[0];
    let mut gone = Record::new(UNREGISTER);
    gone.set_agent(3);
    gone.send(&program.0).expect("a server");
    until(&server, |state| agents(state) == 2);
    let mut request = message(CLASS, GET, 9, MAD);
    request[37..40].copy_from_slice(oui);
    asks.send(2, &request, 50);
    assert_eq!(asks.receive().status(), libc::ETIMEDOUT.cast_unsigned());
}

#[test]
fn an_hca_without_programs_answers_pings() {
    let server = two_hcas();
    let asks = Program::new(&server, "a");
    asks.register(3, [class::PING, 1], [0; 2], [0; 3], &[]);
    let ping = |number| {
        let mut request = message(class::PING, GET, number, MAD);
        request[37..40].copy_from_slice(&vrnic_infiniband::ping::OUI);
        request
    };
    asks.send(2, &ping(1), 60_000);
    let pong = asks.receive();
    assert_eq!((pong.status(), &pong.message()[40..42]), (0, &b"b\0"[..]));
    // If there is a program, it answers, or nobody.
    let program = Program::new(&server, "b");
    asks.send(2, &ping(2), 50);
    assert_eq!(asks.receive().status(), libc::ETIMEDOUT.cast_unsigned());
    program.register(
        3,
        [class::PING, 1],
        [0; 2],
        vrnic_infiniband::ping::OUI,
        &[GET],
    );
    asks.send(2, &ping(3), 60_000);
    let request = program.receive();
    program.send(1, &answer(&request, MAD), 0);
    let pong = asks.receive();
    assert_ne!((pong.status(), &pong.message()[40..42]), (0, &b"b\0"[..]));
}

#[test]
fn a_program_that_does_not_read_holds_nobody_up() {
    let server = two_hcas();
    let asks = Program::administration(&server, "a", 0, &[]);
    let sleeps = Program::administration(&server, "b", 0, &[GET]);
    for number in 0..3 * MAX_UNREAD as u64 {
        asks.send(2, &message(3, GET, number, MAD), 0);
    }
    let answers = Program::administration(&server, "b", 0, &[TABLE]);
    asks.send(2, &message(3, TABLE, 7, MAD), 60_000);
    answers.send(1, &answer(&answers.receive(), 3000), 0);
    assert_eq!(asks.receive().message().len(), 3000);
    // The messages that there was room for are still there.
    assert_eq!(Header::read(sleeps.receive().mad()).transaction as u32, 0);
}
