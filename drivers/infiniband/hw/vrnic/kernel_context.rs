// SPDX-License-Identifier: GPL-2.0

//! The context of the kernel's own queue pairs, and its doorbell.

use core::sync::atomic::Ordering;

use kernel::{
    prelude::*,
    sync::Arc, //
};
use virtio::{
    full_fence,
    Dma,
    Mapping,
    Region,
    SharedMemory, //
};
use vrnic_wire::{
    command::{
        ContextKind,
        CreateContext,
        DestroyContext, //
    },
    config::DOORBELL_PAGE_SIZE,
    notify::{
        area_length,
        flags,
        is_valid_slot_count,
        SlotBits,
        FLAGS_OFFSET, //
    },
};

use crate::{
    control::Control,
    object::{
        create,
        Object, //
    },
    page_list::PageListBuffer, //
};

/// Number of doorbell slots of the kernel's context: as many as fit a page.
pub(crate) const SLOTS: u32 = 16384;

const _: () = assert!(is_valid_slot_count(SLOTS));
const _: () = assert!(area_length(SLOTS) <= SharedMemory::PAGE_SIZE);
const _: () = assert!(area_length(2 * SLOTS) > SharedMemory::PAGE_SIZE);

/// Size of a doorbell page in bytes.
// CAST: A page of 4096 bytes.
const PAGE_SIZE: usize = DOORBELL_PAGE_SIZE as usize;

/// Returns the offset of a doorbell page in the doorbell region.
pub(crate) fn doorbell_offset(page: u32) -> u64 {
    u64::from(page) * u64::from(DOORBELL_PAGE_SIZE)
}

/// The kernel's context on the device.
pub(crate) struct KernelContext<'bound> {
    // Fields are dropped in declaration order: the device stops using the notify area first.
    object: Object<DestroyContext>,
    notify: SharedMemory,
    /// The doorbell page; [`None`] if doorbells are commands.
    page: Option<Mapping<'bound, PAGE_SIZE>>,
}

impl<'bound> KernelContext<'bound> {
    /// Creates the context, with a doorbell page from `doorbells` if the device has that region.
    pub(crate) fn new(
        dma: &Dma,
        control: &Arc<Control>,
        doorbells: Option<&Region<'bound>>,
    ) -> Result<Self> {
        let notify = SharedMemory::new(dma, area_length(SLOTS))?;
        let area = PageListBuffer::of_shared(dma, &notify)?;
        let (object, reply) = create(
            control,
            &CreateContext {
                kind: ContextKind::Kernel.raw(),
                slots: SLOTS.into(),
                area: area.list(),
                ..Default::default()
            },
        )?;
        let page = doorbells
            .map(|region| region.map(doorbell_offset(reply.doorbell_page.get())))
            .transpose()?;
        Ok(Self {
            object,
            notify,
            page,
        })
    }

    /// Returns the number of the context.
    pub(crate) fn number(&self) -> u32 {
        self.object.number()
    }

    /// Notifies the device that there is work in the rings of `slot`. May be called in any context.
    ///
    /// Earlier stores to the rings are visible to the device when it reads them. `EINVAL` if the
    /// context has no such slot.
    pub(crate) fn ring(&self, slot: u32) -> Result {
        if slot >= SLOTS {
            return Err(EINVAL);
        }
        let bits = SlotBits::new(slot);
        let pending = self.notify.u64(bits.pending_offset)?;
        let summary = self.notify.u64(bits.summary_offset)?;
        let state = self.notify.u32(FLAGS_OFFSET)?;

        pending.fetch_or(bits.pending_mask.to_le(), Ordering::Release);
        summary.fetch_or(bits.summary_mask.to_le(), Ordering::Release);
        // Pairs with the fence of the device between clearing the flag and checking once more.
        full_fence();
        let wakes = u32::from_le(state.load(Ordering::Relaxed)) & flags::POLLING == 0;
        vrnic_trace::doorbell(self.object.control().health().dev(), slot, wakes);
        if !wakes {
            return Ok(());
        }
        match &self.page {
            Some(page) => page.write32::<0>(slot),
            None => self.object.control().ring(self.number(), slot),
        }
        Ok(())
    }
}
