// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues. Processes have them; the kernel's users get along without.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::{
    access::Access,
    restrack::Details,
    srq::{
        Attributes,
        New, //
    },
    SharedReceiveQueue,
    Umem,
    User, //
};
use vrnic_wire::{
    abi,
    command::{
        CreateSrq,
        DestroySrq,
        DeviceLimits,
        ModifySrq,
        QuerySrq,
        ResizeSrq, //
    },
    ring::RingLayout,
    work::RECEIVE_DATA_OFFSET, //
};

use crate::{
    commands::{
        create_srq,
        Object,
        PageListBuffer, //
    },
    device::{
        Call,
        Vrnic, //
    },
    memory::ring_pages,
    pd::Pd,
    udata::{
        CreateSrqRequest,
        CreateSrqResponse, //
    }, //
};

/// Bytes of a scatter/gather element.
const SGE: u32 = size_of::<vrnic_wire::work::Sge>() as u32;

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    // Fields are dropped in declaration order: the device lets go of the ring first.
    object: Object<DestroySrq>,
    max_sge: u32,
    /// The ring's memory, pinned. Held while the queue is moved to another.
    #[pin]
    memory: Mutex<Umem>,
}

/// Checks the ring that a process asks for, and says what it holds.
fn user_layout(
    request: &abi::CreateSrqRequest,
    max_wr: u32,
    max_sge: u32,
    limits: &DeviceLimits,
) -> Result<(RingLayout, Attributes)> {
    let ring = RingLayout::from(request.ring);

    if !ring.is_present()
        || !ring.is_valid(request.buf_length)
        || ring.entries.get() < max_wr
        || ring.entries.get() > limits.max_qp_entries.get()
    {
        return Err(EINVAL);
    }
    let room = ring
        .stride
        .get()
        .checked_sub(RECEIVE_DATA_OFFSET as u32)
        .ok_or(EINVAL)?;
    let given = Attributes {
        max_wr: ring.entries.get(),
        max_sge: (room / SGE).min(limits.max_recv_sge.get()),
        limit: 0,
    };
    if given.max_sge < max_sge {
        return Err(EINVAL);
    }
    Ok((ring, given))
}

/// Pins the ring of a process, and lists its pages.
fn pin(call: &Call<'_>, request: &abi::CreateSrqRequest) -> Result<(Umem, PageListBuffer)> {
    let umem = Umem::get(
        call.device,
        request.buf_addr,
        usize::try_from(request.buf_length)?,
        Access::LocalWrite.into(),
    )?;
    let pages = ring_pages(call, &umem)?;
    Ok((umem, pages))
}

#[vtable]
impl SharedReceiveQueue for Srq {
    type Driver = Vrnic;
    type Request = CreateSrqRequest;
    type Response = CreateSrqResponse;
    type ResizeRequest = CreateSrqRequest;

    fn create(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        attributes: &Attributes,
        user: Option<User<'_, Vrnic, CreateSrqRequest>>,
    ) -> Result<New<impl PinInit<Self>, CreateSrqResponse>> {
        let limits = &call.data.limits;
        if limits.max_srq.get() == 0 {
            return Err(EOPNOTSUPP);
        }
        let user = user.ok_or(EOPNOTSUPP)?;
        let CreateSrqRequest(request) = user.request;
        let (ring, given) = user_layout(&request, attributes.max_wr, attributes.max_sge, limits)?;
        let (umem, pages) = pin(call, &request)?;
        let object = create_srq(
            &call.data.control,
            &CreateSrq {
                context: user.context.number().into(),
                pd: pd.number().into(),
                max_sge: given.max_sge.into(),
                ring,
                pages: pages.list(),
                ..Default::default()
            },
        )?;
        let response = abi::CreateSrqResponse {
            srqn: object.number(),
            ..Default::default()
        };

        Ok(New {
            init: pin_init!(Self {
                object,
                max_sge: given.max_sge,
                memory <- new_mutex!(umem),
            }),
            response: CreateSrqResponse(response),
            attributes: given,
        })
    }

    fn resize(
        srq: &rdma::Srq<Self>,
        call: &Call<'_>,
        max_wr: u32,
        user: Option<User<'_, Vrnic, CreateSrqRequest>>,
    ) -> Result {
        let CreateSrqRequest(request) = user.ok_or(EOPNOTSUPP)?.request;
        let (ring, _) = user_layout(&request, max_wr, srq.max_sge, &call.data.limits)?;
        let (umem, pages) = pin(call, &request)?;

        let mut memory = srq.memory.lock();
        call.data.control.execute(&ResizeSrq {
            srqn: srq.number().into(),
            ring,
            pages: pages.list(),
            ..Default::default()
        })?;
        // The device has let go of the old ring.
        *memory = umem;
        Ok(())
    }

    fn set_limit(srq: &rdma::Srq<Self>, call: &Call<'_>, limit: u32) -> Result {
        call.data.control.execute(&ModifySrq {
            srqn: srq.number().into(),
            limit: limit.into(),
        })?;
        Ok(())
    }

    fn query(srq: &rdma::Srq<Self>, call: &Call<'_>) -> Result<Attributes> {
        let reply = call.data.control.execute(&QuerySrq {
            srqn: srq.number().into(),
            ..Default::default()
        })?;
        Ok(Attributes {
            max_wr: reply.entries.get(),
            max_sge: reply.max_sge.get(),
            limit: reply.limit.get(),
        })
    }

    fn number(&self) -> u32 {
        self.object.number()
    }

    fn destroy(srq: &rdma::Srq<Self>, _call: &Call<'_>) -> Result {
        srq.object.destroy()
    }

    fn fill_details(srq: &rdma::Srq<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"srqn", srq.number())?;
        details.number(c"max_sge", srq.max_sge)
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_srq)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_processes_are_checked() {
        let limits = DeviceLimits {
            max_qp_entries: 64.into(),
            max_recv_sge: 4.into(),
            ..Default::default()
        };
        let good = abi::CreateSrqRequest {
            buf_length: 8192,
            ring: abi::Ring {
                header_offset: 0,
                entries_offset: 128,
                entries: 32,
                stride: 128,
            },
            ..Default::default()
        };
        let with = |change: fn(&mut abi::CreateSrqRequest)| {
            let mut request = good;
            change(&mut request);
            user_layout(&request, 16, 3, &limits).map(|(_, given)| given)
        };
        let given = Attributes {
            max_wr: 32,
            max_sge: 4,
            limit: 0,
        };

        assert_eq!(with(|_| ()), Ok(given));
        assert_eq!(with(|request| request.ring.entries = 8), Err(EINVAL));
        assert_eq!(with(|request| request.ring.entries = 24), Err(EINVAL));
        assert_eq!(with(|request| request.ring.stride = 32), Err(EINVAL));
        assert_eq!(with(|request| request.buf_length = 4096), Err(EINVAL));
        assert_eq!(
            with(|request| request.ring = abi::Ring::default()),
            Err(EINVAL)
        );
        let large = |request: &mut abi::CreateSrqRequest| {
            request.buf_length = 1 << 16;
            request.ring.entries = 128;
        };
        assert_eq!(with(large), Err(EINVAL));
    }
}
