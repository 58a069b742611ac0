// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! A thin safe layer over libibverbs: objects destroy themselves in the right order, results are `Result`s, and
//! nothing is hidden: a test can pass any bad value that a C program can.
//!
//! Objects hold what they depend on by `Arc`, so a queue pair keeps its completion queues alive, and so on.

mod comp_cntr;
mod consts;
mod dm;
mod flow;
mod mw;
mod queue;
mod srq;

use std::net::Ipv6Addr;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

pub use comp_cntr::*;
pub use consts::*;
pub use dm::*;
pub use flow::*;
pub use mw::*;
pub use queue::*;
pub use srq::*;

use crate::dma_buf::Piece;
use crate::ffi::{
    _ibv_query_gid_ex, IB_USER_VERBS_CMD_REREG_MR, VERBS_ABI_IS_EXTENDED, ib_uverbs_rereg_mr,
    ibv_ack_async_event, ibv_ah_attr, ibv_alloc_pd, ibv_async_event, ibv_close_device, ibv_context,
    ibv_cq, ibv_create_ah, ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_ah, ibv_device,
    ibv_device_attr, ibv_device_attr_ex, ibv_free_device_list, ibv_get_async_event,
    ibv_get_device_list, ibv_gid_entry, ibv_global_route, ibv_import_device, ibv_import_mr,
    ibv_import_pd, ibv_mr, ibv_open_device, ibv_pd, ibv_port_attr, ibv_qp, ibv_query_device,
    ibv_query_port, ibv_reg_dmabuf_mr, ibv_reg_mr, ibv_rereg_mr, ibv_sge, ibv_srq, ibv_unimport_mr,
    ibv_unimport_pd, ibv_values_ex, verbs_context,
};
use crate::memory::Memory;

/// An `errno` value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's `errno`.
    #[must_use]
    pub fn last() -> Self {
        Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl std::fmt::Display for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

impl std::fmt::Debug for Errno {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")
    }
}

impl std::error::Error for Errno {}

/// Result of a verb.
pub type Result<T> = std::result::Result<T, Errno>;

/// Verbs that return an `errno` value; some old ones return -1 and set `errno`.
pub(crate) fn status(rc: i32) -> Result<()> {
    match rc {
        0 => Ok(()),
        rc if rc < 0 => Err(if rc == -1 { Errno::last() } else { Errno(-rc) }),
        rc => Err(Errno(rc)),
    }
}

fn object<T>(pointer: *mut T) -> Result<*mut T> {
    if pointer.is_null() {
        Err(Errno::last())
    } else {
        Ok(pointer)
    }
}

/// Destructions that failed in a `Drop`: a leak that [`failed_destroys`] reports.
static FAILED_DESTROYS: AtomicU64 = AtomicU64::new(0);

/// Number of objects whose destruction failed so far in this process.
#[must_use]
pub fn failed_destroys() -> u64 {
    FAILED_DESTROYS.load(Ordering::Relaxed)
}

pub(crate) fn destroyed(what: &str, rc: i32) {
    if let Err(e) = status(rc) {
        FAILED_DESTROYS.fetch_add(1, Ordering::Relaxed);
        eprintln!("destroying a {what}: {e}");
    }
}

/// Waits until one of `fds` is readable; false after `timeout`.
pub fn poll_fds(fds: &[RawFd], timeout: Duration) -> std::io::Result<bool> {
    let mut polled: Vec<libc::pollfd> = fds
        .iter()
        .map(|fd| libc::pollfd {
            fd: *fd,
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: the array is live and its length is given.
    match unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, ms) } {
        n if n < 0 => {
            let e = std::io::Error::last_os_error();
            if e.kind() == std::io::ErrorKind::Interrupted {
                Ok(false)
            } else {
                Err(e)
            }
        }
        n => Ok(n > 0),
    }
}

/// Bits that the access of every region gets besides.
static ALL_ACCESS: AtomicI32 = AtomicI32::new(0);

/// From now on this process registers regions on demand only.
pub fn register_on_demand() {
    ALL_ACCESS.store(ACCESS_ON_DEMAND, Ordering::Relaxed);
}

/// Names of all RDMA devices.
pub fn device_names() -> Result<Vec<String>> {
    with_devices(|devices| devices.iter().map(|d| device_name(*d)).collect())
}

fn device_name(device: *mut ibv_device) -> String {
    // SAFETY: called on entries of a live device list; the name is a C string inside the struct.
    unsafe {
        std::ffi::CStr::from_ptr((*device).name.as_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

fn with_devices<T>(f: impl FnOnce(&[*mut ibv_device]) -> T) -> Result<T> {
    let mut count = 0;
    // SAFETY: `count` is writable; the list is freed below, after its last use.
    let list = object(unsafe { ibv_get_device_list(&raw mut count) })?;
    // SAFETY: the list has `count` entries.
    let out = f(unsafe { std::slice::from_raw_parts(list, count as usize) });
    // SAFETY: the list came from `ibv_get_device_list` and is used no more.
    unsafe { ibv_free_device_list(list) };
    Ok(out)
}

/// A GID table entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the port's table.
    pub index: u8,
    /// The GID, as the IPv6 address it is.
    pub gid: Ipv6Addr,
    /// 0 for InfiniBand, 1 for RoCE v1, 2 for RoCE v2.
    pub kind: u32,
    /// The port's LID, 0 on Ethernet.
    pub lid: u16,
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    pub(crate) raw: *mut ibv_context,
    name: String,
}

// SAFETY: libibverbs is thread safe: every object may be used from any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device `name`, or the first one.
    pub fn open(name: Option<&str>) -> Result<Arc<Self>> {
        with_devices(|devices| {
            let device = devices
                .iter()
                .find(|d| name.is_none_or(|n| device_name(**d) == n))
                .ok_or(Errno(libc::ENODEV))?;
            // SAFETY: the device is an entry of the live list.
            let raw = object(unsafe { ibv_open_device(*device) })?;
            Ok(Self::of(raw))
        })?
    }

    /// Takes part in a context that another process has open as `fd`, or this one.
    pub fn import(fd: OwnedFd) -> Result<Arc<Self>> {
        // SAFETY: the descriptor is given away, also if this fails.
        let raw = object(unsafe { ibv_import_device(fd.into_raw_fd()) })?;
        Ok(Self::of(raw))
    }

    /// Owns a context.
    fn of(raw: *mut ibv_context) -> Arc<Self> {
        // SAFETY: the context is open. A plain system call on its own descriptor, so that waiting is done by poll(2).
        let name = unsafe {
            let fd = (*raw).async_fd;
            libc::fcntl(
                fd,
                libc::F_SETFL,
                libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK,
            );
            device_name((*raw).device)
        };
        Arc::new(Context { raw, name })
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Device attributes.
    pub fn device_attr(&self) -> Result<ibv_device_attr> {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open and `attr` is writable.
        status(unsafe { ibv_query_device(self.raw, &raw mut attr) })?;
        Ok(attr)
    }

    /// Device attributes, and those that came later.
    pub fn device_attr_ex(&self) -> Result<ibv_device_attr_ex> {
        let extended = self.extended().ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut attr: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        // SAFETY: the extended context contains the open one; `attr` is writable with the size given.
        status(unsafe {
            let query = (*extended).query_device_ex.ok_or(Errno(libc::EOPNOTSUPP))?;
            query(self.raw, ptr::null(), &raw mut attr, size_of_val(&attr))
        })?;
        Ok(attr)
    }

    /// What the device's clock shows, in its ticks.
    pub fn raw_clock(&self) -> Result<u64> {
        let extended = self.extended().ok_or(Errno(libc::EOPNOTSUPP))?;
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut values: ibv_values_ex = unsafe { std::mem::zeroed() };
        values.comp_mask = 1; // IBV_VALUES_MASK_RAW_CLOCK
        // SAFETY: the extended context contains the open one; `values` is writable.
        status(unsafe {
            let query = (*extended).query_rt_values.ok_or(Errno(libc::EOPNOTSUPP))?;
            query(self.raw, &raw mut values)
        })?;
        Ok(values.raw_clock.tv_nsec as u64)
    }

    /// Attributes of port 1.
    pub fn port_attr(&self) -> Result<ibv_port_attr> {
        let mut attr = ibv_port_attr::default();
        // SAFETY: the context is open; the symbol writes at most the older, shorter struct.
        status(unsafe { ibv_query_port(self.raw, 1, &raw mut attr) })?;
        Ok(attr)
    }

    /// Number of completion vectors.
    #[must_use]
    pub fn completion_vectors(&self) -> u32 {
        // SAFETY: the context is open.
        unsafe { (*self.raw).num_comp_vectors as u32 }
    }

    /// The used entries of port 1's GID table.
    pub fn gids(&self) -> Result<Vec<GidEntry>> {
        let mut out = Vec::new();
        let port = self.port_attr()?;
        for index in 0..port.gid_tbl_len.min(256) {
            let mut entry = ibv_gid_entry::default();
            // SAFETY: the context is open and `entry` is writable with the size given.
            let rc = unsafe {
                _ibv_query_gid_ex(
                    self.raw,
                    1,
                    index as u32,
                    &raw mut entry,
                    0,
                    size_of::<ibv_gid_entry>(),
                )
            };
            if rc == 0 {
                let mut raw = [0; 16];
                raw[..8].copy_from_slice(&entry.gid[0].to_ne_bytes());
                raw[8..].copy_from_slice(&entry.gid[1].to_ne_bytes());
                out.push(GidEntry {
                    index: index as u8,
                    gid: Ipv6Addr::from(raw),
                    kind: entry.gid_type,
                    lid: port.lid,
                });
            }
        }
        Ok(out)
    }

    /// The GID at `index`, or the best one: RoCE v2 with an IPv4 address before others, link-local last.
    pub fn gid(&self, index: Option<u8>) -> Result<GidEntry> {
        let rank = |e: &GidEntry| {
            (
                e.kind == 2,
                e.gid.to_ipv4_mapped().is_some(),
                !e.gid.is_unicast_link_local(),
                u8::MAX - e.index,
            )
        };
        let all = self.gids()?;
        match index {
            Some(i) => all.into_iter().find(|e| e.index == i),
            None => all.into_iter().max_by_key(rank),
        }
        .ok_or(Errno(libc::ENOENT))
    }

    /// The extended context, when the library has one.
    pub(crate) fn extended(&self) -> Option<*mut verbs_context> {
        // SAFETY: the context is open; with the marker set it is the last field of a `verbs_context`.
        unsafe {
            ((*self.raw).abi_compat.addr() == VERBS_ABI_IS_EXTENDED).then(|| {
                self.raw
                    .byte_sub(std::mem::offset_of!(verbs_context, context))
                    .cast()
            })
        }
    }

    /// Descriptor that is readable when an async event waits.
    #[must_use]
    pub fn async_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw).async_fd }
    }

    /// The context for another process to [`import`](Self::import).
    pub fn share(&self) -> std::io::Result<OwnedFd> {
        // SAFETY: the context is open, and so is its descriptor.
        unsafe { BorrowedFd::borrow_raw(self.command_fd()) }.try_clone_to_owned()
    }

    /// The descriptor of commands to the kernel.
    #[must_use]
    pub fn command_fd(&self) -> RawFd {
        // SAFETY: the context is open.
        unsafe { (*self.raw).cmd_fd }
    }

    /// The next async event, acknowledged; `None` after `timeout`.
    pub fn async_event(&self, timeout: Duration) -> Option<AsyncEvent> {
        if !poll_fds(&[self.async_fd()], timeout).ok()? {
            return None;
        }
        let mut event = ibv_async_event {
            element: ptr::null_mut(),
            event_type: 0,
        };
        // SAFETY: the context is open, its descriptor non-blocking, `event` writable.
        if unsafe { ibv_get_async_event(self.raw, &raw mut event) } != 0 {
            return None;
        }
        let object = match event.event_type {
            EVENT_QP_FATAL
            | EVENT_QP_REQ_ERR
            | EVENT_QP_ACCESS_ERR
            | EVENT_COMM_EST
            | EVENT_SQ_DRAINED
            | EVENT_PATH_MIG
            | EVENT_PATH_MIG_ERR
            | EVENT_QP_LAST_WQE_REACHED => {
                // SAFETY: a QP event names a QP that cannot be destroyed before the event is acknowledged.
                EventObject::Qp(unsafe { (*event.element.cast::<ibv_qp>()).qp_num })
            }
            EVENT_CQ_ERR => {
                // SAFETY: likewise for a CQ.
                EventObject::Cq(unsafe { (*event.element.cast::<ibv_cq>()).cq_context.addr() })
            }
            EVENT_SRQ_ERR | EVENT_SRQ_LIMIT_REACHED => {
                // SAFETY: likewise for an SRQ.
                EventObject::Srq(unsafe { (*event.element.cast::<ibv_srq>()).handle })
            }
            _ => EventObject::Device,
        };
        // SAFETY: the event was just received and is acknowledged once.
        unsafe { ibv_ack_async_event(&raw mut event) };
        Some(AsyncEvent {
            kind: event.event_type,
            object,
        })
    }

    /// Waits for an event that `wanted` accepts and returns it; others are dropped.
    pub fn wait_event(
        &self,
        timeout: Duration,
        wanted: impl Fn(&AsyncEvent) -> bool,
    ) -> Option<AsyncEvent> {
        let end = std::time::Instant::now() + timeout;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.async_event(left) {
                Some(event) if wanted(&event) => return Some(event),
                None if left.is_zero() => return None,
                _ => {}
            }
        }
    }

    /// Closes the device, saying how that went.
    pub fn close(self: Arc<Self>) -> Result<()> {
        let context = Arc::into_inner(self).ok_or(Errno(libc::EBUSY))?;
        let raw = context.raw;
        std::mem::forget(context);
        // SAFETY: the last handle of the context was just given up, and every object in it held one.
        status(unsafe { ibv_close_device(raw) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the last user of the context is gone.
        destroyed("context", unsafe { ibv_close_device(self.raw) });
    }
}

/// What an async event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventObject {
    /// The QP of this number.
    Qp(u32),
    /// The CQ of this id.
    Cq(usize),
    /// The SRQ of this handle.
    Srq(u32),
    /// The port or the whole device.
    Device,
}

/// An async event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// One of the `EVENT_` constants.
    pub kind: i32,
    /// Its object.
    pub object: EventObject,
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    pub(crate) raw: *mut ibv_pd,
    pub(crate) context: Arc<Context>,
    imported: bool,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Allocates a protection domain.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = object(unsafe { ibv_alloc_pd(context.raw) })?;
        Ok(Arc::new(Pd {
            raw,
            context: context.clone(),
            imported: false,
        }))
    }

    /// A protection domain of another process that has the context, by its handle.
    pub fn import(context: &Arc<Context>, handle: u32) -> Result<Arc<Self>> {
        // SAFETY: the context is open.
        let raw = object(unsafe { ibv_import_pd(context.raw, handle) })?;
        Ok(Arc::new(Pd {
            raw,
            context: context.clone(),
            imported: true,
        }))
    }

    /// What it is called in its context.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: the PD is allocated.
        unsafe { (*self.raw).handle }
    }

    /// The device.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: every user of the PD held a handle and is gone.
        unsafe {
            if self.imported {
                ibv_unimport_pd(self.raw);
            } else {
                destroyed("PD", ibv_dealloc_pd(self.raw));
            }
        }
    }
}

/// A memory region, which owns its memory.
#[derive(Debug)]
pub struct Mr {
    raw: *mut ibv_mr,
    memory: Arc<Memory>,
    pd: Arc<Pd>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// Registers `len` fresh bytes with `access` (the `ACCESS_` bits).
    pub fn new(pd: &Arc<Pd>, len: usize, access: i32) -> Result<Self> {
        let memory = Arc::new(Memory::new(len)?);
        Self::of(pd, &memory, 0, len, access)
    }

    /// Registers `len` bytes at `offset` of `memory`. The range may be wrong on purpose.
    pub fn of(
        pd: &Arc<Pd>,
        memory: &Arc<Memory>,
        offset: usize,
        len: usize,
        access: i32,
    ) -> Result<Self> {
        let addr = ptr::without_provenance_mut(memory.addr(offset) as usize);
        let access = access | ALL_ACCESS.load(Ordering::Relaxed);
        // SAFETY: the kernel checks the range; what lies in `memory` stays mapped as long as this region.
        let raw = object(unsafe { ibv_reg_mr(pd.raw, addr, len, access) })?;
        Ok(Mr {
            raw,
            memory: memory.clone(),
            pd: pd.clone(),
        })
    }

    /// Registers a piece of a dma-buf. It may be wrong on purpose.
    pub fn of_dma_buf(pd: &Arc<Pd>, piece: &Piece, access: i32) -> Result<Self> {
        let Piece {
            fd,
            offset,
            len,
            iova,
            ..
        } = *piece;
        // SAFETY: the kernel checks the range, and keeps what is in it.
        let raw =
            object(unsafe { ibv_reg_dmabuf_mr(pd.raw, offset as u64, len, iova, fd, access) })?;
        Ok(Mr {
            raw,
            memory: piece.memory.clone(),
            pd: pd.clone(),
        })
    }

    /// Allocates a region of zeros that keep nothing. It has no memory to speak of.
    pub fn null(pd: &Arc<Pd>) -> Result<Self> {
        let memory = Arc::new(Memory::new(1)?);
        let unsupported = Errno(libc::EOPNOTSUPP);
        let extended = pd.context.extended().ok_or(unsupported)?;
        // SAFETY: the context is open, and the PD one of it.
        let raw = unsafe { (*extended).alloc_null_mr.map(|alloc| alloc(pd.raw)) };
        let raw = object(raw.ok_or(unsupported)?)?;
        Ok(Mr {
            raw,
            memory,
            pd: pd.clone(),
        })
    }

    /// Registers all of the address space, whatever is there.
    pub fn of_everything(pd: &Arc<Pd>, access: i32) -> Result<Self> {
        let memory = Arc::new(Memory::new(1)?);
        // SAFETY: a device changes what requests of this process name, and nobody else has the key.
        let raw = object(unsafe { ibv_reg_mr(pd.raw, ptr::null_mut(), usize::MAX, access) })?;
        Ok(Mr {
            raw,
            memory,
            pd: pd.clone(),
        })
    }

    /// The memory registered.
    #[must_use]
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Local key.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.raw).lkey }
    }

    /// Remote key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.raw).rkey }
    }

    /// What it is called in its context.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // SAFETY: the region is registered.
        unsafe { (*self.raw).handle }
    }

    /// Address of byte `offset` of the memory.
    #[must_use]
    pub fn addr(&self, offset: usize) -> u64 {
        self.memory.addr(offset)
    }

    /// `len` bytes at `offset`, which must lie in the memory.
    #[must_use]
    pub fn sge(&self, offset: usize, len: usize) -> Sge<'_> {
        assert!(offset + len <= self.memory.len());
        Sge::backed(ibv_sge {
            addr: self.addr(offset),
            length: len as u32,
            lkey: self.lkey(),
        })
    }

    /// Changes what `change` names and nothing else. The keys may be others then.
    pub fn change(&mut self, change: &Change<'_>) -> Result<()> {
        let (flags, addr, length) = change.request();
        let pd = change.pd.map_or(ptr::null_mut(), |pd| pd.raw);
        let access = change.access.unwrap_or(0);
        // SAFETY: the region is registered; the kernel checks the range; what lies in the memory stays mapped as long
        // as this region, which gets the handle below.
        let rc = unsafe { ibv_rereg_mr(self.raw, flags, pd, addr, length, access) };
        if rc != 0 {
            // What it returns says what became of the region, and errno why.
            return Err(Errno::last());
        }
        self.changed(change);
        Ok(())
    }

    /// As [`change`](Self::change), by a command of our own: there are regions for which the library does not ask.
    pub fn change_past_library(&mut self, change: &Change<'_>) -> Result<()> {
        let (flags, addr, length) = change.request();
        let mut response = [0_u32; 2];
        let command = ib_uverbs_rereg_mr {
            command: IB_USER_VERBS_CMD_REREG_MR,
            in_words: (size_of::<ib_uverbs_rereg_mr>() / 4) as u16,
            out_words: response.len() as u16,
            response: (&raw mut response).addr() as u64,
            mr_handle: self.handle(),
            flags: flags as u32,
            start: addr.addr() as u64,
            length: length as u64,
            hca_va: addr.addr() as u64,
            pd_handle: change.pd.map_or(0, |pd| pd.handle()),
            access_flags: change.access.unwrap_or(0) as u32,
        };
        // SAFETY: the command is complete, the response that it names is writable, and both live across the call; what
        // lies in the memory stays mapped as long as this region, which gets the handle below.
        let written = unsafe {
            libc::write(
                self.pd.context.command_fd(),
                (&raw const command).cast(),
                size_of_val(&command),
            )
        };
        if written < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the region is registered, and ours alone.
        unsafe {
            (*self.raw).lkey = response[0];
            (*self.raw).rkey = response[1];
        }
        self.changed(change);
        Ok(())
    }

    /// The region has what `change` names.
    fn changed(&mut self, change: &Change<'_>) {
        if let Some((memory, ..)) = change.memory {
            self.memory = memory.clone();
        }
        if let Some(pd) = change.pd {
            self.pd = pd.clone();
        }
    }

    /// Deregisters, or gives the region back with the reason why not.
    pub fn try_deregister(self) -> std::result::Result<(), (Self, Errno)> {
        // SAFETY: the region is registered, and given up here if it is not any more.
        match status(unsafe { ibv_dereg_mr(self.raw) }) {
            Ok(()) => {
                self.forget();
                Ok(())
            }
            Err(e) => Err((self, e)),
        }
    }

    /// Drops all but the registration, which is no more.
    fn forget(self) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the fields are read out once, of a value never used again.
        unsafe {
            drop((
                ptr::read(&raw const this.memory),
                ptr::read(&raw const this.pd),
            ));
        }
    }

    /// Deregisters, saying how that went; the memory is given back.
    pub fn deregister(self) -> Result<Arc<Memory>> {
        let memory = self.memory.clone();
        // SAFETY: the region is registered, and given up here.
        let rc = unsafe { ibv_dereg_mr(self.raw) };
        self.forget();
        status(rc).map(|()| memory)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: the region is registered, and given up here.
        destroyed("MR", unsafe { ibv_dereg_mr(self.raw) });
    }
}

/// What of a region becomes different.
#[derive(Clone, Copy, Debug, Default)]
pub struct Change<'a> {
    /// Its memory: bytes from an offset on. The range may be wrong on purpose.
    pub memory: Option<(&'a Arc<Memory>, usize, usize)>,
    /// Its protection domain
    pub pd: Option<&'a Arc<Pd>>,
    /// Its rights (the `ACCESS_` bits)
    pub access: Option<i32>,
}

impl Change<'_> {
    /// The `REREG_` bits, and the new memory.
    fn request(&self) -> (i32, *mut libc::c_void, usize) {
        let (mut flags, mut addr, mut length) = (0, ptr::null_mut(), 0);
        if let Some((memory, offset, len)) = self.memory {
            flags |= REREG_TRANSLATION;
            addr = ptr::without_provenance_mut(memory.addr(offset) as usize);
            length = len;
        }
        flags |= self.pd.map_or(0, |_| REREG_PD) | self.access.map_or(0, |_| REREG_ACCESS);
        (flags, addr, length)
    }
}

/// A memory region of another process.
#[derive(Debug)]
pub struct ImportedMr {
    raw: *mut ibv_mr,
    _pd: Arc<Pd>,
}

impl ImportedMr {
    /// The region that is called `handle` in the context of `pd`.
    pub fn new(pd: &Arc<Pd>, handle: u32) -> Result<Self> {
        // SAFETY: the PD is there.
        let raw = object(unsafe { ibv_import_mr(pd.raw, handle) })?;
        Ok(ImportedMr {
            raw,
            _pd: pd.clone(),
        })
    }

    /// Local and remote key.
    #[must_use]
    pub fn keys(&self) -> (u32, u32) {
        // SAFETY: the region is there.
        unsafe { ((*self.raw).lkey, (*self.raw).rkey) }
    }

    /// Bytes of the region.
    #[must_use]
    pub fn length(&self) -> usize {
        // SAFETY: the region is there.
        unsafe { (*self.raw).length }
    }
}

impl Drop for ImportedMr {
    fn drop(&mut self) {
        // SAFETY: imported, and used no more.
        unsafe { ibv_unimport_mr(self.raw) };
    }
}

/// An address handle.
#[derive(Debug)]
pub struct Ah {
    pub(crate) raw: *mut libc::c_void,
    _pd: Arc<Pd>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// A handle for the port with GID `to` and LID `lid`, reached from our GID `from`.
    pub fn new(pd: &Arc<Pd>, from: u8, to: Ipv6Addr, lid: u16) -> Result<Self> {
        let mut attr = address(from, to, lid);
        // SAFETY: the PD lives and `attr` is a complete attribute struct.
        let raw = object(unsafe { ibv_create_ah(pd.raw, &raw mut attr) })?;
        Ok(Ah {
            raw,
            _pd: pd.clone(),
        })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and given up here.
        destroyed("AH", unsafe { ibv_destroy_ah(self.raw) });
    }
}

/// The address vector from our GID index `from` to the port with GID `to` and LID `lid`, on port 1.
#[must_use]
pub fn address(from: u8, to: Ipv6Addr, lid: u16) -> ibv_ah_attr {
    let raw = to.octets();
    let half = |i: usize| u64::from_ne_bytes(raw[i..i + 8].try_into().unwrap_or_default());
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: [half(0), half(8)],
            flow_label: 0,
            sgid_index: from,
            hop_limit: 64,
            traffic_class: 0,
        },
        dlid: lid,
        is_global: 1,
        port_num: 1,
        ..Default::default()
    }
}
