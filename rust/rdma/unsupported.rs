// SPDX-License-Identifier: GPL-2.0

//! Placeholder for kinds of objects, and for on-demand paging, that a device does not support.

use core::{
    convert::Infallible,
    marker::PhantomData,
    ops::Range, //
};

use kernel::prelude::*;

use crate::{
    ah::{
        self,
        AddressHandle, //
    },
    comp_cntr::{
        Capabilities,
        Change,
        CompCntr,
        CompletionCounter,
        CountedOperations,
        Entry, //
    },
    device::{
        Call,
        Operations, //
    },
    dm::DmBuffer,
    dmah::{
        DmaHandle,
        Dmah,
        Hints, //
    },
    flow::{
        Counters,
        FlowAttr,
        FlowCounters,
        FlowRule, //
    },
    mw::{
        self,
        MemoryWindow,
        Mw,
        NewMw, //
    },
    odp::{
        Memory,
        Pager, //
    },
    pd::Pd,
    qp::{
        NewQp,
        Qp, //
    },
    srq::{
        NewSrq,
        SharedReceiveQueue,
        Srq,
        SrqAttr,
        XrcSrq, //
    },
    ucontext::Ucontext,
    udata::{
        Caller,
        User, //
    },
    umem::Buffer,
    wq::{
        self,
        IndirectionTable,
        NewWq,
        Queues,
        ReceiveWorkQueue,
        RwqTable,
        WqInitAttr, //
    },
    xrc::{
        XrcDomain,
        Xrcd, //
    }, //
};

/// Placeholder for a kind of object that the devices of driver `T` do not have, or for the pager of
/// a driver without on-demand paging.
///
/// The type has no values, so no such objects exist. The operations for this kind are `NULL` in
/// `struct ib_device_ops`: the core returns `EOPNOTSUPP`, and processes can see from the device's
/// list of verbs that they are missing.
///
/// A driver without memory windows, for example, has `type MemoryWindow = Unsupported<Self>;` in
/// its implementation of [`Operations`].
pub struct Unsupported<T> {
    never: Infallible,
    _driver: PhantomData<fn() -> T>,
}

impl<T: Operations<MemoryWindow = Self>> MemoryWindow for Unsupported<T> {
    type Driver = T;
    type Request = ();
    type Response = ();

    const IS_SUPPORTED: bool = false;

    fn alloc(
        _call: &Call<'_, T>,
        _pd: &Pd<T::ProtectionDomain>,
        _ty: mw::Type,
        _user: User<'_, T, ()>,
    ) -> Result<NewMw<impl PinInit<Self>, ()>> {
        Err::<NewMw<Self, ()>, _>(EOPNOTSUPP)
    }

    fn dealloc(mw: &Mw<Self>, _call: &Call<'_, T>) {
        match mw.never {}
    }
}

impl<T: Operations<DmBuffer = Self>> DmBuffer for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn alloc(
        _call: &Call<'_, T>,
        _context: &Ucontext<T::UserContext>,
        _length: u64,
        _alignment: u32,
    ) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }
}

impl<T: Operations<DmaHandle = Self>> DmaHandle for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn alloc(_call: &Call<'_, T>, _hints: &Hints) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn dealloc(handle: &Dmah<Self>, _call: &Call<'_, T>) {
        match handle.never {}
    }
}

impl<T: Operations<CompletionCounter = Self>> CompletionCounter for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn capabilities(_call: &Call<'_, T>) -> Result<Capabilities> {
        Err(EOPNOTSUPP)
    }

    fn create(
        _call: &Call<'_, T>,
        _context: &Ucontext<T::UserContext>,
    ) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn modify(
        counter: &CompCntr<Self>,
        _call: &Call<'_, T>,
        _entry: Entry,
        _change: Change,
    ) -> Result {
        match counter.never {}
    }

    fn read(counter: &CompCntr<Self>, _call: &Call<'_, T>, _entry: Entry) -> Result<u64> {
        match counter.never {}
    }

    fn attach(
        counter: &CompCntr<Self>,
        _call: &Call<'_, T>,
        _qp: &Qp<T::QueuePair>,
        _operations: CountedOperations,
    ) -> Result {
        match counter.never {}
    }

    fn destroy(counter: &CompCntr<Self>, _call: &Call<'_, T>) {
        match counter.never {}
    }
}

#[vtable]
impl<T: Operations<SharedReceiveQueue = Self>> SharedReceiveQueue for Unsupported<T> {
    type OwnerModule = T::OwnerModule;
    type Driver = T;
    type Request = ();
    type Response = ();
    type ResizeRequest = ();

    const IS_SUPPORTED: bool = false;

    fn create(
        _call: &Call<'_, T>,
        _pd: &Pd<T::ProtectionDomain>,
        _attributes: &SrqAttr,
        _xrc: Option<XrcSrq<'_, T>>,
        _user: Caller<T, User<'_, T, (), Buffer<'_>>>,
    ) -> Result<NewSrq<impl PinInit<Self>, ()>> {
        Err::<NewSrq<Self, ()>, _>(EOPNOTSUPP)
    }

    fn destroy(srq: &Srq<Self>, _call: &Call<'_, T>) {
        match srq.never {}
    }
}

impl<T: Operations<XrcDomain = Self>> XrcDomain for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn alloc(_call: &Call<'_, T>) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn dealloc(xrcd: &Xrcd<Self>, _call: &Call<'_, T>) {
        match xrcd.never {}
    }

    fn create_target(
        _call: &Call<'_, T>,
        _xrcd: &Xrcd<Self>,
    ) -> Result<NewQp<impl PinInit<T::QueuePair>, ()>> {
        Err::<NewQp<T::QueuePair, ()>, _>(EOPNOTSUPP)
    }
}

impl<T: Operations<FlowRule = Self>> FlowRule for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn create(
        _call: &Call<'_, T>,
        _qp: &Qp<T::QueuePair>,
        _attributes: &FlowAttr<'_, T>,
    ) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn destroy(flow: &Self, _call: &Call<'_, T>) {
        match flow.never {}
    }
}

impl<T: Operations<FlowCounters = Self>> FlowCounters for Unsupported<T> {
    type Driver = T;

    const IS_SUPPORTED: bool = false;

    fn create(_call: &Call<'_, T>) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn read(counters: &Counters<Self>, _call: &Call<'_, T>, _values: &mut [u64]) -> Result {
        match counters.never {}
    }

    fn destroy(counters: &Counters<Self>, _call: &Call<'_, T>) {
        match counters.never {}
    }
}

impl<T: Operations<ReceiveWorkQueue = Self>> ReceiveWorkQueue for Unsupported<T> {
    type Driver = T;
    type Request = ();
    type Response = ();

    const IS_SUPPORTED: bool = false;

    fn create(
        _call: &Call<'_, T>,
        _pd: &Pd<T::ProtectionDomain>,
        _attributes: &WqInitAttr<'_, T>,
        _user: User<'_, T, ()>,
    ) -> Result<NewWq<impl PinInit<Self>, ()>> {
        Err::<NewWq<Self, ()>, _>(EOPNOTSUPP)
    }

    fn modify(&self, _call: &Call<'_, T>, _from: wq::State, _to: wq::State) -> Result {
        match self.never {}
    }

    fn destroy(&self, _call: &Call<'_, T>) {
        match self.never {}
    }
}

impl<T: Operations<IndirectionTable = Self>> IndirectionTable for Unsupported<T> {
    type Driver = T;
    type Request = ();

    const IS_SUPPORTED: bool = false;

    fn create(_call: &Call<'_, T>, _queues: Queues<'_, T>) -> Result<impl PinInit<Self>> {
        Err::<Self, _>(EOPNOTSUPP)
    }

    fn destroy(table: &RwqTable<Self>, _call: &Call<'_, T>) {
        match table.never {}
    }

    fn create_queue_pair(
        _call: &Call<'_, T>,
        _pd: &Pd<T::ProtectionDomain>,
        _table: &RwqTable<Self>,
        _user: User<'_, T, ()>,
    ) -> Result<NewQp<impl PinInit<T::QueuePair>, ()>> {
        Err::<NewQp<T::QueuePair, ()>, _>(EOPNOTSUPP)
    }
}

#[vtable]
impl<T: Operations<AddressHandle = Self>> AddressHandle for Unsupported<T> {
    type OwnerModule = T::OwnerModule;
    type Driver = T;
    type Request = ();
    type Response = ();

    const IS_SUPPORTED: bool = false;

    fn create(
        _call: &Call<'_, T>,
        _path: &T::Path,
        _context: ah::Context,
        _user: Caller<T, User<'_, T, ()>>,
    ) -> Result<(impl PinInit<Self>, ())> {
        Err::<(Self, ()), _>(EOPNOTSUPP)
    }
}

impl<T: Operations<Pager = Self>> Pager for Unsupported<T> {
    const IS_SUPPORTED: bool = false;

    fn forget(&self, _pages: Range<usize>) {
        match self.never {}
    }

    fn serve(&self, _memory: &Memory<Self>) {
        match self.never {}
    }
}
