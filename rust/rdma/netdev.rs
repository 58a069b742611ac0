// SPDX-License-Identifier: GPL-2.0

//! The network device that shares a port with the RDMA device.
//!
//! Addresses, state and speed of a RoCE port are those of a network device, which is another device
//! with another driver. Which one that is says the driver of the RDMA device
//! ([`Operations::is_netdev_of`](crate::Operations::is_netdev_of)): a notifier binds the network
//! device to the port when it appears, whether before or after the RDMA device, and releases it
//! when it goes away.
//!
//! The port follows the network device: whenever that comes, goes, or changes its state or its MTU,
//! the driver is asked to set up the hardware, and then users are told if the port became active or
//! ceased to be. Queries set up nothing.

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
/// Drivers borrow it. A reference that one kept would hold up whoever unregisters the network
/// device, for ever.
///
/// # Invariants
///
/// A reference to this type is only made of a network device that has been registered, and does not
/// go away meanwhile.
#[repr(transparent)]
pub struct Netdev(Opaque<bindings::net_device>);

impl Netdev {
    /// Borrows a network device from its C structure.
    ///
    /// # Safety
    ///
    /// `ptr` must be a network device that has been registered, and does not go away during `'a`.
    unsafe fn from_raw<'a>(ptr: *mut bindings::net_device) -> &'a Self {
        // SAFETY: Guaranteed by the caller; the type is transparent.
        unsafe { &*ptr.cast() }
    }

    /// The C structure.
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
        // INVARIANT: The reference is ours to give; the type is transparent. Only network devices
        // that are registered are bound.
        Some(Held(raw.cast()))
    }

    /// Whether it is up and has a carrier.
    pub fn is_active(&self) -> bool {
        // SAFETY: Valid by the type invariant.
        unsafe {
            bindings::netif_running(self.as_raw()) && bindings::netif_carrier_ok(self.as_raw())
        }
    }

    /// Longest frame, without link layer header, in bytes.
    pub fn mtu(&self) -> u32 {
        // SAFETY: Valid by the type invariant.
        unsafe { bindings::netdev_mtu(self.as_raw()) }
    }

    /// The permanent MAC address, if it is an Ethernet device, and no VLAN on one.
    pub fn ethernet_address(&self) -> Option<[u8; 6]> {
        let mut address = [0; 6];
        // SAFETY: Valid by the type invariant; there is room for an address.
        unsafe { bindings::netdev_ethernet_perm_addr(self.as_raw(), address.as_mut_ptr()) }
            .then_some(address)
    }
}

// SAFETY: All that can be asked may be asked by any thread at any time.
unsafe impl Sync for Netdev {}

/// A reference to a network device, which does not go away before it is dropped.
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

/// What a [`Pairing`] asks the driver.
pub(crate) struct Driver {
    /// Has a port follow its network device. Process context.
    ///
    /// # Safety
    ///
    /// The device must be registered until this returns, or about to be registered.
    pub(crate) follow: unsafe fn(device: *mut bindings::ib_device, port: Port),
    /// Whether a network device is that of a port. Process context, with the RTNL lock held.
    ///
    /// # Safety
    ///
    /// As for `follow`.
    pub(crate) is_netdev_of:
        unsafe fn(device: *mut bindings::ib_device, netdev: &Netdev, port: Port) -> bool,
}

/// Looks for the network device of a port as long as it exists.
///
/// The work is C's and not `workqueue::Work`, which can be neither cancelled nor waited for: it
/// could run when the device, or the module, is gone.
///
/// # Invariants
///
/// - The notifier is registered, and `device` is valid.
/// - `work` was initialised, and its function is [`Self::work_callback`]. It is disabled except
///   between [`begin`](Self::begin) and [`end`](Self::end), when the device is registered.
/// - `looks` is cleared, with the RTNL lock held, before the device is not registered any more.
#[pin_data(PinnedDrop)]
pub(crate) struct Pairing {
    #[pin]
    notifier: Opaque<bindings::notifier_block>,
    #[pin]
    work: Opaque<bindings::work_struct>,
    driver: Driver,
    device: *mut bindings::ib_device,
    port: Port,
    /// Whether the port takes network devices that come.
    looks: Atomic<bool>,
    /// Whether users were told last that the port has an active network device. Only the work, of
    /// which one at a time runs, changes it.
    told_active: Atomic<bool>,
}

impl Pairing {
    /// Pairs port `port` of `device` with the network device that the driver says is that port's,
    /// and has the port follow when that changes.
    ///
    /// # Safety
    ///
    /// `device` must be valid, with its number of ports set, as long as the result exists, and what
    /// the driver is asked by must work until the result is [ended](Self::end) or dropped.
    pub(crate) unsafe fn new(
        device: *mut bindings::ib_device,
        port: Port,
        driver: Driver,
    ) -> impl PinInit<Self, Error> {
        try_pin_init!(&this in Self {
            // INVARIANT: Initialised and disabled here.
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes and will not be on a stack.
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
            told_active: Atomic::new(false),
            _: {
                // The core allocates its data of all ports when one of them is given a network
                // device, or the device is registered, and does not lock: so it does now. While a
                // port has none, it is "given" none.
                // SAFETY: The device is valid, and nobody else has it yet.
                to_result(unsafe {
                    bindings::ib_device_set_netdev(*device, core::ptr::null_mut(), port.number())
                })?;
                // SAFETY: The notifier is initialised, pinned, and unregistered before it is
                // dropped; all that its callback uses is initialised. It is called at once for each
                // network device that exists.
                to_result(unsafe {
                    bindings::register_netdevice_notifier((*this.as_ptr()).notifier.get())
                })?;
            },
        })
    }

    /// The network device that is bound to the port, if any.
    fn netdev(&self) -> Option<Held> {
        // SAFETY: The device is valid by the type invariant.
        unsafe { Netdev::of_port(self.device, self.port) }
    }

    /// Has the port follow before anybody knows it.
    ///
    /// # Safety
    ///
    /// The device must be about to be registered, and nobody else have it.
    pub(crate) unsafe fn prepare(&self) {
        // SAFETY: Guaranteed by the caller.
        self.told_active.store(unsafe { self.follow() }, Relaxed);
    }

    /// Has the port follow from now on.
    ///
    /// # Safety
    ///
    /// The device must be registered until [`end`](Self::end) returns.
    pub(crate) unsafe fn begin(&self) {
        // SAFETY: The work was initialised and disabled by `new`.
        unsafe { bindings::enable_work(self.work.get()) };
        // There may have been a change while the device was registered.
        self.queue_work();
    }

    /// Asks the driver nothing any more. Sleeps.
    pub(crate) fn end(&self) {
        // SAFETY: Nobody who calls this has the lock, or sleeps meanwhile in a callback that has
        // it.
        unsafe {
            bindings::rtnl_lock();
            self.looks.store(false, Relaxed);
            bindings::rtnl_unlock();
        }
        // SAFETY: The work was initialised. On return it does not run, and will not.
        unsafe { bindings::disable_work_sync(self.work.get()) };
    }

    /// Has the port follow soon, if it does so at all. May be called in any context.
    fn queue_work(&self) {
        // SAFETY: The work was initialised. It does not run when the device is unregistered, which
        // comes before `self` is dropped.
        unsafe {
            bindings::queue_work_on(
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                bindings::system_dfl_wq,
                self.work.get(),
            )
        };
    }

    /// Function of the work.
    ///
    /// # Safety
    ///
    /// `work` must be that of a `Self`, whose device is registered until this returns.
    unsafe extern "C" fn work_callback(work: *mut bindings::work_struct) {
        // SAFETY: Guaranteed by the caller.
        unsafe {
            let this = &*kernel::container_of!(Opaque::cast_from(work), Self, work);
            let is_active = this.follow();
            if this.told_active.xchg(is_active, Relaxed) != is_active {
                this.tell_state();
            }
        }
    }

    /// Has the port follow now, and returns whether its network device is active.
    ///
    /// # Safety
    ///
    /// As for [`Driver::follow`].
    unsafe fn follow(&self) -> bool {
        // Looked at before the hardware follows: what changes afterwards comes here again.
        let is_active = self.netdev().is_some_and(|netdev| netdev.is_active());
        // SAFETY: Guaranteed by the caller.
        unsafe { (self.driver.follow)(self.device, self.port) };
        is_active
    }

    /// Tells users whether the port is active.
    ///
    /// # Safety
    ///
    /// The device must be registered.
    unsafe fn tell_state(&self) {
        let mut attributes = bindings::ib_port_attr::default();
        let port = self.port.number();
        // SAFETY: The device is registered, and there is room.
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
        // SAFETY: As above. The core copies the event.
        unsafe { bindings::ib_dispatch_event(&event) };
    }

    /// Whether `netdev` is the one.
    ///
    /// # Safety
    ///
    /// `netdev` must be registered, and the RTNL lock held.
    unsafe fn matches(&self, netdev: *mut bindings::net_device) -> bool {
        // SAFETY: Valid, as the caller guarantees. While the lock is held it stays as it is whether
        // the driver may be asked.
        self.looks.load(Relaxed)
            && unsafe {
                (self.driver.is_netdev_of)(self.device, Netdev::from_raw(netdev), self.port)
            }
    }

    /// Handles an event of a network device.
    ///
    /// # Safety
    ///
    /// `notifier` must be that of a `Self`, and `info` describe an event of a network device, which
    /// the RTNL lock keeps from changing.
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
        // - The RDMA device is valid by the type invariant, the network device during the call.
        // - A network device is bound while it is registered, and released before it is gone.
        unsafe {
            let bound = bindings::ib_device_get_netdev(this.device, port);
            if !bound.is_null() {
                bindings::dev_put(bound);
            }
            match event {
                bindings::netdev_cmd_NETDEV_REGISTER if bound.is_null() && this.matches(netdev) => {
                    // The port is valid, and `new` had the memory for it allocated: it cannot fail.
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
        // SAFETY: Registered by the type invariant. It is called once more for each network device,
        // as if that went away, which releases the one that is bound.
        unsafe { bindings::unregister_netdevice_notifier(self.notifier.get()) };
    }
}

// SAFETY: The notifier may be unregistered by any thread.
unsafe impl Send for Pairing {}

// SAFETY: Work may be queued and disabled by any thread; the callback is serialised by the RTNL
// lock.
unsafe impl Sync for Pairing {}

/// Keeps `ib_core` from telling users of the state of a network device: the hardware follows first
/// ([`Pairing`]).
///
/// # Safety
///
/// None; the type is that of the operation.
pub(crate) unsafe extern "C" fn report_port_event_callback(
    _device: *mut bindings::ib_device,
    _netdev: *mut bindings::net_device,
    _event: c_ulong,
) {
}
