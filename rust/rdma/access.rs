// SPDX-License-Identifier: GPL-2.0

//! Access rights of memory regions and queue pairs.

use kernel::{
    impl_flags,
    prelude::*, //
};

use crate::bindings;

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

impl_flags!(
    /// A set of access rights (`enum ib_access_flags`).
    #[derive(Debug, Clone, Default, Copy, PartialEq, Eq)]
    pub struct AccessFlags(u32);

    /// An access right.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Access {
        /// The owner's receives and RDMA reads may write to the memory.
        LocalWrite = bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE,
        /// Peers may write by RDMA.
        RemoteWrite = bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        /// Peers may read by RDMA.
        RemoteRead = bindings::ib_access_flags_IB_ACCESS_REMOTE_READ,
        /// Peers may perform atomic operations.
        RemoteAtomic = bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
        /// Memory windows may be bound.
        MwBind = bindings::ib_access_flags_IB_ACCESS_MW_BIND,
        /// Addresses in the region start from 0.
        ZeroBased = bindings::ib_access_flags_IB_ZERO_BASED,
        /// Pages are not pinned, but brought in when they are accessed.
        OnDemand = bindings::ib_access_flags_IB_ACCESS_ON_DEMAND,
        /// The region consists of huge pages.
        HugeTlb = bindings::ib_access_flags_IB_ACCESS_HUGETLB,
        /// Writes may become visible in any order.
        RelaxedOrdering = bindings::ib_access_flags_IB_ACCESS_RELAXED_ORDERING,
        /// Peers may flush to global visibility.
        FlushGlobal = bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
        /// Peers may flush to persistence.
        FlushPersistent = bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
    }
);

impl AccessFlags {
    /// Rights that are only hints: a driver may ignore them (`IB_ACCESS_OPTIONAL`).
    const OPTIONAL: u32 = bindings::ib_access_flags_IB_ACCESS_OPTIONAL;

    /// Converts access rights from C. Unknown optional rights are dropped; other unknown rights are
    /// rejected with `EOPNOTSUPP`.
    pub(crate) fn from_raw(raw: c_int) -> Result<Self> {
        // CAST: A set of bits that C keeps in an `int`.
        let raw = raw as u32;
        let known = bindings::ib_access_flags_IB_ACCESS_SUPPORTED & !Self::OPTIONAL
            | Access::RelaxedOrdering as u32;

        if raw & !(known | Self::OPTIONAL) != 0 {
            return Err(EOPNOTSUPP);
        }
        Ok(Self(raw & known))
    }

    /// Restores rights from bits that a device stored; unknown bits are dropped.
    #[inline]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & bindings::ib_access_flags_IB_ACCESS_SUPPORTED)
    }

    /// Returns the rights in the encoding of the verbs.
    #[inline]
    pub const fn bits(self) -> u32 {
        self.0
    }
}
