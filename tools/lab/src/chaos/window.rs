// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Selects the part of a capture that is worth keeping: the packets around those that a fault touched. Finds out when a
//! fault first fired.

use std::time::{Duration, SystemTime};

/// Number of packets kept before and after one that a fault touched.
const AROUND: usize = 40;
/// Number of packets kept of a capture in which no packet was touched.
const FIRST: usize = 80;
/// Largest number of bytes kept.
const MOST: usize = 512 << 10;
/// Largest number of bytes kept of a packet.
const SNAP: usize = 256;

/// Block types of pcapng (draft-ietf-opsawg-pcapng, section 4).
const ENHANCED_PACKET: u32 = 6;
/// Option code of a comment.
const COMMENT: u16 = 1;
/// Number of bytes of an enhanced packet block before the packet.
const PACKET_HEADER: usize = 28;

/// A block of a pcapng file.
struct Block<'a> {
    kind: u32,
    bytes: &'a [u8],
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Returns the blocks of a file, up to the first that is incomplete.
fn blocks(file: &[u8]) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut rest = file;
    while let (Some(kind), Some(length)) = (word(rest, 0), word(rest, 4)) {
        let length = length as usize;
        if length < 12 || length > rest.len() {
            break;
        }
        let (bytes, others) = rest.split_at(length);
        blocks.push(Block { kind, bytes });
        rest = others;
    }
    blocks
}

impl Block<'_> {
    /// Returns whether its comment contains `words`. If these are `fault`, a fault touched the packet.
    fn says(&self, words: &str) -> Option<bool> {
        let mut at = PACKET_HEADER + padded(word(self.bytes, 20)? as usize);
        loop {
            let (code, length) = (
                half(self.bytes, at)?,
                usize::from(half(self.bytes, at + 2)?),
            );
            let value = self.bytes.get(at + 4..at + 4 + length)?;
            match code {
                0 => return Some(false),
                COMMENT if String::from_utf8_lossy(value).contains(words) => return Some(true),
                _ => at += 4 + padded(length),
            }
        }
    }

    /// Returns the time of its packet, in vrnicd's unit.
    fn time(&self) -> Option<SystemTime> {
        let [high, low] = [12, 16].map(|at| word(self.bytes, at).map(u64::from));
        let time = Duration::from_nanos((high? << 32) | low?);
        SystemTime::UNIX_EPOCH.checked_add(time)
    }

    /// Returns the block with only the first bytes of its packet.
    fn cut(&self) -> Option<Vec<u8>> {
        let captured = word(self.bytes, 20)? as usize;
        let kept = captured.min(SNAP);
        let body = self.bytes.get(8..self.bytes.len() - 4)?;
        let mut block = body.get(..12)?.to_vec();
        block.extend(u32::try_from(kept).ok()?.to_le_bytes());
        block.extend(self.bytes.get(24..PACKET_HEADER)?);
        block.extend(self.bytes.get(PACKET_HEADER..PACKET_HEADER + kept)?);
        block.resize(padded(block.len()), 0);
        block.extend(body.get(PACKET_HEADER - 8 + padded(captured)..)?);
        let length = u32::try_from(block.len() + 12).ok()?.to_le_bytes();
        let mut whole = self.kind.to_le_bytes().to_vec();
        whole.extend(length);
        whole.extend(block);
        whole.extend(length);
        Some(whole)
    }
}

/// Returns the packets around those that a fault touched, or the first ones, as a pcapng file. Returns `None` if there
/// are no packets.
#[must_use]
pub fn around_faults(file: &[u8]) -> Option<Vec<u8>> {
    let blocks = blocks(file);
    let (packets, heads): (Vec<&Block>, Vec<&Block>) = blocks
        .iter()
        .partition(|block| block.kind == ENHANCED_PACKET);
    let touched: Vec<usize> = (0..packets.len())
        .filter(|&index| packets[index].says("fault") == Some(true))
        .collect();
    let keep = |index: usize| match touched.as_slice() {
        [] => index < FIRST,
        touched => touched
            .iter()
            .any(|touched| touched.abs_diff(index) <= AROUND),
    };
    let mut kept: Vec<u8> = heads
        .iter()
        .flat_map(|block| block.bytes)
        .copied()
        .collect();
    let mut any = false;
    for (index, packet) in packets.iter().enumerate() {
        if kept.len() >= MOST {
            break;
        }
        if keep(index) {
            kept.extend(packet.cut()?);
            any = true;
        }
    }
    any.then_some(kept)
}

/// Returns when a fault of this name first fired. Returns `None` if no packet shows it.
#[must_use]
pub fn first_firing(file: &[u8], name: &str) -> Option<SystemTime> {
    let words = format!("fault {name}");
    let mut packets = blocks(file).into_iter();
    packets
        .find(|block| block.kind == ENHANCED_PACKET && block.says(&words) == Some(true))
        .and_then(|block| block.time())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(kind: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 12).unwrap().to_le_bytes();
        [&kind.to_le_bytes()[..], &length, body, &length].concat()
    }

    fn packet(length: usize, comment: &str) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_le_bytes();
        let mut body = vec![0; 4];
        body.extend(1u32.to_le_bytes());
        body.extend(7u32.to_le_bytes());
        body.extend(size);
        body.extend(size);
        body.extend(vec![7; padded(length)]);
        body.extend(COMMENT.to_le_bytes());
        body.extend(u16::try_from(comment.len()).unwrap().to_le_bytes());
        body.extend(comment.as_bytes());
        body.resize(padded(body.len()), 0);
        body.extend([0; 4]);
        block(ENHANCED_PACKET, &body)
    }

    #[test]
    fn keeps_what_is_near_a_fault() {
        let head = block(0x0a0d_0d0a, &[0; 16]);
        let mut file = head.clone();
        for index in 0..500 {
            file.extend(packet(
                1000,
                if index == 300 {
                    "QP 5, fault drop"
                } else {
                    "QP 5"
                },
            ));
        }
        let first = SystemTime::UNIX_EPOCH + Duration::from_nanos((1 << 32) + 7);
        assert_eq!(first_firing(&file, "drop"), Some(first));
        assert_eq!(first_firing(&file, "delay"), None);
        let kept = around_faults(&file).unwrap();
        let kept = blocks(&kept);
        assert_eq!(kept.len(), 1 + 2 * AROUND + 1);
        assert_eq!(kept[0].bytes, head);
        assert_eq!(kept[1 + AROUND].says("fault"), Some(true));
        assert_eq!(kept[1].says("fault"), Some(false));
        assert_eq!(word(kept[1].bytes, 20), Some(256));
        assert_eq!(word(kept[1].bytes, 24), Some(1000));
    }

    #[test]
    fn keeps_the_beginning_without_a_fault_and_survives_torn_files() {
        let mut file = block(0x0a0d_0d0a, &[0; 16]);
        assert_eq!(around_faults(&file), None);
        for _ in 0..100 {
            file.extend(packet(9, "x"));
        }
        assert_eq!(blocks(&around_faults(&file).unwrap()).len(), 1 + FIRST);
        for length in 0..300 {
            let _ = around_faults(&file[..length]);
            assert_eq!(first_firing(&file[..length], "drop"), None);
        }
        assert_eq!(around_faults(&[0xff; 64]), None);
    }
}
