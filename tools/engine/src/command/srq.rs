// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Commands about shared receive queues.

use super::{
    Execute, done,
    queue::{change_users, check_ring},
    reserved,
    xrc::forget_srq,
};
use crate::{
    cause::Cause,
    event::names_srq,
    memory::Memory,
    resources::{Io, Untold},
    ring::Ring,
    rnic::Engine,
    srq::Srq,
};
use std::sync::Arc;
use vrnic_wire::{
    command::{
        CreateSrq, DestroySrq, Empty, ModifySrq, QuerySrq, ResizeSrq, SrqAttributes, SrqCreated,
    },
    memory::PageList,
    ring::RingLayout,
    work,
};

impl Engine {
    /// Returns the error of an unknown command unless shared receive queues were negotiated.
    fn check_srqs(&self) -> Result<(), Cause> {
        if self.config.features.shared_receive_queues {
            Ok(())
        } else {
            Err(Cause::CommandCode)
        }
    }

    /// Creates the ring of a shared receive queue.
    fn srq_ring<M: Memory>(
        &mut self,
        layout: &RingLayout,
        pages: &PageList,
        max_sge: u32,
        io: &Io<'_, M>,
    ) -> Result<Ring, Cause> {
        let buffer = self.resolve_ring_buffer(pages, io)?;
        check_ring(
            layout,
            buffer.length(),
            work::receive_stride(max_sge),
            self.config.limits.qp_entries,
        )?;
        if !layout.is_present() {
            return Err(Cause::RingLayout);
        }
        Ring::new(Arc::new(buffer), layout)
    }
}

impl Execute for CreateSrq {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<SrqCreated, Cause> {
        rnic.check_srqs()?;
        let max_sge = self.max_sge.get();
        if max_sge > rnic.config.limits.recv_sge {
            return Err(Cause::QueueCapacity);
        }
        let context = self.context.get();
        if rnic.contexts.get(context).is_none() {
            return Err(Cause::UnknownContext);
        }
        let number = self.pd.get();
        let pd = rnic.pds.get(number).ok_or(Cause::UnknownPd)?;
        if pd.context != context {
            return Err(Cause::ContextMismatch);
        }
        if rnic.resources.srqs.is_full() {
            return Err(Cause::LimitReached);
        }
        let ring = rnic.srq_ring(&self.ring, &self.pages, max_sge, io)?;
        let mut srq = Srq::new(context, number, max_sge, ring);
        srq.set_limit(self.limit.get())?;
        let translations = srq.translations();
        let srqs = &mut rnic.resources.srqs;
        let (srqn, _) = srqs.insert_with(|_| srq).ok_or(Cause::LimitReached)?;
        rnic.translations += translations;
        change_users(rnic.contexts.get_mut(context), 1);
        if let Some(pd) = rnic.pds.get_mut(number) {
            pd.users += 1;
        }
        rnic.resources.check_srq_limit(srqn, io.memory);
        Ok(SrqCreated {
            srqn: srqn.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for ModifySrq {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_srqs()?;
        let srqn = self.srqn.get();
        let resources = &mut rnic.resources;
        let srq = resources.srqs.get_mut(srqn).ok_or(Cause::UnknownSrq)?;
        srq.set_limit(self.limit.get())?;
        resources.check_srq_limit(srqn, io.memory);
        done()
    }
}

impl Execute for ResizeSrq {
    fn execute<M: Memory>(self, rnic: &mut Engine, io: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_srqs()?;
        reserved(self.reserved)?;
        let srqn = self.srqn.get();
        let srq = rnic.resources.srqs.get(srqn).ok_or(Cause::UnknownSrq)?;
        let max_sge = srq.max_sge;
        let ring = rnic.srq_ring(&self.ring, &self.pages, max_sge, io)?;
        let resources = &mut rnic.resources;
        let srq = resources.srqs.get_mut(srqn).ok_or(Cause::UnknownSrq)?;
        let before = srq.translations();
        srq.resize(ring, io.memory)?;
        rnic.translations = rnic.translations - before + srq.translations();
        done()
    }
}

impl Execute for QuerySrq {
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        _: &mut Io<'_, M>,
    ) -> Result<SrqAttributes, Cause> {
        rnic.check_srqs()?;
        reserved(self.reserved)?;
        let srqs = &rnic.resources.srqs;
        let srq = srqs.get(self.srqn.get()).ok_or(Cause::UnknownSrq)?;
        Ok(SrqAttributes {
            limit: srq.limit().into(),
            entries: srq.entries().into(),
            max_sge: srq.max_sge.into(),
            reserved: 0.into(),
        })
    }
}

impl Execute for DestroySrq {
    fn execute<M: Memory>(self, rnic: &mut Engine, _: &mut Io<'_, M>) -> Result<Empty, Cause> {
        rnic.check_srqs()?;
        reserved(self.reserved)?;
        let srqn = self.srqn.get();
        let resources = &mut rnic.resources;
        let srq = resources.srqs.get(srqn).ok_or(Cause::UnknownSrq)?;
        if srq.users > 0 {
            return Err(Cause::InUse);
        }
        let xrc = srq.xrc;
        resources.async_events.forget(srqn, names_srq);
        rnic.translations -= srq.translations();
        change_users(rnic.contexts.get_mut(srq.context), -1);
        if let Some(pd) = rnic.pds.get_mut(srq.pd) {
            pd.users -= 1;
        }
        resources.forget_untold(Untold::SharedQueue(srqn));
        resources.srqs.remove(srqn);
        if let Some(xrc) = xrc {
            forget_srq(srqn, xrc, rnic);
        }
        done()
    }
}
