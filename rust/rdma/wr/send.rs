// SPDX-License-Identifier: GPL-2.0

//! Send requests.

use core::{
    marker::PhantomData,
    num::NonZeroU32,
    ptr,
    slice, //
};

use kernel::{
    bits::bit_u32,
    impl_flags,
    prelude::*, //
};

use super::{
    posting::{
        Continuation,
        List,
        Posting,
        Taken, //
    },
    Sge, //
};
use crate::{
    access::AccessFlags,
    ah::Ah,
    bindings,
    device::Operations,
    event::WorkQueue,
    integrity::{
        Attributes,
        Lists, //
    },
    mr::{
        Mapping,
        Mr, //
    },
    qp::Type, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

impl_flags!(
    /// Flags of a send request (`enum ib_send_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct SendFlags(u32);

    /// A flag of a send request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SendFlag {
        /// Start only after all earlier RDMA reads and atomics have completed.
        Fence = bit_u32(0),
        /// Generate a completion also on success.
        Signaled = bit_u32(1),
        /// Request a solicited event at the peer.
        Solicited = bit_u32(2),
        /// Copy the payload when the request is posted; the addresses are kernel virtual addresses.
        /// Only requests of the kernel have it, if they
        /// [may have inline data](Operation::may_be_inline).
        Inline = bit_u32(3),
        /// Insert IP checksums.
        IpChecksum = bit_u32(4),
    }
);

impl SendFlags {
    /// Converts C flags; flags without a name here are rejected with `EINVAL`.
    fn from_raw(raw: c_int) -> Result<Self> {
        // CAST: A set of bits that C keeps in an `int`.
        let raw = raw as u32;
        if raw & !0x1f != 0 {
            return Err(EINVAL);
        }
        Ok(Self(raw))
    }
}

/// Remote memory for an RDMA operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's memory region.
    pub address: u64,
    /// Key of the peer's memory region.
    pub rkey: u32,
}

/// How to divide the payload of a datagram into TCP packets. Each of them has a copy of the header,
/// with its own lengths, sequence number, flags and checksums.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segments<'a> {
    /// The header: that of IP over InfiniBand, IP and TCP. It is not checked.
    pub header: &'a [u8],
    /// Payload of each packet but the last in bytes; not 0.
    pub size: NonZeroU32,
}

impl<'a> Segments<'a> {
    /// Converts the members of a C request. `EINVAL` without a header, or if a length makes no
    /// sense.
    ///
    /// # Safety
    ///
    /// If `wr.header` is not null and `wr.hlen` positive, there must be that many bytes, which do
    /// not change during `'a`.
    unsafe fn from_raw(wr: &'a bindings::ib_ud_wr) -> Result<Self> {
        let length = usize::try_from(wr.hlen)?;
        let size = NonZeroU32::new(u32::try_from(wr.mss)?).ok_or(EINVAL)?;
        if wr.header.is_null() || length == 0 {
            return Err(EINVAL);
        }
        Ok(Self {
            // SAFETY: Not null, and as long as the caller guarantees.
            header: unsafe { slice::from_raw_parts(wr.header.cast(), length) },
            size,
        })
    }
}

/// Operation of a send request.
pub enum Operation<'a, T: Operations> {
    /// Send.
    Send,
    /// Send with immediate data, in host byte order.
    SendWithImmediate(u32),
    /// Send that invalidates a key of the peer.
    SendWithInvalidate(u32),
    /// RDMA write.
    Write(Remote),
    /// RDMA write with immediate data, in host byte order.
    WriteWithImmediate(Remote, u32),
    /// RDMA read.
    Read(Remote),
    /// Atomic compare and swap.
    CompareSwap {
        /// The 8 bytes to operate on.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Atomic fetch and add.
    FetchAdd {
        /// The 8 bytes to operate on.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// Invalidates a local key after all earlier requests have completed.
    LocalInvalidate(u32),
    /// Performs a fast registration of a region, before any later request starts.
    Register {
        /// The region to register.
        mr: &'a Mr<T::MemoryRegion>,
        /// Memory for the region.
        mapping: Mapping,
        /// New key of the region; it differs from the old one only in the lowest byte.
        key: u32,
        /// Access rights that the registration grants.
        access: AccessFlags,
    },
    /// Like [`Register`](Self::Register), for a region for integrity. Only if the queue pair is of
    /// type [`ReliableConnection`](Type::ReliableConnection). Addresses in the region start from 0,
    /// and count the bytes of the wire's domain.
    RegisterIntegrity {
        /// The region to register.
        mr: &'a Mr<T::MemoryRegion>,
        /// Memory for the region.
        lists: Lists,
        /// What the region does with protection information.
        attributes: Attributes,
        /// New key of the region; it differs from the old one only in the lowest byte.
        key: u32,
        /// Access rights that the registration grants.
        access: AccessFlags,
    },
    /// Datagram send.
    Datagram {
        /// Path to the destination.
        ah: &'a Ah<T::AddressHandle>,
        /// Queue pair at the destination.
        remote_qpn: u32,
        /// Q_Key of the destination.
        remote_qkey: u32,
        /// P_Key index if the queue pair is a management queue pair (QP0 or QP1); otherwise 0.
        pkey_index: u16,
        /// Immediate data, in host byte order.
        immediate: Option<u32>,
        /// Into which packets the payload is divided; only without immediate data, and if the queue
        /// pair is of type [`UnreliableDatagram`](Type::UnreliableDatagram). The queue pair may
        /// have been created without [segments](crate::qp::CreationFlag::Segments).
        segments: Option<Segments<'a>>,
    },
}

impl<'a, T: Operations> Operation<'a, T> {
    /// Returns whether the payload can be [copied](SendFlag::Inline) when the request is posted: it
    /// is sent, and not in segments.
    pub fn may_be_inline(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendWithImmediate(_)
                | Self::SendWithInvalidate(_)
                | Self::Write(_)
                | Self::WriteWithImmediate(..)
                | Self::Datagram { segments: None, .. }
        )
    }

    /// Converts the operation of a C request. Operations without a name here are rejected with
    /// `EOPNOTSUPP`.
    ///
    /// # Safety
    ///
    /// `wr` must be a request for a queue pair of type `ty` of a device of `T`. It must be embedded
    /// in the larger structure for its operation, and must not change during `'a`.
    unsafe fn from_raw(wr: &'a bindings::ib_send_wr, ty: Type) -> Result<Self> {
        let raw = ptr::from_ref(wr);
        // SAFETY: Evaluated only for operations that use one of the members, all of which are plain
        // words.
        let extra = || *unsafe { crate::compat::member(&wr.ex.imm_data) };
        // C keeps immediate data in network byte order.
        let immediate = || u32::from_be(extra());
        // SAFETY: Evaluated only for RDMA operations, which are part of a `struct ib_rdma_wr`.
        let remote = || unsafe {
            let rdma = raw.cast::<bindings::ib_rdma_wr>();
            Remote {
                address: (*rdma).remote_addr,
                rkey: (*rdma).rkey,
            }
        };
        // SAFETY: Evaluated only for atomics, which are part of a `struct ib_atomic_wr`.
        let atomic = || unsafe {
            let atomic = raw.cast::<bindings::ib_atomic_wr>();
            let remote = Remote {
                address: (*atomic).remote_addr,
                rkey: (*atomic).rkey,
            };
            (remote, (*atomic).compare_add, (*atomic).swap)
        };

        Ok(if ty.is_datagram() {
            // Other operations have other members where a datagram has its address handle.
            let (immediate, is_segmented) = match wr.opcode {
                bindings::ib_wr_opcode_IB_WR_SEND => (None, false),
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => (Some(immediate()), false),
                bindings::ib_wr_opcode_IB_WR_LSO if ty == Type::UnreliableDatagram => (None, true),
                _ => return Err(EINVAL),
            };
            // SAFETY: Sends on queue pairs for datagrams are part of a `struct ib_ud_wr`.
            let datagram = unsafe { &*raw.cast::<bindings::ib_ud_wr>() };
            // SAFETY: The header is as long as the request says, and remains unchanged as the
            // request does.
            let segments = is_segmented.then(|| unsafe { Segments::from_raw(datagram) });
            let segments = segments.transpose()?;
            if datagram.ah.is_null() {
                return Err(EINVAL);
            }
            Operation::Datagram {
                // SAFETY: The handle is of the same device and lives as long as the request.
                ah: unsafe { Ah::from_raw(datagram.ah) },
                remote_qpn: datagram.remote_qpn,
                remote_qkey: datagram.remote_qkey,
                // The field is not initialised for other queue pairs.
                pkey_index: match ty {
                    Type::Smi | Type::Gsi => datagram.pkey_index,
                    _ => 0,
                },
                immediate,
                segments,
            }
        } else {
            match wr.opcode {
                bindings::ib_wr_opcode_IB_WR_SEND => Operation::Send,
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
                    Operation::SendWithImmediate(immediate())
                }
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => {
                    Operation::SendWithInvalidate(extra())
                }
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => Operation::Write(remote()),
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                    Operation::WriteWithImmediate(remote(), immediate())
                }
                bindings::ib_wr_opcode_IB_WR_RDMA_READ => Operation::Read(remote()),
                bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => {
                    let (remote, compare, swap) = atomic();
                    Operation::CompareSwap {
                        remote,
                        compare,
                        swap,
                    }
                }
                bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                    let (remote, add, _) = atomic();
                    Operation::FetchAdd { remote, add }
                }
                bindings::ib_wr_opcode_IB_WR_LOCAL_INV => Operation::LocalInvalidate(extra()),
                bindings::ib_wr_opcode_IB_WR_REG_MR => {
                    // SAFETY: Registrations are part of a `struct ib_reg_wr`. Their region is of
                    // the same device, and its owner does not change the region until the
                    // registration is done.
                    let (register, mr) = unsafe {
                        let register = &*raw.cast::<bindings::ib_reg_wr>();
                        (register, Mr::mapped_from_raw(register.mr)?)
                    };
                    let (mr, mapping) = mr;
                    Operation::Register {
                        mr,
                        mapping,
                        key: register.key,
                        access: AccessFlags::from_raw(register.access)?,
                    }
                }
                bindings::ib_wr_opcode_IB_WR_REG_MR_INTEGRITY if ty == Type::ReliableConnection => {
                    // SAFETY: As for other registrations; the attributes belong to the region.
                    let (register, mr) = unsafe {
                        let register = &*raw.cast::<bindings::ib_reg_wr>();
                        (register, Mr::integrity_from_raw(register.mr)?)
                    };
                    let (mr, lists, attributes) = mr;
                    Operation::RegisterIntegrity {
                        mr,
                        lists,
                        attributes,
                        key: register.key,
                        access: AccessFlags::from_raw(register.access)?,
                    }
                }
                _ => return Err(EOPNOTSUPP),
            }
        })
    }
}

/// A send request (`struct ib_send_wr`).
///
/// Its owner may free what it refers to as soon as it is posted. So everything that a driver gets
/// from it is borrowed from the request, which [`post`](Self::post) consumes.
pub struct SendRequest<'a, T: Operations> {
    posting: Posting<'a, bindings::ib_send_wr>,
    flags: SendFlags,
    elements: &'a [Sge],
    operation: Operation<'a, T>,
}

impl<'a, T: Operations> SendRequest<'a, T> {
    /// Converts a C request. `EINVAL` for inline data, unless `inline` and the operation can have
    /// it.
    ///
    /// # Safety
    ///
    /// As for [`Operation::from_raw`]. If `inline`, and the request has the flag `IB_SEND_INLINE`
    /// and sends its payload, its elements must be those of kernel memory that does not change
    /// during `'a`.
    unsafe fn from_raw(
        taken: Taken<'a, bindings::ib_send_wr>,
        ty: Type,
        inline: bool,
    ) -> Result<Self> {
        // SAFETY: Guaranteed by the caller.
        let operation = unsafe { Operation::from_raw(taken.request, ty) }?;
        let flags = SendFlags::from_raw(taken.request.send_flags)?;
        // The addresses of other elements are not those of the kernel.
        if flags.contains(SendFlag::Inline) && !(inline && operation.may_be_inline()) {
            return Err(EINVAL);
        }
        Ok(Self {
            operation,
            flags,
            elements: taken.elements,
            posting: taken.posting,
        })
    }

    /// Returns the flags.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        self.flags
    }

    /// Returns the scatter/gather elements with the payload, or with the destination of a read.
    /// With [inline data](Self::inline_data), they have no keys.
    #[inline]
    pub fn elements(&self) -> &[Sge] {
        self.elements
    }

    /// Returns the payload in pieces, one for each element, if it must be copied before the request
    /// is [posted](Self::post).
    pub fn inline_data(&self) -> Option<impl Iterator<Item = &[u8]>> {
        let elements = self.elements();
        // SAFETY: Only a request of the kernel that sends its payload has this flag. So the
        // elements are those of kernel memory, which does not change as long as this value exists.
        let pieces = elements.iter().map(|element| unsafe { element.memory() });
        self.flags.contains(SendFlag::Inline).then_some(pieces)
    }

    /// Returns the operation.
    #[inline]
    pub fn operation(&self) -> &Operation<'_, T> {
        &self.operation
    }

    /// Marks the request as posted: its user then waits for the completion.
    ///
    /// Must be called in the order of the queue, while other posters are locked out.
    #[inline]
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of send requests.
///
/// # Invariants
///
/// The requests satisfy the conditions of [`new`](Self::new).
pub struct SendRequests<'a, T: Operations> {
    list: List<'a, bindings::ib_send_wr>,
    ty: Type,
    /// Whether requests may have inline data.
    inline: bool,
    _driver: PhantomData<T>,
}

impl<'a, T: Operations> SendRequests<'a, T> {
    /// Wraps a list. Its requests have inline data only if `inline`, which must be `false` for
    /// those of a process.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests for `queue`, the send queue of a queue pair of
    /// type `ty` of a device of `T`. Each request must be embedded in the larger structure for its
    /// operation, and must remain unchanged during `'a` until it is posted. If `inline`, the
    /// elements of a request with the flag `IB_SEND_INLINE` that sends its payload must be those of
    /// kernel memory, which must remain unchanged for as long.
    pub(crate) unsafe fn new(
        list: *const bindings::ib_send_wr,
        ty: Type,
        queue: WorkQueue<'a>,
        inline: bool,
    ) -> Self {
        Self {
            // SAFETY: Guaranteed by the caller.
            list: unsafe { List::new(list, queue) },
            ty,
            inline,
            _driver: PhantomData,
        }
    }

    /// Returns the result for the caller of the post verb, given the driver's `result`.
    ///
    /// # Safety
    ///
    /// `bad` must be valid for writes.
    pub(crate) unsafe fn answer(
        &self,
        result: Result,
        bad: *mut *const bindings::ib_send_wr,
    ) -> Result<c_int> {
        // SAFETY: Guaranteed by the caller.
        unsafe { self.list.answer(result, bad) }
    }

    /// Returns whether no requests are left to post.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes the next request. The previous one must have been posted. `EOPNOTSUPP` if the
    /// operation or a right has no name here; `EINVAL` if the request is invalid.
    pub fn take(&mut self) -> Option<Result<SendRequest<'_, T>>> {
        let taken = self.list.take()?;
        // SAFETY: By the type invariant. The request remains unchanged until it is posted, which
        // consumes the value returned here.
        Some(taken.and_then(|taken| unsafe { SendRequest::from_raw(taken, self.ty, self.inline) }))
    }

    /// Calls `post` for each request until it returns an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(SendRequest<'_, T>) -> Result) -> Result {
        while let Some(request) = self.take() {
            post(request?)?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl<T: Operations> SendRequest<'_, T> {
    /// Calls `test` with a request that has no real poster.
    pub(crate) fn with_test<R>(
        flags: SendFlags,
        operation: Operation<'_, T>,
        test: impl FnOnce(&SendRequest<'_, T>) -> R,
    ) -> Result<R> {
        let raw = bindings::ib_send_wr::default();
        // SAFETY: There is only one request, which has no elements.
        let mut list =
            unsafe { List::new(&raw, WorkQueue::unordered(crate::event::Poster::new())) };
        let taken = list.take().ok_or(ENOENT)??;
        Ok(test(&SendRequest {
            posting: taken.posting,
            flags,
            elements: taken.elements,
            operation,
        }))
    }
}
