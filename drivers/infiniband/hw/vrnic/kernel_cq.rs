// SPDX-License-Identifier: GPL-2.0

//! Completion queues that the kernel polls: completions that the device wrote, and requests that it
//! did not complete.

use kernel::{
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode,
        RBTreeNodeReservation, //
    },
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use rdma::{
    wc::{
        Completion,
        Completions,
        Extra,
        NetworkHeader,
        Opcode,
        Source,
        Status, //
    },
    wr::Continuation, //
};
use vrnic_wire::completion::{
    self,
    flags,
    packet_flags,
    Cqe,
    LidSource, //
};

use crate::{
    control::TIMEOUT_S,
    health::INTERVAL_MS,
    kernel_qp::{
        KernelRings,
        Name,
        Side,
        WorkRing, //
    },
};

mod ring;

pub(crate) use ring::CompletionRing;

/// A queue pair of the kernel whose completions arrive in this queue.
pub(crate) struct PolledQp {
    rings: Arc<KernelRings>,
    send: bool,
    receive: bool,
}

impl PolledQp {
    fn new(rings: &Arc<KernelRings>, side: Side) -> Self {
        Self {
            rings: rings.clone(),
            send: side == Side::Send,
            receive: side == Side::Receive,
        }
    }

    fn has(&self, side: Side) -> bool {
        match side {
            Side::Send => self.send,
            Side::Receive => self.receive,
        }
    }

    /// Forgets the queue pair's completions in `ring`, where its number is `qpn`.
    fn forget(&self, qpn: u32, ring: &CompletionRing) -> Result {
        ring.forget(qpn, |wr_id| {
            let name = Name::from_wire(wr_id);
            // The device may have forged the name.
            if let Some(name) = name.ok().filter(|name| self.has(name.side)) {
                self.rings.drop_completion(name);
            }
        })
    }

    /// Returns the work rings whose completions arrive in this queue.
    fn rings(&self) -> impl Iterator<Item = (Side, &SpinLockIrq<WorkRing>)> {
        [Side::Send, Side::Receive]
            .into_iter()
            .filter(|&side| self.has(side))
            .map(|side| (side, self.rings.ring(side)))
    }
}

/// Memory for a queue pair's place in the table of a completion queue.
pub(crate) type Room = RBTreeNodeReservation<u32, PolledQp>;

/// Number of checks after which a device that owes flushes but completes nothing has failed.
const PATIENCE: u32 = TIMEOUT_S * 1000 / INTERVAL_MS;

/// State of a completion queue that the kernel polls.
pub(crate) struct Polled {
    ring: CompletionRing,
    /// Queue pairs whose completions arrive here, by number.
    qps: RBTree<u32, PolledQp>,
    /// Whether the user has asked for an event and has not polled since.
    waits: bool,
    /// Whether the user has found the queue empty since the last check.
    dry: bool,
}

impl Polled {
    /// Creates the state of a queue with this `ring`. It has no queue pairs yet.
    pub(crate) fn new(ring: CompletionRing) -> Self {
        Self {
            ring,
            qps: RBTree::new(),
            waits: false,
            dry: false,
        }
    }

    /// Returns the index of the next completion.
    pub(crate) fn consumer(&self) -> u32 {
        self.ring.consumer()
    }

    /// Moves completions that the device wrote to `out`, until there are no more or `out` is full.
    /// `EIO` if a completion is for no request, or for a request that is not due.
    ///
    /// If the device `has_stopped`, all other requests are flushed afterwards. After an error, what
    /// remains in the ring is ignored, so it does not delay the flush.
    pub(crate) fn poll(&mut self, out: &mut Completions<'_>, has_stopped: bool) -> Result {
        let result = self.take(out);
        if has_stopped {
            if result.is_err() {
                self.ring.close();
            }
            self.flush(out);
        }
        result
    }

    /// Handles the ring for [`poll`](Self::poll).
    fn take(&mut self, out: &mut Completions<'_>) -> Result {
        let mut result = Ok(());

        self.waits = false;
        while result.is_ok() && !out.is_full() {
            let Some(cqe) = self.ring.take()? else {
                self.dry = true;
                break;
            };
            result = self.resolve(&cqe).map(|(request, completion)| {
                // Completions of a queue pair that is gone are dropped.
                let _ = out.push(request, &completion);
            });
        }
        self.ring.release()?;
        result
    }

    /// Asks for an event. Returns whether a completion had already arrived.
    pub(crate) fn arm(&mut self, solicited_only: bool) -> Result<bool> {
        self.waits = true;
        self.ring.arm(solicited_only)
    }

    /// Checks whether the device flushes requests on queue pairs in error. Returns `true` if either
    /// the completions or their event do not arrive.
    ///
    /// Must be called every [`INTERVAL_MS`]. Completions that a user who does not wait for an event
    /// leaves in the ring are not the device's fault.
    pub(crate) fn owes_flushes(&mut self) -> Result<bool> {
        let dry = core::mem::take(&mut self.dry);
        if !(dry || self.waits || self.ring.is_empty()?) {
            return Ok(false);
        }
        let mut rings = self.qps.values().flat_map(PolledQp::rings);
        Ok(rings.any(|(_, ring)| ring.lock().look() >= PATIENCE))
    }

    /// Registers `rings` to get the completions of one side of queue pair `qpn`. `EIO` if another
    /// queue pair that is not being destroyed has that number.
    pub(crate) fn attach(
        &mut self,
        qpn: u32,
        side: Side,
        rings: &Arc<KernelRings>,
        room: Room,
    ) -> Result {
        match self.qps.get_mut(&qpn) {
            Some(qp) if Arc::ptr_eq(&qp.rings, rings) => match side {
                Side::Send => qp.send = true,
                Side::Receive => qp.receive = true,
            },
            Some(qp) if !qp.rings.is_ending() => return Err(EIO),
            Some(qp) => {
                // The device reused the number of a queue pair that is being destroyed.
                qp.forget(qpn, &self.ring)?;
                *qp = PolledQp::new(rings, side);
            }
            None => {
                let node = room.into_node(qpn, PolledQp::new(rings, side));
                self.qps.insert(node);
            }
        }
        Ok(())
    }

    /// Removes queue pair `qpn` with these `rings`, and returns its table node.
    pub(crate) fn detach(
        &mut self,
        qpn: u32,
        rings: &Arc<KernelRings>,
    ) -> Option<RBTreeNode<u32, PolledQp>> {
        if !Arc::ptr_eq(&self.qps.get(&qpn)?.rings, rings) {
            return None;
        }
        let forgotten = self.forget(qpn);
        // The memory has room for all entries of the ring, so this cannot fail.
        debug_assert!(forgotten.is_ok());
        self.qps.remove_node(&qpn)
    }

    /// Forgets completions of queue pair `qpn`, which was reset or is gone.
    pub(crate) fn forget(&self, qpn: u32) -> Result {
        match self.qps.get(&qpn) {
            Some(qp) => qp.forget(qpn, &self.ring),
            None => Ok(()),
        }
    }

    /// Decodes a completion and finds its request. `EIO` if there is no such request.
    fn resolve(&self, cqe: &Cqe) -> Result<(Continuation, Completion)> {
        let name = Name::from_wire(cqe.wr_id.get())?;
        let qp = self.qps.get(&cqe.qpn.get()).ok_or(EIO)?;
        let mut completion = decode(cqe);

        if completion.status != Status::Success {
            completion.opcode = opcode_of(name.side);
        }
        if !qp.has(name.side) || completion.opcode.is_receive() != (name.side == Side::Receive) {
            return Err(EIO);
        }
        // The length in the completion of a write with immediate data is not that of the receive.
        let bytes = match completion.opcode {
            Opcode::Receive => completion.byte_length,
            _ => 0,
        };
        Ok((qp.rings.complete(name, bytes)?, completion))
    }

    /// Flushes requests until there are none left or `out` is full. The device must be stopped.
    fn flush(&self, out: &mut Completions<'_>) {
        for (&qpn, qp) in self.qps.iter() {
            for (side, ring) in qp.rings() {
                while !out.is_full() {
                    let Some(request) = ring.lock().flush() else {
                        break;
                    };
                    let completion = Completion {
                        qpn,
                        status: Status::Flushed,
                        opcode: opcode_of(side),
                        vendor_error: 0,
                        byte_length: 0,
                        extra: None,
                        source: None,
                        checksums_ok: false,
                    };
                    // Completions of a queue pair that is gone are dropped.
                    let _ = out.push(request, &completion);
                }
            }
        }
    }

    /// Returns whether there are requests that have not completed.
    pub(crate) fn has_outstanding(&self) -> bool {
        let mut rings = self.qps.values().flat_map(PolledQp::rings);
        rings.any(|(_, ring)| ring.lock().outstanding() != 0)
    }
}

/// Returns the opcode to report for a failed request.
fn opcode_of(side: Side) -> Opcode {
    match side {
        Side::Send => Opcode::Send,
        Side::Receive => Opcode::Receive,
    }
}

/// Translates the opcode of a completion. The wire format uses the numbers of the verbs, except for
/// operations of the kernel, which the verbs may renumber.
fn opcode(raw: u8) -> Result<Opcode> {
    match completion::Opcode::try_from(raw) {
        Ok(completion::Opcode::RegisterRegion) => Ok(Opcode::Register),
        Ok(opcode) => Opcode::try_from(u32::from(opcode.raw())),
        Err(_) => Err(EINVAL),
    }
}

/// Translates a completion. Values that the device must not use become a general error.
fn decode(cqe: &Cqe) -> Completion {
    let (status, opcode) = match (Status::try_from(u32::from(cqe.status)), opcode(cqe.opcode)) {
        (Ok(Status::Success), Ok(opcode)) => (Status::Success, opcode),
        (Ok(Status::Success), Err(_)) | (Err(_), _) => (Status::General, Opcode::Send),
        (Ok(status), _) => (status, Opcode::Send),
    };
    let has = |flag| cqe.flags & flag != 0;
    let extra = if has(flags::IMMEDIATE) {
        Some(Extra::Immediate(cqe.immediate.get()))
    } else if has(flags::INVALIDATED) {
        Some(Extra::Invalidated(cqe.immediate.get()))
    } else {
        None
    };
    let lid = has(flags::SOURCE_LID).then(|| LidSource::from_bytes(cqe.source_mac));
    let header = has(flags::GRH).then(|| match lid {
        Some(_) => NetworkHeader::InfiniBand,
        None if has(flags::IPV4) => NetworkHeader::Ipv4,
        None => NetworkHeader::Ipv6,
    });
    let source = (header.is_some() || lid.is_some()).then(|| Source {
        qpn: cqe.source_qpn.get(),
        pkey_index: cqe.pkey_index.get(),
        service_level: cqe.service_level,
        header,
        mac: (lid.is_none() && has(flags::SOURCE_MAC)).then_some(cqe.source_mac),
        vlan: has(flags::VLAN).then_some(cqe.vlan.get()),
        lid: lid.map_or((0, 0), |lid| (lid.slid.get(), lid.path_bits)),
    });
    let success = status == Status::Success;

    Completion {
        qpn: cqe.qpn.get(),
        status,
        opcode,
        vendor_error: cqe.vendor_error.get(),
        byte_length: if success { cqe.byte_length.get() } else { 0 },
        extra: extra.filter(|_| success),
        source: source.filter(|_| success),
        checksums_ok: success && cqe.packet_flags & packet_flags::CHECKSUMS_OK != 0,
    }
}

// The wire format uses the numbers of the verbs.
const _: () = {
    assert!(completion::Status::General.raw() as u32 == Status::General.raw());
    assert!(completion::Opcode::Receive.raw() as u32 == Opcode::Receive.raw());
};

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_kernel_cq)]
mod tests {
    use super::*;

    use crate::ring::Layout;
    use rdma::{
        qp::State,
        testing::{
            continuation,
            wr_id, //
        }, //
    };
    use virtio::SharedMemory;
    use vrnic_wire::completion::CQE_STRIDE;

    #[test]
    fn every_status_and_opcode_has_a_name() {
        for status in completion::Status::ALL {
            let raw = u32::from(status.raw());
            assert_eq!(Status::try_from(raw).map(Status::raw), Ok(raw));
        }
        for wire in completion::Opcode::ALL {
            let raw = u32::from(wire.raw());
            match wire {
                completion::Opcode::RegisterRegion => {
                    assert_eq!(opcode(wire.raw()), Ok(Opcode::Register));
                }
                _ => assert_eq!(opcode(wire.raw()).map(Opcode::raw), Ok(raw)),
            }
        }
        // The number of a registration differs between the verbs and the wire format.
        assert!(opcode(10).is_err());
    }

    #[test]
    fn a_datagram_is_decoded() {
        let completion = decode(&Cqe {
            wr_id: 0x1234_5678_9abc_def0.into(),
            qpn: 1.into(),
            opcode: completion::Opcode::Receive.raw(),
            status: completion::Status::Success.raw(),
            flags: flags::GRH | flags::IPV4 | flags::IMMEDIATE | flags::SOURCE_MAC,
            service_level: 3,
            byte_length: 296.into(),
            immediate: 0x0102_0304.into(),
            source_qpn: 0x00ab_cdef.into(),
            source_mac: [1, 2, 3, 4, 5, 6],
            vlan: 7.into(),
            ..Default::default()
        });
        assert!(!completion.checksums_ok);
        assert_eq!(completion.opcode, Opcode::Receive);
        assert_eq!(completion.byte_length, 296);
        assert_eq!(completion.extra, Some(Extra::Immediate(0x0102_0304)));
        assert_eq!(
            completion.source,
            Some(Source {
                qpn: 0x00ab_cdef,
                pkey_index: 0,
                service_level: 3,
                header: Some(NetworkHeader::Ipv4),
                mac: Some([1, 2, 3, 4, 5, 6]),
                vlan: None,
                lid: (0, 0),
            })
        );
    }

    #[test]
    fn a_datagram_of_a_subnet_is_decoded() {
        for (grh, header) in [(0, None), (flags::GRH, Some(NetworkHeader::InfiniBand))] {
            let completion = decode(&Cqe {
                opcode: completion::Opcode::Receive.raw(),
                status: completion::Status::Success.raw(),
                flags: flags::SOURCE_LID | grh,
                service_level: 3,
                source_qpn: 1.into(),
                source_mac: [0x34, 0x12, 5, 0, 0, 0],
                packet_flags: packet_flags::CHECKSUMS_OK,
                pkey_index: 2.into(),
                ..Default::default()
            });
            assert!(completion.checksums_ok);
            assert_eq!(
                completion.source,
                Some(Source {
                    qpn: 1,
                    pkey_index: 2,
                    service_level: 3,
                    header,
                    mac: None,
                    vlan: None,
                    lid: (0x1234, 5),
                })
            );
        }
    }

    #[test]
    fn nonsense_of_the_device_is_an_error() {
        let decoded = |opcode, status| {
            decode(&Cqe {
                opcode,
                status,
                flags: !0,
                packet_flags: !0,
                byte_length: 9.into(),
                ..Default::default()
            })
        };
        assert_eq!(decoded(99, 0).status, Status::General);
        assert_eq!(decoded(0, 99).status, Status::General);
        assert_eq!(decoded(99, 5).status, Status::Flushed);
        assert_eq!(decoded(128, 12).extra, None);
        assert_eq!(decoded(128, 12).source, None);
        assert_eq!(decoded(128, 12).byte_length, 0);
        assert!(!decoded(128, 12).checksums_ok);
    }

    /// Calls `test` with a queue of the kernel and the rings of queue pair 5, whose receives
    /// complete there.
    fn with_polled(test: impl FnOnce(&mut Polled, &Arc<KernelRings>) -> Result) -> Result {
        virtio::testing::with_dma(|dma| {
            let mut buffer = Layout::new();
            let layout = buffer.place(4, CQE_STRIDE)?;
            let memory = SharedMemory::new(dma, usize::try_from(buffer.length())?)?;
            let mut polled = Polled::new(CompletionRing::new(memory, layout));

            let mut buffer = Layout::new();
            let (send, recv) = (buffer.place(4, 64)?, buffer.place(4, 64)?);
            let rings = Arc::pin_init(KernelRings::new(None, send, recv, None)?, GFP_KERNEL)?;
            rings.set_state(State::ReadyToSend);
            polled.attach(5, Side::Receive, &rings, Room::new(GFP_KERNEL)?)?;
            test(&mut polled, &rings)
        })
    }

    fn post(rings: &Arc<KernelRings>, side: Side, wr_id: u64) -> Result<Name> {
        let mut ring = rings.ring(side).lock();
        let (_, name) = ring.next_entry()?;
        ring.advance(continuation(wr_id), 64, true);
        Ok(name)
    }

    fn received(name: Name) -> Cqe {
        Cqe {
            wr_id: name.to_wire().into(),
            qpn: 5.into(),
            opcode: completion::Opcode::Receive.raw(),
            ..Default::default()
        }
    }

    #[test]
    fn a_completion_tells_what_the_poster_said() -> Result {
        with_polled(|polled, rings| {
            let name = post(rings, Side::Receive, 77)?;
            let mut cqe = received(name);

            // A queue pair that is not attached, or a send.
            cqe.qpn = 6.into();
            assert_eq!(polled.resolve(&cqe).err(), Some(EIO));
            cqe = received(name);
            cqe.opcode = completion::Opcode::Send.raw();
            assert_eq!(polled.resolve(&cqe).err(), Some(EIO));
            let send = post(rings, Side::Send, 78)?;
            assert_eq!(polled.resolve(&received(send)).err(), Some(EIO));

            assert!(polled.has_outstanding());
            let (request, completion) = polled.resolve(&received(name))?;
            assert_eq!((wr_id(&request), completion.qpn), (77, 5));
            assert_eq!(polled.resolve(&received(name)).err(), Some(EIO));
            // Sends complete in another queue.
            assert!(!polled.has_outstanding());
            Ok(())
        })
    }

    #[test]
    fn no_more_is_received_than_there_is_room_for() -> Result {
        with_polled(|polled, rings| {
            let mut cqe = received(post(rings, Side::Receive, 1)?);
            cqe.byte_length = 65.into();
            assert_eq!(polled.resolve(&cqe).err(), Some(EIO));
            // A write with immediate data needs no room in the receive.
            cqe.opcode = completion::Opcode::ReceiveWriteWithImmediate.raw();
            assert_eq!(polled.resolve(&cqe)?.1.byte_length, 65);
            Ok(())
        })
    }

    #[test]
    fn a_failure_is_one_of_the_queue_that_was_posted_to() -> Result {
        with_polled(|polled, rings| {
            let mut cqe = received(post(rings, Side::Receive, 1)?);
            cqe.opcode = 0;
            cqe.status = completion::Status::Flushed.raw();
            let (_, completion) = polled.resolve(&cqe)?;
            assert_eq!(completion.opcode, Opcode::Receive);
            assert_eq!(completion.status, Status::Flushed);
            Ok(())
        })
    }

    /// Returns the result of the last of that many checks.
    fn looks(polled: &mut Polled, count: u32) -> Result<bool> {
        for _ in 1..count {
            assert!(!polled.owes_flushes()?);
        }
        polled.owes_flushes()
    }

    #[test]
    fn a_device_that_flushes_nothing_is_noticed() -> Result {
        with_polled(|polled, rings| {
            post(rings, Side::Receive, 1)?;
            let second = post(rings, Side::Receive, 2)?;
            assert!(!looks(polled, 2 * PATIENCE)?);

            rings.set_state(State::Error);
            assert!(looks(polled, PATIENCE)?);
            // Each completion restarts the timeout.
            drop(polled.resolve(&received(Name { index: 0, ..second }))?);
            assert!(!looks(polled, PATIENCE - 1)?);
            drop(polled.resolve(&received(second))?);
            assert!(!looks(polled, 2 * PATIENCE)?);
            Ok(())
        })
    }

    #[test]
    fn completions_that_nobody_takes_are_not_owed() -> Result {
        with_polled(|polled, rings| {
            let name = post(rings, Side::Receive, 1)?;
            rings.set_state(State::Error);
            polled.ring.complete(0, name.to_wire(), 5)?;
            assert!(!looks(polled, 2 * PATIENCE)?);

            // The event is owed to a user that waits for one.
            assert!(polled.arm(true)?);
            assert!(looks(polled, PATIENCE)?);
            polled.waits = false;
            assert!(!polled.owes_flushes()?);
            // If the user found the queue empty, completions are owed, even if the ring has some
            // now.
            polled.dry = true;
            assert!(polled.owes_flushes()?);
            assert!(!polled.owes_flushes()?);
            Ok(())
        })
    }

    #[test]
    fn a_number_that_is_in_use_is_not_given_away() -> Result {
        with_polled(|polled, rings| {
            post(rings, Side::Receive, 1)?;
            let layout = Layout::new().place(0, 64)?;
            let other = KernelRings::new(None, layout, layout, None)?;
            let other = Arc::pin_init(other, GFP_KERNEL)?;
            let room = || Room::new(GFP_KERNEL);

            assert_eq!(polled.attach(5, Side::Receive, &other, room()?), Err(EIO));
            assert!(polled.detach(5, &other).is_none());
            // Requests of the first queue pair still have to complete.
            assert!(polled.has_outstanding());
            rings.begin_end();
            assert_eq!(polled.attach(5, Side::Receive, &other, room()?), Ok(()));
            assert!(!polled.has_outstanding());
            Ok(())
        })
    }

    #[test]
    fn only_the_queue_pair_itself_is_detached() -> Result {
        with_polled(|polled, rings| {
            let layout = Layout::new().place(0, 64)?;
            let other = KernelRings::new(None, layout, layout, None)?;
            let other = Arc::pin_init(other, GFP_KERNEL)?;

            assert!(polled.detach(5, &other).is_none());
            // The number was reused before its old owner was gone.
            rings.begin_end();
            polled.attach(5, Side::Send, &other, Room::new(GFP_KERNEL)?)?;
            assert!(polled.detach(5, rings).is_none());
            assert!(polled.detach(5, &other).is_some());
            assert!(polled.detach(5, &other).is_none());
            Ok(())
        })
    }
}
