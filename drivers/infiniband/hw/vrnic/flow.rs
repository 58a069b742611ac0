// SPDX-License-Identifier: GPL-2.0

//! Flows: which Ethernet frames go to queue pairs for raw packets, and how many there were.

use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use rdma::{
    flow::{
        FlowAttr,
        Layer,
        Spec,
        Type, //
    },
    FlowCounters,
    FlowRule, //
};
use vrnic_wire::command::{
    flow_flags,
    CreateFlow,
    CreateTunnelFlow,
    DestroyFlow,
    FlowFields,
    FlowType,
    QueryFlow,
    TunnelFields, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

use crate::{
    device::{
        Call,
        Vrnic, //
    },
    feature,
    object::{
        create,
        Object, //
    },
    qp::Qp, //
};

/// Ethertypes of the versions of IP.
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Protocols of IP.
const TCP: u8 = 6;
const UDP: u8 = 17;
const GRE: u8 = 47;

/// What flows have got: packets and bytes. The provider reads them in this order.
type Count = [u64; 2];

/// The flows that have the same counters.
#[derive(Default)]
struct Counted {
    /// Numbers of the flows that there are.
    flows: KVec<u32>,
    /// What flows had got that are gone.
    gone: Count,
    /// Whether nobody knows what such a flow had got.
    lost: bool,
}

impl Counted {
    /// Returns the sum of what the flows have got; `EIO` if that is not known. `query` asks the
    /// device for one of them.
    fn sum(&self, query: impl Fn(u32) -> Result<Count>) -> Result<Count> {
        if self.lost {
            return Err(EIO);
        }
        let mut sum = self.gone;
        for &flow in &self.flows {
            add(&mut sum, query(flow)?);
        }
        Ok(sum)
    }

    /// Forgets a flow that is about to go away. `count` is what the device says that it got.
    fn forget(&mut self, flow: u32, count: Result<Count>) {
        self.flows.retain(|number| *number != flow);
        match count {
            Ok(count) => add(&mut self.gone, count),
            Err(_) => self.lost = true,
        }
    }
}

/// Adds `count` to `sum`.
fn add(sum: &mut Count, count: Count) {
    for (sum, count) in sum.iter_mut().zip(count) {
        *sum = sum.wrapping_add(count);
    }
}

/// Asks the device what a flow has got.
fn query(call: &Call<'_>, flow: u32) -> Result<Count> {
    let reply = call.data().control.execute(&QueryFlow {
        flow: flow.into(),
        ..Default::default()
    })?;
    Ok([reply.packets.get(), reply.bytes.get()])
}

/// What counters and their flows share. The lock is held while a flow goes away, so that nobody
/// asks the device for it any more.
#[pin_data]
struct Shared {
    #[pin]
    counted: Mutex<Counted>,
}

/// Counters of flows. The device has them in each flow.
#[pin_data]
pub(crate) struct Counters {
    shared: Arc<Shared>,
}

impl FlowCounters for Counters {
    type Driver = Vrnic;

    fn create(call: &Call<'_>) -> Result<impl PinInit<Self>> {
        let features = call.data().features;
        if !features.contains(feature::RAW_PACKETS) || !features.contains(feature::FLOW_COUNTERS) {
            return Err(EOPNOTSUPP);
        }
        let shared = pin_init!(Shared { counted <- new_mutex!(Counted::default()) });
        let shared = Arc::pin_init(shared, GFP_KERNEL)?;
        Ok(pin_init!(Self { shared }))
    }

    fn read(counters: &rdma::flow::Counters<Self>, call: &Call<'_>, values: &mut [u64]) -> Result {
        let counted = counters.shared.counted.lock();
        let sum = counted.sum(|flow| query(call, flow))?;
        for (value, count) in values.iter_mut().zip(sum) {
            *value = count;
        }
        Ok(())
    }

    fn destroy(_counters: &rdma::flow::Counters<Self>, _call: &Call<'_>) {}
}

/// A flow.
#[pin_data]
pub(crate) struct Flow {
    object: Object<DestroyFlow>,
    /// What it shares with its counters, if it has any.
    shared: Option<Arc<Shared>>,
}

/// Fields that a frame must have: values, and the bits that count. No field may be required to have
/// two values.
#[derive(Default)]
struct Wanted<T> {
    value: T,
    mask: T,
}

impl<T: FromBytes + IntoBytes + Immutable> Wanted<T> {
    /// Adds more fields. `EINVAL` if one of them has another value already.
    fn add(&mut self, value: &T, mask: &T) -> Result {
        let bytes = value.as_bytes().iter().zip(mask.as_bytes());
        let own_mask = self.mask.as_mut_bytes().iter_mut();
        let own = self.value.as_mut_bytes().iter_mut().zip(own_mask);
        for ((value, mask), (own_value, own_mask)) in bytes.zip(own) {
            let value = value & mask;
            if (value ^ *own_value) & mask & *own_mask != 0 {
                return Err(EINVAL);
            }
            *own_value |= value;
            *own_mask |= mask;
        }
        Ok(())
    }
}

impl Wanted<FlowFields> {
    /// Demands that a packet has this Ethertype.
    fn ether_type(&mut self, ether_type: u16) -> Result {
        let value = FlowFields {
            ether_type: ether_type.to_be_bytes(),
            ..Default::default()
        };
        let mask = FlowFields {
            ether_type: [0xff; 2],
            ..Default::default()
        };
        self.add(&value, &mask)
    }

    /// Demands that a packet has this protocol of IP.
    fn protocol(&mut self, protocol: u8) -> Result {
        let value = FlowFields {
            protocol,
            ..Default::default()
        };
        let mask = FlowFields {
            protocol: 0xff,
            ..Default::default()
        };
        self.add(&value, &mask)
    }

    /// Adds the specification of a header that packets in front of tunnels and in them can have.
    /// `EOPNOTSUPP` for what the device cannot compare.
    fn header(&mut self, spec: &Spec) -> Result {
        match spec {
            Spec::Ethernet(fields) => {
                let [value, mask] = [fields.value, fields.mask].map(|header| FlowFields {
                    destination_mac: header.destination,
                    source_mac: header.source,
                    ether_type: header.ether_type.to_be_bytes(),
                    vlan_tag: header.vlan_tag.to_be_bytes(),
                    ..Default::default()
                });
                self.add(&value, &mask)
            }
            Spec::Ipv4(fields) => {
                if fields.mask.flags != 0 {
                    return Err(EOPNOTSUPP);
                }
                let wide = |address: [u8; 4]| {
                    let mut wide = [0; 16];
                    wide[12..].copy_from_slice(&address);
                    wide
                };
                let [value, mask] = [fields.value, fields.mask].map(|header| FlowFields {
                    source: wide(header.source),
                    destination: wide(header.destination),
                    protocol: header.protocol,
                    traffic_class: header.tos,
                    hop_limit: header.ttl,
                    ..Default::default()
                });
                self.ether_type(IPV4)?;
                self.add(&value, &mask)
            }
            Spec::Ipv6(fields) => {
                let [value, mask] = [fields.value, fields.mask].map(|header| FlowFields {
                    source: header.source,
                    destination: header.destination,
                    flow_label: header.flow_label.to_be_bytes(),
                    protocol: header.next_header,
                    traffic_class: header.traffic_class,
                    hop_limit: header.hop_limit,
                    ..Default::default()
                });
                self.ether_type(IPV6)?;
                self.add(&value, &mask)
            }
            Spec::Tcp(fields) | Spec::Udp(fields) => {
                let [value, mask] = [fields.value, fields.mask].map(|header| FlowFields {
                    source_port: header.source.to_be_bytes(),
                    destination_port: header.destination.to_be_bytes(),
                    ..Default::default()
                });
                self.protocol(if matches!(spec, Spec::Tcp(_)) {
                    TCP
                } else {
                    UDP
                })?;
                self.add(&value, &mask)
            }
            Spec::Vxlan(_) | Spec::Gre(_) | Spec::Mpls(_) => Err(EOPNOTSUPP),
        }
    }
}

/// The fields of a flow.
#[derive(Default)]
struct Rule {
    /// Those of the headers in front of a tunnel.
    outer: Wanted<FlowFields>,
    tunnel: Wanted<TunnelFields>,
    /// Those of the packet in the tunnel.
    inner: Wanted<FlowFields>,
    /// The last specification, which says where a label stack is.
    last: Option<(Layer, Spec)>,
}

impl Rule {
    /// Adds a specification. `EOPNOTSUPP` for what the device cannot compare.
    fn spec(&mut self, layer: Layer, spec: &Spec) -> Result {
        match (layer, spec) {
            (Layer::Outer, Spec::Vxlan(fields)) => {
                let [value, mask] = [fields.value, fields.mask].map(|vni| TunnelFields {
                    vni: vni.to_be_bytes(),
                    ..Default::default()
                });
                self.tunnel.add(&value, &mask)?;
            }
            (Layer::Outer, Spec::Gre(fields)) => {
                if fields.mask.flags != 0 {
                    return Err(EOPNOTSUPP);
                }
                let [value, mask] = [fields.value, fields.mask].map(|header| TunnelFields {
                    gre_protocol: header.protocol.to_be_bytes(),
                    gre_key: header.key.to_be_bytes(),
                    ..Default::default()
                });
                self.outer.protocol(GRE)?;
                self.tunnel.add(&value, &mask)?;
            }
            (_, Spec::Mpls(fields)) => {
                let last = self.last;
                let [value, mask] = [fields.value, fields.mask].map(|entry| {
                    let mut tunnel = TunnelFields::default();
                    let place = match (last, layer) {
                        (Some((Layer::Outer, Spec::Udp(_))), _) => &mut tunnel.mpls_over_udp,
                        (Some((Layer::Outer, Spec::Gre(_))), _) => &mut tunnel.mpls_over_gre,
                        (_, Layer::Outer) => &mut tunnel.mpls_over_ethernet,
                        (_, Layer::Inner) => &mut tunnel.mpls_inner,
                    };
                    *place = entry.to_be_bytes();
                    tunnel
                });
                self.tunnel.add(&value, &mask)?;
            }
            (Layer::Outer, spec) => self.outer.header(spec)?,
            (Layer::Inner, spec) => self.inner.header(spec)?,
        }
        self.last = Some((layer, *spec));
        Ok(())
    }
}

/// Returns the request for a flow to this queue pair.
fn request(qpn: u32, attributes: &FlowAttr<'_, Vrnic>) -> Result<CreateTunnelFlow> {
    let flow_type = match attributes.ty {
        Type::Normal => FlowType::Normal,
        Type::AllDefault => FlowType::AllDefault,
        Type::MulticastDefault => FlowType::MulticastDefault,
        Type::Sniffer => return Err(EOPNOTSUPP),
    };
    let mut rule = Rule::default();
    for spec in attributes.specs.clone() {
        let (layer, spec) = spec?;
        rule.spec(layer, &spec)?;
    }
    let mut flags = 0;
    if attributes.continues {
        flags |= flow_flags::DONT_TRAP;
    }
    if attributes.drops {
        flags |= flow_flags::DROP;
    }
    // The priority of other types has no meaning.
    let priority = match flow_type {
        FlowType::Normal => attributes.priority,
        _ => 0,
    };
    let flow = CreateFlow {
        qpn: qpn.into(),
        flow_type: flow_type.raw(),
        port: u8::try_from(attributes.port.number())?,
        priority: priority.into(),
        flags: flags.into(),
        tag: attributes.tag.into(),
        value: rule.outer.value,
        mask: rule.outer.mask,
    };
    Ok(CreateTunnelFlow {
        flow,
        tunnel_value: rule.tunnel.value,
        tunnel_mask: rule.tunnel.mask,
        inner_value: rule.inner.value,
        inner_mask: rule.inner.mask,
    })
}

/// Returns whether a flow is one that a device without the feature has, too.
fn is_plain(request: &CreateTunnelFlow) -> bool {
    request.flow.tag.get() == 0
        && request.flow.flags.get() & flow_flags::DROP == 0
        && !looks_inside(request)
}

/// Returns whether a specification is about tunnels, even if its mask is empty.
fn is_about_tunnels(attributes: &FlowAttr<'_, Vrnic>) -> Result<bool> {
    for spec in attributes.specs.clone() {
        let (layer, spec) = spec?;
        if layer == Layer::Inner || matches!(spec, Spec::Vxlan(_) | Spec::Gre(_) | Spec::Mpls(_)) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether a flow has fields of tunnels.
fn looks_inside(request: &CreateTunnelFlow) -> bool {
    let is_set = |mask: &[u8]| mask.iter().any(|&bits| bits != 0);
    is_set(request.tunnel_mask.as_bytes()) || is_set(request.inner_mask.as_bytes())
}

impl FlowRule for Flow {
    type Driver = Vrnic;

    fn create(
        call: &Call<'_>,
        qp: &rdma::Qp<Qp>,
        attributes: &FlowAttr<'_, Vrnic>,
    ) -> Result<impl PinInit<Self>> {
        let features = call.data().features;
        if !features.contains(feature::RAW_PACKETS) {
            return Err(EOPNOTSUPP);
        }
        let request = request(qp.number(), attributes)?;
        if (!is_plain(&request) || is_about_tunnels(attributes)?)
            && !features.contains(feature::TUNNEL_FLOWS)
        {
            return Err(EOPNOTSUPP);
        }
        let control = &call.data().control;
        let (object, _) = if looks_inside(&request) {
            create(control, &request)?
        } else {
            create(control, &request.flow)?
        };
        let shared = attributes.counters.map(|counters| counters.shared.clone());
        if let Some(shared) = &shared {
            let mut counted = shared.counted.lock();
            counted.flows.push(object.number(), GFP_KERNEL)?;
        }
        Ok(pin_init!(Self { object, shared }))
    }

    fn destroy(flow: &Self, call: &Call<'_>) {
        let Some(shared) = &flow.shared else {
            return flow.object.destroy();
        };
        let mut counted = shared.counted.lock();
        let number = flow.object.number();
        counted.forget(number, query(call, number));
        flow.object.destroy();
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_flow)]
mod tests {
    use super::*;
    use rdma::flow::{
        Ethernet,
        Fields,
        Gre,
        Ipv4,
        Ports, //
    };

    fn ethernet(ether_type: u16) -> Spec {
        Spec::Ethernet(Fields {
            value: Ethernet {
                destination: [1, 2, 3, 4, 5, 6],
                ether_type,
                ..Default::default()
            },
            mask: Ethernet {
                destination: [0xff; 6],
                ether_type: 0xffff,
                ..Default::default()
            },
        })
    }

    #[test]
    fn headers_imply_those_in_front_of_them() -> Result {
        let mut rule = Rule::default();
        let ports = Fields {
            value: Ports {
                source: 5,
                destination: 4791,
            },
            mask: Ports {
                source: 0,
                destination: 0xffff,
            },
        };
        rule.spec(Layer::Outer, &ethernet(IPV4))?;
        rule.spec(
            Layer::Outer,
            &Spec::Ipv4(Fields {
                value: Ipv4 {
                    source: [10, 0, 0, 1],
                    ..Default::default()
                },
                mask: Ipv4 {
                    source: [0xff; 4],
                    ..Default::default()
                },
            }),
        )?;
        rule.spec(Layer::Outer, &Spec::Udp(ports))?;
        let mut source = [0; 16];
        source[12..].copy_from_slice(&[10, 0, 0, 1]);
        let mut source_mask = [0; 16];
        source_mask[12..].copy_from_slice(&[0xff; 4]);
        assert_eq!(
            rule.outer.value,
            FlowFields {
                destination_mac: [1, 2, 3, 4, 5, 6],
                ether_type: [8, 0],
                source,
                protocol: UDP,
                // The value of bits that do not count is 0.
                source_port: [0; 2],
                destination_port: [0x12, 0xb7],
                ..Default::default()
            }
        );
        assert_eq!(
            rule.outer.mask,
            FlowFields {
                destination_mac: [0xff; 6],
                ether_type: [0xff; 2],
                source: source_mask,
                protocol: 0xff,
                destination_port: [0xff; 2],
                ..Default::default()
            }
        );
        Ok(())
    }

    #[test]
    fn counters_add_up_what_flows_get() -> Result {
        let mut counted = Counted::default();
        assert_eq!(counted.sum(|_| Err(EIO)), Ok([0, 0]));
        counted.flows.push(3, GFP_KERNEL)?;
        counted.flows.push(4, GFP_KERNEL)?;
        let query = |flow: u32| Ok([u64::from(flow), 100]);
        assert_eq!(counted.sum(query), Ok([7, 200]));
        counted.forget(3, Ok([5, 150]));
        assert_eq!(counted.sum(query), Ok([9, 250]));
        assert_eq!(counted.sum(|_| Err(EIO)), Err(EIO));
        counted.forget(4, Ok([4, 100]));
        assert_eq!(counted.sum(|_| Err(EIO)), Ok([9, 250]));
        counted.forget(5, Err(ENOMEM));
        assert_eq!(counted.sum(query), Err(EIO));
        Ok(())
    }

    #[test]
    fn a_field_has_one_value() -> Result {
        let mut rule = Rule::default();
        rule.spec(Layer::Outer, &ethernet(IPV6))?;
        let four = Spec::Ipv4(Fields::default());
        assert_eq!(rule.spec(Layer::Outer, &four), Err(EINVAL));
        let mut rule = Rule::default();
        rule.spec(Layer::Outer, &Spec::Tcp(Fields::default()))?;
        assert_eq!(
            rule.spec(Layer::Outer, &Spec::Udp(Fields::default())),
            Err(EINVAL)
        );
        let flags = Spec::Ipv4(Fields {
            value: Ipv4::default(),
            mask: Ipv4 {
                flags: 2,
                ..Default::default()
            },
        });
        assert_eq!(Rule::default().spec(Layer::Outer, &flags), Err(EOPNOTSUPP));
        Ok(())
    }

    fn fields(value: u32) -> Fields<u32> {
        Fields {
            value,
            mask: 0xffff_ffff,
        }
    }

    #[test]
    fn headers_of_tunnels_have_their_places() -> Result {
        let mut rule = Rule::default();
        let vni = Fields {
            value: 0x01_0203,
            mask: 0xff_ffff,
        };
        rule.spec(Layer::Outer, &Spec::Vxlan(vni))?;
        rule.spec(Layer::Inner, &ethernet(IPV4))?;
        rule.spec(Layer::Inner, &Spec::Tcp(Fields::default()))?;
        assert_eq!(rule.tunnel.value.vni, [0, 1, 2, 3]);
        assert_eq!(rule.tunnel.mask.vni, [0, 0xff, 0xff, 0xff]);
        assert_eq!(rule.outer.mask, FlowFields::default());
        assert_eq!(rule.inner.value.destination_mac, [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            (rule.inner.value.protocol, rule.inner.mask.protocol),
            (TCP, 0xff)
        );

        let mut rule = Rule::default();
        let gre = Fields {
            value: Gre {
                protocol: 0x6558,
                key: 7,
                ..Default::default()
            },
            mask: Gre {
                protocol: 0xffff,
                key: 0xffff_ffff,
                ..Default::default()
            },
        };
        rule.spec(Layer::Outer, &Spec::Gre(gre))?;
        assert_eq!(rule.tunnel.value.gre_protocol, [0x65, 0x58]);
        assert_eq!(rule.tunnel.value.gre_key, [0, 0, 0, 7]);
        assert_eq!(
            (rule.outer.value.protocol, rule.outer.mask.protocol),
            (GRE, 0xff)
        );
        // The protocol of the packet is that of the tunnel.
        let udp = Spec::Udp(Fields::default());
        assert_eq!(rule.spec(Layer::Outer, &udp), Err(EINVAL));
        let flags = Spec::Gre(Fields {
            mask: Gre {
                flags: 1 << 13,
                ..Default::default()
            },
            ..Default::default()
        });
        assert_eq!(rule.spec(Layer::Outer, &flags), Err(EOPNOTSUPP));
        // There is one tunnel.
        for spec in [Spec::Gre(gre), Spec::Vxlan(vni)] {
            assert_eq!(rule.spec(Layer::Inner, &spec), Err(EOPNOTSUPP));
        }
        Ok(())
    }

    #[test]
    fn a_label_stack_is_behind_the_specification_in_front() -> Result {
        let udp = (Layer::Outer, Spec::Udp(Fields::default()));
        let gre = (Layer::Outer, Spec::Gre(Fields::default()));
        let inner_udp = (Layer::Inner, Spec::Udp(Fields::default()));
        let inner_eth = (Layer::Inner, ethernet(0x8847));
        let entry = [0, 0, 0x11, 0x40];
        let over_ethernet = TunnelFields {
            mpls_over_ethernet: entry,
            ..Default::default()
        };
        let over_udp = TunnelFields {
            mpls_over_udp: entry,
            ..Default::default()
        };
        let over_gre = TunnelFields {
            mpls_over_gre: entry,
            ..Default::default()
        };
        let inner = TunnelFields {
            mpls_inner: entry,
            ..Default::default()
        };
        for (front, layer, expected) in [
            (None, Layer::Outer, over_ethernet),
            (
                Some((Layer::Outer, ethernet(0x8847))),
                Layer::Outer,
                over_ethernet,
            ),
            (Some(udp), Layer::Outer, over_udp),
            (Some(udp), Layer::Inner, over_udp),
            (Some(gre), Layer::Outer, over_gre),
            (Some(inner_eth), Layer::Inner, inner),
            (Some(inner_udp), Layer::Inner, inner),
            (None, Layer::Inner, inner),
        ] {
            let mut rule = Rule::default();
            if let Some((layer, spec)) = front {
                rule.spec(layer, &spec)?;
            }
            rule.spec(layer, &Spec::Mpls(fields(0x1140)))?;
            assert_eq!(rule.tunnel.value, expected);
        }
        let mut rule = Rule::default();
        rule.spec(Layer::Outer, &Spec::Mpls(fields(1)))?;
        let other = Spec::Mpls(fields(2));
        assert_eq!(rule.spec(Layer::Outer, &other), Err(EINVAL));
        Ok(())
    }
}
