// SPDX-License-Identifier: GPL-2.0

//! The control queue: commands to the device and their replies.
//!
//! [`Control::execute`] sends a command and sleeps until the device has replied. Any number of
//! threads may call it concurrently. When it returns, the device is done with the command for good:
//! it has replied, or it was stopped. So the caller may free all memory that the command refers to,
//! even after an error.
//!
//! A command needs memory for itself and its reply. Destroying an object must not fail for lack of
//! memory, so [`Control::execute_surely`] falls back on reserved memory, one command at a time. A
//! [`Prepared`] command has memory of its own.
//!
//! The device is stopped if it does not reply within [`TIMEOUT_S`] seconds, says that it needs a
//! reset, or is gone. From then on every command fails at once with `EIO`, and no objects exist on
//! the device any more.

use core::marker::PhantomData;

use kernel::{
    alloc::Flags,
    prelude::*,
    sync::{
        new_condvar,
        new_spinlock_irq,
        Arc,
        CondVar,
        SpinLockIrq, //
    },
    time::msecs_to_jiffies, //
};
use virtio::Completion;
use virtio::{
    AnyVirtqueue,
    Chain,
    Handler,
    Stopper,
    Used,
    Virtqueue, //
};
use vrnic_wire::command::{
    Command,
    CommandHeader,
    DestroyPd,
    Empty,
    ReplyHeader,
    RingDoorbell,
    Status, //
};

use crate::health::Health;

/// Time in seconds within which the device must reply to a command.
///
/// Commands wait only for CPU time of the host, so this is generous.
pub(crate) const TIMEOUT_S: u32 = 30;

/// Interval in seconds at which a waiting command checks whether the device has failed.
const CHECK_INTERVAL_S: u32 = 1;

/// Virtqueue entries of a command: its request and its reply.
const ENTRIES_PER_COMMAND: usize = 2;

/// How a command came back.
enum Returned {
    /// The device has replied.
    Used(Used<Context>),
    /// The device was stopped first.
    Cancelled(KBox<Chain<Context>>),
}

/// The thread that waits for a command, and the result that it waits for.
#[pin_data]
pub(crate) struct Waiter {
    /// The result. It contains a reference to this structure, so the waiter must take it out.
    #[pin]
    returned: SpinLockIrq<Option<Returned>>,
    /// Completed each time the command comes back, for the single waiter.
    #[pin]
    done: Completion,
}

impl Waiter {
    fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            returned <- new_spinlock_irq!(None),
            done <- Completion::new(),
        })
    }

    /// Takes the result, waiting for `done` if it is not there yet. Sleeps.
    fn take(&self) -> Returned {
        loop {
            if let Some(returned) = self.returned.lock().take() {
                return returned;
            }
            self.done.wait_for_completion();
        }
    }

    /// Passes the result to the waiter.
    fn finish(&self, returned: Returned) {
        *self.returned.lock() = Some(returned);
        self.done.complete();
    }
}

/// Memory for a command and its reply.
struct CommandMemory {
    chain: KBox<Chain<Context>>,
    waiter: Arc<Waiter>,
}

impl CommandMemory {
    /// Allocates memory for commands of the same size as `C`, with replies of the same size.
    fn new<C: Command>(flags: Flags) -> Result<Self> {
        let waiter = Arc::pin_init(Waiter::new(), flags)?;
        let chain = Chain::new(
            KVec::from_elem(0, size_of::<CommandHeader>() + size_of::<C>(), flags)?,
            size_of::<ReplyHeader>() + size_of::<C::Reply>(),
            Context::Waiter(waiter.clone()),
            flags,
        )?;
        Ok(Self { chain, waiter })
    }
}

/// A command with memory allocated in advance.
pub(crate) struct Prepared<C: Command> {
    /// [`None`] during execution of the command.
    memory: Option<CommandMemory>,
    _command: PhantomData<C>,
}

impl<C: Command> Prepared<C> {
    /// Allocates the memory.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            memory: Some(CommandMemory::new::<C>(GFP_KERNEL)?),
            _command: PhantomData,
        })
    }

    /// Like [`Control::execute`], but does not allocate memory, nor wait for anything that does.
    pub(crate) fn execute(&mut self, control: &Control, request: &C) -> Result<C::Reply> {
        let memory = self.memory.take().ok_or(EIO)?;
        let (result, memory) = control.execute_in(memory, request);
        self.memory = Some(memory);
        result
    }
}

/// All commands that destroy an object or clear an entry have the size of this one.
type AnyDestroy = DestroyPd;

/// The owner of a command.
pub(crate) enum Context {
    /// A thread in [`Control::execute`].
    Waiter(Arc<Waiter>),
    /// The command rings a doorbell, and has no waiter.
    Doorbell,
}

/// State of the control queue's slots.
struct Slots {
    /// Number of commands that can still be sent.
    free: usize,
    /// The command of [`Control::ring`]; [`None`] while the device has it.
    doorbell: Option<KBox<Chain<Context>>>,
    /// A doorbell to ring as soon as that command has come back.
    deferred: Option<RingDoorbell>,
    /// Reserved memory for a command of [`Control::execute_surely`]; [`None`] while it is in use.
    reserve: Option<CommandMemory>,
}

/// Handler of the control queue.
#[pin_data]
pub(crate) struct Replies {
    /// May be locked in interrupt context. No other lock is taken while it is held.
    #[pin]
    slots: SpinLockIrq<Slots>,
    /// Signals that [`Slots::free`] has grown.
    #[pin]
    freed: CondVar,
    /// Signals that [`Slots::reserve`] is available again.
    #[pin]
    reserve_is_back: CondVar,
}

impl Replies {
    /// Reserves room for a command in the queue, and waits for it if necessary.
    fn reserve(&self) {
        let mut slots = self.slots.lock();
        while slots.free == 0 {
            self.freed.wait(&mut slots);
        }
        slots.free -= 1;
    }

    /// Releases the room of a command.
    fn release(&self) {
        self.slots.lock().free += 1;
        self.freed.notify_one();
    }

    /// Takes the reserved memory, and waits for it if necessary. The caller must give it back.
    fn take_reserve(&self) -> CommandMemory {
        let mut slots = self.slots.lock();
        loop {
            match slots.reserve.take() {
                Some(memory) => return memory,
                None => self.reserve_is_back.wait(&mut slots),
            }
        }
    }

    fn give_reserve_back(&self, memory: CommandMemory) {
        self.slots.lock().reserve = Some(memory);
        self.reserve_is_back.notify_one();
    }

    /// Takes the doorbell command back, and returns the doorbell that it must ring next.
    fn doorbell_done(&self, chain: KBox<Chain<Context>>) -> Option<RingDoorbell> {
        let mut slots = self.slots.lock();
        slots.doorbell = Some(chain);
        slots.deferred.take()
    }

    /// Sends the doorbell command. If the command is in flight, records that it must be sent again.
    fn ring(&self, queue: &Virtqueue<Self>, request: RingDoorbell) {
        let mut chain = {
            let mut slots = self.slots.lock();
            match slots.doorbell.take() {
                Some(chain) => chain,
                None => {
                    // The device checks all slots of a context on each ring, so only the last one
                    // is kept.
                    slots.deferred = Some(request);
                    return;
                }
            }
        };

        write_request(chain.readable_mut(), &request);
        match queue.add(chain) {
            Ok(()) => queue.kick(),
            // The queue is stopped, so no one needs the doorbell.
            Err((_, chain)) => self.slots.lock().doorbell = Some(chain),
        }
    }
}

impl Handler for Replies {
    type Context = Context;

    fn used(&self, queue: &Virtqueue<Self>) {
        while let Some(used) = queue.pop() {
            let waiter = match used.context() {
                Context::Waiter(waiter) => waiter.clone(),
                Context::Doorbell => {
                    if let Some(request) = self.doorbell_done(used.into_chain()) {
                        self.ring(queue, request);
                    }
                    continue;
                }
            };
            self.release();
            waiter.finish(Returned::Used(used));
        }
    }

    fn cancelled(&self, chain: KBox<Chain<Context>>) {
        match chain.context() {
            Context::Waiter(waiter) => {
                let waiter = waiter.clone();
                self.release();
                waiter.finish(Returned::Cancelled(chain));
            }
            Context::Doorbell => {
                self.doorbell_done(chain);
            }
        }
    }
}

/// Creates the control queue, for use in [`virtio::Virtqueues`].
pub(crate) fn new_queue() -> Result<Arc<Virtqueue<Replies>>> {
    let len = size_of::<CommandHeader>() + size_of::<RingDoorbell>();
    let doorbell = Chain::new(
        KVec::from_elem(0, len, GFP_KERNEL)?,
        size_of::<ReplyHeader>(),
        Context::Doorbell,
        GFP_KERNEL,
    )?;

    let reserve = CommandMemory::new::<AnyDestroy>(GFP_KERNEL)?;

    Virtqueue::new(
        fmt!("control"),
        pin_init!(Replies {
            slots <- new_spinlock_irq!(Slots {
                free: 0,
                doorbell: Some(doorbell),
                deferred: None,
                reserve: Some(reserve),
            }),
            freed <- new_condvar!(),
            reserve_is_back <- new_condvar!(),
        }),
    )
}

/// Executes commands on the device.
pub(crate) struct Control {
    queue: Arc<Virtqueue<Replies>>,
    /// Queue of asynchronous events. It is type-erased because its handler owns tables of objects
    /// that own a `Control`. If its type were known here, its drop glue would contain itself, in
    /// functions whose names are too long for objtool.
    events: Arc<dyn AnyVirtqueue>,
    stopper: Stopper,
    health: Arc<Health>,
}

impl Control {
    /// Starts to use `queue`. It and the queue of asynchronous `events` must be live.
    ///
    /// `ENODEV` if the queue is too small for a command and a doorbell.
    pub(crate) fn new(
        queue: Arc<Virtqueue<Replies>>,
        events: Arc<dyn AnyVirtqueue>,
        stopper: Stopper,
        health: Arc<Health>,
    ) -> Result<Arc<Self>> {
        // One command is reserved for doorbells.
        let commands = (queue.capacity() / ENTRIES_PER_COMMAND).saturating_sub(1);
        if commands == 0 {
            dev_err!(
                health.dev(),
                "control queue of {} entries is too small\n",
                queue.capacity()
            );
            return Err(ENODEV);
        }
        queue.handler().slots.lock().free = commands;

        Ok(Arc::new(
            Self {
                queue,
                events,
                stopper,
                health,
            },
            GFP_KERNEL,
        )?)
    }

    /// Executes a command on the device and returns its reply. Sleeps uninterruptibly.
    ///
    /// If the device rejects the command, this returns the error given by [`errno`], and the
    /// command has changed nothing. If the device failed before it replied, or its reply is
    /// invalid, this returns `EIO` and the device is stopped, because its state is unknown.
    pub(crate) fn execute<C: Command>(&self, request: &C) -> Result<C::Reply> {
        self.execute_in(CommandMemory::new::<C>(GFP_KERNEL)?, request)
            .0
    }

    /// Like [`execute`](Self::execute), but neither fails for lack of memory nor waits for memory.
    pub(crate) fn execute_surely<C: Command<Reply = Empty>>(&self, request: &C) -> Result<Empty> {
        const { assert!(size_of::<C>() == size_of::<AnyDestroy>()) };

        if let Ok(memory) = CommandMemory::new::<C>(GFP_NOWAIT) {
            return self.execute_in(memory, request).0;
        }
        let replies = self.queue.handler();
        let (result, memory) = self.execute_in(replies.take_reserve(), request);
        replies.give_reserve_back(memory);
        result
    }

    /// Executes a command in memory of its size, which is returned.
    fn execute_in<C: Command>(
        &self,
        memory: CommandMemory,
        request: &C,
    ) -> (Result<C::Reply>, CommandMemory) {
        let CommandMemory { mut chain, waiter } = memory;
        if self.is_stopped() {
            return (Err(EIO), CommandMemory { chain, waiter });
        }
        write_request(chain.readable_mut(), request);
        self.queue.handler().reserve();
        if let Err((err, chain)) = self.queue.add(chain) {
            self.queue.handler().release();
            // Without commands, existing objects can no longer be destroyed.
            if err != ENODEV && self.queue.is_broken() {
                self.fail("its control queue is broken");
            }
            let err = if err == ENODEV { EIO } else { err };
            return (Err(err), CommandMemory { chain, waiter });
        }
        self.queue.kick();

        let begin = vrnic_trace::command_begins();
        let (result, chain) = match self.wait(&waiter) {
            Returned::Used(used) => {
                let reply = parse_reply::<C>(used.written());
                let reply = reply.unwrap_or_else(|| Err(self.nonsense()));
                (reply, used.into_chain())
            }
            Returned::Cancelled(chain) => (Err(EIO), chain),
        };
        let error = result.as_ref().err().copied();
        vrnic_trace::command(self.health.dev(), C::CODE.raw(), error, begin);
        let result = result.inspect_err(|err| {
            dev_dbg!(
                self.health.dev(),
                "command {:?} failed: {:?}\n",
                C::CODE,
                err
            );
        });
        (result, CommandMemory { chain, waiter })
    }

    /// Waits until the device is done with a command, or stops the device.
    fn wait(&self, waiter: &Waiter) -> Returned {
        let interval = msecs_to_jiffies(CHECK_INTERVAL_S * 1000);

        for _ in 0..TIMEOUT_S / CHECK_INTERVAL_S {
            if waiter.done.wait_for_completion_timeout(interval) {
                return waiter.take();
            }
            if self.health.has_failed() || self.queue.is_broken() || self.stopper.device_failed() {
                break;
            }
        }
        self.health.fail("it does not answer commands");
        self.stopper.stop();
        // By now every command has come back or was cancelled, so this does not block.
        waiter.done.wait_for_completion();
        waiter.take()
    }

    /// Rings the doorbell of a kernel context by command. May be called in any context.
    ///
    /// All callers must use the same context, because rings in quick succession are merged into
    /// one.
    pub(crate) fn ring(&self, context: u32, slot: u32) {
        let request = RingDoorbell {
            context: context.into(),
            slot: slot.into(),
        };
        self.queue.handler().ring(&self.queue, request);
    }

    /// Handles all asynchronous events that arrived before the last reply. Sleeps; must not be
    /// called by the handler of such an event.
    ///
    /// Must be called after an object was destroyed and before its number is reused. Otherwise an
    /// event of the old object could be taken for one of the new object.
    pub(crate) fn flush_events(&self) {
        self.events.flush_deferred();
    }

    /// Returns the health of the device.
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    /// Checks whether the device has failed, and stops it if so. Returns whether it is stopped.
    /// Sleeps.
    pub(crate) fn check(&self) -> bool {
        if !self.health.has_failed() && self.stopper.device_failed() {
            self.health.fail("it is gone or has been reset");
        }
        self.is_stopped()
    }

    /// Stops the device after a violation of the protocol. Sleeps.
    pub(crate) fn fail(&self, why: &str) {
        self.health.fail(why);
        self.stopper.stop();
    }

    /// Stops the device after an invalid reply. Sleeps. Returns the error for the caller.
    pub(crate) fn nonsense(&self) -> Error {
        self.fail("it sent an invalid reply");
        EIO
    }

    /// Returns whether the device failed and therefore has no objects any more. Stops the device if
    /// that has not happened yet. Sleeps.
    pub(crate) fn is_stopped(&self) -> bool {
        let failed = self.health.has_failed();
        if failed {
            self.stopper.stop();
        }
        failed
    }
}

/// Writes a command to `message`, which has the size of its header and request.
fn write_request<C: Command>(message: &mut [u8], request: &C) {
    let header = CommandHeader {
        code: C::CODE.raw().into(),
        reserved: 0.into(),
        // CAST: Requests are shorter than `MAX_REQUEST`.
        length: (size_of::<C>() as u32).into(),
    };
    let parts = Iterator::chain(header.as_bytes().iter(), request.as_bytes());
    for (to, from) in message.iter_mut().zip(parts) {
        *to = *from;
    }
}

/// Parses the reply to a command; [`None`] if it is invalid.
fn parse_reply<C: Command>(message: &[u8]) -> Option<Result<C::Reply>> {
    let (header, body) = ReplyHeader::read_from_prefix(message).ok()?;

    if let Err(err) = errno(Status::try_from(header.status.get()).ok()?) {
        return Some(Err(err));
    }
    let length = header.length.get() as usize;
    if length < C::SHORTEST_REPLY {
        return None;
    }
    // An older device leaves out limits that later features added.
    let mut reply: C::Reply = zerocopy::FromZeros::new_zeroed();
    reply
        .as_mut_bytes()
        .get_mut(..length)?
        .copy_from_slice(body.get(..length)?);
    Some(Ok(reply))
}

/// Returns the error for the status of a reply.
fn errno(status: Status) -> Result {
    match status {
        Status::Ok => Ok(()),
        Status::Unsupported => Err(EOPNOTSUPP),
        Status::Malformed | Status::InvalidArgument | Status::BadState => Err(EINVAL),
        Status::NotFound => Err(ENOENT),
        Status::Busy => Err(EBUSY),
        Status::NoResources => Err(ENOMEM),
        Status::BadAddress => Err(EFAULT),
        Status::NotPermitted => Err(EPERM),
        Status::DeviceFailed => Err(EIO),
        Status::Exists => Err(EEXIST),
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_control)]
mod tests {
    use super::*;

    use vrnic_wire::command::{
        CreatePd,
        DeviceLimits,
        PdCreated,
        QueryDevice, //
    };

    #[test]
    fn nobody_reads_the_clock_if_nobody_traces() {
        assert!(vrnic_trace::command_begins().is_none());
    }

    fn reply(status: u32, length: u32, body: &[u8]) -> Result<KVec<u8>> {
        let header = ReplyHeader {
            status: status.into(),
            length: length.into(),
            vendor_error: 0.into(),
            reserved: 0.into(),
        };
        let mut message = KVec::new();
        message.extend_from_slice(header.as_bytes(), GFP_KERNEL)?;
        message.extend_from_slice(body, GFP_KERNEL)?;
        Ok(message)
    }

    #[test]
    fn a_command_is_header_and_request() {
        let mut message = [0; 16];
        let request = CreatePd {
            context: 0x0403_0201.into(),
            reserved: 0.into(),
        };
        write_request(&mut message, &request);
        assert_eq!(message, [0x20, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]);
    }

    #[test]
    fn a_reply_is_read() -> Result {
        let created = parse_reply::<CreatePd>(&reply(0, 8, &[9, 0, 0, 0, 0, 0, 0, 0])?);
        assert_eq!(created.ok_or(EIO)??.pd.get(), 9);
        assert!(parse_reply::<DestroyPd>(&reply(0, 0, &[])?).is_some_and(|reply| reply.is_ok()));
        Ok(())
    }

    #[test]
    fn an_older_device_reports_fewer_limits() -> Result {
        let limits = |length: u32, body: &[u8]| -> Result<Option<Result<DeviceLimits>>> {
            Ok(parse_reply::<QueryDevice>(&reply(0, length, body)?))
        };
        let body = [1; size_of::<DeviceLimits>()];

        let read = limits(116, &body)?.ok_or(EIO)??;
        assert_eq!(read.max_xrcd.get(), 0x0101_0101);
        assert_eq!(read.max_rate_limit.get(), 0);
        assert!(limits(111, &body)?.is_none());
        assert!(limits(116, &body[..115])?.is_none());
        assert!(limits(size_of::<DeviceLimits>() as u32 + 1, &[1; 256])?.is_none());
        Ok(())
    }

    #[test]
    fn nonsense_is_no_refusal() -> Result {
        let body = [0; size_of::<PdCreated>()];
        let makes_sense = |message: &[u8]| parse_reply::<CreatePd>(message).is_some();

        // Nothing, half a header, half a body, a wrong length, an unknown status.
        assert!(!makes_sense(&[]));
        assert!(!makes_sense(&[0; 15]));
        assert!(!makes_sense(&reply(0, 8, &body[..7])?));
        assert!(!makes_sense(&reply(0, 7, &body)?));
        assert!(!makes_sense(&reply(0, 9, &body)?));
        assert!(!makes_sense(&reply(!0, 8, &body)?));
        assert!(makes_sense(&reply(Status::DeviceFailed.raw(), 0, &[])?));
        Ok(())
    }

    #[test]
    fn each_status_has_the_errno_of_the_standard() -> Result {
        let table = [
            (Status::Unsupported, EOPNOTSUPP),
            (Status::Malformed, EINVAL),
            (Status::InvalidArgument, EINVAL),
            (Status::NotFound, ENOENT),
            (Status::Busy, EBUSY),
            (Status::NoResources, ENOMEM),
            (Status::BadAddress, EFAULT),
            (Status::BadState, EINVAL),
            (Status::NotPermitted, EPERM),
            (Status::DeviceFailed, EIO),
            (Status::Exists, EEXIST),
        ];
        assert_eq!(table.len() + 1, Status::ALL.len());
        for (status, error) in table {
            let message = reply(status.raw(), 0, &[])?;
            let refused = parse_reply::<CreatePd>(&message).and_then(Result::err);
            assert_eq!(refused, Some(error));
        }
        Ok(())
    }
}
