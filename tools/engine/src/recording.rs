// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings of a device, and their replay.
//!
//! A device depends on nothing but what it is called with: commands, doorbells, segments, the time, faults, the seed of
//! its keys, and what it finds in guest memory whenever it looks there. A recording has all of that, in order, from a
//! moment on at which the state of the device is known. So a replay needs no guest, no other device and no clock. It
//! makes the same calls, and answers each access to guest memory with what was found there: guest memory is shared and
//! changes at any time, so that is known of each access alone.
//!
//! What the device does with that, its output, is in the recording as one digest for each call: replies, events,
//! segments that are sent, and what is stored in guest memory and where. A replay that gives other digests is none.
//!
//! # Where it begins
//!
//! A recording of a device that was just reset needs no state: the configuration says all. It is the form that lasts,
//! for an engine that has changed inside reads it as well. Another one begins with the state of the device, all of it:
//! queue pairs, keys, rings, timers, what waits. Only the version of the engine that wrote a state reads it, because
//! its form follows from the definitions of the types. So there is no second description of each object which could be
//! wrong; what could be is that something is left out. Simulations and the tests of the engine look for that: they
//! begin recordings at random moments, and each has to replay, and to end in the state of the device.
//!
//! # What is left out
//!
//! Payload means nothing to the device. Where more than [`KEPT_PAYLOAD`] bytes of it come in a segment or are read from
//! guest memory, their number is recorded, and a replay has zeros; digests have where payload goes, not what it is.
//! What is copied from guest to guest is not seen at all. Calls that change nothing, such as asking for an event when
//! there is none, are left out.
//!
//! # Format
//!
//! Numbers are unsigned, in groups of 7 bits, the lowest first; all but the last byte have bit 7 set. A text or other
//! bytes stand behind their number. A flag is a byte, 0 or 1.
//!
//! ```text
//! recording := "VRNICREC" version:byte program:text device:text config begin call* [over]
//! config    := mac:6 guid:8 vectors doorbell-pages mtu:byte segmentation:byte recovery:byte features seed:32 limit*22
//! begin     := 0 | 1 start state:bytes               0: with a reset, at the time 0. Version 1 has none of this
//! received  := head rest | head path rest            the flag: there is a path, which is not that of the one before
//!            | path headers rest                     up to version 2
//! head      := flag flags p-key:2 source-qp:4 destination-qp:4 psn:4      the lowest byte first
//! call      := time 64                       as the call before
//!            | time kind:16…34 argument* access* (0 digest:8 | 15)       15: the engine panicked
//! over      := 0 65 why:text
//! access    := 1 | 2 | 3 bytes | 4 | 5 word | 6 block offset | 7 | 8 length
//! ```
//!
//! A time is the difference from that of the call before, or from the start, in nanoseconds: twice the number, or for a
//! number below 0 twice its amount less one. An access is: 1, something was stored; 2, the memory is not mapped; 3,
//! bytes were read; 4, payload was read and is left out; 5, a word was read, and maybe changed; 6, an address is at
//! that offset of that block; 7, it is nowhere, or the block is not persistent; 8, a block is persistent and so long.
//!
//! | kind | call | arguments |
//! |---|---|---|
//! | 16 | execute | request: bytes |
//! | 17 | doorbell | page, value |
//! | 18 | poll | units |
//! | 19 | prepare to sleep | |
//! | 20 | receive | received |
//! | 21 | count a bad packet | wrong ICRC: flag |
//! | 22 | advance | |
//! | 23 | next asynchronous event | |
//! | 24 | next completion event | vector |
//! | 25 | set the link | up: flag |
//! | 26 | arm a fault | description: text |
//! | 27 | clear faults | flag; if it is 1, the number of the one |
//! | 28 | set faults | last number, firings, how many, then each |
//! | 29 | next sync | |
//! | 30 | synced | whether it worked: flag |
//! | 31 | take the delivery of a reply | |
//! | 32 | next explanation | |
//! | 33 | set the rate limit | of bytes, then of requests: flag; if it is 1, how many a second |
//! | 34 | poll | units, bytes |
//! | 35 | mark: nothing. Behind it stands no repetition of what was before, and a path | |
//!
//! `format` has the rest: how segments and faults are written. `digest` has what a digest is: up to version 2, it takes
//! numbers byte by byte, later two at a time. A state is in the format of the crate `postcard`; see
//! the module `state`. The recording holds the seed of the device's keys, or the generator that they come from, and
//! what was in the memory of the guest's rings: it is as confidential as the guest.

mod digest;
mod flight;
mod format;
mod halves;
mod player;
mod recorder;

pub(crate) use digest::Digest;
pub(crate) use flight::{Flight, Kind};
pub use format::{
    Access, BadRecording, Call, Header, Input, KEPT_PAYLOAD, MAGIC, Outcome, Recording, VERSION,
    ending,
};
pub(crate) use format::{Put, Take, put_range, put_segment, take_segment};
pub(crate) use halves::Halves;
pub use player::{Divergence, Failed, Output, Player, Step, Touch, panic_message, perform, replay};
pub use recorder::Recorder;
