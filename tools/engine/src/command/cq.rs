// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about completion queues.

use super::{Execute, done, queue::change_users, reserved};
use crate::{
    cause::Cause,
    cq::{Cq, Moderation},
    event::names_cq,
    memory::Memory,
    resources::Io,
    ring::Ring,
    rnic::Engine,
};
use std::{sync::Arc, time::Duration};
use vrnic_wire::{
    command::{CqCreated, CreateCq, DestroyCq, Empty, ModifyCq, ResizeCq, cq_flags},
    completion::CQE_STRIDE,
    memory::PageList,
    ring::RingLayout,
};

impl Engine {
    /// Returns the error of an unknown command unless changes of completion queues were negotiated.
    fn check_cq_changes(&self) -> Result<(), Cause> {
        if self.config.features.completion_queue_changes {
            Ok(())
        } else {
            Err(Cause::CommandCode)
        }
    }

    /// Checks the ring of a completion queue.
    fn check_cq_ring(&self, layout: &RingLayout, pages: &PageList) -> Result<(), Cause> {
        if !layout.is_present()
            || layout.stride.get() != CQE_STRIDE
            || !layout.is_valid(pages.length.get())
        {
            return Err(Cause::RingLayout);
        }
        if layout.entries.get() > self.config.limits.cq_entries {
            return Err(Cause::QueueCapacity);
        }
        Ok(())
    }
}

impl Execute for CreateCq {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<CqCreated, Cause> {
        let (vector, flags) = (self.vector.get(), self.flags.get());
        if vector >= rnic.config.completion_vectors {
            return Err(Cause::CompletionVector);
        }
        let known = if rnic.config.features.ignored_overrun {
            cq_flags::IGNORE_OVERRUN
        } else {
            0
        };
        if flags & !known != 0 {
            return Err(Cause::Flags);
        }
        let ignores_overrun = flags & cq_flags::IGNORE_OVERRUN != 0;
        rnic.check_cq_ring(&self.ring, &self.pages)?;
        let context = self.context.get();
        if rnic.contexts.get(context).is_none() {
            return Err(Cause::UnknownContext);
        }
        if rnic.resources.cqs.is_full() {
            return Err(Cause::LimitReached);
        }
        let buffer = rnic.resolve_ring_buffer(&self.pages, io)?;
        let translations = buffer.translations();
        let ring = Ring::new(Arc::new(buffer), &self.ring)?;
        let (cqn, _) = rnic
            .resources
            .cqs
            .insert_with(|_| Cq::new(context, vector, ring, ignores_overrun))
            .ok_or(Cause::LimitReached)?;
        rnic.translations += translations;
        change_users(rnic.contexts.get_mut(context), 1);
        Ok(CqCreated {
            cqn: cqn.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for ResizeCq {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_cq_changes()?;
        reserved(self.reserved)?;
        let cqn = self.cqn.get();
        rnic.resources.cqs.get(cqn).ok_or(Cause::UnknownCq)?;
        rnic.check_cq_ring(&self.ring, &self.pages)?;
        let buffer = rnic.resolve_ring_buffer(&self.pages, io)?;
        let ring = Ring::new(Arc::new(buffer), &self.ring)?;
        let cq = rnic.resources.cqs.get_mut(cqn).ok_or(Cause::UnknownCq)?;
        let before = cq.translations();
        cq.resize(ring, io.memory)?;
        rnic.translations = rnic.translations - before + cq.translations();
        done()
    }
}

impl Execute for ModifyCq {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_cq_changes()?;
        let moderation = Moderation {
            count: self.count.get().into(),
            period: Duration::from_micros(self.period.get().into()),
        };
        let cqn = self.cqn.get();
        let resources = &mut rnic.resources;
        let cq = resources.cqs.get_mut(cqn).ok_or(Cause::UnknownCq)?;
        cq.moderate(moderation, io.now);
        resources.held_events.forget(cqn, cq.reminder);
        resources.look_at_held_event(cqn, io.memory);
        done()
    }
}

impl Execute for DestroyCq {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        reserved(self.reserved)?;
        let cqn = self.cqn.get();
        let resources = &mut rnic.resources;
        let cq = resources.cqs.get(cqn).ok_or(Cause::UnknownCq)?;
        if !cq.users.is_empty() || !cq.srqs.is_empty() {
            return Err(Cause::InUse);
        }
        if cq.event_waits {
            resources.completion_events.forget(cq.vector, cqn);
        }
        resources.held_events.forget(cqn, cq.reminder);
        resources.async_events.forget(cqn, names_cq);
        resources.faults.later.forget_cq(cqn);
        rnic.translations -= cq.translations();
        change_users(rnic.contexts.get_mut(cq.context), -1);
        resources.cqs.remove(cqn);
        done()
    }
}
