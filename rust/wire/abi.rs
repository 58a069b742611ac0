// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! The driver's part of the uverbs commands, exchanged by driver and provider.
//!
//! These are the structures of `include/uapi/rdma/vrnic-abi.h`; a test compares the two. Unlike the
//! rest of this crate they are in native byte order, as all uverbs commands are.
//!
//! `comp_mask` comes first and says which of the members added later are valid; it is 0 if a
//! structure has no such members. Reserved members are 0. Requests that violate either rule are
//! rejected. Addresses are those of the calling process.

use crate::{command::HASH_KEY_LENGTH, ring::RingLayout, work::AddressVector};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Version of the user ABI.
pub const ABI_VERSION: u32 = 1;

/// Provisional `enum rdma_driver_id` of the driver.
pub const DRIVER_ID: u32 = 0x76_726e;

/// The driver's additions to the uverbs ioctl methods: numbers of methods and of their attributes,
/// counted from the first number of drivers (`1 << UVERBS_ID_NS_SHIFT`).
pub mod ioctl {
    /// Attribute of QUERY_CONTEXT: [`AllocContextResponse`](super::AllocContextResponse), for
    /// processes that import the objects of another process.
    pub const QUERY_CONTEXT_ATTR_RESP: u16 = 0;
    /// Method of the device that reads its clock.
    pub const METHOD_QUERY_CLOCK: u16 = 0;
    /// Attribute of [`METHOD_QUERY_CLOCK`]: [`QueryClockResponse`](super::QueryClockResponse).
    pub const QUERY_CLOCK_ATTR_RESP: u16 = 0;
    /// Method of protection domains that only checks that one exists.
    pub const METHOD_FIND_PD: u16 = 0;
    /// Attribute of [`METHOD_FIND_PD`]: handle of the protection domain.
    pub const FIND_PD_ATTR_HANDLE: u16 = 0;
    /// Method of device memory that says where a buffer is.
    pub const METHOD_QUERY_DM: u16 = 0;
    /// Attribute of [`METHOD_QUERY_DM`]: handle of the buffer.
    pub const QUERY_DM_ATTR_HANDLE: u16 = 0;
    /// Attribute of [`METHOD_QUERY_DM`]: [`QueryDmResponse`](super::QueryDmResponse).
    pub const QUERY_DM_ATTR_RESP: u16 = 1;
    /// Method of completion counters that says where the counts are.
    pub const METHOD_QUERY_COMP_CNTR: u16 = 0;
    /// Attribute of [`METHOD_QUERY_COMP_CNTR`]: handle of the counter.
    pub const QUERY_COMP_CNTR_ATTR_HANDLE: u16 = 0;
    /// Attribute of [`METHOD_QUERY_COMP_CNTR`]:
    /// [`QueryCompCntrResponse`](super::QueryCompCntrResponse).
    pub const QUERY_COMP_CNTR_ATTR_RESP: u16 = 1;
}

/// Asserts the size of a structure, a multiple of 8 bytes, and the offsets of the named fields.
macro_rules! assert_abi {
    ($ty:ty, $size:expr $(, $field:ident @ $offset:expr)* $(,)?) => {
        const _: () = {
            assert!(core::mem::size_of::<$ty>() == $size);
            assert!($size % 8 == 0);
            $(assert!(core::mem::offset_of!($ty, $field) == $offset);)*
        };
    };
}

/// Request of ALLOC_CONTEXT.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocContextRequest {
    /// 0.
    pub comp_mask: u32,
    /// Number of doorbell slots of the context, for which [`notify`](crate::notify) lists the valid
    /// values.
    pub slots: u32,
}
assert_abi!(AllocContextRequest, 8, slots @ 4);

/// Response of ALLOC_CONTEXT, and of QUERY_CONTEXT in the first of the driver's attributes.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AllocContextResponse {
    /// Mask of the valid members that were added later: [`CONTEXT_NULL_KEY`].
    pub comp_mask: u32,
    /// Length of the doorbell page in bytes, or 0 if the device has no doorbell page; then
    /// POST_SEND without work requests rings the doorbell of a queue pair.
    pub doorbell_length: u32,
    /// `mmap` offset of the doorbell page.
    pub doorbell_offset: u64,
    /// `mmap` offset of the notify area.
    pub notify_offset: u64,
    /// Length of that mapping in bytes, whole pages, at least
    /// [`area_length`](crate::notify::area_length).
    pub notify_length: u32,
    /// Maximum payload of a send entry in bytes.
    pub max_inline_data: u32,
    /// [`NULL_KEY`](crate::memory::NULL_KEY), if the device has it.
    pub null_key: u32,
    /// Queue pair types that can fill in and check checksums
    /// ([`send_flags::CHECKSUMS`](crate::work::send_flags::CHECKSUMS)): bit `n` stands for type `n`
    /// of the verbs. 0 if there are none, as from drivers that do not know this member.
    pub checksum_types: u32,
    /// Queue pair types that can send in segments
    /// ([`SendOpcode::SendSegmented`](crate::work::SendOpcode::SendSegmented)), in the same way. A
    /// header has at most [`max_inline_data`](Self::max_inline_data) bytes.
    pub segmentation_types: u32,
    /// 0.
    pub reserved_2c: [u8; 4],
}
assert_abi!(AllocContextResponse, 48, doorbell_length @ 4, doorbell_offset @ 8,
    notify_offset @ 16, notify_length @ 24, max_inline_data @ 28, null_key @ 32,
    checksum_types @ 36, segmentation_types @ 40);

/// Bit of [`AllocContextResponse::comp_mask`]: [`null_key`](AllocContextResponse::null_key) is
/// valid.
pub const CONTEXT_NULL_KEY: u32 = 1;

/// Response of QUERY_DEVICE.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDeviceResponse {
    /// 0.
    pub comp_mask: u32,
    /// Minimum rate limit of a queue pair in kbit/s.
    pub min_rate_limit: u32,
    /// Maximum rate limit of a queue pair in kbit/s, or 0 if there are no rate limits.
    pub max_rate_limit: u32,
    /// Queue pair types that can have a rate limit: bit `n` stands for type `n` of the verbs.
    pub rate_limit_types: u32,
    /// Maximum payload of a send in segments in bytes, or 0 if there are none.
    pub max_segmented_length: u32,
    /// Queue pair types that can send in segments: bit `n` stands for type `n` of the verbs.
    pub segmentation_types: u32,
    /// Fields that can be in the hash of receive scaling:
    /// [`hash_fields`](crate::command::hash_fields); 0 if there is none.
    pub hash_fields: u32,
    /// 0.
    pub reserved_1c: [u8; 4],
}
assert_abi!(QueryDeviceResponse, 32, min_rate_limit @ 4, max_rate_limit @ 8,
    rate_limit_types @ 12, max_segmented_length @ 16, segmentation_types @ 20, hash_fields @ 24,
    reserved_1c @ 28);

/// Response of the device's method that reads the clock of completion timestamps.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryClockResponse {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// [`Clock::time`](crate::command::Clock::time).
    pub time: u64,
}
assert_abi!(QueryClockResponse, 16, time @ 8);

/// Response of the method that locates a device memory buffer.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryDmResponse {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// `mmap` offset of the buffer.
    pub map_offset: u64,
    /// Length of that mapping in bytes, whole pages; the buffer is at its start.
    pub map_length: u64,
    /// Length of the buffer in bytes.
    pub length: u64,
}
assert_abi!(QueryDmResponse, 32, map_offset @ 8, map_length @ 16, length @ 24);

/// Response of the method that locates the counts of a completion counter.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueryCompCntrResponse {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// `mmap` offset of the counts, [`CompletionCounts`](crate::command::CompletionCounts).
    pub map_offset: u64,
    /// Length of that mapping in bytes, whole pages; the counts are at its start.
    pub map_length: u64,
}
assert_abi!(QueryCompCntrResponse, 24, map_offset @ 8, map_length @ 16);

/// A [`RingLayout`] in native byte order.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Ring {
    /// [`RingLayout::header_offset`].
    pub header_offset: u32,
    /// [`RingLayout::entries_offset`].
    pub entries_offset: u32,
    /// [`RingLayout::entries`].
    pub entries: u32,
    /// [`RingLayout::stride`].
    pub stride: u32,
}
assert_abi!(Ring, 16, entries_offset @ 4, entries @ 8, stride @ 12);

impl From<Ring> for RingLayout {
    fn from(ring: Ring) -> Self {
        Self {
            header_offset: ring.header_offset.into(),
            entries_offset: ring.entries_offset.into(),
            entries: ring.entries.into(),
            stride: ring.stride.into(),
        }
    }
}

impl From<RingLayout> for Ring {
    fn from(layout: RingLayout) -> Self {
        Self {
            header_offset: layout.header_offset.get(),
            entries_offset: layout.entries_offset.get(),
            entries: layout.entries.get(),
            stride: layout.stride.get(),
        }
    }
}

/// Request of CREATE_CQ and RESIZE_CQ.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCqRequest {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// Address of the buffer with the ring, a multiple of the page size.
    pub buf_addr: u64,
    /// Length of the buffer in bytes.
    pub buf_length: u64,
    /// The ring, with a stride of 64 and at least as many entries as requested.
    pub ring: Ring,
}
assert_abi!(CreateCqRequest, 40, reserved_20 @ 4, buf_addr @ 8, buf_length @ 16, ring @ 24);

/// Response of CREATE_CQ.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateCqResponse {
    /// 0.
    pub comp_mask: u32,
    /// Number of the completion queue.
    pub cqn: u32,
}
assert_abi!(CreateCqResponse, 8, cqn @ 4);

/// Request of CREATE_QP.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQpRequest {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// Address of the buffer with both rings, a multiple of the page size.
    pub buf_addr: u64,
    /// Length of the buffer in bytes.
    pub buf_length: u64,
    /// Send queue, with entries and a stride that suffice for the requested sizes.
    pub sq: Ring,
    /// Receive queue, likewise; absent if no receives were requested.
    pub rq: Ring,
}
assert_abi!(CreateQpRequest, 56, reserved_20 @ 4, buf_addr @ 8, buf_length @ 16, sq @ 24, rq @ 40);

/// Request of CREATE_QP with an indirection table.
#[derive(Copy, Clone, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateScalingQpRequest {
    /// 0.
    pub comp_mask: u32,
    /// Fields in the input of the hash: [`hash_fields`](crate::command::hash_fields).
    pub fields: u32,
    /// Key of the Toeplitz hash.
    pub key: [u8; HASH_KEY_LENGTH],
}
assert_abi!(CreateScalingQpRequest, 48, fields @ 4, key @ 8);

/// Response of CREATE_QP and CREATE_WQ.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateQpResponse {
    /// 0.
    pub comp_mask: u32,
    /// Doorbell slot of the queue pair in the context.
    pub slot: u32,
}
assert_abi!(CreateQpResponse, 8, slot @ 4);

/// Request of MODIFY_QP, which may be left out.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ModifyQpRequest {
    /// 0.
    pub comp_mask: u32,
    /// With the attribute RATE_LIMIT:
    /// [`QpAttributes::max_burst`](crate::qp::QpAttributes::max_burst).
    pub max_burst: u32,
    /// With the attribute RATE_LIMIT:
    /// [`QpAttributes::typical_packet`](crate::qp::QpAttributes::typical_packet).
    pub typical_packet: u16,
    /// 0.
    pub reserved_50: [u8; 6],
}
assert_abi!(ModifyQpRequest, 16, max_burst @ 4, typical_packet @ 8, reserved_50 @ 10);

/// Request of CREATE_SRQ, of MODIFY_SRQ when it resizes the queue, and of CREATE_WQ.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrqRequest {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// Address of the buffer with the ring, a multiple of the page size.
    pub buf_addr: u64,
    /// Length of the buffer in bytes.
    pub buf_length: u64,
    /// The ring, with entries and a stride that suffice for the requested sizes. If it replaces
    /// another ring, it already contains all receives that have not been taken.
    pub ring: Ring,
}
assert_abi!(CreateSrqRequest, 40, reserved_20 @ 4, buf_addr @ 8, buf_length @ 16, ring @ 24);

/// Response of CREATE_SRQ.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateSrqResponse {
    /// 0.
    pub comp_mask: u32,
    /// Number of the shared receive queue.
    pub srqn: u32,
}
assert_abi!(CreateSrqResponse, 8, srqn @ 4);

/// Response of CREATE_AH.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CreateAhResponse {
    /// 0.
    pub comp_mask: u32,
    /// 0.
    pub reserved_20: [u8; 4],
    /// Address vector, to be copied verbatim into send entries.
    pub address: AddressVector,
}
assert_abi!(CreateAhResponse, 40, reserved_20 @ 4, address @ 8);

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use core::mem::{offset_of, size_of};
    use std::{string::String, vec::Vec};

    const HEADER: &str = include_str!("../../include/uapi/rdma/vrnic-abi.h");

    /// Returns the members of a structure of the header with their offsets, and the structure's
    /// size.
    fn layout(name: &str) -> (Vec<(String, usize)>, usize) {
        let start = std::format!("\nstruct {name} {{\n");
        let body = HEADER
            .split_once(&start)
            .expect("structure is in the header")
            .1;
        let body = body.split_once("\n};").expect("structure ends").0;
        let (mut members, mut offset, mut largest) = (Vec::new(), 0_usize, 1);

        for line in body.lines() {
            let line = line.trim().strip_suffix(';').expect("one member a line");
            let (ty, member) = line.rsplit_once(' ').expect("type and name");
            let (member, count) = match member.split_once('[') {
                Some((member, count)) => (member, count.trim_end_matches(']').parse().unwrap()),
                None => (member, 1),
            };
            let (size, align) = match ty {
                "__u8" => (1, 1),
                "__u16" => (2, 2),
                "__u32" => (4, 4),
                "__aligned_u64" => (8, 8),
                "struct vrnic_ring" => (16, 4),
                _ => panic!("type {ty} is not for an ABI"),
            };
            offset = offset.next_multiple_of(align);
            largest = largest.max(align);
            members.push((member.into(), offset));
            offset += size * count;
        }
        assert_eq!(offset % largest, 0, "{name} ends in padding");
        (members, offset)
    }

    /// Compares a structure of the header with this crate's: every member, its offset, and the
    /// size.
    macro_rules! check {
        ($name:literal, $ty:ty: $($field:ident),+) => {
            let ours: Vec<(String, usize)> =
                std::vec![$((stringify!($field).into(), offset_of!($ty, $field))),+];
            assert_eq!(layout($name), (ours, size_of::<$ty>()), $name);
        };
    }

    #[test]
    fn header_agrees() {
        check!("vrnic_alloc_context_req", AllocContextRequest: comp_mask, slots);
        check!("vrnic_alloc_context_resp", AllocContextResponse: comp_mask, doorbell_length,
            doorbell_offset, notify_offset, notify_length, max_inline_data, null_key,
            checksum_types, segmentation_types, reserved_2c);
        check!("vrnic_query_clock_resp", QueryClockResponse: comp_mask, reserved_20, time);
        check!("vrnic_query_dm_resp", QueryDmResponse: comp_mask, reserved_20, map_offset,
            map_length, length);
        check!("vrnic_query_comp_cntr_resp", QueryCompCntrResponse: comp_mask, reserved_20,
            map_offset, map_length);
        check!("vrnic_ring", Ring: header_offset, entries_offset, entries, stride);
        check!("vrnic_create_cq_req", CreateCqRequest: comp_mask, reserved_20, buf_addr,
            buf_length, ring);
        check!("vrnic_create_cq_resp", CreateCqResponse: comp_mask, cqn);
        check!("vrnic_create_qp_req", CreateQpRequest: comp_mask, reserved_20, buf_addr,
            buf_length, sq, rq);
        check!("vrnic_create_scaling_qp_req", CreateScalingQpRequest: comp_mask, fields, key);
        check!("vrnic_create_qp_resp", CreateQpResponse: comp_mask, slot);
        check!("vrnic_modify_qp_req", ModifyQpRequest: comp_mask, max_burst, typical_packet,
            reserved_50);
        check!("vrnic_query_device_resp", QueryDeviceResponse: comp_mask, min_rate_limit,
            max_rate_limit, rate_limit_types, max_segmented_length, segmentation_types,
            hash_fields, reserved_1c);
        check!("vrnic_create_srq_req", CreateSrqRequest: comp_mask, reserved_20, buf_addr,
            buf_length, ring);
        check!("vrnic_create_srq_resp", CreateSrqResponse: comp_mask, srqn);
        check!("vrnic_create_ah_resp", CreateAhResponse: comp_mask, reserved_20, address);
        assert_eq!(
            HEADER.matches("\nstruct ").count(),
            16,
            "every structure is checked"
        );
    }

    #[test]
    fn constants_agree() {
        let constant = |name: &str| {
            let line = std::format!("#define {name} ");
            let text = HEADER.split_once(&line).unwrap().1.lines().next().unwrap();
            match text.strip_prefix("0x") {
                Some(hex) => u32::from_str_radix(hex, 16).unwrap(),
                None => text.parse().unwrap(),
            }
        };
        assert_eq!(constant("VRNIC_ABI_VERSION"), ABI_VERSION);
        assert_eq!(constant("VRNIC_DRIVER_ID"), DRIVER_ID);
        assert_eq!(constant("VRNIC_CONTEXT_NULL_KEY"), CONTEXT_NULL_KEY);
    }

    /// Checks the members of an enumeration of the header: their names, in the order of their
    /// numbers, which begin at the first number of drivers.
    #[track_caller]
    fn check_numbers(name: &str, ours: &[(&str, u16)]) {
        let start = std::format!("\nenum {name} {{\n");
        let body = HEADER
            .split_once(&start)
            .unwrap()
            .1
            .split_once("};")
            .unwrap()
            .0;
        let members: Vec<&str> = body
            .lines()
            .map(|line| line.trim().trim_end_matches(','))
            .collect();
        assert_eq!(members.len(), ours.len(), "{name}");
        for (index, (member, (our_name, number))) in members.iter().zip(ours).enumerate() {
            let expected = match index {
                0 => std::format!("{our_name} = (1U << UVERBS_ID_NS_SHIFT)"),
                _ => (*our_name).into(),
            };
            assert_eq!(*member, expected);
            assert_eq!(usize::from(*number), index, "{our_name}");
        }
    }

    #[test]
    fn methods_and_attributes_agree() {
        use ioctl::*;

        check_numbers(
            "vrnic_query_context_attrs",
            &[("VRNIC_QUERY_CONTEXT_ATTR_RESP", QUERY_CONTEXT_ATTR_RESP)],
        );
        check_numbers(
            "vrnic_device_methods",
            &[("VRNIC_METHOD_QUERY_CLOCK", METHOD_QUERY_CLOCK)],
        );
        check_numbers(
            "vrnic_query_clock_attrs",
            &[("VRNIC_QUERY_CLOCK_ATTR_RESP", QUERY_CLOCK_ATTR_RESP)],
        );
        check_numbers(
            "vrnic_pd_methods",
            &[("VRNIC_METHOD_FIND_PD", METHOD_FIND_PD)],
        );
        check_numbers(
            "vrnic_find_pd_attrs",
            &[("VRNIC_FIND_PD_ATTR_HANDLE", FIND_PD_ATTR_HANDLE)],
        );
        check_numbers(
            "vrnic_dm_methods",
            &[("VRNIC_METHOD_QUERY_DM", METHOD_QUERY_DM)],
        );
        check_numbers(
            "vrnic_query_dm_attrs",
            &[
                ("VRNIC_QUERY_DM_ATTR_HANDLE", QUERY_DM_ATTR_HANDLE),
                ("VRNIC_QUERY_DM_ATTR_RESP", QUERY_DM_ATTR_RESP),
            ],
        );
        check_numbers(
            "vrnic_comp_cntr_methods",
            &[("VRNIC_METHOD_QUERY_COMP_CNTR", METHOD_QUERY_COMP_CNTR)],
        );
        check_numbers(
            "vrnic_query_comp_cntr_attrs",
            &[
                (
                    "VRNIC_QUERY_COMP_CNTR_ATTR_HANDLE",
                    QUERY_COMP_CNTR_ATTR_HANDLE,
                ),
                ("VRNIC_QUERY_COMP_CNTR_ATTR_RESP", QUERY_COMP_CNTR_ATTR_RESP),
            ],
        );
        assert_eq!(
            HEADER.matches("\nenum ").count(),
            9,
            "every enumeration is checked"
        );
    }

    #[test]
    fn rings_keep_their_layout() {
        let ring = Ring {
            header_offset: 128,
            entries_offset: 4096,
            entries: 64,
            stride: 128,
        };
        assert_eq!(Ring::from(RingLayout::from(ring)), ring);
        assert!(RingLayout::from(ring).is_valid(4096 + 64 * 128));
    }
}
