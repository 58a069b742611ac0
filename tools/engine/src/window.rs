// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Memory windows.

use crate::{cause::Cause, state::wire};
use serde::{Deserialize, Serialize};
use vrnic_wire::{command::MwType, memory::access};

/// Binding of a window.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Binding {
    /// Index of the key of the region.
    pub(crate) region: u32,
    /// Offset of the window in the memory of the region.
    pub(crate) offset: u64,
    /// Address of the first byte for peers.
    pub(crate) first: u64,
    /// Number of bytes.
    pub(crate) length: u64,
    /// [`access`] rights.
    pub(crate) access: u32,
    /// Queue pair that bound it, which may be gone.
    pub(crate) qpn: u32,
    /// What tells a queue pair that bound a type 2 window from others that have the same number later.
    pub(crate) binder: u64,
}

/// A memory window.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Protection domain.
    pub(crate) pd: u32,
    /// Type.
    #[serde(with = "wire")]
    pub(crate) mw_type: MwType,
    /// What it is bound to; `None` if it is not bound.
    pub(crate) binding: Option<Binding>,
}

impl Window {
    /// Checks whether a queue pair of protection domain `pd` may bind the window to `length` bytes with these rights.
    pub(crate) fn check_bind(&self, pd: u32, length: u64, rights: u32) -> Result<(), Cause> {
        if self.pd != pd {
            return Err(Cause::LocalKeyPd);
        }
        let unbinds = length == 0;
        let permitted = match self.mw_type {
            MwType::Type1 => access::WINDOW & !access::ZERO_BASED,
            MwType::Type2 if self.binding.is_some() => return Err(Cause::WindowBound),
            MwType::Type2 if unbinds => return Err(Cause::RegionLength),
            MwType::Type2 => access::WINDOW,
        };
        if rights & !permitted != 0 {
            return Err(Cause::AccessRights);
        }
        Ok(())
    }

    /// Checks whether the queue pair that is `binder`, if it bound any window, may make the window free.
    pub(crate) fn check_invalidate(&self, pd: u32, binder: Option<u64>) -> Result<(), Cause> {
        if self.pd != pd {
            return Err(Cause::LocalKeyPd);
        }
        match (self.mw_type, &self.binding) {
            (MwType::Type1, _) => Err(Cause::LocalInvalidate),
            (MwType::Type2, None) => Err(Cause::LocalFree),
            (MwType::Type2, Some(binding)) if Some(binding.binder) != binder => {
                Err(Cause::LocalKeyQp)
            }
            (MwType::Type2, Some(_)) => Ok(()),
        }
    }

    /// Returns the binding, and the offset of the `length` bytes at `address` in its region, if the peer of the queue
    /// pair, which is `binder` if it bound any window, has this access.
    pub(crate) fn covering(
        &self,
        pd: u32,
        binder: Option<u64>,
        rights: u32,
        address: u64,
        length: u64,
    ) -> Result<(&Binding, u64), Cause> {
        let binding = self.binding.as_ref().ok_or(Cause::LocalFree)?;
        if self.pd != pd {
            return Err(Cause::LocalKeyPd);
        }
        if self.mw_type == MwType::Type2 && Some(binding.binder) != binder {
            return Err(Cause::LocalKeyQp);
        }
        if binding.access & rights != rights {
            return Err(Cause::LocalRights);
        }
        let offset = address.checked_sub(binding.first);
        let offset = offset.ok_or(Cause::LocalBounds)?;
        let end = offset.checked_add(length).ok_or(Cause::LocalBounds)?;
        if end > binding.length {
            return Err(Cause::LocalBounds);
        }
        Ok((binding, binding.offset + offset))
    }
}
