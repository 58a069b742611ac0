// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The context of a verb, and what it lends, end with the verb.

#![forbid(unsafe_code)]

use driver::{
    keep_forever,
    send,
    Call,
    Data,
    Driver,
    Object, //
};
use kernel::prelude::*;
use rdma::{
    gid::GidAttr,
    mmap::Mappings,
    port::Port,
    restrack::Details,
    uapi::{
        AttrBundle,
        AttrDef,
        Kind,
        Method, //
    },
    Pd, //
};

/// Keeps the context in the data.
pub fn keep_call(call: &Call<'_>) {
    call.data().keep(call.data().bar);
    #[cfg(refused)]
    call.data().keep(call); //~ lifetime
}

/// Keeps the data in the data.
pub fn keep_data(call: &Call<'_>) {
    #[cfg(refused)]
    call.data().keep(call.data()); //~ lifetime
}

/// Keeps a guard of the data in the data, so that it unlocks memory that is already free.
pub fn keep_guard(call: &Call<'_>) {
    *call.data().number.lock() += 1;
    #[cfg(refused)]
    call.data().keep(call.data().number.lock()); //~ lifetime
}

/// Keeps the data until after the registration.
pub fn keep_data_forever(data: &Data<'static>, call: &Call<'_>) {
    keep_forever(data.bar);
    #[cfg(refused)]
    keep_forever(call.data().bar); //~ E0521
}

/// Keeps the device without a reference to it.
pub fn keep_device(call: &Call<'_>) {
    #[cfg(refused)]
    call.data().keep(call.device()); //~ lifetime
}

/// Keeps an object.
pub fn keep_object(call: &Call<'_>, pd: &Pd<Object>) {
    #[cfg(refused)]
    call.data().keep(pd); //~ lifetime
}

/// Passes the context to another thread, in which there is no process.
pub fn pass_call(call: &Call<'_>) {
    send(call.device());
    #[cfg(refused)]
    send(call); //~ E0277: between threads
}

/// Keeps the network device of a port, which nothing then keeps alive.
pub fn keep_netdev(call: &Call<'_>, port: Port) {
    let _mtu = call.with_netdev(port, |netdev| netdev.mtu());
    #[cfg(refused)]
    let _netdev = call.with_netdev(port, |netdev| netdev); //~ lifetime
}

/// Lets processes map memory of another device.
pub fn mix_devices(first: &Call<'_>, second: &Call<'_>, mappings: &mut Mappings<'_>) -> Result {
    let memory = first.data().bar.part(0, 4096)?;
    mappings.insert(first, memory)?;
    #[cfg(refused)]
    mappings.insert(second, memory)?; //~ lifetime
    Ok(())
}

/// Keeps what describes an entry of a table, or the answer to a dump, after the call.
pub fn keep_arguments(call: &Call<'_>, gid: &GidAttr<'_>, details: &mut Details<'_>) -> Result {
    call.data().keep(gid.gid());
    details.number(c"gid", gid.index())?;
    #[cfg(refused)]
    call.data().keep(gid); //~ lifetime
    #[cfg(refused)]
    call.data().keep(details); //~ lifetime
    Ok(())
}

/// A method that only serves registrations which never end.
pub struct Narrow;

impl Method for Narrow {
    type Driver = Driver;

    const OBJECT: Kind = Kind::Device;
    const NUMBER: u16 = 0;
    const ATTRIBUTES: &'static [&'static AttrDef] = &[];

    #[cfg(refused)]
    fn call(call: &Call<'static>, _attributes: &AttrBundle<'_, Driver>) -> Result {
        //~^ E0308
        keep_forever(call.data().bar);
        Ok(())
    }

    #[cfg(not(refused))]
    fn call(_call: &Call<'_>, _attributes: &AttrBundle<'_, Driver>) -> Result {
        Ok(())
    }
}
