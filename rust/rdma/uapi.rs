// SPDX-License-Identifier: GPL-2.0

//! What a driver adds to the uverbs methods of the core (`struct uapi_definition`).
//!
//! What a process needs that imports objects of another one:
//!
//! - An attribute of `QUERY_CONTEXT`, which returns what the driver answered when the context was
//!   created.
//! - A method of protection domains that does nothing but fail if there is no such domain.
//!
//! Each is the first of those that are a driver's to define, and so is the domain's attribute.
//!
//! The structures are those of `include/rdma/uverbs_ioctl.h`. Those with unions and bit fields are
//! written down again, for bindgen's cannot be constants.

use core::{
    marker::PhantomData,
    ptr, //
};

use kernel::prelude::*;

use crate::{
    bindings,
    device::Operations,
    ucontext::UserContext, //
};

/// The first number that is a driver's to define.
const OURS: u16 = 1 << bindings::UVERBS_ID_NS_SHIFT;

/// Attribute of `QUERY_CONTEXT`.
pub(crate) const CONTEXT_RESPONSE: u16 = OURS;

/// `struct uverbs_attr_def`.
#[repr(C)]
pub(crate) struct Attribute {
    id: u16,
    spec: Specification,
}

/// `struct uverbs_attr_spec`.
#[repr(C)]
struct Specification {
    kind: u8,
    flags: u8,
    /// Of a pointer: bytes, and how many there must be. Of an object: its type, and the access.
    u: [u16; 2],
    u2: u64,
}

/// `uverbs_attr_spec.zero_trailing`: what the caller has room for beyond the length is zeroed.
const ZERO_TRAILING: u8 = 1 << 0;

/// `uverbs_attr_spec.mandatory`: the method is refused without the attribute.
const MANDATORY: u8 = 1 << 2;

impl Attribute {
    /// Memory of the caller that is filled with `length` bytes, or as many as it has room for.
    pub(crate) const fn out(id: u16, length: usize) -> Self {
        assert!(length <= u16::MAX as usize);
        Self {
            id,
            spec: Specification {
                // CAST: A small constant, and checked above.
                kind: bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_OUT as u8,
                flags: ZERO_TRAILING | MANDATORY,
                u: [length as u16, 0],
                u2: 0,
            },
        }
    }

    /// An object of the calling process, which exists until the method is over.
    pub(crate) const fn object(id: u16, kind: bindings::uverbs_default_objects) -> Self {
        // CAST: Small constants.
        let access = bindings::uverbs_obj_access_UVERBS_ACCESS_READ as u8;
        Self {
            id,
            spec: Specification {
                kind: bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_IDR as u8,
                flags: MANDATORY,
                u: [kind as u16, u16::from_ne_bytes([access, 0])],
                u2: 0,
            },
        }
    }
}

/// A method whose attributes are all there is to it: the core has looked for the objects.
///
/// # Safety
///
/// None; the type is that of a method.
unsafe extern "C" fn nothing(_attributes: *mut bindings::uverbs_attr_bundle) -> c_int {
    0
}

/// `struct uapi_definition`.
#[repr(C)]
pub(crate) struct Definition {
    kind: u8,
    scope: u8,
    object: u16,
    unused: [u16; 2],
    tree: *const bindings::uverbs_object_def,
}

impl Definition {
    /// The methods that are added to those of an object.
    const fn methods_of(tree: &'static bindings::uverbs_object_def) -> Self {
        Self {
            // CAST: A small constant.
            kind: bindings::uapi_definition_kind_UAPI_DEF_CHAIN_OBJ_TREE as u8,
            scope: 0,
            object: tree.id,
            unused: [0; 2],
            tree,
        }
    }
}

/// A method, or attributes that are added to it if `handler` is [`None`].
const fn method(
    id: u16,
    attributes: &'static [&'static Attribute],
    handler: Option<unsafe extern "C" fn(*mut bindings::uverbs_attr_bundle) -> c_int>,
) -> bindings::uverbs_method_def {
    bindings::uverbs_method_def {
        id,
        flags: 0,
        num_attrs: attributes.len(),
        attrs: attributes.as_ptr().cast(),
        handler,
    }
}

/// Methods that are added to an object.
const fn object(
    id: u16,
    methods: &'static [&'static bindings::uverbs_method_def],
) -> bindings::uverbs_object_def {
    bindings::uverbs_object_def {
        id,
        type_attrs: ptr::null(),
        num_methods: methods.len(),
        methods: methods.as_ptr().cast(),
    }
}

static_assert!(size_of::<Attribute>() == size_of::<bindings::uverbs_attr_def>());
static_assert!(size_of::<Specification>() == size_of::<bindings::uverbs_attr_spec>());
static_assert!(size_of::<Definition>() == size_of::<bindings::uapi_definition>());

/// The definitions of a driver.
pub(crate) struct Definitions<T: Operations>(PhantomData<T>);

impl<T: Operations> Definitions<T> {
    const QUERY_CONTEXT: &'static bindings::uverbs_method_def = &method(
        bindings::uverbs_methods_device_UVERBS_METHOD_QUERY_CONTEXT as u16,
        &[&Attribute::out(
            CONTEXT_RESPONSE,
            size_of::<<T::UserContext as UserContext>::Response>(),
        )],
        // The core's.
        None,
    );

    const FIND_PD: &'static bindings::uverbs_method_def = &method(
        OURS,
        &[&Attribute::object(
            OURS,
            bindings::uverbs_default_objects_UVERBS_OBJECT_PD,
        )],
        Some(nothing),
    );

    const TABLE: &'static [Definition; 3] = &[
        Definition::methods_of(&object(
            bindings::uverbs_default_objects_UVERBS_OBJECT_DEVICE as u16,
            &[Self::QUERY_CONTEXT],
        )),
        Definition::methods_of(&object(
            bindings::uverbs_default_objects_UVERBS_OBJECT_PD as u16,
            &[Self::FIND_PD],
        )),
        Definition {
            kind: bindings::uapi_definition_kind_UAPI_DEF_END as u8,
            scope: 0,
            object: 0,
            unused: [0; 2],
            tree: ptr::null(),
        },
    ];

    /// The table, as `struct ib_device` names it; it is never written and lives for ever.
    pub(crate) const fn as_raw() -> *const bindings::uapi_definition {
        ptr::from_ref(Self::TABLE).cast()
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(rdma_uapi)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_laid_out_as_in_c() {
        let attribute = Attribute::out(CONTEXT_RESPONSE, 32);
        // SAFETY: The structure is as large, and any bytes are one.
        let raw = unsafe { &*ptr::from_ref(&attribute).cast::<bindings::uverbs_attr_def>() };
        assert_eq!(raw.id, 1 << 12);
        assert_eq!(
            u32::from(raw.attr.type_),
            bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_OUT
        );
        assert_eq!((raw.attr.mandatory(), raw.attr.zero_trailing()), (1, 1));
        assert_eq!((raw.attr.alloc_and_copy(), raw.attr.is_udata()), (0, 0));
        // SAFETY: The attribute is a pointer.
        let length = unsafe { raw.attr.u.ptr.as_ref() };
        assert_eq!((length.len, length.min_len), (32, 0));

        let attribute = Attribute::object(OURS, bindings::uverbs_default_objects_UVERBS_OBJECT_PD);
        // SAFETY: As above.
        let raw = unsafe { &*ptr::from_ref(&attribute).cast::<bindings::uverbs_attr_def>() };
        assert_eq!(
            u32::from(raw.attr.type_),
            bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_IDR
        );
        assert_eq!((raw.attr.mandatory(), raw.attr.zero_trailing()), (1, 0));
        // SAFETY: The attribute is an object.
        let kind = unsafe { raw.attr.u.obj.as_ref() };
        assert_eq!(
            (kind.obj_type.into(), kind.access.into()),
            (
                bindings::uverbs_default_objects_UVERBS_OBJECT_PD,
                bindings::uverbs_obj_access_UVERBS_ACCESS_READ
            )
        );
    }
}
