// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about contexts and protection domains.

use super::{Execute, done, reserved};
use crate::{
    cause::Cause,
    context::{Context, Owner},
    memory::Memory,
    resources::Io,
    rnic::{Engine, Pd},
};
use vrnic_wire::{
    command::{
        ContextCreated, ContextKind, CreateContext, CreatePd, DestroyContext, DestroyPd, Empty,
        NameContext, PdCreated, RingDoorbell,
    },
    notify,
};

impl Execute for CreateContext {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<ContextCreated, Cause> {
        reserved(self.reserved)?;
        let kind = ContextKind::try_from(self.kind).map_err(|_| Cause::ContextKind)?;
        let slots = self.slots.get();
        if !notify::is_valid_slot_count(slots) {
            return Err(Cause::SlotCount);
        }
        if self.area.length.get() != notify::area_length(slots) as u64 {
            return Err(Cause::PageListShape);
        }
        if rnic.contexts.is_full() {
            return Err(Cause::LimitReached);
        }
        let area = rnic.resolve_ring_buffer(&self.area, io)?;
        rnic.translations += area.translations();
        let (number, _) = rnic
            .contexts
            .insert_with(|_| Context::new(kind, slots, area))
            .ok_or(Cause::LimitReached)?;
        let page = rnic.contexts.index(number);
        rnic.pages[page] = Some(number);
        Ok(ContextCreated {
            context: number.into(),
            doorbell_page: (page as u32).into(),
        })
    }
}

impl Execute for DestroyContext {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        let number = self.context.get();
        let context = rnic.contexts.get(number).ok_or(Cause::UnknownContext)?;
        if context.users > 0 {
            return Err(Cause::InUse);
        }
        rnic.translations -= context.translations();
        let page = rnic.contexts.index(number);
        rnic.pages[page] = None;
        rnic.contexts.remove(number);
        done()
    }
}

impl Execute for RingDoorbell {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        let context = self.context.get();
        if rnic.contexts.get(context).is_none() {
            return Err(Cause::UnknownContext);
        }
        if !rnic.ring(context, self.slot.get()) {
            return Err(Cause::UnknownQp);
        }
        done()
    }
}

impl Execute for NameContext {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        if !rnic.config.features.context_names {
            return Err(Cause::CommandCode);
        }
        let context = rnic.contexts.get_mut(self.context.get());
        context.ok_or(Cause::UnknownContext)?.owner = Owner {
            pid: self.pid.get(),
            name: self.name,
        };
        done()
    }
}

impl Execute for CreatePd {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<PdCreated, Cause> {
        reserved(self.reserved)?;
        let context = self.context.get();
        let kind = rnic
            .contexts
            .get(context)
            .ok_or(Cause::UnknownContext)?
            .kind;
        let (number, _) = rnic
            .pds
            .insert_with(|_| Pd {
                context,
                kind,
                users: 0,
            })
            .ok_or(Cause::LimitReached)?;
        Ok(PdCreated {
            pd: number.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DestroyPd {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        let pd = rnic.pds.get(self.pd.get()).ok_or(Cause::UnknownPd)?;
        if pd.users > 0 {
            return Err(Cause::InUse);
        }
        rnic.pds.remove(self.pd.get());
        done()
    }
}
