// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A client, which plays the VMM: for tests and measurements.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use zerocopy::{FromBytes, IntoBytes};

use super::message::{
    DmaMap, Header, IrqSet, RegionAccess, RegionInfo, Version, command, dma_flags,
};
use super::stream::send;

/// `VFIO_IRQ_SET_DATA_EVENTFD` and `VFIO_IRQ_SET_ACTION_TRIGGER`.
const EVENTFD_TRIGGERS: u32 = 4 | 32;
/// Index of MSI-X among the interrupt types.
const MSIX: u32 = 2;

/// A connection to a device.
pub struct Client {
    stream: UnixStream,
    id: u16,
}

impl Client {
    /// Takes a connected socket, without negotiating.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, id: 0 }
    }

    /// Returns the socket.
    pub fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    /// Returns the socket, dropping the client.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Negotiates version 0.1 with these capabilities in JSON; returns the reply.
    pub fn negotiate(&mut self, capabilities: &str) -> Result<Vec<u8>, Errno> {
        let mut body = Version { major: 0, minor: 1 }.as_bytes().to_vec();
        body.extend(capabilities.as_bytes());
        body.push(0);
        self.request(command::VERSION, &body, &[])
    }

    /// Sends a message; `no_reply` tells the server not to reply.
    pub fn send(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        no_reply: bool,
    ) -> Result<(), Errno> {
        self.id = self.id.wrapping_add(1);
        let header = Header::request(self.id, command, body.len(), no_reply);
        let mut message = header.as_bytes().to_vec();
        message.extend(body);
        let mut sent = send(self.stream.as_fd(), &message, fds)?;
        while sent < message.len() {
            sent += send(self.stream.as_fd(), &message[sent..], &[])?;
        }
        Ok(())
    }

    /// Waits for the reply to the last message. Returns `EPROTO` if a reply to another message arrives.
    pub fn reply(&mut self) -> Result<Vec<u8>, Errno> {
        let mut header = [0; Header::LEN];
        self.read_exact(&mut header)?;
        let header = Header::read_from_bytes(&header).map_err(|_| Errno::PROTO)?;
        let length = (header.size as usize).checked_sub(Header::LEN);
        let mut body = vec![0; length.ok_or(Errno::PROTO)?];
        self.read_exact(&mut body)?;
        if header.id != self.id {
            return Err(Errno::PROTO);
        }
        header.result().map(|()| body)
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> Result<(), Errno> {
        let done = self.stream.read_exact(bytes);
        done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::PIPE))
    }

    /// Sends a message and waits for the reply.
    pub fn request(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Errno> {
        self.send(command, body, fds, false)?;
        self.reply()
    }

    /// Queries a region.
    pub fn region(&mut self, index: u32) -> Result<RegionInfo, Errno> {
        let request = RegionInfo {
            argsz: size_of::<RegionInfo>() as u32,
            index,
            ..RegionInfo::default()
        };
        let reply = self.request(command::DEVICE_GET_REGION_INFO, request.as_bytes(), &[])?;
        RegionInfo::read_from_bytes(&reply).map_err(|_| Errno::PROTO)
    }

    /// Reads `count` bytes of a region.
    pub fn read(&mut self, region: u32, offset: u64, count: u32) -> Result<Vec<u8>, Errno> {
        let access = RegionAccess {
            offset,
            region,
            count,
        };
        let mut reply = self.request(command::REGION_READ, access.as_bytes(), &[])?;
        if reply.len() != size_of::<RegionAccess>() + count as usize {
            return Err(Errno::PROTO);
        }
        Ok(reply.split_off(size_of::<RegionAccess>()))
    }

    /// Writes bytes of a region and waits for the reply.
    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let body = write_body(region, offset, data);
        self.request(command::REGION_WRITE, &body, &[]).map(drop)
    }

    /// Writes without a reply, as QEMU does if no part of the device is mapped.
    pub fn post(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let body = write_body(region, offset, data);
        self.send(command::REGION_WRITE, &body, &[], true)
    }

    /// Maps `size` bytes of a file at a bus address as memory for the device.
    pub fn map(
        &mut self,
        fd: impl AsFd,
        offset: u64,
        address: u64,
        size: u64,
    ) -> Result<(), Errno> {
        let map = DmaMap {
            argsz: size_of::<DmaMap>() as u32,
            flags: dma_flags::READ | dma_flags::WRITE,
            offset,
            address,
            size,
        };
        self.request(command::DMA_MAP, map.as_bytes(), &[fd.as_fd()])
            .map(drop)
    }

    /// Connects the MSI-X vectors from 0 on to `count` new non-blocking eventfds.
    pub fn connect_vectors(&mut self, count: u32) -> Result<Vec<OwnedFd>, Errno> {
        let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC;
        let eventfds: Vec<_> = (0..count)
            .map(|_| eventfd(0, flags))
            .collect::<Result<_, _>>()?;
        let set = IrqSet {
            argsz: size_of::<IrqSet>() as u32,
            flags: EVENTFD_TRIGGERS,
            index: MSIX,
            start: 0,
            count,
        };
        let fds: Vec<_> = eventfds.iter().map(AsFd::as_fd).collect();
        self.request(command::DEVICE_SET_IRQS, set.as_bytes(), &fds)?;
        Ok(eventfds)
    }
}

/// Returns the body of a write request.
fn write_body(region: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let access = RegionAccess {
        offset,
        region,
        count: data.len() as u32,
    };
    let mut body = access.as_bytes().to_vec();
    body.extend(data);
    body
}
