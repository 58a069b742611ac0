// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! RoCE version 2 over the host's own network. The peers can be any RNICs, and need no support for vrnic.
//!
//! The RNIC has the host's address as a GID. Its packets are sent from a UDP socket with that address, which needs no
//! privilege, and packets that arrive at the socket are for the RNIC. So addresses inside the packets equal those
//! outside, as programs and the connection manager on both sides expect. And each address has only one RNIC, as queue
//! pair numbers require.
//!
//! The port has its own Ethernet address and replies on behalf of the peers: a guest that resolves a peer's address
//! gets that of the port. The port carries only RoCE, and only to and from peers.
//!
//! The headers that the kernel writes are known in advance (see [`Datagrams::never_fragment`]). A [`Carrier`] adjusts
//! the invariant CRC to them, and reconstructs the header fields of a received packet that the socket does not report.
//! Time to live and flow label are the host's, because the CRC does not cover them. Traffic class and congestion marks
//! are passed on in both directions.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use vrnic_engine::segment::Path;
use vrnic_roce::{Carrier, Outline, UDP_PORT, gid_of};
use vrnic_wire::port::NO_VLAN;

use super::datagrams::{BATCH, Datagram, Datagrams};
use super::losses::{Loss, Losses};
use super::medium::Medium;
use super::neighbor;
use crate::config::switch;

/// Largest number of replies that wait to be read. A guest whose further requests are dropped repeats them.
const ANSWERS: usize = 64;

/// The port's connection to the host's network.
pub struct Udp {
    socket: Datagrams,
    carrier: Carrier,
    ends: Ends,
    /// Frames that tell the guest the Ethernet addresses of peers.
    answers: VecDeque<Vec<u8>>,
    losses: Arc<Losses>,
}

/// The two ends of the conversation.
struct Ends {
    settings: switch::Udp,
    /// Ethernet address of the RNIC.
    rnic: [u8; 6],
    /// Ethernet address of the port.
    port: [u8; 6],
}

impl Ends {
    /// Returns whether packets may be exchanged with `address`.
    fn has_peer(&self, address: IpAddr) -> bool {
        address != self.settings.local
            && self
                .settings
                .peers
                .iter()
                .any(|prefix| prefix.contains(address))
    }

    /// Parses the addresses of a frame, if it is from the RNIC and to a peer.
    fn outline(&self, frame: &[u8]) -> Option<Outline> {
        Outline::of(frame).filter(|outline| {
            outline.source == self.settings.local
                && frame[6..12] == self.rnic
                && self.has_peer(outline.destination)
        })
    }

    /// Returns the path of a packet that came from a peer.
    fn path(&self, from: SocketAddr, traffic_class: u8) -> Path {
        Path {
            source: gid_of(from.ip()),
            destination: gid_of(self.settings.local),
            source_mac: self.port,
            destination_mac: self.rnic,
            vlan: NO_VLAN,
            traffic_class,
            source_port: from.port(),
            ..Path::default()
        }
    }
}

impl Udp {
    /// Opens the medium for the RNIC with the MAC address `rnic`, on a port with the MAC address `port`.
    ///
    /// # Errors
    /// The address does not belong to this host, or other software, such as Soft-RoCE, uses its RoCE port.
    pub fn open(
        settings: &switch::Udp,
        rnic: [u8; 6],
        port: [u8; 6],
        losses: Arc<Losses>,
    ) -> Result<Self> {
        let local = SocketAddr::new(settings.local, UDP_PORT);
        let socket = UdpSocket::bind(local)
            .with_context(|| format!("cannot use the address {local} (is rdma_rxe loaded?)"))?;
        let socket = Datagrams::new(socket, losses.clone())?;
        socket.never_fragment()?;
        socket.accept_unchecked()?;
        Ok(Self {
            socket,
            carrier: Carrier::default(),
            ends: Ends {
                settings: settings.clone(),
                rnic,
                port,
            },
            answers: VecDeque::new(),
            losses,
        })
    }

    /// Handles a frame that is not to be sent: queues a reply if it asks for a peer's Ethernet address, and counts it
    /// as lost otherwise.
    fn keep(&mut self, frame: &[u8]) {
        let ends = &self.ends;
        let answer = neighbor::answer(frame, ends.port, |address| ends.has_peer(address));
        match answer.filter(|_| frame[6..12] == ends.rnic) {
            Some(answer) if self.answers.len() < ANSWERS => self.answers.push_back(answer),
            Some(_) => {}
            None => self.losses.add(Loss::Foreign, 1),
        }
    }
}

impl Medium for Udp {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.descriptor())
    }

    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.answers.drain(..).for_each(|frame| take(&frame));
        let (ends, carrier, losses) = (&self.ends, &mut self.carrier, &self.losses);
        self.socket.receive(&mut |arrived| {
            let path = ends.path(arrived.from, arrived.traffic_class);
            let peer = ends.has_peer(arrived.from.ip());
            match carrier.frame(arrived.bytes, &path).filter(|_| peer) {
                Some(frame) => take(frame),
                None => losses.add(Loss::Stranger, 1),
            }
        });
        Ok(())
    }

    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool> {
        while let Some(frame) = frames.front() {
            if self.ends.outline(frame).is_none() {
                let frame = frames.pop_front().unwrap_or_default();
                self.keep(&frame);
                spent(frame);
                continue;
            }
            let mut train = self.socket.train();
            let mut batch = Vec::with_capacity(BATCH);
            for frame in frames.iter_mut().take(BATCH) {
                let Some(outline) = self.ends.outline(frame) else {
                    break;
                };
                let to = Some(SocketAddr::new(outline.destination, UDP_PORT));
                let place = train.place(to, outline.traffic_class, outline.length);
                let bytes = self.carrier.datagram(frame, &outline, UDP_PORT, place);
                batch.push(Datagram {
                    to,
                    traffic_class: outline.traffic_class,
                    parts: [bytes, &[]],
                    place,
                });
            }
            let sent = self.socket.send(&batch);
            drop(batch);
            frames.drain(..sent.done).for_each(&mut *spent);
            if sent.blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn has_answers(&self) -> bool {
        !self.answers.is_empty()
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};
    use vrnic_engine::Segment;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{Body, Payload, Position, SendTail, Service, Touched};
    use vrnic_engine::testing::Memories;
    use vrnic_roce::{FrameError, MAX_FRAME, encode, parse};

    const PORT: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const RNIC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 9];

    /// Returns a loopback address that only this process uses.
    fn loopback(index: u32) -> IpAddr {
        Ipv4Addr::from_bits(0x7f00_0000 | std::process::id() << 2 | index).into()
    }

    fn open(local: IpAddr, peer: IpAddr) -> Udp {
        let settings = switch::Udp {
            local,
            device: "a".into(),
            peers: vec![peer.to_string().try_into().unwrap()],
        };
        Udp::open(&settings, RNIC, PORT, Arc::default()).unwrap()
    }

    /// Returns a frame of the RNIC with a payload of `length` bytes.
    fn frame(source: IpAddr, destination: IpAddr, length: usize) -> Vec<u8> {
        let path = Path {
            source: gid_of(source),
            destination: gid_of(destination),
            source_mac: RNIC,
            destination_mac: PORT,
            vlan: NO_VLAN,
            traffic_class: 0x6a,
            source_port: 0xc123,
            ..Path::default()
        };
        let segment = Segment {
            path,
            source_qpn: 0,
            destination_qpn: 5,
            pkey: 0xffff,
            checksums_ok: false,
            touched: Touched::NOT,
            psn: Psn::new(7),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Middle,
                tail: SendTail::Plain,
            },
            payload: Payload::Bytes(vec![length as u8; length]),
        };
        let mut frame = vec![0; MAX_FRAME];
        let length = encode(&segment, &Memories::new().add(0), &mut frame).unwrap();
        frame.truncate(length);
        frame
    }

    fn write(udp: &mut Udp, frames: impl IntoIterator<Item = Vec<u8>>) {
        let mut frames: VecDeque<_> = frames.into_iter().collect();
        let (mut spent, before) = (0, frames.len());
        assert!(!udp.write(&mut frames, &mut |_| spent += 1).unwrap());
        assert_eq!((frames.len(), spent), (0, before));
    }

    /// Reads until `enough`. Loopback traffic may take a moment to arrive.
    fn read_until(udp: &mut Udp, enough: impl Fn(&Udp, usize) -> bool) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let begin = Instant::now();
        while !enough(udp, frames.len()) {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "{:?}",
                losses(udp)
            );
            udp.read(&mut |frame| frames.push(frame.to_vec())).unwrap();
        }
        frames
    }

    fn read(udp: &mut Udp, count: usize) -> Vec<Vec<u8>> {
        read_until(udp, |_, came| came >= count)
    }

    fn losses(udp: &Udp) -> Vec<(Loss, u64)> {
        udp.losses.all().filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn packets_pass_between_ports() {
        let [here, there] = [0, 1].map(loopback);
        let (mut a, mut b) = (open(here, there), open(there, here));
        let lengths = [0, 4096, 4096, 4096, 100, 100, 1];
        write(&mut a, lengths.map(|length| frame(here, there, length)));
        let came = read(&mut b, lengths.len());
        assert_eq!(came.len(), lengths.len());
        for (frame, length) in came.iter().zip(lengths) {
            let segment = parse(frame).unwrap();
            assert_eq!(segment.payload.len() as usize, length);
            let path = &segment.path;
            assert_eq!(
                (path.source, path.destination),
                (gid_of(here), gid_of(there))
            );
            assert_eq!((path.source_mac, path.destination_mac), (PORT, RNIC));
            assert_eq!((path.source_port, path.traffic_class), (UDP_PORT, 0x6a));
        }
        // A reply, damaged as by a fault.
        let mut damaged = frame(there, here, 64);
        damaged[60] ^= 1;
        write(&mut b, [damaged]);
        assert_eq!(parse(&read(&mut a, 1)[0]).unwrap_err(), FrameError::Icrc);
        assert_eq!((losses(&a), losses(&b)), (vec![], vec![]));
    }

    #[test]
    fn only_what_the_port_is_for_passes() {
        let [here, there] = [2, 3].map(loopback);
        let mut a = open(here, there);
        let elsewhere = "192.0.2.9".parse().unwrap();
        let of_another = |at: usize| {
            let mut frame = frame(here, there, 8);
            frame[at] ^= 8;
            frame
        };
        let refused = [
            frame(elsewhere, there, 8),
            frame(here, elsewhere, 8),
            frame(here, here, 8),
            // Another Ethernet source; another UDP port; incomplete frames.
            of_another(11),
            of_another(37),
            vec![0; 60],
            vec![],
        ];
        let count = refused.len() as u64;
        write(&mut a, refused);
        assert_eq!(losses(&a), [(Loss::Foreign, count)]);
        // From a peer's host but another port, as most NICs send; then from an unknown host.
        let peer = UdpSocket::bind((there, 0)).unwrap();
        peer.send_to(&[7; 20], (here, UDP_PORT)).unwrap();
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(&[7; 20], (here, UDP_PORT)).unwrap();
        let came = read_until(&mut a, |a, _| losses(a).len() == 2);
        assert_eq!(came.len(), 1);
        assert!(came[0].ends_with(&[7; 20]));
        assert_eq!(losses(&a), [(Loss::Stranger, 1), (Loss::Foreign, count)]);
        // No socket has the RoCE port there.
        write(&mut a, [frame(here, there, 8)]);
        let refused = |a: &Udp, _| losses(a).contains(&(Loss::Refused, 1));
        assert_eq!(read_until(&mut a, refused), Vec::<Vec<u8>>::new());

        // A request for a peer's address is answered with the port's, but only for the RNIC's guest.
        let mut request = [[0xff; 6], RNIC].concat();
        request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        request.extend(RNIC);
        request.extend(&gid_of(here)[12..]);
        request.extend([0; 6]);
        request.extend(&gid_of(there)[12..]);
        let mut other = request.clone();
        other[6] ^= 4;
        assert!(!a.has_answers());
        write(&mut a, [other, request.clone()]);
        assert!(a.has_answers());
        let answers = read(&mut a, 1);
        assert_eq!(answers.len(), 1);
        assert_eq!(answers[0][..14], [&RNIC[..], &PORT, &[8, 6]].concat());
        assert!(!a.has_answers());
        write(&mut a, vec![request; 1000]);
        assert_eq!(read(&mut a, 1).len(), ANSWERS);
    }

    #[test]
    fn the_address_must_be_the_hosts_and_free() {
        let settings = switch::Udp {
            local: "192.0.2.1".parse().unwrap(),
            device: "a".into(),
            peers: Vec::new(),
        };
        let refused = Udp::open(&settings, RNIC, PORT, Arc::default())
            .err()
            .unwrap();
        let refused = format!("{refused:#}");
        assert!(
            refused.contains("cannot use the address 192.0.2.1:4791"),
            "{refused}"
        );
    }
}
