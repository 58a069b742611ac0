// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use core::sync::atomic::Ordering::SeqCst;

use kernel::prelude::*;

use super::{
    dialogue,
    note_buffer,
    receive,
    Asked,
    Object,
    TestDriver, //
};
use crate::{
    ah,
    device::Call,
    pd::Pd,
    qp::{
        self,
        CreationFlag,
        NewQp,
        Qp,
        QpAttr,
        QpCap,
        QpInitAttr,
        QueuePair, //
    },
    restrack::Details,
    udata::{
        Caller,
        User, //
    },
    umem::Buffer,
    wr::{
        ReceiveRequests,
        SendRequests, //
    }, //
};

/// Sizes that every queue pair reports.
pub(crate) const CAPABILITIES: QpCap = QpCap {
    max_send_wr: 11,
    max_recv_wr: 12,
    max_send_sge: 13,
    max_recv_sge: 14,
    max_inline_data: 15,
};

#[vtable]
impl QueuePair for Object {
    type Driver = TestDriver;
    type Request = u64;
    type Response = u64;
    type ModifyRequest = ();
    type DriverType = qp::NoDriverType;

    const TYPES: &'static [qp::Type] = &[
        qp::Type::Gsi,
        qp::Type::ReliableConnection,
        qp::Type::UnreliableConnection,
        qp::Type::UnreliableDatagram,
        qp::Type::RawPacket,
        qp::Type::XrcInitiator,
    ];
    const CREATION_FLAGS: &'static [CreationFlag] = &[
        CreationFlag::Integrity,
        CreationFlag::Segments,
        CreationFlag::BlockOwnMulticast,
        CreationFlag::StripVlan,
    ];

    fn create(
        call: &Call<'_, TestDriver>,
        _pd: &Pd<Self>,
        attributes: &QpInitAttr<'_, TestDriver>,
        user: Caller<TestDriver, User<'_, TestDriver, u64, Buffer<'_>>>,
    ) -> Result<NewQp<impl PinInit<Self>, u64>> {
        user.as_ref()
            .map_or(Ok(()), |user| note_buffer(call, user))?;
        let (request, response) = dialogue(user);
        call.data().note(Asked::QueuePair {
            ty: attributes.service.ty(),
            capabilities: attributes.capabilities,
            signal_all: attributes.signal_all,
            send_cq: attributes.send_cq.number,
            recv_cq: attributes.recv_cq.map_or(0, |cq| cq.number),
            srq: attributes.srq.map(|srq| srq.number),
            flags: attributes.flags,
            request,
        });
        let object = Object::new(call);
        object.signal_all.store(attributes.signal_all, SeqCst);
        Ok(NewQp {
            number: object.number,
            init: object,
            response,
            capabilities: CAPABILITIES,
        })
    }

    fn modify(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        mask: qp::AttributeMask,
        attributes: &QpAttr<ah::Roce>,
        _request: &(),
    ) -> Result {
        call.data().note(Asked::Modify(mask, *attributes));
        Ok(())
    }

    fn query(qp: &Qp<Self>, _call: &Call<'_, TestDriver>) -> Result<qp::Description<ah::Roce>> {
        Ok(qp::Description {
            attributes: QpAttr {
                dest_qpn: qp.number(),
                ..Default::default()
            },
            capabilities: CAPABILITIES,
            signal_all: qp.signal_all.load(SeqCst),
        })
    }

    fn destroy(qp: &Qp<Self>, _call: &Call<'_, TestDriver>) {
        Object::destroy(qp);
    }

    fn attach_multicast(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        group: &qp::MulticastGroup,
    ) -> Result {
        call.data().note(Asked::Attach(*group));
        Ok(())
    }

    fn detach_multicast(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        group: &qp::MulticastGroup,
    ) -> Result {
        call.data().note(Asked::Detach(*group));
        Ok(())
    }

    fn post_send(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut SendRequests<'_, TestDriver>,
    ) -> Result {
        let mut count = 0;
        requests.try_for_each(|request| {
            count += 1;
            let request = request.post();
            call.data().note(Asked::Send(count, request.wr_id));
            call.data().posted.lock().push_within_capacity(request)?;
            Ok(())
        })
    }

    fn post_recv(
        _qp: &Qp<Self>,
        call: &Call<'_, TestDriver>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        receive(call, requests)
    }

    fn fill_details(qp: &Qp<Self>, details: &mut Details<'_>) -> Result {
        qp.describe(details)
    }
}
