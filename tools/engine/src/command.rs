// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Control commands: conversion from bytes to typed requests, execution, and conversion of the replies to bytes.

mod completion_counter;
mod context;
mod counter;
mod cq;
mod flow;
pub(crate) mod memory;
mod multicast;
mod paging;
mod port;
mod queue;
mod srq;
mod subnet;
mod xrc;

use crate::{
    cause::Cause,
    explain::{Explanation, Happening},
    memory::Memory,
    resources::Io,
    rnic::Engine,
};
use serde::{Deserialize, Serialize};
use vrnic_wire::{
    command::{
        self, AllocateIntegrityMr, AllocateMr, AllocateMw, AttachCompletionCounter,
        AttachMulticast, AttachRegion, BindCounterSet, ClearGid, Command, CommandCode,
        CommandHeader, CreateCompletionCounter, CreateContext, CreateCounterSet, CreateCq,
        CreateFlow, CreatePd, CreateQp, CreateScalingQp, CreateSrq, CreateTunnelFlow, CreateXrcSrq,
        CreateXrcd, DeallocateMw, DeregisterMr, DestroyCompletionCounter, DestroyContext,
        DestroyCounterSet, DestroyCq, DestroyFlow, DestroyPd, DestroyQp, DestroySrq, DestroyXrcd,
        DetachMulticast, MapPages, ModifyCompletionCounter, ModifyCq, ModifyPort, ModifyQp,
        ModifyQpPaths, ModifySrq, NameContext, ProcessMad, QueryClock, QueryCompletionCounter,
        QueryCounterSet, QueryCounters, QueryDevice, QueryFlow, QueryGids, QueryPkeys, QueryPort,
        QueryQp, QueryQpPaths, QuerySrq, QuerySubnetPort, RefusePages, RegisterMr, ReplyHeader,
        ReregisterMr, ResizeCq, ResizeSrq, RingDoorbell, SetGid, SetMtu, SetPortState, Status,
        TakePageFault, UnmapPages, mr_flags,
    },
    counter::Counter,
    memory::PageList,
};
use zerocopy::{FromBytes, IntoBytes};

/// A command that the device executes. A command that fails changes nothing.
trait Execute: Command {
    /// Executes the command.
    fn execute<M: Memory>(
        self,
        rnic: &mut Engine,
        io: &mut Io<'_, M>,
    ) -> Result<<Self as Command>::Reply, Cause>;
}

/// Number of pages, or of what takes as long, that commands handle before others take their turns: in a part of one
/// command, or in several commands together.
pub const PAGES_AT_ONCE: u64 = 2048;

/// How far a command has come that takes several turns.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    request: Vec<u8>,
    /// Its meaning depends on the command.
    position: u32,
}

/// Does a part of the work of a command that takes long. Returns whether nothing is left to do in advance.
fn advance<M: Memory>(rnic: &mut Engine, request: &[u8], io: &mut Io<'_, M>) -> bool {
    if let Some(list) = page_list_of(request) {
        return rnic.resolve_part(&list, io);
    }
    let Ok((code, body)) = parse(request) else {
        return true;
    };
    let begun = rnic.progress.take_if(|begun| begun.request == request);
    let begun = begun.map(|begun| begun.position);
    let position = match code {
        CommandCode::ModifyQp => ModifyQp::read_from_bytes(body)
            .ok()
            .and_then(|wanted| rnic.flush_part(wanted.qpn.get(), &wanted.attributes, begun, io)),
        CommandCode::ModifyQpPaths => ModifyQpPaths::read_from_bytes(body)
            .ok()
            .and_then(|wanted| rnic.flush_part(wanted.qpn.get(), &wanted.attributes, begun, io)),
        CommandCode::UnmapPages => UnmapPages::read_from_bytes(body)
            .ok()
            .and_then(|wanted| rnic.unmap_part(&wanted, begun)),
        CommandCode::DeregisterMr => DeregisterMr::read_from_bytes(body)
            .ok()
            .and_then(|wanted| rnic.empty_part(wanted, begun)),
        _ => None,
    };
    rnic.progress = position.map(|position| Progress {
        request: request.to_vec(),
        position,
    });
    position.is_none()
}

/// Executes the command in `request` and appends its reply to `reply`. Returns false if the command takes long. In that
/// case nothing was appended, and the caller must call again with the same request for the rest.
pub(crate) fn execute<M: Memory>(
    rnic: &mut Engine,
    request: &[u8],
    reply: &mut Vec<u8>,
    io: &mut Io<'_, M>,
) -> bool {
    let code = code_of(request);
    if let Some((status, vendor)) = rnic.refusal(code) {
        rnic.resources.counters.count(Counter::Commands);
        rnic.resources.counters.count(Counter::CommandErrors);
        rnic.end_command();
        reply.extend_from_slice(head(status, 0, vendor).as_bytes());
        return true;
    }
    // First what grows with the request or the guest's objects, and the work of an agent: nothing else takes long.
    if !advance(rnic, request, io) {
        return false;
    }
    if let Some(wanted) = subnet::port_request_of(request, rnic)
        && let Some(subnet) = &mut rnic.resources.subnet
        && !subnet.ask(wanted)
    {
        return false;
    }
    rnic.resources.counters.count(Counter::Commands);
    let start = reply.len();
    reply.resize(start + size_of::<ReplyHeader>(), 0);
    let result = dispatch(rnic, request, reply, io);
    let (status, cause) = match result {
        Ok(()) => (Status::Ok, 0),
        Err(cause) => {
            rnic.resources.counters.count(Counter::CommandErrors);
            let code = CommandHeader::read_from_prefix(request);
            let happening = Happening::Command {
                code: code.map_or(0, |(header, _)| header.code.get()),
                status: status_of(cause),
            };
            let what = Explanation::new(happening, 0, Some(cause));
            rnic.resources.explain(what);
            (status_of(cause), cause.code())
        }
    };
    let length = reply.len() - start - size_of::<ReplyHeader>();
    let header = head(status, length as u32, cause);
    reply[start..start + size_of::<ReplyHeader>()].copy_from_slice(header.as_bytes());
    rnic.resolution = None;
    rnic.progress = None;
    rnic.end_command();
    true
}

/// Returns the code of the command in `request` if it is known.
fn code_of(request: &[u8]) -> Option<CommandCode> {
    let (header, _) = CommandHeader::read_from_prefix(request).ok()?;
    CommandCode::try_from(header.code.get()).ok()
}

/// Creates the header of a reply.
fn head(status: Status, length: u32, vendor_error: u32) -> ReplyHeader {
    ReplyHeader {
        status: status.raw().into(),
        length: length.into(),
        vendor_error: vendor_error.into(),
        reserved: 0.into(),
    }
}

/// Returns the page list of a command that has one.
fn page_list_of(request: &[u8]) -> Option<PageList> {
    let (header, body) = CommandHeader::read_from_prefix(request).ok()?;
    let list = match CommandCode::try_from(header.code.get()).ok()? {
        CommandCode::CreateContext => CreateContext::read_from_bytes(body).ok()?.area,
        CommandCode::RegisterMr => {
            let request = RegisterMr::read_from_bytes(body).ok()?;
            if request.flags.get() & mr_flags::ON_DEMAND != 0 {
                return None;
            }
            request.pages
        }
        CommandCode::ReregisterMr => ReregisterMr::read_from_bytes(body).ok()?.pages,
        CommandCode::AllocateMr => AllocateMr::read_from_bytes(body).ok()?.table,
        CommandCode::CreateCompletionCounter => {
            CreateCompletionCounter::read_from_bytes(body).ok()?.pages
        }
        CommandCode::AllocateIntegrityMr => AllocateIntegrityMr::read_from_bytes(body).ok()?.table,
        CommandCode::CreateCq => CreateCq::read_from_bytes(body).ok()?.pages,
        CommandCode::ResizeCq => ResizeCq::read_from_bytes(body).ok()?.pages,
        CommandCode::CreateQp => CreateQp::read_from_bytes(body).ok()?.pages,
        CommandCode::CreateSrq => CreateSrq::read_from_bytes(body).ok()?.pages,
        CommandCode::CreateXrcSrq => CreateXrcSrq::read_from_bytes(body).ok()?.srq.pages,
        CommandCode::ResizeSrq => ResizeSrq::read_from_bytes(body).ok()?.pages,
        _ => return None,
    };
    (list.page_count.get() > 0).then_some(list)
}

/// Returns the code and the body of a request with a correct header.
fn parse(request: &[u8]) -> Result<(CommandCode, &[u8]), Cause> {
    let (header, body) =
        CommandHeader::read_from_prefix(request).map_err(|_| Cause::CommandLength)?;
    if header.reserved.get() != 0 {
        return Err(Cause::ReservedField);
    }
    if header.length.get() as usize != body.len() {
        return Err(Cause::CommandLength);
    }
    let code = CommandCode::try_from(header.code.get()).map_err(|_| Cause::CommandCode)?;
    Ok((code, body))
}

/// Executes a command and appends its reply without the header.
fn dispatch<M: Memory>(
    rnic: &mut Engine,
    request: &[u8],
    reply: &mut Vec<u8>,
    io: &mut Io<'_, M>,
) -> Result<(), Cause> {
    let (code, body) = parse(request)?;
    let call = match code {
        CommandCode::QueryDevice => run::<QueryDevice, M>,
        CommandCode::QueryPort => run::<QueryPort, M>,
        CommandCode::SetGid => run::<SetGid, M>,
        CommandCode::ClearGid => run::<ClearGid, M>,
        CommandCode::QueryCounters => run::<QueryCounters, M>,
        CommandCode::SetMtu => run::<SetMtu, M>,
        CommandCode::SetPortState => run::<SetPortState, M>,
        CommandCode::QueryClock => run::<QueryClock, M>,
        CommandCode::QuerySubnetPort => run::<QuerySubnetPort, M>,
        CommandCode::QueryPkeys => run::<QueryPkeys, M>,
        CommandCode::QueryGids => run::<QueryGids, M>,
        CommandCode::ModifyPort => run::<ModifyPort, M>,
        CommandCode::ProcessMad => run::<ProcessMad, M>,
        CommandCode::CreateContext => run::<CreateContext, M>,
        CommandCode::DestroyContext => run::<DestroyContext, M>,
        CommandCode::RingDoorbell => run::<RingDoorbell, M>,
        CommandCode::NameContext => run::<NameContext, M>,
        CommandCode::CreatePd => run::<CreatePd, M>,
        CommandCode::DestroyPd => run::<DestroyPd, M>,
        CommandCode::RegisterMr => run::<RegisterMr, M>,
        CommandCode::DeregisterMr => run::<DeregisterMr, M>,
        CommandCode::AllocateMr => run::<AllocateMr, M>,
        CommandCode::ReregisterMr => run::<ReregisterMr, M>,
        CommandCode::AllocateMw => run::<AllocateMw, M>,
        CommandCode::DeallocateMw => run::<DeallocateMw, M>,
        CommandCode::AllocateIntegrityMr => run::<AllocateIntegrityMr, M>,
        CommandCode::TakePageFault => run::<TakePageFault, M>,
        CommandCode::MapPages => run::<MapPages, M>,
        CommandCode::UnmapPages => run::<UnmapPages, M>,
        CommandCode::RefusePages => run::<RefusePages, M>,
        CommandCode::AttachRegion => run::<AttachRegion, M>,
        CommandCode::CreateCq => run::<CreateCq, M>,
        CommandCode::DestroyCq => run::<DestroyCq, M>,
        CommandCode::ResizeCq => run::<ResizeCq, M>,
        CommandCode::ModifyCq => run::<ModifyCq, M>,
        CommandCode::CreateQp => run::<CreateQp, M>,
        CommandCode::ModifyQp => run::<ModifyQp, M>,
        CommandCode::QueryQp => run::<QueryQp, M>,
        CommandCode::ModifyQpPaths => run::<ModifyQpPaths, M>,
        CommandCode::QueryQpPaths => run::<QueryQpPaths, M>,
        CommandCode::CreateScalingQp => run::<CreateScalingQp, M>,
        CommandCode::DestroyQp => run::<DestroyQp, M>,
        CommandCode::CreateSrq => run::<CreateSrq, M>,
        CommandCode::ModifySrq => run::<ModifySrq, M>,
        CommandCode::ResizeSrq => run::<ResizeSrq, M>,
        CommandCode::QuerySrq => run::<QuerySrq, M>,
        CommandCode::DestroySrq => run::<DestroySrq, M>,
        CommandCode::AttachMulticast => run::<AttachMulticast, M>,
        CommandCode::DetachMulticast => run::<DetachMulticast, M>,
        CommandCode::CreateCounterSet => run::<CreateCounterSet, M>,
        CommandCode::BindCounterSet => run::<BindCounterSet, M>,
        CommandCode::QueryCounterSet => run::<QueryCounterSet, M>,
        CommandCode::DestroyCounterSet => run::<DestroyCounterSet, M>,
        CommandCode::CreateCompletionCounter => run::<CreateCompletionCounter, M>,
        CommandCode::AttachCompletionCounter => run::<AttachCompletionCounter, M>,
        CommandCode::ModifyCompletionCounter => run::<ModifyCompletionCounter, M>,
        CommandCode::QueryCompletionCounter => run::<QueryCompletionCounter, M>,
        CommandCode::DestroyCompletionCounter => run::<DestroyCompletionCounter, M>,
        CommandCode::CreateXrcd => run::<CreateXrcd, M>,
        CommandCode::DestroyXrcd => run::<DestroyXrcd, M>,
        CommandCode::CreateXrcSrq => run::<CreateXrcSrq, M>,
        CommandCode::CreateFlow => run::<CreateFlow, M>,
        CommandCode::DestroyFlow => run::<DestroyFlow, M>,
        CommandCode::QueryFlow => run::<QueryFlow, M>,
        CommandCode::CreateTunnelFlow => run::<CreateTunnelFlow, M>,
    };
    call(rnic, body, reply, io)
}

fn run<C: Execute, M: Memory>(
    rnic: &mut Engine,
    body: &[u8],
    reply: &mut Vec<u8>,
    io: &mut Io<'_, M>,
) -> Result<(), Cause> {
    let request = C::read_from_bytes(body).map_err(|_| Cause::CommandLength)?;
    let answer = request.execute(rnic, io)?;
    reply.extend_from_slice(answer.as_bytes());
    Ok(())
}

/// Returns an error unless a reserved field is 0.
fn reserved(field: impl IntoBytes + zerocopy::Immutable) -> Result<(), Cause> {
    if field.as_bytes().iter().any(|&byte| byte != 0) {
        return Err(Cause::ReservedField);
    }
    Ok(())
}

/// Returns the status of a command that fails for this cause.
fn status_of(cause: Cause) -> Status {
    match cause {
        Cause::CommandLength | Cause::ReservedField => Status::Malformed,
        Cause::CommandCode | Cause::QpTypeAbsent => Status::Unsupported,
        Cause::UnknownContext
        | Cause::UnknownPd
        | Cause::UnknownCq
        | Cause::UnknownQp
        | Cause::UnknownSrq
        | Cause::UnknownKey
        | Cause::WindowKey
        | Cause::NotAttached
        | Cause::UnknownCounterSet
        | Cause::UnknownCompletionCounter
        | Cause::UnknownXrcd
        | Cause::UnknownFlow
        | Cause::UnknownPort => Status::NotFound,
        Cause::InUse
        | Cause::GsiExists
        | Cause::RegionBound
        | Cause::Attached
        | Cause::CountedAlready => Status::Busy,
        Cause::LimitReached | Cause::SlotsExhausted | Cause::TranslationsExhausted => {
            Status::NoResources
        }
        Cause::PageListShape
        | Cause::PageListChunk
        | Cause::PageListUnmapped
        | Cause::PageMisaligned
        | Cause::PageUnmapped => Status::BadAddress,
        Cause::FlowExists => Status::Exists,
        Cause::Transition | Cause::CurrentState | Cause::MigrationState | Cause::CountedLate => {
            Status::BadState
        }
        Cause::ContextMismatch | Cause::PdMismatch | Cause::KernelOnly | Cause::RegionFixed => {
            Status::NotPermitted
        }
        _ => Status::InvalidArgument,
    }
}

/// Creates a reply without content.
fn done() -> Result<command::Empty, Cause> {
    Ok(command::Empty {})
}
