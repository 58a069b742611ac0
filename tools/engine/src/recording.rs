// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause

//! Recordings of a device, and their replay.
//!
//! What a device does depends only on its inputs: commands, doorbells, segments, the time, faults, the seed of its
//! keys, and what it reads from guest memory. A recording contains all of these, in order, from a point at which the
//! state of the device is known. So a replay needs no guest, no other device and no clock. It makes the same calls, and
//! answers each access to guest memory with what was found there. Each access is recorded, because guest memory is
//! shared and can change at any time.
//!
//! The device's output is in the recording as one digest per call. It covers replies, events, segments that are sent,
//! and what is stored in guest memory and where. If a replay results in a different digest, it has diverged.
//!
//! # Where a recording begins
//!
//! A recording of a device that was just reset needs no state: the configuration determines everything. This is the
//! durable form, because even an engine that has changed inside can read it. Other recordings begin with the entire
//! state of the device: queue pairs, keys, rings, timers, everything that waits. Only the version of the engine that
//! wrote a state can read it, because its form follows from the definitions of the types. So no object has a second
//! description that could be wrong; the only possible mistake is to leave something out. Simulations and the tests of
//! the engine check for that: they begin recordings at random moments, and each has to replay and to end in the state
//! of the device.
//!
//! # What is left out
//!
//! The device does not interpret payload, with two exceptions: it looks for the checksums of IP packets that arrive,
//! before it records whether they are right, and it records the protection information of blocks and their guards. If
//! more than [`KEPT_PAYLOAD`] bytes of payload arrive in a segment or are read from guest memory, only their number is
//! recorded, and a replay uses zeros. Digests cover where payload goes, not its contents. What is copied from guest to
//! guest is not recorded at all. Calls that change nothing are left out, for example a request for an event when there
//! is none.
//!
//! # Format
//!
//! Numbers are unsigned, in groups of 7 bits, lowest first; all bytes but the last have bit 7 set. A text or other
//! bytes follow their length. A flag is a byte, 0 or 1.
//!
//! ```text
//! recording := "VRNICREC" version:byte program:text device:text config begin call* [over]
//! config    := mac:6 guid:8 vectors doorbell-pages mtu:byte segmentation:byte recovery:byte features seed:32 limit*22
//! begin     := 0 | 1 start state:bytes               0: with a reset, at the time 0. Version 1 has none of this
//! received  := head rest | head path rest            the flag: there is a path, which is not that of the one before
//!            | path headers rest                     up to version 2
//! head      := flag flags p-key:2 source-qp:4 destination-qp:4 psn:4      the lowest byte first
//! call      := time 64                       as the call before
//!            | time kind:16…41 argument* access* (0 digest:8 | 15)       15: the engine panicked
//! over      := 0 65 why:text
//! access    := 1 | 2 | 3 bytes | 4 | 5 word | 6 block offset | 7 | 8 length
//! ```
//!
//! A time is the difference in nanoseconds from that of the previous call, or from the start: twice the number, or for
//! a negative number twice its absolute value minus one. Accesses are: 1, something was stored; 2, the memory is not
//! mapped; 3, bytes were read; 4, payload was read and is left out; 5, a word was read, and maybe changed; 6, an
//! address is at this offset of this block; 7, an address is not mapped, or a block is not persistent; 8, a block is
//! persistent and has this length.
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
//! | 35 | mark: has no effect. The call after it repeats nothing from before, and has its path in full | |
//! | 36 | set the port of an HCA | port: value; reregister: flag |
//! | 37 | next port request | |
//! | 38 | answer a port request | answer: value |
//! | 39 | next report of a wrong key | |
//! | 40 | pause a receiver | its GID: 16 |
//! | 41 | resume a receiver | its GID: 16 |
//!
//! A value has the form of a state, as bytes. `format` describes the rest: how segments and faults are written.
//! `digest` describes the digest: up to version 2, it takes numbers byte by byte, later versions take two at a time. A
//! state is in the format of the crate `postcard`; see the module `state`. A recording contains the seed of the
//! device's keys, or the generator that was made from it, and the contents of the guest's rings: it is as confidential
//! as the guest.

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
