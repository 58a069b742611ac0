// SPDX-License-Identifier: GPL-2.0

//! The network device that shares a port with the RDMA device.
//!
//! Addresses, state and speed of a RoCE port are those of a network device, which has a driver of
//! its own. The driver of the RDMA device says which network device that is
//! ([`Operations::is_netdev_of`](crate::Operations::is_netdev_of)). A notifier binds the network
//! device to the port when it appears, whether before or after the RDMA device, and unbinds it when
//! it goes away.
//!
//! The port follows the network device. Whenever the network device appears, goes away, or changes
//! its state or MTU, the driver is called to set up the hardware. After that, users are notified if
//! the port became active or inactive. Queries do not set up anything.

use core::{
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*,
    static_lock_class,
    sync::atomic::{
        Atomic,
        Relaxed, //
    },
    types::Opaque, //
};

use crate::{
    bindings,
    port::Port, //
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// A network device (`struct net_device`).
///
/// Drivers only borrow it. If a driver held a reference, unregistering the network device would
/// wait forever.
///
/// # Invariants
///
/// A reference to this type always refers to a network device that was registered and does not go
/// away while the reference exists.
#[repr(transparent)]
pub struct Netdev(Opaque<bindings::net_device>);

impl Netdev {
    /// Borrows a network device from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must be a network device that was registered and does not go away during `'a`.
    unsafe fn from_raw<'a>(ptr: *mut bindings::net_device) -> &'a Self {
        // SAFETY: Guaranteed by the caller; the type is transparent.
        unsafe { &*ptr.cast() }
    }

    /// Returns the C structure.
    pub(crate) fn as_raw(&self) -> *mut bindings::net_device {
        self.0.get()
    }

    /// Returns the network device that is bound to a port.
    ///
    /// # Safety
    ///
    /// `device` must be valid.
    pub(crate) unsafe fn of_port(device: *mut bindings::ib_device, port: Port) -> Option<Held> {
        // SAFETY: Valid, as the caller guarantees; the result comes with a reference.
        let raw = NonNull::new(unsafe { bindings::ib_device_get_netdev(device, port.number()) })?;
        // INVARIANT: The function returned a reference, which we own; the type is transparent. Only
        // registered network devices are bound.
        Some(Held(raw.cast()))
    }

    /// Returns whether the network device is up and has a carrier.
    pub fn is_active(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe {
            bindings::netif_running(self.as_raw()) && bindings::netif_carrier_ok(self.as_raw())
        }
    }

    /// Returns the MTU: the maximum frame length in bytes, without the link layer header.
    #[inline]
    pub fn mtu(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::netdev_mtu(self.as_raw()) }
    }

    /// Returns the permanent MAC address, if this is an Ethernet device with such an address and
    /// not a VLAN on top of one. Software devices usually have none.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        let mut address = [0; 6];
        // SAFETY: Valid by the type invariant; there is room for an address.
        unsafe { bindings::netdev_ethernet_perm_addr(self.as_raw(), address.as_mut_ptr()) }
            .then_some(address)
    }
}

// SAFETY: All methods may be called by any thread at any time.
unsafe impl Sync for Netdev {}

/// A counted reference to a network device, which keeps the network device alive.
///
/// # Invariants
///
/// The reference is owned.
pub(crate) struct Held(NonNull<Netdev>);

impl Deref for Held {
    type Target = Netdev;

    fn deref(&self) -> &Netdev {
        // SAFETY: There is a reference, by the type invariant.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: The reference is owned, by the type invariant.
        unsafe { bindings::dev_put(self.as_raw()) };
    }
}

/// Driver callbacks of a [`Pairing`].
pub(crate) struct Driver {
    /// Lets the driver set up a port for its network device. Process context.
    ///
    /// # Safety
    ///
    /// The device must be registered until this returns, or about to be registered.
    pub(crate) follow: unsafe fn(device: *mut bindings::ib_device, port: Port),
    /// Returns whether a network device belongs to a port. Process context, with the RTNL lock
    /// held.
    ///
    /// # Safety
    ///
    /// As for `follow`.
    pub(crate) is_netdev_of:
        unsafe fn(device: *mut bindings::ib_device, netdev: &Netdev, port: Port) -> bool,
}

/// Watches for the network device of a port, for as long as the pairing exists.
///
/// This uses C's work items instead of `workqueue::Work`, which can be neither cancelled nor waited
/// for: it could run after the device, or the module, is gone.
///
/// # Invariants
///
/// - The notifier is registered, and `device` is valid.
/// - `work` was initialised with the function [`Self::work_callback`]. It is enabled only between
///   [`begin`](Self::begin) and [`end`](Self::end), while the device is registered.
/// - `looks` is cleared, with the RTNL lock held, before the device is unregistered.
#[pin_data(PinnedDrop)]
pub(crate) struct Pairing {
    #[pin]
    notifier: Opaque<bindings::notifier_block>,
    #[pin]
    work: Opaque<bindings::work_struct>,
    driver: Driver,
    device: *mut bindings::ib_device,
    port: Port,
    /// Whether the port accepts network devices that appear.
    looks: Atomic<bool>,
    /// Whether users were last notified that the port has an active network device. Only the work
    /// changes this, and only one instance of it runs at a time.
    reported_active: Atomic<bool>,
}

impl Pairing {
    /// Pairs port `port` of `device` with the network device that the driver chooses, and lets the
    /// port follow its changes.
    ///
    /// # Safety
    ///
    /// `device` must be valid, with its number of ports set, for as long as the result exists. The
    /// callbacks in `driver` must work until the result is [ended](Self::end) or dropped.
    pub(crate) unsafe fn new(
        device: *mut bindings::ib_device,
        port: Port,
        driver: Driver,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            // INVARIANT: Initialised and disabled here.
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and not on a stack.
                unsafe {
                    bindings::init_work_with_key(
                        slot,
                        Some(Self::work_callback),
                        false,
                        c"rdma::Pairing::work".as_char_ptr(),
                        static_lock_class!().as_ptr(),
                    );
                    bindings::disable_work(slot);
                }
            }),
            driver,
            notifier: Opaque::new(bindings::notifier_block {
                notifier_call: Some(Self::event_callback),
                ..bindings::notifier_block::default()
            }),
            device,
            port,
            looks: Atomic::new(true),
            reported_active: Atomic::new(false),
            _: {
                // The core allocates its data of all ports when one of them is given a network
                // device, or the device is registered, and does not lock: so it does now. While a
                // port has none, it is "given" none.
                // SAFETY: The device is valid, and nobody else has it yet.
                to_result(unsafe {
                    bindings::ib_device_set_netdev(*device, core::ptr::null_mut(), port.number())
                })?;
                // SAFETY: The notifier is initialised, pinned, and unregistered before it is
                // dropped. All members that its callback uses are initialised: registering calls it
                // at once for each existing network device.
                to_result(unsafe {
                    bindings::register_netdevice_notifier((*this.as_ptr()).notifier.get())
                })?;
            },
        })
    }

    /// Returns the network device that is bound to the port, if any.
    fn netdev(&self) -> Option<Held> {
        // SAFETY: The device is valid by the type invariant.
        unsafe { Netdev::of_port(self.device, self.port) }
    }

    /// Sets up the port before the device is registered.
    ///
    /// # Safety
    ///
    /// The device must be about to be registered, and not shared yet.
    pub(crate) unsafe fn prepare(&self) {
        // SAFETY: Guaranteed by the caller.
        self.reported_active
            .store(unsafe { self.follow() }, Relaxed);
    }

    /// Lets the port follow changes from now on.
    ///
    /// # Safety
    ///
    /// The device must be registered until [`end`](Self::end) returns.
    pub(crate) unsafe fn begin(&self) {
        // SAFETY: The work was initialised and disabled by `new`.
        unsafe { bindings::enable_work(self.work.get()) };
        // The network device may have changed during registration.
        self.queue_work();
    }

    /// Stops calling the driver. Sleeps.
    pub(crate) fn end(&self) {
        // SAFETY: Callers do not hold the RTNL lock, and no callback that holds it waits for them.
        unsafe {
            bindings::rtnl_lock();
            self.looks.store(false, Relaxed);
            bindings::rtnl_unlock();
        }
        // SAFETY: The work was initialised. On return it does not run, and will not run again.
        unsafe { bindings::disable_work_sync(self.work.get()) };
    }

    /// Schedules the work that sets up the port, if it is enabled. May be called in any context.
    ///
    /// The work uses a workqueue of the system. There is one work for each port, and it takes as
    /// long as a command, so it does not keep others from running. Nobody waits for the workqueue:
    /// [`end`](Self::end) waits only for this work, and only if it runs. A thread that is kept for
    /// low memory would be of no use: what the work reports goes through workqueues of `ib_core`,
    /// which have none.
    fn queue_work(&self) {
        // SAFETY: The work was initialised. It is disabled before the device is unregistered, and
        // so before `self` is dropped.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
            )
        };
    }

    /// Runs the work item.
    ///
    /// # Safety
    ///
    /// `work` must be the `work` of a `Self` whose device stays registered until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = &*kernel::container_of!(Opaque::cast_from(work), Self, work);
            let is_active = this.follow();
            if this.reported_active.xchg(is_active, Relaxed) != is_active {
                this.tell_state();
            }
        }
    }

    /// Sets up the port now, and returns whether its network device is active.
    ///
    /// # Safety
    ///
    /// As for [`Driver::follow`].
    unsafe fn follow(&self) -> bool {
        // Read the state before the driver does: later changes queue the work again.
        let is_active = self.netdev().is_some_and(|netdev| netdev.is_active());
        // SAFETY: Guaranteed by the caller.
        unsafe { (self.driver.follow)(self.device, self.port) };
        is_active
    }

    /// Notifies users whether the port is active.
    ///
    /// # Safety
    ///
    /// The device must be registered.
    unsafe fn tell_state(&self) {
        let mut attributes = bindings::ib_port_attr::default();
        let port = self.port.number();
        // SAFETY: The device is registered, and `attributes` is writable.
        let asked = unsafe { bindings::ib_query_port(self.device, port, &mut attributes) };
        let is_active = asked == 0 && attributes.state == bindings::ib_port_state_IB_PORT_ACTIVE;
        let mut event = bindings::ib_event {
            device: self.device,
            event: if is_active {
                bindings::ib_event_type_IB_EVENT_PORT_ACTIVE
            } else {
                bindings::ib_event_type_IB_EVENT_PORT_ERR
            },
            ..bindings::ib_event::default()
        };
        // SAFETY: All members of the union are plain words.
        *unsafe { crate::compat::member_mut(&mut event.element.port_num) } = port;
        // SAFETY: The device is registered. The core copies the event.
        unsafe { bindings::ib_dispatch_event(&event) };
    }

    /// Returns whether `netdev` is the network device of the port.
    ///
    /// # Safety
    ///
    /// `netdev` must be registered, and the RTNL lock must be held.
    unsafe fn matches(&self, netdev: *mut bindings::net_device) -> bool {
        // SAFETY: Valid, as the caller guarantees. `looks` says whether the driver may be called,
        // and does not change while the lock is held.
        self.looks.load(Relaxed)
            && unsafe {
                (self.driver.is_netdev_of)(self.device, Netdev::from_raw(netdev), self.port)
            }
    }

    /// Handles an event of a network device.
    ///
    /// # Safety
    ///
    /// `notifier` must be the notifier of a `Self`, and `info` must describe an event of a network
    /// device, which the RTNL lock keeps from changing.
    unsafe extern "C" fn event_callback(
        notifier: *mut bindings::notifier_block,
        event: c_ulong,
        info: *mut c_void,
    ) -> c_int {
        // SAFETY: Guaranteed by the caller.
        let (this, netdev) = unsafe {
            (
                &*kernel::container_of!(Opaque::cast_from(notifier), Self, notifier),
                bindings::netdev_notifier_info_to_dev(info),
            )
        };
        // CAST: Events are small constants that C passes as `unsigned long`.
        let event = event as bindings::netdev_cmd;
        let port = this.port.number();

        // SAFETY:
        // - The RDMA device is valid by the type invariant, and the network device during the call.
        // - A network device is bound only while it is registered, and unbound before it goes away.
        unsafe {
            let bound = bindings::ib_device_get_netdev(this.device, port);
            if !bound.is_null() {
                bindings::dev_put(bound);
            }
            match event {
                bindings::netdev_cmd_NETDEV_REGISTER if bound.is_null() && this.matches(netdev) => {
                    // This cannot fail: the port is valid, and `new` had its memory allocated.
                    bindings::ib_device_set_netdev(this.device, netdev, port);
                    this.queue_work();
                }
                bindings::netdev_cmd_NETDEV_UNREGISTER if bound == netdev => {
                    bindings::ib_device_set_netdev(this.device, core::ptr::null_mut(), port);
                    this.queue_work();
                }
                bindings::netdev_cmd_NETDEV_UP
                | bindings::netdev_cmd_NETDEV_DOWN
                | bindings::netdev_cmd_NETDEV_CHANGE
                | bindings::netdev_cmd_NETDEV_CHANGEMTU
                    if bound == netdev =>
                {
                    this.queue_work();
                }
                _ => {}
            }
        }
        // CAST: A small constant.
        bindings::NOTIFY_DONE as c_int
    }
}

#[pinned_drop]
impl PinnedDrop for Pairing {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: Registered by the type invariant. Unregistering calls the notifier once more for
        // each network device, as if the network device went away, which unbinds the bound one.
        unsafe { bindings::unregister_netdevice_notifier(self.notifier.get()) };
    }
}

// SAFETY: The notifier may be unregistered by any thread.
unsafe impl Send for Pairing {}

// SAFETY: Any thread may queue and disable the work; the RTNL lock serialises the notifier
// callback.
unsafe impl Sync for Pairing {}

/// Keeps `ib_core` from reporting state changes of the network device to users: the hardware must
/// be set up first ([`Pairing`]).
///
/// # Safety
///
/// None; the operation's type requires `unsafe`.
pub(crate) unsafe extern "C" fn report_port_event_callback(
    _device: *mut bindings::ib_device,
    _netdev: *mut bindings::net_device,
    _event: c_ulong,
) {
}
