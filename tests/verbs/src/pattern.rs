// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Payloads that both sides can compute: byte `i` of the payload named `key` is a function of the two, so a receiver
//! checks every byte without having seen the sender's memory, and names the first wrong one.

use crate::rng::mix;

/// Value of the byte that stands wherever no payload may arrive.
pub const POISON: u8 = 0xa5;

/// Bytes `offset..offset + out.len()` of the payload `key`.
pub fn fill(key: u64, offset: usize, out: &mut [u8]) {
    let mut at = 0;
    while at < out.len() {
        let position = offset + at;
        let word =
            mix(key ^ (position as u64 / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes();
        let skip = position % 8;
        let n = (8 - skip).min(out.len() - at);
        out[at..at + n].copy_from_slice(&word[skip..skip + n]);
        at += n;
    }
}

/// Index of the first byte of `got` that differs from the payload `key` at `offset`.
#[must_use]
pub fn mismatch(key: u64, offset: usize, got: &[u8]) -> Option<usize> {
    let mut want = [0_u8; 4096];
    for (chunk, at) in got.chunks(want.len()).zip((0..).step_by(want.len())) {
        let want = &mut want[..chunk.len()];
        fill(key, offset + at, want);
        if want != chunk {
            return Some(at + chunk.iter().zip(want).position(|(g, w)| g != w)?);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_window_agrees_with_the_whole() {
        let mut whole = [0; 300];
        fill(7, 0, &mut whole);
        for start in 0..20 {
            for len in [0, 1, 7, 8, 9, 100] {
                let mut part = vec![0; len];
                fill(7, start, &mut part);
                assert_eq!(part, whole[start..start + len]);
            }
        }
    }

    #[test]
    fn the_first_wrong_byte_is_named() {
        let mut data = vec![0; 10_000];
        fill(9, 3, &mut data);
        assert_eq!(mismatch(9, 3, &data), None);
        data[8_191] ^= 1;
        data[9_000] ^= 1;
        assert_eq!(mismatch(9, 3, &data), Some(8_191));
        assert!(mismatch(10, 3, &data).is_some());
    }
}
