// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Completion counters, through libibverbs if that has them (rdma-core 65), or past it: the kernel has them anyway.

use std::ffi::{CStr, c_int};
use std::mem::{ManuallyDrop, transmute_copy};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

use super::{Context, Errno, Qp, Result, destroyed, object, status};
use crate::ffi::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_context, ibv_qp,
    ibv_qp_attach_comp_cntr_attr,
};

const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

/// The bits of the operations that a counter counts: `IBV_QP_ATTACH_COMP_CNTR_OP_SEND`.
pub const COUNT_SEND: u32 = 1 << 0;
/// `IBV_QP_ATTACH_COMP_CNTR_OP_RECV`.
pub const COUNT_RECV: u32 = 1 << 1;
/// `IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ`.
pub const COUNT_READ: u32 = 1 << 2;
/// `IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ`.
pub const COUNT_REMOTE_READ: u32 = 1 << 3;
/// `IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE`.
pub const COUNT_WRITE: u32 = 1 << 4;
/// `IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE`.
pub const COUNT_REMOTE_WRITE: u32 = 1 << 5;
/// All of them.
pub const COUNT_ALL: u32 = (1 << 6) - 1;

/// One of the values of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Operations that succeeded.
    Completions,
    /// Operations that failed.
    Errors,
}

/// How to use counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through libibverbs and the provider.
    Library,
    /// By methods of the kernel's device file.
    Kernel,
}

impl Way {
    /// The ways that there are here.
    #[must_use]
    pub fn all() -> &'static [Self] {
        if symbol(c"ibv_create_comp_cntr").is_some() {
            &[Way::Library, Way::Kernel]
        } else {
            &[Way::Kernel]
        }
    }
}

/// Finds a function of libibverbs that older releases lack.
fn symbol(name: &CStr) -> Option<*mut libc::c_void> {
    // SAFETY: a name that ends in a zero byte.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// The function of libibverbs with this name and type.
fn function<F: Copy>(name: &CStr) -> Result<F> {
    const { assert!(size_of::<F>() == size_of::<*mut libc::c_void>()) };
    let found = symbol(name).ok_or(UNSUPPORTED)?;
    // SAFETY: who asks names the type that the function has in verbs.h; it is a pointer to a function.
    Ok(unsafe { transmute_copy(&found) })
}

/// An attribute of a method of the kernel (`struct ib_uverbs_attr`).
#[repr(C)]
#[derive(Clone, Copy)]
struct Attr {
    id: u16,
    length: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

impl Attr {
    /// An object, or a value of `length` bytes.
    fn new(id: u16, data: u64, length: u16) -> Self {
        Attr {
            id,
            length,
            flags: 1,
            reserved: 0,
            data,
        }
    }

    /// Room for what the kernel returns.
    fn out<T>(id: u16, room: &mut T) -> Self {
        Self::new(id, ptr::from_mut(room).addr() as u64, size_of::<T>() as u16)
    }
}

/// A method with its attributes (`struct ib_uverbs_ioctl_hdr`).
#[repr(C)]
struct Method<const N: usize> {
    length: u16,
    object: u16,
    method: u16,
    count: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
    attrs: [Attr; N],
}

/// `UVERBS_OBJECT_*`.
const DEVICE: u16 = 0;
const QP: u16 = 4;
const COMP_CNTR: u16 = 19;
/// Methods of counters.
const CREATE: u16 = 0;
const DESTROY: u16 = 1;
const MODIFY: u16 = 2;
const READ: u16 = 3;
/// `RDMA_VERBS_IOCTL`.
const IOCTL: libc::Ioctl = 0xc018_1b01;
/// `VRNIC_DRIVER_ID`: no other driver that the tests see has counters.
const DRIVER: u32 = 0x76_726e;

/// Calls a method. Returns the attributes as the kernel left them.
fn call<const N: usize>(
    fd: RawFd,
    object: u16,
    method: u16,
    attrs: [Attr; N],
) -> Result<[Attr; N]> {
    let mut request = Method {
        length: size_of::<Method<N>>() as u16,
        object,
        method,
        count: N as u16,
        reserved1: 0,
        driver: DRIVER,
        reserved2: 0,
        attrs,
    };
    // SAFETY: the request has the length that it names, and what its attributes refer to lives across the call.
    if unsafe { libc::ioctl(fd, IOCTL, &raw mut request) } == 0 {
        Ok(request.attrs)
    } else {
        Err(Errno::last())
    }
}

/// A completion counter.
#[derive(Debug)]
pub struct CompCntr {
    way: Way,
    /// Of the library, if that is the way.
    raw: *mut ibv_comp_cntr,
    handle: u32,
    context: Arc<Context>,
}

// SAFETY: libibverbs objects may be used from any thread.
unsafe impl Send for CompCntr {}
// SAFETY: as above.
unsafe impl Sync for CompCntr {}

impl CompCntr {
    /// What the device's counters can do: the largest value, the number of counters, and the operations.
    pub fn caps(context: &Arc<Context>, way: Way) -> Result<(u64, u32, u32)> {
        type Query =
            unsafe extern "C" fn(*mut ibv_context, *mut ibv_comp_cntr_caps, usize) -> c_int;
        let mut caps = ibv_comp_cntr_caps::default();
        match way {
            Way::Library => {
                let query: Query = function(c"_ibv_query_comp_cntr_caps")?;
                // SAFETY: the context is open, and the structure has this size.
                status(unsafe { query(context.raw, &raw mut caps, size_of_val(&caps)) })?;
            }
            Way::Kernel => {
                let attrs = [
                    Attr::out(0, &mut caps.max_counters),
                    Attr::out(1, &mut caps.max_value),
                    Attr::out(2, &mut caps.supported_qp_attach_ops),
                ];
                call(context.command_fd(), DEVICE, 8, attrs)?;
            }
        }
        Ok((
            caps.max_value,
            caps.max_counters,
            caps.supported_qp_attach_ops,
        ))
    }

    /// Creates a counter.
    pub fn new(context: &Arc<Context>, way: Way) -> Result<Self> {
        type Create = unsafe extern "C" fn(
            *mut ibv_context,
            *mut ibv_comp_cntr_init_attr,
        ) -> *mut ibv_comp_cntr;
        let (raw, handle) = match way {
            Way::Library => {
                let create: Create = function(c"ibv_create_comp_cntr")?;
                let mut attr = ibv_comp_cntr_init_attr::default();
                // SAFETY: the context is open, and the attributes are complete.
                let raw = object(unsafe { create(context.raw, &raw mut attr) })?;
                // SAFETY: the counter was just created.
                (raw, unsafe { (*raw).handle })
            }
            Way::Kernel => {
                let fd = context.command_fd();
                let [made] = call(fd, COMP_CNTR, CREATE, [Attr::new(0, 0, 0)])?;
                (ptr::null_mut(), made.data as u32)
            }
        };
        Ok(CompCntr {
            way,
            raw,
            handle,
            context: context.clone(),
        })
    }

    /// Counts these operations of a QP.
    pub fn attach(&self, qp: &Qp, operations: u32) -> Result<()> {
        type Attach = unsafe extern "C" fn(
            *mut ibv_qp,
            *mut ibv_comp_cntr,
            *mut ibv_qp_attach_comp_cntr_attr,
        ) -> c_int;
        match self.way {
            Way::Library => {
                let attach: Attach = function(c"ibv_qp_attach_comp_cntr")?;
                let mut attr = ibv_qp_attach_comp_cntr_attr {
                    comp_mask: 0,
                    op_mask: operations,
                };
                // SAFETY: both live, and the attributes are complete.
                status(unsafe { attach(qp.raw, self.raw, &raw mut attr) })
            }
            Way::Kernel => {
                // SAFETY: the QP lives.
                let qp_handle = unsafe { (*qp.raw).handle };
                let attrs = [
                    Attr::new(0, qp_handle.into(), 0),
                    Attr::new(1, self.handle.into(), 0),
                    Attr::new(2, operations.into(), 4),
                ];
                call(self.context.command_fd(), QP, 2, attrs).map(|_| ())
            }
        }
    }

    /// Sets a value.
    pub fn set(&self, value: Value, to: u64) -> Result<()> {
        let name = match value {
            Value::Completions => c"ibv_set_comp_cntr",
            Value::Errors => c"ibv_set_err_comp_cntr",
        };
        self.change(name, value, 0, to)
    }

    /// Adds to a value.
    pub fn add(&self, value: Value, amount: u64) -> Result<()> {
        let name = match value {
            Value::Completions => c"ibv_inc_comp_cntr",
            Value::Errors => c"ibv_inc_err_comp_cntr",
        };
        self.change(name, value, 1, amount)
    }

    fn change(&self, name: &CStr, value: Value, how: u64, amount: u64) -> Result<()> {
        type Change = unsafe extern "C" fn(*mut ibv_comp_cntr, u64) -> c_int;
        match self.way {
            Way::Library => {
                let change: Change = function(name)?;
                // SAFETY: the counter lives.
                status(unsafe { change(self.raw, amount) })
            }
            Way::Kernel => {
                let attrs = [
                    Attr::new(0, self.handle.into(), 0),
                    Attr::new(1, value as u64, 8),
                    Attr::new(2, how, 8),
                    Attr::new(3, amount, 8),
                ];
                call(self.context.command_fd(), COMP_CNTR, MODIFY, attrs).map(|_| ())
            }
        }
    }

    /// Reads a value.
    pub fn read(&self, value: Value) -> Result<u64> {
        type Read = unsafe extern "C" fn(*mut ibv_comp_cntr, *mut u64) -> c_int;
        let mut read = 0;
        match self.way {
            Way::Library => {
                let function: Read = function(match value {
                    Value::Completions => c"ibv_read_comp_cntr",
                    Value::Errors => c"ibv_read_err_comp_cntr",
                })?;
                // SAFETY: the counter lives, and there is room for the value.
                status(unsafe { function(self.raw, &raw mut read) })?;
            }
            Way::Kernel => {
                let attrs = [
                    Attr::new(0, self.handle.into(), 0),
                    Attr::new(1, value as u64, 8),
                    Attr::out(2, &mut read),
                ];
                call(self.context.command_fd(), COMP_CNTR, READ, attrs)?;
            }
        }
        Ok(read)
    }

    /// Destroys the counter, or gives it back with the reason why not.
    pub fn try_destroy(self) -> std::result::Result<(), (Self, Errno)> {
        match self.destroy() {
            Ok(()) => {
                let this = ManuallyDrop::new(self);
                // SAFETY: read out once, of a value never used again.
                drop(unsafe { ptr::read(&raw const this.context) });
                Ok(())
            }
            Err(e) => Err((self, e)),
        }
    }

    fn destroy(&self) -> Result<()> {
        type Destroy = unsafe extern "C" fn(*mut ibv_comp_cntr) -> c_int;
        match self.way {
            Way::Library => {
                let destroy: Destroy = function(c"ibv_destroy_comp_cntr")?;
                // SAFETY: the counter lives; who calls this gives it up on success.
                status(unsafe { destroy(self.raw) })
            }
            Way::Kernel => {
                let attrs = [Attr::new(0, self.handle.into(), 0)];
                call(self.context.command_fd(), COMP_CNTR, DESTROY, attrs).map(|_| ())
            }
        }
    }
}

impl Drop for CompCntr {
    fn drop(&mut self) {
        let error = self.destroy().err();
        destroyed("completion counter", error.map_or(0, |error| error.0));
    }
}
