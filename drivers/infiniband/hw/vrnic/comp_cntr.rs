// SPDX-License-Identifier: GPL-2.0

//! Completion counters. The device keeps the counts, and stores them to a page of the guest's
//! memory, which the process maps to read them without a system call.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    comp_cntr::{
        Capabilities,
        Change,
        CountedOperations,
        Entry, //
    },
    mmap::Mapped,
    uapi::{
        AttrBundle,
        AttrDef,
        Kind,
        Method, //
    },
    CompletionCounter,
    Ucontext,
    UserPages, //
};
use vrnic_wire::{
    abi::{
        self,
        ioctl, //
    },
    command::{
        counted_operations,
        AttachCompletionCounter,
        CompletionCount,
        CompletionCounts,
        CountChange,
        CreateCompletionCounter,
        DestroyCompletionCounter,
        ModifyCompletionCounter,
        QueryCompletionCounter, //
    }, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    object::{
        create,
        Object, //
    },
    page_list::notify_pages,
    qp::Qp,
    ucontext::UserContext,
    udata::QueryCompCntrResponse, //
};

/// A completion counter.
pub(crate) struct CompCntr {
    // Fields are dropped in declaration order: the device stops using the page first.
    object: Object<DestroyCompletionCounter>,
    mapped: Mapped,
    pages: Arc<UserPages>,
}

/// Number of bytes of the counts.
const LENGTH: usize = size_of::<CompletionCounts>();

/// Returns the count that an entry is.
const fn count_of(entry: Entry) -> CompletionCount {
    match entry {
        Entry::Completions => CompletionCount::Completions,
        Entry::Errors => CompletionCount::Errors,
    }
}

impl CompletionCounter for CompCntr {
    type Driver = Vrnic;

    fn capabilities(call: &Call<'_>) -> Result<Capabilities> {
        match call.data().limits.max_completion_counters.get() {
            0 => Err(EOPNOTSUPP),
            max_counters => Ok(Capabilities {
                max_value: u64::MAX,
                max_counters,
                operations: CountedOperations::ALL,
            }),
        }
    }

    fn create(call: &Call<'_>, context: &Ucontext<UserContext>) -> Result<impl PinInit<Self>> {
        if call.data().limits.max_completion_counters.get() == 0 {
            return Err(EOPNOTSUPP);
        }
        let pages = Arc::new(UserPages::new(call, LENGTH)?, GFP_KERNEL)?;
        let list = notify_pages(call, &pages, LENGTH)?;
        let (object, _) = create(
            &call.data().control,
            &CreateCompletionCounter {
                context: context.number().into(),
                pages: list.list(),
                ..Default::default()
            },
        )?;
        Ok(Self {
            object,
            mapped: context.map_pages(&pages)?,
            pages,
        })
    }

    fn modify(
        counter: &rdma::CompCntr<Self>,
        call: &Call<'_>,
        entry: Entry,
        change: Change,
    ) -> Result {
        let (change, value) = match change {
            Change::Set(value) => (CountChange::Set, value),
            Change::Add(value) => (CountChange::Add, value),
        };
        call.data().control.execute(&ModifyCompletionCounter {
            counter: counter.object.number().into(),
            count: count_of(entry).raw().into(),
            change: change.raw().into(),
            value: value.into(),
        })?;
        Ok(())
    }

    fn read(counter: &rdma::CompCntr<Self>, call: &Call<'_>, entry: Entry) -> Result<u64> {
        let counts = call.data().control.execute(&QueryCompletionCounter {
            counter: counter.object.number().into(),
            ..Default::default()
        })?;
        Ok(match entry {
            Entry::Completions => counts.completions.get(),
            Entry::Errors => counts.errors.get(),
        })
    }

    fn attach(
        counter: &rdma::CompCntr<Self>,
        call: &Call<'_>,
        qp: &rdma::Qp<Qp>,
        operations: CountedOperations,
    ) -> Result {
        // The device has the verbs' encoding.
        const { assert!(counted_operations::ALL == CountedOperations::ALL.bits()) };

        call.data().control.execute(&AttachCompletionCounter {
            qpn: qp.number().into(),
            counter: counter.object.number().into(),
            operations: operations.bits().into(),
            ..Default::default()
        })?;
        Ok(())
    }

    fn destroy(counter: &rdma::CompCntr<Self>, _call: &Call<'_>) {
        counter.object.destroy();
    }
}

/// Handle of a completion counter.
const HANDLE: AttrDef =
    AttrDef::object::<rdma::CompCntr<CompCntr>>(ioctl::QUERY_COMP_CNTR_ATTR_HANDLE);

/// Response with the location of the counts.
const LOCATION: AttrDef =
    AttrDef::output::<QueryCompCntrResponse>(ioctl::QUERY_COMP_CNTR_ATTR_RESP);

/// A method on completion counters that returns the `mmap` offset of the counts.
pub(crate) struct QueryCompCntr;

impl Method for QueryCompCntr {
    type Driver = Vrnic;

    const OBJECT: Kind = Kind::CompletionCounter;
    const NUMBER: u16 = ioctl::METHOD_QUERY_COMP_CNTR;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[&HANDLE, &LOCATION];

    fn call(_call: &Call<'_>, attributes: &AttrBundle<'_, Vrnic>) -> Result {
        let counter = attributes
            .named::<rdma::CompCntr<CompCntr>>(&HANDLE)?
            .ok_or(EINVAL)?;
        let response = abi::QueryCompCntrResponse {
            map_offset: counter.mapped.offset(),
            map_length: counter.pages.len() as u64,
            ..Default::default()
        };
        attributes.put(&LOCATION, &QueryCompCntrResponse(response))
    }
}
