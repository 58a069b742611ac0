// SPDX-License-Identifier: GPL-2.0

//! A driver without hardware, for tests. It returns distinguishable values and records what it is
//! asked for. Each kind of object has a module of the same name as in the crate.

use core::sync::atomic::{
    AtomicBool,
    AtomicU64,
    Ordering::SeqCst, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};

use super::device::DmaDevice;
use crate::{
    access::AccessFlags,
    device::{
        Call,
        Device,
        Registration,
        UnregisteredDevice, //
    },
    event::{
        Objects,
        PortEvent, //
    },
    port::Port,
    restrack::Details,
    udata::{
        Request,
        Response,
        User, //
    },
    umem::Buffer,
    wr::ReceiveRequests, //
};

mod ah;
mod comp_cntr;
mod cq;
mod dm;
mod dmah;
mod flow;
mod log;
mod mr;
mod mw;
mod operations;
mod pd;
mod qp;
mod srq;
mod ucontext;
mod wq;
mod xrc;

pub(crate) use log::{
    Asked,
    Log, //
};
pub(crate) use operations::{
    attributes,
    port_attributes,
    port_link_layer,
    FIRMWARE,
    GIDS,
    MAC,
    MACS,
    PORTS,
    PROPERTIES,
    VECTORS, //
};
pub(crate) use qp::CAPABILITIES;
pub(crate) use ucontext::{
    Offsets,
    DEVICE_MEMORY,
    DEVICE_PAGES,
    MAPPABLE,
    MAPPABLE_BUT_REFUSED,
    SHARED_PAGES, //
};

/// A request or response is a number; the response to a process is the complement of its request.
impl Request for u64 {}
impl Response for u64 {}

/// The driver.
pub(crate) struct TestDriver;

/// An object of any kind.
pub(crate) struct Object {
    log: Arc<Log>,
    /// Number of the object, unique on the device.
    pub(crate) number: u32,
    /// Whether each send of a queue pair generates a completion, or whether the error of a region
    /// was taken.
    signal_all: AtomicBool,
    /// Pages for the next fast registration, or addresses of pieces for one for integrity.
    pub(crate) pages: [AtomicU64; Self::PAGES],
}

impl Object {
    /// Maximum number of pages of a fast registration.
    pub(crate) const PAGES: usize = 4;

    fn new(call: &Call<'_, TestDriver>) -> Self {
        call.data().objects.fetch_add(1, SeqCst);
        Self {
            log: call.data().clone(),
            number: call.data().next.fetch_add(1, SeqCst),
            signal_all: AtomicBool::new(false),
            pages: [const { AtomicU64::new(0) }; Self::PAGES],
        }
    }

    fn destroy(&self) {
        self.log.note(Asked::Destroy(self.number));
    }

    fn describe(&self, details: &mut Details<'_>) -> Result {
        details.number(c"number", self.number)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.log.objects.fetch_sub(1, SeqCst);
    }
}

/// Pins the buffer of a process, and records where it was. The buffer has 100 bytes at the address
/// in the request, unless the call's attributes describe another one.
fn note_buffer(
    call: &Call<'_, TestDriver>,
    user: &User<'_, TestDriver, u64, Buffer<'_>>,
) -> Result {
    let memory = user.buffer.pin(user.request, 100, AccessFlags::default())?;
    *call.data().buffer.lock() = Some((memory.address(), memory.len()));
    Ok(())
}

/// Returns the request of a process, and the response to it.
fn dialogue<B>(user: Option<User<'_, TestDriver, u64, B>>) -> (Option<u64>, u64) {
    let request = user.map(|user| user.request);
    (request, !request.unwrap_or_default())
}

fn receive(call: &Call<'_, TestDriver>, requests: &mut ReceiveRequests<'_>) -> Result {
    let mut count = 0;
    requests.try_for_each(|request| {
        count += 1;
        call.data()
            .note(Asked::Receive(count, request.post().wr_id));
        Ok(())
    })
}

/// Returns the keys of the region with that number.
pub(crate) const fn keys(number: u32) -> (u32, u32) {
    (number << 8 | 1, number << 8 | 2)
}

/// Calls `test` with a registered device, and checks that the test leaves no objects behind.
///
/// The core has some objects of its own for each port, which exist before `test` runs.
pub(crate) fn with_device(test: impl FnOnce(&Device<TestDriver>, &Log) -> Result) -> Result {
    let dma_device = DmaDevice::new()?;
    let objects = Objects::new(VECTORS)?;
    let dispatcher = objects.dispatcher().clone();
    let log = Log::new(dispatcher.clone())?;
    let parent = dma_device.device();
    let device = UnregisteredDevice::new(&PROPERTIES, objects)?;
    // SAFETY: The registration is dropped below.
    let registration = unsafe { Registration::new(device, c"rdma-test%d", parent, log.clone()) }?;
    let told = dispatcher.port_event(Port::FIRST, PortEvent::PkeyChange);
    log.asked();
    let result = test(registration.device(), &log);
    drop(registration);

    let told_later = dispatcher.port_event(Port::FIRST, PortEvent::PkeyChange);
    if !told || told_later || log.objects() != 0 {
        pr_err!(
            "events: {} and {}, {} objects left\n",
            told,
            told_later,
            log.objects()
        );
        return Err(EBUSY);
    }
    result
}
