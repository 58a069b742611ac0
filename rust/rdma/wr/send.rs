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
        answer,
        Continuation,
        Posted,
        Posting, //
    },
    Sge, //
};
use crate::{
    access::AccessFlags,
    ah::Ah,
    bindings,
    device::Operations,
    event::Poster,
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
        /// P_Key index; of meaning to the GSI only.
        pkey_index: u16,
        /// Immediate data, as a number.
        immediate: Option<u32>,
    },
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
    /// Takes over a request of C. Operations that have no name here are refused with `EOPNOTSUPP`.
    ///
    /// # Safety
    ///
    /// `wr` must be a request to a queue pair of type `ty` of a device of `T`, inside the larger
    /// structure that its operation has, and stay as it is as long as what is returned.
    unsafe fn from_raw(
        wr: &'a bindings::ib_send_wr,
        ty: Type,
        poster: Poster,
        index: usize,
        posted: &'a Posted<bindings::ib_send_wr>,
    ) -> Result<Self> {
        let raw = ptr::from_ref(wr);
        // SAFETY: All members of the union are plain words.
        let extra = *unsafe { crate::compat::member(&wr.ex.imm_data) };
        // Immediate data stands in memory as it does on the network.
        let immediate = u32::from_be(extra);
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

        let operation = if ty.is_datagram() {
            let immediate = match wr.opcode {
                bindings::ib_wr_opcode_IB_WR_SEND => None,
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => Some(immediate),
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
                pkey_index: datagram.pkey_index,
                immediate,
            }
        } else {
            match wr.opcode {
                bindings::ib_wr_opcode_IB_WR_SEND => Operation::Send,
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => {
                    Operation::SendWithImmediate(immediate)
                }
                bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV => Operation::SendWithInvalidate(extra),
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => Operation::Write(remote()),
                bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => {
                    Operation::WriteWithImmediate(remote(), immediate)
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
                bindings::ib_wr_opcode_IB_WR_LOCAL_INV => Operation::LocalInvalidate(extra),
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
        };

        Ok(Self {
            posting: Posting {
                continuation: Continuation {
                    // SAFETY: All members of the union are plain words.
                    wr_id: *unsafe { crate::compat::member(&wr.__bindgen_anon_1.wr_id) },
                    poster,
                    is_receive: false,
                },
                index,
                next: wr.next,
                posted,
            },
            flags: SendFlags::from_raw(wr.send_flags)?,
            // SAFETY: The list is as long as the request says.
            elements: unsafe { Sge::slice(wr.sg_list, wr.num_sge) }?,
            operation,
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

    /// The request is posted, and with it those before: its user waits for it to complete.
    pub fn post(self) -> Continuation {
        self.posting.post()
    }
}

/// A list of requests to send.
///
/// # Invariants
///
/// `next` is null or the rest of a list as [`new`](Self::new) demands it, none of it posted.
pub struct SendRequests<'a, T: Operations> {
    next: *const bindings::ib_send_wr,
    /// Where in the list that is.
    index: usize,
    list: *const bindings::ib_send_wr,
    ty: Type,
    poster: Poster,
    posted: &'a Posted<bindings::ib_send_wr>,
    _list: PhantomData<(&'a (), T)>,
}

impl<'a, T: Operations> SendRequests<'a, T> {
    /// Wraps a list. How much of it is posted will be in `posted`, where nothing is now.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests to a queue pair of type `ty` of a device of `T`,
    /// the `poster`, which stay as they are during `'a`, each until it or one behind it is posted.
    pub(crate) unsafe fn new(
        list: *const bindings::ib_send_wr,
        ty: Type,
        poster: Poster,
        posted: &'a Posted<bindings::ib_send_wr>,
    ) -> Self {
        Self {
            next: list,
            index: 0,
            list,
            ty,
            poster,
            posted,
            _list: PhantomData,
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
        unsafe { answer(self.list, self.posted, result, bad) }
    }

    /// Takes the next request. There is only one at a time, because a request that is posted takes
    /// those before it with it.
    ///
    /// A request of an operation that has no name here is `EOPNOTSUPP`; one that is wrong in
    /// itself, `EINVAL`.
    #[expect(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Result<SendRequest<'_, T>>> {
        // SAFETY: Null or valid, by the type invariant.
        let wr = unsafe { self.next.as_ref() }?;

        let index = self.index;
        (self.next, self.index) = (wr.next, index + 1);
        // SAFETY: By the type invariant, until it is posted. That takes what is returned here, and
        // so does what comes after it.
        Some(unsafe { SendRequest::from_raw(wr, self.ty, self.poster, index, self.posted) })
    }

    /// Calls `post` with one request after the other, until an error.
    pub fn try_for_each(&mut self, mut post: impl FnMut(SendRequest<'_, T>) -> Result) -> Result {
        while let Some(request) = self.next() {
            post(request?)?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl<T: Operations> SendRequest<'static, T> {
    /// A request that nobody made, and that cannot be posted.
    pub(crate) fn for_test(flags: SendFlags, operation: Operation<'static, T>) -> Self {
        let continuation = Continuation {
            wr_id: 42,
            poster: Poster::new(),
            is_receive: false,
        };
        Self {
            posting: Posting {
                continuation,
                index: 0,
                next: ptr::null(),
                posted: &super::posting::NOWHERE.0,
            },
            flags,
            elements: &[],
            operation,
        }
    }
}
