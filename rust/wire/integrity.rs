// SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR BSD-2-Clause

//! Integrity regions, through which blocks of data pass with protection information (T10-PI).

use crate::{work::TARGET_LENGTH, U16, U32, U64};
use zerocopy_derive::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Length in bytes of the protection information (PI) of a block: guard (2), application tag (2)
/// and reference tag (4), all most significant byte first.
pub const PI_LENGTH: usize = 8;

/// Minimum length of a block in bytes; lengths are multiples of 8.
pub const MIN_INTERVAL: u16 = 512;

/// Maximum length of a block in bytes.
pub const MAX_INTERVAL: u16 = 4096;

/// Offset of the first element in a table.
pub const ELEMENTS_OFFSET: usize = 32;

/// Length of an [`IntegrityElement`] in bytes.
pub const ELEMENT_LENGTH: usize = 16;

wire_enum! {
    /// Whether the blocks of a domain have protection information, and which checksum is the guard.
    pub enum Guard: u8 {
        /// No protection information.
        None = 0,
        /// CRC-16 of T10-DIF.
        Crc = 1,
        /// Checksum of the Internet protocols.
        Ip = 2,
    }
}

wire_enum! {
    /// What differs in the first block that is not as it should be.
    pub enum IntegrityError: u32 {
        /// Nothing.
        None = 0,
        /// The guard.
        Guard = 1,
        /// The reference tag.
        RefTag = 2,
        /// The application tag.
        AppTag = 3,
    }
}

/// Bits of [`IntegrityDomain::flags`].
pub mod domain_flags {
    /// The reference tag of block `n` is `ref_tag + n`, not `ref_tag`.
    pub const REF_INCREMENT: u8 = 1 << 0;
    /// Blocks whose application tag is 0xffff are not checked.
    pub const APP_ESCAPE: u8 = 1 << 1;
    /// With [`APP_ESCAPE`], only blocks whose reference tag is also 0xffffffff are not checked.
    pub const REF_ESCAPE: u8 = 1 << 2;
    /// All bits with a meaning.
    pub const ALL: u8 = REF_INCREMENT | APP_ESCAPE | REF_ESCAPE;
}

/// Bits of [`IntegrityTarget::check_mask`], one for each byte of protection information.
pub mod check {
    /// Both bytes of the guard.
    pub const GUARD: u8 = 0xc0;
    /// Both bytes of the application tag.
    pub const APP_TAG: u8 = 0x30;
    /// All bytes of the reference tag.
    pub const REF_TAG: u8 = 0x0f;
}

/// Protection information of the blocks in memory, or of the blocks as a key gives access to them.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IntegrityDomain {
    /// Reference tag of the first block.
    pub ref_tag: U32,
    /// Application tag.
    pub app_tag: U16,
    /// Bits of the application tag that are compared.
    pub app_mask: U16,
    /// Initial value of the guard.
    pub guard_seed: U16,
    /// A [`Guard`].
    pub guard: u8,
    /// [`domain_flags`].
    pub flags: u8,
}
assert_layout!(IntegrityDomain, 12, ref_tag @ 0, app_tag @ 4, app_mask @ 6, guard_seed @ 8,
    guard @ 10, flags @ 11);

/// Parameters of the registration of an integrity region. The memory is listed in the table of the
/// region.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IntegrityTarget {
    /// New key of the region: that of the region, with any lowest byte.
    pub key: U32,
    /// [`access`](crate::memory::access) rights.
    pub access: U32,
    /// Number of elements of data, from the start of their part of the table; at least 1.
    pub elements: U16,
    /// Number of elements of metadata, from the start of their part of the table; 0 if and only if
    /// the memory domain has no protection information.
    pub metadata_elements: U16,
    /// Length of a block of data in bytes.
    pub interval: U16,
    /// [`check`] bits.
    pub check_mask: u8,
    /// Reserved; 0.
    pub reserved: u8,
    /// The blocks in memory.
    pub memory: IntegrityDomain,
    /// The blocks as the key gives access to them.
    pub wire: IntegrityDomain,
}
assert_layout!(IntegrityTarget, TARGET_LENGTH, key @ 0, access @ 4, elements @ 8,
    metadata_elements @ 10, interval @ 12, check_mask @ 14, reserved @ 15, memory @ 16, wire @ 28);

/// A piece of memory of an integrity region, in its table.
#[derive(Copy, Clone, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IntegrityElement {
    /// Bus address.
    pub address: U64,
    /// Length in bytes; at least 1.
    pub length: U32,
    /// Reserved; 0.
    pub reserved: U32,
}
assert_layout!(IntegrityElement, ELEMENT_LENGTH, address @ 0, length @ 8);

/// Start of the table of an integrity region: the first block of the current registration, or if
/// there is none, of the last one, that was not as it should be. The device writes `error` last.
#[derive(
    Copy, Clone, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct IntegrityStatus {
    /// An [`IntegrityError`].
    pub error: U32,
    /// Key of the region when the error was found.
    pub key: U32,
    /// Offset of the block, counted with the protection information of the blocks before it.
    pub offset: U64,
    /// Guard or tag that the block should have.
    pub expected: U32,
    /// Guard or tag that the block has.
    pub actual: U32,
    /// Reserved; 0.
    pub reserved: U64,
}
assert_layout!(IntegrityStatus, ELEMENTS_OFFSET, error @ 0, key @ 4, offset @ 8, expected @ 16,
    actual @ 20);

/// Returns the length in bytes of a table with room for this many elements of data and of metadata.
pub const fn table_length(max_elements: u32, max_metadata_elements: u32) -> u64 {
    ELEMENTS_OFFSET as u64
        + (max_elements as u64 + max_metadata_elements as u64) * ELEMENT_LENGTH as u64
}
