// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A UDP socket that sends and receives many datagrams with one system call.
//!
//! Datagrams of the same length to the same destination are sent as one message, which the kernel or the NIC segments
//! (UDP_SEGMENT). Datagrams that arrive together are received as one message (UDP_GRO). So they pass through the host's
//! network stack only once. Where that does not work, each datagram is a message of its own; several messages still
//! share a system call.

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::slice;
use std::sync::Arc;

use rustix::net::sockopt;

use super::losses::{Loss, Losses};
use super::medium::{FRAMES_PER_TURN, not_now};

/// Number of datagrams that [`Datagrams::send`] should be given at a time.
pub const BATCH: usize = 256;
/// Bytes in front of each received datagram that its receiver may use.
pub const HEADROOM: usize = vrnic_roce::HEADROOM;

/// Size of the kernel's buffers for the socket, as far as the kernel allows it.
const BUFFER: usize = 8 << 20;
/// Number of messages per system call.
const MESSAGES: usize = 8;
/// Longest message: more than a UDP datagram can hold.
const LONGEST: usize = 1 << 16;
/// Largest number of datagrams in a message (UDP_MAX_SEGMENTS of older kernels), and largest number of bytes, which
/// start out as one IP packet.
const SEGMENTS: u16 = 64;
const SEGMENTS_BYTES: usize = 65_000;

/// A datagram to be sent.
pub struct Datagram<'a> {
    /// Destination; the peer of a connected socket if none.
    pub to: Option<SocketAddr>,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Contents.
    pub parts: [&'a [u8]; 2],
    /// Index within its message, assigned by [`Train`]. Each 0 begins a new message.
    pub place: u16,
}

impl Datagram<'_> {
    fn length(&self) -> usize {
        self.parts.iter().map(|part| part.len()).sum()
    }
}

/// Decides which datagrams are sent in one message.
pub struct Train {
    to: Option<SocketAddr>,
    traffic_class: u8,
    /// Length of each datagram; the last may be shorter.
    length: usize,
    count: u16,
    /// Whether another datagram may follow.
    open: bool,
    /// Longest datagram that may share a message.
    longest: usize,
}

impl Train {
    /// Returns the index of the next datagram within its message.
    pub fn place(&mut self, to: Option<SocketAddr>, traffic_class: u8, length: usize) -> u16 {
        let joins = self.open
            && self.to == to
            && self.traffic_class == traffic_class
            && (1..=self.length).contains(&length)
            && self.count < SEGMENTS
            && usize::from(self.count) * self.length + length <= SEGMENTS_BYTES;
        if !joins {
            *self = Self {
                to,
                traffic_class,
                length,
                count: 0,
                open: length <= self.longest,
                longest: self.longest,
            };
        }
        self.open &= length == self.length;
        self.count += 1;
        self.count - 1
    }
}

/// Progress of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sent {
    /// Number of datagrams that were sent or lost. The rest must be offered again, with new places.
    pub done: usize,
    /// Whether sending stopped because there is no room at the moment.
    pub blocked: bool,
}

/// A received datagram.
pub struct Arrived<'a> {
    /// Address of the sender.
    pub from: SocketAddr,
    /// Traffic class (IPv6) or type of service (IPv4).
    pub traffic_class: u8,
    /// Contents, preceded by [`HEADROOM`] meaningless bytes.
    pub bytes: &'a mut [u8],
}

/// A received message, without its contents.
#[derive(Clone, Copy)]
struct Message {
    from: Option<SocketAddr>,
    traffic_class: u8,
    length: usize,
    /// Length of each datagram in the message; the last may be shorter.
    segment: usize,
    /// Whether it reports that a datagram could not be delivered.
    refusal: bool,
}

/// A UDP socket.
pub struct Datagrams {
    socket: UdpSocket,
    /// One buffer for each message that a system call can return.
    buffers: Vec<u8>,
    /// Longest datagram that may share a message.
    longest: usize,
    /// Whether the socket may have more reports about undelivered datagrams.
    refusals: bool,
    losses: Arc<Losses>,
}

impl Datagrams {
    /// Takes a socket, which may be connected. Losses are counted in `losses`.
    ///
    /// # Errors
    /// The socket does not support an option that every Linux has.
    pub fn new(socket: UdpSocket, losses: Arc<Losses>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
        sockopt::set_socket_send_buffer_size(&socket, BUFFER)?;
        if socket.local_addr()?.is_ipv4() {
            sockopt::set_ip_recvtos(&socket, true)?;
            set(&socket, libc::SOL_IP, libc::IP_RECVERR, 1)?;
        } else {
            sockopt::set_ipv6_recvtclass(&socket, true)?;
            set(&socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?;
        }
        // Kernels before 5.0 do not support this.
        let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(Self {
            socket,
            buffers: vec![0; MESSAGES * (HEADROOM + LONGEST)],
            longest: usize::MAX,
            refusals: false,
            losses,
        })
    }

    /// Turns off fragmentation: packets have the DF flag set and are sent regardless of the path MTU that the network
    /// reports. On an unconnected socket, the identification of an IPv4 packet is then its index within its message.
    ///
    /// # Errors
    /// The socket does not support an option that every Linux has.
    pub fn never_fragment(&self) -> io::Result<()> {
        if self.socket.local_addr()?.is_ipv4() {
            let probe = sockopt::Ipv4PathMtuDiscovery::PROBE;
            Ok(sockopt::set_ip_mtu_discover(&self.socket, probe)?)
        } else {
            let probe = sockopt::Ipv6PathMtuDiscovery::PROBE;
            sockopt::set_ipv6_mtu_discover(&self.socket, probe)?;
            set(&self.socket, libc::SOL_IPV6, libc::IPV6_DONTFRAG, 1)
        }
    }

    /// Accepts IPv6 datagrams without a checksum, because RoCE has none. Linux accepts the option on IPv4 sockets as
    /// well.
    ///
    /// # Errors
    /// The socket does not support an option that every Linux has.
    pub fn accept_unchecked(&self) -> io::Result<()> {
        set(&self.socket, libc::SOL_UDP, libc::UDP_NO_CHECK6_RX, 1)
    }

    /// Returns the socket's descriptor, for polling.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns a train that assigns the next datagrams their places.
    pub fn train(&self) -> Train {
        Train {
            to: None,
            traffic_class: 0,
            length: 0,
            count: 0,
            open: false,
            longest: self.longest,
        }
    }

    /// Sends datagrams, the first of which must have place 0. A datagram that the network does not accept counts as
    /// lost, as it might be lost on its way.
    pub fn send(&mut self, batch: &[Datagram<'_>]) -> Sent {
        let messages: Vec<_> = batch.chunk_by(|_, next| next.place > 0).collect();
        let mut rest = messages.as_slice();
        let (mut done, mut again) = (0, false);
        while let Some(first) = rest.first() {
            let count = match self.send_messages(rest) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Sent {
                        done,
                        blocked: true,
                    };
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // This error may belong to an earlier datagram; if so, this one has not been tried yet.
                Err(_) if !again => {
                    (again, self.refusals) = (true, true);
                    continue;
                }
                Err(error) if first.len() > 1 && cannot_cut(&error) => {
                    self.longest = first[0].length() - 1;
                    break;
                }
                Err(_) => {
                    self.losses.add(Loss::Unsent, first.len());
                    1
                }
            };
            again = false;
            let (sent, others) = rest.split_at(count);
            done += sent.iter().map(|message| message.len()).sum::<usize>();
            rest = others;
        }
        Sent {
            done,
            blocked: false,
        }
    }

    /// Calls `take` with each received datagram, up to about [`FRAMES_PER_TURN`].
    pub fn receive(&mut self, take: &mut dyn FnMut(Arrived<'_>)) {
        let mut left = FRAMES_PER_TURN;
        while left > 0 {
            // Decrements in any case, so that the loop ends.
            left -= 1;
            match self.fill(0) {
                Ok(messages) => {
                    for (message, place) in messages.iter().flatten().zip(0..) {
                        left = left.saturating_sub(self.cut(message, place, take));
                    }
                    if messages[MESSAGES - 1].is_none() {
                        break;
                    }
                }
                Err(error) if not_now(&error) => {
                    // Maybe the only reason for the wake-up was a report.
                    self.refusals |= left + 1 == FRAMES_PER_TURN;
                    break;
                }
                // An error about an earlier datagram.
                Err(_) => self.refusals = true,
            }
        }
        if mem::take(&mut self.refusals) {
            self.count_refusals();
        }
    }

    /// Counts the reports from hosts and routers about undelivered datagrams, for instance because no socket is bound
    /// to the destination port.
    fn count_refusals(&mut self) {
        for _ in 0..FRAMES_PER_TURN {
            let Ok(messages) = self.fill(libc::MSG_ERRQUEUE) else {
                return;
            };
            let refusals = messages.iter().flatten().filter(|message| message.refusal);
            self.losses.add(Loss::Refused, refusals.count());
        }
        self.refusals = true;
    }

    /// Calls `take` with each datagram of the message in buffer `place`; returns their number.
    fn cut(&mut self, message: &Message, place: usize, take: &mut dyn FnMut(Arrived<'_>)) -> usize {
        let (Some(from), segment) = (message.from, message.segment.max(1)) else {
            return 0;
        };
        let buffer = &mut self.buffers[place * (HEADROOM + LONGEST)..][..HEADROOM + message.length];
        let count = message.length.div_ceil(segment).max(1);
        // Overwriting the bytes in front of a datagram is safe: `take` has already seen them.
        for begin in (0..count).map(|number| number * segment) {
            let end = message.length.min(begin + segment);
            take(Arrived {
                from,
                traffic_class: message.traffic_class,
                bytes: &mut buffer[begin..HEADROOM + end],
            });
        }
        count
    }

    /// Receives messages into the buffers.
    fn fill(&mut self, flags: libc::c_int) -> io::Result<[Option<Message>; MESSAGES]> {
        let mut names = [Name::NONE; MESSAGES];
        let mut controls = [Control::default(); MESSAGES];
        let buffers = self.buffers.chunks_exact_mut(HEADROOM + LONGEST);
        let mut vectors: Vec<_> = buffers
            .map(|buffer| libc::iovec {
                iov_base: buffer[HEADROOM..].as_mut_ptr().cast(),
                iov_len: LONGEST,
            })
            .collect();
        let pieces = names.iter_mut().zip(&mut controls).zip(&mut vectors);
        let mut headers: Vec<_> = pieces
            .map(|((name, control), vector)| {
                let lengths = [size_of::<Name>(), size_of::<Control>()];
                header(name, control, lengths, slice::from_mut(vector))
            })
            .collect();
        // SAFETY: each header has its own name, control buffer and vector. They outlive the call and have the lengths
        // that the header states. The vectors point to buffers that nothing else uses.
        let count = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                MESSAGES as libc::c_uint,
                flags,
                std::ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
        let mut messages = [None; MESSAGES];
        let arrived = headers.iter().take(count).zip(&names);
        for (message, (header, name)) in messages.iter_mut().zip(arrived) {
            *message = Some(read(header, name));
        }
        Ok(messages)
    }

    /// Sends as many messages as one system call takes; returns their number.
    fn send_messages(&self, messages: &[&[Datagram<'_>]]) -> io::Result<usize> {
        let messages = &messages[..messages.len().min(MESSAGES)];
        let mut names = [Name::NONE; MESSAGES];
        let mut controls = [Control::default(); MESSAGES];
        let parts = messages
            .iter()
            .copied()
            .flatten()
            .flat_map(|datagram| datagram.parts);
        let mut vectors: Vec<_> = parts
            .map(|part| libc::iovec {
                iov_base: part.as_ptr().cast_mut().cast(),
                iov_len: part.len(),
            })
            .collect();
        let mut vectors = vectors.as_mut_slice();
        let mut headers = Vec::with_capacity(MESSAGES);
        for ((datagrams, name), control) in messages.iter().zip(&mut names).zip(&mut controls) {
            let first = &datagrams[0];
            let name_length = first.to.map_or(0, |to| name.set(to));
            let length = control.write(first, datagrams.len() > 1);
            let (own, rest) = mem::take(&mut vectors).split_at_mut(2 * datagrams.len());
            vectors = rest;
            headers.push(header(name, control, [name_length, length], own));
        }
        // SAFETY: each header has its own name, control buffer and vectors. They outlive the call and have the lengths
        // that the header states. The kernel only reads what the vectors point to.
        let count = unsafe {
            libc::sendmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                headers.len() as libc::c_uint,
                libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

/// Returns whether an error means that the message cannot be segmented, because the datagrams or the network do not
/// allow it.
fn cannot_cut(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::EMSGSIZE | libc::EIO | libc::EOPNOTSUPP)
    )
}

/// Sets an integer socket option.
fn set(
    socket: &UdpSocket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let value = (&raw const value).cast();
    // SAFETY: `value` points to an integer and `length` is its size; the kernel only reads it.
    match unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the header of a message; `lengths` are those of its name and of its control messages.
fn header(
    name: &mut Name,
    control: &mut Control,
    lengths: [usize; 2],
    vectors: &mut [libc::iovec],
) -> libc::mmsghdr {
    // SAFETY: all zeros is a valid header.
    let mut header: libc::mmsghdr = unsafe { mem::zeroed() };
    header.msg_hdr.msg_name = (&raw mut *name).cast();
    header.msg_hdr.msg_namelen = lengths[0] as libc::socklen_t;
    header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
    header.msg_hdr.msg_controllen = lengths[1];
    header.msg_hdr.msg_iov = vectors.as_mut_ptr();
    header.msg_hdr.msg_iovlen = vectors.len();
    header
}

/// Extracts a message from a header that the kernel has filled in.
fn read(header: &libc::mmsghdr, name: &Name) -> Message {
    let length = (header.msg_len as usize).min(LONGEST);
    let mut message = Message {
        from: name.address(),
        traffic_class: 0,
        length,
        segment: length,
        refusal: false,
    };
    let number = |data: *const u8, length: usize| {
        let mut bytes = [0; 4];
        let length = length.min(bytes.len());
        // SAFETY: the kernel wrote at least `length` bytes there.
        unsafe { std::ptr::copy_nonoverlapping(data, bytes.as_mut_ptr(), length) };
        if length < bytes.len() {
            u32::from(bytes[0])
        } else {
            u32::from_ne_bytes(bytes)
        }
    };
    // SAFETY: the header and the control buffer that it points to are as the kernel left them.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(&raw const header.msg_hdr) };
    while !next.is_null() {
        // SAFETY: `CMSG_FIRSTHDR` and `CMSG_NXTHDR` return only complete headers.
        let (control, data) = unsafe { (std::ptr::read_unaligned(next), libc::CMSG_DATA(next)) };
        // SAFETY: this only computes a length.
        let before = unsafe { libc::CMSG_LEN(0) } as usize;
        let length = control.cmsg_len.saturating_sub(before);
        match (control.cmsg_level, control.cmsg_type) {
            // One byte, or an integer.
            (libc::SOL_IP, libc::IP_TOS) | (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                message.traffic_class = number(data, length) as u8;
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                message.segment = number(data, length) as usize;
            }
            (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR)
                if length >= size_of::<libc::sock_extended_err>() =>
            {
                // SAFETY: the kernel wrote a structure of this type there.
                let error: libc::sock_extended_err =
                    unsafe { std::ptr::read_unaligned(data.cast()) };
                message.refusal = matches!(
                    error.ee_origin,
                    libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6
                );
            }
            _ => {}
        }
        // SAFETY: as for `CMSG_FIRSTHDR` above.
        next = unsafe { libc::CMSG_NXTHDR(&raw const header.msg_hdr, next) };
    }
    message
}

/// Buffer for the control messages of a message, aligned and formatted as the kernel requires.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; 128]);

impl Default for Control {
    fn default() -> Self {
        Self([0; 128])
    }
}

impl Control {
    /// Writes the control messages for sending `first` and, if `cut` is set, the datagrams that follow it in the
    /// message; returns their length.
    fn write(&mut self, first: &Datagram<'_>, cut: bool) -> usize {
        let mut at = 0;
        if first.traffic_class != 0 {
            let (level, name) = match first.to {
                Some(SocketAddr::V6(_)) => (libc::SOL_IPV6, libc::IPV6_TCLASS),
                _ => (libc::SOL_IP, libc::IP_TOS),
            };
            let class = libc::c_int::from(first.traffic_class);
            at = self.put(at, level, name, &class.to_ne_bytes());
        }
        if cut {
            let length = first.length() as u16;
            at = self.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, &length.to_ne_bytes());
        }
        at
    }

    /// Writes a control message at `at`; returns the offset of the next one.
    fn put(&mut self, at: usize, level: libc::c_int, name: libc::c_int, data: &[u8]) -> usize {
        // SAFETY: both only compute lengths.
        let (length, space) = unsafe {
            let length = data.len() as libc::c_uint;
            (
                libc::CMSG_LEN(length) as usize,
                libc::CMSG_SPACE(length) as usize,
            )
        };
        let place = &mut self.0[at..at + space];
        let numbers = size_of::<usize>();
        place[..numbers].copy_from_slice(&length.to_ne_bytes());
        place[numbers..numbers + 4].copy_from_slice(&level.to_ne_bytes());
        place[numbers + 4..numbers + 8].copy_from_slice(&name.to_ne_bytes());
        place[length - data.len()..length].copy_from_slice(data);
        at + space
    }
}

/// A socket address in the kernel's format.
#[derive(Clone, Copy)]
#[repr(C)]
union Name {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl Name {
    /// No address; all bytes are zero.
    const NONE: Self = Self {
        v6: libc::sockaddr_in6 {
            sin6_family: 0,
            sin6_port: 0,
            sin6_flowinfo: 0,
            sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
            sin6_scope_id: 0,
        },
    };

    /// Sets the address; returns its length.
    fn set(&mut self, address: SocketAddr) -> usize {
        let port = address.port().to_be();
        match address {
            SocketAddr::V4(address) => {
                self.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: port,
                    sin_addr: libc::in_addr {
                        s_addr: u32::from_ne_bytes(address.ip().octets()),
                    },
                    sin_zero: [0; 8],
                };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(address) => {
                self.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: port,
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr {
                        s6_addr: address.ip().octets(),
                    },
                    sin6_scope_id: address.scope_id(),
                };
                size_of::<libc::sockaddr_in6>()
            }
        }
    }

    /// Returns the address, if this is one.
    fn address(&self) -> Option<SocketAddr> {
        // SAFETY: all bytes were initialized, and any bit pattern is a valid integer.
        let (family, v4, v6) = unsafe { (self.family, self.v4, self.v6) };
        match libc::c_int::from(family) {
            libc::AF_INET => {
                let address = v4.sin_addr.s_addr.to_ne_bytes();
                Some((IpAddr::from(address), u16::from_be(v4.sin_port)).into())
            }
            libc::AF_INET6 => {
                let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                let port = u16::from_be(v6.sin6_port);
                Some(SocketAddrV6::new(address, port, 0, v6.sin6_scope_id).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn socket(address: &str) -> Datagrams {
        let socket = UdpSocket::bind((address, 0)).unwrap();
        Datagrams::new(socket, Arc::default()).unwrap()
    }

    fn address(datagrams: &Datagrams) -> SocketAddr {
        datagrams.socket.local_addr().unwrap()
    }

    /// Sends datagrams of these lengths with places from a train; returns the number of messages.
    fn send(from: &mut Datagrams, to: SocketAddr, class: u8, lengths: &[usize]) -> (Sent, usize) {
        let bytes: Vec<_> = (0..)
            .zip(lengths)
            .map(|(number, &length)| vec![number; length])
            .collect();
        let mut train = from.train();
        let batch: Vec<_> = bytes
            .iter()
            .map(|bytes| Datagram {
                to: Some(to),
                traffic_class: class,
                place: train.place(Some(to), class, bytes.len()),
                parts: [&bytes[..bytes.len() / 3], &bytes[bytes.len() / 3..]],
            })
            .collect();
        let messages = batch.iter().filter(|datagram| datagram.place == 0).count();
        (from.send(&batch), messages)
    }

    /// Waits for a condition. Loopback traffic may take a moment to arrive.
    fn until(mut there: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !there() {
            assert!(begin.elapsed() < Duration::from_secs(20), "nothing comes");
            std::thread::yield_now();
        }
    }

    /// Receives `count` datagrams, checks their contents and returns their lengths and traffic classes.
    fn receive(to: &mut Datagrams, from: &Datagrams, count: usize) -> Vec<(usize, u8)> {
        let from = address(from);
        let mut all = Vec::new();
        until(|| {
            to.receive(&mut |arrived| {
                assert_eq!(arrived.from, from);
                let bytes = &mut arrived.bytes[..];
                assert!(
                    bytes[HEADROOM..]
                        .iter()
                        .all(|&byte| byte == all.len() as u8)
                );
                all.push((bytes.len() - HEADROOM, arrived.traffic_class));
                // Overwriting what precedes the next datagram must do no harm.
                bytes.fill(0xff);
            });
            all.len() >= count
        });
        all
    }

    #[test]
    fn datagrams_of_one_length_share_a_message() {
        for host in ["127.0.0.1", "::1"] {
            if UdpSocket::bind((host, 0)).is_err() {
                eprintln!("skipped: {host} is no address of this machine");
                continue;
            }
            let (mut a, mut b) = (socket(host), socket(host));
            let lengths = [100, 100, 60, 60, 61, 4112, 4112, 4112, 4000, 1];
            let to = address(&b);
            let (sent, messages) = send(&mut a, to, 0x6a, &lengths);
            assert_eq!(
                (sent.done, sent.blocked, messages),
                (lengths.len(), false, 5)
            );
            let came = receive(&mut b, &a, lengths.len());
            assert_eq!(came, lengths.map(|length| (length, 0x6a)));
            let (sent, messages) = send(&mut a, to, 0, &[1000; 200]);
            assert_eq!((sent.done, messages), (200, 4));
            assert_eq!(receive(&mut b, &a, 200), [(1000, 0); 200]);
        }
    }

    #[test]
    fn a_train_ends_where_it_must() {
        let datagrams = socket("127.0.0.1");
        let [one, other] = [1, 2].map(|port| Some(SocketAddr::from(([127, 0, 0, 1], port))));
        let mut train = datagrams.train();
        let mut place = |to, class, length| train.place(to, class, length);
        assert_eq!(
            [place(one, 0, 9), place(one, 0, 9), place(one, 0, 8)],
            [0, 1, 2]
        );
        assert_eq!(place(one, 0, 8), 0, "behind a shorter one");
        assert_eq!(place(one, 0, 9), 0, "a longer one");
        assert_eq!(place(other, 0, 9), 0, "to somebody else");
        assert_eq!(place(other, 1, 9), 0, "of another class");
        assert_eq!(place(other, 1, 0), 0, "an empty one");
        let places: Vec<_> = (0..70).map(|_| place(one, 0, 10)).collect();
        assert_eq!((places[63], places[64]), (63, 0), "too many");
        assert_eq!(
            [place(one, 0, 40_000), place(one, 0, 40_000)],
            [0, 0],
            "too long"
        );
    }

    #[test]
    fn what_cannot_share_a_message_is_sent_alone() {
        let (mut a, mut b) = (socket("127.0.0.1"), socket("127.0.0.1"));
        // The kernel refuses to segment without checksums, as it does if a NIC cannot segment.
        set(&a.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        let to = address(&b);
        let (sent, messages) = send(&mut a, to, 0, &[500; 3]);
        assert_eq!((sent.done, sent.blocked, messages), (0, false, 1));
        let (sent, messages) = send(&mut a, to, 0, &[500; 3]);
        assert_eq!((sent.done, messages), (3, 3));
        let (sent, messages) = send(&mut a, to, 0, &[400; 3]);
        assert_eq!((sent.done, messages), (0, 1));
        assert_eq!(receive(&mut b, &a, 3), [(500, 0); 3]);
        assert!(a.losses.all().all(|(_, count)| count == 0));
    }

    fn lost(datagrams: &Datagrams, loss: Loss) -> u64 {
        datagrams
            .losses
            .all()
            .find(|(found, _)| *found == loss)
            .unwrap()
            .1
    }

    #[test]
    fn refusals_are_counted_and_lose_nobody_elses_datagrams() {
        let (mut a, mut b) = (socket("127.0.0.1"), socket("127.0.0.1"));
        let nobody = address(&socket("127.0.0.1"));
        let there = address(&b);
        for count in 1..=3 {
            assert_eq!(send(&mut a, nobody, 0, &[9]).0.done, 1);
            assert_eq!(send(&mut a, there, 0, &[9]).0.done, 1);
            assert_eq!(receive(&mut b, &a, 1), [(9, 0)]);
            until(|| {
                a.receive(&mut |_| panic!("nobody sends"));
                lost(&a, Loss::Refused) >= count
            });
        }
        assert_eq!((lost(&a, Loss::Refused), lost(&a, Loss::Unsent)), (3, 0));
    }

    #[test]
    fn what_the_network_does_not_take_is_counted() {
        let (mut a, mut b) = (socket("127.0.0.1"), socket("127.0.0.1"));
        let there = address(&b);
        // Longer than any datagram.
        let (sent, _) = send(&mut a, there, 0, &[65_535]);
        assert_eq!((sent.done, sent.blocked), (1, false));
        assert_eq!(lost(&a, Loss::Unsent), 1);
        a.receive(&mut |_| panic!("nobody sends"));
        assert_eq!(lost(&a, Loss::Refused), 0, "no host said so");
        assert_eq!(send(&mut a, there, 0, &[9]).0.done, 1);
        assert_eq!(receive(&mut b, &a, 1), [(9, 0)]);
    }
}
