// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! The wire inside this process: it joins RNICs by the MAC addresses in their frames.

use std::collections::{HashMap, VecDeque};

/// Most frames that are on the wire at once; what comes on top is lost, as at a switch with full queues.
const MAX_FRAMES: usize = 4096;

/// Most buffers that are kept for reuse.
const MAX_SPARE: usize = 1024;

/// Frames between RNICs.
#[derive(Default)]
pub struct Wire {
    devices: HashMap<[u8; 6], usize>,
    frames: VecDeque<(usize, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    lost: u64,
}

impl Wire {
    /// A wire without RNICs.
    pub fn new() -> Self {
        Self::default()
    }

    /// Joins the RNIC with that index and address to the wire.
    pub fn join(&mut self, device: usize, mac: [u8; 6]) {
        self.devices.insert(mac, device);
    }

    /// An empty buffer for a frame.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < MAX_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// An RNIC sends a frame.
    pub fn send(&mut self, frame: Vec<u8>) {
        let destination = frame.first_chunk::<6>();
        let device = destination.and_then(|mac| self.devices.get(mac)).copied();
        match device {
            Some(device) if self.frames.len() < MAX_FRAMES => {
                self.frames.push_back((device, frame));
            }
            _ => {
                self.lost += 1;
                self.recycle(frame);
            }
        }
    }

    /// The next frame that arrives, and at which RNIC.
    pub fn take(&mut self) -> Option<(usize, Vec<u8>)> {
        self.frames.pop_front()
    }

    /// Frames that were lost: nobody has their address, or there were too many.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_find_their_address() {
        let mut wire = Wire::new();
        wire.join(3, [2, 0, 0, 0, 0, 1]);
        let mut frame = wire.buffer();
        frame.extend([2, 0, 0, 0, 0, 1, 9]);
        wire.send(frame.clone());
        wire.send(vec![2, 0, 0, 0, 0, 2, 9]);
        wire.send(vec![2, 0]);
        assert_eq!(wire.take(), Some((3, frame)));
        assert_eq!(wire.take(), None);
        assert_eq!(wire.lost(), 2);
    }
}
