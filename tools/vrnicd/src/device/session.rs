// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! State that exists while the driver is up: virtqueues, and commands and events in progress.

use std::sync::Arc;

use vrnic_engine::fault::Delivery;
use vrnic_engine::time::Instant;
use vrnic_engine::{Io, PAGES_AT_ONCE, Rnic};
use vrnic_wire::command::{self, Command, CommandCode, CommandHeader, ReplyHeader, Status};
use vrnic_wire::config::{ASYNC_EVENT_QUEUE, CONTROL_QUEUE};
use zerocopy::{FromBytes, IntoBytes};

use super::Shared;
use super::hostile::{Hostile, Plan};
use crate::guest_memory::{GuestMemory, RegionTable};
use crate::virtio::Notifier;
use crate::virtio::queue::{BadQueue, Chain, Virtqueue};

/// Number of commands executed before other devices get their turn.
const COMMANDS_PER_TURN: usize = 16;

/// State of a device whose driver is up.
pub(super) struct Session {
    pub(super) memory: Arc<GuestMemory>,
    pub(super) notifier: Arc<dyn Notifier>,
    pub(super) queues: Queues,
    /// `None` after a failure, until the driver resets the device.
    pub(super) rnic: Option<Rnic>,
}

/// Virtqueues by their index.
pub(super) struct Queues {
    pub(super) control: Option<Virtqueue>,
    pub(super) control_notified: bool,
    /// A command that takes long and is partly done.
    pub(super) begun: Option<Chain>,
    pub(super) events: Vec<EventQueue>,
    /// Replies that are delayed on purpose.
    pub(super) late: Vec<Late>,
}

/// A delayed reply.
pub(super) struct Late {
    pub(super) due: Instant,
    pub(super) chain: Chain,
    pub(super) reply: Vec<u8>,
}

/// An event queue.
#[derive(Default)]
pub(super) struct EventQueue {
    pub(super) queue: Option<Virtqueue>,
    /// A buffer waiting for an event. The events themselves wait in the engine, which drops those of objects that are
    /// destroyed in the meantime.
    pub(super) buffer: Option<Chain>,
    /// An event that is sent even if the engine is gone.
    pub(super) last: Option<Vec<u8>>,
    /// Whether the queue ran out of buffers and has not been notified since.
    pub(super) dry: bool,
}

impl Session {
    /// Executes commands, up to a limit, until they have taken long, or to one of which `executed` says so. It is
    /// called after each, before the driver learns that it is done.
    pub(super) fn execute_commands(
        &mut self,
        regions: &RegionTable,
        shared: &mut Shared,
        mut hostile: Option<&mut Hostile>,
        now: Instant,
        executed: &mut dyn FnMut(&Rnic) -> bool,
    ) -> Result<(), BadQueue> {
        // Nothing remains to be done if the queue is missing or broken.
        self.queues.control_notified = false;
        let Some(queue) = &mut self.queues.control else {
            return Ok(());
        };
        let (mut interrupt, mut remains) = (false, true);
        let enough = self.rnic.as_ref().map_or(0, |rnic| rnic.effort()) + PAGES_AT_ONCE;
        for _ in 0..COMMANDS_PER_TURN {
            let begun = self.queues.begun.take();
            let is_begun = begun.is_some();
            let next = match begun {
                Some(begun) => Some(begun),
                None => queue.pop(command::MAX_REQUEST)?,
            };
            let Some(chain) = next else {
                remains = false;
                break;
            };
            let mut reply = Vec::with_capacity(command::MAX_REPLY);
            let mut is_last = false;
            let length = shortest_reply(&chain.request);
            let plan = match &mut hostile {
                Some(hostile) if !is_begun => hostile.plan(&chain.request),
                _ => Plan::HONEST,
            };
            match &mut self.rnic {
                Some(_) if !plan.executes => {}
                Some(_) if chain.reply_capacity() < length => {
                    // Executing the command would leave the driver with an object whose number it never learns.
                    refuse(Status::Malformed, &mut reply);
                }
                Some(rnic) => {
                    let memory = regions.device(&self.memory, None);
                    let mut io = Io {
                        memory: &memory,
                        now,
                        outbox: &mut shared.outbox,
                    };
                    if !rnic.execute(&chain.request, &mut reply, &mut io) {
                        self.queues.begun = Some(chain);
                        break;
                    }
                    cut(&mut reply, chain.reply_capacity());
                    is_last = executed(rnic) || rnic.effort() >= enough;
                }
                None => refuse(Status::DeviceFailed, &mut reply),
            }
            let delivery = (self.rnic.as_mut()).map_or(Delivery::Now, Rnic::take_delivery);
            let late = &mut self.queues.late;
            interrupt |= match &mut hostile {
                Some(hostile) => {
                    hostile.reply(&plan, &mut reply, length, chain.reply_capacity());
                    hostile.deliver(&plan, queue, &self.memory, chain, reply, late, now)?
                }
                None => match delivery {
                    Delivery::Now => queue.complete(&chain, &reply)?,
                    Delivery::Twice => {
                        queue.complete(&chain, &reply)?;
                        queue.complete(&chain, &reply)?
                    }
                    Delivery::Late(delay) => {
                        let due = now + delay;
                        late.push(Late { due, chain, reply });
                        false
                    }
                    Delivery::Never => false,
                },
            };
            if is_last {
                break;
            }
        }
        self.queues.control_notified = remains;
        if interrupt {
            self.notifier.queue_used(CONTROL_QUEUE);
        }
        Ok(())
    }

    /// Sends the delayed replies that are due. Returns true if there were any.
    pub(super) fn deliver_late(&mut self, now: Instant) -> Result<bool, BadQueue> {
        let (mut any, mut interrupt) = (false, false);
        let late = &mut self.queues.late;
        while let Some(index) = late.iter().position(|late| late.due <= now) {
            let Late { chain, reply, .. } = late.remove(index);
            any = true;
            if let Some(queue) = &mut self.queues.control {
                interrupt |= queue.complete(&chain, &reply)?;
            }
        }
        if interrupt {
            self.notifier.queue_used(CONTROL_QUEUE);
        }
        Ok(any)
    }

    /// Returns when the next delayed reply is due.
    pub(super) fn next_late(&self) -> Option<Instant> {
        self.queues.late.iter().map(|late| late.due).min()
    }

    /// Lets a hostile device act without a cause. Returns true if it did anything.
    pub(super) fn act(&mut self, hostile: &mut Hostile, now: Instant) -> Result<bool, BadQueue> {
        if !hostile.act(&self.memory, now) {
            return Ok(false);
        }
        let queues = ASYNC_EVENT_QUEUE + self.queues.events.len() as u16;
        if let Some(queue) = hostile.spurious(queues) {
            self.notifier.queue_used(queue);
        }
        if hostile.gives_up() {
            self.notifier.needs_reset();
        }
        Ok(true)
    }
}

impl EventQueue {
    /// Writes events to buffers until there are no more events or no more buffers. Returns true if the driver wants an
    /// interrupt.
    pub(super) fn publish(
        &mut self,
        next: &mut dyn FnMut() -> Option<Vec<u8>>,
    ) -> Result<bool, BadQueue> {
        let mut interrupt = false;
        if self.dry {
            return Ok(false);
        }
        let Some(queue) = &mut self.queue else {
            return Ok(false);
        };
        loop {
            if self.buffer.is_none() {
                self.buffer = queue.pop(0)?;
            }
            let Some(chain) = &self.buffer else {
                self.dry = true;
                break;
            };
            let Some(event) = self.last.take().or_else(&mut *next) else {
                break;
            };
            if chain.reply_capacity() < event.len() {
                return Err(BadQueue("buffer is too small for an event"));
            }
            interrupt |= queue.complete(chain, &event)?;
            self.buffer = None;
        }
        Ok(interrupt)
    }
}

/// Writes the reply to a command that was not executed.
fn refuse(status: Status, reply: &mut Vec<u8>) {
    let header = ReplyHeader {
        status: status.raw().into(),
        length: 0.into(),
        vendor_error: 0.into(),
        reserved: 0.into(),
    };
    reply.extend_from_slice(header.as_bytes());
}

/// Cuts a reply that is longer than its buffer. Only a driver that does not know the last fields gives too little room
/// for them, as [`shortest_reply`] has made sure.
fn cut(reply: &mut Vec<u8>, capacity: usize) {
    if reply.len() <= capacity {
        return;
    }
    reply.truncate(capacity);
    if let Ok((header, body)) = ReplyHeader::mut_from_prefix(reply) {
        header.length = u32::try_from(body.len()).unwrap_or(0).into();
    }
}

/// Returns the length in bytes of the shortest successful reply to the command in `request`, including the header.
fn shortest_reply(request: &[u8]) -> usize {
    fn of<C: Command>() -> usize {
        C::SHORTEST_REPLY
    }
    let code = CommandHeader::read_from_prefix(request).map(|(header, _)| header.code.get());
    let body = match code.map(CommandCode::try_from) {
        Ok(Ok(code)) => match code {
            CommandCode::QueryDevice => of::<command::QueryDevice>(),
            CommandCode::QueryPort => of::<command::QueryPort>(),
            CommandCode::SetGid => of::<command::SetGid>(),
            CommandCode::ClearGid => of::<command::ClearGid>(),
            CommandCode::QueryCounters => of::<command::QueryCounters>(),
            CommandCode::SetMtu => of::<command::SetMtu>(),
            CommandCode::SetPortState => of::<command::SetPortState>(),
            CommandCode::QueryClock => of::<command::QueryClock>(),
            CommandCode::QuerySubnetPort => of::<command::QuerySubnetPort>(),
            CommandCode::QueryPkeys => of::<command::QueryPkeys>(),
            CommandCode::QueryGids => of::<command::QueryGids>(),
            CommandCode::ModifyPort => of::<command::ModifyPort>(),
            CommandCode::ProcessMad => of::<command::ProcessMad>(),
            CommandCode::CreateContext => of::<command::CreateContext>(),
            CommandCode::DestroyContext => of::<command::DestroyContext>(),
            CommandCode::RingDoorbell => of::<command::RingDoorbell>(),
            CommandCode::NameContext => of::<command::NameContext>(),
            CommandCode::CreatePd => of::<command::CreatePd>(),
            CommandCode::DestroyPd => of::<command::DestroyPd>(),
            CommandCode::RegisterMr => of::<command::RegisterMr>(),
            CommandCode::DeregisterMr => of::<command::DeregisterMr>(),
            CommandCode::AllocateMr => of::<command::AllocateMr>(),
            CommandCode::ReregisterMr => of::<command::ReregisterMr>(),
            CommandCode::AllocateMw => of::<command::AllocateMw>(),
            CommandCode::DeallocateMw => of::<command::DeallocateMw>(),
            CommandCode::AllocateIntegrityMr => of::<command::AllocateIntegrityMr>(),
            CommandCode::TakePageFault => of::<command::TakePageFault>(),
            CommandCode::MapPages => of::<command::MapPages>(),
            CommandCode::UnmapPages => of::<command::UnmapPages>(),
            CommandCode::RefusePages => of::<command::RefusePages>(),
            CommandCode::AttachRegion => of::<command::AttachRegion>(),
            CommandCode::CreateCq => of::<command::CreateCq>(),
            CommandCode::DestroyCq => of::<command::DestroyCq>(),
            CommandCode::ResizeCq => of::<command::ResizeCq>(),
            CommandCode::ModifyCq => of::<command::ModifyCq>(),
            CommandCode::CreateQp => of::<command::CreateQp>(),
            CommandCode::ModifyQp => of::<command::ModifyQp>(),
            CommandCode::QueryQp => of::<command::QueryQp>(),
            CommandCode::ModifyQpPaths => of::<command::ModifyQpPaths>(),
            CommandCode::QueryQpPaths => of::<command::QueryQpPaths>(),
            CommandCode::CreateScalingQp => of::<command::CreateScalingQp>(),
            CommandCode::DestroyQp => of::<command::DestroyQp>(),
            CommandCode::CreateSrq => of::<command::CreateSrq>(),
            CommandCode::ModifySrq => of::<command::ModifySrq>(),
            CommandCode::ResizeSrq => of::<command::ResizeSrq>(),
            CommandCode::QuerySrq => of::<command::QuerySrq>(),
            CommandCode::DestroySrq => of::<command::DestroySrq>(),
            CommandCode::AttachMulticast => of::<command::AttachMulticast>(),
            CommandCode::DetachMulticast => of::<command::DetachMulticast>(),
            CommandCode::CreateCounterSet => of::<command::CreateCounterSet>(),
            CommandCode::BindCounterSet => of::<command::BindCounterSet>(),
            CommandCode::QueryCounterSet => of::<command::QueryCounterSet>(),
            CommandCode::DestroyCounterSet => of::<command::DestroyCounterSet>(),
            CommandCode::CreateCompletionCounter => of::<command::CreateCompletionCounter>(),
            CommandCode::AttachCompletionCounter => of::<command::AttachCompletionCounter>(),
            CommandCode::ModifyCompletionCounter => of::<command::ModifyCompletionCounter>(),
            CommandCode::QueryCompletionCounter => of::<command::QueryCompletionCounter>(),
            CommandCode::DestroyCompletionCounter => of::<command::DestroyCompletionCounter>(),
            CommandCode::CreateXrcd => of::<command::CreateXrcd>(),
            CommandCode::DestroyXrcd => of::<command::DestroyXrcd>(),
            CommandCode::CreateXrcSrq => of::<command::CreateXrcSrq>(),
            CommandCode::CreateFlow => of::<command::CreateFlow>(),
            CommandCode::DestroyFlow => of::<command::DestroyFlow>(),
            CommandCode::QueryFlow => of::<command::QueryFlow>(),
            CommandCode::CreateTunnelFlow => of::<command::CreateTunnelFlow>(),
        },
        _ => 0,
    };
    size_of::<ReplyHeader>() + body
}
