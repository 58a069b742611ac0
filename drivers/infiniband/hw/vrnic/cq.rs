// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use kernel::{
    prelude::*,
    sync::{
        new_spinlock_irq,
        Arc,
        SpinLockIrq, //
    }, //
};
use rdma::{
    access::Access,
    cq::{
        Attributes,
        Buffer,
        New, //
    },
    restrack::Details,
    wc::Completions,
    CompletionQueue,
    Umem,
    User, //
};
use virtio::SharedMemory;
use vrnic_wire::{
    abi,
    command::{
        CreateCq,
        DestroyCq, //
    },
    completion::CQE_STRIDE,
    ring::RingLayout, //
};

use crate::{
    commands::{
        create_cq,
        Object,
        PageListBuffer, //
    },
    device::{
        Call,
        Vrnic, //
    },
    memory::ring_pages,
    polled::{
        Polled,
        Room, //
    },
    ring::{
        entries_for,
        CompletionRing,
        Layout, //
    },
    udata::{
        CreateCqRequest,
        CreateCqResponse, //
    },
    work::{
        KernelRings,
        Side, //
    }, //
};

/// Completions have a time stamp in any case, so asking for it changes nothing.
const FLAG_TIMESTAMP: u32 = 1 << 0;

/// A queue that the kernel polls.
#[pin_data]
struct KernelQueue {
    /// May be taken in any context, and before the locks of the dispatcher and of work rings.
    #[pin]
    polled: SpinLockIrq<Polled>,
}

/// Whose ring it is.
enum Ring {
    /// A process polls it; the memory is pinned.
    User { _umem: Umem },
    /// The kernel polls it.
    Kernel(Pin<KBox<KernelQueue>>),
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    // Fields are dropped in declaration order: the device lets go of the ring first.
    object: Object<DestroyCq>,
    ring: Ring,
    entries: u32,
}

impl Cq {
    /// Expects completions of one side of queue pair `qpn`, whose rings these are. `EOPNOTSUPP` if
    /// a process polls the queue.
    pub(crate) fn attach(
        &self,
        qpn: u32,
        side: Side,
        rings: &Arc<KernelRings>,
        room: Room,
    ) -> Result {
        self.kernel()?.lock().attach(qpn, side, rings, room)
    }

    /// Has the kernel forget queue pair `qpn`, whose rings these are: it is gone.
    pub(crate) fn detach(&self, qpn: u32, rings: &Arc<KernelRings>) {
        let Ok(kernel) = self.kernel() else {
            return;
        };
        let node = kernel.lock().detach(qpn, rings);
        // Freed only here, without the lock.
        drop(node);
    }

    /// Has the kernel forget completions of queue pair `qpn`, which was reset. What is in the rings
    /// of processes is their provider's business.
    pub(crate) fn forget(&self, qpn: u32) -> Result {
        self.kernel()?.lock().forget(qpn)
    }

    /// What the kernel polls, if it does.
    fn kernel(&self) -> Result<&SpinLockIrq<Polled>> {
        match &self.ring {
            Ring::User { .. } => Err(EOPNOTSUPP),
            Ring::Kernel(kernel) => Ok(&kernel.polled),
        }
    }
}

/// Checks the ring that a process asks for.
fn user_layout(
    request: &abi::CreateCqRequest,
    attributes: &Attributes,
    limit: u32,
) -> Result<RingLayout> {
    let layout = RingLayout::from(request.ring);

    if attributes.flags & !FLAG_TIMESTAMP != 0 {
        return Err(EOPNOTSUPP);
    }
    if !layout.is_present()
        || !layout.is_valid(request.buf_length)
        || layout.stride.get() != CQE_STRIDE
        || layout.entries.get() < attributes.entries
        || layout.entries.get() > limit
    {
        return Err(EINVAL);
    }
    Ok(layout)
}

#[vtable]
impl CompletionQueue for Cq {
    type Driver = Vrnic;
    type Request = CreateCqRequest;
    type Response = CreateCqResponse;

    fn create_user(
        call: &Call<'_>,
        attributes: &Attributes,
        user: User<'_, Vrnic, CreateCqRequest>,
        buffer: &Buffer<'_>,
    ) -> Result<New<impl PinInit<Self>, CreateCqResponse>> {
        let CreateCqRequest(request) = user.request;
        let layout = user_layout(&request, attributes, call.data.limits.max_cq_entries.get())?;
        let umem = buffer.pin(
            request.buf_addr,
            usize::try_from(request.buf_length)?,
            Access::LocalWrite.into(),
        )?;
        let pages = ring_pages(call, &umem)?;
        let object = create_cq(
            &call.data.control,
            &CreateCq {
                context: user.context.number().into(),
                vector: attributes.vector.into(),
                ring: layout,
                pages: pages.list(),
            },
        )?;
        let response = abi::CreateCqResponse {
            cqn: object.number(),
            ..Default::default()
        };
        let entries = layout.entries.get();

        Ok(New {
            init: pin_init!(Self {
                object,
                ring: Ring::User { _umem: umem },
                entries,
            }),
            response: CreateCqResponse(response),
            entries,
        })
    }

    fn create(call: &Call<'_>, attributes: &Attributes) -> Result<New<impl PinInit<Self>, ()>> {
        let limit = call.data.limits.max_cq_entries.get();
        let entries = entries_for(attributes.entries, limit)?;
        let mut buffer = Layout::new();
        let layout = buffer.place(entries, CQE_STRIDE)?;
        let memory = SharedMemory::new(call.data.dma, usize::try_from(buffer.length())?)?;
        let pages = PageListBuffer::of_shared(call.data.dma, &memory)?;
        let ring = KBox::pin_init(
            pin_init!(KernelQueue {
                polled <- new_spinlock_irq!(Polled::new(CompletionRing::new(memory, layout))),
            }),
            GFP_KERNEL,
        )?;
        let object = create_cq(
            &call.data.control,
            &CreateCq {
                context: call.data.context.number().into(),
                vector: attributes.vector.into(),
                ring: layout,
                pages: pages.list(),
            },
        )?;

        Ok(New {
            init: pin_init!(Self {
                object,
                ring: Ring::Kernel(ring),
                entries,
            }),
            response: (),
            entries,
        })
    }

    fn number(&self) -> u32 {
        self.object.number()
    }

    fn destroy(cq: &rdma::Cq<Self>, _call: &Call<'_>) -> Result {
        cq.object.destroy()
    }

    fn poll(cq: &rdma::Cq<Self>, call: &Call<'_>, out: &mut Completions<'_>) -> Result {
        // Looked at before the ring: what is not there afterwards will not come.
        let has_stopped = call.data.health.has_stopped();
        let mut polled = cq.kernel()?.lock();
        let mut in_order = true;

        while in_order && !out.is_full() {
            let Some(cqe) = polled.ring.take()? else {
                break;
            };
            match polled.resolve(&cqe) {
                Ok(completion) => {
                    out.push(&completion);
                }
                Err(_) => in_order = false,
            }
        }
        polled.ring.release()?;
        if in_order && has_stopped {
            polled.flush(out);
        }
        drop(polled);
        if !in_order {
            call.data.health.fail("it completed what nobody had posted");
        }
        Ok(())
    }

    fn request_notify(cq: &rdma::Cq<Self>, call: &Call<'_>, solicited_only: bool) -> Result<bool> {
        let mut polled = cq.kernel()?.lock();
        let missed = polled.ring.arm(solicited_only)?;
        // Arming ends with a fence: either this sees that the device has stopped, or the handler
        // that runs because of that comes after.
        Ok(missed || call.data.health.has_stopped() && polled.has_outstanding())
    }

    fn fill_details(cq: &rdma::Cq<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"cqn", cq.number())?;
        details.number(c"entries", cq.entries)?;
        details.number(c"vector", cq.vector())?;
        if let Ok(polled) = cq.kernel() {
            let consumer = polled.lock().ring.consumer();
            details.hex(c"consumer", consumer)?;
        }
        Ok(())
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_cq)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_processes_are_checked() {
        let attributes = Attributes {
            entries: 16,
            vector: 0,
            flags: 0,
        };
        let good = abi::CreateCqRequest {
            buf_length: 4096,
            ring: abi::Ring {
                header_offset: 0,
                entries_offset: 128,
                entries: 32,
                stride: 64,
            },
            ..Default::default()
        };
        let with = |change: fn(&mut abi::CreateCqRequest)| {
            let mut request = good;
            change(&mut request);
            user_layout(&request, &attributes, 64)
        };

        assert!(with(|_| ()).is_ok());
        assert_eq!(with(|request| request.ring.entries = 8).err(), Some(EINVAL));
        assert_eq!(with(|request| request.ring.entries = 0).err(), Some(EINVAL));
        assert_eq!(
            with(|request| request.ring.entries = 24).err(),
            Some(EINVAL)
        );
        assert_eq!(
            with(|request| request.ring.entries = 128).err(),
            Some(EINVAL)
        );
        assert_eq!(
            with(|request| request.ring.stride = 128).err(),
            Some(EINVAL)
        );
        assert_eq!(
            with(|request| request.ring.entries_offset = 64).err(),
            Some(EINVAL)
        );
        assert_eq!(
            with(|request| request.buf_length = 2175).err(),
            Some(EINVAL)
        );
        assert_eq!(with(|request| request.buf_length = 0).err(), Some(EINVAL));

        let ignore_overrun = Attributes {
            flags: 1 << 1,
            ..attributes
        };
        assert_eq!(
            user_layout(&good, &ignore_overrun, 64).err(),
            Some(EOPNOTSUPP)
        );
    }
}
