// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Receive scaling: a hash of a frame chooses one of several receive queues.

use crate::cause::Cause;
use etherparse::{IpNumber, ether_type};
use serde::{Deserialize, Serialize};
use vrnic_wire::command::{CreateScalingQp, FlowFields, MAX_SCALING_ENTRIES, hash_fields};

/// Longest input of the hash: two addresses of IPv6, and two ports.
const MAX_INPUT: usize = 2 * 16 + 2 * 2;

/// Returns the hash of Toeplitz. What the key is too short for counts as 0.
pub fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, byte) in input.iter().enumerate() {
        // The 32 bits of the key from each of the 8 bits on.
        let window = (at..at + 5).fold(0, |window, at| {
            window << 8 | u64::from(key.get(at).copied().unwrap_or(0))
        });
        for bit in 0..8 {
            if byte << bit & 0x80 != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

/// How the frames of a queue pair are distributed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scaling {
    /// Bits of [`hash_fields`].
    fields: u32,
    key: Vec<u8>,
    /// Numbers of the receive queues.
    queues: Vec<u32>,
}

impl Scaling {
    /// Reads a request, without looking at the objects that it names.
    pub(crate) fn of(request: &CreateScalingQp) -> Result<Self, Cause> {
        let (fields, entries) = (request.fields.get(), request.entries.get());
        let count = entries as usize;
        if !count.is_power_of_two() || count > MAX_SCALING_ENTRIES {
            return Err(Cause::ScalingEntries);
        }
        let (queues, rest) = request.queues.split_at(count);
        if rest.iter().any(|queue| queue.get() != 0) {
            return Err(Cause::ReservedField);
        }
        let both = |one, other| fields & one != 0 && fields & other != 0;
        if fields & !hash_fields::ALL != 0
            || fields == 0 && count > 1
            || both(hash_fields::IPV4, hash_fields::IPV6)
            || both(hash_fields::TCP, hash_fields::UDP)
        {
            return Err(Cause::HashFields);
        }
        Ok(Self {
            fields,
            key: request.key.to_vec(),
            queues: queues.iter().map(|queue| queue.get()).collect(),
        })
    }

    /// Returns the numbers of the receive queues, some of which may be the same.
    pub(crate) fn queues(&self) -> &[u32] {
        &self.queues
    }

    /// Returns the receive queue for a frame with the fields `value`, of which it really has those in `present`.
    pub(crate) fn queue_of(&self, value: &FlowFields, present: &FlowFields) -> Option<u32> {
        let mut input = [0; MAX_INPUT];
        let length = self.input(value, present, &mut input);
        let hash = toeplitz(&self.key, &input[..length]);
        let index = (hash as usize).checked_rem(self.queues.len())?;
        self.queues.get(index).copied()
    }

    /// Writes the input of the hash, and returns its length.
    fn input(&self, value: &FlowFields, present: &FlowFields, to: &mut [u8; MAX_INPUT]) -> usize {
        let mut length = 0;
        let mut put = |field, bytes: &[u8]| {
            if self.fields & field != 0 {
                to[length..length + bytes.len()].copy_from_slice(bytes);
                length += bytes.len();
            }
        };
        let has_ip = present.protocol != 0;
        let version = u16::from_be_bytes(value.ether_type);
        let is_version = |wanted| has_ip && version == wanted;
        if self.fields & hash_fields::IPV4 != 0 {
            if !is_version(ether_type::IPV4.0) {
                return 0;
            }
            put(hash_fields::SOURCE_IPV4, &value.source[12..]);
            put(hash_fields::DESTINATION_IPV4, &value.destination[12..]);
        } else if self.fields & hash_fields::IPV6 != 0 {
            if !is_version(ether_type::IPV6.0) {
                return 0;
            }
            put(hash_fields::SOURCE_IPV6, &value.source);
            put(hash_fields::DESTINATION_IPV6, &value.destination);
        }
        let protocols = [
            (
                IpNumber::TCP,
                hash_fields::SOURCE_TCP,
                hash_fields::DESTINATION_TCP,
            ),
            (
                IpNumber::UDP,
                hash_fields::SOURCE_UDP,
                hash_fields::DESTINATION_UDP,
            ),
        ];
        for (protocol, source, destination) in protocols {
            if present.source_port != [0; 2] && value.protocol == protocol.0 {
                put(source, &value.source_port);
                put(destination, &value.destination_port);
            }
        }
        length
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    /// The key with which Microsoft verifies implementations of RSS.
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    /// Returns the hash with and without ports of a packet from an address and port to another.
    fn hashes(from: (&str, u16), to: (&str, u16)) -> (u32, u32) {
        let bytes = |address: &str| match address.parse().expect("address") {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let addresses = [bytes(from.0), bytes(to.0)].concat();
        let ports = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        let all = [&addresses[..], &ports].concat();
        (toeplitz(&KEY, &all), toeplitz(&KEY, &addresses))
    }

    #[test]
    fn the_hash_has_the_published_values() {
        let cases = [
            (
                ("66.9.149.187", 2794),
                ("161.142.100.80", 1766),
                0x51cc_c178,
                0x323e_8fc2,
            ),
            (
                ("199.92.111.2", 14230),
                ("65.69.140.83", 4739),
                0xc626_b0ea,
                0xd718_262a,
            ),
            (
                ("24.19.198.95", 12898),
                ("12.22.207.184", 38024),
                0x5c2b_394a,
                0xd2d0_a5de,
            ),
            (
                ("38.27.205.30", 48228),
                ("209.142.163.6", 2217),
                0xafc7_327f,
                0x8298_9176,
            ),
            (
                ("153.39.163.191", 44251),
                ("202.188.127.2", 1303),
                0x10e8_28a2,
                0x5d18_09c5,
            ),
            (
                ("3ffe:2501:200:1fff::7", 2794),
                ("3ffe:2501:200:3::1", 1766),
                0x4020_7d3d,
                0x2cc1_8cd5,
            ),
            (
                ("3ffe:501:8::260:97ff:fe40:efab", 14230),
                ("ff02::1", 4739),
                0xdde5_1bbf,
                0x0f0c_461c,
            ),
            (
                ("3ffe:1900:4545:3:200:f8ff:fe21:67cf", 44251),
                ("fe80::200:f8ff:fe21:67cf", 38024),
                0x02d1_feef,
                0x4b61_e985,
            ),
        ];
        for (from, to, with_ports, without) in cases {
            assert_eq!(hashes(from, to), (with_ports, without), "{from:?} {to:?}");
        }
    }

    #[test]
    fn nothing_has_the_hash_0_and_a_short_key_ends_in_zeros() {
        assert_eq!(toeplitz(&KEY, &[]), 0);
        assert_eq!(toeplitz(&[], &[0xff; 36]), 0);
        assert_eq!(toeplitz(&[0x80, 0, 0, 0], &[0x80]), 0x8000_0000);
        assert_eq!(toeplitz(&[0x80, 0, 0, 0], &[0x01]), 0);
        assert_eq!(toeplitz(&[0, 0, 0, 1], &[0x80]), 1);
    }
}
