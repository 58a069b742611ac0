// SPDX-License-Identifier: GPL-2.0

//! Tests of the translations between the types of C and those of drivers, and of the dispatcher.

use core::{
    ptr::NonNull,
    sync::atomic::Ordering::SeqCst, //
};

use kernel::{
    prelude::*,
    sync::atomic::{
        ordering::Relaxed,
        Atomic, //
    },
    time::{
        delay::fsleep,
        Delta, //
    },
    workqueue, //
};

use crate::{
    access::{
        Access,
        AccessFlags, //
    },
    ah, bindings,
    device::{
        self,
        Atomicity,
        Capability,
        OnDemandPaging, //
    },
    event::{
        CqEvent,
        Dispatcher,
        Objects,
        QpEvent,
        SrqEvent, //
    },
    gid::{
        self,
        Gid, //
    },
    mr::Mapping,
    mw,
    pages::UserPages,
    place::{
        Named,
        Notice,
        Place,
        Room, //
    },
    port::{
        self,
        LinkLayer,
        Mtu,
        Port,
        Protocol, //
    },
    qp::{
        self,
        Attribute,
        AttributeMask,
        State,
        Type, //
    },
    srq::{
        self,
        Change, //
    },
    stats, test_driver,
    wc::{
        Completion,
        Completions,
        Extra,
        NetworkHeader,
        Opcode,
        Source,
        Status, //
    },
    wr::{
        ReceiveRequests,
        SendFlag, //
    },
};

/// An object of C whose address is all that is looked at.
fn boxed<T: Default>() -> Result<KBox<T>> {
    Ok(KBox::new(T::default(), GFP_KERNEL)?)
}

fn path() -> ah::Attributes {
    ah::Attributes {
        dgid: Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
        dmac: [21, 22, 23, 24, 25, 26],
        sgid_index: 31,
        hop_limit: 64,
        traffic_class: 33,
        flow_label: 0xf_1234,
        service_level: 7,
        port: Port::FIRST,
    }
}

#[kunit_tests(rdma_attributes)]
mod attributes {
    use super::*;

    #[test]
    fn rights_without_a_name_are_refused() -> Result {
        let writable = AccessFlags::from_raw(0b11)?;
        assert_eq!(writable, Access::LocalWrite | Access::RemoteWrite);
        assert_eq!(AccessFlags::from_raw(1 << 15).err(), Some(EOPNOTSUPP));
        assert_eq!(AccessFlags::from_raw(1 << 30).err(), Some(EOPNOTSUPP));

        // Optional rights may be dropped, and the one that is known is kept.
        assert_eq!(AccessFlags::from_raw(1 << 25)?, AccessFlags::default());
        assert_eq!(
            AccessFlags::from_raw(1 << 20)?,
            Access::RelaxedOrdering.into()
        );
        Ok(())
    }

    #[test]
    fn a_path_survives_the_translation() -> Result {
        let mut raw = bindings::rdma_ah_attr::default();
        path().write(&mut raw);
        assert_eq!(ah::Attributes::from_raw(&raw)?, path());

        raw.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_IB;
        assert_eq!(ah::Attributes::from_raw(&raw).err(), Some(EINVAL));

        let mut raw = bindings::rdma_ah_attr::default();
        path().write(&mut raw);
        raw.ah_flags = 0;
        assert_eq!(ah::Attributes::from_raw(&raw).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn changes_of_a_shared_receive_queue_are_checked() {
        const MAX_WR: u32 = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
        const LIMIT: u32 = bindings::ib_srq_attr_mask_IB_SRQ_LIMIT;

        let attributes = srq::Attributes {
            max_wr: 5,
            max_sge: 2,
            limit: 6,
        };
        let mut raw = bindings::ib_srq_attr::default();
        attributes.write(&mut raw);
        assert_eq!(srq::Attributes::from_raw(&raw), attributes);

        let change = |mask| Change::from_raw(&attributes, mask);
        assert_eq!(change(0), Ok(Change::default()));
        let limit = Change {
            max_wr: None,
            limit: Some(6),
        };
        assert_eq!(change(LIMIT), Ok(limit));
        let max_wr = Change {
            max_wr: Some(5),
            limit: None,
        };
        assert_eq!(change(MAX_WR), Ok(max_wr));
        assert_eq!(change(MAX_WR | LIMIT), Err(EINVAL));
        assert_eq!(change(1 << 2), Err(EINVAL));
    }

    #[test]
    fn attributes_of_a_queue_pair_survive_the_translation() -> Result {
        let attributes = qp::Attributes {
            state: State::ReadyToSend,
            current_state: State::ReadyToReceive,
            path_mtu: Mtu::Mtu4096,
            qkey: 0x1111_1111,
            rq_psn: 1,
            sq_psn: 2,
            dest_qpn: 3,
            access: Access::RemoteRead.into(),
            pkey_index: 0,
            port: Port::FIRST,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 5,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 6,
            drain_notify: true,
            draining: false,
            path: path(),
        };
        // Too large for the stack together with what the test needs.
        let mut raw = boxed::<bindings::ib_qp_attr>()?;
        attributes.write(&mut raw);

        let all = mask(0x1f_ffff)?;
        assert_eq!(qp::Attributes::from_raw(&raw, all)?, attributes);

        // What the mask does not name is not looked at.
        raw.qp_state = 77;
        raw.qkey = 99;
        let some = qp::Attributes::from_raw(&raw, mask(1 << 20)?)?;
        assert_eq!((some.dest_qpn, some.qkey, some.state), (3, 0, State::Reset));
        assert_eq!(qp::Attributes::from_raw(&raw, mask(1)?).err(), Some(EINVAL));
        Ok(())
    }

    fn mask(raw: c_int) -> Result<AttributeMask> {
        AttributeMask::from_raw(raw)
    }

    #[test]
    fn masks_are_numbered_as_in_c() -> Result {
        assert_eq!(
            Attribute::State as u32,
            bindings::ib_qp_attr_mask_IB_QP_STATE
        );
        assert_eq!(Attribute::Path as u32, bindings::ib_qp_attr_mask_IB_QP_AV);
        assert_eq!(
            Attribute::SqPsn as u32,
            bindings::ib_qp_attr_mask_IB_QP_SQ_PSN
        );
        assert_eq!(
            Attribute::DestQpn as u32,
            bindings::ib_qp_attr_mask_IB_QP_DEST_QPN
        );
        assert_eq!(
            Attribute::RateLimit as u32,
            bindings::ib_qp_attr_mask_IB_QP_RATE_LIMIT
        );
        assert_eq!(mask(1 << 22).err(), Some(EOPNOTSUPP));
        assert_eq!(
            SendFlag::Fence as c_int,
            bindings::ib_send_flags_IB_SEND_FENCE
        );
        assert_eq!(
            SendFlag::Inline as c_int,
            bindings::ib_send_flags_IB_SEND_INLINE
        );
        Ok(())
    }

    #[test]
    fn the_core_judges_transitions() -> Result {
        let init = Attribute::State | Attribute::PkeyIndex | Attribute::Port | Attribute::Access;
        let rc = Type::ReliableConnection;
        assert!(qp::modify_is_ok(State::Reset, State::Init, rc, init));
        assert!(!qp::modify_is_ok(
            State::Reset,
            State::ReadyToSend,
            rc,
            init
        ));
        assert!(!qp::modify_is_ok(
            State::Reset,
            State::Init,
            Type::UnreliableDatagram,
            init
        ));
        assert!(qp::modify_is_ok(
            State::ReadyToSend,
            State::Error,
            rc,
            Attribute::State.into()
        ));
        Ok(())
    }

    #[test]
    fn capabilities_are_numbered_as_in_c() {
        // CAST: bindgen chooses the type of the constants by their values.
        for (ours, theirs) in [
            (
                Capability::RcRnrNak,
                bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN as u64,
            ),
            (
                Capability::MemoryWindow,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW as u64,
            ),
            (
                Capability::MemoryExtensions,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u64,
            ),
            (
                Capability::MemoryWindowType2B,
                bindings::ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B as u64,
            ),
        ] {
            assert_eq!(ours as u64, theirs);
        }
    }

    #[test]
    fn a_mapping_is_what_the_core_left() -> Result {
        let mut raw = boxed::<bindings::ib_mr>()?;
        assert_eq!(Mapping::from_raw(&raw, 0).err(), Some(EINVAL));

        raw.iova = 0x1_2345;
        raw.length = 0x3000;
        raw.page_size = 4096;
        assert_eq!(
            Mapping::from_raw(&raw, 4)?,
            Mapping {
                iova: 0x1_2345,
                length: 0x3000,
                pages: 4,
                page_shift: 12,
            }
        );
        raw.page_size = 6144;
        assert_eq!(Mapping::from_raw(&raw, 4).err(), Some(EINVAL));
        Ok(())
    }

    #[test]
    fn windows_have_two_types() {
        assert_eq!(mw::Type::try_from(1), Ok(mw::Type::Type1));
        assert_eq!(mw::Type::try_from(2), Ok(mw::Type::Type2));
        assert!(mw::Type::try_from(0).is_err() && mw::Type::try_from(3).is_err());
    }

    #[test]
    fn an_entry_of_the_gid_table_is_what_the_core_left() -> Result {
        let mut raw = bindings::ib_gid_attr {
            index: 0x1234,
            port_num: 2,
            gid_type: bindings::ib_gid_type_IB_GID_TYPE_ROCE_UDP_ENCAP,
            ..Default::default()
        };
        let bytes = core::array::from_fn::<_, 16, _>(|i| i as u8 + 1);
        // SAFETY: All members of the union are plain bytes.
        *unsafe { raw.gid.raw.as_mut() } = bytes;
        let entry = gid::Attributes::new(&raw);
        assert_eq!((entry.index(), entry.port()), (0x1234, Port::try_from(2)));
        assert_eq!(
            (entry.gid(), entry.kind()),
            (Gid(bytes), Ok(gid::Type::RoceV2))
        );
        // Its network device is gone.
        assert_eq!(entry.link_layer(), Err(ENODEV));

        raw.gid_type = bindings::ib_gid_type_IB_GID_TYPE_ROCE;
        raw.port_num = 0;
        let entry = gid::Attributes::new(&raw);
        assert_eq!(
            (entry.kind(), entry.port()),
            (Ok(gid::Type::RoceV1), Err(EINVAL))
        );
        raw.gid_type = 99;
        assert_eq!(gid::Attributes::new(&raw).kind(), Err(EINVAL));
        Ok(())
    }

    #[test]
    fn a_port_is_of_one_protocol_or_of_two() -> Result {
        let mut raw = bindings::ib_port_immutable::default();
        let mut immutable = port::Immutable {
            protocol: Protocol::RoceV1AndV2,
            pkey_table_length: 2,
            gid_table_length: 3,
        };
        immutable.write(&mut raw)?;
        assert_eq!((raw.pkey_tbl_len, raw.gid_tbl_len), (2, 3));
        let v2 = bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
        assert_eq!(raw.core_cap_flags, bindings::RDMA_CORE_PORT_IBA_ROCE | v2);
        immutable.protocol = Protocol::RoceV2;
        immutable.write(&mut raw)?;
        assert_eq!(raw.core_cap_flags, v2);
        immutable.gid_table_length = u32::MAX;
        assert!(immutable.write(&mut raw).is_err());

        // What a port may be besides that of the driver that tests have.
        assert_eq!(
            LinkLayer::InfiniBand.raw(),
            bindings::rdma_link_layer_IB_LINK_LAYER_INFINIBAND
        );
        Ok(())
    }

    #[test]
    fn a_port_that_is_down_has_no_link() -> Result {
        let mut attributes = test_driver::port_attributes(Port::FIRST);
        for (state, raw_state, physical) in [
            (
                port::State::Down,
                bindings::ib_port_state_IB_PORT_DOWN,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED,
            ),
            (
                port::State::Init,
                bindings::ib_port_state_IB_PORT_INIT,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP,
            ),
        ] {
            let mut raw = bindings::ib_port_attr::default();
            attributes.state = state;
            attributes.write(&mut raw)?;
            assert_eq!(
                (raw.state, u32::from(raw.phys_state)),
                (raw_state, physical)
            );
        }
        attributes.gid_table_length = u32::MAX;
        let mut raw = bindings::ib_port_attr::default();
        assert!(attributes.write(&mut raw).is_err());
        Ok(())
    }

    #[test]
    fn a_device_need_not_page_nor_be_atomic() {
        for (atomicity, raw_atomicity) in [
            (Atomicity::None, bindings::ib_atomic_cap_IB_ATOMIC_NONE),
            (Atomicity::Device, bindings::ib_atomic_cap_IB_ATOMIC_HCA),
        ] {
            let mut raw = bindings::ib_device_attr::default();
            device::Attributes {
                atomicity,
                on_demand_paging: OnDemandPaging::default(),
                ..test_driver::attributes()
            }
            .write(&mut raw);
            assert_eq!(raw.atomic_cap, raw_atomicity);
            assert_eq!((raw.kernel_cap_flags, raw.odp_caps.general_caps), (0, 0));
        }
    }

    #[test]
    fn ports_count_from_one() {
        assert_eq!(Port::try_from(0).err(), Some(EINVAL));
        assert_eq!(Port::try_from(1), Ok(Port::FIRST));
        assert!(Mtu::try_from(0).is_err() && Mtu::try_from(6).is_err());
    }
}

#[kunit_tests(rdma_requests)]
mod requests {
    use super::*;

    #[test]
    fn receives_are_taken_in_order() -> Result {
        let mut elements = core::array::from_fn::<_, 2, _>(|i| bindings::ib_sge {
            addr: 0x1000 * i as u64,
            length: 64,
            lkey: 5,
        });
        let mut second = bindings::ib_recv_wr {
            num_sge: -1,
            ..Default::default()
        };
        let mut first = bindings::ib_recv_wr {
            next: &mut second,
            sg_list: elements.as_mut_ptr(),
            num_sge: 2,
            ..Default::default()
        };
        first.__bindgen_anon_1.bindgen_union_field = 77;

        // SAFETY: The list is as long as its requests say, and does not change. The count that is
        // negative is refused.
        let mut list = unsafe { ReceiveRequests::new(&first) };
        assert_eq!(list.taken(), &raw const first);
        let request = list.next().ok_or(ENOENT)??;
        assert_eq!(request.wr_id, 77);
        assert_eq!(request.elements.len(), 2);
        assert_eq!(request.elements[1].address(), 0x1000);
        assert_eq!(request.elements[1].lkey(), 5);
        assert_eq!(list.taken(), &raw const first);

        assert!(list.next().ok_or(ENOENT)?.is_err());
        assert_eq!(list.taken(), &raw const second);
        assert!(list.next().is_none());
        Ok(())
    }
}

#[kunit_tests(rdma_counters)]
mod counters {
    use super::*;

    #[test]
    fn counters_are_created_by_the_first_that_has_them() {
        let (mut id, mut gone) = (0, 0);
        let five = |number| (number == 5).then_some(()).ok_or(EINVAL);
        let bound = stats::bind_in(&mut id, || Ok(5), five, |number| gone = number);
        assert_eq!((bound, id, gone), (Ok(()), 5, 0));

        let bound = stats::bind_in(&mut id, || Err(EEXIST), five, |number| gone = number);
        assert_eq!((bound, id, gone), (Ok(()), 5, 0));
    }

    #[test]
    fn counters_that_nobody_got_are_destroyed() {
        let (mut id, mut gone) = (0, 0);
        let refused = stats::bind_in(&mut id, || Ok(5), |_| Err(EBUSY), |number| gone = number);
        assert_eq!((refused, id, gone), (Err(EBUSY), 0, 5));

        let refused = stats::bind_in(&mut id, || Err(ENOSPC), |_| Ok(()), |_| gone = 6);
        assert_eq!((refused, id, gone), (Err(ENOSPC), 0, 5));

        // Others have these.
        id = 7;
        let refused = stats::bind_in(&mut id, || Ok(8), |_| Err(EBUSY), |_| gone = 6);
        assert_eq!((refused, id, gone), (Err(EBUSY), 7, 5));
    }
}

#[kunit_tests(rdma_pages)]
mod pages {
    use super::*;

    use kernel::page::PAGE_SIZE;

    use crate::testing::TestDevice;

    #[test]
    fn pages_of_users_are_zeroed_words() -> Result {
        let device = TestDevice::new()?;
        let mapper = device.mapper()?;
        assert!(UserPages::of(&mapper, 0).is_err());
        let pages = UserPages::of(&mapper, PAGE_SIZE + 1)?;
        assert_eq!(pages.len(), 2 * PAGE_SIZE);
        assert_eq!(pages.dma_pages().len(), 2);
        assert!(pages.dma_pages().all(|page| page % PAGE_SIZE as u64 == 0));

        let last = 2 * PAGE_SIZE - 4;
        assert_eq!(pages.with_u32(last, |word| word.swap(7, SeqCst)), Ok(0));
        assert_eq!(pages.with_u32(last, |word| word.load(SeqCst)), Ok(7));
        assert_eq!(
            pages.with_u32(PAGE_SIZE - 4, |word| word.load(SeqCst)),
            Ok(0)
        );
        for wrong in [last + 1, last + 4, usize::MAX - 3] {
            assert_eq!(pages.with_u32(wrong, |_| ()), Err(EINVAL));
        }
        Ok(())
    }

    #[test]
    fn pages_of_users_need_a_device_that_is_registered() -> Result {
        let mapper = TestDevice::new()?.mapper()?;
        mapper.close();
        assert_eq!(UserPages::of(&mapper, PAGE_SIZE).err(), Some(ENODEV));
        Ok(())
    }
}

#[kunit_tests(rdma_events)]
mod events {
    use super::*;

    use crate::testing::wait_until;

    /// Counts the events that reached a handler; the tests of a suite run one after another.
    static EVENTS: Atomic<u32> = Atomic::new(0);

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn count_completion(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        EVENTS.store(EVENTS.load(Relaxed) + 1, Relaxed);
    }

    /// # Safety
    ///
    /// `event` must be valid.
    unsafe extern "C" fn count_event(event: *mut bindings::ib_event, _context: *mut c_void) {
        // SAFETY: The dispatcher passes an event.
        let event = unsafe { (*event).event };
        EVENTS.store(EVENTS.load(Relaxed) + 100 + event, Relaxed);
    }

    fn events() -> u32 {
        let events = EVENTS.load(Relaxed);
        EVENTS.store(0, Relaxed);
        events
    }

    /// Lets events find `object` by `number` as long as the result exists.
    fn list<T: Named>(
        room: Room<T>,
        number: u32,
        object: NonNull<T>,
        notice: T::Notice,
    ) -> Result<Place<T>> {
        let (place, listing) = room.assign(number, object, notice);
        listing.publish()?;
        Ok(place)
    }

    #[test]
    fn events_reach_the_shared_receive_queue_they_name() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut srq = boxed::<bindings::ib_srq>()?;
        srq.event_handler = Some(count_event);
        let srq = NonNull::from(&mut *srq);

        events();
        let place = list(dispatcher.srq_room()?, 7, srq, ())?;
        assert!(dispatcher.srq_event(7, SrqEvent::LimitReached));
        assert_eq!(events(), 100 + SrqEvent::LimitReached.raw());
        assert!(!dispatcher.srq_event(8, SrqEvent::Error));
        drop(place);
        assert!(!dispatcher.srq_event(7, SrqEvent::Error));
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn events_reach_the_queue_they_name() -> Result {
        let objects = Objects::new(2)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        cq.event_handler = Some(count_event);
        let cq = NonNull::from(&mut *cq);

        events();
        assert_eq!(dispatcher.cq_room(2).err(), Some(EINVAL));
        let place = list(dispatcher.cq_room(1)?, 7, cq, Notice::new(true))?;
        assert_eq!(place.number(), 7);
        assert!(dispatcher.complete(1, 7));
        assert_eq!(events(), 1);
        assert!(!dispatcher.complete(0, 7));
        assert!(!dispatcher.complete(1, 8));
        assert!(!dispatcher.complete(2, 7));
        assert_eq!(events(), 0);

        assert!(dispatcher.cq_event(7, CqEvent::Error));
        assert_eq!(events(), 100 + bindings::ib_event_type_IB_EVENT_CQ_ERR);

        drop(place);
        assert!(!dispatcher.complete(1, 7) && !dispatcher.cq_event(7, CqEvent::Error));
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn the_kernel_is_told_what_it_asked_for() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);
        let place = list(dispatcher.cq_room(0)?, 7, cq, Notice::new(false))?;
        let all_and_one = || {
            dispatcher.complete_all();
            dispatcher.complete(0, 7)
        };

        // Nobody asked.
        events();
        place.add_queue_pair();
        assert!(all_and_one());
        assert_eq!(events(), 0);
        // He is told once.
        place.arm();
        place.arm();
        assert!(all_and_one());
        assert_eq!(events(), 1);
        place.arm();
        assert!(all_and_one());
        assert_eq!(events(), 1);
        Ok(())
    }

    #[test]
    fn the_kernel_is_told_while_there_are_queue_pairs() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);
        let place = list(dispatcher.cq_room(0)?, 7, cq, Notice::new(false))?;

        // What `ib_alloc_cq` does before the queue can take events.
        events();
        place.arm();
        dispatcher.complete_all();
        assert!(dispatcher.complete(0, 7));
        assert_eq!(events(), 0);
        // The first queue pair brings what was held back, and no more than that.
        place.add_queue_pair();
        assert_eq!(events(), 1);
        place.add_queue_pair();
        assert_eq!(events(), 0);

        // The last of them went, as before `ib_free_cq`.
        place.arm();
        place.remove_queue_pair();
        place.remove_queue_pair();
        assert!(dispatcher.complete(0, 7));
        assert_eq!(events(), 0);
        place.add_queue_pair();
        assert_eq!(events(), 1);
        Ok(())
    }

    /// Has all be told of completions by the dispatcher that is its context, from inside.
    ///
    /// # Safety
    ///
    /// `context` must be a dispatcher.
    unsafe extern "C" fn complete_others(_cq: *mut bindings::ib_cq, context: *mut c_void) {
        EVENTS.store(EVENTS.load(Relaxed) + 1, Relaxed);
        if EVENTS.load(Relaxed) < 3 {
            // SAFETY: Guaranteed by the caller.
            unsafe { (*context.cast::<Dispatcher>()).complete_all() };
        }
    }

    #[test]
    fn handlers_may_call_the_dispatcher() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(complete_others);
        cq.cq_context = core::ptr::from_ref::<Dispatcher>(dispatcher)
            .cast_mut()
            .cast();
        let cq = NonNull::from(&mut *cq);

        events();
        let place = list(dispatcher.cq_room(0)?, 7, cq, Notice::new(true))?;
        assert!(dispatcher.complete(0, 7));
        // Itself, inside itself.
        assert_eq!(events(), 3);
        drop(place);
        Ok(())
    }

    /// Whether a handler runs that takes its time.
    static COMPLETION_RUNS: Atomic<bool> = Atomic::new(false);

    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn complete_slowly(_cq: *mut bindings::ib_cq, _context: *mut c_void) {
        COMPLETION_RUNS.store(true, Relaxed);
        fsleep(Delta::from_millis(100));
        COMPLETION_RUNS.store(false, Relaxed);
    }

    #[test]
    fn who_gives_up_a_queue_waits_for_its_handler() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(complete_slowly);
        let cq = NonNull::from(&mut *cq);
        let begin = || -> Result {
            let theirs = dispatcher.clone();
            workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
                theirs.complete(0, 7);
            })?;
            wait_until(|| COMPLETION_RUNS.load(Relaxed))
        };

        // The last queue pair goes, and with it who may be told.
        let place = list(dispatcher.cq_room(0)?, 7, cq, Notice::new(false))?;
        place.add_queue_pair();
        place.arm();
        begin()?;
        place.remove_queue_pair();
        assert!(!COMPLETION_RUNS.load(Relaxed));
        drop(place);

        let place = list(dispatcher.cq_room(0)?, 7, cq, Notice::new(true))?;
        begin()?;
        drop(place);
        assert!(!COMPLETION_RUNS.load(Relaxed));
        Ok(())
    }

    #[test]
    fn all_who_share_receives_are_told_of_the_last() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut srq = boxed::<bindings::ib_srq>()?;
        let mut own = boxed::<bindings::ib_qp>()?;
        own.event_handler = Some(count_event);
        let mut sharing = boxed::<bindings::ib_qp>()?;
        sharing.event_handler = Some(count_event);
        sharing.srq = &mut *srq;
        let (own, sharing) = (NonNull::from(&mut *own), NonNull::from(&mut *sharing));

        events();
        let mut places = KVec::new();
        for (number, qp) in [(1, own), (2, sharing), (3, own), (u32::MAX, sharing)] {
            places.push(list(dispatcher.qp_room()?, number, qp, ())?, GFP_KERNEL)?;
        }
        dispatcher.last_receive_all();
        assert_eq!(events(), 2 * (100 + QpEvent::LastWqeReached.raw()));
        drop(places);
        dispatcher.last_receive_all();
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn every_queue_is_completed_once() -> Result {
        let objects = Objects::new(2)?;
        let dispatcher = objects.dispatcher();
        let mut cq = boxed::<bindings::ib_cq>()?;
        cq.comp_handler = Some(count_completion);
        let cq = NonNull::from(&mut *cq);

        events();
        dispatcher.complete_all();
        assert_eq!(events(), 0);
        let mut places = KVec::new();
        for (vector, number) in [(0, 0), (0, 1), (0, 900), (0, u32::MAX), (1, 5)] {
            let room = dispatcher.cq_room(vector)?;
            places.push(list(room, number, cq, Notice::new(true))?, GFP_KERNEL)?;
        }
        dispatcher.complete_all();
        assert_eq!(events(), 5);
        drop(places);
        dispatcher.complete_all();
        assert_eq!(events(), 0);
        Ok(())
    }

    #[test]
    fn a_number_has_one_owner() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let (mut old, mut new) = (boxed::<bindings::ib_qp>()?, boxed::<bindings::ib_qp>()?);
        let (old, new) = (NonNull::from(&mut *old), NonNull::from(&mut *new));

        let place = list(dispatcher.qp_room()?, 9, old, ())?;
        // The hardware gives it away, though nobody told it to forget the owner.
        let refused = list(dispatcher.qp_room()?, 9, new, ());
        assert_eq!(refused.err(), Some(EIO));
        assert_eq!(dispatcher.find_qp(9), Some(old));
        drop(place);
        assert!(dispatcher.find_qp(9).is_none());
        let _place = list(dispatcher.qp_room()?, 9, new, ())?;
        assert_eq!(dispatcher.find_qp(9), Some(new));
        Ok(())
    }

    /// What [`a_number_may_come_back_early`] has, for handlers that run meanwhile.
    static HANDLER_RUNS: Atomic<bool> = Atomic::new(false);
    static OLD_IS_GONE: Atomic<bool> = Atomic::new(false);

    /// Returns once the number of its queue pair is wanted by another, and says whether the queue
    /// pair is still there.
    ///
    /// # Safety
    ///
    /// None.
    unsafe extern "C" fn handle_slowly(_event: *mut bindings::ib_event, _context: *mut c_void) {
        HANDLER_RUNS.store(true, Relaxed);
        fsleep(Delta::from_millis(100));
        if !OLD_IS_GONE.load(Relaxed) {
            HANDLER_RUNS.store(false, Relaxed);
        }
    }

    #[test]
    fn a_number_may_come_back_early() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let (mut old, mut new) = (boxed::<bindings::ib_qp>()?, boxed::<bindings::ib_qp>()?);
        old.event_handler = Some(handle_slowly);
        new.event_handler = Some(count_event);
        let (old, new) = (NonNull::from(&mut *old), NonNull::from(&mut *new));

        events();
        HANDLER_RUNS.store(false, Relaxed);
        OLD_IS_GONE.store(false, Relaxed);
        let place = list(dispatcher.qp_room()?, 9, old, ())?;
        place.begin_end();

        // Who destroys the queue pair, while an event of it is handled.
        let theirs = dispatcher.clone();
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            theirs.qp_event(9, QpEvent::Fatal);
        })?;
        wait_until(|| HANDLER_RUNS.load(Relaxed))?;
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            drop(place);
            OLD_IS_GONE.store(true, Relaxed);
        })?;

        // Who makes another one, to which the hardware gives the number.
        let place = list(dispatcher.qp_room()?, 9, new, ())?;
        // The old one was there until its handler had returned.
        assert!(!HANDLER_RUNS.load(Relaxed));
        assert_eq!(dispatcher.find_qp(9), Some(new));
        assert!(dispatcher.qp_event(9, QpEvent::Fatal));
        assert_eq!(events(), 100 + bindings::ib_event_type_IB_EVENT_QP_FATAL);
        drop(place);
        assert!(dispatcher.find_qp(9).is_none() && !dispatcher.qp_event(9, QpEvent::Fatal));
        Ok(())
    }

    #[test]
    fn without_a_device_nobody_is_told() -> Result {
        assert!(!Objects::new(1)?.dispatcher().device_fatal());
        Ok(())
    }

    #[test]
    fn completions_find_their_queue_pair() -> Result {
        let objects = Objects::new(1)?;
        let dispatcher = objects.dispatcher();
        let mut qp = boxed::<bindings::ib_qp>()?;
        let qp = NonNull::from(&mut *qp);
        let mut room = [bindings::ib_wc::default(), bindings::ib_wc::default()];
        let completion = Completion {
            wr_id: 0x1122_3344_5566_7788,
            qpn: 5,
            status: Status::Success,
            opcode: Opcode::Receive,
            vendor_error: 0,
            byte_length: 104,
            extra: Some(Extra::Immediate(0x0102_0304)),
            source: Some(Source {
                qpn: 6,
                pkey_index: 0,
                service_level: 1,
                header: Some(NetworkHeader::Ipv4),
                mac: Some([1, 2, 3, 4, 5, 6]),
                vlan: None,
            }),
        };

        let place = list(dispatcher.qp_room()?, 5, qp, ())?;
        // SAFETY: There is room for two completions.
        let mut out = unsafe { Completions::new(dispatcher, room.as_mut_ptr(), 2) };
        assert!(out.push(&completion));
        assert!(!out.push(&Completion {
            qpn: 4,
            ..completion
        }));
        assert!(out.push(&Completion {
            extra: None,
            source: None,
            ..completion
        }));
        assert!(out.is_full() && !out.push(&completion));
        assert_eq!(out.len(), 2);
        drop(place);

        let [first, second] = room;
        assert_eq!(first.qp, qp.as_ptr());
        assert_eq!(
            first.__bindgen_anon_1.bindgen_union_field,
            0x1122_3344_5566_7788
        );
        assert_eq!(first.ex.bindgen_union_field.to_ne_bytes(), [1, 2, 3, 4]);
        assert_eq!((first.byte_len, first.src_qp, first.sl), (104, 6, 1));
        assert_eq!(first.smac, [1, 2, 3, 4, 5, 6]);
        let flags = bindings::ib_wc_flags_IB_WC_GRH
            | bindings::ib_wc_flags_IB_WC_WITH_IMM
            | bindings::ib_wc_flags_IB_WC_WITH_SMAC
            | bindings::ib_wc_flags_IB_WC_WITH_NETWORK_HDR_TYPE;
        assert_eq!(first.wc_flags, flags as c_int);
        assert_eq!(second.wc_flags, 0);
        Ok(())
    }
}
