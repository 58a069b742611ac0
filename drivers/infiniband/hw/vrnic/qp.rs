// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    ah::Any,
    qp::{
        modify_is_ok,
        Attribute,
        AttributeMask,
        CreationFlag,
        CreationFlags,
        Description,
        MulticastGroup,
        NewQp,
        NoDriverType,
        QpAttr,
        QpCap,
        QpInitAttr,
        State,
        Type, //
    },
    restrack::Details,
    udata::Caller,
    umem::Buffer,
    wr::{
        ReceiveRequests,
        SendFlag,
        SendRequests, //
    },
    QueuePair,
    Umem,
    User, //
};
use virtio::SharedMemory;
use vrnic_wire::{
    abi,
    command::{
        qp_flags,
        CreateQp,
        CreateScalingQp,
        DestroyQp,
        DeviceLimits,
        ModifyQp,
        ModifyQpPaths,
        QpPaths,
        QueryQp,
        QueryQpPaths,
        RingDoorbell, //
    },
    memory::PageList,
    ring::RingLayout,
    work::{
        receive_stride,
        segmented_send_stride,
        RECEIVE_DATA_OFFSET,
        SEND_DATA_OFFSET, //
    }, //
};

use crate::{
    control::Prepared,
    device::{
        has_ud_segmentation,
        Call,
        Vrnic, //
    },
    feature,
    kernel_context::SLOTS,
    kernel_cq::Room,
    kernel_qp::{
        KernelRings,
        Side, //
    },
    multicast,
    object::{
        create,
        Object, //
    },
    page_list::pin_buffer,
    page_list::PageListBuffer,
    pd::Pd,
    ring::{
        entries_for,
        Layout, //
    },
    udata::{
        CreateQpRequest,
        CreateQpResponse,
        ModifyQpRequest, //
    },
    wqe::{
        self,
        SendLimits,
        MAX_HEADER, //
    }, //
};

mod attr;

/// Length of a scatter/gather element in bytes.
const SGE: u32 = size_of::<vrnic_wire::work::Sge>() as u32;

/// Owner of the rings.
enum Rings {
    /// A process posts to the rings. Their memory, if there is any, is pinned.
    User {
        _umem: Option<Umem>,
        doorbell: ProcessDoorbell,
    },
    /// The kernel posts to the rings.
    Kernel(Arc<KernelRings>),
    /// There are no rings.
    None,
    /// There are no rings, and the queue pair cannot be modified: it distributes what it receives
    /// among receive work queues.
    Scaling,
}

/// The doorbell of a queue pair of a process. A process that has no doorbell page asks the driver
/// to ring it.
#[derive(Copy, Clone)]
struct ProcessDoorbell {
    /// Context of the process.
    context: u32,
    /// Doorbell slot in the context.
    slot: u32,
}

impl ProcessDoorbell {
    /// Tells the device to look for requests that the process has put into its rings. Sleeps.
    fn ring(self, call: &Call<'_>) -> Result {
        call.data().control.execute(&RingDoorbell {
            context: self.context.into(),
            slot: self.slot.into(),
        })?;
        Ok(())
    }
}

/// The changing part of a queue pair.
struct Condition {
    /// State that was set last; the device may have changed to an error state since then.
    state: State,
    /// The command that moves a queue pair of the kernel to the error state. It is allocated when
    /// the queue pair is created, because users free their buffers after this, even if it fails.
    stop: Option<Prepared<ModifyQp>>,
}

/// A queue pair.
#[pin_data]
pub(crate) struct Qp {
    // Fields are dropped in declaration order: the device stops using the rings first.
    object: Object<DestroyQp>,
    rings: Rings,
    /// Doorbell slot in the context.
    doorbell: u32,
    ty: Type,
    /// Whether every send generates a completion, not only those that ask for it.
    signal_all: bool,
    capabilities: QpCap,
    /// Bytes of the header of a send in segments, which only some queue pairs of the kernel have.
    max_header: u32,
    /// Held while the state changes.
    #[pin]
    condition: Mutex<Condition>,
}

impl Qp {
    /// Creates the target side of an extended reliable connection: a queue pair that belongs to an
    /// XRC domain and not to a context, and that has no rings.
    pub(crate) fn target(call: &Call<'_>, xrcdn: u32) -> Result<NewQp<impl PinInit<Self>, ()>> {
        let (object, _) = create(
            &call.data().control,
            &CreateQp {
                // CAST: The wire format uses the verbs' numbers for types; see below.
                qp_type: Type::XrcTarget.raw() as u8,
                xrcdn: xrcdn.into(),
                ..Default::default()
            },
        )?;
        let number = object.number();
        let capabilities = QpCap::default();

        Ok(NewQp {
            init: pin_init!(Self {
                object,
                rings: Rings::None,
                doorbell: 0,
                ty: Type::XrcTarget,
                signal_all: false,
                capabilities,
                max_header: 0,
                condition <- new_mutex!(Condition { state: State::Reset, stop: None }),
            }),
            response: (),
            number,
            capabilities,
        })
    }
}

impl Qp {
    /// Creates a queue pair that has no rings, but distributes frames among receive work queues.
    pub(crate) fn scaling(
        call: &Call<'_>,
        request: &CreateScalingQp,
    ) -> Result<NewQp<impl PinInit<Self>, ()>> {
        let (object, reply) = create(&call.data().control, request)?;
        let number = object.number();
        let doorbell = reply.slot.get();
        let capabilities = QpCap::default();

        Ok(NewQp {
            init: pin_init!(Self {
                object,
                rings: Rings::Scaling,
                doorbell,
                ty: Type::RawPacket,
                signal_all: false,
                capabilities,
                max_header: 0,
                condition <- new_mutex!(Condition { state: State::Reset, stop: None }),
            }),
            response: (),
            number,
            capabilities,
        })
    }
}

/// Returns those flags of a new queue pair that the device knows.
fn receive_options(asked: CreationFlags) -> u8 {
    [
        (
            CreationFlag::BlockOwnMulticast,
            qp_flags::BLOCK_OWN_MULTICAST,
        ),
        (CreationFlag::ScatterFcs, qp_flags::APPEND_FCS),
        (CreationFlag::StripVlan, qp_flags::STRIP_VLAN),
    ]
    .into_iter()
    .filter(|(flag, _)| asked.contains(*flag))
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Rejects sizes beyond the limits of the device.
fn check_limits(capabilities: &QpCap, limits: &DeviceLimits) -> Result {
    if capabilities.max_send_wr > limits.max_qp_entries.get()
        || capabilities.max_recv_wr > limits.max_qp_entries.get()
        || capabilities.max_send_sge > limits.max_send_sge.get()
        || capabilities.max_recv_sge > limits.max_recv_sge.get()
        || capabilities.max_inline_data > limits.max_inline.get()
    {
        return Err(EINVAL);
    }
    Ok(())
}

/// Checks the rings that a process provides, and returns their capacity.
fn user_layouts(
    request: &abi::CreateQpRequest,
    asked: &QpCap,
    limits: &DeviceLimits,
) -> Result<(RingLayout, RingLayout, QpCap)> {
    let send = RingLayout::from(request.sq);
    let recv = RingLayout::from(request.rq);

    for (ring, wanted) in [(&send, asked.max_send_wr), (&recv, asked.max_recv_wr)] {
        if !ring.is_valid(request.buf_length)
            || ring.entries.get() < wanted
            || ring.entries.get() > limits.max_qp_entries.get()
        {
            return Err(EINVAL);
        }
    }

    let mut given = QpCap::default();
    if send.is_present() {
        let data = send
            .stride
            .get()
            .checked_sub(SEND_DATA_OFFSET as u32)
            .ok_or(EINVAL)?;
        given.max_send_wr = send.entries.get();
        given.max_send_sge = (data / SGE).min(limits.max_send_sge.get());
        given.max_inline_data = data.min(limits.max_inline.get());
    }
    if recv.is_present() {
        let data = recv
            .stride
            .get()
            .checked_sub(RECEIVE_DATA_OFFSET as u32)
            .ok_or(EINVAL)?;
        given.max_recv_wr = recv.entries.get();
        given.max_recv_sge = (data / SGE).min(limits.max_recv_sge.get());
    }
    // The sizes of an absent ring are meaningless.
    if (send.is_present()
        && (given.max_send_sge < asked.max_send_sge
            || given.max_inline_data < asked.max_inline_data))
        || (recv.is_present() && given.max_recv_sge < asked.max_recv_sge)
    {
        return Err(EINVAL);
    }
    Ok((send, recv, given))
}

/// Lays out the rings of a queue pair of the kernel, whose segments have headers of up to
/// `max_header` bytes, and returns their capacity.
fn kernel_layouts(
    asked: &QpCap,
    limits: &DeviceLimits,
    max_header: u32,
) -> Result<(RingLayout, RingLayout, QpCap, u64)> {
    let mut given = QpCap {
        max_send_wr: entries_for(asked.max_send_wr, limits.max_qp_entries.get())?,
        max_recv_wr: entries_for(asked.max_recv_wr, limits.max_qp_entries.get())?,
        ..*asked
    };
    let mut buffer = Layout::new();
    let stride = segmented_send_stride(given.max_send_sge, given.max_inline_data, max_header);
    let send = buffer.place(given.max_send_wr, stride)?;
    let recv = buffer.place(given.max_recv_wr, receive_stride(given.max_recv_sge))?;
    // As much as an entry has room for, which SMC-R uses without asking for it.
    // CAST: A small constant.
    let room = send.stride.get().saturating_sub(SEND_DATA_OFFSET as u32);
    given.max_inline_data = room.min(limits.max_inline.get());
    Ok((send, recv, given, buffer.length()))
}

#[vtable]
impl QueuePair for Qp {
    type Driver = Vrnic;
    type Request = CreateQpRequest;
    type Response = CreateQpResponse;
    type ModifyRequest = ModifyQpRequest;
    type DriverType = NoDriverType;

    const TYPES: &'static [Type] = &[
        Type::Smi,
        Type::Gsi,
        Type::ReliableConnection,
        Type::UnreliableConnection,
        Type::UnreliableDatagram,
        Type::RawPacket,
        Type::XrcInitiator,
    ];
    const CREATION_FLAGS: &'static [CreationFlag] = &[
        CreationFlag::Integrity,
        CreationFlag::Segments,
        CreationFlag::BlockOwnMulticast,
        CreationFlag::ScatterFcs,
        CreationFlag::StripVlan,
    ];

    fn create(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        attributes: &QpInitAttr<'_, Vrnic>,
        user: Caller<Vrnic, User<'_, Vrnic, CreateQpRequest, Buffer<'_>>>,
    ) -> Result<NewQp<impl PinInit<Self>, CreateQpResponse>> {
        let limits = &call.data().limits;
        let ty = attributes.service.ty();
        let mut asked = attributes.capabilities;
        if attributes.srq.is_some() || attributes.recv_cq.is_none() {
            // If there is a shared receive queue, receives come from it.
            (asked.max_recv_wr, asked.max_recv_sge) = (0, 0);
        }
        let asked = &asked;
        check_limits(asked, limits)?;
        let features = call.data().features;
        let options = receive_options(attributes.flags);
        if options != 0 && !features.contains(feature::RECEIVE_OPTIONS) {
            return Err(EOPNOTSUPP);
        }
        if attributes.flags.contains(CreationFlag::Integrity)
            && !features.contains(feature::INTEGRITY)
        {
            return Err(EOPNOTSUPP);
        }
        let max_header = match attributes.flags.contains(CreationFlag::Segments) {
            true if !has_ud_segmentation(limits, features) => return Err(EOPNOTSUPP),
            true => MAX_HEADER,
            false => 0,
        };

        /// Who will post to the queue pair.
        enum Poster {
            Process(Option<Umem>),
            Kernel(Arc<KernelRings>),
        }

        let mut pages = None;
        let (context, slots, send, recv, given, poster) = match user {
            Some(user) => {
                let CreateQpRequest(request) = user.request;
                let (send, recv, given) = user_layouts(&request, asked, limits)?;
                let mut umem = None;
                if request.buf_length != 0 {
                    let (pinned, listed) =
                        pin_buffer(call, &user.buffer, request.buf_addr, request.buf_length)?;
                    umem = Some(pinned);
                    pages = Some(listed);
                }
                let context = &user.context;
                let poster = Poster::Process(umem);
                (context.number(), context.slots(), send, recv, given, poster)
            }
            None => {
                let (send, recv, given, length) = kernel_layouts(asked, limits, max_header)?;
                let mut memory = None;
                if length != 0 {
                    let shared = SharedMemory::new(call.data().dma(), usize::try_from(length)?)?;
                    pages = Some(PageListBuffer::of_shared(call.data().dma(), &shared)?);
                    memory = Some(shared);
                }
                let shared = attributes.srq.map(|srq| srq.receives()).transpose()?;
                let rings = KernelRings::new(memory, send, recv, shared.cloned())?;
                let rings = Arc::pin_init(rings, GFP_KERNEL)?;
                let context = call.data().context.number();
                (context, SLOTS, send, recv, given, Poster::Kernel(rings))
            }
        };

        if attributes.srq.is_some() && recv.is_present() {
            return Err(EINVAL);
        }

        let stop = match &poster {
            Poster::Kernel(_) => Some(Prepared::new()?),
            Poster::Process(_) => None,
        };
        let room = [Room::new(GFP_KERNEL)?, Room::new(GFP_KERNEL)?];
        let mut flags = options;
        if attributes.signal_all {
            flags |= qp_flags::SIGNAL_ALL;
        }
        if attributes.srq.is_some() {
            flags |= qp_flags::SHARED_RECEIVE_QUEUE;
        }
        let control = &call.data().control;
        let (object, reply) = create(
            control,
            &CreateQp {
                context: context.into(),
                pd: pd.number().into(),
                // CAST: The wire format uses the verbs' numbers for types; see below.
                qp_type: ty.raw() as u8,
                flags,
                max_send_sge: u16::try_from(given.max_send_sge)?.into(),
                max_recv_sge: u16::try_from(given.max_recv_sge)?.into(),
                max_inline: u16::try_from(given.max_inline_data.max(max_header))?.into(),
                send_cqn: attributes.send_cq.number().into(),
                recv_cqn: attributes.recv_cq.map_or(0, |cq| cq.number()).into(),
                send_ring: send,
                recv_ring: recv,
                pages: pages
                    .as_ref()
                    .map_or(PageList::default(), PageListBuffer::list),
                srqn: attributes.srq.map_or(0, |srq| srq.number()).into(),
                ..Default::default()
            },
        )?;
        let (number, doorbell) = (object.number(), reply.slot.get());
        if doorbell >= slots {
            return Err(control.nonsense());
        }
        let response = abi::CreateQpResponse {
            slot: doorbell,
            ..Default::default()
        };
        let signal_all = attributes.signal_all;
        if let Poster::Kernel(rings) = &poster {
            let [send, recv] = room;
            let send_cq = attributes.send_cq;
            let recv_cq = attributes.recv_cq.ok_or(EINVAL)?;
            let attach = || {
                send_cq.attach(number, Side::Send, rings, send)?;
                recv_cq
                    .attach(number, Side::Receive, rings, recv)
                    .inspect_err(|_| send_cq.detach(number, rings))
            };
            attach().map_err(|err| match err {
                EIO => control.nonsense(),
                err => err,
            })?;
        }

        let rings = match poster {
            Poster::Kernel(rings) => Rings::Kernel(rings),
            Poster::Process(umem) => Rings::User {
                _umem: umem,
                doorbell: ProcessDoorbell {
                    context,
                    slot: doorbell,
                },
            },
        };
        Ok(NewQp {
            init: pin_init!(Self {
                object,
                rings,
                doorbell,
                ty,
                signal_all,
                capabilities: given,
                max_header,
                condition <- new_mutex!(Condition { state: State::Reset, stop }),
            }),
            response: CreateQpResponse(response),
            number,
            capabilities: given,
        })
    }

    fn modify(
        qp: &rdma::Qp<Self>,
        call: &Call<'_>,
        mask: AttributeMask,
        attributes: &QpAttr<Any>,
        request: &ModifyQpRequest,
    ) -> Result {
        if let Rings::Scaling = qp.rings {
            return Err(EOPNOTSUPP);
        }
        let mut condition = qp.condition.lock();
        let from = if mask.contains(Attribute::CurrentState) {
            attributes.current_state
        } else {
            condition.state
        };
        let to = if mask.contains(Attribute::State) {
            attributes.state
        } else {
            from
        };
        // A rate limit alone can be set in any state in which the queue pair may still work.
        let is_limit = mask.bits() == Attribute::RateLimit as u32
            && !matches!(from, State::Reset | State::Error);
        if !is_limit && !modify_is_ok(from, to, qp.ty, mask) {
            return Err(EINVAL);
        }

        let command = ModifyQp {
            qpn: qp.object.number().into(),
            reserved: 0.into(),
            attributes: attr::to_wire(mask, attributes, request, call.data().features)?,
        };
        let alternate = match &attributes.alternate {
            Some(alternate) => Some(attr::alternate_to_wire(alternate)?),
            None => None,
        };
        if let (Rings::Kernel(rings), State::Reset) = (&qp.rings, to) {
            rings.set_state(to);
        }
        let control = &call.data().control;
        let mut result = match (&mut condition.stop, to, alternate) {
            (Some(stop), State::Error, _) => stop.execute(control, &command).inspect_err(|err| {
                if !control.is_stopped() {
                    dev_err!(
                        control.health().dev(),
                        "queue pair {} cannot be stopped: {:?}\n",
                        qp.number(),
                        err
                    );
                    control.fail("it does not stop a queue pair");
                }
            }),
            (_, _, None) => control.execute(&command),
            (_, _, Some(alternate)) => control.execute(&ModifyQpPaths {
                qpn: command.qpn,
                reserved: 0.into(),
                attributes: command.attributes,
                alternate,
            }),
        }
        .map(|_| ());
        // A queue pair of a stopped device is as good as in error. A user that moves it there to
        // get all requests flushed must succeed.
        if matches!(to, State::Error | State::Reset) && control.is_stopped() {
            result = Ok(());
        }
        if result.is_ok() {
            condition.state = to;
        }
        if let Rings::Kernel(rings) = &qp.rings {
            if result.is_ok() && to == State::Reset {
                for cq in [qp.send_cq(), qp.recv_cq()].into_iter().flatten() {
                    cq.forget(qp.number())?;
                }
                rings.forget();
            }
            rings.set_state(condition.state);
        }
        result
    }

    fn query(qp: &rdma::Qp<Self>, call: &Call<'_>) -> Result<Description<Any>> {
        let describe = |attributes| Description {
            attributes,
            capabilities: qp.capabilities,
            signal_all: qp.signal_all,
        };
        let qpn = qp.object.number().into();
        let control = &call.data().control;
        let reply = if call.data().features.contains(feature::PATH_MIGRATION) {
            control.execute(&QueryQpPaths {
                qpn,
                ..Default::default()
            })
        } else {
            let command = QueryQp {
                qpn,
                ..Default::default()
            };
            control.execute(&command).map(|attributes| QpPaths {
                attributes,
                ..Default::default()
            })
        };
        if reply.is_err() && call.data().control.is_stopped() {
            let last = qp.condition.lock().state;
            return Ok(describe(attr::of_stopped(last, call.data().link())));
        }
        Ok(describe(attr::from_wire(&reply?, call.data().link())?))
    }

    fn destroy(qp: &rdma::Qp<Self>, _call: &Call<'_>) {
        if let Rings::Kernel(rings) = &qp.rings {
            rings.begin_end();
        }
        qp.object.destroy();
        if let Rings::Kernel(rings) = &qp.rings {
            for cq in [qp.send_cq(), qp.recv_cq()].into_iter().flatten() {
                cq.detach(qp.number(), rings);
            }
        }
    }

    fn attach_multicast(qp: &rdma::Qp<Self>, call: &Call<'_>, group: &MulticastGroup) -> Result {
        multicast::attach(call, qp.number(), group)
    }

    fn detach_multicast(qp: &rdma::Qp<Self>, call: &Call<'_>, group: &MulticastGroup) -> Result {
        multicast::detach(call, qp.number(), group)
    }

    fn post_send(
        qp: &rdma::Qp<Self>,
        call: &Call<'_>,
        requests: &mut SendRequests<'_, Vrnic>,
    ) -> Result {
        let rings = match &qp.rings {
            Rings::Kernel(rings) => rings,
            Rings::User { doorbell, .. } if requests.is_empty() => return doorbell.ring(call),
            // Only the process itself puts requests into its rings.
            Rings::User { .. } | Rings::None | Rings::Scaling => return Err(EOPNOTSUPP),
        };
        let memory = rings.memory()?;
        let limits = SendLimits {
            max_sge: qp.capabilities.max_send_sge,
            max_header: qp.max_header,
            max_inline: qp.capabilities.max_inline_data,
            checksums: feature::has_checksums(call.data().features, qp.ty),
        };
        let mut ring = rings.ring(Side::Send).lock();
        let before = ring.producer();

        let result = requests.try_for_each(|request| {
            let (entry, name) = ring.next_entry()?;
            wqe::write_send(memory, entry, name, &request, limits)?;
            let signaled = qp.signal_all || request.flags().contains(SendFlag::Signaled);
            ring.advance(request.post(), 0, signaled);
            Ok(())
        });
        if ring.producer() != before {
            let rung = ring.publish(memory).and_then(|()| {
                drop(ring);
                call.data().context.ring(qp.doorbell)
            });
            call.data().health.posted();
            rung?;
        }
        result
    }

    fn post_recv(
        qp: &rdma::Qp<Self>,
        call: &Call<'_>,
        requests: &mut ReceiveRequests<'_>,
    ) -> Result {
        let rings = match &qp.rings {
            Rings::Kernel(rings) => rings,
            Rings::User { doorbell, .. } if requests.is_empty() => return doorbell.ring(call),
            // Only the process itself puts requests into its rings.
            Rings::User { .. } | Rings::None | Rings::Scaling => return Err(EOPNOTSUPP),
        };
        let memory = rings.memory()?;
        let mut ring = rings.ring(Side::Receive).lock();
        let before = ring.producer();

        let result = requests.try_for_each(|request| {
            let (entry, name) = ring.next_entry()?;
            let max_sge = qp.capabilities.max_recv_sge;
            let room = wqe::write_receive(memory, entry, name, &request, max_sge)?;
            ring.advance(request.post(), room, true);
            Ok(())
        });
        if ring.producer() != before {
            let published = ring.publish(memory);
            let rung = published.and_then(|()| match ring.needs_doorbell(memory)? {
                true => {
                    drop(ring);
                    call.data().context.ring(qp.doorbell)
                }
                false => Ok(()),
            });
            call.data().health.posted();
            rung?;
        }
        result
    }

    fn fill_details(qp: &rdma::Qp<Self>, details: &mut Details<'_>) -> Result {
        details.number(c"slot", qp.doorbell)?;
        details.number(c"sq_entries", qp.capabilities.max_send_wr)?;
        details.number(c"rq_entries", qp.capabilities.max_recv_wr)?;
        if let Rings::Kernel(rings) = &qp.rings {
            let look = |side| {
                let ring = rings.ring(side).lock();
                (ring.producer(), ring.outstanding())
            };
            let ((send, sends), (recv, receives)) = (look(Side::Send), look(Side::Receive));
            details.hex(c"sq_producer", send)?;
            details.hex(c"rq_producer", recv)?;
            details.number(c"sq_outstanding", sends)?;
            details.number(c"rq_outstanding", receives)?;
        }
        Ok(())
    }
}

// The wire format uses the verbs' numbers for types.
const _: () = {
    use vrnic_wire::qp::QpType;

    assert!(QpType::Smi.raw() as u32 == Type::Smi.raw());
    assert!(QpType::Gsi.raw() as u32 == Type::Gsi.raw());
    assert!(QpType::ReliableConnection.raw() as u32 == Type::ReliableConnection.raw());
    assert!(QpType::UnreliableConnection.raw() as u32 == Type::UnreliableConnection.raw());
    assert!(QpType::UnreliableDatagram.raw() as u32 == Type::UnreliableDatagram.raw());
    assert!(QpType::RawPacket.raw() as u32 == Type::RawPacket.raw());
    assert!(QpType::XrcInitiator.raw() as u32 == Type::XrcInitiator.raw());
    assert!(QpType::XrcTarget.raw() as u32 == Type::XrcTarget.raw());
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_qp)]
mod tests {
    use super::*;

    fn limits() -> DeviceLimits {
        DeviceLimits {
            max_qp_entries: 64.into(),
            max_send_sge: 4.into(),
            max_recv_sge: 4.into(),
            max_inline: 128.into(),
            ..Default::default()
        }
    }

    fn good() -> abi::CreateQpRequest {
        abi::CreateQpRequest {
            buf_length: 16384,
            sq: abi::Ring {
                header_offset: 0,
                entries_offset: 256,
                entries: 16,
                stride: 256,
            },
            rq: abi::Ring {
                header_offset: 128,
                entries_offset: 8192,
                entries: 32,
                stride: 64,
            },
            ..Default::default()
        }
    }

    #[test]
    fn the_device_learns_what_it_shall_do_with_receives() {
        let flags = CreationFlag::StripVlan | CreationFlag::Segments;
        assert_eq!(receive_options(flags), qp_flags::STRIP_VLAN);
        let flags = CreationFlag::ScatterFcs | CreationFlag::BlockOwnMulticast;
        let expected = qp_flags::APPEND_FCS | qp_flags::BLOCK_OWN_MULTICAST;
        assert_eq!(receive_options(flags), expected);
        assert_eq!(receive_options(CreationFlag::Segments.into()), 0);
    }

    #[test]
    fn rings_of_processes_say_what_they_hold() {
        let asked = QpCap {
            max_send_wr: 10,
            max_recv_wr: 20,
            max_send_sge: 2,
            max_recv_sge: 3,
            max_inline_data: 100,
        };
        let (_, _, given) = user_layouts(&good(), &asked, &limits()).unwrap_or_default();
        assert_eq!(
            given,
            QpCap {
                max_send_wr: 16,
                max_recv_wr: 32,
                max_send_sge: 4,
                max_recv_sge: 3,
                max_inline_data: 128,
            }
        );
    }

    #[test]
    fn rings_of_processes_are_checked() {
        let asked = QpCap {
            max_send_wr: 16,
            max_recv_wr: 32,
            max_send_sge: 4,
            max_recv_sge: 3,
            max_inline_data: 128,
        };
        let with = |change: fn(&mut abi::CreateQpRequest)| {
            let mut request = good();
            change(&mut request);
            user_layouts(&request, &asked, &limits()).err()
        };

        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|request| request.sq.entries = 8), Some(EINVAL));
        assert_eq!(with(|request| request.sq.entries = 128), Some(EINVAL));
        assert_eq!(with(|request| request.sq.stride = 128), Some(EINVAL));
        assert_eq!(with(|request| request.sq.stride = 32), Some(EINVAL));
        assert_eq!(with(|request| request.rq.stride = 32), Some(EINVAL));
        assert_eq!(
            with(|request| request.rq = abi::Ring::default()),
            Some(EINVAL)
        );
        assert_eq!(with(|request| request.buf_length = 8192), Some(EINVAL));
    }

    #[test]
    fn rings_that_nobody_wants_are_absent() -> Result {
        let (send, recv, given) = user_layouts(
            &abi::CreateQpRequest::default(),
            &QpCap::default(),
            &limits(),
        )?;
        assert!(!send.is_present() && !recv.is_present());
        assert_eq!(given, QpCap::default());

        let (send, recv, given, length) = kernel_layouts(&QpCap::default(), &limits(), 0)?;
        assert!(!send.is_present() && !recv.is_present());
        assert_eq!((given, length), (QpCap::default(), 0));
        Ok(())
    }

    #[test]
    fn rings_of_the_kernel_fit_their_memory() -> Result {
        let asked = QpCap {
            max_send_wr: 33,
            max_recv_wr: 5,
            max_send_sge: 4,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (send, recv, given, length) = kernel_layouts(&asked, &limits(), 0)?;
        assert!(send.is_valid(length) && recv.is_valid(length));
        assert_eq!((given.max_send_wr, given.max_recv_wr), (64, 8));
        assert_eq!((send.stride.get(), recv.stride.get()), (128, 32));
        assert_eq!(given.max_inline_data, 64);

        // There is at least as much inline data as was asked for.
        let inline = QpCap {
            max_inline_data: 100,
            ..asked
        };
        let (send, _, given, length) = kernel_layouts(&inline, &limits(), 0)?;
        assert!(send.is_valid(length));
        assert_eq!((send.stride.get(), given.max_inline_data), (256, 128));

        // Elements and a header of segments are in an entry together.
        let (send, _, given, length) = kernel_layouts(&asked, &limits(), 124)?;
        assert!(send.is_valid(length));
        assert_eq!((send.stride.get(), given.max_inline_data), (256, 128));
        Ok(())
    }

    #[test]
    fn sizes_beyond_the_limits_are_refused() {
        let fits = |capabilities: QpCap| check_limits(&capabilities, &limits()).is_ok();
        assert!(fits(QpCap {
            max_send_wr: 64,
            max_recv_sge: 4,
            ..Default::default()
        }));
        assert!(!fits(QpCap {
            max_recv_wr: 65,
            ..Default::default()
        }));
        assert!(!fits(QpCap {
            max_inline_data: 129,
            ..Default::default()
        }));
    }
}
