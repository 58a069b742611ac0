// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Counters of ports, and the agent of performance management (IBTA volume 1, chapter 16).

use crate::{
    attributes::{
        ClassPortInfo, PortCounters, PortCountersExtended, PortDataSl, PortReceiveErrorDetails,
        PortSamplesControl, PortSamplesResult, PortTransmitDiscardDetails, SAMPLE_COUNTERS,
        SampleStatus, id,
    },
    mad::{self, Method, PerformanceMad, Status},
    packet::{Lrh, PacketError},
    port::is_multicast,
};
use std::time::Duration;

/// Port selection that stands for all ports (16.1.3.5).
pub const ALL_PORTS: u8 = 0xff;

/// Capability bits in the [`ClassPortInfo`] of performance management.
pub mod capability {
    /// [`ALL_PORTS`](super::ALL_PORTS) is supported.
    pub const ALL_PORTS: u16 = 1 << 8;
    /// [`PortCountersExtended`](crate::attributes::PortCountersExtended) is supported.
    pub const EXTENDED: u16 = 1 << 9;
    /// [`PortCounters::transmit_wait`](crate::attributes::PortCounters::transmit_wait) is supported.
    pub const TRANSMIT_WAIT: u16 = 1 << 12;
    /// Bit of the second mask: the counters of [`PortCounters`](crate::attributes::PortCounters) have 64 bits, too.
    pub const ALL_EXTENDED: u32 = 1 << 1;
}

/// Bits of [`PortSamplesControl::option_mask`] for the optional attributes that the agent has (16.1.3.3): the counters
/// of [`PortReceiveErrorDetails`], those of [`PortTransmitDiscardDetails`], and data by service level in both
/// directions.
const OPTIONS: u64 = 0b11_1111 << 6 | 0b1111 << 12 | 0b11 << 55;

/// Number of times 10 bits in a tick.
const TICK: u8 = 10;
/// [`PortSamplesControl::counter_width`] of counters with 32 bits.
const WIDTH_32: u8 = 4;
/// [`PortSamplesControl::counter_masks_0_to_9`] of a counter that counts what is mandatory.
const MANDATORY: u8 = 1;

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

/// Greatest code of what a sample can count. 0 stands for nothing.
const LAST_COUNTER: u16 = Sampled::TransmitWait as u16;

/// Length of ticks, in which waits and samples are measured.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Tick {
    /// Bits per second on a lane, with those that encode the others.
    pub signal_rate: u64,
}

impl Tick {
    /// Number of bits of a lane in a tick, times the nanoseconds of a second.
    const SCALE: u128 = TICK as u128 * 10 * 1_000_000_000;

    /// Returns the number of ticks that have ended after a time.
    pub fn count(self, time: Duration) -> u64 {
        let ticks = time.as_nanos() * u128::from(self.signal_rate) / Self::SCALE;
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }

    /// Returns the time until this number of ticks has ended.
    pub fn time(self, ticks: u64) -> Duration {
        let nanoseconds = (u128::from(ticks) * Self::SCALE).div_ceil(self.signal_rate.into());
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }
}

/// What a sample can count (16.1.3.3), with its code.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Sampled {
    TransmitData = 1,
    ReceiveData = 2,
    TransmitPackets = 3,
    ReceivePackets = 4,
    TransmitWait = 5,
}

/// A sample of a port. Each node takes one at a time.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
struct Sample {
    /// Whether this is the last sample of the node.
    is_last: bool,
    /// When the sample starts and ends.
    start: Duration,
    end: Duration,
    /// Length of the time before the sample and of the sample, in ticks.
    ticks: [u32; 2],
    tag: u16,
    select: [u16; SAMPLE_COUNTERS],
    counters: [u32; SAMPLE_COUNTERS],
}

impl Sample {
    /// Creates a sample as requested.
    fn new(wanted: &PortSamplesControl, tick: Tick, now: Duration) -> Self {
        let start = now + tick.time(wanted.sample_start.into());
        Self {
            is_last: true,
            start,
            end: start + tick.time(wanted.sample_interval.into()),
            ticks: [wanted.sample_start, wanted.sample_interval],
            tag: wanted.tag,
            select: wanted.counter_select,
            counters: [0; SAMPLE_COUNTERS],
        }
    }

    fn status(&self, now: Duration) -> SampleStatus {
        if now >= self.end {
            SampleStatus::DONE
        } else if now < self.start {
            SampleStatus::WAITING
        } else {
            SampleStatus::RUNNING
        }
    }

    /// Counts what happens at a time.
    fn add(&mut self, what: Sampled, amount: u64, at: Duration) {
        if self.start <= at && at < self.end {
            let amount = u32::try_from(amount).unwrap_or(u32::MAX);
            for (select, counter) in self.select.iter().zip(&mut self.counters) {
                if *select == what as u16 {
                    count!(*counter, amount);
                }
            }
        }
    }

    /// Returns the control attribute, without the port.
    fn control(&self, now: Duration) -> PortSamplesControl {
        PortSamplesControl {
            tick: TICK - 1,
            counter_width: WIDTH_32,
            counter_masks_0_to_9: [MANDATORY; 10],
            counter_masks_10_to_14: [MANDATORY; 5],
            sample_status: self.status(now),
            option_mask: OPTIONS,
            sample_start: self.ticks[0],
            sample_interval: self.ticks[1],
            tag: self.tag,
            counter_select: self.select,
            ..PortSamplesControl::default()
        }
    }

    /// Returns the result attribute.
    fn result(&self, now: Duration) -> PortSamplesResult {
        PortSamplesResult {
            tag: self.tag,
            sample_status: self.status(now),
            counters: self.counters,
        }
    }
}

/// Counters of one port. They do not wrap.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Counters of the `PortCounters` attribute.
    pub counters: PortCounters,
    /// 64-bit counters.
    pub extended: PortCountersExtended,
    /// Why packets that arrived were dropped.
    pub errors: PortReceiveErrorDetails,
    /// Why packets were not sent.
    pub discards: PortTransmitDiscardDetails,
    /// Data sent, by service level, without management packets.
    pub transmit_levels: PortDataSl,
    /// Data received, by service level, without management packets.
    pub receive_levels: PortDataSl,
    sample: Sample,
}

/// Adds to a counter that [`PortCounters`] and [`PortCountersExtended`] both have.
macro_rules! count_both {
    ($statistics:expr, $counter:ident) => {
        crate::performance::count_both!($statistics, $counter, 1_u64)
    };
    ($statistics:expr, $counter:ident, $amount:expr) => {{
        let (statistics, amount): (&mut crate::performance::Statistics, u64) =
            (&mut $statistics, $amount);
        let short = amount.try_into().unwrap_or(!0);
        crate::performance::count!(statistics.counters.$counter, short);
        crate::performance::count!(statistics.extended.$counter, amount);
    }};
}
pub(crate) use count_both;

/// Why a port does not send a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Discard {
    /// The port is not active.
    Inactive,
    /// The packet is longer than the MTU.
    Mtu,
    /// The packet was in the switch for too long.
    Lifetime,
    /// The packet was the first of its lane for too long.
    HeadOfQueue,
    /// Its service level has no lane, or there is no room for it.
    Other,
}

/// Why a packet that arrived is dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ReceiveError {
    /// A CRC is wrong.
    Physical,
    /// The length, a header or the lane is invalid.
    Malformed,
}

impl From<PacketError> for ReceiveError {
    fn from(error: PacketError) -> Self {
        match error {
            PacketError::Vcrc | PacketError::Icrc => Self::Physical,
            _ => Self::Malformed,
        }
    }
}

/// Why a switch cannot forward a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum RelayError {
    /// The LID has no port.
    Lid,
    /// The service level has no lane at the port by which the packet would leave.
    Lane,
    /// The packet would leave by the port by which it arrived, or has passed too many switches.
    Loop,
}

impl Statistics {
    /// Counts a packet that is sent from a time on.
    pub fn transmitted(&mut self, lrh: &Lrh, at: Duration) {
        let words = lrh.length.into();
        count_both!(*self, transmit_data, words);
        count_both!(*self, transmit_packets);
        if is_multicast(lrh.destination) {
            count!(self.extended.multicast_transmit_packets);
        } else {
            count!(self.extended.unicast_transmit_packets);
        }
        if !lrh.is_management() {
            self.transmit_levels.add_words(lrh);
        }
        self.sample.add(Sampled::TransmitData, words, at);
        self.sample.add(Sampled::TransmitPackets, 1, at);
    }

    /// Counts a packet that was received.
    pub fn received(&mut self, lrh: &Lrh, now: Duration) {
        let words = lrh.length.into();
        count_both!(*self, receive_data, words);
        count_both!(*self, receive_packets);
        if is_multicast(lrh.destination) {
            count!(self.extended.multicast_receive_packets);
        } else {
            count!(self.extended.unicast_receive_packets);
        }
        if !lrh.is_management() {
            self.receive_levels.add_words(lrh);
        }
        self.sample.add(Sampled::ReceiveData, words, now);
        self.sample.add(Sampled::ReceivePackets, 1, now);
    }

    /// Counts that packets waited for credits, in whole ticks. Returns the end of the last of these ticks.
    pub fn waited(&mut self, since: Duration, now: Duration, tick: Tick) -> Duration {
        let ticks = tick.count(now.saturating_sub(since));
        count_both!(*self, transmit_wait, ticks);
        let end = since + tick.time(ticks);
        // The part of the wait that is in the sample.
        let from = since.max(self.sample.start);
        let to = end.min(self.sample.end);
        let sampled = tick.count(to.saturating_sub(from));
        self.sample.add(Sampled::TransmitWait, sampled, from);
        end
    }

    /// Counts that the integrity of the link was in doubt. The basic counter has 4 bits.
    pub fn link_integrity_error(&mut self) {
        count_both!(*self, local_link_integrity_errors);
        let counter = &mut self.counters.local_link_integrity_errors;
        *counter = (*counter).min(15);
    }

    /// Counts packets that are not sent.
    pub fn discard(&mut self, why: Discard, packets: usize) {
        count_both!(*self, transmit_discards, packets as u64);
        let details = &mut self.discards;
        let counter = match why {
            Discard::Inactive => &mut details.inactive,
            Discard::Mtu => &mut details.neighbor_mtu,
            Discard::Lifetime => &mut details.switch_lifetime,
            Discard::HeadOfQueue => &mut details.head_of_queue_lifetime,
            Discard::Other => return,
        };
        count!(*counter, packets.try_into().unwrap_or(u16::MAX));
    }

    /// Counts a packet that arrived and is dropped.
    pub fn receive_error(&mut self, why: ReceiveError) {
        count_both!(*self, receive_errors);
        match why {
            ReceiveError::Physical => count!(self.errors.local_physical_errors),
            ReceiveError::Malformed => count!(self.errors.malformed_packet_errors),
        }
    }

    /// Counts a packet that a switch cannot forward.
    pub fn relay_error(&mut self, why: RelayError) {
        count_both!(*self, receive_switch_relay_errors);
        match why {
            RelayError::Lid => count!(self.errors.dlid_mapping_errors),
            RelayError::Lane => count!(self.errors.vl_mapping_errors),
            RelayError::Loop => count!(self.errors.looping_errors),
        }
    }
}

impl PortDataSl {
    fn add_words(&mut self, lrh: &Lrh) {
        count!(
            self.data[usize::from(lrh.service_level & 0xf)],
            lrh.length.into()
        );
    }
}

/// Operations on the counters of an attribute.
trait Counters: Default + Copy {
    /// Reads the attribute.
    fn parse(data: &[u8]) -> Self;
    /// Writes the attribute.
    fn put(&self, data: &mut [u8]);
    /// Returns the port.
    fn port(&self) -> u8;
    /// Returns these counters with the port and the selection of a request.
    fn answering(self, request: &Self) -> Self;
    /// Sets the counters that a request selects.
    fn set(&mut self, request: &Self);
    /// Adds all counters of `other`.
    fn add(&mut self, other: &Self);
}

/// Implements [`Counters`] for an attribute. Lists the fields with selection bits, each with its counters in the order
/// of the bits, and their maximums.
macro_rules! counters {
    ($name:ident: $($select:ident { $($field:ident $greatest:expr),* })*) => {
        impl Counters for $name {
            fn parse(data: &[u8]) -> Self {
                Self::read(data)
            }
            fn put(&self, data: &mut [u8]) {
                self.write(data);
            }
            fn port(&self) -> u8 {
                self.port_select
            }
            fn answering(self, request: &Self) -> Self {
                Self {
                    port_select: request.port_select,
                    $($select: request.$select,)*
                    ..self
                }
            }
            fn set(&mut self, request: &Self) {
                $(
                    let mut select = u32::from(request.$select);
                    $(
                        if select & 1 != 0 {
                            self.$field = request.$field;
                        }
                        select >>= 1;
                    )*
                    let _ = select;
                )*
            }
            fn add(&mut self, other: &Self) {
                $($(self.$field = self.$field.saturating_add(other.$field).min($greatest);)*)*
            }
        }
    };
}
counters!(PortCounters:
    select {
        symbol_errors u16::MAX, link_error_recovery u8::MAX, link_downed u8::MAX, receive_errors u16::MAX,
        receive_remote_physical_errors u16::MAX, receive_switch_relay_errors u16::MAX, transmit_discards u16::MAX,
        transmit_constraint_errors u8::MAX, receive_constraint_errors u8::MAX, local_link_integrity_errors 15,
        excessive_buffer_overruns 15, vl15_dropped u16::MAX, transmit_data u32::MAX, receive_data u32::MAX,
        transmit_packets u32::MAX, receive_packets u32::MAX
    }
    select_2 { transmit_wait u32::MAX, qp1_dropped u16::MAX });
counters!(PortCountersExtended:
select {
    transmit_data u64::MAX, receive_data u64::MAX, transmit_packets u64::MAX, receive_packets u64::MAX,
    unicast_transmit_packets u64::MAX, unicast_receive_packets u64::MAX, multicast_transmit_packets u64::MAX,
    multicast_receive_packets u64::MAX
}
select_2 {
    symbol_errors u64::MAX, link_error_recovery u64::MAX, link_downed u64::MAX, receive_errors u64::MAX,
    receive_remote_physical_errors u64::MAX, receive_switch_relay_errors u64::MAX, transmit_discards u64::MAX,
    transmit_constraint_errors u64::MAX, receive_constraint_errors u64::MAX, local_link_integrity_errors u64::MAX,
    excessive_buffer_overruns u64::MAX, vl15_dropped u64::MAX, transmit_wait u64::MAX, qp1_dropped u64::MAX
});
counters!(PortReceiveErrorDetails:
select {
    local_physical_errors u16::MAX, malformed_packet_errors u16::MAX, buffer_overrun_errors u16::MAX,
    dlid_mapping_errors u16::MAX, vl_mapping_errors u16::MAX, looping_errors u16::MAX
});
counters!(PortTransmitDiscardDetails:
    select { inactive u16::MAX, neighbor_mtu u16::MAX, switch_lifetime u16::MAX, head_of_queue_lifetime u16::MAX });

impl Counters for PortDataSl {
    fn parse(data: &[u8]) -> Self {
        Self::read(data)
    }
    fn put(&self, data: &mut [u8]) {
        self.write(data);
    }
    fn port(&self) -> u8 {
        self.port_select
    }
    fn answering(self, request: &Self) -> Self {
        Self {
            data: self.data,
            ..*request
        }
    }
    fn set(&mut self, request: &Self) {
        for (level, (words, wanted)) in self.data.iter_mut().zip(request.data).enumerate() {
            if request.select >> level & 1 != 0 {
                *words = wanted;
            }
        }
    }
    fn add(&mut self, other: &Self) {
        for (words, more) in self.data.iter_mut().zip(other.data) {
            count!(*words, more);
        }
    }
}

/// Answers a request of performance management about `ports`, the first of which has the number `first`. Returns `None`
/// if the standard defines no answer. There is at least one port.
pub(crate) fn answer<'a>(
    request: &PerformanceMad,
    first: u8,
    ports: impl Iterator<Item = (&'a mut Statistics, Tick)>,
    now: Duration,
) -> Option<PerformanceMad> {
    let method = request.header.method;
    if method.is_response() || method == Method::TRAP_REPRESS {
        return None;
    }
    let mut response = request.clone();
    response.header.method = Method::GET_RESPONSE;
    response.header.status = execute(request, first, ports, now, &mut response.data)
        .err()
        .unwrap_or(Status::OK);
    Some(response)
}

/// Executes a request, and puts the resulting attribute into `data`.
fn execute<'a>(
    request: &PerformanceMad,
    first: u8,
    ports: impl Iterator<Item = (&'a mut Statistics, Tick)>,
    now: Duration,
    data: &mut [u8; mad::PERFORMANCE_DATA_LENGTH],
) -> Result<(), Status> {
    let header = &request.header;
    if header.base_version != mad::BASE_VERSION || header.class_version != mad::CLASS_VERSION {
        return Err(Status::BAD_VERSION);
    }
    let set = match header.method {
        Method::GET => false,
        Method::SET => true,
        _ => return Err(Status::BAD_METHOD),
    };
    let mut ports: Vec<_> = ports.zip(usize::from(first)..).collect();
    match header.attribute {
        id::CLASS_PORT_INFO if !set => {
            data.fill(0);
            let info = ClassPortInfo {
                base_version: mad::BASE_VERSION,
                class_version: mad::CLASS_VERSION,
                capability_mask: capability::ALL_PORTS
                    | capability::EXTENDED
                    | capability::TRANSMIT_WAIT,
                capability_mask_2: capability::ALL_EXTENDED,
                response_time: crate::agent::RESPONSE_TIME,
                ..ClassPortInfo::default()
            };
            info.write(data);
            Ok(())
        }
        id::PORT_SAMPLES_CONTROL => {
            let wanted = PortSamplesControl::read(&request.data);
            let number = usize::from(wanted.port_select);
            let named = ports.iter().position(|(_, it)| *it == number);
            let named = named
                .filter(|_| header.modifier == 0)
                .ok_or(Status::BAD_FIELD)?;
            let sample = last_sample(&mut ports);
            if set {
                if wanted.counter_select.iter().any(|it| *it > LAST_COUNTER) {
                    return Err(Status::BAD_FIELD);
                }
                if sample.status(now) == SampleStatus::DONE {
                    sample.is_last = false;
                    let ((statistics, tick), _) = &mut ports[named];
                    statistics.sample = Sample::new(&wanted, *tick, now);
                }
            }
            data.fill(0);
            let control = PortSamplesControl {
                port_select: wanted.port_select,
                ..last_sample(&mut ports).control(now)
            };
            control.write(data);
            Ok(())
        }
        id::PORT_SAMPLES_RESULT if !set => {
            if header.modifier != 0 {
                return Err(Status::BAD_FIELD);
            }
            data.fill(0);
            last_sample(&mut ports).result(now).write(data);
            Ok(())
        }
        id::PORT_COUNTERS => exchange(set, ports, data, |it| &mut it.counters),
        id::PORT_COUNTERS_EXTENDED => exchange(set, ports, data, |it| &mut it.extended),
        id::PORT_RECEIVE_ERROR_DETAILS => exchange(set, ports, data, |it| &mut it.errors),
        id::PORT_TRANSMIT_DISCARD_DETAILS => exchange(set, ports, data, |it| &mut it.discards),
        id::PORT_TRANSMIT_DATA_SL => exchange(set, ports, data, |it| &mut it.transmit_levels),
        id::PORT_RECEIVE_DATA_SL => exchange(set, ports, data, |it| &mut it.receive_levels),
        _ => Err(Status::BAD_ATTRIBUTE),
    }
}

/// A port of a node, and its number.
type Numbered<'a> = ((&'a mut Statistics, Tick), usize);

/// Returns the last sample of a node.
fn last_sample<'a>(ports: &'a mut [Numbered<'_>]) -> &'a mut Sample {
    let last = ports.iter().position(|((it, _), _)| it.sample.is_last);
    let ((statistics, _), _) = &mut ports[last.unwrap_or(0)];
    &mut statistics.sample
}

/// Sets the counters that the request in `data` selects if `set`, at one port or all ports. Puts the sum of the
/// counters of these ports into `data`.
fn exchange<'a, C: Counters + 'a>(
    set: bool,
    ports: Vec<Numbered<'a>>,
    data: &mut [u8; mad::PERFORMANCE_DATA_LENGTH],
    counters: impl Fn(&'a mut Statistics) -> &'a mut C,
) -> Result<(), Status> {
    let request = C::parse(data);
    let mut sum = None;
    for ((statistics, _), number) in ports {
        if request.port() == ALL_PORTS || usize::from(request.port()) == number {
            let counters = counters(statistics);
            if set {
                counters.set(&request);
            }
            sum.get_or_insert_with(C::default).add(counters);
        }
    }
    let sum = sum.ok_or(Status::BAD_FIELD)?;
    data.fill(0);
    sum.answering(&request).put(data);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::NextHeader;

    /// Gets or sets counters of two ports with the numbers 1 and 2.
    fn ask(
        ports: &mut [Statistics; 2],
        method: Method,
        attribute: u16,
        fill: impl Fn(&mut [u8]),
    ) -> PerformanceMad {
        let mut request = PerformanceMad::request(method, attribute);
        fill(&mut request.data);
        answer(&request, 1, with_ticks(ports), Duration::ZERO).expect("an answer")
    }

    /// 100 bits take 40 ns.
    const SLOW: Tick = Tick {
        signal_rate: 2_500_000_000,
    };

    fn with_ticks(ports: &mut [Statistics; 2]) -> impl Iterator<Item = (&mut Statistics, Tick)> {
        ports.iter_mut().map(|port| (port, SLOW))
    }

    /// Header of a packet.
    fn lrh(length: u16, service_level: u8) -> Lrh {
        Lrh {
            lane: 0,
            version: 0,
            service_level,
            next: NextHeader::Local,
            destination: 5,
            length,
            source: 6,
        }
    }

    #[test]
    fn counters_stay_at_their_greatest_value() {
        let mut statistics = Statistics::default();
        for _ in 0..20 {
            statistics.link_integrity_error();
        }
        statistics.counters.transmit_data = u32::MAX - 1;
        statistics.transmitted(&lrh(10, 0), Duration::ZERO);
        statistics.counters.link_downed = 255;
        count_both!(statistics, link_downed);
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
        let extended = statistics.extended;
        assert_eq!(
            (extended.local_link_integrity_errors, extended.link_downed),
            (20, 1)
        );
        statistics.counters.transmit_discards = 0xfff0;
        statistics.discard(Discard::Mtu, 100_000);
        assert_eq!(
            (
                statistics.counters.transmit_discards,
                statistics.extended.transmit_discards,
                statistics.discards.neighbor_mtu
            ),
            (u16::MAX, 100_000, u16::MAX)
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
        for bit in 0..22 {
            let mut ports = [Statistics {
                extended: PortCountersExtended::read(&[0xff; 184]),
                ..Statistics::default()
            }; 2];
            ask(
                &mut ports,
                Method::SET,
                id::PORT_COUNTERS_EXTENDED,
                |data| {
                    data[1] = ALL_PORTS;
                    if bit < 8 {
                        data[3] = 1 << bit;
                    } else {
                        data[4..8].copy_from_slice(&(1_u32 << (bit - 8)).to_be_bytes());
                    }
                },
            );
            let mut bytes = [0; 184];
            ports[1].extended.write(&mut bytes);
            for other in 0..22 {
                assert_eq!(bytes[8 + other * 8] == 0, other == bit);
            }
            assert_eq!(ports[0], ports[1]);
        }
        // Attributes with one set of bits, their counters, and the bytes of a counter.
        for (attribute, count, bytes) in [
            (id::PORT_RECEIVE_ERROR_DETAILS, 6, 2),
            (id::PORT_TRANSMIT_DISCARD_DETAILS, 4, 2),
            (id::PORT_TRANSMIT_DATA_SL, 16, 4),
            (id::PORT_RECEIVE_DATA_SL, 16, 4),
        ] {
            for bit in 0..count {
                let mut ports = [Statistics::default(); 2];
                let select = |data: &mut [u8], mask: u16| {
                    data[1] = 1;
                    data[2..4].copy_from_slice(&mask.to_be_bytes());
                };
                ask(&mut ports, Method::SET, attribute, |data| {
                    data.fill(0xff);
                    select(data, 0xffff);
                });
                ask(&mut ports, Method::SET, attribute, |data| {
                    select(data, 1 << bit);
                });
                let now = ask(&mut ports, Method::GET, attribute, |data| data[1] = 1);
                for other in 0..count {
                    let at = 4 + other * bytes;
                    let wanted = if other == bit { 0 } else { 0xff };
                    assert_eq!(
                        now.data[at..at + bytes],
                        vec![wanted; bytes],
                        "{attribute:#x}"
                    );
                }
                assert_eq!(now.data[4 + count * bytes], 0);
                assert_eq!(ports[1], Statistics::default());
            }
        }
    }

    /// Counters are for both attributes, with the reasons.
    #[test]
    fn reasons_are_parts_of_the_sums() {
        let mut statistics = Statistics::default();
        for why in [RelayError::Lid, RelayError::Lane, RelayError::Loop] {
            statistics.relay_error(why);
        }
        for error in [PacketError::Vcrc, PacketError::Icrc, PacketError::Length] {
            statistics.receive_error(error.into());
        }
        for why in [
            Discard::Inactive,
            Discard::Mtu,
            Discard::Lifetime,
            Discard::HeadOfQueue,
            Discard::Other,
        ] {
            statistics.discard(why, 2);
        }
        statistics.transmitted(&lrh(20, 3), Duration::ZERO);
        statistics.received(&lrh(30, 15), Duration::ZERO);
        let management = Lrh {
            lane: 15,
            ..lrh(40, 3)
        };
        statistics.transmitted(&management, Duration::ZERO);
        let (counters, extended) = (statistics.counters, statistics.extended);
        assert_eq!(
            (
                counters.receive_switch_relay_errors,
                counters.receive_errors,
                counters.transmit_discards
            ),
            (3, 3, 10)
        );
        assert_eq!(
            (
                extended.receive_switch_relay_errors,
                extended.receive_errors,
                extended.transmit_discards
            ),
            (3, 3, 10)
        );
        let mut ports = [statistics; 2];
        let mut data = |attribute| {
            let asked = |data: &mut [u8]| data[1] = ALL_PORTS;
            ask(&mut ports, Method::GET, attribute, asked).data
        };
        let errors = data(id::PORT_RECEIVE_ERROR_DETAILS);
        assert_eq!(errors[4..16], [0, 4, 0, 2, 0, 0, 0, 2, 0, 2, 0, 2]);
        let discards = data(id::PORT_TRANSMIT_DISCARD_DETAILS);
        assert_eq!(discards[4..12], [0, 4, 0, 4, 0, 4, 0, 4]);
        let levels = PortDataSl::read(&data(id::PORT_TRANSMIT_DATA_SL)).data;
        assert_eq!((levels[3], levels.iter().sum::<u32>()), (40, 40));
        let levels = PortDataSl::read(&data(id::PORT_RECEIVE_DATA_SL)).data;
        assert_eq!((levels[15], levels.iter().sum::<u32>()), (60, 60));
    }

    #[test]
    fn waits_are_counted_in_whole_ticks() {
        let nanoseconds = Duration::from_nanos;
        assert_eq!(
            (SLOW.count(nanoseconds(39)), SLOW.count(nanoseconds(80))),
            (0, 2)
        );
        assert_eq!(SLOW.time(3), nanoseconds(120));
        let fast = Tick {
            signal_rate: 25_781_250_000,
        };
        assert_eq!(fast.count(nanoseconds(1000)), 257);
        for ticks in [1, 7, 1000, u64::from(u32::MAX)] {
            assert_eq!(fast.count(fast.time(ticks)), ticks);
        }
        let mut statistics = Statistics::default();
        let end = statistics.waited(nanoseconds(10), nanoseconds(139), SLOW);
        assert_eq!(
            (end, statistics.counters.transmit_wait),
            (nanoseconds(130), 3)
        );
        let end = statistics.waited(end, nanoseconds(169), SLOW);
        assert_eq!(
            (end, statistics.extended.transmit_wait),
            (nanoseconds(130), 3)
        );
    }

    /// A sample counts what it should, at the port that it names, from its start to its end.
    #[test]
    fn a_sample_counts_for_a_while() {
        let nanoseconds = Duration::from_nanos;
        let mut ports = [Statistics::default(); 2];
        let ask = |ports: &mut _, method, attribute, data: &[u8], modifier, now| {
            let mut request = PerformanceMad::request(method, attribute);
            request.header.modifier = modifier;
            request.data[..data.len()].copy_from_slice(data);
            answer(&request, 1, with_ticks(ports), nanoseconds(now)).expect("an answer")
        };
        let mut select = [0; SAMPLE_COUNTERS];
        select[..7].copy_from_slice(&[5, 4, 3, 2, 1, 1, 0]);
        let wanted = PortSamplesControl {
            port_select: 2,
            // From 400 ns to 800 ns after now.
            sample_start: 10,
            sample_interval: 10,
            tag: 77,
            counter_select: select,
            ..PortSamplesControl::default()
        };
        let bytes = |control: &PortSamplesControl| {
            let mut bytes = [0; 80];
            control.write(&mut bytes);
            bytes
        };
        let control = |ports: &mut _, wanted: &PortSamplesControl, now| {
            let answer = ask(
                ports,
                Method::SET,
                id::PORT_SAMPLES_CONTROL,
                &bytes(wanted),
                0,
                now,
            );
            assert_eq!(answer.header.status, Status::OK);
            PortSamplesControl::read(&answer.data)
        };
        let result = |ports: &mut _, now| {
            let answer = ask(ports, Method::GET, id::PORT_SAMPLES_RESULT, &[], 0, now);
            assert_eq!(answer.header.status, Status::OK);
            PortSamplesResult::read(&answer.data)
        };
        let answer = control(&mut ports, &wanted, 1000);
        assert_eq!(
            (answer.sample_status, answer.tag, answer.counter_select),
            (SampleStatus::WAITING, 77, select)
        );
        assert_eq!((answer.tick, answer.counter_width), (9, 4));
        assert_eq!((answer.sample_start, answer.sample_interval), (10, 10));
        // Another one has to wait.
        let other = PortSamplesControl {
            port_select: 1,
            tag: 78,
            ..wanted
        };
        assert_eq!(control(&mut ports, &other, 1399).tag, 77);
        for port in &mut ports {
            for at in [1399, 1400, 1799, 1800] {
                port.transmitted(&lrh(7, 0), nanoseconds(at));
            }
            port.received(&lrh(5, 0), nanoseconds(1500));
            // 3 ticks of 5 are in the sample.
            port.waited(nanoseconds(1320), nanoseconds(1520), SLOW);
        }
        assert_eq!(
            result(&mut ports, 1799).sample_status,
            SampleStatus::RUNNING
        );
        let done = result(&mut ports, 1800);
        assert_eq!((done.sample_status, done.tag), (SampleStatus::DONE, 77));
        assert_eq!(done.counters[..7], [3, 1, 2, 5, 14, 14, 0]);
        // The next one.
        assert_eq!(control(&mut ports, &other, 1800).tag, 78);
        ports[1].received(&lrh(5, 0), nanoseconds(2300));
        ports[0].received(&lrh(4, 0), nanoseconds(2300));
        let done = result(&mut ports, 10_000);
        assert_eq!((done.tag, done.counters[3]), (78, 4));
        // What cannot be done is refused, and changes nothing.
        for (bad, modifier) in [
            (
                PortSamplesControl {
                    port_select: 3,
                    ..wanted
                },
                0,
            ),
            (
                PortSamplesControl {
                    port_select: ALL_PORTS,
                    ..wanted
                },
                0,
            ),
            (
                PortSamplesControl {
                    counter_select: [6; 15],
                    ..wanted
                },
                0,
            ),
            (wanted, 1),
        ] {
            let set = (Method::SET, id::PORT_SAMPLES_CONTROL);
            let answer = ask(&mut ports, set.0, set.1, &bytes(&bad), modifier, 10_000);
            assert_eq!(answer.header.status, Status::BAD_FIELD);
        }
        let get = (Method::GET, id::PORT_SAMPLES_RESULT);
        let answer = ask(&mut ports, get.0, get.1, &[], 1, 10_000);
        assert_eq!(answer.header.status, Status::BAD_FIELD);
        let answer = ask(&mut ports, Method::SET, get.1, &[], 0, 10_000);
        assert_eq!(answer.header.status, Status::BAD_ATTRIBUTE);
        assert_eq!(result(&mut ports, 10_000).tag, 78);
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
        let response = answer(&request, 1, with_ticks(&mut ports), Duration::ZERO).unwrap();
        assert_eq!(response.header.status, Status::BAD_VERSION);
        request.header.method = Method::GET_RESPONSE;
        assert_eq!(
            answer(&request, 1, with_ticks(&mut ports), Duration::ZERO),
            None
        );
    }
}
