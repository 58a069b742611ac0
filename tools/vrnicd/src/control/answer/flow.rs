// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Describes flows in words.

use std::net::{Ipv4Addr, Ipv6Addr};

use vrnic_engine::FlowSnapshot;
use vrnic_wire::command::{FlowFields, FlowType};

use crate::config::Mac;
use crate::control::protocol::Flow;

/// Ethertype of IPv6.
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Describes a flow.
pub fn view(flow: FlowSnapshot) -> Flow {
    let kind = match flow.flow_type {
        FlowType::Normal => "normal",
        FlowType::AllDefault => "all default",
        FlowType::MulticastDefault => "multicast default",
    };
    Flow {
        flow: flow.number,
        qpn: flow.qpn,
        kind: kind.into(),
        priority: flow.priority,
        dont_trap: flow.dont_trap,
        packets: flow.packets,
        bytes: flow.bytes,
        fields: fields(&flow.value, &flow.mask),
    }
}

/// Returns the names and values of the fields that a frame must have. If only some bits of a field count, a slash and
/// these bits follow the value.
fn fields(value: &FlowFields, mask: &FlowFields) -> Vec<(String, String)> {
    let begins = |address: [u8; 16]| address[..12] != [0; 12];
    let six = value.ether_type == IPV6 || begins(mask.source) || begins(mask.destination);
    let all = [
        (
            "destination_mac",
            mac(value.destination_mac, mask.destination_mac),
        ),
        ("source_mac", mac(value.source_mac, mask.source_mac)),
        (
            "ether_type",
            hexadecimal(&value.ether_type, &mask.ether_type, 4),
        ),
        ("vlan_tag", hexadecimal(&value.vlan_tag, &mask.vlan_tag, 4)),
        ("source", address(value.source, mask.source, six)),
        (
            "destination",
            address(value.destination, mask.destination, six),
        ),
        (
            "flow_label",
            hexadecimal(&value.flow_label, &mask.flow_label, 5),
        ),
        ("protocol", decimal(&[value.protocol], &[mask.protocol])),
        (
            "traffic_class",
            hexadecimal(&[value.traffic_class], &[mask.traffic_class], 2),
        ),
        ("hop_limit", decimal(&[value.hop_limit], &[mask.hop_limit])),
        (
            "source_port",
            decimal(&value.source_port, &mask.source_port),
        ),
        (
            "destination_port",
            decimal(&value.destination_port, &mask.destination_port),
        ),
    ];
    let wanted = all.into_iter();
    wanted
        .filter_map(|(name, text)| Some((name.to_owned(), text?)))
        .collect()
}

fn mac(value: [u8; 6], mask: [u8; 6]) -> Option<String> {
    match mask {
        [0, 0, 0, 0, 0, 0] => None,
        [0xff, 0xff, 0xff, 0xff, 0xff, 0xff] => Some(Mac(value).to_string()),
        _ => Some(format!("{}/{}", Mac(value), Mac(mask))),
    }
}

/// Describes an address of IPv6, or of IPv4 in the last 4 bytes.
fn address(value: [u8; 16], mask: [u8; 16], six: bool) -> Option<String> {
    let show = |bytes: [u8; 16]| {
        let [.., a, b, c, d] = bytes;
        if six {
            Ipv6Addr::from(bytes).to_string()
        } else {
            Ipv4Addr::new(a, b, c, d).to_string()
        }
    };
    let bits = u128::from_be_bytes(mask);
    let width = if six { 128 } else { 32 };
    let prefix = (bits << (128 - width)).leading_ones();
    match (prefix, bits.count_ones()) {
        (_, 0) => None,
        (prefix, _) if prefix == width => Some(show(value)),
        (prefix, ones) if prefix == ones => Some(format!("{}/{prefix}", show(value))),
        _ => Some(format!("{}/{}", show(value), show(mask))),
    }
}

/// Describes a number of this many digits.
fn hexadecimal(value: &[u8], mask: &[u8], digits: usize) -> Option<String> {
    let width = 2 + digits;
    number(value, mask, u32::MAX >> (32 - 4 * digits), |value| {
        format!("{value:#0width$x}")
    })
}

fn decimal(value: &[u8], mask: &[u8]) -> Option<String> {
    let whole = u32::MAX >> (32 - 8 * value.len());
    number(value, mask, whole, |value| value.to_string())
}

/// Describes a number; `whole` is the mask if all of its bits count.
fn number(value: &[u8], mask: &[u8], whole: u32, show: impl Fn(u32) -> String) -> Option<String> {
    let [value, mask] = [value, mask].map(|bytes| {
        let bytes = bytes.iter();
        bytes.fold(0u32, |number, &byte| number << 8 | u32::from(byte))
    });
    match mask {
        0 => None,
        mask if mask == whole => Some(show(value)),
        mask => Some(format!("{}/{mask:#x}", show(value))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how the fields are shown, in one line.
    fn shown(value: FlowFields, mask: FlowFields) -> String {
        let all = fields(&value, &mask).into_iter();
        let all: Vec<_> = all.map(|(name, text)| format!("{name}={text}")).collect();
        all.join(" ")
    }

    fn four(address: [u8; 4]) -> [u8; 16] {
        let mut wide = [0; 16];
        wide[12..].copy_from_slice(&address);
        wide
    }

    #[test]
    fn each_field_is_shown_as_it_is_written() {
        let value = FlowFields {
            destination_mac: [0x52, 0x54, 0, 0, 0, 1],
            source_mac: [2, 0, 0, 0, 0, 3],
            ether_type: [8, 0],
            vlan_tag: [0xe0, 5],
            source: four([10, 77, 0, 1]),
            destination: four([10, 77, 0, 2]),
            flow_label: [0, 0, 0xab, 0xcd],
            protocol: 17,
            traffic_class: 0x10,
            hop_limit: 64,
            source_port: [0, 80],
            destination_port: [0x12, 0xb7],
            ..FlowFields::default()
        };
        let mask = FlowFields {
            destination_mac: [0xff; 6],
            source_mac: [0xff; 6],
            ether_type: [0xff; 2],
            vlan_tag: [0xff; 2],
            source: four([0xff; 4]),
            destination: four([0xff; 4]),
            flow_label: [0, 0xf, 0xff, 0xff],
            protocol: 0xff,
            traffic_class: 0xff,
            hop_limit: 0xff,
            source_port: [0xff; 2],
            destination_port: [0xff; 2],
            ..FlowFields::default()
        };
        assert_eq!(
            shown(value, mask),
            "destination_mac=52:54:00:00:00:01 source_mac=02:00:00:00:00:03 ether_type=0x0800 vlan_tag=0xe005 \
             source=10.77.0.1 destination=10.77.0.2 flow_label=0x0abcd protocol=17 traffic_class=0x10 hop_limit=64 \
             source_port=80 destination_port=4791"
        );
        assert_eq!(shown(value, FlowFields::default()), "");
    }

    #[test]
    fn a_slash_separates_a_value_from_the_bits_that_count() {
        let value = FlowFields {
            destination_mac: [1, 0, 0, 0, 0, 0],
            vlan_tag: [0, 5],
            source: four([10, 77, 0, 0]),
            destination: four([10, 0, 0, 1]),
            destination_port: [0x12, 0],
            ..FlowFields::default()
        };
        let mask = FlowFields {
            destination_mac: [1, 0, 0, 0, 0, 0],
            vlan_tag: [0x0f, 0xff],
            source: four([0xff, 0xff, 0, 0]),
            destination: four([0xff, 0, 0, 0xff]),
            destination_port: [0xff, 0],
            ..FlowFields::default()
        };
        assert_eq!(
            shown(value, mask),
            "destination_mac=01:00:00:00:00:00/01:00:00:00:00:00 vlan_tag=0x0005/0xfff source=10.77.0.0/16 \
             destination=10.0.0.1/255.0.0.255 destination_port=4608/0xff00"
        );
    }

    #[test]
    fn addresses_are_those_of_the_ethertype_or_as_long_as_the_mask() {
        let mut address = [0; 16];
        (address[0], address[1], address[15]) = (0xfd, 0x77, 2);
        let value = FlowFields {
            ether_type: IPV6,
            source: four([0, 0, 0, 1]),
            destination: address,
            ..FlowFields::default()
        };
        let mut prefix = [0; 16];
        prefix[..8].fill(0xff);
        let mask = FlowFields {
            source: four([0xff; 4]),
            destination: prefix,
            ..FlowFields::default()
        };
        let expected = "source=::1/::ffff:ffff destination=fd77::2/64";
        assert_eq!(shown(value, mask), expected);
        let value = FlowFields {
            ether_type: [0; 2],
            ..value
        };
        assert_eq!(shown(value, mask), expected);
    }
}
