// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! Describes flows in words.

use std::net::{Ipv4Addr, Ipv6Addr};

use vrnic_engine::FlowSnapshot;
use vrnic_wire::command::{FlowFields, FlowType, TunnelFields};

use crate::config::Mac;
use crate::control::protocol::Flow;

/// Ethertype of IPv6.
const IPV6: [u8; 2] = [0x86, 0xdd];

/// Describes a flow.
pub fn view(flow: &FlowSnapshot) -> Flow {
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
        tag: flow.tag,
        drops: flow.drops,
        fields: all_fields(flow),
    }
}

/// Returns the names and values of the fields that a frame, its tunnel, and the packet in that must have.
fn all_fields(flow: &FlowSnapshot) -> Vec<(String, String)> {
    let mut all = fields(&flow.value, &flow.mask);
    if let Some(tunnel) = &flow.tunnel {
        all.extend(tunnel_fields(&tunnel.value, &tunnel.mask));
        let inner = fields(&tunnel.inner_value, &tunnel.inner_mask).into_iter();
        all.extend(inner.map(|(name, text)| (format!("inner_{name}"), text)));
    }
    all
}

/// Returns the names and values of the fields that a tunnel must have.
fn tunnel_fields(value: &TunnelFields, mask: &TunnelFields) -> Vec<(String, String)> {
    let all = [
        ("vni", hexadecimal(&value.vni, &mask.vni, 6)),
        ("gre_key", hexadecimal(&value.gre_key, &mask.gre_key, 8)),
        (
            "gre_protocol",
            hexadecimal(&value.gre_protocol, &mask.gre_protocol, 4),
        ),
        (
            "mpls_over_ethernet",
            hexadecimal(&value.mpls_over_ethernet, &mask.mpls_over_ethernet, 8),
        ),
        (
            "mpls_over_gre",
            hexadecimal(&value.mpls_over_gre, &mask.mpls_over_gre, 8),
        ),
        (
            "mpls_over_udp",
            hexadecimal(&value.mpls_over_udp, &mask.mpls_over_udp, 8),
        ),
        (
            "mpls_inner",
            hexadecimal(&value.mpls_inner, &mask.mpls_inner, 8),
        ),
    ];
    shown(all)
}

/// Returns the names and values of those fields that count.
fn shown<const N: usize>(all: [(&str, Option<String>); N]) -> Vec<(String, String)> {
    let wanted = all.into_iter();
    wanted
        .filter_map(|(name, text)| Some((name.to_owned(), text?)))
        .collect()
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
    shown(all)
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
    use vrnic_engine::TunnelSnapshot;

    /// Returns fields in one line.
    fn line(all: Vec<(String, String)>) -> String {
        let all = all.into_iter();
        let all: Vec<_> = all.map(|(name, text)| format!("{name}={text}")).collect();
        all.join(" ")
    }

    /// Returns how the fields are shown, in one line.
    fn shown(value: FlowFields, mask: FlowFields) -> String {
        line(fields(&value, &mask))
    }

    #[test]
    fn fields_of_tunnels_follow_those_in_front() {
        let all = TunnelFields {
            vni: [0, 0xff, 0xff, 0xff],
            gre_key: [0xff; 4],
            gre_protocol: [0xff; 2],
            mpls_over_ethernet: [0xff, 0xff, 0xf0, 0],
            mpls_over_gre: [0xff; 4],
            mpls_over_udp: [0xff; 4],
            mpls_inner: [0xff; 4],
            ..TunnelFields::default()
        };
        let value = TunnelFields {
            vni: [0, 0, 1, 2],
            gre_key: [0, 0, 0, 7],
            gre_protocol: [8, 0],
            mpls_over_ethernet: [0, 1, 0, 0],
            ..TunnelFields::default()
        };
        let protocol = |protocol| FlowFields {
            protocol,
            ..FlowFields::default()
        };
        let flow = FlowSnapshot {
            number: 1,
            qpn: 2,
            flow_type: FlowType::Normal,
            priority: 0,
            dont_trap: false,
            value: protocol(17),
            mask: protocol(0xff),
            tunnel: Some(TunnelSnapshot {
                value,
                mask: all,
                inner_value: protocol(6),
                inner_mask: protocol(0xff),
            }),
            tag: 5,
            drops: true,
            packets: 0,
            bytes: 0,
        };
        let view = view(&flow);
        assert_eq!((view.tag, view.drops), (5, true));
        assert_eq!(
            line(view.fields),
            "protocol=17 vni=0x000102 gre_key=0x00000007 gre_protocol=0x0800 \
             mpls_over_ethernet=0x00010000/0xfffff000 mpls_over_gre=0x00000000 mpls_over_udp=0x00000000 \
             mpls_inner=0x00000000 inner_protocol=6"
        );
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
