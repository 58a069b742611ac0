// SPDX-License-Identifier: GPL-2.0

//! vrnic.

use kernel::prelude::*;

struct M;
impl kernel::Module for M {
    fn init(_m: &'static ThisModule) -> Result<Self> {
        pr_info!("{} {} {}\n", virtio::SIZE, rdma::SIZE, size_of::<vrnic_wire::config::Config>());
        Ok(M)
    }
}
module! {
    type: M,
    name: "vrnic",
    authors: ["The vrnic authors"],
    description: "Virtio RDMA device driver",
    license: "GPL",
}
