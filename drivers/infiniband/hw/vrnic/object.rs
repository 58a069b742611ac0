// SPDX-License-Identifier: GPL-2.0

//! Objects on the device, and the commands that create and destroy them.

use kernel::{
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc, //
    }, //
};
use vrnic_wire::command::{
    reregister_flags,
    AllocateIntegrityMr,
    AllocateMr,
    AllocateMw,
    Command,
    CreateCompletionCounter,
    CreateContext,
    CreateCq,
    CreateFlow,
    CreatePd,
    CreateQp,
    CreateScalingQp,
    CreateSrq,
    CreateTunnelFlow,
    CreateXrcSrq,
    CreateXrcd,
    DeallocateMw,
    DeregisterMr,
    DestroyCompletionCounter,
    DestroyContext,
    DestroyCq,
    DestroyFlow,
    DestroyPd,
    DestroyQp,
    DestroySrq,
    DestroyXrcd,
    Empty,
    RegisterMr,
    ReregisterMr, //
};

use crate::control::Control;

/// A command that destroys an object.
pub(crate) trait Destroy: Command<Reply = Empty> + Send + Sync {
    /// Name of the kind of object.
    const OBJECT: &'static str;

    /// Whether there are asynchronous events for such objects.
    const HAS_EVENTS: bool;

    /// Returns the number or key of the object.
    fn number(&self) -> u32;
}

macro_rules! destroy {
    ($($command:ident { $number:ident } $object:literal, events: $events:literal;)*) => {
        $(impl Destroy for $command {
            const OBJECT: &'static str = $object;
            const HAS_EVENTS: bool = $events;

            fn number(&self) -> u32 {
                self.$number.get()
            }
        })*
    };
}

destroy! {
    DestroyContext { context } "context", events: false;
    DestroyPd { pd } "protection domain", events: false;
    DestroyCq { cqn } "completion queue", events: true;
    DestroyQp { qpn } "queue pair", events: true;
    DestroySrq { srqn } "shared receive queue", events: true;
    DestroyXrcd { xrcdn } "XRC domain", events: false;
    DestroyFlow { flow } "flow", events: false;
    DestroyCompletionCounter { counter } "completion counter", events: false;
    DeregisterMr { key } "memory region", events: false;
    DeallocateMw { key } "memory window", events: false;
}

/// A command that creates an object.
pub(crate) trait Create: Command {
    /// The command that destroys the object.
    type Destroy: Destroy;

    /// Returns the command that destroys the object again.
    fn undo(&self, reply: &Self::Reply) -> Self::Destroy;
}

macro_rules! create {
    ($($create:ident => |$request:pat_param, $reply:ident| $destroy:ident $members:tt;)*) => {
        $(impl Create for $create {
            type Destroy = $destroy;

            fn undo(&self, $reply: &Self::Reply) -> $destroy {
                let $request = self;
                $destroy $members
            }
        })*
    };
}

create! {
    CreateContext => |_, reply| DestroyContext { context: reply.context, ..Default::default() };
    CreatePd => |_, reply| DestroyPd { pd: reply.pd, ..Default::default() };
    CreateCq => |_, reply| DestroyCq { cqn: reply.cqn, ..Default::default() };
    CreateQp => |_, reply| DestroyQp { qpn: reply.qpn, ..Default::default() };
    CreateScalingQp => |_, reply| DestroyQp { qpn: reply.qpn, ..Default::default() };
    CreateSrq => |_, reply| DestroySrq { srqn: reply.srqn, ..Default::default() };
    CreateXrcSrq => |_, reply| DestroySrq { srqn: reply.srqn, ..Default::default() };
    CreateXrcd => |_, reply| DestroyXrcd { xrcdn: reply.xrcdn, ..Default::default() };
    CreateFlow => |_, reply| DestroyFlow { flow: reply.flow, ..Default::default() };
    CreateTunnelFlow => |_, reply| DestroyFlow { flow: reply.flow, ..Default::default() };
    CreateCompletionCounter => |_, reply| DestroyCompletionCounter {
        counter: reply.counter,
        ..Default::default()
    };
    RegisterMr => |request, reply| DeregisterMr { pd: request.pd, key: reply.key };
    AllocateMr => |request, reply| DeregisterMr { pd: request.pd, key: reply.key };
    AllocateIntegrityMr => |request, reply| DeregisterMr { pd: request.pd, key: reply.key };
    AllocateMw => |request, reply| DeallocateMw { pd: request.pd, key: reply.key };
}

/// An object on the device. Dropping it destroys the object.
pub(crate) struct Object<D: Destroy> {
    control: Arc<Control>,
    command: D,
    alive: Atomic<bool>,
}

impl<D: Destroy> Object<D> {
    /// Returns the number or key of the object.
    pub(crate) fn number(&self) -> u32 {
        self.command.number()
    }

    /// Returns the control queue of the object's device.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Destroys the object. Sleeps.
    ///
    /// On return the device no longer uses anything that belonged to the object. If the device
    /// refuses, it is stopped, because the kernel frees the object's memory next.
    pub(crate) fn destroy(&self) {
        // The only possible error is that the object is in use, which is excluded here.
        let _ = self.try_destroy(false);
    }

    /// Stops the device because it refuses to destroy the object.
    fn refused(&self, err: Error) {
        let health = self.control.health();
        dev_err!(
            health.dev(),
            "{} {} cannot be destroyed: {:?}\n",
            D::OBJECT,
            self.number(),
            err
        );
        self.control.fail("it does not destroy an object");
    }

    /// Destroys the object. If it `may_be` in use and is, returns `EBUSY`, and the object remains
    /// as before. Sleeps.
    ///
    /// On success the device no longer uses anything that belonged to the object. This includes the
    /// case that the device failed and was stopped. If the device refuses for any other reason than
    /// use, it is stopped, because no one could ever resolve that.
    pub(crate) fn try_destroy(&self, may_be: bool) -> Result {
        if !self.alive.xchg(false, Relaxed) {
            return Ok(());
        }
        match self.control.execute_surely(&self.command) {
            Ok(Empty {}) => {
                if D::HAS_EVENTS {
                    self.control.flush_events();
                }
                Ok(())
            }
            Err(_) if self.control.is_stopped() => Ok(()),
            Err(EBUSY) if may_be => {
                self.alive.store(true, Relaxed);
                Err(EBUSY)
            }
            Err(err) => {
                self.refused(err);
                Ok(())
            }
        }
    }
}

impl<D: Destroy> Drop for Object<D> {
    fn drop(&mut self) {
        self.destroy();
    }
}

/// Creates an object, and returns it with the device's reply.
pub(crate) fn create<C: Create>(
    control: &Arc<Control>,
    request: &C,
) -> Result<(Object<C::Destroy>, C::Reply)> {
    let reply = control.execute(request)?;
    let object = Object {
        control: control.clone(),
        command: request.undo(&reply),
        alive: Atomic::new(true),
    };
    Ok((object, reply))
}

impl Object<DeregisterMr> {
    /// Returns the protection domain of the memory region.
    pub(crate) fn pd(&self) -> u32 {
        self.command.pd.get()
    }

    /// Changes a memory region, whose key may be different afterwards. This fills in the members of
    /// `request` that identify the region.
    pub(crate) fn reregister(&mut self, request: &ReregisterMr) -> Result {
        let reply = self.control.execute(&ReregisterMr {
            pd: self.command.pd,
            key: self.command.key,
            ..*request
        })?;
        self.command.key = reply.key;
        if request.flags.get() & reregister_flags::PD != 0 {
            self.command.pd = request.new_pd;
        }
        Ok(())
    }
}
