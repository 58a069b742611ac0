// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! What faults do to completions, events, commands and doorbells.

use super::{Delivery, Faults, Strike, later::Parcel, occasion::Occasion, table::Act};
use crate::{
    cause::Cause,
    explain::{Explanation, Happening},
    memory::Memory,
    resources::{Io, Resources},
    rnic::Engine,
    state::wire,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    command::{self, CommandCode},
    completion::{Cqe, Opcode, Status},
    event::{AsyncEvent, EventType},
};

/// What happens to a command.
#[derive(Copy, Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CommandFate {
    /// Status and `vendor_error` of the reply if the command is not executed.
    #[serde(with = "wire")]
    refusal: Option<(command::Status, u32)>,
    delivery: Delivery,
}

/// Returns whether this is the completion of a send.
fn is_send(cqe: &Cqe) -> bool {
    cqe.opcode < Opcode::Receive.raw()
}

impl Faults {
    /// Returns how the reply to the last command is to be delivered, and resets this.
    pub(crate) fn take_delivery(&mut self) -> Delivery {
        std::mem::take(&mut self.delivery)
    }

    /// Records that the command was executed or refused.
    fn end_command(&mut self) {
        if let Some(fate) = self.command.take() {
            self.delivery = fate.delivery;
            self.update();
        }
    }
}

impl Resources {
    /// Returns the fault that fires on an occasion, if any. While no faults are armed, this costs one check.
    #[inline]
    pub(crate) fn strike(&mut self, occasion: impl FnOnce() -> Occasion) -> Option<Strike> {
        if !self.faults.is_busy() {
            return None;
        }
        self.strike_armed(occasion())
    }

    #[cold]
    fn strike_armed(&mut self, occasion: Occasion) -> Option<Strike> {
        let strike = self.faults.strike(self.now, occasion)?;
        self.explain_strike(&strike);
        Some(strike)
    }

    /// Adds the firing of a fault to the record.
    pub(crate) fn explain_strike(&mut self, strike: &Strike) {
        let happening = Happening::Fault {
            id: strike.id,
            name: strike.kind.name,
        };
        let what = Explanation {
            peer_qpn: strike.peer_qpn,
            psn: strike.psn,
            ..Explanation::new(happening, strike.qpn, None)
        };
        self.explain(what);
    }

    /// Writes a completion while faults are armed. Returns its status.
    #[cold]
    pub(crate) fn complete_among_faults<M: Memory>(
        &mut self,
        cqn: u32,
        mut cqe: Cqe,
        solicited: bool,
        io: &Io<'_, M>,
    ) -> u8 {
        let qpn = cqe.qpn.get();
        let send = is_send(&cqe);
        let mut notify = false;
        let mut due = None;
        if self.faults.victims.contains(&(qpn, send)) {
            // Completions after the first error are flushed, whatever their status was.
            fail(&mut cqe, Status::Flushed, Cause::QpInError.code());
        } else if cqe.status == Status::Success.raw()
            && let Some(strike) = self.strike(|| Occasion::completion(cqn, send))
        {
            match strike.kind.act {
                Act::Complete(status) => {
                    let vendor = strike.args.vendor.unwrap_or(Cause::Provoked.code());
                    fail(&mut cqe, status, vendor);
                    self.faults.victims.push((qpn, send));
                }
                Act::LoseCompletion => return cqe.status,
                Act::HoldCompletion => due = Some(io.now + strike.args.delay),
                Act::Overrun => {
                    self.fail_cq(cqn, Cause::Provoked, io.memory);
                    return cqe.status;
                }
                Act::SpuriousNotice => notify = true,
                _ => {}
            }
        }
        let status = cqe.status;
        // Completions of a queue stay in order.
        let last = self.faults.later.last_completion(cqn);
        match due.max(last) {
            Some(due) if self.faults.later.has_room(0) => {
                let parcel = Parcel::Completion(cqn, cqe, solicited);
                self.faults.later.put(due, parcel);
            }
            _ => {
                for (cqe, solicited) in self.faults.later.take_completions(cqn) {
                    self.write_completion(cqn, cqe, solicited, io);
                }
                self.write_completion(cqn, cqe, solicited, io);
            }
        }
        self.faults.update();
        if notify {
            self.raise_notice(cqn);
        }
        status
    }

    /// Makes a completion queue fail.
    pub(crate) fn fail_cq<M: Memory>(&mut self, cqn: u32, cause: Cause, memory: &M) {
        let Some(cq) = self.cqs.get_mut(cqn) else {
            return;
        };
        if cq.fail(memory) {
            self.note_failed_cq(cqn, cause);
        }
    }

    /// Raises an event of a completion queue, unless one is already waiting.
    pub(crate) fn raise_notice(&mut self, cqn: u32) {
        if let Some(cq) = self.cqs.get_mut(cqn)
            && !std::mem::replace(&mut cq.event_waits, true)
        {
            self.completion_events.raise(cq.vector, cqn);
        }
    }

    /// Returns whether a fault withholds an event of a completion queue.
    #[cold]
    pub(crate) fn withhold_notice(&mut self, cqn: u32) -> bool {
        let Some(strike) = self.strike(|| Occasion::notice(cqn)) else {
            return false;
        };
        let due = self.now + strike.args.delay;
        let hold = strike.kind.act == Act::HoldNotice && self.faults.later.has_room(0);
        if hold {
            self.faults.later.put(due, Parcel::Notice(cqn));
        }
        if let Some(cq) = self.cqs.get_mut(cqn) {
            cq.event_waits = false;
        }
        self.faults.update();
        true
    }

    /// Applies faults to an asynchronous event. Returns the event if it goes out now.
    #[cold]
    pub(crate) fn withhold_event(&mut self, event: AsyncEvent) -> Option<AsyncEvent> {
        let Ok(event_type) = EventType::try_from(event.event_type.get()) else {
            return Some(event);
        };
        let number = event.number.get();
        let strike = self.strike(|| {
            let mut occasion = Occasion::event(event_type);
            if crate::event::names_cq(event_type) {
                occasion.cqn = Some(number);
            }
            occasion
        });
        let Some(strike) = strike else {
            return Some(event);
        };
        if strike.kind.act == Act::HoldEvent {
            let due = self.now + strike.args.delay;
            self.async_events.hold(event, due);
        }
        None
    }
}

/// Turns a completion into an error completion, which only has the identification of the request.
fn fail(cqe: &mut Cqe, status: Status, vendor_error: u32) {
    *cqe = Cqe {
        wr_id: cqe.wr_id,
        qpn: cqe.qpn,
        opcode: cqe.opcode,
        status: status.raw(),
        vendor_error: vendor_error.into(),
        ..Cqe::default()
    };
}

impl Engine {
    /// Returns the number of existing objects of the kind that a command creates.
    fn objects_of(&self, code: CommandCode) -> Option<u32> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Some(match code {
            CommandCode::CreateContext => self.contexts.len(),
            CommandCode::CreatePd => self.pds.len(),
            CommandCode::CreateCq => self.resources.cqs.len(),
            CommandCode::CreateQp | CommandCode::CreateScalingQp => self.qps.len(),
            CommandCode::CreateSrq | CommandCode::CreateXrcSrq => self.resources.srqs.len(),
            CommandCode::CreateXrcd => self.xrcds.len(),
            CommandCode::RegisterMr
            | CommandCode::AllocateMr
            | CommandCode::AllocateIntegrityMr => count(self.resources.keys.regions()),
            CommandCode::AllocateMw => self.resources.keys.windows(),
            CommandCode::CreateCounterSet => self.resources.counters.sets(),
            CommandCode::CreateFlow | CommandCode::CreateTunnelFlow => count(self.flows.len()),
            CommandCode::AttachMulticast => count(self.resources.groups.attachments()),
            _ => return None,
        })
    }

    /// Returns the reply to a command that a fault prevents from being executed. Called each time before a command is
    /// executed or continued.
    #[inline]
    pub(crate) fn refusal(&mut self, code: Option<CommandCode>) -> Option<(command::Status, u32)> {
        if !self.resources.faults.is_busy() {
            return None;
        }
        self.refusal_among_faults(code)
    }

    #[cold]
    fn refusal_among_faults(
        &mut self,
        code: Option<CommandCode>,
    ) -> Option<(command::Status, u32)> {
        if let Some(fate) = self.resources.faults.command {
            return fate.refusal;
        }
        let code = code?;
        let objects = self.objects_of(code);
        let strike = self.resources.strike(|| Occasion::command(code, objects));
        let mut fate = CommandFate::default();
        if let Some(strike) = strike {
            let args = strike.args;
            match strike.kind.act {
                Act::RefuseCommand => {
                    let status = args.status.unwrap_or(command::Status::NoResources);
                    let vendor = args.vendor.unwrap_or(Cause::Provoked.code());
                    fate.refusal = Some((status, vendor));
                }
                Act::DelayReply => fate.delivery = Delivery::Late(args.delay),
                Act::NoReply => fate.delivery = Delivery::Never,
                Act::ReplyTwice => fate.delivery = Delivery::Twice,
                _ => {}
            }
        }
        self.resources.faults.command = Some(fate);
        self.resources.faults.update();
        fate.refusal
    }

    /// Records that a command was executed or refused.
    #[inline]
    pub(crate) fn end_command(&mut self) {
        if self.resources.faults.is_busy() {
            self.resources.faults.end_command();
        }
    }

    /// Returns how the reply to the last command is to be delivered, and resets this.
    pub fn take_delivery(&mut self) -> Delivery {
        self.resources.faults.take_delivery()
    }

    /// Returns whether a fault withholds a doorbell.
    #[cold]
    pub(crate) fn withhold_doorbell(
        &mut self,
        context: u32,
        slot: u32,
        owner: Option<u32>,
    ) -> bool {
        let subject = owner
            .and_then(|qpn| self.qps.get(qpn))
            .map(crate::qp::Qp::subject);
        let strike = self.resources.strike(|| Occasion {
            qp: subject,
            ..Occasion::new(super::Seam::Doorbell)
        });
        let Some(strike) = strike else {
            return false;
        };
        let faults = &mut self.resources.faults;
        if strike.kind.act == Act::HoldDoorbell {
            if !faults.later.has_room(0) {
                return false;
            }
            let parcel = Parcel::Doorbell(context, slot);
            faults.later.put_fresh(strike.args.delay, parcel);
            faults.update();
        }
        true
    }

    /// Moves queue pairs whose completions were turned into errors to the error state.
    #[cold]
    pub(crate) fn settle_victims<M: Memory>(&mut self, io: &mut Io<'_, M>) {
        while let Some((qpn, send)) = self.resources.faults.next_victim() {
            let told = self.act(qpn, |qp, _| qp.fail_quietly(send, io));
            if told.is_some() {
                self.qps.schedule(qpn);
            }
        }
    }
}
