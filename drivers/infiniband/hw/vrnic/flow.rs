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
        Spec,
        Type, //
    },
    FlowCounters,
    FlowRule, //
};
use vrnic_wire::command::{
    flow_flags,
    CreateFlow,
    DestroyFlow,
    FlowFields,
    FlowType,
    QueryFlow, //
};
use zerocopy::IntoBytes;

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

/// The fields of a flow. No field may be required to have two values.
#[derive(Default)]
struct Wanted {
    value: FlowFields,
    mask: FlowFields,
}

impl Wanted {
    /// Adds more fields. `EINVAL` if one of them has another value already.
    fn add(&mut self, value: &FlowFields, mask: &FlowFields) -> Result {
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

    /// Demands that a frame has this Ethertype.
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

    /// Demands that a frame has this protocol of IP.
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

    /// Adds a specification. `EOPNOTSUPP` for what the device cannot compare.
    fn spec(&mut self, spec: &Spec) -> Result {
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
        }
    }
}

/// Returns the request for a flow to this queue pair.
fn request(qpn: u32, attributes: &FlowAttr<'_, Vrnic>) -> Result<CreateFlow> {
    let flow_type = match attributes.ty {
        Type::Normal => FlowType::Normal,
        Type::AllDefault => FlowType::AllDefault,
        Type::MulticastDefault => FlowType::MulticastDefault,
        Type::Sniffer => return Err(EOPNOTSUPP),
    };
    let mut wanted = Wanted::default();
    for spec in attributes.specs.clone() {
        wanted.spec(&spec?)?;
    }
    let mut flags = 0;
    if attributes.continues {
        flags |= flow_flags::DONT_TRAP;
    }
    // The priority of other types has no meaning.
    let priority = match flow_type {
        FlowType::Normal => attributes.priority,
        _ => 0,
    };
    Ok(CreateFlow {
        qpn: qpn.into(),
        flow_type: flow_type.raw(),
        port: u8::try_from(attributes.port.number())?,
        priority: priority.into(),
        flags: flags.into(),
        reserved: 0.into(),
        value: wanted.value,
        mask: wanted.mask,
    })
}

impl FlowRule for Flow {
    type Driver = Vrnic;

    fn create(
        call: &Call<'_>,
        qp: &rdma::Qp<Qp>,
        attributes: &FlowAttr<'_, Vrnic>,
    ) -> Result<impl PinInit<Self>> {
        if !call.data().features.contains(feature::RAW_PACKETS) {
            return Err(EOPNOTSUPP);
        }
        let request = request(qp.number(), attributes)?;
        let (object, _) = create(&call.data().control, &request)?;
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
        let mut wanted = Wanted::default();
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
        wanted.spec(&ethernet(IPV4))?;
        wanted.spec(&Spec::Ipv4(Fields {
            value: Ipv4 {
                source: [10, 0, 0, 1],
                ..Default::default()
            },
            mask: Ipv4 {
                source: [0xff; 4],
                ..Default::default()
            },
        }))?;
        wanted.spec(&Spec::Udp(ports))?;
        let mut source = [0; 16];
        source[12..].copy_from_slice(&[10, 0, 0, 1]);
        let mut source_mask = [0; 16];
        source_mask[12..].copy_from_slice(&[0xff; 4]);
        assert_eq!(
            wanted.value,
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
            wanted.mask,
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
        let mut wanted = Wanted::default();
        wanted.spec(&ethernet(IPV6))?;
        let four = Spec::Ipv4(Fields::default());
        assert_eq!(wanted.spec(&four), Err(EINVAL));
        let mut wanted = Wanted::default();
        wanted.spec(&Spec::Tcp(Fields::default()))?;
        assert_eq!(wanted.spec(&Spec::Udp(Fields::default())), Err(EINVAL));
        let flags = Spec::Ipv4(Fields {
            value: Ipv4::default(),
            mask: Ipv4 {
                flags: 2,
                ..Default::default()
            },
        });
        assert_eq!(Wanted::default().spec(&flags), Err(EOPNOTSUPP));
        Ok(())
    }
}
