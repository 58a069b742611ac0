// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    ucontext::{
        DeviceMemory,
        Mappings, //
    },
    Ucontext,
    Umem, //
};
use vrnic_wire::{
    abi,
    command::{
        ContextKind,
        CreateContext,
        DestroyContext, //
    },
    config::DOORBELL_PAGE_SIZE,
    notify::{
        area_length,
        driver_flags,
        is_valid_slot_count,
        DRIVER_FLAGS_OFFSET, //
    }, //
};

use crate::{
    commands::{
        create_context,
        Object, //
    },
    device::{
        Call,
        Vrnic, //
    },
    memory::pin_ring,
    udata::{
        AllocContextRequest,
        AllocContextResponse, //
    },
};

/// The notify area of a process.
pub(crate) struct NotifyArea(Umem);

impl NotifyArea {
    /// Tells the process that nothing will be completed any more. The device must have stopped, or
    /// forgotten the context.
    pub(crate) fn set_failed(&self) -> Result {
        let flags = driver_flags::FAILED.to_le_bytes();
        self.0.write(DRIVER_FLAGS_OFFSET, &flags)
    }
}

/// The context of a process: its doorbell page and its notify area.
#[pin_data]
pub(crate) struct UserContext {
    // Fields are dropped in declaration order: the device lets go of the notify area first.
    object: Object<DestroyContext>,
    notify: Arc<NotifyArea>,
}

impl UserContext {
    /// Number of the context.
    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }
}

impl rdma::UserContext for UserContext {
    type Driver = Vrnic;
    type Request = AllocContextRequest;
    type Response = AllocContextResponse;

    fn alloc(
        call: &Call<'_>,
        mappings: &mut Mappings<'_>,
        AllocContextRequest(request): AllocContextRequest,
    ) -> Result<(impl PinInit<Self>, AllocContextResponse)> {
        if !is_valid_slot_count(request.slots) {
            return Err(EINVAL);
        }
        let length = area_length(request.slots) as u64;
        let (notify, area) = pin_ring(call, request.notify_addr, length)?;
        let (object, page) = create_context(
            &call.data.control,
            &CreateContext {
                kind: ContextKind::User.raw(),
                slots: request.slots.into(),
                area: area.list(),
                ..Default::default()
            },
        )?;

        let mut response = abi::AllocContextResponse {
            max_inline_data: call.data.limits.max_inline.get(),
            ..Default::default()
        };
        if let Some(doorbells) = &call.data.doorbells {
            let length = u64::from(DOORBELL_PAGE_SIZE);
            let offset = u64::from(page) * length;
            if offset + length > doorbells.len() {
                return Err(EIO);
            }
            // CAST: A page of 4096 bytes.
            let memory = DeviceMemory::new(doorbells.start() + offset, length as usize)?;
            response.doorbell_offset = mappings.insert(memory)?;
            response.doorbell_length = DOORBELL_PAGE_SIZE;
        }

        let notify = Arc::new(NotifyArea(notify), GFP_KERNEL)?;
        call.data.health.add_process(&notify)?;
        let this = pin_init!(Self { object, notify });
        Ok((this, AllocContextResponse(response)))
    }

    fn dealloc(context: &Ucontext<Self>, call: &Call<'_>) -> Result {
        context.object.destroy()?;
        // The process may live on, if it is the device that goes away.
        call.data.health.remove_process(&context.notify);
        Ok(())
    }
}
