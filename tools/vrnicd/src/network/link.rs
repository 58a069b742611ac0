// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A link to a switch elsewhere: each frame is a UDP datagram behind a VXLAN header (RFC 7348).
//!
//! Why datagrams: a lost one delays no other, a peer that comes back needs no setup, and RoCE brings its own
//! reliability, which a stream below it would work against. Why VXLAN: other switches, the kernel and analysers
//! understand it.
//!
//! The socket is connected, so the kernel drops what comes from any other address or port than the peer's. There is no
//! further authentication: the network between both must be trusted, or protected (WireGuard, IPsec).

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::UdpSocket;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg, sockopt};

use super::medium::{FRAMES_PER_TURN, MAX_FRAME, Medium, not_now};
use crate::config::switch;

/// Bytes of the VXLAN header: flags, three reserved bytes, the network's identifier, a reserved byte.
const HEADER: usize = 8;
/// The flag that says that there is an identifier.
const HAS_VNI: u8 = 0x08;
/// What the kernel may keep of datagrams that come faster than they are read (as far as it allows).
const BUFFER: usize = 8 << 20;

/// A link.
pub struct Link {
    socket: UdpSocket,
    header: [u8; HEADER],
    scratch: Vec<u8>,
}

impl Link {
    /// Opens one end.
    ///
    /// # Errors
    /// The address is not this host's or in use, or there is no route to the peer.
    pub fn open(settings: &switch::Link) -> Result<Self> {
        let socket = UdpSocket::bind(settings.local)
            .with_context(|| format!("cannot use the address {}", settings.local))?;
        socket
            .connect(settings.peer)
            .with_context(|| format!("cannot reach {}", settings.peer))?;
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        let [_, a, b, c] = settings.vni.to_be_bytes();
        Ok(Self {
            socket,
            header: [HAS_VNI, 0, 0, 0, a, b, c, 0],
            scratch: vec![0; HEADER + MAX_FRAME],
        })
    }

    /// The frame in a datagram, if it is of this network. Reserved bits are ignored, as RFC 7348 asks.
    fn frame<'a>(&self, datagram: &'a [u8]) -> Option<&'a [u8]> {
        let (header, frame) = datagram.split_first_chunk::<HEADER>()?;
        (header[0] & HAS_VNI != 0 && header[4..7] == self.header[4..7]).then_some(frame)
    }
}

impl Medium for Link {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn read(&mut self, take: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        for _ in 0..FRAMES_PER_TURN {
            match self.socket.recv(&mut scratch) {
                Ok(length) => {
                    if let Some(frame) = self.frame(&scratch[..length]) {
                        take(frame);
                    }
                }
                Err(error) if not_now(&error) => break,
                // What the network says of datagrams sent before, such as that nobody listens there yet.
                Err(_) => {}
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    /// A datagram that the network does not take is lost, as it may be later on its way.
    fn write(
        &mut self,
        frames: &mut VecDeque<Vec<u8>>,
        spent: &mut dyn FnMut(Vec<u8>),
    ) -> io::Result<bool> {
        while let Some(frame) = frames.front() {
            let datagram = [IoSlice::new(&self.header), IoSlice::new(frame)];
            let mut control = SendAncillaryBuffer::default();
            match sendmsg(&self.socket, &datagram, &mut control, SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::AGAIN) => return Ok(true),
                Err(rustix::io::Errno::INTR) => continue,
                Ok(_) | Err(_) => {}
            }
            frames.pop_front().map(&mut *spent);
        }
        Ok(false)
    }

    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// Three addresses that nobody uses.
    fn addresses() -> [SocketAddr; 3] {
        let sockets = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        sockets.map(|socket| socket.local_addr().unwrap())
    }

    fn open(local: SocketAddr, peer: SocketAddr, vni: u32) -> Link {
        Link::open(&switch::Link { local, peer, vni }).unwrap()
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
    fn frames_pass_between_peers_of_one_network_only() {
        let [a, b, c] = addresses();
        let mut link_a = open(a, b, 0x0001_0203);
        // Nobody listens yet: the frames are lost, and so is the error.
        send(&mut link_a, vec![1; 60]);
        assert_eq!(receive(&mut link_a), Vec::<Vec<u8>>::new());
        let mut link_b = open(b, a, 0x0001_0203);
        send(&mut link_a, vec![2; 60]);
        send(&mut link_a, vec![3; 9000]);
        assert_eq!(receive(&mut link_b), [vec![2; 60], vec![3; 9000]]);
        send(&mut link_b, vec![4; 1]);
        assert_eq!(receive(&mut link_a), [vec![4; 1]]);

        // From elsewhere, and from the right place but not VXLAN or of another network.
        let stranger = UdpSocket::bind(c).unwrap();
        stranger.send_to(&[8, 0, 0, 0, 1, 2, 3, 0, 9], b).unwrap();
        let send_raw = |bytes: &[u8]| link_a.socket.send(bytes).unwrap();
        send_raw(&[0, 0, 0, 0, 1, 2, 3, 0, 9]);
        send_raw(&[8, 0, 0, 0, 1, 2, 4, 0, 9]);
        send_raw(&[8, 0, 0]);
        send_raw(&[8, 0, 0, 0, 1, 2, 3, 0, 5]);
        assert_eq!(receive(&mut link_b), [[5]]);
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
        let error = format!("{:#}", Link::open(&settings).err().unwrap());
        assert!(error.contains(&a.to_string()), "{error}");
    }
}
