// SPDX-License-Identifier: GPL-2.0

//! Driver details of objects in resource dumps (`rdma resource show -dd`).

use core::{
    marker::PhantomData,
    ptr::NonNull, //
};

use kernel::{
    error::to_result,
    prelude::*, //
};

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// The driver's part of an object's resource dump.
pub struct Details<'a> {
    message: NonNull<bindings::sk_buff>,
    _message: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Writes the driver's part of a message. On error nothing is added to the message.
    ///
    /// # Safety
    ///
    /// `message` must be a netlink message to which this call has exclusive access.
    pub(crate) unsafe fn write(
        message: *mut bindings::sk_buff,
        fill: impl FnOnce(&mut Details<'_>) -> Result,
    ) -> c_int {
        let Some(message) = NonNull::new(message) else {
            return EINVAL.to_errno();
        };
        // SAFETY: The message is valid, as the caller guarantees.
        // CAST: A small constant.
        let nest = unsafe {
            bindings::nla_nest_start(
                message.as_ptr(),
                bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER as c_int,
            )
        };
        if nest.is_null() {
            return EMSGSIZE.to_errno();
        }

        let mut details = Details {
            message,
            _message: PhantomData,
        };
        match fill(&mut details) {
            // SAFETY: The nest was started above in this message.
            Ok(()) => unsafe {
                bindings::nla_nest_end(message.as_ptr(), nest);
                0
            },
            // SAFETY: The nest was started above in this message.
            Err(error) => unsafe {
                bindings::nla_nest_cancel(message.as_ptr(), nest);
                error.to_errno()
            },
        }
    }

    /// Adds a number.
    pub fn number(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: The message is valid; the name is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a number that is displayed in hexadecimal.
    pub fn hex(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: The message is valid; the name is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a 64-bit number.
    pub fn long(&mut self, name: &CStr, value: u64) -> Result {
        // SAFETY: The message is valid; the name is copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u64(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a string.
    pub fn text(&mut self, name: &CStr, value: &CStr) -> Result {
        // SAFETY: The message is valid; name and text are copied.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_string(
                self.message.as_ptr(),
                name.as_char_ptr(),
                value.as_char_ptr(),
            )
        })
    }
}
