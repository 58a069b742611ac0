// SPDX-License-Identifier: GPL-2.0

//! Queue pairs: unreliable datagrams, and EFA's scalable reliable datagrams.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    ah,
    mmap::Mapped,
    qp::{
        modify_is_ok,
        Attribute,
        AttributeMask,
        Description,
        DriverType,
        NewQp,
        QpAttr,
        QpCap,
        QpInitAttr,
        Service,
        State,
        Type, //
    },
    udata::Caller,
    umem::Buffer,
    Pd,
    Qp,
    QueuePair,
    User,
    UserPages, //
};

use crate::{
    abi,
    Call,
    Domain,
    Efa,
    Object,
    MAX_ENTRIES,
    MAX_INLINE, //
};

/// EFA's own queue pair types.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum EfaType {
    /// Scalable reliable datagrams: each send has its own destination, and is delivered exactly
    /// once, but in any order.
    Srd,
}

impl DriverType<abi::CreateQpRequest> for EfaType {
    fn from_request(request: &abi::CreateQpRequest) -> Result<Self> {
        match request.driver_qp_type {
            abi::QP_DRIVER_TYPE_SRD => Ok(Self::Srd),
            _ => Err(EOPNOTSUPP),
        }
    }
}

/// Returns whether the device supports all these attributes.
fn is_known(mask: AttributeMask) -> bool {
    let known = Attribute::State
        | Attribute::CurrentState
        | Attribute::DrainNotify
        | Attribute::PkeyIndex
        | Attribute::Port
        | Attribute::Qkey
        | Attribute::SqPsn
        | Attribute::RnrRetry;
    mask.bits() & !known.bits() == 0
}

/// Returns whether an SRD queue pair may make this state transition with these attributes. The
/// rules are those for unreliable datagrams, except that the RNR retry count may be set as well.
fn srd_modify_is_ok(from: State, to: State, mask: AttributeMask) -> bool {
    let retry = AttributeMask::from(Attribute::RnrRetry);
    let ud = match (from, to) {
        (State::ReadyToReceive, State::ReadyToSend) => mask & !retry,
        _ => mask,
    };
    modify_is_ok(from, to, Type::UnreliableDatagram, ud)
}

/// A queue pair.
#[pin_data]
pub(crate) struct Pair {
    // Fields are dropped in declaration order: the device stops using the ring first.
    object: Object,
    /// Lets the process map the receive ring, if there is one.
    _mapped: Option<Mapped>,
    /// The receive ring. The send ring is in device memory.
    _ring: Option<Arc<UserPages>>,
    service: Service<EfaType>,
    capabilities: QpCap,
    signal_all: bool,
    /// Held during state changes.
    #[pin]
    attributes: Mutex<QpAttr<ah::Unspecified>>,
}

impl Pair {
    /// Returns the type of the queue pair.
    pub(crate) fn service(&self) -> Service<EfaType> {
        self.service
    }
}

#[vtable]
impl QueuePair for Pair {
    type Driver = Efa;
    type Request = abi::CreateQpRequest;
    type Response = abi::CreateQpResponse;
    type ModifyRequest = ();
    type DriverType = EfaType;

    const TYPES: &'static [Type] = &[Type::UnreliableDatagram];

    fn create(
        call: &Call<'_>,
        _pd: &Pd<Domain>,
        attributes: &QpInitAttr<'_, Efa>,
        user: Caller<Efa, User<'_, Efa, abi::CreateQpRequest, Buffer<'_>>>,
    ) -> Result<NewQp<impl PinInit<Self>, abi::CreateQpResponse>> {
        let request = &user.request;
        let capabilities = attributes.capabilities;
        if request.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if capabilities.max_send_wr > MAX_ENTRIES
            || capabilities.max_recv_wr > MAX_ENTRIES
            || capabilities.max_send_sge > 2
            || capabilities.max_recv_sge > 3
            || capabilities.max_inline_data > MAX_INLINE
        {
            return Err(EINVAL);
        }

        let (mut mapped, mut ring) = (None, None);
        let mut response = abi::CreateQpResponse {
            send_sub_cq_idx: attributes.send_cq.index(),
            recv_sub_cq_idx: attributes.recv_cq.ok_or(EINVAL)?.index(),
            ..Default::default()
        };
        if request.rq_ring_size != 0 {
            // CAST: `usize` has at least 32 bits.
            let pages = UserPages::new(call, request.rq_ring_size as usize)?;
            let pages = Arc::new(pages, GFP_KERNEL)?;
            let key = user.context.map_pages(&pages)?;
            response.rq_mmap_key = key.offset();
            response.rq_mmap_size = pages.len() as u64;
            (mapped, ring) = (Some(key), Some(pages));
        }
        // A real driver would let the process map doorbells and the send ring, which are in BARs,
        // with `Ucontext::map_device`.
        let service = attributes.service;
        let signal_all = attributes.signal_all;
        let object = Object::create(call)?;

        Ok(NewQp {
            number: object.number.into(),
            init: pin_init!(Self {
                object,
                _mapped: mapped,
                _ring: ring,
                service,
                capabilities,
                signal_all,
                attributes <- new_mutex!(QpAttr::default()),
            }),
            response,
            capabilities,
        })
    }

    fn modify(
        qp: &Qp<Self>,
        _call: &Call<'_>,
        mask: AttributeMask,
        attributes: &QpAttr<ah::Unspecified>,
        _request: &(),
    ) -> Result {
        if !is_known(mask) {
            return Err(EOPNOTSUPP);
        }
        let mut now = qp.attributes.lock();
        let from = if mask.contains(Attribute::CurrentState) {
            attributes.current_state
        } else {
            now.state
        };
        let to = if mask.contains(Attribute::State) {
            attributes.state
        } else {
            from
        };
        let is_ok = match qp.service {
            Service::Standard(ty) => modify_is_ok(from, to, ty, mask),
            Service::Driver(EfaType::Srd) => srd_modify_is_ok(from, to, mask),
        };
        if from != now.state || !is_ok {
            return Err(EINVAL);
        }
        // A real command would carry the changes.
        now.state = to;
        if mask.contains(Attribute::Qkey) {
            now.qkey = attributes.qkey;
        }
        if mask.contains(Attribute::SqPsn) {
            now.sq_psn = attributes.sq_psn;
        }
        Ok(())
    }

    fn query(qp: &Qp<Self>, _call: &Call<'_>) -> Result<Description<ah::Unspecified>> {
        let now = *qp.attributes.lock();
        Ok(Description {
            attributes: QpAttr {
                current_state: now.state,
                ..now
            },
            capabilities: qp.capabilities,
            signal_all: qp.signal_all,
        })
    }

    fn destroy(qp: &Qp<Self>, _call: &Call<'_>) {
        qp.object.destroy();
    }
}
