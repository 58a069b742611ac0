// SPDX-License-Identifier: GPL-2.0

//! Tables of a driver's operations, and the callbacks for the device itself.

use core::{
    fmt,
    marker::PhantomData, //
};

use kernel::{
    error::{
        from_result,
        to_result, //
    },
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
    counter,
    cq::{
        self,
        CompletionQueue,
        Cq, //
    },
    device::{
        Device,
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
    udata::{
        RawUsers,
        Udata, //
    },
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
        get_dev_fw_str: if T::HAS_FIRMWARE_VERSION {
            Some(Self::firmware_version_callback)
        } else {
            None
        },
        query_port: Some(Self::query_port_callback),
        query_port_speed: Some(Self::query_port_speed_callback),
        get_port_immutable: Some(Self::port_immutable_callback),
        get_link_layer: if T::HAS_LINK_LAYER {
            Some(Self::link_layer_callback)
        } else {
            None
        },
        modify_port: if T::HAS_MODIFY_PORT {
            Some(Self::modify_port_callback)
        } else {
            None
        },
        query_pkey: if T::HAS_QUERY_PKEY {
            Some(Self::query_pkey_callback)
        } else {
            None
        },
        query_gid: if T::HAS_QUERY_GID {
            Some(Self::query_gid_callback)
        } else {
            None
        },
        add_gid: if T::HAS_ADD_GID {
            Some(Self::add_gid_callback)
        } else {
            None
        },
        del_gid: if T::HAS_DEL_GID {
            Some(Self::del_gid_callback)
        } else {
            None
        },
        report_port_event: if T::HAS_IS_NETDEV_OF {
            Some(netdev::report_port_event_callback)
        } else {
            None
        },
        alloc_hw_port_stats: if T::HAS_PORT_COUNTERS {
            Some(counter::alloc_callback::<T>)
        } else {
            None
        },
        get_hw_stats: if T::HAS_PORT_COUNTERS {
            Some(counter::get_callback::<T>)
        } else {
            None
        },

        alloc_ucontext: Some(ucontext::alloc_callback::<T>),
        dealloc_ucontext: Some(ucontext::dealloc_callback::<T>),
        query_ucontext: if T::UserContext::HAS_QUERY {
            Some(ucontext::query_callback::<T>)
        } else {
            None
        },
        disassociate_ucontext: Some(ucontext::disassociate_callback),
        mmap: Some(mmap::mmap_callback),
        mmap_free: Some(mmap::mmap_free_callback),

        alloc_pd: Some(pd::alloc_callback::<T>),
        dealloc_pd: Some(pd::dealloc_callback::<T>),

        alloc_xrcd: if T::XrcDomain::IS_SUPPORTED {
            Some(xrc::alloc_callback::<T>)
        } else {
            None
        },
        dealloc_xrcd: if T::XrcDomain::IS_SUPPORTED {
            Some(xrc::dealloc_callback::<T>)
        } else {
            None
        },

        create_ah: if T::AddressHandle::IS_SUPPORTED && Self::HAS_KERNEL {
            Some(ah::create_callback::<T>)
        } else {
            None
        },
        create_user_ah: if T::AddressHandle::IS_SUPPORTED {
            Some(ah::create_callback::<T>)
        } else {
            None
        },
        query_ah: if T::AddressHandle::HAS_QUERY {
            Some(ah::query_callback::<T>)
        } else {
            None
        },
        destroy_ah: if T::AddressHandle::IS_SUPPORTED {
            Some(ah::destroy_callback::<T>)
        } else {
            None
        },

        create_cq: if T::CompletionQueue::HAS_CREATE {
            Some(cq::create_callback::<T>)
        } else {
            None
        },
        create_user_cq: Some(cq::create_user_callback::<T>),
        resize_user_cq: if T::CompletionQueue::HAS_RESIZE {
            Some(cq::resize_callback::<T>)
        } else {
            None
        },
        modify_cq: if T::CompletionQueue::HAS_MODERATE {
            Some(cq::modify_callback::<T>)
        } else {
            None
        },
        destroy_cq: Some(cq::destroy_callback::<T>),
        poll_cq: if T::CompletionQueue::HAS_POLL {
            Some(cq::poll_callback::<T>)
        } else {
            None
        },
        req_notify_cq: if T::CompletionQueue::HAS_REQUEST_NOTIFY {
            Some(cq::request_notify_callback::<T>)
        } else {
            None
        },
        fill_res_cq_entry: if T::CompletionQueue::HAS_FILL_DETAILS {
            Some(cq::fill_callback::<T>)
        } else {
            None
        },

        create_qp: Some(qp::create_callback::<T>),
        modify_qp: Some(qp::modify_callback::<T>),
        query_qp: if T::QueuePair::HAS_QUERY {
            Some(qp::query_callback::<T>)
        } else {
            None
        },
        destroy_qp: Some(qp::destroy_callback::<T>),
        attach_mcast: if T::QueuePair::HAS_ATTACH_MULTICAST {
            Some(qp::attach_mcast_callback::<T>)
        } else {
            None
        },
        detach_mcast: if T::QueuePair::HAS_DETACH_MULTICAST {
            Some(qp::detach_mcast_callback::<T>)
        } else {
            None
        },
        post_send: if T::QueuePair::HAS_POST_SEND {
            Some(qp::post_send_callback::<T>)
        } else {
            None
        },
        post_recv: if T::QueuePair::HAS_POST_RECV {
            Some(qp::post_recv_callback::<T>)
        } else {
            None
        },
        fill_res_qp_entry: if T::QueuePair::HAS_FILL_DETAILS {
            Some(qp::fill_callback::<T>)
        } else {
            None
        },

        create_srq: if T::SharedReceiveQueue::IS_SUPPORTED {
            Some(srq::create_callback::<T>)
        } else {
            None
        },
        modify_srq: if T::SharedReceiveQueue::HAS_RESIZE || T::SharedReceiveQueue::HAS_SET_LIMIT {
            Some(srq::modify_callback::<T>)
        } else {
            None
        },
        query_srq: if T::SharedReceiveQueue::HAS_QUERY {
            Some(srq::query_callback::<T>)
        } else {
            None
        },
        destroy_srq: if T::SharedReceiveQueue::IS_SUPPORTED {
            Some(srq::destroy_callback::<T>)
        } else {
            None
        },
        post_srq_recv: if T::SharedReceiveQueue::HAS_POST_RECV {
            Some(srq::post_recv_callback::<T>)
        } else {
            None
        },
        fill_res_srq_entry: if T::SharedReceiveQueue::HAS_FILL_DETAILS {
            Some(srq::fill_callback::<T>)
        } else {
            None
        },

        reg_user_mr: Some(mr::reg_user_callback::<T>),
        reg_user_mr_dmabuf: if T::MemoryRegion::HAS_REGISTER_DMA_BUF {
            Some(mr::reg_dma_buf_callback::<T>)
        } else {
            None
        },
        get_dma_mr: if T::MemoryRegion::HAS_REGISTER_DMA {
            Some(mr::get_dma_callback::<T>)
        } else {
            None
        },
        alloc_mr: if T::MemoryRegion::HAS_ALLOCATE_FAST {
            Some(mr::alloc_callback::<T>)
        } else {
            None
        },
        map_mr_sg: if T::MemoryRegion::HAS_SET_PAGE {
            Some(mr::map_callback::<T>)
        } else {
            None
        },
        rereg_user_mr: if T::MemoryRegion::HAS_REREGISTER {
            Some(mr::rereg_callback::<T>)
        } else {
            None
        },
        advise_mr: if T::MemoryRegion::HAS_ADVISE {
            Some(mr::advise_callback::<T>)
        } else {
            None
        },
        reg_dm_mr: if T::MemoryRegion::HAS_REGISTER_DM {
            Some(mr::reg_dm_callback::<T>)
        } else {
            None
        },
        dereg_mr: Some(mr::dereg_callback::<T>),
        fill_res_mr_entry: if T::MemoryRegion::HAS_FILL_DETAILS {
            Some(mr::fill_callback::<T>)
        } else {
            None
        },

        alloc_mw: if T::MemoryWindow::IS_SUPPORTED {
            Some(mw::alloc_callback::<T>)
        } else {
            None
        },
        dealloc_mw: if T::MemoryWindow::IS_SUPPORTED {
            Some(mw::dealloc_callback::<T>)
        } else {
            None
        },

        create_flow: if T::FlowRule::IS_SUPPORTED {
            Some(flow::create_callback::<T>)
        } else {
            None
        },
        destroy_flow: if T::FlowRule::IS_SUPPORTED {
            Some(flow::destroy_callback::<T>)
        } else {
            None
        },

        create_wq: if T::ReceiveWorkQueue::IS_SUPPORTED {
            Some(wq::create_callback::<T>)
        } else {
            None
        },
        modify_wq: if T::ReceiveWorkQueue::IS_SUPPORTED {
            Some(wq::modify_callback::<T>)
        } else {
            None
        },
        destroy_wq: if T::ReceiveWorkQueue::IS_SUPPORTED {
            Some(wq::destroy_callback::<T>)
        } else {
            None
        },

        create_rwq_ind_table: if T::IndirectionTable::IS_SUPPORTED {
            Some(wq::create_table_callback::<T>)
        } else {
            None
        },
        destroy_rwq_ind_table: if T::IndirectionTable::IS_SUPPORTED {
            Some(wq::destroy_table_callback::<T>)
        } else {
            None
        },

        alloc_dm: if T::DmBuffer::IS_SUPPORTED {
            Some(dm::alloc_callback::<T>)
        } else {
            None
        },
        dealloc_dm: if T::DmBuffer::IS_SUPPORTED {
            Some(dm::dealloc_callback::<T>)
        } else {
            None
        },

        alloc_dmah: if T::DmaHandle::IS_SUPPORTED {
            Some(dmah::alloc_callback::<T>)
        } else {
            None
        },
        dealloc_dmah: if T::DmaHandle::IS_SUPPORTED {
            Some(dmah::dealloc_callback::<T>)
        } else {
            None
        },

        size_ib_ah: if T::AddressHandle::IS_SUPPORTED {
            Ah::<T::AddressHandle>::SIZE
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
        process_mad: if T::HAS_PROCESS_MAD {
            Some(mad::process_callback::<T>)
        } else {
            None
        },
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
        // SAFETY: Verbs run only while the device is registered; the arguments are valid.
        from_result(|| unsafe {
            Device::<T>::from_raw(device).with(|call| {
                let udata = Udata::from_raw(udata);
                if let (true, Some(udata)) = (T::HAS_DEVICE_RESPONSE, &udata) {
                    udata.request::<()>()?;
                    udata.respond(&T::device_response(call)?)?;
                } else {
                    Udata::no_io(udata.as_ref())?;
                }
                let mut attributes = T::query_device(call)?;
                if !T::Pager::IS_SUPPORTED {
                    attributes.on_demand_paging = OnDemandPaging::default();
                }
                if Self::HAS_KERNEL && !attributes.serves_kernel() {
                    return Err(EIO);
                }
                attributes.write(blank(attr));
                if (*device).local_dma_lkey != 0 {
                    (*attr).kernel_cap_flags |=
                        u64::from(bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY);
                }
                Ok(0)
            })
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

        // SAFETY: The buffer has the length that the caller guarantees, and is initialised by
        // zeroing it.
        let buffer = unsafe {
            text.cast::<u8>().write_bytes(0, ROOM);
            core::slice::from_raw_parts_mut(text.cast::<u8>(), ROOM)
        };
        // SAFETY: Verbs run only while the device is registered.
        unsafe {
            Device::<T>::from_raw(device)
                .with(|call| T::firmware_version(call, &mut Text { buffer, length: 0 }));
        }
    }

    /// # Safety
    ///
    /// `device` must be a registered device of `T`, and `attr` valid for writes.
    unsafe extern "C" fn query_port_callback(
        device: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        // SAFETY: Verbs run only while the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            device.with(|call| {
                T::query_port(call, port)?.write(device.immutable(port)?, blank(attr))?;
                Ok(0)
            })
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
        // SAFETY: Verbs run only while the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            let change = PortChange::from_raw(mask, &*change)?;
            if device.immutable(port)?.core_cap_flags & bindings::RDMA_CORE_CAP_PROT_IB == 0 {
                // Like the core for drivers without this verb: connection managers need no support.
                let others = change.set_capabilities | change.clear_capabilities;
                return match others & !bindings::ib_port_capability_mask_bits_IB_PORT_CM_SUP {
                    0 => Ok(0),
                    _ => Err(EOPNOTSUPP),
                };
            }
            device.with(|call| T::modify_port(call, port, &change))?;
            Ok(0)
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
        // SAFETY: The data is set before the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            device.with(|call| {
                T::port_immutable(call, port)?.write(blank(immutable))?;
                Ok(0)
            })
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
        let device = unsafe { Device::<T>::from_raw(device) };
        let Ok(port) = device.port(port) else {
            return LinkLayer::Unspecified.raw();
        };
        // SAFETY: The data is set before the device is registered.
        unsafe { device.with(|call| T::link_layer(call, port)) }.raw()
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
        let mut attributes = bindings::ib_port_attr::default();
        let mut info = bindings::ib_port_speed_info::default();
        // SAFETY: Verbs run only while the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            let state = device.with(|call| {
                let now = T::query_port(call, port)?;
                now.write(device.immutable(port)?, &mut attributes)?;
                Ok::<_, Error>(now.state)
            })?;
            *speed = 0;
            if state != State::Down {
                to_result(bindings::ib_port_attr_to_speed_info(
                    &mut attributes,
                    &mut info,
                ))?;
                *speed = info.rate.try_into()?;
            }
            Ok(0)
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
        // SAFETY: Verbs run only while the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            device.with(|call| {
                *pkey = T::query_pkey(call, port, index)?;
                Ok(0)
            })
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
        // SAFETY: The data is set before the device is registered; the arguments are valid.
        from_result(|| unsafe {
            let device = Device::<T>::from_raw(device);
            let port = device.port(port)?;
            device.with(|call| {
                let Gid(bytes) = T::query_gid(call, port, index.try_into()?)?;
                let raw = crate::compat::member_mut(&mut (*gid).raw);
                *raw = bytes;
                Ok(0)
            })
        })
    }

    /// # Safety
    ///
    /// `attr` must be an entry of the GID table of a registered device of `T`.
    unsafe extern "C" fn add_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: Verbs run only while the device is registered. The entry is valid and does not
        // change during the call.
        from_result(|| unsafe {
            Device::<T>::from_raw((*attr).device).with(|call| {
                T::add_gid(call, &GidAttr::new(&*attr))?;
                Ok(0)
            })
        })
    }

    /// # Safety
    ///
    /// `attr` must be an entry of the GID table of a registered device of `T`.
    unsafe extern "C" fn del_gid_callback(
        attr: *const bindings::ib_gid_attr,
        _context: *mut *mut c_void,
    ) -> c_int {
        // SAFETY: Verbs run only while the device is registered. The entry is valid and does not
        // change during the call.
        from_result(|| unsafe {
            Device::<T>::from_raw((*attr).device).with(|call| {
                T::del_gid(call, &GidAttr::new(&*attr))?;
                Ok(0)
            })
        })
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
