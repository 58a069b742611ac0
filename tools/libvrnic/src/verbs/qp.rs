// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Queue pairs: creation, destruction and state. Posting is in [`super::post`] and [`super::wr`].

use super::allocator::{Allocator, Resource};
use super::context::Context;
use super::cq::Cq;
use super::pd::Pd;
use super::srq::Srq;
use super::{allocate, fail, release, wr};
use crate::doorbell::{Doorbell, Rung, Slot};
use crate::ffi::Opaque;
use crate::ffi::command::*;
use crate::ffi::driver::{VERBS_QP_EX, verbs_qp};
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::memory::Buffer;
use crate::ring::WorkRing;
use crate::ring::outstanding::Outstanding;
use crate::ring::receive::ReceiveQueue;
use crate::ring::send::{Limits, SendQueue};
use crate::ring::shared::SharedReceives;
use crate::spinlock::SpinLock;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::{self, size_of};
use core::ptr;
use vrnic_wire::abi::{CreateQpRequest, CreateQpResponse, ModifyQpRequest, Ring};
use vrnic_wire::completion::Opcode;
use vrnic_wire::ring::{MAX_ENTRIES, MAX_STRIDE, RingHeader};
use vrnic_wire::work::{SendOpcode, receive_stride, segmented_send_stride};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    qp: UnsafeCell<verbs_qp>,
    /// The send queue.
    pub(super) send: SpinLock<SendQueue>,
    /// The receive queue.
    pub(super) receive: SpinLock<ReceiveQueue>,
    /// The context's doorbell, which outlives the queue pair.
    doorbell: *const Doorbell,
    /// Completion queues, which outlive the queue pair; null if it has none.
    send_cq: *const Cq,
    receive_cq: *const Cq,
    /// Numbers of the two queues at their completion queues.
    send_number: u32,
    receive_number: u32,
    slot: Slot,
    /// Holds the rings and must outlive them.
    _buffer: Buffer,
    /// The receives of the shared receive queue, if the queue pair uses one.
    shared: Option<SharedReceives>,
}

impl Qp {
    /// Returns our queue pair for one of libibverbs.
    ///
    /// # Safety
    ///
    /// The verbs contract: one of this provider, not destroyed as long as the result is used.
    #[inline]
    pub(super) unsafe fn of<'a>(qp: *mut ibv_qp) -> &'a Self {
        // SAFETY: Every queue pair of this provider is a `Qp`, and begins with its `ibv_qp`.
        unsafe { &*qp.cast::<Self>() }
    }

    /// Creates a queue pair without queues. The kernel does not know it yet.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context, and a domain of it.
    pub(super) unsafe fn without_queues(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
    ) -> Result<*mut Self, c_int> {
        // SAFETY: Integers and pointers; zero means absent.
        let mut own: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
        // The type that has neither a send nor a receive queue.
        own.qp_type = IBV_QPT_XRC_RECV;
        own.pd = pd;
        // SAFETY: By contract.
        unsafe { prepare(context, &own, 0) }.map(|(qp, _)| qp)
    }

    /// Tells the device that a queue has new requests.
    #[inline]
    pub(super) fn ring(&self) {
        // SAFETY: The context stays open as long as it has queue pairs.
        let doorbell = unsafe { &*self.doorbell };
        if doorbell.ring(&self.slot) == Rung::AskKernel {
            self.ask_kernel();
        }
    }

    #[cold]
    fn ask_kernel(&self) {
        let mut bad = ptr::null_mut();
        // SAFETY: A queue pair of this provider; without requests, the kernel only rings the
        // doorbell. The call fails only if the device is gone, and then nothing will complete any
        // more.
        unsafe { ibv_cmd_post_send(self.qp.get().cast(), ptr::null_mut(), &raw mut bad) };
    }

    /// Returns the completion queues of sends and of receives.
    fn completion_queues(&self) -> [Option<&Cq>; 2] {
        // SAFETY: The verbs contract: a completion queue outlives its queue pairs.
        unsafe { [self.send_cq.as_ref(), self.receive_cq.as_ref()] }
    }

    /// Takes unpolled completions out of the completion queues: their requests, or the `wr_id`s of
    /// these, are about to be dropped.
    fn forget_completions(&self) {
        for cq in self.completion_queues().into_iter().flatten() {
            cq.queue.with(|queue| queue.forget(self.number()));
        }
    }

    fn number(&self) -> u32 {
        // SAFETY: Written once, when the queue pair was created.
        unsafe { (*self.qp.get()).qp.qp.qp_num }
    }

    /// Adapts the queues to a new state of the queue pair.
    fn state_changed(&self, state: c_int) {
        if state == IBV_QPS_RESET {
            // Nothing completes any more. A completion that was not polled must not be taken for
            // that of a later request with the same index. A thread that keeps a completion queue
            // may post, so nobody waits for a completion queue with the lock of another one.
            let [send_cq, receive_cq] = self.completion_queues();
            let forget = |cq: Option<&Cq>, reset: &dyn Fn()| match cq {
                Some(cq) => cq.queue.with(|polled| {
                    polled.forget(self.number());
                    reset();
                }),
                None => reset(),
            };
            forget(send_cq, &|| self.send.lock().reset());
            forget(receive_cq, &|| self.receive.lock().reset());
        } else {
            self.send.lock().set_accepts(state >= IBV_QPS_RTS);
            self.receive.lock().set_accepts(true);
        }
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let [send_cq, receive_cq] = self.completion_queues();
        detach(send_cq, self.send_number);
        detach(receive_cq, self.receive_number);
        if let (Some(cq), Some(shared)) = (receive_cq, &self.shared) {
            cq.queue.with(|queue| queue.detach_shared(shared));
        }
    }
}

/// Adds a queue to a completion queue, if there is one, and returns its number there.
pub(super) fn attach(cq: Option<&Cq>, queue: &Arc<Outstanding>) -> Result<u32, c_int> {
    let number = cq.map(|cq| cq.queue.with(|polled| polled.attach(queue.clone())));
    number.map_or(Ok(0), |number| number.ok_or(libc::ENOMEM))
}

/// Undoes what [`attach`] did.
pub(super) fn detach(cq: Option<&Cq>, number: u32) {
    if let Some(cq) = cq {
        cq.queue.with(|queue| queue.detach(number));
    }
}

/// Returns the operations of a queue pair type: as bits of [`SendOpcode`], and as flags of the
/// extended interface.
fn operations(qp_type: c_int) -> Option<(u32, u64)> {
    const fn bits(opcodes: &[SendOpcode]) -> u32 {
        let (mut bits, mut i) = (0, 0);
        while i < opcodes.len() {
            bits |= 1 << opcodes[i].raw();
            i += 1;
        }
        bits
    }
    const SENDS: u32 = bits(&[SendOpcode::Send, SendOpcode::SendWithImmediate]);
    const WRITES: u32 = bits(&[SendOpcode::Write, SendOpcode::WriteWithImmediate]);
    const RELIABLE: u32 = bits(&[
        SendOpcode::Read,
        SendOpcode::CompareSwap,
        SendOpcode::FetchAdd,
        SendOpcode::SendWithInvalidate,
        SendOpcode::LocalInvalidate,
        SendOpcode::BindWindow,
        SendOpcode::Flush,
        SendOpcode::AtomicWrite,
    ]);
    const SENDS_EX: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    const WRITES_EX: u64 = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    const RELIABLE_EX: u64 = IBV_QP_EX_WITH_RDMA_READ
        | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
        | IBV_QP_EX_WITH_SEND_WITH_INV
        | IBV_QP_EX_WITH_LOCAL_INV
        | IBV_QP_EX_WITH_BIND_MW
        | IBV_QP_EX_WITH_FLUSH
        | IBV_QP_EX_WITH_ATOMIC_WRITE;

    match qp_type {
        IBV_QPT_RC | IBV_QPT_XRC_SEND => Some((
            SENDS | WRITES | RELIABLE,
            SENDS_EX | WRITES_EX | RELIABLE_EX,
        )),
        IBV_QPT_UC => Some((SENDS | WRITES, SENDS_EX | WRITES_EX)),
        IBV_QPT_UD => Some((SENDS, SENDS_EX)),
        IBV_QPT_RAW_PACKET => Some((bits(&[SendOpcode::Send]), IBV_QP_EX_WITH_SEND)),
        IBV_QPT_XRC_RECV => Some((0, 0)),
        _ => None,
    }
}

/// Returns the layout of a queue pair's rings in their common buffer, and the length of the buffer.
/// The sends have room for a header of `max_header` bytes, in addition to all elements.
fn lay_out(
    cap: &ibv_qp_cap,
    max_header: u32,
    max_inline: u32,
) -> Result<(Ring, Ring, usize), c_int> {
    const HEADER: u32 = size_of::<RingHeader>() as u32;

    if cap.max_send_wr > MAX_ENTRIES
        || cap.max_recv_wr > MAX_ENTRIES
        || cap.max_send_sge > MAX_STRIDE
        || cap.max_recv_sge > MAX_STRIDE
        || cap.max_inline_data > max_inline
        || max_header > max_inline
    {
        return Err(libc::EINVAL);
    }
    let mut end = 2 * u64::from(HEADER);
    let mut place = |header_offset: u32, requests: u32, stride: u32| {
        if requests == 0 {
            return Ok(Ring::default());
        }
        if stride > MAX_STRIDE {
            return Err(libc::EINVAL);
        }
        let entries = requests.next_power_of_two();
        let entries_offset = end.next_multiple_of(u64::from(stride));
        end = entries_offset + u64::from(entries) * u64::from(stride);
        Ok(Ring {
            header_offset,
            entries_offset: u32::try_from(entries_offset).map_err(|_| libc::EINVAL)?,
            entries,
            stride,
        })
    };
    let send = place(
        0,
        cap.max_send_wr,
        segmented_send_stride(cap.max_send_sge, cap.max_inline_data, max_header),
    )?;
    let receive = place(HEADER, cap.max_recv_wr, receive_stride(cap.max_recv_sge))?;
    Ok((send, receive, end as usize))
}

/// Creates a queue pair with its rings. The kernel does not know it yet.
///
/// # Safety
///
/// The verbs contract: an open context, and domain and completion queues of it.
unsafe fn prepare(
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
    opcodes: u32,
) -> Result<(*mut Qp, CreateQpRequest), c_int> {
    // SAFETY: By contract.
    let (max_inline, checksums) = unsafe {
        (
            Context::max_inline(context),
            Context::has_checksums(context, attr.qp_type),
        )
    };
    // An XRC queue pair has only a send or only a receive queue.
    let sends = attr.qp_type != IBV_QPT_XRC_RECV;
    let receives = sends && attr.qp_type != IBV_QPT_XRC_SEND;
    if (sends && attr.send_cq.is_null()) || (receives && attr.recv_cq.is_null()) {
        return Err(libc::EINVAL);
    }
    let mut cap = attr.cap;
    if !sends {
        (cap.max_send_wr, cap.max_send_sge, cap.max_inline_data) = (0, 0, 0);
    }
    if !receives || !attr.srq.is_null() {
        // The shared receive queue provides the receives, if there are any.
        (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
    }
    let shares = receives && !attr.srq.is_null();
    let max_header = attr.max_tso_header.into();
    let (sq, rq, length) = lay_out(&cap, max_header, max_inline)?;
    // SAFETY: By contract.
    let buffer = unsafe { Allocator::of(attr.pd, Resource::QueuePair) }.allocate(length)?;
    let request = CreateQpRequest {
        comp_mask: 0,
        reserved_20: [0; 4],
        buf_addr: buffer.address(),
        buf_length: buffer.length() as u64,
        sq,
        rq,
    };
    // SAFETY: The buffer is kept next to the rings and dropped after them.
    let memory = unsafe { buffer.shared() };
    let limits = Limits {
        opcodes,
        datagrams: attr.qp_type == IBV_QPT_UD,
        xrc: attr.qp_type == IBV_QPT_XRC_SEND,
        checksums,
        max_sge: attr.cap.max_send_sge,
        max_inline: attr.cap.max_inline_data,
        max_header,
    };
    let send_names = Outstanding::new(sq.entries, Opcode::Send).ok_or(libc::ENOMEM)?;
    let receive_names = Outstanding::new(rq.entries, Opcode::Receive).ok_or(libc::ENOMEM)?;
    // SAFETY: By contract.
    let (send_cq, receive_cq) = unsafe {
        (
            sends.then(|| Cq::of(attr.send_cq)),
            receives.then(|| Cq::of(attr.recv_cq)),
        )
    };
    // SAFETY: By contract: a queue of this provider.
    let shared = shares.then(|| unsafe { Srq::of(attr.srq) }.receives().clone());
    let send_number = attach(send_cq, &send_names)?;
    let receive_number =
        attach(receive_cq, &receive_names).inspect_err(|_| detach(send_cq, send_number))?;
    if let (Some(cq), Some(shared)) = (receive_cq, &shared)
        && !cq.queue.with(|queue| queue.attach_shared(shared))
    {
        detach(send_cq, send_number);
        detach(receive_cq, receive_number);
        return Err(libc::ENOMEM);
    }
    let send = WorkRing::new(memory, sq, send_names, send_number);
    let send = SendQueue::new(send, limits);
    let receive = WorkRing::new(memory, rq, receive_names, receive_number);
    let receive = ReceiveQueue::new(receive, attr.cap.max_recv_sge);
    // SAFETY: By contract. If it is true, the application has promised that one thread at a time
    // uses the queue pair.
    let (send, receive) = unsafe {
        if Pd::is_single_threaded(attr.pd) {
            (
                SpinLock::without_lock(send),
                SpinLock::without_lock(receive),
            )
        } else {
            (SpinLock::new(send), SpinLock::new(receive))
        }
    };
    // SAFETY: By contract; the context outlives the queue pair.
    let doorbell = unsafe { Context::doorbell(context) };
    let qp = allocate(Qp {
        // SAFETY: Integers, pointers, and mutexes that libibverbs initialises.
        qp: UnsafeCell::new(unsafe { mem::zeroed() }),
        send,
        receive,
        doorbell,
        send_cq: send_cq.map_or(ptr::null(), ptr::from_ref),
        receive_cq: receive_cq.map_or(ptr::null(), ptr::from_ref),
        send_number,
        receive_number,
        // Until the device assigns one.
        slot: doorbell.slot(0),
        _buffer: buffer,
        shared,
    });
    if qp.is_null() {
        // The queue pair that was to be placed there has been dropped, which detached it.
        return Err(libc::ENOMEM);
    }
    Ok((qp, request))
}

/// Creation flags that a queue pair of some type can have; the kernel knows which: no own datagrams
/// to groups, frames with their frame check sequence, and frames without their VLAN tag
/// (`enum ibv_qp_create_flags`).
const CREATE_FLAGS: u32 = 1 << 1 | 1 << 8 | 1 << 9;

/// Creates a queue pair.
pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: Integers and pointers; zero means absent.
    let mut extended: ibv_qp_init_attr_ex = unsafe { mem::zeroed() };
    // SAFETY: The verbs contract; the extended attributes begin with the plain ones.
    unsafe {
        ptr::copy_nonoverlapping(attr, (&raw mut extended).cast(), 1);
        extended.comp_mask = IBV_QP_INIT_ATTR_PD;
        extended.pd = pd;
        let qp = create_qp_ex((*pd).context, &raw mut extended);
        if !qp.is_null() {
            (*attr).cap = extended.cap;
        }
        qp
    }
}

/// Creates a queue pair, with the extended posting interface if any of its operations are
/// requested.
pub unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: The verbs contract: only the caller uses it during the call.
    let asked_for = unsafe { &mut *attr };
    let mut attr = *asked_for;
    if attr.create_flags == 0 {
        attr.comp_mask &= !IBV_QP_INIT_ATTR_CREATE_FLAGS;
    }
    if attr.comp_mask & (IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH) != 0 {
        // SAFETY: The verbs contract.
        return unsafe { super::wq::create_qp(context, attr) };
    }
    let (owner, has_owner) = match attr.qp_type {
        IBV_QPT_XRC_RECV => (IBV_QP_INIT_ATTR_XRCD, !attr.xrcd.is_null()),
        _ => (IBV_QP_INIT_ATTR_PD, !attr.pd.is_null()),
    };
    // The kernel does not need to know the length of headers.
    if attr.comp_mask & IBV_QP_INIT_ATTR_MAX_TSO_HEADER == 0 {
        attr.max_tso_header = 0;
    }
    attr.comp_mask &= !IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    let known = owner
        | IBV_QP_INIT_ATTR_PD
        | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    let has_flags = attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
    if attr.comp_mask & !known != 0 || has_flags && attr.create_flags & !CREATE_FLAGS != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    if attr.comp_mask & owner == 0 || !has_owner {
        return fail(libc::EINVAL);
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        attr.pd = ptr::null_mut();
    }
    let Some((mut opcodes, mut extended)) = operations(attr.qp_type) else {
        return fail(libc::EOPNOTSUPP);
    };
    // SAFETY: The verbs contract.
    if unsafe { Context::has_segmentation(context, attr.qp_type) } {
        opcodes |= 1 << SendOpcode::SendSegmented.raw();
        extended |= IBV_QP_EX_WITH_TSO;
    } else if attr.max_tso_header != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let asked = match attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS {
        0 => None,
        _ => Some(attr.send_ops_flags),
    };
    if asked.is_some_and(|asked| asked & !extended != 0) {
        return fail(libc::EOPNOTSUPP);
    }

    // SAFETY: The verbs contract.
    let (qp, request) = match unsafe { prepare(context, &attr, opcodes) } {
        Ok(prepared) => prepared,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_qp_ex, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_ex_create_qp_resp, CreateQpResponse>::default();
    // SAFETY: The verbs contract; command and response are followed by the driver's parts. The new
    // queue pair is not used elsewhere.
    unsafe {
        // `ibv_cmd_create_qp_ex` refuses creation flags.
        let error = ibv_cmd_create_qp_ex2(
            context,
            qp.cast(),
            &raw mut attr,
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
            #[cfg(feature = "pabi64")]
            ptr::null_mut(),
        );
        if error != 0 {
            release(qp);
            return fail(error);
        }
        (*qp).slot = (*(*qp).doorbell).slot(resp.driver.slot);
        let number = (*qp).number();
        let (mut send, mut receive) = ((*qp).send.lock(), (*qp).receive.lock());
        send.ring().outstanding().set_qpn(number);
        receive.ring().outstanding().set_qpn(number);
        // An entry may have more room than requested; the kernel returns how much of it may be
        // used.
        asked_for.cap = attr.cap;
        send.set_limits(attr.cap.max_send_sge, attr.cap.max_inline_data);
        receive.set_max_sge(attr.cap.max_recv_sge);
        drop((send, receive));
        if asked.is_some() {
            let verbs = (*qp).qp.get();
            (*verbs).comp_mask |= VERBS_QP_EX;
            wr::set_operations(verbs.cast(), opcodes);
        }
    }
    qp.cast()
}

/// Opens an XRC target queue pair, which may belong to another process.
pub unsafe extern "C" fn open_qp(context: *mut ibv_context, attr: *mut Opaque) -> *mut ibv_qp {
    // SAFETY: The verbs contract.
    let qp = match unsafe { Qp::without_queues(context, ptr::null_mut()) } {
        Ok(prepared) => prepared,
        Err(error) => return fail(error),
    };
    let mut cmd = ibv_open_qp::default();
    let mut resp = ib_uverbs_create_qp_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures. The new queue pair is not
    // used elsewhere.
    unsafe {
        let error = ibv_cmd_open_qp(
            context,
            qp.cast(),
            size_of::<verbs_qp>() as c_int,
            attr,
            &raw mut cmd,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        );
        if error != 0 {
            release(qp);
            return fail(error);
        }
    }
    qp.cast()
}

/// Changes attributes of a queue pair.
pub unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    let error = if attr_mask & IBV_QP_RATE_LIMIT != 0 {
        // SAFETY: The verbs contract.
        unsafe { modify_extended(qp, attr, attr_mask, ModifyQpRequest::default()) }
    } else {
        let mut cmd = ibv_modify_qp::default();
        // SAFETY: The verbs contract.
        unsafe { ibv_cmd_modify_qp(qp, attr, attr_mask, &raw mut cmd, size_of_val(&cmd)) }
    };
    if error == 0 && attr_mask & IBV_QP_STATE != 0 {
        // SAFETY: The verbs contract.
        unsafe { Qp::of(qp).state_changed((*attr).qp_state) };
    }
    error
}

/// Changes attributes of a queue pair that may include a rate limit, which only the extended command
/// has.
///
/// # Safety
///
/// The verbs contract.
unsafe fn modify_extended(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    request: ModifyQpRequest,
) -> c_int {
    let mut cmd = WithDriver::<ibv_modify_qp_ex, _>::new(request);
    let mut resp = ib_uverbs_ex_modify_qp_resp::default();
    // SAFETY: The verbs contract; the sizes are those of the structures.
    unsafe {
        ibv_cmd_modify_qp_ex(
            qp,
            attr,
            attr_mask,
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
        )
    }
}

/// Changes the rate limit of a queue pair.
pub unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    limit: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: The verbs contract. Zero is a valid value of every attribute.
    let (limit, mut attr) = unsafe { (*limit, mem::zeroed::<ibv_qp_attr>()) };
    if limit.comp_mask != 0 {
        return libc::EINVAL;
    }
    attr.rate_limit = limit.rate_limit;
    let request = ModifyQpRequest {
        max_burst: limit.max_burst_sz,
        typical_packet: limit.typical_pkt_sz,
        ..ModifyQpRequest::default()
    };
    // SAFETY: The verbs contract.
    unsafe { modify_extended(qp, &raw mut attr, IBV_QP_RATE_LIMIT, request) }
}

/// Queries the attributes of a queue pair.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
    init_attr: *mut ibv_qp_init_attr,
) -> c_int {
    let mut cmd = ibv_query_qp::default();
    // SAFETY: The verbs contract; both structures are filled in on success.
    unsafe {
        ibv_cmd_query_qp(
            qp,
            attr,
            attr_mask,
            init_attr,
            &raw mut cmd,
            size_of_val(&cmd),
        )
    }
}

/// Destroys a queue pair.
pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: The verbs contract: one of this provider, and its last use. The kernel releases the
    // rings before they are unmapped.
    unsafe {
        let error = ibv_cmd_destroy_qp(qp);
        if error == 0 {
            Qp::of(qp).forget_completions();
            release(qp.cast::<Qp>());
        }
        error
    }
}
