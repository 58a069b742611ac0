// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The port of a device on an InfiniBand subnet.
//!
//! The engine has no management agents. The owner of the engine, which carries its packets, has them and tells the
//! engine how a subnet manager configured the port ([`HcaPort`]). In return, the engine asks for what only an agent can
//! do ([`PortRequest`]), and reports packets with wrong keys ([`Violation`]).

use crate::{
    cause::Cause,
    segment::{Gid, LidRoute, Path, Segment},
    state::wire,
};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use vrnic_wire::{
    command::{MAD_LENGTH, MadResult, ModifyPort, ProcessMad, mad_flags, modify_port_flags},
    port::{
        FULL_MEMBERSHIP, Mtu, PERMISSIVE_LID, PortState, SubnetPort, capability, is_multicast_lid,
    },
    work::{AddressVector, LidAddress, lid_flags},
};

/// Number of GIDs of a port.
pub const GIDS: u32 = 8;

/// Upper half of a link-local GID.
const DEFAULT_GID_PREFIX: [u8; 8] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0];

/// Maximum number of pending violations, plus one if none with the same kind of key is pending.
const MAX_VIOLATIONS: usize = 16;

/// State of a port as a link and a subnet manager have set it (IBTA volume 1, 14.2.5.5 to 14.2.5.7).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HcaPort {
    /// State.
    #[serde(with = "wire")]
    pub state: PortState,
    /// Maximum MTU of the port.
    #[serde(with = "wire")]
    pub max_mtu: Mtu,
    /// MTU of the link.
    #[serde(with = "wire")]
    pub active_mtu: Mtu,
    /// Lanes of the link, in the encoding of the verbs.
    pub width: u8,
    /// Speed of a lane, in the encoding of the verbs.
    pub speed: u16,
    /// LIDs and other attributes of the subnet.
    #[serde(with = "wire")]
    pub subnet: SubnetPort,
    /// P_Key table. An empty entry is 0.
    pub pkeys: Vec<u16>,
    /// GUIDs, of which the first [`GIDS`] are used. An empty entry is 0.
    pub guids: Vec<u64>,
    /// Number of P_Key violations that the agent has counted.
    pub bad_pkeys: u32,
    /// Number of Q_Key violations that the agent has counted.
    pub bad_qkeys: u32,
}

impl Default for HcaPort {
    /// Returns a port without a link.
    fn default() -> Self {
        Self {
            state: PortState::Down,
            max_mtu: Mtu::Mtu4096,
            active_mtu: Mtu::Mtu4096,
            width: 2,
            speed: 1,
            subnet: SubnetPort::default(),
            pkeys: vec![vrnic_wire::port::DEFAULT_PKEY],
            guids: Vec::new(),
            bad_pkeys: 0,
            bad_qkeys: 0,
        }
    }
}

impl HcaPort {
    /// Returns the bits of a LID that select one of the port's LIDs.
    fn path_mask(&self) -> u16 {
        (1 << (self.subnet.lmc & 7)) - 1
    }

    /// Returns whether the port has this unicast LID.
    pub fn has_lid(&self, lid: u16) -> bool {
        let (base, mask) = (self.subnet.lid.get(), self.path_mask());
        base != 0 && lid & !mask == base & !mask
    }

    /// Returns the GID with this index, if there is one.
    pub fn gid(&self, index: u32) -> Option<Gid> {
        let guid = self.guids.iter().take(GIDS as usize).nth(index as usize)?;
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&self.subnet.gid_prefix.get().to_be_bytes());
        gid[8..].copy_from_slice(&guid.to_be_bytes());
        (*guid != 0).then_some(gid)
    }

    /// Returns whether the port has this GID.
    pub fn has_gid(&self, gid: &Gid) -> bool {
        (0..GIDS).any(|index| self.gid(index).as_ref() == Some(gid))
    }

    /// Returns whether a packet by this path, which has no multicast LID, is for the port. If the packet has a global
    /// route header, its destination must be one of the port's GIDs. The default prefix is valid on any subnet (IBTA
    /// volume 1, 4.1.1, 9.6.1.2).
    pub(crate) fn is_named_by(&self, path: &Path) -> bool {
        let (prefix, guid) = path.destination.split_at(8);
        let own = self.subnet.gid_prefix.get().to_be_bytes();
        let has_guid = |index| self.gid(index).is_some_and(|gid| gid[8..] == *guid);
        !path.lids.is_some_and(|lids| lids.global)
            || (prefix == own || prefix == DEFAULT_GID_PREFIX) && (0..GIDS).any(has_guid)
    }

    /// Returns the P_Key with this index, or 0 if there is none.
    pub(crate) fn pkey(&self, index: u16) -> u16 {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// Returns the lower bits of the LID to which a packet was sent.
    pub(crate) fn path_bits(&self, destination: u16) -> u8 {
        if is_multicast_lid(destination) {
            0
        } else {
            (destination & self.path_mask()) as u8
        }
    }

    /// Returns what changed since the port was like `before`, apart from the state: LIDs, the manager, P_Keys, GIDs.
    pub(crate) fn changes_since(&self, before: &Self) -> [bool; 4] {
        let lids = |port: &Self| (port.subnet.lid, port.subnet.lmc);
        let manager = |port: &Self| (port.subnet.sm_lid, port.subnet.sm_service_level);
        let gids = |port: &Self| [0, 1, 2, 3, 4, 5, 6, 7].map(|index| port.gid(index));
        [
            lids(self) != lids(before),
            manager(self) != manager(before),
            self.pkeys != before.pkeys,
            gids(self) != gids(before),
        ]
    }
}

/// Returns whether two P_Keys match (IBTA volume 1, 10.9.3).
pub(crate) fn pkeys_match(one: u16, other: u16) -> bool {
    let partition = one & !FULL_MEMBERSHIP;
    partition != 0 && other & !FULL_MEMBERSHIP == partition && (one | other) & FULL_MEMBERSHIP != 0
}

/// A request to an agent, on behalf of a command that waits for the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortRequest {
    /// Process a management datagram.
    Mad {
        /// LID of the requester.
        slid: u16,
        /// Service level of the request.
        service_level: u8,
        /// The datagram, of [`MAD_LENGTH`] bytes.
        mad: Vec<u8>,
    },
    /// Change the port.
    Modify {
        /// Capability bits to set.
        set: u32,
        /// Capability bits to clear.
        clear: u32,
        /// Whether to reset the count of Q_Key violations.
        reset_bad_qkeys: bool,
    },
}

/// Answer of an agent to a [`PortRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PortAnswer {
    /// The datagram is not for the agent, which did nothing.
    Passed,
    /// The agent answered with this management datagram.
    Answered(Vec<u8>),
    /// The agent did what was requested.
    Done,
}

impl PortAnswer {
    /// Returns the answer for a command's reply.
    pub(crate) fn reply(&self) -> (MadResult, [u8; MAD_LENGTH]) {
        let mut mad = [0; MAD_LENGTH];
        let result = match self {
            Self::Passed => MadResult::Passed,
            Self::Done => MadResult::Consumed,
            Self::Answered(bytes) => {
                let length = bytes.len().min(MAD_LENGTH);
                mad[..length].copy_from_slice(&bytes[..length]);
                MadResult::Answered
            }
        };
        (result, mad)
    }
}

/// A packet with a key that does not match that of its queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// Whether the wrong key is the Q_Key rather than the P_Key.
    pub qkey: bool,
    /// The wrong key.
    pub key: u32,
    /// Path of the packet.
    pub path: Path,
    /// Queue pair that sent the packet, if it is a datagram.
    pub source_qpn: u32,
    /// Destination queue pair.
    pub destination_qpn: u32,
    /// Number of packets that this stands for. It describes one of them; more than 1 if too many arrived at once.
    pub count: u32,
}

impl Violation {
    pub(crate) fn of(segment: &Segment<'_>, qkey: Option<u32>) -> Self {
        Self {
            qkey: qkey.is_some(),
            key: qkey.unwrap_or(segment.pkey.into()),
            path: segment.path,
            source_qpn: segment.source_qpn,
            destination_qpn: segment.destination_qpn,
            count: 1,
        }
    }
}

/// State of a port on a subnet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Subnet {
    pub(crate) port: HcaPort,
    /// Request that a command waits for, and whether the agent has got it.
    request: Option<(PortRequest, bool)>,
    answer: Option<PortAnswer>,
    violations: VecDeque<Violation>,
}

impl Subnet {
    /// Requests something for a command that waits. Returns whether there is an answer.
    pub(crate) fn ask(&mut self, request: PortRequest) -> bool {
        if self.answer.is_none() && self.request.is_none() {
            self.request = Some((request, false));
        }
        self.answer.is_some()
    }

    /// Returns the request that a command waits for, once.
    pub(crate) fn next_request(&mut self) -> Option<PortRequest> {
        let (request, known) = self.request.as_mut()?;
        (!std::mem::replace(known, true)).then(|| request.clone())
    }

    /// Sets the answer to the request, if a command waits for one.
    pub(crate) fn answer(&mut self, answer: PortAnswer) {
        if self.request.is_some() {
            self.answer = Some(answer);
        }
    }

    /// Takes the answer, for the command that waited.
    pub(crate) fn take_answer(&mut self) -> Option<PortAnswer> {
        self.request = None;
        self.answer.take()
    }

    /// Notes a packet with a wrong key. Each packet counts, but a flood of them causes only occasional reports: if too
    /// many violations are pending, the last one with the same kind of key stands for this one as well.
    pub(crate) fn note_violation(&mut self, violation: Violation) {
        let full = self.violations.len() >= MAX_VIOLATIONS;
        let mut known = self.violations.iter_mut();
        match known.rfind(|known| full && known.qkey == violation.qkey) {
            Some(known) => known.count = known.count.saturating_add(violation.count),
            None => self.violations.push_back(violation),
        }
    }

    /// Returns the next violation to report.
    pub(crate) fn next_violation(&mut self) -> Option<Violation> {
        self.violations.pop_front()
    }

    /// Returns the path that an address vector describes. It may have a multicast LID or the permissive LID only if
    /// `group` allows it.
    pub(crate) fn path_of(&self, address: &AddressVector, group: bool) -> Result<Path, Cause> {
        let lids = LidAddress::from_bytes(address.dmac);
        let port = &self.port;
        let destination = lids.dlid.get();
        let global = lids.flags & lid_flags::GRH != 0;
        let multicast = is_multicast_lid(destination);
        if lids.flags & !lid_flags::ALL != 0
            || lids.reserved != 0
            || destination == 0
            || u16::from(lids.path_bits) > port.path_mask()
            || multicast && !(group && global)
            || destination == PERMISSIVE_LID && !group
        {
            return Err(Cause::LidAddress);
        }
        let source = if global {
            port.gid(address.sgid_index.into()).ok_or(Cause::GidIndex)?
        } else {
            Gid::default()
        };
        let only_global = |value: u8| if global { value } else { 0 };
        let base = port.subnet.lid.get() & !port.path_mask();
        Ok(Path {
            source,
            destination: if global { address.dgid } else { Gid::default() },
            hop_limit: only_global(address.hop_limit),
            traffic_class: only_global(address.traffic_class),
            service_level: address.service_level & 0xf,
            flow_label: if global {
                address.flow_label.get() & 0xf_ffff
            } else {
                0
            },
            vlan: vrnic_wire::port::NO_VLAN,
            lids: Some(LidRoute {
                source: base | u16::from(lids.path_bits),
                destination,
                global,
            }),
            ..Path::default()
        })
    }
}

/// Returns the request to an agent for this command.
///
/// # Errors
///
/// The command is not valid.
pub(crate) fn mad_request(command: &ProcessMad) -> Result<PortRequest, Cause> {
    let flags = command.flags.get();
    if command.reserved != [0; 5] {
        return Err(Cause::ReservedField);
    }
    if flags & !mad_flags::ALL != 0 {
        return Err(Cause::Flags);
    }
    Ok(PortRequest::Mad {
        slid: command.slid.get(),
        service_level: command.service_level & 0xf,
        mad: command.mad.to_vec(),
    })
}

/// Returns the request to an agent for this command.
///
/// # Errors
///
/// The command is not valid.
pub(crate) fn modify_request(command: &ModifyPort) -> Result<PortRequest, Cause> {
    let (set, clear) = (
        command.set_capabilities.get(),
        command.clear_capabilities.get(),
    );
    let flags = command.flags.get();
    if (set | clear) & !capability::ALL != 0
        || set & clear != 0
        || flags & !modify_port_flags::ALL != 0
    {
        return Err(Cause::Flags);
    }
    Ok(PortRequest::Modify {
        set,
        clear,
        reset_bad_qkeys: flags & modify_port_flags::RESET_QKEY_VIOLATIONS != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subnet() -> Subnet {
        let mut subnet = Subnet::default();
        subnet.port.subnet = SubnetPort {
            lid: 8.into(),
            lmc: 2,
            gid_prefix: (0xfe80 << 48).into(),
            ..SubnetPort::default()
        };
        subnet.port.guids = vec![5, 0, 7];
        subnet
    }

    fn to(lids: LidAddress) -> AddressVector {
        AddressVector {
            dgid: [3; 16],
            dmac: lids.to_bytes(),
            service_level: 4,
            hop_limit: 9,
            ..AddressVector::default()
        }
    }

    #[test]
    fn addresses_have_lids_of_the_port_and_gids_only_if_they_want() {
        let subnet = subnet();
        let lids = LidAddress {
            dlid: 20.into(),
            path_bits: 3,
            ..LidAddress::default()
        };
        let path = subnet.path_of(&to(lids), false).expect("valid");
        let route = path.lids.expect("LIDs");
        assert_eq!((route.source, route.destination), (11, 20));
        assert_eq!((path.service_level, path.hop_limit), (4, 0));
        assert!(!route.global && path.destination == [0; 16]);
        let global = LidAddress {
            flags: lid_flags::GRH,
            ..lids
        };
        let path = subnet.path_of(&to(global), false).expect("valid");
        assert_eq!(Some(path.source), subnet.port.gid(0));
        assert_eq!((path.destination, path.hop_limit), ([3; 16], 9));
        // An empty entry of the table, one after the GUIDs, and one beyond the table.
        for sgid_index in [1, 3, 200] {
            let address = AddressVector {
                sgid_index,
                ..to(global)
            };
            assert_eq!(subnet.path_of(&address, false), Err(Cause::GidIndex));
        }
    }

    #[test]
    fn addresses_that_cannot_be_are_refused() {
        let subnet = subnet();
        let good = LidAddress {
            dlid: 0xc001.into(),
            flags: lid_flags::GRH,
            ..LidAddress::default()
        };
        assert!(subnet.path_of(&to(good), true).is_ok());
        for (bad, group) in [
            (good, false),
            (LidAddress { flags: 0, ..good }, true),
            (LidAddress { flags: 3, ..good }, true),
            (
                LidAddress {
                    dlid: PERMISSIVE_LID.into(),
                    ..good
                },
                false,
            ),
            (
                LidAddress {
                    path_bits: 4,
                    ..good
                },
                true,
            ),
            (
                LidAddress {
                    reserved: 1,
                    ..good
                },
                true,
            ),
            (
                LidAddress {
                    dlid: 0.into(),
                    ..good
                },
                true,
            ),
        ] {
            let refused = subnet.path_of(&to(bad), group);
            assert_eq!(refused, Err(Cause::LidAddress), "{bad:?}");
        }
    }

    #[test]
    fn one_of_two_is_a_full_member() {
        for (one, other, matches) in [
            (0x8001, 1, true),
            (1, 0x8001, true),
            (0x8001, 0x8001, true),
            (1, 1, false),
            (0x8001, 0x8002, false),
            (0x8000, 0x8000, false),
            (0, 0x8000, false),
        ] {
            assert_eq!(pkeys_match(one, other), matches, "{one:#x} {other:#x}");
        }
    }

    #[test]
    fn a_request_is_asked_once_and_answered_once() {
        let request = PortRequest::Modify {
            set: 2,
            clear: 0,
            reset_bad_qkeys: false,
        };
        let mut subnet = subnet();
        subnet.answer(PortAnswer::Done);
        assert_eq!(subnet.take_answer(), None, "nobody asked");
        assert!(!subnet.ask(request.clone()));
        assert_eq!(subnet.next_request(), Some(request.clone()));
        assert!(!subnet.ask(request.clone()));
        assert_eq!(subnet.next_request(), None);
        subnet.answer(PortAnswer::Passed);
        assert!(subnet.ask(request));
        assert_eq!(subnet.take_answer(), Some(PortAnswer::Passed));
        assert_eq!((subnet.next_request(), subnet.take_answer()), (None, None));
    }

    #[test]
    fn a_port_has_all_lids_of_its_mask() {
        let mut port = subnet().port;
        let lids: Vec<u16> = (0..20).filter(|&lid| port.has_lid(lid)).collect();
        assert_eq!(lids, [8, 9, 10, 11]);
        assert_eq!((port.path_bits(10), port.path_bits(0xc003)), (2, 0));
        port.subnet.lid = 0.into();
        assert!(!port.has_lid(0));
        // Any value in a recording is safe.
        port.subnet.lmc = 255;
        port.has_lid(3);
    }
}
