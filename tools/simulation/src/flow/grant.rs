// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Access rights that requests grant and revoke.

use crate::{device::Device, plan::WindowKind};
use vrnic_engine::testing::{FastMr, Mr, Mw, Send};
use vrnic_wire::{
    command::{AllocateMw, DeallocateMw, DeregisterMr, MwType},
    completion::Opcode,
};

/// An object that grants access to a region for a while.
#[derive(Debug)]
pub enum Grant {
    /// A memory window.
    Window(Mw),
    /// A region that requests register.
    Fast(FastMr),
}

impl Grant {
    /// Creates one for `mr`, which grants nothing yet.
    pub fn new(kind: WindowKind, mr: &Mr, device: &mut Device) -> Self {
        match kind {
            WindowKind::Window => {
                let request = AllocateMw {
                    pd: device.guest.pd.into(),
                    mw_type: MwType::Type2.raw().into(),
                };
                let key = device.command(request).key.get();
                Self::Window(Mw { key })
            }
            WindowKind::FastRegistration => {
                let pages = (mr.arena.length() / 4096) as u32;
                Self::Fast(device.guest.fast_mr(&mut device.rnic, pages))
            }
        }
    }

    /// Returns its current or latest key.
    pub fn key(&self) -> u32 {
        match self {
            Self::Window(mw) => mw.key,
            Self::Fast(mr) => mr.key,
        }
    }

    /// Returns a request that grants rights to all `length` bytes of `mr` with a new key, and the opcode of its
    /// completion.
    pub fn give(&mut self, name: u64, mr: &Mr, length: usize, rights: u32) -> (Send, Opcode) {
        match self {
            Self::Window(mw) => {
                let send = mw.bind(name, mr, 0, length, rights);
                (send, Opcode::BindWindow)
            }
            Self::Fast(fast) => (
                fast.register(name, mr, rights, mr.iova),
                Opcode::RegisterRegion,
            ),
        }
    }

    /// Returns a request that revokes them.
    pub fn take(&self, name: u64) -> Send {
        match self {
            Self::Window(mw) => mw.invalidate(name),
            Self::Fast(mr) => mr.invalidate(name),
        }
    }

    /// Frees the object on the device.
    pub fn free(self, device: &mut Device) {
        let pd = device.guest.pd.into();
        match self {
            Self::Window(mw) => {
                device.command(DeallocateMw {
                    pd,
                    key: mw.key.into(),
                });
            }
            Self::Fast(mr) => {
                device.command(DeregisterMr {
                    pd,
                    key: mr.key.into(),
                });
                device.guest.free(mr.table);
            }
        }
    }
}
