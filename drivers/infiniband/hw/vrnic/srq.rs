// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    restrack::Details,
    srq::{
        NewSrq,
        SrqAttr,
        XrcSrq, //
    },
    udata::Caller,
    umem::Buffer,
    wr::ReceiveRequests,
    SharedReceiveQueue,
    Umem,
    User, //
};
use virtio::SharedMemory;
use vrnic_wire::{
    abi,
    command::{
        CreateSrq,
        CreateXrcSrq,
        DestroySrq,
        DeviceLimits,
        ModifySrq,
        QuerySrq,
        ResizeSrq, //
    },
    ring::RingLayout,
    work::{
        receive_stride,
        RECEIVE_DATA_OFFSET, //
    }, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    kernel_srq::SharedReceives,
    object::{
        create,
        Object, //
    },
    page_list::{
        pin_buffer,
        pin_ring,
        PageListBuffer, //
    },
    pd::Pd,
    ring::{
        entries_for,
        Layout, //
    },
    udata::{
        CreateSrqRequest,
        CreateSrqResponse, //
    },
    wqe, //
};

/// Length of a scatter/gather element in bytes.
const SGE: u32 = size_of::<vrnic_wire::work::Sge>() as u32;

/// A shared receive queue.
#[pin_data]
pub(crate) struct Srq {
    // Fields are dropped in declaration order: the device stops using the ring first.
    object: Object<DestroySrq>,
    max_sge: u32,
    /// The ring of a queue of the kernel; [`None`] for a process's queue.
    kernel: Option<Arc<SharedReceives>>,
    /// Pinned memory of a process's ring. Held while the queue moves to a new ring.
    #[pin]
    memory: Mutex<Option<Umem>>,
}

impl Srq {
    /// Returns the receives that the kernel posted; `EOPNOTSUPP` for a process's queue.
    pub(crate) fn receives(&self) -> Result<&Arc<SharedReceives>> {
        self.kernel.as_ref().ok_or(EOPNOTSUPP)
    }
}

/// Checks the ring that a process provides, and returns its capacity.
pub(crate) fn user_layout(
    request: &abi::CreateSrqRequest,
    max_wr: u32,
    max_sge: u32,
    limits: &DeviceLimits,
) -> Result<(RingLayout, SrqAttr)> {
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
    let given = SrqAttr {
        max_wr: ring.entries.get(),
        max_sge: (room / SGE).min(limits.max_recv_sge.get()),
        limit: 0,
    };
    if given.max_sge < max_sge {
        return Err(EINVAL);
    }
    Ok((ring, given))
}

/// Lays out the ring of a queue of the kernel, and returns its capacity.
fn kernel_layout(asked: &SrqAttr, limits: &DeviceLimits) -> Result<(RingLayout, SrqAttr)> {
    if asked.max_wr == 0 || asked.max_sge > limits.max_recv_sge.get() {
        return Err(EINVAL);
    }
    let given = SrqAttr {
        max_wr: entries_for(asked.max_wr, limits.max_qp_entries.get())?,
        ..*asked
    };
    let ring = Layout::new().place(given.max_wr, receive_stride(given.max_sge))?;
    Ok((ring, given))
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
        attributes: &SrqAttr,
        xrc: Option<XrcSrq<'_, Vrnic>>,
        user: Caller<Vrnic, User<'_, Vrnic, CreateSrqRequest, Buffer<'_>>>,
    ) -> Result<NewSrq<impl PinInit<Self>, CreateSrqResponse>> {
        let limits = &call.data().limits;
        if limits.max_srq.get() == 0 {
            return Err(EOPNOTSUPP);
        }
        let (mut kernel, mut memory) = (None, None);
        let (context, ring, given, pages) = match user {
            Some(user) => {
                let CreateSrqRequest(request) = user.request;
                let (ring, given) =
                    user_layout(&request, attributes.max_wr, attributes.max_sge, limits)?;
                let (umem, pages) =
                    pin_buffer(call, &user.buffer, request.buf_addr, request.buf_length)?;
                memory = Some(umem);
                (user.context.number(), ring, given, pages)
            }
            None => {
                let (ring, given) = kernel_layout(attributes, limits)?;
                let shared = SharedMemory::new(call.data().dma(), usize::try_from(ring.end())?)?;
                let pages = PageListBuffer::of_shared(call.data().dma(), &shared)?;
                let receives = SharedReceives::new(shared, ring)?;
                kernel = Some(Arc::pin_init(receives, GFP_KERNEL)?);
                (call.data().context.number(), ring, given, pages)
            }
        };
        let control = &call.data().control;
        let request = CreateSrq {
            context: context.into(),
            pd: pd.number().into(),
            max_sge: given.max_sge.into(),
            ring,
            pages: pages.list(),
            ..Default::default()
        };
        let (object, _) = match xrc {
            None => create(control, &request)?,
            Some(xrc) => create(
                control,
                &CreateXrcSrq {
                    srq: request,
                    xrcdn: xrc.xrcd.number().into(),
                    cqn: xrc.cq.number().into(),
                },
            )?,
        };
        let response = abi::CreateSrqResponse {
            srqn: object.number(),
            ..Default::default()
        };

        Ok(NewSrq {
            init: pin_init!(Self {
                object,
                max_sge: given.max_sge,
                kernel,
                memory <- new_mutex!(memory),
            }),
            response: CreateSrqResponse(response),
            number: response.srqn,
            attributes: given,
        })
    }

    fn resize(
        srq: &rdma::Srq<Self>,
        call: &Call<'_>,
        max_wr: u32,
        user: Caller<Vrnic, User<'_, Vrnic, CreateSrqRequest>>,
    ) -> Result {
        let CreateSrqRequest(request) = user.ok_or(EOPNOTSUPP)?.request;
        let (ring, _) = user_layout(&request, max_wr, srq.max_sge, &call.data().limits)?;
        let (umem, pages) = pin_ring(call, request.buf_addr, request.buf_length)?;

        let mut memory = srq.memory.lock();
        call.data().control.execute(&ResizeSrq {
            srqn: srq.number().into(),
            ring,
            pages: pages.list(),
            ..Default::default()
        })?;
        // The device no longer uses the old ring.
        *memory = Some(umem);
        Ok(())
    }

    fn set_limit(srq: &rdma::Srq<Self>, call: &Call<'_>, limit: u32) -> Result {
        call.data().control.execute(&ModifySrq {
            srqn: srq.number().into(),
            limit: limit.into(),
        })?;
        Ok(())
    }

    fn query(srq: &rdma::Srq<Self>, call: &Call<'_>) -> Result<SrqAttr> {
        let reply = call.data().control.execute(&QuerySrq {
            srqn: srq.number().into(),
            ..Default::default()
        })?;
        Ok(SrqAttr {
            max_wr: reply.entries.get(),
            max_sge: reply.max_sge.get(),
            limit: reply.limit.get(),
        })
    }

    fn destroy(srq: &rdma::Srq<Self>, _call: &Call<'_>) {
        srq.object.destroy();
    }

    fn post_recv(
        srq: &rdma::Srq<Self>,
        _call: &Call<'_>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        let receives = srq.receives()?;
        let memory = &receives.memory;
        let mut ring = receives.ring.lock();

        let result = requests.try_for_each(|request| {
            let (entry, name) = ring.next_entry()?;
            let room = wqe::write_receive(memory, entry, name, &request, srq.max_sge)?;
            ring.advance(request.post(), room);
            Ok(())
        });
        // Requests before an invalid one are posted. The device checks the ring when a message
        // arrives.
        ring.publish(memory)?;
        result
    }

    fn fill_details(srq: &rdma::Srq<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"srqn", srq.number())?;
        details.number(c"max_sge", srq.max_sge)?;
        if let Ok(receives) = srq.receives() {
            let producer = receives.ring.lock().producer();
            details.hex(c"producer", producer)?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_srq)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_the_kernel_hold_what_was_asked_for() -> Result {
        let limits = DeviceLimits {
            max_qp_entries: 64.into(),
            max_recv_sge: 4.into(),
            ..Default::default()
        };
        let asked = SrqAttr {
            max_wr: 33,
            max_sge: 3,
            limit: 0,
        };
        let with = |max_wr, max_sge| {
            let asked = SrqAttr {
                max_wr,
                max_sge,
                ..asked
            };
            kernel_layout(&asked, &limits)
        };

        let (ring, given) = with(33, 3)?;
        assert_eq!((given.max_wr, given.max_sge), (64, 3));
        assert!(ring.is_valid(ring.end()) && ring.entries.get() == 64);
        assert_eq!(with(0, 3).err(), Some(EINVAL));
        assert_eq!(with(65, 3).err(), Some(EINVAL));
        assert_eq!(with(8, 5).err(), Some(EINVAL));
        Ok(())
    }

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
        let given = SrqAttr {
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
