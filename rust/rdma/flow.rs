// SPDX-License-Identifier: GPL-2.0

//! Flows: rules by which a port directs Ethernet frames to queue pairs.

use core::ptr::NonNull;

use kernel::{
    prelude::*,
    types::Opaque, //
};

use crate::{
    bindings,
    device::{
        Call,
        Device,
        Operations, //
    },
    port::Port,
    qp::Qp,
    verb::Verb, //
};

pub(crate) mod counters;
#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
mod tests;

pub use counters::{
    Counters,
    FlowCounters, //
};

c_enum! {
    /// Type of a flow (`enum ib_flow_attr_type`).
    pub enum Type: bindings::ib_flow_attr_type {
        /// Frames that have all specifications of the flow.
        Normal = bindings::ib_flow_attr_type_IB_FLOW_ATTR_NORMAL,
        /// All frames that no other flow takes.
        AllDefault = bindings::ib_flow_attr_type_IB_FLOW_ATTR_ALL_DEFAULT,
        /// All multicast frames that no other flow takes.
        MulticastDefault = bindings::ib_flow_attr_type_IB_FLOW_ATTR_MC_DEFAULT,
        /// Copies of everything on the port.
        Sniffer = bindings::ib_flow_attr_type_IB_FLOW_ATTR_SNIFFER,
    }
}

/// Fields of an Ethernet header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ethernet {
    /// MAC address of the destination.
    pub destination: [u8; 6],
    /// MAC address of the source.
    pub source: [u8; 6],
    /// Ethertype.
    pub ether_type: u16,
    /// Contents of the VLAN tag.
    pub vlan_tag: u16,
}

/// Fields of an IPv4 header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipv4 {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Protocol.
    pub protocol: u8,
    /// Type of service.
    pub tos: u8,
    /// Time to live.
    pub ttl: u8,
    /// Flags (`enum ib_ipv4_flags`).
    pub flags: u8,
}

/// Fields of an IPv6 header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipv6 {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Next header.
    pub next_header: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
}

/// Ports of TCP or UDP.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports {
    /// Source port.
    pub source: u16,
    /// Destination port.
    pub destination: u16,
}

/// Fields of a GRE header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Gre {
    /// Flags and version: the first 16 bits of the header.
    pub flags: u16,
    /// Type of the packet in the tunnel.
    pub protocol: u16,
    /// Key.
    pub key: u32,
}

/// Fields of a header: a frame fits if it has this header, and its fields are equal to `value` in
/// all bits of `mask`. With an empty mask, hardware may also take frames without the header.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields<H> {
    /// Values.
    pub value: H,
    /// Bits to compare.
    pub mask: H,
}

/// A specification of a flow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// Ethernet header.
    Ethernet(Fields<Ethernet>),
    /// IPv4 header.
    Ipv4(Fields<Ipv4>),
    /// IPv6 header.
    Ipv6(Fields<Ipv6>),
    /// TCP header.
    Tcp(Fields<Ports>),
    /// UDP header.
    Udp(Fields<Ports>),
    /// VXLAN header: its network identifier, 24 bits.
    Vxlan(Fields<u32>),
    /// GRE header.
    Gre(Fields<Gre>),
    /// The first entry of an MPLS label stack.
    Mpls(Fields<u32>),
}

/// Where the header of a specification is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// In front of a tunnel, or where there is none.
    Outer,
    /// In the packet that a tunnel carries (`IB_FLOW_SPEC_INNER`).
    Inner,
}

/// What a flow does with its frames, apart from giving them to the queue pair.
#[derive(Copy, Clone, Debug, Default)]
struct Actions {
    counters: Option<NonNull<bindings::ib_counters>>,
    tag: u32,
    drops: bool,
}

/// The specifications of a flow, without its actions, and in the order in which the program listed
/// them. Those that this crate does not know are `EOPNOTSUPP`.
#[derive(Clone)]
pub struct Specs<'a> {
    bytes: &'a [u8],
    left: u8,
}

impl<'a> Specs<'a> {
    /// Reads the structure at the start of `bytes`, which says that it has `size` bytes. `EINVAL`
    /// if an `R` has another size, or if there are fewer bytes.
    ///
    /// # Safety
    ///
    /// Any bytes must be a valid `R`.
    unsafe fn read<R>(bytes: &[u8], size: usize) -> Result<R> {
        if size != size_of::<R>() || bytes.len() < size {
            return Err(EINVAL);
        }
        // SAFETY: There are enough bytes, and the caller guarantees that they are valid. They may
        // be unaligned, because the structures in front have various lengths.
        Ok(unsafe { bytes.as_ptr().cast::<R>().read_unaligned() })
    }

    /// Takes the next structure: its type, its size, and the bytes from its start on.
    fn take_next(&mut self) -> Option<Result<(bindings::ib_flow_spec_type, usize, &'a [u8])>> {
        self.left = self.left.checked_sub(1)?;
        let taken = self.split();
        if taken.is_err() {
            self.left = 0;
        }
        Some(taken)
    }

    fn split(&mut self) -> Result<(bindings::ib_flow_spec_type, usize, &'a [u8])> {
        let head = self.bytes.first_chunk::<6>().ok_or(EINVAL)?;
        let [t0, t1, t2, t3, s0, s1] = *head;
        let ty = u32::from_ne_bytes([t0, t1, t2, t3]);
        let size = usize::from(u16::from_ne_bytes([s0, s1]));
        let rest = self.bytes.get(size..).ok_or(EINVAL)?;
        // Without this, a structure that claims to have no bytes would be read again and again.
        if size < head.len() {
            return Err(EINVAL);
        }
        Ok((ty, size, core::mem::replace(&mut self.bytes, rest)))
    }

    /// Returns what the flow does. `EINVAL` if it has several counters. Of several tags, the last
    /// one counts, as with other hardware.
    ///
    /// # Safety
    ///
    /// The specifications must come from the core.
    unsafe fn actions(&self) -> Result<Actions> {
        let mut actions = Actions::default();
        let mut specs = self.clone();
        while let Some(taken) = specs.take_next() {
            let (ty, size, bytes) = taken?;
            match ty {
                COUNT => {
                    // SAFETY: The structure consists of integers and a pointer.
                    let raw =
                        unsafe { Self::read::<bindings::ib_flow_spec_action_count>(bytes, size) }?;
                    let raw = NonNull::new(raw.counters).ok_or(EINVAL)?;
                    if actions.counters.replace(raw).is_some() {
                        return Err(EINVAL);
                    }
                }
                TAG => {
                    // SAFETY: The structure consists of integers.
                    let raw =
                        unsafe { Self::read::<bindings::ib_flow_spec_action_tag>(bytes, size) }?;
                    actions.tag = raw.tag_id;
                }
                DROP => {
                    // SAFETY: The structure consists of integers.
                    unsafe { Self::read::<bindings::ib_flow_spec_action_drop>(bytes, size) }?;
                    actions.drops = true;
                }
                _ => (),
            }
        }
        Ok(actions)
    }

    fn parse(ty: bindings::ib_flow_spec_type, size: usize, bytes: &[u8]) -> Result<Spec> {
        Ok(match ty {
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_ETH => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_eth>(bytes, size) }?;
                let read = |raw: bindings::ib_flow_eth_filter| Ethernet {
                    destination: raw.dst_mac,
                    source: raw.src_mac,
                    ether_type: u16::from_be(raw.ether_type),
                    vlan_tag: u16::from_be(raw.vlan_tag),
                };
                Spec::Ethernet(Fields {
                    value: read(raw.val),
                    mask: read(raw.mask),
                })
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV4 => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_ipv4>(bytes, size) }?;
                let read = |raw: bindings::ib_flow_ipv4_filter| Ipv4 {
                    // In memory, both are in network order.
                    source: raw.src_ip.to_ne_bytes(),
                    destination: raw.dst_ip.to_ne_bytes(),
                    protocol: raw.proto,
                    tos: raw.tos,
                    ttl: raw.ttl,
                    flags: raw.flags,
                };
                Spec::Ipv4(Fields {
                    value: read(raw.val),
                    mask: read(raw.mask),
                })
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_IPV6 => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_ipv6>(bytes, size) }?;
                let read = |raw: bindings::ib_flow_ipv6_filter| Ipv6 {
                    source: raw.src_ip,
                    destination: raw.dst_ip,
                    flow_label: u32::from_be(raw.flow_label),
                    next_header: raw.next_hdr,
                    traffic_class: raw.traffic_class,
                    hop_limit: raw.hop_limit,
                };
                Spec::Ipv6(Fields {
                    value: read(raw.val),
                    mask: read(raw.mask),
                })
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP
            | bindings::ib_flow_spec_type_IB_FLOW_SPEC_UDP => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_tcp_udp>(bytes, size) }?;
                let read = |raw: bindings::ib_flow_tcp_udp_filter| Ports {
                    source: u16::from_be(raw.src_port),
                    destination: u16::from_be(raw.dst_port),
                };
                let fields = Fields {
                    value: read(raw.val),
                    mask: read(raw.mask),
                };
                match ty {
                    bindings::ib_flow_spec_type_IB_FLOW_SPEC_TCP => Spec::Tcp(fields),
                    _ => Spec::Udp(fields),
                }
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_VXLAN_TUNNEL => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_tunnel>(bytes, size) }?;
                Spec::Vxlan(Fields {
                    value: u32::from_be(raw.val.tunnel_id),
                    mask: u32::from_be(raw.mask.tunnel_id),
                })
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_GRE => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_gre>(bytes, size) }?;
                let read = |raw: bindings::ib_flow_gre_filter| Gre {
                    flags: u16::from_be(raw.c_ks_res0_ver),
                    protocol: u16::from_be(raw.protocol),
                    key: u32::from_be(raw.key),
                };
                Spec::Gre(Fields {
                    value: read(raw.val),
                    mask: read(raw.mask),
                })
            }
            bindings::ib_flow_spec_type_IB_FLOW_SPEC_MPLS => {
                // SAFETY: The structure consists of integers.
                let raw = unsafe { Self::read::<bindings::ib_flow_spec_mpls>(bytes, size) }?;
                Spec::Mpls(Fields {
                    value: u32::from_be(raw.val.tag),
                    mask: u32::from_be(raw.mask.tag),
                })
            }
            _ => return Err(EOPNOTSUPP),
        })
    }
}

impl Iterator for Specs<'_> {
    type Item = Result<(Layer, Spec)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let spec = match self.take_next()? {
                Ok((COUNT | TAG | DROP, _, _)) => continue,
                Ok((ty, size, bytes)) => {
                    let layer = match ty & INNER {
                        0 => Layer::Outer,
                        _ => Layer::Inner,
                    };
                    Self::parse(ty & !INNER, size, bytes).map(|spec| (layer, spec))
                }
                Err(err) => Err(err),
            };
            if spec.is_err() {
                self.left = 0;
            }
            return Some(spec);
        }
    }
}

/// The types of the structures of actions.
const COUNT: bindings::ib_flow_spec_type = bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_COUNT;
const TAG: bindings::ib_flow_spec_type = bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_TAG;
const DROP: bindings::ib_flow_spec_type = bindings::ib_flow_spec_type_IB_FLOW_SPEC_ACTION_DROP;

/// The bit of a type that says that the header is in a tunnel.
const INNER: bindings::ib_flow_spec_type = bindings::ib_flow_spec_type_IB_FLOW_SPEC_INNER;

/// Attributes of a new flow.
pub struct FlowAttr<'a, T: Operations> {
    /// Type.
    pub ty: Type,
    /// Priority: the lowest number goes first.
    pub priority: u16,
    /// Port.
    pub port: Port,
    /// Whether flows that come after this one get the frames, too
    /// (`IB_FLOW_ATTR_FLAGS_DONT_TRAP`).
    pub continues: bool,
    /// Specifications, all of which a frame must fit.
    pub specs: Specs<'a>,
    /// Tag that the completions of the frames get (`IB_FLOW_SPEC_ACTION_TAG`); 0 without one.
    pub tag: u32,
    /// Whether the frames are dropped (`IB_FLOW_SPEC_ACTION_DROP`). This has precedence over
    /// `continues`.
    pub drops: bool,
    /// Counters of what the flow gets, which exist for at least as long as the flow.
    pub counters: Option<&'a Counters<T::FlowCounters>>,
}

impl<'a, T: Operations> FlowAttr<'a, T> {
    /// Converts the C structure. `EOPNOTSUPP` for flows of frames that leave.
    ///
    /// # Safety
    ///
    /// `raw` must be followed by its specifications, which come from the core and do not change
    /// during `'a`. What they refer to belongs to the device, and does not go away during `'a`.
    unsafe fn from_raw(raw: *const bindings::ib_flow_attr, device: &Device<T>) -> Result<Self> {
        let head = size_of::<bindings::ib_flow_attr>();
        // SAFETY: Guaranteed by the caller. Only members are read: what follows is not a part of
        // the structure.
        let (ty, size, priority, flags, left, port) = unsafe {
            (
                (*raw).type_,
                (*raw).size,
                (*raw).priority,
                (*raw).flags,
                (*raw).num_of_specs,
                (*raw).port,
            )
        };
        let continues = bindings::ib_flow_flags_IB_FLOW_ATTR_FLAGS_DONT_TRAP;
        if flags & !continues != 0 {
            return Err(EOPNOTSUPP);
        }
        let length = usize::from(size).checked_sub(head).ok_or(EINVAL)?;
        // SAFETY: `size` includes the specifications, which the core copied to memory that it had
        // zeroed.
        let bytes = unsafe { core::slice::from_raw_parts(raw.cast::<u8>().add(head), length) };
        let specs = Specs { bytes, left };
        // SAFETY: Guaranteed by the caller.
        let Actions {
            counters,
            tag,
            drops,
        } = unsafe { specs.actions() }?;
        if counters.is_some() && !T::FlowCounters::IS_SUPPORTED {
            return Err(EOPNOTSUPP);
        }
        Ok(Self {
            ty: Type::try_from(ty)?,
            priority,
            port: device.port(port)?,
            continues: flags & continues != 0,
            specs,
            tag,
            drops,
            // SAFETY: The counters were constructed, since the core refers to them, and stay.
            counters: counters.map(|raw| unsafe { Counters::from_raw(raw.as_ptr()) }),
        })
    }
}

/// A flow (`struct ib_flow`): frames that arrive at a port go to a queue pair. Only processes that
/// may send and receive any packet have flows.
pub trait FlowRule: Send + Sync + Sized + 'static {
    /// The driver.
    type Driver: Operations<FlowRule = Self>;

    /// Whether the driver has flows; `false` only for [`Unsupported`](crate::Unsupported).
    const IS_SUPPORTED: bool = true;

    /// Creates a flow to a queue pair of type [`UnreliableDatagram`] or [`RawPacket`], which exists
    /// for at least as long as the flow. `EOPNOTSUPP` for what the hardware cannot compare
    /// or do.
    ///
    /// [`UnreliableDatagram`]: crate::qp::Type::UnreliableDatagram
    /// [`RawPacket`]: crate::qp::Type::RawPacket
    fn create(
        call: &Call<'_, Self::Driver>,
        qp: &Qp<<Self::Driver as Operations>::QueuePair>,
        attributes: &FlowAttr<'_, Self::Driver>,
    ) -> Result<impl PinInit<Self>>;

    /// Removes the flow from the hardware; then it is dropped.
    ///
    /// This cannot fail: if the hardware refuses, the driver must stop it.
    fn destroy(flow: &Self, call: &Call<'_, Self::Driver>);
}

/// A flow: `struct ib_flow` and the driver's part.
///
/// Unlike most other objects it is allocated by this crate and not by the core.
#[pin_data]
#[repr(C)]
struct Flow<T: FlowRule> {
    raw: Opaque<bindings::ib_flow>,
    #[pin]
    data: T,
}

impl<T: FlowRule> Flow<T> {
    /// Takes a flow back from the core.
    ///
    /// # Safety
    ///
    /// `raw` must come from [`create_callback`], and not be used any more.
    unsafe fn from_raw(raw: *mut bindings::ib_flow) -> Pin<KBox<Self>> {
        const { assert!(core::mem::offset_of!(Self, raw) == 0) };
        // SAFETY: Guaranteed by the caller; the flow has been pinned since it was created.
        unsafe { Pin::new_unchecked(KBox::from_raw(raw.cast())) }
    }
}

/// # Safety
///
/// `qp` must be a constructed queue pair of a device of `T`, `attr` valid and followed by its
/// specifications, and `udata` the udata of the call.
pub(crate) unsafe extern "C" fn create_callback<T: Operations>(
    qp: *mut bindings::ib_qp,
    attr: *mut bindings::ib_flow_attr,
    udata: *mut bindings::ib_udata,
) -> *mut bindings::ib_flow {
    // SAFETY: The core set the device of the queue pair; the udata is that of this verb.
    let verb = unsafe { Verb::<T>::by_caller((*qp).device, udata) };
    // SAFETY: The specifications follow the attributes, and do not change during the call. The core
    // counts references to what they refer to until the flow has been destroyed.
    let attributes = unsafe { FlowAttr::<T>::from_raw(attr, verb.device()) };
    // SAFETY: The queue pair is constructed, and is not destroyed before the flow.
    let this = unsafe { Qp::<T::QueuePair>::from_raw(qp) };

    verb.pointer(|call| {
        verb.no_io()?;
        let attributes = attributes?;
        // Nothing may fail once the hardware has the flow.
        let room = KBox::<Flow<T::FlowRule>>::new_uninit(GFP_KERNEL)?;
        let init = T::FlowRule::create(call, this, &attributes)?;
        let init = pin_init!(Flow {
            raw: Opaque::new(bindings::ib_flow {
                qp,
                device: call.device().as_raw(),
                ..pin_init::zeroed()
            }),
            data <- init,
        });
        let flow = match room.write_pin_init::<core::convert::Infallible>(init) {
            Ok(flow) => flow,
            Err(never) => match never {},
        };
        // SAFETY: Nothing moves out of the result; it is pinned again when the core returns it.
        Ok(KBox::into_raw(unsafe { Pin::into_inner_unchecked(flow) }).cast())
    })
}

/// # Safety
///
/// `flow` must be a flow of a device of `T` that is no longer in use.
pub(crate) unsafe extern "C" fn destroy_callback<T: Operations>(
    flow: *mut bindings::ib_flow,
) -> c_int {
    // SAFETY: The device was set when the flow was created.
    let verb = unsafe { Verb::<T>::new((*flow).device) };
    // SAFETY: The flow came from `create_callback`, and this verb succeeds.
    let flow = unsafe { Flow::<T::FlowRule>::from_raw(flow) };

    verb.run(|call| {
        T::FlowRule::destroy(&flow.data, call);
        Ok(())
    })
}
