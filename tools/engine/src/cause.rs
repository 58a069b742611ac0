// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Why the device refused something.

use serde::{Deserialize, Serialize};

/// Defines the causes with their numbers and texts.
macro_rules! causes {
    ($($(#[$meta:meta])* $variant:ident = $value:literal => $text:literal,)*) => {
        /// The check that failed: `vendor_error` of replies, completions and events.
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[repr(u32)]
        pub enum Cause {
            $($(#[$meta])* $variant = $value,)*
        }

        impl Cause {
            /// All causes.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The number, as it stands in a `vendor_error` field; never 0.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// The cause with that number.
            pub fn from_code(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|cause| cause.code() == code)
            }

            /// What went wrong, in words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

causes! {
    /// The command is shorter or longer than its code asks for.
    CommandLength = 1 => "command has the wrong length",
    /// The command code means nothing.
    CommandCode = 2 => "unknown command code",
    /// A reserved field is not 0.
    ReservedField = 3 => "reserved field is not 0",
    /// No such context.
    UnknownContext = 10 => "no such context",
    /// No such protection domain.
    UnknownPd = 11 => "no such protection domain",
    /// No such completion queue.
    UnknownCq = 12 => "no such completion queue",
    /// No such queue pair.
    UnknownQp = 13 => "no such queue pair",
    /// No region has the key.
    UnknownKey = 14 => "no memory region has this key",
    /// No such port.
    UnknownPort = 15 => "no such port",
    /// Not the index of a GID.
    GidIndex = 16 => "GID index is outside of the table, or its entry is empty",
    /// No such shared receive queue.
    UnknownSrq = 17 => "no such shared receive queue",
    /// No such XRC domain.
    UnknownXrcd = 18 => "no such XRC domain",
    /// Not a kind of context.
    ContextKind = 20 => "unknown kind of context",
    /// A context may not have so many doorbell slots.
    SlotCount = 21 => "number of doorbell slots is not a power of two within the limits",
    /// All doorbell slots of the context are taken.
    SlotsExhausted = 22 => "context has no doorbell slot left",
    /// A limit of the device is reached.
    LimitReached = 23 => "device has no room for another object",
    /// The object is in use.
    InUse = 24 => "object is used by another",
    /// Objects of different contexts do not go together.
    ContextMismatch = 25 => "objects belong to different contexts",
    /// Objects of different protection domains do not go together.
    PdMismatch = 26 => "memory region belongs to another protection domain",
    /// Only the driver itself may do this.
    KernelOnly = 27 => "reserved to kernel contexts",
    /// Not a completion vector.
    CompletionVector = 28 => "completion vector is out of range",
    /// The ring does not have a valid layout or does not lie in its buffer.
    RingLayout = 29 => "ring layout is not valid",
    /// Queue pair type means nothing.
    QpType = 30 => "unknown queue pair type",
    /// A type of queue pair whose feature was not negotiated.
    QpTypeAbsent = 46 => "queue pairs of this type were not negotiated",
    /// More entries, elements or inline bytes than the device does.
    QueueCapacity = 31 => "queue capacities exceed the limits",
    /// The stride does not hold the capacities asked for.
    QueueStride = 32 => "ring stride is too small for the capacities",
    /// Undefined flag bits.
    Flags = 33 => "undefined flag bits",
    /// Undefined access rights, or remote rights to change without the local one.
    AccessRights = 34 => "access rights are not valid",
    /// A region is too long, or wraps around, or is empty and may not be.
    RegionLength = 35 => "region is empty, too long or wraps around",
    /// The GSI queue pair exists already.
    GsiExists = 36 => "GSI queue pair exists already",
    /// The GID type is not supported.
    GidType = 37 => "GID type is not supported",
    /// Not an MTU of the port.
    Mtu = 38 => "MTU is not one of the port",
    /// An address with a LID that cannot be, or with none of the port's.
    LidAddress = 166 => "LID, path bits or flags of the address are not valid",
    /// The LID is none of a multicast group, or there is one where there are no LIDs.
    MulticastLid = 167 => "LID is not that of a multicast group",
    /// Only queue pair 0 and others like it send to each other.
    ManagementQp = 168 => "only queue pair 0 sends to queue pair 0",
    /// Not the index of a P_Key.
    PkeyIndex = 169 => "P_Key index is outside of the table",
    /// No such counter set.
    UnknownCounterSet = 164 => "no such counter set",
    /// Not a state of a port.
    PortState = 163 => "unknown state of a port",
    /// The limit of a shared receive queue is never met.
    SrqLimit = 39 => "limit is more than the entries of the shared receive queue",
    /// The GID names no multicast group.
    MulticastGid = 160 => "GID is not that of a multicast group",
    /// The queue pair is not in the group.
    NotAttached = 161 => "queue pair is not attached to the multicast group",
    /// The queue pair is in the group already.
    Attached = 162 => "queue pair is attached to the multicast group already",
    /// The page list contradicts itself.
    PageListShape = 40 => "page list contradicts itself",
    /// A page list chunk is misaligned, empty or too full.
    PageListChunk = 41 => "page list chunk is not valid",
    /// A page list chunk is not memory of the guest.
    PageListUnmapped = 42 => "page list chunk is not guest memory",
    /// A page is misaligned.
    PageMisaligned = 43 => "page address is misaligned",
    /// A page is not memory of the guest.
    PageUnmapped = 44 => "page is not guest memory",
    /// No room to translate so many pages.
    TranslationsExhausted = 45 => "device has no room for so many pages",
    /// No such transition, or an attribute that it does not allow.
    Transition = 50 => "queue pair state transition is not allowed",
    /// The transition lacks an attribute.
    AttributeMissing = 51 => "transition lacks a required attribute",
    /// The transition does not allow an attribute.
    AttributeForbidden = 52 => "transition does not allow an attribute",
    /// The current state is not the one that the driver believes.
    CurrentState = 53 => "queue pair is not in the stated current state",
    /// An attribute has a value out of range.
    AttributeValue = 54 => "attribute value is out of range",
    /// No such step of path migration, or no path to go over to.
    MigrationState = 55 => "state of path migration cannot be changed like this",
    /// The peer went over to a path that is not loaded.
    MigrationPath = 56 => "peer migrated to a path that is not the alternate one",
    /// The send ring's producer index cannot be.
    SendProducer = 60 => "send queue producer index is more than a ring ahead",
    /// The receive ring's producer index cannot be.
    ReceiveProducer = 61 => "receive queue producer index is more than a ring ahead",
    /// Ring memory is gone.
    RingUnmapped = 62 => "ring memory is not mapped any more",
    /// The completion queue had no free entry.
    CqOverrun = 63 => "completion queue overran",
    /// The completion queue's consumer index cannot be.
    CqConsumer = 64 => "completion queue consumer index is ahead of the device",
    /// The completion queue of the queue pair failed.
    CqFailed = 65 => "completion queue of the queue pair failed",
    /// The shared receive queue failed before.
    SrqFailed = 66 => "shared receive queue failed",
    /// The new ring of a completion queue has too few entries.
    CqTooSmall = 67 => "completions that were not read do not fit the new ring",
    /// The opcode means nothing, or not for this type of queue pair.
    WqeOpcode = 70 => "work request opcode is not valid for the queue pair",
    /// The flags mean nothing, or not for this opcode.
    WqeFlags = 71 => "work request flags are not valid",
    /// More elements or inline bytes than the queue was created for.
    WqeCapacity = 72 => "work request exceeds the capacities of its queue",
    /// The message is longer than the device does.
    WqeLength = 73 => "message is too long",
    /// Atomics take 8 bytes.
    WqeAtomicLength = 74 => "atomic needs a buffer of 8 bytes",
    /// A reserved field is not 0.
    WqeReserved = 75 => "reserved field of a work request is not 0",
    /// `max_rd_atomic` is 0.
    WqeReadDepth = 76 => "queue pair may not have reads or atomics outstanding",
    /// The local GID of the address vector does not exist.
    WqeAddress = 77 => "address vector names no local GID",
    /// A flush of no, or of an unknown, placement, or of an unknown selectivity.
    FlushKind = 78 => "flush does not say how far or how much",
    /// No region has the local key.
    LocalKey = 80 => "no memory region has the local key",
    /// The local key belongs to another protection domain.
    LocalKeyPd = 81 => "local key belongs to another protection domain",
    /// The region of the local key does not give the right.
    LocalRights = 82 => "local memory region lacks the access right",
    /// The element leaves the region.
    LocalBounds = 83 => "scatter/gather element exceeds its memory region",
    /// The memory of the region is gone.
    LocalUnmapped = 84 => "memory of the local region is not mapped",
    /// The region of the local key is free.
    LocalFree = 85 => "memory region of the local key is not registered",
    /// The window of the key was bound by another queue pair.
    LocalKeyQp = 87 => "memory window was bound by another queue pair",
    /// The key may not be invalidated.
    LocalInvalidate = 86 => "key cannot be invalidated",
    /// The driver has no page behind the bytes.
    LocalPage = 88 => "there is no page behind the local region",
    /// A page is not there yet.
    PageAbsent = 89 => "page of the memory region is not there yet",
    /// No region has the remote key.
    RemoteKey = 90 => "no memory region has the remote key",
    /// The remote key belongs to another protection domain.
    RemoteKeyPd = 91 => "remote key belongs to another protection domain",
    /// The queue pair or the region of the remote key does not give the right.
    RemoteRights = 92 => "remote memory region or queue pair lacks the access right",
    /// The request leaves the region.
    RemoteBounds = 93 => "remote access exceeds its memory region",
    /// The memory of the region is gone.
    RemoteUnmapped = 94 => "memory of the remote region is not mapped",
    /// The key may not be invalidated.
    RemoteInvalidate = 95 => "key cannot be invalidated by a peer",
    /// The region of the remote key is free.
    RemoteFree = 96 => "memory region of the remote key is not registered",
    /// The window of the remote key was bound by another queue pair.
    RemoteKeyQp = 97 => "memory window of the remote key was bound by another queue pair",
    /// The driver has no page behind the bytes.
    RemotePage = 98 => "there is no page behind the remote region",
    /// A packet does not fit the message that it belongs to.
    PacketSequence = 100 => "packet does not continue the message",
    /// The payload of a packet has the wrong length.
    PacketLength = 101 => "packet has the wrong length",
    /// The peer sent more reads, atomics, atomic writes or flushes than agreed.
    TooManyReads = 102 => "more reads and atomics outstanding than agreed",
    /// An atomic or an atomic write that is not aligned to 8 bytes.
    AtomicAlignment = 103 => "address of an atomic is not a multiple of 8",
    /// The message does not fit the receive.
    ReceiveTooShort = 104 => "message is longer than the receive",
    /// The receive entry is not valid.
    ReceiveEntry = 105 => "receive entry is not valid",
    /// The opcode of a packet is reserved, or of an operation that there is not.
    PacketOpcode = 109 => "packet has an opcode that is reserved or not supported",
    /// A packet names no shared receive queue of the XRC domain, or not that of its message.
    XrcSrq = 115 => "packet names no shared receive queue that its message can go to",
    /// A packet before this one is missing.
    PacketMissing = 107 => "a packet before this one did not come",
    /// No receive is posted.
    NoReceive = 108 => "no receive is posted",
    /// The response does not fit the request.
    ResponseLength = 106 => "response has the wrong length or kind",
    /// Timeouts or sequence errors used up all retries.
    Retries = 110 => "peer did not answer within all retries",
    /// RNR NAKs used up all retries.
    RnrRetries = 111 => "peer had no receive within all retries",
    /// The peer says that the request is not valid.
    PeerInvalidRequest = 112 => "peer found the request not valid",
    /// The peer says that the access is not allowed.
    PeerAccess = 113 => "peer does not allow the access",
    /// The peer says that it could not do it.
    PeerOperation = 114 => "peer could not do the operation",
    /// The driver put something impossible into a virtqueue.
    VirtqueueBroken = 150 => "driver broke a virtqueue",
    /// Somebody armed a fault.
    Provoked = 152 => "a fault that was armed",
    /// The device found itself in a state that cannot be.
    InternalFault = 151 => "internal fault of the device",
    /// The driver moved the queue pair to the error state, or an earlier request failed.
    QpInError = 120 => "queue pair is in the error state",
    /// The key names no region for fast registration.
    RegisterKey = 130 => "no memory region for fast registration has this key",
    /// A fast registration of a region that is valid.
    RegisterValid = 131 => "memory region for fast registration is not free",
    /// The pages of a fast registration do not fit its length or its table.
    RegisterPages = 132 => "pages do not fit the fast registration",
    /// The table of a region for fast registration is gone.
    RegisterTable = 133 => "table of the memory region is not mapped any more",
    /// A region for fast registration has no pages or too many.
    TableLength = 134 => "number of pages of the memory region is out of range",
    /// The key names no memory window.
    WindowKey = 140 => "no memory window has this key",
    /// A window of type 2 that is bound cannot be bound.
    WindowBound = 141 => "memory window is bound",
    /// Not a type of memory windows.
    WindowType = 142 => "unknown type of memory window",
    /// Windows are bound to the region.
    RegionBound = 143 => "memory windows are bound to the memory region",
    /// The region has no page of that number.
    PageNumber = 145 => "page number is outside of the memory region",
    /// What cannot be a page of a nested region, or has none.
    NestedPage = 165 => "no region on demand that is as long as a page, or no nested region",
    /// The right to make memory survive, for memory that is lost with the machine.
    NotPersistent = 146 => "memory does not survive a loss of power",
    /// A flush came again before it was done.
    FlushUnderWay = 147 => "flush is still being done",
    /// The machine could not make memory survive.
    FlushFailed = 148 => "memory could not be made to survive a loss of power",
    /// The region cannot be changed.
    RegionFixed = 144 => "memory region is not one that can be reregistered",
}

impl Cause {
    /// Whether a memory access of the peer, not of this side, is what failed; turns the local
    /// access causes into their remote counterparts.
    pub(crate) const fn as_remote(self) -> Self {
        match self {
            Self::LocalKey => Self::RemoteKey,
            Self::LocalKeyPd => Self::RemoteKeyPd,
            Self::LocalRights => Self::RemoteRights,
            Self::LocalBounds => Self::RemoteBounds,
            Self::LocalUnmapped => Self::RemoteUnmapped,
            Self::LocalFree => Self::RemoteFree,
            Self::LocalKeyQp => Self::RemoteKeyQp,
            Self::LocalInvalidate => Self::RemoteInvalidate,
            Self::LocalPage => Self::RemotePage,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_not_zero() {
        for cause in Cause::ALL {
            assert_ne!(cause.code(), 0);
            assert_eq!(Cause::from_code(cause.code()), Some(*cause));
            assert!(!cause.text().is_empty());
        }
    }
}
