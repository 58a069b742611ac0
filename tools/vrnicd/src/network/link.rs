// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A link to another switch: each frame is sent in a UDP datagram with a VXLAN header (RFC 7348).
//!
//! Why datagrams: a lost datagram delays no other, a peer that restarts needs no new setup, and RoCE has its own
//! reliability, which would conflict with that of an underlying stream. Why VXLAN: other switches, the kernel and
//! analysers understand it.
//!
//! The socket is connected, so the kernel drops datagrams from any address and port except the peer's. There is no
//! further authentication: the network between the two must be trusted or protected (WireGuard, IPsec).

use std::collections::VecDeque;
use std::io;
use std::net::UdpSocket;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use anyhow::{Context, Result};

use super::datagrams::{BATCH, Datagram, Datagrams, HEADROOM};
use super::losses::{Loss, Losses};
use super::medium::Medium;
use crate::config::switch;

/// Length of the VXLAN header: flags, three reserved bytes, the network identifier, a reserved byte.
const HEADER: usize = 8;
/// Flag: the network identifier is valid.
const HAS_VNI: u8 = 0x08;

/// A link.
pub struct Link {
    socket: Datagrams,
    header: [u8; HEADER],
    losses: Arc<Losses>,
}

impl Link {
    /// Opens one end of a link.
    ///
    /// # Errors
    /// The address does not belong to this host or is in use, or there is no route to the peer.
    pub fn open(settings: &switch::Link, losses: Arc<Losses>) -> Result<Self> {
        let socket = UdpSocket::bind(settings.local).with_context(|| {
            format!(
                "cannot use the address {} (if another program uses it, give `local` another port)",
                settings.local
            )
        })?;
        socket
            .connect(settings.peer)
            .with_context(|| format!("cannot reach {}", settings.peer))?;
        let [_, a, b, c] = settings.vni.to_be_bytes();
        Ok(Self {
            socket: Datagrams::new(socket, losses.clone())?,
            header: [HAS_VNI, 0, 0, 0, a, b, c, 0],
            losses,
        })
    }
}

/// Returns the frame in a datagram, if its network identifier is that of the header `own`. Reserved bits are ignored,
/// as RFC 7348 requires.
fn frame_in(datagram: &[u8], own: [u8; HEADER]) -> Option<&[u8]> {
    let (header, frame) = datagram.split_first_chunk::<HEADER>()?;
    (header[0] & HAS_VNI != 0 && header[4..7] == own[4..7]).then_some(frame)
}

impl Medium for Link {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.descriptor())
    }

    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let (header, losses) = (self.header, &self.losses);
        self.socket.receive(
            &mut |arrived| match frame_in(&arrived.bytes[HEADROOM..], header) {
                Some(frame) => take(frame),
                None => losses.add(Loss::Stranger, 1),
            },
        );
        Ok(())
    }

    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool> {
        while !frames.is_empty() {
            let mut train = self.socket.train();
            let datagrams = frames.iter().take(BATCH).map(|frame| Datagram {
                to: None,
                traffic_class: 0,
                parts: [&self.header, frame],
                place: train.place(None, 0, HEADER + frame.len()),
            });
            let sent = self.socket.send(&datagrams.collect::<Vec<_>>());
            frames.drain(..sent.done).for_each(&mut *spent);
            if sent.blocked {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// Returns three unused addresses.
    fn addresses() -> [SocketAddr; 3] {
        let sockets = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        sockets.map(|socket| socket.local_addr().unwrap())
    }

    fn open(local: SocketAddr, peer: SocketAddr, vni: u32) -> Link {
        Link::open(&switch::Link { local, peer, vni }, Arc::default()).unwrap()
    }

    fn send(link: &mut Link, frame: Vec<u8>) {
        assert!(
            !link
                .write(&mut VecDeque::from([frame]), &mut |_| {})
                .unwrap()
        );
    }

    fn receive(link: &mut Link) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        link.read(&mut |frame| frames.push(frame.to_vec())).unwrap();
        frames
    }

    #[test]
    fn a_port_in_use_is_named() {
        let [local, peer, _] = addresses();
        let _other = UdpSocket::bind(local).unwrap();
        let settings = switch::Link {
            local,
            peer,
            vni: 1,
        };
        let refused = Link::open(&settings, Arc::default()).err().unwrap();
        let refused = format!("{refused:#}");
        let expected = format!("cannot use the address {local} (if another program uses it, ");
        assert!(refused.starts_with(&expected), "{refused}");
        assert!(refused.contains("Address already in use"), "{refused}");
    }

    #[test]
    fn frames_pass_between_peers_of_one_network_only() {
        let [a, b, c] = addresses();
        let mut link_a = open(a, b, 0x0001_0203);
        // There is no peer yet, so the frames are lost, and the error is ignored.
        send(&mut link_a, vec![1; 60]);
        assert_eq!(receive(&mut link_a), Vec::<Vec<u8>>::new());
        let mut link_b = open(b, a, 0x0001_0203);
        send(&mut link_a, vec![2; 60]);
        send(&mut link_a, vec![3; 9000]);
        assert_eq!(receive(&mut link_b), [vec![2; 60], vec![3; 9000]]);
        send(&mut link_b, vec![4; 1]);
        assert_eq!(receive(&mut link_a), [vec![4; 1]]);

        // A datagram from another address, and datagrams from the peer that are not VXLAN or are for another network.
        let stranger = UdpSocket::bind(c).unwrap();
        stranger.send_to(&[8, 0, 0, 0, 1, 2, 3, 0, 9], b).unwrap();
        drop(link_a);
        let link_a = UdpSocket::bind(a).unwrap();
        let send_raw = |bytes: &[u8]| link_a.send_to(bytes, b).unwrap();
        send_raw(&[0, 0, 0, 0, 1, 2, 3, 0, 9]);
        send_raw(&[8, 0, 0, 0, 1, 2, 4, 0, 9]);
        send_raw(&[8, 0, 0]);
        send_raw(&[8, 0, 0, 0, 1, 2, 3, 0, 5]);
        assert_eq!(receive(&mut link_b), [[5]]);
        let strangers = link_b
            .losses
            .all()
            .find(|(loss, _)| *loss == Loss::Stranger);
        assert_eq!(strangers, Some((Loss::Stranger, 3)));
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let [a, b, _] = addresses();
        let _held = UdpSocket::bind(a).unwrap();
        let settings = switch::Link {
            local: a,
            peer: b,
            vni: 1,
        };
        let error = format!("{:#}", Link::open(&settings, Arc::default()).err().unwrap());
        assert!(error.contains(&a.to_string()), "{error}");
    }
}
