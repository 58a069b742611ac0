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

/// The driver's part of the description of an object.
pub struct Details<'a> {
    message: NonNull<bindings::sk_buff>,
    _message: PhantomData<&'a mut bindings::sk_buff>,
}

impl Details<'_> {
    /// Writes the driver's part of a message; nothing is written if that fails.
    ///
    /// # Safety
    ///
    /// `message` must be a netlink message that nobody else accesses during the call.
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
            // SAFETY: As above.
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

    /// Adds a number that is shown in hexadecimal.
    pub fn hex(&mut self, name: &CStr, value: u32) -> Result {
        // SAFETY: As above.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u32_hex(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a long number.
    pub fn long(&mut self, name: &CStr, value: u64) -> Result {
        // SAFETY: As above.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_u64(self.message.as_ptr(), name.as_char_ptr(), value)
        })
    }

    /// Adds a text.
    pub fn text(&mut self, name: &CStr, value: &CStr) -> Result {
        // SAFETY: As above; the text is copied too.
        to_result(unsafe {
            bindings::rdma_nl_put_driver_string(
                self.message.as_ptr(),
                name.as_char_ptr(),
                value.as_char_ptr(),
            )
        })
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(rdma_details)]
mod tests {
    use super::*;

    use crate::tests::environment::Message;

    const STRING: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_STRING;
    const PRINT_TYPE: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE;
    const NUMBER: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_U32;
    const LONG: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_U64;

    /// Writes what `fill` says.
    fn write(message: &Message, fill: impl FnOnce(&mut Details<'_>) -> Result) -> c_int {
        // SAFETY: Ours alone.
        unsafe { Details::write(message.as_raw(), fill) }
    }

    /// The first attribute (`struct nlattr` and what follows it): type, payload, and what is left.
    fn attribute(bytes: &[u8]) -> Result<(u32, &[u8], &[u8])> {
        let [l0, l1, t0, t1, rest @ ..] = bytes else {
            return Err(ENODATA);
        };
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let payload = rest.get(..length.wrapping_sub(4)).ok_or(EINVAL)?;
        let left = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        // Without the flag of those that have others in them.
        let kind = u16::from_ne_bytes([*t0, *t1]) & !(1 << 15);
        Ok((kind.into(), payload, left))
    }

    #[test]
    fn details_have_names_and_kinds() -> Result {
        let message = Message::new()?;
        let written = write(&message, |details| {
            details.number(c"one", 0x1122_3344)?;
            details.hex(c"two", 0x5566_7788)?;
            details.long(c"three", 0x99aa_bbcc_ddee_ff00)?;
            details.text(c"four", c"words")
        });
        assert_eq!(written, 0);

        let (kind, mut rest, left) = attribute(message.bytes())?;
        assert_eq!(kind, bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER);
        assert!(left.is_empty());
        // CAST: A small constant.
        let hexadecimal = [bindings::rdma_nldev_print_type_RDMA_NLDEV_PRINT_TYPE_HEX as u8];
        for (kind, payload) in [
            (STRING, &b"one\0"[..]),
            (NUMBER, &0x1122_3344_u32.to_ne_bytes()),
            (STRING, b"two\0"),
            (PRINT_TYPE, &hexadecimal),
            (NUMBER, &0x5566_7788_u32.to_ne_bytes()),
            (STRING, b"three\0"),
            (LONG, &0x99aa_bbcc_ddee_ff00_u64.to_ne_bytes()),
            (STRING, b"four\0"),
            (STRING, b"words\0"),
        ] {
            let mut next = attribute(rest)?;
            if next.0 == bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_PAD {
                next = attribute(next.2)?;
            }
            assert_eq!((next.0, next.1), (kind, payload));
            rest = next.2;
        }
        assert!(rest.is_empty());
        Ok(())
    }

    #[test]
    fn details_are_written_whole_or_not_at_all() -> Result {
        let message = Message::new()?;
        let refused = write(&message, |details| {
            details.number(c"one", 1)?;
            Err(ENOENT)
        });
        assert_eq!(refused, ENOENT.to_errno());
        assert!(message.bytes().is_empty());

        let too_much = write(&message, |details| {
            for _ in 0..10_000 {
                details.text(c"one", c"two")?;
            }
            Ok(())
        });
        assert_eq!(too_much, EMSGSIZE.to_errno());
        assert!(message.bytes().is_empty());

        assert_eq!(write(&message, |details| details.number(c"one", 1)), 0);
        assert!(!message.bytes().is_empty());
        // SAFETY: There is no message.
        let none = unsafe { Details::write(core::ptr::null_mut(), |_| Ok(())) };
        assert_eq!(none, EINVAL.to_errno());
        Ok(())
    }
}
