// SPDX-License-Identifier: GPL-2.0

//! Requests to send.

use core::{
    marker::PhantomData,
    ptr, //
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
    mr::{
        Mapping,
        Mr, //
    },
    qp::Type, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

impl_flags!(
    /// How a send is done (`enum ib_send_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct SendFlags(u32);

    /// A property of a send.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum SendFlag {
        /// Begin only after all earlier reads and atomics completed.
        Fence = bit_u32(0),
        /// Raise a completion also on success.
        Signaled = bit_u32(1),
        /// Ask for a solicited event at the peer.
        Solicited = bit_u32(2),
        /// Take the payload when the request is posted; its addresses are those of the kernel.
        Inline = bit_u32(3),
        /// Insert IP checksums.
        IpChecksum = bit_u32(4),
    }
);

impl SendFlags {
    /// Takes over flags of C; a flag that has no name here is refused with `EINVAL`.
    fn from_raw(raw: c_int) -> Result<Self> {
        // CAST: A set of bits that C keeps in an `int`.
        let raw = raw as u32;
        if raw & !0x1f != 0 {
            return Err(EINVAL);
        }
        Ok(Self(raw))
    }
}

/// Remote memory of an RDMA operation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's region.
    pub address: u64,
    /// Key of the peer's region.
    pub rkey: u32,
}

/// What a send does.
pub enum Operation<'a, T: Operations> {
    /// Send.
    Send,
    /// Send with immediate data, as a number.
    SendWithImmediate(u32),
    /// Send which invalidates a key of the peer.
    SendWithInvalidate(u32),
    /// RDMA write.
    Write(Remote),
    /// RDMA write with immediate data, as a number.
    WriteWithImmediate(Remote, u32),
    /// RDMA read.
    Read(Remote),
    /// Atomic compare and swap.
    CompareSwap {
        /// The 8 bytes.
        remote: Remote,
        /// Value to compare with.
        compare: u64,
        /// Value to store.
        swap: u64,
    },
    /// Atomic fetch and add.
    FetchAdd {
        /// The 8 bytes.
        remote: Remote,
        /// Value to add.
        add: u64,
    },
    /// Makes a key of this side unusable, when all earlier requests are done.
    LocalInvalidate(u32),
    /// Registers a region for fast registration, before any later request begins.
    Register {
        /// The region.
        mr: &'a Mr<T::MemoryRegion>,
        /// The memory that it gets.
        mapping: Mapping,
        /// The key that it gets: its own, but for the lowest byte.
        key: u32,
        /// The rights that it gives.
        access: AccessFlags,
    },
    /// Send of a datagram.
    Datagram {
        /// Path to the destination.
        ah: &'a Ah<T::AddressHandle>,
        /// Queue pair at the destination.
        remote_qpn: u32,
        /// Q_Key.
        remote_qkey: u32,
        /// P_Key index, if a queue pair of management sends it; else 0.
        pkey_index: u16,
        /// Immediate data, as a number.
        immediate: Option<u32>,
    },
}

impl<'a, T: Operations> Operation<'a, T> {
    /// Takes over what a request of C does. What has no name here is refused with `EOPNOTSUPP`.
    ///
    /// # Safety
    ///
    /// `wr` must be a request to a queue pair of type `ty` of a device of `T`, inside the larger
    /// structure that its operation has, and stay as it is during `'a`.
    unsafe fn from_raw(wr: &'a bindings::ib_send_wr, ty: Type) -> Result<Self> {
        let raw = ptr::from_ref(wr);
        // SAFETY: Evaluated for operations that have one of the members only, all of them plain
        // words.
        let extra = || *unsafe { crate::compat::member(&wr.ex.imm_data) };
        // Immediate data stands in memory as it does on the network.
        let immediate = || u32::from_be(extra());
        // SAFETY: Evaluated for RDMA operations only, which are part of a `struct ib_rdma_wr`.
        let remote = || unsafe {
            let rdma = raw.cast::<bindings::ib_rdma_wr>();
            Remote {
                address: (*rdma).remote_addr,
                rkey: (*rdma).rkey,
            }
        };
        // SAFETY: Evaluated for atomics only, which are part of a `struct ib_atomic_wr`.
        let atomic = || unsafe {
            let atomic = raw.cast::<bindings::ib_atomic_wr>();
            let remote = Remote {
                address: (*atomic).remote_addr,
                rkey: (*atomic).rkey,
            };
            (remote, (*atomic).compare_add, (*atomic).swap)
        };

        Ok(if ty.is_datagram() {
            let immediate = match wr.opcode {
                bindings::ib_wr_opcode_IB_WR_SEND => None,
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => Some(immediate()),
                _ => return Err(EINVAL),
            };
            // SAFETY: Sends of datagrams are part of a `struct ib_ud_wr`.
            let datagram = unsafe { &*raw.cast::<bindings::ib_ud_wr>() };
            if datagram.ah.is_null() {
                return Err(EINVAL);
            }
            Operation::Datagram {
                // SAFETY: The handle is of the same device and exists as long as the request.
                ah: unsafe { Ah::from_raw(datagram.ah) },
                remote_qpn: datagram.remote_qpn,
                remote_qkey: datagram.remote_qkey,
                // Those of others nobody has written.
                pkey_index: match ty {
                    Type::Smi | Type::Gsi => datagram.pkey_index,
                    _ => 0,
                },
                immediate,
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
                    // the same device, and its owner leaves it alone until they are done.
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
                _ => return Err(EOPNOTSUPP),
            }
        })
    }
}

/// A request to send (`struct ib_send_wr`).
///
/// Its user may free what it refers to as soon as it is posted. So what a driver learns of it is
/// borrowed from the request, which [`post`](Self::post) takes.
pub struct SendRequest<'a, T: Operations> {
    posting: Posting<'a, bindings::ib_send_wr>,
    flags: SendFlags,
    elements: &'a [Sge],
    operation: Operation<'a, T>,
}

impl<'a, T: Operations> SendRequest<'a, T> {
    /// Takes over a request of C.
    ///
    /// # Safety
    ///
    /// As for [`Operation::from_raw`].
    unsafe fn from_raw(taken: Taken<'a, bindings::ib_send_wr>, ty: Type) -> Result<Self> {
        Ok(Self {
            // SAFETY: Guaranteed by the caller.
            operation: unsafe { Operation::from_raw(taken.request, ty) }?,
            flags: SendFlags::from_raw(taken.request.send_flags)?,
            elements: taken.elements,
            posting: taken.posting,
        })
    }

    /// How it is done.
    #[inline]
    pub fn flags(&self) -> SendFlags {
        self.flags
    }

    /// Where the payload is, or where what is read goes.
    #[inline]
    pub fn elements(&self) -> &[Sge] {
        self.elements
    }

    /// What it does.
    #[inline]
    pub fn operation(&self) -> &Operation<'_, T> {
        &self.operation
    }

    /// The request is posted: its user waits for it to complete.
    ///
    /// To be called in the order of the queue, with what keeps others from posting to it.
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of requests to send.
///
/// # Invariants
///
/// The requests are as [`new`](Self::new) demands them.
pub struct SendRequests<'a, T: Operations> {
    list: List<'a, bindings::ib_send_wr>,
    ty: Type,
    _driver: PhantomData<T>,
}

impl<'a, T: Operations> SendRequests<'a, T> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests to `queue`, that of sends of a queue pair of type
    /// `ty` of a device of `T`. They must be inside the larger structures that their operations
    /// have, and stay as they are during `'a`, each until it is posted.
    pub(crate) unsafe fn new(
        list: *const bindings::ib_send_wr,
        ty: Type,
        queue: WorkQueue<'a>,
    ) -> Self {
        Self {
            // SAFETY: Guaranteed by the caller.
            list: unsafe { List::new(list, queue) },
            ty,
            _driver: PhantomData,
        }
    }

    /// What to answer to who posts, to whom the driver says `result`.
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

    /// Takes the next request. It has to be posted before there is another. `EOPNOTSUPP` if it does
    /// what has no name here; `EINVAL` if it is wrong in itself.
    pub fn take(&mut self) -> Option<Result<SendRequest<'_, T>>> {
        let taken = self.list.take()?;
        // SAFETY: By the type invariant. It stays as it is until it is posted, which takes what is
        // returned here.
        Some(taken.and_then(|taken| unsafe { SendRequest::from_raw(taken, self.ty) }))
    }

    /// Calls `post` with one request after the other, until an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(SendRequest<'_, T>) -> Result) -> Result {
        while let Some(request) = self.take() {
            post(request?)?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl<T: Operations> SendRequest<'_, T> {
    /// Calls `test` with a request that nobody waits for.
    pub(crate) fn with_test<R>(
        flags: SendFlags,
        operation: Operation<'_, T>,
        test: impl FnOnce(&SendRequest<'_, T>) -> R,
    ) -> Result<R> {
        let raw = bindings::ib_send_wr::default();
        // SAFETY: There is one request, which has no elements.
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
