// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Regions, completion queues and queue pairs of a guest, as its programs use them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use vrnic::doorbell::Slot;
use vrnic::ring::completion::CompletionQueue;
use vrnic::ring::outstanding::Outstanding;
use vrnic::ring::receive::ReceiveQueue;
use vrnic::ring::send::{Limits, Request, SendQueue, Target};
use vrnic::ring::shared::{SharedQueue, SharedReceives};
use vrnic::ring::{Refused, WorkRing};
use vrnic_wire::abi::Ring;
use vrnic_wire::command::{
    CreateCq, CreateQp, CreateSrq, DeregisterMr, DestroyCq, DestroyQp, DestroySrq, ModifyQp,
    ModifySrq, RegisterMr, mr_flags, qp_flags,
};
use vrnic_wire::completion::{CQE_STRIDE, Cqe, Opcode, Status};
use vrnic_wire::memory::{PageList, access};
use vrnic_wire::port::{GidEntry, Mtu};
use vrnic_wire::qp::{QpAttributes, QpState, QpType, attribute};
use vrnic_wire::ring::{RingHeader, RingLayout};
use vrnic_wire::work::{AddressVector, SendOpcode, Sge, receive_stride, send_flags, send_stride};

use crate::ram::Area;
use crate::vm::Vm;

const HEADER: usize = size_of::<RingHeader>();
/// Inline data of a request in bytes.
const INLINE: u32 = 64;
/// Number of reads and atomics that a connection may have outstanding, in each direction.
const READS: u8 = 16;
/// 67 ms: nothing gets lost, and other programs may be using the CPUs.
const ACK_TIMEOUT: u8 = 14;
/// Retries RNR NAKs forever.
const RNR_FOR_EVER: u8 = 7;
/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A registered region, whose addresses are bus addresses.
#[derive(Clone, Copy, Debug)]
pub struct Mr {
    /// Its memory.
    pub area: Area,
    /// Its key.
    pub key: u32,
}

/// All rights that a region can give its owner and peers.
const EVERYTHING: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

impl Mr {
    /// Registers `area` with all rights.
    pub fn register(vm: &mut Vm, area: Area) -> Result<Self> {
        let pages = vm.pages(&area)?;
        Self::with(vm, area, pages, 0)
    }

    /// Registers `area` with all rights, but gives the device none of its pages before it asks for them with a page
    /// fault; see [`Vm::take_page_fault`] and [`Vm::map_pages`].
    pub fn on_demand(vm: &mut Vm, area: Area) -> Result<Self> {
        let pages = PageList {
            first_chunk: 0.into(),
            ..vm.pages(&area)?
        };
        Self::with(vm, area, pages, mr_flags::ON_DEMAND)
    }

    fn with(vm: &mut Vm, area: Area, pages: PageList, flags: u32) -> Result<Self> {
        let command = RegisterMr {
            pd: vm.pd().into(),
            access: EVERYTHING.into(),
            flags: flags.into(),
            iova: area.address.into(),
            pages,
            ..RegisterMr::default()
        };
        let key = vm.execute(&command)?.key.get();
        Ok(Self { area, key })
    }

    /// Allocates memory and registers it.
    pub fn new(vm: &mut Vm, length: usize) -> Result<Self> {
        let area = vm.allocate(length)?;
        Self::register(vm, area)
    }

    /// Deregisters the region.
    pub fn deregister(self, vm: &mut Vm) -> Result<()> {
        vm.execute(&DeregisterMr {
            pd: vm.pd().into(),
            key: self.key.into(),
        })?;
        Ok(())
    }

    /// Returns a part of the region as a local scatter/gather element.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            address: (self.area.address + offset as u64).into(),
            length: (length as u32).into(),
            lkey: self.key.into(),
        }
    }

    /// Returns a part of the region as a target for the peer.
    pub fn target(&self, offset: usize) -> Target<'static> {
        Target::Memory {
            address: self.area.address + offset as u64,
            rkey: self.key,
        }
    }

    /// Returns eight bytes of the region as the target of an atomic operation of the peer.
    pub fn atomic(&self, offset: usize, compare_add: u64, swap: u64) -> Target<'static> {
        Target::Atomic {
            address: self.area.address + offset as u64,
            rkey: self.key,
            compare_add,
            swap,
        }
    }
}

/// A completion queue.
pub struct Cq {
    queue: CompletionQueue,
    cqn: u32,
    vector: u16,
}

impl Cq {
    /// Creates a queue with room for at least `entries` completions; its events arrive on `vector`.
    pub fn new(vm: &mut Vm, entries: u32, vector: u16) -> Result<Self> {
        let entries = entries.next_power_of_two();
        let area = vm.allocate(HEADER + (entries * CQE_STRIDE) as usize)?;
        let ring = Ring {
            header_offset: 0,
            entries_offset: HEADER as u32,
            entries,
            stride: CQE_STRIDE,
        };
        let command = CreateCq {
            context: vm.context().into(),
            vector: vector.into(),
            flags: 0.into(),
            ring: RingLayout::from(ring),
            pages: vm.pages(&area)?,
        };
        Ok(Self {
            cqn: vm.execute(&command)?.cqn.get(),
            queue: CompletionQueue::new(area.memory, ring),
            vector,
        })
    }

    /// Polls the next completion, if there is one.
    #[inline]
    pub fn poll(&mut self) -> Option<Cqe> {
        let cqe = self.queue.pop();
        if cqe.is_some() {
            self.queue.publish();
        }
        cqe
    }

    /// Polls up to `most` completions, which must be successful.
    #[inline]
    pub fn drain(&mut self, most: u32, mut what: impl FnMut(&Cqe)) -> Result<()> {
        for _ in 0..most {
            let Some(cqe) = self.queue.pop() else {
                break;
            };
            success(&cqe)?;
            what(&cqe);
        }
        self.queue.publish();
        Ok(())
    }

    /// Polls until there is a completion, successful or not.
    pub fn wait_any(&mut self) -> Result<Cqe> {
        let mut patience = Patience::new();
        loop {
            if let Some(cqe) = self.poll() {
                return Ok(cqe);
            }
            patience.look()?;
        }
    }

    /// Destroys the queue. No queue pair may be using it.
    pub fn destroy(self, vm: &mut Vm) -> Result<()> {
        vm.execute(&DestroyCq {
            cqn: self.cqn.into(),
            reserved: 0.into(),
        })?;
        Ok(())
    }

    /// Polls until there is a completion, which must be successful.
    #[inline]
    pub fn wait(&mut self) -> Result<Cqe> {
        let mut patience = Patience::new();
        loop {
            if let Some(cqe) = self.poll() {
                success(&cqe)?;
                return Ok(cqe);
            }
            patience.look()?;
        }
    }

    /// Requests an event.
    pub fn arm(&mut self) {
        self.queue.request_event(false);
    }

    /// Waits for the requested event, without polling.
    pub fn wait_event(&mut self, vm: &mut Vm) -> Result<()> {
        let cqn = vm.completion_event(self.vector)?;
        ensure!(cqn == self.cqn, "an event of CQ {cqn}, not {}", self.cqn);
        self.queue.event_came();
        Ok(())
    }
}

/// Returns an error for a completion with an error.
#[inline]
fn success(cqe: &Cqe) -> Result<()> {
    if cqe.status != Status::Success.raw() {
        bail!(
            "request {} of QP {} ended with {:?}",
            cqe.wr_id.get(),
            cqe.qpn.get(),
            Status::try_from(cqe.status)
        );
    }
    Ok(())
}

/// Limits how long a program polls.
pub struct Patience {
    looks: u32,
    started: Option<Instant>,
}

impl Patience {
    /// Starts without any polls.
    #[must_use]
    pub fn new() -> Self {
        Self {
            looks: 0,
            started: None,
        }
    }

    /// Counts an unsuccessful poll; fails if it has been too long. Reads no clock at first.
    #[inline]
    pub fn look(&mut self) -> Result<()> {
        self.looks += 1;
        if self.looks.is_multiple_of(1 << 16) {
            let started = *self.started.get_or_insert_with(Instant::now);
            ensure!(started.elapsed() < PATIENCE, "the device makes no progress");
        }
        std::hint::spin_loop();
        Ok(())
    }
}

impl Default for Patience {
    fn default() -> Self {
        Self::new()
    }
}

/// A shared receive queue.
pub struct Srq {
    queue: SharedQueue,
    srqn: u32,
}

impl Srq {
    /// Creates a queue with room for `entries` receives with one element each.
    pub fn new(vm: &mut Vm, entries: u32) -> Result<Self> {
        let stride = receive_stride(1);
        let ring = Ring {
            header_offset: 0,
            entries_offset: (HEADER as u32).next_multiple_of(stride),
            entries: entries.next_power_of_two(),
            stride,
        };
        let area = vm.allocate((ring.entries_offset + ring.entries * stride) as usize)?;
        let command = CreateSrq {
            context: vm.context().into(),
            pd: vm.pd().into(),
            max_sge: 1.into(),
            limit: 0.into(),
            ring: RingLayout::from(ring),
            pages: vm.pages(&area)?,
        };
        Ok(Self {
            srqn: vm.execute(&command)?.srqn.get(),
            queue: SharedQueue::new(area.memory, ring, 1),
        })
    }

    /// Returns the number of the queue.
    pub fn srqn(&self) -> u32 {
        self.srqn
    }

    /// Posts a receive.
    pub fn post(&mut self, wr_id: u64, element: Sge) -> Result<()> {
        let pushed = self.queue.push(wr_id, [element].into_iter());
        pushed.map_err(|refused| anyhow::anyhow!("the receive is refused: {refused:?}"))?;
        self.queue.publish();
        Ok(())
    }

    /// Requests an event for when fewer than `limit` receives are left.
    pub fn set_limit(&self, vm: &mut Vm, limit: u32) -> Result<()> {
        vm.execute(&ModifySrq {
            srqn: self.srqn.into(),
            limit: limit.into(),
        })?;
        Ok(())
    }

    /// Destroys the queue. No queue pair may be using it.
    pub fn destroy(self, vm: &mut Vm) -> Result<()> {
        vm.execute(&DestroySrq {
            srqn: self.srqn.into(),
            reserved: 0.into(),
        })?;
        Ok(())
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// Path MTU.
    pub mtu: Mtu,
    /// Code of the time after which the peer may retry if no receive is posted.
    pub min_rnr_timer: u8,
    /// Code of the time after which a packet without a response counts as lost.
    pub timeout: u8,
    /// Number of retries after such a timeout.
    pub retry_count: u8,
    /// Number of retries if the peer has no receive; 7 means forever.
    pub rnr_retry: u8,
}

impl Default for Terms {
    /// Returns the attributes for programs that keep the device as busy as possible.
    fn default() -> Self {
        Self {
            mtu: Mtu::Mtu4096,
            min_rnr_timer: 1,
            timeout: ACK_TIMEOUT,
            retry_count: 7,
            rnr_retry: RNR_FOR_EVER,
        }
    }
}

/// A queue pair, either RC or for datagrams.
pub struct Qp {
    send: SendQueue,
    receive: ReceiveQueue,
    /// The shared receive queue, if it does not use its own receive queue.
    shared: Option<SharedReceives>,
    qpn: u32,
    slot: Slot,
}

impl Qp {
    /// Creates an RC queue pair with room for `entries` requests and as many receives, with one element each.
    pub fn new(vm: &mut Vm, entries: u32, send_cq: &mut Cq, receive_cq: &mut Cq) -> Result<Self> {
        Self::with_srq(vm, entries, send_cq, receive_cq, None)
    }

    /// Like [`new`](Self::new), but takes receives from `srq` if there is one.
    pub fn with_srq(
        vm: &mut Vm,
        entries: u32,
        send_cq: &mut Cq,
        receive_cq: &mut Cq,
        srq: Option<&Srq>,
    ) -> Result<Self> {
        Self::of_type(
            QpType::ReliableConnection,
            vm,
            entries,
            (send_cq, receive_cq),
            srq,
        )
    }

    /// Creates a queue pair of a datagram type. It is ready to send, and accepts datagrams with this `Q_Key`.
    pub fn datagrams(
        qp_type: QpType,
        vm: &mut Vm,
        entries: u32,
        cqs: (&mut Cq, &mut Cq),
        qkey: u32,
    ) -> Result<Self> {
        use attribute::{PKEY_INDEX, PORT, QKEY, SQ_PSN, STATE};
        let mut qp = Self::of_type(qp_type, vm, entries, cqs, None)?;
        let steps = [
            (QpState::Init, PKEY_INDEX | PORT | QKEY),
            (QpState::ReadyToReceive, 0),
            (QpState::ReadyToSend, SQ_PSN),
        ];
        for (state, mask) in steps {
            vm.execute(&ModifyQp {
                qpn: qp.qpn.into(),
                reserved: 0.into(),
                attributes: QpAttributes {
                    state: state.raw(),
                    mask: (mask | STATE).into(),
                    port: 1,
                    qkey: qkey.into(),
                    ..QpAttributes::default()
                },
            })?;
        }
        qp.receive.set_accepts(true);
        qp.send.set_accepts(true);
        Ok(qp)
    }

    fn of_type(
        qp_type: QpType,
        vm: &mut Vm,
        entries: u32,
        (send_cq, receive_cq): (&mut Cq, &mut Cq),
        srq: Option<&Srq>,
    ) -> Result<Self> {
        let entries = entries.next_power_of_two();
        let (send_stride, receive_stride) = (send_stride(1, INLINE), receive_stride(1));
        let first = (2 * HEADER as u32).next_multiple_of(send_stride);
        let send = Ring {
            header_offset: 0,
            entries_offset: first,
            entries,
            stride: send_stride,
        };
        let receive = Ring {
            header_offset: HEADER as u32,
            entries_offset: first + entries * send_stride,
            entries,
            stride: receive_stride,
        };
        let area = vm.allocate((receive.entries_offset + entries * receive_stride) as usize)?;
        let command = CreateQp {
            context: vm.context().into(),
            pd: vm.pd().into(),
            qp_type: qp_type.raw(),
            max_send_sge: 1.into(),
            max_recv_sge: 1.into(),
            max_inline: (INLINE as u16).into(),
            send_cqn: send_cq.cqn.into(),
            recv_cqn: receive_cq.cqn.into(),
            send_ring: RingLayout::from(send),
            recv_ring: if srq.is_some() {
                RingLayout::default()
            } else {
                RingLayout::from(receive)
            },
            pages: vm.pages(&area)?,
            flags: if srq.is_some() {
                qp_flags::SHARED_RECEIVE_QUEUE
            } else {
                0
            },
            srqn: srq.map_or(0, |srq| srq.srqn).into(),
            ..CreateQp::default()
        };
        let shared = srq.map(|srq| srq.queue.receives().clone());
        if let Some(shared) = &shared {
            ensure!(receive_cq.queue.attach_shared(shared), "no memory");
        }
        let created = vm.execute(&command)?;
        let ring = |layout: Ring, opcode, cq: &mut Cq| {
            let outstanding = Outstanding::new(layout.entries, opcode).context("no memory")?;
            outstanding.set_qpn(created.qpn.get());
            let number = cq.queue.attach(outstanding.clone()).context("no memory")?;
            anyhow::Ok(WorkRing::new(area.memory, layout, outstanding, number))
        };
        let limits = Limits {
            opcodes: u32::MAX,
            datagrams: qp_type != QpType::ReliableConnection,
            xrc: false,
            // The device knows whether it has them.
            checksums: true,
            max_sge: 1,
            max_inline: INLINE,
            max_header: 0,
        };
        Ok(Self {
            send: SendQueue::new(ring(send, Opcode::Send, send_cq)?, limits),
            receive: ReceiveQueue::new(ring(receive, Opcode::Receive, receive_cq)?, 1),
            shared,
            qpn: created.qpn.get(),
            slot: vm.slot(created.slot.get()),
        })
    }

    /// Returns the number of the queue pair.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// Returns its doorbell slot.
    pub fn slot(&self) -> u32 {
        self.slot.number()
    }

    /// Connects it to a queue pair of another guest, or of the same guest.
    pub fn connect(&mut self, vm: &mut Vm, peer: u32, gid: &GidEntry) -> Result<()> {
        self.connect_on(vm, peer, gid, &Terms::default())
    }

    /// Like [`connect`](Self::connect), with these attributes.
    pub fn connect_on(
        &mut self,
        vm: &mut Vm,
        peer: u32,
        gid: &GidEntry,
        terms: &Terms,
    ) -> Result<()> {
        use attribute::{
            ACCESS_FLAGS, ADDRESS_VECTOR, DEST_QPN, MAX_DEST_RD_ATOMIC, MAX_RD_ATOMIC,
            MIN_RNR_TIMER, PATH_MTU, PKEY_INDEX, PORT, RETRY_COUNT, RNR_RETRY, RQ_PSN, SQ_PSN,
            STATE, TIMEOUT,
        };
        let attributes = QpAttributes {
            path_mtu: terms.mtu.raw(),
            dest_qpn: peer.into(),
            access: access::QUEUE_PAIR.into(),
            port: 1,
            max_rd_atomic: READS,
            max_dest_rd_atomic: READS,
            min_rnr_timer: terms.min_rnr_timer,
            timeout: terms.timeout,
            retry_count: terms.retry_count,
            rnr_retry: terms.rnr_retry,
            address: AddressVector {
                dgid: gid.gid,
                dmac: gid.mac,
                hop_limit: 64,
                ..AddressVector::default()
            },
            ..QpAttributes::default()
        };
        let steps = [
            (QpState::Init, PKEY_INDEX | PORT | ACCESS_FLAGS),
            (
                QpState::ReadyToReceive,
                ADDRESS_VECTOR | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ),
            (
                QpState::ReadyToSend,
                TIMEOUT | RETRY_COUNT | RNR_RETRY | SQ_PSN | MAX_RD_ATOMIC,
            ),
        ];
        for (state, mask) in steps {
            vm.execute(&ModifyQp {
                qpn: self.qpn.into(),
                reserved: 0.into(),
                attributes: QpAttributes {
                    state: state.raw(),
                    mask: (mask | STATE).into(),
                    ..attributes
                },
            })?;
        }
        self.receive.set_accepts(true);
        self.send.set_accepts(true);
        Ok(())
    }

    /// Writes a request to the ring; [`ring`](Self::ring) passes it to the device. Returns false if the ring is full.
    #[inline]
    pub fn push(&mut self, request: &Request<'_>, element: Sge) -> Result<bool> {
        match self.send.push(request, [element].into_iter()) {
            Ok(()) => Ok(true),
            Err(Refused::Full) => Ok(false),
            Err(Refused::Invalid) => bail!("the request is not valid"),
        }
    }

    /// Passes the pushed requests to the device.
    #[inline]
    pub fn ring(&mut self, vm: &mut Vm) -> Result<()> {
        if self.send.publish() {
            vm.ring(&self.slot)?;
        }
        Ok(())
    }

    /// Posts a request.
    #[inline]
    pub fn post(&mut self, vm: &mut Vm, request: &Request<'_>, element: Sge) -> Result<()> {
        ensure!(self.push(request, element)?, "the ring is full");
        self.ring(vm)
    }

    /// Posts a request without local memory.
    pub fn post_bare(&mut self, vm: &mut Vm, request: &Request<'_>) -> Result<()> {
        let pushed = self.send.push(request, std::iter::empty());
        pushed.map_err(|refused| anyhow::anyhow!("the request is refused: {refused:?}"))?;
        self.ring(vm)
    }

    /// Writes a receive to the ring; [`offer`](Self::offer) passes it to the device.
    #[inline]
    pub fn push_receive(&mut self, wr_id: u64, element: Sge) -> Result<()> {
        let pushed = self.receive.push(wr_id, [element].into_iter());
        pushed.map_err(|refused| anyhow::anyhow!("the receive is refused: {refused:?}"))
    }

    /// Passes the pushed receives to the device.
    #[inline]
    pub fn offer(&mut self, vm: &mut Vm) -> Result<()> {
        if self.receive.publish() {
            vm.ring(&self.slot)?;
        }
        Ok(())
    }

    /// Destroys the queue pair. Its completions must have been polled.
    pub fn destroy(self, vm: &mut Vm, send_cq: &mut Cq, receive_cq: &mut Cq) -> Result<()> {
        vm.execute(&DestroyQp {
            qpn: self.qpn.into(),
            reserved: 0.into(),
        })?;
        send_cq.queue.detach(self.send.ring().number());
        receive_cq.queue.detach(self.receive.ring().number());
        if let Some(shared) = &self.shared {
            receive_cq.queue.detach_shared(shared);
        }
        Ok(())
    }
}

/// Returns a request with a completion.
pub fn request(opcode: SendOpcode, wr_id: u64, target: Target<'_>) -> Request<'_> {
    Request {
        opcode,
        flags: send_flags::SIGNALED,
        wr_id,
        immediate: 0,
        target,
        srqn: 0,
        header: &[],
    }
}
