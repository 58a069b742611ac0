// SPDX-License-Identifier: GPL-2.0

//! Tests of verbs, from the call of the core to the method of the driver and back, and of what the
//! core knows of a device. The driver is that of [`test_driver`](crate::test_driver).

use core::{
    ptr::{
        self,
        null_mut, //
    },
    sync::atomic::Ordering::SeqCst, //
};

use kernel::{
    error::{
        from_err_ptr,
        to_result, //
    },
    io::PhysAddr,
    page::PAGE_SIZE,
    prelude::*,
    str::CStr,
    sync::Arc, //
};

use crate::{
    access::Access,
    ah,
    bindings,
    cq,
    device::Device,
    gid::Gid,
    mr,
    mw,
    port::{
        Mtu,
        Port, //
    },
    qp,
    srq,
    test_driver::{
        keys,
        port_attributes,
        with_device,
        Asked,
        Log,
        Object,
        Offsets,
        TestDriver,
        CAPABILITIES,
        DEVICE_MEMORY,
        DEVICE_PAGES,
        FIRMWARE,
        MAC,
        MAPPABLE,
        MAPPABLE_BUT_REFUSED,
        PORTS,
        PROPERTIES,
        SHARED_PAGES,
        VECTORS, //
    },
    testing::{
        wait_until,
        Ethernet,
        Memory,
        Message,
        PortEvents,
        ProcessMemory,
        UserCall,
        UverbsFile, //
    },
    wr::{
        Operation,
        SendRequests, //
    },
    Ah,
    Cq,
    Mr,
    Mw,
    Netdev,
    Pd,
    Qp,
    Srq,
    Ucontext, //
};

/// The second of the ports.
fn second_port() -> Result<Port> {
    Port::try_from(2)
}

/// Calls a verb by the table of the device, as the core does.
macro_rules! verb {
    ($device:expr, $verb:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: The device is registered.
        let verb = unsafe { (*$device.as_raw()).ops.$verb }.ok_or(EOPNOTSUPP)?;
        // SAFETY: The arguments are those of the verb: objects are of the device and constructed,
        // or, if the verb makes them, as the core allocates them.
        unsafe { verb($($argument),*) }
    }};
}

/// A protection domain of the kernel.
struct Domain(*mut bindings::ib_pd);

impl Domain {
    fn new(device: &Device<TestDriver>) -> Result<Self> {
        // SAFETY: The device is registered.
        let pd = unsafe { bindings::__ib_alloc_pd(device.as_raw(), 0, c"rdma".as_char_ptr()) };
        Ok(Self(from_err_ptr(pd)?))
    }

    fn number(&self) -> u32 {
        // SAFETY: The domain was constructed.
        unsafe { Pd::<Object>::from_raw(self.0) }.number
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: Nobody uses it any more.
        let _ = unsafe { bindings::ib_dealloc_pd_user(self.0, null_mut()) };
    }
}

/// A process that opened the device.
struct Process {
    memory: ProcessMemory,
    context: Memory<bindings::ib_ucontext>,
    file: UverbsFile,
}

impl Process {
    /// One whose request was 7.
    fn new(device: &Device<TestDriver>) -> Result<Self> {
        Self::open(device, 7, true)
    }

    /// One that can be answered, or not.
    fn open(device: &Device<TestDriver>, request: u64, can_be_answered: bool) -> Result<Self> {
        let memory = ProcessMemory::new(2)?;
        memory.write(request)?;
        let mut context = Memory::<bindings::ib_ucontext>::new(Ucontext::<Object>::SIZE)?;
        let raw = context.as_raw();
        // SAFETY: Ours alone, and constructed next. Tests unmap device memory before they end.
        let file = unsafe {
            (*raw).device = device.as_raw();
            UverbsFile::new(raw)?
        };
        let mut call = UserCall::new(&memory, 8, raw)?;
        if !can_be_answered {
            call.lose_response();
        }
        file.call(|| to_result(verb!(device, alloc_ucontext(raw, call.udata()))))?;
        Ok(Self {
            memory,
            context,
            file,
        })
    }

    /// A call of this process with a request, which is answered where it stands.
    fn call(&mut self, request: u64) -> Result<UserCall> {
        self.memory.write(request)?;
        UserCall::new(&self.memory, 8, self.context.as_raw())
    }

    /// A call that has neither request nor response.
    fn bare_call(&mut self) -> Result<UserCall> {
        UserCall::new(&self.memory, 0, self.context.as_raw())
    }

    fn end(mut self, device: &Device<TestDriver>) -> Result {
        let raw = self.context.as_raw();
        verb!(device, dealloc_ucontext(raw));
        // SAFETY: Ours alone.
        if unsafe { !(*raw).mmap_xa.xa_head.is_null() } {
            pr_err!("there is something left to map\n");
            return Err(EBUSY);
        }
        Ok(())
    }
}

/// Where an object is that a verb is to make: memory of which the core has set the device.
macro_rules! room {
    ($device:expr, $c:ident, $rust:ident) => {{
        let mut memory = Memory::<bindings::$c>::new($rust::<Object>::SIZE)?;
        // SAFETY: Ours alone.
        unsafe { (*memory.as_raw()).device = $device.as_raw() };
        memory
    }};
}

/// Whether a verb fills all of a structure, of which it must not leave anything as it was: two
/// calls, which find other things there, leave the same.
fn fills<T>(verb: impl Fn(*mut T) -> Result) -> Result<bool> {
    let mut first = Memory::<T>::poisoned(0x5a)?;
    let mut second = Memory::<T>::poisoned(0xa5)?;
    verb(first.as_raw())?;
    verb(second.as_raw())?;
    Ok(first.bytes() == second.bytes())
}

/// A completion queue of the kernel.
struct Queue(Memory<bindings::ib_cq>);

impl Queue {
    fn new(device: &Device<TestDriver>, entries: u32, vector: u32) -> Result<Self> {
        let mut cq = room!(device, ib_cq, Cq);
        let attributes = bindings::ib_cq_init_attr {
            cqe: entries,
            comp_vector: vector,
            flags: 0,
        };
        to_result(verb!(
            device,
            create_cq(cq.as_raw(), &attributes, null_mut())
        ))?;
        Ok(Self(cq))
    }

    fn number(&mut self) -> u32 {
        // SAFETY: The queue was constructed.
        unsafe { Cq::<Object>::from_raw(self.0.as_raw()) }.number
    }

    fn end(mut self, device: &Device<TestDriver>) -> Result {
        to_result(verb!(device, destroy_cq(self.0.as_raw(), null_mut())))
    }
}

#[kunit_tests(rdma_device)]
mod devices {
    use super::*;

    #[test]
    fn a_device_is_what_its_driver_says() -> Result {
        with_device(|device, _| {
            // SAFETY: The device is registered.
            let raw = unsafe { &*device.as_raw() };
            assert_eq!(
                (raw.phys_port_cnt, raw.num_comp_vectors),
                (PORTS, VECTORS as c_int)
            );
            assert_eq!(
                raw.node_guid.to_ne_bytes(),
                PROPERTIES.node_guid.to_be_bytes()
            );
            assert_eq!(u32::from(raw.node_type), bindings::RDMA_NODE_IB_CA);
            assert_eq!(Some(raw.local_dma_lkey), PROPERTIES.local_dma_key);
            assert_eq!((raw.ops.driver_id, raw.ops.uverbs_abi_ver), (201, 202));
            assert_eq!(raw.ops.uverbs_robust_udata(), 1);
            let posts = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
                | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV;
            assert_eq!(raw.uverbs_cmd_mask & posts, posts);
            assert!(raw.ops.counter_bind_qp.is_some() && raw.ops.post_srq_recv.is_some());
            Ok(())
        })
    }

    #[test]
    fn attributes_of_a_device_have_their_places() -> Result {
        with_device(|device, _| {
            // SAFETY: The device is registered, and they do not change.
            let raw = unsafe { &(*device.as_raw()).attrs };
            assert_eq!(
                (raw.fw_ver, raw.max_mr_size, raw.page_size_cap),
                (0x1_0002_0003, 104, 105)
            );
            assert_eq!(raw.sys_image_guid.to_ne_bytes(), [1, 2, 3, 4, 5, 6, 7, 8]);
            assert_eq!(
                (raw.vendor_id, raw.vendor_part_id, raw.hw_ver),
                (101, 102, 103)
            );
            assert_eq!(raw.device_cap_flags, 1 << 12 | 1 << 40);
            assert_eq!((raw.max_qp, raw.max_qp_wr), (106, 107));
            assert_eq!(
                (raw.max_send_sge, raw.max_recv_sge, raw.max_sge_rd),
                (108, 109, 110)
            );
            assert_eq!((raw.max_cq, raw.max_cqe), (111, 112));
            assert_eq!(raw.cq_caps.max_cq_moderation_count, 113);
            assert_eq!(raw.cq_caps.max_cq_moderation_period, 114);
            assert_eq!(
                (raw.max_srq, raw.max_srq_wr, raw.max_srq_sge),
                (115, 116, 117)
            );
            assert_eq!((raw.max_mcast_grp, raw.max_mcast_qp_attach), (118, 119));
            assert_eq!((raw.max_total_mcast_qp_attach, raw.max_mr), (120, 121));
            assert_eq!((raw.max_fast_reg_page_list_len, raw.max_mw), (122, 123));
            assert_eq!((raw.max_pd, raw.max_ah), (124, 125));
            assert_eq!((raw.max_qp_rd_atom, raw.max_qp_init_rd_atom), (126, 127));
            assert_eq!((raw.max_res_rd_atom, raw.max_pkeys), (128, 129));
            assert_eq!(raw.atomic_cap, bindings::ib_atomic_cap_IB_ATOMIC_GLOB);
            assert_eq!((raw.local_ca_ack_delay, raw.timestamp_mask), (30, 131));
            assert_eq!(raw.hca_core_clock, 132);

            let flags = bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY
                | bindings::ib_kernel_cap_flags_IBK_ON_DEMAND_PAGING;
            assert_eq!(raw.kernel_cap_flags, u64::from(flags));
            let paging = &raw.odp_caps;
            assert_eq!(
                paging.general_caps,
                u64::from(bindings::ib_odp_general_cap_bits_IB_ODP_SUPPORT)
            );
            assert_eq!(
                paging.per_transport_caps.rc_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_SEND
                    | bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_FLUSH
            );
            assert_eq!(
                paging.per_transport_caps.uc_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_WRITE
            );
            assert_eq!(
                paging.per_transport_caps.ud_odp_caps,
                bindings::ib_odp_transport_cap_bits_IB_ODP_SUPPORT_RECV
            );
            Ok(())
        })
    }

    #[test]
    fn ports_are_what_their_driver_says() -> Result {
        with_device(|device, _| {
            for port in [Port::FIRST, second_port()?] {
                let expected = port_attributes(port);
                let mut raw = bindings::ib_port_attr::default();
                // SAFETY: The device is registered, and there is room.
                to_result(unsafe {
                    bindings::ib_query_port(device.as_raw(), port.number(), &mut raw)
                })?;
                assert_eq!(raw.state, bindings::ib_port_state_IB_PORT_ACTIVE);
                assert_eq!(
                    u32::from(raw.phys_state),
                    bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP
                );
                assert_eq!(
                    (raw.max_mtu, raw.active_mtu),
                    (Mtu::Mtu4096.raw(), Mtu::Mtu1024.raw())
                );
                assert_eq!(raw.active_width, expected.active_width);
                assert_eq!(raw.active_speed, expected.active_speed);
                assert_eq!((raw.pkey_tbl_len, raw.gid_tbl_len), (3, 13));
                assert_eq!(raw.max_msg_sz, expected.max_message_size);
                assert_eq!(raw.bad_pkey_cntr, expected.bad_pkey_count);
                assert_eq!(raw.qkey_viol_cntr, expected.qkey_violation_count);
                assert_eq!((raw.max_vl_num, raw.ip_gids()), (1, 1));

                // SAFETY: As above; there is data for each port.
                let immutable = unsafe {
                    let ports = (*device.as_raw()).port_data;
                    &(*ports.add(port.number() as usize)).immutable
                };
                assert_eq!((immutable.pkey_tbl_len, immutable.gid_tbl_len), (3, 13));
                assert_eq!(
                    immutable.core_cap_flags,
                    bindings::RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP
                );
                assert_eq!(immutable.max_mad_size, bindings::IB_MGMT_MAD_SIZE);

                let mut pkey = 0;
                // SAFETY: As above.
                to_result(unsafe {
                    bindings::ib_query_pkey(device.as_raw(), port.number(), 2, &mut pkey)
                })?;
                assert_eq!(u32::from(pkey), 0x8002 | port.number() << 8);
                // SAFETY: As above.
                let layer =
                    unsafe { bindings::rdma_port_get_link_layer(device.as_raw(), port.number()) };
                assert_eq!(layer, bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET);
            }
            // There is no port 0, whoever asks.
            let mut raw = bindings::ib_port_attr::default();
            let query = verb!(device, query_port(device.as_raw(), 0, &mut raw));
            assert_eq!(to_result(query), Err(EINVAL));
            Ok(())
        })
    }

    #[test]
    fn a_port_follows_its_network_device() -> Result {
        let (_others, netdev) = (Ethernet::new(&[2, 0, 0, 0, 0, 9])?, Ethernet::new(&MAC)?);
        with_device(|device, log| {
            let followed = |netdev| {
                let expected = Some((Port::FIRST, netdev));
                wait_until(|| *log.followed.lock() == expected)
            };
            // SAFETY: The device is registered until after this is dropped.
            let events = unsafe { PortEvents::new(device.as_raw()) };
            let events = KBox::pin_init(events, GFP_KERNEL)?;
            let told = |count| wait_until(|| events.count() == count);

            assert_eq!(
                *log.followed.lock(),
                Some((Port::FIRST, Some((false, 1500))))
            );
            netdev.set_mtu(1000)?;
            followed(Some((false, 1000)))?;
            netdev.open()?;
            followed(Some((true, 1000)))?;
            told((1, 0))?;
            netdev.set_mtu(1400)?;
            followed(Some((true, 1400)))?;
            netdev.lose_carrier();
            followed(Some((false, 1400)))?;
            told((1, 1))?;

            drop(netdev);
            followed(None)?;
            let netdev = Ethernet::new(&MAC)?;
            followed(Some((false, 1500)))?;
            assert_eq!(events.count(), (1, 1));
            netdev.open()?;
            told((2, 1))?;
            drop(netdev);
            followed(None)?;
            told((2, 2))
        })
    }

    #[test]
    fn the_version_of_the_firmware_is_cut_off() -> Result {
        with_device(|device, _| {
            const ROOM: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;

            let mut text = [0xff_u8; ROOM + 1];
            // SAFETY: There is room.
            unsafe {
                bindings::ib_get_device_fw_str(device.as_raw(), text.as_mut_ptr().cast());
            }
            assert_eq!(&text[..ROOM - 1], &FIRMWARE.as_bytes()[..ROOM - 1]);
            assert_eq!(text[ROOM - 1..], [0, 0xff]);
            Ok(())
        })
    }

    #[test]
    fn a_network_device_is_that_of_its_port() -> Result {
        with_device(|device, _| {
            let of = |port| {
                // SAFETY: The device is registered.
                unsafe { Netdev::of_port(device.as_raw(), port) }
            };
            let bind = |netdev| {
                // SAFETY: The device is registered; the network device is there for ever.
                to_result(unsafe { bindings::ib_device_set_netdev(device.as_raw(), netdev, 2) })
            };
            // SAFETY: Set when the kernel started.
            let loopback = unsafe { bindings::init_net.loopback_dev };
            assert!(of(Port::FIRST).is_none() && of(second_port()?).is_none());
            bind(loopback)?;
            assert!(of(Port::FIRST).is_none());
            let netdev = of(second_port()?).ok_or(ENOENT)?;
            assert_eq!(netdev.mtu(), 65536);
            bind(null_mut())?;
            assert!(of(second_port()?).is_none());
            // It stays as long as it is used.
            assert_eq!(netdev.mtu(), 65536);
            Ok(())
        })
    }
}

#[kunit_tests(rdma_verbs)]
mod verbs {
    use super::*;

    #[test]
    fn a_domain_goes_when_it_is_deallocated() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let pd = Domain::new(device)?;
            assert_eq!(log.asked(), Some(Asked::Domain(None)));
            assert_eq!(log.objects(), others + 1);

            let number = pd.number();
            drop(pd);
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn processes_are_answered() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let mut process = Process::new(device)?;
            assert_eq!(log.asked(), Some(Asked::Context(7)));
            assert_eq!(process.memory.read()?, !7);

            let mut pd = room!(device, ib_pd, Pd);
            let mut call = process.call(8)?;
            to_result(verb!(device, alloc_pd(pd.as_raw(), call.udata())))?;
            assert_eq!(log.asked(), Some(Asked::Domain(Some(8))));
            assert_eq!(process.memory.read()?, !8);
            assert_eq!(log.objects(), others + 2);

            let mut bare = process.bare_call()?;
            to_result(verb!(device, dealloc_pd(pd.as_raw(), bare.udata())))?;
            process.end(device)?;
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }

    #[test]
    fn windows_have_a_type_and_a_key() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            for (raw, ty) in [
                (bindings::ib_mw_type_IB_MW_TYPE_1, mw::Type::Type1),
                (bindings::ib_mw_type_IB_MW_TYPE_2, mw::Type::Type2),
            ] {
                let mut mw = room!(device, ib_mw, Mw);
                let mut call = process.call(9)?;
                // SAFETY: Ours alone.
                unsafe {
                    (*mw.as_raw()).pd = pd.0;
                    (*mw.as_raw()).type_ = raw;
                }
                to_result(verb!(device, alloc_mw(mw.as_raw(), call.udata())))?;
                assert_eq!(log.asked(), Some(Asked::Window(ty, 9)));
                assert_eq!(process.memory.read()?, !9);
                // SAFETY: It was constructed.
                let (rkey, number) = unsafe {
                    let this = Mw::<Object>::from_raw(mw.as_raw());
                    ((*mw.as_raw()).rkey, this.number)
                };
                assert_eq!(rkey, keys(number).1);
                to_result(verb!(device, dealloc_mw(mw.as_raw())))?;
                assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            }
            process.end(device)
        })
    }

    #[test]
    fn handles_are_paths() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let mut theirs = new_handle(device, log, Some(process.call(14)?))?;
            assert_eq!(process.memory.read()?, !14);
            to_result(verb!(device, destroy_ah(theirs.as_raw(), 0)))?;
            process.end(device)?;

            let mut ah = new_handle(device, log, None)?;
            let mut raw = bindings::rdma_ah_attr::default();
            to_result(verb!(device, query_ah(ah.as_raw(), &mut raw)))?;
            // SAFETY: It was constructed.
            let number = unsafe { Ah::<Object>::from_raw(ah.as_raw()) }.number;
            assert_eq!(ah::Attributes::from_raw(&raw)?.flow_label, number);

            // What they are for.
            let mut wr = bindings::ib_ud_wr {
                ah: ah.as_raw(),
                remote_qpn: 0x12_3456,
                remote_qkey: 0x789a_bcde,
                pkey_index: 0x1234,
                port_num: 99,
                ..Default::default()
            };
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_SEND;
            wr.wr.ex.bindgen_union_field = u32::from_ne_bytes([1, 2, 3, 4]);
            for (ty, opcode, with) in [
                (
                    qp::Type::UnreliableDatagram,
                    bindings::ib_wr_opcode_IB_WR_SEND,
                    None,
                ),
                (
                    qp::Type::Gsi,
                    bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM,
                    Some(0x0102_0304),
                ),
            ] {
                wr.wr.opcode = opcode;
                // SAFETY: A request that is what its operation demands, and does not change.
                let mut list =
                    unsafe { SendRequests::<TestDriver>::new((&raw const wr).cast(), ty) };
                let Operation::Datagram {
                    ah: handle,
                    remote_qpn,
                    remote_qkey,
                    pkey_index,
                    immediate,
                } = list.next().ok_or(ENOENT)??.operation
                else {
                    return Err(EINVAL);
                };
                assert_eq!(handle.number, number);
                assert_eq!((remote_qpn, remote_qkey), (0x12_3456, 0x789a_bcde));
                assert_eq!((pkey_index, immediate), (0x1234, with));
            }
            to_result(verb!(device, destroy_ah(ah.as_raw(), 0)))
        })
    }

    /// A handle, made for the process whose call this is, if it is one, and whose request is 14.
    fn new_handle(
        device: &Device<TestDriver>,
        log: &Log,
        call: Option<UserCall>,
    ) -> Result<Memory<bindings::ib_ah>> {
        let path = ah::Attributes {
            dgid: Gid([9; 16]),
            flow_label: 0x5_4321,
            port: second_port()?,
            ..Default::default()
        };
        let mut raw = bindings::rdma_ah_attr::default();
        path.write(&mut raw);
        let mut init = bindings::rdma_ah_init_attr {
            ah_attr: &mut raw,
            ..Default::default()
        };
        let mut ah = room!(device, ib_ah, Ah);
        let request = call.is_some().then_some(14);
        let created = match call {
            Some(mut call) => {
                verb!(device, create_user_ah(ah.as_raw(), &mut init, call.udata()))
            }
            None => verb!(device, create_ah(ah.as_raw(), &mut init, null_mut())),
        };
        to_result(created)?;
        if log.asked() != Some(Asked::Handle(path, request)) {
            return Err(EINVAL);
        }
        Ok(ah)
    }

    #[test]
    fn counters_have_names_and_values() -> Result {
        with_device(|device, log| {
            let stats = verb!(device, alloc_hw_port_stats(device.as_raw(), 2));
            // SAFETY: It was allocated for three counters.
            unsafe {
                assert_eq!((*stats).num_counters, 3);
                let names = core::slice::from_raw_parts((*stats).descs, 3);
                for (counter, name) in names.iter().zip([c"first", c"second", c"third"]) {
                    assert_eq!(CStr::from_char_ptr(counter.name), name);
                }
            }
            let read = verb!(device, get_hw_stats(device.as_raw(), stats, 2, 0));
            assert_eq!(read, 3);
            assert_eq!(log.asked(), Some(Asked::PortCounters(second_port()?)));
            // SAFETY: As above.
            let values = unsafe { core::slice::from_raw_parts((*stats).value.as_ptr(), 3) };
            assert_eq!(values, [200, 201, 202]);
            // SAFETY: Ours, and not used any more.
            unsafe { bindings::rdma_free_hw_stats_struct(stats) };
            Ok(())
        })
    }

    #[test]
    fn counters_are_bound_to_queue_pairs() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let number = qp.number();
            let mut counter = KBox::new(bindings::rdma_counter::default(), GFP_KERNEL)?;
            counter.device = device.as_raw();
            counter.port = 2;
            counter.stats = verb!(device, counter_alloc_stats(&raw mut *counter));

            // Counters that nobody got are destroyed again.
            log.keeps.store(true, SeqCst);
            let bound = verb!(device, counter_bind_qp(&raw mut *counter, qp.as_raw(), 2));
            log.keeps.store(false, SeqCst);
            assert_eq!((to_result(bound), counter.id), (Err(EBUSY), 0));
            let Some(Asked::DestroyCounter(refused)) = log.asked() else {
                return Err(EINVAL);
            };
            // SAFETY: The queue pair is ours.
            assert!(unsafe { (*qp.as_raw()).counter }.is_null());

            to_result(verb!(
                device,
                counter_bind_qp(&raw mut *counter, qp.as_raw(), 2)
            ))?;
            assert_eq!(counter.id, refused + 1);
            let bound = Asked::BindCounter(number, counter.id);
            assert_eq!(log.asked(), Some(bound));
            // SAFETY: As above.
            assert_eq!(unsafe { (*qp.as_raw()).counter }, &raw mut *counter);

            to_result(verb!(device, counter_update_stats(&raw mut *counter)))?;
            assert_eq!(log.asked(), Some(Asked::ReadCounter(counter.id)));
            // SAFETY: Allocated for three counters.
            let values = unsafe { core::slice::from_raw_parts((*counter.stats).value.as_ptr(), 3) };
            let first = 1000 * u64::from(counter.id);
            assert_eq!(values, [first, first + 1, first + 2]);

            to_result(verb!(device, counter_unbind_qp(qp.as_raw(), 2)))?;
            assert_eq!(log.asked(), Some(Asked::UnbindCounter(number)));
            // SAFETY: As above.
            assert!(unsafe { (*qp.as_raw()).counter }.is_null());
            to_result(verb!(device, counter_dealloc(&raw mut *counter)))?;
            assert_eq!(log.asked(), Some(Asked::DestroyCounter(counter.id)));
            // SAFETY: Ours, and not used any more.
            unsafe { bindings::rdma_free_hw_stats_struct(counter.stats) };
            qp.end(device)
        })
    }
}

#[kunit_tests(rdma_answers)]
mod answers {
    use super::*;

    #[test]
    fn a_queue_pair_is_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            let mut attr = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
            let (init, attr) = (&raw mut *init, &raw mut *attr);
            assert!(fills(|attr| to_result(verb!(
                device,
                query_qp(raw, attr, 0, init)
            )))?);
            assert!(fills(|init| to_result(verb!(
                device,
                query_qp(raw, attr, 0, init)
            )))?);
            qp.end(device)
        })
    }

    #[test]
    fn other_objects_are_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let pd = Domain::new(device)?;
            let mut srq = queues::new_shared(device, &pd, null_mut())?;
            let raw = srq.as_raw();
            assert!(fills(|attr| to_result(verb!(
                device,
                query_srq(raw, attr)
            )))?);
            to_result(verb!(device, destroy_srq(raw, null_mut())))?;

            let mut path = bindings::rdma_ah_attr::default();
            ah::Attributes::default().write(&mut path);
            let mut init = bindings::rdma_ah_init_attr {
                ah_attr: &mut path,
                ..Default::default()
            };
            let mut ah = room!(device, ib_ah, Ah);
            let raw = ah.as_raw();
            to_result(verb!(device, create_ah(raw, &mut init, null_mut())))?;
            assert!(fills(|attr| to_result(verb!(device, query_ah(raw, attr))))?);
            to_result(verb!(device, destroy_ah(raw, 0)))
        })
    }

    #[test]
    fn a_device_and_its_ports_are_described_as_a_whole() -> Result {
        with_device(|device, _| {
            let raw = device.as_raw();
            let mut call = UserCall::new(&ProcessMemory::new(1)?, 0, null_mut())?;
            let udata = call.udata();
            assert!(fills(|attr| to_result(verb!(
                device,
                query_device(raw, attr, udata)
            )))?);
            assert!(fills(|attr| to_result(verb!(
                device,
                query_port(raw, 1, attr)
            )))?);
            assert!(fills(|port| to_result(verb!(
                device,
                get_port_immutable(raw, 1, port)
            )))?);
            assert!(fills(|pkey| to_result(verb!(
                device,
                query_pkey(raw, 1, 0, pkey)
            )))?);
            Ok(())
        })
    }

    #[test]
    fn completions_are_written_as_a_whole() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            log.completing.store(qp.number(), SeqCst);
            let cq = qp.queues[0].0.as_raw();
            assert!(fills(|wc| match verb!(device, poll_cq(cq, 1, wc)) {
                1 => Ok(()),
                _ => Err(EIO),
            })?);
            qp.end(device)
        })
    }
}

#[kunit_tests(rdma_mmap)]
mod mappings {
    use super::*;

    /// A process that may map memory, and where.
    fn open(device: &Device<TestDriver>) -> Result<(Process, Offsets)> {
        let process = Process::open(device, MAPPABLE, true)?;
        let offsets = Offsets::from_response(process.memory.read()?);
        Ok((process, offsets))
    }

    #[test]
    fn processes_share_pages_with_the_device() -> Result {
        with_device(|device, log| {
            let (process, offsets) = open(device)?;
            let shared = log.take_shared()?;
            let memory = process.file.map(SHARED_PAGES, offsets.shared)?;
            let again = process.file.map(SHARED_PAGES, offsets.shared)?;
            for page in 0..SHARED_PAGES {
                assert_eq!(memory.page(page).read()?, 0);
                let word = 0x100 + page as u32;
                memory
                    .page(page)
                    .write(u64::from(word) << 32 | u64::from(word))?;
                let seen = shared.with_u32(page * PAGE_SIZE, |seen| seen.swap(!word, SeqCst))?;
                assert_eq!(seen, word);
                let answer = again.page(page).read()?.to_ne_bytes();
                assert_eq!(answer[..4], (!word).to_ne_bytes());
            }
            process.end(device)
        })
    }

    #[test]
    fn device_memory_is_mapped_uncached() -> Result {
        with_device(|device, _| {
            let (process, offsets) = open(device)?;
            let memory = process.file.map(DEVICE_PAGES, offsets.device)?;
            for page in 0..DEVICE_PAGES {
                let address = DEVICE_MEMORY + (page * PAGE_SIZE) as PhysAddr;
                assert_eq!(memory.page(page).uncached(), Some(address));
            }
            memory.unmap(0..DEVICE_PAGES)?;
            process.end(device)
        })
    }

    #[test]
    fn memory_is_mapped_as_a_whole_and_shared() -> Result {
        with_device(|device, _| {
            let (process, offsets) = open(device)?;
            let page = PAGE_SIZE as u64;
            assert_ne!(offsets.device, offsets.shared);
            for (pages, offset) in [
                (DEVICE_PAGES - 1, offsets.device),
                (DEVICE_PAGES + 1, offsets.device),
                (DEVICE_PAGES - 1, offsets.device + page),
                (SHARED_PAGES - 1, offsets.shared),
                (SHARED_PAGES + 1, offsets.shared),
                (SHARED_PAGES - 1, offsets.shared + page),
                (SHARED_PAGES, 1000 * page),
            ] {
                assert_eq!(process.file.map(pages, offset).err(), Some(EINVAL));
            }
            for (pages, offset) in [
                (DEVICE_PAGES, offsets.device),
                (SHARED_PAGES, offsets.shared),
            ] {
                let private = process.file.map_private(pages, offset);
                assert_eq!(private.err(), Some(EINVAL));
            }
            process.end(device)
        })
    }

    #[test]
    fn pages_stay_mapped_when_their_context_is_gone() -> Result {
        with_device(|device, log| {
            let (process, offsets) = open(device)?;
            let memory = process.file.map(SHARED_PAGES, offsets.shared)?;
            process.end(device)?;
            // Nobody else has them but those who map them.
            let shared = Arc::into_unique_or_drop(log.take_shared()?).ok_or(EBUSY)?;
            shared.with_u32(PAGE_SIZE, |word| word.store(u32::MAX, SeqCst))?;
            drop(shared);
            let last = memory.page(1).read()?.to_ne_bytes();
            assert_eq!(last[..4], u32::MAX.to_ne_bytes());
            Ok(())
        })
    }

    #[test]
    fn a_context_that_fails_leaves_nothing_to_map() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let refused = Process::open(device, MAPPABLE_BUT_REFUSED, true);
            assert_eq!(refused.err(), Some(EBUSY));
            assert!(Arc::into_unique_or_drop(log.take_shared()?).is_some());
            let unanswered = Process::open(device, MAPPABLE, false);
            assert_eq!(unanswered.err(), Some(EFAULT));
            assert!(Arc::into_unique_or_drop(log.take_shared()?).is_some());
            assert_eq!(log.objects(), others);
            Ok(())
        })
    }
}

#[kunit_tests(rdma_regions)]
mod regions {
    use super::*;

    /// The keys of a region, and the number of the driver's object.
    ///
    /// # Safety
    ///
    /// `mr` must be a region of the driver.
    unsafe fn region(mr: *mut bindings::ib_mr) -> ((u32, u32), u32) {
        // SAFETY: By contract.
        unsafe {
            let this = &*mr.cast::<Mr<Object>>();
            (((*mr).lkey, (*mr).rkey), this.number)
        }
    }

    #[test]
    fn regions_of_processes_have_ranges_and_rights() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let pd = Domain::new(device)?;
            let access = Access::RemoteRead | Access::LocalWrite;
            let (start, length, iova) = (0x1111_0000_0000, 0x2222_0000_0000, 0x3333_0000_0000);

            let mut call = process.call(10)?;
            let mr = from_err_ptr(verb!(
                device,
                reg_user_mr(
                    pd.0,
                    start,
                    length,
                    iova,
                    access.bits() as c_int,
                    null_mut(),
                    call.udata()
                )
            ))?;
            let range = mr::Range {
                start,
                length,
                iova,
            };
            assert_eq!(log.asked(), Some(Asked::Region(range, access, 10)));
            assert_eq!(process.memory.read()?, !10);
            // SAFETY: Just made.
            let (both, number) = unsafe { region(mr) };
            assert_eq!(both, keys(number));
            // SAFETY: As above.
            assert_eq!(unsafe { ((*mr).device, (*mr).pd) }, (device.as_raw(), pd.0));

            change(device, &mut process, mr, log)?;

            log.keeps.store(true, SeqCst);
            assert_eq!(
                to_result(verb!(device, dereg_mr(mr, null_mut()))),
                Err(EBUSY)
            );
            log.keeps.store(false, SeqCst);
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            process.end(device)
        })
    }

    /// Changes a region in each way.
    fn change(
        device: &Device<TestDriver>,
        process: &mut Process,
        mr: *mut bindings::ib_mr,
        log: &Log,
    ) -> Result {
        const TRANS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_TRANS;
        const PD: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_PD;
        const ACCESS: u32 = bindings::ib_mr_rereg_flags_IB_MR_REREG_ACCESS;

        let other = Domain::new(device)?;
        let new_range = mr::Range {
            start: 0x4444,
            length: 0x5555,
            iova: 0x6666,
        };
        for flags in [TRANS, PD, ACCESS, TRANS | PD | ACCESS] {
            let has = |flag| flags & flag != 0;
            let mut call = process.bare_call()?;
            let result = from_err_ptr(verb!(
                device,
                rereg_user_mr(
                    mr,
                    flags as c_int,
                    new_range.start,
                    new_range.length,
                    new_range.iova,
                    Access::RemoteWrite as c_int,
                    if has(PD) { other.0 } else { null_mut() },
                    call.udata()
                )
            ))?;
            let expected = Asked::Change {
                range: has(TRANS).then_some(new_range),
                access: has(ACCESS).then_some(Access::RemoteWrite.into()),
                pd: has(PD).then_some(other.number()),
            };
            // SAFETY: It still exists.
            let (both, number) = unsafe { region(mr) };
            if !result.is_null() || log.asked() != Some(expected) || both != keys(number + 1000) {
                pr_err!("change {}: keys {:?} of region {}\n", flags, both, number);
                return Err(EINVAL);
            }
        }
        Ok(())
    }

    #[test]
    fn regions_of_other_kinds_have_what_they_need() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let access = Access::LocalWrite | Access::RemoteAtomic;
            let raw = access.bits() as c_int;

            let mr = from_err_ptr(verb!(
                device,
                reg_user_mr_dmabuf(pd.0, 0x111, 0x222, 0x333, 44, raw, null_mut(), null_mut())
            ))?;
            let range = mr::DmaBufRange {
                fd: 44,
                offset: 0x111,
                length: 0x222,
                iova: 0x333,
            };
            assert_eq!(log.asked(), Some(Asked::DmaBuf(range, access)));
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;

            let mr = from_err_ptr(verb!(device, get_dma_mr(pd.0, raw)))?;
            assert_eq!(log.asked(), Some(Asked::AllMemory(access)));
            to_result(verb!(device, dereg_mr(mr, null_mut())))?;

            log.asked();
            let mr = from_err_ptr(verb!(device, get_dma_mr(pd.0, 1 << 15)));
            assert_eq!((mr.err(), log.asked()), (Some(EOPNOTSUPP), None));
            let mr = from_err_ptr(verb!(
                device,
                alloc_mr(pd.0, bindings::ib_mr_type_IB_MR_TYPE_SG_GAPS, 1)
            ));
            assert_eq!((mr.err(), log.asked()), (Some(EOPNOTSUPP), None));
            Ok(())
        })
    }

    #[test]
    fn advice_is_understood() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let mut list = [1, 2].map(|i| bindings::ib_sge {
                addr: 0x1_0000_0000 * i,
                length: 77,
                lkey: 88,
            });
            let mut advise = |advice, flags, count| -> Result {
                to_result(verb!(
                    device,
                    advise_mr(pd.0, advice, flags, list.as_mut_ptr(), count, null_mut())
                ))
            };
            for (i, advice) in [
                mr::Advice::Prefetch,
                mr::Advice::PrefetchWrite,
                mr::Advice::PrefetchNoFault,
            ]
            .into_iter()
            .enumerate()
            {
                // CAST: Small constants, which are those of the user ABI.
                advise(i as u32, 0, 1)?;
                let piece = (0x1_0000_0000, 77, 88);
                assert_eq!(log.asked(), Some(Asked::Advice(advice, false, 1, piece)));
                advise(i as u32, 1, 2)?;
                let piece = (0x2_0000_0000, 77, 88);
                assert_eq!(log.asked(), Some(Asked::Advice(advice, true, 2, piece)));
            }
            assert_eq!(advise(3, 0, 1), Err(EOPNOTSUPP));
            assert_eq!(advise(0, 2, 1), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);
            Ok(())
        })
    }

    #[test]
    fn a_registration_has_the_pages_of_its_list() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            // SAFETY: The domain is valid.
            let mr = from_err_ptr(unsafe {
                bindings::ib_alloc_mr(pd.0, bindings::ib_mr_type_IB_MR_TYPE_MEM_REG, 4)
            })?;
            assert_eq!(log.asked(), Some(Asked::Fast(4)));
            let mut wr = bindings::ib_reg_wr {
                mr,
                key: 0x1234_5678,
                access: (Access::RemoteRead | Access::LocalWrite).bits() as c_int,
                ..Default::default()
            };
            wr.wr.opcode = bindings::ib_wr_opcode_IB_WR_REG_MR;
            // SAFETY: A request that is what its operation demands, and does not change while it is
            // looked at.
            let take = |wr: &bindings::ib_reg_wr| unsafe {
                SendRequests::<TestDriver>::new(
                    ptr::from_ref(wr).cast(),
                    qp::Type::ReliableConnection,
                )
                .next()
                .ok_or(ENOENT)?
            };
            // It has not been mapped.
            assert_eq!(take(&wr).err(), Some(EINVAL));

            // Two pages and a half, from the middle of the first one on. They are at no addresses
            // of memory, and nobody accesses them.
            let mut list = [bindings::scatterlist::default(); 2];
            (list[0].dma_address, list[0].dma_length) = (0x7_0000_0800, 0x800);
            (list[1].dma_address, list[1].dma_length) = (0x9_0000_0000, 0x1800);
            // The end of the list.
            list[1].page_link = 2;
            // SAFETY: The list has two elements, and nobody else uses the region.
            let mapped =
                unsafe { bindings::ib_map_mr_sg(mr, list.as_mut_ptr(), 2, null_mut(), 0x1000) };
            assert_eq!(mapped, 2);
            // SAFETY: It exists.
            let object = unsafe { &*mr.cast::<Mr<Object>>() };
            let pages = object.pages.each_ref().map(|page| page.load(SeqCst));
            assert_eq!(pages, [0x7_0000_0000, 0x9_0000_0000, 0x9_0000_1000, 0]);

            let Operation::Register {
                mr: taken,
                mapping,
                key,
                access,
            } = take(&wr)?.operation
            else {
                return Err(EINVAL);
            };
            assert_eq!((taken.number, key), (object.number, 0x1234_5678));
            assert_eq!(access, Access::RemoteRead | Access::LocalWrite);
            let expected = mr::Mapping {
                iova: 0x7_0000_0800,
                length: 0x2000,
                pages: 3,
                page_shift: 12,
            };
            assert_eq!(mapping, expected);
            wr.access = 1 << 15;
            assert_eq!(take(&wr).err(), Some(EOPNOTSUPP));

            // No more pages than there is room for, beginning with the first again.
            (list[0].dma_address, list[0].dma_length) = (0xa_0000_0000, 0x6000);
            // SAFETY: As above.
            let mapped =
                unsafe { bindings::ib_map_mr_sg(mr, list.as_mut_ptr(), 1, null_mut(), 0x1000) };
            assert_eq!(mapped, 0);
            wr.access = 0;
            let Operation::Register { mapping, .. } = take(&wr)?.operation else {
                return Err(EINVAL);
            };
            assert_eq!((mapping.iova, mapping.pages), (0xa_0000_0000, 4));
            assert_eq!(object.pages[3].load(SeqCst), 0xa_0000_3000);
            // SAFETY: The core made it, and nobody uses it any more.
            to_result(unsafe { bindings::ib_dereg_mr_user(mr, null_mut()) })
        })
    }
}

/// A queue pair of the kernel, and the completion queues of its sends and receives.
struct Pair {
    raw: Memory<bindings::ib_qp>,
    queues: [Queue; 2],
    pd: Domain,
}

impl Pair {
    fn new(device: &Device<TestDriver>) -> Result<Self> {
        let mut queues = [Queue::new(device, 5, 0)?, Queue::new(device, 6, 1)?];
        let [send_cq, recv_cq] = &mut queues;
        let pd = Domain::new(device)?;
        let mut raw = room!(device, ib_qp, Qp);
        let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
        init.qp_type = bindings::ib_qp_type_IB_QPT_RC;
        init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
        init.send_cq = send_cq.0.as_raw();
        init.recv_cq = recv_cq.0.as_raw();
        // SAFETY: What the core sets.
        unsafe {
            let qp = raw.as_raw();
            (*qp).pd = pd.0;
            (*qp).qp_type = init.qp_type;
            (*qp).send_cq = init.send_cq;
            (*qp).recv_cq = init.recv_cq;
            (*qp).port = 2;
        }
        to_result(verb!(
            device,
            create_qp(raw.as_raw(), &raw mut *init, null_mut())
        ))?;
        Ok(Self { raw, queues, pd })
    }

    fn as_raw(&mut self) -> *mut bindings::ib_qp {
        self.raw.as_raw()
    }

    fn number(&mut self) -> u32 {
        // SAFETY: It was constructed.
        unsafe { (*self.as_raw()).qp_num }
    }

    fn end(mut self, device: &Device<TestDriver>) -> Result {
        to_result(verb!(device, destroy_qp(self.as_raw(), null_mut())))?;
        let [send_cq, recv_cq] = self.queues;
        send_cq.end(device)?;
        recv_cq.end(device)?;
        drop(self.pd);
        Ok(())
    }
}

#[kunit_tests(rdma_queues)]
mod queues {
    use super::*;

    #[test]
    fn completion_queues_have_entries_and_a_vector() -> Result {
        with_device(|device, log| {
            let others = log.objects();
            let refused = |entries, vector| Queue::new(device, entries, vector).err();
            assert_eq!(refused(0, 0), Some(EINVAL));
            assert_eq!(refused(1, VECTORS), Some(EINVAL));
            assert_eq!((log.asked(), log.objects()), (None, others));

            let mut queue = Queue::new(device, 40, 2)?;
            let attributes = cq::Attributes {
                entries: 40,
                vector: 2,
                flags: 0,
            };
            assert_eq!(log.asked(), Some(Asked::Queue(attributes, None)));
            let raw = queue.0.as_raw();
            // SAFETY: It was constructed.
            let this = unsafe { Cq::<Object>::from_raw(raw) };
            assert_eq!((this.vector(), this.entries()), (2, 41));

            to_result(verb!(device, modify_cq(raw, 15, 16)))?;
            assert_eq!(log.asked(), Some(Asked::Moderate(15, 16)));

            let mut process = Process::new(device)?;
            let mut call = process.call(12)?;
            // SAFETY: There is no response.
            unsafe { (*call.udata()).outlen = 0 };
            to_result(verb!(device, resize_user_cq(raw, 50, call.udata())))?;
            assert_eq!(log.asked(), Some(Asked::Resize(50, 12)));
            assert_eq!(this.entries(), 52);
            process.end(device)?;

            const SOLICITED: u32 = bindings::ib_cq_notify_flags_IB_CQ_SOLICITED;
            const NEXT: u32 = bindings::ib_cq_notify_flags_IB_CQ_NEXT_COMP;
            const MISSED: u32 = bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS;
            for (flags, solicited_only, missed) in [
                (SOLICITED, true, 0),
                (NEXT, false, 0),
                (SOLICITED | MISSED, true, 1),
                (NEXT | MISSED, false, 1),
            ] {
                assert_eq!(verb!(device, req_notify_cq(raw, flags)), missed);
                assert_eq!(log.asked(), Some(Asked::Notify { solicited_only }));
            }
            let number = queue.number();
            queue.end(device)?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            Ok(())
        })
    }

    #[test]
    fn events_that_nobody_asked_for_are_not_told() -> Result {
        with_device(|device, log| {
            // While `ib_alloc_cq` makes the queue there is no work for the handler to queue, and
            // when `ib_free_cq` destroys it, there is no more.
            for context in [
                bindings::ib_poll_context_IB_POLL_DIRECT,
                bindings::ib_poll_context_IB_POLL_SOFTIRQ,
                bindings::ib_poll_context_IB_POLL_WORKQUEUE,
                bindings::ib_poll_context_IB_POLL_UNBOUND_WORKQUEUE,
            ] {
                log.raises.store(true, SeqCst);
                // SAFETY: The device is registered.
                let cq = from_err_ptr(unsafe {
                    bindings::__ib_alloc_cq(
                        device.as_raw(),
                        null_mut(),
                        1,
                        0,
                        context,
                        c"rdma".as_char_ptr(),
                    )
                })?;
                // SAFETY: It was constructed.
                let number = unsafe { Cq::<Object>::from_raw(cq) }.number();
                assert!(log.dispatcher.complete(0, number));
                // SAFETY: Just made, and nobody uses it.
                unsafe { bindings::ib_free_cq(cq) };
                log.raises.store(false, SeqCst);
                assert!(!log.dispatcher.complete(0, number));
            }
            Ok(())
        })
    }

    #[test]
    fn completions_are_of_queue_pairs_that_exist() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let cq = qp.queues[0].0.as_raw();
            let mut room = core::array::from_fn::<_, 3, _>(|_| bindings::ib_wc::default());
            assert_eq!(verb!(device, poll_cq(cq, 3, room.as_mut_ptr())), 0);
            log.completing.store(qp.number(), SeqCst);
            assert_eq!(verb!(device, poll_cq(cq, 2, room.as_mut_ptr())), 2);
            for (i, wc) in room.iter().enumerate() {
                let expected = if i < 2 {
                    (raw, i as u64)
                } else {
                    (null_mut(), 0)
                };
                assert_eq!((wc.qp, wc.__bindgen_anon_1.bindgen_union_field), expected);
            }
            assert!(verb!(device, poll_cq(cq, -1, room.as_mut_ptr())) < 0);
            qp.end(device)
        })
    }

    #[test]
    fn buffers_of_processes_are_pinned_where_they_say() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let address = process.memory.address() + 16;
            let attributes = bindings::ib_cq_init_attr {
                cqe: 4,
                comp_vector: 1,
                flags: 3,
            };
            let mut cq = room!(device, ib_cq, Cq);
            let mut call = process.call(address)?;
            to_result(verb!(
                device,
                create_user_cq(cq.as_raw(), &attributes, call.attributes())
            ))?;
            let attributes = cq::Attributes {
                entries: 4,
                vector: 1,
                flags: 3,
            };
            assert_eq!(log.asked(), Some(Asked::Queue(attributes, Some(address))));
            assert_eq!(process.memory.read()?, !address);
            to_result(verb!(device, destroy_cq(cq.as_raw(), null_mut())))?;
            process.end(device)
        })
    }

    #[test]
    fn queue_pairs_get_what_was_asked_for() -> Result {
        with_device(|device, log| {
            let (mut send_cq, mut recv_cq) = (Queue::new(device, 1, 0)?, Queue::new(device, 1, 0)?);
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            init.qp_type = bindings::ib_qp_type_IB_QPT_UD;
            init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_REQ_WR;
            init.send_cq = send_cq.0.as_raw();
            init.recv_cq = recv_cq.0.as_raw();
            init.srq = srq.as_raw();
            init.cap = bindings::ib_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 2,
                max_send_sge: 3,
                max_recv_sge: 4,
                max_inline_data: 5,
                max_rdma_ctxs: 6,
            };
            let mut qp = room!(device, ib_qp, Qp);
            // SAFETY: What the core sets.
            unsafe {
                (*qp.as_raw()).pd = pd.0;
                (*qp.as_raw()).send_cq = init.send_cq;
                (*qp.as_raw()).recv_cq = init.recv_cq;
            }
            let mut create = |init: *mut _| -> Result {
                to_result(verb!(device, create_qp(qp.as_raw(), init, null_mut())))
            };
            create(&raw mut *init)?;
            // SAFETY: It was constructed.
            let srq_number = unsafe { Srq::<Object>::from_raw(srq.as_raw()) }.number;
            let expected = Asked::QueuePair {
                ty: qp::Type::UnreliableDatagram,
                capabilities: qp::Capabilities {
                    max_send_wr: 1,
                    max_recv_wr: 2,
                    max_send_sge: 3,
                    max_recv_sge: 4,
                    max_inline_data: 5,
                },
                signal_all: false,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                srq: Some(srq_number),
                request: None,
            };
            assert_eq!(log.asked(), Some(expected));
            // What it holds is told; what the driver does not know of stays.
            let told = &init.cap;
            assert_eq!((told.max_send_wr, told.max_recv_wr), (11, 12));
            assert_eq!((told.max_send_sge, told.max_recv_sge), (13, 14));
            assert_eq!((told.max_inline_data, told.max_rdma_ctxs), (15, 6));
            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;

            // What has no name is refused before the driver is asked.
            log.asked();
            let mut create = |init: *mut _| -> Result {
                to_result(verb!(device, create_qp(qp.as_raw(), init, null_mut())))
            };
            init.create_flags = bindings::ib_qp_create_flags_IB_QP_CREATE_NETDEV_USE.unsigned_abs();
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            init.create_flags = 0;
            init.qp_type = bindings::ib_qp_type_IB_QPT_RAW_PACKET;
            assert_eq!(create(&raw mut *init), Err(EOPNOTSUPP));
            init.qp_type = bindings::ib_qp_type_IB_QPT_UD;
            init.recv_cq = null_mut();
            assert_eq!(create(&raw mut *init), Err(EINVAL));
            assert_eq!(log.asked(), None);

            to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))?;
            send_cq.end(device)?;
            recv_cq.end(device)
        })
    }

    #[test]
    fn processes_are_answered_when_they_make_queues() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            // They say where their buffers are.
            let buffer = process.memory.address();
            let (mut send_cq, mut recv_cq) = (Queue::new(device, 1, 0)?, Queue::new(device, 1, 0)?);
            let pd = Domain::new(device)?;

            let mut call = process.call(buffer + 11)?;
            let mut srq = new_shared(device, &pd, call.udata())?;
            let asked = srq::Attributes {
                max_wr: 30,
                max_sge: 3,
                limit: 0,
            };
            assert_eq!(
                log.asked(),
                Some(Asked::SharedQueue(asked, Some(buffer + 11)))
            );
            assert_eq!(process.memory.read()?, !(buffer + 11));

            let mut attr = bindings::ib_srq_attr {
                max_wr: 70,
                ..Default::default()
            };
            let mask = bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR;
            let mut call = process.call(12)?;
            to_result(verb!(
                device,
                modify_srq(srq.as_raw(), &mut attr, mask, call.udata())
            ))?;
            assert_eq!(log.asked(), Some(Asked::SharedResize(70, Some(12))));

            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            init.qp_type = bindings::ib_qp_type_IB_QPT_UC;
            init.sq_sig_type = bindings::ib_sig_type_IB_SIGNAL_ALL_WR;
            init.send_cq = send_cq.0.as_raw();
            init.recv_cq = recv_cq.0.as_raw();
            init.cap.max_send_wr = 9;
            let mut qp = room!(device, ib_qp, Qp);
            // SAFETY: What the core sets.
            unsafe {
                (*qp.as_raw()).pd = pd.0;
                (*qp.as_raw()).send_cq = init.send_cq;
                (*qp.as_raw()).recv_cq = init.recv_cq;
            }
            let mut call = process.call(buffer + 13)?;
            to_result(verb!(
                device,
                create_qp(qp.as_raw(), &raw mut *init, call.udata())
            ))?;
            let asked = Asked::QueuePair {
                ty: qp::Type::UnreliableConnection,
                capabilities: qp::Capabilities {
                    max_send_wr: 9,
                    ..Default::default()
                },
                signal_all: true,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                srq: None,
                request: Some(buffer + 13),
            };
            assert_eq!(log.asked(), Some(asked));
            assert_eq!(process.memory.read()?, !(buffer + 13));
            assert_eq!(init.cap.max_send_wr, CAPABILITIES.max_send_wr);

            to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))?;
            to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))?;
            send_cq.end(device)?;
            recv_cq.end(device)?;
            process.end(device)
        })
    }

    /// Makes objects of a process, with the buffer of its request and with one that `attribute`
    /// describes.
    fn buffers(
        process: &mut Process,
        log: &Log,
        attribute: u32,
        create: impl Fn(UserCall) -> Result,
    ) -> Result {
        let (address, page) = (process.memory.address(), PAGE_SIZE as u64);
        let descriptor = process.memory.page(1);
        let describe = |address, length: u64| -> Result {
            // `struct ib_uverbs_buffer_desc`, in words of 64 bits.
            let ty = bindings::ib_uverbs_buffer_type_IB_UVERBS_BUFFER_TYPE_VA;
            let mut writer = descriptor.user(32).writer();
            for word in [u64::from(ty), 0, address, length] {
                writer.write(&word)?;
            }
            Ok(())
        };

        create(process.call(address)?)?;
        assert_buffer(log, (address, 100))?;
        describe(address + page / 2, 200)?;
        let mut call = process.call(address)?;
        call.set_attribute(attribute, descriptor.address(), 32);
        create(call)?;
        assert_buffer(log, (address + page / 2, 200))?;

        // One that is too small.
        describe(address, 99)?;
        let mut call = process.call(address)?;
        call.set_attribute(attribute, descriptor.address(), 32);
        match create(call) {
            Err(EINVAL) => Ok(()),
            _ => Err(EBADE),
        }
    }

    fn assert_buffer(log: &Log, expected: (u64, usize)) -> Result {
        let buffer = log.buffer.lock().take();
        if buffer != Some(expected) {
            pr_err!("a buffer {:x?} instead of {:x?}\n", buffer, expected);
            return Err(EBADE);
        }
        Ok(())
    }

    #[test]
    fn buffers_are_where_the_call_says() -> Result {
        with_device(|device, log| {
            let mut process = Process::new(device)?;
            let (mut send_cq, pd) = (Queue::new(device, 1, 0)?, Domain::new(device)?);

            let of_cq =
                bindings::uverbs_attrs_create_cq_cmd_attr_ids_UVERBS_ATTR_CREATE_CQ_BUF_UMEM;
            buffers(&mut process, log, of_cq, |mut call| {
                let mut cq = room!(device, ib_cq, Cq);
                let attributes = bindings::ib_cq_init_attr {
                    cqe: 1,
                    ..Default::default()
                };
                let made = verb!(
                    device,
                    create_user_cq(cq.as_raw(), &attributes, call.attributes())
                );
                to_result(made)?;
                to_result(verb!(device, destroy_cq(cq.as_raw(), null_mut())))
            })?;
            let of_srq =
                bindings::uverbs_attrs_create_srq_cmd_attr_ids_UVERBS_ATTR_CREATE_SRQ_BUF_UMEM;
            buffers(&mut process, log, of_srq, |mut call| {
                let mut srq = new_shared(device, &pd, call.udata())?;
                to_result(verb!(device, destroy_srq(srq.as_raw(), null_mut())))
            })?;

            let cq = send_cq.0.as_raw();
            let make_qp = |mut call: UserCall| {
                let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
                init.qp_type = bindings::ib_qp_type_IB_QPT_RC;
                (init.send_cq, init.recv_cq) = (cq, cq);
                let mut qp = room!(device, ib_qp, Qp);
                // SAFETY: What the core sets.
                unsafe {
                    (*qp.as_raw()).pd = pd.0;
                    ((*qp.as_raw()).send_cq, (*qp.as_raw()).recv_cq) = (cq, cq);
                }
                to_result(verb!(
                    device,
                    create_qp(qp.as_raw(), &raw mut *init, call.udata())
                ))?;
                to_result(verb!(device, destroy_qp(qp.as_raw(), null_mut())))
            };
            let of_qp =
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_BUF_UMEM;
            buffers(&mut process, log, of_qp, make_qp)?;
            // It has one buffer.
            for two in [
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_RQ_BUF_UMEM,
                bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_SQ_BUF_UMEM,
            ] {
                let address = process.memory.address();
                let mut call = process.call(address)?;
                call.set_attribute(two, address, 32);
                assert_eq!(make_qp(call), Err(EOPNOTSUPP));
            }
            send_cq.end(device)?;
            process.end(device)
        })
    }

    #[test]
    fn queue_pairs_change_and_are_asked() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut attr = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
            let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
            attr.qp_state = bindings::ib_qp_state_IB_QPS_INIT;
            attr.port_num = 2;
            let mask = qp::Attribute::State | qp::Attribute::Port;
            let mut call = |mask: c_int| -> Result {
                to_result(verb!(
                    device,
                    modify_qp(raw, &raw mut *attr, mask, null_mut())
                ))
            };
            call(mask.bits() as c_int)?;
            let attributes = qp::Attributes {
                state: qp::State::Init,
                port: second_port()?,
                ..Default::default()
            };
            assert_eq!(log.asked(), Some(Asked::Modify(mask, attributes)));
            assert_eq!(call(1 << 22), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), None);

            to_result(verb!(
                device,
                query_qp(raw, &raw mut *attr, 0, &raw mut *init)
            ))?;
            assert_eq!(attr.dest_qp_num, qp.number());
            for told in [&attr.cap, &init.cap] {
                assert_eq!(told.max_send_wr, CAPABILITIES.max_send_wr);
                assert_eq!(told.max_inline_data, CAPABILITIES.max_inline_data);
            }
            assert_eq!(init.qp_type, bindings::ib_qp_type_IB_QPT_RC);
            assert_eq!(init.sq_sig_type, bindings::ib_sig_type_IB_SIGNAL_ALL_WR);
            // SAFETY: It is ours.
            let (send_cq, recv_cq) = unsafe { ((*raw).send_cq, (*raw).recv_cq) };
            assert_eq!((init.send_cq, init.recv_cq), (send_cq, recv_cq));
            assert_eq!((init.srq, init.port_num), (null_mut(), 2));

            let mut gid = bindings::ib_gid::default();
            // SAFETY: All members of the union are plain bytes.
            unsafe { gid.raw.as_mut()[15] = 5 };
            let group = Gid::from_raw(&gid);
            to_result(verb!(device, attach_mcast(raw, &mut gid, 0)))?;
            assert_eq!(log.asked(), Some(Asked::Attach(group)));
            to_result(verb!(device, detach_mcast(raw, &mut gid, 0)))?;
            assert_eq!(log.asked(), Some(Asked::Detach(group)));
            qp.end(device)
        })
    }

    #[test]
    fn a_request_that_is_refused_is_named() -> Result {
        with_device(|device, log| {
            let mut qp = Pair::new(device)?;
            let raw = qp.as_raw();
            let mut bad_send = ptr::null();
            let mut second = bindings::ib_send_wr {
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..Default::default()
            };
            second.__bindgen_anon_1.bindgen_union_field = 52;
            let mut first = bindings::ib_send_wr {
                next: &raw mut second,
                opcode: bindings::ib_wr_opcode_IB_WR_SEND,
                ..Default::default()
            };
            first.__bindgen_anon_1.bindgen_union_field = 51;
            to_result(verb!(
                device,
                post_send(raw, &raw const first, &mut bad_send)
            ))?;
            assert_eq!(log.asked(), Some(Asked::Send(2, 52)));
            assert!(bad_send.is_null());
            second.opcode = bindings::ib_wr_opcode_IB_WR_LSO;
            let refused = verb!(device, post_send(raw, &raw const first, &mut bad_send));
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            assert_eq!(log.asked(), Some(Asked::Send(1, 51)));
            assert_eq!(bad_send, &raw const second);

            let mut bad_receive = ptr::null();
            let mut second = bindings::ib_recv_wr::default();
            let mut first = bindings::ib_recv_wr {
                next: &raw mut second,
                ..Default::default()
            };
            first.__bindgen_anon_1.bindgen_union_field = 61;
            second.__bindgen_anon_1.bindgen_union_field = 62;
            to_result(verb!(
                device,
                post_recv(raw, &raw const first, &mut bad_receive)
            ))?;
            assert_eq!(log.asked(), Some(Asked::Receive(2, 62)));
            assert!(bad_receive.is_null());
            second.num_sge = -1;
            let refused = verb!(device, post_recv(raw, &raw const first, &mut bad_receive));
            assert!(refused < 0);
            assert_eq!(log.asked(), Some(Asked::Receive(1, 61)));
            assert_eq!(bad_receive, &raw const second);
            qp.end(device)
        })
    }

    #[test]
    fn objects_are_described_by_their_driver() -> Result {
        with_device(|device, _| {
            let mut qp = Pair::new(device)?;
            let mut srq = new_shared(device, &qp.pd, null_mut())?;
            let access = Access::LocalWrite as c_int;
            let mr = from_err_ptr(verb!(device, get_dma_mr(qp.pd.0, access)))?;
            let (qp_raw, cq_raw, srq_raw) = (qp.as_raw(), qp.queues[1].0.as_raw(), srq.as_raw());
            // SAFETY: They were constructed.
            let (srq_number, mr_number) = unsafe {
                let mr = &*mr.cast::<Mr<Object>>();
                (Srq::<Object>::from_raw(srq_raw).number, mr.number)
            };

            let messages = [
                Message::new()?,
                Message::new()?,
                Message::new()?,
                Message::new()?,
            ];
            let [of_qp, of_cq, of_srq, of_mr] = &messages;
            to_result(verb!(device, fill_res_qp_entry(of_qp.as_raw(), qp_raw)))?;
            to_result(verb!(device, fill_res_cq_entry(of_cq.as_raw(), cq_raw)))?;
            to_result(verb!(device, fill_res_srq_entry(of_srq.as_raw(), srq_raw)))?;
            to_result(verb!(device, fill_res_mr_entry(of_mr.as_raw(), mr)))?;
            let numbers = [qp.number(), qp.queues[1].number(), srq_number, mr_number];
            for (message, number) in messages.iter().zip(numbers) {
                // The number is the last thing that it says.
                assert!(message.bytes().ends_with(&number.to_ne_bytes()));
            }

            to_result(verb!(device, dereg_mr(mr, null_mut())))?;
            to_result(verb!(device, destroy_srq(srq_raw, null_mut())))?;
            qp.end(device)
        })
    }

    /// A shared receive queue for 30 receives of 3 elements. It is the kernel's if `udata` is null.
    pub(super) fn new_shared(
        device: &Device<TestDriver>,
        pd: &Domain,
        udata: *mut bindings::ib_udata,
    ) -> Result<Memory<bindings::ib_srq>> {
        let mut srq = room!(device, ib_srq, Srq);
        // SAFETY: What the core sets.
        unsafe { (*srq.as_raw()).pd = pd.0 };
        let mut init = bindings::ib_srq_init_attr {
            srq_type: bindings::ib_srq_type_IB_SRQT_BASIC,
            ..Default::default()
        };
        // The limit is not for who makes the queue.
        (init.attr.max_wr, init.attr.max_sge, init.attr.srq_limit) = (30, 3, 9);
        to_result(verb!(device, create_srq(srq.as_raw(), &mut init, udata)))?;
        // What it holds is told.
        if (init.attr.max_wr, init.attr.max_sge) != (31, 5) {
            return Err(EINVAL);
        }
        Ok(srq)
    }

    #[test]
    fn shared_receive_queues_change_and_are_asked() -> Result {
        with_device(|device, log| {
            let pd = Domain::new(device)?;
            let mut srq = new_shared(device, &pd, null_mut())?;
            let asked = srq::Attributes {
                max_wr: 30,
                max_sge: 3,
                limit: 0,
            };
            assert_eq!(log.asked(), Some(Asked::SharedQueue(asked, None)));
            let raw = srq.as_raw();
            let mut attr = bindings::ib_srq_attr {
                max_wr: 70,
                max_sge: 0,
                srq_limit: 8,
            };
            let modify = |attr: &mut bindings::ib_srq_attr, mask| -> Result {
                to_result(verb!(device, modify_srq(raw, attr, mask, null_mut())))
            };
            modify(&mut attr, bindings::ib_srq_attr_mask_IB_SRQ_MAX_WR)?;
            assert_eq!(log.asked(), Some(Asked::SharedResize(70, None)));
            modify(&mut attr, bindings::ib_srq_attr_mask_IB_SRQ_LIMIT)?;
            assert_eq!(log.asked(), Some(Asked::Limit(8)));
            assert_eq!(modify(&mut attr, 1 << 2), Err(EINVAL));

            to_result(verb!(device, query_srq(raw, &mut attr)))?;
            // SAFETY: It was constructed.
            let number = unsafe { Srq::<Object>::from_raw(raw) }.number;
            assert_eq!(
                (attr.max_wr, attr.max_sge, attr.srq_limit),
                (number, 21, 22)
            );

            let mut bad = ptr::null();
            let mut wr = bindings::ib_recv_wr::default();
            wr.__bindgen_anon_1.bindgen_union_field = 71;
            to_result(verb!(device, post_srq_recv(raw, &raw const wr, &mut bad)))?;
            assert_eq!(log.asked(), Some(Asked::Receive(1, 71)));
            wr.num_sge = -1;
            assert!(verb!(device, post_srq_recv(raw, &raw const wr, &mut bad)) < 0);
            assert_eq!(bad, &raw const wr);

            to_result(verb!(device, destroy_srq(raw, null_mut())))?;
            assert_eq!(log.asked(), Some(Asked::Destroy(number)));
            Ok(())
        })
    }
}
