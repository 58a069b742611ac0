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
    FLAGS[send_flags as usize % FLAGS.len()]
}

/// What [`flags`] returns for each combination of the lowest bits.
static FLAGS: [u8; 32] = {
    let pairs = [
        (IBV_SEND_SIGNALED, send_flags::SIGNALED),
        (IBV_SEND_SOLICITED, send_flags::SOLICITED),
        (IBV_SEND_FENCE, send_flags::FENCE),
        (IBV_SEND_IP_CSUM, send_flags::CHECKSUMS),
    ];
    let mut table = [0; 32];
    let mut at = 0;
    while at < table.len() * pairs.len() {
        let (bits, (flag, found)) = (at / pairs.len(), pairs[at % pairs.len()]);
        if bits as c_uint & flag != 0 {
            table[bits] |= found;
        }
        at += 1;
    }
    table
};

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

/// Returns the number of elements of a work request.
#[inline]
pub(super) fn count(num_sge: c_int) -> Result<usize, Refused> {
    usize::try_from(num_sge).map_err(|_| Refused::Invalid)
}

/// Returns elements in the device's format.
///
/// # Safety
///
/// As for [`list`].
#[inline]
pub(super) unsafe fn elements(
    sg_list: *const ibv_sge,
    count: usize,
) -> impl ExactSizeIterator<Item = Sge> {
    // SAFETY: By contract.
    (0..count).map(move |i| element(unsafe { &*sg_list.add(i) }))
}

/// Queues one request.
///
/// # Safety
///
/// The verbs contract: a valid request for a queue pair of this type.
#[inline]
unsafe fn push(queue: &mut SendQueue, wr: &ibv_send_wr) -> Result<(), Refused> {
    // Checked before the union below is read, because the union's content depends on opcode and
    // type.
    let opcode = queue.operation(wr.opcode as u32).ok_or(Refused::Invalid)?;
    // SAFETY: The opcode is valid for the queue pair. By the verbs contract, opcode and type decide
    // what the union contains.
    unsafe {
        match opcode {
            SendOpcode::Write | SendOpcode::WriteWithImmediate | SendOpcode::Read => {
                let target = Target::Memory {
                    address: wr.wr.rdma.remote_addr,
                    rkey: wr.wr.rdma.rkey,
                };
                let immediate = match opcode {
                    SendOpcode::WriteWithImmediate => u32::from_be(wr.imm_data),
                    _ => 0,
                };
                push_to(queue, wr, opcode, target, immediate, &[])
            }
            SendOpcode::Send | SendOpcode::SendWithImmediate => {
                let immediate = match opcode {
                    SendOpcode::SendWithImmediate => u32::from_be(wr.imm_data),
                    _ => 0,
                };
                if !queue.limits().datagrams {
                    return push_to(queue, wr, opcode, Target::Peer, immediate, &[]);
                }
                let ud = wr.wr.ud;
                if ud.ah.is_null() {
                    return Err(Refused::Invalid);
                }
                let target = Target::Datagram {
                    address: Ah::address(ud.ah),
                    remote_qpn: ud.remote_qpn,
                    qkey: ud.remote_qkey,
                };
                push_to(queue, wr, opcode, target, immediate, &[])
            }
            _ => push_other(queue, opcode, wr),
        }
    }
}

/// Queues one request with an operation that [`push`] does not know.
///
/// # Safety
///
/// The verbs contract, as for [`push`], and `opcode` is that of the request.
#[inline(never)]
unsafe fn push_other(
    queue: &mut SendQueue,
    opcode: SendOpcode,
    wr: &ibv_send_wr,
) -> Result<(), Refused> {
    let mut header: &[u8] = &[];
    // SAFETY: By contract, the opcode decides what the union contains.
    unsafe {
        let (target, immediate) = match opcode {
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
                let target = Target::Atomic {
                    address: wr.wr.atomic.remote_addr,
                    rkey: wr.wr.atomic.rkey,
                    compare_add: wr.wr.atomic.compare_add,
                    // The caller may leave unused members uninitialised, but unused fields of an
                    // entry must be 0.
                    swap: match opcode {
                        SendOpcode::CompareSwap => wr.wr.atomic.swap,
                        _ => 0,
                    },
                };
                (target, 0)
            }
            SendOpcode::SendWithInvalidate | SendOpcode::LocalInvalidate => {
                (Target::Peer, wr.imm_data)
            }
            SendOpcode::BindWindow => {
                let bind = &wr.bind_mw.bind_mw;
                let mw = bind.mw.as_ref().ok_or(Refused::Invalid)?;
                (bind_target(mw, bind.rkey, &bind.bind_info), 0)
            }
            SendOpcode::SendSegmented => {
                let tso = wr.bind_mw.tso;
                // By the verbs contract, the header has that length.
                header = list(tso.hdr.cast_const().cast(), tso.hdr_sz.into());
                (Target::Peer, tso.mss.into())
            }
            // The structure has no room for the arguments of the others.
            _ => return Err(Refused::Invalid),
        };
        push_to(queue, wr, opcode, target, immediate, header)
    }
}

/// Queues one request, whose target and immediate data are known.
///
/// # Safety
///
/// The verbs contract.
// In `push`, the operation and its target are mostly known.
#[inline(always)]
unsafe fn push_to(
    queue: &mut SendQueue,
    wr: &ibv_send_wr,
    opcode: SendOpcode,
    target: Target<'_>,
    immediate: u32,
    header: &[u8],
) -> Result<(), Refused> {
    let request = Request {
        opcode,
        flags: flags(wr.send_flags),
        wr_id: wr.wr_id,
        immediate,
        target,
        srqn: wr.qp_type,
        header,
    };
    let count = count(wr.num_sge)?;
    // SAFETY: By contract.
    unsafe {
        if wr.send_flags & IBV_SEND_INLINE == 0 {
            return queue.push(&request, elements(wr.sg_list, count));
        }
        // With the inline flag, an element refers to memory of the caller.
        let pieces = list(wr.sg_list, count).iter();
        queue.push_inline(
            &request,
            pieces.map(|sge| list(sge.addr as usize as *const u8, sge.length as usize)),
        )
    }
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
#[inline(always)]
pub(super) unsafe fn push_receives(
    queue: &mut ReceiveQueue,
    mut wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> (c_int, bool) {
    let mut error = 0;
    // SAFETY: Guaranteed by the caller.
    while let Some(request) = unsafe { wr.as_ref() } {
        let pushed = count(request.num_sge).and_then(|count| {
            // SAFETY: Guaranteed by the caller.
            queue.push(request.wr_id, unsafe { elements(request.sg_list, count) })
        });
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
