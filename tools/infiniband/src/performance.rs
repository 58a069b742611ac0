// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of ports, and the agent of performance management (IBTA volume 1, chapter 16).

use crate::{
    attributes::{ClassPortInfo, PortCounters, PortCountersExtended, id},
    mad::{self, Method, PerformanceMad, Status},
};

/// Port selection that stands for all ports (16.1.3.5).
pub const ALL_PORTS: u8 = 0xff;

/// Capability bits in the [`ClassPortInfo`] of performance management.
pub mod capability {
    /// [`ALL_PORTS`](super::ALL_PORTS) is supported.
    pub const ALL_PORTS: u16 = 1 << 8;
    /// [`PortCountersExtended`](crate::attributes::PortCountersExtended) is supported.
    pub const EXTENDED: u16 = 1 << 9;
}

/// Counters of one port. They do not wrap.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Counters of the `PortCounters` attribute.
    pub counters: PortCounters,
    /// 64-bit counters.
    pub extended: PortCountersExtended,
}

/// Adds to a counter, which does not exceed its maximum.
macro_rules! count {
    ($counter:expr) => {
        count!($counter, 1)
    };
    ($counter:expr, $amount:expr) => {
        $counter = $counter.saturating_add($amount)
    };
}
pub(crate) use count;

impl Statistics {
    /// Counts a packet of `words` words of 4 bytes that was sent.
    pub fn transmitted(&mut self, words: u16, multicast: bool) {
        count!(self.counters.transmit_data, words.into());
        count!(self.counters.transmit_packets);
        count!(self.extended.transmit_data, words.into());
        count!(self.extended.transmit_packets);
        if multicast {
            count!(self.extended.multicast_transmit_packets);
        } else {
            count!(self.extended.unicast_transmit_packets);
        }
    }

    /// Counts a packet of `words` words of 4 bytes that was received.
    pub fn received(&mut self, words: u16, multicast: bool) {
        count!(self.counters.receive_data, words.into());
        count!(self.counters.receive_packets);
        count!(self.extended.receive_data, words.into());
        count!(self.extended.receive_packets);
        if multicast {
            count!(self.extended.multicast_receive_packets);
        } else {
            count!(self.extended.unicast_receive_packets);
        }
    }

    /// Counts that the integrity of the link was in doubt. The counter has 4 bits.
    pub fn link_integrity_error(&mut self) {
        let counter = &mut self.counters.local_link_integrity_errors;
        *counter = (*counter + 1).min(15);
    }
}

/// Operations on the counters of an attribute.
trait Counters: Default + Copy {
    /// Sets the counters whose bits are in `select` to those of `values`.
    fn set(&mut self, values: &Self, select: u32);
    /// Adds all counters of `other`.
    fn add(&mut self, other: &Self);
}

/// Implements [`Counters`] for an attribute. Lists its counters in the order of their selection bits, with their
/// maximums.
macro_rules! counters {
    ($name:ident: $($field:ident $greatest:expr),*) => {
        impl Counters for $name {
            fn set(&mut self, values: &Self, select: u32) {
                let mut bits = (0..u32::BITS).map(|bit| select >> bit & 1 != 0);
                $(if bits.next() == Some(true) {
                    self.$field = values.$field;
                })*
            }
            fn add(&mut self, other: &Self) {
                $(self.$field = self.$field.saturating_add(other.$field).min($greatest);)*
            }
        }
    };
}
counters!(PortCounters: symbol_errors u16::MAX, link_error_recovery u8::MAX, link_downed u8::MAX,
    receive_errors u16::MAX, receive_remote_physical_errors u16::MAX, receive_switch_relay_errors u16::MAX,
    transmit_discards u16::MAX, transmit_constraint_errors u8::MAX, receive_constraint_errors u8::MAX,
    local_link_integrity_errors 15, excessive_buffer_overruns 15, vl15_dropped u16::MAX, transmit_data u32::MAX,
    receive_data u32::MAX, transmit_packets u32::MAX, receive_packets u32::MAX, transmit_wait u32::MAX,
    qp1_dropped u16::MAX);
counters!(PortCountersExtended: transmit_data u64::MAX, receive_data u64::MAX, transmit_packets u64::MAX,
    receive_packets u64::MAX, unicast_transmit_packets u64::MAX, unicast_receive_packets u64::MAX,
    multicast_transmit_packets u64::MAX, multicast_receive_packets u64::MAX);

/// Answers a request of performance management about `ports`, the first of which has the number `first`. Returns `None`
/// if the standard defines no answer.
pub fn answer<'a>(
    request: &PerformanceMad,
    first: u8,
    ports: impl Iterator<Item = &'a mut Statistics>,
) -> Option<PerformanceMad> {
    let method = request.header.method;
    if method.is_response() || method == Method::TRAP_REPRESS {
        return None;
    }
    let mut response = request.clone();
    response.header.method = Method::GET_RESPONSE;
    response.header.status = execute(request, first, ports, &mut response.data);
    Some(response)
}

/// Executes a request, and puts the resulting attribute into `data`.
fn execute<'a>(
    request: &PerformanceMad,
    first: u8,
    ports: impl Iterator<Item = &'a mut Statistics>,
    data: &mut [u8; mad::PERFORMANCE_DATA_LENGTH],
) -> Status {
    let header = &request.header;
    if header.base_version != mad::BASE_VERSION || header.class_version != mad::CLASS_VERSION {
        return Status::BAD_VERSION;
    }
    let set = match header.method {
        Method::GET => false,
        Method::SET => true,
        _ => return Status::BAD_METHOD,
    };
    match header.attribute {
        id::CLASS_PORT_INFO if !set => {
            data.fill(0);
            let info = ClassPortInfo {
                base_version: mad::BASE_VERSION,
                class_version: mad::CLASS_VERSION,
                capability_mask: capability::ALL_PORTS | capability::EXTENDED,
                response_time: crate::agent::RESPONSE_TIME,
                ..ClassPortInfo::default()
            };
            info.write(data);
            Status::OK
        }
        id::PORT_COUNTERS => {
            let values = PortCounters::read(&request.data);
            let select = u32::from(values.select_2) << 16 | u32::from(values.select);
            let select = if set { select } else { 0 };
            let ports = ports.map(|port| &mut port.counters);
            let Some(sum) = exchange(&values, select, values.port_select, first, ports) else {
                return Status::BAD_FIELD;
            };
            data.fill(0);
            PortCounters {
                port_select: values.port_select,
                select: values.select,
                select_2: values.select_2,
                ..sum
            }
            .write(data);
            Status::OK
        }
        id::PORT_COUNTERS_EXTENDED => {
            let values = PortCountersExtended::read(&request.data);
            let select = if set { values.select.into() } else { 0 };
            let ports = ports.map(|port| &mut port.extended);
            let Some(sum) = exchange(&values, select, values.port_select, first, ports) else {
                return Status::BAD_FIELD;
            };
            data.fill(0);
            PortCountersExtended {
                port_select: values.port_select,
                select: values.select,
                ..sum
            }
            .write(data);
            Status::OK
        }
        _ => Status::BAD_ATTRIBUTE,
    }
}

/// Writes the selected counters of one port or all ports. Returns the sum of the counters of these ports, or `None` if
/// there is no such port.
fn exchange<'a, C: Counters + 'a>(
    values: &C,
    select: u32,
    port: u8,
    first: u8,
    ports: impl Iterator<Item = &'a mut C>,
) -> Option<C> {
    let mut sum = None;
    for (number, counters) in (usize::from(first)..).zip(ports) {
        if port == ALL_PORTS || usize::from(port) == number {
            counters.set(values, select);
            sum.get_or_insert_with(C::default).add(counters);
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gets or sets counters of two ports with the numbers 1 and 2.
    fn ask(
        ports: &mut [Statistics; 2],
        method: Method,
        attribute: u16,
        fill: impl Fn(&mut [u8]),
    ) -> PerformanceMad {
        let mut request = PerformanceMad::request(method, attribute);
        fill(&mut request.data);
        answer(&request, 1, ports.iter_mut()).expect("an answer")
    }

    #[test]
    fn counters_stay_at_their_greatest_value() {
        let mut statistics = Statistics::default();
        for _ in 0..20 {
            statistics.link_integrity_error();
        }
        statistics.counters.transmit_data = u32::MAX - 1;
        statistics.transmitted(10, false);
        statistics.counters.link_downed = 255;
        count!(statistics.counters.link_downed);
        let counters = statistics.counters;
        assert_eq!(
            (
                counters.local_link_integrity_errors,
                counters.transmit_data,
                counters.link_downed
            ),
            (15, u32::MAX, 255)
        );
        assert_eq!(
            (statistics.extended.transmit_data, counters.transmit_packets),
            (10, 1)
        );
        let mut ports = [statistics; 2];
        let sum = ask(&mut ports, Method::GET, id::PORT_COUNTERS, |data| {
            data[1] = ALL_PORTS;
        });
        let sum = PortCounters::read(&sum.data);
        assert_eq!(
            (
                sum.local_link_integrity_errors,
                sum.transmit_data,
                sum.transmit_packets
            ),
            (15, u32::MAX, 2)
        );
    }

    #[test]
    fn only_what_is_selected_is_set() {
        for bit in 0..18 {
            let ones = Statistics {
                counters: PortCounters::read(&[0xff; 44]),
                ..Statistics::default()
            };
            let mut ports = [ones; 2];
            let response = ask(&mut ports, Method::SET, id::PORT_COUNTERS, |data| {
                let select = 1_u32 << bit;
                PortCounters {
                    port_select: 2,
                    select: select as u16,
                    select_2: (select >> 16) as u8,
                    ..PortCounters::default()
                }
                .write(data);
            });
            assert_eq!(response.header.status, Status::OK);
            assert_eq!(ports[0], ones);
            let mut bytes = [0; 44];
            ports[1].counters.write(&mut bytes);
            let cleared = PortCounters::FIELDS.iter().filter(|(name, at, bits)| {
                !name.contains("select")
                    && (*at..at + bits).all(|bit| bytes[bit / 8] >> (7 - bit % 8) & 1 == 0)
            });
            assert_eq!(cleared.count(), 1, "bit {bit}");
        }
        for bit in 0..8 {
            let mut ports = [Statistics {
                extended: PortCountersExtended::read(&[0xff; 72]),
                ..Statistics::default()
            }; 2];
            ask(
                &mut ports,
                Method::SET,
                id::PORT_COUNTERS_EXTENDED,
                |data| {
                    data[1] = ALL_PORTS;
                    data[3] = 1 << bit;
                },
            );
            let mut bytes = [0; 72];
            ports[1].extended.write(&mut bytes);
            for other in 0..8 {
                assert_eq!(bytes[8 + other * 8] == 0, other == bit);
            }
            assert_eq!(ports[0], ports[1]);
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let mut ports = [Statistics::default(); 2];
        let mut status = |method, attribute, port: u8| {
            ask(&mut ports, method, attribute, |data| data[1] = port)
                .header
                .status
        };
        assert_eq!(status(Method::GET, id::PORT_COUNTERS, 1), Status::OK);
        assert_eq!(status(Method::GET, id::PORT_COUNTERS, 0), Status::BAD_FIELD);
        assert_eq!(
            status(Method::GET, id::PORT_COUNTERS_EXTENDED, 3),
            Status::BAD_FIELD
        );
        assert_eq!(status(Method::GET, 0x77, 1), Status::BAD_ATTRIBUTE);
        assert_eq!(
            status(Method::SET, id::CLASS_PORT_INFO, 1),
            Status::BAD_ATTRIBUTE
        );
        assert_eq!(
            status(Method(0x33), id::PORT_COUNTERS, 1),
            Status::BAD_METHOD
        );
        let mut request = PerformanceMad::request(Method::GET, id::PORT_COUNTERS);
        request.header.class_version = 2;
        let response = answer(&request, 1, ports.iter_mut()).unwrap();
        assert_eq!(response.header.status, Status::BAD_VERSION);
        request.header.method = Method::GET_RESPONSE;
        assert_eq!(answer(&request, 1, ports.iter_mut()), None);
    }
}
