// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        new_spinlock_irq,
        Arc,
        Mutex,
        SpinLockIrq, //
    }, //
};
use rdma::{
    cq::{
        CqFlag,
        CqFlags,
        CqInitAttr,
        NewCq, //
    },
    restrack::Details,
    umem::Buffer,
    wc::Completions,
    CompletionQueue,
    Umem,
    User, //
};
use virtio::{
    Features,
    SharedMemory, //
};
use vrnic_wire::{
    abi,
    command::{
        cq_flags,
        CreateCq,
        DestroyCq,
        ModifyCq,
        ResizeCq, //
    },
    completion::CQE_STRIDE,
    ring::RingLayout, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    feature,
    kernel_cq::{
        CompletionRing,
        Polled,
        Room, //
    },
    kernel_qp::{
        KernelRings,
        Side, //
    },
    object::{
        create,
        Object, //
    },
    page_list::{
        pin_buffer,
        pin_ring,
        PageListBuffer, //
    },
    ring::{
        entries_for,
        Layout, //
    },
    udata::{
        CreateCqRequest,
        CreateCqResponse, //
    },
};

/// A completion queue that the kernel polls.
#[pin_data]
pub(crate) struct KernelQueue {
    /// May be locked in any context. Locked before the locks of the dispatcher and of work rings.
    #[pin]
    pub(crate) polled: SpinLockIrq<Polled>,
}

/// A completion queue.
#[pin_data]
pub(crate) struct Cq {
    // Fields are dropped in declaration order: the device stops using the ring first.
    object: Object<DestroyCq>,
    /// State of a queue that the kernel polls; [`None`] for a process's queue.
    kernel: Option<Arc<KernelQueue>>,
    /// Pinned memory of a process's ring. Held while the queue moves to a new ring.
    #[pin]
    memory: Mutex<Option<Umem>>,
}

impl Cq {
    /// Registers `rings` to get the completions of one side of queue pair `qpn`. `EOPNOTSUPP` if a
    /// process polls the queue, `EIO` if another queue pair has that number.
    pub(crate) fn attach(
        &self,
        qpn: u32,
        side: Side,
        rings: &Arc<KernelRings>,
        room: Room,
    ) -> Result {
        self.kernel()?.lock().attach(qpn, side, rings, room)
    }

    /// Removes queue pair `qpn` with these `rings`, because it is gone.
    pub(crate) fn detach(&self, qpn: u32, rings: &Arc<KernelRings>) {
        let Ok(kernel) = self.kernel() else {
            return;
        };
        let node = kernel.lock().detach(qpn, rings);
        // Freed without holding the lock.
        drop(node);
    }

    /// Drops completions of queue pair `qpn`, which was reset. For a process's ring, this is the
    /// provider's job.
    pub(crate) fn forget(&self, qpn: u32) -> Result {
        self.kernel()?.lock().forget(qpn)
    }

    /// Returns the state of a queue that the kernel polls.
    fn kernel(&self) -> Result<&SpinLockIrq<Polled>> {
        match &self.kernel {
            Some(kernel) => Ok(&kernel.polled),
            None => Err(EOPNOTSUPP),
        }
    }
}

/// Translates the core's flags of a queue; `EOPNOTSUPP` for flags that the device does not support.
///
/// Completions always have a timestamp, so the flag for timestamps changes nothing.
fn device_flags(flags: CqFlags, features: Features) -> Result<u16> {
    match flags.contains(CqFlag::IgnoreOverrun) {
        false => Ok(0),
        true if features.contains(feature::IGNORED_OVERRUN) => Ok(cq_flags::IGNORE_OVERRUN),
        true => Err(EOPNOTSUPP),
    }
}

/// Checks the ring that a process provides, which must have at least `entries` entries.
fn user_layout(request: &abi::CreateCqRequest, entries: u32, limit: u32) -> Result<RingLayout> {
    let layout = RingLayout::from(request.ring);

    if !layout.is_present()
        || !layout.is_valid(request.buf_length)
        || layout.stride.get() != CQE_STRIDE
        || layout.entries.get() < entries
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
    type ResizeRequest = CreateCqRequest;

    fn create_user(
        call: &Call<'_>,
        attributes: &CqInitAttr,
        user: User<'_, Vrnic, CreateCqRequest, Buffer<'_>>,
    ) -> Result<NewCq<impl PinInit<Self>, CreateCqResponse>> {
        let CreateCqRequest(request) = user.request;
        let flags = device_flags(attributes.flags, call.data().features)?;
        let limit = call.data().limits.max_cq_entries.get();
        let layout = user_layout(&request, attributes.entries, limit)?;
        let (umem, pages) = pin_buffer(call, &user.buffer, request.buf_addr, request.buf_length)?;
        let (object, _) = create(
            &call.data().control,
            &CreateCq {
                context: user.context.number().into(),
                vector: u16::try_from(attributes.vector)?.into(),
                flags: flags.into(),
                ring: layout,
                pages: pages.list(),
            },
        )?;
        let response = abi::CreateCqResponse {
            cqn: object.number(),
            ..Default::default()
        };

        Ok(NewCq {
            init: pin_init!(Self {
                object,
                kernel: None,
                memory <- new_mutex!(Some(umem)),
            }),
            response: CreateCqResponse(response),
            number: response.cqn,
            entries: layout.entries.get(),
        })
    }

    fn create(call: &Call<'_>, attributes: &CqInitAttr) -> Result<NewCq<impl PinInit<Self>, ()>> {
        let limit = call.data().limits.max_cq_entries.get();
        let entries = entries_for(attributes.entries, limit)?;
        let mut buffer = Layout::new();
        let layout = buffer.place(entries, CQE_STRIDE)?;
        let memory = SharedMemory::new(call.data().dma(), usize::try_from(buffer.length())?)?;
        let pages = PageListBuffer::of_shared(call.data().dma(), &memory)?;
        let kernel = Arc::pin_init(
            pin_init!(KernelQueue {
                polled <- new_spinlock_irq!(Polled::new(CompletionRing::new(memory, layout))),
            }),
            GFP_KERNEL,
        )?;
        let (object, _) = create(
            &call.data().control,
            &CreateCq {
                context: call.data().context.number().into(),
                vector: u16::try_from(attributes.vector)?.into(),
                ring: layout,
                pages: pages.list(),
                ..Default::default()
            },
        )?;

        let number = object.number();
        call.data().health.add_queue(&kernel)?;

        Ok(NewCq {
            init: pin_init!(Self {
                object,
                kernel: Some(kernel),
                memory <- new_mutex!(None),
            }),
            response: (),
            number,
            entries,
        })
    }

    fn destroy(cq: &rdma::Cq<Self>, call: &Call<'_>) {
        cq.object.destroy();
        if let Some(kernel) = &cq.kernel {
            call.data().health.remove_queue(kernel);
        }
    }

    fn resize(
        cq: &rdma::Cq<Self>,
        call: &Call<'_>,
        entries: u32,
        user: User<'_, Vrnic, CreateCqRequest>,
    ) -> Result {
        let CreateCqRequest(request) = user.request;
        let ring = user_layout(&request, entries, call.data().limits.max_cq_entries.get())?;
        let (umem, pages) = pin_ring(call, request.buf_addr, request.buf_length)?;

        let mut memory = cq.memory.lock();
        call.data().control.execute(&ResizeCq {
            cqn: cq.number().into(),
            ring,
            pages: pages.list(),
            ..Default::default()
        })?;
        // The device no longer uses the old ring.
        *memory = Some(umem);
        cq.set_entries(ring.entries.get());
        Ok(())
    }

    fn moderate(cq: &rdma::Cq<Self>, call: &Call<'_>, count: u16, period: u16) -> Result {
        call.data().control.execute(&ModifyCq {
            cqn: cq.number().into(),
            count: count.into(),
            period: period.into(),
        })?;
        Ok(())
    }

    fn poll(cq: &rdma::Cq<Self>, call: &Call<'_>, out: &mut Completions<'_>) -> Result {
        // Read before the ring is polled: completions that are missing afterwards will not arrive.
        let has_stopped = call.data().health.has_stopped();
        let polled = cq.kernel()?.lock().poll(out, has_stopped);
        if polled.is_err() {
            call.data()
                .health
                .fail("it completed a request that was not posted");
        }
        Ok(())
    }

    fn request_notify(cq: &rdma::Cq<Self>, call: &Call<'_>, solicited_only: bool) -> Result<bool> {
        let mut polled = cq.kernel()?.lock();
        let missed = polled.arm(solicited_only)?;
        // Arming ends with a fence. Either this sees that the device is stopped, or the handler
        // that runs because of the stop runs after this.
        Ok(missed || call.data().health.has_stopped() && polled.has_outstanding())
    }

    fn fill_details(cq: &rdma::Cq<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"cqn", cq.number())?;
        details.number(c"entries", cq.entries())?;
        details.number(c"vector", cq.vector())?;
        if let Ok(polled) = cq.kernel() {
            let consumer = polled.lock().consumer();
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
            user_layout(&request, 16, 64)
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
    }

    #[test]
    fn overruns_are_ignored_if_the_device_can() {
        let both = CqFlag::Timestamps | CqFlag::IgnoreOverrun;
        let (nothing, ignored) = (Features::default(), feature::IGNORED_OVERRUN.into());
        assert_eq!(device_flags(CqFlags::default(), nothing), Ok(0));
        assert_eq!(device_flags(CqFlag::Timestamps.into(), nothing), Ok(0));
        assert_eq!(device_flags(both, ignored), Ok(cq_flags::IGNORE_OVERRUN));
        assert_eq!(device_flags(both, nothing), Err(EOPNOTSUPP));
    }
}
