// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An open device.

use super::OPERATIONS;
use crate::doorbell::Doorbell;
use crate::ffi::Opaque;
use crate::ffi::abi::verbs_context;
use crate::ffi::command::*;
use crate::ffi::driver::ibv_device_attr_ex;
use crate::ffi::functions::*;
use crate::ffi::ioctl::*;
use crate::ffi::verbs::*;
use crate::memory::{DoorbellPage, Mapping};
use crate::patience::Patience;
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use core::ptr;
use vrnic_wire::abi::{
    AllocContextRequest, AllocContextResponse, CONTEXT_NULL_KEY, DRIVER_ID, QueryClockResponse,
};
use vrnic_wire::notify;

/// Doorbell slots of a context, so queue pairs that a process can have per open device. As many as
/// a page has room for.
const SLOTS: u32 = 16384;
const _: () = assert!(notify::is_valid_slot_count(SLOTS) && notify::area_length(SLOTS) <= 4096);

/// Times that the device is asked for the time, of which the answer that comes soonest counts.
const QUESTIONS: u32 = 5;

/// A context: what libibverbs has of it, and ours. Allocated by libibverbs, zeroed.
#[repr(C)]
pub struct Context {
    verbs: verbs_context,
    /// Set as long as the context is open.
    own: Option<Own>,
}

struct Own {
    doorbell: Doorbell,
    /// Holds the notify area; must outlive the doorbell.
    _area: Mapping,
    max_inline: u32,
    null_key: Option<u32>,
    patience: Patience,
}

impl Context {
    /// The context that libibverbs names.
    ///
    /// # Safety
    ///
    /// `context` came from [`alloc_context`] and is open as long as the result is used.
    unsafe fn own<'a>(context: *mut ibv_context) -> &'a Own {
        let offset = offset_of!(Self, verbs) + offset_of!(verbs_context, context);
        // SAFETY: `context` is that member of a `Context`. Our part is written only while it is
        // opened and closed.
        let own = unsafe { &(*context.byte_sub(offset).cast::<Self>()).own };
        own.as_ref().expect("the context is open")
    }

    /// How rings of this context are rung.
    ///
    /// # Safety
    ///
    /// As for the verbs: an open context, and it stays open as long as the result is used.
    pub unsafe fn doorbell<'a>(context: *mut ibv_context) -> &'a Doorbell {
        // SAFETY: By contract.
        unsafe { &Self::own(context).doorbell }
    }

    /// How long a program of this context may poll in vain.
    ///
    /// # Safety
    ///
    /// As for the verbs: an open context.
    pub unsafe fn patience(context: *mut ibv_context) -> Patience {
        // SAFETY: By contract.
        unsafe { Self::own(context).patience.clone() }
    }

    /// The key of memory that is all zeros and keeps nothing, if the device has one.
    ///
    /// # Safety
    ///
    /// As for the verbs: an open context.
    pub unsafe fn null_key(context: *mut ibv_context) -> Option<u32> {
        // SAFETY: By contract.
        unsafe { Self::own(context).null_key }
    }

    /// Most inline bytes that a send entry may hold.
    ///
    /// # Safety
    ///
    /// As for the verbs: an open context.
    pub unsafe fn max_inline(context: *mut ibv_context) -> u32 {
        // SAFETY: By contract.
        unsafe { Self::own(context).max_inline }
    }
}

/// Opens a device. Owns `cmd_fd` from the start.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: The verbs contract.
    unsafe { make(device, cmd_fd, create) }
}

/// Takes part in a context that is open already, often another process's. Owns `cmd_fd` from the
/// start.
///
/// Both have one context in the kernel, and so on the device: one doorbell page and one notify
/// area. That is all the state there is of a context; slots are given out by the device.
pub unsafe extern "C" fn import_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
) -> *mut verbs_context {
    // SAFETY: The verbs contract.
    unsafe { make(device, cmd_fd, query) }
}

/// Makes our side of a context, of which `ask` learns from the kernel.
///
/// # Safety
///
/// The verbs contract; `ask` is called with a new context.
unsafe fn make(
    device: *mut ibv_device,
    cmd_fd: c_int,
    ask: unsafe fn(*mut verbs_context) -> Result<AllocContextResponse, c_int>,
) -> *mut verbs_context {
    // SAFETY: The verbs contract; the offset, given as a pointer, is that of the member. On
    // failure the function has closed the descriptor.
    let context = unsafe {
        _verbs_init_and_alloc_context(
            device,
            cmd_fd,
            size_of::<Context>(),
            ptr::without_provenance_mut(offset_of!(Context, verbs)),
            DRIVER_ID,
        )
    }
    .cast::<Context>();
    if context.is_null() {
        return ptr::null_mut();
    }

    // SAFETY: A new context, which nobody else knows; `own` is valid memory, zeroed.
    unsafe {
        let verbs = &raw mut (*context).verbs;
        match ask(verbs).and_then(|granted| open((*verbs).context.cmd_fd, &granted)) {
            Ok(own) => {
                (&raw mut (*context).own).write(Some(own));
                verbs_set_ops(verbs, &raw const OPERATIONS);
                verbs
            }
            Err(error) => {
                verbs_uninit_context(verbs);
                libc::free(context.cast());
                super::set_errno(error);
                ptr::null_mut()
            }
        }
    }
}

/// Creates the context in the kernel.
///
/// # Safety
///
/// `verbs` is a new context.
unsafe fn create(verbs: *mut verbs_context) -> Result<AllocContextResponse, c_int> {
    let mut cmd = WithDriver::<ibv_get_context, _>::new(AllocContextRequest {
        comp_mask: 0,
        slots: SLOTS,
    });
    let mut resp = WithDriver::<ib_uverbs_get_context_resp, AllocContextResponse>::default();

    // SAFETY: Command and response are followed by the driver's parts, as the sizes say.
    let error = unsafe {
        ibv_cmd_get_context(
            verbs,
            &raw mut cmd.core,
            size_of_val(&cmd),
            #[cfg(feature = "pabi65")]
            ptr::null_mut(),
            &raw mut resp.core,
            size_of_val(&resp),
        )
    };
    if error == 0 {
        Ok(resp.driver)
    } else {
        Err(error)
    }
}

/// Asks the kernel for a context that it has.
///
/// # Safety
///
/// `verbs` is a new context, whose descriptor has one in the kernel.
unsafe fn query(verbs: *mut verbs_context) -> Result<AllocContextResponse, c_int> {
    let mut granted = AllocContextResponse::default();
    let mut method = Method::new(
        UVERBS_OBJECT_DEVICE,
        UVERBS_METHOD_QUERY_CONTEXT,
        [attribute(
            DRIVER_NS,
            (&raw mut granted).expose_provenance() as u64,
            size_of::<AllocContextResponse>() as u16,
        )],
    );
    // SAFETY: The method's attribute is memory of this function.
    let error = unsafe { ibv_cmd_query_context(&raw mut (*verbs).context, method.as_raw()) };
    if error == 0 { Ok(granted) } else { Err(error) }
}

/// Maps the notify area and the doorbell page of the context that is open as `fd`.
fn open(fd: c_int, granted: &AllocContextResponse) -> Result<Own, c_int> {
    let area = Mapping::memory(fd, granted.notify_offset, granted.notify_length as usize);
    let area = area.ok_or(libc::ENOMEM)?;
    let page = match granted.doorbell_length {
        0 => None,
        length => {
            let page = DoorbellPage::map(fd, granted.doorbell_offset, length as usize);
            Some(page.ok_or(libc::ENOMEM)?)
        }
    };
    // SAFETY: The area is mapped for both, kept beside the doorbell and dropped after it.
    let doorbell = Doorbell::new(unsafe { area.shared() }, page);
    Ok(Own {
        doorbell,
        _area: area,
        max_inline: granted.max_inline_data,
        null_key: (granted.comp_mask & CONTEXT_NULL_KEY != 0).then_some(granted.null_key),
        patience: Patience::of_this_process(),
    })
}

/// Closes a device.
pub unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let offset = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    // SAFETY: The verbs contract: the last use of a context whose objects are gone. The kernel
    // forgets it with the last of all descriptors and mappings.
    unsafe {
        let context = context.byte_sub(offset).cast::<Context>();
        verbs_uninit_context(&raw mut (*context).verbs);
        ptr::drop_in_place(&raw mut (*context).own);
        libc::free(context.cast());
    }
}

/// Attributes of the device.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let mut resp = ib_uverbs_ex_query_device_resp::default();
    let mut resp_size = size_of_val(&resp);
    // SAFETY: The verbs contract.
    let error = unsafe {
        ibv_cmd_query_device_any(
            context,
            input,
            attr,
            attr_size,
            &raw mut resp,
            &raw mut resp_size,
        )
    };
    if error != 0 {
        return error;
    }
    let version = resp.fw_ver();
    // SAFETY: The attributes were just written, and begin with the version; at most its size is
    // written, with a NUL.
    unsafe {
        let text = &raw mut (*attr).fw_ver;
        libc::snprintf(
            text.cast(),
            size_of_val(&*text),
            c"%u.%u.%u".as_ptr(),
            (version >> 32) as u32 & 0xffff,
            (version >> 16) as u32 & 0xffff,
            version as u32 & 0xffff,
        );
    }
    0
}

/// Attributes of a port.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut Opaque,
) -> c_int {
    let mut cmd = ibv_query_port::default();
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_query_port(context, port, attr, &raw mut cmd, size_of_val(&cmd)) }
}

/// What the clock of the device shows: nanoseconds.
///
/// # Safety
///
/// As for the verbs: an open context.
unsafe fn clock(context: *mut ibv_context) -> Result<u64, c_int> {
    let mut shown = QueryClockResponse::default();
    let mut method = Method::new(
        UVERBS_OBJECT_DEVICE,
        DRIVER_NS,
        [attribute(
            DRIVER_NS,
            (&raw mut shown).expose_provenance() as u64,
            size_of::<QueryClockResponse>() as u16,
        )],
    );
    // SAFETY: By contract; the method's attribute is memory of this function.
    match unsafe { execute_ioctl(context, method.as_raw()) } {
        0 => Ok(shown.time),
        // The driver is older than the method.
        libc::EPROTONOSUPPORT => Err(libc::EOPNOTSUPP),
        error => Err(error),
    }
}

/// The time of day: nanoseconds.
fn time_of_day() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: Fills in the structure; that clock is always there.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec)
        .cast_unsigned()
}

/// The time of day when the clock of the device showed 0. It is early, by less than a question to the
/// device takes, so that no time stamp is one of the future.
///
/// # Safety
///
/// As for the verbs: an open context.
pub unsafe fn epoch(context: *mut ibv_context) -> Result<u64, c_int> {
    let (mut soonest, mut epoch) = (u64::MAX, 0);
    for _ in 0..QUESTIONS {
        let before = time_of_day();
        // SAFETY: By contract.
        let shown = unsafe { clock(context) }?;
        let took = time_of_day().wrapping_sub(before);
        if took < soonest {
            (soonest, epoch) = (took, before.wrapping_sub(shown));
        }
    }
    Ok(epoch)
}

/// What changes all the time: the clock by which completions are stamped. All of it is in the
/// nanoseconds of the answer, where programs that know other devices look for it.
pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: The verbs contract: the caller's alone for the time of the call.
    let values = unsafe { &mut *values };
    match values.comp_mask {
        0 => 0,
        // SAFETY: The verbs contract.
        IBV_VALUES_MASK_RAW_CLOCK => match unsafe { clock(context) } {
            Ok(shown) => {
                values.raw_clock.tv_sec = 0;
                values.raw_clock.tv_nsec = shown.cast_signed();
                0
            }
            Err(error) => error,
        },
        _ => libc::EINVAL,
    }
}
