// SPDX-License-Identifier: GPL-2.0

//! The port.
//!
//! Its state and payload size are the smaller of what the device can and of what the network device
//! allows that shares the port. The device is told of both whenever the network device changes;
//! queries tell what the device says.

use kernel::prelude::*;
use rdma::{
    port::{
        Immutable,
        Mtu,
        Port,
        PortAttr,
        Protocol,
        State, //
    },
    Netdev, //
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

/// Returns what never changes about the port.
pub(crate) fn immutable(call: &Call<'_>) -> Result<Immutable> {
    Ok(Immutable {
        protocol: Protocol::RoceV1AndV2,
        pkey_table_length: PKEY_TABLE_LENGTH,
        gid_table_length: call.data().limits.gid_table_length.get(),
    })
}

/// Asks the device for its attributes of the port.
fn ask(call: &Call<'_>, port: Port) -> Result<PortAttributes> {
    call.data().control.execute(&QueryPort {
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

/// Whether a network device is that of the port: the device says its permanent MAC address.
pub(crate) fn is_netdev_of(call: &Call<'_>, netdev: &Netdev, port: Port) -> bool {
    port == Port::FIRST && netdev.ethernet_address() == Some(call.data().config.mac)
}

/// Sets state and payload size of the port as its network device, if there is one, has them.
pub(crate) fn follow_netdev(call: &Call<'_>, port: Port) {
    let netdev = call.with_netdev(port, |netdev| (netdev.is_active(), netdev.mtu()));
    let state = wanted_state(netdev.is_some_and(|(active, _)| active));
    let followed = ask(call, port).and_then(|now| {
        if call.data().port_state && now.administrative_state != state.raw() {
            call.data().control.execute(&SetPortState {
                port: port.number().into(),
                state: state.raw(),
                ..Default::default()
            })?;
        }
        // Datagrams are held to what their senders are told.
        let mtu = wanted_mtu(
            Mtu::try_from(u32::from(now.max_mtu))?,
            netdev.map(|(_, mtu)| mtu),
        );
        if mtu.raw() != now.active_mtu.into() {
            call.data().control.execute(&SetMtu {
                port: port.number().into(),
                // CAST: The wire numbers payload sizes as the verbs do; see below.
                mtu: mtu.raw() as u8,
                ..Default::default()
            })?;
        }
        Ok(())
    });
    if let Err(error) = followed {
        dev_err!(
            call.data().health.dev(),
            "port {} does not follow its network device: {:?}\n",
            port.number(),
            error
        );
    }
}

/// Returns the attributes of the port.
pub(crate) fn query(call: &Call<'_>, port: Port) -> Result<PortAttr> {
    let reply = ask(call, port)?;
    // It may not have been told yet that the network device is down.
    let active = PortState::try_from(reply.state) == Ok(PortState::Active)
        && call.with_netdev(port, Netdev::is_active) == Some(true);

    Ok(PortAttr {
        state: if active { State::Active } else { State::Down },
        max_mtu: Mtu::try_from(u32::from(reply.max_mtu))?,
        active_mtu: Mtu::try_from(u32::from(reply.active_mtu))?,
        active_width: reply.active_width,
        active_speed: reply.active_speed.get(),
        max_message_size: reply.max_message_size.get(),
        bad_pkey_count: reply.bad_pkey_count.get(),
        qkey_violation_count: reply.qkey_violation_count.get(),
        has_ip_gids: true,
        subnet: None,
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

/// Payload of packets that the device and a network device allow whose frames have `frame` bytes;
/// without a network device there is nothing to fit.
fn wanted_mtu(max_mtu: Mtu, frame: Option<u32>) -> Mtu {
    match frame.map(payload) {
        Some(fitting) if fitting.raw() < max_mtu.raw() => fitting,
        _ => max_mtu,
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
        assert_eq!(wanted_mtu(Mtu::Mtu4096, Some(1500)), Mtu::Mtu1024);
        assert_eq!(wanted_mtu(Mtu::Mtu256, Some(1500)), Mtu::Mtu256);
        assert_eq!(wanted_mtu(Mtu::Mtu2048, None), Mtu::Mtu2048);
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
