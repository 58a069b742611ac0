// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The serialized form of a device: everything that determines what it does next.
//!
//! Types derive it from their definition, so that no field can be forgotten. Fields that are left out are marked with
//! `#[serde(skip)]`, and a comment says why nothing depends on them. Equal devices have equal bytes, because unordered
//! collections are sorted. Guest memory only appears as IDs of its blocks, as everywhere in the engine.
//!
//! The form belongs to one version of the engine: it contains only values, in the order of their declaration. Reading
//! never panics, whatever the bytes are, and takes memory in proportion to them. But an engine that is made of values
//! which no real engine ever had may panic later.

use crate::{
    cause::Cause,
    fault::{Kind, Spec},
    recording::{Take, put_segment, take_segment},
    rnic::{Engine, RnicConfig},
    segment::{LOCAL_MTU, Segment},
    time::Instant,
};
use postcard::ser_flavors::Flavor;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeOwned, Error, Visitor},
};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    hash::Hash,
    marker::PhantomData,
};
use vrnic_wire::{
    command::{self, ContextKind, FlowType, MwType},
    completion::{self, Cqe},
    event::{AsyncEvent, EventType},
    integrity::IntegrityTarget,
    memory::PageList,
    port::{GidEntry, Mtu, PortState, SubnetPort},
    qp::{AlternatePath, Migration, QpState, QpType},
    work::{AddressVector, BindTarget, DatagramTarget, RegisterTarget, SendOpcode, Sge},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Largest total payload of a state in bytes, if all of it is left out.
const MAX_PAYLOAD: u64 = 256 << 20;

thread_local! {
    /// How much of this payload may still follow in the state that is being read.
    static PAYLOAD_LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Bytes that are limited to `limit`.
struct Bounded<'a> {
    out: &'a mut Vec<u8>,
    limit: usize,
}

impl Flavor for Bounded<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if self.out.len() + bytes.len() > self.limit {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl Engine {
    /// Returns the state of the device between two calls; `None` if it exceeds `limit` bytes.
    pub fn state(&self, limit: usize) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let bounded = Bounded {
            out: &mut out,
            limit,
        };
        postcard::serialize_with_flavor(self, bounded).ok()?;
        Some(out)
    }

    /// Creates a device with this configuration in this state; `None` if the state is not valid.
    pub fn from_state(config: RnicConfig, state: &[u8]) -> Option<Self> {
        PAYLOAD_LEFT.set(MAX_PAYLOAD);
        let fresh = Self::new(config);
        let mut engine: Self = postcard::from_bytes(state).ok()?;
        engine.resources.limits = fresh.resources.limits;
        engine.config = fresh.config;
        // This also detects most other invalid bytes.
        (engine.state(state.len())? == state).then_some(engine)
    }
}

/// Serializes a map without order in sorted order.
pub(crate) fn map<K: Serialize + Ord, V: Serialize, S: Serializer>(
    map: &FxHashMap<K, V>,
    to: S,
) -> Result<S::Ok, S::Error> {
    map.iter().collect::<BTreeMap<_, _>>().serialize(to)
}

/// Serializes a set without order in sorted order.
pub(crate) fn set<T: Serialize + Ord + Hash, S: Serializer>(
    set: &FxHashSet<T>,
    to: S,
) -> Result<S::Ok, S::Error> {
    set.iter().collect::<BTreeSet<_>>().serialize(to)
}

/// Reads the largest payload of a segment, which must be one for which there is memory.
pub(crate) fn mtu<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let mtu = u32::deserialize(from)?;
    (mtu <= LOCAL_MTU)
        .then_some(mtu)
        .ok_or_else(|| D::Error::custom("unknown MTU"))
}

/// Serialization of types of other crates that cannot derive it, with `#[serde(with = "wire")]`, and of types that
/// contain them.
pub(crate) mod wire {
    use super::{Deserialize, Deserializer, Error, Serialize, Serializer, Wire};

    pub(crate) fn serialize<T: Wire, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.form().serialize(to)
    }

    pub(crate) fn deserialize<'de, T: Wire, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        let value = T::of(T::Form::deserialize(from)?);
        value.ok_or_else(|| D::Error::custom("unknown value"))
    }
}

/// A type that is serialized as another.
pub(crate) trait Wire: Sized {
    type Form: Serialize + DeserializeOwned;

    fn form(&self) -> Self::Form;
    fn of(form: Self::Form) -> Option<Self>;
}

macro_rules! written_as_number {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            type Form = u32;

            fn form(&self) -> u32 {
                self.raw().into()
            }

            fn of(form: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.form() == form)
            }
        }
    )*};
}

written_as_number!(
    command::Status,
    completion::Opcode,
    completion::Status,
    ContextKind,
    EventType,
    Migration,
    Mtu,
    FlowType,
    MwType,
    PortState,
    QpState,
    QpType,
    SendOpcode
);

/// A structure without padding, serialized as its bytes.
pub(crate) struct Raw<T>(T);

impl<T: IntoBytes + Immutable> Serialize for Raw<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(self.0.as_bytes())
    }
}

impl<'de, T: FromBytes> Deserialize<'de> for Raw<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Bytes<T>(PhantomData<T>);

        impl<T: FromBytes> Visitor<'_> for Bytes<T> {
            type Value = Raw<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{} bytes", size_of::<T>())
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Raw<T>, E> {
                let value = T::read_from_bytes(bytes).map(Raw);
                value.map_err(|_| E::invalid_length(bytes.len(), &self))
            }
        }

        from.deserialize_bytes(Bytes(PhantomData))
    }
}

macro_rules! written_as_bytes {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            type Form = Raw<Self>;

            fn form(&self) -> Raw<Self> {
                Raw(*self)
            }

            fn of(form: Raw<Self>) -> Option<Self> {
                Some(form.0)
            }
        }
    )*};
}

written_as_bytes!(
    AddressVector,
    AlternatePath,
    AsyncEvent,
    BindTarget,
    Cqe,
    DatagramTarget,
    GidEntry,
    IntegrityTarget,
    PageList,
    RegisterTarget,
    Sge,
    SubnetPort
);

macro_rules! written_as_it_is {
    ($($type:ty),*) => {$(
        impl Wire for $type {
            type Form = Self;

            fn form(&self) -> Self {
                *self
            }

            fn of(form: Self) -> Option<Self> {
                Some(form)
            }
        }
    )*};
}

written_as_it_is!(Cause, Instant, u32);

impl<A: Wire, B: Wire> Wire for (A, B) {
    type Form = (A::Form, B::Form);

    fn form(&self) -> Self::Form {
        (self.0.form(), self.1.form())
    }

    fn of(form: Self::Form) -> Option<Self> {
        Some((A::of(form.0)?, B::of(form.1)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    type Form = Option<T::Form>;

    fn form(&self) -> Self::Form {
        self.as_ref().map(T::form)
    }

    fn of(form: Self::Form) -> Option<Self> {
        match form {
            Some(form) => T::of(form).map(Some),
            None => Some(None),
        }
    }
}

impl<T: Wire> Wire for Vec<T> {
    type Form = Vec<T::Form>;

    fn form(&self) -> Self::Form {
        self.iter().map(T::form).collect()
    }

    fn of(form: Self::Form) -> Option<Self> {
        form.into_iter().map(T::of).collect()
    }
}

impl<T: Wire> Wire for VecDeque<T> {
    type Form = Vec<T::Form>;

    fn form(&self) -> Self::Form {
        self.iter().map(T::form).collect()
    }

    fn of(form: Self::Form) -> Option<Self> {
        form.into_iter().map(T::of).collect()
    }
}

/// Values of all counters, and summary bits.
impl<const N: usize> Wire for [u64; N] {
    type Form = Vec<u64>;

    fn form(&self) -> Vec<u64> {
        self.to_vec()
    }

    fn of(form: Vec<u64>) -> Option<Self> {
        form.try_into().ok()
    }
}

/// Serialized as in a recording. Long payload is left out, because it means nothing to a device.
impl Serialize for Segment<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut bytes = Vec::new();
        put_segment(&mut bytes, self);
        to.serialize_bytes(&bytes)
    }
}

impl<'de> Deserialize<'de> for Segment<'static> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(from)?;
        let mut take = Take::new(bytes);
        let segment = take_segment(&mut take).map_err(D::Error::custom)?;
        let left = PAYLOAD_LEFT.get().checked_sub(segment.payload.len());
        PAYLOAD_LEFT.set(left.ok_or_else(|| D::Error::custom("there is too much payload"))?);
        Ok(segment)
    }
}

/// Serialized as its name.
impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.name.serialize(to)
    }
}

impl<'de> Deserialize<'de> for &'static Kind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let found = Kind::find(<&str>::deserialize(from)?);
        found.ok_or_else(|| D::Error::custom("unknown fault"))
    }
}

/// Serialized as the text that describes it.
impl Serialize for Spec {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.to_string().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Spec {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <&str>::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
