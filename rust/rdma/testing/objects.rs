// SPDX-License-Identifier: GPL-2.0

//! Objects for tests, and calls of their verbs.

use core::{
    marker::PhantomData,
    ptr::{
        self,
        null_mut, //
    }, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

use super::driver::{
    Object,
    TestDriver, //
};
use crate::{
    ah,
    bindings,
    gid::Gid,
    port::Port,
    Cq,
    Device,
    Pd,
    Qp,
    Srq, //
};

/// Zeroed memory for an object and the driver's data, as the core allocates it.
pub struct CoreMemory<R>(KVec<u64>, PhantomData<R>);

impl<R> CoreMemory<R> {
    /// Allocates `size` bytes.
    pub fn new(size: usize) -> Result<Self> {
        let words = size.div_ceil(size_of::<u64>());
        Ok(Self(KVec::from_elem(0, words, GFP_KERNEL)?, PhantomData))
    }

    /// Allocates memory for an `R`, with all bytes set to `byte`.
    pub fn poisoned(byte: u8) -> Result<Self> {
        let words = size_of::<R>().div_ceil(size_of::<u64>());
        let word = u64::from_ne_bytes([byte; 8]);
        Ok(Self(KVec::from_elem(word, words, GFP_KERNEL)?, PhantomData))
    }

    /// Returns all bytes of the C structure.
    pub fn bytes(&self) -> &[u8] {
        &self.0.as_bytes()[..size_of::<R>()]
    }

    /// Returns the C structure.
    pub fn as_raw(&mut self) -> *mut R {
        self.0.as_mut_ptr().cast()
    }
}

/// Returns the second port.
pub(crate) fn second_port() -> Result<Port> {
    Port::try_from(2)
}

/// Calls a verb through the device's operations table, as the core does.
macro_rules! verb {
    ($device:expr, $verb:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: The device is registered.
        let verb = unsafe { (*$device.as_raw()).ops.$verb }.ok_or(EOPNOTSUPP)?;
        // SAFETY: The arguments fit the verb. Objects belong to the device and are constructed, or,
        // if the verb creates them, they are as the core allocates them.
        unsafe { verb($($argument),*) }
    }};
}

pub(crate) use verb;

/// A protection domain of the kernel.
pub(crate) struct Domain(pub(crate) *mut bindings::ib_pd);

impl Domain {
    pub(crate) fn new(device: &Device<TestDriver>) -> Result<Self> {
        // SAFETY: The device is registered.
        let pd = unsafe { bindings::__ib_alloc_pd(device.as_raw(), 0, c"rdma".as_char_ptr()) };
        Ok(Self(from_err_ptr(pd)?))
    }

    pub(crate) fn number(&self) -> u32 {
        // SAFETY: The domain was constructed.
        unsafe { Pd::<Object>::from_raw(self.0) }.number
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: The domain is no longer in use.
        let _ = unsafe { bindings::ib_dealloc_pd_user(self.0, null_mut()) };
    }
}

/// Allocates memory for an object that a verb is about to create, with its device set as by the
/// core.
macro_rules! room {
    ($device:expr, $c:ident, $rust:ident) => {{
        let mut memory = CoreMemory::<bindings::$c>::new($rust::<Object>::SIZE)?;
        // SAFETY: The memory is not shared.
        unsafe { (*memory.as_raw()).device = $device.as_raw() };
        memory
    }};
}

pub(crate) use room;

/// Returns whether a verb fills a whole structure, as it must. Two calls on memory with different
/// contents must produce the same result.
pub(crate) fn fills<T>(verb: impl Fn(*mut T) -> Result) -> Result<bool> {
    let mut first = CoreMemory::<T>::poisoned(0x5a)?;
    let mut second = CoreMemory::<T>::poisoned(0xa5)?;
    verb(first.as_raw())?;
    verb(second.as_raw())?;
    Ok(first.bytes() == second.bytes())
}

/// A completion queue of the kernel.
pub(crate) struct Queue(pub(crate) CoreMemory<bindings::ib_cq>);

impl Queue {
    pub(crate) fn new(device: &Device<TestDriver>, entries: u32, vector: u32) -> Result<Self> {
        let mut cq = room!(device, ib_cq, Cq);
        let attributes = bindings::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector,
            flags: 0,
        };
        to_result(verb!(
            device,
            create_cq(cq.as_raw(), &attributes, null_mut())
        ))?;
        Ok(Self(cq))
    }

    pub(crate) fn number(&mut self) -> u32 {
        // SAFETY: The queue was constructed.
        unsafe { Cq::<Object>::from_raw(self.0.as_raw()) }.number
    }

    pub(crate) fn end(mut self, device: &Device<TestDriver>) -> Result {
        to_result(verb!(device, destroy_cq(self.0.as_raw(), null_mut())))
    }
}

/// A queue pair of the kernel, and the completion queues for its sends and receives.
pub(crate) struct Pair {
    pub(crate) raw: CoreMemory<bindings::ib_qp>,
    pub(crate) queues: [Queue; 2],
    pub(crate) pd: Domain,
}

impl Pair {
    pub(crate) fn new(device: &Device<TestDriver>) -> Result<Self> {
        Self::of_type(device, bindings::ib_qp_type_IB_QPT_RC)
    }

    /// Like [`new`](Self::new), which creates a reliable connection.
    pub(crate) fn of_type(device: &Device<TestDriver>, ty: bindings::ib_qp_type) -> Result<Self> {
        let mut queues = [Queue::new(device, 5, 0)?, Queue::new(device, 6, 1)?];
        let [send_cq, recv_cq] = &mut queues;
        let pd = Domain::new(device)?;
        let mut raw = room!(device, ib_qp, Qp);
        let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
        init.qp_type = ty;
        init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
        init.send_cq = send_cq.0.as_raw();
        init.recv_cq = recv_cq.0.as_raw();
        // SAFETY: The core sets these members, too.
        unsafe {
            let qp = raw.as_raw();
            (*qp).pd = pd.0;
            (*qp).qp_type = init.qp_type;
            (*qp).send_cq = init.send_cq;
            (*qp).recv_cq = init.recv_cq;
            (*qp).port = 2;
        }
        to_result(verb!(
            device,
            create_qp(raw.as_raw(), &raw mut *init, null_mut())
        ))?;
        Ok(Self { raw, queues, pd })
    }

    pub(crate) fn as_raw(&mut self) -> *mut bindings::ib_qp {
        self.raw.as_raw()
    }

    pub(crate) fn number(&mut self) -> u32 {
        // SAFETY: The object was constructed.
        unsafe { (*self.as_raw()).qp_num }
    }

    /// Posts a send with this ID.
    pub(crate) fn send(&mut self, device: &Device<TestDriver>, wr_id: u64) -> Result {
        let mut bad = ptr::null();
        let mut wr = bindings::ib_send_wr {
            opcode: bindings::ib_wr_opcode_IB_WR_SEND,
            ..Default::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut wr.__bindgen_anon_1.wr_id) } = wr_id;
        to_result(verb!(
            device,
            post_send(self.as_raw(), &raw const wr, &mut bad)
        ))
    }

    /// Returns the completion queue of the sends.
    pub(crate) fn send_cq(&mut self) -> *mut bindings::ib_cq {
        self.queues[0].0.as_raw()
    }

    pub(crate) fn end(mut self, device: &Device<TestDriver>) -> Result {
        to_result(verb!(device, destroy_qp(self.as_raw(), null_mut())))?;
        let [send_cq, recv_cq] = self.queues;
        send_cq.end(device)?;
        recv_cq.end(device)?;
        drop(self.pd);
        Ok(())
    }
}

/// Allocates a C object of which only the address is used.
pub(crate) fn boxed<T: Default>() -> Result<KBox<T>> {
    Ok(KBox::new(T::default(), GFP_KERNEL)?)
}

pub(crate) fn path() -> ah::Roce {
    ah::Roce {
        service_level: 7,
        port: Port::FIRST,
        route: ah::GlobalRoute {
            dgid: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
            sgid_index: 31,
            hop_limit: 64,
            traffic_class: 33,
            flow_label: 0xf_1234,
        },
        dmac: [21, 22, 23, 24, 25, 26],
    }
}

/// Creates a shared receive queue for 30 receives of 3 elements. It belongs to the kernel if
/// `udata` is null.
pub(crate) fn new_shared(
    device: &Device<TestDriver>,
    pd: &Domain,
    udata: *mut bindings::ib_udata,
) -> Result<CoreMemory<bindings::ib_srq>> {
    let mut srq = room!(device, ib_srq, Srq);
    // SAFETY: The core sets this member, too.
    unsafe { (*srq.as_raw()).pd = pd.0 };
    let mut init = bindings::ib_srq_init_attr {
        srq_type: bindings::ib_srq_type_IB_SRQT_BASIC,
        ..Default::default()
    };
    // The limit must be ignored on creation.
    (init.attr.max_wr, init.attr.max_sge, init.attr.srq_limit) = (30, 3, 9);
    to_result(verb!(device, create_srq(srq.as_raw(), &mut init, udata)))?;
    // The actual size must be reported.
    if (init.attr.max_wr, init.attr.max_sge) != (31, 5) {
        return Err(EINVAL);
    }
    Ok(srq)
}
