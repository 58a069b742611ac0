// SPDX-License-Identifier: GPL-2.0

//! Event queues: unsolicited messages from the device.
//!
//! The driver keeps each event queue filled with buffers for one event each. The device uses a
//! buffer for each event, and delays the event if there is none. A buffer goes back as soon as its
//! event has been read. So no event is lost, and a slow driver throttles the device.
//!
//! Completion events are handled in the interrupt of their vector; if the device raises them
//! without end, in a soft interrupt. Asynchronous events are handled in a work item, because their
//! handlers may sleep.

use kernel::{
    device::Device,
    prelude::*,
    sync::{
        aref::ARef,
        Arc, //
    }, //
};
use rdma::{
    event::{
        CqEvent,
        Dispatcher,
        PortEvent,
        QpEvent,
        SrqEvent, //
    },
    port::Port, //
};
use virtio::{
    Chain,
    Deferral,
    Handler,
    Virtqueue, //
};
use vrnic_wire::event::{
    AsyncEvent,
    CompletionEvent,
    EventType, //
};

use crate::{
    health::Health,
    odp::Faults, //
};

/// A handler for an event queue.
pub(crate) trait EventHandler: Handler<Context = ()> {
    /// Event that the device writes to a buffer of the queue.
    type Event: FromBytes;

    /// Handles an event.
    fn handle(&self, event: &Self::Event);
}

/// Fills an event queue with buffers. The device must be ready.
pub(crate) fn fill<H: EventHandler>(queue: &Virtqueue<H>) -> Result {
    for _ in 0..queue.capacity() {
        let chain = Chain::new(KVec::new(), size_of::<H::Event>(), (), GFP_KERNEL)?;
        queue.add(chain).map_err(|(err, _)| err)?;
    }
    queue.kick();
    Ok(())
}

/// Handles the events that have arrived, and returns their buffers to the device.
///
/// At most as many events are handled as the queue has buffers. If there are more, the device has
/// reused buffers in the meantime, and could do so forever: the rest is
/// [deferred](Virtqueue::defer).
fn drain<H: EventHandler>(queue: &Virtqueue<H>) {
    let mut returned = false;
    let mut left = queue.capacity();

    while left != 0 {
        let Some(used) = queue.pop() else {
            break;
        };
        left -= 1;
        // A buffer without a complete event is ignored.
        let event = H::Event::read_from_bytes(used.written()).ok();
        // There was room for the buffer before, so this fails only if the queue is closed. It comes
        // before the handler, which may rely on a buffer being available for the next event.
        returned |= queue.add(used.into_chain()).is_ok();
        if let Some(event) = event {
            queue.handler().handle(&event);
        }
    }
    if returned {
        queue.kick();
    }
    if left == 0 {
        queue.defer();
    }
}

/// Handler of the queue of asynchronous events.
pub(crate) struct AsyncEvents {
    dispatcher: Arc<Dispatcher>,
    health: Arc<Health>,
    faults: Arc<Faults>,
}

impl AsyncEvents {
    /// Creates the queue of asynchronous events.
    pub(crate) fn new_queue(
        dispatcher: Arc<Dispatcher>,
        health: Arc<Health>,
        faults: Arc<Faults>,
    ) -> Result<Arc<Virtqueue<Self>>> {
        let handler = Self {
            dispatcher,
            health,
            faults,
        };
        Virtqueue::new(fmt!("async"), Ok::<_, Error>(handler))
    }
}

impl Handler for AsyncEvents {
    type Context = ();

    const DEFERRAL: Deferral = Deferral::Sleeping;

    fn used(&self, queue: &Virtqueue<Self>) {
        queue.defer();
    }

    fn deferred(&self, queue: &Virtqueue<Self>) {
        drain(queue);
    }
}

/// Object of an asynchronous event, and what happened.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    Cq(CqEvent),
    Qp(QpEvent),
    Srq(SrqEvent),
    Port(PortEvent),
    Device,
    /// Not reported to users.
    PageFault,
}

/// Classifies an event by its type.
fn meaning(event_type: EventType) -> Meaning {
    match event_type {
        EventType::CqError => Meaning::Cq(CqEvent::Error),
        EventType::QpFatal => Meaning::Qp(QpEvent::Fatal),
        EventType::QpRequestError => Meaning::Qp(QpEvent::RequestError),
        EventType::QpAccessError => Meaning::Qp(QpEvent::AccessError),
        EventType::CommunicationEstablished => Meaning::Qp(QpEvent::CommunicationEstablished),
        EventType::SendQueueDrained => Meaning::Qp(QpEvent::SendQueueDrained),
        EventType::PathMigrated => Meaning::Qp(QpEvent::PathMigrated),
        EventType::PathMigrationError => Meaning::Qp(QpEvent::PathMigrationError),
        EventType::LastWqeReached => Meaning::Qp(QpEvent::LastWqeReached),
        EventType::PortActive => Meaning::Port(PortEvent::Active),
        EventType::PortError => Meaning::Port(PortEvent::Error),
        EventType::LidChange => Meaning::Port(PortEvent::LidChange),
        EventType::PkeyChange => Meaning::Port(PortEvent::PkeyChange),
        EventType::SmChange => Meaning::Port(PortEvent::SmChange),
        EventType::ClientReregister => Meaning::Port(PortEvent::ClientReregister),
        EventType::GidChange => Meaning::Port(PortEvent::GidChange),
        EventType::DeviceFatal => Meaning::Device,
        EventType::PageFault => Meaning::PageFault,
        EventType::SrqError => Meaning::Srq(SrqEvent::Error),
        EventType::SrqLimitReached => Meaning::Srq(SrqEvent::LimitReached),
    }
}

impl EventHandler for AsyncEvents {
    type Event = AsyncEvent;

    fn handle(&self, event: &AsyncEvent) {
        let number = event.number.get();
        vrnic_trace::event(self.health.dev(), event.event_type.get(), number);
        let Ok(event_type) = EventType::try_from(event.event_type.get()) else {
            dev_dbg!(
                self.health.dev(),
                "unknown event {}\n",
                event.event_type.get()
            );
            return;
        };
        let known = match meaning(event_type) {
            Meaning::Cq(event) => self.dispatcher.cq_event(number, event),
            // A receive work queue is a queue pair to the device.
            Meaning::Qp(QpEvent::Fatal) => {
                self.dispatcher.qp_event(number, QpEvent::Fatal) || self.dispatcher.wq_fatal(number)
            }
            Meaning::Qp(event) => self.dispatcher.qp_event(number, event),
            Meaning::Srq(event) => self.dispatcher.srq_event(number, event),
            Meaning::Port(event) => match Port::try_from(number) {
                Ok(port) => self.dispatcher.port_event(port, event),
                Err(_) => false,
            },
            Meaning::Device => {
                self.health.fail("it reported a fatal error");
                true
            }
            Meaning::PageFault => self.faults.serve(number),
        };
        if !known {
            dev_dbg!(
                self.health.dev(),
                "event {:?} for nobody ({})\n",
                event_type,
                number
            );
        }
    }
}

/// Handler of the queue of completion events of one vector.
pub(crate) struct CompletionEventHandler {
    dev: ARef<Device>,
    dispatcher: Arc<Dispatcher>,
    vector: u32,
}

impl CompletionEventHandler {
    /// Creates the queue of the completion events of `vector`.
    pub(crate) fn new_queue(
        dev: &Device,
        dispatcher: Arc<Dispatcher>,
        vector: u32,
    ) -> Result<Arc<Virtqueue<Self>>> {
        let handler = Self {
            dev: dev.into(),
            dispatcher,
            vector,
        };
        Virtqueue::new(fmt!("completion.{vector}"), Ok::<_, Error>(handler))
    }
}

impl Handler for CompletionEventHandler {
    type Context = ();

    const DEFERRAL: Deferral = Deferral::Atomic;

    fn used(&self, queue: &Virtqueue<Self>) {
        drain(queue);
    }

    fn deferred(&self, queue: &Virtqueue<Self>) {
        drain(queue);
    }
}

impl EventHandler for CompletionEventHandler {
    type Event = CompletionEvent;

    fn handle(&self, event: &CompletionEvent) {
        vrnic_trace::completion_event(&self.dev, self.vector, event.cqn.get());
        // A queue that is being destroyed is not found any more, and has no one waiting.
        self.dispatcher.complete(self.vector, event.cqn.get());
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_events)]
mod tests {
    use super::*;

    use kernel::{
        device,
        faux, //
    };
    use rdma::event::Objects;

    #[test]
    fn each_event_goes_to_the_object_it_names() {
        for &event_type in EventType::ALL {
            // The numbers are those of the verbs, so they survive the translation.
            let raw = u32::from(event_type.raw());
            match meaning(event_type) {
                Meaning::Cq(event) => assert_eq!(event.raw(), raw),
                Meaning::Qp(event) => assert_eq!(event.raw(), raw),
                Meaning::Srq(event) => assert_eq!(event.raw(), raw),
                Meaning::Port(event) => assert_eq!(event.raw(), raw),
                Meaning::Device => assert_eq!(event_type, EventType::DeviceFatal),
                Meaning::PageFault => assert_eq!(event_type, EventType::PageFault),
            }
        }
    }

    #[test]
    fn a_queue_that_is_not_alive_takes_no_buffers() -> Result {
        let dev = faux::Registration::new(c"vrnic-test", None)?;
        let dev: &Device<device::Bound> = dev.as_ref().as_ref();
        let queue =
            CompletionEventHandler::new_queue(dev, Objects::new(1)?.dispatcher().clone(), 0)?;
        fill(&queue)?;
        drain(&queue);
        assert!(queue.is_broken());
        Ok(())
    }
}
