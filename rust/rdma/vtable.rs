// SPDX-License-Identifier: GPL-2.0

//! Tables of a driver's operations, and the callbacks for the device itself.

use core::{
    fmt,
    marker::PhantomData, //
};

use kernel::{
    error::to_result,
    module::this_module,
    prelude::*, //
};

use crate::{
    ah::{
        self,
        AddressHandle,
        Ah, //
    },
    bindings,
    comp_cntr::{
        self,
        CompCntr,
        CompletionCounter, //
    },
    counter,
    cq::{
        self,
        CompletionQueue,
        Cq, //
    },
    device::{
        OnDemandPaging,
        Operations, //
    },
    dm::{
        self,
        DmBuffer, //
    },
    dmah::{
        self,
        DmaHandle,
        Dmah, //
    },
    flow::{
        self,
        counters,
        Counters,
        FlowCounters,
        FlowRule, //
    },
    gid::{
        Gid,
        GidAttr, //
    },
    mad,
    mmap,
    mr::{
        self,
        MemoryRegion, //
    },
    mw::{
        self,
        MemoryWindow,
        Mw, //
    },
    netdev,
    object::{
        blank,
        kmalloc_aligned_size, //
    },
    odp::Pager,
    pd::{
        self,
        Pd, //
    },
    port::{
        LinkLayer,
        PortChange,
        State, //
    },
    qp::{
        self,
        Qp,
        QueuePair, //
    },
    srq::{
        self,
        SharedReceiveQueue,
        Srq, //
    },
    ucontext::{
        self,
        Ucontext,
        UserContext, //
    },
    udata::RawUsers,
    verb::Verb,
    wq::{
        self,
        IndirectionTable,
        ReceiveWorkQueue,
        RwqTable, //
    },
    xrc::{
        self,
        XrcDomain,
        Xrcd, //
    }, //
};

/// The operation tables of a driver.
pub(crate) struct VTable<T: Operations>(PhantomData<T>);

impl<T: Operations> VTable<T> {
    /// Whether the kernel is among the users. The core decides this by these verbs
    /// (`kverbs_provider`), so a driver must have all of them or lack some.
    const HAS_KERNEL: bool = {
        let has_all = T::QueuePair::HAS_POST_SEND
            && T::QueuePair::HAS_POST_RECV
            && T::CompletionQueue::HAS_CREATE
            && T::CompletionQueue::HAS_POLL
            && T::CompletionQueue::HAS_REQUEST_NOTIFY
            && T::MemoryRegion::HAS_REGISTER_DMA;
        assert!(
            has_all == T::Users::KERNEL,
            "the kernel uses the devices of drivers that have all its verbs, and of no others"
        );
        has_all
    };

    /// Whether there are regions for integrity. They need all of these verbs.
    const HAS_INTEGRITY: bool = {
        let has = [
            T::MemoryRegion::HAS_ALLOCATE_INTEGRITY,
            T::MemoryRegion::HAS_MAP_INTEGRITY,
            T::MemoryRegion::HAS_TAKE_INTEGRITY_ERROR,
        ];
        assert!(
            has[0] == has[1] && has[1] == has[2],
            "a driver has all methods for regions for integrity, or none"
        );
        has[0]
    };

    /// The driver ID. It must not be one by which a C driver finds devices that it takes for its
    /// own (`ib_device_get_by_netdev`).
    const DRIVER_ID: u32 = {
        assert!(
            !matches!(
                T::DRIVER_ID,
                bindings::rdma_driver_id_RDMA_DRIVER_IRDMA
                    | bindings::rdma_driver_id_RDMA_DRIVER_HNS
                    | bindings::rdma_driver_id_RDMA_DRIVER_USNIC
                    | bindings::rdma_driver_id_RDMA_DRIVER_RXE
                    | bindings::rdma_driver_id_RDMA_DRIVER_SIW
            ),
            "another driver would take the device for its own"
        );
        T::DRIVER_ID
    };

    /// The operations, which `ib_set_device_ops` copies.
    pub(crate) const OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        owner: this_module::<T::OwnerModule>().as_ptr(),
        driver_id: Self::DRIVER_ID,
        uverbs_abi_ver: T::ABI_VERSION,
        // Bit 1 is `uverbs_robust_udata`: every verb goes through `Request` and `Response`.
        _bitfield_1: bindings::__BindgenBitfieldUnit::new([0b10]),

        query_device: Some(Self::query_device_callback),
        modify_device: Some(modify_device_callback),
        get_dev_fw_str: when(T::HAS_FIRMWARE_VERSION, Self::firmware_version_callback),
        query_port: Some(Self::query_port_callback),
        query_port_speed: Some(Self::query_port_speed_callback),
        get_port_immutable: Some(Self::port_immutable_callback),
        get_link_layer: when(T::HAS_LINK_LAYER, Self::link_layer_callback),
        modify_port: when(T::HAS_MODIFY_PORT, Self::modify_port_callback),
        query_pkey: when(T::HAS_QUERY_PKEY, Self::query_pkey_callback),
        query_gid: when(T::HAS_QUERY_GID, Self::query_gid_callback),
        add_gid: when(T::HAS_ADD_GID, Self::add_gid_callback),
        del_gid: when(T::HAS_DEL_GID, Self::del_gid_callback),
        report_port_event: when(T::HAS_IS_NETDEV_OF, netdev::report_port_event_callback),
        alloc_hw_port_stats: when(T::HAS_PORT_COUNTERS, counter::alloc_callback::<T>),
        get_hw_stats: when(T::HAS_PORT_COUNTERS, counter::get_callback::<T>),

        alloc_ucontext: Some(ucontext::alloc_callback::<T>),
        dealloc_ucontext: Some(ucontext::dealloc_callback::<T>),
        query_ucontext: when(T::UserContext::HAS_QUERY, ucontext::query_callback::<T>),
        disassociate_ucontext: Some(ucontext::disassociate_callback),
        mmap: Some(mmap::mmap_callback),
        mmap_free: Some(mmap::mmap_free_callback),

        alloc_pd: Some(pd::alloc_callback::<T>),
        dealloc_pd: Some(pd::dealloc_callback::<T>),

        alloc_xrcd: when(T::XrcDomain::IS_SUPPORTED, xrc::alloc_callback::<T>),
        dealloc_xrcd: when(T::XrcDomain::IS_SUPPORTED, xrc::dealloc_callback::<T>),

        create_ah: when(
            T::AddressHandle::IS_SUPPORTED && Self::HAS_KERNEL,
            ah::create_callback::<T>,
        ),
        create_user_ah: when(T::AddressHandle::IS_SUPPORTED, ah::create_callback::<T>),
        query_ah: when(T::AddressHandle::HAS_QUERY, ah::query_callback::<T>),
        destroy_ah: when(T::AddressHandle::IS_SUPPORTED, ah::destroy_callback::<T>),

        create_cq: when(T::CompletionQueue::HAS_CREATE, cq::create_callback::<T>),
        create_user_cq: Some(cq::create_user_callback::<T>),
        resize_user_cq: when(T::CompletionQueue::HAS_RESIZE, cq::resize_callback::<T>),
        modify_cq: when(T::CompletionQueue::HAS_MODERATE, cq::modify_callback::<T>),
        destroy_cq: Some(cq::destroy_callback::<T>),
        poll_cq: when(T::CompletionQueue::HAS_POLL, cq::poll_callback::<T>),
        req_notify_cq: when(
            T::CompletionQueue::HAS_REQUEST_NOTIFY,
            cq::request_notify_callback::<T>,
        ),
        fill_res_cq_entry: when(T::CompletionQueue::HAS_FILL_DETAILS, cq::fill_callback::<T>),

        create_qp: Some(qp::create_callback::<T>),
        modify_qp: Some(qp::modify_callback::<T>),
        query_qp: when(T::QueuePair::HAS_QUERY, qp::query_callback::<T>),
        destroy_qp: Some(qp::destroy_callback::<T>),
        attach_mcast: when(
            T::QueuePair::HAS_ATTACH_MULTICAST,
            qp::attach_mcast_callback::<T>,
        ),
        detach_mcast: when(
            T::QueuePair::HAS_DETACH_MULTICAST,
            qp::detach_mcast_callback::<T>,
        ),
        post_send: when(T::QueuePair::HAS_POST_SEND, qp::post_send_callback::<T>),
        post_recv: when(T::QueuePair::HAS_POST_RECV, qp::post_recv_callback::<T>),
        fill_res_qp_entry: when(T::QueuePair::HAS_FILL_DETAILS, qp::fill_callback::<T>),

        create_srq: when(
            T::SharedReceiveQueue::IS_SUPPORTED,
            srq::create_callback::<T>,
        ),
        modify_srq: when(
            T::SharedReceiveQueue::HAS_RESIZE || T::SharedReceiveQueue::HAS_SET_LIMIT,
            srq::modify_callback::<T>,
        ),
        query_srq: when(T::SharedReceiveQueue::HAS_QUERY, srq::query_callback::<T>),
        destroy_srq: when(
            T::SharedReceiveQueue::IS_SUPPORTED,
            srq::destroy_callback::<T>,
        ),
        post_srq_recv: when(
            T::SharedReceiveQueue::HAS_POST_RECV,
            srq::post_recv_callback::<T>,
        ),
        fill_res_srq_entry: when(
            T::SharedReceiveQueue::HAS_FILL_DETAILS,
            srq::fill_callback::<T>,
        ),

        reg_user_mr: Some(mr::reg_user_callback::<T>),
        reg_user_mr_dmabuf: when(
            T::MemoryRegion::HAS_REGISTER_DMA_BUF,
            mr::reg_dma_buf_callback::<T>,
        ),
        get_dma_mr: when(T::MemoryRegion::HAS_REGISTER_DMA, mr::get_dma_callback::<T>),
        alloc_mr: when(T::MemoryRegion::HAS_ALLOCATE_FAST, mr::alloc_callback::<T>),
        map_mr_sg: when(T::MemoryRegion::HAS_SET_PAGE, mr::map_callback::<T>),
        alloc_mr_integrity: when(Self::HAS_INTEGRITY, mr::alloc_integrity_callback::<T>),
        map_mr_sg_pi: when(Self::HAS_INTEGRITY, mr::map_integrity_callback::<T>),
        check_mr_status: when(Self::HAS_INTEGRITY, mr::check_callback::<T>),
        rereg_user_mr: when(T::MemoryRegion::HAS_REREGISTER, mr::rereg_callback::<T>),
        advise_mr: when(T::MemoryRegion::HAS_ADVISE, mr::advise_callback::<T>),
        reg_dm_mr: when(T::MemoryRegion::HAS_REGISTER_DM, mr::reg_dm_callback::<T>),
        dereg_mr: Some(mr::dereg_callback::<T>),
        fill_res_mr_entry: when(T::MemoryRegion::HAS_FILL_DETAILS, mr::fill_callback::<T>),

        alloc_mw: when(T::MemoryWindow::IS_SUPPORTED, mw::alloc_callback::<T>),
        dealloc_mw: when(T::MemoryWindow::IS_SUPPORTED, mw::dealloc_callback::<T>),

        create_flow: when(T::FlowRule::IS_SUPPORTED, flow::create_callback::<T>),
        destroy_flow: when(T::FlowRule::IS_SUPPORTED, flow::destroy_callback::<T>),

        create_counters: when(
            T::FlowCounters::IS_SUPPORTED,
            counters::create_callback::<T>,
        ),
        read_counters: when(T::FlowCounters::IS_SUPPORTED, counters::read_callback::<T>),
        destroy_counters: when(
            T::FlowCounters::IS_SUPPORTED,
            counters::destroy_callback::<T>,
        ),

        query_comp_cntr_caps: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::capabilities_callback::<T>,
        ),
        create_comp_cntr: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::create_callback::<T>,
        ),
        modify_comp_cntr: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::modify_callback::<T>,
        ),
        read_comp_cntr: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::read_callback::<T>,
        ),
        qp_attach_comp_cntr: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::attach_callback::<T>,
        ),
        destroy_comp_cntr: when(
            T::CompletionCounter::IS_SUPPORTED,
            comp_cntr::destroy_callback::<T>,
        ),

        create_wq: when(T::ReceiveWorkQueue::IS_SUPPORTED, wq::create_callback::<T>),
        modify_wq: when(T::ReceiveWorkQueue::IS_SUPPORTED, wq::modify_callback::<T>),
        destroy_wq: when(T::ReceiveWorkQueue::IS_SUPPORTED, wq::destroy_callback::<T>),

        create_rwq_ind_table: when(
            T::IndirectionTable::IS_SUPPORTED,
            wq::create_table_callback::<T>,
        ),
        destroy_rwq_ind_table: when(
            T::IndirectionTable::IS_SUPPORTED,
            wq::destroy_table_callback::<T>,
        ),

        alloc_dm: when(T::DmBuffer::IS_SUPPORTED, dm::alloc_callback::<T>),
        dealloc_dm: when(T::DmBuffer::IS_SUPPORTED, dm::dealloc_callback::<T>),

        alloc_dmah: when(T::DmaHandle::IS_SUPPORTED, dmah::alloc_callback::<T>),
        dealloc_dmah: when(T::DmaHandle::IS_SUPPORTED, dmah::dealloc_callback::<T>),

        size_ib_ah: if T::AddressHandle::IS_SUPPORTED {
            Ah::<T::AddressHandle>::SIZE
        } else {
            0
        },
        size_ib_comp_cntr: if T::CompletionCounter::IS_SUPPORTED {
            CompCntr::<T::CompletionCounter>::SIZE
        } else {
            0
        },
        size_ib_counters: if T::FlowCounters::IS_SUPPORTED {
            Counters::<T::FlowCounters>::SIZE
        } else {
            0
        },
        size_ib_cq: Cq::<T::CompletionQueue>::SIZE,
        size_ib_dmah: if T::DmaHandle::IS_SUPPORTED {
            Dmah::<T::DmaHandle>::SIZE
        } else {
            0
        },
        size_ib_mw: if T::MemoryWindow::IS_SUPPORTED {
            Mw::<T::MemoryWindow>::SIZE
        } else {
            0
        },
        size_ib_pd: Pd::<T::ProtectionDomain>::SIZE,
        size_ib_qp: Qp::<T::QueuePair>::SIZE,
        size_ib_rwq_ind_table: if T::IndirectionTable::IS_SUPPORTED {
            RwqTable::<T::IndirectionTable>::SIZE
        } else {
            0
        },
        size_ib_srq: if T::SharedReceiveQueue::IS_SUPPORTED {
            Srq::<T::SharedReceiveQueue>::SIZE
        } else {
            0
        },
        size_ib_xrcd: if T::XrcDomain::IS_SUPPORTED {
            Xrcd::<T::XrcDomain>::SIZE
        } else {
            0
        },
        size_ib_ucontext: Ucontext::<T::UserContext>::SIZE,
        // The core allocates counters even for drivers without a size of their own.
        size_rdma_counter: kmalloc_aligned_size::<bindings::rdma_counter>(),

        ..pin_init::zeroed()
    };

    /// Additional operations of a device that has counters for single queue pairs.
    pub(crate) const COUNTER_OPS: bindings::ib_device_ops = if T::HAS_CREATE_QP_COUNTER {
        bindings::ib_device_ops {
            counter_init: Some(counter::counter_init_callback),
            counter_alloc_stats: Some(counter::counter_alloc_callback::<T>),
            counter_bind_qp: Some(counter::counter_bind_callback::<T>),
            counter_unbind_qp: Some(counter::counter_unbind_callback::<T>),
            counter_update_stats: Some(counter::counter_update_callback::<T>),
            counter_dealloc: Some(counter::counter_dealloc_callback::<T>),
            ..pin_init::zeroed()
        }
    } else {
        pin_init::zeroed()
    };

    /// What a device has besides whose ports have agents.
    pub(crate) const MANAGEMENT_OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        process_mad: when(T::HAS_PROCESS_MAD, mad::process_callback::<T>),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, `attr` valid for writes, and `udata` the udata
    /// of the call.
    unsafe extern "C" fn query_device_callback(
        device: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::with_udata(device, udata) };
        // SAFETY: The attributes belong to this call. The key was set before the device was
        // registered.
        let (attr, local_dma_key) = unsafe { (blank(attr), (*device).local_dma_lkey) };

        verb.run(|call| {
            if T::HAS_DEVICE_RESPONSE && verb.has_udata() {
                verb.request::<()>()?;
                verb.respond(&T::device_response(call)?)?;
            } else {
                verb.no_io()?;
            }
            let mut attributes = T::query_device(call)?;
            if !T::Pager::IS_SUPPORTED {
                attributes.on_demand_paging = OnDemandPaging::default();
            }
            if Self::HAS_KERNEL && !attributes.serves_kernel() {
                return Err(EIO);
            }
            attributes.write(attr);
            if local_dma_key != 0 {
                attr.kernel_cap_flags |=
                    u64::from(bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY);
            }
            Ok(())
        })
    }

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `text` have room for
    /// `IB_FW_VERSION_NAME_MAX` bytes.
    unsafe extern "C" fn firmware_version_callback(
        device: *mut bindings::ib_device,
        text: *mut c_char,
    ) {
        // CAST: A small constant.
        const ROOM: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;

        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The buffer has the length that the caller guarantees, and is initialised by
        // zeroing it.
        let buffer = unsafe {
            text.cast::<u8>().write_bytes(0, ROOM);
            core::slice::from_raw_parts_mut(text.cast::<u8>(), ROOM)
        };
        verb.enter(|call| T::firmware_version(call, &mut Text { buffer, length: 0 }));
    }

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `attr` valid for writes.
    unsafe extern "C" fn query_port_callback(
        device: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The attributes belong to this call.
        let attr = unsafe { blank(attr) };

        verb.run(|call| {
            let port = verb.device().port(port)?;
            // SAFETY: The core queries ports after their attributes that never change.
            let immutable = unsafe { verb.device().immutable(port) }?;
            T::query_port(call, port)?.write(immutable, attr)
        })
    }

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `change` valid.
    unsafe extern "C" fn modify_port_callback(
        device: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        change: *mut bindings::ib_port_modify,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The change is valid during the call.
        let change = PortChange::from_raw(mask, unsafe { &*change });

        verb.run(|call| {
            let (port, change) = (verb.device().port(port)?, change?);
            // SAFETY: The core modifies ports of devices that are registered.
            let immutable = unsafe { verb.device().immutable(port) }?;
            if immutable.core_cap_flags & bindings::RDMA_CORE_CAP_PROT_IB == 0 {
                // Like the core for drivers without this verb: connection managers need no support.
                let others = change.set_capabilities | change.clear_capabilities;
                return match others & !bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP {
                    0 => Ok(()),
                    _ => Err(EOPNOTSUPP),
                };
            }
            T::modify_port(call, port, &change)
        })
    }

    /// # Safety
    ///
    /// `device` must be a device of `T` that is being registered, and `immutable` valid for writes.
    unsafe extern "C" fn port_immutable_callback(
        device: *mut bindings::ib_device,
        port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The attributes belong to this call.
        let immutable = unsafe { blank(immutable) };

        verb.run(|call| {
            let port = verb.device().port(port)?;
            T::port_immutable(call, port)?.write(immutable)
        })
    }

    /// # Safety
    ///
    /// `device` must be a device of `T` that is registered or being registered.
    unsafe extern "C" fn link_layer_callback(
        device: *mut bindings::ib_device,
        port: u32,
    ) -> bindings::rdma_link_layer {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        let Ok(port) = verb.device().port(port) else {
            return LinkLayer::Unspecified.raw();
        };
        verb.enter(|call| T::link_layer(call, port)).raw()
    }

    /// Returns the speed of a port in units of 100 Mb/s; 0 if there is no link.
    ///
    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `speed` valid for writes.
    unsafe extern "C" fn query_port_speed_callback(
        device: *mut bindings::ib_device,
        port: u32,
        speed: *mut u64,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The speed belongs to this call.
        let speed = unsafe { blank(speed) };

        verb.run(|call| {
            let mut attributes = bindings::ib_port_attr::default();
            let mut info = bindings::ib_port_speed_info::default();
            let port = verb.device().port(port)?;
            let now = T::query_port(call, port)?;
            // SAFETY: The core queries the speed of ports of devices that are registered.
            let immutable = unsafe { verb.device().immutable(port) }?;
            now.write(immutable, &mut attributes)?;
            if now.state != State::Down {
                // SAFETY: Both are valid.
                to_result(unsafe {
                    bindings::ib_port_attr_to_speed_info(&mut attributes, &mut info)
                })?;
                *speed = info.rate.try_into()?;
            }
            Ok(())
        })
    }

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `pkey` valid for writes.
    unsafe extern "C" fn query_pkey_callback(
        device: *mut bindings::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The P_Key belongs to this call.
        let pkey = unsafe { blank(pkey) };

        verb.run(|call| {
            *pkey = T::query_pkey(call, verb.device().port(port)?, index)?;
            Ok(())
        })
    }

    /// # Safety
    ///
    /// `device` must be a device of `T` that is registered or being registered, and `gid` valid for
    /// writes.
    unsafe extern "C" fn query_gid_callback(
        device: *mut bindings::ib_device,
        port: u32,
        index: c_int,
        gid: *mut bindings::ib_gid,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let verb = unsafe { Verb::<T>::new(device) };
        // SAFETY: The GID belongs to this call; all members of the union are plain bytes.
        let raw = unsafe { crate::compat::member_mut(&mut (*gid).raw) };

        verb.run(|call| {
            let port = verb.device().port(port)?;
            let Gid(bytes) = T::query_gid(call, port, index.try_into()?)?;
            *raw = bytes;
            Ok(())
        })
    }

    /// # Safety
    ///
    /// `attr` must be an entry of the GID table of a registered device of `T`.
    unsafe extern "C" fn add_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: The core set the device of the entry.
        let verb = unsafe { Verb::<T>::new((*attr).device) };
        // SAFETY: The entry is valid and does not change during the call.
        let attr = unsafe { &*attr };

        verb.run(|call| T::add_gid(call, &GidAttr::new(attr)))
    }

    /// # Safety
    ///
    /// `attr` must be an entry of the GID table of a registered device of `T`.
    unsafe extern "C" fn del_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: The core set the device of the entry.
        let verb = unsafe { Verb::<T>::new((*attr).device) };
        // SAFETY: The entry is valid and does not change during the call.
        let attr = unsafe { &*attr };

        verb.run(|call| T::del_gid(call, &GidAttr::new(attr)))
    }
}

/// Returns an operation, if the driver has it.
const fn when<F: Copy>(has: bool, operation: F) -> Option<F> {
    if has {
        Some(operation)
    } else {
        None
    }
}

/// Changes the node description, which the core keeps. Nothing else can be changed.
///
/// # Safety
///
/// `device` must be registered, and `change` valid.
unsafe extern "C" fn modify_device_callback(
    device: *mut bindings::ib_device,
    mask: c_int,
    change: *mut bindings::ib_device_modify,
) -> c_int {
    // CAST: A set of bits that C keeps in an `int`.
    if mask as u32 & !bindings::ib_device_modify_flags_IB_DEVICE_MODIFY_NODE_DESC != 0 {
        return EOPNOTSUPP.to_errno();
    }
    if mask != 0 {
        // SAFETY: Both are valid. Only C code reads the description, and tolerates concurrent
        // changes.
        unsafe { (*device).node_desc = (*change).node_desc };
    }
    0
}

/// Writer to a zeroed buffer, which leaves at least the last byte zero.
struct Text<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.buffer.len().saturating_sub(self.length + 1);
        let (bytes, cut) = match text.as_bytes().get(..room) {
            Some(bytes) => (bytes, bytes.len() < text.len()),
            None => (text.as_bytes(), false),
        };
        self.buffer[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
        if cut {
            Err(fmt::Error)
        } else {
            Ok(())
        }
    }
}
