// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! PCI configuration space: header and capability list (PCI 3.0; virtio 1.3, 4.1.4).

use super::{
    DEVICE_ID_BASE, DOORBELL_BAR, DOORBELL_PAGE_SIZE, MSIX_BAR, PBA_OFFSET, VENDOR_ID, VIRTIO_BAR,
    layout,
};
use crate::virtio::DeviceSpec;

/// `cfg_type` of the virtio vendor capabilities (virtio 1.3, 4.1.4).
mod cfg_type {
    pub const COMMON: u8 = 1;
    pub const NOTIFY: u8 = 2;
    pub const ISR: u8 = 3;
    pub const DEVICE: u8 = 4;
    pub const PCI_ACCESS: u8 = 5;
    pub const DOORBELL: u8 = vrnic_wire::config::PCI_CAP_DOORBELL_CFG;
}

/// Length of the configuration space in bytes.
pub const CONFIG_LEN: usize = 256;

const CAP_ID_VENDOR: u8 = 0x09;
const CAP_ID_MSIX: u8 = 0x11;
const CAP_ID_ADVANCED_FEATURES: u8 = 0x13;

const COMMAND: usize = 0x04;
/// Memory space, bus master, parity, SERR.
const COMMAND_LOW_WRITABLE: u8 = 0x46;
/// Interrupt disable.
const COMMAND_HIGH_WRITABLE: u8 = 0x04;
const INTERRUPT_LINE: usize = 0x3c;

/// Advanced Features capability: transactions-pending and function-level reset are supported.
const AF_TP_FLR: u8 = 0x03;

/// What a write to configuration space requests beyond storing bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum ConfigEvent {
    /// Nothing.
    None,
    /// Function-level reset.
    FunctionLevelReset,
}

/// Target of the PCI configuration access capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// BAR to access.
    pub bar: u8,
    /// Offset in that BAR.
    pub offset: u64,
    /// Width of the access in bytes: 1, 2 or 4.
    pub len: usize,
}

/// The configuration space.
pub struct ConfigSpace {
    bytes: [u8; CONFIG_LEN],
    pci_cfg: usize,
    advanced_features: usize,
}

impl ConfigSpace {
    /// Creates the configuration space of a function for `spec` with `vectors` MSI-X vectors.
    pub fn new(spec: &DeviceSpec, vectors: u16) -> Self {
        let mut space = Builder {
            bytes: [0; CONFIG_LEN],
            next: 0x40,
            link: 0x34,
        };
        let device_id = (DEVICE_ID_BASE + spec.virtio_id).to_le_bytes();
        space.put(0x00, &VENDOR_ID.to_le_bytes());
        space.put(0x02, &device_id);
        space.put(0x06, &[0x10]); // status: capability list
        space.put(0x08, &[1]); // revision: modern
        space.put(0x09, &spec.pci_class);
        for bar in [VIRTIO_BAR, MSIX_BAR, DOORBELL_BAR] {
            space.put(0x10 + 4 * usize::from(bar), &[0x04]); // 64-bit memory
        }
        space.put(0x2c, &VENDOR_ID.to_le_bytes());
        space.put(0x2e, &device_id);

        let notify_len = u32::from(spec.queues) * layout::NOTIFY_MULTIPLIER;
        space.virtio(
            cfg_type::COMMON,
            VIRTIO_BAR,
            layout::COMMON,
            layout::COMMON_LEN as u32,
            &[],
        );
        let multiplier = layout::NOTIFY_MULTIPLIER.to_le_bytes();
        space.virtio(
            cfg_type::NOTIFY,
            VIRTIO_BAR,
            layout::NOTIFY,
            notify_len,
            &multiplier,
        );
        space.virtio(cfg_type::ISR, VIRTIO_BAR, layout::ISR, 1, &[]);
        if !spec.config.is_empty() {
            let len = spec.config.len() as u32;
            space.virtio(cfg_type::DEVICE, VIRTIO_BAR, layout::DEVICE, len, &[]);
        }
        let pci_cfg = space.virtio(cfg_type::PCI_ACCESS, 0, 0, 0, &[0; 4]);
        if spec.doorbell_pages > 0 {
            let len = spec.doorbell_pages * DOORBELL_PAGE_SIZE as u32;
            space.virtio(cfg_type::DOORBELL, DOORBELL_BAR, 0, len, &[]);
        }
        let mut msix = [0; 10];
        msix[0..2].copy_from_slice(&(vectors - 1).to_le_bytes());
        msix[2..6].copy_from_slice(&u32::from(MSIX_BAR).to_le_bytes());
        msix[6..10].copy_from_slice(&(PBA_OFFSET | u32::from(MSIX_BAR)).to_le_bytes());
        space.capability(CAP_ID_MSIX, &msix);
        let advanced_features = space.capability(CAP_ID_ADVANCED_FEATURES, &[6, AF_TP_FLR, 0, 0]);
        Self {
            bytes: space.bytes,
            pci_cfg,
            advanced_features,
        }
    }

    /// Reads bytes; zeros beyond the end. `busy` appears as "transactions pending".
    pub fn read(&self, offset: u64, data: &mut [u8], busy: bool) {
        let start = offset.min(CONFIG_LEN as u64) as usize;
        for (offset, byte) in (start..).zip(data) {
            *byte = self.bytes.get(offset).copied().unwrap_or(0);
            if offset == self.advanced_features + 5 {
                *byte = u8::from(busy);
            }
        }
    }

    /// Writes the writable bits of the given bytes.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> ConfigEvent {
        let mut event = ConfigEvent::None;
        let start = offset.min(CONFIG_LEN as u64) as usize;
        for (offset, &byte) in (start..).zip(data) {
            let in_window = offset.wrapping_sub(self.pci_cfg);
            match offset {
                COMMAND => self.bytes[offset] = byte & COMMAND_LOW_WRITABLE,
                _ if offset == COMMAND + 1 => self.bytes[offset] = byte & COMMAND_HIGH_WRITABLE,
                INTERRUPT_LINE => self.bytes[offset] = byte,
                // bar, offset and length of the access window (virtio 1.3, 4.1.4.9)
                _ if in_window == 4 || (8..16).contains(&in_window) => self.bytes[offset] = byte,
                _ if offset == self.advanced_features + 4 && byte & 1 != 0 => {
                    event = ConfigEvent::FunctionLevelReset;
                }
                _ => {}
            }
        }
        event
    }

    /// Returns the BAR access that an access of `len` bytes at configuration offset `offset` stands for, if it hits
    /// `pci_cfg_data`.
    pub fn window(&self, offset: u64, len: usize) -> Option<Window> {
        let word = |at: usize| {
            let at = self.pci_cfg + at;
            u32::from_le_bytes([
                self.bytes[at],
                self.bytes[at + 1],
                self.bytes[at + 2],
                self.bytes[at + 3],
            ])
        };
        if offset != self.pci_cfg as u64 + 16 || !matches!(len, 1 | 2 | 4) || word(12) != len as u32
        {
            return None;
        }
        Some(Window {
            bar: self.bytes[self.pci_cfg + 4],
            offset: u64::from(word(8)),
            len,
        })
    }

    /// Clears what a function-level reset clears: the command register and the access window.
    pub fn reset(&mut self) {
        self.bytes[COMMAND..COMMAND + 2].fill(0);
        self.bytes[self.pci_cfg + 4] = 0;
        self.bytes[self.pci_cfg + 8..self.pci_cfg + 16].fill(0);
    }
}

struct Builder {
    bytes: [u8; CONFIG_LEN],
    next: usize,
    /// Offset at which the pointer to the next capability is stored.
    link: usize,
}

impl Builder {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends a capability and returns its offset.
    fn capability(&mut self, id: u8, body: &[u8]) -> usize {
        let at = self.next;
        self.bytes[self.link] = at as u8;
        self.link = at + 1;
        self.put(at, &[id, 0]);
        self.put(at + 2, body);
        self.next = (at + 2 + body.len()).next_multiple_of(4);
        at
    }

    /// Appends a `struct virtio_pci_cap` followed by `extra` and returns its offset.
    fn virtio(&mut self, cfg_type: u8, bar: u8, offset: u64, len: u32, extra: &[u8]) -> usize {
        let mut body = vec![16 + extra.len() as u8, cfg_type, bar, 0, 0, 0];
        body.extend((offset as u32).to_le_bytes());
        body.extend(len.to_le_bytes());
        body.extend(extra);
        self.capability(CAP_ID_VENDOR, &body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DeviceSpec {
        DeviceSpec {
            virtio_id: 42,
            pci_class: [0, 0x80, 2],
            offered_features: 0,
            required_features: 0,
            config: vec![1; 24],
            queues: 6,
            max_queue_size: 256,
            doorbell_pages: 1024,
        }
    }

    /// Walks the capability list as a driver does.
    fn capabilities(space: &ConfigSpace) -> Vec<(u8, Vec<u8>)> {
        let byte = |at: usize| {
            let mut data = [0];
            space.read(at as u64, &mut data, false);
            data[0]
        };
        let (mut found, mut at) = (Vec::new(), usize::from(byte(0x34)));
        while at != 0 {
            assert!(at % 4 == 0 && at >= 0x40, "capability at {at:#x}");
            found.push((
                byte(at),
                (at..(at + 20).min(CONFIG_LEN)).map(byte).collect(),
            ));
            at = usize::from(byte(at + 1));
        }
        found
    }

    #[test]
    fn a_driver_finds_every_structure() {
        let space = ConfigSpace::new(&spec(), 7);
        let found = capabilities(&space);
        let virtio: Vec<_> = found
            .iter()
            .filter(|(id, _)| *id == CAP_ID_VENDOR)
            .map(|(_, b)| (b[3], b[4]))
            .collect();
        assert_eq!(virtio, [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (10, 4)]);
        let doorbell = &found
            .iter()
            .find(|(id, b)| *id == CAP_ID_VENDOR && b[3] == 10)
            .unwrap()
            .1;
        assert_eq!(doorbell[8..16], [0, 0, 0, 0, 0, 0, 0x40, 0]);
        let msix = &found.iter().find(|(id, _)| *id == CAP_ID_MSIX).unwrap().1;
        assert_eq!(msix[2..12], [6, 0, 2, 0, 0, 0, 2, 0x80, 0, 0]);
        let mut id = [0; 4];
        space.read(0, &mut id, false);
        assert_eq!(id, [0xf4, 0x1a, 0x6a, 0x10]);
    }

    #[test]
    fn read_only_bytes_stay() {
        let mut space = ConfigSpace::new(&spec(), 7);
        let before = space.bytes;
        for offset in 0..CONFIG_LEN as u64 {
            if offset != space.advanced_features as u64 + 4 {
                assert_eq!(space.write(offset, &[0xfe]), ConfigEvent::None);
            }
        }
        let changed: Vec<_> = (0..CONFIG_LEN)
            .filter(|&at| before[at] != space.bytes[at])
            .collect();
        let window = space.pci_cfg;
        let mut expected = vec![COMMAND, COMMAND + 1, INTERRUPT_LINE, window + 4];
        expected.extend(window + 8..window + 16);
        assert_eq!(changed, expected);
        assert_eq!(space.bytes[COMMAND..COMMAND + 2], [0x46, 0x04]);
        space.write(u64::MAX - 1, &[1, 2, 3]);
        space.read(u64::MAX - 1, &mut [0; 2], false);
    }

    #[test]
    fn function_level_reset_and_window() {
        let mut space = ConfigSpace::new(&spec(), 7);
        let af = space.advanced_features as u64;
        assert_eq!(space.write(af + 4, &[1]), ConfigEvent::FunctionLevelReset);
        let mut status = [0];
        space.read(af + 5, &mut status, true);
        assert_eq!(status, [1]);
        let window = space.pci_cfg as u64;
        space.write(window + 4, &[4]);
        space.write(window + 8, &0x2000u32.to_le_bytes());
        space.write(window + 12, &4u32.to_le_bytes());
        assert_eq!(
            space.window(window + 16, 4),
            Some(Window {
                bar: 4,
                offset: 0x2000,
                len: 4
            })
        );
        assert_eq!(space.window(window + 16, 2), None);
        assert_eq!(space.window(window + 12, 4), None);
        space.reset();
        assert_eq!(space.window(window + 16, 4), None);
    }
}
