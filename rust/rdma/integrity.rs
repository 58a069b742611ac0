// SPDX-License-Identifier: GPL-2.0

//! Protection information of data blocks (T10-PI). A memory region for integrity can check,
//! generate and remove it.
//!
//! The data in memory and the data that a peer sees each are a domain of their own. A domain is
//! either plain, or has protection information: 8 bytes for each block of data, which consist of a
//! guard (a checksum of the block), an application tag and a reference tag. In memory they are
//! apart from the data, and on the wire they follow their block.
//!
//! C header: [`include/rdma/signature.h`](srctree/include/rdma/signature.h)

use core::marker::PhantomData;

use kernel::{
    dma::DmaAddress,
    impl_flags,
    prelude::*, //
};

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

/// Bytes of protection information for a block.
const TUPLE: u64 = 8;

c_enum! {
    /// How the guard of a block is computed.
    pub enum Guard: bindings::ib_t10_dif_bg_type {
        /// The CRC that T10 defines.
        Crc = bindings::ib_t10_dif_bg_type_IB_T10DIF_CRC,
        /// The checksum of IP.
        IpChecksum = bindings::ib_t10_dif_bg_type_IB_T10DIF_CSUM,
    }
}

impl_flags!(
    /// What is checked of the protection information of each block.
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct Checks(u32);

    /// A part of the protection information.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Check {
        /// The guard.
        Guard = bindings::IB_SIG_CHECK_GUARD,
        /// The application tag.
        ApplicationTag = bindings::IB_SIG_CHECK_APPTAG,
        /// The reference tag.
        ReferenceTag = bindings::IB_SIG_CHECK_REFTAG,
    }
);

impl Checks {
    /// Converts a C mask, which has a bit for each of the 8 bytes. `EINVAL` if it has only some
    /// bytes of a part.
    fn from_raw(raw: u8) -> Result<Self> {
        let raw = u32::from(raw);
        let parts = [Check::Guard, Check::ApplicationTag, Check::ReferenceTag];
        for part in parts.map(|part| part as u32) {
            if ![0, part].contains(&(raw & part)) {
                return Err(EINVAL);
            }
        }
        Ok(Self(raw))
    }
}

/// The protection information of a domain (`struct ib_t10_dif_domain`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Protection {
    /// How guards are computed.
    pub guard: Guard,
    /// Bytes of data in a block; not 0.
    pub interval: u16,
    /// Value that the computation of each guard starts from.
    pub seed: u16,
    /// Application tag of all blocks.
    pub application_tag: u16,
    /// Bits of the application tag that count in a check.
    pub application_mask: u16,
    /// Reference tag of the first block.
    pub reference_tag: u32,
    /// Whether the reference tag of each further block is one more than that of the block before.
    pub reference_increments: bool,
    /// Whether blocks with an application tag of all ones are not checked. With
    /// [`reference_escape`](Self::reference_escape), their reference tag must be all ones as well.
    pub application_escape: bool,
    /// Has a meaning only with [`application_escape`](Self::application_escape).
    pub reference_escape: bool,
}

impl Protection {
    /// Converts a C domain; [`None`] if it is plain. `EINVAL` if it has an unknown type or guard,
    /// or blocks without data.
    fn from_raw(raw: &bindings::ib_sig_domain) -> Result<Option<Self>> {
        match raw.sig_type {
            bindings::ib_signature_type_IB_SIG_TYPE_NONE => return Ok(None),
            bindings::ib_signature_type_IB_SIG_TYPE_T10_DIF => {}
            _ => return Err(EINVAL),
        }
        // SAFETY: The only member of the union, which is for this type.
        let raw = unsafe { crate::compat::member(&raw.sig.dif) };
        if raw.pi_interval == 0 {
            return Err(EINVAL);
        }
        Ok(Some(Self {
            guard: Guard::try_from(raw.bg_type)?,
            interval: raw.pi_interval,
            seed: raw.bg,
            application_tag: raw.app_tag,
            application_mask: raw.apptag_check_mask,
            reference_tag: raw.ref_tag,
            reference_increments: raw.ref_remap,
            application_escape: raw.app_escape,
            reference_escape: raw.ref_escape,
        }))
    }

    /// Returns the length of the protection information of `length` bytes of data. `EINVAL` if they
    /// are not whole blocks.
    fn length(&self, length: u32) -> Result<u64> {
        let interval = u32::from(self.interval);
        if length % interval != 0 {
            return Err(EINVAL);
        }
        Ok(u64::from(length / interval) * TUPLE)
    }
}

/// What a region does with protection information (`struct ib_sig_attrs`).
///
/// What is read in one domain is checked there, if that domain has protection information. What is
/// written in the other gets the protection information of that one, if it has any: the values that
/// are the same in both domains are copied, and others are generated.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What is checked.
    pub checks: Checks,
    /// Protection information in memory; [`None`] if there is only data.
    pub memory: Option<Protection>,
    /// Protection information on the wire; [`None`] if there is only data.
    pub wire: Option<Protection>,
}

impl Attributes {
    /// Converts C attributes, for a region with these `lists`. `EINVAL` for values without a
    /// meaning, if the data is not whole blocks, or if the protection information in memory is not
    /// as long as that of all blocks.
    pub(crate) fn from_raw(raw: &bindings::ib_sig_attrs, lists: &Lists) -> Result<Self> {
        let this = Self {
            checks: Checks::from_raw(raw.check_mask)?,
            memory: Protection::from_raw(&raw.mem)?,
            wire: Protection::from_raw(&raw.wire)?,
        };
        if let Some(memory) = &this.memory {
            if memory.length(lists.data.length)? != lists.metadata.length.into() {
                return Err(EINVAL);
            }
        }
        if let Some(wire) = &this.wire {
            wire.length(lists.data.length)?;
        }
        Ok(this)
    }
}

/// Size of a list of [`Pieces`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Number of pieces.
    pub pieces: u32,
    /// Length of all pieces together in bytes.
    pub length: u32,
}

/// Memory for a registration, which the driver received through
/// [`MemoryRegion::map_integrity`](crate::MemoryRegion::map_integrity).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// The data.
    pub data: Extent,
    /// The protection information in memory.
    pub metadata: Extent,
}

/// Pieces of memory that are mapped for DMA: the DMA address and length of each.
///
/// # Invariants
///
/// `next` is an element of a scatterlist with at least `left` mapped elements from there on, which
/// do not change during `'a`.
#[derive(Clone)]
pub struct Pieces<'a> {
    next: *mut bindings::scatterlist,
    left: u32,
    /// Bytes to leave out at the start.
    offset: u32,
    _list: PhantomData<&'a bindings::scatterlist>,
}

impl Pieces<'_> {
    /// Wraps a list whose first `offset` bytes are left out. `EINVAL` if the first element has no
    /// more than that.
    ///
    /// # Safety
    ///
    /// `list` must have `count` mapped elements, which do not change during the lifetime of the
    /// result.
    pub(crate) unsafe fn new(
        list: *mut bindings::scatterlist,
        count: c_int,
        offset: u32,
    ) -> Result<Self> {
        // INVARIANT: As the caller guarantees.
        let this = Self {
            next: list,
            left: u32::try_from(count)?,
            offset,
            _list: PhantomData,
        };
        // SAFETY: The list has an element.
        if this.left != 0 && offset >= unsafe { bindings::sg_dma_len(list) } {
            return Err(EINVAL);
        }
        Ok(this)
    }

    /// Returns the size of the list. `EINVAL` if it is too long.
    pub(crate) fn extent(&self) -> Result<Extent> {
        let length: u64 = self.clone().map(|(_, length)| u64::from(length)).sum();
        Ok(Extent {
            pieces: self.left,
            length: u32::try_from(length)?,
        })
    }
}

impl Iterator for Pieces<'_> {
    type Item = (DmaAddress, u32);

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        // SAFETY: By the type invariant this is an element.
        let (address, length) = unsafe {
            (
                bindings::sg_dma_address(self.next),
                bindings::sg_dma_len(self.next),
            )
        };
        let offset = u64::from(core::mem::take(&mut self.offset));
        if self.left != 0 {
            // INVARIANT: As many elements are left.
            // SAFETY: By the type invariant another element follows.
            self.next = unsafe { bindings::sg_next(self.next) };
        }
        // CAST: `new` has checked that the offset is less than the length of the first element.
        Some((address + offset, length - offset as u32))
    }
}

c_enum! {
    /// The part of the protection information in which an error was found.
    pub enum Part: bindings::ib_sig_err_type {
        /// The guard.
        Guard = bindings::ib_sig_err_type_IB_SIG_BAD_GUARD,
        /// The reference tag.
        ReferenceTag = bindings::ib_sig_err_type_IB_SIG_BAD_REFTAG,
        /// The application tag.
        ApplicationTag = bindings::ib_sig_err_type_IB_SIG_BAD_APPTAG,
    }
}

/// An error that a check found (`struct ib_sig_err`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct IntegrityError {
    /// What is wrong.
    pub part: Part,
    /// The value that the part should have.
    pub expected: u32,
    /// The value that it has.
    pub actual: u32,
    /// Where the block is, in bytes from the start of the region.
    pub offset: u64,
    /// Key of the region when the error was found.
    pub key: u32,
}

impl IntegrityError {
    /// Returns the error in the format of C.
    pub(crate) fn to_raw(self) -> bindings::ib_sig_err {
        bindings::ib_sig_err {
            err_type: self.part.raw(),
            expected: self.expected,
            actual: self.actual,
            sig_err_offset: self.offset,
            key: self.key,
        }
    }
}
