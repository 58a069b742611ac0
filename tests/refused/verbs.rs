// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The kernel calls only verbs that the driver has.

#![forbid(unsafe_code)]

use driver::Driver;
use kernel::prelude::*;
use rdma::{
    device::Properties,
    event::Objects,
    udata::ProcessesAndKernel,
    UnregisteredDevice, //
};

/// Creates a device for users in the kernel, without the verbs that they need.
pub fn without_verbs(properties: &Properties, objects: Objects) -> Result {
    #[cfg(refused)]
    UnregisteredDevice::<Driver<ProcessesAndKernel>>::new(properties, objects)?; //~ E0080
    #[cfg(not(refused))]
    UnregisteredDevice::<Driver>::new(properties, objects)?;
    Ok(())
}
