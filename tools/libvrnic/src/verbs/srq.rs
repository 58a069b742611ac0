// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Shared receive queues.

use super::allocator::{Allocator, Resource};
use super::cq::Cq;
use super::pd::Pd;
use super::post::{count, elements};
use super::{allocate, errno_of, fail, release};
use crate::ffi::command::*;
use crate::ffi::driver::verbs_srq;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::memory::Buffer;
use crate::ring::shared::{SharedQueue, SharedReceives};
use crate::spinlock::SpinLock;
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::{mem, ptr};
use vrnic_wire::abi::{CreateSrqRequest, CreateSrqResponse, Ring};
use vrnic_wire::ring::{MAX_ENTRIES, MAX_STRIDE, RingHeader};
use vrnic_wire::work::receive_stride;

/// The ring and its memory.
struct Place {
    queue: SharedQueue,
    /// Holds the ring and must outlive it.
    buffer: Buffer,
}

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    srq: UnsafeCell<verbs_srq>,
    place: SpinLock<Place>,
    receives: SharedReceives,
    allocator: Allocator,
    /// For a queue in an XRC domain: the completion queue of its receives.
    cq: *const Cq,
    /// For a queue in an XRC domain: its number.
    number: u32,
}

impl Srq {
    /// Returns our queue for one of libibverbs.
    ///
    /// # Safety
    ///
    /// The verbs contract: one of this provider, not destroyed as long as the result is used.
    pub(super) unsafe fn of<'a>(srq: *mut ibv_srq) -> &'a Self {
        // SAFETY: Every queue of this provider is a `Srq`, and begins with its `ibv_srq`.
        unsafe { &*srq.cast::<Self>() }
    }

    /// Returns its receives, for completion queues.
    pub(super) fn receives(&self) -> &SharedReceives {
        &self.receives
    }
}

/// Creates a ring for `max_wr` receives in its own buffer, and the request that describes it to the
/// kernel.
pub(super) fn prepare(
    max_wr: u32,
    stride: u32,
    allocator: &Allocator,
) -> Result<(Buffer, CreateSrqRequest), c_int> {
    if max_wr == 0 || max_wr > MAX_ENTRIES || stride > MAX_STRIDE {
        return Err(libc::EINVAL);
    }
    let ring = Ring {
        header_offset: 0,
        entries_offset: (size_of::<RingHeader>() as u32).next_multiple_of(stride),
        entries: max_wr.next_power_of_two(),
        stride,
    };
    let length = ring.entries_offset as usize + ring.entries as usize * stride as usize;
    let buffer = allocator.allocate(length)?;
    let request = CreateSrqRequest {
        comp_mask: 0,
        reserved_20: [0; 4],
        buf_addr: buffer.address(),
        buf_length: buffer.length() as u64,
        ring,
    };
    Ok((buffer, request))
}

/// Creates a shared receive queue with its ring. The kernel does not know it yet.
///
/// # Safety
///
/// The verbs contract: a domain, and null or a completion queue of the same context.
unsafe fn make(
    pd: *mut ibv_pd,
    attr: &ibv_srq_attr,
    cq: *const Cq,
) -> Result<(*mut Srq, CreateSrqRequest), c_int> {
    if attr.max_sge > MAX_STRIDE {
        return Err(libc::EINVAL);
    }
    // SAFETY: By contract.
    let allocator = unsafe { Allocator::of(pd, Resource::SharedReceiveQueue) };
    let (buffer, request) = prepare(attr.max_wr, receive_stride(attr.max_sge), &allocator)?;
    // SAFETY: The buffer is kept next to the ring and dropped after it.
    let queue = SharedQueue::new(unsafe { buffer.shared() }, request.ring, attr.max_sge);
    let receives = queue.receives().clone();
    let place = Place { queue, buffer };
    // SAFETY: By contract. If it is true, the application has promised that one thread at a time
    // uses the queue.
    let place = unsafe {
        if Pd::is_single_threaded(pd) {
            SpinLock::without_lock(place)
        } else {
            SpinLock::new(place)
        }
    };
    // SAFETY: By contract.
    if let Some(cq) = unsafe { cq.as_ref() }
        && !cq.queue.with(|queue| queue.attach_shared(&receives))
    {
        return Err(libc::ENOMEM);
    }
    let srq = allocate(Srq {
        // SAFETY: Integers, pointers, and mutexes that libibverbs initialises.
        srq: UnsafeCell::new(unsafe { mem::zeroed() }),
        place,
        receives,
        allocator,
        cq,
        number: 0,
    });
    if srq.is_null() {
        // The queue that was to be placed there has been dropped, which detached it.
        return Err(libc::ENOMEM);
    }
    Ok((srq, request))
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: The verbs contract: a completion queue outlives the queues that complete on it.
        if let Some(cq) = unsafe { self.cq.as_ref() } {
            cq.queue.with(|queue| queue.detach_shared(&self.receives));
        }
    }
}

/// Creates a shared receive queue.
pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: The verbs contract: only the caller uses it during the call.
    let attr = unsafe { &mut *attr };
    // SAFETY: The verbs contract.
    let (srq, request) = match unsafe { make(pd, &attr.attr, ptr::null()) } {
        Ok(made) => made,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_srq, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_create_srq_resp, CreateSrqResponse>::default();
    // SAFETY: The verbs contract; command and response are followed by the driver's parts. The new
    // queue is not used elsewhere.
    unsafe {
        let error = ibv_cmd_create_srq(
            pd,
            srq.cast(),
            attr,
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
        );
        if error != 0 {
            release(srq);
            return fail(error);
        }
        // An entry may have more room than requested; the kernel returns how much of it may be
        // used.
        (*srq).place.lock().queue.set_max_sge(attr.attr.max_sge);
    }
    srq.cast()
}

/// Creates a shared receive queue, optionally in an XRC domain.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    const XRC: u32 = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    const ALL: u32 = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | XRC;

    // SAFETY: The verbs contract: only the caller uses it during the call.
    let asked = unsafe { &mut *attr };
    let srq_type = match asked.comp_mask & IBV_SRQ_INIT_ATTR_TYPE {
        0 => IBV_SRQT_BASIC,
        _ => asked.srq_type,
    };
    if asked.comp_mask & !ALL != 0 || !matches!(srq_type, IBV_SRQT_BASIC | IBV_SRQT_XRC) {
        return fail(libc::EOPNOTSUPP);
    }
    if asked.comp_mask & IBV_SRQ_INIT_ATTR_PD == 0 || asked.pd.is_null() {
        return fail(libc::EINVAL);
    }
    if srq_type == IBV_SRQT_BASIC {
        // SAFETY: The verbs contract; the extended attributes begin with the plain ones.
        return unsafe { create_srq(asked.pd, attr.cast()) };
    }
    if asked.comp_mask & XRC != XRC || asked.xrcd.is_null() || asked.cq.is_null() {
        return fail(libc::EINVAL);
    }
    // SAFETY: The verbs contract: a completion queue of this provider.
    let made = unsafe { make(asked.pd, &asked.attr, Cq::of(asked.cq)) };
    let (srq, request) = match made {
        Ok(made) => made,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_xsrq, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_create_srq_resp, CreateSrqResponse>::default();
    // SAFETY: As for other shared receive queues.
    unsafe {
        let error = ibv_cmd_create_srq_ex(
            context,
            srq.cast(),
            asked,
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
        );
        if error != 0 {
            release(srq);
            return fail(error);
        }
        (*srq).number = resp.driver.srqn;
        (*srq).place.lock().queue.set_max_sge(asked.attr.max_sge);
    }
    srq.cast()
}

/// Returns the number with which peers address a shared receive queue of an XRC domain.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: The verbs contract.
    let srq = unsafe { Srq::of(srq) };
    if srq.cq.is_null() {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: The verbs contract.
    unsafe { *number = srq.number };
    0
}

/// Moves a queue to a ring for `max_wr` receives. Takes the lock, so nothing is posted meanwhile.
///
/// # Safety
///
/// The verbs contract.
unsafe fn resize(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> Result<(), c_int> {
    // SAFETY: By contract.
    let (this, max_wr) = unsafe { (Srq::of(srq), (*attr).max_wr) };
    let mut place = this.place.lock();
    let (buffer, request) = prepare(max_wr, place.queue.stride(), &this.allocator)?;
    // SAFETY: Dropped before the buffer, or kept next to it.
    let memory = unsafe { buffer.shared() };
    let ring = request.ring;
    place
        .queue
        .copy_to(&memory, &ring)
        .map_err(|_| libc::EINVAL)?;
    let mut cmd = WithDriver::<ibv_modify_srq, _>::new(request);
    // SAFETY: By contract; the command is followed by the driver's part.
    let error =
        unsafe { ibv_cmd_modify_srq(srq, attr, mask, &raw mut cmd.core, size_of_val(&cmd)) };
    if error != 0 {
        return Err(error);
    }
    place.queue.move_to(memory, ring);
    // The device has released the old ring.
    place.buffer = buffer;
    Ok(())
}

/// Changes attributes of a shared receive queue.
pub unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    if mask & IBV_SRQ_MAX_WR != 0 {
        // SAFETY: The verbs contract.
        return unsafe { resize(srq, attr, mask) }.err().unwrap_or(0);
    }
    let mut cmd = ibv_modify_srq::default();
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_modify_srq(srq, attr, mask, &raw mut cmd, size_of_val(&cmd)) }
}

/// Queries the attributes of a shared receive queue.
pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    let mut cmd = ibv_query_srq::default();
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_query_srq(srq, attr, &raw mut cmd, size_of_val(&cmd)) }
}

/// Destroys a shared receive queue.
pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: The verbs contract: one of this provider, and its last use. The kernel releases the
    // ring before it is unmapped.
    unsafe {
        let error = ibv_cmd_destroy_srq(srq);
        if error == 0 {
            release(srq.cast::<Srq>());
        }
        error
    }
}

/// Posts a list of receive requests.
pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: The verbs contract.
    let srq = unsafe { Srq::of(srq) };
    let mut error = 0;

    let mut place = srq.place.lock();
    // SAFETY: The verbs contract: the list ends with null.
    while let Some(request) = unsafe { wr.as_ref() } {
        let pushed = count(request.num_sge).and_then(|count| {
            // SAFETY: The verbs contract.
            let elements = unsafe { elements(request.sg_list, count) };
            place.queue.push(request.wr_id, elements)
        });
        if let Err(refused) = pushed {
            error = errno_of(refused);
            // SAFETY: The verbs contract.
            unsafe { *bad_wr = wr };
            break;
        }
        wr = request.next;
    }
    // Requests before the bad one are posted.
    place.queue.publish();
    error
}
