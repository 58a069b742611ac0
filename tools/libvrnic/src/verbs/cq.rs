// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Completion queues: creation, destruction and events. Polling is in [`super::poll`].

use super::allocator::{Allocator, Resource};
use super::context::{self, Context};
use super::pd::Pd;
use super::{allocate, fail, poll, release};
use crate::doorbell::Doorbell;
use crate::ffi::Opaque;
use crate::ffi::command::*;
use crate::ffi::driver::verbs_cq;
use crate::ffi::functions::*;
use crate::ffi::verbs::*;
use crate::memory::Buffer;
use crate::patience::Patience;
use crate::ring::completion::CompletionQueue;
use crate::spinlock::{KeptLock, SpinLock};
use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::mem::{self, size_of};
use core::ptr;
use vrnic_wire::abi::{CreateCqRequest, CreateCqResponse, Ring};
use vrnic_wire::completion::{CQE_STRIDE, Cqe};
use vrnic_wire::ring::{MAX_ENTRIES, RingHeader};

/// A completion queue.
#[repr(C)]
pub struct Cq {
    cq: UnsafeCell<verbs_cq>,
    /// The current completion of the extended interface. Guarded by the lock of `queue`.
    pub(super) current: UnsafeCell<Cqe>,
    /// The ring. The lock is kept between `ibv_start_poll` and `ibv_end_poll`; the polling thread
    /// may call any other verb meanwhile.
    pub(super) queue: KeptLock<CompletionQueue>,
    /// Offset that turns a timestamp into the time of day, if that was requested.
    pub(super) epoch: u64,
    /// How long to poll unsuccessfully before yielding the CPU.
    pub(super) patience: Patience,
    /// The context's doorbell, which outlives the completion queue.
    doorbell: *const Doorbell,
    /// Holds the ring and must outlive it. Locked only while `queue` is locked.
    buffer: SpinLock<Buffer>,
    allocator: Allocator,
}

impl Cq {
    /// Returns our queue for one of libibverbs.
    ///
    /// # Safety
    ///
    /// The verbs contract: a queue of this provider, not destroyed as long as the result is used.
    #[inline]
    pub(super) unsafe fn of<'a>(cq: *mut ibv_cq) -> &'a Self {
        // SAFETY: Every queue of this provider is a `Cq`, and begins with its `ibv_cq`.
        unsafe { &*cq.cast::<Self>() }
    }

    /// Returns whether the device has failed, so that what is outstanding must be flushed.
    #[inline]
    pub(super) fn device_failed(&self) -> bool {
        // SAFETY: The context stays open as long as it has completion queues.
        unsafe { &*self.doorbell }.device_failed()
    }

    /// Returns the queue in the form of the extended interface.
    #[inline]
    pub(super) fn extended(&self) -> *mut ibv_cq_ex {
        self.cq.get().cast()
    }
}

/// Creates a ring for `cqe` completions in its own buffer, and the request that describes it to the
/// kernel.
fn prepare_ring(cqe: u32, allocator: &Allocator) -> Result<(Buffer, CreateCqRequest), c_int> {
    if cqe == 0 || cqe > MAX_ENTRIES {
        return Err(libc::EINVAL);
    }
    let ring = Ring {
        header_offset: 0,
        entries_offset: size_of::<RingHeader>() as u32,
        entries: cqe.next_power_of_two(),
        stride: CQE_STRIDE,
    };
    let length = ring.entries_offset as usize + ring.entries as usize * CQE_STRIDE as usize;
    let buffer = allocator.allocate(length)?;
    let request = CreateCqRequest {
        comp_mask: 0,
        reserved_20: [0; 4],
        buf_addr: buffer.address(),
        buf_length: buffer.length() as u64,
        ring,
    };
    Ok((buffer, request))
}

/// Creates a completion queue for `cqe` completions, with its ring. The kernel does not know it
/// yet.
///
/// # Safety
///
/// The verbs contract: an open context, and null or a parent domain.
unsafe fn prepare(
    context: *mut ibv_context,
    cqe: u32,
    domain: *mut ibv_pd,
    epoch: u64,
) -> Result<(*mut Cq, CreateCqRequest), c_int> {
    // SAFETY: By contract.
    let allocator = unsafe { Allocator::of(domain, Resource::CompletionQueue) };
    let (buffer, request) = prepare_ring(cqe, &allocator)?;
    let ring = request.ring;
    // SAFETY: The buffer is kept next to the queue and dropped after it.
    let queue = CompletionQueue::new(unsafe { buffer.shared() }, ring);
    let cq = allocate(Cq {
        // SAFETY: Integers, pointers, and mutexes that libibverbs initialises.
        cq: UnsafeCell::new(unsafe { mem::zeroed() }),
        current: UnsafeCell::new(Cqe::default()),
        // A real lock even if the application says that a single thread polls: other threads may
        // create and destroy queue pairs, which are entered in the queue's table.
        queue: KeptLock::new(queue),
        epoch,
        // SAFETY: By contract; the context outlives the completion queue.
        patience: unsafe { Context::patience(context) },
        // SAFETY: As above.
        doorbell: unsafe { Context::doorbell(context) },
        buffer: SpinLock::new(buffer),
        allocator,
    });
    if cq.is_null() {
        return Err(libc::ENOMEM);
    }
    Ok((cq, request))
}

/// Creates a completion queue.
pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: The verbs contract.
    let prepared = unsafe { prepare(context, u32::try_from(cqe).unwrap_or(0), ptr::null_mut(), 0) };
    let (cq, request) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return fail(error),
    };
    let mut cmd = WithDriver::<ibv_create_cq, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_create_cq_resp, CreateCqResponse>::default();
    // SAFETY: The verbs contract; command and response are followed by the driver's parts.
    unsafe {
        let error = ibv_cmd_create_cq(
            context,
            cqe,
            channel,
            comp_vector,
            cq.cast(),
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
        );
        if error != 0 {
            release(cq);
            return fail(error);
        }
    }
    cq.cast()
}

/// Creates a completion queue with the extended polling interface.
pub unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: The verbs contract.
    let mut attr = unsafe { *attr };
    if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0
        || attr.wc_flags & !poll::WC_FLAGS != 0
    {
        return fail(libc::EOPNOTSUPP);
    }
    let flags = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
        0 => 0,
        _ => attr.flags,
    };
    if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    let domain = match attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
        0 => ptr::null_mut(),
        _ => attr.parent_domain,
    };
    // SAFETY: The verbs contract: null or a domain of this provider.
    if unsafe { domain.cast::<Pd>().as_ref() }.is_some_and(|domain| !domain.is_parent()) {
        return fail(libc::EINVAL);
    }
    let epoch = match attr.wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK {
        0 => Ok(0),
        // SAFETY: The verbs contract.
        _ => unsafe { context::epoch(context) },
    };
    // SAFETY: The verbs contract.
    let prepared = epoch.and_then(|epoch| unsafe { prepare(context, attr.cqe, domain, epoch) });
    let (cq, request) = match prepared {
        Ok(prepared) => prepared,
        Err(error) => return fail(error),
    };
    let wc_flags = attr.wc_flags;
    // Every completion has a timestamp, so the kernel need not be asked for it.
    attr.wc_flags &= IBV_WC_STANDARD_FLAGS;
    attr.flags = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    attr.comp_mask = match attr.flags {
        0 => 0,
        _ => IBV_CQ_INIT_ATTR_MASK_FLAGS,
    };

    let mut cmd = WithDriver::<ibv_create_cq_ex, _>::new(request);
    let mut resp = WithDriver::<ib_uverbs_ex_create_cq_resp, CreateCqResponse>::default();
    // SAFETY: The verbs contract; command and response are followed by the driver's parts.
    unsafe {
        let error = ibv_cmd_create_cq_ex(
            context,
            &raw const attr,
            #[cfg(feature = "pabi59")]
            ptr::null_mut(),
            cq.cast(),
            &raw mut cmd.core,
            size_of_val(&cmd),
            &raw mut resp.core,
            size_of_val(&resp),
            0,
        );
        if error != 0 {
            release(cq);
            return fail(error);
        }
        poll::set_operations((*cq).extended(), wc_flags);
        if attr.flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0 {
            (*cq).queue.with(CompletionQueue::ignore_overrun);
        }
    }
    cq.cast()
}

/// Moves a queue to a ring for `cqe` completions. Takes the lock, so the queue is not polled
/// meanwhile.
///
/// # Safety
///
/// The verbs contract.
unsafe fn resize(cq: *mut ibv_cq, cqe: c_int) -> Result<(), c_int> {
    // SAFETY: By contract.
    let this = unsafe { Cq::of(cq) };
    let (buffer, request) = prepare_ring(u32::try_from(cqe).unwrap_or(0), &this.allocator)?;
    // SAFETY: Dropped before the buffer, or kept next to it.
    let memory = unsafe { buffer.shared() };
    let ring = request.ring;
    let mut cmd = WithDriver::<ibv_resize_cq, _>::new(request);
    let mut resp = ib_uverbs_resize_cq_resp::default();
    this.queue.with(|queue| {
        queue.prepare(&memory, &ring);
        // SAFETY: By contract; the command is followed by the driver's part.
        let error = unsafe {
            ibv_cmd_resize_cq(
                cq,
                cqe,
                &raw mut cmd.core,
                size_of_val(&cmd),
                &raw mut resp,
                size_of_val(&resp),
            )
        };
        if error != 0 {
            return Err(error);
        }
        queue.move_to(memory, ring);
        // The device has released the old ring.
        *this.buffer.lock() = buffer;
        Ok(())
    })
}

/// Resizes a completion queue.
pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: The verbs contract.
    unsafe { resize(cq, cqe) }.err().unwrap_or(0)
}

/// Sets the event moderation of a completion queue.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut Opaque) -> c_int {
    let mut cmd = ibv_modify_cq::default();
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_modify_cq(cq, attr, &raw mut cmd, size_of_val(&cmd)) }
}

/// Destroys a completion queue.
pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: The verbs contract: a queue of this provider, and its last use. The kernel releases
    // the ring before it is unmapped.
    unsafe {
        let error = ibv_cmd_destroy_cq(cq);
        if error == 0 {
            release(cq.cast::<Cq>());
        }
        error
    }
}

/// Requests an event.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: The verbs contract.
    let cq = unsafe { Cq::of(cq) };
    cq.queue
        .with(|queue| queue.request_event(solicited_only != 0));
    0
}

/// Records an event; libibverbs calls this for each event that the application has fetched.
pub unsafe extern "C" fn cq_event(cq: *mut ibv_cq) {
    // SAFETY: The verbs contract.
    let cq = unsafe { Cq::of(cq) };
    cq.queue.with(CompletionQueue::event_came);
}
