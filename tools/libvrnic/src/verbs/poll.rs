// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Polling of completion queues, with `ibv_poll_cq` and `ibv_start_poll`.

use super::cq::Cq;
use crate::ffi::verbs::*;
use crate::ring::completion::CompletionQueue;
use core::ffi::{c_int, c_uint};
use vrnic_wire::completion::{Cqe, LidSource, Status, flags, packet_flags};

/// Fields that the extended interface supports.
pub const WC_FLAGS: u64 =
    IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | STAMPS;

/// Fields that every completion has anyway, or that follow from those.
pub const STAMPS: u64 =
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

/// Returns the status as the verbs number it. The device uses the same numbers; a broken device may
/// use others.
#[inline]
fn status(cqe: &Cqe) -> c_int {
    match cqe.status {
        0 => IBV_WC_SUCCESS,
        other => error_status(other),
    }
}

#[cold]
fn error_status(status: u8) -> c_int {
    match Status::try_from(status) {
        Ok(status) => c_int::from(status.raw()),
        Err(_) => IBV_WC_GENERAL_ERR,
    }
}

#[inline]
fn wc_flags(cqe: &Cqe) -> c_uint {
    let mut found = 0;
    if cqe.flags & flags::GRH != 0 {
        found |= IBV_WC_GRH;
    }
    if cqe.flags & flags::IMMEDIATE != 0 {
        found |= IBV_WC_WITH_IMM;
    }
    if cqe.flags & flags::INVALIDATED != 0 {
        found |= IBV_WC_WITH_INV;
    }
    if cqe.packet_flags & packet_flags::CHECKSUMS_OK != 0 {
        found |= IBV_WC_IP_CSUM_OK;
    }
    found
}

/// Returns immediate data in network byte order, or the key that was invalidated.
#[inline]
fn immediate(cqe: &Cqe) -> u32 {
    if cqe.flags & flags::INVALIDATED != 0 {
        cqe.immediate.get()
    } else {
        cqe.immediate.get().to_be()
    }
}

/// Returns the source of a datagram on an InfiniBand port; zeros for anything else.
#[inline]
fn lid_source(cqe: &Cqe) -> LidSource {
    if cqe.flags & flags::SOURCE_LID != 0 {
        LidSource::from_bytes(cqe.source_mac)
    } else {
        LidSource::default()
    }
}

/// Returns the VLAN tag that was removed from a frame, or the VLAN of a datagram; 0 without one.
#[inline]
fn vlan(cqe: &Cqe) -> u16 {
    match cqe.flags & flags::VLAN {
        0 => 0,
        _ => cqe.vlan.get(),
    }
}

/// Returns a completion in the form of `ibv_poll_cq`.
#[inline]
fn completion(cqe: &Cqe) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: cqe.wr_id.get(),
        status: status(cqe),
        opcode: c_int::from(cqe.opcode),
        vendor_err: cqe.vendor_error.get(),
        byte_len: cqe.byte_length.get(),
        imm_data: cqe.immediate.get().to_be(),
        qp_num: cqe.qpn.get(),
        src_qp: cqe.source_qpn.get(),
        wc_flags: 0,
        pkey_index: cqe.pkey_index.get(),
        slid: 0,
        sl: cqe.service_level,
        dlid_path_bits: 0,
    };
    // Most completions have none.
    if cqe.flags != 0 || cqe.packet_flags != 0 {
        wc.imm_data = immediate(cqe);
        wc.wc_flags = wc_flags(cqe);
        let source = lid_source(cqe);
        (wc.slid, wc.dlid_path_bits) = (source.slid.get(), source.path_bits);
    }
    wc
}

/// Polls up to `count` completions and returns their number.
pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, count: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: The verbs contract.
    let cq = unsafe { Cq::of(cq) };
    let mut queue = cq.queue.lock();
    let (mut slot, mut left) = (wc, count);

    while left > 0
        && let Some(cqe) = queue.pop()
    {
        // SAFETY: The verbs contract: the array has `count` elements.
        unsafe {
            slot.write(completion(&cqe));
            slot = slot.add(1);
        }
        left -= 1;
    }
    if left > 0 && cq.device_failed() {
        // SAFETY: The verbs contract: that many elements are left.
        left = unsafe { flush(&mut queue, slot, left) };
    }
    queue.publish();
    drop(queue);
    cq.patience.polled(left != count);
    count - left
}

/// Polls up to `left` completions of a device that has failed. Returns how many are left then.
///
/// # Safety
///
/// `slot` has `left` elements.
#[cold]
unsafe fn flush(queue: &mut CompletionQueue, mut slot: *mut ibv_wc, mut left: c_int) -> c_int {
    while left > 0
        && let Some(cqe) = queue.flush()
    {
        // SAFETY: By contract.
        unsafe {
            slot.write(completion(&cqe));
            slot = slot.add(1);
        }
        left -= 1;
    }
    left
}

/// Sets the operations for the requested fields.
///
/// # Safety
///
/// `cq` is a new queue that is not used elsewhere yet.
pub unsafe fn set_operations(cq: *mut ibv_cq_ex, wc_flags: u64) {
    let asked = |flag| wc_flags & flag != 0;
    // SAFETY: By contract.
    let cq = unsafe { &mut *cq };

    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = asked(IBV_WC_EX_WITH_BYTE_LEN).then_some(read_byte_len);
    cq.read_imm_data = asked(IBV_WC_EX_WITH_IMM).then_some(read_imm_data);
    cq.read_qp_num = asked(IBV_WC_EX_WITH_QP_NUM).then_some(read_qp_num);
    cq.read_src_qp = asked(IBV_WC_EX_WITH_SRC_QP).then_some(read_src_qp);
    cq.read_slid = asked(IBV_WC_EX_WITH_SLID).then_some(read_slid);
    cq.read_sl = asked(IBV_WC_EX_WITH_SL).then_some(read_sl);
    cq.read_dlid_path_bits = asked(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(read_dlid_path_bits);
    cq.read_cvlan = asked(IBV_WC_EX_WITH_CVLAN).then_some(read_cvlan);
    cq.read_flow_tag = asked(IBV_WC_EX_WITH_FLOW_TAG).then_some(read_flow_tag);
    cq.read_completion_ts =
        asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).then_some(read_completion_ts);
    cq.read_completion_wallclock_ns = asked(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
        .then_some(read_completion_wallclock_ns);
}

/// Advances to the next completion. Returns whether there is one.
///
/// # Safety
///
/// The calling thread holds the lock of the queue and has no other reference to the guarded value.
#[inline]
unsafe fn advance(cq: &Cq) -> bool {
    // SAFETY: By contract.
    unsafe {
        match cq.queue.held().pop() {
            Some(cqe) => show(cq, cqe),
            None => cq.device_failed() && advance_by_flushing(cq),
        }
    }
}

/// As [`advance`], on a device that has failed.
///
/// # Safety
///
/// As for [`advance`].
#[cold]
unsafe fn advance_by_flushing(cq: &Cq) -> bool {
    // SAFETY: By contract.
    unsafe {
        match cq.queue.held().flush() {
            Some(cqe) => show(cq, cqe),
            None => false,
        }
    }
}

/// Makes a completion the current one. Returns true.
///
/// # Safety
///
/// As for [`advance`].
#[inline]
unsafe fn show(cq: &Cq, cqe: Cqe) -> bool {
    let extended = cq.extended();
    // SAFETY: Only the polling thread uses these, and it holds the lock.
    unsafe {
        (*extended).status = status(&cqe);
        (*extended).wr_id = cqe.wr_id.get();
        *cq.current.get() = cqe;
    }
    true
}

/// Starts polling: takes the lock if there is a completion.
unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: The verbs contract.
    let (cq, attr) = unsafe { (Cq::of(cq.cast()), attr.as_ref()) };
    if attr.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    let mut guard = cq.queue.lock();
    // SAFETY: The lock was just taken; the guard is not used for access meanwhile.
    let found = unsafe { advance(cq) };
    if !found {
        // `end_poll` will not be called, and completions may have been skipped.
        guard.publish();
        drop(guard);
        cq.patience.polled(false);
        return libc::ENOENT;
    }
    // Released by `end_poll`, which the application must call.
    cq.queue.keep(guard);
    0
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: The verbs contract: between `start_poll`, which took the lock, and `end_poll`.
    if unsafe { advance(Cq::of(cq.cast())) } {
        0
    } else {
        libc::ENOENT
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: The verbs contract: after `start_poll`, which took the lock.
    unsafe {
        let cq = Cq::of(cq.cast());
        cq.queue.held().publish();
        cq.queue.give_back();
    }
}

/// Returns the current completion of the queue.
///
/// # Safety
///
/// The verbs contract: between `start_poll` and `end_poll`.
#[inline]
unsafe fn current<'a>(cq: *mut ibv_cq_ex) -> &'a Cqe {
    // SAFETY: By contract; the lock is held, and only `advance` writes the completion.
    unsafe { &*Cq::of(cq.cast()).current.get() }
}

/// Defines a `read_…` operation.
macro_rules! read {
    ($name:ident -> $ty:ty, $cqe:ident => $value:expr) => {
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $ty {
            // SAFETY: The verbs contract.
            let $cqe = unsafe { current(cq) };
            $value
        }
    };
}

read!(read_opcode -> c_int, cqe => c_int::from(cqe.opcode));
read!(read_vendor_err -> u32, cqe => cqe.vendor_error.get());
read!(read_byte_len -> u32, cqe => cqe.byte_length.get());
read!(read_imm_data -> u32, cqe => immediate(cqe));
read!(read_qp_num -> u32, cqe => cqe.qpn.get());
read!(read_src_qp -> u32, cqe => cqe.source_qpn.get());
read!(read_wc_flags -> c_uint, cqe => wc_flags(cqe));
read!(read_slid -> u32, cqe => lid_source(cqe).slid.get().into());
read!(read_sl -> u8, cqe => cqe.service_level);
read!(read_dlid_path_bits -> u8, cqe => lid_source(cqe).path_bits);
read!(read_cvlan -> u16, cqe => vlan(cqe));
read!(read_flow_tag -> u32, cqe => cqe.flow_tag.get());
read!(read_completion_ts -> u64, cqe => cqe.timestamp.get());

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: The verbs contract.
    let (cqe, cq) = unsafe { (current(cq), Cq::of(cq.cast())) };
    cqe.timestamp.get().wrapping_add(cq.epoch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_there_if_the_device_says_so() {
        let mut cqe = Cqe {
            vlan: 0xa123.into(),
            ..Cqe::default()
        };
        assert_eq!((vlan(&cqe), wc_flags(&cqe)), (0, 0));
        cqe.flags = flags::VLAN;
        assert_eq!((vlan(&cqe), wc_flags(&cqe)), (0xa123, 0));
    }

    #[test]
    fn only_infiniband_has_lids() {
        let mut cqe = Cqe {
            flags: flags::GRH | flags::SOURCE_MAC,
            source_mac: [0x34, 0x12, 5, 0, 0, 0],
            ..Cqe::default()
        };
        assert_eq!(lid_source(&cqe), LidSource::default());
        cqe.flags = flags::SOURCE_LID;
        let source = lid_source(&cqe);
        assert_eq!((source.slid.get(), source.path_bits), (0x1234, 5));
        assert_eq!(wc_flags(&cqe), 0);
        cqe.flags |= flags::GRH;
        assert_eq!(wc_flags(&cqe), IBV_WC_GRH);
        cqe.packet_flags = packet_flags::CHECKSUMS_OK;
        assert_eq!(wc_flags(&cqe), IBV_WC_GRH | IBV_WC_IP_CSUM_OK);
    }
}
