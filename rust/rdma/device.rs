// SPDX-License-Identifier: GPL-2.0

//! Devices and their registration.

use core::{
    cell::UnsafeCell,
    mem::offset_of,
    ptr::NonNull, //
};

use kernel::{
    device,
    error::to_result,
    prelude::*,
    sync::{
        aref::AlwaysRefCounted,
        Arc, //
    },
    types::{
        NotThreadSafe,
        Opaque, //
    },
};

use crate::{
    ah::{
        self,
        AddressHandle, //
    },
    bindings,
    comp_cntr::CompletionCounter,
    compat,
    counter::Counter,
    cq::CompletionQueue,
    dm::DmBuffer,
    dma::{
        Mapper,
        Watched, //
    },
    dmah::DmaHandle,
    event::{
        Dispatcher,
        Objects, //
    },
    flow::{
        FlowCounters,
        FlowRule, //
    },
    gid::{
        Gid,
        GidAttr, //
    },
    mad,
    mr::MemoryRegion,
    mw::MemoryWindow,
    netdev::{
        self,
        Netdev,
        Pairing, //
    },
    object::kmalloc_aligned_size,
    odp::Pager,
    pd::ProtectionDomain,
    port::{
        self,
        LinkLayer,
        Port,
        PortAttr,
        PortChange, //
    },
    qp::{
        Qp,
        QueuePair, //
    },
    srq::SharedReceiveQueue,
    uapi::{
        Addition,
        Definitions, //
    },
    ucontext::UserContext,
    udata::{
        self,
        Response, //
    },
    vtable::VTable,
    wq::{
        IndirectionTable,
        ReceiveWorkQueue, //
    },
    xrc::XrcDomain, //
};

mod attr;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use attr::{
    Atomicity,
    Capabilities,
    Capability,
    DeviceAttr,
    OnDemandOperation,
    OnDemandOperations,
    OnDemandPaging,
    ReceiveScaling, //
};

/// The context of a verb: the registered device, and what its registration owns.
///
/// `'bound` is the lifetime of the registration. A verb knows only that this lifetime has not
/// ended, so everything that the data borrows for `'bound` is still valid. The data itself can be
/// borrowed only for the duration of the call, so nothing that refers to it can be stored in it.
///
/// # Invariants
///
/// As long as `self` exists, the device is registered and `registered` is what its registration
/// owns. If `is_of_process`, the current task is in a system call by which a process calls the
/// verb, has that process's memory, and does not return before `self` is gone.
pub struct Call<'bound, T: Operations> {
    device: NonNull<Device<T>>,
    registered: NonNull<Registered<'bound, T>>,
    is_of_process: bool,
}

impl<'bound, T: Operations> Call<'bound, T> {
    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &Device<T> {
        // SAFETY: Registered by the type invariant, hence valid.
        unsafe { self.device.as_ref() }
    }

    fn registered(&self) -> &Registered<'bound, T> {
        // SAFETY: Valid by the type invariant, and never borrowed mutably while it is registered.
        unsafe { self.registered.as_ref() }
    }

    /// Returns the driver's data for the device.
    #[inline]
    pub fn data(&self) -> &T::RegistrationData<'bound> {
        &self.registered().data
    }

    /// Returns `ESRCH` unless a process called the verb. Only then is there process memory to use:
    /// verbs called by the kernel may run in the context of any process, or of none.
    pub(crate) fn check_process(&self) -> Result {
        match self.is_of_process {
            true => Ok(()),
            false => Err(ESRCH),
        }
    }

    /// Returns the dispatcher of the device.
    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.registered().dispatcher
    }

    /// Returns the mapper, which maps memory for DMA by the device.
    pub(crate) fn mapper(&self) -> &Arc<Mapper> {
        &self.registered().mapper
    }

    /// Returns the ports of the device.
    #[inline]
    pub fn ports(&self) -> impl ExactSizeIterator<Item = Port> {
        self.device().ports()
    }

    /// Calls `f` with the network device that is bound to a port, if there is one. The driver
    /// decides which one that is in [`Operations::is_netdev_of`].
    pub fn with_netdev<R>(&self, port: Port, f: impl FnOnce(&Netdev) -> R) -> Option<R> {
        // SAFETY: The device is valid.
        let netdev = unsafe { Netdev::of_port(self.device().as_raw(), port) };
        netdev.map(|netdev| f(&netdev))
    }
}

/// A driver for RDMA devices.
///
/// A driver must implement what the core demands of each device. The rest is optional. It leaves
/// out the methods of verbs that it lacks, here and in the traits of objects, and names
/// [`Unsupported`] as the type of objects that its devices do not have. The corresponding
/// operations are then `NULL` in `struct ib_device_ops`, and the core returns `EOPNOTSUPP`.
///
/// A driver for users in the kernel, such as NVMe over Fabrics, says so in [`Users`](Self::Users)
/// and implements all of [`QueuePair::post_send`], [`QueuePair::post_recv`],
/// [`CompletionQueue::create`], [`CompletionQueue::poll`], [`CompletionQueue::request_notify`] and
/// [`MemoryRegion::register_dma`] (`kverbs_provider` in `struct ib_device`). It does not compile if
/// one is missing.
///
/// [`Unsupported`]: crate::Unsupported
#[vtable]
pub trait Operations: Sized + Send + Sync + 'static {
    /// Data owned by the [`Registration`] and accessible during all verbs.
    ///
    /// `'a` is the lifetime of the registration, during which the parent device is bound to its
    /// driver.
    type RegistrationData<'a>: Send + Sync + 'a
    where
        Self: 'a;
    /// The users of the devices: [`udata::Processes`] or [`udata::ProcessesAndKernel`].
    type Users: udata::Users;
    /// The kind of address handle path on its ports: [`ah::Roce`], [`ah::InfiniBand`],
    /// [`ah::Unspecified`], or, if ports differ, [`ah::Any`].
    type Path: ah::Path;
    /// The driver's part of the response to a process that queries the device
    /// ([`device_response`](Self::device_response)); `()` if there is none.
    type DeviceResponse: Response;
    /// The driver's user contexts.
    type UserContext: UserContext<Driver = Self>;
    /// The driver's protection domains.
    type ProtectionDomain: ProtectionDomain<Driver = Self>;
    /// The driver's completion queues.
    type CompletionQueue: CompletionQueue<Driver = Self>;
    /// The driver's queue pairs.
    type QueuePair: QueuePair<Driver = Self>;
    /// The driver's shared receive queues, or [`Unsupported`](crate::Unsupported).
    type SharedReceiveQueue: SharedReceiveQueue<Driver = Self>;
    /// The driver's XRC domains, or [`Unsupported`](crate::Unsupported).
    type XrcDomain: XrcDomain<Driver = Self>;
    /// The driver's receive work queues without queue pairs, or
    /// [`Unsupported`](crate::Unsupported).
    type ReceiveWorkQueue: ReceiveWorkQueue<Driver = Self>;
    /// The driver's indirection tables, or [`Unsupported`](crate::Unsupported).
    type IndirectionTable: IndirectionTable<Driver = Self>;
    /// The driver's memory regions.
    type MemoryRegion: MemoryRegion<Driver = Self>;
    /// The driver's memory windows, or [`Unsupported`](crate::Unsupported).
    type MemoryWindow: MemoryWindow<Driver = Self>;
    /// The driver's device memory, or [`Unsupported`](crate::Unsupported).
    type DmBuffer: DmBuffer<Driver = Self>;
    /// The driver's DMA handles, or [`Unsupported`](crate::Unsupported).
    type DmaHandle: DmaHandle<Driver = Self>;
    /// The driver's flows, or [`Unsupported`](crate::Unsupported).
    type FlowRule: FlowRule<Driver = Self>;
    /// The driver's counters of flows, or [`Unsupported`](crate::Unsupported).
    type FlowCounters: FlowCounters<Driver = Self>;
    /// The driver's completion counters, or [`Unsupported`](crate::Unsupported).
    type CompletionCounter: CompletionCounter<Driver = Self>;
    /// The driver's address handles, or [`Unsupported`](crate::Unsupported).
    type AddressHandle: AddressHandle<Driver = Self>;
    /// The pager that faults in pages of on-demand memory regions, or
    /// [`Unsupported`](crate::Unsupported).
    type Pager: Pager;

    /// Value of `enum rdma_driver_id`. It must not be the number of a C driver: such a driver casts
    /// every device that has its number to its own type.
    const DRIVER_ID: u32;
    /// Version of the driver's user ABI, starting from 1.
    const ABI_VERSION: u32;
    /// Driver methods that processes can call in addition to the verbs.
    const USER_METHODS: &'static [Addition<Self>] = &[];
    /// Counters of a port, which [`port_counters`](Self::port_counters) reads.
    const PORT_COUNTERS: &'static [Counter] = &[];

    /// Returns the attributes of the device.
    fn query_device(call: &Call<'_, Self>) -> Result<DeviceAttr>;

    /// Returns the driver's part of the response to a process that queries the device.
    fn device_response(_call: &Call<'_, Self>) -> Result<Self::DeviceResponse> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Writes the firmware version as human-readable text. Text that is too long is truncated.
    fn firmware_version(_call: &Call<'_, Self>, _text: &mut dyn core::fmt::Write) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the attributes of a port that never change.
    fn port_immutable(call: &Call<'_, Self>, port: Port) -> Result<port::Immutable>;

    /// Returns the link layer of a port. Without this method the link layer follows from the [kind
    /// of node](Properties::node_type): it is InfiniBand for a channel adapter.
    fn link_layer(_call: &Call<'_, Self>, _port: Port) -> LinkLayer {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the attributes of a port. This only reads state:
    /// [`follow_netdev`](Self::follow_netdev) has already set up whatever depends on the network
    /// device.
    fn query_port(call: &Call<'_, Self>, port: Port) -> Result<PortAttr>;

    /// Returns whether `netdev` is the network device of a port. Without this method ports have
    /// none.
    ///
    /// As long as a port has no network device, this is called for every network device of the
    /// machine: before the RDMA device is registered, and whenever a network device appears. A
    /// driver that knows the MAC address of its port compares it with [`Netdev::ethernet_address`].
    ///
    /// The RTNL lock is held, so this must not wait for anything that takes it.
    fn is_netdev_of(_call: &Call<'_, Self>, _netdev: &Netdev, _port: Port) -> bool {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Sets up the hardware for the network device of a port, if there is one
    /// ([`Call::with_netdev`]). Called when the network device appears, goes away, or changes its
    /// state or MTU, and also before the RDMA device is registered.
    ///
    /// Calls for the same port never overlap.
    fn follow_netdev(_call: &Call<'_, Self>, _port: Port) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the P_Key at `index`.
    fn query_pkey(_call: &Call<'_, Self>, _port: Port, _index: u16) -> Result<u16> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns an entry of the GID table of a port that is not RoCE.
    fn query_gid(_call: &Call<'_, Self>, _port: Port, _index: u32) -> Result<Gid> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Changes an InfiniBand port for a user in the kernel.
    fn modify_port(_call: &Call<'_, Self>, _port: Port, _change: &PortChange) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Passes a management datagram to the device's own agents, and writes their response to
    /// `answer`, which is zeroed. An error is not reported to anyone.
    ///
    /// Called only if [`Properties::answers_management`] is set.
    ///
    /// The core passes every datagram for queue pairs 0 and 1 here first, as well as its own
    /// queries (for `sysfs`) and directed-route datagrams without hops. May sleep.
    fn process_mad(
        _call: &Call<'_, Self>,
        _port: Port,
        _incoming: &mad::Incoming<'_>,
        _answer: &mut mad::Mad,
    ) -> Result<mad::Outcome> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Fills an entry of the GID table of a RoCE port. The core keeps that table.
    fn add_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Clears an entry of the GID table of a RoCE port.
    fn del_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Reads the counters of a port. Each value goes to the index that its counter has in
    /// [`PORT_COUNTERS`](Self::PORT_COUNTERS).
    fn port_counters(_call: &Call<'_, Self>, _port: Port, _values: &mut [u64]) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Creates a set of counters for queue pairs of a port, all 0. Returns its number, which is not
    /// 0 and is unique on the device.
    ///
    /// This and the next four methods are used only if [`Properties::counters_of_queue_pairs`] is
    /// set.
    fn create_qp_counter(_call: &Call<'_, Self>, _port: Port) -> Result<u32> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Makes a queue pair, which counts for its port, count in the counter set `number` instead.
    fn bind_qp_counter(_call: &Call<'_, Self>, _qp: &Qp<Self::QueuePair>, _number: u32) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Makes a queue pair count for the port again. This must not need memory, because it must
    /// succeed: when a queue pair is destroyed, the core forgets its counters in any case.
    fn unbind_qp_counter(_call: &Call<'_, Self>, _qp: &Qp<Self::QueuePair>) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Reads the counter set `number`, in the same way as [`port_counters`](Self::port_counters)
    /// reads the counters of a port.
    fn read_qp_counter(_call: &Call<'_, Self>, _number: u32, _values: &mut [u64]) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Destroys the counter set `number`, in which no queue pair counts any more. This must not
    /// need memory, like [`unbind_qp_counter`](Self::unbind_qp_counter).
    fn destroy_qp_counter(_call: &Call<'_, Self>, _number: u32) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

/// An RDMA device.
///
/// `ib_device_release` frees the memory without calling the driver, so no field may need [`Drop`].
/// Fields that do belong in the [`Registration`].
///
/// # Invariants
///
/// - `dev` is at offset 0 and was allocated by `_ib_alloc_device`.
/// - `registered` is dangling, or points to what the registration owns while the device is
///   registered.
#[repr(C)]
pub struct Device<T: Operations> {
    dev: Opaque<bindings::ib_device>,
    registered: UnsafeCell<NonNull<Registered<'static, T>>>,
}

/// What a registration owns and verbs use.
#[pin_data]
struct Registered<'bound, T: Operations> {
    // Fields are dropped in declaration order.
    #[pin]
    data: T::RegistrationData<'bound>,
    mapper: Arc<Mapper>,
    dispatcher: Arc<Dispatcher>,
}

impl<T: Operations> Device<T> {
    /// Borrows a device from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must be a device that [`UnregisteredDevice::new`] allocated for `T`, and must not be
    /// freed during `'a`.
    #[inline]
    pub(crate) unsafe fn from_raw<'a>(ptr: *mut bindings::ib_device) -> &'a Self {
        // SAFETY: `dev` is at offset 0; validity is guaranteed by the caller.
        unsafe { &*ptr.cast() }
    }

    /// Returns the C structure.
    #[inline]
    pub(crate) fn as_raw(&self) -> *mut bindings::ib_device {
        self.dev.get()
    }

    /// Returns the ports of the device.
    #[inline]
    pub fn ports(&self) -> impl ExactSizeIterator<Item = Port> {
        // SAFETY: Set before anybody else had the device.
        Port::all(unsafe { (*self.as_raw()).phys_port_cnt })
    }

    /// Returns the port with that number, or `EINVAL` if the device has no such port.
    pub(crate) fn port(&self, number: u32) -> Result<Port> {
        let port = Port::try_from(number)?;
        // CAST: `usize` has at least 32 bits.
        match number as usize <= self.ports().len() {
            true => Ok(port),
            false => Err(EINVAL),
        }
    }

    /// Returns the attributes of a port that never change, as the driver gave them at registration;
    /// `EINVAL` if the device has no such port.
    ///
    /// # Safety
    ///
    /// The device must be registered, or its registration must have got past querying all ports for
    /// these attributes.
    pub(crate) unsafe fn immutable(&self, port: Port) -> Result<&bindings::ib_port_immutable> {
        let port = self.port(port.number())?;
        // SAFETY: There is an element for each port. The core filled it before it called the
        // caller, and never writes it again.
        // CAST: `usize` has at least 32 bits.
        unsafe {
            let data = (*self.as_raw()).port_data.add(port.number() as usize);
            Ok(&(*data).immutable)
        }
    }

    /// Returns the number of completion vectors.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: Set before the device was registered, from a `u32`.
        // CAST: Reverts the one of `UnregisteredDevice::new`.
        unsafe { (*self.as_raw()).num_comp_vectors as u32 }
    }

    /// Calls `f` with the device and the data of its registration.
    ///
    /// The closure must work for any lifetime of the registration, so it cannot rely on a
    /// particular one, and its call context ends with the closure.
    ///
    /// # Safety
    ///
    /// The device must stay registered until `f` returns: call this only from a verb.
    #[inline]
    pub(crate) unsafe fn with<R>(&self, f: impl for<'bound> FnOnce(&Call<'bound, T>) -> R) -> R {
        // SAFETY: Guaranteed by the caller.
        unsafe { self.with_caller(false, f) }
    }

    /// Like [`with`](Self::with), in a verb that a process may have called. Verbs that destroy an
    /// object do not use this: they may run when the process has no memory any more.
    ///
    /// # Safety
    ///
    /// As for [`with`](Self::with). `is_process` may be set only if the current task is in the
    /// system call by which a process calls the verb.
    #[inline]
    pub(crate) unsafe fn with_caller<R>(
        &self,
        is_process: bool,
        f: impl for<'bound> FnOnce(&Call<'bound, T>) -> R,
    ) -> R {
        // INVARIANT: The caller guarantees that the device is registered until `f` returns. The
        // call context cannot outlive `f` or move to another task: it is not `Send`.
        f(&Call {
            device: NonNull::from(self),
            // SAFETY: The pointer is not written while the device is registered. Lifetimes do not
            // change the layout of what it points to.
            registered: unsafe { *self.registered.get() }.cast(),
            is_of_process: is_process && current!().mm().is_some(),
        })
    }
}

impl<T: Operations> AsRef<device::Device> for Device<T> {
    fn as_ref(&self) -> &device::Device {
        // SAFETY: The core initialised the generic device when it allocated `self`.
        unsafe { device::Device::from_raw((&raw mut (*self.as_raw()).__bindgen_anon_1.dev).cast()) }
    }
}

// SAFETY: The memory is freed with the last reference to the generic device.
unsafe impl<T: Operations> AlwaysRefCounted for Device<T> {
    fn inc_ref(&self) {
        // SAFETY: A shared reference proves that the reference count is not zero.
        unsafe { bindings::get_device((&raw mut (*self.as_raw()).__bindgen_anon_1.dev).cast()) };
    }

    unsafe fn dec_ref(this: NonNull<Self>) {
        let raw = this.cast::<bindings::ib_device>().as_ptr();
        // SAFETY: The caller owns a reference.
        unsafe { bindings::put_device((&raw mut (*raw).__bindgen_anon_1.dev).cast()) };
    }
}

// SAFETY: Any thread may drop the last reference.
unsafe impl<T: Operations> Send for Device<T> {}

// SAFETY: The core locks what it changes in its structure; the other fields are written only before
// anyone else can reach the device.
unsafe impl<T: Operations> Sync for Device<T> {}

c_enum! {
    /// Kind of network node that a device is, as reported to the core and to processes
    /// (`enum rdma_node_type`).
    pub enum NodeType: c_uint {
        /// A channel adapter: InfiniBand and RoCE.
        ChannelAdapter = bindings::RDMA_NODE_IB_CA,
        /// None of the kinds that have a name.
        Unspecified = bindings::RDMA_NODE_UNSPECIFIED,
    }
}

/// What the core needs to know about a device before it is registered.
pub struct Properties {
    /// Number of ports, at least one.
    pub ports: u32,
    /// Kind of node.
    pub node_type: NodeType,
    /// GUID of the node; its textual form starts with the most significant byte.
    pub node_guid: u64,
    /// Human-readable description of the node, which the administrator may change. Text that is too
    /// long is truncated.
    pub node_description: &'static CStr,
    /// Whether processes post through the verbs POST_SEND and POST_RECV.
    pub user_posts_by_verb: bool,
    /// Whether single queue pairs can have counters of their own: if set,
    /// [`Operations::create_qp_counter`] and the related methods work.
    pub counters_of_queue_pairs: bool,
    /// Whether the ports have agents of their own, which [`Operations::process_mad`] calls. If so,
    /// `sysfs` shows the counters of performance management.
    pub answers_management: bool,
    /// Key, not 0, by which local work requests of the kernel refer to all memory, by DMA address.
    pub local_dma_key: Option<u32>,
}

/// The verbs that a device must enable if processes post work requests through the kernel.
const POST_VERBS: u64 = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
    | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV;

/// A device that is not registered, so no one can use it yet. It is not thread-safe, so it cannot
/// be used while it is being registered.
pub struct UnregisteredDevice<T: Operations> {
    raw: NonNull<Device<T>>,
    objects: Objects,
    _not_thread_safe: NotThreadSafe,
}

impl<T: Operations> UnregisteredDevice<T> {
    /// Allocates a device, which takes ownership of `objects`.
    pub fn new(properties: &Properties, objects: Objects) -> Result<Self> {
        const {
            assert!(offset_of!(Device<T>, dev) == 0);
            assert!(!core::mem::needs_drop::<Device<T>>());
        }
        // The core requires this as well, but would print a warning.
        if matches!(properties.ports, 0 | u32::MAX) {
            return Err(EINVAL);
        }
        // SAFETY: The size has room for the whole `Device<T>`, suitably aligned. A device starts in
        // the initial network namespace.
        let raw = unsafe {
            bindings::_ib_alloc_device(
                kmalloc_aligned_size::<Device<T>>(),
                &raw mut bindings::init_net,
            )
        };
        let this = NonNull::new(raw.cast::<Device<T>>()).ok_or(ENOMEM)?;

        // INVARIANT: Not registered yet.
        // SAFETY: Just allocated and not shared yet. The operations are static.
        unsafe {
            let device = this.as_ptr();
            (&raw mut (*device).registered).write(UnsafeCell::new(NonNull::dangling()));

            (*raw).phys_port_cnt = properties.ports;
            (*raw).node_guid = properties.node_guid.to_be();
            // The field was zeroed; the last byte stays zero and terminates the string.
            let (_, room) = (*raw).node_desc.split_last_mut().ok_or(EINVAL)?;
            for (to, &from) in room.iter_mut().zip(properties.node_description.to_bytes()) {
                // CAST: A byte of text.
                *to = from as c_char;
            }
            // CAST: Constants that C keeps in a byte, and far fewer vectors than an `int` counts.
            (*raw).node_type = properties.node_type.raw() as u8;
            (*raw).local_dma_lkey = properties.local_dma_key.unwrap_or(0);
            (*raw).num_comp_vectors = objects.dispatcher().vectors() as c_int;

            if properties.user_posts_by_verb {
                (*raw).uverbs_cmd_mask |= POST_VERBS;
            }
            bindings::ib_set_device_ops(raw, &VTable::<T>::OPS);
            (*raw).driver_def = Definitions::<T>::as_raw();
            if properties.counters_of_queue_pairs {
                bindings::ib_set_device_ops(raw, &VTable::<T>::COUNTER_OPS);
            }
            if properties.answers_management {
                bindings::ib_set_device_ops(raw, &VTable::<T>::MANAGEMENT_OPS);
            }
        }
        Ok(Self {
            raw: this,
            objects,
            _not_thread_safe: NotThreadSafe,
        })
    }

    fn as_raw(&self) -> *mut bindings::ib_device {
        self.raw.cast().as_ptr()
    }
}

impl<T: Operations> Drop for UnregisteredDevice<T> {
    fn drop(&mut self) {
        // SAFETY: Allocated by `new`, and not registered (any more).
        unsafe { bindings::ib_dealloc_device(self.as_raw()) };
    }
}

/// Returns whether the core can derive a device name from `name`, which it uses as a format string
/// (`assign_name`).
fn is_name(name: &CStr) -> bool {
    let mut directives = name.to_bytes().split(|&byte| byte == b'%').skip(1);
    directives.next().is_none_or(|rest| rest.starts_with(b"d")) && directives.next().is_none()
}

/// A registered device.
///
/// On drop the device is unregistered. This destroys all objects of all users, even of processes
/// that still have the device open. After that no verb runs, and the data is dropped.
// Fields are dropped in declaration order after `drop` has unregistered the device: by the time the
// device is released, nothing looks for network devices any more.
pub struct Registration<'a, T: Operations> {
    pairings: KVec<Pin<KBox<Pairing>>>,
    device: UnregisteredDevice<T>,
    registered: Pin<KBox<Registered<'a, T>>>,
}

impl<'a, T: Operations> Registration<'a, T> {
    /// Registers a device as `name`, in which `%d` stands for the first free number. Any other use
    /// of `%` in the name is `EINVAL`.
    ///
    /// The device becomes a child of `parent`, which does DMA on its behalf, in segments of any
    /// length (`dma_set_max_seg_size`).
    ///
    /// # Safety
    ///
    /// The result must be dropped and not forgotten: the device must be unregistered before `'a`
    /// ends.
    pub unsafe fn new<E>(
        device: UnregisteredDevice<T>,
        name: &CStr,
        parent: &'a device::Device<device::Bound>,
        data: impl PinInit<T::RegistrationData<'a>, E>,
    ) -> Result<Self>
    where
        Error: From<E>,
    {
        if !is_name(name) {
            return Err(EINVAL);
        }
        let raw = device.as_raw();
        // SAFETY: The device is valid.
        let mapper = unsafe { Mapper::new(raw, parent, Watched::new()) }?;
        let dispatcher = device.objects.dispatcher().clone();
        let registered = KBox::pin_init(
            try_pin_init!(Registered {
                data <- data,
                mapper,
                dispatcher,
            }? E),
            GFP_KERNEL,
        )?;

        // INVARIANT: `registered` lives until the device is unregistered.
        // SAFETY: The device is not shared yet. The lifetime is erased here and restored by
        // `Device::with`. The parent outlives the registration; before and after the registration,
        // the parent pointer is not used.
        unsafe {
            let generic: *mut bindings::device = (&raw mut (*raw).__bindgen_anon_1.dev).cast();
            (*generic).parent = compat::device_as_raw(parent);
            *device.raw.as_ref().registered.get() =
                NonNull::from(Pin::get_ref(registered.as_ref())).cast();
        }

        // Declared so that all paths drop it before the data.
        let mut pairings = KVec::new();
        if T::HAS_IS_NETDEV_OF {
            // SAFETY: The device is valid.
            for port in unsafe { device.raw.as_ref() }.ports() {
                // SAFETY: The device and its data outlive the pairing, which is ended or dropped
                // first.
                let pairing = unsafe { Pairing::new(raw, port, Self::DRIVER) };
                let pairing = KBox::pin_init::<Error>(pairing, GFP_KERNEL)?;
                // SAFETY: The data is valid, and the device is not shared yet.
                unsafe { pairing.prepare() };
                pairings.push(pairing, GFP_KERNEL)?;
            }
        }

        // Page lists have segments of any length; the core splits them.
        // SAFETY: The parent is valid, and nothing is mapped for the RDMA device yet.
        unsafe { bindings::dma_set_max_seg_size(compat::device_as_raw(parent), u32::MAX) };

        // SAFETY: The device is complete: verbs may run from here on. The parent is bound during
        // `'a`, and the device is unregistered before `'a` ends.
        to_result(unsafe {
            bindings::ib_register_device(raw, name.as_char_ptr(), compat::device_as_raw(parent))
        })
        .inspect_err(|_| {
            // The driver must not be asked for network devices any more.
            pairings.clear();
            // Registration may fail after one client has already used the device.
            registered.mapper.close();
            // INVARIANT: Not registered.
            // SAFETY: The device is not shared any more.
            unsafe { *device.raw.as_ref().registered.get() = NonNull::dangling() };
        })?;

        registered.dispatcher.set_device(NonNull::new(raw));
        for pairing in &pairings {
            // SAFETY: The device stays registered until `drop` ends the pairing.
            unsafe { pairing.begin() };
        }
        Ok(Self {
            pairings,
            device,
            registered,
        })
    }

    /// Driver callbacks of a [`Pairing`].
    const DRIVER: netdev::Driver = netdev::Driver {
        follow: Self::follow,
        is_netdev_of: Self::is_netdev_of,
    };

    /// Returns whether `netdev` is the network device of a port.
    ///
    /// # Safety
    ///
    /// `raw` must be a device of `T` whose data is valid until this returns.
    unsafe fn is_netdev_of(raw: *mut bindings::ib_device, netdev: &Netdev, port: Port) -> bool {
        T::HAS_IS_NETDEV_OF
            // SAFETY: Guaranteed by the caller.
            && unsafe {
                Device::<T>::from_raw(raw).with(|call| T::is_netdev_of(call, netdev, port))
            }
    }

    /// Lets the driver set up a port for its network device.
    ///
    /// # Safety
    ///
    /// `raw` must be a device of `T` whose data is valid until this returns.
    unsafe fn follow(raw: *mut bindings::ib_device, port: Port) {
        if T::HAS_FOLLOW_NETDEV {
            // SAFETY: Guaranteed by the caller.
            unsafe { Device::<T>::from_raw(raw).with(|call| T::follow_netdev(call, port)) };
        }
    }

    /// Returns the device.
    #[inline]
    pub fn device(&self) -> &Device<T> {
        // SAFETY: Valid as long as `self`.
        unsafe { self.device.raw.as_ref() }
    }
}

// SAFETY: Once the device is registered, any thread may use and unregister it; the data is `Send`.
unsafe impl<T: Operations> Send for Registration<'_, T> {}

// SAFETY: A shared reference gives access to the device only, which is `Sync`.
unsafe impl<T: Operations> Sync for Registration<'_, T> {}

impl<T: Operations> Drop for Registration<'_, T> {
    fn drop(&mut self) {
        for pairing in &self.pairings {
            pairing.end();
        }
        self.registered.dispatcher.set_device(None);

        // SAFETY: Registered by `new`. When this returns, no verb runs and none will.
        unsafe { bindings::ib_unregister_device(self.device.as_raw()) };

        // INVARIANT: Not registered any more.
        // SAFETY: The pointer is not used any more.
        unsafe { *self.device().registered.get() = NonNull::dangling() };
        // All objects are gone; this unmaps memory that was kept nevertheless.
        self.registered.mapper.close();
    }
}
