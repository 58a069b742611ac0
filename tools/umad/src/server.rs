// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! A subnet in real time, with programs at its HCAs. It does for them what the kernel does for programs that have an
//! HCA: finds the agent that a MAD is for, waits for responses, and sends requests again.

use crate::record::{OPEN, PACKET, REGISTER, Record};
use std::{
    io,
    os::unix::net::{UnixListener, UnixStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
use vrnic_infiniband::{
    attributes::{PKeyTable, capability},
    mad::{Header, Method, class},
    packet::{Bth, Deth, Packet},
    subnet::{NodeId, Subnet},
};

/// How often time is looked at.
const TICK: Duration = Duration::from_millis(1);
/// How long a program may take to read.
const PATIENCE: Duration = Duration::from_secs(1);

/// A subnet with programs.
#[derive(Clone, Debug)]
pub struct Server(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    subnet: Subnet,
    start: Instant,
    clients: Vec<Client>,
    /// Number of the next client.
    next: u32,
}

/// A program at an HCA.
#[derive(Debug)]
struct Client {
    number: u32,
    node: NodeId,
    stream: UnixStream,
    agents: Vec<Agent>,
    requests: Vec<Request>,
}

/// Who in a program gets requests and traps of others.
#[derive(Debug)]
struct Agent {
    id: u32,
    class: u8,
    /// A bit for each method.
    methods: u128,
}

/// What a program waits for a response to.
#[derive(Debug)]
struct Request {
    transaction: u64,
    record: Record,
    due: Duration,
}

impl Server {
    /// Of that subnet, which begins now.
    pub fn new(subnet: Subnet) -> Self {
        Self(Arc::new(Mutex::new(State {
            subnet,
            start: Instant::now(),
            clients: Vec::new(),
            next: 1,
        })))
    }

    /// Serves programs, for ever.
    ///
    /// # Errors
    ///
    /// The socket cannot be used.
    pub fn run(&self, listener: &UnixListener) -> io::Result<()> {
        let server = self.clone();
        thread::spawn(move || {
            loop {
                thread::sleep(TICK);
                server.lock().advance();
            }
        });
        loop {
            let (stream, _) = listener.accept()?;
            let server = self.clone();
            // A program that is gone is no error of the server's.
            thread::spawn(move || server.serve(&stream));
        }
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
        stream.set_write_timeout(Some(PATIENCE))?;
        let open = Record::receive(stream)?;
        let number = self.lock().open(&open, stream)?;
        while let Ok(record) = Record::receive(stream) {
            self.lock().take(number, record);
        }
        self.lock().close(number);
        Ok(())
    }
}

impl State {
    /// Lets time pass.
    fn advance(&mut self) {
        self.subnet.run_until(self.start.elapsed());
        while let Some((node, packet)) = self.subnet.receive() {
            self.deliver(node, &packet);
        }
        let now = self.subnet.now();
        let mut again = Vec::new();
        self.clients.retain_mut(|client| {
            let (late, waiting) = std::mem::take(&mut client.requests)
                .into_iter()
                .partition(|request| request.due <= now);
            client.requests = waiting;
            late.into_iter().all(|mut request: Request| {
                let Some(left) = request.record.retries().checked_sub(1) else {
                    request.record.set_status(libc::ETIMEDOUT.cast_unsigned());
                    return request.record.send(&client.stream).is_ok();
                };
                request.record.set_retries(left);
                request.due = now + Duration::from_millis(request.record.timeout().into());
                again.push((client.node, request.record.clone()));
                client.requests.push(request);
                true
            })
        });
        for (node, record) in again {
            self.transmit(node, &record);
        }
    }

    /// A program comes.
    fn open(&mut self, open: &Record, stream: &UnixStream) -> io::Result<u32> {
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
            stream: stream.try_clone()?,
            agents: Vec::new(),
            requests: Vec::new(),
        });
        Ok(number)
    }

    /// A program is gone.
    fn close(&mut self, number: u32) {
        let gone = self
            .clients
            .iter()
            .position(|client| client.number == number);
        if let Some(client) = gone.map(|place| self.clients.remove(place)) {
            self.tell_of_manager(client.node);
        }
    }

    /// The port says whether a subnet manager is there.
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

    /// A record comes from a program.
    fn take(&mut self, number: u32, mut record: Record) {
        self.advance();
        let now = self.subnet.now();
        let Some(client) = self
            .clients
            .iter_mut()
            .find(|client| client.number == number)
        else {
            return;
        };
        let node = client.node;
        match record.kind() {
            REGISTER => {
                let mad = record.mad();
                let mut methods = [0; 16];
                methods.copy_from_slice(&mad[8..24]);
                client.agents.push(Agent {
                    id: record.agent(),
                    class: mad[0],
                    methods: u128::from_ne_bytes(methods),
                });
                self.tell_of_manager(node);
            }
            PACKET => {
                let Some(mut header) = Header::parse(record.mad()) else {
                    return;
                };
                if !is_answer(&header) {
                    // The upper half says who asks.
                    let who = u64::from(number) << 48 | u64::from(record.agent() & 0xffff) << 32;
                    header.transaction = who | header.transaction & 0xffff_ffff;
                    header.write(record.mad_mut());
                    if record.timeout() != 0 {
                        client.requests.push(Request {
                            transaction: header.transaction,
                            due: now + Duration::from_millis(record.timeout().into()),
                            record: record.clone(),
                        });
                    }
                }
                self.transmit(node, &record);
                self.advance();
            }
            _ => {}
        }
    }

    /// Sends a MAD. If it cannot leave it is as if it was lost.
    fn transmit(&mut self, node: NodeId, record: &Record) {
        let port = self.subnet.agent(node).end_port();
        let pkey = port.pkeys().get(usize::from(record.pkey_index()));
        let bth = Bth {
            pkey: pkey.copied().unwrap_or(0),
            destination_qp: record.qpn(),
            ..Bth::default()
        };
        let deth = Deth {
            qkey: record.qkey(),
            source_qp: u32::from(record.qpn() != 0),
        };
        let source = port.info().lid.wrapping_add(record.path_bits().into());
        let addresses = (source, record.lid());
        let packet = Packet::datagram(addresses, record.service_level(), bth, deth, record.mad());
        let _ = self.subnet.send(node, packet);
    }

    /// A packet came to an HCA: it is for the program that asked, or for one that takes such requests.
    fn deliver(&mut self, node: NodeId, packet: &Packet) {
        let Some((bth, deth, mad)) = packet.as_datagram() else {
            return;
        };
        let Some(header) = Header::parse(mad) else {
            return;
        };
        let here = self.clients.iter_mut().filter(|client| client.node == node);
        let mut found = None;
        for client in here {
            if header.method.is_response() {
                let asked = |request: &Request| request.transaction == header.transaction;
                if let Some(place) = client.requests.iter().position(asked) {
                    let agent = client.requests.remove(place).record.agent();
                    found = Some((client, agent));
                    break;
                }
            } else {
                let takes = |agent: &&Agent| {
                    agent.class == header.class
                        && agent.methods >> (header.method.0 & 0x7f) & 1 == 1
                };
                if let Some(agent) = client.agents.iter().find(takes).map(|agent| agent.id) {
                    found = Some((client, agent));
                    break;
                }
            }
        }
        let Some((client, agent)) = found else {
            return;
        };
        let mut record = Record::new(PACKET);
        record.set_agent(agent);
        record.set_length((crate::record::HEADER + mad.len()) as u32);
        record.set_qpn(deth.source_qp);
        record.set_qkey(deth.qkey);
        record.set_lid(packet.source);
        record.set_service_level(packet.service_level);
        let keys = self.subnet.agent(node).end_port().pkeys();
        let index = keys.iter().position(|key| *key == bth.pkey);
        record.set_pkey_index(index.unwrap_or(0) as u16);
        record.mad_mut().copy_from_slice(mad);
        let number = client.number;
        if record.send(&client.stream).is_err() {
            self.close(number);
        }
    }
}

/// Whether nobody answers a MAD, and its transaction is that of another one.
fn is_answer(header: &Header) -> bool {
    header.method.is_response() || header.method == Method::TRAP_REPRESS
}
