// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The driver to which the programs in this directory add verbs. It is complete, and its device can
//! do nothing. One type is every kind of object.

#![deny(unsafe_code)]

use core::marker::PhantomData;

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::{
    access::AccessFlags,
    ah,
    cq::{
        CqInitAttr,
        NewCq, //
    },
    device::DeviceAttr,
    mmap::{
        DeviceMemory,
        Mappings, //
    },
    mr::{
        NewMr,
        Range, //
    },
    port::{
        self,
        Port,
        PortAttr, //
    },
    qp::{
        AttributeMask,
        NewQp,
        NoDriverType,
        QpAttr,
        QpInitAttr,
        Type, //
    },
    udata::{
        Caller,
        Processes,
        Users, //
    },
    umem::Buffer,
    CompletionQueue,
    Cq,
    Dmah,
    MemoryRegion,
    Mr,
    Operations,
    Pd,
    ProtectionDomain,
    Qp,
    QueuePair,
    Ucontext,
    Unsupported,
    User,
    UserContext, //
};

/// The module of the driver, which `module!` would define.
pub struct LocalModule;

impl kernel::ModuleMetadata for LocalModule {
    const NAME: &'static kernel::str::CStr = c"driver";

    #[allow(unsafe_code)]
    // SAFETY: Code that is built into the kernel has no `struct module`; its pointer is null.
    const THIS_MODULE: kernel::ThisModule =
        unsafe { kernel::ThisModule::from_ptr(core::ptr::null_mut()) };
}

/// Users that a driver can have.
pub trait AnyUsers: Users + Send + Sync + 'static {}

impl<U: Users + Send + Sync + 'static> AnyUsers for U {}

/// The driver. It has no verbs for users in the kernel, so they must not be among its users.
pub struct Driver<U: AnyUsers = Processes>(PhantomData<U>);

/// The context of a verb.
pub type Call<'a> = rdma::Call<'a, Driver>;

/// The data of a registration.
#[pin_data]
pub struct Data<'a> {
    /// Memory in a BAR of the device.
    pub bar: DeviceMemory<'a>,
    /// Something with a lock.
    #[pin]
    pub number: Mutex<u32>,
    /// Stands for what [`keep`](Self::keep) stores.
    kept: PhantomData<Mutex<&'a ()>>,
}

impl<'a> Data<'a> {
    /// Creates the data.
    pub fn new(bar: DeviceMemory<'a>) -> impl PinInit<Self> + 'a {
        pin_init!(Self {
            bar,
            number <- new_mutex!(0),
            kept: PhantomData,
        })
    }

    /// Stands for storing something in the data, in whatever way.
    pub fn keep<T: 'a>(&self, thing: T) {
        drop(thing);
    }
}

/// Stands for storing something in a static variable, in whatever way.
pub fn keep_forever<T: 'static>(thing: T) {
    drop(thing);
}

/// Stands for passing something to another thread, in whatever way.
pub fn send<T: Send>(thing: T) {
    drop(thing);
}

/// An object of any kind.
pub struct Object<U: AnyUsers = Processes>(PhantomData<U>);

#[vtable]
impl<U: AnyUsers> Operations for Driver<U> {
    type RegistrationData<'a> = Data<'a>;
    type Users = U;
    type Path = ah::Roce;
    type DeviceResponse = ();
    type UserContext = Object<U>;
    type ProtectionDomain = Object<U>;
    type CompletionQueue = Object<U>;
    type QueuePair = Object<U>;
    type SharedReceiveQueue = Unsupported<Self>;
    type XrcDomain = Unsupported<Self>;
    type ReceiveWorkQueue = Unsupported<Self>;
    type IndirectionTable = Unsupported<Self>;
    type MemoryRegion = Object<U>;
    type MemoryWindow = Unsupported<Self>;
    type DmBuffer = Unsupported<Self>;
    type DmaHandle = Unsupported<Self>;
    type FlowRule = Unsupported<Self>;
    type FlowCounters = Unsupported<Self>;
    type CompletionCounter = Unsupported<Self>;
    type AddressHandle = Unsupported<Self>;
    type Pager = Unsupported<Self>;

    const DRIVER_ID: u32 = 0;
    const ABI_VERSION: u32 = 1;

    fn query_device(_call: &rdma::Call<'_, Self>) -> Result<DeviceAttr> {
        Err(EOPNOTSUPP)
    }

    fn port_immutable(_call: &rdma::Call<'_, Self>, _port: Port) -> Result<port::Immutable> {
        Err(EOPNOTSUPP)
    }

    fn query_port(_call: &rdma::Call<'_, Self>, _port: Port) -> Result<PortAttr> {
        Err(EOPNOTSUPP)
    }
}

#[vtable]
impl<U: AnyUsers> UserContext for Object<U> {
    type Driver = Driver<U>;
    type Request = ();
    type Response = ();

    fn alloc(
        _call: &rdma::Call<'_, Driver<U>>,
        _mappings: &mut Mappings<'_>,
        _request: (),
    ) -> Result<(impl PinInit<Self>, ())> {
        Ok((Self(PhantomData), ()))
    }

    fn dealloc(_context: &Ucontext<Self>, _call: &rdma::Call<'_, Driver<U>>) {}
}

impl<U: AnyUsers> ProtectionDomain for Object<U> {
    type Driver = Driver<U>;
    type Request = ();
    type Response = ();

    fn alloc(
        _call: &rdma::Call<'_, Driver<U>>,
        _user: Caller<Driver<U>, User<'_, Driver<U>, ()>>,
    ) -> Result<(impl PinInit<Self>, ())> {
        Ok((Self(PhantomData), ()))
    }

    fn dealloc(_pd: &Pd<Self>, _call: &rdma::Call<'_, Driver<U>>) {}
}

#[vtable]
impl<U: AnyUsers> CompletionQueue for Object<U> {
    type Driver = Driver<U>;
    type Request = ();
    type Response = ();
    type ResizeRequest = ();

    fn create_user(
        _call: &rdma::Call<'_, Driver<U>>,
        attributes: &CqInitAttr,
        _user: User<'_, Driver<U>, (), Buffer<'_>>,
    ) -> Result<NewCq<impl PinInit<Self>, ()>> {
        Ok(NewCq {
            init: Self(PhantomData),
            response: (),
            number: 0,
            entries: attributes.entries,
        })
    }

    fn destroy(_cq: &Cq<Self>, _call: &rdma::Call<'_, Driver<U>>) {}
}

#[vtable]
impl<U: AnyUsers> QueuePair for Object<U> {
    type Driver = Driver<U>;
    type Request = ();
    type Response = ();
    type ModifyRequest = ();
    type DriverType = NoDriverType;

    const TYPES: &'static [Type] = &[];

    fn create(
        _call: &rdma::Call<'_, Driver<U>>,
        _pd: &Pd<Object<U>>,
        attributes: &QpInitAttr<'_, Driver<U>>,
        _user: Caller<Driver<U>, User<'_, Driver<U>, (), Buffer<'_>>>,
    ) -> Result<NewQp<impl PinInit<Self>, ()>> {
        Ok(NewQp {
            init: Self(PhantomData),
            response: (),
            number: 0,
            capabilities: attributes.capabilities,
        })
    }

    fn modify(
        _qp: &Qp<Self>,
        _call: &rdma::Call<'_, Driver<U>>,
        _mask: AttributeMask,
        _attributes: &QpAttr<ah::Roce>,
        _request: &(),
    ) -> Result {
        Err(EOPNOTSUPP)
    }

    fn destroy(_qp: &Qp<Self>, _call: &rdma::Call<'_, Driver<U>>) {}
}

#[vtable]
impl<U: AnyUsers> MemoryRegion for Object<U> {
    type Driver = Driver<U>;
    type Request = ();
    type Response = ();

    fn register_user(
        _call: &rdma::Call<'_, Driver<U>>,
        _pd: &Pd<Object<U>>,
        _range: &Range,
        _access: AccessFlags,
        _handle: Option<&Dmah<Unsupported<Driver<U>>>>,
        _user: User<'_, Driver<U>, ()>,
    ) -> Result<NewMr<impl PinInit<Self>, ()>> {
        Ok(NewMr {
            init: Self(PhantomData),
            response: (),
            lkey: 0,
            rkey: 0,
        })
    }

    fn deregister(_mr: &Mr<Self>, _call: &rdma::Call<'_, Driver<U>>) -> Result {
        Ok(())
    }
}
