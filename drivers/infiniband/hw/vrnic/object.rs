// SPDX-License-Identifier: GPL-2.0

//! Objects on the device: the commands that create and destroy them.

use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};

use kernel::{
    prelude::*,
    sync::Arc, //
};
use vrnic_wire::command::{
    reregister_flags,
    AllocateMr,
    AllocateMw,
    Command,
    CreateContext,
    CreateCq,
    CreatePd,
    CreateQp,
    CreateSrq,
    DeallocateMw,
    DeregisterMr,
    DestroyContext,
    DestroyCq,
    DestroyPd,
    DestroyQp,
    DestroySrq,
    Empty,
    RegisterMr,
    ReregisterMr, //
};

use crate::control::Control;

/// A command that destroys an object.
pub(crate) trait Destroy: Command<Reply = Empty> + Send + Sync {
    /// What the object is called.
    const OBJECT: &'static str;

    /// Whether asynchronous events name such objects.
    const HAS_EVENTS: bool;

    /// Number or key of the object.
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
    DeregisterMr { key } "memory region", events: false;
    DeallocateMw { key } "memory window", events: false;
}

/// An object on the device, which exists as long as this value: dropping it destroys the object.
pub(crate) struct Object<D: Destroy> {
    control: Arc<Control>,
    command: D,
    alive: AtomicBool,
}

impl<D: Destroy> Object<D> {
    fn new(control: &Arc<Control>, command: D) -> Self {
        Self {
            control: control.clone(),
            command,
            alive: AtomicBool::new(true),
        }
    }

    /// Number or key of the object.
    pub(crate) fn number(&self) -> u32 {
        self.command.number()
    }

    /// The device, as one gives it commands.
    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Destroys the object. Sleeps.
    ///
    /// On return the device has let go of everything that belonged to the object. A device that
    /// refuses is stopped: the kernel has done with the object, and frees its memory next.
    pub(crate) fn destroy(&self) {
        if let Err(err) = self.try_destroy() {
            self.refused(err);
        }
    }

    /// The device refuses to let go of the object, so it is stopped.
    fn refused(&self, err: Error) {
        let health = self.control.health();
        dev_err!(
            health.dev(),
            "{} {} cannot be destroyed: {:?}\n",
            D::OBJECT,
            self.number(),
            err
        );
        self.control.fail("it does not let go of an object");
    }

    /// Destroys the object unless it is in use (`EBUSY`). Sleeps.
    ///
    /// On success the device has let go of everything that belonged to the object. So it has when
    /// it failed, for then it was stopped, as it is for any other reason to refuse: nobody could
    /// ever end that. On an error the object is as before.
    pub(crate) fn try_destroy(&self) -> Result {
        if !self.alive.swap(false, Ordering::Relaxed) {
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
            Err(EBUSY) => {
                self.alive.store(true, Ordering::Relaxed);
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

/// Creates a context, and returns it with its doorbell page.
pub(crate) fn create_context(
    control: &Arc<Control>,
    request: &CreateContext,
) -> Result<(Object<DestroyContext>, u32)> {
    let reply = control.execute(request)?;
    let destroy = DestroyContext {
        context: reply.context,
        ..Default::default()
    };
    Ok((Object::new(control, destroy), reply.doorbell_page.get()))
}

/// Creates a protection domain in a context.
pub(crate) fn create_pd(control: &Arc<Control>, context: u32) -> Result<Object<DestroyPd>> {
    let reply = control.execute(&CreatePd {
        context: context.into(),
        ..Default::default()
    })?;
    let destroy = DestroyPd {
        pd: reply.pd,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Creates a completion queue.
pub(crate) fn create_cq(control: &Arc<Control>, request: &CreateCq) -> Result<Object<DestroyCq>> {
    let reply = control.execute(request)?;
    let destroy = DestroyCq {
        cqn: reply.cqn,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Creates a queue pair, and returns it with its doorbell slot.
pub(crate) fn create_qp(
    control: &Arc<Control>,
    request: &CreateQp,
) -> Result<(Object<DestroyQp>, u32)> {
    let reply = control.execute(request)?;
    let destroy = DestroyQp {
        qpn: reply.qpn,
        ..Default::default()
    };
    Ok((Object::new(control, destroy), reply.slot.get()))
}

/// Creates a shared receive queue.
pub(crate) fn create_srq(
    control: &Arc<Control>,
    request: &CreateSrq,
) -> Result<Object<DestroySrq>> {
    let reply = control.execute(request)?;
    let destroy = DestroySrq {
        srqn: reply.srqn,
        ..Default::default()
    };
    Ok(Object::new(control, destroy))
}

/// Registers a memory region; its number is its key.
pub(crate) fn register_mr(
    control: &Arc<Control>,
    request: &RegisterMr,
) -> Result<Object<DeregisterMr>> {
    let reply = control.execute(request)?;
    let destroy = DeregisterMr {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}

/// Changes a memory region, whose number may be another afterwards. `request` names the region by
/// nothing yet.
pub(crate) fn reregister_mr(mr: &mut Object<DeregisterMr>, request: &ReregisterMr) -> Result {
    let reply = mr.control.execute(&ReregisterMr {
        pd: mr.command.pd,
        key: mr.command.key,
        ..*request
    })?;
    mr.command.key = reply.key;
    if request.flags.get() & reregister_flags::PD != 0 {
        mr.command.pd = request.new_pd;
    }
    Ok(())
}

/// Allocates a memory window; its number is its first key.
pub(crate) fn allocate_mw(
    control: &Arc<Control>,
    request: &AllocateMw,
) -> Result<Object<DeallocateMw>> {
    let reply = control.execute(request)?;
    let destroy = DeallocateMw {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}

/// Allocates a memory region for fast registration; its number is its first key.
pub(crate) fn allocate_mr(
    control: &Arc<Control>,
    request: &AllocateMr,
) -> Result<Object<DeregisterMr>> {
    let reply = control.execute(request)?;
    let destroy = DeregisterMr {
        pd: request.pd,
        key: reply.key,
    };
    Ok(Object::new(control, destroy))
}
