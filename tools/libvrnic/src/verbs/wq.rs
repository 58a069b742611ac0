// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive work queues, indirection tables of them, and queue pairs that distribute what they
//! receive among the queues of such a table.

use super::allocator::{Allocator, Resource};
use super::context::Context;
use super::cq::Cq;
use super::pd::Pd;
use super::post::push_receives;
use super::qp::{Qp, attach, detach};
use super::srq;
use super::{allocate, fail, release};
use crate::doorbell::{Doorbell, Rung, Slot};
use crate::ffi::command::*;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::memory::Buffer;
use crate::ring::WorkRing;
use crate::ring::outstanding::Outstanding;
use crate::ring::receive::ReceiveQueue;
use crate::spinlock::SpinLock;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::{mem, ptr, slice};
use vrnic_wire::abi::{CreateQpResponse, CreateScalingQpRequest, CreateSrqRequest};
use vrnic_wire::command::{HASH_KEY_LENGTH, hash_fields};
use vrnic_wire::completion::Opcode;
use vrnic_wire::ring::MAX_STRIDE;
use vrnic_wire::work::receive_stride;

/// A receive work queue.
#[repr(C)]
pub struct Wq {
    wq: UnsafeCell<ibv_wq>,
    receive: SpinLock<ReceiveQueue>,
    /// The context's doorbell, which outlives the queue.
    doorbell: *const Doorbell,
    /// The completion queue, which outlives the queue.
    cq: *const Cq,
    /// Number of the queue at its completion queue.
    number_at_cq: u32,
    slot: Slot,
    /// Holds the ring and must outlive it.
    _buffer: Buffer,
}

impl Wq {
    /// Returns our queue for one of libibverbs.
    ///
    /// # Safety
    ///
    /// The verbs contract: one of this provider, not destroyed as long as the result is used.
    unsafe fn of<'a>(wq: *mut ibv_wq) -> &'a Self {
        // SAFETY: Every queue of this provider is a `Wq`, and begins with its `ibv_wq`.
        unsafe { &*wq.cast::<Self>() }
    }

    fn number(&self) -> u32 {
        // SAFETY: Written once, when the queue was created.
        unsafe { (*self.wq.get()).wq_num }
    }

    fn cq(&self) -> &Cq {
        // SAFETY: The verbs contract: a completion queue outlives the queues that complete on it.
        unsafe { &*self.cq }
    }

    /// Tells the device that a queue in error has more receives to flush. The device looks at other
    /// queues anyway. If another thread has reset the queue since then, nothing changes.
    #[cold]
    fn ring(&self) {
        // SAFETY: The context stays open as long as it has queues.
        let doorbell = unsafe { &*self.doorbell };
        if doorbell.ring(&self.slot) == Rung::AskKernel {
            let mut attr = ibv_wq_attr {
                attr_mask: IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE,
                wq_state: IBV_WQS_ERR,
                curr_wq_state: IBV_WQS_ERR,
                flags: 0,
                flags_mask: 0,
            };
            let mut cmd = ibv_modify_wq::default();
            // SAFETY: A queue of this provider. The call fails if the queue was reset, or if the
            // device is gone. In both cases nothing has to complete any more.
            unsafe {
                ibv_cmd_modify_wq(
                    self.wq.get(),
                    &raw mut attr,
                    &raw mut cmd,
                    size_of_val(&cmd),
                )
            };
        }
    }

    /// Adapts the queue to its new state.
    fn state_changed(&self, state: c_int) {
        if state == IBV_WQS_RESET {
            // As for queue pairs: nothing completes any more, and no completion that was not polled
            // may be taken for that of a later request.
            self.cq().queue.with(|polled| {
                polled.forget(self.number());
                self.receive.lock().reset();
            });
        } else {
            self.receive.lock().set_accepts(true);
        }
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        detach(Some(self.cq()), self.number_at_cq);
    }
}

/// Creates a queue with its ring. The kernel does not know it yet.
///
/// # Safety
///
/// The verbs contract: an open context, and a domain and a completion queue of it.
unsafe fn prepare(
    context: *mut ibv_context,
    attr: &ibv_wq_init_attr,
) -> Result<(*mut Wq, CreateSrqRequest), c_int> {
    if attr.pd.is_null() || attr.cq.is_null() || attr.max_sge > MAX_STRIDE {
        return Err(libc::EINVAL);
    }
    // SAFETY: By contract.
    let allocator = unsafe { Allocator::of(attr.pd, Resource::QueuePair) };
    let stride = receive_stride(attr.max_sge);
    let (buffer, request) = srq::prepare(attr.max_wr, stride, &allocator)?;
    let names = Outstanding::new(request.ring.entries, Opcode::Receive).ok_or(libc::ENOMEM)?;
    // SAFETY: By contract.
    let cq = unsafe { Cq::of(attr.cq) };
    let number_at_cq = attach(Some(cq), &names)?;
    // SAFETY: The buffer is kept next to the ring and dropped after it.
    let memory = unsafe { buffer.shared() };
    let ring = WorkRing::new(memory, request.ring, names, number_at_cq);
    let queue = ReceiveQueue::new(ring, attr.max_sge);
    // SAFETY: By contract. If it is true, the application has promised that one thread at a time
    // uses the queue.
    let receive = unsafe {
        if Pd::is_single_threaded(attr.pd) {
            SpinLock::without_lock(queue)
        } else {
            SpinLock::new(queue)
        }
    };
    // SAFETY: By contract; the context outlives the queue.
    let doorbell = unsafe { Context::doorbell(context) };
    let wq = allocate(Wq {
        // SAFETY: Integers, pointers, and a mutex that libibverbs initialises.
        wq: UnsafeCell::new(unsafe { mem::zeroed() }),
        receive,
        doorbell,
        cq,
        number_at_cq,
        // Until the device assigns one.
        slot: doorbell.slot(0),
        _buffer: buffer,
    });
    if wq.is_null() {
        // The queue that was to be placed there has been dropped, which detached it.
        return Err(libc::ENOMEM);
    }
    Ok((wq, request))
}

/// Creation flags that a queue can have: frames without their VLAN tag, and frames with their frame
/// check sequence (`enum ibv_wq_flags`).
const CREATE_FLAGS: u32 = 1 << 0 | 1 << 1;

/// Creates a receive work queue.
pub unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    // SAFETY: The verbs contract: only the caller uses it during the call.
    let attr = unsafe { &mut *attr };
    if attr.wq_type != IBV_WQT_RQ {
        return fail(libc::EINVAL);
    }
    let flags = match attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS {
        0 => 0,
        _ => attr.create_flags,
    };
    if attr.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 || flags & !CREATE_FLAGS != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: The verbs contract.
    let (wq, request) = match unsafe { prepare(context, attr) } {
        Ok(prepared) => prepared,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_wq, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_ex_create_wq_resp, CreateQpResponse>::default();
    // SAFETY: The verbs contract; command and response are followed by the driver's parts. The new
    // queue is not used elsewhere.
    unsafe {
        let error = ibv_cmd_create_wq(
            context,
            attr,
            wq.cast(),
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
        );
        if error != 0 {
            release(wq);
            return fail(error);
        }
        (*wq).slot = (*(*wq).doorbell).slot(resp.driver.slot);
        let verbs = (*wq).wq.get();
        (*verbs).post_recv = Some(post_recv);
        let mut receive = (*wq).receive.lock();
        receive.ring().outstanding().set_qpn((*verbs).wq_num);
        // An entry may have more room than requested; the kernel returns how much of it may be
        // used.
        receive.set_max_sge(attr.max_sge);
    }
    wq.cast()
}

/// Changes the state of a receive work queue.
pub unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    let mut cmd = ibv_modify_wq::default();
    // SAFETY: The verbs contract.
    unsafe {
        let error = ibv_cmd_modify_wq(wq, attr, &raw mut cmd, size_of_val(&cmd));
        if error == 0 && (*attr).attr_mask & IBV_WQ_ATTR_STATE != 0 {
            Wq::of(wq).state_changed((*attr).wq_state);
        }
        error
    }
}

/// Destroys a receive work queue.
pub unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: The verbs contract: one of this provider, and its last use. The kernel releases the
    // ring before it is unmapped.
    unsafe {
        let error = ibv_cmd_destroy_wq(wq);
        if error == 0 {
            let this = Wq::of(wq);
            this.cq().queue.with(|queue| queue.forget(this.number()));
            release(wq.cast::<Wq>());
        }
        error
    }
}

/// Posts a list of receive requests.
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: The verbs contract.
    let wq = unsafe { Wq::of(wq) };
    // SAFETY: The verbs contract.
    let (error, ring) = unsafe { push_receives(&mut wq.receive.lock(), wr, bad_wr) };
    if ring {
        wq.ring();
    }
    error
}

/// Creates an indirection table.
pub unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    // Larger ones are nothing that a kernel knows, and would need a lot of stack.
    const MAX_LOG_SIZE: u32 = 13;

    // SAFETY: The verbs contract.
    if unsafe { (*attr).log_ind_tbl_size } > MAX_LOG_SIZE {
        return fail(libc::EINVAL);
    }
    // SAFETY: Integers and pointers.
    let table = allocate(unsafe { mem::zeroed::<ibv_rwq_ind_table>() });
    if table.is_null() {
        return ptr::null_mut();
    }
    let mut resp = ib_uverbs_ex_create_rwq_ind_table_resp::default();
    // SAFETY: The verbs contract; the table is new.
    unsafe {
        let error =
            ibv_cmd_create_rwq_ind_table(context, attr, table, &raw mut resp, size_of_val(&resp));
        if error != 0 {
            release(table);
            return fail(error);
        }
    }
    table
}

/// Destroys an indirection table.
pub unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: The verbs contract: a table of this provider, and its last use.
    unsafe {
        let error = ibv_cmd_destroy_rwq_ind_table(table);
        if error == 0 {
            release(table);
        }
        error
    }
}

/// Returns the request for a queue pair with this configuration.
///
/// # Safety
///
/// The verbs contract: the key has as many bytes as the configuration says.
unsafe fn request(conf: &ibv_rx_hash_conf) -> Result<CreateScalingQpRequest, c_int> {
    if conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(libc::EOPNOTSUPP);
    }
    if usize::from(conf.rx_hash_key_len) != HASH_KEY_LENGTH || conf.rx_hash_key.is_null() {
        return Err(libc::EINVAL);
    }
    let fields = u32::try_from(conf.rx_hash_fields_mask).map_err(|_| libc::EOPNOTSUPP)?;
    if fields & !hash_fields::ALL != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: By contract.
    let given = unsafe { slice::from_raw_parts(conf.rx_hash_key, HASH_KEY_LENGTH) };
    let mut key = [0; HASH_KEY_LENGTH];
    key.copy_from_slice(given);
    Ok(CreateScalingQpRequest {
        comp_mask: 0,
        fields,
        key,
    })
}

/// Creates a queue pair with an indirection table.
///
/// # Safety
///
/// The verbs contract: an open context, attributes for it, and a domain and a table of it.
pub(super) unsafe fn create_qp(
    context: *mut ibv_context,
    mut attr: ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const BOTH: u32 = IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;

    if attr.comp_mask & !(BOTH | IBV_QP_INIT_ATTR_PD) != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let cap = &attr.cap;
    let has_queues = cap.max_send_wr != 0 || cap.max_recv_wr != 0 || cap.max_recv_sge != 0;
    if attr.qp_type != IBV_QPT_RAW_PACKET
        || attr.comp_mask & BOTH != BOTH
        || attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0
        || attr.pd.is_null()
        || attr.rwq_ind_tbl.is_null()
        || !attr.srq.is_null()
        || has_queues
    {
        return fail(libc::EINVAL);
    }
    // SAFETY: By contract.
    let made = unsafe {
        request(&attr.rx_hash_conf)
            .and_then(|request| Ok((Qp::without_queues(context, attr.pd)?, request)))
    };
    let (qp, request) = match made {
        Ok(made) => made,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_qp_ex, _>::new(request);
    let mut resp = ib_uverbs_ex_create_qp_resp::default();
    // SAFETY: By contract; the command is followed by the driver's part. The new queue pair is not
    // used elsewhere.
    unsafe {
        let error = ibv_cmd_create_qp_ex2(
            context,
            qp.cast(),
            &raw mut attr,
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp,
            size_of_val(&resp),
            #[cfg(feature = "pabi64")]
            ptr::null_mut(),
        );
        if error != 0 {
            release(qp);
            return fail(error);
        }
    }
    qp.cast()
}
