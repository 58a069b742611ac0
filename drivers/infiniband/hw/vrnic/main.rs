// SPDX-License-Identifier: GPL-2.0

//! Driver for virtio RDMA devices.
//!
//! Device, commands, rings and events are specified in `Documentation/virtio-rdma.rst`;
//! the crate `vrnic_wire` defines them as types.
//!
//! Each kind of object has a module, with the same name as in `rdma`. The `kernel_*` modules
//! contain the posting and polling for the kernel, which for processes is in their provider. The
//! other modules connect the objects to the device: `driver`, `feature`, `control`, `object`,
//! `page_list`, `integrity`, `event`, `health`.

#![deny(unsafe_code)]
#![recursion_limit = "256"]

mod ah;
mod comp_cntr;
mod control;
mod counter;
mod cq;
mod device;
mod dm;
mod dmah;
mod driver;
mod event;
mod feature;
mod flow;
mod gid;
mod health;
mod integrity;
mod kernel_context;
mod kernel_cq;
mod kernel_qp;
mod kernel_srq;
mod mad;
mod mr;
mod multicast;
mod mw;
mod object;
mod odp;
mod page_list;
mod pd;
mod port;
mod qp;
mod ring;
mod srq;
mod uapi;
mod ucontext;
mod udata;
mod wq;
mod wqe;
mod xrc;

virtio::module_virtio_driver! {
    type: driver::Driver,
    name: "vrnic",
    authors: ["The vrnic authors"],
    description: "Virtio RDMA device driver",
    license: "GPL",
}
