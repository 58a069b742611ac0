// SPDX-License-Identifier: GPL-2.0

//! An example driver: the skeleton of a driver for EFA, the Elastic Fabric Adapter.
//!
//! EFA differs from the devices for which most verbs were designed, so it shows what a driver can
//! omit and add (`include/uapi/rdma/efa-abi.h`; the C driver is `drivers/infiniband/hw/efa`):
//!
//! - Only processes use it; there are no verbs for the kernel ([`Processes`]).
//! - It has no shared receive queues and no memory windows.
//! - In addition to unreliable datagrams it has its own type of queue pair: scalable reliable
//!   datagrams (SRD).
//! - Its port is neither InfiniBand nor RoCE.
//! - It adds a method on memory regions that processes can call.
//!
//! The example has everything that the core and processes see. Only the device is missing: where a
//! driver would send a command, [`Object`] takes the next number.

#![deny(unsafe_code)]

mod abi;
mod cq;
mod mr;
mod qp;
#[allow(unsafe_code)]
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use rdma::{
    ah::{
        self,
        AddressHandle, //
    },
    counter::Counter,
    device::{
        Atomicity,
        Capabilities,
        DeviceAttr,
        OnDemandPaging,
        Operations, //
    },
    gid::Gid,
    mmap::Mappings,
    port::{
        self,
        LinkLayer,
        Mtu,
        Port,
        PortAttr,
        Protocol, //
    },
    uapi::Addition,
    ucontext::{
        Ucontext,
        UserContext, //
    },
    udata::{
        Caller,
        Processes, //
    },
    Pd,
    ProtectionDomain,
    Unsupported,
    User, //
};

/// Prefix of messages in the kernel log. In a module, `module!` defines it.
const __LOG_PREFIX: &[u8] = b"rdma_example\0";

/// The module of the driver. This example is not a module; in a module, `module!` defines this.
struct LocalModule;

impl kernel::ModuleMetadata for LocalModule {
    const NAME: &'static kernel::str::CStr = c"rdma_example";

    #[allow(unsafe_code)]
    // SAFETY: Code that is built into the kernel has no `struct module`; its pointer is null.
    const THIS_MODULE: kernel::ThisModule =
        unsafe { kernel::ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// The driver.
struct Efa;

/// The context of every verb.
type Call<'a> = rdma::Call<'a, Efa>;

/// The driver's data for a device while the device is registered.
struct Data {
    admin: Arc<Admin>,
    /// Address of the device, which is its only GID.
    address: Gid,
}

/// Stand-in for the device's command queue.
struct Admin {
    next: Atomic<u32>,
    /// Number of objects that exist in the device.
    objects: Atomic<u32>,
}

impl Admin {
    fn new() -> Result<Arc<Self>> {
        let admin = Self {
            next: Atomic::new(1),
            objects: Atomic::new(0),
        };
        Ok(Arc::new(admin, GFP_KERNEL)?)
    }
}

/// An object of the device. Dropping it removes it from the device at the latest, so a verb that
/// fails halfway leaves nothing behind.
struct Object {
    admin: Arc<Admin>,
    number: u16,
    exists: Atomic<bool>,
}

impl Object {
    /// Creates an object in the device, which assigns its number.
    fn create(call: &Call<'_>) -> Result<Self> {
        let admin = call.data().admin.clone();
        let number = u16::try_from(admin.next.fetch_add(1, Relaxed))?;
        admin.objects.fetch_add(1, Relaxed);
        Ok(Self {
            admin,
            number,
            exists: Atomic::new(true),
        })
    }

    /// Removes the object from the device.
    fn destroy(&self) {
        if self.exists.xchg(false, Relaxed) {
            self.admin.objects.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.destroy();
    }
}

const MAX_ENTRIES: u32 = 1 << 15;
const MAX_OBJECTS: u32 = 1 << 12;
const MAX_INLINE: u32 = 32;

#[vtable]
impl Operations for Efa {
    type RegistrationData<'a> = Data;
    type Users = Processes;
    type Path = ah::Unspecified;
    type DeviceResponse = abi::QueryDeviceResponse;
    type UserContext = Context;
    type ProtectionDomain = Domain;
    type CompletionQueue = cq::Queue;
    type QueuePair = qp::Pair;
    type SharedReceiveQueue = Unsupported<Self>;
    type XrcDomain = Unsupported<Self>;
    type ReceiveWorkQueue = Unsupported<Self>;
    type IndirectionTable = Unsupported<Self>;
    type MemoryRegion = mr::Region;
    type MemoryWindow = Unsupported<Self>;
    type DmBuffer = Unsupported<Self>;
    type DmaHandle = Unsupported<Self>;
    type FlowRule = Unsupported<Self>;
    type FlowCounters = Unsupported<Self>;
    type CompletionCounter = Unsupported<Self>;
    type AddressHandle = Handle;
    type Pager = Unsupported<Self>;

    const DRIVER_ID: u32 = abi::DRIVER_ID;
    const ABI_VERSION: u32 = abi::ABI_VERSION;
    const USER_METHODS: &'static [Addition<Self>] = &[Addition::method::<mr::Query>()];
    const PORT_COUNTERS: &'static [Counter] = &[
        Counter::new(c"tx_bytes"),
        Counter::new(c"tx_pkts"),
        Counter::new(c"rx_bytes"),
        Counter::new(c"rx_pkts"),
        Counter::new(c"rx_drops"),
    ];

    fn query_device(_call: &Call<'_>) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            firmware_version: 0,
            system_image_guid: 0,
            vendor_id: 0x1d0f,
            vendor_part_id: 0xefa0,
            hardware_version: 0,
            capabilities: Capabilities::default(),
            max_mr_size: 1 << 40,
            page_sizes: 0xffff_f000,
            max_qp: MAX_OBJECTS,
            max_qp_wr: MAX_ENTRIES,
            max_send_sge: 2,
            max_recv_sge: 3,
            max_sge_rd: 1,
            max_cq: MAX_OBJECTS,
            max_cqe: MAX_ENTRIES,
            max_cq_moderation_count: 0,
            max_cq_moderation_period: 0,
            max_srq: 0,
            max_srq_wr: 0,
            max_srq_sge: 0,
            max_multicast_groups: 0,
            max_multicast_members: 0,
            max_multicast_attachments: 0,
            max_mr: MAX_OBJECTS,
            max_fast_registration_pages: 0,
            max_integrity_pieces: 0,
            max_mw: 0,
            max_dm_size: 0,
            max_pd: MAX_OBJECTS,
            max_ah: MAX_OBJECTS,
            max_qp_rd_atomic: 0,
            max_qp_init_rd_atomic: 0,
            max_res_rd_atomic: 0,
            atomicity: Atomicity::None,
            max_pkeys: 1,
            ack_delay: 0,
            on_demand_paging: OnDemandPaging::default(),
            timestamp_mask: 0,
            ud_segmentation: false,
            blocks_own_multicast: false,
            strips_vlan: false,
            receive_scaling: Default::default(),
            clock_khz: 0,
        })
    }

    fn device_response(_call: &Call<'_>) -> Result<abi::QueryDeviceResponse> {
        Ok(abi::QueryDeviceResponse {
            comp_mask: 0,
            max_sq_wr: MAX_ENTRIES,
            max_rq_wr: MAX_ENTRIES,
            max_sq_sge: 2,
            max_rq_sge: 3,
            max_rdma_size: 1 << 30,
            device_caps: abi::QUERY_DEVICE_CAPS_RDMA_READ,
        })
    }

    fn port_immutable(_call: &Call<'_>, _port: Port) -> Result<port::Immutable> {
        Ok(port::Immutable {
            protocol: Protocol::Unspecified,
            pkey_table_length: 1,
            gid_table_length: 1,
            raw_packets: false,
        })
    }

    fn link_layer(_call: &Call<'_>, _port: Port) -> LinkLayer {
        LinkLayer::Unspecified
    }

    fn query_port(_call: &Call<'_>, _port: Port) -> Result<PortAttr> {
        Ok(PortAttr {
            state: port::State::Active,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu4096,
            // 4 lanes of EDR: 100 Gb/s.
            active_width: 2,
            active_speed: 32,
            max_message_size: 4096,
            bad_pkey_count: 0,
            qkey_violation_count: 0,
            has_ip_gids: false,
            subnet: None,
        })
    }

    fn query_gid(call: &Call<'_>, _port: Port, _index: u32) -> Result<Gid> {
        Ok(call.data().address)
    }

    fn query_pkey(_call: &Call<'_>, _port: Port, index: u16) -> Result<u16> {
        match index {
            0 => Ok(0xffff),
            _ => Err(EINVAL),
        }
    }

    fn port_counters(_call: &Call<'_>, _port: Port, values: &mut [u64]) -> Result {
        // A real device would count.
        values.fill(0);
        Ok(())
    }
}

/// A context of a process, for which the device has a doorbell page.
struct Context(Object);

#[vtable]
impl UserContext for Context {
    type Driver = Efa;
    type Request = abi::AllocContextRequest;
    type Response = abi::AllocContextResponse;

    fn alloc(
        call: &Call<'_>,
        _mappings: &mut Mappings<'_>,
        _request: abi::AllocContextRequest,
    ) -> Result<(impl PinInit<Self>, abi::AllocContextResponse)> {
        // CAST: A small constant.
        let response = abi::AllocContextResponse {
            inline_buf_size: MAX_INLINE as u16,
            ..Default::default()
        };
        Ok((Self(Object::create(call)?), response))
    }

    fn dealloc(context: &Ucontext<Self>, _call: &Call<'_>) {
        context.0.destroy();
    }
}

/// A protection domain.
struct Domain(Object);

impl ProtectionDomain for Domain {
    type Driver = Efa;
    type Request = ();
    type Response = abi::AllocPdResponse;

    fn alloc(
        call: &Call<'_>,
        _user: Caller<Efa, User<'_, Efa, ()>>,
    ) -> Result<(impl PinInit<Self>, abi::AllocPdResponse)> {
        let object = Object::create(call)?;
        let response = abi::AllocPdResponse {
            pdn: object.number,
            ..Default::default()
        };
        Ok((Self(object), response))
    }

    fn dealloc(pd: &Pd<Self>, _call: &Call<'_>) {
        pd.0.destroy();
    }
}

/// An address handle that the device knows, by a command that sleeps.
struct Handle(Object);

#[vtable]
impl AddressHandle for Handle {
    type Driver = Efa;
    type Request = ();
    type Response = abi::CreateAhResponse;

    fn create(
        call: &Call<'_>,
        _path: &ah::Unspecified,
        context: ah::Context,
        _user: Caller<Efa, User<'_, Efa, ()>>,
    ) -> Result<(impl PinInit<Self>, abi::CreateAhResponse)> {
        if context == ah::Context::Atomic {
            return Err(EOPNOTSUPP);
        }
        // A real command would carry the GID of the destination.
        let object = Object::create(call)?;
        let response = abi::CreateAhResponse {
            address_handle: object.number,
            ..Default::default()
        };
        Ok((Self(object), response))
    }

    fn destroy(ah: &rdma::Ah<Self>, _context: ah::Context, _call: &Call<'_>) {
        ah.0.destroy();
    }
}
