// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Control commands.
//!
//! A command is one descriptor chain on the control queue. The part that the device reads consists
//! of a [`CommandHeader`] and the request for the header's code. The part that the device writes
//! has room for a [`ReplyHeader`] and the reply of that command. A reply body follows only if the
//! status is [`Status::Ok`]. The device executes commands in the order in which they were made
//! available, and no command waits for the network or for a peer.
//!
//! This module contains what all commands have in common; there is a submodule with the commands
//! for each kind of object.

use crate::{U16, U32};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// Code of a command.
    pub enum CommandCode: u16 {
        /// [`QueryDevice`].
        QueryDevice = 0x0001,
        /// [`QueryPort`].
        QueryPort = 0x0002,
        /// [`SetGid`].
        SetGid = 0x0003,
        /// [`ClearGid`].
        ClearGid = 0x0004,
        /// [`QueryCounters`].
        QueryCounters = 0x0005,
        /// [`SetMtu`].
        SetMtu = 0x0006,
        /// [`SetPortState`].
        SetPortState = 0x0008,
        /// [`QueryClock`].
        QueryClock = 0x0009,
        /// [`QuerySubnetPort`].
        QuerySubnetPort = 0x000a,
        /// [`QueryPkeys`].
        QueryPkeys = 0x000b,
        /// [`QueryGids`].
        QueryGids = 0x000c,
        /// [`ModifyPort`].
        ModifyPort = 0x000d,
        /// [`ProcessMad`].
        ProcessMad = 0x000e,
        /// [`CreateContext`].
        CreateContext = 0x0010,
        /// [`DestroyContext`].
        DestroyContext = 0x0011,
        /// [`RingDoorbell`].
        RingDoorbell = 0x0012,
        /// [`NameContext`].
        NameContext = 0x0013,
        /// [`CreatePd`].
        CreatePd = 0x0020,
        /// [`DestroyPd`].
        DestroyPd = 0x0021,
        /// [`RegisterMr`].
        RegisterMr = 0x0030,
        /// [`DeregisterMr`].
        DeregisterMr = 0x0031,
        /// [`AllocateMr`].
        AllocateMr = 0x0032,
        /// [`ReregisterMr`].
        ReregisterMr = 0x0033,
        /// [`AllocateMw`].
        AllocateMw = 0x0034,
        /// [`DeallocateMw`].
        DeallocateMw = 0x0035,
        /// [`AllocateIntegrityMr`].
        AllocateIntegrityMr = 0x0036,
        /// [`TakePageFault`].
        TakePageFault = 0x0038,
        /// [`MapPages`].
        MapPages = 0x0039,
        /// [`UnmapPages`].
        UnmapPages = 0x003a,
        /// [`RefusePages`].
        RefusePages = 0x003b,
        /// [`AttachRegion`].
        AttachRegion = 0x003c,
        /// [`CreateCq`].
        CreateCq = 0x0040,
        /// [`DestroyCq`].
        DestroyCq = 0x0041,
        /// [`ResizeCq`].
        ResizeCq = 0x0042,
        /// [`ModifyCq`].
        ModifyCq = 0x0043,
        /// [`CreateQp`].
        CreateQp = 0x0050,
        /// [`ModifyQp`].
        ModifyQp = 0x0051,
        /// [`QueryQp`].
        QueryQp = 0x0052,
        /// [`DestroyQp`].
        DestroyQp = 0x0053,
        /// [`ModifyQpPaths`].
        ModifyQpPaths = 0x0054,
        /// [`QueryQpPaths`].
        QueryQpPaths = 0x0055,
        /// [`CreateScalingQp`].
        CreateScalingQp = 0x0056,
        /// [`CreateSrq`].
        CreateSrq = 0x0060,
        /// [`ModifySrq`].
        ModifySrq = 0x0061,
        /// [`ResizeSrq`].
        ResizeSrq = 0x0062,
        /// [`QuerySrq`].
        QuerySrq = 0x0063,
        /// [`DestroySrq`].
        DestroySrq = 0x0064,
        /// [`AttachMulticast`].
        AttachMulticast = 0x0070,
        /// [`DetachMulticast`].
        DetachMulticast = 0x0071,
        /// [`CreateCounterSet`].
        CreateCounterSet = 0x0080,
        /// [`BindCounterSet`].
        BindCounterSet = 0x0081,
        /// [`QueryCounterSet`].
        QueryCounterSet = 0x0082,
        /// [`DestroyCounterSet`].
        DestroyCounterSet = 0x0083,
        /// [`CreateCompletionCounter`].
        CreateCompletionCounter = 0x0084,
        /// [`AttachCompletionCounter`].
        AttachCompletionCounter = 0x0085,
        /// [`ModifyCompletionCounter`].
        ModifyCompletionCounter = 0x0086,
        /// [`QueryCompletionCounter`].
        QueryCompletionCounter = 0x0087,
        /// [`DestroyCompletionCounter`].
        DestroyCompletionCounter = 0x0088,
        /// [`CreateXrcd`].
        CreateXrcd = 0x0090,
        /// [`DestroyXrcd`].
        DestroyXrcd = 0x0091,
        /// [`CreateXrcSrq`].
        CreateXrcSrq = 0x0092,
        /// [`CreateFlow`].
        CreateFlow = 0x00a0,
        /// [`DestroyFlow`].
        DestroyFlow = 0x00a1,
        /// [`QueryFlow`].
        QueryFlow = 0x00a2,
        /// [`CreateTunnelFlow`].
        CreateTunnelFlow = 0x00a3,
    }
}

wire_enum! {
    /// Result of a command. A command that did not end with `Ok` has changed nothing.
    pub enum Status: u32 {
        /// Success. Errno 0.
        Ok = 0,
        /// The code is unknown, or the device lacks what the command asks for. `EOPNOTSUPP`.
        Unsupported = 1,
        /// The request does not have exactly the size for its code, a reserved field is not 0, or
        /// the reply does not fit. `EINVAL`.
        Malformed = 2,
        /// A field has a value that the specification forbids. `EINVAL`.
        InvalidArgument = 3,
        /// No object has that number or key. `ENOENT`.
        NotFound = 4,
        /// The object is in use. `EBUSY`.
        Busy = 5,
        /// A limit of the device was reached. `ENOMEM`.
        NoResources = 6,
        /// An address is not memory of the guest, or a page list is not well formed. `EFAULT`.
        BadAddress = 7,
        /// The queue pair cannot go from its current state to the requested one. `EINVAL`.
        BadState = 8,
        /// The objects belong to different contexts or protection domains. `EPERM`.
        NotPermitted = 9,
        /// The device has failed and waits for a reset. `EIO`.
        DeviceFailed = 10,
        /// There is an object that excludes the requested one. `EEXIST`.
        Exists = 11,
    }
}

/// Header of every command.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandHeader {
    /// A [`CommandCode`].
    pub code: U16,
    /// Reserved; 0.
    pub reserved: U16,
    /// Length in bytes of the request that follows; exactly the size for the code.
    pub length: U32,
}
assert_layout!(CommandHeader, 8, code @ 0, length @ 4);

/// Header of every reply.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// A [`Status`].
    pub status: U32,
    /// Length in bytes of the reply that follows; 0 unless the status is `Ok`.
    pub length: U32,
    /// Vendor-specific reason for an error, for diagnostics; 0 if there is none.
    pub vendor_error: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(ReplyHeader, 16, status @ 0, length @ 4, vendor_error @ 8);

/// Maximum length of a request in bytes, including the header.
pub const MAX_REQUEST: usize = 512;

/// Maximum length of a reply in bytes, including the header.
pub const MAX_REPLY: usize = 512;

/// Plain bytes of a fixed layout.
pub trait Plain:
    zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + zerocopy::KnownLayout + Sized
{
}

impl<T> Plain for T where
    T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable + zerocopy::KnownLayout
{
}

/// A request, with its code and the type of its reply.
pub trait Command: Plain {
    /// Code in the header.
    const CODE: CommandCode;
    /// Reply on success.
    type Reply: Plain;
    /// Length in bytes of the shortest reply on success. Only limits that later features added can
    /// be missing at its end; a missing field is 0.
    const SHORTEST_REPLY: usize = core::mem::size_of::<Self::Reply>();
}

/// Implements [`Command`] and checks that request and reply fit their limits.
macro_rules! command {
    ($request:ty => $reply:ty, $code:ident, $size:expr $(, shortest_reply = $shortest:expr)?) => {
        assert_layout!($request, $size);
        const _: () = {
            let header = core::mem::size_of::<$crate::command::CommandHeader>();
            assert!(header + core::mem::size_of::<$request>() <= $crate::command::MAX_REQUEST);
            let header = core::mem::size_of::<$crate::command::ReplyHeader>();
            assert!(header + core::mem::size_of::<$reply>() <= $crate::command::MAX_REPLY);
        };
        impl $crate::command::Command for $request {
            const CODE: $crate::command::CommandCode = $crate::command::CommandCode::$code;
            type Reply = $reply;
            $(
                const SHORTEST_REPLY: usize = {
                    assert!($shortest <= core::mem::size_of::<$reply>());
                    $shortest
                };
            )?
        }
    };
}

/// A request or reply without contents.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Empty {}

mod completion_counter;
mod context;
mod counter;
mod cq;
mod device;
mod flow;
mod mr;
mod multicast;
mod mw;
mod odp;
mod pd;
mod port;
mod qp;
mod srq;
mod subnet;
mod xrc;

pub use completion_counter::*;
pub use context::*;
pub use counter::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use mr::*;
pub use multicast::*;
pub use mw::*;
pub use odp::*;
pub use pd::*;
pub use port::*;
pub use qp::*;
pub use srq::*;
pub use subnet::*;
pub use xrc::*;
