// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Messages: a header of 16 bytes, then a body whose layout depends on the command. All integers are in host byte
//! order.

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Largest amount of data in one region access, in bytes.
pub const MAX_DATA: usize = 32 << 10;
/// Largest size of a message in bytes; a longer one ends the connection.
pub const MAX_MESSAGE: usize = MAX_DATA + 64;
/// Largest number of file descriptors in a message; QEMU refuses a server that announces more.
pub const MAX_FDS: usize = 16;

/// Commands a client can send.
pub mod command {
    /// Negotiation; always the first message.
    pub const VERSION: u16 = 1;
    /// Map guest memory.
    pub const DMA_MAP: u16 = 2;
    /// Unmap guest memory.
    pub const DMA_UNMAP: u16 = 3;
    /// Number of regions and interrupt types.
    pub const DEVICE_GET_INFO: u16 = 4;
    /// Size and rights of a region.
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    /// Number of vectors of an interrupt type.
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    /// Connect or trigger interrupts.
    pub const DEVICE_SET_IRQS: u16 = 8;
    /// Read from a region.
    pub const REGION_READ: u16 = 9;
    /// Write to a region.
    pub const REGION_WRITE: u16 = 10;
    /// Reset the device.
    pub const DEVICE_RESET: u16 = 13;
    /// Several small writes in one message.
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Bits of [`Header::flags`].
mod flag {
    pub const TYPE_MASK: u32 = 0xf;
    pub const TYPE_COMMAND: u32 = 0;
    pub const TYPE_REPLY: u32 = 1;
    pub const NO_REPLY: u32 = 1 << 4;
    pub const ERROR: u32 = 1 << 5;
}

/// Header of every message.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// Chosen by the sender of a command, repeated in the reply.
    pub id: u16,
    /// One of [`command`].
    pub command: u16,
    /// Size of the message in bytes, including this header.
    pub size: u32,
    /// Type, "no reply" and "error".
    pub flags: u32,
    /// Errno of an error reply.
    pub error: u32,
}

impl Header {
    /// Size of a header in bytes.
    pub const LEN: usize = size_of::<Header>();

    /// Returns the header of a command with a body of `body` bytes.
    pub fn request(id: u16, command: u16, body: usize, no_reply: bool) -> Self {
        let flags = if no_reply {
            flag::NO_REPLY
        } else {
            flag::TYPE_COMMAND
        };
        Self {
            id,
            command,
            size: (Self::LEN + body) as u32,
            flags,
            error: 0,
        }
    }

    /// Returns whether this is a command rather than a reply.
    pub fn is_command(&self) -> bool {
        self.flags & flag::TYPE_MASK == flag::TYPE_COMMAND
    }

    /// Returns whether the sender wants a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & flag::NO_REPLY == 0
    }

    /// Returns the header of a successful reply with a body of `body` bytes.
    #[must_use]
    pub fn reply(&self, body: usize) -> Self {
        Self {
            size: (Self::LEN + body) as u32,
            flags: flag::TYPE_REPLY,
            error: 0,
            ..*self
        }
    }

    /// Returns the header of an error reply, which has no body.
    #[must_use]
    pub fn failure(&self, errno: Errno) -> Self {
        let error = errno.raw_os_error().unsigned_abs();
        Self {
            size: Self::LEN as u32,
            flags: flag::TYPE_REPLY | flag::ERROR,
            error,
            ..*self
        }
    }

    /// Returns the outcome that a reply reports.
    pub fn result(&self) -> Result<(), Errno> {
        if self.flags & flag::ERROR == 0 {
            Ok(())
        } else {
            Err(Errno::from_raw_os_error(self.error.cast_signed()))
        }
    }
}

/// Defines plain wire structures.
macro_rules! layouts {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $ty:ty,)* })*) => {
        $($(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, PartialEq, Eq)]
        #[repr(C)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)* })*
    };
}

layouts! {
    /// Beginning of VERSION and of its reply; followed by capabilities in JSON, terminated by a zero byte.
    Version {
        /// Major version.
        major: u16,
        /// Minor version.
        minor: u16,
    }
    /// DMA_MAP.
    DmaMap {
        /// Size of this structure in bytes.
        argsz: u32,
        /// [`dma_flags`].
        flags: u32,
        /// Offset in the file whose descriptor comes with the message.
        offset: u64,
        /// Bus address.
        address: u64,
        /// Size in bytes.
        size: u64,
    }
    /// DMA_UNMAP and its reply.
    DmaUnmap {
        /// Size of this structure in bytes.
        argsz: u32,
        /// [`dma_flags`].
        flags: u32,
        /// Bus address.
        address: u64,
        /// Size in bytes.
        size: u64,
    }
    /// DEVICE_GET_INFO and its reply.
    DeviceInfo {
        /// Size of this structure in bytes.
        argsz: u32,
        /// `VFIO_DEVICE_FLAGS_*`.
        flags: u32,
        /// Number of regions.
        regions: u32,
        /// Number of interrupt types.
        irqs: u32,
    }
    /// DEVICE_GET_REGION_INFO and its reply.
    RegionInfo {
        /// Size of this structure in bytes.
        argsz: u32,
        /// `VFIO_REGION_INFO_FLAG_*`.
        flags: u32,
        /// Index of the region.
        index: u32,
        /// Offset of capabilities; none.
        cap_offset: u32,
        /// Size of the region in bytes.
        size: u64,
        /// Offset for mmap; unused.
        offset: u64,
    }
    /// DEVICE_GET_IRQ_INFO and its reply.
    IrqInfo {
        /// Size of this structure in bytes.
        argsz: u32,
        /// `VFIO_IRQ_INFO_*`.
        flags: u32,
        /// Index of the interrupt type.
        index: u32,
        /// Number of vectors.
        count: u32,
    }
    /// DEVICE_SET_IRQS; data follows, depending on the flags.
    IrqSet {
        /// Size of this structure and the data in bytes.
        argsz: u32,
        /// `VFIO_IRQ_SET_*`.
        flags: u32,
        /// Index of the interrupt type.
        index: u32,
        /// First vector.
        start: u32,
        /// Number of vectors.
        count: u32,
    }
    /// REGION_READ, REGION_WRITE and their replies; data follows.
    RegionAccess {
        /// Offset in the region.
        offset: u64,
        /// Index of the region.
        region: u32,
        /// Number of bytes.
        count: u32,
    }
    /// One element of REGION_WRITE_MULTI.
    SmallWrite {
        /// Destination and length.
        access: RegionAccess,
        /// Data, of which the first `count` bytes count.
        data: [u8; 8],
    }
}

/// Bits of [`DmaMap::flags`] and [`DmaUnmap::flags`].
pub mod dma_flags {
    /// The device may read (DMA_MAP).
    pub const READ: u32 = 1;
    /// The device may write (DMA_MAP).
    pub const WRITE: u32 = 2;
    /// Unmap everything (DMA_UNMAP).
    pub const ALL: u32 = 2;
}

/// A parsed command. Only its layout has been checked.
#[derive(Debug, PartialEq)]
pub enum Request<'a> {
    /// Negotiation: version and the client's capabilities in JSON.
    Version(Version, &'a str),
    /// Map guest memory.
    DmaMap(DmaMap),
    /// Unmap guest memory.
    DmaUnmap(DmaUnmap),
    /// Number of regions and interrupt types.
    DeviceInfo,
    /// Size and rights of a region.
    RegionInfo(RegionInfo),
    /// Number of vectors of an interrupt type.
    IrqInfo(IrqInfo),
    /// Connect or trigger interrupts; with the data that follows.
    SetIrqs(IrqSet, &'a [u8]),
    /// Read from a region.
    RegionRead(RegionAccess),
    /// Write to a region.
    RegionWrite(RegionAccess, &'a [u8]),
    /// Several writes of at most 8 bytes each.
    WriteMulti(&'a [SmallWriteBytes]),
    /// Reset the device.
    Reset,
}

/// A [`SmallWrite`] in a message, unaligned.
#[derive(
    Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, PartialEq,
)]
#[repr(C)]
pub struct SmallWriteBytes([u8; size_of::<SmallWrite>()]);

impl SmallWriteBytes {
    /// Returns the write.
    pub fn parse(&self) -> SmallWrite {
        zerocopy::transmute!(self.0)
    }
}

/// Parses the body of a command. Returns `EINVAL` if the body does not have the command's layout, and `EOPNOTSUPP` if
/// the command is unknown.
pub fn parse(command: u16, body: &[u8]) -> Result<Request<'_>, Errno> {
    fn whole<T: zerocopy::FromBytes>(body: &[u8]) -> Result<T, Errno> {
        T::read_from_bytes(body).map_err(|_| Errno::INVAL)
    }
    fn prefix<T: zerocopy::FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
        T::read_from_prefix(body).map_err(|_| Errno::INVAL)
    }
    Ok(match command {
        command::VERSION => {
            let (version, json) = prefix(body)?;
            let json = json.split(|&byte| byte == 0).next().unwrap_or_default();
            Request::Version(
                version,
                std::str::from_utf8(json).map_err(|_| Errno::INVAL)?,
            )
        }
        command::DMA_MAP => Request::DmaMap(whole(body)?),
        command::DMA_UNMAP => Request::DmaUnmap(prefix(body)?.0),
        command::DEVICE_GET_INFO => {
            let _: DeviceInfo = prefix(body)?.0;
            Request::DeviceInfo
        }
        command::DEVICE_GET_REGION_INFO => Request::RegionInfo(prefix(body)?.0),
        command::DEVICE_GET_IRQ_INFO => Request::IrqInfo(prefix(body)?.0),
        command::DEVICE_SET_IRQS => {
            let (set, data) = prefix(body)?;
            Request::SetIrqs(set, data)
        }
        command::REGION_READ => Request::RegionRead(whole(body)?),
        command::REGION_WRITE => {
            let (access, data): (RegionAccess, _) = prefix(body)?;
            if data.len() != access.count as usize {
                return Err(Errno::INVAL);
            }
            Request::RegionWrite(access, data)
        }
        command::REGION_WRITE_MULTI => {
            let (count, writes): (u64, _) = prefix(body)?;
            let writes = <[SmallWriteBytes]>::ref_from_bytes(writes).map_err(|_| Errno::INVAL)?;
            if writes.len() as u64 != count {
                return Err(Errno::INVAL);
            }
            Request::WriteMulti(writes)
        }
        command::DEVICE_RESET => Request::Reset,
        _ => return Err(Errno::OPNOTSUPP),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn layouts_are_those_of_the_protocol() {
        let sizes = [
            (size_of::<Header>(), 16),
            (size_of::<DmaMap>(), 32),
            (size_of::<DmaUnmap>(), 24),
            (size_of::<DeviceInfo>(), 16),
            (size_of::<RegionInfo>(), 32),
            (size_of::<IrqInfo>(), 16),
            (size_of::<IrqSet>(), 20),
            (size_of::<RegionAccess>(), 16),
            (size_of::<SmallWrite>(), 24),
        ];
        for (is, shall_be) in sizes {
            assert_eq!(is, shall_be);
        }
    }

    #[test]
    fn lengths_are_checked() {
        let access = RegionAccess {
            offset: 4,
            region: 4,
            count: 4,
        };
        let mut body = access.as_bytes().to_vec();
        assert_eq!(parse(command::REGION_WRITE, &body), Err(Errno::INVAL));
        body.extend([1, 2, 3, 4]);
        assert_eq!(
            parse(command::REGION_WRITE, &body),
            Ok(Request::RegionWrite(access, &[1, 2, 3, 4]))
        );
        assert_eq!(parse(command::REGION_READ, &body), Err(Errno::INVAL));
        assert_eq!(parse(command::DMA_MAP, &[0; 31]), Err(Errno::INVAL));
        assert_eq!(parse(command::VERSION, &[0; 3]), Err(Errno::INVAL));
        assert_eq!(
            parse(command::VERSION, &[0, 0, 1, 0, 0xff, 0]),
            Err(Errno::INVAL)
        );
        assert_eq!(parse(11, &[]), Err(Errno::OPNOTSUPP));
    }

    #[test]
    fn multi_write_is_taken_apart() {
        let one = |offset| SmallWrite {
            access: RegionAccess {
                offset,
                region: 4,
                count: 4,
            },
            data: [7; 8],
        };
        let mut body = 2u64.to_ne_bytes().to_vec();
        body.extend(one(0).as_bytes());
        assert_eq!(parse(command::REGION_WRITE_MULTI, &body), Err(Errno::INVAL));
        body.extend(one(4096).as_bytes());
        let Ok(Request::WriteMulti(writes)) = parse(command::REGION_WRITE_MULTI, &body) else {
            panic!()
        };
        assert_eq!(
            writes
                .iter()
                .map(SmallWriteBytes::parse)
                .collect::<Vec<_>>(),
            [one(0), one(4096)]
        );
        body[0..8].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(parse(command::REGION_WRITE_MULTI, &body), Err(Errno::INVAL));
    }
}
