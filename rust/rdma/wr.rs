// SPDX-License-Identifier: GPL-2.0

//! Work requests that the kernel posts.

use core::{
    marker::PhantomData,
    slice, //
};

use kernel::{
    bits::bit_u32,
    impl_flags,
    prelude::*, //
};

use crate::{
    access::AccessFlags,
    ah::Ah,
    bindings,
    device::Operations,
    mr::{
        Mapping,
        Mr, //
    },
    qp::Type, //
};

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

/// A scatter/gather element: a piece of a memory region (`struct ib_sge`).
#[repr(transparent)]
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// Address of the first byte.
    #[inline]
    pub fn address(&self) -> u64 {
        self.0.addr
    }

    /// Bytes.
    #[inline]
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Key of the region.
    #[inline]
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }

    /// Wraps the elements of a request.
    ///
    /// # Safety
    ///
    /// `list` must have `count` elements, which stay as they are during `'a`.
    pub(crate) unsafe fn slice<'a>(
        list: *const bindings::ib_sge,
        count: c_int,
    ) -> Result<&'a [Self]> {
        let count = usize::try_from(count)?;
        if count == 0 {
            return Ok(&[]);
        }
        if list.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: Not null and as long as the caller says; `Sge` is transparent.
        Ok(unsafe { slice::from_raw_parts(list.cast(), count) })
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
pub struct SendRequest<'a, T: Operations> {
    /// The poster's name for the request.
    pub wr_id: u64,
    /// How it is done.
    pub flags: SendFlags,
    /// Where the payload is, or where what is read goes.
    pub elements: &'a [Sge],
    /// What it does.
    pub operation: Operation<'a, T>,
}

impl<'a, T: Operations> SendRequest<'a, T> {
    /// Takes over a request of C. Operations that have no name here are refused with `EOPNOTSUPP`.
    ///
    /// # Safety
    ///
    /// `wr` must be a request to a queue pair of type `ty` of a device of `T`, inside the larger
    /// structure that its operation has, and stay as it is during `'a`.
    unsafe fn from_raw(wr: &'a bindings::ib_send_wr, ty: Type) -> Result<Self> {
        let raw = core::ptr::from_ref(wr);
        let extra = wr.ex.bindgen_union_field;
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
            wr_id: wr.__bindgen_anon_1.bindgen_union_field,
            flags: SendFlags::from_raw(wr.send_flags)?,
            // SAFETY: The list is as long as the request says.
            elements: unsafe { Sge::slice(wr.sg_list, wr.num_sge) }?,
            operation,
        })
    }
}

/// A list of requests to send.
///
/// # Invariants
///
/// `next` is null or the rest of a list as [`new`](Self::new) demands it.
pub struct SendRequests<'a, T: Operations> {
    next: *const bindings::ib_send_wr,
    last: *const bindings::ib_send_wr,
    ty: Type,
    _list: PhantomData<(&'a (), T)>,
}

impl<T: Operations> SendRequests<'_, T> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests to a queue pair of type `ty` of a device of `T`,
    /// which stay as they are during `'a`.
    pub(crate) unsafe fn new(list: *const bindings::ib_send_wr, ty: Type) -> Self {
        Self {
            next: list,
            last: list,
            ty,
            _list: PhantomData,
        }
    }

    /// The request that was taken last; the first if none was taken.
    pub(crate) fn taken(&self) -> *const bindings::ib_send_wr {
        self.last
    }
}

impl<'a, T: Operations> Iterator for SendRequests<'a, T> {
    type Item = Result<SendRequest<'a, T>>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: Null or valid, by the type invariant.
        let wr = unsafe { self.next.as_ref() }?;

        self.last = wr;
        self.next = wr.next;
        // SAFETY: By the type invariant.
        Some(unsafe { SendRequest::from_raw(wr, self.ty) })
    }
}

/// A request to receive (`struct ib_recv_wr`).
pub struct ReceiveRequest<'a> {
    /// The poster's name for the request.
    pub wr_id: u64,
    /// Where the payload goes.
    pub elements: &'a [Sge],
}

/// A list of requests to receive.
///
/// # Invariants
///
/// `next` is null or the rest of a list that stays as it is during `'a`.
pub struct ReceiveRequests<'a> {
    next: *const bindings::ib_recv_wr,
    last: *const bindings::ib_recv_wr,
    _list: PhantomData<&'a ()>,
}

impl ReceiveRequests<'_> {
    /// Wraps a list.
    ///
    /// # Safety
    ///
    /// `list` must be null or a list of requests that stay as they are during `'a`.
    pub(crate) unsafe fn new(list: *const bindings::ib_recv_wr) -> Self {
        Self {
            next: list,
            last: list,
            _list: PhantomData,
        }
    }

    /// The request that was taken last; the first if none was taken.
    pub(crate) fn taken(&self) -> *const bindings::ib_recv_wr {
        self.last
    }
}

impl<'a> Iterator for ReceiveRequests<'a> {
    type Item = Result<ReceiveRequest<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        // SAFETY: Null or valid, by the type invariant.
        let wr = unsafe { self.next.as_ref::<'a>() }?;

        self.last = wr;
        self.next = wr.next;
        // SAFETY: The list is as long as the request says.
        let elements = unsafe { Sge::slice(wr.sg_list, wr.num_sge) };
        Some(elements.map(|elements| ReceiveRequest {
            wr_id: wr.__bindgen_anon_1.bindgen_union_field,
            elements,
        }))
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(rdma_sends)]
mod tests {
    use super::*;
    use crate::tests::driver::TestDriver;

    use core::ptr::{
        null,
        null_mut, //
    };

    const RC: Type = Type::ReliableConnection;
    const UD: Type = Type::UnreliableDatagram;

    const REMOTE: Remote = Remote {
        address: 0x1122_3344_5566_7788,
        rkey: 0x99aa_bbcc,
    };

    /// What stands in the place of a key and of immediate data: bytes that are all different.
    const EXTRA: [u8; 4] = [1, 2, 3, 4];

    fn request(opcode: bindings::ib_wr_opcode) -> bindings::ib_send_wr {
        let mut wr = bindings::ib_send_wr {
            opcode,
            ..Default::default()
        };
        wr.__bindgen_anon_1.bindgen_union_field = 0xfedc_ba98_7654_3210;
        wr.ex.bindgen_union_field = u32::from_ne_bytes(EXTRA);
        wr
    }

    /// Takes the first request of a list.
    ///
    /// # Safety
    ///
    /// As for [`SendRequests::new`].
    unsafe fn first<'a>(
        wr: *const bindings::ib_send_wr,
        ty: Type,
    ) -> Result<SendRequest<'a, TestDriver>> {
        // SAFETY: Guaranteed by the caller.
        let mut list = unsafe { SendRequests::new(wr, ty) };
        list.next().ok_or(ENOENT)?
    }

    /// The operation of a request that carries nothing but what every request has.
    fn plain<'a>(opcode: bindings::ib_wr_opcode, ty: Type) -> Result<Operation<'a, TestDriver>> {
        // Larger than needed, and zero behind the request.
        let wr = bindings::ib_atomic_wr {
            wr: request(opcode),
            ..Default::default()
        };
        // SAFETY: What is returned refers to nothing, for there are no elements.
        Ok(unsafe { first((&raw const wr).cast(), ty) }?.operation)
    }

    /// The operation of a request for remote memory.
    fn remote<'a>(opcode: bindings::ib_wr_opcode) -> Result<Operation<'a, TestDriver>> {
        let wr = bindings::ib_rdma_wr {
            wr: request(opcode),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
        };
        // SAFETY: As above.
        Ok(unsafe { first((&raw const wr).cast(), RC) }?.operation)
    }

    /// The operation of an atomic request.
    fn atomic<'a>(opcode: bindings::ib_wr_opcode) -> Result<Operation<'a, TestDriver>> {
        let wr = bindings::ib_atomic_wr {
            wr: request(opcode),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
            compare_add: 0x0102_0304_0506_0708,
            swap: 0x1112_1314_1516_1718,
            compare_add_mask: 0x2122_2324_2526_2728,
            swap_mask: 0x3132_3334_3536_3738,
        };
        // SAFETY: As above.
        Ok(unsafe { first((&raw const wr).cast(), RC) }?.operation)
    }

    #[test]
    fn sends_have_what_comes_with_them() -> Result {
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND, RC)?;
        assert!(matches!(send, Operation::Send));
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM, RC)?;
        assert!(matches!(send, Operation::SendWithImmediate(0x0102_0304)));

        // Unlike immediate data a key is a number of this machine.
        let key = u32::from_ne_bytes(EXTRA);
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV, RC)?;
        assert!(matches!(send, Operation::SendWithInvalidate(k) if k == key));
        let invalidate = plain(bindings::ib_wr_opcode_IB_WR_LOCAL_INV, RC)?;
        assert!(matches!(invalidate, Operation::LocalInvalidate(k) if k == key));
        Ok(())
    }

    #[test]
    fn remote_memory_is_named() -> Result {
        let write = remote(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE)?;
        assert!(matches!(write, Operation::Write(r) if r == REMOTE));
        let write = remote(bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM)?;
        assert!(matches!(write, Operation::WriteWithImmediate(r, 0x0102_0304) if r == REMOTE));
        let read = remote(bindings::ib_wr_opcode_IB_WR_RDMA_READ)?;
        assert!(matches!(read, Operation::Read(r) if r == REMOTE));
        Ok(())
    }

    #[test]
    fn atomics_have_their_operands() -> Result {
        let Operation::CompareSwap {
            remote,
            compare,
            swap,
        } = atomic(bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP)?
        else {
            return Err(EINVAL);
        };
        assert_eq!(remote, REMOTE);
        assert_eq!(compare, 0x0102_0304_0506_0708);
        assert_eq!(swap, 0x1112_1314_1516_1718);

        let Operation::FetchAdd { remote, add } =
            atomic(bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD)?
        else {
            return Err(EINVAL);
        };
        assert_eq!((remote, add), (REMOTE, 0x0102_0304_0506_0708));
        Ok(())
    }

    #[test]
    fn operations_without_a_name_are_refused() {
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_LSO,
            bindings::ib_wr_opcode_IB_WR_RDMA_READ_WITH_INV,
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_CMP_AND_SWP,
            bindings::ib_wr_opcode_IB_WR_MASKED_ATOMIC_FETCH_AND_ADD,
            bindings::ib_wr_opcode_IB_WR_BIND_MW,
            bindings::ib_wr_opcode_IB_WR_FLUSH,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_WRITE,
            bindings::ib_wr_opcode_IB_WR_REG_MR_INTEGRITY,
            bindings::ib_wr_opcode_IB_WR_RESERVED1,
            200,
        ] {
            for ty in [RC, Type::UnreliableConnection] {
                assert_eq!(plain(opcode, ty).err(), Some(EOPNOTSUPP));
            }
        }
        // Datagrams are only sent.
        for opcode in [
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV,
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE,
            bindings::ib_wr_opcode_IB_WR_RDMA_READ,
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD,
            bindings::ib_wr_opcode_IB_WR_LOCAL_INV,
            bindings::ib_wr_opcode_IB_WR_REG_MR,
            200,
        ] {
            for ty in [UD, Type::Gsi] {
                assert_eq!(plain(opcode, ty).err(), Some(EINVAL));
            }
        }
    }

    #[test]
    fn what_is_not_there_is_refused() {
        // The handle and the region are null; what a datagram is sent with comes first.
        let send = plain(bindings::ib_wr_opcode_IB_WR_SEND, UD);
        assert_eq!(send.err(), Some(EINVAL));
        let register = plain(bindings::ib_wr_opcode_IB_WR_REG_MR, RC);
        assert_eq!(register.err(), Some(EINVAL));
    }

    #[test]
    fn requests_keep_their_names_and_flags() -> Result {
        let mut wr = request(bindings::ib_wr_opcode_IB_WR_SEND);
        // SAFETY: There is one, which stays as it is while it is looked at.
        let take = |wr: &bindings::ib_send_wr| unsafe { first(wr, RC) };
        let taken = take(&wr)?;
        assert_eq!(taken.wr_id, 0xfedc_ba98_7654_3210);
        assert_eq!(taken.flags, SendFlags::default());

        for (raw, flag) in [
            (bindings::ib_send_flags_IB_SEND_FENCE, SendFlag::Fence),
            (bindings::ib_send_flags_IB_SEND_SIGNALED, SendFlag::Signaled),
            (
                bindings::ib_send_flags_IB_SEND_SOLICITED,
                SendFlag::Solicited,
            ),
            (bindings::ib_send_flags_IB_SEND_INLINE, SendFlag::Inline),
            (
                bindings::ib_send_flags_IB_SEND_IP_CSUM,
                SendFlag::IpChecksum,
            ),
        ] {
            wr.send_flags = raw;
            assert_eq!(take(&wr)?.flags, flag.into());
        }
        wr.send_flags =
            bindings::ib_send_flags_IB_SEND_INLINE | bindings::ib_send_flags_IB_SEND_FENCE;
        assert_eq!(take(&wr)?.flags, SendFlag::Inline | SendFlag::Fence);
        for unknown in [1 << 5, 1 << 26, c_int::MIN] {
            wr.send_flags = unknown;
            assert_eq!(take(&wr).err(), Some(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn elements_are_those_of_the_request() -> Result {
        let mut elements = core::array::from_fn::<_, 3, _>(|i| bindings::ib_sge {
            addr: 0x1_0000_0000 * (i as u64 + 1),
            length: 10 + i as u32,
            lkey: 20 + i as u32,
        });
        let mut wr = request(bindings::ib_wr_opcode_IB_WR_SEND);
        wr.sg_list = elements.as_mut_ptr();

        for count in 0..=3 {
            wr.num_sge = count;
            // SAFETY: The list is as long as the request says.
            let taken = unsafe { first(&wr, RC) }?;
            assert_eq!(taken.elements.len(), count as usize);
            for (i, element) in taken.elements.iter().enumerate() {
                assert_eq!(element.address(), 0x1_0000_0000 * (i as u64 + 1));
                assert_eq!(
                    (element.length(), element.lkey()),
                    (10 + i as u32, 20 + i as u32)
                );
            }
        }
        let mut wrong = |list, count| {
            (wr.sg_list, wr.num_sge) = (list, count);
            // SAFETY: There is no such list, which is refused.
            unsafe { first(&wr, RC) }.err()
        };
        assert!(wrong(elements.as_mut_ptr(), -1).is_some());
        assert_eq!(wrong(null_mut(), 1), Some(EINVAL));
        // Without elements there need not be a list.
        assert_eq!(wrong(null_mut(), 0), None);
        Ok(())
    }

    #[test]
    fn a_chain_is_taken_in_order() -> Result {
        let mut third = request(bindings::ib_wr_opcode_IB_WR_SEND_WITH_INV);
        third.__bindgen_anon_1.bindgen_union_field = 3;
        let mut second = request(bindings::ib_wr_opcode_IB_WR_LSO);
        second.next = &raw mut third;
        let mut first = bindings::ib_rdma_wr {
            wr: request(bindings::ib_wr_opcode_IB_WR_RDMA_READ),
            remote_addr: REMOTE.address,
            rkey: REMOTE.rkey,
        };
        first.wr.next = &raw mut second;
        first.wr.__bindgen_anon_1.bindgen_union_field = 1;

        let head: *const bindings::ib_send_wr = (&raw const first).cast();
        // SAFETY: A list of requests as their operations demand them, which does not change.
        let mut list = unsafe { SendRequests::<TestDriver>::new(head, RC) };
        assert_eq!(list.taken(), head);
        let request = list.next().ok_or(ENOENT)??;
        assert!(matches!(request.operation, Operation::Read(r) if r == REMOTE));
        assert_eq!((request.wr_id, list.taken()), (1, head));

        // One that is refused is named, and does not hide the next.
        let refused = list.next().ok_or(ENOENT)?;
        assert_eq!(refused.err(), Some(EOPNOTSUPP));
        assert_eq!(list.taken(), &raw const second);

        let request = list.next().ok_or(ENOENT)??;
        assert!(matches!(
            request.operation,
            Operation::SendWithInvalidate(_)
        ));
        assert_eq!((request.wr_id, list.taken()), (3, &raw const third));
        assert!(list.next().is_none());
        assert_eq!(list.taken(), &raw const third);

        // SAFETY: There is no request.
        let mut none = unsafe { SendRequests::<TestDriver>::new(null(), RC) };
        assert!(none.next().is_none() && none.taken().is_null());
        Ok(())
    }
}
