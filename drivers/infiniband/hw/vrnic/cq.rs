// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use kernel::{
    prelude::*,
    sync::{
        new_spinlock_irq,
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
    wc::{
        Completion,
        Completions,
        Extra,
        NetworkHeader,
        Opcode,
        Source,
        Status, //
    },
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
    completion::{
        self,
        flags,
        Cqe,
        CQE_STRIDE, //
    },
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
    ring::{
        entries_for,
        CompletionRing,
        Layout, //
    },
    udata::{
        CreateCqRequest,
        CreateCqResponse, //
    },
};

/// Completions have a time stamp in any case, so asking for it changes nothing.
const FLAG_TIMESTAMP: u32 = 1 << 0;

/// The ring of a queue of the kernel.
#[pin_data]
struct KernelRing {
    /// May be taken in any context, and before the locks of the dispatcher.
    #[pin]
    ring: SpinLockIrq<CompletionRing>,
}

/// Whose ring it is.
enum Ring {
    /// A process polls it; the memory is pinned.
    User { _umem: Umem },
    /// The kernel polls it.
    Kernel(Pin<KBox<KernelRing>>),
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
    /// Has the kernel forget completions of a queue pair that is gone. What is in the rings of
    /// processes is their provider's business.
    pub(crate) fn forget(&self, qpn: u32) -> Result {
        match &self.ring {
            Ring::User { .. } => Ok(()),
            Ring::Kernel(kernel) => kernel.ring.lock().forget(qpn),
        }
    }

    /// The ring, if it is the kernel's.
    fn kernel(&self) -> Result<&SpinLockIrq<CompletionRing>> {
        match &self.ring {
            Ring::User { .. } => Err(EOPNOTSUPP),
            Ring::Kernel(kernel) => Ok(&kernel.ring),
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
            pin_init!(KernelRing {
                ring <- new_spinlock_irq!(CompletionRing::new(memory, layout)),
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

    fn poll(cq: &rdma::Cq<Self>, _call: &Call<'_>, out: &mut Completions<'_>) -> Result {
        let mut ring = cq.kernel()?.lock();

        while !out.is_full() {
            let Some(cqe) = ring.take()? else {
                break;
            };
            out.push(&decode(&cqe));
        }
        ring.release()
    }

    fn request_notify(cq: &rdma::Cq<Self>, _call: &Call<'_>, solicited_only: bool) -> Result<bool> {
        cq.kernel()?.lock().arm(solicited_only)
    }

    fn fill_details(cq: &rdma::Cq<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"cqn", cq.number())?;
        details.number(c"entries", cq.entries)?;
        details.number(c"vector", cq.vector())?;
        if let Ok(ring) = cq.kernel() {
            let consumer = ring.lock().consumer();
            details.hex(c"consumer", consumer)?;
        }
        Ok(())
    }
}

/// Translates what a completion tells of. The wire numbers it as the verbs do, but for what only
/// the kernel does, which the verbs renumber as they like.
fn opcode(raw: u8) -> Result<Opcode> {
    match completion::Opcode::try_from(raw) {
        Ok(completion::Opcode::RegisterRegion) => Ok(Opcode::Register),
        Ok(opcode) => Opcode::try_from(u32::from(opcode.raw())),
        Err(_) => Err(EINVAL),
    }
}

/// Translates a completion. What the device must not write is a general error.
fn decode(cqe: &Cqe) -> Completion {
    let (status, opcode) = match (Status::try_from(u32::from(cqe.status)), opcode(cqe.opcode)) {
        (Ok(Status::Success), Ok(opcode)) => (Status::Success, opcode),
        (Ok(Status::Success), Err(_)) | (Err(_), _) => (Status::General, Opcode::Send),
        (Ok(status), _) => (status, Opcode::Send),
    };
    let has = |flag| cqe.flags & flag != 0;
    let extra = if has(flags::IMMEDIATE) {
        Some(Extra::Immediate(cqe.immediate.get()))
    } else if has(flags::INVALIDATED) {
        Some(Extra::Invalidated(cqe.immediate.get()))
    } else {
        None
    };
    let source = has(flags::GRH).then(|| Source {
        qpn: cqe.source_qpn.get(),
        pkey_index: cqe.pkey_index.get(),
        service_level: cqe.service_level,
        header: Some(if has(flags::IPV4) {
            NetworkHeader::Ipv4
        } else {
            NetworkHeader::Ipv6
        }),
        mac: has(flags::SOURCE_MAC).then_some(cqe.source_mac),
        vlan: has(flags::VLAN).then_some(cqe.vlan.get()),
    });
    let success = status == Status::Success;

    Completion {
        wr_id: cqe.wr_id.get(),
        qpn: cqe.qpn.get(),
        status,
        opcode,
        vendor_error: cqe.vendor_error.get(),
        byte_length: if success { cqe.byte_length.get() } else { 0 },
        extra: extra.filter(|_| success),
        source: source.filter(|_| success),
    }
}

// The wire numbers completions as the verbs do.
const _: () = {
    assert!(completion::Status::General.raw() as u32 == Status::General.raw());
    assert!(completion::Opcode::Receive.raw() as u32 == Opcode::Receive.raw());
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_cq)]
mod tests {
    use super::*;

    #[test]
    fn every_status_and_opcode_has_a_name() {
        for status in completion::Status::ALL {
            let raw = u32::from(status.raw());
            assert_eq!(Status::try_from(raw).map(Status::raw), Ok(raw));
        }
        for wire in completion::Opcode::ALL {
            let raw = u32::from(wire.raw());
            match wire {
                completion::Opcode::RegisterRegion => {
                    assert_eq!(opcode(wire.raw()), Ok(Opcode::Register));
                }
                _ => assert_eq!(opcode(wire.raw()).map(Opcode::raw), Ok(raw)),
            }
        }
        // The number that the verbs give to a registration is not that of the wire.
        assert!(opcode(10).is_err());
    }

    #[test]
    fn a_datagram_is_decoded() {
        let completion = decode(&Cqe {
            wr_id: 0x1234_5678_9abc_def0.into(),
            qpn: 1.into(),
            opcode: completion::Opcode::Receive.raw(),
            status: completion::Status::Success.raw(),
            flags: flags::GRH | flags::IPV4 | flags::IMMEDIATE | flags::SOURCE_MAC,
            service_level: 3,
            byte_length: 296.into(),
            immediate: 0x0102_0304.into(),
            source_qpn: 0x00ab_cdef.into(),
            source_mac: [1, 2, 3, 4, 5, 6],
            vlan: 7.into(),
            ..Default::default()
        });
        assert_eq!(completion.wr_id, 0x1234_5678_9abc_def0);
        assert_eq!(completion.opcode, Opcode::Receive);
        assert_eq!(completion.byte_length, 296);
        assert_eq!(completion.extra, Some(Extra::Immediate(0x0102_0304)));
        assert_eq!(
            completion.source,
            Some(Source {
                qpn: 0x00ab_cdef,
                pkey_index: 0,
                service_level: 3,
                header: Some(NetworkHeader::Ipv4),
                mac: Some([1, 2, 3, 4, 5, 6]),
                vlan: None,
            })
        );
    }

    #[test]
    fn nonsense_of_the_device_is_an_error() {
        let decoded = |opcode, status| {
            decode(&Cqe {
                opcode,
                status,
                flags: !0,
                byte_length: 9.into(),
                ..Default::default()
            })
        };
        assert_eq!(decoded(99, 0).status, Status::General);
        assert_eq!(decoded(0, 99).status, Status::General);
        assert_eq!(decoded(99, 5).status, Status::Flushed);
        assert_eq!(decoded(128, 12).extra, None);
        assert_eq!(decoded(128, 12).source, None);
        assert_eq!(decoded(128, 12).byte_length, 0);
    }

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
