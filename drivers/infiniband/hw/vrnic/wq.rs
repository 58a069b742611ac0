// SPDX-License-Identifier: GPL-2.0

//! Receive work queues without queue pairs, and queue pairs that distribute frames among them.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::{
    qp::NewQp,
    wq::{
        CreationFlag,
        NewWq,
        Queues,
        State,
        WqInitAttr, //
    },
    IndirectionTable,
    ReceiveWorkQueue,
    Umem,
    User, //
};
use vrnic_wire::{
    abi,
    command::{
        qp_flags,
        CreateQp,
        CreateScalingQp,
        DestroyQp,
        DeviceLimits,
        ModifyQp,
        QueryQp,
        MAX_SCALING_ENTRIES, //
    },
    qp::{
        attribute,
        QpAttributes,
        QpState,
        QpType, //
    },
    U32,
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    feature,
    object::{
        create,
        Object, //
    },
    page_list::pin_ring,
    pd::Pd,
    qp::Qp,
    srq::user_layout,
    udata::{
        CreateQpResponse,
        CreateScalingQpRequest,
        CreateSrqRequest, //
    }, //
};

/// A receive work queue: for the device, a queue pair that only has a receive queue.
#[pin_data]
pub(crate) struct Wq {
    // Fields are dropped in declaration order: the device stops using the ring first.
    object: Object<DestroyQp>,
    _umem: Umem,
    /// State that was set last; the device may have moved the queue to the error state since then.
    /// Held while the state changes.
    #[pin]
    state: Mutex<State>,
}

/// Returns whether a queue can go from one state to another.
fn may_become(from: State, to: State) -> bool {
    match (from, to) {
        (_, State::Reset | State::Error) => true,
        (from, State::Ready) => from != State::Error,
    }
}

impl Wq {
    /// Returns whether the device has the queue in the error state. A queue of a stopped device is
    /// as good as in error, even if it was reset: no queue can become ready any more, so that makes
    /// no difference.
    fn is_in_error(&self, call: &Call<'_>) -> Result<bool> {
        let control = &call.data().control;
        let reply = control.execute(&QueryQp {
            qpn: self.object.number().into(),
            ..Default::default()
        });
        match reply {
            Ok(attributes) => Ok(attributes.state == QpState::Error.raw()),
            Err(_) if control.is_stopped() => Ok(true),
            Err(err) => Err(err),
        }
    }
}

impl ReceiveWorkQueue for Wq {
    type Driver = Vrnic;
    type Request = CreateSrqRequest;
    type Response = CreateQpResponse;

    const CREATION_FLAGS: &'static [CreationFlag] =
        &[CreationFlag::StripVlan, CreationFlag::ScatterFcs];

    fn create(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        attributes: &WqInitAttr<'_, Vrnic>,
        user: User<'_, Vrnic, CreateSrqRequest>,
    ) -> Result<NewWq<impl PinInit<Self>, CreateQpResponse>> {
        let limits = &call.data().limits;
        if limits.max_scaling_entries.get() == 0 {
            return Err(EOPNOTSUPP);
        }
        let mut flags = 0;
        if attributes.flags.contains(CreationFlag::StripVlan) {
            flags |= qp_flags::STRIP_VLAN;
        }
        if attributes.flags.contains(CreationFlag::ScatterFcs) {
            flags |= qp_flags::APPEND_FCS;
        }
        if flags != 0 && !feature::has_frame_options(call.data().features) {
            return Err(EOPNOTSUPP);
        }
        let CreateSrqRequest(request) = user.request;
        let (ring, given) = user_layout(&request, attributes.max_wr, attributes.max_sge, limits)?;
        let (umem, pages) = pin_ring(call, request.buf_addr, request.buf_length)?;
        let control = &call.data().control;
        let (object, reply) = create(
            control,
            &CreateQp {
                context: user.context.number().into(),
                pd: pd.number().into(),
                qp_type: QpType::ReceiveQueue.raw(),
                flags,
                max_recv_sge: u16::try_from(given.max_sge)?.into(),
                recv_cqn: attributes.cq.number().into(),
                recv_ring: ring,
                pages: pages.list(),
                ..Default::default()
            },
        )?;
        let slot = reply.slot.get();
        if slot >= user.context.slots() {
            return Err(control.nonsense());
        }
        let number = object.number();

        Ok(NewWq {
            init: pin_init!(Self {
                object,
                _umem: umem,
                state <- new_mutex!(State::Reset),
            }),
            response: CreateQpResponse(abi::CreateQpResponse {
                slot,
                ..Default::default()
            }),
            number,
            max_wr: given.max_wr,
            max_sge: given.max_sge,
        })
    }

    fn modify(&self, call: &Call<'_>, from: State, to: State) -> Result {
        let mut state = self.state.lock();
        // The device may have moved the queue to the error state, of which only its user knows. A
        // queue may leave any state for all but the ready state. But a queue that is to be flushed
        // once more, because it was in error, must not fail if it was reset meanwhile.
        let is_known = from == *state || from == State::Error || to != State::Ready;
        if !is_known || !may_become(from, to) {
            return Err(EINVAL);
        }
        let control = &call.data().control;
        if (from, to) == (State::Error, State::Error) && !self.is_in_error(call)? {
            return Err(EINVAL);
        }
        let wanted = match to {
            State::Reset => QpState::Reset,
            State::Ready => QpState::ReadyToReceive,
            State::Error => QpState::Error,
        };
        let result = control.execute(&ModifyQp {
            qpn: self.object.number().into(),
            reserved: 0.into(),
            attributes: QpAttributes {
                state: wanted.raw(),
                mask: attribute::STATE.into(),
                ..Default::default()
            },
        });
        // A queue of a stopped device is as good as in error.
        if to == State::Ready || !control.is_stopped() {
            result?;
        }
        *state = to;
        Ok(())
    }

    fn destroy(&self, _call: &Call<'_>) {
        self.object.destroy();
    }
}

/// An indirection table. The device gets it with each queue pair that uses it.
pub(crate) struct Table {
    queues: [U32; MAX_SCALING_ENTRIES],
    entries: u32,
}

/// Returns the number of entries as the device knows it. `EINVAL` if it cannot have that many.
fn check_entries(entries: usize, limits: &DeviceLimits) -> Result<u32> {
    let entries = u32::try_from(entries)?;
    let max = limits.max_scaling_entries.get();
    // CAST: A small constant.
    if !entries.is_power_of_two() || entries > max || entries > MAX_SCALING_ENTRIES as u32 {
        return Err(EINVAL);
    }
    Ok(entries)
}

impl IndirectionTable for Table {
    type Driver = Vrnic;
    type Request = CreateScalingQpRequest;

    fn create(call: &Call<'_>, queues: Queues<'_, Vrnic>) -> Result<impl PinInit<Self>> {
        let entries = check_entries(queues.len(), &call.data().limits)?;
        let mut table = Self {
            queues: [0.into(); MAX_SCALING_ENTRIES],
            entries,
        };
        for (place, queue) in table.queues.iter_mut().zip(queues.iter()) {
            *place = queue.object.number().into();
        }
        Ok(table)
    }

    fn destroy(_table: &rdma::RwqTable<Self>, _call: &Call<'_>) {}

    fn create_queue_pair(
        call: &Call<'_>,
        pd: &rdma::Pd<Pd>,
        table: &rdma::RwqTable<Self>,
        user: User<'_, Vrnic, CreateScalingQpRequest>,
    ) -> Result<NewQp<impl PinInit<Qp>, ()>> {
        let CreateScalingQpRequest(request) = user.request;
        Qp::scaling(
            call,
            &CreateScalingQp {
                context: user.context.number().into(),
                pd: pd.number().into(),
                fields: request.fields.into(),
                entries: table.entries.into(),
                key: request.key,
                queues: table.queues,
            },
        )
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_wq)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_in_error_has_to_be_reset() {
        const ALL: [State; 3] = [State::Reset, State::Ready, State::Error];
        for from in ALL {
            for to in ALL {
                let refused = (from, to) == (State::Error, State::Ready);
                assert_eq!(may_become(from, to), !refused);
            }
        }
    }

    #[test]
    fn the_size_of_a_table_is_a_power_of_two_within_the_limit() {
        let limits = DeviceLimits {
            max_scaling_entries: 8.into(),
            ..Default::default()
        };
        for (entries, expected) in [(1, Ok(1)), (8, Ok(8)), (0, Err(EINVAL)), (3, Err(EINVAL))] {
            assert_eq!(check_entries(entries, &limits), expected);
        }
        assert_eq!(check_entries(16, &limits), Err(EINVAL));
        // What the device claims does not matter if it is more than a request has room for.
        let limits = DeviceLimits {
            max_scaling_entries: 1024.into(),
            ..Default::default()
        };
        assert_eq!(check_entries(MAX_SCALING_ENTRIES, &limits), Ok(64));
        assert_eq!(check_entries(2 * MAX_SCALING_ENTRIES, &limits), Err(EINVAL));
    }
}
