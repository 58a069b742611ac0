// SPDX-License-Identifier: GPL-2.0

//! Contexts of processes. A process that imports a context shares it with the process that created
//! it.

use core::sync::atomic::Ordering;

use kernel::{
    prelude::*,
    sync::Arc, //
};
use rdma::{
    mmap::Mappings,
    qp::Type,
    uapi::{
        AttrBundle,
        AttrDef, //
    },
    Process,
    Ucontext,
    UserPages, //
};
use vrnic_wire::{
    abi,
    command::{
        ContextKind,
        CreateContext,
        DestroyContext,
        NameContext, //
    },
    config::DOORBELL_PAGE_SIZE,
    memory::NULL_KEY,
    notify::{
        area_length,
        driver_flags,
        is_valid_slot_count,
        DRIVER_FLAGS_OFFSET, //
    }, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    feature,
    kernel_context::doorbell_offset,
    object::{
        create,
        Object, //
    },
    page_list::notify_pages,
    uapi::CONTEXT_RESPONSE,
    udata::{
        AllocContextRequest,
        AllocContextResponse, //
    },
};

/// The notify area of a context, which all processes that use the context share.
pub(crate) struct NotifyArea(Arc<UserPages>);

impl NotifyArea {
    /// Notifies the processes that nothing will complete any more. The device must be stopped, or
    /// must have destroyed the context.
    pub(crate) fn set_failed(&self) -> Result {
        self.0.with_u32(DRIVER_FLAGS_OFFSET, |flags| {
            flags.store(driver_flags::FAILED.to_le(), Ordering::Release);
        })
    }
}

/// A context: its doorbell page and its notify area.
#[pin_data]
pub(crate) struct UserContext {
    // Fields are dropped in declaration order: the device stops using the notify area first.
    object: Object<DestroyContext>,
    notify: Arc<NotifyArea>,
    /// Number of doorbell slots.
    slots: u32,
    /// Response to the creation, which processes that import the context get as well.
    response: AllocContextResponse,
}

impl UserContext {
    /// Returns the number of the context.
    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }

    /// Returns the number of doorbell slots, for which the notify area has room.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }
}

#[vtable]
impl rdma::UserContext for UserContext {
    type Driver = Vrnic;
    type Request = AllocContextRequest;
    type Response = AllocContextResponse;

    const QUERY_ATTRIBUTES: &'static [&'static AttrDef] = &[&CONTEXT_RESPONSE];

    fn alloc(
        call: &Call<'_>,
        mappings: &mut Mappings<'_>,
        AllocContextRequest(request): AllocContextRequest,
    ) -> Result<(impl PinInit<Self>, AllocContextResponse)> {
        if !is_valid_slot_count(request.slots) {
            return Err(EINVAL);
        }
        // On an error the context is dropped first, and then its memory.
        let length = area_length(request.slots);
        let pages = Arc::new(UserPages::new(call, length)?, GFP_KERNEL)?;
        let notify = Arc::new(NotifyArea(pages.clone()), GFP_KERNEL)?;
        let area = notify_pages(call, &pages, length)?;
        let (object, reply) = create(
            &call.data().control,
            &CreateContext {
                kind: ContextKind::User.raw(),
                slots: request.slots.into(),
                area: area.list(),
                ..Default::default()
            },
        )?;

        if call.data().features.contains(feature::CONTEXT_NAMES) {
            let Process { pid, name } = Process::current();
            call.data().control.execute(&NameContext {
                context: reply.context,
                pid: pid.into(),
                name,
            })?;
        }

        let mut response = abi::AllocContextResponse {
            max_inline_data: call.data().limits.max_inline.get(),
            ..Default::default()
        };
        if call.data().features.contains(feature::NULL_KEY) {
            response.comp_mask |= abi::CONTEXT_NULL_KEY;
            response.null_key = NULL_KEY;
        }
        for ty in [Type::RawPacket, Type::UnreliableDatagram] {
            if feature::has_checksums(call.data().features, ty) {
                response.checksum_types |= 1 << ty.raw();
            }
            if feature::has_segmentation(call.data().features, ty) {
                response.segmentation_types |= 1 << ty.raw();
            }
        }
        if let Some(doorbells) = &call.data().doorbells {
            let offset = doorbell_offset(reply.doorbell_page.get());
            let page = doorbells
                .memory()
                .part(offset, DOORBELL_PAGE_SIZE.into())
                .map_err(|_| EIO)?;
            response.doorbell_offset = mappings.insert(call, page)?;
            response.doorbell_length = DOORBELL_PAGE_SIZE;
        }

        response.notify_offset = mappings.insert_pages(&pages)?;
        response.notify_length = u32::try_from(pages.len())?;

        call.data().health.add_process(&notify)?;
        let this = pin_init!(Self {
            object,
            notify,
            slots: request.slots,
            response: AllocContextResponse(response),
        });
        Ok((this, AllocContextResponse(response)))
    }

    fn query(
        context: &Ucontext<Self>,
        _call: &Call<'_>,
        attributes: &AttrBundle<'_, Vrnic>,
    ) -> Result {
        attributes.put(&CONTEXT_RESPONSE, &context.response)
    }

    fn dealloc(context: &Ucontext<Self>, call: &Call<'_>) {
        context.object.destroy();
        // The process may live on if the device goes away.
        call.data().health.remove_process(&context.notify);
    }
}
