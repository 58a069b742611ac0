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

            /// Returns the number of the cause in a `vendor_error` field, which is never 0.
            pub const fn code(self) -> u32 {
                self as u32
            }

            /// Returns the cause with this number.
            pub fn from_code(code: u32) -> Option<Self> {
                Self::ALL.iter().copied().find(|cause| cause.code() == code)
            }

            /// Returns a description of what went wrong.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }
    };
}

causes! {
    /// The command is shorter or longer than its code requires.
    CommandLength = 1 => "command has the wrong length",
    /// Unknown command code.
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
    /// The GID index is out of range, or its entry is empty.
    GidIndex = 16 => "GID index is out of range, or its entry is empty",
    /// No such shared receive queue.
    UnknownSrq = 17 => "no such shared receive queue",
    /// No such XRC domain.
    UnknownXrcd = 18 => "no such XRC domain",
    /// Unknown kind of context.
    ContextKind = 20 => "unknown kind of context",
    /// The number of doorbell slots is not a power of two within the limits.
    SlotCount = 21 => "number of doorbell slots is not a power of two within the limits",
    /// All doorbell slots of the context are taken.
    SlotsExhausted = 22 => "context has no doorbell slot left",
    /// A limit of the device is reached.
    LimitReached = 23 => "device has no room for another object",
    /// The object is in use.
    InUse = 24 => "object is still used by another object",
    /// The objects belong to different contexts.
    ContextMismatch = 25 => "objects belong to different contexts",
    /// The objects belong to different protection domains.
    PdMismatch = 26 => "memory region belongs to another protection domain",
    /// Only kernel contexts may do this.
    KernelOnly = 27 => "only kernel contexts may do this",
    /// The completion vector is out of range.
    CompletionVector = 28 => "completion vector is out of range",
    /// The ring does not have a valid layout or exceeds its buffer.
    RingLayout = 29 => "ring layout is not valid",
    /// Unknown queue pair type.
    QpType = 30 => "unknown queue pair type",
    /// The feature for this type of queue pair was not negotiated.
    QpTypeAbsent = 46 => "queue pairs of this type were not negotiated",
    /// More entries, elements or inline bytes than the device supports.
    QueueCapacity = 31 => "queue capacities exceed the limits",
    /// The stride is too small for the requested capacities.
    QueueStride = 32 => "ring stride is too small for the capacities",
    /// Undefined flag bits.
    Flags = 33 => "undefined flag bits",
    /// Undefined access rights, or remote rights to change memory without the local one.
    AccessRights = 34 => "access rights are not valid",
    /// The region is too long, wraps around, or is empty where it must not be.
    RegionLength = 35 => "region is empty, too long or wraps around",
    /// The GSI queue pair already exists.
    GsiExists = 36 => "GSI queue pair exists already",
    /// The GID type is not supported.
    GidType = 37 => "GID type is not supported",
    /// The MTU is not one that the port supports.
    Mtu = 38 => "port does not support this MTU",
    /// The address has a LID that is not valid, or path bits that the port does not have.
    LidAddress = 166 => "LID, path bits or flags of the address are not valid",
    /// The LID is not that of a multicast group, or there is a LID on a port without LIDs.
    MulticastLid = 167 => "LID is not that of a multicast group",
    /// Only queue pair 0 may send to queue pair 0.
    ManagementQp = 168 => "only queue pair 0 sends to queue pair 0",
    /// The P_Key index is out of range.
    PkeyIndex = 169 => "P_Key index is outside of the table",
    /// No such flow.
    UnknownFlow = 171 => "no such flow",
    /// The type, the fields or the priority of a flow are not valid.
    FlowFields = 172 => "type, fields or priority of the flow are not valid",
    /// The header of a send in segments is not that of a TCP packet, not complete, or followed by something.
    SegmentHeader = 173 => "header of the segments is not exactly that of a TCP packet",
    /// Segments without payload.
    SegmentSize = 174 => "segment size is 0",
    /// The table of a queue pair for receive scaling has a size that is not a power of two, or too large.
    ScalingEntries = 175 => "number of receive queues is not a power of two within the limit",
    /// The fields of a hash are unknown, exclude each other, or there are none.
    HashFields = 176 => "fields of the hash are not valid",
    /// A flow for the same frames drops them, or gives them another tag.
    FlowExists = 177 => "another flow for the same frames has other actions",
    /// No such completion counter.
    UnknownCompletionCounter = 190 => "no such completion counter",
    /// There are no operations to count, or they, the count or its change are unknown.
    CountedOperations = 191 => "operations, count or change of a completion counter are not valid",
    /// A completion counter already counts one of the operations.
    CountedAlready = 192 => "a completion counter counts this operation of the queue pair already",
    /// Completion counters are attached to queue pairs before they begin to work.
    CountedLate = 193 => "queue pair of a completion counter is past the state INIT",
    /// No such counter set.
    UnknownCounterSet = 164 => "no such counter set",
    /// Unknown port state.
    PortState = 163 => "unknown state of a port",
    /// The limit of a shared receive queue exceeds its number of entries.
    SrqLimit = 39 => "limit exceeds the capacity of the shared receive queue",
    /// The GID is not that of a multicast group.
    MulticastGid = 160 => "GID is not that of a multicast group",
    /// The queue pair is not attached to the multicast group.
    NotAttached = 161 => "queue pair is not attached to the multicast group",
    /// The queue pair is already attached to the multicast group.
    Attached = 162 => "queue pair is attached to the multicast group already",
    /// The page list is inconsistent.
    PageListShape = 40 => "page list is inconsistent",
    /// A page list chunk is misaligned, empty or too full.
    PageListChunk = 41 => "page list chunk is not valid",
    /// A page list chunk is not in guest memory.
    PageListUnmapped = 42 => "page list chunk is not guest memory",
    /// A page is misaligned.
    PageMisaligned = 43 => "page address is misaligned",
    /// A page is not in guest memory.
    PageUnmapped = 44 => "page is not guest memory",
    /// There is no room for the translations of so many pages.
    TranslationsExhausted = 45 => "device has no room for so many pages",
    /// The transition does not exist, or an attribute is not allowed in it.
    Transition = 50 => "queue pair state transition is not allowed",
    /// The transition lacks an attribute.
    AttributeMissing = 51 => "transition lacks a required attribute",
    /// The transition does not allow an attribute.
    AttributeForbidden = 52 => "transition does not allow an attribute",
    /// The current state is not the one that the driver expects.
    CurrentState = 53 => "queue pair is not in the stated current state",
    /// An attribute has a value out of range.
    AttributeValue = 54 => "attribute value is out of range",
    /// This change of the path migration state is not possible, or there is no alternate path.
    MigrationState = 55 => "transition of the path migration state is not allowed",
    /// The peer migrated to a path that is not loaded as the alternate path.
    MigrationPath = 56 => "peer migrated to a path that is not the alternate one",
    /// The send ring's producer index is not possible.
    SendProducer = 60 => "send queue producer index is more than a ring ahead",
    /// The receive ring's producer index is not possible.
    ReceiveProducer = 61 => "receive queue producer index is more than a ring ahead",
    /// The memory of the ring is no longer mapped.
    RingUnmapped = 62 => "ring memory is not mapped any more",
    /// The completion queue had no free entry.
    CqOverrun = 63 => "completion queue overran",
    /// The completion queue's consumer index is not possible.
    CqConsumer = 64 => "completion queue consumer index is ahead of the device",
    /// The completion queue of the queue pair failed.
    CqFailed = 65 => "completion queue of the queue pair failed",
    /// The shared receive queue failed earlier.
    SrqFailed = 66 => "shared receive queue failed",
    /// The new ring of a completion queue is too small for the completions that have not been read.
    CqTooSmall = 67 => "unread completions do not fit in the new ring",
    /// The opcode is unknown or not valid for this type of queue pair.
    WqeOpcode = 70 => "work request opcode is not valid for the queue pair",
    /// The flags are unknown or not valid for this opcode.
    WqeFlags = 71 => "work request flags are not valid",
    /// More elements or inline bytes than the capacities of the queue.
    WqeCapacity = 72 => "work request exceeds the capacities of its queue",
    /// The message is longer than the device supports.
    WqeLength = 73 => "message is too long",
    /// The buffer of an atomic does not have 8 bytes.
    WqeAtomicLength = 74 => "atomic needs a buffer of 8 bytes",
    /// A reserved field is not 0.
    WqeReserved = 75 => "reserved field of a work request is not 0",
    /// `max_rd_atomic` is 0.
    WqeReadDepth = 76 => "queue pair may not have reads or atomics outstanding",
    /// The address vector names a local GID that does not exist.
    WqeAddress = 77 => "address vector names no local GID",
    /// The placement or selectivity of a flush is missing or unknown.
    FlushKind = 78 => "placement type or selectivity of the flush is missing or unknown",
    /// The frame has no complete header.
    FrameLength = 79 => "frame is shorter than its header",
    /// No region has the local key.
    LocalKey = 80 => "no memory region has the local key",
    /// The local key belongs to another protection domain.
    LocalKeyPd = 81 => "local key belongs to another protection domain",
    /// The region of the local key does not grant the access right.
    LocalRights = 82 => "local memory region lacks the access right",
    /// The element exceeds the region.
    LocalBounds = 83 => "scatter/gather element exceeds its memory region",
    /// The memory of the region is no longer mapped.
    LocalUnmapped = 84 => "memory of the local region is not mapped",
    /// The region of the local key is not registered.
    LocalFree = 85 => "memory region of the local key is not registered",
    /// The window of the key was bound by another queue pair.
    LocalKeyQp = 87 => "memory window was bound by another queue pair",
    /// The key may not be invalidated.
    LocalInvalidate = 86 => "key cannot be invalidated",
    /// The driver has no page for the accessed bytes.
    LocalPage = 88 => "memory region of the local key has no page for the access",
    /// A page is not present yet.
    PageAbsent = 89 => "page of the memory region is not present yet",
    /// No region has the remote key.
    RemoteKey = 90 => "no memory region has the remote key",
    /// The remote key belongs to another protection domain.
    RemoteKeyPd = 91 => "remote key belongs to another protection domain",
    /// The queue pair or the region of the remote key does not grant the access right.
    RemoteRights = 92 => "remote memory region or queue pair lacks the access right",
    /// The request exceeds the region.
    RemoteBounds = 93 => "remote access exceeds its memory region",
    /// The memory of the region is no longer mapped.
    RemoteUnmapped = 94 => "memory of the remote region is not mapped",
    /// The key may not be invalidated.
    RemoteInvalidate = 95 => "key cannot be invalidated by a peer",
    /// The region of the remote key is not registered.
    RemoteFree = 96 => "memory region of the remote key is not registered",
    /// The window of the remote key was bound by another queue pair.
    RemoteKeyQp = 97 => "memory window of the remote key was bound by another queue pair",
    /// The driver has no page for the accessed bytes.
    RemotePage = 98 => "memory region of the remote key has no page for the access",
    /// A packet does not continue the message that it belongs to.
    PacketSequence = 100 => "packet does not continue the message",
    /// The payload of a packet has the wrong length.
    PacketLength = 101 => "packet has the wrong length",
    /// The peer sent more reads, atomics, atomic writes or flushes than agreed.
    TooManyReads = 102 => "more reads and atomics outstanding than agreed",
    /// The address of an atomic or an atomic write is not a multiple of 8.
    AtomicAlignment = 103 => "address of an atomic is not a multiple of 8",
    /// The message is longer than the receive.
    ReceiveTooShort = 104 => "message is longer than the receive",
    /// The receive entry is not valid.
    ReceiveEntry = 105 => "receive entry is not valid",
    /// The opcode of a packet is reserved, or its operation is not supported.
    PacketOpcode = 109 => "packet has an opcode that is reserved or not supported",
    /// A packet names no shared receive queue of the XRC domain, or not the one of its message.
    XrcSrq = 115 => "packet does not name the shared receive queue of its message",
    /// A packet before this one is missing.
    PacketMissing = 107 => "an earlier packet is missing",
    /// No receive is posted.
    NoReceive = 108 => "no receive is posted",
    /// The response has the wrong length or kind.
    ResponseLength = 106 => "response has the wrong length or kind",
    /// Timeouts or sequence errors used up all retries.
    Retries = 110 => "peer did not answer, and no retries are left",
    /// RNR NAKs used up all retries.
    RnrRetries = 111 => "peer posted no receive, and no retries are left",
    /// The peer reports that the request is not valid.
    PeerInvalidRequest = 112 => "peer rejected the request as invalid",
    /// The peer reports that the access is not allowed.
    PeerAccess = 113 => "peer refused the access",
    /// The peer reports that it failed to execute the operation.
    PeerOperation = 114 => "peer could not execute the operation",
    /// The driver put something into a virtqueue that is not valid.
    VirtqueueBroken = 150 => "driver broke a virtqueue",
    /// A fault that was armed.
    Provoked = 152 => "an injected fault",
    /// The device found itself in an impossible state.
    InternalFault = 151 => "internal error of the device",
    /// The driver moved the queue pair to the error state, or an earlier request failed.
    QpInError = 120 => "queue pair is in the error state",
    /// The key names no region for fast registration.
    RegisterKey = 130 => "no memory region for fast registration has this key",
    /// The region of a fast registration is already registered.
    RegisterValid = 131 => "memory region for fast registration is not free",
    /// The pages of a fast registration do not match its length or do not fit its table.
    RegisterPages = 132 => "pages do not fit the fast registration",
    /// The table of a region for fast registration is no longer mapped.
    RegisterTable = 133 => "table of the memory region is not mapped any more",
    /// The number of pages or elements of a region that work requests register is 0 or too large.
    TableLength = 134 => "number of pages or elements of the memory region is out of range",
    /// The key names no integrity region.
    IntegrityKey = 180 => "no integrity region has this key",
    /// The domains or the interval of an integrity region are not valid.
    IntegrityFormat = 181 => "domains or interval of the integrity region are not valid",
    /// The elements of an integrity region do not fit its table or its domains, or one is empty.
    IntegrityElements = 182 => "elements of the integrity region are empty, or do not fit its table or its domains",
    /// The data of an integrity region are not whole blocks, their metadata are not that of the blocks, or both are too
    /// long.
    IntegrityLength = 183 => "data or metadata of the integrity region have the wrong length",
    /// The key names no memory window.
    WindowKey = 140 => "no memory window has this key",
    /// A type 2 window that is already bound cannot be bound.
    WindowBound = 141 => "memory window is bound",
    /// Unknown type of memory window.
    WindowType = 142 => "unknown type of memory window",
    /// Windows are bound to the region.
    RegionBound = 143 => "memory windows are bound to the memory region",
    /// The region has no page with this number.
    PageNumber = 145 => "page number is outside of the memory region",
    /// The region cannot be a page of a nested region, or the other region is not nested.
    NestedPage = 165 => "region is not an on-demand region of page length, or the other region is not nested",
    /// The right to flush to persistence was requested for memory that is not persistent.
    NotPersistent = 146 => "memory is not persistent",
    /// A flush was repeated before it was finished.
    FlushUnderWay = 147 => "flush is still in progress",
    /// Memory could not be made persistent.
    FlushFailed = 148 => "memory could not be made persistent",
    /// The region cannot be reregistered.
    RegionFixed = 144 => "memory region cannot be reregistered",
}

impl Cause {
    /// Converts the cause of a failed local access to that of a failed access by the peer. Returns all other causes
    /// unchanged.
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
