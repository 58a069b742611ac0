// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! `libibverbs/cmd_ioctl.h`: uverbs methods with attributes, as far as importing, the clock, the
//! speed of a port, device memory and completion counters need them.

use core::ptr;

c_struct!(
    /// An attribute of a method.
    ib_uverbs_attr {
        attr_id: u16,
        len: u16,
        flags: u16,
        attr_data: u16,
        data: u64,
    }
);

/// [`ib_uverbs_attr::flags`]: the kernel must know the attribute.
pub const UVERBS_ATTR_F_MANDATORY: u16 = 1 << 0;

c_struct!(
    /// Header in front of the attributes.
    ib_uverbs_ioctl_hdr {
        length: u16,
        object_id: u16,
        method_id: u16,
        num_attrs: u16,
        reserved1: u64,
        driver_id: u32,
        reserved2: u32,
    }
);

/// A method under construction; the attributes follow.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct ibv_command_buffer {
    next: *mut Self,
    next_attr: *mut ib_uverbs_attr,
    last_attr: *mut ib_uverbs_attr,
    uhw_in_idx: u8,
    uhw_out_idx: u8,
    uhw_in_headroom_dwords: u8,
    uhw_out_headroom_dwords: u8,
    flags: u8,
    hdr: ib_uverbs_ioctl_hdr,
}

impl ibv_command_buffer {
    /// For comparison with the C header.
    pub const LAYOUT: super::Layout = super::Layout {
        name: "struct ibv_command_buffer",
        size: size_of::<Self>(),
        align: align_of::<Self>(),
        members: &[
            ("next", core::mem::offset_of!(Self, next)),
            ("next_attr", core::mem::offset_of!(Self, next_attr)),
            ("last_attr", core::mem::offset_of!(Self, last_attr)),
            ("uhw_in_idx", core::mem::offset_of!(Self, uhw_in_idx)),
            ("uhw_out_idx", core::mem::offset_of!(Self, uhw_out_idx)),
            ("hdr", core::mem::offset_of!(Self, hdr)),
            ("hdr.attrs", size_of::<Self>()),
        ],
    };
}

/// Kinds of objects and their methods, `enum uverbs_default_objects` and what follows it.
pub const UVERBS_OBJECT_DEVICE: u16 = 0;
/// A protection domain.
pub const UVERBS_OBJECT_PD: u16 = 1;
/// Device memory.
pub const UVERBS_OBJECT_DM: u16 = 14;
/// A completion counter, at level 18 and newer.
#[cfg(any(feature = "pabi65", test))]
pub const UVERBS_OBJECT_COMP_CNTR: u16 = 19;
/// Returns the driver's response from the creation of the context.
pub const UVERBS_METHOD_QUERY_CONTEXT: u16 = 4;
/// Returns the speed of a port, at level 16 and newer.
pub const UVERBS_METHOD_QUERY_PORT_SPEED: u16 = 7;
/// Attribute of that method: the number of the port, as a value.
pub const UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM: u16 = 0;
/// Attribute of that method: where the kernel puts the speed.
pub const UVERBS_ATTR_QUERY_PORT_SPEED_RESP: u16 = 1;
/// First number of the driver's own methods and attributes.
pub const DRIVER_NS: u16 = 1 << 12;
/// Index of an absent attribute.
const NO_INDEX: u8 = 0xff;

/// Returns an attribute: an object's handle in `data`, a value of `length` bytes in `data`, or the
/// address in `data` of `length` bytes that the kernel fills.
pub fn attribute(number: u16, data: u64, length: u16) -> ib_uverbs_attr {
    ib_uverbs_attr {
        attr_id: number,
        len: length,
        flags: UVERBS_ATTR_F_MANDATORY,
        attr_data: 0,
        data,
    }
}

/// A method with its attributes.
#[repr(C)]
pub struct Method<const ATTRIBUTES: usize> {
    buffer: ibv_command_buffer,
    attributes: [ib_uverbs_attr; ATTRIBUTES],
}

impl<const ATTRIBUTES: usize> Method<ATTRIBUTES> {
    /// Creates the method `method` of `object`.
    pub fn new(object: u16, method: u16, attributes: [ib_uverbs_attr; ATTRIBUTES]) -> Self {
        Self {
            buffer: ibv_command_buffer {
                next: ptr::null_mut(),
                next_attr: ptr::null_mut(),
                last_attr: ptr::null_mut(),
                uhw_in_idx: NO_INDEX,
                uhw_out_idx: NO_INDEX,
                uhw_in_headroom_dwords: 0,
                uhw_out_headroom_dwords: 0,
                flags: 0,
                hdr: ib_uverbs_ioctl_hdr {
                    length: 0,
                    object_id: object,
                    method_id: method,
                    num_attrs: 0,
                    reserved1: 0,
                    driver_id: 0,
                    reserved2: 0,
                },
            },
            attributes,
        }
    }

    /// Returns the method in the form that libibverbs takes. The method must not be moved until it
    /// has been executed.
    pub fn as_raw(&mut self) -> *mut ibv_command_buffer {
        const {
            assert!(core::mem::offset_of!(Self, attributes) == size_of::<ibv_command_buffer>());
        };
        let this = ptr::from_mut(self);
        // SAFETY: The pointers are within `self` or one past its end, and derived from a pointer to
        // all of it.
        unsafe {
            let first = (&raw mut (*this).attributes).cast::<ib_uverbs_attr>();
            let end = first.add(ATTRIBUTES);
            (*this).buffer.next_attr = end;
            (*this).buffer.last_attr = end;
        }
        this.cast()
    }
}

/// Every structure of this module.
pub const LAYOUTS: &[super::Layout] = &[
    ib_uverbs_attr::LAYOUT,
    ib_uverbs_ioctl_hdr::LAYOUT,
    ibv_command_buffer::LAYOUT,
];
