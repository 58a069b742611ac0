// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Posting of work requests with the extended interface, `ibv_wr_start` to `ibv_wr_complete`.
//!
//! `wr_start` takes the lock of the send queue, and `wr_complete` or `wr_abort` releases it. The
//! functions in between cannot fail; the first error is kept, and `wr_complete` returns it and then
//! posts nothing.

use super::ah::Ah;
use super::errno_of;
use super::mw::bind_target;
use super::post::{element, elements, flags, list};
use super::qp::Qp;
use crate::ffi::verbs::*;
use crate::ring::send::{Request, SendQueue, Target};
use core::ffi::{c_int, c_void};
use core::mem;
use vrnic_wire::work::{AddressVector, SendOpcode};

/// Sets the operations of a queue pair whose type has `opcodes`.
///
/// # Safety
///
/// `qp` is a new queue pair that is not used elsewhere yet.
pub unsafe fn set_operations(qp: *mut ibv_qp_ex, opcodes: u32) {
    let has = |opcode: SendOpcode| opcodes & (1 << opcode.raw()) != 0;
    // SAFETY: By contract.
    let qp = unsafe { &mut *qp };

    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_xrc_srqn = Some(wr_set_xrc_srqn);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    if has(SendOpcode::SendSegmented) {
        qp.wr_send_tso = Some(wr_send_tso);
    }
    if has(SendOpcode::Write) {
        qp.wr_rdma_write = Some(wr_rdma_write);
        qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    }
    if has(SendOpcode::Read) {
        qp.wr_rdma_read = Some(wr_rdma_read);
        qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
        qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
        qp.wr_send_inv = Some(wr_send_inv);
        qp.wr_bind_mw = Some(wr_bind_mw);
        qp.wr_local_inv = Some(wr_local_inv);
        qp.wr_flush = Some(wr_flush);
        qp.wr_atomic_write = Some(wr_atomic_write);
    }
}

/// Returns the send queue of a group in progress.
///
/// # Safety
///
/// The verbs contract: between `wr_start`, which took the lock, and `wr_complete` or `wr_abort`,
/// by the same thread.
#[inline]
unsafe fn queue<'a>(qp: *mut ibv_qp_ex) -> &'a mut SendQueue {
    // SAFETY: By contract; each function creates one reference, which does not outlive it.
    unsafe { Qp::of(qp.cast()).send.held() }
}

/// Begins a request of the group.
///
/// # Safety
///
/// As for [`queue`].
// In its callers, the operation is known.
#[inline(always)]
unsafe fn add(qp: *mut ibv_qp_ex, opcode: SendOpcode, immediate: u32, target: Target<'_>) {
    // SAFETY: By contract; the caller has set the identifier and the flags.
    unsafe {
        let request = Request {
            opcode,
            flags: flags((*qp).wr_flags),
            wr_id: (*qp).wr_id,
            immediate,
            target,
            // `wr_set_xrc_srqn` follows.
            srqn: 0,
            header: &[],
        };
        queue(qp).add(&request);
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: The verbs contract.
    let mut guard = unsafe { Qp::of(qp.cast()) }.send.lock();
    guard.start();
    // Released by `wr_complete` or `wr_abort`, one of which must follow.
    mem::forget(guard);
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: The verbs contract.
    let (completed, qp) = unsafe {
        let completed = queue(qp).complete();
        let qp = Qp::of(qp.cast());
        qp.send.unlock();
        (completed, qp)
    };
    match completed {
        Ok(posted) => {
            if posted {
                qp.ring();
            }
            0
        }
        Err(refused) => errno_of(refused),
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: The verbs contract.
    unsafe {
        queue(qp).abort();
        Qp::of(qp.cast()).send.unlock();
    }
}

unsafe extern "C" fn wr_send(qp: *mut ibv_qp_ex) {
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::Send, 0, Target::Peer) }
}

unsafe extern "C" fn wr_send_imm(qp: *mut ibv_qp_ex, immediate: u32) {
    let immediate = u32::from_be(immediate);
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::SendWithImmediate, immediate, Target::Peer) }
}

unsafe extern "C" fn wr_send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::SendWithInvalidate, rkey, Target::Peer) }
}

unsafe extern "C" fn wr_send_tso(qp: *mut ibv_qp_ex, hdr: *mut c_void, hdr_sz: u16, mss: u16) {
    // SAFETY: The verbs contract: the header has that length, and the caller has set the identifier
    // and the flags.
    unsafe {
        let request = Request {
            opcode: SendOpcode::SendSegmented,
            flags: flags((*qp).wr_flags),
            wr_id: (*qp).wr_id,
            immediate: mss.into(),
            target: Target::Peer,
            srqn: 0,
            header: list(hdr.cast_const().cast(), hdr_sz.into()),
        };
        queue(qp).add(&request);
    }
}

unsafe extern "C" fn wr_bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: The verbs contract.
    unsafe {
        let target = bind_target(&*mw, rkey, &*info);
        add(qp, SendOpcode::BindWindow, 0, target);
    }
}

unsafe extern "C" fn wr_local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::LocalInvalidate, rkey, Target::Peer) }
}

unsafe extern "C" fn wr_rdma_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::Write, 0, Target::Memory { address, rkey }) }
}

unsafe extern "C" fn wr_rdma_write_imm(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    immediate: u32,
) {
    let immediate = u32::from_be(immediate);
    let target = Target::Memory { address, rkey };
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::WriteWithImmediate, immediate, target) }
}

unsafe extern "C" fn wr_rdma_read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::Read, 0, Target::Memory { address, rkey }) }
}

unsafe extern "C" fn wr_atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    compare: u64,
    swap: u64,
) {
    let target = Target::Atomic {
        address,
        rkey,
        compare_add: compare,
        swap,
    };
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::CompareSwap, 0, target) }
}

unsafe extern "C" fn wr_atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, value: u64) {
    let target = Target::Atomic {
        address,
        rkey,
        compare_add: value,
        swap: 0,
    };
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::FetchAdd, 0, target) }
}

unsafe extern "C" fn wr_flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    let Ok(length) = u32::try_from(length) else {
        // SAFETY: The verbs contract.
        return unsafe { queue(qp) }.refuse();
    };
    let target = Target::Flush {
        address,
        rkey,
        length,
        placement,
        selectivity,
    };
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::Flush, 0, target) }
}

unsafe extern "C" fn wr_atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    value: *const c_void,
) {
    // SAFETY: The verbs contract: 8 bytes, at any alignment.
    let value = unsafe { value.cast::<[u8; 8]>().read() };
    let target = Target::Atomic {
        address,
        rkey,
        compare_add: 0,
        swap: u64::from_le_bytes(value),
    };
    // SAFETY: The verbs contract.
    unsafe { add(qp, SendOpcode::AtomicWrite, 0, target) }
}

unsafe extern "C" fn wr_set_ud_addr(
    qp: *mut ibv_qp_ex,
    ah: *mut ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
) {
    // SAFETY: The verbs contract.
    unsafe {
        let address: &AddressVector = Ah::address(ah);
        queue(qp).set_datagram(address, remote_qpn, remote_qkey);
    }
}

unsafe extern "C" fn wr_set_xrc_srqn(qp: *mut ibv_qp_ex, remote_srqn: u32) {
    // SAFETY: The verbs contract.
    unsafe { queue(qp) }.set_xrc_srqn(remote_srqn);
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: The verbs contract.
    unsafe { queue(qp) }.set_elements(core::iter::once(element(&sge)));
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, num_sge: usize, sg_list: *const ibv_sge) {
    // SAFETY: The verbs contract.
    unsafe { queue(qp).set_elements(elements(sg_list, num_sge)) };
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    // SAFETY: The verbs contract.
    unsafe {
        let piece = list(addr.cast_const().cast::<u8>(), length);
        queue(qp).set_inline(core::iter::once(piece));
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    num_buf: usize,
    buf_list: *const ibv_data_buf,
) {
    // SAFETY: The verbs contract.
    unsafe {
        let buffers = list(buf_list, num_buf).iter();
        queue(qp).set_inline(buffers.map(|buffer| {
            // The buffers belong to the caller, by the verbs contract.
            list(buffer.addr.cast_const().cast::<u8>(), buffer.length)
        }));
    }
}
