// SPDX-License-Identifier: GPL-2.0

//! The port.
//!
//! On Ethernet, the port's state and MTU are limited by both the device and the network device that
//! shares the port. The driver sets both in the device whenever the network device changes, and
//! queries return the device's values. On InfiniBand, a subnet manager that the device knows
//! determines everything.

use kernel::prelude::*;
use rdma::{
    port::{
        Immutable,
        LinkLayer,
        Mtu,
        Port,
        PortAttr,
        PortChange,
        Protocol,
        State,
        Subnet, //
    },
    Netdev, //
};
use virtio::Features;
use vrnic_wire::{
    command::{
        modify_port_flags,
        ModifyPort,
        QueryPkeys,
        QueryPort,
        QuerySubnetPort,
        SetMtu,
        SetPortState, //
    },
    port::{
        PortAttributes,
        PortState, //
    }, //
};

use crate::{
    device::Call,
    feature, //
};

/// Link layer of the port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// RoCE, on the link of a network device.
    Ethernet,
    /// InfiniBand, with a subnet manager.
    InfiniBand,
}

impl Link {
    /// Returns the link layer of the port of a device with these features.
    pub(crate) fn of(features: Features) -> Self {
        match features.contains(feature::INFINIBAND) {
            true => Self::InfiniBand,
            false => Self::Ethernet,
        }
    }

    /// Returns the core's name for the link layer.
    pub(crate) fn layer(self) -> LinkLayer {
        match self {
            Self::Ethernet => LinkLayer::Ethernet,
            Self::InfiniBand => LinkLayer::InfiniBand,
        }
    }
}

/// Length of the P_Key table of a RoCE port.
const PKEY_TABLE_LENGTH: u16 = 1;

/// The P_Key of RoCE: full member of the default partition.
const DEFAULT_PKEY: u16 = 0xffff;

/// Maximum overhead of a RoCE v2 packet in bytes, without the link layer: IPv6 and UDP headers,
/// base header, the longest extended header (atomic), immediate data, ICRC.
const OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4 + 4;

/// Returns the attributes of the port that never change.
pub(crate) fn immutable(call: &Call<'_>, port: Port) -> Result<Immutable> {
    match call.data().link() {
        Link::Ethernet => Ok(Immutable {
            protocol: Protocol::RoceV1AndV2,
            pkey_table_length: PKEY_TABLE_LENGTH,
            gid_table_length: call.data().limits.gid_table_length.get(),
            raw_packets: call.data().features.contains(feature::RAW_PACKETS),
        }),
        Link::InfiniBand => {
            let reply = ask(call, port)?;
            Ok(Immutable {
                protocol: Protocol::InfiniBand,
                pkey_table_length: reply.pkey_table_length.get(),
                gid_table_length: reply.gid_table_length.get(),
                raw_packets: false,
            })
        }
    }
}

/// Queries the device's attributes of the port.
fn ask(call: &Call<'_>, port: Port) -> Result<PortAttributes> {
    call.data().control.execute(&QueryPort {
        port: port.number().into(),
        ..Default::default()
    })
}

/// Returns the state for the port if its network device is active, or not.
fn wanted_state(active: bool) -> PortState {
    if active {
        PortState::Active
    } else {
        PortState::Down
    }
}

/// Returns whether a network device belongs to the port: the device reports the MAC address.
pub(crate) fn is_netdev_of(call: &Call<'_>, netdev: &Netdev, port: Port) -> bool {
    call.data().link() == Link::Ethernet
        && port == Port::FIRST
        && netdev.ethernet_address() == Some(call.data().config.mac)
}

/// Sets the state and MTU of the port to those of its network device, if there is one.
pub(crate) fn follow_netdev(call: &Call<'_>, port: Port) {
    if call.data().link() == Link::InfiniBand {
        return;
    }
    let netdev = call.with_netdev(port, |netdev| (netdev.is_active(), netdev.mtu()));
    let state = wanted_state(netdev.is_some_and(|(active, _)| active));
    let followed = ask(call, port).and_then(|now| {
        if call.data().features.contains(feature::PORT_STATE)
            && now.administrative_state != state.raw()
        {
            call.data().control.execute(&SetPortState {
                port: port.number().into(),
                state: state.raw(),
                ..Default::default()
            })?;
        }
        // The device limits datagrams to the MTU that it reports to their senders.
        let mtu = wanted_mtu(
            Mtu::try_from(u32::from(now.max_mtu))?,
            netdev.map(|(_, mtu)| mtu),
        );
        if mtu.raw() != now.active_mtu.into() {
            call.data().control.execute(&SetMtu {
                port: port.number().into(),
                // CAST: The wire format uses the verbs' numbers for MTUs; see below.
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
    let (state, subnet) = match call.data().link() {
        Link::Ethernet => {
            // The device may not know yet that the network device is down.
            let active = PortState::try_from(reply.state) == Ok(PortState::Active)
                && call.with_netdev(port, Netdev::is_active) == Some(true);
            (if active { State::Active } else { State::Down }, None)
        }
        Link::InfiniBand => {
            let subnet = call.data().control.execute(&QuerySubnetPort {
                port: port.number().into(),
                ..Default::default()
            })?;
            (
                State::try_from(u32::from(reply.state))?,
                Some(Subnet {
                    lid: subnet.lid.get(),
                    lid_mask_count: subnet.lmc,
                    manager_lid: subnet.sm_lid.get(),
                    manager_service_level: subnet.sm_service_level,
                    timeout: subnet.subnet_timeout,
                    capabilities: subnet.capability_mask.get(),
                    physical_state: subnet.physical_state,
                    virtual_lanes: subnet.max_lanes,
                    init_type_reply: subnet.init_type_reply,
                }),
            )
        }
    };

    Ok(PortAttr {
        state,
        max_mtu: Mtu::try_from(u32::from(reply.max_mtu))?,
        active_mtu: Mtu::try_from(u32::from(reply.active_mtu))?,
        active_width: reply.active_width,
        active_speed: reply.active_speed.get(),
        max_message_size: reply.max_message_size.get(),
        bad_pkey_count: reply.bad_pkey_count.get(),
        qkey_violation_count: reply.qkey_violation_count.get(),
        has_ip_gids: subnet.is_none(),
        subnet,
    })
}

/// Changes an InfiniBand port for a user in the kernel.
pub(crate) fn modify(call: &Call<'_>, port: Port, change: &PortChange) -> Result {
    call.data().control.execute(&ModifyPort {
        port: port.number().into(),
        flags: match change.reset_qkey_violations {
            true => modify_port_flags::RESET_QKEY_VIOLATIONS,
            false => 0,
        }
        .into(),
        set_capabilities: change.set_capabilities.into(),
        clear_capabilities: change.clear_capabilities.into(),
    })?;
    Ok(())
}

/// Returns the P_Key at `index`.
pub(crate) fn pkey(call: &Call<'_>, port: Port, index: u16) -> Result<u16> {
    match call.data().link() {
        Link::Ethernet => roce_pkey(index),
        Link::InfiniBand => {
            let reply = call.data().control.execute(&QueryPkeys {
                port: port.number().into(),
                first: u32::from(index).into(),
            })?;
            Ok(reply.pkeys[0].get())
        }
    }
}

/// Returns the P_Key at `index` of a RoCE port.
fn roce_pkey(index: u16) -> Result<u16> {
    if index >= PKEY_TABLE_LENGTH {
        return Err(EINVAL);
    }
    Ok(DEFAULT_PKEY)
}

/// Returns the largest MTU that fits frames of `frame` bytes, or else the smallest MTU.
fn payload(frame: u32) -> Mtu {
    match frame.saturating_sub(OVERHEAD) {
        4096.. => Mtu::Mtu4096,
        2048.. => Mtu::Mtu2048,
        1024.. => Mtu::Mtu1024,
        512.. => Mtu::Mtu512,
        _ => Mtu::Mtu256,
    }
}

/// Returns the MTU for a device with this maximum and a network device with frames of `frame`
/// bytes. Without a network device it is the maximum.
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
        assert_eq!(roce_pkey(0), Ok(0xffff));
        assert_eq!(roce_pkey(1), Err(EINVAL));
    }

    #[test]
    fn constants_are_those_of_the_wire() {
        for mtu in vrnic_wire::port::Mtu::ALL {
            assert_eq!(
                Mtu::try_from(u32::from(mtu.raw())).map(Mtu::raw),
                Ok(mtu.raw().into())
            );
        }
        for state in PortState::ALL {
            let raw = u32::from(state.raw());
            assert_eq!(State::try_from(raw).map(State::raw), Ok(raw));
        }
    }
}
