// SPDX-License-Identifier: GPL-2.0

//! Completion queues, which processes poll directly.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    cq::{
        CqFlags,
        CqInitAttr,
        NewCq, //
    },
    mmap::Mapped,
    umem::Buffer,
    CompletionQueue,
    Cq,
    User,
    UserPages, //
};

use crate::{
    abi,
    Call,
    Efa,
    Object,
    MAX_ENTRIES, //
};

/// Sizes of a completion in bytes. The second one includes the GID of the sender.
const ENTRY_SIZES: [u32; 2] = [16, 32];

/// A completion queue.
pub(crate) struct Queue {
    // Fields are dropped in declaration order: the device stops using the ring first.
    object: Object,
    /// Lets the process map the ring.
    _mapped: Mapped,
    _ring: Arc<UserPages>,
}

impl Queue {
    /// Returns the number of the queue in the device.
    pub(crate) fn index(&self) -> u16 {
        self.object.number
    }
}

#[vtable]
impl CompletionQueue for Queue {
    type Driver = Efa;
    type Request = abi::CreateCqRequest;
    type Response = abi::CreateCqResponse;
    type ResizeRequest = ();

    fn create_user(
        call: &Call<'_>,
        attributes: &CqInitAttr,
        user: User<'_, Efa, abi::CreateCqRequest, Buffer<'_>>,
    ) -> Result<NewCq<impl PinInit<Self>, abi::CreateCqResponse>> {
        let request = &user.request;
        if attributes.flags != CqFlags::default() || request.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if !ENTRY_SIZES.contains(&request.cq_entry_size)
            || request.num_sub_cqs != 1
            || attributes.entries > MAX_ENTRIES
        {
            return Err(EINVAL);
        }
        let entries = attributes.entries.next_power_of_two();
        // CAST: `usize` has at least 32 bits; both factors are small.
        let length = (entries * request.cq_entry_size) as usize;
        let ring = Arc::new(UserPages::new(call, length)?, GFP_KERNEL)?;
        let mapped = user.context.map_pages(&ring)?;
        // A real command would carry the DMA addresses of the pages of the ring.
        let object = Object::create(call)?;

        Ok(NewCq {
            response: abi::CreateCqResponse {
                q_mmap_key: mapped.offset(),
                q_mmap_size: ring.len() as u64,
                cq_idx: object.number,
                ..Default::default()
            },
            number: object.number.into(),
            entries,
            init: Self {
                object,
                _mapped: mapped,
                _ring: ring,
            },
        })
    }

    fn destroy(cq: &Cq<Self>, _call: &Call<'_>) {
        cq.object.destroy();
    }
}
