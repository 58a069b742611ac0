// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! An open device.

use super::{OPERATIONS, provider};
use crate::doorbell::Doorbell;
use crate::ffi::Opaque;
use crate::ffi::abi::{ContextRoom, verbs_context};
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
use vrnic_wire::abi::ioctl;
use vrnic_wire::abi::{
    AllocContextRequest, AllocContextResponse, CONTEXT_NULL_KEY, DRIVER_ID, QueryClockResponse,
    QueryDeviceResponse,
};
use vrnic_wire::notify;

/// Number of doorbell slots of a context, which limits the queue pairs that a process can have per
/// open device. As many as fit a page.
const SLOTS: u32 = 16384;
const _: () = assert!(notify::is_valid_slot_count(SLOTS) && notify::area_length(SLOTS) <= 4096);

/// How many times the device is asked for its time; the fastest answer counts.
const QUESTIONS: u32 = 5;

/// A context: the part of libibverbs and our own. libibverbs allocates it zeroed.
#[repr(C)]
pub struct Context {
    verbs: ContextRoom,
    /// Set while the context is open.
    own: Option<Own>,
}

struct Own {
    doorbell: Doorbell,
    /// Holds the notify area; must outlive the doorbell.
    _area: Mapping,
    max_inline: u32,
    null_key: Option<u32>,
    /// Queue pair types that can fill in and check checksums, as bits.
    checksum_types: u32,
    /// Queue pair types that can send in segments, as bits.
    segmentation_types: u32,
    patience: Patience,
}

impl Context {
    /// Returns where the part of libibverbs begins, as an offset.
    fn offset() -> usize {
        offset_of!(Self, verbs) + ContextRoom::start(provider::level())
    }

    /// Returns the beginning of the part of libibverbs.
    ///
    /// # Safety
    ///
    /// `context` was allocated by libibverbs.
    unsafe fn start(context: *mut Self) -> *mut verbs_context {
        // SAFETY: By contract; the offset is within the context.
        unsafe { context.byte_add(Self::offset()) }.cast()
    }

    /// Returns our part of a context of libibverbs.
    ///
    /// # Safety
    ///
    /// `context` came from [`alloc_context`] and is open as long as the result is used.
    unsafe fn own<'a>(context: *mut ibv_context) -> &'a Own {
        let offset = offset_of!(Self, verbs) + offset_of!(ContextRoom, context);
        // SAFETY: `context` is that member of a `Context`. Our part is written only when the
        // context is opened and closed.
        let own = unsafe { &(*context.byte_sub(offset).cast::<Self>()).own };
        own.as_ref().expect("the context is open")
    }

    /// Returns the doorbell of this context.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context, which stays open as long as the result is used.
    pub unsafe fn doorbell<'a>(context: *mut ibv_context) -> &'a Doorbell {
        // SAFETY: By contract.
        unsafe { &Self::own(context).doorbell }
    }

    /// Returns how long to poll unsuccessfully before yielding the CPU.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context.
    pub unsafe fn patience(context: *mut ibv_context) -> Patience {
        // SAFETY: By contract.
        unsafe { Self::own(context).patience.clone() }
    }

    /// Returns the key of memory that reads as zeros and discards writes, if the device has one.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context.
    pub unsafe fn null_key(context: *mut ibv_context) -> Option<u32> {
        // SAFETY: By contract.
        unsafe { Self::own(context).null_key }
    }

    /// Returns whether queue pairs of a type can fill in and check the checksums of IP packets.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context.
    pub unsafe fn has_checksums(context: *mut ibv_context, qp_type: c_int) -> bool {
        // SAFETY: By contract.
        has_type(unsafe { Self::own(context).checksum_types }, qp_type)
    }

    /// Returns whether queue pairs of a type can send in segments.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context.
    pub unsafe fn has_segmentation(context: *mut ibv_context, qp_type: c_int) -> bool {
        // SAFETY: By contract.
        has_type(unsafe { Self::own(context).segmentation_types }, qp_type)
    }

    /// Returns the largest number of inline bytes in a send entry.
    ///
    /// # Safety
    ///
    /// The verbs contract: an open context.
    pub unsafe fn max_inline(context: *mut ibv_context) -> u32 {
        // SAFETY: By contract.
        unsafe { Self::own(context).max_inline }
    }
}

/// Returns whether a set of queue pair types, as bits, contains a type.
fn has_type(types: u32, qp_type: c_int) -> bool {
    let bit = 1_u32.checked_shl(qp_type.cast_unsigned());
    bit.is_some_and(|bit| types & bit != 0)
}

/// Opens a device. Takes ownership of `cmd_fd` in any case.
pub unsafe extern "C" fn alloc_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
    _private_data: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: The verbs contract.
    unsafe { make(device, cmd_fd, create) }
}

/// Joins a context that is already open, often in another process. Takes ownership of `cmd_fd` in
/// any case.
///
/// Both processes share one context in the kernel, and so on the device: one doorbell page and one
/// notify area. A context has no other state; the device assigns the slots.
pub unsafe extern "C" fn import_context(
    device: *mut ibv_device,
    cmd_fd: c_int,
) -> *mut verbs_context {
    // SAFETY: The verbs contract.
    unsafe { make(device, cmd_fd, query) }
}

/// Creates our side of a context; `ask` gets its parameters from the kernel.
///
/// # Safety
///
/// The verbs contract; `ask` is called with a new context.
unsafe fn make(
    device: *mut ibv_device,
    cmd_fd: c_int,
    ask: unsafe fn(*mut Context) -> Result<AllocContextResponse, c_int>,
) -> *mut verbs_context {
    // SAFETY: The verbs contract; the offset, given as a pointer, leaves room for the structure at
    // the level of the library. On failure, the function has closed the descriptor.
    let context = unsafe {
        _verbs_init_and_alloc_context(
            device,
            cmd_fd,
            size_of::<Context>(),
            ptr::without_provenance_mut(Context::offset()),
            DRIVER_ID,
        )
    }
    .cast::<Context>();
    if context.is_null() {
        return ptr::null_mut();
    }

    // SAFETY: A new context, which is not used elsewhere yet; `own` is valid, zeroed memory.
    unsafe {
        let verbs = Context::start(context);
        match ask(context).and_then(|granted| open((*context).verbs.context.cmd_fd, &granted)) {
            Ok(own) => {
                (&raw mut (*context).own).write(Some(own));
                let operations = OPERATIONS.at(provider::level().number);
                verbs_set_ops(verbs, operations.as_ptr());
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
/// `context` is a new context.
unsafe fn create(context: *mut Context) -> Result<AllocContextResponse, c_int> {
    let mut cmd = WithDriver::<ibv_get_context, _>::new(AllocContextRequest {
        comp_mask: 0,
        slots: SLOTS,
    });
    let mut resp = WithDriver::<ib_uverbs_get_context_resp, AllocContextResponse>::default();

    // SAFETY: Command and response are followed by the driver's parts, and the sizes include them.
    let error = unsafe {
        ibv_cmd_get_context(
            Context::start(context),
            &raw mut cmd.core,
            size_of_val(&cmd),
            #[cfg(feature = "pabi57")]
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

/// Queries an existing context of the kernel.
///
/// # Safety
///
/// `context` is a new context, whose descriptor has a context in the kernel.
unsafe fn query(context: *mut Context) -> Result<AllocContextResponse, c_int> {
    let mut granted = AllocContextResponse::default();
    let mut method = Method::new(
        UVERBS_OBJECT_DEVICE,
        UVERBS_METHOD_QUERY_CONTEXT,
        [attribute(
            DRIVER_NS + ioctl::QUERY_CONTEXT_ATTR_RESP,
            (&raw mut granted).expose_provenance() as u64,
            size_of::<AllocContextResponse>() as u16,
        )],
    );
    // SAFETY: The method's attribute refers to memory of this function.
    let error =
        unsafe { ibv_cmd_query_context(&raw mut (*context).verbs.context, method.as_raw()) };
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
    // SAFETY: The area is mapped for reading and writing. It is kept next to the doorbell and
    // dropped after it.
    let doorbell = Doorbell::new(unsafe { area.shared() }, page);
    Ok(Own {
        doorbell,
        _area: area,
        max_inline: granted.max_inline_data,
        null_key: (granted.comp_mask & CONTEXT_NULL_KEY != 0).then_some(granted.null_key),
        checksum_types: granted.checksum_types,
        segmentation_types: granted.segmentation_types,
        patience: Patience::of_this_process(),
    })
}

/// Closes a device.
pub unsafe extern "C" fn free_context(context: *mut ibv_context) {
    let offset = offset_of!(Context, verbs) + offset_of!(ContextRoom, context);
    // SAFETY: The verbs contract: the last use of a context without objects. The kernel drops its
    // context with the last descriptor and mapping.
    unsafe {
        let context = context.byte_sub(offset).cast::<Context>();
        verbs_uninit_context(Context::start(context));
        ptr::drop_in_place(&raw mut (*context).own);
        libc::free(context.cast());
    }
}

/// Queries the attributes of the device.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    let mut resp =
        WithDriver::<ib_uverbs_ex_query_device_resp, _>::new(QueryDeviceResponse::default());
    let mut resp_size = size_of_val(&resp);
    // SAFETY: The verbs contract.
    let error = unsafe {
        ibv_cmd_query_device_any(
            context,
            input,
            attr,
            attr_size,
            &raw mut resp.core,
            &raw mut resp_size,
        )
    };
    if error != 0 {
        return error;
    }
    if attr_size >= size_of::<ibv_device_attr_ex>() {
        // The response of an older driver is still all zeros.
        let QueryDeviceResponse {
            min_rate_limit,
            max_rate_limit,
            rate_limit_types,
            max_segmented_length,
            segmentation_types,
            hash_fields,
            ..
        } = resp.driver;
        // SAFETY: There is room for these members.
        unsafe {
            (*attr).tso_caps = ibv_tso_caps {
                max_tso: max_segmented_length,
                supported_qpts: segmentation_types,
            };
            // The kernel knows the rest.
            (*attr).rss_caps.rx_hash_fields_mask = hash_fields.into();
            if hash_fields != 0 {
                (*attr).rss_caps.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ;
            }
            (*attr).packet_pacing_caps = ibv_packet_pacing_caps {
                qp_rate_limit_min: min_rate_limit,
                qp_rate_limit_max: max_rate_limit,
                supported_qpts: rate_limit_types,
            };
        }
    }
    let version = resp.core.fw_ver();
    // SAFETY: The attributes have just been written, and begin with the version. At most its size
    // is written, including a NUL.
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

/// Queries the attributes of a port.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut Opaque,
) -> c_int {
    let mut cmd = ibv_query_port::default();
    // SAFETY: The verbs contract.
    unsafe { ibv_cmd_query_port(context, port, attr, &raw mut cmd, size_of_val(&cmd)) }
}

/// Queries the speed of a port, in units of 100 Mb/s.
pub unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    let mut method = Method::new(
        UVERBS_OBJECT_DEVICE,
        UVERBS_METHOD_QUERY_PORT_SPEED,
        [
            attribute(
                UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM,
                port.into(),
                // Constants have this length, whatever their type is.
                size_of::<u64>() as u16,
            ),
            attribute(
                UVERBS_ATTR_QUERY_PORT_SPEED_RESP,
                speed.expose_provenance() as u64,
                size_of::<u64>() as u16,
            ),
        ],
    );
    // SAFETY: The verbs contract; `speed` is valid during the call.
    unsafe { execute_ioctl(context, method.as_raw()) }
}

/// Returns the device's clock in nanoseconds.
///
/// # Safety
///
/// The verbs contract: an open context.
unsafe fn clock(context: *mut ibv_context) -> Result<u64, c_int> {
    let mut shown = QueryClockResponse::default();
    let mut method = Method::new(
        UVERBS_OBJECT_DEVICE,
        DRIVER_NS + ioctl::METHOD_QUERY_CLOCK,
        [attribute(
            DRIVER_NS + ioctl::QUERY_CLOCK_ATTR_RESP,
            (&raw mut shown).expose_provenance() as u64,
            size_of::<QueryClockResponse>() as u16,
        )],
    );
    // SAFETY: By contract; the method's attribute refers to memory of this function.
    match unsafe { execute_ioctl(context, method.as_raw()) } {
        0 => Ok(shown.time),
        // The driver does not have this method yet.
        libc::EPROTONOSUPPORT => Err(libc::EOPNOTSUPP),
        error => Err(error),
    }
}

/// Returns the time of day in nanoseconds.
fn time_of_day() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: The call fills in the structure; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    now.tv_sec
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec)
        .cast_unsigned()
}

/// Returns the time of day at which the device's clock showed 0. The result is early, by less than
/// a query of the device takes, so that no timestamp lies in the future.
///
/// # Safety
///
/// The verbs contract: an open context.
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

/// Queries volatile values: the clock of the completion timestamps. Its value is entirely in
/// `tv_nsec`, where programs written for other devices expect it.
pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: The verbs contract: only the caller uses it during the call.
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
