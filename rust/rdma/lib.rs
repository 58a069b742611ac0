// SPDX-License-Identifier: GPL-2.0

//! Abstractions for RDMA device providers.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! A driver implements [`Operations`] for its device and one trait for each kind of object:
//! [`UserContext`], [`ProtectionDomain`], [`AddressHandle`], [`CompletionQueue`], [`QueuePair`],
//! [`SharedReceiveQueue`], [`ReceiveWorkQueue`], [`IndirectionTable`], [`MemoryRegion`],
//! [`MemoryWindow`], [`DmBuffer`], [`DmaHandle`], [`FlowRule`], [`FlowCounters`] and
//! [`CompletionCounter`]. It uses [`Unsupported`] for kinds that its devices lack. The implementing
//! type *is* the object: the core allocates the C structure with room for the driver's type (this
//! crate does so for memory regions, device memory, receive work queues and flows), and a create
//! verb constructs the type in place. A destroy verb has two steps: first the driver makes the
//! hardware release the object, then [`Drop`] runs. The first step cannot fail, except for memory
//! regions: for all other objects the core frees or forgets the memory whatever the driver returns.
//! Address handles and device memory have only the second step, because the hardware need not know
//! about them.
//!
//! ```text
//!  UnregisteredDevice::new()     ib_device allocated, operations set, nothing can call them
//!          │
//!  Registration::new()           data constructed ─▶ ib_register_device() ─▶ verbs run
//!          │                     each verb gets a Call: the device and the registration's data
//!  drop(Registration)            ib_unregister_device(): all objects are destroyed, the last verb
//!                                has returned ─▶ data dropped ─▶ ib_device released
//! ```
//!
//! The types rule out common mistakes of drivers in C:
//!
//! - The driver's part of a request and of a response are types ([`udata::Request`],
//!   [`udata::Response`]). Every verb reads and checks the whole request and writes the whole
//!   response, so `uverbs_robust_udata` holds by construction. If the response cannot be written,
//!   the new object is destroyed again.
//! - Events are dispatched by object number through an [`event::Dispatcher`]. It knows only live
//!   objects, waits for running handlers before an object goes away, and notifies users in the
//!   kernel only of completions that they asked for.
//! - A verb fills the whole structure that it returns to the core, which does not zero it first.
//! - The function that the kernel calls when a request completes comes from the request and travels
//!   with its completion ([`wr::Continuation`]). A driver cannot forge one or complete a request
//!   twice.
//! - The users of a device are a type ([`udata::Users`]). The kernel never calls a driver that
//!   serves processes only, and a driver that also serves the kernel does not compile without the
//!   verbs that this needs.
//! - Process memory can be pinned only in calls from processes, and device memory can be mapped
//!   only during the lifetime of the registration ([`mmap::DeviceMemory`]).
//! - Work requests, completions, states, masks and access rights are types. A value that has no
//!   name in these types is rejected before the driver sees it.
//!
//! Locking: all methods may be called concurrently, hence `&self` everywhere. All may sleep except
//! those of [`AddressHandle`] (including its [`Drop`]), [`QueuePair::post_send`],
//! [`QueuePair::post_recv`], [`SharedReceiveQueue::post_recv`], [`CompletionQueue::poll`],
//! [`CompletionQueue::request_notify`], [`MemoryRegion::set_page`],
//! [`MemoryRegion::map_integrity`] and [`MemoryRegion::take_integrity_error`]
//! ([`core_locking.rst`](srctree/Documentation/infiniband/core_locking.rst)). The methods that post
//! may sleep, too, for the queues of processes, which call them without a lock. Functions that
//! interrupt handlers may call say so, for example [`event::Dispatcher::complete`]. A
//! [`odp::Pager`] may sleep, but must not wait for memory reclaim.

pub(crate) use vrnic_bindings as bindings;
pub(crate) use vrnic_bindings::compat;
pub(crate) use vrnic_bindings::device_memory;
pub(crate) use vrnic_bindings::gate;
pub(crate) use vrnic_bindings::workqueue;

/// Prefix of messages in the kernel log. `module!` defines it for drivers; here only tests log.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
const __LOG_PREFIX: &[u8] = b"rdma\0";

/// Stand-in for the module of a driver, which `#[vtable]` needs. Only tests have a driver here.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
struct LocalModule;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl kernel::ModuleMetadata for LocalModule {
    const NAME: &'static kernel::str::CStr = c"rdma";

    // SAFETY: Code that is built into the kernel has no `struct module`; its pointer is null.
    const THIS_MODULE: kernel::ThisModule =
        unsafe { kernel::ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// Defines an enumeration that mirrors a C one, and a checked conversion from it.
macro_rules! c_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident: $raw:ty {
            $($(#[$variant_meta:meta])* $variant:ident = $value:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $name {
            $($(#[$variant_meta])* $variant = $value,)*
        }

        impl $name {
            /// Returns the value of the C constant.
            #[inline]
            pub const fn raw(self) -> $raw {
                // CAST: The enum is `repr(u32)`, the representation of the C type.
                self as $raw
            }
        }

        impl TryFrom<$raw> for $name {
            type Error = kernel::error::Error;

            fn try_from(raw: $raw) -> Result<Self, kernel::error::Error> {
                match raw {
                    $(v if v == Self::$variant.raw() => Ok(Self::$variant),)*
                    _ => Err(kernel::error::code::EINVAL),
                }
            }
        }
    };
}

mod object;

pub mod access;
pub mod ah;
pub mod comp_cntr;
pub mod counter;
pub mod cq;
pub mod device;
pub mod dm;
mod dma;
pub mod dmah;
pub mod event;
pub mod flow;
pub mod gid;
pub mod integrity;
pub mod mad;
pub mod mmap;
pub mod mr;
pub mod mw;
pub mod netdev;
pub mod odp;
pub mod pd;
pub mod port;
mod process;
pub mod qp;
pub mod restrack;
pub mod srq;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
pub mod testing;
pub mod uapi;
pub mod ucontext;
pub mod udata;
pub mod umem;
mod unsupported;
mod verb;
mod vtable;
pub mod wc;
pub mod wq;
pub mod wr;
pub mod xrc;

pub use ah::{
    AddressHandle,
    Ah, //
};
pub use comp_cntr::{
    CompCntr,
    CompletionCounter, //
};
pub use cq::{
    CompletionQueue,
    Cq, //
};
pub use device::{
    Call,
    Device,
    Operations,
    Registration,
    UnregisteredDevice, //
};
pub use dm::{
    Dm,
    DmBuffer, //
};
pub use dmah::{
    DmaHandle,
    Dmah, //
};
pub use flow::{
    FlowCounters,
    FlowRule, //
};
pub use mmap::UserPages;
pub use mr::{
    MemoryRegion,
    Mr, //
};
pub use mw::{
    MemoryWindow,
    Mw, //
};
pub use netdev::Netdev;
pub use pd::{
    Pd,
    ProtectionDomain, //
};
pub use process::Process;
pub use qp::{
    Qp,
    QueuePair, //
};
pub use srq::{
    SharedReceiveQueue,
    Srq, //
};
pub use ucontext::{
    Ucontext,
    UserContext, //
};
pub use udata::User;
pub use umem::Umem;
pub use unsupported::Unsupported;
pub use wq::{
    IndirectionTable,
    ReceiveWorkQueue,
    RwqTable, //
};
pub use xrc::{
    XrcDomain,
    Xrcd, //
};
