// SPDX-License-Identifier: GPL-2.0

//! Management datagrams (MADs) that the device answers itself (IBTA volume 1, chapter 13).

use kernel::prelude::*;

use crate::{
    bindings,
    device::Operations,
    verb::Verb,
    wc::Source, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Length of a management datagram of InfiniBand and RoCE in bytes.
// CAST: A small constant.
pub const LENGTH: usize = bindings::IB_MGMT_MAD_SIZE as usize;

/// A management datagram in wire format.
pub type Mad = [u8; LENGTH];

/// A management datagram that was sent to a port.
pub struct Incoming<'a> {
    /// The datagram.
    pub mad: &'a Mad,
    /// Origin of the datagram; [`None`] if local software sent it.
    pub source: Option<Source>,
    /// Whether the subnet management agent must skip the M_Key check.
    pub ignores_m_key: bool,
}

/// What the device did with a management datagram (`enum ib_mad_result`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The device did nothing: the datagram is for agents in software, if there are any.
    Passed,
    /// The device consumed the datagram, and there is no response.
    Consumed,
    /// The device wrote a response.
    Answered,
}

impl Outcome {
    /// Returns the C constants.
    const fn raw(self) -> bindings::ib_mad_result {
        match self {
            Self::Passed => bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS,
            Self::Consumed => {
                bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                    | bindings::ib_mad_result_IB_MAD_RESULT_CONSUMED
            }
            Self::Answered => {
                bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                    | bindings::ib_mad_result_IB_MAD_RESULT_REPLY
            }
        }
    }
}

/// Returns a combination of the bits of `enum ib_mad_result`, or 0 if the driver fails.
///
/// # Safety
///
/// `device` must be a registered device of `T`. `source` must be null or valid. `mad` must have
/// [`LENGTH`] bytes and `answer` room for `answer_length` bytes, both valid.
pub(crate) unsafe extern "C" fn process_callback<T: Operations>(
    device: *mut bindings::ib_device,
    flags: c_int,
    port: u32,
    source: *const bindings::ib_wc,
    _header: *const bindings::ib_grh,
    mad: *const bindings::ib_mad,
    answer: *mut bindings::ib_mad,
    answer_length: *mut usize,
    _answer_pkey_index: *mut u16,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let verb = unsafe { Verb::<T>::new(device) };
    // SAFETY: The core passes the length of the room for the answer.
    let room = unsafe { *answer_length };
    let Ok(port) = verb.device().port(port) else {
        return 0;
    };
    if room < LENGTH {
        return 0;
    }
    let incoming = Incoming {
        // SAFETY: The datagram has this length. It is plain bytes of memory that was zeroed or
        // received, and does not change during the call.
        mad: unsafe { &*mad.cast::<Mad>() },
        // SAFETY: Null or valid during the call.
        source: unsafe { source.as_ref() }.map(Source::from_raw),
        // CAST: A set of bits that C keeps in an `int`.
        ignores_m_key: flags as u32 & bindings::ib_process_mad_flags_IB_MAD_IGNORE_MKEY != 0,
    };
    let mut written = [0; LENGTH];
    let outcome = verb.enter(|call| T::process_mad(call, port, &incoming, &mut written));
    if outcome == Ok(Outcome::Answered) {
        // SAFETY: There is room for an answer of this length.
        unsafe {
            answer.cast::<Mad>().write_unaligned(written);
            *answer_length = LENGTH;
        }
    }
    // CAST: Small constants.
    outcome.map_or(0, |outcome| outcome.raw() as c_int)
}
