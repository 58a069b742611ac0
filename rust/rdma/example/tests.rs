// SPDX-License-Identifier: GPL-2.0

//! Tests of the parts of the example that the core and processes see.

use core::ptr::null_mut;

use kernel::{
    device,
    error::{
        from_err_ptr,
        to_result, //
    },
    prelude::*,
    sync::atomic::Relaxed, //
};
use rdma::{
    device::{
        Device,
        NodeType,
        Properties, //
    },
    event::Objects,
    gid::Gid,
    qp::{
        Service,
        Type, //
    },
    testing::{
        device::DmaDevice,
        objects::CoreMemory,
        process::{
            ProcessMemory,
            UserCall,
            UverbsFile, //
        }, //
    },
    Registration,
    UnregisteredDevice, //
};
use vrnic_bindings as bindings;

use crate::{
    qp::{
        EfaType,
        Pair, //
    },
    Admin,
    Data,
    Efa, //
};

const ADDRESS: Gid = Gid([0xfe, 0x80, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);

const PROPERTIES: Properties = Properties {
    ports: 1,
    node_type: NodeType::Unspecified,
    node_guid: 0x1112_1314_1516_1718,
    node_description: c"an example of a driver",
    user_posts_by_verb: false,
    counters_of_queue_pairs: false,
    answers_management: false,
    local_dma_key: None,
};

/// Returns the C structure of a device.
fn raw(device: &Device<Efa>) -> *mut bindings::ib_device {
    let generic: &device::Device = device.as_ref();
    let generic = bindings::compat::device_as_raw(generic);
    let offset = core::mem::offset_of!(bindings::ib_device, __bindgen_anon_1);
    // SAFETY: The generic device is part of the RDMA device.
    unsafe { generic.byte_sub(offset).cast() }
}

/// Calls `test` with a registered device, and checks that the test leaves no objects behind.
fn with_device(test: impl FnOnce(*mut bindings::ib_device) -> Result) -> Result {
    let dma_device = DmaDevice::new()?;
    let parent = dma_device.device();
    let admin = Admin::new()?;
    let data = Data {
        admin: admin.clone(),
        address: ADDRESS,
    };
    let device = UnregisteredDevice::<Efa>::new(&PROPERTIES, Objects::new(2)?)?;
    // SAFETY: The registration is dropped below.
    let registration = unsafe { Registration::new(device, c"rdma-efa%d", parent, data) }?;
    let result = test(raw(registration.device()));
    drop(registration);
    match admin.objects.load(Relaxed) {
        0 => result,
        _ => Err(EBUSY),
    }
}

/// Calls a verb through the device's operations table, as the core does.
macro_rules! verb {
    ($device:expr, $verb:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: The device is registered.
        let verb = unsafe { (*$device).ops.$verb }.ok_or(EOPNOTSUPP)?;
        // SAFETY: The arguments fit the verb. Objects belong to the device and are constructed, or,
        // if the verb creates them, they are as the core allocates them.
        unsafe { verb($($argument),*) }
    }};
}

/// A process that has the device open, with a protection domain.
struct Process {
    device: *mut bindings::ib_device,
    memory: ProcessMemory,
    context: CoreMemory<bindings::ib_ucontext>,
    pd: CoreMemory<bindings::ib_pd>,
    file: UverbsFile,
}

impl Process {
    fn new(device: *mut bindings::ib_device) -> Result<Self> {
        let memory = ProcessMemory::new(2)?;
        // SAFETY: The device is registered. The structures are not shared, and have the full size.
        let (mut context, mut pd, file) = unsafe {
            let ops = &(*device).ops;
            let mut context = CoreMemory::<bindings::ib_ucontext>::new(ops.size_ib_ucontext)?;
            let mut pd = CoreMemory::<bindings::ib_pd>::new(ops.size_ib_pd)?;
            (*context.as_raw()).device = device;
            (*pd.as_raw()).device = device;
            let file = UverbsFile::new(context.as_raw())?;
            (context, pd, file)
        };
        let mut call = UserCall::new(&memory, 8, context.as_raw())?;
        to_result(verb!(
            device,
            alloc_ucontext(context.as_raw(), call.udata())
        ))?;
        let mut call = UserCall::new(&memory, 0, context.as_raw())?;
        to_result(verb!(device, alloc_pd(pd.as_raw(), call.udata())))?;
        Ok(Self {
            device,
            memory,
            context,
            pd,
            file,
        })
    }

    /// Creates a call with a request of 32-bit words. The response overwrites it and has `length`
    /// bytes.
    fn call(&mut self, request: &[u32], length: usize) -> Result<UserCall> {
        let mut writer = self.memory.user(length).writer();
        for index in 0..length / 4 {
            writer.write(request.get(index).unwrap_or(&0))?;
        }
        UserCall::new(&self.memory, length, self.context.as_raw())
    }

    /// Creates a completion queue of 20 entries of 32 bytes, and returns its `mmap` offset.
    fn queue(&mut self) -> Result<(CoreMemory<bindings::ib_cq>, u64)> {
        // SAFETY: The device is registered, and the structure is not shared.
        let mut cq = unsafe {
            let mut cq = CoreMemory::<bindings::ib_cq>::new((*self.device).ops.size_ib_cq)?;
            (*cq.as_raw()).device = self.device;
            cq
        };
        let attributes = bindings::ib_cq_init_attr {
            cqe: 20,
            comp_vector: 1,
            flags: 0,
        };
        let mut call = self.call(&[0, 32, 1], 40)?;
        to_result(verb!(
            self.device,
            create_user_cq(cq.as_raw(), &attributes, call.attributes())
        ))?;
        let mut reader = self.memory.user(16).reader();
        let _: u64 = reader.read()?;
        let key = reader.read()?;
        Ok((cq, key))
    }

    fn destroy_queue(&mut self, mut cq: CoreMemory<bindings::ib_cq>) -> Result {
        let mut call = self.call(&[], 0)?;
        let raw = cq.as_raw();
        to_result(verb!(self.device, destroy_cq(raw, call.udata())))
    }

    /// Creates a queue pair that completes in `cq`.
    fn queue_pair(
        &mut self,
        cq: &mut CoreMemory<bindings::ib_cq>,
        ty: bindings::ib_qp_type,
        driver_type: u32,
    ) -> Result<CoreMemory<bindings::ib_qp>> {
        let mut init = KBox::new(bindings::ib_qp_init_attr::default(), GFP_KERNEL)?;
        init.qp_type = ty;
        init.send_cq = cq.as_raw();
        init.recv_cq = cq.as_raw();
        init.cap.max_send_wr = 4;
        // SAFETY: The device is registered. The structure is not shared, and is as the core leaves
        // it.
        let mut qp = unsafe {
            let mut qp = CoreMemory::<bindings::ib_qp>::new((*self.device).ops.size_ib_qp)?;
            let raw = qp.as_raw();
            (*raw).device = self.device;
            (*raw).pd = self.pd.as_raw();
            (*raw).qp_type = ty;
            (*raw).send_cq = init.send_cq;
            (*raw).recv_cq = init.recv_cq;
            qp
        };
        let mut call = self.call(&[0, 4096, 0, driver_type], 64)?;
        to_result(verb!(
            self.device,
            create_qp(qp.as_raw(), &raw mut *init, call.udata())
        ))?;
        Ok(qp)
    }

    fn destroy_queue_pair(&mut self, mut qp: CoreMemory<bindings::ib_qp>) -> Result {
        let mut call = self.call(&[], 0)?;
        let raw = qp.as_raw();
        to_result(verb!(self.device, destroy_qp(raw, call.udata())))
    }

    fn end(mut self) -> Result {
        let mut call = self.call(&[], 0)?;
        let (pd, context) = (self.pd.as_raw(), self.context.as_raw());
        to_result(verb!(self.device, dealloc_pd(pd, call.udata())))?;
        verb!(self.device, dealloc_ucontext(context));
        Ok(())
    }
}

#[kunit_tests(rdma_example)]
mod cases {
    use super::*;

    #[test]
    fn what_a_driver_lacks_is_not_in_the_table() -> Result {
        with_device(|device| {
            // SAFETY: The device is registered.
            let raw = unsafe { &*device };
            let ops = &raw.ops;
            assert!(ops.create_cq.is_none() && ops.poll_cq.is_none());
            assert!(ops.req_notify_cq.is_none() && ops.resize_user_cq.is_none());
            assert!(ops.modify_cq.is_none());
            assert!(ops.post_send.is_none() && ops.post_recv.is_none());
            assert!(ops.attach_mcast.is_none() && ops.detach_mcast.is_none());
            assert!(ops.get_dma_mr.is_none() && ops.alloc_mr.is_none());
            assert!(ops.map_mr_sg.is_none() && ops.rereg_user_mr.is_none());
            assert!(ops.advise_mr.is_none() && ops.reg_user_mr_dmabuf.is_none());
            assert!(ops.alloc_mw.is_none() && ops.dealloc_mw.is_none());
            assert!(ops.create_srq.is_none() && ops.modify_srq.is_none());
            assert!(ops.query_srq.is_none() && ops.destroy_srq.is_none());
            assert!(ops.post_srq_recv.is_none());
            assert!(ops.create_ah.is_none() && ops.query_ah.is_none());
            assert!(ops.add_gid.is_none() && ops.del_gid.is_none());
            assert!(ops.get_dev_fw_str.is_none() && ops.report_port_event.is_none());
            assert!(ops.query_ucontext.is_none() && ops.counter_bind_qp.is_none());
            assert_eq!((ops.size_ib_mw, ops.size_ib_srq), (0, 0));
            assert!(ops.alloc_dmah.is_none() && ops.size_ib_dmah == 0);
            Ok(())
        })
    }

    #[test]
    fn what_a_driver_has_is_in_the_table() -> Result {
        with_device(|device| {
            // SAFETY: The device is registered.
            let raw = unsafe { &*device };
            let ops = &raw.ops;
            assert!(ops.query_device.is_some() && ops.query_port.is_some());
            assert!(ops.query_gid.is_some() && ops.query_pkey.is_some());
            assert!(ops.get_port_immutable.is_some() && ops.get_link_layer.is_some());
            assert!(ops.alloc_ucontext.is_some() && ops.dealloc_ucontext.is_some());
            assert!(ops.alloc_pd.is_some() && ops.dealloc_pd.is_some());
            assert!(ops.create_user_ah.is_some() && ops.destroy_ah.is_some());
            assert!(ops.create_user_cq.is_some() && ops.destroy_cq.is_some());
            assert!(ops.create_qp.is_some() && ops.modify_qp.is_some());
            assert!(ops.query_qp.is_some() && ops.destroy_qp.is_some());
            assert!(ops.reg_user_mr.is_some() && ops.dereg_mr.is_some());
            assert!(ops.alloc_hw_port_stats.is_some() && ops.get_hw_stats.is_some());

            assert_eq!(raw.kverbs_provider(), 0);
            assert_eq!((ops.driver_id, ops.uverbs_abi_ver), (17, 1));
            assert_eq!(u32::from(raw.node_type), bindings::RDMA_NODE_UNSPECIFIED);
            Ok(())
        })
    }

    #[test]
    fn what_a_driver_lacks_is_not_supported() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            let pd = process.pd.as_raw();
            let mut path = bindings::rdma_ah_attr {
                type_: bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_UNDEFINED,
                port_num: 1,
                ..Default::default()
            };
            // SAFETY: The domain is constructed. The core first checks whether the device has the
            // verb.
            let (ah, mr) = unsafe {
                (
                    from_err_ptr(bindings::rdma_create_ah(pd, &mut path, 0)),
                    from_err_ptr(bindings::ib_alloc_mr(
                        pd,
                        bindings::ib_mr_type_IB_MR_TYPE_MEM_REG,
                        1,
                    )),
                )
            };
            assert_eq!(ah.err(), Some(EOPNOTSUPP));
            assert_eq!(mr.err(), Some(EOPNOTSUPP));

            let (mut cq, _) = process.queue()?;
            // SAFETY: As above.
            let moderated = unsafe { bindings::rdma_set_cq_moderation(cq.as_raw(), 1, 1) };
            assert_eq!(to_result(moderated), Err(EOPNOTSUPP));
            let ud = bindings::ib_qp_type_IB_QPT_UD;
            let mut qp = process.queue_pair(&mut cq, ud, 0)?;
            let mut group = bindings::ib_gid::default();
            // SAFETY: As above.
            let attached = unsafe { bindings::ib_attach_mcast(qp.as_raw(), &mut group, 0xc000) };
            assert_eq!(to_result(attached), Err(EOPNOTSUPP));

            process.destroy_queue_pair(qp)?;
            process.destroy_queue(cq)?;
            process.end()
        })
    }

    #[test]
    fn regions_on_demand_do_not_get_to_a_driver_without_a_pager() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            let start = process.memory.address();
            let pd = process.pd.as_raw();
            // CAST: A set of bits that C keeps in an `int`.
            let on_demand = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND as c_int;
            for (access, expected) in [(on_demand, Some(EOPNOTSUPP)), (0, None)] {
                let mut call = process.call(&[], 0)?;
                let mr = from_err_ptr(verb!(
                    device,
                    reg_user_mr(pd, start, 100, start, access, null_mut(), call.udata())
                ));
                assert_eq!(mr.as_ref().err(), expected.as_ref());
                if let Ok(mr) = mr {
                    let mut call = process.call(&[], 0)?;
                    to_result(verb!(device, dereg_mr(mr, call.udata())))?;
                }
            }
            process.end()
        })
    }

    #[test]
    fn the_kernel_is_not_among_the_users() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            // SAFETY: The device is registered, and the structures are not shared.
            let (mut pd, mut ah) = unsafe {
                let ops = &(*device).ops;
                let mut pd = CoreMemory::<bindings::ib_pd>::new(ops.size_ib_pd)?;
                let mut ah = CoreMemory::<bindings::ib_ah>::new(ops.size_ib_ah)?;
                (*pd.as_raw()).device = device;
                (*ah.as_raw()).device = device;
                (*ah.as_raw()).pd = process.pd.as_raw();
                (pd, ah)
            };
            let refused = verb!(device, alloc_pd(pd.as_raw(), null_mut()));
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));

            let mut path = bindings::rdma_ah_attr {
                type_: bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_UNDEFINED,
                port_num: 1,
                // CAST: A flag that C keeps in a byte.
                ah_flags: bindings::ib_ah_flags_IB_AH_GRH as u8,
                ..Default::default()
            };
            let mut init = bindings::rdma_ah_init_attr {
                ah_attr: &raw mut path,
                ..Default::default()
            };
            let refused = verb!(
                device,
                create_user_ah(ah.as_raw(), &raw mut init, null_mut())
            );
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            let mut call = process.call(&[], 8)?;
            let refused = verb!(
                device,
                create_user_ah(ah.as_raw(), &raw mut init, call.udata())
            );
            assert_eq!(to_result(refused), Err(EOPNOTSUPP));
            init.flags = bindings::rdma_create_ah_flags_RDMA_CREATE_AH_SLEEPABLE;
            to_result(verb!(
                device,
                create_user_ah(ah.as_raw(), &raw mut init, call.udata())
            ))?;
            let may_sleep = bindings::rdma_destroy_ah_flags_RDMA_DESTROY_AH_SLEEPABLE;
            to_result(verb!(device, destroy_ah(ah.as_raw(), may_sleep)))?;
            process.end()
        })
    }

    #[test]
    fn a_port_may_be_of_no_protocol_that_the_core_knows() -> Result {
        with_device(|device| {
            let mut gid = bindings::ib_gid::default();
            let mut attributes = bindings::ib_port_attr::default();
            // SAFETY: The device is registered, and `gid` is writable.
            let layer = unsafe {
                to_result(bindings::rdma_query_gid(device, 1, 0, &mut gid))?;
                to_result(bindings::ib_query_port(device, 1, &mut attributes))?;
                bindings::rdma_port_get_link_layer(device, 1)
            };
            // SAFETY: All members of the union are plain bytes.
            assert_eq!(*unsafe { bindings::compat::member(&gid.raw) }, ADDRESS.0);
            assert_eq!(layer, bindings::rdma_link_layer_IB_LINK_LAYER_UNSPECIFIED);
            assert_eq!((attributes.gid_tbl_len, attributes.ip_gids()), (1, 0));
            Ok(())
        })
    }

    #[test]
    fn a_queue_pair_is_of_a_type_of_the_driver() -> Result {
        const DRIVER: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_DRIVER;
        const UD: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_UD;
        const RC: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_RC;
        const GSI: bindings::ib_qp_type = bindings::ib_qp_type_IB_QPT_GSI;

        with_device(|device| {
            let mut process = Process::new(device)?;
            let (mut cq, _) = process.queue()?;
            for (ty, expected) in [
                (DRIVER, Service::Driver(EfaType::Srd)),
                (UD, Service::Standard(Type::UnreliableDatagram)),
            ] {
                let mut qp = process.queue_pair(&mut cq, ty, 0)?;
                // SAFETY: The queue pair is constructed.
                let service = unsafe { rdma::testing::qp_data::<Pair>(qp.as_raw()) }.service();
                assert_eq!(service, expected);
                process.destroy_queue_pair(qp)?;
            }
            for (ty, driver_type) in [(DRIVER, 1), (RC, 0), (GSI, 0), (99, 0)] {
                let refused = process.queue_pair(&mut cq, ty, driver_type);
                assert_eq!(refused.err(), Some(EOPNOTSUPP));
            }
            process.destroy_queue(cq)?;
            process.end()
        })
    }

    #[test]
    fn reliable_datagrams_are_told_how_often_to_retry() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            let (mut cq, _) = process.queue()?;
            let states = [
                bindings::ib_qp_state_IB_QPS_INIT,
                bindings::ib_qp_state_IB_QPS_RTR,
                bindings::ib_qp_state_IB_QPS_RTS,
            ];
            // The attributes that each transition requires: state, P_Key index, port and Q_Key; a
            // PSN.
            let masks: [c_int; 3] = [1 | 1 << 4 | 1 << 5 | 1 << 6, 1, 1 | 1 << 16];
            let retry: c_int = 1 << 11;
            for (ty, may_retry) in [
                (bindings::ib_qp_type_IB_QPT_DRIVER, true),
                (bindings::ib_qp_type_IB_QPT_UD, false),
            ] {
                let mut qp = process.queue_pair(&mut cq, ty, 0)?;
                let mut attributes = KBox::new(bindings::ib_qp_attr::default(), GFP_KERNEL)?;
                attributes.port_num = 1;
                let mut modify = |mask, state| -> Result<c_int> {
                    attributes.qp_state = state;
                    let mut call = process.call(&[], 0)?;
                    Ok(verb!(
                        device,
                        modify_qp(qp.as_raw(), &raw mut *attributes, mask, call.udata())
                    ))
                };
                assert_eq!(modify(masks[0], states[0])?, 0);
                assert_eq!(modify(masks[1] | retry, states[1])?, EINVAL.to_errno());
                assert_eq!(modify(masks[1], states[1])?, 0);
                let retried = modify(masks[2] | retry, states[2])?;
                if may_retry {
                    assert_eq!(retried, 0);
                } else {
                    assert_eq!(retried, EINVAL.to_errno());
                    assert_eq!(modify(masks[2], states[2])?, 0);
                }
                process.destroy_queue_pair(qp)?;
            }
            process.destroy_queue(cq)?;
            process.end()
        })
    }

    #[test]
    fn a_ring_is_mapped_as_long_as_there_is_a_queue() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            let (cq, key) = process.queue()?;
            // 20 entries are rounded up to 32, of 32 bytes each.
            let ring = process.file.map(1, key)?;
            ring.write(5)?;
            assert_eq!(process.file.map(2, key).err(), Some(EINVAL));
            process.destroy_queue(cq)?;
            assert_eq!(process.file.map(1, key).err(), Some(EINVAL));
            // The mapping remains.
            assert_eq!(ring.read()?, 5);

            let (cq, again) = process.queue()?;
            assert!(process.file.map(1, again).is_ok());
            process.destroy_queue(cq)?;
            process.end()
        })
    }

    #[test]
    fn a_process_calls_a_method_of_the_driver() -> Result {
        with_device(|device| {
            let mut process = Process::new(device)?;
            let start = process.memory.address();
            let mut call = process.call(&[], 0)?;
            let pd = process.pd.as_raw();
            // CAST: A set of bits that C keeps in an `int`.
            let read = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ as c_int;
            let mr = from_err_ptr(verb!(
                device,
                reg_user_mr(pd, start, 100, start, read, null_mut(), call.udata())
            ))?;

            // SAFETY: The device is registered. The table is the driver's, and has one method.
            let (id, handler) = unsafe {
                let tree = (*(*device).driver_def).__bindgen_anon_2.chain_obj_tree;
                let methods = (*tree).methods.cast::<*const bindings::uverbs_method_def>();
                ((**methods).id, (**methods).handler.ok_or(ENOENT)?)
            };
            assert_eq!(id, 1 << 12);
            let mut handle = bindings::ib_uobject {
                object: mr.cast(),
                ..Default::default()
            };
            let mut call = process.call(&[], 0)?;
            let bundle = call.attributes();
            // SAFETY: A call of the method from a process that has the device open.
            let without = process.file.call(|| unsafe { handler(bundle) });
            assert_eq!(to_result(without), Err(EINVAL));
            call.set_object(1 << 12, &mut handle);
            // SAFETY: As above.
            to_result(process.file.call(|| unsafe { handler(bundle) }))?;

            let mut call = process.call(&[], 0)?;
            to_result(verb!(device, dereg_mr(mr, call.udata())))?;
            process.end()
        })
    }
}
