// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Control commands.
//!
//! A command is one descriptor chain on the control queue: a [`CommandHeader`] and the request
//! that its code names, readable by the device; then room for a [`ReplyHeader`] and the reply of
//! that command, writable by the device. A reply body follows only if the status is
//! [`Status::Ok`]. The device executes commands in the order in which they were made available
//! and no command waits for the network or for a peer.

use crate::{
    memory::PageList,
    port::{GidEntry, PortAttributes},
    qp::QpAttributes,
    ring::RingLayout,
    U16, U32, U64,
};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire_enum! {
    /// What a command does.
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
        /// [`CreateContext`].
        CreateContext = 0x0010,
        /// [`DestroyContext`].
        DestroyContext = 0x0011,
        /// [`RingDoorbell`].
        RingDoorbell = 0x0012,
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
        /// [`TakePageFault`].
        TakePageFault = 0x0038,
        /// [`MapPages`].
        MapPages = 0x0039,
        /// [`UnmapPages`].
        UnmapPages = 0x003a,
        /// [`RefusePages`].
        RefusePages = 0x003b,
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
    }
}

wire_enum! {
    /// How a command ended. A command that did not end with `Ok` changed nothing.
    pub enum Status: u32 {
        /// Done. Errno 0.
        Ok = 0,
        /// The code is unknown, or the device does not have what the command asks for.
        /// `EOPNOTSUPP`.
        Unsupported = 1,
        /// The request has not exactly the size of its code, a reserved field is not 0, or the
        /// reply does not fit. `EINVAL`.
        Malformed = 2,
        /// A field has a value that the standard forbids. `EINVAL`.
        InvalidArgument = 3,
        /// No object has that number or key. `ENOENT`.
        NotFound = 4,
        /// The object is used by another. `EBUSY`.
        Busy = 5,
        /// A limit of the device is reached. `ENOMEM`.
        NoResources = 6,
        /// An address is not memory of the guest, or a page list is not well formed. `EFAULT`.
        BadAddress = 7,
        /// The queue pair cannot go from its state to the one asked for. `EINVAL`.
        BadState = 8,
        /// The objects belong to different contexts or protection domains. `EPERM`.
        NotPermitted = 9,
        /// The device failed and waits for a reset. `EIO`.
        DeviceFailed = 10,
    }
}

/// Head of every command.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CommandHeader {
    /// A [`CommandCode`].
    pub code: U16,
    /// Reserved; 0.
    pub reserved: U16,
    /// Bytes of the request that follows; exactly the size of the code's request.
    pub length: U32,
}
assert_layout!(CommandHeader, 8, code @ 0, length @ 4);

/// Head of every reply.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// A [`Status`].
    pub status: U32,
    /// Bytes of the reply that follows; 0 unless the status is `Ok`.
    pub length: U32,
    /// Device's reason for a refusal, for people; 0 if none.
    pub vendor_error: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(ReplyHeader, 16, status @ 0, length @ 4, vendor_error @ 8);

/// Longest request, header included, in bytes.
pub const MAX_REQUEST: usize = 256;

/// Longest reply, header included, in bytes.
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

/// A request together with its code and the reply it gets.
pub trait Command: Plain {
    /// Code in the header.
    const CODE: CommandCode;
    /// What the device answers on success.
    type Reply: Plain;
}

/// Implements [`Command`] and checks that request and reply fit their limits.
macro_rules! command {
    ($request:ty => $reply:ty, $code:ident, $size:expr) => {
        assert_layout!($request, $size);
        const _: () = {
            let header = core::mem::size_of::<CommandHeader>();
            assert!(header + core::mem::size_of::<$request>() <= MAX_REQUEST);
            let header = core::mem::size_of::<ReplyHeader>();
            assert!(header + core::mem::size_of::<$reply>() <= MAX_REPLY);
        };
        impl Command for $request {
            const CODE: CommandCode = CommandCode::$code;
            type Reply = $reply;
        }
    };
}

/// Request or reply without content.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Empty {}

/// Asks for the limits of the device.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDevice {}
command!(QueryDevice => DeviceLimits, QueryDevice, 0);

/// Limits of the device. Each is one that the device holds at that value.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceLimits {
    /// Longest memory region in bytes.
    pub max_mr_size: U64,
    /// Bit `n` set: pages of 2 to the `n` bytes may make up a page list.
    pub page_sizes: U64,
    /// Queue pairs, the GSI queue pair included.
    pub max_qp: U32,
    /// Entries of a send or a receive queue.
    pub max_qp_entries: U32,
    /// Scatter/gather elements of a send entry.
    pub max_send_sge: U32,
    /// Scatter/gather elements of a receive entry.
    pub max_recv_sge: U32,
    /// Inline bytes of a send entry.
    pub max_inline: U32,
    /// Completion queues.
    pub max_cq: U32,
    /// Entries of a completion queue.
    pub max_cq_entries: U32,
    /// Memory regions.
    pub max_mr: U32,
    /// Protection domains.
    pub max_pd: U32,
    /// Contexts, the driver's own included.
    pub max_contexts: U32,
    /// Largest `max_dest_rd_atomic` of a queue pair.
    pub max_dest_rd_atomic: U32,
    /// Largest `max_rd_atomic` of a queue pair.
    pub max_rd_atomic: U32,
    /// Longest message in bytes.
    pub max_message_size: U32,
    /// Entries of the GID table.
    pub gid_table_length: U32,
    /// Firmware version: major in bits 47 to 32, minor in 31 to 16, patch in 15 to 0.
    pub firmware_version: U64,
    /// Frequency of the clock that completions are stamped with, in kilohertz.
    pub clock_khz: U32,
    /// Pages of a fast registration; 0 without the feature.
    pub max_fast_registration_pages: U32,
    /// Memory windows; 0 without the feature.
    pub max_mw: U32,
    /// Shared receive queues; 0 without the feature.
    pub max_srq: U32,
    /// Multicast groups that have a queue pair; 0 without the feature.
    pub max_multicast_groups: U32,
    /// Queue pairs of a multicast group; 0 without the feature.
    pub max_multicast_members: U32,
    /// Sum of the queue pairs of all multicast groups; 0 without the feature.
    pub max_multicast_attachments: U32,
    /// Counter sets; 0 without the feature.
    pub max_counter_sets: U32,
    /// Reserved; 0.
    pub reserved: [U32; 2],
}
assert_layout!(DeviceLimits, 120, max_mr_size @ 0, page_sizes @ 8, max_qp @ 16,
    max_contexts @ 52, gid_table_length @ 68, firmware_version @ 72, clock_khz @ 80,
    max_fast_registration_pages @ 84, max_mw @ 88, max_srq @ 92, max_multicast_groups @ 96);

/// Asks for the attributes of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryPort {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryPort => PortAttributes, QueryPort, 8);

/// Fills an entry of the GID table, whether it was in use or not.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetGid {
    /// Index of the entry, less than `gid_table_length`.
    pub index: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The entry.
    pub entry: GidEntry,
}
command!(SetGid => Empty, SetGid, 40);

/// Empties an entry of the GID table.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ClearGid {
    /// Index of the entry, less than `gid_table_length`.
    pub index: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(ClearGid => Empty, ClearGid, 8);

/// Asks for the counters of the port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCounters {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryCounters => Counters, QueryCounters, 8);

/// Sets the largest path MTU of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetMtu {
    /// Port, 1.
    pub port: U32,
    /// A [`Mtu`](crate::port::Mtu), at most `max_mtu` of the port.
    pub mtu: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
command!(SetMtu => Empty, SetMtu, 8);

/// Sets the administrative state of a port.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetPortState {
    /// Port, 1.
    pub port: U32,
    /// A [`PortState`](crate::port::PortState).
    pub state: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
}
command!(SetPortState => Empty, SetPortState, 8);

/// Room for counters in a reply.
pub const MAX_COUNTERS: usize = 48;

/// Counters of the port, each at the place of its [`Counter`](crate::counter::Counter).
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Counters {
    /// Values; those that no counter has are 0.
    pub values: [U64; MAX_COUNTERS],
}
assert_layout!(Counters, MAX_COUNTERS * 8);

wire_enum! {
    /// Who owns a context.
    pub enum ContextKind: u8 {
        /// A process: it may not use regions over all memory, nor the GSI queue pair.
        User = 0,
        /// The driver itself.
        Kernel = 1,
    }
}

/// Creates a context: a notify area and a doorbell page.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateContext {
    /// A [`ContextKind`].
    pub kind: u8,
    /// Reserved; 0.
    pub reserved: [u8; 3],
    /// Doorbell slots; see [`notify::is_valid_slot_count`](crate::notify::is_valid_slot_count).
    pub slots: U32,
    /// The notify area, [`notify::area_length`](crate::notify::area_length) bytes, offset 0.
    pub area: PageList,
}
command!(CreateContext => ContextCreated, CreateContext, 40);

/// Reply to [`CreateContext`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ContextCreated {
    /// Number of the context.
    pub context: U32,
    /// Doorbell page of the context; meaningless without a doorbell region.
    pub doorbell_page: U32,
}
assert_layout!(ContextCreated, 8, context @ 0, doorbell_page @ 4);

/// Destroys a context; `Busy` while queue pairs or completion queues belong to it. Protection
/// domains outlive their context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyContext {
    /// Number of the context.
    pub context: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyContext => Empty, DestroyContext, 8);

/// Rings the doorbell of a context, as a write to its doorbell page would.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingDoorbell {
    /// Number of the context.
    pub context: U32,
    /// Slot with work.
    pub slot: U32,
}
command!(RingDoorbell => Empty, RingDoorbell, 8);

/// Creates a protection domain.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreatePd {
    /// Context that owns it.
    pub context: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(CreatePd => PdCreated, CreatePd, 8);

/// Reply to [`CreatePd`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PdCreated {
    /// Number of the protection domain.
    pub pd: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(PdCreated, 8, pd @ 0);

/// Destroys a protection domain; `Busy` while regions or queue pairs belong to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyPd {
    /// Number of the protection domain.
    pub pd: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyPd => Empty, DestroyPd, 8);

/// Bits of [`RegisterMr::flags`].
pub mod mr_flags {
    /// The region is all memory that the device can address: addresses are bus addresses, `iova`
    /// and `pages` are 0. Only for protection domains of a kernel context.
    pub const ALL_MEMORY: u32 = 1 << 0;
    /// The region has no pages before [`MapPages`](super::MapPages) gives it some; `first_chunk` of
    /// `pages` is 0.
    pub const ON_DEMAND: u32 = 1 << 1;
}

/// Registers a memory region.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// [`mr_flags`].
    pub flags: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Address by which work requests name the first byte.
    pub iova: U64,
    /// Memory of the region; its length is that of the region.
    pub pages: PageList,
}
command!(RegisterMr => MrRegistered, RegisterMr, 56);

/// Reply to [`RegisterMr`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MrRegistered {
    /// Key of the region, for local and for remote use; chosen at random, never 0.
    pub key: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(MrRegistered, 8, key @ 0);

/// Deregisters a memory region; `Busy` while memory windows are bound to it. Work in progress that
/// names the key fails. The lowest byte of the key of a region for fast registration is not looked
/// at.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeregisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
}
command!(DeregisterMr => Empty, DeregisterMr, 8);

/// Allocates a memory region for fast registration, which has no memory until a work request
/// [`RegisterRegion`](crate::work::SendOpcode::RegisterRegion) gives it some. Only for protection
/// domains of a kernel context.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Pages that a registration may have.
    pub max_pages: U32,
    /// The table: room for the bus addresses of `max_pages` pages, each a [`U64`]; offset 0.
    pub table: PageList,
}
command!(AllocateMr => MrRegistered, AllocateMr, 40);

/// Bits of [`ReregisterMr::flags`].
pub mod reregister_flags {
    /// The region gets other memory, and another key.
    pub const TRANSLATION: u32 = 1 << 0;
    /// The region moves to another protection domain.
    pub const PD: u32 = 1 << 1;
    /// The region gets other rights.
    pub const ACCESS: u32 = 1 << 2;
}

/// Changes a memory region that [`RegisterMr`] made; `Busy` while memory windows are bound to it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReregisterMr {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// [`reregister_flags`]: which of the following count.
    pub flags: U32,
    /// Protection domain to move to.
    pub new_pd: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// Address by which work requests name the first byte.
    pub iova: U64,
    /// Memory of the region.
    pub pages: PageList,
}
command!(ReregisterMr => MrRegistered, ReregisterMr, 64);

wire_enum! {
    /// Type of a memory window (IBTA volume 1, 10.6.7.2).
    pub enum MwType: u32 {
        /// Bound for its protection domain, again and again.
        Type1 = 1,
        /// Type 2B: bound for the queue pair that does it, until it is invalidated.
        Type2 = 2,
    }
}

/// Allocates a memory window, which is not bound.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocateMw {
    /// Protection domain of the window.
    pub pd: U32,
    /// A [`MwType`].
    pub mw_type: U32,
}
command!(AllocateMw => MwAllocated, AllocateMw, 8);

/// Reply to [`AllocateMw`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MwAllocated {
    /// Key of the window, of no use before it is bound.
    pub key: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(MwAllocated, 8, key @ 0);

/// Deallocates a memory window, bound or not. The lowest byte of the key is not looked at.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeallocateMw {
    /// Protection domain of the window.
    pub pd: U32,
    /// Key of the window.
    pub key: U32,
}
command!(DeallocateMw => Empty, DeallocateMw, 8);

/// Asks what pages of a region with [`mr_flags::ON_DEMAND`] the device waits for. They will not be
/// told again unless they are needed once more after the answer.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TakePageFault {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
}
command!(TakePageFault => PageFault, TakePageFault, 8);

/// Bits of [`PageFault::flags`].
pub mod fault_flags {
    /// The pages will be written.
    pub const WRITE: u32 = 1 << 0;
}

/// Reply to [`TakePageFault`].
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct PageFault {
    /// The first page.
    pub first_page: U32,
    /// Pages, some of which may be there; 0 if the device waits for none.
    pub page_count: U32,
    /// [`fault_flags`].
    pub flags: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(PageFault, 16, first_page @ 0, page_count @ 4, flags @ 8);

/// Gives pages to a region with [`mr_flags::ON_DEMAND`], or other rights to pages that it has.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, 1 to [`TABLE_PAGES`](crate::memory::TABLE_PAGES).
    pub page_count: U32,
    /// Bus address of a table with an entry, a [`U64`], for each page; a multiple of 4096. An entry
    /// is a bus address and [`page_flags`](crate::memory::page_flags).
    pub table: U64,
}
command!(MapPages => Empty, MapPages, 24);

/// Takes pages from a region with [`mr_flags::ON_DEMAND`]; the device accesses none of them after
/// the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct UnmapPages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, at least 1.
    pub page_count: U32,
}
command!(UnmapPages => Empty, UnmapPages, 16);

/// Says that there are no such pages: work that waits for one of them fails.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RefusePages {
    /// Protection domain of the region.
    pub pd: U32,
    /// Key of the region.
    pub key: U32,
    /// The first page.
    pub first_page: U32,
    /// Pages, at least 1.
    pub page_count: U32,
}
command!(RefusePages => Empty, RefusePages, 16);

/// Creates a completion queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCq {
    /// Context that owns it.
    pub context: U32,
    /// Completion vector, less than `completion_vectors`.
    pub vector: U32,
    /// The ring; stride [`CQE_STRIDE`](crate::completion::CQE_STRIDE).
    pub ring: RingLayout,
    /// Buffer of the ring, zeroed by the driver; offset 0.
    pub pages: PageList,
}
command!(CreateCq => CqCreated, CreateCq, 56);

/// Reply to [`CreateCq`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CqCreated {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CqCreated, 8, cqn @ 0);

/// Destroys a completion queue; `Busy` while queue pairs use it. No event of it follows the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyCq => Empty, DestroyCq, 8);

/// Moves a completion queue to another ring, in which no entry is valid. What was written before
/// stands in the old one, and counts as entries of the new one.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The new ring.
    pub ring: RingLayout,
    /// Buffer of the new ring; offset 0.
    pub pages: PageList,
}
command!(ResizeCq => Empty, ResizeCq, 56);

/// Says how events of a completion queue are held back.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyCq {
    /// Number of the completion queue.
    pub cqn: U32,
    /// Completions that an event waits for; with 0 or 1 none is held back.
    pub count: U16,
    /// Microseconds that an event waits at most; with 0 none is held back.
    pub period: U16,
}
command!(ModifyCq => Empty, ModifyCq, 8);

/// Bits of [`CreateQp::flags`].
pub mod qp_flags {
    /// Every send raises a completion.
    pub const SIGNAL_ALL: u8 = 1 << 0;
    /// Receives are those of a shared receive queue.
    pub const SHARED_RECEIVE_QUEUE: u8 = 1 << 1;
}

/// Creates a queue pair, in the reset state.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQp {
    /// Context that owns it; its rings are rung through that context.
    pub context: U32,
    /// Protection domain.
    pub pd: U32,
    /// A [`QpType`](crate::qp::QpType).
    pub qp_type: u8,
    /// [`qp_flags`].
    pub flags: u8,
    /// Scatter/gather elements of a send entry.
    pub max_send_sge: U16,
    /// Scatter/gather elements of a receive entry.
    pub max_recv_sge: U16,
    /// Inline bytes of a send entry.
    pub max_inline: U16,
    /// Completion queue of the sends.
    pub send_cqn: U32,
    /// Completion queue of the receives.
    pub recv_cqn: U32,
    /// The send queue; absent if nothing will be sent.
    pub send_ring: RingLayout,
    /// The receive queue; absent if nothing will be received.
    pub recv_ring: RingLayout,
    /// Buffer of both rings, zeroed by the driver; offset 0.
    pub pages: PageList,
    /// The shared receive queue, with [`qp_flags::SHARED_RECEIVE_QUEUE`]; else 0.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(CreateQp => QpCreated, CreateQp, 96);

/// Reply to [`CreateQp`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QpCreated {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Doorbell slot of the queue pair in its context.
    pub slot: U32,
}
assert_layout!(QpCreated, 8, qpn @ 0, slot @ 4);

/// Changes attributes of a queue pair, its state first of all.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The attributes.
    pub attributes: QpAttributes,
}
command!(ModifyQp => Empty, ModifyQp, 104);

/// Asks for the attributes of a queue pair.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryQp => QpAttributes, QueryQp, 8);

/// Destroys a queue pair. No event and no completion of it follows the reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyQp {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyQp => Empty, DestroyQp, 8);

/// Creates a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrq {
    /// Context that owns it.
    pub context: U32,
    /// Protection domain of its elements.
    pub pd: U32,
    /// Scatter/gather elements of an entry.
    pub max_sge: U32,
    /// Raise an event when fewer receives are left; 0 for none.
    pub limit: U32,
    /// The ring.
    pub ring: RingLayout,
    /// Buffer of the ring, zeroed by the driver; offset 0.
    pub pages: PageList,
}
command!(CreateSrq => SrqCreated, CreateSrq, 64);

/// Reply to [`CreateSrq`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqCreated {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(SrqCreated, 8, srqn @ 0);

/// Sets the limit of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Raise an event when fewer receives are left; 0 for none.
    pub limit: U32,
}
command!(ModifySrq => Empty, ModifySrq, 8);

/// Moves a shared receive queue to another ring, in which its entries stand already.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ResizeSrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// The new ring.
    pub ring: RingLayout,
    /// Buffer of the new ring; offset 0.
    pub pages: PageList,
}
command!(ResizeSrq => Empty, ResizeSrq, 56);

/// Asks for the attributes of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QuerySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QuerySrq => SrqAttributes, QuerySrq, 8);

/// Attributes of a shared receive queue.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SrqAttributes {
    /// The limit; 0 if it was reached since it was set.
    pub limit: U32,
    /// Entries of the ring.
    pub entries: U32,
    /// Scatter/gather elements of an entry.
    pub max_sge: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(SrqAttributes, 16, limit @ 0, entries @ 4, max_sge @ 8);

/// Destroys a shared receive queue; `Busy` while queue pairs use it. No event of it follows the
/// reply.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroySrq {
    /// Number of the shared receive queue.
    pub srqn: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroySrq => Empty, DestroySrq, 8);

/// Attaches a queue pair of type UD to a multicast group; `Busy` if it is attached already.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttachMulticast {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// GID of the group, for which [`is_multicast`](crate::port::is_multicast) holds.
    pub gid: [u8; 16],
}
command!(AttachMulticast => Empty, AttachMulticast, 24);

/// Detaches a queue pair from a multicast group.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DetachMulticast {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Reserved; 0.
    pub reserved: U32,
    /// GID of the group.
    pub gid: [u8; 16],
}
command!(DetachMulticast => Empty, DetachMulticast, 24);

/// Creates a counter set, whose values are 0.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCounterSet {
    /// Port, 1.
    pub port: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(CreateCounterSet => CounterSetCreated, CreateCounterSet, 8);

/// Reply to [`CreateCounterSet`].
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CounterSetCreated {
    /// Number of the counter set, not 0.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(CounterSetCreated, 8, counter_set @ 0);

/// Makes a queue pair count in a counter set.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct BindCounterSet {
    /// Number of the queue pair.
    pub qpn: U32,
    /// Number of the counter set; 0: none.
    pub counter_set: U32,
}
command!(BindCounterSet => Empty, BindCounterSet, 8);

/// Asks for the values of a counter set.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCounterSet {
    /// Number of the counter set.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(QueryCounterSet => Counters, QueryCounterSet, 8);

/// Destroys a counter set; `Busy` while queue pairs have it.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DestroyCounterSet {
    /// Number of the counter set.
    pub counter_set: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
command!(DestroyCounterSet => Empty, DestroyCounterSet, 8);
