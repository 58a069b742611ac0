// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Completion channels, completion queues, queue pairs, and the work requests that go through them.

use std::marker::PhantomData;
use std::net::Ipv6Addr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    Ah, Bind, Context, Errno, GidEntry, Mw, Pd, QPS_INIT, QPS_RESET, QPS_RTR, QPS_RTS, Result, Srq,
    consts, destroyed, object, poll_fds, status,
};
use crate::ffi::{
    ibv_ack_cq_events, ibv_attach_mcast, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_data_buf, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp, ibv_detach_mcast, ibv_ece, ibv_get_cq_event,
    ibv_modify_cq_attr, ibv_modify_qp, ibv_mw_bind, ibv_poll_cq_attr, ibv_qp, ibv_qp_attr,
    ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_qp_rate_limit_attr, ibv_qp_to_qp_ex,
    ibv_query_ece, ibv_query_qp, ibv_query_qp_data_in_order, ibv_recv_wr, ibv_resize_cq,
    ibv_send_wr, ibv_send_wr_wr, ibv_set_ece, ibv_sge, ibv_wc, wr_atomic, wr_bind_mw, wr_rdma,
    wr_ud,
};

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    raw: *mut ibv_comp_channel,
    _context: Arc<Context>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    /// A channel whose descriptor does not block.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = object(unsafe { ibv_create_comp_channel(context.raw) })?;
        // SAFETY: a plain system call on the channel's own descriptor.
        unsafe {
            let fd = (*raw).fd;
            libc::fcntl(
                fd,
                libc::F_SETFL,
                libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK,
            );
        }
        Ok(Arc::new(Channel {
            raw,
            _context: context.clone(),
        }))
    }

    /// Descriptor that is readable when an event waits.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        // SAFETY: the channel lives.
        unsafe { (*self.raw).fd }
    }

    /// The id of the CQ whose event came, acknowledged; `None` after `timeout`.
    pub fn event(&self, timeout: Duration) -> Option<usize> {
        if !poll_fds(&[self.fd()], timeout).ok()? {
            return None;
        }
        let (mut cq, mut id) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives and both results are writable; a CQ with an unacknowledged event cannot go away.
        unsafe {
            if ibv_get_cq_event(self.raw, &raw mut cq, &raw mut id) != 0 {
                return None;
            }
            ibv_ack_cq_events(cq, 1);
        }
        Some(id.addr())
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: every CQ of the channel held a handle and is gone.
        destroyed("completion channel", unsafe {
            ibv_destroy_comp_channel(self.raw)
        });
    }
}

/// Which interface of libibverbs a queue is used through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// `ibv_post_send`, `ibv_poll_cq`.
    Legacy,
    /// `ibv_wr_*`, `ibv_start_poll`.
    Extended,
}

/// The fields of a completion that an extended CQ is asked for always.
const WC_STANDARD_FLAGS: u64 = 0x7f;
/// `IBV_WC_EX_WITH_COMPLETION_TIMESTAMP`
const WC_WITH_TIMESTAMP: u64 = 1 << 7;
const WC_WITH_WALL_CLOCK: u64 = 1 << 11;

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: *mut ibv_cq,
    interface: Interface,
    context: Arc<Context>,
    _channel: Option<Arc<Channel>>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

impl Cq {
    /// A CQ of at least `cqe` entries that is polled; its id is 0.
    pub fn new(context: &Arc<Context>, cqe: u32) -> Result<Arc<Self>> {
        Self::with(context, cqe, 0, None, 0, Interface::Legacy)
    }

    /// A CQ of at least `cqe` entries with an `id`, reporting events of completion vector `vector` to `channel`.
    pub fn with(
        context: &Arc<Context>,
        cqe: u32,
        id: usize,
        channel: Option<&Arc<Channel>>,
        vector: u32,
        interface: Interface,
    ) -> Result<Arc<Self>> {
        let id = ptr::without_provenance_mut(id);
        let raw_channel = channel.map_or(ptr::null_mut(), |c| c.raw);
        let raw = match interface {
            Interface::Legacy => {
                // SAFETY: the context and the channel live; other values are checked by the library and the kernel.
                object(unsafe {
                    ibv_create_cq(context.raw, cqe as i32, id, raw_channel, vector as i32)
                })?
            }
            Interface::Extended => Self::extended(
                context,
                ibv_cq_init_attr_ex {
                    cqe,
                    cq_context: id,
                    channel: raw_channel,
                    comp_vector: vector,
                    wc_flags: WC_STANDARD_FLAGS,
                    comp_mask: 0,
                    flags: 0,
                    parent_domain: ptr::null_mut(),
                },
            )?,
        };
        Ok(Arc::new(Cq {
            raw,
            interface,
            context: context.clone(),
            _channel: channel.cloned(),
        }))
    }

    /// A CQ of at least `cqe` entries whose completions say when they came to be, by the device's clock and, if `wall`
    /// is set, in nanoseconds of the day, too.
    pub fn stamped(context: &Arc<Context>, cqe: u32, wall: bool) -> Result<Arc<Self>> {
        let wall = if wall { WC_WITH_WALL_CLOCK } else { 0 };
        let attr = ibv_cq_init_attr_ex {
            cqe,
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: WC_STANDARD_FLAGS | WC_WITH_TIMESTAMP | wall,
            comp_mask: 0,
            flags: 0,
            parent_domain: ptr::null_mut(),
        };
        Ok(Arc::new(Cq {
            raw: Self::extended(context, attr)?,
            interface: Interface::Extended,
            context: context.clone(),
            _channel: None,
        }))
    }

    /// A CQ of at least `cqe` entries that goes on when it overruns; its id is 0.
    pub fn that_ignores_overrun(context: &Arc<Context>, cqe: u32) -> Result<Arc<Self>> {
        let attr = ibv_cq_init_attr_ex {
            cqe,
            cq_context: ptr::null_mut(),
            channel: ptr::null_mut(),
            comp_vector: 0,
            wc_flags: WC_STANDARD_FLAGS,
            comp_mask: 1,  // IBV_CQ_INIT_ATTR_MASK_FLAGS
            flags: 1 << 1, // IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN
            parent_domain: ptr::null_mut(),
        };
        Ok(Arc::new(Cq {
            raw: Self::extended(context, attr)?,
            interface: Interface::Extended,
            context: context.clone(),
            _channel: None,
        }))
    }

    fn extended(context: &Context, mut attr: ibv_cq_init_attr_ex) -> Result<*mut ibv_cq> {
        let extended = context.extended().ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the extended context contains the open one; `attr` is complete, and what it points to lives.
        unsafe {
            let create = (*extended).create_cq_ex.ok_or(Errno(libc::EOPNOTSUPP))?;
            Ok(object(create(context.raw, &raw mut attr))?.cast())
        }
    }

    /// Entries the CQ really has.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        // SAFETY: the CQ lives.
        unsafe { (*self.raw).cqe as u32 }
    }

    /// Has the CQ hold at least `cqe` entries.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        // SAFETY: the CQ lives.
        status(unsafe { ibv_resize_cq(self.raw, cqe as i32) })
    }

    /// Has events wait for `count` completions, but no longer than `period` microseconds.
    pub fn moderate(&self, count: u16, period: u16) -> Result<()> {
        let mut attr = ibv_modify_cq_attr {
            attr_mask: 1, // IBV_CQ_ATTR_MODERATE
            cq_count: count,
            cq_period: period,
        };
        let extended = self.context.extended().ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the CQ lives, `attr` is complete, and the operation belongs to the CQ's context.
        status(unsafe {
            let modify = (*extended).modify_cq.ok_or(Errno(libc::EOPNOTSUPP))?;
            modify(self.raw, &raw mut attr)
        })
    }

    /// Takes up to `out.len()` completions; returns their number.
    pub fn poll(&self, out: &mut [ibv_wc]) -> Result<usize> {
        match self.interface {
            Interface::Legacy => self.poll_legacy(out),
            Interface::Extended => self.poll_extended(out, None),
        }
    }

    /// The next completion of a CQ that was made by [`stamped`](Self::stamped), if there is one, and its time.
    pub fn poll_stamped(&self) -> Result<Option<(ibv_wc, u64)>> {
        let (mut wc, mut time) = ([ibv_wc::default()], [0]);
        let polled = self.poll_extended(&mut wc, Some(&mut time))?;
        Ok((polled == 1).then_some((wc[0], time[0])))
    }

    fn poll_legacy(&self, out: &mut [ibv_wc]) -> Result<usize> {
        // SAFETY: the CQ lives, the operation belongs to its context, and `out` has the length given.
        let n = unsafe {
            let poll = (*self.context.raw)
                .ops
                .poll_cq
                .ok_or(Errno(libc::EOPNOTSUPP))?;
            poll(self.raw, out.len() as i32, out.as_mut_ptr())
        };
        if n < 0 {
            Err(Errno(-n))
        } else {
            Ok(n as usize)
        }
    }

    /// Takes up to `out.len()` completions, and as many of their times if these are asked for.
    fn poll_extended(&self, out: &mut [ibv_wc], mut times: Option<&mut [u64]>) -> Result<usize> {
        let cq: *mut ibv_cq_ex = self.raw.cast();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        if out.is_empty() {
            return Ok(0);
        }
        // SAFETY: the CQ was made by `create_cq_ex`, so it is an `ibv_cq_ex` whose functions are set for the fields
        // asked for; readers are called only between a successful start/next and the end of polling.
        unsafe {
            let missing = Errno(libc::EOPNOTSUPP);
            let (start, next, end) = (
                (*cq).start_poll.ok_or(missing)?,
                (*cq).next_poll.ok_or(missing)?,
                (*cq).end_poll.ok_or(missing)?,
            );
            match start(cq, &raw mut attr) {
                libc::ENOENT => return Ok(0),
                rc => status(rc)?,
            }
            let mut n = 0;
            loop {
                let wc = &mut out[n];
                *wc = ibv_wc {
                    wr_id: (*cq).wr_id,
                    status: (*cq).status,
                    vendor_err: (*cq).read_vendor_err.map_or(0, |f| f(cq)),
                    qp_num: (*cq).read_qp_num.map_or(0, |f| f(cq)),
                    ..Default::default()
                };
                if let Some(times) = &mut times {
                    times[n] = (*cq).read_completion_ts.ok_or(missing)?(cq);
                }
                // The rest is defined for successful completions only.
                if wc.status == consts::WC_SUCCESS {
                    wc.opcode = (*cq).read_opcode.map_or(-1, |f| f(cq));
                    wc.wc_flags = (*cq).read_wc_flags.map_or(0, |f| f(cq));
                    wc.byte_len = (*cq).read_byte_len.map_or(0, |f| f(cq));
                    wc.src_qp = (*cq).read_src_qp.map_or(0, |f| f(cq));
                    if wc.wc_flags & (consts::WC_WITH_IMM | consts::WC_WITH_INV) != 0 {
                        wc.imm_data = (*cq).read_imm_data.map_or(0, |f| f(cq));
                    }
                }
                n += 1;
                if n == out.len() {
                    break;
                }
                match next(cq) {
                    0 => {}
                    libc::ENOENT => break,
                    rc => {
                        end(cq);
                        return Err(Errno(rc));
                    }
                }
            }
            end(cq);
            Ok(n)
        }
    }

    /// Does `work` while the CQ, which is polled by the extended interface, stands at a completion: the id of that, and
    /// what came of it. `None` if there is no completion.
    pub fn while_polling<R>(&self, work: impl FnOnce() -> R) -> Result<Option<(u64, R)>> {
        if self.interface != Interface::Extended {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let cq: *mut ibv_cq_ex = self.raw.cast();
        let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
        // SAFETY: as for `poll_extended`.
        unsafe {
            let missing = Errno(libc::EOPNOTSUPP);
            let (start, end) = (
                (*cq).start_poll.ok_or(missing)?,
                (*cq).end_poll.ok_or(missing)?,
            );
            match start(cq, &raw mut attr) {
                libc::ENOENT => return Ok(None),
                rc => status(rc)?,
            }
            let wr_id = (*cq).wr_id;
            let result = work();
            end(cq);
            Ok(Some((wr_id, result)))
        }
    }

    /// The id of the next completion of a CQ that was made by [`stamped`](Self::stamped), its time by the device's
    /// clock, and the time of day.
    pub fn poll_times(&self) -> Result<Option<(u64, [u64; 2])>> {
        let cq: *mut ibv_cq_ex = self.raw.cast();
        let times = || {
            let missing = Errno(libc::EOPNOTSUPP);
            // SAFETY: as for `poll_extended`.
            unsafe {
                let raw = (*cq).read_completion_ts.ok_or(missing)?(cq);
                let wall = (*cq).read_completion_wallclock_ns.ok_or(missing)?(cq);
                status((*cq).status).map(|()| [raw, wall])
            }
        };
        let Some((wr_id, times)) = self.while_polling(times)? else {
            return Ok(None);
        };
        Ok(Some((wr_id, times?)))
    }

    /// The next completion; `None` after `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<ibv_wc>> {
        let end = Instant::now() + timeout;
        let mut wc = [ibv_wc::default()];
        loop {
            if self.poll(&mut wc)? == 1 {
                return Ok(Some(wc[0]));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Asks for one event at the next completion, or the next solicited one.
    pub fn arm(&self, solicited_only: bool) -> Result<()> {
        // SAFETY: the CQ lives and the operation belongs to its context.
        status(unsafe {
            let arm = (*self.context.raw)
                .ops
                .req_notify_cq
                .ok_or(Errno(libc::EOPNOTSUPP))?;
            arm(self.raw, i32::from(solicited_only))
        })
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: every QP of the CQ held a handle and is gone; events are acknowledged as they are received.
        destroyed("CQ", unsafe { ibv_destroy_cq(self.raw) });
    }
}

/// A scatter/gather entry.
#[derive(Clone, Copy, Debug)]
pub struct Sge<'m> {
    raw: ibv_sge,
    backed: bool,
    _memory: PhantomData<&'m ()>,
}

impl Sge<'_> {
    /// An entry whose bytes are known to be mapped for its lifetime.
    pub(crate) fn backed(raw: ibv_sge) -> Self {
        Sge {
            raw,
            backed: true,
            _memory: PhantomData,
        }
    }

    /// An entry of any three numbers; it cannot be sent inline, since the library would read it.
    #[must_use]
    pub fn raw(addr: u64, length: u32, lkey: u32) -> Sge<'static> {
        Sge {
            raw: ibv_sge { addr, length, lkey },
            backed: false,
            _memory: PhantomData,
        }
    }

    /// The same bytes under another key.
    #[must_use]
    pub fn with_key(mut self, lkey: u32) -> Self {
        self.raw.lkey = lkey;
        self
    }

    /// Length in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.raw.length
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug)]
pub enum SendOp<'a> {
    /// SEND
    Send,
    /// SEND with immediate data
    SendImm(u32),
    /// SEND that invalidates a remote key
    SendInv(u32),
    /// RDMA WRITE to an address under a key
    Write(u64, u32),
    /// RDMA WRITE with immediate data
    WriteImm(u64, u32, u32),
    /// RDMA READ
    Read(u64, u32),
    /// Compare and swap: address, key, compare, swap
    Cas(u64, u32, u64, u64),
    /// Fetch and add: address, key, summand
    FetchAdd(u64, u32, u64),
    /// FLUSH to global visibility of a range: address, key, length
    Flush(u64, u32, usize),
    /// FLUSH to global visibility of all of a region, by its key
    FlushAll(u32),
    /// ATOMIC_WRITE: address, key, the bytes
    AtomicWrite(u64, u32, [u8; 8]),
    /// Datagram to a QP number with a `Q_Key`
    Datagram(&'a Ah, u32, u32),
    /// Datagram with immediate data
    DatagramImm(&'a Ah, u32, u32, u32),
    /// Gives a memory window another meaning; the key that it is to have, of which the lowest byte counts
    Bind(&'a Mw, u32, Bind<'a>),
    /// Makes the window of this key free
    LocalInv(u32),
    /// An opcode the standard does not have, or one the QP type must refuse
    Opcode(i32),
}

impl SendOp<'_> {
    /// Opcode of its request.
    #[must_use]
    pub fn opcode(&self) -> i32 {
        match self {
            SendOp::Send | SendOp::Datagram(..) => consts::WR_SEND,
            SendOp::SendImm(_) | SendOp::DatagramImm(..) => consts::WR_SEND_WITH_IMM,
            SendOp::SendInv(_) => consts::WR_SEND_WITH_INV,
            SendOp::Write(..) => consts::WR_RDMA_WRITE,
            SendOp::WriteImm(..) => consts::WR_RDMA_WRITE_WITH_IMM,
            SendOp::Read(..) => consts::WR_RDMA_READ,
            SendOp::Cas(..) => consts::WR_ATOMIC_CMP_AND_SWP,
            SendOp::FetchAdd(..) => consts::WR_ATOMIC_FETCH_AND_ADD,
            SendOp::Flush(..) | SendOp::FlushAll(_) => consts::WR_FLUSH,
            SendOp::AtomicWrite(..) => consts::WR_ATOMIC_WRITE,
            SendOp::Bind(..) => consts::WR_BIND_MW,
            SendOp::LocalInv(_) => consts::WR_LOCAL_INV,
            SendOp::Opcode(code) => *code,
        }
    }

    /// Whether it sends from or receives into local memory, be it nothing.
    fn has_elements(&self) -> bool {
        !matches!(
            self,
            SendOp::Bind(..)
                | SendOp::LocalInv(_)
                | SendOp::Flush(..)
                | SendOp::FlushAll(_)
                | SendOp::AtomicWrite(..)
        )
    }

    /// Opcode of its completion.
    #[must_use]
    pub fn completion(&self) -> i32 {
        match self {
            SendOp::Write(..) | SendOp::WriteImm(..) => consts::WC_RDMA_WRITE,
            SendOp::Read(..) => consts::WC_RDMA_READ,
            SendOp::Cas(..) => consts::WC_COMP_SWAP,
            SendOp::FetchAdd(..) => consts::WC_FETCH_ADD,
            SendOp::Flush(..) | SendOp::FlushAll(_) => consts::WC_FLUSH,
            SendOp::AtomicWrite(..) => consts::WC_ATOMIC_WRITE,
            SendOp::Bind(..) => consts::WC_BIND_MW,
            SendOp::LocalInv(_) => consts::WC_LOCAL_INV,
            _ => consts::WC_SEND,
        }
    }
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp<'a>,
    /// Local memory.
    pub sges: &'a [Sge<'a>],
    /// The `SEND_` bits.
    pub flags: u32,
}

impl<'a> SendWr<'a> {
    /// A signalled request.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp<'a>, sges: &'a [Sge<'a>]) -> Self {
        SendWr {
            wr_id,
            op,
            sges,
            flags: consts::SEND_SIGNALED,
        }
    }

    /// The same request with other flags.
    #[must_use]
    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }
}

/// A post that failed: how many requests were taken, and the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Requests before this one were posted.
    pub taken: usize,
    /// Why the next one was not.
    pub error: Errno,
}

impl From<PostError> for Errno {
    fn from(e: PostError) -> Self {
        e.error
    }
}

/// Sizes and kind of a QP to be created.
#[derive(Clone, Copy, Debug)]
pub struct QpConfig {
    /// `QPT_RC`, `QPT_UC` or `QPT_UD`
    pub kind: i32,
    /// Requested sizes
    pub cap: ibv_qp_cap,
    /// Every request is signalled
    pub signal_all: bool,
    /// How it is posted to
    pub interface: Interface,
    /// Operations of the extended interface beyond those that every device has (`QP_EX_WITH_…`)
    pub more_ops: u64,
    /// Creation flags, which only the extended interface has (`QP_CREATE_…`)
    pub create_flags: u32,
}

impl Default for QpConfig {
    fn default() -> Self {
        QpConfig {
            kind: consts::QPT_RC,
            cap: ibv_qp_cap {
                max_send_wr: 16,
                max_recv_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            signal_all: false,
            interface: Interface::Legacy,
            more_ops: 0,
            create_flags: 0,
        }
    }
}

impl QpConfig {
    /// A QP that takes one request of one element in each direction.
    pub fn smallest() -> Self {
        QpConfig {
            cap: ibv_qp_cap {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            ..Default::default()
        }
    }
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) raw: *mut ibv_qp,
    /// The sizes granted.
    pub cap: ibv_qp_cap,
    interface: Interface,
    /// Its send CQ.
    pub send_cq: Arc<Cq>,
    /// Its receive CQ.
    pub recv_cq: Arc<Cq>,
    pub(super) pd: Arc<Pd>,
    /// Where its receives come from, if not from a queue of its own.
    srq: Option<Arc<Srq>>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

/// What a connected QP is told of its path.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Our GID index
    pub from: u8,
    /// The peer's GID
    pub to: std::net::Ipv6Addr,
    /// The peer's LID, 0 on Ethernet
    pub lid: u16,
    /// The peer's QP number
    pub qpn: u32,
    /// Our first PSN
    pub sq_psn: u32,
    /// The peer's first PSN
    pub rq_psn: u32,
    /// MTU enumerator
    pub mtu: i32,
    /// Local ACK timeout exponent (4.096 µs · 2^n)
    pub timeout: u8,
    /// Transport retries
    pub retries: u8,
    /// RNR retries; 7 is without limit
    pub rnr_retries: u8,
    /// RNR timer code we advertise
    pub rnr_timer: u8,
    /// Outstanding READs and atomics, both as requester and as responder
    pub rd_atomic: u8,
    /// Remote access rights
    pub access: i32,
}

impl Path {
    /// The path of a connection from a port to `qpn` of the same port.
    #[must_use]
    pub fn to_self(gid: GidEntry, mtu: i32, qpn: u32) -> Self {
        Path {
            from: gid.index,
            to: gid.gid,
            lid: gid.lid,
            qpn,
            sq_psn: 77,
            rq_psn: 77,
            mtu,
            timeout: 17,
            retries: 7,
            rnr_retries: 7,
            rnr_timer: 12,
            rd_atomic: 1,
            access: consts::ACCESS_ALL,
        }
    }
}

impl Qp {
    /// Creates a QP.
    pub fn new(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        config: &QpConfig,
    ) -> Result<Self> {
        Self::create(pd, send_cq, recv_cq, config, None)
    }

    /// Creates a QP that takes its receives from `srq`.
    pub fn with_srq(
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        config: &QpConfig,
        srq: &Arc<Srq>,
    ) -> Result<Self> {
        Self::create(srq.pd(), send_cq, recv_cq, config, Some(srq))
    }

    fn create(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        config: &QpConfig,
        srq: Option<&Arc<Srq>>,
    ) -> Result<Self> {
        let base = ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.raw,
            recv_cq: recv_cq.raw,
            srq: srq.map_or(ptr::null_mut(), |srq| srq.raw.cast()),
            cap: config.cap,
            qp_type: config.kind,
            sq_sig_all: i32::from(config.signal_all),
        };
        let (raw, cap) = match config.interface {
            Interface::Legacy => {
                let mut attr = base;
                // SAFETY: PD and CQs live and `attr` is complete.
                (
                    object(unsafe { ibv_create_qp(pd.raw, &raw mut attr) })?,
                    attr.cap,
                )
            }
            Interface::Extended => {
                let extended = pd.context.extended().ok_or(Errno(libc::EOPNOTSUPP))?;
                let (writes, sends) = (0x01 | 0x02, 0x04 | 0x08);
                let mut attr = ibv_qp_init_attr_ex {
                    qp_context: base.qp_context,
                    send_cq: base.send_cq,
                    recv_cq: base.recv_cq,
                    srq: base.srq,
                    cap: base.cap,
                    qp_type: base.qp_type,
                    sq_sig_all: base.sq_sig_all,
                    comp_mask: 1 | u32::from(config.create_flags != 0) << 2 | 1 << 6,
                    pd: pd.raw,
                    xrcd: ptr::null_mut(),
                    create_flags: config.create_flags,
                    max_tso_header: 0,
                    rwq_ind_tbl: ptr::null_mut(),
                    rx_hash_function: 0,
                    rx_hash_key_len: 0,
                    rx_hash_key: ptr::null_mut(),
                    rx_hash_fields_mask: 0,
                    source_qpn: 0,
                    send_ops_flags: match config.kind {
                        consts::QPT_UD => sends,
                        consts::QPT_UC => writes | sends,
                        _ => writes | sends | 0x10 | 0x20 | 0x40 | config.more_ops,
                    },
                };
                // SAFETY: the extended context contains the open one; PD, CQs live and `attr` is complete.
                let raw = unsafe {
                    let create = (*extended).create_qp_ex.ok_or(Errno(libc::EOPNOTSUPP))?;
                    object(create(pd.context.raw, &raw mut attr))?
                };
                (raw, attr.cap)
            }
        };
        Ok(Qp {
            raw,
            cap,
            interface: config.interface,
            send_cq: send_cq.clone(),
            recv_cq: recv_cq.clone(),
            pd: pd.clone(),
            srq: srq.cloned(),
        })
    }

    /// The QP number.
    #[must_use]
    pub fn number(&self) -> u32 {
        // SAFETY: the QP lives.
        unsafe { (*self.raw).qp_num }
    }

    /// Modifies the attributes in `mask`.
    pub fn modify(&self, attr: &ibv_qp_attr, mask: i32) -> Result<()> {
        let mut attr = *attr;
        // SAFETY: the QP lives and `attr` is complete.
        status(unsafe { ibv_modify_qp(self.raw, &raw mut attr, mask) })
    }

    /// Changes the rate limit.
    pub fn limit(&self, limit: &ibv_qp_rate_limit_attr) -> Result<()> {
        let mut limit = *limit;
        let extended = self.pd.context().extended();
        let extended = extended.ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: the QP lives, `limit` is complete, and the operation belongs to the QP's context.
        status(unsafe {
            let modify = (*extended)
                .modify_qp_rate_limit
                .ok_or(Errno(libc::EOPNOTSUPP))?;
            modify(self.raw, &raw mut limit)
        })
    }

    /// Moves to `state`, giving nothing else.
    pub fn to_state(&self, state: i32) -> Result<()> {
        self.modify(
            &ibv_qp_attr {
                qp_state: state,
                ..Default::default()
            },
            consts::QP_STATE,
        )
    }

    /// All attributes.
    pub fn query(&self) -> Result<ibv_qp_attr> {
        self.describe().map(|(attr, _)| attr)
    }

    /// All attributes, and whether every request is signalled.
    pub fn describe(&self) -> Result<(ibv_qp_attr, bool)> {
        let mut attr = ibv_qp_attr::default();
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the QP lives, both results are writable.
        let rc = unsafe { ibv_query_qp(self.raw, &raw mut attr, (1 << 21) - 1, &raw mut init) };
        status(rc)?;
        Ok((attr, init.sq_sig_all != 0))
    }

    /// What of a vendor's enhancements the connection has (`ibv_query_ece`).
    pub fn ece(&self) -> Result<ibv_ece> {
        let mut ece = ibv_ece::default();
        // SAFETY: the QP lives, the result is writable.
        status(unsafe { ibv_query_ece(self.raw, &raw mut ece) })?;
        Ok(ece)
    }

    /// Asks for enhancements of a vendor.
    pub fn set_ece(&self, mut ece: ibv_ece) -> Result<()> {
        // SAFETY: the QP lives, `ece` is complete.
        status(unsafe { ibv_set_ece(self.raw, &raw mut ece) })
    }

    /// What is promised of the order in which the bytes of an operation are written.
    #[must_use]
    pub fn data_in_order(&self, op: i32, flags: u32) -> i32 {
        // SAFETY: the QP lives; other values are checked by the library.
        unsafe { ibv_query_qp_data_in_order(self.raw, op, flags) }
    }

    /// RESET to INIT, for RC and UC.
    pub fn to_init(&self, access: i32) -> Result<()> {
        let attr = ibv_qp_attr {
            qp_state: QPS_INIT,
            port_num: 1,
            qp_access_flags: access as u32,
            ..Default::default()
        };
        self.modify(
            &attr,
            consts::QP_STATE | consts::QP_PKEY_INDEX | consts::QP_PORT | consts::QP_ACCESS_FLAGS,
        )
    }

    /// Those of the attributes in `mask` that its type has.
    fn known(&self, mask: i32) -> i32 {
        // SAFETY: the QP lives.
        if unsafe { (*self.raw).qp_type } == consts::QPT_UC {
            mask & !RELIABLE_MASK
        } else {
            mask
        }
    }

    /// INIT to RTR, for RC and UC.
    pub fn to_rtr(&self, path: &Path) -> Result<()> {
        self.modify(&rtr_attr(path), self.known(RTR_MASK))
    }

    /// RTR to RTS, for RC and UC.
    pub fn to_rts(&self, path: &Path) -> Result<()> {
        self.modify(&rts_attr(path), self.known(RTS_MASK))
    }

    /// RESET to RTS, for RC and UC.
    pub fn connect(&self, path: &Path) -> Result<()> {
        self.to_init(path.access)?;
        self.to_rtr(path)?;
        self.to_rts(path)
    }

    /// RESET to RTS, for UD.
    pub fn start_datagrams(&self, qkey: u32, sq_psn: u32) -> Result<()> {
        let mut attr = ibv_qp_attr {
            qp_state: QPS_INIT,
            port_num: 1,
            qkey,
            ..Default::default()
        };
        self.modify(
            &attr,
            consts::QP_STATE | consts::QP_PKEY_INDEX | consts::QP_PORT | consts::QP_QKEY,
        )?;
        attr.qp_state = QPS_RTR;
        self.modify(&attr, consts::QP_STATE)?;
        attr.qp_state = QPS_RTS;
        attr.sq_psn = sq_psn;
        self.modify(&attr, consts::QP_STATE | consts::QP_SQ_PSN)
    }

    /// Any state to RESET.
    pub fn reset(&self) -> Result<()> {
        self.to_state(QPS_RESET)
    }

    /// Posts send requests in one call.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        for wr in wrs {
            assert!(
                wr.flags & consts::SEND_INLINE == 0 || wr.sges.iter().all(|s| s.backed),
                "inline data must be memory of ours"
            );
        }
        match self.interface {
            Interface::Legacy => self.post_send_legacy(wrs),
            Interface::Extended => self.post_send_extended(wrs),
        }
    }

    fn post_send_legacy(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        let mut sges: Vec<ibv_sge> = wrs
            .iter()
            .flat_map(|w| w.sges.iter().map(|s| s.raw))
            .collect();
        let mut list: Vec<ibv_send_wr> = Vec::with_capacity(wrs.len());
        let mut first_sge = 0;
        for wr in wrs {
            list.push(ibv_send_wr {
                wr_id: wr.wr_id,
                next: ptr::null_mut(),
                sg_list: sges.as_mut_ptr().wrapping_add(first_sge),
                num_sge: wr.sges.len() as i32,
                opcode: wr.op.opcode(),
                send_flags: wr.flags,
                imm_data: match wr.op {
                    SendOp::SendImm(imm)
                    | SendOp::WriteImm(_, _, imm)
                    | SendOp::DatagramImm(.., imm) => imm.to_be(),
                    SendOp::SendInv(key) | SendOp::LocalInv(key) => key,
                    _ => 0,
                },
                wr: match wr.op {
                    SendOp::Write(remote_addr, rkey)
                    | SendOp::WriteImm(remote_addr, rkey, _)
                    | SendOp::Read(remote_addr, rkey) => ibv_send_wr_wr {
                        rdma: wr_rdma { remote_addr, rkey },
                    },
                    SendOp::Cas(remote_addr, rkey, compare_add, swap) => ibv_send_wr_wr {
                        atomic: wr_atomic {
                            remote_addr,
                            compare_add,
                            swap,
                            rkey,
                        },
                    },
                    SendOp::FetchAdd(remote_addr, rkey, compare_add) => ibv_send_wr_wr {
                        atomic: wr_atomic {
                            remote_addr,
                            compare_add,
                            swap: 0,
                            rkey,
                        },
                    },
                    SendOp::Datagram(ah, remote_qpn, remote_qkey)
                    | SendOp::DatagramImm(ah, remote_qpn, remote_qkey, _) => ibv_send_wr_wr {
                        ud: wr_ud {
                            ah: ah.raw,
                            remote_qpn,
                            remote_qkey,
                        },
                    },
                    _ => ibv_send_wr_wr {
                        atomic: wr_atomic {
                            remote_addr: 0,
                            compare_add: 0,
                            swap: 0,
                            rkey: 0,
                        },
                    },
                },
                remote_srqn: 0,
                bind_mw: match wr.op {
                    SendOp::Bind(mw, rkey, bind) => wr_bind_mw {
                        mw: mw.raw,
                        rkey,
                        bind_info: bind.info(),
                    },
                    _ => wr_bind_mw {
                        mw: ptr::null_mut(),
                        rkey: 0,
                        bind_info: Bind::default().info(),
                    },
                },
            });
            first_sge += wr.sges.len();
        }
        let base = list.as_mut_ptr();
        for i in 1..list.len() {
            list[i - 1].next = base.wrapping_add(i);
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the QP lives; the list and its scatter/gather entries live across the call; inline data was checked
        // to be mapped; the operation belongs to the QP's context.
        let rc = unsafe {
            match (*self.pd.context.raw).ops.post_send {
                Some(post) => post(self.raw, base, &raw mut bad),
                None => libc::EOPNOTSUPP,
            }
        };
        status(rc).map_err(|error| PostError {
            taken: (bad.addr().wrapping_sub(base.addr())) / size_of::<ibv_send_wr>(),
            error,
        })
    }

    fn post_send_extended(&self, wrs: &[SendWr<'_>]) -> std::result::Result<(), PostError> {
        let none = |error| PostError { taken: 0, error };
        // SAFETY: the QP was made by `create_qp_ex` with these operations; the builder functions are called between
        // start and complete by one thread, data and lists live across the calls, inline data was checked to be mapped.
        unsafe {
            let qp = ibv_qp_to_qp_ex(self.raw);
            let missing = none(Errno(libc::EOPNOTSUPP));
            if qp.is_null() {
                return Err(missing);
            }
            ((*qp).wr_start.ok_or(missing)?)(qp);
            for wr in wrs {
                (*qp).wr_id = wr.wr_id;
                (*qp).wr_flags = wr.flags & !consts::SEND_INLINE;
                match wr.op {
                    SendOp::Send | SendOp::Datagram(..) => ((*qp).wr_send.ok_or(missing)?)(qp),
                    SendOp::SendImm(imm) | SendOp::DatagramImm(.., imm) => {
                        ((*qp).wr_send_imm.ok_or(missing)?)(qp, imm.to_be());
                    }
                    SendOp::SendInv(key) => ((*qp).wr_send_inv.ok_or(missing)?)(qp, key),
                    SendOp::Write(addr, key) => {
                        ((*qp).wr_rdma_write.ok_or(missing)?)(qp, key, addr);
                    }
                    SendOp::WriteImm(addr, key, imm) => {
                        ((*qp).wr_rdma_write_imm.ok_or(missing)?)(qp, key, addr, imm.to_be());
                    }
                    SendOp::Read(addr, key) => ((*qp).wr_rdma_read.ok_or(missing)?)(qp, key, addr),
                    SendOp::Cas(addr, key, compare, swap) => {
                        ((*qp).wr_atomic_cmp_swp.ok_or(missing)?)(qp, key, addr, compare, swap);
                    }
                    SendOp::FetchAdd(addr, key, add) => {
                        ((*qp).wr_atomic_fetch_add.ok_or(missing)?)(qp, key, addr, add);
                    }
                    SendOp::Flush(addr, key, len) => ((*qp).wr_flush.ok_or(missing)?)(
                        qp,
                        key,
                        addr,
                        len,
                        consts::FLUSH_GLOBAL,
                        consts::FLUSH_RANGE,
                    ),
                    SendOp::FlushAll(key) => ((*qp).wr_flush.ok_or(missing)?)(
                        qp,
                        key,
                        0,
                        0,
                        consts::FLUSH_GLOBAL,
                        consts::FLUSH_MR,
                    ),
                    SendOp::AtomicWrite(addr, key, value) => {
                        ((*qp).wr_atomic_write.ok_or(missing)?)(
                            qp,
                            key,
                            addr,
                            value.as_ptr().cast(),
                        );
                    }
                    SendOp::Bind(mw, key, bind) => {
                        let info = bind.info();
                        ((*qp).wr_bind_mw.ok_or(missing)?)(qp, mw.raw, key, &raw const info);
                    }
                    SendOp::LocalInv(key) => ((*qp).wr_local_inv.ok_or(missing)?)(qp, key),
                    SendOp::Opcode(_) => panic!("the extended interface has no raw opcodes"),
                }
                if !wr.op.has_elements() {
                    continue;
                }
                if let SendOp::Datagram(ah, qpn, qkey) | SendOp::DatagramImm(ah, qpn, qkey, _) =
                    wr.op
                {
                    ((*qp).wr_set_ud_addr.ok_or(missing)?)(qp, ah.raw, qpn, qkey);
                }
                let sges: Vec<ibv_sge> = wr.sges.iter().map(|s| s.raw).collect();
                if wr.flags & consts::SEND_INLINE != 0 {
                    let data: Vec<ibv_data_buf> = sges
                        .iter()
                        .map(|s| ibv_data_buf {
                            addr: ptr::with_exposed_provenance_mut(s.addr as usize),
                            length: s.length as usize,
                        })
                        .collect();
                    match data.as_slice() {
                        [one] => {
                            ((*qp).wr_set_inline_data.ok_or(missing)?)(qp, one.addr, one.length);
                        }
                        many => ((*qp).wr_set_inline_data_list.ok_or(missing)?)(
                            qp,
                            many.len(),
                            many.as_ptr(),
                        ),
                    }
                } else {
                    match sges.as_slice() {
                        [one] => {
                            ((*qp).wr_set_sge.ok_or(missing)?)(qp, one.lkey, one.addr, one.length);
                        }
                        many => {
                            ((*qp).wr_set_sge_list.ok_or(missing)?)(qp, many.len(), many.as_ptr());
                        }
                    }
                }
            }
            status(((*qp).wr_complete.ok_or(missing)?)(qp)).map_err(none)
        }
    }

    /// Builds `wrs` through the extended interface and then gives them up: nothing may be posted.
    pub fn build_and_abort(&self, wr_id: u64) -> Result<()> {
        assert_eq!(self.interface, Interface::Extended);
        // SAFETY: as in `post_send_extended`.
        unsafe {
            let qp = ibv_qp_to_qp_ex(self.raw);
            let missing = Errno(libc::EOPNOTSUPP);
            ((*qp).wr_start.ok_or(missing)?)(qp);
            (*qp).wr_id = wr_id;
            (*qp).wr_flags = consts::SEND_SIGNALED;
            ((*qp).wr_send.ok_or(missing)?)(qp);
            ((*qp).wr_set_sge_list.ok_or(missing)?)(qp, 0, ptr::null());
            ((*qp).wr_abort.ok_or(missing)?)(qp);
        }
        Ok(())
    }

    /// Posts receive requests in one call: each a `wr_id` and its memory.
    pub fn post_recv(&self, wrs: &[(u64, &[Sge<'_>])]) -> std::result::Result<(), PostError> {
        post_receives(wrs, |list, bad| {
            // SAFETY: the QP lives; the list and its scatter/gather entries live across the call; the operation belongs
            // to the QP's context.
            unsafe {
                match (*self.pd.context.raw).ops.post_recv {
                    Some(post) => post(self.raw, list, bad),
                    None => libc::EOPNOTSUPP,
                }
            }
        })
    }

    /// Binds a window of type 1, which gets a key of the library's choice.
    pub fn bind(&self, wr_id: u64, mw: &Mw, bind: Bind<'_>) -> Result<()> {
        let mut request = ibv_mw_bind {
            wr_id,
            send_flags: consts::SEND_SIGNALED,
            bind_info: bind.info(),
        };
        // SAFETY: the QP, the window and the region live; the operation belongs to the QP's context.
        status(unsafe {
            let bind = (*self.pd.context.raw).ops.bind_mw;
            bind.ok_or(Errno(libc::EOPNOTSUPP))?(self.raw, mw.raw, &raw mut request)
        })
    }

    /// Attaches the QP to the multicast group `gid`.
    pub fn attach(&self, gid: Ipv6Addr, lid: u16) -> Result<()> {
        // SAFETY: the QP lives, and the GID is read during the call.
        status(unsafe { ibv_attach_mcast(self.raw, &gid.octets(), lid) })
    }

    /// Detaches the QP from the multicast group `gid`.
    pub fn detach(&self, gid: Ipv6Addr, lid: u16) -> Result<()> {
        // SAFETY: as above.
        status(unsafe { ibv_detach_mcast(self.raw, &gid.octets(), lid) })
    }

    /// Destroys the QP, saying how that went.
    pub fn destroy(self) -> Result<()> {
        let raw = self.raw;
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the QP lives and is given up here; its handles are read out once, of a value never used again.
        let (rc, handles) = unsafe {
            (
                ibv_destroy_qp(raw),
                (
                    ptr::read(&raw const this.send_cq),
                    ptr::read(&raw const this.recv_cq),
                    ptr::read(&raw const this.pd),
                    ptr::read(&raw const this.srq),
                ),
            )
        };
        drop(handles);
        status(rc)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        // SAFETY: the QP lives and is given up here.
        destroyed("QP", unsafe { ibv_destroy_qp(self.raw) });
    }
}

/// Makes a list of receive requests and posts it with `post`.
pub(super) fn post_receives(
    wrs: &[(u64, &[Sge<'_>])],
    post: impl FnOnce(*mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> i32,
) -> std::result::Result<(), PostError> {
    let mut sges: Vec<ibv_sge> = wrs.iter().flat_map(|w| w.1.iter().map(|s| s.raw)).collect();
    let mut list: Vec<ibv_recv_wr> = Vec::with_capacity(wrs.len());
    let mut first_sge = 0;
    for (wr_id, memory) in wrs {
        list.push(ibv_recv_wr {
            wr_id: *wr_id,
            next: ptr::null_mut(),
            sg_list: sges.as_mut_ptr().wrapping_add(first_sge),
            num_sge: memory.len() as i32,
        });
        first_sge += memory.len();
    }
    let base = list.as_mut_ptr();
    for i in 1..list.len() {
        list[i - 1].next = base.wrapping_add(i);
    }
    let mut bad = ptr::null_mut();
    let rc = post(base, &raw mut bad);
    status(rc).map_err(|error| PostError {
        taken: (bad.addr().wrapping_sub(base.addr())) / size_of::<ibv_recv_wr>(),
        error,
    })
}

/// Attributes that INIT to RTR needs for RC.
pub const RTR_MASK: i32 = consts::QP_STATE
    | consts::QP_AV
    | consts::QP_PATH_MTU
    | consts::QP_DEST_QPN
    | consts::QP_RQ_PSN
    | consts::QP_MAX_DEST_RD_ATOMIC
    | consts::QP_MIN_RNR_TIMER;

/// Attributes that RTR to RTS needs for RC.
pub const RTS_MASK: i32 = consts::QP_STATE
    | consts::QP_TIMEOUT
    | consts::QP_RETRY_CNT
    | consts::QP_RNR_RETRY
    | consts::QP_SQ_PSN
    | consts::QP_MAX_QP_RD_ATOMIC;

/// Attributes that only RC has.
pub const RELIABLE_MASK: i32 = consts::QP_MAX_DEST_RD_ATOMIC
    | consts::QP_MIN_RNR_TIMER
    | consts::QP_TIMEOUT
    | consts::QP_RETRY_CNT
    | consts::QP_RNR_RETRY
    | consts::QP_MAX_QP_RD_ATOMIC;

/// The attributes of [`RTR_MASK`] for `path`.
#[must_use]
pub fn rtr_attr(path: &Path) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: QPS_RTR,
        ah_attr: super::address(path.from, path.to, path.lid),
        path_mtu: path.mtu,
        dest_qp_num: path.qpn,
        rq_psn: path.rq_psn,
        max_dest_rd_atomic: path.rd_atomic,
        min_rnr_timer: path.rnr_timer,
        ..Default::default()
    }
}

/// The attributes of [`RTS_MASK`] for `path`.
#[must_use]
pub fn rts_attr(path: &Path) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: QPS_RTS,
        timeout: path.timeout,
        retry_cnt: path.retries,
        rnr_retry: path.rnr_retries,
        sq_psn: path.sq_psn,
        max_rd_atomic: path.rd_atomic,
        ..Default::default()
    }
}
