// SPDX-License-Identifier: GPL-2.0

//! Abstractions for RDMA device providers.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)
//!
//! A driver implements [`Operations`] for its device and one trait for each kind of object:
//! [`UserContext`], [`ProtectionDomain`], [`AddressHandle`], [`CompletionQueue`], [`QueuePair`],
//! [`SharedReceiveQueue`], [`MemoryRegion`], [`MemoryWindow`] and [`DmBuffer`]; kinds that its
//! devices lack are [`Unsupported`]. The implementing type *is* the object: the core allocates the
//! C structure with room for it (of memory regions and device memory this crate does), a create
//! verb constructs it there, and a destroy verb ends it in two steps: one in which the driver makes
//! the hardware let go, and [`Drop`]. The first cannot fail, except for memory regions: the core
//! frees the memory of other objects, or forgets it, whatever a driver answers. Address handles and
//! device memory, of which hardware need not know, have only the latter.
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
//! What drivers get wrong in C is not theirs to do here:
//!
//! - The driver's part of a request and of a response are types ([`udata::Request`],
//!   [`udata::Response`]); every verb reads, checks and answers all of it, so
//!   `uverbs_robust_udata` holds by construction. If the answer cannot be written, a new object is
//!   undone.
//! - Events are dispatched by object number through an [`event::Dispatcher`], which knows only
//!   objects that live, waits for handlers that run before an object goes away, and tells users in
//!   the kernel only of completions that they asked for.
//! - A verb writes all of the structure that it answers with: the core does not zero it first.
//! - What the kernel calls when a request is complete comes from the request and goes with its
//!   completion ([`wr::Continuation`]); nobody can make it up, or complete a request twice.
//! - Who uses a device is a type ([`udata::Users`]): a driver for processes is not called by the
//!   kernel, and one for the kernel too does not compile without the verbs that takes.
//! - Memory of a process is taken only in calls of processes, and memory of the device mapped only
//!   in the lifetime of the registration ([`mmap::DeviceMemory`]).
//! - Work requests, completions, states, masks and access rights are types; a value that the
//!   driver has no name for is refused before the driver sees it.
//!
//! Locking: all methods may be called concurrently, hence `&self` everywhere. All may sleep except
//! those of [`AddressHandle`], whose [`Drop`] may not either, [`QueuePair::post_send`],
//! [`QueuePair::post_recv`], [`SharedReceiveQueue::post_recv`], [`CompletionQueue::poll`],
//! [`CompletionQueue::request_notify`] and [`MemoryRegion::set_page`]
//! ([`core_locking.rst`](srctree/Documentation/infiniband/core_locking.rst)). What may be called
//! by handlers of interrupts says so, as [`event::Dispatcher::complete`] does. A
//! [`odp::Pager`] sleeps, but must not wait for memory.

pub(crate) use vrnic_bindings as bindings;
pub(crate) use vrnic_bindings::compat;
pub(crate) use vrnic_bindings::gate;

/// Prefix of messages in the kernel log, which `module!` defines for drivers. Only tests have some.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
const __LOG_PREFIX: &[u8] = b"rdma\0";

/// Module of the driver that tests have, which `#[vtable]` wants.
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
struct LocalModule;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
impl kernel::ModuleMetadata for LocalModule {
    const NAME: &'static kernel::str::CStr = c"rdma";

    // SAFETY: What is in the kernel itself has none.
    const THIS_MODULE: kernel::ThisModule =
        unsafe { kernel::ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// Defines an enumeration that mirrors a C one, and the checked conversion from it.
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
            /// The value of the C constant.
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
pub mod counter;
pub mod cq;
pub mod device;
pub mod dm;
mod dma;
pub mod event;
pub mod gid;
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
mod vtable;
pub mod wc;
pub mod wr;
pub mod xrc;

pub use ah::{
    AddressHandle,
    Ah, //
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
pub use xrc::{
    XrcDomain,
    Xrcd, //
};
