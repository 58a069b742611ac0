// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
//! An RNIC's end of a wire: converts outgoing segments to frames and incoming frames to segments.

use std::collections::HashSet;

use tracing::debug;
use vrnic_engine::Segment;
use vrnic_engine::memory::Memory;
use vrnic_engine::segment::{Body, Gid, Payload};
use vrnic_roce::{EncodeError, FrameError, FrameErrors, MAX_FRAME, encode, parse};
use vrnic_wire::port::{GidEntry, GidType};

/// What the destination of a frame must match for an entry of the GID table: GID, VLAN, RoCE version 1.
type Address = (Gid, u16, bool);

/// An RNIC's end of a wire.
#[derive(Default)]
pub struct RoceEnd {
    addresses: HashSet<Address>,
    errors: FrameErrors,
    /// Number of frames to GIDs that the RNIC does not have.
    strangers: u64,
    /// Number of segments that could not be converted to frames.
    unsent: u64,
    /// Buffer in which a frame is written until its length is known. Reserving the maximum length in the caller's
    /// buffer instead would mean clearing that much for each frame.
    draft: Vec<u8>,
}

/// Why a frame does not reach the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It belongs to another protocol, which is not an error.
    Other,
    /// Its invariant CRC is wrong.
    Crc,
    /// It is invalid in any other way.
    Malformed,
}

impl RoceEnd {
    /// Sets the GIDs of the RNIC.
    pub fn set_gids<'a>(&mut self, entries: impl Iterator<Item = &'a GidEntry>) {
        self.addresses.clear();
        self.addresses.extend(entries.map(|entry| {
            let roce_v1 = entry.gid_type == GidType::RoceV1.raw();
            (entry.gid, entry.vlan.get(), roce_v1)
        }));
    }

    /// Writes a segment as a frame to `frame`, which must be empty. A raw packet already is one. If that is
    /// impossible, returns false and leaves `frame` empty; the segment is then lost, as on any network.
    pub fn write<M: Memory>(
        &mut self,
        segment: &Segment<'_>,
        memory: &M,
        frame: &mut Vec<u8>,
    ) -> bool {
        if matches!(segment.body, Body::Frame { .. }) {
            return match &segment.payload {
                Payload::Bytes(bytes) => {
                    frame.extend_from_slice(bytes);
                    true
                }
                // The engine never does that.
                _ => false,
            };
        }
        self.draft.resize(MAX_FRAME, 0);
        match encode(segment, memory, &mut self.draft) {
            Ok(length) => {
                frame.extend_from_slice(&self.draft[..length]);
                true
            }
            Err(error) => {
                self.note_unsent(error);
                false
            }
        }
    }

    /// Parses a frame that reached the RNIC.
    pub fn read<'a>(&mut self, frame: &'a [u8]) -> Result<Segment<'a>, Refused> {
        let segment = parse(frame).map_err(|error| {
            let count = self.errors.count(error);
            if error != FrameError::NotRoce && count.is_power_of_two() {
                debug!(error = error.name(), count, "{error}");
            }
            match error {
                FrameError::NotRoce => Refused::Other,
                FrameError::Icrc => Refused::Crc,
                _ => Refused::Malformed,
            }
        })?;
        let path = &segment.path;
        // The engine checks multicast groups.
        if !path.is_multicast()
            && !self
                .addresses
                .contains(&(path.destination, path.vlan, path.roce_v1))
        {
            self.strangers += 1;
            if self.strangers.is_power_of_two() {
                debug!(count = self.strangers, gid = ?path.destination, "dropped a frame to a GID that no local \
                                                                         device has");
            }
            return Err(Refused::Malformed);
        }
        Ok(segment)
    }

    /// Returns the numbers of frames lost here, by reason.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let errors = self.errors.iter();
        errors
            .filter(|(error, _)| *error != FrameError::NotRoce)
            .map(|(error, count)| (error.name(), count))
            .chain([("stranger", self.strangers), ("unsent", self.unsent)])
    }

    fn note_unsent(&mut self, error: EncodeError) {
        self.unsent += 1;
        if self.unsent.is_power_of_two() {
            debug!(count = self.unsent, "dropped a segment: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vrnic_engine::psn::Psn;
    use vrnic_engine::segment::{Path, Position, SendTail, Service};
    use vrnic_engine::testing::{Memories, gid_of};
    use vrnic_wire::port::NO_VLAN;

    fn entry(index: usize, vlan: u16) -> GidEntry {
        GidEntry {
            gid: gid_of(index),
            vlan: vlan.into(),
            gid_type: GidType::RoceV2.raw(),
            ..GidEntry::default()
        }
    }

    fn to(destination: usize, vlan: u16) -> Segment<'static> {
        Segment {
            path: Path {
                source: gid_of(9),
                destination: gid_of(destination),
                vlan,
                ..Path::default()
            },
            source_qpn: 0,
            destination_qpn: 5,
            pkey: 0xffff,
            checksums_ok: false,
            touched: vrnic_engine::segment::Touched::NOT,
            psn: Psn::new(7),
            solicited: false,
            ack_request: false,
            migrated: true,
            service: Service::Reliable,
            body: Body::Send {
                position: Position::Only,
                tail: SendTail::Plain,
            },
            payload: Payload::Bytes(b"abc".to_vec()),
        }
    }

    #[test]
    fn only_frames_to_a_gid_and_its_vlan_are_taken() {
        let memory = Memories::new().add(0);
        let mut end = RoceEnd::default();
        end.set_gids([entry(1, NO_VLAN), entry(2, 5)].iter());
        let mut frame = Vec::new();
        let mut arrives = |segment: &Segment<'_>| {
            frame.clear();
            assert!(end.write(segment, &memory, &mut frame));
            end.read(&frame).map(|segment| segment.destination_qpn)
        };
        assert_eq!(arrives(&to(1, NO_VLAN)), Ok(5));
        assert_eq!(arrives(&to(2, 5)), Ok(5));
        assert_eq!(arrives(&to(2, NO_VLAN)), Err(Refused::Malformed));
        assert_eq!(arrives(&to(3, NO_VLAN)), Err(Refused::Malformed));
        end.set_gids([].iter());
        assert_eq!(end.read(&frame).err(), Some(Refused::Malformed));
    }

    #[test]
    fn damage_is_counted_by_its_kind() {
        let memory = Memories::new().add(0);
        let mut end = RoceEnd::default();
        end.set_gids([entry(1, NO_VLAN)].iter());
        let mut frame = Vec::new();
        assert!(end.write(&to(1, NO_VLAN), &memory, &mut frame));
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(end.read(&frame).err(), Some(Refused::Crc));
        assert_eq!(end.read(&frame[..50]).err(), Some(Refused::Malformed));
        frame[12] = 0x86;
        assert_eq!(end.read(&frame).err(), Some(Refused::Other));
        end.set_gids([].iter());
        frame[12] = 8;
        frame[last] ^= 1;
        assert_eq!(end.read(&frame).err(), Some(Refused::Malformed));
        let counted: Vec<_> = end.counters().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("truncated", 1), ("icrc", 1), ("stranger", 1)]);
    }

    #[test]
    fn what_cannot_be_a_frame_is_lost() {
        let memory = Memories::new().add(0);
        let mut end = RoceEnd::default();
        let mut segment = to(1, NO_VLAN);
        segment.path.source = [0xfe; 16];
        let mut frame = Vec::new();
        assert!(!end.write(&segment, &memory, &mut frame));
        assert!(frame.is_empty());
    }
}
