// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! The table of all faults: the only source of their names, effects and descriptions.

mod command;
mod completion;
mod device;
mod event;
mod transport;
mod wire;

use super::{
    occasion::Seam,
    spec::{KEYS, Key},
};
use crate::segment::{Damage, NakCode};
use vrnic_wire::{completion::Status, event::EventType};

/// What a fault does.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Lose,
    Hold,
    Overtake,
    Repeat,
    Ghost,
    Damage(Damage),
    Shorten,
    Flip,
    /// Sets a field, or flips its lowest bit.
    Set,
    /// Adds to a field.
    Add,
    Mark,
    Throttle,
    Notify,
    Revoke,
    Refuse(NakCode),
    MissPacket,
    NotReady,
    Complete(Status),
    LoseCompletion,
    HoldCompletion,
    Overrun,
    SpuriousNotice,
    LoseNotice,
    HoldNotice,
    LoseEvent,
    HoldEvent,
    RefuseCommand,
    DelayReply,
    NoReply,
    ReplyTwice,
    LoseDoorbell,
    HoldDoorbell,
    HoldTimer,
    Raise(EventType),
    /// Raises the event and makes true what it reports.
    Break(EventType),
    BreakQp,
    LinkDown,
    Mtu,
    Speed,
    HideGid,
    Clock,
    FailSync,
    Stuck,
    Slow,
    Fail,
    Remove,
    Panic,
    Kill,
}

/// A kind of fault.
#[derive(Debug)]
pub struct Kind {
    /// Its name.
    pub name: &'static str,
    pub(crate) act: Act,
    /// Beginning of its description.
    pub preset: &'static str,
    /// Words that its description may have, apart from those that all faults of its seam have.
    takes: &'static [&'static str],
    /// What it does.
    pub summary: &'static str,
    /// Real-world cause.
    pub hardware: &'static str,
    /// What the standard says.
    pub standard: &'static str,
    /// What a program sees.
    pub program: &'static str,
}

/// Kinds of one part of the device.
#[derive(Debug)]
pub struct Group {
    /// What they affect.
    pub name: &'static str,
    /// The kinds.
    pub kinds: &'static [Kind],
}

/// All kinds.
pub const GROUPS: &[Group] = &[
    Group {
        name: "wire",
        kinds: wire::KINDS,
    },
    Group {
        name: "transport",
        kinds: transport::KINDS,
    },
    Group {
        name: "completions",
        kinds: completion::KINDS,
    },
    Group {
        name: "events",
        kinds: event::KINDS,
    },
    Group {
        name: "commands",
        kinds: command::KINDS,
    },
    Group {
        name: "device",
        kinds: device::KINDS,
    },
];

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Kind {
    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        GROUPS.iter().flat_map(|group| group.kinds)
    }

    /// Returns the kind with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|kind| kind.name == name)
    }

    /// Returns the seam at which it may fire.
    pub fn seam(&self) -> Seam {
        match self.act {
            Act::Lose
            | Act::Hold
            | Act::Overtake
            | Act::Repeat
            | Act::Ghost
            | Act::Damage(_)
            | Act::Shorten
            | Act::Flip
            | Act::Set
            | Act::Add
            | Act::Mark
            | Act::Throttle
            | Act::Notify
            | Act::Revoke => Seam::Packet,
            Act::Refuse(_) | Act::MissPacket | Act::NotReady => Seam::Decision,
            Act::Complete(_)
            | Act::LoseCompletion
            | Act::HoldCompletion
            | Act::Overrun
            | Act::SpuriousNotice => Seam::Completion,
            Act::LoseNotice | Act::HoldNotice => Seam::Notice,
            Act::LoseEvent | Act::HoldEvent => Seam::Event,
            Act::RefuseCommand | Act::DelayReply | Act::NoReply | Act::ReplyTwice => Seam::Command,
            Act::LoseDoorbell | Act::HoldDoorbell => Seam::Doorbell,
            Act::HoldTimer => Seam::Timer,
            Act::FailSync => Seam::Sync,
            Act::Raise(_)
            | Act::Break(_)
            | Act::BreakQp
            | Act::LinkDown
            | Act::Mtu
            | Act::Speed
            | Act::HideGid
            | Act::Clock
            | Act::Stuck
            | Act::Slow
            | Act::Fail
            | Act::Remove
            | Act::Panic
            | Act::Kill => Seam::Time,
        }
    }

    /// Returns whether a switch port can have it, because it only concerns packets.
    pub fn fits_ports(&self) -> bool {
        self.seam() == Seam::Packet && self.act != Act::Revoke
    }

    /// Returns whether it usually fires so often that the log could hold nothing else.
    pub(crate) fn is_frequent(&self) -> bool {
        matches!(self.act, Act::HoldTimer | Act::Throttle)
    }

    /// Returns whether its effect lasts.
    pub(crate) fn is_condition(&self) -> bool {
        matches!(
            self.act,
            Act::LinkDown
                | Act::Mtu
                | Act::Speed
                | Act::HideGid
                | Act::Clock
                | Act::Stuck
                | Act::Slow
                | Act::Remove
        )
    }

    /// Returns the words that its description may have.
    pub fn keys(&self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter()
            .filter(|key| key.is_of(self.seam()) || self.takes.contains(&key.name))
    }

    pub(super) fn has_key(&self, name: &str) -> bool {
        self.keys().any(|key| key.name == name)
    }
}

const fn kind(
    name: &'static str,
    act: Act,
    preset: &'static str,
    takes: &'static [&'static str],
    [summary, hardware, standard, program]: [&'static str; 4],
) -> Kind {
    Kind {
        name,
        act,
        preset,
        takes,
        summary,
        hardware,
        standard,
        program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Spec;
    use std::collections::HashSet;

    #[test]
    fn each_kind_has_a_name_of_its_own_a_preset_that_is_valid_and_is_described() {
        let mut names = HashSet::new();
        for kind in Kind::all() {
            assert!(names.insert(kind.name), "twice: {}", kind.name);
            let spec: Spec = kind.name.parse().expect(kind.name);
            assert_eq!(spec.kind, kind);
            for text in [kind.summary, kind.hardware, kind.standard, kind.program] {
                assert!(
                    text.ends_with('.') && text.len() > 7,
                    "{}: {text}",
                    kind.name
                );
            }
            for key in kind.takes {
                assert!(KEYS.iter().any(|known| known.name == *key), "{key}");
            }
        }
        assert!(names.len() >= 90, "{}", names.len());
    }

    #[test]
    fn each_kind_is_documented() {
        let guide = include_str!("../../../../Documentation/faults.rst");
        for kind in Kind::all() {
            let entry = format!("``{}``\n  {}\n", kind.name, kind.summary);
            assert!(guide.contains(&entry), "{entry}");
        }
    }

    #[test]
    fn each_status_and_each_event_of_the_verbs_has_a_fault() {
        let has = |act: Act| Kind::all().any(|kind| kind.act == act);
        for status in Status::ALL {
            assert_eq!(
                has(Act::Complete(*status)),
                *status != Status::Success,
                "{status:?}"
            );
        }
        for event in EventType::ALL {
            assert_eq!(
                has(Act::Raise(*event)),
                *event != EventType::PageFault,
                "{event:?}"
            );
        }
    }
}
