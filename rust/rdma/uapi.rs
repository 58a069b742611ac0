// SPDX-License-Identifier: GPL-2.0

//! Methods and attributes that a driver adds to the ioctl interface (`struct uapi_definition`).
//!
//! A driver may define methods of its own on the core's objects ([`Method`], listed in
//! [`Operations::USER_METHODS`]), and attributes of its own for the core's method `QUERY_CONTEXT`
//! ([`UserContext::QUERY_ATTRIBUTES`]). It numbers both from 0. Processes see these numbers offset
//! by `1 << UVERBS_ID_NS_SHIFT`, where the drivers' range begins
//! (`include/uapi/rdma/ib_user_ioctl_cmds.h`).
//!
//! The structures are those of `include/rdma/uverbs_ioctl.h`. Structures with unions and bit fields
//! are redefined here, because bindgen's versions cannot be used in constants.

use core::{
    ffi::c_void,
    marker::PhantomData,
    mem::MaybeUninit,
    ptr, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*, //
};

use crate::{
    ah::Ah,
    bindings,
    comp_cntr::CompCntr,
    cq::Cq,
    device::{
        Call,
        Operations, //
    },
    dm::Dm,
    mr::Mr,
    mw::Mw,
    pd::Pd,
    qp::Qp,
    srq::Srq,
    ucontext::UserContext,
    udata::{
        check_request,
        Request,
        Response, //
    },
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// The first number in the drivers' range.
const OURS: u16 = 1 << bindings::UVERBS_ID_NS_SHIFT;

c_enum! {
    /// Type of object that a method belongs to (`enum uverbs_default_objects`).
    pub enum Kind: bindings::uverbs_default_objects {
        /// The device, for which there are no handles.
        Device = bindings::uverbs_default_objects_UVERBS_OBJECT_DEVICE,
        /// Protection domains.
        ProtectionDomain = bindings::uverbs_default_objects_UVERBS_OBJECT_PD,
        /// Completion queues.
        CompletionQueue = bindings::uverbs_default_objects_UVERBS_OBJECT_CQ,
        /// Queue pairs.
        QueuePair = bindings::uverbs_default_objects_UVERBS_OBJECT_QP,
        /// Shared receive queues.
        SharedReceiveQueue = bindings::uverbs_default_objects_UVERBS_OBJECT_SRQ,
        /// Address handles.
        AddressHandle = bindings::uverbs_default_objects_UVERBS_OBJECT_AH,
        /// Memory regions.
        MemoryRegion = bindings::uverbs_default_objects_UVERBS_OBJECT_MR,
        /// Memory windows.
        MemoryWindow = bindings::uverbs_default_objects_UVERBS_OBJECT_MW,
        /// Device memory.
        DeviceMemory = bindings::uverbs_default_objects_UVERBS_OBJECT_DM,
        /// Completion counters.
        CompletionCounter = bindings::uverbs_default_objects_UVERBS_OBJECT_COMP_CNTR,
    }
}

impl Kind {
    /// Returns the number in the type of C's structures.
    const fn id(self) -> u16 {
        // CAST: Small constants.
        self.raw() as u16
    }
}

/// An attribute of a method (`struct uverbs_attr_def`). It is mandatory, unless it is
/// [`optional`](Self::optional).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AttrDef {
    id: u16,
    spec: Specification,
}

/// `struct uverbs_attr_spec`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(C)]
struct Specification {
    kind: u8,
    flags: u8,
    /// For a pointer: its length in bytes, and the minimum length. For an object: its type, and the
    /// kind of access.
    u: [u16; 2],
    u2: u64,
}

/// `uverbs_attr_spec.zero_trailing`: room beyond the length in an output is zeroed, and bytes
/// beyond the length in an input must be zero.
const ZERO_TRAILING: u8 = 1 << 0;

/// `uverbs_attr_spec.mandatory`: a call without the attribute is rejected.
const MANDATORY: u8 = 1 << 2;

// CAST: Small constants.
const OUT: u8 = bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_OUT as u8;
const IN: u8 = bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_PTR_IN as u8;
const OBJECT: u8 = bindings::uverbs_attr_type_UVERBS_ATTR_TYPE_IDR as u8;

impl AttrDef {
    const fn new(number: u16, kind: u8, flags: u8, u: [u16; 2]) -> Self {
        // The core has keys for this many (`UVERBS_API_ATTR_KEY_BITS`), half of them for drivers.
        assert!(number < 31);
        Self {
            id: OURS + number,
            spec: Specification {
                kind,
                flags: flags | MANDATORY,
                u,
                u2: 0,
            },
        }
    }

    /// Creates an attribute for output: an `R` that is written to the caller's memory, truncated to
    /// the room there.
    pub const fn output<R: Response>(number: u16) -> Self {
        let length = size_of::<R>();
        assert!(length <= u16::MAX as usize);
        // CAST: Checked above.
        Self::new(number, OUT, ZERO_TRAILING, [length as u16, 0])
    }

    /// Creates an attribute for input: an `R` from the caller. The rules for shorter and longer
    /// inputs are those of [`Request`].
    pub const fn input<R: Request>(number: u16) -> Self {
        let length = size_of::<R>();
        assert!(length <= u16::MAX as usize && R::MINIMUM <= length);
        // CAST: Checked above.
        Self::new(
            number,
            IN,
            ZERO_TRAILING,
            [length as u16, R::MINIMUM as u16],
        )
    }

    /// Creates an attribute for an object of the calling process, which stays alive during the
    /// method. The device is not allowed: the core has no handles for it and would dereference a
    /// null pointer.
    pub const fn object<O: NamedObject>(number: u16) -> Self {
        // CAST: A small constant.
        let access = bindings::uverbs_obj_access_UVERBS_ACCESS_READ as u8;
        Self::new(
            number,
            OBJECT,
            0,
            [O::KIND.id(), u16::from_ne_bytes([access, 0])],
        )
    }

    /// Makes the attribute optional.
    pub const fn optional(mut self) -> Self {
        self.spec.flags &= !MANDATORY;
        self
    }
}

/// The attributes of a call of a method by a process.
///
/// # Invariants
///
/// `bundle` belongs to a method call on a device of `T`, which does not end during `'a`. Its driver
/// attributes are `declared`.
pub struct AttrBundle<'a, T: Operations> {
    bundle: *mut bindings::uverbs_attr_bundle,
    declared: &'static [&'static AttrDef],
    _call: PhantomData<(&'a (), T)>,
}

impl<T: Operations> AttrBundle<'_, T> {
    /// # Safety
    ///
    /// The arguments must satisfy the type invariants.
    pub(crate) unsafe fn new(
        bundle: *mut bindings::uverbs_attr_bundle,
        declared: &'static [&'static AttrDef],
    ) -> Self {
        // INVARIANT: Guaranteed by the caller.
        Self {
            bundle,
            declared,
            _call: PhantomData,
        }
    }

    /// Returns the number of an attribute; `EINVAL` if the method does not declare it.
    fn find(&self, attribute: &AttrDef, kind: u8) -> Result<u16> {
        if attribute.spec.kind != kind || !self.declared.contains(&attribute) {
            return Err(EINVAL);
        }
        Ok(attribute.id)
    }

    /// Returns whether an attribute is present.
    pub fn has(&self, attribute: &AttrDef) -> bool {
        self.declared.contains(&attribute)
            // SAFETY: The bundle is valid by the type invariant.
            && unsafe { bindings::uverbs_attr_is_valid(self.bundle, attribute.id.into()) }
    }

    /// Writes an [output](AttrDef::output). Does nothing if an optional one is absent.
    ///
    /// Returns `EINVAL` if the method has no such attribute.
    pub fn put<R: Response>(&self, attribute: &AttrDef, value: &R) -> Result {
        let id = self.find(attribute, OUT)?;
        if !self.has(attribute) {
            return Ok(());
        }
        // SAFETY: The bundle is valid by the type invariant, and the attribute is a pointer. By
        // `IntoBytes`, the value has no uninitialised bytes.
        to_result(unsafe {
            bindings::uverbs_copy_to_struct_or_zero(
                self.bundle,
                id.into(),
                ptr::from_ref(value).cast(),
                size_of::<R>(),
            )
        })
    }

    /// Reads an [input](AttrDef::input); [`None`] if an optional one is absent.
    ///
    /// Returns `EINVAL` if the method has no such attribute.
    pub fn get<R: Request>(&self, attribute: &AttrDef) -> Result<Option<R>> {
        let id = self.find(attribute, IN)?;
        if !self.has(attribute) {
            return Ok(None);
        }
        let mut value = MaybeUninit::<R>::zeroed();
        // SAFETY: The bundle is valid by the type invariant, and the attribute is a pointer; there
        // is room for an `R`.
        to_result(unsafe {
            bindings::_uverbs_copy_from_or_zero(
                value.as_mut_ptr().cast(),
                self.bundle,
                id.into(),
                size_of::<R>(),
            )
        })?;
        // SAFETY: All bytes are initialised, by `zeroed`, and any bytes are an `R: FromBytes`.
        let value = unsafe { value.assume_init() };
        check_request(&value)?;
        Ok(Some(value))
    }

    /// Returns the [object](AttrDef::object) that an attribute refers to; [`None`] if an optional
    /// one is absent.
    ///
    /// Returns `EINVAL` if the method has no such attribute, or if the attribute is for another
    /// kind of object.
    pub fn named<O: NamedObject<Driver = T>>(&self, attribute: &AttrDef) -> Result<Option<&O>> {
        let id = self.find(attribute, OBJECT)?;
        if attribute.spec.u[0] != O::KIND.id() {
            return Err(EINVAL);
        }
        if !self.has(attribute) {
            return Ok(None);
        }
        // SAFETY: The bundle is valid by the type invariant. The attribute is an object of this
        // kind and of the device of the call, and the core keeps the object until the method ends.
        Ok(Some(unsafe {
            O::from_object(bindings::uverbs_attr_get_obj(self.bundle, id))
        }))
    }
}

mod sealed {
    /// Conversion from the core's pointer to an object.
    pub trait FromObject {
        /// # Safety
        ///
        /// `object` must be the core's pointer to a constructed object of a process, which does not
        /// go away during `'a`.
        unsafe fn from_object<'a>(object: *mut core::ffi::c_void) -> &'a Self;
    }
}

/// An object to which processes have handles: [`Pd`], [`Cq`], [`Qp`], [`Srq`], [`Ah`], [`Mr`],
/// [`Mw`], [`Dm`] or [`CompCntr`].
pub trait NamedObject: sealed::FromObject {
    /// The driver.
    type Driver: Operations;

    /// The kind of object.
    const KIND: Kind;
}

macro_rules! from_object {
    ($($name:ident<$object:ident>,)*) => {
        $(
            impl<O: crate::$object> sealed::FromObject for $name<O> {
                unsafe fn from_object<'a>(object: *mut c_void) -> &'a Self {
                    // SAFETY: Guaranteed by the caller.
                    unsafe { Self::from_raw(object.cast()) }
                }
            }
        )*
    };
}

from_object! {
    Pd<ProtectionDomain>,
    Cq<CompletionQueue>,
    Srq<SharedReceiveQueue>,
    Ah<AddressHandle>,
    Mr<MemoryRegion>,
    Mw<MemoryWindow>,
    Dm<DmBuffer>,
    CompCntr<CompletionCounter>,
}

impl<O: crate::QueuePair> sealed::FromObject for Qp<O> {
    unsafe fn from_object<'a>(object: *mut c_void) -> &'a Self {
        // SAFETY: Guaranteed by the caller. If a target queue pair was opened by number, the core
        // has an object of its own that refers to the driver's.
        unsafe { Self::from_raw((*object.cast::<bindings::ib_qp>()).real_qp) }
    }
}

macro_rules! named_object {
    ($($name:ident<$object:ident>: $kind:ident,)*) => {
        $(
            impl<T, O> NamedObject for $name<O>
            where
                T: Operations<$object = O>,
                O: crate::$object<Driver = T>,
            {
                type Driver = T;

                const KIND: Kind = Kind::$kind;
            }
        )*
    };
}

named_object! {
    Pd<ProtectionDomain>: ProtectionDomain,
    Cq<CompletionQueue>: CompletionQueue,
    Qp<QueuePair>: QueuePair,
    Srq<SharedReceiveQueue>: SharedReceiveQueue,
    Ah<AddressHandle>: AddressHandle,
    Mr<MemoryRegion>: MemoryRegion,
    Mw<MemoryWindow>: MemoryWindow,
    Dm<DmBuffer>: DeviceMemory,
    CompCntr<CompletionCounter>: CompletionCounter,
}

/// A driver's own method that processes can call (`struct uverbs_method_def`).
pub trait Method: Sized + 'static {
    /// The driver.
    type Driver: Operations;

    /// The kind of object that the method belongs to.
    const OBJECT: Kind;
    /// The method's number, unique among the driver's methods for this kind of object.
    const NUMBER: u16;
    /// The method's attributes, which must have distinct numbers.
    const ATTRIBUTES: &'static [&'static AttrDef];

    /// Executes the method, which a process called. May sleep.
    fn call(call: &Call<'_, Self::Driver>, attributes: &AttrBundle<'_, Self::Driver>) -> Result;
}

/// Calls a method.
///
/// # Safety
///
/// `bundle` must belong to a call of this method in a context of a device of its driver.
unsafe extern "C" fn method_callback<M: Method>(
    bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The bundle is that of this call of a process.
    let context = unsafe {
        let ufile = (*bundle).__bindgen_anon_1.__bindgen_anon_1.ufile;
        from_err_ptr(bindings::ib_uverbs_get_ucontext_file(ufile))
    };
    let context = match context {
        Ok(context) => context,
        Err(err) => return err.to_errno(),
    };
    // SAFETY: A context is of the device whose method the process calls. The device stays
    // registered during the call.
    let verb = unsafe { Verb::<M::Driver>::by_process((*context).device) };
    // SAFETY: The attributes of the call are those that the method declares.
    let attributes = unsafe { AttrBundle::new(bundle, M::ATTRIBUTES) };

    verb.run(|call| M::call(call, &attributes))
}

/// Something that driver `T` adds to the interface for processes; see [`Addition::method`].
pub struct Addition<T>(Definition, PhantomData<fn() -> T>);

impl<T: Operations> Addition<T> {
    /// Adds a method.
    pub const fn method<M: Method<Driver = T>>() -> Self {
        Self(Definition::methods_of(Added::<M>::TREE), PhantomData)
    }
}

/// The structures of a method.
struct Added<M>(PhantomData<M>);

impl<M: Method> Added<M> {
    const METHOD: &'static bindings::uverbs_method_def = {
        // `UVERBS_API_METHOD_KEY_NUM_DRIVER`.
        assert!(M::NUMBER < 8);
        &method(OURS + M::NUMBER, M::ATTRIBUTES, Some(method_callback::<M>))
    };

    const TREE: &'static bindings::uverbs_object_def = &object(M::OBJECT.id(), &[Self::METHOD]);
}

/// `struct uapi_definition`.
#[derive(Copy, Clone)]
#[repr(C)]
pub(crate) struct Definition {
    kind: u8,
    scope: u8,
    object: u16,
    unused: [u16; 2],
    tree: *const bindings::uverbs_object_def,
}

impl Definition {
    /// The end of a table.
    const END: Self = Self {
        // CAST: A small constant.
        kind: bindings::uapi_definition_kind_UAPI_DEF_END as u8,
        scope: 0,
        object: 0,
        unused: [0; 2],
        tree: ptr::null(),
    };

    /// Adds methods to those of an object.
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

/// Defines a method, or attributes to add to an existing method if `handler` is [`None`].
const fn method(
    id: u16,
    attributes: &'static [&'static AttrDef],
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

/// Defines methods to add to an object.
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

static_assert!(size_of::<AttrDef>() == size_of::<bindings::uverbs_attr_def>());
static_assert!(size_of::<Specification>() == size_of::<bindings::uverbs_attr_spec>());
static_assert!(size_of::<Definition>() == size_of::<bindings::uapi_definition>());

/// The definitions of a driver.
pub(crate) struct Definitions<T: Operations>(PhantomData<T>);

/// Maximum number of definitions of a driver, including the end marker.
const CAPACITY: usize = 32;

impl<T: Operations> Definitions<T> {
    const QUERY_CONTEXT: &'static bindings::uverbs_method_def = &method(
        // CAST: A small constant.
        bindings::uverbs_methods_device_UVERBS_METHOD_QUERY_CONTEXT as u16,
        T::UserContext::QUERY_ATTRIBUTES,
        // The method has the core's handler.
        None,
    );

    const DEVICE: &'static bindings::uverbs_object_def =
        &object(Kind::Device.id(), &[Self::QUERY_CONTEXT]);

    const TABLE: &'static [Definition; CAPACITY] = &{
        let added = T::USER_METHODS;
        let mut table = [Definition::END; CAPACITY];
        let mut count = 0;

        if T::UserContext::HAS_QUERY && !T::UserContext::QUERY_ATTRIBUTES.is_empty() {
            table[count] = Definition::methods_of(Self::DEVICE);
            count += 1;
        }
        let mut next = 0;
        while next < added.len() {
            assert!(count < CAPACITY - 1, "too many methods");
            table[count] = added[next].0;
            count += 1;
            next += 1;
        }
        table
    };

    /// Returns the table for `struct ib_device`. It is never written and lives forever.
    pub(crate) const fn as_raw() -> *const bindings::uapi_definition {
        ptr::from_ref(Self::TABLE).cast()
    }
}
