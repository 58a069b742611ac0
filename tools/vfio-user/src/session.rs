// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! One connection of a VMM: negotiation, then commands until the VMM disconnects.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use tracing::{debug, trace, warn};
use zerocopy::IntoBytes;

use super::message::{
    DeviceInfo, DmaMap, DmaUnmap, IrqInfo, IrqSet, MAX_DATA, MAX_FDS, RegionAccess, RegionInfo,
    Request, SmallWriteBytes, Version, dma_flags, parse,
};
use super::stream::{MessageStream, StreamError};

/// Version of the protocol implemented here.
const MAJOR: u16 = 0;
const MINOR: u16 = 1;
/// Largest number of ranges of guest memory that a VMM may map at a time.
pub const MAX_DMA_MAPS: usize = 65535;

/// A vfio device as the protocol sees it. Methods must return at once; an errno is sent to the client.
pub trait Device {
    /// Returns `VFIO_DEVICE_FLAGS_*`, the number of regions, and the number of interrupt types.
    fn info(&self) -> (u32, u32, u32);
    /// Returns `VFIO_REGION_INFO_FLAG_*` and the size of a region.
    fn region(&self, index: u32) -> Result<(u32, u64), Errno>;
    /// Returns `VFIO_IRQ_INFO_*` and the number of vectors of an interrupt type.
    fn irq(&self, index: u32) -> Result<(u32, u32), Errno>;
    /// Connects, disconnects or triggers interrupts; the meaning of `data` depends on the flags.
    fn set_irqs(&mut self, set: &IrqSet, data: &[u8], fds: Vec<OwnedFd>) -> Result<(), Errno>;
    /// Reads from a region; the range has been checked against the region's size.
    fn read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno>;
    /// Writes to a region; the range has been checked against the region's size.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;
    /// Maps guest memory. Without a descriptor, the device cannot access it.
    fn dma_map(&mut self, map: &DmaMap, fd: Option<OwnedFd>) -> Result<(), Errno>;
    /// Unmaps guest memory.
    fn dma_unmap(&mut self, unmap: &DmaUnmap) -> Result<(), Errno>;
    /// Resets the device.
    fn reset(&mut self) -> Result<(), Errno>;
}

/// Why a session ended.
#[derive(Debug)]
pub enum Disconnect {
    /// The VMM disconnected.
    Closed,
    /// The daemon is stopping.
    Stopped,
    /// The VMM violated the protocol, so that the connection cannot be continued.
    Protocol(&'static str),
    /// The socket failed.
    Io(std::io::Error),
}

impl From<StreamError> for Disconnect {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Closed => Self::Closed,
            StreamError::Stopped => Self::Stopped,
            StreamError::Desynchronised(what) => Self::Protocol(what),
            StreamError::Io(error) => Self::Io(error),
        }
    }
}

/// Serves `device` until the connection ends.
pub fn serve(stream: MessageStream, device: &mut dyn Device) -> Disconnect {
    run(stream, device, false)
}

/// Serves `device` on a connection that another process has negotiated, until the connection ends.
pub fn take_over(stream: MessageStream, device: &mut dyn Device) -> Disconnect {
    run(stream, device, true)
}

fn run(mut stream: MessageStream, device: &mut dyn Device, negotiated: bool) -> Disconnect {
    match answer(&mut stream, device, negotiated) {
        Ok(never) => match never {},
        Err(disconnect) => disconnect,
    }
}

fn answer(
    stream: &mut MessageStream,
    device: &mut dyn Device,
    mut negotiated: bool,
) -> Result<std::convert::Infallible, Disconnect> {
    let (mut body, mut fds, mut reply) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        let header = stream.receive(&mut body, &mut fds)?;
        if !header.is_command() {
            return Err(Disconnect::Protocol("reply without a command"));
        }
        trace!(
            command = header.command,
            size = header.size,
            fds = fds.len(),
            "message"
        );
        reply.clear();
        let result = match parse(header.command, &body) {
            Ok(Request::Version(..)) if negotiated => Err(Errno::INVAL),
            Ok(Request::Version(version, capabilities)) => {
                negotiate(version, capabilities, &mut reply)
            }
            _ if !negotiated => Err(Errno::INVAL),
            Ok(request) => execute(device, &request, std::mem::take(&mut fds), &mut reply),
            Err(errno) => Err(errno),
        };
        if let Err(errno) = &result {
            debug!(command = header.command, %errno, "command refused");
        }
        if header.wants_reply() {
            match result {
                Ok(()) => stream.send(&header.reply(reply.len()), &reply)?,
                Err(errno) => stream.send(&header.failure(errno), &[])?,
            }
        }
        if !negotiated {
            if result.is_err() {
                return Err(Disconnect::Protocol("negotiation failed"));
            }
            negotiated = true;
        }
    }
}

fn negotiate(version: Version, capabilities: &str, reply: &mut Vec<u8>) -> Result<(), Errno> {
    if version.major != MAJOR {
        warn!(
            major = version.major,
            minor = version.minor,
            "client speaks another version of vfio-user"
        );
        return Err(Errno::INVAL);
    }
    if !capabilities.is_empty() {
        let parsed: Result<serde_json::Map<String, serde_json::Value>, _> =
            serde_json::from_str(capabilities);
        if parsed.is_err() {
            return Err(Errno::INVAL);
        }
    }
    debug!(minor = version.minor, capabilities, "negotiated");
    reply.extend(
        Version {
            major: MAJOR,
            minor: version.minor.min(MINOR),
        }
        .as_bytes(),
    );
    let ours = serde_json::json!({ "capabilities": {
        "max_msg_fds": MAX_FDS,
        "max_data_xfer_size": MAX_DATA,
        "pgsizes": 4096,
        "max_dma_maps": MAX_DMA_MAPS,
        "write_multiple": true,
    }});
    reply.extend(ours.to_string().into_bytes());
    reply.push(0);
    Ok(())
}

fn execute(
    device: &mut dyn Device,
    request: &Request<'_>,
    mut fds: Vec<OwnedFd>,
    reply: &mut Vec<u8>,
) -> Result<(), Errno> {
    match *request {
        Request::Version(..) => return Err(Errno::INVAL),
        Request::DmaMap(map) => {
            if fds.len() > 1 || map.flags & !(dma_flags::READ | dma_flags::WRITE) != 0 {
                return Err(Errno::INVAL);
            }
            device.dma_map(&map, fds.pop())?;
        }
        Request::DmaUnmap(unmap) => {
            device.dma_unmap(&unmap)?;
            reply.extend(unmap.as_bytes());
        }
        Request::DeviceInfo => {
            let (flags, regions, irqs) = device.info();
            let argsz = size_of::<DeviceInfo>() as u32;
            reply.extend(
                DeviceInfo {
                    argsz,
                    flags,
                    regions,
                    irqs,
                }
                .as_bytes(),
            );
        }
        Request::RegionInfo(info) => {
            let (flags, size) = device.region(info.index)?;
            let argsz = size_of::<RegionInfo>() as u32;
            reply.extend(
                RegionInfo {
                    argsz,
                    flags,
                    size,
                    cap_offset: 0,
                    offset: 0,
                    ..info
                }
                .as_bytes(),
            );
        }
        Request::IrqInfo(info) => {
            let (flags, count) = device.irq(info.index)?;
            reply.extend(
                IrqInfo {
                    argsz: size_of::<IrqInfo>() as u32,
                    flags,
                    count,
                    ..info
                }
                .as_bytes(),
            );
        }
        Request::SetIrqs(set, data) => device.set_irqs(&set, data, fds)?,
        Request::RegionRead(access) => {
            check(device, &access)?;
            reply.extend(access.as_bytes());
            let data = reply.len();
            reply.resize(data + access.count as usize, 0);
            device.read(access.region, access.offset, &mut reply[data..])?;
        }
        Request::RegionWrite(access, data) => {
            check(device, &access)?;
            device.write(access.region, access.offset, data)?;
            reply.extend(access.as_bytes());
        }
        Request::WriteMulti(writes) => {
            for write in writes.iter().map(SmallWriteBytes::parse) {
                check(device, &write.access)?;
                let data = write
                    .data
                    .get(..write.access.count as usize)
                    .ok_or(Errno::INVAL)?;
                device.write(write.access.region, write.access.offset, data)?;
            }
            reply.extend((writes.len() as u64).as_bytes());
        }
        Request::Reset => device.reset()?,
    }
    Ok(())
}

/// Rejects an access that is empty, too long, or not inside its region.
fn check(device: &dyn Device, access: &RegionAccess) -> Result<(), Errno> {
    let (_, size) = device.region(access.region)?;
    let end = access
        .offset
        .checked_add(u64::from(access.count))
        .ok_or(Errno::INVAL)?;
    if access.count == 0 || access.count as usize > MAX_DATA || end > size {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// Returns the number of a descriptor, for log messages.
#[must_use]
pub fn fd_number(fd: Option<&OwnedFd>) -> i32 {
    fd.map_or(-1, AsRawFd::as_raw_fd)
}
