// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Checksums of blocks in protection information.

use serde::{Deserialize, Serialize};

/// Polynomial of the CRC of T10-DIF, without its highest bit.
const POLYNOMIAL: u16 = 0x8bb7;

/// Number of bytes that are handled at a time.
const SLICES: usize = 8;

/// Contributions of each byte value to the CRC, by the number of bytes that follow it.
const TABLES: [[u16; 256]; SLICES] = tables();

const fn tables() -> [[u16; 256]; SLICES] {
    let mut tables = [[0; 256]; SLICES];
    let mut value = 0;
    while value < 256 {
        let mut crc = (value as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ if crc & 0x8000 != 0 { POLYNOMIAL } else { 0 };
            bit += 1;
        }
        tables[0][value] = crc;
        value += 1;
    }
    let mut slice = 1;
    while slice < SLICES {
        let mut value = 0;
        while value < 256 {
            let before = tables[slice - 1][value];
            tables[slice][value] = (before << 8) ^ tables[0][(before >> 8) as usize];
            value += 1;
        }
        slice += 1;
    }
    tables
}

/// Kind of a guard.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Guard {
    /// CRC-16 of T10-DIF.
    Crc,
    /// Checksum of the Internet protocols.
    Ip,
}

/// The guard of a block that is given piece by piece.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Sum {
    /// The CRC so far.
    Crc(u16),
    /// The sum of the words so far.
    Ip {
        /// The sum, not folded.
        sum: u64,
        /// Whether the next byte is the lower half of a word.
        is_odd: bool,
    },
}

impl Sum {
    /// Begins a block.
    pub(crate) const fn new(guard: Guard, seed: u16) -> Self {
        match guard {
            Guard::Crc => Self::Crc(seed),
            Guard::Ip => Self::Ip {
                sum: seed as u64,
                is_odd: false,
            },
        }
    }

    /// Adds the next bytes of the block.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(crc) => *crc = crc_of(*crc, bytes),
            Self::Ip { sum, is_odd } => {
                let mut rest = bytes;
                if *is_odd && let Some((&first, others)) = rest.split_first() {
                    *sum += u64::from(first);
                    *is_odd = false;
                    rest = others;
                }
                let (words, last) = rest.as_chunks::<2>();
                for &word in words {
                    *sum += u64::from(u16::from_be_bytes(word));
                }
                if let [last] = last {
                    *sum += u64::from(*last) << 8;
                    *is_odd = true;
                }
            }
        }
    }

    /// Returns the guard.
    pub(crate) fn finish(self) -> u16 {
        match self {
            Self::Crc(crc) => crc,
            Self::Ip { mut sum, .. } => {
                while sum > u64::from(u16::MAX) {
                    sum = (sum >> 16) + (sum & 0xffff);
                }
                !(sum as u16)
            }
        }
    }
}

/// Continues a CRC.
fn crc_of(mut crc: u16, bytes: &[u8]) -> u16 {
    let at = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
    let (chunks, rest) = bytes.as_chunks::<SLICES>();
    for &[a, b, c, d, e, f, g, h] in chunks {
        let [high, low] = crc.to_be_bytes();
        crc = at(7, a ^ high)
            ^ at(6, b ^ low)
            ^ at(5, c)
            ^ at(4, d)
            ^ at(3, e)
            ^ at(2, f)
            ^ at(1, g)
            ^ at(0, h);
    }
    for &byte in rest {
        let [high, low] = crc.to_be_bytes();
        crc = u16::from_be_bytes([low, 0]) ^ at(0, byte ^ high);
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(guard: Guard, seed: u16, bytes: &[u8]) -> u16 {
        let mut sum = Sum::new(guard, seed);
        sum.add(bytes);
        sum.finish()
    }

    #[test]
    fn known_values_are_right() {
        // Examples of SCSI Block Commands (SBC-3) for the guard of protection information.
        let counting: Vec<u8> = (0..32).collect();
        let falling: Vec<u8> = (0xe0..=0xff).rev().collect();
        for (bytes, crc) in [
            (vec![0; 32], 0x0000),
            (vec![0xff; 32], 0xa293),
            (counting, 0x0224),
            ([[0xff; 2].as_slice(), &[0; 30]].concat(), 0x21b8),
            (falling, 0xa0b7),
        ] {
            assert_eq!(guard(Guard::Crc, 0, &bytes), crc, "{bytes:x?}");
        }
        // The check value of the catalogue of CRCs.
        assert_eq!(guard(Guard::Crc, 0, b"123456789"), 0xd0db);
        // The example of RFC 1071: the sum is 0xddf2.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(guard(Guard::Ip, 0, &bytes), !0xddf2);
        assert_eq!(guard(Guard::Ip, 1, &bytes), !0xddf3);
        assert_eq!(guard(Guard::Ip, 0, &[0; 512]), 0xffff);
    }

    /// Returns the CRC, bit by bit.
    fn bitwise(seed: u16, bytes: &[u8]) -> u16 {
        let mut crc = seed;
        for byte in bytes {
            for bit in (0..8).rev() {
                let carry = crc >> 15 ^ u16::from(byte >> bit & 1);
                crc = crc << 1 ^ if carry != 0 { POLYNOMIAL } else { 0 };
            }
        }
        crc
    }

    #[test]
    fn pieces_do_not_matter() {
        let bytes: Vec<u8> = (0..515u32).map(|n| (n * 7 % 251) as u8).collect();
        for seed in [0, 0xffff, 0x1234] {
            assert_eq!(guard(Guard::Crc, seed, &bytes), bitwise(seed, &bytes));
            for kind in [Guard::Crc, Guard::Ip] {
                let whole = guard(kind, seed, &bytes);
                for size in 1..40 {
                    let mut sum = Sum::new(kind, seed);
                    bytes.chunks(size).for_each(|piece| sum.add(piece));
                    assert_eq!(sum.finish(), whole, "{kind:?} in pieces of {size}");
                }
            }
        }
    }
}
