// SPDX-License-Identifier: GPL-2.0

//! Tests of resource dumps.

use core::slice;

use kernel::bindings::{
    __alloc_skb,
    sk_buff,
    sk_skb_reason_drop,
    skb_drop_reason_SKB_CONSUMED, //
};

use crate::testing::prelude::*;

/// An empty netlink message.
struct Message(NonNull<sk_buff>);

impl Message {
    /// Allocates a message.
    fn new() -> Result<Self> {
        let flags = crate::compat::gfp_as_raw(GFP_KERNEL);
        // SAFETY: The function has no requirements.
        let raw = unsafe { __alloc_skb(256, flags, 0, -1) };
        Ok(Self(NonNull::new(raw).ok_or(ENOMEM)?))
    }

    /// Returns the C structure.
    fn as_raw(&self) -> *mut sk_buff {
        self.0.as_ptr()
    }

    /// Returns the contents of the message.
    fn bytes(&self) -> &[u8] {
        // SAFETY: The message is initialised up to its length.
        unsafe {
            let raw = self.as_raw();
            slice::from_raw_parts((*raw).data.cast(), (*raw).len as usize)
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: The message is not shared.
        unsafe { sk_skb_reason_drop(ptr::null(), self.as_raw(), skb_drop_reason_SKB_CONSUMED) };
    }
}

#[kunit_tests(rdma_restrack)]
mod cases {
    use super::*;

    #[test]
    fn objects_are_described_by_their_driver() -> Result {
        with_device(|device, _| {
            let mut qp = Pair::new(device)?;
            let mut srq = new_shared(device, &qp.pd, null_mut())?;
            let access = Access::LocalWrite as c_int;
            let mr = from_err_ptr(verb!(device, get_dma_mr(qp.pd.0, access)))?;
            let (qp_raw, cq_raw, srq_raw) = (qp.as_raw(), qp.queues[1].0.as_raw(), srq.as_raw());
            // SAFETY: Both objects are constructed.
            let (srq_number, mr_number) = unsafe {
                let mr = &*mr.cast::<Mr<Object>>();
                (Srq::<Object>::from_raw(srq_raw).number, mr.number)
            };

            let messages = [
                Message::new()?,
                Message::new()?,
                Message::new()?,
                Message::new()?,
            ];
            let [of_qp, of_cq, of_srq, of_mr] = &messages;
            to_result(verb!(device, fill_res_qp_entry(of_qp.as_raw(), qp_raw)))?;
            to_result(verb!(device, fill_res_cq_entry(of_cq.as_raw(), cq_raw)))?;
            to_result(verb!(device, fill_res_srq_entry(of_srq.as_raw(), srq_raw)))?;
            to_result(verb!(device, fill_res_mr_entry(of_mr.as_raw(), mr)))?;
            let numbers = [qp.number(), qp.queues[1].number(), srq_number, mr_number];
            for (message, number) in messages.iter().zip(numbers) {
                // The number comes last.
                assert!(message.bytes().ends_with(&number.to_ne_bytes()));
            }

            to_result(verb!(device, dereg_mr(mr, null_mut())))?;
            to_result(verb!(device, destroy_srq(srq_raw, null_mut())))?;
            qp.end(device)
        })
    }
}

#[kunit_tests(rdma_details)]
mod details {
    use super::super::*;

    use super::Message;

    const STRING: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_STRING;
    const PRINT_TYPE: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE;
    const NUMBER: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_U32;
    const LONG: u32 = bindings::rdma_nldev_attr_RDMA_NLDEV_ATTR_DRIVER_U64;

    /// Writes the driver's part of a message with `fill`.
    fn write(message: &Message, fill: impl FnOnce(&mut Details<'_>) -> Result) -> c_int {
        // SAFETY: The message is not shared.
        unsafe { Details::write(message.as_raw(), fill) }
    }

    /// Parses the first attribute (`struct nlattr` and its payload). Returns type, payload, and the
    /// rest.
    fn attribute(bytes: &[u8]) -> Result<(u32, &[u8], &[u8])> {
        let [l0, l1, t0, t1, rest @ ..] = bytes else {
            return Err(ENODATA);
        };
        let length = usize::from(u16::from_ne_bytes([*l0, *l1]));
        let payload = rest.get(..length.wrapping_sub(4)).ok_or(EINVAL)?;
        let left = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        // Without the flag for nested attributes.
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
        // SAFETY: A null pointer is allowed.
        let none = unsafe { Details::write(core::ptr::null_mut(), |_| Ok(())) };
        assert_eq!(none, EINVAL.to_errno());
        Ok(())
    }
}
