// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A subnet in real time with programs at its HCAs. The server does for the programs what the kernel does for programs
//! that use an HCA: it finds the agent for each MAD, waits for responses, and repeats requests.

use crate::record::{HEADER, OPEN, PACKET, REGISTER, Record, UNREGISTER, USER_RMPP};
use std::{
    io,
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use vrnic_infiniband::{
    attributes::{PKeyTable, capability},
    mad::{HEADER_LENGTH, Header, MANAGEMENT_QKEY, Method, OUI_AT, class},
    packet::{Bth, Deth, Packet},
    port::is_multicast,
    rmpp::{Delivery, Kind, Output, Peer, Rmpp, RmppHeader, SendError, header_length},
    subnet::{NodeId, Subnet},
};

/// Interval at which time is advanced.
const TICK: Duration = Duration::from_millis(1);
/// Maximum number of messages that wait for a program to read them. Further messages are lost.
const MAX_UNREAD: usize = 4096;
/// Maximum time before an unacknowledged message is sent again.
const MAX_INTERVAL: Duration = Duration::from_secs(2);

/// A subnet with programs.
#[derive(Clone, Debug)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    subnet: Subnet,
    /// Real time at which the server was created.
    start: Instant,
    /// Time of the subnet at that moment.
    first: Duration,
    clients: Vec<Client>,
    /// Number of the next client.
    next: u32,
}

/// A program at an HCA.
#[derive(Debug)]
struct Client {
    number: u32,
    node: NodeId,
    writer: SyncSender<Record>,
    agents: Vec<Agent>,
    requests: Vec<Request>,
}

/// An agent of a program, which sends MADs and receives requests and traps.
#[derive(Debug)]
struct Agent {
    id: u32,
    class: u8,
    version: u8,
    /// OUI of the vendor, for classes that several vendors share.
    oui: [u8; 3],
    /// A bit for each method.
    methods: u128,
    /// Long messages of the agent, unless it handles RMPP itself.
    rmpp: Option<Rmpp>,
    /// Records with the first MADs of the long messages that the agent is sending.
    sending: Vec<Record>,
}

/// A request whose response a program waits for.
#[derive(Debug)]
struct Request {
    transaction: u64,
    class: u8,
    record: Record,
    due: Duration,
}

impl Server {
    /// Creates a server for a subnet, whose time runs from now on.
    pub fn new(subnet: Subnet) -> Self {
        Self(Arc::new(Mutex::new(State {
            first: subnet.now(),
            subnet,
            start: Instant::now(),
            clients: Vec::new(),
            next: 1,
        })))
    }

    /// Serves programs forever.
    ///
    /// # Errors
    ///
    /// The socket cannot be used.
    pub fn run(&self, listener: &UnixListener) -> io::Result<()> {
        self.tick();
        loop {
            let (stream, _) = listener.accept()?;
            let server = self.clone();
            // It is not an error of the server if a program goes away.
            thread::spawn(move || server.serve(&stream));
        }
    }

    /// Starts a thread that advances the time.
    fn tick(&self) {
        let server = self.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(TICK);
                server.lock().advance();
            }
        });
    }

    /// Changes the subnet, for example its links.
    pub fn change<R>(&self, change: impl FnOnce(&mut Subnet) -> R) -> R {
        let mut state = self.lock();
        state.advance();
        change(&mut state.subnet)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Serves one program.
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        let open = Record::receive(stream)?;
        let (writer, records) = sync_channel::<Record>(MAX_UNREAD);
        let number = self.lock().open(&open, stream, writer)?;
        let output = stream.try_clone()?;
        thread::spawn(move || {
            while let Ok(record) = records.recv() {
                if record.send(&output).is_err() {
                    break;
                }
            }
            // Stop reading from a program that is gone.
            let _ = output.shutdown(Shutdown::Both);
        });
        while let Ok(record) = Record::receive(stream) {
            self.lock().take(number, record);
        }
        self.lock().close(number);
        Ok(())
    }
}

impl State {
    /// Advances the time of the subnet.
    fn advance(&mut self) {
        let end = self.first + self.start.elapsed();
        loop {
            while let Some((node, packet)) = self.subnet.receive() {
                self.deliver(node, &packet);
            }
            let deadline = self.next_deadline();
            let next = deadline.map_or(end, |at| at.min(end));
            if self.subnet.step(next) {
                continue;
            }
            self.subnet.run_until(next);
            if deadline.is_some_and(|at| at <= self.subnet.now()) {
                self.expire();
            } else {
                return;
            }
        }
    }

    /// Returns when the next request or message of a program expires.
    fn next_deadline(&self) -> Option<Duration> {
        let clients = self.clients.iter();
        let deadlines = clients.flat_map(|client| {
            let requests = client.requests.iter().map(|request| request.due);
            let agents = client.agents.iter();
            requests.chain(agents.filter_map(|agent| agent.rmpp.as_ref()?.next_deadline()))
        });
        deadlines.min()
    }

    /// Repeats requests without a response, or returns them to their programs with an error.
    fn expire(&mut self) {
        let now = self.subnet.now();
        for place in 0..self.clients.len() {
            let client = &mut self.clients[place];
            let late: Vec<Request> = client
                .requests
                .extract_if(.., |request| request.due <= now)
                .collect();
            for mut request in late {
                let client = &mut self.clients[place];
                let Some(left) = request.record.retries().checked_sub(1) else {
                    client.give_back(&request.record);
                    continue;
                };
                request.record.set_retries(left);
                request.due = now + milliseconds(request.record.timeout());
                let (node, record) = (client.node, request.record.clone());
                client.requests.push(request);
                self.transmit_record(node, &record);
            }
            for agent in 0..self.clients[place].agents.len() {
                if let Some(rmpp) = &mut self.clients[place].agents[agent].rmpp {
                    rmpp.poll(now);
                    self.work(place, agent);
                }
            }
        }
    }

    /// Opens an HCA for a program.
    fn open(
        &mut self,
        open: &Record,
        stream: &UnixStream,
        writer: SyncSender<Record>,
    ) -> io::Result<u32> {
        let name = open
            .mad()
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default();
        let node = if name.is_empty() {
            self.subnet.hcas().next()
        } else {
            self.subnet
                .hcas()
                .find(|node| self.subnet.name(*node).as_bytes() == name)
        };
        let mut answer = Record::new(OPEN);
        let Some(node) = node else {
            answer.set_status(libc::ENODEV.cast_unsigned());
            answer.send(stream)?;
            return Err(io::ErrorKind::NotFound.into());
        };
        self.advance();
        let agent = self.subnet.agent(node);
        let port = agent.end_port();
        let (info, rest) = answer.mad_mut().split_at_mut(64);
        port.info().write(info);
        let (info, rest) = rest.split_at_mut(64);
        let mut own = *agent.node();
        own.local_port = 1;
        own.write(info);
        let mut keys = [0; 32];
        keys.copy_from_slice(port.pkeys());
        let (table, rest) = rest.split_at_mut(64);
        PKeyTable { keys }.write(table);
        rest[..8].copy_from_slice(&port.rate().to_ne_bytes());
        answer.send(stream)?;
        let number = self.next;
        self.next += 1;
        self.clients.push(Client {
            number,
            node,
            writer,
            agents: Vec::new(),
            requests: Vec::new(),
        });
        Ok(number)
    }

    /// Removes a program that is gone.
    fn close(&mut self, number: u32) {
        let gone = self
            .clients
            .iter()
            .position(|client| client.number == number);
        if let Some(client) = gone.map(|place| self.clients.remove(place)) {
            self.tell_of_manager(client.node);
        }
    }

    /// Updates the port's capability that says whether there is a subnet manager.
    fn tell_of_manager(&mut self, node: NodeId) {
        let manager = self
            .clients
            .iter()
            .filter(|client| client.node == node)
            .any(|client| {
                client.agents.iter().any(|agent| {
                    agent.class & 0x7f == class::SUBNET && agent.methods >> Method::GET.0 & 1 == 1
                })
            });
        self.subnet.change_agent(node, |agent| {
            let mask = agent.end_port().info().capability_mask & !capability::SM;
            agent.set_capabilities(if manager { mask | capability::SM } else { mask });
        });
    }

    /// Processes a record from a program.
    fn take(&mut self, number: u32, record: Record) {
        self.advance();
        let known = |client: &Client| client.number == number;
        let Some(place) = self.clients.iter().position(known) else {
            return;
        };
        let client = &mut self.clients[place];
        let node = client.node;
        match record.kind() {
            REGISTER => {
                client.agents.push(Agent::new(&record));
                self.tell_of_manager(node);
            }
            UNREGISTER => {
                client.agents.retain(|agent| agent.id != record.agent());
                let others = |request: &Request| request.record.agent() != record.agent();
                client.requests.retain(others);
                self.tell_of_manager(node);
            }
            PACKET => self.take_packet(place, record),
            _ => {}
        }
        self.advance();
    }

    /// Sends a MAD or a longer message of a program.
    fn take_packet(&mut self, place: usize, mut record: Record) {
        let now = self.subnet.now();
        let client = &mut self.clients[place];
        let Some(mut header) = Header::parse(record.mad()) else {
            return;
        };
        let of = |agent: &Agent| agent.id == record.agent();
        let Some(agent) = client.agents.iter().position(of) else {
            return;
        };
        let answer = is_answer(&header);
        if !answer {
            // The upper half identifies the agent.
            let who = u64::from(client.number) << 48 | u64::from(record.agent() & 0xffff) << 32;
            header.transaction = who | header.transaction & 0xffff_ffff;
            header.write(record.mad_mut());
        }
        let node = client.node;
        let peer = self.peer_of(node, &record);
        let client = &mut self.clients[place];
        // Programs fill in only this flag of the RMPP header.
        let active = RmppHeader::read(record.mad()).active;
        let long = client.agents[agent].rmpp.as_mut();
        if let Some(long) = long.filter(|_| active && header_length(header.class).is_some()) {
            let wait = milliseconds(record.timeout());
            let delivery = Delivery {
                interval: match record.timeout() {
                    0 => MAX_INTERVAL,
                    _ => wait.min(MAX_INTERVAL),
                },
                retries: record.retries(),
                answered: record.timeout() != 0,
            };
            let message = record.message().to_vec();
            let first = Record::packet(record.header(), record.mad());
            match long.send(peer, message, delivery, now) {
                Ok(()) => client.agents[agent].sending.push(first),
                // A second response to the same request.
                Err(SendError::Duplicate) => {}
                Err(_) => client.give_back(&first),
            }
            self.work(place, agent);
            return;
        }
        if !answer && record.timeout() != 0 {
            client.wait(&header, record.clone(), now);
        }
        self.transmit_record(node, &record);
    }

    /// Returns the peer to which a record is addressed.
    fn peer_of(&self, node: NodeId, record: &Record) -> Peer {
        let port = self.subnet.agent(node).end_port();
        let pkey = port.pkeys().get(usize::from(record.pkey_index()));
        Peer {
            lid: record.lid(),
            qp: record.qpn(),
            own: port.info().lid.wrapping_add(record.path_bits().into()),
            service_level: record.service_level(),
            pkey: pkey.copied().unwrap_or(0),
        }
    }

    /// Sends the MAD of a record.
    fn transmit_record(&mut self, node: NodeId, record: &Record) {
        let peer = self.peer_of(node, record);
        self.transmit(node, peer, record.qkey(), record.mad());
    }

    /// Sends a MAD. If it cannot be sent, it counts as lost.
    fn transmit(&mut self, node: NodeId, peer: Peer, qkey: u32, mad: &[u8]) {
        let bth = Bth {
            pkey: peer.pkey,
            destination_qp: peer.qp,
            ..Bth::default()
        };
        let deth = Deth {
            qkey,
            source_qp: u32::from(peer.qp != 0),
        };
        let addresses = (peer.own, peer.lid);
        let packet = Packet::datagram(addresses, peer.service_level, bth, deth, mad);
        let _ = self.subnet.send(node, packet);
    }

    /// Delivers a packet that arrived at an HCA to the program that waits for it or has registered for such requests.
    fn deliver(&mut self, node: NodeId, packet: &Packet) {
        let Some((bth, deth, mad)) = packet.as_datagram() else {
            return;
        };
        let (Some(header), Ok(mad)) = (Header::parse(mad), mad.try_into()) else {
            return;
        };
        let Some((place, agent)) = self.agent_for(node, &header, mad) else {
            // The software of an HCA is its programs, if it has any.
            if !self.clients.iter().any(|client| client.node == node) {
                self.subnet.answer_ping(node, packet);
            }
            return;
        };
        let peer = Peer {
            lid: packet.source,
            qp: deth.source_qp,
            own: packet.destination,
            service_level: packet.service_level,
            pkey: bth.pkey,
        };
        let now = self.subnet.now();
        let client = &mut self.clients[place];
        let asked = client.asked(&header, peer).is_some();
        if let Some(rmpp) = &mut client.agents[agent].rmpp {
            // Unwanted data must not take up room.
            let data = RmppHeader::read(mad).kind == Kind::DATA;
            let wanted = asked || !is_answer(&header) || rmpp.knows(peer, &header);
            if (wanted || !data) && rmpp.receive(peer, mad, now) {
                self.work(place, agent);
                return;
            }
        }
        self.complete(place, agent, peer, deth.qkey, mad);
    }

    /// Returns the agent for a MAD, as the indexes of the client and of its agent.
    fn agent_for(&self, node: NodeId, header: &Header, mad: &[u8; 256]) -> Option<(usize, usize)> {
        let clients = self.clients.iter().enumerate();
        let mut here = clients.filter(|(_, client)| client.node == node);
        here.find_map(|(place, client)| {
            let agent = client.agents.iter().position(|agent| {
                if is_answer(header) {
                    let who = u64::from(client.number) << 16 | u64::from(agent.id & 0xffff);
                    header.transaction >> 32 == who & 0xffff_ffff
                } else {
                    agent.takes(header, mad)
                }
            });
            Some((place, agent?))
        })
    }

    /// Handles the RMPP outputs of an agent.
    fn work(&mut self, place: usize, agent: usize) {
        loop {
            let client = &mut self.clients[place];
            let node = client.node;
            let Some(it) = client.agents.get_mut(agent) else {
                return;
            };
            match it.rmpp.as_mut().and_then(Rmpp::output) {
                None => return,
                Some(Output::Transmit(peer, mad)) => {
                    self.transmit(node, peer, MANAGEMENT_QKEY, &mad[..]);
                }
                Some(Output::Message(peer, message)) => {
                    self.complete(place, agent, peer, MANAGEMENT_QKEY, &message);
                }
                Some(Output::Sent {
                    peer,
                    header,
                    result,
                }) => {
                    let of = |record: &Record| {
                        let sent = Header::read(record.mad());
                        (record.lid(), sent.transaction, sent.method)
                            == (peer.lid, header.transaction, header.method)
                    };
                    let Some(found) = it.sending.iter().position(of) else {
                        continue;
                    };
                    let mut record = it.sending.swap_remove(found);
                    if result.is_err() {
                        client.give_back(&record);
                    } else if record.timeout() != 0 {
                        // The message has arrived, so there is no use in sending it again.
                        record.set_retries(0);
                        client.wait(&header, record, self.subnet.now());
                    }
                }
            }
        }
    }

    /// Gives a complete MAD or longer message to the program.
    fn complete(&mut self, place: usize, agent: usize, peer: Peer, qkey: u32, message: &[u8]) {
        let client = &mut self.clients[place];
        let agent = &client.agents[agent];
        let (id, header) = (agent.id, Header::read(message));
        if is_answer(&header) {
            // An agent that handles RMPP itself gets all segments.
            let segment = RmppHeader::read(message).active && header_length(header.class).is_some();
            let sees = segment && agent.rmpp.is_none();
            match client.asked(&header, peer) {
                Some(request) => drop(client.requests.remove(request)),
                None if sees => {}
                None => return,
            }
        }
        let port = self.subnet.agent(client.node).end_port();
        let index = port.pkeys().iter().position(|key| *key == peer.pkey);
        let mut record = Record::packet([0; HEADER], message);
        record.set_agent(id);
        record.set_qpn(peer.qp);
        record.set_qkey(qkey);
        record.set_lid(peer.lid);
        record.set_service_level(peer.service_level);
        record.set_path_bits((peer.own & ((1 << port.info().lmc) - 1)) as u8);
        record.set_pkey_index(index.unwrap_or(0) as u16);
        client.write(record);
    }
}

impl Client {
    /// Gives a record to the program, unless too many wait already.
    fn write(&self, record: Record) {
        let _ = self.writer.try_send(record);
    }

    /// Returns a request to the program with a timeout error.
    fn give_back(&self, record: &Record) {
        let mut record = Record::packet(record.header(), &record.mad()[..HEADER_LENGTH]);
        record.set_status(libc::ETIMEDOUT.cast_unsigned());
        self.write(record);
    }

    /// Starts to wait for the response to a request.
    fn wait(&mut self, header: &Header, record: Record, now: Duration) {
        self.requests.push(Request {
            transaction: header.transaction,
            class: header.class,
            due: now + milliseconds(record.timeout()),
            record,
        });
    }

    /// Returns the index of the request that a response answers.
    fn asked(&self, header: &Header, peer: Peer) -> Option<usize> {
        self.requests.iter().position(|request| {
            let lid = request.record.lid();
            // A response along a directed route, or from a member of a group, may come from another LID.
            let from = header.class == class::SUBNET_DIRECTED || is_multicast(lid);
            (request.transaction, request.class) == (header.transaction, header.class)
                && (from || lid == peer.lid)
        })
    }
}

impl Agent {
    /// Creates an agent from the record of its registration.
    fn new(record: &Record) -> Self {
        let mad = record.mad();
        let mut methods = [0; 16];
        methods.copy_from_slice(&mad[8..24]);
        let long = mad[2] != 0 && mad[3] & USER_RMPP == 0;
        Self {
            id: record.agent(),
            class: mad[0],
            version: mad[1],
            oui: [mad[4], mad[5], mad[6]],
            methods: u128::from_ne_bytes(methods),
            rmpp: long.then(Rmpp::default),
            sending: Vec::new(),
        }
    }

    /// Returns whether the agent wants requests of this kind.
    fn takes(&self, header: &Header, mad: &[u8; 256]) -> bool {
        let vendor = (class::VENDOR_OUI_FIRST..=class::VENDOR_OUI_LAST).contains(&header.class);
        (self.class, self.version) == (header.class, header.class_version)
            && self.methods >> (header.method.0 & 0x7f) & 1 == 1
            && (!vendor || self.oui == mad[OUI_AT..OUI_AT + 3])
    }
}

fn milliseconds(number: u32) -> Duration {
    Duration::from_millis(number.into())
}

/// Returns whether a MAD gets no response and has the transaction ID of another MAD.
fn is_answer(header: &Header) -> bool {
    header.method.is_response() || header.method == Method::TRAP_REPRESS
}

#[cfg(test)]
mod tests;
