// SPDX-License-Identifier: GPL-2.0

//! The port.
//!
//! Its state and payload size are the smaller of what the device can and of what the network device
//! allows that shares the port. The device is told of both when anybody asks for them, as the core
//! itself does after each change of the network device's state.

use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
};
use rdma::port::{
    Attributes,
    Immutable,
    Mtu,
    Port,
    Protocol,
    State, //
};
use vrnic_wire::{
    command::{
        QueryPort,
        SetMtu,
        SetPortState, //
    },
    port::{
        PortAttributes,
        PortState, //
    }, //
};

use crate::device::Call;

/// P_Keys of the port: RoCE has one.
pub(crate) const PKEY_TABLE_LENGTH: u16 = 1;

/// The P_Key of RoCE: full member of the default partition.
const DEFAULT_PKEY: u16 = 0xffff;

/// Most bytes of a RoCE v2 packet that are neither payload nor link layer: IPv6 and UDP headers,
/// base header, the longest extended header (atomic), immediate data, ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4 + 4;

/// What the driver sets of the port.
#[pin_data]
pub(crate) struct Settings {
    /// Whether the device takes a state.
    has_state: bool,
    /// Held while the network device is looked at and the device is told, so that nothing older
    /// comes after something newer.
    #[pin]
    telling: Mutex<()>,
}

impl Settings {
    /// Nothing was set yet.
    pub(crate) fn new(has_state: bool) -> impl PinInit<Self> {
        pin_init!(Self {
            has_state,
            telling <- new_mutex!(()),
        })
    }
}

/// Returns what never changes about the port.
pub(crate) fn immutable(call: &Call<'_>) -> Result<Immutable> {
    Ok(Immutable {
        protocol: Protocol::RoceV1AndV2,
        pkey_table_length: PKEY_TABLE_LENGTH,
        gid_table_length: call.data.limits.gid_table_length.get(),
    })
}

/// Asks the device for its attributes of the port.
fn ask(call: &Call<'_>, port: Port) -> Result<PortAttributes> {
    call.data.control.execute(&QueryPort {
        port: port.number().into(),
        ..Default::default()
    })
}

/// State that the port is to have beside a network device that is active or not.
fn wanted_state(active: bool) -> PortState {
    if active {
        PortState::Active
    } else {
        PortState::Down
    }
}

/// Returns the attributes of the port.
pub(crate) fn query(call: &Call<'_>, port: Port) -> Result<Attributes> {
    let settings = &call.data.port;
    let _telling = settings.telling.lock();
    let mut reply = ask(call, port)?;
    let netdev = call.netdev(port);
    let wanted = wanted_state(netdev.as_ref().is_some_and(|netdev| netdev.is_active()));
    if settings.has_state && reply.administrative_state != wanted.raw() {
        call.data.control.execute(&SetPortState {
            port: port.number().into(),
            state: wanted.raw(),
            ..Default::default()
        })?;
        reply = ask(call, port)?;
    }
    let device_active = PortState::try_from(reply.state) == Ok(PortState::Active);
    let active = device_active && wanted == PortState::Active;
    let max_mtu = Mtu::try_from(u32::from(reply.max_mtu))?;
    let device_mtu = Mtu::try_from(u32::from(reply.active_mtu))?;
    let active_mtu = match &netdev {
        Some(netdev) => smaller(max_mtu, payload(netdev.mtu())),
        None => device_mtu,
    };
    if active_mtu != device_mtu {
        // The device must hold datagrams to what their senders are told.
        call.data.control.execute(&SetMtu {
            port: port.number().into(),
            // CAST: The wire numbers payload sizes as the verbs do; see below.
            mtu: active_mtu.raw() as u8,
            ..Default::default()
        })?;
    }

    Ok(Attributes {
        state: if active { State::Active } else { State::Down },
        max_mtu,
        active_mtu,
        active_width: reply.active_width,
        active_speed: reply.active_speed.get(),
        pkey_table_length: PKEY_TABLE_LENGTH,
        gid_table_length: call.data.limits.gid_table_length.get(),
        max_message_size: reply.max_message_size.get(),
        bad_pkey_count: reply.bad_pkey_count.get(),
        qkey_violation_count: reply.qkey_violation_count.get(),
    })
}

/// Returns the P_Key at `index`.
pub(crate) fn pkey(index: u16) -> Result<u16> {
    if index >= PKEY_TABLE_LENGTH {
        return Err(EINVAL);
    }
    Ok(DEFAULT_PKEY)
}

/// Largest payload of packets in frames of `frame` bytes, at least the smallest there is.
fn payload(frame: u32) -> Mtu {
    match frame.saturating_sub(OVERHEAD) {
        4096.. => Mtu::Mtu4096,
        2048.. => Mtu::Mtu2048,
        1024.. => Mtu::Mtu1024,
        512.. => Mtu::Mtu512,
        _ => Mtu::Mtu256,
    }
}

fn smaller(a: Mtu, b: Mtu) -> Mtu {
    if a.raw() < b.raw() {
        a
    } else {
        b
    }
}

#[cfg(CONFIG_INFINIBAND_VRNIC_KUNIT_TEST)]
#[kunit_tests(vrnic_port)]
mod tests {
    use super::*;

    #[test]
    fn payload_fits_the_frame() {
        assert_eq!(payload(1500), Mtu::Mtu1024);
        assert_eq!(payload(1024 + OVERHEAD), Mtu::Mtu1024);
        assert_eq!(payload(1024 + OVERHEAD - 1), Mtu::Mtu512);
        assert_eq!(payload(9000), Mtu::Mtu4096);
        assert_eq!(payload(u32::MAX), Mtu::Mtu4096);
        assert_eq!(payload(0), Mtu::Mtu256);
        assert_eq!(smaller(Mtu::Mtu4096, Mtu::Mtu1024), Mtu::Mtu1024);
        assert_eq!(smaller(Mtu::Mtu256, Mtu::Mtu1024), Mtu::Mtu256);
    }

    #[test]
    fn the_port_follows_the_network_device() {
        assert_eq!(wanted_state(true), PortState::Active);
        assert_eq!(wanted_state(false), PortState::Down);
    }

    #[test]
    fn there_is_one_pkey() {
        assert_eq!(pkey(0), Ok(0xffff));
        assert_eq!(pkey(1), Err(EINVAL));
    }

    #[test]
    fn constants_are_those_of_the_wire() {
        for mtu in vrnic_wire::port::Mtu::ALL {
            assert_eq!(
                Mtu::try_from(u32::from(mtu.raw())).map(Mtu::raw),
                Ok(mtu.raw().into())
            );
        }
        assert_eq!(State::Down.raw(), PortState::Down.raw().into());
        assert_eq!(State::Active.raw(), PortState::Active.raw().into());
    }
}
