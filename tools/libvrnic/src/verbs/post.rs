// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Posting of work requests with `ibv_post_send` and `ibv_post_recv`.

use super::ah::Ah;
use super::errno_of;
use super::mw::bind_target;
use super::qp::Qp;
use crate::ffi::verbs::*;
use crate::ring::Refused;
use crate::ring::receive::ReceiveQueue;
use crate::ring::send::{Request, SendQueue, Target};
use core::ffi::{c_int, c_uint};
use core::slice;
use vrnic_wire::work::{SendOpcode, Sge, send_flags};

/// Converts an element to the device's format.
#[inline]
pub fn element(sge: &ibv_sge) -> Sge {
    Sge {
        address: sge.addr.into(),
        length: sge.length.into(),
        lkey: sge.lkey.into(),
    }
}

/// Converts the flags of a request to the device's format, leaving out flags that do not concern
/// it. The queue refuses those that it does not have.
#[inline]
pub fn flags(send_flags: c_uint) -> u8 {
    let mut flags = 0;
    if send_flags & IBV_SEND_SIGNALED != 0 {
        flags |= send_flags::SIGNALED;
    }
    if send_flags & IBV_SEND_SOLICITED != 0 {
        flags |= send_flags::SOLICITED;
    }
    if send_flags & IBV_SEND_FENCE != 0 {
        flags |= send_flags::FENCE;
    }
    if send_flags & IBV_SEND_IP_CSUM != 0 {
        flags |= send_flags::CHECKSUMS;
    }
    flags
}

/// Returns a list as a slice. If the list is empty, the pointer may have any value.
///
/// # Safety
///
/// `list` has `count` elements, which do not change as long as the result is used.
#[inline]
pub unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: By contract.
    unsafe { slice::from_raw_parts(list, count) }
}

/// Returns the elements of a work request.
///
/// # Safety
///
/// The verbs contract.
#[inline]
pub(super) unsafe fn elements<'a>(
    sg_list: *const ibv_sge,
    num_sge: c_int,
) -> Result<&'a [ibv_sge], Refused> {
    let count = usize::try_from(num_sge).map_err(|_| Refused::Invalid)?;
    // SAFETY: By contract.
    Ok(unsafe { list(sg_list, count) })
}

/// Queues one request.
///
/// # Safety
///
/// The verbs contract: a valid request for a queue pair of this type.
#[inline]
unsafe fn push(queue: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), Refused> {
    let opcode = u8::try_from(wr.opcode).map_err(|_| Refused::Invalid)?;
    let opcode = SendOpcode::try_from(opcode).map_err(|_| Refused::Invalid)?;
    // Checked before the union below is read, because the union's content depends on opcode and
    // type.
    if !queue.limits().has(opcode) {
        return Err(Refused::Invalid);
    }
    let mut bound = None;
    // SAFETY: The opcode is valid for the queue pair. By the verbs contract, opcode and type decide
    // what the union contains.
    let target = unsafe {
        match opcode {
            SendOpcode::Write | SendOpcode::WriteWithImmediate | SendOpcode::Read => {
                Target::Memory {
                    address: wr.wr.rdma.remote_addr,
                    rkey: wr.wr.rdma.rkey,
                }
            }
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => Target::Atomic {
                address: wr.wr.atomic.remote_addr,
                rkey: wr.wr.atomic.rkey,
                compare_add: wr.wr.atomic.compare_add,
                // The caller may leave unused members uninitialised, but unused fields of an entry
                // must be 0.
                swap: match opcode {
                    SendOpcode::CompareSwap => wr.wr.atomic.swap,
                    _ => 0,
                },
            },
            // The structure has no room for their arguments.
            SendOpcode::Flush | SendOpcode::AtomicWrite => return Err(Refused::Invalid),
            SendOpcode::BindWindow => {
                let bind = &wr.bind_mw.bind_mw;
                let mw = bind.mw.as_mut().ok_or(Refused::Invalid)?;
                let (target, key) = bind_target(mw, bind.rkey, &bind.bind_info);
                bound = Some((mw, key));
                target
            }
            _ if queue.limits().datagrams => {
                let ud = wr.wr.ud;
                if ud.ah.is_null() {
                    return Err(Refused::Invalid);
                }
                Target::Datagram {
                    address: Ah::address(ud.ah),
                    remote_qpn: ud.remote_qpn,
                    qkey: ud.remote_qkey,
                }
            }
            _ => Target::Peer,
        }
    };
    let (size, header) = match opcode {
        SendOpcode::SendSegmented => {
            // SAFETY: The union contains this for the operation.
            let tso = unsafe { wr.bind_mw.tso };
            // SAFETY: By the verbs contract, the header has that length.
            let header = unsafe { list(tso.hdr.cast_const().cast(), tso.hdr_sz.into()) };
            (tso.mss, header)
        }
        _ => (0, &[][..]),
    };
    let immediate = match opcode {
        SendOpcode::SendSegmented => u32::from(size),
        SendOpcode::SendWithInvalidate | SendOpcode::LocalInvalidate => wr.imm_data,
        SendOpcode::SendWithImmediate | SendOpcode::WriteWithImmediate => u32::from_be(wr.imm_data),
        _ => 0,
    };
    let request = Request {
        opcode,
        flags: flags(wr.send_flags),
        wr_id: wr.wr_id,
        immediate,
        target,
        srqn: wr.qp_type,
        header,
    };
    // SAFETY: By contract.
    let elements = unsafe { elements(wr.sg_list, wr.num_sge) }?;
    if wr.send_flags & IBV_SEND_INLINE == 0 {
        queue.push(&request, elements.iter().map(element))?;
    } else {
        queue.push_inline(
            &request,
            elements.iter().map(|sge| {
                // SAFETY: By contract: with the inline flag, an element refers to memory of the
                // caller.
                unsafe { list(sge.addr as usize as *const u8, sge.length as usize) }
            }),
        )?;
    }
    if let Some((mw, key)) = bound {
        mw.rkey = key;
    }
    Ok(())
}

/// Posts a list of send requests.
pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: The verbs contract.
    let qp = unsafe { Qp::of(qp) };
    let mut error = 0;

    let mut queue = qp.send.lock();
    // SAFETY: The verbs contract: the list ends with null.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: The verbs contract.
        if let Err(refused) = unsafe { push(&mut queue, request) } {
            error = errno_of(refused);
            // SAFETY: The verbs contract.
            unsafe { *bad_wr = wr };
            break;
        }
        wr = request.next;
    }
    // Requests before the bad one are posted.
    let posted = queue.publish();
    drop(queue);
    if posted {
        qp.ring();
    }
    error
}

/// Puts the requests of a list into a receive queue, which is locked, and publishes them. Returns 0 or the error of the
/// first bad request, which `bad_wr` then names, and whether the doorbell must ring.
///
/// # Safety
///
/// `wr` and `bad_wr` are as the verbs contract of posting receives says: the list ends with null.
#[inline]
pub(super) unsafe fn push_receives(
    queue: &mut ReceiveQueue,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> (c_int, bool) {
    let mut error = 0;
    // SAFETY: Guaranteed by the caller.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: Guaranteed by the caller.
        let pushed = unsafe { elements(request.sg_list, request.num_sge) }
            .and_then(|elements| queue.push(request.wr_id, elements.iter().map(element)));
        if let Err(refused) = pushed {
            error = errno_of(refused);
            // SAFETY: Guaranteed by the caller.
            unsafe { *bad_wr = wr };
            break;
        }
        wr = request.next;
    }
    // Requests before the bad one are posted.
    (error, queue.publish())
}

/// Posts a list of receive requests.
pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: The verbs contract.
    let qp = unsafe { Qp::of(qp) };
    // SAFETY: The verbs contract.
    let (error, ring) = unsafe { push_receives(&mut qp.receive.lock(), wr, bad_wr) };
    if ring {
        qp.ring();
    }
    error
}
