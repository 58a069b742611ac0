// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Objects belong to the core: a driver only borrows them, from any thread, and events find them by
//! a number that does not change. A device is registered once, and has its events to itself.

#![forbid(unsafe_code)]

use core::{
    cell::Cell,
    ops::Range, //
};

use driver::{
    send,
    Call,
    Data,
    Driver,
    Object, //
};
use kernel::{
    device,
    prelude::*,
    sync::Arc, //
};
use rdma::{
    device::Properties,
    event::{
        Dispatcher,
        Objects, //
    },
    odp::{
        Memory,
        Pager, //
    },
    uapi::{
        Kind,
        NamedObject, //
    },
    udata::{
        ProcessesAndKernel,
        Users, //
    },
    Cq,
    Device,
    Operations,
    Pd,
    Qp,
    Registration,
    UnregisteredDevice,
    Unsupported, //
};

/// Gives a queue the number of another.
pub fn change_number(cq: &Cq<Object>) -> u32 {
    #[cfg(refused)]
    drop(&cq.place); //~ E0616
    cq.number()
}

/// Takes the data out of an object, which then drops it again.
pub fn take_data(qp: &Qp<Object>) -> &Object {
    #[cfg(refused)]
    let _data = **qp; //~ E0507
    qp
}

/// Replaces the data of an object that others use.
pub fn replace_data(qp: &mut Qp<Object>, data: Object) {
    #[cfg(refused)]
    let _old = core::mem::replace(&mut **qp, data); //~ E0596
}

/// Uses the verb of one driver for another.
pub fn call_of_other<'a>(
    call: &'a Call<'a>,
    other: &'a rdma::Call<'a, Driver<ProcessesAndKernel>>,
) -> &'a Call<'a> {
    #[cfg(refused)]
    return other; //~ E0308
    call
}

/// Uses an object of one kind as one of another.
pub fn object_of_other_kind<'a>(qp: &'a Qp<Object>, pd: &'a Pd<Object>) -> &'a Pd<Object> {
    #[cfg(refused)]
    return qp; //~ E0308
    pd
}

/// Something that only one thread may use at a time.
pub struct Racy(pub Cell<usize>);

#[cfg(refused)]
impl Pager for Racy {
    //~^ E0277: between threads
    fn forget(&self, pages: Range<usize>) {
        self.0.set(pages.start);
    }

    fn serve(&self, _memory: &Memory<Self>) {}
}

/// Something that the abstractions do not know as an object, and could take for anything.
#[cfg(refused)]
impl NamedObject for Racy {
    //~^ E0277
    type Driver = Driver;

    const KIND: Kind = Kind::QueuePair;
}

/// Users that the abstractions do not know, and for whom they would not check anything.
#[cfg(refused)]
impl Users for Racy {} //~ E0277: RawUsers

/// All threads may use each kind of object, which refers only to what lives forever, and the data
/// of a registration: the traits demand that.
pub fn all_threads<T: Operations>(data: T::RegistrationData<'_>) {
    fn object<O: Send + Sync + 'static>() {}

    send(&data);
    send(data);
    object::<T::UserContext>();
    object::<T::ProtectionDomain>();
    object::<T::CompletionQueue>();
    object::<T::QueuePair>();
    object::<T::SharedReceiveQueue>();
    object::<T::XrcDomain>();
    object::<T::ReceiveWorkQueue>();
    object::<T::IndirectionTable>();
    object::<T::MemoryRegion>();
    object::<T::MemoryWindow>();
    object::<T::DmBuffer>();
    object::<T::DmaHandle>();
    object::<T::FlowRule>();
    object::<T::FlowCounters>();
    object::<T::CompletionCounter>();
    object::<T::AddressHandle>();
    object::<T::Pager>();
}

/// Invents an object of a kind that the device lacks, and for which it has no code.
pub fn unsupported() -> Option<Unsupported<Driver>> {
    #[cfg(refused)]
    return Some(pin_init::zeroed()); //~ E0277: Zeroable
    None
}

/// Calls a verb for a device that may be gone.
pub fn call_device(call: &Call<'_>, device: &Device<Driver>) -> usize {
    #[cfg(refused)]
    drop(device.data()); //~ E0599
    drop(call.data().number.lock());
    device.ports().len()
}

/// Makes one dispatcher for two devices: events of one would find objects of the other.
pub fn two_devices(properties: &Properties, objects: Objects) -> Result {
    let _first = UnregisteredDevice::<Driver>::new(properties, objects)?;
    #[cfg(refused)]
    let _second = UnregisteredDevice::<Driver>::new(properties, objects)?; //~ E0382
    Ok(())
}

/// As above, with a copy.
pub fn copy_objects(objects: &Objects) {
    #[cfg(refused)]
    let _copy = Objects::clone(objects); //~ E0277: Clone
    let _dispatcher = Arc::clone(objects.dispatcher());
}

/// As above, from the dispatcher.
pub fn objects_of_dispatcher(dispatcher: Arc<Dispatcher>) -> Result<Objects> {
    #[cfg(refused)]
    return Ok(Objects(dispatcher)); //~ E0423
    Objects::new(dispatcher.vectors())
}

/// Sends events to a device that is not registered.
pub fn change_device(dispatcher: &Dispatcher) -> bool {
    #[cfg(refused)]
    dispatcher.set_device(None); //~ E0624
    dispatcher.device_fatal()
}

/// Uses a device in one thread while another registers it.
pub fn share_unregistered(device: UnregisteredDevice<Driver>) {
    #[cfg(refused)]
    send(&device); //~ E0277: between threads
    drop(device);
}

/// Registers a device, and forgets the registration.
pub fn forget_registration<'a>(
    device: UnregisteredDevice<Driver>,
    parent: &'a device::Device<device::Bound>,
    data: impl PinInit<Data<'a>>,
) -> Result {
    #[cfg(refused)]
    core::mem::forget(Registration::new(device, c"name", parent, data)?); //~ E0133
    Ok(())
}

/// Registers a device for longer than its parent is bound.
pub fn register_unbound<'a>(
    device: UnregisteredDevice<Driver>,
    parent: &'a device::Device,
    data: impl PinInit<Data<'a>>,
) -> Result {
    #[cfg(refused)]
    let _registration = Registration::new(device, c"name", parent, data)?; //~ E0308
    Ok(())
}
