// SPDX-License-Identifier: GPL-2.0

//! Completion counters (`ibv_create_comp_cntr`), which count completed operations of queue pairs.

use kernel::{
    impl_flags,
    prelude::*, //
};

use crate::{
    bindings,
    device::{
        Call,
        Operations, //
    },
    object::{
        blank,
        core_object,
        Sole,
        Vacant, //
    },
    qp::Qp,
    ucontext::Ucontext,
    verb::Verb, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

c_enum! {
    /// One of the two values of a counter (`enum ib_comp_cntr_entry`).
    pub enum Entry: bindings::ib_comp_cntr_entry {
        /// The number of operations that succeeded.
        Completions = bindings::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_COMP,
        /// The number of operations that failed.
        Errors = bindings::ib_comp_cntr_entry_IB_COMP_CNTR_ENTRY_ERR,
    }
}

/// A change of a value (`enum ib_comp_cntr_modify_op`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Replaces the value.
    Set(u64),
    /// Adds to the value.
    Add(u64),
}

impl Change {
    fn from_raw(operation: bindings::ib_comp_cntr_modify_op, value: u64) -> Result<Self> {
        match operation {
            bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_SET => Ok(Self::Set(value)),
            bindings::ib_comp_cntr_modify_op_IB_COMP_CNTR_MODIFY_OP_INC => Ok(Self::Add(value)),
            _ => Err(EINVAL),
        }
    }
}

impl_flags!(
    /// A set of operations of a queue pair (`enum ib_qp_attach_comp_cntr_op`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct CountedOperations(u32);

    /// An operation that can be counted.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum CountedOperation {
        /// Sends.
        Send = bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_SEND,
        /// Receives.
        Receive = bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RECV,
        /// RDMA reads.
        Read = bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        /// RDMA reads by the peer.
        RemoteRead = bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
        /// RDMA writes.
        Write = bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        /// RDMA writes by the peer.
        RemoteWrite =
            bindings::ib_qp_attach_comp_cntr_op_IB_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
    }
);

/// What the completion counters of a device can do (`struct ib_comp_cntr_caps`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// Largest value of a counter, after which it wraps.
    pub max_value: u64,
    /// Number of counters.
    pub max_counters: u32,
    /// Operations that can be counted.
    pub operations: CountedOperations,
}

/// A completion counter (`struct ib_comp_cntr`).
///
/// The driver and its provider agree on how a process finds the values in memory.
pub trait CompletionCounter: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<CompletionCounter = Self>;

    /// Whether the driver has completion counters; `false` only for
    /// [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Returns what the counters of the device can do; `EOPNOTSUPP` if it has none.
    fn capabilities(call: &Call<'_, Self::Driver>) -> Result<Capabilities>;

    /// Creates a counter of a process, whose values are 0. May sleep.
    fn create(
        call: &Call<'_, Self::Driver>,
        context: &Ucontext<<Self::Driver as Operations>::UserContext>,
    ) -> Result<impl PinInit<Self>>;

    /// Changes a value.
    fn modify(
        counter: &CompCntr<Self>,
        call: &Call<'_, Self::Driver>,
        entry: Entry,
        change: Change,
    ) -> Result;

    /// Returns a value.
    fn read(counter: &CompCntr<Self>, call: &Call<'_, Self::Driver>, entry: Entry) -> Result<u64>;

    /// Makes the counter count operations of a queue pair of the same process, until the queue pair
    /// is destroyed. There is at least one operation, and no other counter of the queue pair counts
    /// any of them.
    fn attach(
        counter: &CompCntr<Self>,
        call: &Call<'_, Self::Driver>,
        qp: &Qp<<Self::Driver as Operations>::QueuePair>,
        operations: CountedOperations,
    ) -> Result;

    /// Removes the counter, which no queue pair has any more, from the hardware; then it is
    /// dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(counter: &CompCntr<Self>, call: &Call<'_, Self::Driver>);
}

impl CountedOperations {
    /// All operations.
    pub const ALL: Self = Self(Self::all_bits());

    /// Converts operations from C. Unknown ones are rejected with `EOPNOTSUPP`.
    fn from_raw(raw: u32) -> Result<Self> {
        if raw & !Self::all_bits() != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Self(raw))
    }

    /// Returns the operations in the encoding of the verbs.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

core_object! {
    /// A completion counter: `struct ib_comp_cntr` and the driver's part.
    CompCntr<CompletionCounter>, ib_comp_cntr
}

/// # Safety
///
/// `device` must be a registered device of `T`, and `caps` valid for writes.
pub(crate) unsafe extern "C" fn capabilities_callback<T: Operations>(
    device: *mut bindings::ib_device,
    caps: *mut bindings::ib_comp_cntr_caps,
    _bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: Guaranteed by the caller.
    let verb = unsafe { Verb::<T>::new(device) };
    // SAFETY: The capabilities belong to this call.
    let caps = unsafe { blank(caps) };

    verb.run(|call| {
        let own = T::CompletionCounter::capabilities(call)?;
        caps.max_value = own.max_value;
        caps.max_counters = own.max_counters;
        caps.supported_qp_attach_ops = own.operations.bits();
        Ok(())
    })
}

/// # Safety
///
/// `counter` must be a new counter of a device of `T`, and `bundle` belong to this call of a
/// process.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    counter: *mut bindings::ib_comp_cntr,
    bundle: *mut bindings::uverbs_attr_bundle,
) -> c_int {
    // SAFETY: The core set the device of the counter. Only processes have counters.
    let verb = unsafe { Verb::<T>::by_process((*counter).device) };
    // SAFETY: The core set the context of the call, which is constructed and not deallocated during
    // the call.
    let context = unsafe {
        let context = (*bundle).__bindgen_anon_1.__bindgen_anon_1.context;
        Ucontext::<T::UserContext>::from_raw(context)
    };
    // SAFETY: The counter is that of this verb, which creates it.
    let vacant = unsafe { Vacant::<CompCntr<T::CompletionCounter>>::new(counter) };

    verb.run(|call| {
        let init = T::CompletionCounter::create(call, context)?;
        vacant.construct((), init);
        Ok(())
    })
}

/// # Safety
///
/// `counter` must be a constructed counter of a device of `T`.
pub(crate) unsafe extern "C" fn modify_callback<T: Operations>(
    counter: *mut bindings::ib_comp_cntr,
    entry: bindings::ib_comp_cntr_entry,
    operation: bindings::ib_comp_cntr_modify_op,
    value: u64,
) -> c_int {
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: The counter is constructed, and not destroyed during the call.
    let counter = unsafe { CompCntr::<T::CompletionCounter>::from_raw(counter) };

    verb.run(|call| {
        let (entry, change) = (Entry::try_from(entry)?, Change::from_raw(operation, value)?);
        T::CompletionCounter::modify(counter, call, entry, change)
    })
}

/// # Safety
///
/// `counter` must be a constructed counter of a device of `T`, and `value` valid for writes.
pub(crate) unsafe extern "C" fn read_callback<T: Operations>(
    counter: *mut bindings::ib_comp_cntr,
    entry: bindings::ib_comp_cntr_entry,
    value: *mut u64,
) -> c_int {
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: The counter is constructed, and not destroyed during the call.
    let counter = unsafe { CompCntr::<T::CompletionCounter>::from_raw(counter) };
    // SAFETY: The value belongs to this call.
    let value = unsafe { blank(value) };

    verb.run(|call| {
        *value = T::CompletionCounter::read(counter, call, Entry::try_from(entry)?)?;
        Ok(())
    })
}

/// # Safety
///
/// `qp` must be a constructed queue pair and `counter` a constructed counter of a device of `T`,
/// and `attr` valid.
pub(crate) unsafe extern "C" fn attach_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    counter: *mut bindings::ib_comp_cntr,
    attr: *mut bindings::ib_qp_attach_comp_cntr_attr,
) -> c_int {
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: Both are constructed, and not destroyed during the call. The core only passes queue
    // pairs of the driver, not those that it opens itself.
    let (qp, counter) = unsafe {
        (
            Qp::<T::QueuePair>::from_raw(qp),
            CompCntr::<T::CompletionCounter>::from_raw(counter),
        )
    };
    // SAFETY: The attributes are valid during the call.
    let operations = CountedOperations::from_raw(unsafe { (*attr).op_mask });

    verb.run(|call| T::CompletionCounter::attach(counter, call, qp, operations?))
}

/// # Safety
///
/// `counter` must be a constructed counter of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    counter: *mut bindings::ib_comp_cntr,
) -> c_int {
    // SAFETY: The core set the device of the counter.
    let verb = unsafe { Verb::<T>::new((*counter).device) };
    // SAFETY: The counter is that of this verb, which succeeds.
    let counter = unsafe { Sole::<CompCntr<T::CompletionCounter>>::new(counter) };

    verb.run(|call| {
        T::CompletionCounter::destroy(&counter, call);
        counter.end();
        Ok(())
    })
}
