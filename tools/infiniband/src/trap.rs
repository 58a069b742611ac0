// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Traps that nodes send to the subnet manager (IBTA volume 1, 14.2.5.1), which are the details of a [`Notice`].

use crate::{
    Lid,
    attributes::{NodeType, Notice, NoticeType},
    field::layout,
};

layout! {
    /// The state of a link changed: trap 128.
    LinkChange {
        /// LID of the switch.
        lid: Lid = 0, 16;
    }
}

layout! {
    /// A port had too many errors: traps 129 to 131.
    PortTrouble {
        /// LID of the node.
        lid: Lid = 16, 16;
        /// Port number.
        port: u8 = 32, 8;
    }
}

layout! {
    /// The capabilities of a port changed: trap 144.
    CapabilityChange {
        /// LID of the port.
        lid: Lid = 16, 16;
        /// [`other`](Self::other) is valid.
        local_changes: bool = 47, 1;
        /// New capability mask.
        mask: u32 = 48, 32;
        /// Other changes: bit 0 for the node description, bits 1 and 2 for the enabled width and speed.
        other: u16 = 80, 16;
    }
}

layout! {
    /// A packet had a wrong management key: trap 256.
    MKeyViolation {
        /// LID of the port that received the packet.
        lid: Lid = 16, 16;
        /// Source LID of the packet's directed route.
        source: Lid = 32, 16;
        /// Method of the packet.
        method: u8 = 48, 8;
        /// Attribute of the packet.
        attribute: u16 = 64, 16;
        /// Modifier of the packet.
        modifier: u32 = 80, 32;
        /// The wrong key.
        m_key: u64 = 112, 64;
        /// The packet had a directed route.
        directed: bool = 184, 1;
        /// The route has more hops than fit in here.
        truncated: bool = 185, 1;
        /// Number of hops of the route.
        hops: u8 = 186, 6;
        /// Ports by which the packet arrived at the nodes.
        back: [u8; 30] = 192, 240;
    }
}

layout! {
    /// A packet had a wrong partition key or Q_Key: traps 257 and 258.
    KeyViolation {
        /// Source LID.
        source: Lid = 16, 16;
        /// Destination LID.
        destination: Lid = 32, 16;
        /// The wrong key.
        key: u32 = 48, 32;
        /// Service level.
        service_level: u8 = 80, 4;
        /// QP of the sender, 0 if it is not known.
        source_qp: u32 = 88, 24;
        /// QP of the receiver.
        destination_qp: u32 = 120, 24;
        /// GID of the sender, if the packet had one.
        source_gid: [u8; 16] = 144, 128;
        /// GID of the receiver, if the packet had one.
        destination_gid: [u8; 16] = 272, 128;
    }
}

layout! {
    /// A switch stopped a packet with a wrong partition key: trap 259.
    SwitchKeyViolation {
        /// A bit for each of the following fields, the first in the highest bit, that says whether it is known.
        valid: u16 = 0, 16;
        /// Source LID.
        source: Lid = 16, 16;
        /// Destination LID.
        destination: Lid = 32, 16;
        /// The wrong key.
        pkey: u16 = 48, 16;
        /// Service level.
        service_level: u8 = 64, 4;
        /// QP of the sender.
        source_qp: u32 = 72, 24;
        /// QP of the receiver.
        destination_qp: u32 = 104, 24;
        /// GID of the sender.
        source_gid: [u8; 16] = 128, 128;
        /// GID of the receiver.
        destination_gid: [u8; 16] = 256, 128;
        /// LID of the switch.
        switch: Lid = 384, 16;
        /// Port of the switch.
        port: u8 = 400, 8;
    }
}

macro_rules! traps {
    ($($(#[$meta:meta])* $name:ident($details:ident) = $number:literal, $kind:ident;)*) => {
        /// A trap.
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub enum Trap {
            $($(#[$meta])* $name($details),)*
        }

        impl Trap {
            /// Returns the trap number.
            pub const fn number(&self) -> u16 {
                match self {
                    $(Self::$name(_) => $number,)*
                }
            }

            /// Returns the notice of a node of this type at this LID.
            pub fn notice(&self, producer: NodeType, issuer: Lid) -> Notice {
                let mut notice = Notice {
                    generic: true,
                    producer: producer.0.into(),
                    number: self.number(),
                    issuer,
                    ..Notice::default()
                };
                match self {
                    $(Self::$name(details) => {
                        notice.kind = NoticeType::$kind;
                        details.write(&mut notice.details);
                    })*
                }
                notice
            }

            /// Returns the trap that a notice is about, or `None` if it is not one of these.
            pub fn of(notice: &Notice) -> Option<Self> {
                match notice.number {
                    _ if !notice.generic => None,
                    $($number => Some(Self::$name($details::read(&notice.details))),)*
                    _ => None,
                }
            }
        }
    };
}

traps! {
    /// The state of a link of a switch changed.
    LinkState(LinkChange) = 128, URGENT;
    /// A port had too many errors of the physical layer.
    LinkIntegrity(PortTrouble) = 129, URGENT;
    /// A port had too many buffer overruns.
    BufferOverrun(PortTrouble) = 130, URGENT;
    /// A port received no flow control packets.
    FlowControl(PortTrouble) = 131, URGENT;
    /// The capabilities of a port changed.
    Capability(CapabilityChange) = 144, INFORMATION;
    /// A packet had a wrong management key.
    MKey(MKeyViolation) = 256, SECURITY;
    /// A packet had a wrong partition key.
    PKey(KeyViolation) = 257, SECURITY;
    /// A packet had a wrong Q_Key.
    QKey(KeyViolation) = 258, SECURITY;
    /// A packet at a port of a switch had a wrong partition key.
    SwitchPKey(SwitchKeyViolation) = 259, SECURITY;
}

impl Trap {
    /// Returns the trap with the current LID of its node, which may have changed since the event.
    #[must_use]
    pub(crate) fn by(mut self, node: Lid) -> Self {
        match &mut self {
            Self::LinkState(it) => it.lid = node,
            Self::LinkIntegrity(it) | Self::BufferOverrun(it) | Self::FlowControl(it) => {
                it.lid = node;
            }
            Self::Capability(it) => it.lid = node,
            Self::MKey(it) => it.lid = node,
            Self::SwitchPKey(it) => it.switch = node,
            Self::PKey(_) | Self::QKey(_) => {}
        }
        self
    }

    /// Returns the subject that tells traps with the same number apart: the source of a violation, or the port with
    /// errors.
    pub(crate) fn subject(&self) -> u16 {
        match self {
            Self::LinkState(_) | Self::Capability(_) => 0,
            Self::LinkIntegrity(it) | Self::BufferOverrun(it) | Self::FlowControl(it) => {
                it.port.into()
            }
            Self::MKey(it) => it.source,
            Self::PKey(it) | Self::QKey(it) => it.source,
            Self::SwitchPKey(it) => it.source,
        }
    }

    /// Returns whether the trap is about a packet, which means that senders of packets control how many there are.
    pub(crate) fn is_violation(&self) -> bool {
        matches!(
            self,
            Self::MKey(_) | Self::PKey(_) | Self::QKey(_) | Self::SwitchPKey(_)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_tells_what_it_was_made_of() {
        let details = std::array::from_fn(|index| index as u8 + 1);
        for number in 0..=300 {
            let notice = Notice {
                generic: true,
                number,
                details,
                ..Notice::default()
            };
            let known = matches!(number, 128..=131 | 144 | 256..=259);
            let trap = Trap::of(&notice);
            assert_eq!(trap.map(|trap| trap.number()), known.then_some(number));
            if let Some(trap) = trap {
                assert_eq!(Trap::of(&trap.notice(NodeType::SWITCH, 7)), Some(trap));
            }
            assert_eq!(
                Trap::of(&Notice {
                    generic: false,
                    ..notice
                }),
                None
            );
        }
    }

    #[test]
    fn details_are_where_the_standard_has_them() {
        let trap = Trap::SwitchPKey(SwitchKeyViolation {
            pkey: 0x8123,
            source_qp: 0x0a_0b0c,
            switch: 0x55,
            port: 9,
            ..SwitchKeyViolation::default()
        });
        let notice = trap.notice(NodeType::SWITCH, 0x55);
        let mut bytes = [0; 64];
        notice.write(&mut bytes);
        assert_eq!(bytes[..8], [0x82, 0, 0, 2, 1, 3, 0, 0x55]);
        assert_eq!(bytes[16..18], [0x81, 0x23]);
        assert_eq!(bytes[18..22], [0, 0x0a, 0x0b, 0x0c]);
        assert_eq!(bytes[58..61], [0, 0x55, 9]);
    }
}
