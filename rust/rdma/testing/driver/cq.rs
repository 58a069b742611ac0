// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use core::sync::atomic::Ordering::SeqCst;

use kernel::prelude::*;

use super::{
    note_buffer,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    cq::{
        CompletionQueue,
        Cq,
        CqInitAttr,
        NewCq, //
    },
    device::Call,
    restrack::Details,
    udata::User,
    umem::Buffer,
    wc, //
};

#[vtable]
impl CompletionQueue for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type ResizeRequest = u64;

    fn create_user(
        call: &Call<'_, TestDriver>,
        attributes: &CqInitAttr,
        user: User<'_, TestDriver, u64, Buffer<'_>>,
    ) -> Result<NewCq<impl PinInit<Self>, u64>> {
        note_buffer(call, &user)?;
        call.data()
            .note(Asked::Queue(*attributes, Some(user.request)));
        let object = Object::new(call);
        Ok(NewCq {
            number: object.number,
            init: object,
            response: !user.request,
            entries: attributes.entries + 1,
        })
    }

    fn create(
        call: &Call<'_, TestDriver>,
        attributes: &CqInitAttr,
    ) -> Result<NewCq<impl PinInit<Self>, ()>> {
        call.data().note(Asked::Queue(*attributes, None));
        let object = Object::new(call);
        Ok(NewCq {
            number: object.number,
            init: object,
            response: (),
            entries: attributes.entries + 1,
        })
    }

    fn destroy(cq: &Cq<Self>, call: &Call<'_, TestDriver>) {
        call.data().raise(cq);
        Object::destroy(cq);
    }

    fn resize(
        cq: &Cq<Self>,
        call: &Call<'_, TestDriver>,
        entries: u32,
        user: User<'_, TestDriver, u64>,
    ) -> Result {
        call.data().note(Asked::Resize(entries, user.request));
        cq.set_entries(entries + 2);
        Ok(())
    }

    fn moderate(_cq: &Cq<Self>, call: &Call<'_, TestDriver>, count: u16, period: u16) -> Result {
        call.data().note(Asked::Moderate(count, period));
        Ok(())
    }

    fn poll(_cq: &Cq<Self>, call: &Call<'_, TestDriver>, out: &mut wc::Completions<'_>) -> Result {
        let completion = wc::Completion {
            qpn: call.data().completing.load(SeqCst),
            status: wc::Status::Success,
            opcode: wc::Opcode::Send,
            vendor_error: 0,
            byte_length: 0,
            extra: None,
            source: None,
            checksums_ok: false,
        };
        let mut posted = call.data().posted.lock();
        while !posted.is_empty() && !out.is_full() {
            let next = match call.data().backwards.load(SeqCst) {
                true => posted.len() - 1,
                false => 0,
            };
            let request = posted.remove(next).map_err(|_| EINVAL)?;
            // Completions that are rejected are dropped.
            let _ = out.push(request, &completion);
        }
        Ok(())
    }

    fn request_notify(
        cq: &Cq<Self>,
        call: &Call<'_, TestDriver>,
        solicited_only: bool,
    ) -> Result<bool> {
        call.data().note(Asked::Notify { solicited_only });
        call.data().raise(cq);
        Ok(true)
    }

    fn fill_details(cq: &Cq<Self>, details: &mut Details<'_>) -> Result {
        cq.describe(details)
    }
}
