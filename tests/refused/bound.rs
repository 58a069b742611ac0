// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What a driver has of a virtio device, and of its parent, only while the device is bound to it.

#![forbid(unsafe_code)]

use core::{
    cell::Cell,
    marker::PhantomData, //
};

use driver::keep_forever;
use kernel::{
    device::{
        self,
        Bound,
        Core, //
    },
    io::resource::Resource,
    prelude::*,
    sync::{
        aref::ARef,
        Arc,
        Mutex, //
    },
};
use rdma::mmap::DeviceMemory;
use virtio::{
    AnyVirtqueue,
    Device,
    Dma,
    Region,
    SharedMemory,
    Virtqueues,
    Watch, //
};

/// The data of a driver for a device.
pub struct Data<'bound>(PhantomData<Mutex<&'bound ()>>);

impl<'bound> Data<'bound> {
    /// Stands for storing something in the data, in whatever way. `Driver::Data` is `Send`.
    pub fn keep<T: Send + 'bound>(&self, thing: T) {
        drop(thing);
    }
}

/// Uses a device that may not be bound any more.
pub fn unbound(bound: &Device<Bound>, kept: ARef<Device>) -> Result {
    let dev = bound;
    #[cfg(refused)]
    let dev = kept;
    dev.region(200)?; //~ E0599
    dev.read_config::<u32>()?; //~ E0599
    let _status = dev.status(); //~ E0599
    let _parent = dev.parent(); //~ E0599
    let _features = dev.features(); //~ E0599
    Ok(())
}

/// Keeps the right of a callback, which has the lock of the device, for later.
pub fn keep_lock<'bound>(dev: &'bound Device<Core<'_>>, data: &Data<'bound>) {
    let bound: &'bound Device<Bound> = dev;
    data.keep(bound);
    #[cfg(refused)]
    data.keep(dev); //~ E0277: between threads
}

/// Creates queues for a device that others may bind or unbind at the same time.
pub fn queues_without_lock<'bound>(
    dev: &'bound Device<Core<'_>>,
    bound: &'bound Device<Bound>,
    queues: KVec<Arc<dyn AnyVirtqueue>>,
) -> Result<Virtqueues<'bound>> {
    #[cfg(refused)]
    return Virtqueues::new(bound, queues); //~ E0308
    Virtqueues::new(dev, queues)
}

/// Keeps the queues of a device that is then bound to another driver.
pub fn keep_queues<'bound>(queues: Virtqueues<'bound>, data: &Data<'bound>) {
    #[cfg(refused)]
    keep_forever(queues); //~ E0521
    #[cfg(not(refused))]
    data.keep(queues);
}

/// Keeps a structure of a BAR that may then belong to another device.
pub fn keep_region<'bound>(region: Region<'bound>, data: &Data<'bound>) {
    #[cfg(refused)]
    keep_forever(region); //~ E0521
    #[cfg(not(refused))]
    data.keep(region);
}

/// Keeps a page of such a structure.
pub fn keep_page<'bound>(region: &Region<'bound>, data: &Data<'bound>) -> Result {
    data.keep(region.map::<4096>(0)?);
    #[cfg(refused)]
    keep_forever(region.map::<4096>(0)?); //~ E0521
    Ok(())
}

/// Keeps a part of a structure for processes to map.
pub fn keep_memory<'bound>(region: &Region<'bound>, data: &Data<'bound>) -> Result {
    data.keep(region.memory().part(0, 4096)?);
    #[cfg(refused)]
    keep_forever(region.memory().part(0, 4096)?); //~ E0521
    Ok(())
}

/// Gets another page of the BAR of a structure.
pub fn memory_beside<'bound>(region: &Region<'bound>) -> DeviceMemory<'bound> {
    #[cfg(refused)]
    region.bar(); //~ E0599
    region.memory()
}

/// Makes memory available that the device does not offer.
pub fn memory_of_resource(bar: &Resource) -> Result {
    #[cfg(refused)]
    DeviceMemory::new(bar, 0, 4096)?; //~ E0133
    let _start = bar.start();
    Ok(())
}

/// Keeps the device that does the DMA, as if it were bound forever.
pub fn keep_parent<'bound>(dev: &'bound Device<Bound>, data: &Data<'bound>) {
    let _counted: ARef<device::Device> = dev.parent().into();
    #[cfg(refused)]
    keep_forever(dev.parent()); //~ E0521
    data.keep(dev.parent());
}

/// Maps memory for a device without knowing that it is bound.
pub fn dma_of_unbound(queues: &Virtqueues<'_>, parent: &device::Device<Bound>) -> Result {
    SharedMemory::new(queues.dma(), 4096)?;
    #[cfg(refused)]
    SharedMemory::new(parent, 4096)?; //~ E0308
    #[cfg(refused)]
    Dma::new(parent)?; //~ E0624
    Ok(())
}

/// A check refers only to what lives forever, as it does itself if it is leaked: the trait demands
/// that.
pub fn check<W: Watch>(watch: W) {
    keep_forever(watch);
}

/// A check that only one thread may run at a time.
pub struct Racy(pub Cell<u32>);

#[cfg(refused)]
impl Watch for Racy {
    //~^ E0277: between threads
    fn check(&self) -> Option<u32> {
        Some(self.0.take())
    }
}
