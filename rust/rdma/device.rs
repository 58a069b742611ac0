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
    compat,
    counter::Counter,
    cq::CompletionQueue,
    dm::DmBuffer,
    dma::Mapper,
    event::{
        Dispatcher,
        Objects, //
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
        PortAttr, //
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
    OnDemandPaging, //
};

/// What every verb gets: the device, which is registered, and what its registration owns.
///
/// `'bound` is a lifetime that the verb knows nothing of, but that it has not ended: what the data
/// borrows for so long is there. The data itself may only be borrowed for as long as the call, so
/// nothing that refers to it can be kept in it.
///
/// # Invariants
///
/// As long as `self` exists the device is registered, and `registered` is what its registration
/// owns. If `is_of_process`, the task that runs is in a system call by which a process calls the
/// verb, and has that process's memory; it does not return before `self` is gone.
pub struct Call<'bound, T: Operations> {
    device: NonNull<Device<T>>,
    registered: NonNull<Registered<'bound, T>>,
    is_of_process: bool,
}

impl<'bound, T: Operations> Call<'bound, T> {
    /// The device.
    pub fn device(&self) -> &Device<T> {
        // SAFETY: Registered by the type invariant, hence valid.
        unsafe { self.device.as_ref() }
    }

    fn registered(&self) -> &Registered<'bound, T> {
        // SAFETY: Valid by the type invariant, and never borrowed mutably while it is registered.
        unsafe { self.registered.as_ref() }
    }

    /// The driver's data for the device.
    pub fn data(&self) -> &T::RegistrationData<'bound> {
        &self.registered().data
    }

    /// `ESRCH` unless a process called the verb: only then is there memory of it to be had. What
    /// the kernel calls may run in any process, or in none.
    pub(crate) fn check_process(&self) -> Result {
        match self.is_of_process {
            true => Ok(()),
            false => Err(ESRCH),
        }
    }

    /// The dispatcher of the device.
    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        &self.registered().dispatcher
    }

    /// What maps memory for the device.
    pub(crate) fn mapper(&self) -> &Arc<Mapper> {
        &self.registered().mapper
    }

    /// The ports of the device.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = Port> {
        self.device().ports()
    }

    /// Calls `f` with the network device that is bound to a port, if any: the one that is
    /// [that port's](Operations::is_netdev_of).
    pub fn with_netdev<R>(&self, port: Port, f: impl FnOnce(&Netdev) -> R) -> Option<R> {
        // SAFETY: The device is valid.
        let netdev = unsafe { Netdev::of_port(self.device().as_raw(), port) };
        netdev.map(|netdev| f(&netdev))
    }
}

/// A driver for RDMA devices.
///
/// What the core demands of each device has to be there; all else is optional. A driver leaves out
/// the methods of verbs that it lacks, here and in the traits of objects, and names [`Unsupported`]
/// as the type of objects that its devices do not have. Then the operations are not there
/// (`NULL` in `struct ib_device_ops`), and the core answers `EOPNOTSUPP`.
///
/// A driver for users in the kernel, as NVMe over fabrics, has all of [`QueuePair::post_send`],
/// [`QueuePair::post_recv`], [`CompletionQueue::create`], [`CompletionQueue::poll`],
/// [`CompletionQueue::request_notify`] and [`MemoryRegion::register_dma`] (`kverbs_provider` in
/// `struct ib_device`), and says so in [`Users`](Self::Users). It does not compile if it lacks one.
///
/// [`Unsupported`]: crate::Unsupported
#[vtable]
pub trait Operations: Sized + Send + Sync + 'static {
    /// Data owned by the [`Registration`] and accessible during all verbs.
    ///
    /// `'a` is the lifetime of the registration, which is inside the time that the parent device
    /// is bound to its driver.
    type RegistrationData<'a>: Send + Sync + 'a
    where
        Self: 'a;
    /// Who uses its devices: [`udata::Processes`] or [`udata::ProcessesAndKernel`].
    type Users: udata::Users;
    /// What a path says to a destination of its ports: [`ah::Roce`], [`ah::InfiniBand`],
    /// [`ah::Unspecified`], or, if ports differ, [`ah::Any`].
    type Path: ah::Path;
    /// The driver's part of the answer to a process that queries the device
    /// ([`device_response`](Self::device_response)); `()` if there is none.
    type DeviceResponse: Response;
    /// Its user contexts.
    type UserContext: UserContext<Driver = Self>;
    /// Its protection domains.
    type ProtectionDomain: ProtectionDomain<Driver = Self>;
    /// Its completion queues.
    type CompletionQueue: CompletionQueue<Driver = Self>;
    /// Its queue pairs.
    type QueuePair: QueuePair<Driver = Self>;
    /// Its shared receive queues, or [`Unsupported`](crate::Unsupported).
    type SharedReceiveQueue: SharedReceiveQueue<Driver = Self>;
    /// Its XRC domains, or [`Unsupported`](crate::Unsupported).
    type XrcDomain: XrcDomain<Driver = Self>;
    /// Its memory regions.
    type MemoryRegion: MemoryRegion<Driver = Self>;
    /// Its memory windows, or [`Unsupported`](crate::Unsupported).
    type MemoryWindow: MemoryWindow<Driver = Self>;
    /// Its device memory, or [`Unsupported`](crate::Unsupported).
    type DmBuffer: DmBuffer<Driver = Self>;
    /// Its address handles, or [`Unsupported`](crate::Unsupported).
    type AddressHandle: AddressHandle<Driver = Self>;
    /// What brings the pages of its memory regions on demand, or
    /// [`Unsupported`](crate::Unsupported).
    type Pager: Pager;

    /// Value of `enum rdma_driver_id`. A driver in C that casts the devices that have its number
    /// has that for itself.
    const DRIVER_ID: u32;
    /// Version of the driver's user ABI, from 1.
    const ABI_VERSION: u32;
    /// Methods that processes call, besides those of the verbs.
    const USER_METHODS: &'static [Addition<Self>] = &[];
    /// Counters of a port, which [`port_counters`](Self::port_counters) reads.
    const PORT_COUNTERS: &'static [Counter] = &[];

    /// Returns the attributes of the device.
    fn query_device(call: &Call<'_, Self>) -> Result<DeviceAttr>;

    /// Returns the driver's part of the answer to a process that queries the device.
    fn device_response(_call: &Call<'_, Self>) -> Result<Self::DeviceResponse> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Writes the version of the firmware, for people; what is too long is cut off.
    fn firmware_version(_call: &Call<'_, Self>, _text: &mut dyn core::fmt::Write) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns what never changes about a port.
    fn port_immutable(call: &Call<'_, Self>, port: Port) -> Result<port::Immutable>;

    /// Returns the link layer of a port. Without this method it is what the
    /// [kind of node](Properties::node_type) says: that of InfiniBand for a channel adapter.
    fn link_layer(_call: &Call<'_, Self>, _port: Port) -> LinkLayer {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns the attributes of a port. It only looks: what the network device decides has been
    /// set up by [`follow_netdev`](Self::follow_netdev).
    fn query_port(call: &Call<'_, Self>, port: Port) -> Result<PortAttr>;

    /// Whether `netdev` is the network device of a port. Without this method ports have none.
    ///
    /// A driver is asked of each network device of the machine, whenever that comes and before the
    /// RDMA device is registered, as long as the port has none. A driver that knows the address of
    /// its port compares [`Netdev::ethernet_address`].
    ///
    /// The RTNL lock is held: this must not wait for anybody who takes it.
    fn is_netdev_of(_call: &Call<'_, Self>, _netdev: &Netdev, _port: Port) -> bool {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Sets up the hardware for the network device of a port, if there is one
    /// ([`Call::with_netdev`]): it came, went, or changed its state or its MTU. Called before the
    /// device is registered, too.
    ///
    /// Never called twice at the same time for the same port.
    fn follow_netdev(_call: &Call<'_, Self>, _port: Port) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns a P_Key.
    fn query_pkey(_call: &Call<'_, Self>, _port: Port, _index: u16) -> Result<u16> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Returns an entry of the GID table of a port that is not one of RoCE.
    fn query_gid(_call: &Call<'_, Self>, _port: Port, _index: u32) -> Result<Gid> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Changes a port of InfiniBand for a user in the kernel.
    fn modify_port(_call: &Call<'_, Self>, _port: Port, _change: &port::Change) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Gives the device's own agents a management datagram, and writes their answer to `answer`,
    /// which is zeroed. An error is told to nobody.
    ///
    /// Asked for only if [`Properties::answers_management`] is set.
    ///
    /// Every datagram to queue pairs 0 and 1 gets here first, as do those that the core asks for
    /// itself (`sysfs`), and those along a directed route without hops. May sleep.
    fn process_mad(
        _call: &Call<'_, Self>,
        _port: Port,
        _incoming: &mad::Incoming<'_>,
        _answer: &mut mad::Mad,
    ) -> Result<mad::Outcome> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Fills an entry of the GID table of a port of RoCE, which the core keeps.
    fn add_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Empties an entry of the GID table of a port of RoCE.
    fn del_gid(_call: &Call<'_, Self>, _gid: &GidAttr<'_>) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Reads the counters of a port, each into the place of its entry in
    /// [`PORT_COUNTERS`](Self::PORT_COUNTERS).
    fn port_counters(_call: &Call<'_, Self>, _port: Port, _values: &mut [u64]) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Creates counters for queue pairs of a port, all 0, and returns their number, which is not 0
    /// and no others' of the device.
    ///
    /// Asked for only if [`Properties::counters_of_queue_pairs`] is set, as are the next four.
    fn create_qp_counter(_call: &Call<'_, Self>, _port: Port) -> Result<u32> {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Makes a queue pair, which counts for the port, count in the counters of that number instead.
    fn bind_qp_counter(_call: &Call<'_, Self>, _qp: &Qp<Self::QueuePair>, _number: u32) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Makes a queue pair count for the port again. Must not need memory: the core forgets the
    /// counters of a queue pair that is destroyed, whatever comes of this.
    fn unbind_qp_counter(_call: &Call<'_, Self>, _qp: &Qp<Self::QueuePair>) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Reads the counters of that number, as [`port_counters`](Self::port_counters) does those of
    /// the port.
    fn read_qp_counter(_call: &Call<'_, Self>, _number: u32, _values: &mut [u64]) -> Result {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }

    /// Destroys the counters of that number, in which no queue pair counts any more. Must not need
    /// memory, as [`unbind_qp_counter`](Self::unbind_qp_counter).
    fn destroy_qp_counter(_call: &Call<'_, Self>, _number: u32) {
        build_error!(kernel::error::VTABLE_DEFAULT_ERROR)
    }
}

/// An RDMA device.
///
/// `ib_device_release` frees the memory without asking the driver, so no field may need [`Drop`]:
/// what does belongs to the [`Registration`].
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

/// What a registration owns, and verbs use.
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

    /// The ports of the device.
    pub fn ports(&self) -> impl ExactSizeIterator<Item = Port> {
        // SAFETY: Set before anybody else had the device.
        Port::all(unsafe { (*self.as_raw()).phys_port_cnt })
    }

    /// The port of that number; `EINVAL` if the device has no such port.
    pub(crate) fn port(&self, number: u32) -> Result<Port> {
        let port = Port::try_from(number)?;
        // CAST: `usize` has at least 32 bits.
        match number as usize <= self.ports().len() {
            true => Ok(port),
            false => Err(EINVAL),
        }
    }

    /// What never changes about a port, as the driver said when the device was registered; `EINVAL`
    /// if the device has no such port.
    ///
    /// # Safety
    ///
    /// The device must be registered, or be so as far as that all ports were asked for this.
    pub(crate) unsafe fn immutable(&self, port: Port) -> Result<&bindings::ib_port_immutable> {
        let port = self.port(port.number())?;
        // SAFETY: There is an element for each port, which the core filled before the caller was
        // called, and which nobody writes later.
        // CAST: `usize` has at least 32 bits.
        unsafe {
            let data = (*self.as_raw()).port_data.add(port.number() as usize);
            Ok(&(*data).immutable)
        }
    }

    /// Number of completion vectors.
    pub(crate) fn completion_vectors(&self) -> u32 {
        // SAFETY: Set before the device was registered, from a `u32`.
        // CAST: Reverts the one of `UnregisteredDevice::new`.
        unsafe { (*self.as_raw()).num_comp_vectors as u32 }
    }

    /// Calls `f` with the device and the data of its registration.
    ///
    /// The closure must work for any lifetime of the registration, so that it cannot count on this
    /// one, and is given a call that ends with it.
    ///
    /// # Safety
    ///
    /// The device must be registered until `f` returns: this must be called from a verb.
    #[inline]
    pub(crate) unsafe fn with<R>(&self, f: impl for<'bound> FnOnce(&Call<'bound, T>) -> R) -> R {
        // SAFETY: Guaranteed by the caller.
        unsafe { self.with_caller(false, f) }
    }

    /// As [`with`](Self::with), in a verb that a process may have called. No verb ends an object
    /// this way: that may be when the process has no memory any more.
    ///
    /// # Safety
    ///
    /// As for [`with`](Self::with), and `is_process` only if the task that runs is in a system call
    /// of a process by which that calls the verb.
    #[inline]
    pub(crate) unsafe fn with_caller<R>(
        &self,
        is_process: bool,
        f: impl for<'bound> FnOnce(&Call<'bound, T>) -> R,
    ) -> R {
        // INVARIANT: The caller guarantees that the device is registered until `f` returns, and the
        // call cannot be used later, nor elsewhere: it is not `Send`.
        f(&Call {
            device: NonNull::from(self),
            // SAFETY: Nobody writes the pointer while the device is registered.
            // Lifetimes do not change the layout of what it points to.
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
        // SAFETY: A shared reference proves that there is a reference.
        unsafe { bindings::get_device((&raw mut (*self.as_raw()).__bindgen_anon_1.dev).cast()) };
    }

    unsafe fn dec_ref(this: NonNull<Self>) {
        let raw = this.cast::<bindings::ib_device>().as_ptr();
        // SAFETY: The caller owns a reference.
        unsafe { bindings::put_device((&raw mut (*raw).__bindgen_anon_1.dev).cast()) };
    }
}

// SAFETY: The last reference may be given back by any thread.
unsafe impl<T: Operations> Send for Device<T> {}

// SAFETY: The core locks what it changes in its structure; the other fields are written only while
// nobody else has the device.
unsafe impl<T: Operations> Sync for Device<T> {}

c_enum! {
    /// What kind of node of a network a device is, which the core and processes are told
    /// (`enum rdma_node_type`).
    pub enum NodeType: c_uint {
        /// A channel adapter: InfiniBand and RoCE.
        ChannelAdapter = bindings::RDMA_NODE_IB_CA,
        /// None of those that have a name.
        Unspecified = bindings::RDMA_NODE_UNSPECIFIED,
    }
}

/// What a device tells of itself before it is registered.
pub struct Properties {
    /// Number of ports, at least one.
    pub ports: u32,
    /// What kind of node it is.
    pub node_type: NodeType,
    /// GUID of the node, most significant byte first in text.
    pub node_guid: u64,
    /// Description of the node, for people, who may change it; what is too long is cut off.
    pub node_description: &'static CStr,
    /// Whether processes post through the verbs POST_SEND and POST_RECV.
    pub user_posts_by_verb: bool,
    /// Whether queue pairs can be counted by themselves: [`Operations::create_qp_counter`] and what
    /// belongs to it work.
    pub counters_of_queue_pairs: bool,
    /// Whether the ports have agents of their own, which [`Operations::process_mad`] asks. Then
    /// `sysfs` has the counters of performance management.
    pub answers_management: bool,
    /// Key, not 0, by which local work requests of the kernel name all memory, by DMA addresses.
    pub local_dma_key: Option<u32>,
}

/// The verbs that a device has to ask for if processes shall post through the kernel.
const POST_VERBS: u64 = 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_SEND
    | 1 << bindings::ib_uverbs_write_cmds_IB_USER_VERBS_CMD_POST_RECV;

/// A device that nobody can use yet. It is not thread-safe, so it cannot be used while it is being
/// registered.
pub struct UnregisteredDevice<T: Operations> {
    raw: NonNull<Device<T>>,
    objects: Objects,
    _not_thread_safe: NotThreadSafe,
}

impl<T: Operations> UnregisteredDevice<T> {
    /// Allocates a device, to which `objects` belong from now on.
    pub fn new(properties: &Properties, objects: Objects) -> Result<Self> {
        const {
            assert!(offset_of!(Device<T>, dev) == 0);
            assert!(!core::mem::needs_drop::<Device<T>>());
        }
        // As the core demands it, which would say so to all the world.
        if matches!(properties.ports, 0 | u32::MAX) {
            return Err(EINVAL);
        }
        // SAFETY: The size has room for the whole `Device<T>`, suitably aligned. Devices are in the
        // initial network namespace until somebody moves them.
        let raw = unsafe {
            bindings::_ib_alloc_device(
                kmalloc_aligned_size::<Device<T>>(),
                &raw mut bindings::init_net,
            )
        };
        let this = NonNull::new(raw.cast::<Device<T>>()).ok_or(ENOMEM)?;

        // INVARIANT: Not registered yet.
        // SAFETY: Just allocated, and nobody else has it. The operations are static.
        unsafe {
            let device = this.as_ptr();
            (&raw mut (*device).registered).write(UnsafeCell::new(NonNull::dangling()));

            (*raw).phys_port_cnt = properties.ports;
            (*raw).node_guid = properties.node_guid.to_be();
            // Zeroed, and stays so at its end.
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

/// Whether the core can make the name of a device of `name`, which it uses as a format
/// (`assign_name`).
fn is_name(name: &CStr) -> bool {
    let mut directives = name.to_bytes().split(|&byte| byte == b'%').skip(1);
    directives.next().is_none_or(|rest| rest.starts_with(b"d")) && directives.next().is_none()
}

/// A registered device.
///
/// On drop the device is unregistered, which destroys all objects of all users, even of processes
/// that have it open. After that no verb runs, and the data is dropped.
// Fields are dropped in declaration order, after `drop` unregistered the device: nothing looks for
// network devices when the device is released.
pub struct Registration<'a, T: Operations> {
    pairings: KVec<Pin<KBox<Pairing>>>,
    device: UnregisteredDevice<T>,
    registered: Pin<KBox<Registered<'a, T>>>,
}

impl<'a, T: Operations> Registration<'a, T> {
    /// Registers a device as `name`, in which `%d` stands for the first free number. `EINVAL` for
    /// another `%` in the name.
    ///
    /// It becomes a child of `parent`, which accesses memory on its behalf, in pieces of any
    /// length (`dma_set_max_seg_size`).
    ///
    /// # Safety
    ///
    /// The result must be dropped and not forgotten: the device has to be unregistered before `'a`
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
        let mapper = unsafe { Mapper::new(raw, parent) }?;
        let dispatcher = device.objects.dispatcher().clone();
        let registered = KBox::pin_init(
            try_pin_init!(Registered {
                data <- data,
                mapper,
                dispatcher,
            }? E),
            GFP_KERNEL,
        )?;

        // INVARIANT: It lives until the device is unregistered.
        // SAFETY: Nobody else has the device. The lifetime is erased here, and given back by
        // `Device::with`. The parent is there longer than the device is registered; before and
        // after that nobody looks at it.
        unsafe {
            let generic: *mut bindings::device = (&raw mut (*raw).__bindgen_anon_1.dev).cast();
            (*generic).parent = compat::device_as_raw(parent);
            *device.raw.as_ref().registered.get() =
                NonNull::from(Pin::get_ref(registered.as_ref())).cast();
        }

        // Dropped before the data, in all paths.
        let mut pairings = KVec::new();
        if T::HAS_IS_NETDEV_OF {
            // SAFETY: The device is valid.
            for port in unsafe { device.raw.as_ref() }.ports() {
                // SAFETY: The device, with its data, is there until this is ended or dropped.
                let pairing = unsafe { Pairing::new(raw, port, Self::DRIVER) };
                let pairing = KBox::pin_init::<Error>(pairing, GFP_KERNEL)?;
                // SAFETY: The data is there, and nobody else has the device.
                unsafe { pairing.prepare() };
                pairings.push(pairing, GFP_KERNEL)?;
            }
        }

        // A list of pages has pieces of any length, which the core divides.
        // SAFETY: The parent is valid, and nothing is mapped for the RDMA device yet.
        unsafe { bindings::dma_set_max_seg_size(compat::device_as_raw(parent), u32::MAX) };

        // SAFETY: The device is complete: verbs may run from here on. The parent is bound during
        // `'a`, and the device is unregistered before that ends.
        to_result(unsafe {
            bindings::ib_register_device(raw, name.as_char_ptr(), compat::device_as_raw(parent))
        })
        .inspect_err(|_| {
            // The driver is asked for no network devices any more.
            pairings.clear();
            // Somebody may have used the device, before somebody else could not.
            registered.mapper.close();
            // INVARIANT: Not registered.
            // SAFETY: Nobody else has the device.
            unsafe { *device.raw.as_ref().registered.get() = NonNull::dangling() };
        })?;

        registered.dispatcher.set_device(NonNull::new(raw));
        for pairing in &pairings {
            // SAFETY: It is registered until `drop` ends this.
            unsafe { pairing.begin() };
        }
        Ok(Self {
            pairings,
            device,
            registered,
        })
    }

    /// What a [`Pairing`] asks the driver.
    const DRIVER: netdev::Driver = netdev::Driver {
        follow: Self::follow,
        is_netdev_of: Self::is_netdev_of,
    };

    /// Whether `netdev` is that of a port.
    ///
    /// # Safety
    ///
    /// `raw` must be a device of `T` whose data is there until this returns.
    unsafe fn is_netdev_of(raw: *mut bindings::ib_device, netdev: &Netdev, port: Port) -> bool {
        T::HAS_IS_NETDEV_OF
            // SAFETY: Guaranteed by the caller.
            && unsafe {
                Device::<T>::from_raw(raw).with(|call| T::is_netdev_of(call, netdev, port))
            }
    }

    /// Has a port follow its network device.
    ///
    /// # Safety
    ///
    /// `raw` must be a device of `T` whose data is there until this returns.
    unsafe fn follow(raw: *mut bindings::ib_device, port: Port) {
        if T::HAS_FOLLOW_NETDEV {
            // SAFETY: Guaranteed by the caller.
            unsafe { Device::<T>::from_raw(raw).with(|call| T::follow_netdev(call, port)) };
        }
    }

    /// The device.
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
        // SAFETY: Nobody else uses the pointer now.
        unsafe { *self.device().registered.get() = NonNull::dangling() };
        // All objects are gone; what was kept all the same ends here.
        self.registered.mapper.close();
    }
}
