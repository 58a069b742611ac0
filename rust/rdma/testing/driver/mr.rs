// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use core::{
    ops::Range,
    sync::atomic::Ordering::SeqCst, //
};

use kernel::{
    dma::DmaAddress,
    prelude::*, //
};

use super::{
    keys,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    access::AccessFlags,
    device::Call,
    dm::{
        Dm,
        DmRange, //
    },
    dmah::Dmah,
    integrity::{
        IntegrityError,
        Part,
        Pieces, //
    },
    mr::{
        self,
        MemoryRegion,
        Mr,
        MrChange,
        NewMr, //
    },
    odp::{
        Memory,
        Pager, //
    },
    pd::Pd,
    restrack::Details,
    udata::User,
    wr::Sge, //
};

fn new_region<R>(call: &Call<'_, TestDriver>, response: R) -> NewMr<Object, R> {
    let object = Object::new(call);
    let (lkey, rkey) = keys(object.number);
    NewMr {
        init: object,
        response,
        lkey,
        rkey,
    }
}

#[vtable]
impl MemoryRegion for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;

    fn register_user(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        range: &mr::Range,
        access: AccessFlags,
        handle: Option<&Dmah<Self>>,
        user: User<'_, TestDriver, u64>,
    ) -> Result<NewMr<impl PinInit<Self>, u64>> {
        let handle = handle.map(|handle| handle.number);
        call.data()
            .note(Asked::Region(*range, access, handle, user.request));
        Ok(new_region(call, !user.request))
    }

    fn register_dma_buf(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        range: &mr::DmaBufRange,
        access: AccessFlags,
        handle: Option<&Dmah<Self>>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        let handle = handle.map(|handle| handle.number);
        call.data().note(Asked::DmaBuf(*range, access, handle));
        Ok(new_region(call, ()))
    }

    fn register_dm(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        dm: &Dm<Self>,
        range: &DmRange,
        access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        call.data().note(Asked::DmRegion(dm.number, *range, access));
        Ok(new_region(call, ()))
    }

    fn register_dma(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        access: AccessFlags,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        call.data().note(Asked::AllMemory(access));
        Ok(new_region(call, ()))
    }

    fn allocate_fast(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        max_pages: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Fast(max_pages));
        Ok(new_region(call, ()))
    }

    fn set_page(mr: &Mr<Self>, index: u32, address: DmaAddress) -> Result {
        let page = mr.pages.get(index as usize).ok_or(ENOMEM)?;
        page.store(address, SeqCst);
        Ok(())
    }

    fn allocate_integrity(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        max_data: u32,
        max_metadata: u32,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Integrity(max_data, max_metadata));
        Ok(new_region(call, ()))
    }

    /// Stores the pieces one after the other.
    fn map_integrity(mr: &Mr<Self>, data: Pieces<'_>, metadata: Pieces<'_>) -> Result {
        if mr.log.keeps.load(SeqCst) {
            return Err(ENOMEM);
        }
        for (page, (address, _)) in mr.pages.iter().zip(Iterator::chain(data, metadata)) {
            page.store(address, SeqCst);
        }
        Ok(())
    }

    /// Finds an error in each region once.
    fn take_integrity_error(mr: &Mr<Self>) -> Result<Option<IntegrityError>> {
        let is_new = !mr.signal_all.swap(true, SeqCst);
        Ok(is_new.then_some(IntegrityError {
            part: Part::ApplicationTag,
            expected: 11,
            actual: 12,
            offset: 13,
            key: mr.number,
        }))
    }

    fn reregister(
        mr: &Mr<Self>,
        call: &Call<'_, TestDriver>,
        change: &MrChange<'_, Self>,
    ) -> Result<(u32, u32)> {
        call.data().note(Asked::Change {
            range: change.range,
            access: change.access,
            pd: change.pd.map(|pd| pd.number),
        });
        Ok(keys(mr.number + 1000))
    }

    fn advise(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        advice: mr::Advice,
        wait: bool,
        pieces: &[Sge],
    ) -> Result {
        let last = pieces.last().ok_or(ENOENT)?;
        let last = (last.address(), last.length(), last.lkey());
        call.data()
            .note(Asked::Advice(advice, wait, pieces.len(), last));
        Ok(())
    }

    fn deregister(mr: &Mr<Self>, call: &Call<'_, TestDriver>) -> Result {
        if call.data().keeps.load(SeqCst) {
            return Err(EBUSY);
        }
        mr.destroy();
        Ok(())
    }

    fn fill_details(mr: &Mr<Self>, details: &mut Details<'_>) -> Result {
        mr.describe(details)
    }
}

/// The driver claims that its device supports paging, but handles on-demand regions like others.
impl Pager for Object {
    fn forget(&self, _pages: Range<usize>) {}

    fn serve(&self, _memory: &Memory<Self>) {}
}
